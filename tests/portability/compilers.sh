#!/bin/sh
# compilers.sh [BUILD]  use.c, options.c and the known answers build without a warning and give the
#                       right answers.
#
# With gcc and clang, C99 to C23, C++11 to C++23, strict and with extensions, each optimisation
# level, at link time too, short enums, unsigned char, 32 bits, hardened, clang's -Weverything, musl
# and tcc. Then the project's own C files are compiled as strict C99 by both, but for the tests,
# which run.sh compiles like that.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
# WORDS       only compilers whose command has one of these words in it
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}
mkdir -p "$build" && build=$(cd "$build" && pwd)/compilers
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}

# built FILE COMMAND  Builds FILE with COMMAND, which holds all flags but folders.
built() {
    wanted "$2" || return
    rm -f "$build/program"
    $2 -I"$header" -I"$here" "$1" -o "$build/program" >"$build/output" 2>&1 && return
    fail "$2: $(basename "$1") does not build" "$build/output"
    return 1
}

# with PROGRAM COMMAND  PROGRAM.c is built, and its answers are right.
with() {
    ! built "$here/$1.c" "$2" || run "$2: $1.c gives a wrong answer" limited 20 "$build/program"
}

# known COMMAND  The known answers.
known() {
    ! built "$root/tests/known_answers.c" "$1" ||
        checks "$1: known_answers.c gives a wrong answer" limited 60 "$build/program"
}

# clang's -Weverything, without what asks for another language, another layout of a struct, or what
# its other warnings contradict:
everything="-Weverything -Werror -Wno-unknown-warning-option
    -Wno-declaration-after-statement
    -Wno-c++98-compat -Wno-c++98-compat-pedantic
    -Wno-padded
    -Wno-switch-default -Wno-covered-switch-default
    -Wno-unsafe-buffer-usage
    -Wno-disabled-macro-expansion
    -Wno-unused-macros
    -Wno-zero-as-null-pointer-constant
    -Wno-old-style-cast
    -Wno-atomic-implicit-seq-cst
    -Wno-pre-c11-compat -Wno-pre-c2x-compat"

hardened="-O2 -D_FORTIFY_SOURCE=2 -fstack-protector-strong -fPIE -pie"
i386="-m32 -idirafter /usr/include/$(gcc -print-multiarch 2>/dev/null)" # as in run.sh
for cc in gcc clang; do
    have $cc $cc || continue
    for std in c99 c11 c17 c2x gnu99 gnu17; do
        with use "$cc -std=$std -O2 $warnings_c"
    done
    for level in "-O0" "-O3 -flto" "$hardened"; do
        with options "$cc -std=c99 $level $warnings_c"
    done
    for level in "-O1 -fno-builtin" "-O2 -fshort-enums -funsigned-char" "-Os" "-O3 -march=native"; do
        known "$cc -std=c99 $level $warnings_c"
    done
    measured x86-64 "" "$cc -std=c99"
    if builds "$cc -m32" gcc-N-multilib; then
        with use "$cc $i386 -std=c99 -O2 $warnings_c"
        with options "$cc $i386 -std=gnu11 -O0 $warnings_c"
        # no compare-and-swap of 64 bits
        with options "$cc $i386 -march=i486 -std=c99 -Os $warnings_c"
        known "$cc $i386 -std=c99 -O3 $warnings_c"
        known "$cc $i386 -march=i486 -std=c99 -O2 -fshort-enums -funsigned-char $warnings_c"
        measured "x86, 32 bits" "" "$cc $i386 -std=c99"
    fi
done
for cxx in g++ clang++; do
    case $cxx in
    g++) have g++ g++ || continue ;;
    *) have clang++ clang || continue ;;
    esac
    for std in c++11 c++14 c++17 c++20 c++2b gnu++11 gnu++20; do
        with use "$cxx -std=$std -O2 $warnings_cpp -x c++"
    done
    with options "$cxx -std=c++17 -O0 $warnings_cpp -x c++"
    measured "x86-64, C++" "" "$cxx -std=c++11 -x c++"
    if builds "$cxx -m32" g++-N-multilib; then
        with use "$cxx -m32 -std=c++11 -O2 $warnings_cpp -x c++"
    fi
done
if have clang clang; then
    with use "clang -std=c99 -O2 $everything"
    with use "clang -std=c17 -O2 $everything"
    with use "clang++ -std=c++11 -O2 $everything -x c++"
    with use "clang++ -std=c++17 -O2 $everything -x c++"
    with use "clang -std=c99 -O2 $warnings_c -Wreserved-identifier"
fi
if have musl-gcc musl-tools; then
    with options "musl-gcc -static -std=c99 -O2 $warnings_c"
    known "musl-gcc -static -std=c99 -O2 $warnings_c"
    measured "x86-64, musl, static" "" "musl-gcc -static -std=c99"
fi
if have tcc tcc; then # it has no atomics
    with options "tcc -Wall -Werror -DLOCKS"
    known "tcc -Wall -Werror -DRATELIMIT_NO_THREADS"
    measured x86-64 "" "tcc -DRATELIMIT_NO_THREADS"
fi

# (what needs libraries, tests/redis and most examples, is compiled where it is tested)
for file in "$root"/tests/bench/*.c "$root"/tests/faults/*.c "$root"/tests/portability/*.c \
    "$root"/examples/*.c; do
    [ -e "$file" ] || continue
    case $file in
    */examples/*) ! grep -q '^ *Build: .* -l' "$file" || continue ;;
    */shared.c) continue ;; # options.sh compiles it, where it is right
    */bare.c) continue ;;   # cross.sh compiles it, for chips
    esac
    for cc in gcc clang; do
        have $cc $cc || continue
        run "$cc: ${file#"$root"/} is not clean" $cc -std=c99 -O1 $warnings_c \
            -I"$header" -I"$root/tests" -c "$file" -o "$build/own.o"
    done
done
finish

#!/bin/sh
# compilers.sh [BUILD]  use.c and options.c build without a warning and give the right answers.
#
# With gcc and clang, C99 to C17, C++11 to C++20, strict and with extensions, each optimisation
# level, 32 bits, hardened, clang's -Weverything, and tcc. Then the project's own C files are
# compiled as strict C99 by both, but for the tests, which run.sh compiles like that.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}/compilers
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}

# with PROGRAM COMMAND  PROGRAM.c builds with COMMAND, which holds all flags but folders, and runs.
with() {
    rm -f "$build/program"
    if ! $2 -I"$header" -I"$here" "$here/$1.c" -o "$build/program" >"$build/output" 2>&1; then
        fail "$2: $1.c does not build" "$build/output"
        return
    fi
    run "$2: $1.c gives a wrong answer" limited 20 "$build/program"
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
for cc in gcc clang; do
    have $cc $cc || continue
    for std in c99 c11 c17 gnu99 gnu11 gnu17; do
        with use "$cc -std=$std -O2 $warnings_c"
    done
    for level in "-O0" "-Os" "-O3 -march=native" "-O1 -fno-builtin" "$hardened"; do
        with options "$cc -std=c99 $level $warnings_c"
    done
    if builds "$cc -m32" gcc-N-multilib; then
        with use "$cc -m32 -std=c99 -O2 $warnings_c"
        with options "$cc -m32 -std=gnu11 -O0 $warnings_c"
        # no compare-and-swap of 64 bits
        with options "$cc -m32 -march=i486 -std=c99 -Os $warnings_c"
    fi
done
for cxx in g++ clang++; do
    case $cxx in
    g++) have g++ g++ || continue ;;
    *) have clang++ clang || continue ;;
    esac
    for std in c++11 c++14 c++17 c++20 gnu++11 gnu++17; do
        with use "$cxx -std=$std -O2 $warnings_cpp -x c++"
    done
    with options "$cxx -std=c++17 -O0 $warnings_cpp -x c++"
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
if have tcc tcc; then # it has no atomics
    with use "tcc -Wall -Werror -DRATELIMIT_NO_THREADS"
    with options "tcc -Wall -Werror -DLOCKS"
fi

# (what needs libraries, tests/redis and most examples, is compiled where it is tested)
for file in "$root"/tests/bench/*.c "$root"/tests/faults/*.c "$root"/tests/portability/*.c \
    "$root"/examples/*.c; do
    [ -e "$file" ] || continue
    case $file in
    */examples/*) ! grep -q '^ *Build: .* -l' "$file" || continue ;;
    */shared.c) continue ;; # options.sh compiles it, where it is right
    esac
    for cc in gcc clang; do
        have $cc $cc || continue
        run "$cc: ${file#"$root"/} is not clean" $cc -std=c99 -O1 $warnings_c \
            -I"$header" -I"$root/tests" -c "$file" -o "$build/own.o"
    done
done
finish

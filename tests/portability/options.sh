#!/bin/sh
# options.sh [BUILD]  Every option in the table OPTIONS of ratelimit.h, alone and in pairs.
#
# No warning, right answers, and what the option promises. Values out of range are refused with a
# sentence.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
# CC, CXX     the compilers
# QUICK       1: no pairs, no C++
# WORDS       only combinations that have one of these words in them, such as LOCKS
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}/options
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}
c="$CC -std=c99 -O1 $warnings_c -I$header -I$here"
unoptimised="$CC -std=c99 -O0 $warnings_c -I$header -I$here"
cpp="$CXX -std=c++11 -O1 $warnings_cpp -x c++ -I$header -I$here"

# with COMPILER OPTION...  options.c with these builds without a warning and gives the right
#                          answers.
with() {
    with_compiler=$1
    shift
    wanted "$*" || return 0
    rm -f "$build/program"
    if ! $with_compiler "$@" "$here/options.c" -o "$build/program" >"$build/output" 2>&1; then
        fail "$* (${with_compiler%% *}): does not build" "$build/output"
        return
    fi
    run "$* (${with_compiler%% *}): gives a wrong answer" limited 20 "$build/program"
}

# Only what a header may be compiled with; an option that the table has and this list lacks is a
# failure below.
singles="RATELIMIT_NO_LOG RATELIMIT_LOG_NOW=1 RATELIMIT_STATIC RATELIMIT_API=extern RATELIMIT_NO_CLOCK RATELIMIT_NO_THREADS LOCKS
    RATELIMIT_FIXED_LIMITS SLEEPS RATELIMIT_TAKEOVER_MS=1 RATELIMIT_STEP_NS=RATELIMIT_SECOND
    RATELIMIT_MAX_ALL=4 RATELIMIT_NO_TEXT"

with "$c" -DPLAIN
for one in $singles RATELIMIT_TAKEOVER_MS=300 RATELIMIT_STEP_NS=1 RATELIMIT_MAX_ALL=2 \
    RATELIMIT_MAX_ALL=4096; do
    with "$c" "-D$one"
done
if [ "${QUICK:-0}" = 1 ]; then
    pairs=
else
    pairs=$singles
fi
done=" "
for one in $pairs; do
    done="$done$one "
    for other in $singles; do
        case "$done" in
        *" $other "*) continue ;;
        esac
        case "$one $other" in
        "LOCKS RATELIMIT_MAX_ALL=4") continue ;;             # its batch is one of 64
        "RATELIMIT_STATIC RATELIMIT_API=extern") continue ;; # one linkage
        "RATELIMIT_NO_THREADS SLEEPS") continue ;;           # nobody sleeps
        esac
        with "$unoptimised" "-D$one" "-D$other"
    done
done
if [ "${QUICK:-0}" != 1 ] && have "${CXX%% *}" g++; then
    for one in PLAIN $singles; do
        with "$cpp" "-D$one"
    done
fi

# The table in the header names each option once, and each is tried here.
sed -n '/^   OPTIONS$/,/^   MEMORY/s/^ *\(RATELIMIT_[A-Z_]*\).* .*/\1/p' "$header/ratelimit.h" |
    sort -u >"$build/named"
if [ "$(wc -l <"$build/named")" -lt 8 ]; then
    fail "no options found in the header's table" "$build/named"
fi
tried=$(echo "$singles" | tr -s '\n ' ' ')
while read -r option; do
    case " $tried RATELIMIT_IMPLEMENTATION RATELIMIT_LOCK RATELIMIT_UNLOCK RATELIMIT_SLEEP_MS" in
    *" $option"*) pass ;;
    *) fail "$option is in the header's table, but not tried in options.sh" ;;
    esac
done <"$build/named"
for one in $singles; do
    case $one in
    LOCKS* | SLEEPS) continue ;;
    esac
    if grep -qx "${one%%=*}" "$build/named"; then
        pass
    else
        fail "${one%%=*} is not in the header's table"
    fi
done

# RATELIMIT_API decides linkage: hidden names are not in a shared object's table, plain ones are.
cat >"$build/impl.c" <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
END
shared() {
    $CC -std=c99 -O1 -shared -fPIC -I"$header" "$@" "$build/impl.c" -o "$build/impl.so" \
        >"$build/output" 2>&1 &&
        nm -D --defined-only "$build/impl.so" >"$build/nm" 2>"$build/output"
}
if have nm binutils; then
    if shared && grep -q ' T ratelimit_take$' "$build/nm"; then
        pass
    else
        fail "a shared object does not show ratelimit_take" "$build/output"
    fi
    if shared '-DRATELIMIT_API=__attribute__((visibility("hidden")))' &&
        ! grep -q ratelimit_ "$build/nm"; then
        pass
    else
        fail "RATELIMIT_API does not hide a shared object's names" "$build/output"
    fi
fi

impl="-I$header -c $build/impl.c -o $build/impl.o"
for bad in RATELIMIT_TAKEOVER_MS=0 RATELIMIT_TAKEOVER_MS=3600001 RATELIMIT_MAX_ALL=0 \
    RATELIMIT_MAX_ALL=4097; do
    refuse "-D$bad" "${bad%%=*} must be" $CC -std=c99 -D$bad $impl
done
for half in "RATELIMIT_LOCK()=((void)0)" "RATELIMIT_UNLOCK()=((void)0)"; do
    refuse "-D$half alone" "Define both" $CC -std=c99 "-D$half" $impl
done
# Where nothing makes a shared bucket safe there is no function of that name.
run "RATELIMIT_NO_THREADS: a shared bucket" $CC -std=c99 -DRATELIMIT_NO_THREADS -I"$header" \
    -fsyntax-only "$here/shared.c"
if builds "clang -m32" gcc-N-multilib; then
    run "clang, i686: a shared bucket" clang -std=c99 -m32 -march=i686 -I"$header" -fsyntax-only "$here/shared.c"
fi
refuse "C89" "needs C99" $CC -std=c89 $impl
if have "${CXX%% *}" g++; then
    refuse "C++98" "needs C++11" $CXX -std=c++98 -x c++ $impl
fi
finish

#!/bin/sh
# Builds and runs the tests. Usage: run.sh all | fast | portability | redis | examples | fuzz | docs | faults
#
# Each suite prints its failures and ends with "N passed, N failed" (", N skipped"); the last line of all is
# the sum. A suite without that line, or with another exit code than its line says, counts as failed.
# BUILD: where to build (build). CC, CLANG: compilers. SKIP_MISSING=1: what a missing program would run
# counts as skipped; without it that is a failure.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
GCC=${CC:-gcc}
CLANG=${CLANG:-clang}
SKIP_MISSING=${SKIP_MISSING:-}
export SKIP_MISSING
mkdir -p "$BUILD" || exit 1
case $BUILD in /*) ;; *) BUILD=$(pwd)/$BUILD ;; esac

WARN="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes
      -Wmissing-prototypes -Wundef -Wcast-qual -Wvla -Wdouble-promotion -Werror"
UNITS="vectors test_model test_reported test_limit test_table test_limiter test_cas_held test_tier test_rules test_text test_threads test_processes"
passed=0 failed=0 skipped=0

count() { # passed, failed, skipped
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + ${3:-0}))
}

counted() { # the last line of a suite as numbers; nothing if it is none
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p'
}

fail() { # name, why
    echo "FAILED: $1: $2"
    failed=$((failed + 1))
}

# missing PROGRAM PACKAGE SUITE: true if the program is not there, which is then counted
missing() {
    command -v "$1" >/dev/null 2>&1 && return 1
    if [ -n "$SKIP_MISSING" ]; then
        echo "skipped: $3: $1 is missing (package $2)"
        skipped=$((skipped + 1))
    else
        fail "$3" "$1 is missing (package $2; make deps installs it)"
    fi
    return 0
}

# suite NAME SECONDS COMMAND...: runs it, prints what it said if it failed, counts
suite() {
    name=$1 limit=$2
    shift 2
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$BUILD/suite.log" 2>&1 </dev/null
    code=$?
    line=$(tail -n 1 "$BUILD/suite.log" | counted)
    if [ -z "$line" ]; then
        tail -n 40 "$BUILD/suite.log"
        fail "$name" "ended with code $code and no count"
        return
    fi
    set -- $line
    if [ "$code" -ne 0 ] || [ "$2" -ne 0 ]; then
        tail -n 40 "$BUILD/suite.log"
        [ "$2" -ne 0 ] || fail "$name" "says it passed, but ended with code $code"
    else
        grep '^skipped:' "$BUILD/suite.log"
    fi
    count "$1" "$2" "${3:-0}"
    printf '%-40s %s passed, %s failed, %s skipped, %s s\n' "$name" "$1" "$2" "${3:-0}" $(($(date +%s) - start))
}

# build OUT COMPILER-AND-FLAGS... SOURCE: true if it compiled; else the fault is printed and counted
build() {
    out=$1
    shift
    "$@" -I. -Itests -pthread -o "$out" >"$BUILD/compile.log" 2>&1 && return 0
    head -n 30 "$BUILD/compile.log"
    fail "$out" "does not compile"
    return 1
}

# units LABEL COMPILER-AND-FLAGS...: the unit programs in one build
units() {
    label=$1
    shift
    for unit in $UNITS; do
        build "$BUILD/$unit-$label" "$@" "tests/$unit.c" && suite "$unit ($label)" 300 "$BUILD/$unit-$label"
    done
}

fast() {
    missing clang-format clang-format layout ||
        suite layout 60 sh -c 'make -s fmt-check && echo "1 passed, 0 failed"'
    units sanitized $GCC -std=c99 $WARN -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
}

others() {
    units plain $GCC -std=c99 $WARN -O2 -g
    missing "$CLANG" clang "clang builds" || units clang $CLANG -std=c99 $WARN -O2 -g
    # without the package gcc-multilib, which excludes cross compilers, <asm/...> must be pointed to
    m32="-m32 -idirafter /usr/include/$($GCC -print-multiarch 2>/dev/null)"
    if echo 'int main(void){return 0;}' | $GCC $m32 -x c - -o "$BUILD/m32" 2>/dev/null; then
        units m32 $GCC -std=c99 $WARN $m32 -O2 -g
    elif [ -n "$SKIP_MISSING" ]; then
        echo "skipped: 32-bit builds: $GCC -m32 does not link (gcc-N-multilib)"
        skipped=$((skipped + 1))
    else
        fail "32-bit builds" "$GCC -m32 does not link (gcc-N-multilib)"
    fi
    UNITS="test_threads test_cas_held test_tier test_rules"
    units tsan $GCC -std=c99 $WARN -O1 -g -fsanitize=thread
    missing "$CLANG" clang "threads (clang)" || units tsan-clang $CLANG -std=c99 $WARN -O1 -g -fsanitize=thread
}

programs() { # what people run
    make -s "BUILD=$BUILD" "$BUILD/replay" "$BUILD/make_log" "$BUILD/bench" "$BUILD/flood" >"$BUILD/compile.log" 2>&1 || {
        head -n 30 "$BUILD/compile.log"
        fail programs "do not compile"
        return
    }
    missing python3 python3 replay || suite replay 600 python3 tests/test_replay.py "$BUILD"
    suite "make demo" 120 sh -c "make -s demo BUILD=$BUILD >$BUILD/demo.txt && grep -q refused $BUILD/demo.txt && echo '1 passed, 0 failed'"
    suite flood 300 "$BUILD/flood" --check
    suite "bench runs" 120 sh -c "$BUILD/bench --quick >$BUILD/bench.txt && grep -q ratio $BUILD/bench.txt && echo '1 passed, 0 failed'"
}

portability() {
    for script in tests/portability/*.sh; do
        case $script in */count.sh) continue ;; esac
        suite "$(basename "$script" .sh)" 900 sh "$script" "$BUILD"
    done
}

docs() {
    suite docs 300 sh tests/docs.sh "$BUILD"
}

redis() { # real servers on private loopback ports, started and stopped by the script
    suite redis 1500 sh tests/redis/run.sh
}

examples() { # each program in examples/, against real parts; one check for each
    missing python3 python3 examples && return
    for script in tests/examples/*.py; do
        case $script in */example.py) continue ;; esac
        suite "example $(basename "$script" .py)" 300 python3 "$script" "$BUILD"
    done
}

fuzz() {
    suite fuzz 900 sh tests/fuzz/run.sh "${FUZZ_SECONDS:-5}"
}

faults() {
    suite "planted faults" 3000 sh tests/faults/run.sh "$BUILD"
}

case ${1:-all} in
all) # two at once: what mostly compiles, and what mostly runs
    BUILD=$BUILD/side sh tests/run.sh side >"$BUILD/side.log" 2>&1 &
    side=$!
    fast
    others
    programs
    docs
    fuzz
    examples
    wait $side
    redis # alone: it waits for real servers
    sed '$d' "$BUILD/side.log"
    line=$(tail -n 1 "$BUILD/side.log" | counted)
    [ -n "$line" ] || fail portability "ended with no count"
    count ${line:-0 0 0}
    ;;
side)
    portability
    faults
    ;;
fast | portability | redis | examples | fuzz | docs | faults) "$1" ;;
*)
    sed -n 2,3p "$0"
    exit 2
    ;;
esac
if [ "$skipped" -ne 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]

#!/bin/sh
# Builds and runs the tests.
#
#     run.sh all | fast | portability | redis | examples | fuzz | docs | faults | proofs | coverage | soak
#     run.sh mutants [SECTION...]
#     run.sh one TEST [WORD...]    builds tests/TEST.c, sanitized, and runs it; words: what of it
#
# A suite prints its failures and ends with "N passed, N failed" (", N skipped"); the last line of all is
# the sum. A suite without that line, or with another exit code than its line says, counts as failed.
#
# As many suites as there are processors run side by side. Each is named when it begins; what they say is
# shown in the order of the lists below. A time limit is there for what hangs, and for nothing else: it is more than
# ten times what the suite takes on a quiet machine.
#
# BUILD: where to build (build). JOBS: how many at once. CC, CLANG: compilers. SKIP_MISSING=1: what a missing
# program would run counts as skipped; without it that is a failure.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$(pwd)
BUILD=${BUILD:-build}
CC=${CC:-gcc}
CLANG=${CLANG:-clang}
SKIP_MISSING=${SKIP_MISSING:-}
export SKIP_MISSING
mkdir -p "$BUILD" || exit 1
case $BUILD in /*) ;; *) BUILD=$root/$BUILD ;; esac
build=$BUILD
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
jobs=$BUILD/jobs.$$
. tests/portability/count.sh

counted() { # the last line of a suite as numbers; nothing if it is none
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p'
}

count() { # passed, failed, skipped
    count_passed=$((count_passed + $1)) count_failed=$((count_failed + $2)) count_skipped=$((count_skipped + ${3:-0}))
}

# ---- one suite

# suite NAME SECONDS COMMAND...: runs it, prints what it said if it failed, counts
suite() {
    name=$1 limit=$2
    shift 2
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$job.said" 2>&1 </dev/null &
    echo $! >"$job.running"
    wait $!
    code=$?
    rm -f "$job.running"
    line=$(tail -n 1 "$job.said" | counted)
    if [ "$code" = 124 ] || { [ "$code" = 137 ] && [ $(($(date +%s) - start)) -ge "$limit" ]; }; then
        tail -n 40 "$job.said"
        fail "$name: time limit of $limit s"
        return
    elif [ -z "$line" ]; then
        tail -n 40 "$job.said"
        fail "$name: ended with code $code and no count"
        return
    fi
    set -- $line
    if [ "$code" -ne 0 ] || [ "$2" -ne 0 ]; then
        tail -n 40 "$job.said"
        [ "$2" -ne 0 ] || fail "$name: says it passed, but ended with code $code"
    else
        grep '^skipped:' "$job.said"
    fi
    count "$1" "$2" "${3:-0}"
    printf '%-40s %s passed, %s failed, %s skipped, %s s\n' "$name" "$1" "$2" "${3:-0}" $(($(date +%s) - start))
}

# compiler BUILD-NAME: the command that makes this kind of build
compiler() {
    case $1 in
    sanitized) echo "$CC -std=c99 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
    plain) echo "$CC -std=c99 -O2 -g" ;;
    clang) echo "$CLANG -std=c99 -O2 -g" ;;
    # without the package gcc-multilib, which excludes cross compilers, <asm/...> must be pointed to
    m32) echo "$CC -std=c99 -m32 -idirafter /usr/include/$($CC -print-multiarch 2>/dev/null) -O2 -g" ;;
    tsan) echo "$CC -std=c99 -O1 -g -fsanitize=thread" ;;
    tsan-clang) echo "$CLANG -std=c99 -O1 -g -fsanitize=thread" ;;
    msan) echo "$CLANG -std=c99 -O1 -g -fsanitize=memory -fno-sanitize-recover=all" ;;
    esac
}

# unit TEST BUILD-NAME: tests/TEST.c
unit() {
    if ! $(compiler "$2") $warnings_c -I. -Itests -pthread "tests/$1.c" -o "$job.program" >"$job.said" 2>&1; then
        fail "$1 ($2): does not compile" "$job.said"
        return
    fi
    suite "$1 ($2)" 600 "$job.program"
    rm -f "$job.program"
}

made() { # TARGET...: true if make builds them, in this folder
    make -s "BUILD=$BUILD" "$@" >"$job.said" 2>&1 && return
    fail "$* not built" "$job.said"
    return 1
}

layout() {
    suite layout 600 sh -c 'make -s fmt-check && echo "1 passed, 0 failed"'
}

programs() { # what people run
    made "$BUILD/replay" "$BUILD/make_log" || return
    ! have python3 python3 || suite replay 3600 python3 tests/test_replay.py "$BUILD"
    suite "make demo" 600 sh -c "make -s demo BUILD=$BUILD >$BUILD/demo.txt && grep -q refused $BUILD/demo.txt && echo '1 passed, 0 failed'"
}

numbers() {
    made "$BUILD/bench" "$BUILD/flood" || return
    suite flood 1200 "$BUILD/flood" --check
    suite "bench runs" 1200 sh -c "$BUILD/bench --quick >$BUILD/bench.txt && grep -q ratio $BUILD/bench.txt && echo '1 passed, 0 failed'"
}

script() { # NAME: tests/portability/NAME.sh
    case ${LONG:-0} in
    1) limit=36000 ;;
    *) limit=3600 ;;
    esac
    suite "$1" "$limit" sh "tests/portability/$1.sh" "$BUILD"
}

# What is searched or proven of it: the protocol of a line as a model, the laws of the arithmetic.
proofs() {
    suite spin 3600 sh tests/spin/run.sh "$BUILD"
    suite z3 3600 sh tests/z3/run.sh
}

# long TEST NAME=VALUE...: tests/TEST.c in its long form; its figures are shown
long() {
    long_test=$1
    shift
    if ! $(compiler plain) $warnings_c -I. -Itests -pthread "tests/$long_test.c" -o "$job.program" >"$job.said" 2>&1; then
        fail "$long_test: does not compile" "$job.said"
        return
    fi
    suite "$long_test, $*" 86400 env "$@" "$job.program"
    grep '^SEED=\|orders, \|histories\|decisions' "$job.said"
    rm -f "$job.program"
}

docs() {
    suite docs 1200 sh tests/docs.sh "$BUILD"
}

redis() { # real servers on private loopback ports, started and stopped by the script
    suite redis 7200 sh tests/redis/run.sh
}

example() { # NAME: examples/NAME, or what it is called there, against real parts
    suite "example $1" 1200 python3 "tests/examples/$1.py" "$BUILD"
}

fuzz() {
    suite fuzz $((3600 + 100 * ${FUZZ_SECONDS:-5})) sh tests/fuzz/run.sh "${FUZZ_SECONDS:-5}"
}

faults() { # PROCESSES
    JOBS=$1 suite "planted faults" 7200 sh tests/faults/run.sh "$BUILD"
}

mutants() { # SECTION...; none: all, the Lua scripts, too
    scripts=yes
    case " ${*:-scripts} " in *" scripts "*) ;; *) scripts= ;; esac
    if [ -n "$scripts" ]; then
        suite mutants 864000 sh tests/redis/run.sh with python3 tests/mutants/mutants.py "$BUILD" "$@"
    else
        suite mutants 864000 python3 tests/mutants/mutants.py "$BUILD" "$@"
    fi
    sed -n '/^survives: /,/^    +/p; /^mutants of/,$p' "$job.said"
}

mutants_self() {
    suite "mutants: the tool" 1200 python3 tests/mutants/mutants.py "$BUILD" self
}

coverage() {
    if [ -n "${REDIS:-}" ]; then
        suite coverage 7200 sh tests/redis/run.sh with python3 tests/coverage/coverage.py "$BUILD" redis
    else
        suite coverage 7200 python3 tests/coverage/coverage.py "$BUILD"
    fi
    sed -n '/^ratelimit/,/^all/p' "$job.said"
}

# ---- the lists of suites

# later COMMAND..., first COMMAND...: suites to be run. The first ones, which take long, begin before all others.
later() {
    listed "$@"
    jobs_later="$jobs_later $jobs_listed"
}

first() {
    listed "$@"
    jobs_first="$jobs_first $jobs_listed"
}

listed() {
    jobs_listed=$((jobs_listed + 1))
    echo "$*" >"$jobs/$jobs_listed.command"
}

# All unit tests, those that take longest at the head.
tests="vectors known_answers test_model test_reported test_threads test_tier"
for file in tests/test_*.c; do
    file=${file#tests/}
    case " $tests " in *" ${file%.c} "*) ;; *) tests="$tests ${file%.c}" ;; esac
done
threaded="test_threads test_cas_held test_tier test_rules"

units() { # BUILD-NAME TEST...
    build_name=$1
    shift
    for test in "$@"; do
        [ ! -e "tests/$test.c" ] || later unit "$test" "$build_name"
    done
}

# true if what is made by this kind of build links and runs here
can() { # BUILD-NAME, PACKAGE
    have "$(compiler "$1" | cut -d ' ' -f 1)" "$2" || return
    echo 'int main(void) { return 0; }' >"$jobs/can.c"
    $(compiler "$1") "$jobs/can.c" -o "$jobs/can" >/dev/null 2>&1 && "$jobs/can" && return
    missing "what links with \"$(compiler "$1")\"" "$2"
    return 1
}

fast() {
    if command -v clang-format >/dev/null 2>&1 || [ "${1:-}" = strict ]; then
        ! have clang-format clang-format || later layout
    else
        skip "layout: clang-format is missing (Debian package clang-format)"
    fi
    units sanitized $tests
}

others() {
    units plain $tests
    ! can clang clang || units clang $tests
    ! can m32 gcc-N-multilib || units m32 $tests
    ! can tsan gcc || units tsan $threaded
    ! can tsan-clang "clang libclang-rt-dev" || units tsan-clang $threaded
    ! can msan "clang libclang-rt-dev" || units msan test_table test_reported
    units plain table_of_faults
}

portability() {
    for script in tests/portability/*.sh; do
        script=$(basename "$script" .sh)
        [ "$script" = count ] || first script "$script"
    done
}

# What the scripts of portability have run: one row for each target, and what is missing.
table() {
    cat "$BUILD"/*/table 2>/dev/null | awk -F '\t' '
        BEGIN { row = "%-22s %-30s %8s %8s %8s\n"
                printf row, "target", "compiler", "checks", "code", "stack" }
        NF == 5 { printf row, $1, $2, $3, $4, $5; next }
        { rest = rest $0 "\n" }
        END { printf "%s", rest
              print "checks: that passed; code: bytes of all of ratelimit.h at -Os; stack: bytes, of the deepest calls" }'
}

examples() { # each program in examples/
    have python3 python3 || return
    for script in tests/examples/*.py; do
        script=$(basename "$script" .py)
        [ "$script" = example ] || later example "$script"
    done
}

# ---- side by side

begin() { # NUMBER: begins a suite, which counts for itself
    echo "begins: $(cat "$jobs/$1.command")"
    job=$jobs/$1
    (
        (
            count_passed=0 count_failed=0 count_skipped=0
            $(cat "$job.command")
            echo "$count_passed $count_failed $count_skipped" >"$job.count"
        ) >"$job.log" 2>&1 &
        echo $! >"$job.shell"
        wait
        : >"$job.done"
    ) &
    jobs_pids="$jobs_pids $!"
    jobs_active="$jobs_active $1"
}

active() { # forgets those that are done; true if as many as may run at once are left
    still=
    for number in $jobs_active; do
        [ -e "$jobs/$number.done" ] || still="$still $number"
    done
    jobs_active=$still
    set -- $still
    [ $# -ge "$JOBS" ]
}

show() { # NUMBER: what a suite that is done said
    cat "$jobs/$1.log"
    if [ -s "$jobs/$1.count" ]; then
        count $(cat "$jobs/$1.count")
    else
        fail "$(cat "$jobs/$1.command"): was ended from outside"
    fi
}

all_jobs() {
    jobs_shown=0
    set -- $jobs_first $jobs_later
    while [ "$jobs_shown" -lt "$jobs_listed" ]; do
        while [ $# -gt 0 ] && ! active; do
            begin "$1"
            shift
        done
        while [ "$jobs_shown" -lt "$jobs_listed" ] && [ -e "$jobs/$((jobs_shown + 1)).done" ]; do
            jobs_shown=$((jobs_shown + 1))
            show $jobs_shown
        done
        [ "$jobs_shown" -ge "$jobs_listed" ] || sleep 0.2
    done
    jobs_first= jobs_later= jobs_listed=0 jobs_active= jobs_pids=
    rm -f "$jobs"/*
}

interrupted() {
    trap - EXIT
    kill $jobs_pids $(cat "$jobs"/*.shell "$jobs"/*.running 2>/dev/null) 2>/dev/null
    rm -rf "$jobs"
    exit 130
}

one() { # TEST WORD...
    if [ ! -e "tests/${1:-}.c" ]; then
        echo "make one T=TEST [K=WORD]; the tests are: $tests"
        exit 2
    fi
    test=$1
    shift
    $(compiler sanitized) $warnings_c -I. -Itests -pthread "tests/$test.c" -o "$BUILD/$test" || exit 1
    exec "$BUILD/$test" "$@"
}

jobs_first= jobs_later= jobs_listed=0 jobs_active= jobs_pids=
mkdir -p "$jobs" || exit 1
trap 'rm -rf "$jobs"' EXIT
trap interrupted INT TERM HUP
case ${1:-all} in
all)
    fast strict
    others
    later numbers
    later docs
    later proofs
    ! have python3 python3 || later mutants_self
    examples
    first faults $(((JOBS + 1) / 2))
    portability
    first programs
    first fuzz
    all_jobs
    later redis # alone: it waits for real servers
    all_jobs
    ;;
fast | examples)
    "$1"
    all_jobs
    ;;
portability)
    portability
    all_jobs
    table
    ;;
redis | fuzz | docs | proofs | coverage)
    later "$1"
    all_jobs
    ;;
soak)
    SEED=${SEED:-$(date +%s)}
    later long test_arithmetic "SEED=$SEED" "DECISIONS=${DECISIONS:-1000000000}" ARITHMETIC=long
    later long test_model "SEED=$SEED" "HISTORIES=${HISTORIES:-100000}"
    later long table_of_faults "TIMES=${TIMES:-100}"
    later long test_interleavings "INTERLEAVINGS=${INTERLEAVINGS:-long}"
    later long test_interleavings_32 "INTERLEAVINGS=${INTERLEAVINGS:-long}"
    LONG=${LONG-1}
    export LONG
    later proofs
    later fuzz
    later coverage
    all_jobs
    later mutants
    all_jobs
    ;;
mutants)
    later "$@"
    all_jobs
    ;;
faults)
    later faults "$JOBS"
    all_jobs
    ;;
one)
    shift
    rm -rf "$jobs"
    one "$@"
    ;;
*)
    sed -n 2,5p "$0"
    exit 2
    ;;
esac
finish

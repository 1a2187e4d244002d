#!/bin/sh
# The protocol of a line as a model, searched exhaustively by spin for small sizes; and mistakes in
# it, each of which must be found.
#
#     run.sh BUILD    builds in BUILD/spin; the last line is "N passed, N failed"
#
# LONG=1: also what takes minutes.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/portability/count.sh
count_passed=0 count_failed=0 count_skipped=0
have spin spin || finish
build=${1:-build}/spin
mkdir -p "$build" || exit 1
model=$(pwd)/tests/spin/line.pml
states=0

# search THREADS DEFINES...: sets errors and stored; errors is empty if the model does not compile or
# is too large
search() {
    printf '#define THREADS %s\n' "$1" | cat - "$model" >"$build/case.pml"
    shift
    (
        cd "$build" && rm -f pan* && spin -a "$@" case.pml >said 2>&1 &&
            ${CC:-gcc} -O1 -DSAFETY -DMEMLIM=2000 -w pan.c -o pan >>said 2>&1 &&
            limited 900 ./pan -m100000 -w22 >>said 2>&1
    )
    errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' "$build/said")
    stored=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$build/said")
    ! grep -q 'depth too small\|out of memory\|max search depth' "$build/said" || errors=
}

right() { # WHAT, DEFINES...: no error
    what=$1
    shift
    search "$@"
    if [ "$errors" = 0 ]; then
        count_passed=$((count_passed + 1))
        printf '%-48s %s states\n' "$what" "$stored"
        states=$(awk "BEGIN { printf \"%d\", $states + $stored }")
    else
        fail "$what: ${errors:-search ended early}" "$build/said"
    fi
}

wrong() { # NUMBER, WHAT, DEFINES...: found
    number=$1 what=$2
    shift 2
    threads=$1
    shift
    search "$threads" -DMISTAKE="$number" "$@"
    if [ "${errors:-0}" -gt 0 ]; then
        count_passed=$((count_passed + 1))
        printf '%-48s is found\n' "$what"
    else
        fail "mistake $number, $what: not found" "$build/said"
    fi
}

takes='run take(1); run take(1); run take(2)'
newcomers='run take(2); run take(2); run take(3)'
sweeps='run sweep(); run take(1); run take(1)'
swept='run sweep(); run take(1); run take(2)'
refunds='run refund(1); run take(1); run take(1)'
batches='run both(); run take(1); run take(2)'
two_batches='run both(); run both(); run take(2)'

for case in takes newcomers sweeps swept refunds batches two_batches; do
    eval "threads=\$$case"
    set --
    case $case in
    sweeps | swept) set -- -DOWED=0 ;;
    batches | two_batches) set -- -DTWO_KEYS ;;
    esac
    right "$case" "$threads" "$@"
    right "$case, one dies" "$threads" "$@" -DDEATHS=1
    case $case${LONG:-} in
    newcomers | sweeps | swept) ;; # millions of states: LONG=1
    *) right "$case, a lock is stolen" "$threads" "$@" -DSTEALS=1 ;;
    esac
    case $case in
    newcomers | takes | swept)
        right "$case, inherit" "$threads" "$@" -DINHERIT=1 -DSLOTS=1
        right "$case, inherit, one dies" "$threads" "$@" -DINHERIT=1 -DSLOTS=1 -DDEATHS=1
        ;;
    esac
done
right "batches, exact" "$batches" -DTWO_KEYS -DEXACT

wrong 1 "a lock that is taken without looking" "$newcomers" -DSLOTS=3
wrong 2 "a bucket that is freed: full_ns first" "$sweeps" -DOWED=0
wrong 3 "full_ns that is stored, not swapped" "$takes" -DOWED=0
wrong 4 "rest is read before full_ns" "$sweeps" -DOWED=0
wrong 5 "a quick take that does not wait for the lock" "$takes" -DOWED=0
wrong 6 "a bucket that is not put back" "$sweeps" -DOWED=0
wrong 7 "a freed bucket keeps its time" "$sweeps" -DOWED=0
wrong 8 "a quick take that does not look again" "$takes" -DOWED=0
wrong 9 "a batch that is not taken back" "$batches" -DTWO_KEYS -DEXACT
echo "$states states"
finish

#!/bin/sh
# run.sh [BUILD [WORD...]]  Checks the checks.
#
# Each fault of faults.txt is planted in a copy of ratelimit.h, and the test that it names must
# catch it. With words: only the faults whose name holds one of them.
#
# A fault is caught if a sentence fails that does not fail without it, or if the test crashes or
# runs ten times longer than without it. A fault that can't be planted any more, that does not
# compile, or whose test is missing counts as failed.
#
# CC       the compiler         JOBS  how many at once (as many as there are processors)
# TEST     a test to ask instead of the named one, to find out what catches what
# VERBOSE  1: say for each fault how it was caught
set -u
LC_ALL=C
export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}
mkdir -p "$build" && build=$(cd "$build" && pwd)/faults
[ $# -gt 0 ] && shift
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$root/tests/portability/count.sh"
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
scripts=" symbols includes options docs "

# ask TEST FOLDER LIMIT WORD...  Runs a test with the ratelimit.h in FOLDER, all its output to
#                                FOLDER/TEST.output. Status 125: not built.
ask() {
    ask_test=$1
    ask_folder=$2
    ask_limit=$3
    shift 3
    case $scripts in
    *" $ask_test "*)
        ask_script=$root/tests/portability/$ask_test.sh
        [ "$ask_test" = docs ] && ask_script=$root/tests/docs.sh
        HEADER_DIR=$ask_folder QUICK=1 timeout -k 1 "$ask_limit" sh "$ask_script" \
            "$ask_folder/build" >"$ask_folder/$ask_test.output" 2>&1
        ;;
    *)
        $CC -std=c99 -O1 -w -pthread -I"$ask_folder" -I"$root/tests" "$root/tests/$ask_test.c" \
            -o "$ask_folder/$ask_test" >"$ask_folder/$ask_test.output" 2>&1 || return 125
        (cd "$root" && timeout -k 1 "$ask_limit" "$ask_folder/$ask_test" "$@") \
            >"$ask_folder/$ask_test.output" 2>&1
        ;;
    esac
}

# What failed, one a line, without what differs between two runs.
failures() {
    grep '^FAILED: ' "$1" | sed 's/ ([0-9]* faults)$//' | sort -u
}

# The test without a fault: what fails anyway, and how long it takes.
baseline() {
    baseline_started=$(date +%s)
    ask "$1" "$build/none" 300
    baseline_status=$?
    echo $((($(date +%s) - baseline_started) * 10 + 20)) >"$build/none/$1.limit"
    failures "$build/none/$1.output" >"$build/none/$1.failures"
    if [ $baseline_status -ne 0 ]; then
        tail -n 3 "$build/none/$1.output" >"$build/none/$1.status"
    fi
}

# one NAME TEST WORDS  "caught HOW" or "missed WHY" in its folder. The copy is removed, it would be a
#                hundred of them.
one() {
    folder=$build/$1
    mkdir -p "$folder"
    if ! "$build/plant" "$here/faults.txt" "$1" "$build/none/ratelimit.h" \
        >"$folder/ratelimit.h" 2>"$folder/error"; then
        echo "missed it can't be planted: $(cat "$folder/error")"
        return
    fi
    ask "$2" "$folder" "$(cat "$build/none/$2.limit")" $3 2>/dev/null # the shell tells of crashes
    status=$?
    failures "$folder/$2.output" | comm -13 "$build/none/$2.failures" - >"$folder/new"
    if [ $status -eq 125 ]; then
        echo "missed it does not compile: $(grep -m 1 error "$folder/$2.output")"
    elif [ $status -eq 124 ] || [ $status -eq 137 ]; then
        echo "caught it hangs"
    elif [ $status -gt 128 ]; then
        echo "caught it crashes, status $status"
    elif [ -s "$folder/new" ]; then
        echo "caught $(sed -n 1p "$folder/new")"
    else
        echo "missed $2 does not see it"
    fi
    rm -f "$folder/ratelimit.h" "$folder/$2"
}

# worker N  Every N-th fault of the list.
worker() {
    awk -v jobs="$jobs" -v mine="$1" 'NR % jobs == mine' "$build/list" >"$build/list.$1"
    while read -r name test words; do
        one "$name" "$test" "$words" >"$build/$name.result"
    done <"$build/list.$1"
}

if ! $CC -std=c99 -O1 $warnings_c "$here/plant.c" -o "$build/plant" >"$build/output" 2>&1; then
    fail "plant.c does not build" "$build/output"
    finish
fi
if ! "$build/plant" "$here/faults.txt" >"$build/all" 2>"$build/output"; then
    fail "faults.txt" "$build/output"
    finish
fi
if [ -n "$(cut -d ' ' -f 1 "$build/all" | sort | uniq -d)" ]; then
    fail "faults.txt has two faults of one name: $(cut -d ' ' -f 1 "$build/all" | sort | uniq -d)"
fi
while read -r name test words; do
    wanted=$(($# == 0))
    for word in "$@"; do
        case $name in *"$word"*) wanted=1 ;; esac
    done
    [ "$wanted" = 1 ] && echo "$name ${TEST:-$test $words}"
done <"$build/all" >"$build/list"

mkdir -p "$build/none"
cp "$root/ratelimit.h" "$build/none/"
running=0
for test in $(cut -d ' ' -f 2 "$build/list" | sort -u); do
    baseline "$test" &
    running=$((running + 1))
    [ $((running % jobs)) -eq 0 ] && wait
done
wait
for test in $(cut -d ' ' -f 2 "$build/list" | sort -u); do
    if [ -s "$build/none/$test.status" ]; then
        fail "$test fails without any fault" "$build/none/$test.status"
    fi
done
number=0
while [ "$number" -lt "$jobs" ]; do
    worker "$number" &
    number=$((number + 1))
done
wait
while read -r name test words; do
    result=$(cat "$build/$name.result" 2>/dev/null)
    case $result in
    caught*)
        pass
        [ "${VERBOSE:-0}" = 1 ] && echo "$name: ${result#caught }"
        ;;
    *) fail "$name: ${result#missed }" ;;
    esac
done <"$build/list"
finish

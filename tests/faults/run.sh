#!/bin/sh
# run.sh [BUILD [WORD...]]  Checks the checks.
#
# Each fault of the lists here (*.txt) is planted in a copy of the file that it is about, and the
# test that it names must catch it. With words: only the faults whose name holds one of them.
#
# A fault is caught if a sentence fails that does not fail without it, or if the test crashes or
# runs ten times longer than without it. When a sentence has failed, the rest of the test is not
# waited for. A fault that can't be planted any more, that does not compile, or whose test is
# missing counts as failed.
#
# CC       the compiler         JOBS  how many at once (as many as there are processors)
# TEST     a test to ask instead of the named one, to find out what catches what
# VERBOSE  1: say for each fault how it was caught, and how many seconds that took
set -u
LC_ALL=C
export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}
mkdir -p "$build" && build=$(cd "$build" && pwd)/faults
[ $# -gt 0 ] && shift
rm -rf "$build" && mkdir -p "$build/without" || exit 1
. "$root/tests/portability/count.sh"
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}

# script_of TEST  Its file, if it is a script and not a program.
script_of() {
    for script in "$root/tests/portability/$1.sh" "$root/tests/$1.sh"; do
        [ ! -e "$script" ] || echo "$script"
    done
}

# built TEST FOLDER LEVEL  Builds a test with the files in FOLDER, before those of the project.
built() {
    [ -n "$(script_of "$1")" ] ||
        $CC -std=c99 "$3" -w -pthread -I"$2" -I"$root/tests" -I"$root" "$root/tests/$1.c" \
            -o "$2/$1" >"$2/output" 2>&1
}

# ask TEST FOLDER SECONDS WORD...  Runs a test that was built, for so long at most and until one
#                                  sentence fails that does not fail without a fault. All its output
#                                  goes to FOLDER/output.
ask() {
    ask_test=$1
    ask_folder=$2
    ask_limit=$3
    ask_script=$(script_of "$1")
    shift 3
    if [ -n "$ask_script" ]; then
        HEADER_DIR=$ask_folder QUICK=1 WORDS=$* timeout -k 1 "$ask_limit" \
            sh "$ask_script" "$ask_folder/build" >"$ask_folder/output" 2>&1 &
    else
        (cd "$root" && exec timeout -k 1 "$ask_limit" "$ask_folder/$ask_test" "$@") \
            >"$ask_folder/output" 2>&1 &
    fi
    ask_pid=$!
    (
        while sleep 0.1 && kill -0 $ask_pid 2>/dev/null; do
            if [ -n "$(news "$ask_test" "$ask_folder/output")" ]; then
                kill $ask_pid
                break
            fi
        done
    ) &
    ask_watch=$!
    wait $ask_pid
    ask_status=$?
    kill $ask_watch 2>/dev/null # its folder may be gone before it looks again
    wait $ask_watch 2>/dev/null
    return $ask_status
}

# failures FILE  What failed, one a line, without what differs between two runs.
failures() {
    grep '^FAILED: ' "$1" | sed 's/ ([0-9]* faults)$//' | sort -u
}

# news TEST FILE  What failed that does not fail without a fault.
news() {
    ! grep -q '^FAILED: ' "$2" || failures "$2" | comm -13 "$build/without/$1.failures" -
}

# baseline TEST  A test without a fault: what fails anyway, which optimisation pays (none, unless it
#                runs for long), and what each of its faults may take: ten times as long.
baseline() {
    folder=$build/without/$1
    mkdir -p "$folder"
    cp "$root/ratelimit.h" "$folder/"
    awk -v test="$1" '$2 == test { $1 = $2 = ""; print }' "$build/list" | sort -u >"$folder/words"
    for level in -O0 -O1; do
        : >"$build/without/$1.limits"
        : >"$build/without/$1.failures"
        longest=0
        if ! built "$1" "$folder" $level; then
            echo "it does not compile" >>"$build/without/$1.status"
            return
        fi
        while read -r words; do
            started=$(date +%s)
            ask "$1" "$folder" 1200 $words 2>/dev/null ||
                tail -n 3 "$folder/output" >>"$build/without/$1.status"
            took=$(($(date +%s) - started))
            failures "$folder/output" >>"$build/without/$1.failures"
            echo "$1 $level $((took * 10 + 10)) $words" >>"$build/without/$1.limits"
            [ $longest -ge $took ] || longest=$took
        done <"$folder/words"
        [ $longest -ge 4 ] && [ -z "$(script_of "$1")" ] || break
    done
    sort -u "$build/without/$1.failures" -o "$build/without/$1.failures"
}

# one NAME TEST LEVEL SECONDS WORDS  "caught HOW" or "missed WHY". What was made for it is removed,
#                                    it would be a hundred of them.
one() {
    folder=$build/$1.folder
    file=$("$build/plant" "$build/faults" "$1")
    mkdir -p "$folder/$(dirname "$file")"
    cp "$root/ratelimit.h" "$folder/"
    started=$(date +%s)
    if ! "$build/plant" "$build/faults" "$1" "$root/$file" >"$folder/$file" 2>"$folder/output"; then
        echo "missed it can't be planted: $(cat "$folder/output")"
    elif ! built "$2" "$folder" "$3"; then
        echo "missed it does not compile: $(grep -m 1 error "$folder/output")"
    else
        ask "$2" "$folder" "$4" $5 2>/dev/null # the shell tells of crashes
        status=$?
        new=$(news "$2" "$folder/output" | sed -n 1p)
        took=$(($(date +%s) - started))
        if [ -n "$new" ]; then
            echo "caught after $took s: $new"
        elif [ $status -eq 124 ] || [ $status -eq 137 ]; then
            echo "caught after $took s: it hangs"
        elif [ $status -gt 128 ]; then
            echo "caught after $took s: it crashes, status $status"
        else
            echo "missed $2 $5 does not see it"
        fi
    fi
    rm -rf "$folder"
}

# share COMMAND LIST  Several of these at once take each line of LIST to COMMAND, once.
share() {
    while read -r name rest; do
        mkdir "$build/taken.$1.$name" 2>/dev/null || continue
        "$1" "$name" "$rest"
    done <"$2"
}

# each COMMAND LIST  All lines, JOBS at once.
each() {
    number=0
    while [ "$number" -lt "$jobs" ]; do
        share "$1" "$2" &
        number=$((number + 1))
    done
    wait
}

planted() {
    set -- "$1" $2
    planted_name=$1 planted_test=$2 planted_level=$3 planted_limit=$4
    shift 4
    one "$planted_name" "$planted_test" "$planted_level" "$planted_limit" "$*" \
        >"$build/$planted_name.result"
}

if ! $CC -std=c99 -O1 $warnings_c "$here/plant.c" -o "$build/plant" >"$build/output" 2>&1; then
    fail "plant.c does not build" "$build/output"
    finish
fi
cat "$here"/*.txt >"$build/faults"
if ! "$build/plant" "$build/faults" >"$build/all" 2>"$build/output"; then
    fail "the lists of faults" "$build/output"
    finish
fi
if [ -n "$(cut -d ' ' -f 1 "$build/all" | sort | uniq -d)" ]; then
    fail "two faults of one name: $(cut -d ' ' -f 1 "$build/all" | sort | uniq -d)"
fi
while read -r name test words; do
    wanted=$(($# == 0))
    for word in "$@"; do
        case $name in *"$word"*) wanted=1 ;; esac
    done
    [ "$wanted" = 1 ] && echo "$name ${TEST:-$test $words}"
done <"$build/all" >"$build/list"

cut -d ' ' -f 2 "$build/list" | sort -u >"$build/tests"
each baseline "$build/tests"
while read -r test; do
    if [ -s "$build/without/$test.status" ]; then
        fail "$test fails without any fault" "$build/without/$test.status"
    fi
done <"$build/tests"

# NAME TEST LEVEL SECONDS WORD..., those that take longest first
cat "$build"/without/*.limits >"$build/limits"
awk '
    { words = $0; sub(NR == FNR ? "^[^ ]+ [^ ]+ [^ ]+ *" : "^[^ ]+ [^ ]+ *", "", words) }
    NR == FNR { level[$1, words] = $2; limit[$1, words] = $3; next }
    ($2, words) in level { print $1, $2, level[$2, words], limit[$2, words], words }
' "$build/limits" "$build/list" | sort -k 4,4nr >"$build/todo"
each planted "$build/todo"
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

# count.sh - what the shell checks share: counting, running, and naming what is missing. Sourced,
# not run.
#
#     pass                      one more passed
#     fail WHAT [FILE]          one more failed: prints WHAT and the start of FILE
#     skip WHAT                 one more skipped: prints it
#     wanted WHAT               true if WHAT has a word of WORDS in it, or there are none: so a
#                               script can be told to check only a part; run and refuse ask
#     run WHAT COMMAND...       passes if COMMAND does; its output is shown only if it fails
#     limited SECONDS COMMAND   runs COMMAND; if it hangs, ends it and says so. The time is for what
#                               hangs: ten times what COMMAND needs on a quiet machine, and more
#     refuse WHAT TEXT COMMAND  passes if COMMAND fails and says TEXT
#     have TOOL PACKAGE         is TOOL there? If not: a failure that names its Debian package, or a
#                               skip with SKIP_MISSING=1
#     builds COMMAND PACKAGE    does the compiler COMMAND, with its flags, link a program? If not,
#                               the same
#     checks WHAT COMMAND...    passes if COMMAND does and says "N passed, 0 failed", N not 0; the
#                               colour and the dot that simavr adds do not count
#     measured TARGET PREFIX COMMAND   a row of the table of `make portability`: what passed since
#                               the row before, the code of all of ratelimit.h compiled with
#                               COMMAND at -Os (by PREFIXsize), and the deepest stack
#     finish                    prints "N passed, N failed" (", N skipped"), alone on the last line,
#                               and exits
#
# The script that sources it sets `root` (the project) and `build` (an empty folder of its own for
# what it makes).

count_passed=0
count_failed=0
count_skipped=0
count_missing=" "
count_checks=0
count_rows=0

pass() {
    count_passed=$((count_passed + 1))
    count_checks=$((count_checks + ${1:-1}))
}

fail() {
    count_failed=$((count_failed + 1))
    echo "FAILED: $1"
    if [ $# -gt 1 ]; then
        sed 's/^/    /' "$2" | head -n "${COUNT_LINES:-12}"
    fi
}

skip() {
    count_skipped=$((count_skipped + 1))
    echo "skipped: $1"
}

wanted() {
    [ -n "${WORDS:-}" ] || return 0
    for count_word in $WORDS; do
        case $1 in
        *"$count_word"*) return 0 ;;
        esac
    done
    return 1
}

limited() {
    count_limit=$1
    count_begin=$(date +%s)
    shift
    timeout -k 5 "$count_limit" "$@"
    count_code=$?
    if [ $count_code -eq 124 ] ||
        { [ $count_code -eq 137 ] && [ $(($(date +%s) - count_begin)) -ge "$count_limit" ]; }; then
        echo "time limit of $count_limit s"
    fi
    return $count_code
}

run() {
    count_what=$1
    wanted "$1" || return 0
    shift
    if "$@" >"$build/output" 2>&1; then
        pass
    else
        echo "exit status $?: $*" >>"$build/output"
        fail "$count_what" "$build/output"
    fi
}

checks() {
    count_what=$1
    wanted "$1" || return 0
    shift
    if ! "$@" >"$build/output" 2>&1; then
        echo "exit status $?: $*" >>"$build/output"
        grep -v '^SEED' "$build/output" >"$build/shown"
        fail "$count_what" "$build/shown"
        return
    fi
    count_said=$(tr -d '\r\033' <"$build/output" |
        sed -n 's/^\(\[32m\)\{0,1\}\([1-9][0-9]*\) passed, 0 failed\(, [0-9]* skipped\)\{0,1\}\.\{0,1\}$/\2/p')
    if [ -n "$count_said" ]; then
        pass "$count_said"
    else
        fail "$count_what: ends without a count" "$build/output"
    fi
}

measured() {
    [ -z "${WORDS:-}" ] || [ $count_checks -gt $count_rows ] || return 0
    printf '#define RATELIMIT_IMPLEMENTATION\n#include "ratelimit.h"\n' >"$build/measured.c"
    count_code=- count_stack=-
    if $3 -Os -fstack-usage -I"$header" -S "$build/measured.c" -o "$build/measured.s" \
        >"$build/output" 2>&1 && [ -s "$build/measured.su" ]; then
        count_stack=$(awk -f "$root/tests/portability/stack.awk" "$build/measured.su" "$build/measured.s")
    fi
    if $3 -Os -I"$header" -c "$build/measured.c" -o "$build/measured.o" >"$build/output" 2>&1; then
        count_code=$("$2"size "$build/measured.o" | awk 'NR == 2 { print $1 }')
    else
        fail "$1: ratelimit.h does not compile at -Os" "$build/output"
    fi
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$("${3%% *}" -dumpversion 2>/dev/null | sed "s/^/${3%% *} /")" \
        $((count_checks - count_rows)) "$count_code" "$count_stack" >>"$build/table"
    count_rows=$count_checks
}

refuse() {
    count_what=$1
    count_text=$2
    wanted "$1" || return 0
    shift 2
    if "$@" >"$build/output" 2>&1; then
        fail "$count_what: it was accepted"
    elif grep -qF -e "$count_text" "$build/output"; then
        pass
    else
        fail "$count_what: refused, but not with \"$count_text\"" "$build/output"
    fi
}

# What is missing is counted once, however often it is asked for.
missing() {
    case $count_missing in
    *" <$1> "*) return ;;
    esac
    count_missing="$count_missing<$1> "
    echo "not run: $1 is missing (Debian package $2)" >>"$build/table"
    if [ "${SKIP_MISSING:-0}" = 1 ]; then
        skip "$1 is missing (Debian package $2)"
    else
        fail "$1 is missing: install the Debian package $2, or set SKIP_MISSING=1"
    fi
}

have() {
    if command -v "$1" >/dev/null 2>&1; then
        return 0
    fi
    missing "$1" "$2"
    return 1
}

builds() {
    have "${1%% *}" "$2" || return 1
    printf '#include <stdint.h>\n#include <stdio.h>\n' >"$build/builds.c"
    printf 'int main(void) { return puts("") < 0; }\n' >>"$build/builds.c"
    if $1 "$build/builds.c" -o "$build/builds" >"$build/output" 2>&1; then
        return 0
    fi
    missing "what links with \"$1\"" "$2"
    return 1
}

finish() {
    if [ $((count_passed + count_failed)) -eq 0 ]; then
        fail "nothing was checked"
    fi
    if [ "$count_skipped" -gt 0 ]; then
        echo "$count_passed passed, $count_failed failed, $count_skipped skipped"
    else
        echo "$count_passed passed, $count_failed failed"
    fi
    [ "$count_failed" -eq 0 ]
    exit
}

# The compiler and the warnings that every combination must be silent under. CC and CXX may hold
# flags.
CC=${CC:-cc}
CXX=${CXX:-c++}
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Wcast-qual
    -Wswitch-enum -Wvla -Wdouble-promotion -Werror"
warnings_c="$warnings -Wstrict-prototypes -Wmissing-prototypes"
warnings_cpp="$warnings -Wold-style-cast"

#!/bin/sh
# Fuzzes the readers of texts. Usage: run.sh [SECONDS for each target, 5 if not given] [TARGET...]
#
# Each target runs twice: as a plain program over its seeds and 20,000 changed ones, with any compiler
# (CC), and under libFuzzer with sanitizers (CLANG). What makes one fail is left in BUILD/fuzz and
# printed; `BUILD/fuzz/TARGET-plain FILE` shows it again. SKIP_MISSING=1: without clang's fuzzer
# runtime, or the libraries of a target, that counts as skipped; otherwise as failed.
#
# LONG=1: AFL++ runs each, too. CORPUS=1: what the fuzzers have found is made as small as it gets
# without losing a branch, and replaces corpus/TARGET: one input a line, unusual bytes as \0 and
# three octal digits. With these all begin.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}/fuzz
SECONDS_EACH=${1:-5}
[ $# -gt 0 ] && shift
TARGETS=${*:-limit rules address text record replay_lines requests}
SANITIZERS="-fsanitize=address,undefined -fno-sanitize-recover=all"
WARN="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes
      -Wmissing-prototypes -Wundef -Wcast-qual -Wvla -Wdouble-promotion -Werror"
passed=0 failed=0 skipped=0

missing() { # what, package
    if [ -n "${SKIP_MISSING:-}" ]; then
        echo "skipped: fuzz: $1 is missing (package $2)"
        skipped=$((skipped + 1))
    else
        echo "FAILED: fuzz: $1 is missing (package $2; make deps installs it)"
        failed=$((failed + 1))
    fi
}

# result NAME CODE LOG FOLDER: counts; prints what was said and the input if it failed
result() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
    grep -v '^#[0-9]' "$3" | tail -n 25
    echo "FAILED: fuzz $1 (code $2)"
    for file in "$4"/crash-* "$4"/timeout-* "$4"/oom-* "$4"/leak-*; do
        [ -f "$file" ] && echo "$file:" && od -An -c "$file" | head -n 20
    done
}

plain() { # target, its libraries...
    target=$1
    shift
    ${CC:-cc} -std=c99 $WARN -O1 -g $SANITIZERS -DFUZZ_PLAIN -I. "tests/fuzz/$target.c" \
        -o "$BUILD/$target-plain" "$@" -pthread >"$BUILD/$target.log" 2>&1 &&
        timeout -k 5 1200 "$BUILD/$target-plain" >>"$BUILD/$target.log" 2>&1
    code=$?
    [ $code -ne 124 ] || echo "time limit of 1200 s" >>"$BUILD/$target.log"
    result "$target, plain" $code "$BUILD/$target.log" "$BUILD/none"
}

unpack() { # target, folder: its corpus, one file for each line
    number=0
    while IFS= read -r line; do
        number=$((number + 1))
        printf '%b' "$line" >"$2/corpus$number" || return
    done <"tests/fuzz/corpus/$1"
}

# pack FILE...: those lines, the shortest first, 8 KB of them
pack() {
    for file in "$@"; do
        od -An -v -tu1 "$file" | awk '
            { for (i = 1; i <= NF; i++) printf($i > 31 && $i < 127 && $i != 92 ? "%c" : "\\0%03o", $i) }
            END { print "" }'
    done | awk '{ print length($0) "\t" $0 }' | sort -n | cut -f 2- |
        awk '(bytes += length($0) + 1) <= 8192'
}

driven() { # target, its libraries...
    target=$1 seeds=$BUILD/$target-seeds found=$BUILD/$target-found
    shift
    rm -rf "$seeds" "$found"
    mkdir -p "$seeds" "$found" && "$BUILD/$target-plain" --seeds "$seeds" && unpack "$target" "$seeds" &&
        "${CLANG:-clang}" -std=c99 $WARN -O1 -g -fsanitize=fuzzer $SANITIZERS -I. "tests/fuzz/$target.c" \
            -o "$BUILD/$target" "$@" -pthread >"$BUILD/$target.log" 2>&1 &&
        "$BUILD/$target" -max_total_time="$SECONDS_EACH" -max_len=1024 -timeout=20 -rss_limit_mb=1024 \
            -dict=tests/fuzz/words.dict -artifact_prefix="$found/" "$seeds" >>"$BUILD/$target.log" 2>&1
    result "$target" $? "$BUILD/$target.log" "$found"
    sed -n 's/^Done \([0-9]*\) runs.*/'"$target"': \1 runs/p' "$BUILD/$target.log"
}

# It says where it stopped; what makes a target fail or hang counts as a failure of ours.
afl() { # target, its libraries...
    target=$1 seeds=$BUILD/$target-seeds out=$BUILD/$target-afl
    shift
    rm -rf "$out"
    AFL_USE_ASAN=1 AFL_USE_UBSAN=1 AFL_QUIET=1 afl-clang-fast -std=c99 -w -O1 -g -fsanitize=fuzzer -I. \
        "tests/fuzz/$target.c" -o "$BUILD/$target-afl-program" "$@" -pthread >"$BUILD/$target.log" 2>&1 &&
        AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_NO_UI=1 AFL_NO_AFFINITY=1 \
            AFL_HANG_TMOUT=20000 timeout -k 5 $((SECONDS_EACH * 10 + 600)) afl-fuzz -V "$SECONDS_EACH" -G 1024 \
            -t 20000 -m none -i "$seeds" -o "$out" -x tests/fuzz/words.dict -- "$BUILD/$target-afl-program" \
            >>"$BUILD/$target.log" 2>&1
    code=$?
    for file in "$out"/default/crashes/id* "$out"/default/hangs/id*; do
        [ -f "$file" ] || continue
        code=1
        cp "$file" "$out/crash-$(basename "$file" | tr -c 'a-z0-9\n' _)"
    done
    result "$target, AFL++" $code "$BUILD/$target.log" "$out"
    sed -n 's/^execs_done *: */'"$target"', AFL++: runs: /p' "$out/default/fuzzer_stats"
}

corpus() { # target
    small=$BUILD/$1-small
    rm -rf "$small"
    mkdir -p "$small" && "$BUILD/$1" -merge=1 -max_len=160 "$small" "$BUILD/$1-seeds" \
        "$BUILD/$1-afl/default/queue" >"$BUILD/$1.log" 2>&1 && pack "$small"/* >"tests/fuzz/corpus/$1"
    result "$1, corpus" $? "$BUILD/$1.log" "$BUILD/none"
}

mkdir -p "$BUILD" || exit 1
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9 ? 0 : 0; }' >"$BUILD/probe.c"
"${CLANG:-clang}" -fsanitize=fuzzer "$BUILD/probe.c" -o "$BUILD/probe" >/dev/null 2>&1 && fuzzer=yes || fuzzer=
[ -n "$fuzzer" ] || missing "clang's fuzzer runtime" libclang-rt-dev

afl=
if [ "${LONG:-0}" = 1 ]; then
    command -v afl-clang-fast >/dev/null && afl=yes || missing AFL++ afl++
fi

for target in $TARGETS; do
    libraries=
    if [ "$target" = replay_lines ]; then # replay without its main
        libraries=$(ls examples/replay/*.c | grep -v /main.c)
    fi
    if [ "$target" = requests ]; then # the server without its sockets
        libraries=$(ls examples/server/*.c | grep -vE '/(main|clients|listen|restart)\.c')
    fi
    if [ "$target" = record ]; then
        libraries="-lcurl -lcjson"
        if ! printf '#include <curl/curl.h>\n#include <cjson/cJSON.h>\n' | ${CC:-cc} -E - >/dev/null 2>&1; then
            missing "<curl/curl.h> or <cjson/cJSON.h>" "libcurl4-openssl-dev libcjson-dev"
            continue
        fi
    fi
    plain "$target" $libraries
    [ -z "$fuzzer" ] || driven "$target" $libraries
    [ -z "$afl" ] || afl "$target" $libraries
    [ -z "${CORPUS:-}" ] || corpus "$target"
done
if [ "$skipped" -ne 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]

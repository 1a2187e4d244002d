#!/bin/sh
# Fuzzes the readers of texts. Usage: run.sh [SECONDS for each target, 5 if not given] [TARGET...]
#
# Each target runs twice: as a plain program over its seeds and 20,000 changed ones, with any compiler
# (CC), and under libFuzzer with sanitizers (CLANG). What makes one fail is left in BUILD/fuzz and
# printed; `BUILD/fuzz/TARGET-plain FILE` shows it again. SKIP_MISSING=1: without clang's fuzzer
# runtime, or the libraries of a target, that counts as skipped; otherwise as failed.
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

driven() { # target, its libraries...
    target=$1 seeds=$BUILD/$target-seeds found=$BUILD/$target-found
    shift
    rm -rf "$seeds" "$found"
    mkdir -p "$seeds" "$found" && "$BUILD/$target-plain" --seeds "$seeds" &&
        "${CLANG:-clang}" -std=c99 $WARN -O1 -g -fsanitize=fuzzer $SANITIZERS -I. "tests/fuzz/$target.c" \
            -o "$BUILD/$target" "$@" -pthread >"$BUILD/$target.log" 2>&1 &&
        "$BUILD/$target" -max_total_time="$SECONDS_EACH" -max_len=1024 -timeout=20 -rss_limit_mb=1024 \
            -dict=tests/fuzz/words.dict -artifact_prefix="$found/" "$seeds" >>"$BUILD/$target.log" 2>&1
    result "$target" $? "$BUILD/$target.log" "$found"
    sed -n 's/^Done \([0-9]*\) runs.*/'"$target"': \1 runs/p' "$BUILD/$target.log"
}

mkdir -p "$BUILD" || exit 1
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 9 ? 0 : 0; }' >"$BUILD/probe.c"
"${CLANG:-clang}" -fsanitize=fuzzer "$BUILD/probe.c" -o "$BUILD/probe" >/dev/null 2>&1 && fuzzer=yes || fuzzer=
[ -n "$fuzzer" ] || missing "clang's fuzzer runtime" libclang-rt-dev

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
done
if [ "$skipped" -ne 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]

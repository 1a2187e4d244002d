#!/bin/sh
# api.sh [BUILD]             What users rely on is as api.txt says: names, macros, types, the layout
#                            of structs (LP64), values, and the bytes that are stored.
# api.sh --update [BUILD]    Writes api.txt. A change in it is one for the version and the CHANGES of
#                            the headers.
#
# HEADER_DIR  the folder of the headers to try (the project's own)
# CC          the compiler
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
update=
if [ "${1:-}" = --update ]; then
    update=1
    shift
fi
build=${1:-build}
mkdir -p "$build" && build=$(cd "$build" && pwd)/api
rm -rf "$build" && mkdir -p "$build" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}
redis=$header/ratelimit_redis.h
[ -e "$redis" ] || redis=$root/ratelimit_redis.h

echo 'typedef char lp64[sizeof(long) == 8 && sizeof(void *) == 8 ? 1 : -1];' >"$build/lp64.c"
if ! $CC -c "$build/lp64.c" -o "$build/lp64.o" 2>/dev/null; then
    missing "a compiler for LP64" "gcc, on a 64-bit machine"
elif have python3 python3 && builds "$CC -lhiredis" libhiredis-dev; then
    CC=$CC python3 "$here/api.py" "$header/ratelimit.h" "$redis" >"$build/api.c" || exit 1
    if ! $CC -std=c99 $warnings_c -Wno-switch-enum -Wno-switch -D_POSIX_C_SOURCE=200809L -DRATELIMIT_REDIS_ASYNC -DRATELIMIT_REDIS_KEEPER \
        -DRATELIMIT_IMPLEMENTATION -DRATELIMIT_REDIS_IMPLEMENTATION -I"$header" -I"$root" -I"$here" \
        "$build/api.c" -o "$build/api" -lhiredis -pthread >"$build/output" 2>&1; then
        fail "the headers' interface can't be printed" "$build/output"
    elif ! limited 120 "$build/api" >"$build/api.txt" 2>"$build/output"; then
        fail "the headers' interface was not printed to its end" "$build/output"
    elif [ -n "$update" ]; then
        cp "$build/api.txt" "$here/api.txt"
        pass
    elif diff -U0 "$here/api.txt" "$build/api.txt" >"$build/output"; then
        pass "$(wc -l <"$here/api.txt")"
    else
        sed -i '1,2d; /^@@/d' "$build/output"
        COUNT_LINES=60 fail "the interface is another than api.txt says (- said, + found). Is that meant? Then \
sh tests/portability/api.sh --update, and say so in CHANGES" "$build/output"
    fi
fi
finish

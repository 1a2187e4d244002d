#!/bin/sh
# symbols.sh [BUILD]  What an object file of the implementation shows and needs.
#
# It exports what api.txt declares and no more, needs what symbols.txt lists and no more, and keeps
# nothing in static memory that can be written. No floating point: neither its instructions nor its
# helpers.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
# CC          the compiler
# QUICK       1: CC alone, -O1
#
# Whatever is read through a pipe is first written to a file that must be there and not empty.
set -u
LC_ALL=C
export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}/symbols
rm -rf "$build" && mkdir -p "$build/include" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}

cat >"$build/impl.c" <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
END
# A chip without a C library still has mem*, which the compiler itself calls, and strlen.
cat >"$build/include/string.h" <<'END'
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
size_t strlen(const char *text);
END

# api.txt has the names of all public functions; those that only some builds export are of another
# kind in symbols.txt.
sed -n 's/^function .*[ *]\(ratelimit_[a-z_0-9]*\)(.*/\1/p' "$here/api.txt" |
    awk -v file="$here/symbols.txt" '
        BEGIN { while ((getline line < file) > 0) { split(line, word, " "); kind[word[2]] = word[1] } }
        !/^ratelimit_redis_/ && !($1 in kind) { print "exports", $1 }' >"$build/exports"

# listed KIND...  The names of these kinds in symbols.txt and api.txt, sorted.
listed() {
    for listed_kind in "$@"; do
        awk -v kind="$listed_kind" '$1 == kind { print $2 }' "$here/symbols.txt" "$build/exports"
    done | sort -u
}

# same WHAT GOT WANT  Two sorted files of names are equal.
same() {
    if [ ! -s "$2" ]; then
        fail "$1: no names found"
    elif diff "$3" "$2" >"$build/output"; then
        pass
    else
        fail "$1 (< listed, > found)" "$build/output"
    fi
}

# within WHAT GOT ALLOWED  Every line of GOT is in ALLOWED.
within() {
    if [ ! -s "$2" ] || [ ! -s "$3" ]; then
        fail "$1: no names found"
        return
    fi
    comm -23 "$2" "$3" >"$build/output"
    if [ -s "$build/output" ]; then
        fail "$1" "$build/output"
    else
        pass
    fi
}

# try WHAT PREFIX COMMAND EXPORTS NEEDS  Compiles impl.c with COMMAND, looks at it with the binutils
#                                        PREFIXnm and PREFIXsize.
# EXPORTS and NEEDS are kinds of names.
try() {
    try_object=$build/impl.o
    rm -f "$try_object"
    if ! $3 -I"$header" -c "$build/impl.c" -o "$try_object" >"$build/output" 2>&1 ||
        [ ! -s "$try_object" ]; then
        fail "$1: does not compile" "$build/output"
        return
    fi
    if ! "$2"nm -g "$try_object" >"$build/nm" 2>"$build/output" || [ ! -s "$build/nm" ]; then
        fail "$1: nm says nothing" "$build/output"
        return
    fi
    # The thunks that a 32-bit x86 compiler adds to find its own address are hidden and merged by
    # the linker.
    awk 'NF == 3 && $3 !~ /^__x86\.get_pc_thunk\./ { print $3 }' "$build/nm" |
        sort -u >"$build/exported"
    awk 'NF == 2 { print $2 }' "$build/nm" | sort -u >"$build/needed"
    listed $4 >"$build/want"
    same "$1: exported" "$build/exported" "$build/want"
    listed $5 >"$build/allowed"
    within "$1: needs what is not listed" "$build/needed" "$build/allowed"
    if ! "$2"size -A "$try_object" >"$build/size" 2>"$build/output" ||
        ! grep -q '^\.text' "$build/size"; then
        fail "$1: size says nothing" "$build/output"
        return
    fi
    # .data.rel.ro is constants that hold addresses.
    awk '$1 ~ /^\.(s|t)?(data|bss)/ && $1 !~ /^\.data\.rel\.ro/ && $2 > 0 {
        print $1, $2, "bytes"
    }' "$build/size" >"$build/output"
    if [ -s "$build/output" ]; then
        fail "$1: static memory that can be written" "$build/output"
    else
        pass
    fi
}

shown="exports exports-clock exports-shared"
with_clock="may-need needs-clock"
if [ "${QUICK:-0}" = 1 ]; then
    plain="$CC -std=c99 -fno-stack-protector -fno-common -O1"
    try "-O1" "" "$plain" "$shown" "$with_clock"
    try "without a clock" "" "$plain -DRATELIMIT_NO_CLOCK" "exports exports-shared" may-need
    if [ "$(uname -m)" = x86_64 ]; then
        try "without float registers" "" "$plain -mgeneral-regs-only" "$shown" "$with_clock"
    fi
    finish
fi
case $CC in
*clang*) compilers=$CC ;;
*) compilers="$CC clang" ;;
esac
for cc in $compilers; do
    have "$cc" clang || continue
    plain="$cc -std=c99 -fno-stack-protector -fno-common"
    for level in -O0 -O1 -O2 -Os -O3; do
        try "$cc $level" "" "$plain $level" "$shown" "$with_clock"
    done
    try "$cc without a clock" "" "$plain -O2 -DRATELIMIT_NO_CLOCK" "exports exports-shared" may-need
    try "$cc without threads" "" "$plain -O2 -DRATELIMIT_NO_THREADS" "exports exports-clock" "$with_clock"
    if [ "$(uname -m)" = x86_64 ]; then
        try "$cc without float registers" "" "$plain -O2 -mgeneral-regs-only" "$shown" "$with_clock"
        if builds "$cc -m32" gcc-N-multilib; then
            shared=exports-shared # clang has no lock-free 64 bits on i686
            case $cc in *clang*) shared= ;; esac
            try "$cc 32-bit" "" "$plain -O2 -m32" "exports exports-clock $shared" "$with_clock m32"
        fi
    fi
done

if have arm-none-eabi-gcc gcc-arm-none-eabi; then
    for cpu in cortex-m0plus cortex-m3 cortex-m4; do
        for level in -Os -O2; do
            arm="arm-none-eabi-gcc -std=c99 -ffreestanding -mthumb -mcpu=$cpu -fno-common"
            arm="$arm $level -I$build/include"
            try "$cpu $level" arm-none-eabi- "$arm" exports "may-need arm"
        done
    done
fi
finish

#!/bin/sh
# cross.sh [BUILD]  Other machines.
#
# The tests of what is decided give the same answers on a big-endian one (s390x, run by qemu), and
# everything compiles without a warning for ARM Cortex-M without an operating system or C library.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}
mkdir -p "$build" && build=$(cd "$build" && pwd)/cross
rm -rf "$build" && mkdir -p "$build/include" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}

# big_endian FILE  Builds and runs one test; its last line must count some passed and none failed.
big_endian() {
    if ! s390x-linux-gnu-gcc -std=c99 -O1 -static -pthread -I"$header" -I"$root/tests" \
        "$root/$1" -o "$build/program" >"$build/output" 2>&1; then
        fail "s390x: $1 does not build" "$build/output"
        return
    fi
    if (cd "$root" && limited 1800 qemu-s390x "$build/program") >"$build/output" 2>&1; then
        tail -n 1 "$build/output" >"$build/last"
        if [ "$2" = counts ] && ! grep -Eq '^[1-9][0-9]* passed, 0 failed' "$build/last"; then
            fail "s390x: $1 ends without a count" "$build/output"
        else
            pass
        fi
    else
        grep -v '^SEED' "$build/output" >"$build/shown"
        fail "s390x: $1 fails" "$build/shown"
    fi
}

if have s390x-linux-gnu-gcc "gcc-s390x-linux-gnu libc6-dev-s390x-cross" &&
    have qemu-s390x qemu-user; then
    echo 'int main(void) { short s = 1; return *(char *)&s; }' >"$build/order.c"
    run "s390x: not big-endian, or does not build and run" sh -c \
        's390x-linux-gnu-gcc -static "$1.c" -o "$1" && qemu-s390x "$1"' sh "$build/order"
    big_endian tests/portability/use.c silent
    big_endian tests/portability/options.c silent
    for test in vectors test_limit test_reported; do
        big_endian "tests/$test.c" counts
    done
fi

if have arm-none-eabi-gcc gcc-arm-none-eabi; then
    cat >"$build/impl.c" <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
END
    cat >"$build/include/string.h" <<'END'
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
END
    arm="-Os -ffreestanding -mthumb $warnings_c -I$build/include -I$header -c $build/impl.c"
    arm="$arm -o $build/impl.o"
    for cpu in cortex-m0 cortex-m0plus cortex-m3 cortex-m4 cortex-m7; do
        for std in c99 c17; do
            run "$cpu -std=$std" arm-none-eabi-gcc -std=$std -mcpu=$cpu $arm
        done
        run "$cpu with locks of its own" arm-none-eabi-gcc -std=c99 -mcpu=$cpu \
            "-DRATELIMIT_LOCK(lock)=__asm__ volatile(\"cpsid i\" ::: \"memory\")" \
            "-DRATELIMIT_UNLOCK(lock)=__asm__ volatile(\"cpsie i\" ::: \"memory\")" \
            $arm
    done
fi
finish

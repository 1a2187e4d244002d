#!/bin/sh
# cross.sh [BUILD]  Other machines.
#
# The tests of what is decided give the same answers on a big-endian one (s390x, run by qemu); the
# smallest program that uses everything gives them on ARM of 64 bits; and everything compiles without
# a warning for ARM Cortex-M without an operating system or C library.
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

# emulated MACHINE FILE [WORD...]  Builds and runs one program, its long runs short (SHORT). A test,
#                                  what of it is run by the words if there are any, must end with a
#                                  count of some passed and none failed.
emulated() {
    emulated_machine=$1
    emulated_file=$2
    shift 2
    if ! "$emulated_machine-linux-gnu-gcc" -std=c99 -O1 -DSHORT=1 -static -pthread -I"$header" \
        -I"$root/tests" -I"$root" "$root/$emulated_file" -o "$build/program" \
        >"$build/output" 2>&1; then
        fail "$emulated_machine: $emulated_file does not build" "$build/output"
        return
    fi
    if (cd "$root" && limited 1800 "qemu-$emulated_machine" "$build/program" "$@") \
        >"$build/output" 2>&1; then
        case $emulated_file in
        tests/portability/*) pass ;;
        *)
            if tail -n 1 "$build/output" | grep -Eq '^[1-9][0-9]* passed, 0 failed'; then
                pass
            else
                fail "$emulated_machine: $emulated_file ends without a count" "$build/output"
            fi
            ;;
        esac
    else
        grep -v '^SEED' "$build/output" >"$build/shown"
        fail "$emulated_machine: $emulated_file fails" "$build/shown"
    fi
}

if have s390x-linux-gnu-gcc "gcc-s390x-linux-gnu libc6-dev-s390x-cross" &&
    have qemu-s390x qemu-user; then
    echo 'int main(void) { short s = 1; return *(char *)&s; }' >"$build/order.c"
    run "s390x: not big-endian, or does not build and run" sh -c \
        's390x-linux-gnu-gcc -static "$1.c" -o "$1" && qemu-s390x "$1"' sh "$build/order"
    emulated s390x tests/portability/use.c
    emulated s390x tests/portability/options.c
    # every engine but the model, which takes long and shares no code with the header
    emulated s390x tests/vectors.c bucket: shared table: limiter: cas
    emulated s390x tests/test_limit.c
    emulated s390x tests/test_reported.c
fi

if have aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross" &&
    have qemu-aarch64 qemu-user; then
    emulated aarch64 tests/portability/use.c
    emulated aarch64 tests/portability/options.c
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
size_t strlen(const char *text);
END
    arm="-Os -ffreestanding -mthumb $warnings_c -I$build/include -I$header -c $build/impl.c"
    arm="$arm -o $build/impl.o"
    for cpu in cortex-m0 cortex-m0plus cortex-m3 cortex-m4 cortex-m7; do
        for std in c99 c17; do
            run "$cpu -std=$std" arm-none-eabi-gcc -std=$std -mcpu=$cpu $arm
        done
        run "$cpu with locks of its own" arm-none-eabi-gcc -std=c99 -mcpu=$cpu \
            "-DRATELIMIT_LOCK()=__asm__ volatile(\"cpsid i\" ::: \"memory\")" \
            "-DRATELIMIT_UNLOCK()=__asm__ volatile(\"cpsie i\" ::: \"memory\")" \
            $arm
    done
fi
finish

#!/bin/sh
# windows.sh [BUILD]  Windows.
#
# Everything builds without a warning with mingw-w64, of 64 and 32 bit, as C and as C++: also after
# the macros of windows.h (near, far, min, max, small, interface), before winsock2.h and after it.
# The header brings in nothing of windows.h. The programs run under wine, those of 32 bits if there
# is a wine for them, and give the right answers.
#
# The code for MSVC is read by clang, as that compiler would, with the few declarations that it
# needs from us in place of Microsoft's headers: x86-64, i686 and ARM64.
#
# HEADER_DIR  the folder of the ratelimit.h to try (the project's own)
# WINE32      the wine for programs of 32 bits, if it is not where Debian's package wine32 puts it
# WORDS       only cases whose name has one of these words in it
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build}
mkdir -p "$build" && build=$(cd "$build" && pwd)/windows
rm -rf "$build" && mkdir -p "$build/msvc" || exit 1
. "$here/count.sh"
header=${HEADER_DIR:-$root}

file() {
    cat >"$build/$1"
}

file near.c <<'END'
#define near
#define far
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define small char
#define interface struct
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#undef near
#undef far
#undef min
#undef max
#undef small
#undef interface
#include "use.h"
int main(void)
{
    return use_all() != 0;
}
END
file before.c <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include <winsock2.h>
#include <windows.h>
#include "use.h"
int main(void)
{
    LARGE_INTEGER count;
    return !QueryPerformanceCounter(&count) || use_all() != 0;
}
END
file after.c <<'END'
#include <winsock2.h>
#include <windows.h>
#include <objbase.h>
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"
int main(void)
{
    LARGE_INTEGER count;
    return !QueryPerformanceCounter(&count) || use_all() != 0;
}
END
file alone.c <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#if defined(_WINDOWS_) || defined(_INC_WINDOWS) || defined(_WINDEF_) || defined(_WINSOCKAPI_) ||     \
    defined(near) || defined(far) || defined(min) || defined(max) || defined(small) ||               \
    defined(interface)
#error "ratelimit.h brings in windows.h or its macros."
#endif
int main(void)
{
    return 0;
}
END

# ---- mingw-w64

export WINEDEBUG=-all DISPLAY=

# wine BITS ARCHITECTURE PACKAGE PROGRAM...  The first of the programs that is there and starts, into
#                                            wine32 or wine64, with its folder made.
wine() {
    wine_bits=$1 wine_arch=$2 wine_package=$3 wine_found=
    shift 3
    for wine_program in "$@"; do
        [ -n "$wine_found" ] || ! command -v "$wine_program" >/dev/null 2>&1 || wine_found=$wine_program
    done
    if [ -z "$wine_found" ]; then
        skip "programs for Windows of $wine_bits bits are not run: wine is missing (Debian package $wine_package)"
        echo "not run: programs for Windows of $wine_bits bits: wine is missing (Debian package $wine_package)" >>"$build/table"
        return
    fi
    eval "wine$wine_bits='env WINEARCH=$wine_arch WINEPREFIX=$build/wine$wine_bits $wine_found'"
    if ! eval "limited 600 \$wine$wine_bits cmd /c ver" >"$build/output" 2>&1; then
        fail "wine of $wine_bits bits does not start" "$build/output"
        eval "wine$wine_bits="
    fi
}
wine32= wine64=
wine 64 win64 wine64 wine64 /usr/lib/wine/wine64
wine 32 win32 "wine32, after dpkg --add-architecture i386" ${WINE32:-} /usr/lib/wine/wine

# with WHAT COMMAND SOURCE [counts]  Builds without a warning, and runs where that is possible: ends
#                                    with 0, and with "counts" says how many passed.
with() {
    wanted "$1" || return 0
    rm -f "$build/program.exe"
    if ! $2 -I"$header" -I"$root/tests" -I"$here" "$3" -static -o "$build/program.exe" \
        >"$build/output" 2>&1; then
        fail "$1: does not build" "$build/output"
        return
    fi
    pass
    case $2 in
    i686*) with_wine=$wine32 ;;
    *) with_wine=$wine64 ;;
    esac
    [ -n "$with_wine" ] || return 0
    cd "$root" || exit 1 # the vectors are there
    if [ "${4:-}" = counts ]; then
        checks "$1" limited 1800 $with_wine "$build/program.exe"
    else
        run "$1: gives a wrong answer" limited 1800 $with_wine "$build/program.exe"
    fi
}

for machine in x86_64 i686; do
    package=mingw-w64-$(echo $machine | tr _ -)
    if have $machine-w64-mingw32-gcc gcc-$package; then
        c="$machine-w64-mingw32-gcc $warnings_c"
        for std in c99 gnu17; do
            with "$machine $std: use" "$c -std=$std -O2" "$here/use.c"
        done
        for option in PLAIN LOCKS RATELIMIT_NO_CLOCK RATELIMIT_NO_THREADS RATELIMIT_STATIC; do
            with "$machine c99: $option" "$c -std=c99 -O1 -D$option" "$here/options.c"
        done
        for order in near before after alone; do
            with "$machine c99: $order" "$c -std=c99 -O1" "$build/$order.c"
        done
        with "$machine c99: vectors" "$c -std=c99 -O1 -D__USE_MINGW_ANSI_STDIO=1" \
            "$root/tests/vectors.c" counts
        with "$machine c99: known answers" "$c -std=c99 -O2" "$root/tests/known_answers.c" counts
        measured "Windows, $machine" $machine-w64-mingw32- "$machine-w64-mingw32-gcc -std=c99"
    fi
    if have $machine-w64-mingw32-g++ g++-$package; then
        cpp="$machine-w64-mingw32-g++ $warnings_cpp"
        for std in c++11 gnu++17; do
            with "$machine $std: use" "$cpp -std=$std -O2 -x c++" "$here/use.c"
        done
        for order in near before after alone; do
            with "$machine c++11: $order" "$cpp -std=c++11 -O1 -x c++" "$build/$order.c"
        done
    fi
done

# ---- MSVC

# Freestanding, clang has <stdint.h>, <stdbool.h> and <stddef.h> of its own.
file msvc/string.h <<'END'
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
void *memcpy(void *to, const void *from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
size_t strlen(const char *text);
int memcmp(const void *a, const void *b, size_t bytes);
#ifdef __cplusplus
}
#endif
END
# As Microsoft documents them, each on the machines that have it.
file msvc/intrin.h <<'END'
#ifdef __cplusplus
extern "C" {
#endif
long _InterlockedExchange(long volatile *target, long value);
long _InterlockedCompareExchange(long volatile *target, long value, long old);
__int64 _InterlockedCompareExchange64(__int64 volatile *target, __int64 value, __int64 old);
void _ReadWriteBarrier(void);
#if defined(_M_X64) || defined(_M_ARM64)
__int64 _InterlockedExchange64(__int64 volatile *target, __int64 value);
__int64 _InterlockedExchangeAdd64(__int64 volatile *target, __int64 value);
unsigned __int64 __umulh(unsigned __int64 a, unsigned __int64 b);
#endif
#if defined(_M_X64) || defined(_M_IX86)
void _mm_pause(void);
#endif
#if defined(_M_ARM64)
unsigned __int32 __ldar32(unsigned __int32 volatile *source);
unsigned __int64 __ldar64(unsigned __int64 volatile *source);
void __stlr32(unsigned __int32 volatile *target, unsigned __int32 value);
void __stlr64(unsigned __int64 volatile *target, unsigned __int64 value);
void __yield(void);
#endif
#ifdef __cplusplus
}
#endif
END
file impl.c <<'END'
#if !defined(_MSC_VER) || defined(__GNUC__)
#error "This is not read as MSVC would."
#endif
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
END
{
    sed '/^#define RATELIMIT_IMPLEMENTATION/,$d' "$build/near.c"
    cat "$build/impl.c"
} >"$build/impl_near.c"
if have clang clang; then
    for machine in x86_64 i686 aarch64; do
        msvc="clang --target=$machine-pc-windows-msvc -fms-compatibility-version=19.29
            -ffreestanding -nostdlibinc -isystem $build/msvc -I$header -fsyntax-only
            -Wall -Wextra -Wshadow -Wstrict-prototypes -Wno-unused-function -Werror"
        for option in PLAIN RATELIMIT_STATIC RATELIMIT_NO_CLOCK RATELIMIT_NO_THREADS RATELIMIT_NO_TEXT \
            "RATELIMIT_NO_CLOCK -DRATELIMIT_NO_THREADS"; do
            run "MSVC $machine, C: $option" $msvc -std=c11 -D$option "$build/impl.c"
            run "MSVC $machine, C++: $option" $msvc -std=c++14 -x c++ -D$option "$build/impl.c"
        done
        run "MSVC $machine, after near and far" $msvc -std=c11 "$build/impl_near.c"
    done
fi
# C4146, an error in new projects of Visual Studio: minus of what has no sign
if grep -nE '[^])[:alnum:]_ ] *-\((uint|size_t|unsigned|uintptr)' "$header/ratelimit.h" >"$build/output"; then
    fail "MSVC: minus of an unsigned value, C4146" "$build/output"
else
    pass
fi
finish

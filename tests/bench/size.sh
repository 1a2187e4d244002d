#!/bin/sh
# size.sh - how much room ratelimit.h takes: code, stack, memory per key, structs.
#
#     sh tests/bench/size.sh [path of ratelimit.h]
#
# Code is what the linker keeps when only the named calls are used (-Os, text and constants, without libc's mem* and the
# chip's division helpers, which are listed). A compiler that is not there is named with its package and left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
header=${1:-$here/../../ratelimit.h}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
cp "$header" "$work/ratelimit.h"

# mem* are all of libc that the header needs; without this the ARM compiler asks for a libc's headers.
mkdir "$work/include"
cat > "$work/include/string.h" <<'END'
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
END

bucket="ratelimit_bucket_take ratelimit_bucket_decide"
table="$bucket ratelimit_table_init ratelimit_table_take ratelimit_table_decide ratelimit_table_sweep
       ratelimit_table_acquire ratelimit_table_release"

# kept NAME PREFIX CALLS: links what the calls reach into $work/NAME.o
kept() {
    name=$1 prefix=$2
    shift 2
    keep=
    for call in "$@"; do
        keep="$keep -u $call"
    done
    # shellcheck disable=SC2086
    "${prefix}ld" -r --gc-sections -e "$1" $keep "$work/all.o" -o "$work/$name.o"
}

# text NAME PREFIX: bytes of code and constants
text() {
    "${2}size" -A "$work/$1.o" | awk '$1 ~ /^\.(text|rodata)/ { sum += $2 } END { print sum + 0 }'
}

# stack NAME PREFIX: the largest frame among the functions that were kept
stack() {
    "${2}nm" "$work/$1.o" | awk 'NR == FNR { kept[$3] = 1; next }
        { n = split($1, at, ":"); if ((at[n] in kept) && $2 > most) { most = $2; who = at[n] } }
        END { print most + 0 " (" who ")" }' - "$work/all.su"
}

# one LABEL PACKAGE PREFIX COMPILER FLAGS
one() {
    label=$1 package=$2 prefix=$3 compiler=$4
    shift 4
    if ! command -v "$compiler" > /dev/null 2>&1; then
        printf '  %-34s not measured: %s is missing (package %s)\n' "$label" "$compiler" "$package"
        return
    fi
    if ! command -v "${prefix}ld" > /dev/null 2>&1; then
        printf '  %-34s not measured: %sld is missing (package binutils)\n' "$label" "$prefix"
        return
    fi
    rm -f "$work"/all.*
    (cd "$work" && "$compiler" -std=c99 -Os "$@" -ffunction-sections -fdata-sections -fstack-usage \
        -fno-asynchronous-unwind-tables -DRATELIMIT_IMPLEMENTATION -DRATELIMIT_NO_TEXT \
        -x c -c ratelimit.h -o all.o)
    # shellcheck disable=SC2086
    kept bucket "$prefix" $bucket
    # shellcheck disable=SC2086
    kept table "$prefix" $table
    printf '  %-34s %7s %7s %7s   %s\n' "$label" "$(text bucket "$prefix")" "$(text table "$prefix")" \
        "$(text all "$prefix")" "$(stack table "$prefix" 2> /dev/null || echo unknown)"
    "${prefix}nm" -u "$work/table.o" | awk '{ print $NF }' | grep '^__' > "$work/needs" || :
    if [ -s "$work/needs" ]; then
        printf '  %-34s needs of the compiler'"'"'s library: %s\n' "" "$(tr '\n' ' ' < "$work/needs")"
    fi
}

printf 'Code, bytes\n'
printf '  %-34s %7s %7s %7s   %s\n' "" bucket "+ table" all "largest frame of bucket + table"
one "x86-64, gcc -Os" gcc "" gcc
one "x86-64, clang -Os" clang "" clang
one "Cortex-M0+, arm-none-eabi-gcc -Os" gcc-arm-none-eabi arm-none-eabi- arm-none-eabi-gcc \
    -mcpu=cortex-m0plus -mthumb -ffreestanding -isystem "$work/include"
printf '  aims on Cortex-M0+: %23s %7s\n' 1024 4096
printf '  bucket: take, decide; + table: init, take, decide, sweep, acquire, release\n'

cat > "$work/show.c" <<'END'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include <stdio.h>
#define SHOW(type) printf("  %-34s %7zu\n", #type, sizeof(type))
int main(void)
{
    static const size_t keys[] = {100, 10000, 1000000};
    size_t i;
    printf("\nTable, bytes a key, half full\n");
    for (i = 0; i < sizeof keys / sizeof keys[0]; i++)
        printf("  %7zu keys %30.2f\n", keys[i], (double)ratelimit_table_bytes(keys[i]) / (double)keys[i]);
    printf("\nStructs, bytes\n");
    SHOW(ratelimit_bucket);
    SHOW(ratelimit_limit);
    SHOW(ratelimit_request);
    SHOW(ratelimit_result);
    SHOW(ratelimit_table_options);
    SHOW(ratelimit_table_counts);
    SHOW(ratelimit_store);
    SHOW(ratelimit_cas);
    SHOW(ratelimit_counts);
    SHOW(ratelimit_limiter);
    return 0;
}
END
${CC:-cc} -std=c99 "$work/show.c" -o "$work/show"
"$work/show"

${CC:-cc} -std=c99 -Os -DRATELIMIT_IMPLEMENTATION -x c -c "$work/ratelimit.h" -o "$work/public.o"
printf '\nPublic functions %27s\n' "$(nm -g --defined-only "$work/public.o" | grep -c ' T ratelimit_')"

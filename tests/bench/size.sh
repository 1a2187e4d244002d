#!/bin/sh
# size.sh - how much room ratelimit.h takes: code, stack, memory per key, structs.
#
#     sh tests/bench/size.sh [path of ratelimit.h]
#
# Programs for a small chip are linked for a Cortex-M0+ with -Os, with all they pull in: the compiler's library (64-bit
# multiplication and division), mem*, and the constant limit of 80 bytes. What the same program takes without the calls is
# subtracted. Stack is the deepest chain of calls below the call measured, counted in the linked code. A compiler that is
# not there is named with its package and left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
header=${1:-$here/../../ratelimit.h}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
cp "$header" "$work/ratelimit.h"

# mem* and strlen are all of libc that the header needs; without this the ARM compiler asks for a libc's headers.
mkdir "$work/include"
cat > "$work/include/string.h" <<'END_OF_FILE'
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
size_t strlen(const char *);
END_OF_FILE
cat > "$work/mem.c" <<'END_OF_FILE'
#include <string.h>
void *memcpy(void *to, const void *from, size_t n) { char *t = to; const char *f = from; while (n--) *t++ = *f++; return to; }
void *memset(void *to, int byte, size_t n) { char *t = to; while (n--) *t++ = (char)byte; return to; }
void *memmove(void *to, const void *from, size_t n)
{
    char *t = to; const char *f = from;
    if (t < f) while (n--) *t++ = *f++; else while (n--) t[n] = f[n];
    return to;
}
int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    for (; n; n--, x++, y++) if (*x != *y) return *x - *y;
    return 0;
}
size_t strlen(const char *text) { size_t n = 0; while (text[n]) n++; return n; }
END_OF_FILE

# The deepest stack below a function, from objdump -d of Thumb code: what a function pushes and subtracts, and the deepest
# of what it calls.
cat > "$work/stack.awk" <<'END_OF_FILE'
/^[0-9a-f]+ <.*>:$/ { f = $2; gsub(/[<>:]/, "", f); own[f] += 0; next }
/\tpush\t/ { own[f] += 4 * split($0, r, ",") }
/\tsub\tsp, #/ { match($0, /#[0-9]+/); own[f] += substr($0, RSTART + 1, RLENGTH - 1) }
/\t(bl|b|b\.n|b\.w|bl\.w)\t.*<[A-Za-z_]/ { t = $0; sub(/.*</, "", t); sub(/[+>].*/, "", t); if (t != f) calls[f] = calls[f] " " t }
function deep(f,   list, n, i, d, most) {
    if (f in done) return done[f]
    done[f] = own[f]
    n = split(calls[f], list, " ")
    for (i = 1; i <= n; i++) { d = deep(list[i]); if (d > most) most = d }
    return done[f] = own[f] + most
}
END { print deep(from) }
END_OF_FILE

# program NAME DEFINITIONS BODY: a program for a small chip; BODY is what the function "called" returns, given now
program() {
    cat > "$work/$1.c" <<END_OF_FILE
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
volatile uint32_t ticks;
$2
__attribute__((noinline)) uint32_t called(uint64_t now) { return (uint32_t)($3); }
void _start(void)
{
    for (;;) {
        uint32_t high = ticks, low = ticks;
        ticks = called((uint64_t)high << 32 | low);
    }
}
END_OF_FILE
}

limit='static const ratelimit_limit limit = RATELIMIT_LIMIT(10, RATELIMIT_SECOND, 20);'
bucket="$limit static ratelimit_bucket bucket;"
table="$bucket static ratelimit_table_options options = {{1, 0}, RATELIMIT_EVICT, RATELIMIT_HASH_SIP, 0}; static unsigned char memory[RATELIMIT_TABLE_BYTES(24)]; static ratelimit_table *table;"
take='ratelimit_bucket_take(&bucket, &limit, 1, now, NULL)'
make='(table || ratelimit_table_init(&table, memory, sizeof memory, &options) == RATELIMIT_OK)'
keyed="$make && ratelimit_table_take(table, &now, 4, &limit, 1, now, NULL)"
program nothing '' 'now & 1'
program take "$bucket" "$take"
program result "$bucket static ratelimit_result r;" 'ratelimit_bucket_take(&bucket, &limit, 1, now, &r), r.retry_after_ns'
program varied "static ratelimit_limit limit; static ratelimit_bucket bucket; ratelimit_limit *of(void) { return &limit; }" \
    'limit.tokens || (limit = ratelimit_limit_make(now & 255, RATELIMIT_SECOND, 20)).tokens, '"$take"
program table "$table" "$take + ($keyed)"
program ticks 'static const ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(1500, 4); static uint32_t full;' \
    'ratelimit_tick_take(&full, &limit, (uint32_t)now)'

arm="arm-none-eabi-gcc -std=c99 -Os -mcpu=cortex-m0plus -mthumb -ffreestanding -isystem $work/include -I$work
     -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables"

# link NAME FLAGS: bytes of code and constants
link() {
    name=$1
    shift
    # shellcheck disable=SC2086
    $arm "$@" -c "$work/$name.c" -o "$work/$name.o"
    arm-none-eabi-gcc -mcpu=cortex-m0plus -mthumb -nostdlib -nostartfiles -Wl,--gc-sections -Wl,-e,_start -Wl,-Ttext=0 \
        "$work/$name.o" "$work/mem.o" -lgcc -o "$work/$name.elf"
    arm-none-eabi-size "$work/$name.elf" | awk 'NR == 2 { print $1 }'
}

# row LABEL AIM_BYTES AIM_STACK NAME FLAGS
row() {
    label=$1 aim=$2 aim_stack=$3 name=$4
    shift 4
    bytes=$(($(link "$name" "$@") - nothing))
    deep=$(arm-none-eabi-objdump -d "$work/$name.elf" | awk -f "$work/stack.awk" -v from=called)
    verdict=
    if [ "$aim" -gt 0 ]; then
        verdict=reached
        [ "$bytes" -le "$aim" ] || verdict='NOT REACHED'
    fi
    if [ "$aim_stack" -gt 0 ] && [ "$deep" -gt "$aim_stack" ]; then
        verdict='NOT REACHED'
    fi
    printf '  %-58s %6s %6s %6s %6s  %s\n' "$label" "$bytes" "$([ "$aim" = 0 ] || echo "$aim")" "$deep" \
        "$([ "$aim_stack" = 0 ] || echo "$aim_stack")" "$verdict"
}

printf 'Cortex-M0+, -Os, linked with all it pulls in\n'
if command -v arm-none-eabi-gcc > /dev/null 2>&1; then
    # shellcheck disable=SC2086
    $arm -fno-tree-loop-distribute-patterns -c "$work/mem.c" -o "$work/mem.o"
    nothing=$(link nothing -DRATELIMIT_STATIC)
    printf '  %-58s %6s %6s %6s %6s\n' '' code aim stack aim
    row 'one bucket, take (RATELIMIT_STATIC)' 1740 120 take -DRATELIMIT_STATIC
    row '  with RATELIMIT_FIXED_LIMITS' 1126 120 take -DRATELIMIT_STATIC -DRATELIMIT_FIXED_LIMITS
    row '  with the result' 0 0 result -DRATELIMIT_STATIC
    row '  under a limit made at run time' 0 0 varied -DRATELIMIT_STATIC
    row '  without RATELIMIT_STATIC: with all operations' 0 0 take
    row '  without RATELIMIT_STATIC, but with -flto' 1740 120 take -flto -ffat-lto-objects
    row 'a bucket and a table, take (RATELIMIT_STATIC)' 5120 0 table -DRATELIMIT_STATIC
    row '  with RATELIMIT_FIXED_LIMITS' 0 0 table -DRATELIMIT_STATIC -DRATELIMIT_FIXED_LIMITS
    row '  without RATELIMIT_STATIC: with all operations' 0 0 table
    row 'a bucket in ticks, take (RATELIMIT_STATIC)' 120 0 ticks -DRATELIMIT_STATIC
else
    printf '  not measured: arm-none-eabi-gcc is missing (package gcc-arm-none-eabi)\n'
fi

# all LABEL FLAGS: the whole of the implementation, not linked
all() {
    label=$1
    shift
    # shellcheck disable=SC2086
    ${compiler} -std=c99 -Os "$@" -fno-asynchronous-unwind-tables -DRATELIMIT_IMPLEMENTATION -x c -c "$work/ratelimit.h" \
        -o "$work/all.o"
    bytes=$(${prefix}size "$work/all.o" | awk 'NR == 2 { print $1 }')
    [ -n "$whole" ] || whole=$bytes
    printf '  %-58s %6s %6s\n' "$label" "$bytes" "$([ "$bytes" = "$whole" ] || echo $((bytes - whole)))"
}

# wholes COMPILER PREFIX FLAGS: and what each option takes out
wholes() {
    compiler=$1 prefix=$2 whole=
    shift 2
    all 'everything' "$@"
    for option in RATELIMIT_FIXED_LIMITS RATELIMIT_NO_TEXT RATELIMIT_NO_LOG RATELIMIT_NO_CLOCK RATELIMIT_NO_THREADS; do
        all "  $option" "$@" "-D$option"
    done
}

printf '\nThe whole of ratelimit.h, -Os, and what each option takes out\n'
for compiler in gcc clang; do
    if command -v "$compiler" > /dev/null 2>&1; then
        printf '  x86-64, %s\n' "$compiler"
        wholes "$compiler" ''
    else
        printf '  not measured: %s is missing (package %s)\n' "$compiler" "$compiler"
    fi
done
if command -v arm-none-eabi-gcc > /dev/null 2>&1; then
    printf '  Cortex-M0+, arm-none-eabi-gcc\n'
    wholes arm-none-eabi-gcc arm-none-eabi- -mcpu=cortex-m0plus -mthumb -ffreestanding -isystem "$work/include"
fi

cat > "$work/show.c" <<'END_OF_FILE'
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include <stdio.h>
#define SHOW(type) printf("  %-58s %6zu\n", #type, sizeof(type))
int main(void)
{
    static const size_t keys[] = {100, 10000, 1000000};
    size_t i;
    printf("\nTable, bytes a key, half full\n");
    for (i = 0; i < sizeof keys / sizeof keys[0]; i++)
        printf("  %7zu keys %53.2f\n", keys[i], (double)ratelimit_table_bytes(keys[i]) / (double)keys[i]);
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
END_OF_FILE
${CC:-cc} -std=c99 "$work/show.c" -o "$work/show"
"$work/show"

${CC:-cc} -std=c99 -Os -DRATELIMIT_IMPLEMENTATION -x c -c "$work/ratelimit.h" -o "$work/public.o"
printf '\n  %-58s %6s\n' 'Public functions' "$(nm -g --defined-only "$work/public.o" | grep -c ' T ratelimit_')"

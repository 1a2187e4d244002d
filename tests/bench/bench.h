/* bench.h - what bench.c and bench_static.c share. */
#ifndef BENCH_H
#define BENCH_H

#include "../../ratelimit.h"

/* count takes of one token from *b, step_ns apart, where the compiler sees the whole of the header
 * and the limit: 1,000,000 a second, or one an hour. They return how many passed. */
uint64_t static_take_whole(ratelimit_bucket *b, uint64_t count, uint64_t now_ns, uint64_t step_ns);
uint64_t static_take_hourly(ratelimit_bucket *b, uint64_t count, uint64_t now_ns, uint64_t step_ns);

/* The compiler must not know what is in memory. */
#if defined(__GNUC__)
#  define BENCH_BARRIER() __asm__ volatile("" ::: "memory")
#else
#  define BENCH_BARRIER() ((void)0)
#endif

#endif

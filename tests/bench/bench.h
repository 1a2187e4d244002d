/* bench.h - what bench.c and bench_plain.c share: the header a second time, without locks. */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The same calls from a copy of the header that was compiled with RATELIMIT_NO_THREADS. limit is a
 * ratelimit_limit of tokens per per_ns; the types are the copy's own, so nothing of the header
 * crosses this border. */
void *plain_table(void *memory, size_t bytes);
void plain_limit(uint64_t tokens, uint64_t per_ns, uint64_t burst);
bool plain_take(void *table, const void *key, size_t key_len, uint64_t now_ns);
uint64_t plain_bucket(uint64_t *bucket, uint64_t count, uint64_t now_ns, uint64_t step_ns);

#endif

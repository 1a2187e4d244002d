/* bench_plain.c - the header compiled a second time with RATELIMIT_NO_THREADS, for the rows of
 * bench.c that show what the locks cost. */
#define RATELIMIT_STATIC
#define RATELIMIT_NO_THREADS
#define RATELIMIT_IMPLEMENTATION
#include "../../ratelimit.h"
#include "bench.h"

static ratelimit_limit limit;

void plain_limit(uint64_t tokens, uint64_t per_ns, uint64_t burst)
{
    limit = ratelimit_limit_make(tokens, per_ns, burst);
}

void *plain_table(void *memory, size_t bytes)
{
    ratelimit_table *table;
    return ratelimit_table_init(&table, memory, bytes, NULL) == RATELIMIT_OK ? table : NULL;
}

bool plain_take(void *table, const void *key, size_t key_len, uint64_t now_ns)
{
    return ratelimit_table_take(table, key, key_len, &limit, 1, now_ns, NULL);
}

/* count takes from one bucket (two words), where the compiler sees the whole of the header; returns
 * how many passed. */
uint64_t plain_bucket(uint64_t *bucket, uint64_t count, uint64_t now_ns, uint64_t step_ns)
{
    ratelimit_bucket b;
    uint64_t i, passed = 0;
    b.full_ns = bucket[0];
    b.rest = bucket[1];
    for (i = 0; i < count; i++, now_ns += step_ns)
        passed += ratelimit_bucket_take(&b, &limit, 1, now_ns, NULL);
    bucket[0] = b.full_ns;
    bucket[1] = b.rest;
    return passed;
}

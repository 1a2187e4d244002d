/* bench_plain.c - the header compiled a second time with RATELIMIT_NO_THREADS, for the rows of bench.c that show what the locks cost. */
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

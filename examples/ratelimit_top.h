/* ratelimit_top.h - which keys are refused most, in a few entries of your own

   What it shows: a limiter's hook as the place for statistics. Include it after ratelimit.h; needs
   GCC or Clang (C99 or C++11).

       static ratelimit_top_entry entries[32];
       static ratelimit_top top = {entries, 32, 0, 0, 0};   a random seed, if keys come from outside
       limiter.hook = ratelimit_top_hook;
       limiter.hook_self = &top;
       ...
       n = ratelimit_top_read(&top, most, 10);

   The counts are those of "space-saving" (Metwally et al.): a key without an entry takes over the
   smallest, with its count as possible error. Of N refusals a key with more than N / count of them
   is among the entries for certain, and no error is above N / count.

   A request never waits for a statistic: a refusal that finds the entries busy is not counted, but
   in `dropped`. That also is so for ever after a thread died in the middle, in shared memory. */
#ifndef RATELIMIT_TOP_H
#define RATELIMIT_TOP_H

#include <string.h>

typedef struct ratelimit_top_entry {
    uint64_t refused; /* of this key, at most */
    uint64_t error;   /* at least refused - error are really its own */
    uint64_t hash;    /* of the whole key and the limit's scope */
    uint32_t scope;   /* of the limit: tells the rules of one key apart */
    uint32_t key_len; /* of the whole key; key holds its first bytes */
    unsigned char key[32];
} ratelimit_top_entry;

typedef struct ratelimit_top {
    ratelimit_top_entry *entries; /* zeroed */
    size_t count;
    uint64_t seed;    /* of the hash */
    uint32_t dropped; /* refusals that were not counted */
    uint32_t busy;    /* 0 */
} ratelimit_top;

/* FNV-1a from a seeded start, then mixed. Who finds two keys of one hash blurs a statistic. */
static inline uint64_t ratelimit_top_hash(const ratelimit_top *top, const unsigned char *key,
                                          size_t len, uint32_t scope)
{
    uint64_t hash =
        (top->seed ^ scope) * UINT64_C(0x9E3779B97F4A7C15) ^ UINT64_C(0xcbf29ce484222325);
    size_t i;
    for (i = 0; i < len; i++)
        hash = (hash ^ key[i]) * UINT64_C(0x100000001b3);
    hash = (hash ^ hash >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return hash ^ hash >> 32;
}

static inline bool ratelimit_top_lock(ratelimit_top *top)
{
    return !__atomic_exchange_n(&top->busy, 1, __ATOMIC_ACQUIRE);
}

static inline void ratelimit_top_unlock(ratelimit_top *top)
{
    __atomic_store_n(&top->busy, 0, __ATOMIC_RELEASE);
}

/* ratelimit_top_hook  Counts a decision that a limit refused, also one that shadow mode let
 * through. Threads: any. Cost: looks at all entries; nothing for a decision that allowed. */
static inline void ratelimit_top_hook(void *self, const ratelimit_request *req,
                                      const ratelimit_result *res)
{
    ratelimit_top *top = (ratelimit_top *)self;
    ratelimit_top_entry *e, *least;
    uint64_t hash;
    uint32_t scope;
    if ((res->status != RATELIMIT_DENIED && res->status != RATELIMIT_NEVER &&
         res->status != RATELIMIT_TIMEOUT) ||
        !top->count || !req->key || !req->key_len || !req->limit)
        return;
    if (!ratelimit_top_lock(top)) {
        (void)__atomic_fetch_add(&top->dropped, 1, __ATOMIC_RELAXED);
        return;
    }
    scope = req->limit->scope;
    hash = ratelimit_top_hash(top, (const unsigned char *)req->key, req->key_len, scope);
    for (least = e = top->entries; e != top->entries + top->count; e++) {
        if (e->refused && e->hash == hash && e->key_len == (uint32_t)req->key_len)
            break;
        if (e->refused < least->refused)
            least = e;
    }
    if (e == top->entries + top->count) {
        e = least;
        e->error = e->refused;
        e->hash = hash;
        e->scope = scope;
        e->key_len = (uint32_t)req->key_len;
        memset(e->key, 0, sizeof e->key);
        memcpy(e->key, req->key, req->key_len < sizeof e->key ? req->key_len : sizeof e->key);
    }
    e->refused++;
    ratelimit_top_unlock(top);
}

/* ratelimit_top_read  Copies the most refused first, at most max; returns how many. Threads: any;
 * waits for at most one hook, and only a reader waits. */
static inline size_t ratelimit_top_read(ratelimit_top *top, ratelimit_top_entry *out, size_t max)
{
    size_t i, j, n = 0;
    while (!ratelimit_top_lock(top))
        ;
    for (i = 0; i < top->count && max; i++) {
        const ratelimit_top_entry *e = &top->entries[i];
        if (!e->refused || (n == max && out[n - 1].refused >= e->refused))
            continue;
        n += n < max;
        for (j = n - 1; j > 0 && out[j - 1].refused < e->refused; j--)
            out[j] = out[j - 1];
        out[j] = *e;
    }
    ratelimit_top_unlock(top);
    return n;
}

#endif

/* bench.c - what a decision costs, beside the floor of the same work in the same run.
 *
 *     bench            all rows, under two minutes, 1.5 GB of memory
 *     bench --quick    fewer keys and two rounds: does it still run?
 *     bench --hot      only what fits in the cache
 *     bench WORD ...   (after these) only the rows whose names have one of the words
 *
 * Each row and its floor are sampled in turn, once in every round, in samples of about a
 * millisecond, so that a bad minute of the machine hits both alike. "low" is what a tenth of the
 * samples are below: the machine undisturbed, but not at its luckiest. The ratio is the row's low
 * to its floor's; the medians show how quiet the machine was. Compare ratios, not ns, with other
 * machines. Rows of one thread are measured in CPU time of the thread. Rows of two are measured by
 * the wall clock, while both run side by side, and compared by medians: two processors may be two
 * cores or, at luckier moments, one.
 *
 * Floors are programs of our own without expiry, eviction, counts or results: a GCRA in one 8-byte
 * word, and for keys 64-byte lines of eight cells (32-bit tag, 32-bit time), found by a fast hash
 * and a search without branches, charged by compare-and-swap. They are part of the loop that
 * measures them; the header's functions are called in another file (but for the row that says
 * "inline"). The time is given to both, 16 ns further at each call, unless a row says otherwise.
 */
#define _GNU_SOURCE /* madvise, and a processor for each thread, where the system has them */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#if defined(__linux__)
#  include <sched.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__SSE2__)
#  include <emmintrin.h>
#endif

#ifndef BENCH_FLAGS
#  define BENCH_FLAGS "not passed on (define BENCH_FLAGS)"
#endif

enum { MAX_ROUNDS = 400, MAX_ROWS = 96, BATCH = 32, CELLS = 8, STEP = 16, HOT_KEYS = 10000 };
#define SAMPLING_NS (80 * RATELIMIT_SECOND)

/* ---- memory, keys, random numbers ---- */

static void fail(const char *why)
{
    printf("bench: %s\n", why);
    exit(1);
}

/* Zeroed, in large pages where the system has them. */
static void *get_memory(size_t bytes)
{
    void *memory = NULL;
    const size_t page = (size_t)2 << 20;
    bytes = (bytes + page - 1) / page * page;
    if (posix_memalign(&memory, page, bytes) != 0)
        fail("out of memory");
#if defined(MADV_HUGEPAGE)
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    memset(memory, 0, bytes);
    return memory;
}

static uint64_t random64(void) /* splitmix64 */
{
    static uint64_t state = 1;
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

typedef struct bench_key {
    char text[15]; /* user:123456, ends with NUL */
    unsigned char len;
} bench_key;

static void make_key(bench_key *key, size_t number)
{
    unsigned digits = number < 1000000 ? 6 : 7, i;
    memset(key, 0, sizeof *key);
    memcpy(key->text, "user:", 5);
    for (i = digits; i; i--, number /= 10)
        key->text[4 + i] = (char)('0' + number % 10);
    key->len = (unsigned char)(5 + digits);
}

/* ---- floors ---- */

static inline uint64_t read64(const void *p)
{
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t mix(uint64_t a, uint64_t b)
{
#if defined(__SIZEOF_INT128__)
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t product = (a ^ (a >> 32)) * (b | 1);
    return product ^ (product >> 29);
#endif
}

/* Two multiplications, in the manner of wyhash. All our keys have 8 to 15 bytes. */
static inline uint64_t fast_hash(const bench_key *key)
{
    uint64_t a = read64(key->text), b = read64(key->text + key->len - 8);
    return mix(mix(a ^ UINT64_C(0xe7037ed1a0b428db), b ^ UINT64_C(0xa0761d6478bd642f)),
               key->len ^ UINT64_C(0x8ebc6af09c88c6e3));
}

static inline uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

#define SIP_ROUND                                                                                  \
  do {                                                                                             \
    a += b;                                                                                        \
    c += d;                                                                                        \
    b = rotate(b, 13) ^ a;                                                                         \
    d = rotate(d, 16) ^ c;                                                                         \
    a = rotate(a, 32) + d;                                                                         \
    c += b;                                                                                        \
    d = rotate(d, 21) ^ a;                                                                         \
    b = rotate(b, 17) ^ c;                                                                         \
    c = rotate(c, 32);                                                                             \
  } while (0)

/* SipHash-1-3. */
static inline uint64_t sip_hash(const bench_key *key)
{
    uint64_t a = UINT64_C(0x736f6d6570736575) ^ 1, b = UINT64_C(0x646f72616e646f6d) ^ 2;
    uint64_t c = UINT64_C(0x6c7967656e657261) ^ 1, d = UINT64_C(0x7465646279746573) ^ 2;
    uint64_t m = read64(key->text);
    d ^= m;
    SIP_ROUND;
    a ^= m;
    m = (uint64_t)key->len << 56 | read64(key->text + key->len - 8) >> (8 * (16 - key->len));
    d ^= m;
    SIP_ROUND;
    a ^= m;
    c ^= 0xff;
    SIP_ROUND;
    SIP_ROUND;
    SIP_ROUND;
    return a ^ b ^ c ^ d;
}

typedef struct floor_limit {
    uint64_t interval, window;
} floor_limit;

static inline bool floor_take(uint64_t *cell, const floor_limit *l, uint64_t now)
{
    uint64_t full = *cell > now ? *cell : now;
    if (full + l->interval - now > l->window)
        return false;
    *cell = full + l->interval;
    return true;
}

static inline bool floor_take_shared(uint64_t *cell, const floor_limit *l, uint64_t now)
{
    uint64_t old = __atomic_load_n(cell, __ATOMIC_RELAXED);
    for (;;) {
        uint64_t full = old > now ? old : now;
        if (full + l->interval - now > l->window)
            return false;
        if (__atomic_compare_exchange_n(cell, &old, full + l->interval, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return true;
    }
}

typedef struct floor_table {
    uint64_t *cells; /* eight a line: tag in the upper half, time in the lower */
    uint64_t lines;
} floor_table;

/* The cell of tag in a line, or CELLS; without branches. */
static inline unsigned floor_search(const uint64_t *line, uint32_t tag)
{
#if defined(__SSE2__) && defined(__GNUC__)
    const float *p = (const float *)(const void *)line;
    __m128i want = _mm_set1_epi32((int)tag);
    __m128 a = _mm_shuffle_ps(_mm_load_ps(p), _mm_load_ps(p + 4), 0xdd);
    __m128 b = _mm_shuffle_ps(_mm_load_ps(p + 8), _mm_load_ps(p + 12), 0xdd);
    __m128i same = _mm_packs_epi32(_mm_cmpeq_epi32(_mm_castps_si128(a), want),
                                   _mm_cmpeq_epi32(_mm_castps_si128(b), want));
    unsigned bits = (unsigned)_mm_movemask_epi8(_mm_packs_epi16(same, same)) & 0xff;
    return bits ? (unsigned)__builtin_ctz(bits) : CELLS;
#else
    unsigned i, at = CELLS;
    for (i = 0; i < CELLS; i++)
        at = (uint32_t)(line[i] >> 32) == tag ? i : at;
    return at;
#endif
}

static inline uint64_t *floor_home(const floor_table *t, uint64_t hash)
{
    return t->cells + (size_t)((hash >> 32) * t->lines >> 32) * CELLS;
}

static inline uint32_t floor_tag(uint64_t hash)
{
    return (uint32_t)hash | 1;
}

static inline uint64_t *floor_find(const floor_table *t, uint64_t hash)
{
    uint64_t *line = floor_home(t, hash);
    for (;;) {
        unsigned at = floor_search(line, floor_tag(hash));
        if (at < CELLS)
            return line + at;
        line += CELLS;
        if (line == t->cells + t->lines * CELLS)
            line = t->cells;
    }
}

static inline bool floor_decide(uint64_t *cell, const floor_limit *l, uint32_t now)
{
    uint64_t old = __atomic_load_n(cell, __ATOMIC_RELAXED);
    for (;;) {
        uint32_t full = (uint32_t)old > now ? (uint32_t)old : now;
        uint32_t next = full + (uint32_t)l->interval;
        if (next - now > (uint32_t)l->window)
            return false;
        if (__atomic_compare_exchange_n(cell, &old, (old & ~(uint64_t)UINT32_MAX) | next, true,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return true;
    }
}

/* A new key replaces the oldest of its line. */
static inline bool floor_replace(const floor_table *t, uint64_t hash, const floor_limit *l,
                                 uint32_t now)
{
    uint64_t *line = floor_home(t, hash), old;
    unsigned i, at = floor_search(line, floor_tag(hash));
    uint32_t least = (uint32_t)line[0];
    if (at < CELLS)
        return floor_decide(&line[at], l, now);
    for (at = 0, i = 1; i < CELLS; i++) {
        at = (uint32_t)line[i] < least ? i : at;
        least = (uint32_t)line[i] < least ? (uint32_t)line[i] : least;
    }
    old = line[at];
    return __atomic_compare_exchange_n(
        &line[at], &old, (uint64_t)floor_tag(hash) << 32 | (now + (uint32_t)l->interval), false,
        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void floor_insert(floor_table *t, uint64_t hash)
{
    uint64_t tag = floor_tag(hash);
    uint64_t *line = floor_home(t, hash);
    unsigned i;
    for (;;) {
        for (i = 0; i < CELLS; i++)
            if (line[i] == 0 || line[i] >> 32 == tag) {
                line[i] = tag << 32;
                return;
            }
        line += CELLS;
        if (line == t->cells + t->lines * CELLS)
            line = t->cells;
    }
}

/* ---- what the rows run on ---- */

/* One set of keys: the floor's tables and ours, and a long random stream of requests. */
typedef struct bench_keys {
    size_t count, stream_len;
    bench_key *stream;
    uint64_t *hashes; /* of the stream, as the fast table makes them */
    ratelimit_table *sip, *fast, *deny_sip, *deny, *part;
    ratelimit_table *own_sip, *own_fast; /* whose times are the clock's */
    ratelimit_table *leased, *refused;   /* of tiers */
    floor_table floor, floor_deny, floor_sip;
} bench_keys;

typedef struct bench_row bench_row;
typedef void (*bench_run)(bench_row *row, uint64_t count);

struct bench_row {
    const char *what;
    bench_run run;
    bench_row *floor; /* NULL: it is one, or a title */
    double aim;       /* 0: none */
    const bench_keys *keys;
    ratelimit_table *table;
    const floor_table *floor_table;
    const ratelimit_limit *limit;
    floor_limit floor_limit;
    uint64_t count; /* calls per sample */
    uint64_t step;  /* ns from call to call, one bucket */
    bool denies;    /* else all calls pass */
    bool any;       /* some pass */
    bool cold;      /* more memory than a cache has */
    int threads;    /* 0 counts as 1 */
    bool chosen;
    /* state */
    ratelimit_bucket *bucket;
    uint64_t *cell;
    size_t at; /* in the stream */
    uint64_t now, passed;
    double *ns; /* one of each round */
};

static bench_row rows[MAX_ROWS];
static size_t row_count;
static volatile uint64_t sink;

static const ratelimit_limit whole = RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit seven = RATELIMIT_LIMIT(7, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit sixty = RATELIMIT_LIMIT(60, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit hourly = RATELIMIT_LIMIT(1, RATELIMIT_HOUR, 1);

/* Floors with keys count time in 1,024 ns. */
static const floor_limit open_cell = {1, 1u << 30}, shut_cell = {1u << 30, 1u << 30};

static uint32_t floor_time(uint64_t now)
{
    return (uint32_t)(now >> 10);
}

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * RATELIMIT_SECOND + (uint64_t)t.tv_nsec;
}

/* ---- rows: one bucket ---- */

static void run_floor_bucket(bench_row *row, uint64_t count)
{
    const floor_limit l = row->floor_limit;
    uint64_t *cell = row->cell, i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += STEP) {
        passed += floor_take(cell, &l, now);
        BENCH_BARRIER();
    }
    row->now = now;
    row->passed += passed;
}

static void run_floor_shared(bench_row *row, uint64_t count)
{
    const floor_limit l = row->floor_limit;
    uint64_t *cell = row->cell, i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += STEP) {
        passed += floor_take_shared(cell, &l, now);
        BENCH_BARRIER();
    }
    row->now = now;
    row->passed += passed;
}

static void run_bucket(bench_row *row, uint64_t count)
{
    const ratelimit_limit *limit = row->limit;
    const uint64_t step = row->step;
    ratelimit_bucket *b = row->bucket;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += step)
        passed += ratelimit_bucket_take(b, limit, 1, now, NULL);
    row->now = now;
    row->passed += passed;
}

static void run_bucket_inline(bench_row *row, uint64_t count)
{
    row->passed += (row->denies ? static_take_hourly : static_take_whole)(row->bucket, count,
                                                                          row->now, row->step);
    row->now += count * row->step;
}

static void run_bucket_result(bench_row *row, uint64_t count)
{
    const ratelimit_limit *limit = row->limit;
    const uint64_t step = row->step;
    ratelimit_bucket *b = row->bucket;
    uint64_t i, now = row->now, passed = 0, sum = 0;
    ratelimit_result r;
    for (i = 0; i < count; i++, now += step) {
        passed += ratelimit_bucket_take(b, limit, 1, now, &r);
        sum += r.remaining;
    }
    sink = sum;
    row->now = now;
    row->passed += passed;
}

static void run_shared(bench_row *row, uint64_t count)
{
    const ratelimit_limit *limit = row->limit;
    const uint64_t step = row->step;
    ratelimit_bucket *b = row->bucket;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += step)
        passed += ratelimit_bucket_take_shared(b, limit, 1, now, NULL);
    row->now = now;
    row->passed += passed;
}

/* ---- rows: keys ---- */

/* Samples go on in the stream where the last one ended, so that cold keys stay cold. */
static const bench_key *stream_part(bench_row *row, uint64_t count)
{
    if (row->at + count > row->keys->stream_len)
        row->at = 0;
    row->at += count;
    return &row->keys->stream[row->at - count];
}

/* All tables live in one time. */
static uint64_t table_time = RATELIMIT_SECOND;

static void run_floor_keyed(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += STEP)
        passed += floor_decide(floor_find(&t, fast_hash(&key[i])), &l, floor_time(now));
    row->passed += passed;
}

static void run_floor_sip(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += STEP)
        passed += floor_decide(floor_find(&t, sip_hash(&key[i])), &l, floor_time(now));
    row->passed += passed;
}

static void run_floor_batch(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, j, now = row->now, passed = 0, hash[BATCH];
    for (i = 0; i < count; i += BATCH, now += BATCH * STEP) {
        for (j = 0; j < BATCH; j++) {
            hash[j] = fast_hash(&key[i + j]);
            __builtin_prefetch(floor_home(&t, hash[j]), 1);
        }
        for (j = 0; j < BATCH; j++)
            passed += floor_decide(floor_find(&t, hash[j]), &l, floor_time(now));
    }
    row->passed += passed;
}

static void run_floor_clock(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, passed = 0;
    for (i = 0; i < count; i++) {
        uint64_t now = read_clock(CLOCK_MONOTONIC) & 0x3fffffff;
        passed += floor_decide(floor_find(&t, fast_hash(&key[i])), &l, floor_time(now));
    }
    row->passed += passed;
}

static void run_floor_flood(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += STEP)
        passed += floor_replace(&t, fast_hash(&key[i]), &l, floor_time(now));
    row->passed += passed;
}

static void run_table(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const ratelimit_limit *limit = row->limit;
    ratelimit_table *t = row->table;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += STEP)
        passed += ratelimit_table_take(t, key[i].text, key[i].len, limit, 1, now, NULL);
    row->passed += passed;
}

static void run_table_result(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const ratelimit_limit *limit = row->limit;
    ratelimit_table *t = row->table;
    uint64_t i, now = row->now, passed = 0, sum = 0;
    ratelimit_result r;
    for (i = 0; i < count; i++, now += STEP) {
        passed += ratelimit_table_take(t, key[i].text, key[i].len, limit, 1, now, &r);
        sum += r.remaining;
    }
    sink = sum;
    row->passed += passed;
}

static void run_hash(bench_row *row, uint64_t count)
{
    const uint64_t *hash = row->keys->hashes + (stream_part(row, count) - row->keys->stream);
    const ratelimit_limit *limit = row->limit;
    ratelimit_table *t = row->table;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += STEP)
        passed += ratelimit_table_take_hash(t, hash[i], limit, 1, now, NULL);
    row->passed += passed;
}

static void run_hash_result(bench_row *row, uint64_t count)
{
    const uint64_t *hash = row->keys->hashes + (stream_part(row, count) - row->keys->stream);
    const ratelimit_limit *limit = row->limit;
    ratelimit_table *t = row->table;
    uint64_t i, now = row->now, passed = 0, sum = 0;
    ratelimit_result r;
    for (i = 0; i < count; i++, now += STEP) {
        passed += ratelimit_table_take_hash(t, hash[i], limit, 1, now, &r);
        sum += r.remaining;
    }
    sink = sum;
    row->passed += passed;
}

static void run_batch(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    ratelimit_request q[BATCH];
    bool allowed[BATCH];
    uint64_t i, j, now = row->now, passed = 0;
    for (j = 0; j < BATCH; j++) {
        ratelimit_request one = RATELIMIT_REQUEST(NULL, 0, NULL, 1);
        q[j] = one;
        q[j].limit = row->limit;
    }
    for (i = 0; i < count; i += BATCH, now += BATCH * STEP) {
        for (j = 0; j < BATCH; j++) {
            q[j].key = key[i + j].text;
            q[j].key_len = key[i + j].len;
        }
        passed += ratelimit_table_take_batch(row->table, q, allowed, BATCH, now);
    }
    row->passed += passed;
}

static void run_allow(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const ratelimit_limit *limit = row->limit;
    ratelimit_limiter l;
    uint64_t i, passed = 0;
    memset(&l, 0, sizeof l);
    if (ratelimit_init(&l, ratelimit_table_store(row->table, NULL, NULL)) != RATELIMIT_OK)
        fail("no limiter");
    for (i = 0; i < count; i++)
        passed += ratelimit_allow(&l, key[i].text, limit);
    row->passed += passed;
}

/* A tier in front of a store that takes no time: grants all, or refuses for a day. */
static uint64_t tier_time;

static uint64_t tier_clock(void *self)
{
    return *(const uint64_t *)self;
}

static void tier_behind(const ratelimit_store *store, const ratelimit_request *req,
                        ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    const bool refuses = store->self != NULL;
    size_t i;
    (void)mode;
    for (i = 0; i < count; i++) {
        memset(&res[i], 0, sizeof res[i]);
        res[i].allowed = !refuses;
        res[i].status = refuses ? RATELIMIT_DENIED : RATELIMIT_OK;
        res[i].burst = req[i].limit->burst;
        res[i].remaining = refuses ? 0 : res[i].burst / 2;
        res[i].taken = refuses ? 0 : req[i].n;
        res[i].retry_after_ns = res[i].reset_after_ns = refuses ? RATELIMIT_DAY : 0;
    }
}

/* What the tier answers without that store counts as passed. */
static uint64_t tier_takes(ratelimit_table *table, const ratelimit_limit *limit, bool refuses,
                           const bench_key *key, uint64_t count)
{
    ratelimit_request q = RATELIMIT_REQUEST(NULL, 0, NULL, 1);
    uint64_t i, here = 0;
    ratelimit_tier tier;
    ratelimit_store store;
    ratelimit_result r;
    memset(&tier, 0, sizeof tier);
    tier.store.decide = tier_behind;
    tier.store.self = refuses ? &tier_time : NULL;
    tier.table = table;
    tier.clock = tier_clock;
    tier.clock_self = &tier_time;
    tier.trust_ns = tier.lease_ns = RATELIMIT_DAY;
    tier.lease_percent = refuses ? 0 : 1;
    store = ratelimit_tier_store(&tier);
    q.limit = limit;
    for (i = 0; i < count; i++, tier_time += STEP) {
        q.key = key[i].text;
        q.key_len = key[i].len;
        store.decide(&store, &q, &r, 1, RATELIMIT_EACH);
        here += r.source == (refuses ? RATELIMIT_FROM_REFUSAL_CACHE : RATELIMIT_FROM_LEASE);
    }
    return here;
}

static void run_lease(bench_row *row, uint64_t count)
{
    tier_time = row->now;
    row->passed += tier_takes(row->table, row->limit, false, stream_part(row, count), count);
}

static void run_refusal(bench_row *row, uint64_t count)
{
    tier_time = row->now;
    row->passed += tier_takes(row->table, row->limit, true, stream_part(row, count), count);
}

/* The first take of a key asks the store, the second one for a lease. */
static void fill_tier(ratelimit_table *table, bool refuses, size_t keys)
{
    bench_key key;
    size_t i;
    tier_time = table_time;
    for (i = 0; i < 3 * keys; i++) {
        make_key(&key, i / 3);
        (void)tier_takes(table, &whole, refuses, &key, 1);
    }
}

/* ---- sampling ---- */

typedef struct bench_worker {
    bench_row row; /* with a cursor and a time of its own */
    int which;
    uint32_t *waiting;
    uint64_t from, to;
} bench_worker;

/* Two threads must have two processors, or they wait for each other. */
static void take_processor(int which)
{
#if defined(__linux__)
    cpu_set_t all, one;
    size_t i;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2)
        return;
    for (i = 0; !CPU_ISSET(i, &all) || which--; i++)
        continue;
    CPU_ZERO(&one);
    CPU_SET(i, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
#else
    (void)which;
#endif
}

static void *work(void *arg)
{
    bench_worker *w = arg;
    take_processor(w->which);
    (void)__atomic_sub_fetch(w->waiting, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(w->waiting, __ATOMIC_ACQUIRE))
        continue;
    w->from = read_clock(CLOCK_MONOTONIC);
    w->row.run(&w->row, w->row.count);
    w->to = read_clock(CLOCK_MONOTONIC);
    return NULL;
}

/* ns of one thread's call while two run; below 0 if they did not run side by side. */
static double try_threads(bench_row *row)
{
    pthread_t thread[2];
    bench_worker w[2];
    uint32_t waiting = 2;
    uint64_t both, one, other;
    int i;
    for (i = 0; i < 2; i++) {
        memset(&w[i], 0, sizeof w[i]);
        w[i].row = *row;
        w[i].row.passed = 0;
        if (row->keys)
            w[i].row.at = (row->at + (size_t)i * row->keys->stream_len / 2) % row->keys->stream_len;
        w[i].which = i;
        w[i].waiting = &waiting;
        if (pthread_create(&thread[i], NULL, work, &w[i]) != 0)
            fail("no thread");
    }
    for (i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    row->passed = w[0].row.passed + w[1].row.passed;
    row->at = w[0].row.at;
    row->now = w[0].row.now;
    one = w[0].to - w[0].from;
    other = w[1].to - w[1].from;
    both =
        (w[0].to < w[1].to ? w[0].to : w[1].to) - (w[0].from > w[1].from ? w[0].from : w[1].from);
    if ((int64_t)both < 0 || both * 10 < (one > other ? one : other) * 8)
        return -1;
    return (double)(one + other) / 2 / (double)row->count;
}

static double sample_threads(bench_row *row)
{
    double ns = -1;
    int tries;
    for (tries = 0; ns < 0 && tries < 50; tries++)
        ns = try_threads(row);
    return ns < 0 ? 1e9 : ns;
}

static double sample_one(bench_row *row)
{
    uint64_t from;
    row->passed = 0;
    from = read_clock(CLOCK_THREAD_CPUTIME_ID);
    row->run(row, row->count);
    return (double)(read_clock(CLOCK_THREAD_CPUTIME_ID) - from) / (double)row->count;
}

static void sample(bench_row *row, int round)
{
    uint64_t expected = row->denies ? 0 : row->count * (row->threads == 2 ? 2 : 1), off;
    if (row->keys)
        row->now = table_time;
    if (!row->cold)
        row->run(row, row->count); /* other rows have taken the cache since */
    if (row->keys)
        row->now = table_time += row->count * STEP;
    row->ns[round] = row->threads == 2 ? sample_threads(row) : sample_one(row);
    if (row->keys)
        table_time += row->count * STEP;
    /* fewer than one key in 1,000 was forced out while the table was filled, and passes again */
    off = row->passed > expected ? row->passed - expected : expected - row->passed;
    if (!row->any && off > (row->table ? row->count / 500 : 0)) {
        printf("%s: %" PRIu64 " passed, not %" PRIu64 "\n", row->what, row->passed, expected);
        exit(1);
    }
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* ---- the list ---- */

typedef struct bench_scale {
    bool quick, hot_only;
    int rounds;
    uint64_t hot, cold; /* calls per sample */
} bench_scale;

static bench_row *add(const char *what, bench_run run, uint64_t count, bench_row *floor, double aim)
{
    bench_row *row = &rows[row_count];
    if (++row_count > MAX_ROWS)
        fail("too many rows");
    row->what = what;
    row->run = run;
    row->count = count / BATCH * BATCH;
    row->floor = floor;
    row->aim = aim;
    row->now = RATELIMIT_DAY;
    row->step = STEP;
    return row;
}

static bench_row *add_cell(bench_run run, uint64_t count, bool denies)
{
    static uint64_t memory[16][16];
    static size_t used;
    bench_row *row = add("floor", run, count, NULL, 0);
    row->floor_limit.interval = denies ? RATELIMIT_HOUR : 1000;
    row->floor_limit.window = denies ? RATELIMIT_HOUR : RATELIMIT_DAY;
    row->denies = denies;
    row->cell = memory[used++];
    *row->cell = denies ? row->now + RATELIMIT_HOUR : 0;
    return row;
}

static bench_row *add_bucket(const char *what, bench_run run, bench_row *floor, double aim,
                             const ratelimit_limit *limit)
{
    static ratelimit_bucket memory[24][8];
    static size_t used;
    bench_row *row = add(what, run, floor->count, floor, aim);
    row->limit = limit;
    row->denies = floor->denies;
    row->bucket = memory[used++];
    if (limit != &whole && limit != &hourly) /* 7/s, 60/s: time must go on faster */
        row->step = limit->interval_ns + 1;
    if (row->denies)
        (void)ratelimit_bucket_take(row->bucket, limit, 1, row->now, NULL);
    return row;
}

static bench_row *add_floor(bench_run run, uint64_t count, const bench_keys *keys,
                            const floor_table *table)
{
    bench_row *row = add("floor", run, count, NULL, 0);
    row->keys = keys;
    row->floor_table = table;
    row->denies = table == &keys->floor_deny;
    row->cold = keys->count > HOT_KEYS;
    row->floor_limit = row->denies ? shut_cell : open_cell;
    return row;
}

static bench_row *add_table(const char *what, bench_run run, bench_row *floor, double aim,
                            ratelimit_table *table)
{
    bench_row *row = add(what, run, floor->count, floor, aim);
    row->keys = floor->keys;
    row->cold = floor->cold;
    row->table = table;
    row->denies = table == row->keys->deny || table == row->keys->deny_sip;
    row->limit = row->denies ? &hourly : table == row->keys->part ? &seven : &whole;
    return row;
}

static bench_row *in_two_threads(bench_row *row)
{
    row->threads = 2;
    return row;
}

static void add_buckets(uint64_t count)
{
    bench_row *open = add_cell(run_floor_bucket, count, false);
    bench_row *shut = add_cell(run_floor_bucket, count, true);
    add("One bucket", NULL, 0, NULL, 0);
    add_bucket("take, allowed", run_bucket, open, 1.6, &whole);
    add_bucket("take, denied", run_bucket, shut, 2.7, &hourly);
    add_bucket("take inline (RATELIMIT_STATIC), allowed", run_bucket_inline, open, 1.1, &whole);
    add_bucket("take inline, denied", run_bucket_inline, shut, 1.5, &hourly);
    add_bucket("take with the result, allowed", run_bucket_result, open, 6, &whole);
    add_bucket("take with the result, denied", run_bucket_result, shut, 0, &hourly);
    add_bucket("take, 60/s (fraction of a ns), allowed", run_bucket, open, 0, &sixty);
    add_bucket("take, 7/s (fraction of a ns), allowed", run_bucket, open, 0, &seven);
    add_bucket("take with the result, 7/s, allowed", run_bucket_result, open, 0, &seven);
    open = add_cell(run_floor_shared, count, false);
    shut = add_cell(run_floor_shared, count, true);
    add("One bucket, shared between threads", NULL, 0, NULL, 0);
    add_bucket("take_shared, allowed", run_shared, open, 1.1, &whole);
    add_bucket("take_shared, denied", run_shared, shut, 0, &hourly);
    add_bucket("take_shared, 7/s, allowed", run_shared, open, 0, &seven);
    open = in_two_threads(add_cell(run_floor_shared, count, false));
    in_two_threads(add_bucket("take_shared, two threads, allowed", run_shared, open, 1.1, &whole));
}

static void add_hot(uint64_t count, const bench_keys *k)
{
    bench_row *take;
    bench_row *sip = add_floor(run_floor_sip, count, k, &k->floor_sip);
    bench_row *open = add_floor(run_floor_keyed, count, k, &k->floor);
    bench_row *shut = add_floor(run_floor_keyed, count, k, &k->floor_deny);
    bench_row *batch = add_floor(run_floor_batch, count, k, &k->floor);
    bench_row *two = in_two_threads(add_floor(run_floor_keyed, count, k, &k->floor));
    bench_row *clock = add_floor(run_floor_clock, count / 4, k, &k->floor);
    add("A table, 10,000 keys, SipHash (to the floor with SipHash)", NULL, 0, NULL, 0);
    take = add_table("table_take, allowed", run_table, sip, 1.6, k->sip);
    add("A table, 10,000 keys, RATELIMIT_HASH_FAST", NULL, 0, NULL, 0);
    add_table("table_take, allowed", run_table, open, 1.4, k->fast);
    add_table("table_take, denied", run_table, shut, 1.9, k->deny);
    add_table("table_take with the result, allowed", run_table_result, open, 2.2, k->fast);
    add_table("table_take with the result, denied", run_table_result, shut, 0, k->deny);
    add_table("table_take_hash, allowed", run_hash, open, 1.4, k->fast);
    add_table("table_take_hash, denied", run_hash, shut, 1.9, k->deny);
    add_table("table_take_hash with the result, allowed", run_hash_result, open, 2.2, k->fast);
    add_table("table_take, 7/s (fraction of a ns), allowed", run_table, open, 0, k->part);
    in_two_threads(add_table("table_take, two threads, allowed", run_table, two, 1.45, k->fast));
    add_table("table_take_batch of 32, allowed", run_batch, batch, 1.3, k->fast);
    add_table("ratelimit_allow, its own clock, allowed", run_allow, clock, 1.6, k->own_fast)->any =
        true;
    add_table("ratelimit_allow, SipHash, allowed", run_allow, clock, 0, k->own_sip)->any = true;
    add("A tier that answers by itself, 10,000 keys, SipHash (floor: table_take)", NULL, 0, NULL,
        0);
    add_table("a lease serves", run_lease, take, 2.5, k->leased);
    add_table("a cached refusal", run_refusal, take, 2.5, k->refused);
}

static void add_cold(const char *title, uint64_t count, const bench_keys *k, double aim,
                     double aim_batch)
{
    bench_row *one = add_floor(run_floor_keyed, count, k, &k->floor);
    bench_row *batch = add_floor(run_floor_batch, count, k, &k->floor);
    add(title, NULL, 0, NULL, 0);
    add_table("table_take, allowed", run_table, one, aim, k->fast);
    add_table("table_take_batch of 32, allowed", run_batch, batch, aim_batch, k->fast);
}

static void add_flood(uint64_t count, const bench_keys *k, ratelimit_table **table)
{
    static const char *const name[] = {"EVICT", "EVICT_LAST_SEEN", "INHERIT", "REFUSE"};
    bench_row *floor = add_floor(run_floor_flood, count, k, &k->floor), *row;
    int i;
    floor->floor_limit = shut_cell;
    floor->any = true;
    floor->cold = false;
    add("A flood: each key new, a full table for 100,000 (floor: replace the oldest of a line)",
        NULL, 0, NULL, 0);
    for (i = 0; i < 4; i++) {
        row = add_table(name[i], run_table, floor, 4, table[i]);
        row->limit = &hourly;
        row->any = true;
    }
}

/* ---- building the tables ---- */

static ratelimit_table *make_table(size_t keys, ratelimit_hash hash, ratelimit_full when_full)
{
    ratelimit_table_options options;
    ratelimit_table *table;
    size_t bytes = ratelimit_table_bytes(keys);
    memset(&options, 0, sizeof options);
    options.seed[0] = UINT64_C(0x0123456789abcdef);
    options.seed[1] = UINT64_C(0xfedcba9876543210);
    options.hash = hash;
    options.when_full = when_full;
    if (ratelimit_table_init(&table, get_memory(bytes), bytes, &options) != RATELIMIT_OK)
        fail("no table");
    return table;
}

static void make_floor(floor_table *t, size_t keys)
{
    t->lines = (uint64_t)keys * 10 / 6 / CELLS + 1; /* load 0.6 */
    t->cells = get_memory((size_t)t->lines * CELLS * sizeof *t->cells);
}

/* One take of each key. */
static void fill(ratelimit_table *t, const ratelimit_limit *limit, size_t keys)
{
    bench_key key;
    size_t i;
    for (i = 0; t && i < keys; i++) {
        make_key(&key, i);
        (void)ratelimit_table_take(t, key.text, key.len, limit, 1, table_time, NULL);
    }
}

static void fill_floor(floor_table *t, bool sip, bool deny, size_t keys)
{
    bench_key key;
    size_t i;
    for (i = 0; i < keys; i++) {
        uint64_t hash;
        make_key(&key, i);
        hash = sip ? sip_hash(&key) : fast_hash(&key);
        floor_insert(t, hash);
        if (deny)
            (void)floor_decide(floor_find(t, hash), &shut_cell, floor_time(table_time));
    }
}

static void make_keys(bench_keys *k, size_t count, size_t stream_len, bool all)
{
    size_t i;
    k->count = count;
    k->stream_len = stream_len;
    k->stream = get_memory(stream_len * sizeof *k->stream);
    for (i = 0; i < stream_len; i++)
        make_key(&k->stream[i], (size_t)(random64() % count));
    make_floor(&k->floor, count);
    fill_floor(&k->floor, false, false, count);
    k->fast = make_table(count, RATELIMIT_HASH_FAST, RATELIMIT_EVICT);
    fill(k->fast, &whole, count);
    if (!all)
        return;
    make_floor(&k->floor_deny, count);
    fill_floor(&k->floor_deny, false, true, count);
    make_floor(&k->floor_sip, count);
    fill_floor(&k->floor_sip, true, false, count);
    k->sip = make_table(count, RATELIMIT_HASH_SIP, RATELIMIT_EVICT);
    fill(k->sip, &whole, count);
    k->part = make_table(count, RATELIMIT_HASH_FAST, RATELIMIT_EVICT);
    fill(k->part, &seven, count);
    k->own_sip = make_table(count, RATELIMIT_HASH_SIP, RATELIMIT_EVICT);
    k->own_fast = make_table(count, RATELIMIT_HASH_FAST, RATELIMIT_EVICT);
    k->leased = make_table(count, RATELIMIT_HASH_SIP, RATELIMIT_EVICT);
    k->refused = make_table(count, RATELIMIT_HASH_SIP, RATELIMIT_EVICT);
    fill_tier(k->leased, false, count);
    fill_tier(k->refused, true, count);
    k->deny = make_table(count, RATELIMIT_HASH_FAST, RATELIMIT_EVICT);
    fill(k->deny, &hourly, count);
    k->deny_sip = make_table(count, RATELIMIT_HASH_SIP, RATELIMIT_EVICT);
    fill(k->deny_sip, &hourly, count);
    k->hashes = get_memory(stream_len * sizeof *k->hashes);
    for (i = 0; i < stream_len; i++)
        k->hashes[i] = ratelimit_table_hash(k->fast, k->stream[i].text, k->stream[i].len);
}

/* Tables that are full, and keys that come once in a million requests. */
static void make_flood(bench_keys *k, ratelimit_table **table, size_t count, size_t stream_len)
{
    size_t i, j;
    k->count = stream_len;
    k->stream_len = stream_len;
    k->stream = get_memory(stream_len * sizeof *k->stream);
    for (i = 0; i < stream_len; i++)
        make_key(&k->stream[i], i);
    make_floor(&k->floor, count);
    fill_floor(&k->floor, false, false, count);
    for (i = 0; i < 4; i++) {
        table[i] = make_table(count, RATELIMIT_HASH_FAST, (ratelimit_full)i);
        for (j = 0; j < 6 * count; j++)
            (void)ratelimit_table_take(table[i], &j, sizeof j, &hourly, 1, table_time + j * STEP,
                                       NULL);
    }
}

/* ---- printing ---- */

static void print_processor(void)
{
    static const char *const names[] = {"model name", "Model",      "Hardware", "CPU implementer",
                                        "CPU part",   "cpu family", "model\t",  "cpu MHz"};
    char line[256], seen[8] = {0};
    FILE *file = fopen("/proc/cpuinfo", "r");
    size_t i;
    printf("processor ");
    while (file && fgets(line, sizeof line, file))
        for (i = 0; i < sizeof names / sizeof *names; i++)
            if (!seen[i] && strncmp(line, names[i], strlen(names[i])) == 0 && strchr(line, ':')) {
                seen[i] = 1;
                printf(" %s%.*s", i ? names[i] : "", (int)strcspn(strchr(line, ':') + 1, "\n"),
                       strchr(line, ':') + 1);
            }
    if (file)
        fclose(file);
    printf("\n");
}

static void print_commit(void)
{
    char line[80] = "unknown";
    FILE *git = popen("git rev-parse --short HEAD 2>/dev/null", "r");
    if (git) {
        if (!fgets(line, sizeof line, git) || line[0] == '\n')
            strcpy(line, "unknown");
        (void)pclose(git);
    }
    printf("commit     %.*s\n", (int)strcspn(line, "\n"), line);
}

static void print_heading(void)
{
#if defined(__clang__)
    printf("compiler   clang %s\n", __clang_version__);
#elif defined(__GNUC__)
    printf("compiler   gcc %s\n", __VERSION__);
#endif
    printf("flags      %s\n", BENCH_FLAGS);
    print_processor();
    print_commit();
    fflush(stdout);
}

static void print_rows(int rounds)
{
    int reached = 0, aims = 0;
    size_t i;
    printf("rounds     %d\n\n%-46s %15s %15s\n%-46s %7s %7s %7s %7s %7s %5s\n", rounds, "ns",
           "floor", "ratelimit.h", "", "low", "median", "low", "median", "ratio", "aim");
    for (i = 0; i < row_count; i++)
        if (rows[i].chosen && rows[i].run)
            qsort(rows[i].ns, (size_t)rounds, sizeof *rows[i].ns, compare);
    for (i = 0; i < row_count; i++) {
        const bench_row *row = &rows[i], *floor = row->floor;
        double ratio;
        int at;
        if (!row->run)
            printf("\n%s\n", row->what);
        if (!row->chosen || !row->run || !floor)
            continue;
        at = row->threads == 2 ? rounds / 2 : rounds / 10;
        ratio = row->ns[at] / floor->ns[at];
        printf("  %-44s %7.2f %7.2f %7.2f %7.2f %7.2f", row->what, floor->ns[rounds / 10],
               floor->ns[rounds / 2], row->ns[rounds / 10], row->ns[rounds / 2], ratio);
        if (row->aim > 0)
            printf(" %5.2f  %s", row->aim, ratio <= row->aim ? "reached" : "NOT REACHED");
        printf("\n");
        aims += row->aim > 0;
        reached += row->aim > 0 && ratio <= row->aim;
    }
    printf("\n%d of %d aims reached\n", reached, aims);
}

/* The rows that are wanted, and their floors. */
static void choose(int count, char **words)
{
    size_t i;
    int j;
    for (i = 0; i < row_count; i++) {
        bool wanted = count == 0;
        for (j = 0; j < count; j++)
            wanted = wanted || strstr(rows[i].what, words[j]);
        if (!rows[i].floor || !wanted)
            continue;
        rows[i].chosen = rows[i].floor->chosen = true;
        if (rows[i].floor->floor)
            rows[i].floor->floor->chosen = true;
    }
    for (i = 0; i < row_count; i++)
        if (rows[i].chosen)
            rows[i].ns = calloc(MAX_ROUNDS, sizeof *rows[i].ns);
}

int main(int argc, char **argv)
{
    static bench_keys small, medium, large, huge, new_keys;
    ratelimit_table *flooded[4];
    bench_scale s = {false, false, MAX_ROUNDS, 32768, 65536};
    uint64_t from;
    int round;
    size_t i;
    if (argc > 1 && strcmp(argv[1], "--quick") == 0) {
        s.quick = true;
        s.rounds = 2;
        s.hot = s.cold = 16384;
    }
    s.hot_only = argc > 1 && strcmp(argv[1], "--hot") == 0;
    if (s.quick || s.hot_only) {
        argc--;
        argv++;
    }
    print_heading();
    make_keys(&small, HOT_KEYS, 262144, true);
    add_buckets(s.hot * 2);
    add_hot(s.hot, &small);
    if (!s.hot_only) {
        make_keys(&medium, 100000, s.quick ? 65536 : 1000000, false);
        add_cold("A table, 100,000 keys, RATELIMIT_HASH_FAST", s.cold, &medium, 2.6, 0);
        make_keys(&large, s.quick ? 200000 : 1000000, s.quick ? 65536 : 2000000, false);
        add_cold(s.quick ? "200,000 keys (quick run)"
                         : "A table, a million keys, RATELIMIT_HASH_FAST",
                 s.cold, &large, 1.7, 1.5);
        make_flood(&new_keys, flooded, 100000, s.quick ? 65536 : 2000000);
        add_flood(s.hot / 2, &new_keys, flooded);
    }
    if (!s.hot_only && !s.quick) {
        make_keys(&huge, 10000000, 4000000, false);
        add_cold("A table, ten million keys, RATELIMIT_HASH_FAST", s.cold, &huge, 0, 1.4);
    }
    choose(argc - 1, argv + 1);
    for (i = 0; i < row_count; i++) /* warm up */
        if (rows[i].chosen && rows[i].run)
            sample(&rows[i], 0);
    from = read_clock(CLOCK_MONOTONIC);
    for (round = 0; round < s.rounds && read_clock(CLOCK_MONOTONIC) - from < SAMPLING_NS; round++)
        for (i = 0; i < row_count; i++)
            if (rows[i].chosen && rows[i].run)
                sample(&rows[i], round);
    print_rows(round);
    return 0;
}

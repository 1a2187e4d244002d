/* bench.c - what a decision costs, beside the floor of the same work in the same run.
 *
 *     bench            all rows, under a minute
 *     bench --quick    small tables and two rounds: does it still run?
 *
 * Each row is sampled once in every round, so that a bad minute of the machine hits all of them
 * alike; the columns are the median and the smallest sample, and the median of the rounds' own
 * ratios to the row's floor. Compare ratios, not ns of different runs. One-thread rows are measured
 * in CPU time of the thread, two-thread rows by the wall clock.
 *
 * Floors are programs of our own without expiry, eviction, costs or results: a GCRA in one 8-byte
 * word, and for keys 64-byte lines of eight cells (32-bit tag, 32-bit time), found by a fast hash
 * and a search without branches. "latency" rows make the next key depend on this answer: what one
 * isolated call costs. All others let the CPU overlap calls.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* madvise: large pages, for floors and tables alike */
#define RATELIMIT_IMPLEMENTATION
#include "../../ratelimit.h"
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
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

enum { MAX_ROUNDS = 31, MAX_ROWS = 128, BATCH = 32, CELLS = 8, RING = 256, HOT_KEYS = 10000 };

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

static uint64_t random_state = 1;

static uint64_t random64(void) /* splitmix64 */
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

typedef struct bench_key {
    char text[15]; /* user:123456 */
    unsigned char len;
} bench_key;

static void make_key(bench_key *key, size_t number)
{
    char text[32];
    int len = snprintf(text, sizeof text, "user:%06zu", number);
    if (len < 0 || (size_t)len > sizeof key->text)
        fail("a key is too long");
    memcpy(key->text, text, (size_t)len);
    key->len = (unsigned char)len;
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

static inline uint64_t read32(const char *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Two multiplications for up to 16 bytes, one more for each further 16; in the manner of wyhash. */
static inline uint64_t fast_hash(const char *key, size_t len)
{
    uint64_t seed = UINT64_C(0xa0761d6478bd642f), a, b;
    size_t left = len;
    if (len >= 8) {
        for (; left > 16; left -= 16, key += 16)
            seed = mix(read64(key) ^ UINT64_C(0xe7037ed1a0b428db), read64(key + 8) ^ seed);
        a = read64(left < 8 ? key + left - 8 : key);
        b = read64(key + left - 8);
    } else if (len >= 4) {
        a = read32(key);
        b = read32(key + len - 4);
    } else {
        a = (uint64_t)(unsigned char)key[0] << 16 | (uint64_t)(unsigned char)key[len / 2] << 8;
        b = (unsigned char)key[len - 1];
    }
    return mix(mix(a ^ UINT64_C(0xe7037ed1a0b428db), b ^ seed), len ^ UINT64_C(0x8ebc6af09c88c6e3));
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

/* SipHash-1-3 for keys of 8 to 15 bytes. */
static inline uint64_t sip_hash(const char *key, size_t len)
{
    uint64_t a = UINT64_C(0x736f6d6570736575) ^ 1, b = UINT64_C(0x646f72616e646f6d) ^ 2;
    uint64_t c = UINT64_C(0x6c7967656e657261) ^ 1, d = UINT64_C(0x7465646279746573) ^ 2;
    uint64_t m = read64(key);
    d ^= m;
    SIP_ROUND;
    a ^= m;
    m = (uint64_t)len << 56;
    if (len > 8)
        m |= read64(key + len - 8) >> (8 * (16 - len));
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

/* The cell of tag in a line, or 8 or more; without branches. */
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

static inline uint64_t *floor_find(const floor_table *t, uint64_t *line, uint32_t tag)
{
    for (;;) {
        unsigned at = floor_search(line, tag);
        if (at < CELLS)
            return line + at;
        line += CELLS;
        if (line == t->cells + t->lines * CELLS)
            line = t->cells;
    }
}

static inline bool floor_decide(uint64_t *cell, const floor_limit *l, uint32_t now, bool shared,
                                uint32_t *answer)
{
    uint64_t old = shared ? __atomic_load_n(cell, __ATOMIC_RELAXED) : *cell;
    for (;;) {
        uint32_t full = (uint32_t)old > now ? (uint32_t)old : now;
        uint32_t next = full + (uint32_t)l->interval;
        *answer = next;
        if (next - now > (uint32_t)l->window)
            return false;
        if (!shared) {
            *cell = (old & ~(uint64_t)UINT32_MAX) | next;
            return true;
        }
        if (__atomic_compare_exchange_n(cell, &old, (old & ~(uint64_t)UINT32_MAX) | next, true,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return true;
    }
}

static inline uint32_t floor_tag(uint64_t hash)
{
    return (uint32_t)hash | 1;
}

static inline bool floor_keyed(const floor_table *t, const bench_key *key, const floor_limit *l,
                               uint32_t now, bool shared, uint32_t *answer)
{
    uint64_t hash = fast_hash(key->text, key->len);
    uint64_t *cell = floor_find(t, floor_home(t, hash), floor_tag(hash));
    return floor_decide(cell, l, now, shared, answer);
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

/* One set of keys: the floor's table and ours, and a long random stream of requests for them. */
typedef struct bench_keys {
    size_t count, stream_len;
    bench_key *stream;
    size_t table_bytes;
    ratelimit_table *allow_whole, *allow_part, *deny;
    void *plain;
    floor_table floor_allow, floor_deny, floor_sip;
    uint32_t *chain; /* a random cycle through memory as large as one of our tables */
    size_t chain_len;
} bench_keys;

typedef struct bench_row bench_row;
typedef void (*bench_run)(bench_row *row, uint64_t count);

struct bench_row {
    const char *what;
    bench_run run;
    bench_row *floor;
    const bench_keys *keys;
    ratelimit_table *table;
    const floor_table *floor_table;
    const ratelimit_limit *limit;
    floor_limit floor_limit;
    uint64_t samples_of; /* calls per sample */
    uint64_t step;       /* ns from call to call, single buckets */
    size_t ring;         /* single buckets: how many in turn, less one; a mask */
    bool denies, wants_result, shared;
    int threads; /* 0 counts as 1 */
    /* state */
    ratelimit_bucket *buckets;
    uint64_t *cells;
    size_t at; /* in the stream */
    uint64_t now, passed;
    double ns[MAX_ROUNDS];
};

static bench_row rows[MAX_ROWS];
static size_t row_count;
static volatile uint64_t sink;

/* Zero, but only once answer is there: an address made with it really waits. */
static inline size_t after(uint64_t answer)
{
    size_t zero = 0;
#if defined(__GNUC__)
    __asm__ volatile("" : "+r"(zero));
#endif
    return (size_t)answer & zero;
}

static const ratelimit_limit whole = RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit seventh = RATELIMIT_LIMIT(7, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit sixtieth = RATELIMIT_LIMIT(60, RATELIMIT_SECOND, 1000);
static const ratelimit_limit seven = RATELIMIT_LIMIT(7, RATELIMIT_SECOND, 1000);
static const ratelimit_limit hourly = RATELIMIT_LIMIT(1, RATELIMIT_HOUR, 1);
static const ratelimit_limit hourly_part = RATELIMIT_LIMIT(7, 10 * RATELIMIT_HOUR + 1, 7);
static const floor_limit floor_open = {1, 1u << 30}, floor_shut = {1u << 30, 1u << 30};

/* ---- rows: parts ---- */

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * RATELIMIT_SECOND + (uint64_t)t.tv_nsec;
}

static void run_clock_monotonic(bench_row *row, uint64_t count)
{
    uint64_t i, sum = 0;
    for (i = 0; i < count; i++)
        sum += read_clock(CLOCK_MONOTONIC);
    sink = sum;
    row->passed += count;
}

static void run_clock_ours(bench_row *row, uint64_t count)
{
    uint64_t i, sum = 0;
    for (i = 0; i < count; i++)
        sum += ratelimit_clock_ns();
    sink = sum;
    row->passed += count;
}

static void run_fast_hash(bench_row *row, uint64_t count)
{
    uint64_t i, sum = 0;
    for (i = 0; i < count; i++) {
        const bench_key *key = &row->keys->stream[i & 0xfff];
        sum += fast_hash(key->text, key->len);
    }
    sink = sum;
    row->passed += count;
}

static void run_sip_hash(bench_row *row, uint64_t count)
{
    uint64_t i, sum = 0;
    for (i = 0; i < count; i++) {
        const bench_key *key = &row->keys->stream[i & 0xfff];
        sum += sip_hash(key->text, key->len);
    }
    sink = sum;
    row->passed += count;
}

static void run_chain(bench_row *row, uint64_t count)
{
    const uint32_t *chain = row->keys->chain;
    size_t at = row->at;
    uint64_t i;
    for (i = 0; i < count; i++)
        at = chain[at * 16];
    row->at = at;
    sink = at;
    row->passed += count;
}

static void run_loads(bench_row *row, uint64_t count)
{
    const bench_keys *k = row->keys;
    uint64_t i, sum = 0, x = row->now * 2 + 1;
    for (i = 0; i < count; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        sum += k->chain[(size_t)((x >> 32) * k->chain_len >> 32) * 16];
    }
    row->now = x;
    sink = sum;
    row->passed += count;
}

/* ---- rows: one bucket ---- */

static void run_floor_bucket(bench_row *row, uint64_t count)
{
    const uint64_t step = row->step, ring = row->ring;
    uint64_t *cells = row->cells;
    uint64_t i, now = row->now, passed = 0;
    const floor_limit l = row->floor_limit;
    for (i = 0; i < count; i++, now += step)
        passed += floor_take(&cells[i & ring], &l, now);
    row->now = now;
    row->passed += passed;
}

static void run_floor_shared(bench_row *row, uint64_t count)
{
    const uint64_t step = row->step, ring = row->ring;
    uint64_t *cells = row->cells;
    uint64_t i, now = row->now, passed = 0;
    const floor_limit l = row->floor_limit;
    for (i = 0; i < count; i++, now += step)
        passed += floor_take_shared(&cells[i & ring], &l, now);
    row->now = now;
    row->passed += passed;
}

static void run_bucket(bench_row *row, uint64_t count)
{
    const ratelimit_limit *limit = row->limit;
    const uint64_t step = row->step, ring = row->ring;
    ratelimit_bucket *buckets = row->buckets;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += step)
        passed += ratelimit_bucket_take(&buckets[i & ring], limit, 1, now, NULL);
    row->now = now;
    row->passed += passed;
}

static void run_bucket_static(bench_row *row, uint64_t count)
{
    uint64_t bucket[2];
    bucket[0] = row->buckets->full_ns;
    bucket[1] = row->buckets->rest;
    row->passed += plain_bucket(bucket, count, row->now, row->step);
    row->now += count * row->step;
    row->buckets->full_ns = bucket[0];
    row->buckets->rest = bucket[1];
}

static void run_bucket_result(bench_row *row, uint64_t count)
{
    const ratelimit_limit *limit = row->limit;
    const uint64_t step = row->step, ring = row->ring;
    ratelimit_bucket *buckets = row->buckets;
    uint64_t i, now = row->now, passed = 0, sum = 0;
    ratelimit_result r;
    for (i = 0; i < count; i++, now += step) {
        passed += ratelimit_bucket_take(&buckets[i & ring], limit, 1, now, &r);
        sum += r.remaining;
    }
    sink = sum;
    row->now = now;
    row->passed += passed;
}

static void run_shared(bench_row *row, uint64_t count)
{
    const ratelimit_limit *limit = row->limit;
    const uint64_t step = row->step, ring = row->ring;
    ratelimit_bucket *buckets = row->buckets;
    uint64_t i, now = row->now, passed = 0;
    for (i = 0; i < count; i++, now += step)
        passed += ratelimit_bucket_take_shared(&buckets[i & ring], limit, 1, now, NULL);
    row->now = now;
    row->passed += passed;
}

/* ---- rows: keys ---- */

/* Samples go on in the stream where the last one ended, so that cold keys stay cold. */
static const bench_key *stream_part(bench_row *row, uint64_t count)
{
    if (count > row->keys->stream_len)
        fail("a stream is too short");
    if (row->at + count > row->keys->stream_len)
        row->at = 0;
    row->at += count;
    return &row->keys->stream[row->at - count];
}

static inline void floor_rows(bench_row *row, uint64_t count, bool shared)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, passed = 0;
    uint32_t answer;
    uint32_t now = (uint32_t)row->now;
    for (i = 0; i < count; i++)
        passed += floor_keyed(&t, &key[i], &l, now + (uint32_t)(i >> 8), shared, &answer);
    row->passed += passed;
}

/* The same floor with the hash that attackers can't make collide; the table was filled by it, too.
 * */
static void run_floor_sip(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, hash, passed = 0;
    uint32_t answer, now = (uint32_t)row->now;
    for (i = 0; i < count; i++) {
        hash = sip_hash(key[i].text, key[i].len);
        passed += floor_decide(floor_find(&t, floor_home(&t, hash), floor_tag(hash)), &l,
                               now + (uint32_t)(i >> 8), true, &answer);
    }
    row->passed += passed;
}

static void run_floor_keyed(bench_row *row, uint64_t count)
{
    floor_rows(row, count, true);
}

static void run_floor_keyed_plain(bench_row *row, uint64_t count)
{
    floor_rows(row, count, false);
}

static void run_floor_latency(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, passed = 0;
    uint32_t answer = 0;
    uint32_t now = (uint32_t)row->now;
    for (i = 0; i < count; i++)
        passed +=
            floor_keyed(&t, &key[i + after(answer)], &l, now + (uint32_t)(i >> 8), true, &answer);
    row->passed += passed;
}

static void run_floor_batch(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, hash[BATCH], passed = 0;
    uint32_t answer;
    size_t j;
    for (i = 0; i + BATCH <= count; i += BATCH) {
        for (j = 0; j < BATCH; j++) {
            hash[j] = fast_hash(key[i + j].text, key[i + j].len);
            __builtin_prefetch(floor_home(&t, hash[j]), 1);
        }
        for (j = 0; j < BATCH; j++)
            passed += floor_decide(floor_find(&t, floor_home(&t, hash[j]), floor_tag(hash[j])), &l,
                                   1, true, &answer);
    }
    row->passed += passed;
}

static void run_keyed(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    uint64_t now = row->now, i, passed = 0;
    for (i = 0; i < count; i++)
        passed += ratelimit_table_take(row->table, key[i].text, key[i].len, row->limit, 1,
                                       now + (i >> 8), NULL);
    row->passed += passed;
}

static void run_keyed_result(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    uint64_t now = row->now, i, passed = 0, sum = 0;
    ratelimit_result r;
    for (i = 0; i < count; i++) {
        passed += ratelimit_table_take(row->table, key[i].text, key[i].len, row->limit, 1,
                                       now + (i >> 8), &r);
        sum += r.remaining;
    }
    sink = sum;
    row->passed += passed;
}

static void run_keyed_plain(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    uint64_t now = row->now, i, passed = 0;
    for (i = 0; i < count; i++)
        passed += plain_take(row->keys->plain, key[i].text, key[i].len, now + (i >> 8));
    row->passed += passed;
}

static void run_keyed_latency(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    ratelimit_result r;
    uint64_t now = row->now, i, passed = 0;
    r.reset_after_ns = 0;
    for (i = 0; i < count; i++) {
        const bench_key *next = &key[i + after(r.reset_after_ns)];
        passed += ratelimit_table_take(row->table, next->text, next->len, row->limit, 1,
                                       now + (i >> 8), &r);
    }
    row->passed += passed;
}

static void run_keyed_batch(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    ratelimit_request q[BATCH];
    ratelimit_result r[BATCH];
    uint64_t i, passed = 0;
    size_t j;
    memset(q, 0, sizeof q);
    for (j = 0; j < BATCH; j++) {
        q[j].limit = row->limit;
        q[j].n = 1;
    }
    for (i = 0; i + BATCH <= count; i += BATCH) {
        for (j = 0; j < BATCH; j++) {
            q[j].key = key[i + j].text;
            q[j].key_len = key[i + j].len;
        }
        ratelimit_table_decide(row->table, q, r, BATCH, RATELIMIT_EACH, 1);
        for (j = 0; j < BATCH; j++)
            passed += r[j].allowed;
    }
    row->passed += passed;
}

static void run_limiter(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    ratelimit_limiter l;
    char text[16];
    uint64_t i, passed = 0;
    memset(&l, 0, sizeof l);
    if (ratelimit_init(&l, ratelimit_table_store(row->table, NULL, NULL)) != RATELIMIT_OK)
        fail("no limiter");
    for (i = 0; i < count; i++) {
        memcpy(text, key[i].text, 15);
        text[key[i].len] = 0;
        passed += ratelimit_allow(&l, text, row->limit);
    }
    row->passed += passed;
}

static void run_floor_limiter(bench_row *row, uint64_t count)
{
    const bench_key *key = stream_part(row, count);
    const floor_limit l = row->floor_limit;
    const floor_table t = *row->floor_table;
    uint64_t i, passed = 0;
    uint32_t answer;
    for (i = 0; i < count; i++)
        passed += floor_keyed(&t, &key[i], &l, 1 + (uint32_t)(read_clock(CLOCK_MONOTONIC) >> 63),
                              true, &answer);
    row->passed += passed;
}

/* ---- sampling ---- */

typedef struct bench_worker {
    bench_row row; /* with a cursor and a time of its own */
    pthread_barrier_t *start;
    uint64_t ns;
} bench_worker;

static void *work(void *arg)
{
    bench_worker *w = arg;
    uint64_t from;
    pthread_barrier_wait(w->start);
    from = read_clock(CLOCK_MONOTONIC);
    w->row.run(&w->row, w->row.samples_of);
    w->ns = read_clock(CLOCK_MONOTONIC) - from;
    return NULL;
}

/* ns of one thread's call while two run. */
static double sample_threads(bench_row *row)
{
    pthread_t thread[2];
    pthread_barrier_t start;
    bench_worker w[2];
    int i;
    pthread_barrier_init(&start, NULL, 2);
    for (i = 0; i < 2; i++) {
        w[i].row = *row;
        w[i].row.at = (size_t)i * 7777; /* not the same keys in step */
        w[i].start = &start;
        if (pthread_create(&thread[i], NULL, work, &w[i]) != 0)
            fail("no thread");
    }
    for (i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        row->passed += w[i].row.passed;
    }
    pthread_barrier_destroy(&start);
    return (double)(w[0].ns + w[1].ns) / 2 / (double)row->samples_of;
}

static void sample(bench_row *row, int round)
{
    uint64_t expected = row->denies ? 0 : row->samples_of * (row->threads == 2 ? 2 : 1), from;
    if (row->keys && row->keys->count <= HOT_KEYS)
        row->run(row, row->samples_of); /* other rows have taken the cache since */
    row->passed = 0;
    if (row->threads == 2) {
        row->ns[round] = sample_threads(row);
    } else {
        from = read_clock(CLOCK_THREAD_CPUTIME_ID);
        row->run(row, row->samples_of);
        from = read_clock(CLOCK_THREAD_CPUTIME_ID) - from;
        row->ns[round] = (double)from / (double)row->samples_of;
    }
    /* fewer than one key in 1,000 was forced out while the table was filled, and passes again */
    if (row->passed != expected &&
        !(row->table && row->denies && row->passed < row->samples_of / 500)) {
        printf("%s: %" PRIu64 " passed, not %" PRIu64 "\n", row->what, row->passed, expected);
        exit(1);
    }
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double middle(const double *values, int count)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static double least(const double *values, int count)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return sorted[0];
}

static double ratio(const bench_row *row, const bench_row *to, int rounds)
{
    double ratios[MAX_ROUNDS];
    int i;
    for (i = 0; i < rounds; i++)
        ratios[i] = row->ns[i] / to->ns[i];
    return middle(ratios, rounds);
}

/* ---- the list ---- */

typedef struct bench_scale {
    bool quick;
    int rounds;
    size_t small, large, huge; /* keys */
    uint64_t hot, cold;        /* calls per sample */
} bench_scale;

static bench_row *add(const char *what, bench_run run, uint64_t count, bench_row *floor)
{
    bench_row *row = &rows[row_count];
    if (++row_count > MAX_ROWS)
        fail("too many rows");
    row->what = what;
    row->run = run;
    row->samples_of = count / BATCH * BATCH;
    row->floor = floor;
    row->now = RATELIMIT_DAY;
    return row;
}

static void add_title(const char *what)
{
    add(what, NULL, 0, NULL);
}

static bench_row *add_bucket(const char *what, bench_run run, uint64_t count, bench_row *floor,
                             const ratelimit_limit *limit, uint64_t step)
{
    static ratelimit_bucket memory[MAX_ROWS * RING];
    bench_row *row = add(what, run, count, floor);
    size_t i;
    row->limit = limit;
    row->step = step;
    row->denies = step == 0;
    row->buckets = &memory[row_count * RING - RING];
    for (i = 0; i < RING; i++)
        while (row->denies && ratelimit_bucket_take(&row->buckets[i], limit, 1, row->now, NULL))
            continue;
    return row;
}

static bench_row *add_cell(const char *what, bench_run run, uint64_t count, bool denies)
{
    static uint64_t memory[MAX_ROWS * RING];
    bench_row *row = add(what, run, count, NULL);
    size_t i;
    row->floor_limit.interval = denies ? RATELIMIT_HOUR : 1000;
    row->floor_limit.window = denies ? RATELIMIT_HOUR : 1000000;
    row->step = denies ? 0 : 1000;
    row->denies = denies;
    row->cells = &memory[row_count * RING - RING];
    for (i = 0; i < RING; i++)
        row->cells[i] = denies ? row->now + RATELIMIT_HOUR : 0;
    return row;
}

static bench_row *add_ring(bench_row *row)
{
    row->ring = RING - 1;
    return row;
}

static bench_row *add_floor_keyed(const char *what, bench_run run, uint64_t count,
                                  const bench_keys *keys, bool denies)
{
    bench_row *row = add(what, run, count, NULL);
    row->keys = keys;
    row->floor_table = denies ? &keys->floor_deny : &keys->floor_allow;
    row->floor_limit = denies ? floor_shut : floor_open;
    row->denies = denies;
    row->now = 1;
    return row;
}

static bench_row *add_keyed(const char *what, bench_run run, uint64_t count, bench_row *floor,
                            const bench_keys *keys, ratelimit_table *table)
{
    bench_row *row = add(what, run, count, floor);
    row->keys = keys;
    row->table = table;
    row->limit = table == keys->deny ? &hourly : table == keys->allow_part ? &seventh : &whole;
    row->denies = table == keys->deny;
    row->now = 1;
    return row;
}

/* ---- building the tables ---- */

static ratelimit_table *make_table(const bench_keys *k)
{
    static const ratelimit_table_options options = {
        {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)}, RATELIMIT_EVICT, 0};
    ratelimit_table *table;
    if (ratelimit_table_init(&table, get_memory(k->table_bytes), k->table_bytes, &options) !=
        RATELIMIT_OK)
        fail("no table");
    return table;
}

static void make_floor(floor_table *t, const bench_keys *k)
{
    t->lines = (uint64_t)k->count * 10 / 6 / CELLS + 1; /* load 0.6 */
    t->cells = get_memory((size_t)t->lines * CELLS * sizeof *t->cells);
}

/* Sattolo's shuffle: one cycle through all lines. */
static void make_chain(bench_keys *k)
{
    size_t i;
    k->chain_len = k->table_bytes / 64;
    k->chain = get_memory(k->chain_len * 64);
    for (i = 0; i < k->chain_len; i++)
        k->chain[i * 16] = (uint32_t)i;
    for (i = k->chain_len - 1; i > 0; i--) {
        size_t j = (size_t)(random64() % i);
        uint32_t keep = k->chain[i * 16];
        k->chain[i * 16] = k->chain[j * 16];
        k->chain[j * 16] = keep;
    }
}

static void fill(bench_keys *k)
{
    size_t i;
    bench_key key;
    uint32_t answer;
    for (i = 0; i < k->count; i++) {
        make_key(&key, i);
        floor_insert(&k->floor_allow, fast_hash(key.text, key.len));
        if (k->floor_sip.cells)
            floor_insert(&k->floor_sip, sip_hash(key.text, key.len));
        if (!ratelimit_table_take(k->allow_whole, key.text, key.len, &whole, 1, 1, NULL))
            fail("a table does not fill");
        if (k->deny) {
            floor_insert(&k->floor_deny, fast_hash(key.text, key.len));
            floor_keyed(&k->floor_deny, &key, &floor_shut, 1, false, &answer);
            (void)ratelimit_table_take(k->deny, key.text, key.len, &hourly, 1, 1, NULL);
        }
        if (k->allow_part)
            (void)ratelimit_table_take(k->allow_part, key.text, key.len, &seventh, 1, 1, NULL);
        if (k->plain)
            (void)plain_take(k->plain, key.text, key.len, 1);
    }
}

static void make_keys(bench_keys *k, size_t count, size_t stream_len, bool denies, bool parts)
{
    size_t i;
    k->count = count;
    k->stream_len = stream_len;
    k->stream = get_memory(stream_len * sizeof *k->stream);
    for (i = 0; i < stream_len; i++)
        make_key(&k->stream[i], (size_t)(random64() % count));
    k->table_bytes = ratelimit_table_bytes(count);
    make_floor(&k->floor_allow, k);
    k->allow_whole = make_table(k);
    if (denies) {
        make_floor(&k->floor_deny, k);
        k->deny = make_table(k);
    }
    if (parts) {
        make_floor(&k->floor_sip, k);
        k->allow_part = make_table(k);
        plain_limit(1000000, RATELIMIT_SECOND, 1000000000);
        k->plain = plain_table(get_memory(k->table_bytes), k->table_bytes);
    }
    make_chain(k);
    fill(k);
}

/* ---- what must be reached ---- */

typedef struct bench_aims {
    bench_row *bucket, *bucket_called, *bucket_floor, *shared, *shared_floor, *small, *small_floor,
        *small_sip;
    bench_row *hot_latency, *hot_latency_floor, *hot_chain, *cold_latency, *cold_latency_floor,
        *cold_chain;
    bench_row *batch, *batch_latency;
} bench_aims;

static void add_parts(const bench_scale *s, const bench_keys *small)
{
    add_title("The parts");
    add("floor: clock_gettime MONOTONIC", run_clock_monotonic, s->hot / 4, NULL);
    add("ratelimit_clock_ns (BOOTTIME)", run_clock_ours, s->hot / 4, &rows[row_count - 1]);
    add("floor: multiply-mix hash, 11-byte key", run_fast_hash, s->hot, NULL)->keys = small;
    add("floor: SipHash-1-3, 11-byte key", run_sip_hash, s->hot, &rows[row_count - 1])->keys =
        small;
}

static void add_buckets(const bench_scale *s, bench_aims *aims)
{
    bench_row *one, *ring, *shut, *shared, *shared_shut;
    add_title("One bucket, plain, time given");
    one = add_cell("floor: GCRA in 8 bytes, allowed", run_floor_bucket, s->hot * 4, false);
    aims->bucket_floor = one;
    aims->bucket_called = add_bucket("ratelimit_bucket_take, 1000000/s, allowed", run_bucket,
                                     s->hot, one, &whole, 1000);
    aims->bucket = add_bucket("same, RATELIMIT_STATIC in one file", run_bucket_static, s->hot, one,
                              &whole, 1000);
    add_bucket("same, 7/s", run_bucket, s->hot, one, &seven, 142857143);
    add_bucket("same, 60/s", run_bucket, s->hot, one, &sixtieth, 16666667);
    add_bucket("same, 1000000/s, with the result", run_bucket_result, s->hot, one, &whole, 1000);
    add_bucket("same, 7/s, with the result", run_bucket_result, s->hot, one, &seven, 142857143);
    ring = add_ring(
        add_cell("floor: 256 cells in turn, allowed", run_floor_bucket, s->hot * 4, false));
    add_ring(add_bucket("256 buckets in turn, 1000000/s, allowed", run_bucket, s->hot, ring, &whole,
                        1000));
    shut = add_cell("floor: GCRA in 8 bytes, denied", run_floor_bucket, s->hot * 4, true);
    add_bucket("ratelimit_bucket_take, whole ns, denied", run_bucket, s->hot, shut, &hourly, 0);
    add_bucket("same, fraction, denied", run_bucket, s->hot, shut, &hourly_part, 0);
    add_title("One bucket, shared between threads, time given");
    shared = add_cell("floor: GCRA by compare-and-swap, allowed", run_floor_shared, s->hot, false);
    aims->shared_floor = shared;
    aims->shared = add_bucket("ratelimit_bucket_take_shared, 1000000/s, allowed", run_shared,
                              s->hot, shared, &whole, 1000);
    add_bucket("same, 7/s", run_shared, s->hot, shared, &seven, 142857143);
    shared_shut =
        add_cell("floor: GCRA by compare-and-swap, denied", run_floor_shared, s->hot, true);
    add_bucket("ratelimit_bucket_take_shared, denied", run_shared, s->hot, shared_shut, &hourly, 0);
}

static void add_small(const bench_scale *s, const bench_keys *k, bench_aims *aims)
{
    bench_row *floor, *plain, *shut, *latency, *batch, *clock;
    add_title("10,000 keys in cache, time given");
    floor = add_floor_keyed("floor: keyed, allowed", run_floor_keyed, s->hot, k, false);
    aims->small_floor = floor;
    aims->small_sip =
        add_floor_keyed("floor: keyed, by SipHash-1-3, allowed", run_floor_sip, s->hot, k, false);
    aims->small_sip->floor_table = &k->floor_sip;
    aims->small_sip->floor = floor;
    aims->small = add_keyed("ratelimit_table_take, 1000000/s, allowed", run_keyed, s->hot, floor, k,
                            k->allow_whole);
    add_keyed("same, 7/s", run_keyed, s->hot, floor, k, k->allow_part);
    add_keyed("same, 1000000/s, with the result", run_keyed_result, s->hot, floor, k,
              k->allow_whole);
    shut = add_floor_keyed("floor: keyed, denied", run_floor_keyed, s->hot, k, true);
    add_keyed("ratelimit_table_take, denied", run_keyed, s->hot, shut, k, k->deny);
    plain =
        add_floor_keyed("floor: keyed, no locks, allowed", run_floor_keyed_plain, s->hot, k, false);
    add_keyed("ratelimit_table_take, RATELIMIT_NO_THREADS", run_keyed_plain, s->hot, plain, k,
              k->allow_whole);
    latency = add_floor_keyed("floor: keyed, latency", run_floor_latency, s->hot / 2, k, false);
    aims->hot_latency_floor = latency;
    aims->hot_latency = add_keyed("ratelimit_table_take, latency", run_keyed_latency, s->hot / 2,
                                  latency, k, k->allow_whole);
    aims->hot_chain = add("floor: dependent load, memory of the table", run_chain, s->hot, NULL);
    aims->hot_chain->keys = k;
    batch = add_floor_keyed("floor: batch of 32, prefetched", run_floor_batch, s->hot, k, false);
    add_keyed("ratelimit_table_decide, batch of 32", run_keyed_batch, s->hot, batch, k,
              k->allow_whole);
    clock = add_floor_keyed("floor: clock and keyed", run_floor_limiter, s->hot / 4, k, false);
    add_keyed("ratelimit_allow, its own clock", run_limiter, s->hot / 4, clock, k, k->allow_whole);
}

static void add_cold(const bench_scale *s, const char *title, const bench_keys *k, bench_aims *aims)
{
    bench_row *floor, *latency, *batch, *loads;
    add_title(title);
    loads = add("floor: random loads, memory of the table", run_loads, s->cold, NULL);
    loads->keys = k;
    aims->cold_chain = add("floor: dependent load, memory of the table", run_chain, s->cold, NULL);
    aims->cold_chain->keys = k;
    floor = add_floor_keyed("floor: keyed, allowed", run_floor_keyed, s->cold, k, false);
    add_keyed("ratelimit_table_take, allowed", run_keyed, s->cold, floor, k, k->allow_whole);
    if (k->deny) {
        floor = add_floor_keyed("floor: keyed, denied", run_floor_keyed, s->cold, k, true);
        add_keyed("ratelimit_table_take, denied", run_keyed, s->cold, floor, k, k->deny);
    }
    latency = add_floor_keyed("floor: keyed, latency", run_floor_latency, s->cold, k, false);
    aims->cold_latency_floor = latency;
    aims->cold_latency = add_keyed("ratelimit_table_take, latency", run_keyed_latency, s->cold,
                                   latency, k, k->allow_whole);
    aims->batch_latency = aims->cold_latency;
    batch = add_floor_keyed("floor: batch of 32, prefetched", run_floor_batch, s->cold, k, false);
    aims->batch = add_keyed("ratelimit_table_decide, batch of 32", run_keyed_batch, s->cold, batch,
                            k, k->allow_whole);
}

static void add_threads(const bench_scale *s, const bench_keys *k, const bench_keys *one)
{
    size_t first = row_count + 1, i;
    bench_row *floor;
    add_title("Two threads, ns as each of them sees it");
    floor = add_cell("floor: GCRA by compare-and-swap, one cell", run_floor_shared, s->hot, false);
    add_bucket("ratelimit_bucket_take_shared, one bucket", run_shared, s->hot, floor, &whole, 1000);
    floor = add_cell("floor: GCRA by compare-and-swap, denied", run_floor_shared, s->hot, true);
    add_bucket("ratelimit_bucket_take_shared, denied", run_shared, s->hot, floor, &hourly, 0);
    floor = add_floor_keyed("floor: keyed, one key", run_floor_keyed, s->hot, one, false);
    add_keyed("ratelimit_table_take, one key", run_keyed, s->hot, floor, one, one->allow_whole);
    floor = add_floor_keyed("floor: keyed, 10,000 keys", run_floor_keyed, s->hot, k, false);
    add_keyed("ratelimit_table_take, 10,000 keys", run_keyed, s->hot, floor, k, k->allow_whole);
    for (i = first; i < row_count; i++) {
        rows[i].threads = 2;
        if (rows[i].cells && !rows[i].denies) /* room for what two threads take at the same times */
            rows[i].floor_limit.window = RATELIMIT_DAY;
    }
}

/* ---- printing ---- */

static void print_cpu(void)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, "model name", 10) == 0) {
            printf("CPU       %s", strchr(line, ':') ? strchr(line, ':') + 2 : "unknown\n");
            break;
        }
    fclose(file);
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
    printf("commit    %.*s\n", (int)strcspn(line, "\n"), line);
}

static void print_heading(const bench_scale *s)
{
#if defined(__clang__)
    printf("compiler  clang %s\n", __clang_version__);
#elif defined(__GNUC__)
    printf("compiler  gcc %s\n", __VERSION__);
#endif
    printf("flags     %s\n", BENCH_FLAGS);
    print_cpu();
    print_commit();
    printf("rounds    %d\n\n", s->rounds);
    printf("%-50s %9s %9s  %s\n", "", "ns median", "ns least", "ratio to the floor above");
}

static void print_rows(int rounds)
{
    size_t i;
    for (i = 0; i < row_count; i++) {
        const bench_row *row = &rows[i];
        if (!row->run) {
            printf("\n%s\n", row->what);
            continue;
        }
        printf("  %-48s %9.2f %9.2f", row->what, middle(row->ns, rounds), least(row->ns, rounds));
        if (row->floor)
            printf("  %.2f", ratio(row, row->floor, rounds));
        printf("\n");
    }
}

static void print_aim(const char *what, double got, double most)
{
    printf("  %-62s %6.2f  at most %.2f  %s\n", what, got, most,
           got <= most ? "reached" : "NOT REACHED");
}

/* The cold call's latency beyond the hot one's, in misses: what a dependent load costs there beyond
 * what it costs when hot. */
static double misses(const bench_aims *a, int rounds)
{
    double values[MAX_ROUNDS];
    int i;
    for (i = 0; i < rounds; i++)
        values[i] = (a->cold_latency->ns[i] - a->hot_latency->ns[i]) /
                    (a->cold_chain->ns[i] - a->hot_chain->ns[i]);
    return middle(values, rounds);
}

static void print_aims(const bench_aims *large, const bench_aims *huge, int rounds)
{
    printf("\nNumbers to reach\n");
    print_aim("one bucket, plain, allowed, in one file as the bare GCRA: times it",
              ratio(large->bucket, large->bucket_floor, rounds), 2);
    printf("  %-62s %6.2f\n", "  for comparison: called from another file",
           ratio(large->bucket_called, large->bucket_floor, rounds));
    print_aim("one bucket, shared, allowed: times the compare-and-swap one",
              ratio(large->shared, large->shared_floor, rounds), 1.2);
    print_aim("10,000 keys in cache, locks: times the keyed floor",
              ratio(large->small, large->small_floor, rounds), 2);
    printf("  %-62s %6.2f\n", "  for comparison: the floor with SipHash-1-3",
           ratio(large->small_sip, large->small_floor, rounds));
    printf("  %-62s %6.2f\n", "  for comparison: times the floor with SipHash-1-3",
           ratio(large->small, large->small_sip, rounds));
    printf("  %-62s %6.2f\n", "  for comparison: latency, times the keyed floor's",
           ratio(large->hot_latency, large->hot_latency_floor, rounds));
    print_aim("a million keys cold: cache misses, by dependent loads", misses(large, rounds), 1.5);
    printf("  %-62s %6.2f\n", "  for comparison: latency, times the keyed floor's",
           ratio(large->cold_latency, large->cold_latency_floor, rounds));
    print_aim("ten million keys: batch of 32, of the single call's latency",
              ratio(huge->batch, huge->batch_latency, rounds), 1.0 / 3);
}

int main(int argc, char **argv)
{
    static bench_keys one, small, large, huge;
    static bench_aims aims, huge_aims;
    bench_scale s = {false, 15, HOT_KEYS, 1000000, 10000000, 200000, 100000};
    int round;
    size_t i;
    if (argc > 1 && strcmp(argv[1], "--quick") == 0) {
        s.quick = true;
        s.rounds = 2;
        s.large = 100000;
        s.huge = 300000;
        s.hot = 40000;
        s.cold = 20000;
    }
    print_heading(&s);
    fflush(stdout);
    make_keys(&one, 1, s.quick ? 65536 : 262144, false, false);
    make_keys(&small, s.small, s.quick ? 65536 : 262144, true, true);
    make_keys(&large, s.large, s.quick ? 65536 : 2000000, true, false);
    make_keys(&huge, s.huge, s.quick ? 65536 : 4000000, false, false);
    add_parts(&s, &small);
    add_buckets(&s, &aims);
    add_small(&s, &small, &aims);
    add_cold(&s, s.quick ? "100,000 keys (quick run)" : "A million keys, cold, time given", &large,
             &aims);
    huge_aims = aims;
    add_cold(&s, s.quick ? "300,000 keys (quick run)" : "Ten million keys, cold, time given", &huge,
             &huge_aims);
    add_threads(&s, &small, &one);
    for (round = -1; round < s.rounds; round++) /* the first one warms up */
        for (i = 0; i < row_count; i++)
            if (rows[i].run)
                sample(&rows[i], round < 0 ? 0 : round);
    print_rows(s.rounds);
    print_aims(&aims, &huge_aims, s.rounds);
    return 0;
}

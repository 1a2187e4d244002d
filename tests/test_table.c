/* test_table.c - the table: sizes, memory that is too small or damaged or opened again, what
 * happens when it is full, sweeping, batches, permits, keys and hashes, and that refusals write
 * nothing. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define RATELIMIT_TAKEOVER_MS                                                                      \
  1 /* damaged lines look like held ones: don't wait long for the dead */
static unsigned long sleeps;
static void (*while_asleep)(void); /* what others do meanwhile */
#define RATELIMIT_SLEEP_MS(ms)                                                                     \
  ((void)__atomic_fetch_add(&sleeps, (ms), __ATOMIC_RELAXED), (void)usleep((ms)*1000),             \
   while_asleep ? while_asleep() : (void)0)
#define getrandom system_random
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK           RATELIMIT_OK
#define HEAD_BYTES   128
#define LINE_BYTES   64
#define BLOCK_BYTES  512 /* eight lines: the places that are open to a key */
#define BLOCK_PLACES 24

/* Slow to come back, so that a debt stays while a test looks at it. */
static const ratelimit_limit per_second = RATELIMIT_LIMIT(1, SEC, 100);
static const ratelimit_limit hourly = RATELIMIT_LIMIT(1, HOUR, 1);

/* What lies behind the head. */
typedef struct line {
    uint32_t lock; /* odd: held */
    uint32_t tag[3];
    ratelimit_bucket bucket[3];
} line;

static line *lines_of(ratelimit_table *t)
{
    return (line *)(void *)((char *)t + HEAD_BYTES);
}

/* ---- making tables --------------------------------------------------------------------------- */

/* Three stretches of memory, each starting at a multiple of 64, so that a table can be copied from
 * one to the other. */
#define ARENA_BYTES (128 * 1024)
static unsigned char arena_bytes[3][ARENA_BYTES + LINE_BYTES];

static unsigned char *arena(int i)
{
    return arena_bytes[i] + (LINE_BYTES - ((uintptr_t)arena_bytes[i] & (LINE_BYTES - 1)));
}

static ratelimit_table *table_of_blocks(size_t blocks, ratelimit_full when_full)
{
    return table_made(arena(0), HEAD_BYTES + blocks * BLOCK_BYTES, when_full, 1);
}

static ratelimit_result take_text(ratelimit_table *t, const char *key, uint64_t n, uint64_t now_ns)
{
    ratelimit_result res;
    memset(&res, 0xA5, sizeof res);
    res.allowed = false;
    check_answer(&res, ratelimit_table_take(t, key, strlen(key), &per_second, n, now_ns, &res));
    return res;
}

static ratelimit_result ask_text(ratelimit_table *t, const char *key, ratelimit_op op, uint64_t n,
                                 uint64_t now_ns)
{
    ratelimit_request req = request(key, &per_second, n);
    ratelimit_result res;
    req.op = op;
    req.max_wait_ns = SEC;
    memset(&res, 0xA5, sizeof res);
    (void)ratelimit_table_decide_one(t, &req, now_ns, &res);
    return res;
}

static uint64_t remaining_of(ratelimit_table *t, const char *key, uint64_t now_ns)
{
    return ask_text(t, key, RATELIMIT_PEEK, 1, now_ns).remaining;
}

static bool take_number(ratelimit_table *t, uint64_t key, const ratelimit_limit *limit,
                        uint64_t now_ns)
{
    return ratelimit_table_take(t, &key, sizeof key, limit, 1, now_ns, NULL);
}

static ratelimit_table_counts counts_of(const ratelimit_table *t, uint64_t now_ns)
{
    ratelimit_table_counts counts;
    memset(&counts, 0xA5, sizeof counts);
    ratelimit_table_stats(t, now_ns, &counts);
    return counts;
}

/* A table of one block, in which so many places are taken until the end of time: by permits, which
 * no newcomer may push out. */
static ratelimit_table *table_with_places(size_t places, ratelimit_full when_full)
{
    ratelimit_table *t = table_of_blocks(1, when_full);
    ratelimit_permit permit;
    size_t i;
    for (i = places; i < BLOCK_PLACES; i++)
        CHECK(ratelimit_table_acquire(t, "filler", 6, RATELIMIT_MAX_PERMITS, UINT64_C(1) << 62, 0,
                                      &permit));
    return t;
}

/* All of a table's memory, locks and head too. */
static size_t bytes_of(const ratelimit_table *t)
{
    return (size_t)counts_of(t, 0).bytes;
}

static void save_table(const ratelimit_table *t, unsigned char *copy)
{
    memcpy(copy, t, bytes_of(t));
}

static bool table_changed(const ratelimit_table *t, const unsigned char *before)
{
    return memcmp(t, before, bytes_of(t)) != 0;
}

/* The same, but for the counters in the head. */
static bool lines_changed(const ratelimit_table *t, const unsigned char *before)
{
    return memcmp((const unsigned char *)t + HEAD_BYTES, before + HEAD_BYTES,
                  bytes_of(t) - HEAD_BYTES) != 0;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static void the_size_by_macro_is_the_size_by_function(void)
{
    size_t keys;
    uint64_t i;
    check_seed(1);
    for (keys = 1; keys <= 5000; keys++)
        CHECK_U64(ratelimit_table_bytes(keys), RATELIMIT_TABLE_BYTES(keys));
    for (i = 0; i < 10000; i++) {
        keys = (size_t)(1 + check_below(SIZE_MAX / 64 >> check_below(sizeof(size_t) * 8 - 8)));
        if (ratelimit_table_bytes(keys))
            CHECK_U64(ratelimit_table_bytes(keys), RATELIMIT_TABLE_BYTES(keys));
    }
}

static void a_size_that_does_not_fit_is_zero_and_none_is_too_small(void)
{
    size_t keys = SIZE_MAX;
    CHECK_U64(ratelimit_table_bytes(0), 0);
    CHECK_U64(ratelimit_table_bytes(SIZE_MAX), 0);
    CHECK_U64(ratelimit_table_bytes(SIZE_MAX / 2), 0);
    CHECK_U64(ratelimit_table_bytes(SIZE_MAX / 32), 0);
    for (; keys; keys -= keys / 1000 + 1) {
        size_t bytes = ratelimit_table_bytes(keys);
        CHECK(bytes == 0 || bytes / 42 >= keys);
    }
    if (SIZE_MAX > UINT32_MAX) { /* 2^29 blocks of 24 places, half of them for keys */
        CHECK(ratelimit_table_bytes((size_t)((UINT64_C(12) << 29) - 12)) > 0);
        CHECK_U64(ratelimit_table_bytes((size_t)((UINT64_C(12) << 29) - 11)), 0);
        CHECK_U64(ratelimit_table_bytes((size_t)(UINT64_C(12) << 29)), 0);
        CHECK_U64(ratelimit_table_bytes((size_t)(UINT64_C(12) << 32)), 0);
    }
}

static void a_key_costs_43_bytes_and_the_smallest_table_703(void)
{
    CHECK_U64(ratelimit_table_bytes(1), 640 + 63);
    CHECK_U64(ratelimit_table_bytes(12), 640 + 63);
    CHECK_U64(ratelimit_table_bytes(13), 640 + 512 + 63);
    CHECK_U64(ratelimit_table_bytes(12000), 128 + 63 + 1000 * 512);
    CHECK(ratelimit_table_bytes(100000) <= (size_t)43 * 100000);
    CHECK(ratelimit_table_bytes(10000000) <= (size_t)43 * 10000000);
}

static void a_table_has_two_places_for_each_key_it_was_sized_for(void)
{
    size_t keys;
    for (keys = 1; keys <= 1500; keys++) {
        ratelimit_table *t = table_made(arena(0), ratelimit_table_bytes(keys), RATELIMIT_EVICT, 1);
        ratelimit_table_counts counts = counts_of(t, 0);
        CHECK(counts.capacity >= 2 * keys);
        CHECK(counts.bytes <= ratelimit_table_bytes(keys));
        CHECK(counts.bytes + 63 >= ratelimit_table_bytes(keys));
        CHECK_U64(counts.bytes, HEAD_BYTES + counts.capacity / BLOCK_PLACES * BLOCK_BYTES);
        CHECK_U64(counts.keys + counts.in_debt + counts.evicted + counts.refused, 0);
    }
}

static void a_table_uses_as_many_blocks_as_fit(void)
{
    size_t lines;
    for (lines = 8; lines <= 1000; lines++)
        CHECK_U64(
            counts_of(table_made(arena(0), HEAD_BYTES + lines * LINE_BYTES, RATELIMIT_EVICT, 1), 0)
                .capacity,
            lines / 8 * BLOCK_PLACES);
}

/* Whatever the alignment: not a byte more. */
static void a_table_in_unaligned_memory_uses_no_block_that_does_not_fit(void)
{
    size_t skip;
    for (skip = 0; skip < 64; skip++) {
        unsigned char *memory = walled(4096) + (64 - skip) % 64;
        ratelimit_table *t = NULL;
        size_t bytes = skip + HEAD_BYTES + 2 * BLOCK_BYTES;
        place("skip", 0, skip);
        CHECK_U64(ratelimit_table_init(&t, memory, bytes - 1, NULL), OK);
        CHECK_U64(counts_of(t, 0).capacity, BLOCK_PLACES);
        CHECK_U64(ratelimit_table_init(&t, memory, bytes, NULL), OK);
        CHECK_U64(counts_of(t, 0).capacity, 2 * BLOCK_PLACES);
    }
    place_end();
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void bad_arguments_to_init_are_refused(void)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    CHECK_U64(ratelimit_table_init(NULL, arena(0), ARENA_BYTES, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_init(&t, NULL, ARENA_BYTES, NULL), RATELIMIT_BAD_ARGUMENT);
    options.when_full = (ratelimit_full)(RATELIMIT_REFUSE + 1);
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    options.when_full = (ratelimit_full)1000000;
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    options.when_full = RATELIMIT_EVICT;
    options.hash = (ratelimit_hash)(RATELIMIT_HASH_FAST + 1);
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    options.hash = (ratelimit_hash)65536; /* 0 in the head's 16 bits */
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_attach(NULL, arena(0), ARENA_BYTES), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_attach(&t, NULL, ARENA_BYTES), RATELIMIT_BAD_ARGUMENT);
    CHECK(t == NULL);
}

/* At each alignment: one byte too few for a block, just enough, and the wall right behind the
 * memory. */
static void memory_may_be_misaligned_but_not_a_byte_too_small(void)
{
    unsigned char *wall = walled(2048) + 2048;
    size_t off;
    for (off = 0; off < 64; off++) {
        unsigned char *memory = wall - 1024 + off;
        size_t skip = (64 - off) % 64, least = skip + HEAD_BYTES + BLOCK_BYTES, bytes;
        ratelimit_table *t = NULL;
        place("misaligned", 0, off);
        for (bytes = 0; bytes < least; bytes += bytes + 1 < least - 2 ? 37 : 1)
            CHECK_U64(ratelimit_table_init(&t, memory, bytes, NULL), RATELIMIT_NO_MEMORY);
        CHECK_U64(ratelimit_table_init(&t, memory, least - 1, NULL), RATELIMIT_NO_MEMORY);
        CHECK_U64(ratelimit_table_init(&t, memory, least, NULL), OK);
        CHECK_U64(counts_of(t, 0).capacity, BLOCK_PLACES);
        memory = wall - least;
        CHECK_U64(ratelimit_table_init(&t, memory, least, NULL), OK);
        CHECK(take_text(t, "key", 100, 0).allowed);
        CHECK(!take_text(t, "key", 1, 0).allowed);
    }
    place_end();
}

static void what_lay_in_the_memory_before_does_not_matter(void)
{
    static const int fills[] = {0x00, 0xFF, 0xA5, 0x01};
    size_t i;
    for (i = 0; i < COUNT(fills); i++) {
        ratelimit_table *t;
        memset(arena(0), fills[i], ARENA_BYTES);
        t = table_made(arena(0), ARENA_BYTES, RATELIMIT_REFUSE, 1);
        CHECK_U64(counts_of(t, 0).keys, 0);
        CHECK(take_text(t, "key", 100, 0).allowed);
        CHECK_U64(counts_of(t, 0).keys, 1);
    }
}

/* Random requests on a table that ends at the wall: whatever reaches behind its end dies. */
static void no_byte_behind_the_memory_is_touched(void)
{
    static const size_t sizes[] = {1, 2, 7, 12, 13, 40, 41, 333};
    size_t i;
    uint64_t k;
    for (i = 0; i < COUNT(sizes); i++) {
        size_t bytes = ratelimit_table_bytes(sizes[i]);
        ratelimit_table *t = table_made(walled(bytes), bytes, RATELIMIT_EVICT, i);
        for (k = 0; k < 4000; k++)
            CHECK(take_number(t, k, &hourly, 0));
        CHECK_U64(counts_of(t, 0).keys, counts_of(t, 0).capacity);
        CHECK_U64(ratelimit_table_sweep(t, HOUR, 0), counts_of(t, 0).capacity);
    }
}

/* ---- attach ---------------------------------------------------------------------------------- */

static void an_attached_table_is_the_same_table(void)
{
    ratelimit_table *made = table_of_blocks(3, RATELIMIT_REFUSE), *t = NULL;
    size_t bytes = HEAD_BYTES + 3 * BLOCK_BYTES;
    CHECK(take_text(made, "key", 100, 0).allowed);
    CHECK_U64(ratelimit_table_attach(&t, arena(0), bytes), OK);
    CHECK(t == made);
    CHECK_U64(take_text(t, "key", 1, 0).retry_after_ns, SEC);
    CHECK_U64(ratelimit_table_attach(&t, arena(0), bytes + 1000), OK); /* more is no harm */
}

static void a_table_larger_than_its_memory_is_not_attached(void)
{
    static const size_t blocks[] = {1, 2, 8, 100};
    size_t i, bytes;
    for (i = 0; i < COUNT(blocks); i++) {
        size_t least = bytes_of(table_of_blocks(blocks[i], RATELIMIT_EVICT));
        ratelimit_table *t = NULL;
        for (bytes = 0; bytes < least; bytes += bytes + 1 < least - 2 ? 29 : 1)
            CHECK_U64(ratelimit_table_attach(&t, arena(0), bytes), RATELIMIT_NO_MEMORY);
        CHECK_U64(ratelimit_table_attach(&t, arena(0), least - 1), RATELIMIT_NO_MEMORY);
        CHECK(t == NULL);
        CHECK_U64(ratelimit_table_attach(&t, arena(0), least), OK);
    }
}

static void memory_without_a_table_is_not_attached(void)
{
    ratelimit_table *t = NULL;
    uint64_t i;
    size_t byte;
    check_seed(2);
    memset(arena(0), 0, 4096);
    CHECK_U64(ratelimit_table_attach(&t, arena(0), 4096), RATELIMIT_BAD_ARGUMENT);
    memset(arena(0), 0xFF, 4096);
    CHECK_U64(ratelimit_table_attach(&t, arena(0), 4096), RATELIMIT_BAD_ARGUMENT);
    for (i = 0; i < 1000; i++) {
        for (byte = 0; byte < 640; byte++)
            arena(0)[byte] = (unsigned char)check_random();
        CHECK_U64(ratelimit_table_attach(&t, arena(0), 640), RATELIMIT_BAD_ARGUMENT);
    }
    CHECK(t == NULL);
}

/* Heads that are undamaged, of a table that another version of us may have made. */
static void a_table_of_another_version_or_with_an_unknown_hash_or_policy_is_not_attached(void)
{
    int what;
    for (what = 0; what < 6; what++) {
        ratelimit_table *t = table_of_blocks(2, RATELIMIT_EVICT), *attached = NULL;
        t->version += what == 1;
        t->hash = (uint16_t)(what == 2 ? RATELIMIT_HASH_FAST + 1 : t->hash);
        t->when_full = (uint16_t)(what == 3 ? RATELIMIT_REFUSE + 1 : t->when_full);
        t->lines -= what == 4; /* no whole block */
        t->lines -= what == 5 ? 16 : 0;
        t->check = ratelimit_priv_head_check(t);
        CHECK_U64(ratelimit_table_attach(&attached, arena(0), HEAD_BYTES + 2 * BLOCK_BYTES),
                  what == 0 ? OK : RATELIMIT_BAD_ARGUMENT);
        CHECK(what == 0 || attached == NULL);
    }
}

static void an_attached_table_goes_on_with_the_hash_it_was_made_with(void)
{
    int hash;
    for (hash = RATELIMIT_HASH_SIP; hash <= (int)RATELIMIT_HASH_FAST; hash++) {
        ratelimit_table_options options;
        ratelimit_table *t = NULL;
        uint64_t made;
        memset(&options, 0, sizeof options);
        options.hash = (ratelimit_hash)hash;
        CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), OK);
        made = ratelimit_table_hash(t, "key", 3);
        CHECK(take_text(t, "key", 60, 0).allowed);
        CHECK_U64(ratelimit_table_attach(&t, arena(0), ARENA_BYTES), OK);
        CHECK_U64(ratelimit_table_hash(t, "key", 3), made);
        CHECK_U64(remaining_of(t, "key", 0), 40);
    }
}

/* Every operation once or more, with results that must make sense whatever the table holds. */
static void use_at_random(ratelimit_table *t, int rounds)
{
    static const ratelimit_limit limits[] = {
        RATELIMIT_LIMIT(1, SEC, 100),
        RATELIMIT_LIMIT(7, SEC, 7),
        RATELIMIT_WINDOW(10, MINUTE),
        RATELIMIT_LIMIT(1, UINT64_C(1) << 62, 1),
        RATELIMIT_LIMIT(16777213, SEC, 1000),
        RATELIMIT_LIMIT(1, 1, UINT64_C(1) << 62),
        RATELIMIT_LIMIT_SCOPE(16, 1, 1000000, 1),
        RATELIMIT_LIMIT_SCOPE(3, DAY, 50, 1),
    };
    int i;
    for (i = 0; i < rounds; i++) {
        uint64_t now = check_random() >> check_below(64), key = check_below(200);
        ratelimit_request req[3];
        ratelimit_result res[3];
        bool allowed[3], all;
        size_t j, count = 1 + (size_t)check_below(3), passed = 0;
        for (j = 0; j < count; j++) {
            req[j] = request("k", &limits[check_below(COUNT(limits))],
                             check_random() >> check_below(64));
            req[j].key = &key;
            req[j].key_len = 1 + (size_t)check_below(sizeof key);
            req[j].op = (ratelimit_op)check_below(RATELIMIT_RESET + 1);
            req[j].max_wait_ns = check_random() >> check_below(64);
        }
        all = ratelimit_table_decide(t, req, res, count, (ratelimit_mode)check_below(2), now);
        for (j = 0; j < count; j++) {
            CHECK(res[j].remaining <= res[j].burst);
            CHECK(res[j].allowed == (res[j].status == OK));
            CHECK(res[j].status != RATELIMIT_DENIED || res[j].retry_after_ns > 0);
            passed += res[j].allowed;
        }
        CHECK(all == (passed == count));
        CHECK(ratelimit_table_take_batch(t, req, allowed, count, now) <= count);
        (void)ratelimit_table_take_hash(t, check_random() >> check_below(64), &limits[0], 1, now,
                                        res);
        if (i % 16 == 0) {
            ratelimit_permit permit = {0, 0, 0};
            bool held = ratelimit_table_acquire(t, &key, 8, 1 + (uint32_t)check_below(64),
                                                1 + (check_random() >> (2 + check_below(62))), now,
                                                &permit);
            CHECK_U64(ratelimit_table_release(t, &key, 8, &permit, now),
                      held ? OK : RATELIMIT_LOST);
            CHECK_U64(ratelimit_table_release(t, &key, 8, &permit, now), RATELIMIT_LOST);
        }
        if (i % 256 == 0) {
            CHECK(ratelimit_table_sweep(t, now, check_below(2) * SEC) <=
                  counts_of(t, now).capacity);
            CHECK(counts_of(t, now).keys <= counts_of(t, now).capacity);
        }
    }
}

/* Each bit of the head in turn. What is attached all the same must be usable. */
static void a_damaged_head_is_refused_or_harmless(void)
{
    size_t bytes = ratelimit_table_bytes(60), bit, refused = 0;
    unsigned char *memory = walled(bytes), *head;
    ratelimit_table *t = table_made(memory, bytes, RATELIMIT_EVICT, 3);
    head = (unsigned char *)t;
    check_seed(3);
    for (bit = 0; bit < HEAD_BYTES * 8; bit++) {
        ratelimit_table *attached = NULL;
        ratelimit_status status;
        t = table_made(memory, bytes, RATELIMIT_EVICT, 3);
        head[bit / 8] ^= (unsigned char)(1 << bit % 8);
        status = ratelimit_table_attach(&attached, memory, bytes);
        place("bit", 0, bit);
        CHECK(status == OK || status == RATELIMIT_BAD_ARGUMENT || status == RATELIMIT_NO_MEMORY);
        refused += status != OK;
        if (status == OK)
            use_at_random(attached, 64);
    }
    place_end();
    CHECK(refused >= 8 * 80); /* magic, version, geometry, seed, hash, step and their check */
}

/* Whole bytes of it at random, many times over. */
static void a_head_overwritten_at_random_is_refused_or_harmless(void)
{
    size_t bytes = ratelimit_table_bytes(60);
    unsigned char *memory = walled(bytes);
    int round;
    check_seed(4);
    for (round = 0; round < 3000; round++) {
        ratelimit_table *t = table_made(memory, bytes, RATELIMIT_EVICT, 3);
        unsigned char *head = (unsigned char *)t;
        uint64_t i, hits = 1 + check_below(6);
        for (i = 0; i < hits; i++)
            head[check_below(HEAD_BYTES)] = (unsigned char)check_random();
        if (ratelimit_table_attach(&t, memory, bytes) == OK)
            use_at_random(t, 16);
    }
}

/* Lines hold anything: nothing crashes, nothing hangs, answers make sense. */
static void damaged_lines_crash_nothing(void)
{
    size_t bytes = ratelimit_table_bytes(60), i;
    unsigned char *memory = walled(bytes);
    int round;
    check_seed(5);
    for (round = 0; round < 40; round++) {
        ratelimit_table *t =
            table_made(memory, bytes, (ratelimit_full)(round % 4), (uint64_t)round);
        for (i = 0; i < bytes_of(t) - HEAD_BYTES; i++)
            ((unsigned char *)t)[HEAD_BYTES + i] = (unsigned char)check_random();
        CHECK_U64(ratelimit_table_attach(&t, memory, bytes), OK);
        use_at_random(t, 1000);
    }
}

/* A table whose processes all died with locks held: each line was a wait of its own. */
static void a_table_full_of_held_locks_costs_one_takeover(void)
{
    ratelimit_table *t = table_of_blocks(100, RATELIMIT_EVICT);
    uint64_t now_ns = 1000 * SEC;
    uint32_t i;
    CHECK(ratelimit_table_take(t, "a", 1, &hourly, 1, now_ns, NULL));
    for (i = 0; i < 800; i++)
        lines_of(t)[i].lock = 2 * i + 1;
    sleeps = 0;
    CHECK_U64(ratelimit_table_attach(&t, arena(0), ARENA_BYTES), OK);
    for (i = 0; i < 800; i++)
        CHECK_U64(lines_of(t)[i].lock, 2 * i + 2);
    CHECK(!ratelimit_table_take(t, "a", 1, &hourly, 1, now_ns, NULL)); /* nothing was forgotten */
    for (i = 0; i < 1000; i++)
        CHECK(ratelimit_table_take(t, &i, sizeof i, &hourly, 1, now_ns, NULL));
    CHECK(sleeps >= 1 && sleeps <= 4); /* RATELIMIT_TAKEOVER_MS is 1 */
}

static void a_few_held_locks_are_left_to_those_who_hold_them(void)
{
    ratelimit_table *t = table_of_blocks(100, RATELIMIT_EVICT);
    uint32_t i;
    for (i = 0; i < 8; i++)
        lines_of(t)[100 * i].lock = 1;
    sleeps = 0;
    CHECK_U64(ratelimit_table_attach(&t, arena(0), ARENA_BYTES), OK);
    for (i = 0; i < 8; i++)
        CHECK_U64(lines_of(t)[100 * i].lock, 1);
    CHECK_U64(sleeps, 0);
}

static line *watched;

static void the_living_go_on(void)
{
    uint32_t word = watched[45].lock;
    watched[300].lock += 2;
    watched[45].lock = watched[301].lock; /* no sum of words tells that from before */
    watched[301].lock = word;
    while_asleep = NULL;
}

/* Lines are looked at in 256 groups, every 256th line in one: where one of them has moved, all of
 * the group are left. */
static void locks_that_live_processes_hold_are_left(void)
{
    ratelimit_table *t = table_of_blocks(100, RATELIMIT_EVICT);
    uint32_t i;
    for (i = 0; i < 800; i++)
        lines_of(t)[i].lock = 2 * i + 1;
    lines_of(t)[46].lock = 4; /* free */
    watched = lines_of(t);
    while_asleep = the_living_go_on;
    CHECK_U64(ratelimit_table_attach(&t, arena(0), ARENA_BYTES), OK);
    for (i = 0; i < 800; i++) {
        uint32_t now = i == 300 ? 603 : i == 45 ? 603 : i == 301 ? 91 : 2 * i + 1;
        if (i != 46 && i % 256 != 44 && i % 256 != 45)
            now++;
        CHECK_U64(lines_of(t)[i].lock, i == 46 ? 4 : now);
    }
}

/* Tags that meet, locks that are free, buckets at random: what a damaged file more likely looks
 * like. */
static void damaged_buckets_under_right_tags_crash_nothing(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    int round;
    size_t i;
    check_seed(6);
    for (round = 0; round < 20000; round++) {
        uint64_t key = check_below(30);
        line *lines = lines_of(t);
        use_at_random(t, 2);
        (void)take_number(t, key, &per_second, check_random());
        for (i = 0; i < 8; i++) {
            lines[i].bucket[check_below(3)].rest = check_random();
            lines[i].bucket[check_below(3)].full_ns = check_random() >> check_below(64);
        }
    }
}

/* Damage gave two places one tag: the key goes on with one of them. */
static void a_key_with_two_places_goes_on_with_one(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    uint32_t tag = 0;
    size_t i, slot;
    CHECK(take_text(t, "key", 1, 0).allowed);
    for (i = 0; i < 8; i++)
        for (slot = 0; slot < 3; slot++)
            tag |= lines_of(t)[i].tag[slot];
    for (i = 0; i < 8; i++)
        for (slot = 0; slot < 3; slot++)
            lines_of(t)[i].tag[slot] = tag;
    while (take_text(t, "key", 1, 0).allowed)
        continue;
    CHECK_U64(ask_text(t, "key", RATELIMIT_RESET, 1, 0).remaining, 100);
    (void)ratelimit_table_sweep(t, HOUR, 0);
    CHECK_U64(counts_of(t, HOUR).keys, 0);
}

/* Whoever held a lock of this table died: all are held. */
static void a_lock_left_by_the_dead_is_taken_over(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    size_t i, held = 0;
    CHECK(take_text(t, "key", 99, 0).allowed);
    for (i = 0; i < 8; i++)
        lines_of(t)[i].lock |= 1;
    CHECK(take_text(t, "key", 1, 0).allowed);
    CHECK(!take_text(t, "key", 1, 0).allowed);
    for (i = 0; i < 8; i++)
        held += lines_of(t)[i].lock & 1;
    CHECK_U64(held, 7); /* only the one that was needed */
    CHECK(take_text(t, "another", 1, 0).allowed);
    CHECK_U64(counts_of(t, 0).keys, 2);
}

/* ---- a file ---------------------------------------------------------------------------------- */

static void *map_file(FILE *file, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (memory == MAP_FAILED)
        exit(2);
    return memory;
}

static void a_table_in_a_file_goes_on_where_it_stopped(void)
{
    size_t bytes = ratelimit_table_bytes(1000);
    FILE *file = tmpfile();
    ratelimit_table *t = NULL;
    void *memory, *elsewhere;
    uint64_t i, denied = 0;
    if (!file || ftruncate(fileno(file), (off_t)bytes) != 0)
        exit(2);
    memory = map_file(file, bytes);
    t = table_made(memory, bytes, RATELIMIT_REFUSE, 99);
    for (i = 0; i < 1000; i++)
        CHECK(take_number(t, i, &hourly, SEC));
    munmap(memory, bytes);
    elsewhere = map_file(file, 4096); /* so that the next one is likely to lie somewhere else */
    memory = map_file(file, bytes);
    t = NULL;
    CHECK_U64(ratelimit_table_attach(&t, memory, bytes), OK);
    for (i = 0; i < 1000; i++)
        denied += !take_number(t, i, &hourly, HOUR + SEC - 1);
    CHECK_U64(denied, 1000);
    for (i = 0; i < 1000; i++)
        CHECK(take_number(t, i, &hourly, HOUR + SEC));
    munmap(memory, bytes);
    munmap(elsewhere, 4096);
    fclose(file);
}

/* ---- full tables ----------------------------------------------------------------------------- */

/* One key that owes n seconds as of at_ns, in a table with three places left. */
typedef struct debtor {
    const char *key;
    uint64_t at_ns, n;
} debtor;

static ratelimit_table *table_with(ratelimit_full when_full, const debtor *debtors)
{
    ratelimit_table *t = table_with_places(3, when_full);
    int i;
    for (i = 0; i < 3; i++)
        CHECK(take_text(t, debtors[i].key, debtors[i].n, debtors[i].at_ns).allowed);
    CHECK_U64(counts_of(t, debtors[0].at_ns).keys, BLOCK_PLACES);
    return t;
}

/* Each order of the three debtors: what goes must not depend on which place it has. */
static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

static void check_who_goes(ratelimit_full policy, const debtor *debtors, uint64_t now_ns,
                           const char *victim)
{
    size_t o;
    for (o = 0; o < COUNT(orders); o++) {
        debtor ordered[3];
        ratelimit_table *t;
        int i;
        for (i = 0; i < 3; i++)
            ordered[i] = debtors[orders[o][i]];
        t = table_with(policy, ordered);
        place("order", 0, o);
        CHECK_U64(take_text(t, "new", 1, now_ns).remaining, 99);
        for (i = 0; i < 3; i++) {
            uint64_t owes = debtors[i].n - (now_ns - debtors[i].at_ns) / SEC;
            CHECK_U64(remaining_of(t, debtors[i].key, now_ns),
                      strcmp(debtors[i].key, victim) == 0 ? 100 : 100 - owes);
        }
        CHECK_U64(counts_of(t, now_ns).evicted, 1);
        CHECK_U64(counts_of(t, now_ns).refused, 0);
        CHECK_U64(counts_of(t, now_ns).in_debt, 3);
    }
    place_end();
}

static void evict_forgets_the_least_debt(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    static const debtor by_full_time[3] = {{"a", 0, 30}, {"b", 9 * SEC, 22}, {"c", 0, 32}};
    check_who_goes(RATELIMIT_EVICT, debtors, 0, "b");
    check_who_goes(RATELIMIT_EVICT, debtors, 5 * SEC, "b");
    check_who_goes(RATELIMIT_EVICT, by_full_time, 10 * SEC, "a");
}

/* When a key was seen is known as a power of two below its debt then. b owed more than 2^36 ns when
 * it was seen, c more than 2^35, a more than 2^34; each owes 20 s at 50 s. */
static void evict_forgets_of_equal_debts_the_one_seen_longest_ago(void)
{
    static const debtor debtors[3] = {{"a", 50 * SEC, 20}, {"b", 0, 70}, {"c", 30 * SEC, 40}};
    check_who_goes(RATELIMIT_EVICT, debtors, 50 * SEC, "b");
    check_who_goes(RATELIMIT_EVICT, debtors, 52 * SEC, "b");
}

static void evict_last_seen_forgets_the_one_seen_longest_ago_whatever_it_owes(void)
{
    static const debtor debtors[3] = {{"a", 29 * SEC, 5}, {"b", 0, 50}, {"c", 28 * SEC, 20}};
    check_who_goes(RATELIMIT_EVICT_LAST_SEEN, debtors, 30 * SEC, "b");
}

static void evict_last_seen_forgets_the_least_debt_where_it_cannot_tell_who_was_seen_first(void)
{
    static const debtor debtors[3] = {{"a", 0, 60}, {"b", 0, 50}, {"c", 0, 40}};
    check_who_goes(RATELIMIT_EVICT_LAST_SEEN, debtors, 0, "c");
    check_who_goes(RATELIMIT_EVICT_LAST_SEEN, debtors, SEC, "c");
}

/* a would be the one seen longest ago, had it not been refused at 45 s, alone or in a batch of
 * which it or another was refused. */
static void a_refusal_counts_as_being_seen(void)
{
    static const debtor debtors[3] = {{"a", 0, 100}, {"b", 40 * SEC, 20}, {"c", 42 * SEC, 20}};
    int how;
    for (how = 0; how < 4; how++) {
        ratelimit_table *t = table_with(RATELIMIT_EVICT_LAST_SEEN, debtors);
        ratelimit_request req[2];
        ratelimit_result res[2];
        place("how", 0, (size_t)how);
        req[0] = request("a", &per_second, how == 3 ? 1 : 99); /* skipped, or denied */
        req[1] = request("b", &per_second, 99);
        if (how)
            (void)ratelimit_table_decide(t, req, res, how == 1 ? 1 : 2,
                                         how == 1 ? RATELIMIT_EACH : RATELIMIT_ALL, 45 * SEC);
        CHECK(take_text(t, "new", 1, 46 * SEC).allowed);
        CHECK(how == 0 ? remaining_of(t, "a", 46 * SEC) == 100
                       : remaining_of(t, "a", 46 * SEC) < 50);
    }
    place_end();
}

static void inherit_gives_the_newcomer_the_least_debt(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    ratelimit_table *t = table_with(RATELIMIT_INHERIT, debtors);
    CHECK_U64(take_text(t, "new", 1, 0).remaining, 89);
    CHECK_U64(remaining_of(t, "a", 0), 70);
    CHECK_U64(remaining_of(t, "c", 0), 80);
    CHECK_U64(remaining_of(t, "b", 0), 89); /* a stranger again, who would inherit from "new" */
    CHECK_U64(take_text(t, "b", 1, 0).remaining, 88);
    CHECK_U64(counts_of(t, 0).evicted, 0);
}

/* What the heir owes is its victim's time, whatever the limits: an hour is an hour. */
static void inherit_takes_the_time_over_as_it_is(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    static const ratelimit_limit faster = RATELIMIT_LIMIT(10, SEC, 1000);
    static const ratelimit_limit shorter = RATELIMIT_LIMIT(10, SEC, 5);
    ratelimit_table *t = table_with(RATELIMIT_INHERIT, debtors);
    ratelimit_result res;
    CHECK(ratelimit_table_take(t, "new", 3, &faster, 1, 0, &res));
    CHECK_U64(res.reset_after_ns, 10 * SEC + SEC / 10);
    CHECK_U64(res.remaining, 1000 - 100 - 1);
    CHECK(!ratelimit_table_take(t, "other", 5, &shorter, 1, 0, &res));
    CHECK_U64(res.retry_after_ns, 10 * SEC + SEC / 10 - SEC / 2 + SEC / 10);
}

/* A block is a time, too: who gets the place of a blocked key has to wait as long. */
static void inherit_takes_over_what_a_block_has_left(void)
{
    ratelimit_table *t = table_with_places(1, RATELIMIT_INHERIT);
    ratelimit_request req = request("a", &per_second, 1);
    ratelimit_result res;
    req.op = RATELIMIT_BLOCK;
    req.max_wait_ns = HOUR;
    CHECK(ratelimit_table_decide_one(t, &req, 0, NULL));
    res = take_text(t, "new", 1, 0);
    CHECK(!res.allowed);
    CHECK(res.retry_after_ns >= HOUR && res.retry_after_ns <= HOUR + MS);
}

static void inherit_leaves_the_place_of_a_refused_newcomer_to_its_owner(void)
{
    static const debtor debtors[3] = {{"a", 0, 100}, {"b", 0, 100}, {"c", 0, 100}};
    static const uint64_t times[] = {0, SEC / 2, 5 * SEC, 60 * SEC};
    unsigned char before[HEAD_BYTES + BLOCK_BYTES];
    size_t i;
    for (i = 0; i < COUNT(times); i++) {
        ratelimit_table *t = table_with(RATELIMIT_INHERIT, debtors);
        uint64_t back = times[i] / SEC;
        place("times", 0, i);
        save_table(t, before);
        CHECK_U64(take_text(t, "new", back + 1, times[i]).status, RATELIMIT_DENIED);
        CHECK(!table_changed(t, before));
    }
    place_end();
}

/* However many keys share a few places: whatever the table lets through, a bucket per key lets
 * through, too. One by one, and in batches of all or none. */
static void inherit_lets_nothing_through_that_a_bucket_per_key_would_refuse(void)
{
    enum { KEYS = 300 };
    static const ratelimit_limit limit = RATELIMIT_LIMIT(3, SEC, 5);
    static ratelimit_bucket exact[KEYS];
    int most;
    check_seed(7);
    for (most = 1; most <= 4; most += 3) {
        ratelimit_table *t = table_with_places(18, RATELIMIT_INHERIT);
        uint64_t i, now = 0, allowed = 0, minted = 0, key[4];
        memset(exact, 0, sizeof exact);
        for (i = 0; i < 200000; i++) {
            ratelimit_request req[4];
            size_t count = 1 + (size_t)check_below((uint64_t)most), j;
            for (j = 0; j < count; j++) {
                key[j] = check_below(2) ? check_below(10) : check_below(KEYS);
                req[j] = request("k", &limit, 1);
                req[j].key = &key[j];
                req[j].key_len = sizeof key[j];
            }
            now += check_below(30 * MS);
            if (!ratelimit_table_decide(t, req, NULL, count, RATELIMIT_ALL, now))
                continue;
            allowed++;
            for (j = 0; j < count; j++)
                minted += !ratelimit_bucket_take(&exact[key[j]], &limit, 1, now, NULL);
        }
        CHECK_U64(minted, 0);
        CHECK(allowed > 1000);
    }
}

static void refuse_answers_full_until_a_place_is_free(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    ratelimit_table *t = table_with(RATELIMIT_REFUSE, debtors);
    unsigned char before[HEAD_BYTES + BLOCK_BYTES];
    ratelimit_result res;
    save_table(t, before);
    res = take_text(t, "new", 1, 0);
    CHECK_U64(res.status, RATELIMIT_FULL);
    CHECK_U64(res.burst, 100);
    CHECK_U64(res.retry_after_ns, 10 * SEC);
    CHECK_U64(take_text(t, "new", 1, 10 * SEC - 1).status, RATELIMIT_FULL);
    CHECK(!lines_changed(t, before));
    CHECK_U64(counts_of(t, 0).refused, 2);
    CHECK_U64(counts_of(t, 0).evicted, 0);
    CHECK_U64(take_text(t, "a", 1, 0).remaining, 69); /* who is there already goes on */
    CHECK(take_text(t, "new", 1, 10 * SEC).allowed);
}

/* One place is free, and two are wanted. It said: in 0 ns. */
static void a_batch_that_lacks_a_second_place_says_when_there_will_be_one(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    ratelimit_table *t = table_with(RATELIMIT_REFUSE, debtors);
    ratelimit_request q[2] = {RATELIMIT_REQUEST("new", 3, &per_second, 1),
                              RATELIMIT_REQUEST("newer", 5, &per_second, 1)};
    ratelimit_result res[2];
    CHECK(!ratelimit_table_decide(t, q, res, 2, RATELIMIT_ALL, 12 * SEC));
    CHECK_U64(res[0].status, RATELIMIT_SKIPPED);
    CHECK_U64(res[1].status, RATELIMIT_FULL);
    CHECK_U64(res[1].retry_after_ns, 8 * SEC);
    CHECK_U64(res[0].retry_after_ns, 8 * SEC);
    CHECK(!ratelimit_table_decide(t, q, res, 2, RATELIMIT_ALL, 20 * SEC - 1));
    CHECK(ratelimit_table_decide(t, q, res, 2, RATELIMIT_ALL, 20 * SEC));
}

/* No waiting for a place helps who asks for more than the burst. */
static void more_than_the_burst_is_never_also_in_a_full_table(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_with((ratelimit_full)policy, debtors);
        unsigned char before[HEAD_BYTES + BLOCK_BYTES];
        place("policy", 0, (size_t)policy);
        save_table(t, before);
        CHECK_U64(take_text(t, "new", 101, 0).status, RATELIMIT_NEVER);
        CHECK(!table_changed(t, before));
    }
    place_end();
}

/* They were FULL in all-or-none, and the whole batch with them. */
static void giving_back_to_an_unknown_key_needs_no_room_in_a_batch_either(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    static const ratelimit_op ops[] = {RATELIMIT_REFUND, RATELIMIT_CANCEL, RATELIMIT_RESET};
    size_t i;
    for (i = 0; i < COUNT(ops); i++) {
        ratelimit_table *t = table_with(RATELIMIT_REFUSE, debtors);
        ratelimit_request q[2] = {RATELIMIT_REQUEST("new", 3, &per_second, 1),
                                  RATELIMIT_REQUEST("a", 1, &per_second, 1)};
        ratelimit_result res[2];
        q[0].op = ops[i];
        q[0].max_wait_ns = 1;
        CHECK(ratelimit_table_decide(t, q, res, 2, RATELIMIT_ALL, 0));
        CHECK_U64(res[0].status, OK);
        CHECK_U64(res[0].taken, 0);
        CHECK_U64(res[1].remaining, 69);
        CHECK_U64(counts_of(t, 0).refused, 0);
    }
}

/* Requests that would change nothing push nobody out. */
static void a_request_without_effect_takes_no_place(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_EVICT_LAST_SEEN; policy++) {
        ratelimit_table *t = table_with((ratelimit_full)policy, debtors);
        static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
        unsigned char before[HEAD_BYTES + BLOCK_BYTES];
        place("policy", 0, (size_t)policy);
        save_table(t, before);
        CHECK(ask_text(t, "new", RATELIMIT_PEEK, 1, 0).allowed);
        CHECK_U64(ask_text(t, "new", RATELIMIT_PEEK, 1, 0).remaining, 100);
        CHECK(ask_text(t, "new", RATELIMIT_REFUND, 5, 0).allowed);
        CHECK(ask_text(t, "new", RATELIMIT_CANCEL, 5, 0).allowed);
        CHECK(ask_text(t, "new", RATELIMIT_RESET, 0, 0).allowed);
        CHECK_U64(ask_text(t, "new", RATELIMIT_RESET, 0, 0).remaining, 100);
        CHECK(!ask_text(t, "new", RATELIMIT_TAKE, 0, 0).allowed);
        CHECK(ratelimit_table_take(t, "new", 3, &unlimited, 5, 0, NULL));
        CHECK(!table_changed(t, before));
    }
    place_end();
}

static void unlimited_passes_through_a_table_without_room(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    ratelimit_table *t = table_with(RATELIMIT_REFUSE, debtors);
    CHECK(ratelimit_table_take(t, "new", 3, &unlimited, 5, 0, NULL));
    CHECK_U64(counts_of(t, 0).refused, 0);
}

/* Without a sweep: wave after wave of new keys, each when the one before is full again. */
static void places_that_are_full_again_are_used_again(void)
{
    int policy, wave;
    uint64_t i;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_of_blocks(1, (ratelimit_full)policy);
        place("policy", 0, (size_t)policy);
        for (wave = 0; wave < 10; wave++)
            for (i = 0; i < BLOCK_PLACES; i++)
                CHECK(take_number(t, (uint64_t)wave * 1000 + i, &hourly, (uint64_t)wave * HOUR));
        CHECK_U64(counts_of(t, 9 * HOUR).evicted + counts_of(t, 9 * HOUR).refused, 0);
        CHECK_U64(counts_of(t, 9 * HOUR).keys, BLOCK_PLACES);
        CHECK_U64(counts_of(t, 10 * HOUR).keys, 0);
    }
    place_end();
}

/* ---- what a bucket belongs to ---------------------------------------------------------------- */

/* Review B1: the second limit rescaled what was spent under the first, so that 600 passed. */
static void a_login_limit_beside_an_api_limit_on_one_key_stays_a_login_limit(void)
{
    static const ratelimit_limit logins = RATELIMIT_LIMIT(5, MINUTE, 10);
    static const ratelimit_limit api = RATELIMIT_LIMIT(100, SEC, 200);
    int mode;
    for (mode = 0; mode < 3; mode++) { /* one by one, each, all or none */
        ratelimit_table *t = table_of_blocks(2, RATELIMIT_EVICT);
        uint64_t second, login = 0, both = 0;
        place("mode", 0, (size_t)mode);
        for (second = 0; second < 600; second++) {
            ratelimit_request req[2] = {RATELIMIT_REQUEST("alice", 5, &logins, 1),
                                        RATELIMIT_REQUEST("alice", 5, &api, 1)};
            ratelimit_result res[2];
            if (mode == 0) {
                res[0].allowed =
                    ratelimit_table_take(t, "alice", 5, &logins, 1, second * SEC, NULL);
                res[1].allowed = ratelimit_table_take(t, "alice", 5, &api, 1, second * SEC, NULL);
            } else {
                (void)ratelimit_table_decide(
                    t, req, res, 2, mode == 1 ? RATELIMIT_EACH : RATELIMIT_ALL, second * SEC);
            }
            login += res[0].allowed;
            both += res[0].allowed && res[1].allowed;
        }
        CHECK_U64(login, 59);
        CHECK_U64(both, 59);
    }
    place_end();
}

static void sixty_packets_and_twenty_thousand_bytes_a_second_per_player_are_both_kept(void)
{
    static const ratelimit_limit packets = RATELIMIT_LIMIT(60, SEC, 60);
    static const ratelimit_limit bytes = RATELIMIT_LIMIT(20000, SEC, 20000);
    ratelimit_table *t = table_of_blocks(2, RATELIMIT_EVICT);
    uint32_t player = 7;
    uint64_t i, allowed = 0;
    for (i = 0; i < 200; i++) { /* 200 packets of 100 bytes, one each 5 ms */
        ratelimit_request req[2] = {RATELIMIT_REQUEST(&player, sizeof player, &packets, 1),
                                    RATELIMIT_REQUEST(&player, sizeof player, &bytes, 100)};
        allowed += ratelimit_table_decide(t, req, NULL, 2, RATELIMIT_ALL, i * 5 * MS);
    }
    CHECK_U64(allowed, 60 + 59); /* the first 60 at once, then one each 16.7 ms */
}

static void ten_a_second_and_a_hundred_an_hour_per_user_are_both_kept(void)
{
    static const ratelimit_limit second = RATELIMIT_LIMIT(10, SEC, 10);
    static const ratelimit_limit hour = RATELIMIT_LIMIT(100, HOUR, 100);
    ratelimit_table *t = table_of_blocks(2, RATELIMIT_EVICT);
    uint64_t now, allowed = 0;
    for (now = 0; now < MINUTE; now += SEC / 20) {
        ratelimit_request req[2] = {RATELIMIT_REQUEST("ann", 3, &second, 1),
                                    RATELIMIT_REQUEST("ann", 3, &hour, 1)};
        allowed += ratelimit_table_decide(t, req, NULL, 2, RATELIMIT_ALL, now);
    }
    CHECK_U64(allowed, 101);
}

/* The same scope is the same bucket, whatever the numbers; another scope is another bucket. */
static void a_bucket_belongs_to_a_key_and_a_scope(void)
{
    static const uint32_t scopes[] = {0, 1, UINT32_MAX};
    ratelimit_limit kinds[4];
    size_t s, k, other;
    kinds[0] = ratelimit_limit_make(1, SEC, 100);
    kinds[1] = ratelimit_limit_make(1, SEC, 50);
    kinds[2] = ratelimit_limit_make(7, HOUR, 100);
    kinds[3] = ratelimit_window_make(100, DAY);
    for (s = 0; s < COUNT(scopes); s++)
        for (k = 0; k < COUNT(kinds); k++) {
            ratelimit_table *t = table_of_blocks(1, RATELIMIT_REFUSE);
            ratelimit_limit limit = kinds[k];
            place("kind", scopes[s], k);
            limit.scope = scopes[s];
            CHECK(ratelimit_table_take(t, "key", 3, &limit, 10, DAY, NULL));
            CHECK_U64(counts_of(t, DAY).keys, 1);
            limit.scope++;
            CHECK(ratelimit_table_take(t, "key", 3, &limit, limit.burst, DAY, NULL));
            CHECK_U64(counts_of(t, DAY).keys, 2);
            for (other = 0; other < 3; other++) { /* 10 tokens spent stay spent */
                ratelimit_request req = request("key", &kinds[other], 1);
                ratelimit_limit under = kinds[other];
                ratelimit_result res;
                under.scope = scopes[s];
                req.limit = &under;
                req.op = RATELIMIT_PEEK;
                (void)ratelimit_table_decide_one(t, &req, DAY, &res);
                if (k < 3)
                    CHECK_U64(res.remaining, under.burst - 10);
            }
            CHECK_U64(counts_of(t, DAY).keys, 2);
        }
    place_end();
}

/* Two limits that differ in one number have different scopes, and so has a window. */
static void the_scope_of_a_limit_is_made_of_its_numbers(void)
{
    static const ratelimit_limit a = RATELIMIT_LIMIT(10, SEC, 20);
    ratelimit_limit same = ratelimit_limit_make(10, SEC, 20);
    ratelimit_limit others[5];
    size_t i, j;
    CHECK_U64(same.scope, a.scope);
    others[0] = ratelimit_limit_make(11, SEC, 20);
    others[1] = ratelimit_limit_make(10, SEC + 1, 20);
    others[2] = ratelimit_limit_make(10, SEC, 10);
    others[3] = ratelimit_limit_make(20, 2 * SEC, 20);
    others[4] = ratelimit_window_make(10, SEC); /* as others[2] but for its kind */
    for (i = 0; i < COUNT(others); i++) {
        CHECK(others[i].scope != a.scope);
        for (j = 0; j < i; j++)
            CHECK(others[i].scope != others[j].scope);
    }
}

/* ---- how well keys spread -------------------------------------------------------------------- */

/* max_keys keys, all in debt: fewer than 1 in 1,000 may be forced out. Small tables are filled many
 * times over. */
static void fewer_than_one_key_in_a_thousand_is_forced_out(void)
{
    static const size_t sizes[] = {1,    2,    3,    5,     8,     11,    12,    13,    16,  24,
                                   25,   37,   50,   64,    100,   127,   200,   500,   777, 1000,
                                   2000, 4000, 8191, 10000, 20000, 50000, 65536, 100000};
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100000)];
    size_t i;
    for (i = 0; i < COUNT(sizes); i++) {
        size_t keys = sizes[i], total = 0, k;
        uint64_t seed = 0, forced_out = 0;
        do {
            ratelimit_table *t =
                table_made(memory, ratelimit_table_bytes(keys), RATELIMIT_EVICT, ++seed);
            for (k = 0; k < keys; k++)
                CHECK(take_number(t, k, &hourly, 0));
            forced_out += counts_of(t, 0).evicted;
            total += keys;
        } while (total < 100000 || seed < 2);
        place("sizes", 0, i);
        CHECK(forced_out * 1000 < total);
    }
    place_end();
}
static void nine_of_ten_keys_are_in_their_home_line_at_half_full(void)
{
    static const size_t sizes[] = {100, 1000, 10000, 50000};
    static unsigned char memory[RATELIMIT_TABLE_BYTES(50000)];
    size_t i;
    for (i = 0; i < COUNT(sizes); i++) {
        uint64_t k, home = 0, found = 0, seed;
        for (seed = 1; seed <= 3; seed++) {
            ratelimit_table *t =
                table_made(memory, ratelimit_table_bytes(sizes[i]), RATELIMIT_EVICT, seed);
            for (k = 0; k < sizes[i]; k++)
                (void)take_number(t, k, &hourly, 0);
            for (k = 0; k < sizes[i]; k++) {
                uint64_t at =
                    ratelimit_priv_place(ratelimit_table_hash(t, &k, sizeof k), hourly.scope);
                const line *l = (const line *)(const void *)ratelimit_priv_home(t, at);
                uint32_t tag = ratelimit_priv_tag(at);
                home += l->tag[0] == tag || l->tag[1] == tag || l->tag[2] == tag;
                found += !take_number(t, k, &hourly, 0);
            }
        }
        place("sizes", 0, i);
        CHECK(home * 10 >= 3 * sizes[i] * 9);
        CHECK(found * 1000 >= 3 * sizes[i] * 999);
    }
    place_end();
}

/* The words of a line are compared at once, its lock with them. */
static void a_lock_word_that_equals_a_tag_is_no_place(void)
{
    uint64_t k;
    for (k = 0; k < 200; k++) {
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        uint64_t at = ratelimit_priv_place(ratelimit_table_hash(t, &k, sizeof k), hourly.scope);
        uint32_t tag = ratelimit_priv_tag(at);
        ratelimit_priv_line *lines = ratelimit_priv_lines(t);
        size_t i;
        if (tag & 1) /* a lock that is held */
            continue;
        for (i = 0; i < BLOCK_PLACES / 3; i++)
            if (&lines[i] != ratelimit_priv_home(t, at) || k % 2)
                lines[i].lock = tag;
        CHECK(ratelimit_table_take(t, &k, sizeof k, &hourly, 1, SEC, NULL));
        CHECK_U64(counts_of(t, SEC).keys, 1);
        CHECK(!ratelimit_table_take(t, &k, sizeof k, &hourly, 1, SEC, NULL));
    }
}

/* ---- hashes ---------------------------------------------------------------------------------- */

static ratelimit_table *table_hashed(ratelimit_hash hash, uint64_t seed0, uint64_t seed1)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = seed0;
    options.seed[1] = seed1;
    options.hash = hash;
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), OK);
    return t;
}

static void another_seed_puts_keys_elsewhere(void)
{
    int hash;
    for (hash = RATELIMIT_HASH_SIP; hash <= (int)RATELIMIT_HASH_FAST; hash++) {
        uint64_t first[1000], k, same = 0, seed;
        for (seed = 0; seed < 3; seed++) {
            ratelimit_table *t =
                table_hashed((ratelimit_hash)hash, seed == 1 ? 2 : 1, seed == 2 ? 2 : 1);
            for (k = 0; k < 1000; k++) {
                uint64_t is = ratelimit_table_hash(t, &k, sizeof k);
                same += seed && ((uint32_t)is == (uint32_t)first[k] || is >> 32 == first[k] >> 32);
                if (!seed)
                    first[k] = is;
            }
        }
        CHECK_U64(same, 0);
    }
}

/* Without options a table has a seed of its own. */
static void two_tables_without_a_seed_have_different_ones(void)
{
    ratelimit_table *a = NULL, *b = NULL;
    CHECK_U64(ratelimit_table_init(&a, arena(0), ARENA_BYTES, NULL), OK);
    CHECK_U64(ratelimit_table_init(&b, arena(1), ARENA_BYTES, NULL), OK);
    CHECK(ratelimit_table_hash(a, "key", 3) != ratelimit_table_hash(b, "key", 3));
}

/* What the system gives: so many calls are ended by a signal, then so many bytes come. */
static int interrupted;
static ssize_t random_gives = 16;

ssize_t getrandom(void *bytes, size_t count, unsigned flags)
{
    static unsigned char next;
    if (flags || count != 16 || interrupted-- > 0)
        return -1;
    memset(bytes, ++next, count);
    return random_gives;
}

static void a_seed_comes_from_the_system_or_there_is_no_table(void)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    size_t i;
    memset(&options, 0, sizeof options);
    memset(arena(0), 0x5a, ARENA_BYTES);
    random_gives = -1;
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    random_gives = 8; /* half a seed is none */
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    CHECK(!t);
    for (i = 0; i < ARENA_BYTES && arena(0)[i] == 0x5a; i++)
        ;
    CHECK_U64(i, ARENA_BYTES); /* nothing was written */
    options.seed[1] = 1;       /* a seed of the caller's needs no system */
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), OK);
    random_gives = 16;
    interrupted = 5;
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, NULL), OK);
    interrupted = 0;
}

/* SipHash by its paper, with the rounds as arguments, slowly. */
static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void sip_round(uint64_t *v)
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

static uint64_t sip_hash(int rounds, int last_rounds, const unsigned char *key, size_t len,
                         const uint64_t *seed)
{
    uint64_t v[4];
    size_t i, words = len / 8 + 1;
    int r;
    v[0] = seed[0] ^ UINT64_C(0x736f6d6570736575);
    v[1] = seed[1] ^ UINT64_C(0x646f72616e646f6d);
    v[2] = seed[0] ^ UINT64_C(0x6c7967656e657261);
    v[3] = seed[1] ^ UINT64_C(0x7465646279746573);
    for (i = 0; i < words; i++) {
        uint64_t word = i + 1 == words ? (uint64_t)(len & 255) << 56 : 0;
        size_t b;
        for (b = 0; b < 8 && 8 * i + b < len; b++)
            word |= (uint64_t)key[8 * i + b] << (8 * b);
        v[3] ^= word;
        for (r = 0; r < rounds; r++)
            sip_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for (r = 0; r < last_rounds; r++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static void keys_are_hashed_by_siphash_1_3(void)
{
    static const uint64_t paper_seed[2] = {UINT64_C(0x0706050403020100),
                                           UINT64_C(0x0f0e0d0c0b0a0908)};
    ratelimit_table *t = table_hashed(RATELIMIT_HASH_SIP, paper_seed[0], paper_seed[1]);
    unsigned char key[300];
    size_t len;
    for (len = 0; len < sizeof key; len++)
        key[len] = (unsigned char)len;
    /* the paper's own example, appendix A, shows that ours above is SipHash */
    CHECK_U64(sip_hash(2, 4, key, 15, paper_seed), UINT64_C(0xa129ca6149be45e5));
    for (len = 1; len <= sizeof key; len++)
        CHECK_U64(ratelimit_table_hash(t, key, len), sip_hash(1, 3, key, len, paper_seed));
}

/* Of both halves of the hash: one gives the line, the other the tag. */
static void check_no_two_are_alike(uint64_t *hash, size_t count)
{
    size_t i, j, alike = 0;
    for (i = 0; i < count; i++)
        for (j = 0; j < i; j++)
            alike += hash[i] == hash[j];
    CHECK_U64(alike, 0);
}

/* Keys that differ in length, in one byte, in what is zero: no two are alike. */
static void the_fast_hash_tells_keys_apart(void)
{
    static uint64_t hash[4096];
    unsigned char key[64];
    uint64_t seed;
    size_t n, len, at;
    for (seed = 1; seed <= 3; seed++) {
        ratelimit_table *t = table_hashed(RATELIMIT_HASH_FAST, seed, 0);
        memset(key, 0, sizeof key);
        for (n = 0, len = 1; len <= 64; len++) { /* zeros, and zeros with one bit */
            hash[n++] = ratelimit_table_hash(t, key, len);
            for (at = 0; at < 8 * len; at += 1 + len / 4) {
                key[at / 8] ^= (unsigned char)(1 << at % 8);
                hash[n++] = ratelimit_table_hash(t, key, len);
                key[at / 8] ^= (unsigned char)(1 << at % 8);
            }
        }
        CHECK(n > 1000 && n <= COUNT(hash));
        check_no_two_are_alike(hash, n);
        for (n = 0; n < 2000; n++) { /* numbers, and words of 8 bytes in other places */
            uint64_t words[3] = {0, 0, 0};
            words[n % 3] = n / 3 + 1;
            hash[n] = ratelimit_table_hash(t, words, sizeof words);
        }
        check_no_two_are_alike(hash, n);
    }
}

/* Each bit of a key turns over about half of the bits of the hash. */
static void check_each_bit_counts(ratelimit_hash which)
{
    static const size_t lens[] = {1, 3, 4, 7, 8, 11, 16, 17, 33, 40};
    size_t l, bit, out;
    for (l = 0; l < COUNT(lens); l++)
        for (bit = 0; bit < 8 * lens[l]; bit++) {
            uint64_t turned[64], round;
            memset(turned, 0, sizeof turned);
            for (round = 0; round < 256; round++) {
                ratelimit_table *t = NULL;
                unsigned char key[40];
                uint64_t before, after;
                size_t i;
                static ratelimit_table *tables[256];
                static unsigned char memory[256][HEAD_BYTES + BLOCK_BYTES + 64];
                if (l == 0 && bit == 0) {
                    ratelimit_table_options options;
                    memset(&options, 0, sizeof options);
                    options.seed[0] = check_random();
                    options.seed[1] = check_random();
                    options.hash = which;
                    CHECK_U64(ratelimit_table_init(&tables[round], memory[round],
                                                   sizeof memory[round], &options),
                              OK);
                }
                t = tables[round];
                for (i = 0; i < lens[l]; i++)
                    key[i] = (unsigned char)check_random();
                before = ratelimit_table_hash(t, key, lens[l]);
                key[bit / 8] ^= (unsigned char)(1 << bit % 8);
                after = ratelimit_table_hash(t, key, lens[l]);
                for (out = 0; out < 64; out++)
                    turned[out] += (before ^ after) >> out & 1;
            }
            for (out = 0; out < 64; out++) /* 128 +- 6 deviations of 8 */
                CHECK(turned[out] > 128 - 48 && turned[out] < 128 + 48);
        }
}

static void each_bit_of_a_key_counts_in_each_bit_of_its_hash(void)
{
    check_seed(11);
    check_each_bit_counts(RATELIMIT_HASH_SIP);
    check_each_bit_counts(RATELIMIT_HASH_FAST);
}

/* As many keys are forced out as with SipHash: numbers in order, texts, addresses. */
static void the_fast_hash_spreads_keys_of_every_kind(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(20000)];
    int kind;
    uint64_t i;
    for (kind = 0; kind < 5; kind++) {
        ratelimit_table_options options;
        ratelimit_table *t = NULL;
        memset(&options, 0, sizeof options);
        options.seed[0] = (uint64_t)kind + 1;
        options.hash = RATELIMIT_HASH_FAST;
        CHECK_U64(ratelimit_table_init(&t, memory, sizeof memory, &options), OK);
        for (i = 0; i < 20000; i++) {
            char text[40];
            uint32_t small = (uint32_t)(i << 8);
            uint64_t large = i << 40;
            const void *key = kind == 0   ? (const void *)&i
                              : kind == 1 ? (const void *)&small
                                          : &large;
            size_t len = kind == 1 ? sizeof small : sizeof i;
            if (kind > 2) {
                key = text;
                len = (size_t)snprintf(text, sizeof text, kind == 3 ? "player %d" : "10.0.%d",
                                       (int)i);
            }
            CHECK(ratelimit_table_take(t, key, len, &hourly, 1, 0, NULL));
        }
        place("kind", 0, (size_t)kind);
        CHECK(counts_of(t, 0).evicted < 20);
        CHECK(counts_of(t, 0).keys > 20000 - 20);
    }
    place_end();
}

/* A key, its hash, and its hash made by hand are one bucket, and every take of it is the same. */
static void a_take_by_the_hash_of_a_key_is_a_take_of_the_key(void)
{
    static const ratelimit_limit limits[] = {
        RATELIMIT_LIMIT(1, SEC, 5), RATELIMIT_LIMIT(7, SEC, 7), RATELIMIT_WINDOW(4, 10 * SEC),
        RATELIMIT_UNLIMITED,        RATELIMIT_LIMIT(0, SEC, 1),
    };
    int hash;
    check_seed(12);
    for (hash = RATELIMIT_HASH_SIP; hash <= (int)RATELIMIT_HASH_FAST; hash++) {
        ratelimit_table *t = table_hashed((ratelimit_hash)hash, 1, 2), *by_hash = NULL;
        uint64_t i, now = 0;
        memcpy(arena(1), arena(0), ARENA_BYTES);
        CHECK_U64(ratelimit_table_attach(&by_hash, arena(1), ARENA_BYTES), OK);
        for (i = 0; i < 50000; i++) {
            uint64_t key = check_below(40), n = check_below(10) ? 1 : check_below(9);
            const ratelimit_limit *l = &limits[check_below(COUNT(limits))];
            uint64_t id = ratelimit_table_hash(by_hash, &key, sizeof key);
            ratelimit_result a, b;
            bool quiet = check_below(2) != 0;
            memset(&a, 0, sizeof a);
            memset(&b, 0, sizeof b);
            now += check_below(SEC / 4);
            CHECK(ratelimit_table_take(t, &key, sizeof key, l, n, now, quiet ? NULL : &a) ==
                  ratelimit_table_take_hash(by_hash, id, l, n, now, quiet ? NULL : &b));
            CHECK(same_result(&a, &b));
        }
        CHECK(memcmp(arena(0), arena(1), ARENA_BYTES) == 0);
    }
}

/* 0 is a hash like any other, and so are those of which a half is 0 or all ones. */
static void any_64_bits_are_a_hash(void)
{
    static const uint64_t hashes[] = {0,
                                      1,
                                      UINT64_MAX,
                                      UINT64_C(1) << 32,
                                      UINT32_MAX,
                                      UINT64_C(0xffffffff00000000),
                                      UINT64_C(0x8000000000000000)};
    static const uint32_t scopes[] = {0, 1, UINT32_MAX, 77};
    size_t i, s;
    for (s = 0; s < COUNT(scopes); s++)
        for (i = 0; i < COUNT(hashes); i++) {
            ratelimit_table *t = table_made(arena(0), ARENA_BYTES, RATELIMIT_REFUSE, 1);
            ratelimit_limit limit = ratelimit_limit_make(1, HOUR, 3);
            uint64_t allowed = 0, k;
            limit.scope = scopes[s];
            for (k = 0; k < 10; k++)
                allowed += ratelimit_table_take_hash(t, hashes[i], &limit, 1, 0, NULL);
            CHECK_U64(allowed, 3);
            CHECK_U64(counts_of(t, 0).keys, 1);
            limit.scope++; /* another scope is another bucket */
            CHECK(ratelimit_table_take_hash(t, hashes[i], &limit, 3, 0, NULL));
            CHECK_U64(counts_of(t, 0).keys, 2);
        }
}

static void what_has_no_hash_is_zero_or_bad(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_result res;
    CHECK_U64(ratelimit_table_hash(NULL, "key", 3), 0);
    CHECK_U64(ratelimit_table_hash(t, NULL, 3), 0);
    CHECK_U64(ratelimit_table_hash(t, "key", 0), 0);
    CHECK(!ratelimit_table_take_hash(NULL, 5, &hourly, 1, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_table_take_hash(t, 5, NULL, 1, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_LIMIT);
    CHECK(!ratelimit_table_take_hash(t, 5, &hourly, 0, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_COUNT);
    CHECK(!ratelimit_table_take_hash(t, 5, &hourly, 2, 0, &res));
    CHECK_U64(res.status, RATELIMIT_NEVER);
    CHECK(!ratelimit_table_take_hash(NULL, 5, &hourly, 1, 0, NULL));
    CHECK(!ratelimit_table_take_hash(t, 5, NULL, 1, 0, NULL));
    CHECK_U64(counts_of(t, 0).keys, 0);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void no_byte_behind_a_key_is_read(void)
{
    int hash;
    for (hash = RATELIMIT_HASH_SIP; hash <= (int)RATELIMIT_HASH_FAST; hash++) {
        ratelimit_table *t = table_hashed((ratelimit_hash)hash, 1, 1);
        unsigned char *wall = walled(4096) + 4096;
        unsigned char middle[256];
        size_t len;
        for (len = 1; len <= 200; len++) {
            memset(middle, (int)len, sizeof middle);
            memset(wall - len, (int)len, len);
            CHECK(ratelimit_table_take(t, wall - len, len, &hourly, 1, 0, NULL));
            CHECK(
                !ratelimit_table_take(t, middle + 3, len, &hourly, 1, 0, NULL)); /* the same key */
        }
    }
}

/* A page before the key that cannot be read: the last words of a key are read by one load. */
static void no_byte_before_a_key_is_read(void)
{
    unsigned char *page = (unsigned char *)mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int hash;
    if (page == MAP_FAILED || mprotect(page, 4096, PROT_NONE) != 0)
        exit(2);
    for (hash = RATELIMIT_HASH_SIP; hash <= (int)RATELIMIT_HASH_FAST; hash++) {
        ratelimit_table *t = table_hashed((ratelimit_hash)hash, 1, 1);
        size_t len;
        memset(page + 4096, 1, 4096);
        for (len = 1; len <= 200; len++)
            CHECK(ratelimit_table_take(t, page + 4096, len, &hourly, 1, 0, NULL));
    }
    munmap(page, 3 * 4096);
}

static void a_megabyte_is_a_key(void)
{
    static unsigned char key[1 << 20];
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_REFUSE);
    key[sizeof key - 1] = 0;
    CHECK(ratelimit_table_take(t, key, sizeof key, &hourly, 1, 0, NULL));
    CHECK(!ratelimit_table_take(t, key, sizeof key, &hourly, 1, 0, NULL));
    key[sizeof key - 1] = 1;
    CHECK(ratelimit_table_take(t, key, sizeof key, &hourly, 1, 0, NULL));
    CHECK(ratelimit_table_take(t, key, sizeof key - 1, &hourly, 1, 0, NULL));
    CHECK(ratelimit_table_take(t, key + 1, sizeof key - 1, &hourly, 1, 0, NULL));
}

/* All keys of one byte, all of two zero-rich bytes: each its own bucket. */
static void short_binary_keys_are_all_different(void)
{
    ratelimit_table *t = table_made(arena(0), ARENA_BYTES, RATELIMIT_REFUSE, 1);
    unsigned char key[2];
    int a, b;
    for (a = 0; a < 256; a++) {
        key[0] = (unsigned char)a;
        CHECK(ratelimit_table_take(t, key, 1, &hourly, 1, 0, NULL));
        for (b = 0; b < 3; b++) {
            key[1] = (unsigned char)b;
            CHECK(ratelimit_table_take(t, key, 2, &hourly, 1, 0, NULL));
        }
    }
    CHECK_U64(counts_of(t, 0).keys, 256 * 4);
}

static void null_and_empty_keys_are_bad_and_so_is_no_table(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req = request("key", &hourly, 1);
    ratelimit_result res;
    CHECK(!ratelimit_table_take(t, NULL, 3, &hourly, 1, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_KEY);
    CHECK(!ratelimit_table_take(t, "key", 0, &hourly, 1, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_KEY);
    CHECK(!ratelimit_table_take(t, "key", 3, NULL, 1, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_LIMIT);
    CHECK(!ratelimit_table_take(t, "key", 3, &hourly, 0, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_COUNT);
    CHECK(!ratelimit_table_take(NULL, "key", 3, &hourly, 1, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_table_take(NULL, "key", 3, &hourly, 1, 0, NULL));
    CHECK(!ratelimit_table_decide_one(NULL, &req, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    memset(&res, 0, sizeof res);
    CHECK(!ratelimit_table_decide_one(t, NULL, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_table_decide_one(t, NULL, 0, NULL));
    req.key_len = 0;
    CHECK(!ratelimit_table_decide_one(t, &req, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_table_sweep(NULL, 0, 0), 0);
    ratelimit_table_stats(t, 0, NULL);
    CHECK_U64(counts_of(NULL, 0).capacity, 0);
    CHECK_U64(counts_of(t, 0).keys, 0);
}

/* ---- sweep and stats ------------------------------------------------------------------------- */

static void sweep_drops_what_is_full_again_and_nothing_else(void)
{
    ratelimit_table *t = table_made(arena(0), 65536, RATELIMIT_EVICT, 1);
    uint64_t i;
    for (i = 0; i < 300; i++) /* a third each full again at 10, 20 and 30 s */
        CHECK(ratelimit_table_take(t, &i, sizeof i, &per_second, 10 * (1 + i % 3), 0, NULL));
    CHECK_U64(ratelimit_table_sweep(t, 0, 0), 0);
    CHECK_U64(ratelimit_table_sweep(t, 10 * SEC - 1, 0), 0);
    CHECK_U64(counts_of(t, 10 * SEC - 1).keys, 300);
    CHECK_U64(counts_of(t, 10 * SEC).keys, 200);
    CHECK_U64(ratelimit_table_sweep(t, 10 * SEC, 0), 100);
    CHECK_U64(ratelimit_table_sweep(t, 10 * SEC, 0), 0);
    CHECK_U64(ratelimit_table_sweep(t, 30 * SEC, 0), 200);
    CHECK_U64(counts_of(t, 0).keys, 0);
    CHECK_U64(counts_of(t, 0).evicted, 0);
}

/* When a key was last seen is known as the power of two below its debt then. a and b are seen with
 * 100 s of debt, that is more than 2^36 ns: idle for 10 s when 2^36 - 10 s are left. */
static void sweep_with_an_idle_time_drops_debts_nobody_asked_for(void)
{
    static const debtor debtors[3] = {{"a", 0, 100}, {"b", 0, 100}, {"c", 0, 100}};
    ratelimit_table *t = table_with(RATELIMIT_EVICT, debtors);
    CHECK(!take_text(t, "b", 100, 40 * SEC).allowed);           /* asked for, though refused */
    CHECK(!take_text(t, "c", 100, 40 * SEC).allowed);           /* more than 2^35 ns left */
    CHECK_U64(ratelimit_table_sweep(t, 42 * SEC, 0), 0);        /* idle time 0: nobody */
    CHECK_U64(ratelimit_table_sweep(t, 41 * SEC, 10 * SEC), 0); /* 68.7 - 59 s */
    CHECK_U64(ratelimit_table_sweep(t, 42 * SEC, 10 * SEC), 1); /* a */
    CHECK_U64(remaining_of(t, "a", 42 * SEC), 100);
    CHECK(!take_text(t, "c", 100, 70 * SEC).allowed); /* more than 2^34 ns left */
    CHECK_U64(ratelimit_table_sweep(t, 75 * SEC, 10 * SEC), 0);
    CHECK_U64(ratelimit_table_sweep(t, 76 * SEC, 10 * SEC), 1); /* b: 34.4 - 24 s */
    CHECK_U64(ratelimit_table_sweep(t, 92 * SEC, 10 * SEC), 0);
    CHECK_U64(ratelimit_table_sweep(t, 93 * SEC, 10 * SEC), 1); /* c: 17.2 - 7 s */
    CHECK_U64(counts_of(t, 93 * SEC).evicted, 3);
    CHECK_U64(counts_of(t, 93 * SEC).in_debt, 0);
    CHECK_U64(counts_of(t, 93 * SEC).keys, BLOCK_PLACES - 3); /* permits are never idle */
}

/* A key that owes 2^35 ns when it is seen, and 2^34 ns now, was seen 2^34 ns ago, or longer. */
static void sweep_drops_what_is_idle_for_longer_than_its_idle_time(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, UINT64_C(1) << 35, 4);
    const uint64_t half = UINT64_C(1) << 34;
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    CHECK(ratelimit_table_take(t, "k", 1, &limit, 1, 0, NULL));
    CHECK_U64(ratelimit_table_sweep(t, half, half), 0);
    CHECK_U64(ratelimit_table_sweep(t, half, half - 1), 1);
}

/* Never before its idle time, and at most as much later as it owed when it was seen. */
static void sweep_drops_an_idle_key_after_its_idle_time_and_before_it_is_twice_as_long(void)
{
    static const ratelimit_limit fine = RATELIMIT_LIMIT(1, MS, 1000000);
    int round;
    check_seed(13);
    for (round = 0; round < 20000; round++) {
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        uint64_t seen = check_below(1000 * SEC), owes = 1 + check_below(fine.burst);
        uint64_t idle = 1 + check_below(owes * MS), at = seen + check_below(owes * MS);
        size_t dropped;
        CHECK(ratelimit_table_take(t, "key", 3, &fine, owes, seen, NULL));
        dropped = ratelimit_table_sweep(t, at, idle);
        if (at - seen <= idle)
            CHECK_U64(dropped, 0);
        if (at - seen > idle + owes * MS / 2 + 1)
            CHECK_U64(dropped, 1);
    }
}

/* F2: a refusal in a batch of all or none did not count as asking. */
static void a_key_that_a_batch_of_all_refuses_again_and_again_is_not_idle(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(5, MINUTE, 10);
    int mode, blocked;
    for (mode = RATELIMIT_EACH; mode <= (int)RATELIMIT_ALL; mode++)
        for (blocked = 0; blocked < 2; blocked++) {
            ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
            ratelimit_request req[2] = {RATELIMIT_REQUEST("mallory", 7, &limit, 1),
                                        RATELIMIT_REQUEST("mallory", 7, &limit, 10)};
            ratelimit_result res[2];
            uint64_t s;
            place("mode", 0, (size_t)mode);
            req[0].op = blocked ? RATELIMIT_BLOCK : RATELIMIT_CHARGE;
            req[0].n = 310; /* an hour until one passes */
            req[0].max_wait_ns = HOUR;
            CHECK(ratelimit_table_decide_one(t, req, 0, res));
            req[0].op = RATELIMIT_TAKE;
            req[0].n = 1;
            for (s = 1; s < 3600; s++) {
                CHECK(!ratelimit_table_decide(t, req, res, 2, (ratelimit_mode)mode, s * SEC));
                CHECK_U64(ratelimit_table_sweep(t, s * SEC, 10 * MINUTE), 0);
            }
            CHECK(!take_number(t, 1, &limit, 3599 * SEC) ||
                  !ratelimit_table_take(t, "mallory", 7, &limit, 1, 3599 * SEC, NULL));
        }
    place_end();
}

/* A block is never idle, whoever asks for it or not. */
static void sweep_with_an_idle_time_leaves_a_block_until_it_and_its_window_are_over(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req = request("a", &per_second, 1);
    req.op = RATELIMIT_BLOCK;
    req.max_wait_ns = HOUR;
    CHECK(ratelimit_table_decide_one(t, &req, 0, NULL));
    CHECK_U64(ratelimit_table_sweep(t, HOUR - 1, 1), 0);
    CHECK(!take_text(t, "a", 1, HOUR - 1).allowed);
    CHECK_U64(ratelimit_table_sweep(t, HOUR, 0), 0); /* from now on it owes 99 s */
    CHECK_U64(ratelimit_table_sweep(t, HOUR + 99 * SEC - 1, 0), 0);
    CHECK_U64(remaining_of(t, "a", HOUR + 98 * SEC), 99);
    CHECK_U64(ratelimit_table_sweep(t, HOUR + 99 * SEC + MS, 0), 1);
}

static void stats_tell_permits_from_keys_in_debt(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_REFUSE);
    ratelimit_table_counts counts;
    ratelimit_permit permit[2];
    uint64_t i;
    CHECK(ratelimit_table_acquire(t, "key", 3, 5, SEC, 0, &permit[0]));
    CHECK(ratelimit_table_acquire(t, "key", 3, 5, SEC, 0, &permit[1]));
    for (i = 0; i < 7; i++)
        CHECK(take_number(t, i, &hourly, 0));
    counts = counts_of(t, 0);
    CHECK_U64(counts.capacity, BLOCK_PLACES);
    CHECK_U64(counts.bytes, HEAD_BYTES + BLOCK_BYTES);
    CHECK_U64(counts.keys, 9);
    CHECK_U64(counts.in_debt, 7);
    CHECK_U64(ratelimit_table_release(t, "key", 3, &permit[1], 0), OK);
    CHECK_U64(counts_of(t, 0).keys, 8);
    CHECK_U64(counts_of(t, SEC - 1).keys, 8);
    CHECK_U64(counts_of(t, SEC).keys, 7);
}

/* ---- the clock ------------------------------------------------------------------------------- */

/* All of a window of 100 s is spent. A debt that is longer by more than the step is of a clock that
 * was set back. */
static void the_step_that_is_forgiven_is_an_option(void)
{
    static const struct {
        uint64_t step_ns, back_ns;
        bool forgiven;
    } rows[] = {
        {0, 10 * SEC, false},
        {0, 10 * SEC + 1, true},
        {SEC, SEC, false},
        {SEC, SEC + 1, true},
        {FOREVER, 900 * SEC, false},
        {500 * SEC, 500 * SEC, false},
        {500 * SEC, 500 * SEC + 1, true},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_table_options options;
        ratelimit_table *t = NULL;
        uint64_t at = 1000 * SEC, retry;
        memset(&options, 0, sizeof options);
        options.step_ns = rows[i].step_ns;
        CHECK_U64(ratelimit_table_init(&t, arena(0), 1024, &options), OK);
        CHECK(take_text(t, "key", 100, at).allowed);
        retry = take_text(t, "key", 1, at - rows[i].back_ns).retry_after_ns;
        place("rows", 0, i);
        CHECK_U64(retry, rows[i].forgiven ? SEC : SEC + rows[i].back_ns);
    }
    place_end();
}

/* ---- batches --------------------------------------------------------------------------------- */

static const ratelimit_limit batch_limits[] = {
    RATELIMIT_LIMIT(1, SEC, 5), RATELIMIT_LIMIT(7, SEC, 7), RATELIMIT_WINDOW(4, 10 * SEC),
    RATELIMIT_UNLIMITED,        RATELIMIT_LIMIT(0, SEC, 1), RATELIMIT_LIMIT(3, MINUTE, 2),
};

static const char *const batch_keys[] = {"a", "b", "c", "d", "e", "f", "g", "h", "", "longer key"};

static ratelimit_request random_request(void)
{
    ratelimit_request req =
        request(batch_keys[check_below(COUNT(batch_keys))],
                &batch_limits[check_below(COUNT(batch_limits))], check_below(4));
    req.op = check_below(2) ? RATELIMIT_TAKE : (ratelimit_op)check_below(RATELIMIT_RESET + 2);
    req.max_wait_ns = check_below(3 * SEC);
    return req;
}

/* Batches longer than what is fetched ahead at once, keys that come again, bad requests; with
 * results, and without. */
static void a_batch_of_each_answers_as_single_calls_do(void)
{
    ratelimit_table *a = table_made(arena(0), 640, RATELIMIT_EVICT, 5);
    ratelimit_table *b = table_made(arena(1), 640, RATELIMIT_EVICT, 5);
    ratelimit_table *c = table_made(arena(2), 640, RATELIMIT_EVICT, 5);
    uint64_t now = 0;
    int round;
    check_seed(8);
    for (round = 0; round < 2000; round++) {
        ratelimit_request req[100];
        ratelimit_result batch[100], single;
        bool allowed[100], all;
        size_t count = 1 + (size_t)check_below(100), i, passed, sum = 0;
        now += check_below(2 * SEC);
        for (i = 0; i < count; i++)
            req[i] = random_request();
        all = ratelimit_table_decide(a, req, batch, count, RATELIMIT_EACH, now);
        if (round % 2) {
            passed = ratelimit_table_take_batch(c, req, allowed, count, now);
        } else {
            CHECK(ratelimit_table_decide(c, req, NULL, count, RATELIMIT_EACH, now) == all);
            passed = SIZE_MAX;
        }
        for (i = 0; i < count; i++) {
            CHECK(ratelimit_table_decide_one(b, &req[i], now, &single) == single.allowed);
            CHECK(same_result(&batch[i], &single));
            CHECK(passed == SIZE_MAX || allowed[i] == single.allowed);
            sum += single.allowed;
        }
        CHECK(all == (sum == count));
        CHECK(passed == SIZE_MAX || passed == sum);
    }
    CHECK(memcmp(arena(0), arena(1), 640) == 0);
    CHECK(memcmp(arena(0), arena(2), 640) == 0);
}

static void a_batch_with_a_key_of_no_bytes_or_nowhere_decides_the_others(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req[4];
    ratelimit_result res[4];
    bool allowed[4];
    size_t i;
    for (i = 0; i < 4; i++)
        req[i] = request(i < 2 ? "a" : "b", &hourly, 1);
    req[0].key = NULL;
    req[2].key_len = 0;
    CHECK(!ratelimit_table_decide(t, req, res, 4, RATELIMIT_EACH, 0));
    CHECK_U64(ratelimit_table_take_batch(t, req, allowed, 4, 2 * HOUR), 2);
    for (i = 0; i < 4; i++) {
        CHECK_U64(res[i].status, i % 2 ? OK : RATELIMIT_BAD_KEY);
        CHECK(allowed[i] == (i % 2 == 1));
    }
}

static ratelimit_request take_request(const char *key, uint64_t n)
{
    return request(key, &per_second, n);
}

static void a_batch_of_all_that_passes_charges_all(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req[3];
    ratelimit_result res[3];
    req[0] = take_request("a", 10);
    req[1] = take_request("b", 100);
    req[2] = take_request("a", 20); /* the same key again: charged in order */
    CHECK(ratelimit_table_decide(t, req, res, 3, RATELIMIT_ALL, 0));
    CHECK(res[0].allowed && res[1].allowed && res[2].allowed);
    CHECK_U64(res[0].remaining, 90);
    CHECK_U64(res[1].remaining, 0);
    CHECK_U64(res[2].remaining, 70);
    CHECK_U64(res[2].taken, 20);
    CHECK_U64(remaining_of(t, "a", 0), 70);
    CHECK_U64(remaining_of(t, "b", 0), 0);
}

static void a_batch_of_all_that_is_refused_charges_none_and_says_who_and_how_long(void)
{
    static const uint64_t asked[2][2] = {{3, 4}, {1, 5}}; /* in 3 s and 2 s; in 1 s and 3 s */
    int longest, i;
    for (longest = 0; longest < 2; longest++) {
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        ratelimit_request req[4];
        ratelimit_result res[4];
        CHECK(take_text(t, "b", 100, 0).allowed);
        CHECK(take_text(t, "c", 98, 0).allowed);
        req[0] = take_request("a", 10);
        req[1] = take_request("b", asked[longest][0]);
        req[2] = take_request("c", asked[longest][1]);
        req[3] = take_request("d", 1);
        CHECK(!ratelimit_table_decide(t, req, res, 4, RATELIMIT_ALL, 0));
        for (i = 0; i < 4; i++) {
            bool refused = i == 1 || i == 2;
            uint64_t own = i == 1 ? asked[longest][0] : asked[longest][1] - 2;
            CHECK(!res[i].allowed);
            CHECK_U64(res[i].burst, 100);
            CHECK_U64(res[i].taken, 0);
            CHECK_U64(res[i].wait_ns, 0);
            CHECK_U64(res[i].status, refused ? RATELIMIT_DENIED : RATELIMIT_SKIPPED);
            CHECK_U64(res[i].retry_after_ns, refused ? own * SEC : 3 * SEC);
            CHECK_U64(res[i].remaining, i == 1 ? 0 : i == 2 ? 2 : 100);
        }
        CHECK_U64(remaining_of(t, "a", 0), 100);
        CHECK_U64(counts_of(t, 0).keys, 2); /* neither a nor d left anything behind */
        CHECK(!ratelimit_table_decide(t, req, res, 4, RATELIMIT_ALL, 3 * SEC - 1));
        CHECK(!res[longest + 1].allowed);
        CHECK(ratelimit_table_decide(t, req, res, 4, RATELIMIT_ALL, 3 * SEC));
        CHECK(res[0].allowed && res[1].allowed && res[2].allowed && res[3].allowed);
    }
}

static void the_same_key_twice_in_a_batch_is_charged_twice_or_not_at_all(void)
{
    static const ratelimit_limit three = RATELIMIT_LIMIT(1, SEC, 3);
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[0] = req[1] = request("key", &three, 2);
    CHECK(!ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 0));
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(res[0].status, RATELIMIT_SKIPPED);
    CHECK_U64(res[0].remaining, 3);
    CHECK_U64(res[1].status, RATELIMIT_DENIED);
    CHECK_U64(res[1].retry_after_ns, SEC);
    CHECK_U64(counts_of(t, 0).keys, 0);
    req[1].n = 1;
    CHECK(ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 0));
    CHECK(res[0].allowed && res[1].allowed);
    CHECK_U64(res[1].remaining, 0);
}

/* No status says OK for what was refused. */
static void a_bad_request_in_a_batch_of_all_stops_all(void)
{
    static const ratelimit_limit none = RATELIMIT_LIMIT(0, SEC, 1);
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req[4];
    ratelimit_result res[4];
    size_t i;
    req[0] = take_request("a", 10);
    req[1] = request("b", &none, 1);
    req[2] = take_request("", 1);
    req[3] = request("c", &unlimited, 1);
    CHECK(!ratelimit_table_decide(t, req, res, 4, RATELIMIT_ALL, 0));
    for (i = 0; i < 4; i++)
        CHECK(!res[i].allowed && res[i].status != OK && res[i].taken == 0);
    CHECK_U64(res[0].status, RATELIMIT_SKIPPED);
    CHECK_U64(res[1].status, RATELIMIT_BAD_LIMIT);
    CHECK_U64(res[2].status, RATELIMIT_BAD_KEY);
    CHECK_U64(res[3].status, RATELIMIT_SKIPPED);
    CHECK_U64(counts_of(t, 0).keys, 0);
}

/* The largest burst there is: what a refused batch stores must not be a take of all of it. */
static void a_refused_batch_does_not_spend_the_largest_burst(void)
{
    static const ratelimit_limit largest = RATELIMIT_LIMIT(4, 1, INT64_MAX);
    static const ratelimit_limit none = RATELIMIT_LIMIT(0, SEC, 1);
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req[2];
    ratelimit_result res[2];
    unsigned char before[HEAD_BYTES + BLOCK_BYTES];
    CHECK_U64(ratelimit_limit_check(&largest), OK);
    save_table(t, before);
    req[0] = request("a", &largest, 1);
    req[1] = request("b", &none, 1);
    CHECK(!ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 0));
    CHECK(!table_changed(t, before));
    req[0].op = RATELIMIT_PEEK;
    CHECK(ratelimit_table_decide_one(t, req, 0, res));
    CHECK_U64(res[0].remaining, INT64_MAX);
}

static void a_batch_of_all_has_a_longest_length(void)
{
    ratelimit_table *t = table_made(arena(0), ARENA_BYTES, RATELIMIT_EVICT, 1);
    static ratelimit_request req[RATELIMIT_MAX_ALL + 1];
    static ratelimit_result res[RATELIMIT_MAX_ALL + 1];
    static uint64_t keys[RATELIMIT_MAX_ALL + 1];
    size_t i, allowed = 0;
    for (i = 0; i <= RATELIMIT_MAX_ALL; i++) {
        keys[i] = i;
        req[i] = request("k", &hourly, 1);
        req[i].key = &keys[i];
        req[i].key_len = sizeof keys[i];
    }
    CHECK(!ratelimit_table_decide(t, req, res, RATELIMIT_MAX_ALL + 1, RATELIMIT_ALL, 0));
    for (i = 0; i <= RATELIMIT_MAX_ALL; i++)
        CHECK(!res[i].allowed && res[i].status == RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(counts_of(t, 0).keys, 0);
    CHECK(ratelimit_table_decide(t, req, res, RATELIMIT_MAX_ALL, RATELIMIT_ALL, 0));
    for (i = 0; i < RATELIMIT_MAX_ALL; i++)
        allowed += res[i].allowed;
    CHECK_U64(allowed, RATELIMIT_MAX_ALL);
    CHECK(ratelimit_table_decide(t, req, res, RATELIMIT_MAX_ALL + 1, RATELIMIT_EACH, HOUR));
    for (i = 0; i <= RATELIMIT_MAX_ALL; i++)
        CHECK(res[i].allowed);
}

static void arguments_of_a_batch_are_checked(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req = take_request("a", 1);
    ratelimit_result res;
    bool allowed = true;
    CHECK(ratelimit_table_decide(t, NULL, NULL, 0, RATELIMIT_ALL, 0)); /* none of none refused */
    CHECK(ratelimit_table_decide(t, NULL, NULL, 0, RATELIMIT_EACH, 0));
    CHECK(!ratelimit_table_decide(t, NULL, &res, 1, RATELIMIT_EACH, 0));
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_table_decide(NULL, &req, &res, 1, RATELIMIT_ALL, 0));
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_table_decide(NULL, &req, NULL, 1, RATELIMIT_ALL, 0));
    CHECK(!ratelimit_table_decide(t, &req, &res, 1, (ratelimit_mode)2, 0));
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_take_batch(NULL, &req, &allowed, 1, 0), 0);
    CHECK(!allowed);
    allowed = true;
    CHECK_U64(ratelimit_table_take_batch(t, NULL, &allowed, 1, 0), 0);
    CHECK(!allowed);
    CHECK_U64(ratelimit_table_take_batch(t, &req, NULL, 0, 0), 0);
    req.op = (ratelimit_op)(RATELIMIT_RESET + 1);
    CHECK(!ratelimit_table_decide(t, &req, &res, 1, RATELIMIT_EACH, 0));
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(counts_of(t, 0).keys, 0);
}

/* Review 8: it did nothing at all, and said nothing. */
static void a_batch_without_results_is_carried_out(void)
{
    int mode;
    for (mode = RATELIMIT_EACH; mode <= (int)RATELIMIT_ALL; mode++) {
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        ratelimit_request req[2];
        req[0] = take_request("a", 60);
        req[1] = take_request("b", 60);
        CHECK(ratelimit_table_decide(t, req, NULL, 2, (ratelimit_mode)mode, 0));
        CHECK_U64(remaining_of(t, "a", 0), 40);
        CHECK(!ratelimit_table_decide(t, req, NULL, 2, (ratelimit_mode)mode, 0));
        CHECK_U64(remaining_of(t, "b", 0), 40);
        CHECK(ratelimit_table_decide_one(t, &req[1], 50 * SEC, NULL));
        CHECK_U64(ratelimit_table_take_batch(t, req, NULL, 2, 50 * SEC), 1);
    }
}

/* What every key has, under the limit that is always its own. */
static ratelimit_result peek_own(ratelimit_table *t, size_t key, uint64_t now_ns)
{
    ratelimit_request req = request(batch_keys[key], NULL, 1);
    ratelimit_result res;
    req.limit = &batch_limits[*batch_keys[key] % (int)COUNT(batch_limits)];
    req.op = RATELIMIT_PEEK;
    (void)ratelimit_table_decide_one(t, &req, now_ns, &res);
    return res;
}

/* Against singles on a copy: if all of them pass there, ALL must leave what they leave; else what
 * was there before. In the other half of the rounds there is no room for all keys. Then a single
 * may push out a key of its own batch, and ALL may not, so only what a refused batch leaves is
 * compared. */
static void a_batch_of_all_leaves_the_state_of_all_singles_or_of_none(void)
{
    size_t bytes = HEAD_BYTES + BLOCK_BYTES;
    int round, full, passed = 0, refused = 0;
    check_seed(9);
    for (full = 0; full < 8; full++) {
        bool crowded = full >= 4;
        ratelimit_table *t =
            table_with_places(crowded ? 6 : BLOCK_PLACES, (ratelimit_full)(full % 4));
        uint64_t now = 0;
        for (round = 0; round < 5000; round++) {
            ratelimit_request req[6];
            ratelimit_result res[6], before[COUNT(batch_keys)], now_has, want;
            size_t count = 1 + (size_t)check_below(6), i;
            ratelimit_table *copy = NULL;
            bool each = true, all;
            memcpy(arena(1), arena(0), bytes);
            CHECK_U64(ratelimit_table_attach(&copy, arena(1), bytes), OK);
            now += check_below(3 * SEC);
            for (i = 0; i < COUNT(batch_keys); i++)
                before[i] = peek_own(t, i, now);
            for (i = 0; i < count; i++) {
                req[i] = random_request();
                req[i].limit = &batch_limits[*(const char *)req[i].key % (int)COUNT(batch_limits)];
                each = ratelimit_table_decide_one(copy, &req[i], now, NULL) && each;
            }
            all = ratelimit_table_decide(t, req, res, count, RATELIMIT_ALL, now);
            CHECK(crowded || all == each);
            for (i = 0; i < count; i++)
                CHECK(res[i].allowed == all && (res[i].status == OK) == all);
            for (i = 0; i < COUNT(batch_keys) && !(crowded && all); i++) {
                now_has = peek_own(t, i, now);
                want = all ? peek_own(copy, i, now) : before[i];
                CHECK(same_result(&now_has, &want));
            }
            CHECK(!all || crowded || counts_of(t, now).keys == counts_of(copy, now).keys);
            passed += all;
            refused += !all;
        }
    }
    CHECK(passed > 1000 && refused > 1000);
}

/* Takes have a quick way, batches of all or none have not: both leave the same bytes, when the key
 * was seen included, whether they passed or not. */
static void a_quick_take_leaves_the_state_of_a_general_one(void)
{
    ratelimit_table *quick = table_made(arena(0), 640, RATELIMIT_EVICT, 5);
    ratelimit_table *general = table_made(arena(1), 640, RATELIMIT_EVICT, 5);
    uint64_t now = 0, i;
    size_t l, slot;
    check_seed(14);
    for (i = 0; i < 20000; i++) {
        uint64_t key = check_below(6), n = 1 + check_below(30);
        ratelimit_request req[2];
        ratelimit_result a, res[2];
        now += check_below(20 * SEC);
        req[0] = request("k", &per_second, n);
        req[0].key = &key;
        req[0].key_len = sizeof key;
        req[1] = req[0];
        req[1].op = RATELIMIT_PEEK;
        req[1].key_len = 3; /* of nobody */
        (void)ratelimit_table_take(quick, &key, sizeof key, &per_second, n, now, &a);
        (void)ratelimit_table_decide(general, req, res, 2, RATELIMIT_ALL, now);
        CHECK(same_result(&a, &res[0]));
        for (l = 0; l < 8; l++) {
            const line *x = &lines_of(quick)[l], *y = &lines_of(general)[l];
            CHECK(!(y->lock & 1));
            for (slot = 0; slot < 3; slot++)
                CHECK(x->tag[slot] == y->tag[slot] &&
                      same_bucket(&x->bucket[slot], &y->bucket[slot]));
        }
    }
}

/* New keys of one batch have the same home line, the same free place in mind, or the place of each
 * other: each gets one of its own, or none is charged. */
static void new_keys_of_one_batch_never_get_the_same_place(void)
{
    size_t places, count;
    int policy, round;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++)
        for (places = 1; places <= 8; places++)
            for (count = 2; count <= 6; count++)
                for (round = 0; round < 8; round++) {
                    ratelimit_table *t = table_with_places(places, (ratelimit_full)policy);
                    ratelimit_request req[6];
                    uint64_t key[6], left = 0, i, debtors = (uint64_t)round % 4 * places / 3;
                    bool fits = count <= places, all;
                    for (i = 0; i < debtors; i++) /* some places are taken by keys in debt */
                        CHECK(take_number(t, 1000 + i, &per_second, 0));
                    for (i = 0; i < count; i++) {
                        key[i] = (uint64_t)round * 10 + i;
                        if (round >= 4 && i == 0 && debtors)
                            key[i] = 1000; /* one of them is there already */
                        req[i] = request("k", &per_second, 1);
                        req[i].key = &key[i];
                        req[i].key_len = sizeof key[i];
                    }
                    place("policy", (uint64_t)policy, places * 10 + count);
                    all = ratelimit_table_decide(t, req, NULL, count, RATELIMIT_ALL, 0);
                    if (policy == RATELIMIT_REFUSE)
                        fits = count - (key[0] == 1000) <= places - debtors;
                    CHECK(all == fits);
                    for (i = 0; all && i < count; i++) {
                        req[i].op = RATELIMIT_PEEK;
                        CHECK(ratelimit_table_decide_one(t, &req[i], 0, NULL));
                    }
                    for (i = 0; i < count; i++) { /* each was charged for itself */
                        ratelimit_result res;
                        req[i].op = RATELIMIT_PEEK;
                        (void)ratelimit_table_decide_one(t, &req[i], 0, &res);
                        left += res.remaining == 99 - (key[i] == 1000);
                    }
                    if (all && policy != RATELIMIT_INHERIT)
                        CHECK_U64(left, count);
                    CHECK_U64(counts_of(t, 0).in_debt, !all ? debtors
                                                       : debtors + count - (key[0] == 1000) < places
                                                           ? debtors + count - (key[0] == 1000)
                                                           : places);
                }
    place_end();
}

/* Else a clock set back would be forgiven once more at each try, and the key stay shut for all of
 * the step. */
static void a_refused_batch_stores_what_a_refusal_stores(void)
{
    static const ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(10, 20 * SEC, 16, 1);
    static const ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(1000, 20 * SEC, 16, 1);
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[0] = take_request("other", 1);
    req[1] = take_request("a", 1);
    CHECK(take_text(t, "a", 100, 1000 * SEC).allowed);
    CHECK(!ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 500 * SEC));
    CHECK_U64(res[1].retry_after_ns, SEC);
    CHECK(!ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 501 * SEC - 1));
    CHECK_U64(res[1].retry_after_ns, 1);
    CHECK(ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 501 * SEC));
    CHECK(res[0].allowed && res[1].allowed);
    CHECK(ratelimit_table_take(t, "b", 1, &slow, 16, 600 * SEC, NULL));
    req[1] = request("b", &fast, 1);
    CHECK(!ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 600 * SEC));
    CHECK_U64(res[1].retry_after_ns, 20 * MS);
    CHECK(ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 600 * SEC + 20 * MS));
    CHECK(res[0].allowed && res[1].allowed);
}

static void a_refused_batch_does_not_count_what_it_did_not_evict(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    ratelimit_table *t = table_with(RATELIMIT_EVICT, debtors);
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[0] = take_request("new", 1);
    req[1] = take_request("a", 100);
    CHECK(!ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 0));
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(counts_of(t, 0).evicted, 0);
    CHECK_U64(remaining_of(t, "b", 0), 90);
}

/* ---- a refusal writes nothing ---------------------------------------------------------------- */

static void a_refusal_changes_no_byte_of_the_table(void)
{
    static const ratelimit_op refused[] = {RATELIMIT_TAKE, RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,
                                           RATELIMIT_RESERVE};
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    unsigned char before[HEAD_BYTES + BLOCK_BYTES];
    size_t i;
    CHECK(take_text(t, "key", 50, 0).allowed);
    CHECK(take_text(t, "key", 50, SEC / 2).allowed);
    save_table(t, before);
    for (i = 0; i < COUNT(refused); i++) {
        CHECK(!ask_text(t, "key", refused[i], 100, SEC / 2).allowed); /* half a token is there */
        if (refused[i] != RATELIMIT_TAKE_UP_TO)
            CHECK(!ask_text(t, "key", refused[i], 101, SEC).allowed);
        CHECK(!ask_text(t, "key", refused[i], 0, SEC).allowed || refused[i] == RATELIMIT_PEEK);
        CHECK(!table_changed(t, before));
    }
}

/* B8: it locked all lines of the block for each. Also where the home line of the key, its block or
 * the whole table is full. */
static void a_refused_or_peeked_key_that_is_not_there_locks_and_writes_nothing(void)
{
    static const struct {
        ratelimit_op op;
        uint64_t n;
    } asked[] = {
        {RATELIMIT_PEEK, 0},
        {RATELIMIT_PEEK, 1},
        {RATELIMIT_PEEK, 101},
        {RATELIMIT_TAKE, 0},
        {RATELIMIT_TAKE, 101},
        {RATELIMIT_TAKE, INT64_MAX},
        {RATELIMIT_TAKE, UINT64_MAX},
        {RATELIMIT_TAKE_UP_TO, 0},
        {RATELIMIT_RESERVE, 101},
        {RATELIMIT_CHARGE, INT64_MAX}, /* never */
        {RATELIMIT_REFUND, 1},
        {RATELIMIT_REFUND, INT64_MAX},
        {RATELIMIT_CANCEL, 1},
        {RATELIMIT_RESET, 1},
        {RATELIMIT_BLOCK, 0}, /* for how long: 0 below */
        {(ratelimit_op)(RATELIMIT_RESET + 1), 1},
    };
    static const size_t fillings[] = {0, 3, 12, 24, 100};
    unsigned char before[HEAD_BYTES + BLOCK_BYTES];
    size_t f, i, key;
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++)
        for (f = 0; f < COUNT(fillings); f++) {
            ratelimit_table *t = table_of_blocks(1, (ratelimit_full)policy);
            for (i = 0; i < fillings[f]; i++)
                (void)take_number(t, i, &hourly, 0);
            save_table(t, before);
            for (key = 1000; key < 1040; key++)
                for (i = 0; i < COUNT(asked); i++) {
                    ratelimit_request req = request("k", &per_second, asked[i].n);
                    ratelimit_permit permit = {SEC, 0, 1};
                    ratelimit_result res;
                    uint64_t hash = ratelimit_table_hash(t, &key, sizeof key);
                    req.key = &key;
                    req.key_len = sizeof key;
                    req.op = asked[i].op;
                    place("asked", (uint64_t)policy, i);
                    (void)ratelimit_table_decide_one(t, &req, 0, &res);
                    (void)ratelimit_table_decide(t, &req, &res, 1, RATELIMIT_ALL, 0);
                    (void)ratelimit_table_take_batch(t, &req, NULL, 1, 0);
                    if (asked[i].op == RATELIMIT_TAKE) {
                        CHECK(!ratelimit_table_take(t, &key, sizeof key, &per_second, asked[i].n, 0,
                                                    NULL));
                        CHECK(
                            !ratelimit_table_take_hash(t, hash, &per_second, asked[i].n, 0, &res));
                    }
                    CHECK_U64(ratelimit_table_release(t, &key, sizeof key, &permit, 0),
                              RATELIMIT_LOST);
                    CHECK(!table_changed(t, before));
                }
        }
    place_end();
}

/* Nor does a batch of all or none in which one is refused, of keys that are not there. */
static void nor_does_a_refused_batch_of_keys_that_are_not_there(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    unsigned char before[HEAD_BYTES + BLOCK_BYTES];
    ratelimit_request req[3];
    int filled;
    for (filled = 0; filled < 2; filled++) {
        uint64_t i;
        for (i = 0; i < (filled ? 100u : 5u); i++)
            (void)take_number(t, i, &hourly, 0);
        save_table(t, before);
        req[0] = take_request("a", 1);
        req[1] = take_request("b", 101);
        req[2] = take_request("c", 100);
        CHECK(!ratelimit_table_decide(t, req, NULL, 3, RATELIMIT_ALL, 0));
        req[1] = take_request("a", 100);
        CHECK(!ratelimit_table_decide(t, req, NULL, 3, RATELIMIT_ALL, 0));
        CHECK(!table_changed(t, before));
    }
}

/* A refusal notes when the key was seen: the power of two below its debt, in one byte, and nothing
 * else of the table changes, locks included, but for the lock of the line where the chip has no
 * 64-bit compare-and-swap. From 100 s to 1 ms it falls from 2^36 to 2^19 ns. */
static void refusals_note_the_power_of_two_of_the_debt_and_write_nothing_else(void)
{
    int way;
    for (way = 0; way < 3; way++) {
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        unsigned char before[HEAD_BYTES + BLOCK_BYTES];
        size_t i, differ;
        uint64_t ms, writes = 0;
        CHECK(take_text(t, "key", 100, 0).allowed);
        for (ms = 0; ms < 100000; ms++) {
            ratelimit_request req[2];
            req[0] = take_request("key", 100);
            req[1] = take_request("not there", 1);
            save_table(t, before);
            if (way == 0)
                CHECK(!take_text(t, "key", 100, ms * MS).allowed);
            else
                CHECK(!ratelimit_table_decide(t, req, NULL, (size_t)way, RATELIMIT_ALL, ms * MS));
            for (i = differ = 0; i < sizeof before; i++)
                differ += ((const unsigned char *)t)[i] != before[i];
            writes += differ != 0;
            CHECK(differ <= (RATELIMIT_PRIV_QUICK ? 1 : 1 + sizeof(uint32_t)));
        }
        CHECK_U64(writes, 36 - 19);
        CHECK_U64(remaining_of(t, "key", 99 * SEC), 99);
    }
}

/* ---- permits --------------------------------------------------------------------------------- */

static bool acquire(ratelimit_table *t, const char *key, uint32_t most, uint64_t now_ns,
                    ratelimit_permit *permit)
{
    return ratelimit_table_acquire(t, key, strlen(key), most, SEC, now_ns, permit);
}

static ratelimit_status release(ratelimit_table *t, const char *key, const ratelimit_permit *permit,
                                uint64_t now_ns)
{
    return ratelimit_table_release(t, key, strlen(key), permit, now_ns);
}

static void at_most_most_permits_are_held(void)
{
    static const uint64_t bases[] = {0, UINT64_C(1000000000) * SEC, UINT64_MAX - SEC / 2};
    size_t i;
    for (i = 0; i < COUNT(bases); i++) {
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        ratelimit_permit p[2], other, none;
        uint64_t now = bases[i];
        place("bases", now, i);
        CHECK(acquire(t, "key", 2, now, &p[0]));
        CHECK(acquire(t, "key", 2, now, &p[1]));
        CHECK_U64(p[0].expires_ns, now + SEC);
        CHECK(!acquire(t, "key", 2, now, &none));
        CHECK(acquire(t, "other", 2, now, &other));
        CHECK_U64(release(t, "key", &p[0], now), OK);
        CHECK(acquire(t, "key", 2, now, &p[0]));
        CHECK(!acquire(t, "key", 2, now, &none));
        CHECK_U64(release(t, "key", &p[0], now) + release(t, "key", &p[1], now), OK);
        CHECK_U64(release(t, "key", &p[1], now), RATELIMIT_LOST);
        CHECK_U64(counts_of(t, now).keys, 1); /* only "other" */
    }
    place_end();
}

static void releasing_what_was_never_acquired_is_lost_and_frees_nothing(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit never = {0, 0, 0}, p, other, none;
    CHECK_U64(release(t, "key", &never, 0), RATELIMIT_LOST);
    CHECK(acquire(t, "key", 1, 0, &p));
    CHECK_U64(release(t, "key", &never, 0), RATELIMIT_LOST);
    CHECK_U64(release(t, "stranger", &p, 0), RATELIMIT_LOST);
    other = p;
    other.place++;
    CHECK_U64(release(t, "key", &other, 0), RATELIMIT_LOST);
    other = p;
    other.serial++;
    CHECK_U64(release(t, "key", &other, 0), RATELIMIT_LOST);
    other = p;
    other.expires_ns++;
    CHECK_U64(release(t, "key", &other, 0), RATELIMIT_LOST);
    CHECK(!acquire(t, "key", 1, 0, &none));
    CHECK_U64(release(t, "key", &p, 0), OK);
    CHECK_U64(release(t, "key", &p, 0), RATELIMIT_LOST);
    CHECK(acquire(t, "key", 1, 0, &none));
    CHECK(!acquire(t, "key", 1, 0, &p)); /* the second release added no place */
}

static void a_holder_that_crashed_keeps_its_place_for_its_time_to_live(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit first, second, p;
    CHECK(acquire(t, "key", 2, 0, &first));
    CHECK(acquire(t, "key", 2, 0, &second));
    CHECK(!acquire(t, "key", 2, SEC - 1, &p));
    CHECK(acquire(t, "key", 2, SEC, &p)); /* both are gone, and this is the first */
    CHECK(acquire(t, "key", 2, SEC, &p));
    CHECK(!acquire(t, "key", 2, SEC, &p));
    CHECK_U64(release(t, "key", &first, SEC - 1), RATELIMIT_LOST); /* too late */
    CHECK_U64(release(t, "key", &second, 3 * SEC), RATELIMIT_LOST);
}

/* Report N30: each acquire kept the dead one's permit alive, so that a busy key lost it for good.
 */
static void the_permit_of_a_dead_holder_comes_back_while_others_use_the_key(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit dead, p[3];
    uint64_t now, i;
    CHECK(ratelimit_table_acquire(t, "key", 3, 3, 10 * SEC, 0, &dead));
    for (now = SEC; now < 3600 * SEC; now += SEC) {
        CHECK(ratelimit_table_acquire(t, "key", 3, 3, 10 * SEC, now, &p[0]));
        CHECK(ratelimit_table_acquire(t, "key", 3, 3, 10 * SEC, now, &p[1]));
        CHECK(ratelimit_table_acquire(t, "key", 3, 3, 10 * SEC, now, &p[2]) == (now >= 10 * SEC));
        for (i = 0; i < 3 - (now < 10 * SEC); i++)
            CHECK_U64(ratelimit_table_release(t, "key", 3, &p[i], now + SEC / 2), OK);
    }
    CHECK_U64(ratelimit_table_release(t, "key", 3, &dead, now), RATELIMIT_LOST);
}

/* Report N30: it ended the permit of somebody else. */
static void a_late_release_is_lost_and_frees_nobody_elses_permit(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit late, p, none;
    int i;
    CHECK(acquire(t, "key", 1, 0, &late));
    for (i = 1; i < 100; i++) { /* each time over when the next one comes */
        CHECK(acquire(t, "key", 1, (uint64_t)i * SEC, &p));
        CHECK_U64(release(t, "key", &late, (uint64_t)i * SEC + 1), RATELIMIT_LOST);
        CHECK(!acquire(t, "key", 1, (uint64_t)i * SEC + 2, &none));
    }
    CHECK_U64(release(t, "key", &p, 99 * SEC + 3), OK);
}

/* Also one that was given back at the same time and taken again for as long. */
static void a_permit_given_back_twice_frees_nobody_elses(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit p, next, none;
    int i;
    CHECK(acquire(t, "key", 1, 5, &p));
    for (i = 0; i < 100; i++) {
        CHECK_U64(release(t, "key", &p, 5), OK);
        CHECK(acquire(t, "key", 1, 5, &next));
        CHECK_U64(release(t, "key", &p, 5), RATELIMIT_LOST);
        CHECK(!acquire(t, "key", 1, 5, &none));
        p = next;
    }
}

/* A permit's number began again when its place was swept, or used for something else. */
static void a_permit_given_back_twice_frees_nobody_elses_after_a_sweep(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit p, next, none;
    int i;
    for (i = 0; i < 100; i++) {
        CHECK(acquire(t, "key", 1, 5, &p));
        CHECK_U64(release(t, "key", &p, 5), OK);
        (void)ratelimit_table_sweep(t, 5, 0);
        CHECK(acquire(t, "key", 1, 5, &next));
        CHECK_U64(release(t, "key", &p, 5), RATELIMIT_LOST);
        CHECK(!acquire(t, "key", 1, 5, &none));
        CHECK_U64(release(t, "key", &next, 5), OK);
    }
}

/* Permits were kept under scopes of their own, which a limit could have, too. */
static void no_scope_of_a_limit_leads_to_the_permits_of_a_key(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    uint32_t i;
    for (i = 0; i < 2000; i++) {
        ratelimit_limit limit = ratelimit_limit_make(1, HOUR, 100);
        uint64_t now_ns = i * DAY * 10 + 1;
        ratelimit_permit p, none;
        limit.scope = UINT32_C(0x9E3779B9) - 1000 + i;
        CHECK(acquire(t, "key", 1, now_ns, &p));
        CHECK(ratelimit_table_take(t, "key", 3, &limit, 1, now_ns, NULL));
        CHECK(!acquire(t, "key", 1, now_ns, &none));
        CHECK_U64(release(t, "key", &p, now_ns), OK);
    }
}

static void each_permit_has_its_own_time_to_live(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit p[4];
    CHECK(acquire(t, "key", 3, 0, &p[0]));
    CHECK(acquire(t, "key", 3, SEC / 2, &p[1]));
    CHECK(ratelimit_table_acquire(t, "key", 3, 3, 10 * SEC, SEC / 2, &p[2]));
    CHECK(!acquire(t, "key", 3, SEC - 1, &p[3]));
    CHECK(acquire(t, "key", 3, SEC, &p[3])); /* in the place of the first */
    CHECK_U64(release(t, "key", &p[0], SEC), RATELIMIT_LOST);
    CHECK_U64(release(t, "key", &p[1], 3 * SEC / 2 - 1), OK);
    CHECK_U64(release(t, "key", &p[3], 2 * SEC), RATELIMIT_LOST);
    CHECK_U64(release(t, "key", &p[2], 10 * SEC), OK);
}

/* A little earlier is lateness, and the permit is held; a clock set back ends it. */
static void a_clock_set_back_does_not_hold_permits_for_longer(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit p, none;
    CHECK(acquire(t, "key", 1, 1000 * SEC, &p));
    CHECK(!acquire(t, "key", 1, 995 * SEC, &none));
    CHECK(!acquire(t, "key", 1, 991 * SEC, &none));
    CHECK(acquire(t, "key", 1, 500 * SEC, &none));
    CHECK_U64(release(t, "key", &p, 500 * SEC), RATELIMIT_LOST);
    CHECK(!acquire(t, "key", 1, 500 * SEC, &p));
    CHECK(acquire(t, "key", 1, 501 * SEC, &p));
}

/* It counts as set back from one ns above step_ns on. */
static void a_permit_is_held_up_to_the_longest_step_of_the_clock(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    const uint64_t least = UINT64_C(1) << 30; /* above 1 s, so the permit ends before that */
    const uint64_t earliest = 1000 * SEC + SEC - least - 10 * SEC;
    ratelimit_permit p, none;
    CHECK(acquire(t, "key", 1, 1000 * SEC, &p));
    CHECK(!acquire(t, "key", 1, earliest, &none));
    CHECK(acquire(t, "key", 1, earliest - 1, &none));
}

#if RATELIMIT_PRIV_QUICK /* else no time of a forgotten key is kept */

/* Tokens that n takes get at a time. */
static unsigned told(ratelimit_table *t, const ratelimit_limit *limit, int n, uint64_t now_ns)
{
    unsigned got = 0;
    while (n--)
        got += ratelimit_table_take(t, "k", 1, limit, 1, now_ns, NULL);
    return got;
}

/* A key that was forgotten when it was full begins again at that time, not before, also for a call
 * that comes late: in all it gets what one that was never forgotten gets. */
static void a_late_call_makes_no_tokens_of_a_forgotten_key(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    static const uint64_t origins[] = {0,           SEC,         0 - 7 * MS,    0 - 3 * MS,
                                       0 - 11 * MS, 0 - 5 * SEC, UINT64_MAX / 2};
    size_t i;
    for (i = 0; i < sizeof origins / sizeof *origins; i++) {
        const uint64_t at = origins[i];
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        unsigned sum = told(t, &limit, 20, at);
        CHECK_U64(ratelimit_table_sweep(t, at + 10 * MS, 0), 1);
        sum += told(t, &limit, 20, at + 5 * MS);
        sum += told(t, &limit, 20, at + 10 * MS);
        CHECK_U64(sum, 20);
        t = table_of_blocks(1, RATELIMIT_EVICT);
        sum = told(t, &limit, 20, at);
        CHECK(ratelimit_table_take(t, "other", 5, &limit, 1, at + 10 * MS, NULL));
        sum += told(t, &limit, 20, at + 5 * MS);
        sum += told(t, &limit, 20, at + 10 * MS);
        CHECK_U64(sum, 20);
    }
}

/* A table of one block that forgot the key "k" at `at`, when it was full for `since` ns. */
static ratelimit_table *forgetful(const ratelimit_limit *limit, uint64_t at, uint64_t since,
                                  uint64_t step_ns)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = options.seed[1] = 1;
    options.step_ns = step_ns;
    if (ratelimit_table_init(&t, arena(0), HEAD_BYTES + BLOCK_BYTES, &options) != OK)
        exit(2);
    CHECK_U64(told(t, limit, 20, at - since - limit->window_ns), 10);
    CHECK_U64(ratelimit_table_sweep(t, at, 0), 1);
    return t;
}

/* ns for which the key must wait after ten tokens at a time: more than a window's, if it began
 * later. */
static uint64_t begun_later(ratelimit_table *t, const ratelimit_limit *limit, const char *key,
                            uint64_t now_ns)
{
    ratelimit_result r;
    CHECK(ratelimit_table_take(t, key, strlen(key), limit, 10, now_ns, NULL));
    (void)ratelimit_table_take(t, key, strlen(key), limit, 1, now_ns, &r);
    return r.reset_after_ns - limit->window_ns;
}

static void a_new_key_of_a_late_call_is_not_refused_for_what_others_were_forgotten(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    ratelimit_table *t = forgetful(&limit, 100 * SEC, 0, 0);
    CHECK_U64(begun_later(t, &limit, "new", 100 * SEC - 5 * MS), 5 * MS);
    t = forgetful(&limit, 100 * SEC, 3 * MS, 0); /* since when it was full counts */
    CHECK_U64(begun_later(t, &limit, "new", 100 * SEC - 5 * MS), 2 * MS);
    t = forgetful(&limit, 100 * SEC, 5 * MS, 0);
    CHECK_U64(begun_later(t, &limit, "new", 100 * SEC - 5 * MS), 0);
}

static void the_latest_time_of_all_forgotten_keys_counts(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    ratelimit_table *t = forgetful(&limit, 100 * SEC, 0, 0);
    CHECK_U64(begun_later(t, &limit, "k", 100 * SEC - 13 * MS), 13 * MS);
    CHECK_U64(ratelimit_table_sweep(t, 100 * SEC + 10 * MS, 0), 1);
    CHECK_U64(begun_later(t, &limit, "new", 100 * SEC - 5 * MS), 15 * MS);
    /* one that had long been full, and is forgotten last, changes nothing */
    t = forgetful(&limit, 100 * SEC, 0, 0);
    CHECK(ratelimit_table_take(t, "old", 3, &limit, 1, 80 * SEC, NULL));
    CHECK_U64(ratelimit_table_sweep(t, 100 * SEC, 0), 1);
    CHECK_U64(begun_later(t, &limit, "new", 100 * SEC - 5 * MS), 5 * MS);
    t = forgetful(&limit, 100 * SEC, 0, 0); /* by all of step_ns */
    CHECK(ratelimit_table_take(t, "old", 3, &limit, 1, 90 * SEC - MS, NULL));
    CHECK_U64(ratelimit_table_sweep(t, 100 * SEC, 0), 1);
    CHECK_U64(begun_later(t, &limit, "new", 100 * SEC - 5 * MS), 5 * MS);
    t = forgetful(&limit, 100 * SEC, 10 * SEC, 0);
    CHECK_U64(begun_later(t, &limit, "new", 90 * SEC - 1), 1);
    t = forgetful(&limit, 100 * SEC, 10 * SEC + 1, 0);
    CHECK_U64(begun_later(t, &limit, "new", 90 * SEC - 2), 0);
}

static void a_clock_that_was_set_back_is_no_late_call(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    ratelimit_table *t = forgetful(&limit, 100 * SEC, 0, 0);
    uint64_t step_ns;
    CHECK_U64(begun_later(t, &limit, "a", 90 * SEC), 10 * SEC);
    CHECK_U64(begun_later(t, &limit, "b", 90 * SEC - 1), 0);
    CHECK(ratelimit_table_take(t, "c", 1, &limit, 1, 90 * SEC - 1, NULL));
    CHECK(ratelimit_table_take(t, "c", 1, &limit, 9, 90 * SEC - 1, NULL));
    /* from then on the clock as it is now counts */
    CHECK_U64(begun_later(t, &limit, "d", 50 * SEC), 0);
    CHECK_U64(ratelimit_table_sweep(t, 50 * SEC + 10 * MS, 0), 1);
    CHECK_U64(begun_later(t, &limit, "d", 50 * SEC), 10 * MS);
    CHECK_U64(begun_later(t, &limit, "e", 90 * SEC), 0);
    /* the table's own step_ns */
    for (step_ns = 7 * MS; step_ns < 7 * MS + 2; step_ns++) {
        t = forgetful(&limit, 100 * SEC, 0, step_ns);
        CHECK_U64(begun_later(t, &limit, "a", 100 * SEC - step_ns), step_ns);
        CHECK_U64(begun_later(t, &limit, "b", 100 * SEC - step_ns - 1), 0);
    }
    t = forgetful(&limit, 100 * SEC, 0, RATELIMIT_FOREVER);
    CHECK_U64(begun_later(t, &limit, "a", 10 * SEC), 90 * SEC);
    CHECK_U64(begun_later(t, &limit, "b", 10 * SEC), 90 * SEC);
    CHECK_U64(begun_later(t, &limit, "c", 200 * SEC), 0);
}

/* When a block ends, its key has one token. It is full later, and was forgotten only then. */
static void a_late_call_makes_no_tokens_of_a_key_that_was_blocked(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request block = request("k", &limit, 1);
    uint64_t later;
    block.op = RATELIMIT_BLOCK;
    block.max_wait_ns = SEC;
    CHECK(ratelimit_table_decide_one(t, &block, 100 * SEC, NULL));
    CHECK_U64(ratelimit_table_sweep(t, 101 * SEC + 8 * MS, 0), 0);
    CHECK_U64(ratelimit_table_sweep(t, 101 * SEC + 10 * MS, 0), 1);
    later = begun_later(t, &limit, "k", 101 * SEC);
    CHECK(later >= 9 * MS && later < 10 * MS); /* rounded up to what a block stores */
}

/* Fractions of a ns: a key is full at the end of one. */
static void a_late_call_makes_no_tokens_of_a_fraction(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(3, 10, 10);
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    unsigned sum = told(t, &limit, 20, 1000);
    CHECK_U64(ratelimit_table_sweep(t, 1000 + 33, 0), 0);
    CHECK_U64(ratelimit_table_sweep(t, 1000 + 34, 0), 1);
    sum += told(t, &limit, 20, 1000 + 17);
    sum += told(t, &limit, 20, 1000 + 36);
    CHECK_U64(sum, 20);
    CHECK_U64(told(t, &limit, 20, 1000 + 38), 1);
}

static void a_late_batch_gets_the_whole_burst_of_a_new_key(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    ratelimit_request req[3];
    ratelimit_result res[3];
    ratelimit_table *t = forgetful(&limit, 100 * SEC, 0, 0);
    req[0] = request("k", &limit, 5);
    req[1] = request("other", &limit, 10);
    req[2] = request("k", &limit, 5);
    CHECK(ratelimit_table_decide(t, req, res, 3, RATELIMIT_ALL, 100 * SEC - 5 * MS));
    CHECK_U64(told(t, &limit, 20, 100 * SEC), 0);
    CHECK_U64(told(t, &limit, 20, 100 * SEC + 10 * MS), 10);
}

/* Another key's reading of the clock may be older still: that is no clock that was set back. */
static void a_late_sweep_drops_no_later_time(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    ratelimit_table *t = forgetful(&limit, 100 * SEC, 0, 0);
    CHECK(ratelimit_table_take(t, "old", 3, &limit, 1, 89 * SEC, NULL));
    CHECK_U64(ratelimit_table_sweep(t, 95 * SEC, 0), 1);
    CHECK_U64(begun_later(t, &limit, "new", 100 * SEC - 5 * MS), 5 * MS);
}

/* What is told counts from the caller's time: a call then passes, one a ns earlier does not. */
static void a_late_call_is_told_waits_from_its_own_time(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    const uint64_t now_ns = 100 * SEC - 8 * MS;
    ratelimit_table *t = forgetful(&limit, 100 * SEC, 0, 0);
    ratelimit_request req = request("charged", &limit, 20);
    ratelimit_result r;
    int policy;
    req.op = RATELIMIT_CHARGE;
    CHECK(ratelimit_table_decide_one(t, &req, now_ns, &r));
    CHECK_U64(r.wait_ns, 19 * MS);
    CHECK_U64(r.reset_after_ns, 28 * MS);
    req = request("reserved", &limit, 10);
    req.op = RATELIMIT_RESERVE;
    CHECK(ratelimit_table_decide_one(t, &req, now_ns, &r));
    CHECK_U64(r.wait_ns, 0);
    req.n = 1;
    req.max_wait_ns = 9 * MS - 1;
    CHECK(!ratelimit_table_decide_one(t, &req, now_ns, &r));
    CHECK_U64(r.status, RATELIMIT_TIMEOUT);
    req.max_wait_ns = 9 * MS;
    CHECK(ratelimit_table_decide_one(t, &req, now_ns, &r));
    CHECK_U64(r.wait_ns, 9 * MS);
    for (policy = RATELIMIT_INHERIT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        uint64_t k;
        place("policy", 0, (size_t)policy);
        t = table_of_blocks(1, (ratelimit_full)policy);
        CHECK(ratelimit_table_take(t, "k", 1, &limit, 10, 100 * SEC - 10 * MS, NULL));
        CHECK_U64(ratelimit_table_sweep(t, 100 * SEC, 0), 1);
        for (k = 0; k < BLOCK_PLACES; k++)
            CHECK(ratelimit_table_take(t, &k, sizeof k, &limit, 10, 100 * SEC, NULL));
        CHECK(!ratelimit_table_take(t, "new", 3, &limit, 10, now_ns, &r));
        CHECK_U64(r.retry_after_ns, 18 * MS);
        CHECK(!ratelimit_table_take(t, "new", 3, &limit, 11, now_ns, &r));
        CHECK(policy == RATELIMIT_REFUSE || r.retry_after_ns == RATELIMIT_FOREVER);
        CHECK(!ratelimit_table_take(t, "new", 3, &limit, 10, now_ns + 18 * MS - 1, NULL));
        CHECK(ratelimit_table_take(t, "new", 3, &limit, 10, now_ns + 18 * MS, NULL));
    }
    place_end();
}

/* A newcomer that comes late is decided at a later time. A place that is in use at its own time is
 * not for it. */
static void a_late_newcomer_replaces_no_permit_that_is_held(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    uint64_t k, now_ns = 95 * SEC;
    ratelimit_table *t = forgetful(&limit, 100 * SEC, 0, 0);
    ratelimit_permit p, none;
    CHECK(ratelimit_table_acquire(t, "job", 3, 1, 3 * SEC, now_ns, &p));
    for (k = 0; k < BLOCK_PLACES; k++)
        (void)ratelimit_table_take(t, &k, sizeof k, &limit, 1, now_ns, NULL);
    CHECK(!ratelimit_table_acquire(t, "job", 3, 1, 3 * SEC, now_ns, &none));
    CHECK_U64(ratelimit_table_release(t, "job", 3, &p, now_ns), OK);
}

/* One request, and a batch. */
static void a_late_call_makes_no_tokens_of_a_key_that_was_replaced(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    ratelimit_request req[2];
    size_t count;
    req[0] = request("n1", &limit, 1);
    req[1] = request("n2", &limit, 1);
    for (count = 1; count <= 2; count++) {
        ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
        char key[2] = {'A', 0};
        int i;
        for (i = 0; i < 24; i++, key[0]++) /* all places */
            CHECK(ratelimit_table_take(t, key, 1, &limit, 10, 100 * SEC, NULL));
        CHECK(ratelimit_table_decide(t, req, NULL, count, RATELIMIT_ALL, 100 * SEC + 10 * MS));
        CHECK_U64(begun_later(t, &limit, "n3", 100 * SEC + 5 * MS), 5 * MS);
    }
}

#endif

/* Against a list of permits per key, each with its end. */
static void permits_are_counted_as_a_list_would(void)
{
    static const char *const keys[] = {"a", "b", "c", "d"};
    static const uint32_t most[] = {1, 2, 5, 64};
    static struct {
        ratelimit_permit p;
        bool held;
    } list[4][64];
    uint64_t now = UINT64_MAX - 20000 * SEC;
    ratelimit_table *t = table_made(arena(0), ARENA_BYTES, RATELIMIT_REFUSE, 1);
    int round, granted = 0, refused = 0;
    memset(list, 0, sizeof list);
    check_seed(10);
    for (round = 0; round < 50000; round++) {
        size_t k = (size_t)check_below(4), i, held = 0, room = 64, other = (size_t)check_below(64);
        uint64_t ttl = 1 + check_below(SEC);
        now += check_below(check_below(10) ? 100 * MS : 2 * SEC);
        for (i = 0; i < 64; i++) {
            if (list[k][i].held && list[k][i].p.expires_ns - now - 1 > INT64_MAX)
                list[k][i].held = false; /* over, but the permit stays to be tried */
            held += list[k][i].held;
            room = list[k][i].held ? room : i;
        }
        if (check_below(2)) {
            ratelimit_permit p = {0, 0, 0};
            bool got = ratelimit_table_acquire(t, keys[k], 1, most[k], ttl, now, &p);
            CHECK(got == (held < most[k]));
            granted += got;
            refused += !got;
            if (got) {
                list[k][room].p = p;
                list[k][room].held = true;
            }
        } else {
            CHECK_U64(release(t, keys[k], &list[k][other].p, now),
                      list[k][other].held ? OK : RATELIMIT_LOST);
            list[k][other].held = false;
        }
    }
    CHECK(granted > 5000 && refused > 500);
}

static void bad_arguments_acquire_nothing(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit p = {0, 0, 0};
    CHECK(!ratelimit_table_acquire(NULL, "key", 3, 1, SEC, 0, &p));
    CHECK(!ratelimit_table_acquire(t, NULL, 3, 1, SEC, 0, &p));
    CHECK(!ratelimit_table_acquire(t, "key", 0, 1, SEC, 0, &p));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 0, SEC, 0, &p));
    CHECK(!ratelimit_table_acquire(t, "key", 3, RATELIMIT_MAX_PERMITS + 1, SEC, 0, &p));
    CHECK(!ratelimit_table_acquire(t, "key", 3, UINT32_MAX, SEC, 0, &p));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 1, 0, 0, &p));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 1, (UINT64_C(1) << 62) + 1, 0, &p));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 1, SEC, 0, NULL));
    memset(&p, 0xA5, sizeof p);
    CHECK(!ratelimit_table_acquire(t, "key", 3, 0, SEC, 0, &p));
    CHECK_U64(p.expires_ns + p.place + p.serial, 0);
    CHECK_U64(counts_of(t, 0).keys, 0);
    CHECK_U64(counts_of(t, 0).refused, 0);
    CHECK(ratelimit_table_acquire(t, "key", 3, RATELIMIT_MAX_PERMITS, UINT64_C(1) << 62, 0, &p));
    CHECK_U64(ratelimit_table_release(NULL, "key", 3, &p, 0), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_release(t, "key", 3, NULL, 0), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_release(t, NULL, 3, &p, 0), RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_table_release(t, "key", 0, &p, 0), RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_table_release(t, "key", 3, &p, 0), OK);
}

static void as_many_permits_are_held_as_can_be_asked_for(void)
{
    ratelimit_table *t = table_made(arena(0), ARENA_BYTES, RATELIMIT_REFUSE, 1);
    ratelimit_permit p[RATELIMIT_MAX_PERMITS], none;
    uint32_t i;
    for (i = 0; i < RATELIMIT_MAX_PERMITS; i++)
        CHECK(acquire(t, "key", RATELIMIT_MAX_PERMITS, 0, &p[i]));
    CHECK(!acquire(t, "key", RATELIMIT_MAX_PERMITS, 0, &none));
    CHECK_U64(counts_of(t, 0).keys, RATELIMIT_MAX_PERMITS);
    for (i = 0; i < RATELIMIT_MAX_PERMITS; i++)
        CHECK_U64(release(t, "key", &p[i], 0), OK);
    CHECK_U64(counts_of(t, 0).keys, 0);
}

static void a_permit_of_a_key_and_its_buckets_are_apart(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_permit p, none;
    CHECK(acquire(t, "key", 1, 0, &p));
    CHECK(take_text(t, "key", 100, 0).allowed);
    CHECK(!take_text(t, "key", 1, 0).allowed);
    CHECK(!acquire(t, "key", 1, 0, &none));
    CHECK(ask_text(t, "key", RATELIMIT_RESET, 0, 0).allowed);
    CHECK(!acquire(t, "key", 1, 0, &none));
    CHECK_U64(release(t, "key", &p, 0), OK);
    CHECK(acquire(t, "key", 1, 0, &p));
    (void)ratelimit_table_sweep(t, 500 * MS, 1); /* nor is it ever idle */
    CHECK(!acquire(t, "key", 1, 500 * MS, &none));
}

static void no_permit_is_forgotten_for_a_newcomer(void)
{
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_of_blocks(1, (ratelimit_full)policy);
        ratelimit_permit p[BLOCK_PLACES], none;
        uint64_t i;
        place("policy", 0, (size_t)policy);
        for (i = 0; i < BLOCK_PLACES; i++)
            CHECK(ratelimit_table_acquire(t, &i, sizeof i, 1, SEC, 0, &p[i]));
        CHECK(!acquire(t, "d", 1, 0, &none));
        CHECK_U64(take_text(t, "d", 1, 0).status, RATELIMIT_FULL);
        CHECK_U64(counts_of(t, 0).refused, 2);
        for (i = 0; i < BLOCK_PLACES; i++)
            CHECK(!ratelimit_table_acquire(t, &i, sizeof i, 1, SEC, 0, &none));
        i = 7;
        CHECK_U64(ratelimit_table_release(t, &i, sizeof i, &p[7], 0), OK);
        CHECK(acquire(t, "d", 1, 0, &none));
    }
    place_end();
}

static void keys_that_a_batch_evicts_are_counted(void)
{
    ratelimit_table *t = table_of_blocks(1, RATELIMIT_EVICT);
    ratelimit_request req[3];
    uint64_t k;
    for (k = 0; k < BLOCK_PLACES; k++)
        CHECK(take_number(t, k, &hourly, 0));
    for (k = 0; k < 3; k++)
        req[k] = request(k == 0 ? "a" : k == 1 ? "b" : "c", &hourly, 1);
    CHECK(ratelimit_table_decide(t, req, NULL, 3, RATELIMIT_ALL, 1));
    CHECK_U64(counts_of(t, 1).evicted, 3);
}

static void where_all_places_are_permits_a_newcomer_waits_for_the_first_to_expire(void)
{
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        uint64_t i, first, key;
        place("policy", 0, (size_t)policy);
        for (first = 0; first < BLOCK_PLACES; first++) {
            ratelimit_table *t = table_of_blocks(1, (ratelimit_full)policy);
            ratelimit_permit p;
            for (i = 0; i < BLOCK_PLACES; i++)
                CHECK(
                    ratelimit_table_acquire(t, &i, sizeof i, 1, (i == first ? 3 : 4) * SEC, 0, &p));
            for (key = 100; key < 110; key++) { /* at home in any line */
                ratelimit_result r;
                CHECK(!ratelimit_table_take(t, &key, sizeof key, &per_second, 1, SEC, &r));
                CHECK_U64(r.status, RATELIMIT_FULL);
                CHECK_U64(r.retry_after_ns, 2 * SEC);
            }
        }
    }
    place_end();
}

static void a_permit_takes_the_place_of_a_key_only_where_newcomers_may(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_with((ratelimit_full)policy, debtors);
        ratelimit_permit p;
        bool evicts = policy == RATELIMIT_EVICT || policy == RATELIMIT_EVICT_LAST_SEEN;
        place("policy", 0, (size_t)policy);
        CHECK(acquire(t, "new", 1, 0, &p) == evicts);
        CHECK_U64(counts_of(t, 0).evicted, evicts);
        CHECK_U64(counts_of(t, 0).refused, !evicts);
    }
    place_end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(the_size_by_macro_is_the_size_by_function);
    RUN(a_size_that_does_not_fit_is_zero_and_none_is_too_small);
    RUN(a_key_costs_43_bytes_and_the_smallest_table_703);
    RUN(a_table_has_two_places_for_each_key_it_was_sized_for);
    RUN(a_table_uses_as_many_blocks_as_fit);
    RUN(a_table_in_unaligned_memory_uses_no_block_that_does_not_fit);
    RUN(bad_arguments_to_init_are_refused);
    RUN(memory_may_be_misaligned_but_not_a_byte_too_small);
    RUN(what_lay_in_the_memory_before_does_not_matter);
    RUN(no_byte_behind_the_memory_is_touched);
    RUN(an_attached_table_is_the_same_table);
    RUN(a_table_larger_than_its_memory_is_not_attached);
    RUN(memory_without_a_table_is_not_attached);
    RUN(a_table_of_another_version_or_with_an_unknown_hash_or_policy_is_not_attached);
    RUN(an_attached_table_goes_on_with_the_hash_it_was_made_with);
    RUN(a_damaged_head_is_refused_or_harmless);
    RUN(a_head_overwritten_at_random_is_refused_or_harmless);
    RUN(damaged_lines_crash_nothing);
    RUN(a_table_full_of_held_locks_costs_one_takeover);
    RUN(a_few_held_locks_are_left_to_those_who_hold_them);
    RUN(locks_that_live_processes_hold_are_left);
    RUN(damaged_buckets_under_right_tags_crash_nothing);
    RUN(a_key_with_two_places_goes_on_with_one);
    RUN_THREADED(a_lock_left_by_the_dead_is_taken_over);
    RUN(a_table_in_a_file_goes_on_where_it_stopped);
    RUN(evict_forgets_the_least_debt);
    RUN(evict_forgets_of_equal_debts_the_one_seen_longest_ago);
    RUN(evict_last_seen_forgets_the_one_seen_longest_ago_whatever_it_owes);
    RUN(evict_last_seen_forgets_the_least_debt_where_it_cannot_tell_who_was_seen_first);
    RUN(a_refusal_counts_as_being_seen);
    RUN(inherit_gives_the_newcomer_the_least_debt);
    RUN(inherit_takes_the_time_over_as_it_is);
    RUN(inherit_takes_over_what_a_block_has_left);
    RUN(inherit_leaves_the_place_of_a_refused_newcomer_to_its_owner);
    RUN(inherit_lets_nothing_through_that_a_bucket_per_key_would_refuse);
    RUN(refuse_answers_full_until_a_place_is_free);
    RUN(a_batch_that_lacks_a_second_place_says_when_there_will_be_one);
    RUN(more_than_the_burst_is_never_also_in_a_full_table);
    RUN(giving_back_to_an_unknown_key_needs_no_room_in_a_batch_either);
    RUN(a_request_without_effect_takes_no_place);
    RUN(unlimited_passes_through_a_table_without_room);
    RUN(places_that_are_full_again_are_used_again);
    RUN(a_login_limit_beside_an_api_limit_on_one_key_stays_a_login_limit);
    RUN(sixty_packets_and_twenty_thousand_bytes_a_second_per_player_are_both_kept);
    RUN(ten_a_second_and_a_hundred_an_hour_per_user_are_both_kept);
    RUN(a_bucket_belongs_to_a_key_and_a_scope);
    RUN(the_scope_of_a_limit_is_made_of_its_numbers);
    RUN(fewer_than_one_key_in_a_thousand_is_forced_out);
    RUN(nine_of_ten_keys_are_in_their_home_line_at_half_full);
    RUN(another_seed_puts_keys_elsewhere);
    RUN(two_tables_without_a_seed_have_different_ones);
    RUN(a_seed_comes_from_the_system_or_there_is_no_table);
    RUN(keys_are_hashed_by_siphash_1_3);
    RUN(the_fast_hash_tells_keys_apart);
    RUN(each_bit_of_a_key_counts_in_each_bit_of_its_hash);
    RUN(the_fast_hash_spreads_keys_of_every_kind);
    RUN(a_take_by_the_hash_of_a_key_is_a_take_of_the_key);
    RUN(any_64_bits_are_a_hash);
    RUN(what_has_no_hash_is_zero_or_bad);
    RUN(no_byte_behind_a_key_is_read);
    RUN(no_byte_before_a_key_is_read);
    RUN(a_megabyte_is_a_key);
    RUN(short_binary_keys_are_all_different);
    RUN(null_and_empty_keys_are_bad_and_so_is_no_table);
    RUN(sweep_drops_what_is_full_again_and_nothing_else);
    RUN(sweep_with_an_idle_time_drops_debts_nobody_asked_for);
    RUN(sweep_drops_what_is_idle_for_longer_than_its_idle_time);
    RUN(sweep_drops_an_idle_key_after_its_idle_time_and_before_it_is_twice_as_long);
    RUN(a_key_that_a_batch_of_all_refuses_again_and_again_is_not_idle);
    RUN(sweep_with_an_idle_time_leaves_a_block_until_it_and_its_window_are_over);
    RUN(stats_tell_permits_from_keys_in_debt);
    RUN(the_step_that_is_forgiven_is_an_option);
    RUN(a_batch_of_each_answers_as_single_calls_do);
    RUN(a_batch_with_a_key_of_no_bytes_or_nowhere_decides_the_others);
    RUN(a_batch_of_all_that_passes_charges_all);
    RUN(a_batch_of_all_that_is_refused_charges_none_and_says_who_and_how_long);
    RUN(the_same_key_twice_in_a_batch_is_charged_twice_or_not_at_all);
    RUN(a_bad_request_in_a_batch_of_all_stops_all);
    RUN(a_refused_batch_does_not_spend_the_largest_burst);
    RUN(a_batch_of_all_has_a_longest_length);
    RUN(arguments_of_a_batch_are_checked);
    RUN(a_batch_without_results_is_carried_out);
    RUN(a_batch_of_all_leaves_the_state_of_all_singles_or_of_none);
    RUN(a_quick_take_leaves_the_state_of_a_general_one);
    RUN(new_keys_of_one_batch_never_get_the_same_place);
    RUN(a_refused_batch_stores_what_a_refusal_stores);
    RUN(a_refused_batch_does_not_count_what_it_did_not_evict);
    RUN(a_refusal_changes_no_byte_of_the_table);
    RUN(a_refused_or_peeked_key_that_is_not_there_locks_and_writes_nothing);
    RUN(nor_does_a_refused_batch_of_keys_that_are_not_there);
    RUN(refusals_note_the_power_of_two_of_the_debt_and_write_nothing_else);
    RUN(at_most_most_permits_are_held);
    RUN(releasing_what_was_never_acquired_is_lost_and_frees_nothing);
    RUN(a_holder_that_crashed_keeps_its_place_for_its_time_to_live);
    RUN(the_permit_of_a_dead_holder_comes_back_while_others_use_the_key);
    RUN(a_late_release_is_lost_and_frees_nobody_elses_permit);
    RUN(a_permit_given_back_twice_frees_nobody_elses);
    RUN(a_permit_given_back_twice_frees_nobody_elses_after_a_sweep);
    RUN(no_scope_of_a_limit_leads_to_the_permits_of_a_key);
    RUN(each_permit_has_its_own_time_to_live);
    RUN(a_clock_set_back_does_not_hold_permits_for_longer);
    RUN(a_permit_is_held_up_to_the_longest_step_of_the_clock);
#if RATELIMIT_PRIV_QUICK
    RUN(a_late_call_makes_no_tokens_of_a_forgotten_key);
    RUN(a_new_key_of_a_late_call_is_not_refused_for_what_others_were_forgotten);
    RUN(the_latest_time_of_all_forgotten_keys_counts);
    RUN(a_clock_that_was_set_back_is_no_late_call);
    RUN(a_late_call_makes_no_tokens_of_a_key_that_was_blocked);
    RUN(a_late_call_makes_no_tokens_of_a_fraction);
    RUN(a_late_batch_gets_the_whole_burst_of_a_new_key);
    RUN(a_late_call_makes_no_tokens_of_a_key_that_was_replaced);
    RUN(a_late_sweep_drops_no_later_time);
    RUN(a_late_call_is_told_waits_from_its_own_time);
    RUN(a_late_newcomer_replaces_no_permit_that_is_held);
#endif
    RUN(permits_are_counted_as_a_list_would);
    RUN(bad_arguments_acquire_nothing);
    RUN(as_many_permits_are_held_as_can_be_asked_for);
    RUN(a_permit_of_a_key_and_its_buckets_are_apart);
    RUN(no_permit_is_forgotten_for_a_newcomer);
    RUN(a_lock_word_that_equals_a_tag_is_no_place);
    RUN(keys_that_a_batch_evicts_are_counted);
    RUN(where_all_places_are_permits_a_newcomer_waits_for_the_first_to_expire);
    RUN(a_permit_takes_the_place_of_a_key_only_where_newcomers_may);
    return check_end();
}

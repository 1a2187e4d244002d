/* test_table.c - the table: sizes, memory that is too small or damaged or reopened, what happens
 * when it is full, sweeping, batches, requests in flight, keys, and that refusals write nothing. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define RATELIMIT_TAKEOVER_MS                                                                      \
  1 /* damaged lines look like held ones: don't wait long for the dead */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK              RATELIMIT_OK
#define LINE_BYTES      64
#define HEAD_BYTES      128
#define BLOCK_LINES     8
#define PLACES_PER_LINE 3

/* Slow to come back, so that debts stand while a test looks at them. */
static const ratelimit_limit per_second = RATELIMIT_LIMIT(1, SEC, 100);
static const ratelimit_limit hourly = RATELIMIT_LIMIT(1, HOUR, 1);

/* ---- making tables --------------------------------------------------------------------------- */

/* Two stretches of memory, each starting at a multiple of 64, so that a table can be copied from
 * one to the other. */
#define ARENA_BYTES (128 * 1024)
static unsigned char arena_bytes[2][ARENA_BYTES + LINE_BYTES];

static unsigned char *arena(int i)
{
    return arena_bytes[i] + (LINE_BYTES - ((uintptr_t)arena_bytes[i] & (LINE_BYTES - 1)));
}

static ratelimit_table *table_in(void *memory, size_t bytes, ratelimit_full when_full,
                                 uint64_t seed)
{
    ratelimit_table_options options = {{0, 1}, RATELIMIT_EVICT, 0};
    ratelimit_table *t = NULL;
    options.seed[0] = seed;
    options.when_full = when_full;
    if (ratelimit_table_init(&t, memory, bytes, &options) != OK)
        exit(2);
    return t;
}

/* Up to eight lines are one block: each of their places is open to each key. */
static ratelimit_table *table_of_lines(size_t lines, ratelimit_full when_full)
{
    return table_in(arena(0), HEAD_BYTES + lines * LINE_BYTES, when_full, 1);
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
    ratelimit_table_decide(t, &req, &res, 1, RATELIMIT_EACH, now_ns);
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
    if (SIZE_MAX > UINT32_MAX) /* 2^32 blocks of 8 lines of 3 places, half of them for keys */
        CHECK_U64(ratelimit_table_bytes((size_t)(UINT64_C(12) << 32)), 0);
}

static void a_key_costs_43_to_45_bytes(void)
{
    CHECK(ratelimit_table_bytes(100000) >= 43 * 100000 - 100000 / 2);
    CHECK(ratelimit_table_bytes(100000) <= 45 * 100000);
    CHECK(ratelimit_table_bytes(10000000) <= (size_t)45 * 10000000);
}

static void a_table_has_two_places_for_each_key_it_was_sized_for(void)
{
    size_t keys;
    for (keys = 1; keys <= 1500; keys++) {
        ratelimit_table *t = table_in(arena(0), ratelimit_table_bytes(keys), RATELIMIT_EVICT, 1);
        ratelimit_table_counts counts = counts_of(t, 0);
        CHECK(counts.capacity >= 2 * keys);
        CHECK(counts.bytes <= ratelimit_table_bytes(keys));
        CHECK(counts.bytes + 63 >= ratelimit_table_bytes(keys));
        CHECK_U64(counts.keys + counts.in_debt + counts.evicted + counts.refused, 0);
        CHECK(t->lines <= BLOCK_LINES);
    }
}

static void a_table_uses_as_many_lines_as_fit(void)
{
    size_t lines;
    for (lines = 1; lines <= BLOCK_LINES; lines++)
        CHECK_U64(counts_of(table_of_lines(lines, RATELIMIT_EVICT), 0).capacity,
                  lines * PLACES_PER_LINE);
    for (; lines <= 1000; lines++) /* blocks of equal size: at most one line of each is left out */
        CHECK(counts_of(table_of_lines(lines, RATELIMIT_EVICT), 0).capacity >=
              (lines - (lines + BLOCK_LINES - 1) / BLOCK_LINES) * PLACES_PER_LINE);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void bad_arguments_to_init_are_refused(void)
{
    ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0};
    ratelimit_table *t = NULL;
    CHECK_U64(ratelimit_table_init(NULL, arena(0), ARENA_BYTES, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_init(&t, NULL, ARENA_BYTES, NULL), RATELIMIT_BAD_ARGUMENT);
    options.when_full = (ratelimit_full)(RATELIMIT_REFUSE + 1);
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    options.when_full = (ratelimit_full)1000000;
    CHECK_U64(ratelimit_table_init(&t, arena(0), ARENA_BYTES, &options), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_attach(NULL, arena(0), ARENA_BYTES), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_attach(&t, NULL, ARENA_BYTES), RATELIMIT_BAD_ARGUMENT);
    CHECK(t == NULL);
}

/* At each alignment: one byte too few for a line, just enough, and the wall right behind the
 * memory. */
static void memory_may_be_misaligned_but_not_a_byte_too_small(void)
{
    unsigned char *wall = walled(1024) + 1024;
    size_t off;
    for (off = 0; off < 64; off++) {
        unsigned char *memory = wall - 1024 + off;
        size_t skip = (64 - off) % 64, least = skip + HEAD_BYTES + LINE_BYTES, bytes;
        ratelimit_table *t = NULL;
        place("misaligned", 0, off);
        for (bytes = 0; bytes < least; bytes += bytes + 1 < least - 2 ? 37 : 1)
            CHECK_U64(ratelimit_table_init(&t, memory, bytes, NULL), RATELIMIT_NO_MEMORY);
        CHECK_U64(ratelimit_table_init(&t, memory, least - 1, NULL), RATELIMIT_NO_MEMORY);
        CHECK_U64(ratelimit_table_init(&t, memory, least, NULL), OK);
        CHECK_U64(counts_of(t, 0).capacity, PLACES_PER_LINE);
        CHECK_U64(ratelimit_table_init(&t, memory, (size_t)(wall - memory), NULL), OK);
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
        t = table_in(arena(0), ARENA_BYTES, RATELIMIT_REFUSE, 1);
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
        ratelimit_table *t = table_in(walled(bytes), bytes, RATELIMIT_EVICT, i);
        for (k = 0; k < 4000; k++)
            CHECK(take_number(t, k, &hourly, 0));
        CHECK_U64(counts_of(t, 0).keys, counts_of(t, 0).capacity);
        CHECK_U64(ratelimit_table_sweep(t, HOUR, 0), counts_of(t, 0).capacity);
    }
}

/* ---- attach ---------------------------------------------------------------------------------- */

static void an_attached_table_is_the_same_table(void)
{
    ratelimit_table *made = table_of_lines(3, RATELIMIT_REFUSE), *t = NULL;
    size_t bytes = HEAD_BYTES + 3 * LINE_BYTES;
    CHECK(take_text(made, "key", 100, 0).allowed);
    CHECK_U64(ratelimit_table_attach(&t, arena(0), bytes), OK);
    CHECK(t == made);
    CHECK_U64(take_text(t, "key", 1, 0).retry_after_ns, SEC);
    CHECK_U64(ratelimit_table_attach(&t, arena(0), bytes + 1000), OK); /* more is no harm */
}

static void a_table_larger_than_its_memory_is_not_attached(void)
{
    static const size_t lines[] = {1, 2, 8, 16, 100};
    size_t i, bytes;
    for (i = 0; i < COUNT(lines); i++) {
        size_t least = HEAD_BYTES + lines[i] * LINE_BYTES;
        ratelimit_table *t = NULL;
        least = (size_t)counts_of(table_of_lines(lines[i], RATELIMIT_EVICT), 0).bytes;
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
        for (byte = 0; byte < 512; byte++)
            arena(0)[byte] = (unsigned char)check_random();
        CHECK_U64(ratelimit_table_attach(&t, arena(0), 512), RATELIMIT_BAD_ARGUMENT);
    }
    CHECK(t == NULL);
}

/* Every operation once or more, with results that must make sense whatever the table holds. */
static void use_at_random(ratelimit_table *t, int rounds)
{
    static const ratelimit_limit limits[] = {
        RATELIMIT_LIMIT(1, SEC, 100),         RATELIMIT_LIMIT(7, SEC, 7),
        RATELIMIT_WINDOW(10, MINUTE),         RATELIMIT_LIMIT(1, UINT64_C(1) << 62, 1),
        RATELIMIT_LIMIT(16777213, SEC, 1000), RATELIMIT_LIMIT(1, 1, UINT64_C(1) << 62),
    };
    int i;
    for (i = 0; i < rounds; i++) {
        uint64_t now = check_random() >> check_below(64), key = check_below(200);
        ratelimit_request req[3];
        ratelimit_result res[3];
        size_t j, count = 1 + (size_t)check_below(3);
        for (j = 0; j < count; j++) {
            req[j] = request("k", &limits[check_below(COUNT(limits))],
                             check_random() >> check_below(64));
            req[j].key = &key;
            req[j].key_len = 1 + (size_t)check_below(sizeof key);
            req[j].op = (ratelimit_op)check_below(8);
            req[j].max_wait_ns = check_random() >> check_below(64);
        }
        ratelimit_table_decide(t, req, res, count, (ratelimit_mode)check_below(2), now);
        for (j = 0; j < count; j++) {
            CHECK(res[j].remaining <= res[j].limit);
            CHECK(!res[j].allowed || res[j].status == OK);
            CHECK(res[j].status != RATELIMIT_DENIED || res[j].retry_after_ns > 0);
        }
        if (i % 16 == 0) {
            (void)ratelimit_table_acquire(t, &key, 8, 1 + (uint32_t)check_below(5), SEC, now);
            (void)ratelimit_table_release(t, &key, 8, now);
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
    ratelimit_table *t = table_in(memory, bytes, RATELIMIT_EVICT, 3);
    head = (unsigned char *)t;
    check_seed(3);
    for (bit = 0; bit < HEAD_BYTES * 8; bit++) {
        ratelimit_table *attached = NULL;
        ratelimit_status status;
        t = table_in(memory, bytes, RATELIMIT_EVICT, 3);
        head[bit / 8] ^= (unsigned char)(1 << bit % 8);
        status = ratelimit_table_attach(&attached, memory, bytes);
        place("bit", 0, bit);
        CHECK(status == OK || status == RATELIMIT_BAD_ARGUMENT || status == RATELIMIT_NO_MEMORY);
        refused += status != OK;
        if (status == OK)
            use_at_random(attached, 64);
    }
    place_end();
    CHECK(refused >= 8 * 44); /* magic, version, geometry, seed, step and their check */
}

/* Whole bytes of it at random, many times over. */
static void a_head_overwritten_at_random_is_refused_or_harmless(void)
{
    size_t bytes = ratelimit_table_bytes(60);
    unsigned char *memory = walled(bytes);
    int round;
    check_seed(4);
    for (round = 0; round < 3000; round++) {
        ratelimit_table *t = table_in(memory, bytes, RATELIMIT_EVICT, 3);
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
        ratelimit_table *t = table_in(memory, bytes, (ratelimit_full)(round % 4), (uint64_t)round);
        for (i = 0; i < counts_of(t, 0).bytes - HEAD_BYTES; i++)
            ((unsigned char *)t)[HEAD_BYTES + i] = (unsigned char)check_random();
        CHECK_U64(ratelimit_table_attach(&t, memory, bytes), OK);
        use_at_random(t, 1000);
    }
}

/* Tags that meet, locks that are free, buckets at random: what a damaged file more likely looks
 * like. */
static void damaged_buckets_under_right_tags_crash_nothing(void)
{
    ratelimit_table *t = table_of_lines(4, RATELIMIT_EVICT);
    int round;
    size_t i;
    check_seed(6);
    for (round = 0; round < 20000; round++) {
        uint64_t key = check_below(12);
        ratelimit_priv_line *line = (ratelimit_priv_line *)(void *)((char *)t + HEAD_BYTES);
        use_at_random(t, 2);
        (void)take_number(t, key, &per_second, check_random());
        for (i = 0; i < 4; i++) {
            line[i].bucket[check_below(3)].rest = check_random();
            line[i].bucket[check_below(3)].full_ns = check_random() >> check_below(64);
        }
    }
}

static void a_lock_left_by_the_dead_is_taken_over(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    ratelimit_priv_line *line = (ratelimit_priv_line *)(void *)((char *)t + HEAD_BYTES);
    CHECK(take_text(t, "key", 99, 0).allowed);
    line->lock |= 1;
    CHECK(take_text(t, "key", 1, 0).allowed);
    CHECK((line->lock & 1) == 0);
    CHECK(!take_text(t, "key", 1, 0).allowed);
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
    t = table_in(memory, bytes, RATELIMIT_REFUSE, 99);
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

/* One key that owes n seconds as of at_ns, in a table of three places. */
typedef struct debtor {
    const char *key;
    uint64_t at_ns, n;
} debtor;

static ratelimit_table *table_with(ratelimit_full when_full, const debtor *debtors)
{
    ratelimit_table *t = table_of_lines(1, when_full);
    int i;
    for (i = 0; i < 3; i++)
        CHECK(take_text(t, debtors[i].key, debtors[i].n, debtors[i].at_ns).allowed);
    return t;
}

/* Each order of the three debtors: what goes must not depend on which place it has. */
static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* The three by their times, as far as times differ, in the given order of insertion. */
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

static void evict_forgets_of_equal_debts_the_one_seen_longest_ago(void)
{
    static const debtor debtors[3] = {{"a", 10 * SEC, 20}, {"b", 0, 30}, {"c", 5 * SEC, 25}};
    check_who_goes(RATELIMIT_EVICT, debtors, 10 * SEC, "b");
    check_who_goes(RATELIMIT_EVICT, debtors, 12 * SEC, "b");
}

static void evict_last_seen_forgets_the_one_seen_longest_ago_whatever_it_owes(void)
{
    static const debtor debtors[3] = {{"a", 3 * SEC, 5}, {"b", 0, 50}, {"c", 2 * SEC, 20}};
    check_who_goes(RATELIMIT_EVICT_LAST_SEEN, debtors, 4 * SEC, "b");
}

static void a_refusal_counts_as_being_seen(void)
{
    static const debtor debtors[3] = {{"a", 0, 100}, {"b", 4 * SEC, 20}, {"c", 5 * SEC, 20}};
    ratelimit_table *t = table_with(RATELIMIT_EVICT_LAST_SEEN, debtors);
    CHECK(!take_text(t, "a", 99, 6 * SEC).allowed);
    CHECK(take_text(t, "new", 1, 7 * SEC).allowed);
    CHECK(remaining_of(t, "a", 7 * SEC) < 100);
    CHECK_U64(remaining_of(t, "b", 7 * SEC), 100);
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
    ratelimit_table *t = table_with(RATELIMIT_INHERIT, debtors);
    ratelimit_result res;
    CHECK(ratelimit_table_take(t, "new", 3, &faster, 1, 0, &res));
    CHECK_U64(res.reset_after_ns, 10 * SEC + SEC / 10);
    CHECK_U64(res.remaining, 1000 - 100 - 1);
}

/* All lines with their locks blanked out: looking at a block for a key that is not there counts
 * them up. */
static void save_lines(const ratelimit_table *t, unsigned char *copy)
{
    size_t lines = (size_t)(counts_of(t, 0).bytes - HEAD_BYTES) / LINE_BYTES, i;
    memcpy(copy, (const unsigned char *)t + HEAD_BYTES, lines * LINE_BYTES);
    for (i = 0; i < lines; i++)
        memset(copy + i * LINE_BYTES, 0, 4);
}

static bool lines_changed(const ratelimit_table *t, const unsigned char *before)
{
    static unsigned char now[ARENA_BYTES];
    save_lines(t, now);
    return memcmp(now, before, (size_t)counts_of(t, 0).bytes - HEAD_BYTES) != 0;
}

static void inherit_leaves_the_place_of_a_refused_newcomer_to_its_owner(void)
{
    static const debtor debtors[3] = {{"a", 0, 100}, {"b", 0, 100}, {"c", 0, 100}};
    static const uint64_t times[] = {0, SEC / 2, 5 * SEC, 60 * SEC};
    unsigned char before[LINE_BYTES];
    size_t i;
    for (i = 0; i < COUNT(times); i++) {
        ratelimit_table *t = table_with(RATELIMIT_INHERIT, debtors);
        uint64_t back = times[i] / SEC;
        place("times", 0, i);
        save_lines(t, before);
        CHECK_U64(take_text(t, "new", back + 1, times[i]).status, RATELIMIT_DENIED);
        CHECK(!lines_changed(t, before));
    }
    place_end();
}

/* However many keys share a few places: whatever the table lets through, a bucket per key lets
 * through, too. */
static void inherit_lets_nothing_through_that_a_bucket_per_key_would_refuse(void)
{
    enum { KEYS = 300 };
    static const ratelimit_limit limit = RATELIMIT_LIMIT(3, SEC, 5);
    static ratelimit_bucket exact[KEYS];
    ratelimit_table *t = table_of_lines(6, RATELIMIT_INHERIT);
    uint64_t i, now = 0, allowed = 0, minted = 0;
    check_seed(7);
    memset(exact, 0, sizeof exact);
    for (i = 0; i < 200000; i++) {
        uint64_t key = check_below(2) ? check_below(10) : check_below(KEYS);
        now += check_below(30 * MS);
        if (!take_number(t, key, &limit, now))
            continue;
        allowed++;
        minted += !ratelimit_bucket_take(&exact[key], &limit, 1, now, NULL);
    }
    CHECK_U64(minted, 0);
    CHECK(allowed > 1000);
}

static void refuse_answers_full_until_a_place_is_free(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    ratelimit_table *t = table_with(RATELIMIT_REFUSE, debtors);
    unsigned char before[LINE_BYTES];
    ratelimit_result res;
    save_lines(t, before);
    res = take_text(t, "new", 1, 0);
    CHECK_U64(res.status, RATELIMIT_FULL);
    CHECK_U64(res.retry_after_ns, 10 * SEC);
    CHECK_U64(take_text(t, "new", 1, 10 * SEC - 1).status, RATELIMIT_FULL);
    CHECK(!lines_changed(t, before));
    CHECK_U64(counts_of(t, 0).refused, 2);
    CHECK_U64(counts_of(t, 0).evicted, 0);
    CHECK_U64(take_text(t, "a", 1, 0).remaining, 69); /* who is there already goes on */
    CHECK(take_text(t, "new", 1, 10 * SEC).allowed);
}

/* No waiting for a place helps who asks for more than the burst. */
static void more_than_the_burst_is_never_also_in_a_full_table(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_with((ratelimit_full)policy, debtors);
        unsigned char before[LINE_BYTES];
        place("policy", 0, (size_t)policy);
        save_lines(t, before);
        CHECK_U64(take_text(t, "new", 101, 0).status, RATELIMIT_NEVER);
        CHECK(!lines_changed(t, before));
    }
    place_end();
}

/* Requests that would change nothing push nobody out. */
static void a_request_without_effect_takes_no_place(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_EVICT_LAST_SEEN; policy++) {
        ratelimit_table *t = table_with((ratelimit_full)policy, debtors);
        static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
        unsigned char before[LINE_BYTES];
        place("policy", 0, (size_t)policy);
        save_lines(t, before);
        CHECK(ask_text(t, "new", RATELIMIT_PEEK, 1, 0).allowed);
        CHECK_U64(ask_text(t, "new", RATELIMIT_PEEK, 1, 0).remaining, 100);
        CHECK(ask_text(t, "new", RATELIMIT_REFUND, 5, 0).allowed);
        CHECK(ask_text(t, "new", RATELIMIT_RESET, 0, 0).allowed);
        CHECK_U64(ask_text(t, "new", RATELIMIT_RESET, 0, 0).remaining, 100);
        CHECK(!ask_text(t, "new", RATELIMIT_TAKE, 0, 0).allowed);
        CHECK(ratelimit_table_take(t, "new", 3, &unlimited, 5, 0, NULL));
        CHECK(!lines_changed(t, before));
        CHECK_U64(counts_of(t, 0).evicted, 0);
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
        ratelimit_table *t = table_of_lines(BLOCK_LINES, (ratelimit_full)policy);
        place("policy", 0, (size_t)policy);
        for (wave = 0; wave < 10; wave++)
            for (i = 0; i < BLOCK_LINES * PLACES_PER_LINE; i++)
                CHECK(take_number(t, (uint64_t)wave * 1000 + i, &hourly, (uint64_t)wave * HOUR));
        CHECK_U64(counts_of(t, 9 * HOUR).evicted + counts_of(t, 9 * HOUR).refused, 0);
        CHECK_U64(counts_of(t, 9 * HOUR).keys, BLOCK_LINES * PLACES_PER_LINE);
        CHECK_U64(counts_of(t, 10 * HOUR).keys, 0);
    }
    place_end();
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
                table_in(memory, ratelimit_table_bytes(keys), RATELIMIT_EVICT, ++seed);
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
                table_in(memory, ratelimit_table_bytes(sizes[i]), RATELIMIT_EVICT, seed);
            for (k = 0; k < sizes[i]; k++)
                (void)take_number(t, k, &hourly, 0);
            for (k = 0; k < sizes[i]; k++) {
                ratelimit_priv_place at = ratelimit_priv_locate(t, &k, sizeof k, 0);
                home += ratelimit_priv_slot(&at.block[at.home], at.tag) < 3;
                found += !take_number(t, k, &hourly, 0);
            }
        }
        place("sizes", 0, i);
        CHECK(home * 10 >= 3 * sizes[i] * 9);
        CHECK(found * 1000 >= 3 * sizes[i] * 999);
    }
    place_end();
}

static void another_seed_puts_keys_elsewhere(void)
{
    ratelimit_table *a = table_in(arena(0), 65536, RATELIMIT_EVICT, 1);
    ratelimit_table *b = table_in(arena(1), 65536, RATELIMIT_EVICT, 2);
    uint64_t k, same = 0;
    for (k = 0; k < 1000; k++)
        same += ratelimit_priv_locate(a, &k, sizeof k, 0).tag ==
                ratelimit_priv_locate(b, &k, sizeof k, 0).tag;
    CHECK_U64(same, 0);
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
    unsigned char key[300];
    size_t len;
    for (len = 0; len < sizeof key; len++)
        key[len] = (unsigned char)len;
    /* the paper's own example, appendix A, shows that ours above is SipHash */
    CHECK_U64(sip_hash(2, 4, key, 15, paper_seed), UINT64_C(0xa129ca6149be45e5));
    for (len = 1; len <= sizeof key; len++)
        CHECK_U64(ratelimit_priv_hash(key, len, paper_seed), sip_hash(1, 3, key, len, paper_seed));
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void no_byte_behind_a_key_is_read(void)
{
    ratelimit_table *t = table_in(arena(0), 65536, RATELIMIT_REFUSE, 1);
    unsigned char *wall = walled(4096) + 4096;
    unsigned char middle[256];
    size_t len;
    for (len = 1; len <= 200; len++) {
        memset(middle, (int)len, sizeof middle);
        memset(wall - len, (int)len, len);
        CHECK(ratelimit_table_take(t, wall - len, len, &hourly, 1, 0, NULL));
        CHECK(!ratelimit_table_take(t, middle + 3, len, &hourly, 1, 0, NULL)); /* the same key */
    }
}

static void a_megabyte_is_a_key(void)
{
    static unsigned char key[1 << 20];
    ratelimit_table *t = table_of_lines(2, RATELIMIT_REFUSE);
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
    ratelimit_table *t = table_in(arena(0), ARENA_BYTES, RATELIMIT_REFUSE, 1);
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
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
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
    CHECK_U64(ratelimit_table_sweep(NULL, 0, 0), 0);
    ratelimit_table_stats(t, 0, NULL);
    CHECK_U64(counts_of(NULL, 0).capacity, 0);
    CHECK_U64(counts_of(t, 0).keys, 0);
}

/* ---- sweep and stats ------------------------------------------------------------------------- */

static void sweep_drops_what_is_full_again_and_nothing_else(void)
{
    ratelimit_table *t = table_in(arena(0), 65536, RATELIMIT_EVICT, 1);
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

/* When a key was last seen is remembered as a debt rounded up to 1/32. So an idle time of 10 s is
 * over after 10 s at the earliest, and for a debt of 100 s a few seconds later at the latest. */
static void sweep_with_an_idle_time_drops_debts_nobody_asked_for(void)
{
    static const debtor debtors[3] = {{"a", 0, 100}, {"b", 0, 100}, {"c", 0, 100}};
    static const uint64_t late = 7500 * MS;
    ratelimit_table *t = table_with(RATELIMIT_EVICT, debtors);
    CHECK(!take_text(t, "b", 100, 8 * SEC).allowed); /* asked for, though refused */
    CHECK(!take_text(t, "c", 100, 8 * SEC).allowed);
    CHECK_U64(ratelimit_table_sweep(t, 10 * SEC + late, 0), 0); /* idle time 0: nobody */
    CHECK_U64(ratelimit_table_sweep(t, 10 * SEC, 10 * SEC), 0);
    CHECK_U64(ratelimit_table_sweep(t, 10 * SEC + late, 10 * SEC), 1); /* a */
    CHECK(!take_text(t, "c", 100, 18 * SEC).allowed);
    CHECK_U64(ratelimit_table_sweep(t, 18 * SEC, 10 * SEC), 0);
    CHECK_U64(ratelimit_table_sweep(t, 18 * SEC + late, 10 * SEC), 1); /* b */
    CHECK_U64(ratelimit_table_sweep(t, 28 * SEC, 10 * SEC), 0);
    CHECK_U64(ratelimit_table_sweep(t, 28 * SEC + late, 10 * SEC), 1); /* c */
    CHECK_U64(counts_of(t, 40 * SEC).evicted, 3);
    CHECK_U64(counts_of(t, 40 * SEC).keys, 0);
}

static void stats_tell_keys_in_flight_from_keys_in_debt(void)
{
    ratelimit_table *t = table_of_lines(8, RATELIMIT_REFUSE);
    ratelimit_table_counts counts;
    uint64_t i;
    CHECK(ratelimit_table_acquire(t, "key", 3, 5, SEC, 0));
    for (i = 0; i < 7; i++)
        CHECK(take_number(t, i, &hourly, 0));
    counts = counts_of(t, 0);
    CHECK_U64(counts.capacity, 24);
    CHECK_U64(counts.bytes, HEAD_BYTES + 8 * LINE_BYTES);
    CHECK_U64(counts.keys, 8);
    CHECK_U64(counts.in_debt, 7);
    CHECK_U64(counts_of(t, SEC).keys, 7);
}

/* ---- the clock ------------------------------------------------------------------------------- */

static void the_step_that_is_forgiven_is_an_option(void)
{
    static const struct {
        uint64_t step_ns, back_ns;
        bool forgiven;
    } rows[] = {
        /* of a debt of 100 s the time last seen is known to 4 s */
        {0, 10 * SEC, false},         {0, 14 * SEC, true},         {SEC, SEC, false},
        {SEC, 5 * SEC, true},         {FOREVER, 900 * SEC, false}, {500 * SEC, 500 * SEC, false},
        {500 * SEC, 504 * SEC, true},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0};
        ratelimit_table *t = NULL;
        uint64_t at = 1000 * SEC, retry;
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

static bool same_result(const ratelimit_result *a, const ratelimit_result *b)
{
    return a->allowed == b->allowed && a->status == b->status && a->limit == b->limit &&
           a->remaining == b->remaining && a->taken == b->taken &&
           a->retry_after_ns == b->retry_after_ns && a->reset_after_ns == b->reset_after_ns &&
           a->wait_ns == b->wait_ns && a->source == b->source;
}

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
    req.op = check_below(2) ? RATELIMIT_TAKE : (ratelimit_op)check_below(9);
    req.max_wait_ns = check_below(3 * SEC);
    return req;
}

/* Batches longer than what is fetched ahead at once, keys that come again, bad requests. */
static void a_batch_of_each_answers_as_single_calls_do(void)
{
    ratelimit_table *a = table_in(arena(0), 1024, RATELIMIT_EVICT, 5);
    ratelimit_table *b = table_in(arena(1), 1024, RATELIMIT_EVICT, 5);
    uint64_t now = 0;
    int round;
    check_seed(8);
    for (round = 0; round < 2000; round++) {
        ratelimit_request req[100];
        ratelimit_result batch[100], single;
        size_t count = 1 + (size_t)check_below(100), i;
        now += check_below(2 * SEC);
        for (i = 0; i < count; i++)
            req[i] = random_request();
        ratelimit_table_decide(a, req, batch, count, RATELIMIT_EACH, now);
        for (i = 0; i < count; i++) {
            ratelimit_table_decide(b, &req[i], &single, 1, RATELIMIT_EACH, now);
            CHECK(same_result(&batch[i], &single));
        }
    }
    CHECK(memcmp((char *)a + HEAD_BYTES, (char *)b + HEAD_BYTES, 1024 - HEAD_BYTES) == 0);
}

static ratelimit_request take_request(const char *key, uint64_t n)
{
    return request(key, &per_second, n);
}

static void a_batch_of_all_that_passes_charges_all(void)
{
    ratelimit_table *t = table_of_lines(2, RATELIMIT_EVICT);
    ratelimit_request req[3];
    ratelimit_result res[3];
    req[0] = take_request("a", 10);
    req[1] = take_request("b", 100);
    req[2] = take_request("a", 20); /* the same key again: charged in order */
    ratelimit_table_decide(t, req, res, 3, RATELIMIT_ALL, 0);
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
        ratelimit_table *t = table_of_lines(2, RATELIMIT_EVICT);
        ratelimit_request req[4];
        ratelimit_result res[4];
        CHECK(take_text(t, "b", 100, 0).allowed);
        CHECK(take_text(t, "c", 98, 0).allowed);
        req[0] = take_request("a", 10);
        req[1] = take_request("b", asked[longest][0]);
        req[2] = take_request("c", asked[longest][1]);
        req[3] = take_request("d", 1);
        ratelimit_table_decide(t, req, res, 4, RATELIMIT_ALL, 0);
        for (i = 0; i < 4; i++) {
            bool refused = i == 1 || i == 2;
            uint64_t own = i == 1 ? asked[longest][0] : asked[longest][1] - 2;
            CHECK(!res[i].allowed);
            CHECK_U64(res[i].taken, 0);
            CHECK_U64(res[i].wait_ns, 0);
            CHECK_U64(res[i].status, refused ? RATELIMIT_DENIED : OK);
            CHECK_U64(res[i].retry_after_ns, refused ? own * SEC : 3 * SEC);
        }
        CHECK_U64(remaining_of(t, "a", 0), 100);
        CHECK_U64(counts_of(t, 0).keys, 2); /* neither a nor d left anything behind */
        ratelimit_table_decide(t, req, res, 4, RATELIMIT_ALL, 3 * SEC - 1);
        CHECK(!res[longest + 1].allowed);
        ratelimit_table_decide(t, req, res, 4, RATELIMIT_ALL, 3 * SEC);
        CHECK(res[0].allowed && res[1].allowed && res[2].allowed && res[3].allowed);
    }
}

static void the_same_key_twice_in_a_batch_is_charged_twice_or_not_at_all(void)
{
    static const ratelimit_limit three = RATELIMIT_LIMIT(1, SEC, 3);
    ratelimit_table *t = table_of_lines(2, RATELIMIT_EVICT);
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[0] = req[1] = request("key", &three, 2);
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 0);
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(res[1].status, RATELIMIT_DENIED);
    CHECK_U64(res[1].retry_after_ns, SEC);
    CHECK_U64(counts_of(t, 0).keys, 0);
    req[1].n = 1;
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 0);
    CHECK(res[0].allowed && res[1].allowed);
    CHECK_U64(res[1].remaining, 0);
}

static void a_bad_request_in_a_batch_of_all_stops_all(void)
{
    static const ratelimit_limit none = RATELIMIT_LIMIT(0, SEC, 1);
    ratelimit_table *t = table_of_lines(2, RATELIMIT_EVICT);
    ratelimit_request req[3];
    ratelimit_result res[3];
    req[0] = take_request("a", 10);
    req[1] = request("b", &none, 1);
    req[2] = take_request("", 1);
    ratelimit_table_decide(t, req, res, 3, RATELIMIT_ALL, 0);
    CHECK(!res[0].allowed && !res[1].allowed && !res[2].allowed);
    CHECK_U64(res[0].status, OK);
    CHECK_U64(res[1].status, RATELIMIT_BAD_LIMIT);
    CHECK_U64(res[2].status, RATELIMIT_BAD_KEY);
    CHECK_U64(counts_of(t, 0).keys, 0);
}

static void a_batch_of_all_has_a_longest_length(void)
{
    ratelimit_table *t = table_in(arena(0), ARENA_BYTES, RATELIMIT_EVICT, 1);
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
    ratelimit_table_decide(t, req, res, RATELIMIT_MAX_ALL + 1, RATELIMIT_ALL, 0);
    for (i = 0; i <= RATELIMIT_MAX_ALL; i++)
        CHECK(!res[i].allowed && res[i].status == RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(counts_of(t, 0).keys, 0);
    ratelimit_table_decide(t, req, res, RATELIMIT_MAX_ALL, RATELIMIT_ALL, 0);
    for (i = 0; i < RATELIMIT_MAX_ALL; i++)
        allowed += res[i].allowed;
    CHECK_U64(allowed, RATELIMIT_MAX_ALL);
    ratelimit_table_decide(t, req, res, RATELIMIT_MAX_ALL + 1, RATELIMIT_EACH, HOUR);
    for (i = 0; i <= RATELIMIT_MAX_ALL; i++)
        CHECK(res[i].allowed);
}

static void arguments_of_a_batch_are_checked(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    ratelimit_request req = take_request("a", 1);
    ratelimit_result res;
    ratelimit_table_decide(t, &req, NULL, 1, RATELIMIT_EACH, 0);
    ratelimit_table_decide(t, NULL, NULL, 0, RATELIMIT_ALL, 0);
    ratelimit_table_decide(t, NULL, &res, 1, RATELIMIT_EACH, 0);
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    ratelimit_table_decide(NULL, &req, &res, 1, RATELIMIT_ALL, 0);
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    ratelimit_table_decide(t, &req, &res, 1, (ratelimit_mode)2, 0);
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    req.op = (ratelimit_op)8;
    ratelimit_table_decide(t, &req, &res, 1, RATELIMIT_EACH, 0);
    CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(counts_of(t, 0).keys, 0);
}

/* Against singles on a copy: if all of them pass there, ALL must leave the copy's state; else the
 * state before. Each key keeps its limit: a change would be stored by a refusal, too. */
static void a_batch_of_all_leaves_the_state_of_all_singles_or_of_none(void)
{
    size_t bytes = HEAD_BYTES + 2 * LINE_BYTES;
    int round, full, passed = 0, refused = 0;
    check_seed(9);
    for (full = 0; full < 4; full++) {
        ratelimit_table *t = table_in(arena(0), bytes, (ratelimit_full)full, 5);
        uint64_t now = 0;
        for (round = 0; round < 5000; round++) {
            ratelimit_request req[6];
            ratelimit_result res[6], single;
            size_t count = 1 + (size_t)check_below(6), i;
            ratelimit_table *copy = NULL;
            unsigned char want[2 * LINE_BYTES];
            bool all = true;
            memcpy(arena(1), arena(0), bytes);
            CHECK_U64(ratelimit_table_attach(&copy, arena(1), bytes), OK);
            save_lines(t, want);
            now += check_below(3 * SEC);
            for (i = 0; i < count; i++) {
                req[i] = random_request();
                req[i].limit = &batch_limits[*(const char *)req[i].key % (int)COUNT(batch_limits)];
                ratelimit_table_decide(copy, &req[i], &single, 1, RATELIMIT_EACH, now);
                all = all && single.allowed;
            }
            if (all)
                save_lines(copy, want);
            ratelimit_table_decide(t, req, res, count, RATELIMIT_ALL, now);
            for (i = 0; i < count; i++)
                CHECK(res[i].allowed == all);
            CHECK(!lines_changed(t, want));
            CHECK(!all || counts_of(t, now).evicted == counts_of(copy, now).evicted);
            passed += all;
            refused += !all;
        }
    }
    CHECK(passed > 1000 && refused > 1000);
}

/* Else a clock set back would be forgiven anew at each try, and the key stay shut for all the step.
 */
static void a_refused_batch_stores_what_a_refusal_stores(void)
{
    static const ratelimit_limit slow = RATELIMIT_LIMIT(10, 20 * SEC, 16);
    static const ratelimit_limit fast = RATELIMIT_LIMIT(1000, 20 * SEC, 16);
    ratelimit_table *t = table_of_lines(2, RATELIMIT_EVICT);
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[0] = take_request("other", 1);
    req[1] = take_request("a", 1);
    CHECK(take_text(t, "a", 100, 1000 * SEC).allowed);
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 500 * SEC);
    CHECK_U64(res[1].retry_after_ns, SEC);
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 501 * SEC - 1);
    CHECK_U64(res[1].retry_after_ns, 1);
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 501 * SEC);
    CHECK(res[0].allowed && res[1].allowed);
    CHECK(ratelimit_table_take(t, "b", 1, &slow, 16, 600 * SEC, NULL));
    req[1] = request("b", &fast, 1);
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 600 * SEC);
    CHECK_U64(res[1].retry_after_ns, 20 * MS);
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 600 * SEC + 20 * MS);
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
    ratelimit_table_decide(t, req, res, 2, RATELIMIT_ALL, 0);
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(counts_of(t, 0).evicted, 0);
    CHECK_U64(remaining_of(t, "b", 0), 90);
}

/* ---- a refusal writes nothing ---------------------------------------------------------------- */

static void a_refusal_changes_no_byte_of_the_table(void)
{
    static const ratelimit_op refused[] = {RATELIMIT_TAKE, RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,
                                           RATELIMIT_RESERVE};
    ratelimit_table *t = table_of_lines(3, RATELIMIT_EVICT);
    size_t bytes = HEAD_BYTES + 3 * LINE_BYTES, i;
    CHECK(take_text(t, "key", 50, 0).allowed);
    CHECK(take_text(t, "key", 50, SEC / 2).allowed);
    memcpy(arena(1), arena(0), bytes);
    for (i = 0; i < COUNT(refused); i++) {
        CHECK(!ask_text(t, "key", refused[i], 100, SEC / 2).allowed ||
              refused[i] == RATELIMIT_TAKE_UP_TO);
        if (refused[i] != RATELIMIT_TAKE_UP_TO)
            CHECK(!ask_text(t, "key", refused[i], 101, SEC).allowed);
        CHECK(!ask_text(t, "key", refused[i], 0, SEC).allowed || refused[i] == RATELIMIT_PEEK);
        if (refused[i] == RATELIMIT_TAKE_UP_TO)
            continue; /* half a token was there at first, none to take */
        CHECK(memcmp(arena(0), arena(1), bytes) == 0);
    }
    CHECK(memcmp(arena(0), arena(1), bytes) == 0);
}

/* "seen" is noted by refusals too, but at most once a second and a key; nothing else of the table
 * changes. */
static void refusals_note_that_a_key_was_seen_at_most_once_a_second(void)
{
    ratelimit_table *t = table_of_lines(3, RATELIMIT_EVICT);
    size_t bytes = HEAD_BYTES + 3 * LINE_BYTES, i, differ;
    uint64_t ms, writes = 0;
    CHECK(take_text(t, "key", 100, 0).allowed);
    for (ms = 0; ms < 20000; ms++) {
        memcpy(arena(1), arena(0), bytes);
        CHECK(!take_text(t, "key", 100, ms * MS).allowed);
        for (i = differ = 0; i < bytes; i++)
            differ += arena(0)[i] != arena(1)[i];
        writes += differ != 0;
        CHECK(differ <= 6); /* two bytes of seen, four of a lock */
    }
    CHECK(writes >= 4 && writes <= 20);
    CHECK_U64(remaining_of(t, "key", 20 * SEC), 20);
}

/* ---- in flight ------------------------------------------------------------------------------- */

static bool acquire(ratelimit_table *t, const char *key, uint32_t most, uint64_t now_ns)
{
    return ratelimit_table_acquire(t, key, strlen(key), most, SEC, now_ns);
}

static ratelimit_status release(ratelimit_table *t, const char *key, uint64_t now_ns)
{
    return ratelimit_table_release(t, key, strlen(key), now_ns);
}

static void at_most_most_are_in_flight(void)
{
    static const uint64_t bases[] = {0, UINT64_C(1000000000) * SEC, UINT64_MAX - SEC / 2};
    size_t i;
    for (i = 0; i < COUNT(bases); i++) {
        ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
        uint64_t now = bases[i];
        place("bases", now, i);
        CHECK(acquire(t, "key", 2, now));
        CHECK(acquire(t, "key", 2, now));
        CHECK(!acquire(t, "key", 2, now));
        CHECK(acquire(t, "other", 2, now));
        CHECK_U64(release(t, "key", now), OK);
        CHECK(acquire(t, "key", 2, now));
        CHECK(!acquire(t, "key", 2, now));
        CHECK(acquire(t, "key", 3,
                      now)); /* a raised most counts at once, and so does a lowered one */
        CHECK(!acquire(t, "key", 1, now));
        CHECK_U64(release(t, "key", now) + release(t, "key", now) + release(t, "key", now), OK);
        CHECK_U64(release(t, "key", now), RATELIMIT_LOST);
        CHECK_U64(counts_of(t, now).keys, 1); /* only "other" */
    }
    place_end();
}

static void releasing_what_was_never_acquired_is_lost_and_frees_nothing(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    CHECK_U64(release(t, "key", 0), RATELIMIT_LOST);
    CHECK(acquire(t, "key", 1, 0));
    CHECK_U64(release(t, "stranger", 0), RATELIMIT_LOST);
    CHECK(!acquire(t, "key", 1, 0));
    CHECK_U64(release(t, "key", 0), OK);
    CHECK_U64(release(t, "key", 0), RATELIMIT_LOST);
    CHECK(acquire(t, "key", 1, 0));
    CHECK(!acquire(t, "key", 1, 0)); /* the second release added no place */
}

static void a_holder_that_crashed_keeps_its_place_for_its_time_to_live(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    CHECK(acquire(t, "key", 2, 0));
    CHECK(acquire(t, "key", 2, 0));
    CHECK(!acquire(t, "key", 2, SEC - 1));
    CHECK(acquire(t, "key", 2, SEC)); /* both are gone, and this is the first */
    CHECK(acquire(t, "key", 2, SEC));
    CHECK(!acquire(t, "key", 2, SEC));
    CHECK_U64(release(t, "key", 3 * SEC), RATELIMIT_LOST); /* too late */
}

static void each_acquire_keeps_the_others_alive(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    CHECK(acquire(t, "key", 3, 0));
    CHECK(acquire(t, "key", 3, SEC - 1));
    CHECK(acquire(t, "key", 3, 2 * SEC - 2));
    CHECK(!acquire(t, "key", 3,
                   3 * SEC - 3)); /* all three still count; a refusal keeps nobody alive */
    CHECK(acquire(t, "key", 3, 3 * SEC - 2));
    CHECK_U64(release(t, "key", 3 * SEC - 2), OK);
    CHECK_U64(release(t, "key", 3 * SEC - 2), RATELIMIT_LOST);
    CHECK(
        ratelimit_table_acquire(t, "long", 4, 3, 10 * SEC, 0)); /* a shorter one shortens nothing */
    CHECK(ratelimit_table_acquire(t, "long", 4, 3, SEC, 0));
    CHECK_U64(release(t, "long", 10 * SEC - 1), OK);
    CHECK_U64(release(t, "long", 10 * SEC - 1), OK);
}

static void a_clock_set_back_does_not_hold_places_for_longer(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    CHECK(acquire(t, "key", 1, 1000 * SEC));
    CHECK(!acquire(t, "key", 1, 500 * SEC));
    CHECK(!acquire(t, "key", 1, 501 * SEC - 1));
    CHECK(acquire(t, "key", 1, 501 * SEC + SEC / 16));
}

/* Against two numbers per key: how many, and until when. */
static void requests_in_flight_are_counted_as_two_numbers_would(void)
{
    static const char *const keys[] = {"a", "b", "c", "d"};
    uint64_t held[4] = {0, 0, 0, 0}, until[4] = {0, 0, 0, 0}, now = UINT64_MAX - 20000 * SEC;
    ratelimit_table *t = table_of_lines(2, RATELIMIT_REFUSE);
    int round;
    check_seed(10);
    for (round = 0; round < 50000; round++) {
        size_t k = (size_t)check_below(4);
        uint64_t ttl = 1 + check_below(SEC);
        uint32_t most = 1 + (uint32_t)check_below(5);
        now += check_below(check_below(10) ? 100 * MS : 2 * SEC);
        if (until[k] <= now)
            held[k] = 0;
        if (check_below(2)) {
            CHECK(ratelimit_table_acquire(t, keys[k], 1, most, ttl, now) == (held[k] < most));
            if (held[k] < most) {
                until[k] = held[k] && until[k] > now + ttl ? until[k] : now + ttl;
                held[k]++;
            }
        } else {
            CHECK_U64(release(t, keys[k], now), held[k] ? OK : RATELIMIT_LOST);
            held[k] -= held[k] > 0;
        }
    }
}

static void bad_arguments_acquire_nothing(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    CHECK(!ratelimit_table_acquire(NULL, "key", 3, 1, SEC, 0));
    CHECK(!ratelimit_table_acquire(t, NULL, 3, 1, SEC, 0));
    CHECK(!ratelimit_table_acquire(t, "key", 0, 1, SEC, 0));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 0, SEC, 0));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 1 << 24, SEC, 0));
    CHECK(!ratelimit_table_acquire(t, "key", 3, UINT32_MAX, SEC, 0));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 1, 0, 0));
    CHECK(!ratelimit_table_acquire(t, "key", 3, 1, (UINT64_C(1) << 62) + 1, 0));
    CHECK_U64(counts_of(t, 0).keys, 0);
    CHECK(ratelimit_table_acquire(t, "key", 3, (1 << 24) - 1, UINT64_C(1) << 62, 0));
    CHECK_U64(ratelimit_table_release(NULL, "key", 3, 0), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_table_release(t, NULL, 3, 0), RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_table_release(t, "key", 0, 0), RATELIMIT_BAD_KEY);
}

static void as_many_may_be_in_flight_as_the_count_holds(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    uint32_t i, most = 70000; /* beyond 16 bits */
    for (i = 0; i < most; i++)
        CHECK(acquire(t, "key", most, 0));
    CHECK(!acquire(t, "key", most, 0));
    for (i = 0; i < most; i++)
        CHECK_U64(release(t, "key", 0), OK);
    CHECK_U64(release(t, "key", 0), RATELIMIT_LOST);
}

static void a_key_in_flight_is_another_than_the_same_key_with_a_limit(void)
{
    ratelimit_table *t = table_of_lines(1, RATELIMIT_EVICT);
    CHECK(acquire(t, "key", 1, 0));
    CHECK(take_text(t, "key", 100, 0).allowed);
    CHECK(!take_text(t, "key", 1, 0).allowed);
    CHECK(!acquire(t, "key", 1, 0));
    CHECK(ask_text(t, "key", RATELIMIT_RESET, 0, 0).allowed);
    CHECK(!acquire(t, "key", 1, 0));
    CHECK_U64(release(t, "key", 0), OK);
    CHECK(acquire(t, "key", 1, 0));
    (void)ratelimit_table_sweep(t, 500 * MS, 1); /* nor is it ever idle */
    CHECK(!acquire(t, "key", 1, 500 * MS));
}

static void nobody_in_flight_is_forgotten_for_a_newcomer(void)
{
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_of_lines(1, (ratelimit_full)policy);
        place("policy", 0, (size_t)policy);
        CHECK(acquire(t, "a", 1, 0) && acquire(t, "b", 1, 0) && acquire(t, "c", 1, 0));
        CHECK(!acquire(t, "d", 1, 0));
        CHECK_U64(take_text(t, "d", 1, 0).status, RATELIMIT_FULL);
        CHECK_U64(counts_of(t, 0).refused, 2);
        CHECK(!acquire(t, "a", 1, 0) && !acquire(t, "b", 1, 0) && !acquire(t, "c", 1, 0));
        CHECK_U64(release(t, "b", 0), OK);
        CHECK(acquire(t, "d", 1, 0));
    }
    place_end();
}

static void a_newcomer_in_flight_makes_room_only_where_newcomers_may(void)
{
    static const debtor debtors[3] = {{"a", 0, 30}, {"b", 0, 10}, {"c", 0, 20}};
    int policy;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_with((ratelimit_full)policy, debtors);
        bool evicts = policy == RATELIMIT_EVICT || policy == RATELIMIT_EVICT_LAST_SEEN;
        place("policy", 0, (size_t)policy);
        CHECK(acquire(t, "new", 1, 0) == evicts);
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
    RUN(a_key_costs_43_to_45_bytes);
    RUN(a_table_has_two_places_for_each_key_it_was_sized_for);
    RUN(a_table_uses_as_many_lines_as_fit);
    RUN(bad_arguments_to_init_are_refused);
    RUN(memory_may_be_misaligned_but_not_a_byte_too_small);
    RUN(what_lay_in_the_memory_before_does_not_matter);
    RUN(no_byte_behind_the_memory_is_touched);
    RUN(an_attached_table_is_the_same_table);
    RUN(a_table_larger_than_its_memory_is_not_attached);
    RUN(memory_without_a_table_is_not_attached);
    RUN(a_damaged_head_is_refused_or_harmless);
    RUN(a_head_overwritten_at_random_is_refused_or_harmless);
    RUN(damaged_lines_crash_nothing);
    RUN(damaged_buckets_under_right_tags_crash_nothing);
    RUN_THREADED(a_lock_left_by_the_dead_is_taken_over);
    RUN(a_table_in_a_file_goes_on_where_it_stopped);
    RUN(evict_forgets_the_least_debt);
    RUN(evict_forgets_of_equal_debts_the_one_seen_longest_ago);
    RUN(evict_last_seen_forgets_the_one_seen_longest_ago_whatever_it_owes);
    RUN(a_refusal_counts_as_being_seen);
    RUN(inherit_gives_the_newcomer_the_least_debt);
    RUN(inherit_takes_the_time_over_as_it_is);
    RUN(inherit_leaves_the_place_of_a_refused_newcomer_to_its_owner);
    RUN(inherit_lets_nothing_through_that_a_bucket_per_key_would_refuse);
    RUN(refuse_answers_full_until_a_place_is_free);
    RUN(more_than_the_burst_is_never_also_in_a_full_table);
    RUN(a_request_without_effect_takes_no_place);
    RUN(unlimited_passes_through_a_table_without_room);
    RUN(places_that_are_full_again_are_used_again);
    RUN(fewer_than_one_key_in_a_thousand_is_forced_out);
    RUN(nine_of_ten_keys_are_in_their_home_line_at_half_full);
    RUN(another_seed_puts_keys_elsewhere);
    RUN(keys_are_hashed_by_siphash_1_3);
    RUN(no_byte_behind_a_key_is_read);
    RUN(a_megabyte_is_a_key);
    RUN(short_binary_keys_are_all_different);
    RUN(null_and_empty_keys_are_bad_and_so_is_no_table);
    RUN(sweep_drops_what_is_full_again_and_nothing_else);
    RUN(sweep_with_an_idle_time_drops_debts_nobody_asked_for);
    RUN(stats_tell_keys_in_flight_from_keys_in_debt);
    RUN(the_step_that_is_forgiven_is_an_option);
    RUN(a_batch_of_each_answers_as_single_calls_do);
    RUN(a_batch_of_all_that_passes_charges_all);
    RUN(a_batch_of_all_that_is_refused_charges_none_and_says_who_and_how_long);
    RUN(the_same_key_twice_in_a_batch_is_charged_twice_or_not_at_all);
    RUN(a_bad_request_in_a_batch_of_all_stops_all);
    RUN(a_batch_of_all_has_a_longest_length);
    RUN(arguments_of_a_batch_are_checked);
    RUN(a_batch_of_all_leaves_the_state_of_all_singles_or_of_none);
    RUN(a_refused_batch_stores_what_a_refusal_stores);
    RUN(a_refused_batch_does_not_count_what_it_did_not_evict);
    RUN(a_refusal_changes_no_byte_of_the_table);
    RUN(refusals_note_that_a_key_was_seen_at_most_once_a_second);
    RUN(at_most_most_are_in_flight);
    RUN(releasing_what_was_never_acquired_is_lost_and_frees_nothing);
    RUN(a_holder_that_crashed_keeps_its_place_for_its_time_to_live);
    RUN(each_acquire_keeps_the_others_alive);
    RUN(a_clock_set_back_does_not_hold_places_for_longer);
    RUN(requests_in_flight_are_counted_as_two_numbers_would);
    RUN(bad_arguments_acquire_nothing);
    RUN(as_many_may_be_in_flight_as_the_count_holds);
    RUN(a_key_in_flight_is_another_than_the_same_key_with_a_limit);
    RUN(nobody_in_flight_is_forgotten_for_a_newcomer);
    RUN(a_newcomer_in_flight_makes_room_only_where_newcomers_may);
    return check_end();
}

/* test_reported.c - faults that users of other rate limiters met, each a test named after what went
 * wrong there, with the answer that is right here. B01 to B72 are the numbers of our collection of
 * such reports; R, F and N and a number are what reviews of our own first draft found. Vectors run
 * on a bucket, a shared bucket, a table, a compare-and-swap store and a limiter, each at four
 * bases: the clock's origin, 10^9 s, near the top of uint64_t, and across it.
 *
 * Also to be run with -m32: the answers are the same in every build (B71). */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Every clock and every allocation of the header goes through these. */
static clockid_t clock_asked;
static uint64_t allocations;

static int watched_clock_gettime(clockid_t clock, struct timespec *ts)
{
    clock_asked = clock;
    ts->tv_sec = 12;
    ts->tv_nsec = 34;
    return 0;
}

#define clock_gettime     watched_clock_gettime
#define malloc(bytes)     (allocations++, (malloc)(bytes))
#define calloc(n, bytes)  (allocations++, (calloc)(n, bytes))
#define realloc(p, bytes) (allocations++, (realloc)(p, bytes))

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

/* Short names for the rows. */
#define TAKE    RATELIMIT_TAKE
#define UP_TO   RATELIMIT_TAKE_UP_TO
#define PEEK    RATELIMIT_PEEK
#define RESERVE RATELIMIT_RESERVE
#define CHARGE  RATELIMIT_CHARGE
#define REFUND  RATELIMIT_REFUND
#define CANCEL  RATELIMIT_CANCEL
#define RESET   RATELIMIT_RESET
#define OK      RATELIMIT_OK
#define DENIED  RATELIMIT_DENIED
#define NEVER   RATELIMIT_NEVER

#define YEARS_100 (36525 * DAY)

static engine the_engine;

/* A table in static memory, with a policy, for tests that need many keys. */
static unsigned char many_memory[RATELIMIT_TABLE_BYTES(65536)];

static ratelimit_table *table_of(size_t max_keys, ratelimit_full when_full)
{
    return table_made(many_memory, ratelimit_table_bytes(max_keys), when_full, 11);
}

/* 24 places, each of them open to each key, so that what is full is known to the key. */
#define ONE_BLOCK_KEYS   12
#define ONE_BLOCK_PLACES 24

/* One token of the key that is the number i. */
static ratelimit_result take_numbered(ratelimit_table *t, uint64_t i, const ratelimit_limit *limit,
                                      uint64_t now_ns)
{
    ratelimit_result res;
    ratelimit_table_take(t, &i, sizeof i, limit, 1, now_ns, &res);
    return res;
}

/* ---- arithmetic and overflow ----------------------------------------------------------------- */

/* B01 */
static void a_long_pause_at_a_high_rate_refills_to_the_burst_and_no_further(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1000000000, SEC, 1000000000);
    static const step half_a_day[] = {
        {0, TAKE, 1000000000, OK, 0, 0},
        {12 * HOUR, TAKE, 1000000000, OK, 0, 0},
        {12 * HOUR, TAKE, 1, DENIED, 0, 1},
    };
    static const step a_century[] = {
        {0, TAKE, 1000000000, OK, 0, 0},
        {YEARS_100, PEEK, 1, OK, 1000000000, 0},
        {YEARS_100, UP_TO, INT64_MAX, OK, 0, 0},
        {YEARS_100, TAKE, 1, DENIED, 0, 1},
    };
    REPLAY(&limit, half_a_day);
    REPLAY(&limit, a_century);
}

/* B01, of a window: the pause crosses millions of them. */
static void a_long_pause_leaves_a_window_with_its_tokens_and_no_more(void)
{
    static const ratelimit_limit limit = RATELIMIT_WINDOW(1000000000, SEC);
    static const step steps[] = {
        {0, TAKE, 1000000000, OK, 0, 0},
        {0, TAKE, 1, DENIED, 0, SEC},
        {YEARS_100, TAKE, 1000000000, OK, 0, 0},
        {YEARS_100, TAKE, 1, DENIED, 0, SEC},
    };
    REPLAY(&limit, steps);
}

/* B02 */
static void a_burst_beyond_31_bits_stays_a_limit(void)
{
    static const ratelimit_limit limit =
        RATELIMIT_LIMIT(UINT64_C(3355443200), SEC, UINT64_C(3355443200));
    static const step steps[] = {
        {0, TAKE, UINT64_C(3355443200), OK, 0, 0},
        {0, TAKE, 1, DENIED, 0, 1},
        {SEC, TAKE, UINT64_C(3355443200), OK, 0, 0},
    };
    CHECK_U64(limit.burst, UINT64_C(3355443200));
    REPLAY(&limit, steps);
}

/* B02: beyond 32 and 53 bits, at a slower rate. */
static void a_burst_beyond_53_bits_stays_a_limit(void)
{
    static const uint64_t burst = (UINT64_C(1) << 61) + 1;
    static const ratelimit_limit limit =
        RATELIMIT_LIMIT(UINT64_C(1000000000), SEC, (UINT64_C(1) << 61) + 1);
    const step steps[] = {
        {0, TAKE, burst - 1, OK, 1, 0},     {0, TAKE, 1, OK, 0, 0}, {0, TAKE, 1, DENIED, 0, 1},
        {0, TAKE, burst, DENIED, 0, burst}, {1, TAKE, 1, OK, 0, 0},
    };
    REPLAY(&limit, steps);
}

/* A token taken at 0 from the table, then a wait for n at at_ns. s holds the clock. */
static ratelimit_result wait_once(const ratelimit_limit *limit, uint64_t n, uint64_t at_ns,
                                  uint64_t max_wait_ns, sleeper *s)
{
    ratelimit_table *t = table_of(ONE_BLOCK_KEYS, RATELIMIT_EVICT);
    ratelimit_limiter l;
    ratelimit_request req = request("key", limit, n);
    ratelimit_result res;
    limiter_start(&l, ratelimit_table_store(t, clock_read, &s->now_ns), s);
    CHECK(ratelimit_allow(&l, "key", limit));
    s->now_ns = at_ns;
    memset(&res, 0xA5, sizeof res);
    res.allowed = false;
    CHECK(ratelimit_wait(&l, &req, max_wait_ns, &res) == res.allowed);
    return res;
}

/* B03 */
static void the_largest_timeout_waits_and_does_not_give_up_at_once(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    static const uint64_t longest[] = {FOREVER, FOREVER - 1, INT64_MAX, UINT64_C(1) << 63};
    size_t i;
    for (i = 0; i < COUNT(longest); i++) {
        sleeper s;
        ratelimit_result res;
        place("limiter", 0, i);
        sleeper_start(&s, 0);
        res = wait_once(&limit, 1, SEC / 4, longest[i], &s);
        CHECK(res.allowed);
        CHECK_U64(s.slept_ns, 750 * MS);
        CHECK_U64(s.now_ns, SEC);
    }
    place_end();
}

/* B03: what the largest numbers do elsewhere. */
static void the_largest_reservation_is_granted_and_the_largest_block_blocks(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        engine *e = &the_engine;
        ratelimit_request req = request("key", &limit, 1);
        ratelimit_result res;
        place(engine_names[kind], 0, 0);
        engine_start(e, (engine_kind)kind);
        CHECK(take(e, &limit, 1, 0));
        req.op = RATELIMIT_RESERVE;
        req.max_wait_ns = UINT64_MAX;
        res = engine_decide(e, &req, SEC / 4);
        CHECK(res.allowed);
        CHECK_U64(res.wait_ns, 750 * MS);
        req.op = RATELIMIT_BLOCK;
        req.max_wait_ns = UINT64_C(1) << 62;
        CHECK(engine_decide(e, &req, SEC).allowed);
        CHECK_U64(ask(e, &limit, TAKE, 1, SEC).retry_after_ns, UINT64_C(1) << 62);
    }
    place_end();
}

/* B04 */
static void a_limit_times_milliseconds_beyond_32_bits_is_right(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(4294967, SEC, 4294967);
    static const step half[] = {
        {0, TAKE, 4294967, OK, 0, 0},
        {SEC / 2, TAKE, 2147483, OK, 0, 0},
    };
    static const step half_and_one[] = {
        {0, TAKE, 4294967, OK, 0, 0},
        {SEC / 2, TAKE, 2147484, DENIED, 2147483, 117},
        {SEC / 2 + 116, TAKE, 2147484, DENIED, 2147483, 1},
        {SEC / 2 + 117, TAKE, 2147484, OK, 0, 0},
    };
    REPLAY(&limit, half);
    REPLAY(&limit, half_and_one);
}

/* ---- precision ------------------------------------------------------------------------------- */

/* B05 */
static void a_token_is_there_the_moment_it_is_due(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, 13 * SEC, 1);
    static const step first[] = {
        {0, TAKE, 1, OK, 0, 0},
        {UINT64_C(1299999999), TAKE, 1, DENIED, 0, 1},
        {UINT64_C(1300000000), TAKE, 1, OK, 0, 0},
    };
    static const uint64_t interval = UINT64_C(1300000000);
    int kind, b;
    REPLAY(&limit, first);
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            uint64_t last = kind == ENGINE_BUCKET ? 1000000 : 20000, k, late = 0;
            uint64_t start = base_at(b, last * interval, &limit);
            engine_start(&the_engine, (engine_kind)kind);
            place(engine_names[kind], start, 0);
            for (k = 0; k <= last; k++)
                late += !take(&the_engine, &limit, 1, start + k * interval);
            CHECK_U64(late, 0);
        }
    place_end();
}

/* How many takes at base, base + step, ... base + span pass, on each engine at each base. */
static void count_allowed(const ratelimit_limit *limit, uint64_t step_ns, uint64_t span_ns,
                          uint64_t want)
{
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            uint64_t start = base_at(b, span_ns, limit), t, allowed = 0;
            place(engine_names[kind], start, 0);
            engine_start(&the_engine, (engine_kind)kind);
            for (t = 0; t <= span_ns; t += step_ns)
                allowed += take(&the_engine, limit, 1, start + t);
            CHECK_U64(allowed, want);
        }
    place_end();
}

/* B06, B07, B08 (a), a caller who comes a fraction of a ns late each time, and a window. */
static void polling_loses_no_part_of_a_token(void)
{
    static const struct {
        ratelimit_limit limit;
        uint64_t step_ns, span_ns, allowed;
    } rows[] = {
        {RATELIMIT_LIMIT(1, SEC, 5), SEC / 10, 1000 * SEC, 1005},
        {RATELIMIT_LIMIT(7, SEC, 7), MS, 10 * SEC, 77},
        {RATELIMIT_LIMIT(5000, SEC, 1), 100 * US, SEC, 5001},
        {RATELIMIT_LIMIT(3, SEC, 1), SEC / 3 + 1, 10 * SEC, 30},
        {RATELIMIT_WINDOW(7, SEC), 10 * MS, 10 * SEC - MS, 70},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++)
        count_allowed(&rows[i].limit, rows[i].step_ns, rows[i].span_ns, rows[i].allowed);
}

/* B08 (b): a million calls each, so on one engine. */
static void rates_that_round_to_the_same_gap_differ(void)
{
    static const struct {
        ratelimit_limit limit;
        uint64_t allowed;
    } rows[] = {
        {RATELIMIT_LIMIT(160, SEC, 2), 1602},
        {RATELIMIT_LIMIT(170, SEC, 2), 1702},
        {RATELIMIT_LIMIT(2000, SEC, 2), 20002},
        {RATELIMIT_LIMIT(2001, SEC, 2), 20012},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_bucket b = {0, 0};
        uint64_t t, allowed = 0;
        for (t = 0; t <= 10 * SEC; t += 10 * US)
            allowed += ratelimit_bucket_take(&b, &rows[i].limit, 1, t, NULL);
        CHECK_U64(allowed, rows[i].allowed);
    }
}

/* B09 */
static void tokens_of_part_of_a_second_can_be_spent(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(2, SEC, 10);
    static const step steps[] = {
        {0, TAKE, 1, OK, 9, 0},
        {600 * MS, TAKE, 10, OK, 0, 0},
    };
    REPLAY(&limit, steps);
}

/* ---- the clock ------------------------------------------------------------------------------- */

/* B10: up to ten seconds back is lateness. The debt is what the given times say, nothing is
 * forgiven. */
static void a_time_a_little_earlier_is_late_and_mints_nothing(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 3);
    static const step half_a_second[] = {
        {100 * SEC, TAKE, 1, OK, 2, 0},
        {99 * SEC + SEC / 2, TAKE, 1, OK, 0, 0},
        {99 * SEC + SEC / 2, TAKE, 1, DENIED, 0, SEC / 2},
        {99 * SEC + SEC / 2, TAKE, 1, DENIED, 0, SEC / 2},
        {100 * SEC, TAKE, 1, OK, 0, 0},
    };
    static const step ten_seconds[] = {
        {100 * SEC, TAKE, 1, OK, 2, 0},
        {90 * SEC, TAKE, 1, DENIED, 0, 9 * SEC},
        {90 * SEC, PEEK, 1, DENIED, 0, 9 * SEC},
        {99 * SEC, TAKE, 1, OK, 0, 0},
    };
    REPLAY(&limit, half_a_second);
    REPLAY(&limit, ten_seconds);
}

/* B10: a debt that is longer than the window by more than ten seconds is of a clock that was set
 * back. It becomes the window, so a caller is never told to wait out the step. */
static void a_clock_set_back_refuses_nobody_for_longer_than_the_window(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 3);
    static const struct {
        uint64_t set_to, retry;
    } rows[] = {
        {88 * SEC, 11 * SEC}, /* a debt of 13 s: late by ten seconds at most */
        {88 * SEC - 1, SEC},  {50 * SEC, SEC}, {SEC, SEC}, {0, SEC},
    };
    int kind, b;
    size_t i;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++)
            for (i = 0; i < COUNT(rows); i++) {
                uint64_t base = base_at(b, 200 * SEC, &limit), at = base + rows[i].set_to;
                place(engine_names[kind], base, i);
                engine_start(&the_engine, (engine_kind)kind);
                CHECK(take(&the_engine, &limit, 1, base + 100 * SEC));
                CHECK_U64(ask(&the_engine, &limit, PEEK, 1, at).retry_after_ns, rows[i].retry);
                CHECK_U64(ask(&the_engine, &limit, TAKE, 1, at).retry_after_ns, rows[i].retry);
                CHECK(!take(&the_engine, &limit, 1, at + rows[i].retry - 1));
                CHECK(take(&the_engine, &limit, 1, at + rows[i].retry));
            }
    place_end();
}

/* B10: what was forgiven is stored, so an empty key is usable one window after the step. */
static void an_empty_key_is_usable_one_window_after_a_step_back(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 3);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        uint64_t start = UINT64_C(1000000) * SEC, t = 7 * SEC;
        place(engine_names[kind], start, 0);
        engine_start(&the_engine, (engine_kind)kind);
        CHECK(take(&the_engine, &limit, 3, start));
        CHECK_U64(ask(&the_engine, &limit, TAKE, 1, t).retry_after_ns, SEC);
        CHECK_U64(ask(&the_engine, &limit, TAKE, 1, t + SEC - 1).retry_after_ns, 1);
        CHECK(take(&the_engine, &limit, 1, t + SEC));
        CHECK(take(&the_engine, &limit, 3, t + 4 * SEC));
    }
    place_end();
}

/* B10, the trap: a reservation lies beyond the window; a late call must not wipe it out. */
static void a_late_call_does_not_forgive_reservations(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 3);
    static const step steps[] = {
        {100 * SEC, TAKE, 3, OK, 0, 0},          {100 * SEC, RESERVE, 3, OK, 0, 3 * SEC},
        {95 * SEC, TAKE, 1, DENIED, 0, 9 * SEC}, {100 * SEC, TAKE, 1, DENIED, 0, 4 * SEC},
        {103 * SEC, TAKE, 1, DENIED, 0, SEC},
    };
    REPLAY(&limit, steps);
}

/* B11 */
static void going_back_and_forth_mints_nothing(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 5);
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            uint64_t start = base_at(b, 10 * SEC, &limit), allowed = 0;
            uint32_t i, calls = kind == ENGINE_BUCKET || !SHORT ? 1000000 : 50000;
            place(engine_names[kind], start, 0);
            engine_start(&the_engine, (engine_kind)kind);
            for (i = 0; i < calls; i++)
                allowed += take(&the_engine, &limit, 1, start + (i % 2 ? 9 : 10) * SEC);
            CHECK_U64(allowed, 5);
        }
    place_end();
}

/* B11: with other operations between. */
static void peeks_and_refunds_at_an_earlier_time_mint_nothing(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 5);
    static const step steps[] = {
        {10 * SEC, TAKE, 5, OK, 0, 0},           {9 * SEC, PEEK, 1, DENIED, 0, 2 * SEC},
        {9 * SEC, UP_TO, 5, DENIED, 0, 2 * SEC}, {9 * SEC, REFUND, 1, OK, 0, 0},
        {10 * SEC, TAKE, 1, OK, 0, 0},           {10 * SEC, TAKE, 1, DENIED, 0, SEC},
    };
    REPLAY(&limit, steps);
}

/* B12 (a) */
static void time_zero_is_a_time_like_any_other(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    static const ratelimit_limit window = RATELIMIT_WINDOW(1, SEC);
    static const step steps[] = {
        {0, TAKE, 1, OK, 0, 0},
        {0, TAKE, 1, DENIED, 0, SEC},
    };
    REPLAY(&limit, steps);
    REPLAY(&window, steps);
}

/* B12: the last instants of the type. Full lies beyond them, and the bucket knows. */
static void the_last_nanosecond_of_the_clock_is_a_time_like_any_other(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 3);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        engine *e = &the_engine;
        place(engine_names[kind], UINT64_MAX, 0);
        engine_start(e, (engine_kind)kind);
        CHECK(take(e, &limit, 2, UINT64_MAX - SEC));
        CHECK(take(e, &limit, 2, UINT64_MAX));
        CHECK_U64(ask(e, &limit, TAKE, 1, UINT64_MAX).retry_after_ns, SEC);
        CHECK_U64(ask(e, &limit, PEEK, 1, UINT64_MAX).reset_after_ns, 3 * SEC);
    }
    place_end();
}

/* F3, R4: the quick way added to the time before it compared, and gave out 20 where the general way
 * gave out 10. (The engine asks both ways each time.) */
static void a_clock_that_passes_its_end_mints_nothing(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    static const ratelimit_limit larger = RATELIMIT_LIMIT(1, SEC, 5);
    int kind, i;
    for (kind = 0; kind < ENGINES; kind++) {
        uint64_t allowed = 0, all = 0;
        engine_start(&the_engine, (engine_kind)kind);
        for (i = 0; i < 10; i++) {
            allowed += take(&the_engine, &limit, 1, UINT64_MAX - SEC);
            allowed += take(&the_engine, &limit, 1, 0);
        }
        engine_start(&the_engine, (engine_kind)kind);
        for (i = 0; i < 100; i++) {
            all += take(&the_engine, &larger, 1, UINT64_MAX - SEC + 1);
            all += take(&the_engine, &larger, 1, UINT64_MAX);
            all += take(&the_engine, &larger, 1, 0);
            all += take(&the_engine, &larger, 1, SEC);
        }
        place(engine_names[kind], 0, 0);
        CHECK_U64(allowed, 2);
        CHECK_U64(all, 5 + 2);
    }
    place_end();
}

/* B13 */
static void the_default_clock_counts_while_the_machine_sleeps(void)
{
    clock_asked = CLOCK_REALTIME;
    CHECK_U64(ratelimit_clock_ns(), 12 * SEC + 34);
    CHECK(clock_asked != CLOCK_REALTIME);
#if defined(__linux__)
    CHECK(clock_asked == CLOCK_BOOTTIME);
#else
    CHECK(clock_asked == CLOCK_MONOTONIC);
#endif
}

/* B13: the store without a clock of its own reads the same one. */
static void a_table_store_without_a_clock_reads_the_default_clock(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    ratelimit_table *t = table_of(ONE_BLOCK_KEYS, RATELIMIT_EVICT);
    ratelimit_store store = ratelimit_table_store(t, NULL, NULL);
    ratelimit_request req = request("key", &limit, 1);
    ratelimit_result res;
    store.decide(&store, &req, &res, 1, RATELIMIT_EACH);
    CHECK(res.allowed);
    CHECK(!ratelimit_table_take(t, "key", 3, &limit, 1, 13 * SEC + 33, NULL));
    CHECK(ratelimit_table_take(t, "key", 3, &limit, 1, 13 * SEC + 34, NULL));
}

/* B14 */
static void a_window_longer_than_a_second_turns(void)
{
    static const ratelimit_limit limit = RATELIMIT_WINDOW(3, 60 * SEC);
    static const step steps[] = {
        {500 * MS, TAKE, 1, OK, 2, 0},         {1500 * MS, TAKE, 1, OK, 1, 0},
        {2500 * MS, TAKE, 1, OK, 0, 0},        {3500 * MS, TAKE, 1, DENIED, 0, 56500 * MS},
        {60 * SEC - 1, TAKE, 1, DENIED, 0, 1}, {60 * SEC, PEEK, 1, OK, 3, 0},
        {61 * SEC, TAKE, 1, OK, 2, 0},
    };
    REPLAY(&limit, steps);
}

/* One random limit: 1 to 10^6 tokens per 1 ms to 1 day, burst 1 to 1000. All have one scope, so
 * they are one limit that changes. */
static ratelimit_limit random_limit(void)
{
    uint64_t tokens = 1 + check_below(UINT64_C(1) << check_below(20)) % 1000000;
    uint64_t per = MS + check_below(DAY >> check_below(26));
    ratelimit_limit limit =
        ratelimit_limit_make(tokens, per, 1 + check_below(UINT64_C(1) << check_below(10)));
    limit.scope = 1;
    return limit;
}

/* ---- limits that change ---------------------------------------------------------------------- */

/* B15 */
static void raising_a_limit_helps_at_once(void)
{
    static const ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(10, 20 * SEC, 16, 1);
    static const ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(1000, 20 * SEC, 16, 1);
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            engine *e = &the_engine;
            uint64_t start = base_at(b, SEC, &slow);
            place(engine_names[kind], start, 0);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &slow, 1, start) && take(e, &slow, 1, start));
            CHECK_U64(ask(e, &slow, TAKE, 1, start).remaining, 13);
            CHECK_U64(ask(e, &fast, PEEK, 1, start).remaining, 13);
            CHECK_U64(ask(e, &fast, TAKE, 1, start).remaining, 12);
            CHECK(take(e, &fast, 12, start));
            CHECK_U64(ask(e, &fast, TAKE, 1, start).retry_after_ns, 20 * MS);
        }
    place_end();
}

/* B15: an empty key may go on one interval of the new limit later, also if refused first. */
static void a_refusal_under_a_raised_limit_ends_with_the_raised_limit(void)
{
    static const ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(10, 20 * SEC, 16, 1);
    static const ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(1000, 20 * SEC, 16, 1);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        engine *e = &the_engine;
        place(engine_names[kind], 0, 0);
        engine_start(e, (engine_kind)kind);
        CHECK(take(e, &slow, 16, 0));
        CHECK_U64(ask(e, &fast, TAKE, 1, 0).retry_after_ns, 20 * MS);
        CHECK(take(e, &fast, 1, 20 * MS));
        CHECK(take(e, &fast, 16, 20 * MS + 320 * MS));
    }
    place_end();
}

/* B15, with limits and spendings at random: whole tokens that were spent stay spent, however often
 * a limit changes. */
static void tokens_spent_stay_spent_whatever_the_limit_becomes(void)
{
    uint64_t i;
    int change;
    check_seed(15);
    for (i = 0; i < 3000; i++) {
        engine *e = &the_engine;
        ratelimit_limit limits[3];
        uint64_t now = check_random() >> (1 + check_below(63)), spent;
        int k;
        for (k = 0; k < 3; k++)
            limits[k] = random_limit();
        spent = 1 + check_below(limits[0].burst);
        place(engine_names[i % ENGINES], now, (size_t)i);
        engine_start(e, (engine_kind)(i % ENGINES));
        CHECK(take(e, &limits[0], spent, now));
        for (change = 0; change < 12; change++) {
            const ratelimit_limit *l = &limits[check_below(3)];
            uint64_t left = l->burst > spent ? l->burst - spent : 0;
            CHECK_U64(ask(e, l, PEEK, 1, now).remaining, left);
            /* a refusal stores the change; what was spent beyond a smaller burst is forgotten with
             * it */
            CHECK(!take(e, l, l->burst, now));
            spent = spent < l->burst ? spent : l->burst;
        }
    }
    place_end();
}

/* B16 */
static void lowering_a_limit_below_what_is_there_leaves_a_limit_that_works(void)
{
    static const ratelimit_limit high = RATELIMIT_LIMIT_SCOPE(5, SEC, 5, 1);
    static const ratelimit_limit low = RATELIMIT_LIMIT_SCOPE(2, SEC, 2, 1);
    static const step steps[] = {
        {0, TAKE, 1, OK, 1, 0},           {0, TAKE, 1, OK, 0, 0},
        {0, TAKE, 1, DENIED, 0, SEC / 2}, {SEC / 2, TAKE, 1, OK, 0, 0},
        {100 * SEC, TAKE, 2, OK, 0, 0},
    };
    int kind;
    size_t i;
    REPLAY(&low, steps);
    for (kind = 0; kind < ENGINES; kind++) { /* the same after the high limit was asked for */
        engine_start(&the_engine, (engine_kind)kind);
        ask(&the_engine, &high, PEEK, 1, 0);
        for (i = 0; i < COUNT(steps); i++) {
            place(engine_names[kind], 0, i);
            check_step(&the_engine, &low, &steps[i], 0);
        }
    }
    place_end();
}

/* B16: more spent than the new burst counts as the whole burst, not more and not less. */
static void a_key_that_spent_more_than_the_lowered_burst_is_empty_not_stuck(void)
{
    static const ratelimit_limit high = RATELIMIT_LIMIT_SCOPE(5, SEC, 5, 1);
    static const ratelimit_limit low = RATELIMIT_LIMIT_SCOPE(2, SEC, 2, 1);
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            engine *e = &the_engine;
            uint64_t start = base_at(b, SEC, &low);
            place(engine_names[kind], start, 0);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &high, 4, start));
            CHECK_U64(ask(e, &low, TAKE, 1, start).retry_after_ns, SEC / 2);
            CHECK_U64(ask(e, &low, PEEK, 1, start).reset_after_ns, SEC);
            CHECK(take(e, &low, 1, start + SEC / 2));
            CHECK(!take(e, &low, 1, start + SEC / 2));
        }
    place_end();
}

/* B17 */
static void a_smaller_window_counts_from_the_next_request(void)
{
    ratelimit_limit many = ratelimit_window_make(100, 60 * SEC);
    ratelimit_limit few = ratelimit_window_make(10, 60 * SEC);
    int kind, b;
    many.scope = few.scope = 1;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            engine *e = &the_engine;
            uint64_t start = base_at(b, 60 * SEC, &many);
            ratelimit_result res;
            place(engine_names[kind], start, 0);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &many, 1, start));
            res = ask(e, &few, TAKE, 1, start);
            CHECK(res.allowed);
            CHECK_U64(res.burst, 10);
            CHECK_U64(res.remaining, 8);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &many, 50, start));
            res = ask(e, &few, TAKE, 1, start + SEC);
            CHECK_U64(res.status, DENIED);
            CHECK_U64(res.burst, 10);
            CHECK_U64(res.remaining, 0);
            CHECK_U64(res.retry_after_ns, 59 * SEC);
            CHECK(take(e, &few, 10, start + 60 * SEC));
        }
    place_end();
}

/* What is spent under one limit and asked under another. */
static ratelimit_result spend_and_change(engine_kind kind, const ratelimit_limit *before,
                                         uint64_t n, const ratelimit_limit *after)
{
    engine_start(&the_engine, kind);
    CHECK(take(&the_engine, before, n, SEC));
    return ask(&the_engine, after, TAKE, after->burst, SEC);
}

/* R7, N25: with the interval the burst counted as spent; the burst alone left 9.1 s to wait. */
static void a_lowered_burst_leaves_at_most_the_new_burst_spent(void)
{
    static const ratelimit_limit high = RATELIMIT_LIMIT_SCOPE(10, SEC, 100, 1);
    static const ratelimit_limit low = RATELIMIT_LIMIT_SCOPE(10, SEC, 10, 1);
    static const ratelimit_limit raised = RATELIMIT_LIMIT_SCOPE(10, SEC, 50, 1);
    static const ratelimit_limit minutely = RATELIMIT_LIMIT_SCOPE(10, MINUTE, 100, 1);
    static const ratelimit_limit ten = RATELIMIT_LIMIT_SCOPE(10, MINUTE, 10, 1);
    static const ratelimit_limit eleven = RATELIMIT_LIMIT_SCOPE(11, MINUTE, 10, 1);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        place(engine_names[kind], 0, 0);
        CHECK_U64(spend_and_change((engine_kind)kind, &high, 100, &low).retry_after_ns, SEC);
        CHECK_U64(ask(&the_engine, &low, PEEK, 1, SEC).retry_after_ns, SEC / 10);
        CHECK_U64(ask(&the_engine, &raised, PEEK, 1, SEC).remaining,
                  40); /* stored by the refusal */
        CHECK_U64(spend_and_change((engine_kind)kind, &high, 5, &low).remaining, 5);
        CHECK_U64(spend_and_change((engine_kind)kind, &high, 60, &raised).remaining, 0);
        CHECK_U64(spend_and_change((engine_kind)kind, &minutely, 100, &ten).retry_after_ns, MINUTE);
        CHECK_U64(spend_and_change((engine_kind)kind, &minutely, 100, &eleven).retry_after_ns,
                  UINT64_C(54545454546));
    }
    place_end();
}

/* What a charge or a reservation owes beyond the burst is a time, which no limit changes. */
static void a_debt_made_on_purpose_is_a_time_that_no_limit_changes(void)
{
    static const ratelimit_limit high = RATELIMIT_LIMIT_SCOPE(10, SEC, 100, 1);
    static const ratelimit_limit low = RATELIMIT_LIMIT_SCOPE(10, SEC, 10, 1);
    static const ratelimit_limit other = RATELIMIT_LIMIT_SCOPE(1, MINUTE, 2, 1);
    int kind, op;
    for (kind = 0; kind < ENGINES; kind++)
        for (op = 0; op < 2; op++) {
            engine *e = &the_engine;
            place(engine_names[kind], 0, (size_t)op);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &high, 100, SEC));
            CHECK(ask(e, &high, op ? CHARGE : RESERVE, 50, SEC).allowed); /* 15 s are owed */
            CHECK_U64(ask(e, &low, PEEK, 1, SEC).reset_after_ns, 15 * SEC);
            CHECK_U64(ask(e, &low, TAKE, 1, SEC).retry_after_ns, 14100 * MS);
            CHECK_U64(ask(e, &other, PEEK, 1, SEC).reset_after_ns, 15 * SEC);
            CHECK_U64(ask(e, &low, TAKE, 1, 6 * SEC).retry_after_ns, 9100 * MS);
        }
    place_end();
}

/* F4: 2 ns were added, which is 18 tokens at 0.1 ns each. */
static void tokens_of_a_tenth_of_a_ns_stay_spent_as_they_were(void)
{
    static const ratelimit_limit ten = RATELIMIT_LIMIT_SCOPE(10, 1, 1000, 1);
    static const ratelimit_limit nine = RATELIMIT_LIMIT_SCOPE(9, 1, 1000, 1);
    static const ratelimit_limit sixteen = RATELIMIT_LIMIT_SCOPE(16, 1, 1000, 1);
    static const ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(1, HOUR, 1000, 1);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        place(engine_names[kind], 0, 0);
        CHECK_U64(spend_and_change((engine_kind)kind, &ten, 100, &nine).remaining, 900);
        CHECK_U64(spend_and_change((engine_kind)kind, &ten, 1, &slow).remaining, 999);
        CHECK_U64(spend_and_change((engine_kind)kind, &slow, 777, &sixteen).remaining, 223);
        CHECK_U64(spend_and_change((engine_kind)kind, &nine, 999, &ten).remaining, 1);
    }
    place_end();
}

/* F5: from 2^42 tokens on the whole new burst counted as spent. */
static void five_terabytes_of_ten_are_five_of_twenty(void)
{
    static const uint64_t tera = UINT64_C(1000000000000);
    static const ratelimit_limit ten =
        RATELIMIT_LIMIT_SCOPE(UINT64_C(10000000000000), 30 * DAY, UINT64_C(10000000000000), 1);
    static const ratelimit_limit twenty =
        RATELIMIT_LIMIT_SCOPE(UINT64_C(20000000000000), 30 * DAY, UINT64_C(20000000000000), 1);
    uint64_t used;
    int kind;
    for (kind = 0; kind < ENGINES; kind++)
        for (used = 1; used <= 9; used++) {
            uint64_t left =
                spend_and_change((engine_kind)kind, &ten, used * tera, &twenty).remaining;
            place(engine_names[kind], 0, (size_t)used);
            CHECK(left <= (20 - used) * tera);
            CHECK(left >= (20 - used) * tera - used * (tera / 60000));
        }
    place_end();
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static ratelimit_result block(engine *e, const ratelimit_limit *limit, uint64_t ns, uint64_t now_ns)
{
    ratelimit_request req = request("key", limit, 1);
    req.op = RATELIMIT_BLOCK;
    req.max_wait_ns = ns;
    return engine_decide(e, &req, now_ns);
}

/* N23: the limit was reloaded, and every ban was lifted. */
static void a_block_outlasts_every_change_of_its_limit(void)
{
    static const ratelimit_limit limits[] = {
        RATELIMIT_LIMIT_SCOPE(5, MINUTE, 5, 1),
        RATELIMIT_LIMIT_SCOPE(6, MINUTE, 6, 1),
        RATELIMIT_LIMIT_SCOPE(5, MINUTE, 1, 1),
        RATELIMIT_LIMIT_SCOPE(1000000, SEC, 1000, 1),
        RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_WEEK, 2, 1),
    };
    int kind, b;
    size_t i, last;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++)
            for (i = 0; i < COUNT(limits); i++) {
                engine *e = &the_engine;
                uint64_t start = base_at(b, HOUR, &limits[0]);
                place(engine_names[kind], start, i);
                engine_start(e, (engine_kind)kind);
                CHECK_U64(block(e, &limits[0], HOUR, start).wait_ns, HOUR);
                CHECK_U64(ask(e, &limits[i], TAKE, 1, start).retry_after_ns, HOUR);
                CHECK_U64(ask(e, &limits[i], PEEK, 1, start + MINUTE).retry_after_ns, 59 * MINUTE);
                CHECK(!take(e, &limits[i], 1, start + HOUR - 1));
                last = (i + 1) % COUNT(limits);
                CHECK(take(e, &limits[last], 1, start + HOUR));  /* one token, */
                CHECK(!take(e, &limits[last], 1, start + HOUR)); /* and no more */
            }
    place_end();
}

/* N24: a refund under way opened the gate. */
static void a_block_outlasts_refunds_and_charges(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(5, MINUTE, 5);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        engine *e = &the_engine;
        place(engine_names[kind], 0, 0);
        engine_start(e, (engine_kind)kind);
        CHECK(take(e, &limit, 1, 0));
        CHECK(block(e, &limit, 30 * SEC, 0).allowed);
        CHECK_U64(ask(e, &limit, REFUND, 5, 1).taken, 0);
        CHECK_U64(ask(e, &limit, CHARGE, 5, 1).taken, 0);
        CHECK_U64(ask(e, &limit, TAKE, 1, 2).retry_after_ns, 30 * SEC - 2);
        CHECK(block(e, &limit, 10 * SEC, SEC).allowed); /* a shorter one changes nothing, */
        CHECK(!take(e, &limit, 1, 30 * SEC - 1));
        CHECK_U64(block(e, &limit, MINUTE, 29 * SEC).wait_ns,
                  MINUTE); /* a longer one replaces it, */
        CHECK(!take(e, &limit, 1, 89 * SEC - 1));
        CHECK(ask(e, &limit, RESET, 0, 89 * SEC - 1).allowed); /* and reset lifts it */
        CHECK(take(e, &limit, 5, 89 * SEC - 1));
    }
    place_end();
}

/* ---- zero, negative and infinite input ------------------------------------------------------- */

static const ratelimit_op all_ops[] = {
    RATELIMIT_TAKE,   RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,  RATELIMIT_RESERVE, RATELIMIT_CHARGE,
    RATELIMIT_REFUND, RATELIMIT_CANCEL,     RATELIMIT_BLOCK, RATELIMIT_RESET,
};

/* Nothing stored: no bucket touched, no key in the table, no record in the database. */
static void check_untouched(engine *e)
{
    static const ratelimit_bucket untouched = {0, 0};
    ratelimit_table_counts counts;
    CHECK(memcmp(&e->bucket, &untouched, sizeof untouched) == 0);
    ratelimit_table_stats(e->table, e->now_ns, &counts);
    CHECK_U64(counts.keys, 0);
    CHECK_U64(database_rows(&e->db), 0);
    CHECK_U64(e->db.swaps, 0);
}

/* B18, B19: a rate, period or burst of zero is BAD_LIMIT, at every call, for every operation. */
static void a_limit_of_zero_is_an_error_and_writes_nothing(void)
{
    static const ratelimit_limit limits[] = {
        RATELIMIT_LIMIT(0, 0, 0),   RATELIMIT_LIMIT(0, SEC, 0),
        RATELIMIT_LIMIT(0, SEC, 1), RATELIMIT_LIMIT(1, SEC, 0),
        RATELIMIT_LIMIT(1, 0, 1),   RATELIMIT_WINDOW(0, SEC),
        RATELIMIT_WINDOW(1, 0),     {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    };
    static const uint64_t counts[] = {0, 1, 2, UINT64_MAX};
    int kind, calls;
    size_t i, j, k;
    for (kind = 0; kind < ENGINES; kind++) {
        engine_start(&the_engine, (engine_kind)kind);
        for (i = 0; i < COUNT(limits); i++)
            for (j = 0; j < COUNT(all_ops); j++)
                for (k = 0; k < COUNT(counts); k++)
                    for (calls = 0; calls < 8; calls++) {
                        place(engine_names[kind], 0, i);
                        CHECK_U64(
                            ask(&the_engine, &limits[i], all_ops[j], counts[k], 100 * SEC).status,
                            RATELIMIT_BAD_LIMIT);
                    }
        check_untouched(&the_engine);
    }
    place_end();
}

/* B19 */
static void a_rate_of_zero_refuses_for_ever_and_waiting_on_it_does_not_sleep(void)
{
    static const ratelimit_limit none = RATELIMIT_LIMIT(0, SEC, 1);
    static const uint64_t times[] = {0, 0, YEARS_100, UINT64_MAX};
    ratelimit_limiter l;
    ratelimit_request req = request("key", &none, 1);
    ratelimit_result res;
    sleeper s;
    size_t i;
    sleeper_start(&s, 0);
    engine_start(&the_engine, ENGINE_TABLE);
    limiter_start(&l, ratelimit_table_store(the_engine.table, clock_read, &s.now_ns), &s);
    for (i = 0; i < COUNT(times); i++) {
        s.now_ns = times[i];
        CHECK(!ratelimit_allow(&l, "key", &none));
        CHECK(!ratelimit_wait(&l, &req, 10 * SEC, &res));
        CHECK_U64(res.status, RATELIMIT_BAD_LIMIT);
    }
    CHECK_U64(s.sleeps, 0);
}

/* B20 */
static void a_negative_cost_puts_nothing_into_the_bucket(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 3);
    static const step steps[] = {
        {0, TAKE, 3, OK, 0, 0},
        {0, TAKE, (uint64_t)-1, RATELIMIT_BAD_COUNT, 0, 0},
        {0, TAKE, (uint64_t)INT64_MAX, NEVER, 0, FOREVER},
        {0, TAKE, (uint64_t)INT64_MIN, RATELIMIT_BAD_COUNT, 0, 0},
        {0, TAKE, 4, NEVER, 0, FOREVER},
        {0, PEEK, (uint64_t)-1, RATELIMIT_BAD_COUNT, 0, 0},
        {0, RESERVE, (uint64_t)-1, RATELIMIT_BAD_COUNT, 0, 0},
        {0, CHARGE, (uint64_t)-1, RATELIMIT_BAD_COUNT, 0, 0},
        {0, CHARGE, (uint64_t)INT64_MAX, NEVER, 0, FOREVER},
        {0, UP_TO, (uint64_t)-1, RATELIMIT_BAD_COUNT, 0, 0},
        {0, UP_TO, (uint64_t)INT64_MAX, DENIED, 0, SEC},
        {0, REFUND, (uint64_t)-1, RATELIMIT_BAD_COUNT, 0, 0},
        {0, CANCEL, (uint64_t)-1, RATELIMIT_BAD_COUNT, 0, 0},
        {0, TAKE, 1, DENIED, 0, SEC},
        {0, TAKE, 0, RATELIMIT_BAD_COUNT, 0, 0},
        {SEC, TAKE, 1, OK, 0, 0},
    };
    REPLAY(&limit, steps);
}

/* B20: costs whose product with the interval wraps to something small. */
static void a_cost_whose_product_wraps_is_never(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, UINT64_C(1) << 60, 3);
    static const step steps[] = {
        {0, TAKE, 16, NEVER, 3, FOREVER}, /* 16 x 2^60 is 0 in 64 bits */
        {0, TAKE, 17, NEVER, 3, FOREVER},           {0, CHARGE, 16, NEVER, 3, FOREVER},
        {0, CHARGE, 17, NEVER, 3, FOREVER},         {0, TAKE, 3, OK, 0, 0},
        {0, TAKE, 1, DENIED, 0, UINT64_C(1) << 60},
    };
    REPLAY(&limit, steps);
}

/* B21 */
static void asking_without_taking_says_when_a_token_comes(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    static const step steps[] = {
        {0, TAKE, 1, OK, 0, 0},
        {400 * MS, PEEK, 1, DENIED, 0, 600 * MS},
        {400 * MS, PEEK, 0, DENIED, 0, 600 * MS},
        {400 * MS, PEEK, 0, DENIED, 0, 600 * MS},
        {SEC, PEEK, 0, OK, 1, 0},
        {SEC, TAKE, 1, OK, 0, 0},
    };
    REPLAY(&limit, steps);
}

/* B22: what 0 means, field by field. First the fields of requests and limits. */
static void zero_in_a_request_means_what_its_comment_says(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 2);
    static const struct {
        ratelimit_op op;
        ratelimit_status status;
    } none[] = {
        {RATELIMIT_TAKE, RATELIMIT_BAD_COUNT},
        {RATELIMIT_TAKE_UP_TO, RATELIMIT_BAD_COUNT},
        {RATELIMIT_PEEK, RATELIMIT_OK},
        {RATELIMIT_RESERVE, RATELIMIT_BAD_COUNT},
        {RATELIMIT_CHARGE, RATELIMIT_BAD_COUNT},
        {RATELIMIT_REFUND, RATELIMIT_BAD_COUNT},
        {RATELIMIT_CANCEL, RATELIMIT_BAD_COUNT},
        {RATELIMIT_BLOCK, RATELIMIT_BAD_ARGUMENT}, /* n is not used there: max_wait_ns is */
        {RATELIMIT_RESET, RATELIMIT_OK},
    };
    int kind;
    size_t i;
    for (kind = 0; kind < ENGINES; kind++) {
        ratelimit_request req = request("key", &limit, 1);
        engine_start(&the_engine, (engine_kind)kind);
        for (i = 0; i < COUNT(none); i++) {
            place(engine_names[kind], 0, i);
            CHECK_U64(ask(&the_engine, &limit, none[i].op, 0, 0).status, none[i].status);
        }
        check_untouched(&the_engine);
        req.op = RATELIMIT_RESERVE; /* max_wait_ns 0: what is there now, no waiting */
        CHECK(engine_decide(&the_engine, &req, 0).allowed);
        CHECK(engine_decide(&the_engine, &req, 0).allowed);
        CHECK_U64(engine_decide(&the_engine, &req, 0).status, RATELIMIT_TIMEOUT);
        req.op = RATELIMIT_CANCEL; /* max_wait_ns 0: its time has come, nothing is given back */
        CHECK(engine_decide(&the_engine, &req, 0).allowed);
        CHECK_U64(engine_decide(&the_engine, &req, 0).taken, 0);
        req.key_len = 0;
        if (kind > ENGINE_SHARED)
            CHECK_U64(engine_decide(&the_engine, &req, 0).status, RATELIMIT_BAD_KEY);
    }
    place_end();
}

/* B22: sizes and options of a table. */
static void zero_in_the_options_of_a_table_means_what_its_comment_says(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    ratelimit_table_options zero;
    ratelimit_table *t = NULL;
    ratelimit_permit permit;
    uint64_t i;
    memset(&zero, 0, sizeof zero);
    CHECK_U64(ratelimit_table_bytes(0), 0);
    CHECK_U64(ratelimit_table_init(&t, many_memory, 0, &zero), RATELIMIT_NO_MEMORY);
    CHECK_U64(ratelimit_table_init(&t, many_memory, ratelimit_table_bytes(ONE_BLOCK_KEYS), &zero),
              OK);
    for (i = 0; i < 1000; i++) /* when_full 0: evict, so all of them pass */
        CHECK(take_numbered(t, i, &limit, 100 * SEC).allowed);
    /* step_ns 0: ten seconds. 999 is surely there still: it was the last. */
    CHECK_U64(take_numbered(t, 999, &limit, 90 * SEC).retry_after_ns, 11 * SEC);
    CHECK_U64(take_numbered(t, 999, &limit, 89 * SEC).retry_after_ns, SEC);
    CHECK_U64(ratelimit_table_sweep(t, 89 * SEC, 0), 0); /* idle 0: nobody in debt is idle */
    CHECK(!ratelimit_table_acquire(t, "k", 1, 0, SEC, 0, &permit));
    CHECK(!ratelimit_table_acquire(t, "k", 1, 1, 0, 0, &permit));
}

/* B22: text, ticks, batches. */
static void zero_elsewhere_means_what_its_comment_says(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, SEC, 20);
    char untouched[2] = {'x', 0};
    ratelimit_tick_clock ticks = {0, 0, 0};
    ratelimit_limiter l;
    ratelimit_result res;
    sleeper s;
    sleeper_start(&s, 0);
    CHECK_U64(ratelimit_limit_format(&limit, untouched, 0), strlen("10/s burst 20"));
    CHECK_TEXT(untouched, "x");
    CHECK_U64(ratelimit_limit_format(&limit, NULL, 0), strlen("10/s burst 20"));
    CHECK_U64(ratelimit_tick_clock_ns(&ticks, 0, 32, 10000000), 0);
    CHECK_U64(ratelimit_tick_clock_ns(&ticks, 1, 32, 0), RATELIMIT_FOREVER);
    CHECK_U64(ratelimit_tick_clock_ns(&ticks, 1, 0, 10000000), RATELIMIT_FOREVER);
    engine_start(&the_engine, ENGINE_TABLE);
    limiter_start(&l, ratelimit_table_store(the_engine.table, clock_read, &s.now_ns), &s);
    CHECK(ratelimit_take_each(&l, NULL, &res, 0));
    CHECK(ratelimit_take_all(&l, NULL, &res, 0));
}

/* A store that answers UNSUPPORTED to reservations, so that waiting on it means polling. */
static void decide_without_reserve(const ratelimit_store *store, const ratelimit_request *req,
                                   ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    engine *e = (engine *)store->self;
    if (count == 1 && req->op == RATELIMIT_RESERVE) {
        memset(res, 0, sizeof *res);
        res->status = RATELIMIT_UNSUPPORTED;
        return;
    }
    e->store.decide(&e->store, req, res, count, mode);
}

/* B22: waiting 0 ns, swapping with tries 0. */
static void zero_in_a_limiter_or_a_cas_store_means_what_its_comment_says(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, 10 * SEC, 1);
    ratelimit_request req = request("key", &limit, 1);
    ratelimit_store polling = store_of(decide_without_reserve, NULL);
    ratelimit_limiter l;
    ratelimit_result res;
    sleeper s;
    sleeper_start(&s, 0);
    engine_start(&the_engine, ENGINE_TABLE);
    the_engine.store = ratelimit_table_store(the_engine.table, clock_read, &s.now_ns);
    limiter_start(&l, the_engine.store, &s);
    CHECK(ratelimit_wait(&l, &req, 0, &res)); /* max_wait_ns 0: now or not at all */
    CHECK(!ratelimit_wait(&l, &req, 0, &res));
    CHECK_U64(res.status, RATELIMIT_TIMEOUT);
    polling.self = &the_engine;
    limiter_start(&l, polling, &s);
    CHECK(ratelimit_wait(&l, &req, FOREVER, &res)); /* a look each second */
    CHECK(s.longest_ns <= SEC);
    CHECK(s.sleeps >= 10 && s.sleeps <= 40);
    engine_start(&the_engine, ENGINE_CAS);
    the_engine.db.lose = 15; /* tries 0: the sixteenth may still win */
    CHECK(take(&the_engine, &limit, 1, 0));
    the_engine.db.lose = 16;
    CHECK_U64(ask(&the_engine, &limit, TAKE, 1, 10 * SEC).status, RATELIMIT_STORE_FAILED);
}

/* ---- cancel and refund ----------------------------------------------------------------------- */

/* B23 */
static void a_token_given_back_a_moment_later_is_back(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 5);
    static const step steps[] = {
        {0, TAKE, 3, OK, 2, 0},
        {10 * MS, REFUND, 3, OK, 5, 0},
        {10 * MS, PEEK, 1, OK, 5, 0},
    };
    static const step of_a_reservation[] = {
        {0, TAKE, 5, OK, 0, 0},         {0, RESERVE, 3, OK, 0, 3 * SEC},
        {10 * MS, REFUND, 3, OK, 0, 0}, {10 * MS, TAKE, 1, DENIED, 0, 990 * MS},
        {SEC, TAKE, 1, OK, 0, 0},
    };
    REPLAY(&limit, steps);
    REPLAY(&limit, of_a_reservation);
}

/* R10: it said what was asked for. */
static void a_refund_says_how_much_was_given_back(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 10);
    static const ratelimit_limit seventh = RATELIMIT_LIMIT(7, SEC, 10);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        engine *e = &the_engine;
        place(engine_names[kind], 0, 0);
        engine_start(e, (engine_kind)kind);
        CHECK_U64(ask(e, &limit, REFUND, 10, 0).taken, 0); /* into a full bucket */
        CHECK(take(e, &limit, 5, 0));
        CHECK_U64(ask(e, &limit, REFUND, 2, 0).taken, 2);
        CHECK_U64(ask(e, &limit, REFUND, 10, 0).taken, 3);
        CHECK(take(e, &limit, 5, 0));
        CHECK_U64(ask(e, &limit, REFUND, 5, SEC / 2).taken, 4); /* four and a half, whole ones */
        CHECK_U64(ask(e, &limit, PEEK, 1, SEC / 2).reset_after_ns, 0);
        CHECK(take(e, &limit, 10, SEC));
        CHECK_U64(ask(e, &limit, REFUND, INT64_MAX, SEC).taken, 10);
        CHECK(take(e, &seventh, 10, SEC));
        CHECK_U64(ask(e, &seventh, REFUND, 7, SEC).taken, 7);
        CHECK_U64(ask(e, &seventh, REFUND, 7, SEC).taken, 3);
    }
    place_end();
}

/* One reservation, or its cancelling with left ns to go. */
static ratelimit_result reserve_or_cancel(engine *e, const ratelimit_limit *limit, ratelimit_op op,
                                          uint64_t n, uint64_t wait_ns, uint64_t now_ns)
{
    ratelimit_request req = request("key", limit, n);
    req.op = op;
    req.max_wait_ns = wait_ns;
    return engine_decide(e, &req, now_ns);
}

static void a_cancelled_reservation_gives_back_what_no_later_one_counts_on(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            engine *e = &the_engine;
            uint64_t start = base_at(b, 10 * SEC, &limit);
            place(engine_names[kind], start, 0);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &limit, 1, start));
            CHECK_U64(reserve_or_cancel(e, &limit, RESERVE, 1, FOREVER, start).wait_ns, SEC);
            CHECK_U64(reserve_or_cancel(e, &limit, RESERVE, 1, FOREVER, start).wait_ns, 2 * SEC);
            /* the first one: nothing, or somebody would act at 1 s and the second at 2 s, and one
             * who takes at 1 s beside them */
            CHECK_U64(reserve_or_cancel(e, &limit, CANCEL, 1, SEC / 2, start + SEC / 2).taken, 0);
            CHECK_U64(ask(e, &limit, TAKE, 1, start + SEC / 2).retry_after_ns, 2500 * MS);
            /* the second one: all of it */
            CHECK_U64(reserve_or_cancel(e, &limit, CANCEL, 1, 3 * SEC / 2, start + SEC / 2).taken,
                      1);
            CHECK_U64(ask(e, &limit, TAKE, 1, start + SEC / 2).retry_after_ns, 1500 * MS);
            /* and none once its time has come */
            CHECK_U64(reserve_or_cancel(e, &limit, CANCEL, 1, 0, start + SEC).taken, 0);
            CHECK(!take(e, &limit, 1, start + 2 * SEC - 1));
            CHECK(take(e, &limit, 1, start + 2 * SEC));
        }
    place_end();
}

/* All of it, or nothing: what would come back in part is counted on by those who still wait. */
static void a_cancelled_reservation_of_many_gives_back_all_or_nothing(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 4);
    int kind;
    for (kind = 0; kind < ENGINES; kind++) {
        engine *e = &the_engine;
        place(engine_names[kind], 0, 0);
        engine_start(e, (engine_kind)kind);
        CHECK(take(e, &limit, 4, 0));
        CHECK_U64(reserve_or_cancel(e, &limit, RESERVE, 4, FOREVER, 0).wait_ns, 4 * SEC);
        CHECK_U64(reserve_or_cancel(e, &limit, RESERVE, 1, FOREVER, 0).wait_ns, 5 * SEC);
        CHECK_U64(reserve_or_cancel(e, &limit, CANCEL, 4, 4 * SEC, 0).taken, 0);
        CHECK_U64(ask(e, &limit, PEEK, 1, 0).reset_after_ns, 9 * SEC);
        CHECK_U64(reserve_or_cancel(e, &limit, CANCEL, 1, 5 * SEC, 0).taken, 1);
        CHECK_U64(reserve_or_cancel(e, &limit, RESERVE, 4, FOREVER, 0).wait_ns, 8 * SEC);
        CHECK_U64(reserve_or_cancel(e, &limit, CANCEL, 4, 7 * SEC, SEC).taken, 4);
        CHECK_U64(ask(e, &limit, PEEK, 1, SEC).reset_after_ns, 7 * SEC);
    }
    place_end();
}

/* Who acts, and when: at the times at which they may. */
typedef struct actor {
    uint64_t at_ns, n;
    bool waits;
} actor;

static int by_time(const void *a, const void *b)
{
    const actor *x = (const actor *)a, *y = (const actor *)b;
    return x->at_ns < y->at_ns ? -1 : x->at_ns > y->at_ns;
}

/* In every span as many act as burst + rate x span allows. A time at which somebody may act is
 * rounded up to a whole ns, so a span that begins there is up to one ns longer. */
static bool law_is_kept(const ratelimit_limit *l, actor *actors, size_t count)
{
    uint64_t sum, i, j;
    qsort(actors, count, sizeof *actors, by_time);
    for (i = 0; i < count; i++)
        for (sum = 0, j = i; j < count; j++) {
            uint64_t span = actors[j].at_ns - actors[i].at_ns + (l->per_ns % l->tokens != 0);
            sum += actors[j].n;
            if (sum > l->burst &&
                (sum - l->burst) * l->per_ns > span * l->tokens) /* small numbers */
                return false;
        }
    return true;
}

/* Takes, reservations and cancellations at random: never more than burst + rate x time act. Many
 * short histories, most of them on a bucket, as few go wrong. */
static void no_cancelled_reservation_lets_more_act_than_the_limit(void)
{
    static const ratelimit_limit limits[] = {
        RATELIMIT_LIMIT(1, SEC, 1), RATELIMIT_LIMIT(1, SEC, 2),       RATELIMIT_LIMIT(1, SEC, 4),
        RATELIMIT_LIMIT(7, SEC, 3), RATELIMIT_LIMIT(3, 10 * SEC, 10),
    };
    uint64_t i, cancelled = 0, broken = 0;
    check_seed(61);
    for (i = 0; i < 300000; i++) {
        const ratelimit_limit *l = &limits[check_below(COUNT(limits))];
        engine_kind kind = (engine_kind)(i % 100 < ENGINES ? i % 100 : ENGINE_BUCKET);
        engine *e = &the_engine;
        actor actors[16];
        size_t count = 0, at;
        uint64_t now = 0, turn, turns = 2 + check_below(13);
        if (kind == ENGINE_BUCKET)
            memset(&e->bucket, 0, sizeof e->bucket);
        else
            engine_start(e, kind);
        e->kind = kind;
        for (turn = 0; turn < turns; turn++) {
            uint64_t n = 1 + check_below(l->burst);
            ratelimit_op op = check_below(2) ? RESERVE : TAKE;
            ratelimit_result res;
            now += check_below(3) ? 0 : check_below(3) * (l->per_ns / l->tokens / 2);
            for (at = 0; at < count; at++)
                actors[at].waits = actors[at].waits && actors[at].at_ns > now;
            at = count ? (size_t)check_below(count) : 0;
            if (count && actors[at].waits && check_below(2)) {
                res = reserve_or_cancel(e, l, CANCEL, actors[at].n, actors[at].at_ns - now, now);
                cancelled += res.taken;
                actors[at] = actors[--count];
                continue;
            }
            res = reserve_or_cancel(e, l, op, n, op == RESERVE ? HOUR : 0, now);
            if (!res.allowed)
                continue;
            actors[count].at_ns = now + res.wait_ns;
            actors[count].n = n;
            actors[count++].waits = res.wait_ns > 0;
        }
        broken += !law_is_kept(l, actors, count);
    }
    CHECK_U64(broken, 0);
    CHECK(cancelled > 100000); /* something came back */
}

/* B24 */
static void refunds_never_fill_beyond_the_burst(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, SEC, 10);
    static const step steps[] = {
        {0, TAKE, 1, OK, 9, 0},
        {100 * MS, REFUND, 1, OK, 10, 0},
        {100 * MS, PEEK, 1, OK, 10, 0},
        {1100 * MS, PEEK, 1, OK, 10, 0},
        {1200 * MS, REFUND, 1000, OK, 10, 0},
        {1200 * MS, PEEK, 1, OK, 10, 0},
        {1200 * MS, REFUND, INT64_MAX, OK, 10, 0},
        {1200 * MS, TAKE, 10, OK, 0, 0},
        {1200 * MS, REFUND, INT64_MAX, OK, 10, 0},
        {1200 * MS, TAKE, 10, OK, 0, 0},
        {1200 * MS, TAKE, 1, DENIED, 0, 100 * MS},
    };
    REPLAY(&limit, steps);
}

/* B25: a bucket cannot know which window a refund came from, so it is refused. */
static void a_refund_does_not_reach_into_the_next_window(void)
{
    static const ratelimit_limit limit = RATELIMIT_WINDOW(5, 60 * SEC);
    static const step steps[] = {
        {59900 * MS, TAKE, 5, OK, 0, 0},
        {60100 * MS, TAKE, 4, OK, 1, 0},
        {60200 * MS, REFUND, 5, RATELIMIT_UNSUPPORTED, 0, 0},
        {60200 * MS, PEEK, 1, OK, 1, 0},
        {60200 * MS, CANCEL, 5, RATELIMIT_UNSUPPORTED, 0, 0},
        {60200 * MS, RESERVE, 2, RATELIMIT_UNSUPPORTED, 0, 0},
        {60200 * MS, PEEK, 1, OK, 1, 0},
    };
    REPLAY(&limit, steps);
}

/* ---- fairness and waiting -------------------------------------------------------------------- */

/* B26 */
static void a_wait_for_several_sleeps_only_for_what_is_missing(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(3, 3 * SEC, 3);
    sleeper s;
    sleeper_start(&s, 0);
    CHECK(wait_once(&limit, 3, 0, FOREVER, &s).allowed);
    CHECK_U64(s.slept_ns, SEC);
}

/* Takes until one is refused, then asks one ns before its time and at its time. */
static void check_honest_retry(engine *e, const ratelimit_limit *limit, uint64_t *now_ns)
{
    int i;
    for (i = 0; i < 8; i++) {
        uint64_t n = 1 + check_below(limit->burst);
        ratelimit_result res = ask(e, limit, TAKE, n, *now_ns);
        uint64_t retry = res.retry_after_ns;
        *now_ns += res.allowed ? check_below(limit->window_ns / 4 + 2) : 0;
        if (res.allowed)
            continue;
        CHECK(retry >= 1);
        CHECK(!take(e, limit, n, *now_ns + retry - 1));
        if (e->kind == ENGINE_BUCKET) { /* in a copy as well: the refusal left nothing behind */
            ratelimit_bucket copy = e->bucket;
            CHECK(ratelimit_bucket_take(&copy, limit, n, *now_ns + retry, NULL));
        }
        *now_ns += retry;
        CHECK(take(e, limit, n, *now_ns));
    }
}

/* B27 */
static void a_call_at_retry_after_passes_and_one_ns_earlier_does_not(void)
{
    uint64_t histories = SHORT ? 4000 : 10000, i;
    check_seed(27);
    for (i = 0; i < histories; i++) {
        ratelimit_limit limit = random_limit();
        uint64_t now = check_random() >> (1 + check_below(63));
        engine_kind kind = (engine_kind)(i % ENGINES);
        place(engine_names[kind], now, (size_t)i);
        engine_start(&the_engine, kind);
        check_honest_retry(&the_engine, &limit, &now);
    }
    place_end();
}

/* The answer to one more token at this time. */
static bool could_take(engine *e, const ratelimit_limit *limit, uint64_t now_ns)
{
    return ask(e, limit, PEEK, 1, now_ns).allowed;
}

/* One request whose answer has a wait_ns, which must be right to the ns. */
static void check_exact_wait(engine *e, const ratelimit_limit *limit, uint64_t now)
{
    ratelimit_request req = request("key", limit, 1 + check_below(limit->burst));
    ratelimit_result res;
    bool window = is_window(limit);
    req.op = check_below(3) ? CHARGE : RATELIMIT_BLOCK;
    req.max_wait_ns = 1 + check_below(2 * limit->window_ns + 1);
    if (!window && check_below(2)) {
        req.op = RESERVE;
        req.max_wait_ns = 0;
        res = engine_decide(e, &req, now);
        if (res.allowed)
            return;
        if (res.status == DENIED) { /* a block, which nobody can wait for in a queue */
            CHECK(could_take(e, limit, now + res.retry_after_ns));
            return;
        }
        req.max_wait_ns = res.retry_after_ns - 1;
        CHECK_U64(engine_decide(e, &req, now).status, RATELIMIT_TIMEOUT);
        req.max_wait_ns++;
        CHECK_U64(engine_decide(e, &req, now).wait_ns, res.retry_after_ns);
        return;
    }
    res = engine_decide(e, &req, now);
    CHECK(res.allowed);
    CHECK(could_take(e, limit, now + res.wait_ns));
    CHECK(!res.wait_ns || !could_take(e, limit, now + res.wait_ns - 1));
    if (req.op == RATELIMIT_BLOCK)
        CHECK(res.wait_ns >= req.max_wait_ns);
}

/* B27, of everything else that says how long: reservations, charges, blocks, windows. */
static void a_wait_that_is_told_is_right_to_the_ns(void)
{
    uint64_t histories = SHORT ? 4000 : 10000, i;
    int round;
    check_seed(270);
    for (i = 0; i < histories; i++) {
        ratelimit_limit limit = random_limit();
        uint64_t now = check_random() >> (2 + check_below(62));
        if (check_below(3) == 0)
            limit = ratelimit_window_make(1 + check_below(100), limit.per_ns);
        place(engine_names[i % ENGINES], now, (size_t)i);
        engine_start(&the_engine, (engine_kind)(i % ENGINES));
        the_engine.db.now_ns = NULL; /* looking ahead must not make a record expire */
        for (round = 0; round < 6; round++) {
            check_exact_wait(&the_engine, &limit, now);
            now += check_below(limit.window_ns / 2 + 2);
        }
    }
    place_end();
}

/* B27 */
static void a_refusal_by_a_window_ends_with_the_window(void)
{
    uint64_t i;
    check_seed(271);
    for (i = 0; i < 5000; i++) {
        ratelimit_limit limit = ratelimit_window_make(1 + check_below(1000), MS + check_below(DAY));
        uint64_t now = check_random() >> (1 + check_below(63));
        engine_kind kind = (engine_kind)(i % ENGINES);
        place(engine_names[kind], now, (size_t)i);
        engine_start(&the_engine, kind);
        check_honest_retry(&the_engine, &limit, &now);
    }
    place_end();
}

/* B28 */
static void a_sleep_that_wakes_early_is_slept_on_in_a_loop(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(20, SEC, 1);
    ratelimit_limiter l;
    ratelimit_request req = request("key", &limit, 1);
    ratelimit_result res;
    sleeper s;
    int i, polling;
    for (polling = 0; polling < 2; polling++) {
        ratelimit_store poll = store_of(decide_without_reserve, &the_engine);
        sleeper_start(&s, 0);
        s.early_ns = US;
        engine_start(&the_engine, ENGINE_TABLE);
        the_engine.store = ratelimit_table_store(the_engine.table, clock_read, &s.now_ns);
        limiter_start(&l, polling ? poll : the_engine.store, &s);
        for (i = 0; i < 100; i++) {
            uint64_t before = s.sleeps;
            s.cancel_after = before + 100;
            place(polling ? "polling" : "reserving", 0, (size_t)i);
            CHECK(ratelimit_wait(&l, &req, FOREVER, &res));
            CHECK(s.sleeps - before <= 3);
            s.now_ns += 100; /* what a caller does in between takes time, too */
        }
        CHECK(s.shortest_ns > 0);
        CHECK(s.now_ns >= 99 * 50 * MS); /* nobody went before their time */
    }
    place_end();
}

/* B28: a signal ends a sleep long before its time, every time. */
static void a_wait_whose_sleeps_are_cut_short_does_not_end_before_its_time(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    sleeper s;
    ratelimit_result res;
    sleeper_start(&s, 0);
    s.cut = 4; /* a quarter of what was asked for */
    res = wait_once(&limit, 1, 0, FOREVER, &s);
    CHECK(res.allowed);
    CHECK(s.now_ns >= SEC);
}

/* B29 */
static void a_wait_that_would_take_too_long_says_so_at_once_and_takes_nothing(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    ratelimit_limiter l;
    ratelimit_request req = request("key", &limit, 1);
    ratelimit_result res;
    sleeper s;
    int polling;
    for (polling = 0; polling < 2; polling++) {
        ratelimit_store poll = store_of(decide_without_reserve, &the_engine);
        sleeper_start(&s, 0);
        engine_start(&the_engine, ENGINE_TABLE);
        the_engine.store = ratelimit_table_store(the_engine.table, clock_read, &s.now_ns);
        limiter_start(&l, polling ? poll : the_engine.store, &s);
        place(polling ? "polling" : "reserving", 0, 0);
        CHECK(ratelimit_allow(&l, "key", &limit));
        CHECK(!ratelimit_wait(&l, &req, 25 * MS, &res));
        CHECK_U64(res.status, RATELIMIT_TIMEOUT);
        CHECK_U64(res.retry_after_ns, SEC);
        CHECK_U64(s.sleeps, 0);
        s.now_ns = SEC;
        CHECK(ratelimit_allow(&l, "key", &limit)); /* nothing was taken for later */
    }
    place_end();
}

/* B30 */
static void a_client_that_keeps_trying_is_not_locked_out(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(2, 4 * SEC, 2);
    int kind, b;
    uint64_t t;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            uint64_t start = base_at(b, 20 * SEC, &limit), allowed = 0;
            place(engine_names[kind], start, 0);
            engine_start(&the_engine, (engine_kind)kind);
            for (t = 0; t <= 20; t++) {
                bool went = take(&the_engine, &limit, 1, start + t * SEC);
                CHECK(went == (t < 2 || t % 2 == 0));
                allowed += went;
            }
            CHECK_U64(allowed, 12);
        }
    place_end();
}

/* B31 */
static void reservations_queue_up_one_interval_apart(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(3, 10 * SEC, 3);
    static const step steps[] = {
        {0, RESERVE, 1, OK, 2, 0},
        {0, RESERVE, 1, OK, 1, 0},
        {0, RESERVE, 1, OK, 0, 0},
        {0, RESERVE, 1, OK, 0, UINT64_C(3333333334)},
        {0, RESERVE, 1, OK, 0, UINT64_C(6666666667)},
        {0, RESERVE, 1, OK, 0, UINT64_C(10000000000)},
        {0, RESERVE, 1, OK, 0, UINT64_C(13333333334)},
        {0, TAKE, 1, DENIED, 0, UINT64_C(16666666667)},
        {UINT64_C(16666666666), TAKE, 1, DENIED, 0, 1},
        {UINT64_C(16666666667), TAKE, 1, OK, 0, 0},
    };
    REPLAY(&limit, steps);
}

/* ---- eviction and memory --------------------------------------------------------------------- */

/* Key X spends its token of the hour, then 5,000 strangers take one each at the same time. */
static void check_flood(ratelimit_full policy, const ratelimit_limit *strangers)
{
    static const ratelimit_limit hourly = RATELIMIT_LIMIT(1, HOUR, 1);
    ratelimit_table *t = table_of(1000, policy);
    ratelimit_table_counts counts;
    uint64_t i, served = 0;
    CHECK(ratelimit_table_take(t, "X", 1, &hourly, 1, SEC, NULL));
    for (i = 0; i < 5000; i++)
        served += take_numbered(t, i, strangers, SEC).allowed;
    CHECK(!ratelimit_table_take(t, "X", 1, &hourly, 1, SEC, NULL));
    ratelimit_table_stats(t, SEC, &counts);
    CHECK(counts.keys >= counts.capacity * 99 / 100); /* no general reset */
    CHECK(policy == RATELIMIT_REFUSE || policy == RATELIMIT_INHERIT ? served < 5000
                                                                    : served == 5000);
    CHECK_U64(counts.refused, policy == RATELIMIT_REFUSE ? 5000 - served : 0);
    CHECK_U64(counts.evicted, policy == RATELIMIT_EVICT ? 5001 - counts.keys : 0);
}

/* B32: EVICT forgets who owes least, so X, who owes an hour, outlasts those who owe a minute.
 * INHERIT and REFUSE keep X even among equals. */
static void a_flood_of_made_up_keys_resets_nobody(void)
{
    static const ratelimit_limit hourly = RATELIMIT_LIMIT(1, HOUR, 1);
    static const ratelimit_limit minutely = RATELIMIT_LIMIT(1, MINUTE, 1);
    check_flood(RATELIMIT_EVICT, &minutely);
    check_flood(RATELIMIT_INHERIT, &hourly);
    check_flood(RATELIMIT_REFUSE, &hourly);
}

/* B33 */
static void ten_million_keys_allocate_nothing_and_all_get_an_answer(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, HOUR, 2);
    ratelimit_table *t = table_of(65536, RATELIMIT_EVICT);
    ratelimit_table_counts before, after;
    uint64_t keys = SHORT ? 1000000 : 10000000, i, answered = 0;
    ratelimit_table_stats(t, 0, &before);
    allocations = 0;
    for (i = 0; i < keys; i++)
        answered += ratelimit_table_take(t, &i, sizeof i, &limit, 1, i * US, NULL);
    ratelimit_table_stats(t, keys * US, &after);
    CHECK_U64(answered, keys);
    CHECK_U64(allocations, 0);
    CHECK_U64(after.bytes, before.bytes);
    CHECK(after.bytes <= sizeof many_memory);
    CHECK_U64(after.evicted, keys - after.keys);
}

/* B34: whatever the policy, and with no sweep. */
static void places_whose_time_is_over_are_free(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    int policy;
    uint64_t i;
    for (policy = RATELIMIT_EVICT; policy <= (int)RATELIMIT_REFUSE; policy++) {
        ratelimit_table *t = table_of(100, (ratelimit_full)policy);
        ratelimit_table_counts counts;
        place("policy", 0, (size_t)policy);
        for (i = 0; i < 100; i++)
            CHECK(take_numbered(t, i, &limit, 0).allowed);
        for (i = 100; i < 200; i++)
            CHECK(take_numbered(t, i, &limit, 10 * SEC).allowed);
        ratelimit_table_stats(t, 10 * SEC, &counts);
        CHECK_U64(counts.keys, 100);
        CHECK_U64(counts.evicted + counts.refused, 0);
    }
    place_end();
}

/* B34, at the very edge: a block that is full to the last place, one ns before and at the end of
 * its debts. */
static void a_full_block_takes_newcomers_the_moment_its_keys_are_full_again(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    ratelimit_table *t = table_of(ONE_BLOCK_KEYS, RATELIMIT_REFUSE);
    uint64_t i;
    for (i = 0; i < ONE_BLOCK_PLACES; i++)
        CHECK(take_numbered(t, i, &limit, 0).allowed);
    CHECK_U64(take_numbered(t, 1000, &limit, SEC - 1).status, RATELIMIT_FULL);
    for (i = 0; i < ONE_BLOCK_PLACES; i++)
        CHECK(take_numbered(t, 2000 + i, &limit, SEC).allowed);
}

/* B35: sweep without an idle time, and a table full of others, forget nobody who still owes. */
static void a_key_that_owes_is_not_idle(void)
{
    static const ratelimit_limit daily = RATELIMIT_LIMIT(1, DAY, 1);
    ratelimit_table *t = table_of(ONE_BLOCK_KEYS, RATELIMIT_REFUSE);
    ratelimit_result res;
    uint64_t i, full = 0;
    CHECK(ratelimit_table_take(t, "X", 1, &daily, 1, 0, NULL));
    CHECK_U64(ratelimit_table_sweep(t, HOUR, 0), 0);
    for (i = 0; i < 100; i++)
        full += take_numbered(t, i, &daily, HOUR).status == RATELIMIT_FULL;
    CHECK_U64(full, 100 - (ONE_BLOCK_PLACES - 1));
    CHECK(!ratelimit_table_take(t, "X", 1, &daily, 1, HOUR, &res));
    CHECK_U64(res.retry_after_ns, 23 * HOUR);
}

/* B35: with an idle time it is forgotten, as the header says, and counted. */
static void a_key_that_owes_is_forgotten_by_a_sweep_that_was_told_to(void)
{
    static const ratelimit_limit daily = RATELIMIT_LIMIT(1, DAY, 1);
    ratelimit_table *t = table_of(ONE_BLOCK_KEYS, RATELIMIT_REFUSE);
    ratelimit_table_counts counts;
    CHECK(ratelimit_table_take(t, "X", 1, &daily, 1, 0, NULL));
    CHECK(ratelimit_table_take(t, "Y", 1, &daily, 1, 0, NULL));
    /* asked for: not idle; the power of two below its debt is another by then */
    CHECK(!ratelimit_table_take(t, "Y", 1, &daily, 1, 5 * HOUR - 5 * MINUTE, NULL));
    CHECK_U64(ratelimit_table_sweep(t, 5 * HOUR, 10 * MINUTE), 1);
    CHECK(ratelimit_table_take(t, "X", 1, &daily, 1, 5 * HOUR, NULL));
    CHECK(!ratelimit_table_take(t, "Y", 1, &daily, 1, 5 * HOUR, NULL));
    ratelimit_table_stats(t, 5 * HOUR, &counts);
    CHECK_U64(counts.evicted, 1);
}

static void decide_failed(const ratelimit_store *store, const ratelimit_request *req,
                          ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    size_t i;
    (void)store;
    (void)req;
    (void)mode;
    for (i = 0; i < count; i++) {
        memset(&res[i], 0, sizeof res[i]);
        res[i].status = RATELIMIT_STORE_FAILED;
    }
}

/* Every way out of a call, each on a key of its own. */
static void leave_by_every_way_out(ratelimit_table *t, sleeper *s)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 2);
    static const ratelimit_limit none = RATELIMIT_LIMIT(0, SEC, 1);
    ratelimit_limiter l, failing;
    ratelimit_request req;
    ratelimit_store failed = store_of(decide_failed, NULL);
    ratelimit_permit permit;
    limiter_start(&l, ratelimit_table_store(t, clock_read, &s->now_ns), s);
    limiter_start(&failing, failed, s);
    CHECK(ratelimit_allow(&l, "allowed", &limit));
    CHECK(ratelimit_allow_n(&l, "denied", &limit, 2));
    CHECK(!ratelimit_allow(&l, "denied", &limit));
    CHECK(!ratelimit_allow_n(&l, "never", &limit, 3));
    CHECK(!ratelimit_allow(&l, "bad limit", &none));
    CHECK(!ratelimit_allow_n(&l, "bad count", &limit, 0));
    CHECK(ratelimit_allow(&failing, "failed", &limit));
    CHECK(ratelimit_allow_n(&l, "timed out", &limit, 2));
    req = request("timed out", &limit, 1);
    CHECK(!ratelimit_wait(&l, &req, SEC - 1, NULL));
    CHECK(ratelimit_allow_n(&l, "canceled", &limit, 2));
    req = request("canceled", &limit, 1);
    s->cancel_after = s->sleeps;
    CHECK(!ratelimit_wait(&l, &req, FOREVER, NULL));
    CHECK(ratelimit_table_acquire(t, "crashed", 7, 1, SEC, s->now_ns, &permit));
    CHECK(ratelimit_table_acquire(t, "released", 8, 1, SEC, s->now_ns, &permit));
    CHECK_U64(ratelimit_table_release(t, "released", 8, &permit, s->now_ns), OK);
    ratelimit_close(&l);
}

/* B36 */
static void no_way_out_of_a_call_leaves_a_place_taken(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 2);
    ratelimit_table *t = table_of(ONE_BLOCK_KEYS, RATELIMIT_REFUSE);
    sleeper s;
    uint64_t i;
    sleeper_start(&s, 5 * SEC);
    leave_by_every_way_out(t, &s);
    for (i = 0; i < ONE_BLOCK_PLACES; i++)
        CHECK(take_numbered(t, i, &limit, 8 * SEC).allowed);
    CHECK_U64(take_numbered(t, 1000, &limit, 8 * SEC).status, RATELIMIT_FULL);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static ratelimit_result take_key(engine *e, const void *key, size_t key_len,
                                 const ratelimit_limit *limit)
{
    ratelimit_request req = request(NULL, limit, 1);
    req.key = key;
    req.key_len = key_len;
    return engine_decide(e, &req, SEC);
}

static const int keyed[] = {ENGINE_TABLE, ENGINE_CAS, ENGINE_LIMITER};

/* B37 */
static void keys_are_bytes_and_count_to_their_last(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, HOUR, 1);
    static char long_a[300], long_b[300];
    static const struct {
        const char *key;
        size_t key_len;
    } keys[] = {{"\x00\x01", 2},       {"\x00\x02", 2},      {"a", 1},       {"a\0", 2},
                {"a\0b", 3},           {"/ann/users/1", 12}, {"\0", 1},      {"/ann/users/2", 12},
                {"\0\0", 2},           {long_a, 300},        {long_b, 300},  {long_a, 299},
                {"\xff\xfe\xfd", 3},   {"\xff\xfe\xfc", 3},  {"/ann/us", 7}, {"/ann/use", 8},
                {"/ann/users/1\0", 13}};
    size_t i, k;
    memset(long_a, 'x', sizeof long_a);
    memset(long_b, 'x', sizeof long_b);
    long_b[299] = 'y';
    for (k = 0; k < COUNT(keyed); k++) {
        engine_start(&the_engine, (engine_kind)keyed[k]);
        for (i = 0; i < COUNT(keys); i++) {
            place(engine_names[keyed[k]], 0, i);
            CHECK(take_key(&the_engine, keys[i].key, keys[i].key_len, &limit).allowed);
        }
        for (i = 0; i < COUNT(keys); i++)
            CHECK(!take_key(&the_engine, keys[i].key, keys[i].key_len, &limit).allowed);
    }
    place_end();
}

/* B38 */
static void an_empty_key_is_an_error_and_no_bucket_of_its_own(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, HOUR, 1);
    ratelimit_permit permit = {0, 0, 0};
    size_t k;
    for (k = 0; k < COUNT(keyed); k++) {
        place(engine_names[keyed[k]], 0, 0);
        engine_start(&the_engine, (engine_kind)keyed[k]);
        CHECK_U64(take_key(&the_engine, "x", 0, &limit).status, RATELIMIT_BAD_KEY);
        CHECK_U64(take_key(&the_engine, NULL, 0, &limit).status, RATELIMIT_BAD_KEY);
        CHECK_U64(take_key(&the_engine, NULL, 5, &limit).status, RATELIMIT_BAD_KEY);
        check_untouched(&the_engine);
        CHECK(take_key(&the_engine, "\0", 1, &limit).allowed);
        CHECK(!take_key(&the_engine, "\0", 1, &limit).allowed);
        CHECK_U64(take_key(&the_engine, "x", 0, &limit).status, RATELIMIT_BAD_KEY);
    }
    engine_start(&the_engine, ENGINE_LIMITER);
    CHECK(!ratelimit_allow(&the_engine.limiter, "", &limit));
    CHECK(!ratelimit_allow(&the_engine.limiter, NULL, &limit));
    CHECK(!ratelimit_table_acquire(the_engine.table, "", 0, 1, SEC, 0, &permit));
    CHECK(!ratelimit_table_acquire(the_engine.table, NULL, 1, 1, SEC, 0, &permit));
    CHECK_U64(ratelimit_table_release(the_engine.table, "", 0, &permit, 0), RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_table_release(the_engine.table, NULL, 1, &permit, 0), RATELIMIT_BAD_KEY);
}

/* B39, R1: the same key under two limits has two buckets. Limits of one scope share one: then what
 * was spent under the loose one counts under the strict one. */
static void two_limits_of_one_subject_do_not_share_a_count(void)
{
    static const ratelimit_limit ok = RATELIMIT_LIMIT(200, 60 * SEC, 200);
    static const ratelimit_limit bad = RATELIMIT_LIMIT(2, 60 * SEC, 2);
    ratelimit_limit strict = bad;
    size_t k;
    strict.scope = ok.scope;
    for (k = 0; k < COUNT(keyed); k++) {
        engine *e = &the_engine;
        place(engine_names[keyed[k]], 0, 0);
        engine_start(e, (engine_kind)keyed[k]);
        CHECK(take_key(e, "ann", 3, &ok).allowed && take_key(e, "ann", 3, &ok).allowed);
        CHECK_U64(take_key(e, "ann", 3, &ok).remaining, 197);
        CHECK_U64(take_key(e, "ann", 3, &bad).remaining, 1);
        CHECK_U64(take_key(e, "ann", 3, &bad).remaining, 0);
        CHECK_U64(take_key(e, "ann", 3, &ok).remaining, 196);
        CHECK_U64(take_key(e, "ann", 3, &strict).status, DENIED);
    }
    place_end();
}

/* ---- concurrency ----------------------------------------------------------------------------- */

#define THREADS 64

typedef struct worker {
    engine *e;
    const ratelimit_limit *limit;
    uint64_t takes;       /* this many, or, */
    struct moving *clock; /* if set, until this clock has come to its end */
    uint64_t allowed, others, errors;
} worker;

/* A clock that one thread moves and others look at, and how often they did. */
typedef struct moving {
    uint64_t now_ns, looks;
} moving;

#define CLOCK_START (100 * SEC)
#define CLOCK_END   (110 * SEC)

/* Held while threads are created, so that all of them start at once. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

/* Not by engine_decide: it would write the engine's clock, which here is read by many. */
static void take_shared(worker *w, uint64_t now)
{
    ratelimit_request req = request("key", w->limit, 1);
    ratelimit_result res;
    if (w->e->kind == ENGINE_SHARED)
        ratelimit_bucket_take_shared(&w->e->bucket, w->limit, 1, now, &res);
    else if (w->e->kind == ENGINE_TABLE)
        ratelimit_table_take(w->e->table, "key", 3, w->limit, 1, now, &res);
    else if (w->e->kind == ENGINE_LIMITER)
        ratelimit_take(&w->e->limiter, &req, &res);
    else
        w->e->store.decide(&w->e->store, &req, &res, 1, RATELIMIT_EACH);
    w->allowed += res.allowed;
    w->errors += !res.allowed && res.status != DENIED;
}

static void *work(void *self)
{
    worker *w = (worker *)self;
    uint64_t i, now = SEC;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    for (i = 0; w->clock ? now < CLOCK_END : i < w->takes; i++) {
        if (w->clock)
            now = __atomic_load_n(&w->clock->now_ns, __ATOMIC_RELAXED);
        take_shared(w, now);
        if (w->clock)
            __atomic_fetch_add(&w->clock->looks, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Moves the clock by 1 ms ten thousand times, and now and then lets the others catch up. */
static void *move_clock(void *self)
{
    moving *clock = (moving *)self;
    int i;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    for (i = 0; i < 10000; i++) {
        uint64_t looks = __atomic_load_n(&clock->looks, __ATOMIC_RELAXED);
        while (i % 1000 == 0 && __atomic_load_n(&clock->looks, __ATOMIC_RELAXED) < looks + 16)
            sched_yield();
        __atomic_fetch_add(&clock->now_ns, MS, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Runs them all, and the clock if there is one, and returns how many takes passed. Errors are added
 * up in *errors. */
static uint64_t run_workers(worker *workers, size_t count, moving *clock, uint64_t *errors)
{
    pthread_t threads[THREADS], mover;
    uint64_t allowed = 0;
    size_t i;
    pthread_mutex_lock(&gate);
    if (clock && pthread_create(&mover, NULL, move_clock, clock) != 0)
        exit(2);
    for (i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            exit(2);
    pthread_mutex_unlock(&gate);
    for (i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        allowed += workers[i].allowed;
        *errors += workers[i].errors;
    }
    if (clock)
        pthread_join(mover, NULL);
    return allowed;
}

/* So many threads, each with so many takes, of one key with so large a burst: exactly that many
 * pass. */
static void check_threads(engine_kind kind, size_t threads, uint64_t takes, uint64_t burst)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static worker workers[THREADS];
    ratelimit_limit limit = ratelimit_limit_make(1, MINUTE, burst);
    uint64_t errors = 0;
    size_t i;
    place(engine_names[kind], burst, threads);
    engine_start(&the_engine, kind);
    the_engine.now_ns = SEC;
    the_engine.db.lock = &lock;
    /* a swap is lost to the success of another, of which there are as many as tokens */
    the_engine.cas.tries = (uint32_t)burst + 1;
    memset(workers, 0, sizeof workers);
    for (i = 0; i < threads; i++) {
        workers[i].e = &the_engine;
        workers[i].limit = &limit;
        workers[i].takes = takes;
    }
    CHECK_U64(run_workers(workers, threads, NULL, &errors), burst);
    CHECK_U64(errors, 0);
    place_end();
}

#if defined(RATELIMIT_PRIV_SHARED)
static const engine_kind first_shared = ENGINE_SHARED;
#else
static const engine_kind first_shared = ENGINE_TABLE;
#endif

/* B40 */
static void sixty_four_threads_share_a_thousand_tokens_exactly(void)
{
    engine_kind kind;
    for (kind = first_shared; kind < ENGINES; kind++)
        check_threads(kind, THREADS, 1000, 1000);
}

/* B40: most of the takes pass, so that threads write at the same time all along. */
static void threads_that_write_all_the_time_lose_no_charge(void)
{
    uint64_t takes = SHORT ? 50000 : 500000;
    engine_kind kind;
    for (kind = first_shared; kind < ENGINES; kind++)
        if (kind != ENGINE_CAS)
            check_threads(kind, 4, takes, 3 * takes);
}

/* B40 */
static void a_swap_that_fails_is_tried_again_but_not_for_ever(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, HOUR, 2);
    engine *e = &the_engine;
    ratelimit_result res;
    engine_start(e, ENGINE_CAS);
    e->db.lose = 3;
    res = ask(e, &limit, TAKE, 1, SEC);
    CHECK(res.allowed);
    CHECK_U64(res.remaining, 1);
    CHECK_U64(e->db.swaps, 4);
    e->db.lose = UINT64_MAX;
    e->db.swaps = 0;
    CHECK_U64(ask(e, &limit, TAKE, 1, SEC).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(e->db.swaps, 16);
    e->db.lose = 0;
    CHECK_U64(ask(e, &limit, TAKE, 1, SEC).remaining, 0);
}

/* B41: run it under a thread sanitizer, too. */
static void two_threads_are_not_paid_for_the_same_time(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1000, SEC, 10);
    static worker workers[8];
    static moving clock;
    static const int kinds[] = {ENGINE_TABLE, ENGINE_SHARED};
    size_t i, k;
    for (k = 0; k < COUNT(kinds) - (first_shared == ENGINE_TABLE); k++) {
        uint64_t errors = 0, allowed;
        place(engine_names[kinds[k]], 0, 0);
        engine_start(&the_engine, (engine_kind)kinds[k]);
        memset(workers, 0, sizeof workers);
        clock.now_ns = CLOCK_START;
        clock.looks = 0;
        for (i = 0; i < COUNT(workers); i++) {
            workers[i].e = &the_engine;
            workers[i].limit = &limit;
            workers[i].clock = &clock;
        }
        allowed = run_workers(workers, COUNT(workers), &clock, &errors);
        CHECK(allowed >= 20); /* they did meet the moving clock */
        CHECK(allowed <= 10 + 10000);
        CHECK_U64(errors, 0);
    }
    place_end();
}

/* Takes of the common key, between them takes of five others and looks for a key that is never
 * there, which hold up a whole block. */
static void *work_among_strangers(void *self)
{
    worker *w = (worker *)self;
    uint64_t i;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    for (i = 0; i < w->takes; i++) {
        ratelimit_request nobody = request("nobody", w->limit, 1);
        ratelimit_result res;
        uint64_t stranger = i % 5;
        nobody.op = RATELIMIT_RESET;
        take_shared(w, SEC);
        w->others +=
            ratelimit_table_take(w->e->table, &stranger, sizeof stranger, w->limit, 1, SEC, NULL);
        ratelimit_table_decide(w->e->table, &nobody, &res, 1, RATELIMIT_EACH, SEC);
        w->errors += !res.allowed;
    }
    return NULL;
}

/* B41, of a table with several keys in the same lines: also to be run under a thread sanitizer. */
static void threads_on_many_keys_give_each_key_its_limit_exactly(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, HOUR, 1000);
    static worker workers[8];
    pthread_t threads[8];
    uint64_t allowed = 0, others = 0, errors = 0;
    size_t i;
    engine_start(&the_engine, ENGINE_TABLE);
    memset(workers, 0, sizeof workers);
    pthread_mutex_lock(&gate);
    for (i = 0; i < COUNT(workers); i++) {
        workers[i].e = &the_engine;
        workers[i].limit = &limit;
        workers[i].takes = 5000;
        if (pthread_create(&threads[i], NULL, work_among_strangers, &workers[i]) != 0)
            exit(2);
    }
    pthread_mutex_unlock(&gate);
    for (i = 0; i < COUNT(workers); i++) {
        pthread_join(threads[i], NULL);
        allowed += workers[i].allowed;
        others += workers[i].others;
        errors += workers[i].errors;
    }
    CHECK_U64(allowed, 1000);
    CHECK_U64(others, 5 * 1000);
    CHECK_U64(errors, 0);
}

/* ---- reset ----------------------------------------------------------------------------------- */

/* B45 */
static void reset_is_exact_and_not_a_second_more(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(30, 60 * SEC, 16);
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            uint64_t start = base_at(b, SEC, &limit);
            ratelimit_result res;
            place(engine_names[kind], start, 0);
            engine_start(&the_engine, (engine_kind)kind);
            res = ask(&the_engine, &limit, TAKE, 1, start);
            CHECK_U64(res.remaining, 15);
            CHECK_U64(res.reset_after_ns, 2 * SEC);
        }
    place_end();
}

/* B46 */
static void reset_counts_all_that_was_taken_and_remaining_stays_below_the_limit(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, 30 * SEC, 10);
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            uint64_t start = base_at(b, 1000 * SEC, &limit);
            ratelimit_result res;
            place(engine_names[kind], start, 0);
            engine_start(&the_engine, (engine_kind)kind);
            CHECK_U64(ask(&the_engine, &limit, TAKE, 5, start).reset_after_ns, 15 * SEC);
            CHECK_U64(ask(&the_engine, &limit, TAKE, 1, start).reset_after_ns, 18 * SEC);
            res = ask(&the_engine, &limit, PEEK, 1, start + 1000 * SEC);
            CHECK_U64(res.remaining, 10);
            CHECK_U64(res.reset_after_ns, 0);
        }
    place_end();
}

/* B45, B46 of a window: until its end, however much was taken. */
static void reset_of_a_window_is_its_end(void)
{
    static const ratelimit_limit limit = RATELIMIT_WINDOW(10, 30 * SEC);
    int kind, b;
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            uint64_t start = base_at(b, 30 * SEC, &limit);
            place(engine_names[kind], start, 0);
            engine_start(&the_engine, (engine_kind)kind);
            CHECK_U64(ask(&the_engine, &limit, PEEK, 1, start + 3 * SEC).reset_after_ns, 0);
            CHECK_U64(ask(&the_engine, &limit, TAKE, 1, start + 3 * SEC).reset_after_ns, 27 * SEC);
            CHECK_U64(ask(&the_engine, &limit, TAKE, 9, start + 4 * SEC).reset_after_ns, 26 * SEC);
            CHECK_U64(ask(&the_engine, &limit, PEEK, 1, start + 30 * SEC).reset_after_ns, 0);
        }
    place_end();
}

/* ---- several limits in one decision ---------------------------------------------------------- */

static const ratelimit_limit per_user = RATELIMIT_LIMIT(1, HOUR, 1);
static const ratelimit_limit global = RATELIMIT_LIMIT(10, HOUR, 10);

/* One batch of a user and of everybody, in one of the two orders. */
static bool take_both(ratelimit_limiter *l, const char *user, bool user_first)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[!user_first] = request(user, &per_user, 1);
    req[user_first] = request("global", &global, 1);
    return ratelimit_take_all(l, req, res, 2);
}

/* B47 */
static void a_refused_batch_charges_nobody(void)
{
    int first, i;
    for (first = 0; first < 2; first++) {
        engine *e = &the_engine;
        ratelimit_request peek = request("global", &global, 1);
        ratelimit_result res;
        engine_start(e, ENGINE_LIMITER);
        for (i = 0; i < 20; i++)
            CHECK(take_both(&e->limiter, "u1", first) == (i == 0));
        peek.op = RATELIMIT_PEEK;
        CHECK(ratelimit_take(&e->limiter, &peek, &res));
        CHECK_U64(res.remaining, 9);
        CHECK(take_both(&e->limiter, "u2", first));
    }
}

/* B48 */
static void a_long_limit_is_not_charged_for_what_a_short_one_refused(void)
{
    static const ratelimit_limit quick = RATELIMIT_LIMIT(10, 60 * SEC, 10);
    static const ratelimit_limit slow = RATELIMIT_LIMIT(30, 1800 * SEC, 30);
    int b, i, round;
    for (b = 0; b < BASES; b++) {
        engine *e = &the_engine;
        uint64_t start = base_at(b, 60 * SEC, &quick);
        ratelimit_request req[2];
        ratelimit_result res[2];
        engine_start(e, ENGINE_TABLE);
        req[0] = request("ann", &quick, 1);
        req[1] = request("ann", &slow, 1);
        for (round = 0; round < 2; round++) {
            int allowed = 0;
            for (i = 0; i < 15; i++) {
                uint64_t now = start + (uint64_t)round * 60 * SEC;
                ratelimit_table_decide(e->table, req, res, 2, RATELIMIT_ALL, now);
                allowed += res[0].allowed && res[1].allowed;
            }
            CHECK_U64(allowed, 10);
        }
        req[1].op = RATELIMIT_PEEK;
        ratelimit_table_decide(e->table, &req[1], res, 1, RATELIMIT_EACH, start + 60 * SEC);
        CHECK_U64(res[0].remaining, 11);
    }
}

/* ---- a store that fails ---------------------------------------------------------------------- */

/* B58 */
static void a_store_that_fails_decides_by_the_chosen_policy_and_says_so(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, HOUR, 3);
    static const struct {
        ratelimit_failure policy;
        int allowed;
    } rows[] = {{RATELIMIT_FAIL_OPEN, 10}, {RATELIMIT_FAIL_CLOSED, 0}, {RATELIMIT_FAIL_LOCAL, 3}};
    ratelimit_store failed = store_of(decide_failed, NULL);
    size_t i;
    int call;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_limiter l;
        int allowed = 0;
        place("policy", 0, i);
        engine_start(&the_engine, ENGINE_TABLE);
        memset(&l, 0, sizeof l);
        l.on_failure = rows[i].policy;
        l.fallback = the_engine.store;
        CHECK_U64(ratelimit_init(&l, failed), OK);
        for (call = 0; call < 10; call++) {
            ratelimit_request req = request("key", &limit, 1);
            ratelimit_result res;
            allowed += ratelimit_take(&l, &req, &res);
            CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
            CHECK(res.source == (rows[i].policy == RATELIMIT_FAIL_LOCAL ? RATELIMIT_FROM_FALLBACK
                                                                        : RATELIMIT_FROM_POLICY));
        }
        CHECK_U64(allowed, rows[i].allowed);
    }
    place_end();
}

/* ---- configuration --------------------------------------------------------------------------- */

/* B67, B68: text that looks like a limit and is none, and where it goes wrong. */
static void text_that_is_no_limit_is_refused_as_a_whole_with_the_place_of_the_fault(void)
{
    static const struct {
        const char *text;
        size_t fault_at;
    } rows[] = {
        {"10/60", 5}, /* a number of what? never 6 s */
        {"90/180", 6},     {"1/5", 3},        {"1 per hour; 10 perr day", 1},
        {"1/hourssss", 3}, {"6O/m", 1}, /* the letter O */
        {"/m", 0},         {"", 0},           {"10/", 3},
        {"1e400/s", 1},    {"nan/s", 0},      {"-5/s", 0},
        {"+5/s", 0},       {" 5/s", 0},       {"5/s ", 4},
        {"5/s x", 4},      {"15000 / 1d", 5},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_limit limit, untouched;
        size_t fault_at = 999;
        place("parse", 0, i);
        memset(&limit, 0x5A, sizeof limit);
        untouched = limit;
        CHECK_U64(ratelimit_limit_parse(&limit, rows[i].text), RATELIMIT_SYNTAX);
        CHECK_U64(ratelimit_limit_parse_n(&limit, rows[i].text, strlen(rows[i].text), &fault_at),
                  RATELIMIT_SYNTAX);
        CHECK_U64(fault_at, rows[i].fault_at);
        CHECK(memcmp(&limit, &untouched, sizeof limit) == 0);
    }
    place_end();
}

/* B67 */
static void a_period_with_a_number_is_as_long_as_it_says(void)
{
    static const struct {
        const char *text;
        uint64_t tokens, per_ns;
    } rows[] = {
        {"1/5s", 1, 5 * SEC},
        {"90/3m", 90, 180 * SEC},
        {"10/60s", 10, 60 * SEC},
        {"5/1500ms", 5, 1500 * MS},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_limit limit;
        CHECK_U64(ratelimit_limit_parse(&limit, rows[i].text), OK);
        CHECK_U64(limit.tokens, rows[i].tokens);
        CHECK_U64(limit.per_ns, rows[i].per_ns);
    }
}

/* B69 */
static void fifteen_thousand_a_day_are_fifteen_thousand_a_day(void)
{
    ratelimit_limit limit;
    int kind, b;
    CHECK_U64(ratelimit_limit_parse(&limit, "15000/1d"), OK);
    for (kind = 0; kind < ENGINES; kind++)
        for (b = 0; b < BASES; b++) {
            engine *e = &the_engine;
            uint64_t start = base_at(b, DAY, &limit);
            place(engine_names[kind], start, 0);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &limit, 15000, start));
            CHECK(take(e, &limit, 1, start + 5760 * MS));
            CHECK(!take(e, &limit, 1, start + 5760 * MS));
            CHECK(!take(e, &limit, 14999, start + DAY - 1));
            CHECK(take(e, &limit, 14999, start + DAY));
            CHECK(!take(e, &limit, 1, start + DAY));
        }
    place_end();
}

/* ---- portability ----------------------------------------------------------------------------- */

/* B70: a counter with more ticks than ns fit in 64 bits, or in 53, on the way. */
static void ticks_become_ns_without_overflow_on_the_way(void)
{
    static const struct {
        uint64_t ticks, hz, ns;
    } rows[] = {
        {UINT64_C(1000000000000), 10000000, UINT64_C(100000000000000)},
        {UINT64_C(25920001234567), 10000000, UINT64_C(2592000123456700)},
        {UINT64_C(1000000000000000), 3579545, UINT64_C(279365114840014582)},
        {UINT64_C(18446744073709551), SEC / 1000, UINT64_C(18446744073709551000)},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_tick_clock clock = {0, 0, 0};
        uint64_t ticks = 0, ns = 0;
        while (ticks < rows[i].ticks) {
            uint64_t more = rows[i].ticks - ticks, most = UINT32_MAX;
            ticks += more < most ? more : most;
            ns = ratelimit_tick_clock_ns(&clock, (uint32_t)ticks, 32, rows[i].hz);
        }
        CHECK_U64(ns, rows[i].ns);
    }
}

/* B72 */
static void no_time_is_too_late_for_a_narrow_type(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    static const uint64_t edges[] = {
        (UINT64_C(1) << 31) * SEC, (UINT64_C(1) << 32) * SEC, (UINT64_C(1) << 32) * MS,
        (UINT64_C(1) << 32) * US,  UINT64_C(1) << 32,         UINT64_C(1) << 53,
        UINT64_C(1) << 62,         UINT64_C(1) << 63,
    };
    size_t i;
    int kind;
    for (kind = 0; kind < ENGINES; kind++)
        for (i = 0; i < COUNT(edges); i++) {
            engine *e = &the_engine;
            place(engine_names[kind], edges[i], i);
            engine_start(e, (engine_kind)kind);
            CHECK(take(e, &limit, 1, edges[i] - SEC / 2));
            CHECK_U64(ask(e, &limit, TAKE, 1, edges[i] + 400 * MS).retry_after_ns, 100 * MS);
            CHECK(take(e, &limit, 1, edges[i] + SEC / 2));
        }
    place_end();
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(a_long_pause_at_a_high_rate_refills_to_the_burst_and_no_further);
    RUN(a_long_pause_leaves_a_window_with_its_tokens_and_no_more);
    RUN(a_burst_beyond_31_bits_stays_a_limit);
    RUN(a_burst_beyond_53_bits_stays_a_limit);
    RUN(the_largest_timeout_waits_and_does_not_give_up_at_once);
    RUN(the_largest_reservation_is_granted_and_the_largest_block_blocks);
    RUN(a_limit_times_milliseconds_beyond_32_bits_is_right);
    RUN(a_token_is_there_the_moment_it_is_due);
    RUN(polling_loses_no_part_of_a_token);
    RUN(rates_that_round_to_the_same_gap_differ);
    RUN(tokens_of_part_of_a_second_can_be_spent);
    RUN(a_time_a_little_earlier_is_late_and_mints_nothing);
    RUN(a_clock_set_back_refuses_nobody_for_longer_than_the_window);
    RUN(an_empty_key_is_usable_one_window_after_a_step_back);
    RUN(a_late_call_does_not_forgive_reservations);
    RUN(going_back_and_forth_mints_nothing);
    RUN(peeks_and_refunds_at_an_earlier_time_mint_nothing);
    RUN(time_zero_is_a_time_like_any_other);
    RUN(the_last_nanosecond_of_the_clock_is_a_time_like_any_other);
    RUN(a_clock_that_passes_its_end_mints_nothing);
    RUN(the_default_clock_counts_while_the_machine_sleeps);
    RUN(a_table_store_without_a_clock_reads_the_default_clock);
    RUN(a_window_longer_than_a_second_turns);
    RUN(raising_a_limit_helps_at_once);
    RUN(a_refusal_under_a_raised_limit_ends_with_the_raised_limit);
    RUN(tokens_spent_stay_spent_whatever_the_limit_becomes);
    RUN(lowering_a_limit_below_what_is_there_leaves_a_limit_that_works);
    RUN(a_key_that_spent_more_than_the_lowered_burst_is_empty_not_stuck);
    RUN(a_smaller_window_counts_from_the_next_request);
    RUN(a_lowered_burst_leaves_at_most_the_new_burst_spent);
    RUN(a_debt_made_on_purpose_is_a_time_that_no_limit_changes);
    RUN(tokens_of_a_tenth_of_a_ns_stay_spent_as_they_were);
    RUN(five_terabytes_of_ten_are_five_of_twenty);
    RUN(a_block_outlasts_every_change_of_its_limit);
    RUN(a_block_outlasts_refunds_and_charges);
    RUN(a_limit_of_zero_is_an_error_and_writes_nothing);
    RUN(a_rate_of_zero_refuses_for_ever_and_waiting_on_it_does_not_sleep);
    RUN(a_negative_cost_puts_nothing_into_the_bucket);
    RUN(a_cost_whose_product_wraps_is_never);
    RUN(asking_without_taking_says_when_a_token_comes);
    RUN(zero_in_a_request_means_what_its_comment_says);
    RUN(zero_in_the_options_of_a_table_means_what_its_comment_says);
    RUN(zero_elsewhere_means_what_its_comment_says);
    RUN(zero_in_a_limiter_or_a_cas_store_means_what_its_comment_says);
    RUN(a_token_given_back_a_moment_later_is_back);
    RUN(a_refund_says_how_much_was_given_back);
    RUN(a_cancelled_reservation_gives_back_what_no_later_one_counts_on);
    RUN(a_cancelled_reservation_of_many_gives_back_all_or_nothing);
    RUN(no_cancelled_reservation_lets_more_act_than_the_limit);
    RUN(refunds_never_fill_beyond_the_burst);
    RUN(a_refund_does_not_reach_into_the_next_window);
    RUN(a_wait_for_several_sleeps_only_for_what_is_missing);
    RUN(a_call_at_retry_after_passes_and_one_ns_earlier_does_not);
    RUN(a_wait_that_is_told_is_right_to_the_ns);
    RUN(a_refusal_by_a_window_ends_with_the_window);
    RUN(a_sleep_that_wakes_early_is_slept_on_in_a_loop);
    RUN(a_wait_whose_sleeps_are_cut_short_does_not_end_before_its_time);
    RUN(a_wait_that_would_take_too_long_says_so_at_once_and_takes_nothing);
    RUN(a_client_that_keeps_trying_is_not_locked_out);
    RUN(reservations_queue_up_one_interval_apart);
    RUN(a_flood_of_made_up_keys_resets_nobody);
    RUN(ten_million_keys_allocate_nothing_and_all_get_an_answer);
    RUN(places_whose_time_is_over_are_free);
    RUN(a_full_block_takes_newcomers_the_moment_its_keys_are_full_again);
    RUN(a_key_that_owes_is_not_idle);
    RUN(a_key_that_owes_is_forgotten_by_a_sweep_that_was_told_to);
    RUN(no_way_out_of_a_call_leaves_a_place_taken);
    RUN(keys_are_bytes_and_count_to_their_last);
    RUN(an_empty_key_is_an_error_and_no_bucket_of_its_own);
    RUN(two_limits_of_one_subject_do_not_share_a_count);
    RUN_THREADED(sixty_four_threads_share_a_thousand_tokens_exactly);
    RUN_THREADED(threads_that_write_all_the_time_lose_no_charge);
    RUN(a_swap_that_fails_is_tried_again_but_not_for_ever);
    RUN_THREADED(two_threads_are_not_paid_for_the_same_time);
    RUN_THREADED(threads_on_many_keys_give_each_key_its_limit_exactly);
    RUN(reset_is_exact_and_not_a_second_more);
    RUN(reset_counts_all_that_was_taken_and_remaining_stays_below_the_limit);
    RUN(reset_of_a_window_is_its_end);
    RUN(a_refused_batch_charges_nobody);
    RUN(a_long_limit_is_not_charged_for_what_a_short_one_refused);
    RUN(a_store_that_fails_decides_by_the_chosen_policy_and_says_so);
    RUN(text_that_is_no_limit_is_refused_as_a_whole_with_the_place_of_the_fault);
    RUN(a_period_with_a_number_is_as_long_as_it_says);
    RUN(fifteen_thousand_a_day_are_fifteen_thousand_a_day);
    RUN(ticks_become_ns_without_overflow_on_the_way);
    RUN(no_time_is_too_late_for_a_narrow_type);
    return check_end();
}

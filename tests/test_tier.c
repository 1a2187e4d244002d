/* test_tier.c - the tier: refusals answered from what the store said last, leases, a store that
 * fails and comes back, batches, threads. Several nodes are several tiers over one table's store.
 * Time is the test's own. At the end it prints how much is saved; that is not a test. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#if defined(WITH_LOCK) /* the same with the caller's lock instead of atomics: a nested one hangs */
static pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;
#  define RATELIMIT_LOCK()   pthread_mutex_lock(&the_lock)
#  define RATELIMIT_UNLOCK() pthread_mutex_unlock(&the_lock)
#endif

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

/* Are counters exact with threads? */
#if RATELIMIT_PRIV_CAN64 || defined(RATELIMIT_LOCK)
#  define EXACT true
#else
#  define EXACT false
#endif

#define OK     RATELIMIT_OK
#define DENIED RATELIMIT_DENIED
#define NODES  4
#define STORED RATELIMIT_FROM_STORE
#define LEASED RATELIMIT_FROM_LEASE
#define CACHED RATELIMIT_FROM_REFUSAL_CACHE
#define LOCAL  RATELIMIT_FROM_FALLBACK

static const ratelimit_limit ten = RATELIMIT_LIMIT(10, SEC, 10);
static const ratelimit_limit thousand = RATELIMIT_LIMIT(1000, SEC, 1000);
static const ratelimit_limit hourly = RATELIMIT_LIMIT(10, HOUR, 10);
static const ratelimit_limit hundredth = RATELIMIT_LIMIT(1000, SEC, 1000000);
static const ratelimit_limit sevenths = RATELIMIT_LIMIT(7, SEC, 50);
static const ratelimit_limit window = RATELIMIT_WINDOW(100, 10 * SEC);
static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
static const ratelimit_limit bad = RATELIMIT_LIMIT(0, SEC, 1);

/* The store far away: a table's, that counts and can fail. Its clock is ahead of the tiers'. */
static uint64_t now_ns, skew_ns, slow_ns;
static unsigned char far_memory[RATELIMIT_TABLE_BYTES(1024)];
static ratelimit_table *far_table;
static uint64_t far_calls, far_requests, far_granted; /* tokens, to "key" */
static bool far_fails, far_closed;
static const char *far_fails_key; /* set: only requests of this key fail */
static void (*far_first)(void), (*far_hook)(void);

static void far_decide(const ratelimit_store *store, const ratelimit_request *req,
                       ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    void (*hook)(void) = far_hook, (*first)(void) = far_first;
    bool fails = __atomic_load_n(&far_fails, __ATOMIC_RELAXED);
    size_t i;
    (void)store;
    __atomic_fetch_add(&far_calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&far_requests, count, __ATOMIC_RELAXED);
    if (first) {
        far_first = NULL;
        first(); /* what another does while the question is on its way */
    }
    if (!fails)
        ratelimit_table_decide(far_table, req, res, count, mode, now_ns + skew_ns);
    for (i = 0; i < count; i++)
        if (fails || (far_fails_key && memcmp(req[i].key, far_fails_key, req[i].key_len) == 0)) {
            memset(&res[i], 0, sizeof res[i]);
            res[i].status = RATELIMIT_STORE_FAILED;
        } else if (res[i].allowed && req[i].op <= RATELIMIT_TAKE_UP_TO && req[i].key_len == 3) {
            __atomic_fetch_add(&far_granted, res[i].taken, __ATOMIC_RELAXED);
        }
    if (slow_ns)
        now_ns += slow_ns;
    if (hook) {
        far_hook = NULL;
        hook(); /* what another does while the answer is on its way */
    }
}

static void far_close(const ratelimit_store *store)
{
    CHECK(store->decide == far_decide);
    far_closed = true;
}

static unsigned char memory[NODES][RATELIMIT_TABLE_BYTES(1024)];
static ratelimit_tier tiers[NODES];
static ratelimit_store nodes[NODES];

static void fresh(uint32_t lease_percent)
{
    static const ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, RATELIMIT_HASH_SIP, 0};
    size_t i;
    now_ns = 1000 * SEC;
    skew_ns = slow_ns = far_calls = far_requests = far_granted = 0;
    far_fails = far_closed = false;
    far_fails_key = NULL;
    far_first = far_hook = NULL;
    if (ratelimit_table_init(&far_table, far_memory, sizeof far_memory, &options) != OK)
        exit(2);
    for (i = 0; i < NODES; i++) {
        memset(&tiers[i], 0, sizeof tiers[i]);
        tiers[i].store.decide = far_decide;
        tiers[i].store.close = far_close;
        tiers[i].clock = clock_read;
        tiers[i].clock_self = &now_ns;
        tiers[i].lease_percent = lease_percent;
        if (ratelimit_table_init(&tiers[i].table, memory[i], sizeof memory[i], &options) != OK)
            exit(2);
        nodes[i] = ratelimit_tier_store(&tiers[i]);
    }
}

static ratelimit_result ask_node(size_t node, const ratelimit_request *req)
{
    ratelimit_result res;
    memset(&res, 0xA5, sizeof res);
    nodes[node].decide(&nodes[node], req, &res, 1, RATELIMIT_EACH);
    return res;
}

static ratelimit_request request_of(const char *key, const ratelimit_limit *limit, ratelimit_op op,
                                    uint64_t n)
{
    ratelimit_request req;
    memset(&req, 0, sizeof req);
    req.key = key;
    req.key_len = strlen(key);
    req.limit = limit;
    req.op = op;
    req.n = n;
    req.max_wait_ns = op == RATELIMIT_BLOCK ? 20 * SEC : op == RATELIMIT_RESERVE ? HOUR : 0;
    return req;
}

/* Requests of one key and limit, with max_wait_ns for blocks and reservations. */
static ratelimit_result op_of(size_t node, const char *key, const ratelimit_limit *limit,
                              ratelimit_op op, uint64_t n)
{
    ratelimit_request req = request_of(key, limit, op, n);
    return ask_node(node, &req);
}

static ratelimit_result take_of(size_t node, const ratelimit_limit *limit, uint64_t n)
{
    return op_of(node, "key", limit, RATELIMIT_TAKE, n);
}

static ratelimit_tier_counts counts(size_t node)
{
    ratelimit_tier_counts c;
    memset(&c, 0xA5, sizeof c);
    ratelimit_tier_stats(&tiers[node], &c);
    return c;
}

/* ---- refusals */

static void a_refused_key_costs_no_calls_until_its_time_has_come(void)
{
    ratelimit_result res;
    int i;
    fresh(0);
    CHECK(take_of(0, &ten, 10).allowed);
    res = take_of(0, &ten, 1);
    CHECK_U64(res.source, CACHED); /* the answer to the take before already said so */
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK_U64(res.retry_after_ns, 100 * MS);
    CHECK_U64(res.reset_after_ns, SEC);
    CHECK_U64(res.burst, 10);
    for (i = 0; i < 1000; i++, now_ns += 99999)
        CHECK(!take_of(0, &ten, 1).allowed);
    CHECK_U64(far_calls, 1);
    CHECK_U64(counts(0).refused, 1001);
    now_ns = 1000 * SEC + 100 * MS - 1;
    CHECK_U64(take_of(0, &ten, 1).retry_after_ns, 1);
    now_ns++;
    res = take_of(0, &ten, 1);
    CHECK(res.allowed);
    CHECK_U64(res.source, STORED);
    CHECK_U64(far_calls, 2);
}

static void a_refused_dear_request_does_not_refuse_a_cheap_one(void)
{
    ratelimit_result res;
    fresh(0);
    CHECK(take_of(0, &ten, 5).allowed);
    CHECK_U64(take_of(0, &ten, 10).source, STORED);
    res = take_of(0, &ten, 10);
    CHECK_U64(res.status, DENIED);
    CHECK_U64(res.source, CACHED);
    CHECK_U64(res.retry_after_ns, 500 * MS);
    CHECK_U64(res.remaining, 5);
    CHECK_U64(take_of(0, &ten, 6).source, CACHED);
    CHECK_U64(take_of(0, &ten, 6).retry_after_ns, 100 * MS);
    CHECK(take_of(0, &ten, 5).allowed);
    CHECK_U64(far_calls, 3);
}

static void what_others_did_is_seen_when_the_trust_is_over(void)
{
    fresh(0);
    CHECK(take_of(0, &ten, 10).allowed);
    CHECK(op_of(1, "key", &ten, RATELIMIT_RESET, 0).allowed);
    CHECK_U64(take_of(0, &ten, 10).source, CACHED);
    now_ns += SEC - 1;
    CHECK_U64(take_of(0, &ten, 10).source, CACHED);
    now_ns++;
    CHECK(take_of(0, &ten, 10).allowed);
    fresh(0);
    tiers[0].trust_ns = 50 * MS;
    CHECK(take_of(0, &ten, 10).allowed);
    CHECK(op_of(1, "key", &ten, RATELIMIT_REFUND, 10).allowed);
    now_ns += 50 * MS - 1;
    CHECK(!take_of(0, &ten, 10).allowed);
    now_ns++;
    CHECK(take_of(0, &ten, 10).allowed);
}

static void ones_own_reset_refund_block_and_charge_are_seen_at_once(void)
{
    fresh(0);
    CHECK(take_of(0, &ten, 10).allowed);
    CHECK(!take_of(0, &ten, 1).allowed);
    CHECK(op_of(0, "key", &ten, RATELIMIT_REFUND, 3).allowed);
    CHECK(take_of(0, &ten, 3).allowed);
    CHECK(!take_of(0, &ten, 1).allowed);
    CHECK(op_of(0, "key", &ten, RATELIMIT_RESET, 0).allowed);
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK(op_of(0, "key", &ten, RATELIMIT_CHARGE, 19).allowed);
    CHECK_U64(take_of(0, &ten, 1).retry_after_ns, 1100 * MS);
    CHECK(op_of(0, "key", &ten, RATELIMIT_RESET, 0).allowed);
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK(op_of(0, "key", &ten, RATELIMIT_BLOCK, 0).allowed);
    CHECK_U64(take_of(0, &ten, 1).source, STORED);
    CHECK_U64(take_of(0, &ten, 1).source, CACHED);
    CHECK_U64(take_of(0, &ten, 1).retry_after_ns, 20 * SEC);
    now_ns += 20 * SEC;
    CHECK(take_of(0, &ten, 1).allowed);
}

static void reset_under_way(void)
{
    CHECK(op_of(0, "key", &ten, RATELIMIT_RESET, 0).allowed);
}

static void an_answer_under_way_when_its_key_is_reset_is_not_believed(void)
{
    fresh(0);
    CHECK(take_of(0, &ten, 9).allowed);
    far_hook = reset_under_way;
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK(take_of(0, &ten, 10).allowed);
}

static void take_nine_under_way(void)
{
    now_ns += MS;
    CHECK(take_of(0, &ten, 9).allowed);
}

static void an_answer_that_was_overtaken_is_not_believed(void)
{
    fresh(0);
    CHECK_U64(op_of(0, "key", &ten, RATELIMIT_PEEK, 1).remaining, 10);
    far_hook = take_nine_under_way;
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK_U64(take_of(0, &ten, 1).source, CACHED);
}

/* The debt was what it is said to be when the question had left, not when the answer came. */
static void a_slow_answer_does_not_refuse_longer(void)
{
    fresh(0);
    slow_ns = 50 * MS;
    CHECK(take_of(0, &ten, 10).allowed);
    now_ns += 50 * MS - 1;
    CHECK_U64(take_of(0, &ten, 1).retry_after_ns, 1);
    CHECK_U64(far_calls, 1);
    now_ns++;
    CHECK(take_of(0, &ten, 1).allowed);
}

/* Nothing was known of the key when the question was sent, or only that it had been reset. */
static void a_refusal_under_way_when_its_key_is_reset_is_not_believed(void)
{
    int round;
    for (round = 0; round < 3; round++) {
        int i;
        fresh(round == 2 ? 50 : 0);
        for (i = 0; i < round; i++)
            CHECK(op_of(0, "key", &ten, RATELIMIT_RESET, 0).allowed);
        CHECK(take_of(1, &ten, 10).allowed);
        far_hook = reset_under_way;
        CHECK(!take_of(0, &ten, 1).allowed);
        CHECK(take_of(0, &ten, 10).allowed);
    }
}

/* The same scope, other numbers: what was told says nothing of the new limit. */
static void a_refusal_under_another_limit_does_not_count(void)
{
    static const ratelimit_limit before[] = {RATELIMIT_LIMIT_SCOPE(10, SEC, 10, 1),
                                             RATELIMIT_LIMIT_SCOPE(20, SEC, 10, 1),
                                             RATELIMIT_LIMIT_SCOPE(10, SEC, 20, 1)};
    ratelimit_limit windows[2];
    size_t i;
    for (i = 1; i < COUNT(before); i++) {
        fresh(0);
        CHECK(take_of(0, &before[0], 10).allowed);
        CHECK_U64(take_of(0, &before[0], 1).source, CACHED);
        CHECK_U64(take_of(0, &before[i], 1).source, STORED);
    }
    fresh(0);
    windows[0] = ratelimit_window_make(100, 10 * SEC);
    windows[1] = ratelimit_window_make(200, 20 * SEC);
    windows[0].scope = windows[1].scope = 7;
    CHECK(take_of(0, &windows[0], 100).allowed);
    CHECK_U64(take_of(0, &windows[0], 1).source, CACHED);
    CHECK_U64(take_of(0, &windows[1], 1).source, STORED);
}

static void two_limits_on_one_key_have_two_entries(void)
{
    fresh(0);
    CHECK(take_of(0, &ten, 10).allowed);
    CHECK_U64(take_of(0, &ten, 1).source, CACHED);
    CHECK(take_of(0, &hourly, 1).allowed);
    CHECK_U64(take_of(0, &ten, 1).source, CACHED);
}

/* One node, no leases: whatever is asked, the answers are those of the store itself. */
static void one_node_answers_as_the_store_would(void)
{
    static const ratelimit_limit *const limits[] = {&ten, &sevenths, &thousand, &window};
    static unsigned char twin_memory[RATELIMIT_TABLE_BYTES(1024)];
    static const ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, RATELIMIT_HASH_SIP, 0};
    ratelimit_table *twin;
    uint64_t i, turns = SHORT ? 20000 : 200000;
    uint64_t cached = 0, exact = 0;
    fresh(0);
    skew_ns = 12345678901;
    if (ratelimit_table_init(&twin, twin_memory, sizeof twin_memory, &options) != OK)
        exit(2);
    for (i = 0; i < turns; i++) {
        static const char *const keys[] = {"a", "b", "c", "d"};
        size_t which = (size_t)check_below(4);
        ratelimit_request req;
        ratelimit_result got, want;
        bool whole = limits[which] != &sevenths;
        memset(&req, 0, sizeof req);
        req.key = keys[which];
        req.key_len = 1;
        req.limit = limits[which];
        req.op = check_below(4) ? RATELIMIT_TAKE : (ratelimit_op)check_below(RATELIMIT_PRIV_OPS);
        if (req.op >= RATELIMIT_BLOCK && check_below(20))
            req.op = RATELIMIT_TAKE;
        req.n = check_below(8) ? 1 + check_below(4) : check_below(limits[which]->burst + 3);
        req.max_wait_ns = check_below(3 * SEC);
        now_ns += check_below(3) ? check_below(3 * MS) : check_below(300 * MS);
        got = ask_node(0, &req);
        ratelimit_table_decide(twin, &req, &want, 1, RATELIMIT_EACH, now_ns + skew_ns);
        CHECK(got.allowed == want.allowed && got.status == want.status);
        CHECK(got.burst == want.burst && got.taken == want.taken && got.wait_ns == want.wait_ns);
        if (got.source != CACHED) {
            CHECK(got.remaining == want.remaining && got.retry_after_ns == want.retry_after_ns &&
                  got.reset_after_ns == want.reset_after_ns);
            continue;
        }
        /* What is known is a lower bound: a charge meanwhile was not told. With fractions it may be
         * up to 1 ns too much, never for the request that was refused. */
        cached++;
        exact += got.retry_after_ns == want.retry_after_ns;
        CHECK(got.retry_after_ns <= want.retry_after_ns + !whole);
        CHECK(got.reset_after_ns <= want.reset_after_ns + !whole);
        /* a window that was blocked has one token then, for which nobody asked here */
        CHECK(got.remaining + (!whole || limits[which] == &window) >= want.remaining);
    }
    CHECK(cached > turns / 20);
    CHECK(exact > cached * 3 / 4);
    CHECK_U64(cached, counts(0).refused);
    CHECK(far_calls < turns);
}

static void retry_after_of_the_same_request_is_exact_also_with_fractions(void)
{
    static const ratelimit_limit odd[] = {RATELIMIT_LIMIT(7, SEC, 50), RATELIMIT_LIMIT(3, SEC, 20),
                                          RATELIMIT_LIMIT(999983, SEC, 5000000)};
    size_t i, at;
    for (i = 0; i < COUNT(odd); i++)
        for (at = 0; at < 60; at++) {
            uint64_t n = 1 + at % 3, passed_ns = 0;
            ratelimit_result first, res;
            fresh(0);
            CHECK(take_of(1, &odd[i], odd[i].burst).allowed);
            now_ns += at * 7;
            first = take_of(0, &odd[i], n);
            CHECK_U64(first.source, STORED);
            CHECK_U64(first.status, DENIED);
            while (passed_ns < first.retry_after_ns) {
                res = take_of(0, &odd[i], n);
                CHECK_U64(res.source, CACHED);
                CHECK_U64(res.retry_after_ns, first.retry_after_ns - passed_ns);
                now_ns += first.retry_after_ns / 7 + 1;
                passed_ns += first.retry_after_ns / 7 + 1;
            }
            now_ns += first.retry_after_ns - passed_ns - 1;
            CHECK(!take_of(0, &odd[i], n).allowed);
            now_ns++;
            CHECK(take_of(0, &odd[i], n).allowed);
        }
}

/* An hour, a day, a year: exact to the ns. The trust is shortened by a little instead. */
static void a_long_refusal_is_exact_to_the_ns(void)
{
    static const struct {
        uint64_t block_ns, trust_ns, trusted_ns; /* trusted: for at least so long */
    } rows[] = {{HOUR + 1, SEC, SEC - 200000},
                {DAY + 12345, SEC, SEC - 5 * MS},
                {365 * DAY + 7, SEC, SEC / 2},
                {3 * HOUR + 1, 3 * HOUR + 2, 3 * HOUR},
                {3 * HOUR + 1, HOUR, HOUR - MS}};
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_request req = request_of("key", &ten, RATELIMIT_BLOCK, 0);
        uint64_t start;
        fresh(0);
        tiers[0].trust_ns = rows[i].trust_ns;
        req.max_wait_ns = rows[i].block_ns;
        CHECK(ask_node(0, &req).allowed);
        CHECK_U64(take_of(0, &ten, 3).source, STORED);
        start = now_ns;
        for (; now_ns - start < rows[i].trusted_ns; now_ns += rows[i].trusted_ns / 7 + 1) {
            ratelimit_result res = take_of(0, &ten, 3);
            CHECK_U64(res.source, CACHED);
            CHECK_U64(res.retry_after_ns, rows[i].block_ns + 200 * MS - (now_ns - start));
            CHECK_U64(take_of(0, &ten, 1).retry_after_ns, rows[i].block_ns - (now_ns - start));
        }
        now_ns = start + rows[i].trust_ns;
        CHECK(take_of(0, &ten, 3).source == STORED);
    }
}

/* Numbers that no store of ours would answer: nothing overflows. */
static uint64_t odd_reset, odd_retry, odd_remaining;

static void odd_decide(const ratelimit_store *store, const ratelimit_request *req,
                       ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    size_t i;
    (void)store, (void)mode;
    memset(res, 0, count * sizeof *res);
    for (i = 0; i < count; i++) {
        res[i].status = odd_retry ? DENIED : OK;
        res[i].allowed = !odd_retry;
        res[i].burst = req[i].limit->burst;
        res[i].remaining = odd_remaining;
        res[i].taken = odd_retry ? 0 : odd_remaining;
        res[i].retry_after_ns = odd_retry;
        res[i].reset_after_ns = odd_reset;
    }
}

static void odd_answers_of_a_store_do_no_harm(void)
{
    static const uint64_t odd[] = {
        0, 1, SEC, UINT64_C(1) << 61, UINT64_C(1) << 62, (UINT64_C(1) << 62) + 1, UINT64_MAX};
    static const ratelimit_limit *const limits[] = {&ten, &sevenths, &hundredth, &window};
    size_t i, j, k, m;
    for (m = 0; m < COUNT(limits); m++)
        for (i = 0; i < COUNT(odd); i++)
            for (j = 0; j < COUNT(odd); j++)
                for (k = 0; k < COUNT(odd); k++) {
                    int n;
                    fresh(50);
                    tiers[0].store.decide = odd_decide;
                    odd_reset = odd[i];
                    odd_retry = odd[j];
                    odd_remaining = odd[k];
                    for (n = 0; n < 5; n++, now_ns += SEC / 3) {
                        ratelimit_result res = take_of(0, limits[m], (uint64_t)n + 1);
                        CHECK(res.source != LEASED || !odd[j]);
                        CHECK(res.source != CACHED || res.retry_after_ns);
                    }
                }
}

static void a_used_up_window_is_refused_here_to_its_end_by_the_stores_clock(void)
{
    ratelimit_result res;
    fresh(0);
    tiers[0].trust_ns = MINUTE;
    skew_ns = 3 * SEC;                      /* 7 s to the end */
    CHECK(take_of(0, &window, 60).allowed); /* which says that 41 are too many */
    res = take_of(0, &window, 41);
    CHECK_U64(res.source, CACHED);
    CHECK_U64(res.retry_after_ns, 7 * SEC);
    CHECK_U64(res.remaining, 40);
    CHECK(take_of(0, &window, 40).allowed);
    now_ns += 7 * SEC - 1;
    res = take_of(0, &window, 1);
    CHECK_U64(res.source, CACHED);
    CHECK_U64(res.retry_after_ns, 1);
    now_ns++;
    CHECK(take_of(0, &window, 100).allowed);
    CHECK_U64(far_calls, 3);
}

static void a_charge_into_the_next_window_does_not_refuse_what_fits_in_it(void)
{
    fresh(0);
    tiers[0].trust_ns = MINUTE;
    CHECK(op_of(0, "key", &window, RATELIMIT_CHARGE, 150).allowed); /* 50 of the next one */
    CHECK_U64(take_of(0, &window, 60).retry_after_ns, 20 * SEC);
    CHECK(!take_of(0, &window, 1).allowed);
    now_ns += 10 * SEC;
    CHECK(take_of(0, &window, 50).allowed);
}

static void more_than_the_burst_is_never(void)
{
    fresh(50);
    CHECK(take_of(0, &ten, 10).allowed);
    CHECK_U64(take_of(0, &ten, 1).source, CACHED);
    CHECK_U64(take_of(0, &ten, 11).status, RATELIMIT_NEVER);
    CHECK_U64(take_of(0, &ten, 11).retry_after_ns, FOREVER);
    CHECK_U64(take_of(0, &ten, 1).source, CACHED);
}

/* ---- leases */

/* The second take asks for a lease. Returns how many tokens were taken. */
static uint64_t heat(size_t node, const ratelimit_limit *limit)
{
    return take_of(node, limit, 1).taken + take_of(node, limit, 1).taken;
}

/* Serves what the lease holds. */
static void use_up(size_t node, const ratelimit_limit *limit, uint64_t left)
{
    while (left--)
        CHECK_U64(take_of(node, limit, 1).source, LEASED);
}

static void a_key_in_demand_is_served_from_leases(void)
{
    static const ratelimit_limit fast = RATELIMIT_LIMIT(1000000, SEC, 1000000);
    uint64_t i;
    fresh(1); /* 10,000 */
    for (i = 0; i < 200000; i++, now_ns += 1000) {
        ratelimit_result res = take_of(0, &fast, 1);
        CHECK(res.allowed);
        CHECK_U64(res.taken, 1);
        CHECK(res.remaining < 1000000 && res.remaining > 970000);
        CHECK(res.reset_after_ns < 40 * MS);
    }
    CHECK(far_calls <= 1 + 200000 / 10000);
    CHECK_U64(counts(0).leased + counts(0).stored, 200000);
    CHECK_U64(counts(0).stored, far_calls);
    CHECK(far_granted - 200000 < 10000);
}

/* The size is that percentage of the burst, whatever the demand. */
static void a_lease_has_its_size(void)
{
    static const ratelimit_limit huge = RATELIMIT_LIMIT(1000000000, SEC, 1000000000);
    static const struct {
        const ratelimit_limit *limit;
        uint32_t percent;
        uint64_t size;
    } rows[] = {{&thousand, 1, 10},     {&thousand, 50, 500}, {&thousand, 99, 990},
                {&thousand, 100, 999}, /* what is there */
                {&thousand, 200, 999},  {&ten, 20, 2},        {&ten, 19, 1},
                {&hundredth, 7, 70000}, {&huge, 50, 1048575}};
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        fresh(rows[i].percent);
        place("rows", 0, i);
        CHECK_U64(heat(0, rows[i].limit), 2);
        CHECK_U64(far_granted, 1 + rows[i].size);
        use_up(0, rows[i].limit, rows[i].size - 1 < 1000 ? rows[i].size - 1 : 1000);
        CHECK_U64(far_calls, 2);
    }
    place_end();
}

static void a_key_in_no_demand_is_not_leased(void)
{
    int i;
    fresh(50);
    for (i = 0; i < 20; i++, now_ns += SEC)
        CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 20);
    now_ns--; /* within lease_ns of the last one */
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 520);
    fresh(50);
    tiers[0].lease_ns = 50 * MS;
    for (i = 0; i < 20; i++, now_ns += 50 * MS)
        CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 20);
}

static void a_key_near_its_limit_is_not_leased(void)
{
    fresh(50);
    CHECK(take_of(0, &thousand, 900).allowed); /* 100 remain, as told */
    CHECK(take_of(0, &thousand, 101).status == DENIED);
    CHECK(take_of(0, &thousand, 60).allowed);
    CHECK_U64(take_of(0, &thousand, 50).source, CACHED); /* 40 remain */
    CHECK_U64(far_granted, 960);
}

static void an_unused_lease_ends_with_its_time(void)
{
    fresh(50);
    heat(0, &thousand);
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    now_ns += SEC - 1;
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    now_ns++;
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 502); /* and no lease: the key is not hot any more */
}

static void a_small_burst_or_a_cost_as_large_as_the_lease_is_not_leased(void)
{
    int i;
    fresh(10);
    for (i = 0; i < 10; i++)
        CHECK(take_of(0, &ten, 1).allowed); /* a tenth of 10 */
    CHECK_U64(far_calls, 10);
    CHECK_U64(far_granted, 10);
    fresh(10);
    for (i = 0; i < 9; i++)
        CHECK_U64(take_of(0, &thousand, 100).source, STORED);
    CHECK_U64(far_granted, 900);
}

static void what_a_lease_still_holds_counts_with_the_next(void)
{
    ratelimit_result res;
    fresh(10);
    (void)take_of(0, &thousand, 30);
    CHECK_U64(take_of(0, &thousand, 30).taken, 30); /* of a lease of 100 */
    CHECK_U64(take_of(0, &thousand, 30).source, LEASED);
    CHECK_U64(take_of(0, &thousand, 30).source, LEASED); /* 10 are left */
    CHECK_U64(far_granted, 130);
    res = take_of(0, &thousand, 30); /* 100 more */
    CHECK_U64(res.source, STORED);
    CHECK_U64(res.taken, 30);
    CHECK_U64(res.remaining, 770 + 80);
    CHECK_U64(far_granted, 230);
    res = take_of(0, &thousand, 80);
    CHECK_U64(res.source, LEASED);
    CHECK_U64(far_granted, 30 + 200); /* and that is all that was paid for */
    CHECK_U64(take_of(0, &thousand, 100).source, STORED);
}

static void take_from_one(uint64_t n)
{
    CHECK(take_of(1, &thousand, n).allowed);
}

static void others_take_950(void)
{
    take_from_one(950);
}

/* The store had told that there is enough; others were faster. */
static void a_lease_that_does_not_do_is_kept_and_the_wait_is_told(void)
{
    ratelimit_result res;
    fresh(50);
    CHECK(take_of(0, &thousand, 20).allowed);
    far_first = others_take_950;
    res = take_of(0, &thousand, 40); /* asks for 500, gets 30 */
    CHECK_U64(res.source, STORED);
    CHECK_U64(res.status, DENIED);
    CHECK_U64(res.taken, 0);
    CHECK_U64(res.retry_after_ns, 40 * MS);
    CHECK_U64(res.remaining, 30);
    CHECK_U64(far_granted, 1000);
    CHECK_U64(take_of(0, &thousand, 40).status, DENIED); /* asks for 40, and no lease */
    use_up(0, &thousand, 30);
    now_ns += 40 * MS;
    CHECK(take_of(0, &thousand, 40).allowed);
    CHECK_U64(far_granted, 1040);
}

static void others_take_980(void)
{
    take_from_one(980);
}

static void a_lease_that_brings_nothing_is_a_refusal(void)
{
    ratelimit_result res;
    fresh(50);
    CHECK(take_of(0, &thousand, 20).allowed);
    far_first = others_take_980;
    res = take_of(0, &thousand, 40);
    CHECK_U64(res.source, STORED);
    CHECK_U64(res.status, DENIED);
    CHECK_U64(res.retry_after_ns, 40 * MS);
    CHECK_U64(take_of(0, &thousand, 40).source, CACHED);
    CHECK_U64(take_of(0, &thousand, 40).retry_after_ns, 40 * MS);
    CHECK_U64(take_of(0, &thousand, 1).retry_after_ns, 1 * MS);
}

static void all_that_is_no_take_goes_to_the_store(void)
{
    static const ratelimit_op ops[] = {RATELIMIT_PEEK, RATELIMIT_TAKE_UP_TO, RATELIMIT_RESERVE,
                                       RATELIMIT_CHARGE};
    ratelimit_request req[2];
    ratelimit_result res[2];
    size_t i;
    for (i = 0; i < COUNT(ops); i++) {
        uint64_t calls;
        fresh(50);
        heat(0, &thousand);
        calls = far_calls;
        CHECK_U64(op_of(0, "key", &thousand, ops[i], 1).source, STORED);
        CHECK_U64(far_calls, calls + 1);
        CHECK_U64(take_of(0, &thousand, 1).source, LEASED); /* which it leaves alone */
    }
    fresh(50);
    heat(0, &thousand);
    req[0] = request_of("key", &thousand, RATELIMIT_TAKE, 499); /* all that the lease has left */
    req[1] = request_of("other", &thousand, RATELIMIT_TAKE, 1);
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed && res[0].source == STORED);
    CHECK_U64(far_granted, 501 + 499);
}

static void a_changed_limit_ends_a_lease(void)
{
    static const ratelimit_limit limits[] = {RATELIMIT_LIMIT_SCOPE(1000, SEC, 1000, 1),
                                             RATELIMIT_LIMIT_SCOPE(1000, SEC, 600, 1),
                                             RATELIMIT_LIMIT_SCOPE(500, SEC, 1000, 1)};
    size_t i;
    for (i = 1; i < COUNT(limits); i++) {
        fresh(50);
        heat(0, &limits[0]);
        CHECK_U64(take_of(0, &limits[0], 1).source, LEASED);
        CHECK(take_of(0, &limits[i], 1).source == STORED);
        CHECK(take_of(0, &limits[0], 1).source == STORED); /* and it does not come back */
    }
}

static void a_block_or_reset_of_ones_own_ends_a_lease_at_once(void)
{
    fresh(50);
    heat(0, &thousand);
    CHECK(op_of(0, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
    CHECK(!take_of(0, &thousand, 1).allowed);
    CHECK(op_of(0, "key", &thousand, RATELIMIT_RESET, 0).allowed);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).remaining, 1000);
    heat(0, &thousand);
    CHECK(op_of(0, "key", &thousand, RATELIMIT_RESET, 0).allowed);
    CHECK_U64(take_of(0, &thousand, 1000).source, STORED); /* nothing of it is left to serve */
    CHECK(!take_of(0, &thousand, 1).allowed);
}

static void block_under_way(void)
{
    CHECK(op_of(0, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
}

static void a_lease_under_way_when_its_key_is_blocked_is_dropped(void)
{
    fresh(50);
    CHECK(take_of(0, &thousand, 1).allowed);
    far_hook = block_under_way;
    CHECK(take_of(0, &thousand, 1).allowed); /* was decided before the block */
    CHECK_U64(far_granted, 501);             /* it was a lease */
    CHECK(!take_of(0, &thousand, 1).allowed);
}

static void lease_first(void)
{
    (void)take_of(0, &thousand, 1);
}

static void take_all_first(void)
{
    (void)take_of(0, &hourly, 9);
}

static void refund_under_way(void)
{
    CHECK(op_of(0, "key", &hourly, RATELIMIT_REFUND, 10).allowed);
}

/* What was asked before it, also while it was on its way, was decided before it. */
static void a_block_reset_or_refund_ends_what_was_asked_before_it(void)
{
    static const ratelimit_op gives[] = {RATELIMIT_RESET, RATELIMIT_REFUND};
    size_t i;
    fresh(50);
    CHECK(take_of(0, &thousand, 1).allowed);
    far_first = lease_first;
    CHECK(op_of(0, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
    CHECK(!take_of(0, &thousand, 1).allowed);
    for (i = 0; i < COUNT(gives); i++) {
        fresh(0);
        CHECK(take_of(0, &hourly, 1).allowed);
        far_first = take_all_first;
        CHECK(op_of(0, "key", &hourly, gives[i], 10).allowed);
        CHECK(take_of(0, &hourly, 10).allowed);
    }
    fresh(0);
    CHECK(take_of(0, &hourly, 8).allowed);
    far_hook = refund_under_way;
    CHECK(take_of(0, &hourly, 2).allowed);
    CHECK(take_of(0, &hourly, 10).allowed);
}

static void cancel_under_way(void)
{
    ratelimit_request req = request_of("key", &ten, RATELIMIT_CANCEL, 5);
    req.max_wait_ns = 500 * MS;
    CHECK_U64(ask_node(0, &req).taken, 5);
}

/* A cancelled reservation makes room, as a refund does. */
static void a_cancelled_reservation_ends_a_refusal(void)
{
    ratelimit_request req = request_of("key", &ten, RATELIMIT_CANCEL, 5);
    req.max_wait_ns = 500 * MS;
    fresh(0);
    CHECK(take_of(0, &ten, 10).allowed);
    CHECK_U64(op_of(0, "key", &ten, RATELIMIT_RESERVE, 5).wait_ns, 500 * MS);
    CHECK_U64(take_of(0, &ten, 1).retry_after_ns, 100 * MS); /* what was known before */
    CHECK_U64(ask_node(0, &req).taken, 5);
    CHECK_U64(take_of(0, &ten, 1).source, STORED);
    fresh(0);
    CHECK(take_of(0, &ten, 10).allowed);
    now_ns += 100 * MS;
    CHECK_U64(op_of(0, "key", &ten, RATELIMIT_RESERVE, 6).wait_ns, 500 * MS);
    far_hook = cancel_under_way;
    CHECK(!take_of(0, &ten, 1).allowed); /* decided before the cancel, told after it */
    CHECK_U64(take_of(0, &ten, 1).source, STORED);
}

/* The same batch: what follows a reset there must not be answered from before it. */
static void what_follows_a_reset_in_its_batch_is_asked(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh(0);
    CHECK(take_of(0, &hourly, 10).allowed);
    CHECK_U64(take_of(0, &hourly, 1).source, CACHED);
    req[0] = request_of("key", &hourly, RATELIMIT_RESET, 0);
    req[1] = request_of("key", &hourly, RATELIMIT_TAKE, 10);
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_EACH);
    CHECK(res[0].allowed && res[1].allowed);
    CHECK(!take_of(0, &hourly, 1).allowed);
}

static void a_block_elsewhere_is_seen_within_a_leases_life(void)
{
    fresh(50);
    heat(0, &thousand);
    CHECK(op_of(1, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    now_ns += SEC;
    CHECK(!take_of(0, &thousand, 1).allowed);
    /* or when the store is asked for more than the lease holds */
    fresh(50);
    heat(0, &thousand);
    CHECK(op_of(1, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
    CHECK(!take_of(0, &thousand, 500).allowed);
    CHECK_U64(take_of(0, &thousand, 1).source, CACHED);
}

static void a_lease_outlives_the_refusal_of_more_than_it_holds(void)
{
    fresh(10);
    heat(0, &thousand);
    CHECK(take_of(1, &thousand, 899).allowed);
    CHECK_U64(take_of(0, &thousand, 100).status, DENIED);
    use_up(0, &thousand, 99);
    CHECK(!take_of(0, &thousand, 1).allowed);
}

static void fixed_windows_are_not_leased(void)
{
    int i;
    fresh(50);
    for (i = 0; i < 100; i++)
        CHECK_U64(take_of(0, &window, 1).source, STORED);
    CHECK_U64(far_granted, 100);
    CHECK_U64(take_of(0, &window, 1).source, CACHED);
}

/* Tokens paid for in one window were served in the next. */
static void a_window_never_passes_more_than_its_tokens_at_its_end(void)
{
    uint64_t i, passed = 0;
    fresh(50);
    tiers[0].lease_ns = tiers[0].trust_ns = MINUTE;
    skew_ns = 9990 * MS; /* 10 ms to the end */
    for (i = 0; i < 20; i++)
        CHECK(take_of(0, &window, 1).allowed);
    slow_ns = 20 * MS; /* the answers come in the next one */
    (void)take_of(0, &window, 50);
    slow_ns = 0;
    now_ns += 20 * MS;
    for (i = 0; i < 200; i++)
        passed += take_of(0, &window, 1).taken;
    CHECK(passed <= 100);
}

/* Several nodes, uneven demand, costs of 1 to 3. What has passed at a time t since the start is
 * compared exactly: passed x per <= burst x per + tokens x t. For a span from any earlier time, at
 * most the leases come on top. */
static void spans_hold(const ratelimit_limit *limit, uint32_t percent, uint64_t pace_ns)
{
    uint64_t passed = 0, start, i, turns = SHORT ? 20000 : 100000;
    uint64_t cap = limit->burst * percent / 100;
    int64_t low = 0, high = 0;
    fresh(percent);
    skew_ns = 5 * SEC;
    start = now_ns;
    for (i = 0; i < turns; i++) {
        uint64_t at = check_below(100);
        int64_t excess;
        now_ns += check_below(500) ? check_below(pace_ns) : check_below(3 * SEC);
        passed += take_of(at < 70   ? 0
                          : at < 90 ? 1
                          : at < 97 ? 2
                                    : 3,
                          limit, check_below(10) ? 1 : 1 + check_below(3))
                      .taken;
        excess = (int64_t)(passed * limit->per_ns - limit->tokens * (now_ns - start));
        CHECK(excess <= (int64_t)(limit->burst * limit->per_ns));
        high = excess - low > high ? excess - low : high;
        low = excess < low ? excess : low;
        CHECK(passed <= far_granted);
    }
    CHECK(high <= (int64_t)((limit->burst + NODES * (cap > 1 ? cap : 0)) * limit->per_ns));
}

static void all_nodes_together_never_pass_more_than_the_limit(void)
{
    static const uint32_t percents[] = {0, 1, 2, 5, 10, 25, 50, 100};
    size_t i;
    for (i = 0; i < COUNT(percents); i++) {
        spans_hold(&thousand, percents[i], MS / 2);    /* four times the rate */
        spans_hold(&thousand, percents[i], 2200 * US); /* nine tenths of it */
        spans_hold(&sevenths, percents[i], 100 * MS);
        if (SHORT)
            i++;
    }
}

/* In no window more than its tokens: exact, by the store's clock. */
static void all_nodes_together_never_pass_more_than_a_window_holds(void)
{
    static const uint32_t percents[] = {0, 5, 25, 100};
    size_t i;
    for (i = 0; i < COUNT(percents); i++) {
        uint64_t turn, passed = 0, which = 0, most = 0;
        fresh(percents[i]);
        skew_ns = 1234567890;
        for (turn = 0; turn < (SHORT ? 20000u : 100000u); turn++) {
            uint64_t this_one;
            now_ns += check_below(100) ? check_below(100 * MS) : check_below(3 * SEC);
            this_one = (now_ns + skew_ns) / window.per_ns;
            if (this_one != which)
                passed = 0;
            which = this_one;
            passed += take_of((size_t)check_below(NODES), &window, 1 + check_below(2)).taken;
            most = passed > most ? passed : most;
        }
        CHECK(most <= 100);
        CHECK(most == 100);
    }
}

static void little_is_lost_to_leases_below_the_limit(void)
{
    uint64_t i, refused = 0;
    fresh(10);
    for (i = 0; i < 50000; i++, now_ns += 1250 * US) { /* 800 per second over four nodes */
        uint64_t at = check_below(100);
        refused += !take_of(at < 70 ? 0 : at < 90 ? 1 : at < 97 ? 2 : 3, &thousand, 1).allowed;
    }
    CHECK(refused < 500);
    CHECK(far_calls < 50000 / 8);
}

static void an_idle_node_holds_one_lease_at_most(void)
{
    uint64_t taken = 0, i, k;
    fresh(30);
    for (k = 0; k < 50; k++) {
        for (i = 0; i < 20; i++, now_ns += 17 * US)
            taken += take_of(0, &thousand, 1 + check_below(5)).taken;
        CHECK(far_granted - taken <= 300);
    }
}

/* Worker processes may share a table: what one has leased, another serves, and what one was refused
 * all are. */
static void tiers_that_share_a_table_are_one_node(void)
{
    uint64_t i, passed = 0;
    fresh(10);
    tiers[1].table = tiers[0].table;
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(take_of(1, &thousand, 1).source, STORED);
    for (i = 0; i < 99; i++)
        CHECK_U64(take_of(i % 2, &thousand, 1).source, LEASED);
    CHECK_U64(far_granted, 101);
    CHECK(take_of(2, &thousand, 899).allowed);
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(take_of(1, &thousand, 1).source, CACHED);
    fresh(0);
    tiers[1].table = tiers[0].table;
    tiers[0].nodes = tiers[1].nodes = 2;
    far_fails = true;
    for (i = 0; i < 100; i++)
        passed += take_of(i % 2, &ten, 1).allowed;
    CHECK_U64(passed, 5);
}

/* ---- a store that fails */

/* One master of a cluster was dead, and the tier left the whole store alone: all other keys had no
 * limits any more. */
static void a_key_whose_server_is_dead_takes_nothing_from_other_keys(void)
{
    int i;
    fresh(0);
    far_fails_key = "dead";
    for (i = 0; i < 1000; i++, now_ns += MS) {
        ratelimit_result res = op_of(0, "dead", &thousand, RATELIMIT_TAKE, 1);
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        CHECK(!res.allowed && res.source == STORED);
        CHECK_U64(take_of(0, &thousand, 1).status, OK);
    }
    CHECK_U64(far_granted, 1000);
    CHECK_U64(counts(0).stored, 1000);
    CHECK_U64(counts(0).failed, 1000);
    CHECK_U64(counts(0).failures, 1000);
    CHECK_U64(counts(0).calls, 2000);
    far_fails_key = NULL;
    CHECK_U64(op_of(0, "dead", &thousand, RATELIMIT_TAKE, 1).status, OK); /* at once */
}

/* Never here, but perhaps when the store is back. */
static void more_than_a_share_is_not_told_never(void)
{
    uint64_t n;
    fresh(0);
    tiers[0].nodes = 2;
    far_fails = true;
    for (n = 5; n <= 11; n++) {
        ratelimit_result res = op_of(0, n == 5 ? "a" : "b", &ten, RATELIMIT_TAKE, n);
        CHECK(res.allowed == (n == 5));
        CHECK_U64(res.burst, 10);
        CHECK_U64(res.retry_after_ns, n <= 10 ? 0 : FOREVER);
    }
}

static void one_failed_answer_among_others_fails_alone(void)
{
    ratelimit_request req[3];
    ratelimit_result res[3];
    fresh(0);
    tiers[0].nodes = 2;
    req[0] = request_of("a", &ten, RATELIMIT_TAKE, 1);
    req[1] = request_of("b", &ten, RATELIMIT_TAKE, 1);
    req[2] = request_of("c", &ten, RATELIMIT_TAKE, 1);
    far_fails_key = "b";
    nodes[0].decide(&nodes[0], req, res, 3, RATELIMIT_EACH);
    CHECK_U64(res[0].source, STORED);
    CHECK_U64(res[1].source, LOCAL);
    CHECK_U64(res[1].status, RATELIMIT_STORE_FAILED);
    CHECK_U64(res[1].burst, 10); /* what clients know, though 5 are for this node */
    CHECK_U64(res[1].remaining, 4);
    CHECK_U64(res[2].source, STORED);
    CHECK_U64(counts(0).stored, 2);
    CHECK_U64(counts(0).fallback, 1);
    CHECK_U64(counts(0).failures, 0);
}

static void a_lease_asked_for_when_the_store_fails_is_gone_but_not_leasing(void)
{
    fresh(50);
    CHECK(take_of(0, &thousand, 1).allowed);
    far_fails = true;
    CHECK_U64(take_of(0, &thousand, 1).status, RATELIMIT_STORE_FAILED);
    far_fails = false;
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 2);
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 502);
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
}

static void a_lease_outlives_takes_that_fail(void)
{
    fresh(10);
    heat(0, &thousand);
    far_fails = true;
    CHECK_U64(take_of(0, &thousand, 900).status, RATELIMIT_STORE_FAILED);
    use_up(0, &thousand, 90);
    CHECK_U64(take_of(0, &thousand, 50).status, RATELIMIT_STORE_FAILED); /* asked for a lease */
    use_up(0, &thousand, 9);
    CHECK_U64(take_of(0, &thousand, 1).status, RATELIMIT_STORE_FAILED);
}

static void what_is_known_goes_on_while_the_store_is_down(void)
{
    fresh(50);
    CHECK(op_of(0, "full", &ten, RATELIMIT_TAKE, 10).allowed);
    heat(0, &thousand);
    far_fails = true;
    CHECK_U64(op_of(0, "full", &ten, RATELIMIT_TAKE, 1).source, CACHED);
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
}

static void the_limiters_policy_decides_if_the_tier_does_not(void)
{
    static const struct {
        ratelimit_failure policy;
        uint32_t nodes;
        bool first, second;
        ratelimit_source source;
    } rows[] = {{RATELIMIT_FAIL_OPEN, 0, true, true, RATELIMIT_FROM_POLICY},
                {RATELIMIT_FAIL_CLOSED, 0, false, false, RATELIMIT_FROM_POLICY},
                {RATELIMIT_FAIL_OPEN, 10, true, false, LOCAL},
                {RATELIMIT_FAIL_CLOSED, 10, true, false, LOCAL},
                {RATELIMIT_FAIL_OPEN, 100, true, false, LOCAL}};
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_limiter limiter;
        ratelimit_request req;
        ratelimit_result res;
        memset(&limiter, 0, sizeof limiter);
        memset(&req, 0, sizeof req);
        fresh(0);
        tiers[0].nodes = rows[i].nodes;
        limiter.on_failure = rows[i].policy;
        CHECK(ratelimit_init(&limiter, nodes[0]) == OK);
        far_fails = true;
        req.key = "key";
        req.key_len = 3;
        req.limit = &ten;
        req.n = 1;
        CHECK(ratelimit_take(&limiter, &req, &res) == rows[i].first);
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res.source, rows[i].source);
        CHECK(ratelimit_take(&limiter, &req, &res) == rows[i].second);
        CHECK(ratelimit_take_all(&limiter, &req, &res, 1) == rows[i].second);
        CHECK_U64(limiter.counts.failed, 3);
        ratelimit_close(&limiter);
        CHECK(far_closed);
    }
}

static bool no_sleep(void *self, uint64_t ns)
{
    (void)self, (void)ns;
    return false;
}

/* The reservation is the tier's: there is no fallback of the limiter's to give it back to, and the
 * store, which may be up again, never had it. */
static void a_wait_on_a_local_bucket_can_be_cancelled(void)
{
    ratelimit_limiter limiter;
    ratelimit_request req;
    ratelimit_result res;
    memset(&limiter, 0, sizeof limiter);
    memset(&req, 0, sizeof req);
    fresh(0);
    tiers[0].nodes = 10;
    limiter.sleep = no_sleep;
    CHECK(ratelimit_init(&limiter, nodes[0]) == OK);
    far_fails = true;
    req.key = "key";
    req.key_len = 3;
    req.limit = &ten;
    req.n = 1;
    CHECK(ratelimit_wait(&limiter, &req, MINUTE, &res)); /* it is there */
    CHECK(!ratelimit_wait(&limiter, &req, MINUTE, &res));
    CHECK_U64(res.status, RATELIMIT_CANCELED);
    CHECK_U64(far_calls, 2); /* and no third one, to give back */
}

static void local_buckets_share_the_limit_and_start_from_what_is_known(void)
{
    uint64_t passed = 0, start;
    size_t i;
    ratelimit_result res;
    fresh(0);
    for (i = 0; i < NODES; i++)
        tiers[i].nodes = NODES;
    CHECK(take_of(0, &thousand, 600).allowed);
    for (i = 0; i < 2; i++)
        CHECK_U64(take_of(i, &thousand, 401).status, DENIED); /* now both know that 600 are owed */
    far_fails = true;
    res = op_of(0, "key", &thousand, RATELIMIT_PEEK, 1);
    CHECK_U64(res.source, LOCAL);
    CHECK_U64(res.burst, 1000);
    CHECK_U64(res.remaining, 100); /* a quarter of 400 */
    CHECK_U64(op_of(1, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 100);
    CHECK_U64(op_of(2, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 250); /* knows nothing */
    start = now_ns;
    for (i = 0; i < 100000; i++, now_ns += 100 * US)
        passed += take_of(i % NODES, &thousand, 1).taken;
    CHECK(passed <= 100 + 100 + 250 + 250 + (now_ns - start) / MS);
    CHECK(passed + 10 >= 100 + 100 + 250 + 250 + (now_ns - start) / MS);
    CHECK(counts(0).fallback >= 25000);
    far_fails = false;
    now_ns += 6 * SEC;
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    /* a second outage is no second burst: what the store said meanwhile counts */
    CHECK(take_of(0, &thousand, 999).allowed);
    CHECK(!take_of(0, &thousand, 999).allowed);
    far_fails = true;
    now_ns += SEC / 2;
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 125);
    CHECK(op_of(0, "key", &thousand, RATELIMIT_RESET, 0).allowed);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 250);
}

/* The bound that the interface states: in one outage a node passes at most burst / nodes, at least
 * 1, and rate / nodes x time. */
static void an_outage_passes_no_more_than_it_is_said_to(void)
{
    static const uint32_t shares[] = {1, 2, 4, 7, 2000};
    static const ratelimit_limit *const limits[] = {&ten, &sevenths, &thousand};
    size_t i, j;
    for (i = 0; i < COUNT(shares); i++)
        for (j = 0; j < COUNT(limits); j++) {
            const ratelimit_limit *l = limits[j];
            uint64_t k, passed = 0, start, burst = l->burst / shares[i] ? l->burst / shares[i] : 1;
            fresh(50);
            tiers[0].nodes = shares[i];
            for (k = 0; k < 50; k++)
                (void)take_of(0, l, 1 + check_below(3));
            far_fails = true;
            now_ns += 2 * SEC; /* leases are over */
            start = now_ns;
            for (k = 0; k < 5000; k++) {
                uint64_t due;
                now_ns += check_below(5 * MS);
                passed += take_of(0, l, 1 + check_below(3)).taken;
                due = (now_ns - start) * l->tokens / l->per_ns / shares[i] + 1;
                CHECK(passed <= burst + due);
            }
        }
}

#if RATELIMIT_PRIV_QUICK
/* A call that comes late: other keys were forgotten at a later time, perhaps this one, too. */
static void a_local_bucket_that_starts_from_a_refusal_begins_no_earlier_than_any_other(void)
{
    const ratelimit_limit tenth = ratelimit_limit_make(10, SEC, 10);
    int late;
    for (late = 0; late < 2; late++) {
        fresh(0);
        tiers[0].nodes = 1;
        CHECK(take_of(0, &tenth, 10).allowed);
        CHECK(!take_of(0, &tenth, 1).allowed);
        if (late)
            tiers[0].table->forgotten_ns = now_ns + 5 * SEC;
        far_fails = true;
        now_ns += SEC / 2;
        CHECK(take_of(0, &tenth, 1).source == LOCAL);
        CHECK(take_of(0, &tenth, 1).allowed == !late);
    }
}
#endif

static void a_blocked_key_is_blocked_on_local_buckets_if_that_is_known(void)
{
    fresh(0);
    tiers[0].nodes = 4;
    CHECK(op_of(0, "key", &ten, RATELIMIT_BLOCK, 0).allowed); /* 20 s */
    CHECK_U64(take_of(0, &ten, 1).retry_after_ns, 20 * SEC);
    far_fails = true;
    now_ns += 2 * SEC;
    CHECK(!take_of(0, &ten, 1).allowed);
    now_ns += 17 * SEC;
    CHECK(!take_of(0, &ten, 1).allowed);
    now_ns += 3 * SEC;
    CHECK(take_of(0, &ten, 1).allowed);
}

/* 10 of 4 nodes are 2 for each: what owes the whole burst owes those 2, and not 2 and a half. */
static void a_key_that_is_used_up_owes_its_share_and_no_more(void)
{
    fresh(0);
    tiers[0].nodes = 4;
    CHECK(take_of(0, &ten, 10).allowed);
    CHECK_U64(take_of(0, &ten, 1).status, DENIED);
    far_fails = true;
    CHECK_U64(op_of(0, "key", &ten, RATELIMIT_PEEK, 1).source, LOCAL);
    CHECK_U64(op_of(0, "key", &ten, RATELIMIT_PEEK, 1).retry_after_ns, 400 * MS);
    now_ns += SEC;
    CHECK(take_of(0, &ten, 2).allowed);
}

/* More than a node's share is refused there, but not for ever: the store may be back. */
static void more_than_a_share_is_refused_but_not_for_ever(void)
{
    ratelimit_result res;
    fresh(0);
    tiers[0].nodes = 4;
    far_fails = true;
    res = take_of(0, &ten, 3); /* 2 for this node */
    CHECK(!res.allowed);
    CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
    CHECK(res.retry_after_ns != FOREVER);
    CHECK(take_of(0, &ten, 2).allowed);
}

static void a_limit_that_changes_while_the_store_is_down_keeps_what_was_spent(void)
{
    static const ratelimit_limit limits[] = {RATELIMIT_LIMIT_SCOPE(1000, SEC, 1000, 1),
                                             RATELIMIT_LIMIT_SCOPE(500, SEC, 1000, 1)};
    fresh(0);
    tiers[0].nodes = NODES;
    far_fails = true;
    CHECK(take_of(0, &limits[0], 150).allowed);
    CHECK_U64(op_of(0, "key", &limits[1], RATELIMIT_PEEK, 1).remaining, 100);
}

static void local_windows_share_the_window(void)
{
    fresh(0);
    tiers[0].nodes = NODES;
    far_fails = true;
    CHECK_U64(op_of(0, "key", &window, RATELIMIT_PEEK, 1).remaining, 25);
    CHECK(take_of(0, &window, 25).allowed);
    CHECK(!take_of(0, &window, 1).allowed);
    now_ns += 10 * SEC;
    CHECK(take_of(0, &window, 25).allowed);
}

/* ---- batches */

static void a_batch_asks_once_for_what_is_not_known(void)
{
    ratelimit_request req[100];
    ratelimit_result res[100];
    char keys[100][4];
    size_t i;
    fresh(0);
    memset(req, 0, sizeof req);
    for (i = 0; i < COUNT(req); i++) {
        snprintf(keys[i], sizeof keys[i], "%d", (int)i);
        req[i].key = keys[i];
        req[i].key_len = strlen(keys[i]);
        req[i].limit = &ten;
        req[i].n = 10;
    }
    nodes[0].decide(&nodes[0], req, res, 20, RATELIMIT_EACH);
    CHECK_U64(far_calls, 1);
    CHECK_U64(far_requests, 20);
    req[25].key_len = 0;
    req[26].limit = &bad;
    req[27].limit = &unlimited;
    req[28].n = 0;
    nodes[0].decide(&nodes[0], req, res, 30, RATELIMIT_EACH);
    CHECK_U64(far_calls, 2);
    CHECK_U64(far_requests, 26);
    for (i = 0; i < 30; i++)
        CHECK_U64(res[i].source, i < 20 ? CACHED : STORED);
    CHECK_U64(res[25].status, RATELIMIT_BAD_KEY);
    CHECK_U64(res[26].status, RATELIMIT_BAD_LIMIT);
    CHECK(res[27].allowed && res[27].burst == UINT64_MAX);
    CHECK_U64(res[28].status, RATELIMIT_BAD_COUNT);
    CHECK(res[29].allowed);
    req[25] = req[26] = req[27] = req[28] = req[29];
    fresh(0);
    nodes[0].decide(&nodes[0], req, res, 100, RATELIMIT_EACH);
    CHECK_U64(far_calls, (100 + RATELIMIT_MAX_ALL - 1) / RATELIMIT_MAX_ALL);
    CHECK_U64(far_requests, 100);
    for (i = 0; i < 100; i++)
        CHECK_U64(res[i].source, STORED);
}

static void all_or_none_of_one_is_a_take(void)
{
    ratelimit_request req = request_of("key", &ten, RATELIMIT_TAKE, 10);
    ratelimit_result res;
    fresh(0);
    nodes[0].decide(&nodes[0], &req, &res, 1, RATELIMIT_ALL);
    CHECK(res.allowed);
    nodes[0].decide(&nodes[0], &req, &res, 1, RATELIMIT_ALL);
    CHECK_U64(res.source, CACHED);
}

/* The second take of a key in one batch must see the first, and a reset before it. */
static void a_key_twice_in_a_batch_is_decided_in_order(void)
{
    ratelimit_request req[4];
    ratelimit_result res[4];
    size_t i;
    uint32_t percent;
    for (percent = 0; percent <= 100; percent += 50) {
        fresh(percent);
        for (i = 0; i < 4; i++)
            req[i] = request_of("key", &ten, RATELIMIT_TAKE, 5);
        req[2].op = RATELIMIT_RESET;
        nodes[0].decide(&nodes[0], req, res, 4, RATELIMIT_EACH);
        for (i = 0; i < 4; i++)
            CHECK(res[i].allowed);
        CHECK_U64(res[3].remaining, 5);
        req[2].op = RATELIMIT_TAKE;
        nodes[0].decide(&nodes[0], req, res, 4, RATELIMIT_EACH);
        CHECK(res[0].allowed && !res[1].allowed && !res[2].allowed && !res[3].allowed);
        req[1].op = RATELIMIT_REFUND;
        nodes[0].decide(&nodes[0], req, res, 3, RATELIMIT_EACH);
        CHECK(!res[0].allowed && res[1].allowed && res[2].allowed);
    }
}

static void all_or_none_is_decided_by_the_store(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh(50);
    req[0] = request_of("a", &ten, RATELIMIT_TAKE, 2);
    req[1] = request_of("b", &ten, RATELIMIT_TAKE, 10);
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(res[0].status, RATELIMIT_SKIPPED);
    CHECK_U64(res[0].retry_after_ns, SEC);
    CHECK_U64(res[1].status, DENIED);
    CHECK_U64(res[1].retry_after_ns, SEC);
    CHECK_U64(far_calls, 2);
    req[1].n = 11; /* never was told as denied with a wait */
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK_U64(res[1].status, RATELIMIT_NEVER);
    CHECK_U64(res[1].retry_after_ns, FOREVER);
    req[1].n = 0;
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK_U64(res[1].status, RATELIMIT_BAD_COUNT);
    CHECK(!res[0].allowed);
}

static void a_reset_in_all_or_none_ends_what_is_known(void)
{
    static const ratelimit_op gives[] = {RATELIMIT_RESET, RATELIMIT_REFUND};
    ratelimit_request req[2];
    ratelimit_result res[2];
    size_t i;
    for (i = 0; i < COUNT(gives); i++) {
        fresh(0);
        CHECK(take_of(0, &hourly, 10).allowed);
        CHECK_U64(take_of(0, &hourly, 1).source, CACHED);
        req[0] = request_of("key", &hourly, gives[i], 2);
        req[1] = request_of("key", &hourly, RATELIMIT_TAKE, 1);
        nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
        CHECK(res[0].allowed && res[1].allowed);
        CHECK(take_of(0, &hourly, 1).allowed);
    }
}

static void all_or_none_stays_so_while_the_store_is_down(void)
{
    ratelimit_request req[RATELIMIT_MAX_ALL + 1];
    ratelimit_result res[RATELIMIT_MAX_ALL + 1];
    size_t i;
    fresh(0);
    tiers[0].nodes = 2;
    far_fails = true;
    req[0] = request_of("a", &ten, RATELIMIT_TAKE, 3);
    req[1] = request_of("b", &ten, RATELIMIT_TAKE, 5);
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    CHECK_U64(res[0].source, LOCAL);
    CHECK_U64(res[0].status, RATELIMIT_STORE_FAILED);
    CHECK_U64(res[0].remaining, 2); /* 5 are for this node */
    CHECK_U64(res[1].remaining, 0);
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    req[0].n = 2;
    nodes[0].decide(&nodes[0], req, res, 1, RATELIMIT_ALL);
    CHECK(res[0].allowed);
    CHECK_U64(counts(0).fallback, 5);
    /* a part of a batch that failed is the batch */
    fresh(0);
    tiers[0].nodes = 2;
    far_fails_key = "b";
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed && res[0].source == LOCAL && res[1].source == LOCAL);
    fresh(0);
    far_fails = true; /* and there are no local buckets */
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(res[1].status, RATELIMIT_STORE_FAILED);
    CHECK_U64(counts(0).failed, 2);
    far_fails = false;
    far_fails_key = "b";
    nodes[0].decide(&nodes[0], req, res, 2, RATELIMIT_ALL);
    CHECK_U64(counts(0).failed, 4);
    tiers[0].nodes = 2;
    for (i = 0; i < COUNT(req); i++)
        req[i] = request_of("a", &unlimited, RATELIMIT_TAKE, 1);
    far_fails = true;
    nodes[0].decide(&nodes[0], req, res, COUNT(req), RATELIMIT_ALL);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    nodes[0].decide(&nodes[0], req, res, COUNT(req) - 1, RATELIMIT_ALL);
    CHECK_U64(res[0].status, RATELIMIT_STORE_FAILED);
    CHECK(res[0].allowed);
}

/* ---- begin and end, as an event loop uses them */

typedef struct asking {
    ratelimit_request req, sent;
    ratelimit_result res;
    ratelimit_priv_ask ask;
    uint64_t at_ns;
} asking;

/* True if it is answered at once. */
static bool begin(asking *a, uint64_t n)
{
    a->req = request_of("key", &thousand, RATELIMIT_TAKE, n);
    if (!ratelimit_priv_tier_begin(&tiers[0], &a->req, &a->res, 1, RATELIMIT_EACH, &a->at_ns,
                                   &a->ask))
        return true;
    a->sent = ratelimit_priv_tier_sent(&a->req, &a->ask);
    return false;
}

static void store_answers(asking *a)
{
    ratelimit_table_decide(far_table, &a->sent, &a->res, 1, RATELIMIT_EACH, now_ns);
}

static void end(asking *a)
{
    ratelimit_priv_tier_end(&tiers[0], &a->req, &a->res, 1, RATELIMIT_EACH, a->at_ns, &a->ask);
}

static void one_asks_for_a_lease_while_others_ask_for_themselves(void)
{
    asking a, b;
    fresh(50);
    CHECK(take_of(0, &thousand, 1).allowed);
    CHECK(!begin(&a, 1));
    CHECK(a.sent.op == RATELIMIT_TAKE_UP_TO && a.sent.n == 500);
    CHECK(!begin(&b, 2));
    CHECK(b.sent.op == RATELIMIT_TAKE && b.sent.n == 2);
    store_answers(&a);
    store_answers(&b);
    now_ns += MS;
    end(&b); /* which leaves the mark alone */
    CHECK(b.res.allowed && b.res.taken == 2);
    end(&a);
    CHECK(a.res.allowed && a.res.taken == 1);
    CHECK_U64(a.res.remaining, 499 + 499);
    use_up(0, &thousand, 499);
    /* what is left of a lease waits for the next one */
    fresh(10);
    CHECK(take_of(0, &thousand, 45).allowed);
    CHECK(take_of(0, &thousand, 45).allowed); /* 55 are left */
    CHECK_U64(take_of(0, &thousand, 45).source, LEASED);
    CHECK(!begin(&a, 45));
    CHECK_U64(a.sent.n, 100);
    CHECK_U64(take_of(0, &thousand, 5).source, STORED);
    store_answers(&a);
    end(&a);
    use_up(0, &thousand, 10 + 100 - 45);
}

static void who_gave_up_leaves_no_mark(void)
{
    asking a, b;
    fresh(50);
    CHECK(take_of(0, &thousand, 1).allowed);
    CHECK(!begin(&a, 1));
    ratelimit_priv_fail(&a.res, 1, RATELIMIT_CANCELED);
    end(&a);
    CHECK_U64(a.res.status, RATELIMIT_CANCELED);
    CHECK_U64(counts(0).stored, 1);
    CHECK(take_of(0, &thousand, 1).allowed); /* hot again */
    CHECK(!begin(&b, 1));
    CHECK_U64(b.sent.n, 500);
    store_answers(&b);
    end(&b);
    use_up(0, &thousand, 499);
}

/* The one that asks may die, or take for ever: its mark ends with the lease's time. */
static void a_mark_that_nobody_takes_back_ends_with_its_time(void)
{
    asking a, b;
    fresh(50);
    CHECK(take_of(0, &thousand, 1).allowed);
    CHECK(!begin(&a, 1));
    store_answers(&a);
    now_ns += SEC;
    CHECK(take_of(0, &thousand, 1).allowed);
    CHECK(!begin(&b, 1));
    CHECK_U64(b.sent.n, 500);
    end(&a); /* too late: its tokens are lost, but its request is served */
    CHECK(a.res.allowed && a.res.taken == 1);
    store_answers(&b);
    end(&b);
    use_up(0, &thousand, 499);
    CHECK(!begin(&a, 1));
    ratelimit_priv_fail(&a.res, 1, RATELIMIT_STORE_FAILED);
    end(&a);
}

static void nothing_is_asked_of_a_tier_without_parts(void)
{
    ratelimit_result res[2];
    ratelimit_request req[2];
    ratelimit_tier none;
    ratelimit_store store;
    ratelimit_tier_counts c;
    memset(&none, 0, sizeof none);
    memset(req, 0, sizeof req);
    store = ratelimit_tier_store(&none);
    store.decide(&store, req, res, 2, RATELIMIT_EACH);
    CHECK_U64(res[1].status, RATELIMIT_BAD_ARGUMENT);
    store = ratelimit_tier_store(NULL);
    store.decide(&store, req, res, 2, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    fresh(0);
    none = tiers[0];
    none.table = NULL;
    store = ratelimit_tier_store(&none);
    store.decide(&store, req, res, 1, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    none = tiers[0];
    none.store.decide = NULL;
    store.decide(&store, req, res, 2, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    nodes[0].decide(&nodes[0], NULL, res, 2, RATELIMIT_EACH);
    CHECK_U64(res[1].status, RATELIMIT_BAD_ARGUMENT);
    nodes[0].decide(&nodes[0], req, res, 0, RATELIMIT_EACH);
    nodes[0].decide(&nodes[0], req, res, 2, (ratelimit_mode)7);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(far_calls, 0);
    memset(&c, 0xA5, sizeof c);
    ratelimit_tier_stats(NULL, &c);
    CHECK_U64(c.calls, 0);
    ratelimit_tier_stats(&tiers[0], NULL);
}

/* ---- clocks, memory, threads */

static void a_clock_set_back_costs_calls_and_no_wrong_answer(void)
{
    static const uint64_t steps[] = {1, MS, 500 * MS, 2 * SEC, 100 * SEC};
    size_t i;
    for (i = 0; i < COUNT(steps); i++) {
        uint64_t taken = 0, k;
        fresh(50);
        /* only the tier's clock is set back: the store's goes on */
        CHECK(op_of(0, "full", &ten, RATELIMIT_TAKE, 10).allowed);
        taken = heat(0, &thousand);
        now_ns -= steps[i];
        skew_ns += steps[i];
        CHECK_U64(op_of(0, "full", &ten, RATELIMIT_TAKE, 1).retry_after_ns, 100 * MS);
        for (k = 0; k < 3000; k++)
            taken += take_of(0, &thousand, 1).taken;
        CHECK(taken <= 1000);
        CHECK(taken >= 500);
        skew_ns += SEC;
        now_ns += SEC;
        CHECK(op_of(0, "full", &ten, RATELIMIT_TAKE, 10).allowed);
    }
}

static void times_near_the_top_are_times_like_any_other(void)
{
    uint64_t i, taken = 0;
    fresh(50);
    now_ns = UINT64_MAX - SEC - 1;
    for (i = 0; i < 10000; i++, now_ns += 100 * US)
        taken += take_of(0, &thousand, 1).taken;
    CHECK(taken <= 1000 + 999 + 1 && taken >= 1000 + 990);
    CHECK(far_calls < 1100);
}

static void a_small_table_costs_calls_and_no_wrong_answer(void)
{
    static const ratelimit_full policies[] = {RATELIMIT_EVICT, RATELIMIT_EVICT_LAST_SEEN,
                                              RATELIMIT_INHERIT, RATELIMIT_REFUSE};
    static unsigned char little[RATELIMIT_TABLE_BYTES(6)];
    size_t i;
    for (i = 0; i < COUNT(policies); i++) {
        uint64_t taken[40] = {0}, k, start;
        ratelimit_table_options options = {{3, 4}, RATELIMIT_EVICT, RATELIMIT_HASH_SIP, 0};
        options.when_full = policies[i];
        fresh(50);
        if (ratelimit_table_init(&tiers[0].table, little, sizeof little, &options) != OK)
            exit(2);
        start = now_ns;
        for (k = 0; k < 100000; k++, now_ns += 10 * US) {
            char key[2] = {0, 0};
            size_t which = (size_t)check_below(check_below(2) ? 4 : COUNT(taken));
            key[0] = (char)('A' + which);
            taken[which] += op_of(0, key, &ten, RATELIMIT_TAKE, 1).taken;
        }
        for (k = 0; k < COUNT(taken); k++)
            CHECK(taken[k] <= 10 + (now_ns - start) / (100 * MS));
        CHECK(taken[0] >= 14 && taken[39] >= 14);
    }
}

/* Where no debt may be forgotten, none is for what the tier wants to remember. */
static void an_entry_takes_the_place_of_no_debt_under_inherit(void)
{
    static unsigned char little[RATELIMIT_TABLE_BYTES(12)]; /* 24 places */
    ratelimit_table_options options = {{3, 4}, RATELIMIT_INHERIT, RATELIMIT_HASH_SIP, 0};
    char key[3] = "aa";
    int i, passed = 0;
    fresh(50);
    tiers[0].nodes = 1;
    if (ratelimit_table_init(&tiers[0].table, little, sizeof little, &options) != OK)
        exit(2);
    far_fails = true;
    for (i = 0; i < 30; i++) {
        key[0] = (char)('a' + i);
        (void)op_of(0, key, &hourly, RATELIMIT_TAKE, 10);
    }
    far_fails = false;
    for (i = 0; i < 200; i++, now_ns += 10 * MS) {
        key[0] = (char)('A' + i % 26);
        key[1] = (char)('A' + i / 26);
        (void)op_of(0, key, &ten, RATELIMIT_TAKE, 10);
    }
    far_fails = true;
    key[1] = 'a';
    for (i = 0; i < 24; i++) {
        key[0] = (char)('a' + i);
        passed += op_of(0, key, &hourly, RATELIMIT_TAKE, 1).allowed;
    }
    CHECK_U64(passed, 0);
}

static void a_lease_that_is_just_enough_serves(void)
{
    static const ratelimit_limit hundred = RATELIMIT_LIMIT(100, HOUR, 100);
    ratelimit_result res;
    fresh(50);
    CHECK(take_of(1, &hundred, 94).allowed);
    CHECK(take_of(0, &hundred, 1).allowed);
    res = take_of(0, &hundred, 5); /* asks for 50, and gets 5 */
    CHECK(res.allowed);
    CHECK_U64(res.taken, 5);
    CHECK_U64(far_granted, 100);
}

/* In a table full of debts a lease finds a place under EVICT, and none under INHERIT. */
static void a_lease_takes_the_place_of_a_debt_only_if_that_may_be_forgotten(void)
{
    static unsigned char little[RATELIMIT_TABLE_BYTES(12)]; /* 24 places */
    ratelimit_table_options options = {{3, 4}, RATELIMIT_EVICT, RATELIMIT_HASH_SIP, 0};
    char key[2] = "a";
    int i;
    for (i = 0; i < 2; i++) {
        options.when_full = i ? RATELIMIT_INHERIT : RATELIMIT_EVICT;
        fresh(50);
        tiers[0].nodes = 1;
        if (ratelimit_table_init(&tiers[0].table, little, sizeof little, &options) != OK)
            exit(2);
        far_fails = true;
        for (key[0] = 'a'; key[0] != 'a' + 30; key[0]++)
            (void)op_of(0, key, &hourly, RATELIMIT_TAKE, 10);
        far_fails = false;
        CHECK_U64(heat(0, &ten), 2);
        CHECK((take_of(0, &ten, 1).source == LEASED) == (i == 0));
    }
}

enum { THREADS = 4 };
static uint64_t threads_taken;

static void *thread_takes(void *self)
{
    static const ratelimit_limit million = RATELIMIT_LIMIT(1000, SEC, 1000000);
    uint64_t i, taken = 0, seed = *(const uint64_t *)self;
    for (i = 0; i < (SHORT ? 5000u : 50000u); i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        taken += take_of(0, &million, 1 + (seed >> 61)).taken;
        if (i % 97 == 0)
            (void)op_of(0, "other", &ten, (ratelimit_op)(seed >> 61), 1);
    }
    __atomic_fetch_add(&threads_taken, taken, __ATOMIC_RELAXED);
    return NULL;
}

static void run_threads(void *(*run)(void *self))
{
    pthread_t thread[THREADS];
    uint64_t seed[THREADS];
    size_t i;
    threads_taken = 0;
    for (i = 0; i < THREADS; i++) {
        seed[i] = check_random();
        if (pthread_create(&thread[i], NULL, run, &seed[i]) != 0)
            exit(2);
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

/* Time stands still: what the store gave is what was taken, and at most one lease. */
static void threads_serve_each_token_once(void)
{
    int round;
    for (round = 0; round < 20; round++) {
        uint64_t cap = round % 2 ? 100000 : 0;
        fresh(50);
        tiers[0].lease_percent = round % 2 ? 10 : 0;
        run_threads(thread_takes);
        CHECK(threads_taken <= far_granted);
        CHECK(far_granted <= 1000000);
        CHECK(far_granted - threads_taken <= cap);
    }
}

static void *thread_resets(void *self)
{
    uint64_t i, taken = 0, seed = *(const uint64_t *)self;
    for (i = 0; i < (SHORT ? 5000u : 50000u); i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        if (i % 61 == 0)
            (void)op_of(0, "key", &thousand, seed >> 63 ? RATELIMIT_BLOCK : RATELIMIT_RESET, 1);
        else
            taken += take_of(0, &thousand, 1 + (seed >> 62)).taken;
    }
    __atomic_fetch_add(&threads_taken, taken, __ATOMIC_RELAXED);
    return NULL;
}

/* Entries end all the time: whatever is served has been paid for. */
static void threads_that_end_leases_mint_nothing(void)
{
    int round;
    for (round = 0; round < 10; round++) {
        fresh(50);
        run_threads(thread_resets);
        CHECK(threads_taken <= far_granted);
    }
}

static void *thread_fails(void *self)
{
    uint64_t i, seed = *(const uint64_t *)self, answered = 0;
    for (i = 0; i < 5000; i++) {
        ratelimit_result res = take_of(0, &thousand, 1);
        answered += res.status != RATELIMIT_STORE_FAILED;
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        if (seed >> 55 == 0)
            __atomic_store_n(&far_fails, seed >> 50 & 1, __ATOMIC_RELAXED);
    }
    (void)answered;
    return NULL;
}

static void threads_are_counted_while_the_store_fails_at_times(void)
{
    int round;
    for (round = 0; round < 20; round++) {
        ratelimit_tier_counts c;
        fresh(0);
        tiers[0].nodes = 2;
        far_fails = true;
        run_threads(thread_takes);
        c = counts(0);
        CHECK(!EXACT || (c.calls == far_calls && c.failures == far_calls));
        CHECK(!EXACT || c.fallback == far_calls);
        CHECK_U64(c.stored, 0);
        CHECK(threads_taken <= 500000);
        fresh(50);
        run_threads(thread_fails);
        c = counts(0);
        CHECK(!EXACT || c.stored + c.leased + c.refused + c.failed == 5000 * THREADS);
    }
}

/* ---- what is saved */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double rate_of(const ratelimit_limit *limit, uint64_t n)
{
    uint64_t i;
    double start = seconds();
    for (i = 0; i < n; i++)
        (void)take_of(0, limit, 1);
    return (double)n / (seconds() - start);
}

static void print_what_is_saved(void)
{
    static const ratelimit_limit hot = RATELIMIT_LIMIT(1000000000, SEC, 10000);
    static const uint32_t percents[] = {1, 10};
    const uint64_t n = SHORT ? 100000 : 2000000;
    size_t i;
    double rate;
    fresh(0);
    (void)take_of(0, &ten, 10);
    tiers[0].clock = NULL;
    tiers[0].trust_ns = HOUR;
    now_ns = ratelimit_clock_ns();
    (void)take_of(0, &ten, 1);
    far_calls = 0;
    rate = rate_of(&ten, n);
    printf("refusals from the cache: %.1f million/s, %.3f calls of the store per 1000 decisions\n",
           rate / 1e6, (double)far_calls * 1000.0 / (double)n);
    for (i = 0; i < COUNT(percents); i++) {
        fresh(percents[i]);
        tiers[0].clock = NULL;
        skew_ns = 0;
        rate = 0;
        {
            uint64_t k;
            double start = seconds();
            for (k = 0; k < n; k++) {
                now_ns += 1000;
                (void)take_of(0, &hot, 1);
            }
            rate = (double)n / (seconds() - start);
        }
        printf("leases of %d tokens: %.1f million/s, %.3f calls of the store per 1000 decisions\n",
               (int)(hot.burst * percents[i] / 100), rate / 1e6,
               (double)far_calls * 1000.0 / (double)n);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    check_seed(42);
    RUN(a_refused_key_costs_no_calls_until_its_time_has_come);
    RUN(a_refused_dear_request_does_not_refuse_a_cheap_one);
    RUN(what_others_did_is_seen_when_the_trust_is_over);
    RUN(ones_own_reset_refund_block_and_charge_are_seen_at_once);
    RUN(an_answer_under_way_when_its_key_is_reset_is_not_believed);
    RUN(an_answer_that_was_overtaken_is_not_believed);
    RUN(a_slow_answer_does_not_refuse_longer);
    RUN(a_refusal_under_way_when_its_key_is_reset_is_not_believed);
    RUN(a_refusal_under_another_limit_does_not_count);
    RUN(two_limits_on_one_key_have_two_entries);
    RUN(one_node_answers_as_the_store_would);
    RUN(retry_after_of_the_same_request_is_exact_also_with_fractions);
    RUN(a_long_refusal_is_exact_to_the_ns);
    RUN(odd_answers_of_a_store_do_no_harm);
    RUN(a_used_up_window_is_refused_here_to_its_end_by_the_stores_clock);
    RUN(a_charge_into_the_next_window_does_not_refuse_what_fits_in_it);
    RUN(more_than_the_burst_is_never);
    RUN(a_key_in_demand_is_served_from_leases);
    RUN(a_lease_has_its_size);
    RUN(a_key_in_no_demand_is_not_leased);
    RUN(a_key_near_its_limit_is_not_leased);
    RUN(an_unused_lease_ends_with_its_time);
    RUN(a_small_burst_or_a_cost_as_large_as_the_lease_is_not_leased);
    RUN(what_a_lease_still_holds_counts_with_the_next);
    RUN(a_lease_that_does_not_do_is_kept_and_the_wait_is_told);
    RUN(a_lease_that_brings_nothing_is_a_refusal);
    RUN(all_that_is_no_take_goes_to_the_store);
    RUN(a_changed_limit_ends_a_lease);
    RUN(a_block_or_reset_of_ones_own_ends_a_lease_at_once);
    RUN(a_lease_under_way_when_its_key_is_blocked_is_dropped);
    RUN(a_block_reset_or_refund_ends_what_was_asked_before_it);
    RUN(a_cancelled_reservation_ends_a_refusal);
    RUN(what_follows_a_reset_in_its_batch_is_asked);
    RUN(a_block_elsewhere_is_seen_within_a_leases_life);
    RUN(a_lease_outlives_the_refusal_of_more_than_it_holds);
    RUN(fixed_windows_are_not_leased);
    RUN(a_window_never_passes_more_than_its_tokens_at_its_end);
    RUN(all_nodes_together_never_pass_more_than_the_limit);
    RUN(all_nodes_together_never_pass_more_than_a_window_holds);
    RUN(little_is_lost_to_leases_below_the_limit);
    RUN(an_idle_node_holds_one_lease_at_most);
    RUN(tiers_that_share_a_table_are_one_node);
    RUN(a_key_whose_server_is_dead_takes_nothing_from_other_keys);
    RUN(more_than_a_share_is_not_told_never);
    RUN(one_failed_answer_among_others_fails_alone);
    RUN(a_lease_asked_for_when_the_store_fails_is_gone_but_not_leasing);
    RUN(a_lease_outlives_takes_that_fail);
    RUN(what_is_known_goes_on_while_the_store_is_down);
    RUN(the_limiters_policy_decides_if_the_tier_does_not);
    RUN(a_wait_on_a_local_bucket_can_be_cancelled);
    RUN(local_buckets_share_the_limit_and_start_from_what_is_known);
    RUN(an_outage_passes_no_more_than_it_is_said_to);
#if RATELIMIT_PRIV_QUICK
    RUN(a_local_bucket_that_starts_from_a_refusal_begins_no_earlier_than_any_other);
#endif
    RUN(a_blocked_key_is_blocked_on_local_buckets_if_that_is_known);
    RUN(a_key_that_is_used_up_owes_its_share_and_no_more);
    RUN(more_than_a_share_is_refused_but_not_for_ever);
    RUN(a_limit_that_changes_while_the_store_is_down_keeps_what_was_spent);
    RUN(local_windows_share_the_window);
    RUN(a_batch_asks_once_for_what_is_not_known);
    RUN(all_or_none_of_one_is_a_take);
    RUN(a_key_twice_in_a_batch_is_decided_in_order);
    RUN(all_or_none_is_decided_by_the_store);
    RUN(a_reset_in_all_or_none_ends_what_is_known);
    RUN(all_or_none_stays_so_while_the_store_is_down);
    RUN(one_asks_for_a_lease_while_others_ask_for_themselves);
    RUN(who_gave_up_leaves_no_mark);
    RUN(a_mark_that_nobody_takes_back_ends_with_its_time);
    RUN(nothing_is_asked_of_a_tier_without_parts);
    RUN(a_clock_set_back_costs_calls_and_no_wrong_answer);
    RUN(times_near_the_top_are_times_like_any_other);
    RUN(a_small_table_costs_calls_and_no_wrong_answer);
    RUN(an_entry_takes_the_place_of_no_debt_under_inherit);
    RUN(a_lease_that_is_just_enough_serves);
    RUN(a_lease_takes_the_place_of_a_debt_only_if_that_may_be_forgotten);
    RUN(threads_serve_each_token_once);
    RUN(threads_that_end_leases_mint_nothing);
    RUN(threads_are_counted_while_the_store_fails_at_times);
    if (argc < 2)
        print_what_is_saved();
    return check_end();
}

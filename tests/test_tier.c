/* test_tier.c - the tier: refusals answered from what the store said last, leases, a store that
 * fails and comes back, batches, threads. Several nodes are several tiers over one table's store.
 * Time is the test's own. At the end it prints how much is saved; that is not a test. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK     RATELIMIT_OK
#define NODES  4
#define STORED RATELIMIT_FROM_STORE
#define LEASED RATELIMIT_FROM_LEASE
#define CACHED RATELIMIT_FROM_REFUSAL_CACHE
#define LOCAL  RATELIMIT_FROM_FALLBACK

static const ratelimit_limit ten = RATELIMIT_LIMIT(10, SEC, 10);
static const ratelimit_limit thousand = RATELIMIT_LIMIT(1000, SEC, 1000);
static const ratelimit_limit hourly = RATELIMIT_LIMIT(10, HOUR, 10);
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
static size_t far_fails_at; /* above 0: this one of the next batch only */
static void (*far_first)(void), (*far_hook)(void);

static void far_decide(void *self, const ratelimit_request *req, ratelimit_result *res,
                       size_t count, ratelimit_mode mode)
{
    void (*hook)(void) = far_hook, (*first)(void) = far_first;
    bool fails = __atomic_load_n(&far_fails, __ATOMIC_RELAXED);
    size_t i;
    (void)self;
    __atomic_fetch_add(&far_calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&far_requests, count, __ATOMIC_RELAXED);
    if (first) {
        far_first = NULL;
        first(); /* what another does while the question is on its way */
    }
    if (!fails)
        ratelimit_table_decide(far_table, req, res, count, mode, now_ns + skew_ns);
    for (i = 0; i < count; i++)
        if (fails || (far_fails_at && far_fails_at == i)) {
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

static void far_close(void *self)
{
    (void)self;
    far_closed = true;
}

static unsigned char memory[NODES][RATELIMIT_TABLE_BYTES(1024)];
static ratelimit_tier tiers[NODES];
static ratelimit_store nodes[NODES];

static void fresh(uint32_t lease_percent)
{
    static const ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0};
    size_t i;
    now_ns = 1000 * SEC;
    skew_ns = slow_ns = far_calls = far_requests = far_granted = 0;
    far_fails = far_closed = false;
    far_fails_at = 0;
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
    nodes[node].decide(nodes[node].self, req, &res, 1, RATELIMIT_EACH);
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
    CHECK_U64(res.limit, 10);
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
    res = take_of(0, &ten, 10);
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK_U64(res.source, CACHED);
    CHECK_U64(res.retry_after_ns, 500 * MS);
    CHECK(take_of(0, &ten, 5).allowed);
    CHECK_U64(far_calls, 2);
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

static void a_refusal_under_another_limit_does_not_count(void)
{
    static const ratelimit_limit twice = RATELIMIT_WINDOW(200, 20 * SEC);
    fresh(0);
    CHECK(take_of(0, &window, 100).allowed);
    CHECK_U64(take_of(0, &window, 1).source, CACHED);
    CHECK_U64(take_of(0, &twice, 200).source, STORED);
    CHECK(take_of(1, &ten, 10).source == STORED);
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
}

/* One node, no leases: whatever is asked, the answers are those of the store itself. */
static void one_node_answers_as_the_store_would(void)
{
    static const ratelimit_limit *const limits[] = {&ten, &sevenths, &thousand, &window};
    static unsigned char twin_memory[RATELIMIT_TABLE_BYTES(1024)];
    static const ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0};
    ratelimit_table *twin;
    uint64_t i, turns = SHORT ? 20000 : 200000;
    uint64_t cached = 0;
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
        req.op = check_below(4) ? RATELIMIT_TAKE : (ratelimit_op)check_below(8);
        if (req.op >= RATELIMIT_BLOCK && check_below(20))
            req.op = RATELIMIT_TAKE;
        req.n = check_below(8) ? 1 + check_below(4) : check_below(limits[which]->burst + 3);
        req.max_wait_ns = check_below(3 * SEC);
        now_ns += check_below(3) ? check_below(3 * MS) : check_below(300 * MS);
        got = ask_node(0, &req);
        ratelimit_table_decide(twin, &req, &want, 1, RATELIMIT_EACH, now_ns + skew_ns);
        cached += got.source == CACHED;
        CHECK(got.allowed == want.allowed && got.status == want.status);
        CHECK(got.limit == want.limit && got.taken == want.taken && got.wait_ns == want.wait_ns);
        CHECK_U64(got.reset_after_ns, want.reset_after_ns);
        /* What is known of a debt with a fraction of a ns is up to one less than it is. */
        CHECK(got.remaining == want.remaining ||
              (!whole && got.source == CACHED && got.remaining == want.remaining + 1));
        CHECK(got.retry_after_ns == want.retry_after_ns ||
              (!whole && got.source == CACHED && got.retry_after_ns + 1 == want.retry_after_ns));
    }
    CHECK(cached > turns / 20);
    CHECK_U64(cached, counts(0).refused);
    CHECK(far_calls < turns);
}

static void retry_after_of_the_same_request_is_exact_also_with_fractions(void)
{
    int i;
    ratelimit_result first, res;
    fresh(0);
    CHECK(take_of(1, &sevenths, 50).allowed);
    now_ns += 1001;
    first = take_of(0, &sevenths, 2);
    CHECK_U64(first.source, STORED);
    for (i = 0; i < 100; i++) {
        now_ns += 1000003;
        res = take_of(0, &sevenths, 2);
        CHECK_U64(res.source, CACHED);
        CHECK_U64(res.retry_after_ns, first.retry_after_ns - ((uint64_t)i + 1) * 1000003);
    }
    now_ns += res.retry_after_ns - 1;
    CHECK(!take_of(0, &sevenths, 2).allowed);
    now_ns++;
    CHECK(take_of(0, &sevenths, 2).allowed);
}

static void a_used_up_window_is_refused_here_to_its_end_by_the_stores_clock(void)
{
    ratelimit_result res;
    fresh(0);
    tiers[0].trust_ns = MINUTE;
    skew_ns = 3 * SEC; /* 7 s to the end */
    CHECK(take_of(0, &window, 60).allowed);
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

/* ---- leases */

/* Asks until a lease of 32 has been taken; returns how many tokens were. */
static uint64_t heat(size_t node, const ratelimit_limit *limit)
{
    uint64_t taken = 0, before = far_calls;
    while (far_calls < before + 6)
        taken += take_of(node, limit, 1).taken;
    return taken;
}

static void a_key_in_demand_is_served_from_leases(void)
{
    static const ratelimit_limit fast = RATELIMIT_LIMIT(1000000, SEC, 1000000);
    uint64_t i;
    ratelimit_result res;
    fresh(1); /* 10,000 */
    for (i = 0; i < 200000; i++, now_ns += 1000) {
        res = take_of(0, &fast, 1);
        CHECK(res.allowed);
        CHECK_U64(res.taken, 1);
    }
    CHECK(far_calls < 14 + 200000 / 10000 + 2);
    CHECK_U64(counts(0).leased + counts(0).stored, 200000);
    CHECK_U64(counts(0).stored, far_calls);
    CHECK(far_granted - 200000 <= 10000);
}

static void a_key_in_no_demand_is_not_leased(void)
{
    int i;
    fresh(50);
    for (i = 0; i < 20; i++, now_ns += 300 * MS)
        CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 20);
    heat(0, &thousand);
    now_ns += 2 * SEC; /* all is forgotten */
    far_granted = 0;
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    CHECK_U64(far_granted, 1);
}

static void a_lease_shrinks_when_it_lasts_long(void)
{
    uint64_t i, granted = 0, largest = 0;
    fresh(50);
    heat(0, &thousand);
    for (i = 0; i < 400; i++, now_ns += 25 * MS) { /* 40 per second */
        granted = far_granted;
        CHECK(take_of(0, &thousand, 1).allowed);
        if (i > 200)
            largest = far_granted - granted > largest ? far_granted - granted : largest;
    }
    CHECK(largest >= 2 && largest <= 16);
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
}

static void a_small_burst_or_a_cost_above_the_lease_is_not_leased(void)
{
    int i;
    fresh(10);
    for (i = 0; i < 10; i++)
        CHECK(take_of(0, &ten, 1).allowed); /* a tenth of 10 */
    CHECK_U64(far_calls, 10);
    CHECK_U64(far_granted, 10);
    fresh(10);
    for (i = 0; i < 9; i++)
        CHECK_U64(take_of(0, &thousand, 101).source, STORED);
    CHECK_U64(far_granted, 909);
}

static void a_larger_request_counts_what_the_lease_holds(void)
{
    uint64_t taken, held;
    ratelimit_result res;
    fresh(50);
    taken = heat(0, &thousand);
    held = far_granted - taken;
    CHECK_U64(held, 31);
    res = take_of(0, &thousand, 1000 - taken + 1);
    CHECK(!res.allowed);
    CHECK_U64(res.retry_after_ns, MS);
    CHECK_U64(res.remaining, 1000 - taken);
    res = take_of(0, &thousand, 1000 - taken);
    CHECK(res.allowed);
    CHECK_U64(res.remaining, 0);
    CHECK_U64(far_granted, 1000);
    CHECK_U64(take_of(0, &thousand, 1).source, CACHED);
}

static void peek_take_up_to_and_reserve_know_the_lease(void)
{
    uint64_t taken, calls;
    fresh(50);
    taken = heat(0, &thousand);
    calls = far_calls;
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).remaining, 1000 - taken);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 10).source, LEASED);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_TAKE_UP_TO, 10).taken, 10);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_RESERVE, 10).taken, 10);
    CHECK_U64(far_calls, calls);
    taken += 20;
    CHECK(op_of(0, "key", &thousand, RATELIMIT_PEEK, 1000 - taken).allowed);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 1000 - taken).remaining, 1000 - taken);
    CHECK(!op_of(0, "key", &thousand, RATELIMIT_PEEK, 1000 - taken + 1).allowed);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_TAKE_UP_TO, 5000).taken, 1000 - taken);
    CHECK_U64(far_granted, 1000);
}

static void a_changed_limit_ends_a_lease(void)
{
    static const ratelimit_limit less = RATELIMIT_LIMIT(1000, SEC, 600);
    static const ratelimit_limit slower = RATELIMIT_LIMIT(500, SEC, 1000);
    fresh(50);
    heat(0, &thousand);
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    CHECK(take_of(0, &less, 1).source != LEASED);
    fresh(50);
    heat(0, &thousand);
    CHECK(take_of(0, &slower, 1).source != LEASED);
}

static void a_block_or_reset_of_ones_own_ends_a_lease_at_once(void)
{
    fresh(50);
    heat(0, &thousand);
    CHECK(op_of(0, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
    CHECK(!take_of(0, &thousand, 1).allowed);
    CHECK(op_of(0, "key", &thousand, RATELIMIT_RESET, 0).allowed);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).remaining, 1000);
}

static void block_under_way(void)
{
    CHECK(op_of(0, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
}

static void a_lease_under_way_when_its_key_is_blocked_is_dropped(void)
{
    fresh(50);
    heat(0, &thousand);
    while (op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).source == LEASED)
        (void)take_of(0, &thousand, 1);
    far_granted = 0;
    far_hook = block_under_way;
    (void)take_of(0, &thousand, 1);
    CHECK(far_granted > 1); /* it was a lease */
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
    uint32_t percent;
    size_t i;
    fresh(50);
    heat(0, &thousand);
    while (op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).source == LEASED)
        (void)take_of(0, &thousand, 1);
    far_granted = 0;
    far_first = lease_first;
    CHECK(op_of(0, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
    CHECK(far_granted > 1); /* it was a lease */
    CHECK(!take_of(0, &thousand, 1).allowed);
    for (i = 0; i < COUNT(gives); i++) {
        fresh(0);
        CHECK(take_of(0, &hourly, 1).allowed);
        far_first = take_all_first;
        CHECK(op_of(0, "key", &hourly, gives[i], 10).allowed);
        CHECK(take_of(0, &hourly, 10).allowed);
    }
    for (percent = 0; percent <= 100; percent += 100) {
        fresh(percent);
        CHECK(take_of(0, &hourly, 1).allowed);
        CHECK(take_of(0, &hourly, 7).allowed);
        far_hook = refund_under_way;
        CHECK(take_of(0, &hourly, 1).allowed);
        CHECK(take_of(0, &hourly, 10).allowed);
    }
}

/* Of a batch the later requests were decided after it, and are believed. */
static void what_follows_a_reset_in_its_batch_is_believed(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh(0);
    CHECK(take_of(0, &hourly, 1).allowed);
    req[0] = request_of("key", &hourly, RATELIMIT_RESET, 0);
    req[1] = request_of("key", &hourly, RATELIMIT_TAKE, 10);
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_EACH);
    CHECK(res[0].allowed && res[1].allowed);
    CHECK_U64(take_of(0, &hourly, 1).source, CACHED);
}

static void a_lease_is_served_though_nothing_else_is_known_any_more(void)
{
    int taken;
    for (taken = 0; taken < 2; taken++) {
        ratelimit_request req[2];
        ratelimit_result res[2];
        fresh(50);
        heat(0, &thousand);
        CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
        /* others take all there is, and a refund that is not carried out ends what was known */
        while (op_of(1, "key", &thousand, RATELIMIT_TAKE_UP_TO, 1000).allowed)
            ;
        CHECK(op_of(1, "other", &ten, RATELIMIT_TAKE, 10).allowed);
        req[0] = request_of("key", &thousand, RATELIMIT_REFUND, 1);
        req[1] = request_of("other", &ten, RATELIMIT_TAKE, 10);
        nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
        CHECK(!res[0].allowed && !res[1].allowed);
        res[0] = op_of(0, "key", &thousand, taken ? RATELIMIT_TAKE : RATELIMIT_PEEK, 1);
        CHECK(res[0].allowed && res[0].remaining >= 1);
        CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    }
}

static void a_block_elsewhere_is_seen_within_a_leases_life(void)
{
    uint64_t i;
    fresh(50);
    tiers[0].trust_ns = 100 * MS;
    heat(0, &thousand);
    CHECK(op_of(1, "key", &thousand, RATELIMIT_BLOCK, 0).allowed);
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    for (i = 0; i < 1000; i++, now_ns += MS) /* which asks again and again, with what it holds */
        CHECK(!take_of(0, &thousand, 600).allowed);
    CHECK(!take_of(0, &thousand, 1).allowed);
}

static void a_dear_request_that_gets_too_little_is_told_when_the_rest_comes(void)
{
    ratelimit_result res;
    fresh(50);
    heat(0, &thousand);
    while (op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).source == LEASED)
        (void)take_of(0, &thousand, 1);
    CHECK(take_of(1, &thousand, 1000 - far_granted - 1).allowed);
    res = take_of(0, &thousand, 4); /* a lease was asked for; one came */
    CHECK_U64(res.source, STORED);
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK_U64(res.retry_after_ns, 3 * MS);
    CHECK_U64(res.remaining, 1);
    CHECK_U64(far_granted, 1000);
    CHECK_U64(take_of(0, &thousand, 4).retry_after_ns, 3 * MS);
    now_ns += 3 * MS;
    CHECK(take_of(0, &thousand, 4).allowed);
    fresh(50);
    heat(0, &thousand);
    while (op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).source == LEASED)
        (void)take_of(0, &thousand, 1);
    CHECK(take_of(1, &thousand, 1000 - far_granted).allowed);
    res = take_of(0, &thousand, 4); /* none came */
    CHECK_U64(res.source, STORED);
    CHECK_U64(res.retry_after_ns, 4 * MS);
}

static void a_windows_lease_ends_with_it(void)
{
    uint64_t taken;
    fresh(50);
    tiers[0].lease_ns = tiers[0].trust_ns = MINUTE;
    skew_ns = 9900 * MS; /* 100 ms to the end */
    taken = heat(0, &window);
    CHECK(far_granted > taken);
    CHECK_U64(take_of(0, &window, 1).source, LEASED);
    now_ns += 100 * MS - 1;
    CHECK_U64(take_of(0, &window, 1).source, LEASED);
    now_ns++;
    far_granted = 0;
    CHECK_U64(take_of(0, &window, 100).source, STORED); /* all of the new one, and no more */
    CHECK(!take_of(0, &window, 1).allowed);
    CHECK_U64(far_granted, 100);
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
        CHECK(most >= 90 || percents[i] == 100);
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

/* ---- a store that fails */

static void a_dead_store_is_left_alone(void)
{
    uint64_t i;
    fresh(0);
    far_fails = true;
    slow_ns = 50 * MS;
    CHECK_U64(take_of(0, &ten, 1).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(far_calls, 1);
    slow_ns = 0;
    for (i = 0; i < 49; i++, now_ns += MS) {
        ratelimit_result res = take_of(0, &ten, 1);
        CHECK(!res.allowed && res.status == RATELIMIT_STORE_FAILED && res.source == STORED);
    }
    CHECK_U64(far_calls, 1); /* at least half of the cool-down */
    now_ns += 52 * MS;
    (void)take_of(0, &ten, 1);
    CHECK_U64(far_calls, 2); /* and at most all of it */
    for (i = 0; i < 60000; i++, now_ns += MS)
        (void)take_of(0, &ten, 1);
    CHECK(far_calls >= 2 + 12 && far_calls <= 2 + 6 + 24); /* a minute in pauses of up to 5 s */
    CHECK_U64(counts(0).outages, 1);
    CHECK_U64(counts(0).failures, far_calls);
    CHECK_U64(counts(0).failed, 60051);
    far_fails = false;
    now_ns += 6 * SEC;
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK_U64(counts(0).stored, 2);
    far_fails = true;
    (void)take_of(0, &ten, 1);
    now_ns += 102 * MS; /* short again */
    far_fails = false;
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK_U64(counts(0).outages, 2);
}

static void fail_too(void)
{
    CHECK_U64(take_of(0, &ten, 1).status, RATELIMIT_STORE_FAILED);
}

static void failures_at_one_time_are_one_failure(void)
{
    int i;
    fresh(0);
    far_fails = true;
    for (i = 0; i < 2; i++, now_ns += 10 * SEC) {
        far_hook = fail_too;
        (void)take_of(0, &ten, 1);
        far_fails = i != 0;
    }
    CHECK_U64(counts(0).failures, 2);
    CHECK_U64(counts(0).outages, 1);
    fresh(0);
    far_fails = true;
    far_hook = fail_too;
    (void)take_of(0, &ten, 1);
    far_fails = false;
    now_ns += 102 * MS;
    CHECK(take_of(0, &ten, 1).allowed);
}

static void a_lease_asked_for_when_the_store_fails_is_gone_but_not_leasing(void)
{
    uint64_t i, leased;
    fresh(50);
    heat(0, &thousand);
    while (op_of(0, "key", &thousand, RATELIMIT_PEEK, 0).source == LEASED)
        (void)take_of(0, &thousand, 1);
    far_fails = true;
    CHECK_U64(take_of(0, &thousand, 1).status, RATELIMIT_STORE_FAILED);
    far_fails = false;
    now_ns += 102 * MS;
    leased = counts(0).leased;
    for (i = 0; i < 10; i++)
        CHECK(take_of(0, &thousand, 1).allowed);
    CHECK(counts(0).leased > leased);
}

static void ask_meanwhile(void)
{
    uint64_t calls = far_calls;
    CHECK_U64(take_of(0, &ten, 1).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(far_calls, calls);
}

/* A take larger than its lease gave the lease up, though the store was not asked. */
static void a_lease_outlives_takes_while_the_store_is_left_alone(void)
{
    uint64_t left;
    fresh(50);
    heat(0, &thousand);
    left = op_of(0, "key", &thousand, RATELIMIT_PEEK, 1).remaining;
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    far_fails = true;
    CHECK_U64(op_of(0, "other", &thousand, RATELIMIT_TAKE, 1).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(take_of(0, &thousand, 900).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(take_of(0, &thousand, 1).source, LEASED);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 1).remaining, left - 2);
}

static void one_probe_at_a_time(void)
{
    fresh(0);
    far_fails = true;
    (void)take_of(0, &ten, 1);
    far_fails = false;
    now_ns += 102 * MS;
    far_hook = ask_meanwhile;
    CHECK(take_of(0, &ten, 1).allowed);
    CHECK(take_of(0, &ten, 1).allowed);
}

/* One shard of a store is down: what it has not answered is decided here, the rest goes on. */
static void one_failed_answer_among_others_does_not_shut_the_store(void)
{
    ratelimit_request req[3];
    ratelimit_result res[3];
    size_t i;
    fresh(0);
    tiers[0].nodes = 2;
    memset(req, 0, sizeof req);
    for (i = 0; i < 3; i++) {
        req[i].key = &"abc"[i];
        req[i].key_len = 1;
        req[i].limit = &ten;
        req[i].n = 1;
    }
    far_fails_at = 1;
    nodes[0].decide(nodes[0].self, req, res, 3, RATELIMIT_EACH);
    CHECK_U64(res[0].source, STORED);
    CHECK_U64(res[1].source, LOCAL);
    CHECK_U64(res[1].limit, 5);
    CHECK_U64(res[2].source, STORED);
    CHECK_U64(counts(0).outages, 0);
    far_fails_at = 0;
    CHECK_U64(op_of(0, "b", &ten, RATELIMIT_TAKE, 1).source, STORED);
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
                {RATELIMIT_FAIL_CLOSED, 10, true, false, LOCAL}};
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
    CHECK_U64(far_calls, 1);
}

static void local_buckets_share_the_limit_and_start_from_what_is_known(void)
{
    uint64_t i, passed = 0, start;
    ratelimit_result res;
    fresh(0);
    for (i = 0; i < NODES; i++)
        tiers[i].nodes = NODES;
    CHECK(take_of(0, &thousand, 600).allowed);
    (void)op_of(1, "key", &thousand, RATELIMIT_PEEK, 1);
    far_fails = true;
    res = op_of(0, "key", &thousand, RATELIMIT_PEEK, 1);
    CHECK_U64(res.source, LOCAL);
    CHECK_U64(res.limit, 250);
    CHECK_U64(res.remaining, 100); /* a quarter of 400 */
    CHECK_U64(op_of(1, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 100);
    CHECK_U64(op_of(2, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 250); /* knows nothing */
    start = now_ns;
    for (i = 0; i < 100000; i++, now_ns += 100 * US)
        passed += take_of(i % NODES, &thousand, 1).taken;
    CHECK(passed <= 100 + 100 + 250 + 250 + (now_ns - start) / MS);
    CHECK(passed + 10 >= 100 + 100 + 250 + 250 + (now_ns - start) / MS);
    CHECK_U64(counts(0).fallback, 25001);
    far_fails = false;
    now_ns += 6 * SEC;
    CHECK_U64(take_of(0, &thousand, 1).source, STORED);
    /* a second outage is no second burst: what the store said meanwhile counts */
    CHECK(take_of(0, &thousand, 999).allowed);
    far_fails = true;
    now_ns += SEC / 2;
    CHECK(!take_of(0, &thousand, 1000).allowed);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 125);
    CHECK(op_of(0, "key", &thousand, RATELIMIT_RESET, 0).allowed);
    CHECK_U64(op_of(0, "key", &thousand, RATELIMIT_PEEK, 1).remaining, 250);
}

static void a_limit_that_changes_while_the_store_is_down_keeps_what_was_spent(void)
{
    static const ratelimit_limit slower = RATELIMIT_LIMIT(500, SEC, 1000);
    fresh(0);
    tiers[0].nodes = NODES;
    CHECK(take_of(0, &thousand, 600).allowed);
    far_fails = true;
    CHECK_U64(op_of(0, "key", &slower, RATELIMIT_PEEK, 1).remaining, 100);
}

static void local_windows_share_the_window(void)
{
    fresh(0);
    tiers[0].nodes = NODES;
    CHECK(take_of(0, &window, 80).allowed);
    far_fails = true;
    CHECK_U64(op_of(0, "key", &window, RATELIMIT_PEEK, 1).remaining, 5);
    CHECK(take_of(0, &window, 5).allowed);
    CHECK(!take_of(0, &window, 1).allowed);
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
    nodes[0].decide(nodes[0].self, req, res, 20, RATELIMIT_EACH);
    CHECK_U64(far_calls, 1);
    CHECK_U64(far_requests, 20);
    req[25].key_len = 0;
    req[26].limit = &bad;
    req[27].limit = &unlimited;
    req[28].n = 0;
    nodes[0].decide(nodes[0].self, req, res, 30, RATELIMIT_EACH);
    CHECK_U64(far_calls, 2);
    CHECK_U64(far_requests, 26);
    for (i = 0; i < 30; i++)
        CHECK_U64(res[i].source, i < 20 ? CACHED : STORED);
    CHECK_U64(res[25].status, RATELIMIT_BAD_KEY);
    CHECK_U64(res[26].status, RATELIMIT_BAD_LIMIT);
    CHECK(res[27].allowed && res[27].limit == UINT64_MAX);
    CHECK_U64(res[28].status, RATELIMIT_BAD_COUNT);
    CHECK(res[29].allowed);
    req[25] = req[26] = req[27] = req[28] = req[29];
    fresh(0);
    nodes[0].decide(nodes[0].self, req, res, 100, RATELIMIT_EACH);
    CHECK_U64(far_calls, 4);
    CHECK_U64(far_requests, 100);
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
        memset(req, 0, sizeof req);
        for (i = 0; i < 4; i++) {
            req[i].key = "key";
            req[i].key_len = 3;
            req[i].limit = &ten;
            req[i].n = 5;
        }
        req[2].op = RATELIMIT_RESET;
        nodes[0].decide(nodes[0].self, req, res, 4, RATELIMIT_EACH);
        for (i = 0; i < 4; i++)
            CHECK(res[i].allowed);
        CHECK_U64(res[3].remaining, 5);
        req[2].op = RATELIMIT_TAKE;
        nodes[0].decide(nodes[0].self, req, res, 4, RATELIMIT_EACH);
        CHECK(res[0].allowed && !res[1].allowed && !res[2].allowed && !res[3].allowed);
        req[1].op = RATELIMIT_REFUND;
        nodes[0].decide(nodes[0].self, req, res, 3, RATELIMIT_EACH);
        CHECK(!res[0].allowed && res[1].allowed && res[2].allowed);
    }
}

static void all_or_none_is_refused_here_if_one_is_known_to_be(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh(50);
    memset(req, 0, sizeof req);
    req[0].key = "a";
    req[1].key = "b";
    req[0].key_len = req[1].key_len = 1;
    req[0].limit = req[1].limit = &ten;
    req[0].n = 2;
    req[1].n = 10;
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(res[0].status, OK);
    CHECK_U64(res[0].taken, 0);
    CHECK_U64(res[0].retry_after_ns, SEC);
    CHECK_U64(res[1].status, RATELIMIT_DENIED);
    CHECK_U64(res[1].retry_after_ns, SEC);
    CHECK_U64(res[1].source, CACHED);
    CHECK_U64(far_calls, 1);
    now_ns += SEC;
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    /* what was undone is not believed */
    fresh(50);
    req[1].key = "a";
    req[0].n = req[1].n = 6;
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    req[0].n = 10;
    nodes[0].decide(nodes[0].self, req, res, 1, RATELIMIT_ALL);
    CHECK(res[0].allowed);
    /* a bad request makes it the store's affair */
    req[1].n = 0;
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    far_calls = 0;
    req[0].key = "c";
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    CHECK_U64(far_calls, 1);
    CHECK_U64(res[1].status, RATELIMIT_BAD_COUNT);
    CHECK(!res[0].allowed);
}

static void all_or_none_is_not_refused_for_what_it_gives_back_itself(void)
{
    static const ratelimit_op gives[] = {RATELIMIT_RESET, RATELIMIT_REFUND};
    ratelimit_request req[2];
    ratelimit_result res[2];
    size_t i;
    for (i = 0; i < COUNT(gives); i++) {
        fresh(0);
        CHECK(take_of(0, &hourly, 10).allowed);
        CHECK_U64(take_of(0, &hourly, 1).source, CACHED);
        req[0] = request_of("key", &hourly, gives[i], 1);
        req[1] = request_of("key", &hourly, RATELIMIT_TAKE, 1);
        nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
        CHECK(res[0].allowed && res[1].allowed);
    }
}

static void all_or_none_stays_so_while_the_store_is_down(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh(0);
    tiers[0].nodes = 2;
    far_fails = true;
    memset(req, 0, sizeof req);
    req[0].key = "a";
    req[1].key = "b";
    req[0].key_len = req[1].key_len = 1;
    req[0].limit = req[1].limit = &ten;
    req[0].n = 3;
    req[1].n = 5;
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    CHECK_U64(res[0].source, LOCAL);
    CHECK_U64(res[0].status, RATELIMIT_STORE_FAILED);
    nodes[0].decide(nodes[0].self, req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    req[0].n = 2;
    nodes[0].decide(nodes[0].self, req, res, 1, RATELIMIT_ALL);
    CHECK(res[0].allowed);
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
    store.decide(store.self, req, res, 2, RATELIMIT_EACH);
    CHECK_U64(res[1].status, RATELIMIT_BAD_ARGUMENT);
    store = ratelimit_tier_store(NULL);
    store.decide(store.self, req, res, 2, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    fresh(0);
    nodes[0].decide(nodes[0].self, NULL, res, 2, RATELIMIT_EACH);
    CHECK_U64(res[1].status, RATELIMIT_BAD_ARGUMENT);
    nodes[0].decide(nodes[0].self, req, NULL, 2, RATELIMIT_EACH);
    nodes[0].decide(nodes[0].self, req, res, 0, RATELIMIT_EACH);
    nodes[0].decide(nodes[0].self, req, res, 2, (ratelimit_mode)7);
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
    CHECK_U64(taken, 1000 + 999);
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
        ratelimit_table_options options = {{3, 4}, RATELIMIT_EVICT, 0};
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

/* The clock stands still, too, so nobody may try again, however many there are. */
static void threads_ask_a_dead_store_once_each_at_most(void)
{
    int round;
    for (round = 0; round < 20; round++) {
        ratelimit_tier_counts c;
        fresh(0);
        tiers[0].nodes = 2;
        far_fails = true;
        run_threads(thread_takes);
        c = counts(0);
        CHECK(far_calls <= THREADS * 2);
        CHECK_U64(c.calls, far_calls);
        CHECK_U64(c.failures, far_calls);
        CHECK_U64(c.outages, 1);
        CHECK_U64(c.stored, 0);
        CHECK(threads_taken <= 500000);
        fresh(50);
        run_threads(thread_fails);
        c = counts(0);
        CHECK_U64(c.stored + c.leased + c.refused + c.failed, 5000 * THREADS);
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
    RUN(a_refusal_under_another_limit_does_not_count);
    RUN(one_node_answers_as_the_store_would);
    RUN(retry_after_of_the_same_request_is_exact_also_with_fractions);
    RUN(a_used_up_window_is_refused_here_to_its_end_by_the_stores_clock);
    RUN(a_key_in_demand_is_served_from_leases);
    RUN(a_key_in_no_demand_is_not_leased);
    RUN(a_lease_shrinks_when_it_lasts_long);
    RUN(an_unused_lease_ends_with_its_time);
    RUN(a_small_burst_or_a_cost_above_the_lease_is_not_leased);
    RUN(a_larger_request_counts_what_the_lease_holds);
    RUN(peek_take_up_to_and_reserve_know_the_lease);
    RUN(a_changed_limit_ends_a_lease);
    RUN(a_block_or_reset_of_ones_own_ends_a_lease_at_once);
    RUN(a_lease_under_way_when_its_key_is_blocked_is_dropped);
    RUN(a_block_reset_or_refund_ends_what_was_asked_before_it);
    RUN(what_follows_a_reset_in_its_batch_is_believed);
    RUN(a_lease_is_served_though_nothing_else_is_known_any_more);
    RUN(a_block_elsewhere_is_seen_within_a_leases_life);
    RUN(a_dear_request_that_gets_too_little_is_told_when_the_rest_comes);
    RUN(a_windows_lease_ends_with_it);
    RUN(all_nodes_together_never_pass_more_than_the_limit);
    RUN(all_nodes_together_never_pass_more_than_a_window_holds);
    RUN(little_is_lost_to_leases_below_the_limit);
    RUN(an_idle_node_holds_one_lease_at_most);
    RUN(a_dead_store_is_left_alone);
    RUN(failures_at_one_time_are_one_failure);
    RUN(a_lease_asked_for_when_the_store_fails_is_gone_but_not_leasing);
    RUN(a_lease_outlives_takes_while_the_store_is_left_alone);
    RUN(one_probe_at_a_time);
    RUN(one_failed_answer_among_others_does_not_shut_the_store);
    RUN(what_is_known_goes_on_while_the_store_is_down);
    RUN(the_limiters_policy_decides_if_the_tier_does_not);
    RUN(a_wait_on_a_local_bucket_can_be_cancelled);
    RUN(local_buckets_share_the_limit_and_start_from_what_is_known);
    RUN(a_limit_that_changes_while_the_store_is_down_keeps_what_was_spent);
    RUN(local_windows_share_the_window);
    RUN(a_batch_asks_once_for_what_is_not_known);
    RUN(a_key_twice_in_a_batch_is_decided_in_order);
    RUN(all_or_none_is_refused_here_if_one_is_known_to_be);
    RUN(all_or_none_is_not_refused_for_what_it_gives_back_itself);
    RUN(all_or_none_stays_so_while_the_store_is_down);
    RUN(nothing_is_asked_of_a_tier_without_parts);
    RUN(a_clock_set_back_costs_calls_and_no_wrong_answer);
    RUN(times_near_the_top_are_times_like_any_other);
    RUN(a_small_table_costs_calls_and_no_wrong_answer);
    RUN(threads_serve_each_token_once);
    RUN(threads_ask_a_dead_store_once_each_at_most);
    if (argc < 2)
        print_what_is_saved();
    return check_end();
}

/* test_borders.c - what no other test looked at, as operators of the code that were changed one at
 * a time have shown (make mutants). Each test is named after what goes wrong without it. */
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <sys/mman.h>

#define RATELIMIT_TAKEOVER_MS 1
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

static ratelimit_request request_of(const ratelimit_limit *limit, ratelimit_op op, uint64_t n)
{
    ratelimit_request q = request("key", limit, n);
    q.op = op;
    return q;
}

/* A table for 24 keys, empty, the same each time; when_full is EVICT. */
static ratelimit_table *small_table(uint64_t step_ns)
{
    static uint64_t memory[RATELIMIT_TABLE_BYTES(24) / 8 + 1];
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    options.step_ns = step_ns;
    CHECK(ratelimit_table_init(&t, memory, sizeof memory, &options) == RATELIMIT_OK);
    return t;
}

#if defined(RATELIMIT_PRIV_SHARED) && RATELIMIT_PRIV_ATOMIC64

/* A holder died after its mark: who takes over knows the kind of the debt, not how long it was when
 * it was seen. That may not make it a debt of a clock that was set back, which is cut. */
static void a_debt_made_on_purpose_outlives_the_holder_of_its_mark(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 1);
    ratelimit_request charge = request_of(&limit, RATELIMIT_CHARGE, 100);
    ratelimit_request peek = request_of(&limit, RATELIMIT_PEEK, 1);
    ratelimit_bucket b;
    ratelimit_result res;
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_decide_shared(&b, &charge, 0, NULL));
    b.rest = (b.rest & RATELIMIT_PRIV_MARKED) |
             ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_HELD) |
             (uint64_t)ratelimit_priv_class(b.rest) << RATELIMIT_PRIV_SEEN_SHIFT;
    CHECK(!ratelimit_bucket_decide_shared(&b, &peek, SEC, &res));
    CHECK_U64(res.reset_after_ns, 99 * SEC);
}

/* A holder whose mark was taken over must not take the mark of the next one for its own. */
static void marks_of_different_states_differ(void)
{
    enum { MARKS = 1000 };
    static uint64_t mark[2 * MARKS];
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 5);
    ratelimit_bucket old, now;
    unsigned i, j, same = 0;
    for (i = 0; i < 2 * MARKS; i++) {
        old.full_ns = DAY + (i < MARKS ? i : 0);
        old.rest = limit.state | (i < MARKS ? 0 : i);
        now = old;
        now.full_ns += SEC;
        mark[i] = ratelimit_priv_mark(&old, &now);
        CHECK_U64(ratelimit_priv_class(mark[i]), RATELIMIT_PRIV_CLASS_HELD);
        for (j = 0; j < i; j++)
            same += mark[i] == mark[j];
    }
    CHECK(same < 10); /* two million pairs, and 2^24 marks */
}

/* The mark keeps an interval that is right or too strict with either of the two times. */
static void a_mark_keeps_the_interval_that_is_not_too_lax(void)
{
    const ratelimit_limit a = ratelimit_limit_make(1, SEC, 5),
                          b = ratelimit_limit_make(1, MINUTE, 5);
    ratelimit_bucket old, now;
    old.full_ns = 100 * SEC;
    old.rest = a.state;
    now.full_ns = 200 * SEC; /* forward: the old one */
    now.rest = b.state;
    CHECK_U64(ratelimit_priv_mark(&old, &now) & RATELIMIT_PRIV_MARKED,
              a.state & RATELIMIT_PRIV_MARKED);
    now.full_ns = 50 * SEC; /* back: the new one */
    CHECK_U64(ratelimit_priv_mark(&old, &now) & RATELIMIT_PRIV_MARKED,
              b.state & RATELIMIT_PRIV_MARKED);
    CHECK_U64(ratelimit_priv_mark(&old, &now) >> RATELIMIT_PRIV_SEEN_SHIFT,
              ratelimit_priv_class(b.state));
    now.rest = 0; /* freed: it has none */
    CHECK_U64(ratelimit_priv_mark(&old, &now) & RATELIMIT_PRIV_MARKED,
              a.state & RATELIMIT_PRIV_MARKED);
    old.rest = 0; /* made */
    now.full_ns = 200 * SEC;
    now.rest = b.state;
    CHECK_U64(ratelimit_priv_mark(&old, &now) & RATELIMIT_PRIV_MARKED,
              b.state & RATELIMIT_PRIV_MARKED);
}

static void a_refusal_writes_to_no_shared_bucket(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 5);
    ratelimit_request take = request_of(&limit, RATELIMIT_TAKE, 5);
    ratelimit_request peek = request_of(&limit, RATELIMIT_PEEK, 1);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ratelimit_bucket *b = (ratelimit_bucket *)page;
    ratelimit_result res;
    CHECK(page != MAP_FAILED);
    if (page == MAP_FAILED)
        return;
    CHECK(ratelimit_bucket_decide_shared(b, &take, 0, NULL));
    CHECK(mprotect(page, 4096, PROT_READ) == 0); /* a write would crash */
    CHECK(!ratelimit_bucket_decide_shared(b, &take, 0, &res));
    CHECK_U64(res.retry_after_ns, 5 * SEC);
    CHECK(!ratelimit_bucket_decide_shared(b, &peek, 0, &res));
    CHECK(!ratelimit_bucket_take_shared(b, &limit, 5, 0, &res));
    CHECK_U64(res.retry_after_ns, 5 * SEC);
    CHECK(munmap(page, 4096) == 0);
}

#endif

static void no_bucket_and_no_limit_are_bad_arguments_of_every_call(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 5);
    const ratelimit_request none = request_of(NULL, RATELIMIT_TAKE, 1);
    const ratelimit_limit *limits[2];
    ratelimit_limit damaged = limit;
    ratelimit_bucket b;
    ratelimit_result res;
    int i;
    limits[0] = &limit;
    limits[1] = NULL;
    memset(&b, 0, sizeof b);
    for (i = 0; i < 2; i++) { /* without a bucket; without both */
        CHECK(!ratelimit_bucket_take(NULL, limits[i], 1, 0, &res));
        CHECK(res.status == RATELIMIT_BAD_ARGUMENT || (i && res.status == RATELIMIT_BAD_LIMIT));
        CHECK(!ratelimit_bucket_take(NULL, limits[i], 1, 0, NULL));
#if defined(RATELIMIT_PRIV_SHARED)
        CHECK(!ratelimit_bucket_take_shared(NULL, limits[i], 1, 0, &res));
        CHECK(res.status == RATELIMIT_BAD_ARGUMENT || (i && res.status == RATELIMIT_BAD_LIMIT));
        CHECK(!ratelimit_bucket_take_shared(NULL, limits[i], 1, 0, NULL));
#endif
    }
    CHECK(!ratelimit_bucket_take(&b, NULL, 1, 0, &res));
    CHECK(!ratelimit_bucket_decide(&b, NULL, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_bucket_decide(NULL, NULL, 0, NULL));
    CHECK(!ratelimit_bucket_decide(&b, &none, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_LIMIT);
    damaged.kind = 200;
    CHECK(!ratelimit_bucket_take(&b, &damaged, 1, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_LIMIT);
    CHECK_U64(ratelimit_table_take_batch(NULL, &none, NULL, 1, 0), 0);
    CHECK(!ratelimit_table_decide(NULL, NULL, NULL, 0, RATELIMIT_EACH, 0));
    CHECK_U64(b.rest | b.full_ns, 0);
#if defined(RATELIMIT_PRIV_SHARED)
    CHECK(!ratelimit_bucket_take_shared(&b, NULL, 1, 0, &res));
    memset(&res, 0xA5, sizeof res);
    CHECK(!ratelimit_bucket_decide_shared(&b, NULL, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_bucket_decide_shared(&b, NULL, 0, NULL));
    CHECK_U64(b.rest | b.full_ns, 0);
#endif
}

/* Almost a token, in whole ns, would be 334 ns of a limit whose token takes 333 1/3 ns. */
static void almost_a_token_under_a_limit_with_fractions_is_no_more_than_its_window(void)
{
    const ratelimit_limit slow = ratelimit_limit_make(1, SEC, 1);
    const ratelimit_limit fast = ratelimit_limit_make(3, US, 1);
    ratelimit_request peek = request_of(&fast, RATELIMIT_PEEK, 1);
    ratelimit_bucket b;
    ratelimit_result res;
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take(&b, &slow, 1, 0, NULL));
    CHECK(!ratelimit_bucket_decide(&b, &peek, 500 * US, &res)); /* 0.9995 of a token */
    CHECK_U64(res.retry_after_ns, 334);
    CHECK_U64(res.reset_after_ns, 334);
}

/* A step as long as time is: no clock was set back by more. */
static void a_table_with_the_longest_step_forgives_no_window(void)
{
    const ratelimit_limit limit = ratelimit_window_make(5, MINUTE);
    ratelimit_table *t = small_table(FOREVER);
    ratelimit_result res;
    CHECK(ratelimit_table_take(t, "k", 1, &limit, 5, 100 * MINUTE, NULL));
    CHECK(!ratelimit_table_take(t, "k", 1, &limit, 1, MINUTE + 1, &res));
    CHECK_U64(res.retry_after_ns, 100 * MINUTE - 1);
    CHECK(ratelimit_table_take(t, "k", 1, &limit, 5, 101 * MINUTE, NULL));
}

/* The quick ways: a refusal of many tokens, of a limit with intervals of few ns, tells what is owed
 * without them. */
static void check_many(bool first, bool second, const ratelimit_result *res)
{
    CHECK(first && !second);
    CHECK_U64(res->remaining, 75);
    CHECK_U64(res->retry_after_ns, 50);
    CHECK_U64(res->reset_after_ns, 50);
}

static void a_refusal_of_many_tokens_of_few_ns_tells_what_is_owed(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, 2, 100);
    ratelimit_bucket b;
    ratelimit_table *t = small_table(0);
    ratelimit_result res;
    bool first;
    CHECK(ratelimit_table_take(t, "k", 1, &limit, 1, 0, NULL)); /* known: the quick way */
    first = ratelimit_table_take(t, "k", 1, &limit, 25, SEC, NULL);
    check_many(first, ratelimit_table_take(t, "k", 1, &limit, 100, SEC, &res), &res);
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take(&b, &limit, 1, 0, NULL));
    first = ratelimit_bucket_take(&b, &limit, 25, SEC, NULL);
    check_many(first, ratelimit_bucket_take(&b, &limit, 100, SEC, &res), &res);
#if defined(RATELIMIT_PRIV_SHARED)
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take_shared(&b, &limit, 1, 0, NULL));
    first = ratelimit_bucket_take_shared(&b, &limit, 25, SEC, NULL);
    check_many(first, ratelimit_bucket_take_shared(&b, &limit, 100, SEC, &res), &res);
#endif
}

/* While a store fails each of so many nodes gives its share, also where the interval cannot be so
 * many times as long. */
static void a_share_of_a_limit_of_146_years_is_a_share(void)
{
    const ratelimit_limit all = ratelimit_limit_make(8, RATELIMIT_PRIV_MAX, 8);
    const ratelimit_limit share = ratelimit_priv_share(&all, 4);
    CHECK_U64(share.burst, 2);
    CHECK_U64(share.interval_ns, RATELIMIT_PRIV_MAX / 2);
    CHECK_U64(ratelimit_priv_share(&all, 9).interval_ns, RATELIMIT_PRIV_MAX); /* at least 1 */
}

/* ---- a bucket whose limit changed ---- */

/* The debt of *b at now_ns under a limit, in whole ns. */
static uint64_t owed(const ratelimit_bucket *b, const ratelimit_limit *limit, uint64_t now_ns)
{
    ratelimit_bucket copy = *b;
    ratelimit_request peek = request_of(limit, RATELIMIT_PEEK, 1);
    ratelimit_result res;
    (void)ratelimit_bucket_decide(&copy, &peek, now_ns, &res);
    return res.reset_after_ns;
}

/* A bucket that owes n tokens of `was` at 0 owes `want` ns under `is` at now_ns. */
static void becomes(const ratelimit_limit *was, uint64_t n, const ratelimit_limit *is,
                    uint64_t now_ns, uint64_t want)
{
    ratelimit_bucket b;
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take(&b, was, n, 0, NULL));
    CHECK_U64(owed(&b, is, now_ns), want);
}

static void an_interval_that_differs_in_its_last_bit_is_another(void)
{
    const ratelimit_limit was = ratelimit_limit_make(1, 1000000, 1000);
    const ratelimit_limit is = ratelimit_limit_make(1, 1000001, 1000);
    becomes(&was, 1000, &is, 0, 1000001000);
}

static void a_debt_of_2_to_the_40_ns_is_none_of_0(void)
{
    const ratelimit_limit was = ratelimit_limit_make(1, UINT64_C(1) << 40, 1);
    const ratelimit_limit is = ratelimit_limit_make(1, UINT64_C(1) << 39, 1);
    becomes(&was, 1, &is, 0, UINT64_C(1) << 39);
}

static void a_bucket_that_is_full_this_very_ns_owes_nothing_under_another_limit(void)
{
    const ratelimit_limit was = ratelimit_limit_make(1, 1000, 1);
    const ratelimit_limit is = ratelimit_limit_make(3, 1000, 1);
    becomes(&was, 1, &is, 1000, 0);
}

static void up_to_2_to_the_62_tokens_spent_stay_spent(void)
{
    const ratelimit_limit was = ratelimit_limit_make(16, 1, INT64_MAX);
    const ratelimit_limit is = ratelimit_limit_make(8, 1, INT64_MAX);
    unsigned bits;
    for (bits = 8; bits < 63; bits++)
        becomes(&was, UINT64_C(1) << bits, &is, 0, UINT64_C(1) << (bits - 3));
}

static void half_a_token_above_65536_is_not_forgotten(void)
{
    const ratelimit_limit was = ratelimit_limit_make(1, 1000, 100000);
    const ratelimit_limit is = ratelimit_limit_make(1, 2000, 100000);
    becomes(&was, 65537, &is, 500, 131073000);
}

/* A number that its 20 bits do not hold: rescaled, half a token would be more than half. */
static void another_burst_leaves_half_a_token_as_it_was(void)
{
    uint64_t burst;
    for (burst = 2; burst < 34; burst++) { /* any bits of its code change */
        const ratelimit_limit was = ratelimit_limit_make(1, 2097153, 1);
        const ratelimit_limit is = ratelimit_limit_make(1, 2097153, burst);
        becomes(&was, 1, &is, 1048577, 1048576);
    }
}

/* The inverse of an odd number modulo 2^32. */
static uint32_t inverse_of(uint64_t x)
{
    uint32_t y = 1;
    int i;
    for (i = 0; i < 5; i++)
        y *= 2 - (uint32_t)x * y;
    return y;
}

/* d / 2^32 of a token, which is d ns of a token in 2^32 ns, as a span under another limit: exact
 * and rounded up to 1/parts ns, or, where a token takes 256 ns or longer, to a ns or two. */
static void check_part_of_a_token(const ratelimit_limit *is, uint32_t d)
{
    const ratelimit_limit was = ratelimit_limit_make(1, UINT64_C(1) << 32, 1);
    const uint64_t unit = is->interval_ns * is->parts + is->interval_part;
    const uint64_t exact = (d * unit >> 32) + ((uint32_t)(d * unit) != 0);
    uint32_t part;
    const uint64_t ns = ratelimit_priv_rescale(was.state, d, is, &part);
    const uint64_t got = ns * is->parts + part;
    CHECK(got >= exact && got <= exact + (is->interval_ns < 256 ? 0 : 2 * is->parts));
    CHECK(is->interval_ns < 256 || part == 0 || got == unit); /* never above the window */
}

static void part_of_a_token_is_rounded_up_never_down(void)
{
    static const uint64_t made_of[][2] = {{1, 3},     {1, 100},  {1, 255},  {1, 256},  {1, 257},
                                          {1, 10001}, {3, 1000}, {7, 1000}, {7, 5000}, {60, SEC}};
    static const uint32_t ds[] = {1,          2,          3,          0x7fffffff,
                                  0x80000000, 0xaaaaaaab, 0xfffffffe, UINT32_MAX};
    ratelimit_limit is;
    uint64_t ns;
    size_t i, j;
    uint32_t part;
    for (i = 0; i < COUNT(made_of); i++) {
        is = ratelimit_limit_make(made_of[i][0], made_of[i][1], 1);
        for (j = 0; j < COUNT(ds); j++)
            check_part_of_a_token(&is, ds[j]);
        check_part_of_a_token(&is, inverse_of(made_of[i][1] | 1));
    }
    for (i = 256, j = 0; j < 10; i += 2) { /* one 2^32nd of a third of a ns above a whole ns */
        is = ratelimit_limit_make(3, 3 * i + 1, 1);
        if (inverse_of(3 * i + 1) % 3 != 1)
            continue;
        check_part_of_a_token(&is, inverse_of(3 * i + 1));
        j++;
    }
    is = ratelimit_limit_make(20000000, UINT64_C(5130000001), 1); /* 256.5 ns in 2^24 parts */
    CHECK_U64(is.interval_ns, 256);
    CHECK_U64(is.parts, 0x1000000);
    ns = ratelimit_priv_rescale(ratelimit_limit_make(1, UINT64_C(1) << 32, 1).state, UINT32_MAX,
                                &is, &part);
    CHECK_U64(ns, 256); /* at most the window */
}

/* ---- borders of time and of counts ---- */

static void a_window_of_more_tokens_than_ns_counts_the_first_one(void)
{
    const ratelimit_limit limit = ratelimit_window_make(3, 2);
    ratelimit_bucket b;
    int i;
    memset(&b, 0, sizeof b);
    for (i = 0; i < 3; i++)
        CHECK(ratelimit_bucket_take(&b, &limit, 1, 10, NULL));
    CHECK(!ratelimit_bucket_take(&b, &limit, 1, 10, NULL));
    CHECK(!ratelimit_bucket_take(&b, &limit, 1, 11, NULL));
    CHECK(ratelimit_bucket_take(&b, &limit, 3, 12, NULL));
}

static void a_block_of_more_than_2_to_the_62_ns_is_a_bad_argument(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 1);
    ratelimit_request block = request_of(&limit, RATELIMIT_BLOCK, 0);
    ratelimit_bucket b;
    ratelimit_result res;
    memset(&b, 0, sizeof b);
    block.max_wait_ns = RATELIMIT_PRIV_MAX + 1;
    CHECK(!ratelimit_bucket_decide(&b, &block, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    block.max_wait_ns = RATELIMIT_PRIV_MAX;
    CHECK(ratelimit_bucket_decide(&b, &block, 0, &res));
}

/* A block of 10 s was seen with less than 2^34 ns to go. */
static void a_block_that_is_ahead_by_the_step_is_believed_and_by_a_ns_more_is_cut(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 1);
    const uint64_t most = UINT64_C(1) << 34, back = 1010 * SEC - most - RATELIMIT_STEP_NS;
    ratelimit_request block = request_of(&limit, RATELIMIT_BLOCK, 0);
    ratelimit_request peek = request_of(&limit, RATELIMIT_PEEK, 1);
    ratelimit_bucket b;
    ratelimit_result res;
    memset(&b, 0, sizeof b);
    block.max_wait_ns = 10 * SEC;
    CHECK(ratelimit_bucket_decide(&b, &block, 1000 * SEC, NULL));
    CHECK(!ratelimit_bucket_decide(&b, &peek, back, &res));
    CHECK_U64(res.retry_after_ns, most + RATELIMIT_STEP_NS);
    CHECK(!ratelimit_bucket_decide(&b, &peek, back - 1, &res));
    CHECK_U64(res.retry_after_ns, most);
}

/* Its bucket is full a third of a ns after the whole ns. */
static void a_key_of_the_longest_intervals_is_not_forgotten_a_ns_early(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(3, RATELIMIT_PRIV_MAX, 1);
    ratelimit_table *t = small_table(0);
    CHECK(limit.interval_part > 0);
    CHECK(ratelimit_table_take(t, "k", 1, &limit, 1, 0, NULL));
    CHECK_U64(ratelimit_table_sweep(t, limit.interval_ns, 0), 0);
    CHECK(!ratelimit_table_take(t, "k", 1, &limit, 1, limit.interval_ns, NULL));
    CHECK_U64(ratelimit_table_sweep(t, limit.interval_ns + 1, 0), 1);
}

/* What is seen of a bucket that is full again is 0, not what an undefined log2(0) gives. */
static void a_full_bucket_is_seen_with_no_debt(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 1);
    ratelimit_bucket b;
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take(&b, &limit, 1, 0, NULL));
    CHECK_U64(b.rest >> RATELIMIT_PRIV_SEEN_SHIFT, 29);
    CHECK(!ratelimit_bucket_take(&b, &limit, 2, 5 * SEC, NULL)); /* NEVER */
    CHECK_U64(b.rest >> RATELIMIT_PRIV_SEEN_SHIFT, 0);
}

/* A refusal at a time when nothing new is to be noted. */
static void a_refusal_writes_to_no_table(void)
{
    const size_t bytes = RATELIMIT_TABLE_BYTES(24);
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 5);
    ratelimit_request takes[2];
    bool allowed[2];
    void *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ratelimit_table_options options;
    ratelimit_table *t;
    ratelimit_result res;
    CHECK(pages != MAP_FAILED && bytes <= 8192);
    if (pages == MAP_FAILED)
        return;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    CHECK(ratelimit_table_init(&t, pages, bytes, &options) == RATELIMIT_OK);
    CHECK(ratelimit_table_take(t, "key", 3, &limit, 5, 0, NULL));
    takes[0] = takes[1] = request_of(&limit, RATELIMIT_TAKE, 5);
    CHECK(mprotect(pages, 8192, PROT_READ) == 0); /* a write would crash */
    CHECK(!ratelimit_table_take(t, "key", 3, &limit, 5, 0, NULL));
    CHECK(!ratelimit_table_take(t, "key", 3, &limit, 5, 0, &res));
    CHECK_U64(res.retry_after_ns, 5 * SEC);
    CHECK_U64(ratelimit_table_take_batch(t, takes, allowed, 2, 0), 0);
    CHECK(!ratelimit_table_decide(t, takes, NULL, 2, RATELIMIT_EACH, 0));
    CHECK(!ratelimit_table_decide(t, takes, NULL, 2, RATELIMIT_ALL, 0));
    CHECK(munmap(pages, 8192) == 0);
}

/* ---- a debt made on purpose that became an ordinary one ---- */

/* Under a limit of 3 at 1 a second a charge of 4 is a debt on purpose. At 2 s it is 2, and with a
 * take 3 tokens, which is an ordinary debt: at 2 s for a token it is 6 s. (All of this is seen
 * with the same power of two, so that a take that looks no closer leaves what was said of it.) */
static const ratelimit_limit ordinary = RATELIMIT_LIMIT_SCOPE(3, 3 * RATELIMIT_SECOND, 3, 1);
static const ratelimit_limit slower = RATELIMIT_LIMIT_SCOPE(3, 6 * RATELIMIT_SECOND, 3, 1);

static void a_debt_on_purpose_that_fits_the_burst_again_is_in_tokens(void)
{
    ratelimit_request charge = request_of(&ordinary, RATELIMIT_CHARGE, 4);
    ratelimit_request peek = request_of(&slower, RATELIMIT_PEEK, 1);
    ratelimit_table *t;
    ratelimit_bucket b;
    ratelimit_result res;
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_decide(&b, &charge, 0, NULL));
    CHECK(ratelimit_bucket_take(&b, &ordinary, 1, 2 * SEC, NULL));
    CHECK_U64(owed(&b, &slower, 2 * SEC), 6 * SEC);
#if defined(RATELIMIT_PRIV_SHARED)
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_decide_shared(&b, &charge, 0, NULL));
    CHECK(ratelimit_bucket_take_shared(&b, &ordinary, 1, 2 * SEC, NULL));
    (void)ratelimit_bucket_decide_shared(&b, &peek, 2 * SEC, &res);
    CHECK_U64(res.reset_after_ns, 6 * SEC);
#endif
    t = small_table(0);
    CHECK(ratelimit_table_decide_one(t, &charge, 0, NULL));
    CHECK(ratelimit_table_take(t, "key", 3, &ordinary, 1, 2 * SEC, NULL));
    (void)ratelimit_table_decide_one(t, &peek, 2 * SEC, &res);
    CHECK_U64(res.reset_after_ns, 6 * SEC);
}

/* Its debt and its end are 2^63 ns ahead together, which would look like time that has passed. */
static void a_fixed_window_of_2_to_the_62_ns_is_spent_once(void)
{
    const ratelimit_limit limit = ratelimit_window_make(1, RATELIMIT_PRIV_MAX);
    ratelimit_bucket b;
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take(&b, &limit, 1, 0, NULL));
    CHECK(!ratelimit_bucket_take(&b, &limit, 1, 0, NULL));
    CHECK(!ratelimit_bucket_take(&b, &limit, 1, RATELIMIT_PRIV_MAX - 1, NULL));
    CHECK(ratelimit_bucket_take(&b, &limit, 1, RATELIMIT_PRIV_MAX, NULL));
}

/* The longest window there is: a debt of all of it is no time that has passed. */
static void a_window_of_2_to_the_62_ns_is_spent_once(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, RATELIMIT_PRIV_MAX, 1);
    ratelimit_table *t;
    ratelimit_bucket b;
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take(&b, &limit, 1, 0, NULL));
    CHECK(!ratelimit_bucket_take(&b, &limit, 1, 0, NULL));
#if defined(RATELIMIT_PRIV_SHARED)
    memset(&b, 0, sizeof b);
    CHECK(ratelimit_bucket_take_shared(&b, &limit, 1, 0, NULL));
    CHECK(!ratelimit_bucket_take_shared(&b, &limit, 1, 0, NULL));
#endif
    t = small_table(0);
    CHECK(ratelimit_table_take(t, "k", 1, &limit, 1, 0, NULL));
    CHECK(!ratelimit_table_take(t, "k", 1, &limit, 1, 0, NULL));
}

/* ---- hashes ---- */

static void the_short_ways_of_both_hashes_are_the_hashes(void)
{
    static const unsigned char key[] = "0123456789abcde";
    ratelimit_table *t = small_table(0);
    size_t len;
    for (len = 8; len < 16; len++) {
        CHECK_U64(ratelimit_priv_fast_short(t, key, len), ratelimit_priv_fast(key, len, t->fast));
        CHECK_U64(ratelimit_priv_sip_short(key, len, t->seed),
                  ratelimit_priv_sip(key, len, t->seed));
    }
}

/* ---- the steps of a commit, each overtaken ---- */

#if RATELIMIT_PRIV_ATOMIC

static void a_rest_is_swapped_whatever_was_seen_meanwhile_and_else_not(void)
{
    uint64_t rest = 1 | UINT64_C(5) << RATELIMIT_PRIV_SEEN_SHIFT;
    CHECK(ratelimit_priv_swap_rest(&rest, 1, 7)); /* seen is another */
    CHECK_U64(rest, 7);
    CHECK(!ratelimit_priv_swap_rest(&rest, 6, 8));
    CHECK_U64(rest, 7);
}

static bool rest_first(bool there, uint64_t was, uint64_t full_ns, uint64_t rest)
{
    ratelimit_priv_seat seat;
    ratelimit_bucket after;
    memset(&seat, 0, sizeof seat);
    seat.there = there;
    seat.in_it.full_ns = 100;
    seat.in_it.rest = was;
    after.full_ns = full_ns;
    after.rest = rest;
    return ratelimit_priv_rest_first(&seat, &after);
}

static void rest_comes_first_where_full_ns_goes_back(void)
{
    const uint64_t seen = UINT64_C(1) << RATELIMIT_PRIV_SEEN_SHIFT;
    CHECK(rest_first(true, 3, 50, 5)); /* a limit became faster */
    CHECK(rest_first(true, 3, 50, 0)); /* a bucket is freed */
    CHECK(rest_first(true, 3, 150, 0));
    CHECK(rest_first(false, 3, 150, 0));
    CHECK(!rest_first(true, 3, 150, 5));
    CHECK(!rest_first(true, 3, 50, 3));
    CHECK(!rest_first(true, 3, 50, 3 | seen));
    CHECK(!rest_first(false, 3, 50, 5));
}

/* The seat of a key that owes a second, its line locked by us. */
static void begin_commit(ratelimit_priv_seat *seat)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 5);
    ratelimit_table *t = small_table(0);
    memset(seat, 0, sizeof *seat);
    CHECK(ratelimit_table_take(t, "k", 1, &limit, 1, 0, NULL));
    ratelimit_priv_probe(t, ratelimit_priv_place(ratelimit_table_hash(t, "k", 1), limit.scope), 0,
                         true, NULL, 0, seat);
    CHECK(seat->there);
    seat->line->lock = seat->word + 1;
}

static void a_commit_that_a_quick_take_overtook_stores_nothing(void)
{
    ratelimit_priv_seat seat;
    ratelimit_bucket after, *b;
    begin_commit(&seat);
    b = &seat.line->bucket[seat.slot];
    after.rest = seat.in_it.rest ^ RATELIMIT_PRIV_IS_WINDOW;
    after.full_ns = seat.in_it.full_ns - 1; /* rest comes first */
    b->full_ns++;
    CHECK(!ratelimit_priv_store_full(&seat, &after));
    CHECK_U64(b->rest, seat.in_it.rest);
    CHECK_U64(b->full_ns, seat.in_it.full_ns + 1);
    after.full_ns = seat.in_it.full_ns + 5; /* it comes last */
    CHECK(!ratelimit_priv_store_full(&seat, &after));
    CHECK_U64(b->rest, seat.in_it.rest);
    b->full_ns = seat.in_it.full_ns;
    CHECK(ratelimit_priv_store_full(&seat, &after));
    CHECK_U64(b->full_ns, seat.in_it.full_ns + 5);
    CHECK(ratelimit_priv_store_rest(&seat, &after));
    CHECK_U64(b->rest, after.rest);
}

static void a_commit_whose_lock_was_taken_over_puts_nothing_back(void)
{
    ratelimit_priv_seat seat;
    ratelimit_bucket after, *b;
    begin_commit(&seat);
    b = &seat.line->bucket[seat.slot];
    after.rest = seat.in_it.rest ^ RATELIMIT_PRIV_IS_WINDOW;
    after.full_ns = seat.in_it.full_ns - 1;
    seat.line->lock = seat.word + 3; /* somebody else's */
    b->full_ns++;
    CHECK(!ratelimit_priv_store_full(&seat, &after));
    CHECK_U64(b->rest, after.rest);
    b->rest = seat.in_it.rest ^ RATELIMIT_PRIV_ON_PURPOSE; /* and that one stored another state */
    CHECK(!ratelimit_priv_store_full(&seat, &after));
    CHECK_U64(b->full_ns, seat.in_it.full_ns + 1);
    after.full_ns = seat.in_it.full_ns + 5;
    CHECK(!ratelimit_priv_store_rest(&seat, &after));
    CHECK_U64(b->rest, seat.in_it.rest ^ RATELIMIT_PRIV_ON_PURPOSE);
    ratelimit_priv_unlock(&seat.line->lock, seat.word);
    CHECK_U64(seat.line->lock, seat.word + 3);
}

static void a_place_that_got_another_key_gets_no_second_one(void)
{
    ratelimit_priv_seat seat;
    ratelimit_bucket after;
    begin_commit(&seat);
    after = seat.in_it;
    seat.there = false; /* a newcomer of another tag */
    seat.tag = seat.old_tag + 1;
    seat.line->tag[seat.slot] = seat.old_tag + 2;
    CHECK(!ratelimit_priv_store_rest(&seat, &after));
    CHECK_U64(seat.line->tag[seat.slot], seat.old_tag + 2);
    seat.line->tag[seat.slot] = seat.old_tag;
    CHECK(ratelimit_priv_store_rest(&seat, &after));
    CHECK_U64(seat.line->tag[seat.slot], seat.tag);
}

#  if RATELIMIT_PRIV_ATOMIC64
/* A lease serves by one swap of rest, without the lock: was the place the same entry's then? */
static void tokens_of_a_lease_are_another_entrys_if_its_line_has_moved(void)
{
    static const struct {
        uint32_t lock, tag; /* what is added to them */
        uint64_t full_ns;
        bool served;
    } rows[] = {{0, 0, 0, true}, {2, 0, 0, true}, {2, 1, 0, false}, {2, 0, 1, false}};
    size_t i;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ratelimit_priv_seat seat;
        ratelimit_bucket *b, after;
        begin_commit(&seat);
        b = &seat.line->bucket[seat.slot];
        *b = seat.was = ratelimit_priv_lease_of(&seat, 0, 5, 7, SEC, 0);
        after = seat.was;
        after.rest--;
        seat.line->lock = seat.word + rows[i].lock;
        seat.line->tag[seat.slot] += rows[i].tag;
        b->full_ns += rows[i].full_ns;
        CHECK(ratelimit_priv_lease_serve(NULL, &seat, &after) == rows[i].served);
    }
}
#  endif

static void who_waited_for_a_lock_looks_again(void)
{
    uint32_t lock = 3;
    CHECK(ratelimit_priv_odd(&lock, 3)); /* its holder is dead */
    CHECK_U64(lock, 4);
    CHECK(!ratelimit_priv_odd(&lock, 4));
}

#endif

/* ---- what a tier remembers ---- */

static void what_a_store_told_is_rounded_by_a_256th_of_the_burst(void)
{
    const ratelimit_limit few = ratelimit_limit_make(1, SEC, 255);
    const ratelimit_limit many = ratelimit_limit_make(1, SEC, 2560);
    uint64_t told;
    for (told = 0; told < 256; told++) {
        CHECK_U64(ratelimit_priv_told(&few, told << RATELIMIT_PRIV_TOLD_SHIFT), told);
        CHECK_U64(ratelimit_priv_told(&many, told << RATELIMIT_PRIV_TOLD_SHIFT), 11 * told);
    }
}

static void a_lease_is_a_percentage_of_the_burst(void)
{
    static const struct {
        uint64_t burst;
        uint32_t percent;
        uint64_t size;
    } rows[] = {{199, 1, 0},
                {200, 1, 2},
                {199, 99, 197},
                {1, 100, 0},
                {2, 100, 2},
                {2, 99, 0},
                {150, 100, 150},
                {150, 101, 150},
                {150, 4000, 150},
                {1048575, 100, 1048575},
                {1048576, 100, 1048575}};
    ratelimit_limit window = ratelimit_window_make(1000, SEC);
    ratelimit_tier tier;
    size_t i;
    memset(&tier, 0, sizeof tier);
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ratelimit_limit limit = ratelimit_limit_make(1, SEC, rows[i].burst);
        tier.lease_percent = rows[i].percent;
        CHECK_U64(ratelimit_priv_lease_size(&tier, &limit), rows[i].size);
    }
    CHECK_U64(ratelimit_priv_lease_size(&tier, &window), 0);
}

static void a_lease_tells_what_the_store_told_and_what_it_has_left(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 100);
    ratelimit_priv_seat none;
    ratelimit_result out;
    uint64_t told;
    memset(&none, 0, sizeof none);
    for (told = 253; told < 257; told++)
        CHECK_U64(ratelimit_priv_lease_of(&none, 0, 1, told, SEC, 0).rest >>
                          RATELIMIT_PRIV_TOLD_SHIFT &
                      255,
                  told < 255 ? told : 255);
    for (told = 0; told <= 100; told += 20) {
        uint64_t remaining = told + 30 < 100 ? told + 30 : 100;
        ratelimit_bucket b = ratelimit_priv_lease_of(&none, 0, 30, told, SEC, 0);
        ratelimit_priv_lease_answer(&limit, b.rest, 2, &out);
        CHECK(out.allowed && out.status == RATELIMIT_OK && out.source == RATELIMIT_FROM_LEASE);
        CHECK_U64(out.burst, 100);
        CHECK_U64(out.taken, 2);
        CHECK_U64(out.remaining, remaining);
        CHECK_U64(out.reset_after_ns, (100 - remaining) * SEC);
    }
}

/* The store's answer to who asked for a lease becomes the answer to the request. */
static void an_answer_about_a_lease_becomes_one_about_the_request(void)
{
    static const struct {
        uint64_t n, left, remaining, reset_ns; /* asked, here, told by the store */
        bool served;
        uint64_t remains, retry_ns;
    } rows[] = {
        {3, 2, 5, 5 * SEC, true, 7, 0},
        {3, 5, 8, 2 * SEC, true, 10, 0},
        {3, 5, 10, 0, true, 10, 0},
        {3, 2, 0, 10 * SEC, false, 2, 3 * SEC},
        {3, 2, 0, 9 * SEC + 5, false, 2, 2 * SEC + 5},
        {3, 2, 4, 6 * SEC, false, 6, 1}, /* there by now: ask again at once */
    };
    const ratelimit_limit limit = ratelimit_limit_make(1, SEC, 10);
    const ratelimit_limit sevenths = ratelimit_limit_make(7, SEC, 10);
    ratelimit_request q = request_of(&limit, RATELIMIT_TAKE, 1);
    ratelimit_result r;
    size_t i;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memset(&r, 0, sizeof r);
        q.n = rows[i].n;
        r.allowed = true;
        r.burst = 10;
        r.remaining = rows[i].remaining;
        r.retry_after_ns = 99;
        r.reset_after_ns = rows[i].reset_ns;
        ratelimit_priv_lease_share(&q, rows[i].served, rows[i].left, &r);
        CHECK(r.allowed == rows[i].served);
        CHECK(r.status == (rows[i].served ? RATELIMIT_OK : RATELIMIT_DENIED));
        CHECK_U64(r.taken, rows[i].served ? q.n : 0);
        CHECK_U64(r.remaining, rows[i].remains);
        CHECK_U64(r.retry_after_ns, rows[i].retry_ns);
    }
    q.limit = &sevenths; /* 10 of them take 1,428,571,428 4/7 ns, 1 of them 142,857,142 6/7 */
    r.reset_after_ns = 2 * SEC;
    q.n = 1;
    ratelimit_priv_lease_share(&q, false, 0, &r);
    CHECK_U64(r.retry_after_ns, 2 * SEC + 142857142 - 1428571428 + 1);
}

/* It asks for nothing, serves nothing, and is of no limit. It lives as long as any answer that was
 * asked for before it may be kept. */
static void an_entry_that_was_ended_holds_nothing(void)
{
    static const uint64_t rows[][3] = {
        {0, 0, SEC}, {10 * SEC, 0, 10 * SEC}, {0, 10 * SEC, 10 * SEC}}; /* trust, lease, life */
    ratelimit_priv_seat seat;
    ratelimit_tier tier;
    size_t i;
    memset(&tier, 0, sizeof tier);
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tier.table = small_table(0);
        tier.trust_ns = rows[i][0];
        tier.lease_ns = rows[i][1];
        ratelimit_priv_tier_forget(&tier, 77, SEC);
        ratelimit_priv_probe(tier.table, 77, SEC, false, NULL, 0, &seat);
        CHECK(seat.there);
        CHECK_U64(seat.was.rest << 6 >> 6,
                  ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_LEASE)); /* no turn, no tokens */
        CHECK_U64(seat.was.full_ns, SEC + rows[i][2]);
    }
}

/* In units of a 256th of the burst, rounded down. */
static void what_the_store_told_is_kept_with_a_lease(void)
{
    static const uint64_t rows[][3] = {{255, 254, 254},   {255, 255, 255}, {256, 255, 254},
                                       {256, 256, 256},   {2560, 99, 99},  {2560, 100, 99},
                                       {2560, 2560, 2552}}; /* burst, told, kept */
    size_t i;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ratelimit_limit limit = ratelimit_limit_make(1, SEC, rows[i][0]);
        ratelimit_request q = request_of(&limit, RATELIMIT_TAKE, 1);
        ratelimit_tier tier;
        ratelimit_result r;
        ratelimit_priv_ask ask;
        ratelimit_priv_seat seat;
        memset(&tier, 0, sizeof tier);
        memset(&r, 0, sizeof r);
        memset(&ask, 0, sizeof ask);
        tier.table = small_table(0);
        tier.lease_percent = 50;
        r.allowed = true;
        r.remaining = rows[i][1];
        ask.place = 77;
        ratelimit_priv_tier_learn(&tier, &q, &ask, &r, 0);
        ratelimit_priv_probe(tier.table, 77, 0, false, NULL, 0, &seat);
        CHECK(seat.there);
        CHECK_U64(ratelimit_priv_told(&limit, seat.was.rest), rows[i][2]);
    }
}

static void a_share_is_a_nth_of_the_burst_and_of_the_rate(void)
{
    static const uint64_t rows[][7] = {
        /* tokens, ns, burst; nodes; the same of the share */
        {10, SEC, 10, 3, 10, 3 * SEC, 3},
        {10, SEC, 2, 3, 10, 3 * SEC, 1},
        {10, RATELIMIT_PRIV_MAX / 4, 8, 4, 10, RATELIMIT_PRIV_MAX / 4 * 4, 2},
        {10, RATELIMIT_PRIV_MAX / 4 + 1, 8, 4, 2, RATELIMIT_PRIV_MAX / 4 + 1, 2},
        {3, RATELIMIT_PRIV_MAX, 3, 5, 1, RATELIMIT_PRIV_MAX, 1},
    };
    ratelimit_limit l = ratelimit_window_make(100, HOUR), share = ratelimit_priv_share(&l, 8);
    size_t i;
    CHECK(share.kind == RATELIMIT_PRIV_WINDOW && share.tokens == 12 && share.per_ns == HOUR);
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        l = ratelimit_limit_make(rows[i][0], rows[i][1], rows[i][2]);
        share = ratelimit_priv_share(&l, rows[i][3]);
        CHECK(ratelimit_limit_check(&share) == RATELIMIT_OK);
        CHECK_U64(share.tokens, rows[i][4]);
        CHECK_U64(share.per_ns, rows[i][5]);
        CHECK_U64(share.burst, rows[i][6]);
        CHECK_U64(share.scope, l.scope);
    }
}

/* What is kept of the answer to n tokens of a key that owes this long. */
static ratelimit_bucket refusal(const ratelimit_limit *limit, uint64_t n, uint64_t trust_ns,
                                uint64_t owes_ns, uint64_t remaining, uint64_t now_ns)
{
    ratelimit_tier tier;
    ratelimit_result told;
    memset(&tier, 0, sizeof tier);
    memset(&told, 0, sizeof told);
    tier.trust_ns = trust_ns;
    told.status = RATELIMIT_DENIED;
    told.reset_after_ns = told.retry_after_ns = owes_ns;
    told.remaining = remaining;
    return ratelimit_priv_refusal_of(&tier, limit, n, &told, now_ns);
}

/* A key of 10 per second and burst 10 that owes this long, shared by 3 nodes: their buckets have a
 * window of 900 ms. */
static void a_local_bucket_owes_what_a_refusal_says(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(10, SEC, 10);
    const ratelimit_limit share = ratelimit_priv_share(&limit, 3);
    const ratelimit_limit window = ratelimit_window_make(10, SEC);
    const uint64_t most = 900 * MS;
    const struct {
        uint64_t told, owes; /* by the refusal, by the bucket */
        uint64_t before;     /* what it owed before */
    } rows[] = {
        {500 * MS, 500 * MS, 0},
        {500 * MS, 500 * MS, 400 * MS},
        {500 * MS, 600 * MS, 600 * MS},
        {most, most, 0},
        {most + 1, most, 0},
        {SEC + 10, most, 0},
        {SEC + 11, SEC + 11, 0},
        {500 * MS, 500 * MS, 500 * MS}, /* as it was, with its mark */
    };
    ratelimit_request q = request_of(&limit, RATELIMIT_TAKE, 1);
    size_t i;
    int what;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (what = 0; what < 4; what++) { /* a refusal; none, a lease, one of another limit */
            const uint64_t mark = rows[i].before == rows[i].told ? RATELIMIT_PRIV_ON_PURPOSE : 0;
            ratelimit_table *t = small_table(0);
            const uint64_t place = ratelimit_priv_tier_place(t, &q);
            ratelimit_priv_seat seat;
            ratelimit_bucket b;
            uint64_t owes = what ? rows[i].before : rows[i].owes;
            if (rows[i].before) {
                ratelimit_priv_probe(t, place ^ RATELIMIT_PRIV_TIER_KIND, 0, true, NULL, 0, &seat);
                b.full_ns = rows[i].before;
                b.rest = share.state | mark;
                CHECK(ratelimit_priv_commit(t, &seat, &b));
            }
            ratelimit_priv_probe(t, place, 0, true, NULL, 0, &seat);
            b = refusal(what == 3 ? &window : &limit, 1, SEC / 4, rows[i].told, 0, 0);
            if (what == 2)
                b = ratelimit_priv_lease_of(&seat, ratelimit_priv_which(&limit), 1, 1, SEC, 0);
            CHECK(what == 1 || ratelimit_priv_commit(t, &seat, &b));
            ratelimit_priv_warm(t, &q, &share, 0);
            ratelimit_priv_probe(t, place ^ RATELIMIT_PRIV_TIER_KIND, 0, false, NULL, 0, &seat);
            CHECK(seat.there == (owes != 0));
            CHECK_U64(ratelimit_priv_left(&seat.was, 0), owes);
            if (seat.there)
                CHECK((seat.was.rest & RATELIMIT_PRIV_ON_PURPOSE) ==
                      (owes > SEC + 10          ? RATELIMIT_PRIV_ON_PURPOSE
                       : owes == rows[i].before ? mark
                                                : 0));
            ratelimit_priv_probe(t, place, 0, false, NULL, 0, &seat);
            CHECK(seat.there == (what != 1)); /* the entry stays */
        }
    }
}

/* Its window ends by another clock. */
static void a_local_window_begins_full(void)
{
    const ratelimit_limit window = ratelimit_window_make(10, SEC);
    const ratelimit_limit share = ratelimit_priv_share(&window, 2);
    ratelimit_request q = request_of(&window, RATELIMIT_TAKE, 1);
    ratelimit_table *t = small_table(0);
    const uint64_t place = ratelimit_priv_tier_place(t, &q);
    const ratelimit_bucket b = refusal(&window, 1, 0, SEC, 0, 0);
    ratelimit_priv_seat seat;
    ratelimit_priv_probe(t, place, 0, true, NULL, 0, &seat);
    CHECK(ratelimit_priv_commit(t, &seat, &b));
    ratelimit_priv_warm(t, &q, &share, 0);
    ratelimit_priv_probe(t, place ^ RATELIMIT_PRIV_TIER_KIND, 0, false, NULL, 0, &seat);
    CHECK(!seat.there);
}

/* So an answer that was under way is not taken for one about this lease. */
static void a_lease_differs_from_what_it_replaces(void)
{
    ratelimit_priv_seat seat, none;
    ratelimit_bucket first, refusal = {9, 77};
    uint32_t i;
    refusal.rest |= ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_REFUSAL);
    memset(&none, 0, sizeof none);
    seat = none;
    for (i = 0; i < 4097; i++) {
        ratelimit_bucket b = ratelimit_priv_lease_of(&seat, 0, 5, 7, SEC, 9);
        CHECK(b.rest != seat.was.rest);
        CHECK(ratelimit_priv_note(&b) != ratelimit_priv_note(&seat.was));
        CHECK_U64(b.rest & RATELIMIT_PRIV_LEASE_LEFT, 5);
        CHECK_U64((b.rest & RATELIMIT_PRIV_LEASE_TURN) >> 20, i % 4096);
        seat.there = true;
        seat.was = b;
    }
    first = ratelimit_priv_lease_of(&none, 0, 5, 7, SEC, 9);
    seat.was = refusal; /* in its place for a moment */
    CHECK(ratelimit_priv_lease_of(&seat, 0, 5, 7, SEC, 9).rest != first.rest);
    CHECK_U64(ratelimit_priv_lease_of(&none, 0, 1 << 20, 256, SEC, 9).rest,
              ratelimit_priv_lease_of(&none, 0, (1 << 20) - 1, 255, SEC, 9).rest);
}

/* What serving changes does not count, all else does; and no entry has the note of none. */
static void a_note_is_of_an_entry_as_it_was_made(void)
{
    ratelimit_priv_seat none;
    ratelimit_bucket lease, other, refusal = {123456789, 77};
    uint32_t note, bit;
    memset(&none, 0, sizeof none);
    lease = other = ratelimit_priv_lease_of(&none, 0, 5, 7, SEC, 9);
    note = ratelimit_priv_note(&lease);
    CHECK_U64(note & 1, 1);
    other.rest ^= RATELIMIT_PRIV_LEASE_LEFT | UINT64_C(63) << RATELIMIT_PRIV_SEEN_SHIFT;
    CHECK_U64(ratelimit_priv_note(&other), note);
    for (bit = 20; bit < RATELIMIT_PRIV_SEEN_SHIFT; bit++) {
        other = lease;
        other.rest ^= UINT64_C(1) << bit;
        CHECK(ratelimit_priv_note(&other) != note);
    }
    refusal.rest |= ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_REFUSAL);
    note = ratelimit_priv_note(&refusal);
    for (bit = 0; bit < RATELIMIT_PRIV_SEEN_SHIFT; bit++) {
        other = refusal;
        other.rest ^= UINT64_C(1) << bit;
        CHECK(ratelimit_priv_note(&other) != note);
        other = refusal;
        other.full_ns ^= UINT64_C(1) << bit;
        CHECK(ratelimit_priv_note(&other) != note);
    }
}

/* m has 27 bits, so T is too early by less than its unit: 2^15 ns where F - T is above 2^40 ns.
 * Where T would be over at once nothing is kept, nor of 2^62 ns and above. */
static void a_refusal_is_trusted_for_no_longer_than_trust_and_not_much_less(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1, HOUR, 1);
    static const struct {
        uint64_t trust, over, early; /* early 0: exact; UINT64_MAX: not kept */
    } rows[] = {
        {SEC, 0, 0},
        {SEC, 1, 0},
        {SEC, 5, 0},
        {SEC, (UINT64_C(1) << 26) - 1, 0},
        {SEC, UINT64_C(1) << 26, 0},
        {SEC, (UINT64_C(1) << 26) + 1, 1},
        {SEC, (UINT64_C(1) << 27) - 1, 1},
        {SEC, (UINT64_C(1) << 27) + 1, 3},
        {1, (UINT64_C(1) << 26) + 1, UINT64_MAX},
        {2, (UINT64_C(1) << 26) + 1, 1},
        {SEC, (UINT64_C(1) << 40) + (UINT64_C(1) << 14) + 1, (UINT64_C(1) << 14) - 1},
        {10 * SEC, (UINT64_C(1) << 56) + 1, (UINT64_C(1) << 31) - 1},
        {10 * SEC, (UINT64_C(1) << 57) - 1, 1},
        {10 * SEC, UINT64_C(1) << 57, UINT64_MAX},
        {SEC, RATELIMIT_PRIV_MAX - SEC, UINT64_MAX},
        {SEC, FOREVER - SEC, UINT64_MAX},
    };
    size_t i;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ratelimit_bucket b =
            refusal(&limit, 1, rows[i].trust, rows[i].trust + rows[i].over, 0, 5);
        CHECK((b.rest == 0) == (rows[i].early == UINT64_MAX));
        if (b.rest) {
            CHECK_U64(b.full_ns, 5 + rows[i].trust - rows[i].early);
            CHECK_U64(ratelimit_priv_owed(&b, 5), rows[i].trust + rows[i].over);
        }
    }
}

/* A window refused 5 tokens and told nothing of what remains: up to 4 the store is asked. */
static void a_refusal_of_a_window_knows_how_many_are_too_many(void)
{
    const ratelimit_limit limit = ratelimit_window_make(10, HOUR);
    ratelimit_result out;
    uint64_t n, remaining;
    for (remaining = 0; remaining < 5; remaining += 3) {
        const ratelimit_bucket b = refusal(&limit, 5, 0, SEC / 2, remaining, 0);
        for (n = 1; n <= 10; n++) { /* the burst */
            bool refuses = n > (remaining ? remaining : 4);
            CHECK(ratelimit_priv_refusal_answer(&b, &limit, n, 0, &out) == refuses);
            if (refuses) {
                CHECK_U64(out.remaining, remaining);
                CHECK_U64(out.burst, 10);
            }
        }
    }
    for (remaining = 254; remaining < 258; remaining++)
        CHECK((refusal(&limit, 300, 0, SEC / 2, remaining, 0).rest != 0) == (remaining < 256));
}

/* A bucket that a refund fills is full from then on: a call at an earlier time gets only what was
 * there then. */
static void what_fills_a_bucket_keeps_since_when_it_is_full(void)
{
    const ratelimit_limit limit = ratelimit_limit_make(1000, SEC, 10);
    static const uint64_t at[] = {10 * MS, 9 * MS + MS / 2, 12 * MS};
    size_t i;
    for (i = 0; i < 3; i++) {
        ratelimit_request take = request_of(&limit, RATELIMIT_TAKE, 1);
        ratelimit_request refund = request_of(&limit, RATELIMIT_REFUND, 1);
        ratelimit_table *t = small_table(0);
        ratelimit_bucket b = {0, 0};
        unsigned k, of_bucket = 0, of_table = 0;
        for (k = 0; k < 60; k++) {
            uint64_t now_ns = k < 20 ? 0 : k < 40 ? 5 * MS : 10 * MS;
            if (k == 20) {
                CHECK(ratelimit_bucket_decide(&b, &refund, at[i], NULL));
                CHECK(ratelimit_table_decide_one(t, &refund, at[i], NULL));
            }
            of_bucket += ratelimit_bucket_decide(&b, &take, now_ns, NULL);
            of_table += ratelimit_table_decide_one(t, &take, now_ns, NULL);
        }
        CHECK_U64(of_bucket, 20);
        CHECK_U64(of_table, 20);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
#if defined(RATELIMIT_PRIV_SHARED) && RATELIMIT_PRIV_ATOMIC64
    RUN(a_debt_made_on_purpose_outlives_the_holder_of_its_mark);
    RUN(marks_of_different_states_differ);
    RUN(a_mark_keeps_the_interval_that_is_not_too_lax);
    RUN(a_refusal_writes_to_no_shared_bucket);
#else
    SKIP(a_debt_made_on_purpose_outlives_the_holder_of_its_mark, "no 64-bit swap");
    SKIP(a_refusal_writes_to_no_shared_bucket, "no 64-bit swap");
#endif
    RUN(almost_a_token_under_a_limit_with_fractions_is_no_more_than_its_window);
    RUN(a_table_with_the_longest_step_forgives_no_window);
    RUN(a_refusal_of_many_tokens_of_few_ns_tells_what_is_owed);
    RUN(a_share_of_a_limit_of_146_years_is_a_share);
    RUN(no_bucket_and_no_limit_are_bad_arguments_of_every_call);
    RUN(an_interval_that_differs_in_its_last_bit_is_another);
    RUN(a_debt_of_2_to_the_40_ns_is_none_of_0);
    RUN(a_bucket_that_is_full_this_very_ns_owes_nothing_under_another_limit);
    RUN(up_to_2_to_the_62_tokens_spent_stay_spent);
    RUN(what_fills_a_bucket_keeps_since_when_it_is_full);
    RUN(half_a_token_above_65536_is_not_forgotten);
    RUN(another_burst_leaves_half_a_token_as_it_was);
    RUN(part_of_a_token_is_rounded_up_never_down);
    RUN(a_window_of_more_tokens_than_ns_counts_the_first_one);
    RUN(a_block_of_more_than_2_to_the_62_ns_is_a_bad_argument);
    RUN(a_block_that_is_ahead_by_the_step_is_believed_and_by_a_ns_more_is_cut);
    RUN(a_key_of_the_longest_intervals_is_not_forgotten_a_ns_early);
    RUN(a_full_bucket_is_seen_with_no_debt);
    RUN(a_refusal_writes_to_no_table);
    RUN(a_debt_on_purpose_that_fits_the_burst_again_is_in_tokens);
    RUN(a_fixed_window_of_2_to_the_62_ns_is_spent_once);
    RUN(a_window_of_2_to_the_62_ns_is_spent_once);
    RUN(the_short_ways_of_both_hashes_are_the_hashes);
#if RATELIMIT_PRIV_ATOMIC
    RUN(a_rest_is_swapped_whatever_was_seen_meanwhile_and_else_not);
    RUN(rest_comes_first_where_full_ns_goes_back);
    RUN(a_commit_that_a_quick_take_overtook_stores_nothing);
    RUN(a_commit_whose_lock_was_taken_over_puts_nothing_back);
    RUN(a_place_that_got_another_key_gets_no_second_one);
#  if RATELIMIT_PRIV_ATOMIC64
    RUN(tokens_of_a_lease_are_another_entrys_if_its_line_has_moved);
#  endif
    RUN(who_waited_for_a_lock_looks_again);
#endif
    RUN(what_a_store_told_is_rounded_by_a_256th_of_the_burst);
    RUN(a_lease_is_a_percentage_of_the_burst);
    RUN(a_lease_tells_what_the_store_told_and_what_it_has_left);
    RUN(an_answer_about_a_lease_becomes_one_about_the_request);
    RUN(an_entry_that_was_ended_holds_nothing);
    RUN(what_the_store_told_is_kept_with_a_lease);
    RUN(a_share_is_a_nth_of_the_burst_and_of_the_rate);
    RUN(a_local_bucket_owes_what_a_refusal_says);
    RUN(a_local_window_begins_full);
    RUN(a_lease_differs_from_what_it_replaces);
    RUN(a_note_is_of_an_entry_as_it_was_made);
    RUN(a_refusal_is_trusted_for_no_longer_than_trust_and_not_much_less);
    RUN(a_refusal_of_a_window_knows_how_many_are_too_many);
    return check_end();
}

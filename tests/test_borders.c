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
    CHECK(!ratelimit_bucket_decide_shared(&b, NULL, 0, &res));
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
    static uint64_t memory[RATELIMIT_TABLE_BYTES(24) / 8 + 1];
    const ratelimit_limit limit = ratelimit_window_make(5, MINUTE);
    ratelimit_table_options options;
    ratelimit_table *t;
    ratelimit_result res;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    options.step_ns = FOREVER;
    CHECK(ratelimit_table_init(&t, memory, sizeof memory, &options) == RATELIMIT_OK);
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
    static uint64_t memory[RATELIMIT_TABLE_BYTES(24) / 8 + 1];
    const ratelimit_limit limit = ratelimit_limit_make(1, 2, 100);
    ratelimit_table_options options;
    ratelimit_bucket b;
    ratelimit_table *t;
    ratelimit_result res;
    bool first;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    CHECK(ratelimit_table_init(&t, memory, sizeof memory, &options) == RATELIMIT_OK);
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

int main(int argc, char **argv)
{
    check_begin(argc, argv);
#if defined(RATELIMIT_PRIV_SHARED) && RATELIMIT_PRIV_ATOMIC64
    RUN(a_debt_made_on_purpose_outlives_the_holder_of_its_mark);
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
    return check_end();
}

/* test_limiter.c - the limiter: its simple calls, waiting (by reserving and by polling), failure
 * policies, shadow mode, counters, hook, closing; and the stores: called directly, and the
 * compare-and-swap store with all that a database may do to it. Clocks and sleeps are the test's
 * own: nothing here takes time. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(WITH_LOCK) /* the same with the caller's lock instead of atomics */
static pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;
#  define RATELIMIT_LOCK()   pthread_mutex_lock(&the_lock)
#  define RATELIMIT_UNLOCK() pthread_mutex_unlock(&the_lock)
#endif

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK RATELIMIT_OK

static const ratelimit_limit one = RATELIMIT_LIMIT(1, SEC, 1);
static const ratelimit_limit three = RATELIMIT_LIMIT(1, SEC, 3);
static const ratelimit_limit zero = RATELIMIT_LIMIT(0, SEC, 1);
static const ratelimit_limit window = RATELIMIT_WINDOW(2, 10 * SEC);

/* A limiter over a table, both on the clock of a sleeper, started anew for each test. */
static unsigned char memory[RATELIMIT_TABLE_BYTES(64)];
static ratelimit_table *table;
static ratelimit_limiter limiter;
static sleeper sleepy;

static void fresh_table(ratelimit_full when_full)
{
    ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, RATELIMIT_HASH_SIP, 0};
    options.when_full = when_full;
    if (ratelimit_table_init(&table, memory, sizeof memory, &options) != OK)
        exit(2);
    sleeper_start(&sleepy, 100 * SEC);
}

static void fresh(void)
{
    fresh_table(RATELIMIT_EVICT);
    limiter_start(&limiter, ratelimit_table_store(table, clock_read, &sleepy.now_ns), &sleepy);
}

static ratelimit_result take_request(const ratelimit_request *req)
{
    ratelimit_result res;
    memset(&res, 0xA5, sizeof res);
    res.allowed = false;
    CHECK(ratelimit_take(&limiter, req, &res) == res.allowed);
    return res;
}

static ratelimit_result wait_for(const char *key, const ratelimit_limit *limit, uint64_t n,
                                 uint64_t max_wait_ns)
{
    ratelimit_request req = request(key, limit, n);
    ratelimit_result res;
    memset(&res, 0xA5, sizeof res);
    res.allowed = false;
    CHECK(ratelimit_wait(&limiter, &req, max_wait_ns, &res) == res.allowed);
    return res;
}

static uint64_t remaining_of(const char *key, const ratelimit_limit *limit)
{
    ratelimit_request req = request(key, limit, 1);
    ratelimit_result res;
    req.op = RATELIMIT_PEEK;
    ratelimit_table_decide(table, &req, &res, 1, RATELIMIT_EACH, sleepy.now_ns);
    return res.remaining;
}

static ratelimit_counts counts(void)
{
    ratelimit_counts c;
    memset(&c, 0xA5, sizeof c);
    ratelimit_limiter_counts(&limiter, &c);
    return c;
}

static void check_counts(uint64_t allowed, uint64_t refused, uint64_t shadow_refused,
                         uint64_t failed, uint64_t bad)
{
    ratelimit_counts c = counts();
    CHECK_U64(c.allowed, allowed);
    CHECK_U64(c.refused, refused);
    CHECK_U64(c.shadow_refused, shadow_refused);
    CHECK_U64(c.failed, failed);
    CHECK_U64(c.bad, bad);
}

/* ---- stores of our own ----------------------------------------------------------------------- */

/* The table, behind a store that may fail, refuse to reserve, and count what it is asked. */
typedef struct front {
    bool fails, reserves, all;
    const char *fails_key; /* set: only requests of this key fail */
    int decides, closes, reserved, refunded, cancelled;
    uint64_t left_ns; /* of the wait that was cancelled last */
} front;

static void front_decide(const ratelimit_store *store, const ratelimit_request *req,
                         ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    front *f = (front *)store->self;
    size_t i;
    f->decides++;
    for (i = 0; i < count; i++) {
        f->reserved += req[i].op == RATELIMIT_RESERVE;
        f->refunded += req[i].op == RATELIMIT_REFUND;
        f->cancelled += req[i].op == RATELIMIT_CANCEL;
        f->left_ns = req[i].op == RATELIMIT_CANCEL ? req[i].max_wait_ns : f->left_ns;
    }
    if (!f->fails && (f->reserves || req->op != RATELIMIT_RESERVE) &&
        (f->all || mode != RATELIMIT_ALL)) {
        ratelimit_table_decide(table, req, res, count, mode, sleepy.now_ns);
        for (i = 0; f->fails_key && i < count; i++)
            if (req[i].key == f->fails_key)
                ratelimit_priv_answer(&res[i], RATELIMIT_STORE_FAILED);
        return;
    }
    for (i = 0; i < count; i++) {
        memset(&res[i], 0, sizeof res[i]);
        res[i].status = f->fails ? RATELIMIT_STORE_FAILED : RATELIMIT_UNSUPPORTED;
    }
}

static void front_close(const ratelimit_store *store)
{
    CHECK(store->decide == front_decide);
    ((front *)store->self)->closes++;
}

static ratelimit_store front_store(front *f)
{
    ratelimit_store store = store_of(front_decide, f);
    store.close = front_close;
    return store;
}

/* A limiter that has to poll. */
static front the_front;

static void fresh_polling(void)
{
    fresh_table(RATELIMIT_EVICT);
    memset(&the_front, 0, sizeof the_front);
    limiter_start(&limiter, front_store(&the_front), &sleepy);
}

/* ---- the simple calls ------------------------------------------------------------------------ */

static void allow_takes_one_and_allow_n_takes_n(void)
{
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &three));
    CHECK(ratelimit_allow_n(&limiter, "key", &three, 2));
    CHECK(!ratelimit_allow(&limiter, "key", &three));
    CHECK(ratelimit_allow(&limiter, "other", &three));
    sleepy.now_ns += 2 * SEC;
    CHECK(!ratelimit_allow_n(&limiter, "key", &three, 3));
    CHECK(ratelimit_allow_n(&limiter, "key", &three, 2));
    CHECK(!ratelimit_allow_n(&limiter, "other", &three, 4));
    check_counts(4, 3, 0, 0, 0);
}

static void allow_key_takes_bytes(void)
{
    static const unsigned char keys[3][4] = {{0, 0, 0, 0}, {0, 0, 0, 1}, {0, 0, 1, 0}};
    int i;
    fresh();
    for (i = 0; i < 3; i++) {
        CHECK(ratelimit_allow_key(&limiter, keys[i], sizeof keys[i], &one));
        CHECK(!ratelimit_allow_key(&limiter, keys[i], sizeof keys[i], &one));
    }
    CHECK(ratelimit_allow_key(&limiter, keys[0], 3, &one)); /* the length is part of the key */
    CHECK(ratelimit_allow_key(&limiter, "key", 3, &one));
    CHECK(!ratelimit_allow(&limiter, "key", &one));
    CHECK(!ratelimit_allow_key(&limiter, NULL, 3, &one));
    CHECK(!ratelimit_allow_key(&limiter, "key", 0, &one));
    check_counts(5, 6, 0, 0, 2);
}

/* Over a table allow has a way of its own. It must come to the same and count the same as the long
 * way, which a hook forces. */
static void ignore(void *self, const ratelimit_request *req, const ratelimit_result *res)
{
    (void)self, (void)req, (void)res;
}

static void the_short_way_of_allow_counts_as_the_long_one(void)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    static const ratelimit_limit *const limits[] = {&one, &three, &zero, &window, &unlimited, NULL};
    static const char *const keys[] = {"a", "b", "", NULL};
    static const uint64_t counts_of[] = {0,         1, 2, 3, 4, INT64_MAX, (uint64_t)INT64_MAX + 1,
                                         UINT64_MAX};
    ratelimit_counts first;
    uint64_t passed[2] = {0, 0};
    int way;
    memset(&first, 0, sizeof first);
    for (way = 0; way < 2; way++) {
        size_t i, j, k;
        ratelimit_counts c;
        fresh();
        limiter.hook = way ? ignore : NULL;
        for (i = 0; i < COUNT(limits); i++)
            for (j = 0; j < COUNT(keys); j++)
                for (k = 0; k < COUNT(counts_of); k++, sleepy.now_ns += SEC / 3)
                    passed[way] = passed[way] * 31 +
                                  ratelimit_allow_n(&limiter, keys[j], limits[i], counts_of[k]);
        c = counts();
        if (way)
            CHECK(memcmp(&c, &first, sizeof c) == 0 && passed[0] == passed[1]);
        first = c;
        CHECK(c.allowed && c.refused && c.bad);
    }
}

static void an_error_does_not_get_through_an_if(void)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    fresh();
    CHECK(!ratelimit_allow(&limiter, NULL, &one));
    CHECK(!ratelimit_allow(&limiter, "", &one));
    CHECK(!ratelimit_allow(&limiter, "key", NULL));
    CHECK(!ratelimit_allow(&limiter, "key", &zero));
    CHECK(!ratelimit_allow_n(&limiter, "key", &one, 0));
    CHECK(!ratelimit_allow_n(&limiter, "key", &one, 2));
    check_counts(0, 6, 0, 0,
                 5); /* more than the burst is a refusal, not a mistake of the program's */
    CHECK(ratelimit_allow_n(&limiter, "key", &unlimited, INT64_MAX));
}

static void take_does_every_operation(void)
{
    ratelimit_request req = request("key", &three, 2);
    fresh();
    CHECK_U64(take_request(&req).remaining, 1);
    req.op = RATELIMIT_PEEK;
    CHECK_U64(take_request(&req).status, RATELIMIT_DENIED);
    req.op = RATELIMIT_TAKE_UP_TO;
    CHECK_U64(take_request(&req).taken, 1);
    req.op = RATELIMIT_RESERVE;
    req.max_wait_ns = 2 * SEC;
    CHECK_U64(take_request(&req).wait_ns, 2 * SEC);
    req.op = RATELIMIT_CHARGE;
    CHECK_U64(take_request(&req).reset_after_ns, 7 * SEC);
    req.op = RATELIMIT_REFUND;
    CHECK_U64(take_request(&req).reset_after_ns, 5 * SEC);
    req.op = RATELIMIT_BLOCK;
    req.max_wait_ns = 60 * SEC;
    CHECK_U64(take_request(&req).wait_ns, 60 * SEC);
    req.op = RATELIMIT_RESET;
    CHECK_U64(take_request(&req).remaining, 3);
    req.op = RATELIMIT_RESERVE;
    req.max_wait_ns = 2 * SEC;
    req.n = 3;
    CHECK_U64(take_request(&req).wait_ns, 0);
    req.n = 2;
    CHECK_U64(take_request(&req).wait_ns, 2 * SEC);
    req.op = RATELIMIT_CANCEL;
    CHECK_U64(take_request(&req).taken, 2);
    req.op = (ratelimit_op)RATELIMIT_PRIV_OPS;
    CHECK_U64(take_request(&req).status, RATELIMIT_BAD_ARGUMENT);
}

static void the_result_may_be_left_out(void)
{
    ratelimit_request req = request("key", &one, 1);
    fresh();
    CHECK(ratelimit_take(&limiter, &req, NULL));
    CHECK(!ratelimit_take(&limiter, &req, NULL));
    CHECK(ratelimit_wait(&limiter, &req, SEC, NULL));
    CHECK(!ratelimit_wait(&limiter, &req, 0, NULL));
}

static void take_each_decides_each_on_its_own(void)
{
    ratelimit_request req[3];
    ratelimit_result res[3];
    fresh();
    req[0] = request("a", &one, 1);
    req[1] = request("a", &one, 1);
    req[2] = request("b", &one, 1);
    CHECK(!ratelimit_take_each(&limiter, req, res, 3)); /* true only if all were allowed */
    CHECK(res[0].allowed && !res[1].allowed && res[2].allowed);
    check_counts(2, 1, 0, 0, 0);
    sleepy.now_ns += SEC;
    req[1].key = "c";
    CHECK(ratelimit_take_each(&limiter, req, res, 3));
}

static void take_all_takes_all_or_none(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh();
    req[0] = request("a", &three, 1);
    req[1] = request("b", &one, 1);
    CHECK(ratelimit_take_all(&limiter, req, res, 2));
    CHECK(!ratelimit_take_all(&limiter, req, res, 2));
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(remaining_of("a", &three), 2);
    check_counts(2, 2, 0, 0, 0);
}

static void a_batch_of_nothing_is_all_allowed(void)
{
    ratelimit_result res;
    fresh();
    CHECK(ratelimit_take_each(&limiter, NULL, &res, 0));
    CHECK(ratelimit_take_all(&limiter, NULL, &res, 0));
    check_counts(0, 0, 0, 0, 0);
}

static void null_anywhere_is_a_bad_argument(void)
{
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    ratelimit_counts c;
    fresh();
    CHECK(!ratelimit_take(NULL, &req, &res) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_take(&limiter, NULL, &res) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_take(NULL, NULL, NULL));
    CHECK(!ratelimit_allow(NULL, "key", &one));
    CHECK(!ratelimit_allow_n(NULL, "key", &one, 1));
    CHECK(!ratelimit_take_each(&limiter, NULL, &res, 1) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_take_each(&limiter, &req, NULL, 1));
    CHECK(!ratelimit_take_each(NULL, &req, &res, 1) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_take_all(&limiter, NULL, &res, 1) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_take_all(&limiter, &req, NULL, 1));
    CHECK(!ratelimit_wait(NULL, &req, SEC, &res) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_wait(&limiter, NULL, SEC, &res) && res.status == RATELIMIT_BAD_ARGUMENT);
    ratelimit_cancel(NULL);
    ratelimit_close(NULL);
    ratelimit_limiter_counts(&limiter, NULL);
    memset(&c, 0xA5, sizeof c);
    ratelimit_limiter_counts(NULL, &c);
    CHECK_U64(c.allowed + c.refused + c.failed, 0);
    CHECK_U64(remaining_of("key", &one), 1);
}

static void init_refuses_what_could_not_work(void)
{
    ratelimit_limiter l;
    ratelimit_store none;
    fresh();
    memset(&none, 0, sizeof none);
    memset(&l, 0, sizeof l);
    CHECK_U64(ratelimit_init(NULL, limiter.store), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_init(&l, none), RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_allow(&l, "key",
                           &one)); /* nor does a limiter that is only zeroed allow anything */
    l.on_failure = RATELIMIT_FAIL_LOCAL;
    CHECK_U64(ratelimit_init(&l, limiter.store), RATELIMIT_BAD_ARGUMENT);
    l.fallback = limiter.store;
    CHECK_U64(ratelimit_init(&l, limiter.store), OK);
    l.on_failure = (ratelimit_failure)3;
    CHECK_U64(ratelimit_init(&l, limiter.store), RATELIMIT_BAD_ARGUMENT);
}

/* Threads begin together, or the first is done before the last is there. */
static uint32_t threads_there;

static void wait_for_threads(void)
{
    uint32_t there;
    do
        there = ratelimit_priv_load32(&threads_there);
    while (!ratelimit_priv_swap32(&threads_there, there, there + 1));
    while (ratelimit_priv_load32(&threads_there) % 4)
        ratelimit_priv_relax();
}

enum { ALLOWS = SHORT ? 20000 : 1000000 };

static void *thread_allows(void *self)
{
    int i;
    wait_for_threads();
    for (i = 0; i < ALLOWS; i++) {
        (void)ratelimit_allow(&limiter, (const char *)self, &three);
        if (i % 16 == 0)
            (void)ratelimit_allow(&limiter, "", &three);
    }
    return NULL;
}

/* With RATELIMIT_LOCK counters were plain additions, and lost some. */
static void counters_are_exact_with_threads(void)
{
    static char keys[4][2] = {"a", "b", "c", "a"};
    pthread_t thread[4];
    ratelimit_counts c;
    size_t i;
    int way;
    for (way = 0; way < 2; way++) {
        fresh();
        limiter.hook = way ? ignore : NULL;
        for (i = 0; i < 4; i++)
            if (pthread_create(&thread[i], NULL, thread_allows, keys[i]) != 0)
                exit(2);
        for (i = 0; i < 4; i++)
            pthread_join(thread[i], NULL);
        c = counts();
        CHECK_U64(c.allowed, 9); /* time stands still */
#if RATELIMIT_PRIV_CAN64 || defined(RATELIMIT_LOCK)
        CHECK_U64(c.refused, 4 * (ALLOWS + ALLOWS / 16) - 9);
        CHECK_U64(c.bad, 4 * (ALLOWS / 16));
#endif
    }
}

/* ---- wait, where the store can reserve ------------------------------------------------------- */

static void a_wait_with_tokens_there_does_not_sleep(void)
{
    ratelimit_result res;
    fresh();
    res = wait_for("key", &three, 3, FOREVER);
    CHECK(res.allowed);
    CHECK_U64(res.status, OK);
    CHECK_U64(res.taken, 3);
    CHECK_U64(res.wait_ns, 0);
    CHECK_U64(sleepy.sleeps, 0);
}

static void a_wait_sleeps_once_until_its_tokens_are_there(void)
{
    ratelimit_result res;
    fresh();
    CHECK(ratelimit_allow_n(&limiter, "key", &three, 2));
    res = wait_for("key", &three, 3, FOREVER);
    CHECK(res.allowed);
    CHECK_U64(res.wait_ns, 2 * SEC);
    CHECK_U64(sleepy.sleeps, 1);
    CHECK_U64(sleepy.slept_ns, 2 * SEC);
    CHECK_U64(remaining_of("key", &three), 0);
    check_counts(2, 0, 0, 0, 0);
}

/* max_wait_ns at, one below and one above what the wait takes. */
static void a_wait_at_most_as_long_as_allowed_is_waited(void)
{
    static const struct {
        uint64_t max_wait_ns;
        ratelimit_status status;
    } rows[] = {
        {0, RATELIMIT_TIMEOUT}, {1, RATELIMIT_TIMEOUT}, {SEC - 1, RATELIMIT_TIMEOUT},
        {SEC, RATELIMIT_OK},    {SEC + 1, OK},          {FOREVER - 1, OK},
        {FOREVER, OK},
    };
    size_t i;
    int polling;
    for (polling = 0; polling < 2; polling++)
        for (i = 0; i < COUNT(rows); i++) {
            ratelimit_result res;
            if (polling)
                fresh_polling();
            else
                fresh();
            place(polling ? "polling" : "reserving", 0, i);
            CHECK(ratelimit_allow(&limiter, "key", &one));
            res = wait_for("key", &one, 1, rows[i].max_wait_ns);
            CHECK_U64(res.status, rows[i].status);
            if (res.status == RATELIMIT_TIMEOUT) { /* at once, and nothing was taken */
                CHECK_U64(res.retry_after_ns, SEC);
                CHECK_U64(res.taken, 0);
                CHECK_U64(sleepy.sleeps, 0);
                sleepy.now_ns = 101 * SEC;
                CHECK(ratelimit_allow(&limiter, "key", &one));
            } else {
                CHECK(sleepy.now_ns >= 101 * SEC);
                CHECK(sleepy.now_ns <=
                      100 * SEC + (rows[i].max_wait_ns > 2 * SEC ? 2 * SEC : rows[i].max_wait_ns));
            }
        }
    place_end();
}

static void waits_are_served_first_come_first_served(void)
{
    ratelimit_request req = request("key", &one, 1);
    int i;
    fresh();
    req.op = RATELIMIT_RESERVE;
    req.max_wait_ns = FOREVER;
    for (i = 0; i < 5; i++) /* five others are waiting already */
        CHECK_U64(take_request(&req).wait_ns, (uint64_t)i * SEC);
    CHECK_U64(wait_for("key", &one, 1, FOREVER).wait_ns, 5 * SEC);
    CHECK_U64(sleepy.now_ns, 105 * SEC);
}

static void a_cancelled_wait_gives_back_what_it_had_reserved(void)
{
    fresh();
    CHECK(ratelimit_allow_n(&limiter, "key", &three, 3));
    sleepy.cancel_after = 0;
    CHECK_U64(wait_for("key", &three, 2, FOREVER).status, RATELIMIT_CANCELED);
    sleepy.now_ns += SEC; /* one second later one token is there, as if nobody had waited */
    CHECK_U64(remaining_of("key", &three), 1);
}

/* Two wait for one token each, the first is cancelled. Given back as a plain refund, its place was
 * taken by a third, and two acted at once with a burst of 1. */
static void a_cancelled_wait_gives_back_only_what_nobody_stands_on(void)
{
    ratelimit_request second = request("key", &one, 1);
    ratelimit_result res;
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    second.op = RATELIMIT_RESERVE;
    second.max_wait_ns = FOREVER;
    limiter.sleep = sleeper_sleep;
    sleepy.cancel_after = 0;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED); /* last: all back */
    CHECK_U64(take_request(&second).wait_ns, SEC);
    CHECK_U64(take_request(&second).wait_ns, 2 * SEC);
    res = take_request(&second);
    CHECK_U64(res.wait_ns, 3 * SEC);
    fresh_polling();
    the_front.reserves = true;
    CHECK(ratelimit_allow(&limiter, "key", &one));
    sleepy.cancel_after = 0;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
    CHECK(the_front.cancelled == 1 && the_front.refunded == 0);
    CHECK_U64(the_front.left_ns, SEC);
}

static bool sleep_while_another_reserves(void *self, uint64_t ns)
{
    ratelimit_request other = request("key", &one, 1);
    ratelimit_result res;
    (void)ns;
    other.op = RATELIMIT_RESERVE;
    other.max_wait_ns = FOREVER;
    (void)ratelimit_table_decide_one(table, &other, ((sleeper *)self)->now_ns, &res);
    CHECK_U64(res.wait_ns, 2 * SEC);
    return false;
}

static void a_cancelled_wait_before_another_makes_nobody_act_at_once(void)
{
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &one)); /* at 100 s */
    limiter.sleep = sleep_while_another_reserves;  /* acts at 102 s */
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
    sleepy.now_ns += 2 * SEC;
    CHECK(!ratelimit_allow(&limiter, "key", &one)); /* the other one does, just now */
    sleepy.now_ns += SEC;
    CHECK(ratelimit_allow(&limiter, "key", &one));
}

static bool sleep_to_the_end_and_cancel(void *self, uint64_t ns)
{
    ratelimit_limiter *l = (ratelimit_limiter *)self;
    sleepy.now_ns += ns;
    ratelimit_cancel(l);
    return true;
}

/* Nothing could be given back any more, so the tokens were lost. */
static void a_wait_whose_time_has_come_is_not_cancelled(void)
{
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    limiter.sleep = sleep_to_the_end_and_cancel;
    limiter.sleep_self = &limiter;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, OK);
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
}

static void a_blocked_key_is_not_waited_for(void)
{
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    fresh();
    req.op = RATELIMIT_BLOCK;
    req.max_wait_ns = 30 * SEC;
    CHECK(take_request(&req).allowed);
    res = wait_for("key", &one, 1, FOREVER);
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK_U64(res.retry_after_ns, 30 * SEC);
    CHECK_U64(sleepy.sleeps, 0);
}

/* The wait begins when the store has decided: a slow answer does not make it end early. */
static void slow_decide(const ratelimit_store *store, const ratelimit_request *req,
                        ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    sleepy.now_ns += 100 * MS;
    front_decide(store, req, res, count, mode);
}

static void a_wait_does_not_end_before_its_time_if_the_answer_was_slow(void)
{
    fresh_polling();
    the_front.reserves = true;
    limiter.store.decide = slow_decide;
    CHECK(ratelimit_allow(&limiter, "key", &one)); /* decided at 100.1 s */
    CHECK(wait_for("key", &one, 1, FOREVER).allowed);
    CHECK(sleepy.now_ns >= 100 * SEC + 100 * MS + SEC);
    sleepy.cancel_after = sleepy.sleeps;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
    CHECK_U64(the_front.left_ns, 800 * MS); /* of 900; counted from before it was asked */
}

static bool sleep_and_cancel(void *self, uint64_t ns)
{
    (void)ns;
    ratelimit_cancel((ratelimit_limiter *)self);
    return true;
}

static void cancel_ends_all_waits_now_and_from_now_on(void)
{
    int polling;
    for (polling = 0; polling < 2; polling++) {
        if (polling)
            fresh_polling();
        else
            fresh();
        place(polling ? "polling" : "reserving", 0, 0);
        CHECK(ratelimit_allow(&limiter, "key", &one));
        limiter.sleep = sleep_and_cancel;
        limiter.sleep_self = &limiter;
        CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
        limiter.sleep = sleeper_sleep;
        limiter.sleep_self = &sleepy;
        CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
        CHECK_U64(wait_for("full", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
        CHECK_U64(sleepy.sleeps, 0);
        sleepy.now_ns += SEC;
        CHECK(ratelimit_allow(&limiter, "key",
                              &one)); /* what had been reserved is back; takes go on */
    }
    place_end();
}

static void what_no_waiting_helps_is_not_waited_for(void)
{
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    int polling;
    for (polling = 0; polling < 2; polling++) {
        if (polling)
            fresh_polling();
        else
            fresh();
        place(polling ? "polling" : "reserving", 0, 0);
        CHECK_U64(wait_for("key", &one, 2, FOREVER).status, RATELIMIT_NEVER);
        CHECK_U64(wait_for("key", &zero, 1, FOREVER).status, RATELIMIT_BAD_LIMIT);
        CHECK_U64(wait_for("key", NULL, 1, FOREVER).status, RATELIMIT_BAD_LIMIT);
        CHECK_U64(wait_for("key", &one, 0, FOREVER).status, RATELIMIT_BAD_COUNT);
        CHECK_U64(wait_for("", &one, 1, FOREVER).status, RATELIMIT_BAD_KEY);
        CHECK_U64(wait_for(NULL, &one, 1, FOREVER).status, RATELIMIT_BAD_KEY);
        req.op = RATELIMIT_PEEK;
        CHECK(!ratelimit_wait(&limiter, &req, FOREVER, &res));
        CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
        CHECK_U64(sleepy.sleeps, 0);
        CHECK_U64(remaining_of("key", &one), 1);
    }
    place_end();
}

static void a_wait_for_a_reservation_is_a_wait(void)
{
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    fresh();
    req.op = RATELIMIT_RESERVE;
    req.max_wait_ns = 0; /* not used: the argument is */
    CHECK(ratelimit_wait(&limiter, &req, FOREVER, &res));
    CHECK(ratelimit_wait(&limiter, &req, FOREVER, &res));
    CHECK_U64(sleepy.slept_ns, SEC);
}

/* Full table, no reservation possible: the answer, and no sleep. */
static void a_wait_without_a_place_in_the_table_is_full(void)
{
    uint64_t i, full = 0;
    fresh_table(RATELIMIT_REFUSE);
    limiter_start(&limiter, ratelimit_table_store(table, clock_read, &sleepy.now_ns), &sleepy);
    for (i = 0; i < 1000; i++) {
        ratelimit_request req = request("k", &one, 1);
        ratelimit_result res;
        req.key = &i;
        req.key_len = sizeof i;
        (void)ratelimit_wait(&limiter, &req, FOREVER, &res);
        full += res.status == RATELIMIT_FULL;
    }
    CHECK(full > 800);
    CHECK_U64(sleepy.sleeps, 0);
}

static void a_sleep_that_ends_early_is_slept_to_its_end(void)
{
    static const uint64_t cuts[] = {2, 4, 10, 100};
    size_t i;
    int polling;
    for (polling = 0; polling < 2; polling++)
        for (i = 0; i < COUNT(cuts); i++) {
            if (polling)
                fresh_polling();
            else
                fresh();
            place(polling ? "polling" : "reserving", 0, i);
            CHECK(ratelimit_allow(&limiter, "key", &one));
            sleepy.cut = cuts[i];
            sleepy.cancel_after = 100000;
            CHECK(wait_for("key", &one, 1, FOREVER).allowed);
            CHECK(sleepy.now_ns >= 101 * SEC); /* true: the time of the tokens has come */
            CHECK(sleepy.shortest_ns > 0);
        }
    place_end();
}

static bool sleep_and_set_back(void *self, uint64_t ns, unsigned which, uint64_t back_ns)
{
    sleeper *s = (sleeper *)self;
    bool slept = sleeper_sleep(self, ns);
    if (s->sleeps == which)
        s->now_ns -= back_ns;
    return slept;
}

static bool first_sets_back(void *self, uint64_t ns)
{
    return sleep_and_set_back(self, ns, 1, 60 * SEC);
}

/* The wait went on for as long as the clock had been set back. */
static void a_wait_is_no_longer_for_a_clock_that_is_set_back(void)
{
    int polling;
    for (polling = 0; polling < 2; polling++) {
        ratelimit_result res;
        if (polling)
            fresh_polling();
        else
            fresh();
        CHECK(ratelimit_allow(&limiter, "key", &one));
        limiter.sleep = first_sets_back;
        res = wait_for("key", &one, 1, 5 * SEC);
        CHECK(polling || res.allowed);
        CHECK(sleepy.slept_ns <= 5 * SEC + RATELIMIT_MILLISECOND);
        CHECK(res.status != RATELIMIT_CANCELED);
    }
}

/* A second sleep set it back by less than the wait had taken. */
static bool second_sets_back(void *self, uint64_t ns)
{
    return sleep_and_set_back(self, ns, 2, 600 * MS);
}

static void a_wait_whose_clock_was_set_back_a_little_goes_on_from_there(void)
{
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    limiter.sleep = second_sets_back;
    sleepy.cut = 2; /* 500 ms, then 250 ms and back to 150 ms */
    sleepy.cancel_after = 100000;
    CHECK(wait_for("key", &one, 1, FOREVER).allowed);
    CHECK(sleepy.now_ns >= 100 * SEC + 650 * MS); /* 500 ms after it was set back */
    CHECK(sleepy.now_ns < 101 * SEC);
}

static void a_wait_is_given_up_if_its_clock_stands_still(void)
{
    uint64_t frozen = 100 * SEC;
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    limiter.clock_self = &frozen;
    sleepy.cancel_after = 100000;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
    CHECK_U64(sleepy.sleeps, 1000);
}

/* The answer took longer than the wait it spoke of: the tokens are our own by then. */
static void very_slow_decide(const ratelimit_store *store, const ratelimit_request *req,
                             ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    front_decide(store, req, res, count, mode);
    sleepy.now_ns += 3 * SEC;
}

static void a_cancelled_wait_gives_nothing_back_that_its_time_has_paid(void)
{
    fresh_polling();
    the_front.reserves = true;
    CHECK(ratelimit_allow(&limiter, "key", &one));
    limiter.store.decide = very_slow_decide;
    sleepy.cancel_after = 0;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
    CHECK_U64(the_front.cancelled, 0);
}

/* As a tier does: its local buckets have reserved, of which its store knows nothing. */
static void tier_decide(const ratelimit_store *store, const ratelimit_request *req,
                        ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    front_decide(store, req, res, count, mode);
    res->status = RATELIMIT_STORE_FAILED;
    res->source = RATELIMIT_FROM_FALLBACK;
}

static void a_cancelled_wait_on_a_tiers_local_bucket_gives_nothing_back(void)
{
    fresh_polling();
    the_front.reserves = true;
    CHECK(ratelimit_allow(&limiter, "key", &one));
    limiter.store.decide = tier_decide;
    sleepy.cancel_after = 0;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
    CHECK_U64(the_front.reserved, 1);
    CHECK_U64(the_front.cancelled, 0);
}

/* ---- the platform's clock and sleep: here little time passes --------------------------------- */

static uint64_t counting_clock(void *readings)
{
    ++*(int *)readings;
    return ratelimit_clock_ns();
}

/* It is asleep, and does not look at the clock all the time. */
static void a_wait_without_a_sleep_of_its_own_uses_the_platforms(void)
{
    static const ratelimit_limit quick = RATELIMIT_LIMIT(1, 5 * MS, 1);
    uint64_t start;
    int readings = 0;
    fresh_table(RATELIMIT_EVICT);
    memset(&limiter, 0, sizeof limiter);
    CHECK_U64(ratelimit_init(&limiter, ratelimit_table_store(table, counting_clock, &readings)),
              OK);
    CHECK(ratelimit_allow(&limiter, "key", &quick));
    start = ratelimit_clock_ns();
    CHECK(wait_for("key", &quick, 1, FOREVER).allowed); /* that token, or the next */
    CHECK(wait_for("key", &quick, 1, FOREVER).allowed);
    CHECK(ratelimit_clock_ns() - start >= 5 * MS);
    CHECK(readings < 1000);
}

/* Its fourth reading comes after the first slice of the sleep. */
static uint64_t canceling_clock(void *readings)
{
    if (++*(int *)readings == 4)
        ratelimit_cancel(&limiter);
    return ratelimit_clock_ns();
}

static void a_cancel_is_seen_within_a_slice_of_the_platforms_sleep(void)
{
    static const ratelimit_limit slow = RATELIMIT_LIMIT(1, 5 * MINUTE, 1);
    uint64_t start;
    int readings = 0;
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &slow));
    limiter.sleep = NULL;
    limiter.clock = canceling_clock;
    limiter.clock_self = &readings;
    start = ratelimit_clock_ns();
    CHECK_U64(wait_for("key", &slow, 1, FOREVER).status, RATELIMIT_CANCELED);
    CHECK(ratelimit_clock_ns() - start < MINUTE); /* and not five */
}

/* ---- wait, where it has to poll -------------------------------------------------------------- */

static void a_store_that_cannot_reserve_is_polled_at_retry_after(void)
{
    ratelimit_result res;
    fresh_polling();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    res = wait_for("key", &one, 1, FOREVER);
    CHECK(res.allowed);
    CHECK_U64(res.taken, 1);
    CHECK(sleepy.now_ns >= 101 * SEC && sleepy.now_ns <= 101 * SEC + SEC / 4);
    CHECK(sleepy.sleeps <= 3);
    CHECK_U64(the_front.reserved, 1); /* asked once whether it can */
}

static void a_poll_pauses_for_a_second_at_most(void)
{
    static const ratelimit_limit slow = RATELIMIT_LIMIT(1, 10 * SEC, 1);
    fresh_polling();
    CHECK(ratelimit_allow(&limiter, "key", &slow));
    sleepy.cancel_after = 100000;
    CHECK(wait_for("key", &slow, 1, FOREVER).allowed);
    CHECK(sleepy.longest_ns <= SEC);
    CHECK(sleepy.now_ns >= 110 * SEC);
}

/* While we sleep, somebody else takes whatever comes back. */
static bool sleep_while_others_take(void *self, uint64_t ns)
{
    bool slept = sleeper_sleep(self, ns);
    (void)ratelimit_table_take(table, "key", 3, &one, 1, sleepy.now_ns, NULL);
    return slept;
}

static void a_poll_that_others_are_always_ahead_of_ends_by_its_deadline(void)
{
    fresh_polling();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    limiter.sleep = sleep_while_others_take;
    CHECK_U64(wait_for("key", &one, 1, 5 * SEC).status, RATELIMIT_TIMEOUT);
    CHECK(sleepy.sleeps >= 3);
    CHECK(sleepy.now_ns <= 105 * SEC);
}

static void a_wait_on_a_window_polls_to_its_end(void)
{
    ratelimit_result res;
    fresh(); /* the store can reserve, but a window cannot be reserved */
    CHECK(ratelimit_allow_n(&limiter, "key", &window, 2));
    CHECK_U64(wait_for("key", &window, 1, 10 * SEC - 1).status, RATELIMIT_TIMEOUT);
    res = wait_for("key", &window, 2, 12 * SEC);
    CHECK(res.allowed);
    CHECK(sleepy.now_ns >= 110 * SEC && sleepy.now_ns <= 112 * SEC);
}

static void a_poll_whose_answer_came_after_its_deadline_is_over(void)
{
    fresh_polling();
    limiter.store.decide = slow_decide; /* 100 ms */
    CHECK(ratelimit_allow(&limiter, "key", &one));
    CHECK_U64(wait_for("key", &one, 1, 50 * MS).status, RATELIMIT_TIMEOUT);
    CHECK_U64(sleepy.sleeps, 0);
}

static void refuse_without_a_time(const ratelimit_store *store, const ratelimit_request *req,
                                  ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    front_decide(store, req, res, count, mode);
    res->retry_after_ns = 0;
}

/* Or it would ask without a pause. */
static void a_poll_pauses_also_if_the_store_says_no_time(void)
{
    fresh_polling();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    limiter.store.decide = refuse_without_a_time;
    sleepy.cancel_after = 3;
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_CANCELED);
    CHECK_U64(sleepy.shortest_ns, 1);
}

static bool sleep_while_shadow_is_switched_on(void *self, uint64_t ns)
{
    bool slept = sleeper_sleep(self, ns / 2);
    limiter.shadow = true;
    return slept;
}

static void shadow_that_is_switched_on_ends_a_poll(void)
{
    fresh_polling();
    CHECK(ratelimit_allow_n(&limiter, "key", &window, 2));
    limiter.sleep = sleep_while_shadow_is_switched_on;
    CHECK(wait_for("key", &window, 1, FOREVER).allowed);
    CHECK(sleepy.now_ns < 110 * SEC); /* the window had not ended */
    check_counts(2, 0, 1, 0, 0);
}

static void polls_do_not_come_all_at_once(void)
{
    uint64_t ends[8];
    size_t i, j, same = 0;
    for (i = 0; i < COUNT(ends); i++) {
        fresh_polling();
        limiter.jitter = (uint32_t)(i * 7919 + 1);
        CHECK(ratelimit_allow(&limiter, "key", &one));
        CHECK(wait_for("key", &one, 1, FOREVER).allowed);
        ends[i] = sleepy.now_ns;
        for (j = 0; j < i; j++)
            same += ends[i] == ends[j];
    }
    CHECK(same < 4);
}

enum { JITTERS = SHORT ? 50000 : 3000000, STEP = 1000 };
static uint64_t jitters[STEP];

static void *thread_jitters(void *self)
{
    ratelimit_priv_waiting w;
    int i;
    memset(&w, 0, sizeof w);
    w.l = (ratelimit_limiter *)self;
    wait_for_threads();
    for (i = 0; i < JITTERS; i++)
        (void)ratelimit_priv_jitter(&w, 1000);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Two that read the same state had the same jitter, and came at once. The state counts, so it has
 * moved on by as many steps as there were calls. */
static void no_two_threads_have_the_same_jitter(void)
{
    pthread_t thread[4];
    ratelimit_priv_waiting w;
    uint32_t before, steps;
    size_t i, same = 0;
    fresh();
    memset(&w, 0, sizeof w);
    w.l = &limiter;
    before = limiter.jitter;
    for (i = 0; i < STEP; i++)
        jitters[i] = ratelimit_priv_jitter(&w, UINT64_C(1) << 32);
    steps = limiter.jitter - before;
    before = limiter.jitter;
    qsort(jitters, STEP, sizeof *jitters, by_size);
    for (i = 1; i < STEP; i++)
        same += jitters[i] == jitters[i - 1];
    CHECK_U64(same, 0);
    for (i = 0; i < 4; i++)
        if (pthread_create(&thread[i], NULL, thread_jitters, &limiter) != 0)
            exit(2);
    for (i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK_U64(limiter.jitter - before, (uint32_t)(steps * (uint32_t)(4 * (JITTERS / STEP))));
}

/* ---- failing stores -------------------------------------------------------------------------- */

static front failing;

static void fresh_failing(ratelimit_failure policy)
{
    fresh();
    memset(&failing, 0, sizeof failing);
    failing.fails = true;
    failing.reserves = failing.all = true;
    memset(&limiter, 0, sizeof limiter);
    limiter.on_failure = policy;
    limiter.sleep = sleeper_sleep;
    limiter.sleep_self = &sleepy;
    limiter.clock = clock_read;
    limiter.clock_self = &sleepy.now_ns;
    if (policy == RATELIMIT_FAIL_LOCAL)
        limiter.fallback = ratelimit_table_store(table, clock_read, &sleepy.now_ns);
    CHECK_U64(ratelimit_init(&limiter, front_store(&failing)), OK);
}

static void an_open_policy_allows_and_says_that_it_did(void)
{
    ratelimit_request req = request("key", &one, 1);
    int i;
    fresh_failing(RATELIMIT_FAIL_OPEN);
    for (i = 0; i < 5; i++) {
        ratelimit_result res = take_request(&req);
        CHECK(res.allowed);
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res.source, RATELIMIT_FROM_POLICY);
    }
    check_counts(5, 0, 0, 5, 0);
    CHECK(wait_for("key", &one, 1, 0).allowed);
    CHECK_U64(sleepy.sleeps, 0);
}

static void a_closed_policy_refuses_and_says_why(void)
{
    ratelimit_request req = request("key", &one, 1);
    fresh_failing(RATELIMIT_FAIL_CLOSED);
    CHECK(!ratelimit_allow(&limiter, "key", &one));
    CHECK_U64(take_request(&req).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(take_request(&req).source, RATELIMIT_FROM_POLICY);
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(sleepy.sleeps, 0);
    failing.fails = false; /* back again: nothing is remembered */
    CHECK(ratelimit_allow(&limiter, "key", &one));
    check_counts(1, 4, 0, 4, 0);
}

static void a_local_policy_asks_the_fallback(void)
{
    ratelimit_request req = request("key", &three, 1);
    int i;
    fresh_failing(RATELIMIT_FAIL_LOCAL);
    for (i = 0; i < 5; i++) {
        ratelimit_result res = take_request(&req);
        CHECK(res.allowed == (i < 3));
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res.source, RATELIMIT_FROM_FALLBACK);
        CHECK_U64(res.retry_after_ns, i < 3 ? 0 : SEC);
    }
    check_counts(3, 2, 0, 5, 0);
}

static void a_fallback_that_fails_too_refuses(void)
{
    static front second;
    ratelimit_request req = request("key", &one, 1);
    fresh_failing(RATELIMIT_FAIL_LOCAL);
    memset(&second, 0, sizeof second);
    second.fails = true;
    limiter.fallback = front_store(&second);
    CHECK(!take_request(&req).allowed);
    CHECK_U64(take_request(&req).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(second.decides, 2);
}

static void a_wait_on_the_fallback_gives_back_to_the_fallback(void)
{
    ratelimit_request req = request("key", &three, 3);
    fresh_failing(RATELIMIT_FAIL_LOCAL);
    CHECK(take_request(&req).allowed);
    CHECK(wait_for("key", &three, 1, SEC).allowed);
    CHECK_U64(sleepy.slept_ns, SEC);
    sleepy.cancel_after = sleepy.sleeps;
    CHECK_U64(wait_for("key", &three, 1, SEC).status, RATELIMIT_CANCELED);
    sleepy.now_ns += SEC;
    CHECK_U64(remaining_of("key", &three), 1);
}

static void a_batch_of_all_fails_as_a_whole(void)
{
    static const ratelimit_failure policies[] = {RATELIMIT_FAIL_OPEN, RATELIMIT_FAIL_CLOSED,
                                                 RATELIMIT_FAIL_LOCAL};
    size_t i;
    for (i = 0; i < COUNT(policies); i++) {
        ratelimit_request req[2];
        ratelimit_result res[2];
        bool first;
        place("policies", 0, i);
        fresh_failing(policies[i]);
        req[0] = request("a", &three, 1);
        req[1] = request("b", &one, 1);
        first = ratelimit_take_all(&limiter, req, res, 2);
        CHECK(first == (policies[i] != RATELIMIT_FAIL_CLOSED));
        CHECK(res[0].status == RATELIMIT_STORE_FAILED && res[1].status == RATELIMIT_STORE_FAILED);
        CHECK(res[0].allowed == res[1].allowed);
        CHECK(ratelimit_take_all(&limiter, req, res, 2) == (policies[i] == RATELIMIT_FAIL_OPEN));
        CHECK(res[0].allowed == res[1].allowed);
        CHECK_U64(counts().failed, 4);
        if (policies[i] == RATELIMIT_FAIL_LOCAL)
            CHECK_U64(remaining_of("a", &three), 2);
    }
    place_end();
}

/* A store that answers for a part of a batch: it failed as a whole, unless it was refused. */
static void a_batch_of_all_of_which_a_part_failed(void)
{
    static const ratelimit_failure policies[] = {RATELIMIT_FAIL_OPEN, RATELIMIT_FAIL_CLOSED};
    size_t i;
    for (i = 0; i < COUNT(policies); i++) {
        ratelimit_request req[2];
        ratelimit_result res[2];
        bool open = policies[i] == RATELIMIT_FAIL_OPEN;
        place("policies", 0, i);
        fresh_failing(policies[i]);
        failing.fails = false;
        req[0] = request("a", &three, 1);
        req[1] = request("b", &one, 1);
        failing.fails_key = (const char *)req[1].key;
        CHECK(ratelimit_take_all(&limiter, req, res, 2) == open);
        CHECK(res[0].allowed == open && res[1].allowed == open);
        CHECK(res[0].status == RATELIMIT_STORE_FAILED && res[1].status == RATELIMIT_STORE_FAILED);
        req[0].n = 4;
        CHECK(!ratelimit_take_all(&limiter, req, res, 2));
        CHECK_U64(res[0].status, RATELIMIT_NEVER);
        CHECK(!res[0].allowed && !res[1].allowed);
    }
    place_end();
}

/* All or none over several nodes of a cluster: refused by everybody's default policy, as a mistake
 * of the program. */
static void what_a_store_cannot_do_as_a_whole_is_decided_by_the_policy(void)
{
    static const struct {
        ratelimit_failure policy;
        bool first, second;
    } rows[] = {{RATELIMIT_FAIL_OPEN, true, true},
                {RATELIMIT_FAIL_CLOSED, false, false},
                {RATELIMIT_FAIL_LOCAL, true, false}};
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_request req[2];
        ratelimit_result res[2];
        place("rows", 0, i);
        fresh_failing(rows[i].policy);
        failing.fails = failing.all = false;
        req[0] = request("a", &three, 1);
        req[1] = request("b", &one, 1);
        CHECK(ratelimit_take_all(&limiter, req, res, 2) == rows[i].first);
        CHECK(res[0].status == RATELIMIT_UNSUPPORTED && res[1].status == RATELIMIT_UNSUPPORTED);
        CHECK(res[0].allowed == rows[i].first && res[1].allowed == rows[i].first);
        CHECK(res[0].source == (rows[i].policy == RATELIMIT_FAIL_LOCAL ? RATELIMIT_FROM_FALLBACK
                                                                       : RATELIMIT_FROM_POLICY));
        CHECK(ratelimit_take_all(&limiter, req, res, 2) == rows[i].second);
        CHECK(res[0].allowed == res[1].allowed);
        CHECK_U64(counts().failed, 4);
        CHECK_U64(counts().bad, 0);
        limiter.shadow = true;
        CHECK(ratelimit_take_all(&limiter, req, res, 2));
    }
    place_end();
}

/* A request that nobody can carry out is no failure of the store's. */
static void what_no_store_can_do_is_not_the_policys(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh_failing(RATELIMIT_FAIL_OPEN);
    failing.fails = failing.all = false;
    req[0] = request("a", &window, 1);
    req[0].op = RATELIMIT_REFUND;
    req[1] = req[0];
    CHECK(!ratelimit_take_all(&limiter, req, res, 2));
    CHECK(res[0].status == RATELIMIT_UNSUPPORTED && res[0].source == RATELIMIT_FROM_STORE);
    req[0].op = RATELIMIT_RESERVE;
    CHECK(!ratelimit_take(&limiter, &req[0], &res[0]));
    CHECK_U64(res[0].status, RATELIMIT_UNSUPPORTED);
    CHECK_U64(counts().failed, 0);
}

/* ---- shadow, hook, close --------------------------------------------------------------------- */

static void shadow_lets_through_and_reports_what_would_have_been(void)
{
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    fresh();
    limiter.shadow = true;
    CHECK(take_request(&req).allowed);
    res = take_request(&req);
    CHECK(res.allowed);
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK_U64(res.retry_after_ns, SEC);
    CHECK_U64(res.taken, 0);
    req.n = 2;
    CHECK_U64(take_request(&req).status, RATELIMIT_NEVER);
    check_counts(3, 0, 2, 0, 0);
    CHECK_U64(remaining_of("key", &one), 0);
    sleepy.now_ns += SEC;
    CHECK_U64(remaining_of("key", &one), 1); /* nothing was charged beyond the burst */
}

static void shadow_allows_takes_peeks_and_reservations_only(void)
{
    static const struct {
        ratelimit_op op;
        bool allowed;
    } rows[] = {
        {RATELIMIT_TAKE, true},    {RATELIMIT_TAKE_UP_TO, true}, {RATELIMIT_PEEK, true},
        {RATELIMIT_RESERVE, true}, {RATELIMIT_CHARGE, false},
    };
    size_t i;
    fresh();
    limiter.shadow = true;
    CHECK(ratelimit_allow(&limiter, "key", &one));
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_request req = request("key", &one, 1);
        place("rows", 0, i);
        req.op = rows[i].op;
        if (req.op == RATELIMIT_CHARGE)
            req.n = UINT64_MAX; /* never */
        CHECK(take_request(&req).allowed == rows[i].allowed);
    }
    place_end();
}

static void shadow_does_not_hide_a_mistake(void)
{
    fresh();
    limiter.shadow = true;
    CHECK(!ratelimit_allow(&limiter, "", &one));
    CHECK(!ratelimit_allow(&limiter, "key", &zero));
    CHECK(!ratelimit_allow_n(&limiter, "key", &one, 0));
    check_counts(0, 3, 0, 0, 3);
}

static void shadow_lets_a_batch_of_all_through(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh();
    limiter.shadow = true;
    req[0] = request("a", &three, 1);
    req[1] = request("b", &one, 1);
    CHECK(ratelimit_take_all(&limiter, req, res, 2));
    CHECK(ratelimit_take_all(&limiter, req, res, 2));
    CHECK(res[0].allowed && res[1].allowed);
    CHECK_U64(res[1].status, RATELIMIT_DENIED);
    CHECK_U64(remaining_of("a", &three), 2);
}

static void shadow_lets_nothing_through_that_is_no_refusal(void)
{
    ratelimit_request req = request("key", &window, 1);
    ratelimit_tier none;
    fresh();
    limiter.shadow = true;
    req.op = RATELIMIT_RESERVE; /* which a window has not */
    CHECK(!take_request(&req).allowed);
    CHECK_U64(take_request(&req).status, RATELIMIT_UNSUPPORTED);
    check_counts(0, 2, 0, 0, 0);
    ratelimit_cancel(&limiter);
    CHECK_U64(wait_for("key", &one, 1, SEC).status, RATELIMIT_CANCELED);
    check_counts(0, 3, 0, 0, 0);
    memset(&none, 0, sizeof none); /* nobody filled it in */
    limiter.store = ratelimit_tier_store(&none);
    req.op = RATELIMIT_TAKE;
    CHECK_U64(take_request(&req).status, RATELIMIT_BAD_ARGUMENT);
    check_counts(0, 4, 0, 0, 1);
}

static void shadow_keeps_nobody_waiting(void)
{
    fresh();
    limiter.shadow = true;
    CHECK(wait_for("key", &one, 1, SEC).allowed);
    CHECK(wait_for("key", &one, 1, SEC / 2).allowed);
    CHECK(wait_for("key", &one, 1, SEC).allowed);
    CHECK_U64(sleepy.sleeps, 0);
}

typedef struct heard {
    int calls, allowed;
    ratelimit_status last;
    const void *key;
} heard;

static void listen(void *self, const ratelimit_request *req, const ratelimit_result *res)
{
    heard *h = (heard *)self;
    h->calls++;
    h->allowed += res->allowed;
    h->last = res->status;
    h->key = req->key;
}

static void the_hook_hears_each_decision_as_it_was_given(void)
{
    ratelimit_request req[2];
    ratelimit_result res[2];
    heard h;
    const char *key = "key";
    fresh();
    memset(&h, 0, sizeof h);
    limiter.hook = listen;
    limiter.hook_self = &h;
    CHECK(ratelimit_allow(&limiter, key, &one));
    CHECK(h.calls == 1 && h.allowed == 1 && h.last == OK && h.key == key);
    CHECK(!ratelimit_allow(&limiter, key, &one));
    CHECK(h.calls == 2 && h.allowed == 1 && h.last == RATELIMIT_DENIED);
    limiter.shadow = true;
    CHECK(ratelimit_allow(&limiter, key, &one));
    CHECK(h.calls == 3 && h.allowed == 2 && h.last == RATELIMIT_DENIED);
    limiter.shadow = false;
    req[0] = request("a", &one, 1);
    req[1] = request("b", &zero, 1);
    CHECK(!ratelimit_take_each(&limiter, req, res, 2));
    CHECK(h.calls == 5 && h.allowed == 3 && h.last == RATELIMIT_BAD_LIMIT);
}

static void the_hook_hears_the_policy(void)
{
    heard h;
    fresh_failing(RATELIMIT_FAIL_OPEN);
    memset(&h, 0, sizeof h);
    limiter.hook = listen;
    limiter.hook_self = &h;
    CHECK(ratelimit_allow(&limiter, "key", &one));
    CHECK(h.calls == 1 && h.allowed == 1 && h.last == RATELIMIT_STORE_FAILED);
}

static void a_wait_is_one_decision(void)
{
    heard h;
    int polling;
    for (polling = 0; polling < 2; polling++) {
        if (polling)
            fresh_polling();
        else
            fresh();
        place(polling ? "polling" : "reserving", 0, 0);
        memset(&h, 0, sizeof h);
        limiter.hook = listen;
        limiter.hook_self = &h;
        CHECK(wait_for("key", &one, 1, FOREVER).allowed);
        CHECK_U64(h.calls, 1);
        check_counts(1, 0, 0, 0, 0);
    }
    place_end();
}

static void close_closes_store_and_fallback_once(void)
{
    static front second;
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    fresh_failing(RATELIMIT_FAIL_LOCAL);
    memset(&second, 0, sizeof second);
    limiter.fallback = front_store(&second);
    ratelimit_close(&limiter);
    CHECK(failing.closes == 1 && second.closes == 1);
    ratelimit_close(&limiter);
    CHECK(failing.closes == 1 && second.closes == 1);
    CHECK(!ratelimit_allow(&limiter, "key", &one));
    CHECK(!ratelimit_take(&limiter, &req, &res) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_take_each(&limiter, &req, &res, 1) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_take_all(&limiter, &req, &res, 1) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_wait(&limiter, &req, FOREVER, &res) && res.status == RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(failing.decides + second.decides, 0);
}

static void closing_a_table_store_leaves_the_memory_alone(void)
{
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    ratelimit_close(&limiter);
    CHECK_U64(remaining_of("key", &one), 0);
}

static void a_limiter_can_be_used_again_after_init(void)
{
    fresh();
    CHECK(ratelimit_allow(&limiter, "key", &one));
    ratelimit_cancel(&limiter);
    ratelimit_close(&limiter);
    CHECK_U64(ratelimit_init(&limiter, ratelimit_table_store(table, clock_read, &sleepy.now_ns)),
              OK);
    check_counts(0, 0, 0, 0, 0);
    CHECK_U64(wait_for("key", &one, 1, FOREVER).status, OK);
    CHECK_U64(sleepy.slept_ns, SEC);
}

/* ---- the table store, asked directly --------------------------------------------------------- */

static void a_store_can_be_asked_without_a_limiter(void)
{
    uint64_t clock = 5 * SEC;
    ratelimit_store store;
    ratelimit_request req[2];
    ratelimit_result res[2];
    fresh();
    store = ratelimit_table_store(table, clock_read, &clock);
    CHECK(store.self == table && store.close == NULL);
    req[0] = req[1] = request("key", &one, 1);
    store.decide(&store, req, res, 2, RATELIMIT_EACH);
    CHECK(res[0].allowed && !res[1].allowed);
    CHECK_U64(res[1].retry_after_ns, SEC);
    clock += SEC;
    store.decide(&store, req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    store.decide(&store, req, res, 1, RATELIMIT_ALL);
    CHECK(res[0].allowed);
    store.decide(&store, req, res, 0, RATELIMIT_EACH);
    store.decide(&store, NULL, res, 1, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(store.clock(store.clock_self), 6 * SEC);
}

static void a_store_without_a_table_is_a_bad_argument(void)
{
    ratelimit_store store = ratelimit_table_store(NULL, clock_read, &sleepy.now_ns);
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    ratelimit_limiter l;
    memset(&l, 0, sizeof l);
    CHECK_U64(ratelimit_init(&l, store), OK);
    CHECK(!ratelimit_take(&l, &req, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_allow(&l, "key", &one));
}

/* Two limiters on one table, each with the clock that stands in its own store. */
static void each_limiter_reads_the_clock_of_its_own_store(void)
{
    uint64_t other = 500 * SEC;
    ratelimit_limiter l;
    fresh();
    memset(&l, 0, sizeof l);
    CHECK_U64(ratelimit_init(&l, ratelimit_table_store(table, clock_read, &other)), OK);
    CHECK(ratelimit_allow(&limiter, "key", &one)); /* at 100 s */
    CHECK(ratelimit_allow(&l, "key", &one));       /* at 500 s */
    CHECK(!ratelimit_allow(&l, "key", &one));
    CHECK_U64(sleepy.now_ns, 100 * SEC);
}

/* ---- the compare-and-swap store -------------------------------------------------------------- */

static engine cas_engine;

static engine *fresh_cas(void)
{
    engine_start(&cas_engine, ENGINE_CAS);
    cas_engine.now_ns = 100 * SEC;
    return &cas_engine;
}

/* What the database calls the engine's key under a limit: the scope follows it. */
static const unsigned char *cas_key(const ratelimit_limit *limit)
{
    static unsigned char key[sizeof engine_key + 4];
    size_t i;
    memcpy(key, engine_key, sizeof engine_key);
    for (i = 0; i < 4; i++)
        key[sizeof engine_key + i] = (unsigned char)(limit->scope >> (8 * i));
    return key;
}

static ratelimit_result cas_take(engine *e, uint64_t n, uint64_t now_ns)
{
    return ask(e, &three, RATELIMIT_TAKE, n, now_ns);
}

static void a_take_is_one_load_and_one_swap_and_a_refusal_swaps_nothing(void)
{
    engine *e = fresh_cas();
    CHECK(cas_take(e, 3, SEC).allowed);
    CHECK(e->db.loads == 1 && e->db.swaps == 1);
    CHECK(!cas_take(e, 1, SEC).allowed);
    CHECK(!ask(e, &three, RATELIMIT_PEEK, 1, SEC).allowed);
    CHECK(!cas_take(e, 4, SEC).allowed);
    CHECK(e->db.loads == 4 && e->db.swaps == 1);
    CHECK(!cas_take(e, 0, SEC).allowed); /* a mistake does not even ask the database */
    CHECK(e->db.loads == 4);
}

static void a_record_is_as_documented(void)
{
    engine *e = fresh_cas();
    const database_row *row;
    uint64_t full = 0;
    int i;
    CHECK(cas_take(e, 1, 100 * SEC).allowed);
    CHECK(cas_take(e, 1, 100 * SEC).allowed);
    row = database_find(&e->db, cas_key(&three), sizeof engine_key + 4);
    CHECK(row != NULL);
    if (!row)
        return;
    for (i = 7; i >= 0; i--)
        full = full << 8 | row->record[i];
    CHECK_U64(full, 102 * SEC);
    CHECK(memcmp(row->record + 16, "RL2\0", 4) == 0);
    CHECK(memcmp(row->record + 20, "\2\0\0\0", 4) == 0); /* writes */
    CHECK_U64(row->ttl_ns, 2 * SEC);
}

/* Records are gone the moment their time is over, or never: nobody can tell the difference. */
static void a_record_that_expired_says_no_more_than_none(void)
{
    static engine gone, kept;
    int round;
    uint64_t now = 0;
    check_seed(1);
    engine_start(&gone, ENGINE_CAS);
    engine_start(&kept, ENGINE_CAS);
    kept.db.now_ns = NULL;
    for (round = 0; round < 20000; round++) {
        ratelimit_op op = check_below(2) ? RATELIMIT_TAKE : (ratelimit_op)check_below(6);
        uint64_t n = 1 + check_below(3);
        ratelimit_result a, b;
        now += check_below(check_below(10) ? SEC : 5 * SEC);
        a = ask(&gone, &three, op, n, now);
        b = ask(&kept, &three, op, n, now);
        CHECK(a.allowed == b.allowed && a.remaining == b.remaining &&
              a.retry_after_ns == b.retry_after_ns && a.wait_ns == b.wait_ns);
    }
}

static void a_record_that_is_full_again_is_deleted(void)
{
    engine *e = fresh_cas();
    CHECK(cas_take(e, 2, SEC).allowed);
    CHECK_U64(database_rows(&e->db), 1);
    CHECK(ask(e, &three, RATELIMIT_REFUND, 2, SEC).allowed);
    CHECK_U64(database_rows(&e->db), 0);
    CHECK(cas_take(e, 2, SEC).allowed);
    CHECK(ask(e, &three, RATELIMIT_RESET, 0, SEC).allowed);
    CHECK_U64(database_rows(&e->db), 0);
    CHECK_U64(cas_take(e, 3, SEC).remaining, 0);
}

static void refund_and_reset_of_an_unknown_key_store_nothing(void)
{
    engine *e = fresh_cas();
    CHECK(ask(e, &three, RATELIMIT_REFUND, 2, SEC).allowed);
    CHECK(ask(e, &three, RATELIMIT_RESET, 0, SEC).allowed);
    CHECK(e->db.swaps == 0 && database_rows(&e->db) == 0);
}

static void a_database_that_fails_is_a_store_that_failed(void)
{
    static const int answers[] = {-1, -2, -1000};
    size_t i;
    for (i = 0; i < COUNT(answers); i++) {
        engine *e = fresh_cas();
        CHECK(cas_take(e, 1, SEC).allowed);
        e->db.load_fails = answers[i];
        CHECK_U64(cas_take(e, 1, SEC).status, RATELIMIT_STORE_FAILED);
        CHECK_U64(e->db.swaps, 1);
        e->db.load_fails = 0;
        e->db.swap_fails = answers[i];
        CHECK_U64(cas_take(e, 1, SEC).status, RATELIMIT_STORE_FAILED);
        CHECK_U64(e->db.swaps,
                  2); /* tried once: a swap whose outcome is unknown is not sent again */
        CHECK(ask(e, &three, RATELIMIT_PEEK, 1, SEC).allowed);
        e->db.swap_fails = 0;
        CHECK_U64(cas_take(e, 1, SEC).remaining, 1);
    }
}

static void a_swap_that_loses_is_tried_again_as_often_as_said(void)
{
    static const struct {
        uint32_t tries;
        uint64_t lose;
        ratelimit_status status;
        uint64_t swaps;
    } rows[] = {
        {0, 0, RATELIMIT_OK, 1},
        {0, 3, RATELIMIT_OK, 4},
        {0, 15, RATELIMIT_OK, 16},
        {0, 16, RATELIMIT_STORE_FAILED, 16},
        {0, UINT64_MAX, RATELIMIT_STORE_FAILED, 16},
        {1, 0, RATELIMIT_OK, 1},
        {1, 1, RATELIMIT_STORE_FAILED, 1},
        {4, 3, RATELIMIT_OK, 4},
        {4, 4, RATELIMIT_STORE_FAILED, 4},
        {100, UINT64_MAX, RATELIMIT_STORE_FAILED, 100},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        engine *e = fresh_cas();
        ratelimit_result res;
        place("rows", 0, i);
        e->cas.tries = rows[i].tries;
        e->db.lose = rows[i].lose;
        res = cas_take(e, 1, SEC);
        CHECK_U64(res.status, rows[i].status);
        CHECK_U64(e->db.swaps, rows[i].swaps);
        CHECK_U64(e->db.loads, rows[i].swaps); /* what changed is read again each time */
        e->db.lose = 0;
        CHECK_U64(ask(e, &three, RATELIMIT_PEEK, 1, SEC).remaining, rows[i].status == OK ? 2 : 3);
    }
    place_end();
}

static void a_foreign_record_is_left_alone(void)
{
    static const unsigned char foreign[][24] = {
        {0},
        "somebody's own 24 bytes",
        {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 'R', 'L', '1', 0},
        {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 'R', 'L', '2', 1},
    };
    size_t i;
    for (i = 0; i < COUNT(foreign); i++) {
        engine *e = fresh_cas();
        database_row *row = database_add(&e->db, cas_key(&three), sizeof engine_key + 4);
        e->db.now_ns = NULL;
        memcpy(row->record, foreign[i], sizeof row->record);
        place("foreign", 0, i);
        CHECK_U64(cas_take(e, 1, SEC).status, RATELIMIT_STORE_FAILED);
        CHECK_U64(ask(e, &three, RATELIMIT_RESET, 0, SEC).status, RATELIMIT_STORE_FAILED);
        CHECK_U64(e->db.swaps, 0);
        CHECK(memcmp(row->record, foreign[i], sizeof row->record) == 0);
    }
    place_end();
}

/* Our mark on nonsense: any answer, but no crash and nothing impossible. */
static void a_damaged_record_crashes_nothing(void)
{
    engine *e = fresh_cas();
    database_row *row = database_add(&e->db, cas_key(&three), sizeof engine_key + 4);
    int round, i;
    check_seed(2);
    e->db.now_ns = NULL;
    for (round = 0; round < 50000; round++) {
        ratelimit_request req = request("key", &three, 1 + check_below(5));
        ratelimit_result res;
        row->key_len = sizeof engine_key + 4;
        memcpy(row->key, cas_key(&three), sizeof engine_key + 4);
        for (i = 0; i < 24; i++)
            row->record[i] = (unsigned char)check_random();
        memcpy(row->record + 16, "RL2\0", 4);
        req.op = (ratelimit_op)check_below(RATELIMIT_PRIV_OPS);
        req.max_wait_ns = check_random() >> check_below(64);
        e->now_ns = check_random() >> check_below(64);
        e->store.decide(&e->store, &req, &res, 1, RATELIMIT_EACH);
        CHECK(res.remaining <= res.burst);
        CHECK(res.allowed == (res.status == OK));
        CHECK(res.status != RATELIMIT_DENIED || res.retry_after_ns > 0);
    }
}

static void all_of_several_is_unsupported_and_all_of_one_is_one(void)
{
    engine *e = fresh_cas();
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[0] = req[1] = request("key", &three, 1);
    e->store.decide(&e->store, req, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && res[0].status == RATELIMIT_UNSUPPORTED);
    CHECK(!res[1].allowed && res[1].status == RATELIMIT_UNSUPPORTED);
    CHECK_U64(e->db.loads, 0);
    e->store.decide(&e->store, req, res, 1, RATELIMIT_ALL);
    CHECK(res[0].allowed);
    e->store.decide(&e->store, req, res, 2, RATELIMIT_EACH);
    CHECK(res[0].allowed && res[1].allowed && res[1].remaining == 0);
}

static void a_cas_store_that_is_not_filled_in_is_a_bad_argument(void)
{
    int part;
    for (part = 0; part < 5; part++) {
        engine *e = fresh_cas();
        ratelimit_request req = request("key", &three, 1);
        ratelimit_result res;
        ratelimit_store store;
        if (part == 0)
            e->cas.load = NULL;
        else if (part == 1)
            e->cas.swap = NULL;
        else if (part == 2)
            e->cas.clock = NULL;
        store = ratelimit_cas_store(part == 3 ? NULL : &e->cas);
        store.decide(&store, part == 4 ? NULL : &req, &res, 1, RATELIMIT_EACH);
        CHECK(!res.allowed && res.status == RATELIMIT_BAD_ARGUMENT);
        CHECK_U64(e->db.loads, 0);
    }
}

static void a_cas_store_takes_keys_of_508_bytes_at_most(void)
{
    static const char key[600] = {1};
    size_t len;
    for (len = 508; len <= 509; len++) {
        engine *e = fresh_cas();
        ratelimit_request req = request("", &three, 1);
        ratelimit_result res;
        req.key = key;
        req.key_len = len;
        e->db.load_fails = -1; /* its rows are not so long */
        e->store.decide(&e->store, &req, &res, 1, RATELIMIT_EACH);
        CHECK_U64(res.status, len > 508 ? RATELIMIT_BAD_KEY : RATELIMIT_STORE_FAILED);
        CHECK_U64(e->db.loads, len > 508 ? 0 : 1);
    }
}

static void a_cas_store_forgives_a_step_back_as_its_option_says(void)
{
    engine *e = fresh_cas();
    CHECK(cas_take(e, 3, 1000 * SEC).allowed);
    CHECK_U64(cas_take(e, 1, 990 * SEC).retry_after_ns, 11 * SEC);
    CHECK_U64(cas_take(e, 1, 989 * SEC).retry_after_ns, SEC);
    CHECK_U64(cas_take(e, 1, 990 * SEC - 1).retry_after_ns, 1); /* what was forgiven is stored */
    e = fresh_cas();
    e->cas.step_ns = FOREVER;
    CHECK(cas_take(e, 3, 1000 * SEC).allowed);
    CHECK_U64(cas_take(e, 1, 0).retry_after_ns, 1001 * SEC);
}

static void a_limiter_over_a_cas_store_waits_and_falls_back(void)
{
    engine *e = fresh_cas();
    sleeper s;
    ratelimit_request req = request("key", &three, 3);
    ratelimit_result res;
    ratelimit_limiter l;
    sleeper_start(&s, 100 * SEC);
    e->cas.clock_self = &s.now_ns;
    e->db.now_ns = &s.now_ns;
    limiter_start(&l, ratelimit_cas_store(&e->cas), &s);
    CHECK(ratelimit_take(&l, &req, &res));
    CHECK(ratelimit_wait(&l, &req, 3 * SEC, &res));
    CHECK_U64(s.slept_ns, 3 * SEC);
    e->db.load_fails = -1;
    CHECK(ratelimit_take(&l, &req, &res)); /* open */
    CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
    ratelimit_close(&l);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(allow_takes_one_and_allow_n_takes_n);
    RUN(allow_key_takes_bytes);
    RUN(the_short_way_of_allow_counts_as_the_long_one);
    RUN(an_error_does_not_get_through_an_if);
    RUN(take_does_every_operation);
    RUN(the_result_may_be_left_out);
    RUN(take_each_decides_each_on_its_own);
    RUN(take_all_takes_all_or_none);
    RUN(a_batch_of_nothing_is_all_allowed);
    RUN(null_anywhere_is_a_bad_argument);
    RUN(init_refuses_what_could_not_work);
    RUN(counters_are_exact_with_threads);
    RUN(a_wait_with_tokens_there_does_not_sleep);
    RUN(a_wait_sleeps_once_until_its_tokens_are_there);
    RUN(a_wait_at_most_as_long_as_allowed_is_waited);
    RUN(waits_are_served_first_come_first_served);
    RUN(a_cancelled_wait_gives_back_what_it_had_reserved);
    RUN(a_cancelled_wait_gives_back_only_what_nobody_stands_on);
    RUN(a_cancelled_wait_before_another_makes_nobody_act_at_once);
    RUN(a_wait_whose_time_has_come_is_not_cancelled);
    RUN(a_blocked_key_is_not_waited_for);
    RUN(a_wait_does_not_end_before_its_time_if_the_answer_was_slow);
    RUN(cancel_ends_all_waits_now_and_from_now_on);
    RUN(what_no_waiting_helps_is_not_waited_for);
    RUN(a_wait_for_a_reservation_is_a_wait);
    RUN(a_wait_without_a_place_in_the_table_is_full);
    RUN(a_sleep_that_ends_early_is_slept_to_its_end);
    RUN(a_wait_is_no_longer_for_a_clock_that_is_set_back);
    RUN(a_wait_whose_clock_was_set_back_a_little_goes_on_from_there);
    RUN(a_wait_is_given_up_if_its_clock_stands_still);
    RUN(a_cancelled_wait_gives_nothing_back_that_its_time_has_paid);
    RUN(a_cancelled_wait_on_a_tiers_local_bucket_gives_nothing_back);
    RUN(a_wait_without_a_sleep_of_its_own_uses_the_platforms);
    RUN(a_cancel_is_seen_within_a_slice_of_the_platforms_sleep);
    RUN(a_store_that_cannot_reserve_is_polled_at_retry_after);
    RUN(a_poll_pauses_for_a_second_at_most);
    RUN(a_poll_that_others_are_always_ahead_of_ends_by_its_deadline);
    RUN(a_wait_on_a_window_polls_to_its_end);
    RUN(a_poll_whose_answer_came_after_its_deadline_is_over);
    RUN(a_poll_pauses_also_if_the_store_says_no_time);
    RUN(shadow_that_is_switched_on_ends_a_poll);
    RUN(polls_do_not_come_all_at_once);
    RUN(no_two_threads_have_the_same_jitter);
    RUN(an_open_policy_allows_and_says_that_it_did);
    RUN(a_closed_policy_refuses_and_says_why);
    RUN(a_local_policy_asks_the_fallback);
    RUN(a_fallback_that_fails_too_refuses);
    RUN(a_wait_on_the_fallback_gives_back_to_the_fallback);
    RUN(a_batch_of_all_fails_as_a_whole);
    RUN(a_batch_of_all_of_which_a_part_failed);
    RUN(what_a_store_cannot_do_as_a_whole_is_decided_by_the_policy);
    RUN(what_no_store_can_do_is_not_the_policys);
    RUN(shadow_lets_through_and_reports_what_would_have_been);
    RUN(shadow_allows_takes_peeks_and_reservations_only);
    RUN(shadow_does_not_hide_a_mistake);
    RUN(shadow_lets_nothing_through_that_is_no_refusal);
    RUN(shadow_lets_a_batch_of_all_through);
    RUN(shadow_keeps_nobody_waiting);
    RUN(the_hook_hears_each_decision_as_it_was_given);
    RUN(the_hook_hears_the_policy);
    RUN(a_wait_is_one_decision);
    RUN(close_closes_store_and_fallback_once);
    RUN(closing_a_table_store_leaves_the_memory_alone);
    RUN(a_limiter_can_be_used_again_after_init);
    RUN(a_store_can_be_asked_without_a_limiter);
    RUN(a_store_without_a_table_is_a_bad_argument);
    RUN(each_limiter_reads_the_clock_of_its_own_store);
    RUN(a_take_is_one_load_and_one_swap_and_a_refusal_swaps_nothing);
    RUN(a_record_is_as_documented);
    RUN(a_record_that_expired_says_no_more_than_none);
    RUN(a_record_that_is_full_again_is_deleted);
    RUN(refund_and_reset_of_an_unknown_key_store_nothing);
    RUN(a_database_that_fails_is_a_store_that_failed);
    RUN(a_swap_that_loses_is_tried_again_as_often_as_said);
    RUN(a_foreign_record_is_left_alone);
    RUN(a_damaged_record_crashes_nothing);
    RUN(all_of_several_is_unsupported_and_all_of_one_is_one);
    RUN(a_cas_store_that_is_not_filled_in_is_a_bad_argument);
    RUN(a_cas_store_takes_keys_of_508_bytes_at_most);
    RUN(a_cas_store_forgives_a_step_back_as_its_option_says);
    RUN(a_limiter_over_a_cas_store_waits_and_falls_back);
    return check_end();
}

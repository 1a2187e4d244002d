/* test_locks.c - windows, semaphores and locks of ratelimit_redis.h against a real server. Real
 * time passes here: Redis' expiry can't be told what time it is. */
#define _POSIX_C_SOURCE 200809L
#include "unlocked.h"

#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_KEEPER
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "server.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#if defined(SYS_clock_gettime)
/* The wall clock as this program sees it, some seconds off. */
static volatile long wall_clock_ahead;
extern long syscall(long number, ...);
int clock_gettime(clockid_t clock, struct timespec *at);
int clock_gettime(clockid_t clock, struct timespec *at)
{
    long result = syscall(SYS_clock_gettime, clock, at);
    if (clock == CLOCK_REALTIME)
        at->tv_sec += wall_clock_ahead;
    return (int)result;
}
#endif

static ratelimit_redis *r;

#define KEY "k", 1

/* ---- windows --------------------------------------------------------------------------------- */

static void a_window_counts_up_to_its_limit(void)
{
    ratelimit_result res;
    int i;
    server_flush();
    for (i = 0; i < 5; i++) {
        CHECK(ratelimit_redis_window(r, KEY, 5, 60000, 1, &res));
        CHECK_U64(res.remaining, 4 - i);
        CHECK_U64(res.burst, 5);
        CHECK_U64(res.taken, 1);
    }
    CHECK(!ratelimit_redis_window(r, KEY, 5, 60000, 1, &res));
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK(res.retry_after_ns > 59 * RATELIMIT_SECOND && res.retry_after_ns <= RATELIMIT_MINUTE);
    CHECK_U64(server_int(server_port(), "INCRBY ratelimit:w{k} 0"), 5);
}

static void a_window_ends(void)
{
    ratelimit_result res;
    uint64_t start = ratelimit_clock_ns();
    server_flush();
    CHECK(ratelimit_redis_window(r, KEY, 1, 50, 1, &res));
    CHECK(!ratelimit_redis_window(r, KEY, 1, 50, 1, &res));
    while (!ratelimit_redis_window(r, KEY, 1, 50, 1, &res) && server_ms_since(start) < 2000)
        server_sleep_ms(1);
    CHECK(res.allowed);
    CHECK(server_ms_since(start) >= 49); /* Redis expires by whole ms of its own clock */
}

/* B52: count and expiry were two commands, and the second was lost. */
static void a_counter_that_lost_its_expiry_refuses_for_one_window_only(void)
{
    ratelimit_result res;
    long long ttl;
    server_flush();
    CHECK(server_do(server_port(), "SET ratelimit:w{k} 7"));
    CHECK(!ratelimit_redis_window(r, KEY, 5, 60000, 1, &res));
    CHECK_U64(res.status, RATELIMIT_DENIED);
    ttl = server_int(server_port(), "PTTL ratelimit:w{k}");
    CHECK(ttl > 0 && ttl <= 60000);
    CHECK(server_do(server_port(), "SET ratelimit:w{k} 7"));
    CHECK(!ratelimit_redis_window(r, KEY, 5, 30, 1, &res));
    server_sleep_ms(40);
    CHECK(ratelimit_redis_window(r, KEY, 5, 30, 1, &res));
}

static void counting_does_not_lengthen_a_window(void)
{
    long long first, later;
    server_flush();
    CHECK(ratelimit_redis_window(r, KEY, 9, 60000, 1, NULL));
    CHECK_U64(server_int(server_port(), "PEXPIRE ratelimit:w{k} 30000"), 1);
    first = server_int(server_port(), "PTTL ratelimit:w{k}");
    CHECK(ratelimit_redis_window(r, KEY, 9, 60000, 1, NULL));
    later = server_int(server_port(), "PTTL ratelimit:w{k}");
    CHECK(later > 0 && later <= first);
}

/* B17: a smaller limit was ignored until the old period ran out. */
static void a_lowered_limit_counts_at_once(void)
{
    ratelimit_result res;
    server_flush();
    CHECK(ratelimit_redis_window(r, "a", 1, 100, 60000, 1, &res));
    CHECK(ratelimit_redis_window(r, "a", 1, 10, 60000, 1, &res));
    CHECK_U64(res.burst, 10);
    CHECK_U64(res.remaining, 8);
    CHECK(ratelimit_redis_window(r, "b", 1, 100, 60000, 50, &res));
    CHECK(!ratelimit_redis_window(r, "b", 1, 10, 60000, 1, &res));
    CHECK_U64(res.remaining, 0);
}

static void a_refused_count_does_not_count(void)
{
    ratelimit_result res;
    server_flush();
    CHECK(ratelimit_redis_window(r, KEY, 10, 60000, 9, &res));
    CHECK(!ratelimit_redis_window(r, KEY, 10, 60000, 2, &res));
    CHECK(!ratelimit_redis_window(r, KEY, 10, 60000, 11, &res));
    CHECK_U64(res.status, RATELIMIT_NEVER);
    CHECK_U64(res.retry_after_ns, RATELIMIT_FOREVER);
    CHECK(ratelimit_redis_window(r, KEY, 10, 60000, 1, &res));
    CHECK_U64(res.remaining, 0);
}

static void mistakes_are_refused_without_asking(void)
{
    ratelimit_result res;
    ratelimit_redis_permit permit;
    ratelimit_redis_held held;
    CHECK(ratelimit_redis_window(r, KEY, 0, 60000, 1, &res)); /* no limit */
    CHECK_U64(res.remaining, UINT64_MAX);
    CHECK(!ratelimit_redis_window(r, KEY, 1, 60000, 0, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_COUNT);
    CHECK(!ratelimit_redis_window(r, KEY, 1, 0, 1, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_redis_window(r, NULL, 1, 1, 1, 1, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_KEY);
    CHECK(!ratelimit_redis_window(NULL, KEY, 1, 1, 1, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_redis_window(r, KEY, UINT64_C(1) << 53, 1, 1, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_redis_sliding(r, KEY, UINT64_C(1) << 31, UINT64_C(1) << 20, 1, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_acquire(r, KEY, 0, 1, 0, 0, &permit, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_acquire(r, KEY, 1, 0, 0, 0, &permit, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_acquire(r, KEY, 1, 1, 0, 0, NULL, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_release(r, KEY, NULL, 1, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_lock(r, "", 0, 1, 0, &held), RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_redis_lock(r, "}a", 2, 1, 0, &held), RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_redis_lock(r, KEY, 0, 0, &held), RATELIMIT_BAD_ARGUMENT);
    memset(&held, 0, sizeof held);
    memset(&permit, 0, sizeof permit);
    CHECK(!ratelimit_redis_sliding(r, KEY, 1, 0, 1, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_redis_sliding(r, KEY, 1, 60000, 2, &res));
    CHECK_U64(res.status, RATELIMIT_NEVER);
    CHECK(!ratelimit_redis_window(r, KEY, 1, 60000, UINT64_C(1) << 53, &res));
    CHECK_U64(res.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(!ratelimit_redis_window(r, NULL, 0, 1, 1, 1, NULL));
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 0, 1), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 1, 0), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_acquire_plain(r, NULL, 1, 1, 1), RATELIMIT_BAD_KEY);
    CHECK_U64(ratelimit_redis_release_plain(NULL, KEY), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_acquire(r, KEY, UINT64_C(1) << 32, 1, 0, 0, &permit, NULL),
              RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_acquire(r, KEY, 1, (UINT64_C(1) << 42) + 1, 0, 0, &permit, NULL),
              RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_release(r, KEY, &permit, 0, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_release(r, KEY, &permit, 1001, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_extend(r, KEY, NULL, 1), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_extend(r, KEY, &permit, 0), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_lock(r, KEY, 1, 0, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_renew(r, KEY, NULL, 1), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_unlock(r, KEY, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_valid_ns(NULL), 0);
    CHECK(ratelimit_redis_keep(r, KEY, NULL, 1000, NULL, NULL) == NULL);
    CHECK(ratelimit_redis_keep(r, KEY, &held, 0, NULL, NULL) == NULL);
    CHECK_U64(ratelimit_redis_keep_valid_ns(NULL), 0);
    CHECK(!ratelimit_redis_keep_stop(NULL));
}

/* Plants a state so that time need not pass: `before` in the window before the present one. */
static void plant(uint64_t start_ms, double used, double before)
{
    unsigned char state[24];
    double numbers[3];
    numbers[0] = (double)start_ms;
    numbers[1] = used;
    numbers[2] = before;
    memcpy(state, numbers, sizeof state);
    CHECK(server_do(server_port(), "SET ratelimit:s{k} %b", state, sizeof state));
}

static uint64_t server_now_ms(void)
{
    redisReply *reply = server_ask(server_port(), "TIME");
    uint64_t ms = (uint64_t)atoll(reply->element[0]->str) * 1000 +
                  (uint64_t)atoll(reply->element[1]->str) / 1000;
    freeReplyObject(reply);
    return ms;
}

/* With a period of an hour, the ms that pass during the test are small against it. */
static void a_sliding_window_weighs_the_one_before_by_what_is_left_of_it(void)
{
    enum { HOUR = 3600000 };
    uint64_t now = server_now_ms(), since = now % HOUR, share, most = 1000000;
    ratelimit_result res;
    long long ttl;
    server_flush();
    plant(now - since - HOUR, 900000, 5);
    share = (900000 * (HOUR - since) + HOUR - 1) / HOUR;
    CHECK(ratelimit_redis_sliding(r, KEY, most, HOUR, 1, &res));
    ttl = server_int(server_port(), "PTTL ratelimit:s{k}"); /* no longer than it can matter */
    CHECK(ttl > HOUR - 1000 && ttl <= 2 * HOUR + 2);
    CHECK(res.remaining + 1 + share >= most && res.remaining + 1 + share <= most + 3000);
    CHECK(!ratelimit_redis_sliding(r, KEY, most, HOUR, res.remaining + 3000, &res));
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK(res.retry_after_ns > 0 && res.retry_after_ns <= 2 * RATELIMIT_HOUR);
    CHECK(ratelimit_redis_sliding(r, KEY, most, HOUR, res.remaining,
                                  &res));     /* all that is left, with its cost */
    plant(now - since - 2 * HOUR, 900000, 5); /* too long ago */
    CHECK(ratelimit_redis_sliding(r, KEY, most, HOUR, most, &res));
    CHECK_U64(res.remaining, 0);
}

static void a_sliding_window_passes_at_retry_after(void)
{
    ratelimit_result res;
    int i, passed = 0;
    server_flush();
    for (i = 0; i < 8; i++) {
        uint64_t start;
        if (ratelimit_redis_sliding(r, KEY, 3, 40, 1, &res)) {
            passed++;
            continue;
        }
        start = ratelimit_clock_ns(); /* after the server's now */
        CHECK(res.retry_after_ns <= 80 * RATELIMIT_MILLISECOND);
        while (ratelimit_clock_ns() - start < res.retry_after_ns)
            server_sleep_ms(1);
        CHECK(ratelimit_redis_sliding(r, KEY, 3, 40, 1, &res));
    }
    CHECK(passed >= 3);
}

static void a_sliding_window_never_passes_more_than_twice_its_limit_within_its_period(void)
{
    static uint64_t at[4000];
    uint64_t start = ratelimit_clock_ns(), worst = 0;
    size_t count = 0, i, j;
    server_flush();
    while (server_ms_since(start) < 600 && count < 4000) {
        uint64_t sent = ratelimit_clock_ns();
        if (ratelimit_redis_sliding(r, KEY, 20, 50, 1, NULL))
            at[count++] = sent;
    }
    for (i = 0; i < count; i++) {
        for (j = i; j < count && at[j] - at[i] < 49 * RATELIMIT_MILLISECOND; j++)
            ;
        worst = j - i > worst ? j - i : worst;
    }
    CHECK(count >= 20 * 8);
    CHECK(worst <= 40);
}

/* ---- semaphores ------------------------------------------------------------------------------ */

static ratelimit_status acquire(uint64_t most, uint64_t ttl_ms, ratelimit_redis_permit *permit,
                                uint64_t *retry)
{
    return ratelimit_redis_acquire(r, KEY, most, ttl_ms, 0, 0, permit, retry);
}

static ratelimit_status release(const ratelimit_redis_permit *permit)
{
    return ratelimit_redis_release(r, KEY, permit, 1, NULL);
}

static void a_plain_semaphore_never_goes_below_zero_or_above_its_size(void)
{
    server_flush();
    CHECK_U64(ratelimit_redis_release_plain(r, KEY), RATELIMIT_LOST);
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 2, 60000), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 2, 60000), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 2, 60000), RATELIMIT_BUSY);
    CHECK(server_int(server_port(), "PTTL ratelimit:c{k}") > 0);
    CHECK_U64(ratelimit_redis_release_plain(r, KEY), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 2, 60000), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_release_plain(r, KEY), RATELIMIT_OK);
    CHECK(server_int(server_port(), "PTTL ratelimit:c{k}") > 0);
    CHECK_U64(ratelimit_redis_release_plain(r, KEY), RATELIMIT_OK);
    CHECK_U64(server_int(server_port(), "DBSIZE"), 0);
    CHECK_U64(ratelimit_redis_release_plain(r, KEY), RATELIMIT_LOST);
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 1, 60000), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_acquire_plain(r, KEY, 1, 60000), RATELIMIT_BUSY);
}

/* B59: a holder that crashed kept its slot for ever. */
static void a_crashed_holders_permit_comes_back_when_its_time_is_over(void)
{
    ratelimit_redis_permit permit;
    uint64_t retry;
    server_flush();
    CHECK_U64(acquire(3, 10000, &permit, NULL), RATELIMIT_OK); /* keeps the key alive */
    CHECK_U64(acquire(3, 150, &permit, NULL), RATELIMIT_OK);
    CHECK_U64(acquire(3, 150, &permit, NULL), RATELIMIT_OK);
    CHECK_U64(acquire(3, 150, &permit, &retry), RATELIMIT_BUSY);
    CHECK(retry > 0 && retry <= 150 * RATELIMIT_MILLISECOND);
    server_sleep_ms(160);
    CHECK_U64(acquire(3, 150, &permit, NULL), RATELIMIT_OK);
    CHECK_U64(acquire(3, 150, &permit, NULL), RATELIMIT_OK);
    CHECK_U64(acquire(3, 150, &permit, NULL), RATELIMIT_BUSY);
}

/* B60: an expired slot was released later, which added one that did not exist. */
static void releasing_an_expired_permit_frees_nobody_elses(void)
{
    ratelimit_redis_permit a, b, c;
    server_flush();
    CHECK_U64(acquire(1, 40, &a, NULL), RATELIMIT_OK);
    server_sleep_ms(50);
    CHECK_U64(acquire(1, 10000, &b, NULL), RATELIMIT_OK);
    CHECK_U64(release(&a), RATELIMIT_LOST);
    CHECK_U64(acquire(1, 10000, &c, NULL), RATELIMIT_BUSY);
    CHECK_U64(release(&b), RATELIMIT_OK);
    CHECK_U64(release(&b), RATELIMIT_LOST);
    CHECK_U64(acquire(1, 10000, &c, NULL), RATELIMIT_OK);
}

/* B61: releasing a list in which some had expired failed as a whole, or counted wrongly. */
static void releasing_many_answers_for_each(void)
{
    ratelimit_redis_permit id[3], next;
    ratelimit_redis_permit give[3];
    ratelimit_status each[3];
    int i, free_places = 0;
    server_flush();
    CHECK_U64(acquire(5, 40, &id[0], NULL), RATELIMIT_OK);
    CHECK_U64(acquire(5, 40, &id[1], NULL), RATELIMIT_OK);
    CHECK_U64(acquire(5, 10000, &id[2], NULL), RATELIMIT_OK);
    server_sleep_ms(60);
    give[0] = id[0], give[1] = id[2];
    strcpy(give[2].id, "nonsense");
    CHECK_U64(ratelimit_redis_release(r, KEY, give, 3, each), RATELIMIT_LOST);
    CHECK_U64(each[0], RATELIMIT_LOST);
    CHECK_U64(each[1], RATELIMIT_OK);
    CHECK_U64(each[2], RATELIMIT_LOST);
    for (i = 0; i < 7; i++)
        free_places += acquire(5, 10000, &next, NULL) == RATELIMIT_OK;
    CHECK_U64(free_places, 5);
}

static void an_extended_permit_lives_on_and_a_lost_one_is_not_revived(void)
{
    ratelimit_redis_permit permit, other;
    server_flush();
    CHECK_U64(acquire(1, 60, &permit, NULL), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_extend(r, KEY, &permit, 10000), RATELIMIT_OK);
    server_sleep_ms(70);
    CHECK_U64(acquire(1, 60, &other, NULL), RATELIMIT_BUSY);
    CHECK_U64(release(&permit), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_extend(r, KEY, &permit, 10000), RATELIMIT_LOST);
    CHECK_U64(server_int(server_port(), "DBSIZE"), 0);
}

static void a_semaphores_size_may_change(void)
{
    ratelimit_redis_permit a, b, c;
    server_flush();
    CHECK_U64(acquire(1, 10000, &a, NULL), RATELIMIT_OK);
    CHECK_U64(acquire(2, 10000, &b, NULL), RATELIMIT_OK);
    CHECK_U64(acquire(1, 10000, &c, NULL), RATELIMIT_BUSY);
    CHECK_U64(release(&a), RATELIMIT_OK);
    CHECK_U64(acquire(1, 10000, &c, NULL), RATELIMIT_BUSY);
    CHECK_U64(acquire(2, 10000, &c, NULL), RATELIMIT_OK);
}

static void an_unused_semaphore_leaves_nothing_behind(void)
{
    ratelimit_redis_permit a, b;
    long long ttl;
    server_flush();
    CHECK_U64(acquire(5, 60000, &a, NULL), RATELIMIT_OK);
    CHECK_U64(acquire(5, 100, &b, NULL), RATELIMIT_OK);
    ttl = server_int(server_port(), "PTTL ratelimit:p{k}");
    CHECK(ttl > 50000 && ttl <= 60002); /* that of the longest */
    CHECK_U64(release(&a), RATELIMIT_OK);
    CHECK_U64(release(&b), RATELIMIT_OK);
    CHECK_U64(server_int(server_port(), "DBSIZE"), 0);
}

static void ids_of_forked_processes_do_not_collide(void)
{
    enum { EACH = 50 };
    ratelimit_redis_permit permit;
    int i, status = 0;
    pid_t child[4];
    server_flush();
    for (i = 0; i < 4; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            int j, good = 1;
            for (j = 0; j < EACH; j++)
                good = good && acquire(1000, 60000, &permit, NULL) == RATELIMIT_OK;
            _exit(good ? 0 : 1);
        }
    }
    for (i = 0; i < 4; i++)
        CHECK(waitpid(child[i], &status, 0) == child[i] && status == 0);
    CHECK_U64(server_int(server_port(), "ZCARD ratelimit:p{k}"), 4 * EACH);
}

static void waiting_for_a_permit_gets_the_next_one_or_times_out(void)
{
    ratelimit_redis_permit a, b;
    uint64_t start;
    server_flush();
    CHECK_U64(acquire(1, 80, &a, NULL), RATELIMIT_OK);
    start = ratelimit_clock_ns();
    CHECK_U64(ratelimit_redis_acquire(r, KEY, 1, 10000, 30, 5, &b, NULL), RATELIMIT_TIMEOUT);
    CHECK(server_ms_since(start) >= 29 && server_ms_since(start) < 75);
    CHECK_U64(ratelimit_redis_acquire(r, KEY, 1, 10000, 2000, 1000, &b, NULL), RATELIMIT_OK);
    CHECK(server_ms_since(start) < 1000);
}

/* Asks of one who waits 300 ms in vain, with pauses of at most that many ms. */
static long long asks_in_300_ms(uint64_t max_pause_ms)
{
    ratelimit_redis_permit permit;
    CHECK(server_do(server_port(), "CONFIG RESETSTAT"));
    CHECK_U64(ratelimit_redis_acquire(r, KEY, 1, 10000, 300, max_pause_ms, &permit, NULL),
              RATELIMIT_TIMEOUT);
    return server_scripts(server_port());
}

/* Pauses are 2, 4, 8, ... ms, each shortened by up to half. A machine at work asks less often,
 * never more often: then it is measured again. */
static void pauses_grow_up_to_the_given_interval(void)
{
    ratelimit_redis_permit permit;
    long long few, more, many;
    int tries = 0;
    server_flush();
    CHECK_U64(acquire(1, 60000, &permit, NULL), RATELIMIT_OK);
    do {
        few = asks_in_300_ms(1000);
        more = asks_in_300_ms(20);
        many = asks_in_300_ms(2);
        CHECK(few <= 12);   /* 2 to 128 ms, and the rest */
        CHECK(more <= 36);  /* 2 to 16, then 20: at most each 10 ms */
        CHECK(many <= 310); /* each ms */
    } while (++tries < 20 && !(few >= 3 && more > few && many > more));
    CHECK(few >= 3 && more > few && many > more);
}

typedef struct contender {
    int most, in, worst, got;
    pthread_mutex_t lock;
} contender;

static void *contend(void *self)
{
    contender *c = (contender *)self;
    int i;
    for (i = 0; i < 10; i++) {
        ratelimit_redis_permit permit;
        if (ratelimit_redis_acquire(r, KEY, (uint64_t)c->most, 10000, 5000, 5, &permit, NULL) !=
            RATELIMIT_OK)
            continue;
        pthread_mutex_lock(&c->lock);
        c->got++;
        c->in++;
        c->worst = c->in > c->worst ? c->in : c->worst;
        pthread_mutex_unlock(&c->lock);
        server_sleep_ms(1);
        pthread_mutex_lock(&c->lock);
        c->in--;
        pthread_mutex_unlock(&c->lock);
        ratelimit_redis_release(r, KEY, &permit, 1, NULL);
    }
    return NULL;
}

static void eight_threads_are_never_more_than_three_at_once(void)
{
    pthread_t thread[8];
    contender c;
    int i;
    server_flush();
    memset(&c, 0, sizeof c);
    c.most = 3;
    pthread_mutex_init(&c.lock, NULL);
    for (i = 0; i < 8; i++)
        if (pthread_create(&thread[i], NULL, contend, &c) != 0)
            exit(2);
    for (i = 0; i < 8; i++)
        pthread_join(thread[i], NULL);
    CHECK_U64(c.got, 80);
    CHECK(c.worst <= 3 && c.worst >= 1);
    pthread_mutex_destroy(&c.lock);
}

/* ---- locks ----------------------------------------------------------------------------------- */

static ratelimit_status lock(uint64_t ttl_ms, ratelimit_redis_held *held)
{
    return ratelimit_redis_lock(r, KEY, ttl_ms, 0, held);
}

static ratelimit_status unlock(ratelimit_redis_held *held)
{
    return ratelimit_redis_unlock(r, KEY, held);
}

static void a_lock_has_one_holder(void)
{
    ratelimit_redis_held a, b;
    server_flush();
    CHECK_U64(lock(10000, &a), RATELIMIT_OK);
    CHECK_U64(lock(10000, &b), RATELIMIT_BUSY);
    CHECK_U64(ratelimit_redis_valid_ns(&b), 0);
    CHECK_U64(unlock(&a), RATELIMIT_OK);
    CHECK_U64(lock(10000, &b), RATELIMIT_OK);
    CHECK(b.fence > a.fence);
}

/* B62: a slow holder freed the next holder's lock. */
static void unlocking_late_does_not_free_the_next_holders_lock(void)
{
    ratelimit_redis_held a, b, c;
    redisReply *reply;
    server_flush();
    CHECK_U64(lock(40, &a), RATELIMIT_OK);
    server_sleep_ms(50);
    CHECK_U64(ratelimit_redis_valid_ns(&a), 0);
    CHECK_U64(lock(10000, &b), RATELIMIT_OK);
    CHECK_U64(unlock(&a), RATELIMIT_LOST);
    CHECK_U64(lock(10000, &c), RATELIMIT_BUSY);
    reply = server_ask(server_port(), "GET ratelimit:l{k}");
    CHECK(reply && reply->str);
    if (reply && reply->str)
        CHECK_TEXT(reply->str, b.owner);
    freeReplyObject(reply);
}

/* B63: renewing with a time of 0 deleted the lock and reported success. */
static void renewing_for_no_time_is_refused_and_deletes_nothing(void)
{
    ratelimit_redis_held held;
    server_flush();
    CHECK_U64(lock(10000, &held), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_renew(r, KEY, &held, 0), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_renew(r, KEY, &held, (uint64_t)-5), RATELIMIT_BAD_ARGUMENT);
    CHECK(server_int(server_port(), "PTTL ratelimit:l{k}") > 9000);
    CHECK(ratelimit_redis_valid_ns(&held) > 9 * RATELIMIT_SECOND);
}

/* B64: a late refresh quietly took the lock again. */
static void renewing_late_does_not_revive_the_lock(void)
{
    ratelimit_redis_held held;
    server_flush();
    CHECK_U64(lock(40, &held), RATELIMIT_OK);
    server_sleep_ms(50);
    CHECK_U64(ratelimit_redis_renew(r, KEY, &held, 10000), RATELIMIT_LOST);
    CHECK_U64(server_int(server_port(), "EXISTS ratelimit:l{k}"), 0);
    CHECK_U64(ratelimit_redis_valid_ns(&held), 0);
}

/* B65: releasing an expired lock raised a fatal error in cleanup code. */
static void unlocking_what_expired_is_an_ordinary_answer(void)
{
    ratelimit_redis_held held;
    server_flush();
    CHECK_U64(lock(40, &held), RATELIMIT_OK);
    server_sleep_ms(50);
    CHECK_U64(unlock(&held), RATELIMIT_LOST);
    CHECK_U64(unlock(&held), RATELIMIT_LOST);
    CHECK_U64(lock(10000, &held), RATELIMIT_OK);
}

/* B66: each renewal added to what was left. */
static void renewals_do_not_add_up(void)
{
    ratelimit_redis_held held;
    int i;
    server_flush();
    CHECK_U64(lock(10000, &held), RATELIMIT_OK);
    for (i = 0; i < 5; i++)
        CHECK_U64(ratelimit_redis_renew(r, KEY, &held, 10000), RATELIMIT_OK);
    CHECK(server_int(server_port(), "PTTL ratelimit:l{k}") <= 10000);
    CHECK(ratelimit_redis_valid_ns(&held) <= 10 * RATELIMIT_SECOND);
}

static void the_fence_grows_also_when_the_last_one_is_lost_or_in_the_future(void)
{
    ratelimit_redis_held held;
    uint64_t last = 0;
    int i;
    server_flush();
    for (i = 0; i < 20; i++) {
        if (i % 5 == 4)
            CHECK(server_do(server_port(), "DEL ratelimit:f{k}"));
        CHECK_U64(lock(10000, &held), RATELIMIT_OK);
        CHECK(held.fence > last);
        last = held.fence;
        CHECK_U64(unlock(&held), RATELIMIT_OK);
    }
    CHECK(server_do(server_port(), "SET ratelimit:f{k} %s", "4000000000000000"));
    CHECK_U64(lock(10000, &held), RATELIMIT_OK);
    CHECK_U64(held.fence, UINT64_C(4000000000000001));
    CHECK(server_int(server_port(), "PTTL ratelimit:f{k}") > 0);
}

static void validity_is_reckoned_from_before_the_request(void)
{
    ratelimit_redis_held held;
    uint64_t before = ratelimit_clock_ns();
    server_flush();
    CHECK_U64(lock(10000, &held), RATELIMIT_OK);
    CHECK(held.valid_until_ns <= ratelimit_clock_ns() + 9898 * RATELIMIT_MILLISECOND);
    CHECK(held.valid_until_ns >= before + 9898 * RATELIMIT_MILLISECOND);
    CHECK_U64(unlock(&held), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_valid_ns(&held), 0);
}

static void waiting_for_a_lock_ends_with_the_lock_or_its_own_deadline(void)
{
    ratelimit_redis_held a, b;
    uint64_t start = ratelimit_clock_ns();
    server_flush();
    CHECK_U64(lock(300, &a), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_lock(r, KEY, 10000, 30, &b), RATELIMIT_TIMEOUT);
    CHECK(server_ms_since(start) >= 29 && server_ms_since(start) < 200);
    CHECK_U64(ratelimit_redis_lock(r, KEY, 10000, 5000, &b), RATELIMIT_OK);
    CHECK(server_ms_since(start) >= 295); /* longer than timeout_ms, which is for each command */
    CHECK(server_ms_since(start) < 3000);
    CHECK(ratelimit_redis_valid_ns(&b) >
          9 * RATELIMIT_SECOND); /* of the last request, not the first */
}

static void waiting_for_a_lock_is_few_requests(void)
{
    ratelimit_redis_held a, b;
    server_flush();
    CHECK_U64(lock(60000, &a), RATELIMIT_OK);
    CHECK(server_do(server_port(), "CONFIG RESETSTAT"));
    CHECK_U64(ratelimit_redis_lock(r, KEY, 10000, 500, &b), RATELIMIT_TIMEOUT);
    CHECK(server_scripts(server_port()) >= 4 && server_scripts(server_port()) <= 18);
}

static void a_key_with_braces_of_its_own_keeps_them(void)
{
    ratelimit_redis_held held;
    server_flush();
    CHECK_U64(ratelimit_redis_lock(r, "a{b}", 4, 10000, 0, &held), RATELIMIT_OK);
    CHECK_U64(server_int(server_port(), "EXISTS ratelimit:l:a{b}"), 1);
    CHECK_U64(server_int(server_port(), "EXISTS ratelimit:f:a{b}"), 1);
}

static void on_lost(void *self)
{
    __atomic_fetch_add((int *)self, 1, __ATOMIC_SEQ_CST);
}

static int lost_now(const int *lost)
{
    return __atomic_load_n(lost, __ATOMIC_SEQ_CST);
}

static void a_keeper_renews_until_it_is_stopped(void)
{
    ratelimit_redis_held held;
    ratelimit_redis_keeper *keeper;
    int lost = 0;
    server_flush();
    CHECK_U64(lock(150, &held), RATELIMIT_OK);
    keeper = ratelimit_redis_keep(r, KEY, &held, 150, on_lost, &lost);
    CHECK(keeper != NULL);
    server_sleep_ms(400);
    CHECK(ratelimit_redis_keep_valid_ns(keeper) > 0);
    CHECK(ratelimit_redis_keep_stop(keeper));
    CHECK_U64(lost, 0);
    CHECK_U64(unlock(&held), RATELIMIT_OK);
}

static void a_keeper_reports_the_loss_once(void)
{
    ratelimit_redis_held held;
    ratelimit_redis_keeper *keeper;
    int lost = 0;
    uint64_t start;
    server_flush();
    CHECK_U64(lock(150, &held), RATELIMIT_OK);
    keeper = ratelimit_redis_keep(r, KEY, &held, 150, on_lost, &lost);
    CHECK(server_do(server_port(), "SET ratelimit:l{k} somebody"));
    start = ratelimit_clock_ns();
    while (!lost_now(&lost) && server_ms_since(start) < 2000)
        server_sleep_ms(5);
    CHECK(server_ms_since(start) < 200);
    CHECK_U64(ratelimit_redis_keep_valid_ns(keeper), 0);
    CHECK(!ratelimit_redis_keep_stop(keeper));
    CHECK_U64(lost, 1);
    CHECK_U64(unlock(&held), RATELIMIT_LOST);
}

static void a_keeper_reports_the_loss_also_when_nobody_answers(void)
{
    ratelimit_redis_held held;
    ratelimit_redis_keeper *keeper;
    int lost = 0;
    uint64_t start = ratelimit_clock_ns();
    server_flush();
    CHECK_U64(lock(300, &held), RATELIMIT_OK);
    keeper = ratelimit_redis_keep(r, KEY, &held, 300, on_lost, &lost);
    kill(server_number("REDIS_PID"), SIGSTOP);
    while (!lost_now(&lost) && server_ms_since(start) < 3000)
        server_sleep_ms(5);
    kill(server_number("REDIS_PID"), SIGCONT);
    CHECK(lost_now(&lost) == 1 && server_ms_since(start) < 600);
    CHECK(!ratelimit_redis_keep_stop(keeper));
}

#if defined(SYS_clock_gettime)
/* It waited by the wall clock: set back, nothing was renewed, and the loss was told after 6 s. */
static void a_keeper_does_not_mind_a_wall_clock_that_is_set_back(void)
{
    ratelimit_redis_held held;
    ratelimit_redis_keeper *keeper;
    int lost = 0;
    uint64_t start;
    server_flush();
    CHECK_U64(lock(600, &held), RATELIMIT_OK);
    wall_clock_ahead = 6;
    keeper = ratelimit_redis_keep(r, KEY, &held, 600, on_lost, &lost);
    server_sleep_ms(100);
    wall_clock_ahead = 0;
    server_sleep_ms(700);
    CHECK(ratelimit_redis_keep_valid_ns(keeper) > 0);
    CHECK(server_do(server_port(), "SET ratelimit:l{k} somebody"));
    start = ratelimit_clock_ns();
    while (!lost_now(&lost) && server_ms_since(start) < 2000)
        server_sleep_ms(5);
    CHECK(server_ms_since(start) < 500);
    CHECK(!ratelimit_redis_keep_stop(keeper));
}
#endif

/* ---- replicas -------------------------------------------------------------------------------- */

static ratelimit_redis *open_waiting(uint32_t replicas)
{
    ratelimit_redis_options options = server_options();
    options.port = server_number("MASTER_PORT");
    options.timeout_ms = 1000;
    options.wait_replicas = replicas;
    return server_open(&options);
}

static bool replica_has(const char *key)
{
    return server_int(server_number("REPLICA_PORT"), "EXISTS ratelimit:l{%s}", key) == 1;
}

/* The replica has the lock when the call returns, also when the script had to be sent again. */
static void a_lock_that_waits_for_a_replica_is_there_when_it_is_held(void)
{
    ratelimit_redis *w = open_waiting(1);
    ratelimit_redis_held held, other;
    char key[16];
    int i;
    CHECK(server_do(server_number("MASTER_PORT"), "FLUSHALL"));
    for (i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "k%d", i);
        if (i % 10 == 0)
            CHECK(server_do(server_number("MASTER_PORT"), "SCRIPT FLUSH"));
        CHECK_U64(ratelimit_redis_lock(w, key, strlen(key), 60000, 0, &held), RATELIMIT_OK);
        CHECK(replica_has(key));
        CHECK_U64(ratelimit_redis_lock(w, key, strlen(key), 60000, 0, &other), RATELIMIT_BUSY);
        CHECK_U64(ratelimit_redis_renew(w, key, strlen(key), &held, 90000), RATELIMIT_OK);
        CHECK(server_int(server_number("REPLICA_PORT"), "PTTL ratelimit:l{%s}", key) > 80000);
        CHECK_U64(ratelimit_redis_unlock(w, key, strlen(key), &held), RATELIMIT_OK);
        CHECK_U64(ratelimit_redis_renew(w, key, strlen(key), &held, 90000), RATELIMIT_LOST);
    }
    ratelimit_redis_close(w);
}

/* A master whose replica is cut off gives no lock; who waits gets it when the replica is back. */
static void a_lock_without_its_replica_is_not_held(void)
{
    ratelimit_redis *w = open_waiting(1), *alone = open_waiting(0), *two = open_waiting(2);
    ratelimit_redis_held held, kept;
    uint64_t start, valid;
    CHECK(server_do(server_number("MASTER_PORT"), "FLUSHALL"));
    CHECK_U64(ratelimit_redis_lock(w, "kept", 4, 60000, 0, &kept), RATELIMIT_OK);
    valid = kept.valid_until_ns;
    CHECK_U64(ratelimit_redis_lock(two, "k", 1, 60000, 0, &held), RATELIMIT_STORE_FAILED);
    CHECK_TEXT(server_error(two), "only 1 of 2 replicas have the lock in time");
    CHECK_U64(ratelimit_redis_unlock(two, "k", 1, &held), RATELIMIT_OK);
    CHECK(server_do(server_number("MASTER_PORT"), "SCRIPT FLUSH")); /* so it is sent twice */
    kill(server_number("REPLICA_PID"), SIGSTOP);
    start = ratelimit_clock_ns();
    CHECK_U64(ratelimit_redis_lock(w, "k", 1, 60000, 0, &held), RATELIMIT_STORE_FAILED);
    CHECK(server_ms_since(start) >= 490 && server_ms_since(start) < 1000);
    CHECK_TEXT(server_error(w), "only 0 of 1 replicas have the lock in time");
    CHECK_U64(ratelimit_redis_valid_ns(&held), 0);
    CHECK_U64(ratelimit_redis_unlock(w, "k", 1, &held), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_renew(w, "kept", 4, &kept, 120000), RATELIMIT_STORE_FAILED);
    CHECK_U64(kept.valid_until_ns, valid); /* as it was */
    CHECK_U64(ratelimit_redis_lock(alone, "k", 1, 60000, 0, &held), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_unlock(alone, "k", 1, &held), RATELIMIT_OK);
    if (fork() == 0) { /* who waits is not let down */
        server_sleep_ms(1500);
        kill(server_number("REPLICA_PID"), SIGCONT);
        _exit(0);
    }
    start = ratelimit_clock_ns();
    CHECK_U64(ratelimit_redis_lock(w, "k", 1, 60000, 8000, &held), RATELIMIT_OK);
    CHECK(server_ms_since(start) >= 1000);
    CHECK(replica_has("k"));
    wait(NULL);
    ratelimit_redis_close(w);
    ratelimit_redis_close(two);
    ratelimit_redis_close(alone);
}

int main(int argc, char **argv)
{
    ratelimit_redis_options options = server_options();
    check_begin(argc, argv);
    options.cool_down_ms = 20;
    r = server_open(&options);
    RUN(a_window_counts_up_to_its_limit);
    RUN(a_window_ends);
    RUN(a_counter_that_lost_its_expiry_refuses_for_one_window_only);
    RUN(counting_does_not_lengthen_a_window);
    RUN(a_lowered_limit_counts_at_once);
    RUN(a_refused_count_does_not_count);
    RUN(mistakes_are_refused_without_asking);
    RUN(a_sliding_window_weighs_the_one_before_by_what_is_left_of_it);
    RUN(a_sliding_window_passes_at_retry_after);
    RUN(a_sliding_window_never_passes_more_than_twice_its_limit_within_its_period);
    RUN(a_plain_semaphore_never_goes_below_zero_or_above_its_size);
    RUN(a_crashed_holders_permit_comes_back_when_its_time_is_over);
    RUN(releasing_an_expired_permit_frees_nobody_elses);
    RUN(releasing_many_answers_for_each);
    RUN(an_extended_permit_lives_on_and_a_lost_one_is_not_revived);
    RUN(a_semaphores_size_may_change);
    RUN(an_unused_semaphore_leaves_nothing_behind);
    RUN(ids_of_forked_processes_do_not_collide);
    RUN(waiting_for_a_permit_gets_the_next_one_or_times_out);
    RUN(pauses_grow_up_to_the_given_interval);
    RUN(eight_threads_are_never_more_than_three_at_once);
    RUN(a_lock_has_one_holder);
    RUN(unlocking_late_does_not_free_the_next_holders_lock);
    RUN(renewing_for_no_time_is_refused_and_deletes_nothing);
    RUN(renewing_late_does_not_revive_the_lock);
    RUN(unlocking_what_expired_is_an_ordinary_answer);
    RUN(renewals_do_not_add_up);
    RUN(the_fence_grows_also_when_the_last_one_is_lost_or_in_the_future);
    RUN(validity_is_reckoned_from_before_the_request);
    RUN(waiting_for_a_lock_ends_with_the_lock_or_its_own_deadline);
    RUN(waiting_for_a_lock_is_few_requests);
    RUN(a_key_with_braces_of_its_own_keeps_them);
    RUN(a_lock_that_waits_for_a_replica_is_there_when_it_is_held);
    RUN(a_lock_without_its_replica_is_not_held);
    RUN(a_keeper_renews_until_it_is_stopped);
    RUN(a_keeper_reports_the_loss_once);
    RUN(a_keeper_reports_the_loss_also_when_nobody_answers);
#if defined(SYS_clock_gettime)
    RUN(a_keeper_does_not_mind_a_wall_clock_that_is_set_back);
#endif
    ratelimit_redis_close(r);
    return check_end();
}

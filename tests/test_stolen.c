/* test_stolen.c - threads whose locks are stolen all the time while they live.
 *
 * A lock is taken over from a holder that is only slow after a fifth of a second. Here that is
 * after a few turns, and threads that hold one stop at random before their atomic writes, so it
 * happens thousands of times. What must hold all the same: nobody's charge is lost or undone, so
 * what threads were told they have and what is left is never more than the limit. Time stands
 * still.
 *
 *     cc -std=c99 -O2 -I. tests/test_stolen.c -lpthread
 *     cc -std=c99 -O1 -g -fsanitize=thread -I. tests/test_stolen.c -lpthread
 */
#define _POSIX_C_SOURCE 200809L

#include "shared.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

static __thread uint64_t random_state; /* 0: this thread is never slow */
static shared64 stolen;

static uint64_t below(uint64_t limit)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) % limit;
}

/* Before an atomic write: now and then for as long as others need to lose their patience. */
static void dawdle(void)
{
    int i, turns;
    if (!random_state || below(200))
        return;
    turns = 1 + (int)below(40);
    for (i = 0; i < turns; i++)
        sched_yield();
}

static int nap(const struct timespec *span, struct timespec *rest)
{
    (void)span, (void)rest;
    return sched_yield();
}

#define RATELIMIT_TAKEOVER_MS             1
#define nanosleep(span, rest)             nap(span, rest)
#define __atomic_store_n(p, value, order) (dawdle(), __atomic_store_n(p, value, order))
#define __atomic_compare_exchange_n(p, old, value, weak, order, other)                             \
  (dawdle(), swapped(__atomic_compare_exchange_n(p, old, value, weak, order, other), p,            \
                     sizeof *(p), *(old), value))
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#undef nanosleep
#undef __atomic_store_n
#undef __atomic_compare_exchange_n

#include "check.h"

#define SEC RATELIMIT_SECOND

enum { THREADS = 6, KEYS = 8, CROWD = 60, PLACES = 24, NOW = 5 };

static uint64_t rounds = 1;

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct job {
    void (*body)(struct job *job, unsigned id);
    ratelimit_table *table;
    ratelimit_bucket bucket;
    ratelimit_limit limit[3];
    uint64_t turns;
    shared64 faults, next, ready;
    shared64 told[CROWD]; /* tokens that threads were told they have */
    uint64_t seed;
    unsigned char memory[RATELIMIT_TABLE_BYTES(PLACES / 2)];
} job;

static job the_job;

/* The harness counts faults in the main thread only: workers note theirs here. */
#define NOTE(job, what)                                                                            \
  do {                                                                                             \
    if (!(what) && __atomic_add_fetch(&(job)->faults, 1, __ATOMIC_RELAXED) < 4)                    \
      printf("  %s:%d: in a thread, not true: %s\n", __FILE__, __LINE__, #what);                   \
  } while (0)

static void tell(job *j, unsigned key, uint64_t n)
{
    (void)__atomic_add_fetch(&j->told[key], n, __ATOMIC_RELAXED);
}

static void *work(void *self)
{
    job *j = (job *)self;
    unsigned id = (unsigned)__atomic_fetch_add(&j->next, 1, __ATOMIC_ACQ_REL);
    random_state = j->seed + id * 1000003 + 1;
    (void)__atomic_add_fetch(&j->ready, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&j->ready, __ATOMIC_ACQUIRE) < THREADS)
        sched_yield();
    j->body(j, id);
    return NULL;
}

static job *begin(ratelimit_full when_full)
{
    ratelimit_table_options options;
    memset(&the_job, 0, sizeof the_job);
    memset(&options, 0, sizeof options);
    options.seed[0] = check_random();
    options.seed[1] = 1;
    options.when_full = when_full;
    CHECK(ratelimit_table_init(&the_job.table, the_job.memory, sizeof the_job.memory, &options) ==
          RATELIMIT_OK);
    return &the_job;
}

static void run(job *j, void (*body)(job *, unsigned), uint64_t turns)
{
    pthread_t thread[THREADS];
    ratelimit_table_counts counts;
    unsigned i;
    j->body = body;
    j->turns = turns * rounds;
    j->seed = check_random();
    for (i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, work, j) != 0) {
            printf("no threads to be had\n");
            exit(1);
        }
    for (i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK_U64(j->faults, 0);
    ratelimit_table_stats(j->table, NOW, &counts);
    CHECK(counts.keys <= counts.capacity);
    for (i = 0; i < PLACES / 3; i++) /* no lock is held */
        CHECK((*(const uint32_t *)(const void *)((const char *)j->table + 128 + 64 * i) & 1) == 0);
}

static ratelimit_request request(const uint16_t *key, const ratelimit_limit *limit, ratelimit_op op,
                                 uint64_t n)
{
    ratelimit_request q;
    memset(&q, 0, sizeof q);
    q.key = key;
    q.key_len = sizeof *key;
    q.limit = limit;
    q.op = op;
    q.n = n;
    q.max_wait_ns = op == RATELIMIT_RESERVE ? RATELIMIT_HOUR : 0;
    return q;
}

static uint64_t remaining(job *j, uint16_t key, const ratelimit_limit *limit)
{
    ratelimit_request q = request(&key, limit, RATELIMIT_PEEK, 1);
    ratelimit_result r;
    (void)ratelimit_table_decide_one(j->table, &q, NOW, &r);
    return r.remaining;
}

/* ---- keys that are there --------------------------------------------------------------------- */

/* Every way to charge a known key, and to give back what was charged. */
static void use_known_keys(job *j, unsigned id)
{
    uint64_t turn, own[KEYS] = {0};
    (void)id;
    for (turn = 0; turn < j->turns; turn++) {
        uint16_t key[3];
        ratelimit_request q[3];
        ratelimit_result r[3];
        size_t i, count = 2 + (size_t)below(2);
        const ratelimit_limit *limit = &j->limit[0];
        for (i = 0; i < 3; i++) {
            key[i] = (uint16_t)below(KEYS);
            q[i] = request(&key[i], limit, RATELIMIT_TAKE, 1 + below(3));
        }
        switch (below(6)) {
        case 0:
            if (!ratelimit_table_decide(j->table, q, r, count, RATELIMIT_ALL, NOW))
                break;
            for (i = 0; i < count; i++) {
                tell(j, key[i], q[i].n);
                own[key[i]] += q[i].n;
            }
            break;
        case 1:
            q[0].op = below(2) ? RATELIMIT_TAKE_UP_TO : RATELIMIT_CHARGE;
            if (ratelimit_table_decide_one(j->table, q, NOW, r)) {
                tell(j, key[0], r[0].taken);
                own[key[0]] += r[0].taken;
            }
            break;
        case 2:
            if (own[key[0]] < q[0].n)
                break;
            tell(j, key[0], 0 - q[0].n); /* before: a token given back is at once another's */
            own[key[0]] -= q[0].n;
            q[0].op = RATELIMIT_REFUND;
            NOTE(j, ratelimit_table_decide_one(j->table, q, NOW, r) && r[0].taken == q[0].n);
            break;
        default:
            if (ratelimit_table_take(j->table, key, sizeof *key, limit, q[0].n, NOW, r)) {
                NOTE(j, r[0].taken == q[0].n);
                tell(j, key[0], q[0].n);
                own[key[0]] += q[0].n;
            }
        }
    }
}

static void known_keys(uint64_t tokens, uint64_t per_ns)
{
    job *j = begin(RATELIMIT_EVICT);
    uint16_t key;
    j->limit[0] = ratelimit_limit_make(tokens, per_ns, 100000);
    for (key = 0; key < KEYS; key++) { /* a token that nobody gives back: they stay */
        CHECK(ratelimit_table_take(j->table, &key, sizeof key, &j->limit[0], 1, NOW, NULL));
        tell(j, key, 1);
    }
    stolen = 0;
    run(j, use_known_keys, 4000);
    for (key = 0; key < KEYS; key++) {
        uint64_t spent = j->limit[0].burst - remaining(j, key, &j->limit[0]);
        CHECK(j->told[key] <= spent);             /* no charge is lost or undone */
        CHECK(spent <= 2 * j->told[key] + 10000); /* and not many are made twice */
    }
    CHECK(stolen > 0); /* else nothing was tried */
}

static void no_charge_of_a_known_key_is_lost_or_undone(void)
{
    known_keys(1, SEC);
    known_keys(7, RATELIMIT_MINUTE); /* with a fraction: every charge holds the lock */
}

/* ---- a limit that changes -------------------------------------------------------------------- */

static void use_changing_limits(job *j, unsigned id)
{
    uint64_t turn;
    for (turn = 0; turn < j->turns; turn++) {
        uint16_t key = (uint16_t)below(KEYS);
        const ratelimit_limit *limit = &j->limit[turn / 16 % 3];
        (void)id;
        if (ratelimit_table_take(j->table, &key, sizeof key, limit, 1, NOW, NULL))
            tell(j, key, 1);
    }
}

static void change_limits(job *j)
{
    unsigned i;
    j->limit[0] = ratelimit_limit_make(1, SEC, 1000);
    j->limit[1] = ratelimit_limit_make(700, SEC, 1000);
    j->limit[2] = ratelimit_limit_make(1, RATELIMIT_HOUR, 1000);
    for (i = 0; i < 3; i++)
        j->limit[i].scope = 1;
}

/* Who is robbed between the two stores of a change may leave a small debt under a slow limit, or a
 * large one under a fast limit: a burst too many, or too few. */
static void a_stolen_lock_costs_a_burst_at_most_while_limits_change(void)
{
    job *j = begin(RATELIMIT_EVICT);
    uint16_t key;
    change_limits(j);
    stolen = 0;
    run(j, use_changing_limits, 4000);
    for (key = 0; key < KEYS; key++)
        CHECK(j->told[key] <= 1000 * (1 + stolen));
    CHECK(stolen > 0);
}

/* ---- a shared bucket ------------------------------------------------------------------------- */

#if defined(RATELIMIT_PRIV_SHARED)
static void use_bucket(job *j, unsigned id)
{
    uint64_t turn;
    (void)id;
    for (turn = 0; turn < j->turns; turn++) {
        const ratelimit_limit *limit = &j->limit[0];
        ratelimit_request q =
            request(NULL, limit, below(2) ? RATELIMIT_TAKE : RATELIMIT_TAKE_UP_TO, 1);
        if (below(2) ? ratelimit_bucket_take_shared(&j->bucket, limit, 1, NOW, NULL)
                     : ratelimit_bucket_decide_shared(&j->bucket, &q, NOW, NULL))
            tell(j, 0, 1);
    }
}

static void a_shared_bucket_whose_mark_is_replaced_loses_no_charge(void)
{
    static const uint64_t rates[2] = {1, 7}; /* a second; the second has a fraction */
    unsigned i;
    for (i = 0; i < 2; i++) {
        job *j = begin(RATELIMIT_EVICT);
        ratelimit_request q = request(NULL, &j->limit[0], RATELIMIT_PEEK, 1);
        ratelimit_result r;
        j->limit[0] = ratelimit_limit_make(rates[i], SEC, 4000);
        run(j, use_bucket, 3000);
        (void)ratelimit_bucket_decide_shared(&j->bucket, &q, NOW, &r);
        CHECK(j->told[0] <= 4000 - r.remaining + i); /* i: the fractions of a ns that are lost */
        CHECK(j->told[0] > 1000);
    }
}
#endif

/* ---- keys that come -------------------------------------------------------------------------- */

/* Many more keys than places. A place that is never free again holds one burst, whoever has it: so
 * all keys together get no more than the bursts of all places, also if some key has two of them. */
static void use_a_crowd(job *j, unsigned id)
{
    uint64_t turn;
    (void)id;
    for (turn = 0; turn < j->turns; turn++) {
        uint16_t key[2];
        ratelimit_request q[2];
        unsigned i;
        for (i = 0; i < 2; i++) {
            key[i] = (uint16_t)below(turn < 20 ? KEYS : CROWD); /* at first several want the same */
            q[i] = request(&key[i], &j->limit[0], RATELIMIT_TAKE, 1);
        }
        if (below(4) == 0) {
            if (ratelimit_table_decide(j->table, q, NULL, 2, RATELIMIT_ALL, NOW)) {
                tell(j, key[0], 1);
                tell(j, key[1], 1);
            }
        } else if (ratelimit_table_take(j->table, key, sizeof *key, &j->limit[0], 1, NOW, NULL)) {
            tell(j, key[0], 1);
        }
        if (below(64) == 0)
            NOTE(j, ratelimit_table_sweep(j->table, NOW, 0) == 0);
    }
}

static void crowd_once(ratelimit_full when_full)
{
    job *j = begin(when_full);
    ratelimit_table_counts counts;
    uint64_t all = 0, over = 0;
    uint16_t key;
    j->limit[0] = ratelimit_limit_make(1, SEC, 20);
    stolen = 0;
    run(j, use_a_crowd, 300);
    for (key = 0; key < CROWD; key++) {
        all += j->told[key];
        over += j->told[key] > j->limit[0].burst;
    }
    CHECK(over <= stolen || when_full == RATELIMIT_EVICT); /* keys with two places */
    if (when_full != RATELIMIT_EVICT)
        CHECK_U64(all > PLACES * j->limit[0].burst ? all : 0, 0);
    CHECK(all > PLACES * j->limit[0].burst / 2);
    ratelimit_table_stats(j->table, NOW, &counts);
    CHECK_U64(counts.keys, PLACES);
    CHECK(when_full == RATELIMIT_EVICT || counts.evicted == 0);
}

/* Places are taken but once in each table, so there are many. */
static void crowd(ratelimit_full when_full)
{
    uint64_t i, tables = 50 * rounds;
    rounds = 1;
    for (i = 0; i < tables; i++)
        crowd_once(when_full);
    rounds = tables / 50;
}

static void all_places_together_hold_no_more_than_their_bursts(void)
{
    crowd(RATELIMIT_REFUSE);
}

static void nor_do_they_where_newcomers_inherit(void)
{
    crowd(RATELIMIT_INHERIT);
}

static void a_crowd_that_evicts_leaves_a_sound_table(void)
{
    crowd(RATELIMIT_EVICT);
}

int main(int argc, char **argv)
{
    const char *text = getenv("ROUNDS");
    check_begin(argc, argv);
    check_seed(12);
    takeovers = &stolen;
    rounds = text ? (uint64_t)strtoull(text, NULL, 0) : 1;
    rounds = rounds ? rounds : 1;
    RUN(no_charge_of_a_known_key_is_lost_or_undone);
    RUN(a_stolen_lock_costs_a_burst_at_most_while_limits_change);
#if defined(RATELIMIT_PRIV_SHARED)
    RUN(a_shared_bucket_whose_mark_is_replaced_loses_no_charge);
#endif
    RUN(all_places_together_hold_no_more_than_their_bursts);
    RUN(nor_do_they_where_newcomers_inherit);
    RUN(a_crowd_that_evicts_leaves_a_sound_table);
    return check_end();
}

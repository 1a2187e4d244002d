/* test_processes.c - processes that share a table, a bucket, a mapped file, and die in the middle
 * of it.
 *
 * Three ways to die: by SIGKILL from outside at a random moment; by the process's own hand before
 * the n-th of its atomic stores and swaps, for every n, which the macros below arrange; and as a
 * lock that is taken and never given back, which is what a dead process looks like to the others. A
 * process that is only slow stops itself with SIGSTOP in the same way, others take its locks over,
 * and it goes on.
 *
 *     cc -std=c99 -O2 -I. tests/test_processes.c
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include "processes.h"

#include <fcntl.h>
#include <sched.h>

/* The death of this process: before so many atomic writes it goes on; negative: for ever. */
static long writes_left = -1;
static int death = SIGKILL;

static void mortal(void)
{
    if (writes_left >= 0 && writes_left-- == 0)
        raise(death);
}

/* Sleeps of the header: counted, and skipped while the parent is alone and nobody's time is real.
 */
static uint64_t naps;
static bool skip_naps;

static void stuck(void);

static int nap(const struct timespec *span, struct timespec *rest)
{
    if (++naps > 1000000 && skip_naps) {
        stuck();
        exit(1);
    }
    return skip_naps ? 0 : nanosleep(span, rest);
}

#define RATELIMIT_TAKEOVER_MS             100
#define nanosleep(span, rest)             nap(span, rest)
#define __atomic_store_n(p, value, order) (mortal(), __atomic_store_n(p, value, order))
#define __atomic_compare_exchange_n(p, old, value, weak, order, other)                             \
  (mortal(), swapped(__atomic_compare_exchange_n(p, old, value, weak, order, other), p,            \
                     sizeof *(p), *(old), value))
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#undef nanosleep
#undef __atomic_store_n
#undef __atomic_compare_exchange_n

#include "check.h"

#if defined(RATELIMIT_PRIV_SHARED)
#  define HAVE_SHARED 1
#else /* then nothing of it is looked at */
#  define HAVE_SHARED                    0
#  define ratelimit_bucket_take_shared   ratelimit_bucket_take
#  define ratelimit_bucket_decide_shared ratelimit_bucket_decide
#endif

static void stuck(void)
{
    printf("FAILED: %s: nobody takes over\n", check_name);
}

#define SEC RATELIMIT_SECOND

enum { WORKERS = 6, KEYS = 12, CROWD = 300, LINES = 16, KEY_LIMIT = 80 };

/* ---- the stage: what processes share --------------------------------------------------------- */

typedef struct plain_table {
    unsigned char line[128 / 64 + LINES][64];
} plain_table __attribute__((aligned(64)));

typedef struct stage {
    plain_table room, crowd; /* 48 places each: more than there are KEYS, far fewer than CROWD */
    ratelimit_bucket bucket[4] __attribute__((aligned(64)));
    shared64 now, stop, fault_line, takeovers;
    shared64 progress[WORKERS];
    shared64 tokens[WORKERS][KEYS], bucket_tokens[WORKERS][4], crowd_tokens[WORKERS][CROWD];
} stage;

/* Notes where a child met a fault; the parent reports it. */
#define NOTE(s, what)                                                                              \
  do {                                                                                             \
    if (!(what))                                                                                   \
      set(&(s)->fault_line, __LINE__);                                                             \
  } while (0)

static ratelimit_table *make_table(plain_table *memory, ratelimit_full when_full)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = check_random();
    options.seed[1] = 1;
    options.when_full = when_full;
    CHECK(ratelimit_table_init(&t, memory, sizeof *memory, &options) == RATELIMIT_OK);
    return t;
}

static ratelimit_table *attach(plain_table *memory)
{
    ratelimit_table *t = NULL;
    return ratelimit_table_attach(&t, memory, sizeof *memory) == RATELIMIT_OK ? t : NULL;
}

static uint32_t *lock_of(ratelimit_table *t, unsigned line)
{
    return (uint32_t *)(void *)((char *)t + 128 + 64 * line);
}

static unsigned locks_held(ratelimit_table *t)
{
    unsigned i, held = 0;
    for (i = 0; i < LINES; i++)
        held += *lock_of(t, i) & 1;
    return held;
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
    return q;
}

static uint64_t remaining(ratelimit_table *t, uint16_t key, const ratelimit_limit *limit,
                          uint64_t now)
{
    ratelimit_request q = request(&key, limit, RATELIMIT_PEEK, 1);
    ratelimit_result r;
    (void)ratelimit_table_decide_one(t, &q, now, &r);
    return r.remaining;
}

/* ---- killed at random moments ---------------------------------------------------------------- */

/* The limits of the keys, of the buckets and of the crowd. */
typedef struct limits {
    ratelimit_limit key, bucket[4], crowd;
} limits;

static bool work_bucket(stage *s, const limits *l, unsigned id, uint64_t now)
{
    unsigned which = (unsigned)check_below(4);
    bool allowed = ratelimit_bucket_take_shared(&s->bucket[which], &l->bucket[which], 1, now, NULL);
    if (allowed)
        add(&s->bucket_tokens[id][which], 1);
    return allowed;
}

/* Without a 64-bit swap no time of a forgotten key is kept: what a call is allowed whose time is
 * over by now is not counted. */
static bool counts(const stage *s, uint64_t now)
{
    return RATELIMIT_PRIV_QUICK || get(&s->now) == now;
}

static bool work_crowd(stage *s, ratelimit_table *t, const limits *l, unsigned id, uint64_t now)
{
    uint16_t key = (uint16_t)check_below(CROWD);
    bool allowed = ratelimit_table_take(t, &key, sizeof key, &l->crowd, 1, now, NULL);
    if (allowed && counts(s, now))
        add(&s->crowd_tokens[id][key], 1);
    return allowed;
}

static bool work_keys(stage *s, ratelimit_table *t, const limits *l, unsigned id, uint64_t now)
{
    uint16_t key[2];
    ratelimit_request q[2];
    ratelimit_result r[2];
    size_t i, count = 1 + (size_t)check_below(2);
    ratelimit_mode mode = check_below(2) ? RATELIMIT_ALL : RATELIMIT_EACH;
    key[0] = (uint16_t)check_below(KEYS);
    key[1] = (uint16_t)((key[0] + 1 + check_below(KEYS - 1)) % KEYS);
    for (i = 0; i < 2; i++)
        q[i] = request(&key[i], &l->key, RATELIMIT_TAKE, 1);
    ratelimit_table_decide(t, q, r, count, mode, now);
    for (i = 0; i < count; i++) {
        if (r[i].allowed && counts(s, now))
            add(&s->tokens[id][key[i]], 1);
        NOTE(s, r[i].burst == l->key.burst && r[i].remaining <= l->key.burst);
        NOTE(s, r[i].allowed ? r[i].status == RATELIMIT_OK : mode || r[i].retry_after_ns);
        NOTE(s, mode == RATELIMIT_EACH || r[i].allowed == r[0].allowed);
    }
    return r[0].allowed;
}

static void work_other(stage *s, ratelimit_table *t, uint64_t now)
{
    ratelimit_table_counts counts;
    uint16_t key = (uint16_t)check_below(4);
    ratelimit_permit permit;
    if (ratelimit_table_acquire(t, &key, sizeof key, 3, SEC, now, &permit))
        NOTE(s, ratelimit_table_release(t, &key, sizeof key, &permit, now) == RATELIMIT_OK);
    ratelimit_table_sweep(t, now, 0);
    ratelimit_table_stats(t, now, &counts);
    NOTE(s, counts.keys <= counts.capacity);
}

/* A worker asks until it is stopped or killed, and counts what it was allowed only after it was
 * told. */
static void work(stage *s, const limits *l, unsigned id, uint64_t seed)
{
    ratelimit_table *room = attach(&s->room), *crowd = attach(&s->crowd);
    check_random_state = seed;
    NOTE(s, room && crowd);
    while (room && crowd && !get(&s->stop) && getppid() == parent_pid) {
        uint64_t now = get(&s->now);
        unsigned i;
        for (i = 0; i < 50; i++)
            switch (check_below(16)) {
            case 0:
                work_other(s, check_below(2) ? room : crowd, now);
                break;
            case 1:
            case 2:
            case 3:
                (void)work_bucket(s, l, id, now);
                break;
            case 4:
            case 5:
                (void)work_crowd(s, crowd, l, id, now);
                break;
            default:
                (void)work_keys(s, room, l, id, now);
            }
        add(&s->progress[id], 1);
    }
    _exit(0);
}

static void start_worker(stage *s, const limits *l, unsigned id)
{
    uint64_t seed = check_random();
    child[id] = spawn();
    if (child[id] == 0)
        work(s, l, id, seed);
}

static void kill_worker(unsigned id)
{
    pid_t pid = child[id];
    child[id] = 0;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Waits for the workers to end by themselves. False if one does not. */
static bool join_workers(stage *s)
{
    uint64_t until = wall_ns() + 5 * SEC;
    unsigned i, left;
    set(&s->stop, 1);
    do {
        for (i = left = 0; i < WORKERS; i++) {
            if (child[i] > 0 && waitpid(child[i], NULL, WNOHANG) == child[i])
                child[i] = 0;
            left += child[i] > 0;
        }
        if (left)
            pause_ns(RATELIMIT_MILLISECOND);
    } while (left && wall_ns() < until);
    kill_children();
    return left == 0;
}

/* Notes when each worker was last seen to get on; true if all have in the last two seconds. */
static bool all_go_on(const stage *s, uint64_t *seen, uint64_t *when)
{
    uint64_t now = wall_ns();
    unsigned i;
    bool all = true;
    for (i = 0; i < WORKERS; i++) {
        uint64_t progress = get(&s->progress[i]);
        if (progress != seen[i]) {
            seen[i] = progress;
            when[i] = now;
        }
        all = all && now - when[i] < 2 * SEC;
    }
    return all;
}

/* Kills and starts again so many workers, moving the clock on by up to step each time. */
static void kill_at_random(stage *s, const limits *l, unsigned kills, uint64_t step)
{
    uint64_t seen[WORKERS], when[WORKERS];
    unsigned i, id;
    for (id = 0; id < WORKERS; id++) {
        seen[id] = 0;
        when[id] = wall_ns();
        start_worker(s, l, id);
    }
    for (i = 0; i < kills; i++) {
        pause_ns(check_below(3 * RATELIMIT_MILLISECOND));
        set(&s->now, get(&s->now) + (step ? check_below(step) : 0));
        id = (unsigned)check_below(WORKERS);
        kill_worker(id);
        when[id] = wall_ns();
        start_worker(s, l, id);
        CHECK(all_go_on(s, seen, when));
        if (check_faults)
            break;
    }
    /* the last ones to die may have left locks behind: wait until everybody got on after that */
    for (id = 0; id < WORKERS; id++)
        when[id] = wall_ns();
    for (i = 0; i < WORKERS && !check_faults;) {
        pause_ns(RATELIMIT_MILLISECOND);
        CHECK(all_go_on(s, seen, when));
        for (i = 0; i < WORKERS && seen[i] > 1; i++)
            continue;
    }
    CHECK(join_workers(s));
    CHECK_U64(s->fault_line, 0);
}

static uint64_t sum(const shared64 *counts, size_t stride)
{
    uint64_t all = 0;
    unsigned id;
    for (id = 0; id < WORKERS; id++)
        all += counts[id * stride];
    return all;
}

static uint64_t exact(const ratelimit_limit *l, uint64_t span)
{
    return l->burst + span / l->per_ns * l->tokens + span % l->per_ns * l->tokens / l->per_ns;
}

/* What workers were told plus what is left is what the limit gives, but for what the killed ones
 * held. */
static void check_sum(uint64_t told, uint64_t left, const ratelimit_limit *l, uint64_t span,
                      uint64_t held)
{
    uint64_t all = exact(l, span);
    CHECK(told + left <= all);
    CHECK(told + left + held >= all);
}

static void check_workers(stage *s, const limits *l, uint64_t span, uint64_t held)
{
    ratelimit_table *room = attach(&s->room);
    uint16_t i;
    for (i = 0; i < KEYS; i++)
        check_sum(sum(&s->tokens[0][i], KEYS), remaining(room, i, &l->key, get(&s->now)), &l->key,
                  span, held);
    for (i = 0; i < (HAVE_SHARED ? 4 : 0); i++) {
        ratelimit_request q = request(&i, &l->bucket[i], RATELIMIT_PEEK, 1);
        ratelimit_result r;
        (void)ratelimit_bucket_decide_shared(&s->bucket[i], &q, get(&s->now), &r);
        check_sum(sum(&s->bucket_tokens[0][i], 4), r.remaining, &l->bucket[i], span, held);
    }
    for (i = 0; i < CROWD; i++)
        CHECK(sum(&s->crowd_tokens[0][i], CROWD) <= exact(&l->crowd, span));
}

static void random_kills(const limits *l, unsigned kills, uint64_t step, bool lower)
{
    stage *s = share(sizeof *s);
    uint64_t start = check_below(RATELIMIT_DAY), span;
    set(&s->now, start);
    (void)make_table(&s->room, RATELIMIT_EVICT);
    (void)make_table(&s->crowd, RATELIMIT_INHERIT);
    kill_at_random(s, l, kills, step);
    span = get(&s->now) - start;
    if (!check_faults)
        check_workers(s, l, span, lower ? 2 * kills : UINT64_MAX / 2);
    munmap(s, sizeof *s);
}

static void workers_killed_at_random_stop_nobody_and_cost_no_more_than_they_held(void)
{
    limits l;
    l.key = ratelimit_limit_make(7, SEC, 5000000);
    l.bucket[0] = l.bucket[1] = ratelimit_limit_make(1, SEC, 5000000);
    l.bucket[2] = l.bucket[3] = ratelimit_limit_make(7, SEC, 5000000);
    l.crowd = ratelimit_limit_make(1, SEC, 30);
    random_kills(&l, 250, 0, true);
}

static void nor_does_any_key_get_more_while_the_clock_moves(void)
{
    limits l;
    l.key = ratelimit_limit_make(3000, SEC, 40);
    l.bucket[0] = l.bucket[1] = ratelimit_limit_make(1000, SEC, 10);
    l.bucket[2] = l.bucket[3] = ratelimit_limit_make(7, SEC / 100, 10);
    l.crowd = ratelimit_limit_make(10, SEC, 3);
    random_kills(&l, 250, 3 * RATELIMIT_MILLISECOND, false);
}

/* B15: the first key was charged, the second refused, and a process killed before it gave the first
 * one's token back had spent it. */
static void refuse_batches(stage *s, const ratelimit_limit *l, unsigned id, uint64_t seed)
{
    ratelimit_table *t = attach(&s->room);
    check_random_state = seed;
    while (t && !get(&s->stop) && getppid() == parent_pid) {
        uint16_t key[3] = {1, 2, 3};
        ratelimit_request q[3];
        ratelimit_result r[3];
        size_t i, count = 2 + (size_t)check_below(2);
        for (i = 0; i < 3; i++)
            q[i] = request(&key[i], l, RATELIMIT_TAKE, 1);
        key[count - 1] = 0; /* has nothing left */
        (void)ratelimit_table_decide(t, q, r, count, RATELIMIT_ALL, 5);
        for (i = 0; i < count; i++)
            NOTE(s, !r[i].allowed);
        add(&s->progress[id], 1);
    }
    _exit(0);
}

static void a_killed_process_never_leaves_a_refused_batch_charged(void)
{
    ratelimit_limit l = ratelimit_limit_make(7, RATELIMIT_HOUR, 1000000);
    stage *s = share(sizeof *s);
    ratelimit_table *t = make_table(&s->room, RATELIMIT_EVICT);
    uint16_t key = 0;
    unsigned id, kills;
    CHECK(ratelimit_table_take(t, &key, sizeof key, &l, 1000000, 5, NULL));
    key = 1;
    CHECK(ratelimit_table_take(t, &key, sizeof key, &l, 10, 5, NULL));
    for (kills = 0; kills < 300; kills++) {
        uint64_t was, until = wall_ns() + SEC, seed = check_random();
        id = kills % WORKERS;
        was = get(&s->progress[id]);
        if (child[id])
            kill_worker(id);
        child[id] = spawn();
        if (child[id] == 0)
            refuse_batches(s, &l, id, seed);
        while (get(&s->progress[id]) < was + 20 && wall_ns() < until)
            sched_yield();
    }
    kill_children();
    CHECK_U64(s->fault_line, 0);
    CHECK_U64(remaining(t, 1, &l, 5), 1000000 - 10);
    CHECK_U64(remaining(t, 2, &l, 5), 1000000);
    CHECK_U64(remaining(t, 3, &l, 5), 1000000);
    munmap(s, sizeof *s);
}

/* ---- killed before the n-th write ------------------------------------------------------------ */

/* Everything that a process may be about when it dies, each on keys below KEY_LIMIT at one time. */
typedef struct scene {
    const char *name;
    void (*act)(ratelimit_table *t, ratelimit_bucket *b, uint64_t now);
    ratelimit_full when_full;
    bool filled;       /* the table has no place left */
    unsigned forgets;  /* keys that may be forgotten by it */
    uint64_t later_ns; /* the time of the act, after that of the first takes */
} scene;

/* One limit that changes. */
static const ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(3, RATELIMIT_MINUTE, 20, 1);
static const ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(700, RATELIMIT_SECOND, 20, 1);
static const ratelimit_limit crawl = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 20, 1);

static void act_one(ratelimit_table *t, uint16_t key, const ratelimit_limit *l, ratelimit_op op,
                    uint64_t n, uint64_t now)
{
    ratelimit_request q = request(&key, l, op, n);
    ratelimit_result r;
    q.max_wait_ns = RATELIMIT_HOUR;
    (void)ratelimit_table_decide_one(t, &q, now, &r);
}

static ratelimit_permit some_permit; /* of key 8 */

#define ACT(name, ...)                                                                             \
  static void name(ratelimit_table *t, ratelimit_bucket *b, uint64_t now)                          \
  {                                                                                                \
    (void)t, (void)b, (void)now;                                                                   \
    __VA_ARGS__;                                                                                   \
  }

ACT(act_take, (void)ratelimit_table_take(t, &(uint16_t){1}, 2, &slow, 2, now, NULL))
ACT(act_take_new, (void)ratelimit_table_take(t, &(uint16_t){77}, 2, &slow, 2, now, NULL))
ACT(act_up_to, act_one(t, 3, &slow, RATELIMIT_TAKE_UP_TO, 9, now))
ACT(act_reserve, act_one(t, 3, &slow, RATELIMIT_RESERVE, 20, now))
ACT(act_charge, act_one(t, 4, &slow, RATELIMIT_CHARGE, 30, now))
ACT(act_refund, act_one(t, 5, &slow, RATELIMIT_REFUND, 2, now))
ACT(act_refund_all, act_one(t, 5, &slow, RATELIMIT_REFUND, 200, now))
ACT(act_reset, act_one(t, 6, &slow, RATELIMIT_RESET, 0, now))
ACT(act_block, act_one(t, 6, &slow, RATELIMIT_BLOCK, 0, now))
ACT(act_fast, act_one(t, 7, &fast, RATELIMIT_TAKE, 1, now))
ACT(act_crawl, act_one(t, 7, &crawl, RATELIMIT_TAKE, 1, now))
ACT(act_sweep, (void)ratelimit_table_sweep(t, now, 0))
ACT(act_acquire,
    (void)ratelimit_table_acquire(t, &(uint16_t){1}, 2, 9, SEC, now, &(ratelimit_permit){0, 0, 0}))
ACT(act_release, (void)ratelimit_table_release(t, &(uint16_t){8}, 2, &some_permit, now))
ACT(act_cancel, act_one(t, 9, &slow, RATELIMIT_CANCEL, 2, now))
ACT(act_bucket, (void)ratelimit_bucket_take_shared(b, &slow, 1, now, NULL))
ACT(act_bucket_2, (void)ratelimit_bucket_take_shared(b, &slow, 2, now, NULL))

ACT(act_bucket_fast, (void)ratelimit_bucket_take_shared(b, &fast, 1, now, NULL))
ACT(act_bucket_crawl, (void)ratelimit_bucket_take_shared(b, &crawl, 1, now, NULL))

static void act_batch(ratelimit_table *t, const uint16_t *key, ratelimit_op op, ratelimit_mode mode,
                      uint64_t now)
{
    ratelimit_request q[6];
    ratelimit_result r[6];
    size_t i;
    for (i = 0; i < 6; i++)
        q[i] = request(&key[i], &slow, op, 2);
    ratelimit_table_decide(t, q, r, 6, mode, now);
}

static const uint16_t both[] = {1, 2, 3, 77, 2, 78};  /* in both blocks, old and new, one twice */
static const uint16_t broke[] = {1, 77, 2, 79, 3, 0}; /* the last one has spent all */

ACT(act_each, act_batch(t, both, RATELIMIT_TAKE, RATELIMIT_EACH, now))
ACT(act_all, act_batch(t, both, RATELIMIT_TAKE, RATELIMIT_ALL, now))
ACT(act_undo, act_batch(t, broke, RATELIMIT_TAKE, RATELIMIT_ALL, now))

static const scene scenes[] = {
    {"take", act_take, RATELIMIT_EVICT, false, 0, 0},
    {"take of a new key", act_take_new, RATELIMIT_EVICT, false, 0, 0},
    {"take of a new key in a place full again", act_take_new, RATELIMIT_EVICT, true, 0,
     RATELIMIT_MINUTE},
    {"take of a new key that forgets another", act_take_new, RATELIMIT_EVICT, true, 1, 0},
    {"take of a new key that inherits", act_take_new, RATELIMIT_INHERIT, true, 1, 0},
    {"take of a new key that finds no room", act_take_new, RATELIMIT_REFUSE, true, 0, 0},
    {"take_up_to", act_up_to, RATELIMIT_EVICT, false, 0, 0},
    {"reserve", act_reserve, RATELIMIT_EVICT, false, 0, 0},
    {"charge", act_charge, RATELIMIT_EVICT, false, 0, 0},
    {"refund", act_refund, RATELIMIT_EVICT, false, 0, 0},
    {"refund of all", act_refund_all, RATELIMIT_EVICT, false, 0, 0},
    {"reset", act_reset, RATELIMIT_EVICT, false, 0, 0},
    {"block", act_block, RATELIMIT_EVICT, false, 0, 0},
    {"take at a faster limit", act_fast, RATELIMIT_EVICT, false, 0, 0},
    {"take at a slower limit", act_crawl, RATELIMIT_EVICT, false, 0, 0},
    {"each", act_each, RATELIMIT_EVICT, false, 0, 0},
    {"all", act_all, RATELIMIT_EVICT, false, 0, 0},
    {"all, refused", act_undo, RATELIMIT_EVICT, false, 0, 0},
    {"all in a full table", act_all, RATELIMIT_EVICT, true, 2, 0},
    {"all in a full table, refused", act_undo, RATELIMIT_EVICT, true, 0, 0},
    {"sweep", act_sweep, RATELIMIT_EVICT, true, 0, RATELIMIT_MINUTE},
    {"acquire", act_acquire, RATELIMIT_EVICT, false, 0, 0},
    {"release", act_release, RATELIMIT_EVICT, false, 0, 0},
    {"cancel", act_cancel, RATELIMIT_EVICT, false, 0, 0},
    {"all in a full table that inherits", act_all, RATELIMIT_INHERIT, true, 2, 0},
    {"all in a full table that inherits, refused", act_undo, RATELIMIT_INHERIT, true, 0, 0},
    {"shared bucket, take of one", act_bucket, RATELIMIT_EVICT, false, 0, 0},
    {"shared bucket, take of two", act_bucket_2, RATELIMIT_EVICT, false, 0, 0},
    {"shared bucket, take at a faster limit", act_bucket_fast, RATELIMIT_EVICT, false, 0, 0},
    {"shared bucket, take at a slower limit", act_bucket_crawl, RATELIMIT_EVICT, false, 0, 0},
};

enum { SCENES = (int)(sizeof scenes / sizeof scenes[0]) };

/* Tokens spent of every key; the last is the bucket's. */
typedef struct spent {
    uint64_t of[KEY_LIMIT + 1];
} spent;

/* Key 0 has nothing left, the others have spent 2, 5, 8 or 11. A filled table has all 48 places
 * taken. */
static void set_scene(const scene *sc, plain_table *memory, ratelimit_bucket *b, uint64_t now)
{
    ratelimit_table *t = make_table(memory, RATELIMIT_REFUSE);
    ratelimit_table_counts counts;
    uint16_t key;
    memset(b, 0, sizeof *b);
    for (key = 0; key < (sc->filled ? 500 : 12); key++) {
        uint16_t name = key < 76 ? key : (uint16_t)(key + 1000);
        act_one(t, name, &slow, RATELIMIT_TAKE, key ? 2 + key % 4 * 3u : 20, now);
    }
    (void)ratelimit_bucket_take_shared(b, &slow, 5, now, NULL);
    if (!sc->filled) {
        key = 8;
        CHECK(ratelimit_table_acquire(t, &key, sizeof key, 1, SEC, now, &some_permit));
    }
    ratelimit_table_stats(t, now, &counts);
    CHECK(!sc->filled || counts.keys == counts.capacity);
    /* the policy is only now that of the scene */
    t->when_full = (uint16_t)sc->when_full;
    t->check = ratelimit_priv_head_check(t);
}

static spent count_spent(ratelimit_table *t, ratelimit_bucket *b, uint64_t now)
{
    spent s;
    uint16_t key = 0;
    ratelimit_request q = request(&key, &slow, RATELIMIT_PEEK, 1);
    ratelimit_result r;
    memset(&s, 0, sizeof s);
    for (key = 0; key <= KEY_LIMIT; key++) {
        if (key < KEY_LIMIT)
            (void)ratelimit_table_decide_one(t, &q, now, &r);
        else
            (void)ratelimit_bucket_decide_shared(b, &q, now, &r);
        /* by the debt, which can be above the burst; a token is back after 20 s; a key without a
         * place counts as new */
        s.of[key] = r.status == RATELIMIT_FULL ? 0 : (r.reset_after_ns + 20 * SEC - 1) / (20 * SEC);
    }
    return s;
}

/* No key has spent less than before or after the act, whichever is less, but for those it may
 * forget; and none more than the act could have charged or taken over. Those it is not about have
 * what they had, but that each of its newcomers may have left its own debt on an old key. */
static void compare(const scene *sc, long writes, const spent *before, const spent *after,
                    const spent *got)
{
    unsigned key, forgotten = 0, owe_more = 0;
    unsigned newcomers = sc->act == act_take_new ? 1 : sc->act == act_all ? 2 : 0;
    for (key = 0; key <= KEY_LIMIT; key++) {
        uint64_t a = before->of[key], b = after->of[key], low = a < b ? a : b, high = a < b ? b : a;
        bool touched = a != b || (sc->act != act_undo && key > 76 && key < KEY_LIMIT);
        bool less = got->of[key]<low, more = got->of[key]> high + (touched ? 20 : 0);
        if (less && got->of[key] == 0 && sc->forgets > forgotten && key < KEY_LIMIT) {
            forgotten++;
            continue;
        }
        if (more && got->of[key] <= high + 4 && owe_more < newcomers) {
            owe_more++;
            continue;
        }
        if ((less || more) && check_fault(__FILE__, __LINE__))
            printf("%s, killed before write %ld: key %u has spent %d tokens, not %d to %d\n",
                   sc->name, writes, key, (int)got->of[key], (int)low, (int)high);
    }
}

/* Calls that come upon the dead one's locks; the first one to do so differs from death to death. */
static void come_upon(ratelimit_table *t, plain_table *memory, long which, bool room, uint64_t now)
{
    ratelimit_table_counts counts;
    ratelimit_permit permit = {0, 0, 0};
    uint16_t key = 5;
    switch (which % 7) {
    case 0:
        if (!room)
            break; /* it would forget a key */
        (void)ratelimit_table_acquire(t, &key, sizeof key, 1, SEC, now, &permit);
        break;
    case 1:
        (void)ratelimit_table_release(t, &key, sizeof key, &permit, now);
        break;
    case 2:
        (void)ratelimit_table_sweep(t, now, 0);
        break;
    case 3:
        ratelimit_table_stats(t, now, &counts);
        CHECK(counts.keys <= counts.capacity);
        break;
    case 4:
        CHECK(attach(memory) == t);
        break;
    case 5:
        act_batch(t, both, RATELIMIT_PEEK, RATELIMIT_ALL, now);
        break;
    default:
        act_one(t, 5, &slow, RATELIMIT_PEEK, 1, now);
    }
}

/* Lets a child die before its n-th write. False if it came to the end of its act first. */
static bool die_at(const scene *sc, stage *s, long writes, uint64_t now)
{
    int status = 0;
    child[0] = spawn();
    if (child[0] == 0) {
        writes_left = writes;
        sc->act(attach(&s->room), &s->bucket[0], now);
        _exit(0);
    }
    CHECK(waitpid(child[0], &status, 0) == child[0]);
    child[0] = 0;
    CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
    return WIFSIGNALED(status);
}

static void play(const scene *sc, stage *s)
{
    static plain_table again;
    uint64_t start = RATELIMIT_DAY, now = start + sc->later_ns;
    spent before, after, got;
    ratelimit_table *t;
    uint64_t seed = check_random_state;
    long writes;
    for (writes = 0; writes < 400; writes++) {
        bool died;
        uint16_t key;
        ratelimit_bucket b;
        check_random_state = seed; /* the same table each time */
        set_scene(sc, &s->room, &s->bucket[0], start);
        /* what it looks like before, and would after */
        again = s->room;
        b = s->bucket[0];
        t = attach(&again);
        before = count_spent(t, &b, now);
        sc->act(t, &b, now);
        after = count_spent(t, &b, now);
        CHECK(sc->act != act_undo || memcmp(&before, &after, sizeof before) == 0);
        died = die_at(sc, s, writes, now);
        t = attach(&s->room);
        naps = 0;
        come_upon(t, &s->room, writes, !sc->filled, now);
        got = count_spent(t, &s->bucket[0], now);
        compare(sc, writes, &before, &after, &got);
        /* and the table goes on rightly; only locks that nobody came upon are still held */
        for (key = 0; key < 12; key++) {
            uint64_t left = remaining(t, key, &slow, now), n = 0;
            while (!sc->filled && ratelimit_table_take(t, &key, sizeof key, &slow, 1, now, NULL))
                n++;
            CHECK(sc->filled || n == left);
        }
        if (!died)
            break;
    }
    /* a refusal, of a batch too, writes nothing at all */
    CHECK((writes == 0) == (sc->when_full == RATELIMIT_REFUSE || sc->act == act_undo) ||
          !HAVE_SHARED);
    CHECK(writes < 400);
}

static void a_process_killed_before_any_of_its_writes_leaves_a_sound_table(void)
{
    stage *s = share(sizeof *s);
    int i;
    skip_naps = true;
    for (i = 0; i < SCENES; i++)
        play(&scenes[i], s);
    skip_naps = false;
    munmap(s, sizeof *s);
}

/* ---- locks of the dead ----------------------------------------------------------------------- */

static bool call(ratelimit_table *t, int which, uint16_t key, uint64_t now)
{
    ratelimit_request q[2];
    ratelimit_result r[2];
    ratelimit_table_counts counts;
    ratelimit_permit permit = {0, 0, 0};
    q[0] = q[1] = request(&key, &slow, RATELIMIT_TAKE, 1);
    switch (which) {
    case 0:
        return ratelimit_table_take(t, &key, sizeof key, &slow, 1, now, NULL);
    case 1:
        return ratelimit_table_decide(t, q, r, 2, RATELIMIT_EACH, now);
    case 2:
        return ratelimit_table_decide(t, q, r, 2, RATELIMIT_ALL, now);
    case 3:
        return ratelimit_table_acquire(t, &key, sizeof key, 5, SEC, now, &permit);
    case 4:
        return ratelimit_table_release(t, &key, sizeof key, &permit, now) == RATELIMIT_LOST;
    case 5:
        return ratelimit_table_sweep(t, now + RATELIMIT_HOUR, 0) == 1;
    case 6:
        ratelimit_table_stats(t, now, &counts);
        return counts.keys == 1;
    default:
        return attach((plain_table *)(void *)t) == t;
    }
}

enum { CALLS = 8 };

/* Makes the locks chosen by the bits of which look like a dead process holds them, then calls. */
static void call_on_dead(int call_number, unsigned which)
{
    static plain_table memory;
    ratelimit_table *t = make_table(&memory, RATELIMIT_EVICT);
    uint16_t key = 9;
    unsigned i, dead = 0;
    CHECK(ratelimit_table_take(t, &key, sizeof key, &slow, 1, 5, NULL));
    for (i = 0; i < LINES; i++)
        if (which >> i & 1) {
            ++*lock_of(t, i);
            dead += *lock_of(t, i) & 1;
        }
    naps = 0;
    CHECK(call(t, call_number, key, 5));
    /* never while its holder might live, never longer than all the dead ones take one after the
     * other */
    CHECK(naps == 0 || naps >= RATELIMIT_TAKEOVER_MS);
    CHECK(naps <= dead * (RATELIMIT_TAKEOVER_MS + 1));
    if (call_number == 7) { /* an attach frees many at once, and leaves a few */
        CHECK_U64(naps / RATELIMIT_TAKEOVER_MS, dead > 8);
        CHECK_U64(locks_held(t), dead > 8 ? 0 : dead);
    } else {
        CHECK(call_number == 6 ? naps == 0 : which != 0xffff || naps > 0);
        /* those that were in the way are free now, and nobody waits for them again */
        CHECK_U64(locks_held(t), dead - (unsigned)(naps / RATELIMIT_TAKEOVER_MS));
    }
    naps = 0;
    if (call_number < 3)
        CHECK(call(t, call_number, key, 5));
    CHECK_U64(naps, 0);
}

static void every_kind_of_call_takes_over_the_locks_of_the_dead(void)
{
    int number;
    unsigned i;
    skip_naps = true;
    for (number = 0; number < CALLS; number++) {
        call_on_dead(number, 0xffff);
        for (i = 0; i < LINES; i++)
            call_on_dead(number, 1u << i);
        for (i = 0; i < 20; i++)
            call_on_dead(number, (unsigned)check_below(0x10000));
    }
    skip_naps = false;
}

/* A change of a shared bucket is three writes: a mark, the time, and the rest. It is killed before
 * each of them; the next one to come waits, replaces the mark and goes on. What the dead one was
 * about to take may be lost; nothing else is. */
static void bucket_of_the_dead(stage *s, const ratelimit_limit *limit, const ratelimit_limit *then,
                               long writes)
{
    uint64_t n = 0;
    memset(&s->bucket[0], 0, sizeof s->bucket[0]);
    CHECK(ratelimit_bucket_take_shared(&s->bucket[0], limit, 5, SEC, NULL));
    child[0] = spawn();
    if (child[0] == 0) {
        ratelimit_request q = request(NULL, then, RATELIMIT_TAKE, 1);
        writes_left = writes;
        (void)ratelimit_bucket_decide_shared(&s->bucket[0], &q, SEC, NULL);
        _exit(0);
    }
    CHECK(waitpid(child[0], NULL, 0) == child[0]);
    child[0] = 0;
    naps = 0;
    while (ratelimit_bucket_take_shared(&s->bucket[0], limit, 1, SEC, NULL))
        n++;
    CHECK(writes == 0 || writes == 3
              ? naps == 0
              : naps >= RATELIMIT_TAKEOVER_MS && naps <= RATELIMIT_TAKEOVER_MS + 1);
    CHECK(n <= 15);
    CHECK(n == 15 || writes > 0);
    /* lost: its own token, and a fraction of a ns of another; or all, if a limit was half changed
     */
    CHECK(n >= 13 || limit != then);
}

static void so_does_a_shared_bucket_with_its_mark(void)
{
    static const ratelimit_limit *const three[] = {&slow, &fast, &crawl};
    stage *s = share(sizeof *s);
    size_t i, k;
    long writes;
    skip_naps = true;
    for (i = 0; i < 3; i++)
        for (k = 0; k < 3; k++)
            for (writes = 0; HAVE_SHARED && writes <= 3; writes++)
                bucket_of_the_dead(s, three[i], three[k], writes);
    skip_naps = false;
    munmap(s, sizeof *s);
}

/* ---- the living while locks are dead --------------------------------------------------------- */

/* Worker for what follows: everything that locks a block, or two, or one line, on few keys; nobody
 * here dies. */
static void live(stage *s, unsigned id, uint64_t seed)
{
    static const ratelimit_limit big = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 1000000000);
    ratelimit_table *t = attach(&s->room);
    check_random_state = seed;
    while (t && !get(&s->stop) && getppid() == parent_pid) {
        uint16_t key[3], own = (uint16_t)id;
        ratelimit_permit permit;
        ratelimit_request q[3];
        ratelimit_result r[3];
        size_t i, count = 1 + (size_t)check_below(3);
        for (i = 0; i < count; i++) {
            key[i] = (uint16_t)check_below(KEYS);
            q[i] = request(&key[i], &big, RATELIMIT_TAKE, 1);
        }
        ratelimit_table_decide(t, q, r, count, check_below(2) ? RATELIMIT_ALL : RATELIMIT_EACH, 5);
        for (i = 0; i < count; i++) {
            NOTE(s, r[i].allowed);
            if (r[i].allowed)
                add(&s->tokens[id][key[i]], 1);
        }
        if (check_below(2)) {
            NOTE(s, ratelimit_table_acquire(t, &own, sizeof own, 1, SEC, 5, &permit));
            NOTE(s, ratelimit_table_release(t, &own, sizeof own, &permit, 5) == RATELIMIT_OK);
        }
        add(&s->progress[id], 1);
    }
    _exit(0);
}

/* Takes locks as a process does that then dies before it wrote anything: a line's, or as many of a
 * block's as it got. */
static uint64_t plant(ratelimit_table *t, uint32_t *planted)
{
    uint64_t count = 0;
    unsigned i, from = (unsigned)check_below(LINES), to = from + 1;
    if (check_below(2)) {
        from &= ~7u;
        to = from + 1 + (unsigned)check_below(8);
    }
    for (i = from; i < to; i++) {
        uint32_t word = *(volatile uint32_t *)lock_of(t, i);
        if (word & 1 || !__atomic_compare_exchange_n(lock_of(t, i), &word, word + 1, false,
                                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            break;
        planted[i] = word + 1;
        count++;
    }
    return count;
}

static void takeovers_leave_every_charge_in_place_and_no_lock_behind(void)
{
    static const ratelimit_limit big = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 1000000000);
    stage *s = share(sizeof *s);
    ratelimit_table *t = make_table(&s->room, RATELIMIT_EVICT);
    uint64_t seen[WORKERS], when[WORKERS], until = wall_ns() + 4 * SEC, count = 0;
    uint32_t planted[LINES] = {0};
    unsigned id, i;
    uint16_t key;
    takeovers = &s->takeovers;
    for (id = 0; id < WORKERS; id++) {
        uint64_t seed = check_random();
        seen[id] = 0;
        when[id] = wall_ns();
        child[id] = spawn();
        if (child[id] == 0)
            live(s, id, seed);
    }
    while (wall_ns() < until && !check_faults) {
        pause_ns(check_below(300 * RATELIMIT_MILLISECOND));
        count += plant(t, planted);
        CHECK(all_go_on(s, seen, when));
    }
    CHECK(join_workers(s));
    CHECK_U64(s->fault_line, 0);
    takeovers = NULL;
    CHECK(s->takeovers <= count); /* or the living took them from each other */
    for (i = 0; i < LINES; i++)
        CHECK(!(*lock_of(t, i) & 1) || *lock_of(t, i) == planted[i]);
    for (key = 0; key < KEYS; key++)
        CHECK_U64(big.burst - remaining(t, key, &big, 5), sum(&s->tokens[0][key], KEYS));
    munmap(s, sizeof *s);
}

/* ---- a holder that was only slow ------------------------------------------------------------- */

/* A child that stops before its n-th write. False if it came to the end of its act first. */
static bool stop_at(stage *s, void (*act)(ratelimit_table *, ratelimit_bucket *, uint64_t),
                    long writes)
{
    int status = 0;
    child[0] = spawn();
    if (child[0] == 0) {
        death = SIGSTOP;
        writes_left = writes;
        act(attach(&s->room), &s->bucket[0], 5);
        _exit(0);
    }
    CHECK(waitpid(child[0], &status, WUNTRACED) == child[0]);
    if (WIFSTOPPED(status))
        return true;
    child[0] = 0;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
}

/* It goes on, to the end of its act. */
static void wake(void)
{
    int status = 0;
    kill(child[0], SIGCONT);
    CHECK(waitpid(child[0], &status, 0) == child[0]);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    child[0] = 0;
}

static bool take_one(ratelimit_table *t, uint16_t key)
{
    return ratelimit_table_take(t, &key, sizeof key, &slow, 1, 5, NULL);
}

/* How many tokens a child was told it has, in all acts that charge key `which` n times. */
static uint64_t charges(void (*act)(ratelimit_table *, ratelimit_bucket *, uint64_t),
                        uint16_t which)
{
    if (act == act_all)
        return which == 2 ? 4 : which == 1 || which == 3 ? 2 : 0;
    return act == act_take && which == 1 ? 2 : act == act_up_to && which == 3 ? 9 : 0;
}

/* It stops before its n-th write, others take over and go on, then it wakes: it undoes nobody's
 * charge, nor loses its own, no lock stays held or has a word twice. */
static bool wake_after_takeover(stage *s,
                                void (*act)(ratelimit_table *, ratelimit_bucket *, uint64_t),
                                long writes)
{
    ratelimit_table *t = make_table(&s->room, RATELIMIT_EVICT);
    uint32_t word[LINES];
    uint16_t key, i;
    for (key = 0; key < KEYS; key++)
        CHECK(take_one(t, key));
    if (!stop_at(s, act, writes))
        return false;
    for (key = 0; key < KEYS; key++) {
        ratelimit_request q = request(&key, &slow, RATELIMIT_CHARGE, 1); /* needs the lock */
        CHECK(key % 2 ? take_one(t, key) : ratelimit_table_decide_one(t, &q, 5, NULL));
    }
    for (i = 0; i < LINES; i++)
        word[i] = *lock_of(t, i);
    wake();
    for (i = 0; i < LINES; i++) /* no word comes twice, or who read the line then could not tell */
        CHECK((*lock_of(t, i) - word[i]) >> 31 == 0);
    for (key = 0; key < KEYS; key++) {
        uint64_t left = remaining(t, key, &slow, 5), own = charges(act, key);
        CHECK(left <= 18 - own && left + 2 * own >= 18 - own); /* at worst charged twice */
        while (take_one(t, key))
            left--;
        CHECK_U64(left, 0);
    }
    CHECK_U64(locks_held(t), 0);
    return true;
}

static void
slow_holder(bool (*try)(stage *, void (*)(ratelimit_table *, ratelimit_bucket *, uint64_t), long),
            void (*act)(ratelimit_table *, ratelimit_bucket *, uint64_t), long least)
{
    stage *s = share(sizeof *s);
    long writes = 0;
    skip_naps = true;
    while (writes < 400 && try(s, act, writes))
        writes++;
    CHECK((writes >= least || !HAVE_SHARED) && writes < 400);
    skip_naps = false;
    munmap(s, sizeof *s);
}

static void a_holder_that_wakes_after_a_takeover_undoes_nothing_and_breaks_no_lock(void)
{
    slow_holder(wake_after_takeover, act_take, 1);
    slow_holder(wake_after_takeover, act_up_to, 3);
    slow_holder(wake_after_takeover, act_all, 16);
    slow_holder(wake_after_takeover, act_take_new, 4);
    slow_holder(wake_after_takeover, act_acquire, 4);
}

/* F8: one that stopped while it brought in a new key, or changed a bucket, may find another place
 * for that key: so a key can use one burst more, no key more than one, and no other key any. */
enum { NEWCOMER = 77, BURST = 20 };

static uint64_t take_all_of(ratelimit_table *t, uint16_t key)
{
    uint64_t n = 0;
    while (take_one(t, key))
        n++;
    return n;
}

static void act_take_and_tell(ratelimit_table *t, ratelimit_bucket *b, uint64_t now)
{
    uint16_t key = NEWCOMER;
    (void)now;
    if (take_one(t, key)) /* what it is told is noted where the parent sees it */
        add((shared64 *)(void *)&b[1].full_ns, 1);
}

/* All tokens of all keys that are there or come meanwhile, before and after it wakes. */
static bool no_more_than_a_burst_more(stage *s,
                                      void (*act)(ratelimit_table *, ratelimit_bucket *, uint64_t),
                                      long writes)
{
    static const ratelimit_full policies[] = {RATELIMIT_EVICT, RATELIMIT_REFUSE, RATELIMIT_INHERIT};
    bool stopped = false;
    unsigned p;
    for (p = 0; p < 6; p++) {
        ratelimit_table *t = make_table(&s->room, policies[p % 3]);
        uint64_t told[KEYS], newcomer = 0;
        uint16_t key, filler;
        bool crowded = p >= 3;
        for (key = 0; key < KEYS; key++)
            told[key] = take_one(t, key);
        /* no room but for a few: by permits, which stay */
        for (filler = 0; crowded && filler < 34; filler++) {
            ratelimit_permit permit;
            key = (uint16_t)(1000 + filler);
            (void)ratelimit_table_acquire(t, &key, sizeof key, 1, RATELIMIT_HOUR, 5, &permit);
        }
        s->bucket[1].full_ns = 0;
        if (!stop_at(s, act, writes))
            continue;
        stopped = true;
        newcomer += take_all_of(t, NEWCOMER);
        for (key = 0; key < KEYS; key++)
            told[key] += take_all_of(t, key);
        wake();
        newcomer += get((shared64 *)(void *)&s->bucket[1].full_ns) + take_all_of(t, NEWCOMER);
        for (key = 0; key < KEYS; key++)
            told[key] += take_all_of(t, key);
        CHECK(newcomer <= 2 * BURST);
        for (key = 0; key < KEYS; key++)
            CHECK(told[key] <= BURST || (crowded && policies[p % 3] == RATELIMIT_EVICT));
    }
    return stopped;
}

static void a_slow_holder_gives_one_key_one_burst_more_at_worst(void)
{
    slow_holder(no_more_than_a_burst_more, act_take_and_tell, 4);
}

/* A batch that has charged its first key when it is stopped, and cannot charge its second one when
 * it wakes: what it takes back must not be another key's, which has the first one's place by then.
 */
static bool takes_back_from_nobody(stage *s,
                                   void (*act)(ratelimit_table *, ratelimit_bucket *, uint64_t),
                                   long writes)
{
    ratelimit_table *t = make_table(&s->room, RATELIMIT_EVICT);
    ratelimit_request q;
    ratelimit_table_counts counts;
    uint16_t key;
    for (key = 0; key < KEYS; key++)
        CHECK(take_one(t, key));
    if (!stop_at(s, act, writes))
        return false;
    /* two of its keys go, and so many come and spend all they have that some have their places */
    for (key = 1; key <= 3; key += 2) {
        q = request(&key, &slow, RATELIMIT_RESET, 1);
        CHECK(ratelimit_table_decide_one(t, &q, 5, NULL));
    }
    for (key = 100; key < 130; key++)
        (void)ratelimit_table_take(t, &key, sizeof key, &slow, BURST, 5, NULL);
    key = 2; /* and another one changes */
    q = request(&key, &slow, RATELIMIT_CHARGE, 1);
    (void)ratelimit_table_decide_one(t, &q, 5, NULL);
    (void)take_one(t, 2);
    wake();
    ratelimit_table_stats(t, 5, &counts);
    for (key = 100; key < 130; key++)
        CHECK(remaining(t, key, &slow, 5) == 0 || counts.evicted);
    return true;
}

static void a_batch_that_wakes_after_a_takeover_takes_back_nobody_elses_charge(void)
{
    slow_holder(takes_back_from_nobody, act_all, 16);
}

/* ---- a mapped file --------------------------------------------------------------------------- */

static char file_path[300];

static void remove_file(void)
{
    if (getpid() == parent_pid && file_path[0])
        unlink(file_path);
}

static plain_table *map_file(int fd)
{
    void *p = mmap(NULL, sizeof(plain_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : (plain_table *)p;
}

static ratelimit_table *open_file(void)
{
    int fd = open(file_path, O_RDWR);
    plain_table *memory = fd < 0 ? NULL : map_file(fd);
    if (fd >= 0)
        close(fd);
    return memory ? attach(memory) : NULL;
}

static void write_file(stage *s, unsigned id, const ratelimit_limit *l, uint64_t seed)
{
    ratelimit_table *t = open_file();
    check_random_state = seed;
    NOTE(s, t);
    while (t && getppid() == parent_pid) {
        uint16_t key = (uint16_t)check_below(KEYS);
        if (ratelimit_table_take(t, &key, sizeof key, l, 1, 5, NULL))
            add(&s->tokens[id][key], 1);
        add(&s->progress[id], 1);
    }
    _exit(1);
}

/* A process that was not there before maps the file and sees what is left of each key. */
static void read_file(stage *s, const ratelimit_limit *l)
{
    int status = 0;
    child[0] = spawn();
    if (child[0] == 0) {
        ratelimit_table *t = open_file();
        uint16_t key;
        NOTE(s, t);
        for (key = 0; t && key < KEYS; key++)
            set(&s->crowd_tokens[0][key], remaining(t, key, l, 5));
        _exit(0);
    }
    CHECK(waitpid(child[0], &status, 0) == child[0]);
    child[0] = 0;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool make_file(void)
{
    const char *dir = getenv("TMPDIR");
    plain_table *memory;
    int fd;
    snprintf(file_path, sizeof file_path, "%.250s/ratelimit-test-XXXXXX", dir ? dir : "/tmp");
    fd = mkstemp(file_path);
    if (fd < 0 || ftruncate(fd, sizeof(plain_table)) != 0)
        return false;
    memory = map_file(fd);
    close(fd);
    if (!memory)
        return false;
    (void)make_table(memory, RATELIMIT_EVICT);
    munmap(memory, sizeof *memory);
    return true;
}

static void a_mapped_file_keeps_its_limits_when_all_who_mapped_it_are_killed(void)
{
    ratelimit_limit l = ratelimit_limit_make(7, SEC, 50000000);
    stage *s = share(sizeof *s);
    unsigned round, id;
    uint16_t key;
    bool made = make_file();
    CHECK(made);
    for (round = 1; made && round <= 15; round++) {
        for (id = 0; id < WORKERS; id++) {
            uint64_t seed = check_random(), was = get(&s->progress[id]), until = wall_ns() + SEC;
            child[id] = spawn();
            if (child[id] == 0)
                write_file(s, id, &l, seed);
            while (get(&s->progress[id]) == was && wall_ns() < until)
                sched_yield();
        }
        pause_ns(check_below(5 * RATELIMIT_MILLISECOND));
        kill_children();
        read_file(s, &l);
        for (key = 0; key < KEYS; key++)
            check_sum(sum(&s->tokens[0][key], KEYS), get(&s->crowd_tokens[0][key]), &l, 0,
                      2 * round * WORKERS);
    }
    CHECK_U64(s->fault_line, 0);
    remove_file();
    munmap(s, sizeof *s);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    check_seed(9);
    parent_pid = getpid();
    atexit(kill_children);
    atexit(remove_file);
    alarm(150);
    RUN(every_kind_of_call_takes_over_the_locks_of_the_dead);
    RUN(so_does_a_shared_bucket_with_its_mark);
    RUN(a_process_killed_before_any_of_its_writes_leaves_a_sound_table);
    RUN(a_holder_that_wakes_after_a_takeover_undoes_nothing_and_breaks_no_lock);
    RUN(a_slow_holder_gives_one_key_one_burst_more_at_worst);
    RUN(a_batch_that_wakes_after_a_takeover_takes_back_nobody_elses_charge);
    RUN(a_killed_process_never_leaves_a_refused_batch_charged);
    RUN(workers_killed_at_random_stop_nobody_and_cost_no_more_than_they_held);
    RUN(nor_does_any_key_get_more_while_the_clock_moves);
    RUN(takeovers_leave_every_charge_in_place_and_no_lock_behind);
    RUN(a_mapped_file_keeps_its_limits_when_all_who_mapped_it_are_killed);
    return check_end();
}

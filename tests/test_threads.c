/* test_threads.c - many threads on one key and on many: never a token too many, never one lost.
 *
 * Time is a number that the tests move, so nothing here depends on how fast threads run. ROUNDS=n
 * in the environment makes all of it n times longer.
 *
 *     cc -std=c99 -O2 -I. tests/test_threads.c -lpthread
 *     cc -std=c99 -O1 -g -fsanitize=thread -I. tests/test_threads.c -lpthread
 *     cc -std=c99 -O2 -DRATELIMIT_NO_CLOCK -I. tests/test_threads.c -lpthread
 *     cc -std=c99 -O2 -DLOCKED -I. tests/test_threads.c -lpthread   the caller's lock, a mutex
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

#if defined(LOCKED)
/* The caller's lock: taken once round a decision, never within another (it would wait for itself).
 */
static pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t times_locked, times_nested;
static __thread int locks_held;

static void lock(void)
{
    int nested = locks_held++;
    pthread_mutex_lock(&the_lock);
    times_locked++;
    times_nested += nested != 0;
}

static void unlock(void)
{
    locks_held--;
    pthread_mutex_unlock(&the_lock);
}

#  define RATELIMIT_LOCK()   lock()
#  define RATELIMIT_UNLOCK() unlock()
#endif

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "check.h"

/* Where a bucket cannot be shared there is no function that says it can. */
#if defined(RATELIMIT_PRIV_SHARED)
#  define HAVE_SHARED 1
#else
#  define HAVE_SHARED                    0
#  define ratelimit_bucket_take_shared   ratelimit_bucket_take
#  define ratelimit_bucket_decide_shared ratelimit_bucket_decide
#endif

/* Counters are exact where 64 bits can be added to at once, or under the caller's lock; else they
 * are only good enough to read. */
#if defined(LOCKED) || HAVE_SHARED
#  define COUNTERS_EXACT 1
#else
#  define COUNTERS_EXACT 0
#endif

#if defined(__SANITIZE_THREAD__)
#  define TSAN 1
#elif defined(__has_feature)
#  if __has_feature(thread_sanitizer)
#    define TSAN 1
#  endif
#endif
#ifndef TSAN
#  define TSAN 0
#endif

/* Bursts and rounds are written for the plain run. */
enum { THREADS = 8, SHRINK = TSAN ? 10 : 1 };

static uint64_t rounds = 1;

/* ---- threads --------------------------------------------------------------------------------- */

/* What threads count in. A 32-bit ABI may align 64 bits to 4 only, where they can't be added to at
 * once. */
typedef uint64_t shared64 __attribute__((aligned(8)));

static uint64_t get(const shared64 *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static void set(shared64 *p, uint64_t value)
{
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

static uint64_t add(shared64 *p, uint64_t value)
{
    return __atomic_add_fetch(p, value, __ATOMIC_ACQ_REL);
}

struct job;
typedef struct worker {
    pthread_t thread;
    struct job *job;
    unsigned id;
    uint64_t state; /* of its generator */
} worker;

/* What a crew of threads works on. Each test uses the fields it needs. */
typedef struct job {
    void (*body)(struct job *job, worker *w);
    worker worker[THREADS];
    shared64 ready, faults;
    void *on;
} job;

/* The harness counts faults in the main thread only: workers note theirs here. */
#define NOTE(job, what)                                                                            \
  do {                                                                                             \
    if (!(what) && add(&(job)->faults, 1) < 4)                                                     \
      printf("  %s:%d: in a thread, not true: %s\n", __FILE__, __LINE__, #what);                   \
  } while (0)

static uint64_t below(worker *w, uint64_t limit)
{
    uint64_t z = w->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (z ^ (z >> 31)) % limit;
}

static void *work(void *self)
{
    worker *w = (worker *)self;
    add(&w->job->ready, 1);
    while (get(&w->job->ready) < THREADS)
        sched_yield();
    w->job->body(w->job, w);
    return NULL;
}

/* Runs body in THREADS threads that start together, and waits for all of them. */
static void crew(job *j, void (*body)(job *, worker *), void *on)
{
    unsigned i, started = 0;
    memset(j, 0, sizeof *j);
    j->body = body;
    j->on = on;
    for (i = 0; i < THREADS; i++) {
        j->worker[i].job = j;
        j->worker[i].id = i;
        j->worker[i].state = check_random();
        if (pthread_create(&j->worker[i].thread, NULL, work, &j->worker[i]) != 0)
            break;
        started++;
    }
    if (started < THREADS) {
        printf("no threads to be had\n");
        exit(1);
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(j->worker[i].thread, NULL);
    CHECK_U64(j->faults, 0);
}

/* ---- engines: the ways to ask ---------------------------------------------------------------- */

enum { KEYS = 64 };

/* A database with a conditional update: a few records behind a mutex. */
typedef struct database {
    pthread_mutex_t mutex;
    unsigned char record[KEYS][RATELIMIT_RECORD_BYTES];
    bool present[KEYS], busy;
} database;

typedef struct engine {
    bool (*ask)(struct engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n,
                uint64_t now, ratelimit_result *res);
    ratelimit_table *table;
    ratelimit_bucket bucket[KEYS];
    ratelimit_limiter limiter;
    ratelimit_cas cas;
    database data;
    unsigned char memory[RATELIMIT_TABLE_BYTES(2 * KEYS)];
} engine;

static unsigned char key_of(unsigned key)
{
    return (unsigned char)key;
}

static ratelimit_request request(const unsigned char *key, const ratelimit_limit *limit, uint64_t n)
{
    ratelimit_request q;
    memset(&q, 0, sizeof q);
    q.key = key;
    q.key_len = 1;
    q.limit = limit;
    q.n = n;
    return q;
}

static bool ask_take(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n,
                     uint64_t now, ratelimit_result *res)
{
    unsigned char k = key_of(key);
    return ratelimit_table_take(e->table, &k, 1, limit, n, now, res);
}

static bool ask_hash(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n,
                     uint64_t now, ratelimit_result *res)
{
    return ratelimit_table_take_hash(e->table, (key + 1) * UINT64_C(0x9E3779B97F4A7C15), limit, n,
                                     now, res);
}

static bool ask_each(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n,
                     uint64_t now, ratelimit_result *res)
{
    unsigned char k = key_of(key);
    ratelimit_request q = request(&k, limit, n);
    return ratelimit_table_decide(e->table, &q, res, 1, RATELIMIT_EACH, now);
}

/* Together with a look at a key that is never there, so that it is a batch. */
static bool ask_all(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n, uint64_t now,
                    ratelimit_result *res)
{
    unsigned char k[2] = {0, 255};
    ratelimit_request q[2];
    ratelimit_result r[2];
    bool allowed;
    k[0] = key_of(key);
    q[0] = request(&k[0], limit, n);
    q[1] = request(&k[1], limit, 1);
    q[1].op = RATELIMIT_PEEK;
    allowed = ratelimit_table_decide(e->table, q, r, 2, RATELIMIT_ALL, now);
    *res = r[0];
    return allowed;
}

static bool ask_bucket(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n,
                       uint64_t now, ratelimit_result *res)
{
    return ratelimit_bucket_take_shared(&e->bucket[key], limit, n, now, res);
}

static bool ask_bucket_decide(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n,
                              uint64_t now, ratelimit_result *res)
{
    ratelimit_request q = request(NULL, limit, n);
    return ratelimit_bucket_decide_shared(&e->bucket[key], &q, now, res);
}

/* The stores read a clock: each thread's own, so that a test knows the time of each decision. */
static pthread_key_t time_key;

static uint64_t thread_clock(void *self)
{
    (void)self;
    return *(const uint64_t *)pthread_getspecific(time_key);
}

static bool ask_limiter(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n,
                        uint64_t now, ratelimit_result *res)
{
    unsigned char k = key_of(key);
    ratelimit_request q = request(&k, limit, n);
    bool allowed;
    pthread_setspecific(time_key, &now);
    allowed = ratelimit_take(&e->limiter, &q, res);
    pthread_setspecific(time_key, NULL);
    return allowed;
}

static int data_load(void *self, const void *key, size_t key_len, unsigned char *record)
{
    database *d = (database *)self;
    unsigned at = *(const unsigned char *)key;
    int found;
    (void)key_len;
    pthread_mutex_lock(&d->mutex);
    found = d->present[at];
    if (found)
        memcpy(record, d->record[at], RATELIMIT_RECORD_BYTES);
    pthread_mutex_unlock(&d->mutex);
    if (d->busy)
        sched_yield(); /* so that others are faster */
    return found;
}

static int data_swap(void *self, const void *key, size_t key_len, const unsigned char *old_or_null,
                     const unsigned char *record, uint64_t ttl_ns)
{
    database *d = (database *)self;
    unsigned at = *(const unsigned char *)key;
    int done;
    (void)key_len;
    pthread_mutex_lock(&d->mutex);
    done = old_or_null
               ? d->present[at] && memcmp(d->record[at], old_or_null, RATELIMIT_RECORD_BYTES) == 0
               : !d->present[at];
    if (done) {
        memcpy(d->record[at], record, RATELIMIT_RECORD_BYTES);
        d->present[at] = ttl_ns != 0;
    }
    pthread_mutex_unlock(&d->mutex);
    return done;
}

static void make_table(engine *e, ratelimit_full when_full)
{
    ratelimit_table_options options;
    memset(&options, 0, sizeof options);
    options.seed[0] = check_random();
    options.seed[1] = check_random();
    options.when_full = when_full;
    CHECK(ratelimit_table_init(&e->table, e->memory, sizeof e->memory, &options) == RATELIMIT_OK);
}

/* A cas store of endless patience: what it can't decide would look like a refusal. */
static void make_cas(engine *e, uint32_t tries)
{
    e->cas.self = &e->data;
    e->cas.load = data_load;
    e->cas.swap = data_swap;
    e->cas.clock = thread_clock;
    e->cas.tries = tries;
}

static const struct {
    const char *name;
    bool (*ask)(engine *e, unsigned key, const ratelimit_limit *limit, uint64_t n, uint64_t now,
                ratelimit_result *res);
    char store; /* of the limiter: t table, c compare-and-swap */
} engines[] = {
    {"table, take", ask_take, 't'},
    {"table, by hash", ask_hash, 't'},
    {"table, each", ask_each, 't'},
    {"table, all", ask_all, 't'},
    {"shared bucket, take", ask_bucket, 't'},
    {"shared bucket, decide", ask_bucket_decide, 't'},
    {"limiter on a table", ask_limiter, 't'},
    {"limiter on a compare-and-swap store", ask_limiter, 'c'},
};

enum {
    ENGINES = (int)(sizeof engines / sizeof engines[0]),
    LIMITER_ON_TABLE = ENGINES - 2,
    LIMITER_ON_CAS = ENGINES - 1
};

static bool engine_present(int which)
{
    return HAVE_SHARED ||
           (engines[which].ask != ask_bucket && engines[which].ask != ask_bucket_decide);
}

static engine *make_engine(int which)
{
    static engine e; /* one at a time */
    memset(&e, 0, sizeof e);
    e.ask = engines[which].ask;
    pthread_mutex_init(&e.data.mutex, NULL);
    make_table(&e, RATELIMIT_EVICT);
    make_cas(&e, UINT32_MAX);
    e.limiter.on_failure = RATELIMIT_FAIL_CLOSED;
    CHECK(ratelimit_init(&e.limiter, engines[which].store == 'c'
                                         ? ratelimit_cas_store(&e.cas)
                                         : ratelimit_table_store(e.table, thread_clock, NULL)) ==
          RATELIMIT_OK);
    return &e;
}

/* Faults name the engine they are of. */
static void check_engine(int which, uint64_t got, uint64_t want, const char *what)
{
    if (got != want && check_fault(__FILE__, __LINE__))
        printf("%s: %s is %" PRIu64 ", not %" PRIu64 "\n", engines[which].name, what, got, want);
}

/* ---- a frozen clock -------------------------------------------------------------------------- */

typedef struct frozen {
    engine *e;
    const ratelimit_limit *limit;
    unsigned keys;
    uint64_t asks;                    /* of each thread and key */
    shared64 tokens[KEYS], low[KEYS]; /* allowed; results that said nothing remained */
} frozen;

static void ask_often(job *j, worker *w)
{
    frozen *f = (frozen *)j->on;
    uint64_t i, tokens[KEYS] = {0}, low[KEYS] = {0};
    unsigned key;
    for (i = 0; i < f->asks * f->keys; i++) {
        ratelimit_result r;
        key = (unsigned)((i + w->id * 7) % f->keys);
        if (f->e->ask(f->e, key, f->limit, 1 + (i + w->id) % 4 / 3, 1000, &r)) {
            tokens[key] += r.taken;
            low[key] += r.remaining == 0;
        } else {
            NOTE(j, r.status == RATELIMIT_DENIED && r.remaining < 2 && r.retry_after_ns > 0);
        }
    }
    for (key = 0; key < f->keys; key++) {
        add(&f->tokens[key], tokens[key]);
        add(&f->low[key], low[key]);
    }
}

static void burst_passes(const ratelimit_limit *limit, unsigned keys)
{
    int which;
    for (which = 0; which < ENGINES; which++) {
        static frozen f;
        job j;
        unsigned key;
        if (!engine_present(which))
            continue;
        memset(&f, 0, sizeof f);
        f.e = make_engine(which);
        f.limit = limit;
        f.keys = keys;
        f.asks = limit->burst / 6;
        crew(&j, ask_often, &f);
        for (key = 0; key < keys; key++) {
            check_engine(which, f.tokens[key], limit->burst, "tokens passed");
            check_engine(which, f.low[key], 1, "takes of the last token");
        }
    }
}

static void a_frozen_clock_passes_exactly_the_burst_of_one_key(void)
{
    ratelimit_limit whole = ratelimit_limit_make(1, RATELIMIT_SECOND, 60000 / SHRINK * rounds);
    ratelimit_limit third = ratelimit_limit_make(3, RATELIMIT_SECOND, 60000 / SHRINK * rounds);
    burst_passes(&whole, 1);
    burst_passes(&third, 1);
}

static void a_frozen_clock_passes_exactly_the_burst_of_each_of_many_keys(void)
{
    ratelimit_limit seventh = ratelimit_limit_make(7, RATELIMIT_MINUTE, 1200 / SHRINK * rounds);
    ratelimit_limit window = ratelimit_window_make(1200 / SHRINK * rounds, RATELIMIT_HOUR);
    burst_passes(&seventh, KEYS);
    burst_passes(&window, KEYS);
}

/* ---- a clock that moves ---------------------------------------------------------------------- */

enum { MOST_TIMES = 1 << 17 };

typedef struct moving {
    engine *e;
    const ratelimit_limit *limit;
    unsigned keys;
    bool sweeps; /* worker 1 does nothing else; the clock moves by more than a window */
    uint64_t start, steps, step_ns;
    shared64 now;
    shared64 refused_at; /* the latest time at which some thread was refused */
    shared64 over;       /* the clock has stopped */
    shared64 asking_at[THREADS], done_at[THREADS];
    int stopped, inside[THREADS]; /* with sweeps: the clock is about to move, who is asking */
    shared64 count;
    struct {
        uint64_t at;
        unsigned key;
    } taken[MOST_TIMES];
} moving;

static void note_taken(job *j, moving *m, uint64_t at, unsigned key)
{
    uint64_t i = add(&m->count, 1) - 1;
    NOTE(j, i < MOST_TIMES);
    if (i < MOST_TIMES) {
        m->taken[i].at = at;
        m->taken[i].key = key;
    }
}

/* False while the clock is about to move. */
static bool enter(moving *m, unsigned id)
{
    __atomic_store_n(&m->inside[id], 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&m->stopped, __ATOMIC_SEQ_CST))
        return true;
    __atomic_store_n(&m->inside[id], 0, __ATOMIC_SEQ_CST);
    sched_yield();
    return false;
}

/* Asks for each key until it is refused, once more after the clock has stopped. */
static void ask_while_moving(job *j, worker *w)
{
    moving *m = (moving *)j->on;
    uint64_t over;
    do {
        uint64_t now, seen;
        unsigned i;
        over = get(&m->over);
        if (m->sweeps && w->id > 1 && !enter(m, w->id))
            continue;
        now = get(&m->now);
        set(&m->asking_at[w->id], now);
        if (m->sweeps && w->id == 1) {
            ratelimit_table_sweep(m->e->table, now, 0);
            continue;
        }
        for (i = 0; i < m->keys; i++) {
            ratelimit_result r;
            unsigned key = (i + w->id) % m->keys;
            while (m->e->ask(m->e, key, m->limit, 1, now, &r))
                note_taken(j, m, now, key);
            NOTE(j, r.status == RATELIMIT_DENIED);
        }
        set(&m->done_at[w->id], now);
        __atomic_store_n(&m->inside[w->id], 0, __ATOMIC_SEQ_CST);
        seen = get(&m->refused_at);
        while (seen < now && !__atomic_compare_exchange_n(&m->refused_at, &seen, now, false,
                                                          __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            continue;
        if (!below(w, 4))
            sched_yield();
    } while (!over);
}

/* A thread that was not run for long asks at an old time. More than ten seconds old would be a
 * clock set back, which is forgiven. */
static bool somebody_lags(moving *m, uint64_t now)
{
    unsigned i;
    for (i = 1; i < THREADS; i++)
        if (m->sweeps ? i > 1 && get(&m->done_at[i]) < now
                      : get(&m->asking_at[i]) + RATELIMIT_STEP_NS / 2 < now)
            return true;
    return false;
}

/* Who asks at a time before a sweep's finds that what was full by then is forgotten. So where
 * there are sweeps the clock moves only while nobody is asking. */
static void move_clock(moving *m, uint64_t now)
{
    unsigned i;
    __atomic_store_n(&m->stopped, m->sweeps, __ATOMIC_SEQ_CST);
    for (i = 2; m->sweeps && i < THREADS; i++)
        while (__atomic_load_n(&m->inside[i], __ATOMIC_SEQ_CST))
            sched_yield();
    set(&m->now, now);
    __atomic_store_n(&m->stopped, 0, __ATOMIC_SEQ_CST);
}

/* Worker 0 moves the clock instead, each time after all keys have been found used up at the time
 * before: no bucket is ever full, so what passes in all is known exactly, while others may still
 * ask with older times. */
static void move_or_ask(job *j, worker *w)
{
    moving *m = (moving *)j->on;
    uint64_t i;
    if (w->id) {
        ask_while_moving(j, w);
        return;
    }
    for (i = 0; i < m->steps; i++) {
        uint64_t now = get(&m->now);
        while (get(&m->refused_at) < now || somebody_lags(m, now))
            sched_yield();
        move_clock(m, now + m->step_ns + below(w, m->step_ns));
    }
    set(&m->over, 1);
}

static int by_key_and_time(const void *a, const void *b)
{
    const struct {
        uint64_t at;
        unsigned key;
    } *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* The most by which any span between two takes of one key holds more than burst + rate x span, in
 * units of 1/tokens ns. taken is in order of time: for takes i <= j, (j - i + 1) x per <= (t_j -
 * t_i) x tokens + burst x per. */
static uint64_t worst_excess(const moving *m, uint64_t from, uint64_t to)
{
    const ratelimit_limit *l = m->limit;
    int64_t least = INT64_MAX, worst = 0;
    uint64_t i;
    for (i = from; i < to; i++) {
        int64_t mark =
            (int64_t)((i - from) * l->per_ns) - (int64_t)((m->taken[i].at - m->start) * l->tokens);
        int64_t excess;
        least = mark < least ? mark : least;
        excess = mark + (int64_t)l->per_ns - least - (int64_t)(l->burst * l->per_ns);
        worst = excess > worst ? excess : worst;
    }
    return (uint64_t)worst;
}

static void moving_clock(const ratelimit_limit *limit, unsigned keys, uint64_t step_ns)
{
    int which;
    for (which = 0; which < ENGINES; which++) {
        static moving m;
        job j;
        uint64_t from = 0, to, span;
        unsigned key;
        if (!engine_present(which))
            continue;
        memset(&m, 0, sizeof m);
        m.e = make_engine(which);
        m.limit = limit;
        m.keys = keys;
        m.now = m.start = check_below(RATELIMIT_HOUR) + 1;
        for (key = 0; key < THREADS; key++)
            m.asking_at[key] = m.start;
        m.steps = 3000 * rounds / SHRINK;
        m.step_ns = step_ns;
        crew(&j, move_or_ask, &m);
        span = m.now - m.start;
        qsort(m.taken, (size_t)m.count, sizeof m.taken[0], by_key_and_time);
        for (key = 0; key < keys; key++, from = to) {
            for (to = from; to < m.count && m.taken[to].key == key; to++)
                continue;
            check_engine(which, to - from,
                         limit->burst + span / limit->per_ns * limit->tokens +
                             span % limit->per_ns * limit->tokens / limit->per_ns,
                         "takes passed in all");
            check_engine(which, worst_excess(&m, from, to), 0, "what some span holds too much");
        }
    }
}

static void nor_does_a_sweep_take_a_key_that_was_just_charged(void)
{
    static moving m;
    ratelimit_limit limit = ratelimit_limit_make(1, 100, 1);
    uint64_t from = 0, to;
    unsigned key;
    job j;
    memset(&m, 0, sizeof m);
    m.e = make_engine(0);
    m.limit = &limit;
    m.keys = 6;
    m.sweeps = true;
    m.steps = 5000 * rounds / SHRINK;
    m.step_ns = 101;
    crew(&j, move_or_ask, &m);
    qsort(m.taken, (size_t)m.count, sizeof m.taken[0], by_key_and_time);
    for (key = 0; key < m.keys; key++, from = to) {
        for (to = from; to < m.count && m.taken[to].key == key; to++)
            continue;
        CHECK_U64(worst_excess(&m, from, to), 0);
        CHECK(to - from > m.steps / 2);
    }
}

static void no_span_of_a_moving_clock_holds_a_token_too_many_nor_is_one_lost(void)
{
    ratelimit_limit whole = ratelimit_limit_make(1000, RATELIMIT_SECOND, 20);
    ratelimit_limit seventh = ratelimit_limit_make(7, RATELIMIT_SECOND, 3);
    moving_clock(&whole, 1, RATELIMIT_MILLISECOND * 2);
    moving_clock(&seventh, 1, RATELIMIT_SECOND / 9);
}

static void nor_with_many_keys(void)
{
    ratelimit_limit third = ratelimit_limit_make(3, 100, 5);
    moving_clock(&third, 9, 40);
}

/* ---- all or none ----------------------------------------------------------------------------- */

enum { ACCOUNTS = 12 };

typedef struct transfer {
    engine *e;
    ratelimit_limit limit;
    shared64 spent[ACCOUNTS]; /* by those who were told so */
    shared64 batches;
    uint64_t tries;
} transfer;

/* Batches of two to four, the same key perhaps twice, between single takes, which change a bucket
 * under a batch's feet, and gifts back. */
static void transfer_often(job *j, worker *w)
{
    transfer *t = (transfer *)j->on;
    uint64_t i, spent[ACCOUNTS] = {0};
    unsigned k;
    for (i = 0; i < t->tries; i++) {
        unsigned char key[4];
        ratelimit_request q[4];
        ratelimit_result r[4];
        size_t count = 1 + (size_t)below(w, 4), at, allowed = 0;
        for (at = 0; at < count; at++) {
            key[at] = (unsigned char)below(w, ACCOUNTS);
            q[at] = request(&key[at], &t->limit, 1 + below(w, 3));
        }
        if (count == 1 && spent[key[0]] >= 3 && below(w, 2))
            q[0].op = RATELIMIT_REFUND;
        if (count == 1 && q[0].op == RATELIMIT_TAKE)
            (void)ratelimit_table_take(t->e->table, key, 1, &t->limit, q[0].n, 5, r);
        else
            (void)ratelimit_table_decide(t->e->table, q, r, count, RATELIMIT_ALL, 5);
        for (at = 0; at < count; at++)
            allowed += r[at].allowed;
        NOTE(j, allowed == 0 || allowed == count);
        if (allowed && count > 1)
            add(&t->batches, 1);
        for (at = 0; allowed && at < count; at++) {
            NOTE(j, r[at].taken == q[at].n);
            spent[key[at]] += q[at].op == RATELIMIT_REFUND ? 0 - q[at].n : q[at].n;
        }
    }
    for (k = 0; k < ACCOUNTS; k++)
        add(&t->spent[k], spent[k]);
}

static void transfers(const ratelimit_limit *limit)
{
    static transfer t;
    job j;
    unsigned k;
    memset(&t, 0, sizeof t);
    t.e = make_engine(0);
    t.limit = *limit;
    t.tries = 15000 / SHRINK * rounds;
    for (k = 0; k < ACCOUNTS; k++) { /* no gift may fill a bucket: an account that is gone is new */
        unsigned char key = key_of(k);
        CHECK(ratelimit_table_take(t.e->table, &key, 1, &t.limit, 1, 5, NULL));
        t.spent[k] = 1;
    }
    crew(&j, transfer_often, &t);
    CHECK(t.batches > t.limit.burst); /* else nothing was tried */
    for (k = 0; k < ACCOUNTS; k++) {
        unsigned char key = key_of(k);
        ratelimit_request q = request(&key, &t.limit, 1);
        ratelimit_result r;
        q.op = RATELIMIT_PEEK;
        ratelimit_table_decide(t.e->table, &q, &r, 1, RATELIMIT_EACH, 5);
        CHECK_U64(t.limit.burst - r.remaining, t.spent[k]);
        CHECK(t.spent[k] > t.limit.burst / 2);
    }
}

/* With an interval of whole ns, where single takes are one swap, and with another. */
static void a_batch_of_all_or_none_never_charges_one_side_only(void)
{
    ratelimit_limit whole = ratelimit_limit_make(3, RATELIMIT_MINUTE, 9000 / SHRINK * rounds);
    ratelimit_limit part = ratelimit_limit_make(7, RATELIMIT_MINUTE, 9000 / SHRINK * rounds);
    transfers(&whole);
    transfers(&part);
}

/* Two keys, all or none of both by some threads, each of both by others, one by one by the rest:
 * each gives its burst to the last token, and not one more. */
static void spend_together(job *j, worker *w)
{
    transfer *t = (transfer *)j->on;
    unsigned char key[2] = {1, 2};
    ratelimit_request q[2];
    bool pass = true;
    q[0] = request(&key[0], &t->limit, 1);
    q[1] = request(&key[1], &t->limit, 1);
    while (pass)
        if (w->id % 3 == 1) {
            pass = ratelimit_table_decide(t->e->table, q, NULL, 2, RATELIMIT_ALL, 5);
            add(&t->spent[1], pass);
            add(&t->spent[2], pass);
        } else if (w->id % 3 == 2) {
            bool allowed[2];
            pass = ratelimit_table_take_batch(t->e->table, q, allowed, 2, 5) != 0;
            add(&t->spent[1], allowed[0]);
            add(&t->spent[2], allowed[1]);
        } else {
            unsigned which = 1 + (unsigned)below(w, 2);
            pass = ratelimit_table_take(t->e->table, &key[which - 1], 1, &t->limit, 1, 5, NULL);
            add(&t->spent[which], pass);
        }
}

static void a_batch_beside_single_takes_is_exact(void)
{
    static transfer t;
    job j;
    unsigned k;
    memset(&t, 0, sizeof t);
    t.e = make_engine(0);
    t.limit = ratelimit_limit_make(1, RATELIMIT_SECOND, 200000 / SHRINK * rounds);
    crew(&j, spend_together, &t);
    for (k = 1; k <= 2; k++) {
        unsigned char key = key_of(k);
        /* a batch that came too late may have been in the way of the last one */
        while (ratelimit_table_take(t.e->table, &key, 1, &t.limit, 1, 5, NULL))
            t.spent[k]++;
        CHECK_U64(t.spent[k], t.limit.burst);
    }
}

/* ---- other operations ------------------------------------------------------------------------ */

enum { WAITERS = 500 };

typedef struct queue {
    engine *e;
    ratelimit_limit limit;
    uint64_t each;
    uint64_t wait[THREADS][WAITERS];
} queue;

static void reserve_often(job *j, worker *w)
{
    queue *q = (queue *)j->on;
    uint64_t i;
    for (i = 0; i < q->each; i++) {
        unsigned char key = 1;
        ratelimit_request reserve = request(&key, &q->limit, 1);
        ratelimit_result r;
        reserve.op = RATELIMIT_RESERVE;
        reserve.max_wait_ns = RATELIMIT_HOUR;
        ratelimit_table_decide(q->e->table, &reserve, &r, 1, RATELIMIT_EACH, 7);
        NOTE(j, r.allowed);
        q->wait[w->id][i] = r.wait_ns;
    }
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void reservations_of_many_threads_stand_one_interval_apart(void)
{
    static queue q;
    job j;
    uint64_t i, all;
    memset(&q, 0, sizeof q);
    q.e = make_engine(0);
    q.limit = ratelimit_limit_make(3, RATELIMIT_SECOND, 10);
    q.each = WAITERS;
    all = q.each * THREADS;
    crew(&j, reserve_often, &q);
    qsort(q.wait, (size_t)all, sizeof q.wait[0][0], by_value);
    for (i = 0; i < all; i++) {
        uint64_t late = i < q.limit.burst ? 0 : i + 1 - q.limit.burst;
        CHECK_U64(q.wait[i / WAITERS][i % WAITERS], (late * RATELIMIT_SECOND + 2) / 3);
    }
}

typedef struct flight {
    ratelimit_table *table;
    uint32_t most;
    uint64_t tries;
    shared64 now[KEYS], full;
} flight;

static void fly(job *j, worker *w)
{
    flight *f = (flight *)j->on;
    uint64_t i;
    for (i = 0; i < f->tries; i++) {
        unsigned at = (unsigned)below(w, 3);
        unsigned char key = key_of(at);
        ratelimit_permit permit;
        if (!ratelimit_table_acquire(f->table, &key, 1, f->most, RATELIMIT_SECOND, 7, &permit)) {
            add(&f->full, 1);
            continue;
        }
        NOTE(j, add(&f->now[at], 1) <= f->most);
        if (!below(w, 8))
            sched_yield();
        add(&f->now[at], UINT64_MAX);
        NOTE(j, ratelimit_table_release(f->table, &key, 1, &permit, 7) == RATELIMIT_OK);
        if (!below(w, 16)) /* twice: it may be somebody else's by now */
            NOTE(j, ratelimit_table_release(f->table, &key, 1, &permit, 7) == RATELIMIT_LOST);
    }
}

static void never_more_permits_are_held_than_allowed(void)
{
    static flight f;
    job j;
    unsigned at, i;
    memset(&f, 0, sizeof f);
    f.table = make_engine(0)->table;
    f.most = 2;
    f.tries = 20000 / SHRINK * rounds;
    crew(&j, fly, &f);
    CHECK(f.full > 0);
    for (at = 0; at < 3; at++) {
        unsigned char key = key_of(at);
        ratelimit_permit permit;
        for (i = 0; i < f.most; i++)
            CHECK(ratelimit_table_acquire(f.table, &key, 1, f.most, RATELIMIT_SECOND, 7, &permit));
        CHECK(!ratelimit_table_acquire(f.table, &key, 1, f.most, RATELIMIT_SECOND, 7, &permit));
    }
}

/* ---- a full table ---------------------------------------------------------------------------- */

enum { CROWD = 400, PLACES = 24 };

typedef struct crowd {
    ratelimit_table *table;
    ratelimit_limit limit;
    uint64_t tries;
    shared64 allowed[CROWD], fresh, full, swept;
    unsigned char memory[RATELIMIT_TABLE_BYTES(PLACES / 2)];
} crowd;

/* At a frozen time a key that finds its whole burst but one left is new in the table. */
static void push_in(job *j, worker *w)
{
    crowd *c = (crowd *)j->on;
    uint64_t i;
    for (i = 0; i < c->tries; i++) {
        uint16_t key = (uint16_t)below(w, below(w, 2) ? CROWD : PLACES);
        ratelimit_result r;
        if (ratelimit_table_take(c->table, &key, sizeof key, &c->limit, 1, 9, &r)) {
            NOTE(j, r.taken == 1 && r.remaining < c->limit.burst);
            add(&c->allowed[key], 1);
            add(&c->fresh, r.remaining + 1 == c->limit.burst);
        } else {
            NOTE(j, r.status == RATELIMIT_DENIED || r.status == RATELIMIT_FULL);
            add(&c->full, r.status == RATELIMIT_FULL);
        }
        if (w->id < 2 && i % 16 == 0) {
            ratelimit_table_counts counts;
            add(&c->swept, ratelimit_table_sweep(c->table, 9, 0));
            ratelimit_table_stats(c->table, 9, &counts);
            NOTE(j, counts.capacity == PLACES && counts.keys <= PLACES &&
                        counts.in_debt == counts.keys);
        }
    }
}

static void full_table(crowd *c, ratelimit_full when_full, ratelimit_table_counts *counts)
{
    ratelimit_table_options options;
    job j;
    memset(&options, 0, sizeof options);
    options.seed[0] = check_random();
    options.when_full = when_full;
    c->limit = ratelimit_limit_make(1, RATELIMIT_SECOND, 10);
    c->tries = 20000 / SHRINK * rounds;
    CHECK(ratelimit_table_init(&c->table, c->memory, sizeof c->memory, &options) == RATELIMIT_OK);
    crew(&j, push_in, c);
    ratelimit_table_stats(c->table, 9, counts);
    CHECK_U64(c->swept, 0); /* nothing was full again */
    CHECK_U64(counts->keys, PLACES);
}

/* Each thread notes times of its own. */
static void forget_keys(job *j, worker *w)
{
    ratelimit_table *t = (ratelimit_table *)j->on;
    ratelimit_priv_seat seat;
    uint64_t i;
    memset(&seat, 0, sizeof seat);
    seat.in_it.rest = 1;
    for (i = 0; i < 20000 * rounds / SHRINK; i++) {
        uint64_t latest;
        seat.now = 1 + i * THREADS + w->id;
        seat.in_it.full_ns = seat.now - 1;
        RATELIMIT_PRIV_ENTER();
        ratelimit_priv_forget(t, &seat);
        latest = ratelimit_priv_load64(&t->forgotten_ns);
        RATELIMIT_PRIV_LEAVE();
        NOTE(j, !COUNTERS_EXACT || latest >= seat.now);
    }
}

static void no_time_of_a_forgotten_key_is_lost(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(PLACES / 2)];
    static job j;
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    CHECK(ratelimit_table_init(&t, memory, sizeof memory, &options) == RATELIMIT_OK);
    crew(&j, forget_keys, t);
}

static void every_key_forgotten_by_a_full_table_is_counted(void)
{
    static const ratelimit_full policies[] = {RATELIMIT_EVICT, RATELIMIT_EVICT_LAST_SEEN};
    unsigned i;
    for (i = 0; i < 2; i++) {
        static crowd c;
        ratelimit_table_counts counts;
        memset(&c, 0, sizeof c);
        full_table(&c, policies[i], &counts);
        if (COUNTERS_EXACT)
            CHECK_U64(counts.evicted, c.fresh - PLACES);
        CHECK(counts.evicted > PLACES);
        CHECK_U64(counts.refused + c.full, 0);
    }
}

static void a_full_table_that_inherits_gives_no_key_more_than_its_limit(void)
{
    static crowd c;
    ratelimit_table_counts counts;
    unsigned key;
    memset(&c, 0, sizeof c);
    full_table(&c, RATELIMIT_INHERIT, &counts);
    for (key = 0; key < CROWD; key++)
        CHECK(c.allowed[key] <= c.limit.burst);
    CHECK_U64(c.fresh, PLACES);
    CHECK_U64(counts.evicted, 0);
}

static void a_full_table_that_refuses_counts_every_refusal(void)
{
    static crowd c;
    ratelimit_table_counts counts;
    unsigned key;
    uint64_t sum = 0;
    memset(&c, 0, sizeof c);
    full_table(&c, RATELIMIT_REFUSE, &counts);
    for (key = 0; key < CROWD; key++)
        sum += c.allowed[key];
    CHECK_U64(sum, PLACES * c.limit.burst);
    if (COUNTERS_EXACT)
        CHECK_U64(counts.refused, c.full);
    CHECK_U64(counts.evicted, 0);
}

/* Worker 0 sweeps at a time that is far ahead, where every key is full again, while the others come
 * and go: to them a dropped key is a new one. Then there is nothing to count, but the table must
 * stay sound. */
static void come_and_go(job *j, worker *w)
{
    crowd *c = (crowd *)j->on;
    uint64_t i;
    for (i = 0; i < c->tries; i++) {
        uint16_t key = (uint16_t)below(w, CROWD);
        uint64_t now = 9 + i * RATELIMIT_MILLISECOND;
        ratelimit_result r;
        if (w->id == 0 && i % 8 == 0) {
            ratelimit_table_sweep(c->table, now + RATELIMIT_HOUR, 0);
        } else if (w->id == 1) {
            ratelimit_permit permit;
            if (ratelimit_table_acquire(c->table, &key, sizeof key, 1, RATELIMIT_SECOND, now,
                                        &permit))
                (void)ratelimit_table_release(c->table, &key, sizeof key, &permit, now);
        } else {
            ratelimit_table_take(c->table, &key, sizeof key, &c->limit, 1, now, &r);
            NOTE(j, r.burst == 10 && r.remaining <= 10 &&
                        r.reset_after_ns <= 10 * RATELIMIT_SECOND + c->tries * 1000000);
            NOTE(j, r.allowed ? r.status == RATELIMIT_OK : r.status == RATELIMIT_DENIED);
        }
    }
}

static void keys_come_and_go_under_sweeps(void)
{
    static crowd c;
    ratelimit_table_counts counts;
    uint64_t far;
    job j;
    memset(&c, 0, sizeof c);
    c.limit = ratelimit_limit_make(1, RATELIMIT_SECOND, 10);
    c.tries = 20000 / SHRINK * rounds;
    far = c.tries * RATELIMIT_MILLISECOND + RATELIMIT_HOUR;
    CHECK(ratelimit_table_init(&c.table, c.memory, sizeof c.memory, NULL) == RATELIMIT_OK);
    crew(&j, come_and_go, &c);
    ratelimit_table_sweep(c.table, far, 0);
    ratelimit_table_stats(c.table, 9, &counts);
    CHECK_U64(counts.keys, 0);
    CHECK_U64(ratelimit_table_sweep(c.table, far, 0), 0);
}

/* ---- a limit that changes -------------------------------------------------------------------- */

typedef struct change {
    engine *e;
    ratelimit_limit limit[3];
    uint64_t asks;
    shared64 which, tokens, asking;
} change;

static void ask_or_change(job *j, worker *w)
{
    change *c = (change *)j->on;
    uint64_t i, tokens = 0;
    if (w->id == 0) {
        while (get(&c->asking) < THREADS - 1) {
            set(&c->which, (get(&c->which) + 1) % 3);
            sched_yield();
        }
        return;
    }
    for (i = 0; i < c->asks; i++) {
        ratelimit_result r;
        if (c->e->ask(c->e, 3, &c->limit[get(&c->which)], 1, 1000, &r))
            tokens++;
        else
            NOTE(j, r.status == RATELIMIT_DENIED);
    }
    add(&c->tokens, tokens);
    add(&c->asking, 1);
}

static void tokens_spent_stay_spent_while_the_limit_changes(void)
{
    int which;
    for (which = 0; which < ENGINES; which++) {
        static change c;
        job j;
        if (!engine_present(which))
            continue;
        memset(&c, 0, sizeof c);
        c.e = make_engine(which);
        /* whole tokens are exact up to 65,535 of them */
        c.limit[0] = ratelimit_limit_make(1, RATELIMIT_SECOND, 28000 / SHRINK);
        c.limit[1] = ratelimit_limit_make(100, RATELIMIT_SECOND, 28000 / SHRINK);
        c.limit[2] = ratelimit_limit_make(7, RATELIMIT_MINUTE, 28000 / SHRINK);
        c.limit[0].scope = c.limit[1].scope = c.limit[2].scope = 1;
        c.asks = 28000 / SHRINK / 5;
        crew(&j, ask_or_change, &c);
        /* A take that finds the bucket under another limit after it was charged is charged once
         * more: fewer may pass than there are, never more. */
        check_engine(which, c.tokens > c.limit[0].burst, 0, "tokens too many");
        check_engine(which, c.tokens < c.limit[0].burst / 2, 0, "half of the tokens lost");
    }
}

/* Worker 0 spends one token now and then at a crawling limit, now and then at a fast one. Half of
 * the one state and half of the other together would make a bucket used up. */
static bool one_spent(engine *e, bool table, const ratelimit_limit *l, ratelimit_op op)
{
    unsigned char key = 4;
    ratelimit_request q = request(&key, l, 1);
    ratelimit_result r;
    q.op = op;
    if (table)
        ratelimit_table_decide(e->table, &q, &r, 1, RATELIMIT_EACH, 1000);
    else
        (void)ratelimit_bucket_decide_shared(&e->bucket[4], &q, 1000, &r);
    return r.remaining >= l->burst - 1;
}

static void spend_or_look(job *j, worker *w)
{
    change *c = (change *)j->on;
    uint64_t i;
    for (i = 0; i < c->asks; i++) {
        const ratelimit_limit *l = &c->limit[i % 2];
        if (w->id == 0)
            NOTE(j, one_spent(c->e, c->which != 0, l, RATELIMIT_RESET) &&
                        one_spent(c->e, c->which != 0, l, RATELIMIT_TAKE));
        else
            NOTE(j, one_spent(c->e, c->which != 0, l, RATELIMIT_PEEK));
    }
}

static void nobody_sees_half_a_decision(void)
{
    int table;
    for (table = !HAVE_SHARED; table < 2; table++) {
        static change c;
        job j;
        memset(&c, 0, sizeof c);
        c.e = make_engine(0);
        c.which = (uint64_t)table;
        c.limit[0] = ratelimit_limit_make(1, RATELIMIT_HOUR, 20);
        c.limit[1] = ratelimit_limit_make(700, RATELIMIT_SECOND, 20);
        c.limit[0].scope = c.limit[1].scope = 1;
        c.asks = 400000 * rounds; /* TSan makes the odds better, so not fewer there */
        crew(&j, spend_or_look, &c);
    }
}

/* ---- the limiter ----------------------------------------------------------------------------- */

typedef struct counting {
    engine *e;
    ratelimit_limit limit;
    uint64_t asks;
    shared64 allowed, failed, bad, hooked;
} counting;

static void count_hook(void *self, const ratelimit_request *req, const ratelimit_result *res)
{
    (void)req;
    (void)res;
    add(&((counting *)self)->hooked, 1);
}

static void ask_and_count(job *j, worker *w)
{
    counting *c = (counting *)j->on;
    uint64_t i, allowed = 0, failed = 0, bad = 0;
    (void)w;
    for (i = 0; i < c->asks; i++) {
        ratelimit_result r;
        allowed += c->e->ask(c->e, 0, &c->limit, i % 10 != 0, 1000, &r);
        failed += r.status == RATELIMIT_STORE_FAILED;
        bad += r.status == RATELIMIT_BAD_COUNT;
    }
    add(&c->allowed, allowed);
    add(&c->failed, failed);
    add(&c->bad, bad);
}

static void count_all(int which, bool shadow, uint32_t tries, counting *c, ratelimit_counts *counts)
{
    job j;
    memset(c, 0, sizeof *c);
    c->e = make_engine(which);
    c->e->cas.tries = tries;
    c->e->data.busy = true;
    c->e->limiter.shadow = shadow;
    c->e->limiter.hook = count_hook;
    c->e->limiter.hook_self = c;
    c->limit = ratelimit_limit_make(1, RATELIMIT_SECOND, 20000 / SHRINK);
    c->asks = 20000 / SHRINK / 4 * rounds;
    crew(&j, ask_and_count, c);
    ratelimit_limiter_counts(&c->e->limiter, counts);
    CHECK_U64(c->hooked, c->asks * THREADS);
    CHECK_U64(c->bad, c->asks * THREADS / 10);
    if (COUNTERS_EXACT) {
        CHECK_U64(counts->allowed, c->allowed);
        CHECK_U64(counts->allowed + counts->refused, c->asks * THREADS);
        CHECK_U64(counts->failed, c->failed);
        CHECK_U64(counts->bad, c->bad);
    }
}

static void the_counters_of_a_limiter_are_exact(void)
{
    static counting c;
    ratelimit_counts counts;
    uint64_t good;
    count_all(LIMITER_ON_TABLE, false, 0, &c, &counts);
    good = c.asks * THREADS / 10 * 9;
    CHECK_U64(c.allowed, c.limit.burst);
    CHECK_U64(counts.shadow_refused, 0);
    count_all(LIMITER_ON_TABLE, true, 0, &c, &counts);
    CHECK_U64(c.allowed, good);
    if (COUNTERS_EXACT)
        CHECK_U64(counts.shadow_refused, good - c.limit.burst);
}

static void a_compare_and_swap_store_that_gives_up_says_so_and_loses_nothing(void)
{
    static counting c;
    ratelimit_counts counts;
    ratelimit_result r;
    uint64_t left = 0;
    count_all(LIMITER_ON_CAS, false, 1, &c, &counts);
    CHECK(c.failed > 0); /* one try is not enough for eight threads on one key */
    while (c.e->ask(c.e, 0, &c.limit, 1, 1000, &r))
        left++;
    CHECK_U64(c.allowed + left, c.limit.burst);
}

/* ---- a place that logs ----------------------------------------------------------------------- */

typedef struct logging {
    ratelimit_priv_log log;
    ratelimit_limit limit;
    uint64_t tries;
    shared64 passed, missed;
} logging;

static void log_often(job *j, worker *w)
{
    logging *l = (logging *)j->on;
    uint64_t i;
    (void)w;
    for (i = 0; i < l->tries; i++) {
        uint32_t missed = 0;
        if (ratelimit_priv_log_pass(&l->log, &l->limit, 5, &missed)) {
            add(&l->passed, 1);
            add(&l->missed, missed);
        }
    }
}

static void a_place_that_logs_passes_its_burst_and_counts_every_other_time(void)
{
    static logging l;
    uint32_t missed = 0;
    job j;
    memset(&l, 0, sizeof l);
    l.limit = ratelimit_limit_make(1, RATELIMIT_SECOND, 1000);
    l.tries = 20000 / SHRINK * rounds;
    crew(&j, log_often, &l);
    CHECK_U64(l.passed, 1000);
    CHECK(ratelimit_priv_log_pass(&l.log, &l.limit, 5 + RATELIMIT_SECOND, &missed));
    CHECK_U64(l.passed + l.missed + missed, l.tries * THREADS);
}

#if defined(LOCKED)
static void the_lock_is_taken_round_a_decision_and_never_within_one(void)
{
    CHECK(times_locked > 100000);
    CHECK_U64(times_nested, 0);
    CHECK_U64((uint64_t)locks_held, 0);
}
#endif

int main(int argc, char **argv)
{
    const char *text = getenv("ROUNDS");
    check_begin(argc, argv);
    check_seed(8);
    rounds = text ? (uint64_t)strtoull(text, NULL, 0) : 1;
    rounds = rounds ? rounds : 1;
    if (pthread_key_create(&time_key, NULL) != 0)
        return 1;
    RUN(a_frozen_clock_passes_exactly_the_burst_of_one_key);
    RUN(a_frozen_clock_passes_exactly_the_burst_of_each_of_many_keys);
    RUN(no_span_of_a_moving_clock_holds_a_token_too_many_nor_is_one_lost);
    RUN(nor_with_many_keys);
    RUN(nor_does_a_sweep_take_a_key_that_was_just_charged);
    RUN(a_batch_of_all_or_none_never_charges_one_side_only);
    RUN(a_batch_beside_single_takes_is_exact);
    RUN(reservations_of_many_threads_stand_one_interval_apart);
    RUN(never_more_permits_are_held_than_allowed);
    RUN(no_time_of_a_forgotten_key_is_lost);
    RUN(every_key_forgotten_by_a_full_table_is_counted);
    RUN(a_full_table_that_inherits_gives_no_key_more_than_its_limit);
    RUN(a_full_table_that_refuses_counts_every_refusal);
    RUN(keys_come_and_go_under_sweeps);
    RUN(tokens_spent_stay_spent_while_the_limit_changes);
    RUN(nobody_sees_half_a_decision);
    RUN(the_counters_of_a_limiter_are_exact);
    RUN(a_compare_and_swap_store_that_gives_up_says_so_and_loses_nothing);
    if (HAVE_SHARED)
        RUN(a_place_that_logs_passes_its_burst_and_counts_every_other_time);
#if defined(LOCKED)
    RUN(the_lock_is_taken_round_a_decision_and_never_within_one);
#endif
    return check_end();
}

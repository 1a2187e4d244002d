/* unit.h - what several test programs share: five engines that must give the same answers, a
 * database in an array, a clock and a sleep that take no time, memory that ends at a wall.
 *
 * Include it after ratelimit.h with its implementation, and after <pthread.h> and <sys/mman.h>.
 */
#ifndef UNIT_H
#define UNIT_H

#include "check.h"

#define NS      UINT64_C(1)
#define US      RATELIMIT_MICROSECOND
#define MS      RATELIMIT_MILLISECOND
#define SEC     RATELIMIT_SECOND
#define MINUTE  RATELIMIT_MINUTE
#define HOUR    RATELIMIT_HOUR
#define DAY     RATELIMIT_DAY
#define FOREVER RATELIMIT_FOREVER

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Under a sanitizer everything is several times slower: the longest runs are shortened. */
#if !defined(SHORT)
#  if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define SHORT 1
#  elif defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#      define SHORT 1
#    endif
#  endif
#endif
#if !defined(SHORT)
#  define SHORT 0
#endif

/* A clock that stands still until somebody moves it; self is a uint64_t. */
static inline uint64_t clock_read(void *self)
{
    return *(const uint64_t *)self;
}

/* bytes of memory with a page without access behind them. Never given back: tests are short. */
static inline unsigned char *walled(size_t bytes)
{
    const size_t page = 4096;
    size_t room = (bytes + page - 1) / page * page;
    unsigned char *memory = (unsigned char *)mmap(NULL, room + page, PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + room, page, PROT_NONE) != 0) {
        perror("walled");
        exit(2);
    }
    return memory + room - bytes;
}

/* ---- a database ------------------------------------------------------------------------------ */

#define DATABASE_ROWS      32
#define DATABASE_KEY_BYTES 320

typedef struct database_row {
    size_t key_len; /* 0: free */
    unsigned char key[DATABASE_KEY_BYTES];
    unsigned char record[RATELIMIT_RECORD_BYTES];
    uint64_t written_ns, ttl_ns;
} database_row;

typedef struct database {
    database_row rows[DATABASE_ROWS];
    const uint64_t *now_ns;     /* set: a record is deleted the moment its time to live is over */
    pthread_mutex_t *lock;      /* set: held during a load and during a swap, not between them */
    uint64_t loads, swaps;      /* calls */
    uint64_t lose;              /* this many swaps find the record changed */
    int load_fails, swap_fails; /* below 0: the answer */
} database;

static inline database_row *database_find(database *db, const void *key, size_t key_len)
{
    size_t i;
    for (i = 0; i < DATABASE_ROWS; i++) {
        database_row *row = &db->rows[i];
        if (row->key_len != key_len || memcmp(row->key, key, key_len) != 0)
            continue;
        if (db->now_ns && *db->now_ns - row->written_ns >= row->ttl_ns &&
            *db->now_ns - row->written_ns <= INT64_MAX) { /* else the clock was set back */
            row->key_len = 0;
            continue;
        }
        return row;
    }
    return NULL;
}

static inline database_row *database_add(database *db, const void *key, size_t key_len)
{
    size_t i;
    for (i = 0; i < DATABASE_ROWS; i++)
        if (!db->rows[i].key_len && key_len <= DATABASE_KEY_BYTES) {
            memcpy(db->rows[i].key, key, key_len);
            db->rows[i].key_len = key_len;
            return &db->rows[i];
        }
    fprintf(stderr, "the test's database is full\n");
    exit(2);
}

static inline size_t database_rows(const database *db)
{
    size_t i, n = 0;
    for (i = 0; i < DATABASE_ROWS; i++)
        n += db->rows[i].key_len != 0;
    return n;
}

static inline int database_load(void *self, const void *key, size_t key_len, unsigned char *record)
{
    database *db = (database *)self;
    const database_row *row;
    if (db->lock)
        pthread_mutex_lock(db->lock);
    db->loads++;
    row = database_find(db, key, key_len);
    if (row)
        memcpy(record, row->record, sizeof row->record);
    if (db->lock)
        pthread_mutex_unlock(db->lock);
    return db->load_fails ? db->load_fails : row != NULL;
}

static inline int database_put(database *db, const void *key, size_t key_len,
                               const unsigned char *old_or_null, const unsigned char *record,
                               uint64_t ttl_ns)
{
    database_row *row = database_find(db, key, key_len);
    if ((row != NULL) != (old_or_null != NULL))
        return 0;
    if (row && memcmp(row->record, old_or_null, sizeof row->record) != 0)
        return 0;
    if (!ttl_ns) {
        if (row)
            row->key_len = 0;
        return 1;
    }
    if (!row)
        row = database_add(db, key, key_len);
    memcpy(row->record, record, sizeof row->record);
    row->ttl_ns = ttl_ns;
    row->written_ns = db->now_ns ? *db->now_ns : 0;
    return 1;
}

static inline int database_swap(void *self, const void *key, size_t key_len,
                                const unsigned char *old_or_null, const unsigned char *record,
                                uint64_t ttl_ns)
{
    database *db = (database *)self;
    int done;
    if (db->lock)
        pthread_mutex_lock(db->lock);
    db->swaps++;
    if (db->swap_fails) {
        done = db->swap_fails;
    } else if (db->lose) {
        db->lose -= db->lose != UINT64_MAX;
        done = 0;
    } else {
        done = database_put(db, key, key_len, old_or_null, record, ttl_ns);
    }
    if (db->lock)
        pthread_mutex_unlock(db->lock);
    return done;
}

/* ---- engines --------------------------------------------------------------------------------- */

typedef enum engine_kind {
    ENGINE_BUCKET,
    ENGINE_SHARED,
    ENGINE_TABLE,
    ENGINE_CAS,
    ENGINE_LIMITER, /* over a table store */
    ENGINES
} engine_kind;

static const char *const engine_names[ENGINES] = {"bucket", "shared bucket", "table", "cas store",
                                                  "limiter"};

typedef struct engine {
    engine_kind kind;
    uint64_t now_ns;
    ratelimit_bucket bucket;
    ratelimit_table *table;
    database db;
    ratelimit_cas cas;
    ratelimit_store store;
    ratelimit_limiter limiter;
    unsigned char memory[RATELIMIT_TABLE_BYTES(24)];
} engine;

static const unsigned char engine_key[] = {'k', 'e', 'y'};

/* An empty table with a known seed. */
static inline ratelimit_table *table_made(void *memory, size_t bytes, ratelimit_full when_full,
                                          uint64_t seed)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = seed;
    options.seed[1] = 1;
    options.when_full = when_full;
    if (ratelimit_table_init(&t, memory, bytes, &options) != RATELIMIT_OK)
        exit(2);
    return t;
}

static inline void engine_start(engine *e, engine_kind kind)
{
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->table = table_made(e->memory, sizeof e->memory, RATELIMIT_EVICT, 1);
    e->db.now_ns = &e->now_ns;
    e->cas.self = &e->db;
    e->cas.load = database_load;
    e->cas.swap = database_swap;
    e->cas.clock = clock_read;
    e->cas.clock_self = &e->now_ns;
    e->store = kind == ENGINE_CAS ? ratelimit_cas_store(&e->cas)
                                  : ratelimit_table_store(e->table, clock_read, &e->now_ns);
    if (ratelimit_init(&e->limiter, e->store) != RATELIMIT_OK)
        exit(2);
}

static inline bool status_is_bad(ratelimit_status status)
{
    return status == RATELIMIT_BAD_KEY || status == RATELIMIT_BAD_LIMIT ||
           status == RATELIMIT_BAD_COUNT || status == RATELIMIT_BAD_ARGUMENT ||
           status == RATELIMIT_UNSUPPORTED;
}

/* What holds for every answer of every engine. */
static inline void check_answer(const ratelimit_result *res, bool returned)
{
    CHECK(returned == res->allowed);
    CHECK(res->allowed == (res->status == RATELIMIT_OK));
    CHECK(res->remaining <= res->burst);
    if (res->allowed)
        CHECK_U64(res->retry_after_ns, 0);
    if (res->status == RATELIMIT_DENIED || res->status == RATELIMIT_TIMEOUT)
        CHECK(res->retry_after_ns >= 1 && res->retry_after_ns != FOREVER);
    if (res->status == RATELIMIT_NEVER)
        CHECK_U64(res->retry_after_ns, FOREVER);
    if (status_is_bad(res->status))
        CHECK(!res->burst && !res->remaining && !res->taken && !res->retry_after_ns &&
              !res->reset_after_ns && !res->wait_ns);
    if (!res->allowed)
        CHECK_U64(res->taken, 0);
}

/* Where threads cannot share a bucket, there is nothing to try but the plain one. */
#if !defined(RATELIMIT_PRIV_SHARED)
#  define ratelimit_bucket_take_shared   ratelimit_bucket_take
#  define ratelimit_bucket_decide_shared ratelimit_bucket_decide
#endif

static inline bool same_result(const ratelimit_result *a, const ratelimit_result *b)
{
    return a->allowed == b->allowed && a->status == b->status && a->burst == b->burst &&
           a->remaining == b->remaining && a->taken == b->taken &&
           a->retry_after_ns == b->retry_after_ns && a->reset_after_ns == b->reset_after_ns &&
           a->wait_ns == b->wait_ns && a->source == b->source;
}

static inline bool same_bucket(const ratelimit_bucket *a, const ratelimit_bucket *b)
{
    return a->full_ns == b->full_ns && a->rest == b->rest;
}

/* A take has a quick way, with and without a result; both must come to the same answer and the same
 * state as the general way. */
static inline bool bucket_take_every_way(engine *e, const ratelimit_request *req, uint64_t now_ns,
                                         ratelimit_result *res)
{
    bool (*way)(ratelimit_bucket *, const ratelimit_limit *, uint64_t, uint64_t,
                ratelimit_result *) = ratelimit_bucket_take;
    ratelimit_bucket general = e->bucket, silent = e->bucket;
    ratelimit_result slow;
    bool allowed;
    memset(&slow, 0xA5, sizeof slow);
    if (e->kind == ENGINE_SHARED)
        way = ratelimit_bucket_take_shared;
    allowed = way(&e->bucket, req->limit, req->n, now_ns, res);
    CHECK(allowed == way(&silent, req->limit, req->n, now_ns, NULL));
    CHECK(allowed == ratelimit_bucket_decide(&general, req, now_ns, &slow));
    CHECK(same_result(res, &slow));
    CHECK(same_bucket(&e->bucket, &general) && same_bucket(&e->bucket, &silent));
    return allowed;
}

static inline ratelimit_result engine_decide(engine *e, const ratelimit_request *req,
                                             uint64_t now_ns)
{
    ratelimit_result res;
    bool returned = false;
    memset(&res, 0xA5, sizeof res); /* a field that is not set shows up */
    res.allowed = false;
    e->now_ns = now_ns;
    switch (e->kind) {
    case ENGINE_BUCKET:
        returned = req->op == RATELIMIT_TAKE
                       ? bucket_take_every_way(e, req, now_ns, &res)
                       : ratelimit_bucket_decide(&e->bucket, req, now_ns, &res);
        break;
    case ENGINE_SHARED:
        returned = req->op == RATELIMIT_TAKE
                       ? bucket_take_every_way(e, req, now_ns, &res)
                       : ratelimit_bucket_decide_shared(&e->bucket, req, now_ns, &res);
        break;
    case ENGINE_TABLE:
        returned = ratelimit_table_decide_one(e->table, req, now_ns, &res);
        break;
    case ENGINE_CAS:
        e->store.decide(&e->store, req, &res, 1, RATELIMIT_EACH);
        returned = res.allowed;
        break;
    case ENGINE_LIMITER:
        returned = ratelimit_take(&e->limiter, req, &res);
        break;
    case ENGINES:
    default:
        exit(2);
    }
    check_answer(&res, returned);
    return res;
}

/* One request of the engine's one key. A reservation may wait for ever. */
static inline ratelimit_result ask(engine *e, const ratelimit_limit *limit, ratelimit_op op,
                                   uint64_t n, uint64_t now_ns)
{
    ratelimit_request req;
    memset(&req, 0, sizeof req);
    req.key = engine_key;
    req.key_len = sizeof engine_key;
    req.limit = limit;
    req.n = n;
    req.op = op;
    req.max_wait_ns = op == RATELIMIT_RESERVE ? FOREVER : 0;
    return engine_decide(e, &req, now_ns);
}

/* The commonest check of all. */
static inline bool take(engine *e, const ratelimit_limit *limit, uint64_t n, uint64_t now_ns)
{
    return ask(e, limit, RATELIMIT_TAKE, n, now_ns).allowed;
}

/* Names the engine and the base in a fault's line; place_end puts the test's name back. */
static const char *place_test;

static inline void place(const char *engine_name, uint64_t base_ns, size_t row)
{
    static char text[256];
    if (!place_test)
        place_test = check_name;
    snprintf(text, sizeof text, "%s [%s, base %" PRIu64 ", row %d]", place_test, engine_name,
             base_ns, (int)row);
    check_name = text;
}

static inline void place_end(void)
{
    if (place_test)
        check_name = place_test;
    place_test = NULL;
}

/* A window is what cannot be reserved. */
static inline bool is_window(const ratelimit_limit *limit)
{
    ratelimit_bucket b = {0, 0};
    ratelimit_request req;
    ratelimit_result res;
    memset(&req, 0, sizeof req);
    req.limit = limit;
    req.n = 1;
    req.op = RATELIMIT_RESERVE;
    ratelimit_bucket_decide(&b, &req, 0, &res);
    return res.status == RATELIMIT_UNSUPPORTED;
}

/* The bases every vector is run at: the clock's origin, 10^9 s after it, as near its top as a
 * vector of span_ns allows, and so that the clock passes its top within the vector. Windows are
 * aligned to the origin, so their bases are whole periods, and none of them passes the top. */
#define BASES 4

static inline uint64_t base_at(int i, uint64_t span_ns, const ratelimit_limit *limit)
{
    uint64_t base = i == 0 ? 0 : i == 1 ? UINT64_C(1000000000) * SEC : UINT64_MAX - span_ns;
    if (is_window(limit))
        return base - base % limit->per_ns;
    return i == 3 ? base + span_ns / 2 : base;
}

/* Tests of what needs atomics, or the caller's lock: counted as skipped in a build without. */
#if RATELIMIT_PRIV_ATOMIC || defined(RATELIMIT_LOCK)
#  define RUN_THREADED(test) RUN(test)
#else
#  define RUN_THREADED(test) ((void)(test), SKIP(test, "built without threads"))
#endif

/* ---- vectors --------------------------------------------------------------------------------- */

#define ANY (UINT64_MAX - 1) /* this number is not looked at */

/* One row: at a time after the base, an operation of n tokens and what it must answer. */
typedef struct step {
    uint64_t at_ns;
    ratelimit_op op;
    uint64_t n;
    ratelimit_status status;
    uint64_t remaining;
    uint64_t retry_ns; /* of a reservation: its wait */
} step;

static inline void check_step(engine *e, const ratelimit_limit *limit, const step *s, uint64_t base)
{
    ratelimit_result res = ask(e, limit, s->op, s->n, base + s->at_ns);
    CHECK_TEXT(ratelimit_status_text(res.status), ratelimit_status_text(s->status));
    if (s->remaining != ANY)
        CHECK_U64(res.remaining, s->remaining);
    if (s->retry_ns != ANY && s->op == RATELIMIT_RESERVE && res.allowed)
        CHECK_U64(res.wait_ns, s->retry_ns);
    else if (s->retry_ns != ANY)
        CHECK_U64(res.retry_after_ns, s->retry_ns);
}

/* The rows in order, on every engine, at every base. */
static inline void replay(const ratelimit_limit *limit, const step *steps, size_t count)
{
    static engine e;
    uint64_t span = 0;
    size_t i;
    int kind, base;
    for (i = 0; i < count; i++)
        span = steps[i].at_ns > span ? steps[i].at_ns : span;
    for (kind = 0; kind < ENGINES; kind++)
        for (base = 0; base < BASES; base++) {
            uint64_t start = base_at(base, span, limit);
            engine_start(&e, (engine_kind)kind);
            for (i = 0; i < count; i++) {
                place(engine_names[kind], start, i);
                check_step(&e, limit, &steps[i], start);
            }
        }
    place_end();
}

#define REPLAY(limit, steps) replay(limit, steps, COUNT(steps))

/* ---- waiting without waiting ----------------------------------------------------------------- */

/* A clock with a sleep that moves it. */
typedef struct sleeper {
    uint64_t now_ns;
    uint64_t early_ns;                /* wakes this much too early */
    uint64_t cut;                     /* above 1: sleeps only one cut-th of the time */
    uint64_t sleeps;                  /* calls */
    uint64_t slept_ns;                /* asked for, in total */
    uint64_t shortest_ns, longest_ns; /* of the sleeps asked for */
    uint64_t cancel_after; /* this many sleeps are slept to the end, the next is cancelled */
} sleeper;

static inline void sleeper_start(sleeper *s, uint64_t now_ns)
{
    memset(s, 0, sizeof *s);
    s->now_ns = now_ns;
    s->shortest_ns = UINT64_MAX;
    s->cancel_after = 1000; /* a loop that never ends is a fault, not a hang */
}

static inline bool sleeper_sleep(void *self, uint64_t ns)
{
    sleeper *s = (sleeper *)self;
    s->sleeps++;
    s->slept_ns += ns;
    s->shortest_ns = ns < s->shortest_ns ? ns : s->shortest_ns;
    s->longest_ns = ns > s->longest_ns ? ns : s->longest_ns;
    if (s->sleeps > s->cancel_after)
        return false;
    if (s->cut)
        ns = ns / s->cut + 1;
    s->now_ns += ns > s->early_ns ? ns - s->early_ns : 0;
    return true;
}

/* A store that is nothing but a function. */
static inline ratelimit_store
store_of(void (*decide)(const ratelimit_store *store, const ratelimit_request *req,
                        ratelimit_result *res, size_t count, ratelimit_mode mode),
         void *self)
{
    ratelimit_store store;
    memset(&store, 0, sizeof store);
    store.self = self;
    store.decide = decide;
    return store;
}

/* A limiter over the store that sleeps with s; the store must read the same clock. */
static inline void limiter_start(ratelimit_limiter *l, ratelimit_store store, sleeper *s)
{
    memset(l, 0, sizeof *l);
    l->sleep = sleeper_sleep;
    l->sleep_self = s;
    l->clock = clock_read;
    l->clock_self = &s->now_ns;
    if (ratelimit_init(l, store) != RATELIMIT_OK)
        exit(2);
}

/* One token, or n, of the key that is this text. */
static inline ratelimit_request request(const char *key, const ratelimit_limit *limit, uint64_t n)
{
    ratelimit_request req;
    memset(&req, 0, sizeof req);
    req.key = key;
    req.key_len = key ? strlen(key) : 0;
    req.limit = limit;
    req.n = n;
    return req;
}

#endif

/* bench_redis.c - what decisions on Redis cost, as ratios to rows of the same run. Run it by:
 * tests/redis/run.sh bench [ROUNDS]
 *
 * Rows are interleaved round by round, and the median of each is taken: absolute numbers of a
 * shared machine move by half, their ratios do not. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_ASYNC
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "server.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#define KEYS        1000
#define FLIGHT      64
#define MOST_ROUNDS 61

static const ratelimit_limit plenty = RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit seventh = RATELIMIT_LIMIT(7000001, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit window = RATELIMIT_WINDOW(1000000000, RATELIMIT_DAY);
static const ratelimit_limit one = RATELIMIT_LIMIT(1, RATELIMIT_HOUR, 1);
static ratelimit_redis *redis;
static ratelimit_store store;
static char keys[KEYS][16], refused_keys[KEYS][16], fraction_keys[KEYS][16], window_keys[KEYS][16];
static int rounds = 21;

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct row {
    const char *name;
    void (*run)(void); /* some calls */
    double decisions;  /* in each run */
    double rate[MOST_ROUNDS];
    double server_us[MOST_ROUNDS]; /* of the server's main thread */
    double script_us[MOST_ROUNDS]; /* of it, in scripts (INFO commandstats) */
    double client_us[MOST_ROUNDS];
} row;

#define ROW(name, run, decisions)                                                                  \
  {                                                                                                \
    name, run, decisions, {0}, {0}, {0},                                                           \
    {                                                                                              \
      0                                                                                            \
    }                                                                                              \
  }

static size_t next_key;

static const char *any_key(char (*from)[16])
{
    next_key = (next_key + 389) % KEYS;
    return from[next_key];
}

static void decide(ratelimit_request *q, size_t count, ratelimit_mode mode, bool allowed)
{
    static ratelimit_result res[FLIGHT];
    size_t i;
    store.decide(&store, q, res, count, mode);
    for (i = 0; i < count; i++)
        if (res[i].allowed != allowed) {
            fprintf(stderr, "decided otherwise: %s, %s\n", ratelimit_status_text(res[i].status),
                    server_error(redis));
            exit(1);
        }
}

/* ---- 64 commands in flight all the time, on one connection ----------------------------------- */

/* A command under way, and all it needs. A batch of 16 keys is one command. */
typedef struct flying {
    ratelimit_priv_redis_entry entry[16];
    ratelimit_priv_redis_ask ask;
    ratelimit_request q[16];
    ratelimit_result res[16];
} flying;

static flying flights[FLIGHT];
static char one_sha[41];

/* What is asked: NULL for the script that only returns 1. */
static const ratelimit_limit *flight_limit;
static char (*flight_keys)[16];
static size_t flight_batch;
static bool flight_allowed;

static void flight_put(ratelimit_priv_redis_conn *conn, flying *f)
{
    size_t i;
    if (flight_limit == NULL) {
        ratelimit_request q = server_request(any_key(keys), &plenty, RATELIMIT_TAKE, 1);
        ratelimit_priv_redis_name name;
        ratelimit_priv_redis_name_bucket(&name, &q);
        ratelimit_priv_redis_put_size(conn, '*', 4);
        ratelimit_priv_redis_put_text(conn, "EVALSHA");
        ratelimit_priv_redis_put_arg(conn, one_sha, 40);
        ratelimit_priv_redis_put_u64(conn, 1);
        ratelimit_priv_redis_put_name(redis, conn, &name);
        return;
    }
    for (i = 0; i < flight_batch; i++) {
        f->q[i] = server_request(any_key(flight_keys), flight_limit, RATELIMIT_TAKE, 1);
        ratelimit_priv_redis_prepare(&f->entry[i], &f->q[i], &f->res[i]);
    }
    ratelimit_priv_redis_start(redis, &f->ask, f->entry, flight_batch, flight_batch > 1, 0);
    f->ask.call.build(&f->ask.call, conn);
}

static void flight_check(flying *f, const redisReply *reply)
{
    size_t i;
    if (reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "%s\n", reply->str);
        exit(1);
    }
    if (flight_limit == NULL)
        return;
    if (!f->ask.call.answer(&f->ask.call, reply))
        exit(1);
    for (i = 0; i < flight_batch; i++)
        if (f->res[i].allowed != flight_allowed)
            exit(1);
}

/* `count` commands, `most` at once: as soon as `some` are answered, as many more are sent. */
static void fly(size_t count, size_t most, size_t some)
{
    static redisContext *c;
    static ratelimit_priv_redis_conn conn; /* only what is built in it */
    size_t sent = 0, answered = 0;
    if (c == NULL)
        c = redisConnect("127.0.0.1", server_port());
    if (c == NULL || c->err)
        exit(1);
    while (answered < count) {
        if (sent < count && sent - answered <= most - some) {
            while (sent < count && sent - answered < most)
                flight_put(&conn, &flights[sent++ % FLIGHT]);
            if (redisAppendFormattedCommand(c, conn.out, conn.out_len) != REDIS_OK)
                exit(1);
            conn.out_len = 0;
        }
        do {
            void *reply = NULL;
            if (redisGetReply(c, &reply) != REDIS_OK)
                exit(1);
            flight_check(&flights[answered++ % FLIGHT], (const redisReply *)reply);
            freeReplyObject(reply);
        } while (answered < count && (sent - answered > most - some || sent == count));
    }
}

static void flight(const ratelimit_limit *limit, char (*from)[16], size_t batch, bool allowed)
{
    flight_limit = limit;
    flight_keys = from;
    flight_batch = batch;
    flight_allowed = allowed;
    fly(2000 / batch, FLIGHT, FLIGHT / 4);
}

static void only_returns_1(void)
{
    flight(NULL, keys, 1, true);
}
static void allowed_64(void)
{
    flight(&plenty, keys, 1, true);
}
static void fraction_64(void)
{
    flight(&seventh, fraction_keys, 1, true);
}
static void window_64(void)
{
    flight(&window, window_keys, 1, true);
}
static void refused_64(void)
{
    flight(&one, refused_keys, 1, false);
}
static void sixteen_in_one(void)
{
    flight(&plenty, keys, 16, true);
}
static void sixteen_pipelined(void)
{
    flight_limit = &plenty;
    flight_keys = keys;
    flight_batch = 1;
    flight_allowed = true;
    fly(2000, 16, 16);
}

/* ---- as callers ask -------------------------------------------------------------------------- */

enum { PIPELINED = 6400 };

static void each(size_t count)
{
    ratelimit_request q[FLIGHT];
    size_t i, n;
    for (n = 0; n < PIPELINED / count; n++) {
        for (i = 0; i < count; i++)
            q[i] = server_request(any_key(keys), &plenty, RATELIMIT_TAKE, 1);
        decide(q, count, RATELIMIT_EACH, true);
    }
}
static void each_64(void)
{
    each(64);
}
static void each_16(void)
{
    each(16);
}
static void all_16(void)
{
    ratelimit_request q[16];
    size_t i, n;
    for (n = 0; n < PIPELINED / 16; n++) {
        for (i = 0; i < 16; i++)
            q[i] = server_request(any_key(keys), &plenty, RATELIMIT_TAKE, 1);
        decide(q, 16, RATELIMIT_ALL, true);
    }
}

static void one_at_a_time(void)
{
    ratelimit_request q;
    size_t n;
    for (n = 0; n < 200; n++) {
        q = server_request(any_key(keys), &plenty, RATELIMIT_TAKE, 1);
        decide(&q, 1, RATELIMIT_EACH, true);
    }
}

/* ---- as on an event loop: 64 calls under way, each answer makes another ---------------------- */

static ratelimit_redis_async *async;
static int async_fd;
static unsigned async_events;
static size_t async_left;

static int async_watch(void *self, int fd, unsigned events, void **yours)
{
    (void)self, (void)yours;
    async_fd = fd;
    async_events = events;
    return 0;
}

static void async_take(void);

static void async_answered(void *self, const ratelimit_result *res, size_t count)
{
    (void)self, (void)count;
    if (!res->allowed)
        exit(1);
    if (async_left)
        async_take();
}

static void async_take(void)
{
    ratelimit_request q = server_request(any_key(keys), &plenty, RATELIMIT_TAKE, 1);
    async_left--;
    if (ratelimit_redis_async_take(async, &q, async_answered, async) != RATELIMIT_OK)
        exit(1);
}

static void async_64(void)
{
    int i;
    async_left = PIPELINED;
    for (i = 0; i < FLIGHT; i++)
        async_take();
    while (ratelimit_redis_async_under_way(async)) {
        struct pollfd p;
        p.fd = async_fd;
        p.events = (short)((async_events & RATELIMIT_REDIS_READ ? POLLIN : 0) |
                           (async_events & RATELIMIT_REDIS_WRITE ? POLLOUT : 0));
        if (poll(&p, 1, 1000) != 1)
            exit(1);
        ratelimit_redis_async_ready(async, async_fd,
                                    (p.revents & POLLIN ? RATELIMIT_REDIS_READ : 0u) |
                                        (p.revents & POLLOUT ? RATELIMIT_REDIS_WRITE : 0u));
    }
}

static void async_prepare(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis_loop loop;
    memset(&loop, 0, sizeof loop);
    loop.watch = async_watch;
    options.timeout_ms = 5000;
    async = ratelimit_redis_async_open(&options, &loop, NULL);
    if (async == NULL)
        exit(1);
}

static row rows[] = {ROW("a script that only returns 1", only_returns_1, 2000),
                     ROW("allowed", allowed_64, 2000),
                     ROW("refused", refused_64, 2000),
                     ROW("allowed, interval with a fraction", fraction_64, 2000),
                     ROW("allowed, fixed window", window_64, 2000),
                     ROW("allowed, 16 keys in one call", sixteen_in_one, 2000),
                     ROW("allowed, 16 calls in a pipeline", sixteen_pipelined, 2000),
                     ROW("ratelimit_take_all of 16", all_16, PIPELINED),
                     ROW("64 in flight on an event loop", async_64, PIPELINED),
                     ROW("ratelimit_take_each of 16", each_16, PIPELINED),
                     ROW("ratelimit_take_each of 64", each_64, PIPELINED),
                     ROW("ratelimit_take, one at a time", one_at_a_time, 200)};
enum { ROWS = sizeof rows / sizeof rows[0] };

static int by_value(const void *a, const void *b)
{
    const double *x = (const double *)a, *y = (const double *)b;
    return (*x > *y) - (*x < *y);
}

static double median(double *values)
{
    qsort(values, (size_t)rounds, sizeof values[0], by_value);
    return values[rounds / 2];
}

/* ns that the server's main thread was on a processor; 0 where there is no /proc. */
static double server_ns(void)
{
    char path[64];
    double ns = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%d/schedstat", server_number("REDIS_PID"));
    file = fopen(path, "r");
    if (file && fscanf(file, "%lf", &ns) != 1)
        ns = 0;
    if (file)
        fclose(file);
    return ns;
}

static double scripts_us(void)
{
    redisReply *reply = server_ask(server_port(), "INFO commandstats");
    const char *at = reply && reply->str ? strstr(reply->str, "cmdstat_evalsha:calls=") : NULL;
    double us = at ? atof(strchr(at, ',') + strlen(",usec=")) : 0;
    if (reply)
        freeReplyObject(reply);
    return us;
}

static void measure(row *r, int round)
{
    double scripts = scripts_us(), before = server_ns();
    clock_t cpu = clock();
    uint64_t start = ratelimit_clock_ns(), ns;
    r->run();
    ns = ratelimit_clock_ns() - start;
    r->client_us[round] = (double)(clock() - cpu) * 1e6 / CLOCKS_PER_SEC / r->decisions;
    r->server_us[round] = (server_ns() - before) / 1000 / r->decisions;
    r->script_us[round] = (scripts_us() - scripts) / r->decisions;
    r->rate[round] = r->decisions * 1e9 / (double)(ns ? ns : 1);
}

/* ---- the tier in front of Redis, one thread -------------------------------------------------- */

/* Few in a run, so that most runs end before the processor is given to another. */
enum { TIER_CALLS = 20, TIER_REFUSALS = 10000 };

/* 1% of the burst is a lease; the rate is more than one thread can take. */
static const ratelimit_limit of_100 = RATELIMIT_LIMIT(100000000, RATELIMIT_SECOND, 10000);
static const ratelimit_limit of_1000 = RATELIMIT_LIMIT(100000000, RATELIMIT_SECOND, 100000);
static unsigned char tier_memory[RATELIMIT_TABLE_BYTES(100)];
static ratelimit_tier tier;

static uint64_t tier_calls(void)
{
    ratelimit_tier_counts counts;
    ratelimit_tier_stats(&tier, &counts);
    return counts.calls;
}

static void tier_takes(const char *key, const ratelimit_limit *limit, bool allowed, size_t count)
{
    ratelimit_store far = ratelimit_tier_store(&tier);
    ratelimit_request q = server_request(key, limit, RATELIMIT_TAKE, 1);
    ratelimit_result res;
    while (count--) {
        far.decide(&far, &q, &res, 1, RATELIMIT_EACH);
        if (res.allowed != allowed || res.status == RATELIMIT_STORE_FAILED) {
            fprintf(stderr, "tier decided otherwise: %s\n", ratelimit_status_text(res.status));
            exit(1);
        }
    }
}

/* Leases grow by demand, and shrink while other rows run: brings them back to their largest, and to
 * a moment at which the store has just been asked. */
static void tier_grow(const char *key, const ratelimit_limit *limit)
{
    size_t largest = (size_t)limit->burst / 100;
    uint64_t before;
    tier_takes(key, limit, true, 4 * largest);
    before = tier_calls();
    while (tier_calls() == before)
        tier_takes(key, limit, true, 1);
}

static void refused_here(void)
{
    tier_takes("refused", &one, false, TIER_REFUSALS);
}
static void refused_before(void)
{
    tier_takes("refused", &one, false, 1000); /* the first asks again what was known too long */
}
static void leases_of_100(void)
{
    tier_takes("of 100", &of_100, true, 100 * TIER_CALLS);
}
static void leases_of_100_before(void)
{
    tier_grow("of 100", &of_100);
}
static void leases_of_1000(void)
{
    tier_takes("of 1000", &of_1000, true, 1000 * TIER_CALLS);
}
static void leases_of_1000_before(void)
{
    tier_grow("of 1000", &of_1000);
}

typedef struct tier_row {
    row r;
    void (*before)(void); /* not measured */
    double aim;           /* times the rate of one at a time */
    double most_calls;    /* of the store, per 1,000 decisions */
    double calls[MOST_ROUNDS];
} tier_row;

static tier_row tier_rows[] = {
    {ROW("refused, from the cache", refused_here, TIER_REFUSALS), refused_before, 1000, 0, {0}},
    {ROW("leases of 100 tokens", leases_of_100, 100 * TIER_CALLS),
     leases_of_100_before,
     90,
     10,
     {0}},
    {ROW("leases of 1,000 tokens", leases_of_1000, 1000 * TIER_CALLS),
     leases_of_1000_before,
     600,
     1,
     {0}}};
enum { TIER_ROWS = sizeof tier_rows / sizeof tier_rows[0] };

static void tier_prepare(void)
{
    tier.store = store;
    tier.lease_percent = 1;
    if (ratelimit_table_init(&tier.table, tier_memory, sizeof tier_memory, NULL) != RATELIMIT_OK)
        exit(1);
    server_take(redis, "refused", &one, 1);
}

static void tier_measure(tier_row *t, int round)
{
    uint64_t calls;
    t->before();
    calls = tier_calls();
    measure(&t->r, round);
    t->calls[round] = (double)(tier_calls() - calls) * 1000 / t->r.decisions;
}

static const char *reached(bool good)
{
    return good ? "reached" : "NOT REACHED";
}

/* Of medians, direct being that of one at a time. */
static void tier_report(double direct)
{
    int i;
    printf("the tier, one thread, to ratelimit_take of Redis, one at a time (%.0f/s):\n", direct);
    for (i = 0; i < TIER_ROWS; i++) {
        tier_row *t = &tier_rows[i];
        double rate = median(t->r.rate), calls = median(t->calls);
        double client_ns = median(t->r.client_us) * 1000;
        printf("    %-23s %9.0f/s, client %4.0f ns: %4.0f times, at least %4.0f: %s\n", t->r.name,
               rate, client_ns, rate / direct, t->aim, reached(rate >= t->aim * direct));
        printf("        store calls per 1,000 decisions: %.2f, at most %.0f: %s\n", calls,
               t->most_calls, reached(calls <= t->most_calls));
    }
}

/* ---- Node ------------------------------------------------------------------------------------ */

/* What bench_node.js measures, in turn with our rows. */
static FILE *node_to, *node_from;
static pid_t node_pid;
static row node_rows[] = {ROW("one at a time", NULL, 200), ROW("64 in flight", NULL, PIPELINED)};
static const int node_flights[] = {1, 64};

static void node_begin(void)
{
    const char *command = getenv("NODE_BENCH");
    int to[2], from[2];
    if (command == NULL || pipe(to) != 0 || pipe(from) != 0)
        return;
    signal(SIGPIPE, SIG_IGN); /* if it ends, the rows say so */
    node_pid = fork();
    if (node_pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    node_to = fdopen(to[1], "w");
    node_from = fdopen(from[0], "r");
}

static void node_end(void)
{
    if (!node_to)
        return;
    fclose(node_to);
    fclose(node_from);
    node_to = NULL;
    waitpid(node_pid, NULL, 0);
}

static void node_measure(int round)
{
    int i;
    for (i = 0; i < 2 && node_to; i++) {
        row *r = &node_rows[i];
        double scripts = scripts_us(), before = server_ns();
        fprintf(node_to, "%d %.0f\n", node_flights[i], r->decisions);
        fflush(node_to);
        if (fscanf(node_from, "%lf %lf", &r->rate[round], &r->client_us[round]) != 2)
            node_end();
        r->server_us[round] = (server_ns() - before) / 1000 / r->decisions;
        r->script_us[round] = (scripts_us() - scripts) / r->decisions;
    }
}

static void node_report(void)
{
    static const double aims[] = {1, 2};
    row *ours[2];
    int i;
    if (!node_to) {
        printf("rate-limiter-flexible: not measured (%s)\n",
               getenv("NODE_BENCH") ? "it failed" : "NODE_PATH does not lead to it and ioredis");
        return;
    }
    ours[0] = &rows[ROWS - 1];
    ours[1] = &rows[ROWS - 2];
    printf("ours, to npm's rate-limiter-flexible with ioredis:\n");
    for (i = 0; i < 2; i++) {
        row *theirs = &node_rows[i];
        double rate = median(ours[i]->rate) / median(theirs->rate);
        double cpu = median(theirs->client_us) / median(ours[i]->client_us);
        printf("    %-13s %6.0f/s to %6.0f/s: %.2f times, at least %.0f: %s\n", theirs->name,
               median(ours[i]->rate), median(theirs->rate), rate, aims[i],
               reached(rate >= aims[i]));
        printf("        client %.2f us to %.2f us: %.1f times less%s\n", median(ours[i]->client_us),
               median(theirs->client_us), cpu,
               i == 0      ? ""
               : cpu >= 10 ? ", at least 10: reached"
                           : ", at least 10: NOT REACHED");
        printf("        server %.2f us to %.2f us, of it scripts %.2f us to %.2f us\n",
               median(ours[i]->server_us), median(theirs->server_us), median(ours[i]->script_us),
               median(theirs->script_us));
    }
    printf("    the same 64 as calls of their own on an event loop: %.2f times\n",
           median(rows[ROWS - 4].rate) / median(node_rows[1].rate));
    node_end();
}

/* ---- memory and replication ------------------------------------------------------------------ */

static void bytes(void)
{
    static const ratelimit_limit large = RATELIMIT_LIMIT(1, RATELIMIT_HOUR, 100000);
    static const char key[] = "sixteen bytes...";
    long long plain, before, after, refused;
    int i, n = 2000;
    server_flush();
    server_take(redis, key, &one, 1);
    plain = server_int(server_port(), "MEMORY USAGE ratelimit:b{%s}%08x", key, (unsigned)one.scope);
    printf("memory per key of 16 bytes, with prefix, kind and scope: %lld bytes (MEMORY USAGE)\n",
           plain);
    server_do(server_port(), "CONFIG SET appendonly yes");
    while (server_info(server_port(), "aof_rewrite_in_progress") != 0 ||
           server_info(server_port(), "aof_enabled") != 1)
        server_sleep_ms(10);
    server_take(redis, keys[0], &large, 1); /* so that the database is selected in the log */
    before = server_info(server_port(), "aof_current_size");
    for (i = 0; i < n; i++)
        server_take(redis, keys[i % KEYS], &large, 1);
    after = server_info(server_port(), "aof_current_size");
    for (i = 0; i < n; i++)
        server_take(redis, key, &one, 1);
    refused = server_info(server_port(), "aof_current_size");
    server_do(server_port(), "CONFIG SET appendonly no");
    printf("replicated and logged: %.1f bytes per allowed decision, %.1f per refused one\n",
           (double)(after - before) / n, (double)(refused - after) / n);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREAD_TAKES = 400 };

static void *thread_run(void *self)
{
    double *us = (double *)self;
    int i;
    for (i = 0; i < THREAD_TAKES; i++) {
        uint64_t start = ratelimit_clock_ns();
        if (!server_take(redis, keys[(i * 7) % KEYS], &plenty, 1).allowed)
            exit(1);
        us[i] = (double)(ratelimit_clock_ns() - start) / 1000;
    }
    return NULL;
}

static void threads(int count)
{
    static double us[32 * THREAD_TAKES];
    pthread_t thread[32];
    uint64_t start = ratelimit_clock_ns();
    double seconds;
    int i, all = count * THREAD_TAKES;
    for (i = 0; i < count; i++)
        if (pthread_create(&thread[i], NULL, thread_run, us + i * THREAD_TAKES) != 0)
            exit(1);
    for (i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
    seconds = (double)(ratelimit_clock_ns() - start) / 1e9;
    qsort(us, (size_t)all, sizeof us[0], by_value);
    printf("%2d threads: %6.0f decisions/s, p50 %5.0f us, p99 %5.0f us\n", count, all / seconds,
           us[all / 2], us[all * 99 / 100]);
}

/* ---- waiting --------------------------------------------------------------------------------- */

enum { WAITERS = 80 };

typedef struct waiter {
    ratelimit_limiter *limiter;
    bool polls;
} waiter;

static ratelimit_store can_not_reserve;

static void decide_without_reserve(const ratelimit_store *self, const ratelimit_request *req,
                                   ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    if (req->op == RATELIMIT_RESERVE) {
        memset(res, 0, sizeof *res);
        res->status = RATELIMIT_UNSUPPORTED;
        return;
    }
    store.decide(self, req, res, count, mode);
}

static void *waiter_run(void *self)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(100, RATELIMIT_SECOND, 1);
    ratelimit_request q = server_request("waited for", &limit, RATELIMIT_TAKE, 1);
    if (!ratelimit_wait((ratelimit_limiter *)self, &q, RATELIMIT_FOREVER, NULL))
        exit(1);
    return NULL;
}

/* Round trips for 80 waiters at 100 per second. */
static void waiters(const char *name, ratelimit_store how)
{
    pthread_t thread[WAITERS];
    ratelimit_limiter limiter;
    uint64_t start = ratelimit_clock_ns();
    int i;
    memset(&limiter, 0, sizeof limiter);
    if (ratelimit_init(&limiter, how) != RATELIMIT_OK)
        exit(1);
    server_flush();
    server_do(server_port(), "CONFIG RESETSTAT");
    for (i = 0; i < WAITERS; i++)
        if (pthread_create(&thread[i], NULL, waiter_run, &limiter) != 0)
            exit(1);
    for (i = 0; i < WAITERS; i++)
        pthread_join(thread[i], NULL);
    printf("%d waiters, 100/s, by %s: %lld round trips, all through after %.2f s\n", WAITERS, name,
           server_scripts(server_port()), (double)(ratelimit_clock_ns() - start) / 1e9);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void prepare(void)
{
    ratelimit_redis_options options = server_options();
    redisReply *reply;
    int i;
    options.timeout_ms = 5000;
    options.pool_size = 32;
    redis = server_open(&options);
    store = ratelimit_redis_store(redis);
    server_flush();
    reply = server_ask(server_port(), "SCRIPT LOAD %s", "return 1");
    snprintf(one_sha, sizeof one_sha, "%s", reply->str);
    freeReplyObject(reply);
    for (i = 0; i < KEYS; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        snprintf(fraction_keys[i], sizeof fraction_keys[i], "f%d", i);
        snprintf(window_keys[i], sizeof window_keys[i], "w%d", i);
        snprintf(refused_keys[i], sizeof refused_keys[i], "r%d", i);
        server_take(redis, refused_keys[i], &one, 1);
    }
    server_take(redis, keys[0], &plenty, 1); /* so that the scripts are there */
    server_take(redis, window_keys[0], &window, 1);
    tier_prepare();
    async_prepare();
}

int main(int argc, char **argv)
{
    double rate[ROWS], us[ROWS];
    int i, j;
    if (argc > 1)
        rounds = atoi(argv[1]);
    if (rounds < 1 || rounds > MOST_ROUNDS)
        rounds = 21;
    prepare();
    node_begin();
    for (j = -1; j < rounds; j++) {
        for (i = 0; i < ROWS; i++)
            measure(&rows[i], j < 0 ? 0 : j);
        for (i = 0; i < TIER_ROWS; i++)
            tier_measure(&tier_rows[i], j < 0 ? 0 : j);
        node_measure(j < 0 ? 0 : j);
    }
    printf("of each decision, us:                                           server  scripts  "
           "client\n");
    for (i = 0; i < ROWS; i++) {
        rate[i] = median(rows[i].rate);
        us[i] = median(rows[i].server_us);
        printf("%-36s %8.0f/s  ratio %.2f  %6.2f   %6.2f  %6.2f\n", rows[i].name, rate[i],
               rate[i] / rate[0], us[i], median(rows[i].script_us), median(rows[i].client_us));
    }
    printf("ratios to a script that only returns 1, in decisions/s (in the server's time):\n");
    printf("    allowed %.2f (%.2f), at least 0.33: %s\n", rate[1] / rate[0], us[0] / us[1],
           reached(rate[1] >= rate[0] / 3));
    printf("    refused %.2f (%.2f), at least 0.48: %s\n", rate[2] / rate[0], us[0] / us[2],
           reached(rate[2] >= rate[0] * 0.48));
    printf("16 keys in one call to 16 pipelined calls: %.2f, at least 2.5: %s\n", rate[5] / rate[6],
           reached(rate[5] >= 2.5 * rate[6]));
    printf("    to 64 calls always in flight: %.2f; one such at a time: %.2f\n", rate[5] / rate[1],
           rate[7] / rate[6]);
    printf("    in the server's time: %.2f, %.2f, %.2f\n", us[6] / us[5], us[1] / us[5],
           us[6] / us[7]);
    tier_report(rate[ROWS - 1]);
    node_report();
    bytes();
    threads(4);
    threads(16);
    threads(32);
    can_not_reserve = store;
    can_not_reserve.decide = decide_without_reserve;
    waiters("polling", can_not_reserve);
    waiters("reserving", store);
    ratelimit_redis_async_close(async);
    ratelimit_redis_close(redis);
    return 0;
}

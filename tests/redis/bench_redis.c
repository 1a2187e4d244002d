/* bench_redis.c - what decisions on Redis cost, as ratios to rows of the same run. run_bench.sh starts the server.
 *
 * Rows are interleaved round by round, and the median of each is taken: absolute numbers of a shared machine move by
 * half, their ratios do not. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "server.h"

#include <pthread.h>

#define KEYS        1000
#define FLIGHT      64
#define MOST_ROUNDS 61

static const ratelimit_limit plenty = RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit seventh = RATELIMIT_LIMIT(7000001, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit window = RATELIMIT_WINDOW(1000000000, RATELIMIT_DAY);
static const ratelimit_limit one = RATELIMIT_LIMIT(1, RATELIMIT_HOUR, 1);
static ratelimit_redis *redis;
static ratelimit_store store;
static char keys[KEYS][16], refused_keys[KEYS][16];
static int rounds = 21;

/* ---- rows ----------------------------------------------------------------------------------------------------- */

typedef struct row {
    const char *name;
    void (*run)(void); /* some calls */
    double decisions;  /* in each run */
    double rate[MOST_ROUNDS];
    double server_us[MOST_ROUNDS];
} row;

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
    store.decide(store.self, q, res, count, mode);
    for (i = 0; i < count; i++)
        if (res[i].allowed != allowed) {
            fprintf(stderr, "decided otherwise: %s, %s\n", ratelimit_status_text(res[i].status),
                    server_error(redis));
            exit(1);
        }
}

static void flight(const ratelimit_limit *limit, char (*from)[16], bool allowed)
{
    ratelimit_request q[FLIGHT];
    size_t i, n;
    for (n = 0; n < 20; n++) {
        for (i = 0; i < FLIGHT; i++)
            q[i] = server_request(any_key(from), limit, RATELIMIT_TAKE, 1);
        decide(q, FLIGHT, RATELIMIT_EACH, allowed);
    }
}

static char one_sha[41];

/* A script that only returns 1, with a key, 64 in flight. */
static void only_returns_1(void)
{
    redisContext *c = server_plain(server_port());
    size_t i, n;
    for (n = 0; n < 20; n++) {
        for (i = 0; i < FLIGHT; i++) {
            const char *argv[4];
            size_t len[4];
            argv[0] = "EVALSHA", argv[1] = one_sha, argv[2] = "1", argv[3] = any_key(keys);
            len[0] = 7, len[1] = 40, len[2] = 1, len[3] = strlen(argv[3]);
            redisAppendCommandArgv(c, 4, argv, len);
        }
        for (i = 0; i < FLIGHT; i++) {
            void *reply;
            if (redisGetReply(c, &reply) != REDIS_OK)
                exit(1);
            freeReplyObject(reply);
        }
    }
}

static void allowed_64(void)
{
    flight(&plenty, keys, true);
}
static void fraction_64(void)
{
    static char other[KEYS][16];
    size_t i;
    for (i = 0; i < KEYS && !other[i][0]; i++)
        snprintf(other[i], sizeof other[i], "f%d", (int)i);
    flight(&seventh, other, true);
}
static void window_64(void)
{
    static char other[KEYS][16];
    size_t i;
    for (i = 0; i < KEYS && !other[i][0]; i++)
        snprintf(other[i], sizeof other[i], "w%d", (int)i);
    flight(&window, other, true);
}
static void refused_64(void)
{
    flight(&one, refused_keys, false);
}

/* 64 calls in flight, of 16 keys each, all or none. */
static void sixteen_in_one(void)
{
    static ratelimit_priv_redis_entry entry[FLIGHT * 16];
    static ratelimit_priv_redis_ask ask[FLIGHT];
    static ratelimit_priv_redis_call call[FLIGHT];
    static ratelimit_request q[FLIGHT * 16];
    static ratelimit_result res[FLIGHT * 16];
    size_t i;
    for (i = 0; i < FLIGHT * 16; i++) {
        q[i] = server_request(any_key(keys), &plenty, RATELIMIT_TAKE, 1);
        ratelimit_priv_redis_prepare(&entry[i], &q[i], &res[i]);
    }
    for (i = 0; i < FLIGHT; i++)
        ratelimit_priv_redis_start(redis, &ask[i], &call[i], &entry[i * 16], 16, true, 0);
    ratelimit_priv_redis_run(call, FLIGHT, ratelimit_clock_ns() + 5 * RATELIMIT_SECOND);
    for (i = 0; i < FLIGHT * 16; i++)
        if (!res[i].allowed)
            exit(1);
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

static row rows[] = {{"a script that only returns 1", only_returns_1, 20 * FLIGHT, {0}, {0}},
                     {"allowed", allowed_64, 20 * FLIGHT, {0}, {0}},
                     {"refused", refused_64, 20 * FLIGHT, {0}, {0}},
                     {"allowed, interval with a fraction", fraction_64, 20 * FLIGHT, {0}, {0}},
                     {"allowed, fixed window", window_64, 20 * FLIGHT, {0}, {0}},
                     {"allowed, 16 keys in one call", sixteen_in_one, 16 * FLIGHT, {0}, {0}},
                     {"one at a time", one_at_a_time, 200, {0}, {0}}};
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

static void measure(row *r, int round)
{
    double before = server_ns();
    uint64_t start = ratelimit_clock_ns(), ns;
    r->run();
    ns = ratelimit_clock_ns() - start;
    r->server_us[round] = (server_ns() - before) / 1000 / r->decisions;
    r->rate[round] = r->decisions * 1e9 / (double)(ns ? ns : 1);
}

/* ---- memory and replication ----------------------------------------------------------------------------------- */

static void bytes(void)
{
    long long plain, before, after, refused;
    int i, n = 2000;
    server_flush();
    server_take(redis, "sixteen bytes...", &one, 1);
    plain = server_int(server_port(), "MEMORY USAGE ratelimit:%s", "sixteen bytes...");
    printf("memory per key of 26 bytes with the prefix: %lld bytes (MEMORY USAGE)\n", plain);
    server_do(server_port(), "CONFIG SET appendonly yes");
    while (server_info(server_port(), "aof_rewrite_in_progress") != 0 ||
           server_info(server_port(), "aof_enabled") != 1)
        server_sleep_ms(10);
    before = server_info(server_port(), "aof_current_size");
    for (i = 0; i < n; i++)
        server_take(redis, keys[i % KEYS], &plenty, 1);
    after = server_info(server_port(), "aof_current_size");
    for (i = 0; i < n; i++)
        server_take(redis, "sixteen bytes...", &one, 1);
    refused = server_info(server_port(), "aof_current_size");
    server_do(server_port(), "CONFIG SET appendonly no");
    printf("replicated and logged: %.1f bytes per allowed decision, %.1f per refused one\n",
           (double)(after - before) / n, (double)(refused - after) / n);
}

/* ---- threads -------------------------------------------------------------------------------------------------- */

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

/* ---- waiting -------------------------------------------------------------------------------------------------- */

enum { WAITERS = 80 };

typedef struct waiter {
    ratelimit_limiter *limiter;
    bool polls;
} waiter;

static ratelimit_store can_not_reserve;

static void decide_without_reserve(void *self, const ratelimit_request *req, ratelimit_result *res,
                                   size_t count, ratelimit_mode mode)
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
    redisReply *reply;
    const char *at;
    long long calls;
    int i;
    memset(&limiter, 0, sizeof limiter);
    if (ratelimit_init(&limiter, how) != RATELIMIT_OK)
        exit(1);
    server_do(server_port(), "DEL ratelimit:%s", "waited for");
    server_do(server_port(), "CONFIG RESETSTAT");
    for (i = 0; i < WAITERS; i++)
        if (pthread_create(&thread[i], NULL, waiter_run, &limiter) != 0)
            exit(1);
    for (i = 0; i < WAITERS; i++)
        pthread_join(thread[i], NULL);
    reply = server_ask(server_port(), "INFO commandstats");
    at = strstr(reply->str, "cmdstat_evalsha:calls=");
    calls = at ? atoll(at + strlen("cmdstat_evalsha:calls=")) : -1;
    freeReplyObject(reply);
    printf("%d waiters, 100/s, by %s: %lld round trips, all through after %.2f s\n", WAITERS, name,
           calls, (double)(ratelimit_clock_ns() - start) / 1e9);
}

/* ---- all of it ------------------------------------------------------------------------------------------------ */

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
        snprintf(refused_keys[i], sizeof refused_keys[i], "r%d", i);
        server_take(redis, refused_keys[i], &one, 1);
    }
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
    for (j = -1; j < rounds; j++)
        for (i = 0; i < ROWS; i++)
            measure(&rows[i], j < 0 ? 0 : j);
    for (i = 0; i < ROWS; i++) {
        rate[i] = median(rows[i].rate);
        us[i] = median(rows[i].server_us);
        printf("%-36s %8.0f/s  ratio %.2f   server %5.2f us, ratio %.2f\n", rows[i].name, rate[i],
               rate[i] / rate[0], us[i], us[i] > 0 ? us[0] / us[i] : 0);
    }
    printf("ratios to a script that only returns 1, in decisions/s (in the server's time):\n");
    printf("    allowed %.2f (%.2f), at least 0.33\n", rate[1] / rate[0], us[0] / us[1]);
    printf("    refused %.2f (%.2f), at least 0.48\n", rate[2] / rate[0], us[0] / us[2]);
    printf("16 keys in one call to 16 pipelined: %.2f (%.2f), at least 2.5\n", rate[5] / rate[1],
           us[1] / us[5]);
    bytes();
    threads(4);
    threads(16);
    threads(32);
    can_not_reserve = store;
    can_not_reserve.decide = decide_without_reserve;
    waiters("polling", can_not_reserve);
    waiters("reserving", store);
    ratelimit_redis_close(redis);
    return 0;
}

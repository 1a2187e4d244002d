/* bench_faults.c - what decisions on Redis cost when something goes wrong, within one run.
 * tests/redis/run.sh bench runs it with a cluster, of which it kills masters at the end. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_ASYNC
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "proxy.h"
#include "server.h"

#include <sys/wait.h>
#include <time.h>

static const ratelimit_limit plenty = RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 1000000000);

static const char *reached(bool good)
{
    return good ? "reached" : "NOT REACHED";
}

/* Number i of a list in the environment. */
static int number_of(const char *name, int i)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value = 0;
    int j;
    if (text == NULL)
        exit(2);
    for (j = 0; j <= i; j++, text = end)
        value = strtol(text, &end, 10);
    return (int)value;
}

/* ---- threads that take until a time ---------------------------------------------------------- */

enum { MOST = 500 };

typedef struct taker {
    ratelimit_redis *r;
    const char *key[2]; /* the second may be NULL */
    uint64_t most, until_ns;
    unsigned pause_ms;
    uint64_t decided, failed;
    uint64_t last_ns, longest_ns; /* between decisions, from from_ns on */
} taker;

static taker takers[MOST];
static volatile uint64_t from_ns;

static void *taker_run(void *self)
{
    taker *t = (taker *)self;
    ratelimit_store store = ratelimit_redis_store(t->r);
    uint64_t n;
    for (n = 0; n < t->most && ratelimit_clock_ns() < t->until_ns; n++) {
        ratelimit_request q[2];
        ratelimit_result res[2];
        size_t i, count = t->key[1] ? 2 : 1;
        for (i = 0; i < count; i++)
            q[i] = server_request(t->key[i], &plenty, RATELIMIT_TAKE, 1);
        store.decide(&store, q, res, count, RATELIMIT_EACH);
        for (i = 0; i < count; i++) {
            if (res[i].status == RATELIMIT_STORE_FAILED)
                t->failed++;
            else
                t->decided++;
        }
        if (from_ns && res[0].status != RATELIMIT_STORE_FAILED) {
            uint64_t now = ratelimit_clock_ns(), since = t->last_ns ? t->last_ns : from_ns;
            if (now > since && now - since > t->longest_ns)
                t->longest_ns = now - since;
            t->last_ns = now;
        }
        if (t->pause_ms)
            server_sleep_ms(t->pause_ms);
    }
    return NULL;
}

/* Runs the first count takers, all set up; the sum of them in takers[0]. */
static void run_takers(int count, void (*meanwhile)(void))
{
    static pthread_t thread[MOST];
    pthread_attr_t attributes;
    int i;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    for (i = 0; i < count; i++)
        if (pthread_create(&thread[i], &attributes, taker_run, &takers[i]) != 0)
            exit(1);
    if (meanwhile)
        meanwhile();
    for (i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
        if (i) {
            takers[0].decided += takers[i].decided;
            takers[0].failed += takers[i].failed;
        }
    }
    pthread_attr_destroy(&attributes);
}

static void set_taker(int i, ratelimit_redis *r, const char *key, const char *second, uint64_t most,
                      uint64_t ms)
{
    memset(&takers[i], 0, sizeof takers[i]);
    takers[i].r = r;
    takers[i].key[0] = key;
    takers[i].key[1] = second;
    takers[i].most = most;
    takers[i].until_ns = ratelimit_clock_ns() + ms * RATELIMIT_MILLISECOND;
}

/* ---- lost packets ---------------------------------------------------------------------------- */

/* One answer of `every` comes 250 ms late, as after a lost packet: TCP sends it again. */
static void lost_packets(uint32_t timeout_ms, uint32_t every)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    proxy p;
    int i;
    proxy_open(&p, server_port());
    options.port = p.port;
    options.timeout_ms = timeout_ms;
    r = server_open(&options);
    for (i = 0; i < 8; i++)
        (void)server_take(r, "k", &plenty, 1);
    p.every = every;
    for (i = 0; i < 8; i++)
        set_taker(i, r, "k", NULL, 100000 / 8, 60000);
    run_takers(8, NULL);
    printf("1 answer of %u late by 250 ms, timeout %u ms: of %.0f decisions %u were late, %.0f "
           "failed, at most %u: %s\n",
           (unsigned)every, (unsigned)(timeout_ms ? timeout_ms : 300),
           (double)(takers[0].decided + takers[0].failed), (unsigned)p.late,
           (double)takers[0].failed, (unsigned)(2 * p.late),
           reached(takers[0].failed <= 2 * p.late));
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* ---- a pool on two nodes --------------------------------------------------------------------- */

static ratelimit_redis_options cluster_options(void)
{
    ratelimit_redis_options options;
    memset(&options, 0, sizeof options);
    options.port = number_of("CLUSTER_PORTS", 0);
    options.cluster = true;
    options.timeout_ms = 1000;
    return options;
}

static const ratelimit_priv_redis_node *node_of(ratelimit_redis *r, const char *key)
{
    ratelimit_request q = server_request(key, &plenty, RATELIMIT_TAKE, 1);
    ratelimit_priv_redis_name name;
    ratelimit_priv_redis_name_bucket(&name, &q);
    return r->slots[ratelimit_priv_redis_slot(r, &name)];
}

static int by_value(const void *a, const void *b)
{
    const double *x = (const double *)a, *y = (const double *)b;
    return (*x > *y) - (*x < *y);
}

/* Batches of two keys, by 32 threads that share 16 connections to each node. */
static void two_nodes(void)
{
    enum { THREADS = 32, ROUNDS = 7 };
    static char key[64][16];
    ratelimit_redis_options options = cluster_options();
    ratelimit_redis *r = server_open(&options);
    const char *same = NULL, *other = NULL;
    double ratio[ROUNDS], rate[2] = {0, 0}, failed[2] = {0, 0};
    int i, round, two;
    if (ratelimit_redis_ping(r) != RATELIMIT_OK)
        exit(1);
    for (i = 0; i < 64; i++) {
        snprintf(key[i], sizeof key[i], "key-%d", i);
        if (i && node_of(r, key[i]) == node_of(r, key[0]))
            same = key[i];
        else if (i)
            other = key[i];
    }
    for (round = 0; round < ROUNDS; round++) {
        double each[2];
        for (two = 0; two < 2; two++) {
            uint64_t start = ratelimit_clock_ns();
            for (i = 0; i < THREADS; i++)
                set_taker(i, r, key[0], two ? other : same, UINT64_MAX, 500);
            run_takers(THREADS, NULL);
            each[two] = (double)takers[0].decided * 1e9 / (double)(ratelimit_clock_ns() - start);
            rate[two] += each[two] / ROUNDS;
            failed[two] += (double)takers[0].failed;
        }
        ratio[round] = each[1] / each[0];
    }
    qsort(ratio, ROUNDS, sizeof ratio[0], by_value);
    printf("32 threads, batches of 2 keys, pool of 16: on one node %.0f/s (%.0f failed), on two "
           "%.0f/s (%.0f failed): ratio %.2f, at least 0.8: %s\n",
           rate[0], failed[0], rate[1], failed[1], ratio[ROUNDS / 2],
           reached(ratio[ROUNDS / 2] >= 0.8));
    ratelimit_redis_close(r);
}

/* ---- a server that comes back ---------------------------------------------------------------- */

static int own_port;
static pid_t own_pid;

static void own_start(void)
{
    char port[8];
    snprintf(port, sizeof port, "%d", own_port);
    own_pid = fork();
    if (own_pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 1);
        dup2(null, 2);
        execlp("redis-server", "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "",
               "--appendonly", "no", "--dir", "/tmp", (char *)NULL);
        _exit(127);
    }
}

/* True when it answers, within 10 s. */
static bool own_answers(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    bool answers = false;
    int i;
    options.port = own_port;
    options.cool_down_ms = 1;
    r = server_open(&options);
    for (i = 0; i < 1000 && !answers; i++) {
        answers = ratelimit_redis_ping(r) == RATELIMIT_OK;
        if (!answers)
            server_sleep_ms(10);
    }
    ratelimit_redis_close(r);
    return answers;
}

static void kill_and_come_back(void)
{
    server_sleep_ms(2000);
    kill(own_pid, SIGKILL);
    waitpid(own_pid, NULL, 0);
    server_sleep_ms(2000);
    own_start();
    if (!own_answers())
        exit(1);
    from_ns = ratelimit_clock_ns();
}

static void comes_back(void)
{
    ratelimit_redis_options options = server_options();
    uint64_t longest = 0;
    int i, without = 0;
    own_port = options.port + 1000;
    own_start();
    if (!own_answers())
        exit(1);
    options.port = own_port;
    for (i = 0; i < MOST; i++) {
        set_taker(i, server_open(&options), "k", NULL, UINT64_MAX, 9000);
        takers[i].pause_ms = 100;
    }
    run_takers(MOST, kill_and_come_back);
    for (i = 0; i < MOST; i++) {
        uint64_t gap = takers[i].last_ns ? takers[i].longest_ns : RATELIMIT_FOREVER;
        longest = gap > longest ? gap : longest;
        without += gap > 2 * RATELIMIT_SECOND;
        ratelimit_redis_close(takers[i].r);
    }
    printf("%d clients, a server that is killed and comes back after 2 s: longest time without a "
           "decision %.2f s, at most 2: %s (%d clients above it)\n",
           MOST, (double)longest / 1e9, reached(!without), without);
    kill(own_pid, SIGKILL);
    waitpid(own_pid, NULL, 0);
}

/* ---- a cluster that is down ------------------------------------------------------------------ */

static struct pollfd watched[32];
static int watched_count;
static uint64_t timer_at;
static int answers_decided, answers_failed;

static int loop_watch(void *self, int fd, unsigned events, void **yours)
{
    int i = 0;
    (void)self, (void)yours;
    while (i < watched_count && watched[i].fd != fd)
        i++;
    if (i == watched_count && events) {
        if (i == 32)
            return -1;
        watched_count++;
    }
    watched[i].fd = fd;
    watched[i].events = (short)((events & RATELIMIT_REDIS_READ ? POLLIN : 0) |
                                (events & RATELIMIT_REDIS_WRITE ? POLLOUT : 0));
    if (!events && watched_count)
        watched[i] = watched[--watched_count];
    return 0;
}

static void loop_timer(void *self, uint64_t after_ns)
{
    (void)self;
    timer_at = ratelimit_clock_ns() + after_ns;
}

static void answered(void *self, const ratelimit_result *res, size_t count)
{
    (void)self, (void)count;
    if (res->status == RATELIMIT_STORE_FAILED)
        answers_failed++;
    else
        answers_decided++;
}

static double cpu_us(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

/* CPU in us for each of 10,000 requests, 10 in each turn, without the loop's own poll. */
static double loop_run(ratelimit_redis_async *a)
{
    enum { REQUESTS = 10000 };
    double spent = 0, start;
    int sent = 0, i;
    answers_decided = answers_failed = 0;
    start = cpu_us();
    while (sent < REQUESTS || ratelimit_redis_async_under_way(a)) {
        uint64_t now = ratelimit_clock_ns();
        struct pollfd ready[32];
        int count = watched_count, ms = 20;
        for (i = 0; i < 10 && sent < REQUESTS; i++, sent++) {
            char key[16];
            ratelimit_request q;
            snprintf(key, sizeof key, "key-%d", sent);
            q = server_request(key, &plenty, RATELIMIT_TAKE, 1);
            if (ratelimit_redis_async_take(a, &q, answered, NULL) != RATELIMIT_OK)
                exit(1);
        }
        if (sent < REQUESTS)
            ms = 1;
        else if (timer_at)
            ms = timer_at > now ? (int)((timer_at - now) / RATELIMIT_MILLISECOND) + 1 : 0;
        memcpy(ready, watched, sizeof ready);
        spent += cpu_us() - start;
        (void)poll(ready, (nfds_t)count, ms);
        start = cpu_us();
        for (i = 0; i < count; i++)
            if (ready[i].revents)
                ratelimit_redis_async_ready(
                    a, ready[i].fd,
                    (ready[i].revents & (POLLIN | POLLHUP | POLLERR) ? RATELIMIT_REDIS_READ : 0u) |
                        (ready[i].revents & POLLOUT ? RATELIMIT_REDIS_WRITE : 0u));
        if (timer_at && ratelimit_clock_ns() >= timer_at) {
            timer_at = 0;
            ratelimit_redis_async_tick(a, ratelimit_clock_ns());
        }
    }
    return (spent + cpu_us() - start) / REQUESTS;
}

static void cluster_down(void)
{
    ratelimit_redis_options options = cluster_options();
    ratelimit_redis_loop loop;
    ratelimit_redis_async *a;
    double decided, failed;
    int i;
    memset(&loop, 0, sizeof loop);
    loop.watch = loop_watch;
    loop.timer = loop_timer;
    options.timeout_ms = 200;
    a = ratelimit_redis_async_open(&options, &loop, NULL);
    if (a == NULL)
        exit(1);
    (void)loop_run(a); /* connects */
    decided = loop_run(a);
    if (answers_failed > 100)
        printf("    (%d of 10,000 failed while the cluster was up)\n", answers_failed);
    for (i = 1; i < 6; i++)
        kill(number_of("CLUSTER_PIDS", i), SIGKILL);
    for (i = 0; i < 1000; i++) { /* until it says so */
        redisReply *reply = server_ask(number_of("CLUSTER_PORTS", 0), "CLUSTER INFO");
        bool down = reply && reply->str && strstr(reply->str, "cluster_state:fail");
        if (reply)
            freeReplyObject(reply);
        if (down)
            break;
        server_sleep_ms(10);
    }
    failed = loop_run(a);
    printf(
        "an asynchronous handle, CPU of the client: %.1f us per decided request, %.1f us per "
        "failed one (%d of 10,000 failed) while the cluster is down: %.2f times, at most 1: %s\n",
        decided, failed, answers_failed, failed / decided, reached(failed <= decided));
    ratelimit_redis_async_close(a);
}

int main(void)
{
    lost_packets(0, 10000);
    lost_packets(100, 10000);
    comes_back();
    two_nodes();
    cluster_down();
    return 0;
}

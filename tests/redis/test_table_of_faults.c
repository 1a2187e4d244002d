/* test_table_of_faults.c - what each fault costs while eight threads take from one key: prints a
 * row for each, and looks at what must hold in all: no token over the stated bound, no call without
 * an end, decisions again afterwards.
 *
 * TIMES in the environment: how often each fault is made (3). */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "proxy.h"
#include "server.h"

enum { THREADS = 8, BURST = 50, PER_S = 100, TIMEOUT_MS = 200, BETWEEN_MS = 300 };

static const ratelimit_limit limit = RATELIMIT_LIMIT(PER_S, RATELIMIT_SECOND, BURST);

typedef struct taker {
    ratelimit_store store;
    volatile bool *stop;
    uint64_t decided, failed, granted, longest_ns;
} taker;

static proxy between;

static void *taker_run(void *self)
{
    taker *t = (taker *)self;
    while (!*t->stop) {
        ratelimit_request q = server_request("k", &limit, RATELIMIT_TAKE, 1);
        ratelimit_result res;
        uint64_t begin = ratelimit_clock_ns(), took;
        t->store.decide(&t->store, &q, &res, 1, RATELIMIT_EACH);
        took = ratelimit_clock_ns() - begin;
        t->longest_ns = took > t->longest_ns ? took : t->longest_ns;
        t->failed += res.status == RATELIMIT_STORE_FAILED;
        t->decided += res.status != RATELIMIT_STORE_FAILED;
        t->granted += res.allowed;
        server_sleep_ms(2);
    }
    return NULL;
}

/* ---- faults: a kind of the proxy, or a function ---------------------------------------------- */

static void command(const char *text)
{
    redisReply *reply = server_ask(server_port(), text);
    if (reply)
        freeReplyObject(reply);
}

static void clients_killed(void)
{
    command("CLIENT KILL TYPE normal");
}

static void scripts_forgotten(void)
{
    command("SCRIPT FLUSH");
}

static void paused(void)
{
    command("CLIENT PAUSE 100 ALL");
}

static void emptied(void)
{
    command("FLUSHALL");
}

static void stopped(void)
{
    kill(server_number("REDIS_PID"), SIGSTOP);
    server_sleep_ms(300);
    kill(server_number("REDIS_PID"), SIGCONT);
}

static void for_100_ms(const char *begin, const char *end)
{
    command(begin);
    server_sleep_ms(100);
    command(end);
}

static void out_of_memory(void)
{
    for_100_ms("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0");
}

static void read_only(void)
{
    for_100_ms("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE");
}

static void password_changed(void)
{
    command("CONFIG SET requirepass changed");
    command("CLIENT KILL TYPE normal");
    server_sleep_ms(100);
    (void)server_do(server_port(), "CONFIG SET requirepass %s", "");
}

typedef struct fault {
    const char *name;
    proxy_fault kind; /* PROXY_NONE: a function */
    void (*make)(void);
    uint64_t over_each; /* the stated bound: so many tokens may be over each time */
} fault;

static const fault faults[] = {
    {"a request is swallowed", PROXY_STALL, NULL, 0},
    {"an answer is swallowed", PROXY_DEAF, NULL, 0},
    {"a connection is reset", PROXY_RESET, NULL, 0},
    {"all connections are forgotten", PROXY_FORGET, NULL, 0},
    {"an answer comes 230 ms late", PROXY_DELAY, NULL, 0},
    {"CLIENT KILL of all", PROXY_NONE, clients_killed, 0},
    {"SCRIPT FLUSH", PROXY_NONE, scripts_forgotten, 0},
    {"CLIENT PAUSE, 100 ms", PROXY_NONE, paused, 0},
    {"SIGSTOP of the server, 300 ms", PROXY_NONE, stopped, 0},
    {"maxmemory reached, 100 ms", PROXY_NONE, out_of_memory, 0},
    {"READONLY, 100 ms", PROXY_NONE, read_only, 0},
    {"a password is asked, 100 ms", PROXY_NONE, password_changed, 0},
    {"FLUSHALL: all is forgotten", PROXY_NONE, emptied, BURST},
};

static bool decides_again(ratelimit_redis *r)
{
    int i;
    for (i = 0; i < 500; i++) {
        if (server_take(r, "again", &limit, 1).status != RATELIMIT_STORE_FAILED)
            return true;
        server_sleep_ms(10);
    }
    return false;
}

static void row(const fault *f, unsigned times)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    pthread_t thread[THREADS];
    taker t[THREADS], all;
    volatile bool stop = false;
    uint64_t begin, may, over;
    unsigned i;
    options.port = between.port;
    options.timeout_ms = TIMEOUT_MS;
    r = server_open(&options);
    (void)server_flush();
    memset(t, 0, sizeof t);
    memset(&all, 0, sizeof all);
    begin = ratelimit_clock_ns();
    for (i = 0; i < THREADS; i++) {
        t[i].store = ratelimit_redis_store(r);
        t[i].stop = &stop;
        if (pthread_create(&thread[i], NULL, taker_run, &t[i]) != 0)
            exit(2);
    }
    for (i = 0; i < times; i++) {
        server_sleep_ms(BETWEEN_MS);
        if (f->make)
            f->make();
        else
            proxy_spoil(&between, f->kind);
    }
    server_sleep_ms(BETWEEN_MS);
    stop = true;
    for (i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        all.decided += t[i].decided;
        all.failed += t[i].failed;
        all.granted += t[i].granted;
        all.longest_ns = t[i].longest_ns > all.longest_ns ? t[i].longest_ns : all.longest_ns;
    }
    may = BURST + 1 + (ratelimit_clock_ns() - begin) / (RATELIMIT_SECOND / PER_S);
    over = all.granted > may ? all.granted - may : 0;
    printf("  %-32s %5u %10u %8u %6u of %-4u %8.2f s\n", f->name, times, (unsigned)all.decided,
           (unsigned)all.failed, (unsigned)over, (unsigned)(f->over_each * times),
           (double)all.longest_ns / 1e9);
    CHECK(over <= f->over_each * times);
    CHECK(all.granted > 0);
    /* Ten times of what is seen, and more: for a machine at work. */
    CHECK(all.longest_ns < 10 * RATELIMIT_SECOND);
    CHECK(decides_again(r));
    ratelimit_redis_close(r);
}

static void in_each_fault_no_token_is_over_no_call_hangs_and_decisions_go_on(void)
{
    const char *text = getenv("TIMES");
    unsigned times = text ? (unsigned)strtoul(text, NULL, 10) : 3;
    size_t i;
    proxy_open(&between, server_port());
    printf("  %-32s %5s %10s %8s %14s %10s\n", "fault, 8 threads on one key", "times", "decisions",
           "failed", "tokens over", "longest");
    for (i = 0; i < sizeof faults / sizeof faults[0]; i++)
        row(&faults[i], times);
    proxy_close(&between);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(in_each_fault_no_token_is_over_no_call_hangs_and_decisions_go_on);
    return check_end();
}

/* test_failures.c - what a failure costs: of one connection its own requests, of one node its own
 * keys, and nobody else anything. Each test is named after what went wrong. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "proxy.h"
#include "server.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1000000, 1);

static ratelimit_redis *open_at(int port, uint32_t timeout_ms)
{
    ratelimit_redis_options options = server_options();
    options.port = port;
    options.timeout_ms = timeout_ms;
    return server_open(&options);
}

/* ---- many threads ---------------------------------------------------------------------------- */

typedef struct crowd {
    ratelimit_store store;
    const char *key;
    uint64_t until_ns;
    uint64_t decided, failed;
} crowd;

static void *crowd_run(void *self)
{
    crowd *c = (crowd *)self;
    while (ratelimit_clock_ns() < c->until_ns) {
        ratelimit_request q = server_request(c->key, &hourly, RATELIMIT_TAKE, 1);
        ratelimit_result res;
        c->store.decide(&c->store, &q, &res, 1, RATELIMIT_EACH);
        if (res.status == RATELIMIT_STORE_FAILED)
            c->failed++;
        else
            c->decided++;
    }
    return NULL;
}

enum { CROWD = 8 };

/* Eight threads take through store for 1200 ms; after 400 ms spoil(self) is called. Returns how
 * many decisions failed. */
static uint64_t failed_of_a_crowd(ratelimit_store store, void (*spoil)(void *self), void *self)
{
    static const char *const keys[CROWD] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    pthread_t thread[CROWD];
    crowd c[CROWD];
    uint64_t decided = 0, failed = 0, until = ratelimit_clock_ns() + 1200 * RATELIMIT_MILLISECOND;
    int i;
    for (i = 0; i < CROWD; i++) {
        memset(&c[i], 0, sizeof c[i]);
        c[i].store = store;
        c[i].key = keys[i];
        c[i].until_ns = until;
        if (pthread_create(&thread[i], NULL, crowd_run, &c[i]) != 0)
            exit(2);
    }
    server_sleep_ms(400);
    spoil(self);
    for (i = 0; i < CROWD; i++) {
        pthread_join(thread[i], NULL);
        decided += c[i].decided;
        failed += c[i].failed;
    }
    CHECK(decided > 50);
    return failed;
}

/* ---- one connection -------------------------------------------------------------------------- */

static void spoil_stall(void *self)
{
    proxy_spoil((proxy *)self, PROXY_STALL);
}

static void spoil_reset(void *self)
{
    proxy_spoil((proxy *)self, PROXY_RESET);
}

/* One lost packet: 785 decisions of eight threads failed, in 504 ms. */
static void one_swallowed_request_fails_one_decision(void)
{
    proxy p;
    ratelimit_redis *r;
    server_flush();
    proxy_open(&p, server_port());
    r = open_at(p.port, 600);
    CHECK_U64(failed_of_a_crowd(ratelimit_redis_store(r), spoil_stall, &p), 1);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* A load balancer that recycles one: 788 decisions failed. */
static void one_connection_reset_with_a_request_out_fails_one_decision(void)
{
    proxy p;
    ratelimit_redis *r;
    server_flush();
    proxy_open(&p, server_port());
    r = open_at(p.port, 300);
    CHECK_U64(failed_of_a_crowd(ratelimit_redis_store(r), spoil_reset, &p), 1);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* Nobody else is there to tell whether the server lives: one answer may be lost all the same. */
static void one_swallowed_request_of_a_single_caller_fails_one_decision(void)
{
    proxy p;
    ratelimit_redis *r;
    int i, failed = 0;
    server_flush();
    proxy_open(&p, server_port());
    r = open_at(p.port, 500);
    for (i = 0; i < 20; i++) {
        if (i == 10)
            proxy_spoil(&p, PROXY_STALL);
        failed += !server_take(r, "k", &hourly, 1).allowed;
    }
    CHECK_U64(failed, 1);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* What is between forgets connections that are idle, and says nothing: 97 decisions failed. */
static void connections_forgotten_while_idle_cost_one_decision(void)
{
    ratelimit_redis_options options = server_options();
    proxy p;
    ratelimit_redis *r;
    int i, failed = 0;
    server_flush();
    proxy_open(&p, server_port());
    options.port = p.port;
    options.timeout_ms = 500;
    r = server_open(&options);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    proxy_spoil(&p, PROXY_FORGET);
    for (i = 0; i < 20; i++)
        failed += !server_take(r, "k", &hourly, 1).allowed;
    CHECK_U64(failed, 1);
    ratelimit_redis_close(r);
    options.max_idle_ms = 20; /* less than what is between: nothing is lost */
    r = server_open(&options);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    proxy_spoil(&p, PROXY_FORGET);
    server_sleep_ms(40);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

static void a_connection_asks_the_kernel_to_look_after_its_peer(void)
{
    ratelimit_redis *r = open_at(server_port(), 1000);
    int on = 0;
    socklen_t len = sizeof on;
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(getsockopt(r->nodes->idle->fd, SOL_SOCKET, SO_KEEPALIVE, &on, &len) == 0 && on);
    ratelimit_redis_close(r);
}

/* It is lost only if the server is slower than the retransmission of a packet that got lost. */
static void the_default_timeout_outlives_a_lost_packet(void)
{
    proxy p;
    ratelimit_redis *r;
    server_flush();
    proxy_open(&p, server_port());
    r = open_at(p.port, 0);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    proxy_spoil(&p, PROXY_DELAY); /* by 230 ms */
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* A login that takes longer than the time of one call was begun again by each call, for ever. */
static void a_slow_login_is_finished_by_the_next_call(void)
{
    ratelimit_redis_options options = server_options();
    proxy p;
    ratelimit_redis *r;
    int i;
    server_flush();
    proxy_open(&p, server_port());
    options.port = p.port;
    options.timeout_ms = 100;
    options.client_name = "slow";
    r = server_open(&options);
    proxy_spoil(&p, PROXY_DELAY);
    for (i = 0; i < 4 && !server_take(r, "k", &hourly, 1).allowed; i++)
        ;
    CHECK(i >= 1 && i < 4);
    CHECK_U64(p.accepted, 1);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

static void cool_downs_differ_by_chance(void)
{
    ratelimit_redis *r = open_at(server_port(), 100);
    uint64_t least = UINT64_MAX, most = 0;
    int i;
    r->cool_down_ns = RATELIMIT_SECOND;
    for (i = 0; i < 200; i++) {
        uint64_t now = ratelimit_clock_ns(), left;
        ratelimit_priv_redis_down(r, r->nodes, "a test");
        left = r->nodes->down_until - now;
        least = left < least ? left : least;
        most = left > most ? left : most;
    }
    CHECK(least >= 499 * RATELIMIT_MILLISECOND && least < 600 * RATELIMIT_MILLISECOND);
    CHECK(most > 900 * RATELIMIT_MILLISECOND && most < 1010 * RATELIMIT_MILLISECOND);
    ratelimit_redis_close(r);
}

/* When a server comes back, not all threads connect at the same moment. */
static void two_connections_are_made_at_a_time(void)
{
    proxy p;
    ratelimit_redis *r;
    server_flush();
    proxy_open(&p, server_port());
    p.slow_ms = 20; /* each first answer */
    {
        ratelimit_redis_options options = server_options();
        options.port = p.port;
        options.timeout_ms = 2000;
        options.client_name = "slow";
        r = server_open(&options);
    }
    CHECK_U64(failed_of_a_crowd(ratelimit_redis_store(r), spoil_reset, &p) <= 1, 1);
    CHECK(p.most_waiting <= 2);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

static volatile sig_atomic_t pipes;

static void on_pipe(int number)
{
    (void)number;
    pipes++;
}

static void *go_on_soon(void *self)
{
    (void)self;
    server_sleep_ms(50);
    kill((pid_t)server_number("REDIS_PID"), SIGCONT);
    return NULL;
}

/* Writing shows that a connection is of no use: nothing went out, so the request goes out on a new
 * one, and no signal ends the program. Also where a login went out before: its bytes were counted
 * with those of the request, which then seemed to be out. */
static void a_connection_that_takes_nothing_is_not_seen_and_gives_no_signal(void)
{
    struct sigaction handler, before;
    int named;
    memset(&handler, 0, sizeof handler);
    handler.sa_handler = on_pipe;
    sigaction(SIGPIPE, &handler, &before);
    for (named = 0; named < 2; named++) {
        ratelimit_redis_options options = server_options();
        ratelimit_redis *r;
        pthread_t thread;
        options.timeout_ms = 2000;
        options.client_name = named ? "somebody" : NULL;
        r = server_open(&options);
        server_flush();
        CHECK(server_take(r, "k", &hourly, 1).allowed);
        kill((pid_t)server_number("REDIS_PID"), SIGSTOP); /* or it would hang up, too */
        CHECK(shutdown(r->nodes->idle->fd, SHUT_WR) == 0);
        CHECK(pthread_create(&thread, NULL, go_on_soon, NULL) == 0);
        CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 999998);
        pthread_join(thread, NULL);
        ratelimit_redis_close(r);
    }
    CHECK_U64(pipes, 0);
    sigaction(SIGPIPE, &before, NULL);
}

/* Its last request failed while it was being sent; then nothing was waited for, until its time was
 * over. */
static void a_call_that_fails_while_it_is_sent_does_not_wait_for_its_timeout(void)
{
    ratelimit_redis_options options = server_options();
    char path[64];
    ratelimit_redis *r;
    uint64_t start;
    snprintf(path, sizeof path, "/tmp/ratelimit-sent-%ld", (long)getpid());
    (void)unlink(path);
    CHECK(symlink(getenv("REDIS_SOCKET"), path) == 0);
    options.unix_path = path;
    options.timeout_ms = 10000;
    r = server_open(&options);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    kill((pid_t)server_number("REDIS_PID"), SIGSTOP); /* or it would hang up, too */
    CHECK(shutdown(r->nodes->idle->fd, SHUT_WR) == 0);
    CHECK(unlink(path) == 0); /* and there is no new connection */
    start = ratelimit_clock_ns();
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(server_ms_since(start) < 5000);
    kill((pid_t)server_number("REDIS_PID"), SIGCONT);
    ratelimit_redis_close(r);
}

/* ---- failover -------------------------------------------------------------------------------- */

static pid_t spawn_server(const char *socket)
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", socket, "--save", "",
               "--appendonly", "no", "--dir", "/tmp", (char *)NULL);
        _exit(127);
    }
    return pid;
}

static void *ping_run(void *r)
{
    CHECK_U64(ratelimit_redis_ping((ratelimit_redis *)r), RATELIMIT_OK);
    return NULL;
}

static uint32_t connections(ratelimit_redis *r)
{
    uint32_t open;
    pthread_mutex_lock(&r->lock);
    open = r->nodes->open;
    pthread_mutex_unlock(&r->lock);
    return open;
}

/* Three connections were open to a master that became a replica; the retry took another of them,
 * the node was "down", and takes failed for 500 ms. */
static void a_demoted_master_is_left_at_once_with_three_connections_open(void)
{
    ratelimit_redis_options options = server_options();
    char link_path[200], other[200];
    struct stat st;
    ratelimit_redis *r;
    ratelimit_result res;
    pid_t pid;
    int i;
    snprintf(link_path, sizeof link_path, "%.90s.link", getenv("REDIS_SOCKET"));
    snprintf(other, sizeof other, "%.90s.other", getenv("REDIS_SOCKET"));
    unlink(link_path);
    CHECK(symlink(getenv("REDIS_SOCKET"), link_path) == 0);
    pid = spawn_server(other);
    for (i = 0; i < 100 && stat(other, &st) != 0; i++)
        server_sleep_ms(20);
    server_sleep_ms(50);
    server_flush();
    options.unix_path = link_path;
    options.timeout_ms = 1000;
    r = server_open(&options);
    {
        pthread_t thread[3];
        kill((pid_t)server_number("REDIS_PID"), SIGSTOP);
        for (i = 0; i < 3; i++)
            CHECK(pthread_create(&thread[i], NULL, ping_run, r) == 0);
        for (i = 0; i < 100 && connections(r) < 3; i++)
            server_sleep_ms(5);
        kill((pid_t)server_number("REDIS_PID"), SIGCONT);
        for (i = 0; i < 3; i++)
            pthread_join(thread[i], NULL);
    }
    CHECK_U64(r->nodes->open, 3);
    CHECK(server_do(server_port(), "REPLICAOF 127.0.0.1 1"));
    unlink(link_path);
    CHECK(symlink(other, link_path) == 0);
    res = server_take(r, "k", &hourly, 1);
    CHECK_U64(res.status, RATELIMIT_OK);
    CHECK(server_do(server_port(), "REPLICAOF NO ONE"));
    ratelimit_redis_close(r);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    unlink(link_path);
    unlink(other);
}

/* ---- one node -------------------------------------------------------------------------------- */

static void spoil_nothing(void *self)
{
    (void)self;
}

typedef struct pest {
    ratelimit_store store;
    const char *key;
    uint64_t until_ns;
} pest;

/* Takes a key that fails, twenty times a second. */
static void *pest_run(void *self)
{
    pest *p = (pest *)self;
    while (ratelimit_clock_ns() < p->until_ns) {
        ratelimit_request q = server_request(p->key, &hourly, RATELIMIT_TAKE, 1);
        ratelimit_result res;
        p->store.decide(&p->store, &q, &res, 1, RATELIMIT_EACH);
        server_sleep_ms(50);
    }
    return NULL;
}

/* Through a tier, one key that holds something else, or whose node is dead, took Redis away from
 * all: 0.9 % of the healthy keys' decisions reached it. */
static void one_key_that_fails_costs_the_others_nothing(bool through_a_tier, bool dead_node)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(300)];
    static ratelimit_tier tier;
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    pthread_t thread;
    pest p;
    size_t i;
    server_flush();
    options.timeout_ms = 300;
    options.cluster = dead_node;
    r = server_open(&options);
    if (dead_node) { /* a map of two masters, one of which nobody answers for */
        ratelimit_request q = server_request("pest", &hourly, RATELIMIT_TAKE, 1);
        ratelimit_priv_redis_name name;
        ratelimit_priv_redis_name_bucket(&name, &q);
        r->mapped = true;
        r->map_at = UINT64_MAX / 2; /* not asked for again */
        for (i = 0; i < RATELIMIT_PRIV_REDIS_SLOTS; i++)
            r->slots[i] = r->nodes;
        r->slots[ratelimit_priv_redis_slot(r, &name)] =
            ratelimit_priv_redis_node_at(r, "127.0.0.1", 9, 1);
    } else {
        CHECK(server_do(server_port(), "SET %s 7", server_bucket("pest")));
    }
    memset(&tier, 0, sizeof tier);
    tier.store = ratelimit_redis_store(r);
    CHECK_U64(ratelimit_table_init(&tier.table, memory, sizeof memory, NULL), RATELIMIT_OK);
    p.store = through_a_tier ? ratelimit_tier_store(&tier) : ratelimit_redis_store(r);
    p.key = "pest";
    p.until_ns = ratelimit_clock_ns() + 1200 * RATELIMIT_MILLISECOND;
    CHECK(pthread_create(&thread, NULL, pest_run, &p) == 0);
    CHECK_U64(failed_of_a_crowd(p.store, spoil_nothing, NULL), 0);
    pthread_join(thread, NULL);
    ratelimit_redis_close(r);
}

static void one_key_that_holds_something_else_costs_the_others_nothing(void)
{
    one_key_that_fails_costs_the_others_nothing(false, false);
}

static void one_key_that_holds_something_else_costs_a_tier_nothing(void)
{
    one_key_that_fails_costs_the_others_nothing(true, false);
}

static void a_dead_node_costs_the_keys_of_others_nothing(void)
{
    one_key_that_fails_costs_the_others_nothing(false, true);
}

static void a_dead_node_behind_a_tier_costs_the_keys_of_others_nothing(void)
{
    one_key_that_fails_costs_the_others_nothing(true, true);
}

static void nodes_that_left_a_cluster_are_forgotten(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_priv_redis_node *node;
    ratelimit_redis *r;
    char host[32];
    int i, count = 0;
    options.cluster = true;
    r = server_open(&options);
    r->mapped = true;
    for (i = 0; i < 1000; i++) {
        int len = snprintf(host, sizeof host, "10.0.%d.%d", i / 250, i % 250);
        CHECK(ratelimit_priv_redis_node_at(r, host, (size_t)len, 6379) != NULL);
    }
    for (node = r->nodes; node; node = node->next)
        count++;
    CHECK(count <= 3);
    ratelimit_redis_close(r);
}

/* ---- locks ----------------------------------------------------------------------------------- */

/* The lock was taken and the answer lost: it was BUSY for its whole time. */
static void a_lock_whose_answer_was_lost_is_held_by_the_one_who_asks_again(void)
{
    proxy p;
    ratelimit_redis *r;
    ratelimit_redis_held held, other;
    uint64_t start = ratelimit_clock_ns();
    server_flush();
    proxy_open(&p, server_port());
    r = open_at(p.port, 100);
    /* so that the script is there, and a request that is sent is carried out */
    CHECK_U64(ratelimit_redis_lock(r, "other", 5, 20000, 0, &held), RATELIMIT_OK);
    proxy_spoil(&p, PROXY_DEAF);
    CHECK_U64(ratelimit_redis_lock(r, "l", 1, 20000, 5000, &held), RATELIMIT_OK);
    CHECK(server_ms_since(start) < 1000);
    CHECK_U64(ratelimit_redis_lock(r, "l", 1, 20000, 0, &other), RATELIMIT_BUSY);
    CHECK_U64(ratelimit_redis_unlock(r, "l", 1, &held), RATELIMIT_OK);
    proxy_spoil(&p, PROXY_DEAF); /* who does not wait may at least give it back */
    CHECK_U64(ratelimit_redis_lock(r, "l", 1, 20000, 0, &held), RATELIMIT_STORE_FAILED);
    CHECK_U64(ratelimit_redis_valid_ns(&held), 0);
    CHECK_U64(ratelimit_redis_unlock(r, "l", 1, &held), RATELIMIT_OK);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

static void a_permit_whose_answer_was_lost_is_one_permit(void)
{
    proxy p;
    ratelimit_redis *r;
    ratelimit_redis_permit permit;
    uint64_t start = ratelimit_clock_ns();
    server_flush();
    proxy_open(&p, server_port());
    r = open_at(p.port, 100);
    CHECK_U64(ratelimit_redis_acquire(r, "other", 5, 1, 20000, 0, 0, &permit, NULL), RATELIMIT_OK);
    proxy_spoil(&p, PROXY_DEAF);
    CHECK_U64(ratelimit_redis_acquire(r, "s", 1, 1, 20000, 5000, 0, &permit, NULL), RATELIMIT_OK);
    CHECK(server_ms_since(start) < 1000);
    CHECK_U64(server_int(server_port(), "ZCARD ratelimit:p{s}"), 1);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* A renewal that failed was followed by a cool-down in which none was sent: the lock was lost. */
static void a_renewal_is_sent_also_while_the_server_is_left_alone(void)
{
    ratelimit_redis *r = open_at(server_port(), 300);
    ratelimit_redis_held held;
    server_flush();
    CHECK_U64(ratelimit_redis_lock(r, "l", 1, 5000, 0, &held), RATELIMIT_OK);
    ratelimit_priv_redis_down(r, r->nodes, "a test");
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(ratelimit_redis_renew(r, "l", 1, &held, 5000), RATELIMIT_OK);
    CHECK(server_take(r, "k", &hourly, 1).allowed); /* it has answered: it is up */
    ratelimit_redis_close(r);
}

/* ---- names and values ------------------------------------------------------------------------ */

/* A user called "bob:window" made the window of bob fail. */
static void no_users_name_is_another_things(void)
{
    static const char *const users[] = {"bob:window",  "bob:plain",  "bob:permits",
                                        "bob:sliding", "{bob}:lock", "{bob}:fence"};
    ratelimit_redis *r = open_at(server_port(), 1000);
    ratelimit_redis_held held[2];
    ratelimit_redis_permit permit;
    size_t i;
    server_flush();
    for (i = 0; i < sizeof users / sizeof users[0]; i++)
        CHECK(server_take(r, users[i], &hourly, 1).allowed);
    CHECK(ratelimit_redis_window(r, "bob", 3, 10, 60000, 1, NULL));
    CHECK(ratelimit_redis_sliding(r, "bob", 3, 10, 60000, 1, NULL));
    CHECK_U64(ratelimit_redis_acquire_plain(r, "bob", 3, 1, 60000), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_acquire(r, "bob", 3, 1, 60000, 0, 0, &permit, NULL), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_lock(r, "a", 1, 60000, 0, &held[0]), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_lock(r, "{a}", 3, 60000, 0, &held[1]), RATELIMIT_OK);
    for (i = 0; i < sizeof users / sizeof users[0]; i++)
        CHECK_U64(server_take(r, users[i], &hourly, 1).remaining, 999998);
    ratelimit_redis_close(r);
}

/* Two limits on one key are two buckets, and in one slot of a cluster. */
static void a_bucket_belongs_to_key_and_scope(void)
{
    static const ratelimit_limit second = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_SECOND, 5, 77);
    ratelimit_redis *r = open_at(server_port(), 1000);
    server_flush();
    CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 999999);
    CHECK_U64(server_take(r, "k", &second, 1).remaining, 4);
    CHECK_U64(server_take(r, "{k}:x", &second, 1).remaining, 4);
    CHECK_U64(server_int(server_port(), "EXISTS ratelimit:b{k}00000001"), 1);
    CHECK_U64(server_int(server_port(), "EXISTS ratelimit:b{k}0000004d"), 1);
    CHECK_U64(server_int(server_port(), "EXISTS ratelimit:b:{k}:x:0000004d"), 1);
    ratelimit_redis_close(r);
}

/* 2^63 - 1 in a counter came out negative, and was taken for empty. */
static void counters_at_the_top_of_their_type_are_full(void)
{
    static const char *const tops[] = {"9223372036854775807", "9007199254740992",
                                       "18446744073709551615"};
    ratelimit_redis *r = open_at(server_port(), 1000);
    ratelimit_result res;
    ratelimit_redis_held held;
    size_t i;
    for (i = 0; i < sizeof tops / sizeof tops[0]; i++) {
        server_flush();
        CHECK(server_do(server_port(), "SET ratelimit:w{k} %s PX 60000", tops[i]));
        CHECK(!ratelimit_redis_window(r, "k", 1, 10, 60000, 1, &res));
        CHECK_U64(res.status, RATELIMIT_DENIED);
        CHECK_U64(res.remaining, 0);
        CHECK(server_do(server_port(), "SET ratelimit:c{k} %s PX 60000", tops[i]));
        CHECK_U64(ratelimit_redis_acquire_plain(r, "k", 1, 10, 60000), RATELIMIT_BUSY);
        CHECK(server_do(server_port(), "SET ratelimit:f{k} %s PX 60000", tops[i]));
        CHECK_U64(ratelimit_redis_lock(r, "k", 1, 60000, 0, &held), RATELIMIT_STORE_FAILED);
        CHECK_U64(server_int(server_port(), "EXISTS ratelimit:l{k}"), 0);
    }
    for (i = 0; i < 2; i++) {
        const double state[2][3] = {{0, 1e300, 0}, {0, 0, -1}};
        CHECK(server_do(server_port(), "SET ratelimit:s{k} %b", state[i], sizeof state[i]));
        CHECK(!ratelimit_redis_sliding(r, "k", 1, 10, 60000, 1, &res));
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
    }
    ratelimit_redis_close(r);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void errors_of_the_login_keep_the_servers_words(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    options.user = "nobody";
    options.password = "wrong";
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "WRONGPASS") != NULL);
    ratelimit_redis_close(r);
    options = server_options();
    options.cluster = true;
    r = server_open(&options);
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "ERR This instance has cluster support disabled") != NULL);
    ratelimit_redis_close(r);
}

/* An error that repeats our key was taken for a redirection if the key looked like one. */
static void a_key_cannot_pass_for_an_error_code(void)
{
    static const char *const errors[] = {
        "ERR unknown command 'EVALSHA', with args beginning with: 'x MOVED 1 10.0.0.1:1' ",
        "ERR something about -READONLY you", "ERR wrong key NOSCRIPT", "ERR  LOADING",
        "MOVEDX 1 10.0.0.1:1"};
    const char *text;
    size_t i;
    for (i = 0; i < sizeof errors / sizeof errors[0]; i++)
        CHECK_U64(ratelimit_priv_redis_fault_of(errors[i], &text), RATELIMIT_PRIV_REDIS_FAIL);
    CHECK_U64(ratelimit_priv_redis_fault_of("MOVED 1 10.0.0.1:1", &text),
              RATELIMIT_PRIV_REDIS_MOVED);
    CHECK_U64(ratelimit_priv_redis_fault_of(
                  "ERR Error running script (call to f_00): @user_script:34: @user_script: 34: "
                  "-READONLY You can't write against a read only replica.",
                  &text),
              RATELIMIT_PRIV_REDIS_READONLY);
}

/* ---- handles --------------------------------------------------------------------------------- */

static void one_of_two_limiters_on_a_handle_may_be_closed(void)
{
    ratelimit_redis *r = open_at(server_port(), 1000);
    ratelimit_limiter a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    server_flush();
    CHECK_U64(ratelimit_init(&a, ratelimit_redis_store(r)), RATELIMIT_OK);
    CHECK_U64(ratelimit_init(&b, ratelimit_redis_store(r)), RATELIMIT_OK);
    CHECK(ratelimit_allow(&a, "k", &hourly));
    ratelimit_close(&a);
    CHECK(ratelimit_allow(&b, "k", &hourly));
    ratelimit_close(&b);
    ratelimit_redis_close(r);
}

static void connections_have_the_clients_name(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    redisReply *reply;
    options.client_name = "billing";
    r = server_open(&options);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    reply = server_ask(server_port(), "CLIENT LIST");
    CHECK(reply && reply->str && strstr(reply->str, " name=billing "));
    freeReplyObject(reply);
    ratelimit_redis_close(r);
    options.client_name = "a b";
    CHECK(ratelimit_redis_open(&options, NULL) == NULL);
}

/* As platforms hand addresses over. */
static void urls_are_read(void)
{
    static const struct {
        const char *url, *host, *path, *user, *password;
        int port, database;
    } good[] = {{"redis://h", "h", NULL, NULL, NULL, 6379, 0},
                {"redis://h/", "h", NULL, NULL, NULL, 6379, 0},
                {"redis://h:1/2", "h", NULL, NULL, NULL, 1, 2},
                {"redis://h:65535", "h", NULL, NULL, NULL, 65535, 0},
                {"redis://:p%40s:s%2f@h:7", "h", NULL, NULL, "p@s:s/", 7, 0},
                {"redis://u%3A:p@[::1]:8/15", "::1", NULL, "u:", "p", 8, 15},
                {"redis://[fe80::1]", "fe80::1", NULL, NULL, NULL, 6379, 0},
                {"unix:///run/redis.sock", "127.0.0.1", "/run/redis.sock", NULL, NULL, 6379, 0},
                {"unix://u:p@/run/a%20b?db=3", "127.0.0.1", "/run/a b", "u", "p", 6379, 3}};
    static const char *const bad[] = {"",
                                      "redis:",
                                      "redis://",
                                      "http://h",
                                      "redis://h:",
                                      "redis://h:0",
                                      "redis://h:65536",
                                      "redis://h:1x",
                                      "redis://h/x",
                                      "redis://h/-1",
                                      "redis://[::1",
                                      "redis://[::1]x",
                                      "redis://:%4@h",
                                      "redis://:%00@h",
                                      "redis://:%zz@h",
                                      "unix://run/x",
                                      "unix:///x?db=",
                                      "unix:///x?x=1",
                                      "redis://h/99999999999",
                                      "redis://a,",
                                      "redis://,a",
                                      "redis://a,,b",
                                      "redis://a:1,b:x",
                                      "redis://a?master=",
                                      "redis://a?master",
                                      "redis://a/1?name=m",
                                      "redis://%zz:p@h",
                                      "redis://%G0:p@h",
                                      "redis://%",
                                      "redis://a?master=%4",
                                      "redis://h%zz",
                                      "redis://[]:1",
                                      "unix://",
                                      "unix:///a%",
                                      "unix:///a?db=1x",
                                      "unix:///a?database=1",
                                      "redis://a,b/x?master=m"};
    static const struct {
        const char *host;
        int port;
    } several[] = {{"a", 26379}, {"b", 7001}, {"::1", 26379}, {"fe80::2", 7002}};
    const ratelimit_priv_redis_node *node;
    ratelimit_redis_options options;
    ratelimit_redis *sentinels;
    ratelimit_status status;
    size_t i;
    for (i = 0; i < sizeof good / sizeof good[0]; i++) {
        ratelimit_redis *r = ratelimit_redis_open_url(good[i].url, NULL, &status);
        CHECK_U64(status, RATELIMIT_OK);
        if (r == NULL)
            continue;
        CHECK_TEXT(r->nodes->host, good[i].host);
        CHECK_U64(r->nodes->port, good[i].port);
        CHECK_U64(r->o.database, good[i].database);
        CHECK_TEXT(r->o.unix_path ? r->o.unix_path : "", good[i].path ? good[i].path : "");
        CHECK_TEXT(r->o.user ? r->o.user : "", good[i].user ? good[i].user : "");
        CHECK_TEXT(r->o.password ? r->o.password : "", good[i].password ? good[i].password : "");
        ratelimit_redis_close(r);
    }
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(ratelimit_redis_open_url(bad[i], NULL, &status) == NULL);
        if (status != RATELIMIT_SYNTAX && check_fault(__FILE__, __LINE__))
            printf("%s is %s\n", bad[i], ratelimit_status_text(status));
    }
    CHECK(ratelimit_redis_open_url(NULL, NULL, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_redis_open_url(NULL, NULL, NULL) == NULL);
    for (i = 1023; i <= 1024; i++) { /* a password is never cut off */
        char url[1200] = "redis://:";
        ratelimit_redis *r;
        memset(url + 9, 'p', i);
        memcpy(url + 9 + i, "@h", 3);
        r = ratelimit_redis_open_url(url, NULL, &status);
        CHECK_U64(status, i > 1023 ? RATELIMIT_SYNTAX : RATELIMIT_OK);
        if (r)
            CHECK_U64(strlen(r->o.password), i);
        ratelimit_redis_close(r);
    }
    memset(&options, 0, sizeof options);
    options.host = "fe80::7"; /* no brackets, no port */
    options.port = 7;
    sentinels = ratelimit_redis_open(&options, &status);
    CHECK(sentinels && strcmp(sentinels->nodes->host, "fe80::7") == 0 &&
          sentinels->nodes->port == 7);
    ratelimit_redis_close(sentinels);
    CHECK(ratelimit_redis_open_url("rediss://h", NULL, &status) == NULL);
    CHECK_U64(status, RATELIMIT_UNSUPPORTED); /* not compiled in here */
    CHECK(ratelimit_redis_open_url("redis://u@h", NULL, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT); /* a user without a password */
    CHECK(ratelimit_redis_open_url("redis://a,b", NULL, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT); /* of one server several */
    memset(&options, 0, sizeof options);
    options.cluster = true;
    CHECK(ratelimit_redis_open_url("redis://a?master=m", &options, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT); /* sentinels know no cluster */
    sentinels = ratelimit_redis_open_url("redis://a,b:7001,[::1],[fe80::2]:7002/3?master=m%20x",
                                         NULL, &status);
    CHECK_U64(status, RATELIMIT_OK);
    CHECK_TEXT(sentinels->o.master_name, "m x");
    CHECK_U64(sentinels->o.database, 3);
    for (i = 0, node = sentinels->nodes; i < 4; i++, node = node->next) {
        CHECK_TEXT(node->host, several[i].host);
        CHECK_U64(node->port, several[i].port);
    }
    CHECK(node == NULL);
    ratelimit_redis_close(sentinels);
}

/* A proxy that shards would send the whole command where its first key belongs. */
static void one_key_is_one_command(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    ratelimit_store store;
    ratelimit_request q[5];
    ratelimit_result res[5];
    int i;
    server_flush();
    options.one_key = true;
    options.timeout_ms = 1000;
    r = server_open(&options);
    store = ratelimit_redis_store(r);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "CONFIG RESETSTAT"));
    for (i = 0; i < 5; i++)
        q[i] = server_request(i % 2 ? "a" : "b", &hourly, RATELIMIT_TAKE, 1);
    store.decide(&store, q, res, 5, RATELIMIT_EACH);
    CHECK_U64(server_scripts(server_port()), 5);
    CHECK_U64(res[4].remaining, 999997);
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK_U64(res[0].status, RATELIMIT_UNSUPPORTED);
    q[0].key = "{b}x", q[0].key_len = 4;
    q[1].key = "{b}y", q[1].key_len = 4;
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    ratelimit_redis_close(r);
}

/* ---- counters of the client ------------------------------------------------------------------ */

static void *take_once(void *self)
{
    (void)server_take((ratelimit_redis *)self, "k", &hourly, 1);
    return NULL;
}

/* Each kind of failure, made to happen, is counted as that, and as nothing else. */
static void counters_tell_what_went_wrong(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis_counts n;
    ratelimit_redis *r;
    ratelimit_store store;
    ratelimit_request q[100];
    ratelimit_result res[100];
    pthread_t thread[20];
    proxy p;
    struct timespec wall;
    uint64_t wall_ms, before;
    int i;
    server_flush();
    proxy_open(&p, server_port());
    r = open_at(p.port, 100);
    ratelimit_redis_stats(r, &n);
    CHECK_U64(n.calls + n.round_trips + n.connects + n.connections + n.waited_ns, 0);
    CHECK_U64(n.last_success_ms, 0);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    ratelimit_redis_stats(r, &n);
    before = n.round_trips; /* the script was not there: one more */
    CHECK(before == 1 || before == 2);
    CHECK_U64(n.calls, 1);
    store = ratelimit_redis_store(r);
    for (i = 0; i < 100; i++)
        q[i] = server_request("k", &hourly, RATELIMIT_PEEK, 1);
    store.decide(&store, q, res, 100, RATELIMIT_EACH);
    CHECK(server_take(r, "k", &hourly, 0).status == RATELIMIT_BAD_COUNT); /* Redis is not asked */
    ratelimit_redis_stats(r, &n);
    (void)clock_gettime(CLOCK_REALTIME, &wall);
    wall_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
    CHECK_U64(n.calls, 101);
    CHECK(n.round_trips > before && n.round_trips <= before + 2); /* 100 go out together */
    CHECK_U64(n.connects, 1);
    CHECK_U64(n.connections, 1);
    CHECK_U64(n.unreached + n.busy + n.lost + n.late + n.refused, 0);
    CHECK(n.waited_ns > 0 && n.waited_ns < 2 * RATELIMIT_SECOND);
    CHECK(n.last_success_ms <= wall_ms && n.last_success_ms + 2000 > wall_ms);
    proxy_spoil(&p, PROXY_DEAF);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    proxy_spoil(&p, PROXY_RESET);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "SET %s 7", server_bucket("pest")));
    CHECK_U64(server_take(r, "pest", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    ratelimit_redis_stats(r, &n);
    CHECK_U64(n.late, 1);
    CHECK_U64(n.lost, 1);
    CHECK_U64(n.refused, 1);
    CHECK_U64(n.unreached + n.busy, 0);
    CHECK_U64(n.calls, 106);
    CHECK_U64(n.connects, 3);
    CHECK_U64(n.connections, 1);
    CHECK(n.waited_ns > 100 * RATELIMIT_MILLISECOND);
    ratelimit_redis_close(r);
    proxy_close(&p);
    r = open_at(p.port, 100); /* nobody listens there now */
    for (i = 0; i < 5; i++)
        CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    ratelimit_redis_stats(r, &n);
    CHECK_U64(n.unreached, 5);
    CHECK_U64(n.calls, 5);
    CHECK_U64(n.last_success_ms + n.connects + n.connections, 0);
    ratelimit_redis_close(r);
    options.pool_size = 1;
    options.timeout_ms = 100;
    r = server_open(&options);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    kill(server_number("REDIS_PID"), SIGSTOP);
    for (i = 0; i < 20; i++)
        if (pthread_create(&thread[i], NULL, take_once, r) != 0)
            exit(2);
    for (i = 0; i < 20; i++)
        pthread_join(thread[i], NULL);
    kill(server_number("REDIS_PID"), SIGCONT);
    ratelimit_redis_stats(r, &n);
    CHECK(n.busy >= 1 && n.late >= 1);
    CHECK_U64(n.busy + n.late + n.unreached, 20);
    ratelimit_redis_close(r);
    ratelimit_redis_stats(NULL, &n);
    CHECK_U64(n.calls, 0);
}

/* The text of them, as it is in ratelimit_metrics. */
static void metrics_have_the_clients_counters(void)
{
    static const char *const lines[] = {
        "# TYPE ratelimit_redis_calls_total counter\nratelimit_redis_calls_total{pid=\"7\"} 2\n",
        "\nratelimit_redis_round_trips_total{pid=\"7\"} ",
        "# TYPE ratelimit_redis_failures_total counter\n"
        "ratelimit_redis_failures_total{kind=\"unreached\",pid=\"7\"} 0\n"
        "ratelimit_redis_failures_total{kind=\"busy\",pid=\"7\"} 0\n"
        "ratelimit_redis_failures_total{kind=\"lost\",pid=\"7\"} 0\n"
        "ratelimit_redis_failures_total{kind=\"late\",pid=\"7\"} 0\n"
        "ratelimit_redis_failures_total{kind=\"refused\",pid=\"7\"} 1\n",
        "\nratelimit_redis_connects_total{pid=\"7\"} 1\n",
        "# TYPE ratelimit_redis_connections gauge\nratelimit_redis_connections{pid=\"7\"} 1\n",
        "# TYPE ratelimit_redis_waited_seconds_total counter\n"
        "ratelimit_redis_waited_seconds_total{pid=\"7\"} 0.",
        "# TYPE ratelimit_redis_last_success_timestamp_seconds gauge\n"
        "ratelimit_redis_last_success_timestamp_seconds{pid=\"7\"} 1",
    };
    static unsigned char memory[RATELIMIT_TABLE_BYTES(16)];
    static char text[8192], cut[8192];
    ratelimit_redis *r = open_at(server_port(), 1000);
    ratelimit_limiter limiter;
    ratelimit_tier tier;
    const char *at, *end;
    size_t i, len;
    server_flush();
    memset(&limiter, 0, sizeof limiter);
    memset(&tier, 0, sizeof tier);
    tier.store = ratelimit_redis_store(r);
    CHECK_U64(ratelimit_table_init(&tier.table, memory, sizeof memory, NULL), RATELIMIT_OK);
    CHECK_U64(ratelimit_init(&limiter, tier.store), RATELIMIT_OK);
    CHECK(ratelimit_allow(&limiter, "k", &hourly));
    CHECK(server_do(server_port(), "SET %s 7", server_bucket("pest")));
    CHECK(ratelimit_allow(&limiter, "pest", &hourly)); /* let through */
    for (i = 0; i < 2; i++) {
        size_t j;
        len = ratelimit_metrics(&limiter, NULL, 0, "pid=\"7\"", text, sizeof text);
        CHECK_U64(len, strlen(text));
        for (j = 0; j < sizeof lines / sizeof lines[0]; j++)
            CHECK_TEXT(strstr(text, lines[j]) ? lines[j] : text, lines[j]);
        limiter.store = ratelimit_tier_store(&tier); /* the same behind a tier */
    }
    for (at = text; *at; at = end + 1) { /* HELP is a sentence, labels have no blanks */
        end = strchr(at, '\n');
        if (strncmp(at, "# HELP ", 7) == 0)
            CHECK(*(strchr(at + 7, ' ') + 1) <= 'Z' && end[-1] == '.');
        else if (*at != '#')
            CHECK(memchr(at, ' ', (size_t)(end - at)) == strrchr(at, ' ') ||
                  strchr(strchr(at, ' ') + 1, ' ') > end);
    }
    for (i = 0; i <= len + 1; i += len / 7) { /* fits, or is empty */
        memset(cut, 'x', sizeof cut);
        CHECK_U64(ratelimit_metrics(&limiter, NULL, 0, "pid=\"7\"", cut, i), len);
        CHECK(cut[i] == 'x');
        if (i)
            CHECK(strlen(cut) == (i > len ? len : 0));
    }
    CHECK_U64(ratelimit_redis_metrics(NULL, NULL, text, sizeof text), 0);
    ratelimit_redis_close(r);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(one_swallowed_request_fails_one_decision);
    RUN(one_connection_reset_with_a_request_out_fails_one_decision);
    RUN(one_swallowed_request_of_a_single_caller_fails_one_decision);
    RUN(connections_forgotten_while_idle_cost_one_decision);
    RUN(a_connection_asks_the_kernel_to_look_after_its_peer);
    RUN(the_default_timeout_outlives_a_lost_packet);
    RUN(a_slow_login_is_finished_by_the_next_call);
    RUN(cool_downs_differ_by_chance);
    RUN(two_connections_are_made_at_a_time);
    RUN(a_connection_that_takes_nothing_is_not_seen_and_gives_no_signal);
    RUN(a_call_that_fails_while_it_is_sent_does_not_wait_for_its_timeout);
    RUN(a_demoted_master_is_left_at_once_with_three_connections_open);
    RUN(one_key_that_holds_something_else_costs_the_others_nothing);
    RUN(one_key_that_holds_something_else_costs_a_tier_nothing);
    RUN(a_dead_node_costs_the_keys_of_others_nothing);
    RUN(a_dead_node_behind_a_tier_costs_the_keys_of_others_nothing);
    RUN(nodes_that_left_a_cluster_are_forgotten);
    RUN(a_lock_whose_answer_was_lost_is_held_by_the_one_who_asks_again);
    RUN(a_permit_whose_answer_was_lost_is_one_permit);
    RUN(a_renewal_is_sent_also_while_the_server_is_left_alone);
    RUN(no_users_name_is_another_things);
    RUN(a_bucket_belongs_to_key_and_scope);
    RUN(counters_at_the_top_of_their_type_are_full);
    RUN(errors_of_the_login_keep_the_servers_words);
    RUN(a_key_cannot_pass_for_an_error_code);
    RUN(one_of_two_limiters_on_a_handle_may_be_closed);
    RUN(connections_have_the_clients_name);
    RUN(urls_are_read);
    RUN(one_key_is_one_command);
    RUN(counters_tell_what_went_wrong);
    RUN(metrics_have_the_clients_counters);
    return check_end();
}

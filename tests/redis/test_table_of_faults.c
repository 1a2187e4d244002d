/* test_table_of_faults.c - what each fault costs while eight threads take from one key and from
 * keys of their own: prints a row for each, and looks at what must hold in all: no token and no
 * failed decision over the stated bound, no charge made twice, no answer to another request, no
 * call without an end, decisions again afterwards by themselves.
 *
 * Servers, cluster and sentinels are its own, but for the one that run.sh says.
 *
 * TIMES in the environment: how often each fault is made (3). */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "cluster.h"
#include "proxy.h"
#include "servers.h"
#include "shared.h"

enum { THREADS = 8, BURST = 50, PER_S = 100, TIMEOUT_MS = 200, BETWEEN_MS = 150 };

/* Of a failure that lasts for a time it is not said how many decisions fail. */
enum { WHILE_IT_LASTS = 1000000 };

static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(PER_S, RATELIMIT_SECOND, BURST, 1);

/* Who takes; an even one through the first handle, an odd one through the second. Its own key has a
 * burst that no other has, which tells whose an answer is. */
typedef struct taker {
    ratelimit_store store;
    char own[24];
    ratelimit_limit own_limit;
    bool forgets;
    shared64 stop, decided, failed, granted, unclear, wrong, longest_ns;
} taker;

static taker takers[THREADS];
static proxy between, to_master, to_sentinel;
static char common[24]; /* the key of this row */
static unsigned rows;
static uint64_t more_over; /* of the bound, that depends on how long something took */

/* One decision; false if it failed. */
static bool take_one(taker *t, const char *key, const ratelimit_limit *l, ratelimit_result *res)
{
    ratelimit_request q = server_request(key, l, RATELIMIT_TAKE, 1);
    uint64_t begin = ratelimit_clock_ns(), took;
    t->store.decide(&t->store, &q, res, 1, RATELIMIT_EACH);
    took = ratelimit_clock_ns() - begin;
    if (took > t->longest_ns)
        set(&t->longest_ns, took);
    add(res->status == RATELIMIT_STORE_FAILED ? &t->failed : &t->decided, 1);
    return res->status != RATELIMIT_STORE_FAILED;
}

/* What is left of one's own key is what one was told, but for those whose answer was lost. */
static void look_at_own(taker *t, const ratelimit_result *res, uint64_t had)
{
    uint64_t most = t->own_limit.burst - (t->forgets ? 1 : had),
             least = t->own_limit.burst - had - t->unclear;
    if (!res->allowed || res->remaining > most || res->remaining < least)
        add(&t->wrong, 1);
}

static void *taker_run(void *self)
{
    taker *t = (taker *)self;
    uint64_t had = 0;
    while (!get(&t->stop)) {
        ratelimit_result res;
        if (take_one(t, common, &limit, &res))
            add(&t->granted, res.allowed);
        if (take_one(t, t->own, &t->own_limit, &res))
            look_at_own(t, &res, ++had);
        else
            add(&t->unclear, 1);
        server_sleep_ms(2);
    }
    return NULL;
}

/* ---- faults of one server: a kind of the proxy, or a function -------------------------------- */

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

static void scripts_always_forgotten(void)
{
    between.before = scripts_forgotten;
    server_sleep_ms(100);
    between.before = NULL;
    server_sleep_ms(20); /* the last one */
}

static void paused(void)
{
    command("CLIENT PAUSE 50 ALL");
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

static void password_asked(void)
{
    command("CONFIG SET requirepass changed");
    command("CLIENT KILL TYPE normal");
    server_sleep_ms(100);
    (void)server_do(server_port(), "CONFIG SET requirepass %s", "");
}

/* The password of now, as the clients are told it. */
static shared64 password;

static bool credentials(void *self, bool refused, ratelimit_redis_login *login)
{
    (void)self, (void)refused;
    login->user[0] = 0;
    snprintf(login->password, sizeof login->password, "p%d", (int)get(&password));
    return true;
}

static void password_changed(void)
{
    add(&password, 1);
    CHECK(server_do(server_port(), "CONFIG SET requirepass p%d", (int)get(&password)));
    command("CLIENT KILL TYPE normal");
}

/* ---- a server of our own, that dies ---------------------------------------------------------- */

static int lone_port;
static pid_t lone_pid;

static void killed_and_empty(void)
{
    end_server(lone_pid);
    server_sleep_ms(100);
    lone_pid = start_at(lone_port, "", false);
}

/* ---- a cluster of three masters, with a replica each ----------------------------------------- */

static const char cluster_settings[] =
    "cluster-enabled yes\ncluster-node-timeout 500\ncluster-require-full-coverage no\n"
    "repl-ping-replica-period 1\ncluster-config-file nodes-%d.conf\n";
static ratelimit_redis *looker; /* knows where slots are, and is used by no taker */
static pid_t forming;

static void start_node(int i)
{
    char settings[300];
    snprintf(settings, sizeof settings, cluster_settings, i);
    if (node_port[i])
        node_pid[i] = start_at(node_port[i], settings, false);
    else
        node_port[i] = start(settings, false, &node_pid[i]);
}

static void begin_cluster(void)
{
    char text[300];
    int i;
    for (i = 0; i < NODES; i++)
        start_node(i);
    snprintf(text, sizeof text,
             "timeout 60 redis-cli --cluster create 127.0.0.1:%d 127.0.0.1:%d 127.0.0.1:%d "
             "127.0.0.1:%d 127.0.0.1:%d 127.0.0.1:%d --cluster-replicas 1 --cluster-yes "
             ">/dev/null 2>&1 </dev/null",
             node_port[0], node_port[1], node_port[2], node_port[3], node_port[4], node_port[5]);
    forming = fork();
    if (forming == 0) {
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
        _exit(127);
    }
}

static bool knows_its_master(int port)
{
    return is_master(port) || is_synced(port);
}

static ratelimit_redis_options cluster_options(void)
{
    static char host[NODES * 20];
    ratelimit_redis_options options;
    size_t at = 0;
    int i;
    for (i = 0; i < NODES; i++)
        at += (size_t)snprintf(host + at, sizeof host - at, "%s127.0.0.1:%d", i ? "," : "",
                               node_port[i]);
    memset(&options, 0, sizeof options);
    options.host = host;
    options.cluster = true;
    return options;
}

static void wait_for_cluster(void)
{
    ratelimit_redis_options options;
    int status = 1, i, replicas = 0;
    CHECK(waitpid(forming, &status, 0) == forming && status == 0);
    for (i = 0; i < NODES; i++) {
        wait_until(knows_six, node_port[i], 20000);
        wait_until(knows_its_master, node_port[i], 20000);
        replicas += !is_master(node_port[i]);
    }
    CHECK_U64(replicas, 3);
    options = cluster_options();
    options.timeout_ms = 2000;
    looker = server_open(&options);
}

/* The port of the master that has the common key, asked anew. */
static int owner_now(void)
{
    uint64_t until = ratelimit_clock_ns() + 20 * RATELIMIT_SECOND;
    while (server_decide(looker, common, &limit, RATELIMIT_PEEK, 1).status ==
               RATELIMIT_STORE_FAILED &&
           ratelimit_clock_ns() < until)
        server_sleep_ms(10);
    return owner_of(looker, common);
}

/* The slot of the common key goes to another master, with all keys in it. */
static void slot_moved(void)
{
    move m;
    (void)owner_now();
    move_begin(&m, looker, common);
    server_sleep_ms(50);
    move_key(&m, common);
    server_sleep_ms(50);
    move_end(&m);
    server_sleep_ms(50);
    CHECK_U64(owner_now(), m.to);
}

static int kill_owner(void)
{
    int i = node_of(owner_now());
    end_server(node_pid[i]);
    return i;
}

/* It comes back as a replica of the one that took its place. */
static void master_with_replica_killed(void)
{
    int replica = replica_of(owner_now()), i;
    CHECK(replica > 0);
    i = kill_owner();
    wait_until(is_master, replica, 20000);
    start_node(i);
    wait_until(is_replica, node_port[i], 20000);
    wait_until(is_synced, node_port[i], 20000);
}

static void end_replicas(void)
{
    int i;
    for (i = 0; i < NODES; i++)
        if (!is_master(node_port[i])) {
            end_server(node_pid[i]);
            node_dead[i] = true;
        }
}

/* Nobody takes its place: it comes back empty, as the same node. */
static void master_without_replica_killed(void)
{
    int i = kill_owner();
    server_sleep_ms(1000);
    start_node(i);
}

/* ---- sentinels ------------------------------------------------------------------------------- */

/* A master and two replicas. Whoever asks the sentinels reaches the first one through a proxy, and
 * so do the others: it must not have two addresses. */
static int lookout_port[3];
static pid_t lookout_pid[3];

static void start_lookout(int i, int master)
{
    char settings[100] = "";
    size_t at = 0;
    if (i == 0)
        at = (size_t)snprintf(settings, sizeof settings, "replica-announce-port %d\n",
                              to_master.port);
    if (master)
        snprintf(settings + at, sizeof settings - at, "replicaof 127.0.0.1 %d", master);
    if (lookout_port[i])
        lookout_pid[i] = start_at(lookout_port[i], settings, false);
    else
        lookout_port[i] = start(settings, false, &lookout_pid[i]);
}

static void begin_sentinels(void)
{
    proxy_open(&to_master, 0);
    start_lookout(0, 0);
    to_master.server_port = lookout_port[0];
    start_lookout(1, to_master.port);
    start_lookout(2, to_master.port);
    start_sentinels(to_master.port);
    proxy_open(&to_sentinel, sentinels[0]);
}

/* Clients beside the master reach it themselves, and one sentinel, unless they are cut off. */
static void beside_master(void *self, ratelimit_redis_address *address)
{
    (void)self;
    if (address->port == to_master.port)
        address->port = lookout_port[0];
}

static uint64_t granted_of(unsigned side)
{
    uint64_t sum = 0;
    unsigned i;
    for (i = side; i < THREADS; i += 2)
        sum += get(&takers[i].granted);
    return sum;
}

static bool all_decide(void);

/* A sentinel whose machine stood still for two seconds does nothing for 30 s (its "tilt mode"). */
enum { PATIENCE_MS = 100000 };

/* The master and those beside it are cut off, the others get another one; then it ends. The bound
 * is what the other side may give meanwhile: a burst, and the rate for as long as there are two. */
static void both_sides_answer(void)
{
    uint64_t begin = ratelimit_clock_ns(), until = begin + PATIENCE_MS * RATELIMIT_MILLISECOND,
             was[2];
    to_master.cut = to_sentinel.cut = 1;
    while (master_now(sentinels[1]) == to_master.port && ratelimit_clock_ns() < until)
        server_sleep_ms(10);
    CHECK(master_now(sentinels[1]) != to_master.port);
    CHECK(all_decide());
    was[0] = granted_of(0);
    was[1] = granted_of(1);
    server_sleep_ms(500);
    CHECK(granted_of(0) > was[0] && granted_of(1) > was[1]);
    to_master.cut = to_sentinel.cut = 0;
    wait_until(is_replica, lookout_port[0], PATIENCE_MS);
    CHECK(all_decide());
    more_over += BURST + (ratelimit_clock_ns() - begin) / (RATELIMIT_SECOND / PER_S);
}

/* It comes back as a replica. */
static void failed_over(void)
{
    uint64_t until;
    int port = wait_for_end_of_failover(), i, next;
    for (i = 0; i < 2 && lookout_port[i] != port; i++)
        continue;
    if (port == to_master.port)
        i = 0;
    end_server(lookout_pid[i]);
    until = ratelimit_clock_ns() + PATIENCE_MS * RATELIMIT_MILLISECOND;
    do {
        server_sleep_ms(10);
        next = master_of(2);
    } while ((next == 0 || next == port) && ratelimit_clock_ns() < until);
    CHECK(next != 0 && next != port);
    start_lookout(i, next);
    wait_until(is_synced, lookout_port[i], PATIENCE_MS);
}

/* ---- the rows -------------------------------------------------------------------------------- */

typedef struct fault {
    const char *name;
    proxy_fault kind; /* PROXY_NONE: a function */
    void (*make)(void);
    uint64_t over_each, failed_each; /* the stated bounds, for each time */
} fault;

static const fault of_a_server[] = {
    {"a request is swallowed", PROXY_STALL, NULL, 0, 1},
    {"an answer is swallowed", PROXY_DEAF, NULL, 0, 1},
    {"a part of an answer, then a reset", PROXY_HALF, NULL, 0, 1},
    {"answers in bytes, reordered", PROXY_ROUGH, NULL, 0, 0},
    {"a connection is reset", PROXY_RESET, NULL, 0, 1},
    {"all connections are forgotten", PROXY_FORGET, NULL, 0, WHILE_IT_LASTS},
    {"an answer comes 230 ms late", PROXY_DELAY, NULL, 0, 1},
    {"CLIENT KILL of all", PROXY_NONE, clients_killed, 0, THREADS},
    {"SCRIPT FLUSH", PROXY_NONE, scripts_forgotten, 0, 0},
    {"SCRIPT FLUSH before each, 100 ms", PROXY_NONE, scripts_always_forgotten, 0, 0},
    {"CLIENT PAUSE, 50 ms", PROXY_NONE, paused, 0, 0},
    {"SIGSTOP of the server, 300 ms", PROXY_NONE, stopped, 0, WHILE_IT_LASTS},
    {"maxmemory reached, 100 ms", PROXY_NONE, out_of_memory, 0, WHILE_IT_LASTS},
    {"READONLY, 100 ms", PROXY_NONE, read_only, 0, WHILE_IT_LASTS},
    {"a password is asked, 100 ms", PROXY_NONE, password_asked, 0, WHILE_IT_LASTS},
    {"FLUSHALL: all is forgotten", PROXY_NONE, emptied, BURST, 0},
};

static const fault password_fault = {"the password changed, it is told", PROXY_NONE,
                                     password_changed, 0, THREADS};
static const fault restart_fault = {"killed, restarts empty", PROXY_NONE, killed_and_empty, BURST,
                                    WHILE_IT_LASTS};
static const fault move_fault = {"a slot moves", PROXY_NONE, slot_moved, 0, 0};
static const fault replica_fault = {"a master with a replica killed", PROXY_NONE,
                                    master_with_replica_killed, BURST, WHILE_IT_LASTS};
static const fault alone_fault = {"a master without one killed", PROXY_NONE,
                                  master_without_replica_killed, BURST, WHILE_IT_LASTS};
static const fault both_fault = {"partition, both sides answer", PROXY_NONE, both_sides_answer, 0,
                                 WHILE_IT_LASTS};
static const fault failover_fault = {"a sentinel failover", PROXY_NONE, failed_over, BURST,
                                     WHILE_IT_LASTS};

static unsigned times(void)
{
    const char *text = getenv("TIMES");
    return text ? (unsigned)strtoul(text, NULL, 10) : 3;
}

/* True when each thread has decided from now on on both of its keys, within ten seconds. */
static bool all_decide(void)
{
    uint64_t was[THREADS], until = ratelimit_clock_ns() + 10 * RATELIMIT_SECOND;
    unsigned i, left = THREADS;
    for (i = 0; i < THREADS; i++)
        was[i] = get(&takers[i].decided);
    while (left && ratelimit_clock_ns() < until) {
        server_sleep_ms(1);
        for (i = left = 0; i < THREADS; i++)
            left += get(&takers[i].decided) < was[i] + 3; /* two keys in turn */
    }
    return left == 0;
}

static void start_taker(unsigned i, ratelimit_redis *r, bool forgets, pthread_t *thread)
{
    taker *t = &takers[i];
    memset(t, 0, sizeof *t);
    t->store = ratelimit_redis_store(r);
    t->forgets = forgets;
    snprintf(t->own, sizeof t->own, "own-%u-%u", rows, i);
    t->own_limit = ratelimit_limit_make(1, 10 * RATELIMIT_MINUTE, 500000 * (i + 1));
    t->own_limit.scope = 1;
    if (pthread_create(thread, NULL, taker_run, t) != 0)
        exit(2);
}

/* Prints the row and looks at what must hold in each. */
static void report(const fault *f, unsigned count, uint64_t span, uint64_t again)
{
    uint64_t may = BURST + 1 + span / (RATELIMIT_SECOND / PER_S), over;
    uint64_t bound = f->over_each * count + more_over;
    uint64_t decided = 0, failed = 0, granted = 0, wrong = 0, longest = 0;
    unsigned i;
    for (i = 0; i < THREADS; i++) {
        const taker *t = &takers[i];
        decided += t->decided;
        failed += t->failed;
        granted += t->granted;
        wrong += t->wrong;
        longest = t->longest_ns > longest ? t->longest_ns : longest;
    }
    over = granted > may ? granted - may : 0;
    printf("  %-34s %5u %10u %7u %6u of %-5u %6.2f s %6.2f s\n", f->name, count, (unsigned)decided,
           (unsigned)failed, (unsigned)over, (unsigned)bound, (double)longest / 1e9,
           (double)again / 1e9);
    CHECK(over <= bound);
    CHECK(granted > 0);
    CHECK_U64(wrong, 0);
    /* Ten times of what is stated, and more: for a machine at work. */
    CHECK(failed <= 10 * f->failed_each * count + THREADS);
    CHECK(longest < 10 * RATELIMIT_SECOND);
}

static void row(const fault *f, unsigned count, ratelimit_redis *first, ratelimit_redis *second)
{
    pthread_t thread[THREADS];
    uint64_t begin = ratelimit_clock_ns(), end, again = 0;
    unsigned i;
    more_over = 0;
    snprintf(common, sizeof common, "common-%u", ++rows);
    for (i = 0; i < THREADS; i++)
        start_taker(i, i % 2 ? second : first, f->over_each > 0 || f == &both_fault, &thread[i]);
    for (i = 0; i < count; i++) {
        server_sleep_ms(BETWEEN_MS);
        if (f->make)
            f->make();
        else
            proxy_spoil(&between, f->kind);
        end = ratelimit_clock_ns();
        CHECK(all_decide());
        again = ratelimit_clock_ns() - end > again ? ratelimit_clock_ns() - end : again;
    }
    server_sleep_ms(BETWEEN_MS);
    for (i = 0; i < THREADS; i++) {
        set(&takers[i].stop, 1);
        pthread_join(thread[i], NULL);
    }
    report(f, count, ratelimit_clock_ns() - begin, again);
}

static ratelimit_redis *open_row(ratelimit_redis_options options)
{
    options.timeout_ms = TIMEOUT_MS;
    return server_open(&options);
}

static void row_with(const fault *f, ratelimit_redis_options options)
{
    ratelimit_redis *r = open_row(options);
    row(f, times(), r, r);
    ratelimit_redis_close(r);
}

static void a_server_that_fails_costs_no_more_than_stated(void)
{
    ratelimit_redis_options options = server_options();
    size_t i;
    proxy_open(&between, server_port());
    options.port = between.port;
    for (i = 0; i < sizeof of_a_server / sizeof of_a_server[0]; i++) {
        (void)server_flush();
        row_with(&of_a_server[i], options);
    }
    proxy_close(&between);
    options = server_options();
    options.credentials = credentials;
    password_changed();
    row_with(&password_fault, options);
    CHECK(server_do(server_port(), "CONFIG SET requirepass %s", ""));
    lone_port = start("", false, &lone_pid);
    options = server_options();
    options.port = lone_port;
    row_with(&restart_fault, options);
}

static void nor_does_a_cluster(void)
{
    wait_for_cluster();
    row_with(&move_fault, cluster_options());
    row_with(&replica_fault, cluster_options());
    end_replicas();
    row_with(&alone_fault, cluster_options());
    ratelimit_redis_close(looker);
}

static void nor_do_sentinels(void)
{
    ratelimit_redis_options options;
    ratelimit_redis *here, *there;
    char host[40];
    wait_for_sentinels(2);
    options = sentinel_options();
    options.timeout_ms = TIMEOUT_MS;
    there = open_row(options);
    snprintf(host, sizeof host, "127.0.0.1:%d", to_sentinel.port);
    options.host = host;
    options.translate = beside_master;
    here = open_row(options);
    row(&both_fault, (times() + 2) / 3, here, there); /* it takes long to end */
    ratelimit_redis_close(here);
    row(&failover_fault, times(), there, there);
    ratelimit_redis_close(there);
    proxy_close(&to_master);
    proxy_close(&to_sentinel);
}

int main(int argc, char **argv)
{
    char text[100];
    check_begin(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/ratelimit_faults_%d", (int)getpid());
    if (mkdir(folder, 0700) != 0)
        return 2;
    atexit(kill_all);
    begin_cluster(); /* all of them form while the first rows are made */
    begin_sentinels();
    printf("  %-34s %5s %10s %7s %15s %8s %8s\n", "fault, 8 threads on one key", "times",
           "decisions", "failed", "tokens over", "longest", "again");
    RUN(a_server_that_fails_costs_no_more_than_stated);
    RUN(nor_does_a_cluster);
    RUN(nor_do_sentinels);
    kill_all();
    snprintf(text, sizeof text, "rm -rf %s", folder);
    CHECK(system(text) == 0);
    return check_end();
}

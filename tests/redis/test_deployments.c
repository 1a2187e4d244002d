/* test_deployments.c - where servers are found and who we are: sentinels, several nodes, names with
 * several addresses, addresses that are others from here, logins that change. On real servers of
 * its own; test_async.c has the same engine on event loops. */
#define _POSIX_C_SOURCE 200809L
#include <netdb.h>
#include <string.h>

/* Names of this test, that no resolver knows. */
static int getaddrinfo_of_test(const char *host, const char *service, const struct addrinfo *hints,
                               struct addrinfo **found);
#define getaddrinfo(host, service, hints, found) getaddrinfo_of_test(host, service, hints, found)
#define RATELIMIT_REDIS_ASYNC
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"
#undef getaddrinfo

#include "servers.h"

#include <pthread.h>

static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1000000, RATELIMIT_HOUR, 1000000, 1);

/* ---- sentinels ------------------------------------------------------------------------------- */

static void sentinels_say_where_the_master_is(void)
{
    ratelimit_redis_options options = sentinel_options();
    ratelimit_redis *r = server_open(&options);
    char url[300];
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_OK);
    CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 999999);
    CHECK_U64(server_int(master_port, "EXISTS %s", server_bucket("k")), 1);
    ratelimit_redis_close(r);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d,127.0.0.1:%d/2?master=limits", sentinels[1],
             sentinels[2]);
    options.host = NULL;
    options.master_name = NULL;
    r = ratelimit_redis_open_url(url, &options, NULL);
    CHECK(r != NULL);
    CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 999999); /* another database */
    ratelimit_redis_close(r);
}

static void what_the_sentinels_do_not_know_is_said(void)
{
    ratelimit_redis_options options = sentinel_options();
    ratelimit_redis *r;
    options.master_name = "nobody";
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "knows no master of that name") != NULL);
    ratelimit_redis_close(r);
    options.master_name = "limits";
    options.sentinel_password = "wrong";
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "does not accept this") != NULL);
    ratelimit_redis_close(r);
}

static void a_sentinel_that_is_gone_is_no_matter(void)
{
    ratelimit_redis_options options = sentinel_options();
    ratelimit_redis *r;
    char host[200];
    int gone = free_port(), i;
    snprintf(host, sizeof host, "127.0.0.1:%d,127.0.0.1:%d", gone, sentinels[0]);
    options.host = host;
    for (i = 0; i < 4; i++) { /* any of them may be asked first */
        r = server_open(&options);
        CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_OK);
        ratelimit_redis_close(r);
    }
}

typedef struct taker {
    ratelimit_store store;
    uint64_t last_failure_ns, longest_ns;
    size_t decided, failed;
} taker;

static volatile sig_atomic_t over;

static void *take_all_the_time(void *self)
{
    taker *t = (taker *)self;
    while (!over) {
        ratelimit_request q = server_request("busy", &hourly, RATELIMIT_TAKE, 1);
        ratelimit_result res;
        uint64_t start_ns = ratelimit_clock_ns(), now;
        t->store.decide(&t->store, &q, &res, 1, RATELIMIT_EACH);
        now = ratelimit_clock_ns();
        t->longest_ns = now - start_ns > t->longest_ns ? now - start_ns : t->longest_ns;
        if (res.status == RATELIMIT_STORE_FAILED) {
            t->failed++;
            t->last_failure_ns = now;
            server_sleep_ms(1);
        } else {
            t->decided++;
        }
    }
    return NULL;
}

/* The master is killed while four threads take; the replica takes over, and they find it. */
static void a_failover_under_load_is_followed(void)
{
    enum { THREADS = 4 };
    ratelimit_redis_options options = sentinel_options();
    ratelimit_redis *r;
    taker t[THREADS];
    pthread_t thread[THREADS];
    uint64_t killed, taken_over = 0, last = 0, longest = 0, until;
    size_t decided = 0, failed = 0;
    int i;
    options.timeout_ms = 300;
    options.cool_down_ms = 100;
    r = server_open(&options);
    CHECK(server_take(r, "busy", &hourly, 1).allowed);
    until = ratelimit_clock_ns() + 100 * RATELIMIT_SECOND;
    for (i = 0; i < THREADS; i++) {
        memset(&t[i], 0, sizeof t[i]);
        t[i].store = ratelimit_redis_store(r);
        CHECK(pthread_create(&thread[i], NULL, take_all_the_time, &t[i]) == 0);
    }
    server_sleep_ms(300);
    end_server(master_pid);
    killed = ratelimit_clock_ns();
    while (ratelimit_clock_ns() < until && !taken_over) {
        if (master_now(sentinels[0]) == replica_port)
            taken_over = ratelimit_clock_ns();
        server_sleep_ms(10);
    }
    server_sleep_ms(2500);
    over = 1;
    for (i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        decided += t[i].decided;
        failed += t[i].failed;
        last = t[i].last_failure_ns > last ? t[i].last_failure_ns : last;
        longest = t[i].longest_ns > longest ? t[i].longest_ns : longest;
    }
    CHECK(taken_over != 0);
    CHECK(failed > 0 && last < taken_over + 2 * RATELIMIT_SECOND);
    CHECK(longest < 2 * RATELIMIT_SECOND);
    CHECK(server_take(r, "busy", &hourly, 1).allowed);
    CHECK(server_int(replica_port, "EXISTS %s", server_bucket("busy")) == 1);
    printf("  failover: the sentinels said so %u ms after the kill, the last failure came %u ms "
           "after it, %u failed of %u\n",
           (unsigned)((taken_over - killed) / RATELIMIT_MILLISECOND),
           (unsigned)(last > killed ? (last - killed) / RATELIMIT_MILLISECOND : 0),
           (unsigned)failed, (unsigned)(failed + decided));
    ratelimit_redis_close(r);
}

/* The master is told to hand over, and is a replica of the other: no client may write to it. */
static void a_master_that_hands_over_is_left(void)
{
    ratelimit_redis_options options = sentinel_options();
    ratelimit_redis *r;
    char settings[100];
    uint64_t start_ns;
    int old = replica_port, other, i, decided = 0;
    bool ready = false;
    snprintf(settings, sizeof settings, "replicaof 127.0.0.1 %d", old);
    other = start(settings, false, NULL); /* in place of the one that was killed */
    for (i = 0; i < 1500 && !ready; i++) {
        redisReply *reply = server_ask(sentinels[0], "SENTINEL REPLICAS limits");
        ready = reply && reply->elements == 2;
        freeReplyObject(reply);
        server_sleep_ms(20);
    }
    CHECK(ready);
    CHECK(wait_for_end_of_failover() == old);
    r = server_open(&options);
    CHECK(server_take(r, "handed", &hourly, 1).allowed);
    for (i = 0, ready = false; i < 500 && !ready; i++) {
        redisReply *reply = server_ask(sentinels[0], "SENTINEL FAILOVER limits");
        ready = reply && reply->type == REDIS_REPLY_STATUS;
        freeReplyObject(reply);
        server_sleep_ms(20);
    }
    CHECK(ready);
    start_ns = ratelimit_clock_ns();
    while (master_now(sentinels[0]) != other && server_ms_since(start_ns) < 100000)
        (void)server_take(r, "handed", &hourly, 1);
    for (i = 0; i < 1000 && server_int(old, "EXISTS nothing") == 0; i++) { /* it is demoted later */
        redisReply *reply = server_ask(old, "ROLE");
        bool replica = reply && reply->elements && strcmp(reply->element[0]->str, "slave") == 0;
        freeReplyObject(reply);
        if (replica)
            break;
        server_sleep_ms(10);
    }
    for (i = 0; i < 20; i++)
        decided += server_take(r, "after", &hourly, 1).status == RATELIMIT_OK;
    CHECK(decided >= 15); /* on a machine at work an answer may come late */
    CHECK_U64(server_int(other, "EXISTS %s", server_bucket("after")), 1);
    ratelimit_redis_close(r);
}

/* ---- the same on an event loop --------------------------------------------------------------- */

static struct pollfd watched[MOST];

static int watch(void *self, int fd, unsigned events, void **yours)
{
    size_t i = 0;
    (void)self, (void)yours;
    while (i < MOST && watched[i].events && watched[i].fd != fd)
        i++;
    if (i == MOST)
        return -1;
    watched[i].fd = events ? fd : -1;
    watched[i].events = (short)((events & RATELIMIT_REDIS_READ ? POLLIN : 0) |
                                (events & RATELIMIT_REDIS_WRITE ? POLLOUT : 0));
    return 0;
}

static void answered(void *self, const ratelimit_result *res, size_t count)
{
    CHECK_U64(count, 1);
    *(ratelimit_result *)self = *res;
}

/* Asks, and turns the loop until it is answered. */
static ratelimit_result take_on_loop(const ratelimit_redis_options *options)
{
    ratelimit_request q = server_request("loop", &hourly, RATELIMIT_TAKE, 1);
    ratelimit_redis_loop loop;
    ratelimit_redis_async *a;
    ratelimit_result res;
    size_t i;
    memset(&res, 0, sizeof res);
    memset(&loop, 0, sizeof loop);
    memset(watched, 0, sizeof watched);
    loop.watch = watch;
    a = ratelimit_redis_async_open(options, &loop, NULL);
    CHECK(a != NULL);
    CHECK_U64(ratelimit_redis_async_take(a, &q, answered, &res), RATELIMIT_OK);
    while (ratelimit_redis_async_under_way(a)) {
        (void)poll(watched, MOST, 1);
        for (i = 0; i < MOST; i++)
            if (watched[i].events && watched[i].revents)
                ratelimit_redis_async_ready(
                    a, watched[i].fd,
                    (watched[i].revents & ~POLLOUT ? RATELIMIT_REDIS_READ : 0) |
                        (watched[i].revents & POLLOUT ? RATELIMIT_REDIS_WRITE : 0));
        ratelimit_redis_async_tick(a, ratelimit_clock_ns());
    }
    ratelimit_redis_async_close(a);
    for (i = 0; i < MOST; i++)
        CHECK_U64(watched[i].events, 0); /* the loop was told of each end */
    return res;
}

static void an_event_loop_asks_sentinels_too(void)
{
    ratelimit_redis_options options = sentinel_options();
    char host[200];
    int i;
    snprintf(host, sizeof host, "127.0.0.1:%d,127.0.0.1:%d", free_port(), sentinels[0]);
    for (i = 0; i < 3; i++)
        CHECK_U64(take_on_loop(&options).status, RATELIMIT_OK);
    options.host = host;
    for (i = 0; i < 3; i++)
        CHECK_U64(take_on_loop(&options).status, RATELIMIT_OK);
    options.master_name = "nobody";
    CHECK_U64(take_on_loop(&options).status, RATELIMIT_STORE_FAILED);
}

/* ---- names with several addresses ------------------------------------------------------------ */

/* "several": two addresses where nobody answers, then this one. "silent": one that takes no
 * connections, then this one. */
static struct sockaddr_in first_address;
static int getaddrinfo_of_test(const char *host, const char *service, const struct addrinfo *hints,
                               struct addrinfo **found)
{
    struct addrinfo *first, *second, *third;
    int error = getaddrinfo(strchr(host, '.') ? host : "127.0.0.1", service, hints, found);
    if (error || strchr(host, '.'))
        return error;
    first = *found;
    if (getaddrinfo("127.0.0.1", service, hints, &second) != 0 ||
        getaddrinfo("127.0.0.1", service, hints, &third) != 0)
        exit(2);
    memcpy(first->ai_addr, &first_address, sizeof first_address);
    memcpy(second->ai_addr, &first_address, sizeof first_address);
    first->ai_next = second;
    second->ai_next = third;
    return 0;
}

static void all_addresses_of_a_name_are_tried(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    memset(&first_address, 0, sizeof first_address);
    first_address.sin_family = AF_INET;
    first_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    first_address.sin_port = htons((uint16_t)free_port());
    options.host = "several";
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_OK);
    ratelimit_redis_close(r);
    options.port = ntohs(first_address.sin_port); /* nobody anywhere */
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "several") && strstr(server_error(r), "nobody listens there"));
    ratelimit_redis_close(r);
}

/* Its backlog is full. Each address has its share of the time, so the last has one, too. */
static void an_address_that_is_silent_leaves_the_others_their_time(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    uint64_t start_ns;
    int listener = socket(AF_INET, SOCK_STREAM, 0), filler[4], i;
    socklen_t len = sizeof first_address;
    memset(&first_address, 0, sizeof first_address);
    first_address.sin_family = AF_INET;
    first_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)(void *)&first_address, len) == 0 &&
          listen(listener, 0) == 0 &&
          getsockname(listener, (struct sockaddr *)(void *)&first_address, &len) == 0);
    for (i = 0; i < 4; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM, 0);
        fcntl(filler[i], F_SETFL, O_NONBLOCK);
        (void)connect(filler[i], (struct sockaddr *)(void *)&first_address, sizeof first_address);
    }
    options.host = "silent";
    options.connect_timeout_ms = 900;
    options.timeout_ms = 3000;
    r = server_open(&options);
    start_ns = ratelimit_clock_ns();
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_OK);
    CHECK(server_ms_since(start_ns) >= 500 && server_ms_since(start_ns) < 900);
    ratelimit_redis_close(r);
    for (i = 0; i < 4; i++)
        close(filler[i]);
    close(listener);
}

/* ---- clusters -------------------------------------------------------------------------------- */

static int told_ports[3], asked_to_translate, locked_meanwhile;

/* The nodes say 10.0.0.1; they are reached elsewhere. It must be called without the handle's lock:
 * a function that looks something up would keep all threads waiting. */
static void translate(void *self, ratelimit_redis_address *address)
{
    ratelimit_redis *r = *(ratelimit_redis **)self;
    int i = address->port - 7001;
    if (pthread_mutex_trylock(&r->lock) == 0)
        pthread_mutex_unlock(&r->lock);
    else
        locked_meanwhile++;
    if (strcmp(address->host, "10.0.0.1") != 0 || i < 0 || i > 2)
        return;
    asked_to_translate++;
    strcpy(address->host, "127.0.0.1");
    address->port = told_ports[i];
}

/* Three masters that announce addresses which nobody here can reach. */
static pid_t cluster_pid[3];

static void a_cluster_forms(void)
{
    char settings[300], command[300];
    int i, j;
    for (i = 0; i < 3; i++) {
        snprintf(settings, sizeof settings,
                 "cluster-enabled yes\ncluster-config-file nodes-%d-%d.conf\n"
                 "cluster-require-full-coverage no\n",
                 (int)getpid(), i);
        told_ports[i] = start(settings, false, &cluster_pid[i]);
    }
    snprintf(command, sizeof command,
             "timeout 30 redis-cli --cluster create 127.0.0.1:%d 127.0.0.1:%d 127.0.0.1:%d "
             "--cluster-yes >/dev/null 2>&1 </dev/null",
             told_ports[0], told_ports[1], told_ports[2]);
    CHECK(system(command) == 0);
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 1000; j++) {
            redisReply *reply = server_ask(told_ports[i], "CLUSTER INFO");
            bool good = reply && reply->str && strstr(reply->str, "cluster_state:ok");
            freeReplyObject(reply);
            if (good)
                break;
            server_sleep_ms(10);
        }
        CHECK(j < 1000);
    }
}

/* Takes one of each of 60 keys; how many were decided. */
static int take_60(ratelimit_redis *r)
{
    char key[20];
    int i, decided = 0;
    for (i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "key%d", i);
        decided += server_take(r, key, &hourly, 1).status == RATELIMIT_OK;
    }
    return decided;
}

static void any_of_several_nodes_is_enough_to_find_the_cluster(void)
{
    ratelimit_redis_options options;
    ratelimit_redis *r;
    char host[200];
    int i;
    memset(&options, 0, sizeof options);
    options.cluster = true;
    options.timeout_ms = 2000;
    for (i = 0; i < 3; i++) {
        snprintf(host, sizeof host, "127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d",
                 i == 0 ? told_ports[0] : free_port(), i == 1 ? told_ports[1] : free_port(),
                 i == 2 ? told_ports[2] : free_port());
        options.host = host;
        r = server_open(&options);
        CHECK_U64(take_60(r), 60);
        ratelimit_redis_close(r);
    }
    snprintf(host, sizeof host, "redis://127.0.0.1:%d,127.0.0.1:%d", free_port(), told_ports[2]);
    options.host = NULL;
    r = ratelimit_redis_open_url(host, &options, NULL);
    CHECK(r != NULL);
    CHECK_U64(take_60(r), 60);
    ratelimit_redis_close(r);
}

static void addresses_that_are_others_from_here_are_translated(void)
{
    ratelimit_redis_options options;
    ratelimit_redis *r;
    int i;
    for (i = 0; i < 3; i++)
        CHECK(server_do(told_ports[i], "CONFIG SET cluster-announce-ip 10.0.0.1") &&
              server_do(told_ports[i], "CONFIG SET cluster-announce-port %d", 7001 + i));
    memset(&options, 0, sizeof options);
    options.host = "127.0.0.1";
    options.port = told_ports[0];
    options.cluster = true;
    options.timeout_ms = 2000;
    options.connect_timeout_ms = 200;
    options.translate = translate;
    options.translate_self = &r;
    for (i = 0; i < 500; i++) { /* until all nodes have heard of it */
        redisReply *reply = server_ask(told_ports[i % 3], "CLUSTER SLOTS");
        bool all = reply && reply->elements == 3;
        size_t j;
        for (j = 0; all && j < 3; j++)
            all = strcmp(reply->element[j]->element[2]->element[0]->str, "10.0.0.1") == 0 &&
                  reply->element[j]->element[2]->element[1]->integer > 7000 &&
                  reply->element[j]->element[2]->element[1]->integer < 7004;
        freeReplyObject(reply);
        if (all && i % 3 == 2)
            break;
        server_sleep_ms(20);
    }
    r = server_open(&options);
    CHECK_U64(take_60(r), 60);
    CHECK(asked_to_translate > 0);
    CHECK_U64(locked_meanwhile, 0);
    ratelimit_redis_close(r);
}

/* ---- logins that change ---------------------------------------------------------------------- */

static char now_valid[100];
static int asked, refusals;

static bool credentials(void *self, bool refused, ratelimit_redis_login *login)
{
    asked++;
    refusals += refused;
    if (self == NULL && !refused && asked > 1) /* it has an old one until it is told */
        snprintf(login->password, sizeof login->password, "outdated");
    else
        snprintf(login->password, sizeof login->password, "%s", now_valid);
    snprintf(login->user, sizeof login->user, "token");
    return *now_valid != 0;
}

static ratelimit_redis *open_with_credentials(void *self)
{
    ratelimit_redis_options options = server_options();
    options.timeout_ms = 2000;
    options.cool_down_ms = 1;
    options.credentials = credentials;
    options.credentials_self = self;
    asked = refusals = 0;
    return server_open(&options);
}

static void set_password(const char *password)
{
    snprintf(now_valid, sizeof now_valid, "%s", password);
    CHECK(server_do(server_port(), "ACL SETUSER token reset on >%s ~* +@all", password));
}

static void each_login_asks_for_credentials(void)
{
    ratelimit_redis *r;
    set_password("first");
    r = open_with_credentials(now_valid);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK_U64(asked, 1);
    set_password("second"); /* connections that are logged in stay so; new ones need the new one */
    CHECK(server_do(server_port(), "CLIENT KILL TYPE normal SKIPME yes"));
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK_U64(asked, 2);
    CHECK_U64(refusals, 0);
    ratelimit_redis_close(r);
}

static void a_refused_login_is_tried_once_more_with_new_credentials(void)
{
    ratelimit_redis *r;
    set_password("first");
    r = open_with_credentials(NULL);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "CLIENT KILL TYPE normal SKIPME yes"));
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK_U64(asked, 3);
    CHECK_U64(refusals, 1);
    snprintf(now_valid, sizeof now_valid, "wrong");
    CHECK(server_do(server_port(), "CLIENT KILL TYPE normal SKIPME yes"));
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "does not accept this user and password") != NULL);
    CHECK_U64(asked, 5);
    now_valid[0] = 0;
    server_sleep_ms(5);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "options.credentials gave none") != NULL);
    ratelimit_redis_close(r);
}

/* A connection that was logged in is not known any more: the request was not carried out, and goes
 * out on a new one. */
static void a_connection_that_is_not_known_any_more_is_replaced(void)
{
    ratelimit_redis *r;
    char said[8];
    set_password("first");
    r = open_with_credentials(now_valid);
    CHECK(server_do(server_port(), "ACL SETUSER default resetpass >secret"));
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(send(r->nodes->idle->fd, "*1\r\n$5\r\nRESET\r\n", 15, MSG_NOSIGNAL) == 15);
    server_sleep_ms(100);
    CHECK(recv(r->nodes->idle->fd, said, 8, 0) == 8 && memcmp(said, "+RESET", 6) == 0);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK_U64(asked, 2);
    CHECK(server_do(server_port(), "ACL SETUSER default nopass"));
    ratelimit_redis_close(r);
}

int main(int argc, char **argv)
{
    int i;
    check_begin(argc, argv);
    snprintf(folder, sizeof folder, "/tmp/ratelimit_deploy_%d", (int)getpid());
    if (mkdir(folder, 0700) != 0)
        return 2;
    atexit(kill_all);
    RUN(all_addresses_of_a_name_are_tried);
    RUN(an_address_that_is_silent_leaves_the_others_their_time);
    RUN(each_login_asks_for_credentials);
    RUN(a_refused_login_is_tried_once_more_with_new_credentials);
    RUN(a_connection_that_is_not_known_any_more_is_replaced);
    RUN(a_cluster_forms);
    RUN(any_of_several_nodes_is_enough_to_find_the_cluster);
    RUN(addresses_that_are_others_from_here_are_translated);
    for (i = 0; i < 3; i++)
        end_server(cluster_pid[i]);
    RUN(sentinels_agree);
    RUN(sentinels_say_where_the_master_is);
    RUN(what_the_sentinels_do_not_know_is_said);
    RUN(a_sentinel_that_is_gone_is_no_matter);
    RUN(an_event_loop_asks_sentinels_too);
    RUN(a_failover_under_load_is_followed);
    RUN(a_master_that_hands_over_is_left);
    kill_all();
    {
        char command[100];
        snprintf(command, sizeof command, "rm -rf %s", folder);
        CHECK(system(command) == 0);
    }
    return check_end();
}

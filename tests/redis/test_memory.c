/* test_memory.c - what happens when there is no memory, no socket, no thread: each thing that is
 * asked of the system fails once, and then nothing does any more. test_memory_tls.c: over TLS. */
#define _POSIX_C_SOURCE 200809L
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#if defined(OVER_TLS)
#  include <openssl/ssl.h>
#endif

/* The number of what is asked for, and of that which fails; 0: none. */
static long wants, fails_at;

static int fails(void)
{
    return ++wants == fails_at;
}

/* Both as hiredis does it. */
static int feed_of_test(redisReader *reader, const char *bytes, size_t len)
{
    if (!fails())
        return redisReaderFeed(reader, bytes, len);
    reader->err = REDIS_ERR_OOM;
    return REDIS_ERR;
}

static int reader_of_test(redisReader *reader, void **reply)
{
    if (!fails())
        return redisReaderGetReply(reader, reply);
    reader->err = REDIS_ERR_OOM;
    return REDIS_ERR;
}

#define malloc(bytes)                  (fails() ? NULL : (malloc)(bytes))
#define calloc(count, bytes)           (fails() ? NULL : (calloc)(count, bytes))
#define realloc(old, bytes)            (fails() ? NULL : (realloc)(old, bytes))
#define redisReaderCreate()            (fails() ? NULL : redisReaderCreate())
#define redisReaderFeed(reader, p, n)  feed_of_test(reader, p, n)
#define redisReaderGetReply(reader, p) reader_of_test(reader, p)
#define pthread_create(t, a, run, x)   (fails() ? 11 : (pthread_create)(t, a, run, x))
#if defined(OVER_TLS)
#  define RATELIMIT_REDIS_TLS
#  define SSL_new(all)       (fails() ? NULL : SSL_new(all))
#  define BIO_new(kind)      (fails() ? NULL : BIO_new(kind))
#  define BIO_write(b, p, n) (fails() ? -1 : BIO_write(b, p, n))
#endif
#define RATELIMIT_REDIS_ASYNC
#define RATELIMIT_REDIS_KEEPER
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"
#undef malloc
#undef calloc
#undef realloc
#undef redisReaderCreate
#undef redisReaderFeed
#undef redisReaderGetReply
#undef pthread_create

#include "server.h"

#include <poll.h>
#include <sys/resource.h>

static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1000000, 1);
enum { MANY = 150 }; /* more than are one command */

static ratelimit_redis_options options_of_test(bool cluster)
{
    ratelimit_redis_options o = server_options();
    o.timeout_ms = o.connect_timeout_ms = 3000;
    o.cool_down_ms = 20;
    o.client_name = "memory";
#if defined(OVER_TLS)
    o.port = server_number("TLS_PORT");
    o.tls = true;
    o.tls_ca = server_file("ca.crt");
    (void)cluster;
#else
    o.cluster = cluster;
    if (cluster)
        o.port = server_number("CLUSTER_PORTS");
#endif
    return o;
}

/* One that failed says that memory was missing, or a thread. */
static bool sound(const ratelimit_result *res)
{
    return res->allowed ? res->status == RATELIMIT_OK : res->status == RATELIMIT_STORE_FAILED;
}

/* What was taken is charged, once; what failed is charged once at most. */
static void check_charged(ratelimit_redis *r, const char *key, uint64_t tried, uint64_t allowed)
{
    uint64_t left = server_decide(r, key, &hourly, RATELIMIT_PEEK, 1).remaining;
    CHECK(left <= hourly.burst - allowed);
    CHECK(left >= hourly.burst - tried);
}

/* After a failure the next call goes well: at once, or when the node is asked again. */
static void check_recovers(ratelimit_redis *r, const char *key)
{
    uint64_t start = ratelimit_clock_ns();
    ratelimit_result res = server_take(r, key, &hourly, 1);
    while (!res.allowed && server_ms_since(start) < 3000) {
        server_sleep_ms(2);
        res = server_take(r, key, &hourly, 1);
    }
    CHECK(res.allowed);
}

/* False: nothing failed, all has been tried. */
static bool calls_with_one_failure(bool cluster)
{
    static ratelimit_request q[MANY];
    static ratelimit_result res[MANY];
    static char key[MANY][24];
    ratelimit_redis_options o = options_of_test(cluster);
    ratelimit_redis_permit permit;
    ratelimit_redis_held held;
    ratelimit_status status;
    ratelimit_redis *r;
    ratelimit_store store;
    uint64_t allowed = 0;
    bool failed = false;
    size_t i;
    wants = 0;
    r = ratelimit_redis_open(&o, &status);
    if (r == NULL) {
        CHECK_U64(status, RATELIMIT_NO_MEMORY);
        return true;
    }
    store = ratelimit_redis_store(r);
    for (i = 0; i < 2; i++) {
        res[0] = server_take(r, "single", &hourly, 1);
        CHECK(sound(&res[0]));
        allowed += res[0].allowed;
        failed = failed || !res[0].allowed;
    }
    for (i = 0; i < MANY; i++) {
        snprintf(key[i], sizeof key[i], "{tag}%u", (unsigned)i);
        q[i] = server_request(key[i], &hourly, RATELIMIT_TAKE, 1);
    }
    memset(res, 0xA5, sizeof res);
    store.decide(&store, q, res, MANY, RATELIMIT_EACH);
    for (i = 0; i < MANY; i++) {
        CHECK(sound(&res[i]));
        failed = failed || !res[i].allowed;
    }
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK(sound(&res[0]) && res[0].allowed == res[1].allowed);
    failed = failed || !res[0].allowed;
    status = ratelimit_redis_acquire(r, "semaphore", 9, 5, 60000, 0, 0, &permit, NULL);
    CHECK(status == RATELIMIT_OK || status == RATELIMIT_STORE_FAILED);
    status = ratelimit_redis_lock(r, "lock", 4, 60000, 0, &held);
    CHECK(status == RATELIMIT_OK || status == RATELIMIT_STORE_FAILED);
    i = wants >= fails_at;
    fails_at = 0;
    CHECK(!failed || *server_error(r));
#if !defined(OVER_TLS)
    if (failed && !cluster) { /* the server is not to blame, and not left alone */
        CHECK(strstr(server_error(r), "out of memory") != NULL);
        CHECK(server_take(r, "other", &hourly, 1).allowed);
    }
#endif
    check_recovers(r, "other");
    check_charged(r, "single", 2, allowed);
    ratelimit_redis_close(r);
    return i != 0;
}

static void each_call_survives_that_memory_is_missing_once(void)
{
    long n = 1;
    for (fails_at = n; server_flush() && calls_with_one_failure(false); fails_at = n)
        n++;
    CHECK(n > 20); /* else nothing was tried */
}

#if !defined(OVER_TLS)
static void flush_cluster(void)
{
    char *at = getenv("CLUSTER_PORTS");
    int masters;
    for (masters = 0; masters < 3; masters++)
        CHECK(server_do((int)strtol(at, &at, 10), "FLUSHALL"));
}

static void a_cluster_survives_that_memory_is_missing_once(void)
{
    long n = 1;
    flush_cluster();
    for (fails_at = n; calls_with_one_failure(true); fails_at = n, flush_cluster())
        n++;
    CHECK(n > 20);
}

static void a_keeper_needs_memory_and_a_thread(void)
{
    ratelimit_redis_options o = options_of_test(false);
    ratelimit_redis *r = server_open(&o);
    ratelimit_redis_held held;
    ratelimit_redis_keeper *keeper;
    long n;
    server_flush();
    CHECK_U64(ratelimit_redis_lock(r, "lock", 4, 60000, 0, &held), RATELIMIT_OK);
    for (n = 1; n <= 2; n++) {
        wants = 0;
        fails_at = n;
        CHECK(ratelimit_redis_keep(r, "lock", 4, &held, 60000, NULL, NULL) == NULL);
        CHECK_U64(wants, n);
    }
    fails_at = 0;
    keeper = ratelimit_redis_keep(r, "lock", 4, &held, 60000, NULL, NULL);
    CHECK(keeper != NULL && ratelimit_redis_keep_stop(keeper));
    ratelimit_redis_close(r);
}

/* The server has nothing to do with it, so it is not left alone. */
static void without_a_socket_a_take_fails_and_the_next_one_has_one(void)
{
    ratelimit_redis_options o = options_of_test(false);
    ratelimit_redis *r = server_open(&o);
    struct rlimit before, none;
    server_flush();
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 3; /* standard input, output, errors */
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(strstr(server_error(r), "no connection") != NULL);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    ratelimit_redis_close(r);
}
#endif

/* ---- an event loop, as small as they get ----------------------------------------------------- */

enum { SOCKETS = 8 };

typedef struct world {
    ratelimit_redis_async *a;
    struct pollfd watched[SOCKETS];
    size_t count;
    int refuses; /* that many times it does not take a socket */
    size_t answered, allowed;
    ratelimit_status last;
} world;

static int watch(void *self, int fd, unsigned events, void **yours)
{
    world *w = (world *)self;
    size_t i = 0;
    (void)yours;
    while (i < w->count && w->watched[i].fd != fd)
        i++;
    if (events && w->refuses && w->refuses-- > 0)
        return -1;
    if (!events) {
        if (i < w->count)
            w->watched[i] = w->watched[--w->count];
        return 0;
    }
    w->count += i == w->count;
    w->watched[i].fd = fd;
    w->watched[i].events = (short)((events & RATELIMIT_REDIS_READ ? POLLIN : 0) |
                                   (events & RATELIMIT_REDIS_WRITE ? POLLOUT : 0));
    return 0;
}

static void answer(void *self, const ratelimit_result *res, size_t count)
{
    world *w = (world *)self;
    size_t i;
    for (i = 0; i < count; i++) {
        CHECK(sound(&res[i]));
        w->allowed += res[i].allowed;
    }
    w->answered += count;
    w->last = res->status;
}

static bool world_open(world *w, const ratelimit_redis_options *o)
{
    ratelimit_redis_loop loop;
    ratelimit_status status;
    memset(w, 0, sizeof *w);
    memset(&loop, 0, sizeof loop);
    loop.watch = watch;
    loop.self = w;
    w->a = ratelimit_redis_async_open(o, &loop, &status);
    if (w->a == NULL)
        CHECK_U64(status, RATELIMIT_NO_MEMORY);
    return w->a != NULL;
}

/* Turns the loop until so many answers are there. */
static void world_run(world *w, size_t answers)
{
    uint64_t start = ratelimit_clock_ns();
    while (w->answered < answers && server_ms_since(start) < 10000) {
        struct pollfd ready[SOCKETS];
        size_t i, count = w->count;
        memcpy(ready, w->watched, sizeof ready);
        (void)poll(ready, (nfds_t)count, 2);
        for (i = 0; i < count; i++)
            if (ready[i].revents)
                ratelimit_redis_async_ready(
                    w->a, ready[i].fd,
                    (ready[i].revents & ~POLLOUT ? RATELIMIT_REDIS_READ : 0u) |
                        (ready[i].revents & POLLOUT ? RATELIMIT_REDIS_WRITE : 0u));
        if (ratelimit_redis_async_next_deadline(w->a) <= ratelimit_clock_ns())
            ratelimit_redis_async_tick(w->a, ratelimit_clock_ns());
    }
    CHECK_U64(w->answered, answers);
}

static bool loop_with_one_failure(void)
{
    ratelimit_redis_options o = options_of_test(false);
    ratelimit_request q = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    ratelimit_request many[MANY];
    ratelimit_status status;
    world w;
    size_t i, due = 0;
    wants = 0;
    if (!world_open(&w, &o))
        return true;
    for (i = 0; i < MANY; i++)
        many[i] = q;
    for (i = 0; i < 4; i++) {
        status = i % 2 ? ratelimit_redis_async_take_each(w.a, many, MANY, answer, &w)
                       : ratelimit_redis_async_take(w.a, &q, answer, &w);
        CHECK(status == RATELIMIT_OK || status == RATELIMIT_NO_MEMORY);
        if (status == RATELIMIT_OK)
            due += i % 2 ? MANY : 1;
        world_run(&w, due);
    }
    i = wants >= fails_at;
    fails_at = 0;
    while (w.last != RATELIMIT_OK && i) { /* it recovers */
        server_sleep_ms(2);
        CHECK_U64(ratelimit_redis_async_take(w.a, &q, answer, &w), RATELIMIT_OK);
        world_run(&w, ++due);
        if (due > 4 * MANY)
            break;
    }
    CHECK(w.last == RATELIMIT_OK);
    ratelimit_redis_async_close(w.a);
    return i != 0;
}

static void an_event_loop_survives_that_memory_is_missing_once(void)
{
    long n = 1;
    for (fails_at = n; server_flush() && loop_with_one_failure(); fails_at = n)
        n++;
    CHECK(n > 20);
}

/* As when it has no more sockets to watch. */
static void an_event_loop_that_takes_no_socket_fails_what_needs_it(void)
{
    ratelimit_redis_options o = options_of_test(false);
    ratelimit_request q = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    world w;
    int i;
    server_flush();
    for (i = 0; i < 2; i++) { /* of the network, and local */
        char text[200];
        if (i) {
            o = server_options();
            o.unix_path = getenv("REDIS_SOCKET");
            o.cool_down_ms = 20;
        }
        CHECK(world_open(&w, &o));
        w.refuses = 1;
        CHECK_U64(ratelimit_redis_async_take(w.a, &q, answer, &w), RATELIMIT_OK);
        world_run(&w, 1);
        CHECK_U64(w.last, RATELIMIT_STORE_FAILED);
        CHECK(strstr(ratelimit_redis_async_error(w.a, text, sizeof text),
                     i ? "no connection" : "does not take the connection") != NULL);
        server_sleep_ms(25);
        CHECK_U64(ratelimit_redis_async_take(w.a, &q, answer, &w), RATELIMIT_OK);
        world_run(&w, 2);
        CHECK_U64(w.last, RATELIMIT_OK);
        ratelimit_redis_async_close(w.a);
        CHECK_U64(w.count, 0);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(each_call_survives_that_memory_is_missing_once);
#if !defined(OVER_TLS)
    RUN(a_cluster_survives_that_memory_is_missing_once);
    RUN(a_keeper_needs_memory_and_a_thread);
    RUN(without_a_socket_a_take_fails_and_the_next_one_has_one);
#endif
    RUN(an_event_loop_survives_that_memory_is_missing_once);
    RUN(an_event_loop_that_takes_no_socket_fails_what_needs_it);
    return check_end();
}

/* test_async.c - the asynchronous form of ratelimit_redis.h against real servers, on libevent;
 * test_async_ev.c: on libev; test_async_uv.c: on libuv; test_async_tls.c: over TLS, where the
 * server has a port for it.
 *
 *     SEED=n, DECISIONS=n    as in vectors_redis.c
 */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_REDIS_ASYNC
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "proxy.h"
#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>

#if defined(LOOP_LIBEV)
#  include <ev.h>
#elif defined(LOOP_LIBUV)
#  include <uv.h>
#else
#  include <event2/event.h>
#endif

static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 100, 1);

/* ---- a loop, a handle on it, and what came of it --------------------------------------------- */

typedef struct world {
    ratelimit_redis_async *a;
    size_t timers; /* how often the timer was set */
#if defined(LOOP_LIBEV)
    struct ev_loop *base;
    ev_timer timer;
#elif defined(LOOP_LIBUV)
    uv_loop_t base;
    uv_timer_t timer, guard;
#else
    struct event_base *base;
    struct event *timer;
#endif
} world;

#if defined(LOOP_LIBEV)
static void fired(struct ev_loop *base, ev_timer *timer, int events)
{
    world *w = (world *)timer->data;
    (void)base;
    (void)events;
    ratelimit_redis_async_tick(w->a, ratelimit_clock_ns());
}

/* One watcher for each socket, which the loop frees. */
typedef struct watcher {
    ev_io io;
    world *w;
} watcher;

static void readied(struct ev_loop *base, ev_io *io, int events)
{
    (void)base;
    ratelimit_redis_async_ready(((watcher *)io->data)->w->a, io->fd,
                                (events & EV_READ ? RATELIMIT_REDIS_READ : 0u) |
                                    (events & EV_WRITE ? RATELIMIT_REDIS_WRITE : 0u));
}

static int watch(void *self, int fd, unsigned events, void **yours)
{
    world *w = (world *)self;
    watcher *of = (watcher *)*yours;
    if (of == NULL) {
        of = calloc(1, sizeof *of);
        ev_init(&of->io, readied);
        of->io.data = of;
        of->w = w;
        *yours = of;
    }
    ev_io_stop(w->base, &of->io);
    if (events) {
        ev_io_set(&of->io, fd,
                  (events & RATELIMIT_REDIS_READ ? EV_READ : 0) |
                      (events & RATELIMIT_REDIS_WRITE ? EV_WRITE : 0));
        ev_io_start(w->base, &of->io);
        return 0;
    }
    free(of);
    *yours = NULL;
    return 0;
}

static void set_timer(void *self, uint64_t after_ns)
{
    world *w = (world *)self;
    w->timers++;
    ev_timer_stop(w->base, &w->timer);
    ev_now_update(w->base);
    ev_timer_set(&w->timer, (double)after_ns / 1e9, 0.0);
    ev_timer_start(w->base, &w->timer);
}

static void turn(world *w)
{
    ev_run(w->base, EVRUN_ONCE);
}

static void turn_now(world *w)
{
    ev_run(w->base, EVRUN_NOWAIT);
}

static void begin_loop(world *w)
{
    w->base = ev_loop_new(EVFLAG_AUTO);
    ev_init(&w->timer, fired);
    w->timer.data = w;
}

static void end_loop(world *w)
{
    ev_timer_stop(w->base, &w->timer);
    ev_run(w->base, EVRUN_NOWAIT);
    ev_loop_destroy(w->base);
}
#elif defined(LOOP_LIBUV)
static void fired(uv_timer_t *timer)
{
    ratelimit_redis_async_tick(((world *)timer->data)->a, ratelimit_clock_ns());
}

/* Its handles are freed by its loop. */
static void freed(uv_handle_t *handle)
{
    free(handle);
}

static void readied(uv_poll_t *handle, int status, int events)
{
    uv_os_fd_t fd;
    uv_fileno((uv_handle_t *)handle, &fd);
    ratelimit_redis_async_ready(((world *)handle->data)->a, fd,
                                status ? RATELIMIT_REDIS_READ
                                       : (events & UV_READABLE ? RATELIMIT_REDIS_READ : 0u) |
                                             (events & UV_WRITABLE ? RATELIMIT_REDIS_WRITE : 0u));
}

static int watch(void *self, int fd, unsigned events, void **yours)
{
    world *w = (world *)self;
    uv_poll_t *handle = (uv_poll_t *)*yours;
    if (!events) {
        uv_poll_stop(handle);
        uv_close((uv_handle_t *)handle, freed);
        *yours = NULL;
        return 0;
    }
    if (handle == NULL) {
        handle = calloc(1, sizeof *handle);
        uv_poll_init(&w->base, handle, fd);
        handle->data = w;
        *yours = handle;
    }
    return uv_poll_start(handle,
                         (events & RATELIMIT_REDIS_READ ? UV_READABLE : 0) |
                             (events & RATELIMIT_REDIS_WRITE ? UV_WRITABLE : 0),
                         readied);
}

static void set_timer(void *self, uint64_t after_ns)
{
    world *w = (world *)self;
    w->timers++;
    uv_update_time(&w->base);
    /* 1 ms at least: one that is due at once, set again from its callback, fires again before libuv
     * 1.44 does anything else. */
    uv_timer_start(&w->timer, fired, after_ns / 1000000 + 1, 0);
}

static void nothing(uv_timer_t *timer)
{
    (void)timer;
}

/* UV_RUN_ONCE calls timers that are due, and then waits all the same. */
static void turn(world *w)
{
    uv_update_time(&w->base);
    uv_timer_start(&w->guard, nothing, 20, 0);
    uv_run(&w->base, UV_RUN_ONCE);
    uv_timer_stop(&w->guard);
}

static void turn_now(world *w)
{
    uv_run(&w->base, UV_RUN_NOWAIT);
}

static void begin_loop(world *w)
{
    uv_loop_init(&w->base);
    uv_timer_init(&w->base, &w->timer);
    uv_timer_init(&w->base, &w->guard);
    w->timer.data = w;
}

/* Its handles end in a turn of the loop: those of connections that were closed, too. */
static void end_loop(world *w)
{
    uv_close((uv_handle_t *)&w->timer, NULL);
    uv_close((uv_handle_t *)&w->guard, NULL);
    uv_run(&w->base, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&w->base) == 0);
}
#else
static void fired(evutil_socket_t fd, short events, void *self)
{
    (void)fd;
    (void)events;
    ratelimit_redis_async_tick(((world *)self)->a, ratelimit_clock_ns());
}

static void readied(evutil_socket_t fd, short events, void *self)
{
    ratelimit_redis_async_ready(((world *)self)->a, fd,
                                (events & EV_READ ? RATELIMIT_REDIS_READ : 0u) |
                                    (events & EV_WRITE ? RATELIMIT_REDIS_WRITE : 0u));
}

static int watch(void *self, int fd, unsigned events, void **yours)
{
    world *w = (world *)self;
    if (*yours)
        event_free((struct event *)*yours);
    *yours = NULL;
    if (events) {
        *yours = event_new(w->base, fd,
                           (short)(EV_PERSIST | (events & RATELIMIT_REDIS_READ ? EV_READ : 0) |
                                   (events & RATELIMIT_REDIS_WRITE ? EV_WRITE : 0)),
                           readied, w);
        return event_add((struct event *)*yours, NULL);
    }
    return 0;
}

static void set_timer(void *self, uint64_t after_ns)
{
    world *w = (world *)self;
    struct timeval span;
    w->timers++;
    span.tv_sec = (time_t)(after_ns / RATELIMIT_SECOND);
    span.tv_usec = (suseconds_t)(after_ns % RATELIMIT_SECOND / 1000);
    evtimer_add(w->timer, &span);
}

static void turn(world *w)
{
    event_base_loop(w->base, EVLOOP_ONCE);
}

static void turn_now(world *w)
{
    event_base_loop(w->base, EVLOOP_NONBLOCK);
}

static void begin_loop(world *w)
{
    w->base = event_base_new();
    w->timer = evtimer_new(w->base, fired, w);
}

static void end_loop(world *w)
{
    event_free(w->timer);
    event_base_free(w->base);
}
#endif

/* Of the worlds that begin. */
static ratelimit_limiter *limiter;
static ratelimit_tier *tier;

static void begin_with(world *w, const ratelimit_redis_options *options, uint32_t max_requests)
{
    ratelimit_redis_loop loop;
    ratelimit_status status;
    ratelimit_redis_options copy = *options;
#if defined(OVER_TLS)
    if (copy.port == server_port() && !copy.unix_path) {
        copy.port = server_number("TLS_PORT");
        copy.tls = true;
        copy.tls_ca = server_file("ca.crt");
    }
#endif
    memset(w, 0, sizeof *w);
    memset(&loop, 0, sizeof loop);
    begin_loop(w);
    loop.watch = watch;
    loop.timer = set_timer;
    loop.self = w;
    loop.max_requests = max_requests;
    loop.limiter = limiter;
    loop.tier = tier;
    w->a = ratelimit_redis_async_open(&copy, &loop, &status);
    if (w->a == NULL) {
        fprintf(stderr, "open: %s\n", ratelimit_status_text(status));
        exit(2);
    }
}

static void begin(world *w, uint32_t timeout_ms)
{
    ratelimit_redis_options options = server_options();
    options.timeout_ms = timeout_ms;
    options.connect_timeout_ms = timeout_ms;
    options.cool_down_ms = 50;
    begin_with(w, &options, 0);
}

static void end(world *w)
{
    ratelimit_redis_async_close(w->a);
    w->a = NULL;
    end_loop(w);
}

/* What one call of take came to. */
typedef struct answer {
    world *w;
    unsigned calls;
    size_t count;
    uint64_t at_ns;
    ratelimit_result res[16];
} answer;

static void answered(void *self, const ratelimit_result *res, size_t count)
{
    answer *to = (answer *)self;
    size_t i;
    to->calls++;
    to->count = count;
    to->at_ns = ratelimit_clock_ns();
    for (i = 0; i < count && i < 16; i++)
        to->res[i] = res[i];
}

static ratelimit_status ask_n(world *w, const char *key, const ratelimit_limit *limit, uint64_t n,
                              answer *to)
{
    ratelimit_request q = server_request(key, limit, RATELIMIT_TAKE, n);
    ratelimit_status status;
    memset(to, 0, sizeof *to);
    to->w = w;
    status = ratelimit_redis_async_take(w->a, &q, answered, to);
    CHECK_U64(to->calls, 0); /* never from within take */
    return status;
}

static void ask(world *w, const char *key, const ratelimit_limit *limit, answer *to)
{
    CHECK_U64(ask_n(w, key, limit, 1, to), RATELIMIT_OK);
}

/* Turns the loop until nothing is under way. If its timer was not set, a turn may never end. */
static void settle(world *w)
{
    uint64_t start = ratelimit_clock_ns();
    alarm(12);
    while (ratelimit_redis_async_under_way(w->a) && server_ms_since(start) < 10000)
        turn(w);
    alarm(0);
    CHECK_U64(ratelimit_redis_async_under_way(w->a), 0);
}

static const char *why(world *w)
{
    static char text[200];
    return ratelimit_redis_async_error(w->a, text, sizeof text);
}

static ratelimit_result take_now(world *w, const char *key, const ratelimit_limit *limit)
{
    answer to;
    ask(w, key, limit, &to);
    settle(w);
    CHECK_U64(to.calls, 1);
    return to.res[0];
}

/* ---- decisions ------------------------------------------------------------------------------- */

#define KEYS 24

static unsigned char memory[RATELIMIT_TABLE_BYTES(1000)];

static ratelimit_limit random_limit(void)
{
    static const uint64_t periods[] = {
        1000, 1000000, RATELIMIT_SECOND, RATELIMIT_MINUTE, RATELIMIT_HOUR, 1234567891};
    ratelimit_limit limit;
    do {
        uint64_t tokens = 1 + check_below(UINT64_C(1) << check_below(20));
        uint64_t per = periods[check_below(6)] * (1 + check_below(3));
        limit = check_below(5) == 0 ? ratelimit_window_make(tokens, per)
                                    : ratelimit_limit_make(tokens, per, 1 + check_below(1000));
    } while (ratelimit_limit_check(&limit) != RATELIMIT_OK);
    limit.scope = 1; /* to change a key's limit is to change it */
    return limit;
}

static ratelimit_request random_request(char *key, const ratelimit_limit *limit)
{
    ratelimit_request q = server_request(key, limit, RATELIMIT_TAKE, 1);
    if (check_below(2))
        q.op = (ratelimit_op)check_below(RATELIMIT_RESET + 1);
    q.n = check_below(8) ? 1 + check_below(limit->burst) : check_below(limit->burst + 3);
    q.max_wait_ns = 1 + check_below(limit->window_ns + 2);
    return q;
}

static void same(const ratelimit_result *got, const ratelimit_result *want)
{
    CHECK_U64(got->status, want->status);
    CHECK_U64(got->allowed, want->allowed);
    CHECK_U64(got->burst, want->burst);
    CHECK_U64(got->remaining, want->remaining);
    CHECK_U64(got->taken, want->taken);
    CHECK_U64(got->retry_after_ns, want->retry_after_ns);
    CHECK_U64(got->reset_after_ns, want->reset_after_ns);
    CHECK_U64(got->wait_ns, want->wait_ns);
}

/* All keys are under way at once, each in a call of its own or in batches, each for itself or all
 * or none. */
static void one_round(world *w, ratelimit_table *table, const ratelimit_limit *limits, uint64_t now)
{
    static char keys[KEYS][2];
    static ratelimit_request q[KEYS];
    static answer to[KEYS];
    static ratelimit_limit copies[KEYS];
    ratelimit_result want[KEYS];
    size_t i, n, count = 0;
    for (i = 0; i < KEYS; i++) {
        keys[i][0] = (char)('a' + i);
        keys[i][1] = '\0';
        copies[i] = limits[i];
        q[i] = random_request(keys[i], &copies[i]);
    }
    for (i = 0; i < KEYS; i += n, count++) {
        bool all = check_below(4) == 0;
        n = check_below(2) ? 1 : 1 + check_below(6);
        n = n > KEYS - i ? KEYS - i : n;
        memset(&to[count], 0, sizeof to[count]);
        CHECK_U64((n == 1 ? ratelimit_redis_async_take(w->a, &q[i], answered, &to[count])
                   : all  ? ratelimit_redis_async_take_all(w->a, &q[i], n, answered, &to[count])
                          : ratelimit_redis_async_take_each(w->a, &q[i], n, answered, &to[count])),
                  RATELIMIT_OK);
        ratelimit_table_decide(table, &q[i], &want[i], n,
                               all && n > 1 ? RATELIMIT_ALL : RATELIMIT_EACH, now);
        to[count].w = w;
    }
    memset(q, 0xEE, sizeof q); /* all was copied */
    memset(keys, 0xEE, sizeof keys);
    memset(copies, 0xEE, sizeof copies);
    settle(w);
    for (i = 0, n = 0; n < count; i += to[n++].count) {
        size_t j;
        CHECK_U64(to[n].calls, 1);
        for (j = 0; j < to[n].count; j++)
            same(&to[n].res[j], &want[i + j]);
    }
    CHECK_U64(i, KEYS);
}

static void random_decisions_agree_with_the_table_in_every_field(void)
{
    const char *text = getenv("DECISIONS");
    size_t rounds = (text ? (size_t)strtoul(text, NULL, 10) : 24000) / KEYS, i;
    ratelimit_redis_options options = server_options();
    ratelimit_table_options seeds;
    ratelimit_limit limits[KEYS];
    ratelimit_table *table;
    uint64_t now = UINT64_C(1700000000000000000);
    world w;
    options.clock = server_given;
    options.clock_self = &now;
    options.ttl_min_ms = 3600 * 1000;
    options.timeout_ms = 5000;
    begin_with(&w, &options, 0);
    server_flush();
    memset(&seeds, 0, sizeof seeds);
    seeds.seed[0] = seeds.seed[1] = 1;
    CHECK_U64(ratelimit_table_init(&table, memory, sizeof memory, &seeds), RATELIMIT_OK);
    for (i = 0; i < KEYS; i++)
        limits[i] = random_limit();
    for (i = 0; i < rounds && check_faults < 5; i++) {
        one_round(&w, table, limits, now);
        now += check_below(UINT64_C(1) << check_below(38));
        if (check_below(4) == 0)
            limits[check_below(KEYS)] = random_limit(); /* takes a second round trip */
    }
    end(&w);
}

/* The second round trip, without a table beside it. */
static void a_changed_limit_and_a_clock_that_was_set_back_are_decided_as_by_the_store(void)
{
    static const ratelimit_limit before = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_SECOND, 10, 1);
    static const ratelimit_limit after = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_MINUTE, 20, 1);
    uint64_t now = UINT64_C(1700000000000000000);
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    ratelimit_result got, want;
    world w;
    int i;
    options.clock = server_given;
    options.clock_self = &now;
    options.ttl_min_ms = 60000;
    options.timeout_ms = 5000;
    begin_with(&w, &options, 0);
    r = server_open(&options);
    server_flush();
    for (i = 0; i < 8; i++) {
        got = take_now(&w, "async", &before);
        want = server_take(r, "sync", &before, 1);
        same(&got, &want);
    }
    got = take_now(&w, "async", &after);
    want = server_take(r, "sync", &after, 1);
    same(&got, &want);
    CHECK_U64(got.remaining, 11);
    now -= RATELIMIT_HOUR;
    for (i = 0; i < 15; i++) {
        got = take_now(&w, "async", &after);
        want = server_take(r, "sync", &after, 1);
        same(&got, &want);
    }
    CHECK(!got.allowed);
    ratelimit_redis_close(r);
    end(&w);
}

static void takes_of_one_turn_are_commands_of_sixty_four_in_one_write_and_in_order(void)
{
    static answer to[150];
    long long reads;
    unsigned i;
    world w;
    begin(&w, 5000);
    server_flush();
    (void)take_now(&w, "warm", &hourly);
    reads = server_info(server_port(), "total_reads_processed");
    for (i = 0; i < 150; i++)
        ask(&w, "k", &hourly, &to[i]);
    (void)server_info(server_port(), "total_reads_processed");
    CHECK_U64(server_info(server_port(), "total_reads_processed") - reads, 2); /* nothing yet */
    settle(&w);
    reads = server_info(server_port(), "total_reads_processed") - reads;
    CHECK(reads >= 4 && reads <= 5); /* three of them ours */
    for (i = 0; i < 150; i++) {
        CHECK_U64(to[i].calls, 1);
        CHECK_U64(to[i].res[0].allowed, i < 100);
    }
    CHECK(server_do(server_port(), "CONFIG RESETSTAT"));
    for (i = 0; i < 150; i++)
        ask(&w, "other", &hourly, &to[i]);
    settle(&w);
    CHECK_U64(server_scripts(server_port()), 3);
    for (i = 0; i < 100; i++)
        CHECK_U64(to[i].res[0].remaining, 99 - i);
    end(&w);
}

/* Takes of different calls are one command; they fail each for itself all the same. */
static void one_that_fails_of_a_command_leaves_the_others_alone(void)
{
    static const ratelimit_limit window = RATELIMIT_WINDOW(100, RATELIMIT_HOUR);
    static const ratelimit_limit other = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 10, 1);
    static const char *const keys[] = {"a", "list", "b", "short", "changed", "a", "c", "a"};
    enum { MANY = sizeof keys / sizeof keys[0] };
    static answer to[MANY];
    int i, round;
    world w;
    begin(&w, 5000);
    server_flush();
    CHECK(server_do(server_port(), "LPUSH ratelimit:b{list}00000001 x"));
    CHECK(server_do(server_port(), "SET ratelimit:b{short}00000001 7"));
    CHECK_U64(take_now(&w, "changed", &other).remaining, 9);
    for (round = 0; round < 2; round++) {
        CHECK(server_do(server_port(), "SCRIPT FLUSH"));
        for (i = 0; i < MANY; i++)
            ask(&w, keys[i], i == 6 ? &window : &hourly, &to[i]);
        settle(&w);
        for (i = 0; i < MANY; i++)
            CHECK_U64(to[i].calls, 1);
        CHECK_U64(to[1].res[0].status, RATELIMIT_STORE_FAILED);
        CHECK_U64(to[3].res[0].status, RATELIMIT_STORE_FAILED);
        CHECK_U64(to[0].res[0].remaining, 99 - 3 * round);
        CHECK_U64(to[2].res[0].remaining, 99 - round);
        CHECK_U64(to[4].res[0].remaining, 98 - round); /* 1 was spent, of a smaller burst */
        CHECK_U64(to[5].res[0].remaining, 98 - 3 * round);
        CHECK_U64(to[6].res[0].remaining, 99 - round);
        CHECK_U64(to[7].res[0].remaining, 97 - 3 * round);
    }
    end(&w);
}

static void a_batch_is_answered_at_once_when_its_last_is_decided(void)
{
    ratelimit_request q[5];
    answer to;
    world w;
    size_t i;
    begin(&w, 5000);
    server_flush();
    memset(&to, 0, sizeof to);
    for (i = 0; i < 5; i++)
        q[i] = server_request("k", &hourly, RATELIMIT_TAKE, 30);
    q[1].key_len = 0;
    CHECK_U64(ratelimit_redis_async_take_each(w.a, q, 5, answered, &to), RATELIMIT_OK);
    settle(&w);
    CHECK_U64(to.calls, 1);
    CHECK_U64(to.count, 5);
    CHECK_U64(to.res[0].status, RATELIMIT_OK);
    CHECK_U64(to.res[1].status, RATELIMIT_BAD_KEY);
    CHECK_U64(to.res[3].status, RATELIMIT_OK);
    CHECK_U64(to.res[4].status, RATELIMIT_DENIED);
    CHECK_U64(to.res[4].remaining, 10);
    q[1].key_len = 1;
    CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 2, answered, &to), RATELIMIT_OK);
    settle(&w);
    CHECK_U64(to.calls, 2);
    CHECK(!to.res[0].allowed && !to.res[1].allowed);
    CHECK_U64(take_now(&w, "k", &hourly).remaining, 9);
    end(&w);
}

static void a_lost_script_cache_is_not_seen_by_a_hundred_takes_under_way(void)
{
    static answer to[100];
    unsigned i;
    world w;
    begin(&w, 5000);
    server_flush();
    (void)take_now(&w, "warm", &hourly);
    CHECK(server_do(server_port(), "SCRIPT FLUSH"));
    for (i = 0; i < 100; i++)
        ask(&w, "k", &hourly, &to[i]);
    settle(&w);
    for (i = 0; i < 100; i++)
        CHECK(to[i].calls == 1 && to[i].res[0].allowed);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_DENIED);
    end(&w);
}

static void mistakes_are_told_and_never_from_within_take(void)
{
    static const ratelimit_limit bad = RATELIMIT_LIMIT_SCOPE(0, RATELIMIT_SECOND, 1, 1);
    static const ratelimit_limit none = RATELIMIT_UNLIMITED;
    ratelimit_request q = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    answer to;
    world w;
    begin(&w, 5000);
    CHECK_U64(ratelimit_redis_async_take(NULL, &q, answered, &to), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_async_take(w.a, NULL, answered, &to), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_async_take(w.a, &q, NULL, &to), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_async_take_each(w.a, &q, 0, answered, &to), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(take_now(&w, "", &hourly).status, RATELIMIT_BAD_KEY);
    CHECK_U64(take_now(&w, "k", &bad).status, RATELIMIT_BAD_LIMIT);
    CHECK_U64(take_now(&w, "k", NULL).status, RATELIMIT_BAD_LIMIT);
    CHECK(take_now(&w, "k", &none).allowed);
    CHECK_U64(ask_n(&w, "k", &hourly, 101, &to), RATELIMIT_OK);
    settle(&w);
    CHECK_U64(to.res[0].status, RATELIMIT_NEVER);
    CHECK(ratelimit_redis_async_open(NULL, NULL, NULL) == NULL);
    end(&w);
}

static void no_more_than_max_requests_are_under_way(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_request q[5];
    answer to[5];
    world w;
    size_t i;
    begin_with(&w, &options, 4);
    server_flush();
    for (i = 0; i < 5; i++) {
        CHECK_U64(ask_n(&w, "k", &hourly, 1, &to[i]), i < 4 ? RATELIMIT_OK : RATELIMIT_BUSY);
        q[i] = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    }
    CHECK_U64(ratelimit_redis_async_under_way(w.a), 4);
    CHECK_U64(ratelimit_redis_async_take_each(w.a, q, 5, answered, &to[4]), RATELIMIT_BAD_ARGUMENT);
    settle(&w);
    for (i = 0; i < 5; i++)
        CHECK_U64(to[i].calls, i < 4);
    CHECK_U64(take_now(&w, "k", &hourly).remaining, 95);
    end(&w);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Other events of the loop come as if nothing was wrong, and so do answers that need no server. */
static void a_stopped_server_fails_what_waits_for_it_in_time_and_blocks_nothing(void)
{
    static answer to[100];
    static const ratelimit_limit none = RATELIMIT_UNLIMITED;
    answer free_one;
    uint64_t start, longest = 0;
    unsigned i;
    world w;
    begin(&w, 200);
    server_flush();
    (void)take_now(&w, "warm", &hourly);
    kill((pid_t)server_number("REDIS_PID"), SIGSTOP);
    start = ratelimit_clock_ns();
    for (i = 0; i < 100; i++)
        ask(&w, "k", &hourly, &to[i]);
    ask(&w, "free", &none, &free_one);
    while (ratelimit_redis_async_under_way(w.a)) {
        uint64_t before = ratelimit_clock_ns();
        turn_now(&w);
        longest = ratelimit_clock_ns() - before > longest ? ratelimit_clock_ns() - before : longest;
        if (server_ms_since(start) > 5000)
            break;
    }
    for (i = 0; i < 100; i++) {
        CHECK_U64(to[i].calls, 1);
        CHECK_U64(to[i].res[0].status, RATELIMIT_STORE_FAILED);
        CHECK(to[i].at_ns - start >= 190 * RATELIMIT_MILLISECOND &&
              to[i].at_ns - start < 350 * RATELIMIT_MILLISECOND);
    }
    CHECK(free_one.calls == 1 && free_one.res[0].allowed);
    CHECK(free_one.at_ns - start < 100 * RATELIMIT_MILLISECOND);
    CHECK(longest < 100 * RATELIMIT_MILLISECOND);
    CHECK(strstr(why(&w), "no answer in time") != NULL);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    start = ratelimit_clock_ns(); /* twice no answer: now it is left alone */
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    CHECK(server_ms_since(start) < 45);
    CHECK(strstr(why(&w), "left alone") != NULL);
    kill((pid_t)server_number("REDIS_PID"), SIGCONT);
    server_sleep_ms(60);
    CHECK_U64(take_now(&w, "other", &hourly).status, RATELIMIT_OK);
    end(&w);
}

/* More than a socket takes: the rest is kept until the server reads again. */
static void what_the_socket_does_not_take_is_sent_later(void)
{
    static answer to[6000];
    static char key[4000];
    unsigned i;
    world w;
    begin(&w, 8000);
    server_flush();
    (void)take_now(&w, "warm", &hourly);
    kill((pid_t)server_number("REDIS_PID"), SIGSTOP);
    memset(key, 'k', sizeof key - 1);
    for (i = 0; i < 6000; i++) {
        key[i % 60] = (char)('a' + i / 60 % 26);
        ask(&w, key, &hourly, &to[i]);
    }
    for (i = 0; i < 100; i++) {
        turn_now(&w);
        server_sleep_ms(1);
    }
    CHECK_U64(ratelimit_redis_async_under_way(w.a), 6000);
    kill((pid_t)server_number("REDIS_PID"), SIGCONT);
    settle(&w);
    for (i = 0; i < 6000; i++)
        CHECK(to[i].calls == 1 &&
              (to[i].res[0].status == RATELIMIT_OK || to[i].res[0].status == RATELIMIT_DENIED));
    end(&w);
}

/* The answer is there, but the loop was busy with something else meanwhile. */
static void a_late_loop_does_not_make_the_server_late(void)
{
    answer to;
    world w;
    begin(&w, 100);
    server_flush();
    (void)take_now(&w, "warm", &hourly);
    kill((pid_t)server_number("REDIS_PID"), SIGSTOP); /* or it may answer within this turn */
    ask(&w, "k", &hourly, &to);
    turn_now(&w);
    kill((pid_t)server_number("REDIS_PID"), SIGCONT);
    server_sleep_ms(150);
    ratelimit_redis_async_tick(w.a, ratelimit_clock_ns());
    CHECK_U64(to.calls, 1);
    CHECK_U64(to.res[0].status, RATELIMIT_OK);
    end(&w);
}

static void a_connection_killed_between_takes_is_not_seen(void)
{
    world w;
    int i;
    begin(&w, 5000);
    server_flush();
    for (i = 0; i < 20; i++) {
        CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_OK);
        server_int(server_port(), "CLIENT KILL TYPE normal SKIPME yes");
        if (i % 2)
            turn_now(&w);
    }
    CHECK_U64(take_now(&w, "k", &hourly).remaining, 79);
    end(&w);
}

/* A server of our own: what it is sent is counted, and it hangs up. */
typedef struct fake {
    int listener, port, fd;
    size_t commands;
} fake;

static void fake_open(fake *f)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    memset(f, 0, sizeof *f);
    f->fd = -1;
    f->listener = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(f->listener, (struct sockaddr *)(void *)&address, sizeof address) != 0 ||
        listen(f->listener, 64) != 0 ||
        getsockname(f->listener, (struct sockaddr *)(void *)&address, &len) != 0)
        exit(2);
    fcntl(f->listener, F_SETFL, O_NONBLOCK);
    f->port = ntohs(address.sin_port);
}

/* Accepts and reads what there is. */
static void fake_read(fake *f)
{
    char buf[4096];
    ssize_t n, i;
    if (f->fd < 0)
        f->fd = accept(f->listener, NULL, NULL);
    while (f->fd >= 0 && (n = recv(f->fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
        for (i = 0; i < n; i++)
            f->commands += buf[i] == '*';
}

/* The same, and answers each command. */
static void fake_say(fake *f, const char *says)
{
    static char buf[1 << 20];
    ssize_t n, i;
    if (f->fd < 0)
        f->fd = accept(f->listener, NULL, NULL);
    if (f->fd < 0 || (n = recv(f->fd, buf, sizeof buf, MSG_DONTWAIT)) <= 0)
        return;
    for (i = 0; i + 1 < n; i++)
        if (buf[i] == '*' && buf[i + 1] >= '1' && buf[i + 1] <= '9' &&
            (i == 0 || buf[i - 1] == '\n')) {
            f->commands++;
            if (send(f->fd, says, strlen(says), MSG_NOSIGNAL) < 0)
                return;
        }
}

/* Hangs up, and does not wait for what is on its way. */
static void fake_hang_up(fake *f)
{
    struct linger now = {1, 0};
    if (f->fd < 0)
        return;
    setsockopt(f->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(f->fd);
    f->fd = -1;
}

static void begin_at(world *w, int port)
{
    ratelimit_redis_options options = server_options();
    options.port = port;
    options.timeout_ms = 1000;
    options.cool_down_ms = 1;
    begin_with(w, &options, 0);
}

/* Who asks for a key that the user may not take fails alone, though others share the command. */
static void a_key_not_permitted_fails_alone(void)
{
    ratelimit_redis_options options = server_options();
    static answer to[3];
    world w;
    int i;
    server_flush();
    CHECK(server_do(server_port(), "ACL SETUSER part on >secret ~ratelimit:b{mine* +@all"));
    options.user = "part";
    options.password = "secret";
    options.timeout_ms = 2000;
    begin_with(&w, &options, 0);
    for (i = 0; i < 3; i++)
        ask(&w, i == 1 ? "other" : "mine", &hourly, &to[i]);
    settle(&w);
    CHECK_U64(to[0].res[0].status, RATELIMIT_OK);
    CHECK_U64(to[1].res[0].status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "permissions") != NULL);
    CHECK_U64(to[2].res[0].remaining, 98);
    end(&w);
    CHECK(server_do(server_port(), "ACL DELUSER part"));
}

static void hooked(void *self, const ratelimit_request *req, const ratelimit_result *res)
{
    unsigned *sum = (unsigned *)self;
    *sum += (unsigned)(req->n * 10 + res->allowed);
}

/* Each policy where nobody listens: what the answer is, and what is counted. */
static void the_policy_of_a_limiter_decides_what_redis_could_not(void)
{
    static unsigned char memory_of_table[RATELIMIT_TABLE_BYTES(10)];
    static const ratelimit_limit single = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    ratelimit_failure policy;
    ratelimit_table *table;
    CHECK_U64(ratelimit_table_init(&table, memory_of_table, sizeof memory_of_table, NULL),
              RATELIMIT_OK);
    for (policy = RATELIMIT_FAIL_OPEN; policy <= RATELIMIT_FAIL_LOCAL;
         policy = (ratelimit_failure)(policy + 1)) {
        ratelimit_limiter l;
        ratelimit_request q[2];
        ratelimit_counts counts;
        ratelimit_result res;
        answer to;
        world w;
        fake f;
        int i;
        memset(&l, 0, sizeof l);
        l.on_failure = policy;
        l.fallback = ratelimit_table_store(table, NULL, NULL);
        fake_open(&f);
        close(f.listener);
        limiter = &l;
        begin_at(&w, f.port);
        limiter = NULL;
        res = take_now(&w, "k", &single);
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res.allowed, policy != RATELIMIT_FAIL_CLOSED);
        CHECK_U64(res.source,
                  policy == RATELIMIT_FAIL_LOCAL ? RATELIMIT_FROM_FALLBACK : RATELIMIT_FROM_POLICY);
        for (i = 0; i < 2; i++)
            q[i] = server_request(i ? "k" : "other", &single, RATELIMIT_TAKE, 1);
        memset(&to, 0, sizeof to);
        CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 2, answered, &to), RATELIMIT_OK);
        settle(&w);
        CHECK_U64(to.res[0].allowed, policy == RATELIMIT_FAIL_OPEN);
        CHECK_U64(to.res[1].allowed, policy == RATELIMIT_FAIL_OPEN);
        ratelimit_limiter_counts(&l, &counts);
        CHECK_U64(counts.failed, 3);
        CHECK_U64(counts.allowed, policy == RATELIMIT_FAIL_OPEN ? 3 : res.allowed);
        CHECK_U64(counts.allowed + counts.refused, 3);
        end(&w);
    }
}

static void shadow_mode_hook_and_counters_of_a_limiter_apply(void)
{
    static const ratelimit_limit single = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    ratelimit_redis_loop loop;
    ratelimit_limiter l;
    ratelimit_counts counts;
    ratelimit_status status;
    ratelimit_result res;
    unsigned sum = 0;
    world w;
    server_flush();
    memset(&l, 0, sizeof l);
    l.shadow = true;
    l.hook = hooked;
    l.hook_self = &sum;
    limiter = &l;
    begin(&w, 5000);
    limiter = NULL;
    CHECK_U64(take_now(&w, "k", &single).status, RATELIMIT_OK);
    res = take_now(&w, "k", &single);
    CHECK_U64(res.status, RATELIMIT_DENIED);
    CHECK(res.allowed && res.retry_after_ns > 0);
    CHECK_U64(sum, 22);
    ratelimit_limiter_counts(&l, &counts);
    CHECK_U64(counts.allowed, 2);
    CHECK_U64(counts.shadow_refused, 1);
    end(&w);
    memset(&loop, 0, sizeof loop);
    loop.watch = watch;
    loop.limiter = &l;
    l.on_failure = RATELIMIT_FAIL_LOCAL;
    CHECK(ratelimit_redis_async_open(NULL, &loop, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT);
}

/* ---- with a tier in front -------------------------------------------------------------------- */

static unsigned char tier_memory[RATELIMIT_TABLE_BYTES(300)];
static ratelimit_tier front;

/* A world with an empty tier in front. */
static void begin_tier(world *w, int port, uint32_t lease_percent, uint32_t nodes)
{
    memset(&front, 0, sizeof front);
    CHECK_U64(ratelimit_table_init(&front.table, tier_memory, sizeof tier_memory, NULL),
              RATELIMIT_OK);
    front.lease_percent = lease_percent;
    front.nodes = nodes;
    front.trust_ns = front.lease_ns = RATELIMIT_MINUTE;
    tier = &front;
    begin_at(w, port);
    tier = NULL;
}

static void a_key_known_to_be_refused_costs_no_round_trips(void)
{
    static answer to[100];
    ratelimit_tier_counts counts;
    ratelimit_request q[2];
    int i;
    world w;
    server_flush();
    begin_tier(&w, server_port(), 0, 0);
    for (i = 0; i < 100; i++)
        CHECK_U64(take_now(&w, "k", &hourly).remaining, 99 - i);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_DENIED);
    CHECK(server_do(server_port(), "CONFIG RESETSTAT"));
    for (i = 0; i < 100; i++)
        ask(&w, "k", &hourly, &to[i]);
    settle(&w);
    for (i = 0; i < 100; i++) {
        CHECK_U64(to[i].calls, 1);
        CHECK_U64(to[i].res[0].status, RATELIMIT_DENIED);
        CHECK_U64(to[i].res[0].source, RATELIMIT_FROM_REFUSAL_CACHE);
    }
    q[0] = server_request("new", &hourly, RATELIMIT_TAKE, 1);
    q[1] = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 2, answered, &to[0]), RATELIMIT_OK);
    settle(&w);
    CHECK(!to[0].res[0].allowed && !to[0].res[1].allowed);
    CHECK_U64(server_scripts(server_port()), 1); /* all or none is always asked */
    CHECK_U64(ratelimit_redis_async_take_each(w.a, q, 2, answered, &to[0]), RATELIMIT_OK);
    settle(&w);
    CHECK(to[0].res[0].allowed && !to[0].res[1].allowed);
    CHECK_U64(server_scripts(server_port()), 2);
    ratelimit_tier_stats(&front, &counts);
    CHECK_U64(counts.refused, 102);
    CHECK_U64(counts.stored, 103);
    q[0] = server_request("k", &hourly, RATELIMIT_RESET, 0);
    CHECK_U64(ratelimit_redis_async_take(w.a, q, answered, &to[0]), RATELIMIT_OK);
    settle(&w);
    CHECK_U64(take_now(&w, "k", &hourly).remaining, 99);
    q[1].n = 0;
    CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 2, answered, &to[0]), RATELIMIT_OK);
    settle(&w);
    CHECK_U64(to[0].res[1].status, RATELIMIT_BAD_COUNT);
    end(&w);
}

/* Many at once, of whom one asks for a lease, and in turn: exactly what is there is given out. */
static void leases_serve_a_key_and_never_more_than_its_limit(void)
{
    static const ratelimit_limit big = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 2000, 1);
    static answer to[50];
    ratelimit_tier_counts counts;
    unsigned round, i, allowed = 0;
    world w;
    server_flush();
    begin_tier(&w, server_port(), 10, 0);
    for (round = 0; round < 60; round++) {
        for (i = 0; i < 50; i++)
            ask(&w, "k", &big, &to[i]);
        settle(&w);
        for (i = 0; i < 50; i++) {
            CHECK_U64(to[i].calls, 1);
            allowed += to[i].res[0].allowed;
        }
    }
    CHECK_U64(allowed, 2000);
    ratelimit_tier_stats(&front, &counts);
    CHECK(counts.leased > 1500 && counts.refused > 900 && counts.calls < 500);
    CHECK_U64(counts.leased + counts.refused + counts.stored, 3000);
    end(&w);
}

/* What Redis was asked for may have been charged: a lease that was on its way is not served. */
static void a_lease_on_its_way_when_all_is_closed_is_lost(bool sent)
{
    static const ratelimit_limit big = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 2000, 1);
    ratelimit_redis_options options = server_options();
    ratelimit_store store;
    ratelimit_result res;
    ratelimit_redis *r;
    answer to;
    unsigned i, allowed = 0;
    world w;
    server_flush();
    begin_tier(&w, server_port(), 50, 0);
    for (i = 0; i < 20; i++)
        allowed += take_now(&w, "k", &big).allowed;
    for (;;) {
        ask(&w, "k", &big, &to);
        if (ratelimit_redis_async_next_deadline(w.a) != 0)
            break; /* not answered here */
        settle(&w);
        allowed++;
    }
    kill(server_number("REDIS_PID"), SIGSTOP);
    if (sent)
        turn_now(&w);
    CHECK_U64(ratelimit_redis_async_under_way(w.a), 1);
    end(&w);
    kill(server_number("REDIS_PID"), SIGCONT);
    CHECK_U64(to.calls, 1);
    CHECK_U64(to.res[0].status, RATELIMIT_CANCELED);
    r = server_open(&options);
    front.store = ratelimit_redis_store(r);
    store = ratelimit_tier_store(&front);
    for (i = 0; i < 4000; i++) {
        ratelimit_request q = server_request("k", &big, RATELIMIT_TAKE, 1);
        store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
        allowed += res.allowed;
    }
    CHECK(sent ? allowed <= 2000 && allowed > 900 : allowed == 2000);
    ratelimit_redis_close(r);
}

static void a_lease_asked_for_when_all_is_closed_is_lost(void)
{
    a_lease_on_its_way_when_all_is_closed_is_lost(true);
}

static void a_lease_not_yet_asked_for_when_all_is_closed_costs_nothing(void)
{
    a_lease_on_its_way_when_all_is_closed_is_lost(false);
}

static void a_tier_decides_while_redis_fails(void)
{
    static const ratelimit_limit four = RATELIMIT_LIMIT_SCOPE(4, RATELIMIT_HOUR, 4, 1);
    ratelimit_tier_counts counts;
    ratelimit_request q[2];
    ratelimit_result res;
    answer to;
    world w;
    fake f;
    int i;
    fake_open(&f);
    close(f.listener);
    begin_tier(&w, f.port, 0, 2);
    for (i = 0; i < 5; i++) {
        res = take_now(&w, "k", &four);
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res.source, RATELIMIT_FROM_FALLBACK);
        CHECK_U64(res.allowed, i < 2);
    }
    q[0] = server_request("other", &four, RATELIMIT_TAKE, 1);
    q[1] = server_request("k", &four, RATELIMIT_TAKE, 1);
    memset(&to, 0, sizeof to);
    CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 2, answered, &to), RATELIMIT_OK);
    settle(&w);
    CHECK(!to.res[0].allowed && !to.res[1].allowed);
    CHECK_U64(ratelimit_redis_async_take_each(w.a, q, 2, answered, &to), RATELIMIT_OK);
    settle(&w);
    CHECK(to.res[0].allowed && !to.res[1].allowed);
    ratelimit_tier_stats(&front, &counts);
    CHECK_U64(counts.fallback, 9);
    CHECK_U64(counts.failures, 7); /* at once: the node is left alone for a while */
    end(&w);
}

static void a_connection_closed_under_way_fails_and_nothing_is_sent_twice(void)
{
    static const ratelimit_limit wide = RATELIMIT_WINDOW(100, RATELIMIT_HOUR);
    static answer to[10];
    uint64_t start = ratelimit_clock_ns();
    unsigned i;
    fake f;
    world w;
    fake_open(&f);
    begin_at(&w, f.port);
    for (i = 0; i < 10; i++) /* no two of which make one command */
        ask(&w, "k", i % 2 ? &wide : &hourly, &to[i]);
    while (f.commands < 10 && server_ms_since(start) < 900) {
        turn_now(&w);
        fake_read(&f);
    }
    CHECK_U64(f.commands, 10);
    fake_hang_up(&f);
    settle(&w);
    fake_read(&f);
    CHECK_U64(f.commands, 10);
    for (i = 0; i < 10; i++)
        CHECK(to[i].calls == 1 && to[i].res[0].status == RATELIMIT_STORE_FAILED);
    CHECK(server_ms_since(start) < 900);
    end(&w);
    close(f.listener);
}

static volatile sig_atomic_t pipes;

static void on_pipe(int number)
{
    (void)number;
    pipes++;
}

/* Writes of many ms' worth, while the other side goes away at any time. */
static void no_signal_comes_of_a_connection_that_broke(void)
{
    static char key[100000];
    struct sigaction handler, before;
    world w;
    fake f;
    int i;
    memset(key, 'k', sizeof key - 1);
    memset(&handler, 0, sizeof handler);
    handler.sa_handler = on_pipe;
    sigaction(SIGPIPE, &handler, &before);
    pipes = 0;
    fake_open(&f);
    begin_at(&w, f.port);
    for (i = 0; i < 200; i++) {
        answer to[4];
        uint64_t start = ratelimit_clock_ns();
        int j;
        for (j = 0; j < 3; j++)
            ask(&w, key, &hourly, &to[j]);
        while (f.fd < 0 && ratelimit_redis_async_under_way(w.a) && server_ms_since(start) < 900) {
            turn_now(&w);
            if (f.fd < 0)
                f.fd = accept(f.listener, NULL, NULL);
        }
        if (i % 2)
            turn_now(&w);
        if (f.fd >= 0)
            shutdown(f.fd, SHUT_RDWR);
        ask(&w, key, &hourly, &to[3]);
        fake_hang_up(&f);
        while (ratelimit_redis_async_under_way(w.a)) { /* what was not sent goes another way */
            turn_now(&w);
            f.fd = accept(f.listener, NULL, NULL);
            fake_hang_up(&f);
        }
        for (j = 0; j < 4; j++)
            CHECK(to[j].calls == 1 && to[j].res[0].status == RATELIMIT_STORE_FAILED);
        server_sleep_ms(2);
    }
    CHECK_U64(pipes, 0);
    sigaction(SIGPIPE, &before, NULL);
    end(&w);
    close(f.listener);
}

/* Each request asked again and again, until its time was over. */
static void a_cluster_that_is_down_is_not_asked_by_each_request(void)
{
    enum { MANY = 200 };
    static answer to[MANY];
    static char keys[MANY][12];
    ratelimit_redis_options options = server_options();
    uint64_t start = ratelimit_clock_ns();
    char map[100];
    world w;
    fake f;
    int i;
    fake_open(&f);
    snprintf(map, sizeof map, "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n",
             f.port);
    options.port = f.port;
    options.cluster = true;
    options.timeout_ms = 300;
    begin_with(&w, &options, 0);
    for (i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        ask(&w, keys[i], &hourly, &to[i]);
    }
    while (ratelimit_redis_async_under_way(w.a) && server_ms_since(start) < 3000) {
        turn_now(&w);
        fake_say(&f, f.commands ? "-CLUSTERDOWN The cluster is down\r\n" : map);
    }
    for (i = 0; i < MANY; i++)
        CHECK(to[i].calls == 1 && to[i].res[0].status == RATELIMIT_STORE_FAILED);
    CHECK(f.commands >= MANY / 2 && f.commands < 3 * MANY);
    CHECK(server_ms_since(start) < 1000);
    end(&w);
    close(f.listener);
}

#if !defined(OVER_TLS)
/* 50 ms of silence for one request made all fail for half a second. */
static void one_swallowed_request_costs_what_was_sent_with_it(void)
{
    ratelimit_redis_options options = server_options();
    world w;
    proxy p;
    int i, failed = 0;
    server_flush();
    proxy_open(&p, server_port());
    options.port = p.port;
    options.timeout_ms = 50;
    begin_with(&w, &options, 0);
    for (i = 0; i < 20; i++) {
        if (i == 10)
            proxy_spoil(&p, PROXY_STALL);
        failed += !take_now(&w, "k", &hourly).allowed;
    }
    CHECK_U64(failed, 1);
    proxy_spoil(&p, PROXY_RESET);
    for (i = 0, failed = 0; i < 10; i++)
        failed += !take_now(&w, "k", &hourly).allowed;
    CHECK_U64(failed, 1);
    end(&w);
    proxy_close(&p);
}

/* The same counters as of threads. */
static void counters_tell_what_went_wrong(void)
{
    static answer to[64];
    ratelimit_redis_counts n;
    unsigned i;
    proxy p;
    world w;
    server_flush();
    proxy_open(&p, server_port());
    begin_at(&w, p.port);
    CHECK(take_now(&w, "k", &hourly).allowed);
    ratelimit_redis_async_stats(w.a, &n);
    CHECK_U64(n.calls, 1);
    CHECK_U64(n.connects, 1);
    CHECK_U64(n.connections, 1);
    CHECK(n.last_success_ms > UINT64_C(1000000000000));
    for (i = 0; i < 64; i++)
        ask(&w, "k", &hourly, &to[i]);
    settle(&w);
    CHECK(server_do(server_port(), "SET %s 7", server_bucket("pest")));
    CHECK(!take_now(&w, "pest", &hourly).allowed);
    proxy_spoil(&p, PROXY_STALL);
    CHECK(!take_now(&w, "k", &hourly).allowed);
    CHECK(take_now(&w, "k", &hourly).allowed);
    proxy_spoil(&p, PROXY_RESET);
    CHECK(!take_now(&w, "k", &hourly).allowed);
    CHECK(take_now(&w, "k", &hourly).allowed);
    ratelimit_redis_async_stats(w.a, &n);
    CHECK_U64(n.calls, 70);
    CHECK(n.round_trips < 20); /* 64 went out together */
    CHECK_U64(n.refused, 1);
    CHECK_U64(n.late, 1);
    CHECK_U64(n.lost, 1);
    CHECK_U64(n.unreached + n.busy, 0);
    CHECK_U64(n.connects, 3);
    CHECK(n.waited_ns > 50 * RATELIMIT_MILLISECOND);
    end(&w);
    proxy_close(&p);
}

#endif

/* Of keys in one turn of the loop, behind a tier: the others go on. */
static void one_key_that_fails_costs_the_others_nothing(void)
{
    static answer to[2];
    int i;
    world w;
    server_flush();
    CHECK(server_do(server_port(), "SET %s 7", server_bucket("pest")));
    begin_tier(&w, server_port(), 0, 0);
    for (i = 0; i < 50; i++) {
        ask(&w, "pest", &hourly, &to[0]);
        ask(&w, "good", &hourly, &to[1]);
        settle(&w);
        CHECK_U64(to[0].res[0].status, RATELIMIT_STORE_FAILED);
        CHECK_U64(to[1].res[0].remaining, 99 - i);
    }
    end(&w);
}

static void where_nobody_listens_takes_fail_at_once_and_say_why(void)
{
    ratelimit_redis_options options = server_options();
    uint64_t start = ratelimit_clock_ns();
    fake f;
    world w;
    fake_open(&f);
    close(f.listener);
    begin_at(&w, f.port);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "nobody listens there") != NULL);
    end(&w);
    options.unix_path = "/tmp/no such socket";
    begin_with(&w, &options, 0);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "/tmp/no such socket: no connection") != NULL);
    end(&w);
    CHECK(server_ms_since(start) < 500);
}

/* The backlog is full: no connection is made, and none is refused. */
static void a_server_that_does_not_accept_costs_the_connect_timeout(void)
{
    ratelimit_redis_options options = server_options();
    int filler[4], i;
    uint64_t start;
    answer to;
    world w;
    fake f;
    fake_open(&f);
    listen(f.listener, 0);
    for (i = 0; i < 4; i++) {
        struct sockaddr_in address;
        memset(&address, 0, sizeof address);
        address.sin_family = AF_INET;
        address.sin_port = htons((uint16_t)f.port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        filler[i] = socket(AF_INET, SOCK_STREAM, 0);
        fcntl(filler[i], F_SETFL, O_NONBLOCK);
        (void)connect(filler[i], (struct sockaddr *)(void *)&address, sizeof address);
    }
    options.port = f.port;
    options.connect_timeout_ms = 60;
    options.timeout_ms = 2000;
    begin_with(&w, &options, 0);
    start = ratelimit_clock_ns();
    ask(&w, "k", &hourly, &to);
    settle(&w);
    CHECK_U64(to.res[0].status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "no connection in time") != NULL);
    CHECK(server_ms_since(start) >= 55 && server_ms_since(start) < 500);
    end(&w);
    for (i = 0; i < 4; i++)
        close(filler[i]);
    close(f.listener);
}

static void login_and_database_are_set_before_anything_is_taken(void)
{
    ratelimit_redis_options options = server_options();
    world w;
    CHECK(server_do(server_port(), "ACL SETUSER app on >secret ~* +@all"));
    server_flush();
    options.database = 3;
    options.user = "app";
    options.password = "secret";
    options.unix_path = getenv("REDIS_SOCKET");
    begin_with(&w, &options, 0);
    CHECK(take_now(&w, "k", &hourly).allowed);
    CHECK_U64(server_int(server_port(), "DBSIZE"), 0);
    server_do(server_port(), "SELECT 3");
    CHECK_U64(server_int(server_port(), "DBSIZE"), 1);
    server_do(server_port(), "SELECT 0");
    end(&w);
    options.password = "wrong";
    begin_with(&w, &options, 0);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "does not accept this user and password") != NULL);
    end(&w);
    options.password = "secret";
    options.database = 9999;
    begin_with(&w, &options, 0);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "no such database") != NULL);
    end(&w);
    server_flush();
}

static void a_foreign_value_is_left_alone(void)
{
    world w;
    begin(&w, 5000);
    server_flush();
    server_do(server_port(), "SET ratelimit:b{k}00000001 something");
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "holds something else") != NULL);
    server_do(server_port(), "DEL ratelimit:b{k}00000001");
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_OK);
    end(&w);
}

static void a_replica_fails_and_is_taken_up_again_when_it_is_master(void)
{
    world w;
    begin(&w, 5000);
    server_flush();
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_OK);
    CHECK(server_do(server_port(), "REPLICAOF 127.0.0.1 1"));
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "the server is a replica") != NULL);
    CHECK(server_do(server_port(), "REPLICAOF NO ONE"));
    server_sleep_ms(60);
    CHECK_U64(take_now(&w, "k", &hourly).remaining, 98);
    end(&w);
}

static void a_server_that_is_loading_is_left_alone_for_a_while(void)
{
    ratelimit_redis_options options = server_options();
    uint64_t start = ratelimit_clock_ns();
    answer to;
    world w;
    fake f;
    fake_open(&f);
    options.port = f.port;
    options.timeout_ms = 2000;
    begin_with(&w, &options, 0);
    ask(&w, "k", &hourly, &to);
    while (!f.commands && server_ms_since(start) < 1000) {
        turn_now(&w);
        fake_read(&f);
    }
    CHECK(send(f.fd, "-LOADING Redis is loading\r\n", 27, MSG_NOSIGNAL) == 27);
    settle(&w);
    CHECK_U64(to.res[0].status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(why(&w), "still loading") != NULL);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    fake_read(&f);
    CHECK_U64(f.commands, 1);
    end(&w);
    fake_hang_up(&f);
    close(f.listener);
}

#if defined(OVER_TLS)
static void tls_says(int port, const char *ca, const char *name, const char *text)
{
    ratelimit_redis_options options = server_options();
    uint64_t start = ratelimit_clock_ns();
    world w;
    options.port = port;
    options.tls = true;
    options.tls_ca = server_file(ca);
    options.tls_name = name;
    options.timeout_ms = 2000;
    begin_with(&w, &options, 0);
    CHECK_U64(take_now(&w, "k", &hourly).status, RATELIMIT_STORE_FAILED);
    if (strstr(why(&w), text) == NULL)
        CHECK_TEXT(why(&w), text);
    CHECK(server_ms_since(start) < 1900);
    end(&w);
}

static void what_is_wrong_with_tls_is_said(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_status status;
    ratelimit_redis_loop loop;
    fake f;
    tls_says(server_number("TLS_PORT"), "other.crt", NULL, "certificate is not trusted");
    tls_says(server_number("TLS_PORT"), "ca.crt", "other.test", "of another name");
    CHECK(server_do(server_port(), "CONFIG SET tls-auth-clients yes"));
    tls_says(server_number("TLS_PORT"), "ca.crt", NULL, "asks for a client certificate");
    CHECK(server_do(server_port(), "CONFIG SET tls-auth-clients no"));
    fake_open(&f);
    close(f.listener);
    tls_says(f.port, "ca.crt", NULL, "nobody listens there");
    memset(&loop, 0, sizeof loop);
    loop.watch = watch;
    options.tls = true;
    options.tls_ca = server_file("nothing.crt");
    CHECK(ratelimit_redis_async_open(&options, &loop, &status) == NULL);
    CHECK_U64(status, RATELIMIT_SYNTAX);
}

/* It accepts, reads what it is sent, and says what is no TLS, or hangs up. */
static void a_server_that_does_not_speak_tls_is_said_to_be_none(void)
{
    static const char *const says[] = {"-ERR unknown command\r\n", NULL};
    int i;
    for (i = 0; i < 2; i++) {
        ratelimit_redis_options options = server_options();
        uint64_t start = ratelimit_clock_ns();
        answer to;
        world w;
        fake f;
        fake_open(&f);
        options.port = f.port;
        options.tls = true;
        options.timeout_ms = 2000;
        begin_with(&w, &options, 0);
        ask(&w, "k", &hourly, &to);
        while (f.fd < 0 && server_ms_since(start) < 1000) {
            turn_now(&w);
            fake_read(&f);
        }
        server_sleep_ms(5);
        fake_read(&f);
        if (says[i])
            CHECK(send(f.fd, says[i], strlen(says[i]), MSG_NOSIGNAL) > 0);
        else
            fake_hang_up(&f);
        settle(&w);
        CHECK_U64(to.res[0].status, RATELIMIT_STORE_FAILED);
        CHECK(!says[i] || strstr(why(&w), "does not speak TLS") != NULL);
        CHECK(*why(&w) && server_ms_since(start) < 1900);
        fake_hang_up(&f);
        end(&w);
        close(f.listener);
    }
}

/* A read that finds nothing is no failure, whatever the program left in OpenSSL's queue. */
static void errors_that_others_left_in_openssl_do_not_fail_us(void)
{
    const ratelimit_priv_redis_conn *conn;
    world w;
    int i;
    begin(&w, 2000);
    server_flush();
    (void)take_now(&w, "k", &hourly);
    conn = w.a->e.conns;
    for (i = 0; i < 10; i++) {
        ERR_raise(ERR_LIB_SSL, SSL_R_BAD_LENGTH);
        ratelimit_redis_async_ready(w.a, conn->fd, RATELIMIT_REDIS_READ);
        CHECK_U64(take_now(&w, "k", &hourly).remaining, 98 - i);
    }
    CHECK(w.a->e.conns == conn && conn->next == NULL);
    end(&w);
    ERR_clear_error();
}
#endif

/* ---- close and callbacks within callbacks ---------------------------------------------------- */

static void close_answers_all_that_is_under_way_once(void)
{
    static answer to[60];
    int when;
    unsigned i;
    server_flush();
    for (when = 0; when < 6; when++) { /* not even connected, ..., all answered */
        world w;
        begin(&w, 5000);
        if (when >= 3)
            (void)take_now(&w, "warm", &hourly);
        for (i = 0; i < 60; i++)
            ask(&w, "k", &hourly, &to[i]);
        for (i = 0; i < (unsigned)when % 3; i++)
            turn_now(&w);
        ratelimit_redis_async_close(w.a);
        for (i = 0; i < 60; i++) {
            CHECK_U64(to[i].calls, 1);
            CHECK(to[i].res[0].status != RATELIMIT_STORE_FAILED);
            if (when % 3 == 0)
                CHECK_U64(to[i].res[0].status, RATELIMIT_CANCELED);
        }
        w.a = NULL;
        turn_now(&w);
        end_loop(&w);
    }
}

static unsigned closings, others, chained;

static void then_close(void *self, const ratelimit_result *res, size_t count)
{
    world *w = (world *)self;
    ratelimit_request q = server_request("late", &hourly, RATELIMIT_TAKE, 1);
    (void)res;
    (void)count;
    closings++;
    ratelimit_redis_async_close(w->a);
    CHECK_U64(ratelimit_redis_async_take(w->a, &q, then_close, w), RATELIMIT_CANCELED);
    ratelimit_redis_async_close(w->a);
}

static void count_it(void *self, const ratelimit_result *res, size_t count)
{
    (void)self;
    (void)res;
    (void)count;
    others++;
}

/* Wherever an answer may come from: a reply, a lost connection, a refused one, the timer. */
static void close_within_an_answer_answers_the_others(void)
{
    int how;
    fake f;
    server_flush();
    fake_open(&f);
    for (how = 0; how < 5; how++) {
        ratelimit_request q = server_request("k", &hourly, RATELIMIT_TAKE, 1);
        uint64_t start = ratelimit_clock_ns();
        world w;
        int i;
        closings = others = 0;
        if (how == 0)
            begin(&w, 5000);
        else
            begin_at(&w, how == 3 ? 1 : f.port);
        if (how == 4)
            q.key_len = 0;
        CHECK_U64(ratelimit_redis_async_take(w.a, &q, then_close, &w), RATELIMIT_OK);
        for (i = 0; i < 20; i++)
            CHECK_U64(ratelimit_redis_async_take(w.a, &q, count_it, &w), RATELIMIT_OK);
        while (!closings && server_ms_since(start) < 3000) {
            turn_now(&w);
            if (how == 1) { /* how 2: it never answers */
                fake_read(&f);
                if (f.commands)
                    fake_hang_up(&f);
            }
        }
        CHECK_U64(closings, 1);
        CHECK_U64(others, 20);
        w.a = NULL;
        turn_now(&w);
        end_loop(&w);
        fake_hang_up(&f);
    }
    close(f.listener);
}

static void then_again(void *self, const ratelimit_result *res, size_t count)
{
    world *w = (world *)self;
    ratelimit_request q = server_request("chain", &hourly, RATELIMIT_TAKE, 1);
    (void)count;
    CHECK_U64(res->status, chained < 100 ? RATELIMIT_OK : RATELIMIT_DENIED);
    if (++chained <= 100)
        CHECK_U64(ratelimit_redis_async_take(w->a, &q, then_again, w), RATELIMIT_OK);
}

static void answers_may_take_again(void)
{
    ratelimit_request q = server_request("chain", &hourly, RATELIMIT_TAKE, 1);
    world w;
    begin(&w, 5000);
    server_flush();
    chained = 0;
    CHECK_U64(ratelimit_redis_async_take(w.a, &q, then_again, &w), RATELIMIT_OK);
    settle(&w);
    CHECK_U64(chained, 101);
    end(&w);
}

static unsigned retries;
static bool ending;

static void then_retry(void *self, const ratelimit_result *res, size_t count)
{
    world *w = (world *)self;
    ratelimit_request q = server_request("", &hourly, RATELIMIT_TAKE, 1);
    (void)count;
    (void)res;
    if (++retries < 100000 && !ending)
        CHECK_U64(ratelimit_redis_async_take(w->a, &q, then_retry, w), RATELIMIT_OK);
}

/* What fails without a server, and is taken again for ever, must not keep the loop from all else.
 * */
static void answers_that_retry_at_once_leave_the_loop_its_turns(void)
{
    ratelimit_request q = server_request("", &hourly, RATELIMIT_TAKE, 1);
    unsigned i;
    world w;
    begin(&w, 5000);
    retries = 0;
    CHECK_U64(ratelimit_redis_async_take(w.a, &q, then_retry, &w), RATELIMIT_OK);
    for (i = 0; i < 10; i++)
        turn(&w);
    CHECK(retries >= 1 && retries <= 20);
    ending = true;
    end(&w);
}

/* Without a timer hook the caller asks when. */
static void next_deadline_says_when_tick_is_due(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis_loop loop;
    ratelimit_request q = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    uint64_t now, next;
    answer to;
    world w;
    memset(&w, 0, sizeof w);
    memset(&to, 0, sizeof to);
    memset(&loop, 0, sizeof loop);
    begin_loop(&w);
    loop.watch = watch;
    loop.self = &w;
    options.timeout_ms = 5000;
    options.connect_timeout_ms = 3000;
    w.a = ratelimit_redis_async_open(&options, &loop, NULL);
    CHECK_U64(ratelimit_redis_async_next_deadline(w.a), RATELIMIT_FOREVER);
    now = ratelimit_clock_ns();
    CHECK_U64(ratelimit_redis_async_take(w.a, &q, answered, &to), RATELIMIT_OK);
    next = ratelimit_redis_async_next_deadline(w.a);
    CHECK(next >= now + 3 * RATELIMIT_SECOND && next < now + 4 * RATELIMIT_SECOND);
    ratelimit_redis_async_tick(w.a, next - 1);
    CHECK_U64(to.calls, 0);
    ratelimit_redis_async_tick(w.a, next);
    CHECK_U64(to.calls, 1);
    CHECK_U64(to.res[0].status, RATELIMIT_STORE_FAILED);
    CHECK_U64(ratelimit_redis_async_next_deadline(w.a), RATELIMIT_FOREVER);
    CHECK_U64(ratelimit_redis_async_take(w.a, &q, answered, &to), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_async_next_deadline(w.a),
              0); /* it is left alone, so the answer is known */
    ratelimit_redis_async_tick(w.a, next);
    CHECK_U64(to.calls, 2);
    end(&w);
}

static void a_url_opens_a_handle_of_a_loop_too(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis_loop loop;
    ratelimit_status status;
    char url[64];
    world w;
    memset(&w, 0, sizeof w);
    memset(&loop, 0, sizeof loop);
    begin_loop(&w);
    loop.watch = watch;
    loop.timer = set_timer;
    loop.self = &w;
    options.timeout_ms = options.connect_timeout_ms = 5000;
    options.port = 1; /* the URL says another */
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", server_port());
    w.a = ratelimit_redis_async_open_url(url, &options, &loop, &status);
    CHECK_U64(status, RATELIMIT_OK);
    CHECK(w.a != NULL);
    if (w.a)
        CHECK_U64(take_now(&w, "url", &hourly).status, RATELIMIT_OK);
    CHECK(ratelimit_redis_async_open_url("http://127.0.0.1", NULL, &loop, &status) == NULL);
    CHECK_U64(status, RATELIMIT_SYNTAX);
    CHECK(ratelimit_redis_async_open_url(NULL, NULL, &loop, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_redis_async_open_url(url, NULL, NULL, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT);
    end(&w);
}

/* Everything at random. Under way at the end is nothing, and each call was answered once. */
static void whatever_happens_each_call_is_answered_once_within_the_limit(void)
{
    static answer to[4000];
    static unsigned char of[4000];
    int round;
    for (round = 0; round < 12; round++) {
        unsigned allowed[20] = {0};
        size_t count = 0, i;
        world w;
        server_flush();
        if (round % 2) {
            begin_tier(&w, server_port(), 40, 0);
            w.a->r->timeout_ns = 40 * RATELIMIT_MILLISECOND;
        } else {
            begin(&w, 40);
        }
        for (i = 0; i < 150; i++) {
            char key[2] = "a";
            size_t n = check_below(20);
            size_t of_key = check_below(20);
            key[0] = (char)('a' + of_key);
            for (; n && count < 4000; n--, count++) {
                of[count] = (unsigned char)of_key;
                ask(&w, key, &hourly, &to[count]);
            }
            if (check_below(12) == 0)
                server_int(server_port(), "CLIENT KILL TYPE normal SKIPME yes");
            if (check_below(20) == 0)
                server_do(server_port(), "SCRIPT FLUSH");
            if (check_below(25) == 0) {
                kill((pid_t)server_number("REDIS_PID"), SIGSTOP);
                for (n = check_below(60); n; n--) {
                    turn_now(&w);
                    server_sleep_ms(1);
                }
                kill((pid_t)server_number("REDIS_PID"), SIGCONT);
            }
            if (check_below(3) == 0)
                turn_now(&w);
        }
        if (check_below(2))
            settle(&w);
        end(&w);
        for (i = 0; i < count; i++) {
            CHECK_U64(to[i].calls, 1);
            allowed[of[i]] += to[i].res[0].allowed;
        }
        for (i = 0; i < 20; i++)
            CHECK(allowed[i] <= 100);
    }
}

/* ---- cluster --------------------------------------------------------------------------------- */

static int cluster_number(const char *list, unsigned index)
{
    const char *text = getenv(list);
    char *after;
    long value = 0;
    for (;; index--) {
        value = strtol(text, &after, 10);
        if (!index)
            return (int)value;
        text = after;
    }
}

static void begin_cluster(world *w, uint32_t timeout_ms)
{
    ratelimit_redis_options options = server_options();
    options.port = cluster_number("CLUSTER_PORTS", 0);
    options.cluster = true;
    options.timeout_ms = timeout_ms;
    options.cool_down_ms = 50;
    begin_with(w, &options, 0);
}

static void flush_cluster(void)
{
    unsigned i;
    for (i = 0; i < 3; i++)
        server_do(cluster_number("CLUSTER_PORTS", i), "FLUSHALL");
}

/* Takes one of each of 300 keys; how many were allowed. */
static unsigned take_300(world *w, answer *to)
{
    unsigned i, allowed = 0;
    char key[16];
    for (i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof key, "key-%u", i);
        ask(w, key, &hourly, &to[i]);
    }
    settle(w);
    for (i = 0; i < 300; i++) {
        CHECK_U64(to[i].calls, 1);
        allowed += to[i].res[0].allowed;
    }
    return allowed;
}

static void in_a_cluster_each_key_is_taken_where_it_is(void)
{
    static answer to[300];
    long long keys = 0;
    ratelimit_request q[2];
    unsigned i;
    world w;
    begin_cluster(&w, 5000);
    flush_cluster();
    for (i = 0; i < 2; i++)
        CHECK_U64(take_300(&w, to), 300);
    for (i = 0; i < 300; i++)
        CHECK_U64(to[i].res[0].remaining, 98);
    for (i = 0; i < 3; i++) {
        long long here = server_int(cluster_number("CLUSTER_PORTS", i), "DBSIZE");
        CHECK(here > 50);
        keys += here;
    }
    CHECK_U64(keys, 300);
    q[0] = server_request("a", &hourly, RATELIMIT_TAKE, 1);
    q[1] = server_request("b", &hourly, RATELIMIT_TAKE, 1);
    memset(to, 0, sizeof to);
    CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 2, answered, &to[0]), RATELIMIT_OK);
    CHECK_U64(ratelimit_redis_async_take_each(w.a, q, 2, answered, &to[1]), RATELIMIT_OK);
    settle(&w);
    CHECK_U64(to[0].res[0].status, RATELIMIT_UNSUPPORTED);
    CHECK(to[1].res[0].allowed && to[1].res[1].allowed);
    end(&w);
}

static long long slot_of(const char *key);

/* Three keys, each on a node of its own, in the order of their slots: so they are asked. */
static void keys_of_three_nodes(char key[3][16])
{
    int i, found = 0;
    for (; found < 3; found++)
        for (i = 0;; i++) {
            long long slot;
            (void)snprintf(key[found], 16, "turn-%d", i);
            slot = slot_of(key[found]);
            if (slot > found * 5462 && slot < found * 5462 + 5400)
                break;
        }
}

static void in_a_cluster_all_or_none_in_turn_gives_back(void)
{
    static const ratelimit_limit one = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    static answer to[40];
    ratelimit_redis_options options = server_options();
    ratelimit_request q[3];
    unsigned i, allowed = 0;
    uint64_t start;
    char key[3][16];
    world w;
    options.port = cluster_number("CLUSTER_PORTS", 0);
    options.cluster = options.all_in_turn = true;
    options.timeout_ms = 300; /* the cluster does not notice a node that is stopped for so long */
    options.cool_down_ms = 50;
    memset(&w, 0, sizeof w);
    begin_with(&w, &options, 0);
    flush_cluster();
    keys_of_three_nodes(key);
    memset(to, 0, sizeof to);
    for (i = 0; i < 3; i++)
        q[i] = server_request(key[2 - i], i == 1 ? &one : &hourly, RATELIMIT_TAKE, 1);
    for (i = 0; i < 20; i++) /* all at once: one of them passes */
        CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 3, answered, &to[i]), RATELIMIT_OK);
    settle(&w);
    for (i = 0; i < 20; i++) {
        CHECK_U64(to[i].calls, 1);
        CHECK_U64(to[i].count, 3);
        allowed += to[i].res[0].allowed;
        CHECK_U64(to[i].res[1].status, to[i].res[0].allowed ? RATELIMIT_OK : RATELIMIT_DENIED);
        CHECK_U64(to[i].res[2].status, to[i].res[0].allowed ? RATELIMIT_OK : RATELIMIT_SKIPPED);
    }
    CHECK_U64(allowed, 1);
    CHECK_U64(take_now(&w, key[0], &hourly).remaining, 98);
    CHECK_U64(take_now(&w, key[2], &hourly).remaining, 98);
    /* The second node hangs: the first gives back within the time of the call. */
    q[1].limit = &hourly;
    memset(to, 0, sizeof to);
    kill((pid_t)cluster_number("CLUSTER_PIDS", 1), SIGSTOP);
    start = ratelimit_clock_ns();
    CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 3, answered, &to[0]), RATELIMIT_OK);
    settle(&w);
    CHECK(to[0].at_ns - start < 290 * RATELIMIT_MILLISECOND); /* two thirds, and giving back */
    kill((pid_t)cluster_number("CLUSTER_PIDS", 1), SIGCONT);
    for (i = 0; i < 3; i++)
        CHECK_U64(to[0].res[i].status, RATELIMIT_STORE_FAILED);
    server_sleep_ms(100);
    CHECK_U64(take_now(&w, key[0], &hourly).remaining, 97);
    CHECK_U64(take_now(&w, key[2], &hourly).remaining, 97);
    /* Closed while some are under way: each is answered once. */
    memset(to, 0, sizeof to);
    for (i = 0; i < 20; i++)
        CHECK_U64(ratelimit_redis_async_take_all(w.a, q, 3, answered, &to[i]), RATELIMIT_OK);
    turn(&w);
    end(&w);
    for (i = 0; i < 20; i++)
        CHECK_U64(to[i].calls, 1);
}

static long long slot_of(const char *key)
{
    return server_int(cluster_number("CLUSTER_PORTS", 0), "CLUSTER KEYSLOT %s", server_bucket(key));
}

static void node_id(unsigned node, char *id)
{
    redisReply *reply = server_ask(cluster_number("CLUSTER_PORTS", node), "CLUSTER MYID");
    (void)snprintf(id, 64, "%s", reply->str);
    freeReplyObject(reply);
}

/* Also with the script gone on the node it moves to: ASKING covers one command. */
static void a_slot_on_its_way_is_asked_for_at_both_ends(void)
{
    static answer to[20];
    char from_id[64], to_id[64], key[16] = "";
    long long slot = -1;
    unsigned i, from = 0, other = 1;
    int from_port = cluster_number("CLUSTER_PORTS", from);
    int to_port = cluster_number("CLUSTER_PORTS", other);
    world w;
    begin_cluster(&w, 5000);
    flush_cluster();
    CHECK(take_now(&w, "warm", &hourly).allowed);
    for (i = 0; i < 1000; i++) { /* a key of the first node */
        (void)snprintf(key, sizeof key, "moving-%u", i);
        slot = slot_of(key);
        if (server_int(from_port, "EXISTS %s", server_bucket(key)) == 0)
            break;
    }
    node_id(from, from_id);
    node_id(other, to_id);
    CHECK(server_do(to_port, "CLUSTER SETSLOT %d IMPORTING %s", (int)slot, from_id));
    CHECK(server_do(from_port, "CLUSTER SETSLOT %d MIGRATING %s", (int)slot, to_id));
    server_do(to_port, "SCRIPT FLUSH");
    for (i = 0; i < 20; i++)
        ask(&w, key, &hourly, &to[i]);
    settle(&w);
    for (i = 0; i < 20; i++)
        CHECK(to[i].calls == 1 && to[i].res[0].allowed);
    CHECK_U64(take_now(&w, key, &hourly).remaining, 79);
    for (i = 0; i < 3; i++)
        server_do(cluster_number("CLUSTER_PORTS", i), "CLUSTER SETSLOT %d NODE %s", (int)slot,
                  to_id);
    CHECK_U64(take_now(&w, key, &hourly).remaining, 78); /* MOVED */
    server_do(to_port, "DEL %s", server_bucket(key));
    for (i = 0; i < 3; i++)
        server_do(cluster_number("CLUSTER_PORTS", i), "CLUSTER SETSLOT %d NODE %s", (int)slot,
                  from_id);
    CHECK_U64(take_now(&w, key, &hourly).remaining, 99);
    end(&w);
}

/* For less time than the cluster takes to notice. */
static void a_stopped_node_delays_only_its_own_keys(void)
{
    static answer to[300];
    uint64_t start, longest = 0;
    unsigned i, failed = 0;
    world w;
    begin_cluster(&w, 150);
    flush_cluster();
    for (i = 0; i < 3; i++)
        CHECK_U64(take_300(&w, to), 300);
    kill((pid_t)cluster_number("CLUSTER_PIDS", 1), SIGSTOP);
    start = ratelimit_clock_ns();
    take_300(&w, to);
    kill((pid_t)cluster_number("CLUSTER_PIDS", 1), SIGCONT);
    for (i = 0; i < 300; i++) {
        uint64_t took = to[i].at_ns - start;
        if (to[i].res[0].status == RATELIMIT_STORE_FAILED) {
            failed++;
            CHECK(took >= 140 * RATELIMIT_MILLISECOND && took < 300 * RATELIMIT_MILLISECOND);
        } else {
            longest = took > longest ? took : longest;
        }
    }
    CHECK(failed > 50 && failed < 150);
    CHECK(longest < 100 * RATELIMIT_MILLISECOND);
    server_sleep_ms(60);
    CHECK(take_300(&w, to) > 0); /* one call tries, some fail meanwhile */
    CHECK_U64(take_300(&w, to), 300);
    end(&w);
}

/* Makes node 1 master again, for tests to come. */
static void give_back(void)
{
    int port = cluster_number("CLUSTER_PORTS", 1), i;
    bool master = false;
    for (i = 0; i < 200 && !master; i++) {
        redisReply *reply = server_ask(port, "CLUSTER FAILOVER");
        if (reply)
            freeReplyObject(reply);
        server_sleep_ms(50);
        reply = server_ask(port, "ROLE");
        master = reply && reply->type == REDIS_REPLY_ARRAY &&
                 strcmp(reply->element[0]->str, "master") == 0;
        if (reply)
            freeReplyObject(reply);
    }
    CHECK(master);
}

static void a_replica_that_took_over_is_found(void)
{
    static answer to[300];
    uint64_t start;
    unsigned allowed = 0;
    world w;
    begin_cluster(&w, 100);
    flush_cluster();
    for (allowed = 0, start = ratelimit_clock_ns(); allowed < 300 && server_ms_since(start) < 5000;)
        allowed = take_300(&w, to);
    CHECK_U64(allowed, 300);
    kill((pid_t)cluster_number("CLUSTER_PIDS", 1), SIGSTOP);
    start = ratelimit_clock_ns();
    CHECK(take_300(&w, to) < 300);
    for (allowed = 0; allowed < 300 && server_ms_since(start) < 8000;) {
        server_sleep_ms(20);
        allowed = take_300(&w, to);
    }
    CHECK_U64(allowed, 300);
    printf("failover: decided by Redis again after %u ms\n", (unsigned)server_ms_since(start));
    kill((pid_t)cluster_number("CLUSTER_PIDS", 1), SIGCONT);
    give_back();
    end(&w);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    check_seed(20261128);
#if defined(OVER_TLS)
    RUN(what_is_wrong_with_tls_is_said);
    RUN(a_server_that_does_not_speak_tls_is_said_to_be_none);
    RUN(errors_that_others_left_in_openssl_do_not_fail_us);
#endif
    RUN(random_decisions_agree_with_the_table_in_every_field);
    RUN(a_changed_limit_and_a_clock_that_was_set_back_are_decided_as_by_the_store);
    RUN(takes_of_one_turn_are_commands_of_sixty_four_in_one_write_and_in_order);
    RUN(one_that_fails_of_a_command_leaves_the_others_alone);
    RUN(a_batch_is_answered_at_once_when_its_last_is_decided);
    RUN(a_lost_script_cache_is_not_seen_by_a_hundred_takes_under_way);
    RUN(mistakes_are_told_and_never_from_within_take);
    RUN(no_more_than_max_requests_are_under_way);
    RUN(a_stopped_server_fails_what_waits_for_it_in_time_and_blocks_nothing);
    RUN(what_the_socket_does_not_take_is_sent_later);
    RUN(a_late_loop_does_not_make_the_server_late);
    RUN(a_connection_killed_between_takes_is_not_seen);
    RUN(a_key_not_permitted_fails_alone);
    RUN(the_policy_of_a_limiter_decides_what_redis_could_not);
    RUN(shadow_mode_hook_and_counters_of_a_limiter_apply);
    RUN(a_key_known_to_be_refused_costs_no_round_trips);
    RUN(leases_serve_a_key_and_never_more_than_its_limit);
    RUN(a_lease_asked_for_when_all_is_closed_is_lost);
    RUN(a_lease_not_yet_asked_for_when_all_is_closed_costs_nothing);
    RUN(a_tier_decides_while_redis_fails);
    RUN(a_connection_closed_under_way_fails_and_nothing_is_sent_twice);
    RUN(no_signal_comes_of_a_connection_that_broke);
    RUN(a_cluster_that_is_down_is_not_asked_by_each_request);
#if !defined(OVER_TLS)
    RUN(one_swallowed_request_costs_what_was_sent_with_it);
    RUN(counters_tell_what_went_wrong);
#endif
    RUN(one_key_that_fails_costs_the_others_nothing);
    RUN(where_nobody_listens_takes_fail_at_once_and_say_why);
    RUN(a_server_that_does_not_accept_costs_the_connect_timeout);
    RUN(login_and_database_are_set_before_anything_is_taken);
    RUN(a_foreign_value_is_left_alone);
    RUN(a_replica_fails_and_is_taken_up_again_when_it_is_master);
    RUN(a_server_that_is_loading_is_left_alone_for_a_while);
    RUN(close_answers_all_that_is_under_way_once);
    RUN(close_within_an_answer_answers_the_others);
    RUN(answers_may_take_again);
    RUN(answers_that_retry_at_once_leave_the_loop_its_turns);
    RUN(next_deadline_says_when_tick_is_due);
    RUN(a_url_opens_a_handle_of_a_loop_too);
    RUN(whatever_happens_each_call_is_answered_once_within_the_limit);
    if (getenv("CLUSTER_PORTS")) {
        RUN(in_a_cluster_each_key_is_taken_where_it_is);
        RUN(in_a_cluster_all_or_none_in_turn_gives_back);
        RUN(a_slot_on_its_way_is_asked_for_at_both_ends);
        RUN(a_stopped_node_delays_only_its_own_keys);
        RUN(a_replica_that_took_over_is_found);
    }
    return check_end();
}

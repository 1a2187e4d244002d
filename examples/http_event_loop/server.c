/* An HTTP server in one thread, libevent's, that asks Redis for each request of /api and never
   blocks: while Redis thinks, the loop serves everything else. /static is not limited and does not
   notice if Redis is slow or dead; /api is then answered by policy within --timeout-ms.

   Package: libevent-dev libhiredis-dev redis-server wrk
   Build:   cc -std=c99 -I. examples/http_event_loop/server.c -o http_event_loop \
                -levent -lhiredis -pthread

   Try it:  ./http_event_loop --limit "10/m burst 3" &
            curl -i http://127.0.0.1:8080/api         four times: the last is 429
            kill -STOP $(pidof redis-server)
            curl -i http://127.0.0.1:8080/api         200 without fields, and a line on stderr
            kill -CONT $(pidof redis-server)
            kill %1

   A client is its address. Behind a proxy that would be the proxy's: ../http_server shows how to
   find the client's.

   Who is gone while Redis is asked. evhttp does not read from a connection whose request was handed
   out, and a request that was handed out is never freed behind our back: if its connection breaks
   it is cut off from it, and evhttp_send_reply frees it. So the one rule is that each request gets
   exactly one evhttp_send_reply, whatever happened, and that nothing kept points to its connection.
   Don't turn reading on again to notice clients that leave: libevent 2.1 ends the process when the
   next request of the same connection comes in too early. */
#define _POSIX_C_SOURCE 200809L

#define RATELIMIT_REDIS_ASYNC
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <signal.h>
#include <stdarg.h>

typedef struct options {
    char host[256];
    unsigned port, redis_port, timeout_ms, max_requests;
} options;

static struct event_base *base;
static struct evhttp *http;
static struct evhttp_bound_socket *bound;
static struct event *redis_timer, *accept_timer;
static ratelimit_redis_async *redis; /* NULL: the server is stopping */
static ratelimit_limiter limiter;    /* its policy, for when Redis fails */
static ratelimit_limit limit;
static size_t last_answers; /* not sent yet, of those given while stopping */

static const char usage[] =
    "usage: http_event_loop --limit TEXT [options]\n"
    "  --limit TEXT         of each client, such as \"10/s burst 20\"\n"
    "  --port N             default 8080\n"
    "  --redis HOST:PORT    default 127.0.0.1:6379\n"
    "  --timeout-ms N       default 100; an answer that takes longer counts as a failure\n"
    "  --max-requests N     default 10000; most that wait for Redis, the others are answered 503\n"
    "  --fail-closed        when Redis fails: 503; default: let through\n";

static void fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("http_event_loop: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

/* ---- the requests ---------------------------------------------------------------------------- */

static void last_answer_sent(struct evhttp_request *req, void *self)
{
    (void)req, (void)self;
    if (!--last_answers)
        event_base_loopbreak(base);
}

/* Gives req away, and frees it if its client is gone. */
static void reply(struct evhttp_request *req, int status, const char *text)
{
    struct evkeyvalq *fields = evhttp_request_get_output_headers(req);
    struct evbuffer *body = evbuffer_new();
    if (body)
        evbuffer_add(body, text, strlen(text));
    evhttp_add_header(fields, "Content-Type", "text/plain; charset=utf-8");
    if (!redis) {
        evhttp_add_header(fields, "Connection", "close");
        if (evhttp_request_get_connection(req)) {
            last_answers++;
            evhttp_request_set_on_complete_cb(req, last_answer_sent, NULL);
        }
    }
    evhttp_send_reply(req, status, status == 429 ? "Too Many Requests" : NULL, body);
    if (body)
        evbuffer_free(body);
}

static void add_fields(struct evhttp_request *req, const ratelimit_result *res)
{
    char text[RATELIMIT_HTTP_FIELDS_BYTES], *name, *colon, *end;
    ratelimit_http_fields(res, &limit, RATELIMIT_HTTP_ALL, text, sizeof text);
    for (name = text; *name; name = end + 2) {
        colon = strchr(name, ':');
        end = strstr(name, "\r\n");
        *colon = *end = 0;
        evhttp_add_header(evhttp_request_get_output_headers(req), name, colon + 2);
    }
}

/* Redis has answered, or it is too late for that, or the server stops. */
static void answered(void *self, const ratelimit_result *res, size_t count)
{
    struct evhttp_request *req = (struct evhttp_request *)self;
    int status = ratelimit_http_status(res);
    (void)count;
    if (res->status == RATELIMIT_STORE_FAILED) {
        char why[200];
        RATELIMIT_LOG(RATELIMIT_LIMIT(1, RATELIMIT_MINUTE, 1), missed,
                      fprintf(stderr, "http_event_loop: Redis: %s; requests are %s (%lu more)\n",
                              ratelimit_redis_async_error(redis, why, sizeof why),
                              res->allowed ? "let through" : "refused", (unsigned long)missed));
    }
    add_fields(req, res);
    reply(req, status,
          status == 200   ? "hello\n"
          : status == 429 ? "too many requests\n"
                          : "try again later\n");
}

static void api(struct evhttp_request *req, void *self)
{
    unsigned char address[16], key[RATELIMIT_ADDRESS_KEY_BYTES];
    ratelimit_request ask = {0};
    ratelimit_status status;
    char *peer = NULL;
    ev_uint16_t port;
    (void)self;
    evhttp_connection_get_peer(evhttp_request_get_connection(req), &peer, &port);
    ask.key = key;
    ask.key_len = ratelimit_address_key(
        address, peer ? ratelimit_address_parse(peer, strlen(peer), address) : 0, 32, 64, key);
    ask.limit = &limit;
    ask.n = 1;
    status = ratelimit_redis_async_take(redis, &ask, answered, req);
    if (status == RATELIMIT_OK)
        return;
    /* Too many wait already. Not for the policy: who sends enough would be let through. */
    evhttp_add_header(evhttp_request_get_output_headers(req), "Retry-After", "1");
    reply(req, 503, "try again later\n");
}

static void static_text(struct evhttp_request *req, void *self)
{
    (void)self;
    reply(req, 200, "static\n");
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void redis_ready(evutil_socket_t fd, short events, void *self)
{
    (void)self;
    ratelimit_redis_async_ready(redis, fd,
                                (events & EV_READ ? RATELIMIT_REDIS_READ : 0u) |
                                    (events & EV_WRITE ? RATELIMIT_REDIS_WRITE : 0u));
}

/* An event for each socket that the limiter has open; a new one when it waits for other things. */
static int watch(void *self, int fd, unsigned events, void **yours)
{
    short what = EV_PERSIST;
    if (*yours)
        event_free((struct event *)*yours);
    *yours = NULL;
    if (!events)
        return 0;
    what |= (short)(events & RATELIMIT_REDIS_READ ? EV_READ : 0);
    what |= (short)(events & RATELIMIT_REDIS_WRITE ? EV_WRITE : 0);
    *yours = event_new((struct event_base *)self, fd, what, redis_ready, NULL);
    return *yours ? event_add((struct event *)*yours, NULL) : -1;
}

static void start_timer(void *self, uint64_t after_ns)
{
    struct timeval span;
    (void)self;
    span.tv_sec = (time_t)(after_ns / RATELIMIT_SECOND);
    span.tv_usec = (suseconds_t)(after_ns % RATELIMIT_SECOND / 1000);
    evtimer_add(redis_timer, &span);
}

static void timer_fired(evutil_socket_t fd, short events, void *self)
{
    (void)fd, (void)events, (void)self;
    ratelimit_redis_async_tick(redis, ratelimit_clock_ns());
}

/* Out of descriptors, mostly: without a pause the loop would do nothing but try again. */
static void accept_failed(struct evconnlistener *listener, void *self)
{
    static const struct timeval pause = {0, 100000};
    int error = EVUTIL_SOCKET_ERROR();
    (void)self;
    RATELIMIT_LOG(RATELIMIT_LIMIT(1, RATELIMIT_MINUTE, 1), missed,
                  fprintf(stderr, "http_event_loop: accept: %s (%lu more)\n",
                          evutil_socket_error_to_string(error), (unsigned long)missed));
    evconnlistener_disable(listener);
    evtimer_add(accept_timer, &pause);
}

static void accept_again(evutil_socket_t fd, short events, void *self)
{
    (void)fd, (void)events, (void)self;
    evconnlistener_enable(evhttp_bound_socket_get_listener(bound));
}

/* Answers all who wait and leaves when that is sent, a second later at most. */
static void stop(evutil_socket_t number, short events, void *self)
{
    static const struct timeval most = {1, 0};
    ratelimit_redis_async *closing = redis;
    (void)number, (void)events, (void)self;
    if (!closing)
        return;
    redis = NULL;
    event_del(redis_timer);
    event_del(accept_timer);
    evhttp_del_accept_socket(http, bound);
    ratelimit_redis_async_close(closing);
    event_base_loopexit(base, last_answers ? &most : NULL);
}

/* ---- the start ------------------------------------------------------------------------------- */

static unsigned parse_number(const char *option, const char *text, unsigned most)
{
    size_t len = strspn(text, "0123456789");
    unsigned long number = strtoul(text, NULL, 10);
    if (!len || text[len] || len > 9 || !number || number > most)
        fail(2, "%s wants a number from 1 to %u, not \"%s\"", option, most, text);
    return (unsigned)number;
}

static void parse_redis(options *o, const char *where)
{
    const char *colon = strrchr(where, ':');
    size_t len = colon ? (size_t)(colon - where) : 0;
    if (!len || len >= sizeof o->host)
        fail(2, "--redis wants HOST:PORT, not \"%s\"", where);
    memcpy(o->host, where, len);
    o->host[len] = 0;
    o->redis_port = parse_number("--redis HOST:PORT", colon + 1, 65535);
}

static void parse_option(options *o, const char *name, const char *value)
{
    if (!strcmp(name, "--limit")) {
        ratelimit_status status = ratelimit_limit_parse(&limit, value);
        if (status != RATELIMIT_OK)
            fail(2, "--limit \"%s\": %s", value, ratelimit_status_text(status));
    } else if (!strcmp(name, "--port")) {
        o->port = parse_number(name, value, 65535);
    } else if (!strcmp(name, "--redis")) {
        parse_redis(o, value);
    } else if (!strcmp(name, "--timeout-ms")) {
        o->timeout_ms = parse_number(name, value, 60000);
    } else if (!strcmp(name, "--max-requests")) {
        o->max_requests = parse_number(name, value, 1000000);
    } else {
        fail(2, "unknown option %s\n%s", name, usage);
    }
}

static void parse_options(options *o, int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            fputs(usage, stdout);
            exit(0);
        }
        if (!strcmp(argv[i], "--fail-closed")) {
            limiter.on_failure = RATELIMIT_FAIL_CLOSED; /* open by default */
            continue;
        }
        if (i + 1 == argc)
            fail(2, "%s: unknown, or its value is missing\n%s", argv[i], usage);
        parse_option(o, argv[i], argv[i + 1]);
        i++;
    }
    if (ratelimit_limit_check(&limit) != RATELIMIT_OK)
        fail(2, "--limit is needed\n%s", usage);
}

static void open_redis(const options *o)
{
    ratelimit_redis_options to = {0};
    ratelimit_redis_loop loop = {0};
    ratelimit_status status;
    to.host = o->host;
    to.port = (int)o->redis_port;
    to.timeout_ms = to.connect_timeout_ms = o->timeout_ms;
    loop.watch = watch;
    loop.timer = start_timer;
    loop.self = base;
    loop.max_requests = o->max_requests;
    loop.limiter = &limiter;
    redis = ratelimit_redis_async_open(&to, &loop, &status);
    if (!redis)
        fail(1, "Redis: %s", ratelimit_status_text(status));
}

static void open_http(const options *o)
{
    http = evhttp_new(base);
    if (!http)
        fail(1, "no memory");
    evhttp_set_timeout(http, 10); /* of a connection where nothing moves */
    evhttp_set_max_headers_size(http, 16384);
    evhttp_set_max_body_size(http, 16384);
    if (evhttp_set_cb(http, "/api", api, NULL) || evhttp_set_cb(http, "/static", static_text, NULL))
        fail(1, "no memory");
    bound = evhttp_bind_socket_with_handle(http, "127.0.0.1", (ev_uint16_t)o->port);
    if (!bound)
        fail(1, "can't listen on port %u", o->port);
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(bound), accept_failed);
}

int main(int argc, char **argv)
{
    options o = {"127.0.0.1", 8080, 6379, 100, 10000};
    struct event *term, *interrupt;
    parse_options(&o, argc, argv);
    signal(SIGPIPE, SIG_IGN); /* answers to clients that are gone */
    base = event_base_new();
    if (!base)
        fail(1, "no event loop");
    redis_timer = evtimer_new(base, timer_fired, NULL);
    accept_timer = evtimer_new(base, accept_again, NULL);
    term = evsignal_new(base, SIGTERM, stop, NULL);
    interrupt = evsignal_new(base, SIGINT, stop, NULL);
    if (!redis_timer || !accept_timer || !term || !interrupt || evsignal_add(term, NULL) ||
        evsignal_add(interrupt, NULL))
        fail(1, "no memory");
    open_redis(&o);
    open_http(&o);
    fprintf(stderr, "http_event_loop: listening on 127.0.0.1, port %u\n", o.port);
    event_base_dispatch(base);
    evhttp_free(http);
    event_free(redis_timer);
    event_free(accept_timer);
    event_free(term);
    event_free(interrupt);
    event_base_free(base);
    return 0;
}

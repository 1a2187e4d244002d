/* An HTTP server whose clients are limited, by libmicrohttpd and ratelimit_microhttpd.h, which is
   the file to copy. Limits come from the command line or from a file of rules that is read again on
   SIGHUP; buckets are in this process, or in Redis for several servers together. /metrics tells
   Prometheus, /health tells that it runs; neither is limited.

   Package: libmicrohttpd-dev libhiredis-dev curl wrk redis-server
   Build:   cc -std=c99 -I. examples/http_server/server.c -o http_server \
                -lmicrohttpd -lhiredis -pthread

   Try it:  ./http_server --limit "10/m burst 3" &
            curl -i http://127.0.0.1:8080/            four times: the last is 429
            curl http://127.0.0.1:8080/metrics
            kill %1

   The first part of a path is its rule's name: /login/x is limited by "login", else by "default".

            printf 'login 5/m\ndefault 100/s\n' > rules
            ./http_server --rules rules --redis 127.0.0.1:6379 &
            mv new_rules rules && kill -HUP %1        all of it, or with a fault none */
#define _POSIX_C_SOURCE 200809L

#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#define RATELIMIT_MICROHTTPD_IMPLEMENTATION
#include "ratelimit_redis.h"
#include "ratelimit_microhttpd.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>

enum { MAX_CLIENTS = 100000, MAX_RULES = 1000, MAX_TRUSTED = 64, MAX_THREADS = 256 };
enum { RULES_TEXT_BYTES = 256 * 1024 };

typedef struct options {
    const char *bind, *port, *rules, *limit, *redis;
    ratelimit_failure on_failure;
    unsigned threads, redis_timeout;
    ratelimit_microhttpd_network trusted[MAX_TRUSTED];
    size_t trusted_count;
} options;

/* Buckets take 43 bytes a client; full ones cost nothing to forget. */
static unsigned char table_memory[RATELIMIT_TABLE_BYTES(MAX_CLIENTS)];
static unsigned char rules_memory[RATELIMIT_RULES_BYTES(MAX_RULES)];
static ratelimit_table *table; /* NULL if all is in Redis */
static ratelimit_rules *rules;
static ratelimit_redis *redis;
static ratelimit_limiter limiter;
static ratelimit_microhttpd limits;

static const char usage[] =
    "usage: http_server (--limit TEXT | --rules FILE) [options]\n"
    "  --limit TEXT            one for all, such as \"10/s burst 20\"\n"
    "  --rules FILE            a line each, such as \"login 5/m\"; read again on SIGHUP\n"
    "  --bind ADDRESS          default 127.0.0.1\n"
    "  --port N                default 8080; 0: any that is free\n"
    "  --redis HOST:PORT       buckets in Redis; default: in this process\n"
    "  --redis-timeout MS      default 100; longer counts as a failure\n"
    "  --on-failure HOW        when Redis fails: open (default), closed, or local\n"
    "  --trust NETWORK         whose X-Forwarded-For is believed, such as 10.0.0.0/8; repeatable\n"
    "  --threads N             default 4; 0: one for each connection\n";

static void fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("http_server: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

/* ---- the requests ---------------------------------------------------------------------------- */

static bool not_limited(void *self, const ratelimit_microhttpd_request *request)
{
    (void)self;
    return !strcmp(request->url, "/metrics") || !strcmp(request->url, "/health");
}

/* The same path as the route's: /login, //login/ and /login/x are "login". What does not fit in a
 * rule's name is none, and so finds "default". */
static void rule_of(void *self, const ratelimit_microhttpd_request *request,
                    char name[RATELIMIT_RULE_NAME_BYTES])
{
    const char *first = request->url + strspn(request->url, "/");
    size_t len = strcspn(first, "/");
    (void)self;
    if (!len || len >= RATELIMIT_RULE_NAME_BYTES)
        return;
    memcpy(name, first, len);
    name[len] = 0;
}

static void store_failed(void *self, const ratelimit_microhttpd_request *request, uint32_t missed)
{
    char why[240];
    (void)self;
    fprintf(
        stderr,
        "http_server: limits not asked, request %s: %s (and %lu more since the last such line)\n",
        request->result.allowed ? "let through" : "refused",
        redis ? ratelimit_redis_error(redis, why, sizeof why) : "no store", (unsigned long)missed);
}

/* Takes text, which came from malloc. */
static enum MHD_Result answer_text(struct MHD_Connection *connection, void **con_cls, char *text,
                                   const char *type)
{
    enum MHD_Result result = MHD_NO;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES)
        result = ratelimit_microhttpd_queue(connection, con_cls, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_metrics(struct MHD_Connection *connection, void **con_cls)
{
    size_t len = 0, bytes;
    char *text = NULL;
    do { /* numbers grow meanwhile, and rules may be replaced */
        char *larger = (char *)realloc(text, bytes = len + 1024);
        if (!larger) {
            free(text);
            return MHD_NO;
        }
        text = larger;
        len = ratelimit_metrics(&limiter, table, ratelimit_clock_ns(), NULL, text, bytes);
    } while (len >= bytes);
    return answer_text(connection, con_cls, text, "text/plain; version=0.0.4; charset=utf-8");
}

/* What is behind the limits: reads whatever comes, says hello. */
static enum MHD_Result answer(void *self, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload_data,
                              size_t *upload_data_size, void **con_cls)
{
    static char head_was_read;
    char *text;
    (void)self, (void)method, (void)version, (void)upload_data;
    if (!*con_cls) {
        *con_cls = &head_was_read;
        return MHD_YES;
    }
    if (*upload_data_size) {
        *upload_data_size = 0;
        return MHD_YES;
    }
    if (!strcmp(url, "/metrics"))
        return answer_metrics(connection, con_cls);
    text = strdup(strcmp(url, "/health") ? "hello\n" : "ok\n");
    return text ? answer_text(connection, con_cls, text, "text/plain; charset=utf-8") : MHD_NO;
}

/* ---- the rules ------------------------------------------------------------------------------- */

/* The length, or -1 and why in words. */
static long read_rules(const char *path, char *text, size_t bytes, const char **why)
{
    FILE *file = fopen(path, "rb");
    size_t len;
    int error;
    *why = strerror(errno);
    if (!file)
        return -1;
    errno = 0;
    len = fread(text, 1, bytes, file);
    error = ferror(file) ? errno : 0;
    fclose(file);
    *why = error ? strerror(error) : "longer than 256 KiB";
    return error || len == bytes ? -1 : (long)len;
}

/* False, and a line on stderr, if nothing was changed. */
static bool load_rules(const options *o)
{
    static char text[RULES_TEXT_BYTES];
    const char *path = o->limit ? "--limit" : o->rules, *why = "";
    ratelimit_fault fault = {0, 0, ""};
    ratelimit_status status;
    ratelimit_rule found;
    long len = o->limit ? snprintf(text, sizeof text, "default %s", o->limit)
                        : read_rules(o->rules, text, sizeof text, &why);
    if (len < 0 || len >= (long)sizeof text) {
        fprintf(stderr, "http_server: %s: %s\n", path, len < 0 ? why : "too long");
        return false;
    }
    status = ratelimit_rules_load(rules, text, (size_t)len, &fault);
    if (status != RATELIMIT_OK)
        fprintf(stderr, "http_server: %s:%lu:%lu: %s\n", path, (unsigned long)fault.line,
                (unsigned long)fault.column, fault.what);
    else if (!ratelimit_rules_find(rules, "default", &found))
        fprintf(stderr, "http_server: %s: no rule \"default\": other paths are answered 500\n",
                path);
    return status == RATELIMIT_OK;
}

static void reload(const options *o)
{
    if (o->limit)
        fputs("http_server: --limit stays as it is; only --rules is read again\n", stderr);
    else if (load_rules(o))
        fprintf(stderr, "http_server: %s: new rules\n", o->rules);
    else
        fprintf(stderr, "http_server: the rules before stay\n");
}

/* ---- the start ------------------------------------------------------------------------------- */

static unsigned parse_number(const char *option, const char *text, unsigned most)
{
    size_t len = strspn(text, "0123456789");
    unsigned long number = strtoul(text, NULL, 10);
    if (!len || text[len] || len > 9 || number > most)
        fail(2, "%s wants a number from 0 to %u, not \"%s\"", option, most, text);
    return (unsigned)number;
}

static ratelimit_failure parse_failure(const char *text)
{
    if (!strcmp(text, "open"))
        return RATELIMIT_FAIL_OPEN;
    if (!strcmp(text, "closed"))
        return RATELIMIT_FAIL_CLOSED;
    if (strcmp(text, "local"))
        fail(2, "--on-failure wants open, closed or local, not \"%s\"", text);
    return RATELIMIT_FAIL_LOCAL;
}

static void parse_option(options *o, const char *name, const char *value)
{
    ratelimit_limit limit;
    if (!strcmp(name, "--limit")) {
        ratelimit_status status = ratelimit_limit_parse(&limit, value);
        if (status != RATELIMIT_OK)
            fail(2, "--limit \"%s\": %s", value, ratelimit_status_text(status));
        o->limit = value;
    } else if (!strcmp(name, "--rules")) {
        o->rules = value;
    } else if (!strcmp(name, "--bind")) {
        o->bind = value;
    } else if (!strcmp(name, "--port")) {
        parse_number(name, value, 65535);
        o->port = value;
    } else if (!strcmp(name, "--redis")) {
        o->redis = value;
    } else if (!strcmp(name, "--redis-timeout")) {
        o->redis_timeout = parse_number(name, value, 60000);
    } else if (!strcmp(name, "--on-failure")) {
        o->on_failure = parse_failure(value);
    } else if (!strcmp(name, "--threads")) {
        o->threads = parse_number(name, value, MAX_THREADS);
    } else if (!strcmp(name, "--trust")) {
        if (o->trusted_count == MAX_TRUSTED)
            fail(2, "more than %d networks to trust", MAX_TRUSTED);
        if (!ratelimit_microhttpd_network_parse(&o->trusted[o->trusted_count++], value))
            fail(2, "--trust wants a network such as 10.0.0.0/8, not \"%s\"", value);
    } else {
        fail(2, "unknown option %s\n%s", name, usage);
    }
}

static void parse_options(options *o, int argc, char **argv)
{
    int i;
    for (i = 1; i < argc; i += 2) {
        if (!strcmp(argv[i], "--help")) {
            fputs(usage, stdout);
            exit(0);
        }
        if (i + 1 == argc)
            fail(2, "%s: unknown, or its value is missing\n%s", argv[i], usage);
        parse_option(o, argv[i], argv[i + 1]);
    }
    if (!o->limit == !o->rules)
        fail(2, "either --limit or --rules is needed\n%s", usage);
}

static ratelimit_store open_redis(const char *where, unsigned timeout_ms)
{
    char host[256], why[240];
    const char *colon = strrchr(where, ':');
    ratelimit_redis_options o = {0};
    ratelimit_status status;
    if (!colon || colon == where || (size_t)(colon - where) >= sizeof host)
        fail(2, "--redis wants HOST:PORT, not \"%s\"", where);
    memcpy(host, where, (size_t)(colon - where));
    host[colon - where] = 0;
    o.host = host;
    o.port = (int)parse_number("--redis HOST:PORT", colon + 1, 65535);
    if (!o.port)
        fail(2, "--redis %s: port 0", where);
    o.pool_size = MAX_THREADS;
    o.timeout_ms = o.connect_timeout_ms = timeout_ms;
    redis = ratelimit_redis_open(&o, &status);
    if (!redis)
        fail(2, "--redis %s: %s", where, ratelimit_status_text(status));
    if (ratelimit_redis_ping(redis) != RATELIMIT_OK)
        fprintf(stderr, "http_server: Redis does not answer yet: %s\n",
                ratelimit_redis_error(redis, why, sizeof why));
    return ratelimit_redis_store(redis);
}

static void open_limiter(const options *o)
{
    ratelimit_store store = {0};
    if (ratelimit_rules_init(&rules, rules_memory, sizeof rules_memory, MAX_RULES))
        fail(1, "no room for rules");
    if (!load_rules(o))
        exit(2);
    if (!o->redis || o->on_failure == RATELIMIT_FAIL_LOCAL) {
        if (ratelimit_table_init(&table, table_memory, sizeof table_memory, NULL))
            fail(1, "no room for clients");
        store = limiter.fallback = ratelimit_table_store(table, NULL, NULL);
    }
    if (o->redis)
        store = open_redis(o->redis, o->redis_timeout);
    limiter.on_failure = o->on_failure;
    limiter.rules = rules;
    if (ratelimit_init(&limiter, store))
        fail(1, "no limiter");
}

static struct MHD_Daemon *start(const options *o)
{
    unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG;
    struct addrinfo hints, *address;
    struct MHD_Daemon *daemon;
    memset(&hints, 0, sizeof hints);
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(o->bind, o->port, &hints, &address))
        fail(2, "--bind wants an address, not \"%s\"", o->bind);
    if (address->ai_family == AF_INET6)
        flags |= MHD_USE_DUAL_STACK;
    if (!o->threads)
        flags |= MHD_USE_THREAD_PER_CONNECTION;
    daemon = MHD_start_daemon(flags, 0, NULL, NULL, ratelimit_microhttpd_handler, &limits,
                              MHD_OPTION_NOTIFY_COMPLETED, ratelimit_microhttpd_completed, &limits,
                              MHD_OPTION_SOCK_ADDR, address->ai_addr, MHD_OPTION_CONNECTION_TIMEOUT,
                              30u, o->threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END,
                              o->threads, MHD_OPTION_END);
    freeaddrinfo(address);
    return daemon;
}

int main(int argc, char **argv)
{
    static options o = {"127.0.0.1",         "8080", NULL, NULL,       NULL,
                        RATELIMIT_FAIL_OPEN, 4,      0,    {{{0}, 0}}, 0};
    struct MHD_Daemon *daemon;
    const union MHD_DaemonInfo *info;
    sigset_t signals;
    int signal_number = 0;
    parse_options(&o, argc, argv);
    /* Blocked before there are threads, so that all of them leave the signals to sigwait. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    open_limiter(&o);
    limits.limiter = &limiter;
    limits.handler = answer;
    limits.rule = rule_of;
    limits.skip = not_limited;
    limits.failed = store_failed;
    limits.trusted = o.trusted;
    limits.trusted_count = o.trusted_count;
    daemon = start(&o);
    if (!daemon)
        fail(1, "can't listen on %s, port %s: %s", o.bind, o.port, strerror(errno));
    info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    fprintf(stderr, "http_server: listening on %s, port %u\n", o.bind, info ? info->port : 0u);
    while (!sigwait(&signals, &signal_number) && signal_number == SIGHUP)
        reload(&o);
    MHD_stop_daemon(daemon);
    ratelimit_close(&limiter);
    ratelimit_redis_close(redis);
    return 0;
}

/* server.h - what the tests of ratelimit_redis.h share: where the servers are, a plain connection
 * beside the one that is tested, and a clock that says what it is set to.
 *
 * run.sh starts the servers and says in the environment where they are:
 *
 *     REDIS_PORT     a server that may be flushed, stopped for a while, filled up
 *     REDIS_PID      its process
 *     REDIS_SOCKET   its Unix socket
 *     CLUSTER_PORTS  ports of a cluster's nodes, three masters first, with blanks between
 *     CLUSTER_PIDS   their processes, in the same order
 *     TLS_PORT       the same server over TLS
 *     TLS_FOLDER     with ca.crt, which signed its certificate, and other.crt, which did not
 */
#ifndef SERVER_H
#define SERVER_H

#include "check.h"
#include "ratelimit_redis.h"

#include <hiredis/hiredis.h>

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline int server_number(const char *name)
{
    const char *text = getenv(name);
    if (text == NULL) {
        fprintf(stderr, "%s is not set: run tests/redis/run.sh\n", name);
        exit(2);
    }
    return atoi(text);
}

static inline int server_port(void)
{
    return server_number("REDIS_PORT");
}

/* A file of TLS_FOLDER; good for three calls. */
static inline const char *server_file(const char *name)
{
    static char path[3][512];
    static int next;
    next = (next + 1) % 3;
    snprintf(path[next], sizeof path[0], "%s/%s", getenv("TLS_FOLDER"), name);
    return path[next];
}

/* A plain connection, made once for each port. */
static inline redisContext *server_plain(int port)
{
    static struct {
        int port;
        redisContext *c;
    } known[32];
    struct timeval patience = {5, 0};
    size_t i = 0;
    while (known[i].c && known[i].port != port)
        i++;
    if (known[i].c && known[i].c->err) {
        redisFree(known[i].c);
        known[i].c = NULL;
    }
    if (known[i].c == NULL) {
        known[i].port = port;
        known[i].c = redisConnectWithTimeout("127.0.0.1", port, patience);
        if (known[i].c == NULL || known[i].c->err) {
            fprintf(stderr, "no server at port %d\n", port);
            exit(2);
        }
        redisSetTimeout(known[i].c, patience);
    }
    return known[i].c;
}

/* Sends a command, as redisCommand; NULL if the connection broke. */
static inline redisReply *server_ask(int port, const char *format, ...)
{
    redisReply *reply;
    va_list args;
    va_start(args, format);
    reply = (redisReply *)redisvCommand(server_plain(port), format, args);
    va_end(args);
    return reply;
}

/* The same, for its integer; -1000 if there is none. */
static inline long long server_int(int port, const char *format, ...)
{
    redisReply *reply;
    long long value = -1000;
    va_list args;
    va_start(args, format);
    reply = (redisReply *)redisvCommand(server_plain(port), format, args);
    va_end(args);
    if (reply && reply->type == REDIS_REPLY_INTEGER)
        value = reply->integer;
    if (reply)
        freeReplyObject(reply);
    return value;
}

/* The same, for whether it went well. */
static inline bool server_do(int port, const char *format, ...)
{
    redisReply *reply;
    bool good;
    va_list args;
    va_start(args, format);
    reply = (redisReply *)redisvCommand(server_plain(port), format, args);
    va_end(args);
    good = reply && reply->type != REDIS_REPLY_ERROR;
    if (reply && !good)
        printf("  the server says: %s\n", reply->str);
    if (reply)
        freeReplyObject(reply);
    return good;
}

/* The name of a key's bucket in scope 1; good for three calls. */
static inline const char *server_bucket(const char *key)
{
    static char name[3][200];
    static int next;
    bool tagged = strchr(key, '{') && strchr(key, '}');
    next = (next + 1) % 3;
    snprintf(name[next], sizeof name[0],
             tagged ? "ratelimit:b:%s:00000001" : "ratelimit:b{%s}00000001", key);
    return name[next];
}

static inline bool server_flush(void)
{
    return server_do(server_port(), "FLUSHALL");
}

/* A number from INFO, -1 if it is not there. */
static inline long long server_info(int port, const char *field)
{
    redisReply *reply = server_ask(port, "INFO ALL");
    long long value = -1;
    char *at = reply && reply->type == REDIS_REPLY_STRING ? reply->str : NULL;
    size_t len = strlen(field);
    for (; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, field, len) == 0 && at[len] == ':')
            value = atoll(at + len + 1);
    if (reply)
        freeReplyObject(reply);
    return value;
}

/* How many scripts were called since CONFIG RESETSTAT. */
static inline long long server_scripts(int port)
{
    redisReply *reply = server_ask(port, "INFO commandstats");
    const char *at = reply && reply->str ? strstr(reply->str, "cmdstat_evalsha:calls=") : NULL;
    long long calls = at ? atoll(strchr(at, '=') + 1) : 0;
    if (reply)
        freeReplyObject(reply);
    return calls;
}

/* A clock that says what it is set to. */
static inline uint64_t server_given(void *self)
{
    return *(uint64_t *)self;
}

static inline ratelimit_redis_options server_options(void)
{
    ratelimit_redis_options options;
    memset(&options, 0, sizeof options);
    options.port = server_port();
    return options;
}

/* A handle, or the end. */
static inline ratelimit_redis *server_open(const ratelimit_redis_options *options)
{
    ratelimit_status status;
    ratelimit_redis *r = ratelimit_redis_open(options, &status);
    if (r == NULL) {
        fprintf(stderr, "open: %s\n", ratelimit_status_text(status));
        exit(2);
    }
    return r;
}

static inline ratelimit_request server_request(const char *key, const ratelimit_limit *limit,
                                               ratelimit_op op, uint64_t n)
{
    ratelimit_request q;
    memset(&q, 0, sizeof q);
    q.key = key;
    q.key_len = strlen(key);
    q.limit = limit;
    q.op = op;
    q.n = n;
    return q;
}

/* One request, decided at once. */
static inline ratelimit_result server_decide(ratelimit_redis *r, const char *key,
                                             const ratelimit_limit *limit, ratelimit_op op,
                                             uint64_t n)
{
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q = server_request(key, limit, op, n);
    ratelimit_result res;
    memset(&res, 0xA5, sizeof res);
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
    return res;
}

static inline ratelimit_result server_take(ratelimit_redis *r, const char *key,
                                           const ratelimit_limit *limit, uint64_t n)
{
    return server_decide(r, key, limit, RATELIMIT_TAKE, n);
}

/* The error text, for CHECK_TEXT and strstr. */
static inline const char *server_error(ratelimit_redis *r)
{
    static char text[200];
    return ratelimit_redis_error(r, text, sizeof text);
}

static inline uint64_t server_ms_since(uint64_t start_ns)
{
    return (ratelimit_clock_ns() - start_ns) / RATELIMIT_MILLISECOND;
}

static inline void server_sleep_ms(unsigned ms)
{
    struct timespec span;
    span.tv_sec = (time_t)(ms / 1000);
    span.tv_nsec = (long)(ms % 1000) * 1000000;
    (void)nanosleep(&span, NULL);
}

#endif

/* Every option of ratelimit_microhttpd.h that examples/http_server/server.c leaves alone, in any of
   libmicrohttpd's threading modes, for http_server.py.

   Package: libmicrohttpd-dev
   Build:   cc -std=c99 -I. -Iexamples/http_server tests/examples/http_server.c \
                -o http_server_options -lmicrohttpd -pthread

   Two daemons: one with functions of its own for everything, one with values. Both answer with the
   client's address and how many bytes of body came. Prints their ports; ends at SIGTERM. */
#define _POSIX_C_SOURCE 200809L

#define RATELIMIT_MICROHTTPD_IMPLEMENTATION
#include "ratelimit_microhttpd.h"
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>

/* What the handler keeps in con_cls; allocated, so that a lost one is a leak. */
typedef struct upload {
    size_t bytes;
} upload;

static enum MHD_Result answer(void *self, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *size, void **con_cls)
{
    char text[200], client[INET6_ADDRSTRLEN] = "nobody";
    const ratelimit_microhttpd_request *r = ratelimit_microhttpd_of(con_cls);
    upload *u = (upload *)*con_cls;
    struct MHD_Response *response;
    enum MHD_Result queued;
    (void)url, (void)method, (void)version, (void)data;
    if (!u) {
        *con_cls = calloc(1, sizeof *u);
        return *con_cls ? MHD_YES : MHD_NO;
    }
    if (*size) {
        u->bytes += *size;
        *size = 0;
        return MHD_YES;
    }
    inet_ntop(r->client[0] == 4 ? AF_INET : AF_INET6, r->client + 2, client, sizeof client);
    snprintf(text, sizeof text, "%s %lu %s", client, (unsigned long)u->bytes, (char *)self);
    response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
    queued = ratelimit_microhttpd_queue(connection, con_cls, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return queued;
}

static void completed(void *self, struct MHD_Connection *connection, void **con_cls,
                      enum MHD_RequestTerminationCode code)
{
    (void)self, (void)connection, (void)code;
    free(*con_cls);
}

static const char *value_of(const ratelimit_microhttpd_request *r, const char *field)
{
    const char *value = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, field);
    return value ? value : "";
}

static size_t key(void *self, const ratelimit_microhttpd_request *r, unsigned char *buf,
                  size_t bytes)
{
    const char *user = value_of(r, "X-User");
    (void)self;
    if (strlen(user) <= bytes)
        memcpy(buf, user, strlen(user));
    return strlen(user);
}

static const ratelimit_limit *limit_of(void *self, const ratelimit_microhttpd_request *r)
{
    static const ratelimit_limit gold = RATELIMIT_LIMIT(1, RATELIMIT_DAY, 5);
    (void)self;
    return strcmp(value_of(r, "X-Plan"), "gold") ? NULL : &gold;
}

static bool skip(void *self, const ratelimit_microhttpd_request *r)
{
    (void)self;
    return !strcmp(r->method, "OPTIONS");
}

static struct MHD_Response *refused(void *self, const ratelimit_microhttpd_request *r,
                                    unsigned *status)
{
    char text[200];
    struct MHD_Response *response;
    (void)self;
    if (!strcmp(r->url, "/plain"))
        return NULL;
    snprintf(text, sizeof text, "{\"path\":\"%s\",\"status\":%u,\"limit\":%lu}", r->url, *status,
             (unsigned long)r->result.burst);
    *status = 420;
    response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY);
    MHD_add_response_header(response, "Content-Type", "application/json");
    return response;
}

static struct MHD_Daemon *start(const char *mode, ratelimit_microhttpd *limits)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG;
    struct sockaddr_in address;
    struct MHD_Daemon *daemon;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    flags |= !strcmp(mode, "poll")         ? MHD_USE_POLL
             : !strcmp(mode, "connection") ? MHD_USE_THREAD_PER_CONNECTION
             : !strcmp(mode, "epoll")      ? MHD_USE_EPOLL
                                           : 0u;
    daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, ratelimit_microhttpd_handler, limits, MHD_OPTION_NOTIFY_COMPLETED,
        ratelimit_microhttpd_completed, limits, MHD_OPTION_SOCK_ADDR, &address,
        strcmp(mode, "pool") ? MHD_OPTION_END : MHD_OPTION_THREAD_POOL_SIZE, 3u, MHD_OPTION_END);
    if (!daemon)
        exit(1);
    printf("%u\n", MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
    return daemon;
}

int main(int argc, char **argv)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(1000)];
    static const ratelimit_limit plain = RATELIMIT_LIMIT(1, RATELIMIT_DAY, 2);
    static const ratelimit_limit wide = RATELIMIT_LIMIT(1, RATELIMIT_DAY, 1000);
    static char first[] = "first", second[] = "second";
    ratelimit_microhttpd functions = {0}, values = {0};
    ratelimit_microhttpd_network trusted[16];
    ratelimit_table *table;
    ratelimit_limiter limiter = {0};
    struct MHD_Daemon *one, *two;
    sigset_t end;
    int i;
    if (argc < 2 || argc > 18 ||
        ratelimit_table_init(&table, memory, sizeof memory, NULL) != RATELIMIT_OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, NULL, NULL)) != RATELIMIT_OK)
        return 1;
    for (i = 2; i < argc; i++)
        if (!ratelimit_microhttpd_network_parse(&trusted[i - 2], argv[i])) {
            printf("no network: %s\n", argv[i]);
            return 2;
        }
    functions.limiter = values.limiter = &limiter;
    functions.handler = values.handler = answer;
    functions.completed = values.completed = completed;
    functions.trusted = values.trusted = trusted;
    functions.trusted_count = values.trusted_count = (size_t)argc - 2;
    functions.handler_cls = first;
    functions.limit = &plain;
    functions.limit_of = limit_of;
    functions.key = key;
    functions.skip = skip;
    functions.refused = refused;
    values.handler_cls = second;
    values.limit = &wide;
    values.status = 503;
    values.message = "slow down\n";
    values.fields = RATELIMIT_HTTP_RETRY_AFTER;
    values.bits4 = 24;
    values.bits6 = 48;
    values.drain_bytes = 10;
    values.forwarded = "X-Client";
    if (!strcmp(argv[1], "forwarded")) /* for the list of addresses */
        values.forwarded = NULL;
    else
        values.limit = &plain;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &end, NULL);
    one = start(argv[1], &functions);
    two = start(argv[1], &values);
    fflush(stdout);
    sigwait(&end, &i);
    MHD_stop_daemon(one);
    MHD_stop_daemon(two);
    ratelimit_close(&limiter);
    return 0;
}

/* ratelimit_microhttpd.h - ratelimit.h in front of a libmicrohttpd server - MIT or public domain,
   as ratelimit.h

   Copy it next to ratelimit.h, and do this in exactly one C or C++ file:

       #define RATELIMIT_MICROHTTPD_IMPLEMENTATION
       #include "ratelimit_microhttpd.h"

   Your handler stays as it is, but answers through ratelimit_microhttpd_queue. The daemon gets this
   one's callbacks, both of them:

       static ratelimit_microhttpd limits;
       limits.limiter = &limiter;
       limits.limit = &per_client;
       limits.handler = my_handler;
       MHD_start_daemon(flags, port, NULL, NULL, ratelimit_microhttpd_handler, &limits,
                        MHD_OPTION_NOTIFY_COMPLETED, ratelimit_microhttpd_completed, &limits,
                        MHD_OPTION_CONNECTION_TIMEOUT, 30u, MHD_OPTION_END);

   Each request is decided once, when its head is there and before its body is read; a refused one
   never reaches your handler. A refusal leaves the connection open: a small body is read and thrown
   away first. Where the body is large, of unknown length, or still held back by the client (Expect:
   100-continue), the answer goes out at once and the connection ends, which is what libmicrohttpd
   does with a body that nobody reads. Give the daemon a connection timeout, or a client that never
   sends its body keeps its connection.

   Any threading mode will do. A store across the network is waited for in the daemon's thread, up
   to the store's timeout: use a pool of threads with it, not a single one.

   It needs libmicrohttpd 0.9.71 or later and one calloc for each request, of about 600 bytes. */
#ifndef RATELIMIT_MICROHTTPD_H_INCLUDED
#define RATELIMIT_MICROHTTPD_H_INCLUDED

#include "ratelimit.h"
#include <microhttpd.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    RATELIMIT_MICROHTTPD_KEY_BYTES = 256, /* longest key of a key function */
    RATELIMIT_MICROHTTPD_HOPS = 32,       /* most addresses of X-Forwarded-For that are looked at */
    RATELIMIT_MICROHTTPD_NO_FIELDS = 1 << 8
};

/* A request as the functions below see it, and what was decided. */
typedef struct ratelimit_microhttpd_request {
    struct MHD_Connection *connection;
    const char *url, *method, *version;
    /* The client's address as ratelimit_address_key makes it with /32 and /128; length 0 if the
     * peer has none, as over a Unix socket. */
    unsigned char client[RATELIMIT_ADDRESS_KEY_BYTES];
    size_t client_len;
    /* Set by the decision: */
    bool skipped;                         /* not limited: the rest is zero */
    ratelimit_result result;              /* status STORE_FAILED: the failure policy decided */
    ratelimit_limit limit;                /* that applied, zero if none was found */
    char rule[RATELIMIT_RULE_NAME_BYTES]; /* whose it is, "" without rules */
} ratelimit_microhttpd_request;

/* A network of addresses, as ratelimit_address_key makes it. */
typedef struct ratelimit_microhttpd_network {
    unsigned char key[RATELIMIT_ADDRESS_KEY_BYTES];
    size_t key_len;
} ratelimit_microhttpd_network;

/* Zero it, set what you need, leave it alone while the daemon runs. All functions are called from
 * the daemon's threads, with `self`. */
typedef struct ratelimit_microhttpd {
    ratelimit_limiter *limiter;        /* required */
    MHD_AccessHandlerCallback handler; /* required: yours. con_cls is all yours, too */
    void *handler_cls;
    MHD_RequestCompletedCallback completed; /* yours; called for requests that handler was given */
    void *completed_cls;
    void *self;

    /* The limit: limit_of's, else limit, else by the limiter's rules. Without rules a client has
     * one bucket whatever limit_of answers; under rules it has one for each. */
    const ratelimit_limit *(*limit_of)(void *self, const ratelimit_microhttpd_request *request);
    const ratelimit_limit *limit;
    /* Which rule: writes the name to look up in place of "default", which stands there. */
    void (*rule)(void *self, const ratelimit_microhttpd_request *request,
                 char name[RATELIMIT_RULE_NAME_BYTES]);

    /* Who is limited: writes key, returns its length. 0, or more than key_bytes: the client's
     * address counts. Only use what you have verified, such as a signed token's subject: who can
     * make up a key is not limited by it. NULL: the client's address. */
    size_t (*key)(void *self, const ratelimit_microhttpd_request *request, unsigned char *key,
                  size_t key_bytes);
    unsigned bits4, bits6; /* prefix of an address that is one client; 0: 32, 64 */

    /* Behind proxies: the networks whose word is taken for who the client is. The list in the field
     * is walked from its end, for as long as what was found last is trusted; the first that is not
     * is the client. What can't be read as an address ends the walk at the one before, to the
     * right. A port and brackets are allowed. */
    const ratelimit_microhttpd_network *trusted;
    size_t trusted_count;
    const char *forwarded; /* the field; NULL: X-Forwarded-For */

    bool (*skip)(void *self, const ratelimit_microhttpd_request *request); /* true: not limited */

    /* The answer to a refused request, destroyed after use; fields are added. It may change
     * *status. NULL, the function or its answer: a line of text. */
    struct MHD_Response *(*refused)(void *self, const ratelimit_microhttpd_request *request,
                                    unsigned *status);
    unsigned status;     /* of requests above their limit; 0: 429. Without a decision it is 503 */
    const char *message; /* the text for them; NULL: "Too many requests\n" */
    unsigned fields;     /* RATELIMIT_HTTP_ sets; 0: all; or RATELIMIT_MICROHTTPD_NO_FIELDS */
    size_t drain_bytes;  /* largest body of a refused request that is read; 0: 65536 */

    /* Told that the store failed, at most once a minute in the whole program; missed: how often it
     * failed since the last time. NULL: a line on stderr. */
    void (*failed)(void *self, const ratelimit_microhttpd_request *request, uint32_t missed);
} ratelimit_microhttpd;

/* ratelimit_microhttpd_handler, ratelimit_microhttpd_completed  For MHD_start_daemon, both with a
 * ratelimit_microhttpd. */
enum MHD_Result ratelimit_microhttpd_handler(void *limits, struct MHD_Connection *connection,
                                             const char *url, const char *method,
                                             const char *version, const char *upload_data,
                                             size_t *upload_data_size, void **con_cls);
void ratelimit_microhttpd_completed(void *limits, struct MHD_Connection *connection, void **con_cls,
                                    enum MHD_RequestTerminationCode code);

/* ratelimit_microhttpd_queue  MHD_queue_response with the fields of this request's decision added.
 * con_cls is the pointer that your handler was given. response must be this request's alone: fields
 * that are added stay in it. */
enum MHD_Result ratelimit_microhttpd_queue(struct MHD_Connection *connection, void **con_cls,
                                           unsigned status, struct MHD_Response *response);

/* ratelimit_microhttpd_of  The request and its decision, for your handler. */
const ratelimit_microhttpd_request *ratelimit_microhttpd_of(void **con_cls);

/* ratelimit_microhttpd_network_parse  Reads "10.0.0.0/8", "2001:db8::/32", or one address. False,
 * and *out is unchanged, if it is neither. */
bool ratelimit_microhttpd_network_parse(ratelimit_microhttpd_network *out, const char *text);

#ifdef __cplusplus
}
#endif
#endif /* RATELIMIT_MICROHTTPD_H_INCLUDED */

#if defined(RATELIMIT_MICROHTTPD_IMPLEMENTATION) &&                                                \
    !defined(RATELIMIT_MICROHTTPD_IMPLEMENTATION_INCLUDED)
#define RATELIMIT_MICROHTTPD_IMPLEMENTATION_INCLUDED

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* What con_cls points to. handler is given the address of the first member as its own con_cls. */
typedef struct ratelimit_microhttpd_state {
    void *con_cls;
    ratelimit_microhttpd_request request;
    bool refused;
    char fields[RATELIMIT_HTTP_FIELDS_BYTES];
} ratelimit_microhttpd_state;

/* ---- who is it ------------------------------------------------------------------------------- */

/* A whole number of 1 to 5 digits, at most `most`; -1 if it is none. */
static long ratelimit_microhttpd_number(const char *text, size_t len, long most)
{
    long number = 0;
    size_t i;
    for (i = 0; i < len && text[i] >= '0' && text[i] <= '9' && i < 5; i++)
        number = number * 10 + (text[i] - '0');
    return len && i == len && number <= most ? number : -1;
}

bool ratelimit_microhttpd_network_parse(ratelimit_microhttpd_network *out, const char *text)
{
    ratelimit_microhttpd_network network;
    unsigned char address[16], *key = network.key;
    const char *slash = strchr(text, '/');
    size_t bytes =
        ratelimit_address_parse(text, slash ? (size_t)(slash - text) : strlen(text), address);
    long bits = (long)bytes * 8;
    if (slash)
        bits = ratelimit_microhttpd_number(slash + 1, strlen(slash + 1), bits);
    if (!ratelimit_address_key(address, bytes, 32, 128, key) || bits < 0)
        return false;
    if (key[0] == 4 && bytes == 16) /* ::ffff:10.0.0.0/104 is 10.0.0.0/8 */
        bits -= 96;
    if (bits < 0)
        return false;
    network.key_len = ratelimit_address_key(address, bytes, key[0] == 4 ? (unsigned)bits : 0,
                                            key[0] == 6 ? (unsigned)bits : 0, key);
    *out = network;
    return true;
}

/* address is a key with the full prefix. */
static bool ratelimit_microhttpd_trusts(const ratelimit_microhttpd *limits,
                                        const unsigned char *address, size_t len)
{
    unsigned char key[RATELIMIT_ADDRESS_KEY_BYTES];
    size_t i;
    for (i = 0; i < limits->trusted_count; i++) {
        const ratelimit_microhttpd_network *n = &limits->trusted[i];
        unsigned bits = n->key[1];
        if (len == n->key_len &&
            ratelimit_address_key(address + 2, len - 2, bits < 32 ? bits : 32, bits, key) == len &&
            !memcmp(key, n->key, len))
            return true;
    }
    return false;
}

/* An element of the list, blanks around it allowed: an address, "[IPv6 address]", and this or an
 * IPv4 address with ":port". The length of key; 0 if it is none of these. */
static size_t ratelimit_microhttpd_element(const char *text, size_t len, unsigned char *key)
{
    unsigned char address[16];
    const char *port = NULL;
    for (; len && (text[0] == ' ' || text[0] == '\t'); len--)
        text++;
    while (len && (text[len - 1] == ' ' || text[len - 1] == '\t'))
        len--;
    if (len && text[0] == '[') {
        const char *end = (const char *)memchr(text, ']', len);
        if (!end || (end + 1 < text + len && end[1] != ':'))
            return 0;
        port = end + 1 < text + len ? end + 2 : NULL;
    } else {
        const char *colon = (const char *)memchr(text, ':', len);
        if (colon && memchr(text, '.', (size_t)(colon - text)))
            port = colon + 1;
    }
    if (port && ratelimit_microhttpd_number(port, (size_t)(text + len - port), 65535) < 0)
        return 0;
    if (port)
        len = (size_t)(port - text) - 1;
    if (len && text[0] == '[') {
        text++;
        len -= 2;
        if (!memchr(text, ':', len))
            return 0;
    }
    return ratelimit_address_key(address, ratelimit_address_parse(text, len, address), 32, 128,
                                 key);
}

static bool ratelimit_microhttpd_same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if ((*a >= 'A' && *a <= 'Z' ? *a + 32 : *a) != (*b >= 'A' && *b <= 'Z' ? *b + 32 : *b))
            return false;
    return *a == *b;
}

/* The last elements of the list, which may stand in any number of lines. */
typedef struct ratelimit_microhttpd_list {
    const char *field;
    size_t count; /* all that there were */
    const char *text[RATELIMIT_MICROHTTPD_HOPS];
    size_t len[RATELIMIT_MICROHTTPD_HOPS];
} ratelimit_microhttpd_list;

static enum MHD_Result ratelimit_microhttpd_line(void *self, enum MHD_ValueKind kind,
                                                 const char *name, const char *value)
{
    ratelimit_microhttpd_list *list = (ratelimit_microhttpd_list *)self;
    const char *text = value ? value : "";
    (void)kind;
    if (!ratelimit_microhttpd_same_name(name, list->field))
        return MHD_YES;
    for (;;) {
        size_t len = strcspn(text, ","), at = list->count++ % RATELIMIT_MICROHTTPD_HOPS;
        list->text[at] = text;
        list->len[at] = len;
        if (!text[len])
            return MHD_YES;
        text += len + 1;
    }
}

static void ratelimit_microhttpd_walk(const ratelimit_microhttpd *limits,
                                      ratelimit_microhttpd_request *r)
{
    ratelimit_microhttpd_list list;
    size_t hops, len, at;
    unsigned char key[RATELIMIT_ADDRESS_KEY_BYTES];
    list.field = limits->forwarded ? limits->forwarded : "X-Forwarded-For";
    list.count = 0;
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, ratelimit_microhttpd_line, &list);
    hops = list.count < RATELIMIT_MICROHTTPD_HOPS ? list.count : RATELIMIT_MICROHTTPD_HOPS;
    for (; hops && ratelimit_microhttpd_trusts(limits, r->client, r->client_len); hops--) {
        at = --list.count % RATELIMIT_MICROHTTPD_HOPS;
        len = ratelimit_microhttpd_element(list.text[at], list.len[at], key);
        if (!len)
            return;
        memcpy(r->client, key, len);
        r->client_len = len;
    }
}

static void ratelimit_microhttpd_find_client(const ratelimit_microhttpd *limits,
                                             ratelimit_microhttpd_request *r)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    if (address && address->sa_family == AF_INET)
        r->client_len = ratelimit_address_key(
            &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4, 32, 128, r->client);
    else if (address && address->sa_family == AF_INET6)
        r->client_len =
            ratelimit_address_key(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr,
                                  16, 32, 128, r->client);
    if (ratelimit_microhttpd_trusts(limits, r->client, r->client_len))
        ratelimit_microhttpd_walk(limits, r);
}

/* A byte in front keeps keys of the key function and addresses (4, 6) apart. */
static size_t ratelimit_microhttpd_key(const ratelimit_microhttpd *limits,
                                       const ratelimit_microhttpd_request *r, unsigned char *key)
{
    if (limits->key) {
        size_t len = limits->key(limits->self, r, key + 1, RATELIMIT_MICROHTTPD_KEY_BYTES);
        key[0] = 'k';
        if (len && len <= RATELIMIT_MICROHTTPD_KEY_BYTES)
            return len + 1;
    }
    if (r->client_len)
        return ratelimit_address_key(r->client + 2, r->client_len - 2,
                                     limits->bits4 ? limits->bits4 : 32,
                                     limits->bits6 ? limits->bits6 : 64, key);
    key[0] = '-'; /* all without an address are one client */
    return 1;
}

/* ---- may it go on ---------------------------------------------------------------------------- */

static void ratelimit_microhttpd_say_failed(const ratelimit_microhttpd *limits,
                                            const ratelimit_microhttpd_request *r, uint32_t missed)
{
    if (limits->failed)
        limits->failed(limits->self, r, missed);
    else
        fprintf(stderr, "rate limiter: the store failed, %s (and %lu more since it last said so)\n",
                r->result.allowed ? "let through" : "refused", (unsigned long)missed);
}

static void ratelimit_microhttpd_decide(const ratelimit_microhttpd *limits,
                                        ratelimit_microhttpd_request *r)
{
    unsigned char key[1 + RATELIMIT_MICROHTTPD_KEY_BYTES];
    char name[RATELIMIT_RULE_NAME_BYTES] = "default";
    ratelimit_rule rule;
    ratelimit_rule_request ask = {name, RATELIMIT_REQUEST(key, 0, NULL, 1)};
    const ratelimit_limit *limit = limits->limit_of ? limits->limit_of(limits->self, r) : NULL;
    memset(&rule, 0, sizeof rule);
    ask.request.key_len = ratelimit_microhttpd_key(limits, r, key);
    if (!limit)
        limit = limits->limit;
    if (limit) {
        ask.request.limit = limit;
        rule.limit = *limit;
        ratelimit_take(limits->limiter, &ask.request, &r->result);
    } else {
        if (limits->rule)
            limits->rule(limits->self, r, name);
        ratelimit_take_rules(limits->limiter, &ask, &r->result, &rule, 1);
    }
    r->limit = rule.limit;
    memcpy(r->rule, rule.name, sizeof r->rule);
    if (r->result.status == RATELIMIT_STORE_FAILED)
        RATELIMIT_LOG(RATELIMIT_LIMIT(1, RATELIMIT_MINUTE, 1), missed,
                      ratelimit_microhttpd_say_failed(limits, r, missed));
}

static ratelimit_microhttpd_state *ratelimit_microhttpd_begin(const ratelimit_microhttpd *limits,
                                                              struct MHD_Connection *connection,
                                                              const char *url, const char *method,
                                                              const char *version)
{
    ratelimit_microhttpd_state *s = (ratelimit_microhttpd_state *)calloc(1, sizeof *s);
    ratelimit_microhttpd_request *r = s ? &s->request : NULL;
    if (!s)
        return NULL;
    r->connection = connection;
    r->url = url;
    r->method = method;
    r->version = version;
    ratelimit_microhttpd_find_client(limits, r);
    r->skipped = limits->skip && limits->skip(limits->self, r);
    if (r->skipped)
        return s;
    ratelimit_microhttpd_decide(limits, r);
    s->refused = !r->result.allowed;
    if (!(limits->fields & RATELIMIT_MICROHTTPD_NO_FIELDS))
        ratelimit_http_fields(&r->result, &r->limit,
                              limits->fields ? limits->fields : (unsigned)RATELIMIT_HTTP_ALL,
                              s->fields, sizeof s->fields);
    return s;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Lines of "Name: value" and CRLF. */
static void ratelimit_microhttpd_add_fields(struct MHD_Response *response, const char *fields)
{
    char line[RATELIMIT_HTTP_FIELDS_BYTES];
    while (*fields) {
        size_t len = strcspn(fields, "\r");
        char *colon;
        memcpy(line, fields, len);
        line[len] = 0;
        colon = strchr(line, ':');
        *colon = 0;
        MHD_add_response_header(response, line, colon + 2);
        fields += len + 2;
    }
}

enum MHD_Result ratelimit_microhttpd_queue(struct MHD_Connection *connection, void **con_cls,
                                           unsigned status, struct MHD_Response *response)
{
    ratelimit_microhttpd_add_fields(response, ((ratelimit_microhttpd_state *)con_cls)->fields);
    return MHD_queue_response(connection, status, response);
}

const ratelimit_microhttpd_request *ratelimit_microhttpd_of(void **con_cls)
{
    return &((ratelimit_microhttpd_state *)con_cls)->request;
}

static struct MHD_Response *ratelimit_microhttpd_text(const char *text)
{
    union {
        const char *text;
        void *data; /* MHD takes it so, and copies it */
    } u;
    struct MHD_Response *response;
    u.text = text;
    response = MHD_create_response_from_buffer(strlen(text), u.data, MHD_RESPMEM_MUST_COPY);
    if (response)
        MHD_add_response_header(response, "Content-Type", "text/plain; charset=utf-8");
    return response;
}

static enum MHD_Result ratelimit_microhttpd_refuse(const ratelimit_microhttpd *limits,
                                                   ratelimit_microhttpd_state *s)
{
    struct MHD_Response *response = NULL;
    unsigned status = (unsigned)ratelimit_http_status(&s->request.result);
    const char *text = "Try again later\n";
    enum MHD_Result queued;
    if (status == 429) {
        status = limits->status ? limits->status : 429;
        text = limits->message ? limits->message : "Too many requests\n";
    } else if (status == 500) {
        text = "Internal error\n";
    }
    if (limits->refused)
        response = limits->refused(limits->self, &s->request, &status);
    if (!response)
        response = ratelimit_microhttpd_text(text);
    if (!response)
        return MHD_NO;
    queued = ratelimit_microhttpd_queue(s->request.connection, &s->con_cls, status, response);
    MHD_destroy_response(response);
    return queued;
}

/* libmicrohttpd ends a connection whose request is answered before its body was read. */
static bool ratelimit_microhttpd_drains(const ratelimit_microhttpd *limits,
                                        struct MHD_Connection *connection)
{
    size_t most = limits->drain_bytes ? limits->drain_bytes : 65536;
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
    if (MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Transfer-Encoding") ||
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Expect"))
        return false;
    return !length || strtoull(length, NULL, 10) <= most;
}

enum MHD_Result ratelimit_microhttpd_handler(void *limits, struct MHD_Connection *connection,
                                             const char *url, const char *method,
                                             const char *version, const char *upload_data,
                                             size_t *upload_data_size, void **con_cls)
{
    const ratelimit_microhttpd *l = (const ratelimit_microhttpd *)limits;
    ratelimit_microhttpd_state *s = (ratelimit_microhttpd_state *)*con_cls;
    if (!s) {
        *con_cls = s = ratelimit_microhttpd_begin(l, connection, url, method, version);
        if (!s)
            return MHD_NO;
        if (s->refused && ratelimit_microhttpd_drains(l, connection))
            return MHD_YES;
    }
    s->request.url = url;
    s->request.method = method;
    s->request.version = version;
    if (!s->refused)
        return l->handler(l->handler_cls, connection, url, method, version, upload_data,
                          upload_data_size, &s->con_cls);
    if (*upload_data_size) {
        *upload_data_size = 0;
        return MHD_YES;
    }
    return ratelimit_microhttpd_refuse(l, s);
}

void ratelimit_microhttpd_completed(void *limits, struct MHD_Connection *connection, void **con_cls,
                                    enum MHD_RequestTerminationCode code)
{
    const ratelimit_microhttpd *l = (const ratelimit_microhttpd *)limits;
    ratelimit_microhttpd_state *s = (ratelimit_microhttpd_state *)*con_cls;
    if (!s)
        return;
    if (!s->refused && l->completed)
        l->completed(l->completed_cls, connection, &s->con_cls, code);
    free(s);
    *con_cls = NULL;
}

#endif /* RATELIMIT_MICROHTTPD_IMPLEMENTATION */

/* api_records.h - prints bytes that outlive a process or are read by another: a bucket, a table,
 * the record of a database, what is in Redis. api.py makes the program that includes it, after both
 * headers with their implementations. */
#ifndef API_RECORDS_H
#define API_RECORDS_H

#include <inttypes.h>

static const ratelimit_limit api_seven = RATELIMIT_LIMIT(7, RATELIMIT_SECOND, 14);
static const ratelimit_limit api_window = RATELIMIT_WINDOW(10, RATELIMIT_MINUTE);

static void api_bytes(const char *what, const void *from, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)from;
    size_t i;
    printf("record %s:", what);
    for (i = 0; i < bytes; i++)
        printf(i % 4 ? "%02x" : " %02x", p[i]);
    printf("\n");
}

static void api_bucket(const char *what, const ratelimit_limit *limit, ratelimit_op op)
{
    ratelimit_request q = RATELIMIT_REQUEST("alice", 5, limit, 15);
    ratelimit_bucket b = {0, 0};
    q.n = op == RATELIMIT_TAKE ? 3 : 15;
    q.op = op;
    q.max_wait_ns = RATELIMIT_HOUR;
    if (!ratelimit_bucket_decide(&b, &q, RATELIMIT_SECOND, NULL))
        printf("record bucket, %s: refused\n", what);
    else
        printf("record bucket, %s: full at %" PRIu64 ", rest %016" PRIx64 "\n", what, b.full_ns,
               b.rest);
}

static void api_table(void)
{
    static const size_t line_bytes = 64, lines = 8, head_bytes = 128;
    static const char *const names[] = {"table, line 0", "table, line 1", "table, line 2",
                                        "table, line 3", "table, line 4", "table, line 5",
                                        "table, line 6", "table, line 7"};
    static unsigned char memory[RATELIMIT_TABLE_BYTES(12)];
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    ratelimit_permit permit;
    const unsigned char *head;
    size_t i, j;
    memset(&options, 0, sizeof options);
    options.seed[0] = UINT64_C(0x0123456789abcdef);
    options.hash = RATELIMIT_HASH_FAST;
    options.when_full = RATELIMIT_REFUSE;
    if (ratelimit_table_init(&t, memory, sizeof memory, &options) != RATELIMIT_OK ||
        !ratelimit_table_take(t, "alice", 5, &api_seven, 3, RATELIMIT_SECOND, NULL) ||
        !ratelimit_table_acquire(t, "bob", 3, 2, RATELIMIT_SECOND, RATELIMIT_SECOND, &permit))
        printf("record table: none\n");
    head = (const unsigned char *)t;
    api_bytes("table, head", head, head_bytes);
    for (i = 0; i < lines; i++) {
        const unsigned char *line = head + head_bytes + i * line_bytes;
        for (j = 0; j < line_bytes && !line[j]; j++)
            ;
        if (j < line_bytes)
            api_bytes(names[i], line, line_bytes);
    }
}

static int api_load(void *self, const void *key, size_t key_len, unsigned char *record)
{
    (void)self, (void)record;
    api_bytes("database, key", key, key_len);
    return 0;
}

static int api_swap(void *self, const void *key, size_t key_len, const unsigned char *old,
                    const unsigned char *record, uint64_t ttl_ns)
{
    (void)self, (void)key, (void)key_len, (void)old, (void)ttl_ns;
    api_bytes("database, record", record, RATELIMIT_RECORD_BYTES);
    return 1;
}

static uint64_t api_clock(void *self)
{
    (void)self;
    return RATELIMIT_SECOND + 1;
}

static void api_database(void)
{
    ratelimit_cas cas;
    ratelimit_store store;
    ratelimit_request q = RATELIMIT_REQUEST("alice", 5, &api_seven, 3);
    ratelimit_result res;
    memset(&cas, 0, sizeof cas);
    cas.load = api_load;
    cas.swap = api_swap;
    cas.clock = api_clock;
    store = ratelimit_cas_store(&cas);
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
}

/* A server that refuses everything, and prints the names of keys in what it was sent. */
static void *api_server(void *self)
{
    int listening = *(const int *)self;
    for (;;) {
        char sent[8192], *at;
        int client = accept(listening, NULL, NULL);
        ssize_t got;
        while (client >= 0 && (got = recv(client, sent, sizeof sent - 1, 0)) > 0) {
            sent[got] = 0;
            for (at = sent; (at = strstr(at, "ratelimit:")) != NULL; at += strlen(at) + 1) {
                at[strcspn(at, "\r")] = 0;
                printf("record Redis, key: %s\n", at);
            }
            (void)send(client, "-ERR no\r\n", 9, MSG_NOSIGNAL);
        }
        close(client);
    }
    return NULL;
}

static void api_redis_names(void)
{
    static int listening;
    struct sockaddr_in at;
    socklen_t at_bytes = sizeof at;
    ratelimit_redis_options options;
    ratelimit_redis_permit permit;
    ratelimit_redis_held held;
    ratelimit_limiter l;
    ratelimit_redis *r;
    pthread_t server;
    memset(&at, 0, sizeof at);
    memset(&options, 0, sizeof options);
    memset(&l, 0, sizeof l);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listening = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listening, (struct sockaddr *)&at, sizeof at) != 0 || listen(listening, 8) != 0 ||
        getsockname(listening, (struct sockaddr *)&at, &at_bytes) != 0 ||
        pthread_create(&server, NULL, api_server, &listening) != 0)
        exit(2);
    options.port = ntohs(at.sin_port);
    options.timeout_ms = options.connect_timeout_ms = 60000;
    r = ratelimit_redis_open(&options, NULL);
    if (!r || ratelimit_init(&l, ratelimit_redis_store(r)) != RATELIMIT_OK)
        exit(2);
    (void)ratelimit_allow(&l, "alice", &api_seven);
    (void)ratelimit_allow(&l, "{team}:alice", &api_seven);
    (void)ratelimit_redis_window(r, "alice", 5, 10, 1000, 1, NULL);
    (void)ratelimit_redis_sliding(r, "alice", 5, 10, 1000, 1, NULL);
    (void)ratelimit_redis_acquire_plain(r, "alice", 5, 2, 1000);
    (void)ratelimit_redis_acquire(r, "alice", 5, 2, 1000, 0, 0, &permit, NULL);
    (void)ratelimit_redis_lock(r, "alice", 5, 1000, 0, &held);
    ratelimit_redis_close(r);
}

static void api_redis_state(const char *what, const ratelimit_limit *limit)
{
    ratelimit_bucket b = {0, 0};
    unsigned char state[32];
    size_t bytes;
    (void)ratelimit_bucket_take(&b, limit, 3, RATELIMIT_SECOND, NULL);
    bytes = ratelimit_priv_redis_encode(&b, limit, RATELIMIT_SECOND, state);
    api_bytes(what, state, bytes);
}

static int api_records(void)
{
    static const ratelimit_limit ten = RATELIMIT_LIMIT(10, RATELIMIT_SECOND, 10);
    fflush(stdout);
    api_bucket("3 of 7/s burst 14", &api_seven, RATELIMIT_TAKE);
    api_bucket("3 of 10/m window", &api_window, RATELIMIT_TAKE);
    api_bucket("15 charged", &api_seven, RATELIMIT_CHARGE);
    api_bucket("blocked for 1h", &api_seven, RATELIMIT_BLOCK);
    api_table();
    api_database();
    api_redis_state("Redis, bucket 10/s", &ten);
    api_redis_state("Redis, bucket 7/s", &api_seven);
    api_redis_names();
    return 0;
}

#endif

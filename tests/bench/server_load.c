/* server_load.c - decisions a second of examples/server, beside a Redis that runs the take script
   of ratelimit_redis.h, in the same run. Run it by: make bench-server

       server_load PORT PID REDIS-PORT REDIS-PID [ROUNDS]

   Both decide on the same keys and the same limit, and allow. Requests are made in advance and sent
   as they lie, and of the answers only their number and their kind are looked at, so that the load
   costs little beside what is measured. Rounds of the two take turns, and the median of each is
   taken: absolute numbers of a shared machine move by half, ratios do not. Beside decisions a
   second stand those a second of the server's processor time: what one core would do if nothing
   else ran.

   throttlecrab-server and redis-cell are not measured: no package of Debian has them.

   Half load: requests are due at fixed times, whether answers have come or not, and each latency is
   counted from when its request was due. */
#define _GNU_SOURCE
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { KEYS = 10000, MOST_CONNECTIONS = 64, MOST_ROUNDS = 21, LATENCIES = 1 << 20 };

static const ratelimit_limit plenty = RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 1000000000);

/* A server, and a request for each key. */
typedef struct target {
    const char *name;
    int port, pid;
    char *bytes;
    size_t from[KEYS + 1];
    unsigned lines;      /* of an answer that allows */
    const char *allowed; /* how it begins */
} target;

static ratelimit_redis *redis;

static void die(const char *what)
{
    fprintf(stderr, "server_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* As a client of ratelimit_redis.h sends them. */
static void make_redis(target *t)
{
    ratelimit_priv_redis_conn conn;
    char key[16];
    size_t i;
    memset(&conn, 0, sizeof conn);
    for (i = 0; i < KEYS; i++) {
        ratelimit_priv_redis_entry entry;
        ratelimit_priv_redis_ask ask;
        ratelimit_request q = RATELIMIT_REQUEST(key, 0, &plenty, 1);
        ratelimit_result res;
        q.key_len = (size_t)snprintf(key, sizeof key, "k%zu", i * 7919 % KEYS);
        ratelimit_priv_redis_prepare(&entry, &q, &res);
        ratelimit_priv_redis_start(redis, &ask, &entry, 1, false, 0);
        t->from[i] = conn.out_len;
        ask.call.build(&ask.call, &conn);
    }
    t->from[i] = conn.out_len;
    t->bytes = conn.out;
    t->lines = 1;
    t->allowed = ":";
}

static void make_server(target *t)
{
    size_t len = 0, i;
    char key[16];
    t->bytes = (char *)malloc(KEYS * 128);
    for (i = 0; i < KEYS; i++) {
        int key_len = snprintf(key, sizeof key, "k%zu", i * 7919 % KEYS);
        t->from[i] = len;
        len += (size_t)sprintf(t->bytes + len,
                               "*5\r\n$8\r\nTHROTTLE\r\n$%d\r\n%s\r\n$10\r\n1000000000\r\n"
                               "$7\r\n1000000\r\n$1\r\n1\r\n",
                               key_len, key);
    }
    t->from[i] = len;
    t->lines = 6;
    t->allowed = "*5\r\n:1\r\n";
}

/* ---- connections ----------------------------------------------------------------------------- */

typedef struct connection {
    int fd;
    size_t next;                   /* key */
    uint64_t due[MOST_ROUNDS * 8]; /* half load: when those under way were due */
    size_t due_first, due_count;
    size_t answered; /* lines, of the first that is under way */
} connection;

static connection connections[MOST_CONNECTIONS];

static void open_connections(const target *t, size_t count)
{
    struct sockaddr_in address;
    size_t i;
    int yes = 1;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)t->port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (i = 0; i < count; i++) {
        connection *c = &connections[i];
        memset(c, 0, sizeof *c);
        c->next = i * 1009 % KEYS;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0)
            die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    }
}

static void close_connections(size_t count)
{
    while (count--)
        close(connections[count].fd);
}

static void send_requests(const target *t, connection *c, size_t count)
{
    const char *at;
    size_t len;
    if (c->next + count > KEYS)
        c->next = 0;
    at = t->bytes + t->from[c->next];
    len = t->from[c->next + count] - t->from[c->next];
    while (len) {
        ssize_t sent = send(c->fd, at, len, MSG_NOSIGNAL);
        if (sent < 0)
            die("send");
        at += sent;
        len -= (size_t)sent;
    }
    c->next += count;
}

/* Reads what is there; returns how many lines have ended in it. */
static size_t read_answers(const target *t, connection *c)
{
    static char data[65536];
    ssize_t got = recv(c->fd, data, sizeof data, MSG_DONTWAIT), i;
    size_t lines = 0;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (got <= 0)
        die("recv");
    for (i = 0; i < got; i++)
        lines += data[i] == '\n';
    if (c->answered == 0 && (size_t)got >= strlen(t->allowed) &&
        memcmp(data, t->allowed, strlen(t->allowed)) != 0) {
        fprintf(stderr, "server_load: %s answers %.60s\n", t->name, data);
        exit(1);
    }
    return lines;
}

static uint64_t processor_ns(int pid)
{
    char path[64];
    unsigned long long ns = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
    file = fopen(path, "r");
    if (!file || fscanf(file, "%llu", &ns) != 1)
        die(path);
    fclose(file);
    return ns;
}

/* ---- as many as there can be ----------------------------------------------------------------- */

typedef struct rate {
    double wall, processor; /* decisions a second */
} rate;

/* So many connections with so many requests under way each, for some time. */
static rate flood(const target *t, size_t count, size_t each, uint64_t for_ns)
{
    struct pollfd wait[MOST_CONNECTIONS];
    uint64_t start, processor, now;
    size_t i, answered = 0;
    rate r;
    open_connections(t, count);
    for (i = 0; i < count; i++) {
        wait[i].fd = connections[i].fd;
        wait[i].events = POLLIN;
    }
    processor = processor_ns(t->pid);
    start = now = ratelimit_clock_ns();
    for (i = 0; i < count; i++)
        send_requests(t, &connections[i], each);
    while (now - start < for_ns) {
        if (poll(wait, (nfds_t)count, 10000) <= 0)
            die("no answer");
        for (i = 0; i < count; i++) {
            connection *c = &connections[i];
            if (!wait[i].revents)
                continue;
            c->answered += read_answers(t, c);
            if (c->answered == each * t->lines) {
                answered += each;
                c->answered = 0;
                send_requests(t, c, each);
            }
        }
        now = ratelimit_clock_ns();
    }
    r.wall = (double)answered * 1e9 / (double)(now - start);
    r.processor = (double)answered * 1e9 / (double)(processor_ns(t->pid) - processor);
    close_connections(count);
    return r;
}

/* ---- half of that ---------------------------------------------------------------------------- */

static uint32_t latencies[LATENCIES]; /* ns */

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Takes the answers of a connection that have come; returns how many requests they complete, and
   notes their latencies. */
static void take_answers(const target *t, connection *c, size_t each, size_t *count)
{
    const size_t room = sizeof c->due / sizeof c->due[0];
    uint64_t now;
    c->answered += read_answers(t, c);
    now = ratelimit_clock_ns();
    while (c->answered >= each * t->lines && c->due_count) {
        c->answered -= each * t->lines;
        if (*count < LATENCIES)
            latencies[(*count)++] = (uint32_t)(now - c->due[c->due_first]);
        c->due_first = (c->due_first + 1) % room;
        c->due_count--;
    }
}

/* Sends what is due; returns how long nothing more is. A connection that is too far behind is not
   asked: that counts as the worst latency. */
static uint64_t send_due(const target *t, size_t count, size_t each, uint64_t step, uint64_t *due,
                         size_t *noted)
{
    static size_t turn;
    uint64_t now = ratelimit_clock_ns();
    for (; *due <= now; *due += step) {
        connection *c = &connections[turn++ % count];
        const size_t room = sizeof c->due / sizeof c->due[0];
        if (c->due_count < room) {
            send_requests(t, c, each);
            c->due[(c->due_first + c->due_count++) % room] = *due;
        } else if (*noted < LATENCIES) {
            latencies[(*noted)++] = UINT32_MAX;
        }
    }
    return *due - now;
}

/* each requests together, at so many requests a second in all; connections take turns. Returns how
   many latencies were noted. */
static size_t steadily(const target *t, size_t count, size_t each, double per_second,
                       uint64_t for_ns)
{
    struct pollfd wait[MOST_CONNECTIONS];
    uint64_t start, due, step = (uint64_t)(1e9 * (double)each / per_second);
    size_t noted = 0, i;
    open_connections(t, count);
    for (i = 0; i < count; i++) {
        wait[i].fd = connections[i].fd;
        wait[i].events = POLLIN;
    }
    start = due = ratelimit_clock_ns();
    while (due - start < for_ns) {
        struct timespec until_due = {0, 0};
        until_due.tv_nsec = (long)(send_due(t, count, each, step, &due, &noted) % 1000000000);
        if (ppoll(wait, (nfds_t)count, &until_due, NULL) <= 0)
            continue;
        for (i = 0; i < count; i++)
            if (wait[i].revents)
                take_answers(t, &connections[i], each, &noted);
    }
    close_connections(count);
    qsort(latencies, noted, sizeof latencies[0], by_value);
    return noted;
}

static void say_half(const target *t, size_t count, size_t each, double most, uint64_t for_ns)
{
    size_t noted = steadily(t, count, each, most / 2, for_ns);
    if (!noted)
        die("no latencies");
    printf("%-10s %2zu connections, %2zu together, %7.0f/s: p50 %.3f ms, p99 %.3f ms, p99.9 %.3f "
           "ms\n",
           t->name, count, each, most / 2, latencies[noted / 2] / 1e6,
           latencies[noted * 99 / 100] / 1e6, latencies[noted * 999 / 1000] / 1e6);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof values[0], by_size);
    return values[count / 2];
}

/* Both, in turns. Returns the median rate of the first. */
static double side_by_side(target *const *t, size_t count, size_t each, size_t rounds)
{
    double wall[2][MOST_ROUNDS], processor[2][MOST_ROUNDS], result[2][2];
    size_t i, j;
    for (j = 0; j < rounds; j++)
        for (i = 0; i < 2; i++) {
            rate r = flood(t[i], count, each, 300 * RATELIMIT_MILLISECOND);
            wall[i][j] = r.wall;
            processor[i][j] = r.processor;
        }
    for (i = 0; i < 2; i++) {
        result[i][0] = median(wall[i], rounds);
        result[i][1] = median(processor[i], rounds);
        printf("%-10s %2zu connections, %2zu under way on each: %8.0f decisions/s, %8.0f/s of its "
               "processor\n",
               t[i]->name, count, each, result[i][0], result[i][1]);
    }
    printf("    ratio %.1f; of processor time %.1f\n", result[0][0] / result[1][0],
           result[0][1] / result[1][1]);
    return result[0][0];
}

static void open_redis(int port)
{
    ratelimit_redis_options options;
    ratelimit_store store;
    ratelimit_request q = RATELIMIT_REQUEST("k", 1, &plenty, 1);
    ratelimit_result res;
    memset(&options, 0, sizeof options);
    options.port = port;
    options.timeout_ms = options.connect_timeout_ms = 5000;
    redis = ratelimit_redis_open(&options, NULL);
    if (!redis)
        die("no Redis");
    store = ratelimit_redis_store(redis);
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH); /* so that the script is there */
    if (!res.allowed) {
        char why[256];
        fprintf(stderr, "server_load: Redis: %s\n", ratelimit_redis_error(redis, why, sizeof why));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    target server = {.name = "server"}, script = {.name = "Redis"}, *both[2] = {&server, &script};
    size_t rounds;
    double pipelined, plain;
    if (argc < 5)
        return 2;
    server.port = atoi(argv[1]);
    server.pid = atoi(argv[2]);
    script.port = atoi(argv[3]);
    script.pid = atoi(argv[4]);
    rounds = argc > 5 ? (size_t)atoi(argv[5]) : 7;
    if (rounds < 1 || rounds > MOST_ROUNDS)
        return 2;
    open_redis(script.port);
    make_server(&server);
    make_redis(&script);
    flood(&server, 8, 64, 300 * RATELIMIT_MILLISECOND); /* the keys are there from now on */
    flood(&script, 8, 64, 300 * RATELIMIT_MILLISECOND);
    pipelined = side_by_side(both, 8, 64, rounds);
    plain = side_by_side(both, 50, 1, rounds);
    puts("at half of its load:");
    say_half(&server, 8, 64, pipelined, rounds * 300 * RATELIMIT_MILLISECOND);
    say_half(&server, 50, 1, plain, rounds * 300 * RATELIMIT_MILLISECOND);
    ratelimit_redis_close(redis);
    return 0;
}

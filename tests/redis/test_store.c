/* test_store.c - ratelimit_redis.h against one real server: what it keeps there, and what the
 * caller sees when something fails. */
#define _POSIX_C_SOURCE 200809L
#include "unlocked.h"

#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/wait.h>

static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 100, 1);

/* ---- a server that says what it is told ------------------------------------------------------ */

typedef struct canned {
    int listener, port;
    const char *says; /* to each thing it is sent; NULL: nothing; "": it hangs up */
    volatile int accepted;
    pthread_t thread;
} canned;

static void *canned_run(void *self)
{
    canned *c = (canned *)self;
    for (;;) {
        char buf[65536];
        int fd = accept(c->listener, NULL, NULL);
        if (fd < 0)
            return NULL;
        c->accepted++;
        while (c->says && *c->says && recv(fd, buf, sizeof buf, 0) > 0)
            if (send(fd, c->says, strlen(c->says), MSG_NOSIGNAL) < 0)
                break;
        if (c->says)
            close(fd);
    }
}

static int canned_listen(int *port)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr *)(void *)&address, sizeof address) != 0 ||
        listen(fd, 64) != 0 || getsockname(fd, (struct sockaddr *)(void *)&address, &len) != 0)
        exit(2);
    *port = ntohs(address.sin_port);
    return fd;
}

static void canned_open(canned *c, const char *says)
{
    memset(c, 0, sizeof *c);
    c->says = says;
    c->listener = canned_listen(&c->port);
    if (pthread_create(&c->thread, NULL, canned_run, c) != 0)
        exit(2);
}

static void canned_close(canned *c)
{
    shutdown(c->listener, SHUT_RDWR);
    pthread_join(c->thread, NULL);
    close(c->listener);
}

/* What a take on such a server comes to, in words. */
static const char *canned_error(const char *says)
{
    static char text[200];
    ratelimit_redis_options options;
    ratelimit_redis *r;
    canned c;
    canned_open(&c, says);
    memset(&options, 0, sizeof options);
    options.port = c.port;
    options.timeout_ms = 50;
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    ratelimit_redis_error(r, text, sizeof text);
    ratelimit_redis_close(r);
    canned_close(&c);
    return text;
}

static ratelimit_redis *open_with_timeout(uint32_t timeout_ms)
{
    ratelimit_redis_options options = server_options();
    options.timeout_ms = timeout_ms;
    options.cool_down_ms = 50;
    return server_open(&options);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static void a_take_is_one_key_with_the_prefix_that_expires(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    options.prefix = "limits/";
    r = server_open(&options);
    server_flush();
    CHECK(server_take(r, "alice", &hourly, 1).allowed);
    CHECK_U64(server_int(server_port(), "DBSIZE"), 1);
    CHECK_U64(server_int(server_port(), "EXISTS limits/b{alice}00000001"), 1);
    CHECK(server_int(server_port(), "PTTL limits/b{alice}00000001") > 3590 * 1000);
    ratelimit_redis_close(r);
}

/* B54: milliseconds were handed to the seconds option. */
static void keys_live_as_long_as_their_debt_and_not_a_thousand_times_longer(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_SECOND, 5, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    long long ttl;
    int i;
    server_flush();
    CHECK(server_take(r, "k", &limit, 1).allowed);
    ttl = server_int(server_port(), "PTTL ratelimit:b{k}00000001");
    CHECK(ttl > 0 && ttl <= 2000);
    for (i = 0; i < 4; i++)
        server_take(r, "k", &limit, 1);
    ttl = server_int(server_port(), "PTTL ratelimit:b{k}00000001");
    CHECK(ttl > 2000 && ttl <= 6000);
    ratelimit_redis_close(r);
}

static void keys_never_expire_before_their_debt_is_gone(void)
{
    static const ratelimit_limit limits[] = {RATELIMIT_LIMIT_SCOPE(1, 7 * RATELIMIT_SECOND, 3, 1),
                                             RATELIMIT_LIMIT_SCOPE(7, 22 * RATELIMIT_SECOND, 9, 1),
                                             RATELIMIT_WINDOW(5, RATELIMIT_DAY),
                                             RATELIMIT_LIMIT_SCOPE(1, 200 * RATELIMIT_DAY, 5, 1)};
    static const ratelimit_op ops[] = {RATELIMIT_TAKE, RATELIMIT_TAKE_UP_TO, RATELIMIT_CHARGE,
                                       RATELIMIT_BLOCK};
    ratelimit_redis *r = open_with_timeout(1000);
    size_t i, j;
    for (i = 0; i < sizeof limits / sizeof limits[0]; i++)
        for (j = 0; j < sizeof ops / sizeof ops[0]; j++) {
            ratelimit_store store = ratelimit_redis_store(r);
            ratelimit_limit limit = limits[i];
            ratelimit_request q = server_request("k", &limit, ops[j], 2);
            ratelimit_result res;
            uint64_t start = ratelimit_clock_ns(), lived, ttl;
            uint64_t more = i == 2 ? RATELIMIT_DAY : 0; /* a window's lives one window longer */
            q.max_wait_ns = RATELIMIT_MINUTE;
            limit.scope = 1;
            server_flush();
            store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
            CHECK_U64(res.status, RATELIMIT_OK);
            ttl = (uint64_t)server_int(server_port(), "PTTL ratelimit:b{k}00000001");
            lived = ratelimit_clock_ns() - start;
            CHECK(ttl * RATELIMIT_MILLISECOND + lived >= res.reset_after_ns);
            CHECK(ttl <= (res.reset_after_ns + more) / RATELIMIT_MILLISECOND + 3);
        }
    ratelimit_redis_close(r);
}

/* B51: the time to live was rounded down to 0. */
static void a_limit_faster_than_a_millisecond_still_limits(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1001, RATELIMIT_SECOND, 1, 1);
    static const ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(1000000, RATELIMIT_SECOND, 1, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    int attempt, at_one_instant = 0;
    long long ttl;
    for (attempt = 0; attempt < 50; attempt++) {
        ratelimit_request q[3];
        ratelimit_result res[3];
        uint64_t start, took;
        int i, allowed = 0;
        server_flush();
        for (i = 0; i < 3; i++)
            q[i] = server_request("k", &limit, RATELIMIT_TAKE, 1);
        start = ratelimit_clock_ns();
        store.decide(&store, q, res, 3, RATELIMIT_EACH);
        took = ratelimit_clock_ns() - start;
        for (i = 0; i < 3; i++)
            allowed += res[i].allowed;
        CHECK(allowed >= 1 && (uint64_t)allowed <= 1 + took / 999000);
        at_one_instant += took < 999000;
    }
    CHECK(at_one_instant > 0);
    CHECK(server_take(r, "fast", &fast, 1).allowed);
    ttl = server_int(server_port(), "PTTL ratelimit:b{fast}00000001");
    CHECK(ttl == -2 || ttl >= 1);
    ratelimit_redis_close(r);
}

/* B52: a key whose expiry was lost stayed for ever. */
static void a_key_that_lost_its_expiry_gets_one_at_the_next_take(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    server_flush();
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK_U64(server_int(server_port(), "PERSIST ratelimit:b{k}00000001"), 1);
    CHECK(server_int(server_port(), "PTTL ratelimit:b{k}00000001") == -1);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_int(server_port(), "PTTL ratelimit:b{k}00000001") > 0);
    ratelimit_redis_close(r);
}

/* B50: a large number turned into text inside Lua keeps 14 digits. */
static void small_steps_on_a_large_time_are_all_counted(void)
{
    static const ratelimit_limit limit =
        RATELIMIT_LIMIT_SCOPE(1, 10 * RATELIMIT_MICROSECOND, 1000, 1);
    uint64_t now = UINT64_C(1700000000123456000);
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    int i;
    options.clock = server_given;
    options.clock_self = &now;
    options.ttl_min_ms = 60000;
    r = server_open(&options);
    server_flush();
    for (i = 0; i < 40; i++)
        CHECK(server_take(r, "k", &limit, 1).allowed);
    CHECK_U64(server_decide(r, "k", &limit, RATELIMIT_PEEK, 1).reset_after_ns, 400000);
    now += 399999;
    CHECK_U64(server_decide(r, "k", &limit, RATELIMIT_PEEK, 1).reset_after_ns, 1);
    ratelimit_redis_close(r);
}

static void a_refusal_and_a_peek_write_nothing(void)
{
    static const ratelimit_limit one = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    static const ratelimit_limit seventh = RATELIMIT_LIMIT_SCOPE(7, RATELIMIT_HOUR, 1, 1);
    static const ratelimit_limit window = RATELIMIT_WINDOW(1, RATELIMIT_DAY);
    const ratelimit_limit *limits[3];
    const char *keys[] = {"a", "b", "c"};
    ratelimit_redis *r = open_with_timeout(1000);
    long long dirty;
    int i, j;
    limits[0] = &one, limits[1] = &seventh, limits[2] = &window;
    server_flush();
    for (i = 0; i < 3; i++)
        CHECK(server_take(r, keys[i], limits[i], 1).allowed);
    dirty = server_info(server_port(), "rdb_changes_since_last_save");
    for (i = 0; i < 3; i++)
        for (j = 0; j < 10; j++) {
            CHECK(!server_take(r, keys[i], limits[i], 1).allowed);
            CHECK_U64(server_decide(r, keys[i], limits[i], RATELIMIT_PEEK, 1).remaining, 0);
            CHECK_U64(server_decide(r, "fresh", limits[i], RATELIMIT_PEEK, 1).remaining, 1);
        }
    CHECK(dirty >= 3);
    CHECK_U64(server_info(server_port(), "rdb_changes_since_last_save"), dirty);
    ratelimit_redis_close(r);
}

static void keys_are_any_bytes(void)
{
    static const struct {
        const char *bytes;
        size_t len;
    } keys[] = {{"\0\1", 2},  {"\0\2", 2}, {"a", 1},    {"a\0", 2},  {"a\0b", 3},
                {"a\r\n", 3}, {"a\r", 2},  {"{a}b", 4}, {"%s%n", 4}, {"\xff\xfe", 2}};
    static const ratelimit_limit one = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    size_t i, round;
    server_flush();
    for (round = 0; round < 2; round++)
        for (i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            ratelimit_request q = server_request("", &one, RATELIMIT_TAKE, 1);
            ratelimit_result res;
            q.key = keys[i].bytes;
            q.key_len = keys[i].len;
            store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
            CHECK_U64(res.allowed, round == 0);
        }
    ratelimit_redis_close(r);
}

static void an_empty_key_is_refused_without_asking(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q = server_request("", &hourly, RATELIMIT_TAKE, 1);
    ratelimit_result res;
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
    CHECK_U64(res.status, RATELIMIT_BAD_KEY);
    q.key = NULL;
    store.decide(&store, &q, &res, 1, RATELIMIT_ALL);
    CHECK_U64(res.status, RATELIMIT_BAD_KEY);
    ratelimit_redis_close(r);
}

static void the_bounds_of_the_time_to_live_are_kept(void)
{
    ratelimit_redis_options options = server_options();
    static const ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_MILLISECOND, 10, 1);
    ratelimit_redis *r;
    long long ttl;
    options.ttl_min_ms = 50000;
    options.ttl_max_ms = 60000;
    r = server_open(&options);
    server_flush();
    CHECK(server_take(r, "short", &fast, 1).allowed);
    ttl = server_int(server_port(), "PTTL ratelimit:b{short}00000001");
    CHECK(ttl > 40000 && ttl <= 50000);
    CHECK(server_take(r, "long", &hourly, 1).allowed);
    ttl = server_int(server_port(), "PTTL ratelimit:b{long}00000001");
    CHECK(ttl > 50000 && ttl <= 60000);
    ratelimit_redis_close(r);
}

static void the_servers_clock_counts(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, 20 * RATELIMIT_MILLISECOND, 1, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_result res;
    uint64_t start = ratelimit_clock_ns();
    server_flush();
    CHECK(server_take(r, "k", &limit, 1).allowed);
    do
        res = server_take(r, "k", &limit, 1);
    while (!res.allowed && server_ms_since(start) < 5000);
    CHECK(res.allowed);
    CHECK(server_ms_since(start) >= 20);
    ratelimit_redis_close(r);
}

static void all_or_none_is_one_call_and_charges_nobody_when_one_is_refused(void)
{
    static const ratelimit_limit user = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    static const ratelimit_limit global = RATELIMIT_LIMIT_SCOPE(10, RATELIMIT_HOUR, 10, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q[2];
    ratelimit_result res[2];
    long long calls;
    int i, allowed = 0;
    server_flush();
    q[0] = server_request("{u1}", &user, RATELIMIT_TAKE, 1);
    q[1] = server_request("global", &global, RATELIMIT_TAKE, 1);
    calls = server_info(server_port(), "total_commands_processed");
    for (i = 0; i < 20; i++) {
        store.decide(&store, q, res, 2, RATELIMIT_ALL);
        allowed += res[0].allowed && res[1].allowed;
        CHECK_U64(res[0].allowed, res[1].allowed);
    }
    CHECK_U64(allowed, 1);
    /* Each call is EVALSHA, TIME and two GET, the first one NOSCRIPT, EVAL and two SET besides; and
     * this INFO. */
    calls = server_info(server_port(), "total_commands_processed") - calls;
    CHECK(calls <= 20 * 4 + 4 + 2);
    CHECK_U64(server_decide(r, "global", &global, RATELIMIT_PEEK, 1).remaining, 9);
    q[0].key = "{u2}";
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    ratelimit_redis_close(r);
}

/* B47: limits were charged one after the other; when a later one refused, the earlier ones had
 * already paid. */
static void one_throttled_user_does_not_use_up_what_all_share(void)
{
    static const ratelimit_limit user = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    static const ratelimit_limit global = RATELIMIT_LIMIT_SCOPE(10, RATELIMIT_HOUR, 10, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    int first, i;
    for (first = 0; first < 2; first++) {
        ratelimit_request q[2];
        ratelimit_result res[2];
        int allowed = 0;
        server_flush();
        q[first] = server_request("u1", &user, RATELIMIT_TAKE, 1);
        q[1 - first] = server_request("global", &global, RATELIMIT_TAKE, 1);
        for (i = 0; i < 20; i++) {
            store.decide(&store, q, res, 2, RATELIMIT_ALL);
            allowed += res[0].allowed && res[1].allowed;
        }
        CHECK_U64(allowed, 1);
        CHECK_U64(server_decide(r, "global", &global, RATELIMIT_PEEK, 1).remaining, 9);
        q[first].key = "u2";
        store.decide(&store, q, res, 2, RATELIMIT_ALL);
        CHECK(res[0].allowed && res[1].allowed);
    }
    ratelimit_redis_close(r);
}

/* B48: with two limits stacked, 31 quick calls blocked the client for half an hour though only 10
 * were served. */
static void stacked_limits_count_only_what_both_let_through(void)
{
    static const ratelimit_limit quick = RATELIMIT_LIMIT_SCOPE(10, RATELIMIT_MINUTE, 10, 1);
    static const ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(30, 30 * RATELIMIT_MINUTE, 30, 1);
    uint64_t now = 1000 * RATELIMIT_HOUR;
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    ratelimit_store store;
    ratelimit_request q[2];
    ratelimit_result res[2];
    int minute, i;
    options.clock = server_given;
    options.clock_self = &now;
    options.ttl_min_ms = 60000;
    r = server_open(&options);
    store = ratelimit_redis_store(r);
    server_flush();
    q[0] = server_request("quick", &quick, RATELIMIT_TAKE, 1);
    q[1] = server_request("slow", &slow, RATELIMIT_TAKE, 1);
    for (minute = 0; minute < 2; minute++) {
        int allowed = 0;
        for (i = 0; i < 15; i++) {
            store.decide(&store, q, res, 2, RATELIMIT_ALL);
            allowed += res[0].allowed && res[1].allowed;
        }
        CHECK_U64(allowed, 10);
        now += minute == 0 ? RATELIMIT_MINUTE : 0;
    }
    CHECK_U64(server_decide(r, "slow", &slow, RATELIMIT_PEEK, 1).remaining, 11);
    ratelimit_redis_close(r);
}

static void a_mistake_in_a_batch_charges_nobody(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q[2];
    ratelimit_result res[2];
    server_flush();
    q[0] = server_request("a", &hourly, RATELIMIT_TAKE, 1);
    q[1] = server_request("b", &hourly, RATELIMIT_TAKE, 0);
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(res[1].status, RATELIMIT_BAD_COUNT);
    CHECK_U64(server_decide(r, "a", &hourly, RATELIMIT_PEEK, 1).remaining, 100);
    ratelimit_redis_close(r);
}

/* Several takes are one command; they fail each for itself all the same. */
static void one_that_fails_among_many_leaves_the_others_alone(void)
{
    static const ratelimit_limit other = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 10, 1);
    static const char *const keys[] = {"a", "list", "b", "short", "long", "changed", "a", "a"};
    enum { MANY = sizeof keys / sizeof keys[0] };
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q[MANY];
    ratelimit_result res[MANY];
    int i, round;
    server_flush();
    CHECK(server_do(server_port(), "LPUSH ratelimit:b{list}00000001 x"));
    CHECK(server_do(server_port(), "SET ratelimit:b{short}00000001 7"));
    CHECK(server_do(server_port(), "SET ratelimit:b{long}00000001 01234567890123456789"));
    CHECK(server_take(r, "changed", &other, 2).allowed);
    CHECK(server_do(server_port(), "SCRIPT FLUSH"));
    for (round = 0; round < 2; round++) {
        for (i = 0; i < MANY; i++)
            q[i] = server_request(keys[i], &hourly, i == 7 ? RATELIMIT_PEEK : RATELIMIT_TAKE,
                                  i == 6 ? 60 : 1);
        store.decide(&store, q, res, MANY, RATELIMIT_EACH);
        CHECK_U64(res[0].remaining, round ? 38 : 99);
        CHECK_U64(res[2].remaining, 99 - round);
        CHECK_U64(res[5].remaining, 97 - round); /* 2 were spent, of a smaller burst */
        CHECK_U64(res[6].status, round ? RATELIMIT_DENIED : RATELIMIT_OK);
        CHECK_U64(res[7].remaining, round ? 38 : 39);
        CHECK_U64(res[1].status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res[3].status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res[4].status, RATELIMIT_STORE_FAILED);
        CHECK(strstr(server_error(r), "something else") != NULL);
    }
    CHECK(server_do(server_port(), "CONFIG SET maxmemory 1"));
    q[7] = server_request("new", &hourly, RATELIMIT_PEEK, 1);
    store.decide(&store, q, res, MANY, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_STORE_FAILED);
    CHECK_U64(res[6].status, RATELIMIT_DENIED);
    CHECK_U64(res[7].remaining, 100);
    CHECK(server_do(server_port(), "CONFIG SET maxmemory 0"));
    CHECK_U64(server_take(r, "a", &hourly, 1).remaining, 37);
    ratelimit_redis_close(r);
}

static void many_takes_are_commands_of_sixty_four(void)
{
    static const ratelimit_limit hundreds = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1000, 1);
    enum { MANY = 150 };
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q[MANY];
    ratelimit_result res[MANY];
    int i;
    server_flush();
    for (i = 0; i < MANY; i++)
        q[i] = server_request("k", &hundreds, RATELIMIT_TAKE, 1);
    store.decide(&store, q, res, MANY, RATELIMIT_EACH); /* so that scripts are there */
    CHECK(server_do(server_port(), "CONFIG RESETSTAT"));
    store.decide(&store, q, res, MANY, RATELIMIT_EACH);
    CHECK_U64(server_scripts(server_port()), 3);
    for (i = 0; i < MANY; i++)
        CHECK_U64(res[i].remaining, 849 - i);
    ratelimit_redis_close(r);
}

/* What the takes of a command have in common is sent once. Here one of three differs, by little: it
 * and the others must charge what they would alone. */
static void one_of_a_command_differs_from_the_others(void)
{
    static const ratelimit_limit usual = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 6, 1);
    static const ratelimit_limit larger = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 7, 1);
    static const ratelimit_limit smaller = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 5, 1);
    static const ratelimit_limit slower = RATELIMIT_LIMIT_SCOPE(1, 2 * RATELIMIT_HOUR, 6, 1);
    static const struct {
        uint64_t before, n; /* of the others, which are takes under usual */
        const ratelimit_limit *limit;
        ratelimit_op op;
        uint64_t its_before, its_n, its_after; /* tokens owed */
        ratelimit_status status;
    } cases[] = {{1, 5, &larger, RATELIMIT_TAKE, 2, 5, 7, RATELIMIT_OK},
                 {1, 5, &larger, RATELIMIT_TAKE, 1, 6, 7, RATELIMIT_OK},
                 {1, 5, &slower, RATELIMIT_TAKE, 1, 5, 6, RATELIMIT_OK},
                 {1, 5, &usual, RATELIMIT_TAKE, 1, 4, 5, RATELIMIT_OK},
                 {1, 5, &usual, RATELIMIT_TAKE, 2, 5, 2, RATELIMIT_DENIED},
                 {1, 5, &usual, RATELIMIT_PEEK, 1, 5, 1, RATELIMIT_OK},
                 {0, 6, &smaller, RATELIMIT_TAKE, 0, 6, 0, RATELIMIT_NEVER}};
    static const char *const keys[] = {"a", "b", "c"};
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    size_t i, j, k;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (j = 0; j < 3; j++) {
            ratelimit_request q[3];
            ratelimit_result res[3];
            server_flush();
            for (k = 0; k < 3; k++) {
                q[k] = server_request(keys[k], &usual, RATELIMIT_TAKE, cases[i].n);
                if (k == j)
                    q[k] = server_request(keys[k], cases[i].limit, cases[i].op, cases[i].its_n);
                (void)server_decide(r, keys[k], q[k].limit, RATELIMIT_CHARGE,
                                    k == j ? cases[i].its_before : cases[i].before);
            }
            store.decide(&store, q, res, 3, RATELIMIT_EACH);
            for (k = 0; k < 3; k++) {
                uint64_t owed = k == j ? cases[i].its_after : 6;
                ratelimit_result after = server_decide(r, keys[k], q[k].limit, RATELIMIT_PEEK, 1);
                CHECK_U64(res[k].status, k == j ? cases[i].status : RATELIMIT_OK);
                CHECK_U64(after.remaining, q[k].limit->burst - owed);
            }
        }
    ratelimit_redis_close(r);
}

/* Reservations that have something in common, but not how much or how long. */
static void reservations_of_a_command_are_decided_each_for_itself(void)
{
    static const ratelimit_limit three = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 3, 1);
    static const struct {
        uint64_t n, wait_hours, other_n, other_wait_hours, owed;
        ratelimit_status status, other;
    } cases[] = {{1, 0, 2, 1, 3, RATELIMIT_TIMEOUT, RATELIMIT_TIMEOUT},
                 {1, 0, 2, 1, 2, RATELIMIT_OK, RATELIMIT_OK},
                 {1, 0, 1, 1, 3, RATELIMIT_TIMEOUT, RATELIMIT_OK},
                 {1, 1, 1, 0, 3, RATELIMIT_OK, RATELIMIT_TIMEOUT}};
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    size_t i, k;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ratelimit_request q[2];
        ratelimit_result res[2], after;
        server_flush();
        for (k = 0; k < 2; k++) {
            q[k] = server_request(k ? "b" : "a", &three, RATELIMIT_RESERVE,
                                  k ? cases[i].other_n : cases[i].n);
            q[k].max_wait_ns =
                RATELIMIT_HOUR * (k ? cases[i].other_wait_hours : cases[i].wait_hours);
            (void)server_decide(r, k ? "b" : "a", &three, RATELIMIT_CHARGE, cases[i].owed);
        }
        store.decide(&store, q, res, 2, RATELIMIT_EACH);
        for (k = 0; k < 2; k++) {
            uint64_t owed = cases[i].owed + (res[k].allowed ? q[k].n : 0);
            CHECK_U64(res[k].status, k ? cases[i].other : cases[i].status);
            after = server_decide(r, k ? "b" : "a", &three, RATELIMIT_PEEK, 1);
            CHECK_U64((after.reset_after_ns + RATELIMIT_MINUTE) / RATELIMIT_HOUR, owed);
        }
    }
    ratelimit_redis_close(r);
}

/* A key that a user may not take fails alone, not with all that go out in the same command. */
static void a_key_not_permitted_fails_alone(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    ratelimit_store store;
    ratelimit_request q[3];
    ratelimit_result res[3];
    int i, round;
    server_flush();
    CHECK(server_do(server_port(), "ACL SETUSER part on >secret ~ratelimit:b{mine* +@all"));
    options.user = "part";
    options.password = "secret";
    options.timeout_ms = 1000;
    r = server_open(&options);
    store = ratelimit_redis_store(r);
    for (round = 0; round < 2; round++) {
        for (i = 0; i < 3; i++)
            q[i] = server_request(i == 1 ? "other" : "mine", &hourly, RATELIMIT_TAKE, 1);
        store.decide(&store, q, res, 3, RATELIMIT_EACH);
        CHECK_U64(res[0].status, RATELIMIT_OK);
        CHECK_U64(res[1].status, RATELIMIT_STORE_FAILED);
        CHECK_U64(res[2].status, RATELIMIT_OK);
        CHECK_U64(res[2].remaining, 98 - 2 * round);
    }
    CHECK(strstr(server_error(r), "permissions") != NULL);
    CHECK(server_do(server_port(), "ACL DELUSER part"));
    ratelimit_redis_close(r);
}

/* What LIMITS names is all that takes need; of scripts Redis 7.0 says it in words of its own. */
static void a_command_not_permitted_is_said(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    server_flush();
    CHECK(server_do(server_port(),
                    "ACL SETUSER few on >secret ~* -@all +evalsha +eval +get +set +del +time"));
    options.user = "few";
    options.password = "secret";
    options.timeout_ms = 1000;
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_OK);
    CHECK(server_do(server_port(), "ACL SETUSER few -set"));
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "permissions") != NULL);
    CHECK(server_do(server_port(), "ACL DELUSER few"));
    ratelimit_redis_close(r);
}

static void *peek_often(void *self)
{
    int i;
    for (i = 0; i < 100; i++)
        (void)server_decide((ratelimit_redis *)self, "k0", &hourly, RATELIMIT_PEEK, 1);
    return NULL;
}

/* A batch too large for its timeout: its later parts went out, and were charged, when its time was
 * over. */
static void nothing_is_sent_when_the_time_is_over(void)
{
    enum { MANY = 30000, THREADS = 8 };
    static ratelimit_request q[MANY];
    static ratelimit_result res[MANY];
    static char keys[MANY][16];
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    ratelimit_store store;
    pthread_t thread[THREADS];
    int i, allowed = 0;
    server_flush();
    options.timeout_ms = 20;
    r = server_open(&options);
    store = ratelimit_redis_store(r);
    for (i = 0; i < THREADS; i++) /* so that there are connections to send on */
        CHECK(pthread_create(&thread[i], NULL, peek_often, r) == 0);
    for (i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        q[i] = server_request(keys[i], &hourly, RATELIMIT_TAKE, 1);
    }
    store.decide(&store, q, res, MANY, RATELIMIT_EACH);
    for (i = 0; i < MANY; i++)
        allowed += res[i].allowed;
    ratelimit_redis_close(r);
    server_sleep_ms(20);
    CHECK(server_int(server_port(), "DBSIZE") - allowed <= 1024); /* of the last part */
}

static void a_connection_keeps_little_memory_and_is_not_inherited(void)
{
    static char key[1000000];
    ratelimit_redis *r = open_with_timeout(5000);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    ratelimit_result res;
    server_flush();
    memset(key, 'k', sizeof key);
    q.key = key;
    q.key_len = sizeof key;
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
    CHECK_U64(res.status, RATELIMIT_OK);
    CHECK(r->nodes->idle && r->nodes->idle->out_room <= 16384);
    CHECK(fcntl(r->nodes->idle->fd, F_GETFD) & FD_CLOEXEC);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_OK);
    ratelimit_redis_close(r);
}

static uint64_t given_ns(void *self)
{
    return *(uint64_t *)self;
}

/* What scripts store, a time with parts of a us included, is what they and C can read. */
static void a_debt_near_the_longest_is_read_again(void)
{
    static uint64_t now = UINT64_C(1700000000000000999);
    static const ratelimit_limit ns = RATELIMIT_LIMIT_SCOPE(1000000000, RATELIMIT_SECOND, 10, 1);
    ratelimit_redis_options options = server_options();
    uint64_t some = RATELIMIT_PRIV_REDIS_EXACT / 4 - 300;
    ratelimit_redis *r;
    int i;
    server_flush();
    options.timeout_ms = 1000;
    options.clock = given_ns;
    options.clock_self = &now;
    r = server_open(&options);
    for (i = 0; i < 4; i++)
        CHECK(server_decide(r, "k", &ns, RATELIMIT_CHARGE, some).allowed);
    (void)server_decide(r, "k", &ns, RATELIMIT_CHARGE, 1190);
    CHECK(server_decide(r, "k", &hourly, RATELIMIT_PEEK, 1).status != RATELIMIT_STORE_FAILED);
    ratelimit_redis_close(r);
}

static void a_thousand_and_more_requests_at_once_are_all_answered(void)
{
    enum { MANY = 2500 };
    static ratelimit_request q[MANY];
    static ratelimit_result res[MANY];
    static char keys[MANY][12];
    ratelimit_redis *r = open_with_timeout(5000);
    ratelimit_store store = ratelimit_redis_store(r);
    int i;
    server_flush();
    for (i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        q[i] = server_request(keys[i], &hourly, RATELIMIT_TAKE, 1);
    }
    store.decide(&store, q, res, MANY, RATELIMIT_EACH);
    for (i = 0; i < MANY; i++)
        CHECK(res[i].allowed && res[i].remaining == 99);
    CHECK_U64(server_int(server_port(), "DBSIZE"), MANY);
    ratelimit_redis_close(r);
}

static void a_raised_limit_helps_at_once(void)
{
    static const ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(10, 20 * RATELIMIT_SECOND, 16, 1);
    static const ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(1000, 20 * RATELIMIT_SECOND, 16, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    int i;
    server_flush();
    for (i = 0; i < 3; i++)
        CHECK_U64(server_take(r, "k", &slow, 1).remaining, 15 - i);
    CHECK(server_take(r, "k", &fast, 1).remaining >= 12);
    ratelimit_redis_close(r);
}

/* ---- script cache ---------------------------------------------------------------------------- */

/* B49: the fallback existed for single calls but not inside a pipeline. */
static void a_flushed_script_cache_charges_each_token_exactly_once(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_limiter limiter;
    ratelimit_request q[10];
    ratelimit_result res[10];
    int i;
    memset(&limiter, 0, sizeof limiter);
    CHECK_U64(ratelimit_init(&limiter, ratelimit_redis_store(r)), RATELIMIT_OK);
    server_flush();
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "SCRIPT FLUSH"));
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    for (i = 0; i < 10; i++)
        q[i] = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    CHECK(server_do(server_port(), "SCRIPT FLUSH"));
    CHECK(ratelimit_take_each(&limiter, q, res, 10));
    CHECK_U64(server_decide(r, "k", &hourly, RATELIMIT_PEEK, 1).remaining, 88);
    CHECK(server_do(server_port(), "SCRIPT FLUSH"));
    CHECK(ratelimit_take_all(&limiter, q, res, 10));
    CHECK_U64(res[9].remaining, 78);
    ratelimit_close(&limiter);
    ratelimit_redis_close(r);
}

static void scripts_are_named_by_their_sha1(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    unsigned i;
    for (i = 0; i < RATELIMIT_PRIV_REDIS_SCRIPTS; i++) {
        redisReply *reply =
            server_ask(server_port(), "SCRIPT LOAD %s", ratelimit_priv_redis_script[i]);
        CHECK(reply && reply->type == REDIS_REPLY_STRING);
        if (reply && reply->str)
            CHECK_TEXT(r->sha[i], reply->str);
        freeReplyObject(reply);
    }
    ratelimit_redis_close(r);
}

/* ---- options --------------------------------------------------------------------------------- */

static void a_unix_socket_serves_as_well(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    options.port = 1;
    options.unix_path = getenv("REDIS_SOCKET");
    r = server_open(&options);
    server_flush();
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_OK);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK_U64(server_int(server_port(), "DBSIZE"), 1);
    ratelimit_redis_close(r);
}

static void user_password_and_database_are_restored_after_a_reconnect(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    CHECK(server_do(server_port(), "ACL SETUSER limiter on >secret ~ratelimit:* +@all"));
    options.user = "limiter";
    options.password = "secret";
    options.database = 3;
    r = server_open(&options);
    server_flush();
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "CLIENT KILL USER limiter"));
    CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 98);
    CHECK_U64(server_int(server_port(), "DBSIZE"), 0);
    CHECK(server_do(server_port(), "SELECT 3"));
    CHECK_U64(server_int(server_port(), "DBSIZE"), 1);
    CHECK(server_do(server_port(), "SELECT 0"));
    CHECK(server_do(server_port(), "ACL DELUSER limiter"));
    ratelimit_redis_close(r);
}

/* As the header says of each. */
static void zero_is_the_default_of_each_option(void)
{
    ratelimit_redis_options none;
    ratelimit_redis *r[2];
    int i;
    memset(&none, 0, sizeof none);
    r[0] = ratelimit_redis_open(&none, NULL);
    r[1] = ratelimit_redis_open(NULL, NULL);
    for (i = 0; i < 2; i++) {
        CHECK(r[i] != NULL);
        CHECK_TEXT(r[i]->nodes->host, "127.0.0.1");
        CHECK_U64(r[i]->nodes->port, 6379);
        CHECK(!r[i]->o.unix_path && !r[i]->o.user && !r[i]->o.password);
        CHECK_U64(r[i]->o.database, 0);
        CHECK_TEXT(r[i]->o.prefix, "ratelimit:");
        CHECK_U64(r[i]->connect_timeout_ns, 500 * RATELIMIT_MILLISECOND);
        CHECK_U64(r[i]->timeout_ns, 300 * RATELIMIT_MILLISECOND);
        CHECK_U64(r[i]->max_idle_ns, 30 * RATELIMIT_SECOND);
        CHECK_U64(r[i]->cool_down_ns, 500 * RATELIMIT_MILLISECOND);
        CHECK_U64(r[i]->o.pool_size, 16);
        CHECK_U64(r[i]->o.ttl_min_ms, 0);
        CHECK_U64(r[i]->o.ttl_max_ms, 0);
        CHECK(!r[i]->o.cluster && !r[i]->o.clock);
        ratelimit_redis_close(r[i]);
    }
}

static bool no_credentials(void *self, bool again, ratelimit_redis_login *login)
{
    (void)self, (void)again, (void)login;
    return false;
}

static void options_out_of_range_are_refused(void)
{
    char path[120];
    ratelimit_redis_options o, none;
    ratelimit_status status;
    memset(&none, 0, sizeof none);
#define REFUSED(change)                                                                            \
  o = none;                                                                                        \
  change;                                                                                          \
  CHECK(ratelimit_redis_open(&o, &status) == NULL);                                                \
  CHECK_U64(status, RATELIMIT_BAD_ARGUMENT)
    REFUSED(o.port = 65536);
    REFUSED(o.port = -1);
    REFUSED(o.database = -1);
    REFUSED((o.cluster = true, o.database = 1));
    REFUSED(o.unix_path = "");
    REFUSED(o.user = "somebody");
    REFUSED((o.ttl_min_ms = 2, o.ttl_max_ms = 1));
    REFUSED(o.tls_cert = "a certificate without its key");
    REFUSED(o.tls_name = "");
    REFUSED((o.cluster = true, o.master_name = "m"));
    REFUSED((o.cluster = true, o.unix_path = "/x"));
    REFUSED((o.master_name = "m", o.unix_path = "/x"));
    REFUSED(o.master_name = "");
    REFUSED(o.sentinel_user = "a user without a password");
    REFUSED((o.credentials = no_credentials, o.password = "of two one"));
    REFUSED(o.client_name = "");
    REFUSED(o.client_name = "two words");
    REFUSED(o.client_name = "two\nlines");
    REFUSED(o.ttl_min_ms = UINT64_C(1) << 53);
    REFUSED(o.ttl_max_ms = UINT64_C(1) << 53);
    REFUSED(o.host = "");
    REFUSED(o.host = "a,b");
    memset(path, 'p', sizeof path);
    path[104] = 0;
    REFUSED(o.unix_path = path);
    path[103] = 0;
    o = none;
    o.unix_path = path;
    o.ttl_min_ms = o.ttl_max_ms = (UINT64_C(1) << 53) - 1;
    ratelimit_redis_close(ratelimit_redis_open(&o, &status));
    CHECK_U64(status, RATELIMIT_OK);
    o = none;
    o.tls = true; /* not compiled in here */
    CHECK(ratelimit_redis_open(&o, &status) == NULL);
    CHECK_U64(status, RATELIMIT_UNSUPPORTED);
    ratelimit_redis_close(NULL);
}

static void null_anywhere_is_a_bad_argument(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r), none = ratelimit_redis_store(NULL);
    ratelimit_request q = server_request("k", &hourly, RATELIMIT_TAKE, 1);
    ratelimit_result res[RATELIMIT_MAX_ALL + 1];
    char text[4] = "...";
    server_flush();
    store.decide(&store, NULL, res, 1, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    store.decide(&store, &q, res, 1, (ratelimit_mode)7);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    store.decide(&store, &q, res, RATELIMIT_MAX_ALL + 1, RATELIMIT_ALL);
    CHECK_U64(res[RATELIMIT_MAX_ALL].status, RATELIMIT_BAD_ARGUMENT);
    store.decide(&store, &q, NULL, 1, RATELIMIT_EACH);
    store.decide(&store, &q, res, 0, RATELIMIT_EACH);
    none.decide(&none, &q, res, 1, RATELIMIT_EACH);
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_redis_ping(NULL), RATELIMIT_BAD_ARGUMENT);
    ratelimit_redis_stats(r, NULL);
    CHECK_TEXT(ratelimit_redis_error(r, NULL, 4), "");
    CHECK_TEXT(ratelimit_redis_error(r, text, 0), "");
    CHECK_TEXT(ratelimit_redis_error(NULL, text, 4), "");
    CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 99); /* nothing was taken before */
    ratelimit_redis_close(r);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* B55: with Redis down each request waited for the whole timeout. */
static void a_hundred_takes_do_not_wait_a_hundred_timeouts(const int port)
{
    ratelimit_redis_options options = server_options();
    uint64_t start = ratelimit_clock_ns();
    ratelimit_redis *r;
    int i;
    options.port = port;
    options.timeout_ms = 50;
    r = server_open(&options);
    for (i = 0; i < 100; i++)
        CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(server_ms_since(start) < 500);
    CHECK(*server_error(r) != 0);
    ratelimit_redis_close(r);
}

static void where_nobody_listens_takes_fail_at_once(void)
{
    int port, fd = canned_listen(&port);
    close(fd);
    a_hundred_takes_do_not_wait_a_hundred_timeouts(port);
}

static void where_nobody_answers_only_the_first_take_waits(void)
{
    canned c;
    canned_open(&c, NULL);
    a_hundred_takes_do_not_wait_a_hundred_timeouts(c.port);
    canned_close(&c);
}

/* The backlog is full: no connection is made, and none is refused. */
static void where_no_connection_is_accepted_the_connect_timeout_counts(void)
{
    ratelimit_redis_options options = server_options();
    int filler[4], i, fd = canned_listen(&options.port);
    uint64_t start;
    ratelimit_redis *r;
    listen(fd, 0);
    for (i = 0; i < 4; i++) {
        struct sockaddr_in address;
        memset(&address, 0, sizeof address);
        address.sin_family = AF_INET;
        address.sin_port = htons((uint16_t)options.port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        filler[i] = socket(AF_INET, SOCK_STREAM, 0);
        fcntl(filler[i], F_SETFL, O_NONBLOCK);
        (void)connect(filler[i], (struct sockaddr *)(void *)&address, sizeof address);
    }
    options.connect_timeout_ms = 60;
    options.timeout_ms = 2000;
    r = server_open(&options);
    start = ratelimit_clock_ns();
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "no connection in time") != NULL);
    CHECK(server_ms_since(start) >= 59 && server_ms_since(start) < 1000);
    ratelimit_redis_close(r);
    for (i = 0; i < 4; i++)
        close(filler[i]);
    close(fd);
}

static void it_recovers_by_itself(void)
{
    ratelimit_redis *r = open_with_timeout(50);
    uint64_t start;
    server_flush();
    kill(server_number("REDIS_PID"), SIGSTOP);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    kill(server_number("REDIS_PID"), SIGCONT);
    start = ratelimit_clock_ns();
    while (!server_take(r, "k", &hourly, 1).allowed && server_ms_since(start) < 2000)
        server_sleep_ms(5);
    CHECK(server_ms_since(start) < 1000);
    ratelimit_redis_close(r);
}

/* B56: the late reply of one command answered the next. */
static void a_late_reply_answers_nobody(void)
{
    static const ratelimit_limit b = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_MINUTE, 7, 1);
    static const unsigned pauses_ms[] = {120, 500}; /* before the late reply comes, and after */
    ratelimit_redis *r = open_with_timeout(200);
    ratelimit_result res;
    int i;
    for (i = 0; i < 2; i++) {
        server_flush();
        CHECK(server_take(r, "a", &hourly, 1).allowed);
        CHECK(server_do(server_port(), "CLIENT PAUSE 400 ALL"));
        CHECK_U64(server_take(r, "a", &hourly, 1).status, RATELIMIT_STORE_FAILED);
        CHECK(strstr(server_error(r), "no answer in time") != NULL);
        server_sleep_ms(pauses_ms[i]);
        res = server_take(r, "b", &b, 2);
        CHECK(res.allowed);
        CHECK_U64(res.burst, 7);
        CHECK_U64(res.remaining, 5);
    }
    ratelimit_redis_close(r);
}

/* B57: a timeout set once was gone after reconnecting. */
static void timeouts_survive_a_reconnect(void)
{
    ratelimit_redis *r = open_with_timeout(300);
    uint64_t start;
    server_flush();
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "CLIENT KILL TYPE normal SKIPME yes"));
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "CLIENT PAUSE 800 ALL"));
    start = ratelimit_clock_ns();
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(server_ms_since(start) >= 290 && server_ms_since(start) < 400);
    server_sleep_ms(700);
    ratelimit_redis_close(r);
}

/* B58: on any store error everything was allowed, and nobody had chosen that. */
static void each_failure_policy_decides_as_chosen_and_says_so(void)
{
    static const ratelimit_limit three = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 3, 1);
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100)];
    static const uint64_t want[] = {10, 0, 3};
    ratelimit_table *table;
    int policy, i, port, fd = canned_listen(&port);
    close(fd);
    CHECK_U64(ratelimit_table_init(&table, memory, sizeof memory, NULL), RATELIMIT_OK);
    for (policy = 0; policy < 3; policy++) {
        ratelimit_redis_options options = server_options();
        ratelimit_limiter limiter;
        ratelimit_redis *r;
        uint64_t allowed = 0;
        options.port = port;
        r = server_open(&options);
        memset(&limiter, 0, sizeof limiter);
        limiter.on_failure = (ratelimit_failure)policy;
        limiter.fallback = ratelimit_table_store(table, NULL, NULL);
        CHECK_U64(ratelimit_init(&limiter, ratelimit_redis_store(r)), RATELIMIT_OK);
        for (i = 0; i < 10; i++) {
            ratelimit_request q = server_request("k", &three, RATELIMIT_TAKE, 1);
            ratelimit_result res;
            allowed += ratelimit_take(&limiter, &q, &res);
            CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        }
        CHECK_U64(allowed, want[policy]);
        ratelimit_close(&limiter);
        ratelimit_redis_close(r);
    }
}

static void a_charge_in_doubt_is_not_sent_again(void)
{
    ratelimit_redis *r = open_with_timeout(60);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q[10];
    ratelimit_result res[10];
    uint64_t left;
    int i;
    server_flush();
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    for (i = 0; i < 10; i++)
        q[i] = server_request("k", &hourly, RATELIMIT_CHARGE, 1);
    CHECK(server_do(server_port(), "CLIENT PAUSE 200 ALL"));
    store.decide(&store, q, res, 10, RATELIMIT_EACH);
    for (i = 0; i < 10; i++)
        CHECK_U64(res[i].status, RATELIMIT_STORE_FAILED);
    server_sleep_ms(300);
    left = server_decide(r, "k", &hourly, RATELIMIT_PEEK, 1).remaining;
    CHECK(left == 99 || left == 89); /* all of them or none, and none of them twice */
    ratelimit_redis_close(r);
}

static void a_server_that_hangs_up_does_not_kill_the_process(void)
{
    enum {
        MANY = 1000
    }; /* more than is sent at once, so that sending meets the closed connection */
    static ratelimit_request q[MANY];
    static ratelimit_result res[MANY];
    static char long_key[10000];
    ratelimit_redis_options options;
    int i, j;
    for (j = 0; j < MANY; j++) {
        q[j] = server_request("", &hourly, RATELIMIT_TAKE, 1);
        q[j].key = long_key;
        q[j].key_len = sizeof long_key;
    }
    for (i = 0; i < 20; i++) {
        ratelimit_store store;
        ratelimit_redis *r;
        canned c;
        canned_open(&c, "");
        memset(&options, 0, sizeof options);
        options.port = c.port;
        r = server_open(&options);
        store = ratelimit_redis_store(r);
        store.decide(&store, q, res, MANY, RATELIMIT_EACH);
        for (j = 0; j < MANY; j++)
            CHECK_U64(res[j].status, RATELIMIT_STORE_FAILED);
        CHECK(*server_error(r) != 0);
        ratelimit_redis_close(r);
        canned_close(&c);
    }
}

static void what_is_no_redis_is_said_to_be_none(void)
{
    CHECK(strstr(canned_error("HTTP/1.1 400 Bad Request\r\n\r\n"), "not Redis' protocol") != NULL);
    CHECK(strstr(canned_error("$5\r\nhel"), "no answer in time") != NULL);
    CHECK(strstr(canned_error("+OK\r\n"), "makes no sense") != NULL);
    CHECK(strstr(canned_error(":-7\r\n"), "makes no sense") != NULL);
    CHECK(strstr(canned_error("*0\r\n"), "makes no sense") != NULL);
    CHECK(strstr(canned_error("*1\r\n:5\r\n"), "makes no sense") != NULL);
    CHECK(strstr(canned_error("*2\r\n$3\r\nxyz\r\n:5\r\n"), "something else") != NULL);
    CHECK(strstr(canned_error("*-1\r\n"), "makes no sense") != NULL);
    CHECK(strstr(canned_error("-NOSCRIPT no\r\n"), "forgetting") != NULL);
}

static void errors_are_said_in_words(void)
{
    static const char *const says[][2] = {
        {"-LOADING Redis is loading the dataset in memory\r\n", "loading its data"},
        {"-MASTERDOWN Link with MASTER is down\r\n", "lost its master"},
        {"-MISCONF Redis is configured to save RDB snapshots\r\n", "can't save to disk"},
        {"-NOREPLICAS Not enough good replicas to write.\r\n", "replicas"},
        {"-DENIED Redis is running in protected mode\r\n", "protected mode"},
        {"-ERR max number of clients reached\r\n", "too many clients"},
        {"-MOVED 12 127.0.0.1:7000\r\n", "set options.cluster"},
        {"-ERR Error running script (call to f_0): @user_script:1: WRONGTYPE Operation\r\n",
         "holds something else"},
        {"-ERR something new\r\n", "something new"}};
    size_t i;
    for (i = 0; i < sizeof says / sizeof says[0]; i++)
        CHECK(strstr(canned_error(says[i][0]), says[i][1]) != NULL);
}

static void errors_name_the_place_and_end_with_the_reason(void)
{
    ratelimit_redis_options options = server_options();
    char host[251], text[200], few[9];
    ratelimit_redis *r;
    memset(host, 'h', sizeof host - 1);
    host[sizeof host - 1] = '\0';
    options.host = host;
    r = server_open(&options);
    CHECK_TEXT(server_error(r), "");
    ratelimit_priv_redis_say_at(r, r->nodes, "the reason of a failure, of a length that is common");
    CHECK(strstr(server_error(r), "hhhh") == server_error(r));
    CHECK(strstr(server_error(r), ": the reason of a failure, of a length that is common"));
    CHECK_TEXT(ratelimit_redis_error(r, text, sizeof text), server_error(r));
    CHECK_TEXT(ratelimit_redis_error(r, few, sizeof few), "hhhhhhhh");
    CHECK_TEXT(ratelimit_redis_error(r, few, 0), "");
    CHECK_TEXT(ratelimit_redis_error(NULL, few, sizeof few), "");
    ratelimit_redis_close(r);
    options = server_options();
    options.unix_path = getenv("REDIS_SOCKET");
    options.timeout_ms = 50;
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_OK);
    CHECK(server_do(server_port(), "CLIENT PAUSE 100 ALL"));
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    (void)snprintf(text, sizeof text, "%s: no answer in time", options.unix_path);
    CHECK_TEXT(server_error(r), text);
    server_sleep_ms(110);
    ratelimit_redis_close(r);
}

static void a_missing_or_wrong_password_is_said(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r, *wrong, *old;
    options.cool_down_ms = 1;
    r = server_open(&options);
    options.password = "wrong";
    wrong = server_open(&options);
    old = server_open(&options);
    CHECK_U64(server_take(old, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(old), "password") != NULL);
    CHECK(server_do(server_port(), "CONFIG SET requirepass right"));
    CHECK(server_do(server_port(), "AUTH right"));
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "set options.password") != NULL);
    CHECK_U64(server_take(wrong, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(wrong), "does not accept") != NULL);
    CHECK(server_do(server_port(), "CONFIG SET requirepass %s", ""));
    ratelimit_redis_close(r);
    ratelimit_redis_close(wrong);
    ratelimit_redis_close(old);
}

static void a_user_without_permission_is_told_what_is_needed(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    CHECK(server_do(server_port(), "ACL SETUSER poor on >secret ~other:* +@all"));
    options.user = "poor";
    options.password = "secret";
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "permissions") != NULL);
    CHECK(server_do(server_port(), "ACL DELUSER poor"));
    ratelimit_redis_close(r);
}

static void a_server_out_of_memory_still_refuses_and_peeks(void)
{
    static const ratelimit_limit one = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    server_flush();
    CHECK(server_take(r, "k", &one, 1).allowed);
    CHECK(server_do(server_port(), "CONFIG SET maxmemory 1"));
    CHECK_U64(server_take(r, "k", &one, 1).status, RATELIMIT_DENIED);
    CHECK_U64(server_decide(r, "other", &one, RATELIMIT_PEEK, 1).status, RATELIMIT_OK);
    CHECK_U64(server_take(r, "other", &one, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "maxmemory") != NULL);
    CHECK(server_do(server_port(), "CONFIG SET maxmemory 0"));
    CHECK(server_take(r, "other", &one, 1).allowed);
    ratelimit_redis_close(r);
}

static void what_somebody_else_keeps_under_a_key_is_left_alone(void)
{
    static const char *const values[] = {"7", "hello", "0123456789012345678901234567890123456789",
                                         "01234567890123456789", "01234567890123456789012345"};
    static const ratelimit_limit seventh = RATELIMIT_LIMIT_SCOPE(7, RATELIMIT_HOUR, 5, 1);
    static const ratelimit_op ops[] = {RATELIMIT_TAKE, RATELIMIT_PEEK, RATELIMIT_REFUND,
                                       RATELIMIT_TAKE_UP_TO, RATELIMIT_BLOCK};
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_store store = ratelimit_redis_store(r);
    size_t i, j;
    for (i = 0; i < sizeof values / sizeof values[0]; i++)
        for (j = 0; j < 2 * sizeof ops / sizeof ops[0]; j++) {
            ratelimit_request q = server_request("k", j % 2 ? &seventh : &hourly, ops[j / 2], 1);
            ratelimit_result res;
            redisReply *reply;
            q.max_wait_ns = 1;
            server_flush();
            CHECK(server_do(server_port(), "SET ratelimit:b{k}00000001 %s", values[i]));
            store.decide(&store, &q, &res, 1, j & 1 ? RATELIMIT_ALL : RATELIMIT_EACH);
            CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
            CHECK(strstr(server_error(r), "something else") != NULL);
            reply = server_ask(server_port(), "GET ratelimit:b{k}00000001");
            CHECK(reply && reply->str && strcmp(reply->str, values[i]) == 0);
            freeReplyObject(reply);
        }
    server_flush();
    CHECK(server_do(server_port(), "LPUSH ratelimit:b{k}00000001 x"));
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "something else") != NULL);
    CHECK_U64(server_int(server_port(), "LLEN ratelimit:b{k}00000001"), 1);
    ratelimit_redis_close(r);
}

static void a_master_that_became_a_replica_is_said_to_be_one(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    server_flush();
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    CHECK(server_do(server_port(), "REPLICAOF 127.0.0.1 1"));
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "replica") != NULL);
    CHECK(server_do(server_port(), "REPLICAOF NO ONE"));
    server_sleep_ms(60);
    CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 98);
    ratelimit_redis_close(r);
}

static void a_server_busy_with_a_script_is_said_to_be_busy(void)
{
    ratelimit_redis *r = open_with_timeout(1000);
    redisContext *other = redisConnect("127.0.0.1", server_port());
    uint64_t start;
    server_flush();
    CHECK(server_do(server_port(), "CONFIG SET lua-time-limit 10"));
    CHECK(redisAppendCommand(other, "EVAL %s 0", "while true do end") == REDIS_OK);
    while (other->obuf && *other->obuf) {
        int done;
        redisBufferWrite(other, &done);
        if (done)
            break;
    }
    server_sleep_ms(50);
    start = ratelimit_clock_ns();
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "busy") != NULL);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(server_ms_since(start) < 500);
    CHECK(server_do(server_port(), "SCRIPT KILL"));
    start = ratelimit_clock_ns();
    while (server_int(server_port(), "DBSIZE") < 0 && server_ms_since(start) < 2000)
        server_sleep_ms(5);
    CHECK(server_do(server_port(), "CONFIG SET lua-time-limit 5000"));
    server_sleep_ms(60);
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    redisFree(other);
    ratelimit_redis_close(r);
}

/* ---- threads and forks ----------------------------------------------------------------------- */

typedef struct crowd {
    ratelimit_redis *r;
    const ratelimit_limit *limit;
    int takes, allowed, failed;
} crowd;

static void *crowd_run(void *self)
{
    crowd *c = (crowd *)self;
    int i;
    for (i = 0; i < c->takes; i++) {
        ratelimit_result res = server_take(c->r, "k", c->limit, 1);
        c->allowed += res.allowed;
        c->failed += res.status == RATELIMIT_STORE_FAILED;
    }
    return NULL;
}

/* Runs 16 threads; *failed gets the number of takes that failed; returns what was allowed. */
static int crowd_take(ratelimit_redis *r, const ratelimit_limit *limit, int takes, int *failed)
{
    pthread_t thread[16];
    crowd c[16];
    int i, allowed = 0;
    *failed = 0;
    for (i = 0; i < 16; i++) {
        memset(&c[i], 0, sizeof c[i]);
        c[i].r = r;
        c[i].limit = limit;
        c[i].takes = takes;
        if (pthread_create(&thread[i], NULL, crowd_run, &c[i]) != 0)
            exit(2);
    }
    for (i = 0; i < 16; i++) {
        pthread_join(thread[i], NULL);
        allowed += c[i].allowed;
        *failed += c[i].failed;
    }
    return allowed;
}

/* B40 on Redis: under load the compare-and-swap gave up, or the count went below zero. */
static void sixteen_threads_get_exactly_what_is_there(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1000, 1);
    static const ratelimit_limit other = RATELIMIT_LIMIT_SCOPE(1, 2 * RATELIMIT_HOUR, 1200, 1);
    static const ratelimit_limit longest = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_DAY, 1300, 1);
    ratelimit_redis *r = open_with_timeout(5000);
    int failed;
    server_flush();
    CHECK_U64(crowd_take(r, &limit, 100, &failed), 1000);
    CHECK_U64(failed, 0);
    CHECK_U64(crowd_take(r, &other, 100, &failed), 200); /* all meet the changed limit at once */
    CHECK_U64(failed, 0);
    /* Its debt is beyond 2^53 ns: read here, decided, and put if nobody was faster. */
    CHECK_U64(crowd_take(r, &longest, 10, &failed), 100);
    CHECK_U64(failed, 0);
    ratelimit_redis_close(r);
}

static uint64_t connects_of(ratelimit_redis *r)
{
    ratelimit_redis_counts n;
    ratelimit_redis_stats(r, &n);
    return n.connects;
}

/* Lets the server go on when r has as many connections as it wants, or after 5 s. */
static void *resume_when_two_are_open(void *self)
{
    ratelimit_redis_counts n;
    int ms;
    for (ms = 0; ms < 5000; ms += 10) {
        ratelimit_redis_stats((ratelimit_redis *)self, &n);
        if (n.connections >= 2)
            break;
        poll(NULL, 0, 10);
    }
    kill(server_number("REDIS_PID"), SIGCONT);
    return NULL;
}

/* While the server is stopped the first thread's connection is busy, so another is needed. */
static void a_pool_of_two_serves_sixteen_threads_with_two_connections(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1000, 1);
    ratelimit_redis_options options = server_options();
    ratelimit_redis_counts n;
    ratelimit_redis *r;
    pthread_t resumes;
    int failed;
    options.pool_size = 2;
    options.timeout_ms = options.connect_timeout_ms = 20000;
    r = server_open(&options);
    server_flush();
    kill(server_number("REDIS_PID"), SIGSTOP);
    if (pthread_create(&resumes, NULL, resume_when_two_are_open, r) != 0)
        exit(2);
    CHECK_U64(crowd_take(r, &limit, 50, &failed), 800);
    CHECK_U64(failed, 0);
    pthread_join(resumes, NULL);
    ratelimit_redis_stats(r, &n);
    CHECK_U64(n.connections, 2);
    CHECK_U64(n.connects, 2); /* none was closed and made again */
    ratelimit_redis_close(r);
}

/* One thread looked at its clock, and had to wait for the pool; then another gave back what it had
 * heard of after that. It was taken to be idle for 500 years. */
static void a_connection_that_was_heard_of_just_now_is_not_too_old(void)
{
    ratelimit_redis *r = open_with_timeout(5000);
    CHECK(server_take(r, "k", &hourly, 1).status != RATELIMIT_STORE_FAILED);
    r->nodes->idle->heard_ns = ratelimit_clock_ns() + RATELIMIT_SECOND;
    CHECK(server_take(r, "k", &hourly, 1).status != RATELIMIT_STORE_FAILED);
    CHECK_U64(connects_of(r), 1);
    ratelimit_redis_close(r);
}

static void a_child_process_does_not_share_its_parents_connection(void)
{
    ratelimit_redis *r = open_with_timeout(5000);
    uint64_t before;
    int status = 0, i, good = 1;
    pid_t child;
    server_flush();
    CHECK(server_take(r, "k", &hourly, 1).allowed);
    before = connects_of(r);
    child = fork(); /* one after the other, then both at once */
    if (child == 0)
        _exit(server_take(r, "first child", &hourly, 1).allowed && connects_of(r) == before + 1
                  ? 0
                  : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    child = fork();
    if (child == 0) {
        for (i = 0; i < 200; i++)
            good = good && server_take(r, "child", &hourly, 1).burst == 100;
        _exit(good && connects_of(r) == before + 1 ? 0 : 1);
    }
    for (i = 0; i < 200; i++)
        good = good && server_decide(r, "k", &hourly, RATELIMIT_PEEK, 1).remaining == 99;
    CHECK(good);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_U64(connects_of(r), before);
    CHECK_U64(server_decide(r, "child", &hourly, RATELIMIT_PEEK, 1).remaining, 0);
    ratelimit_redis_close(r);
}

static void waiting_reserves_with_one_round_trip(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, 20 * RATELIMIT_MILLISECOND, 1, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_limiter limiter;
    ratelimit_request q = server_request("k", &limit, RATELIMIT_TAKE, 1);
    ratelimit_result res;
    memset(&limiter, 0, sizeof limiter);
    CHECK_U64(ratelimit_init(&limiter, ratelimit_redis_store(r)), RATELIMIT_OK);
    server_flush();
    CHECK(ratelimit_take(&limiter, &q, NULL));
    CHECK(ratelimit_wait(&limiter, &q, RATELIMIT_SECOND, &res));
    CHECK(res.wait_ns > 0 && res.wait_ns <= 20 * RATELIMIT_MILLISECOND);
    CHECK(!ratelimit_wait(&limiter, &q, RATELIMIT_MILLISECOND, &res));
    CHECK_U64(res.status, RATELIMIT_TIMEOUT);
    ratelimit_close(&limiter);
    ratelimit_redis_close(r);
}

static bool cancels(void *self, uint64_t ns)
{
    (void)self;
    (void)ns;
    return false;
}

/* By a real clock the rest of the wait comes out too short where the request took longer to the
 * server than the cancel did: then nothing is given back, to be on the safe side. That was
 * chance. */
static uint64_t stopped_clock(void *self)
{
    (void)self;
    return RATELIMIT_DAY;
}

static void a_cancelled_wait_gives_back_what_it_reserved(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
    ratelimit_redis *r = open_with_timeout(1000);
    ratelimit_limiter limiter;
    ratelimit_request q = server_request("k", &limit, RATELIMIT_TAKE, 1);
    ratelimit_result res;
    memset(&limiter, 0, sizeof limiter);
    limiter.sleep = cancels;
    limiter.clock = stopped_clock;
    CHECK_U64(ratelimit_init(&limiter, ratelimit_redis_store(r)), RATELIMIT_OK);
    server_flush();
    CHECK(ratelimit_take(&limiter, &q, NULL));
    CHECK(!ratelimit_wait(&limiter, &q, 3 * RATELIMIT_HOUR, &res));
    CHECK_U64(res.status, RATELIMIT_CANCELED);
    (void)ratelimit_take(&limiter, &q, &res);
    CHECK(res.status == RATELIMIT_DENIED && res.retry_after_ns <= RATELIMIT_HOUR);
    ratelimit_close(&limiter);
    ratelimit_redis_close(r);
}

/* ---- the tier in front ----------------------------------------------------------------------- */

static uint64_t tier_calls(ratelimit_tier *tier)
{
    ratelimit_tier_counts counts;
    ratelimit_tier_stats(tier, &counts);
    return counts.calls;
}

static void two_nodes_with_leases_never_pass_more_than_the_limit(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1000, 1);
    static unsigned char memory[2][RATELIMIT_TABLE_BYTES(100)];
    static ratelimit_tier tier[2];
    ratelimit_request q = server_request("k", &limit, RATELIMIT_TAKE, 1);
    ratelimit_redis *r[2];
    ratelimit_result res;
    uint64_t allowed = 0, calls;
    int i;
    server_flush();
    for (i = 0; i < 2; i++) {
        r[i] = open_with_timeout(1000);
        tier[i].store = ratelimit_redis_store(r[i]);
        tier[i].lease_percent = 10;
        CHECK_U64(ratelimit_table_init(&tier[i].table, memory[i], sizeof memory[i], NULL),
                  RATELIMIT_OK);
    }
    for (i = 0; i < 3000; i++) {
        ratelimit_store store = ratelimit_tier_store(&tier[i % 2]);
        store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
        allowed += res.allowed;
    }
    CHECK(!res.allowed);
    CHECK(allowed <= 1000 && allowed >= 500); /* a slow machine loses leases to their end */
    calls = tier_calls(&tier[0]) + tier_calls(&tier[1]);
    CHECK(calls < 600); /* of 3000 decisions */
    ratelimit_redis_close(r[0]);
    ratelimit_redis_close(r[1]);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(a_take_is_one_key_with_the_prefix_that_expires);
    RUN(keys_live_as_long_as_their_debt_and_not_a_thousand_times_longer);
    RUN(keys_never_expire_before_their_debt_is_gone);
    RUN(a_limit_faster_than_a_millisecond_still_limits);
    RUN(a_key_that_lost_its_expiry_gets_one_at_the_next_take);
    RUN(small_steps_on_a_large_time_are_all_counted);
    RUN(a_refusal_and_a_peek_write_nothing);
    RUN(keys_are_any_bytes);
    RUN(an_empty_key_is_refused_without_asking);
    RUN(the_bounds_of_the_time_to_live_are_kept);
    RUN(the_servers_clock_counts);
    RUN(all_or_none_is_one_call_and_charges_nobody_when_one_is_refused);
    RUN(one_throttled_user_does_not_use_up_what_all_share);
    RUN(stacked_limits_count_only_what_both_let_through);
    RUN(a_mistake_in_a_batch_charges_nobody);
    RUN(one_that_fails_among_many_leaves_the_others_alone);
    RUN(many_takes_are_commands_of_sixty_four);
    RUN(one_of_a_command_differs_from_the_others);
    RUN(reservations_of_a_command_are_decided_each_for_itself);
    RUN(a_key_not_permitted_fails_alone);
    RUN(a_command_not_permitted_is_said);
    RUN(nothing_is_sent_when_the_time_is_over);
    RUN(a_connection_keeps_little_memory_and_is_not_inherited);
    RUN(a_debt_near_the_longest_is_read_again);
    RUN(a_thousand_and_more_requests_at_once_are_all_answered);
    RUN(a_raised_limit_helps_at_once);
    RUN(a_flushed_script_cache_charges_each_token_exactly_once);
    RUN(scripts_are_named_by_their_sha1);
    RUN(a_unix_socket_serves_as_well);
    RUN(user_password_and_database_are_restored_after_a_reconnect);
    RUN(zero_is_the_default_of_each_option);
    RUN(options_out_of_range_are_refused);
    RUN(null_anywhere_is_a_bad_argument);
    RUN(where_nobody_listens_takes_fail_at_once);
    RUN(where_nobody_answers_only_the_first_take_waits);
    RUN(where_no_connection_is_accepted_the_connect_timeout_counts);
    RUN(it_recovers_by_itself);
    RUN(a_late_reply_answers_nobody);
    RUN(timeouts_survive_a_reconnect);
    RUN(each_failure_policy_decides_as_chosen_and_says_so);
    RUN(a_charge_in_doubt_is_not_sent_again);
    RUN(a_server_that_hangs_up_does_not_kill_the_process);
    RUN(what_is_no_redis_is_said_to_be_none);
    RUN(errors_are_said_in_words);
    RUN(errors_name_the_place_and_end_with_the_reason);
    RUN(a_missing_or_wrong_password_is_said);
    RUN(a_user_without_permission_is_told_what_is_needed);
    RUN(a_server_out_of_memory_still_refuses_and_peeks);
    RUN(what_somebody_else_keeps_under_a_key_is_left_alone);
    RUN(a_master_that_became_a_replica_is_said_to_be_one);
    RUN(a_server_busy_with_a_script_is_said_to_be_busy);
    RUN(sixteen_threads_get_exactly_what_is_there);
    RUN(a_pool_of_two_serves_sixteen_threads_with_two_connections);
    RUN(a_connection_that_was_heard_of_just_now_is_not_too_old);
    RUN(a_child_process_does_not_share_its_parents_connection);
    RUN(waiting_reserves_with_one_round_trip);
    RUN(a_cancelled_wait_gives_back_what_it_reserved);
    RUN(two_nodes_with_leases_never_pass_more_than_the_limit);
    return check_end();
}

/* test_replies.c - answers that no server should give: a proxy before a real one replaces the
 * answer to one request. What was asked fails with a reason, soon, and the request after it has its
 * own answer. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "proxy.h"
#include "server.h"

static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1000000, 1);
static const ratelimit_limit sevenths = RATELIMIT_LIMIT_SCOPE(7, RATELIMIT_HOUR, 1000, 2);
static const ratelimit_limit window = RATELIMIT_WINDOW(1000, RATELIMIT_HOUR);

static proxy p;
static ratelimit_redis *r;

static ratelimit_redis_options options_of_test(int port)
{
    ratelimit_redis_options options;
    memset(&options, 0, sizeof options);
    options.port = port;
    options.timeout_ms = options.connect_timeout_ms = 2000;
    options.cool_down_ms = 1;
    return options;
}

static void begin(void)
{
    ratelimit_redis_options options;
    proxy_open(&p, server_port());
    options = options_of_test(p.port);
    r = server_open(&options);
}

static void end(void)
{
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* From now on the answers to requests with these words in them are this one; NULL: the server's. */
static void instead(const char *words, const char *answer)
{
    p.words = words;
    p.replaced = 0;
    p.instead = answer;
}

/* ---- what can be asked ----------------------------------------------------------------------- */

static ratelimit_redis_permit permit;
static ratelimit_redis_held held;

static ratelimit_status decide(const ratelimit_limit *limit, ratelimit_op op, uint64_t n)
{
    return server_decide(r, "k", limit, op, n).status;
}

static ratelimit_status take(void)
{
    return decide(&hourly, RATELIMIT_TAKE, 1);
}

static ratelimit_status take_a_part(void)
{
    return decide(&sevenths, RATELIMIT_TAKE, 1);
}

static ratelimit_status take_of_a_window(void)
{
    return decide(&window, RATELIMIT_TAKE, 1);
}

static ratelimit_status reserve(void)
{
    return decide(&hourly, RATELIMIT_RESERVE, 1);
}

static ratelimit_status refund(void)
{
    return decide(&hourly, RATELIMIT_REFUND, 1);
}

static ratelimit_status block(void)
{
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q = server_request("k", &sevenths, RATELIMIT_BLOCK, 0);
    ratelimit_result res;
    q.max_wait_ns = RATELIMIT_SECOND;
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
    return res.status;
}

static ratelimit_status two(ratelimit_mode mode)
{
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q[2];
    ratelimit_result res[2];
    q[0] = server_request("a", &hourly, RATELIMIT_TAKE, 1);
    q[1] = server_request("b", mode == RATELIMIT_ALL ? &sevenths : &hourly, RATELIMIT_TAKE, 1);
    store.decide(&store, q, res, 2, mode);
    return res[0].status ? res[0].status : res[1].status;
}

static ratelimit_status take_each(void)
{
    return two(RATELIMIT_EACH);
}

static ratelimit_status take_all(void)
{
    return two(RATELIMIT_ALL);
}

static ratelimit_status count(void)
{
    ratelimit_result res;
    (void)ratelimit_redis_window(r, "w", 1, 1000, 60000, 1, &res);
    return res.status;
}

static ratelimit_status slide(void)
{
    ratelimit_result res;
    (void)ratelimit_redis_sliding(r, "s", 1, 1000, 60000, 1, &res);
    return res.status;
}

static ratelimit_status acquire_plain(void)
{
    return ratelimit_redis_acquire_plain(r, "p", 1, 1000, 60000);
}

static ratelimit_status acquire(void)
{
    return ratelimit_redis_acquire(r, "m", 1, 1000, 60000, 0, 0, &permit, NULL);
}

static ratelimit_status extend(void)
{
    return ratelimit_redis_extend(r, "m", 1, &permit, 60000);
}

static ratelimit_status release(void)
{
    return ratelimit_redis_release(r, "m", 1, &permit, 1, NULL);
}

static ratelimit_status lock(void)
{
    return ratelimit_redis_lock(r, "l", 1, 60000, 0, &held);
}

static ratelimit_status renew(void)
{
    return ratelimit_redis_renew(r, "l", 1, &held, 60000);
}

static ratelimit_status unlock(void)
{
    return ratelimit_redis_unlock(r, "l", 1, &held);
}

static ratelimit_status ping(void)
{
    return ratelimit_redis_ping(r);
}

static const struct {
    const char *name, *words;
    ratelimit_status (*ask)(void);
} calls[] = {{"take", "EVALSHA", take},
             {"take of a limit with parts", "EVALSHA", take_a_part},
             {"take of a window", "EVALSHA", take_of_a_window},
             {"reserve", "EVALSHA", reserve},
             {"refund", "EVALSHA", refund},
             {"block", "EVALSHA", block},
             {"each", "EVALSHA", take_each},
             {"all", "EVALSHA", take_all},
             {"window", "EVALSHA", count},
             {"sliding", "EVALSHA", slide},
             {"acquire_plain", "EVALSHA", acquire_plain},
             {"acquire", "EVALSHA", acquire},
             {"extend", "EVALSHA", extend},
             {"release", "EVALSHA", release},
             {"lock", "EVALSHA", lock},
             {"renew", "EVALSHA", renew},
             {"unlock", "EVALSHA", unlock},
             {"ping", "PING", ping}};

/* Of the right kind at first sight, or not at all. */
static const char *const odd[] = {
    "$-1\r\n",
    "$3\r\nabc\r\n",
    "$40\r\n0123456789012345678901234567890123456789\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*1\r\n$3\r\nabc\r\n",
    "*2\r\n$3\r\nabc\r\n$3\r\nabc\r\n",
    "*2\r\n$3\r\nabc\r\n:5\r\n",
    "*2\r\n:5\r\n$3\r\nabc\r\n",
    "*2\r\n*0\r\n:5\r\n",
    "*3\r\n:5\r\n:-5\r\n:5\r\n",
    "*3\r\n:5\r\n:5\r\n:99999999999\r\n",
    "*3\r\n:5\r\n$40\r\n0123456789012345678901234567890123456789\r\n:5\r\n",
    "*3\r\n:5\r\n$3\r\nabc\r\n:5\r\n",
    "*9\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
    "*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    "-ERR something that nobody has heard of\r\n",
    "-\r\n",
    "!what is this\r\n",
};

/* What a call needs. */
static void prepare(ratelimit_status (*ask)(void))
{
    server_flush();
    if (ask != acquire)
        CHECK_U64(acquire(), RATELIMIT_OK);
    if (ask != lock)
        CHECK_U64(lock(), RATELIMIT_OK);
}

/* So many numbers may be the answer to something. */
static bool only_numbers(const char *answer)
{
    return *answer == '*' && strpbrk(answer + 1, "$*") == NULL && strchr(answer, ':');
}

static void an_answer_that_makes_no_sense_fails_its_request_and_no_other(void)
{
    size_t i, j;
    begin();
    for (i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        prepare(calls[i].ask);
        CHECK_U64(calls[i].ask(), RATELIMIT_OK);
        for (j = 0; j < sizeof odd / sizeof odd[0]; j++) {
            uint64_t start = ratelimit_clock_ns();
            ratelimit_status status;
            prepare(calls[i].ask);
            instead(calls[i].words, odd[j]);
            status = calls[i].ask();
            p.instead = NULL;
            if ((p.replaced < 1 || !*server_error(r) ||
                 (status != RATELIMIT_STORE_FAILED && !only_numbers(odd[j]))) &&
                check_fault(__FILE__, __LINE__))
                printf("%s, answered %.*s: %s (%s), %d replaced\n", calls[i].name,
                       (int)strcspn(odd[j], "\r"), odd[j], ratelimit_status_text(status),
                       server_error(r), p.replaced);
            CHECK(server_ms_since(start) < 1500);
            server_sleep_ms(2); /* the cool-down */
            CHECK_U64(ping(), RATELIMIT_OK);
            CHECK_U64(server_take(r, "after", &sevenths, 1).burst, 1000);
        }
    }
    end();
}

/* ---- clusters -------------------------------------------------------------------------------- */

/* The cluster of one node behind the proxy; `slots` is its answer to where the slots are. */
static ratelimit_status take_of_a_cluster(const char *slots, const char *redirection)
{
    ratelimit_redis_options options = options_of_test(p.port);
    ratelimit_status status;
    options.cluster = true;
    options.timeout_ms = 300;
    r = server_open(&options);
    instead("SLOTS", slots);
    if (redirection) {
        CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_OK);
        instead("EVALSHA", redirection);
    }
    status = take();
    p.instead = NULL;
    return status;
}

static const char *slots_of(const char *host, const char *more)
{
    static char text[400];
    snprintf(text, sizeof text, "*1\r\n*3\r\n:0\r\n:16383\r\n*%d\r\n%s:%d\r\n%s", *more ? 4 : 2,
             host, p.port, more);
    return text;
}

static void a_map_that_makes_no_sense_is_none(void)
{
    static const char *const wrong[] = {
        "*0\r\n",
        "+OK\r\n",
        ":1\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*0\r\n",
        "*1\r\n*2\r\n:0\r\n:16383\r\n",
        "*1\r\n*3\r\n$1\r\n0\r\n:16383\r\n*0\r\n",
        "*1\r\n*3\r\n:0\r\n$1\r\n9\r\n*0\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*0\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n$4\r\n7000\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n:7\r\n:7000\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\n?\r\n:7000\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n*0\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n*2\r\n:1\r\n:2\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n:"
        "2\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n$"
        "0\r\n\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n*2\r\n$2\r\nip\r\n$"
        "1\r\n?\r\n",
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\n?\r\n:7000\r\n$2\r\nid\r\n"
        "*2\r\n$8\r\nhostname\r\n$1\r\nx\r\n",
    };
    static char too_long[400];
    size_t i;
    proxy_open(&p, server_number("SLOTS_PORT"));
    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_U64(take_of_a_cluster(wrong[i], NULL), RATELIMIT_STORE_FAILED);
        if (!strstr(server_error(r), "the cluster has no slots yet") &&
            check_fault(__FILE__, __LINE__))
            printf("map %u: %s\n", (unsigned)i, server_error(r));
        ratelimit_redis_close(r);
    }
    snprintf(too_long, sizeof too_long, "$300\r\n%0300d\r\n", 1); /* no host is so long */
    CHECK_U64(take_of_a_cluster(slots_of(too_long, ""), NULL), RATELIMIT_STORE_FAILED);
    ratelimit_redis_close(r);
    proxy_close(&p);
}

/* Empty or nil: the host that was asked. "?": the address beside it. */
static void a_map_may_name_hosts_in_several_ways(void)
{
    static const char *const right[][2] = {
        {"$9\r\n127.0.0.1\r\n", ""},
        {"$0\r\n\r\n", ""},
        {"$-1\r\n", ""},
        {"$1\r\n?\r\n",
         "$2\r\nid\r\n*4\r\n$8\r\nhostname\r\n$1\r\nx\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n"},
    };
    size_t i;
    proxy_open(&p, server_number("SLOTS_PORT"));
    for (i = 0; i < sizeof right / sizeof right[0]; i++) {
        CHECK_U64(take_of_a_cluster(slots_of(right[i][0], right[i][1]), NULL), RATELIMIT_OK);
        ratelimit_redis_close(r);
    }
    proxy_close(&p);
}

static void a_redirection_that_makes_no_sense_ends_with_a_reason(void)
{
    static const char *const wrong[] = {"-MOVED\r\n",
                                        "-MOVED 1\r\n",
                                        "-MOVED 1 127.0.0.1\r\n",
                                        "-MOVED 99999 127.0.0.1:1\r\n",
                                        "-MOVED 1 ?:1\r\n",
                                        "-ASK\r\n",
                                        "-ASK 1\r\n"};
    size_t i;
    proxy_open(&p, server_number("SLOTS_PORT"));
    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint64_t start = ratelimit_clock_ns();
        (void)take_of_a_cluster(slots_of("$0\r\n\r\n", ""), wrong[i]);
        CHECK(p.replaced > 0);
        CHECK(server_ms_since(start) < 3000);
        CHECK(take() == RATELIMIT_OK);
        ratelimit_redis_close(r);
    }
    proxy_close(&p);
}

/* ---- sentinels ------------------------------------------------------------------------------- */

/* The proxy is the sentinel: what it says is made up, the master that it names is real. */
static void what_a_sentinel_says_is_looked_at(void)
{
    static const char *const wrong[] = {"*-1\r\n",
                                        "*0\r\n",
                                        "+OK\r\n",
                                        "*1\r\n$9\r\n127.0.0.1\r\n",
                                        "*2\r\n$9\r\n127.0.0.1\r\n:1\r\n",
                                        "*2\r\n:1\r\n$4\r\n7000\r\n",
                                        "*2\r\n$9\r\n127.0.0.1\r\n$5\r\n99999\r\n",
                                        "*2\r\n$9\r\n127.0.0.1\r\n$2\r\n-1\r\n",
                                        "-ERR unknown command\r\n"};
    char right[100], port[16];
    size_t i;
    proxy_open(&p, server_port());
    snprintf(port, sizeof port, "%d", server_port());
    snprintf(right, sizeof right, "*2\r\n$9\r\n127.0.0.1\r\n$%u\r\n%s\r\n", (unsigned)strlen(port),
             port);
    for (i = 0; i <= sizeof wrong / sizeof wrong[0]; i++) {
        bool good = i == sizeof wrong / sizeof wrong[0];
        ratelimit_redis_options options = options_of_test(p.port);
        options.timeout_ms = 300;
        options.master_name = "master";
        r = server_open(&options);
        instead("get-master-addr-by-name", good ? right : wrong[i]);
        CHECK_U64(take(), good ? RATELIMIT_OK : RATELIMIT_STORE_FAILED);
        CHECK(good || *server_error(r));
        p.instead = NULL;
        ratelimit_redis_close(r);
    }
    proxy_close(&p);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(an_answer_that_makes_no_sense_fails_its_request_and_no_other);
    RUN(a_map_that_makes_no_sense_is_none);
    RUN(a_map_may_name_hosts_in_several_ways);
    RUN(a_redirection_that_makes_no_sense_ends_with_a_reason);
    RUN(what_a_sentinel_says_is_looked_at);
    return check_end();
}

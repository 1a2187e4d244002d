/* test_shards.c - ratelimit_redis.h behind a proxy that sends each key to a server of its own
 * (twemproxy, two servers), and before a server that takes no command with keys of several slots.
 *
 *     SHARDS_PORT    the proxy
 *     SHARD_PORTS    the servers behind it
 *     SHARD_PIDS     their processes
 *     SLOTS_PORT     a cluster of one node */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "server.h"

enum { KEYS = 200 };

static const ratelimit_limit one = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 1, 1);
static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 100, 1);
static char keys[KEYS][16];

/* Number i of a list in the environment. */
static int number_of(const char *name, int i)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value = 0;
    int j;
    if (text == NULL) {
        fprintf(stderr, "%s is not set: run tests/redis/run.sh\n", name);
        exit(2);
    }
    for (j = 0; j <= i; j++, text = end)
        value = strtol(text, &end, 10);
    return (int)value;
}

static void flush_shards(void)
{
    int i;
    for (i = 0; i < 2; i++)
        CHECK(server_do(number_of("SHARD_PORTS", i), "FLUSHALL"));
}

/* A handle on the proxy. */
static ratelimit_redis *open_shards(bool one_key)
{
    ratelimit_redis_options options = server_options();
    options.port = server_number("SHARDS_PORT");
    options.one_key = one_key;
    options.timeout_ms = 3000;
    return server_open(&options);
}

/* Takes of all keys in one batch; how many were allowed. */
static int take_keys(ratelimit_redis *r)
{
    static ratelimit_request q[KEYS];
    static ratelimit_result res[KEYS];
    ratelimit_store store = ratelimit_redis_store(r);
    int i, allowed = 0;
    for (i = 0; i < KEYS; i++)
        q[i] = server_request(keys[i], &one, RATELIMIT_TAKE, 1);
    store.decide(&store, q, res, KEYS, RATELIMIT_EACH);
    for (i = 0; i < KEYS; i++) {
        CHECK(res[i].allowed || res[i].status == RATELIMIT_DENIED);
        allowed += res[i].allowed;
    }
    return allowed;
}

/* twemproxy sends a command where its first key belongs, and nobody says that the others do not. */
static void with_one_key_each_key_is_on_its_server(void)
{
    ratelimit_redis *r = open_shards(true);
    int i;
    flush_shards();
    for (i = 0; i < KEYS; i++)
        CHECK(server_take(r, keys[i], &one, 1).allowed);
    CHECK_U64(take_keys(r), 0);
    for (i = 0; i < 2; i++)
        CHECK(server_int(number_of("SHARD_PORTS", i), "DBSIZE") > KEYS / 4);
    CHECK_U64(server_int(number_of("SHARD_PORTS", 0), "DBSIZE") +
                  server_int(number_of("SHARD_PORTS", 1), "DBSIZE"),
              KEYS);
    ratelimit_redis_close(r);
}

/* What LIMITS warns of. If this fails some day, the proxy has learned to say no. */
static void without_one_key_too_many_pass(void)
{
    ratelimit_redis *r = open_shards(false);
    int i;
    flush_shards();
    for (i = 0; i < KEYS; i++)
        CHECK(server_take(r, keys[i], &one, 1).allowed);
    CHECK(take_keys(r) > 0);
    ratelimit_redis_close(r);
}

static void all_or_none_needs_a_hash_tag(void)
{
    ratelimit_redis *r = open_shards(true);
    ratelimit_store store = ratelimit_redis_store(r);
    ratelimit_request q[2];
    ratelimit_result res[2];
    flush_shards();
    q[0] = server_request("{alice}:login", &one, RATELIMIT_TAKE, 1);
    q[1] = server_request("{alice}:api", &hourly, RATELIMIT_TAKE, 1);
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK(res[0].allowed && res[1].allowed);
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK_U64(res[0].status, RATELIMIT_DENIED);
    CHECK_U64(res[1].status, RATELIMIT_SKIPPED);
    CHECK_U64(server_decide(r, "{alice}:api", &hourly, RATELIMIT_PEEK, 1).remaining, 99);
    q[0] = server_request("alice:login", &one, RATELIMIT_TAKE, 1);
    store.decide(&store, q, res, 2, RATELIMIT_ALL);
    CHECK_U64(res[0].status, RATELIMIT_UNSUPPORTED);
    CHECK(strstr(server_error(r), "braces") != NULL);
    ratelimit_redis_close(r);
}

static void windows_semaphores_and_locks_work_for_keys_of_both_servers(void)
{
    ratelimit_redis *r = open_shards(true);
    int i;
    flush_shards();
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_OK);
    for (i = 0; i < 20; i++) {
        const char *key = keys[i];
        size_t len = strlen(key);
        ratelimit_redis_permit permit;
        ratelimit_redis_held held, other;
        CHECK(ratelimit_redis_window(r, key, len, 1, 60000, 1, NULL));
        CHECK(!ratelimit_redis_window(r, key, len, 1, 60000, 1, NULL));
        CHECK(ratelimit_redis_sliding(r, key, len, 1, 60000, 1, NULL));
        CHECK(!ratelimit_redis_sliding(r, key, len, 1, 60000, 1, NULL));
        CHECK_U64(ratelimit_redis_acquire_plain(r, key, len, 1, 60000), RATELIMIT_OK);
        CHECK_U64(ratelimit_redis_acquire_plain(r, key, len, 1, 60000), RATELIMIT_BUSY);
        CHECK_U64(ratelimit_redis_acquire(r, key, len, 1, 60000, 0, 0, &permit, NULL),
                  RATELIMIT_OK);
        CHECK_U64(ratelimit_redis_release(r, key, len, &permit, 1, NULL), RATELIMIT_OK);
        CHECK_U64(ratelimit_redis_lock(r, key, len, 60000, 0, &held), RATELIMIT_OK);
        CHECK_U64(ratelimit_redis_lock(r, key, len, 60000, 0, &other), RATELIMIT_BUSY);
        CHECK_U64(ratelimit_redis_renew(r, key, len, &held, 60000), RATELIMIT_OK);
        CHECK_U64(ratelimit_redis_unlock(r, key, len, &held), RATELIMIT_OK);
    }
    ratelimit_redis_close(r);
}

static void scripts_flushed_on_one_server_are_sent_again(void)
{
    ratelimit_redis *r = open_shards(true);
    flush_shards();
    CHECK_U64(take_keys(r), KEYS);
    CHECK(server_do(number_of("SHARD_PORTS", 1), "SCRIPT FLUSH"));
    CHECK_U64(take_keys(r), 0);
    ratelimit_redis_close(r);
}

/* Its keys fail while it is stopped; then the proxy is left alone for a moment if two of them were
 * asked in a row. The other's keys are decided whenever the proxy is asked. */
static void a_server_that_hangs_behind_the_proxy_leaves_the_others_keys_decided(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    int i, healthy = 0, decided = 0, failed = 0;
    options.port = server_number("SHARDS_PORT");
    options.one_key = true;
    options.timeout_ms = 100;
    options.cool_down_ms = 10;
    r = server_open(&options);
    flush_shards();
    for (i = 0; i < 40; i++)
        CHECK(server_take(r, keys[i], &hourly, 1).allowed);
    kill(number_of("SHARD_PIDS", 0), SIGSTOP);
    for (i = 0; i < 40; i++) {
        bool here =
            server_int(number_of("SHARD_PORTS", 1), "EXISTS %s", server_bucket(keys[i])) == 1;
        ratelimit_result res = server_take(r, keys[i], &hourly, 1);
        healthy += here;
        decided += here && res.allowed;
        failed += !here && res.status == RATELIMIT_STORE_FAILED;
        server_sleep_ms(11); /* the cool-down is over */
    }
    kill(number_of("SHARD_PIDS", 0), SIGCONT);
    CHECK_U64(failed, 40 - healthy);
    CHECK(healthy >= 5 && failed >= 5);
    CHECK_U64(decided, healthy);
    for (i = 0; i < 50 && !server_take(r, "again", &hourly, 1).allowed; i++)
        server_sleep_ms(20);
    CHECK(i < 50);
    ratelimit_redis_close(r);
}

/* A node of a cluster refuses a command with keys of several slots. That is told once. */
static void crossslot_is_seen_once(void)
{
    ratelimit_redis_options options = server_options();
    ratelimit_redis *r;
    redisReply *reply;
    int port = server_number("SLOTS_PORT"), i;
    options.port = port;
    options.timeout_ms = 3000;
    CHECK(server_do(port, "FLUSHALL"));
    CHECK(server_do(port, "CONFIG RESETSTAT"));
    r = server_open(&options);
    CHECK_U64(take_keys(r), KEYS);
    for (i = 0; i < 5; i++)
        CHECK_U64(take_keys(r), 0);
    reply = server_ask(port, "INFO errorstats");
    /* What was already sent when the first answer came is refused, too: commands of 64 takes. */
    i = reply && reply->str && strstr(reply->str, "errorstat_CROSSSLOT:count=")
            ? atoi(strstr(reply->str, "errorstat_CROSSSLOT:count=") + 26)
            : 0;
    CHECK(i >= 1 && i <= (KEYS + 63) / 64);
    if (reply)
        freeReplyObject(reply);
    ratelimit_redis_close(r);
}

int main(int argc, char **argv)
{
    int i;
    check_begin(argc, argv);
    for (i = 0; i < KEYS; i++)
        snprintf(keys[i], sizeof keys[i], "key-%d", i);
    RUN(with_one_key_each_key_is_on_its_server);
    RUN(without_one_key_too_many_pass);
    RUN(all_or_none_needs_a_hash_tag);
    RUN(windows_semaphores_and_locks_work_for_keys_of_both_servers);
    RUN(scripts_flushed_on_one_server_are_sent_again);
    RUN(a_server_that_hangs_behind_the_proxy_leaves_the_others_keys_decided);
    RUN(crossslot_is_seen_once);
    return check_end();
}

/* test_no_clock.c - what a program sees that has left out the platform's clock and sleep, and
 * brings none, or not all: an answer that says so. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RATELIMIT_NO_CLOCK
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

static const ratelimit_limit one = RATELIMIT_LIMIT(1, SEC, 1);
static unsigned char memory[RATELIMIT_TABLE_BYTES(64)];

static void a_table_store_without_a_clock_fails_and_takes_nothing(void)
{
    uint64_t now = 100 * SEC;
    ratelimit_table *table = table_made(memory, sizeof memory, RATELIMIT_EVICT, 1);
    ratelimit_store store = ratelimit_table_store(table, NULL, NULL);
    ratelimit_limiter l;
    ratelimit_request req[2];
    ratelimit_result res[2];
    req[0] = req[1] = request("key", &one, 1);
    store.decide(&store, req, res, 2, RATELIMIT_EACH);
    CHECK(!res[0].allowed && !res[1].allowed);
    CHECK_U64(res[0].status, RATELIMIT_STORE_FAILED);
    CHECK_U64(res[1].status, RATELIMIT_STORE_FAILED);
    memset(&l, 0, sizeof l);
    l.on_failure = RATELIMIT_FAIL_CLOSED;
    CHECK_U64(ratelimit_init(&l, store), RATELIMIT_OK);
    CHECK(!ratelimit_allow(&l, "key", &one));
    store = ratelimit_table_store(table, clock_read, &now);
    store.decide(&store, req, res, 1, RATELIMIT_EACH);
    CHECK(res[0].allowed);
}

static void a_tier_without_a_clock_fails_and_asks_nobody(void)
{
    uint64_t now = 100 * SEC;
    ratelimit_table *table = table_made(memory, sizeof memory, RATELIMIT_EVICT, 1);
    ratelimit_tier tier;
    ratelimit_store store;
    ratelimit_request req = request("key", &one, 1);
    ratelimit_result res;
    memset(&tier, 0, sizeof tier);
    tier.table = table;
    tier.store = ratelimit_table_store(table, clock_read, &now);
    store = ratelimit_tier_store(&tier);
    store.decide(&store, &req, &res, 1, RATELIMIT_EACH);
    CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
    tier.clock = clock_read;
    tier.clock_self = &now;
    store = ratelimit_tier_store(&tier);
    store.decide(&store, &req, &res, 1, RATELIMIT_EACH);
    CHECK(res.allowed); /* its token is still there */
}

static void a_wait_needs_a_clock_and_a_sleep(void)
{
    static const struct {
        bool sleeps, has_clock;
        ratelimit_status status;
    } rows[] = {{false, false, RATELIMIT_UNSUPPORTED},
                {false, true, RATELIMIT_UNSUPPORTED},
                {true, false, RATELIMIT_UNSUPPORTED},
                {true, true, RATELIMIT_OK}};
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_table *table = table_made(memory, sizeof memory, RATELIMIT_EVICT, 1);
        ratelimit_limiter l;
        ratelimit_request req = request("key", &one, 1);
        ratelimit_result res;
        sleeper s;
        place("rows", 0, i);
        sleeper_start(&s, 100 * SEC);
        memset(&l, 0, sizeof l);
        l.sleep = rows[i].sleeps ? sleeper_sleep : NULL;
        l.sleep_self = &s;
        CHECK_U64(ratelimit_init(&l, ratelimit_table_store(table, clock_read, &s.now_ns)),
                  RATELIMIT_OK);
        if (!rows[i].has_clock)
            l.store.clock = NULL;
        CHECK(ratelimit_wait(&l, &req, FOREVER, &res) == res.allowed);
        CHECK_U64(res.status, rows[i].status);
        CHECK_U64(s.sleeps, 0);
    }
    place_end();
}

/* Nothing random is there either. */
static void a_table_without_a_seed_is_a_bad_argument(void)
{
    ratelimit_table *table;
    CHECK_U64(ratelimit_table_init(&table, memory, sizeof memory, NULL), RATELIMIT_BAD_ARGUMENT);
}

/* With nothing to measure time by, nobody can tell a lock that is held from one whose holder
 * died. */
static void attaching_frees_no_lock(void)
{
    ratelimit_table *table = table_made(memory, sizeof memory, RATELIMIT_EVICT, 1);
    uint32_t i;
    for (i = 0; i < 24; i++)
        ratelimit_priv_lines(table)[i].lock = 1;
    CHECK_U64(ratelimit_table_attach(&table, memory, sizeof memory), RATELIMIT_OK);
    for (i = 0; i < 24; i++)
        CHECK_U64(ratelimit_priv_lines(table)[i].lock, 1);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(a_table_store_without_a_clock_fails_and_takes_nothing);
    RUN(a_tier_without_a_clock_fails_and_asks_nobody);
    RUN(a_wait_needs_a_clock_and_a_sleep);
    RUN(a_table_without_a_seed_is_a_bad_argument);
    RUN(attaching_frees_no_lock);
    return check_end();
}

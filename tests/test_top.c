/* test_top.c - the keys refused most: examples/ratelimit_top.h.
 *
 *     cc -std=c99 -O2 -I. -Itests tests/test_top.c -lpthread
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "../examples/ratelimit_top.h"
#include "unit.h"

static const ratelimit_limit limit = RATELIMIT_LIMIT(1, HOUR, 1);

static ratelimit_top top_of(ratelimit_top_entry *entries, size_t count)
{
    ratelimit_top top;
    memset(entries, 0, count * sizeof *entries);
    memset(&top, 0, sizeof top);
    top.entries = entries;
    top.count = count;
    top.seed = 7;
    return top;
}

static void refuse(ratelimit_top *top, const char *key)
{
    ratelimit_request req = request(key, &limit, 1);
    ratelimit_result res;
    memset(&res, 0, sizeof res);
    res.status = RATELIMIT_DENIED;
    ratelimit_top_hook(top, &req, &res);
}

static void the_limiters_hook_feeds_the_top(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(64)];
    static const ratelimit_limit other = RATELIMIT_LIMIT(2, HOUR, 1);
    ratelimit_top_entry entries[4], out[5];
    ratelimit_top top = top_of(entries, COUNT(entries));
    ratelimit_limiter limiter;
    ratelimit_table *table;
    uint64_t now_ns = 100 * SEC;
    int i;
    memset(&limiter, 0, sizeof limiter);
    limiter.hook = ratelimit_top_hook;
    limiter.hook_self = &top;
    if (ratelimit_table_init(&table, memory, sizeof memory, NULL) != RATELIMIT_OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, clock_read, &now_ns)) != RATELIMIT_OK)
        exit(2);
    CHECK_U64(ratelimit_top_read(&top, out, COUNT(out)), 0);
    for (i = 0; i < 6; i++)
        (void)ratelimit_allow(&limiter, "bob", &limit);
    for (i = 0; i < 4; i++)
        (void)ratelimit_allow(&limiter, "bob", &other); /* another bucket, another entry */
    for (i = 0; i < 3; i++)
        (void)ratelimit_allow(&limiter, "ann", &limit);
    (void)ratelimit_allow(&limiter, "eve", &limit); /* never refused */
    (void)ratelimit_allow(&limiter, "eve", NULL);   /* not by a limit */
    CHECK_U64(ratelimit_top_read(&top, out, COUNT(out)), 3);
    CHECK(out[0].refused == 5 && out[0].error == 0 && out[0].key_len == 3);
    CHECK(memcmp(out[0].key, "bob", 4) == 0 && out[0].scope == limit.scope);
    CHECK(out[1].refused == 3 && memcmp(out[1].key, "bob", 4) == 0);
    CHECK(out[1].scope == other.scope);
    CHECK(out[2].refused == 2 && memcmp(out[2].key, "ann", 4) == 0);
    CHECK_U64(ratelimit_top_read(&top, out, 1), 1);
    CHECK(out[0].refused == 5);
    CHECK_U64(ratelimit_top_read(&top, out, 0), 0);
    limiter.shadow = true;
    CHECK(ratelimit_allow(&limiter, "ann", &limit));
    (void)ratelimit_top_read(&top, out, COUNT(out));
    CHECK_U64(out[2].refused, 3);
    CHECK_U64(top.dropped, 0);
}

static void long_keys_with_one_beginning_are_told_apart(void)
{
    static char a[100], b[100];
    ratelimit_top_entry entries[4], out[4];
    ratelimit_top top = top_of(entries, COUNT(entries));
    memset(a, 'k', sizeof a - 1);
    memset(b, 'k', sizeof b - 2);
    b[sizeof b - 2] = 'l';
    refuse(&top, a);
    refuse(&top, b);
    refuse(&top, b);
    CHECK_U64(ratelimit_top_read(&top, out, 4), 2);
    CHECK(out[0].refused == 2 && out[1].refused == 1 && out[0].key_len == 99);
    CHECK(memcmp(out[0].key, a, sizeof out[0].key) == 0);
}

/* Against exact counts: error bounds what is too much, N / count the error, and no key with more
 * than that is lost. */
static void the_tops_errors_are_within_their_bound(void)
{
    enum { KEYS = 400, PLACES = 16 };
    static uint64_t exact[KEYS];
    ratelimit_top_entry entries[PLACES], out[PLACES];
    ratelimit_top top = top_of(entries, PLACES);
    uint64_t total = 20000, i, n, found = 0;
    size_t k;
    check_seed(4);
    for (i = 0; i < total; i++) {
        char key[8];
        k = (size_t)(check_below(3) ? check_below(5) * check_below(5) : check_below(KEYS));
        exact[k]++;
        sprintf(key, "%u", (unsigned)k);
        refuse(&top, key);
    }
    n = ratelimit_top_read(&top, out, PLACES);
    CHECK_U64(n, PLACES);
    for (i = 0; i < n; i++) {
        uint64_t real = exact[atoi((const char *)out[i].key)];
        CHECK(out[i].refused >= real && out[i].refused - out[i].error <= real);
        CHECK(out[i].error <= total / PLACES);
        CHECK(i == 0 || out[i - 1].refused >= out[i].refused);
        found += real > total / PLACES;
    }
    for (k = 0; k < KEYS; k++)
        found -= exact[k] > total / PLACES;
    CHECK_U64(found, 0);
}

static void *refuse_many(void *self)
{
    int i;
    for (i = 0; i < 2000; i++)
        refuse((ratelimit_top *)self, i % 4 ? "most" : "some");
    return NULL;
}

static void each_refusal_of_many_threads_is_counted_or_dropped(void)
{
    ratelimit_top_entry entries[4], out[4];
    ratelimit_top top = top_of(entries, COUNT(entries));
    pthread_t thread[4];
    size_t i;
    for (i = 0; i < COUNT(thread); i++)
        CHECK(pthread_create(&thread[i], NULL, refuse_many, &top) == 0);
    for (i = 0; i < COUNT(thread); i++)
        pthread_join(thread[i], NULL);
    CHECK_U64(ratelimit_top_read(&top, out, 4), 2);
    CHECK_U64(out[0].refused + out[1].refused + top.dropped, 8000);
    CHECK(memcmp(out[0].key, "most", 5) == 0);
}

/* It made requests queue behind a statistic, for ever if its holder died. */
static void a_request_never_waits_for_the_top(void)
{
    ratelimit_top_entry entries[4], out[4];
    ratelimit_top top = top_of(entries, COUNT(entries));
    refuse(&top, "ann");
    top.busy = 1;
    refuse(&top, "ann");
    refuse(&top, "bob");
    CHECK_U64(top.dropped, 2);
    top.busy = 0;
    CHECK_U64(ratelimit_top_read(&top, out, 4), 1);
    CHECK_U64(out[0].refused, 1);
}

static void a_top_without_room_counts_nothing(void)
{
    ratelimit_top top;
    ratelimit_top_entry out;
    memset(&top, 0, sizeof top);
    refuse(&top, "ann");
    CHECK_U64(ratelimit_top_read(&top, &out, 1), 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(the_limiters_hook_feeds_the_top);
    RUN(long_keys_with_one_beginning_are_told_apart);
    RUN(the_tops_errors_are_within_their_bound);
    RUN_THREADED(each_refusal_of_many_threads_is_counted_or_dropped);
    RUN(a_request_never_waits_for_the_top);
    RUN(a_top_without_room_counts_nothing);
    return check_end();
}

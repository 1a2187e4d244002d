/* flood.c - what a table that is too small does under attack, by policy.
 *
 *     flood            prints two tables: a flood of new keys, and far more keys than places
 *     flood --check    the same, with bounds: a test that ends with "N passed, N failed"
 *
 * SEED=n in the environment replays another order of requests. The time is virtual.
 *
 * The flood: about 65,536 places, a million new keys a second, each of which asks once, and 1,000
 * users who ask at ten times their limit. A user's due is what a bucket of its own lets through for
 * the same requests.
 *
 * Few places: 24 of them, 2,000 keys, 4 million decisions. Beside each key runs an exact bucket
 * that is charged with what the table let through; what it would have refused was let through
 * wrongly.
 */
#define RATELIMIT_IMPLEMENTATION
#include "../../ratelimit.h"
#include "../check.h"

enum { USERS = 1000, SECONDS = 3, FLOOD_LINES = 21848, FEW_LINES = 8, FEW_KEYS = 2000 };
enum { POLICIES = 4, BUCKETS = 4 /* in place of a policy: an exact bucket for each user */ };
#define NEW_KEYS_PER_SECOND UINT64_C(1000000)
#define FEW_DECISIONS       UINT64_C(4000000)

static const char *const policy_name[POLICIES + 1] = {"EVICT", "EVICT_LAST_SEEN", "INHERIT",
                                                      "REFUSE", "a bucket each"};
static const ratelimit_limit limit = RATELIMIT_LIMIT(10, RATELIMIT_SECOND, 20);
static unsigned char memory[128 + 63 + FLOOD_LINES * 64];

typedef struct flood_outcome {
    uint64_t places, asked, allowed; /* of the users, together */
    uint64_t most;                   /* of one user, in thousandths of its due */
    uint64_t least;
    uint64_t newcomers, newcomers_allowed;
} flood_outcome;

typedef struct few_outcome {
    uint64_t allowed, wrong;
} few_outcome;

static flood_outcome flood[POLICIES + 1];
static few_outcome few[POLICIES];

static ratelimit_table *make_table(int policy, size_t lines, uint64_t seed)
{
    ratelimit_table_options options;
    ratelimit_table *table = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = seed;
    options.seed[1] = 1;
    options.when_full = (ratelimit_full)policy;
    if (ratelimit_table_init(&table, memory, 128 + 63 + lines * 64, &options) != RATELIMIT_OK)
        abort();
    return table;
}

/* Users have numbers below USERS, new keys the ones above. */
static bool ask(ratelimit_table *table, uint64_t key, uint64_t now)
{
    return ratelimit_table_take(table, &key, sizeof key, &limit, 1, now, NULL);
}

/* A new key each microsecond; each tenth one also a request of a user. Without a table: only the
 * users' own buckets. */
static void run_flood(ratelimit_table *table, uint64_t seed, uint64_t *allowed, flood_outcome *out)
{
    static ratelimit_bucket own[USERS];
    uint64_t i, now;
    memset(own, 0, sizeof own);
    memset(allowed, 0, USERS * sizeof *allowed);
    check_random_state = seed;
    for (i = 0; i < NEW_KEYS_PER_SECOND * SECONDS; i++) {
        now = RATELIMIT_HOUR + i * (RATELIMIT_SECOND / NEW_KEYS_PER_SECOND);
        if (i % 10 == 0) { /* 1,000 users x 10 x 10 per second */
            uint64_t user = check_below(USERS);
            out->asked++;
            allowed[user] += table ? ask(table, user, now)
                                   : ratelimit_bucket_take(&own[user], &limit, 1, now, NULL);
        }
        out->newcomers++;
        if (table)
            out->newcomers_allowed += ask(table, USERS + i, now);
    }
}

static void measure_flood(int policy, uint64_t seed)
{
    static uint64_t due[USERS], allowed[USERS];
    flood_outcome *out = &flood[policy];
    ratelimit_table *table = policy < POLICIES ? make_table(policy, FLOOD_LINES, seed) : NULL;
    ratelimit_table_counts counts;
    int user;
    ratelimit_table_stats(table, 0, &counts);
    out->places = counts.capacity;
    run_flood(table, seed, allowed, out);
    if (!table)
        memcpy(due, allowed, sizeof due); /* the first run of all */
    out->least = UINT64_MAX;
    for (user = 0; user < USERS; user++) {
        uint64_t share = (allowed[user] * 1000 + due[user] - 1) / due[user];
        out->allowed += allowed[user];
        out->most = share > out->most ? share : out->most;
        out->least = share < out->least ? share : out->least;
    }
}

static void measure_few(int policy, uint64_t seed)
{
    static ratelimit_bucket exact[FEW_KEYS];
    ratelimit_table *table = make_table(policy, FEW_LINES, seed);
    uint64_t i;
    memset(exact, 0, sizeof exact);
    check_random_state = seed;
    for (i = 0; i < FEW_DECISIONS; i++) {
        uint64_t key = check_below(FEW_KEYS), now = RATELIMIT_HOUR + i * 20 * RATELIMIT_MICROSECOND;
        if (!ask(table, key, now)) /* each key asks 25 times a second, its limit is 10 */
            continue;
        few[policy].allowed++;
        few[policy].wrong += !ratelimit_bucket_take(&exact[key], &limit, 1, now, NULL);
    }
}

static void print_flood(void)
{
    int policy;
    printf("%" PRIu64 " places, %" PRIu64
           " new keys a second, %d users at ten times their limit, %d s\n",
           flood[0].places, NEW_KEYS_PER_SECOND, USERS, SECONDS);
    printf("  %-16s %10s %10s %10s %16s\n", "", "of due", "least user", "most user",
           "new keys let in");
    for (policy = POLICIES; policy >= 0; policy--) {
        const flood_outcome *f = &flood[policy];
        printf("  %-16s %10.4f %10.3f %10.3f", policy_name[policy],
               (double)f->allowed / (double)flood[BUCKETS].allowed, (double)f->least / 1000,
               (double)f->most / 1000);
        if (policy < POLICIES)
            printf(" %14.1f %%", 100.0 * (double)f->newcomers_allowed / (double)f->newcomers);
        printf("\n");
    }
}

static void print_few(void)
{
    int policy;
    printf("\n%d places, %d keys, %" PRIu64 " decisions\n", FEW_LINES * 3, FEW_KEYS, FEW_DECISIONS);
    printf("  %-16s %12s %34s\n", "", "let through", "of them an exact bucket had refused");
    for (policy = 0; policy < POLICIES; policy++)
        printf("  %-16s %12" PRIu64 " %34" PRIu64 "\n", policy_name[policy], few[policy].allowed,
               few[policy].wrong);
}

static void under_inherit_no_user_gets_more_than_its_due(void)
{
    CHECK(flood[RATELIMIT_INHERIT].most <= 1000);
    CHECK(flood[RATELIMIT_INHERIT].allowed > 0);
}

static void under_evict_users_get_at_most_a_hundredth_more_than_their_due(void)
{
    CHECK(flood[RATELIMIT_EVICT].allowed * 100 <= flood[BUCKETS].allowed * 101);
    CHECK(flood[RATELIMIT_EVICT].allowed * 100 >= flood[BUCKETS].allowed * 99);
}

static void under_evict_new_keys_are_let_in(void)
{
    CHECK_U64(flood[RATELIMIT_EVICT].newcomers_allowed, flood[RATELIMIT_EVICT].newcomers);
}

static void forgetting_the_one_seen_longest_ago_hands_out_more_than_evict(void)
{
    CHECK(flood[RATELIMIT_EVICT_LAST_SEEN].allowed > flood[RATELIMIT_EVICT].allowed);
}

static void under_refuse_no_user_gets_more_than_its_due(void)
{
    CHECK(flood[RATELIMIT_REFUSE].most <= 1000);
}

static void the_flood_fills_the_table(void)
{
    CHECK(flood[RATELIMIT_REFUSE].newcomers_allowed < flood[RATELIMIT_REFUSE].newcomers);
    CHECK(flood[RATELIMIT_EVICT].places >= 65536);
}

static void with_few_places_inherit_lets_nothing_through_that_exact_buckets_refuse(void)
{
    CHECK_U64(few[RATELIMIT_INHERIT].wrong, 0);
    CHECK(few[RATELIMIT_INHERIT].allowed > 0);
}

static void with_few_places_refuse_lets_nothing_through_that_exact_buckets_refuse(void)
{
    CHECK_U64(few[RATELIMIT_REFUSE].wrong, 0);
    CHECK(few[RATELIMIT_REFUSE].allowed > 0);
}

static void with_few_places_evict_forgets_debts(void)
{
    CHECK(few[RATELIMIT_EVICT].wrong > FEW_DECISIONS / 10);
}

int main(int argc, char **argv)
{
    bool check = argc > 1 && strcmp(argv[1], "--check") == 0;
    uint64_t seed;
    int policy;
    check_begin(check ? argc - 1 : argc, check ? argv + 1 : argv);
    seed = check_seed(1);
    for (policy = POLICIES; policy >= 0; policy--)
        measure_flood(policy, seed);
    for (policy = 0; policy < POLICIES; policy++)
        measure_few(policy, seed);
    print_flood();
    print_few();
    if (!check)
        return 0;
    RUN(under_inherit_no_user_gets_more_than_its_due);
    RUN(under_evict_users_get_at_most_a_hundredth_more_than_their_due);
    RUN(under_evict_new_keys_are_let_in);
    RUN(forgetting_the_one_seen_longest_ago_hands_out_more_than_evict);
    RUN(under_refuse_no_user_gets_more_than_its_due);
    RUN(the_flood_fills_the_table);
    RUN(with_few_places_inherit_lets_nothing_through_that_exact_buckets_refuse);
    RUN(with_few_places_refuse_lets_nothing_through_that_exact_buckets_refuse);
    RUN(with_few_places_evict_forgets_debts);
    return check_end();
}

/* vectors_redis.c - the vectors of tests/vectors on Redis, and random decisions on Redis and on a
 * table, which must agree in every field.
 *
 *     vectors_redis           words: only cases whose "redis: SENTENCE" or file, or tests whose
 *                             name, contain one
 *     SEED=n                  replays the random decisions; DECISIONS=n: how many (100,000)
 */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "server.h"
#include "vectors.h"

static uint64_t now;
static ratelimit_redis *redis;
static ratelimit_store store;

static void redis_reset(void *self)
{
    (void)self;
    if (!server_flush())
        exit(2);
}

static void redis_decide(void *self, const ratelimit_request *req, uint64_t now_ns,
                         ratelimit_result *res)
{
    (void)self;
    now = now_ns;
    store.decide(&store, req, res, 1, RATELIMIT_EACH);
}

/* Redis' clock counts us in a double, exactly up to 2^53: not to the end of 64 bits of ns. */
static bool redis_can(void *self, const ratelimit_request *req, uint64_t now_ns)
{
    (void)self;
    (void)req;
    return now_ns / 1000 < UINT64_C(1) << 53;
}

static engine redis_engine(void)
{
    engine e;
    memset(&e, 0, sizeof e);
    e.name = "redis";
    e.reset = redis_reset;
    e.decide = redis_decide;
    e.can = redis_can;
    return e;
}

/* ---- random decisions ------------------------------------------------------------------------ */

#define KEYS 24

static unsigned char memory[RATELIMIT_TABLE_BYTES(1000)];
static ratelimit_table *table;

/* Limits of all kinds: whole intervals, fractions, beyond 24 bits, windows, fast, slow, longer than
 * 2^53 ns. Most share one scope, so that to change a key's limit is to change it. */
static ratelimit_limit random_limit(void)
{
    static const uint64_t periods[] = {
        1,         1000, 1000000, RATELIMIT_SECOND, RATELIMIT_MINUTE, RATELIMIT_HOUR, RATELIMIT_DAY,
        1234567891};
    ratelimit_limit limit;
    do {
        uint64_t tokens = UINT64_C(1) << check_below(28), per = periods[check_below(8)];
        tokens = 1 + check_below(tokens);
        if (check_below(5) == 0)
            limit = ratelimit_window_make(tokens, per);
        else
            limit = ratelimit_limit_make(tokens, per * (1 + check_below(3)),
                                         1 + check_below(UINT64_C(1) << check_below(20)));
    } while (ratelimit_limit_check(&limit) != RATELIMIT_OK);
    if (check_below(8))
        limit.scope = 1;
    return limit;
}

static uint64_t random_count(const ratelimit_limit *limit)
{
    switch (check_below(8)) {
    case 0:
        return limit->burst;
    case 1:
        return limit->burst + check_below(3);
    case 2:
        return check_below(4);
    case 3:
        return check_below(UINT64_MAX >> check_below(64));
    default:
        return 1 + check_below(limit->burst);
    }
}

static bool only_up_to;

static ratelimit_op random_op(void)
{
    static const ratelimit_op ops[] = {RATELIMIT_TAKE,       RATELIMIT_TAKE,   RATELIMIT_TAKE,
                                       RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,   RATELIMIT_RESERVE,
                                       RATELIMIT_RESERVE,    RATELIMIT_CHARGE, RATELIMIT_REFUND,
                                       RATELIMIT_CANCEL,     RATELIMIT_BLOCK,  RATELIMIT_RESET};
    if (only_up_to)
        return check_below(2) ? RATELIMIT_TAKE : RATELIMIT_TAKE_UP_TO;
    return ops[check_below(sizeof ops / sizeof ops[0])];
}

/* From a part of an interval to some windows, or nothing. */
static uint64_t random_step(const ratelimit_limit *limit)
{
    uint64_t most = limit->window_ns ? limit->window_ns : 1;
    switch (check_below(4)) {
    case 0:
        return 0;
    case 1:
        return check_below(limit->interval_ns + 2);
    case 2:
        return check_below(most / 4 + 1);
    default:
        return check_below(most > UINT64_MAX / 2 ? most : most + most / 8 + 1);
    }
}

static bool same_field(const char *field, uint64_t got, uint64_t want, size_t at)
{
    if (got == want)
        return true;
    if (check_fault(__FILE__, __LINE__))
        printf("decision %zu: %s is %" PRIu64 " on Redis, %" PRIu64 " in the table\n", at, field,
               got, want);
    return false;
}

static bool same_result(const ratelimit_result *got, const ratelimit_result *want, size_t at)
{
    bool same = same_field("status", got->status, want->status, at);
    same = same_field("allowed", got->allowed, want->allowed, at) && same;
    same = same_field("burst", got->burst, want->burst, at) && same;
    same = same_field("remaining", got->remaining, want->remaining, at) && same;
    same = same_field("taken", got->taken, want->taken, at) && same;
    same = same_field("retry_after_ns", got->retry_after_ns, want->retry_after_ns, at) && same;
    same = same_field("reset_after_ns", got->reset_after_ns, want->reset_after_ns, at) && same;
    same = same_field("wait_ns", got->wait_ns, want->wait_ns, at) && same;
    return same_field("source", got->source, want->source, at) && same;
}

static void say_request(const ratelimit_request *q)
{
    char text[80];
    ratelimit_limit_format(q->limit, text, sizeof text);
    printf("    %s %" PRIu64 " of %.*s under %s at %" PRIu64 ", max_wait %" PRIu64 " (%s)\n",
           vector_word_of(vector_ops, (int)q->op), q->n, (int)q->key_len, (const char *)q->key,
           text, now, q->max_wait_ns, server_error(redis));
}

static ratelimit_request random_request(char *key, const ratelimit_limit *limits)
{
    ratelimit_request q;
    memset(&q, 0, sizeof q);
    key[0] = (char)('a' + check_below(KEYS));
    key[1] = '\0';
    q.key = key;
    q.key_len = 1;
    q.limit = &limits[key[0] - 'a'];
    q.op = random_op();
    q.n = random_count(q.limit);
    q.max_wait_ns = random_step(q.limit);
    if (q.op == RATELIMIT_BLOCK)
        q.max_wait_ns %= UINT64_C(1) << check_below(64);
    return q;
}

static size_t decisions(void)
{
    const char *text = getenv("DECISIONS");
    return text ? (size_t)strtoul(text, NULL, 10) : 100000;
}

static void forget_all(ratelimit_limit *limits)
{
    ratelimit_table_options options;
    size_t i;
    memset(&options, 0, sizeof options);
    options.seed[0] = options.seed[1] = 1;
    if (ratelimit_table_init(&table, memory, sizeof memory, &options) != RATELIMIT_OK ||
        !server_flush())
        exit(2);
    for (i = 0; i < KEYS; i++)
        limits[i] = random_limit();
    now = (UINT64_C(1) << check_below(63)) + check_below(RATELIMIT_DAY);
}

/* Single decisions, and sometimes a small batch, each or all. */
static void decisions_agree(size_t count)
{
    static ratelimit_limit limits[KEYS];
    size_t i, j, n;
    forget_all(limits);
    for (i = 0; i < count && check_faults < 5; i += n) {
        char keys[8][2];
        ratelimit_request q[8];
        ratelimit_result got[8], want[8];
        ratelimit_mode mode = check_below(2) ? RATELIMIT_ALL : RATELIMIT_EACH;
        bool all;
        n = check_below(4) ? 1 : 1 + check_below(8);
        for (j = 0; j < n; j++) {
            q[j] = random_request(keys[j], limits);
            if (n > 1 &&
                mode == RATELIMIT_EACH) /* order is promised for one key only with itself */
                keys[j][0] = (char)('a' + (keys[0][0] - 'a' + (int)j) % KEYS),
                q[j].limit = &limits[keys[j][0] - 'a'];
        }
        all = n > 1 && mode == RATELIMIT_ALL;
        memset(got, 0xA5, sizeof got);
        store.decide(&store, q, got, n, all ? RATELIMIT_ALL : RATELIMIT_EACH);
        (void)ratelimit_table_decide(table, q, want, n, all ? RATELIMIT_ALL : RATELIMIT_EACH, now);
        for (j = 0; j < n; j++)
            if (!same_result(&got[j], &want[j], i + j))
                say_request(&q[j]);
        now += random_step(q[0].limit);
        if (check_below(40) == 0)
            limits[keys[0][0] - 'a'] = random_limit();
        if (now / 1000 >= UINT64_C(1) << 53 || check_below(2000) == 0)
            forget_all(limits);
    }
}

static void random_decisions_agree_with_the_table_in_every_field(void)
{
    decisions_agree(decisions());
}

/* A bucket for which, as on Redis, only a change counts as seeing it, and which is kept when it is
 * full. (A table may forget it then, and so does Redis 2 ms later, but for the least time to live
 * that these tests set.) */
static void change_or_nothing(ratelimit_bucket *b, const ratelimit_request *q,
                              ratelimit_result *res)
{
    ratelimit_bucket copy = *b;
    ratelimit_bucket_decide(&copy, q, now, res);
    if (q->op == RATELIMIT_RESET && res->status == RATELIMIT_OK)
        memset(b, 0, sizeof *b);
    else if (copy.rest ? copy.full_ns != b->full_ns || q->op == RATELIMIT_BLOCK ||
                             (copy.rest ^ b->rest) << (64 - RATELIMIT_PRIV_SEEN_SHIFT)
                       : ratelimit_priv_redis_is_block(b) || ratelimit_priv_left(b, now) != 0)
        *b = copy;
}

/* Single decisions at times of which one in three goes back, by most_back_ns at most. */
static void buckets_agree(size_t count, uint64_t most_back_ns)
{
    static ratelimit_limit limits[KEYS];
    static ratelimit_bucket buckets[KEYS];
    size_t i;
    forget_all(limits);
    for (i = 0; i < KEYS; i++)
        limits[i].scope = 1;
    memset(buckets, 0, sizeof buckets);
    for (i = 0; i < count && check_faults < 5; i++) {
        char key[2];
        ratelimit_request q = random_request(key, limits);
        ratelimit_result got, want;
        memset(&got, 0xA5, sizeof got);
        store.decide(&store, &q, &got, 1, RATELIMIT_EACH);
        change_or_nothing(&buckets[key[0] - 'a'], &q, &want);
        if (!same_result(&got, &want, i))
            say_request(&q);
        if (check_below(3))
            now += random_step(q.limit);
        else
            now -= check_below(UINT64_C(1) << check_below(50)) % most_back_ns % (now + 1);
        if (now / 1000 >= UINT64_C(1) << 53 || check_below(1000) == 0) {
            forget_all(limits);
            memset(buckets, 0, sizeof buckets);
        }
    }
}

/* What it takes is seen by what is left for others. */
static void takes_up_to_what_is_there_charge_what_they_say(void)
{
    only_up_to = true;
    decisions_agree(decisions() / 5 < 5000 ? 5000 : decisions() / 5);
    only_up_to = false;
}

static void random_decisions_agree_when_times_come_late(void)
{
    buckets_agree(decisions() / 5, RATELIMIT_STEP_NS);
}

static void clocks_set_back_are_forgiven_as_of_the_last_change(void)
{
    buckets_agree(decisions() / 5, UINT64_MAX);
}

/* What that can cost: a debt on purpose, which was only refused since it was made, is forgiven down
 * to twice what it was when it was made, not when it was refused last. */
static void a_refusal_is_no_sight_of_a_debt_on_purpose(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 1);
    const uint64_t made_at = 1000 * RATELIMIT_SECOND, seen = UINT64_C(1) << 37; /* of 100 s */
    server_flush();
    now = made_at;
    CHECK(server_decide(redis, "k", &limit, RATELIMIT_CHARGE, 100).allowed);
    now = made_at + 90 * RATELIMIT_SECOND; /* a table would note that it owes 10 s */
    CHECK(!server_take(redis, "k", &limit, 1).allowed);
    now = made_at + 50 * RATELIMIT_SECOND;
    CHECK_U64(server_take(redis, "k", &limit, 1).reset_after_ns, 50 * RATELIMIT_SECOND);
    now = made_at + 100 * RATELIMIT_SECOND - seen - RATELIMIT_STEP_NS;
    CHECK_U64(server_take(redis, "k", &limit, 1).reset_after_ns, seen + RATELIMIT_STEP_NS);
    now--;
    CHECK_U64(server_take(redis, "k", &limit, 1).reset_after_ns, seen);
}

/* Takes a case out of the set that promises what Redis does not: a refusal writes nothing there. */
static void leave_out(vector_set *set, const char *name)
{
    size_t i;
    for (i = 0; i < set->count; i++)
        if (strcmp(set->the_case[i].name, name) == 0) {
            free(set->the_case[i].line);
            set->the_case[i] = set->the_case[--set->count];
            return;
        }
    fprintf(stderr, "no such case: %s\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    engine e = redis_engine();
    ratelimit_redis_options options = server_options();
    vector_set set;
    check_begin(argc, argv);
    check_seed(20261128);
    options.clock = server_given;
    options.clock_self = &now;
    options.ttl_min_ms = 3600 * 1000;
    options.timeout_ms = 5000;
    redis = server_open(&options);
    store = ratelimit_redis_store(redis);
    vectors_open(&set, true);
    leave_out(&set, "a refusal is a sight of the key, and a peek is none");
    leave_out(&set, "a step back in a block");
    vectors_run(&e, &set);
    vectors_close(&set);
    RUN(random_decisions_agree_with_the_table_in_every_field);
    RUN(takes_up_to_what_is_there_charge_what_they_say);
    RUN(random_decisions_agree_when_times_come_late);
    RUN(clocks_set_back_are_forgiven_as_of_the_last_change);
    RUN(a_refusal_is_no_sight_of_a_debt_on_purpose);
    ratelimit_redis_close(redis);
    return check_end();
}

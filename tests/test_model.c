/* test_model.c - random histories on every engine of ratelimit.h against the model, and the laws
 * that no history may break.
 *
 *     test_model              SEED=n in the environment is the seed of the first history,
 *                             HISTORIES=n is how many there are (500)
 *
 * A history that goes wrong is printed with its own seed, the step, the limit, the request and the
 * state before it. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "check.h"
#include "engines.h"
#include "model.h"

static uint64_t the_seed;

/* ---- random limits --------------------------------------------------------------------------- */

/* A limit in all the forms a test needs. */
typedef struct both_limits {
    ratelimit_limit real;
    model_limit model;
    bool window;
    uint64_t tokens, per_ns, burst;
} both_limits;

static both_limits limit_of(bool window, uint64_t tokens, uint64_t per_ns, uint64_t burst)
{
    both_limits limit;
    limit.window = window;
    limit.tokens = tokens;
    limit.per_ns = per_ns;
    limit.burst = window ? tokens : burst;
    limit.real = window ? ratelimit_window_make(tokens, per_ns)
                        : ratelimit_limit_make(tokens, per_ns, burst);
    limit.model =
        window ? model_window_make(tokens, per_ns) : model_limit_make(tokens, per_ns, burst);
    return limit;
}

/* 1 to 2^bits - 1, all lengths alike. */
static uint64_t random_bits(unsigned bits)
{
    unsigned shift = 64 - 1 - (unsigned)check_below(bits);
    return check_random() >> shift | 1;
}

static size_t random_index(size_t below)
{
    return (size_t)check_below(below);
}

static uint64_t pick(const uint64_t *from, size_t count)
{
    return from[random_index(count)];
}
#define PICK(from) pick(from, sizeof from / sizeof from[0])

static uint64_t random_tokens(void)
{
    static const uint64_t odd[] = {3,           7,
                                   11,          13,
                                   30,          60,
                                   97,          999,
                                   16777213,    16777215,
                                   16777216,    16777217,
                                   100000007,   1000000007,
                                   4294967,     32749,
                                   3355443200u, 30000,
                                   4294967296,  4294967291,
                                   65537,       999000000,
                                   333000000,   16777216000,
                                   7000000000,  1099511627777,
                                   6000000001};
    switch (check_below(4)) {
    case 0:
        return PICK(odd);
    case 1:
        return random_bits(check_below(4) ? 20 : 50);
    default:
        return 1 + check_below(20);
    }
}

static uint64_t random_per(void)
{
    static const uint64_t units[] = {1,
                                     RATELIMIT_MICROSECOND,
                                     RATELIMIT_MILLISECOND,
                                     RATELIMIT_SECOND,
                                     RATELIMIT_SECOND,
                                     RATELIMIT_MINUTE,
                                     RATELIMIT_HOUR,
                                     RATELIMIT_DAY,
                                     RATELIMIT_WEEK};
    uint64_t unit = PICK(units); /* one call a statement: compilers differ in the order of more */
    return unit * (check_below(3) ? 1 : 1 + check_below(60));
}

static both_limits random_limit(bool window)
{
    both_limits limit;
    do {
        uint64_t tokens = random_tokens(), per_ns = random_per();
        if (check_below(8) == 0) {
            tokens = random_bits(63);
            per_ns = random_bits(62);
        }
        limit = limit_of(window, tokens, per_ns,
                         check_below(3) ? 1 + check_below(20) : random_bits(40));
    } while (limit.model.kind == MODEL_BAD);
    return limit;
}

/* ---- printing -------------------------------------------------------------------------------- */

static const char *op_name(ratelimit_op op)
{
    static const char *const names[] = {"take",   "take_up_to", "peek",  "reserve", "charge",
                                        "refund", "cancel",     "block", "reset"};
    return (unsigned)op <= RATELIMIT_RESET ? names[op] : "unknown";
}

static void print_wide(const char *what, wide value)
{
    int i = WIDE_LIMBS;
    printf(" %s 0x", what);
    while (i > 1 && value.limb[i - 1] == 0)
        i--;
    while (i--)
        printf("%08lx", (unsigned long)value.limb[i]);
}

static void print_request(const both_limits *limit, const ratelimit_request *req, uint64_t now_ns)
{
    printf("    at %" PRIu64 " ns: %s of %" PRIu64 ", max_wait %" PRIu64, now_ns, op_name(req->op),
           req->n, req->max_wait_ns);
    printf(", limit %s%" PRIu64 " per %" PRIu64 " ns, burst %" PRIu64 "\n",
           limit->window ? "window " : "", limit->tokens, limit->per_ns, limit->burst);
}

static void print_state(const model_key *key)
{
    printf("    before, model:%s%s%s full", key->low.kept ? "" : " nothing,",
           key->low.blocked ? " blocked," : "", key->low.purpose ? " on purpose," : "");
    print_wide("low", key->low.full);
    print_wide("high", key->high.full);
    print_wide("in parts of a ns:", key->limit.parts);
    printf(" seen %d", key->low.seen);
    print_wide("interval", key->limit.interval);
    print_wide("window", key->limit.window);
    printf("\n");
}

/* ---- a history ------------------------------------------------------------------------------- */

#define KEYS   4
#define STEPS  300
#define LIMITS 3

typedef struct history {
    uint64_t seed;
    bool forward; /* time never goes back */
    bool mixed;   /* keys change limits */
    uint64_t now_ns;
    both_limits limit[LIMITS];
    size_t limit_of_key[KEYS];
    model_key key[KEYS][LIMITS]; /* by the scope of the limit: 1 to LIMITS */
    bool lost[KEYS][LIMITS];     /* a database may have forgotten what is still to be seen */
    uint64_t gone_ns;            /* since the start */
    ratelimit_result last;       /* the answer before */
} history;

static const char *const key_names[KEYS] = {"alice", "bob", "c", "a key of more than 24 bytes"};

static bool all_exact(const history *h)
{
    size_t i, j;
    for (i = 0; i < KEYS; i++)
        for (j = 0; j < LIMITS; j++)
            if (!model_exact(&h->key[i][j]))
                return false;
    return true;
}

/* What key k has of this limit's scope. */
static model_key *key_of(history *h, size_t k, const both_limits *limit)
{
    return &h->key[k][limit->real.scope - 1];
}

static void history_begin(history *h, uint64_t seed)
{
    static const uint64_t starts[] = {0,
                                      1,
                                      1000000000000000000u,
                                      UINT64_MAX / 2,
                                      UINT64_MAX - 100000000000u,
                                      UINT64_MAX - 1000000};
    size_t i;
    memset(h, 0, sizeof *h);
    check_random_state = h->seed = seed;
    h->forward = check_below(2);
    h->mixed = check_below(3) == 0;
    h->now_ns = PICK(starts);
    for (i = 0; i < LIMITS; i++)
        h->limit[i] = random_limit(i == 2);
    if (check_below(2)) { /* the same period and other tokens, as limits change */
        uint64_t tokens = 1 + check_below(100);
        h->limit[1] = limit_of(false, tokens, h->limit[0].per_ns, 1 + check_below(100));
    }
    if (h->limit[1].model.kind == MODEL_BAD)
        h->limit[1] = h->limit[0];
    for (i = 0; i < LIMITS; i++) /* in a mixed history some share a scope */
        h->limit[i].real.scope = (uint32_t)(1 + (h->mixed ? check_below(2) : i));
    for (i = 0; i < KEYS; i++)
        h->limit_of_key[i] = i % LIMITS;
}

/* On, by what makes a difference to this limit. */
static uint64_t time_on(const history *h, const both_limits *limit)
{
    uint64_t interval = limit->per_ns / limit->tokens;
    switch (check_below(10)) {
    case 0:
        return 1;
    case 1:
        return interval + check_below(2);
    case 2:
        return check_below(3 * interval + 2);
    case 3:
        return limit->window ? limit->per_ns - h->now_ns % limit->per_ns - check_below(2)
                             : interval;
    case 4:
        return h->last.reset_after_ns;
    case 5:
        return check_below(UINT64_C(3000000000));
    case 6:
        return h->last.retry_after_ns < UINT64_C(1) << 62 ? h->last.retry_after_ns : 0;
    case 7:
        return h->last.retry_after_ns && h->last.retry_after_ns < UINT64_C(1) << 62
                   ? h->last.retry_after_ns - 1
                   : 0;
    case 8:
        return check_below(20) ? 0 : random_bits(62);
    default:
        return 0;
    }
}

static uint64_t time_back(const history *h)
{
    switch (check_below(4)) {
    case 0:
        return check_below(1000);
    case 1:
        return check_below(UINT64_C(11000000000));
    case 2:
        return UINT64_C(10000000000) + check_below(3) - 1;
    default:
        return check_below(4) ? random_bits(50) : h->now_ns;
    }
}

static void go_on(history *h, uint64_t ns)
{
    h->now_ns += ns;
    h->gone_ns = ns > UINT64_MAX - h->gone_ns ? UINT64_MAX : h->gone_ns + ns;
}

static void move_time(history *h, const both_limits *limit)
{
    if (h->forward || check_below(8) || !all_exact(h))
        go_on(h, time_on(h, limit)); /* behind UINT64_MAX, too */
    else
        h->now_ns -= time_back(h);
}

static uint64_t random_n(const history *h, const both_limits *limit)
{
    switch (check_below(12)) {
    case 0:
        return limit->burst;
    case 1:
        return limit->burst + 1;
    case 2:
        return h->last.remaining;
    case 3:
        return h->last.remaining + 1;
    case 4:
        return 1 + check_below(limit->burst);
    case 5:
        return check_below(30) ? random_bits(20) : random_bits(64);
    case 6:
        return check_below(20) ? 2 : 0;
    default:
        return 1 + check_below(3);
    }
}

static uint64_t random_wait(const history *h)
{
    switch (check_below(7)) {
    case 5:
        return h->last.wait_ns;
    case 6:
        return h->last.reset_after_ns;
    case 0:
        return RATELIMIT_FOREVER;
    case 1:
        return h->last.retry_after_ns;
    case 2:
        return h->last.retry_after_ns ? h->last.retry_after_ns - 1 : 0;
    case 3:
        return random_bits(40);
    case 4:
        return check_below(20) ? check_below(UINT64_C(20000000000)) : random_bits(63);
    default:
        return check_below(3);
    }
}

static ratelimit_request random_request(const history *h, const both_limits *limit)
{
    static const uint64_t ops[] = {RATELIMIT_TAKE,   RATELIMIT_TAKE,       RATELIMIT_TAKE,
                                   RATELIMIT_TAKE,   RATELIMIT_TAKE,       RATELIMIT_TAKE,
                                   RATELIMIT_TAKE,   RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,
                                   RATELIMIT_PEEK,   RATELIMIT_RESERVE,    RATELIMIT_RESERVE,
                                   RATELIMIT_CHARGE, RATELIMIT_REFUND,     RATELIMIT_CANCEL};
    ratelimit_request req;
    memset(&req, 0, sizeof req);
    req.op = (ratelimit_op)PICK(ops);
    if (check_below(40) == 0)
        req.op = RATELIMIT_BLOCK;
    else if (check_below(60) == 0)
        req.op = RATELIMIT_RESET;
    else if (check_below(1000) == 0)
        req.op = (ratelimit_op)(RATELIMIT_RESET + 1);
    req.n = random_n(h, limit);
    req.max_wait_ns = random_wait(h);
    req.limit = &limit->real;
    return req;
}

static void print_fault(const history *h, int step, const both_limits *limit,
                        const ratelimit_request *req, const model_key *before, const char *who,
                        const char *why)
{
    printf("%s: %s\n    SEED=%" PRIu64 " step %d%s\n", who, why, h->seed, step,
           h->mixed ? ", keys change limits" : "");
    print_request(limit, req, h->now_ns);
    print_state(before);
}

/* Where what a database keeps ends earlier than what it says of all times: a block that was made
 * under another limit, for as long as that needed; and what may come into sight again after half of
 * all times. */
static bool may_be_lost(history *h, size_t k, const both_limits *limit, ratelimit_op op)
{
    bool *lost = &h->lost[k][limit->real.scope - 1];
    if ((h->mixed && op == RATELIMIT_BLOCK) || h->gone_ns >= UINT64_C(1) << 62)
        *lost = true;
    return *lost;
}

/* One request on every engine. False if any was wrong. */
static bool history_step(history *h, const engine *all, int step)
{
    char why[200];
    ratelimit_result first, other;
    size_t i, k = random_index(KEYS);
    const both_limits *limit;
    model_key *key, before;
    ratelimit_request req;
    bool lost;
    if (h->mixed && check_below(20) == 0)
        h->limit_of_key[k] = random_index(LIMITS);
    limit = &h->limit[h->limit_of_key[k]];
    key = key_of(h, k, limit);
    before = *key;
    move_time(h, limit);
    req = random_request(h, limit);
    req.key = key_names[k];
    req.key_len = strlen(key_names[k]);
    lost = may_be_lost(h, k, limit, req.op);
    memset(&first, 0xA5, sizeof first);
    all[0].decide(all[0].self, &req, h->now_ns, &first);
    if (!model_judge(key, &limit->model, &req, h->now_ns, &first, why, sizeof why)) {
        if (check_fault(__FILE__, __LINE__))
            print_fault(h, step, limit, &req, &before, all[0].name, why);
        return false;
    }
    for (i = 1; i < ENGINES; i++) {
        if (all[i].forward_only && (!h->forward || lost))
            continue;
        memset(&other, 0xA5, sizeof other);
        all[i].decide(all[i].self, &req, h->now_ns, &other);
        if (!engine_same(&first, &other)) {
            if (check_fault(__FILE__, __LINE__))
                print_fault(h, step, limit, &req, &before, all[i].name,
                            "another answer than bucket");
            return false;
        }
    }
    h->last = first;
    return true;
}

static void every_engine_decides_random_histories_as_the_model_does(void)
{
    static history h;
    const char *text = getenv("HISTORIES");
    engine all[ENGINES];
    int i, step, inexact = 0, most = text ? atoi(text) : 500;
    engines_open(all);
    for (i = 0; i < most; i++) {
        size_t j;
        for (j = 0; j < ENGINES; j++)
            all[j].reset(all[j].self);
        history_begin(&h, the_seed + (uint64_t)i);
        for (step = 0; step < STEPS && history_step(&h, all, step); step++)
            inexact += !all_exact(&h);
    }
    printf("%d histories of %d steps, %d steps with parts of a token under another limit\n", i,
           STEPS, inexact);
    CHECK(inexact > 0);
    engines_close(all);
}

/* ---- laws ------------------------------------------------------------------------------------ */

/* One of which a few hundred tokens come and go before time ends. */
static both_limits law_limit(bool window)
{
    both_limits limit;
    do
        limit = random_limit(window);
    while (limit.burst > 100000 || limit.per_ns / limit.tokens > UINT64_C(1) << 40);
    return limit;
}

/* floor(burst + span / interval): what any span may let through at most. */
static uint64_t most_in(const model_limit *limit, uint64_t span_ns)
{
    wide grown = wide_mul(wide_of(span_ns), limit->parts);
    return wide_u64(wide_min(wide_of(UINT64_MAX >> 1),
                             wide_add(wide_of(limit->burst), wide_floor(grown, limit->interval))));
}

#define LAW_TAKES 200

/* What acts when, by time. */
static void sort_acts(uint64_t at_ns[LAW_TAKES], uint64_t n[LAW_TAKES])
{
    int i, j;
    for (i = 1; i < LAW_TAKES; i++) {
        uint64_t at = at_ns[i], count = n[i];
        for (j = i; j > 0 && at_ns[j - 1] > at; j--) {
            at_ns[j] = at_ns[j - 1];
            n[j] = n[j - 1];
        }
        at_ns[j] = at;
        n[j] = count;
    }
}

/* Cancels one of those who were to act later, and says so in its n. True if it gave tokens back. */
static bool cancel_one(ratelimit_bucket *b, const both_limits *limit, uint64_t now_ns,
                       uint64_t act_ns, uint64_t *n)
{
    ratelimit_request req;
    ratelimit_result res;
    memset(&req, 0, sizeof req);
    req.limit = &limit->real;
    req.op = RATELIMIT_CANCEL;
    req.n = *n;
    req.max_wait_ns = act_ns - now_ns;
    CHECK(ratelimit_bucket_decide(b, &req, now_ns, &res));
    CHECK(res.taken == 0 || res.taken == *n);
    *n = 0;
    return res.taken > 0;
}

/* Reservations of which some are cancelled: in any span no more act than burst and rate allow,
 * where a wait that was rounded up by part of a ns counts as one. (Where a token takes less than a
 * ns, who waits behind another cannot be told from their waits.) */
static void with_reservations_cancelled_no_span_sees_more_act_than_burst_and_rate_allow(void)
{
    static uint64_t act_ns[LAW_TAKES], n[LAW_TAKES];
    int run, i, j, cancelled = 0, back = 0;
    for (run = 0; run < 400; run++) {
        both_limits limit = law_limit(false);
        ratelimit_bucket b = {0, 0};
        uint64_t now_ns = random_bits(60), interval = limit.per_ns / limit.tokens, sum;
        uint64_t most = limit.burst < 8 ? limit.burst : 1 + check_below(limit.burst);
        ratelimit_request req;
        ratelimit_result res;
        if (interval == 0)
            continue;
        memset(&req, 0, sizeof req);
        req.limit = &limit.real;
        req.op = RATELIMIT_RESERVE;
        for (i = 0; i < LAW_TAKES; i++) {
            req.n = n[i] = 1 + check_below(most);
            req.max_wait_ns = 4 * most * (interval + 1);
            if (!ratelimit_bucket_decide(&b, &req, now_ns, &res))
                n[i] = 0;
            act_ns[i] = now_ns + res.wait_ns;
            for (j = i; j >= 0 && j > i - 5; j--) { /* not in the order they were made in */
                if (check_below(4) || n[j] == 0 || act_ns[j] <= now_ns)
                    continue;
                back += cancel_one(&b, &limit, now_ns, act_ns[j], &n[j]);
                cancelled++;
            }
            now_ns += check_below(2) ? check_below(2 * interval + 2) : 0;
        }
        sort_acts(act_ns, n);
        for (i = 0; i < LAW_TAKES; i++) {
            for (j = i, sum = 0; j < LAW_TAKES; j++) {
                sum += n[j];
                CHECK(sum <= most_in(&limit.model, act_ns[j] - act_ns[i] + 1));
            }
        }
    }
    printf("%d cancelled, %d gave tokens back\n", cancelled, back);
    CHECK(cancelled > 1000 && back > 100);
}

/* Takes of random sizes at random times; then every span between two of them is looked at. */
static void in_no_span_passes_more_than_burst_and_rate_allow(void)
{
    static uint64_t at_ns[LAW_TAKES], taken[LAW_TAKES];
    int run, i, j;
    for (run = 0; run < 60; run++) {
        both_limits limit = law_limit(false);
        ratelimit_bucket b = {0, 0};
        uint64_t now_ns = random_bits(60), interval = limit.per_ns / limit.tokens, n;
        for (i = 0; i < LAW_TAKES; i++) {
            n = 1 + check_below(check_below(3) ? 2 : limit.burst);
            now_ns += check_below(3) ? check_below(2 * interval + 2) : 0;
            at_ns[i] = now_ns;
            taken[i] = ratelimit_bucket_take(&b, &limit.real, n, now_ns, NULL) ? n : 0;
        }
        for (i = 0; i < LAW_TAKES; i += 7) {
            uint64_t sum = 0;
            for (j = i; j < LAW_TAKES; j++) {
                sum += taken[j];
                CHECK(sum <= most_in(&limit.model, at_ns[j] - at_ns[i]));
            }
        }
    }
}

/* Who takes whenever one is there gets the burst at once and one each interval, to the ns: nothing
 * is lost. (With a burst of one the part of a ns between the refill and the next whole one is.) */
static void who_takes_at_retry_after_gets_all_that_burst_and_rate_allow(void)
{
    int run, i;
    for (run = 0; run < 200; run++) {
        both_limits limit = law_limit(false);
        ratelimit_bucket b = {0, 0};
        ratelimit_result res;
        uint64_t start_ns = random_bits(60), now_ns = start_ns, count = limit.burst;
        if (limit.burst < 2 || limit.per_ns < limit.tokens)
            continue;
        CHECK(ratelimit_bucket_take(&b, &limit.real, limit.burst, now_ns, NULL));
        for (i = 0; i < 50; i++) {
            CHECK(!ratelimit_bucket_take(&b, &limit.real, 1, now_ns, &res));
            CHECK(res.retry_after_ns > 0);
            now_ns += res.retry_after_ns;
            CHECK(ratelimit_bucket_take(&b, &limit.real, 1, now_ns, NULL));
            CHECK_U64(++count, most_in(&limit.model, now_ns - start_ns));
            CHECK_U64(count - 1, most_in(&limit.model, now_ns - start_ns - 1));
        }
    }
}

/* A bucket somewhere in a random life, and its time. */
static ratelimit_bucket lived_bucket(const both_limits *limit, uint64_t *now_ns)
{
    ratelimit_bucket b = {0, 0};
    uint64_t interval = limit->per_ns / limit->tokens;
    int i, steps = (int)check_below(30);
    *now_ns = random_bits(60);
    for (i = 0; i < steps; i++) {
        ratelimit_request req;
        memset(&req, 0, sizeof req);
        req.limit = &limit->real;
        req.op = check_below(5) ? RATELIMIT_TAKE : RATELIMIT_RESERVE;
        req.n = 1 + check_below(limit->burst);
        req.max_wait_ns = 10 * interval;
        *now_ns += check_below(2 * interval + 2);
        ratelimit_bucket_decide(&b, &req, *now_ns, NULL);
    }
    return b;
}

static void peek_changes_nothing_and_says_what_take_would(void)
{
    int run;
    for (run = 0; run < 3000; run++) {
        both_limits limit = law_limit(false);
        uint64_t now_ns, back_ns = check_below(2) ? 0 : random_bits(40);
        ratelimit_bucket b = lived_bucket(&limit, &now_ns), before = b;
        ratelimit_result peeked, took;
        ratelimit_request req;
        now_ns -= back_ns;
        memset(&req, 0, sizeof req);
        req.limit = &limit.real;
        req.op = RATELIMIT_PEEK;
        req.n = 1 + check_below(limit.burst + 1);
        ratelimit_bucket_decide(&b, &req, now_ns, &peeked);
        CHECK(memcmp(&b, &before, sizeof b) == 0);
        ratelimit_bucket_take(&b, &limit.real, req.n, now_ns, &took);
        CHECK(peeked.allowed == took.allowed && peeked.status == took.status);
        CHECK_U64(peeked.retry_after_ns, took.retry_after_ns);
        CHECK_U64(peeked.remaining, took.remaining + took.taken);
        CHECK_U64(peeked.taken, 0);
    }
}

static void a_take_at_retry_after_passes_and_one_ns_earlier_does_not(void)
{
    int run, denied = 0;
    for (run = 0; run < 5000; run++) {
        both_limits limit = law_limit(check_below(3) == 0);
        uint64_t now_ns, n = 1 + check_below(limit.burst);
        ratelimit_bucket b = lived_bucket(&limit, &now_ns), late;
        ratelimit_result res;
        if (ratelimit_bucket_take(&b, &limit.real, n, now_ns, &res))
            continue;
        denied++;
        late = b;
        CHECK(res.retry_after_ns > 0);
        CHECK(!ratelimit_bucket_take(&b, &limit.real, n, now_ns + res.retry_after_ns - 1, NULL));
        CHECK(ratelimit_bucket_take(&late, &limit.real, n, now_ns + res.retry_after_ns, NULL));
    }
    CHECK(denied > 500);
}

static void a_reservation_given_back_leaves_the_bucket_as_it_was(void)
{
    int run, in_debt = 0;
    for (run = 0; run < 5000; run++) {
        both_limits limit = law_limit(false);
        uint64_t now_ns;
        ratelimit_bucket b = lived_bucket(&limit, &now_ns), before = b;
        ratelimit_result was, is;
        ratelimit_request req;
        memset(&req, 0, sizeof req);
        req.limit = &limit.real;
        req.n = 1 + check_below(limit.burst);
        req.op = RATELIMIT_PEEK;
        ratelimit_bucket_decide(&b, &req, now_ns, &was);
        req.op = RATELIMIT_RESERVE;
        req.max_wait_ns = RATELIMIT_FOREVER;
        CHECK(ratelimit_bucket_decide(&b, &req, now_ns, NULL));
        req.op = RATELIMIT_REFUND;
        CHECK(ratelimit_bucket_decide(&b, &req, now_ns, NULL));
        req.op = RATELIMIT_PEEK;
        ratelimit_bucket_decide(&b, &req, now_ns, &is);
        CHECK(engine_same(&was, &is));
        if (was.reset_after_ns == 0)
            continue;
        /* To the last fraction; but when it was seen (6 bits), and that it was once in debt on
         * purpose (one bit), is of now. */
        in_debt++;
        CHECK_U64(b.full_ns, before.full_ns);
        CHECK_U64(b.rest << 7, before.rest << 7);
    }
    CHECK(in_debt > 500);
}

/* Each change of limit may be off by one part in a hundred thousand of the tokens spent and of two
 * more, either way: ten thousand changes by ten thousand times that, and not more. */
static void going_back_and_forth_between_two_limits_stays_within_its_bound(void)
{
    ratelimit_limit limit[2];
    ratelimit_bucket b = {0, 0};
    uint64_t i, allowed = 0, now_ns = 0, changes = 10000, burst = 100, off;
    limit[0] = ratelimit_limit_make(1000, RATELIMIT_SECOND, burst);
    limit[1] = ratelimit_limit_make(1001, RATELIMIT_SECOND, burst);
    limit[1].scope = limit[0].scope;
    CHECK(ratelimit_bucket_take(&b, &limit[0], burst, 0, NULL));
    for (i = 0; i < changes; i++) {
        now_ns += 100003; /* a tenth of what a token takes */
        allowed += ratelimit_bucket_take(&b, &limit[i & 1], 1, now_ns, NULL);
    }
    off = changes * (burst + 3) / 100000 + 1;
    CHECK(allowed <= now_ns / 1000000 * 1001 / 1000 + off);
    CHECK(allowed >= now_ns / 1000000 - off);
}

/* ---- equal on every platform ----------------------------------------------------------------- */

static void hash_in(uint64_t *hash, uint64_t value)
{
    int i;
    for (i = 0; i < 8; i++) {
        *hash = (*hash ^ (value >> (8 * i) & 0xff)) * UINT64_C(0x100000001b3);
    }
}

/* All answers and states of one long life, as one number: the literal was printed by a 64-bit gcc
 * build. */
static void equal_inputs_give_equal_answers_on_every_platform(void)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325), i;
    static history h;
    ratelimit_bucket b[KEYS];
    memset(b, 0, sizeof b);
    for (i = 0; i < 20000; i++) {
        ratelimit_request req;
        size_t k = i % KEYS;
        if (i % 1000 == 0) {
            history_begin(&h, 1000000 + i);
            memset(b, 0, sizeof b);
        }
        if (check_below(50) == 0)
            h.limit_of_key[k] = random_index(LIMITS);
        move_time(&h, &h.limit[h.limit_of_key[k]]);
        req = random_request(&h, &h.limit[h.limit_of_key[k]]);
        ratelimit_bucket_decide(&b[k], &req, h.now_ns, &h.last);
        hash_in(&hash, (uint64_t)h.last.status);
        hash_in(&hash, h.last.remaining);
        hash_in(&hash, h.last.taken);
        hash_in(&hash, h.last.retry_after_ns);
        hash_in(&hash, h.last.reset_after_ns);
        hash_in(&hash, h.last.wait_ns);
        hash_in(&hash, b[k].full_ns);
        hash_in(&hash, b[k].rest);
    }
    printf("known answer 0x%016" PRIx64 "\n", hash);
    CHECK_U64(hash, UINT64_C(0x7c8a3d2bc6641e50));
}

/* ---- all or none ----------------------------------------------------------------------------- */

#define BATCH 5

/* What a batch must answer: each request after those before it; if one is refused, none is carried
 * out, but all keys were seen. */
static bool model_batch(history *h, const ratelimit_request *req, const size_t *k, size_t count,
                        ratelimit_result *want)
{
    static history after;
    bool all = true;
    size_t i;
    after = *h;
    for (i = 0; i < count; i++) {
        const both_limits *limit = &h->limit[h->limit_of_key[k[i]]];
        model_decide(key_of(&after, k[i], limit), &limit->model, &req[i], h->now_ns, false,
                     &want[i]);
        all = all && want[i].allowed;
    }
    if (all)
        *h = after;
    for (i = 0; i < count && !all; i++) {
        const both_limits *limit = &h->limit[h->limit_of_key[k[i]]];
        ratelimit_result spare;
        if (req[i].op != RATELIMIT_PEEK && !model_settled(&limit->model, &req[i], &spare))
            model_see(key_of(h, k[i], limit), &limit->model, h->now_ns);
    }
    return all;
}

/* In a batch of which something was refused: what each result says for sure. */
static void check_refused_batch(const ratelimit_result *got, const ratelimit_result *want,
                                const size_t *k, size_t count)
{
    uint64_t longest = 0;
    size_t i, j, refused = count;
    for (i = 0; i < count; i++)
        if (!want[i].allowed && refused == count)
            refused = i;
    for (i = 0; i < count; i++)
        longest = got[i].retry_after_ns > longest ? got[i].retry_after_ns : longest;
    for (i = 0; i < count; i++) {
        CHECK(!got[i].allowed);
        CHECK_U64(got[i].taken, 0);
        for (j = 0; j < i && k[j] != k[i]; j++)
            continue;
        if (j < i && i > refused)
            continue; /* what a key has after an entry that was not carried out is not said */
        CHECK_U64(got[i].status, want[i].allowed ? RATELIMIT_SKIPPED : want[i].status);
        CHECK_U64(got[i].retry_after_ns, want[i].allowed ? longest : want[i].retry_after_ns);
    }
}

static void batch_step(history *h, ratelimit_table *table, int *passed, int *refused)
{
    ratelimit_request req[BATCH];
    ratelimit_result got[BATCH], want[BATCH];
    size_t i, k[BATCH], count = 1 + random_index(BATCH);
    static history before;
    before = *h;
    for (i = 0; i < count; i++) {
        k[i] = random_index(KEYS);
        req[i] = random_request(h, &h->limit[h->limit_of_key[k[i]]]);
        if (check_below(2) && (req[i].op == RATELIMIT_TAKE || req[i].op == RATELIMIT_CHARGE))
            req[i].n = 1;
        req[i].key = key_names[k[i]];
        req[i].key_len = strlen(key_names[k[i]]);
    }
    h->now_ns += time_on(h, &h->limit[h->limit_of_key[k[0]]]);
    memset(got, 0xA5, sizeof got);
    ratelimit_table_decide(table, req, got, count, RATELIMIT_ALL, h->now_ns);
    if (model_batch(h, req, k, count, want)) {
        (*passed)++;
        for (i = 0; i < count; i++)
            if (!engine_same(&got[i], &want[i]) && check_fault(__FILE__, __LINE__)) {
                printf("request %d of %d, on key %d\n", (int)i, (int)count, (int)k[i]);
                print_request(&h->limit[h->limit_of_key[k[i]]], &req[i], h->now_ns);
                print_state(key_of(&before, k[i], &h->limit[h->limit_of_key[k[i]]]));
            }
    } else {
        (*refused)++;
        check_refused_batch(got, want, k, count);
    }
    h->last = got[0];
}

/* A refused batch sees its keys, and takes nothing, not even from the largest burst there is. */
static void a_refused_batch_takes_nothing_from_the_largest_burst(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100)];
    ratelimit_limit large = ratelimit_limit_make(16, 1, INT64_MAX);
    ratelimit_limit small = ratelimit_limit_make(1, RATELIMIT_SECOND, 1);
    ratelimit_table *table;
    ratelimit_request req[2] = {RATELIMIT_REQUEST("a", 1, NULL, 1),
                                RATELIMIT_REQUEST("b", 1, NULL, 2)};
    ratelimit_result res[2];
    req[0].limit = &large;
    req[1].limit = &small;
    CHECK(ratelimit_table_init(&table, memory, sizeof memory, NULL) == RATELIMIT_OK);
    CHECK(!ratelimit_table_decide(table, req, res, 2, RATELIMIT_ALL, 0));
    CHECK_U64(res[0].status, RATELIMIT_SKIPPED);
    CHECK_U64(res[0].remaining, INT64_MAX);
    CHECK_U64(res[1].status, RATELIMIT_NEVER);
    req[0].n = INT64_MAX;
    CHECK(ratelimit_table_decide(table, req, res, 1, RATELIMIT_ALL, 0));
    CHECK_U64(res[0].taken, INT64_MAX);
}

static void a_batch_of_all_or_none_is_decided_as_the_model_does(void)
{
    static history h;
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100)];
    ratelimit_table *table;
    int i, step, passed = 0, refused = 0;
    for (i = 0; i < 200; i++) {
        history_begin(&h, the_seed + (uint64_t)i);
        h.mixed = false;
        for (step = 0; step < LIMITS; step++)
            h.limit[step].real.scope = (uint32_t)(1 + step);
        CHECK(ratelimit_table_init(&table, memory, sizeof memory, NULL) == RATELIMIT_OK);
        for (step = 0; step < 100; step++)
            batch_step(&h, table, &passed, &refused);
        if (check_faults) {
            printf("    SEED=%" PRIu64 "\n", h.seed);
            return;
        }
    }
    printf("%d batches passed, %d refused\n", passed, refused);
    CHECK(passed > 1000 && refused > 1000);
}

/* The limit changes for the better while a key is used up: a batch that was refused passes at
 * retry_after, as a single take does. */
static void a_refused_batch_keeps_the_change_of_a_limit(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100)];
    ratelimit_limit slow = RATELIMIT_LIMIT_SCOPE(10, RATELIMIT_HOUR, 10, 7);
    ratelimit_limit fast = RATELIMIT_LIMIT_SCOPE(10, RATELIMIT_SECOND, 10, 7);
    ratelimit_table *table;
    ratelimit_request req;
    ratelimit_result res;
    memset(&req, 0, sizeof req);
    req.key = "k";
    req.key_len = 1;
    req.n = 10;
    req.limit = &slow;
    CHECK(ratelimit_table_init(&table, memory, sizeof memory, NULL) == RATELIMIT_OK);
    ratelimit_table_decide(table, &req, &res, 1, RATELIMIT_ALL, 0);
    CHECK(res.allowed);
    req.limit = &fast;
    req.n = 1;
    ratelimit_table_decide(table, &req, &res, 1, RATELIMIT_ALL, 0);
    CHECK(!res.allowed);
    CHECK_U64(res.retry_after_ns, 100 * RATELIMIT_MILLISECOND);
    ratelimit_table_decide(table, &req, &res, 1, RATELIMIT_ALL, 100 * RATELIMIT_MILLISECOND);
    CHECK(res.allowed);
}

/* The clock is set back by an hour: a key asked for in batches only is usable again within one
 * window. */
static void a_refused_batch_keeps_what_a_clock_set_back_was_forgiven(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100)];
    ratelimit_limit limit = ratelimit_limit_make(1, RATELIMIT_SECOND, 1);
    ratelimit_table *table;
    ratelimit_request req;
    ratelimit_result res;
    uint64_t hour = RATELIMIT_HOUR;
    memset(&req, 0, sizeof req);
    req.key = "k";
    req.key_len = 1;
    req.n = 1;
    req.limit = &limit;
    CHECK(ratelimit_table_init(&table, memory, sizeof memory, NULL) == RATELIMIT_OK);
    ratelimit_table_decide(table, &req, &res, 1, RATELIMIT_ALL, 2 * hour);
    CHECK(res.allowed);
    ratelimit_table_decide(table, &req, &res, 1, RATELIMIT_ALL, hour);
    CHECK(!res.allowed);
    ratelimit_table_decide(table, &req, &res, 1, RATELIMIT_ALL, hour + res.retry_after_ns);
    CHECK(res.allowed);
}

/* ---- limits as text and as constants --------------------------------------------------------- */

/* Two limits that must mean the same, through a life of some length. */
static void check_same_decisions(const ratelimit_limit *a, const ratelimit_limit *b)
{
    ratelimit_bucket x = {0, 0}, y = {0, 0};
    ratelimit_result got, want;
    uint64_t now_ns = 0;
    int i;
    for (i = 0; i < 40; i++) {
        ratelimit_request req;
        memset(&req, 0, sizeof req);
        req.op = (ratelimit_op)check_below(RATELIMIT_RESET + 1);
        req.n = 1 + check_below(check_below(2) ? 3 : a->burst);
        req.max_wait_ns = random_bits(40);
        now_ns += check_below(3 * a->interval_ns + 2);
        req.limit = a;
        ratelimit_bucket_decide(&x, &req, now_ns, &want);
        req.limit = b;
        ratelimit_bucket_decide(&y, &req, now_ns, &got);
        CHECK(engine_same(&got, &want));
    }
}

static void a_limit_written_as_text_reads_back_as_the_same_limit(void)
{
    char text[80];
    int run;
    for (run = 0; run < 3000; run++) {
        both_limits limit = random_limit(check_below(3) == 0);
        ratelimit_limit back;
        model_limit model;
        memset(&back, 0, sizeof back);
        CHECK(ratelimit_limit_format(&limit.real, text, sizeof text) < sizeof text);
        CHECK(ratelimit_limit_parse(&back, text) == RATELIMIT_OK);
        CHECK(memcmp(&back, &limit.real, sizeof back) == 0);
        CHECK(model_limit_parse(&model, text));
        CHECK(model.burst == limit.burst && model.kind == limit.model.kind);
        CHECK(wide_equal(model.interval, limit.model.interval));
        check_same_decisions(&limit.real, &back);
    }
}

static void decimals_in_text_are_taken_exactly(void)
{
    char text[80];
    int run;
    for (run = 0; run < 3000; run++) {
        static const char *const units[] = {"ns", "us", "ms", "s", "m", "h", "d", "w"};
        ratelimit_limit limit, whole;
        model_limit model;
        uint64_t tokens = check_below(1000), part = check_below(1000), per = 1 + check_below(100);
        int places = 3 + (int)check_below(3);
        uint64_t burst;
        snprintf(text, sizeof text, "%" PRIu64 ".%0*" PRIu64 "/%" PRIu64 "%s", tokens, places, part,
                 per, units[random_index(8)]);
        if (!model_limit_parse(&model, text) || model.kind == MODEL_BAD) {
            CHECK(ratelimit_limit_parse(&limit, text) == RATELIMIT_BAD_LIMIT);
            continue;
        }
        CHECK(ratelimit_limit_parse(&limit, text) == RATELIMIT_OK);
        burst = limit.burst;
        CHECK_U64(burst, model.burst);
        CHECK_U64(limit.interval_ns, wide_u64(wide_floor(model.interval, model.parts)));
        whole = ratelimit_limit_make(limit.tokens, limit.per_ns, burst);
        check_same_decisions(&limit, &whole);
    }
}

static void a_limit_is_good_just_when_the_model_says_so(void)
{
    int run, bad = 0;
    for (run = 0; run < 30000; run++) {
        uint64_t tokens = random_bits(64), per_ns = random_bits(64), burst = random_bits(64);
        both_limits limit = limit_of(check_below(4) == 0, tokens, per_ns, burst);
        bool good = limit.model.kind != MODEL_BAD;
        bad += !good;
        if ((ratelimit_limit_check(&limit.real) == RATELIMIT_OK) != good &&
            check_fault(__FILE__, __LINE__))
            printf("%s%" PRIu64 " per %" PRIu64 " ns, burst %" PRIu64 " is %s\n",
                   limit.window ? "window " : "", tokens, per_ns, limit.burst,
                   good ? "good, but refused" : "bad, but taken");
    }
    CHECK(bad > 1000 && bad < 29000);
}

/* The same limits by macro and by function. */
#define LIMIT_ROW(tokens, per, burst)                                                              \
  {                                                                                                \
    RATELIMIT_LIMIT(tokens, per, burst), false, tokens, per, burst                                 \
  }
#define WINDOW_ROW(tokens, per)                                                                    \
  {                                                                                                \
    RATELIMIT_WINDOW(tokens, per), true, tokens, per, tokens                                       \
  }
static const struct {
    ratelimit_limit limit;
    bool window;
    uint64_t tokens, per_ns, burst;
} by_macro[] = {
    LIMIT_ROW(1, RATELIMIT_SECOND, 1),
    LIMIT_ROW(10, RATELIMIT_SECOND, 20),
    LIMIT_ROW(7, RATELIMIT_SECOND, 7),
    LIMIT_ROW(3, RATELIMIT_SECOND, 100),
    LIMIT_ROW(30, RATELIMIT_SECOND, 1),
    LIMIT_ROW(60, RATELIMIT_SECOND, 120),
    LIMIT_ROW(1000, RATELIMIT_SECOND, 20000),
    LIMIT_ROW(10, 13 * RATELIMIT_SECOND, 1),
    LIMIT_ROW(5, 1500 * RATELIMIT_MILLISECOND, 5),
    LIMIT_ROW(3355443200u, RATELIMIT_SECOND, 3355443200u),
    LIMIT_ROW(1000000007, RATELIMIT_SECOND, 1000000007),
    LIMIT_ROW(16777215, RATELIMIT_SECOND, 2),
    LIMIT_ROW(16777216, RATELIMIT_SECOND, 2),
    LIMIT_ROW(16777217, RATELIMIT_SECOND, 2),
    LIMIT_ROW(16, 1, 9223372036854775807u),
    LIMIT_ROW(10, 1, 1000),
    LIMIT_ROW(30000000, RATELIMIT_SECOND, 3),
    LIMIT_ROW(16777215000, RATELIMIT_HOUR, 16777215),
    LIMIT_ROW(17000001000, RATELIMIT_HOUR, 17000001),
    LIMIT_ROW(104857600, RATELIMIT_SECOND, 209715200),
    LIMIT_ROW(1099511627777, RATELIMIT_DAY, 1099511627777),
    LIMIT_ROW(20000000000000, 30 * RATELIMIT_DAY, 20000000000000),
    LIMIT_ROW(3000000000000000001, UINT64_C(2000000000000000000), 1000000000),
    LIMIT_ROW(1, RATELIMIT_WEEK, 1),
    LIMIT_ROW(1, UINT64_C(4611686018427387904), 1),
    LIMIT_ROW(4611686018427387904u, UINT64_C(4611686018427387904), 4611686018427387904u),
    WINDOW_ROW(3, RATELIMIT_MINUTE),
    WINDOW_ROW(7, RATELIMIT_SECOND),
    WINDOW_ROW(1000000007, RATELIMIT_SECOND),
    WINDOW_ROW(1, RATELIMIT_WEEK),
};

static void a_limit_by_macro_decides_as_the_same_by_function(void)
{
    size_t i, j;
    for (i = 0; i < sizeof by_macro / sizeof by_macro[0]; i++) {
        both_limits made =
            limit_of(by_macro[i].window, by_macro[i].tokens, by_macro[i].per_ns, by_macro[i].burst);
        CHECK_U64(ratelimit_limit_check(&by_macro[i].limit), RATELIMIT_OK);
        CHECK_U64(by_macro[i].limit.burst, by_macro[i].burst);
        for (j = 0; j < 50; j++)
            check_same_decisions(&made.real, &by_macro[i].limit);
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    the_seed = check_seed(1);
    RUN(every_engine_decides_random_histories_as_the_model_does);
    check_random_state = the_seed;
    RUN(in_no_span_passes_more_than_burst_and_rate_allow);
    RUN(with_reservations_cancelled_no_span_sees_more_act_than_burst_and_rate_allow);
    RUN(who_takes_at_retry_after_gets_all_that_burst_and_rate_allow);
    RUN(peek_changes_nothing_and_says_what_take_would);
    RUN(a_take_at_retry_after_passes_and_one_ns_earlier_does_not);
    RUN(a_reservation_given_back_leaves_the_bucket_as_it_was);
    RUN(going_back_and_forth_between_two_limits_stays_within_its_bound);
    RUN(equal_inputs_give_equal_answers_on_every_platform);
    RUN(a_batch_of_all_or_none_is_decided_as_the_model_does);
    RUN(a_refused_batch_takes_nothing_from_the_largest_burst);
    RUN(a_refused_batch_keeps_the_change_of_a_limit);
    RUN(a_refused_batch_keeps_what_a_clock_set_back_was_forgiven);
    check_random_state = the_seed;
    RUN(a_limit_written_as_text_reads_back_as_the_same_limit);
    RUN(decimals_in_text_are_taken_exactly);
    RUN(a_limit_is_good_just_when_the_model_says_so);
    RUN(a_limit_by_macro_decides_as_the_same_by_function);
    return check_end();
}

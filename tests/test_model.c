/* test_model.c - random histories on every engine of ratelimit.h against the model, and the laws that no history may break.
 *
 *     test_model              SEED=n in the environment replays: it is the seed of the first history
 *
 * A history that goes wrong is printed with its own seed, the step, the limit, the request and the state before it. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "check.h"
#include "engines.h"
#include "model.h"

static uint64_t the_seed;

/* ---- random limits -------------------------------------------------------------------------------------------- */

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

static uint64_t pick(const uint64_t *from, size_t count)
{
    return from[check_below(count)];
}
#define PICK(from) pick(from, sizeof from / sizeof from[0])

static uint64_t random_tokens(void)
{
    static const uint64_t odd[] = {
        3,        7,        11,         13,         30,        60,         97,      999,
        16777213, 16777215, 16777216,   16777217,   100000007, 1000000007, 4294967, 3355443200u,
        32749,    30000,    4294967296, 4294967291, 65537};
    switch (check_below(4)) {
    case 0:
        return PICK(odd);
    case 1:
        return random_bits(20);
    default:
        return 1 + check_below(20);
    }
}

static uint64_t random_per(void)
{
    static const uint64_t units[] = {
        RATELIMIT_NANOSECOND, RATELIMIT_MICROSECOND, RATELIMIT_MILLISECOND,
        RATELIMIT_SECOND,     RATELIMIT_SECOND,      RATELIMIT_MINUTE,
        RATELIMIT_HOUR,       RATELIMIT_DAY,         RATELIMIT_WEEK};
    return PICK(units) * (check_below(3) ? 1 : 1 + check_below(60));
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
        limit = limit_of(window, tokens, per_ns, check_below(3) ? 1 + check_below(20) : random_bits(40));
    } while (limit.model.kind == MODEL_BAD);
    return limit;
}

/* ---- printing ------------------------------------------------------------------------------------------------- */

static const char *op_name(ratelimit_op op)
{
    static const char *const names[] = {"take",   "take_up_to", "peek",  "reserve",
                                        "charge", "refund",     "block", "reset"};
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
    printf("    before, model: full");
    print_wide("low", key->low.full);
    print_wide("high", key->high.full);
    print_wide("in parts of a ns:", key->limit.parts);
    print_wide("seen", key->low.seen);
    print_wide("interval", key->limit.interval);
    printf("\n");
}

/* ---- a history ------------------------------------------------------------------------------------------------ */

#define KEYS 4
#define STEPS 300
#define LIMITS 3

typedef struct history {
    uint64_t seed;
    bool forward; /* time never goes back */
    bool mixed;   /* keys change limits */
    uint64_t now_ns;
    both_limits limit[LIMITS];
    size_t limit_of_key[KEYS];
    model_key key[KEYS];
    ratelimit_result last; /* the answer before */
} history;

static const char *const key_names[KEYS] = {"alice", "bob", "c", "a key of more than 24 bytes"};

static bool all_exact(const history *h)
{
    size_t i;
    for (i = 0; i < KEYS; i++)
        if (!model_exact(&h->key[i]))
            return false;
    return true;
}

static void history_begin(history *h, uint64_t seed)
{
    static const uint64_t starts[] = {0, 1, 1000000000000000000u, UINT64_MAX / 2,
                                      UINT64_MAX - 100000000000u};
    size_t i;
    memset(h, 0, sizeof *h);
    check_random_state = h->seed = seed;
    h->forward = check_below(2);
    h->mixed = check_below(3) == 0;
    h->now_ns = PICK(starts);
    for (i = 0; i < LIMITS; i++)
        h->limit[i] = random_limit(i == 2);
    if (check_below(2)) /* the same period and other tokens, as limits change */
        h->limit[1] =
            limit_of(false, 1 + check_below(100), h->limit[0].per_ns, 1 + check_below(100));
    if (h->limit[1].model.kind == MODEL_BAD)
        h->limit[1] = h->limit[0];
    for (i = 0; i < KEYS; i++)
        h->limit_of_key[i] = i % LIMITS;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return b > UINT64_MAX - a ? UINT64_MAX : a + b;
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
        return limit->window ? limit->per_ns - h->now_ns % limit->per_ns - check_below(2) : interval;
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

static void move_time(history *h, const both_limits *limit)
{
    if (h->forward || check_below(8) || !all_exact(h)) {
        h->now_ns = plus(h->now_ns, time_on(h, limit));
    } else {
        uint64_t back = time_back(h);
        h->now_ns = back > h->now_ns ? 0 : h->now_ns - back;
    }
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
    switch (check_below(6)) {
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
    static const uint64_t ops[] = {
        RATELIMIT_TAKE,    RATELIMIT_TAKE,   RATELIMIT_TAKE,   RATELIMIT_TAKE,
        RATELIMIT_TAKE,    RATELIMIT_TAKE,   RATELIMIT_TAKE,   RATELIMIT_TAKE_UP_TO,
        RATELIMIT_PEEK,    RATELIMIT_PEEK,   RATELIMIT_RESERVE, RATELIMIT_RESERVE,
        RATELIMIT_CHARGE,  RATELIMIT_REFUND, RATELIMIT_REFUND};
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

static bool same_result(const ratelimit_result *a, const ratelimit_result *b)
{
    return a->allowed == b->allowed && a->status == b->status && a->limit == b->limit &&
           a->remaining == b->remaining && a->taken == b->taken &&
           a->retry_after_ns == b->retry_after_ns && a->reset_after_ns == b->reset_after_ns &&
           a->wait_ns == b->wait_ns;
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

/* One request on every engine. False if any was wrong. */
static bool history_step(history *h, const engine *all, int step)
{
    char why[200];
    ratelimit_result first, other;
    size_t i, k = check_below(KEYS);
    const both_limits *limit;
    model_key before = h->key[k];
    ratelimit_request req;
    if (h->mixed && check_below(20) == 0)
        h->limit_of_key[k] = check_below(LIMITS);
    limit = &h->limit[h->limit_of_key[k]];
    move_time(h, limit);
    req = random_request(h, limit);
    req.key = key_names[k];
    req.key_len = strlen(key_names[k]);
    memset(&first, 0xA5, sizeof first);
    all[0].decide(all[0].self, &req, h->now_ns, &first);
    if (!model_judge(&h->key[k], &limit->model, &req, h->now_ns, &first, why, sizeof why)) {
        if (check_fault(__FILE__, __LINE__))
            print_fault(h, step, limit, &req, &before, all[0].name, why);
        return false;
    }
    for (i = 1; i < ENGINES; i++) {
        if (all[i].forward_only && !h->forward)
            continue;
        memset(&other, 0xA5, sizeof other);
        all[i].decide(all[i].self, &req, h->now_ns, &other);
        if (!same_result(&first, &other)) {
            if (check_fault(__FILE__, __LINE__))
                print_fault(h, step, limit, &req, &before, all[i].name, "another answer than bucket");
            return false;
        }
    }
    h->last = first;
    return true;
}

static void every_engine_decides_random_histories_as_the_model_does(void)
{
    static history h;
    engine all[ENGINES];
    int i, step, inexact = 0;
    engines_open(all);
    for (i = 0; i < 500; i++) {
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

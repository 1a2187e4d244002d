/* test_arithmetic.c - the arithmetic of a bucket against exact whole numbers that share nothing
 * with it: small numbers exhaustively, large ones at their borders. tests/z3 proves the laws of the
 * quick way, of spans and of divisions by multiplication for all values; here is tested what the C
 * makes of them, and what is not proven: changed limits, the way a fraction is stored.
 *
 *     cc -std=c99 -O2 -I. -Itests tests/test_arithmetic.c
 */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "check.h"
#include "model.h"

static uint64_t decisions;

/* ---- every small limit, every short history -------------------------------------------------- */

/* A bucket as one number: what it owes, in 1/tokens ns (an interval is then per, and all is whole).
 * Small numbers only: nothing here can overflow. */
typedef struct exact {
    uint64_t tokens, per, burst; /* per and debt in 1/tokens ns */
    uint64_t debt, at;
} exact;

static void exact_at(exact *e, uint64_t now)
{
    uint64_t passed = (now - e->at) * e->tokens;
    e->debt = e->debt > passed ? e->debt - passed : 0;
    e->at = now;
}

static bool exact_take(exact *e, uint64_t n, ratelimit_result *want)
{
    uint64_t cost = n * e->per, window = e->burst * e->per, lacks;
    memset(want, 0, sizeof *want);
    want->burst = e->burst;
    if (n > e->burst) {
        want->status = RATELIMIT_NEVER;
        want->retry_after_ns = RATELIMIT_FOREVER;
    } else if (e->debt + cost > window) {
        lacks = e->debt + cost - window;
        want->status = RATELIMIT_DENIED;
        want->retry_after_ns = (lacks + e->tokens - 1) / e->tokens;
    } else {
        want->allowed = true;
        want->taken = n;
        e->debt += cost;
    }
    want->remaining = (window - e->debt) / e->per;
    want->reset_after_ns = (e->debt + e->tokens - 1) / e->tokens;
    return want->allowed;
}

static bool same(const ratelimit_result *a, const ratelimit_result *b)
{
    return a->allowed == b->allowed && a->status == b->status && a->burst == b->burst &&
           a->remaining == b->remaining && a->taken == b->taken &&
           a->retry_after_ns == b->retry_after_ns && a->reset_after_ns == b->reset_after_ns;
}

/* One take by every way, then all takes that may follow it. */
static void try_all(const ratelimit_limit *l, exact e, ratelimit_bucket b, uint64_t now, int left)
{
    uint64_t n, wait, waits = (e.per + e.tokens - 1) / e.tokens + 1;
    for (wait = 0; wait <= waits; wait++)
        for (n = 1; n <= e.burst + 1; n++) {
            exact next = e;
            ratelimit_bucket quick = b, silent = b, general = b;
            ratelimit_request q = RATELIMIT_REQUEST(NULL, 0, NULL, 0);
            ratelimit_result want, got, slow;
            q.limit = l;
            q.n = n;
            exact_at(&next, now + wait);
            (void)exact_take(&next, n, &want);
            CHECK(ratelimit_bucket_take(&quick, l, n, now + wait, &got) == want.allowed);
            CHECK(ratelimit_bucket_take(&silent, l, n, now + wait, NULL) == want.allowed);
            CHECK(ratelimit_bucket_decide(&general, &q, now + wait, &slow) == want.allowed);
            CHECK(same(&got, &want) && same(&slow, &want));
            CHECK(quick.full_ns == general.full_ns && quick.rest == general.rest);
            CHECK(silent.full_ns == general.full_ns && silent.rest == general.rest);
            decisions += 3;
            if (check_faults)
                return;
            if (left > 1)
                try_all(l, next, quick, now + wait, left - 1);
        }
}

static void small_limits(int depth, uint64_t most)
{
    static const uint64_t starts[] = {0, 1000, UINT64_MAX - 3, UINT64_MAX / 2 - 2};
    uint64_t tokens, per, burst;
    unsigned i;
    for (tokens = 1; tokens <= most; tokens++)
        for (per = 1; per <= 2 * most; per++)
            for (burst = 1; burst <= 3; burst++)
                for (i = 0; i < 4; i++) {
                    ratelimit_limit l = ratelimit_limit_make(tokens, per, burst);
                    ratelimit_bucket b = {0, 0};
                    exact e = {0, 0, 0, 0, 0};
                    e.tokens = tokens;
                    e.per = per;
                    e.burst = burst;
                    e.at = starts[i];
                    try_all(&l, e, b, starts[i], depth);
                }
}

static void every_small_limit_decides_every_short_history_exactly(void)
{
    bool longer = getenv("ARITHMETIC") != NULL; /* long: minutes */
    small_limits(3, longer ? 9 : 5);
    small_limits(longer ? 5 : 4, longer ? 4 : 2);
    printf("%" PRIu64 " decisions\n", decisions);
    CHECK(decisions > 1000000);
}

/* ---- fractions ------------------------------------------------------------------------------- */

/* A fraction is stored as F = ceil(part x 2^24 / parts), and comes back as it was. */
static void check_fraction(uint32_t parts, uint32_t part)
{
    ratelimit_limit l;
    uint64_t packed;
    memset(&l, 0, sizeof l);
    l.parts = parts;
    l.inverse = ((UINT64_C(1) << 63) + parts - 1) / parts;
    packed = ratelimit_priv_pack(part, &l);
    CHECK_U64(packed, (((uint64_t)part << 24) + parts - 1) / parts);
    CHECK_U64(ratelimit_priv_unpack(packed, &l), part);
}

static void every_fraction_comes_back_as_it_was_stored(void)
{
    uint32_t d, f, step = getenv("ARITHMETIC") ? 1 : 61;
    for (d = 2; d <= 1500; d++)
        for (f = 0; f < d; f++)
            check_fraction(d, f);
    for (d = 1501; d <= 1u << 24; d += step) {
        check_fraction(d, 1);
        check_fraction(d, d / 2);
        check_fraction(d, d - 1);
    }
    for (f = 0; f < 1u << 24; f += step) {
        check_fraction((1u << 24) - 1, f < (1u << 24) - 1 ? f : 0);
        check_fraction(1u << 24, f);
    }
}

/* ---- borders --------------------------------------------------------------------------------- */

/* Powers of two, and two less to two more. */
static size_t borders(uint64_t out[], unsigned from, unsigned to, unsigned step)
{
    size_t count = 0;
    unsigned bit, k;
    for (bit = from; bit <= to; bit += step)
        for (k = 0; k < 5; k++) {
            uint64_t value = (UINT64_C(1) << bit) + k - 2;
            if (value - 1 < UINT64_C(0x7fffffffffffffff))
                out[count++] = value;
        }
    return count;
}

static bool wide_is(uint64_t got, wide want)
{
    return wide_equal(wide_of(got), want);
}

/* What n tokens cost, and how many fit in a span, at the borders of all widths. */
static void costs_and_counts_are_exact_at_all_borders(void)
{
    uint64_t t[400], p[400], n[400], good = 0, count;
    size_t ts = borders(t, 0, 62, 7), ps = borders(p, 0, 62, 6), ns = borders(n, 0, 62, 9), i, j, k;
    for (i = 0; i < ts; i++)
        for (j = 0; j < ps; j++) {
            ratelimit_limit l = ratelimit_limit_make(t[i], p[j], 1);
            wide d = wide_of(l.parts), interval, cost, rest;
            if (l.kind != RATELIMIT_PRIV_BUCKET)
                continue;
            good++;
            interval = wide_add(wide_mul(wide_of(l.interval_ns), d), wide_of(l.interval_part));
            for (k = 0; k < ns; k++) {
                ratelimit_priv_span span;
                bool fits = ratelimit_priv_cost(&l, n[k], &span);
                cost = wide_mul(wide_of(n[k]), interval);
                if (fits)
                    CHECK(wide_equal(cost,
                                     wide_add(wide_mul(wide_of(span.ns), d), wide_of(span.part))));
                else
                    CHECK(wide_less(wide_power(62), wide_ceil(cost, d)));
                span = ratelimit_priv_span_of(n[k] <= RATELIMIT_PRIV_MAX ? n[k] : 0, l.parts - 1);
                count = ratelimit_priv_count(&l, span);
                cost = wide_add(wide_mul(wide_of(span.ns), d), wide_of(span.part));
                CHECK(wide_is(count, wide_divide(cost, interval, &rest)));
            }
        }
    printf("%" PRIu64 " limits\n", good);
    CHECK(good > 500);
}

/* The quick way and the general way, where full_ns, now and the debt are at their borders. */
static void both_ways_are_the_same_at_all_borders(void)
{
    static const uint64_t times[] = {
        0, 1, 1000, UINT64_MAX / 2, UINT64_MAX / 2 + 1, UINT64_MAX - 1, UINT64_MAX};
    uint64_t p[400], debts[400];
    size_t ps = borders(p, 0, 60, 4), ds = borders(debts, 0, 62, 3), i, j, k, m, tried = 0;
    static const uint64_t bursts[] = {1, 2, 3, 1000};
    for (i = 0; i < ps; i++)
        for (m = 0; m < 4; m++) {
            ratelimit_limit l = ratelimit_limit_make(1, p[i], bursts[m]);
            if (l.kind != RATELIMIT_PRIV_BUCKET)
                continue;
            for (j = 0; j < ds; j++)
                for (k = 0; k < sizeof times / sizeof times[0]; k++) {
                    ratelimit_bucket quick, general;
                    ratelimit_request q = RATELIMIT_REQUEST(NULL, 0, NULL, 0);
                    ratelimit_result a, b;
                    uint64_t n = 1 + j % bursts[m], now = times[k];
                    quick.full_ns = j % 3 ? now + debts[j] : now - debts[j];
                    quick.rest = l.state | ratelimit_priv_seen_bits(debts[j]);
                    general = quick;
                    q.limit = &l;
                    q.n = n;
                    (void)ratelimit_bucket_take(&quick, &l, n, now, &a);
                    (void)ratelimit_bucket_decide(&general, &q, now, &b);
                    CHECK(same(&a, &b));
                    CHECK(quick.full_ns == general.full_ns && quick.rest == general.rest);
                    tried++;
                }
        }
    printf("%zu states\n", tried);
    CHECK(tried > 50000);
}

/* ---- a changed limit ------------------------------------------------------------------------- */

/* At the same moment, tokens spent under one limit are spent under another: up to 65,535 exactly,
 * all else never less, and more by one part in 65,536 at most (and by what a ns is worth). */
static void a_changed_limit_keeps_what_was_spent(void)
{
    static const uint64_t intervals[] = {
        1, 3, 7, 100, 999, 4096, 1000000, 999999937, 60000000000, UINT64_C(2592000000000000)};
    static const uint64_t spent[] = {1,
                                     2,
                                     3,
                                     17,
                                     1000,
                                     65534,
                                     65535,
                                     65536,
                                     65537,
                                     1000003,
                                     UINT64_C(4398046511104),
                                     UINT64_C(5000000000000)};
    const uint64_t burst = UINT64_C(100000000000000);
    size_t i, j, k, tried = 0;
    for (i = 0; i < sizeof intervals / sizeof intervals[0]; i++)
        for (j = 0; j < sizeof intervals / sizeof intervals[0]; j++)
            for (k = 0; k < sizeof spent / sizeof spent[0]; k++) {
                uint64_t room = UINT64_C(0x3fffffffffffffff), most;
                ratelimit_limit from, to;
                ratelimit_bucket b = {0, 0};
                ratelimit_request q = RATELIMIT_REQUEST(NULL, 0, NULL, 0);
                ratelimit_result r;
                room /= intervals[i] > intervals[j] ? intervals[i] : intervals[j];
                room = room < burst ? room : burst;
                if (spent[k] > room / 2)
                    continue;
                from = ratelimit_limit_make(1, intervals[i], room);
                to = ratelimit_limit_make(1, intervals[j], room);
                CHECK(ratelimit_bucket_take(&b, &from, spent[k], 12345, NULL));
                q.limit = &to;
                q.op = RATELIMIT_PEEK;
                (void)ratelimit_bucket_decide(&b, &q, 12345, &r);
                most = spent[k] <= 65535 ? spent[k] : spent[k] + spent[k] / 65536 + 1;
                CHECK(room - r.remaining >= spent[k] && room - r.remaining <= most);
                tried++;
            }
    printf("%zu changes\n", tried);
    CHECK(tried > 400);
}

/* ---- many random decisions ------------------------------------------------------------------- */

/* What is owed in 1/tokens ns, exactly. Where there are no 128 bits limits are smaller. */
#if defined(__SIZEOF_INT128__)
__extension__ typedef unsigned __int128 whole;
enum { TOKEN_BITS = 24, WINDOW_BITS = 61 };
#else
typedef uint64_t whole;
enum { TOKEN_BITS = 20, WINDOW_BITS = 40 };
#endif

typedef struct account {
    uint64_t tokens, per, burst;
    whole debt;
} account;

static uint64_t ns_of(whole debt, const account *a)
{
    return (uint64_t)((debt + a->tokens - 1) / a->tokens);
}

static void account_decide(account *a, const ratelimit_request *q, ratelimit_result *r)
{
    const whole window = (whole)a->burst * a->per, left = window > a->debt ? window - a->debt : 0;
    const uint64_t there = (uint64_t)(left / a->per);
    const bool asks = q->op <= RATELIMIT_RESERVE;
    uint64_t n = q->op == RATELIMIT_TAKE_UP_TO ? 1 : q->n;
    whole cost = (whole)n * a->per;
    memset(r, 0, sizeof *r);
    r->burst = a->burst;
    if (asks && n > a->burst) {
        r->status = RATELIMIT_NEVER;
        r->retry_after_ns = RATELIMIT_FOREVER;
    } else if (asks && cost > left) {
        r->status = RATELIMIT_DENIED;
        r->retry_after_ns = ns_of(a->debt + cost - window, a);
        if (q->op == RATELIMIT_RESERVE && r->retry_after_ns <= q->max_wait_ns) {
            r->status = RATELIMIT_OK;
            r->wait_ns = r->retry_after_ns;
            r->retry_after_ns = 0;
        } else if (q->op == RATELIMIT_RESERVE) {
            r->status = RATELIMIT_TIMEOUT;
        }
    }
    r->allowed = r->status == RATELIMIT_OK;
    if (q->op == RATELIMIT_TAKE_UP_TO && r->allowed)
        n = q->n < there ? q->n : there;
    if (q->op == RATELIMIT_REFUND) {
        r->taken = cost > a->debt ? (uint64_t)(a->debt / a->per) : n;
        a->debt -= cost > a->debt ? a->debt : cost;
    } else if (r->allowed && q->op != RATELIMIT_PEEK) {
        r->taken = n;
        a->debt += (whole)n * a->per;
    }
    r->remaining = window > a->debt ? (uint64_t)((window - a->debt) / a->per) : 0;
    r->reset_after_ns = ns_of(a->debt, a);
    if (q->op == RATELIMIT_CHARGE && a->debt + a->per > window)
        r->wait_ns = ns_of(a->debt + a->per - window, a);
}

static uint64_t bits(unsigned most)
{
    unsigned shift = 64 - 1 - (unsigned)check_below(most);
    return check_random() >> shift | 1;
}

/* A limit whose fraction is kept exactly, and whose window fits. */
static ratelimit_limit random_limit(account *a)
{
    ratelimit_limit l;
    memset(a, 0, sizeof *a);
    do {
        a->tokens = bits(TOKEN_BITS);
        a->per = a->tokens * (check_below(2) ? 1 : 0) + bits(WINDOW_BITS - 1);
        a->burst = check_below(2) ? 1 + check_below(20) : bits(30);
        l = ratelimit_limit_make(a->tokens, a->per, a->burst);
    } while (l.kind != RATELIMIT_PRIV_BUCKET || l.window_ns >> WINDOW_BITS);
    return l;
}

static uint64_t every_engine_once(uint64_t seed)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(12)];
    static const ratelimit_op ops[] = {RATELIMIT_TAKE,    RATELIMIT_TAKE,       RATELIMIT_TAKE,
                                       RATELIMIT_TAKE,    RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,
                                       RATELIMIT_RESERVE, RATELIMIT_CHARGE,     RATELIMIT_REFUND};
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    ratelimit_bucket b = {0, 0}, shared = {0, 0};
    account a;
    ratelimit_limit l;
    uint64_t now, done = 0;
    int step;
    check_random_state = seed;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    CHECK(ratelimit_table_init(&t, memory, sizeof memory, &options) == RATELIMIT_OK);
    l = random_limit(&a);
    now = check_random();
    for (step = 0; step < 1000 && !check_faults; step++) {
        const uint64_t interval = l.interval_ns + 1, some = a.burst < 1000 ? a.burst : 1000;
        ratelimit_request q = RATELIMIT_REQUEST(&step, sizeof step, NULL, 0);
        ratelimit_result want, got[3];
        uint64_t passed = check_below(3) ? check_below(2 * interval) : 0;
        const char key = 'k';
        whole gone;
        if (check_below(50) == 0)
            passed = check_below((UINT64_C(1) << (WINDOW_BITS - 2)));
        now += passed;
        gone = (whole)passed * a.tokens;
        a.debt -= gone < a.debt ? gone : a.debt;
        q.key = &key;
        q.key_len = 1;
        q.limit = &l;
        q.op = ops[check_below(sizeof ops / sizeof ops[0])];
        if ((q.op == RATELIMIT_CHARGE || q.op == RATELIMIT_RESERVE) &&
            a.debt > 2 * (whole)a.burst * a.per)
            q.op = RATELIMIT_TAKE;
        q.n = 1 + check_below(check_below(3) ? 2 : some);
        q.max_wait_ns = check_below(2) ? check_below(4 * interval) : 0;
        account_decide(&a, &q, &want);
        if (q.op == RATELIMIT_TAKE) {
            (void)ratelimit_bucket_take(&b, &l, q.n, now, &got[0]);
            (void)ratelimit_table_take(t, &key, 1, &l, q.n, now, &got[1]);
        } else {
            (void)ratelimit_bucket_decide(&b, &q, now, &got[0]);
            (void)ratelimit_table_decide_one(t, &q, now, &got[1]);
        }
        got[2] = got[1];
#if defined(RATELIMIT_PRIV_SHARED)
        if (q.op == RATELIMIT_TAKE)
            (void)ratelimit_bucket_take_shared(&shared, &l, q.n, now, &got[2]);
        else
            (void)ratelimit_bucket_decide_shared(&shared, &q, now, &got[2]);
#else
        (void)shared;
#endif
        CHECK(same(&got[0], &want) && got[0].wait_ns == want.wait_ns);
        CHECK(same(&got[1], &want) && got[1].wait_ns == want.wait_ns);
        CHECK(same(&got[2], &want) && got[2].wait_ns == want.wait_ns);
        if (check_faults)
            printf("  SEED=%" PRIu64 " step %d: op %d of %" PRIu64 ", %" PRIu64 "/%" PRIu64
                   " ns burst %" PRIu64 "\n",
                   seed, step, (int)q.op, q.n, a.tokens, a.per, a.burst);
        done += 3;
    }
    return done;
}

/* DECISIONS=1000000000 for a long run; the seed of a history that fails is printed. */
static void random_decisions_of_every_engine_are_exact(void)
{
    const char *text = getenv("DECISIONS");
    uint64_t most = text ? (uint64_t)strtoull(text, NULL, 0) : 1000000, done = 0, state;
    check_seed(1);
    while (done < most && !check_faults) {
        uint64_t seed = check_random();
        state = check_random_state;
        done += every_engine_once(seed);
        check_random_state = state;
    }
    printf("%" PRIu64 " random decisions\n", done);
    CHECK(done >= most);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(every_small_limit_decides_every_short_history_exactly);
    RUN(every_fraction_comes_back_as_it_was_stored);
    RUN(costs_and_counts_are_exact_at_all_borders);
    RUN(both_ways_are_the_same_at_all_borders);
    RUN(a_changed_limit_keeps_what_was_spent);
    RUN(random_decisions_of_every_engine_are_exact);
    return check_end();
}

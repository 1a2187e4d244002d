/* test_limit.c - limits: the macros against the functions, what fits and what does not, scopes,
 * text in and out. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK     RATELIMIT_OK
#define BAD    RATELIMIT_BAD_LIMIT
#define SYNTAX RATELIMIT_SYNTAX

#define P62 (UINT64_C(1) << 62)
#define P63 (UINT64_C(1) << 63)
#define P59 (UINT64_C(1) << 59)
#define P24 (UINT64_C(1) << 24)

/* ---- wide numbers, the slow way -------------------------------------------------------------- */

typedef struct wide {
    uint64_t high, low;
} wide;

static wide wide_product(uint64_t a, uint64_t b)
{
    uint64_t al = a & UINT32_MAX, ah = a >> 32, bl = b & UINT32_MAX, bh = b >> 32;
    uint64_t low = al * bl, middle = ah * bl + (low >> 32), other = al * bh + (middle & UINT32_MAX);
    wide w;
    w.high = ah * bh + (middle >> 32) + (other >> 32);
    w.low = (other << 32) | (low & UINT32_MAX);
    return w;
}

/* Below 0, 0 or above 0 as a is below, at or above b. */
static int wide_compare(wide a, wide b)
{
    if (a.high != b.high)
        return a.high < b.high ? -1 : 1;
    return a.low < b.low ? -1 : a.low > b.low;
}

/* ---- made by macro and by function ----------------------------------------------------------- */

typedef struct made {
    uint64_t tokens, per_ns, burst;
    ratelimit_limit limit; /* by the macro */
    ratelimit_status status;
} made;

#define MADE(tokens, per_ns, burst, status)                                                        \
  {                                                                                                \
    (uint64_t)(tokens), (uint64_t)(per_ns), (uint64_t)(burst),                                     \
        RATELIMIT_LIMIT(tokens, per_ns, burst), status                                             \
  }

static const made rows[] = {
    /* everyday limits */
    MADE(1, SEC, 1, OK),
    MADE(10, SEC, 20, OK),
    MADE(5, MINUTE, 10, OK),
    MADE(1, DAY, 1, OK),
    MADE(15000, DAY, 15000, OK),
    MADE(1, RATELIMIT_WEEK, 3, OK),
    MADE(1000000000, SEC, 1000000000, OK),
    /* intervals that are no whole number of ns, and the largest denominators that are exact */
    MADE(7, SEC, 7, OK),
    MADE(3, 10 * SEC, 3, OK),
    MADE(4294967, SEC, 4294967, OK),
    MADE(UINT64_C(3355443200), SEC, UINT64_C(3355443200), OK),
    MADE(P24 - 3, SEC, 100, OK), /* a prime */
    MADE(P24 - 1, SEC, 100, OK),
    MADE(P24, SEC + 1, 100, OK),
    MADE(2 * P24, 2 * (SEC + 1), 100, OK), /* above it: rounded up */
    MADE(2 * P24, SEC + 1, 100, OK),
    MADE(100 * 1024 * 1024, SEC, 100 * 1024 * 1024, OK),                    /* 100 MiB a second */
    MADE(UINT64_C(10000000000000), 30 * DAY, UINT64_C(10000000000000), OK), /* 10 TB a month */
    MADE(P24 + 43, SEC, 100, OK),                                           /* the next prime */
    MADE(1000000007, SEC, 1, OK),
    MADE(1000000007, SEC, 1000000007, OK),
    MADE(UINT64_C(999999999989), 1000 * SEC, 5, OK),
    MADE(P63 - 1, P62, 1, OK),
    MADE(P63 - 1, P62, P62, OK),
    MADE(P62 - 1, P62, 3, OK), /* a hair above 1 ns */
    /* up to 16 a ns */
    MADE(16, 1, 1, OK),
    MADE(17, 1, 1, BAD),
    MADE(15, 1, 1, OK),
    MADE(16 * SEC, SEC, 16 * SEC, OK),
    MADE(16 * SEC + 1, SEC, 1, BAD),
    MADE(P63 - 1, P59, 1, OK),
    MADE(P63 - 1, P59 - 1, 1, BAD),
    MADE(P63 - 1, SEC, 1, BAD),
    MADE(P63 - 1, 1, 1, BAD),
    MADE(UINT64_C(1000000000000000003), SEC, 1, BAD),
    /* zero */
    MADE(0, 0, 0, BAD),
    MADE(0, SEC, 1, BAD),
    MADE(1, 0, 1, BAD),
    MADE(1, SEC, 0, BAD),
    MADE(0, SEC, 0, BAD),
    MADE(0, 0, 1, BAD),
    /* negative numbers */
    MADE(-1, SEC, 1, BAD),
    MADE(1, -1, 1, BAD),
    MADE(1, SEC, -1, BAD),
    MADE(INT64_MIN, SEC, 1, BAD),
    MADE(1, INT64_MIN, 1, BAD),
    MADE(1, SEC, INT64_MIN, BAD),
    MADE(-1, -1, -1, BAD),
    /* tokens up to 2^63 - 1 */
    MADE(P63, P62, 1, BAD),
    MADE(P63 + 1, P62, 1, BAD),
    MADE(UINT64_MAX, P62, 1, BAD),
    /* a period up to 2^62 */
    MADE(1, P62 - 1, 1, OK),
    MADE(1, P62, 1, OK),
    MADE(1, P62 + 1, 1, BAD),
    MADE(1000, P62, 1000, OK),
    MADE(1000, P62 + 1, 1, BAD),
    MADE(1, UINT64_MAX, 1, BAD),
    /* a window up to 2^62 */
    MADE(1, P62 / 2 - 1, 2, OK),
    MADE(1, P62 / 2, 2, OK),
    MADE(1, P62 / 2 + 1, 2, BAD),
    MADE(1, 1, P62 - 1, OK),
    MADE(1, 1, P62, OK),
    MADE(1, 1, P62 + 1, BAD),
    MADE(1, P62, 2, BAD),
    MADE(3, P62, 3, OK),
    MADE(3, P62, 4, BAD),
    MADE(3, 3, P62, OK),
    MADE(3, 3, P62 + 1, BAD),
    MADE(3, 4, P62 / 4 * 3, OK),
    MADE(3, 4, P62 / 4 * 3 + 1, BAD),
    MADE(2, 1, P63 - 1, OK),
    /* a burst up to 2^63 - 1 */
    MADE(4, 1, P63 - 1, OK),
    MADE(16, 1, P63 - 1, OK),
    MADE(3, 1, P63 - 1, OK),
    MADE(4, 1, P63, BAD),
    MADE(2, 1, P63, BAD),
    /* products that wrap to something small */
    MADE(1, UINT64_C(1) << 32, UINT64_C(1) << 32, BAD),
    MADE(1, UINT64_C(1) << 40, UINT64_C(1) << 40, BAD),
    MADE(1, P62, P62, BAD),
    MADE(1, UINT64_C(6148914691236517206), 3, BAD),
};

static void check_equal(const ratelimit_limit *a, const ratelimit_limit *b)
{
    CHECK_U64(a->tokens, b->tokens);
    CHECK_U64(a->per_ns, b->per_ns);
    CHECK_U64(a->burst, b->burst);
    CHECK_U64(a->scope, b->scope);
    CHECK(memcmp(a, b, sizeof *a) == 0); /* and what is computed in advance */
}

static void each_limit_is_good_or_bad_as_documented(void)
{
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_limit limit = ratelimit_limit_make(rows[i].tokens, rows[i].per_ns, rows[i].burst);
        place("made", 0, i);
        CHECK_U64(ratelimit_limit_check(&limit), rows[i].status);
        CHECK_U64(ratelimit_limit_check(&rows[i].limit), rows[i].status);
    }
    place_end();
}

/* Also what is bad: nothing is left for later. */
static void the_macro_makes_what_the_function_makes(void)
{
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_limit limit = ratelimit_limit_make(rows[i].tokens, rows[i].per_ns, rows[i].burst);
        place("made", 0, i);
        check_equal(&rows[i].limit, &limit);
    }
    place_end();
}

/* Review B6: the macro left it unfinished, and each call computed it once more. */
static void a_hundred_mebibytes_a_second_are_computed_in_advance(void)
{
    static const ratelimit_limit macro =
        RATELIMIT_LIMIT(100 * 1024 * 1024, RATELIMIT_SECOND, 1024 * 1024);
    ratelimit_limit function = ratelimit_limit_make(100 * 1024 * 1024, SEC, 1024 * 1024);
    CHECK(memcmp(&macro, &function, sizeof macro) == 0);
    CHECK_U64(macro.interval_ns, 9);
    CHECK_U64(macro.window_ns, 9 * 1024 * 1024); /* with the fractions 10 ms */
}

/* A macro with values known at run time makes the same as well. */
static void the_macro_takes_values_known_at_run_time(void)
{
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        volatile uint64_t tokens = rows[i].tokens, per = rows[i].per_ns, burst = rows[i].burst;
        const ratelimit_limit limit = RATELIMIT_LIMIT(tokens, per, burst);
        check_equal(&limit, &rows[i].limit);
    }
}

#define EXPANDED(...)      EXPANDED_TEXT(__VA_ARGS__)
#define EXPANDED_TEXT(...) #__VA_ARGS__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverlength-strings"

/* Review B5: it was 189 KB, 28 ms for the compiler. (use.h looks at it in C++.) */
static void a_limit_expands_to_16_kilobytes_and_one_with_long_numbers_to_24(void)
{
    CHECK(sizeof EXPANDED(RATELIMIT_LIMIT(10, RATELIMIT_SECOND, 20)) < 16384);
    CHECK(sizeof EXPANDED(RATELIMIT_WINDOW(10, RATELIMIT_SECOND)) < 16384);
    CHECK(sizeof EXPANDED(RATELIMIT_LIMIT_SCOPE(10, RATELIMIT_SECOND, 20, 7)) < 16384);
    CHECK(sizeof EXPANDED(RATELIMIT_LIMIT(100 * 1024 * 1024, RATELIMIT_SECOND, 200 * 1024 * 1024)) <
          24576);
    CHECK(sizeof EXPANDED(RATELIMIT_UNLIMITED) < 1024);
}

#pragma GCC diagnostic pop

/* What no maker made is bad, whatever was changed in it; a scope may be assigned. (Of 2^62 tokens a
 * few more or less may come to the same interval, so everyday limits are tried.) */
static void a_limit_that_no_maker_made_is_bad(void)
{
    static const ratelimit_limit zero = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    size_t i, byte;
    CHECK_U64(ratelimit_limit_check(&zero), BAD);
    CHECK_U64(ratelimit_limit_check(NULL), BAD);
    for (i = 0; i < COUNT(rows); i++)
        for (byte = 0; byte < sizeof zero && rows[i].tokens <= 4294967; byte++) {
            if (rows[i].status != OK)
                break;
            ratelimit_limit limit = rows[i].limit;
            bool scope = byte >= offsetof(ratelimit_limit, scope);
            ((unsigned char *)&limit)[byte] ^= 0x10;
            CHECK_U64(ratelimit_limit_check(&limit), scope ? OK : BAD);
        }
}

/* The same requests to two buckets, one under each limit. */
static void check_same_decisions(const ratelimit_limit *a, const ratelimit_limit *b)
{
    ratelimit_bucket x = {0, 0}, y = {0, 0};
    uint64_t now = 12345, i;
    for (i = 0; i < 50; i++) {
        ratelimit_request req = request("key", a, 1 + check_below(a->burst));
        ratelimit_result rx, ry;
        req.op = (ratelimit_op)check_below(RATELIMIT_RESET + 1);
        req.max_wait_ns = 1 + check_below(P62);
        now += check_below(a->window_ns / 8 + 2);
        memset(&rx, 0, sizeof rx);
        memset(&ry, 0, sizeof ry);
        ratelimit_bucket_decide(&x, &req, now, &rx);
        req.limit = b;
        ratelimit_bucket_decide(&y, &req, now, &ry);
        CHECK(memcmp(&rx, &ry, sizeof rx) == 0);
        CHECK(memcmp(&x, &y, sizeof x) == 0);
    }
}

static void the_macro_decides_as_the_function_does(void)
{
    size_t i;
    check_seed(1);
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_limit limit = ratelimit_limit_make(rows[i].tokens, rows[i].per_ns, rows[i].burst);
        place("made", 0, i);
        if (rows[i].status == OK)
            check_same_decisions(&limit, &rows[i].limit);
    }
    place_end();
}

static void a_bad_limit_refuses_every_operation_without_a_trace(void)
{
    size_t i;
    int op;
    for (i = 0; i < COUNT(rows); i++)
        for (op = 0; op <= (int)RATELIMIT_RESET && rows[i].status == BAD; op++) {
            ratelimit_bucket b = {77, 0};
            ratelimit_request req = request("key", &rows[i].limit, 1);
            ratelimit_result res;
            place("made", 0, i);
            req.op = (ratelimit_op)op;
            req.max_wait_ns = SEC;
            CHECK(!ratelimit_bucket_decide(&b, &req, SEC, &res));
            CHECK_U64(res.status, BAD);
            CHECK(b.full_ns == 77 && b.rest == 0);
        }
    place_end();
}

static void a_window_made_by_macro_is_the_one_made_by_the_function(void)
{
    static const struct {
        uint64_t tokens, per_ns;
        ratelimit_limit limit;
        ratelimit_status status;
    } windows[] = {
        {100, MINUTE, RATELIMIT_WINDOW(100, MINUTE), OK},
        {7, SEC, RATELIMIT_WINDOW(7, SEC), OK},
        {1, P62, RATELIMIT_WINDOW(1, P62), OK},
        {1, P62 + 1, RATELIMIT_WINDOW(1, P62 + 1), BAD},
        {3, P62, RATELIMIT_WINDOW(3, P62), OK},
        {P63, P62, RATELIMIT_WINDOW(P63, P62), BAD},
        {0, SEC, RATELIMIT_WINDOW(0, SEC), BAD},
        {1, 0, RATELIMIT_WINDOW(1, 0), BAD},
        {UINT64_MAX, SEC, RATELIMIT_WINDOW(-1, SEC), BAD},
    };
    size_t i;
    for (i = 0; i < COUNT(windows); i++) {
        ratelimit_limit limit = ratelimit_window_make(windows[i].tokens, windows[i].per_ns);
        place("windows", 0, i);
        CHECK_U64(ratelimit_limit_check(&limit), windows[i].status);
        CHECK_U64(ratelimit_limit_check(&windows[i].limit), windows[i].status);
        if (windows[i].status == OK) {
            check_equal(&windows[i].limit, &limit);
            CHECK_U64(limit.burst, windows[i].tokens);
            check_same_decisions(&windows[i].limit, &limit);
        }
    }
    place_end();
}

static void unlimited_lets_everything_through_and_writes_nothing(void)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    static const uint64_t counts[] = {1, 2, P62, P63 - 1};
    ratelimit_bucket b = {0, 0};
    size_t i, calls;
    CHECK_U64(ratelimit_limit_check(&unlimited), OK);
    for (i = 0; i < COUNT(counts); i++)
        for (calls = 0; calls < 3; calls++) {
            ratelimit_result res;
            CHECK(ratelimit_bucket_take(&b, &unlimited, counts[i], 0, &res));
            CHECK_U64(res.status, OK);
            CHECK_U64(res.burst, UINT64_MAX);
            CHECK_U64(res.remaining, UINT64_MAX);
            CHECK_U64(res.taken, counts[i]);
            CHECK_U64(res.retry_after_ns + res.reset_after_ns + res.wait_ns, 0);
        }
    CHECK(!ratelimit_bucket_take(&b, &unlimited, 0, 0, NULL)); /* a mistake all the same */
    CHECK(!ratelimit_bucket_take(&b, &unlimited, P63, 0, NULL));
    CHECK(b.full_ns == 0 && b.rest == 0);
}

static void blocking_an_unlimited_key_is_unsupported(void)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    ratelimit_bucket b = {0, 0};
    ratelimit_request req = request("key", &unlimited, 1);
    ratelimit_result res;
    req.op = RATELIMIT_BLOCK;
    req.max_wait_ns = SEC;
    CHECK(!ratelimit_bucket_decide(&b, &req, 0, &res));
    CHECK_U64(res.status, RATELIMIT_UNSUPPORTED);
}

/* ---- exactness ------------------------------------------------------------------------------- */

/* The documented range, worked out with wide numbers, up to a longest window. */
static bool in_range(uint64_t tokens, uint64_t per_ns, uint64_t burst, uint64_t longest_ns)
{
    wide window = wide_product(burst, per_ns), longest = wide_product(longest_ns, tokens);
    if (!tokens || tokens >= P63 || !per_ns || per_ns > P62 || !burst || burst >= P63)
        return false;
    if (wide_compare(wide_product(tokens, 1), wide_product(per_ns, 16)) > 0)
        return false;
    return wide_compare(window, longest) <= 0;
}

/* interval = q + part/parts must be per/tokens, or less than three parts in a million above it if
 * that does not fit. */
static void check_interval(const ratelimit_limit *limit, bool exact)
{
    uint64_t q = limit->interval_ns, whole;
    wide is, want;
    CHECK(limit->parts >= 1 && limit->parts <= P24);
    CHECK(limit->interval_part < limit->parts);
    if (exact) {
        CHECK_U64(q, limit->per_ns / limit->tokens);
        is = wide_product(limit->interval_part, limit->tokens);
        want = wide_product(limit->per_ns % limit->tokens, limit->parts);
        CHECK(wide_compare(is, want) == 0);
        return;
    }
    /* tokens x (q x parts + part) >= per x parts, but not x 1.000003; tokens are above 2^24, so an
     * interval is below 2^38 ns */
    CHECK(q <= UINT64_MAX / limit->parts);
    whole = q * limit->parts + limit->interval_part;
    is = wide_product(limit->tokens, whole);
    want = wide_product(limit->per_ns, limit->parts);
    CHECK(wide_compare(is, want) >= 0);
    is = wide_product(limit->tokens, whole - whole / 333333 - 1);
    CHECK(wide_compare(is, want) <= 0);
}

static uint64_t random_size(void)
{
    return check_random() >> check_below(64);
}

static void an_interval_is_exact_or_a_hair_too_long_and_what_does_not_fit_is_bad(void)
{
    uint64_t i, good = 0, inexact = 0, bad = 0;
    check_seed(2);
    for (i = 0; i < 300000; i++) {
        uint64_t tokens = random_size(), per = random_size(), burst = random_size();
        ratelimit_limit limit = ratelimit_limit_make(tokens, per, burst);
        bool fits = in_range(tokens, per, burst, P62);
        bool exact = fits && (per % tokens == 0 || tokens <= P24);
        if (ratelimit_limit_check(&limit) != OK) {
            bad++;
            CHECK(!in_range(tokens, per, burst, P62 - P62 / 333333)); /* it is rounded up */
            CHECK(!(fits && per % tokens == 0));
            continue;
        }
        good++;
        inexact += !exact;
        CHECK(fits);
        CHECK(limit.tokens == tokens && limit.per_ns == per && limit.burst == burst);
        check_interval(&limit, exact);
    }
    CHECK(good > 10000 && inexact > 1000 && bad > 10000); /* there was something to see */
}

/* From the fastest to the slowest that is rounded, and with the largest numbers. */
static void no_accepted_limit_is_slower_than_asked_by_three_parts_in_a_million(void)
{
    uint64_t i, rounded = 0;
    check_seed(3);
    for (i = 0; i < 300000; i++) {
        uint64_t per = 1 + check_below(P62 >> check_below(62));
        uint64_t tokens = per / 16 * check_below(257) + check_below(1000);
        ratelimit_limit limit = ratelimit_limit_make(tokens, per, 1);
        if (ratelimit_limit_check(&limit) != OK || tokens <= P24 || per % tokens == 0)
            continue;
        rounded++;
        check_interval(&limit, false);
    }
    CHECK(rounded > 10000);
}

/* Their interval was once 0, so that everything passed: the rounding up went over 2^64. */
static void tokens_of_nearly_2_to_the_40_or_the_56_refuse(void)
{
    static const uint64_t powers[] = {UINT64_C(1) << 39, UINT64_C(1) << 40, UINT64_C(1) << 55,
                                      UINT64_C(1) << 56, UINT64_C(1) << 62};
    size_t i;
    uint64_t below;
    for (i = 0; i < COUNT(powers); i++)
        for (below = 0; below < 200000; below = below * 3 + 1) {
            uint64_t tokens = powers[i] - below;
            ratelimit_limit limit = ratelimit_limit_make(tokens, tokens - 1, 10);
            ratelimit_bucket b = {0, 0};
            place("below a power of two", below, i);
            CHECK_U64(ratelimit_limit_check(&limit), OK);
            check_interval(&limit, false);
            CHECK(ratelimit_bucket_take(&b, &limit, 10, 1000, NULL));
            CHECK(!ratelimit_bucket_take(&b, &limit, 1, 1000, NULL));
        }
    place_end();
}

/* All of a burst, then one token each interval: the window is burst intervals, to the ns. */
static void a_burst_comes_back_in_burst_intervals(void)
{
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        const ratelimit_limit *l = &rows[i].limit;
        ratelimit_bucket b = {0, 0};
        ratelimit_result res;
        wide due;
        if (rows[i].status != OK)
            continue;
        place("made", 0, i);
        CHECK(ratelimit_bucket_take(&b, l, l->burst, 7, &res));
        /* reset_after, as whole ns, is at least burst x per / tokens, and above it by three parts
         * in a million and one ns at most */
        due = wide_product(l->burst, l->per_ns);
        CHECK(wide_compare(wide_product(res.reset_after_ns, l->tokens), due) >= 0);
        CHECK(wide_compare(
                  wide_product(res.reset_after_ns - res.reset_after_ns / 333333 - 1, l->tokens),
                  due) <= 0);
        CHECK(!ratelimit_bucket_take(&b, l, 1, 7, &res));
        CHECK(ratelimit_bucket_take(&b, l, 1, 7 + res.retry_after_ns, NULL));
    }
    place_end();
}

/* ---- scopes ---------------------------------------------------------------------------------- */

static void a_scope_can_be_given_to_the_macro_or_assigned(void)
{
    static const ratelimit_limit given = RATELIMIT_LIMIT_SCOPE(10, SEC, 20, 77);
    static const ratelimit_limit zero = RATELIMIT_LIMIT_SCOPE(10, SEC, 20, 0);
    ratelimit_limit limit = ratelimit_limit_make(10, SEC, 20);
    CHECK(limit.scope != 0 && limit.scope != 77);
    limit.scope = 77;
    check_equal(&limit, &given);
    CHECK_U64(ratelimit_limit_check(&given), OK);
    CHECK_U64(zero.scope, 0);
    CHECK_U64(ratelimit_limit_check(&zero), OK);
}

/* Of 100,000 limits: as many pairs have one scope as of random numbers with 32 bits, one or so. */
static void scopes_made_of_numbers_seldom_meet(void)
{
    static uint32_t scope[100000];
    size_t i, n = 0, alike = 0;
    uint64_t tokens, burst, per;
    for (per = 0; per < 5; per++)
        for (tokens = 1; tokens <= 100; tokens++)
            for (burst = 1; burst <= 200; burst++) {
                static const uint64_t periods[] = {SEC, MINUTE, HOUR, DAY, MS};
                scope[n++] = ratelimit_limit_make(tokens, periods[per], burst).scope;
            }
    CHECK_U64(n, COUNT(scope));
    for (i = 0; i < n; i++) { /* by their upper 16 bits, about 1.5 to each */
        static uint32_t seen[65536][16];
        static unsigned count[65536];
        unsigned box = scope[i] >> 16, k;
        for (k = 0; k < count[box]; k++)
            alike += seen[box][k] == scope[i];
        if (count[box] < 16)
            seen[box][count[box]++] = scope[i];
    }
    CHECK(alike <= 8);
}

/* They had, where the burst of the bucket was one more than its tokens: then they shared one
 * bucket. */
static void a_bucket_and_a_window_of_the_same_numbers_have_not_one_scope(void)
{
    static const ratelimit_limit bucket = RATELIMIT_LIMIT(10, MINUTE, 11),
                                 window = RATELIMIT_WINDOW(10, MINUTE);
    uint64_t tokens, burst;
    CHECK(bucket.scope != window.scope);
    for (tokens = 1; tokens < 2000; tokens++)
        for (burst = tokens < 2 ? 1 : tokens - 2; burst <= tokens + 2; burst++)
            CHECK(ratelimit_limit_make(tokens, MINUTE, burst).scope !=
                  ratelimit_window_make(tokens, MINUTE).scope);
}

/* It is the same in every process, on every machine, in every version: 32-bit FNV-1a. */
static void a_scope_of_a_name_is_known(void)
{
    CHECK_U64(ratelimit_scope("", 0), 0x811c9dc5);
    CHECK_U64(ratelimit_scope("a", 1), 0xe40c292c);
    CHECK_U64(ratelimit_scope("foobar", 6), 0xbf9cf968);
    CHECK_U64(ratelimit_scope("foobar and more", 6), 0xbf9cf968);
    CHECK_U64(ratelimit_scope("\xff", 1), ((0x811c9dc5 ^ 0xff) * UINT64_C(16777619)) & UINT32_MAX);
    CHECK_U64(ratelimit_scope(NULL, 0), 0x811c9dc5);
}

/* ---- parse ----------------------------------------------------------------------------------- */

static const struct {
    const char *text;
    uint64_t tokens, per_ns, burst;
    bool window;
} good_texts[] = {
    /* units */
    {"1/ns", 1, 1, 1, false},
    {"1/us", 1, US, 1, false},
    {"1/ms", 1, MS, 1, false},
    {"1/s", 1, SEC, 1, false},
    {"1/m", 1, MINUTE, 1, false},
    {"1/h", 1, HOUR, 1, false},
    {"1/d", 1, DAY, 1, false},
    {"1/w", 1, RATELIMIT_WEEK, 1, false},
    /* periods */
    {"10/60s", 10, 60 * SEC, 10, false},
    {"5/1500ms", 5, 1500 * MS, 5, false},
    {"15000/1d", 15000, DAY, 15000, false},
    {"1/2w", 1, 14 * DAY, 1, false},
    {"1/1s", 1, SEC, 1, false},
    {"1/0.5s", 1, SEC / 2, 1, false},
    {"3/1.5s", 3, 1500 * MS, 3, false},
    {"1/1.000000001s", 1, SEC + 1, 1, false},
    {"1/0.25us", 1, 250, 1, false},
    {"1/4611686018427387904ns", 1, P62, 1, false},
    /* burst */
    {"10/s burst 20", 10, SEC, 20, false},
    {"10/s\tburst\t20", 10, SEC, 20, false},
    {"10/s   burst \t 20", 10, SEC, 20, false},
    {"10/s burst 1", 10, SEC, 1, false},
    {"10/2m burst 0020", 10, 2 * MINUTE, 20, false},
    /* windows */
    {"100/m window", 100, MINUTE, 100, true},
    {"100/m\twindow", 100, MINUTE, 100, true},
    {"100/m burst 100 window", 100, MINUTE, 100, true},
    {"1000/1d window", 1000, DAY, 1000, true},
    /* decimals, exactly */
    {"0.5/m", 1, 2 * MINUTE, 1, false},
    {"2.5/s", 5, 2 * SEC, 3, false},
    {"10.0/s", 10, SEC, 10, false},
    {"10.50/s", 21, 2 * SEC, 11, false},
    {"0.25/s burst 4", 1, 4 * SEC, 4, false},
    {"0.1/s", 1, 10 * SEC, 1, false},
    {"0.000000001/ns", 1, SEC, 1, false},
    {"0.3/s", 3, 10 * SEC, 1, false},
    /* leading zeros say nothing */
    {"007/s", 7, SEC, 7, false},
    {"1/060s", 1, 60 * SEC, 1, false},
    /* the largest that fit */
    {"9223372036854775807/4611686018427387904ns burst 1", P63 - 1, P62, 1, false},
    {"1/ns burst 4611686018427387904", 1, 1, P62, false},
};

static void every_form_of_the_grammar_is_read(void)
{
    size_t i;
    for (i = 0; i < COUNT(good_texts); i++) {
        ratelimit_limit got, want;
        size_t fault_at = 999;
        place(good_texts[i].text, 0, i);
        want = good_texts[i].window
                   ? ratelimit_window_make(good_texts[i].tokens, good_texts[i].per_ns)
                   : ratelimit_limit_make(good_texts[i].tokens, good_texts[i].per_ns,
                                          good_texts[i].burst);
        memset(&got, 0x5A, sizeof got);
        CHECK_U64(ratelimit_limit_parse(&got, good_texts[i].text), OK);
        check_equal(&got, &want);
        memset(&got, 0x5A, sizeof got);
        CHECK_U64(ratelimit_limit_parse_n(&got, good_texts[i].text, strlen(good_texts[i].text),
                                          &fault_at),
                  OK);
        check_equal(&got, &want);
    }
    place_end();
}

static void unlimited_is_read(void)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    ratelimit_limit limit;
    memset(&limit, 0x5A, sizeof limit);
    CHECK_U64(ratelimit_limit_parse(&limit, "unlimited"), OK);
    check_equal(&limit, &unlimited);
}

static const struct {
    const char *text;
    ratelimit_status status;
    size_t fault_at;
} bad_texts[] = {
    /* ended too early */
    {"", SYNTAX, 0},
    {"1", SYNTAX, 1},
    {"10/", SYNTAX, 3},
    {"10/5", SYNTAX, 4},
    {"10/5.", SYNTAX, 5},
    {"10.", SYNTAX, 3},
    {"10/s ", SYNTAX, 5},
    {"10/s burst", SYNTAX, 10},
    {"10/s burst ", SYNTAX, 11},
    /* numbers */
    {"/s", SYNTAX, 0},
    {"-1/s", SYNTAX, 0},
    {"+1/s", SYNTAX, 0},
    {" 1/s", SYNTAX, 0},
    {".5/s", SYNTAX, 0},
    {"nan/s", SYNTAX, 0},
    {"inf/s", SYNTAX, 0},
    {"1./s", SYNTAX, 2},
    {"1.5.5/s", SYNTAX, 3},
    {"1e3/s", SYNTAX, 1},
    {"1e400/s", SYNTAX, 1},
    {"0x10/s", SYNTAX, 1},
    {"1,000/s", SYNTAX, 1},
    {"1_000/s", SYNTAX, 1},
    {"6O/m", SYNTAX, 1},
    {"10 /s", SYNTAX, 2},
    {"10s", SYNTAX, 2},
    /* periods */
    {"10//s", SYNTAX, 3},
    {"10/ s", SYNTAX, 3},
    {"10/-1s", SYNTAX, 3},
    {"10/.5s", SYNTAX, 3},
    {"10/5.s", SYNTAX, 5},
    {"10/5 s", SYNTAX, 4},
    {"10/S", SYNTAX, 3},
    {"10/x", SYNTAX, 3},
    {"10/sec", SYNTAX, 4},
    {"10/hour", SYNTAX, 4},
    {"10/mm", SYNTAX, 4},
    {"10/msx", SYNTAX, 5},
    {"10/s\n", SYNTAX, 4},
    {"10/s;", SYNTAX, 4},
    {"10/s\xc2\xa0", SYNTAX, 4},
    /* burst and window */
    {"10/sburst 20", SYNTAX, 4},
    {"10/s burst20", SYNTAX, 10},
    {"10/s bursty 20", SYNTAX, 10},
    {"10/s burst -20", SYNTAX, 11},
    {"10/s burst x", SYNTAX, 11},
    {"10/s burst 1.5", SYNTAX, 12},
    {"10/s burst 20x", SYNTAX, 13},
    {"10/s burst 20 burst 20", SYNTAX, 14},
    {"10/s burst 20 ", SYNTAX, 14},
    {"10/s Burst 20", SYNTAX, 5},
    {"10/s x", SYNTAX, 5},
    {"10/s window ", SYNTAX, 12},
    {"10/s windowx", SYNTAX, 11},
    {"10/s window window", SYNTAX, 12},
    {"10/s window burst 10", SYNTAX, 12},
    /* unlimited */
    {"unlimited ", SYNTAX, 10},
    {"unlimitedx", SYNTAX, 9},
    {"unlimited burst 5", SYNTAX, 10},
    {"Unlimited", SYNTAX, 0},
    {"bad limit", SYNTAX, 0},
    {"0", SYNTAX, 1},
    /* in the grammar, but they do not fit */
    {"0/s", BAD, 0},
    {"0.0/s", BAD, 0},
    {"10/0s", BAD, 3},
    {"10/0.0s", BAD, 3},
    {"10/s burst 0", BAD, 11},
    {"10/s burst 9223372036854775808", BAD, 11},
    {"10/s burst 18446744073709551616", BAD, 11},
    {"1/s burst 99999999999999999999999", BAD, 10},
    {"1/s burst 5000000000", BAD, 10}, /* a window of 158 years */
    {"9223372036854775808/s", BAD, 0},
    {"18446744073709551615/s", BAD, 0},
    {"18446744073709551616/s", BAD, 0},
    {"18446744073709551617/s", BAD, 0},
    {"99999999999999999999999999/s", BAD, 0},
    {"1/0.5ns", BAD, 2},
    {"1/1.0000000001s", BAD, 2},
    {"1/4611686018427387905ns", BAD, 2},
    {"1/18446744073709551616ns", BAD, 2},
    {"1/18446744074s", BAD, 2}, /* as ns, 290,448,384 in 64 bits */
    {"1/30501w", BAD, 2},
    {"0.00000000000000000001/s", BAD, 0},
    {"100/m burst 99 window", BAD, 12},
    {"100/m burst 101 window", BAD, 12},
};

static void what_is_no_limit_is_refused_with_the_place_of_the_fault_and_nothing_changed(void)
{
    size_t i;
    for (i = 0; i < COUNT(bad_texts); i++) {
        ratelimit_limit limit, before;
        size_t fault_at = 999;
        place(bad_texts[i].text, 0, i);
        memset(&limit, 0x5A, sizeof limit);
        before = limit;
        CHECK_TEXT(ratelimit_status_text(ratelimit_limit_parse(&limit, bad_texts[i].text)),
                   ratelimit_status_text(bad_texts[i].status));
        CHECK_U64(ratelimit_limit_parse_n(&limit, bad_texts[i].text, strlen(bad_texts[i].text),
                                          &fault_at),
                  bad_texts[i].status);
        CHECK_U64(fault_at, bad_texts[i].fault_at);
        CHECK_U64(
            ratelimit_limit_parse_n(&limit, bad_texts[i].text, strlen(bad_texts[i].text), NULL),
            bad_texts[i].status);
        CHECK(memcmp(&limit, &before, sizeof limit) == 0);
    }
    place_end();
}

static void a_word_that_is_cut_off_is_wrong_from_its_beginning(void)
{
    static const struct {
        const char *text;
        size_t fault_at;
    } texts[] = {{"unlimite", 0}, {"u", 0},      {"10/n", 3},      {"10/u", 3},
                 {"10/5n", 4},    {"10/s b", 5}, {"10/s windo", 5}};
    size_t i;
    for (i = 0; i < COUNT(texts); i++) {
        ratelimit_limit limit;
        size_t fault_at = 999;
        place(texts[i].text, 0, i);
        CHECK_U64(ratelimit_limit_parse_n(&limit, texts[i].text, strlen(texts[i].text), &fault_at),
                  SYNTAX);
        CHECK_U64(fault_at, texts[i].fault_at);
    }
    place_end();
}

/* What does not fit does not hide what is no limit at all. */
static void a_number_too_large_before_a_fault_of_syntax_is_a_fault_of_syntax(void)
{
    static const struct {
        const char *text;
        size_t fault_at;
    } texts[] = {
        {"99999999999999999999", 20},
        {"99999999999999999999x", 20},
        {"99999999999999999999/x", 21},
        {"1/99999999999999999999", 22},
        {"1/s burst 99999999999999999999 x", 31},
        {"0/x", 2},
    };
    size_t i;
    for (i = 0; i < COUNT(texts); i++) {
        ratelimit_limit limit;
        size_t fault_at = 999;
        place(texts[i].text, 0, i);
        CHECK_U64(ratelimit_limit_parse_n(&limit, texts[i].text, strlen(texts[i].text), &fault_at),
                  SYNTAX);
        CHECK_U64(fault_at, texts[i].fault_at);
    }
    place_end();
}

static void decimals_on_both_sides_are_exact(void)
{
    static const struct {
        const char *text;
        uint64_t interval_ns, burst;
    } texts[] = {
        {"1.5/1.5s", SEC, 2},
        {"0.1/0.1s", SEC, 1},
        {"0.5/1.5s", 3 * SEC, 1},
        {"2.5/0.5m", 12 * SEC, 3},
    };
    size_t i;
    for (i = 0; i < COUNT(texts); i++) {
        ratelimit_limit limit;
        place(texts[i].text, 0, i);
        CHECK_U64(ratelimit_limit_parse(&limit, texts[i].text), OK);
        CHECK_U64(limit.interval_ns, texts[i].interval_ns);
        CHECK_U64(limit.interval_part, 0);
        CHECK_U64(limit.burst, texts[i].burst);
    }
    place_end();
}

/* "1.5/s" is 3 tokens per 2 s, and a window's burst is its tokens. */
static void a_burst_given_to_a_window_is_the_one_it_has_or_an_error(void)
{
    ratelimit_limit limit;
    if (ratelimit_limit_parse(&limit, "1.5/s burst 2 window") == OK)
        CHECK_U64(limit.burst, 2);
    if (ratelimit_limit_parse(&limit, "1.5/s burst 3 window") == OK)
        CHECK_U64(limit.burst, 3);
}

static void null_is_a_bad_argument_to_parse(void)
{
    ratelimit_limit limit;
    size_t fault_at = 0;
    CHECK_U64(ratelimit_limit_parse(NULL, "1/s"), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_limit_parse(&limit, NULL), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_limit_parse_n(NULL, "1/s", 3, &fault_at), RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(ratelimit_limit_parse_n(&limit, NULL, 3, &fault_at), RATELIMIT_BAD_ARGUMENT);
}

static void a_nul_within_the_length_is_a_fault_and_not_an_end(void)
{
    static const struct {
        const char *text;
        size_t text_len;
        ratelimit_status status;
        size_t fault_at;
    } texts[] = {
        {"10/s\0 burst 20", 14, SYNTAX, 4},
        {"10/s\0", 5, SYNTAX, 4},
        {"10\0/s", 5, SYNTAX, 2},
        {"\0", 1, SYNTAX, 0},
        {"10/s burst\0 20", 14, SYNTAX, 10},
        {"10/s\0", 4, OK, 999},
        {"10/sec", 4, OK, 999}, /* what lies behind the length does not count */
    };
    size_t i;
    for (i = 0; i < COUNT(texts); i++) {
        ratelimit_limit limit;
        size_t fault_at = 999;
        place("texts", 0, i);
        CHECK_U64(ratelimit_limit_parse_n(&limit, texts[i].text, texts[i].text_len, &fault_at),
                  texts[i].status);
        if (texts[i].status != OK)
            CHECK_U64(fault_at, texts[i].fault_at);
    }
    place_end();
}

static void parse_n_reads_no_byte_behind_the_text(void)
{
    size_t i, len;
    for (i = 0; i < COUNT(good_texts); i += 3) {
        size_t full = strlen(good_texts[i].text);
        unsigned char *wall = walled(128) + 128;
        for (len = 0; len <= full; len++) { /* every beginning of it, too */
            ratelimit_limit limit;
            ratelimit_status status;
            size_t fault_at = 0;
            memcpy(wall - len, good_texts[i].text, len);
            status = ratelimit_limit_parse_n(&limit, (const char *)wall - len, len, &fault_at);
            place(good_texts[i].text, 0, len);
            CHECK(len < full || status == OK);
            CHECK(status == OK || fault_at <= len);
        }
    }
    place_end();
}

/* text of a megabyte: front, then middle over and over, then back. */
static ratelimit_status parse_huge(ratelimit_limit *out, const char *front, char middle,
                                   const char *back)
{
    static char text[(1 << 20) + 64];
    size_t front_len = strlen(front);
    memcpy(text, front, front_len);
    memset(text + front_len, middle, 1 << 20);
    memcpy(text + front_len + (1 << 20), back, strlen(back) + 1);
    return ratelimit_limit_parse(out, text);
}

static void a_megabyte_of_text_is_read_like_a_line(void)
{
    static const struct {
        const char *front;
        char middle;
        const char *back;
        ratelimit_status status;
    } texts[] = {
        {"1", '0', "/s", BAD},          {"", '9', "/s", BAD},
        {"1/1", '0', "ns", BAD},        {"1/s burst ", '9', "", BAD},
        {"0.", '0', "1/s", BAD},        {"", '9', "", SYNTAX},
        {"", ' ', "1/s", SYNTAX},       {"1/s", 's', "", SYNTAX},
        {"", '0', "10/s burst 20", OK}, {"10/s", ' ', "burst 20", OK},
        {"10/s burst", '\t', "20", OK}, {"10/", '0', "1s burst 20", OK},
        {"10/s burst ", '0', "20", OK},
    };
    ratelimit_limit want = ratelimit_limit_make(10, SEC, 20);
    size_t i;
    for (i = 0; i < COUNT(texts); i++) {
        ratelimit_limit limit;
        place("texts", 0, i);
        CHECK_U64(parse_huge(&limit, texts[i].front, texts[i].middle, texts[i].back),
                  texts[i].status);
        if (texts[i].status == OK)
            check_equal(&limit, &want);
    }
    place_end();
}

/* Whatever the bytes: an answer, a place within the text, and nothing changed unless it is OK. */
static void any_bytes_are_answered(void)
{
    static const char alphabet[] = "0123456789/./smhdwun burstwindowlimted\t\0xX-+";
    uint64_t i, read = 0;
    check_seed(4);
    for (i = 0; i < 300000; i++) {
        char text[24];
        size_t len = (size_t)check_below(sizeof text), j, fault_at = 999;
        ratelimit_limit limit, before;
        ratelimit_status status;
        for (j = 0; j < len; j++)
            text[j] = alphabet[check_below(check_below(4) ? 14 : sizeof alphabet)];
        memset(&limit, 0x5A, sizeof limit);
        before = limit;
        status = ratelimit_limit_parse_n(&limit, text, len, &fault_at);
        CHECK(status == OK || status == SYNTAX || status == BAD);
        if (status == OK)
            CHECK_U64(ratelimit_limit_check(&limit), OK);
        else
            CHECK(fault_at <= len && memcmp(&limit, &before, sizeof limit) == 0);
        read += status == OK;
    }
    CHECK(read > 100);
}

/* ---- format ---------------------------------------------------------------------------------- */

static void limits_are_written_as_the_grammar_has_them(void)
{
    static const struct {
        ratelimit_limit limit;
        const char *text;
    } texts[] = {
        {RATELIMIT_LIMIT(10, SEC, 20), "10/s burst 20"},
        {RATELIMIT_WINDOW(100, MINUTE), "100/m window"},
        {RATELIMIT_UNLIMITED, "unlimited"},
        {RATELIMIT_LIMIT(0, SEC, 1), "bad limit"},
        {RATELIMIT_LIMIT(1, SEC, 0), "bad limit"},
    };
    size_t i;
    char text[80];
    for (i = 0; i < COUNT(texts); i++) {
        CHECK_U64(ratelimit_limit_format(&texts[i].limit, text, sizeof text),
                  strlen(texts[i].text));
        CHECK_TEXT(text, texts[i].text);
    }
    CHECK_U64(ratelimit_limit_format(NULL, text, sizeof text), strlen("bad limit"));
    CHECK_TEXT(text, "bad limit");
}

static void a_buffer_is_filled_as_a_whole_or_emptied(void)
{
    static const char want[] = "10/s burst 20";
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, SEC, 20);
    size_t bytes;
    for (bytes = 0; bytes <= sizeof want + 3; bytes++) {
        char *buf =
            (char *)walled(bytes ? bytes : 1) + !bytes; /* nothing behind it can be written */
        memset(buf, 'x', bytes);
        CHECK_U64(ratelimit_limit_format(&limit, buf, bytes), sizeof want - 1);
        if (bytes >= sizeof want)
            CHECK_TEXT(buf, want);
        else if (bytes)
            CHECK(buf[0] == 0);
        if (bytes > sizeof want)
            CHECK(buf[sizeof want] == 'x');
    }
    CHECK_U64(ratelimit_limit_format(&limit, NULL, 0), sizeof want - 1);
}

static void check_round_trip(const ratelimit_limit *limit)
{
    char text[80];
    ratelimit_limit back;
    size_t len;
    memset(text, 'x', sizeof text);
    len = ratelimit_limit_format(limit, text, sizeof text);
    CHECK(len < 80);
    CHECK_U64(strlen(text), len);
    CHECK_U64(ratelimit_limit_parse(&back, text), OK);
    check_equal(&back, limit);
}

static void what_format_writes_parse_reads_back_equal(void)
{
    static const uint64_t units[] = {1, US, MS, SEC, MINUTE, HOUR, DAY, RATELIMIT_WEEK};
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    uint64_t i, good = 0;
    check_seed(5);
    for (i = 0; i < COUNT(rows); i++)
        if (rows[i].status == OK)
            check_round_trip(&rows[i].limit);
    for (i = 0; i < 50000; i++) {
        uint64_t tokens = random_size(), burst = check_below(3) ? random_size() : tokens;
        uint64_t per =
            check_below(2) ? random_size() : units[check_below(COUNT(units))] * check_below(100);
        ratelimit_limit limit = check_below(4) ? ratelimit_limit_make(tokens, per, burst)
                                               : ratelimit_window_make(tokens, per);
        if (ratelimit_limit_check(&limit) != OK)
            continue;
        good++;
        check_round_trip(&limit);
    }
    CHECK(good > 5000);
    check_round_trip(&unlimited);
}

/* ---- status texts, sizes --------------------------------------------------------------------- */

static void every_status_has_a_text_of_its_own(void)
{
    int a, b;
    for (a = RATELIMIT_OK; a <= (int)RATELIMIT_LOST; a++) {
        const char *text = ratelimit_status_text((ratelimit_status)a);
        CHECK(text[0] != 0 && strcmp(text, "unknown status") != 0);
        for (b = a + 1; b <= (int)RATELIMIT_LOST; b++)
            CHECK(strcmp(text, ratelimit_status_text((ratelimit_status)b)) != 0);
    }
    CHECK_TEXT(ratelimit_status_text((ratelimit_status)(RATELIMIT_LOST + 1)), "unknown status");
    CHECK_TEXT(ratelimit_status_text((ratelimit_status)99), "unknown status");
}

static void a_limit_is_80_bytes_and_a_bucket_16(void)
{
    CHECK_U64(sizeof(ratelimit_limit), 80);
    CHECK_U64(sizeof(ratelimit_bucket), 16);
}

/* Review B12: where 64 bits are aligned to 4 a bucket could lie across two cache lines. */
static void a_bucket_is_aligned_to_8_on_every_chip(void)
{
    struct {
        char before;
        ratelimit_bucket bucket;
    } both;
    CHECK_U64((size_t)((char *)&both.bucket - (char *)&both), 8);
    CHECK_U64(sizeof both, 24);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(each_limit_is_good_or_bad_as_documented);
    RUN(the_macro_makes_what_the_function_makes);
    RUN(a_hundred_mebibytes_a_second_are_computed_in_advance);
    RUN(the_macro_takes_values_known_at_run_time);
    RUN(a_limit_expands_to_16_kilobytes_and_one_with_long_numbers_to_24);
    RUN(a_limit_that_no_maker_made_is_bad);
    RUN(the_macro_decides_as_the_function_does);
    RUN(a_bad_limit_refuses_every_operation_without_a_trace);
    RUN(a_window_made_by_macro_is_the_one_made_by_the_function);
    RUN(unlimited_lets_everything_through_and_writes_nothing);
    RUN(blocking_an_unlimited_key_is_unsupported);
    RUN(an_interval_is_exact_or_a_hair_too_long_and_what_does_not_fit_is_bad);
    RUN(no_accepted_limit_is_slower_than_asked_by_three_parts_in_a_million);
    RUN(tokens_of_nearly_2_to_the_40_or_the_56_refuse);
    RUN(a_burst_comes_back_in_burst_intervals);
    RUN(a_scope_can_be_given_to_the_macro_or_assigned);
    RUN(scopes_made_of_numbers_seldom_meet);
    RUN(a_bucket_and_a_window_of_the_same_numbers_have_not_one_scope);
    RUN(a_scope_of_a_name_is_known);
    RUN(every_form_of_the_grammar_is_read);
    RUN(unlimited_is_read);
    RUN(what_is_no_limit_is_refused_with_the_place_of_the_fault_and_nothing_changed);
    RUN(a_word_that_is_cut_off_is_wrong_from_its_beginning);
    RUN(a_number_too_large_before_a_fault_of_syntax_is_a_fault_of_syntax);
    RUN(decimals_on_both_sides_are_exact);
    RUN(a_burst_given_to_a_window_is_the_one_it_has_or_an_error);
    RUN(null_is_a_bad_argument_to_parse);
    RUN(a_nul_within_the_length_is_a_fault_and_not_an_end);
    RUN(parse_n_reads_no_byte_behind_the_text);
    RUN(a_megabyte_of_text_is_read_like_a_line);
    RUN(any_bytes_are_answered);
    RUN(limits_are_written_as_the_grammar_has_them);
    RUN(a_buffer_is_filled_as_a_whole_or_emptied);
    RUN(what_format_writes_parse_reads_back_equal);
    RUN(every_status_has_a_text_of_its_own);
    RUN(a_limit_is_80_bytes_and_a_bucket_16);
    RUN(a_bucket_is_aligned_to_8_on_every_chip);
    return check_end();
}

/* model.h - what ratelimit.h has to answer, computed slowly and exactly.
 *
 * One key's state is the time at which its bucket is full again, as an exact fraction: a whole number of parts, so many of
 * which make a nanosecond as the limit's interval needs. Numbers are 256 bits wide, so nothing here
 * can overflow; if it did the program would stop. Nothing is precomputed, packed or shared with ratelimit.h but the names of
 * requests and results.
 *
 * Where the header's format can't hold a number exactly, the contract says how far off it may be, and the model holds it to that:
 *
 *     interval   per / tokens, exact if the reduced denominator is at most 2^24, else rounded up to a
 *                multiple of 2^-24 ns; BAD_LIMIT if that adds more than one part in a million
 *     seen       the debt when last seen, rounded up to 11 significant bits, see model_seen
 *     change     tokens spent under another limit, see model_change: then the state is known between two bounds, low
 *                and high, until what the header answers (or a full bucket) makes it one again
 */
#ifndef MODEL_H
#define MODEL_H

#include "ratelimit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- wide numbers: unsigned, 256 bits, least significant limb first ------------------------------------------- */

#define WIDE_LIMBS 8

typedef struct wide {
    uint32_t limb[WIDE_LIMBS];
} wide;

static inline void wide_stop(const char *why)
{
    fprintf(stderr, "model: %s\n", why);
    abort();
}

static inline wide wide_of(uint64_t value)
{
    wide r;
    memset(&r, 0, sizeof r);
    r.limb[0] = (uint32_t)(value & 0xFFFFFFFFu);
    r.limb[1] = (uint32_t)(value >> 32);
    return r;
}

static inline int wide_compare(wide a, wide b)
{
    int i;
    for (i = WIDE_LIMBS - 1; i >= 0; i--)
        if (a.limb[i] != b.limb[i])
            return a.limb[i] < b.limb[i] ? -1 : 1;
    return 0;
}

static inline bool wide_less(wide a, wide b)
{
    return wide_compare(a, b) < 0;
}

static inline bool wide_equal(wide a, wide b)
{
    return wide_compare(a, b) == 0;
}

static inline bool wide_zero(wide a)
{
    return wide_equal(a, wide_of(0));
}

static inline wide wide_min(wide a, wide b)
{
    return wide_less(a, b) ? a : b;
}

static inline wide wide_max(wide a, wide b)
{
    return wide_less(a, b) ? b : a;
}

static inline wide wide_add(wide a, wide b)
{
    uint64_t carry = 0;
    int i;
    for (i = 0; i < WIDE_LIMBS; i++) {
        carry += (uint64_t)a.limb[i] + b.limb[i];
        a.limb[i] = (uint32_t)(carry & 0xFFFFFFFFu);
        carry >>= 32;
    }
    if (carry)
        wide_stop("a sum does not fit");
    return a;
}

static inline wide wide_sub(wide a, wide b)
{
    uint64_t borrow = 0;
    int i;
    for (i = 0; i < WIDE_LIMBS; i++) {
        uint64_t take = (uint64_t)b.limb[i] + borrow;
        borrow = a.limb[i] < take;
        a.limb[i] = (uint32_t)((a.limb[i] - take) & 0xFFFFFFFFu);
    }
    if (borrow)
        wide_stop("a difference is negative");
    return a;
}

/* a - b, or 0 where that would be negative. */
static inline wide wide_above(wide a, wide b)
{
    return wide_less(b, a) ? wide_sub(a, b) : wide_of(0);
}

static inline wide wide_mul(wide a, wide b)
{
    wide r = wide_of(0);
    int i, j;
    for (i = 0; i < WIDE_LIMBS; i++) {
        uint64_t carry = 0;
        if (a.limb[i] == 0)
            continue;
        for (j = 0; i + j < WIDE_LIMBS; j++) {
            carry += (uint64_t)a.limb[i] * b.limb[j] + r.limb[i + j];
            r.limb[i + j] = (uint32_t)(carry & 0xFFFFFFFFu);
            carry >>= 32;
        }
        for (; j < WIDE_LIMBS; j++)
            carry |= b.limb[j];
        if (carry)
            wide_stop("a product does not fit");
    }
    return r;
}

static inline int wide_bit(wide a, int bit)
{
    return (int)(a.limb[bit / 32] >> (bit % 32) & 1u);
}

static inline int wide_bits(wide a)
{
    int bit = WIDE_LIMBS * 32;
    while (bit > 0 && !wide_bit(a, bit - 1))
        bit--;
    return bit;
}

/* As on paper, one bit of the quotient after the other. */
static inline wide wide_divide(wide a, wide b, wide *rest)
{
    wide quotient = wide_of(0), left = wide_of(0);
    int bit;
    if (wide_zero(b))
        wide_stop("division by zero");
    for (bit = wide_bits(a) - 1; bit >= 0; bit--) {
        left = wide_add(left, left);
        left.limb[0] |= (uint32_t)wide_bit(a, bit);
        if (!wide_less(left, b)) {
            left = wide_sub(left, b);
            quotient.limb[bit / 32] |= (uint32_t)1 << (bit % 32);
        }
    }
    *rest = left;
    return quotient;
}

static inline wide wide_floor(wide a, wide b)
{
    wide rest;
    return wide_divide(a, b, &rest);
}

static inline wide wide_ceil(wide a, wide b)
{
    wide rest, quotient = wide_divide(a, b, &rest);
    return wide_zero(rest) ? quotient : wide_add(quotient, wide_of(1));
}

static inline wide wide_gcd(wide a, wide b)
{
    while (!wide_zero(b)) {
        wide rest;
        wide_divide(a, b, &rest);
        a = b;
        b = rest;
    }
    return a;
}

/* 2^exponent */
static inline wide wide_power(int exponent)
{
    wide r = wide_of(0);
    r.limb[exponent / 32] = (uint32_t)1 << (exponent % 32);
    return r;
}

static inline bool wide_fits64(wide a)
{
    return wide_bits(a) <= 64;
}

static inline uint64_t wide_u64(wide a)
{
    if (!wide_fits64(a))
        wide_stop("more than 64 bits where 64 are enough");
    return (uint64_t)a.limb[1] << 32 | a.limb[0];
}

/* ---- limits --------------------------------------------------------------------------------------------------- */

typedef enum model_kind { MODEL_BAD = 0, MODEL_BUCKET, MODEL_WINDOW, MODEL_UNLIMITED } model_kind;

typedef struct model_limit {
    model_kind kind;
    uint64_t burst;
    uint64_t per_ns; /* as given: what a window is aligned to */
    wide parts;      /* so many parts make a nanosecond */
    wide interval;   /* the time of one token, in parts */
    wide window;     /* burst x interval, in parts */
} model_limit;

/* The interval as the smallest fraction; rounded up to 2^-24 ns where its denominator is larger than 2^24. False if that
 * adds more than a millionth. */
static inline bool model_interval(model_limit *limit, wide per, wide tokens)
{
    wide common = wide_gcd(per, tokens), grain = wide_power(24), added;
    per = wide_floor(per, common);
    tokens = wide_floor(tokens, common);
    limit->interval = per;
    limit->parts = tokens;
    if (!wide_less(grain, tokens))
        return true;
    limit->interval = wide_ceil(wide_mul(per, grain), tokens);
    limit->parts = grain;
    added = wide_sub(wide_mul(limit->interval, tokens), wide_mul(per, grain));
    return wide_less(wide_mul(added, wide_of(1000000)), wide_mul(per, grain));
}

static inline model_limit model_limit_wide(model_kind kind, wide tokens, wide per, wide burst)
{
    model_limit limit;
    memset(&limit, 0, sizeof limit);
    if (wide_zero(tokens) || wide_zero(per) || wide_zero(burst) || wide_bits(tokens) > 63 ||
        wide_bits(burst) > 63 || wide_less(wide_power(62), per))
        return limit;
    if (wide_less(wide_mul(wide_power(62), tokens), wide_mul(burst, per)))
        return limit;
    if (!model_interval(&limit, per, tokens))
        return limit;
    limit.kind = kind;
    limit.burst = wide_u64(burst);
    limit.per_ns = wide_u64(per);
    limit.window = wide_mul(burst, limit.interval);
    return limit;
}

static inline model_limit model_limit_make(uint64_t tokens, uint64_t per_ns, uint64_t burst)
{
    return model_limit_wide(MODEL_BUCKET, wide_of(tokens), wide_of(per_ns), wide_of(burst));
}

static inline model_limit model_window_make(uint64_t tokens, uint64_t per_ns)
{
    return model_limit_wide(MODEL_WINDOW, wide_of(tokens), wide_of(per_ns), wide_of(tokens));
}

static inline model_limit model_unlimited(void)
{
    model_limit limit;
    memset(&limit, 0, sizeof limit);
    limit.kind = MODEL_UNLIMITED;
    limit.burst = UINT64_MAX;
    return limit;
}

/* whole [ "." digits ] as a fraction; false if text does not start with one. At most 30 digits. */
static inline bool model_read_number(const char **text, wide *number, wide *tenths)
{
    const char *p = *text;
    bool after_dot = false;
    int digits = 0;
    *number = wide_of(0);
    *tenths = wide_of(1);
    for (;; p++) {
        if (*p == '.' && digits > 0 && !after_dot) {
            after_dot = true;
        } else if (*p >= '0' && *p <= '9' && digits < 30) {
            *number = wide_add(wide_mul(*number, wide_of(10)), wide_of((uint64_t)(*p - '0')));
            if (after_dot)
                *tenths = wide_mul(*tenths, wide_of(10));
            digits++;
        } else {
            break;
        }
    }
    *text = p;
    return digits > 0 && p[-1] != '.';
}

static inline bool model_read_unit(const char **text, wide *ns)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"ns", 1},
                 {"us", 1000},
                 {"ms", 1000000},
                 {"s", 1000000000},
                 {"m", UINT64_C(60000000000)},
                 {"h", UINT64_C(3600000000000)},
                 {"d", UINT64_C(86400000000000)},
                 {"w", UINT64_C(604800000000000)}};
    size_t i;
    for (i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t len = strlen(units[i].name);
        if (strncmp(*text, units[i].name, len) == 0) {
            *text += len;
            *ns = wide_of(units[i].ns);
            return true;
        }
    }
    return false;
}

static inline bool model_read_word(const char **text, const char *word)
{
    const char *p = *text;
    size_t len = strlen(word);
    while (*p == ' ')
        p++;
    if (p == *text || strncmp(p, word, len) != 0)
        return false;
    *text = p + len;
    return true;
}

/* "10/s burst 20", "5/1500ms", "100/m window", "unlimited": what vectors need; false for all else. */
static inline bool model_limit_parse(model_limit *out, const char *text)
{
    wide tokens, tokens_tenths, number, number_tenths, unit, per, rest, burst;
    model_kind kind = MODEL_BUCKET;
    if (strcmp(text, "unlimited") == 0) {
        *out = model_unlimited();
        return true;
    }
    if (!model_read_number(&text, &tokens, &tokens_tenths) || *text++ != '/')
        return false;
    if (!model_read_number(&text, &number, &number_tenths))
        number = number_tenths = wide_of(1);
    if (!model_read_unit(&text, &unit))
        return false;
    per = wide_divide(wide_mul(number, unit), number_tenths, &rest);
    if (!wide_zero(rest))
        return false;
    burst = wide_ceil(tokens, tokens_tenths);
    if (model_read_word(&text, "burst")) {
        if (*text++ != ' ' || !model_read_number(&text, &burst, &number_tenths))
            return false;
    }
    if (model_read_word(&text, "window"))
        kind = MODEL_WINDOW;
    /* 0.5 a minute is 5 in ten minutes is 1 in two: the same interval, in whole numbers. */
    rest = wide_gcd(tokens, tokens_tenths);
    if (!wide_zero(rest)) {
        tokens = wide_floor(tokens, rest);
        per = wide_mul(per, wide_floor(tokens_tenths, rest));
    }
    *out = model_limit_wide(kind, tokens, per, burst);
    return *text == '\0';
}

/* ---- one key -------------------------------------------------------------------------------------------------- */

/* A clock set back by more than this is forgiven. */
#define MODEL_STEP_NS UINT64_C(10000000000)

/* The longest debt: 2^63 - 1 ns. A charge or a reservation beyond it is NEVER. */
static inline wide model_longest(const model_limit *limit)
{
    return wide_mul(wide_of(UINT64_MAX >> 1), limit->parts);
}

typedef struct model_state {
    wide full; /* when the bucket is full again, in parts */
    wide seen; /* its debt when last seen, ns */
} model_state;

typedef struct model_key {
    model_limit limit;      /* last charged at; MODEL_BAD: the key was never seen or is full */
    model_state low, high;  /* differ only after a change of limit with parts of a token spent */
} model_key;

/* The time a decision counts from, ns: now, or the end of the window that now is in. */
static inline wide model_asked(const model_limit *limit, uint64_t now_ns)
{
    wide now = wide_of(now_ns), per = wide_of(limit->per_ns);
    if (limit->kind != MODEL_WINDOW)
        return now;
    return wide_mul(wide_add(wide_floor(now, per), wide_of(1)), per);
}

static inline wide model_debt(const model_limit *limit, wide full, uint64_t now_ns)
{
    return wide_above(full, wide_mul(model_asked(limit, now_ns), limit->parts));
}

/* How long until `over` parts of debt are gone, ns: rounded up, and in a window only at its ends. */
static inline uint64_t model_until(const model_limit *limit, wide over, uint64_t now_ns)
{
    wide ends, per = wide_of(limit->per_ns), first;
    if (wide_zero(over))
        return 0;
    if (limit->kind != MODEL_WINDOW)
        return wide_u64(wide_ceil(over, limit->parts));
    first = wide_sub(model_asked(limit, now_ns), wide_of(now_ns));
    ends = wide_ceil(over, wide_mul(per, limit->parts));
    return wide_u64(wide_add(first, wide_mul(wide_sub(ends, wide_of(1)), per)));
}

/* The debt when seen as the format keeps it: ns rounded up, of which the 11 highest bits count, rounded up again. */
static inline wide model_seen(const model_limit *limit, wide debt)
{
    wide ns = wide_ceil(debt, limit->parts), unit;
    if (wide_bits(ns) <= 11)
        return ns;
    unit = wide_power(wide_bits(ns) - 11);
    return wide_mul(wide_ceil(ns, unit), unit);
}

static inline uint64_t model_remaining(const model_limit *limit, wide debt)
{
    return wide_u64(wide_floor(wide_above(limit->window, debt), limit->interval));
}

static inline void model_report(const model_limit *limit, wide debt, uint64_t now_ns,
                                ratelimit_result *res)
{
    res->limit = limit->burst;
    res->remaining = model_remaining(limit, debt);
    res->reset_after_ns = model_until(limit, debt, now_ns);
}

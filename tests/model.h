/* model.h - what ratelimit.h has to answer, computed slowly and exactly.
 *
 * One key's state is the time at which its bucket is full again, as an exact fraction: a whole
 * number of parts, so many of which make a nanosecond as the limit's interval needs. Numbers are
 * 256 bits wide, so nothing here can overflow; if it did the program would stop. Nothing is
 * precomputed, packed or shared with ratelimit.h but the names of requests and results.
 *
 * Where the header's format can't hold a number exactly, the contract says how far off it may be,
 * and the model holds it to that:
 *
 *     interval   per / tokens, exact if the reduced denominator is at most 2^24, else rounded up
 *                to a multiple of 2^-24 ns; BAD_LIMIT if less than 10^6 of those make an
 *                interval, so that rounding never adds more than one part in a million
 *     seen       the debt when last seen, whole ns rounded up to 6 significant bits, see model_seen
 *     change     tokens spent under another limit, see model_change: parts of a token are kept to
 *                one part in a million; then the state is known between two bounds, low and high,
 *                until a full bucket makes it one again
 *     longest    no debt is longer than 2^63 - 1 ns
 */
#ifndef MODEL_H
#define MODEL_H

#include "ratelimit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- wide numbers: unsigned, 256 bits, least significant limb first -------------------------- */

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

/* ---- limits ---------------------------------------------------------------------------------- */

typedef enum model_kind { MODEL_BAD = 0, MODEL_BUCKET, MODEL_WINDOW, MODEL_UNLIMITED } model_kind;

typedef struct model_limit {
    model_kind kind;
    uint64_t burst;
    uint64_t per_ns; /* as given: what a window is aligned to */
    wide parts;      /* so many parts make a nanosecond */
    wide interval;   /* the time of one token, in parts */
    wide window;     /* burst x interval, in parts */
} model_limit;

/* The interval as the smallest fraction; rounded up to 2^-24 ns where its denominator is larger
 * than 2^24. False if that could add more than a millionth. */
static inline bool model_interval(model_limit *limit, wide per, wide tokens)
{
    wide common = wide_gcd(per, tokens), grain = wide_power(24);
    per = wide_floor(per, common);
    tokens = wide_floor(tokens, common);
    limit->interval = per;
    limit->parts = tokens;
    if (!wide_less(grain, tokens))
        return true;
    limit->interval = wide_ceil(wide_mul(per, grain), tokens);
    limit->parts = grain;
    return !wide_less(limit->interval, wide_of(1000000));
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

/* "10/s burst 20", "5/1500ms", "100/m window", "unlimited": what vectors need; false for all else.
 * */
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

/* ---- one key --------------------------------------------------------------------------------- */

/* A clock set back by more than this is forgiven. */
#define MODEL_STEP_NS      UINT64_C(10000000000)
/* A refusal is noted as a sight of the key if the last one noted was longer ago than this. */
#define MODEL_NOTE_NS      (UINT64_C(1) << 30)
/* Up to so many whole tokens spent survive a change of limit exactly; all else to one part in so
 * many. */
#define MODEL_EXACT_TOKENS 1000000
/* What a change may add besides, ns: in terms of the new limit. */
#define MODEL_CHANGE_NS    3

typedef struct model_state {
    wide full; /* when the bucket is full again, in parts; 0 for a key never seen */
    wide seen; /* its debt when last seen, ns */
} model_state;

typedef struct model_key {
    model_limit limit;     /* as it was last stored; MODEL_BAD: never, or full since */
    model_state low, high; /* differ only after a change of limit with parts of a token spent */
} model_key;

/* The end of the window that now is in, from now, in parts; 0 for a bucket. */
static inline wide model_to_end(const model_limit *limit, uint64_t now_ns)
{
    wide rest, per = wide_of(limit->per_ns);
    if (limit->kind != MODEL_WINDOW)
        return wide_of(0);
    wide_divide(wide_of(now_ns), per, &rest);
    return wide_mul(wide_sub(per, rest), limit->parts);
}

/* How far ahead of now the bucket is full, in parts: at most 2^63 - 1 ns. */
static inline wide model_ahead(const model_limit *limit, wide full, uint64_t now_ns)
{
    wide longest = wide_mul(wide_of(UINT64_MAX >> 1), limit->parts);
    return wide_min(wide_above(full, wide_mul(wide_of(now_ns), limit->parts)), longest);
}

/* How long until `over` parts of debt are gone, ns: rounded up, and in a window only at its ends.
 * */
static inline uint64_t model_until(const model_limit *limit, wide over, uint64_t now_ns)
{
    wide to_end = model_to_end(limit, now_ns), per = wide_mul(wide_of(limit->per_ns), limit->parts);
    if (limit->kind == MODEL_WINDOW && !wide_zero(over))
        over = wide_add(to_end, wide_mul(wide_sub(wide_ceil(over, per), wide_of(1)), per));
    return wide_u64(wide_ceil(over, limit->parts));
}

/* A debt as a key's last sight keeps it: whole ns, of which the 11 highest bits count, rounded up.
 * */
static inline wide model_seen(const model_limit *limit, wide ahead)
{
    wide ns = wide_floor(ahead, limit->parts), unit;
    if (wide_bits(ns) <= 6)
        return ns;
    unit = wide_power(wide_bits(ns) - 6);
    return wide_mul(wide_ceil(ns, unit), unit);
}

/* Whole tokens that could be taken. */
static inline wide model_remaining(const model_limit *limit, wide debt)
{
    return wide_floor(wide_above(limit->window, debt), limit->interval);
}

/* One request being decided on one state. */
typedef struct model_step {
    const model_limit *limit;
    const ratelimit_request *req;
    uint64_t now_ns;
    wide debt;  /* in parts, beyond the end of the window if there is one */
    wide cost;  /* in parts, of what is asked for */
    bool store; /* what stands in debt is to be stored */
} model_step;

static inline wide model_tokens(const model_limit *limit, uint64_t n)
{
    return wide_mul(wide_of(n), limit->interval);
}

static inline wide model_over(const model_step *s, wide cost)
{
    return wide_above(wide_add(s->debt, cost), s->limit->window);
}

/* The clock was set back if a request would be refused and the debt is by more than the step larger
 * than when last seen: then it is what it was, at most the window. */
static inline void model_forgive(model_step *s, const model_state *state, bool changed)
{
    const model_limit *limit = s->limit;
    wide ahead = wide_floor(model_ahead(limit, state->full, s->now_ns), limit->parts);
    if (wide_zero(model_over(s, s->cost)) ||
        !wide_less(wide_add(state->seen, wide_of(MODEL_STEP_NS)), ahead))
        return;
    s->debt = wide_min(s->debt, limit->window);
    if (!changed)
        s->debt = wide_min(s->debt, wide_mul(state->seen, limit->parts));
    s->store = true;
}

/* True if a debt of this many parts, beyond the end of the window if there is one, is one that can
 * be. */
static inline bool model_fits(const model_step *s, wide debt)
{
    wide longest = wide_mul(wide_of(UINT64_MAX >> 1), s->limit->parts);
    return !wide_less(longest, wide_add(debt, model_to_end(s->limit, s->now_ns)));
}

static inline void model_charge(model_step *s, ratelimit_result *res, uint64_t taken)
{
    s->debt = wide_add(s->debt, model_tokens(s->limit, taken));
    s->store = true;
    res->taken = taken;
}

static inline void model_take(model_step *s, ratelimit_result *res)
{
    uint64_t n = s->req->n ? s->req->n : 1, wait;
    if (n > s->limit->burst) {
        res->status = RATELIMIT_NEVER;
        return;
    }
    wait = model_until(s->limit, model_over(s, s->cost), s->now_ns);
    if (s->req->op == RATELIMIT_RESERVE) {
        if (wait > s->req->max_wait_ns || !model_fits(s, wide_add(s->debt, s->cost)))
            res->status = RATELIMIT_TIMEOUT;
        else
            res->wait_ns = wait;
    } else if (wait) {
        res->status = RATELIMIT_DENIED;
    }
    if (res->status == RATELIMIT_OK && s->req->op != RATELIMIT_PEEK)
        model_charge(s, res, n);
    else if (res->status != RATELIMIT_OK)
        res->retry_after_ns = wait;
}

static inline void model_take_up_to(model_step *s, ratelimit_result *res)
{
    wide there = model_remaining(s->limit, s->debt);
    if (wide_zero(there)) {
        res->status = RATELIMIT_DENIED;
        res->retry_after_ns = model_until(s->limit, model_over(s, s->cost), s->now_ns);
    } else {
        model_charge(s, res, wide_u64(wide_min(there, wide_of(s->req->n))));
    }
}

/* Blocked until now + max_wait: a bucket such that one token can be taken just then, a window used
 * up to the end that comes then or next. */
static inline void model_block(model_step *s)
{
    const model_limit *limit = s->limit;
    wide block = wide_mul(wide_of(s->req->max_wait_ns), limit->parts), per;
    if (limit->kind == MODEL_WINDOW) {
        per = wide_mul(wide_of(limit->per_ns), limit->parts);
        block = wide_above(block, model_to_end(limit, s->now_ns));
        block = wide_add(wide_mul(wide_ceil(block, per), per), limit->window);
    } else {
        block = wide_add(block, wide_sub(limit->window, limit->interval));
    }
    s->debt = wide_max(s->debt, block);
    s->store = true;
}

/* Does what `forced` says was done, where a state known only between bounds leaves that open. */
static inline void model_obey(model_step *s, ratelimit_result *res, const ratelimit_result *forced)
{
    res->status = forced->status;
    if (forced->taken)
        model_charge(s, res, forced->taken);
}

static inline void model_operate(model_step *s, ratelimit_result *res)
{
    switch (s->req->op) {
    case RATELIMIT_TAKE:
    case RATELIMIT_PEEK:
    case RATELIMIT_RESERVE:
        model_take(s, res);
        break;
    case RATELIMIT_TAKE_UP_TO:
        model_take_up_to(s, res);
        break;
    case RATELIMIT_CHARGE:
        if (model_fits(s, wide_add(s->debt, s->cost)))
            model_charge(s, res, s->req->n);
        else
            res->status = RATELIMIT_NEVER;
        break;
    case RATELIMIT_REFUND:
        s->debt = wide_above(s->debt, s->cost);
        s->store = true;
        res->taken = s->req->n;
        break;
    case RATELIMIT_BLOCK:
        model_block(s);
        break;
    case RATELIMIT_RESET:
        s->debt = wide_of(0);
        s->store = true;
        break;
    }
    if (res->status == RATELIMIT_NEVER)
        res->retry_after_ns = RATELIMIT_FOREVER;
}

/* What is left in state. A refusal that changed nothing may still be noted as a sight of the key.
 * */
static inline void model_keep(const model_step *s, model_state *state)
{
    const model_limit *limit = s->limit;
    wide ahead = wide_add(s->debt, model_to_end(limit, s->now_ns));
    wide ns = wide_floor(ahead, limit->parts);
    if (s->req->op == RATELIMIT_PEEK)
        return;
    if (s->store && wide_zero(s->debt)) {
        state->full = state->seen = wide_of(0);
    } else if (s->store) {
        state->full = wide_add(wide_mul(wide_of(s->now_ns), limit->parts), ahead);
        state->seen = model_seen(limit, ahead);
    } else if (!wide_less(s->debt, limit->parts) &&
               wide_less(wide_add(ns, wide_of(MODEL_NOTE_NS)), state->seen)) {
        state->seen = model_seen(limit, ahead);
    }
}

/* How many tokens a request is about, for which it may be refused. */
static inline uint64_t model_asked(const ratelimit_request *req)
{
    if (req->op == RATELIMIT_TAKE_UP_TO || req->op == RATELIMIT_BLOCK || req->op == RATELIMIT_RESET)
        return 1;
    return req->n ? req->n : 1;
}

/* Decides req on state, whose full is in parts of limit. True if something was stored. */
static inline bool model_run(const model_limit *limit, model_state *state, bool changed,
                             const ratelimit_request *req, uint64_t now_ns, ratelimit_result *res,
                             const ratelimit_result *forced)
{
    model_step s;
    memset(res, 0, sizeof *res);
    s.limit = limit;
    s.req = req;
    s.now_ns = now_ns;
    s.cost = model_tokens(limit, model_asked(req));
    s.debt = wide_above(model_ahead(limit, state->full, now_ns), model_to_end(limit, now_ns));
    s.store = changed;
    model_forgive(&s, state, changed);
    if (forced)
        model_obey(&s, res, forced);
    else
        model_operate(&s, res);
    model_keep(&s, state);
    res->allowed = res->status == RATELIMIT_OK;
    res->limit = limit->burst;
    res->remaining = wide_u64(model_remaining(limit, s.debt));
    res->reset_after_ns = model_until(limit, s.debt, now_ns);
    if (req->op == RATELIMIT_CHARGE || req->op == RATELIMIT_BLOCK)
        res->wait_ns = model_until(limit, model_over(&s, limit->interval), now_ns);
    return s.store && req->op != RATELIMIT_PEEK;
}

/* ---- another limit --------------------------------------------------------------------------- */

static inline bool model_same_interval(const model_limit *a, const model_limit *b)
{
    return a->kind == b->kind &&
           wide_equal(wide_mul(a->interval, b->parts), wide_mul(b->interval, a->parts));
}

/* Intervals so close that the code a bucket keeps may not tell them apart: to one part in 2^15. */
static inline bool model_close_interval(const model_limit *a, const model_limit *b)
{
    wide x = wide_mul(a->interval, b->parts), y = wide_mul(b->interval, a->parts);
    wide apart = wide_above(wide_max(x, y), wide_min(x, y));
    return a->kind == b->kind && wide_less(wide_mul(apart, wide_power(15)), wide_max(x, y));
}

/* debt, in parts of `from`, in parts of `to`: rounded down, or up. */
static inline wide model_parts(const model_limit *from, const model_limit *to, wide debt, bool up)
{
    wide product = wide_mul(debt, to->parts);
    return up ? wide_ceil(product, from->parts) : wide_floor(product, from->parts);
}

/* Between which bounds the debt may be under `to` for one of `debt` parts under `from`, so that
 * tokens spent stay spent: up to a million whole ones exactly; else to one part in a million of
 * them and of two more, and MODEL_CHANGE_NS. Where more than 256 tokens come in a ns, debts are
 * known to 2^-24 ns only. More than the burst is the burst. */
static inline void model_rescale(const model_limit *from, const model_limit *to, wide debt,
                                 wide *low, wide *high)
{
    wide rest, off, fine = to->interval, exactly = wide_mul(debt, to->interval);
    wide tokens = wide_divide(debt, from->interval, &rest);
    bool known = !wide_less(wide_mul(from->interval, wide_of(256)), from->parts);
    if (known && wide_zero(rest) && !wide_less(wide_of(MODEL_EXACT_TOKENS), tokens)) {
        *low = *high = wide_min(wide_mul(tokens, to->interval), to->window);
        return;
    }
    off = wide_mul(wide_add(tokens, wide_of(3)), to->interval);
    off = wide_ceil(off, wide_of(MODEL_EXACT_TOKENS));
    fine = wide_ceil(wide_mul(fine, from->parts), wide_mul(from->interval, wide_power(24)));
    *low = wide_above(wide_floor(exactly, from->interval), off);
    *high = wide_add(wide_ceil(exactly, from->interval), wide_add(off, fine));
    *high = wide_add(*high, wide_mul(wide_of(MODEL_CHANGE_NS), to->parts));
    *low = wide_min(*low, to->window);
    *high = wide_min(*high, to->window);
}

/* Makes low and high those of another limit at now. Where a window ended is not remembered: under
 * another window it is taken to end where that one does, under a bucket all that is ahead of now
 * counts. True if the header sees a change. */
static inline bool model_change(model_key *key, const model_limit *to, uint64_t now_ns)
{
    const model_limit *from = &key->limit;
    bool windows = from->kind == MODEL_WINDOW && to->kind == MODEL_WINDOW;
    wide now = wide_of(now_ns), end = windows ? model_to_end(to, now_ns) : wide_of(0);
    wide ends = model_parts(to, from, end, true), low, high, spare;
    wide to_now = wide_mul(now, to->parts), to_end = model_to_end(to, now_ns);
    if (model_same_interval(from, to)) {
        key->low.full = model_parts(from, to, key->low.full, false);
        key->high.full = model_parts(from, to, key->high.full, true);
        return false;
    }
    low = model_ahead(from, key->low.full, now_ns);
    high = model_ahead(from, key->high.full, now_ns);
    if (wide_zero(high)) { /* full again: nothing is spent, in parts of whatever limit */
        key->low.full = key->high.full = wide_of(0);
        return false;
    }
    low = wide_above(low, ends);
    high = wide_above(high, ends);
    if (model_close_interval(from, to)) {
        wide same_low = model_parts(from, to, low, false),
             same_high = model_parts(from, to, high, true);
        model_rescale(from, to, low, &low, &spare);
        model_rescale(from, to, high, &spare, &high);
        low = wide_min(low, same_low);
        high = wide_max(high, same_high);
    } else {
        model_rescale(from, to, low, &low, &spare);
        model_rescale(from, to, high, &spare, &high);
    }
    key->low.full = wide_add(to_now, wide_add(to_end, low));
    key->high.full = wide_add(to_now, wide_add(to_end, high));
    return true;
}

/* ---- deciding -------------------------------------------------------------------------------- */

/* What is answered without a look at any key: mistakes, in this order, and unlimited. */
static inline bool model_settled(const model_limit *limit, const ratelimit_request *req,
                                 ratelimit_result *res)
{
    ratelimit_op op = req->op;
    bool counts = op != RATELIMIT_PEEK && op != RATELIMIT_BLOCK && op != RATELIMIT_RESET;
    bool window_cannot = op == RATELIMIT_RESERVE || op == RATELIMIT_REFUND;
    memset(res, 0, sizeof *res);
    if ((unsigned)op > RATELIMIT_RESET)
        res->status = RATELIMIT_BAD_ARGUMENT;
    else if (limit->kind == MODEL_BAD)
        res->status = RATELIMIT_BAD_LIMIT;
    else if (counts && req->n == 0)
        res->status = RATELIMIT_BAD_COUNT;
    else if (op == RATELIMIT_BLOCK &&
             (req->max_wait_ns == 0 || req->max_wait_ns > UINT64_C(1) << 62))
        res->status = RATELIMIT_BAD_ARGUMENT;
    else if (limit->kind == MODEL_WINDOW && window_cannot)
        res->status = RATELIMIT_UNSUPPORTED;
    else if (limit->kind == MODEL_UNLIMITED && op == RATELIMIT_BLOCK)
        res->status = RATELIMIT_UNSUPPORTED;
    else if (limit->kind != MODEL_UNLIMITED)
        return false;
    if (res->status != RATELIMIT_OK)
        return true;
    res->allowed = true;
    res->limit = res->remaining = UINT64_MAX;
    res->taken = counts ? req->n : 0;
    return true;
}

static inline bool model_exact(const model_key *key)
{
    return wide_equal(key->low.full, key->high.full) && wide_equal(key->low.seen, key->high.seen);
}

/* Puts what was decided on `work` into key, if it was stored; else at most when it was seen. */
static inline void model_commit(model_key *key, const model_key *work, const model_limit *limit,
                                bool stored)
{
    if (stored) {
        *key = *work;
        key->limit = *limit;
        if (wide_zero(key->high.full))
            memset(key, 0, sizeof *key);
    } else {
        key->low.seen = work->low.seen;
        key->high.seen = work->high.seen;
    }
}

/* Decides req on key at now, all of *res. Only for keys whose state is known exactly. */
static inline void model_decide(model_key *key, const model_limit *limit,
                                const ratelimit_request *req, uint64_t now_ns,
                                ratelimit_result *res)
{
    model_key work = *key;
    bool changed = false, stored;
    if (model_settled(limit, req, res))
        return;
    if (key->limit.kind != MODEL_BAD)
        changed = model_change(&work, limit, now_ns);
    if (!model_exact(&work))
        wide_stop("parts of a token are spent: under another limit there is no one right answer");
    stored = model_run(limit, &work.low, changed, req, now_ns, res, NULL);
    work.high = work.low;
    model_commit(key, &work, limit, stored);
}

/* ---- judging what was decided ---------------------------------------------------------------- */

static inline void model_fault(char *why, size_t why_bytes, const char *field, uint64_t got,
                               uint64_t low, uint64_t high)
{
    if (*why)
        return;
    snprintf(why, why_bytes, "%s is %llu, not %llu", field, (unsigned long long)got,
             (unsigned long long)low);
    if (low != high)
        snprintf(why, why_bytes, "%s is %llu, not %llu to %llu", field, (unsigned long long)got,
                 (unsigned long long)low, (unsigned long long)high);
}

static inline void model_between(char *why, size_t why_bytes, const char *field, uint64_t got,
                                 uint64_t a, uint64_t b)
{
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    if (got < low || got > high)
        model_fault(why, why_bytes, field, got, low, high);
}

/* The outcome in got against those of the two bounds, which are the same where the state is known.
 * */
static inline void model_compare_outcome(const ratelimit_result *got, const ratelimit_result *a,
                                         const ratelimit_result *b, char *why, size_t why_bytes)
{
    if (got->status != a->status && got->status != b->status)
        model_fault(why, why_bytes, "status", (uint64_t)got->status, (uint64_t)a->status,
                    (uint64_t)b->status);
    if (got->allowed != (got->status == RATELIMIT_OK))
        model_fault(why, why_bytes, "allowed", got->allowed, !got->allowed, !got->allowed);
    model_between(why, why_bytes, "limit", got->limit, a->limit, b->limit);
    model_between(why, why_bytes, "taken", got->taken, a->taken, b->taken);
    model_between(why, why_bytes, "retry_after_ns", got->retry_after_ns, a->retry_after_ns,
                  b->retry_after_ns);
    model_between(why, why_bytes, "wait_ns", got->wait_ns, a->wait_ns, b->wait_ns);
}

/* And what it leaves. */
static inline void model_compare_rest(const ratelimit_result *got, const ratelimit_result *a,
                                      const ratelimit_result *b, char *why, size_t why_bytes)
{
    model_between(why, why_bytes, "remaining", got->remaining, a->remaining, b->remaining);
    model_between(why, why_bytes, "reset_after_ns", got->reset_after_ns, a->reset_after_ns,
                  b->reset_after_ns);
}

/* Brings low and high as near to each other as got's remaining and reset_after allow. False if they
 * would have to pass each other. */
static inline bool model_narrow(model_key *work, const model_limit *limit, uint64_t now_ns,
                                const ratelimit_result *got)
{
    wide from = wide_mul(wide_of(now_ns), limit->parts), low, high;
    wide one = wide_of(1), reset = wide_of(got->reset_after_ns);
    from = wide_add(from, model_to_end(limit, now_ns));
    low = wide_above(limit->window,
                     wide_mul(wide_add(wide_of(got->remaining), one), limit->interval));
    if (got->remaining < limit->burst)
        work->low.full = wide_max(work->low.full, wide_add(from, low));
    if (got->remaining > 0) {
        high = wide_sub(limit->window, wide_mul(wide_of(got->remaining), limit->interval));
        work->high.full = wide_min(work->high.full, wide_add(from, high));
    }
    if (limit->kind == MODEL_BUCKET && got->reset_after_ns > 0) {
        low = wide_mul(wide_sub(reset, one), limit->parts);
        work->low.full = wide_max(work->low.full, wide_add(from, low));
        work->high.full = wide_min(work->high.full, wide_add(from, wide_mul(reset, limit->parts)));
    }
    return !wide_less(work->high.full, work->low.full);
}

/* Judges got as the answer to req on key at now, and carries req out. False with the reason in why
 * if it is not right. */
static inline bool model_judge(model_key *key, const model_limit *limit,
                               const ratelimit_request *req, uint64_t now_ns,
                               const ratelimit_result *got, char *why, size_t why_bytes)
{
    model_key work = *key, before;
    ratelimit_result a, b;
    bool changed = false, stored;
    *why = '\0';
    if (model_settled(limit, req, &a)) {
        model_compare_outcome(got, &a, &a, why, why_bytes);
        model_compare_rest(got, &a, &a, why, why_bytes);
        return *why == '\0';
    }
    if (key->limit.kind != MODEL_BAD)
        changed = model_change(&work, limit, now_ns);
    before = work;
    stored = model_run(limit, &work.low, changed, req, now_ns, &a, NULL);
    if (model_exact(&before)) {
        work.high = work.low;
        model_compare_outcome(got, &a, &a, why, why_bytes);
        model_compare_rest(got, &a, &a, why, why_bytes);
    } else {
        bool also = model_run(limit, &work.high, changed, req, now_ns, &b, NULL);
        model_compare_outcome(got, &a, &b, why, why_bytes);
        if (a.status != b.status || a.taken != b.taken) { /* which one it was, got says */
            work = before;
            stored = model_run(limit, &work.low, changed, req, now_ns, &a, got);
            also = model_run(limit, &work.high, changed, req, now_ns, &b, got);
        }
        model_compare_rest(got, &a, &b, why, why_bytes);
        stored = stored || also;
        if (!*why && stored && !model_narrow(&work, limit, now_ns, got))
            snprintf(why, why_bytes, "the answer contradicts earlier ones");
        if (wide_equal(work.low.full, work.high.full))
            work.low.seen = work.high.seen;
    }
    model_commit(key, &work, limit, stored);
    return *why == '\0';
}

#endif

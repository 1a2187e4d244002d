/* model.h - what ratelimit.h has to answer, computed slowly and exactly.
 *
 * One key's state is the time at which its bucket is full again, as an exact fraction: a whole
 * number of parts, so many of which make a nanosecond as the limit's interval needs. Times are
 * taken modulo 2^64 ns. Numbers are 256 bits wide, so nothing here can overflow; if it did the
 * program would stop. Nothing is precomputed, packed or shared with ratelimit.h but the names of
 * requests and results.
 *
 * A model key is what has one bucket: the bytes of a key and the scope of a limit. Who uses the
 * model keeps the keys apart.
 *
 * Where the header's format can't hold a number exactly, the contract says how far off it may be,
 * and the model holds it to that:
 *
 *     interval   per / tokens, see model_interval; BAD_LIMIT below 2^-4 ns, so that rounding never
 *                adds more than three parts in a million
 *     seen       how far full was ahead when it was last seen: the highest bit only
 *     burst      a burst is remembered by seven bits of a hash, see model_mark
 *     change     tokens spent under another limit, see model_rescale: more than 65,535 of them, and
 *                parts of a token, are kept to one part in 65,536; then the state is known between
 *                two bounds, low and high, until a full bucket makes it one again
 *     longest    no debt is made longer than 2^62 ns
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
    bool fraction;   /* tokens do not divide the period */
    wide parts;      /* so many parts make a nanosecond */
    wide interval;   /* the time of one token, in parts */
    wide window;     /* burst x interval, in parts */
} model_limit;

/* The interval. It is exact if it is whole, or if there are at most 2^24 tokens. Else its fraction
 * is rounded up to 2^-24 ns; and if there are more than 39 bits of tokens, only the upper ones of
 * those and of the remainder count, and the fraction is one 2^-24 ns more for that. */
static inline void model_interval(model_limit *limit, wide per, wide tokens)
{
    wide rest, common, grain = wide_power(24), whole = wide_divide(per, tokens, &rest);
    limit->fraction = !wide_zero(rest);
    if (limit->fraction && wide_less(grain, tokens)) {
        int bits = wide_bits(tokens), cut = bits > 54 ? 23 : bits > 39 ? 15 : 0;
        rest = wide_mul(wide_floor(rest, wide_power(cut)), grain);
        rest = wide_ceil(rest, wide_floor(tokens, wide_power(cut)));
        if (cut)
            rest = wide_add(rest, wide_of(1));
        tokens = grain;
    }
    per = wide_add(wide_mul(whole, tokens), rest);
    common = wide_gcd(per, tokens);
    limit->interval = wide_floor(per, common);
    limit->parts = wide_floor(tokens, common);
}

static inline model_limit model_limit_wide(model_kind kind, wide tokens, wide per, wide burst)
{
    model_limit limit, bad;
    memset(&bad, 0, sizeof bad);
    limit = bad;
    if (wide_zero(tokens) || wide_zero(per) || wide_zero(burst) || wide_bits(tokens) > 63 ||
        wide_bits(burst) > 63 || wide_less(wide_power(62), per))
        return bad;
    if (wide_less(wide_mul(per, wide_of(16)), tokens)) /* more than 16 a ns */
        return bad;
    model_interval(&limit, per, tokens);
    limit.window = wide_mul(burst, limit.interval);
    if (wide_less(wide_mul(wide_power(62), limit.parts), limit.window))
        return bad;
    limit.kind = kind;
    limit.burst = wide_u64(burst);
    limit.per_ns = wide_u64(per);
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
/* Up to so many whole tokens spent survive a change of limit exactly; all else to one part in one
 * more than that. */
#define MODEL_EXACT_TOKENS 65535
/* No debt is made longer than 2 to this, ns. */
#define MODEL_LONGEST      62

typedef struct model_state {
    bool kept;    /* false: a full bucket, of which nothing else is known */
    bool blocked; /* full is the end of a block */
    bool purpose; /* the debt was made on purpose: by a reservation or charge above the window */
    bool
        changed; /* while a request is decided: it is not as it was stored, for the limit changed */
    int seen;    /* the highest bit of how far full was ahead, in ns, when it was last seen */
    wide full;   /* when the bucket is full again, in parts, modulo 2^64 ns */
} model_state;

typedef struct model_key {
    model_limit limit;     /* as it was last stored; MODEL_BAD: never, or full since */
    model_state low, high; /* differ only after a change of limit with parts of a token spent */
} model_key;

/* The end of the window that now is in, from now, in ns; 0 for a bucket. */
static inline wide model_to_end(const model_limit *limit, wide now)
{
    wide rest, per = wide_of(limit->per_ns);
    if (limit->kind != MODEL_WINDOW)
        return wide_of(0);
    wide_divide(now, per, &rest);
    return wide_sub(per, rest);
}

/* How many parts make 2^64 ns: times are the same again. */
static inline wide model_turn(const model_limit *limit)
{
    return wide_mul(wide_power(64), limit->parts);
}

/* at + ahead, both in parts */
static inline wide model_later(const model_limit *limit, wide at, wide ahead)
{
    wide rest;
    wide_divide(wide_add(at, ahead), model_turn(limit), &rest);
    return rest;
}

/* How far `full` is ahead of `at`, in parts: 0 if it is past, as half of all times are. */
static inline wide model_ahead(const model_limit *limit, wide full, wide at)
{
    wide turn = model_turn(limit), ahead = model_later(limit, full, wide_sub(turn, at));
    return wide_less(wide_add(ahead, ahead), turn) ? ahead : wide_of(0);
}

/* What debt is counted from, in parts: now, or the end of the window that now is in. */
static inline wide model_from(const model_limit *limit, uint64_t now_ns)
{
    wide now = wide_of(now_ns), from = wide_add(now, model_to_end(limit, now));
    return model_later(limit, wide_of(0), wide_mul(from, limit->parts));
}

/* How far full is ahead of the end of the window that now is in: nothing if it is behind now. */
static inline wide model_beyond(const model_limit *limit, wide full, uint64_t now_ns)
{
    wide now = wide_mul(wide_of(now_ns), limit->parts);
    if (wide_zero(model_ahead(limit, full, now)))
        return wide_of(0);
    return model_ahead(limit, full, model_from(limit, now_ns));
}

/* How long until `over` parts of debt are gone, ns: rounded up, and in a window only at its ends.
 * */
static inline uint64_t model_until(const model_limit *limit, wide over, uint64_t now_ns)
{
    wide to_end = model_to_end(limit, wide_of(now_ns)), per = wide_of(limit->per_ns), ns;
    ns = wide_ceil(over, limit->parts);
    if (limit->kind == MODEL_WINDOW && !wide_zero(over))
        ns = wide_add(to_end, wide_mul(wide_sub(wide_ceil(ns, per), wide_of(1)), per));
    return wide_u64(ns);
}

/* The same once a block of so many ns is over, from now: a window in which it ended gives back all
 * at its end. */
static inline uint64_t model_until_after(const model_limit *limit, wide over, uint64_t now_ns,
                                         uint64_t block_ns)
{
    wide end = wide_of(now_ns + block_ns);
    if (limit->kind != MODEL_WINDOW)
        return block_ns + model_until(limit, over, now_ns);
    return block_ns + (wide_zero(over) ? 0 : wide_u64(model_to_end(limit, end)));
}

/* The highest bit of how far full is ahead of now, in whole ns, or of one ns. */
static inline int model_seen(const model_limit *limit, wide full, uint64_t now_ns)
{
    wide now = wide_mul(wide_of(now_ns), limit->parts);
    wide ns = wide_floor(model_ahead(limit, full, now), limit->parts);
    return wide_zero(ns) ? 0 : wide_bits(ns) - 1;
}

/* Whole tokens that could be taken. */
static inline wide model_remaining(const model_limit *limit, wide debt)
{
    return wide_floor(wide_above(limit->window, debt), limit->interval);
}

static inline wide model_tokens(const model_limit *limit, uint64_t n)
{
    return wide_mul(wide_of(n), limit->interval);
}

/* What a block leaves behind: all but one token spent. */
static inline wide model_all_but_one(const model_limit *limit)
{
    return wide_sub(limit->window, limit->interval);
}

/* One request being decided on one state. */
typedef struct model_step {
    const model_limit *limit;
    const ratelimit_request *req;
    uint64_t now_ns;
    wide from;      /* what debt is counted from */
    wide debt;      /* in parts */
    wide cost;      /* in parts, of what is asked for */
    bool purpose;   /* the debt was made on purpose */
    bool blocked;   /* the debt does not count, there is a block */
    uint64_t block; /* of so many ns from now */
    bool moved;     /* when the bucket is full again is to be stored */
} model_step;

static inline wide model_over(const model_step *s, wide cost)
{
    return wide_above(wide_add(s->debt, cost), s->limit->window);
}

/* By how much a clock that is late by less than a step may overstate a debt: by the step, and in a
 * window by the ends of windows that it may have missed. */
static inline wide model_lateness(const model_step *s)
{
    const model_limit *limit = s->limit;
    wide now = wide_of(s->now_ns), step = wide_of(MODEL_STEP_NS), late = wide_add(now, step);
    wide ends = wide_add(step, model_to_end(limit, late));
    return wide_sub(ends, model_to_end(limit, now));
}

/* The clock was set back if there is a debt that could not have been made, even at a time later by
 * a step: then it is the window. Or if full is ahead by more than a step more than when last seen,
 * which is known as a power of two: then it is so far ahead. Whole ns count. */
static inline void model_forgive(model_step *s, const model_state *state)
{
    const model_limit *limit = s->limit;
    wide to_end = model_to_end(limit, wide_of(s->now_ns)), ns = wide_floor(s->debt, limit->parts);
    wide most = wide_floor(limit->window, limit->parts), late = model_lateness(s);
    if (s->purpose) {
        ns = wide_add(ns, to_end);
        most = wide_power(state->seen + 1);
        late = wide_of(MODEL_STEP_NS);
    }
    if (!wide_less(wide_add(most, late), ns))
        return;
    s->debt = s->purpose ? wide_mul(wide_above(most, to_end), limit->parts) : limit->window;
    s->moved = true;
}

/* The same for a block. */
static inline void model_forgive_block(model_step *s, const model_state *state)
{
    wide most = wide_power(state->seen + 1);
    if (wide_less(wide_add(most, wide_of(MODEL_STEP_NS)), wide_of(s->block)))
        s->block = wide_u64(most), s->moved = true;
}

/* What is owed when the block of `state` is over: all but one token, under whatever limit is asked;
 * what came back since; and nothing in a window after that in which it ended. */
static inline wide model_after_block(const model_step *s, const model_state *state)
{
    const model_limit *limit = s->limit;
    wide now = wide_mul(wide_of(s->now_ns), limit->parts), end = state->full;
    wide since = model_later(limit, now, wide_sub(model_turn(limit), end));
    if (limit->kind != MODEL_WINDOW)
        return wide_above(model_all_but_one(limit), since);
    end = model_from(limit, wide_u64(wide_floor(end, limit->parts)));
    return wide_equal(end, s->from) ? model_all_but_one(limit) : wide_of(0);
}

/* How state looks to a request: a block, or a debt. */
static inline void model_look(model_step *s, model_state *state)
{
    const model_limit *limit = s->limit;
    wide now = wide_mul(wide_of(s->now_ns), limit->parts), ahead;
    if (!state->kept)
        return;
    s->moved = state->changed;
    if (state->blocked) {
        ahead = model_ahead(limit, state->full, now);
        if (!wide_zero(ahead)) {
            s->blocked = true;
            s->block = wide_u64(wide_floor(ahead, limit->parts));
            model_forgive_block(s, state);
            return;
        }
        s->debt = model_after_block(s, state);
        s->moved = true;
        return;
    }
    s->purpose = state->purpose;
    s->debt = model_beyond(limit, state->full, s->now_ns);
    if (!wide_zero(s->debt) || wide_equal(state->full, s->from))
        model_forgive(s, state);
}

static inline bool model_fits(const model_step *s, wide debt)
{
    return !wide_less(wide_mul(wide_power(MODEL_LONGEST), s->limit->parts), debt);
}

static inline void model_charge(model_step *s, ratelimit_result *res, uint64_t taken)
{
    s->debt = wide_add(s->debt, model_tokens(s->limit, taken));
    s->moved = true;
    res->taken = taken;
}

/* `back` parts of the debt are given back; at most all. */
static inline void model_give(model_step *s, ratelimit_result *res, wide back)
{
    back = wide_min(back, s->debt);
    s->debt = wide_sub(s->debt, back);
    s->moved = s->moved || !wide_zero(back);
    res->taken = wide_u64(wide_floor(back, s->limit->interval));
}

/* True if nobody reserved after the reservation whose wait has max_wait left: then the bucket is
 * full no later than it was to be then, which is max_wait, rounded up, and the window from now. And
 * its time has not come, and it has a wait that there is. */
static inline bool model_is_last(const model_step *s)
{
    uint64_t left = s->req->max_wait_ns;
    wide then = wide_add(wide_mul(wide_of(left), s->limit->parts), s->limit->window);
    return left != 0 && left <= UINT64_C(1) << MODEL_LONGEST && !wide_less(then, s->debt);
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

/* Blocked for max_wait, and not shorter than a debt lets nobody take. */
static inline void model_block(model_step *s)
{
    uint64_t block = model_until(s->limit, model_over(s, s->limit->interval), s->now_ns);
    if (s->blocked)
        block = s->block;
    s->block = block > s->req->max_wait_ns ? block : s->req->max_wait_ns;
    s->blocked = s->moved = true;
}

static inline void model_reset(model_step *s)
{
    s->debt = wide_of(0);
    s->blocked = s->purpose = false;
    s->moved = true;
}

/* Does what `forced` says was done, where a state known only between bounds leaves that open. */
static inline void model_obey(model_step *s, ratelimit_result *res, const ratelimit_result *forced)
{
    res->status = forced->status;
    if (forced->taken && s->req->op == RATELIMIT_CANCEL)
        model_give(s, res, s->cost);
    else if (forced->taken)
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
        model_give(s, res, s->cost);
        break;
    case RATELIMIT_CANCEL:
        if (model_is_last(s))
            model_give(s, res, s->cost);
        break;
    case RATELIMIT_BLOCK:
        model_block(s);
        break;
    case RATELIMIT_RESET:
        model_reset(s);
        break;
    }
}

/* Until the end of a block nothing is taken, and nothing but a longer block and reset does
 * anything. */
static inline void model_operate_blocked(model_step *s, ratelimit_result *res)
{
    const model_limit *limit = s->limit;
    wide more = wide_above(s->cost, limit->interval); /* than the one token that is there then */
    switch (s->req->op) {
    case RATELIMIT_TAKE:
    case RATELIMIT_PEEK:
    case RATELIMIT_RESERVE:
    case RATELIMIT_TAKE_UP_TO:
        res->status = wide_less(limit->window, s->cost) ? RATELIMIT_NEVER : RATELIMIT_DENIED;
        if (res->status == RATELIMIT_DENIED)
            res->retry_after_ns = model_until_after(limit, more, s->now_ns, s->block);
        break;
    case RATELIMIT_BLOCK:
        model_block(s);
        break;
    case RATELIMIT_RESET:
        model_reset(s);
        break;
    case RATELIMIT_CHARGE:
    case RATELIMIT_REFUND:
    case RATELIMIT_CANCEL:
        break;
    }
}

/* What is left in state by anything but a peek. What does not move it is a sight of it all the
 * same. */
static inline void model_keep(const model_step *s, model_state *state, bool done)
{
    const model_limit *limit = s->limit;
    wide now = wide_mul(wide_of(s->now_ns), limit->parts);
    bool into_debt = s->req->op == RATELIMIT_RESERVE || s->req->op == RATELIMIT_CHARGE;
    if (s->req->op == RATELIMIT_PEEK || (!state->kept && !s->moved))
        return;
    if (s->moved) {
        state->blocked = s->blocked;
        state->kept = s->blocked || !wide_zero(s->debt) ||
                      (s->req->op != RATELIMIT_RESET && limit->kind != MODEL_WINDOW);
        state->purpose = (s->purpose || (into_debt && done)) && wide_less(limit->window, s->debt);
        state->full = model_later(limit, s->from, s->debt);
    }
    if (s->moved && s->blocked) {
        state->purpose = false;
        state->full = model_later(limit, now, wide_mul(wide_of(s->block), limit->parts));
    }
    state->seen = model_seen(limit, state->full, s->now_ns);
    if (!state->kept)
        memset(state, 0, sizeof *state);
}

/* How many tokens a request is about, for which it may be refused. */
static inline uint64_t model_asked(const ratelimit_request *req)
{
    if (req->op == RATELIMIT_TAKE_UP_TO || req->op == RATELIMIT_BLOCK || req->op == RATELIMIT_RESET)
        return 1;
    return req->n ? req->n : 1;
}

/* remaining, reset_after and wait, of what the request left. */
static inline void model_report(const model_step *s, ratelimit_result *res)
{
    const model_limit *limit = s->limit;
    bool waits = s->req->op == RATELIMIT_CHARGE || s->req->op == RATELIMIT_BLOCK;
    if (s->blocked) {
        res->reset_after_ns =
            model_until_after(limit, model_all_but_one(limit), s->now_ns, s->block);
        if (waits)
            res->wait_ns = s->block;
        return;
    }
    res->remaining = wide_u64(model_remaining(limit, s->debt));
    res->reset_after_ns = model_until(limit, s->debt, s->now_ns);
    if (waits)
        res->wait_ns = model_until(limit, model_over(s, limit->interval), s->now_ns);
}

/* Decides req on state, whose full is in parts of limit. True if when it is full again is
   stored. */
static inline bool model_run(const model_limit *limit, model_state *state,
                             const ratelimit_request *req, uint64_t now_ns, ratelimit_result *res,
                             const ratelimit_result *forced)
{
    model_step s;
    memset(res, 0, sizeof *res);
    memset(&s, 0, sizeof s);
    s.limit = limit;
    s.req = req;
    s.now_ns = now_ns;
    s.from = model_from(limit, now_ns);
    s.cost = model_tokens(limit, model_asked(req));
    model_look(&s, state);
    if (s.blocked)
        model_operate_blocked(&s, res);
    else if (forced)
        model_obey(&s, res, forced);
    else
        model_operate(&s, res);
    res->allowed = res->status == RATELIMIT_OK;
    res->burst = limit->burst;
    if (res->status == RATELIMIT_NEVER)
        res->retry_after_ns = RATELIMIT_FOREVER;
    model_keep(&s, state, res->allowed);
    state->changed = false;
    model_report(&s, res);
    return s.moved && req->op != RATELIMIT_PEEK;
}

/* ---- another limit --------------------------------------------------------------------------- */

/* What a bucket remembers of the burst. */
static inline uint64_t model_mark(const model_limit *limit)
{
    return (limit->burst * UINT64_C(0x9E3779B97F4A7C15)) >> 57;
}

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

/* A span or time, in parts of `from`, in parts of `to`: if it is no whole number of ns it may be
 * rounded to one. */
static inline wide model_parts(const model_limit *from, const model_limit *to, wide span, bool up)
{
    wide ns = up ? wide_ceil(span, from->parts) : wide_floor(span, from->parts);
    return wide_mul(ns, to->parts);
}

/* Between which bounds the debt may be under `to` for one of `debt` parts under `from`, so that
 * tokens spent stay spent: up to 65,535 whole ones exactly; else they come out right or too large,
 * by one part in 65,536 and one ns; but what they are more than a whole number may be dropped if it
 * is one part in 65,536 of the next whole number, and so may 2^-30 of a token. More than the burst
 * is the burst. */
static inline void model_rescale(const model_limit *from, const model_limit *to, wide debt,
                                 wide *low, wide *high)
{
    wide rest, exactly = wide_mul(debt, to->interval), next, drop = wide_of(0), one = wide_of(1);
    wide tokens = wide_divide(debt, from->interval, &rest);
    wide most = wide_of(MODEL_EXACT_TOKENS + 1), tiny = wide_ceil(to->interval, wide_power(30));
    if (wide_zero(rest) && wide_less(tokens, most)) {
        *low = *high = wide_min(wide_mul(tokens, to->interval), to->window);
        return;
    }
    next = wide_mul(wide_add(tokens, one), to->interval);
    if (wide_less(tokens, most) && !wide_zero(tokens))
        drop = wide_ceil(next, most);
    exactly = wide_floor(exactly, from->interval);
    drop = wide_add(drop, wide_add(tiny, wide_ceil(exactly, wide_power(40))));
    *low = wide_above(exactly, drop);
    *high = wide_add(wide_add(exactly, one), wide_add(wide_ceil(exactly, most), to->parts));
    *high = wide_add(*high, tiny);
    *low = wide_min(*low, to->window);
    *high = wide_min(*high, to->window);
}

/* Between which bounds a state's time may be under another limit at now. A block and a debt made on
 * purpose are times and stay. Where a window ended is not remembered: under another window it is
 * taken to end where that one does, under a bucket all that is ahead of now counts. */
static inline bool model_change_state(const model_limit *from, const model_limit *to,
                                      const model_state *state, uint64_t now_ns, wide *low,
                                      wide *high)
{
    bool same = model_same_interval(from, to), close = model_close_interval(from, to);
    bool windows = to->kind == MODEL_WINDOW && (from->kind == MODEL_WINDOW || state->purpose);
    bool marked = model_mark(from) == model_mark(to);
    wide now = wide_mul(wide_of(now_ns), from->parts), full = state->full, at = now, debt;
    wide start = model_from(to, now_ns), as_it_was_low, as_it_was_high;
    if (windows)
        at = model_parts(to, from, start, false);
    debt = wide_zero(model_ahead(from, full, now)) ? wide_of(0) : model_ahead(from, full, at);
    *low = same ? full : model_parts(from, to, full, false);
    *high = same ? full : model_parts(from, to, full, true);
    if (state->blocked || (same && marked) || (wide_zero(debt) && !wide_equal(full, at)))
        return false;
    if (state->purpose)
        return true;
    as_it_was_low = model_ahead(to, *low, start);
    as_it_was_high = model_ahead(to, *high, start);
    if (!marked) {
        as_it_was_low = wide_min(as_it_was_low, to->window);
        as_it_was_high = wide_min(as_it_was_high, to->window);
    }
    if (same) {
        *low = as_it_was_low;
        *high = as_it_was_high;
    } else {
        model_rescale(from, to, debt, low, high);
    }
    if (close) {
        *low = wide_min(*low, as_it_was_low);
        *high = wide_max(*high, as_it_was_high);
    }
    *low = model_later(to, start, *low);
    *high = model_later(to, start, *high);
    return true;
}

/* Makes low and high those of another limit at now. */
static inline void model_change(model_key *key, const model_limit *to, uint64_t now_ns)
{
    const model_limit *from = &key->limit;
    model_state *low = &key->low, *high = &key->high;
    wide spare;
    if (from->kind == MODEL_BAD)
        return;
    if (low->kept)
        low->changed = model_change_state(from, to, low, now_ns, &low->full, &spare);
    if (high->kept)
        high->changed = model_change_state(from, to, high, now_ns, &spare, &high->full);
}

/* ---- deciding -------------------------------------------------------------------------------- */

/* What is answered without a look at any key: mistakes, in this order, and unlimited. */
static inline bool model_settled(const model_limit *limit, const ratelimit_request *req,
                                 ratelimit_result *res)
{
    ratelimit_op op = req->op;
    bool counts = op != RATELIMIT_BLOCK && op != RATELIMIT_RESET;
    bool gives = op == RATELIMIT_REFUND || op == RATELIMIT_CANCEL;
    memset(res, 0, sizeof *res);
    if ((unsigned)op > RATELIMIT_RESET)
        res->status = RATELIMIT_BAD_ARGUMENT;
    else if (limit->kind == MODEL_BAD)
        res->status = RATELIMIT_BAD_LIMIT;
    else if (counts && ((req->n == 0 && op != RATELIMIT_PEEK) || req->n > UINT64_MAX >> 1))
        res->status = RATELIMIT_BAD_COUNT;
    else if (op == RATELIMIT_BLOCK &&
             (req->max_wait_ns == 0 || req->max_wait_ns > UINT64_C(1) << 62))
        res->status = RATELIMIT_BAD_ARGUMENT;
    else if (limit->kind == MODEL_WINDOW && (gives || op == RATELIMIT_RESERVE))
        res->status = RATELIMIT_UNSUPPORTED;
    else if (limit->kind == MODEL_UNLIMITED && op == RATELIMIT_BLOCK)
        res->status = RATELIMIT_UNSUPPORTED;
    else if (limit->kind != MODEL_UNLIMITED)
        return false;
    if (res->status != RATELIMIT_OK)
        return true;
    res->allowed = true;
    res->burst = res->remaining = UINT64_MAX;
    res->taken = counts && !gives && op != RATELIMIT_PEEK ? req->n : 0;
    return true;
}

static inline bool model_same_state(const model_state *a, const model_state *b)
{
    return a->kept == b->kept && a->blocked == b->blocked && a->purpose == b->purpose &&
           a->changed == b->changed && a->seen == b->seen && wide_equal(a->full, b->full);
}

static inline bool model_exact(const model_key *key)
{
    return model_same_state(&key->low, &key->high);
}

/* Puts what was decided on `work` into key. If that did not move it the limit is what it was. */
static inline void model_commit(model_key *key, const model_key *work, const model_limit *limit,
                                const ratelimit_request *req, bool moved)
{
    bool never = key->limit.kind == MODEL_BAD;
    if (req->op == RATELIMIT_PEEK || (never && !moved))
        return;
    if (!moved && !model_same_interval(&key->limit, limit)) {
        key->low.seen = work->low.seen;
        key->high.seen = work->high.seen;
        return;
    }
    key->low = work->low;
    key->high = work->high;
    if (moved)
        key->limit = *limit;
    if (!key->low.kept && !key->high.kept)
        memset(key, 0, sizeof *key);
}

/* Decides req on key at now, all of *res. A key whose state is not known exactly is taken to be in
 * the middle if about, else there is no one right answer. */
static inline void model_decide(model_key *key, const model_limit *limit,
                                const ratelimit_request *req, uint64_t now_ns, bool about,
                                ratelimit_result *res)
{
    model_key work = *key;
    bool moved;
    if (model_settled(limit, req, res))
        return;
    model_change(&work, limit, now_ns);
    if (!model_exact(&work)) {
        wide from = model_from(limit, now_ns), middle;
        if (!about)
            wide_stop("parts of a token are spent: under another limit there is no one answer");
        middle = wide_add(model_ahead(limit, work.low.full, from),
                          model_ahead(limit, work.high.full, from));
        work.low.full = model_later(limit, from, wide_floor(middle, wide_of(2)));
    }
    moved = model_run(limit, &work.low, req, now_ns, res, NULL);
    work.high = work.low;
    model_commit(key, &work, limit, req, moved);
}

/* What a refusal leaves: key was seen at now. Only for keys whose state is known exactly. */
static inline void model_see(model_key *key, const model_limit *limit, uint64_t now_ns)
{
    model_key work = *key;
    ratelimit_request req;
    ratelimit_result spare;
    bool moved;
    memset(&req, 0, sizeof req);
    req.n = UINT64_MAX;
    model_change(&work, limit, now_ns);
    moved = model_run(limit, &work.low, &req, now_ns, &spare, NULL);
    work.high = work.low;
    model_commit(key, &work, limit, &req, moved);
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
    model_between(why, why_bytes, "burst", got->burst, a->burst, b->burst);
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

static inline wide model_debt(const model_state *state, const model_limit *limit, uint64_t now_ns)
{
    return state->kept ? model_beyond(limit, state->full, now_ns) : wide_of(0);
}

/* Moves a bound to at least or at most `debt`. */
static inline void model_bound(model_state *state, const model_limit *limit, uint64_t now_ns,
                               wide debt, bool least)
{
    wide from = model_from(limit, now_ns), is = model_debt(state, limit, now_ns);
    if (least ? !wide_less(is, debt) : !wide_less(debt, is))
        return;
    state->kept = true;
    state->full = model_later(limit, from, debt);
    state->seen = model_seen(limit, state->full, now_ns);
}

/* Brings low and high as near to each other as got's remaining and reset_after allow. False if they
 * would have to pass each other. */
static inline bool model_narrow(model_key *work, const model_limit *limit, uint64_t now_ns,
                                const ratelimit_result *got)
{
    wide one = wide_of(1), debt;
    wide reset = wide_of(got->reset_after_ns);
    if (work->low.blocked || work->high.blocked)
        return true;
    if (got->remaining < limit->burst) {
        debt = wide_mul(wide_add(wide_of(got->remaining), one), limit->interval);
        model_bound(&work->low, limit, now_ns, wide_above(limit->window, debt), true);
    }
    if (got->remaining > 0) {
        debt = wide_mul(wide_of(got->remaining), limit->interval);
        model_bound(&work->high, limit, now_ns, wide_sub(limit->window, debt), false);
    }
    if (limit->kind == MODEL_BUCKET && got->reset_after_ns > 0) {
        debt = wide_mul(wide_sub(reset, one), limit->parts);
        model_bound(&work->low, limit, now_ns, debt, true);
        model_bound(&work->high, limit, now_ns, wide_mul(reset, limit->parts), false);
    }
    return !wide_less(model_debt(&work->high, limit, now_ns),
                      model_debt(&work->low, limit, now_ns));
}

static inline bool model_moves(const model_state *before, const model_state *after)
{
    return before->kept != after->kept || !wide_equal(before->full, after->full);
}

/* Both bounds of a state that is not known exactly. */
static inline bool model_judge_bounds(model_key *work, const model_limit *limit,
                                      const ratelimit_request *req, uint64_t now_ns,
                                      const ratelimit_result *got, char *why, size_t why_bytes)
{
    model_key before = *work;
    ratelimit_result a, b;
    bool cancels = req->op == RATELIMIT_CANCEL, takes = req->op != RATELIMIT_REFUND;
    bool gave, moved = model_run(limit, &work->low, req, now_ns, &a, NULL);
    moved = model_run(limit, &work->high, req, now_ns, &b, NULL) || moved;
    if (got->wait_ns > a.wait_ns &&
        b.status == RATELIMIT_TIMEOUT) /* the longest that is accepted */
        b.wait_ns = req->max_wait_ns;
    model_compare_outcome(got, &a, &b, why, why_bytes);
    gave = model_moves(&before.low, &work->low) != model_moves(&before.high, &work->high);
    if (cancels ? gave
                : a.status != b.status || (takes && a.taken != b.taken)) { /* got says which */
        *work = before;
        moved = model_run(limit, &work->low, req, now_ns, &a, got);
        moved = model_run(limit, &work->high, req, now_ns, &b, got) || moved;
    }
    model_compare_rest(got, &a, &b, why, why_bytes);
    if (req->op == RATELIMIT_BLOCK) { /* ends at a whole ns, which got says */
        work->low.full = wide_mul(wide_of(now_ns + got->wait_ns), limit->parts);
        work->low.seen = model_seen(limit, work->low.full, now_ns);
        work->high = work->low;
    }
    if (!*why && req->op != RATELIMIT_PEEK && !model_narrow(work, limit, now_ns, got))
        snprintf(why, why_bytes, "the answer contradicts earlier ones");
    return moved;
}

/* Judges got as the answer to req on key at now, and carries req out. False with the reason in why
 * if it is not right. */
static inline bool model_judge(model_key *key, const model_limit *limit,
                               const ratelimit_request *req, uint64_t now_ns,
                               const ratelimit_result *got, char *why, size_t why_bytes)
{
    model_key work = *key;
    ratelimit_result a;
    bool moved;
    *why = '\0';
    if (model_settled(limit, req, &a)) {
        model_compare_outcome(got, &a, &a, why, why_bytes);
        model_compare_rest(got, &a, &a, why, why_bytes);
        return *why == '\0';
    }
    model_change(&work, limit, now_ns);
    if (model_exact(&work)) {
        moved = model_run(limit, &work.low, req, now_ns, &a, NULL);
        work.high = work.low;
        model_compare_outcome(got, &a, &a, why, why_bytes);
        model_compare_rest(got, &a, &a, why, why_bytes);
    } else {
        moved = model_judge_bounds(&work, limit, req, now_ns, got, why, why_bytes);
    }
    model_commit(key, &work, limit, req, moved);
    return *why == '\0';
}

#endif

/* suggest.c - which limit would do: a ladder from "refuses nobody" to "refuses 5 % of the keys"

   Of all round limits that refuse anything to no more than so many keys, a rung is the one that
   lets a key have the least in any one minute: burst plus a minute's tokens; of equals the smaller
   burst.

   A limit refuses a key something exactly if a bucket without bottom, filled at the limit's rate,
   is ever deeper in debt than the burst. So one pass with such a bucket for each rate says for each
   key the least burst that refuses it nothing, and with a count of keys by that burst all limits
   are known at once. Requests are kept in a temporary file meanwhile, in memory only keys: as many
   at a time as SUGGEST_MEMORY holds. */
#include "replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SUGGEST_MEMORY 50000000u
#define DEEPEST        UINT64_C(18000000000000000000)

/* Rates as people write them, the lowest first. */
typedef struct rate {
    uint64_t tokens, per_ns;
    uint64_t per_day;
} rate;

#define MAX_RATES  200
#define MAX_BURSTS 140

typedef struct search {
    rate rates[MAX_RATES];
    size_t rate_count;
    uint64_t bursts[MAX_BURSTS];
    size_t burst_count;
    uint32_t (*refused)[MAX_BURSTS + 1]; /* [rate][burst]: keys that need this burst */
} search;

/* A bucket without bottom; a token is per_ns, reduced, and tokens flow in at so many a ns. */
typedef struct deep {
    uint64_t debt, deepest;
} deep;

static uint64_t add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120 ... */
static size_t round_numbers(uint64_t *out, size_t room, uint64_t most)
{
    static const uint64_t small[] = {1, 2, 3, 4, 5, 6, 8};
    static const uint64_t steps[] = {10, 12, 15, 20, 25, 30, 40, 50, 60, 80};
    uint64_t ten = 1;
    size_t count = 0, i;
    for (i = 0; i < 7 && count < room && (i == 0 || small[i - 1] < most); i++)
        out[count++] = small[i];
    for (; ten <= UINT64_MAX / 1000 && count < room && out[count - 1] < most; ten *= 10)
        for (i = 0; i < 10 && count < room && out[count - 1] < most; i++)
            out[count++] = steps[i] * ten;
    return count;
}

static void add_rates(search *s, uint64_t per_ns, uint64_t below, uint64_t most_a_minute)
{
    uint64_t numbers[MAX_RATES];
    size_t count = round_numbers(numbers, MAX_RATES, below), i;
    for (i = 0; i < count && numbers[i] < below && s->rate_count < MAX_RATES; i++) {
        rate r;
        uint64_t times = RATELIMIT_DAY / per_ns;
        if (numbers[i] > UINT64_MAX / times)
            return;
        r.tokens = numbers[i];
        r.per_ns = per_ns;
        r.per_day = numbers[i] * times;
        if (s->rate_count && r.per_day / 1440 > most_a_minute)
            return; /* a burst of all that any key wants is tighter */
        s->rates[s->rate_count++] = r;
    }
}

/* No rate need be higher, and no burst larger, than what the costliest key takes in all. */
static void make_steps(search *s, uint64_t most)
{
    uint64_t rates = most > UINT64_MAX / 2 ? most : most * 2;
    add_rates(s, RATELIMIT_DAY, 24, most);
    add_rates(s, RATELIMIT_HOUR, 60, most);
    add_rates(s, RATELIMIT_MINUTE, 60, most);
    add_rates(s, RATELIMIT_SECOND, rates < 1000000000 ? rates + 1 : 1000000000, most);
    s->burst_count = round_numbers(s->bursts, MAX_BURSTS, most);
}

/* ---- the temporary file ---------------------------------------------------------------------- */

void ladder_read(ladder *l, input *in)
{
    request r;
    l->spool = tmpfile();
    if (!l->spool)
        fail(1, "--suggest needs a temporary file, which can't be made: %s", strerror(errno));
    while (next_request(in, &r)) {
        if (fwrite(&r, sizeof r, 1, l->spool) != 1)
            fail(1, "--suggest: cannot write the temporary file (32 bytes for each request): %s",
                 strerror(errno));
        l->spooled++;
    }
    if (fflush(l->spool) != 0)
        fail(1, "--suggest: cannot write the temporary file: %s", strerror(errno));
    rewind(l->spool);
}

bool ladder_next(ladder *l, request *out)
{
    return fread(out, sizeof *out, 1, l->spool) == 1;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* The debt after `wait` ns, `tokens` of which come back each ns. */
static uint64_t after_wait(uint64_t debt, uint64_t tokens, uint64_t wait)
{
    if (debt == 0 || (double)tokens * (double)wait >= (double)DEEPEST)
        return 0;
    return debt > tokens * wait ? debt - tokens * wait : 0;
}

static void deep_take(deep *d, uint64_t tokens, uint64_t token, uint64_t wait, uint64_t cost)
{
    d->debt = after_wait(d->debt, tokens, wait);
    if (cost > (DEEPEST - d->debt) / token)
        d->debt = d->deepest = DEEPEST; /* no legal burst is so deep: a window is at most 2^62 ns */
    else
        d->debt += cost * token;
    if (d->debt > d->deepest)
        d->deepest = d->debt;
}

/* The step whose burst refuses nothing, given the deepest debt. */
static size_t burst_for(const search *s, uint64_t deepest, uint64_t token)
{
    size_t low = 0, high = s->burst_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (deepest < DEEPEST && s->bursts[middle] >= deepest / token + (deepest % token != 0))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Keys first to until - 1, in one pass. */
static void count_keys(search *s, ladder *l, size_t first, size_t until)
{
    size_t rates = s->rate_count, count = until - first, i, k;
    deep *all = (deep *)resize(FOR_SUGGESTING, NULL, 0, count * rates, sizeof *all);
    uint64_t *last = (uint64_t *)resize(FOR_SUGGESTING, NULL, 0, count, sizeof *last);
    uint64_t tokens[MAX_RATES], token[MAX_RATES];
    request r;
    memset(all, 0, count * rates * sizeof *all);
    memset(last, 0, count * sizeof *last);
    for (i = 0; i < rates; i++) {
        uint64_t divisor = common_divisor(s->rates[i].tokens, s->rates[i].per_ns);
        tokens[i] = s->rates[i].tokens / divisor;
        token[i] = s->rates[i].per_ns / divisor;
    }
    rewind(l->spool);
    while (ladder_next(l, &r)) {
        if (r.key < first || r.key >= until)
            continue;
        k = r.key - first;
        for (i = 0; i < rates; i++)
            deep_take(&all[k * rates + i], tokens[i], token[i], r.time_ns - last[k], r.cost);
        last[k] = r.time_ns;
    }
    for (k = 0; k < count; k++)
        for (i = 0; i < rates; i++)
            s->refused[i][burst_for(s, all[k * rates + i].deepest, token[i])]++;
    resize(FOR_SUGGESTING, all, count * rates, 0, sizeof *all);
    resize(FOR_SUGGESTING, last, count, 0, sizeof *last);
}

/* After it refused[rate][burst] is how many keys such a limit refuses something. */
static void sum_up(search *s)
{
    size_t i, k;
    for (i = 0; i < s->rate_count; i++) {
        uint32_t more = 0;
        for (k = s->burst_count + 1; k--;) {
            uint32_t need = s->refused[i][k];
            s->refused[i][k] = more;
            more += need;
        }
    }
}

/* ---- the rungs ------------------------------------------------------------------------------- */

static ratelimit_limit limit_of(const search *s, size_t i, size_t k)
{
    return ratelimit_limit_make(s->rates[i].tokens, s->rates[i].per_ns, s->bursts[k]);
}

static bool find_rung(const search *s, rung *g, ratelimit_limit *out)
{
    uint64_t best = UINT64_MAX;
    size_t i, k;
    g->found = false;
    for (k = 0; k < s->burst_count; k++)
        for (i = 0; i < s->rate_count; i++) {
            uint64_t burst = s->bursts[k], measure;
            measure = burst > UINT64_MAX / 2880 ? UINT64_MAX : burst * 1440 + s->rates[i].per_day;
            if (s->refused[i][k] > g->may_refuse || measure >= best)
                continue;
            *out = limit_of(s, i, k);
            if (ratelimit_limit_check(out) != RATELIMIT_OK)
                continue;
            best = measure;
            g->found = true;
            g->minute = measure / 1440;
        }
    if (g->found)
        return true;
    return false;
}

static uint64_t share_of(uint64_t count, uint64_t share)
{
    uint64_t keys = count / SHARE_ONE * share + count % SHARE_ONE * share / SHARE_ONE;
    return share && count && keys == 0 ? 1 : keys;
}

static int by_share(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The rungs: shares that come to the same number of keys are one. */
static void make_rungs(ladder *l, uint64_t wanted, size_t keys)
{
    uint64_t shares[RUNGS + 1] = {0, SHARE_ONE / 1000, SHARE_ONE / 200, SHARE_ONE / 100,
                                  SHARE_ONE / 20};
    size_t count = RUNGS, i;
    for (i = 0; i < RUNGS && shares[i] != wanted; i++)
        ;
    if (i == RUNGS)
        shares[count++] = wanted;
    qsort(shares, count, sizeof *shares, by_share);
    for (i = 0; i < count; i++) {
        uint64_t may_refuse = share_of(keys, shares[i]);
        rung *g = l->count ? &l->rungs[l->count - 1] : NULL;
        if (!g || g->may_refuse != may_refuse) {
            g = &l->rungs[l->count++];
            g->may_refuse = may_refuse;
        }
        g->shares[g->share_count++] = shares[i];
        if (shares[i] == wanted)
            l->chosen = l->count - 1;
    }
}

static uint64_t most_of_a_key(ladder *l, size_t keys)
{
    uint64_t most = 1, *total;
    request r;
    size_t k;
    total = (uint64_t *)resize(FOR_SUGGESTING, NULL, 0, keys + 1, sizeof *total);
    memset(total, 0, (keys + 1) * sizeof *total);
    rewind(l->spool);
    while (ladder_next(l, &r))
        total[r.key] = add_capped(total[r.key], r.cost);
    for (k = 0; k < keys; k++)
        if (total[k] > most)
            most = total[k];
    resize(FOR_SUGGESTING, total, keys + 1, 0, sizeof *total);
    return most;
}

/* After it each rung that was found has a trial that has decided nothing yet. */
void ladder_find(ladder *l, const options *opt, const key_set *keys)
{
    static search s;
    size_t first, batch, i;
    make_rungs(l, opt->share, keys->count);
    if (l->spooled == 0)
        return;
    make_steps(&s, most_of_a_key(l, keys->count));
    s.refused = (uint32_t(*)[MAX_BURSTS + 1])
        resize(FOR_SUGGESTING, NULL, 0, s.rate_count, sizeof *s.refused);
    memset(s.refused, 0, s.rate_count * sizeof *s.refused);
    batch = SUGGEST_MEMORY / (s.rate_count * sizeof(deep));
    for (first = 0; first < keys->count; first += batch)
        count_keys(&s, l, first, first + batch < keys->count ? first + batch : keys->count);
    sum_up(&s);
    for (i = 0; i < l->count; i++) {
        rung *g = &l->rungs[i];
        ratelimit_limit limit;
        if (!find_rung(&s, g, &limit))
            continue;
        g->trial = (trial *)resize(FOR_SUGGESTING, NULL, 0, 1, sizeof *g->trial);
        memset(g->trial, 0, sizeof *g->trial);
        g->trial->is.limit[0] = limit;
        g->trial->is.limits = 1;
    }
    rewind(l->spool);
}

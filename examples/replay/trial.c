/* trial.c - candidates: each key has a bucket for each of their limits, so all is exact

   This is where ratelimit.h decides. A candidate of several limits is all or none: what one of them
   refuses costs nothing in the others. --table-keys also asks a table of the size given, to show
   what a table too small gets wrong. */
#define RATELIMIT_IMPLEMENTATION
#include "replay.h"

#include <string.h>

/* Room for keys that are new: their buckets are full, that is all zero. */
void trial_room(trial *t, size_t keys)
{
    size_t room = t->room ? t->room : 1024, limits = t->is.limits;
    if (keys <= t->room)
        return;
    while (room < keys)
        room *= 2;
    t->buckets = (ratelimit_bucket *)resize(FOR_BUCKETS, t->buckets, t->room * limits,
                                            room * limits, sizeof *t->buckets);
    memset(t->buckets + t->room * limits, 0, (room - t->room) * limits * sizeof *t->buckets);
    t->refused_of =
        (uint64_t *)resize(FOR_BUCKETS, t->refused_of, t->room, room, sizeof *t->refused_of);
    memset(t->refused_of + t->room, 0, (room - t->room) * sizeof *t->refused_of);
    t->room = room;
}

/* Takes from copies, which take the place of the buckets only if all allow it. */
static verdict decide_all(trial *t, ratelimit_bucket *buckets, const request *r)
{
    ratelimit_bucket after[MAX_LIMITS];
    verdict v = {true, UINT64_MAX, 0}, refusal = {false, UINT64_MAX, 0};
    size_t i, limits = t->is.limits;
    memcpy(after, buckets, limits * sizeof *after);
    for (i = 0; i < limits; i++) {
        ratelimit_result res;
        bool allowed = ratelimit_bucket_take(&after[i], &t->is.limit[i], r->cost, r->time_ns, &res);
        verdict *of = allowed ? &v : &refusal;
        if (res.remaining < of->remaining)
            of->remaining = res.remaining;
        if (res.retry_after_ns > of->retry_after_ns)
            of->retry_after_ns = res.retry_after_ns;
        v.allowed = v.allowed && allowed;
    }
    if (!v.allowed)
        return refusal;
    memcpy(buckets, after, limits * sizeof *after);
    return v;
}

/* The key has room already. */
verdict trial_decide(trial *t, const request *r)
{
    ratelimit_bucket *buckets = t->buckets + (size_t)r->key * t->is.limits;
    ratelimit_result res;
    verdict v;
    if (t->is.limits != 1)
        return decide_all(t, buckets, r);
    v.allowed = ratelimit_bucket_take(buckets, t->is.limit, r->cost, r->time_ns, &res);
    v.remaining = res.remaining;
    v.retry_after_ns = res.retry_after_ns;
    return v;
}

void trial_count(trial *t, const request *r, const verdict *v)
{
    series_add(&t->series, r->time_ns, v->allowed);
    if (v->allowed)
        return;
    t->refused++;
    t->never += v->retry_after_ns == RATELIMIT_FOREVER;
    t->keys_refused += t->refused_of[r->key]++ == 0;
}

static bool more_refused(const trial *t, uint32_t a, uint32_t b)
{
    return t->refused_of[a] != t->refused_of[b] ? t->refused_of[a] > t->refused_of[b] : a < b;
}

void trial_top(trial *t, size_t keys)
{
    uint32_t number;
    size_t at;
    t->top_count = 0;
    for (number = 0; number < keys && number < t->room; number++) {
        if (t->refused_of[number] == 0 ||
            (t->top_count == TOP && !more_refused(t, number, t->top[TOP - 1])))
            continue;
        t->top_count += t->top_count < TOP;
        for (at = t->top_count - 1; at && more_refused(t, number, t->top[at - 1]); at--)
            t->top[at] = t->top[at - 1];
        t->top[at] = number;
    }
}

/* ---- --table-keys ---------------------------------------------------------------------------- */

void small_init(small_table *s, const options *opt, const candidate *is)
{
    ratelimit_table_options table_options;
    size_t bytes = ratelimit_table_bytes((size_t)opt->table_keys);
    ratelimit_status status;
    memset(&table_options, 0, sizeof table_options);
    table_options.seed[0] = opt->seed;
    table_options.seed[1] = UINT64_C(0x7265706C61792E63);
    table_options.when_full = opt->when_full;
    if (bytes == 0)
        fail(1, "--table-keys: no table can be that large");
    s->is = is;
    status = ratelimit_table_init(&s->table, resize(FOR_BUCKETS, NULL, 0, bytes, 1), bytes,
                                  &table_options);
    if (status != RATELIMIT_OK)
        fail(1, "--table-keys: no table of %zu bytes: %s", bytes, ratelimit_status_text(status));
}

/* The key's bytes for limit i: i and the text: two limits on one key have a bucket each, also if
 * they are the same. */
static const char *limited_key(small_table *s, const key *k, size_t i)
{
    size_t len = (size_t)k->len + 1;
    char *copy;
    if (i == 0)
        return k->at;
    if (s->scratch_size < len * MAX_LIMITS) {
        s->scratch = (char *)resize(FOR_BUCKETS, s->scratch, s->scratch_size, len * MAX_LIMITS, 1);
        s->scratch_size = len * MAX_LIMITS;
    }
    copy = s->scratch + len * i;
    memcpy(copy, k->at, len);
    copy[0] = (char)i;
    return copy;
}

bool small_decide(small_table *s, const key *k, const request *r)
{
    ratelimit_request req[MAX_LIMITS];
    ratelimit_result res[MAX_LIMITS];
    size_t i, count = s->is->limits;
    bool allowed = true;
    memset(req, 0, count * sizeof *req);
    for (i = count; i--;) { /* the last first: its copy of the key makes room for all */
        req[i].key = limited_key(s, k, i);
        req[i].key_len = (size_t)k->len + 1;
        req[i].limit = &s->is->limit[i];
        req[i].n = r->cost;
    }
    ratelimit_table_decide(s->table, req, res, count, RATELIMIT_ALL, r->time_ns);
    for (i = 0; i < count; i++)
        allowed = allowed && res[i].allowed;
    return allowed;
}

/* Decides all limits of a request in memory: all or none. (redis.c decides in Redis.)

   Limits whose zone is the same are one decision of its table, which is all or none at every
   moment. For several zones the tables are first asked whether all would pass; only then tokens are
   taken, table by table. If another worker was faster in between, so that a later table refuses
   after all, what the earlier ones gave is given back. Nobody can get too much by that: at worst
   somebody is refused who would have passed a moment later. (Fixed windows take nothing back: there
   a request that loses this race has paid.)

   Limits under a shadow rule are decided last, each on its own, and only if the others passed. */
#include "module.h"

static const zone *zone_of(const decision *d, size_t i)
{
    return d->place[i]->zone;
}

/* Whether i is the first limit that counts of its zone; how many zones there are. */
static bool begins_zone(const decision *d, size_t i)
{
    size_t j;
    for (j = 0; j < i; j++)
        if (zone_of(d, j) == zone_of(d, i) && !d->rule[j].shadow)
            return false;
    return !d->rule[i].shadow;
}

static size_t zones(const decision *d)
{
    size_t i, count = 0;
    for (i = 0; i < d->count; i++)
        count += begins_zone(d, i);
    return count;
}

/* Takes from the table of z what the limits of that zone ask for, all or none. */
static bool take(decision *d, const zone *z, uint64_t now)
{
    ratelimit_request req[MAX_PLACES];
    ratelimit_result res[MAX_PLACES];
    size_t of[MAX_PLACES], i, count = 0;
    bool passed;
    ngx_memzero(req, sizeof req);
    for (i = 0; i < d->count; i++)
        if (zone_of(d, i) == z && !d->rule[i].shadow) {
            of[count] = i;
            req[count++] = d->req[i];
        }
    passed = ratelimit_table_decide(z->table, req, res, count, RATELIMIT_ALL, now);
    for (i = 0; i < count; i++)
        d->res[of[i]] = res[i];
    return passed;
}

/* Whether all limits would pass; takes nothing. */
static bool ask(decision *d, uint64_t now)
{
    bool pass = true;
    size_t i;
    for (i = 0; i < d->count; i++) {
        ratelimit_request req = d->req[i];
        ratelimit_result *res = &d->res[i];
        if (d->rule[i].shadow)
            continue;
        req.op = RATELIMIT_PEEK;
        (void)ratelimit_table_decide_one(zone_of(d, i)->table, &req, now, res);
        if (d->req[i].op == RATELIMIT_RESERVE && res->status == RATELIMIT_DENIED) {
            res->allowed = res->retry_after_ns <= d->req[i].max_wait_ns;
            res->status = res->allowed ? RATELIMIT_OK : RATELIMIT_TIMEOUT;
        }
        pass = pass && res->allowed;
    }
    return pass;
}

static void give_back(decision *d, const zone *z, uint64_t now)
{
    size_t i;
    for (i = 0; i < d->count; i++) {
        ratelimit_request req = d->req[i];
        if (zone_of(d, i) != z || d->rule[i].shadow || req.op == RATELIMIT_PEEK)
            continue;
        req.op = d->res[i].wait_ns ? RATELIMIT_CANCEL : RATELIMIT_REFUND;
        req.max_wait_ns = d->res[i].wait_ns;
        (void)ratelimit_table_decide_one(z->table, &req, now, NULL);
    }
}

/* Some limit refused: those that did not are SKIPPED, as in a batch of one table. */
static void skip_others(decision *d)
{
    size_t i;
    for (i = 0; i < d->count; i++)
        if (d->res[i].allowed && !d->rule[i].shadow) {
            d->res[i].allowed = false;
            d->res[i].status = RATELIMIT_SKIPPED;
            d->res[i].taken = d->res[i].wait_ns = 0;
        }
}

static bool take_all(decision *d, uint64_t now)
{
    bool several = zones(d) > 1, pass = !several || ask(d, now);
    size_t i, j;
    for (i = 0; pass && i < d->count; i++) {
        if (!begins_zone(d, i))
            continue;
        pass = take(d, zone_of(d, i), now);
        for (j = 0; !pass && j < i; j++)
            if (begins_zone(d, j))
                give_back(d, zone_of(d, j), now);
    }
    if (!pass && several)
        skip_others(d);
    return pass;
}

void decide_in_memory(decision *d, uint64_t now)
{
    bool pass = take_all(d, now);
    size_t i;
    for (i = 0; i < d->count; i++) {
        if (!d->rule[i].shadow)
            continue;
        if (pass) {
            (void)ratelimit_table_decide_one(zone_of(d, i)->table, &d->req[i], now, &d->res[i]);
        } else {
            ngx_memzero(&d->res[i], sizeof d->res[i]);
            d->res[i].status = RATELIMIT_SKIPPED;
        }
    }
}

/* What the table said of a reservation, in the words of a limit under which a request may come so
   early: how many more would be accepted, and when the next one if none. In a zone with a rate the
   table's limit has a burst of one token, under which the next request would wait for as long as
   the bucket is not full: reset_after_ns. Clients are told of the burst of the place. */
static void tell(const place *p, ratelimit_result *res)
{
    uint64_t left;
    if (res->status == RATELIMIT_STORE_FAILED)
        return;
    if (res->status == RATELIMIT_TIMEOUT) {
        res->status = RATELIMIT_DENIED;
        res->retry_after_ns -= p->max_wait_ns;
    }
    if (p->zone->kind != ZONE_OF_RATE || p->rule)
        return;
    res->burst = p->told.burst;
    res->remaining = 0;
    if (res->reset_after_ns > p->max_wait_ns)
        return;
    left = p->max_wait_ns - res->reset_after_ns + 1; /* both are rounded up, by less than 1 ns */
    res->remaining =
        1 + (left > UINT64_MAX / p->told.tokens ? left / p->told.per_ns * p->told.tokens
                                                : left * p->told.tokens / p->told.per_ns);
}

/* The outcome of one limit. The request waits for the longest delay. */
static outcome outcome_of(decision *d, size_t i)
{
    const ratelimit_result *res = &d->res[i];
    uint64_t delay = res->wait_ns > d->place[i]->free_ns ? res->wait_ns - d->place[i]->free_ns : 0;
    bool shadow = d->rule[i].shadow;
    if (res->status == RATELIMIT_SKIPPED)
        return NOT_LIMITED;
    if (!res->allowed)
        return shadow ? REJECTED_DRY_RUN : REJECTED;
    if (d->req[i].op != RATELIMIT_RESERVE || !delay)
        return PASSED;
    if (!shadow && delay > d->delay_ns) {
        d->delay_ns = delay;
        d->binding = i;
    }
    return shadow ? DELAYED_DRY_RUN : DELAYED;
}

/* All limits are decided: counts, and sets outcome, delay and binding of d. dry_run: the limits are
   charged, but nobody waits or is refused. */
void conclude(decision *d, bool dry_run)
{
    static const outcome order[] = {REJECTED, DELAYED, REJECTED_DRY_RUN, DELAYED_DRY_RUN, PASSED};
    bool seen[OUTCOMES] = {false};
    size_t i;
    for (i = 0; i < d->count; i++) {
        outcome what = outcome_of(d, i);
        what = !dry_run           ? what
               : what == REJECTED ? REJECTED_DRY_RUN
               : what == DELAYED  ? DELAYED_DRY_RUN
                                  : what;
        seen[what] = true;
        if (what != NOT_LIMITED)
            zone_count(d->place[i]->zone, d->place[i]->rule ? d->rule[i].name : "",
                       what + (d->failed ? OUTCOMES : 0));
        tell(d->place[i], &d->res[i]);
    }
    for (i = sizeof order / sizeof *order; i--;)
        if (seen[order[i]])
            d->outcome = order[i];
    if (!d->delay_ns) /* else it is the limit that the request waits for */
        d->binding = ratelimit_binding(d->res, d->count);
}

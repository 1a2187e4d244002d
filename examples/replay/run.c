/* run.c - the whole run: read, find the ladder, decide, count */
#include "replay.h"

#include <string.h>

static void print_decision(const run *r, const request *req, const verdict *v)
{
    if (r->in.source_count > 1)
        printf("%" PRIu32 ":", req->file);
    printf("%" PRIu64 " %d %" PRIu64 " %" PRIu64 "\n", req->line, v->allowed, v->remaining,
           v->retry_after_ns);
}

#define BATCH 256 /* requests decided between two looks at the clock */

static request batch[BATCH];
static verdict verdicts[BATCH];
static size_t batched;

static void count_request(run *r, const request *req, const verdict *v)
{
    key *k = &r->in.keys.list[req->key];
    if (r->requests++ == 0)
        r->first_ns = req->time_ns;
    r->last_ns = req->time_ns;
    k->requests++;
    if (r->opt->decisions)
        print_decision(r, req, v);
    if (r->small.table) {
        bool allowed = small_decide(&r->small, k, req);
        r->small.too_lenient += allowed && !v->allowed;
        r->small.too_strict += !allowed && v->allowed;
    }
}

void decide_rest(run *r)
{
    size_t i, t = r->trial_count;
    uint64_t begin = ratelimit_clock_ns();
    while (t--) { /* the first is the last: its verdicts are kept */
        trial *of = r->trials[t];
        trial_room(of, r->in.keys.count);
        for (i = 0; i < batched; i++)
            verdicts[i] = trial_decide(of, &batch[i]);
        r->deciding_ns += ratelimit_clock_ns() - begin;
        for (i = 0; i < batched; i++)
            trial_count(of, &batch[i], &verdicts[i]);
        begin = ratelimit_clock_ns();
    }
    for (i = 0; i < batched; i++)
        count_request(r, &batch[i], &verdicts[i]);
    batched = 0;
    if (r->opt->decisions)
        check_output(stdout, "to standard output");
}

void decide_one(run *r, const request *req)
{
    batch[batched++] = *req;
    if (batched == BATCH)
        decide_rest(r);
}

static trial *new_trial(const candidate *is)
{
    trial *t = (trial *)resize(FOR_BUCKETS, NULL, 0, 1, sizeof *t);
    memset(t, 0, sizeof *t);
    t->is = *is;
    return t;
}

/* The candidates that were given, then the rungs of the ladder. */
static void make_trials(run *r)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    candidate none;
    size_t i;
    for (i = 0; i < r->opt->candidate_count; i++)
        r->trials[r->trial_count++] = new_trial(&r->opt->candidates[i]);
    if (r->opt->suggest && r->trial_count == 0) {
        rung *g = &r->ladder.rungs[r->ladder.chosen];
        memset(&none, 0, sizeof none);
        none.limit[0] = unlimited;
        none.unlimited[0] = true;
        none.limits = 1;
        r->trials[r->trial_count++] = g->found ? g->trial : new_trial(&none);
    }
    r->first = r->trials[0];
    for (i = 0; i < r->ladder.count; i++)
        if (r->ladder.rungs[i].found && r->ladder.rungs[i].trial != r->first)
            r->trials[r->trial_count++] = r->ladder.rungs[i].trial;
    if (r->opt->table_keys)
        small_init(&r->small, r->opt, &r->first->is);
}

/* Reads, decides and counts all there is. */
void run_all(run *r)
{
    uint64_t begin = ratelimit_clock_ns();
    request req;
    size_t i;
    open_input(&r->in, r->opt);
    if (r->opt->suggest) {
        ladder_read(&r->ladder, &r->in);
        ladder_find(&r->ladder, r->opt, &r->in.keys);
    }
    make_trials(r);
    if (r->opt->follow)
        follow(r);
    else
        while (r->opt->suggest ? ladder_next(&r->ladder, &req) : next_request(&r->in, &req))
            decide_one(r, &req);
    decide_rest(r);
    r->whole_ns = ratelimit_clock_ns() - begin;
    for (i = 0; i < r->trial_count; i++)
        trial_top(r->trials[i], r->in.keys.count);
    progress_end();
}

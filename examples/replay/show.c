/* show.c - what all reports share: labels, and what must be said before any number */
#include "replay.h"

#include <string.h>

dating dating_of(const run *r)
{
    return r->in.without_year                 ? DATE_ONLY
           : r->last_ns < 366 * RATELIMIT_DAY ? NO_DATE
                                              : DATE_AND_YEAR;
}

/* "3 Mar 2026 14:00:00 to 3 Mar 2026 14:59:59 UTC" */
long_text span_label(const run *r)
{
    long_text out;
    dating date = dating_of(r);
    snprintf(out.at, sizeof out.at, "%s to %s%s", time_text(r->first_ns, date).at,
             time_text(r->last_ns, date).at, date == DATE_AND_YEAR ? " UTC" : "");
    return out;
}

/* "access.log", "access.log and 3 more" */
long_text input_label(const run *r)
{
    long_text out;
    const char *name = r->in.files[0].name, *slash = strrchr(name, '/');
    copy_harmless(out.at, 120, as_text(slash && slash[1] ? slash + 1 : name));
    if (r->in.source_count > 1)
        append(&out, " and %zu more", r->in.source_count - 1);
    return out;
}

/* The most that one key may do in ns: the least of all limits' burst and what flows in. */
uint64_t most_in(const candidate *c, uint64_t ns)
{
    uint64_t least = UINT64_MAX;
    size_t i;
    for (i = 0; i < c->limits; i++) {
        const ratelimit_limit *l = &c->limit[i];
        double flow = (double)l->tokens * ((double)ns / (double)l->per_ns), sum;
        if (c->unlimited[i])
            continue;
        if (c->window[i]) /* the windows that such a span may touch */
            flow = (double)l->tokens * (double)((ns + l->per_ns - 2) / l->per_ns);
        sum = (double)l->burst + flow;
        if (sum < 1e18 && (uint64_t)sum < least)
            least = (uint64_t)sum;
    }
    return least;
}

/* Most lines are earlier than the one before: newest first. */
bool is_reversed(const input *in)
{
    uint64_t requests = 0;
    size_t i;
    for (i = 0; i < in->source_count; i++)
        requests += in->files[i].requests;
    return requests > 2 && in->disordered * 2 > requests;
}

/* What makes the whole report worth nothing, or NULL. */
const char *trouble(const run *r, long_text *more)
{
    const input *in = &r->in;
    more->at[0] = 0;
    if (r->requests == 0 && in->bad_lines) {
        append(more,
               "no line could be read as a request with a key by %s; any log can be written as "
               "lines of TIME KEY",
               key_label(r->opt).at);
        return "NOTHING READ";
    }
    if (r->requests == 0 && in->left_out) {
        append(more, "all %s lines were left out by --only, --status, --method or --path-prefix",
               commas(in->left_out).at);
        return "NOTHING LEFT";
    }
    if (in->too_late > r->requests / 1000) {
        append(more, "%s of %s requests came too late to be sorted (--reorder %" PRIu64 ")%s",
               commas(in->too_late).at, commas(r->requests).at, r->opt->reorder,
               is_reversed(in) ? "; lines come newest first: tac FILE | replay [OPTION]... -" : "");
        return "NOT RIGHT";
    }
    return NULL;
}

/* "0 %", "0.1, 0.5 and 1 %" */
void share_list(long_text *out, const rung *g)
{
    size_t i;
    for (i = 0; i < g->share_count; i++)
        append(out, "%s%.4g",
               i == 0                   ? ""
               : i + 1 < g->share_count ? ", "
                                        : " and ",
               100.0 * (double)g->shares[i] / SHARE_ONE);
    append(out, " %%");
}

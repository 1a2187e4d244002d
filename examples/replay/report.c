/* report.c - the report on a terminal */
#include "replay.h"

#include <string.h>

#define MOST_INPUTS 12

/* "   the first is line 17 of access.log: why" */
static void first_bad(FILE *out, const input *in, const char *indent)
{
    size_t i = 0;
    while (i < in->source_count && in->files[i].bad == 0)
        i++;
    if (i == in->source_count)
        return;
    fprintf(out, "   the first is line %s", commas(in->files[i].first_bad_line).at);
    if (in->source_count > 1)
        fprintf(out, " of %s", in->files[i].name);
    fprintf(out, ": %s", in->files[i].why_bad);
    if (in->files[i].first_bad[0])
        fprintf(out, "\n%s> %s", indent, in->files[i].first_bad);
}

static void print_counts(const run *r)
{
    const trial *t = r->first;
    printf("  requests      %13s", commas(r->requests).at);
    if (r->requests)
        printf("   %s", span_label(r).at);
    printf("\n  keys          %13s\n", commas(r->in.keys.count).at);
    if (r->opt->candidate_count <= 1) {
        printf("  allowed       %13s\n", commas(r->requests - t->refused).at);
        printf("  refused       %13s   %s of requests\n", commas(t->refused).at,
               percent(t->refused, r->requests).at);
        printf("  keys refused  %13s   %s of keys, at least once\n", commas(t->keys_refused).at,
               percent(t->keys_refused, r->in.keys.count).at);
    }
    if (t->never)
        printf("  above burst   %13s   of refused: they cost more than a burst, waiting does not "
               "help\n",
               commas(t->never).at);
    if (r->in.left_out)
        printf("  left out      %13s   by --only, --status, --method, --path-prefix\n",
               commas(r->in.left_out).at);
    printf("  bad lines     %13s", commas(r->in.bad_lines).at);
    first_bad(stdout, &r->in, "                                ");
    putchar('\n');
}

/* What each file was taken for: "access.log: combined 19,012, ssh 3". */
static void print_inputs(FILE *out, const input *in)
{
    size_t i, f;
    for (i = 0; i < in->source_count; i++) {
        const input_file *file = &in->files[i];
        const char *comma = "";
        if (i == MOST_INPUTS && in->source_count > MOST_INPUTS + 1) {
            fprintf(out, "  and %zu more inputs\n", in->source_count - MOST_INPUTS);
            break;
        }
        fputs("  ", out);
        put_text(out, as_text(file->name), 200, PLAIN);
        fputs(": ", out);
        for (f = 0; f < FORMS; f++) {
            if (file->lines_of[f] == 0)
                continue;
            fprintf(out, "%s%s as %s", comma, commas(file->lines_of[f]).at,
                    form_name((form_kind)f, file->around[f]).at);
            comma = ", ";
        }
        if (file->bad)
            fprintf(out, "%s%s bad (line %s: %s)", comma, commas(file->bad).at,
                    commas(file->first_bad_line).at, file->why_bad);
        else if (!*comma)
            fputs(file->fault ? "" : "no line", out);
        if (file->fault)
            fprintf(out, "%s%sCAN'T BE READ: %s", *comma || file->bad ? ", " : "",
                    file->requests ? "the rest " : "", file->fault);
        fputc('\n', out);
    }
}

static void print_top(const run *r)
{
    const trial *t = r->first;
    size_t i;
    if (t->top_count)
        printf("\n  most refused%44srefused   of requests\n", "");
    for (i = 0; i < t->top_count; i++) {
        const key *k = &r->in.keys.list[t->top[i]];
        printf("  ");
        printf("%*s", (int)(50 - put_text(stdout, key_text(k), 50, PLAIN)), "");
        printf(" %12s %13s\n", commas(t->refused_of[t->top[i]]).at, commas(k->requests).at);
    }
}

/* ---- several candidates ---------------------------------------------------------------------- */

static void print_candidates(const run *r)
{
    size_t i, k;
    printf("\n      %-46s %9s %9s %9s %9s\n", "candidate", "refused", "requests", "keys",
           "of keys");
    for (i = 0; i < r->opt->candidate_count; i++) {
        const trial *t = r->trials[i];
        printf("  %2zu  %-46s %9s %9s", i + 1, candidate_label(&t->is).at, commas(t->refused).at,
               short_percent(t->refused, r->requests).at);
        printf(" %9s %9s\n", commas(t->keys_refused).at,
               short_percent(t->keys_refused, r->in.keys.count).at);
    }
    printf("\n  refused of the worst-hit keys%14srequests", "");
    for (i = 0; i < r->opt->candidate_count && i < 6; i++)
        printf("       (%zu)", i + 1);
    putchar('\n');
    for (k = 0; k < r->first->top_count; k++) {
        uint32_t number = r->first->top[k];
        const key *of = &r->in.keys.list[number];
        printf("  ");
        printf("%*s", (int)(38 - put_text(stdout, key_text(of), 38, PLAIN)), "");
        printf(" %11s", commas(of->requests).at);
        for (i = 0; i < r->opt->candidate_count && i < 6; i++)
            printf(" %9s", commas(r->trials[i]->refused_of[number]).at);
        putchar('\n');
    }
}

/* ---- the ladder ------------------------------------------------------------------------------ */

static void print_rung(const run *r, const rung *g, bool chosen)
{
    long_text shares;
    shares.at[0] = 0;
    share_list(&shares, g);
    printf(" %c%-22s", chosen ? '*' : ' ', shares.at);
    if (!g->found) {
        printf(" none\n");
        return;
    }
    printf(" %-20s %9s %8s", limit_text(&g->trial->is.limit[0]).at, commas(g->trial->refused).at,
           short_percent(g->trial->refused, r->requests).at);
    printf(" %6s  ", commas(g->trial->keys_refused).at);
    if (g->trial->top_count)
        put_text(stdout, key_text(&r->in.keys.list[g->trial->top[0]]), 40, PLAIN);
    else
        printf("nobody");
    putchar('\n');
}

static void print_ladder(const run *r)
{
    const rung *g = &r->ladder.rungs[r->ladder.chosen];
    size_t i;
    printf("\n  the tightest round limit that refuses something to at most so many keys (of each "
           "share at least one)\n\n");
    printf("  %-22s %-20s %9s %8s %6s  %s\n", "of keys", "limit", "refused", "requests", "keys",
           "most refused");
    for (i = 0; i < r->ladder.count; i++)
        print_rung(r, &r->ladder.rungs[i], i == r->ladder.chosen);
    if (!g->found)
        return;
    printf("\n--limit \"%s\"\n\n", limit_text(&g->trial->is.limit[0]).at);
    printf("      refuses something to %s of %s keys (%s may be); one key may have at most %s "
           "in a minute\n",
           commas(g->trial->keys_refused).at, commas(r->in.keys.count).at, commas(g->may_refuse).at,
           commas(g->minute).at);
}

/* ---- notes ----------------------------------------------------------------------------------- */

static void print_small(const run *r)
{
    ratelimit_table_counts small;
    ratelimit_table_stats(r->small.table, r->last_ns, &small);
    printf("  a table for %s keys (%s, %s places): %s keys forced out, %s refused for want of "
           "room;\n",
           commas(r->opt->table_keys).at, bytes_text(small.bytes).at, commas(small.capacity).at,
           commas(small.evicted).at, commas(small.refused).at);
    printf("      it allows %s requests that are refused above, and refuses %s that are allowed\n",
           commas(r->small.too_lenient).at, commas(r->small.too_strict).at);
}

static void print_notes(FILE *out, const run *r)
{
    const input *in = &r->in;
    if (in->disordered)
        fprintf(out,
                "  %s requests were out of order, by up to %" PRIu64
                ".%03u s; %s came too late for --reorder %" PRIu64 "%s\n",
                commas(in->disordered).at, in->disorder_ns / RATELIMIT_SECOND,
                (unsigned)(in->disorder_ns / RATELIMIT_MILLISECOND % 1000),
                in->too_late ? commas(in->too_late).at : "none", r->opt->reorder,
                is_reversed(in) ? "; the lines come newest first" : "");
    else if (in->too_late)
        fprintf(out, "  %s requests came too late to be taken in order of time\n",
                commas(in->too_late).at);
    if (in->without_year)
        fprintf(out,
                "  the log has no years: its first line is taken to be of %" PRIu64 " (--year)\n",
                in->assumed_year);
    if (in->without_year && in->with_year)
        fprintf(out, "  SOME LINES HAVE YEARS, SOME NOT: they are in order only if --year is "
                     "right\n");
    if (is_reversed(in) && !in->too_late)
        fprintf(out, "  the lines come newest first; all could be sorted\n");
}

/* Behind a proxy most logs have the proxy's address. */
static void print_proxy(const run *r)
{
    size_t i;
    if (r->opt->key != KEY_IP || r->opt->json_key || r->requests < 100)
        return;
    for (i = 0; i < r->in.keys.count; i++)
        if (r->in.keys.list[i].requests > r->requests / 10 * 9) {
            printf("  9 of 10 requests have one address: if it is a proxy in front, name the "
                   "client's field (--key -1, --json-key)\n");
            return;
        }
}

/* --decisions keeps standard output for itself. */
void print_decision_notes(const run *r)
{
    long_text more;
    const char *what = trouble(r, &more);
    progress_end();
    if (what)
        fprintf(stderr, "  %s: %s\n", what, more.at);
    print_inputs(stderr, &r->in);
    if (r->in.bad_lines) {
        fprintf(stderr, "  bad lines: %s", commas(r->in.bad_lines).at);
        first_bad(stderr, &r->in, "      ");
        fputc('\n', stderr);
    }
    print_notes(stderr, r);
}

static void print_costs(const run *r)
{
    uint64_t whole = r->whole_ns ? r->whole_ns : 1, deciding = r->deciding_ns ? r->deciding_ns : 1,
             memory = 0;
    size_t i;
    for (i = 0; i < MEMORY_KINDS; i++)
        memory += memory_used[i];
    printf("  memory: %s (keys %s, ", bytes_text(memory).at, bytes_text(memory_used[FOR_KEYS]).at);
    printf("buckets %s, reading and sorting %s)\n", bytes_text(memory_used[FOR_BUCKETS]).at,
           bytes_text(memory_used[FOR_READING]).at);
    printf("  %s decisions per second; ",
           commas((uint64_t)((double)r->requests * (double)r->trial_count * 1e9 / (double)deciding))
               .at);
    printf("%s requests per second with reading and sorting\n",
           commas((uint64_t)((double)r->requests * 1e9 / (double)whole)).at);
}

static void print_headline(const run *r)
{
    const options *opt = r->opt;
    long_text more;
    const char *what = trouble(r, &more);
    if (what)
        printf("%s: %s\n", what, more.at);
    if (opt->candidate_count > 1)
        printf("%zu candidates", opt->candidate_count);
    else
        printf("%s", candidate_label(&r->first->is).at);
    printf(" per %s%s%s\n\n", key_label(opt).at, opt->cost_bytes ? ", in bytes" : "",
           r->first->is.limits > 1 && opt->candidate_count == 1
               ? ": a request must pass all, else it costs nothing in any (--compare: side by side)"
               : "");
}

void print_report(const run *r)
{
    size_t i;
    print_headline(r);
    print_counts(r);
    if (r->opt->candidate_count > 1)
        print_candidates(r);
    else
        print_top(r);
    if (r->requests)
        print_chart(r, r->first);
    for (i = 1; r->requests && i < r->opt->candidate_count; i++)
        print_chart(r, r->trials[i]);
    if (r->opt->suggest)
        print_ladder(r);
    putchar('\n');
    print_inputs(stdout, &r->in);
    printf("  exact: each key has a bucket of its own\n");
    if (r->small.table)
        print_small(r);
    print_notes(stdout, r);
    print_proxy(r);
    print_costs(r);
}

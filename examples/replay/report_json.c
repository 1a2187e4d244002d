/* report_json.c - the report as JSON */
#include "replay.h"

#include <stdlib.h>

static void put_string(const char *name, text value, const char *after)
{
    printf("\"%s\": \"", name);
    put_text(stdout, value, SIZE_MAX / 2, JSON_VALUE);
    printf("\"%s", after);
}

static void print_inputs(const input *in)
{
    size_t i, f;
    printf("  \"inputs\": [");
    for (i = 0; i < in->source_count; i++) {
        const input_file *file = &in->files[i];
        const char *comma = "";
        printf("%s\n    {", i ? "," : "");
        put_string("name", as_text(file->name), ", \"forms\": {");
        for (f = 0; f < FORMS; f++)
            if (file->lines_of[f]) {
                printf("%s\"%s\": %" PRIu64, comma, form_name((form_kind)f, file->around[f]).at,
                       file->lines_of[f]);
                comma = ", ";
            }
        printf("}, \"requests\": %" PRIu64 ", \"bad_lines\": %" PRIu64, file->requests, file->bad);
        if (file->bad) {
            printf(", \"first_bad_line\": %" PRIu64 ", ", file->first_bad_line);
            put_string("reason", as_text(file->why_bad), ", ");
            put_string("first_bad", as_text(file->first_bad), "");
        }
        if (file->fault) {
            printf(", ");
            put_string("fault", as_text(file->fault), "");
        }
        printf("}");
    }
    printf("\n  ],\n");
}

static void print_counts(const run *r)
{
    const input *in = &r->in;
    const trial *t = r->first;
    size_t i = 0;
    printf("  \"requests\": %" PRIu64 ",\n  \"keys\": %zu,\n", r->requests, in->keys.count);
    printf("  \"allowed\": %" PRIu64 ",\n  \"refused\": %" PRIu64 ",\n", r->requests - t->refused,
           t->refused);
    printf("  \"share_refused\": %.6f,\n",
           r->requests ? (double)t->refused / (double)r->requests : 0.0);
    printf("  \"keys_refused\": %" PRIu64 ",\n  \"above_burst\": %" PRIu64 ",\n", t->keys_refused,
           t->never);
    printf("  \"left_out\": %" PRIu64 ",\n  \"bad_lines\": %" PRIu64 ",\n", in->left_out,
           in->bad_lines);
    while (i < in->source_count && in->files[i].bad == 0)
        i++;
    if (i < in->source_count) {
        printf("  \"first_bad_line\": %" PRIu64 ",\n  ", in->files[i].first_bad_line);
        put_string("first_bad_file", as_text(in->files[i].name), ",\n  ");
        put_string("first_bad_reason", as_text(in->files[i].why_bad), ",\n");
    }
    printf("  \"out_of_order\": %" PRIu64 ",\n  \"out_of_order_ns\": %" PRIu64
           ",\n  \"too_late\": %" PRIu64 ",\n  \"newest_first\": %s,\n",
           in->disordered, in->disorder_ns, in->too_late, is_reversed(in) ? "true" : "false");
    if (in->without_year)
        printf("  \"assumed_year\": %" PRIu64 ",\n", in->assumed_year);
    if (r->requests)
        printf("  \"first_time\": \"%s\",\n  \"last_time\": \"%s\",\n", iso_time(r->first_ns).at,
               iso_time(r->last_ns).at);
}

static void print_top(const run *r, const trial *t, const char *indent)
{
    size_t i;
    printf("\"most_refused\": [");
    for (i = 0; i < t->top_count; i++) {
        const key *k = &r->in.keys.list[t->top[i]];
        printf("%s\n%s  {", i ? "," : "", indent);
        put_string("key", key_text(k), "");
        printf(", \"refused\": %" PRIu64 ", \"requests\": %" PRIu64 "}", t->refused_of[t->top[i]],
               k->requests);
    }
    printf("%s%s]", t->top_count ? "\n" : "", t->top_count ? indent : "");
}

static void print_bins(const trial *t)
{
    static series s;
    size_t i;
    s = t->series;
    series_narrow(&s, 1000);
    printf("  \"bin_ns\": %" PRIu64 ",\n  \"bins\": [", series_width(&s));
    for (i = 0; i < s.count; i++)
        printf("%s\n    {\"time\": \"%s\", \"allowed\": %" PRIu64 ", \"refused\": %" PRIu64 "}",
               i ? "," : "", iso_time(series_begin(&s, i)).at, s.bins[i].allowed,
               s.bins[i].refused);
    printf("%s],\n", s.count ? "\n  " : "");
}

static void print_candidates(const run *r)
{
    size_t i;
    printf("  \"candidates\": [");
    for (i = 0; i < r->opt->candidate_count; i++) {
        const trial *t = r->trials[i];
        printf("%s\n    {\"limit\": \"%s\", \"refused\": %" PRIu64 ", \"keys_refused\": %" PRIu64
               ",\n     ",
               i ? "," : "", candidate_label(&t->is).at, t->refused, t->keys_refused);
        print_top(r, t, "     ");
        printf("}");
    }
    printf("\n  ],\n");
}

static void print_rung(const run *r, const rung *g)
{
    size_t i;
    printf("\n    {\"shares\": [");
    for (i = 0; i < g->share_count; i++)
        printf("%s%.9g", i ? ", " : "", (double)g->shares[i] / SHARE_ONE);
    printf("], \"may_refuse\": %" PRIu64, g->may_refuse);
    if (!g->found) {
        printf(", \"limit\": null}");
        return;
    }
    printf(", \"limit\": \"%s\", \"minute\": %" PRIu64 ", \"refused\": %" PRIu64
           ", \"keys_refused\": %" PRIu64 ",\n     ",
           limit_text(&g->trial->is.limit[0]).at, g->minute, g->trial->refused,
           g->trial->keys_refused);
    print_top(r, g->trial, "     ");
    printf("}");
}

static void print_ladder(const run *r)
{
    const rung *g = &r->ladder.rungs[r->ladder.chosen];
    size_t i;
    printf("  \"ladder\": [");
    for (i = 0; i < r->ladder.count; i++) {
        printf("%s", i ? "," : "");
        print_rung(r, &r->ladder.rungs[i]);
    }
    printf("\n  ],\n");
    if (g->found)
        printf("  \"suggested\": \"%s\",\n  \"suggested_keys_refused\": %" PRIu64 ",\n",
               limit_text(&g->trial->is.limit[0]).at, g->trial->keys_refused);
    else
        printf("  \"suggested\": null,\n");
}

static void print_small(const run *r)
{
    ratelimit_table_counts counts;
    ratelimit_table_stats(r->small.table, r->last_ns, &counts);
    printf("  \"small_table\": {\"capacity\": %" PRIu64 ", \"bytes\": %" PRIu64
           ", \"evicted\": %" PRIu64 ", \"refused_for_room\": %" PRIu64,
           (uint64_t)counts.capacity, (uint64_t)counts.bytes, (uint64_t)counts.evicted,
           (uint64_t)counts.refused);
    printf(", \"allowed_wrongly\": %" PRIu64 ", \"refused_wrongly\": %" PRIu64 "},\n",
           r->small.too_lenient, r->small.too_strict);
}

void print_json(const run *r)
{
    uint64_t memory = 0;
    size_t i;
    printf("{\n  \"limits\": [");
    for (i = 0; i < r->first->is.limits; i++)
        printf("%s\"%s\"", i ? ", " : "", limit_text(&r->first->is.limit[i]).at);
    printf("],\n  ");
    put_string("key", as_text(key_label(r->opt).at), ",\n");
    printf("  \"cost\": \"%s\",\n", r->opt->cost_bytes ? "bytes" : "requests");
    print_inputs(&r->in);
    print_counts(r);
    printf("  ");
    print_top(r, r->first, "  ");
    printf(",\n");
    print_bins(r->first);
    if (r->opt->candidate_count > 1)
        print_candidates(r);
    if (r->small.table)
        print_small(r);
    if (r->opt->suggest)
        print_ladder(r);
    for (i = 0; i < MEMORY_KINDS; i++)
        memory += memory_used[i];
    printf("  \"memory_bytes\": %" PRIu64 ",\n  \"bucket_bytes\": %zu,\n  \"deciding_ns\": %" PRIu64
           ",\n  \"whole_ns\": %" PRIu64 ",\n",
           memory, memory_used[FOR_BUCKETS], r->deciding_ns, r->whole_ns);
    printf("  \"decisions_per_second\": %.0f\n}\n",
           (double)r->requests * (double)r->trial_count * 1e9 /
               (double)(r->deciding_ns ? r->deciding_ns : 1));
}

/* html.c - the report as a page: complete in itself, without any script */
#include "replay.h"

#include <string.h>

static const char page_head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n"
    "<link rel=\"icon\" href=\"data:,\">\n";

static const char page_style[] =
    "<style>\n"
    "body{max-width:1000px;margin:2rem auto;padding:0 1rem;font:15px/1.5 "
    "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;color:#3d4852;"
    "background:#ffffff}\n"
    "h1{font-size:1.5rem;color:#12181f}h2{font-size:1.1rem;color:#12181f;margin:2rem 0 .5rem}\n"
    "svg{max-width:100%;height:auto}\n"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:.25rem .9rem .25rem 0;text-align:right;border-bottom:1px solid #e3e8ee}\n"
    "th{font-weight:600}th:first-child,td:first-child,.left{text-align:left}\n"
    "code{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;"
    "overflow-wrap:anywhere}\n"
    ".chosen td{font-weight:600}.trouble{padding:.6rem 1rem;background:#d6453d;color:#ffffff}\n"
    ".wide{overflow-x:auto}\n"
    "@media (prefers-color-scheme:dark){body{color:#b9c4cf;background:#12171d}"
    "h1,h2{color:#f1f5f9}th,td{border-color:#29323c}}\n"
    "</style>\n";

static void put(FILE *f, const char *what)
{
    put_text(f, as_text(what), SIZE_MAX / 2, XML);
}

static void cell(FILE *f, const char *what)
{
    fputs("<td>", f);
    put(f, what);
    fputs("</td>", f);
}

static void key_cell(FILE *f, const run *r, uint32_t number)
{
    fputs("<td><code>", f);
    put_text(f, key_text(&r->in.keys.list[number]), 100, XML);
    fputs("</code></td>", f);
}

static void counts(FILE *f, const run *r)
{
    fputs("<h2>Limits</h2>\n<div class=\"wide\"><table>\n<tr><th>limit</th><th>requests "
          "refused</th><th>of all</th><th>keys refused</th><th>of all</th><th>one key, in a "
          "minute</th></tr>\n",
          f);
    {
        size_t i, count = r->opt->candidate_count ? r->opt->candidate_count : 1;
        for (i = 0; i < count; i++) {
            const trial *t = r->trials[i];
            uint64_t most = most_in(&t->is, RATELIMIT_MINUTE);
            fputs("<tr><td>", f);
            if (count > 1)
                fprintf(f, "(%zu) ", i + 1);
            put(f, candidate_label(&t->is).at);
            fputs("</td>", f);
            cell(f, commas(t->refused).at);
            cell(f, short_percent(t->refused, r->requests).at);
            cell(f, commas(t->keys_refused).at);
            cell(f, short_percent(t->keys_refused, r->in.keys.count).at);
            cell(f, most == UINT64_MAX ? "no end" : commas(most).at);
            fputs("</tr>\n", f);
        }
    }
    fprintf(f, "</table></div>\n<p>%s requests of %s keys", commas(r->requests).at,
            commas(r->in.keys.count).at);
    if (r->requests)
        fprintf(f, ", %s", span_label(r).at);
    fprintf(f, ". Bad lines: %s.</p>\n", commas(r->in.bad_lines).at);
}

static void worst_keys(FILE *f, const run *r)
{
    size_t i, k, count = r->opt->candidate_count ? r->opt->candidate_count : 1;
    if (r->first->top_count == 0)
        return;
    fputs("<h2>Keys refused most</h2>\n<div class=\"wide\"><table>\n<tr><th>key</th>"
          "<th>requests</th>",
          f);
    for (i = 0; i < count; i++) {
        if (count > 1)
            fprintf(f, "<th>refused (%zu)</th><th>of its requests</th>", i + 1);
        else
            fputs("<th>refused</th><th>of its requests</th>", f);
    }
    fputs("</tr>\n", f);
    for (k = 0; k < r->first->top_count; k++) {
        uint32_t number = r->first->top[k];
        uint64_t requests = r->in.keys.list[number].requests;
        fputs("<tr>", f);
        key_cell(f, r, number);
        cell(f, commas(requests).at);
        for (i = 0; i < count; i++) {
            cell(f, commas(r->trials[i]->refused_of[number]).at);
            cell(f, short_percent(r->trials[i]->refused_of[number], requests).at);
        }
        fputs("</tr>\n", f);
    }
    fputs("</table></div>\n", f);
}

static void rung_row(FILE *f, const run *r, size_t i)
{
    const rung *g = &r->ladder.rungs[i];
    long_text shares;
    shares.at[0] = 0;
    share_list(&shares, g);
    fprintf(f, "<tr%s>", i == r->ladder.chosen ? " class=\"chosen\"" : "");
    cell(f, shares.at);
    if (!g->found) {
        fputs("<td>none</td><td></td><td></td><td></td><td></td></tr>\n", f);
        return;
    }
    cell(f, limit_text(&g->trial->is.limit[0]).at);
    cell(f, commas(g->trial->refused).at);
    cell(f, short_percent(g->trial->refused, r->requests).at);
    cell(f, commas(g->trial->keys_refused).at);
    if (g->trial->top_count)
        key_cell(f, r, g->trial->top[0]);
    else
        cell(f, "nobody");
    fputs("</tr>\n", f);
}

static void ladder_table(FILE *f, const run *r)
{
    size_t i;
    if (!r->opt->suggest)
        return;
    fputs("<h2>Ladder</h2>\n<p>The tightest round limit that refuses something to at most so many "
          "keys, of each share at least one.</p>\n<div class=\"wide\"><table>\n<tr><th>of "
          "keys</th><th>limit</th><th>refused</th><th>of requests</th><th>keys</th><th>most "
          "refused</th></tr>\n",
          f);
    for (i = 0; i < r->ladder.count; i++)
        rung_row(f, r, i);
    fputs("</table></div>\n", f);
}

static void inputs(FILE *f, const run *r)
{
    size_t i, k;
    fputs("<h2>Input</h2>\n<div class=\"wide\"><table>\n<tr><th>file</th><th "
          "class=\"left\">form</th><th>bad lines</th><th class=\"left\">the first</th></tr>\n",
          f);
    for (i = 0; i < r->in.source_count; i++) {
        const input_file *file = &r->in.files[i];
        fputs("<tr><td>", f);
        put(f, file->name);
        fputs("</td><td class=\"left\">", f);
        for (k = 0; k < FORMS; k++)
            if (file->lines_of[k])
                fprintf(f, "%s %s<br>", commas(file->lines_of[k]).at,
                        form_name((form_kind)k, file->around[k]).at);
        if (file->fault)
            put(f, file->fault);
        fprintf(f, "</td><td>%s</td><td class=\"left\">", commas(file->bad).at);
        if (file->bad) {
            fprintf(f, "line %s: ", commas(file->first_bad_line).at);
            put(f, file->why_bad);
            fputs("<br><code>", f);
            put(f, file->first_bad);
            fputs("</code>", f);
        }
        fputs("</td></tr>\n", f);
    }
    fputs("</table></div>\n", f);
}

static void as_rule(FILE *f, const run *r)
{
    fputs("<h2>As a rule of ratelimit.h</h2>\n<pre><code>", f);
    print_as(f, r, &r->first->is);
    fputs("</code></pre>\n", f);
}

void write_html(const run *r)
{
    output_file out;
    FILE *f = output_begin(&out, r->opt->html);
    long_text more;
    const char *what = trouble(r, &more);
    fprintf(f, "%s<title>", page_head);
    put(f, "Rate limits: ");
    put(f, input_label(r).at);
    fprintf(f, "</title>\n%s</head>\n<body>\n<h1>What these limits would have done to ",
            page_style);
    put(f, input_label(r).at);
    fputs("</h1>\n", f);
    if (what) {
        fprintf(f, "<p class=\"trouble\">%s: ", what);
        put(f, more.at);
        fputs("</p>\n", f);
    }
    put_svg(f, r);
    counts(f, r);
    worst_keys(f, r);
    ladder_table(f, r);
    inputs(f, r);
    as_rule(f, r);
    fputs("</body>\n</html>\n", f);
    output_end(&out);
}

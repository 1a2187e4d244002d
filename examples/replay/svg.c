/* svg.c - the picture: requests over time for each candidate, and the keys refused most

   One order everywhere: allowed first, refused after it. */
#include "replay.h"

#include <string.h>

#define WIDTH     960.0
#define LEFT      72.0
#define RIGHT     936.0
#define FIRST_TOP 132.0 /* of the first panel's plot */
#define ROW       27.0

static const char style[] =
    "<style>\n"
    "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu "
    "Sans',sans-serif;fill:#3d4852}\n"
    ".title{font-size:21px;font-weight:600;fill:#12181f}\n"
    ".head{font-size:15px;font-weight:600;fill:#12181f}\n"
    ".unit{fill:#5b6773}\n"
    ".mono{font:12.5px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}\n"
    ".end{text-anchor:end}.mid{text-anchor:middle}\n"
    ".ground{fill:#ffffff}.grid{stroke:#e3e8ee}.axis{stroke:#8795a4}\n"
    ".allowed{fill:#7fb0e6}.refused{fill:#d6453d}\n"
    ".one{stroke:#12181f;stroke-dasharray:5 4;stroke-width:1.2}\n"
    ".hatch{stroke:#ffffff;stroke-width:2.2}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#b9c4cf}.title,.head{fill:#f1f5f9}.unit{fill:#93a1ae}\n"
    ".ground{fill:#12171d}.grid{stroke:#29323c}.axis{stroke:#7b8896}\n"
    ".allowed{fill:#3f76b5}.refused{fill:#ff6b5e}\n"
    ".one{stroke:#f1f5f9}.hatch{stroke:#12171d}\n"
    "}\n"
    "</style>\n"
    "<defs><pattern id=\"part\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" "
    "y2=\"6\"/></pattern></defs>\n";

typedef struct panel {
    double top, floor;
    const trial *t;
    series s;
    uint64_t step, most; /* of the axis */
    double bar, unit;    /* a bin's width, a request's height */
} panel;

static void rect(FILE *f, const char *look, double x, double y, double width, double height)
{
    fprintf(f, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", look,
            x, y, width, height);
}

static void stroke(FILE *f, const char *look, double x1, double y1, double x2, double y2)
{
    fprintf(f, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", look, x1,
            y1, x2, y2);
}

static void write_at(FILE *f, const char *look, double x, double y, const char *what)
{
    fprintf(f, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", look, x, y);
    put_text(f, as_text(what), SIZE_MAX / 2, XML);
    fputs("</text>\n", f);
}

/* ---- head ------------------------------------------------------------------------------------ */

static long_text title_of(const run *r)
{
    long_text out;
    out.at[0] = 0;
    if (r->opt->candidate_count > 1)
        append(&out, "%zu limits per %s", r->opt->candidate_count, key_label(r->opt).at);
    else
        append(&out, "%s per %s", candidate_label(&r->first->is).at, key_label(r->opt).at);
    if (strlen(out.at) > 60)
        strcpy(out.at + 57, "...");
    append(&out, " \342\200\224 %.80s", input_label(r).at);
    return out;
}

static long_text facts_of(const run *r, const trial *t)
{
    long_text out;
    out.at[0] = 0;
    append(&out, "%s of %s requests refused (%s), ", commas(t->refused).at, commas(r->requests).at,
           short_percent(t->refused, r->requests).at);
    append(&out, "of %s of %s keys (%s)", commas(t->keys_refused).at, commas(r->in.keys.count).at,
           short_percent(t->keys_refused, r->in.keys.count).at);
    return out;
}

static void head(FILE *f, const run *r, double height)
{
    long_text facts = facts_of(r, r->first), more;
    const char *what = trouble(r, &more);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" role=\"img\" aria-labelledby=\"t d\">\n<title id=\"t\">",
            WIDTH, height, WIDTH, height);
    put_text(f, as_text(title_of(r).at), SIZE_MAX / 2, XML);
    fprintf(f, "</title>\n<desc id=\"d\">%s</desc>\n%s", facts.at, style);
    rect(f, "ground", 0, 0, WIDTH, height);
    write_at(f, "title", 24, 40, title_of(r).at);
    if (r->opt->candidate_count > 1)
        facts.at[0] = 0; /* each panel has its own */
    if (what)
        append(&facts, "%s%s", facts.at[0] ? " \342\200\224 " : "", what);
    if (facts.at[0])
        write_at(f, what ? "head" : "", 24, 64, facts.at);
    write_at(f, "", 24, facts.at[0] ? 84 : 66, r->requests ? span_label(r).at : "no requests");
    rect(f, "allowed", RIGHT - 156, 73, 12, 12);
    write_at(f, "", RIGHT - 138, 84, "allowed");
    rect(f, "refused", RIGHT - 72, 73, 12, 12);
    write_at(f, "", RIGHT - 54, 84, "refused");
}

/* ---- requests over time ---------------------------------------------------------------------- */

static void grid(FILE *f, const panel *p, dating date, const char *unit)
{
    double next_label = 0;
    uint64_t value, width = series_ticks(&p->s, 10);
    size_t i;
    write_at(f, "unit", 24, p->top - 12, unit);
    for (value = 0; value <= p->most; value += p->step) {
        double y = p->floor - p->unit * (double)value;
        stroke(f, value ? "grid" : "axis", LEFT, y, RIGHT, y);
        write_at(f, "end", LEFT - 8, y + 4.5, commas(value).at);
    }
    for (i = 0; i < p->s.count; i++) {
        double x = LEFT + p->bar * (double)i;
        if (series_begin(&p->s, i) % width || x < next_label)
            continue;
        stroke(f, "axis", x, p->floor, x, p->floor + 5);
        write_at(f, x < RIGHT - 20 ? "mid" : "end", x, p->floor + 20,
                 tick_label(series_begin(&p->s, i), width, date).at);
        next_label = x + 56;
    }
}

static void draw_bin(FILE *f, const run *r, const panel *p, size_t i, bool part)
{
    const bin *b = &p->s.bins[i];
    double x = LEFT + p->bar * (double)i, gap = p->bar > 4 ? 1 : 0;
    double allowed = p->unit * (double)b->allowed, refused = p->unit * (double)b->refused;
    if (b->refused && refused < 1.5)
        refused = 1.5; /* what is not nothing is seen */
    fprintf(f, "<g><title>%s: %s allowed, ", time_text(series_begin(&p->s, i), dating_of(r)).at,
            commas(b->allowed).at);
    fprintf(f, "%s refused%s</title>\n", commas(b->refused).at,
            part ? "; the log has only a part of this time" : "");
    rect(f, "allowed", x, p->floor - allowed, p->bar - gap, allowed);
    if (b->refused)
        rect(f, "refused", x, p->floor - allowed - refused, p->bar - gap, refused);
    if (part)
        fprintf(f,
                "<rect class=\"part\" fill=\"url(#part)\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                "height=\"%.1f\"/>\n",
                x, p->floor - allowed - refused, p->bar - gap, allowed + refused);
    fputs("</g>\n", f);
}

/* A line at what one key may do at most in the time of a bar. */
static void one_key(FILE *f, const panel *p)
{
    uint64_t most = most_in(&p->t->is, series_width(&p->s));
    double y = p->floor - p->unit * (double)most;
    long_text label;
    label.at[0] = 0;
    if (most == UINT64_MAX)
        return;
    append(&label, "one key: at most %s in %s%s%s", commas(most).at,
           strchr("0123456789", series_width_name(&p->s)[0]) ? "" : "a ", series_width_name(&p->s),
           most > p->most ? ", above this chart" : "");
    if (most <= p->most)
        stroke(f, "one", LEFT, y, RIGHT, y);
    else
        y = p->top;
    if (most <= p->most) {
        stroke(f, "one", RIGHT - 300, p->top - 16, RIGHT - 272, p->top - 16);
        write_at(f, "", RIGHT - 264, p->top - 12, label.at);
    } else {
        write_at(f, "end", RIGHT, p->top - 12, label.at);
    }
}

/* True if the log has requests of only a part of bin i's time. */
static bool is_part(const run *r, const panel *p, size_t i)
{
    uint64_t begin = series_begin(&p->s, i), width = series_width(&p->s), slack = width / 20;
    return (i + 1 == p->s.count && begin + width > r->last_ns + slack) ||
           (i == 0 && r->first_ns > begin + slack);
}

static void draw_panel(FILE *f, const run *r, panel *p)
{
    size_t i;
    bool some_part = false;
    long_text unit;
    uint64_t peak;
    p->s = p->t->series;
    series_narrow(&p->s, 180);
    peak = series_peak(&p->s);
    p->step = round_up((peak + 4) / 5);
    p->most = (peak + p->step - 1) / p->step * p->step;
    p->bar = (RIGHT - LEFT) / (double)p->s.count;
    p->unit = (p->floor - p->top) / (double)p->most;
    for (i = 0; i < p->s.count; i++)
        some_part = some_part || (is_part(r, p, i) && p->s.bins[i].allowed + p->s.bins[i].refused);
    unit.at[0] = 0;
    append(&unit, "requests per %s%s", series_width_name(&p->s),
           some_part ? " (hatched: the log has only a part of this time)" : "");
    grid(f, p, dating_of(r), unit.at);
    for (i = 0; i < p->s.count; i++)
        if (p->s.bins[i].allowed + p->s.bins[i].refused)
            draw_bin(f, r, p, i, is_part(r, p, i));
    one_key(f, p);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Rows that would be slivers are not drawn: their keys are counted. */
static size_t rows_of(const run *r)
{
    const trial *t = r->first;
    uint64_t most = 0;
    size_t i, rows = 0;
    for (i = 0; i < t->top_count; i++)
        if (r->in.keys.list[t->top[i]].requests > most)
            most = r->in.keys.list[t->top[i]].requests;
    while (rows < t->top_count && r->in.keys.list[t->top[rows]].requests >= most / 100)
        rows++;
    return rows;
}

static uint64_t most_requests(const run *r, size_t rows)
{
    uint64_t most = 1;
    size_t i;
    for (i = 0; i < rows; i++)
        if (r->in.keys.list[r->first->top[i]].requests > most)
            most = r->in.keys.list[r->first->top[i]].requests;
    return most;
}

static double columns_of(const run *r)
{
    size_t count = r->opt->candidate_count < 5 ? r->opt->candidate_count : 5;
    return count > 1 ? 64.0 * (double)count : 0;
}

static void key_row(FILE *f, const run *r, uint32_t number, double y, double unit, double left)
{
    const key *k = &r->in.keys.list[number];
    uint64_t refused_of = r->first->refused_of[number];
    double refused = unit * (double)refused_of, allowed = unit * (double)(k->requests - refused_of);
    size_t i;
    long_text count;
    fprintf(f, "<text class=\"mono end\" x=\"%.1f\" y=\"%.1f\">", left - 12, y + 4);
    put_text(f, key_text(k), 39, XML);
    fputs("</text>\n", f);
    rect(f, "allowed", left, y - 8, allowed, 16);
    rect(f, "refused", left + allowed, y - 8, refused > 1 ? refused : 1, 16);
    count.at[0] = 0;
    append(&count, "%s of %s", commas(refused_of).at, commas(k->requests).at);
    write_at(f, "", left + allowed + refused + 8, y + 4.5, count.at);
    if (r->opt->candidate_count < 2) {
        write_at(f, "end", RIGHT, y + 4.5, short_percent(refused_of, k->requests).at);
        return;
    }
    for (i = 0; i < r->opt->candidate_count && i < 5; i++)
        write_at(f, "end", RIGHT - columns_of(r) + 64.0 * (double)(i + 1), y + 4.5,
                 short_percent(r->trials[i]->refused_of[number], k->requests).at);
}

static void keys(FILE *f, const run *r, double y)
{
    size_t rows = rows_of(r), i;
    uint64_t hidden = r->first->keys_refused - rows;
    double left = 330, right = RIGHT - 190 - columns_of(r);
    long_text text_of;
    text_of.at[0] = 0;
    if (rows == 0)
        append(&text_of, "No key was refused anything");
    else
        append(&text_of, "Most refused keys%s",
               r->opt->candidate_count > 1 ? ", under (1)" : ": refused of all requests");
    write_at(f, "head", 24, y, text_of.at);
    for (i = 0; rows && r->opt->candidate_count > 1 && i < r->opt->candidate_count && i < 5; i++) {
        text_of.at[0] = 0;
        append(&text_of, "(%zu)", i + 1);
        write_at(f, "end", RIGHT - columns_of(r) + 64.0 * (double)(i + 1), y, text_of.at);
    }
    for (i = 0; i < rows; i++)
        key_row(f, r, r->first->top[i], y += ROW, (right - left) / (double)most_requests(r, rows),
                left);
    if (rows && hidden) {
        text_of.at[0] = 0;
        append(&text_of, "and %s more %s", commas(hidden).at, hidden == 1 ? "key" : "keys");
        write_at(f, "end", left - 12, y + ROW + 4, text_of.at);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

void put_svg(FILE *f, const run *r)
{
    static panel p;
    size_t count = r->opt->candidate_count > 1 ? r->opt->candidate_count : 1, i;
    double tall = count > 1 ? 150 : 244, between = count > 1 ? 96 : 72;
    double keys_at = FIRST_TOP + (tall + between) * (double)count, height;
    if (r->requests == 0) {
        count = 0;
        keys_at = FIRST_TOP;
    }
    height = keys_at + ROW * (double)(rows_of(r) + (r->first->keys_refused > rows_of(r))) + 32;
    head(f, r, height + (count > 1 ? 16 : 0));
    for (i = 0; i < count; i++) {
        p.t = r->trials[i];
        p.top = FIRST_TOP + (tall + between) * (double)i + (count > 1 ? 24 : 0);
        p.floor = p.top + tall;
        if (count > 1) {
            long_text name;
            name.at[0] = 0;
            append(&name, "(%zu) %.60s: %s", i + 1, candidate_label(&p.t->is).at,
                   facts_of(r, p.t).at);
            write_at(f, "head", 24, p.top - 36, name.at);
        }
        draw_panel(f, r, &p);
    }
    keys(f, r, keys_at + (count > 1 ? 16 : 0));
    fputs("</svg>\n", f);
}

void write_svg(const run *r)
{
    output_file out;
    put_svg(output_begin(&out, r->opt->svg), r);
    output_end(&out);
}

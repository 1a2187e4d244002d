/* years.c - which year the first line of a log without years is of

   Only the order of years matters for what is decided, and whether there is a 29 February; --year
   says the rest. Rotated files (auth.log.2.gz, auth.log.1, auth.log; auth.log-20260103) are one
   history: each goes on where the one before it ended. Files of different names are put so that all
   of them lie within the shortest time. To know where files end, those without years are read
   twice; standard input can't be, so only what is in memory of it is looked at. The first lines of
   each file also say whether syslog or a container wrote them. */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

#define YEAR_0      UINT64_C(1000)
#define FIRST_LINES 100

typedef struct chain_link {
    size_t source; /* its number */
    char base[512];
    uint64_t age; /* of rotated files, the largest is the oldest */
    bool yearless, wrapped_seen;
    uint64_t offset;         /* where its first line is, in years from the chain's beginning */
    moment first, last;      /* which is in the year YEAR_0 */
    uint64_t leap[4], leaps; /* years with a 29 February, from the beginning, too */
} chain_link;

/* "auth.log.2.gz" is of "auth.log" and of age 2; dates are the older the smaller they are. */
static void split_name(chain_link *c, const char *name)
{
    size_t len, i;
    uint64_t value;
    text digits;
    snprintf(c->base, sizeof c->base, "%s", name);
    len = strlen(c->base);
    if (len > 3 && strcmp(c->base + len - 3, ".gz") == 0)
        c->base[len -= 3] = 0;
    for (i = len; i && is_digit(c->base[i - 1]); i--)
        ;
    digits = as_text(c->base + i);
    c->age = 0;
    if (i < 2 || i == len || (c->base[i - 1] != '.' && c->base[i - 1] != '-') ||
        !number(&digits, 1, 14, &value))
        return;
    if (len - i >= 6 && value > 100000) /* a date */
        value = UINT64_MAX - value;
    else if (c->base[i - 1] == '-')
        return;
    c->age = value;
    c->base[i - 1] = 0;
}

static int by_age(const void *a, const void *b)
{
    const chain_link *x = (const chain_link *)a, *y = (const chain_link *)b;
    int names = strcmp(x->base, y->base);
    if (names)
        return names;
    if (x->age != y->age)
        return x->age > y->age ? -1 : 1;
    return x->source < y->source ? -1 : 1;
}

static void note_time(chain_link *c, file_state *s, const moment *m)
{
    moment at = *m;
    at.year = year_of(s, m);
    if (!c->yearless) {
        c->yearless = true;
        c->first = at;
        c->offset = at.year - YEAR_0;
    }
    c->last = at;
    if (m->month == 2 && m->day == 29 && c->leaps < 4 &&
        (c->leaps == 0 || c->leap[c->leaps - 1] != at.year - YEAR_0))
        c->leap[c->leaps++] = at.year - YEAR_0;
}

static bool note_line(chain_link *c, file_state *s, text line)
{
    surroundings around;
    moment m;
    text rest = line;
    if (line.len == 0 || ((line.at[0] < 'A' || line.at[0] > 'S') && line.at[0] != '<'))
        return false;
    if (line.at[0] == '<') {
        strip_prefixes(line, &around);
        if (!around.no_year)
            return false;
        m = around.when;
    } else if (!month_and_day(&rest, &m) || !skip(&rest, ' ')) {
        return false;
    }
    if (m.day == 0 || m.day > 31 || m.hour > 23)
        return false;
    note_time(c, s, &m);
    return true;
}

/* Reads a file for its times alone. Gives up on one whose first lines have years. */
static void look_through(chain_link *c, file_state *s, const char *name)
{
    const char *why;
    reader *r = reader_open(name, false, &why);
    log_line line;
    size_t others = 0;
    while (r && others < FIRST_LINES && reader_next(r, &line) == READ_LINE) {
        if (!note_line(c, s, line.is) && !c->yearless)
            others++;
        if (!s->wrapped_seen && line.number < FIRST_LINES)
            s->wrapped_seen = is_wrapped(line.is);
    }
    if (r)
        reader_close(r);
}

static void look_ahead(chain_link *c, file_state *s, reader *r)
{
    text rest = reader_ahead(r);
    size_t number = 0;
    while (rest.len) {
        const char *newline = (const char *)memchr(rest.at, '\n', rest.len);
        size_t len = newline ? (size_t)(newline - rest.at) : rest.len;
        note_line(c, s, part_of(rest, 0, len));
        if (!s->wrapped_seen && number++ < FIRST_LINES)
            s->wrapped_seen = is_wrapped(part_of(rest, 0, len));
        rest = part_of(rest, newline ? len + 1 : len, rest.len - (newline ? len + 1 : len));
    }
}

/* Days since the beginning of year 0, near enough. */
static uint64_t day_of(const moment *m, uint64_t shift)
{
    return (m->year + shift) * 372 + m->month * 31 + m->day;
}

/* For chain `first` as the first in time, each other begins at the next day that fits: how long all
 * of it takes. */
static uint64_t span_from(const chain_link *links, size_t count, const size_t *begin, size_t first,
                          uint64_t *shift)
{
    uint64_t start = day_of(&links[begin[first]].first, 0), end = 0;
    size_t i, k;
    for (i = 0; i < count; i++) {
        size_t until = begin[i + 1];
        shift[i] = day_of(&links[begin[i]].first, 0) < start;
        for (k = begin[i]; k < until; k++)
            if (links[k].yearless && day_of(&links[k].last, shift[i]) > end)
                end = day_of(&links[k].last, shift[i]);
    }
    return end - start;
}

static bool leaps_fit(const chain_link *links, size_t count, uint64_t base)
{
    size_t i, k;
    for (i = 0; i < count; i++)
        for (k = 0; k < links[i].leaps; k++)
            if (!is_leap(base + links[i].leap[k]))
                return false;
    return true;
}

static void apply(input *in, chain_link *links, size_t count)
{
    uint64_t base = in->opt->year;
    size_t i;
    while (!in->opt->year_given && !leaps_fit(links, count, base) && base > in->opt->year - 8)
        base--;
    if (!leaps_fit(links, count, base))
        base = in->opt->year;
    in->assumed_year = base;
    for (i = 0; i < count; i++) {
        file_state *s = &in->sources[links[i].source].state;
        s->year = base + (links[i].yearless ? links[i].offset : 0);
        s->wrapped_seen = links[i].wrapped_seen;
    }
}

/* links are sorted: chains one after another. */
static void place_chains(chain_link *links, size_t count)
{
    size_t *begin = (size_t *)resize(FOR_READING, NULL, 0, count + 1, sizeof *begin);
    uint64_t *shift = (uint64_t *)resize(FOR_READING, NULL, 0, count, sizeof *shift);
    uint64_t best = UINT64_MAX, span;
    size_t chains = 0, i, k, best_first = 0;
    for (i = 0; i < count; i++)
        if (i == 0 || strcmp(links[i].base, links[i - 1].base) != 0)
            begin[chains++] = i;
    begin[chains] = count;
    for (i = 0; i < chains && chains > 1; i++) {
        if (!links[begin[i]].yearless)
            continue;
        span = span_from(links, chains, begin, i, shift);
        if (span < best) {
            best = span;
            best_first = i;
        }
    }
    if (chains > 1 && best != UINT64_MAX) {
        span_from(links, chains, begin, best_first, shift);
        for (i = 0; i < chains; i++)
            for (k = begin[i]; k < begin[i + 1]; k++) {
                uint64_t leap;
                links[k].offset += shift[i];
                for (leap = 0; leap < links[k].leaps; leap++)
                    links[k].leap[leap] += shift[i];
            }
    }
    resize(FOR_READING, begin, count + 1, 0, sizeof *begin);
    resize(FOR_READING, shift, count, 0, sizeof *shift);
}

void find_years(input *in)
{
    chain_link *links = (chain_link *)resize(FOR_READING, NULL, 0, in->source_count, sizeof *links);
    file_state state;
    size_t i;
    memset(links, 0, in->source_count * sizeof *links);
    for (i = 0; i < in->source_count; i++) {
        links[i].source = i;
        split_name(&links[i], in->files[i].name);
    }
    qsort(links, in->source_count, sizeof *links, by_age);
    for (i = 0; i < in->source_count; i++) {
        source *s = &in->sources[links[i].source];
        if (i == 0 || strcmp(links[i].base, links[i - 1].base) != 0) {
            memset(&state, 0, sizeof state);
            state.year = YEAR_0;
        }
        if (s->reader && reader_file_size(s->reader))
            look_through(&links[i], &state, s->file->name);
        else if (s->reader)
            look_ahead(&links[i], &state, s->reader);
        links[i].wrapped_seen = state.wrapped_seen;
        state.wrapped_seen = false;
    }
    place_chains(links, in->source_count);
    apply(in, links, in->source_count);
    resize(FOR_READING, links, in->source_count, 0, sizeof *links);
}

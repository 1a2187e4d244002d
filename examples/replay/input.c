/* input.c - files to requests in order of time, and what is wrong with each file

   Each file is sorted within its window; the windows are merged. A file that can't be read is named
   and the others go on. */
#include "replay.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void progress(input *in)
{
    uint64_t step = in->bytes_total / 100, done = 0;
    size_t i;
    if (!in->bar || (++in->read & 255) != 0)
        return;
    for (i = 0; i < in->source_count; i++)
        if (in->sources[i].reader)
            done += reader_bytes(in->sources[i].reader);
    done += in->bytes_done;
    if (done < in->bytes_next)
        return;
    in->bytes_next = done + (step > 1000000 ? step : 1000000);
    if (in->bytes_total > done) {
        int tenth = (int)(done * 40 / in->bytes_total);
        progress_line("[%.*s%.*s] %3u %%  %s of %s", tenth,
                      "########################################", 40 - tenth,
                      "........................................",
                      (unsigned)(done * 100 / in->bytes_total), bytes_text(done).at,
                      bytes_text(in->bytes_total).at);
    } else {
        progress_line("%s read, %s keys", bytes_text(done).at, commas(in->keys.count).at);
    }
}

static void fault(input *in, input_file *f, const char *why)
{
    f->fault = why;
    in->faults++;
    complain("cannot read %s%s: %s", f->requests ? "all of " : "", f->name, why);
}

static void source_end(input *in, source *s)
{
    in->bytes_done += reader_bytes(s->reader);
    reader_close(s->reader);
    free(s->state.unescaped);
    memory_used[FOR_READING] -= UNESCAPED;
    s->state.unescaped = NULL;
    s->reader = NULL;
}

static void bad_line(input *in, source *s, const log_line *line, const char *why)
{
    input_file *f = s->file;
    in->bad_lines++;
    s->has_last = false;
    if (f->bad++)
        return;
    f->first_bad_line = line->number;
    f->why_bad = line->is.len == 0 ? "nothing but NULs: a machine lost power while it was written"
                 : line->cut       ? "longer than 65,536 bytes, and what is needed lies behind that"
                                   : why;
    copy_harmless(f->first_bad, sizeof f->first_bad, line->is);
}

static bool is_empty(const log_line *line)
{
    text t = line->is;
    skip_blanks(&t);
    return t.len == 0 && !line->nulls && !line->cut;
}

static const char *to_request(input *in, source *s, const log_line *line, request *out,
                              bool *left_out)
{
    parts p;
    const char *why = parse_line(&s->state, line->is, &p);
    if (why)
        return why;
    if (line->unfinished && p.form != FORM_PLAIN && p.client.at &&
        p.client.at + p.client.len == line->is.at + line->is.len)
        return "the file ends in the middle of the line, perhaps of the address";
    if (p.same_as_before && !s->has_last)
        return "\"last message repeated\", but the line before is none that counts";
    if (p.times > MAX_REPEATS || p.times == 0)
        return "it says that it is repeated 0 or more than 100,000 times";
    out->time_ns = p.time_ns;
    out->line = line->number;
    out->file = s->number;
    if (p.same_as_before) {
        out->key = s->last.key;
        out->cost = s->last.cost;
    } else {
        switch (choose(in->opt, line->is, &p, &why)) {
        case LEFT_OUT:
            *left_out = true;
            return NULL;
        case BAD:
            return why;
        default:
            break;
        }
        why = find_cost(in->opt, &p, &out->cost);
        if (!why)
            why = find_key(in->opt, &in->keys, line->is, &p, &out->key);
        if (why)
            return why;
    }
    s->file->lines_of[p.form]++;
    s->file->around[p.form] |= p.around;
    in->without_year = in->without_year || p.no_year;
    in->with_year = in->with_year || !p.no_year;
    s->repeats = p.times - 1;
    return NULL;
}

/* The next request of a file: sorts nothing. A fault has been printed already. */
reading read_request(input *in, source *s, request *out)
{
    log_line line;
    reading got;
    if (s->repeats) {
        s->repeats--;
        *out = s->last;
        return READ_LINE;
    }
    while ((got = reader_next(s->reader, &line)) == READ_LINE) {
        bool left_out = false;
        const char *why;
        progress(in);
        if (is_empty(&line) || is_directive(&s->state, line.is))
            continue;
        why = to_request(in, s, &line, out, &left_out);
        if (why) {
            bad_line(in, s, &line, why);
        } else if (left_out) {
            s->file->left_out++;
            in->left_out++;
            s->has_last = false;
        } else {
            s->last = *out;
            s->has_last = true;
            s->file->requests++;
            return READ_LINE;
        }
    }
    if (got == READ_FAILED)
        fault(in, s->file, reader_fault(s->reader));
    return got;
}

void source_take(input *in, source *s, request r)
{
    if (r.time_ns < s->latest_ns) {
        in->disordered++;
        s->file->back_steps++;
        if (s->latest_ns - r.time_ns > in->disorder_ns)
            in->disorder_ns = s->latest_ns - r.time_ns;
    } else {
        s->latest_ns = r.time_ns;
    }
    window_push(&s->window, r);
}

/* Keeps the window full: what has not been read yet can then only be that many requests late. */
static void refill(input *in, source *s)
{
    request r;
    while (s->reader && s->window.count + s->window.heap_count < in->opt->reorder) {
        if (read_request(in, s, &r) != READ_LINE) {
            source_end(in, s);
            return;
        }
        source_take(in, s, r);
    }
}

bool next_request(input *in, request *out)
{
    source *first = NULL;
    request r, best = {0, 0, 0, 0, 0};
    size_t i;
    for (i = 0; i < in->source_count; i++) {
        source *s = &in->sources[i];
        if (s->reader)
            refill(in, s);
        if (window_first(&s->window, &r) && (!first || earlier(&r, &best))) {
            first = s;
            best = r;
        }
    }
    if (!first)
        return false;
    *out = window_pop(&first->window);
    if (out->time_ns < in->now_ns) {
        out->time_ns = in->now_ns;
        in->too_late++;
    }
    in->now_ns = out->time_ns;
    return true;
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool needs_details(const options *opt)
{
    return opt->cost_bytes || opt->status_count || opt->method || opt->path_prefix ||
           opt->key == KEY_PATH || opt->key == KEY_IP_PATH;
}

static void open_source(input *in, size_t i, const char *name)
{
    source *s = &in->sources[i];
    bool standard = strcmp(name, "-") == 0;
    const char *why = "";
    s->number = (uint32_t)(i + 1);
    s->file = &in->files[i];
    s->file->name = standard ? "standard input" : name;
    s->state.opt = in->opt;
    s->state.details = needs_details(in->opt);
    s->state.year = in->opt->year;
    s->reader = reader_open(name, in->opt->follow, &why);
    if (!s->reader) {
        fault(in, s->file, why);
        return;
    }
    s->state.unescaped = (char *)resize(FOR_READING, NULL, 0, UNESCAPED, 1);
    if (reader_file_size(s->reader) == 0 || (strlen(name) > 3 && strstr(name, ".gz")))
        in->bytes_total = 0; /* what it comes to is not known */
    else if (in->bytes_total || i == 0)
        in->bytes_total += reader_file_size(s->reader);
    if (standard && isatty(STDIN_FILENO) == 1)
        complain("reading standard input");
}

void open_input(input *in, const options *opt)
{
    size_t i;
    memset(in, 0, sizeof *in);
    in->opt = opt;
    keys_init(&in->keys);
    in->source_count = opt->file_count ? opt->file_count : 1;
    in->sources = (source *)resize(FOR_READING, NULL, 0, in->source_count, sizeof *in->sources);
    in->files = (input_file *)resize(FOR_READING, NULL, 0, in->source_count, sizeof *in->files);
    memset(in->sources, 0, in->source_count * sizeof *in->sources);
    memset(in->files, 0, in->source_count * sizeof *in->files);
    in->bytes_next = 4000000; /* what takes less than a second needs no bar */
    in->bar = isatty(STDERR_FILENO) == 1;
    in->assumed_year = opt->year;
    for (i = 0; i < in->source_count; i++)
        open_source(in, i, opt->file_count ? opt->files[i] : "-");
    if (!opt->follow)
        find_years(in);
}

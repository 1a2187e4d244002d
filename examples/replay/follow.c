/* follow.c - files that grow: a short report every minute, the whole one at the end

   What was read is decided at each report, but for the last LATE_NS of the log's time, in which
   lines may still come late. A pipe ends when its writer does, files never: an interrupt ends the
   run with the report about all of it. */
#include "replay.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LATE_NS (5 * RATELIMIT_SECOND)

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

/* Reads what there is; false if nothing was, or the file is at its end. */
static bool read_some(input *in, source *s)
{
    request r;
    reading got = READ_LINE;
    size_t count = 0;
    if (!s->reader)
        return false;
    while (count < 10000 && (got = read_request(in, s, &r)) == READ_LINE) {
        source_take(in, s, r);
        count++;
    }
    if (got == READ_END || got == READ_FAILED) {
        reader_close(s->reader);
        s->reader = NULL;
    } else if (got == READ_WAIT && reader_replaced(s->reader, s->file->name)) {
        const char *why = "";
        reader_close(s->reader);
        forget_directives(&s->state);
        s->reader = reader_open(s->file->name, true, &why);
        return s->reader != NULL;
    }
    return count > 0;
}

/* Decides what is earlier than `until`. */
static void decide_until(run *r, uint64_t until)
{
    request req, best = {0, 0, 0, 0, 0};
    for (;;) {
        source *first = NULL;
        size_t i;
        for (i = 0; i < r->in.source_count; i++)
            if (window_first(&r->in.sources[i].window, &req) && (!first || earlier(&req, &best))) {
                first = &r->in.sources[i];
                best = req;
            }
        if (!first || best.time_ns > until)
            return;
        req = window_pop(&first->window);
        if (req.time_ns < r->in.now_ns) {
            req.time_ns = r->in.now_ns;
            r->in.too_late++;
        }
        r->in.now_ns = req.time_ns;
        decide_one(r, &req);
    }
}

typedef struct seen {
    uint64_t requests, refused;
    uint64_t *refused_of; /* each key, at the last report */
    size_t keys;
} seen;

static void print_interval(run *r, seen *before)
{
    trial *t = r->first;
    size_t keys = r->in.keys.count, i;
    uint64_t worst = 0;
    size_t which = 0;
    decide_rest(r);
    before->refused_of = (uint64_t *)resize(FOR_KEYS, before->refused_of, before->keys, keys + 1,
                                            sizeof *before->refused_of);
    for (i = before->keys; i <= keys; i++)
        before->refused_of[i] = 0;
    before->keys = keys + 1;
    for (i = 0; i < keys && i < t->room; i++) {
        uint64_t more = t->refused_of[i] - before->refused_of[i];
        if (more > worst) {
            worst = more;
            which = i;
        }
        before->refused_of[i] = t->refused_of[i];
    }
    if (!r->opt->decisions) {
        printf("%s  %s requests, %s refused",
               r->requests ? time_text(r->last_ns, dating_of(r)).at : "-",
               commas(r->requests - before->requests).at, commas(t->refused - before->refused).at);
        printf(" (%s); %s keys, %s bad lines",
               percent(t->refused - before->refused, r->requests - before->requests).at,
               commas(keys).at, commas(r->in.bad_lines).at);
        if (worst) {
            printf("; most refused ");
            put_text(stdout, key_text(&r->in.keys.list[which]), 50, PLAIN);
            printf(" %s", commas(worst).at);
        }
        putchar('\n');
        check_output(stdout, "to standard output");
    }
    before->requests = r->requests;
    before->refused = t->refused;
}

static uint64_t latest(const input *in)
{
    uint64_t ns = 0;
    size_t i;
    for (i = 0; i < in->source_count; i++)
        if (in->sources[i].latest_ns > ns)
            ns = in->sources[i].latest_ns;
    return ns;
}

/* Until all inputs are at their ends, or an interrupt; the windows may still hold requests. */
void follow(run *r)
{
    struct timespec pause = {0, 100000000};
    struct sigaction action;
    seen before = {0, 0, NULL, 0};
    uint64_t step = r->opt->follow_s * RATELIMIT_SECOND, due = ratelimit_clock_ns() + step;
    bool open = true;
    memset(&action, 0, sizeof action);
    action.sa_handler = stop;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    r->in.bar = false;
    while (open && !stopped) {
        bool some = false;
        size_t i;
        open = false;
        for (i = 0; i < r->in.source_count; i++) {
            some = read_some(&r->in, &r->in.sources[i]) || some;
            open = open || r->in.sources[i].reader;
        }
        if (ratelimit_clock_ns() >= due) {
            uint64_t now = latest(&r->in);
            decide_until(r, now > LATE_NS ? now - LATE_NS : 0);
            print_interval(r, &before);
            due += step;
        } else if (!some && open) {
            nanosleep(&pause, NULL);
        }
    }
    decide_until(r, UINT64_MAX);
    if (!r->opt->decisions)
        putchar('\n');
}

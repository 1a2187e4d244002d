/* main.c - replay: what would this limit have done to my traffic?

       cc -std=c99 -O2 -I. examples/replay/(all).c -o replay       (all) is a star
       ./replay --limit "10/m burst 20" /var/log/nginx/access.log
       ./replay --suggest --html page.html /var/log/nginx/access.log*
       ./replay --compare "10/m burst 20" --compare "30/m burst 60" access.log
       kubectl logs -f deploy/web | ./replay --limit 2/s --follow -

   `replay --help` lists the options, README what forms of logs there are. With -DREPLAY_ZLIB and
   -lz files packed by gzip are unpacked in the process, else the program gzip does it.

   HOW DATA FLOW

       file --reader--> lines --forms--> parts --keys--> request --order--> in order of time
                                                                                |
                 report, json, svg, html, as  <--  counts  <-- trial (ratelimit.h) --

   reader.c    A file, pipe or gzip to lines, which lie where they were read: nothing is copied.
               What is no text (UTF-16, zstd, a folder) is named with what to do about it.
   forms.c     A line to its parts: time, client, method, path, status, size. Here it is asked which
               form the line has; the forms themselves are in clf.c (Common and Combined), json.c,
               plain.c (columns: HAProxy, Amazon, W3C, TIME KEY), ssh.c. prefix.c takes off what
               syslog and containers write before a line. Each answers with parts, or with the
               reason why the line is bad. Times are in times.c, addresses in address.c.
   keys.c      Does the line count (--only, --status ...)? Which key is it, as a number? What does
               it cost? From here on a line is a request of 32 bytes.
   years.c     Before the first line: which year does a log without years begin in?
   order.c     Requests of one file sorted within a window of --reorder requests. input.c has the
               files, merges their windows and counts what is bad.
   trial.c     The only place where ratelimit.h decides: a candidate has, for each of its limits, a
               bucket of 16 bytes for each key, so all is exact. Refused requests are counted by key
               and, in series.c, by time.
   suggest.c   The ladder. With --suggest all requests go through a temporary file first; the rungs
               are found from it and then are candidates like those of --compare.
   show.c      What reports share. report.c and chart.c print to a terminal, report_json.c prints
               JSON, svg.c draws, html.c makes a page, as.c writes configuration for other programs.
   follow.c    The same for files that grow: a report every minute instead of one at the end.
   options.c   The command line. base.c: failing, memory, files that are written whole or not at
               all. text.c: pieces of lines, and printing what others wrote without harm.

   Memory is by keys, not by lines: a key's text, 40 bytes, and for each candidate 8 bytes and 16
   for each limit; beside it the windows, 2 MB for each file.

   EXACTNESS   Times are whole ns and are taken as they are in the log; nothing reads the clock but
   for the speed that is printed. The same input gives the same output.

   DECISIONS   --decisions prints, in order of time, LINE ALLOWED REMAINING RETRY_AFTER_NS of the
   first candidate. LINE is the line's number in its file (FILE:LINE with several, FILE from 1).
   REMAINING is the least that one of the limits has left; if refused, of those that refuse.
   RETRY_AFTER_NS is the longest wait, 18446744073709551615 if the cost is above a burst.

   EXIT CODE   0: done. 1: a file could not be read (the others were), no line could be read, or the
   output not written. 2: wrong options. */
#include "replay.h"

#include <signal.h>
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

static void replay(run *r)
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

int main(int argc, char **argv)
{
    static run r;
    static options opt;
    long_text why;
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is reported, as a full disk is */
    read_options(&opt, argc, argv);
    r.opt = &opt;
    replay(&r);
    if (opt.svg)
        write_svg(&r);
    if (opt.html)
        write_html(&r);
    if (opt.json)
        print_json(&r);
    else if (opt.decisions)
        print_decision_notes(&r);
    else if (opt.as)
        print_as(stdout, &r, &r.first->is);
    else
        print_report(&r);
    check_output(stdout, "to standard output");
    if ((opt.json || opt.as) && trouble(&r, &why))
        complain("%s", why.at);
    return r.in.faults || (r.requests == 0 && (r.in.bad_lines || r.in.left_out));
}

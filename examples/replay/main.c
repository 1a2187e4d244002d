/* main.c - replay: what would this limit have done to my traffic?

       cd examples/replay && cc -std=c99 -O2 -I../.. *.c -o replay
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
   run.c       The steps above, one after another.
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

int main(int argc, char **argv)
{
    static run r;
    static options opt;
    long_text why;
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is reported, as a full disk is */
    read_options(&opt, argc, argv);
    r.opt = &opt;
    run_all(&r);
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

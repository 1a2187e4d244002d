/* main.c - ratelimit_server: limits for programs in any language, by Redis' protocol

   Package: gcc libevent-dev libhiredis-dev redis-server redis-tools
   Build:   cc -std=c99 -O2 -I. examples/server/[a-z]*.c -o ratelimit_server -levent_core

   Try it:  ./ratelimit_server &
            redis-cli -p 6380 THROTTLE alice 5 10 60        burst 5, 10 in 60 s
            redis-cli -p 6380 TAKE alice "10/m burst 5"     the same bucket, another answer
            kill %1

   README says what commands there are and what they answer; --help lists the options.

   HOW DATA FLOW

       listen --socket--> clients --bytes--> resp --request--> commands --> decide --> limiter
                             ^                                    |           |
                             +------------- answers --------------+-----------+

   One thread, libevent's. Nothing in it waits: a decision is a look into the table in memory.

   listen.c    Takes connections. clients.c gives each one a place, or turns it away.
   clients.c   Reads what has come, up to 16 KB at once, hands it on request by request, and sends
               all answers by one call. It alone has memory for each client, and closes those that
               are too slow.
   resp.c      Bytes to requests, where they lie: a request is pointers into what was read. And
               answers to bytes.
   commands.c  The list of commands: how many arguments, who may use it, what to call. What Redis'
               clients ask when they connect is answered here.
   decide.c    The commands that decide: arguments to a ratelimit_request, a ratelimit_result to an
               answer. Requests that came together wait for each other, up to 32, and are decided
               together: then the table fetches their memory ahead. limits.c has the limits that
               were named before, as making one takes some divisions.
   rules.c     The limiter; limits by name, from a file that SIGHUP reads again.
   table.c     The table, its memory or file, and the clock, which is read once for all requests
               that were read together.
   metrics.c   GET /metrics on a port of its own: the library's counters and the server's. The
               connection is one of clients.c as any other, only its requests are HTTP.
   restart.c   SIGUSR2: a new process takes over the sockets and the table.
   options.c   The command line. base.c: failing, text that grows, numbers, files.

   BOUNDS   Known before the first client comes, and printed at the start. The table takes 43 bytes
   a key and is all there from the beginning. A client that is served takes some 400 bytes. At worst
   (half a request there, and answers that are not taken) it is about 41 KB, so 10,000 clients take
   400 MB if all of them are hostile; --clients sets their number. A request is shorter than 4 KB
   and has at most 32 words. Rules are at most 1,000. Beside this the system keeps buffers for each
   socket.

   SLOW CLIENTS   From a client that does not take its answers nothing is read. One that has not
   taken them within --timeout-s, or sent the rest of a request, is cut off. So a program that sends
   hundreds of thousands of requests before it reads the first answer may hang until then.

   EXIT CODE   0: ended by SIGTERM or SIGINT, or another process took over. 1: it can't listen, or
   the file is not usable. 2: wrong options, or a fault in the rules. */
#include "server.h"

#include <event2/event.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static struct event_base *base;
static options opt;
static char **arguments;

static void end_after(unsigned seconds)
{
    struct timeval time = {0, 0};
    time.tv_sec = (time_t)seconds;
    drain_clients();
    event_base_loopexit(base, &time);
}

/* Clients that have asked something are answered; then all is closed. */
static void stop(evutil_socket_t number, short events, void *self)
{
    (void)number, (void)events, (void)self;
    close_listeners(true);
    end_after(0);
}

static void taken_over(void)
{
    close_listeners(false);
    end_after(opt.drain_s);
}

static void restart(evutil_socket_t number, short events, void *self)
{
    (void)number, (void)events, (void)self;
    hand_over(base, arguments, taken_over);
}

static void reload(evutil_socket_t number, short events, void *self)
{
    (void)number, (void)events, (void)self;
    reload_rules();
}

static void on_signal(int number, event_callback_fn what)
{
    struct event *e = evsignal_new(base, number, what, NULL);
    if (!e || evsignal_add(e, NULL) != 0)
        fail(1, "no memory");
}

/* A socket for each client, and some for everything else. */
static void allow_files(void)
{
    struct rlimit files;
    rlim_t wanted = (rlim_t)opt.clients + 64;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted)
        return;
    files.rlim_cur = wanted;
    if (files.rlim_max < wanted)
        files.rlim_max = wanted;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
        fail(1, "--clients %u: the system allows this process fewer open files (ulimit -n)",
             opt.clients);
}

static void say_start(void)
{
    ratelimit_table_counts counts;
    size_t i;
    ratelimit_table_stats(table, now_ns(NULL), &counts);
    for (i = 0; i < opt.listeners; i++)
        note("process %ld listens on %s", (long)getpid(), opt.listen[i]);
    if (opt.metrics)
        note("http://%s/metrics", opt.metrics);
    note("the table: %llu keys in debt of %u, %llu MB; %u clients: at most %zu MB",
         (unsigned long long)counts.keys, opt.keys, (unsigned long long)(counts.bytes >> 20),
         opt.clients, most_bytes() >> 20);
}

int main(int argc, char **argv)
{
    int given_table = -1, given[MAX_LISTENERS + 1];
    bool is_later;
    read_options(&opt, argc, argv);
    arguments = argv;
    signal(SIGPIPE, SIG_IGN);
    allow_files();
    is_later = handed_over(&given_table, given, opt.listeners + (opt.metrics != NULL));
    base = event_base_new();
    if (!base)
        fail(1, "no event loop");
    open_table(&opt, given_table);
    open_limiter(&opt);
    open_commands(&opt);
    open_clients(base, &opt);
    on_signal(SIGTERM, stop); /* before anybody can find the server */
    on_signal(SIGINT, stop);
    on_signal(SIGHUP, reload);
    on_signal(SIGUSR2, restart);
    open_listeners(base, &opt, is_later ? given : NULL);
    say_start();
    tell_ready();
    event_base_dispatch(base);
    close_clients();
    return 0;
}

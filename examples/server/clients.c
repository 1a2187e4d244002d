/* clients.c - the connections: what is read, what waits, what is sent, who is closed.

   When a socket is readable, once is read, into a buffer that all clients share. Requests are
   answered one after another into a second such buffer, and the answers are sent by one call when
   no whole request is left, or when they are ANSWERS_BYTES. A client has memory of its own for two
   things only: the start of a request of which the rest has not come (shorter than REQUEST_BYTES),
   and answers that its socket did not take. While there are such answers nothing more is read from
   it, and what was read already waits, too.

   Each client is in one of two lists, in order of time. `late` are those of whom something is due:
   the rest of a request, or that they take their answers. Who is in it for --timeout-s is cut off.
   A byte now and then does not help: only a whole request, or no answer left, starts the time
   again. `idle` are all others; --idle-s is for them. Looking at the head of each list now and then
   finds all whose time is over. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_HTTP = 8, MOST_ANSWER = 8192 }; /* no answer but that to HTTP is longer */

typedef struct client client;
struct client {
    session is;
    client *before, *after;
    struct event reading, writing;
    int fd;
    bool http, gone, is_late;
    uint64_t since_ns;
    char *in; /* what was read and not answered yet */
    size_t in_len;
    char *out; /* what is to be sent before anything else; NULL: nothing */
    size_t out_len, out_sent;
};

counters counted;
static client idle = {.before = &idle, .after = &idle}, late = {.before = &late, .after = &late};
static struct event_base *base;
static struct event *tick;
static size_t connected, connected_http, most;
static uint64_t next_id, timeout_ns, idle_ns;
static bool draining;
static text answers; /* to the client whose requests are being answered */

size_t client_count(void)
{
    return connected;
}

size_t most_bytes(void)
{
    return most * (sizeof(client) + READ_BYTES + ANSWERS_BYTES + MOST_ANSWER);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void unlink_client(client *c)
{
    c->before->after = c->after;
    c->after->before = c->before;
}

static void link_last(client *list, client *c)
{
    c->before = list->before;
    c->after = list;
    list->before->after = c;
    list->before = c;
}

/* Puts it into the list it belongs to. done: since it was put there, a request became whole or its
   answers were taken. */
static void settle(client *c, bool done)
{
    bool is_late = c->http || c->in_len || c->out;
    if (is_late && c->is_late && !done)
        return;
    unlink_client(c);
    c->is_late = is_late;
    c->since_ns = ratelimit_clock_ns();
    link_last(is_late ? &late : &idle, c);
}

static void close_client(client *c)
{
    unlink_client(c);
    event_del(&c->reading);
    event_del(&c->writing);
    close(c->fd);
    --*(c->http ? &connected_http : &connected);
    free(c->in);
    free(c->out);
    free(c);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Keeps what the socket did not take. */
static void keep_answers(client *c, size_t sent)
{
    c->out_len = answers.len - sent;
    c->out_sent = 0;
    c->out = (char *)malloc(c->out_len);
    if (!c->out) {
        c->gone = true;
        return;
    }
    memcpy(c->out, answers.at + sent, c->out_len);
    event_del(&c->reading);
    event_add(&c->writing, NULL);
}

/* Sends the answers. True: all of them. */
static bool send_answers(client *c)
{
    ssize_t sent = 0;
    if (answers.broken)
        c->gone = true;
    else if (answers.len && !c->out)
        sent = send(c->fd, answers.at, answers.len, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        c->gone = true;
    if (sent < 0)
        sent = 0;
    if (!c->gone && (size_t)sent < answers.len)
        keep_answers(c, (size_t)sent);
    answers.len = 0;
    answers.broken = false;
    return !c->gone && !c->out;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Answers one request; returns as read_request, after which nothing more comes of this client. */
static long answer_one(client *c, const char *data, size_t len)
{
    call asked;
    const char *why;
    long used;
    if (c->http) {
        used = answer_http(data, len, &answers);
        c->is.ending = used != HALF;
        return used;
    }
    used = read_request(data, len, asked.args, &asked.count, &why);
    if (used == BROKEN) {
        counted.malformed++;
        decide_waiting(&answers);
        put_error(&answers, "ERR Protocol error: %s", why);
        c->is.ending = true;
    } else if (used != HALF && asked.count) {
        asked.from = &c->is;
        asked.out = &answers;
        run_command(&asked);
    }
    return used;
}

/* Keeps what waits for its rest, or for answers to be taken. */
static void keep_requests(client *c, const char *data, size_t len)
{
    free(c->in);
    c->in = NULL;
    c->in_len = 0;
    if (!len || c->gone)
        return;
    c->in = (char *)malloc(len);
    if (!c->in) {
        c->gone = true;
        return;
    }
    memcpy(c->in, data, len);
    c->in_len = len;
}

/* Answers all that is whole, at one time. data is not c->in. */
static void answer(client *c, const char *data, size_t len, bool taken)
{
    size_t at = 0;
    bool done = taken;
    read_clock();
    while (at < len && !c->is.ending && !c->out && !c->gone) {
        long used;
        if (answers.len >= ANSWERS_BYTES && !send_answers(c))
            break;
        used = answer_one(c, data + at, len - at);
        if (used == HALF)
            break;
        done = true;
        at = used == BROKEN ? len : at + (size_t)used;
    }
    decide_waiting(&answers);
    send_answers(c);
    if (draining && at == len)
        c->is.ending = true;
    if (c->is.ending)
        at = len;
    keep_requests(c, data + at, len - at);
    if (c->gone || (c->is.ending && !c->out))
        close_client(c);
    else
        settle(c, done);
}

static void readable(evutil_socket_t fd, short events, void *self)
{
    static char data[READ_BYTES];
    client *c = (client *)self;
    ssize_t got;
    (void)events;
    if (c->in_len)
        memcpy(data, c->in, c->in_len);
    got = recv(fd, data + c->in_len, sizeof data - c->in_len, 0);
    if (got > 0)
        answer(c, data, c->in_len + (size_t)got, false);
    else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        close_client(c);
}

/* The socket takes answers again: sends what is left, then goes on with what was read already. */
static void writable(evutil_socket_t fd, short events, void *self)
{
    char data[READ_BYTES];
    client *c = (client *)self;
    ssize_t sent = send(fd, c->out + c->out_sent, c->out_len - c->out_sent, MSG_NOSIGNAL);
    (void)events;
    if (sent < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            close_client(c);
        return;
    }
    c->out_sent += (size_t)sent;
    if (c->out_sent < c->out_len)
        return;
    free(c->out);
    c->out = NULL;
    event_del(&c->writing);
    event_add(&c->reading, NULL);
    if (c->in_len)
        memcpy(data, c->in, c->in_len);
    answer(c, data, c->in_len, true);
}

/* ---- their number, their time ---------------------------------------------------------------- */

void add_client(int fd, bool http)
{
    static const char full[] = "-ERR max number of clients reached\r\n";
    bool room = http ? connected_http < MOST_HTTP : connected < most;
    client *c = room ? (client *)calloc(1, sizeof *c) : NULL;
    if (!c) {
        counted.turned_away++;
        if (!http && send(fd, full, sizeof full - 1, MSG_NOSIGNAL) < 0)
            note("a client was turned away without a word");
        close(fd);
        return;
    }
    counted.accepted++;
    ++*(http ? &connected_http : &connected);
    c->fd = fd;
    c->http = http;
    c->is.known = !needs_password();
    c->is.id = ++next_id;
    c->before = c->after = c;
    event_assign(&c->reading, base, fd, EV_READ | EV_PERSIST, readable, c);
    event_assign(&c->writing, base, fd, EV_WRITE | EV_PERSIST, writable, c);
    settle(c, true);
    if (event_add(&c->reading, NULL) != 0)
        close_client(c);
}

static bool is_over(const client *list, uint64_t longest)
{
    return longest && list->after != list && ratelimit_clock_ns() - list->after->since_ns > longest;
}

static void ticked(evutil_socket_t fd, short events, void *self)
{
    (void)fd, (void)events, (void)self;
    while (is_over(&late, timeout_ns)) {
        counted.too_slow++;
        close_client(late.after);
    }
    while (is_over(&idle, idle_ns)) {
        counted.idle_closed++;
        close_client(idle.after);
    }
    if (draining && !connected && !connected_http)
        event_base_loopbreak(base);
}

void drain_clients(void)
{
    draining = true;
}

void close_clients(void)
{
    while (late.after != &late)
        close_client(late.after);
    while (idle.after != &idle)
        close_client(idle.after);
    if (tick)
        event_free(tick);
    tick = NULL;
    free(answers.at);
    memset(&answers, 0, sizeof answers);
}

void open_clients(struct event_base *of, const options *o)
{
    static const struct timeval often = {0, 250000};
    base = of;
    most = o->clients;
    timeout_ns = o->timeout_s * RATELIMIT_SECOND;
    idle_ns = o->idle_s * RATELIMIT_SECOND;
    tick = event_new(base, -1, EV_PERSIST, ticked, NULL);
    if (!tick || event_add(tick, &often) != 0)
        fail(1, "no memory");
}

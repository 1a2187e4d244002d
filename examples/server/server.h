/* server.h - what the files of ratelimit_server share. main.c says how data flow. */
#ifndef SERVER_H
#define SERVER_H

#include "ratelimit.h"

#include <stdio.h>

enum {
    MAX_LISTENERS = 4,
    MAX_ARGS = 32,
    MAX_TOGETHER = RATELIMIT_MAX_RULE_REQUESTS, /* requests in one TAKEALL */
    MAX_RULES = 1000,
    MAX_RULES_BYTES = 262144,
    REQUEST_BYTES = 4096, /* a request is shorter */
    BATCH = 32,           /* requests that are decided together */
    READ_BYTES = 16384,   /* what is read at once */
    ANSWERS_BYTES = 16384 /* answers are sent when there are so many of them */
};

/* ---- base.c ---------------------------------------------------------------------------------- */

typedef struct slice {
    const char *at; /* no NUL behind it */
    size_t len;
} slice;

/* Bytes that are to be sent. If there is no memory for more they are dropped, and `broken` says
   so. */
typedef struct text {
    char *at;
    size_t len, room;
    bool broken;
} text;

void fail(int code, const char *format, ...);
void note(const char *format, ...);
void text_add(text *t, const char *bytes, size_t len);
void text_say(text *t, const char *format, ...);
bool same_word(slice s, const char *word); /* letters may be of either case */

/* Reads a whole number, digits only, into *out. False: it is none, or above most. */
bool whole_number(slice s, uint64_t most, uint64_t *out);

/* Reads a file of less than most bytes. NULL: *why says why not. */
char *read_file(const char *path, size_t most, size_t *len, const char **why);

/* ---- options.c ------------------------------------------------------------------------------- */

typedef struct options {
    const char *listen[MAX_LISTENERS], *metrics;
    size_t listeners;
    const char *file, *rules, *password_file;
    unsigned keys, clients, timeout_s, idle_s, drain_s;
    bool evict;
} options;

void read_options(options *o, int argc, char **argv);

/* ---- table.c --------------------------------------------------------------------------------- */

extern ratelimit_table *table;

/* The table in a file or in memory; given >= 0: in that file, which an earlier process made. */
void open_table(const options *o, int given);
int table_file(void);

/* Reads the clock. All that is decided until the next call is decided at this time. */
uint64_t read_clock(void);
uint64_t now_ns(void *unused);

/* ---- rules.c --------------------------------------------------------------------------------- */

extern ratelimit_limiter limiter;
extern uint64_t reloads, failed_reloads;

void open_limiter(const options *o); /* ends the program if the rules have a fault */
void reload_rules(void);             /* keeps the old ones if the new ones have a fault */

/* ---- resp.c ---------------------------------------------------------------------------------- */

enum { HALF = 0, BROKEN = -1 };

/* Reads one request. Returns how many bytes it takes; HALF: it goes on behind len; BROKEN: *why
   says what is wrong, and nothing behind it can be understood. */
long read_request(const char *data, size_t len, slice *args, size_t *count, const char **why);

void put_error(text *t, const char *format, ...);
void put_ok(text *t);
void put_simple(text *t, const char *word);
void put_bulk(text *t, const char *bytes, size_t len);
void put_array(text *t, size_t count);
void put_integer(text *t, int64_t n);

/* ---- limits.c -------------------------------------------------------------------------------- */

/* The limit that a request names by numbers or by text; NULL: it is none. Good until the next
   call for another one. */
const ratelimit_limit *limit_of_numbers(uint64_t burst, uint64_t count, uint64_t period_s);
const ratelimit_limit *limit_of_text(slice words);

/* ---- commands.c, decide.c -------------------------------------------------------------------- */

/* What commands know of a connection. */
typedef struct session {
    uint64_t id;
    bool known;    /* gave the password, or there is none */
    bool ending;   /* to be closed when its answers are sent */
    bool refusing; /* said MULTI, and not yet EXEC */
} session;

typedef struct command command;

/* A request and where its answer goes. args[0] is the command's name. */
typedef struct call {
    const command *of;
    session *from;
    slice args[MAX_ARGS];
    size_t count;
    text *out;
} call;

struct command {
    const char *name;   /* in upper case */
    size_t least, most; /* arguments, with the name */
    void (*run)(const call *c);
    int detail;    /* for run */
    int key, step; /* the first argument that is a key, 0: none; how many to the next, 0: it is
                      the last */
    bool anybody;  /* also who gave no password */
};

void open_commands(const options *o);
void run_command(call *c); /* its count is not 0 */
bool needs_password(void);

void throttle(const call *c); /* detail: 0 for throttlecrab's, 1 for redis-cell's */
void decide(const call *c);   /* detail: the operation */
void decide_by_rule(const call *c);
void take_all(const call *c);

/* Requests wait for others that come with them: decides those that still wait, before anything else
   is answered and before what was read is gone. */
void decide_waiting(text *out);

/* ---- metrics.c ------------------------------------------------------------------------------- */

/* Answers one HTTP request, as read_request. */
long answer_http(const char *data, size_t len, text *out);
void server_info(text *t);

/* ---- clients.c ------------------------------------------------------------------------------- */

struct event_base;

/* What the server counts. */
#define COUNTERS(X)                                                                                \
  X(accepted, "connections accepted")                                                              \
  X(turned_away, "connections closed at once: there were too many")                                \
  X(malformed, "connections closed for what they sent")                                            \
  X(too_slow, "connections closed: half a request, or answers not taken, for too long")            \
  X(idle_closed, "connections closed: nothing was asked for too long")
typedef struct counters {
#define COUNTER(name, help) uint64_t name;
    COUNTERS(COUNTER)
#undef COUNTER
} counters;
extern counters counted;

void open_clients(struct event_base *base, const options *o);
void add_client(int fd, bool http);
size_t client_count(void);
size_t most_bytes(void);  /* that all clients together can use */
void drain_clients(void); /* closes each client as soon as its answers are sent */
void close_clients(void); /* at once */

/* ---- listen.c -------------------------------------------------------------------------------- */

/* Listens, or goes on with the sockets of an earlier process. */
void open_listeners(struct event_base *base, const options *o, const int *given);
void close_listeners(bool remove_paths);
size_t listener_sockets(int *fds); /* returns how many */

/* ---- restart.c ------------------------------------------------------------------------------- */

/* What an earlier process handed over: the table's file and sockets; false: there was none. */
bool handed_over(int *table_fd, int *sockets, size_t most);
void tell_ready(void);
void hand_over(struct event_base *base, char **argv, void (*then)(void));

#endif

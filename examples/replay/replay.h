/* replay.h - what the files of replay share. main.c says how they work together. */
#ifndef REPLAY_H
#define REPLAY_H

#ifndef _POSIX_C_SOURCE
#  define _POSIX_C_SOURCE 200809L
#endif

#include "ratelimit.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MAX_LIMITS     16    /* of one candidate */
#define MAX_CANDIDATES 16    /* --limit and --compare */
#define MAX_LINE       65536 /* bytes of a line that are looked at */
#define MAX_REPEATS    100000
#define TOP            10 /* most refused keys shown */
#define SHARE_ONE      1000000000u
#define RUNGS          5 /* of the ladder */

#if defined(__GNUC__)
#  define FAILS_LIKE_PRINTF __attribute__((noreturn, format(printf, 2, 3)))
#  define LIKE_PRINTF(n)    __attribute__((format(printf, n, n + 1)))
#else
#  define FAILS_LIKE_PRINTF
#  define LIKE_PRINTF(n)
#endif

/* ---- text.c: pieces of lines, and texts that are printed ------------------------------------- */

typedef struct text {
    const char *at; /* NULL: there is none */
    size_t len;
} text;

typedef struct line_text {
    char at[128];
} line_text;

typedef struct long_text {
    char at[1600];
} long_text;

/* JSON_VALUE: what is between the quotes of a JSON string. */
typedef enum markup { PLAIN, XML, JSON_VALUE } markup;

static inline bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static inline bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline text part_of(text t, size_t from, size_t len)
{
    text part;
    part.at = t.at + from;
    part.len = len;
    return part;
}

text as_text(const char *string);
bool same_text(text t, const char *string);
bool begins_with(text t, const char *string);
bool has_text(text t, const char *string);
bool next_field(text *rest, text *field);
bool skip(text *t, char c);
void skip_blanks(text *t);
bool number(text *t, size_t least, size_t most, uint64_t *out);
bool fraction(text *t, uint64_t *ns);
size_t put_text(FILE *out, text t, size_t most, markup as);
void copy_harmless(char *out, size_t size, text t);
line_text commas(uint64_t value);
line_text bytes_text(uint64_t bytes);
line_text percent(uint64_t part, uint64_t whole);
line_text short_percent(uint64_t part, uint64_t whole);
void append(long_text *out, const char *format, ...) LIKE_PRINTF(2);

/* ---- base.c: failing, memory, output --------------------------------------------------------- */

typedef enum memory_kind {
    FOR_KEYS,
    FOR_BUCKETS,
    FOR_READING,
    FOR_SUGGESTING,
    MEMORY_KINDS
} memory_kind;

extern size_t memory_used[MEMORY_KINDS];

FAILS_LIKE_PRINTF void fail(int code, const char *format, ...);
void complain(const char *format, ...) LIKE_PRINTF(1);
void *resize(memory_kind kind, void *memory, size_t old_count, size_t count, size_t size);
void check_output(FILE *out, const char *name);
void progress_line(const char *format, ...) LIKE_PRINTF(1);
void progress_end(void);

/* A file that is whole or not there at all. */
typedef struct output_file {
    const char *name;
    FILE *file;
    char other[1024]; /* the name it has until it is whole; empty: none */
} output_file;

FILE *output_begin(output_file *out, const char *name);
void output_end(output_file *out);

/* ---- times.c: calendar ----------------------------------------------------------------------- */

typedef struct moment {
    uint64_t year, month, day, hour, minute, second, part_ns;
    uint64_t west_s, east_s; /* the zone: one of them is 0 */
} moment;

/* A log that counts from 0 has no date. */
typedef enum dating { DATE_AND_YEAR, DATE_ONLY, NO_DATE } dating;

bool is_leap(uint64_t year);
bool moment_to_ns(const moment *m, uint64_t *ns);
moment moment_of(uint64_t ns);
bool month_and_day(text *t, moment *m); /* "Mar  3 14:00:07" */
bool clf_time(text *t, uint64_t *ns);   /* "17/May/2015:10:05:03 +0200" or RFC 3339, after "[" */
bool local_time(text *t, uint64_t *ns); /* "06/Feb/2009:12:14:14.655", without a zone */
bool rfc3339_time(text *t, bool zone_needed, uint64_t *ns);
bool epoch_time(text *t, uint64_t *ns);
line_text time_text(uint64_t ns, dating date);
line_text iso_time(uint64_t ns);
line_text tick_label(uint64_t ns, uint64_t width, dating date);

/* ---- address.c: who the client is ------------------------------------------------------------ */

typedef struct prefixes {
    uint64_t ipv4, ipv6; /* bits that count */
} prefixes;

#define ADDRESS_TEXT 64

bool is_address(text t);
bool is_name(text t);
text bare_address(text t); /* without list, brackets, port, zone; at is NULL if it is no address */
text last_colon_off(text t);
text clean_address(const prefixes *p, text address, char out[ADDRESS_TEXT]);

/* ---- options.c ------------------------------------------------------------------------------- */

typedef enum key_kind { KEY_IP, KEY_PATH, KEY_IP_PATH, KEY_FIELD } key_kind;
typedef enum host_place { HOST_FOUND, HOST_FIRST, HOST_SECOND } host_place;

typedef struct candidate {
    ratelimit_limit limit[MAX_LIMITS];
    bool window[MAX_LIMITS], unlimited[MAX_LIMITS];
    size_t limits;
} candidate;

typedef struct options {
    candidate candidates[MAX_CANDIDATES];
    size_t candidate_count;
    bool limit_given; /* by --limit: it is the first candidate */
    key_kind key;
    int64_t field; /* from 1, or from -1 backwards */
    prefixes prefix;
    host_place host;
    const char *json_key, *json_time;
    const char *only, *method, *path_prefix;
    uint64_t status[8];
    size_t status_count;
    uint64_t table_keys, reorder, seed, year;
    bool year_given;
    uint64_t share; /* of SHARE_ONE */
    uint64_t follow_s;
    ratelimit_full when_full;
    bool cost_bytes, suggest, decisions, json, follow;
    const char *svg, *html, *as;
    char **files;
    size_t file_count;
} options;

void read_options(options *opt, int argc, char **argv);
const char *fault_of_limits(const char *value, candidate *out, size_t *fault);
long_text candidate_label(const candidate *c);
line_text limit_text(const ratelimit_limit *limit);
line_text key_label(const options *opt);

/* ---- reader.c: from a file to lines ---------------------------------------------------------- */

typedef struct reader reader;
typedef enum reading { READ_LINE, READ_END, READ_WAIT, READ_FAILED } reading;

/* line is valid until the next call. cut: it is only the beginning of the line, up to the last
 * blank. nulls: there were some before it. unfinished: the file ends without an end of line. */
typedef struct log_line {
    text is;
    uint64_t number;
    bool cut, nulls, unfinished;
} log_line;

reader *reader_open(const char *name, bool follow, const char **why);
void reader_close(reader *r);
reading reader_next(reader *r, log_line *out);
const char *reader_fault(const reader *r);
text reader_ahead(reader *r); /* what comes next, as much as there is room for */
uint64_t reader_bytes(const reader *r);
bool reader_compressed(const reader *r);
uint64_t reader_file_size(const reader *r); /* 0: not known */
bool reader_replaced(reader *r, const char *name);

/* ---- forms.c and its helpers: from a line to its parts --------------------------------------- */

typedef enum form_kind {
    FORM_COMMON,
    FORM_COMBINED,
    FORM_CADDY,
    FORM_TRAEFIK,
    FORM_NGINX_JSON,
    FORM_JSON,
    FORM_ALB,
    FORM_ELB,
    FORM_S3,
    FORM_CLOUDFRONT,
    FORM_IIS,
    FORM_W3C,
    FORM_HAPROXY,
    FORM_SSH,
    FORM_SYSLOG,
    FORM_SHORT,
    FORM_PLAIN,
    FORMS
} form_kind;

/* What was around or before a line of that form. */
enum {
    WITH_VHOST = 1,
    IN_SYSLOG = 2,
    IN_COMPOSE = 4,
    IN_KUBERNETES = 8,
    IN_DOCKER = 16,
};

/* What a line holds; what is not there has at == NULL. */
typedef struct parts {
    uint64_t time_ns;
    text client; /* as it is written */
    text method, path, status, size;
    text chosen; /* by --json-key: a value, or a column of a W3C log */
    form_kind form;
    unsigned around;
    uint64_t times;  /* it counts as so many requests: "message repeated N times" */
    bool any_client; /* client is a key of any kind, and size is its cost */
    bool no_year, has_chosen;
    bool more_fields;    /* than its form has */
    bool same_as_before; /* "last message repeated N times" */
} parts;

#define MAX_COLUMNS 128
#define UNESCAPED   (5 * MAX_LINE) /* JSON in JSON in JSON */

typedef enum column_kind {
    COLUMN_OTHER,
    COLUMN_DATE,
    COLUMN_TIME,
    COLUMN_CLIENT,
    COLUMN_METHOD,
    COLUMN_PATH,
    COLUMN_STATUS,
    COLUMN_SIZE,
    COLUMN_CHOSEN
} column_kind;

/* What is known of a file from its lines before. */
typedef struct file_state {
    const options *opt;
    bool details;         /* more than time and client is needed */
    uint64_t year, month; /* of the last line without a year; month 0: none yet */
    bool vhost_seen;
    bool wrapped_seen; /* lines with a time of syslog or of a container before them */
    bool w3c;
    form_kind w3c_form;
    bool microsoft;
    unsigned char columns[MAX_COLUMNS]; /* a column each */
    size_t column_count;
    moment w3c_date;
    char *unescaped; /* UNESCAPED bytes for texts of JSON */
    size_t unescaped_used;
} file_state;

/* NULL, or why the line is bad. */
const char *parse_line(file_state *s, text line, parts *out);
bool is_directive(file_state *s, text line); /* "#..." of a W3C log, or a comment */
void forget_directives(file_state *s);
uint64_t year_of(file_state *s, const moment *m);
line_text form_name(form_kind f, unsigned around);

extern const char NO_FORM[]; /* the reason where nothing fits */
bool find_clf(text line, size_t *bracket, text *rest, uint64_t *time_ns);
const char *parse_clf(file_state *s, text line, size_t bracket, text rest, parts *p);
void request_parts(text asked, parts *p); /* "GET /path?query HTTP/1.1" */
text without_query(text path);
const char *parse_json(file_state *s, text line, parts *p, unsigned depth);
const char *parse_message(file_state *s, text message, bool of_ssh, parts *p);
const char *parse_ssh(text message, text *client);
const char *parse_w3c(file_state *s, text line, parts *p);
bool parse_haproxy(text line, parts *p, const char **why);
bool parse_s3(text line, parts *p, const char **why);
bool parse_elb(text line, parts *p, const char **why);
const char *parse_plain(text line, parts *p);
const char *parse_body(file_state *s, text line, parts *p, unsigned depth);
bool quoted_field(text *rest, text *field);
bool field_number(text line, int64_t which, text *out);

/* What is before a line: see prefix.c. */
typedef struct surroundings {
    bool has_time, no_year, syslog;
    uint64_t time_ns;
    moment when; /* of a time without a year */
    text program;
    unsigned around;
} surroundings;

text strip_prefixes(text line, surroundings *found);
bool is_wrapped(text line);

/* ---- keys.c: from parts to a numbered key ---------------------------------------------------- */

typedef struct key {
    char *at;     /* the text, after one byte that is the limit's number in a table */
    uint32_t len; /* of the text */
    uint32_t hash;
    uint64_t requests;
} key;

typedef struct key_set {
    key *list;
    size_t count, room;
    uint32_t *index; /* number of a key + 1, open addressing, at most half full */
    size_t index_size;
    char *block; /* texts are cut from it */
    size_t block_left;
    uint64_t secret[2];
    struct recent *recent; /* keys by texts seen lately, as they were written */
    char *buffer;
} key_set;

typedef enum choice { CHOSEN, LEFT_OUT, BAD } choice;

void keys_init(key_set *k);
uint32_t key_number(key_set *k, text t);
text key_text(const key *k);
choice choose(const options *opt, text line, const parts *p, const char **why);
const char *find_key(const options *opt, key_set *k, text line, const parts *p, uint32_t *out);
const char *find_cost(const options *opt, const parts *p, uint64_t *cost);

/* ---- input.c, order.c, years.c: requests in order of time ------------------------------------ */

/* One request that was read and waits for its turn. */
typedef struct request {
    uint64_t time_ns, line, cost;
    uint32_t key, file;
} request;

typedef struct window {
    request *ring; /* in order of time, from ring[begin] on, room is a power of two */
    size_t begin, count, room;
    request *heap; /* those that came too late for the ring, the earliest first */
    size_t heap_count, heap_room;
} window;

void window_push(window *w, request r);
bool window_first(const window *w, request *out);
request window_pop(window *w);
bool earlier(const request *a, const request *b);

typedef struct input_file {
    const char *name;
    uint64_t requests, bad, left_out, back_steps;
    uint64_t lines_of[FORMS];
    unsigned around[FORMS];
    uint64_t first_bad_line;
    char first_bad[120];
    const char *why_bad, *fault; /* fault: it can't be read, or no further */
    const char *fault_detail;
} input_file;

typedef struct source {
    reader *reader; /* NULL: at its end */
    input_file *file;
    uint32_t number;
    file_state state;
    uint64_t latest_ns;
    request last; /* repeated `repeats` more times */
    uint64_t repeats;
    bool has_last;
    window window;
} source;

typedef struct input {
    const options *opt;
    key_set keys;
    source *sources;
    input_file *files;
    size_t source_count;
    uint64_t bytes_done, bytes_total, bytes_next; /* for the progress bar; total 0: not known */
    bool bar;
    uint64_t bad_lines, left_out, faults;
    uint64_t disordered, disorder_ns; /* earlier than one read before; the largest step back */
    uint64_t too_late, now_ns, read;
    bool without_year, with_year;
    uint64_t assumed_year;
} input;

void open_input(input *in, const options *opt);
bool next_request(input *in, request *out);
reading read_request(input *in, source *s, request *out);
void source_take(input *in, source *s, request r);
void find_years(input *in);

/* ---- series.c: requests over time ------------------------------------------------------------ */

#define FINE_BINS 4096 /* while it is collected */

typedef struct bin {
    uint64_t allowed, refused;
} bin;

typedef struct series {
    bin bins[FINE_BINS];
    uint64_t base; /* number of the first bin since time 0 */
    size_t count;
    size_t width; /* which of the widths */
} series;

void series_add(series *s, uint64_t time_ns, bool allowed);
void series_narrow(series *s, size_t most);
uint64_t series_width(const series *s);
const char *series_width_name(const series *s);
uint64_t series_begin(const series *s, size_t i);
uint64_t series_peak(const series *s);
uint64_t series_ticks(const series *s, uint64_t most);
uint64_t round_up(uint64_t value);

/* ---- trial.c: candidates and what they refuse ------------------------------------------------ */

typedef struct verdict {
    bool allowed;
    uint64_t remaining, retry_after_ns;
} verdict;

typedef struct trial {
    candidate is;
    ratelimit_bucket *buckets; /* for each key one for each limit */
    uint64_t *refused_of;      /* each key */
    size_t room;               /* keys */
    uint64_t refused, keys_refused, never;
    uint32_t top[TOP]; /* numbers of keys, the most refused first */
    size_t top_count;
    series series;
} trial;

void trial_room(trial *t, size_t keys);
verdict trial_decide(trial *t, const request *r);
void trial_count(trial *t, const request *r, const verdict *v);
void trial_top(trial *t, size_t keys);

/* A table of the size asked for, beside the first candidate's buckets. */
typedef struct small_table {
    ratelimit_table *table;
    const candidate *is;
    char *scratch;
    size_t scratch_size;
    uint64_t too_lenient, too_strict;
} small_table;

void small_init(small_table *s, const options *opt, const candidate *is);
bool small_decide(small_table *s, const key *k, const request *r);

/* ---- suggest.c: the ladder ------------------------------------------------------------------- */

typedef struct rung {
    uint64_t shares[RUNGS + 1]; /* of SHARE_ONE: those that come to the same number of keys */
    size_t share_count;
    uint64_t may_refuse; /* keys */
    bool found;
    uint64_t minute; /* tokens that one key can have in a minute */
    trial *trial;
} rung;

typedef struct ladder {
    rung rungs[RUNGS + 1];
    size_t count;
    size_t chosen; /* by --suggest=SHARE */
    FILE *spool;   /* all requests, in order of time */
    uint64_t spooled;
} ladder;

void ladder_read(ladder *l, input *in);
void ladder_find(ladder *l, const options *opt, const key_set *keys);
bool ladder_next(ladder *l, request *out);

/* ---- the whole run, and what is shown of it -------------------------------------------------- */

typedef struct run {
    const options *opt;
    input in;
    trial *trials[MAX_CANDIDATES + RUNGS + 1];
    size_t trial_count;
    trial *first; /* the one that the report is about */
    small_table small;
    ladder ladder;
    uint64_t requests, first_ns, last_ns;
    uint64_t deciding_ns, whole_ns;
} run;

dating dating_of(const run *r);
long_text span_label(const run *r);
long_text input_label(const run *r);
uint64_t most_in(const candidate *c, uint64_t ns);
bool is_reversed(const input *in);
const char *trouble(const run *r, long_text *more);
void share_list(long_text *out, const rung *g);

void print_report(const run *r);
void print_decision_notes(const run *r);
void print_chart(const run *r, const trial *t);
void print_json(const run *r);
void write_svg(const run *r);
void put_svg(FILE *f, const run *r);
void write_html(const run *r);
void print_as(FILE *out, const run *r, const candidate *c);
bool known_as(const char *name);
void follow(run *r);

void decide_one(run *r, const request *req);
void decide_rest(run *r);
void run_all(run *r);

#endif

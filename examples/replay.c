/* replay.c - what would this limit have done to my traffic?

   What it shows: a limit tried on a real access log before it is switched on, by ratelimit.h's
   table with the log's own times; several limits in one all-or-none decision; a table on the heap;
   the place of a fault in a limit's text.

       cc -std=c99 -O2 -o replay replay.c
       ./replay --limit "10/m burst 20" /var/log/nginx/access.log
       zcat access.log.*.gz | ./replay --limit 2/s --limit "1000/d burst 1000" --ip-prefix 64
       ./replay --suggest --svg traffic.svg access.log

   OPTIONS
       --limit LIMIT      "10/m burst 20", "100/s", "1000/d window", "0.5/s burst 10"; up to 16 of
                          them: a request must pass all, else it costs nothing in any; two on one
                          key have a bucket each
       --key ip           the client's address (default)
             path         what was asked for, without "?" and what follows
             ip+path      both, joined by a space
             N            the line's N-th field between blanks, from 1, as it stands
       --ip-prefix N      IPv6 addresses with the same first N bits are one (default 128; 64 is one
                          household)
       --ipv4-prefix N    the same for IPv4 (default 32)
       --cost bytes       a request costs its answer's size in bytes, not 1; none ("-") and 0 cost 1
       --table-keys N     also decide with a table of ratelimit_table_bytes(N) and compare
       --full POLICY      what that does when full: evict (default), last-seen, inherit, refuse
       --suggest[=SHARE]  find a limit; SHARE is the most keys that may be refused: "0.1%" (default)
                          or as a fraction, "0.001"
       --decisions        print a line for each request instead of the report
       --json             print the report as JSON
       --svg FILE         draw it
       --reorder N        how many requests late a line may come (default 65536, up to 16777216)
       --year N           the year of the first line of a log without years (default 2000)
       --seed N           the table's seed (default 1: the same output at each run)
       --help

   INPUT  Files, or standard input for "-" or none. Each line may be of any of these forms:

       HOST IDENT USER [03/Mar/2026:14:00:07 +0100] "GET /path HTTP/1.1" 200 5120 ...
       1772546407.25 alice 3
       Mar  3 14:00:07 192.0.2.1 failed-password

   The first is the Common and Combined Log Format. A virtual host before HOST is passed over; IPv6
   addresses are taken in their one form, an IPv4 one mapped into IPv6 (::ffff:192.0.2.1) as IPv4.
   The second is plain: TIME KEY [COST]. TIME is in seconds and taken exactly, to the ns; further
   digits are dropped. COST is in tokens; 0 counts as 1. KEY is the key whatever --key says, but for
   --key N.
   The third is ssh's, short as above or sshd's own ("... from 192.0.2.1 port ..."). It has no year:
   months only go forward, so where they go back by two or more the next year begins.

   Empty lines and those that begin with # are passed over; NULs at the beginning of a line (a log
   after a crash) are dropped. A line from which time, key or cost can't be read is bad: counted,
   the first one's number reported, never fatal. What isn't needed may be missing. Of a line longer
   than 65,536 bytes the rest is ignored: it is bad only if something needed isn't whole before.

   ORDER  Servers write a line when a request ends, with the time when it began. So requests are
   sorted by time; those of the same time stay as they stood. Each input is sorted within a window
   of --reorder requests, so that memory does not grow with its length: of a line that comes as many
   requests late or more, a later time may have been decided already. It is then taken at that time
   and counted as too late. Several files are merged by time, whatever their order.

   EXACTNESS  Tables are added as keys appear, with eight places for each key, so that none is
   forced out; the report says so, or how many were. Memory is constant per key: its text, two
   counters and eight places of 21 bytes for each limit.

   SUGGESTING  Of all limits that refuse anything to at most SHARE of the keys, the tightest is the
   one that lets a single key have the least in any one minute: burst plus a minute's tokens, of
   equals the smaller burst. Rates and bursts are tried in steps of two digits (1.0/m, 1.1/m, to
   9.9/m, 10/m, to 99/m, 100/m, 110/m; below 1/m whole tokens per hour, below 1/h per day), each by
   replaying the keys that it could refuse. With rate or burst one step lower too many are refused.
   This keeps 36 bytes per request in memory, be it from a file or from standard input. Without
   --limit the report is about the limit found.

   DECISIONS  --decisions prints, in order of time,

       LINE ALLOWED REMAINING RETRY_AFTER_NS

   LINE is the line's number in its file (FILE:LINE with several, FILE from 1). ALLOWED is 0 or 1.
   REMAINING is the least that one of the limits has left; if refused, of those that refuse.
   RETRY_AFTER_NS is the longest wait, 18446744073709551615 if the cost is above a burst.

   EXIT CODE  0: done. 1: an input can't be read, or the output not written. 2: wrong options. */

#define _POSIX_C_SOURCE 200809L

#define RATELIMIT_IMPLEMENTATION
#include "../ratelimit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LIMITS 16
#define MAX_LINE   65536 /* bytes of a line that are looked at */
#define CHUNK      65536 /* bytes read at once */
#define BATCH      256   /* requests decided between two looks at the clock */
#define FIRST_KEYS 4096u /* keys of the first table; each further one holds twice as many */
#define ROOMINESS  4     /* times ratelimit_table_bytes, which is twice as many places as keys */
#define FINE_BINS  4096  /* of the time series, while it is collected */
#define TOP        10    /* most refused keys shown */
#define SHARE_ONE  1000000000u

#if defined(__GNUC__)
#  define FAILS_LIKE_PRINTF __attribute__((noreturn, format(printf, 2, 3)))
#else
#  define FAILS_LIKE_PRINTF
#endif

typedef struct text {
    const char *at; /* NULL: there is none */
    size_t len;
} text;

typedef enum key_kind { KEY_IP, KEY_PATH, KEY_IP_PATH, KEY_FIELD } key_kind;

typedef struct options {
    ratelimit_limit limit[MAX_LIMITS];
    size_t limits;
    key_kind key;
    uint64_t field, ipv4_prefix, ipv6_prefix;
    uint64_t table_keys, reorder, seed, year;
    uint64_t share; /* of SHARE_ONE */
    ratelimit_full when_full;
    bool cost_bytes, suggest, decisions, json;
    const char *svg;
    char **files;
    size_t file_count;
} options;

/* One request that was read and waits for its turn. */
typedef struct request {
    uint64_t time_ns, line, cost;
    uint32_t key, file;
} request;

typedef struct verdict {
    bool allowed;
    uint64_t remaining, retry_after_ns;
} verdict;

/* ---- failing, memory ------------------------------------------------------------------------- */

static bool progress_shown;

static void progress_end(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

FAILS_LIKE_PRINTF static void fail(int code, const char *format, ...)
{
    va_list args;
    progress_end();
    fputs("replay: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(code);
}

typedef enum memory_kind {
    FOR_KEYS,
    FOR_TABLES,
    FOR_READING,
    FOR_RECORDS,
    MEMORY_KINDS
} memory_kind;
static size_t memory_used[MEMORY_KINDS];

static void *resize(memory_kind kind, void *memory, size_t old_count, size_t count, size_t size)
{
    void *grown = count <= SIZE_MAX / size ? realloc(memory, count * size) : NULL;
    if (!grown)
        fail(1, "out of memory");
    memory_used[kind] += (count - old_count) * size;
    return grown;
}

static void check_output(FILE *out, const char *name)
{
    if (fflush(out) != 0 || ferror(out))
        fail(1, "cannot write %s%s%s", name, errno ? ": " : "", errno ? strerror(errno) : "");
}

/* ---- text ------------------------------------------------------------------------------------ */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Takes the next field between blanks off the front of *rest. */
static bool next_field(text *rest, text *field)
{
    size_t i = 0, begin;
    while (i < rest->len && is_blank(rest->at[i]))
        i++;
    begin = i;
    while (i < rest->len && !is_blank(rest->at[i]))
        i++;
    field->at = rest->at + begin;
    field->len = i - begin;
    rest->at += i;
    rest->len -= i;
    return field->len > 0;
}

static bool skip(text *t, char c)
{
    if (t->len == 0 || t->at[0] != c)
        return false;
    t->at++;
    t->len--;
    return true;
}

/* Takes a number of least to most digits off the front of *t. */
static bool number(text *t, size_t least, size_t most, uint64_t *out)
{
    size_t i = 0;
    uint64_t value = 0;
    while (i < t->len && is_digit(t->at[i])) {
        uint64_t digit = (uint64_t)(t->at[i++] - '0');
        if (i > most || value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    t->at += i;
    t->len -= i;
    *out = value;
    return i >= least;
}

/* ".25" as ns; nothing there is 0. Digits after the ninth are dropped. */
static bool fraction(text *t, uint64_t *ns)
{
    uint64_t unit = RATELIMIT_SECOND / 10;
    *ns = 0;
    if (!skip(t, '.'))
        return true;
    if (t->len == 0 || !is_digit(t->at[0]))
        return false;
    for (; t->len && is_digit(t->at[0]); t->at++, t->len--, unit /= 10)
        *ns += (uint64_t)(t->at[0] - '0') * unit;
    return true;
}

/* The length of the character at the front of *t if it can be printed without harm, else 0: it is
 * not UTF-8, a control character, or one that hides or turns around what stands beside it. */
static size_t harmless(text t)
{
    const unsigned char *s = (const unsigned char *)t.at;
    size_t i, len = s[0] < 0x80 ? 1 : s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    static const uint32_t bad[][2] = {{0, 0x1F},        {0x7F, 0x9F},     {0xAD, 0xAD},
                                      {0x61C, 0x61C},   {0x200B, 0x200F}, {0x2028, 0x202E},
                                      {0x2060, 0x206F}, {0xD800, 0xDFFF}, {0xFEFF, 0xFEFF},
                                      {0xFFF0, 0xFFFB}, {0xFFFE, 0xFFFF}, {0xE0000, 0xE0FFF}};
    uint32_t c = len == 1 ? s[0] : (uint32_t)s[0] & (0xFFu >> (len + 1));
    if (len > t.len || (s[0] >= 0x80 && s[0] < 0xC0) || s[0] >= 0xF8)
        return 0;
    for (i = 1; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    for (i = 0; i < sizeof bad / sizeof *bad; i++)
        if (c >= bad[i][0] && c <= bad[i][1])
            return 0;
    return c >= least[len] && c <= 0x10FFFF ? len : 0;
}

typedef enum markup { PLAIN, XML, JSON } markup;

static void put_char(FILE *out, const char *at, size_t len, markup as)
{
    if (as == XML && strchr("<>&\"", at[0]))
        fprintf(out, "&#%d;", at[0]);
    else if (as == JSON && (at[0] == '"' || at[0] == '\\'))
        fprintf(out, "\\%c", at[0]);
    else
        fwrite(at, 1, len, out);
}

/* Prints a text from the log so that it does no harm on a terminal or in a file: bytes that could,
 * as \xHH. At most `most` columns, the rest as "..."; returns how many it used. */
static size_t put_text(FILE *out, text t, size_t most, markup as)
{
    size_t used = 0;
    while (t.len) {
        size_t len = harmless(t), width = len ? 1 : 4;
        if (used + width + (t.len > (len ? len : 1) ? 3 : 0) > most) {
            fputs("...", out);
            return used + 3;
        }
        if (len)
            put_char(out, t.at, len, as);
        else
            fprintf(out, as == JSON ? "\\\\x%02x" : "\\x%02x", (unsigned)(unsigned char)t.at[0]);
        used += width;
        t.at += len ? len : 1;
        t.len -= len ? len : 1;
    }
    return used;
}

static text as_text(const char *string)
{
    text t;
    t.at = string;
    t.len = strlen(string);
    return t;
}

typedef struct line_text {
    char at[64];
} line_text;

/* 1234567 as 1,234,567 */
static line_text commas(uint64_t value)
{
    line_text out;
    char digits[24];
    size_t len = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, value), i, at = 0;
    for (i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            out.at[at++] = ',';
        out.at[at++] = digits[i];
    }
    out.at[at] = 0;
    return out;
}

static line_text bytes_text(uint64_t bytes)
{
    static const char *const unit[] = {"bytes", "KB", "MB", "GB", "TB"};
    line_text out;
    double value = (double)bytes;
    size_t i = 0;
    for (; value >= 1000 && i < 4; i++)
        value /= 1000;
    snprintf(out.at, sizeof out.at, i ? "%.1f %s" : "%.0f %s", value, unit[i]);
    return out;
}

static line_text percent(uint64_t part, uint64_t whole)
{
    line_text out;
    snprintf(out.at, sizeof out.at, "%.2f %%", whole ? 100.0 * (double)part / (double)whole : 0.0);
    return out;
}

/* ---- calendar -------------------------------------------------------------------------------- */

static const char month_names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

static uint64_t days_in(uint64_t year, uint64_t month)
{
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return month == 2 ? 28u + leap : 30u + ((month + (month > 7)) & 1u);
}

/* Days since 1 March of year 0 (Gregorian): with months from March the leap day comes last. */
static uint64_t day_number(uint64_t year, uint64_t month, uint64_t day)
{
    uint64_t y = month < 3 ? year - 1 : year, m = month < 3 ? month + 9 : month - 3;
    return y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
}

#define EPOCH_DAY UINT64_C(719468) /* day_number(1970, 1, 1) */

typedef struct moment {
    uint64_t year, month, day, hour, minute, second, part_ns;
    uint64_t west_s, east_s; /* the zone: one of them is 0 */
} moment;

static bool moment_to_ns(const moment *m, uint64_t *ns)
{
    uint64_t s;
    if (m->year < 1969 || m->year > 2553 || m->month < 1 || m->month > 12 || m->day < 1 ||
        m->day > days_in(m->year, m->month) || m->hour > 23 || m->minute > 59 || m->second > 60)
        return false;
    s = day_number(m->year, m->month, m->day) * 86400 + m->hour * 3600 + m->minute * 60 +
        m->second + m->west_s - m->east_s;
    if (s < EPOCH_DAY * 86400)
        return false;
    *ns = (s - EPOCH_DAY * 86400) * RATELIMIT_SECOND + m->part_ns;
    return true;
}

static moment moment_of(uint64_t ns)
{
    moment m = {0};
    uint64_t s = ns / RATELIMIT_SECOND, day = s / 86400;
    m.year = 1970;
    m.month = 1;
    m.part_ns = ns % RATELIMIT_SECOND;
    m.hour = s / 3600 % 24;
    m.minute = s / 60 % 60;
    m.second = s % 60;
    for (; day >= 337 + days_in(m.year, 2); m.year++)
        day -= 337 + days_in(m.year, 2);
    for (; day >= days_in(m.year, m.month); m.month++)
        day -= days_in(m.year, m.month);
    m.day = day + 1;
    return m;
}

static bool month_name(text *t, uint64_t *month)
{
    size_t i;
    if (t->len < 3)
        return false;
    for (i = 0; i < 12 && memcmp(t->at, month_names + i * 3, 3) != 0; i++)
        ;
    t->at += 3;
    t->len -= 3;
    *month = i + 1;
    return i < 12;
}

static bool clock_time(text *t, moment *m)
{
    return number(t, 2, 2, &m->hour) && skip(t, ':') && number(t, 2, 2, &m->minute) &&
           skip(t, ':') && number(t, 2, 2, &m->second) && fraction(t, &m->part_ns);
}

/* "17/May/2015:10:05:03 +0200]" */
static bool clf_time(text *t, uint64_t *ns)
{
    moment m = {0};
    uint64_t zone;
    bool west;
    if (!(number(t, 1, 2, &m.day) && skip(t, '/') && month_name(t, &m.month) && skip(t, '/') &&
          number(t, 4, 4, &m.year) && skip(t, ':') && clock_time(t, &m) && skip(t, ' ')))
        return false;
    west = skip(t, '-');
    if (!(west || skip(t, '+')) || !number(t, 4, 4, &zone) || zone > 1400 || zone % 100 > 59 ||
        !skip(t, ']'))
        return false;
    zone = zone / 100 * 3600 + zone % 100 * 60;
    m.west_s = west ? zone : 0;
    m.east_s = west ? 0 : zone;
    return moment_to_ns(&m, ns);
}

/* "3 Mar 2026 14:00:07", without the year where the log has none; a log that counts from 0 has no
 * date. */
typedef enum dating { DATE_AND_YEAR, DATE_ONLY, NO_DATE } dating;

static line_text time_text(uint64_t ns, dating date)
{
    line_text out;
    moment m = moment_of(ns);
    unsigned hour = (unsigned)m.hour, minute = (unsigned)m.minute, second = (unsigned)m.second;
    const char *name = month_names + (m.month - 1) * 3;
    if (date == NO_DATE)
        snprintf(out.at, sizeof out.at, "%u:%02u:%02u", (unsigned)(ns / RATELIMIT_HOUR), minute,
                 second);
    else if (date == DATE_ONLY)
        snprintf(out.at, sizeof out.at, "%u %.3s %02u:%02u:%02u", (unsigned)m.day, name, hour,
                 minute, second);
    else
        snprintf(out.at, sizeof out.at, "%u %.3s %u %02u:%02u:%02u", (unsigned)m.day, name,
                 (unsigned)m.year, hour, minute, second);
    return out;
}

static line_text iso_time(uint64_t ns)
{
    line_text out;
    moment m = moment_of(ns);
    snprintf(out.at, sizeof out.at, "%04u-%02u-%02uT%02u:%02u:%02u.%09uZ", (unsigned)m.year,
             (unsigned)m.month, (unsigned)m.day, (unsigned)m.hour, (unsigned)m.minute,
             (unsigned)m.second, (unsigned)m.part_ns);
    return out;
}

/* ---- keys: text to number, with counts ------------------------------------------------------- */

typedef struct key {
    char *at;     /* the text, after one byte that is the limit's number while deciding */
    uint32_t len; /* of the text */
    uint32_t hash;
    uint64_t requests, refused;
} key;

typedef struct key_set {
    key *list;
    size_t count, room;
    uint32_t *index; /* number of a key + 1, open addressing, at most half full */
    size_t index_size;
    char *block; /* texts are cut from it */
    size_t block_left;
    uint64_t secret;
} key_set;

#define PRIME UINT64_C(0x7FFFFFFF)

/* A polynomial at a secret point: nobody who writes to the log can make keys collide. */
static uint32_t hash_of(uint64_t secret, text t)
{
    uint64_t h = t.len % PRIME;
    size_t i;
    for (i = 0; i < t.len; i++)
        h = (h * secret + (unsigned char)t.at[i]) % PRIME;
    return (uint32_t)h;
}

static uint64_t random_secret(void)
{
    uint64_t secret = ratelimit_clock_ns();
    FILE *f = fopen("/dev/urandom", "rb");
    if (f && fread(&secret, sizeof secret, 1, f) != 1)
        secret ^= ratelimit_clock_ns();
    if (f)
        fclose(f);
    return 65536 + secret % (PRIME - 65537);
}

static void keys_reindex(key_set *k)
{
    size_t size = k->index_size ? k->index_size * 2 : 4096, i, at;
    k->index = (uint32_t *)resize(FOR_KEYS, k->index, k->index_size, size, sizeof *k->index);
    k->index_size = size;
    memset(k->index, 0, size * sizeof *k->index);
    for (i = 0; i < k->count; i++) {
        for (at = k->list[i].hash & (size - 1); k->index[at]; at = (at + 1) & (size - 1))
            ;
        k->index[at] = (uint32_t)(i + 1);
    }
}

static char *keys_store(key_set *k, text t)
{
    char *at;
    if (k->block_left < t.len + 1) {
        k->block_left = t.len + 1 > CHUNK ? t.len + 1 : CHUNK;
        k->block = (char *)resize(FOR_KEYS, NULL, 0, k->block_left, 1);
    }
    at = k->block;
    k->block += t.len + 1;
    k->block_left -= t.len + 1;
    at[0] = 0;
    memcpy(at + 1, t.at, t.len);
    return at;
}

static uint32_t key_number(key_set *k, text t)
{
    uint32_t hash = hash_of(k->secret, t);
    key *new_key;
    size_t at;
    if (k->count * 2 >= k->index_size)
        keys_reindex(k);
    for (at = hash & (k->index_size - 1); k->index[at]; at = (at + 1) & (k->index_size - 1)) {
        key *old = &k->list[k->index[at] - 1];
        if (old->hash == hash && old->len == t.len && memcmp(old->at + 1, t.at, t.len) == 0)
            return k->index[at] - 1;
    }
    if (k->count == k->room) {
        k->list = (key *)resize(FOR_KEYS, k->list, k->room, k->room ? k->room * 2 : 1024,
                                sizeof *k->list);
        k->room = k->room ? k->room * 2 : 1024;
    }
    if (k->count >= UINT32_MAX - 1)
        fail(1, "more than 4 billion keys");
    new_key = &k->list[k->count++];
    memset(new_key, 0, sizeof *new_key);
    new_key->at = keys_store(k, t);
    new_key->len = (uint32_t)t.len;
    new_key->hash = hash;
    k->index[at] = (uint32_t)k->count;
    return (uint32_t)(k->count - 1);
}

static text key_text(const key *k)
{
    text t;
    t.at = k->at + 1;
    t.len = k->len;
    return t;
}

/* ---- input: sources and lines ---------------------------------------------------------------- */

typedef struct source {
    FILE *file;
    const char *name;
    uint32_t number;
    char *chunk, *line;
    size_t at, have; /* in chunk */
    size_t len;      /* of line */
    bool cut;        /* line is only the beginning */
    bool nulls;      /* dropped from its beginning */
    uint64_t line_number;
    uint64_t year, month; /* of the last line without a year; month 0: none yet */
    uint64_t latest_ns;
    request *heap; /* the earliest first */
    size_t count, room;
} source;

typedef struct input {
    const options *opt;
    key_set keys;
    source *sources;
    size_t source_count;
    uint64_t bytes_done, bytes_total, bytes_next; /* for the progress bar; total 0: not known */
    bool bar;
    uint64_t bad_lines, first_bad_line;
    const char *first_bad_file;
    uint64_t disordered,
        disorder_ns; /* requests earlier than one read before, the largest step back */
    uint64_t too_late, now_ns;
    bool without_year;
} input;

static void progress(input *in)
{
    uint64_t step = in->bytes_total / 100;
    if (!in->bar || in->bytes_done < in->bytes_next)
        return;
    in->bytes_next = in->bytes_done + (step > 1000000 ? step : 1000000);
    if (in->bytes_total > in->bytes_done) {
        unsigned tenth = (unsigned)(in->bytes_done * 40 / in->bytes_total);
        fprintf(stderr, "\rreplay: [%.*s%.*s] %3u %%  %s of", (int)tenth,
                "########################################", (int)(40 - tenth),
                "........................................",
                (unsigned)(in->bytes_done * 100 / in->bytes_total), bytes_text(in->bytes_done).at);
        fprintf(stderr, " %s\033[K", bytes_text(in->bytes_total).at);
    } else {
        fprintf(stderr, "\rreplay: %s read, %s keys\033[K", bytes_text(in->bytes_done).at,
                commas(in->keys.count).at);
    }
    progress_shown = true;
}

static bool fill(input *in, source *s)
{
    s->at = 0;
    errno = 0;
    s->have = fread(s->chunk, 1, CHUNK, s->file);
    if (ferror(s->file))
        fail(1, "cannot read %s: %s", s->name, strerror(errno));
    in->bytes_done += s->have;
    progress(in);
    return s->have > 0;
}

static void append(source *s, const char *from, size_t len)
{
    for (; s->len == 0 && len && *from == 0; from++, len--)
        s->nulls = true;
    if (len > MAX_LINE - s->len) {
        len = MAX_LINE - s->len;
        s->cut = true;
    }
    memcpy(s->line + s->len, from, len);
    s->len += len;
}

/* Reads the next line without its end. Of a cut line what may not be whole is dropped too. */
static bool read_line(input *in, source *s)
{
    const char *newline = NULL;
    bool any = false;
    s->len = 0;
    s->cut = s->nulls = false;
    while (!newline && (s->at < s->have || fill(in, s))) {
        const char *from = s->chunk + s->at;
        newline = (const char *)memchr(from, '\n', s->have - s->at);
        append(s, from, newline ? (size_t)(newline - from) : s->have - s->at);
        s->at = newline ? (size_t)(newline - s->chunk) + 1 : s->have;
        any = true;
    }
    s->line_number += any;
    if (s->len && s->line[s->len - 1] == '\r')
        s->len--;
    while (s->cut && s->len && !is_blank(s->line[s->len - 1]))
        s->len--;
    return any;
}

/* ---- input: from line to request ------------------------------------------------------------- */

/* What a line holds; what is not there has at == NULL. */
typedef struct parts {
    uint64_t time_ns;
    text address, path, size;
    bool plain; /* address is KEY, size is COST */
} parts;

static bool is_address(text t)
{
    char copy[INET6_ADDRSTRLEN];
    unsigned char bytes[16];
    if (t.len >= sizeof copy || memchr(t.at, 0, t.len))
        return false;
    memcpy(copy, t.at, t.len);
    copy[t.len] = 0;
    return inet_pton(AF_INET, copy, bytes) == 1 || inet_pton(AF_INET6, copy, bytes) == 1;
}

/* HOST, or the second field if only that is an address: a virtual host stands before it. */
static text clf_host(text before)
{
    text first, second;
    if (next_field(&before, &first) && !is_address(first) && next_field(&before, &second) &&
        is_address(second))
        return second;
    return first;
}

/* The path in a request line "GET /path?query HTTP/1.1"; all of it if it has no blanks. */
static text clf_path(text line)
{
    text method, path, rest = line;
    const char *query;
    if (!next_field(&rest, &method) || !next_field(&rest, &path))
        path = line;
    query = path.len ? (const char *)memchr(path.at, '?', path.len) : NULL;
    if (query && query > path.at)
        path.len = (size_t)(query - path.at);
    if (path.len == 0)
        path.at = NULL;
    return path;
}

/* What follows the time: "REQUEST" STATUS SIZE. A quote in REQUEST is written \". */
static void clf_rest(text rest, parts *p)
{
    text line, status;
    size_t i;
    while (skip(&rest, ' '))
        ;
    if (!skip(&rest, '"'))
        return;
    for (i = 0; i < rest.len && rest.at[i] != '"'; i++)
        i += rest.at[i] == '\\';
    if (i >= rest.len)
        return;
    line.at = rest.at;
    line.len = i;
    p->path = clf_path(line);
    rest.at += i + 1;
    rest.len -= i + 1;
    if (!next_field(&rest, &status) || !next_field(&rest, &p->size))
        p->size.at = NULL;
}

/* USER may hold anything, also blanks and brackets: the first "[" with a time after it counts. */
static bool parse_clf(text line, parts *p)
{
    text before = line, rest = line;
    const char *bracket;
    while (rest.len && (bracket = (const char *)memchr(rest.at, '[', rest.len)) != NULL) {
        before.len = (size_t)(bracket - line.at);
        rest.at = bracket + 1;
        rest.len = line.len - before.len - 1;
        if (clf_time(&rest, &p->time_ns)) {
            p->address = clf_host(before);
            clf_rest(rest, p);
            return p->address.len > 0;
        }
        rest.at = bracket + 1;
        rest.len = line.len - before.len - 1;
    }
    return false;
}

/* Months going back begin a new year. One month back is a late line, eleven forward a late one of
 * the year before. */
static uint64_t year_of(source *s, uint64_t month)
{
    if (s->month && month == s->month + 11)
        return s->year - 1;
    s->year += s->month && month + 1 < s->month;
    if (month > s->month || month + 1 < s->month)
        s->month = month;
    return s->year;
}

/* sshd's own lines have a host's name and "sshd[PID]:", and the address after "from". */
static bool ssh_address(text rest, text *address)
{
    text field, before = {NULL, 0};
    bool named;
    if (!next_field(&rest, address) || is_address(*address))
        return address->len > 0;
    named = next_field(&rest, &field) && field.at[field.len - 1] == ':';
    while (next_field(&rest, &field)) {
        if (before.at && before.len == 4 && memcmp(before.at, "from", 4) == 0 &&
            is_address(field)) {
            *address = field;
            return true;
        }
        before = field;
    }
    return !named;
}

static bool parse_ssh(text line, source *s, parts *p)
{
    moment m = {0};
    if (!month_name(&line, &m.month) || !skip(&line, ' '))
        return false;
    skip(&line, ' ');
    if (!(number(&line, 1, 2, &m.day) && skip(&line, ' ') && clock_time(&line, &m) &&
          skip(&line, ' ')) ||
        !ssh_address(line, &p->address))
        return false;
    m.year = year_of(s, m.month);
    return moment_to_ns(&m, &p->time_ns);
}

static bool parse_plain(text line, parts *p)
{
    uint64_t s, ns;
    if (!number(&line, 1, 20, &s) || !fraction(&line, &ns) || line.len == 0 ||
        !is_blank(line.at[0]) || s > (UINT64_MAX - ns) / RATELIMIT_SECOND)
        return false;
    p->time_ns = s * RATELIMIT_SECOND + ns;
    p->plain = true;
    if (!next_field(&line, &p->address))
        return false;
    if (!next_field(&line, &p->size))
        p->size.at = NULL;
    return true;
}

/* Clears all bits but the first `prefix`. */
static void mask(unsigned char *bytes, size_t count, uint64_t prefix)
{
    size_t i;
    for (i = 0; i < count; i++) {
        uint64_t keep = prefix < 8 ? prefix : 8;
        bytes[i] = (unsigned char)(bytes[i] & (0xFF00u >> keep));
        prefix -= keep;
    }
}

/* The address in its one form, cut to the prefix, into out; any other text as it is. */
static text clean_address(const options *opt, text t, char out[64])
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    unsigned char bytes[16];
    bool v6 = t.len && memchr(t.at, ':', t.len) != NULL;
    uint64_t prefix;
    text clean = t;
    if (t.len >= INET6_ADDRSTRLEN || memchr(t.at, 0, t.len) || (!v6 && opt->ipv4_prefix == 32))
        return t;
    memcpy(out, t.at, t.len);
    out[t.len] = 0;
    if (inet_pton(v6 ? AF_INET6 : AF_INET, out, bytes) != 1)
        return t;
    if (v6 && memcmp(bytes, mapped, sizeof mapped) == 0) {
        memmove(bytes, bytes + sizeof mapped, 4);
        v6 = false;
    }
    prefix = v6 ? opt->ipv6_prefix : opt->ipv4_prefix;
    mask(bytes, v6 ? 16 : 4, prefix);
    clean.at = inet_ntop(v6 ? AF_INET6 : AF_INET, bytes, out, 64);
    clean.len = strlen(out);
    if (prefix < (v6 ? 128u : 32u))
        clean.len += (size_t)snprintf(out + clean.len, 64 - clean.len, "/%u", (unsigned)prefix);
    return clean;
}

/* The key of a line, perhaps built in buffer (MAX_LINE + 128 bytes); at is NULL if it has none. */
static text find_key(const options *opt, text line, const parts *p, char *buffer)
{
    text found = {NULL, 0};
    uint64_t i;
    char address[64];
    if (opt->key == KEY_FIELD) {
        for (i = 0; i < opt->field; i++)
            if (!next_field(&line, &found))
                found.at = NULL;
        return found;
    }
    if (opt->key == KEY_PATH && !p->plain)
        return p->path;
    found = clean_address(opt, p->address, address);
    if (opt->key == KEY_IP_PATH && !p->plain && !p->path.at) {
        found.at = NULL;
        return found;
    }
    memcpy(buffer, found.at, found.len);
    found.at = buffer;
    if (opt->key == KEY_IP_PATH && !p->plain) {
        buffer[found.len] = ' ';
        memcpy(buffer + found.len + 1, p->path.at, p->path.len);
        found.len += 1 + p->path.len;
    }
    return found;
}

/* At least 1: a request that costs nothing can't be limited. */
static bool find_cost(const options *opt, const parts *p, uint64_t *cost)
{
    text size = p->size;
    *cost = 1;
    if (!size.at)
        return p->plain || !opt->cost_bytes;
    if (!p->plain && (!opt->cost_bytes || (size.len == 1 && size.at[0] == '-')))
        return true;
    if (!number(&size, 1, 20, cost) || size.len)
        return false;
    *cost += *cost == 0;
    return true;
}

static bool parse_line(input *in, source *s, request *out)
{
    static char buffer[MAX_LINE + 128];
    parts p;
    text line, found;
    line.at = s->line;
    line.len = s->len;
    memset(&p, 0, sizeof p);
    if (!parse_clf(line, &p)) {
        if (parse_ssh(line, s, &p))
            in->without_year = true;
        else if (!parse_plain(line, &p))
            return false;
    }
    found = find_key(in->opt, line, &p, buffer);
    if (!found.at || !find_cost(in->opt, &p, &out->cost))
        return false;
    out->time_ns = p.time_ns;
    out->line = s->line_number;
    out->file = s->number;
    out->key = key_number(&in->keys, found);
    return true;
}

static bool to_pass_over(const source *s)
{
    size_t i = 0;
    while (i < s->len && is_blank(s->line[i]))
        i++;
    return i < s->len ? s->line[0] == '#' : !s->nulls && !s->cut;
}

static bool read_request(input *in, source *s, request *out)
{
    while (read_line(in, s)) {
        if (to_pass_over(s))
            continue;
        if (parse_line(in, s, out))
            return true;
        if (in->bad_lines++ == 0) {
            in->first_bad_line = s->line_number;
            in->first_bad_file = s->name;
        }
    }
    return false;
}

/* ---- input: in order of time ----------------------------------------------------------------- */

static bool earlier(const request *a, const request *b)
{
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns;
    return a->file != b->file ? a->file < b->file : a->line < b->line;
}

static void heap_push(source *s, request r)
{
    size_t at = s->count++;
    if (at == s->room) {
        size_t room = s->room ? s->room * 2 : 256;
        s->heap = (request *)resize(FOR_READING, s->heap, s->room, room, sizeof r);
        s->room = room;
    }
    for (; at && earlier(&r, &s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = r;
}

static request heap_pop(source *s)
{
    request top = s->heap[0], last = s->heap[--s->count];
    size_t at = 0, child;
    while ((child = at * 2 + 1) < s->count) {
        child += child + 1 < s->count && earlier(&s->heap[child + 1], &s->heap[child]);
        if (!earlier(&s->heap[child], &last))
            break;
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

/* Keeps the window full: what has not been read yet can then only be that many requests late. */
static void refill(input *in, source *s)
{
    request r;
    while (s->file && s->count < in->opt->reorder) {
        if (!read_request(in, s, &r)) {
            fclose(s->file);
            s->file = NULL;
            return;
        }
        if (r.time_ns < s->latest_ns) {
            in->disordered++;
            if (s->latest_ns - r.time_ns > in->disorder_ns)
                in->disorder_ns = s->latest_ns - r.time_ns;
        } else {
            s->latest_ns = r.time_ns;
        }
        heap_push(s, r);
    }
}

static bool next_request(input *in, request *out)
{
    source *first = NULL;
    size_t i;
    for (i = 0; i < in->source_count; i++) {
        source *s = &in->sources[i];
        refill(in, s);
        if (s->count && (!first || earlier(&s->heap[0], &first->heap[0])))
            first = s;
    }
    if (!first)
        return false;
    *out = heap_pop(first);
    if (out->time_ns < in->now_ns) {
        out->time_ns = in->now_ns;
        in->too_late++;
    }
    in->now_ns = out->time_ns;
    return true;
}

static void open_source(input *in, size_t i, const char *name)
{
    source *s = &in->sources[i];
    struct stat info;
    bool standard = strcmp(name, "-") == 0;
    memset(s, 0, sizeof *s);
    s->name = standard ? "standard input" : name;
    s->file = standard ? stdin : fopen(name, "rb");
    if (!s->file)
        fail(1, "cannot read %s: %s", name, strerror(errno));
    if (fstat(fileno(s->file), &info) == 0 && S_ISREG(info.st_mode) && (in->bytes_total || i == 0))
        in->bytes_total += (uint64_t)info.st_size;
    else
        in->bytes_total = 0;
    if (standard && isatty(STDIN_FILENO) == 1)
        fputs("replay: reading standard input\n", stderr);
    s->number = (uint32_t)(i + 1);
    s->year = in->opt->year;
    s->chunk = (char *)resize(FOR_READING, NULL, 0, CHUNK, 1);
    s->line = (char *)resize(FOR_READING, NULL, 0, MAX_LINE, 1);
}

static void open_input(input *in, const options *opt)
{
    size_t i;
    memset(in, 0, sizeof *in);
    in->opt = opt;
    in->keys.secret = random_secret();
    in->source_count = opt->file_count ? opt->file_count : 1;
    in->sources = (source *)resize(FOR_READING, NULL, 0, in->source_count, sizeof *in->sources);
    for (i = 0; i < in->source_count; i++)
        open_source(in, i, opt->file_count ? opt->files[i] : "-");
    in->bytes_next = 4000000; /* what takes less than a second needs no bar */
    in->bar = isatty(STDERR_FILENO) == 1;
}

/* ---- deciding -------------------------------------------------------------------------------- */

/* Table i holds FIRST_KEYS << i keys, by their numbers: growing moves nothing. */
typedef struct decider {
    const options *opt;
    ratelimit_table *table[32];
    size_t tables;
    bool fixed; /* one table for all keys, of the size asked for */
    char *scratch;
    size_t scratch_size;
} decider;

static ratelimit_table *new_table(const options *opt, size_t bytes, ratelimit_full when_full)
{
    ratelimit_table_options table_options = {{0, 0}, RATELIMIT_EVICT, 0};
    ratelimit_table *table = NULL;
    ratelimit_status status;
    table_options.seed[0] = opt->seed;
    table_options.seed[1] = UINT64_C(0x7265706C61792E63);
    table_options.when_full = when_full;
    if (bytes == 0)
        fail(1, "out of memory: too many keys");
    status =
        ratelimit_table_init(&table, resize(FOR_TABLES, NULL, 0, bytes, 1), bytes, &table_options);
    if (status != RATELIMIT_OK)
        fail(1, "cannot make a table of %zu bytes: %s", bytes, ratelimit_status_text(status));
    return table;
}

static void decider_init(decider *d, const options *opt, bool fixed)
{
    memset(d, 0, sizeof *d);
    d->opt = opt;
    d->fixed = fixed;
    if (fixed)
        d->table[d->tables++] =
            new_table(opt, ratelimit_table_bytes((size_t)opt->table_keys), opt->when_full);
}

static ratelimit_table *table_of(decider *d, uint32_t number)
{
    size_t i = 0, keys_in = FIRST_KEYS;
    if (d->fixed)
        return d->table[0];
    for (; number >= keys_in; i++, keys_in *= 2)
        number -= (uint32_t)keys_in;
    for (; d->tables <= i; d->tables++)
        d->table[d->tables] = new_table(
            d->opt, ratelimit_table_bytes((FIRST_KEYS << d->tables) * ROOMINESS * d->opt->limits),
            RATELIMIT_EVICT);
    return d->table[i];
}

/* The key's bytes for limit i: i and the text: two limits on one key have a bucket each. */
static const char *limited_key(decider *d, const key *k, size_t i)
{
    size_t len = (size_t)k->len + 1;
    char *copy;
    if (i == 0)
        return k->at;
    if (d->scratch_size < len * MAX_LIMITS) {
        d->scratch = (char *)resize(FOR_TABLES, d->scratch, d->scratch_size, len * MAX_LIMITS, 1);
        d->scratch_size = len * MAX_LIMITS;
    }
    copy = d->scratch + len * i;
    memcpy(copy, k->at, len);
    copy[0] = (char)i;
    return copy;
}

static verdict decide(decider *d, const key *k, const request *r)
{
    ratelimit_request req[MAX_LIMITS];
    ratelimit_result res[MAX_LIMITS];
    verdict v = {true, UINT64_MAX, 0};
    size_t i, count = d->opt->limits;
    ratelimit_table *table = table_of(d, r->key);
    memset(req, 0, count * sizeof *req);
    for (i = count; i--;) { /* the last first: its copy of the key makes room for all */
        req[i].key = limited_key(d, k, i);
        req[i].key_len = (size_t)k->len + 1;
        req[i].limit = &d->opt->limit[i];
        req[i].n = r->cost;
    }
    ratelimit_table_decide(table, req, res, count, RATELIMIT_ALL, r->time_ns);
    for (i = 0; i < count; i++)
        v.allowed = v.allowed && res[i].allowed;
    for (i = 0; i < count; i++) {
        if (!v.allowed && res[i].status == RATELIMIT_OK)
            continue; /* would have passed: then it has more left than one that refused */
        if (res[i].remaining < v.remaining)
            v.remaining = res[i].remaining;
        if (res[i].retry_after_ns > v.retry_after_ns)
            v.retry_after_ns = res[i].retry_after_ns;
    }
    return v;
}

static ratelimit_table_counts decider_counts(const decider *d, uint64_t now_ns)
{
    ratelimit_table_counts sum = {0}, one;
    size_t i;
    for (i = 0; i < d->tables; i++) {
        ratelimit_table_stats(d->table[i], now_ns, &one);
        sum.capacity += one.capacity;
        sum.keys += one.keys;
        sum.evicted += one.evicted;
        sum.refused += one.refused;
        sum.bytes += one.bytes;
    }
    return sum;
}

/* ---- time series ----------------------------------------------------------------------------- */

typedef struct bin {
    uint64_t allowed, refused;
} bin;

/* Bins of one width, from a multiple of it on. When they no longer suffice the width grows, so that
 * memory does not. Each width divides the next. */
typedef struct series {
    bin bins[FINE_BINS];
    uint64_t base; /* number of the first bin since time 0 */
    size_t count;
    size_t width; /* which of widths */
} series;

static const struct {
    uint64_t ns;
    const char *name;
} widths[] = {
    {RATELIMIT_MILLISECOND, "millisecond"},
    {10 * RATELIMIT_MILLISECOND, "10 milliseconds"},
    {100 * RATELIMIT_MILLISECOND, "100 milliseconds"},
    {RATELIMIT_SECOND, "second"},
    {2 * RATELIMIT_SECOND, "2 seconds"},
    {10 * RATELIMIT_SECOND, "10 seconds"},
    {30 * RATELIMIT_SECOND, "30 seconds"},
    {RATELIMIT_MINUTE, "minute"},
    {2 * RATELIMIT_MINUTE, "2 minutes"},
    {10 * RATELIMIT_MINUTE, "10 minutes"},
    {30 * RATELIMIT_MINUTE, "30 minutes"},
    {RATELIMIT_HOUR, "hour"},
    {3 * RATELIMIT_HOUR, "3 hours"},
    {6 * RATELIMIT_HOUR, "6 hours"},
    {12 * RATELIMIT_HOUR, "12 hours"},
    {RATELIMIT_DAY, "day"},
    {2 * RATELIMIT_DAY, "2 days"},
    {14 * RATELIMIT_DAY, "14 days"},
    {28 * RATELIMIT_DAY, "28 days"},
    {364 * RATELIMIT_DAY, "364 days"},
    {3640 * RATELIMIT_DAY, "3640 days"},
};
#define WIDTHS (sizeof widths / sizeof *widths)

static void widen(series *s)
{
    uint64_t ratio = widths[s->width + 1].ns / widths[s->width].ns, base = s->base / ratio;
    size_t i, to = 0;
    for (i = 0; i < s->count; i++) {
        bin moved = s->bins[i];
        to = (size_t)((s->base + i) / ratio - base);
        s->bins[i].allowed = s->bins[i].refused = 0;
        s->bins[to].allowed += moved.allowed;
        s->bins[to].refused += moved.refused;
    }
    s->count = to + 1;
    s->base = base;
    s->width++;
}

static void series_add(series *s, uint64_t time_ns, bool allowed)
{
    uint64_t number = time_ns / widths[s->width].ns;
    if (s->count == 0)
        s->base = number;
    for (; number - s->base >= FINE_BINS; number = time_ns / widths[s->width].ns)
        widen(s);
    if (number - s->base >= s->count)
        s->count = (size_t)(number - s->base) + 1;
    s->bins[number - s->base].allowed += allowed;
    s->bins[number - s->base].refused += !allowed;
}

static void narrow_to(series *s, size_t most)
{
    while (s->count > most && s->width + 1 < WIDTHS)
        widen(s);
}

static uint64_t bin_begin(const series *s, size_t i)
{
    return (s->base + i) * widths[s->width].ns;
}

static uint64_t series_peak(const series *s)
{
    uint64_t peak = 0;
    size_t i;
    for (i = 0; i < s->count; i++)
        if (s->bins[i].allowed + s->bins[i].refused > peak)
            peak = s->bins[i].allowed + s->bins[i].refused;
    return peak;
}

/* ---- the whole run --------------------------------------------------------------------------- */

typedef struct run {
    const options *opt;
    input in;
    decider exact, small;
    series series;
    request batch[BATCH];
    verdict verdicts[BATCH];
    size_t batched;
    uint64_t requests, refused, keys_refused, never;
    uint64_t too_lenient, too_strict; /* of the small table, against the exact one */
    uint64_t first_ns, last_ns;
    uint64_t deciding_ns, whole_ns;
    uint32_t top[TOP]; /* numbers of keys, the most refused first */
    size_t top_count;
    bool found; /* --suggest found suggested */
    ratelimit_limit suggested;
    uint64_t may_refuse, suggested_refuses;
} run;

static void count_verdict(run *r, const request *req, const verdict *v)
{
    key *k = &r->in.keys.list[req->key];
    if (r->requests++ == 0)
        r->first_ns = req->time_ns;
    r->last_ns = req->time_ns;
    k->requests++;
    series_add(&r->series, req->time_ns, v->allowed);
    if (!v->allowed) {
        r->refused++;
        r->never += v->retry_after_ns == RATELIMIT_FOREVER;
        r->keys_refused += k->refused++ == 0;
    }
    if (r->opt->decisions && r->in.source_count > 1)
        printf("%" PRIu32 ":", req->file);
    if (r->opt->decisions)
        printf("%" PRIu64 " %d %" PRIu64 " %" PRIu64 "\n", req->line, v->allowed, v->remaining,
               v->retry_after_ns);
}

static void decide_batch(run *r)
{
    uint64_t begin = ratelimit_clock_ns();
    size_t i;
    for (i = 0; i < r->batched; i++)
        r->verdicts[i] = decide(&r->exact, &r->in.keys.list[r->batch[i].key], &r->batch[i]);
    r->deciding_ns += ratelimit_clock_ns() - begin;
    for (i = 0; i < r->batched; i++) {
        count_verdict(r, &r->batch[i], &r->verdicts[i]);
        if (r->small.fixed) {
            verdict v = decide(&r->small, &r->in.keys.list[r->batch[i].key], &r->batch[i]);
            r->too_lenient += v.allowed && !r->verdicts[i].allowed;
            r->too_strict += !v.allowed && r->verdicts[i].allowed;
        }
    }
    r->batched = 0;
    if (r->opt->decisions)
        check_output(stdout, "to standard output");
}

static void replay_one(run *r, const request *req)
{
    r->batch[r->batched++] = *req;
    if (r->batched == BATCH)
        decide_batch(r);
}

static bool more_refused(const key *list, uint32_t a, uint32_t b)
{
    return list[a].refused != list[b].refused ? list[a].refused > list[b].refused : a < b;
}

static void find_top(run *r)
{
    const key *list = r->in.keys.list;
    uint32_t number;
    size_t at;
    for (number = 0; number < r->in.keys.count; number++) {
        if (list[number].refused == 0 ||
            (r->top_count == TOP && !more_refused(list, number, r->top[TOP - 1])))
            continue;
        r->top_count += r->top_count < TOP;
        for (at = r->top_count - 1; at && more_refused(list, number, r->top[at - 1]); at--)
            r->top[at] = r->top[at - 1];
        r->top[at] = number;
    }
}

/* ---- suggesting ------------------------------------------------------------------------------ */

typedef struct records {
    request *list;  /* in order of time */
    uint32_t *next; /* number of the key's next record + 1 */
    size_t count, room;
    uint32_t *first, *last; /* of each key, number + 1 */
    uint64_t *total;        /* what each key costs */
    uint32_t *order;        /* keys, the costliest first */
    size_t keys, may_refuse;
} records;

static uint64_t add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static void records_read(records *all, input *in)
{
    request r;
    while (next_request(in, &r)) {
        if (all->count == all->room) {
            size_t room = all->room ? all->room * 2 : 4096;
            all->list = (request *)resize(FOR_RECORDS, all->list, all->room, room, sizeof r);
            all->next =
                (uint32_t *)resize(FOR_RECORDS, all->next, all->room, room, sizeof *all->next);
            all->room = room;
        }
        if (all->count >= UINT32_MAX - 1)
            fail(1, "--suggest can look at 4 billion requests at most");
        all->list[all->count++] = r;
    }
}

static const uint64_t *costliest; /* qsort has no argument for it */

static int by_cost(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (costliest[x] != costliest[y])
        return costliest[x] > costliest[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Links the records of each key. */
static void records_link(records *all, size_t keys)
{
    uint32_t i;
    all->keys = keys;
    all->first = (uint32_t *)resize(FOR_RECORDS, NULL, 0, keys + 1, sizeof *all->first);
    all->last = (uint32_t *)resize(FOR_RECORDS, NULL, 0, keys + 1, sizeof *all->last);
    all->order = (uint32_t *)resize(FOR_RECORDS, NULL, 0, keys + 1, sizeof *all->order);
    all->total = (uint64_t *)resize(FOR_RECORDS, NULL, 0, keys + 1, sizeof *all->total);
    memset(all->first, 0, (keys + 1) * sizeof *all->first);
    memset(all->total, 0, (keys + 1) * sizeof *all->total);
    for (i = 0; i < keys; i++)
        all->order[i] = i;
    for (i = 0; i < all->count; i++) {
        uint32_t k = all->list[i].key;
        if (all->first[k])
            all->next[all->last[k] - 1] = i + 1;
        else
            all->first[k] = i + 1;
        all->last[k] = i + 1;
        all->next[i] = 0;
        all->total[k] = add_capped(all->total[k], all->list[i].cost);
    }
    costliest = all->total;
    qsort(all->order, keys, sizeof *all->order, by_cost);
}

static void records_free(records *all)
{
    free(all->list);
    free(all->next);
    free(all->first);
    free(all->last);
    free(all->total);
    free(all->order);
}

static bool refuses_key(const records *all, uint32_t k, const ratelimit_limit *limit)
{
    ratelimit_bucket bucket = {0, 0};
    uint32_t i;
    for (i = all->first[k]; i; i = all->next[i - 1])
        if (!ratelimit_bucket_take(&bucket, limit, all->list[i - 1].cost, all->list[i - 1].time_ns,
                                   NULL))
            return true;
    return false;
}

/* How many keys limit refuses anything to; stops counting when it is too many. */
static size_t keys_it_refuses(const records *all, const ratelimit_limit *limit)
{
    size_t i, refused = 0;
    if (ratelimit_limit_check(limit) != RATELIMIT_OK)
        return all->may_refuse + 1;
    for (i = 0; i < all->keys && refused <= all->may_refuse; i++) {
        if (all->total[all->order[i]] <= limit->burst)
            break; /* nor any after it: they never empty the bucket */
        refused += refuses_key(all, all->order[i], limit);
    }
    return refused;
}

static uint64_t two_digits(size_t i)
{
    uint64_t value = 10 + i % 90;
    for (i /= 90; i; i--)
        value *= 10;
    return value;
}

/* The steps of bursts and of rates, these in tokens per day (1/h is 24, 1/m is 1440). */
#define BURSTS (9 + 12 * 90)
#define RATES  (23 + 59 + 12 * 90)

static uint64_t burst_step(size_t i)
{
    return i < 9 ? i + 1 : two_digits(i - 9);
}

static uint64_t rate_step(size_t i)
{
    if (i < 23)
        return i + 1;
    return i < 23 + 59 ? (i - 22) * 24 : two_digits(i - 23 - 59) * 144;
}

static ratelimit_limit step_limit(size_t rate, size_t burst)
{
    return ratelimit_limit_make(rate_step(rate), RATELIMIT_DAY, burst_step(burst));
}

/* What a key can have in a minute, in 1440ths of a token. */
static uint64_t minute_measure(size_t rate, size_t burst)
{
    return burst_step(burst) * 1440 + rate_step(rate);
}

static bool passes(const records *all, size_t rate, size_t burst)
{
    ratelimit_limit limit = step_limit(rate, burst);
    return keys_it_refuses(all, &limit) <= all->may_refuse;
}

/* For each burst: is there a rate that passes and beats the best so far? A lower rate never refuses
 * fewer keys, so the highest that would beat it answers that, and bisection finds the lowest that
 * passes. */
static bool suggest(const records *all, size_t *best_rate, size_t *best_burst)
{
    uint64_t best = UINT64_MAX;
    size_t burst, low, high, middle;
    for (burst = 0; burst < BURSTS && burst_step(burst) * 1440 < best; burst++) {
        for (high = RATES; high && minute_measure(high - 1, burst) >= best; high--)
            ;
        if (high == 0 || !passes(all, high - 1, burst))
            continue;
        for (low = 0, high--; low < high;) {
            middle = low + (high - low) / 2;
            if (passes(all, middle, burst))
                high = middle;
            else
                low = middle + 1;
        }
        best = minute_measure(high, burst);
        *best_rate = high;
        *best_burst = burst;
    }
    return best != UINT64_MAX;
}

/* As people write it: by the shortest period of which the rate is a whole number. */
static ratelimit_limit readable_limit(size_t rate, size_t burst)
{
    uint64_t per_day = rate_step(rate);
    static const uint64_t periods[] = {RATELIMIT_SECOND, RATELIMIT_MINUTE, RATELIMIT_HOUR,
                                       RATELIMIT_DAY};
    size_t i = 0;
    while (per_day % (RATELIMIT_DAY / periods[i]))
        i++;
    return ratelimit_limit_make(per_day / (RATELIMIT_DAY / periods[i]), periods[i],
                                burst_step(burst));
}

static uint64_t share_of(uint64_t count, uint64_t share)
{
    return count / SHARE_ONE * share + count % SHARE_ONE * share / SHARE_ONE;
}

static void run_suggest(run *r, options *opt, records *all)
{
    size_t rate = 0, burst = 0;
    records_read(all, &r->in);
    records_link(all, r->in.keys.count);
    all->may_refuse = (size_t)share_of(all->keys, opt->share);
    r->may_refuse = all->may_refuse;
    r->found = all->count > 0 && suggest(all, &rate, &burst);
    if (r->found) {
        r->suggested = readable_limit(rate, burst);
        r->suggested_refuses = keys_it_refuses(all, &r->suggested);
    }
    if (opt->limits == 0) {
        static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
        opt->limit[opt->limits++] = r->found ? r->suggested : unlimited;
    }
}

/* ---- showing: what all reports share --------------------------------------------------------- */

typedef struct label {
    char at[MAX_LIMITS * 84];
} label;

static label limits_label(const options *opt)
{
    label out;
    size_t i, len = 0;
    for (i = 0; i < opt->limits; i++) {
        len += (size_t)snprintf(out.at + len, sizeof out.at - len, "%s", i ? ", " : "");
        len += ratelimit_limit_format(&opt->limit[i], out.at + len, sizeof out.at - len);
    }
    return out;
}

static line_text key_label(const options *opt)
{
    static const char *const names[] = {"address", "path", "address and path"};
    line_text out;
    if (opt->key == KEY_FIELD)
        snprintf(out.at, sizeof out.at, "field %" PRIu64, opt->field);
    else
        snprintf(out.at, sizeof out.at, "%s", names[opt->key]);
    return out;
}

static line_text limit_text(const ratelimit_limit *limit)
{
    char buffer[80];
    line_text out;
    ratelimit_limit_format(limit, buffer, sizeof buffer);
    snprintf(out.at, sizeof out.at, "%.63s", buffer);
    return out;
}

static dating dating_of(const run *r)
{
    return r->in.without_year                 ? DATE_ONLY
           : r->last_ns < 366 * RATELIMIT_DAY ? NO_DATE
                                              : DATE_AND_YEAR;
}

/* "3 Mar 2026 14:00:00 to 3 Mar 2026 14:59:59 UTC" */
static label span_label(const run *r)
{
    label out;
    dating date = dating_of(r);
    snprintf(out.at, sizeof out.at, "%s to %s%s", time_text(r->first_ns, date).at,
             time_text(r->last_ns, date).at, date == DATE_AND_YEAR ? " UTC" : "");
    return out;
}

/* The width at which at most `most` bins, not finer than those of s, cover the time of s. */
static uint64_t tick_width(const series *s, uint64_t most)
{
    size_t i = s->width;
    uint64_t span = s->count * widths[s->width].ns;
    while (span / widths[i].ns > most && i + 1 < WIDTHS)
        i++;
    return widths[i].ns;
}

static line_text tick_label(uint64_t ns, uint64_t width, dating date)
{
    line_text out;
    moment m = moment_of(ns);
    unsigned hour = (unsigned)m.hour, minute = (unsigned)m.minute, second = (unsigned)m.second;
    const char *name = month_names + (m.month - 1) * 3;
    if (width < RATELIMIT_SECOND)
        snprintf(out.at, sizeof out.at, "%02u.%03u", second,
                 (unsigned)(m.part_ns / RATELIMIT_MILLISECOND));
    else if (date == NO_DATE)
        snprintf(out.at, sizeof out.at, "%s", time_text(ns, date).at);
    else if (width >= 364 * RATELIMIT_DAY)
        snprintf(out.at, sizeof out.at, "%u", (unsigned)m.year);
    else if (ns % RATELIMIT_DAY == 0)
        snprintf(out.at, sizeof out.at, "%u %.3s", (unsigned)m.day, name);
    else if (width < RATELIMIT_MINUTE)
        snprintf(out.at, sizeof out.at, "%02u:%02u:%02u", hour, minute, second);
    else
        snprintf(out.at, sizeof out.at, "%02u:%02u", hour, minute);
    return out;
}

/* 1, 2 or 5 times a power of ten, at least value. */
static uint64_t round_up(uint64_t value)
{
    uint64_t ten = 1;
    while (ten < value && ten <= UINT64_MAX / 100)
        ten *= 10;
    return value <= ten / 5 && ten >= 5 ? ten / 5 : value <= ten / 2 && ten >= 2 ? ten / 2 : ten;
}

/* ---- showing: on a terminal ------------------------------------------------------------------ */

#define CHART_COLUMNS 72
#define CHART_ROWS    10

typedef struct style {
    const char *allowed, *refused_color, *side, *corner, *floor, *tick, *off;
    const char *refused[9]; /* by eighths of a row, from nothing to all of it */
} style;

static const style ascii_style = {":", "",  "|", "+",
                                  "-", "+", "",  {" ", "_", "_", "_", "_", "#", "#", "#", "#"}};

#define UTF8_LINES "\342\224\202", "\342\224\224", "\342\224\200", "\342\224\264"
#define UTF8_EIGHTHS                                                                               \
  {                                                                                                \
    " ", "\342\226\201", "\342\226\202", "\342\226\203", "\342\226\204", "\342\226\205",           \
        "\342\226\206", "\342\226\207", "\342\226\210"                                             \
  }
static const style utf8_style = {"\342\226\221", "", UTF8_LINES, "", UTF8_EIGHTHS};
static const style color_style = {"\033[34m\342\226\210", "\033[31m", UTF8_LINES, "\033[0m",
                                  UTF8_EIGHTHS};

static const style *find_style(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *value = NULL, *term = getenv("TERM");
    size_t i;
    for (i = 0; i < 3 && (!value || !*value); i++)
        value = getenv(names[i]);
    if (!value || (!strstr(value, "UTF-8") && !strstr(value, "utf8") && !strstr(value, "UTF8")))
        return &ascii_style;
    return isatty(STDOUT_FILENO) == 1 && !getenv("NO_COLOR") && term && strcmp(term, "dumb") != 0
               ? &color_style
               : &utf8_style;
}

/* value in parts of the chart's height, rounded; what is not nothing is seen. */
static uint64_t parts_of(uint64_t value, uint64_t scale, unsigned count)
{
    uint64_t share = (uint64_t)((double)value * count / (double)scale + 0.5);
    return value && share == 0 ? 1 : share;
}

#define ALLOWED_CELL 9

/* What a bin shows in a row: ALLOWED_CELL, or refused in eighths on top of it, 0 for nothing. */
static uint64_t chart_cell(const bin *b, uint64_t row, uint64_t scale)
{
    uint64_t allowed = parts_of(b->allowed, scale, CHART_ROWS);
    uint64_t refused = parts_of(b->refused, scale, CHART_ROWS * 8);
    uint64_t below = row < allowed ? 0 : (row - allowed) * 8;
    uint64_t eighths = refused > below ? refused - below : 0;
    return row < allowed ? ALLOWED_CELL : eighths < 8 ? eighths : 8;
}

static void chart_row(const series *s, uint64_t row, uint64_t scale, size_t width,
                      const style *look)
{
    size_t i, end = s->count;
    while (end && chart_cell(&s->bins[end - 1], row, scale) == 0)
        end--;
    for (i = 0; i < end * width; i++) {
        uint64_t cell = chart_cell(&s->bins[i / width], row, scale);
        if (cell == ALLOWED_CELL)
            printf("%s%s", look->allowed, look->off);
        else
            printf("%s%s%s", look->refused_color, look->refused[cell], look->off);
    }
}

static void chart_axis(const series *s, size_t width, dating date, const style *look)
{
    uint64_t step = tick_width(s, 6);
    char labels[CHART_COLUMNS + 32];
    size_t i, end = 0;
    memset(labels, ' ', sizeof labels);
    printf("  %9s %s", "0", look->corner);
    for (i = 0; i < s->count * width; i++) {
        uint64_t at = bin_begin(s, i / width);
        bool tick = i % width == 0 && at % step == 0;
        if (tick && (end == 0 || i > end)) {
            line_text name = tick_label(at, step, date);
            memcpy(labels + i, name.at, strlen(name.at));
            end = i + strlen(name.at);
        }
        fputs(tick ? look->tick : look->floor, stdout);
    }
    printf("\n%13s%.*s\n", "", (int)end, labels);
}

static void print_chart(const run *r)
{
    static series s; /* 64 KiB: a copy, made coarser */
    const style *look = find_style();
    uint64_t scale, row;
    size_t width;
    s = r->series;
    narrow_to(&s, CHART_COLUMNS);
    width = CHART_COLUMNS / s.count < 4 ? CHART_COLUMNS / s.count : 4;
    scale = round_up(series_peak(&s));
    printf("\n  requests per %s     %s%s allowed   ", widths[s.width].name, look->allowed,
           look->off);
    printf("%s%s%s refused\n\n", look->refused_color, look->refused[8], look->off);
    for (row = CHART_ROWS; row--;) {
        bool named = row + 1 == CHART_ROWS || (row + 1 == CHART_ROWS / 2 && scale % 2 == 0);
        printf("  %9s %s", named ? commas(scale * (row + 1) / CHART_ROWS).at : "", look->side);
        chart_row(&s, row, scale, width, look);
        putchar('\n');
    }
    chart_axis(&s, width, dating_of(r), look);
}

/* "   the first is line 17 of access.log" */
static label first_bad(const input *in)
{
    label out;
    out.at[0] = 0;
    if (in->bad_lines)
        snprintf(out.at, sizeof out.at, "   the first is line %s%s%s",
                 commas(in->first_bad_line).at, in->source_count > 1 ? " of " : "",
                 in->source_count > 1 ? in->first_bad_file : "");
    return out;
}

static void print_counts(const run *r)
{
    printf("  requests      %13s", commas(r->requests).at);
    if (r->requests)
        printf("   %s", span_label(r).at);
    putchar('\n');
    printf("  keys          %13s\n", commas(r->in.keys.count).at);
    printf("  allowed       %13s\n", commas(r->requests - r->refused).at);
    printf("  refused       %13s   %s of requests\n", commas(r->refused).at,
           percent(r->refused, r->requests).at);
    printf("  keys refused  %13s   %s of keys, at least once\n", commas(r->keys_refused).at,
           percent(r->keys_refused, r->in.keys.count).at);
    if (r->never)
        printf("  above burst   %13s   of refused: they cost more than a burst, waiting does not "
               "help\n",
               commas(r->never).at);
    printf("  bad lines     %13s%s\n", commas(r->in.bad_lines).at, first_bad(&r->in).at);
}

static void print_top(const run *r)
{
    size_t i;
    if (r->top_count)
        printf("\n  most refused%44srefused   of requests\n", "");
    for (i = 0; i < r->top_count; i++) {
        const key *k = &r->in.keys.list[r->top[i]];
        printf("  ");
        printf("%*s", (int)(50 - put_text(stdout, key_text(k), 50, PLAIN)), "");
        printf(" %12s %13s\n", commas(k->refused).at, commas(k->requests).at);
    }
}

static void print_suggestion(const run *r)
{
    uint64_t minute;
    printf("\n  the tightest limit that refuses anything to no more than %s of %s keys (%s)\n",
           commas(r->may_refuse).at, commas(r->in.keys.count).at,
           percent(r->opt->share, SHARE_ONE).at);
    if (!r->found) {
        printf("      none found\n");
        return;
    }
    minute =
        r->suggested.burst + r->suggested.tokens * (RATELIMIT_DAY / r->suggested.per_ns) / 1440;
    printf("\n--limit \"%s\"\n\n", limit_text(&r->suggested).at);
    printf("      refuses something to %s of them, lets one have at most %s tokens in a minute\n",
           commas(r->suggested_refuses).at, commas(minute).at);
}

static void print_exactness(const run *r)
{
    ratelimit_table_counts exact = decider_counts(&r->exact, r->last_ns);
    if (exact.evicted)
        printf("  NOT EXACT: %s keys were forced out of the tables\n", commas(exact.evicted).at);
    else
        printf("  exact: no key was forced out of the tables\n");
    if (r->small.fixed) {
        ratelimit_table_counts small = decider_counts(&r->small, r->last_ns);
        printf("  a table for %s keys (%s, %s places): %s keys forced out, %s refused for want of "
               "room;\n",
               commas(r->opt->table_keys).at, bytes_text(small.bytes).at, commas(small.capacity).at,
               commas(small.evicted).at, commas(small.refused).at);
        printf(
            "      it allows %s requests that are refused above, and refuses %s that are allowed\n",
            commas(r->too_lenient).at, commas(r->too_strict).at);
    }
}

static void print_notes(FILE *out, const run *r)
{
    const input *in = &r->in;
    if (in->disordered)
        fprintf(out,
                "  %s requests stood out of order, by up to %" PRIu64
                ".%03u s; %s came too late for --reorder %" PRIu64 "\n",
                commas(in->disordered).at, in->disorder_ns / RATELIMIT_SECOND,
                (unsigned)(in->disorder_ns / RATELIMIT_MILLISECOND % 1000),
                in->too_late ? commas(in->too_late).at : "none", r->opt->reorder);
    else if (in->too_late)
        fprintf(out, "  %s requests came too late to be taken in order of time\n",
                commas(in->too_late).at);
    if (in->without_year)
        fprintf(out,
                "  the log has no years: its first line is taken to be of %" PRIu64 " (--year)\n",
                r->opt->year);
    if (r->requests == 0 && in->bad_lines)
        fprintf(out, "  no line could be read as a request with a key by %s (see --help)\n",
                key_label(r->opt).at);
}

/* --decisions keeps standard output for itself. */
static void print_decision_notes(const run *r)
{
    progress_end();
    if (r->in.bad_lines)
        fprintf(stderr, "  bad lines: %s%s\n", commas(r->in.bad_lines).at, first_bad(&r->in).at);
    print_notes(stderr, r);
}

static void print_costs(const run *r)
{
    uint64_t whole = r->whole_ns ? r->whole_ns : 1, deciding = r->deciding_ns ? r->deciding_ns : 1,
             memory = 0;
    size_t i;
    for (i = 0; i < MEMORY_KINDS; i++)
        memory += memory_used[i];
    printf("  memory: %s (tables %s, ", bytes_text(memory).at,
           bytes_text(memory_used[FOR_TABLES]).at);
    printf("keys %s, reading and sorting %s", bytes_text(memory_used[FOR_KEYS]).at,
           bytes_text(memory_used[FOR_READING]).at);
    if (memory_used[FOR_RECORDS])
        printf(", records %s", bytes_text(memory_used[FOR_RECORDS]).at);
    printf(")\n  %s decisions per second; ",
           commas((uint64_t)((double)r->requests * 1e9 / (double)deciding)).at);
    printf("%s requests per second with reading and sorting\n",
           commas((uint64_t)((double)r->requests * 1e9 / (double)whole)).at);
}

static void print_report(const run *r)
{
    printf("%s per %s%s\n\n", limits_label(r->opt).at, key_label(r->opt).at,
           r->opt->cost_bytes ? ", in bytes" : "");
    print_counts(r);
    print_top(r);
    if (r->requests)
        print_chart(r);
    if (r->opt->suggest)
        print_suggestion(r);
    putchar('\n');
    print_exactness(r);
    print_notes(stdout, r);
    print_costs(r);
}

/* ---- showing: JSON --------------------------------------------------------------------------- */

static void json_counts(const run *r)
{
    const input *in = &r->in;
    printf("  \"requests\": %" PRIu64 ",\n  \"keys\": %zu,\n", r->requests, in->keys.count);
    printf("  \"allowed\": %" PRIu64 ",\n  \"refused\": %" PRIu64 ",\n", r->requests - r->refused,
           r->refused);
    printf("  \"share_refused\": %.6f,\n",
           r->requests ? (double)r->refused / (double)r->requests : 0.0);
    printf("  \"keys_refused\": %" PRIu64 ",\n  \"above_burst\": %" PRIu64 ",\n", r->keys_refused,
           r->never);
    printf("  \"bad_lines\": %" PRIu64 ",\n", in->bad_lines);
    if (in->bad_lines) {
        printf("  \"first_bad_line\": %" PRIu64 ",\n  \"first_bad_file\": \"", in->first_bad_line);
        put_text(stdout, as_text(in->first_bad_file), SIZE_MAX / 2, JSON);
        printf("\",\n");
    }
    printf("  \"out_of_order\": %" PRIu64 ",\n  \"out_of_order_ns\": %" PRIu64
           ",\n  \"too_late\": %" PRIu64 ",\n",
           in->disordered, in->disorder_ns, in->too_late);
    if (in->without_year)
        printf("  \"assumed_year\": %" PRIu64 ",\n", r->opt->year);
    if (r->requests)
        printf("  \"first_time\": \"%s\",\n  \"last_time\": \"%s\",\n", iso_time(r->first_ns).at,
               iso_time(r->last_ns).at);
}

static void json_lists(const run *r)
{
    static series s;
    size_t i;
    s = r->series;
    narrow_to(&s, 1000);
    printf("  \"most_refused\": [");
    for (i = 0; i < r->top_count; i++) {
        const key *k = &r->in.keys.list[r->top[i]];
        printf("%s\n    {\"key\": \"", i ? "," : "");
        put_text(stdout, key_text(k), SIZE_MAX / 2, JSON);
        printf("\", \"refused\": %" PRIu64 ", \"requests\": %" PRIu64 "}", k->refused, k->requests);
    }
    printf("%s],\n  \"bin_ns\": %" PRIu64 ",\n  \"bins\": [", r->top_count ? "\n  " : "",
           widths[s.width].ns);
    for (i = 0; i < s.count; i++)
        printf("%s\n    {\"time\": \"%s\", \"allowed\": %" PRIu64 ", \"refused\": %" PRIu64 "}",
               i ? "," : "", iso_time(bin_begin(&s, i)).at, s.bins[i].allowed, s.bins[i].refused);
    printf("%s],\n", s.count ? "\n  " : "");
}

static void json_table(const char *name, const run *r, const decider *d)
{
    ratelimit_table_counts counts = decider_counts(d, r->last_ns);
    printf("  \"%s\": {\"capacity\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"evicted\": %" PRIu64
           ", \"refused_for_room\": %" PRIu64,
           name, counts.capacity, counts.bytes, counts.evicted, counts.refused);
    if (d->fixed)
        printf(", \"allowed_wrongly\": %" PRIu64 ", \"refused_wrongly\": %" PRIu64, r->too_lenient,
               r->too_strict);
    printf("},\n");
}

static void print_json(const run *r)
{
    uint64_t memory = 0;
    size_t i;
    printf("{\n  \"limits\": [");
    for (i = 0; i < r->opt->limits; i++)
        printf("%s\"%s\"", i ? ", " : "", limit_text(&r->opt->limit[i]).at);
    printf("],\n  \"key\": \"%s\",\n  \"cost\": \"%s\",\n", key_label(r->opt).at,
           r->opt->cost_bytes ? "bytes" : "requests");
    json_counts(r);
    json_lists(r);
    json_table("table", r, &r->exact);
    if (r->small.fixed)
        json_table("small_table", r, &r->small);
    if (r->opt->suggest && r->found)
        printf("  \"suggested\": \"%s\",\n  \"suggested_keys_refused\": %" PRIu64 ",\n",
               limit_text(&r->suggested).at, r->suggested_refuses);
    else if (r->opt->suggest)
        printf("  \"suggested\": null,\n");
    for (i = 0; i < MEMORY_KINDS; i++)
        memory += memory_used[i];
    printf("  \"memory_bytes\": %" PRIu64 ",\n  \"deciding_ns\": %" PRIu64
           ",\n  \"whole_ns\": %" PRIu64 ",\n",
           memory, r->deciding_ns, r->whole_ns);
    printf("  \"decisions_per_second\": %.0f\n}\n",
           (double)r->requests * 1e9 / (double)(r->deciding_ns ? r->deciding_ns : 1));
}

/* ---- showing: a picture ---------------------------------------------------------------------- */

#define SVG_WIDTH 960.0
#define SVG_LEFT  72.0
#define SVG_RIGHT 936.0
#define SVG_TOP   116.0
#define SVG_FLOOR 376.0
#define SVG_ROW   27.0

static const char svg_style[] =
    "<style>\n"
    "text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu "
    "Sans',sans-serif;fill:#3d4852}\n"
    ".title{font-size:21px;font-weight:600;fill:#12181f}\n"
    ".head{font-size:15px;font-weight:600;fill:#12181f}\n"
    ".mono{font:12.5px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}\n"
    ".end{text-anchor:end}.mid{text-anchor:middle}\n"
    ".ground{fill:#ffffff}.grid{stroke:#e3e8ee}.axis{stroke:#8795a4}\n"
    ".allowed{fill:#7fb0e6}.refused{fill:#d6453d}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#b9c4cf}.title,.head{fill:#f1f5f9}\n"
    ".ground{fill:#12171d}.grid{stroke:#29323c}.axis{stroke:#7b8896}\n"
    ".allowed{fill:#3f76b5}.refused{fill:#ff6b5e}\n"
    "}\n"
    "</style>\n";

static void svg_rect(FILE *f, const char *look, double x, double y, double width, double height)
{
    fprintf(f, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", look,
            x, y, width, height);
}

static void svg_line(FILE *f, const char *look, double x1, double y1, double x2, double y2)
{
    fprintf(f, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", look, x1,
            y1, x2, y2);
}

static void svg_text(FILE *f, const char *look, double x, double y, const char *what)
{
    fprintf(f, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", look, x, y);
    put_text(f, as_text(what), SIZE_MAX / 2, XML);
    fputs("</text>\n", f);
}

static void svg_head(FILE *f, const run *r, double height)
{
    label title, facts;
    snprintf(title.at, sizeof title.at, "%.1200s per %s", limits_label(r->opt).at,
             key_label(r->opt).at);
    snprintf(facts.at, sizeof facts.at, "%s of %s requests refused (%s), of %s of %s keys",
             commas(r->refused).at, commas(r->requests).at, percent(r->refused, r->requests).at,
             commas(r->keys_refused).at, commas(r->in.keys.count).at);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\" role=\"img\" aria-labelledby=\"t d\">\n",
            SVG_WIDTH, height, SVG_WIDTH, height);
    fprintf(f, "<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n%s", title.at, facts.at,
            svg_style);
    svg_rect(f, "ground", 0, 0, SVG_WIDTH, height);
    if (strlen(title.at) > 70)
        strcpy(title.at + 67, "...");
    svg_text(f, "title", 24, 40, title.at);
    svg_text(f, "", 24, 64, facts.at);
    svg_text(f, "", 24, 84, r->requests ? span_label(r).at : "no requests");
}

static void svg_grid(FILE *f, const series *s, dating date, uint64_t step, uint64_t top)
{
    double bar = (SVG_RIGHT - SVG_LEFT) / (double)s->count, next_label = 0;
    uint64_t value, width = tick_width(s, 10);
    size_t i;
    label name;
    for (value = 0; value <= top; value += step) {
        double y = SVG_FLOOR - (SVG_FLOOR - SVG_TOP) * (double)value / (double)top;
        svg_line(f, value ? "grid" : "axis", SVG_LEFT, y, SVG_RIGHT, y);
        svg_text(f, "end", SVG_LEFT - 8, y + 4.5, commas(value).at);
    }
    for (i = 0; i < s->count; i++) {
        double x = SVG_LEFT + bar * (double)i;
        if (bin_begin(s, i) % width || x < next_label)
            continue;
        svg_line(f, "axis", x, SVG_FLOOR, x, SVG_FLOOR + 5);
        svg_text(f, x < SVG_RIGHT - 20 ? "mid" : "end", x, SVG_FLOOR + 20,
                 tick_label(bin_begin(s, i), width, date).at);
        next_label = x + 56;
    }
    snprintf(name.at, sizeof name.at, "requests per %s", widths[s->width].name);
    svg_text(f, "end", SVG_RIGHT - 180, 84, name.at);
    svg_rect(f, "allowed", SVG_RIGHT - 156, 73, 12, 12);
    svg_text(f, "", SVG_RIGHT - 138, 84, "allowed");
    svg_rect(f, "refused", SVG_RIGHT - 72, 73, 12, 12);
    svg_text(f, "", SVG_RIGHT - 54, 84, "refused");
}

static void svg_chart(FILE *f, const run *r)
{
    static series s;
    uint64_t step, top;
    size_t i;
    double bar, unit;
    s = r->series;
    narrow_to(&s, 180);
    step = round_up((series_peak(&s) + 4) / 5);
    top = (series_peak(&s) + step - 1) / step * step;
    bar = (SVG_RIGHT - SVG_LEFT) / (double)s.count;
    unit = (SVG_FLOOR - SVG_TOP) / (double)top;
    svg_grid(f, &s, dating_of(r), step, top);
    for (i = 0; i < s.count; i++) {
        double x = SVG_LEFT + bar * (double)i, allowed = unit * (double)s.bins[i].allowed,
               refused = unit * (double)s.bins[i].refused;
        double gap = bar > 4 ? 1 : 0;
        if (s.bins[i].allowed + s.bins[i].refused == 0)
            continue;
        fprintf(f, "<g><title>%s: %s allowed, ", time_text(bin_begin(&s, i), dating_of(r)).at,
                commas(s.bins[i].allowed).at);
        fprintf(f, "%s refused</title>\n", commas(s.bins[i].refused).at);
        svg_rect(f, "allowed", x, SVG_FLOOR - allowed, bar - gap, allowed);
        if (s.bins[i].refused)
            svg_rect(f, "refused", x, SVG_FLOOR - allowed - (refused > 1.5 ? refused : 1.5),
                     bar - gap, refused > 1.5 ? refused : 1.5);
        fputs("</g>\n", f);
    }
}

static void svg_top(FILE *f, const run *r)
{
    const key *list = r->in.keys.list;
    uint64_t most = 1;
    double y = SVG_FLOOR + 64, left = 330, right = SVG_RIGHT - 130;
    size_t i;
    svg_text(f, "head", 24, y, r->top_count ? "Most refused keys" : "No key was refused anything");
    for (i = 0; i < r->top_count; i++)
        if (list[r->top[i]].requests > most)
            most = list[r->top[i]].requests;
    for (i = 0; i < r->top_count; i++) {
        const key *k = &list[r->top[i]];
        double unit = (right - left) / (double)most, refused = unit * (double)k->refused;
        label count;
        y += SVG_ROW;
        fputs("<text class=\"mono end\" ", f);
        fprintf(f, "x=\"%.1f\" y=\"%.1f\">", left - 12, y + 4);
        put_text(f, key_text(k), 39, XML);
        fputs("</text>\n", f);
        svg_rect(f, "refused", left, y - 8, refused > 1 ? refused : 1, 16);
        svg_rect(f, "allowed", left + refused, y - 8, unit * (double)(k->requests - k->refused),
                 16);
        snprintf(count.at, sizeof count.at, "%s of %s", commas(k->refused).at,
                 commas(k->requests).at);
        svg_text(f, "", left + unit * (double)k->requests + 8, y + 4.5, count.at);
    }
}

static void write_svg(const run *r)
{
    FILE *f = fopen(r->opt->svg, "w");
    double height = SVG_FLOOR + 64 + SVG_ROW * (double)r->top_count + 32;
    if (!f)
        fail(1, "cannot write %s: %s", r->opt->svg, strerror(errno));
    svg_head(f, r, height);
    if (r->requests)
        svg_chart(f, r);
    svg_top(f, r);
    fputs("</svg>\n", f);
    check_output(f, r->opt->svg);
    if (fclose(f) != 0)
        fail(1, "cannot write %s: %s", r->opt->svg, strerror(errno));
}

/* ---- options --------------------------------------------------------------------------------- */

static const char usage[] =
    "usage: replay --limit LIMIT [OPTION]... [FILE]...        what would this limit have done to "
    "my traffic?\n"
    "       replay --suggest [OPTION]... [FILE]...           which limit would do?\n"
    "\n"
    "  --limit LIMIT         \"10/m burst 20\", \"100/s\", \"1000/d window\"; several: all must "
    "pass\n"
    "  --key ip|path|ip+path|N   what is limited: address (default), path, both, or the line's "
    "field N\n"
    "  --ip-prefix N         IPv6 addresses with the same first N bits are one (default 128)\n"
    "  --ipv4-prefix N       the same for IPv4 (default 32)\n"
    "  --cost bytes          a request costs its answer's size instead of 1\n"
    "  --table-keys N        also try a table made for N keys\n"
    "  --full POLICY         what it does when full: evict, last-seen, inherit, refuse\n"
    "  --suggest[=SHARE]     find the tightest limit that touches at most SHARE of the keys "
    "(0.1%)\n"
    "  --decisions           print LINE ALLOWED REMAINING RETRY_AFTER_NS for each request\n"
    "  --json                print the report as JSON\n"
    "  --svg FILE            draw it\n"
    "  --reorder N           how many requests late a line may come (default 65536)\n"
    "  --year N              year of the first line of a log without years (default 2000)\n"
    "  --seed N              seed of the table (default 1)\n"
    "\n"
    "Reads Common and Combined Log Format, \"TIME KEY [COST]\" and ssh's \"Dec 10 06:55:48 ADDRESS "
    "...\" from files\n"
    "or standard input. Exit code: 0 done, 1 can't read or write, 2 wrong options.\n";

static uint64_t number_option(const char *name, const char *value, uint64_t low, uint64_t high)
{
    text t = as_text(value);
    uint64_t out = 0;
    if (!number(&t, 1, 20, &out) || t.len || out < low || out > high)
        fail(2, "%s: \"%s\" is no whole number from %" PRIu64 " to %" PRIu64, name, value, low,
             high);
    return out;
}

static void limit_option(options *opt, const char *value)
{
    size_t fault = 0;
    ratelimit_status status;
    if (opt->limits == MAX_LIMITS)
        fail(2, "--limit: more than %d", MAX_LIMITS);
    status = ratelimit_limit_parse_n(&opt->limit[opt->limits], value, strlen(value), &fault);
    if (status != RATELIMIT_OK) {
        fprintf(stderr, "replay: --limit: %s, at position %zu:\n    ",
                status == RATELIMIT_SYNTAX ? "that is no limit" : "that limit is zero or too large",
                fault + 1);
        put_text(stderr, as_text(value), SIZE_MAX / 2, PLAIN);
        fprintf(stderr, "\n    %*s^\n", (int)fault, "");
        fail(2, "a limit is TOKENS/PERIOD [burst N] or TOKENS/PERIOD window, such as \"10/m burst "
                "20\"");
    }
    opt->limits++;
}

/* "0.1%" or "0.001" */
static bool share_value(const char *value, uint64_t *share)
{
    text t = as_text(value);
    uint64_t whole, part;
    bool percents;
    if (!number(&t, 1, 3, &whole) || !fraction(&t, &part))
        return false;
    percents = skip(&t, '%');
    *share = whole * SHARE_ONE + part;
    if (percents)
        *share /= 100;
    return t.len == 0 && *share <= SHARE_ONE;
}

static void share_option(options *opt, const char *value)
{
    if (!share_value(value, &opt->share))
        fail(2, "--suggest: \"%s\" is no share, such as \"0.1%%\" or \"0.001\"", value);
}

static void key_option(options *opt, const char *value)
{
    static const char *const names[] = {"ip", "path", "ip+path"};
    size_t i;
    for (i = 0; i < 3; i++)
        if (strcmp(value, names[i]) == 0)
            opt->key = (key_kind)i;
    if (is_digit(value[0])) {
        opt->key = KEY_FIELD;
        opt->field = number_option("--key", value, 1, MAX_LINE);
    } else if (strcmp(value, names[opt->key < KEY_FIELD ? opt->key : 0]) != 0) {
        fail(2, "--key: \"%s\" is none of ip, path, ip+path and a field's number", value);
    }
}

static void full_option(options *opt, const char *value)
{
    static const char *const names[] = {"evict", "last-seen", "inherit", "refuse"};
    static const ratelimit_full policies[] = {RATELIMIT_EVICT, RATELIMIT_EVICT_LAST_SEEN,
                                              RATELIMIT_INHERIT, RATELIMIT_REFUSE};
    size_t i;
    for (i = 0; i < 4; i++)
        if (strcmp(value, names[i]) == 0) {
            opt->when_full = policies[i];
            return;
        }
    fail(2, "--full: \"%s\" is none of evict, last-seen, inherit, refuse", value);
}

/* Options without a value. */
static bool flag(options *opt, const char *name)
{
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        fputs(usage, stdout);
        check_output(stdout, "to standard output");
        exit(0);
    }
    if (strcmp(name, "--suggest") == 0)
        opt->suggest = true;
    else if (strcmp(name, "--decisions") == 0)
        opt->decisions = true;
    else if (strcmp(name, "--json") == 0)
        opt->json = true;
    else
        return false;
    return true;
}

static bool named(const char *name, const char *wanted, size_t len)
{
    return strlen(wanted) == len && strncmp(name, wanted, len) == 0;
}

static bool option_with_value(options *opt, const char *name, size_t len, const char *value)
{
    if (named(name, "--limit", len))
        limit_option(opt, value);
    else if (named(name, "--key", len))
        key_option(opt, value);
    else if (named(name, "--full", len))
        full_option(opt, value);
    else if (named(name, "--svg", len))
        opt->svg = value;
    else if (named(name, "--ip-prefix", len))
        opt->ipv6_prefix = number_option("--ip-prefix", value, 0, 128);
    else if (named(name, "--ipv4-prefix", len))
        opt->ipv4_prefix = number_option("--ipv4-prefix", value, 0, 32);
    else if (named(name, "--table-keys", len))
        opt->table_keys = number_option("--table-keys", value, 1, UINT32_MAX);
    else if (named(name, "--reorder", len))
        opt->reorder = number_option("--reorder", value, 1, 16777216);
    else if (named(name, "--year", len))
        opt->year = number_option("--year", value, 1970, 2500);
    else if (named(name, "--seed", len))
        opt->seed = number_option("--seed", value, 1, UINT64_MAX);
    else if (named(name, "--cost", len) && strcmp(value, "bytes") == 0)
        opt->cost_bytes = true;
    else if (named(name, "--cost", len))
        fail(2, "--cost: \"%s\" is not bytes", value);
    else
        return false;
    return true;
}

static bool takes_value(const char *name)
{
    static const char *const names[] = {"--limit",     "--key",         "--full",       "--svg",
                                        "--ip-prefix", "--ipv4-prefix", "--table-keys", "--reorder",
                                        "--year",      "--seed",        "--cost"};
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Reads one option, its value from the next argument if not after "=". Returns how many it used. */
static int read_option(options *opt, char **argv)
{
    const char *name = argv[0], *equals = strchr(name, '=');
    uint64_t share;
    if (equals && named(name, "--suggest", (size_t)(equals - name))) {
        opt->suggest = true;
        share_option(opt, equals + 1);
        return 1;
    }
    if (equals && option_with_value(opt, name, (size_t)(equals - name), equals + 1))
        return 1;
    if (flag(opt, name)) {
        if (opt->suggest && strcmp(name, "--suggest") == 0 && argv[1] &&
            share_value(argv[1], &share)) {
            opt->share = share;
            return 2;
        }
        return 1;
    }
    if (!takes_value(name))
        fail(2, "unknown option \"%s\" (see --help)", name);
    if (!argv[1])
        fail(2, "%s: a value is missing", name);
    option_with_value(opt, name, strlen(name), argv[1]);
    return 2;
}

static void read_options(options *opt, int argc, char **argv)
{
    bool only_files = false;
    size_t i, inputs = 0;
    int at;
    for (at = 1; at < argc;) {
        if (!only_files && strcmp(argv[at], "--") == 0) {
            only_files = true;
            at++;
        } else if (!only_files && argv[at][0] == '-' && argv[at][1]) {
            at += read_option(opt, argv + at);
        } else {
            opt->files[opt->file_count++] = argv[at++];
        }
    }
    for (i = 0; i < opt->file_count; i++)
        inputs += strcmp(opt->files[i], "-") == 0;
    if (inputs > 1)
        fail(2, "standard input can be read only once");
    if (opt->limits == 0 && !opt->suggest)
        fail(
            2,
            "a limit is missing: --limit \"10/m burst 20\", or --suggest to find one (see --help)");
    if (opt->decisions && opt->json)
        fail(2, "--decisions and --json both want standard output");
}

/* ---- main ------------------------------------------------------------------------------------ */

static void replay(run *r, options *opt)
{
    uint64_t begin = ratelimit_clock_ns();
    records all;
    request req;
    size_t i;
    memset(&all, 0, sizeof all);
    r->opt = opt;
    open_input(&r->in, opt);
    if (opt->suggest)
        run_suggest(r, opt, &all);
    decider_init(&r->exact, opt, false);
    if (opt->table_keys)
        decider_init(&r->small, opt, true);
    for (i = 0; i < all.count; i++)
        replay_one(r, &all.list[i]);
    while (!opt->suggest && next_request(&r->in, &req))
        replay_one(r, &req);
    decide_batch(r);
    r->whole_ns = ratelimit_clock_ns() - begin;
    records_free(&all);
    find_top(r);
    progress_end();
}

int main(int argc, char **argv)
{
    static run r;
    static options opt;
    opt.files = (char **)resize(FOR_READING, NULL, 0, (size_t)argc, sizeof *opt.files);
    opt.ipv4_prefix = 32;
    opt.ipv6_prefix = 128;
    opt.reorder = 65536;
    opt.year = 2000;
    opt.seed = 1;
    opt.share = SHARE_ONE / 1000;
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is reported, as a full disk is */
    read_options(&opt, argc, argv);
    replay(&r, &opt);
    if (opt.svg)
        write_svg(&r);
    if (opt.json)
        print_json(&r);
    else if (!opt.decisions)
        print_report(&r);
    else
        print_decision_notes(&r);
    check_output(stdout, "to standard output");
    return 0;
}

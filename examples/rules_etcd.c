/* rules_etcd.c - rules kept in etcd, replaced while they are in use

   What it shows: a program whose limits are records in etcd, one key for each rule,

       /config/{env}/{service}/ratelimit/{rule}
       {"rate":10.0,"capacity":20,"burst":5,"window":"1s","description":"calls of the API"}

   read at the start, watched, and loaded with ratelimit_rules_load whenever one changes: threads
   that decide meanwhile never wait for it, and what a key has spent stays spent. Speaks to etcd's
   JSON gateway (etcd 3.4 and later) through libcurl.

       Package: etcd-server etcd-client libcurl4-openssl-dev libcjson-dev
       Build: cc -std=c99 -O2 -I. examples/rules_etcd.c -o rules_etcd -lcurl -lcjson -pthread

       etcd &
       etcdctl put /config/dev/api/ratelimit/login '{"rate":5,"capacity":20,"window":"1m"}'
       ./rules_etcd --env dev --service api --once
       yes 'login|ann' | head -25 | ./rules_etcd --env dev --service api
       ./rules_etcd --env dev --service api --load 2 60 'login|ann'    (and change the rule)
       ./rules_etcd --help

   THE RECORD
       rate         tokens per window. A decimal number, taken exactly as it is written: 0.1 is one
                    per ten windows, not the double next to it. No exponent.
       window       the period of rate, "1s" if missing: a number and ns, us, ms, s, m, h, d or w.
                    Readers that take rate as tokens per second whatever window says agree with
                    this one as long as it is "1s".
       capacity     the size of the bucket: what ratelimit.h calls burst.
       burst        not added to capacity. A record that has both means a bucket of capacity, which
                    is all that may come at once: token buckets by such records look at rate and
                    capacity only. So it may not be above capacity. In a record without capacity it
                    is the bucket's size, as for Go's rate.Limiter.
       description  for people.
   So the record above is the limit "10/s burst 20". Anything else in a record, or a number that
   does not fit, breaks it: a misspelt member would mean another limit than its author thinks.

   A BROKEN RECORD is refused and reported, with its key. Its rule stays as it was; if there was
   none it has none, and "default" applies. Other rules are replaced all the same. --once exits with
   1 if a record is broken: a test to run before a change goes out.

   WITHOUT ETCD the rules stay as they are. Each connection begins with reading all records, then
   watches from the revision after: no change is missed or taken twice, a compacted history does no
   harm, nor a cluster restored from a backup, which counts its revisions anew. Before etcd has
   answered at all, --default LIMIT decides; without that option, and for names that no rule
   matches, the answer is no.

   TO COPY IT: record_limit turns JSON into a limit; struct store is the set of rules; etcd_run is
   the thread that keeps it. For TLS set CURLOPT_CAINFO, CURLOPT_SSLCERT and CURLOPT_SSLKEY in
   etcd_post. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include <cjson/cJSON.h>
#include <curl/curl.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_RULES = 1024,
    MAX_KEYS = 100000,     /* with tokens spent at once */
    MAX_PREFIX = 256,      /* bytes of /config/{env}/{service}/ratelimit/ */
    MAX_ANSWER = 16 << 20, /* bytes of one answer of etcd */
    MAX_URL = 1000,
    SHOWN = 512,            /* bytes of a key that are printed, and a NUL */
    MAX_THREADS = 64,       /* of a load */
    FIRST_WAIT_S = 2,       /* for the first rules */
    BACK_OFF_FIRST_MS = 50, /* doubled with each failure */
    BACK_OFF_MAX_MS = 5000
};

static void say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("rules_etcd: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

/* Bytes from outside for a terminal: what is not printable ASCII becomes "?". */
static const char *printable(const char *text, size_t len, char out[SHOWN])
{
    size_t i;
    for (i = 0; i < len && i < SHOWN - 1; i++)
        out[i] = (char)(text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
    out[i] = 0;
    return out;
}

/* ---- a record as a limit --------------------------------------------------------------------- */

enum { RATE, CAPACITY, BURST, WINDOW, DESCRIPTION, MEMBERS };
static const char *const member_names[] = {"rate", "capacity", "burst", "window", "description"};

typedef struct span {
    const char *at;
    int len;
} span;

static const char *skip_white(const char *at)
{
    while (*at && (unsigned char)*at <= ' ')
        at++;
    return at;
}

/* The number of a member as it is written, for cJSON keeps only a double of it. json has been
 * parsed and holds nothing nested. len 0: not found (a name written with escapes is not). */
static span number_text(const char *json, const char *name)
{
    const char *at, *from;
    span number = {"", 0};
    for (at = json; *at; at++) {
        if (*at != '"')
            continue;
        for (from = ++at; *at != '"'; at++)
            at += *at == '\\';
        if ((size_t)(at - from) != strlen(name) || memcmp(from, name, strlen(name)) != 0)
            continue;
        from = skip_white(at + 1);
        if (*from != ':') /* a text that is no name */
            continue;
        number.at = skip_white(from + 1);
        number.len = (int)strspn(number.at, "0123456789.+-eE");
        break;
    }
    return number;
}

/* Sorts the members of a record by name, checks their types. NULL, or what is wrong. */
static const char *record_members(const cJSON *root, const cJSON *members[MEMBERS], char why[128])
{
    const cJSON *item;
    char name[SHOWN];
    int i;
    if (!cJSON_IsObject(root))
        return "not a JSON object";
    cJSON_ArrayForEach(item, root)
    {
        for (i = 0; i < MEMBERS && strcmp(item->string, member_names[i]) != 0; i++)
            ;
        printable(item->string, strlen(item->string), name);
        snprintf(why, 128, "\"%.40s\" %s", name,
                 i == MEMBERS ? "is not part of a rule"
                 : members[i] ? "comes twice"
                 : i < WINDOW ? "is not a number"
                              : "is not a text");
        if (i == MEMBERS || members[i] ||
            !(i < WINDOW ? cJSON_IsNumber(item) : cJSON_IsString(item)))
            return why;
        members[i] = item;
    }
    if (!members[RATE])
        return "\"rate\" is missing";
    return members[CAPACITY] || members[BURST] ? NULL : "\"capacity\" is missing";
}

static bool whole_number(span text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text.at, &end, 10);
    return *text.at >= '0' && *text.at <= '9' && end == text.at + text.len && !errno;
}

/* The limit is put together as text: ratelimit_limit_parse takes decimals exactly, knows all
 * bounds, and says where it stopped. */
static const char *make_limit(span rate, const char *window, span size, const char *size_name,
                              ratelimit_limit *out, char why[128])
{
    char text[192];
    size_t wrong;
    ratelimit_status status;
    int len = snprintf(text, sizeof text, "%.*s/%s burst %.*s", rate.len, rate.at, window, size.len,
                       size.at);
    if (strspn(window, "0123456789.nusmhdw") != strlen(window) || len < 0 ||
        (size_t)len >= sizeof text)
        return "\"window\" is not a period like 1s, 500ms or 1h";
    status = ratelimit_limit_parse_n(out, text, (size_t)len, &wrong);
    if (status == RATELIMIT_OK)
        return NULL;
    if (wrong > (size_t)rate.len && wrong <= (size_t)rate.len + 1 + strlen(window))
        return "\"window\" is not a period like 1s, 500ms or 1h";
    snprintf(why, 128, "\"%s\" %s", wrong <= (size_t)rate.len ? "rate" : size_name,
             status == RATELIMIT_BAD_LIMIT ? "is 0 or does not fit"
             : wrong <= (size_t)rate.len   ? "is not a plain number above 0"
                                           : "is not a plain whole number above 0");
    return why;
}

static const char *read_record(const char *json, const cJSON *root, ratelimit_limit *out,
                               char why[128])
{
    const cJSON *members[MEMBERS] = {NULL};
    const char *wrong = record_members(root, members, why);
    int size_of = members[CAPACITY] ? CAPACITY : BURST;
    uint64_t size, burst = 0;
    span text;
    if (wrong)
        return wrong;
    text = number_text(json, member_names[size_of]);
    wrong =
        make_limit(number_text(json, "rate"), members[WINDOW] ? members[WINDOW]->valuestring : "1s",
                   text, member_names[size_of], out, why);
    if (wrong)
        return wrong;
    if (members[BURST] && (!whole_number(number_text(json, "burst"), &burst) ||
                           !whole_number(text, &size) || burst > size))
        return "\"burst\" is not a plain whole number up to \"capacity\"";
    return NULL;
}

/* A record, len bytes and a NUL, as a limit. NULL, or a text that says why not; *out is then
 * undefined, why may hold the text. */
static const char *record_limit(const char *json, size_t len, ratelimit_limit *out, char why[128])
{
    const char *wrong = "not a JSON text";
    cJSON *root;
    if (memchr(json, 0, len) || strstr(json, "\\u0000")) /* cJSON's texts would end there */
        return "a NUL in a text";
    root = cJSON_ParseWithOpts(json, NULL, 1);
    if (root)
        wrong = read_record(json, root, out, why);
    cJSON_Delete(root);
    return wrong;
}

/* ---- the set of rules ------------------------------------------------------------------------ */

typedef struct record {
    char name[RATELIMIT_RULE_NAME_BYTES];
    char limit[80];
    bool seen; /* in the reading of all records that is under way */
} record;

/* What etcd holds, as far as it is sound. Used by one thread; rules by all. */
typedef struct store {
    ratelimit_rules *rules;
    char default_limit[80]; /* or "" */
    char prefix[MAX_PREFIX];
    record records[MAX_RULES];
    size_t count, broken; /* broken: records refused since the program started */
    char text[SHOWN + 64 + (MAX_RULES + 1) * (RATELIMIT_RULE_NAME_BYTES + 80)];
} store;

static record *store_find(store *s, const char *name)
{
    size_t i;
    for (i = 0; i < s->count; i++)
        if (strcmp(s->records[i].name, name) == 0)
            return &s->records[i];
    return NULL;
}

static void store_refuse(store *s, const char *key, size_t key_len, const record *old,
                         const char *why)
{
    char text[SHOWN];
    s->broken++;
    say("%s: refused: %s; %s%s", printable(key, key_len, text), why,
        old ? "the rule stays " : "there is no such rule", old ? old->limit : "");
}

/* The name of a rule in a key, or NULL and what is wrong. The rules' text could not hold others. */
static const char *rule_name(const store *s, const char *key, size_t key_len, const char **wrong)
{
    size_t prefix_len = strlen(s->prefix), i;
    *wrong = "the name of a rule is 1 to 63 bytes, without blanks and control characters, and does "
             "not begin with # or a byte order mark";
    if (key_len <= prefix_len || !strncmp(key + prefix_len, "\xef\xbb\xbf", 3) ||
        memcmp(key, s->prefix, prefix_len) != 0 ||
        key_len - prefix_len >= RATELIMIT_RULE_NAME_BYTES || key[prefix_len] == '#')
        return NULL;
    for (i = prefix_len; i < key_len; i++)
        if ((unsigned char)key[i] <= ' ' || key[i] == 127)
            return NULL;
    return key + prefix_len;
}

/* Takes a record over, unless it is broken. Both texts have a NUL behind them. */
static void store_put(store *s, const char *key, size_t key_len, const char *json, size_t len)
{
    ratelimit_limit limit;
    const char *wrong, *name = rule_name(s, key, key_len, &wrong);
    record *r = name ? store_find(s, name) : NULL;
    char why[128];
    if (name)
        wrong = record_limit(json, len, &limit, why);
    if (!wrong && !r && s->count == MAX_RULES)
        wrong = "more rules than there is room for";
    if (r)
        r->seen = true;
    if (wrong) {
        store_refuse(s, key, key_len, r, wrong);
        return;
    }
    if (!r) {
        r = &s->records[s->count++];
        memset(r, 0, sizeof *r);
        memcpy(r->name, name, strlen(name));
        r->seen = true;
    }
    ratelimit_limit_format(&limit, r->limit, sizeof r->limit);
}

static void store_delete(store *s, record *r)
{
    if (r)
        *r = s->records[--s->count];
}

static void store_delete_unseen(store *s)
{
    size_t i = 0;
    while (i < s->count) {
        if (s->records[i].seen)
            i++;
        else
            store_delete(s, &s->records[i]);
    }
}

/* Puts the records into use. */
static void store_load(store *s, int64_t revision)
{
    char prefix[SHOWN];
    ratelimit_fault fault;
    ratelimit_status status;
    size_t i, len = (size_t)snprintf(s->text, sizeof s->text, "# %s at revision %" PRId64 "\n",
                                     printable(s->prefix, strlen(s->prefix), prefix), revision);
    for (i = 0; i < s->count; i++)
        len += (size_t)snprintf(s->text + len, sizeof s->text - len, "%s %s\n", s->records[i].name,
                                s->records[i].limit);
    if (s->default_limit[0] && !store_find(s, "default"))
        len +=
            (size_t)snprintf(s->text + len, sizeof s->text - len, "default %s\n", s->default_limit);
    status = ratelimit_rules_load(s->rules, s->text, len, &fault);
    if (status != RATELIMIT_OK)
        say("the rules stay as they were: line %zu, column %zu: %s", fault.line, fault.column,
            fault.what);
    else if (revision)
        say("revision %" PRId64 ": %zu rules", revision, s->count);
}

/* ---- etcd ------------------------------------------------------------------------------------ */

typedef struct etcd {
    const char *url;
    store *store;
    char key64[2 * MAX_PREFIX], end64[2 * MAX_PREFIX];
    CURL *curl;
    char error[CURL_ERROR_SIZE];
    /* The answer as far as it has come. */
    char *answer;
    size_t len, room;
    int64_t revision; /* that the rules are from */
    bool watching;
    const char *end; /* why a watch was ended from this side, or NULL */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ready, stop; /* under mutex; ready: rules have been read */
} etcd;

static void encode64(const char *in, size_t len, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t i;
    for (i = 0; i < len; i += 3) {
        uint32_t three = (uint32_t)(unsigned char)in[i] << 16;
        three |= i + 1 < len ? (uint32_t)(unsigned char)in[i + 1] << 8 : 0;
        three |= i + 2 < len ? (uint32_t)(unsigned char)in[i + 2] : 0;
        *out++ = digits[three >> 18];
        *out++ = digits[three >> 12 & 63];
        *out++ = (char)(i + 1 < len ? digits[three >> 6 & 63] : '=');
        *out++ = (char)(i + 2 < len ? digits[three & 63] : '=');
    }
    *out = 0;
}

static int digit64(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* In place, with a NUL behind; false if it is not base64. */
static bool decode64(char *text, size_t *len)
{
    size_t count = strlen(text), i, n = 0;
    uint32_t bits = 0;
    if (count % 4)
        return false;
    while (count && text[count - 1] == '=' && strlen(text) - count < 2)
        count--;
    for (i = 0; i < count; i++) {
        int digit = digit64(text[i]);
        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4)
            text[n++] = (char)(bits >> (6 - 2 * (i % 4)) & 255);
    }
    text[n] = 0;
    *len = n;
    return true;
}

static char *member_text(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

/* A 64-bit number, which the gateway writes as text; 0 if there is none. */
static int64_t member_number(const cJSON *object, const char *name)
{
    const char *text = member_text(object, name);
    return text ? strtoll(text, NULL, 10) : 0;
}

/* A key and what stands in it now. */
static void take_pair(etcd *e, const cJSON *pair, bool deleted)
{
    static char nothing[1];
    char *key = member_text(pair, "key"), *value = member_text(pair, "value");
    size_t key_len, len = 0, prefix_len = strlen(e->store->prefix);
    if (!key || !decode64(key, &key_len) || (value && !decode64(value, &len)))
        say("etcd sent a key or value that can't be read");
    else if (!deleted)
        store_put(e->store, key, key_len, value ? value : nothing, len);
    else if (key_len > prefix_len && strlen(key) == key_len)
        store_delete(e->store, store_find(e->store, key + prefix_len));
}

/* Takes over the answer to a request for all records. */
static bool take_all(etcd *e)
{
    cJSON *root = cJSON_ParseWithLength(e->answer, e->len), *pair;
    const cJSON *pairs = cJSON_GetObjectItemCaseSensitive(root, "kvs");
    int64_t revision = member_number(cJSON_GetObjectItemCaseSensitive(root, "header"), "revision");
    size_t i;
    if (revision > 0) {
        for (i = 0; i < e->store->count; i++)
            e->store->records[i].seen = false;
        cJSON_ArrayForEach(pair, pairs) take_pair(e, pair, false);
        store_delete_unseen(e->store);
        store_load(e->store, e->revision = revision);
    }
    cJSON_Delete(root);
    return revision > 0;
}

/* Takes over what a watch says in one line. NULL, or why the watch has to end. */
static const char *take_line(etcd *e, const char *line, size_t len)
{
    cJSON *root = cJSON_ParseWithLength(line, len);
    const cJSON *result = cJSON_GetObjectItemCaseSensitive(root, "result"), *event;
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(result, "events");
    const char *end = NULL;
    if (!result)
        end = "etcd ended the watch";
    else if (member_number(result, "compact_revision"))
        end = "etcd has compacted what came next";
    else if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(result, "canceled")))
        end = "etcd cancelled the watch";
    cJSON_ArrayForEach(event, events)
    {
        const cJSON *pair = cJSON_GetObjectItemCaseSensitive(event, "kv");
        const char *type = member_text(event, "type"); /* none: put */
        take_pair(e, pair, type && strcmp(type, "DELETE") == 0);
        e->revision = member_number(pair, "mod_revision");
    }
    if (!end && cJSON_GetArraySize(events))
        store_load(e->store, e->revision);
    cJSON_Delete(root);
    return end;
}

/* Each line as soon as it is there. */
static bool take_lines(etcd *e)
{
    char *line = e->answer, *newline;
    while (!e->end && (newline = memchr(line, '\n', e->len - (size_t)(line - e->answer)))) {
        e->end = take_line(e, line, (size_t)(newline - line));
        line = newline + 1;
    }
    e->len -= (size_t)(line - e->answer);
    memmove(e->answer, line, e->len);
    return !e->end;
}

/* libcurl's: bytes of an answer. Another number than came ends the transfer. */
static size_t take_bytes(char *bytes, size_t size, size_t count, void *self)
{
    etcd *e = self;
    long status = 0;
    if (e->len + size * count > MAX_ANSWER) {
        e->end = "an answer that is too long";
        return 0;
    }
    if (e->len + size * count > e->room) {
        size_t room = 2 * (e->len + size * count);
        char *larger = realloc(e->answer, room);
        if (!larger)
            return 0;
        e->answer = larger;
        e->room = room;
    }
    memcpy(e->answer + e->len, bytes, size * count);
    e->len += size * count;
    curl_easy_getinfo(e->curl, CURLINFO_RESPONSE_CODE, &status);
    return !e->watching || status != 200 || take_lines(e) ? size * count : 0;
}

static bool stopped(etcd *e)
{
    bool stop;
    pthread_mutex_lock(&e->mutex);
    stop = e->stop;
    pthread_mutex_unlock(&e->mutex);
    return stop;
}

/* libcurl's, called at least once a second. Not 0 ends the transfer. */
static int still_wanted(void *self, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return stopped(self);
}

/* One request. True if it was answered with 200 to the end. */
static bool etcd_post(etcd *e, const char *path, const char *body)
{
    char url[MAX_URL + 32];
    long status = 0;
    CURLcode code;
    snprintf(url, sizeof url, "%s%s", e->url, path);
    e->len = 0;
    e->end = NULL;
    e->error[0] = 0;
    curl_easy_reset(e->curl); /* keeps the connection */
    curl_easy_setopt(e->curl, CURLOPT_URL, url);
    curl_easy_setopt(e->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e->curl, CURLOPT_PROXY, "");
    curl_easy_setopt(e->curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(e->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(e->curl, CURLOPT_WRITEDATA, e);
    curl_easy_setopt(e->curl, CURLOPT_XFERINFOFUNCTION, still_wanted);
    curl_easy_setopt(e->curl, CURLOPT_XFERINFODATA, e);
    curl_easy_setopt(e->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(e->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e->curl, CURLOPT_ERRORBUFFER, e->error);
    curl_easy_setopt(e->curl, CURLOPT_CONNECTTIMEOUT, 3L);
    if (e->watching) { /* etcd says something at least every 10 minutes (progress_notify) */
        curl_easy_setopt(e->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(e->curl, CURLOPT_LOW_SPEED_TIME, 900L);
        curl_easy_setopt(e->curl, CURLOPT_TCP_KEEPALIVE, 1L);
        curl_easy_setopt(e->curl, CURLOPT_TCP_KEEPIDLE, 20L);
        curl_easy_setopt(e->curl, CURLOPT_TCP_KEEPINTVL, 5L);
    } else {
        curl_easy_setopt(e->curl, CURLOPT_TIMEOUT, 10L);
    }
    code = curl_easy_perform(e->curl);
    curl_easy_getinfo(e->curl, CURLINFO_RESPONSE_CODE, &status);
    if (!e->end && code == CURLE_OK && status != 200) {
        char text[SHOWN];
        snprintf(e->error, sizeof e->error, "HTTP status %ld: %.100s", status,
                 printable(e->answer, e->len, text));
    }
    if (!e->end && code != CURLE_OK && !e->error[0])
        snprintf(e->error, sizeof e->error, "%s", curl_easy_strerror(code));
    return !e->end && code == CURLE_OK && status == 200;
}

/* All records. False, and why in error, if etcd did not answer. */
static bool etcd_read(etcd *e)
{
    char body[5 * MAX_PREFIX];
    bool good;
    snprintf(body, sizeof body, "{\"key\":\"%s\",\"range_end\":\"%s\",\"limit\":\"%d\"}", e->key64,
             e->end64, MAX_RULES + 1);
    e->watching = false;
    good = etcd_post(e, "/v3/kv/range", body);
    if (good && !take_all(e)) {
        snprintf(e->error, sizeof e->error, "not an answer of etcd");
        good = false;
    }
    if (good) {
        pthread_mutex_lock(&e->mutex);
        e->ready = true;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->mutex);
    }
    return good;
}

/* Takes over changes until the watch ends, for whatever reason, which is left in end or error. */
static void etcd_watch(etcd *e)
{
    char body[5 * MAX_PREFIX];
    snprintf(
        body, sizeof body,
        "{\"create_request\":{\"key\":\"%s\",\"range_end\":\"%s\",\"start_revision\":\"%" PRId64
        "\",\"progress_notify\":true}}",
        e->key64, e->end64, e->revision + 1);
    e->watching = true;
    if (etcd_post(e, "/v3/watch", body))
        e->end = "etcd ended the watch";
}

/* Until it is time, or condition is set; its value. */
static bool wait_for(etcd *e, const bool *condition, uint64_t ms)
{
    struct timespec until;
    bool value;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(ms / 1000);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&e->mutex);
    while (!*condition && pthread_cond_timedwait(&e->changed, &e->mutex, &until) == 0)
        ;
    value = *condition;
    pthread_mutex_unlock(&e->mutex);
    return value;
}

/* The thread that keeps the rules. Pauses differ by chance, so that a fleet does not come back to
 * etcd all at once. */
static void *etcd_run(void *self)
{
    etcd *e = self;
    uint64_t pause = BACK_OFF_FIRST_MS;
    while (!stopped(e)) {
        uint64_t began = ratelimit_clock_ns();
        if (etcd_read(e))
            etcd_watch(e);
        if (stopped(e))
            break;
        RATELIMIT_LOG(RATELIMIT_LIMIT(1, 30 * RATELIMIT_SECOND, 10), missed,
                      say("%s: %s; the rules stay as they are (%" PRIu32 " more unsaid)", e->url,
                          e->end ? e->end : e->error, missed));
        if (ratelimit_clock_ns() - began > 10 * RATELIMIT_SECOND)
            pause = BACK_OFF_FIRST_MS;
        wait_for(e, &e->stop, pause / 2 + ratelimit_clock_ns() / 1000 % (pause / 2));
        pause = 2 * pause < BACK_OFF_MAX_MS ? 2 * pause : BACK_OFF_MAX_MS;
    }
    return NULL;
}

static bool etcd_init(etcd *e, const char *url, store *s)
{
    char end[MAX_PREFIX];
    size_t len = strlen(s->prefix);
    memset(e, 0, sizeof *e);
    e->url = url;
    e->store = s;
    memcpy(end, s->prefix, len + 1);
    end[len - 1]++; /* the first key behind all that begin with prefix */
    encode64(s->prefix, len, e->key64);
    encode64(end, len, e->end64);
    pthread_mutex_init(&e->mutex, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->curl = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_easy_init() : NULL;
    return e->curl != NULL;
}

static void etcd_close(etcd *e)
{
    curl_easy_cleanup(e->curl);
    curl_global_cleanup();
    free(e->answer);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->mutex);
}

/* ---- what decides ---------------------------------------------------------------------------- */

static ratelimit_status ask(ratelimit_limiter *l, const char *resource, size_t len,
                            ratelimit_result *result, ratelimit_rule *rule)
{
    ratelimit_rule_request asked = {NULL, RATELIMIT_REQUEST(resource, len, NULL, 1)};
    ratelimit_take_rules(l, &asked, result, rule, 1);
    return result->status;
}

/* A decision for each line of standard input. */
static void answer_lines(ratelimit_limiter *l)
{
    char *line = NULL, name[SHOWN];
    size_t room = 0;
    ssize_t len;
    while ((len = getline(&line, &room, stdin)) > 0) {
        ratelimit_result result;
        ratelimit_rule rule;
        ratelimit_status status;
        size_t end = (size_t)len - (line[len - 1] == '\n');
        if (!end)
            continue;
        status = ask(l, line, end, &result, &rule);
        printf("%s %s", result.allowed ? "allowed" : "refused", printable(line, end, name));
        if (!rule.name[0])
            puts(": no rule");
        else if (status == RATELIMIT_OK)
            printf(" by %s, %" PRIu64 " of %" PRIu64 " left\n", rule.name, result.remaining,
                   result.burst);
        else if (status == RATELIMIT_DENIED)
            printf(" by %s, again in %.3f s\n", rule.name, (double)result.retry_after_ns / 1e9);
        else
            printf(" by %s: %s\n", rule.name, ratelimit_status_text(status));
        fflush(stdout);
    }
    free(line);
}

typedef struct load {
    ratelimit_limiter *limiter;
    const char *resource;
    uint64_t until, allowed, refused, failed;
    pthread_t thread;
} load;

static void *load_run(void *self)
{
    load *w = self;
    ratelimit_result result;
    while (ratelimit_clock_ns() < w->until) {
        switch (ask(w->limiter, w->resource, strlen(w->resource), &result, NULL)) {
        case RATELIMIT_OK:
            w->allowed++;
            break;
        case RATELIMIT_DENIED:
            w->refused++;
            break;
        default:
            w->failed++;
        }
    }
    return NULL;
}

static void run_load(ratelimit_limiter *l, size_t threads, uint64_t seconds, const char *resource)
{
    load w[MAX_THREADS], sum = {0};
    size_t i, started = 0;
    for (; started < threads; started++) {
        memset(&w[started], 0, sizeof w[started]);
        w[started].limiter = l;
        w[started].resource = resource;
        w[started].until = ratelimit_clock_ns() + seconds * RATELIMIT_SECOND;
        if (pthread_create(&w[started].thread, NULL, load_run, &w[started]) != 0)
            break;
    }
    for (i = 0; i < started; i++) {
        pthread_join(w[i].thread, NULL);
        sum.allowed += w[i].allowed;
        sum.refused += w[i].refused;
        sum.failed += w[i].failed;
    }
    printf("%zu threads: allowed %" PRIu64 ", refused %" PRIu64 ", failed %" PRIu64 "\n", started,
           sum.allowed, sum.refused, sum.failed);
}

static void print_counters(ratelimit_rules *rules)
{
    ratelimit_rule rule;
    char limit[80];
    size_t i;
    for (i = 0; ratelimit_rules_at(rules, i, &rule); i++) {
        ratelimit_limit_format(&rule.limit, limit, sizeof limit);
        printf("rule %s, %s: allowed %" PRIu64 ", refused %" PRIu64 "\n", rule.name, limit,
               rule.allowed, rule.refused);
    }
}

/* ---- main ------------------------------------------------------------------------------------ */

typedef struct options {
    const char *url, *env, *service, *default_text, *resource;
    ratelimit_limit default_limit;
    bool once;
    uint64_t threads, seconds; /* 0: no load */
} options;

static const char usage[] =
    "usage: rules_etcd --env ENV --service SERVICE [OPTIONS]\n"
    "Decides for each line of standard input, \"RULE|KEY\" or \"RULE\", by the rules in etcd.\n"
    "  --etcd URL                         (default http://127.0.0.1:2379)\n"
    "  --default LIMIT                    for what no rule matches: \"10/s burst 20\"\n"
    "  --load THREADS SECONDS RESOURCE    asks for one resource all the time instead\n"
    "  --once                             prints the rules as ratelimit.h reads them, and exits\n"
    "exit code: 0 done   1 --once: a record is broken   2 wrong usage   3 etcd does not answer\n";

static bool number(const char *text, uint64_t most, uint64_t *out)
{
    span all = {text, (int)strlen(text)};
    return whole_number(all, out) && *out && *out <= most;
}

static bool wrong_usage(const char *what)
{
    say("%s (--help says more)", what);
    return false;
}

static bool parse_options(char **argv, options *o)
{
    for (argv++; *argv; argv++) {
        const char *name = *argv;
        const char **text = strcmp(name, "--etcd") == 0      ? &o->url
                            : strcmp(name, "--env") == 0     ? &o->env
                            : strcmp(name, "--service") == 0 ? &o->service
                            : strcmp(name, "--default") == 0 ? &o->default_text
                                                             : NULL;
        if (strcmp(name, "--help") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        if (text && argv[1]) {
            *text = *++argv;
        } else if (strcmp(name, "--once") == 0) {
            o->once = true;
        } else if (strcmp(name, "--load") == 0 && argv[1] && argv[2] && argv[3] && *argv[3]) {
            if (!number(argv[1], MAX_THREADS, &o->threads) || !number(argv[2], 3600, &o->seconds))
                return wrong_usage("--load takes 1 to 64 threads and 1 to 3600 seconds");
            o->resource = argv[3];
            argv += 3;
        } else {
            return wrong_usage("an option that is unknown or not complete");
        }
    }
    if (!o->env || !*o->env || strchr(o->env, '/') || !o->service || !*o->service ||
        strchr(o->service, '/'))
        return wrong_usage("--env and --service are needed, and have no \"/\"");
    if (strlen(o->url) > MAX_URL)
        return wrong_usage("--etcd is too long");
    if (o->default_text &&
        ratelimit_limit_parse(&o->default_limit, o->default_text) != RATELIMIT_OK)
        return wrong_usage("--default is not a limit like \"10/s burst 20\"");
    return true;
}

/* The rules as they stand in etcd. */
static int run_once(etcd *e)
{
    if (!etcd_read(e)) {
        say("%s: %s", e->url, e->end ? e->end : e->error);
        return 3;
    }
    fputs(e->store->text, stdout);
    return e->store->broken ? 1 : 0;
}

static int run(etcd *e, const options *o)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(MAX_KEYS)];
    ratelimit_table *table;
    ratelimit_limiter limiter = {0};
    pthread_t keeper;
    limiter.rules = e->store->rules;
    if (ratelimit_table_init(&table, memory, sizeof memory, NULL) != RATELIMIT_OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, NULL, NULL)) != RATELIMIT_OK ||
        pthread_create(&keeper, NULL, etcd_run, e) != 0) {
        say("can't start");
        return 3;
    }
    if (!wait_for(e, &e->ready, FIRST_WAIT_S * 1000))
        say("no rules from etcd yet");
    if (o->threads)
        run_load(&limiter, (size_t)o->threads, o->seconds, o->resource);
    else
        answer_lines(&limiter);
    pthread_mutex_lock(&e->mutex);
    e->stop = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mutex);
    pthread_join(keeper, NULL);
    print_counters(limiter.rules);
    ratelimit_close(&limiter);
    return 0;
}

int main(int argc, char **argv)
{
    static unsigned char memory[RATELIMIT_RULES_BYTES(MAX_RULES + 1)];
    static store s;
    static etcd e;
    options o = {0};
    int code;
    (void)argc;
    o.url = "http://127.0.0.1:2379";
    if (!parse_options(argv, &o))
        return 2;
    code = snprintf(s.prefix, sizeof s.prefix, "/config/%s/%s/ratelimit/", o.env, o.service);
    if (code < 0 || (size_t)code >= sizeof s.prefix) {
        wrong_usage("--env and --service are too long");
        return 2;
    }
    if (o.default_text)
        ratelimit_limit_format(&o.default_limit, s.default_limit, sizeof s.default_limit);
    if (ratelimit_rules_init(&s.rules, memory, sizeof memory, MAX_RULES + 1) != RATELIMIT_OK ||
        !etcd_init(&e, o.url, &s)) {
        say("can't start");
        return 3;
    }
    store_load(&s, 0);
    code = o.once ? run_once(&e) : run(&e, &o);
    etcd_close(&e);
    return code;
}

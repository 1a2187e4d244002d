/* json.c - one JSON object a line: Caddy, Traefik, nginx, Docker, or fields that are named

   A strict reader that keeps nothing: it walks over the line once and notes where the values are
   whose paths ("request.client_ip", "headers.0") are looked for. A field that is there twice makes
   the line bad: readers disagree about which one counts, so a client could choose. */
#include "replay.h"

#include <string.h>

#define MAX_DEPTH 32
#define MAX_PATH  256

enum { WANTED_CLIENT, WANTED_TIME, WANTED_METHOD, WANTED_PATH, WANTED_STATUS, WANTED_SIZE, KINDS };

/* The first that is there counts. */
static const struct wanted {
    const char *path;
    unsigned kind;
    form_kind form;
} wanted[] = {
    {"request.client_ip", WANTED_CLIENT, FORM_CADDY},
    {"request.remote_ip", WANTED_CLIENT, FORM_CADDY},
    {"request.remote_addr", WANTED_CLIENT, FORM_CADDY},
    {"ClientHost", WANTED_CLIENT, FORM_TRAEFIK},
    {"ClientAddr", WANTED_CLIENT, FORM_TRAEFIK},
    {"remote_addr", WANTED_CLIENT, FORM_NGINX_JSON},
    {"client_ip", WANTED_CLIENT, FORM_JSON},
    {"clientip", WANTED_CLIENT, FORM_JSON},
    {"remote_ip", WANTED_CLIENT, FORM_JSON},
    {"client.ip", WANTED_CLIENT, FORM_JSON},
    {"source.ip", WANTED_CLIENT, FORM_JSON},
    {"ip", WANTED_CLIENT, FORM_JSON},
    {"ts", WANTED_TIME, FORM_JSON},
    {"StartUTC", WANTED_TIME, FORM_JSON},
    {"time_iso8601", WANTED_TIME, FORM_JSON},
    {"time_local", WANTED_TIME, FORM_JSON},
    {"msec", WANTED_TIME, FORM_JSON},
    {"time", WANTED_TIME, FORM_JSON},
    {"@timestamp", WANTED_TIME, FORM_JSON},
    {"timestamp", WANTED_TIME, FORM_JSON},
    {"date", WANTED_TIME, FORM_JSON},
    {"request.method", WANTED_METHOD, FORM_JSON},
    {"RequestMethod", WANTED_METHOD, FORM_JSON},
    {"request_method", WANTED_METHOD, FORM_JSON},
    {"method", WANTED_METHOD, FORM_JSON},
    {"request.uri", WANTED_PATH, FORM_JSON},
    {"RequestPath", WANTED_PATH, FORM_JSON},
    {"request_uri", WANTED_PATH, FORM_JSON},
    {"uri", WANTED_PATH, FORM_JSON},
    {"path", WANTED_PATH, FORM_JSON},
    {"request", WANTED_PATH, FORM_JSON},
    {"status", WANTED_STATUS, FORM_JSON},
    {"DownstreamStatus", WANTED_STATUS, FORM_JSON},
    {"size", WANTED_SIZE, FORM_JSON},
    {"DownstreamContentSize", WANTED_SIZE, FORM_JSON},
    {"body_bytes_sent", WANTED_SIZE, FORM_JSON},
    {"bytes_sent", WANTED_SIZE, FORM_JSON},
};

typedef struct walk {
    file_state *s;
    text rest;
    char path[MAX_PATH];
    size_t path_len; /* longer than it fits: not kept */
    const char *why;
    text value[KINDS], chosen, chosen_time, log, docker_time;
    size_t rank[KINDS]; /* which of wanted, + 1 */
    form_kind form;
} walk;

static bool bad(walk *w, const char *why)
{
    if (!w->why)
        w->why = why;
    return false;
}

static void skip_space(walk *w)
{
    while (w->rest.len && (is_blank(w->rest.at[0]) || w->rest.at[0] == '\r'))
        w->rest = part_of(w->rest, 1, w->rest.len - 1);
}

/* ---- strings --------------------------------------------------------------------------------- */

static bool hex4(text t, uint32_t *out)
{
    size_t i;
    *out = 0;
    if (t.len < 4)
        return false;
    for (i = 0; i < 4; i++) {
        char c = t.at[i], low = (char)(c | 32);
        if (!is_digit(c) && !(low >= 'a' && low <= 'f'))
            return false;
        *out = *out << 4 | (uint32_t)(is_digit(c) ? c - '0' : low - 'a' + 10);
    }
    return true;
}

static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xC0 | c >> 6);
        *to++ = (char)(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        *to++ = (char)(0xE0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
        *to++ = (char)(0x80 | (c & 0x3F));
    } else {
        *to++ = (char)(0xF0 | c >> 18);
        *to++ = (char)(0x80 | (c >> 12 & 0x3F));
        *to++ = (char)(0x80 | (c >> 6 & 0x3F));
        *to++ = (char)(0x80 | (c & 0x3F));
    }
    return to;
}

/* After the backslash; the longest escape, \uD83D\uDE00, is longer than what it means. */
static bool unescape(walk *w, text *t, char **to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    uint32_t c, low;
    const char *simple = t->len && t->at[0] ? strchr(from, t->at[0]) : NULL;
    if (simple) {
        *(*to)++ = into[simple - from];
        *t = part_of(*t, 1, t->len - 1);
        return true;
    }
    if (!skip(t, 'u') || !hex4(*t, &c))
        return bad(w, "JSON: a backslash that begins no escape");
    *t = part_of(*t, 4, t->len - 4);
    if (c >= 0xD800 && c < 0xDC00 && t->len >= 6 && t->at[0] == '\\' && t->at[1] == 'u' &&
        hex4(part_of(*t, 2, t->len - 2), &low) && low >= 0xDC00 && low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        *t = part_of(*t, 6, t->len - 6);
    }
    *to = put_utf8(*to, c >= 0xD800 && c < 0xE000 ? 0xFFFD : c);
    return true;
}

/* A string; what it means, in the line itself if nothing is escaped. */
static bool string(walk *w, text *out)
{
    text t = w->rest;
    size_t i = 0;
    char *to, *begin;
    if (!skip(&t, '"'))
        return bad(w, "JSON: a string is missing");
    while (i < t.len && t.at[i] != '"' && t.at[i] != '\\' && (unsigned char)t.at[i] >= 0x20)
        i++;
    if (i < t.len && t.at[i] == '"') {
        *out = part_of(t, 0, i);
        w->rest = part_of(t, i + 1, t.len - i - 1);
        return true;
    }
    begin = to = w->s->unescaped + w->s->unescaped_used;
    memcpy(to, t.at, i);
    to += i;
    t = part_of(t, i, t.len - i);
    while (t.len && t.at[0] != '"') {
        if ((unsigned char)t.at[0] < 0x20)
            return bad(w, "JSON: a control character in a string");
        if (t.at[0] != '\\') {
            *to++ = t.at[0];
            t = part_of(t, 1, t.len - 1);
            continue;
        }
        t = part_of(t, 1, t.len - 1);
        if (!unescape(w, &t, &to))
            return false;
    }
    if (!skip(&t, '"'))
        return bad(w, "JSON: a string without an end: the line was cut off");
    out->at = begin;
    out->len = (size_t)(to - begin);
    w->s->unescaped_used += out->len;
    w->rest = t;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_path(const walk *w, const char *path)
{
    return w->path_len < MAX_PATH && strcmp(w->path, path) == 0;
}

static bool keep_once(walk *w, text *place, text value)
{
    if (place->at)
        return bad(w, "JSON: a field that is needed is there twice");
    *place = value;
    return true;
}

static form_kind form_of(const struct wanted *of)
{
    return of->kind == WANTED_CLIENT ? of->form : FORMS;
}

/* A value that is neither object nor array. */
static bool note(walk *w, text value, bool is_string)
{
    const options *opt = w->s->opt;
    size_t i;
    if (!is_string && same_text(value, "null"))
        return true; /* as good as not there */
    if (opt->json_key && is_path(w, opt->json_key) && !keep_once(w, &w->chosen, value))
        return false;
    if (opt->json_time && is_path(w, opt->json_time) && !keep_once(w, &w->chosen_time, value))
        return false;
    if (is_string && is_path(w, "log") && !keep_once(w, &w->log, value))
        return false;
    for (i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        unsigned kind = wanted[i].kind;
        if (!is_path(w, wanted[i].path))
            continue;
        if (w->rank[kind] == i + 1)
            return bad(w, "JSON: a field that is needed is there twice");
        if (w->rank[kind] && w->rank[kind] < i + 1)
            return true;
        w->rank[kind] = i + 1;
        w->value[kind] = value;
        if (form_of(&wanted[i]) != FORMS)
            w->form = wanted[i].form;
        return true;
    }
    return true;
}

static bool literal(walk *w)
{
    static const char *const words[] = {"true", "false", "null"};
    text t = w->rest;
    size_t i = 0;
    for (i = 0; i < 3; i++)
        if (begins_with(t, words[i])) {
            w->rest = part_of(t, strlen(words[i]), t.len - strlen(words[i]));
            return note(w, part_of(t, 0, strlen(words[i])), false);
        }
    i = t.len && t.at[0] == '-';
    if (i >= t.len || !is_digit(t.at[i]))
        return bad(w, "JSON: a value is missing");
    while (i < t.len && t.at[i] && strchr("+-.0123456789eE", t.at[i]))
        i++;
    w->rest = part_of(t, i, t.len - i);
    return note(w, part_of(t, 0, i), false);
}

static size_t path_push(walk *w, text name)
{
    size_t before = w->path_len, len = name.len + (before > 0);
    if (before + len < MAX_PATH && !memchr(name.at ? name.at : "", 0, name.len)) {
        if (before)
            w->path[before] = '.';
        memcpy(w->path + before + (before > 0), name.at, name.len);
        w->path[before + len] = 0;
        w->path_len += len;
    } else {
        w->path_len = MAX_PATH; /* nothing below it is looked for */
    }
    return before;
}

static void path_pop(walk *w, size_t before)
{
    w->path_len = before;
    w->path[before < MAX_PATH ? before : MAX_PATH - 1] = 0;
}

static bool value(walk *w, unsigned depth);

static bool members(walk *w, unsigned depth, char close)
{
    bool object = close == '}';
    uint64_t index = 0;
    skip_space(w);
    if (skip(&w->rest, close))
        return true;
    for (;; index++) {
        char digits[24];
        text name;
        size_t before;
        snprintf(digits, sizeof digits, "%" PRIu64, index);
        name = as_text(digits);
        skip_space(w);
        if (object && !string(w, &name))
            return false;
        skip_space(w);
        if (object && !skip(&w->rest, ':'))
            return bad(w, "JSON: a colon is missing");
        before = w->path_len < MAX_PATH ? path_push(w, name) : w->path_len;
        skip_space(w);
        if (!value(w, depth + 1))
            return false;
        path_pop(w, before);
        skip_space(w);
        if (skip(&w->rest, close))
            return true;
        if (!skip(&w->rest, ','))
            return bad(w, w->rest.len ? "JSON: a comma is missing"
                                      : "JSON: the line ends before the object does");
    }
}

static bool value(walk *w, unsigned depth)
{
    text t;
    if (depth > MAX_DEPTH)
        return bad(w, "JSON: nested more than 32 deep");
    if (skip(&w->rest, '{'))
        return members(w, depth, '}');
    if (skip(&w->rest, '['))
        return members(w, depth, ']');
    if (w->rest.len && w->rest.at[0] == '"')
        return string(w, &t) && note(w, t, true);
    return literal(w);
}

/* ---- a line ---------------------------------------------------------------------------------- */

static bool any_time(text t, uint64_t *ns)
{
    text begin = t;
    if (epoch_time(&t, ns) && t.len == 0)
        return true;
    t = begin;
    if (rfc3339_time(&t, true, ns) && t.len == 0)
        return true;
    t = begin;
    return clf_time(&t, ns) && t.len == 0;
}

static const char *time_of(const walk *w, parts *p, bool has_time)
{
    const options *opt = w->s->opt;
    text t = opt->json_time ? w->chosen_time : w->value[WANTED_TIME];
    if (!t.at && has_time && !opt->json_time)
        return NULL; /* that of syslog or of a container before it */
    if (!t.at)
        return opt->json_time ? "JSON: the field that --json-time names is not there"
                              : "JSON without a time that is known: name its field, --json-time "
                                "FIELD, or: jq -r '\"\\(.ts) \\(.request.client_ip)\"' FILE | "
                                "replay [OPTION]... -";
    return any_time(t, &p->time_ns) ? NULL : "JSON: its time can't be read, or is out of range";
}

static const char *client_of(const walk *w, parts *p)
{
    const options *opt = w->s->opt;
    text client = w->value[WANTED_CLIENT];
    if (opt->json_key) {
        p->chosen = w->chosen;
        p->has_chosen = true;
        return w->chosen.at ? NULL : "JSON: the field that --json-key names is not there";
    }
    if (opt->key == KEY_PATH || opt->key == KEY_FIELD)
        return NULL;
    if (!client.at)
        return "JSON without a client that is known: name its field, --json-key FIELD";
    p->client = bare_address(client).at ? bare_address(client) : client;
    return p->client.len && (bare_address(client).at || is_name(client))
               ? NULL
               : "JSON: the client is neither an address nor a name";
}

/* p->time_ns is set already if has_time. */
static const char *take_walk(walk *w, parts *p)
{
    const char *why = time_of(w, p, p->time_ns != 0);
    text path = w->value[WANTED_PATH];
    if (!why)
        why = client_of(w, p);
    if (path.at)
        request_parts(path, p);
    if (w->value[WANTED_METHOD].at)
        p->method = w->value[WANTED_METHOD];
    p->status = w->value[WANTED_STATUS];
    p->size = w->value[WANTED_SIZE];
    p->form = w->form;
    return why;
}

const char *parse_json(file_state *s, text line, parts *p, unsigned depth)
{
    static const walk empty;
    walk w = empty;
    w.s = s;
    w.rest = line;
    w.form = FORM_JSON;
    p->form = FORM_JSON;
    if (!value(&w, 0))
        return w.why;
    skip_space(&w);
    if (w.rest.len)
        return "JSON: something follows the object";
    if (w.log.at && !s->opt->json_key && !w.value[WANTED_CLIENT].at) {
        /* Docker's own: {"log":"LINE\n","stream":"stdout","time":"..."} */
        while (w.log.len && (w.log.at[w.log.len - 1] == '\n' || w.log.at[w.log.len - 1] == '\r'))
            w.log.len--;
        p->around |= IN_DOCKER;
        if (w.value[WANTED_TIME].at && !any_time(w.value[WANTED_TIME], &p->time_ns))
            return "JSON: its time can't be read, or is out of range";
        return depth < 3 ? parse_body(s, w.log, p, depth + 1) : "JSON in JSON in JSON";
    }
    return take_walk(&w, p);
}

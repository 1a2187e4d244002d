/* clf.c - the Common and Combined Log Format

       HOST IDENT USER [03/Mar/2026:14:00:07 +0100] "GET /path HTTP/1.1" 200 5120 ...

   The time is the first bracket that a quoted request follows: a client can write brackets into
   USER, but no quote that is not escaped. The client is where it must be: of three fields before
   the time it is the first, of four the second, after a virtual host. */
#include "replay.h"

#include <string.h>

/* Behind [time]: a quote, in some formats after something in parentheses that has neither brackets
 * nor quotes. */
static bool is_before_request(text *t)
{
    size_t i = 3;
    if (t->len < 3 || t->at[0] != ']' || t->at[1] != ' ')
        return false;
    if (t->at[2] == '(') {
        while (i < t->len && !strchr("()[]\"", t->at[i]))
            i++;
        if (i + 2 >= t->len || memcmp(t->at + i, ") \"", 3) != 0)
            return false;
        *t = part_of(*t, i + 2, t->len - i - 2);
        return true;
    }
    *t = part_of(*t, 2, t->len - 2);
    return t->at[0] == '"';
}

/* Finds [time] " and the text from the quote on. */
bool find_clf(text line, size_t *bracket, text *rest, uint64_t *time_ns)
{
    text left = line;
    const char *at;
    while (left.len && (at = (const char *)memchr(left.at, '[', left.len)) != NULL) {
        size_t i = (size_t)(at - line.at);
        text t = part_of(line, i + 1, line.len - i - 1);
        left = t;
        if (clf_time(&t, time_ns) && is_before_request(&t)) {
            *bracket = i;
            *rest = t;
            return true;
        }
    }
    return false;
}

text without_query(text path)
{
    const char *query = path.len ? (const char *)memchr(path.at, '?', path.len) : NULL;
    if (query && query > path.at)
        path.len = (size_t)(query - path.at);
    return path;
}

/* The path in a request line "GET /path?query HTTP/1.1"; all of it if it has no blanks. */
void request_parts(text asked, parts *p)
{
    text method, path, rest = asked;
    if (!next_field(&rest, &method) || !next_field(&rest, &path))
        path = asked;
    else
        p->method = method;
    path = without_query(path);
    if (path.len)
        p->path = path;
}

/* "REQUEST" STATUS SIZE "REFERER" ... A quote in REQUEST is written \". */
static void after_time(text rest, parts *p)
{
    text asked;
    if (rest.len < 2 || !quoted_field(&rest, &asked))
        return;
    request_parts(asked, p);
    if (!next_field(&rest, &p->status) || !next_field(&rest, &p->size))
        p->size.at = NULL;
    if (p->status.len == 0)
        p->status.at = NULL;
    p->form = rest.len > 1 && rest.at[0] == ' ' && rest.at[1] == '"' ? FORM_COMBINED : FORM_COMMON;
}

/* One of the first fields: a text without blanks, or a list "A, B, C" of several. */
static bool listed_field(text *rest, text *field, bool *list)
{
    text next, last;
    *list = false;
    if (!next_field(rest, field))
        return false;
    last = *field;
    while (last.at[last.len - 1] == ',' && next_field(rest, &next)) {
        *list = true;
        last = next;
        field->len = (size_t)(next.at + next.len - field->at);
    }
    return last.at[last.len - 1] != ',';
}

static size_t count_fields(text rest)
{
    text field;
    size_t count = 0;
    while (next_field(&rest, &field))
        count++;
    return count;
}

static bool is_dash(text t)
{
    return t.len == 1 && t.at[0] == '-';
}

static const char *why_no_client(text client)
{
    if (is_dash(client))
        return "the client is \"-\": the server did not write its address";
    if (begins_with(client, "unix:"))
        return "the client is \"unix:\": the server is asked through a socket and does not know "
               "the address; let it take X-Forwarded-For, or see --key";
    return "where the client should be (HOST IDENT USER [time]) is neither an address nor a name";
}

static const char *take_client(text client, text address, parts *p)
{
    if (!address.at && !is_name(client))
        return why_no_client(client);
    p->client = address.at ? address : client;
    return NULL;
}

#define ASK "say which is the client, --host first or --host second"

/* HOST IDENT USER, where USER may have blanks if IDENT is "-", as it always is in our days. */
static const char *first_is_client(text first, text address, text before, size_t count, parts *p)
{
    text ident;
    if (count > 3 && !(next_field(&before, &ident) && is_dash(ident)))
        return "before [time] there are more fields than HOST IDENT USER: " ASK;
    return take_client(first, address, p);
}

static bool is_virtual_host(text t)
{
    return is_name(t) || is_name(last_colon_off(t)) || bare_address(t).at || same_text(t, "_") ||
           same_text(t, "-") || same_text(t, "*");
}

/* VHOST HOST IDENT USER, with blanks in USER as above; before is what follows HOST. */
static const char *second_is_client(file_state *s, text second, text before, size_t count, parts *p)
{
    text ident;
    const char *why;
    if (count > 4 && !(next_field(&before, &ident) && is_dash(ident)))
        return "before [time] there are more fields than VHOST HOST IDENT USER";
    p->around |= WITH_VHOST;
    why = take_client(second, bare_address(second), p);
    s->vhost_seen = s->vhost_seen || !why;
    return why;
}

/* Four fields or more, none of them a list: is the first a virtual host or the client? */
static const char *of_many_fields(file_state *s, text first, text rest, size_t count, parts *p)
{
    text second, third, after = rest;
    bool address = bare_address(first).at != NULL, second_address, list;
    listed_field(&after, &second, &list);
    second_address = bare_address(second).at != NULL;
    if (address && is_dash(second))
        return first_is_client(first, bare_address(first), rest, count, p);
    if (address && !(second_address && s->vhost_seen))
        return second_address ? "before [time] there are two addresses: " ASK
                              : "before [time] there are more fields than HOST IDENT USER: " ASK;
    if (!is_virtual_host(first))
        return "before [time] there are more fields than HOST IDENT USER";
    rest = after;
    next_field(&rest, &third);
    if (is_dash(second) && !is_dash(third)) /* a name, and a user with blanks? */
        return "before [time] it is not clear which field is the client: " ASK;
    return second_is_client(s, second, after, count, p);
}

/* The client among the fields before the time. A list counts as one field. */
static const char *find_client(file_state *s, text before, parts *p)
{
    text first, second, bare, after;
    bool list, second_list;
    size_t count;
    if (!listed_field(&before, &first, &list))
        return "there is no client before [time]; if it is another field: --key N";
    if (first.len > 18 && first.at[4] == '-' && first.at[10] == 'T')
        return "before the client is a time"; /* which is taken off, see prefix.c */
    bare = bare_address(first);
    if (s->opt->host == HOST_FIRST)
        return take_client(first, bare, p);
    after = before;
    if (!listed_field(&after, &second, &second_list))
        return bare.at ? take_client(first, bare, p) : "before [time] there is no IDENT and USER";
    if (s->opt->host == HOST_SECOND)
        return take_client(second, bare_address(second), p);
    count = 2 + count_fields(after);
    if (list)
        return first_is_client(first, bare, before, count, p);
    if (count < 3)
        return "before [time] there are fewer fields than HOST IDENT USER";
    if (count == 3)
        return bare_address(second).at
                   ? "before [time] the first and the second field may be the client: " ASK
                   : take_client(first, bare, p);
    return of_many_fields(s, first, before, count, p);
}

static bool needs_client(const options *opt)
{
    return opt->key == KEY_IP || opt->key == KEY_IP_PATH;
}

/* bracket is where the time begins, rest what follows it, from the quote on. */
const char *parse_clf(file_state *s, text line, size_t bracket, text rest, parts *p)
{
    const char *why;
    p->form = FORM_COMMON;
    why = find_client(s, part_of(line, 0, bracket), p);
    if (why && needs_client(s->opt))
        return why;
    if (s->details)
        after_time(rest, p);
    else if (line.at[line.len - 1] == '"')
        p->form = FORM_COMBINED;
    return NULL;
}

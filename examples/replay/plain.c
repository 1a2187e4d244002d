/* plain.c - lines of columns that are not the Common Log Format

       TIME KEY [COST]                     TIME in seconds or ms since 1970, or RFC 3339
       HAProxy's httplog and tcplog
       Amazon's load balancers (ALB, and the classic ELB) and S3
       W3C: "#Fields:" names the columns, as in IIS and CloudFront */
#include "replay.h"

#include <string.h>

/* ---- TIME KEY [COST] ------------------------------------------------------------------------- */

const char *parse_plain(text line, parts *p)
{
    text rest = line, more;
    bool epoch = line.len < 5 || line.at[4] != '-';
    if (epoch ? !epoch_time(&rest, &p->time_ns) : !rfc3339_time(&rest, false, &p->time_ns))
        return epoch ? "it begins with a digit, but not with a time in seconds or ms since 1970"
                     : "its time is not of RFC 3339 (2026-03-03T14:00:07Z), or out of range";
    if (rest.len && !is_blank(rest.at[0]))
        return epoch ? "it begins with a number: if that is a time in seconds or ms since 1970, a "
                       "blank and the key should follow"
                     : "after the time there should be a blank and the key";
    p->form = FORM_PLAIN;
    p->any_client = true;
    if (!next_field(&rest, &p->client))
        return "after the time there is no key";
    if (same_text(p->client, "-") || same_text(p->client, "null"))
        return "the key is \"-\" or \"null\": who wrote the line did not know it";
    if (p->client.at[0] == '{')
        return "after the time there is JSON that is cut off or without a client";
    if (!next_field(&rest, &p->size)) {
        p->size.at = NULL;
        return NULL;
    }
    p->more_fields = next_field(&rest, &more); /* only --key N may have them */
    return NULL;
}

/* ---- HAProxy --------------------------------------------------------------------------------- */

/* CLIENT:PORT [06/Feb/2009:12:14:14.655] FRONTEND BACKEND/SERVER T/T/T/T/T STATUS BYTES ...
 * "REQUEST". An IPv6 address has no brackets: the last colon is the port's. */
bool parse_haproxy(text line, parts *p, const char **why)
{
    text rest = line, field, host;
    const char *quote;
    size_t i, slashes = 0;
    if (!next_field(&rest, &field) || !skip(&rest, ' ') || !skip(&rest, '[') ||
        !local_time(&rest, &p->time_ns) || !skip(&rest, ']'))
        return false;
    host = last_colon_off(field);
    if (!is_address(host))
        host = bare_address(field);
    *why = host.at ? NULL : "HAProxy's line does not begin with the client's address and port";
    p->client = host;
    p->form = FORM_HAPROXY;
    if (!next_field(&rest, &field) || !next_field(&rest, &field) || !next_field(&rest, &field))
        return true;
    for (i = 0; i < field.len; i++)
        slashes += field.at[i] == '/';
    if (slashes == 4 && !next_field(&rest, &p->status))
        p->status.at = NULL;
    if (!next_field(&rest, &p->size))
        p->size.at = NULL;
    quote = rest.len ? (const char *)memchr(rest.at, '"', rest.len) : NULL;
    if (quote) {
        rest = part_of(rest, (size_t)(quote - rest.at), rest.len - (size_t)(quote - rest.at));
        if (quoted_field(&rest, &field))
            request_parts(field, p);
    }
    return true;
}

/* ---- Amazon ---------------------------------------------------------------------------------- */

static bool is_owner(text t)
{
    size_t i;
    for (i = 0; i < t.len; i++)
        if (!is_digit(t.at[i]) && !(t.at[i] >= 'a' && t.at[i] <= 'f'))
            return false;
    return t.len >= 32;
}

/* OWNER BUCKET [time] CLIENT REQUESTER ID OPERATION KEY "REQUEST" STATUS ERROR BYTES ... */
bool parse_s3(text line, parts *p, const char **why)
{
    text rest = line, field, address;
    size_t i;
    if (!next_field(&rest, &field) || !is_owner(field) || !next_field(&rest, &field) ||
        !skip(&rest, ' ') || !skip(&rest, '[') || !clf_time(&rest, &p->time_ns) ||
        !skip(&rest, ']'))
        return false;
    p->form = FORM_S3;
    *why = NULL;
    if (!next_field(&rest, &field) || !(address = bare_address(field)).at) {
        *why = "S3 wrote no client for this line";
        return true;
    }
    p->client = address;
    for (i = 0; i < 4; i++)
        if (!next_field(&rest, &field)) {
            *why = i == 0 ? "the line is cut off" : NULL;
            return true;
        }
    if (!quoted_field(&rest, &field))
        return true;
    request_parts(field, p);
    if (!next_field(&rest, &p->status))
        p->status.at = NULL;
    if (!next_field(&rest, &field) || !next_field(&rest, &p->size))
        p->size.at = NULL;
    return true;
}

static bool is_load_balancer(text t)
{
    static const char *const types[] = {"http", "https", "h2", "grpcs", "ws", "wss"};
    size_t i;
    for (i = 0; i < sizeof types / sizeof *types; i++)
        if (same_text(t, types[i]))
            return true;
    return false;
}

/* "https://www.example.com:443/a" is "/a". */
static text without_host(text path)
{
    size_t i = 0;
    if (!begins_with(path, "http://") && !begins_with(path, "https://"))
        return path;
    for (i = 8; i < path.len && path.at[i] != '/'; i++)
        ;
    return i < path.len ? part_of(path, i, path.len - i) : path;
}

/* [TYPE] TIME NAME CLIENT:PORT TARGET:PORT 3 times STATUS STATUS RECEIVED SENT "REQUEST" ... */
bool parse_elb(text line, parts *p, const char **why)
{
    text rest = line, field, target, address;
    size_t i;
    bool typed = next_field(&rest, &field) && is_load_balancer(field);
    if (!typed)
        rest = line;
    skip_blanks(&rest);
    if (!rfc3339_time(&rest, true, &p->time_ns) || !next_field(&rest, &field) ||
        !next_field(&rest, &field) || !next_field(&rest, &target))
        return false;
    address = bare_address(field);
    if ((!typed && !address.at) || (!bare_address(target).at && !same_text(target, "-")))
        return false;
    p->form = typed ? FORM_ALB : FORM_ELB;
    *why = address.at ? NULL : "the load balancer's line has no client";
    p->client = address;
    for (i = 0; i < 3; i++)
        if (!next_field(&rest, &field))
            return true;
    if (!next_field(&rest, &p->status))
        p->status.at = NULL;
    if (!next_field(&rest, &field) || !next_field(&rest, &field) || !next_field(&rest, &p->size))
        p->size.at = NULL;
    if (quoted_field(&rest, &field) && p->size.at)
        request_parts(field, p);
    p->path = without_host(p->path);
    return true;
}

/* ---- W3C ------------------------------------------------------------------------------------- */

void forget_directives(file_state *s)
{
    s->w3c = s->microsoft = false;
    s->column_count = 0;
    memset(&s->w3c_date, 0, sizeof s->w3c_date);
}

static unsigned char column_of(const options *opt, text name)
{
    static const struct {
        const char *name;
        column_kind is;
    } known[] = {
        {"date-local", COLUMN_DATE},  {"time-local", COLUMN_TIME},  {"date", COLUMN_DATE},
        {"time", COLUMN_TIME},        {"c-ip", COLUMN_CLIENT},      {"cs-method", COLUMN_METHOD},
        {"cs-uri-stem", COLUMN_PATH}, {"cs-uri-path", COLUMN_PATH}, {"cs-uri", COLUMN_PATH},
        {"sc-status", COLUMN_STATUS}, {"sc-bytes", COLUMN_SIZE},
    };
    size_t i;
    if (opt->json_key && same_text(name, opt->json_key))
        return COLUMN_CHOSEN;
    for (i = 0; i < sizeof known / sizeof *known; i++)
        if (same_text(name, known[i].name))
            return (unsigned char)known[i].is;
    return COLUMN_OTHER;
}

/* True for lines that are no requests: "#Fields: date time c-ip", comments. */
bool is_directive(file_state *s, text line)
{
    text name;
    uint64_t ns;
    if (line.len == 0 || line.at[0] != '#')
        return false;
    if (begins_with(line, "#Software:")) {
        s->microsoft = has_text(line, "Microsoft");
    } else if (begins_with(line, "#Date:")) {
        line = part_of(line, 6, line.len - 6);
        skip_blanks(&line);
        if (rfc3339_time(&line, false, &ns))
            s->w3c_date = moment_of(ns);
    } else if (begins_with(line, "#Fields:")) {
        bool edge = has_text(line, "x-edge-location");
        line = part_of(line, 8, line.len - 8);
        s->w3c = true;
        s->w3c_form = edge ? FORM_CLOUDFRONT : s->microsoft ? FORM_IIS : FORM_W3C;
        s->column_count = 0;
        while (s->column_count < MAX_COLUMNS && next_field(&line, &name))
            s->columns[s->column_count++] = column_of(s->opt, name);
    }
    return true;
}

/* IIS never quotes, others do where a value has blanks: a quote counts only if the number of fields
 * is right with it and wrong without. */
static bool split_columns(const file_state *s, text line, text *fields)
{
    text rest = line, field;
    size_t count = 0;
    while (next_field(&rest, &field))
        if (count++ < s->column_count)
            fields[count - 1] = field;
    if (count == s->column_count)
        return true;
    for (count = 0, rest = line; quoted_field(&rest, &field);)
        if (count++ < s->column_count)
            fields[count - 1] = field;
    return count == s->column_count;
}

static const char *w3c_time(const file_state *s, text date, text clock, parts *p)
{
    char both[40];
    text t;
    moment m = s->w3c_date;
    if (!clock.at)
        return "#Fields names no column \"time\"";
    if (!date.at && !m.year)
        return "neither #Fields nor #Date says the date";
    if (date.len > 10 || clock.len > 20)
        return "its time is out of range";
    if (date.at)
        snprintf(both, sizeof both, "%.*sT%.*s", (int)date.len, date.at, (int)clock.len, clock.at);
    else
        snprintf(both, sizeof both, "%04u-%02u-%02uT%.*s", (unsigned)m.year, (unsigned)m.month,
                 (unsigned)m.day, (int)clock.len, clock.at);
    t = as_text(both);
    return rfc3339_time(&t, false, &p->time_ns) && t.len == 0 ? NULL : "its time is out of range";
}

const char *parse_w3c(file_state *s, text line, parts *p)
{
    text fields[MAX_COLUMNS], date = {NULL, 0}, clock = {NULL, 0}, client = {NULL, 0};
    const char *why;
    size_t i;
    if (!split_columns(s, line, fields))
        return "it has not as many fields as #Fields names: a line cut off, or columns changed";
    p->form = s->w3c_form;
    for (i = 0; i < s->column_count; i++)
        switch (s->columns[i]) {
        case COLUMN_DATE:
            date = fields[i];
            break;
        case COLUMN_TIME:
            clock = fields[i];
            break;
        case COLUMN_CLIENT:
            client = fields[i];
            break;
        case COLUMN_METHOD:
            p->method = fields[i];
            break;
        case COLUMN_PATH:
            p->path = without_query(fields[i]);
            break;
        case COLUMN_STATUS:
            p->status = fields[i];
            break;
        case COLUMN_SIZE:
            p->size = fields[i];
            break;
        case COLUMN_CHOSEN:
            p->chosen = fields[i];
            p->has_chosen = true;
            break;
        default:
            break;
        }
    why = w3c_time(s, date, clock, p);
    if (why)
        return why;
    if (client.len > 1 && client.at[0] == '"' && client.at[client.len - 1] == '"')
        client = part_of(client, 1, client.len - 2);
    p->client = client.at ? bare_address(client) : client;
    if (!p->client.at && !p->has_chosen && s->opt->key != KEY_FIELD)
        return client.at ? "the column c-ip holds no address"
                         : "#Fields names no column c-ip: name the client's, --json-key COLUMN";
    return NULL;
}

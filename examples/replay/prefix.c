/* prefix.c - what others write before a line: syslog, Docker compose, Kubernetes, containerd

       Dec  7 11:05:07 web1 nginx: LINE          syslog, also with <134> before it
       2026-01-12T11:15:58.792703+00:00 web1 sshd[1]: LINE
       <134>1 2026-01-12T11:15:58Z web1 nginx 12 - - LINE        RFC 5424
       web-1  | LINE                             docker compose logs
       [pod/web-5d/nginx] LINE                   kubectl logs --prefix
       2026-11-27T22:00:00.1Z LINE               kubectl logs --timestamps, docker logs -t
       2026-11-27T22:00:00.1Z stdout F LINE      containerd's files */
#include "replay.h"

#include <string.h>

/* Colours, such as ESC [ 36 m */
static void skip_colours(text *t)
{
    while (t->len > 2 && t->at[0] == 27 && t->at[1] == '[') {
        size_t i = 2;
        while (i < t->len && (is_digit(t->at[i]) || t->at[i] == ';'))
            i++;
        if (i >= t->len || t->at[i] != 'm')
            return;
        *t = part_of(*t, i + 1, t->len - i - 1);
    }
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == '/';
}

/* "nginx:", "sshd[123]:" */
static bool is_tag(text t)
{
    size_t i = 0;
    if (t.len < 2 || t.at[t.len - 1] != ':' || is_address(part_of(t, 0, t.len - 1)))
        return false;
    while (i < t.len && is_word(t.at[i]))
        i++;
    return i > 0 && (i == t.len - 1 || t.at[i] == '[' || t.at[i] == '(');
}

static text program_of(text tag)
{
    size_t i = 0;
    while (i < tag.len && tag.at[i] != '[' && tag.at[i] != '(' && tag.at[i] != ':')
        i++;
    return part_of(tag, 0, i);
}

/* After the time: HOST TAG: or TAG: alone. */
static bool strip_host_and_tag(text *rest, surroundings *found)
{
    text after = *rest, tag;
    size_t i;
    for (i = 0; i < 2; i++) {
        if (!next_field(&after, &tag))
            return false;
        if (is_tag(tag)) {
            skip(&after, ' ');
            found->syslog = true;
            found->around |= IN_SYSLOG;
            found->program = program_of(tag);
            *rest = after;
            return true;
        }
    }
    return false;
}

/* HOST APP PROCID MSGID, then "-" or [data]..., then the message. */
static bool strip_rfc5424(text *rest, surroundings *found)
{
    text field, after = *rest;
    size_t i;
    for (i = 0; i < 4; i++) {
        if (!next_field(&after, &field))
            return false;
        if (i == 1)
            found->program = field;
    }
    skip_blanks(&after);
    if (!skip(&after, '-')) {
        while (after.len && after.at[0] == '[') {
            bool quoted = false;
            for (i = 1; i < after.len && (quoted || after.at[i] != ']'); i++) {
                if (after.at[i] == '\\')
                    i++;
                else if (after.at[i] == '"')
                    quoted = !quoted;
            }
            if (i >= after.len)
                return false;
            after = part_of(after, i + 1, after.len - i - 1);
        }
    }
    skip_blanks(&after);
    if (begins_with(after, "\xEF\xBB\xBF"))
        after = part_of(after, 3, after.len - 3);
    found->syslog = true;
    found->around |= IN_SYSLOG;
    *rest = after;
    return true;
}

/* "stdout F " */
static bool strip_stream(text *rest)
{
    text after = *rest, stream, flag;
    if (!next_field(&after, &stream) || !next_field(&after, &flag) ||
        (!same_text(stream, "stdout") && !same_text(stream, "stderr")) || flag.len != 1 ||
        (flag.at[0] != 'F' && flag.at[0] != 'P'))
        return false;
    skip(&after, ' ');
    *rest = after;
    return true;
}

/* "TIME KEY", "TIME KEY COST": a line of its own, not one with a time before it. */
static bool is_plain(text rest)
{
    text field;
    uint64_t cost;
    if (!next_field(&rest, &field) || field.at[0] == '{')
        return false;
    if (!next_field(&rest, &field))
        return true;
    return number(&field, 1, 20, &cost) && field.len == 0 && !next_field(&rest, &field);
}

static bool strip_time(text *rest, surroundings *found, bool rfc5424)
{
    text after = *rest;
    uint64_t ns;
    moment m;
    if (after.len > 4 && after.at[4] == '-') {
        if (!rfc3339_time(&after, true, &ns) || !skip(&after, ' '))
            return false;
        if (rfc5424 ? !strip_rfc5424(&after, found) : strip_stream(&after))
            found->around |= rfc5424 ? 0u : IN_KUBERNETES;
        else if (!rfc5424 && !strip_host_and_tag(&after, found)) {
            if (is_plain(after))
                return false;
            found->around |= IN_KUBERNETES;
        }
        found->has_time = true;
        found->no_year = false;
        found->time_ns = ns;
        *rest = after;
        return true;
    }
    if (after.len < 15 || !month_and_day(&after, &m) || !skip(&after, ' ') ||
        !strip_host_and_tag(&after, found))
        return false;
    found->has_time = found->no_year = true;
    found->when = m;
    *rest = after;
    return true;
}

/* "web-1  | " */
static bool strip_compose(text *rest, surroundings *found)
{
    text name, after = *rest;
    size_t i;
    if (!next_field(&after, &name) || after.len == 0)
        return false;
    for (i = 0; i < name.len; i++)
        if (!is_word(name.at[i]) && name.at[i] != '@')
            return false;
    skip_blanks(&after);
    if (!skip(&after, '|'))
        return false;
    skip_colours(&after);
    skip(&after, ' ');
    found->around |= IN_COMPOSE;
    *rest = after;
    return true;
}

/* "[pod/web-5d/nginx] " */
static bool strip_pod(text *rest, surroundings *found)
{
    const char *end;
    size_t len;
    if (!begins_with(*rest, "[pod/"))
        return false;
    end = (const char *)memchr(rest->at, ']', rest->len);
    if (!end)
        return false;
    len = (size_t)(end - rest->at) + 1;
    *rest = part_of(*rest, len, rest->len - len);
    skip(rest, ' ');
    found->around |= IN_KUBERNETES;
    return true;
}

/* "<134>" or "<134>1 " */
static bool strip_priority(text *rest, bool *rfc5424)
{
    text after = *rest, version;
    uint64_t value;
    if (!skip(&after, '<') || !number(&after, 1, 3, &value) || !skip(&after, '>'))
        return false;
    version = after;
    *rfc5424 = skip(&version, '1') && skip(&version, ' ');
    *rest = *rfc5424 ? version : after;
    return true;
}

/* The line without what is before it; *found says what that was. */
text strip_prefixes(text line, surroundings *found)
{
    text rest = line;
    size_t i;
    bool more = true, rfc5424 = false;
    memset(found, 0, sizeof *found);
    for (i = 0; more && i < 5; i++) {
        skip_colours(&rest);
        more = strip_priority(&rest, &rfc5424) || strip_time(&rest, found, rfc5424) ||
               strip_compose(&rest, found) || strip_pod(&rest, found);
        if (found->syslog)
            break;
    }
    return rest;
}

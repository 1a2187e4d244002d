/* forms.c - which form a line has, and its parts

   Each line is asked for itself: a file may hold several forms. What is certain comes first: a
   quoted request after [time], an object of JSON. Nothing is guessed: a line that fits no form, or
   fits one but has no client where that form has it, is bad, with the reason. */
#include "replay.h"

#include <string.h>

const char NO_FORM[] = "it fits none of the forms that replay reads (see README)";

/* Months going back begin a new year. One month back is a late line, eleven forward a late one of
 * the year before. */
uint64_t year_of(file_state *s, const moment *m)
{
    if (s->month && m->month == s->month + 11)
        return s->year - 1;
    s->year += s->month && m->month + 1 < s->month;
    if (m->month > s->month || m->month + 1 < s->month)
        s->month = m->month;
    return s->year;
}

static const char *time_without_year(file_state *s, const moment *when, parts *p)
{
    moment m = *when;
    m.year = year_of(s, &m);
    p->no_year = true;
    if (moment_to_ns(&m, &p->time_ns))
        return NULL;
    return m.month == 2 && m.day == 29
               ? "29 February, but the log has no years and is taken to be of one that has none: "
                 "name the first line's year, --year N"
               : "its time is out of range";
}

/* "message repeated 5 times: [ MESSAGE]": MESSAGE, and how often. */
static text repeated(text message, uint64_t *times)
{
    text rest = message;
    *times = 1;
    if (!begins_with(rest, "message repeated "))
        return message;
    rest = part_of(rest, 17, rest.len - 17);
    if (!number(&rest, 1, 18, times) || !begins_with(rest, " times: ["))
        return message;
    rest = part_of(rest, 9, rest.len - 9);
    skip_blanks(&rest);
    if (rest.len && rest.at[rest.len - 1] == ']')
        rest.len--;
    return rest;
}

/* "Dec  7 11:05:07 web1 last message repeated 2 times" */
static bool last_repeated(text rest, parts *p)
{
    text field;
    if (!next_field(&rest, &field))
        return false;
    skip_blanks(&rest);
    if (!begins_with(rest, "last message repeated "))
        return false;
    rest = part_of(rest, 22, rest.len - 22);
    return number(&rest, 1, 18, &p->times) && begins_with(rest, " time");
}

/* "Mar  3 14:00:07 KEY WORD", a log of ssh made short; KEY an address, or a name before one WORD:
 * more words after a name are a message of a host, and in a file of syslog's it may be the
 * beginning of one. */
static const char *parse_short(file_state *s, text line, parts *p)
{
    text rest = line, field;
    moment m;
    const char *why;
    bool single;
    if (!month_and_day(&rest, &m) || !skip(&rest, ' '))
        return NO_FORM;
    p->form = FORM_SHORT;
    if (last_repeated(rest, p)) {
        p->same_as_before = true;
        return time_without_year(s, &m, p);
    }
    if (!next_field(&rest, &p->client))
        return "after the time there is no key";
    single = next_field(&rest, &field) && !next_field(&rest, &field);
    if (bare_address(p->client).at)
        p->client = bare_address(p->client);
    else if (!single || s->wrapped_seen || !is_name(p->client))
        return "after the time there is neither an address nor a program (\"sshd[1]:\")";
    why = time_without_year(s, &m, p);
    return why;
}

/* A line without what was before it. */
const char *parse_body(file_state *s, text line, parts *p, unsigned depth)
{
    size_t bracket;
    text rest;
    const char *why = NULL;
    parts saved = *p;
    if (line.len == 0)
        return "the line is empty behind what is before it";
    if (line.at[0] == '{')
        return parse_json(s, line, p, depth);
    if (find_clf(line, &bracket, &rest, &p->time_ns)) {
        p->no_year = false;
        return parse_clf(s, line, bracket, rest, p);
    }
    if (parse_haproxy(line, p, &why) || parse_s3(line, p, &why) || parse_elb(line, p, &why)) {
        p->no_year = false;
        return why;
    }
    *p = saved;
    return NO_FORM;
}

/* Syslog, a container or a load balancer wrote the time before it: then "TIME WORD" is the
 * beginning of such a line, not one of "TIME KEY". */
bool is_wrapped(text line)
{
    surroundings around;
    size_t bracket;
    uint64_t ns;
    text rest = strip_prefixes(line, &around), after;
    parts p;
    const char *why;
    return around.syslog || (line.len && is_digit(line.at[0]) && parse_elb(line, &p, &why)) ||
           (around.has_time && rest.len &&
            (rest.at[0] == '{' || find_clf(rest, &bracket, &after, &ns)));
}

/* Why a line that nothing fits is bad, by what can be seen of it. */
static const char *why_no_form(text line)
{
    if (begins_with(line, "[{") || same_text(line, "["))
        return "JSON must be one object a line: jq -c '.[]' FILE | replay [OPTION]... -";
    if (line.len && memchr(line.at, 0, line.len) && memchr(line.at, 0, line.len) != line.at &&
        line.len > 3 && !line.at[1] && !line.at[3])
        return "it looks like UTF-16: iconv -f UTF-16 -t UTF-8 FILE | replay [OPTION]... -";
    if (memchr(line.at, '[', line.len) && memchr(line.at, ']', line.len))
        return "there is no [time] before a quoted request";
    if (memchr(line.at, '[', line.len))
        return "the line is cut off before [time] and the request end";
    return NO_FORM;
}

static const char *parse_syslog(file_state *s, text line, const surroundings *around, parts *p)
{
    uint64_t times;
    bool ssh = begins_with(around->program, "sshd");
    text message = repeated(line, &times);
    const char *why = parse_body(s, message, p, 0);
    s->wrapped_seen = true;
    if (times > MAX_REPEATS || times == 0)
        return "it says that it is repeated 0 or more than 100,000 times";
    p->times = times;
    return why == NO_FORM ? parse_message(s, message, ssh, p) : why;
}

static const char *parse_rest(file_state *s, text line, parts *p)
{
    surroundings around;
    text rest;
    const char *why = NULL;
    if (line.len && is_digit(line.at[0]) && parse_elb(line, p, &why)) {
        s->wrapped_seen = true;
        return why;
    }
    rest = strip_prefixes(line, &around);
    p->around = around.around;
    if (around.no_year)
        why = time_without_year(s, &around.when, p);
    else
        p->time_ns = around.time_ns;
    if (why)
        return why;
    if (around.syslog)
        return parse_syslog(s, rest, &around, p);
    why = parse_body(s, rest, p, 0);
    s->wrapped_seen = s->wrapped_seen || (!why && around.has_time);
    if (why != NO_FORM)
        return why;
    if (rest.len > 4 && is_digit(rest.at[0]) && rest.at[4] == '-' && s->wrapped_seen)
        return "after the time there is no line: it was cut off";
    if (rest.len && is_digit(rest.at[0]))
        return parse_plain(rest, p);
    if (around.around == 0 && rest.len && rest.at[0] >= 'A' && rest.at[0] <= 'S')
        why = parse_short(s, rest, p);
    if (why == NO_FORM && around.has_time && s->opt->key == KEY_FIELD) {
        p->form = FORM_PLAIN; /* a time and the field that is asked for: that is enough */
        return NULL;
    }
    return why == NO_FORM ? why_no_form(rest) : why;
}

static void begin_parts(file_state *s, parts *p)
{
    static const parts nothing;
    *p = nothing;
    p->times = 1;
    s->unescaped_used = 0;
}

/* In a W3C log, if it is not as the columns say, any other form. */
static const char *parse_in_w3c(file_state *s, text line, parts *p)
{
    const char *why = parse_w3c(s, line, p);
    if (!why)
        return NULL;
    begin_parts(s, p);
    s->wrapped_seen = true; /* a date and a word are a line of this log cut off */
    return parse_rest(s, line, p) ? why : NULL;
}

const char *parse_line(file_state *s, text line, parts *p)
{
    size_t bracket;
    text rest;
    const char *why, *stripped;
    begin_parts(s, p);
    if (s->w3c)
        return parse_in_w3c(s, line, p);
    if (line.len && line.at[0] == '{')
        return parse_json(s, line, p, 0);
    if (!find_clf(line, &bracket, &rest, &p->time_ns))
        return parse_rest(s, line, p);
    why = parse_clf(s, line, bracket, rest, p);
    if (!why)
        return NULL;
    begin_parts(s, p); /* something may be before the client */
    stripped = parse_rest(s, line, p);
    return stripped && p->around == 0 ? why : stripped;
}

line_text form_name(form_kind f, unsigned around)
{
    static const char *const names[FORMS] = {
        "common",     "combined",   "Caddy JSON", "Traefik JSON", "nginx JSON", "JSON",
        "Amazon ALB", "Amazon ELB", "Amazon S3",  "CloudFront",   "IIS",        "W3C",
        "HAProxy",    "ssh",        "syslog",     "ssh, short",   "TIME KEY"};
    line_text out;
    snprintf(out.at, sizeof out.at, "%s%s%s%s%s%s", names[f],
             (f == FORM_COMMON || f == FORM_COMBINED) && around & WITH_VHOST ? " with virtual host"
                                                                             : "",
             around & IN_SYSLOG && f != FORM_SSH && f != FORM_SYSLOG ? " in syslog" : "",
             around & IN_COMPOSE ? " in docker compose" : "",
             around & IN_KUBERNETES ? " with a container's time or pod" : "",
             around & IN_DOCKER ? " in Docker's JSON" : "");
    return out;
}

/* times.c - the calendar: texts of times to ns since 1970 and back */
#include "replay.h"

#include <string.h>

static const char month_names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

bool is_leap(uint64_t year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static uint64_t days_in(uint64_t year, uint64_t month)
{
    return month == 2 ? 28u + is_leap(year) : 30u + ((month + (month > 7)) & 1u);
}

/* Days since 1 March of year 0 (Gregorian): with months from March the leap day comes last. */
static uint64_t day_number(uint64_t year, uint64_t month, uint64_t day)
{
    uint64_t y = month < 3 ? year - 1 : year, m = month < 3 ? month + 9 : month - 3;
    return y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
}

#define EPOCH_DAY UINT64_C(719468) /* day_number(1970, 1, 1) */

bool moment_to_ns(const moment *m, uint64_t *ns)
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

moment moment_of(uint64_t ns)
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

/* ---- reading --------------------------------------------------------------------------------- */

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

/* "14:00:07.25" */
static bool clock_time(text *t, moment *m)
{
    if (!(number(t, 2, 2, &m->hour) && skip(t, ':') && number(t, 2, 2, &m->minute) &&
          skip(t, ':') && number(t, 2, 2, &m->second)))
        return false;
    return fraction(t, &m->part_ns);
}

/* "Mar  3 14:00:07", "Mar 03 14:00:07.123456" */
bool month_and_day(text *t, moment *m)
{
    memset(m, 0, sizeof *m);
    if (!month_name(t, &m->month) || !skip(t, ' '))
        return false;
    skip(t, ' ');
    return number(t, 1, 2, &m->day) && skip(t, ' ') && clock_time(t, m);
}

/* "+0200", "+02:00", "-02", "Z" */
static bool zone(text *t, moment *m)
{
    uint64_t hours, minutes = 0;
    bool west;
    if (skip(t, 'Z') || skip(t, 'z'))
        return true;
    west = skip(t, '-');
    if (!west && !skip(t, '+'))
        return false;
    if (t->len < 2 || !is_digit(t->at[0]) || !is_digit(t->at[1]))
        return false;
    hours = (uint64_t)(t->at[0] - '0') * 10 + (uint64_t)(t->at[1] - '0');
    t->at += 2;
    t->len -= 2;
    if ((skip(t, ':') || (t->len && is_digit(t->at[0]))) && !number(t, 2, 2, &minutes))
        return false;
    if (hours * 60 + minutes > 14 * 60 || minutes > 59)
        return false;
    m->west_s = west ? hours * 3600 + minutes * 60 : 0;
    m->east_s = west ? 0 : hours * 3600 + minutes * 60;
    return true;
}

static bool day_month_year(text *t, moment *m)
{
    return number(t, 1, 2, &m->day) && skip(t, '/') && month_name(t, &m->month) && skip(t, '/') &&
           number(t, 4, 4, &m->year) && skip(t, ':') && clock_time(t, m);
}

bool clf_time(text *t, uint64_t *ns)
{
    static char last[32]; /* lines of the same second come together */
    static uint64_t last_ns;
    static size_t last_len;
    moment m = {0};
    text begin = *t;
    if (last_len && t->len >= last_len && memcmp(t->at, last, last_len) == 0) {
        t->at += last_len;
        t->len -= last_len;
        *ns = last_ns;
        return true;
    }
    if (t->len > 4 && is_digit(t->at[2]) && is_digit(t->at[3]))
        return rfc3339_time(t, true, ns);
    if (!day_month_year(t, &m) || !skip(t, ' ') || t->len < 5 || !is_digit(t->at[4]) ||
        !zone(t, &m) || !moment_to_ns(&m, ns))
        return false;
    last_len = begin.len - t->len;
    if (last_len > sizeof last || m.part_ns)
        last_len = 0;
    memcpy(last, begin.at, last_len);
    last_ns = *ns;
    return true;
}

bool local_time(text *t, uint64_t *ns)
{
    moment m = {0};
    return day_month_year(t, &m) && moment_to_ns(&m, ns);
}

bool rfc3339_time(text *t, bool zone_needed, uint64_t *ns)
{
    moment m = {0};
    if (!(number(t, 4, 4, &m.year) && skip(t, '-') && number(t, 2, 2, &m.month) && skip(t, '-') &&
          number(t, 2, 2, &m.day)))
        return false;
    if (!(skip(t, 'T') || skip(t, 't') || skip(t, ' ')) || !clock_time(t, &m))
        return false;
    if (t->len && (t->at[0] == 'Z' || t->at[0] == 'z' || t->at[0] == '+' || t->at[0] == '-')) {
        if (!zone(t, &m))
            return false;
    } else if (zone_needed) {
        return false;
    }
    return moment_to_ns(&m, ns);
}

/* Seconds, or ms, us, ns: no time in seconds that fits has more than eleven digits. */
bool epoch_time(text *t, uint64_t *ns)
{
    uint64_t value, part, unit;
    size_t digits = 0;
    while (digits < t->len && is_digit(t->at[digits]))
        digits++;
    unit = digits < 12 ? RATELIMIT_SECOND : digits < 15 ? 1000000 : digits < 18 ? 1000 : 1;
    if (!number(t, 1, 20, &value) || !fraction(t, &part))
        return false;
    part /= RATELIMIT_SECOND / unit;
    if (value > (UINT64_MAX - part) / unit)
        return false;
    *ns = value * unit + part;
    return true;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* "3 Mar 2026 14:00:07", without the year where the log has none. */
line_text time_text(uint64_t ns, dating date)
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

line_text iso_time(uint64_t ns)
{
    line_text out;
    moment m = moment_of(ns);
    snprintf(out.at, sizeof out.at, "%04u-%02u-%02uT%02u:%02u:%02u.%09uZ", (unsigned)m.year,
             (unsigned)m.month, (unsigned)m.day, (unsigned)m.hour, (unsigned)m.minute,
             (unsigned)m.second, (unsigned)m.part_ns);
    return out;
}

/* The text at a tick of an axis whose ticks are width apart. */
line_text tick_label(uint64_t ns, uint64_t width, dating date)
{
    line_text out;
    moment m = moment_of(ns);
    unsigned hour = (unsigned)m.hour, minute = (unsigned)m.minute, second = (unsigned)m.second;
    const char *name = month_names + (m.month - 1) * 3;
    if (width < RATELIMIT_SECOND)
        snprintf(out.at, sizeof out.at, "%02u.%03u", second,
                 (unsigned)(m.part_ns / RATELIMIT_MILLISECOND));
    else if (date == NO_DATE)
        return time_text(ns, date);
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

/* text.c - pieces of lines, and texts that can be printed without harm */
#include "replay.h"

#include <string.h>

text as_text(const char *string)
{
    text t;
    t.at = string;
    t.len = strlen(string);
    return t;
}

bool same_text(text t, const char *string)
{
    return t.at && strlen(string) == t.len && memcmp(t.at, string, t.len) == 0;
}

bool begins_with(text t, const char *string)
{
    size_t len = strlen(string);
    return t.len >= len && memcmp(t.at, string, len) == 0;
}

bool has_text(text t, const char *string)
{
    size_t len = strlen(string), i = 0;
    while (len && i + len <= t.len) {
        const char *at = (const char *)memchr(t.at + i, string[0], t.len - i - len + 1);
        if (!at)
            return false;
        if (memcmp(at, string, len) == 0)
            return true;
        i = (size_t)(at - t.at) + 1;
    }
    return len == 0;
}

void skip_blanks(text *t)
{
    while (t->len && is_blank(t->at[0])) {
        t->at++;
        t->len--;
    }
}

/* Takes the next field between blanks off the front of *rest. */
bool next_field(text *rest, text *field)
{
    size_t i = 0;
    skip_blanks(rest);
    while (i < rest->len && !is_blank(rest->at[i]))
        i++;
    *field = part_of(*rest, 0, i);
    *rest = part_of(*rest, i, rest->len - i);
    return i > 0;
}

/* The same, where a field that begins with a quote ends with the next one that has no backslash
 * before it; the quotes are taken off. False at the end, and if the second quote is missing. */
bool quoted_field(text *rest, text *field)
{
    size_t i = 1;
    skip_blanks(rest);
    if (rest->len == 0 || rest->at[0] != '"')
        return next_field(rest, field);
    while (i < rest->len && rest->at[i] != '"')
        i += rest->at[i] == '\\' ? 2 : 1;
    if (i >= rest->len) {
        *field = part_of(*rest, rest->len, 0);
        *rest = *field;
        return false;
    }
    *field = part_of(*rest, 1, i - 1);
    *rest = part_of(*rest, i + 1, rest->len - i - 1);
    return true;
}

/* Field `which` of a line, from 1, or from -1 backwards. */
bool field_number(text line, int64_t which, text *out)
{
    text rest = line;
    int64_t count = 0;
    bool whole = true;
    if (which < 0) {
        for (skip_blanks(&rest); rest.len; skip_blanks(&rest), count++)
            whole = quoted_field(&rest, out) && whole;
        which = count + 1 + which;
        rest = line;
    }
    if (which < 1 || !whole)
        return false;
    for (count = 0; count < which; count++)
        if (!quoted_field(&rest, out) && (count + 1 == which || rest.len == 0))
            return false;
    return true;
}

bool skip(text *t, char c)
{
    if (t->len == 0 || t->at[0] != c)
        return false;
    t->at++;
    t->len--;
    return true;
}

/* Takes a number of least to most digits off the front of *t. */
bool number(text *t, size_t least, size_t most, uint64_t *out)
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
bool fraction(text *t, uint64_t *ns)
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

/* ---- printing -------------------------------------------------------------------------------- */

/* The length of the character at the front of t if it can be printed without harm, else 0: it is
 * not UTF-8, a control character, or one that hides or turns around what is beside it. */
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

static void put_char(FILE *out, const char *at, size_t len, markup as)
{
    if (as == XML && strchr("<>&\"", at[0]))
        fprintf(out, "&#%d;", at[0]);
    else if (as == JSON_VALUE && (at[0] == '"' || at[0] == '\\'))
        fprintf(out, "\\%c", at[0]);
    else
        fwrite(at, 1, len, out);
}

/* Prints a text from the log so that it does no harm on a terminal or in a file: bytes that could,
 * as \xHH. At most `most` columns, the rest as "..."; returns how many it used. */
size_t put_text(FILE *out, text t, size_t most, markup as)
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
            fprintf(out, as == JSON_VALUE ? "\\\\x%02x" : "\\x%02x",
                    (unsigned)(unsigned char)t.at[0]);
        used += width;
        t.at += len ? len : 1;
        t.len -= len ? len : 1;
    }
    return used;
}

/* The beginning of t into out, in the same way. */
void copy_harmless(char *out, size_t size, text t)
{
    size_t used = 0;
    while (t.len) {
        size_t len = harmless(t), width = len ? len : 4;
        if (used + width + 4 > size) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (len)
            memcpy(out + used, t.at, len);
        else
            snprintf(out + used, size - used, "\\x%02x", (unsigned)(unsigned char)t.at[0]);
        used += width;
        t.at += len ? len : 1;
        t.len -= len ? len : 1;
    }
    out[used] = 0;
}

/* 1234567 as 1,234,567 */
line_text commas(uint64_t value)
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

line_text bytes_text(uint64_t bytes)
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

line_text percent(uint64_t part, uint64_t whole)
{
    line_text out;
    snprintf(out.at, sizeof out.at, "%.2f %%", whole ? 100.0 * (double)part / (double)whole : 0.0);
    return out;
}

/* "96 %", "0.4 %", "<0.1 %": what is not nothing is never shown as nothing, nor what is not all as
 * all. */
line_text short_percent(uint64_t part, uint64_t whole)
{
    line_text out;
    double value = whole ? 100.0 * (double)part / (double)whole : 0.0;
    if (part == 0 || part == whole)
        snprintf(out.at, sizeof out.at, "%s", part ? "100 %" : "0 %");
    else if (value < 0.1)
        snprintf(out.at, sizeof out.at, "<0.1 %%");
    else if (value < 9.95 || value >= 99.5)
        snprintf(out.at, sizeof out.at, "%.1f %%", value > 99.9 ? 99.9 : value);
    else
        snprintf(out.at, sizeof out.at, "%.0f %%", value);
    return out;
}

/* More at the end of out; what does not fit is dropped. */
void append(long_text *out, const char *format, ...)
{
    size_t len = strlen(out->at);
    va_list args;
    va_start(args, format);
    vsnprintf(out->at + len, sizeof out->at - len, format, args);
    va_end(args);
}

/* resp.c - Redis' protocol, version 2: requests in, answers out.

   A request is an array of strings, "*2\r\n$4\r\nPEEK\r\n$5\r\nalice\r\n", or a line of words, as
   one types it: words have blanks between, and a word with blanks stands in double quotes. It is
   read where it lies and nothing is kept between two calls: a request of which a part has come is
   read from its start again when there is more. That is cheap, because it is shorter than
   REQUEST_BYTES and its strings are jumped over. */
#include "server.h"

#include <stdarg.h>
#include <string.h>

static const char too_long[] = "the request is too long";

/* A number and CRLF behind the kind's letter. Returns as read_request. */
static long read_size(const char *data, size_t len, uint64_t most, uint64_t *number,
                      const char *why_not, const char **why)
{
    size_t at = 1;
    *number = 0;
    while (at < len && data[at] >= '0' && data[at] <= '9') {
        *number = *number * 10 + (uint64_t)(data[at] - '0');
        if (*number > most || at > 8) {
            *why = why_not;
            return BROKEN;
        }
        at++;
    }
    if (at == 1 && at < len)
        *why = why_not;
    else if (at < len && data[at] != '\r')
        *why = why_not;
    else if (at + 1 < len && data[at + 1] != '\n')
        *why = why_not;
    else
        return at + 1 < len ? (long)at + 2 : HALF;
    return BROKEN;
}

static long read_array(const char *data, size_t len, slice *args, size_t *count, const char **why)
{
    uint64_t number, size;
    size_t at, i;
    long used;
    if (len >= 5 && !memcmp(data, "*-1\r\n", 5)) { /* no array: Redis does nothing either */
        *count = 0;
        return 5;
    }
    if (len < 5 && !memcmp(data, "*-1\r\n", len))
        return HALF;
    used = read_size(data, len, MAX_ARGS, &number, "an array of 0 to 32 strings is wanted", why);
    if (used <= 0)
        return used;
    at = (size_t)used;
    for (i = 0; i < number; i++) {
        if (at == len)
            return HALF;
        if (data[at] != '$') {
            *why = "a string is wanted ('$')";
            return BROKEN;
        }
        used = read_size(data + at, len - at, REQUEST_BYTES, &size, too_long, why);
        if (used <= 0)
            return used;
        at += (size_t)used;
        if (at + size + 2 > REQUEST_BYTES) {
            *why = too_long;
            return BROKEN;
        }
        args[i].at = data + at;
        args[i].len = (size_t)size;
        at += (size_t)size;
        if ((at < len && data[at] != '\r') || (at + 1 < len && data[at + 1] != '\n')) {
            *why = "a string is longer than it says";
            return BROKEN;
        }
        at += 2;
        if (at > len)
            return HALF;
    }
    *count = (size_t)number;
    return (long)at;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static long read_line(const char *data, size_t len, slice *args, size_t *count, const char **why)
{
    size_t most = len < REQUEST_BYTES ? len : REQUEST_BYTES, at = 0;
    const char *end = (const char *)memchr(data, '\n', most);
    size_t line = end ? (size_t)(end - data) : 0;
    *count = 0;
    if (!end) {
        *why = too_long;
        return most < REQUEST_BYTES ? HALF : BROKEN;
    }
    if (line && data[line - 1] == '\r')
        line--;
    for (;;) {
        char stop = ' ';
        size_t from;
        while (at < line && is_blank(data[at]))
            at++;
        if (at == line)
            return end - data + 1;
        if (*count == MAX_ARGS) {
            *why = "more than 32 words";
            return BROKEN;
        }
        if (data[at] == '"') {
            stop = '"';
            at++;
        }
        from = at;
        while (at < line && (stop == '"' ? data[at] != '"' : !is_blank(data[at])))
            at++;
        args[*count].at = data + from;
        args[*count].len = at - from;
        ++*count;
        if (stop == '"' && (at == line || (at + 1 < line && !is_blank(data[at + 1])))) {
            *why = "a quoted word has no end, or a word begins right behind it";
            return BROKEN;
        }
        at += at < line;
    }
}

long read_request(const char *data, size_t len, slice *args, size_t *count, const char **why)
{
    return data[0] == '*' ? read_array(data, len, args, count, why)
                          : read_line(data, len, args, count, why);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* An error is a line: what a client sent may be in it, but no byte that ends a line. */
void put_error(text *t, const char *format, ...)
{
    char line[256];
    va_list arguments;
    char *at;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (at = line; *at; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
    text_add(t, "-", 1);
    text_add(t, line, (size_t)(at - line));
    text_add(t, "\r\n", 2);
}

void put_ok(text *t)
{
    text_add(t, "+OK\r\n", 5);
}

void put_simple(text *t, const char *word)
{
    text_add(t, "+", 1);
    text_add(t, word, strlen(word));
    text_add(t, "\r\n", 2);
}

static void put_number(text *t, char kind, int64_t n)
{
    char digits[24], *at = digits + sizeof digits;
    uint64_t rest = n < 0 ? (uint64_t)0 - (uint64_t)n : (uint64_t)n;
    *--at = '\n';
    *--at = '\r';
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (n < 0)
        *--at = '-';
    *--at = kind;
    text_add(t, at, (size_t)(digits + sizeof digits - at));
}

void put_bulk(text *t, const char *bytes, size_t len)
{
    put_number(t, '$', (int64_t)len);
    text_add(t, bytes, len);
    text_add(t, "\r\n", 2);
}

void put_array(text *t, size_t count)
{
    put_number(t, '*', (int64_t)count);
}

void put_integer(text *t, int64_t n)
{
    put_number(t, ':', n);
}

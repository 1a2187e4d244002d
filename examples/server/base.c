/* base.c - what everything else stands on: failing, saying, text that grows, numbers, files. */
#include "server.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *format, va_list arguments)
{
    fputs("ratelimit_server: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

void fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    exit(code);
}

void note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

static bool text_room(text *t, size_t len)
{
    size_t room = t->room ? t->room : 512;
    char *at;
    if (t->broken || len <= t->room - t->len)
        return !t->broken;
    while (room - t->len < len)
        room *= 2;
    at = (char *)realloc(t->at, room);
    if (!at) {
        t->broken = true;
        return false;
    }
    t->at = at;
    t->room = room;
    return true;
}

void text_add(text *t, const char *bytes, size_t len)
{
    if (!text_room(t, len))
        return;
    memcpy(t->at + t->len, bytes, len);
    t->len += len;
}

void text_say(text *t, const char *format, ...)
{
    va_list arguments;
    int len;
    va_start(arguments, format);
    len = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (len < 0 || !text_room(t, (size_t)len + 1))
        return;
    va_start(arguments, format);
    vsnprintf(t->at + t->len, (size_t)len + 1, format, arguments);
    va_end(arguments);
    t->len += (size_t)len;
}

bool same_word(slice s, const char *word)
{
    size_t i;
    for (i = 0; i < s.len && word[i]; i++)
        if (toupper((unsigned char)s.at[i]) != word[i])
            return false;
    return i == s.len && !word[i];
}

bool whole_number(slice s, uint64_t most, uint64_t *out)
{
    uint64_t number = 0;
    size_t i;
    for (i = 0; i < s.len; i++) {
        unsigned digit = (unsigned)(unsigned char)s.at[i] - '0';
        if (digit > 9 || number > (most - digit) / 10 || most < digit)
            return false;
        number = number * 10 + digit;
    }
    *out = number;
    return s.len > 0;
}

char *read_file(const char *path, size_t most, size_t *len, const char **why)
{
    FILE *file = fopen(path, "rb");
    char *bytes = (char *)malloc(most);
    *why = NULL;
    if (!bytes)
        *why = "no memory";
    else if (!file)
        *why = strerror(errno);
    else if ((*len = fread(bytes, 1, most, file)) == most)
        *why = "is too long";
    else if (ferror(file))
        *why = strerror(errno);
    if (file)
        fclose(file);
    if (*why) {
        free(bytes);
        bytes = NULL;
    }
    return bytes;
}

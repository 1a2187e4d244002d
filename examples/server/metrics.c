/* metrics.c - what the server counts, for INFO and for Prometheus over HTTP. */
#include "server.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void server_info(text *t)
{
    ratelimit_counts counts;
    ratelimit_limiter_counts(&limiter, &counts);
    text_say(t, "# Server\r\nserver:ratelimit\r\nversion:%s\r\nprocess_id:%ld\r\nloading:0\r\n",
             RATELIMIT_VERSION_TEXT, (long)getpid());
    text_say(t, "\r\n# Clients\r\nconnected_clients:%zu\r\nmost_bytes:%zu\r\n", client_count(),
             most_bytes());
    text_say(t, "\r\n# Stats\r\nallowed:%llu\r\nrefused:%llu\r\nreloads:%llu\r\n",
             (unsigned long long)counts.allowed, (unsigned long long)counts.refused,
             (unsigned long long)reloads);
    text_say(t, "failed_reloads:%llu\r\n", (unsigned long long)failed_reloads);
#define COUNTER(name, help) text_say(t, #name ":%llu\r\n", (unsigned long long)counted.name);
    COUNTERS(COUNTER)
#undef COUNTER
}

static void say_metric(text *t, const char *name, const char *type, const char *help,
                       uint64_t value)
{
    text_say(t,
             "# HELP ratelimit_server_%s %s\n# TYPE ratelimit_server_%s %s\nratelimit_server_%s "
             "%llu\n",
             name, help, name, type, name, (unsigned long long)value);
}

/* The library's metrics; the table is counted line by line for them. */
static void add_library(text *t)
{
    size_t room = 4096, len;
    for (;;) {
        char *words = (char *)malloc(room);
        if (!words) {
            t->broken = true;
            return;
        }
        len = ratelimit_metrics(&limiter, table, now_ns(NULL), NULL, words, room);
        if (len < room)
            text_add(t, words, len);
        free(words);
        if (len < room)
            return;
        room = len + 1024;
    }
}

/* All metrics. Reading the table takes time that all clients wait for, so it is done at most once a
   second. */
static const text *all_metrics(void)
{
    static text words;
    static uint64_t made_ns;
    if (words.len && !words.broken && now_ns(NULL) - made_ns < RATELIMIT_SECOND)
        return &words;
    words.len = 0;
    words.broken = false;
    add_library(&words);
    say_metric(&words, "clients", "gauge", "connections now", client_count());
    say_metric(&words, "reloads_total", "counter", "rules read again", reloads);
    say_metric(&words, "failed_reloads_total", "counter", "rules not taken over for a fault",
               failed_reloads);
#define COUNTER(name, help) say_metric(&words, #name "_total", "counter", help, counted.name);
    COUNTERS(COUNTER)
#undef COUNTER
    made_ns = now_ns(NULL);
    return &words;
}

static void put_http(text *out, const char *status, const char *bytes, size_t len)
{
    text_say(out,
             "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
             "Content-Length: %zu\r\nConnection: close\r\n\r\n",
             status, len);
    text_add(out, bytes, len);
}

static void put_status(text *out, const char *status)
{
    put_http(out, status, "", 0);
}

static bool begins(const char *data, size_t len, const char *with)
{
    return len >= strlen(with) && memcmp(data, with, strlen(with)) == 0;
}

/* Where the empty line behind the fields ends; 0: it has not come. */
static size_t end_of_head(const char *data, size_t len)
{
    size_t i;
    for (i = 3; i < len; i++)
        if (data[i] == '\n' && data[i - 1] == '\r' && data[i - 2] == '\n' && data[i - 3] == '\r')
            return i + 1;
    return 0;
}

long answer_http(const char *data, size_t len, text *out)
{
    size_t head = end_of_head(data, len < REQUEST_BYTES ? len : REQUEST_BYTES);
    const text *words;
    if (!head && len < REQUEST_BYTES)
        return HALF;
    if (!head) {
        put_status(out, "431 Request Header Fields Too Large");
        return BROKEN;
    }
    if (!begins(data, len, "GET ")) {
        put_status(out, "405 Method Not Allowed");
    } else if (!begins(data, len, "GET /metrics ") && !begins(data, len, "GET /metrics?")) {
        put_status(out, "404 Not Found");
    } else {
        words = all_metrics();
        if (words->broken)
            put_status(out, "503 Service Unavailable");
        else
            put_http(out, "200 OK", words->at, words->len);
    }
    return (long)head;
}

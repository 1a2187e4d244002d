/* config.c - one program, standalone or on Redis, by a line of its configuration file

   What it shows: everything that depends on where buckets are kept is in open_store. All else, the
   rules, the failure policy and each decision, is the same code. Here it is a daemon that answers
   lines: an event's rule and key come in, allowed or refused goes out.

   Package: libinih-dev libhiredis-dev redis-server
   Build:   cc -std=c99 -O2 -I. examples/config.c -o config -linih -lhiredis -pthread

   Try it:  printf 'login alice\nlogin alice\n' | ./config examples/config.ini

   The file is explained in config.ini. A fault in it is named with its line, and nothing starts. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RULES = 200, MAX_TEXT = 64, RULES_TEXT_BYTES = MAX_RULES * 160 };

typedef struct settings {
    char store[MAX_TEXT]; /* "table", "redis" */
    uint64_t keys, lease_percent, nodes;
    ratelimit_failure on_failure;
    char host[MAX_TEXT], prefix[MAX_TEXT], password[MAX_TEXT];
    uint64_t port, timeout_ms, cluster;
    char rules[RULES_TEXT_BYTES]; /* as ratelimit_rules_load reads them */
    size_t rules_len;
    FILE *file;
    int line, wrong_line; /* being read; of the first fault, 0 if there is none */
    char wrong[200];      /* that fault */
} settings;

static unsigned char rules_memory[RATELIMIT_RULES_BYTES(MAX_RULES)];
static ratelimit_rules *rules;
static void *table_memory;
static ratelimit_redis *redis;
static ratelimit_tier tier;
static ratelimit_limiter limiter;

static void fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("config: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

/* ---- the one place that knows of stores ------------------------------------------------------ */

static ratelimit_table *new_table(uint64_t keys)
{
    size_t bytes = keys <= SIZE_MAX ? ratelimit_table_bytes((size_t)keys) : 0;
    ratelimit_table *table = NULL;
    table_memory = bytes ? malloc(bytes) : NULL;
    if (!table_memory || ratelimit_table_init(&table, table_memory, bytes, NULL))
        fail(1, "no memory for %llu keys", (unsigned long long)keys);
    return table;
}

static ratelimit_store open_redis(const settings *s)
{
    ratelimit_redis_options options = {0};
    ratelimit_status status;
    options.host = s->host;
    options.port = (int)s->port;
    options.prefix = s->prefix;
    options.password = s->password[0] ? s->password : NULL;
    options.timeout_ms = options.connect_timeout_ms = (uint32_t)s->timeout_ms;
    options.cluster = s->cluster != 0;
    redis = ratelimit_redis_open(&options, &status);
    if (!redis)
        fail(1, "Redis at %s:%d: %s", s->host, options.port, ratelimit_status_text(status));
    return ratelimit_redis_store(redis);
}

static ratelimit_store open_store(const settings *s)
{
    if (!strcmp(s->store, "table"))
        return ratelimit_table_store(new_table(s->keys), NULL, NULL);
    if (!s->lease_percent && !s->nodes)
        return open_redis(s);
    tier.store = open_redis(s);
    tier.table = new_table(3 * s->keys); /* up to three places for each key */
    tier.lease_percent = (uint32_t)s->lease_percent;
    tier.nodes = (uint32_t)s->nodes;
    return ratelimit_tier_store(&tier);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Notes the first fault; 0, which is a failure to inih. */
static int wrong(settings *s, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!s->wrong_line) {
        s->wrong_line = s->line;
        vsnprintf(s->wrong, sizeof s->wrong, format, arguments);
    }
    va_end(arguments);
    return 0;
}

/* For inih, which would take a line that is too long, or has a NUL, for another one. */
static char *read_line(char *line, int bytes, void *self)
{
    settings *s = self;
    int c = EOF, len = 0;
    s->line++;
    while (len < bytes - 1 && c != '\n' && (c = getc(s->file)) != EOF)
        line[len++] = (char)c;
    line[len] = '\0';
    if (strlen(line) < (size_t)len)
        wrong(s, "a NUL byte");
    else if (c != EOF && c != '\n')
        wrong(s, "a line of more than %d bytes", bytes - 1);
    return len ? line : NULL;
}

static int read_text(settings *s, const char *name, const char *value, char *out)
{
    size_t len = strlen(value);
    if (len >= MAX_TEXT)
        return wrong(s, "%s is longer than %d bytes", name, MAX_TEXT - 1);
    memcpy(out, value, len + 1);
    return 1;
}

static int read_number(settings *s, const char *name, const char *value, uint64_t least,
                       uint64_t most, uint64_t *out)
{
    size_t digits = strspn(value, "0123456789");
    unsigned long long number = strtoull(value, NULL, 10);
    if (!digits || value[digits] || digits > 18 || number < least || number > most)
        return wrong(s, "%s wants a number from %llu to %llu, not \"%.40s\"", name,
                     (unsigned long long)least, (unsigned long long)most, value);
    *out = number;
    return 1;
}

static int read_policy(settings *s, const char *value)
{
    if (strcmp(value, "open") != 0 && strcmp(value, "closed") != 0)
        return wrong(s, "on_failure wants open or closed, not \"%.40s\"", value);
    s->on_failure = strcmp(value, "open") ? RATELIMIT_FAIL_CLOSED : RATELIMIT_FAIL_OPEN;
    return 1;
}

/* Loads all rules so far, so that a fault is found at its own line. */
static int read_rule(settings *s, const char *name, const char *value)
{
    ratelimit_fault fault;
    size_t room = sizeof s->rules - s->rules_len;
    int len = snprintf(s->rules + s->rules_len, room, "%s %s\n", name, value);
    if (len < 0 || (size_t)len >= room)
        return wrong(s, "the rules are too long");
    if (ratelimit_rules_load(rules, s->rules, s->rules_len + (size_t)len, &fault) != RATELIMIT_OK)
        return wrong(s, "rule %.60s: %s", name, fault.what);
    s->rules_len += (size_t)len;
    return 1;
}

static int read_setting(void *self, const char *section, const char *name, const char *value)
{
    settings *s = self;
    if (!strcmp(section, "rules"))
        return read_rule(s, name, value);
    if (!strcmp(section, "limiter")) {
        if (!strcmp(name, "store"))
            return !strcmp(value, "table") || !strcmp(value, "redis")
                       ? read_text(s, name, value, s->store)
                       : wrong(s, "store wants table or redis, not \"%.40s\"", value);
        if (!strcmp(name, "keys"))
            return read_number(s, name, value, 1, 1000000000, &s->keys);
        if (!strcmp(name, "on_failure"))
            return read_policy(s, value);
    } else if (!strcmp(section, "redis")) {
        if (!strcmp(name, "host"))
            return read_text(s, name, value, s->host);
        if (!strcmp(name, "port"))
            return read_number(s, name, value, 1, 65535, &s->port);
        if (!strcmp(name, "password"))
            return read_text(s, name, value, s->password);
        if (!strcmp(name, "prefix"))
            return read_text(s, name, value, s->prefix);
        if (!strcmp(name, "cluster"))
            return read_number(s, name, value, 0, 1, &s->cluster);
        if (!strcmp(name, "timeout_ms"))
            return read_number(s, name, value, 1, 60000, &s->timeout_ms);
        if (!strcmp(name, "lease_percent"))
            return read_number(s, name, value, 0, 100, &s->lease_percent);
        if (!strcmp(name, "nodes"))
            return read_number(s, name, value, 0, 1000000, &s->nodes);
    }
    return wrong(s, "unknown setting [%.40s] %.40s", section, name);
}

static void read_settings(settings *s, const char *path)
{
    static const settings defaults = {.store = "table",
                                      .keys = 10000,
                                      .host = "127.0.0.1",
                                      .port = 6379,
                                      .prefix = "ratelimit:",
                                      .timeout_ms = 100};
    int line;
    *s = defaults;
    if (ratelimit_rules_init(&rules, rules_memory, sizeof rules_memory, MAX_RULES))
        fail(1, "no room for rules");
    s->file = fopen(path, "rb");
    if (!s->file)
        fail(2, "%s: %s", path, strerror(errno));
    line = ini_parse_stream(read_line, s, read_setting, s);
    if (ferror(s->file) || line < 0)
        fail(2, "%s: can't be read", path);
    fclose(s->file);
    if (s->wrong_line && (!line || s->wrong_line <= line))
        fail(2, "%s:%d: %s", path, s->wrong_line, s->wrong);
    if (line) /* inih itself saw it */
        fail(2, "%s:%d: not a line \"name = value\"", path, line);
    if (!s->rules_len)
        fail(2, "%s: no [rules]", path);
}

/* ---- the program itself: knows nothing of where buckets are ---------------------------------- */

static void answer(const char *rule, const char *key)
{
    ratelimit_rule_request asked = {rule, RATELIMIT_REQUEST(key, strlen(key), NULL, 1)};
    ratelimit_result result;
    const ratelimit_result *r = &result;
    ratelimit_take_rules(&limiter, &asked, &result, NULL, 1);
    if (r->status == RATELIMIT_STORE_FAILED && r->source == RATELIMIT_FROM_POLICY) {
        char why[256];
        printf("%s %s: %s (%s)\n", rule, key, r->allowed ? "allowed" : "refused",
               redis ? ratelimit_redis_error(redis, why, sizeof why) : "no store");
    } else if (r->allowed) {
        printf("%s %s: allowed, %llu left\n", rule, key, (unsigned long long)r->remaining);
    } else if (r->status == RATELIMIT_BAD_LIMIT) {
        printf("%s %s: refused, there is no such rule\n", rule, key);
    } else if (r->retry_after_ns == RATELIMIT_FOREVER || !r->retry_after_ns) {
        printf("%s %s: refused (%s)\n", rule, key, ratelimit_status_text(r->status));
    } else {
        uint64_t ms = (r->retry_after_ns + 999999) / 1000000; /* never too early */
        printf("%s %s: refused, again in %llu.%03u s\n", rule, key, (unsigned long long)(ms / 1000),
               (unsigned)(ms % 1000));
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static settings s;
    static char line[1024];
    if (argc != 2 || argv[1][0] == '-') {
        fputs("usage: config FILE.ini < lines of \"RULE KEY\"\n", stderr);
        return 2;
    }
    read_settings(&s, argv[1]);
    limiter.rules = rules;
    limiter.on_failure = s.on_failure;
    if (ratelimit_init(&limiter, open_store(&s)) != RATELIMIT_OK)
        fail(1, "no limiter");
    while (fgets(line, sizeof line, stdin)) {
        char *rule, *key, *rest = NULL;
        bool whole = strchr(line, '\n') || feof(stdin);
        while (!whole && !strchr(line, '\n') && fgets(line, sizeof line, stdin)) /* skip its rest */
            ;
        rule = whole ? strtok_r(line, " \t\r\n", &rest) : NULL;
        key = rule ? strtok_r(NULL, " \t\r\n", &rest) : NULL;
        if (key && !strtok_r(NULL, " \t\r\n", &rest))
            answer(rule, key);
        else if (!whole || rule)
            puts("a line is a rule and a key, of together less than 1,000 bytes");
        fflush(stdout);
    }
    ratelimit_close(&limiter);
    ratelimit_redis_close(redis); /* NULL is fine */
    free(table_memory);
    return 0;
}

/* Records and answers of etcd, as examples/rules_etcd.c reads them: a limit or a reason, and
 * whatever comes, a set of rules that loads. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>

static FILE *silence; /* what it has to say about broken records */
#undef stderr
#define stderr silence
#define main   rules_etcd_main
int main(int argc, char **argv);
#include "../../examples/rules_etcd.c"
#undef main
#undef stderr

#include "fuzz.h"

const char *const fuzz_seeds[] = {
    "{\"rate\":10.0,\"capacity\":20,\"burst\":5,\"window\":\"1s\",\"description\":\"x\"}",
    "{\"description\":\"\\\\\\\"rate\\\":1\",\"rate\" : 0.10,\"burst\":20}",
    "{\"rate\":1e3,\"capacity\":-1}",
    "{\"rate\":[{\"rate\":1}],\"capacity\":{}}",
    "{\"rate\":99999999999999999999,\"capacity\":2.5,\"window\":\"1m30s\"}",
    "{\"r\\u0061te\":1,\"capacity\":2,\"window\":\"\\u0000\"}",
    "{\"header\":{\"revision\":\"7\"},\"kvs\":[{\"key\":\"L2NvbmZpZy9hL2IvcmF0ZWxpbWl0L3g=\","
    "\"value\":\"eyJyYXRlIjoxLCJjYXBhY2l0eSI6Mn0=\",\"mod_revision\":\"7\"}],\"count\":\"1\"}",
    "{\"result\":{\"header\":{\"revision\":\"8\"},\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":"
    "\"L2NvbmZpZy9hL2IvcmF0ZWxpbWl0L3g=\",\"mod_revision\":\"8\"}}]}}\n",
    "{\"result\":{\"canceled\":true,\"compact_revision\":\"4\"}}\n",
    "{\"error\":{\"message\":\"no\"}}",
    "[]",
    NULL};

static void one_record(const char *text, size_t size)
{
    ratelimit_limit limit, again;
    char why[128], form[80];
    const char *wrong = record_limit(text, size, &limit, why);
    if (wrong) {
        MUST(*wrong && strlen(wrong) < 128);
        for (; *wrong; wrong++)
            MUST(*wrong >= ' ' && *wrong <= '~');
        return;
    }
    MUST(ratelimit_limit_check(&limit) == RATELIMIT_OK && limit.burst != UINT64_MAX);
    MUST(ratelimit_limit_format(&limit, form, sizeof form) < sizeof form);
    MUST(ratelimit_limit_parse(&again, form) == RATELIMIT_OK);
    MUST(memcmp(&again, &limit, sizeof limit) == 0);
}

/* encode64 and decode64 undo each other; anything else is refused or decoded in bounds. */
static void base64(const char *text, size_t size)
{
    char *coded = malloc(4 * size + 8);
    size_t len;
    MUST(coded);
    encode64(text, size, coded);
    MUST(strlen(coded) == (size + 2) / 3 * 4);
    MUST(decode64(coded, &len) && len == size && memcmp(coded, text, size) == 0 && !coded[len]);
    memcpy(coded, text, size + 1);
    if (decode64(coded, &len))
        MUST(len <= size / 4 * 3 && !coded[len]);
    free(coded);
}

static void set_loads(etcd *e)
{
    ratelimit_rule rule;
    size_t i = 0;
    while (ratelimit_rules_at(e->store->rules, i, &rule))
        i++;
    MUST(i == e->store->count);
}

static void event(etcd *e, const char *key, size_t key_len, const char *value, size_t len)
{
    char *key64 = malloc(2 * key_len + 8), *value64 = malloc(2 * len + 8);
    char *line = malloc(2 * (key_len + len) + 128);
    MUST(key64 && value64 && line);
    encode64(key, key_len, key64);
    encode64(value, len, value64);
    snprintf(line, 2 * (key_len + len) + 128,
             "{\"result\":{\"events\":[{\"kv\":{\"key\":\"%s\",\"value\":\"%s\","
             "\"mod_revision\":\"9\"}}]}}",
             key64, value64);
    MUST(!take_line(e, line, strlen(line)));
    set_loads(e);
    free(key64);
    free(value64);
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char memory[RATELIMIT_RULES_BYTES(MAX_RULES)];
    static const char name[] = "/config/a/b/ratelimit/y";
    static store s;
    static etcd e;
    char *text = fuzz_text(data, size), key[128];
    int len = snprintf(key, sizeof key, "/config/a/b/ratelimit/%.70s", text);
    if (!silence)
        silence = fopen("/dev/null", "w");
    MUST(silence &&
         ratelimit_rules_init(&s.rules, memory, sizeof memory, MAX_RULES) == RATELIMIT_OK);
    strcpy(s.prefix, "/config/a/b/ratelimit/");
    s.count = 0;
    e.store = &s;
    one_record(text, size);
    base64(text, size);
    event(&e, key, (size_t)len, "{\"rate\":1,\"capacity\":2}", 23);
    event(&e, name, sizeof name - 1, text, size);
    e.answer = text;
    e.len = size;
    (void)take_all(&e);
    set_loads(&e);
    e.end = NULL;
    (void)take_lines(&e);
    set_loads(&e);
    free(text);
    return 0;
}

/* HTTP fields and metrics into buffers of every size: whole or not at all, and never beyond. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "fuzz.h"

const char *const fuzz_seeds[] = {
    "10/s burst 20\nlogin 5/m\nwith\"quote\\ 1/s\n",
    "1000/d window\n",
    "9223372036854775807/ns burst 9223372036854775807\ndefault unlimited\n",
    "unlimited\n"
    "\x01\x02\xff\xff\xff\xff\xff\xff\xff\xff\x01\xff\xff\xff\xff\xff\xff\xff\xff\x04\xff\xff\xff"
    "\xff"
    "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    "\xff",
    "bad\nlogin",
    NULL};

/* The input read as numbers, then zeros. */
typedef struct input {
    const uint8_t *at, *end;
} input;

static uint64_t number(input *in, uint64_t bytes)
{
    uint64_t value = 0;
    for (; bytes && in->at != in->end; bytes--)
        value = value << 8 | *in->at++;
    return value;
}

/* Any answer whatsoever, also one that no store gives. */
static ratelimit_result make_result(input *in)
{
    ratelimit_result r;
    memset(&r, 0, sizeof r);
    r.status = (ratelimit_status)(number(in, 1) % 21);
    r.allowed = number(in, 1) & 1;
    r.burst = number(in, number(in, 1) % 9);
    r.remaining = number(in, number(in, 1) % 9);
    r.retry_after_ns = number(in, number(in, 1) % 9);
    r.reset_after_ns = number(in, number(in, 1) % 9);
    r.source = (ratelimit_source)(number(in, 1) % 5);
    return r;
}

/* The value of the line that begins with name, or NULL: a rule's name may look like a field. */
static const char *line_of(const char *text, const char *name)
{
    while (*text && strncmp(text, name, strlen(name)) != 0)
        text = strstr(text, "\r\n") + 2;
    return *text ? text + strlen(name) : NULL;
}

/* Lines of printable ASCII that end in CRLF, each "Name: value". */
static void fields_are_sound(const char *text, size_t len, const ratelimit_result *r, unsigned sets)
{
    const char *line = text, *end;
    while (line != text + len) {
        for (end = line; *end >= ' ' && *end <= '~';)
            end++;
        MUST(end[0] == '\r' && end[1] == '\n');
        MUST(memchr(line, ':', (size_t)(end - line)) && *line != ' ' && end[-1] != ' ');
        line = end + 2;
    }
    MUST(!line_of(text, "Retry-After: ") || (!r->allowed && (sets & RATELIMIT_HTTP_RETRY_AFTER)));
    MUST(!line_of(text, "Retry-After: 0"));
    if (r->status == RATELIMIT_DENIED && !r->allowed && (sets & RATELIMIT_HTTP_RETRY_AFTER) &&
        r->retry_after_ns != RATELIMIT_FOREVER) {
        uint64_t ns = r->retry_after_ns ? r->retry_after_ns : 1;
        MUST(line_of(text, "Retry-After: "));
        MUST(strtoull(line_of(text, "Retry-After: "), NULL, 10) ==
             ns / RATELIMIT_SECOND + (ns % RATELIMIT_SECOND != 0));
    }
    MUST(!line_of(text, "X-RateLimit") || (sets & RATELIMIT_HTTP_X));
    MUST(!line_of(text, "RateLimit") || (sets & RATELIMIT_HTTP_DRAFT));
    MUST(!len || !r->allowed || r->status == RATELIMIT_OK);
}

static void http_at_every_size(const ratelimit_result *r, const ratelimit_limit *limit,
                               unsigned sets)
{
    char text[320];
    size_t bytes, len = ratelimit_http_fields(r, limit, sets, text, sizeof text);
    MUST(len < sizeof text && strlen(text) == len);
    MUST(ratelimit_http_fields(r, limit, sets, NULL, 0) == len);
    fields_are_sound(text, len, r, sets);
    for (bytes = 0; bytes <= len + 2; bytes++) {
        unsigned char *buf = fuzz_buffer(bytes);
        MUST(ratelimit_http_fields(r, limit, sets, (char *)buf, bytes) == len);
        if (bytes > len)
            MUST(memcmp(buf, text, len + 1) == 0 && fuzz_untouched(buf, bytes, len + 1));
        else
            MUST((!bytes || !buf[0]) && fuzz_untouched(buf, bytes, bytes));
        fuzz_free(buf);
    }
}

static void statuses(const ratelimit_result *r)
{
    int http = ratelimit_http_status(r);
    MUST((http == 200) == r->allowed);
    MUST(http == 200 || http == 429 || http == 500 || http == 503);
    MUST(*ratelimit_status_text(r->status));
}

/* Samples are `name{label="text"} number`, with quotes and backslashes of names escaped. */
static void metrics_are_sound(const char *text, size_t len)
{
    const char *line = text, *at;
    while (line != text + len) {
        const char *end = memchr(line, '\n', (size_t)(text + len - line));
        MUST(end);
        at = memchr(line, '{', (size_t)(end - line));
        if (*line != '#' && at) {
            at = strstr(at, "=\"") + 2;
            while (*at != '"')
                at += *at == '\\' ? 2 : 1;
            MUST(strncmp(at, "\",instance=\"3\"} ", 15) == 0 || strncmp(at, "\"} ", 3) == 0);
        }
        line = end + 1;
    }
}

static void metrics_at_some_sizes(const ratelimit_limiter *l, const ratelimit_table *table,
                                  size_t size)
{
    const char *labels = size % 2 ? "instance=\"3\"" : NULL;
    size_t len = ratelimit_metrics(l, table, 0, labels, NULL, 0), i;
    char *text = malloc(len + 1);
    const size_t sizes[] = {0, 1, 2, size % (len + 2), len - 1, len, len + 1, len + 2};
    MUST(text && ratelimit_metrics(l, table, 0, labels, text, len + 1) == len &&
         strlen(text) == len);
    metrics_are_sound(text, len);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *buf = fuzz_buffer(sizes[i]);
        MUST(ratelimit_metrics(l, table, 0, labels, (char *)buf, sizes[i]) == len);
        MUST(fuzz_untouched(buf, sizes[i], sizes[i] > len ? len + 1 : sizes[i]));
        MUST(!sizes[i] || (sizes[i] > len ? memcmp(buf, text, len + 1) == 0 : !buf[0]));
        fuzz_free(buf);
    }
    free(text);
}

/* A result for each rule, all the same: names of any bytes give fields of printable ASCII. */
static void fields_of_rules(ratelimit_rules *rules, const char *text, size_t text_len,
                            const ratelimit_result *r, unsigned sets)
{
    ratelimit_result res[9];
    ratelimit_rule rule[9];
    size_t count, len;
    char *buf;
    for (count = 0; count < 9 && ratelimit_rules_at(rules, count, &rule[count]); count++) {
        res[count] = *r;
        rule[count].shadow = false;
    }
    text_len = text_len < 50 ? text_len : 50;
    len = ratelimit_http_rule_fields(res, rule, count, text, text_len, sets, NULL, 0);
    MUST(len < 512 * (count + 1) + 3 * count * text_len);
    buf = malloc(len + 1);
    MUST(buf);
    MUST(ratelimit_http_rule_fields(res, rule, count, text, text_len, sets, buf, len + 1) == len);
    if (count)
        fields_are_sound(buf, len, r, sets);
    free(buf);
}

static void metrics(const char *rules_text, size_t rules_len, input *in, const ratelimit_result *r,
                    unsigned sets)
{
    static unsigned char memory[RATELIMIT_RULES_BYTES(9)], places[RATELIMIT_TABLE_BYTES(9)];
    static const ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0, 0};
    ratelimit_rules *rules;
    ratelimit_table *table;
    ratelimit_limiter l = {0};
    ratelimit_tier tier = {0};
    MUST(ratelimit_rules_init(&rules, memory, sizeof memory, 9) == RATELIMIT_OK);
    MUST(ratelimit_table_init(&table, places, sizeof places, &options) == RATELIMIT_OK);
    tier.store = ratelimit_table_store(table, NULL, NULL);
    tier.table = table;
    l.rules = rules;
    MUST(ratelimit_init(&l, ratelimit_tier_store(&tier)) == RATELIMIT_OK);
    (void)ratelimit_rules_load(rules, rules_text, rules_len, NULL);
    fields_of_rules(rules, rules_text, rules_len, r, sets);
    l.counts.allowed = number(in, 8);
    tier.counts.leased = number(in, 8);
    metrics_at_some_sizes(&l, table, (size_t)number(in, 2));
}

/* A line with a limit, rules, then bytes for numbers: each read as far as it is there. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size), *newline = strchr(text, '\n');
    size_t first = newline ? (size_t)(newline - text) : size;
    input in = {data, data + size};
    ratelimit_limit limit;
    ratelimit_result r = make_result(&in);
    unsigned sets = (unsigned)number(&in, 1);
    if (ratelimit_limit_parse_n(&limit, text, first, NULL) != RATELIMIT_OK)
        memset(&limit, 0, sizeof limit);
    http_at_every_size(&r, sets & 8 ? NULL : &limit, sets);
    statuses(&r);
    metrics(newline ? newline + 1 : text, newline ? size - first - 1 : size, &in, &r, sets);
    free(text);
    return 0;
}

/* test_text.c - what is written for others: HTTP fields, statuses of other protocols, metrics; the
 * texts of statuses; scopes of names; the log helper.
 *
 *     cc -std=c99 -O2 -I. -Itests tests/test_text.c -lpthread
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned long long log_now(void);
#define RATELIMIT_LOG_NOW log_now()
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK RATELIMIT_OK

static uint64_t now_ns;

static unsigned long long log_now(void)
{
    return now_ns;
}

/* ---- HTTP ------------------------------------------------------------------------------------ */

static ratelimit_result refused(uint64_t retry_ns)
{
    ratelimit_result res;
    memset(&res, 0, sizeof res);
    res.status = RATELIMIT_DENIED;
    res.burst = 10;
    res.retry_after_ns = retry_ns;
    res.reset_after_ns = 60 * SEC;
    return res;
}

static const char *fields(const ratelimit_result *res, const ratelimit_limit *limit, unsigned sets)
{
    static char text[RATELIMIT_HTTP_FIELDS_BYTES];
    memset(text, 'x', sizeof text);
    CHECK_U64(ratelimit_http_fields(res, limit, sets, text, sizeof text), strlen(text));
    return text;
}

/* B42 */
static void retry_after_is_rounded_up_and_never_0_on_a_refusal(void)
{
    static const struct {
        uint64_t retry_ns;
        const char *text;
    } rows[] = {
        {1, "Retry-After: 1\r\n"},
        {200 * MS, "Retry-After: 1\r\n"},
        {1900 * MS, "Retry-After: 2\r\n"},
        {2 * SEC, "Retry-After: 2\r\n"},
        {2 * SEC + 1, "Retry-After: 3\r\n"},
        {0, "Retry-After: 1\r\n"},
        {SEC, "Retry-After: 1\r\n"},
        {UINT64_MAX - 1, "Retry-After: 18446744074\r\n"},
        {UINT64_MAX, ""}, /* for ever: no waiting helps */
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_result res = refused(rows[i].retry_ns);
        CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_RETRY_AFTER), rows[i].text);
    }
}

/* B43 */
static void fields_are_in_seconds(void)
{
    ratelimit_result res = refused(60 * SEC);
    CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_RETRY_AFTER), "Retry-After: 60\r\n");
}

/* B44 */
static void a_value_of_0_is_a_value(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    ratelimit_bucket b = {0, 0};
    ratelimit_request peek = request(NULL, &limit, 1);
    ratelimit_result res;
    peek.op = RATELIMIT_PEEK;
    CHECK(ratelimit_bucket_decide(&b, &peek, 5 * SEC, &res));
    CHECK_TEXT(fields(&res, &limit, RATELIMIT_HTTP_ALL),
               "X-RateLimit-Limit: 1\r\nX-RateLimit-Remaining: 1\r\nX-RateLimit-Reset: 0\r\n"
               "RateLimit-Policy: \"default\";q=1;w=1\r\nRateLimit: \"default\";r=1;t=0\r\n");
    CHECK(ratelimit_bucket_take(&b, &limit, 1, 5 * SEC, &res));
    CHECK_TEXT(fields(&res, &limit, RATELIMIT_HTTP_X),
               "X-RateLimit-Limit: 1\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 1\r\n");
}

/* B45 */
static void whole_seconds_are_not_made_one_more(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(30, 60 * SEC, 16);
    ratelimit_bucket b = {0, 0};
    ratelimit_result res;
    CHECK(ratelimit_bucket_take(&b, &limit, 1, 0, &res));
    CHECK_TEXT(fields(&res, &limit, RATELIMIT_HTTP_X),
               "X-RateLimit-Limit: 16\r\nX-RateLimit-Remaining: 15\r\nX-RateLimit-Reset: 2\r\n");
}

/* q tokens come back in w seconds: that was wrong for limits faster than one token a second. */
static void the_drafts_policy_is_the_rate_in_whole_seconds(void)
{
    static const struct {
        ratelimit_limit limit;
        const char *policy;
    } rows[] = {
        {RATELIMIT_LIMIT(10, SEC, 20), "q=20;w=2"},
        {RATELIMIT_LIMIT(5, MINUTE, 10), "q=10;w=120"},
        {RATELIMIT_LIMIT(100, MINUTE, 100), "q=100;w=60"},
        {RATELIMIT_LIMIT(7, SEC, 7), "q=7;w=1"},
        {RATELIMIT_LIMIT(7, SEC, 8), "q=14;w=2"},
        {RATELIMIT_LIMIT(1000, SEC, 1), "q=1000;w=1"},
        {RATELIMIT_LIMIT(1, 10 * SEC, 1), "q=1;w=10"},
        {RATELIMIT_LIMIT(1000000007, SEC, 5),
         "q=1000000000;w=1"}, /* rounded, see RATELIMIT_LIMIT */
        {RATELIMIT_LIMIT(16000000000, SEC, 7), "q=16000000000;w=1"},
        {RATELIMIT_WINDOW(1000, DAY), "q=1000;w=86400"},
        {RATELIMIT_WINDOW(3, 1500 * MS), "q=4;w=2"},
        {RATELIMIT_WINDOW(3, 100 * MS), "q=30;w=1"},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_bucket b = {0, 0};
        ratelimit_result res;
        char want[120];
        const char *text;
        CHECK(ratelimit_bucket_take(&b, &rows[i].limit, 1, 0, &res));
        sprintf(want, "RateLimit-Policy: \"default\";%s\r\nRateLimit: ", rows[i].policy);
        text = fields(&res, &rows[i].limit, RATELIMIT_HTTP_DRAFT);
        CHECK_TEXT(strncmp(text, want, strlen(want)) == 0 ? want : text, want);
    }
}

/* It was the time until the bucket is full. */
static void the_drafts_t_is_the_time_until_one_token_more(void)
{
    static const struct {
        ratelimit_limit limit;
        uint64_t n, at_ns;
        const char *state;
    } rows[] = {
        {RATELIMIT_LIMIT(1, 10 * SEC, 6), 1, 0, "r=5;t=10"},
        {RATELIMIT_LIMIT(1, 10 * SEC, 6), 6, 0, "r=0;t=10"},
        {RATELIMIT_LIMIT(1, 10 * SEC, 6), 6, 5 * SEC, "r=0;t=5"},
        {RATELIMIT_LIMIT(1, 10 * SEC, 6), 6, 9999 * MS, "r=0;t=1"},
        {RATELIMIT_LIMIT(1, 10 * SEC, 6), 6, 10 * SEC, "r=1;t=10"},
        {RATELIMIT_LIMIT(1, 10 * SEC, 6), 6, 59 * SEC, "r=5;t=1"},
        {RATELIMIT_LIMIT(1, 10 * SEC, 6), 6, 60 * SEC, "r=6;t=0"}, /* full: there is no more */
        {RATELIMIT_LIMIT(3, 10 * SEC, 3), 2, 0, "r=1;t=4"},
        {RATELIMIT_LIMIT(3, 10 * SEC, 3), 3, 3333333333,
         "r=0;t=1"}, /* a third of a ns is missing */
        {RATELIMIT_LIMIT(3, 10 * SEC, 3), 3, 3333333334, "r=1;t=4"},
        {RATELIMIT_LIMIT(1000, SEC, 500), 500, 0, "r=0;t=1"},
        {RATELIMIT_WINDOW(5, 10 * SEC), 2, 3 * SEC, "r=3;t=7"},
        {RATELIMIT_WINDOW(5, 10 * SEC), 5, 3 * SEC, "r=0;t=7"},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        bool window = rows[i].limit.tokens == 5;
        ratelimit_bucket b = {0, 0};
        ratelimit_request peek = request(NULL, &rows[i].limit, 1);
        ratelimit_result res;
        char want[60];
        CHECK(ratelimit_bucket_take(&b, &rows[i].limit, rows[i].n, 0, NULL));
        peek.op = RATELIMIT_PEEK;
        (void)ratelimit_bucket_decide(&b, &peek, window ? 3 * SEC : rows[i].at_ns, &res);
        res.allowed = true; /* as a take before would have answered */
        res.status = OK;
        sprintf(want, "RateLimit: \"default\";%s\r\n", rows[i].state);
        CHECK_TEXT(strstr(fields(&res, &rows[i].limit, RATELIMIT_HTTP_DRAFT), "RateLimit: "), want);
    }
}

static void on_a_refusal_the_drafts_t_is_retry_after(void)
{
    ratelimit_result res = refused(1900 * MS);
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, MINUTE, 10);
    CHECK_TEXT(fields(&res, &limit, RATELIMIT_HTTP_DRAFT | RATELIMIT_HTTP_RETRY_AFTER),
               "RateLimit-Policy: \"default\";q=10;w=60\r\nRateLimit: \"default\";r=0;t=2\r\n"
               "Retry-After: 2\r\n");
    CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_DRAFT), "RateLimit: \"default\";r=0;t=2\r\n");
}

/* It had the time until the bucket is full, as if that helped. */
static void what_never_passes_has_no_t_and_no_retry_after(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, MINUTE, 10);
    ratelimit_bucket b = {0, 0};
    ratelimit_result res;
    CHECK(ratelimit_bucket_take(&b, &limit, 4, 0, NULL));
    CHECK(!ratelimit_bucket_take(&b, &limit, 11, 0, &res));
    CHECK_TEXT(fields(&res, &limit, RATELIMIT_HTTP_DRAFT | RATELIMIT_HTTP_RETRY_AFTER),
               "RateLimit-Policy: \"default\";q=10;w=60\r\nRateLimit: \"default\";r=6\r\n");
}

/* Without the limit nobody knows how long one token takes. */
static void without_the_limit_t_is_left_out_unless_refused(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, MINUTE, 10);
    ratelimit_bucket b = {0, 0};
    ratelimit_result res;
    CHECK(ratelimit_bucket_take(&b, &limit, 4, 0, &res));
    CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_DRAFT), "RateLimit: \"default\";r=6\r\n");
}

/* Remaining 0 and t in an answer of 200 gave the shadow away; so does a limit while the store
   fails. */
static void what_was_allowed_by_shadow_or_policy_says_nothing(void)
{
    static const ratelimit_status statuses[] = {RATELIMIT_DENIED, RATELIMIT_NEVER,
                                                RATELIMIT_TIMEOUT, RATELIMIT_STORE_FAILED};
    static const ratelimit_limit limit = RATELIMIT_LIMIT(10, MINUTE, 10);
    size_t i;
    for (i = 0; i < COUNT(statuses); i++) {
        ratelimit_result res = refused(1900 * MS);
        res.allowed = true;
        res.status = statuses[i];
        CHECK_TEXT(fields(&res, &limit, RATELIMIT_HTTP_ALL), "");
    }
}

/* ---- HTTP, several rules --------------------------------------------------------------------- */

static unsigned char table_memory[RATELIMIT_TABLE_BYTES(64)];
static unsigned char rules_memory[RATELIMIT_RULES_BYTES(8)];
static ratelimit_table *table;
static ratelimit_limiter limiter;

static void fresh(const char *text)
{
    ratelimit_table_options options;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    now_ns = 100 * SEC;
    memset(&limiter, 0, sizeof limiter);
    if (ratelimit_table_init(&table, table_memory, sizeof table_memory, &options) != OK ||
        ratelimit_rules_init(&limiter.rules, rules_memory, sizeof rules_memory, 8) != OK ||
        ratelimit_rules_load(limiter.rules, text, strlen(text), NULL) != OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, clock_read, &now_ns)) != OK)
        exit(2);
}

/* One take of one token under each of these rules (up to a NULL), all or none. */
static const char *rule_fields(const char *const *names, const void *partition, size_t bytes,
                               unsigned sets)
{
    static char text[4096];
    ratelimit_rule_request of[8];
    ratelimit_result res[8];
    ratelimit_rule rule[8];
    size_t count;
    for (count = 0; names[count]; count++) {
        of[count].rule = names[count];
        of[count].request = request("x", NULL, 1);
    }
    (void)ratelimit_take_rules(&limiter, of, res, rule, count);
    CHECK_U64(
        ratelimit_http_rule_fields(res, rule, count, partition, bytes, sets, text, sizeof text),
        strlen(text));
    return text;
}

static void several_rules_are_listed_by_their_names(void)
{
    static const char *const both[] = {"user", "address", NULL};
    fresh("user 10/s\naddress 2/m");
    CHECK_TEXT(rule_fields(both, NULL, 0, RATELIMIT_HTTP_ALL),
               "X-RateLimit-Limit: 2\r\nX-RateLimit-Remaining: 1\r\nX-RateLimit-Reset: 30\r\n"
               "RateLimit-Policy: \"user\";q=10;w=1, \"address\";q=2;w=60\r\n"
               "RateLimit: \"user\";r=9;t=1, \"address\";r=1;t=30\r\n");
    (void)rule_fields(both, NULL, 0, RATELIMIT_HTTP_ALL);
    CHECK_TEXT(rule_fields(both, NULL, 0, RATELIMIT_HTTP_ALL),
               "X-RateLimit-Limit: 2\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 60\r\n"
               "RateLimit-Policy: \"user\";q=10;w=1, \"address\";q=2;w=60\r\n"
               "RateLimit: \"user\";r=8;t=1, \"address\";r=0;t=30\r\n"
               "Retry-After: 30\r\n");
}

static void a_partition_is_a_byte_sequence_in_each_item(void)
{
    static const struct {
        const char *bytes, *text;
    } rows[] = {{"", ""},
                {"f", ";pk=:Zg==:"},
                {"fo", ";pk=:Zm8=:"},
                {"foo", ";pk=:Zm9v:"},
                {"foobar", ";pk=:Zm9vYmFy:"},
                {"\xff\xfe\xfd\xfc", ";pk=://79/A==:"}};
    static const char *const both[] = {"a", "b", NULL};
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        char want[200];
        fresh("a 10/s\nb 2/m");
        sprintf(want,
                "RateLimit-Policy: \"a\";q=10;w=1%s, \"b\";q=2;w=60%s\r\n"
                "RateLimit: \"a\";r=9;t=1%s, \"b\";r=1;t=30%s\r\n",
                rows[i].text, rows[i].text, rows[i].text, rows[i].text);
        CHECK_TEXT(rule_fields(both, rows[i].bytes, strlen(rows[i].bytes), RATELIMIT_HTTP_DRAFT),
                   want);
    }
}

static void names_are_strings_of_structured_fields(void)
{
    static const char *const odd[] = {"a\"b\\c%d", "\xC3\xA9", NULL};
    fresh("a\"b\\c%d 1/s\n\xC3\xA9 1/s");
    CHECK_TEXT(rule_fields(odd, NULL, 0, RATELIMIT_HTTP_DRAFT),
               "RateLimit-Policy: \"a\\\"b\\\\c%25d\";q=1;w=1, \"%C3%A9\";q=1;w=1\r\n"
               "RateLimit: \"a\\\"b\\\\c%25d\";r=0;t=1, \"%C3%A9\";r=0;t=1\r\n");
}

/* A policy must be there once. */
static void a_rule_found_twice_is_listed_once_as_it_binds(void)
{
    static const char *const two[] = {"nothing", "nowhere", "one", NULL};
    ratelimit_rule_request first = {"default", RATELIMIT_REQUEST("y", 1, NULL, 3)};
    ratelimit_rule_request of[2];
    ratelimit_result res[2];
    ratelimit_rule rule[2];
    char text[400];
    fresh("one 9/s\ndefault 5/m");
    CHECK_TEXT(rule_fields(two, NULL, 0, RATELIMIT_HTTP_DRAFT),
               "RateLimit-Policy: \"default\";q=5;w=60, \"one\";q=9;w=1\r\n"
               "RateLimit: \"default\";r=3;t=12, \"one\";r=8;t=1\r\n");
    CHECK(ratelimit_take_rules(&limiter, &first, res, NULL, 1)); /* y has less than x */
    of[0].rule = of[1].rule = "default";
    of[0].request = request("x", NULL, 1);
    of[1].request = request("y", NULL, 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, rule, 2));
    ratelimit_http_rule_fields(res, rule, 2, NULL, 0, RATELIMIT_HTTP_DRAFT, text, sizeof text);
    CHECK_TEXT(text, "RateLimit-Policy: \"default\";q=5;w=60\r\n"
                     "RateLimit: \"default\";r=1;t=12\r\n");
}

static void shadow_rules_and_unlimited_ones_are_not_listed(void)
{
    static const char *const all[] = {"soft", "hard", "free", NULL};
    static const char *const only[] = {"soft", "free", NULL};
    int i;
    fresh("soft 2/h shadow\nhard 3/h\nfree unlimited");
    for (i = 2; i >= 0; i--) {
        char want[200];
        sprintf(want,
                "X-RateLimit-Limit: 3\r\nX-RateLimit-Remaining: %d\r\nX-RateLimit-Reset: %d\r\n"
                "RateLimit-Policy: \"hard\";q=3;w=3600\r\nRateLimit: \"hard\";r=%d;t=1200\r\n",
                i, 1200 * (3 - i), i);
        CHECK_TEXT(rule_fields(all, NULL, 0, RATELIMIT_HTTP_ALL), want);
    }
    CHECK_TEXT(rule_fields(all, NULL, 0, RATELIMIT_HTTP_RETRY_AFTER), "Retry-After: 1200\r\n");
    CHECK_TEXT(rule_fields(only, NULL, 0, RATELIMIT_HTTP_ALL), "");
    limiter.shadow = true; /* the whole limiter: what it would refuse is not there either */
    CHECK_TEXT(rule_fields(all, NULL, 0, RATELIMIT_HTTP_ALL), "");
}

static void what_is_no_rule_has_no_fields(void)
{
    static const char *const names[] = {"nothing", NULL};
    ratelimit_result res = refused(SEC);
    char text[10] = "x";
    fresh("a 1/s");
    CHECK_TEXT(rule_fields(names, NULL, 0, RATELIMIT_HTTP_ALL), "");
    CHECK_U64(ratelimit_http_rule_fields(&res, NULL, 1, NULL, 0, RATELIMIT_HTTP_ALL, text, 10), 0);
    CHECK_TEXT(text, "");
    CHECK_U64(ratelimit_http_rule_fields(NULL, NULL, 1, NULL, 0, RATELIMIT_HTTP_ALL, NULL, 0), 0);
}

static void many_long_names_fit_in_what_is_promised(void)
{
    enum { RULES = 8, BYTES = 512 * (RULES + 1) + 3 * RULES * 100 };
    ratelimit_result res[RULES];
    ratelimit_rule rule[RULES];
    char partition[100];
    size_t i, len;
    memset(res, 0, sizeof res);
    memset(rule, 0, sizeof rule);
    memset(partition, 0xFF, sizeof partition);
    for (i = 0; i < RULES; i++) {
        memset(rule[i].name, 0xFF, RATELIMIT_RULE_NAME_BYTES - 1);
        rule[i].name[0] = (char)(1 + i);
        rule[i].limit =
            ratelimit_limit_make(UINT64_C(1) << 62, UINT64_C(1) << 62, UINT64_C(1) << 62);
        res[i].status = RATELIMIT_DENIED;
        res[i].burst = res[i].remaining = UINT64_MAX - 1;
        res[i].reset_after_ns = res[i].retry_after_ns = UINT64_MAX - 1;
    }
    len = ratelimit_http_rule_fields(res, rule, RULES, partition, sizeof partition,
                                     RATELIMIT_HTTP_ALL, NULL, 0);
    CHECK(len < BYTES && len > BYTES - 1200);
    len = ratelimit_http_rule_fields(res, rule, 1, partition, sizeof partition, RATELIMIT_HTTP_ALL,
                                     NULL, 0);
    CHECK(len < 512 * 2 + 3 * 100);
}

/* ---- HTTP, whatever the result --------------------------------------------------------------- */

static void what_has_no_numbers_has_no_fields(void)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    ratelimit_bucket b = {0, 0};
    ratelimit_result res;
    CHECK(ratelimit_bucket_take(&b, &unlimited, 1, 0, &res));
    CHECK_TEXT(fields(&res, &unlimited, RATELIMIT_HTTP_ALL), "");
    CHECK(!ratelimit_bucket_take(&b, NULL, 1, 0, &res));
    CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_ALL), "");
    CHECK_TEXT(fields(NULL, NULL, RATELIMIT_HTTP_ALL), "");
    memset(&res, 0, sizeof res);
    res.status = RATELIMIT_STORE_FAILED;
    CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_ALL), "Retry-After: 1\r\n");
    res.allowed = true;
    CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_ALL), "");
    res = refused(SEC);
    CHECK_TEXT(fields(&res, NULL, 0), "");
}

/* The largest numbers there are; what stands before the end of the buffer is all or nothing. */
static void fields_fit_or_are_not_written_whatever_the_size(void)
{
    ratelimit_limit limit;
    ratelimit_result res;
    char whole[400];
    size_t len, bytes;
    memset(&res, 0, sizeof res);
    limit = ratelimit_limit_make(UINT64_C(1) << 62, UINT64_C(1) << 62, UINT64_C(1) << 62);
    CHECK(ratelimit_limit_check(&limit) == OK);
    res.status = RATELIMIT_DENIED;
    res.burst = res.remaining = res.reset_after_ns = res.retry_after_ns = UINT64_MAX - 1;
    len = ratelimit_http_fields(&res, &limit, RATELIMIT_HTTP_ALL, whole, sizeof whole);
    CHECK(len == strlen(whole) && len < RATELIMIT_HTTP_FIELDS_BYTES);
    CHECK(strstr(whole, "r=999999999999999;") != NULL);
    CHECK(strstr(whole, "w=4611686019\r\n") != NULL);
    CHECK_U64(ratelimit_http_fields(&res, &limit, RATELIMIT_HTTP_ALL, NULL, 0), len);
    CHECK_U64(ratelimit_http_fields(&res, &limit, RATELIMIT_HTTP_ALL, NULL, 1000), len);
    for (bytes = 0; bytes <= len + 2; bytes++) {
        char *buf = (char *)walled(bytes);
        memset(buf, 'x', bytes);
        CHECK_U64(ratelimit_http_fields(&res, &limit, RATELIMIT_HTTP_ALL, buf, bytes), len);
        if (bytes > len)
            CHECK_TEXT(buf, whole);
        else
            CHECK(!bytes || !buf[0]);
    }
}

static void the_limit_that_binds_is_the_longest_wait_or_the_least_remaining(void)
{
    ratelimit_result res[3];
    memset(res, 0, sizeof res);
    res[0].allowed = res[1].allowed = res[2].allowed = true;
    res[0].remaining = 7;
    res[1].remaining = 3;
    res[2].remaining = UINT64_MAX;
    CHECK_U64(ratelimit_binding(res, 3), 1);
    res[0].remaining = 3;
    res[0].reset_after_ns = 1;
    CHECK_U64(ratelimit_binding(res, 3), 0);
    res[2].remaining = 3; /* equal: the first */
    res[2].reset_after_ns = 1;
    CHECK_U64(ratelimit_binding(res, 3), 0);
    res[0].allowed = res[1].allowed = res[2].allowed = false;
    res[2].status = RATELIMIT_DENIED;
    res[2].retry_after_ns = 5;
    res[0].retry_after_ns = 9; /* would have passed */
    res[0].status = res[1].status = RATELIMIT_SKIPPED;
    CHECK_U64(ratelimit_binding(res, 3), 2);
    res[1].status = RATELIMIT_NEVER;
    res[1].retry_after_ns = FOREVER;
    CHECK_U64(ratelimit_binding(res, 3), 1);
    CHECK_U64(ratelimit_binding(res, 0), 0);
    CHECK_U64(ratelimit_binding(NULL, 3), 0);
}

static void each_status_has_its_http_status(void)
{
    static const struct {
        ratelimit_status status;
        int http;
    } rows
        [] =
            {
                {RATELIMIT_DENIED, 429},       {RATELIMIT_NEVER, 429},
                {RATELIMIT_TIMEOUT, 429},      {RATELIMIT_BUSY, 429},
                {RATELIMIT_SKIPPED, 429}, /* of a batch that another refused */
                {RATELIMIT_STORE_FAILED, 503}, {RATELIMIT_FULL, 503},
                {RATELIMIT_CANCELED, 503},     {RATELIMIT_BAD_KEY, 500},
                {RATELIMIT_BAD_LIMIT, 500},    {RATELIMIT_BAD_COUNT, 500},
                {RATELIMIT_BAD_ARGUMENT, 500}, {RATELIMIT_UNSUPPORTED, 500},
            };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_result res;
        memset(&res, 0, sizeof res);
        res.status = rows[i].status;
        CHECK_U64(ratelimit_http_status(&res), rows[i].http);
        res.allowed = true;
        CHECK_U64(ratelimit_http_status(&res), 200);
    }
    CHECK_U64(ratelimit_http_status(NULL), 500);
}

static void nobody_decides(const ratelimit_store *store, const ratelimit_request *req,
                           ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    size_t i;
    (void)store, (void)req, (void)mode;
    memset(res, 0, count * sizeof *res);
    for (i = 0; i < count; i++)
        res[i].status = RATELIMIT_STORE_FAILED;
}

/* It was answered as a failure, with a Retry-After that nothing had failed to give. */
static void a_refusal_by_a_local_bucket_is_a_limits_although_the_store_failed(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(64)];
    static const ratelimit_limit once = RATELIMIT_LIMIT(1, HOUR, 1);
    ratelimit_table *local;
    ratelimit_request q;
    ratelimit_result res;
    int round;
    memset(&q, 0, sizeof q);
    q.key = "x";
    q.key_len = 1;
    q.limit = &once;
    q.n = 1;
    memset(&limiter, 0, sizeof limiter);
    limiter.on_failure = RATELIMIT_FAIL_LOCAL;
    if (ratelimit_table_init(&local, memory, sizeof memory, NULL) != OK)
        exit(2);
    limiter.fallback = ratelimit_table_store(local, clock_read, &now_ns);
    if (ratelimit_init(&limiter, (ratelimit_store){0, nobody_decides, 0, 0, 0, 0}) != OK)
        exit(2);
    for (round = 0; round < 2; round++) {
        CHECK(ratelimit_take(&limiter, &q, &res) == (round == 0));
        CHECK_U64(res.status, RATELIMIT_STORE_FAILED);
        CHECK_U64(ratelimit_http_status(&res), round ? 429 : 200);
    }
    limiter.fallback.decide = nobody_decides; /* fails, too */
    CHECK(!ratelimit_take(&limiter, &q, &res));
    CHECK_U64(ratelimit_http_status(&res), 503);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void metrics_are_the_counters_in_prometheus_text(void)
{
    static const char *const lines[] = {
        "# TYPE ratelimit_allowed_total counter\nratelimit_allowed_total 3\n",
        "ratelimit_refused_total 1\n",
        "ratelimit_shadow_refused_total 1\n",
        "ratelimit_failed_total 0\n",
        "ratelimit_bad_total 0\n",
        "# TYPE ratelimit_table_keys gauge\nratelimit_table_keys 2\n",
        "ratelimit_table_keys_in_debt 2\n",
        "ratelimit_table_evicted_total 0\n",
        "ratelimit_rule_allowed_total{rule=\"a\\\"\\\\b\"} 1\n",
        "ratelimit_rule_allowed_total{rule=\"soft\"} 2\n",
        "ratelimit_rule_refused_total{rule=\"a\\\"\\\\b\"} 1\n",
        "ratelimit_rule_refused_total{rule=\"soft\"} 0\n",
        "ratelimit_rule_shadow_refused_total{rule=\"soft\"} 1\n",
        "ratelimit_rule_failed_total{rule=\"soft\"} 0\n",
    };
    static char text[8192];
    size_t i, len;
    fresh("a\"\\b 1/h\nsoft 1/h shadow\n");
    CHECK(ratelimit_allow_rule(&limiter, "x", "a\"\\b"));
    CHECK(!ratelimit_allow_rule(&limiter, "x", "a\"\\b"));
    CHECK(ratelimit_allow_rule(&limiter, "x", "soft"));
    CHECK(ratelimit_allow_rule(&limiter, "x", "soft"));
    len = ratelimit_metrics(&limiter, table, now_ns, NULL, text, sizeof text);
    CHECK_U64(len, strlen(text));
    for (i = 0; i < COUNT(lines); i++)
        CHECK_TEXT(strstr(text, lines[i]) ? lines[i] : "not there", lines[i]);
    CHECK(text[len - 1] == '\n');
}

/* Each line a comment or name, labels, value; all of a family together under its HELP and TYPE. */
static void metrics_are_well_formed_and_each_family_stands_together(void)
{
    static char text[8192], family[80];
    char *line, *save = text;
    int samples = 0;
    fresh("a 1/h\nb 1/h\nc unlimited");
    (void)ratelimit_metrics(&limiter, table, now_ns, NULL, text, sizeof text);
    while (*save) {
        line = save;
        save = strchr(line, '\n');
        CHECK(save != NULL);
        if (!save)
            return;
        *save++ = 0;
        if (strncmp(line, "# HELP ", 7) == 0) {
            size_t n = strcspn(line + 7, " ");
            memcpy(family, line + 7, n);
            family[n] = 0;
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            CHECK(strncmp(line + 7, family, strlen(family)) == 0);
        } else {
            size_t n = strlen(family);
            CHECK(strncmp(line, family, n) == 0 && (line[n] == ' ' || line[n] == '{'));
            CHECK(strspn(strrchr(line, ' ') + 1, "0123456789") == strlen(strrchr(line, ' ') + 1));
            samples++;
        }
    }
    CHECK_U64(samples, 5 + 6 + 4 * 3);
}

static void metrics_of_a_limiter_before_a_tier_are_those_of_the_tier_too(void)
{
    static const char *const lines[] = {
        "# TYPE ratelimit_tier_decisions_total counter\n"
        "ratelimit_tier_decisions_total{by=\"store\"} 1\n"
        "ratelimit_tier_decisions_total{by=\"lease\"} 0\n"
        "ratelimit_tier_decisions_total{by=\"refusal_cache\"} 2\n"
        "ratelimit_tier_decisions_total{by=\"fallback\"} 0\n"
        "ratelimit_tier_decisions_total{by=\"policy\"} 2\n",
        "# TYPE ratelimit_tier_calls_total counter\nratelimit_tier_calls_total 3\n",
        "ratelimit_tier_failures_total 2\n",
    };
    static unsigned char tier_memory[RATELIMIT_TABLE_BYTES(64)];
    static char text[8192];
    static const ratelimit_limit once = RATELIMIT_LIMIT(1, HOUR, 1);
    ratelimit_tier tier;
    size_t i, len;
    fresh("a 1/h");
    memset(&tier, 0, sizeof tier);
    tier.store = ratelimit_table_store(table, clock_read, &now_ns);
    tier.clock = clock_read;
    tier.clock_self = &now_ns;
    if (ratelimit_table_init(&tier.table, tier_memory, sizeof tier_memory, NULL) != OK ||
        ratelimit_init(&limiter, ratelimit_tier_store(&tier)) != OK)
        exit(2);
    CHECK(ratelimit_allow(&limiter, "x", &once));
    CHECK(!ratelimit_allow(&limiter, "x", &once));
    CHECK(!ratelimit_allow(&limiter, "x", &once));
    tier.store.decide = nobody_decides;
    CHECK(ratelimit_allow(&limiter, "y", &once)); /* the store fails */
    CHECK(ratelimit_allow(&limiter, "z", &once)); /* and again: each request for itself */
    len = ratelimit_metrics(&limiter, table, now_ns, NULL, text, sizeof text);
    CHECK_U64(len, strlen(text));
    for (i = 0; i < COUNT(lines); i++)
        CHECK_TEXT(strstr(text, lines[i]) ? lines[i] : "not there", lines[i]);
}

/* Each worker counts for itself; a label tells them apart. */
static void labels_are_in_each_sample(void)
{
    static const char *const lines[] = {
        "\nratelimit_allowed_total{instance=\"3\",zone=\"b\"} 1\n",
        "\nratelimit_table_keys{instance=\"3\",zone=\"b\"} 1\n",
        "\nratelimit_rule_allowed_total{rule=\"a\",instance=\"3\",zone=\"b\"} 1\n",
    };
    static char text[8192];
    size_t i, samples = 0, labelled = 0;
    const char *at;
    fresh("a 1/h\nb 1/h");
    CHECK(ratelimit_allow_rule(&limiter, "x", "a"));
    (void)ratelimit_metrics(&limiter, table, now_ns, "instance=\"3\",zone=\"b\"", text,
                            sizeof text);
    for (i = 0; i < COUNT(lines); i++)
        CHECK_TEXT(strstr(text, lines[i]) ? lines[i] : text, lines[i]);
    for (at = text; *at; at = strchr(at, '\n') + 1) {
        samples += *at != '#';
        labelled += *at != '#' && strstr(at, "instance=\"3\",zone=\"b\"} ") < strchr(at, '\n');
    }
    CHECK_U64(samples, 5 + 6 + 4 * 2);
    CHECK_U64(labelled, samples);
}

/* HELP is a sentence; no label has a blank in it. */
static void help_is_a_sentence_and_labels_have_no_blanks(void)
{
    static char text[8192];
    const char *at, *end;
    fresh("a 1/h");
    (void)ratelimit_metrics(&limiter, table, now_ns, NULL, text, sizeof text);
    for (at = text; *at; at = end + 1) {
        end = strchr(at, '\n');
        if (strncmp(at, "# HELP ", 7) == 0) {
            const char *help = strchr(at + 7, ' ') + 1;
            CHECK(*help >= 'A' && *help <= 'Z' && end[-1] == '.' && end - help > 12);
        } else if (*at != '#') {
            CHECK(strchr(at, ' ') == (const char *)memchr(at, ' ', (size_t)(end - at)) &&
                  !memchr(strchr(at, ' ') + 1, ' ', (size_t)(end - strchr(at, ' ') - 1)));
        }
    }
}

/* A load in the middle of the page: no rule twice, none of the old ones beside new ones. */
typedef struct loading {
    ratelimit_rules *rules;
    uint32_t stop;
} loading;

static void *load_in_turns(void *self)
{
    static const char *const texts[] = {"a 1/h\nb 1/h\nc 1/h", "c 1/h\nd 1/h\ne 1/h\na 1/h"};
    loading *w = (loading *)self;
    size_t i;
    for (i = 0; !__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE); i++) {
        CHECK(ratelimit_rules_load(w->rules, texts[i % 2], strlen(texts[i % 2]), NULL) == OK);
        usleep(50);
    }
    return NULL;
}

static void metrics_show_the_rules_of_one_text(void)
{
    static char text[16384];
    pthread_t thread;
    loading w;
    int i;
    fresh("a 1/h\nb 1/h\nc 1/h");
    w.rules = limiter.rules;
    w.stop = 0;
    CHECK(pthread_create(&thread, NULL, load_in_turns, &w) == 0);
    for (i = 0; i < (SHORT ? 500 : 3000); i++) {
        const char *at;
        int rules = 0, b, d;
        (void)ratelimit_metrics(&limiter, NULL, 0, NULL, text, sizeof text);
        for (at = text; (at = strstr(at, "{rule=")) != NULL; at++)
            rules++;
        b = strstr(text, "{rule=\"b\"}") != NULL;
        d = strstr(text, "{rule=\"d\"}") != NULL;
        CHECK(b != d && rules == (b ? 4 * 3 : 4 * 4));
    }
    __atomic_store_n(&w.stop, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
}

static void metrics_fit_or_are_empty_whatever_the_size(void)
{
    static char whole[8192];
    char *room = (char *)walled(sizeof whole);
    size_t len, bytes;
    fresh("a 1/h");
    len = ratelimit_metrics(&limiter, table, now_ns, NULL, whole, sizeof whole);
    for (bytes = 0; bytes <= len + 2; bytes++) {
        char *buf = room + sizeof whole - bytes; /* ends at the wall */
        memset(buf, 'x', bytes);
        CHECK_U64(ratelimit_metrics(&limiter, table, now_ns, NULL, buf, bytes), len);
        if (bytes > len)
            CHECK_TEXT(buf, whole);
        else
            CHECK(!bytes || !buf[0]);
    }
    CHECK_U64(ratelimit_metrics(&limiter, table, now_ns, NULL, NULL, 99), len);
    CHECK_U64(ratelimit_metrics(NULL, NULL, 0, "a=\"b\"", whole, sizeof whole), 0);
    CHECK_TEXT(whole, "");
}

/* ---- statuses and scopes --------------------------------------------------------------------- */

static void each_status_has_a_text_of_its_own(void)
{
    static const struct {
        ratelimit_status status;
        const char *text;
    } rows[] = {{RATELIMIT_OK, "ok"},
                {RATELIMIT_DENIED, "denied"},
                {RATELIMIT_NEVER, "never"},
                {RATELIMIT_SKIPPED, "skipped"},
                {RATELIMIT_FULL, "full"},
                {RATELIMIT_TIMEOUT, "timeout"},
                {RATELIMIT_CANCELED, "canceled"},
                {RATELIMIT_BAD_KEY, "bad key"},
                {RATELIMIT_BAD_LIMIT, "bad limit"},
                {RATELIMIT_BAD_COUNT, "bad count"},
                {RATELIMIT_BAD_ARGUMENT, "bad argument"},
                {RATELIMIT_SYNTAX, "syntax"},
                {RATELIMIT_NO_MEMORY, "not enough memory"},
                {RATELIMIT_STORE_FAILED, "store failed"},
                {RATELIMIT_UNSUPPORTED, "unsupported"},
                {RATELIMIT_BUSY, "busy"},
                {RATELIMIT_LOST, "lost"}};
    size_t i;
    CHECK_U64(COUNT(rows), RATELIMIT_LOST + 1);
    for (i = 0; i < COUNT(rows); i++) {
        const char *text = ratelimit_status_text(rows[i].status);
        CHECK(strncmp(text, rows[i].text, strlen(rows[i].text)) == 0);
    }
    CHECK_TEXT(ratelimit_status_text((ratelimit_status)(RATELIMIT_LOST + 1)), "unknown status");
    CHECK_TEXT(ratelimit_status_text((ratelimit_status)-1), "unknown status");
}

/* It is part of names in databases: the same everywhere, for ever. */
static void a_scope_of_a_name_is_fnv_1a(void)
{
    CHECK_U64(ratelimit_scope("", 0), 0x811c9dc5u);
    CHECK_U64(ratelimit_scope("a", 1), 0xe40c292cu);
    CHECK_U64(ratelimit_scope("foobar", 6), 0xbf9cf968u);
    CHECK_U64(ratelimit_scope("\xff", 1), (0x811c9dc5u ^ 0xffu) * 0x01000193u);
    CHECK_U64(ratelimit_scope(NULL, 6), 0x811c9dc5u);
}

/* ---- log ------------------------------------------------------------------------------------- */

static unsigned logged;
static uint32_t last_missed;

static void place_that_logs(void)
{
    RATELIMIT_LOG(RATELIMIT_LIMIT(1, SEC, 2), missed, logged++, last_missed = missed);
}

static void a_log_place_passes_its_limit_and_tells_what_it_held_back(void)
{
    int i;
    now_ns = 50 * SEC;
    for (i = 0; i < 5; i++)
        place_that_logs();
#if defined(RATELIMIT_NO_LOG)
    CHECK_U64(logged, 0);
    (void)log_now; /* not even the time is asked for */
    return;
#endif
    CHECK_U64(logged, 2);
    CHECK_U64(last_missed, 0);
    now_ns += SEC;
    place_that_logs();
    CHECK_U64(logged, 3);
    CHECK_U64(last_missed, 3);
    now_ns += 2 * SEC;
    place_that_logs();
    CHECK_U64(logged, 4);
    CHECK_U64(last_missed, 0);
}

static ratelimit_priv_log shared_log;

static void *log_many(void *self)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, MS, 1);
    uint64_t *sum = (uint64_t *)self, i;
    for (i = 0; i < 3000; i++) {
        uint32_t missed;
        if (ratelimit_priv_log_pass(&shared_log, &limit, i * 100 * US, &missed))
            *sum += 1 + missed;
    }
    return NULL;
}

static void no_held_back_message_of_many_threads_is_lost_or_told_twice(void)
{
    pthread_t thread[4];
    uint64_t sum[4] = {0, 0, 0, 0};
    size_t i;
    for (i = 0; i < COUNT(thread); i++)
        CHECK(pthread_create(&thread[i], NULL, log_many, &sum[i]) == 0);
    for (i = 0; i < COUNT(thread); i++)
        pthread_join(thread[i], NULL);
    CHECK_U64(sum[0] + sum[1] + sum[2] + sum[3] + shared_log.missed, 4 * 3000);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(retry_after_is_rounded_up_and_never_0_on_a_refusal);
    RUN(fields_are_in_seconds);
    RUN(a_value_of_0_is_a_value);
    RUN(whole_seconds_are_not_made_one_more);
    RUN(the_drafts_policy_is_the_rate_in_whole_seconds);
    RUN(the_drafts_t_is_the_time_until_one_token_more);
    RUN(on_a_refusal_the_drafts_t_is_retry_after);
    RUN(what_never_passes_has_no_t_and_no_retry_after);
    RUN(without_the_limit_t_is_left_out_unless_refused);
    RUN(what_was_allowed_by_shadow_or_policy_says_nothing);
    RUN(several_rules_are_listed_by_their_names);
    RUN(a_partition_is_a_byte_sequence_in_each_item);
    RUN(names_are_strings_of_structured_fields);
    RUN(a_rule_found_twice_is_listed_once_as_it_binds);
    RUN(shadow_rules_and_unlimited_ones_are_not_listed);
    RUN(what_is_no_rule_has_no_fields);
    RUN(many_long_names_fit_in_what_is_promised);
    RUN(what_has_no_numbers_has_no_fields);
    RUN(fields_fit_or_are_not_written_whatever_the_size);
    RUN(the_limit_that_binds_is_the_longest_wait_or_the_least_remaining);
    RUN(each_status_has_its_http_status);
    RUN(a_refusal_by_a_local_bucket_is_a_limits_although_the_store_failed);
    RUN(metrics_are_the_counters_in_prometheus_text);
    RUN(metrics_are_well_formed_and_each_family_stands_together);
    RUN(metrics_of_a_limiter_before_a_tier_are_those_of_the_tier_too);
    RUN(labels_are_in_each_sample);
    RUN(help_is_a_sentence_and_labels_have_no_blanks);
    RUN_THREADED(metrics_show_the_rules_of_one_text);
    RUN(metrics_fit_or_are_empty_whatever_the_size);
    RUN(each_status_has_a_text_of_its_own);
    RUN(a_scope_of_a_name_is_fnv_1a);
    RUN(a_log_place_passes_its_limit_and_tells_what_it_held_back);
    RUN_THREADED(no_held_back_message_of_many_threads_is_lost_or_told_twice);
    return check_end();
}

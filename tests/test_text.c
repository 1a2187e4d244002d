/* test_text.c - what is written for others: HTTP fields, statuses of other protocols, metrics; the
 * keys refused most; the log helper; ticks that wrap.
 *
 *     cc -std=c99 -O2 -I. -Itests tests/test_text.c -lpthread
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

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
    res.limit = 10;
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

static void the_drafts_fields_say_burst_the_time_it_takes_and_what_is_left(void)
{
    static const struct {
        ratelimit_limit limit;
        const char *policy;
    } rows[] = {
        {RATELIMIT_LIMIT(10, SEC, 20), "20;w=2"},
        {RATELIMIT_LIMIT(100, MINUTE, 100), "100;w=60"},
        {RATELIMIT_LIMIT(7, SEC, 7), "7;w=1"},
        {RATELIMIT_LIMIT(7, SEC, 8), "8;w=2"},
        {RATELIMIT_LIMIT(1000, SEC, 1), "1;w=1"},
        {RATELIMIT_WINDOW(1000, DAY), "1000;w=86400"},
        {RATELIMIT_WINDOW(3, 1500 * MS), "3;w=2"},
        {RATELIMIT_LIMIT(1000000007, SEC, 5), "5;w=1"}, /* made anew at each call */
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_bucket b = {0, 0};
        ratelimit_result res;
        char want[120];
        CHECK(ratelimit_bucket_take(&b, &rows[i].limit, rows[i].limit.burst, 0, &res));
        sprintf(want,
                "RateLimit-Policy: \"default\";q=%s\r\n"
                "RateLimit: \"default\";r=0;t=%s\r\n",
                rows[i].policy, strchr(rows[i].policy, '=') + 1);
        CHECK_TEXT(fields(&res, &rows[i].limit, RATELIMIT_HTTP_DRAFT), want);
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
    res.allowed = true; /* by shadow */
    CHECK_TEXT(fields(&res, NULL, RATELIMIT_HTTP_DRAFT | RATELIMIT_HTTP_RETRY_AFTER),
               "RateLimit: \"default\";r=0;t=60\r\n");
}

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
    size_t len, bytes, i;
    memset(&res, 0, sizeof res);
    limit = ratelimit_limit_make(UINT64_C(1) << 62, UINT64_C(1) << 62, UINT64_C(1) << 62);
    CHECK(ratelimit_limit_check(&limit) == OK);
    res.status = RATELIMIT_DENIED;
    res.limit = res.remaining = res.reset_after_ns = res.retry_after_ns = UINT64_MAX - 1;
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
        if (bytes > len) {
            CHECK_TEXT(buf, whole);
            continue;
        }
        CHECK(!bytes || !buf[0]);
        for (i = 1; i < bytes; i++)
            CHECK(buf[i] == 'x');
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
    CHECK_U64(ratelimit_binding(res, 3), 2);
    res[1].status = RATELIMIT_NEVER;
    res[1].retry_after_ns = FOREVER;
    CHECK_U64(ratelimit_binding(res, 3), 1);
    CHECK_U64(ratelimit_binding(res, 0), 0);
    CHECK_U64(ratelimit_binding(NULL, 3), 0);
}

static void each_status_has_its_http_and_grpc_status(void)
{
    static const struct {
        ratelimit_status status;
        int http, grpc;
    } rows[] = {
        {RATELIMIT_DENIED, 429, 8},
        {RATELIMIT_NEVER, 429, 8},
        {RATELIMIT_TIMEOUT, 429, 8},
        {RATELIMIT_BUSY, 429, 8},
        {RATELIMIT_OK, 429, 8}, /* of a batch that another refused */
        {RATELIMIT_STORE_FAILED, 503, 14},
        {RATELIMIT_FULL, 503, 14},
        {RATELIMIT_CANCELED, 503, 14},
        {RATELIMIT_BAD_KEY, 500, 13},
        {RATELIMIT_BAD_LIMIT, 500, 13},
        {RATELIMIT_BAD_COUNT, 500, 13},
        {RATELIMIT_BAD_ARGUMENT, 500, 13},
        {RATELIMIT_UNSUPPORTED, 500, 13},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_result res;
        memset(&res, 0, sizeof res);
        res.status = rows[i].status;
        CHECK_U64(ratelimit_http_status(&res), rows[i].http);
        CHECK_U64(ratelimit_grpc_status(&res), rows[i].grpc);
        res.allowed = true;
        CHECK_U64(ratelimit_http_status(&res), 200);
        CHECK_U64(ratelimit_grpc_status(&res), 0);
    }
    CHECK_U64(ratelimit_http_status(NULL), 500);
    CHECK_U64(ratelimit_grpc_status(NULL), 13);
}

static unsigned char table_memory[RATELIMIT_TABLE_BYTES(64)];
static unsigned char rules_memory[RATELIMIT_RULES_BYTES(4, 0)];
static ratelimit_table *table;
static ratelimit_limiter limiter;

static void nobody_decides(void *self, const ratelimit_request *req, ratelimit_result *res,
                           size_t count, ratelimit_mode mode)
{
    size_t i;
    (void)self, (void)req, (void)mode;
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
        CHECK_U64(ratelimit_grpc_status(&res), round ? 8 : 0);
    }
    limiter.fallback.decide = nobody_decides; /* fails, too */
    limiter.fallback.decide_at = NULL;
    CHECK(!ratelimit_take(&limiter, &q, &res));
    CHECK_U64(ratelimit_http_status(&res), 503);
    CHECK_U64(ratelimit_grpc_status(&res), 14);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void fresh(const char *text)
{
    ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0};
    now_ns = 100 * SEC;
    memset(&limiter, 0, sizeof limiter);
    if (ratelimit_table_init(&table, table_memory, sizeof table_memory, &options) != OK ||
        ratelimit_rules_init(&limiter.rules, rules_memory, sizeof rules_memory, 4, 0) != OK ||
        ratelimit_rules_load(limiter.rules, text, strlen(text), NULL) != OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, clock_read, &now_ns)) != OK)
        exit(2);
}

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
    len = ratelimit_metrics(&limiter, table, now_ns, text, sizeof text);
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
    (void)ratelimit_metrics(&limiter, table, now_ns, text, sizeof text);
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
        "ratelimit_tier_decisions_total{by=\"refusal cache\"} 2\n"
        "ratelimit_tier_decisions_total{by=\"fallback\"} 0\n"
        "ratelimit_tier_decisions_total{by=\"nobody\"} 2\n",
        "# TYPE ratelimit_tier_calls_total counter\nratelimit_tier_calls_total 2\n",
        "ratelimit_tier_failures_total 1\n",
        "ratelimit_tier_outages_total 1\n",
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
    tier.store.decide_at = NULL;
    tier.store.decide = nobody_decides;
    CHECK(ratelimit_allow(&limiter, "y", &once)); /* the store fails */
    CHECK(ratelimit_allow(&limiter, "y", &once)); /* and is left alone */
    len = ratelimit_metrics(&limiter, table, now_ns, text, sizeof text);
    CHECK_U64(len, strlen(text));
    for (i = 0; i < COUNT(lines); i++)
        CHECK_TEXT(strstr(text, lines[i]) ? lines[i] : text, lines[i]);
}

static void metrics_fit_or_are_empty_whatever_the_size(void)
{
    static char whole[8192];
    char *room = (char *)walled(sizeof whole);
    size_t len, bytes;
    fresh("a 1/h");
    len = ratelimit_metrics(&limiter, table, now_ns, whole, sizeof whole);
    for (bytes = 0; bytes <= len + 2; bytes++) {
        char *buf = room + sizeof whole - bytes; /* ends at the wall */
        memset(buf, 'x', bytes);
        CHECK_U64(ratelimit_metrics(&limiter, table, now_ns, buf, bytes), len);
        if (bytes > len)
            CHECK_TEXT(buf, whole);
        else
            CHECK(!bytes || !buf[0]);
    }
    CHECK_U64(ratelimit_metrics(&limiter, table, now_ns, NULL, 99), len);
    CHECK_U64(ratelimit_metrics(NULL, NULL, 0, whole, sizeof whole), 0);
    CHECK_TEXT(whole, "");
}

/* ---- the keys refused most ------------------------------------------------------------------- */

static void refuse(ratelimit_top *top, const char *key)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
    ratelimit_request req = request(key, &limit, 1);
    ratelimit_result res = refused(SEC);
    ratelimit_top_hook(top, &req, &res);
}

static void the_limiters_hook_feeds_the_top(void)
{
    static const ratelimit_limit one = RATELIMIT_LIMIT(1, HOUR, 1);
    ratelimit_top_entry entries[3], out[5];
    ratelimit_top top;
    int i;
    memset(entries, 0, sizeof entries);
    memset(&top, 0, sizeof top);
    top.entries = entries;
    top.count = COUNT(entries);
    fresh("");
    limiter.hook = ratelimit_top_hook;
    limiter.hook_self = &top;
    CHECK_U64(ratelimit_top_read(&top, out, COUNT(out)), 0);
    for (i = 0; i < 6; i++)
        (void)ratelimit_allow(&limiter, "bob", &one);
    for (i = 0; i < 3; i++)
        (void)ratelimit_allow(&limiter, "ann", &one);
    (void)ratelimit_allow(&limiter, "eve", &one); /* never refused */
    (void)ratelimit_allow(&limiter, "eve", NULL); /* not by a limit */
    CHECK_U64(ratelimit_top_read(&top, out, COUNT(out)), 2);
    CHECK(out[0].refused == 5 && out[0].error == 0 && out[0].key_len == 3);
    CHECK(memcmp(out[0].key, "bob", 4) == 0);
    CHECK(out[1].refused == 2 && memcmp(out[1].key, "ann", 4) == 0);
    CHECK_U64(ratelimit_top_read(&top, out, 1), 1);
    CHECK(memcmp(out[0].key, "bob", 4) == 0);
    limiter.shadow = true;
    CHECK(ratelimit_allow(&limiter, "ann", &one));
    (void)ratelimit_top_read(&top, out, COUNT(out));
    CHECK_U64(out[1].refused, 3);
}

static void long_keys_with_one_beginning_are_told_apart(void)
{
    static char a[100], b[100];
    ratelimit_top_entry entries[4], out[4];
    ratelimit_top top;
    memset(entries, 0, sizeof entries);
    memset(&top, 0, sizeof top);
    top.entries = entries;
    top.count = COUNT(entries);
    memset(a, 'k', sizeof a - 1);
    memset(b, 'k', sizeof b - 2);
    b[sizeof b - 2] = 'l';
    refuse(&top, a);
    refuse(&top, b);
    refuse(&top, b);
    CHECK_U64(ratelimit_top_read(&top, out, 4), 2);
    CHECK(out[0].refused == 2 && out[1].refused == 1 && out[0].key_len == 99);
    CHECK(memcmp(out[0].key, a, sizeof out[0].key) == 0);
}

/* Against exact counts: error bounds what is too much, N / count the error, and no key with more
 * than that is lost. */
static void the_tops_errors_are_within_their_bound(void)
{
    enum { KEYS = 400, PLACES = 16 };
    static uint64_t exact[KEYS];
    ratelimit_top_entry entries[PLACES], out[PLACES];
    ratelimit_top top;
    uint64_t total = 20000, i, n, found = 0;
    size_t k;
    check_seed(4);
    memset(entries, 0, sizeof entries);
    memset(&top, 0, sizeof top);
    top.entries = entries;
    top.count = PLACES;
    for (i = 0; i < total; i++) {
        char key[8];
        k = (size_t)(check_below(3) ? check_below(5) * check_below(5) : check_below(KEYS));
        exact[k]++;
        sprintf(key, "%u", (unsigned)k);
        refuse(&top, key);
    }
    n = ratelimit_top_read(&top, out, PLACES);
    CHECK_U64(n, PLACES);
    for (i = 0; i < n; i++) {
        uint64_t real = exact[atoi((const char *)out[i].key)];
        CHECK(out[i].refused >= real && out[i].refused - out[i].error <= real);
        CHECK(out[i].error <= total / PLACES);
        CHECK(i == 0 || out[i - 1].refused >= out[i].refused);
        found += real > total / PLACES;
    }
    for (k = 0; k < KEYS; k++)
        found -= exact[k] > total / PLACES;
    CHECK_U64(found, 0);
}

static void *refuse_many(void *self)
{
    int i;
    for (i = 0; i < 2000; i++)
        refuse((ratelimit_top *)self, i % 4 ? "most" : "some");
    return NULL;
}

static void the_top_counts_each_refusal_of_many_threads(void)
{
    ratelimit_top_entry entries[4], out[4];
    ratelimit_top top;
    pthread_t thread[4];
    size_t i;
    memset(entries, 0, sizeof entries);
    memset(&top, 0, sizeof top);
    top.entries = entries;
    top.count = COUNT(entries);
    for (i = 0; i < COUNT(thread); i++)
        CHECK(pthread_create(&thread[i], NULL, refuse_many, &top) == 0);
    for (i = 0; i < COUNT(thread); i++)
        pthread_join(thread[i], NULL);
    CHECK_U64(ratelimit_top_read(&top, out, 4), 2);
    CHECK(out[0].refused == 6000 && out[1].refused == 2000);
}

static void a_top_without_room_counts_nothing(void)
{
    ratelimit_top top;
    ratelimit_top_entry out;
    memset(&top, 0, sizeof top);
    refuse(&top, "ann");
    refuse(NULL, "ann");
    CHECK_U64(ratelimit_top_read(&top, &out, 1), 0);
    CHECK_U64(ratelimit_top_read(NULL, &out, 1), 0);
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

static ratelimit_log shared_log;

static void *log_many(void *self)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, MS, 1);
    uint64_t *sum = (uint64_t *)self, i;
    for (i = 0; i < 3000; i++) {
        uint32_t missed;
        if (ratelimit_log_pass(&shared_log, &limit, i * 100 * US, &missed))
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

/* ---- ticks ----------------------------------------------------------------------------------- */

/* B12 (b) */
static void ticks_that_wrap_go_on(void)
{
    ratelimit_ticks t = {0, 0, 0};
    uint64_t before = ratelimit_ticks_ns(&t, 0xFFFFFFF0u, 32, 1000), after;
    after = ratelimit_ticks_ns(&t, 0x00000010u, 32, 1000);
    CHECK_U64(before, UINT64_C(0xFFFFFFF0) * MS);
    CHECK_U64(after - before, 32 * MS);
}

static void counters_of_any_width_wrap_in_either_direction(void)
{
    unsigned bits;
    for (bits = 1; bits <= 32; bits++) {
        uint32_t mask = UINT32_MAX >> (32 - bits), part = mask / 2 + 1;
        ratelimit_ticks up = {0, 0, 0}, down = {0, 0, 0};
        uint64_t total = 0;
        int i;
        for (i = 0; i < 20; i++) {
            uint32_t counter;
            total += part;
            counter = (0u - (uint32_t)total) & mask;
            CHECK_U64(ratelimit_ticks_ns(&up, (uint32_t)total & mask, bits, SEC), total);
            CHECK_U64(ratelimit_ticks_ns(&down, 0u - counter, bits, SEC), total);
        }
    }
}

/* Each of the readings lies where 128-bit arithmetic puts the sum of all ticks so far, for 500
 * years. */
static void ticks_are_exact_for_500_years_at_any_frequency(void)
{
    static const uint64_t frequencies[] = {
        1, 3, 1000, 32768, 999983, 12000000, 1000000007, 4294967295u, UINT64_C(1) << 62};
    const uint64_t end_ns = UINT64_C(500) * 365 * DAY;
    size_t f;
    for (f = 0; f < COUNT(frequencies); f++) {
        uint64_t hz = frequencies[f], turn_ns, whole = 0, ns = 0;
        ratelimit_ticks t = {0, 0, 0};
        /* Turns of 2^31 ticks, then the remembered time set ahead to the last of them. */
        turn_ns = hz > UINT64_C(1) << 32 ? 0 : ratelimit_ticks_to_ns(UINT64_C(1) << 31, hz);
        for (whole = 1; whole <= 1000; whole++) {
            uint64_t want = ratelimit_ticks_to_ns(whole << 31, hz);
            if (want > end_ns)
                break;
            ns = ratelimit_ticks_ns(&t, (uint32_t)(whole << 31), 32, hz);
            CHECK_U64(ns, want);
            CHECK(ns >= (whole - 1) * turn_ns);
        }
        t.ns = end_ns;
        ns = ratelimit_ticks_ns(&t, t.last + 1, 32, hz);
        CHECK(ns >= end_ns && ns - end_ns <= SEC / hz + 1);
    }
}

static void ticks_out_of_range_are_for_ever(void)
{
    ratelimit_ticks t = {7, 0, 0};
    CHECK_U64(ratelimit_ticks_ns(&t, 1, 0, 1000), FOREVER);
    CHECK_U64(ratelimit_ticks_ns(&t, 1, 33, 1000), FOREVER);
    CHECK_U64(ratelimit_ticks_ns(&t, 1, 32, 0), FOREVER);
    CHECK_U64(ratelimit_ticks_ns(&t, 1, 32, (UINT64_C(1) << 62) + 1), FOREVER);
    CHECK_U64(ratelimit_ticks_ns(NULL, 1, 32, 1000), FOREVER);
    CHECK_U64(t.ns, 7);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(retry_after_is_rounded_up_and_never_0_on_a_refusal);
    RUN(fields_are_in_seconds);
    RUN(a_value_of_0_is_a_value);
    RUN(whole_seconds_are_not_made_one_more);
    RUN(the_drafts_fields_say_burst_the_time_it_takes_and_what_is_left);
    RUN(on_a_refusal_the_drafts_t_is_retry_after);
    RUN(what_has_no_numbers_has_no_fields);
    RUN(fields_fit_or_are_not_written_whatever_the_size);
    RUN(the_limit_that_binds_is_the_longest_wait_or_the_least_remaining);
    RUN(each_status_has_its_http_and_grpc_status);
    RUN(a_refusal_by_a_local_bucket_is_a_limits_although_the_store_failed);
    RUN(metrics_are_the_counters_in_prometheus_text);
    RUN(metrics_are_well_formed_and_each_family_stands_together);
    RUN(metrics_of_a_limiter_before_a_tier_are_those_of_the_tier_too);
    RUN(metrics_fit_or_are_empty_whatever_the_size);
    RUN(the_limiters_hook_feeds_the_top);
    RUN(long_keys_with_one_beginning_are_told_apart);
    RUN(the_tops_errors_are_within_their_bound);
    RUN_THREADED(the_top_counts_each_refusal_of_many_threads);
    RUN(a_top_without_room_counts_nothing);
    RUN(a_log_place_passes_its_limit_and_tells_what_it_held_back);
    RUN_THREADED(no_held_back_message_of_many_threads_is_lost_or_told_twice);
    RUN(ticks_that_wrap_go_on);
    RUN(counters_of_any_width_wrap_in_either_direction);
    RUN(ticks_are_exact_for_500_years_at_any_frequency);
    RUN(ticks_out_of_range_are_for_ever);
    return check_end();
}

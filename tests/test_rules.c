/* test_rules.c - rules: their text, right and wrong; look-up; the bucket of a rule and a key;
 * keys with limits of their own; several dimensions; counters; replacing rules while threads
 * decide; keys made of addresses and of two parts.
 *
 *     cc -std=c99 -O2 -I. -Itests tests/test_rules.c -lpthread
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#if !defined(__i386__)
#  include <arpa/inet.h>
#else /* -m32 on a 64-bit Linux, where that includes what is not there */
#  define AF_INET  2
#  define AF_INET6 10
extern int inet_pton(int family, const char *text, void *out);
extern const char *inet_ntop(int family, const void *bytes, char *out, unsigned out_bytes);
#endif
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK RATELIMIT_OK

enum { RULES = 16, OWNS = 3 };

static unsigned char table_memory[RATELIMIT_TABLE_BYTES(256)];
static unsigned char rules_memory[RATELIMIT_RULES_BYTES(RULES, OWNS)];
static ratelimit_table *table;
static ratelimit_rules *rules;
static ratelimit_limiter limiter;
static uint64_t now_ns;

static ratelimit_status load(const char *text)
{
    return ratelimit_rules_load(rules, text, strlen(text), NULL);
}

/* A limiter over a table with these rules, at 100 s. */
static void fresh(const char *text)
{
    ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0};
    now_ns = 100 * SEC;
    memset(&limiter, 0, sizeof limiter);
    if (ratelimit_table_init(&table, table_memory, sizeof table_memory, &options) != OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, clock_read, &now_ns)) != OK ||
        ratelimit_rules_init(&rules, rules_memory, sizeof rules_memory, RULES, OWNS) != OK)
        exit(2);
    limiter.rules = rules;
    CHECK(load(text) == OK);
}

static ratelimit_rule_request under(const char *rule, const char *key, uint64_t n)
{
    ratelimit_rule_request a;
    memset(&a, 0, sizeof a);
    a.rule = rule;
    a.request = request(key, NULL, n);
    return a;
}

static ratelimit_rule_request take_under(const char *rule, const char *key, uint64_t n)
{
    ratelimit_rule_request a = under(rule, key, n);
    memset(&a.result, 0xA5, sizeof a.result);
    a.result.allowed = false;
    CHECK(ratelimit_take_rules(&limiter, &a, 1, NULL) == a.result.allowed);
    return a;
}

static ratelimit_rule found(const char *name)
{
    ratelimit_rule rule;
    memset(&rule, 0, sizeof rule);
    if (!ratelimit_rules_find(rules, name, &rule))
        strcpy(rule.name, "(none)");
    return rule;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void rules_are_read_from_lines_with_comments_blanks_and_crlf(void)
{
    static const struct {
        const char *name, *limit;
        bool shadow;
    } want[] = {{"api", "100/s", false},
                {"a|b#c", "1/s", false},
                {"default", "unlimited", false},
                {"export", "1000/d window", true},
                {"login", "5/m burst 10", false},
                {"shadow", "2/s", true},
                {"\xC3\xA9t\xC3\xA9", "3/s", false}};
    ratelimit_rule rule;
    char text[80];
    size_t i;
    fresh("");
    CHECK(load("\xEF\xBB\xBF# all of it\r\n"
               "login 5/m burst 10\r\n"
               "\r\n \t\r\n"
               "\tapi\t100/s  # as much as we can\n"
               "export  1000/d window shadow # seen\r\n"
               "default unlimited   \n"
               "shadow 2/s \tshadow\n"
               "a|b#c 1/s\n"
               "\xC3\xA9t\xC3\xA9 3/s # no line end") == OK);
    for (i = 0; i < COUNT(want); i++) {
        memset(&rule, 0xA5, sizeof rule);
        CHECK(ratelimit_rules_at(rules, i, &rule));
        CHECK_TEXT(rule.name, want[i].name);
        ratelimit_limit_format(&rule.limit, text, sizeof text);
        CHECK_TEXT(text, want[i].limit);
        CHECK(rule.shadow == want[i].shadow);
        CHECK(!rule.allowed && !rule.refused && !rule.shadow_refused && !rule.failed);
    }
    CHECK(!ratelimit_rules_at(rules, COUNT(want), &rule));
}

static void a_wrong_text_says_where_and_leaves_everything_as_it_was(void)
{
    static const struct {
        const char *text;
        ratelimit_status status;
        size_t line, column;
    } rows[] = {
        {"a 1/s\nb 1/s\na 2/s\n", RATELIMIT_SYNTAX, 3, 1},   /* twice */
        {"a 1/s\n  b 1/x\n", RATELIMIT_SYNTAX, 2, 7},        /* unknown unit */
        {"a 1/s\r\nb 1/s slow\r\n", RATELIMIT_SYNTAX, 2, 7}, /* unknown word */
        {"a 1/s shadw", RATELIMIT_SYNTAX, 1, 7},
        {"a 1/s shadow shadow", RATELIMIT_SYNTAX, 1, 7},
        {"a 1/s shadow window", RATELIMIT_SYNTAX, 1, 7},
        {"a 1/sshadow", RATELIMIT_SYNTAX, 1, 6},
        {"a 1/s#c", RATELIMIT_SYNTAX, 1, 6},
        {"a", RATELIMIT_SYNTAX, 1, 2},
        {"a \t", RATELIMIT_SYNTAX, 1, 2},
        {"a # 1/s", RATELIMIT_SYNTAX, 1, 2},
        {"a shadow", RATELIMIT_SYNTAX, 1, 3},
        {"a Unlimited", RATELIMIT_SYNTAX, 1, 3},
        {"a 0/s", RATELIMIT_BAD_LIMIT, 1, 3},
        {"a 1/s burst 0", RATELIMIT_BAD_LIMIT, 1, 13},
        {"a 99999999999999999999999/s", RATELIMIT_BAD_LIMIT, 1, 3},
        {"a\x01 1/s", RATELIMIT_SYNTAX, 1, 2},
        {"a\x7f 1/s", RATELIMIT_SYNTAX, 1, 2},
        {"a\r 1/s\n", RATELIMIT_SYNTAX, 1, 2},
        {"a 1/s\r\r\n", RATELIMIT_SYNTAX, 1, 6},
        {"a 1/s\n\n# c\nb 1\n", RATELIMIT_SYNTAX, 4, 4},
        {"a 1/s\n\xef\xbb\xbf"
         "b 1/s\n",
         RATELIMIT_SYNTAX, 2, 1}, /* files with byte order marks put together: no rule b */
        {"a123456789b123456789c123456789d123456789e123456789f123456789g123 1/s", RATELIMIT_SYNTAX,
         1, 64},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_fault fault = {99, 99, NULL};
        ratelimit_rule old;
        char text[80];
        fresh("old 7/s\nother 8/s shadow\n");
        CHECK(take_under("old", "ann", 3).result.remaining == 4);
        CHECK_U64(ratelimit_rules_load(rules, rows[i].text, strlen(rows[i].text), &fault),
                  rows[i].status);
        if (fault.line != rows[i].line || fault.column != rows[i].column)
            printf("  \"%s\"\n", rows[i].text);
        CHECK_U64(fault.line, rows[i].line);
        CHECK_U64(fault.column, rows[i].column);
        CHECK(fault.what && fault.what[0]);
        old = found("old");
        ratelimit_limit_format(&old.limit, text, sizeof text);
        CHECK_TEXT(text, "7/s");
        CHECK(found("other").shadow);
        CHECK_TEXT(found("a").name, "(none)");
        CHECK(take_under("old", "ann", 1).result.remaining == 3);
        CHECK_U64(found("old").allowed, 2);
    }
}

static void a_right_text_has_no_fault(void)
{
    ratelimit_fault fault = {99, 99, NULL};
    fresh("");
    CHECK(ratelimit_rules_load(rules, "a 1/s\n", 6, &fault) == OK);
    CHECK_U64(fault.line, 0);
    CHECK_U64(fault.column, 0);
    CHECK_TEXT(fault.what, "");
    CHECK(ratelimit_rules_load(rules, NULL, 0, &fault) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_load(NULL, "", 0, &fault) == RATELIMIT_BAD_ARGUMENT);
    CHECK_TEXT(found("a").name, "a");
}

static void nuls_are_faults_outside_of_comments(void)
{
    static const char name[] = "a 1/s\nb\0c 1/s\n", limit[] = "a 1/s\0\n",
                      comment[] = "a 1/s # \0 \n";
    ratelimit_fault fault;
    fresh("");
    CHECK(ratelimit_rules_load(rules, name, sizeof name - 1, &fault) == RATELIMIT_SYNTAX);
    CHECK(fault.line == 2 && fault.column == 2);
    CHECK(ratelimit_rules_load(rules, limit, sizeof limit - 1, &fault) == RATELIMIT_SYNTAX);
    CHECK(fault.line == 1 && fault.column == 6);
    CHECK(ratelimit_rules_load(rules, comment, sizeof comment - 1, &fault) == OK);
}

static void a_name_of_63_bytes_is_the_longest(void)
{
    char text[80];
    memset(text, 'n', sizeof text);
    memcpy(text + 63, " 1/s", 5);
    fresh(text);
    text[63] = 0;
    CHECK_TEXT(found(text).name, text);
    memcpy(text + 64, " 1/s", 5);
    text[63] = 'n';
    CHECK(load(text) == RATELIMIT_SYNTAX);
}

static void lines_of_a_mebibyte_are_read_or_refused(void)
{
    static const char *const heads[] = {"a 1/s #", "", "a ", "a 1", "a 1/s "};
    static const char fills[] = {'x', 'n', ' ', '0', ' '};
    static const ratelimit_status want[] = {RATELIMIT_OK, RATELIMIT_SYNTAX, RATELIMIT_SYNTAX,
                                            RATELIMIT_SYNTAX, RATELIMIT_OK};
    const size_t bytes = 1 << 20;
    char *text = (char *)walled(bytes);
    size_t i;
    fresh("");
    for (i = 0; i < COUNT(heads); i++) {
        ratelimit_fault fault;
        memset(text, fills[i], bytes);
        memcpy(text, heads[i], strlen(heads[i]));
        CHECK_U64(ratelimit_rules_load(rules, text, bytes, &fault), want[i]);
        CHECK(want[i] == OK || (fault.line == 1 && fault.column >= 1 && fault.column <= bytes + 1));
    }
}

static void ten_thousand_rules_fit_if_there_is_room_and_one_more_does_not(void)
{
    enum { MANY = 10000 };
    size_t bytes = RATELIMIT_RULES_BYTES(MANY, 0), len = 0, i;
    unsigned char *memory = walled(bytes);
    char *text = (char *)malloc(MANY * 24 + 24), name[24];
    ratelimit_rules *many;
    ratelimit_rule rule;
    ratelimit_fault fault;
    if (!text || ratelimit_rules_init(&many, memory, bytes, MANY, 0) != OK)
        exit(2);
    for (i = 0; i <= MANY; i++)
        len += (size_t)sprintf(text + len, "r%u %u/h\n", (unsigned)(i * 7919 % 100003),
                               (unsigned)i + 1);
    CHECK(ratelimit_rules_load(many, text, len, &fault) == RATELIMIT_NO_MEMORY);
    CHECK_U64(fault.line, MANY + 1);
    CHECK(!ratelimit_rules_at(many, 0, &rule));
    while (text[len - 2] != '\n')
        len--;
    CHECK(ratelimit_rules_load(many, text, len - 1, &fault) == OK);
    for (i = 0; i < MANY; i += 97) {
        sprintf(name, "r%u", (unsigned)(i * 7919 % 100003));
        CHECK(ratelimit_rules_find(many, name, &rule));
        CHECK_TEXT(rule.name, name);
        CHECK_U64(rule.limit.tokens, i + 1);
    }
    CHECK(ratelimit_rules_at(many, MANY - 1, &rule) && !ratelimit_rules_at(many, MANY, &rule));
    free(text);
}

/* Random bytes of the grammar's own letters: nothing but a clear answer, and a text that was taken
 * and written out again is the same. */
static void any_text_is_taken_or_refused_with_a_place_in_it(void)
{
    static const char letters[] = "ab|#/ 1s0\tm\n\r\n burst window shadow unlimited\0";
    uint64_t taken = 0;
    int i;
    check_seed(1);
    fresh("");
    for (i = 0; i < 30000; i++) {
        char text[64];
        size_t len = (size_t)check_below(sizeof text), j, lines = 1;
        ratelimit_fault fault;
        ratelimit_status status;
        for (j = 0; j < len; j++)
            text[j] = letters[check_below(sizeof letters)];
        if (check_below(2) && len > 7)
            memcpy(text + check_below(len - 6), "a 1/s\n", 6);
        for (j = 0; j < len; j++)
            lines += text[j] == '\n';
        status = ratelimit_rules_load(rules, text, len, &fault);
        taken += status == OK;
        CHECK(status == OK ? fault.line == 0
                           : fault.line >= 1 && fault.line <= lines && fault.column >= 1 &&
                                 fault.column <= len + 1);
    }
    CHECK(taken > 100);
}

static void memory_a_byte_too_small_is_refused_and_the_rest_is_used_to_the_last(void)
{
    size_t bytes = RATELIMIT_RULES_BYTES(3, 2), skip;
    ratelimit_rules *r = NULL;
    ratelimit_rule rule;
    for (skip = 0; skip < 8; skip++) {
        unsigned char *memory = walled(bytes + skip) + skip;
        static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1);
        size_t need = RATELIMIT_RULES_BYTES(3, 2) - 7 + (size_t)(-(uintptr_t)memory & 7);
        CHECK(ratelimit_rules_init(&r, memory, need - 1, 3, 2) == RATELIMIT_NO_MEMORY);
        CHECK(ratelimit_rules_init(&r, memory, bytes, 3, 2) == OK);
        CHECK(ratelimit_rules_load(r, "a 1/s\nb 1/s\nc 1/s", 17, NULL) == OK);
        CHECK(ratelimit_rules_own(r, "a", "k", 1, &limit) == OK);
        CHECK(ratelimit_rules_own(r, "a", "l", 1, &limit) == OK);
        CHECK(ratelimit_rules_own(r, "a", "m", 1, &limit) == RATELIMIT_NO_MEMORY);
        CHECK(ratelimit_rules_at(r, 2, &rule));
    }
    CHECK(ratelimit_rules_init(NULL, rules_memory, bytes, 3, 2) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, NULL, bytes, 3, 2) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, rules_memory, bytes, 0, 2) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, rules_memory, bytes, SIZE_MAX, 2) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, rules_memory, bytes, 1 << 24, 1 << 24) == RATELIMIT_NO_MEMORY);
}

/* ---- look-up and buckets --------------------------------------------------------------------- */

static void a_name_is_looked_up_whole_then_before_its_first_bar_then_as_default(void)
{
    static const char *const rows[][2] = {
        {"login", "login"},        {"login|ann", "login"}, {"login|root", "login|root"},
        {"login|root|x", "login"}, {"logi", "default"},    {"login2", "default"},
        {"|", "default"},          {"", "default"},        {"x|login", "default"},
        {"login|", "login"},       {"default", "default"},
    };
    size_t i;
    fresh("login 5/m\nlogin|root 1/m\ndefault 9/s");
    for (i = 0; i < COUNT(rows); i++)
        CHECK_TEXT(found(rows[i][0]).name, rows[i][1]);
    CHECK(load("login 5/m") == OK);
    CHECK_TEXT(found("other").name, "(none)");
    CHECK(!ratelimit_rules_find(rules, NULL, NULL));
}

static void allow_rule_takes_the_rule_from_its_name_or_from_the_resource(void)
{
    fresh("login 2/h\napi 1/h\ndefault 3/h");
    CHECK(ratelimit_allow_rule(&limiter, "ann", "login"));
    CHECK(ratelimit_allow_rule(&limiter, "ann", "login"));
    CHECK(!ratelimit_allow_rule(&limiter, "ann", "login"));
    CHECK(ratelimit_allow_rule(&limiter, "bob", "login"));
    CHECK(ratelimit_allow_rule(&limiter, "ann", "api|v1"));
    CHECK(!ratelimit_allow_rule(&limiter, "ann", "api"));
    CHECK(ratelimit_allow_rule(&limiter, "api|eve", NULL));
    CHECK(!ratelimit_allow_rule(&limiter, "api|eve", NULL));
    CHECK(ratelimit_allow_rule(&limiter, "elsewhere", NULL));
    CHECK_U64(take_under(NULL, "elsewhere", 1).result.remaining, 1);
    CHECK_U64(found("default").allowed, 2);
}

static void what_finds_no_rule_is_refused(void)
{
    ratelimit_rule_request a;
    fresh("login 2/h");
    CHECK(!ratelimit_allow_rule(&limiter, "ann", "nothing"));
    CHECK(!ratelimit_allow_rule(&limiter, "ann", NULL));
    CHECK(!ratelimit_allow_rule(&limiter, NULL, "login"));
    CHECK(!ratelimit_allow_rule(&limiter, "", "login"));
    CHECK(!ratelimit_allow_rule(NULL, "ann", "login"));
    a = take_under("nothing", "ann", 1);
    CHECK_U64(a.result.status, RATELIMIT_BAD_LIMIT);
    CHECK_TEXT(a.name, "");
    CHECK_U64(take_under("login", "", 1).result.status, RATELIMIT_BAD_KEY);
    CHECK_U64(take_under("login", "ann", 0).result.status, RATELIMIT_BAD_COUNT);
    limiter.rules = NULL;
    CHECK(!ratelimit_allow_rule(&limiter, "ann", "login"));
    CHECK_U64(take_under("login", "ann", 1).result.status, RATELIMIT_BAD_LIMIT);
}

static void a_key_that_is_too_long_is_refused_not_cut(void)
{
    static char key[600];
    size_t longest = RATELIMIT_RULE_KEY_BYTES - strlen("login") - 2;
    fresh("login 2/h");
    memset(key, 'k', sizeof key - 1);
    key[longest + 1] = 0;
    CHECK_U64(take_under("login", key, 1).result.status, RATELIMIT_BAD_KEY);
    key[longest] = 0;
    CHECK_U64(take_under("login", key, 1).result.remaining, 1);
}

/* B39 */
static void one_key_under_two_rules_has_two_buckets(void)
{
    fresh("ok 200/60s\nbad 2/60s");
    CHECK(take_under("ok", "ann", 1).result.allowed);
    CHECK(take_under("ok", "ann", 1).result.allowed);
    CHECK_U64(take_under("ok", "ann", 1).result.remaining, 197);
    CHECK(take_under("bad", "ann", 1).result.allowed);
    CHECK_U64(take_under("bad", "ann", 1).result.remaining, 0);
    CHECK(!take_under("bad", "ann", 1).result.allowed);
    CHECK(take_under("ok", "ann", 1).result.allowed);
}

static void a_rule_that_changes_keeps_its_buckets_and_what_was_spent(void)
{
    fresh("a 10/h\nb 10/h");
    CHECK_U64(take_under("a", "ann", 4).result.remaining, 6);
    CHECK_U64(take_under("b", "ann", 1).result.remaining, 9);
    CHECK(load("a 20/h\nc 1/s") == OK);
    CHECK_U64(found("c").allowed, 0); /* nothing of what had its place before */
    CHECK_U64(take_under("a", "ann", 1).result.remaining, 15);
    CHECK_U64(take_under("b", "ann", 1).result.status, RATELIMIT_BAD_LIMIT);
    CHECK(load("c 1/s\na 5/h\nb 10/h") == OK);
    CHECK_U64(take_under("a", "ann", 1).result.status, RATELIMIT_DENIED);
    CHECK_U64(take_under("b", "ann", 1).result.remaining, 8);
    CHECK_U64(found("a").allowed, 2);
    CHECK_U64(found("a").refused, 1);
    CHECK_U64(found("b").allowed, 1); /* it was gone, and came back as new */
}

static void a_shadow_rule_counts_but_refuses_nobody(void)
{
    ratelimit_rule_request a;
    ratelimit_counts counts;
    fresh("try 1/h shadow\nreal 1/h");
    CHECK(ratelimit_allow_rule(&limiter, "ann", "try"));
    a = take_under("try", "ann", 1);
    CHECK(a.result.allowed && a.result.status == RATELIMIT_DENIED && a.result.remaining == 0);
    CHECK(take_under("real", "ann", 1).result.allowed);
    CHECK(!take_under("real", "ann", 1).result.allowed);
    CHECK_U64(found("try").allowed, 2);
    CHECK_U64(found("try").shadow_refused, 1);
    CHECK_U64(found("try").refused, 0);
    CHECK_U64(found("real").allowed, 1);
    CHECK_U64(found("real").refused, 1);
    CHECK_U64(found("real").shadow_refused, 0);
    ratelimit_limiter_counts(&limiter, &counts);
    CHECK(counts.allowed == 3 && counts.refused == 1 && counts.shadow_refused == 1);
    limiter.shadow = true;
    CHECK(take_under("real", "ann", 1).result.allowed);
    CHECK_U64(found("real").shadow_refused, 1);
}

static void windows_and_unlimited_rules_work_as_their_limits_do(void)
{
    fresh("w 2/10s window\nu unlimited");
    CHECK(take_under("w", "ann", 2).result.allowed);
    now_ns = 109 * SEC;
    CHECK_U64(take_under("w", "ann", 1).result.retry_after_ns, SEC);
    now_ns = 110 * SEC;
    CHECK(take_under("w", "ann", 2).result.allowed);
    CHECK(take_under("u", "ann", 1000000).result.remaining == UINT64_MAX);
}

/* ---- keys with limits of their own ----------------------------------------------------------- */

static void a_key_has_the_limit_that_was_set_for_it_before_its_rules(void)
{
    static const ratelimit_limit more = RATELIMIT_LIMIT(100, HOUR, 100);
    static const ratelimit_limit less = RATELIMIT_LIMIT(3, HOUR, 3);
    ratelimit_rule_request a;
    fresh("api 10/h\nlogin 10/h");
    CHECK(ratelimit_rules_own(rules, "api", "acme", 4, &more) == OK);
    a = take_under("api", "acme", 4);
    CHECK(a.own && a.limit.tokens == 100 && a.result.remaining == 96);
    CHECK_TEXT(a.name, "api");
    a = take_under("api|v2", "acme", 1);
    CHECK(a.own && a.result.remaining == 95); /* looked up to api: the same bucket */
    a = take_under("login", "acme", 1);
    CHECK(!a.own && a.result.remaining == 9);
    CHECK(take_under("api", "acm", 1).result.remaining == 9);
    CHECK(ratelimit_rules_own(rules, "api", "acme", 4, &less) == OK);
    CHECK(take_under("api", "acme", 1).result.status == RATELIMIT_DENIED); /* five were spent */
    CHECK(ratelimit_rules_own(rules, "api", "acme", 4, NULL) == OK);
    a = take_under("api", "acme", 1); /* more than the 3 then: the whole of them */
    CHECK(!a.own && a.result.allowed && a.result.remaining == 6);
    CHECK(ratelimit_rules_own(rules, "api", "acme", 4, NULL) == OK);
}

static void own_limits_outlive_a_load_and_a_rule_that_is_gone_for_a_while(void)
{
    static const ratelimit_limit more = RATELIMIT_LIMIT(100, HOUR, 100);
    fresh("api 10/h");
    CHECK(ratelimit_rules_own(rules, "api", "acme", 4, &more) == OK);
    CHECK(load("default 1/h") == OK);
    CHECK(!take_under("api", "acme", 1).own);
    CHECK(load("x 1/h\napi 20/h") == OK);
    CHECK(take_under("api", "acme", 1).own);
    CHECK(load("nonsense") == RATELIMIT_SYNTAX);
    CHECK(take_under("api", "acme", 1).own);
}

static void own_limits_come_and_go_in_any_order(void)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e"};
    bool there[COUNT(keys)] = {false};
    size_t held = 0;
    int i;
    check_seed(2);
    fresh("r 1000000000/h");
    for (i = 0; i < 2000; i++) {
        size_t k = (size_t)check_below(COUNT(keys)), j;
        ratelimit_limit limit = ratelimit_limit_make(UINT64_C(2000000000) + k, HOUR, 1 << 30);
        if (check_below(2)) {
            bool fits = there[k] || held < OWNS;
            CHECK_U64(ratelimit_rules_own(rules, "r", keys[k], 1, &limit),
                      fits ? OK : RATELIMIT_NO_MEMORY);
            held += fits && !there[k];
            there[k] = fits || there[k];
        } else {
            CHECK(ratelimit_rules_own(rules, "r", keys[k], 1, NULL) == OK);
            held -= there[k];
            there[k] = false;
        }
        for (j = 0; j < COUNT(keys); j++) {
            ratelimit_rule_request a = take_under("r", keys[j], 1);
            CHECK(a.own == there[j]);
            CHECK_U64(a.limit.tokens, there[j] ? UINT64_C(2000000000) + j : 1000000000);
        }
    }
}

static void own_refuses_what_it_cannot_keep(void)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, SEC, 1),
                                 zero = RATELIMIT_LIMIT(0, 1, 1);
    static const char key[65] = "";
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    fresh("");
    CHECK(ratelimit_rules_own(NULL, "r", "k", 1, &limit) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_own(rules, NULL, "k", 1, &limit) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_own(rules, "", "k", 1, &limit) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_own(rules, name, "k", 1, &limit) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_own(rules, name + 1, key, 64, &limit) == OK);
    CHECK(ratelimit_rules_own(rules, "r", key, 65, &limit) == RATELIMIT_BAD_KEY);
    CHECK(ratelimit_rules_own(rules, "r", NULL, 1, &limit) == RATELIMIT_BAD_KEY);
    CHECK(ratelimit_rules_own(rules, "r", "k", 0, &limit) == RATELIMIT_BAD_KEY);
    CHECK(ratelimit_rules_own(rules, "r", "k", 1, &zero) == RATELIMIT_BAD_LIMIT);
}

/* ---- several dimensions ---------------------------------------------------------------------- */

static void dimensions_are_taken_all_or_none_and_say_which_refused_for_how_long(void)
{
    ratelimit_rule_request of[3];
    size_t binds = 9;
    int i;
    fresh("user 10/s\naddress 3/m\nroute 100/s");
    of[0] = under("user", "ann", 1);
    of[1] = under("address", "192.0.2.1", 1);
    of[2] = under("route", "/search", 1);
    for (i = 0; i < 3; i++) {
        CHECK(ratelimit_take_rules(&limiter, of, 3, &binds));
        CHECK_U64(binds, 1);
    }
    CHECK(!ratelimit_take_rules(&limiter, of, 3, &binds));
    CHECK_U64(binds, 1);
    CHECK_TEXT(of[binds].name, "address");
    CHECK_U64(of[1].result.retry_after_ns, 20 * SEC);
    CHECK(of[0].result.status == OK && !of[0].result.allowed);
    CHECK_U64(take_under("user", "ann", 1).result.remaining, 6); /* none was taken of it then */
    CHECK_U64(found("address").refused, 1);
    CHECK_U64(found("user").refused, 0);
    CHECK_U64(found("user").allowed, 4);
}

static void the_longest_wait_binds_among_several_that_refuse(void)
{
    ratelimit_rule_request of[2];
    size_t binds = 9;
    fresh("a 1/s\nb 1/m");
    of[0] = under("b", "x", 1);
    of[1] = under("a", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, 2, &binds));
    CHECK(!ratelimit_take_rules(&limiter, of, 2, &binds));
    CHECK_U64(binds, 0);
    now_ns += SEC;
    CHECK(!ratelimit_take_rules(&limiter, of, 2, &binds));
    CHECK_U64(binds, 0);
    CHECK_U64(of[0].result.retry_after_ns, 59 * SEC);
}

static void a_shadow_dimension_neither_refuses_nor_is_charged_for_a_refused_event(void)
{
    ratelimit_rule_request of[3];
    size_t binds = 9;
    fresh("soft 2/h shadow\nhard 3/h\nsofter 9/h shadow");
    of[0] = under("soft", "x", 1);
    of[1] = under("hard", "x", 1);
    of[2] = under("softer", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, 3, &binds));
    CHECK_U64(binds, 1);
    CHECK(ratelimit_take_rules(&limiter, of, 3, NULL));
    CHECK(ratelimit_take_rules(&limiter, of, 3, NULL)); /* soft would have refused */
    CHECK(of[0].result.allowed && of[0].result.status == RATELIMIT_DENIED);
    CHECK_U64(of[2].result.remaining, 6);
    CHECK(!ratelimit_take_rules(&limiter, of, 3, &binds));
    CHECK_U64(binds, 1);
    CHECK(!of[0].result.allowed && !of[2].result.allowed);
    CHECK_U64(of[2].result.remaining, 6);
    CHECK_U64(take_under("softer", "x", 1).result.remaining, 5);
    CHECK_U64(found("soft").shadow_refused, 1);
    CHECK_U64(found("soft").refused, 0);
    CHECK_U64(found("hard").refused, 1);
}

static void the_same_bucket_twice_in_one_event_is_charged_twice_or_not_at_all(void)
{
    ratelimit_rule_request of[2];
    fresh("a 3/h");
    of[0] = under("a", "x", 2);
    of[1] = under("a", "x", 2);
    CHECK(!ratelimit_take_rules(&limiter, of, 2, NULL));
    of[1] = under("a|b", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, 2, NULL));
    CHECK_U64(take_under("a", "x", 1).result.status, RATELIMIT_DENIED);
}

static void eight_dimensions_fit_and_nine_are_a_bad_argument(void)
{
    ratelimit_rule_request of[RATELIMIT_MAX_RULE_REQUESTS + 1];
    size_t i, binds = 9;
    fresh("a 1/h");
    for (i = 0; i < COUNT(of); i++) {
        static const char *const keys[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8"};
        of[i] = under("a", keys[i], 1);
    }
    CHECK(!ratelimit_take_rules(&limiter, of, COUNT(of), &binds));
    CHECK_U64(binds, 0);
    for (i = 0; i < COUNT(of); i++)
        CHECK_U64(of[i].result.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_take_rules(&limiter, of, COUNT(of) - 1, NULL));
    CHECK(ratelimit_take_rules(&limiter, of, 0, NULL));
    CHECK(!ratelimit_take_rules(&limiter, NULL, 1, NULL));
    CHECK(!ratelimit_take_rules(NULL, of, 1, NULL));
}

static void store_down(void *self, const ratelimit_request *req, ratelimit_result *res,
                       size_t count, ratelimit_mode mode)
{
    size_t i;
    (void)self, (void)req, (void)mode;
    for (i = 0; i < count; i++) {
        memset(&res[i], 0, sizeof res[i]);
        res[i].status = RATELIMIT_STORE_FAILED;
    }
}

static void a_failed_store_is_counted_by_the_rule_and_decided_by_the_policy(void)
{
    fresh("a 1/h\ns 1/h shadow");
    limiter.store = store_of(store_down, NULL);
    CHECK(ratelimit_allow_rule(&limiter, "x", "a"));
    limiter.on_failure = RATELIMIT_FAIL_CLOSED;
    CHECK(!ratelimit_allow_rule(&limiter, "x", "a"));
    CHECK(ratelimit_allow_rule(&limiter, "x", "s"));
    CHECK_U64(found("a").failed, 2);
    CHECK_U64(found("a").allowed, 1);
    CHECK_U64(found("a").refused, 1);
    CHECK_U64(found("a").shadow_refused, 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

/* Deciders see rules of one text, never a mixture; those that stay keep their buckets. */
typedef struct crew {
    uint32_t stop;
    uint32_t passed, asked, torn; /* 64 bits are not aligned for this everywhere */
} crew;

static void *decide_all_the_time(void *self)
{
    crew *c = (crew *)self;
    uint32_t passed = 0, asked = 0, torn = 0;
    while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
        ratelimit_rule_request a = under("keep", "ann", 1), b;
        ratelimit_rule rule;
        size_t i;
        passed += ratelimit_take_rules(&limiter, &a, 1, NULL);
        asked++;
        torn += a.limit.tokens != 1000 || strcmp(a.name, "keep") != 0;
        b = under("turn", "ann", 1);
        (void)ratelimit_take_rules(&limiter, &b, 1, NULL);
        torn += b.limit.tokens != 7 && b.limit.tokens != 8;
        torn += b.limit.burst != b.limit.tokens * 3;
        b = under("own", "acme", 1);
        (void)ratelimit_take_rules(&limiter, &b, 1, NULL);
        torn += b.own ? b.limit.tokens != 55 || b.limit.burst != 55 : b.limit.tokens != 5;
        for (i = 0; i < 4 && ratelimit_rules_at(rules, i, &rule); i++)
            torn += rule.limit.tokens == 0;
    }
    __atomic_fetch_add(&c->passed, passed, __ATOMIC_ACQ_REL);
    __atomic_fetch_add(&c->asked, asked, __ATOMIC_ACQ_REL);
    __atomic_fetch_add(&c->torn, torn, __ATOMIC_ACQ_REL);
    return NULL;
}

static void *load_all_the_time(void *self)
{
    static const char *const texts[] = {
        "turn 7/h burst 21\nkeep 1000/h\nown 5/h\n",
        "own 5/h\na 1/h\nb 1/h\nc 1/h\nkeep 1000/h\nturn 8/h burst 24\n",
        "keep 1000/h\nturn 9/h\nown 5/h\nbroken",
    };
    static const ratelimit_limit own = RATELIMIT_LIMIT(55, HOUR, 55);
    int i, turns = SHORT ? 1500 : 10000;
    (void)self;
    for (i = 0; i < turns; i++) {
        CHECK(load(texts[i % 3]) == (i % 3 == 2 ? RATELIMIT_SYNTAX : OK));
        CHECK(ratelimit_rules_own(rules, "own", "acme", 4, i % 2 ? &own : NULL) == OK);
    }
    return NULL;
}

#if RATELIMIT_PRIV_ATOMIC
static void *load_once(void *self)
{
    CHECK(load("new 2/h") == OK);
    __atomic_store_n((uint32_t *)self, 1, __ATOMIC_RELEASE);
    return NULL;
}
#endif

/* A reader that came before a load, and one that came while it went on. */
static void a_load_waits_for_look_ups_under_way_and_leaves_their_rules_alone(void)
{
#if RATELIMIT_PRIV_ATOMIC
    uint32_t side, late_side, turn, late_turn, done = 0, place;
    ratelimit_priv_names old;
    pthread_t loader;
    int i;
    fresh("old 1/h");
    turn = ratelimit_priv_enter(rules, &side);
    old = ratelimit_priv_names_of(rules, side, 0);
    CHECK(pthread_create(&loader, NULL, load_once, &done) == 0);
    while ((ratelimit_priv_read32(&rules->side) & 1) == side)
        sched_yield();
    late_turn = ratelimit_priv_enter(rules, &late_side);
    CHECK(late_side != side);
    CHECK_TEXT(found("new").name, "new");
    for (i = 0; i < 2000; i++) {
        sched_yield();
        CHECK(ratelimit_priv_seek(&old, "old", 3, &place) != NULL);
        CHECK(!__atomic_load_n(&done, __ATOMIC_ACQUIRE));
    }
    ratelimit_priv_leave(rules, late_turn);
    ratelimit_priv_leave(rules, turn);
    pthread_join(loader, NULL);
    CHECK_U64(done, 1);
#endif
}

static void rules_are_replaced_under_deciders_without_a_token_too_many(void)
{
    pthread_t decider[3], loader[2];
    crew c;
    size_t i;
    memset(&c, 0, sizeof c);
    fresh("turn 7/h burst 21\nkeep 1000/h\nown 5/h\n");
    for (i = 0; i < COUNT(decider); i++)
        CHECK(pthread_create(&decider[i], NULL, decide_all_the_time, &c) == 0);
    for (i = 0; i < COUNT(loader); i++)
        CHECK(pthread_create(&loader[i], NULL, load_all_the_time, NULL) == 0);
    for (i = 0; i < COUNT(loader); i++)
        pthread_join(loader[i], NULL);
    __atomic_store_n(&c.stop, 1, __ATOMIC_RELEASE);
    for (i = 0; i < COUNT(decider); i++)
        pthread_join(decider[i], NULL);
    CHECK_U64(c.torn, 0);
    CHECK_U64(c.passed, c.asked < 1000 ? c.asked : 1000);
    CHECK(c.asked > 100);
#if RATELIMIT_PRIV_ATOMIC64
    CHECK_U64(found("keep").allowed, c.passed);
    CHECK_U64(found("keep").refused, c.asked - c.passed);
#endif
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void no_two_pairs_make_the_same_key(void)
{
    static const char *const parts[] = {"",  "a",    "|",      "a|",      "|a",   "a|b",
                                        "b", "\x01", "a|\x01", "a|b\x01", "\x02", "|\x01"};
    unsigned char one[64], two[64];
    size_t i, j, k, m;
    for (i = 0; i < COUNT(parts); i++)
        for (j = 0; j < COUNT(parts); j++)
            for (k = 0; k < COUNT(parts); k++)
                for (m = 0; m < COUNT(parts); m++) {
                    size_t a = ratelimit_key_join(parts[i], strlen(parts[i]), parts[j],
                                                  strlen(parts[j]), one, sizeof one);
                    size_t b = ratelimit_key_join(parts[k], strlen(parts[k]), parts[m],
                                                  strlen(parts[m]), two, sizeof two);
                    CHECK((a == b && memcmp(one, two, a) == 0) == (i == k && j == m));
                }
}

static void long_parts_make_keys_of_their_own_too(void)
{
    static unsigned char all[700], one[1500], two[1500];
    size_t cut, len, first;
    memset(all, 0, sizeof all);
    for (cut = 1; cut < sizeof all; cut += 6) { /* all the ways to cut the same bytes in two */
        first = ratelimit_key_join(all, cut, all + cut, sizeof all - cut, one, sizeof one);
        len =
            ratelimit_key_join(all, cut - 1, all + cut - 1, sizeof all - cut + 1, two, sizeof two);
        CHECK(first != len || memcmp(one, two, len) != 0);
        CHECK_U64(first, sizeof all + 1 + (cut < 255 ? 1 : 9));
    }
    for (len = 0; len < 6; len++) { /* 1 + 1 + 3 + 1 = 6 bytes */
        unsigned char *buf = walled(len);
        memset(buf, 0x55, len);
        CHECK_U64(ratelimit_key_join("a", 1, "bcd", 3, buf, len), 6);
        for (first = 0; first < len; first++)
            CHECK(buf[first] == 0x55);
    }
    CHECK(ratelimit_key_join("a", 1, "bcd", 3, walled(6), 6) == 6);
    CHECK(ratelimit_key_join("a", 1, "bcd", 3, NULL, 0) == 6);
}

/* The system's own reader is the oracle. */
static void check_address(const char *text)
{
    unsigned char got[16], want[16];
    size_t len;
    bool same;
    memset(got, 0x55, sizeof got);
    memset(want, 0x55, sizeof want);
    len = ratelimit_address_parse(text, strlen(text), got);
    if (inet_pton(AF_INET, text, want) == 1)
        CHECK_U64(len, 4);
    else if (inet_pton(AF_INET6, text, want) == 1)
        CHECK_U64(len, 16);
    else
        CHECK_U64(len, 0);
    same = len ? memcmp(got, want, len) == 0 : got[0] == 0x55 && got[15] == 0x55;
    CHECK_TEXT(same ? text : "other bytes", text);
}

static void addresses_are_read_as_the_system_reads_them(void)
{
    static const char *const texts[] = {
        "192.0.2.1",
        "0.0.0.0",
        "255.255.255.255",
        "256.0.0.1",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.4 ",
        " 1.2.3.4",
        "01.2.3.4",
        "1.2.3.04",
        "1..3.4",
        "1.2.3.",
        ".1.2.3",
        "1.2.3.4:80",
        "",
        "1",
        "0x1.2.3.4",
        "1.2.3.1111",
        "::",
        "::1",
        "1::",
        "2001:db8::1",
        "2001:DB8::A:b",
        ":",
        ":::",
        "1:2:3:4:5:6:7:8",
        "1:2:3:4:5:6:7",
        "1:2:3:4:5:6:7:8:9",
        "1:2:3:4:5:6:7::",
        "::2:3:4:5:6:7:8",
        "1:2:3:4::5:6:7:8",
        "1::2::3",
        "1:2:3:4:5:6:7:8::",
        "12345::",
        "g::",
        "::ffff:192.0.2.1",
        "::192.0.2.1",
        "1:2:3:4:5:6:1.2.3.4",
        "1:2:3:4:5:6:7:1.2.3.4",
        "::1.2.3.4:5",
        "1.2.3.4::",
        "::1.2.3",
        "::256.1.1.1",
        "[::1]",
        "fe80::1%eth0",
        "::1 ",
        "1:",
        ":1",
        "1:2:3:4:5:6:7:",
        "::1:",
        "1::1.2.3.4",
        "::ffff:0:0",
        "localhost",
        "::.1",
    };
    size_t i;
    for (i = 0; i < COUNT(texts); i++)
        check_address(texts[i]);
    CHECK_U64(ratelimit_address_parse(NULL, 0, NULL), 0);
    CHECK_U64(ratelimit_address_parse("::1\0", 4, (unsigned char *)walled(16)), 0);
}

static void random_addresses_are_read_as_the_system_reads_them(void)
{
    static const char letters[] = "0123:::...fA1:";
    int i;
    check_seed(3);
    for (i = 0; i < 200000; i++) {
        char text[48], *exact;
        unsigned char bytes[16];
        size_t len, j;
        if (check_below(2)) {
            for (j = 0; j < 16; j++)
                bytes[j] = (unsigned char)(check_below(3) ? 0 : check_random());
            inet_ntop(AF_INET6, bytes, text, sizeof text);
            len = strlen(text);
            if (check_below(2))
                text[check_below(len)] = letters[check_below(sizeof letters - 1)];
        } else {
            len = (size_t)check_below(20);
            for (j = 0; j < len; j++)
                text[j] = letters[check_below(sizeof letters - 1)];
        }
        text[len] = 0;
        check_address(text);
        if (i < 200) { /* not a byte further than it was told */
            exact = (char *)walled(len);
            memcpy(exact, text, len);
            CHECK(ratelimit_address_parse(exact, len, bytes) ==
                  ratelimit_address_parse(text, len, bytes));
        }
    }
}

static size_t key_of(const char *text, unsigned bits4, unsigned bits6, unsigned char *key)
{
    unsigned char address[16];
    size_t bytes = ratelimit_address_parse(text, strlen(text), address);
    memset(key, 0x55, RATELIMIT_ADDRESS_KEY_BYTES);
    return ratelimit_address_key(address, bytes, bits4, bits6, key);
}

static void addresses_of_one_network_have_one_key_and_others_another(void)
{
    static const struct {
        const char *a, *b;
        unsigned bits4, bits6;
        bool same;
    } rows[] = {
        {"192.0.2.1", "192.0.2.1", 32, 64, true},
        {"192.0.2.1", "192.0.2.2", 32, 64, false},
        {"192.0.2.1", "192.0.2.255", 24, 64, true},
        {"192.0.2.1", "192.0.3.1", 24, 64, false},
        {"192.0.2.1", "192.0.3.1", 23, 64, true},
        {"192.0.2.1", "10.0.0.1", 0, 64, true},
        {"2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", 32, 64, true},
        {"2001:db8::1", "2001:db8:0:1::1", 32, 64, false},
        {"2001:db8::1", "2001:db8:0:ff::1", 32, 56, true},
        {"2001:db8::1", "2001:db8:0:100::1", 32, 56, false},
        {"2001:db8::1", "2001:db8:0:ffff::1", 32, 48, true},
        {"2001:db8::1", "2001:db8:1::1", 32, 48, false},
        {"2001:db8::1", "2001:db8:ffff::1", 32, 32, true},
        {"2001:db8::1", "2001:db9::1", 32, 32, false},
        {"2001:db8::1", "2001:db8::2", 32, 128, false},
        {"2001:db8::1", "2001:db8::2", 32, 126, true},
        {"::ffff:192.0.2.1", "192.0.2.1", 32, 64, true},
        {"::ffff:192.0.2.1", "192.0.2.2", 32, 64, false},
        {"::192.0.2.1", "192.0.2.1", 32, 128, false},
        {"::", "0.0.0.0", 0, 0, false},
    };
    unsigned char one[RATELIMIT_ADDRESS_KEY_BYTES], two[RATELIMIT_ADDRESS_KEY_BYTES];
    size_t i, a, b;
    for (i = 0; i < COUNT(rows); i++) {
        a = key_of(rows[i].a, rows[i].bits4, rows[i].bits6, one);
        b = key_of(rows[i].b, rows[i].bits4, rows[i].bits6, two);
        CHECK(a && b);
        CHECK_TEXT((a == b && memcmp(one, two, a) == 0) == rows[i].same ? rows[i].a : "",
                   rows[i].a);
    }
    CHECK_U64(key_of("192.0.2.1", 24, 64, one), 6);
    CHECK(memcmp(one, "\x04\x18\xC0\x00\x02\x00", 6) == 0);
    a = key_of("192.0.2.0", 25, 64, two);
    CHECK(memcmp(one, two, a) != 0); /* tiers of one address do not share a bucket */
}

static void what_is_no_address_or_no_prefix_makes_no_key(void)
{
    unsigned char key[RATELIMIT_ADDRESS_KEY_BYTES], address[16] = {1};
    CHECK_U64(key_of("nobody", 32, 64, key), 0);
    CHECK_U64(ratelimit_address_key(address, 4, 33, 64, key), 0);
    CHECK_U64(ratelimit_address_key(address, 16, 32, 129, key), 0);
    CHECK_U64(ratelimit_address_key(address, 16, 99, 128, key), 18);
    CHECK_U64(ratelimit_address_key(address, 5, 32, 64, key), 0);
    CHECK_U64(ratelimit_address_key(NULL, 4, 32, 64, key), 0);
    CHECK_U64(ratelimit_address_key(address, 4, 32, 64, NULL), 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(rules_are_read_from_lines_with_comments_blanks_and_crlf);
    RUN(a_wrong_text_says_where_and_leaves_everything_as_it_was);
    RUN(a_right_text_has_no_fault);
    RUN(nuls_are_faults_outside_of_comments);
    RUN(a_name_of_63_bytes_is_the_longest);
    RUN(lines_of_a_mebibyte_are_read_or_refused);
    RUN(ten_thousand_rules_fit_if_there_is_room_and_one_more_does_not);
    RUN(any_text_is_taken_or_refused_with_a_place_in_it);
    RUN(memory_a_byte_too_small_is_refused_and_the_rest_is_used_to_the_last);
    RUN(a_name_is_looked_up_whole_then_before_its_first_bar_then_as_default);
    RUN(allow_rule_takes_the_rule_from_its_name_or_from_the_resource);
    RUN(what_finds_no_rule_is_refused);
    RUN(a_key_that_is_too_long_is_refused_not_cut);
    RUN(one_key_under_two_rules_has_two_buckets);
    RUN(a_rule_that_changes_keeps_its_buckets_and_what_was_spent);
    RUN(a_shadow_rule_counts_but_refuses_nobody);
    RUN(windows_and_unlimited_rules_work_as_their_limits_do);
    RUN(a_key_has_the_limit_that_was_set_for_it_before_its_rules);
    RUN(own_limits_outlive_a_load_and_a_rule_that_is_gone_for_a_while);
    RUN(own_limits_come_and_go_in_any_order);
    RUN(own_refuses_what_it_cannot_keep);
    RUN(dimensions_are_taken_all_or_none_and_say_which_refused_for_how_long);
    RUN(the_longest_wait_binds_among_several_that_refuse);
    RUN(a_shadow_dimension_neither_refuses_nor_is_charged_for_a_refused_event);
    RUN(the_same_bucket_twice_in_one_event_is_charged_twice_or_not_at_all);
    RUN(eight_dimensions_fit_and_nine_are_a_bad_argument);
    RUN(a_failed_store_is_counted_by_the_rule_and_decided_by_the_policy);
    RUN_THREADED(a_load_waits_for_look_ups_under_way_and_leaves_their_rules_alone);
    RUN_THREADED(rules_are_replaced_under_deciders_without_a_token_too_many);
    RUN(no_two_pairs_make_the_same_key);
    RUN(long_parts_make_keys_of_their_own_too);
    RUN(addresses_are_read_as_the_system_reads_them);
    RUN(random_addresses_are_read_as_the_system_reads_them);
    RUN(addresses_of_one_network_have_one_key_and_others_another);
    RUN(what_is_no_address_or_no_prefix_makes_no_key);
    return check_end();
}

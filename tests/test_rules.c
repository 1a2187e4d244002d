/* test_rules.c - rules: their text, right and wrong; look-up; the bucket of a rule and a key;
 * keys with limits of their own; several dimensions; failures; counters; replacing rules while
 * threads decide; loaders that die; keys made of addresses.
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
#include <time.h>

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define OK RATELIMIT_OK

enum { RULES = 16 };

static unsigned char table_memory[RATELIMIT_TABLE_BYTES(256)];
static unsigned char rules_memory[RATELIMIT_RULES_BYTES(RULES)];
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
    ratelimit_table_options options;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    now_ns = 100 * SEC;
    memset(&limiter, 0, sizeof limiter);
    if (ratelimit_table_init(&table, table_memory, sizeof table_memory, &options) != OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, clock_read, &now_ns)) != OK ||
        ratelimit_rules_init(&rules, rules_memory, sizeof rules_memory, RULES) != OK)
        exit(2);
    limiter.rules = rules;
    CHECK(load(text) == OK);
}

static ratelimit_rule_request under(const char *rule, const char *key, uint64_t n)
{
    ratelimit_rule_request asked;
    asked.rule = rule;
    asked.request = request(key, NULL, n);
    return asked;
}

/* A request with what came of it. */
typedef struct taken {
    ratelimit_result result;
    ratelimit_rule rule;
} taken;

static taken take_under(const char *rule, const char *key, uint64_t n)
{
    ratelimit_rule_request asked = under(rule, key, n);
    taken t;
    memset(&t, 0xA5, sizeof t);
    t.result.allowed = false;
    CHECK(ratelimit_take_rules(&limiter, &asked, &t.result, &t.rule, 1) == t.result.allowed);
    return t;
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
        bool shadow, closed, open;
    } want[] = {{"login", "5/m burst 10", false, false, false},
                {"api", "100/s", false, false, false},
                {"export", "1000/d window", true, false, false},
                {"default", "unlimited", false, false, false},
                {"shadow", "2/s", true, false, false},
                {"closed", "2/s", false, true, false},
                {"open", "1/s burst 3", true, false, true},
                {"a|b#c", "1/s", false, false, false},
                {"\xC3\xA9t\xC3\xA9", "3/s", false, false, false}};
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
               "closed 2/s closed\n"
               "open 1/s burst 3 open\tshadow #\n"
               "a|b#c 1/s\n"
               "\xC3\xA9t\xC3\xA9 3/s # no line end") == OK);
    for (i = 0; i < COUNT(want); i++) {
        memset(&rule, 0xA5, sizeof rule);
        CHECK(ratelimit_rules_at(rules, i, &rule));
        CHECK_TEXT(rule.name, want[i].name);
        ratelimit_limit_format(&rule.limit, text, sizeof text);
        CHECK_TEXT(text, want[i].limit);
        CHECK(rule.shadow == want[i].shadow);
        CHECK(rule.closed == want[i].closed && rule.open == want[i].open);
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
        {"a 1/s shadow shadow", RATELIMIT_SYNTAX, 1, 14},
        {"a 1/s shadow window", RATELIMIT_SYNTAX, 1, 14},
        {"a 1/s closed open", RATELIMIT_SYNTAX, 1, 14},
        {"a 1/s open shadow closed", RATELIMIT_SYNTAX, 1, 19},
        {"a 1/s closed closed", RATELIMIT_SYNTAX, 1, 14},
        {"a open", RATELIMIT_SYNTAX, 1, 3},
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

static void a_wrong_word_is_not_called_a_wrong_limit(void)
{
    static const char word[] =
        "not a word that may follow here: burst N, window, then shadow, closed or open";
    static const struct {
        const char *text, *what;
    } rows[] = {
        {"a 1/s shadw", word},         {"a 1/s burst 2 closed slow", word},
        {"a 1/s shadow window", word}, {"a 0/s shadw", word},
        {"a 1/x", "not a limit"},      {"a 1/sx", "not a limit"},
        {"a shadow", "not a limit"},   {"a 1/s burst x", "not a limit"},
        {"a 1 / s", "not a limit"},
    };
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_fault fault = {0, 0, ""};
        fresh("");
        CHECK(ratelimit_rules_load(rules, rows[i].text, strlen(rows[i].text), &fault) ==
              RATELIMIT_SYNTAX);
        CHECK_TEXT(fault.what, rows[i].what);
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
    size_t bytes = RATELIMIT_RULES_BYTES(MANY), len = 0, i;
    unsigned char *memory = walled(bytes);
    char *text = (char *)malloc(MANY * 24 + 24), name[24];
    ratelimit_rules *many;
    ratelimit_rule rule;
    ratelimit_fault fault;
    if (!text || ratelimit_rules_init(&many, memory, bytes, MANY) != OK)
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
    static const char letters[] = "ab|#/ 1s0\tm\n\r\n burst window shadow unlimited closed open\0";
    uint64_t good = 0;
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
        good += status == OK;
        CHECK(status == OK ? fault.line == 0
                           : fault.line >= 1 && fault.line <= lines && fault.column >= 1 &&
                                 fault.column <= len + 1);
    }
    CHECK(good > 100);
}

static void memory_a_byte_too_small_is_refused_and_the_rest_is_used_to_the_last(void)
{
    size_t bytes = RATELIMIT_RULES_BYTES(3), skip;
    ratelimit_rules *r = NULL;
    ratelimit_rule rule;
    for (skip = 0; skip < 8; skip++) {
        unsigned char *memory = walled(bytes + skip) + skip;
        size_t need = bytes - 7 + (size_t)((0u - (uintptr_t)memory) & 7);
        memset(memory, 0xA5, bytes);
        CHECK(ratelimit_rules_init(&r, memory, need - 1, 3) == RATELIMIT_NO_MEMORY);
        CHECK(ratelimit_rules_init(&r, memory, need, 3) == OK);
        CHECK(!ratelimit_rules_find(r, "a", &rule) && !ratelimit_rules_at(r, 0, &rule));
        CHECK(ratelimit_rules_load(r, "a 1/s\nb 1/s\nc 1/s", 17, NULL) == OK);
        CHECK(ratelimit_rules_load(r, "d 1/s\ne 1/s\nf 1/s", 17, NULL) == OK);
        CHECK(ratelimit_rules_load(r, "a 1/s\nb 1/s\nc 1/s", 17, NULL) == OK);
        CHECK(ratelimit_rules_load(r, "a 1/s\nb 1/s\nc 1/s\nd 1/s", 23, NULL) ==
              RATELIMIT_NO_MEMORY);
        CHECK(ratelimit_rules_at(r, 2, &rule) && !ratelimit_rules_at(r, 3, &rule));
    }
    CHECK(ratelimit_rules_init(NULL, rules_memory, bytes, 3) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, NULL, bytes, 3) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, rules_memory, bytes, 0) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, rules_memory, bytes, SIZE_MAX) == RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_rules_init(&r, rules_memory, bytes, 1 << 24) == RATELIMIT_NO_MEMORY);
    CHECK(ratelimit_rules_init(&r, rules_memory, bytes, (1 << 24) + 1) == RATELIMIT_BAD_ARGUMENT);
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

static void n_tokens_are_taken_by_rule_or_none(void)
{
    fresh("login 5/h");
    CHECK(take_under("login", "ann", 3).result.allowed);
    CHECK(!take_under("login", "ann", 3).result.allowed);
    CHECK(take_under("login", "ann", 2).result.allowed);
    CHECK(!take_under("login", "bob", 6).result.allowed);
    CHECK(!take_under("login", "bob", 0).result.allowed);
}

static void what_finds_no_rule_is_refused(void)
{
    taken t;
    fresh("login 2/h");
    CHECK(!ratelimit_allow_rule(&limiter, "ann", "nothing"));
    CHECK(!ratelimit_allow_rule(&limiter, "ann", NULL));
    CHECK(!ratelimit_allow_rule(&limiter, NULL, "login"));
    CHECK(!ratelimit_allow_rule(&limiter, NULL, NULL));
    CHECK(!ratelimit_allow_rule(&limiter, "", "login"));
    CHECK(!ratelimit_allow_rule(NULL, "ann", "login"));
    t = take_under("nothing", "ann", 1);
    CHECK_U64(t.result.status, RATELIMIT_BAD_LIMIT);
    CHECK_TEXT(t.rule.name, "");
    CHECK_U64(take_under("login", "", 1).result.status, RATELIMIT_BAD_KEY);
    CHECK_U64(take_under("login", "ann", 0).result.status, RATELIMIT_BAD_COUNT);
    limiter.rules = NULL;
    CHECK(!ratelimit_allow_rule(&limiter, "ann", "login"));
    CHECK_U64(take_under("login", "ann", 1).result.status, RATELIMIT_BAD_LIMIT);
}

/* They were refused above 512 bytes, as the rule's name had to fit in front of them. */
static void a_key_may_be_as_long_as_it_likes(void)
{
    static char key[20000];
    fresh("login 2/h\ndefault 7/h");
    memset(key, 'k', sizeof key - 1);
    CHECK_U64(take_under("login", key, 1).result.remaining, 1);
    CHECK_U64(take_under("login", key, 1).result.remaining, 0);
    CHECK_U64(take_under(NULL, key, 1).result.remaining, 6);
    key[70] = '|';
    CHECK_U64(take_under(NULL, key, 1).result.remaining, 6);
    memcpy(key, "login|", 6);
    CHECK_U64(take_under(NULL, key, 1).result.remaining, 1);
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

/* The scope comes from the name, not from the limit. */
static void one_key_under_two_rules_of_one_limit_has_two_buckets(void)
{
    static const ratelimit_limit same = RATELIMIT_LIMIT(2, HOUR, 2);
    fresh("a 2/h\nb 2/h");
    CHECK_U64(take_under("a", "ann", 2).result.remaining, 0);
    CHECK_U64(take_under("b", "ann", 1).result.remaining, 1);
    CHECK(ratelimit_allow_n(&limiter, "ann", &same, 2)); /* a limit that is no rule: another */
    CHECK_U64(found("a").limit.scope, ratelimit_scope("a", 1));
    CHECK_U64(found("b").limit.scope, ratelimit_scope("b", 1));
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

static void counters_outlive_loads_that_fail_and_rules_that_move(void)
{
    static const char *const texts[] = {"a 9/s\nb 9/s\n", "x 1/s\nb 9/s\ny 1/s\na 9/s",
                                        "z 1/s\nwrong", "b 9/s\na 9/s", "b 9/s\na 9/s\na 9/s"};
    uint64_t i;
    fresh("a 9/s\nb 9/s");
    for (i = 0; i < 40; i++) {
        (void)load(texts[i % COUNT(texts)]);
        CHECK(take_under("a", "ann", 1).result.allowed);
        CHECK(take_under("b", "ann", i % 2 ? 1 : 10).result.allowed == (i % 2 == 1));
        CHECK_U64(found("a").allowed, i + 1);
        CHECK_U64(found("b").refused, i / 2 + 1);
        CHECK_U64(found("x").allowed + found("y").allowed + found("z").allowed, 0);
        now_ns += SEC;
    }
}

static void a_shadow_rule_counts_but_refuses_nobody(void)
{
    taken t;
    ratelimit_counts counts;
    fresh("try 1/h shadow\nreal 1/h");
    CHECK(ratelimit_allow_rule(&limiter, "ann", "try"));
    t = take_under("try", "ann", 1);
    CHECK(t.result.allowed && t.result.status == RATELIMIT_DENIED && t.result.remaining == 0);
    CHECK(t.rule.shadow);
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

static void a_key_has_a_limit_of_its_own_before_its_rules(void)
{
    taken t;
    fresh("api 10/h\nlogin 10/h\napi|acme 100/h\nlogin|root 1/h");
    t = take_under("api", "acme", 4);
    CHECK(t.rule.limit.tokens == 100 && t.result.remaining == 96);
    CHECK_TEXT(t.rule.name, "api|acme");
    CHECK_U64(take_under("api", "acm", 1).result.remaining, 9);
    CHECK_U64(take_under("api", "acme2", 1).result.remaining, 9);
    CHECK_U64(take_under("login", "acme", 1).result.remaining, 9);
    CHECK_U64(take_under("login", "root", 1).result.remaining, 0);
    CHECK_U64(found("api|acme").allowed, 1);
    CHECK_U64(found("api").allowed, 2);
}

/* A contract begins, changes and ends: what was spent counts before and after. */
static void a_key_that_gets_a_limit_of_its_own_keeps_what_it_had_spent(void)
{
    fresh("api 10/h");
    CHECK_U64(take_under("api", "acme", 6).result.remaining, 4);
    CHECK(load("api 10/h\napi|acme 100/h") == OK);
    CHECK_U64(found("api|acme").limit.scope, ratelimit_scope("api", 3));
    CHECK_U64(take_under("api", "acme", 1).result.remaining, 93);
    CHECK(load("api|acme 5/h\napi 10/h") == OK);
    CHECK_U64(take_under("api", "acme", 1).result.status, RATELIMIT_DENIED);
    CHECK(load("api 10/h") == OK); /* more than the 5 then: the whole of them */
    CHECK_U64(take_under("api", "acme", 1).result.remaining, 4);
}

/* A rule with a bar, asked for with a key, as in "GET|/search". */
static void a_rule_with_a_bar_is_found_before_its_head(void)
{
    fresh("a 1/h\na|b 2/h\na|b|ann 3/h");
    CHECK_TEXT(take_under("a|b", "ann", 1).rule.name, "a|b|ann");
    CHECK_TEXT(take_under("a|b", "bob", 1).rule.name, "a|b");
    CHECK_TEXT(take_under("a|c", "ann", 1).rule.name, "a");
    CHECK_TEXT(take_under("a", "ann", 1).rule.name, "a");
    CHECK_TEXT(take_under("a", "b|ann", 1).rule.name, "a|b|ann");
    CHECK_TEXT(take_under(NULL, "a|b|ann", 1).rule.name, "a|b|ann");
}

/* Keys are bytes. No key of bytes may be taken for a name in a rule that is not its own. */
static void keys_of_any_bytes_find_no_limit_of_another_key(void)
{
    static const struct {
        const char *key;
        size_t len;
        bool own;
    } rows[] = {{"ann", 3, true},     {"ann\0", 4, false},   {"\0ann", 4, false}, {"an", 2, false},
                {"ann\0b", 5, false}, {"ann\xFF", 4, false}, {"|ann", 4, false},  {"\0", 1, false}};
    size_t i;
    for (i = 0; i < COUNT(rows); i++) {
        ratelimit_rule_request asked = under("a", "x", 1);
        ratelimit_result res;
        ratelimit_rule rule;
        fresh("a 5/h\na|ann 9/h\ndefault 1/h");
        asked.request.key = rows[i].key;
        asked.request.key_len = rows[i].len;
        CHECK(ratelimit_take_rules(&limiter, &asked, &res, &rule, 1));
        CHECK_TEXT(rule.name, rows[i].own ? "a|ann" : "a");
        asked.rule = NULL; /* nor as a name itself */
        asked.request.key = "a\0";
        asked.request.key_len = 2;
        CHECK(ratelimit_take_rules(&limiter, &asked, &res, &rule, 1));
        CHECK_TEXT(rule.name, "default");
    }
    for (i = 1; i < 60; i++) { /* as many NULs as a name has behind it, in any chain */
        static const char key[64] = "ann";
        ratelimit_rule_request asked = under("a", "x", 1);
        ratelimit_result res;
        ratelimit_rule rule;
        asked.request.key = key;
        asked.request.key_len = 3 + i;
        (void)ratelimit_take_rules(&limiter, &asked, &res, &rule, 1);
        CHECK_TEXT(rule.name, "a");
    }
}

static void a_name_with_its_key_above_63_bytes_has_no_limit_of_its_own(void)
{
    char text[160], key[64];
    memset(key, 'k', sizeof key);
    key[61] = 0; /* "a|" and 61 bytes */
    sprintf(text, "a 5/h\na|%s 9/h", key);
    fresh(text);
    CHECK_U64(take_under("a", key, 1).result.remaining, 8);
    key[61] = 'k';
    key[62] = 0;
    CHECK_U64(take_under("a", key, 1).result.remaining, 4);
}

/* ---- several dimensions ---------------------------------------------------------------------- */

static void dimensions_are_taken_all_or_none_and_say_which_refused_for_how_long(void)
{
    ratelimit_rule_request of[3];
    ratelimit_result res[3];
    ratelimit_rule rule[3];
    int i;
    fresh("user 10/s\naddress 3/m\nroute 100/s");
    of[0] = under("user", "ann", 1);
    of[1] = under("address", "192.0.2.1", 1);
    of[2] = under("route", "/search", 1);
    for (i = 0; i < 3; i++) {
        CHECK(ratelimit_take_rules(&limiter, of, res, rule, 3));
        CHECK_U64(ratelimit_binding(res, 3), 1);
    }
    CHECK(!ratelimit_take_rules(&limiter, of, res, rule, 3));
    CHECK_U64(ratelimit_binding(res, 3), 1);
    CHECK_TEXT(rule[1].name, "address");
    CHECK_U64(rule[1].refused, 1);
    CHECK_U64(res[1].retry_after_ns, 20 * SEC);
    CHECK(res[0].status == RATELIMIT_SKIPPED && !res[0].allowed);
    CHECK_U64(take_under("user", "ann", 1).result.remaining, 6); /* none was taken of it then */
    CHECK_U64(found("address").refused, 1);
    CHECK_U64(found("user").refused, 0);
    CHECK_U64(found("user").allowed, 4);
}

static void the_longest_wait_binds_among_several_that_refuse(void)
{
    ratelimit_rule_request of[2];
    ratelimit_result res[2];
    fresh("a 1/s\nb 1/m");
    of[0] = under("b", "x", 1);
    of[1] = under("a", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK_U64(ratelimit_binding(res, 2), 0);
    now_ns += SEC;
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK_U64(ratelimit_binding(res, 2), 0);
    CHECK_U64(res[0].retry_after_ns, 59 * SEC);
}

static void a_shadow_dimension_neither_refuses_nor_is_charged_for_a_refused_event(void)
{
    ratelimit_rule_request of[3];
    ratelimit_result res[3];
    fresh("soft 2/h shadow\nhard 3/h\nsofter 9/h shadow");
    of[0] = under("soft", "x", 1);
    of[1] = under("hard", "x", 1);
    of[2] = under("softer", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 3));
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 3));
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 3)); /* soft would have refused */
    CHECK(res[0].allowed && res[0].status == RATELIMIT_DENIED);
    CHECK_U64(res[2].remaining, 6);
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 3));
    CHECK_U64(ratelimit_binding(res, 3), 1);
    CHECK(!res[0].allowed && !res[2].allowed);
    CHECK(res[0].status == RATELIMIT_SKIPPED && res[2].status == RATELIMIT_SKIPPED);
    CHECK_U64(res[2].remaining, 6);
    CHECK_U64(take_under("softer", "x", 1).result.remaining, 5);
    CHECK_U64(found("soft").shadow_refused, 1);
    CHECK_U64(found("soft").refused, 0);
    CHECK_U64(found("hard").refused, 1);
    CHECK_U64(found("softer").refused, 0);
}

static void the_same_bucket_twice_in_one_event_is_charged_twice_or_not_at_all(void)
{
    ratelimit_rule_request of[2];
    ratelimit_result res[2];
    fresh("a 3/h");
    of[0] = under("a", "x", 2);
    of[1] = under("a", "x", 2);
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    of[1] = under("a|b", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK_U64(take_under("a", "x", 1).result.status, RATELIMIT_DENIED);
}

static void eight_dimensions_fit_and_nine_are_a_bad_argument(void)
{
    ratelimit_rule_request of[RATELIMIT_MAX_RULE_REQUESTS + 1];
    ratelimit_result res[RATELIMIT_MAX_RULE_REQUESTS + 1];
    ratelimit_rule rule[RATELIMIT_MAX_RULE_REQUESTS + 1];
    size_t i;
    fresh("a 1/h");
    for (i = 0; i < COUNT(of); i++) {
        static const char *const keys[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8"};
        of[i] = under("a", keys[i], 1);
    }
    memset(rule, 0xA5, sizeof rule);
    CHECK(!ratelimit_take_rules(&limiter, of, res, rule, COUNT(of)));
    for (i = 0; i < COUNT(of); i++) {
        CHECK_U64(res[i].status, RATELIMIT_BAD_ARGUMENT);
        CHECK_TEXT(rule[i].name, "");
    }
    CHECK(!ratelimit_take_rules(NULL, of, res, NULL, 1));
    CHECK_U64(res[0].status, RATELIMIT_BAD_ARGUMENT);
    CHECK(ratelimit_take_rules(&limiter, of, res, rule, COUNT(of) - 1));
    for (i = 0; i + 1 < COUNT(of); i++)
        CHECK(res[i].status == OK && rule[i].limit.tokens == 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 0));
    CHECK(!ratelimit_take_rules(&limiter, NULL, res, NULL, 1));
    CHECK(!ratelimit_take_rules(&limiter, of, NULL, NULL, 1));
}

/* ---- failures -------------------------------------------------------------------------------- */

/* A store that answers everything in one way; self is the status. */
static void store_answers(const ratelimit_store *store, const ratelimit_request *req,
                          ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    size_t i;
    (void)req, (void)mode;
    for (i = 0; i < count; i++) {
        memset(&res[i], 0, sizeof res[i]);
        res[i].status = *(const ratelimit_status *)store->self;
    }
}

static ratelimit_status answers = RATELIMIT_STORE_FAILED;

static ratelimit_store store_down(ratelimit_status status)
{
    ratelimit_store store;
    answers = status;
    memset(&store, 0, sizeof store);
    store.self = &answers;
    store.decide = store_answers;
    return store;
}

static void a_failed_store_is_counted_by_the_rule_and_decided_by_the_policy(void)
{
    fresh("a 1/h\ns 1/h shadow");
    limiter.store = store_down(RATELIMIT_STORE_FAILED);
    CHECK(ratelimit_allow_rule(&limiter, "x", "a"));
    limiter.on_failure = RATELIMIT_FAIL_CLOSED;
    CHECK(!ratelimit_allow_rule(&limiter, "x", "a"));
    CHECK(ratelimit_allow_rule(&limiter, "x", "s"));
    CHECK_U64(found("a").failed, 2);
    CHECK_U64(found("a").allowed, 1);
    CHECK_U64(found("a").refused, 1);
    CHECK_U64(found("a").shadow_refused, 0);
}

/* Open for an interface, closed for logins, in one limiter. */
static void a_rules_word_decides_while_the_store_fails(void)
{
    static const ratelimit_failure policies[] = {RATELIMIT_FAIL_OPEN, RATELIMIT_FAIL_CLOSED};
    size_t p;
    for (p = 0; p < COUNT(policies); p++) {
        taken t;
        fresh("login 5/m burst 10 closed\napi 1/s open\nother 1/s\nsoft 1/s shadow closed");
        CHECK(ratelimit_allow_rule(&limiter, "x", "login"));
        limiter.store = store_down(RATELIMIT_STORE_FAILED);
        limiter.on_failure = policies[p];
        t = take_under("login", "x", 1);
        CHECK(!t.result.allowed && t.result.status == RATELIMIT_STORE_FAILED);
        CHECK_U64(t.result.source, RATELIMIT_FROM_POLICY);
        t = take_under("api", "x", 1);
        CHECK(t.result.allowed && t.result.status == RATELIMIT_STORE_FAILED);
        CHECK_U64(t.result.source, RATELIMIT_FROM_POLICY);
        CHECK(take_under("other", "x", 1).result.allowed == (p == 0));
        CHECK(take_under("soft", "x", 1).result.allowed);
        CHECK_U64(found("login").failed, 1);
        CHECK_U64(found("api").failed, 1);
    }
}

static void a_rules_word_comes_before_a_local_bucket(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(16)];
    ratelimit_table *local;
    fresh("login 1/h closed\napi 1/h open\nother 1/h");
    if (ratelimit_table_init(&local, memory, sizeof memory, NULL) != OK)
        exit(2);
    limiter.store = store_down(RATELIMIT_STORE_FAILED);
    limiter.on_failure = RATELIMIT_FAIL_LOCAL;
    limiter.fallback = ratelimit_table_store(local, clock_read, &now_ns);
    CHECK(!ratelimit_allow_rule(&limiter, "x", "login"));
    CHECK(ratelimit_allow_rule(&limiter, "x", "api"));
    CHECK(ratelimit_allow_rule(&limiter, "x", "api"));
    CHECK(ratelimit_allow_rule(&limiter, "x", "other"));
    CHECK(!ratelimit_allow_rule(&limiter, "x", "other"));
}

static void an_event_whose_rules_differ_passes_only_if_all_let_it_through(void)
{
    ratelimit_rule_request of[2];
    ratelimit_result res[2];
    fresh("login 1/h closed\napi 1/h open\nother 1/h");
    limiter.store = store_down(RATELIMIT_STORE_FAILED);
    of[0] = under("api", "x", 1);
    of[1] = under("login", "x", 1);
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK(!res[0].allowed && !res[1].allowed);
    of[1] = under("other", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 2));
    limiter.on_failure = RATELIMIT_FAIL_CLOSED;
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    of[1] = under("api", "y", 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 2));
}

/* A cluster answered 500 to each event of several dimensions, whatever the policy. */
static void a_store_that_cannot_take_all_or_none_is_a_store_that_fails(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(16)];
    ratelimit_table *local;
    ratelimit_rule_request of[2];
    ratelimit_result res[2];
    size_t i;
    fresh("a 1/h\nb 1/h");
    limiter.store = store_down(RATELIMIT_UNSUPPORTED);
    of[0] = under("a", "x", 1);
    of[1] = under("b", "x", 1);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 2));
    for (i = 0; i < 2; i++) {
        CHECK_U64(res[i].status, RATELIMIT_UNSUPPORTED);
        CHECK_U64(res[i].source, RATELIMIT_FROM_POLICY);
        CHECK_U64(ratelimit_http_status(&res[i]), 200);
    }
    limiter.on_failure = RATELIMIT_FAIL_CLOSED;
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK_U64(res[1].status, RATELIMIT_UNSUPPORTED);
    CHECK_U64(ratelimit_http_status(&res[1]), 503);
    CHECK(load("a 1/h open\nb 1/h open") == OK);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK(load("a 1/h\nb 1/h") == OK);
    if (ratelimit_table_init(&local, memory, sizeof memory, NULL) != OK)
        exit(2);
    limiter.on_failure = RATELIMIT_FAIL_LOCAL;
    limiter.fallback = ratelimit_table_store(local, clock_read, &now_ns);
    CHECK(ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK_U64(res[0].status, RATELIMIT_UNSUPPORTED);
    CHECK_U64(ratelimit_http_status(&res[0]), 429);
    CHECK_U64(found("a").failed, 5);
    /* what the store cannot do for one request is a mistake in the program, as before */
    limiter.on_failure = RATELIMIT_FAIL_OPEN;
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 1));
    CHECK_U64(ratelimit_http_status(&res[0]), 500);
    CHECK(load("a 1/h window\nb 1/h window") == OK);
    of[0].request.op = of[1].request.op = RATELIMIT_REFUND;
    CHECK(!ratelimit_take_rules(&limiter, of, res, NULL, 2));
    CHECK_U64(ratelimit_http_status(&res[0]), 500);
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
        ratelimit_rule_request a = under("keep", "ann", 1);
        ratelimit_result res;
        ratelimit_rule rule;
        size_t i;
        passed += ratelimit_take_rules(&limiter, &a, &res, &rule, 1);
        asked++;
        torn += rule.limit.tokens != 1000 || strcmp(rule.name, "keep") != 0;
        a = under("turn", "ann", 1);
        (void)ratelimit_take_rules(&limiter, &a, &res, &rule, 1);
        torn += rule.limit.tokens != 7 && rule.limit.tokens != 8;
        torn += rule.limit.burst != rule.limit.tokens * 3;
        a = under("own", "acme", 1);
        (void)ratelimit_take_rules(&limiter, &a, &res, &rule, 1);
        torn += rule.name[3] ? rule.limit.tokens != 55 || rule.limit.burst != 55
                             : rule.limit.tokens != 5;
        torn += rule.limit.scope != ratelimit_scope("own", 3);
        for (i = 0; i < 4 && ratelimit_rules_at(rules, i, &rule); i++)
            torn += rule.limit.tokens == 0 || !rule.name[0];
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
        "own 5/h\nown|acme 55/h\na 1/h\nb 1/h\nc 1/h\nkeep 1000/h\nturn 8/h burst 24\n",
        "keep 1000/h\nturn 9/h\nown 5/h\nbroken",
    };
    int i, turns = SHORT ? 1500 : 10000;
    (void)self;
    for (i = 0; i < turns; i++)
        CHECK(load(texts[i % 3]) == (i % 3 == 2 ? RATELIMIT_SYNTAX : OK));
    return NULL;
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
#if RATELIMIT_PRIV_CAN64
    CHECK_U64(found("keep").allowed, c.passed);
    CHECK_U64(found("keep").refused, c.asked - c.passed);
#endif
}

#if RATELIMIT_PRIV_CAN
static void *load_once(void *self)
{
    CHECK(load("new 2/h") == OK);
    __atomic_store_n((uint32_t *)self, 1, __ATOMIC_RELEASE);
    return NULL;
}
#endif

/* The lock is held, as if a loader were at work or had died there. */
static void a_loader_that_died_stops_no_decision_and_no_later_load(void)
{
#if RATELIMIT_PRIV_CAN
    uint32_t done = 0;
    pthread_t loader;
    fresh("old 100/h");
    rules->writer |= 1;
    CHECK(pthread_create(&loader, NULL, load_once, &done) == 0);
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        ratelimit_rule rule;
        CHECK(ratelimit_rules_at(rules, 0, &rule)); /* the one or the other, at once */
        sched_yield();
    }
    pthread_join(loader, NULL);
    CHECK_TEXT(found("new").name, "new");
    CHECK(!(rules->writer & 1));
#endif
}

/* It was only slow: it must not change what another loaded meanwhile. */
static void a_loader_that_lost_its_place_gives_up(void)
{
#if RATELIMIT_PRIV_CAN
    ratelimit_priv_loading slow;
    ratelimit_priv_rule rule;
    uint32_t word;
    fresh("old 100/h");
    memset(&slow, 0, sizeof slow);
    memset(&rule, 0, sizeof rule);
    slow.rules = rules;
    slow.word = ratelimit_priv_lock_rules(rules);
    slow.version = rules->version;
    slow.side = (slow.version & 1) ^ 1;
    slow.line = "late 1/h";
    CHECK(load("new 2/h") == OK); /* waits until it counts as dead */
    word = rules->writer;
    memcpy(rule.rule.name, "late", 4);
    CHECK(ratelimit_priv_add_rule(&slow, slow.line, &rule) == RATELIMIT_BUSY);
    CHECK_U64(rules->writer, word);
    CHECK_TEXT(found("new").name, "new");
    CHECK_TEXT(found("late").name, "(none)");
    CHECK(load("newer 2/h") == OK);
#endif
}

/* ---- keys ------------------------------------------------------------------------------------ */

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
    RUN(a_wrong_word_is_not_called_a_wrong_limit);
    RUN(a_right_text_has_no_fault);
    RUN(nuls_are_faults_outside_of_comments);
    RUN(a_name_of_63_bytes_is_the_longest);
    RUN(lines_of_a_mebibyte_are_read_or_refused);
    RUN(ten_thousand_rules_fit_if_there_is_room_and_one_more_does_not);
    RUN(any_text_is_taken_or_refused_with_a_place_in_it);
    RUN(memory_a_byte_too_small_is_refused_and_the_rest_is_used_to_the_last);
    RUN(a_name_is_looked_up_whole_then_before_its_first_bar_then_as_default);
    RUN(allow_rule_takes_the_rule_from_its_name_or_from_the_resource);
    RUN(n_tokens_are_taken_by_rule_or_none);
    RUN(what_finds_no_rule_is_refused);
    RUN(a_key_may_be_as_long_as_it_likes);
    RUN(one_key_under_two_rules_has_two_buckets);
    RUN(one_key_under_two_rules_of_one_limit_has_two_buckets);
    RUN(a_rule_that_changes_keeps_its_buckets_and_what_was_spent);
    RUN(counters_outlive_loads_that_fail_and_rules_that_move);
    RUN(a_shadow_rule_counts_but_refuses_nobody);
    RUN(windows_and_unlimited_rules_work_as_their_limits_do);
    RUN(a_key_has_a_limit_of_its_own_before_its_rules);
    RUN(a_key_that_gets_a_limit_of_its_own_keeps_what_it_had_spent);
    RUN(a_rule_with_a_bar_is_found_before_its_head);
    RUN(keys_of_any_bytes_find_no_limit_of_another_key);
    RUN(a_name_with_its_key_above_63_bytes_has_no_limit_of_its_own);
    RUN(dimensions_are_taken_all_or_none_and_say_which_refused_for_how_long);
    RUN(the_longest_wait_binds_among_several_that_refuse);
    RUN(a_shadow_dimension_neither_refuses_nor_is_charged_for_a_refused_event);
    RUN(the_same_bucket_twice_in_one_event_is_charged_twice_or_not_at_all);
    RUN(eight_dimensions_fit_and_nine_are_a_bad_argument);
    RUN(a_failed_store_is_counted_by_the_rule_and_decided_by_the_policy);
    RUN(a_rules_word_decides_while_the_store_fails);
    RUN(a_rules_word_comes_before_a_local_bucket);
    RUN(an_event_whose_rules_differ_passes_only_if_all_let_it_through);
    RUN(a_store_that_cannot_take_all_or_none_is_a_store_that_fails);
    RUN_THREADED(rules_are_replaced_under_deciders_without_a_token_too_many);
    RUN_THREADED(a_loader_that_died_stops_no_decision_and_no_later_load);
    RUN_THREADED(a_loader_that_lost_its_place_gives_up);
    RUN(addresses_are_read_as_the_system_reads_them);
    RUN(random_addresses_are_read_as_the_system_reads_them);
    RUN(addresses_of_one_network_have_one_key_and_others_another);
    RUN(what_is_no_address_or_no_prefix_makes_no_key);
    return check_end();
}

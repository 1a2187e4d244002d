/* Texts of rules: all of them or none; a fault lies inside the text; names from outside. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "fuzz.h"

const char *const fuzz_seeds[] = {
    "login 5/m\nlogin|root 1/m shadow # careful\ndefault 10/s burst 20\n",
    "\xef\xbb\xbf# all\r\n\r\n a\t1/s\r\n\tb  unlimited  shadow\t\r\nc 10/60s window#not a "
    "comment\r\n",
    "a 1/s\na 2/s\n",
    "a 1/s\nb 1/s\nc 1/s\nd 1/s\ne 1/s\nf 1/s\n",
    "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabc 1/s\n"
    "abcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcdefghijabcd 1/s\n",
    "shadow shadow\nshadow 1/s shadow shadow\n#\n # x\nx #1/s",
    "name\nx 0/s",
    "x 1/s burst 99999999999999999999",
    "x\x01y 1/s",
    "login|ann",
    "",
    NULL};

enum { RULES = 5, OWN = 2 };

static const char old_text[] = "login 5/m\nlogin|root 1/m shadow\nold unlimited\n";

/* Blanks and control characters are in no name; rules come in order, each with a sound limit.
 * Writes them as a text. */
static size_t look_at_rules(ratelimit_rules *rules, char *text, size_t bytes)
{
    ratelimit_rule rule, before = {0}, found;
    size_t i, j, len = 0;
    text[0] = 0;
    for (i = 0; ratelimit_rules_at(rules, i, &rule); i++) {
        size_t name = strlen(rule.name);
        MUST(name > 0 && name < RATELIMIT_RULE_NAME_BYTES && rule.name[0] != '#');
        for (j = 0; j < name; j++)
            MUST((unsigned char)rule.name[j] > ' ' && rule.name[j] != 127);
        MUST(strcmp(before.name, rule.name) < 0);
        MUST(ratelimit_limit_check(&rule.limit) == RATELIMIT_OK);
        MUST(ratelimit_rules_find(rules, rule.name, &found));
        MUST(memcmp(&found, &rule, sizeof rule) == 0);
        before = rule;
        len += (size_t)snprintf(text + len, bytes - len, "%s ", rule.name);
        len += ratelimit_limit_format(&rule.limit, text + len, bytes - len);
        len += (size_t)snprintf(text + len, bytes - len, "%s\n", rule.shadow ? " shadow" : "");
    }
    MUST(i <= RULES && len < bytes);
    return len;
}

static void fault_lies_inside(const char *text, size_t size, const ratelimit_fault *fault)
{
    size_t line = 1, at = 0, end;
    MUST(fault->line >= 1 && fault->column >= 1 && *fault->what);
    for (; line < fault->line; line++, at++) {
        while (at < size && text[at] != '\n')
            at++;
        MUST(at < size);
    }
    for (end = at; end < size && text[end] != '\n';)
        end++;
    MUST(at + fault->column - 1 <= end);
}

/* The name, the key and the rule asked for are what the input says. */
static void ask(ratelimit_limiter *l, const char *text, size_t size)
{
    ratelimit_rule_request asked[2];
    size_t binds;
    memset(asked, 0, sizeof asked);
    asked[0].request.key = text;
    asked[0].request.key_len = size;
    asked[0].request.n = 1;
    asked[1] = asked[0];
    asked[1].rule = text;
    (void)ratelimit_take_rules(l, asked, 2, &binds);
    MUST(binds < 2);
    for (binds = 0; binds < 2; binds++) {
        const ratelimit_result *r = &asked[binds].result;
        MUST(asked[binds].bucket_len <= sizeof asked[binds].bucket);
        MUST(asked[binds].name[0]
                 ? r->status != RATELIMIT_BAD_LIMIT
                 : r->status == RATELIMIT_BAD_LIMIT || r->status == RATELIMIT_BAD_KEY);
    }
    (void)ratelimit_allow_rule(l, text, NULL);
    (void)ratelimit_allow_rule(l, "key", text);
}

static void own(ratelimit_rules *rules, const char *text, size_t size)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT(1, RATELIMIT_HOUR, 3);
    ratelimit_status status = ratelimit_rules_own(rules, "login", text, size, &limit);
    MUST(status ==
         (size >= 1 && size <= RATELIMIT_OWN_KEY_BYTES ? RATELIMIT_OK : RATELIMIT_BAD_KEY));
    status = ratelimit_rules_own(rules, text, "ann", 3, &limit);
    MUST(status == RATELIMIT_OK || status == RATELIMIT_BAD_ARGUMENT);
    MUST(ratelimit_rules_own(rules, "login", "bob", 3, NULL) == RATELIMIT_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char memory[RATELIMIT_RULES_BYTES(RULES, OWN)],
        places[RATELIMIT_TABLE_BYTES(9)];
    static const ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0};
    char before[1024], after[1024], again[1024], *text = fuzz_text(data, size);
    ratelimit_rules *rules;
    ratelimit_table *table;
    ratelimit_limiter l = {0};
    ratelimit_fault fault;
    ratelimit_status status;
    size_t len;
    MUST(ratelimit_rules_init(&rules, memory, sizeof memory, RULES, OWN) == RATELIMIT_OK);
    MUST(ratelimit_table_init(&table, places, sizeof places, &options) == RATELIMIT_OK);
    l.rules = rules;
    MUST(ratelimit_init(&l, ratelimit_table_store(table, NULL, NULL)) == RATELIMIT_OK);
    MUST(ratelimit_rules_load(rules, old_text, sizeof old_text - 1, NULL) == RATELIMIT_OK);
    look_at_rules(rules, before, sizeof before);
    ask(&l, text, size);
    status = ratelimit_rules_load(rules, (const char *)(size ? data : (const uint8_t *)""), size,
                                  &fault);
    len = look_at_rules(rules, after, sizeof after);
    if (status == RATELIMIT_OK) {
        MUST(fault.line == 0);
        MUST(ratelimit_rules_load(rules, after, len, NULL) == RATELIMIT_OK);
        MUST(look_at_rules(rules, again, sizeof again) == len && memcmp(after, again, len) == 0);
    } else {
        MUST(status == RATELIMIT_SYNTAX || status == RATELIMIT_BAD_LIMIT ||
             status == RATELIMIT_NO_MEMORY);
        MUST(strcmp(before, after) == 0);
        fault_lies_inside(text, size, &fault);
    }
    own(rules, text, size);
    ask(&l, text, size);
    ratelimit_close(&l);
    free(text);
    return 0;
}

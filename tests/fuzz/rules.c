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
    "closed 5/m closed\nopen 1/s open shadow # x\nx 1/s closed open\n",
    "costarring 1/s\nliquid 1/s\n",
    "name\nx 0/s",
    "x 1/s burst 99999999999999999999",
    "x\x01y 1/s",
    "login|ann",
    "",
    NULL};

enum { RULES = 5 };

static const char old_text[] = "login 5/m\nlogin|root 1/m shadow\nold unlimited\n";

/* Blanks and control characters are in no name; no name comes twice; each limit is sound and has
 * the scope of the name's head. Writes the rules as a text. */
static size_t look_at_rules(ratelimit_rules *rules, char *text, size_t bytes)
{
    ratelimit_rule rule, found;
    size_t i, j, len = 0;
    text[0] = 0;
    for (i = 0; ratelimit_rules_at(rules, i, &rule); i++) {
        size_t name = strlen(rule.name);
        MUST(name > 0 && name < RATELIMIT_RULE_NAME_BYTES && rule.name[0] != '#');
        for (j = 0; j < name; j++)
            MUST((unsigned char)rule.name[j] > ' ' && rule.name[j] != 127);
        for (j = 0; j < i; j++)
            MUST(ratelimit_rules_at(rules, j, &found) && strcmp(found.name, rule.name) != 0);
        MUST(ratelimit_limit_check(&rule.limit) == RATELIMIT_OK);
        MUST(rule.limit.scope == ratelimit_scope(rule.name, strcspn(rule.name, "|")));
        MUST(ratelimit_rules_find(rules, rule.name, &found));
        MUST(strcmp(found.name, rule.name) == 0 && found.shadow == rule.shadow);
        MUST(memcmp(&found.limit, &rule.limit, sizeof rule.limit) == 0);
        MUST(!(rule.closed && rule.open));
        len += (size_t)snprintf(text + len, bytes - len, "%s ", rule.name);
        len += ratelimit_limit_format(&rule.limit, text + len, bytes - len);
        len += (size_t)snprintf(text + len, bytes - len, "%s%s%s\n", rule.shadow ? " shadow" : "",
                                rule.closed ? " closed" : "", rule.open ? " open" : "");
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
    ratelimit_rule_request asked[3];
    ratelimit_result res[3];
    ratelimit_rule rules[3];
    size_t i;
    memset(asked, 0, sizeof asked);
    asked[0].request.key = text;
    asked[0].request.key_len = size;
    asked[0].request.n = 1;
    asked[1] = asked[2] = asked[0];
    asked[1].rule = text;
    asked[2].rule = "login";
    (void)ratelimit_take_rules(l, asked, res, rules, 3);
    MUST(ratelimit_binding(res, 3) < 3);
    for (i = 0; i < 3; i++) {
        MUST(rules[i].name[0]
                 ? res[i].status != RATELIMIT_BAD_LIMIT
                 : res[i].status == RATELIMIT_BAD_LIMIT || res[i].status == RATELIMIT_BAD_KEY);
        MUST(!rules[i].name[0] || ratelimit_limit_check(&rules[i].limit) == RATELIMIT_OK);
    }
    (void)ratelimit_allow_rule(l, text, NULL);
    (void)ratelimit_allow_rule(l, "key", text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char memory[RATELIMIT_RULES_BYTES(RULES)], places[RATELIMIT_TABLE_BYTES(9)];
    static const ratelimit_table_options options = {{1, 2}, RATELIMIT_EVICT, 0, 0};
    char before[1024], after[1024], again[1024], *text = fuzz_text(data, size);
    ratelimit_rules *rules;
    ratelimit_table *table;
    ratelimit_limiter l = {0};
    ratelimit_fault fault;
    ratelimit_status status;
    size_t len;
    MUST(ratelimit_rules_init(&rules, memory, sizeof memory, RULES) == RATELIMIT_OK);
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
    ask(&l, text, size);
    ratelimit_close(&l);
    free(text);
    return 0;
}

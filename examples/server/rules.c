/* rules.c - the limiter and its rules, read from a file when the server starts and on SIGHUP. */
#include "server.h"

#include <stdlib.h>

ratelimit_limiter limiter;
uint64_t reloads, failed_reloads;
static ratelimit_rules *rules;
static unsigned char memory[RATELIMIT_RULES_BYTES(MAX_RULES)];
static const char *path;

/* Replaces the rules by what the file says. False: says what is wrong with it; the rules stay. */
static bool load(void)
{
    ratelimit_fault fault;
    ratelimit_status status;
    const char *why;
    size_t len = 0;
    char *words = read_file(path, MAX_RULES_BYTES, &len, &why);
    if (!words) {
        note("%s: %s", path, why);
        return false;
    }
    status = ratelimit_rules_load(rules, words, len, &fault);
    free(words);
    if (status == RATELIMIT_OK)
        return true;
    if (status == RATELIMIT_NO_MEMORY)
        note("%s: more than %d rules", path, (int)MAX_RULES);
    else if (fault.line)
        note("%s:%zu:%zu: %s", path, fault.line, fault.column, fault.what);
    else
        note("%s: %s", path, ratelimit_status_text(status));
    return false;
}

void open_limiter(const options *o)
{
    if (ratelimit_rules_init(&rules, memory, sizeof memory, MAX_RULES) != RATELIMIT_OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, now_ns, NULL)) != RATELIMIT_OK)
        fail(1, "the limiter can't be made");
    limiter.rules = rules;
    path = o->rules;
    if (path && !load())
        exit(2);
}

void reload_rules(void)
{
    if (!path) {
        note("SIGHUP: there is no --rules file to read");
    } else if (load()) {
        reloads++;
        note("%s: read again", path);
    } else {
        failed_reloads++;
        note("%s: not taken over, the rules stay as they were", path);
    }
}

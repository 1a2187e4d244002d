/* decide.c - the commands that decide.

   THROTTLE and CL.THROTTLE answer as throttlecrab and redis-cell do, in whole seconds. All others
   answer with six fields, see put_answer, and name a limit by a text, "10/s burst 20", or by a
   rule, "@login". */
#include "server.h"

#include <string.h>

#define MOST_MS (UINT64_C(0x4000000000000000) / RATELIMIT_MILLISECOND) /* a time of 2^62 ns */

static int64_t number_or_minus(uint64_t n)
{
    return n > INT64_MAX ? -1 : (int64_t)n; /* unlimited, never */
}

static int64_t round_up(uint64_t ns, uint64_t unit)
{
    return ns == RATELIMIT_FOREVER ? -1 : (int64_t)(ns / unit + (ns % unit != 0));
}

/* What a request did wrong; NULL: nothing. */
static const char *mistake(const ratelimit_result *res)
{
    switch (res->status) {
    case RATELIMIT_BAD_KEY:
        return "the key is empty";
    case RATELIMIT_BAD_LIMIT:
        return "there is no such rule, and no rule named default";
    case RATELIMIT_BAD_COUNT:
        return "a number of tokens is 1 to 2^63 - 1";
    case RATELIMIT_BAD_ARGUMENT:
        return "a time is 1 ms to 146 years";
    case RATELIMIT_UNSUPPORTED:
        return "this kind of limit can't do that";
    case RATELIMIT_OK:
    case RATELIMIT_DENIED:
    case RATELIMIT_NEVER:
    case RATELIMIT_SKIPPED:
    case RATELIMIT_FULL:
    case RATELIMIT_TIMEOUT:
        return NULL;
    case RATELIMIT_CANCELED:
    case RATELIMIT_SYNTAX:
    case RATELIMIT_NO_MEMORY:
    case RATELIMIT_STORE_FAILED:
    case RATELIMIT_BUSY:
    case RATELIMIT_LOST:
    default:
        return ratelimit_status_text(res->status); /* can't be */
    }
}

/* ---- THROTTLE, CL.THROTTLE ------------------------------------------------------------------- */

/* key max_burst count period [quantity]. False: the answer is an error. A quantity of 0 only asks;
   as in redis-cell it passes if no more than the burst is owed. */
static bool throttle(const call *c, uint64_t burst_above, ratelimit_result *res)
{
    ratelimit_request ask = {0};
    uint64_t burst, count, period;
    ask.n = 1;
    if (!whole_number(c->args[2], INT64_MAX - 1, &burst) ||
        !whole_number(c->args[3], INT64_MAX, &count) ||
        !whole_number(c->args[4], INT64_MAX, &period) ||
        (c->count == 6 && !whole_number(c->args[5], INT64_MAX, &ask.n))) {
        put_error(c->out, "ERR max_burst, count, period and quantity are whole numbers");
        return false;
    }
    ask.key = c->args[1].at;
    ask.key_len = c->args[1].len;
    ask.limit = limit_of_numbers(burst + burst_above, count, period);
    ask.op = ask.n ? RATELIMIT_TAKE : RATELIMIT_PEEK;
    if (!ask.limit) {
        put_error(c->out, "ERR this is no limit: burst, count and period are 1 or more, and a "
                          "whole burst comes back within 146 years");
        return false;
    }
    ratelimit_take(&limiter, &ask, res);
    if (mistake(res)) {
        put_error(c->out, "ERR %s", mistake(res));
        return false;
    }
    if (!ask.n && res->retry_after_ns <= (ask.limit->per_ns - 1) / ask.limit->tokens + 1)
        res->allowed = true;
    return true;
}

void throttle_crab(const call *c)
{
    ratelimit_result res;
    if (!throttle(c, 0, &res))
        return;
    put_array(c->out, 5);
    put_integer(c->out, res.allowed);
    put_integer(c->out, (int64_t)res.burst);
    put_integer(c->out, (int64_t)res.remaining);
    put_integer(c->out, round_up(res.reset_after_ns, RATELIMIT_SECOND));
    put_integer(c->out, res.allowed ? 0 : round_up(res.retry_after_ns, RATELIMIT_SECOND));
}

void throttle_cell(const call *c)
{
    ratelimit_result res;
    if (!throttle(c, 1, &res))
        return;
    put_array(c->out, 5);
    put_integer(c->out, !res.allowed);
    put_integer(c->out, (int64_t)res.burst);
    put_integer(c->out, (int64_t)res.remaining);
    put_integer(c->out, res.allowed ? -1 : round_up(res.retry_after_ns, RATELIMIT_SECOND));
    put_integer(c->out, round_up(res.reset_after_ns, RATELIMIT_SECOND));
}

/* ---- all others ------------------------------------------------------------------------------ */

static const char *word_of(ratelimit_status status)
{
    static const char *const words[] = {"OK", "DENIED", "NEVER", "SKIPPED", "FULL", "TIMEOUT"};
    return words[status < RATELIMIT_CANCELED ? status : RATELIMIT_DENIED];
}

/* allowed (1 or 0), burst, remaining, ms until full, ms to wait, status. The wait is how long to
   wait before going on (RESERVE; CHARGE and BLOCK: before a take of one passes), if refused before
   asking again. Times are rounded up. -1 is never, or unlimited. */
static void put_answer(text *out, const ratelimit_result *res)
{
    put_array(out, 6);
    put_integer(out, res->allowed);
    put_integer(out, number_or_minus(res->burst));
    put_integer(out, number_or_minus(res->remaining));
    put_integer(out, round_up(res->reset_after_ns, RATELIMIT_MILLISECOND));
    put_integer(out,
                round_up(res->allowed ? res->wait_ns : res->retry_after_ns, RATELIMIT_MILLISECOND));
    put_simple(out, word_of(res->status));
}

/* A request, the limit it names, and the room for that. */
typedef struct asked {
    ratelimit_request request;
    ratelimit_limit limit;
    bool by_rule;
    char rule[RATELIMIT_RULE_NAME_BYTES];
} asked;

static bool name_rule(asked *a, slice name, text *out)
{
    if (name.len >= sizeof a->rule || memchr(name.at, 0, name.len)) {
        put_error(out, "ERR a rule's name has 1 to 63 bytes");
        return false;
    }
    a->by_rule = true;
    memcpy(a->rule, name.at, name.len);
    a->rule[name.len] = 0;
    return true;
}

/* key and limit. False: the answer is an error. */
static bool name_limit(asked *a, slice key, slice limit, text *out)
{
    const ratelimit_limit *found;
    a->request.key = key.at;
    a->request.key_len = key.len;
    a->by_rule = false;
    if (limit.len && limit.at[0] == '@') {
        limit.at++;
        limit.len--;
        return name_rule(a, limit, out);
    }
    found = limit_of_text(limit);
    if (!found) {
        put_error(out, "ERR a limit is a text as \"10/s burst 20\", or @ and a rule's name");
        return false;
    }
    a->limit = *found;
    a->request.limit = &a->limit;
    return true;
}

/* Decides, all or none if there are several. All are by rule, or none is. */
static void ask(const asked *a, size_t count, const call *c)
{
    ratelimit_result res[MAX_TOGETHER];
    size_t i;
    if (a->by_rule) {
        ratelimit_rule_request named[MAX_TOGETHER] = {{NULL, {0}}};
        for (i = 0; i < count; i++) {
            named[i].rule = a[i].rule;
            named[i].request = a[i].request;
        }
        ratelimit_take_rules(&limiter, named, res, NULL, count);
    } else if (count == 1) {
        ratelimit_take(&limiter, &a->request, res);
    } else {
        ratelimit_request plain[MAX_TOGETHER] = {{0}};
        for (i = 0; i < count; i++)
            plain[i] = a[i].request;
        ratelimit_take_all(&limiter, plain, res, count);
    }
    for (i = 0; i < count; i++)
        if (mistake(&res[i])) {
            put_error(c->out, "ERR %s", mistake(&res[i]));
            return;
        }
    if (c->of->run == take_all)
        put_array(c->out, count);
    for (i = 0; i < count; i++)
        put_answer(c->out, &res[i]);
}

/* A number of tokens, 1 if it is left out. */
static bool tokens(const call *c, size_t at, uint64_t *n)
{
    *n = 1;
    if (at >= c->count || whole_number(c->args[at], INT64_MAX, n))
        return true;
    put_error(c->out, "ERR a number of tokens is a whole number");
    return false;
}

/* key limit [n]; RESERVE: key limit ms [n]; BLOCK: key limit ms; RESET: key limit */
void decide(const call *c)
{
    asked a;
    size_t at = 3;
    memset(&a.request, 0, sizeof a.request);
    a.request.op = (ratelimit_op)c->of->detail;
    if (!name_limit(&a, c->args[1], c->args[2], c->out))
        return;
    if (a.request.op == RATELIMIT_RESERVE || a.request.op == RATELIMIT_BLOCK) {
        uint64_t ms;
        if (!whole_number(c->args[at++], MOST_MS, &ms)) {
            put_error(c->out, "ERR a time is a whole number of ms, at most 146 years");
            return;
        }
        a.request.max_wait_ns = ms * RATELIMIT_MILLISECOND;
    }
    if (tokens(c, at, &a.request.n))
        ask(&a, 1, c);
}

/* name key [n] */
void decide_by_rule(const call *c)
{
    asked a;
    memset(&a.request, 0, sizeof a.request);
    a.request.key = c->args[2].at;
    a.request.key_len = c->args[2].len;
    if (name_rule(&a, c->args[1], c->out) && tokens(c, 3, &a.request.n))
        ask(&a, 1, c);
}

/* key limit n, up to MAX_TOGETHER times */
void take_all(const call *c)
{
    asked a[MAX_TOGETHER];
    size_t count = (c->count - 1) / 3, i;
    if (c->count != 1 + 3 * count) {
        put_error(c->out,
                  "ERR TAKEALL wants key, limit and n, and the same for each further limit");
        return;
    }
    for (i = 0; i < count; i++) {
        const slice *at = c->args + 1 + 3 * i;
        memset(&a[i].request, 0, sizeof a[i].request);
        if (!name_limit(&a[i], at[0], at[1], c->out) || !tokens(c, 3 + 3 * i, &a[i].request.n))
            return;
        if (a[i].by_rule != a[0].by_rule) {
            put_error(c->out, "ERR TAKEALL: name all limits by rules, or none");
            return;
        }
    }
    ask(a, count, c);
}

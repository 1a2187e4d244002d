/* decide.c - the commands that decide.

   THROTTLE and CL.THROTTLE answer as throttlecrab and redis-cell do, in whole seconds. All others
   answer with six fields, see put_six, and name a limit by a text, "10/s burst 20", or by a rule,
   "@login".

   Requests that came together are decided together, up to BATCH of them: then the table fetches
   their memory ahead, which is most of what a decision costs where there are many keys. So a
   request may wait for others that are read after it. Whatever else is answered, decide_waiting
   comes first, so that answers keep their order. */
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

/* ---- requests that wait ---------------------------------------------------------------------- */

typedef struct waiting {
    ratelimit_limit limit; /* a copy: limits.c may forget it */
    void (*put)(text *out, const ratelimit_request *asked, ratelimit_result *res);
} waiting;

static ratelimit_request asked[BATCH];
static waiting waits[BATCH];
static size_t waiting_count;

void decide_waiting(text *out)
{
    ratelimit_result res[BATCH];
    size_t i;
    if (!waiting_count)
        return;
    ratelimit_take_each(&limiter, asked, res, waiting_count);
    for (i = 0; i < waiting_count; i++)
        if (mistake(&res[i]))
            put_error(out, "ERR %s", mistake(&res[i]));
        else
            waits[i].put(out, &asked[i], &res[i]);
    waiting_count = 0;
}

/* The key must stay where it is until decide_waiting. */
static void wait_for_others(const call *c, const ratelimit_request *request,
                            void (*put)(text *, const ratelimit_request *, ratelimit_result *))
{
    waits[waiting_count].limit = *request->limit;
    waits[waiting_count].put = put;
    asked[waiting_count] = *request;
    asked[waiting_count].limit = &waits[waiting_count].limit;
    if (++waiting_count == BATCH)
        decide_waiting(c->out);
}

static void refuse(text *out, const char *why)
{
    decide_waiting(out);
    put_error(out, "ERR %s", why);
}

/* ---- THROTTLE, CL.THROTTLE ------------------------------------------------------------------- */

/* A quantity of 0 only asks; as in redis-cell it passes if no more than the burst is owed. */
static void allow_asking(const ratelimit_request *request, ratelimit_result *res)
{
    const ratelimit_limit *l = request->limit;
    if (!request->n && res->retry_after_ns <= (l->per_ns - 1) / l->tokens + 1)
        res->allowed = true;
}

static void put_crab(text *out, const ratelimit_request *request, ratelimit_result *res)
{
    allow_asking(request, res);
    put_array(out, 5);
    put_integer(out, res->allowed);
    put_integer(out, (int64_t)res->burst);
    put_integer(out, (int64_t)res->remaining);
    put_integer(out, round_up(res->reset_after_ns, RATELIMIT_SECOND));
    put_integer(out, res->allowed ? 0 : round_up(res->retry_after_ns, RATELIMIT_SECOND));
}

static void put_cell(text *out, const ratelimit_request *request, ratelimit_result *res)
{
    allow_asking(request, res);
    put_array(out, 5);
    put_integer(out, !res->allowed);
    put_integer(out, (int64_t)res->burst);
    put_integer(out, (int64_t)res->remaining);
    put_integer(out, res->allowed ? -1 : round_up(res->retry_after_ns, RATELIMIT_SECOND));
    put_integer(out, round_up(res->reset_after_ns, RATELIMIT_SECOND));
}

/* key max_burst count period [quantity]; detail: what the burst is above max_burst */
void throttle(const call *c)
{
    ratelimit_request request = {0};
    uint64_t burst, count, period;
    request.n = 1;
    if (!whole_number(c->args[2], INT64_MAX - 1, &burst) ||
        !whole_number(c->args[3], INT64_MAX, &count) ||
        !whole_number(c->args[4], INT64_MAX, &period) ||
        (c->count == 6 && !whole_number(c->args[5], INT64_MAX, &request.n))) {
        refuse(c->out, "max_burst, count, period and quantity are whole numbers");
        return;
    }
    request.key = c->args[1].at;
    request.key_len = c->args[1].len;
    request.limit = limit_of_numbers(burst + (uint64_t)c->of->detail, count, period);
    request.op = request.n ? RATELIMIT_TAKE : RATELIMIT_PEEK;
    if (request.limit)
        wait_for_others(c, &request, c->of->detail ? put_cell : put_crab);
    else
        refuse(c->out, "this is no limit: burst, count and period are 1 or more, and a whole burst "
                       "comes back within 146 years");
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
static void put_six(text *out, const ratelimit_request *request, ratelimit_result *res)
{
    (void)request;
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
typedef struct named {
    ratelimit_request request;
    ratelimit_limit limit;
    bool by_rule;
    char rule[RATELIMIT_RULE_NAME_BYTES];
} named;

static bool name_rule(named *a, slice name, text *out)
{
    if (name.len >= sizeof a->rule || memchr(name.at, 0, name.len)) {
        refuse(out, "a rule's name has 1 to 63 bytes");
        return false;
    }
    a->by_rule = true;
    memcpy(a->rule, name.at, name.len);
    a->rule[name.len] = 0;
    return true;
}

/* key and limit. False: the answer is an error. */
static bool name_limit(named *a, slice key, slice limit, text *out)
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
        refuse(out, "a limit is a text as \"10/s burst 20\", or @ and a rule's name");
        return false;
    }
    a->limit = *found;
    a->request.limit = &a->limit;
    return true;
}

/* Decides at once, all or none. All are by rule, or none is. */
static void decide_all(const named *a, size_t count, const call *c)
{
    ratelimit_result res[MAX_TOGETHER];
    size_t i;
    decide_waiting(c->out);
    if (a->by_rule) {
        ratelimit_rule_request by_rule[MAX_TOGETHER] = {{NULL, {0}}};
        for (i = 0; i < count; i++) {
            by_rule[i].rule = a[i].rule;
            by_rule[i].request = a[i].request;
        }
        ratelimit_take_rules(&limiter, by_rule, res, NULL, count);
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
        put_six(c->out, &a[i].request, &res[i]);
}

static void decide_one(const named *a, const call *c)
{
    if (a->by_rule)
        decide_all(a, 1, c);
    else
        wait_for_others(c, &a->request, put_six);
}

/* A number of tokens, 1 if it is left out. */
static bool tokens(const call *c, size_t at, uint64_t *n)
{
    *n = 1;
    if (at >= c->count || whole_number(c->args[at], INT64_MAX, n))
        return true;
    refuse(c->out, "a number of tokens is a whole number");
    return false;
}

/* key limit [n]; RESERVE: key limit ms [n]; BLOCK: key limit ms; RESET: key limit */
void decide(const call *c)
{
    named a;
    size_t at = 3;
    memset(&a.request, 0, sizeof a.request);
    a.request.op = (ratelimit_op)c->of->detail;
    if (!name_limit(&a, c->args[1], c->args[2], c->out))
        return;
    if (a.request.op == RATELIMIT_RESERVE || a.request.op == RATELIMIT_BLOCK) {
        uint64_t ms;
        if (!whole_number(c->args[at++], MOST_MS, &ms)) {
            refuse(c->out, "a time is a whole number of ms, at most 146 years");
            return;
        }
        a.request.max_wait_ns = ms * RATELIMIT_MILLISECOND;
    }
    if (tokens(c, at, &a.request.n))
        decide_one(&a, c);
}

/* name key [n] */
void decide_by_rule(const call *c)
{
    named a;
    memset(&a.request, 0, sizeof a.request);
    a.request.key = c->args[2].at;
    a.request.key_len = c->args[2].len;
    if (name_rule(&a, c->args[1], c->out) && tokens(c, 3, &a.request.n))
        decide_one(&a, c);
}

/* key limit n, up to MAX_TOGETHER times */
void take_all(const call *c)
{
    named a[MAX_TOGETHER];
    size_t count = (c->count - 1) / 3, i;
    if (c->count != 1 + 3 * count) {
        refuse(c->out, "TAKEALL wants key, limit and n, and the same for each further limit");
        return;
    }
    for (i = 0; i < count; i++) {
        const slice *at = c->args + 1 + 3 * i;
        memset(&a[i].request, 0, sizeof a[i].request);
        if (!name_limit(&a[i], at[0], at[1], c->out) || !tokens(c, 3 + 3 * i, &a[i].request.n))
            return;
        if (a[i].by_rule != a[0].by_rule) {
            refuse(c->out, "TAKEALL: name all limits by rules, or none");
            return;
        }
    }
    decide_all(a, count, c);
}

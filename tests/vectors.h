/* vectors.h - reads the files in tests/vectors and runs them on any engine (engines.h says what
 * that is).
 *
 * A file is lines of text; what follows a # is a comment.
 *
 *     case SENTENCE    starts a new test: all keys full, no limit; the sentence says what is right
 *     limit TEXT [scope N]  for the lines below, as ratelimit_limit_parse reads it; "bad": a zeroed
 *                      one. Limits of one scope share a key's bucket: to change the limit is to
 *                      write another. Scope 1 if not said; "own" is the scope of the limit's
 *                      numbers
 *     TIME OP N KEY -> STATUS REMAINING RETRY_AFTER RESET_AFTER [taken N] [wait TIME]
 *     FROM..TO/EACH OP N KEY -> allowed N
 *
 * TIME     sums such as 0, 100ms, 1s-1ns, 2h+3ns+1; units as in limits, none is ns; "forever" is
 *          UINT64_MAX
 * OP       take, take_up_to, peek, reserve, charge, refund, cancel, block, reset
 * N        tokens; N:TIME gives max_wait_ns too, for reserve, cancel and block
 * STATUS   in small letters: ok, denied, never, timeout, bad_limit, bad_count, bad_argument,
 *          unsupported
 * taken    if not said: n for take, reserve, charge and refund that are ok, else 0
 * wait     wait_ns; 0 if not said
 * ~        before REMAINING, RETRY_AFTER or RESET_AFTER: to one part in 50,000
 *
 * allowed must be true just for ok, and burst the limit's (0 after bad_ and unsupported). The
 * second form asks every EACH from FROM to TO inclusive, and counts what was allowed.
 *
 * Every case runs four times, its times moved: as written; from 10^9 s on; so that its last request
 * is at UINT64_MAX; and so that half of it is behind UINT64_MAX, where times are small again. If it
 * has fixed windows the moves are rounded down to whole periods, and there is no fourth. What is
 * right may not depend on it.
 */
#ifndef VECTORS_H
#define VECTORS_H

#include "check.h"
#include "engines.h"
#include "model.h"

#include <ctype.h>

#define VECTOR_TEXT_BYTES 256
#define VECTOR_FAR_NS     UINT64_C(1000000000000000000)

typedef struct vector_line {
    int number; /* in the file */
    ratelimit_limit limit;
    model_limit model_limit;
    char scope[VECTOR_TEXT_BYTES];  /* "7", or the numbers of the limit that it is the own one of */
    uint64_t at_ns, to_ns, each_ns; /* each_ns 0: one request */
    ratelimit_request req;          /* without key and limit */
    char key[ENGINE_KEY_BYTES];
    ratelimit_result want;
    bool about_remaining, about_retry, about_reset;
    uint64_t want_allowed; /* of many requests */
} vector_line;

typedef struct vector_case {
    char file[VECTOR_TEXT_BYTES];
    char name[VECTOR_TEXT_BYTES];
    vector_line *line;
    size_t count;
    uint64_t last_ns;
    uint64_t align_ns; /* moves must be a multiple of it; 0: there is none but 0 */
    bool goes_back;
} vector_case;

typedef struct vector_set {
    vector_case *the_case;
    size_t count;
} vector_set;

static const char *const vector_files[] = {
    "take.txt",  "fractions.txt", "window.txt", "reserve.txt", "cancel.txt",  "give.txt",
    "block.txt", "change.txt",    "scope.txt",  "clock.txt",   "extremes.txt"};
#define VECTOR_FILES (sizeof vector_files / sizeof vector_files[0])

/* ---- words ----------------------------------------------------------------------------------- */

typedef struct vector_word {
    const char *text;
    int value;
} vector_word;

static const vector_word vector_ops[] = {
    {"take", RATELIMIT_TAKE},     {"take_up_to", RATELIMIT_TAKE_UP_TO},
    {"peek", RATELIMIT_PEEK},     {"reserve", RATELIMIT_RESERVE},
    {"charge", RATELIMIT_CHARGE}, {"refund", RATELIMIT_REFUND},
    {"cancel", RATELIMIT_CANCEL}, {"block", RATELIMIT_BLOCK},
    {"reset", RATELIMIT_RESET},   {NULL, 0}};

static const vector_word vector_statuses[] = {{"ok", RATELIMIT_OK},
                                              {"denied", RATELIMIT_DENIED},
                                              {"never", RATELIMIT_NEVER},
                                              {"skipped", RATELIMIT_SKIPPED},
                                              {"full", RATELIMIT_FULL},
                                              {"timeout", RATELIMIT_TIMEOUT},
                                              {"bad_key", RATELIMIT_BAD_KEY},
                                              {"bad_limit", RATELIMIT_BAD_LIMIT},
                                              {"bad_count", RATELIMIT_BAD_COUNT},
                                              {"bad_argument", RATELIMIT_BAD_ARGUMENT},
                                              {"store_failed", RATELIMIT_STORE_FAILED},
                                              {"unsupported", RATELIMIT_UNSUPPORTED},
                                              {NULL, 0}};

static inline const char *vector_word_of(const vector_word *words, int value)
{
    for (; words->text; words++)
        if (words->value == value)
            return words->text;
    return "?";
}

static inline bool vector_value_of(const vector_word *words, const char *text, int *value)
{
    for (; words->text; words++) {
        if (strcmp(words->text, text) == 0) {
            *value = words->value;
            return true;
        }
    }
    return false;
}

/* The next word of *text into word; false at the end of the line or if it is too long. */
static inline bool vector_next(const char **text, char *word, size_t word_bytes)
{
    const char *p = *text;
    size_t len = 0;
    while (*p == ' ' || *p == '\t')
        p++;
    while (*p && !isspace((unsigned char)*p)) {
        if (len + 1 >= word_bytes)
            return false;
        word[len++] = *p++;
    }
    word[len] = '\0';
    *text = p;
    return len > 0;
}

/* ---- numbers and times ----------------------------------------------------------------------- */

/* One number with or without a unit; false unless it fits. */
static inline bool vector_read_term(const char **text, uint64_t *value)
{
    wide number, tenths, unit;
    const char *before = *text;
    if (!model_read_number(text, &number, &tenths) || !wide_equal(tenths, wide_of(1)))
        return false;
    before = *text;
    if (!model_read_unit(text, &unit)) {
        unit = wide_of(1);
        *text = before;
    }
    number = wide_mul(number, unit);
    if (!wide_fits64(number))
        return false;
    *value = wide_u64(number);
    return true;
}

static inline bool vector_read_time(const char *text, uint64_t *value)
{
    uint64_t term;
    if (strcmp(text, "forever") == 0) {
        *value = UINT64_MAX;
        return true;
    }
    if (!vector_read_term(&text, value))
        return false;
    while (*text == '+' || *text == '-') {
        bool plus = *text++ == '+';
        if (!vector_read_term(&text, &term))
            return false;
        if (plus ? term > UINT64_MAX - *value : term > *value)
            return false;
        *value = plus ? *value + term : *value - term;
    }
    return *text == '\0';
}

/* The shortest exact text of a time: in the largest unit of which it is a whole number. */
static inline const char *vector_time_text(uint64_t ns, char buf[32])
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"h", UINT64_C(3600000000000)},
                 {"m", UINT64_C(60000000000)},
                 {"s", 1000000000},
                 {"ms", 1000000},
                 {"us", 1000}};
    size_t i;
    if (ns == UINT64_MAX)
        return strcpy(buf, "forever");
    for (i = 0; ns && i < sizeof units / sizeof units[0]; i++) {
        if (ns % units[i].ns == 0) {
            snprintf(buf, 32, "%" PRIu64 "%s", ns / units[i].ns, units[i].name);
            return buf;
        }
    }
    snprintf(buf, 32, "%" PRIu64 "%s", ns, ns ? "ns" : "");
    return buf;
}

/* ---- reading --------------------------------------------------------------------------------- */

static inline void vector_stop(const char *file, int number, const char *why)
{
    fprintf(stderr, "%s:%d: %s\n", file, number, why);
    exit(2);
}

static inline void *vector_grow(void *items, size_t count, size_t item_bytes)
{
    if ((count & (count - 1)) == 0) /* room doubles at each power of two */
        items = realloc(items, (count ? 2 * count : 1) * item_bytes);
    if (items == NULL)
        exit(2);
    return items;
}

static inline uint64_t vector_taken_by_rule(const vector_line *line)
{
    ratelimit_op op = line->req.op;
    if (line->want.status != RATELIMIT_OK)
        return 0;
    return op == RATELIMIT_TAKE || op == RATELIMIT_RESERVE || op == RATELIMIT_CHARGE ||
                   op == RATELIMIT_REFUND
               ? line->req.n
               : 0;
}

/* FROM..TO/EACH or TIME */
static inline bool vector_read_times(char *text, vector_line *line)
{
    char *dots = strstr(text, ".."), *slash = strchr(text, '/');
    if (dots == NULL)
        return vector_read_time(text, &line->at_ns) && (line->to_ns = line->at_ns, true);
    if (slash == NULL || slash < dots)
        return false;
    *dots = *slash = '\0';
    return vector_read_time(text, &line->at_ns) && vector_read_time(dots + 2, &line->to_ns) &&
           vector_read_time(slash + 1, &line->each_ns) && line->each_ns > 0 &&
           line->at_ns <= line->to_ns;
}

static inline bool vector_read_request(const char **text, vector_line *line)
{
    char word[VECTOR_TEXT_BYTES], *colon;
    int op;
    if (!vector_next(text, word, sizeof word) || !vector_read_times(word, line))
        return false;
    if (!vector_next(text, word, sizeof word) || !vector_value_of(vector_ops, word, &op))
        return false;
    line->req.op = (ratelimit_op)op;
    if (!vector_next(text, word, sizeof word))
        return false;
    colon = strchr(word, ':');
    if (colon) {
        *colon = '\0';
        if (!vector_read_time(colon + 1, &line->req.max_wait_ns))
            return false;
    }
    return vector_read_time(word, &line->req.n) && vector_next(text, line->key, sizeof line->key);
}

/* A time, after a ~ one that need not be exact. */
static inline bool vector_read_about(const char **text, uint64_t *value, bool *about)
{
    char word[VECTOR_TEXT_BYTES];
    if (!vector_next(text, word, sizeof word))
        return false;
    *about = *word == '~';
    return vector_read_time(word + *about, value);
}

static inline bool vector_read_want(const char *text, vector_line *line)
{
    char word[VECTOR_TEXT_BYTES];
    ratelimit_result *want = &line->want;
    int status;
    if (!vector_next(&text, word, sizeof word))
        return false;
    if (strcmp(word, "allowed") == 0)
        return line->each_ns && vector_next(&text, word, sizeof word) &&
               vector_read_time(word, &line->want_allowed) &&
               !vector_next(&text, word, sizeof word);
    if (line->each_ns || !vector_value_of(vector_statuses, word, &status))
        return false;
    want->status = (ratelimit_status)status;
    want->allowed = want->status == RATELIMIT_OK;
    want->taken = vector_taken_by_rule(line);
    if (!vector_read_about(&text, &want->remaining, &line->about_remaining) ||
        !vector_read_about(&text, &want->retry_after_ns, &line->about_retry) ||
        !vector_read_about(&text, &want->reset_after_ns, &line->about_reset))
        return false;
    while (vector_next(&text, word, sizeof word)) {
        uint64_t *field = strcmp(word, "taken") == 0  ? &want->taken
                          : strcmp(word, "wait") == 0 ? &want->wait_ns
                                                      : NULL;
        if (!field || !vector_next(&text, word, sizeof word) || !vector_read_time(word, field))
            return false;
    }
    return true;
}

/* The burst in the result: the limit's, but 0 after a mistake of the caller. */
static inline uint64_t vector_want_burst(const vector_line *line)
{
    switch ((int)line->want.status) {
    case RATELIMIT_BAD_LIMIT:
    case RATELIMIT_BAD_COUNT:
    case RATELIMIT_BAD_ARGUMENT:
    case RATELIMIT_BAD_KEY:
    case RATELIMIT_UNSUPPORTED:
        return 0;
    default:
        return line->model_limit.burst;
    }
}

/* Cuts "scope N" off the end of text. */
static inline void vector_read_scope(char *text, vector_line *line)
{
    char *scope = strstr(text, " scope ");
    if (scope)
        *scope = '\0';
    snprintf(line->scope, sizeof line->scope, "%s", scope ? scope + 7 : "1");
}

static inline bool vector_read_limit(char *text, vector_line *line)
{
    uint64_t scope;
    memset(line, 0, sizeof *line);
    vector_read_scope(text, line);
    if (strcmp(text, "bad") == 0)
        return true;
    if (ratelimit_limit_parse(&line->limit, text) != RATELIMIT_OK ||
        !model_limit_parse(&line->model_limit, text) || line->model_limit.kind == MODEL_BAD)
        return false;
    if (strcmp(line->scope, "own") == 0) {
        snprintf(line->scope, sizeof line->scope, "own %" PRIu64 "/%" PRIu64 " %" PRIu64 " %d",
                 line->limit.tokens, line->limit.per_ns, line->limit.burst,
                 (int)line->model_limit.kind);
        return true;
    }
    if (!vector_read_time(line->scope, &scope) || scope > UINT32_MAX)
        return false;
    line->limit.scope = (uint32_t)scope;
    return true;
}

/* Moves keep windows in place only if they are whole periods of every window in the case. */
static inline void vector_align(vector_case *c, const model_limit *limit)
{
    wide per = wide_of(limit->per_ns), align = wide_of(c->align_ns), common;
    if (limit->kind != MODEL_WINDOW || c->align_ns == 0)
        return;
    common = wide_mul(wide_floor(align, wide_gcd(align, per)), per);
    c->align_ns = wide_fits64(common) ? wide_u64(common) : 0;
}

static inline void vector_add_line(vector_case *c, const vector_line *line)
{
    vector_line *added;
    c->line = (vector_line *)vector_grow(c->line, c->count, sizeof *c->line);
    added = &c->line[c->count++];
    *added = *line;
    added->want.burst = vector_want_burst(added);
    c->goes_back = c->goes_back || (c->count > 1 && added[-1].to_ns > added->at_ns);
    if (added->to_ns > c->last_ns)
        c->last_ns = added->to_ns;
    vector_align(c, &added->model_limit);
}

static inline vector_case *vector_add_case(vector_set *set, const char *file, const char *name)
{
    vector_case *added;
    set->the_case = (vector_case *)vector_grow(set->the_case, set->count, sizeof *set->the_case);
    added = &set->the_case[set->count++];
    memset(added, 0, sizeof *added);
    snprintf(added->file, sizeof added->file, "%s", file);
    snprintf(added->name, sizeof added->name, "%s", name);
    added->align_ns = 1;
    return added;
}

/* Takes comment and blanks off the end. */
static inline void vector_trim(char *text)
{
    size_t len = strcspn(text, "#\r\n");
    while (len && isspace((unsigned char)text[len - 1]))
        len--;
    text[len] = '\0';
}

/* One line of a file into set. want_too false: what follows -> may be anything. */
static inline void vector_read_line(vector_set *set, vector_line *line, const char *file,
                                    int number, char *text, bool want_too)
{
    const char *p = text;
    char *arrow;
    vector_case *c = set->count ? &set->the_case[set->count - 1] : NULL;
    vector_trim(text);
    if (*text == '\0')
        return;
    if (strncmp(text, "case ", 5) == 0) {
        memset(line, 0, sizeof *line);
        vector_add_case(set, file, text + 5);
    } else if (strncmp(text, "limit ", 6) == 0) {
        if (!vector_read_limit(text + 6, line))
            vector_stop(file, number, "no limit, or the two parsers differ");
    } else {
        vector_line one = *line;
        arrow = strstr(text, "->");
        one.number = number;
        if (c == NULL || !vector_read_request(&p, &one) || (arrow == NULL && want_too))
            vector_stop(file, number, "not: TIME OP N KEY -> STATUS ...");
        if (want_too && !vector_read_want(arrow + 2, &one))
            vector_stop(file, number, "not: -> STATUS REMAINING RETRY_AFTER RESET_AFTER");
        vector_add_line(c, &one);
    }
}

static inline void vectors_read(vector_set *set, const char *file, bool want_too)
{
    char text[VECTOR_TEXT_BYTES];
    vector_line line;
    int number = 0;
    FILE *in = fopen(file, "r");
    if (in == NULL)
        vector_stop(file, 0, "can't be read");
    memset(&line, 0, sizeof line);
    while (fgets(text, sizeof text, in)) {
        if (strchr(text, '\n') == NULL)
            vector_stop(file, number + 1, "line too long, or without end");
        vector_read_line(set, &line, file, ++number, text, want_too);
    }
    fclose(in);
}

/* The folder: VECTORS in the environment, else tests/vectors. */
static inline const char *vectors_folder(void)
{
    const char *folder = getenv("VECTORS");
    return folder ? folder : "tests/vectors";
}

static inline void vectors_open(vector_set *set, bool want_too)
{
    char file[VECTOR_TEXT_BYTES];
    size_t i;
    memset(set, 0, sizeof *set);
    for (i = 0; i < VECTOR_FILES; i++) {
        snprintf(file, sizeof file, "%s/%s", vectors_folder(), vector_files[i]);
        vectors_read(set, file, want_too);
    }
}

static inline void vectors_close(vector_set *set)
{
    size_t i;
    for (i = 0; i < set->count; i++)
        free(set->the_case[i].line);
    free(set->the_case);
    memset(set, 0, sizeof *set);
}

/* ---- running --------------------------------------------------------------------------------- */

static inline void vector_same(const vector_case *c, const vector_line *line, const char *where,
                               const char *field, uint64_t got, uint64_t want)
{
    if (got != want && check_fault(c->file, line->number))
        printf("%s: %s is %" PRIu64 ", not %" PRIu64 "\n", where, field, got, want);
}

static inline void vector_near(const vector_case *c, const vector_line *line, const char *where,
                               const char *field, uint64_t got, uint64_t want, bool about)
{
    uint64_t apart = got < want ? want - got : got - want;
    if (!about || apart > want / 50000)
        vector_same(c, line, where, field, got, want);
}

static inline void vector_check(const vector_case *c, const vector_line *line, const char *where,
                                const ratelimit_result *got)
{
    const ratelimit_result *want = &line->want;
    if (got->status != want->status && check_fault(c->file, line->number))
        printf("%s: status is %s, not %s\n", where,
               vector_word_of(vector_statuses, (int)got->status),
               vector_word_of(vector_statuses, (int)want->status));
    vector_same(c, line, where, "allowed", got->allowed, want->allowed);
    vector_same(c, line, where, "burst", got->burst, want->burst);
    vector_same(c, line, where, "taken", got->taken, want->taken);
    vector_near(c, line, where, "remaining", got->remaining, want->remaining,
                line->about_remaining);
    vector_near(c, line, where, "retry_after_ns", got->retry_after_ns, want->retry_after_ns,
                line->about_retry);
    vector_near(c, line, where, "reset_after_ns", got->reset_after_ns, want->reset_after_ns,
                line->about_reset);
    vector_same(c, line, where, "wait_ns", got->wait_ns, want->wait_ns);
}

/* The line being asked, for an engine that wants to know what a request alone does not say. */
static const vector_line *vector_asked;

static inline void vector_ask(const engine *e, const vector_line *line, uint64_t now_ns,
                              ratelimit_result *res)
{
    ratelimit_request req = line->req;
    vector_asked = line;
    req.key = line->key;
    req.key_len = strlen(line->key);
    req.limit = &line->limit;
    memset(res, 0xA5, sizeof *res); /* so that a field left alone is seen */
    e->decide(e->self, &req, now_ns, res);
}

/* Asks from line->at_ns to line->to_ns and counts what was allowed. */
static inline uint64_t vector_count(const engine *e, const vector_line *line, uint64_t base_ns)
{
    ratelimit_result res;
    uint64_t at_ns = line->at_ns, allowed = 0;
    for (;;) {
        vector_ask(e, line, base_ns + at_ns, &res);
        allowed += res.allowed;
        if (line->to_ns - at_ns < line->each_ns)
            return allowed;
        at_ns += line->each_ns;
    }
}

static inline bool vector_can(const engine *e, const vector_case *c, uint64_t base_ns)
{
    size_t i;
    if (c->goes_back && e->forward_only)
        return false;
    for (i = 0; e->can && i < c->count; i++)
        if (!e->can(e->self, &c->line[i].req, base_ns + c->line[i].at_ns))
            return false;
    return true;
}

static inline void vector_run_at(const engine *e, const vector_case *c, uint64_t base_ns)
{
    char where[VECTOR_TEXT_BYTES];
    ratelimit_result res;
    size_t i;
    snprintf(where, sizeof where, "%s, from %" PRIu64, e->name, base_ns);
    e->reset(e->self);
    for (i = 0; i < c->count; i++) {
        const vector_line *line = &c->line[i];
        if (line->each_ns) {
            vector_same(c, line, where, "allowed", vector_count(e, line, base_ns),
                        line->want_allowed);
        } else {
            vector_ask(e, line, base_ns + line->at_ns, &res);
            vector_check(c, line, where, &res);
        }
    }
}

/* Runs c on e from each of its bases, as one test. */
static inline void vector_run(const engine *e, const vector_case *c)
{
    uint64_t bases[4], align = c->align_ns ? c->align_ns : UINT64_MAX;
    char name[2 * VECTOR_TEXT_BYTES];
    size_t i, ran = 0;
    snprintf(name, sizeof name, "%s: %s", e->name, c->name);
    if (!check_wanted(name) && !check_wanted(c->file))
        return;
    bases[0] = 0;
    bases[1] = VECTOR_FAR_NS <= UINT64_MAX - c->last_ns ? VECTOR_FAR_NS / align * align : 0;
    bases[2] = (UINT64_MAX - c->last_ns) / align * align;
    bases[3] = c->align_ns == 1 ? UINT64_MAX - c->last_ns / 2 : 0;
    check_name = name;
    check_faults = 0;
    for (i = 0; i < 4; i++) {
        if ((i > 0 && bases[i] == 0) || !vector_can(e, c, bases[i]))
            continue;
        vector_run_at(e, c, bases[i]);
        ran++;
    }
    if (ran)
        check_count();
    else if (!(c->goes_back && e->forward_only))
        SKIP(case, name);
    check_name = "";
}

static inline void vectors_run(const engine *e, const vector_set *set)
{
    size_t i;
    for (i = 0; i < set->count; i++)
        vector_run(e, &set->the_case[i]);
}

#endif

/* store_command.h - the command line that store_sqlite.c and store_memcached.c share: what
   ratelimit.h and cas_held.h do over a ratelimit_cas, as commands for shells, scripts and cron
   jobs. What differs between databases, the load and the swap, is in those two files. */
#ifndef STORE_COMMAND_H
#define STORE_COMMAND_H

#include "ratelimit.h"

#include "cas_held.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STORE_USAGE                                                                                \
  "OPTIONS\n"                                                                                      \
  "  --timeout MS   how long the database may take to answer (default 1000)\n"                     \
  "  --closed       take and peek refuse if it fails (default: they let through)\n"                \
  "COMMANDS\n"                                                                                     \
  "  take KEY LIMIT [N]          takes N tokens (1): \"10/m burst 20\", \"1000/d window\"\n"       \
  "                 (another LIMIT on the same KEY counts apart)\n"                                \
  "  peek KEY LIMIT [N]          the answer of take, nothing taken\n"                              \
  "  window KEY LIMIT [N]        counts N in a window that begins with its first use: 100/m\n"     \
  "  acquire KEY MOST TTL        one of MOST permits (up to 16), for TTL: 30s; prints it\n"        \
  "  extend KEY PERMIT TTL       the permit ends TTL from now\n"                                   \
  "  release KEY PERMIT          gives it back\n"                                                  \
  "  acquire-plain KEY MOST TTL  only counted; all are free once nobody acquires for TTL\n"        \
  "  release-plain KEY           one less\n"                                                       \
  "  load PROCESSES TIMES ...    one of the above, so often in each of so many processes\n"        \
  "EXIT CODE\n"                                                                                    \
  "  0 yes   1 no (refused, busy, lost)   2 wrong usage   3 the database failed\n"

/* The largest MOST that any key ever has: held_acquire wants the same in all calls. */
enum { STORE_PLACES = 16 };

enum { STORE_YES, STORE_NO, STORE_WRONG, STORE_FAILED };

typedef struct store_command {
    /* Filled in by store_parse: */
    const char *program, *where;
    int timeout_ms;
    bool closed;
    uint64_t processes, times; /* 0: not load */
    const struct store_verb *verb;
    const char *key;
    ratelimit_limit limit;
    uint64_t n, ttl_ns;
    held_permit permit;
    /* Filled in by the program: */
    ratelimit_cas *cas;
    const char *error; /* what load or swap failed with, "" if they did not */
    void (*close)(void *self);
    /* The rest is store_run's own. */
    ratelimit_limiter limiter;
    bool quiet, told;
} store_command;

typedef struct store_verb {
    const char *name;
    const char *form; /* its words: k key, l limit, w window's limit, n count or none, m most,
                         t time, p permit */
    int (*run)(store_command *c);
} store_verb;

/* ---- commands -------------------------------------------------------------------------------- */

static void store_say(const store_command *c, const char *text)
{
    if (!c->quiet)
        puts(text);
}

/* The exit code for status. Says on standard error what went wrong, under load once. */
static int store_verdict(store_command *c, ratelimit_status status)
{
    switch (status) {
    case RATELIMIT_OK:
        return STORE_YES;
    case RATELIMIT_DENIED:
    case RATELIMIT_NEVER:
    case RATELIMIT_BUSY:
    case RATELIMIT_LOST:
        return STORE_NO;
    case RATELIMIT_STORE_FAILED:
        if (!c->told)
            fprintf(stderr, "%s: store failed: %s\n", c->program,
                    *c->error ? c->error : "the key holds something of another kind");
        c->told = c->quiet;
        return STORE_FAILED;
    default:
        if (!c->told)
            fprintf(stderr, "%s: %s\n", c->program, ratelimit_status_text(status));
        c->told = c->quiet;
        return STORE_WRONG;
    }
}

static int store_answer(store_command *c, const ratelimit_result *r)
{
    int verdict = store_verdict(c, r->status);
    char text[128];
    if (r->status == RATELIMIT_STORE_FAILED)
        snprintf(text, sizeof text, r->allowed ? "let through" : "refused");
    else if (r->allowed && r->burst == UINT64_MAX)
        snprintf(text, sizeof text, "allowed, unlimited");
    else if (r->allowed)
        snprintf(text, sizeof text, "allowed, %" PRIu64 " of %" PRIu64 " left", r->remaining,
                 r->burst);
    else if (r->status == RATELIMIT_NEVER)
        snprintf(text, sizeof text, "never, the most is %" PRIu64, r->burst);
    else
        snprintf(text, sizeof text, "refused, again in %.3f s", (double)r->retry_after_ns / 1e9);
    if (verdict != STORE_WRONG)
        store_say(c, text);
    return r->allowed && !c->quiet ? STORE_YES : verdict; /* load counts what failed as such */
}

static int store_ask(store_command *c, ratelimit_op op)
{
    ratelimit_request request = {0};
    ratelimit_result result;
    request.key = c->key;
    request.key_len = strlen(c->key);
    request.limit = &c->limit;
    request.n = c->n;
    request.op = op;
    ratelimit_take(&c->limiter, &request, &result);
    return store_answer(c, &result);
}

static int store_take(store_command *c)
{
    return store_ask(c, RATELIMIT_TAKE);
}

static int store_peek(store_command *c)
{
    return store_ask(c, RATELIMIT_PEEK);
}

static int store_window(store_command *c)
{
    ratelimit_result result;
    held_window(c->cas, c->key, strlen(c->key), c->limit.tokens, c->limit.per_ns, c->n, &result);
    return store_answer(c, &result);
}

/* 64 random bits: two processes must never make the same. */
static bool store_random(uint64_t *out)
{
    FILE *file = fopen("/dev/urandom", "rb");
    bool good = file && fread(out, sizeof *out, 1, file) == 1 && *out;
    if (file)
        fclose(file);
    return good;
}

static int store_acquire(store_command *c)
{
    held_permit permit;
    ratelimit_status status;
    uint64_t id, retry_after_ns;
    char text[64];
    if (!store_random(&id)) {
        fprintf(stderr, "%s: no random number: /dev/urandom can't be read\n", c->program);
        return STORE_FAILED;
    }
    status = held_acquire(c->cas, c->key, strlen(c->key), (uint32_t)c->n, STORE_PLACES, c->ttl_ns,
                          id, &permit, &retry_after_ns);
    if (status == RATELIMIT_OK)
        snprintf(text, sizeof text, "%" PRIu32 ".%016" PRIx64, permit.place, permit.id);
    else
        snprintf(text, sizeof text, "busy, again in %.3f s", (double)retry_after_ns / 1e9);
    if (status == RATELIMIT_OK || status == RATELIMIT_BUSY)
        store_say(c, text);
    return store_verdict(c, status);
}

/* For calls that have nothing to print but their status. */
static int store_done(store_command *c, ratelimit_status status)
{
    int verdict = store_verdict(c, status);
    if (verdict == STORE_YES || verdict == STORE_NO)
        store_say(c, ratelimit_status_text(status));
    return verdict;
}

static int store_extend(store_command *c)
{
    return store_done(c, held_extend(c->cas, c->key, strlen(c->key), &c->permit, c->ttl_ns));
}

static int store_release(store_command *c)
{
    return store_done(c, held_release(c->cas, c->key, strlen(c->key), &c->permit));
}

static int store_acquire_plain(store_command *c)
{
    return store_done(c, held_acquire_plain(c->cas, c->key, strlen(c->key), c->n, c->ttl_ns));
}

static int store_release_plain(store_command *c)
{
    return store_done(c, held_release_plain(c->cas, c->key, strlen(c->key)));
}

static const store_verb store_verbs[] = {{"take", "kln", store_take},
                                         {"peek", "kln", store_peek},
                                         {"window", "kwn", store_window},
                                         {"acquire", "kmt", store_acquire},
                                         {"extend", "kpt", store_extend},
                                         {"release", "kp", store_release},
                                         {"acquire-plain", "kmt", store_acquire_plain},
                                         {"release-plain", "k", store_release_plain}};

/* ---- arguments ------------------------------------------------------------------------------- */

static bool store_number(const char *text, uint64_t most, uint64_t *out)
{
    unsigned long long value;
    char *end;
    errno = 0;
    value = strtoull(text, &end, 10);
    *out = value;
    return *text >= '0' && *text <= '9' && !*end && !errno && value && value <= most;
}

/* A time in the words of a limit's period: "30s", "1500ms", "0.5h". */
static bool store_time(const char *text, uint64_t *ns)
{
    ratelimit_limit once;
    char limit[64];
    int len = snprintf(limit, sizeof limit, "1/%s", text);
    if (len < 0 || (size_t)len >= sizeof limit || strchr(text, ' ') || strchr(text, '\t') ||
        ratelimit_limit_parse(&once, limit) != RATELIMIT_OK)
        return false;
    *ns = once.per_ns;
    return true;
}

static bool store_permit(const char *text, held_permit *out)
{
    char more;
    return sscanf(text, "%3" SCNu32 ".%16" SCNx64 "%c", &out->place, &out->id, &more) == 2;
}

/* One word of the command; NULL if it is good, else what it should have been. */
static const char *store_word(store_command *c, char form, const char *word)
{
    switch (form) {
    case 'k':
        c->key = word;
        return *word ? NULL : "a key that is not empty";
    case 'l':
        return ratelimit_limit_parse(&c->limit, word) == RATELIMIT_OK
                   ? NULL
                   : "a limit like \"10/m burst 20\"";
    case 'w':
        return ratelimit_limit_parse(&c->limit, word) == RATELIMIT_OK && c->limit.per_ns &&
                       c->limit.burst == c->limit.tokens
                   ? NULL
                   : "a window's limit like 100/m";
    case 'n':
        return store_number(word, INT64_MAX, &c->n) ? NULL : "a number from 1";
    case 'm':
        return store_number(word, STORE_PLACES, &c->n) ? NULL : "a number from 1 to 16";
    case 't':
        return store_time(word, &c->ttl_ns) ? NULL : "a time like 30s";
    default:
        return store_permit(word, &c->permit) ? NULL : "a permit as acquire prints it";
    }
}

static bool store_wrong(const store_command *c, const char *wanted, const char *word)
{
    if (*word)
        fprintf(stderr, "%s: \"%s\" is not %s (--help says more)\n", c->program, word, wanted);
    else
        fprintf(stderr, "%s: %s is missing (--help says more)\n", c->program, wanted);
    return false;
}

/* The command with its words. */
static bool store_words(store_command *c, char **word)
{
    const char *form, *name = *word ? *word++ : "";
    size_t i;
    for (i = 0; i < sizeof store_verbs / sizeof *store_verbs; i++)
        if (strcmp(store_verbs[i].name, name) == 0)
            c->verb = &store_verbs[i];
    if (!c->verb)
        return store_wrong(c, "a command", name);
    for (form = c->verb->form, c->n = 1; *form; form++) {
        const char *wanted;
        if (!*word && *form == 'n')
            break;
        wanted = store_word(c, *form, *word ? *word : "");
        if (wanted)
            return store_wrong(c, wanted, *word ? *word : "");
        word++;
    }
    if (*word)
        return store_wrong(c, "part of this command", *word);
    return true;
}

/* Reads the command line; where is what the help calls the database's place. False: it is wrong,
 * which has been said; exit with STORE_WRONG. */
static bool store_parse(store_command *c, const char *program, const char *where, char **argv)
{
    uint64_t ms = 1000;
    c->program = program;
    for (argv++; *argv && strncmp(*argv, "--", 2) == 0; argv++) {
        if (strcmp(*argv, "--closed") == 0)
            c->closed = true;
        else if (strcmp(*argv, "--timeout") == 0 && argv[1]) {
            if (!store_number(*++argv, 3600000, &ms))
                return store_wrong(c, "milliseconds from 1 to 3600000", *argv);
        } else {
            bool help = strcmp(*argv, "--help") == 0;
            fprintf(help ? stdout : stderr, "usage: %s [OPTIONS] %s COMMAND\n%s", program, where,
                    STORE_USAGE);
            if (help)
                exit(0);
            return false;
        }
    }
    c->timeout_ms = (int)ms;
    if (!*argv)
        return store_wrong(c, where, "");
    c->where = *argv++;
    if (*argv && strcmp(*argv, "load") == 0) {
        if (!argv[1] || !store_number(argv[1], 64, &c->processes))
            return store_wrong(c, "processes from 1 to 64", argv[1] ? argv[1] : "");
        if (!argv[2] || !store_number(argv[2], 1000000, &c->times))
            return store_wrong(c, "times from 1 to 1000000", argv[2] ? argv[2] : "");
        argv += 3;
    }
    return store_words(c, argv);
}

/* ---- running --------------------------------------------------------------------------------- */

/* A process of the load: a byte for each answer, so that none is lost if it is killed. */
static void store_child(store_command *c, int out)
{
    uint64_t i;
    for (i = 0; i < c->times; i++) {
        unsigned char verdict = (unsigned char)c->verb->run(c);
        if (write(out, &verdict, 1) != 1)
            break;
    }
}

static int store_load(store_command *c)
{
    uint64_t count[4] = {0, 0, 0, 0}, started = 0, killed = 0;
    unsigned char verdict;
    int ends[2], status;
    if (pipe(ends) != 0) {
        perror(c->program);
        return STORE_FAILED;
    }
    c->quiet = true;
    fflush(NULL);
    for (; started < c->processes; started++) {
        pid_t child = fork();
        if (child < 0) {
            perror(c->program);
            break;
        }
        if (child == 0) {
            close(ends[0]);
            store_child(c, ends[1]);
            c->close(c->cas->self);
            _exit(0);
        }
    }
    close(ends[1]);
    while (read(ends[0], &verdict, 1) == 1)
        count[verdict & 3]++;
    close(ends[0]);
    while (wait(&status) > 0)
        killed += WIFSIGNALED(status) != 0;
    printf("yes %" PRIu64 ", no %" PRIu64 ", failed %" PRIu64 "\n", count[STORE_YES],
           count[STORE_NO], count[STORE_FAILED]);
    if (killed)
        printf("%" PRIu64 " processes were killed\n", killed);
    return count[STORE_WRONG]                                        ? STORE_WRONG
           : count[STORE_FAILED] || killed || started < c->processes ? STORE_FAILED
                                                                     : STORE_YES;
}

/* Does what was parsed. The exit code. */
static int store_run(store_command *c)
{
    int verdict;
    c->limiter.on_failure = c->closed ? RATELIMIT_FAIL_CLOSED : RATELIMIT_FAIL_OPEN;
    if (ratelimit_init(&c->limiter, ratelimit_cas_store(c->cas)) != RATELIMIT_OK)
        return STORE_FAILED;
    verdict = c->times ? store_load(c) : c->verb->run(c);
    ratelimit_close(&c->limiter);
    c->close(c->cas->self);
    return verdict;
}

#endif

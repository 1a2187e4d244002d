/* test_interleavings.c - operations on a table and on a shared bucket, at the same time, in every
 * order that their steps can have. See interleavings.h.
 *
 * In each end of each order:
 *
 *     law      all tokens that were told to be taken, and all that can still be taken, are no more
 *              than the bucket had (and one burst for each lock that was stolen from a living
 *              holder)
 *     exact    where said so, the answers, and what remains, are those of the same operations one
 *              after the other in some order
 *     sound    no lock is held, no key has two places (or one more for each stolen lock), no place
 *              has a tag that no key has
 *
 * Each case runs three times: undisturbed; with one thread killed at any step after its first write
 * (it may have taken a lock); and with a waiter that takes over a lock from a living holder, which
 * goes on later. INTERLEAVINGS=long adds longer programs and second steals.
 *
 *     cc -std=c99 -O2 -I. -Itests tests/test_interleavings.c
 */
#include "interleavings.h"

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "check.h"

#define SEC RATELIMIT_SECOND

/* ---- what threads do ------------------------------------------------------------------------- */

typedef enum act {
    END,
    TAKE, /* by ratelimit_table_take; all others by a request */
    TAKE_GENERAL,
    UP_TO,
    PEEK,
    RESERVE,
    CHARGE,
    REFUND,
    CANCEL,
    BLOCK,
    RESET,
    ALL, /* takes of key and key2 */
    SWEEP,
    SWEEP_IDLE,
    ACQUIRE, /* n: most */
    RELEASE,
    OCCUPY, /* before: the take of a key of its own, in the same line */
    SHARED, /* ratelimit_bucket_take_shared */
    SHARED_GENERAL,
    SHARED_REFUND,
    SHARED_RESET,
    SHARED_BLOCK
} act;

typedef struct op {
    act what;
    unsigned key;   /* A, B, C */
    uint64_t n;     /* tokens; 0 is 1 */
    unsigned limit; /* of limits[] */
    unsigned key2;
    uint64_t after; /* ns after NOW */
} op;

enum { A, B, C, KEYS, MOST_OPS = 3, BURST = 4, PLACES = 24 };
enum { NOW = 1000000, TTL = 1000, RULES_AT = 4096 };

typedef struct answer {
    bool done, allowed;
    ratelimit_status status;
    uint64_t taken, remaining;
} answer;

/* How strictly a case is judged. */
enum {
    EXACT = 1,  /* some order of the operations gives the same */
    CROWD = 2,  /* the other places of the block are taken, by debts that are longer */
    FULL = 4,   /* the table refuses; all keys together: a place holds one burst */
    ROOM = 16,  /* CROWD, but one place is free */
    DEBT = 32,  /* tokens may be taken that are not there */
    PAIR = 128, /* CROWD, but two places are free, and C has another home line */
    LOSES = 64, /* who is killed while it frees a bucket may lose what was charged meanwhile */
    FORGETS = 8 /* keys in debt may be forgotten: no law for each key */
};

typedef struct scenario {
    const char *name;
    unsigned flags;
    ratelimit_full when_full;
    op before[4]; /* one after the other */
    op thread[3][MOST_OPS];
} scenario;

static const scenario *now_running;
static ratelimit_limit limits[4];
static ratelimit_table *table;
static ratelimit_bucket *bucket;
static ratelimit_rules *rules; /* set: it is what is tried */
static uint32_t keys[KEYS];
static ratelimit_permit permits[MOST_THREADS + 1];
static answer answers[MOST_THREADS + 1][MOST_OPS + 1];
static bool long_run;

static bool search_is_held(uint32_t at, uint32_t bytes, uint64_t value)
{
    if (bytes == 8)
        return (value >> RATELIMIT_PRIV_CLASS_SHIFT & 31) == RATELIMIT_PRIV_CLASS_HELD;
    if (rules)
        return at == RULES_AT + offsetof(ratelimit_rules, writer) && (value & 1);
    return at % 64 == 0 && (value & 1); /* the first word of a line */
}

/* The serial numbers of permits. */
static inline bool search_is_counter(uint32_t at)
{
    return at == (uint32_t)((uintptr_t)&table->permits - (uintptr_t)arena.byte);
}

static ratelimit_request request(const op *o, ratelimit_op what)
{
    ratelimit_request q = RATELIMIT_REQUEST(NULL, 0, NULL, 0);
    q.key = &keys[o->key];
    q.key_len = sizeof keys[0];
    q.limit = &limits[o->limit];
    q.n = o->n ? o->n : 1;
    q.op = what;
    q.max_wait_ns = what == RATELIMIT_BLOCK ? 3 * SEC : RATELIMIT_HOUR;
    return q;
}

static void decide(const op *o, ratelimit_op what, uint64_t now, ratelimit_result *r)
{
    ratelimit_request q = request(o, what);
    (void)ratelimit_table_decide_one(table, &q, now, r);
}

static void both(const op *o, uint64_t now, ratelimit_result *r)
{
    ratelimit_result results[2];
    ratelimit_request q[2];
    q[0] = q[1] = request(o, RATELIMIT_TAKE);
    q[1].key = &keys[o->key2];
    (void)ratelimit_table_decide(table, q, results, 2, RATELIMIT_ALL, now);
    *r = results[0];
    r->status = r->allowed ? RATELIMIT_OK : RATELIMIT_DENIED; /* parts are read one by one */
}

static void shared(const op *o, ratelimit_op what, uint64_t now, ratelimit_result *r)
{
#if defined(RATELIMIT_PRIV_SHARED)
    ratelimit_request q = request(o, what);
    if (o->what == SHARED)
        (void)ratelimit_bucket_take_shared(bucket, q.limit, q.n, now, r);
    else
        (void)ratelimit_bucket_decide_shared(bucket, &q, now, r);
#else
    (void)o, (void)what, (void)now, (void)r;
#endif
}

static void act_out(const op *o, unsigned id, answer *a)
{
    static const ratelimit_op ops[] = {RATELIMIT_TAKE,       RATELIMIT_TAKE,   RATELIMIT_TAKE,
                                       RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,   RATELIMIT_RESERVE,
                                       RATELIMIT_CHARGE,     RATELIMIT_REFUND, RATELIMIT_CANCEL,
                                       RATELIMIT_BLOCK,      RATELIMIT_RESET};
    const uint64_t now = NOW + o->after;
    ratelimit_result r;
    bool passed;
    memset(&r, 0, sizeof r);
    switch ((int)o->what) { /* all others are requests */
    case TAKE:
        passed = ratelimit_table_take(table, &keys[o->key], sizeof keys[0], &limits[o->limit],
                                      o->n ? o->n : 1, now, &r);
        r.allowed = passed; /* what is done is what counts */
        break;
    case ALL:
        both(o, now, &r);
        break;
    case SWEEP:
    case SWEEP_IDLE:
        r.remaining = ratelimit_table_sweep(table, now, o->what == SWEEP ? 0 : o->n);
        break;
    case ACQUIRE:
        r.allowed = ratelimit_table_acquire(table, &keys[o->key], sizeof keys[0], (uint32_t)o->n,
                                            TTL, now, &permits[id]);
        r.taken = r.allowed || permits[id].expires_ns; /* else it is zeroed */
        break;
    case RELEASE:
        if (!permits[id].expires_ns)
            permits[id] = permits[MOST_THREADS];
        r.status = ratelimit_table_release(table, &keys[o->key], sizeof keys[0], &permits[id], now);
        r.taken = r.status == RATELIMIT_OK;
        break;
    case SHARED:
    case SHARED_GENERAL:
        shared(o, RATELIMIT_TAKE, now, &r);
        break;
    case SHARED_REFUND:
        shared(o, RATELIMIT_REFUND, now, &r);
        break;
    case SHARED_RESET:
        shared(o, RATELIMIT_RESET, now, &r);
        break;
    case SHARED_BLOCK:
        shared(o, RATELIMIT_BLOCK, now, &r);
        break;
    default:
        decide(o, ops[o->what], now, &r);
    }
    a->done = true;
    a->allowed = r.allowed;
    a->status = r.status;
    a->taken = r.taken;
    a->remaining = o->what >= SWEEP ? 0 : r.remaining;
}

static void body(unsigned id)
{
    unsigned i;
    memset(answers[id], 0, sizeof answers[id]);
    memset(&permits[id], 0, sizeof permits[id]);
    for (i = 0; i < MOST_OPS && now_running->thread[id][i].what; i++)
        act_out(&now_running->thread[id][i], id, &answers[id][i]);
}

/* ---- what is found at the end ---------------------------------------------------------------- */

static struct {
    uint64_t had[KEYS], all_had; /* tokens, before */
    uint64_t inexact, over, under;
    uint64_t outcomes[2000];
    size_t count;
    const char *fault;
} judge;

static bool is_shared(const scenario *s)
{
    return s->thread[0][0].what >= SHARED;
}

static bool has_permits(const scenario *s)
{
    return s->thread[0][0].what == ACQUIRE || s->thread[0][0].what == RELEASE;
}

static uint64_t last_moment(const scenario *s)
{
    uint64_t last = 0;
    unsigned i, k;
    for (i = 0; i < 3; i++)
        for (k = 0; k < MOST_OPS; k++)
            last = s->thread[i][k].after > last ? s->thread[i][k].after : last;
    return last;
}

static uint64_t most_permits(const scenario *s)
{
    return s->thread[0][0].n ? s->thread[0][0].n : 1;
}

/* What a key can still take, one by one. */
static uint64_t to_be_had(const scenario *s, unsigned key)
{
    op o;
    answer a;
    uint64_t n = 0;
    memset(&o, 0, sizeof o);
    o.key = key;
    o.after = last_moment(s);
    o.what = is_shared(s) ? SHARED_GENERAL : has_permits(s) ? ACQUIRE : TAKE_GENERAL;
    o.n = has_permits(s) ? most_permits(s) : 1;
    for (;; n++) {
        act_out(&o, MOST_THREADS - 1, &a);
        if (!a.allowed || n == 100)
            return n;
    }
}

/* The bytes that a table and a bucket use are kept from what the judge does. */
static unsigned char kept[ARENA_BYTES];

static void keep(void)
{
    memcpy(kept, arena.byte, ARENA_BYTES);
}

static void put_back(void)
{
    memcpy(arena.byte, kept, ARENA_BYTES);
}

static bool gives(act what)
{
    return what == REFUND || what == CANCEL || what == RELEASE || what == SHARED_REFUND;
}

static int64_t told(const scenario *s, unsigned key)
{
    int64_t n = 0;
    unsigned i, k;
    for (i = 0; i < 3; i++)
        for (k = 0; k < MOST_OPS; k++) {
            const op *o = &s->thread[i][k];
            const answer *a = &answers[i][k];
            int64_t taken = (int64_t)a->taken;
            if ((o->key != key && !(o->what == ALL && o->key2 == key)) ||
                (has_permits(s) && o->what != ACQUIRE && o->what != RELEASE))
                continue;
            if (gives(o->what)) /* one that was killed may have given */
                taken = a->done ? -taken : -(int64_t)(o->n ? o->n : 1);
            if (o->what == RESET || o->what == SHARED_RESET)
                taken = -(int64_t)limits[0].burst;
            if (o->what == BLOCK || o->what == SHARED_BLOCK)
                taken = 0;
            n += taken;
        }
    return n;
}

/* The first one is shown with its order: thread, step, address, old and new value, result. */
static void fault(const char *what)
{
    if (judge.fault)
        return;
    judge.fault = what;
    printf("  %s: %s\n", now_running->name, what);
    search_print();
}

/* A block that was made holds, unless somebody lifts it. */
static bool is_blocked(const scenario *s, unsigned key)
{
    bool made = false, lifted = false;
    unsigned i, k;
    for (i = 0; i < 3; i++)
        for (k = 0; k < MOST_OPS; k++) {
            const op *o = &s->thread[i][k];
            made = made || ((o->what == BLOCK || o->what == SHARED_BLOCK) && o->key == key &&
                            answers[i][k].done);
            lifted = lifted || o->what == RESET || o->what == SHARED_RESET;
        }
    return made && !lifted;
}

/* No lock held, no key twice, no tag of nobody. */
static void judge_table(const scenario *s)
{
    const ratelimit_priv_line *line = ratelimit_priv_lines(table);
    unsigned i, slot, k, there[KEYS] = {0, 0, 0};
    for (i = 0; i < PLACES / 3; i++) {
        if ((line[i].lock & 1) && !search.killed)
            fault("a lock is held");
        for (slot = 0; slot < 3; slot++)
            for (k = 0; k < KEYS; k++)
                there[k] +=
                    line[i].tag[slot] ==
                    ratelimit_priv_tag(ratelimit_priv_place(
                        ratelimit_table_hash(table, &keys[k], sizeof keys[k]), limits[0].scope));
    }
    for (k = 0; k < KEYS; k++)
        if (there[k] > 1 + search.stolen)
            fault("a key has two places");
    (void)s;
}

static uint64_t outcome(const scenario *s)
{
    uint64_t mix = 1;
    unsigned i, k;
    for (i = 0; i < 3; i++)
        for (k = 0; k < MOST_OPS && s->thread[i][k].what; k++) {
            const answer *a = &answers[i][k];
            mix = search_mix(mix, (uint64_t)a->allowed << 32 | (uint64_t)a->status);
            mix = search_mix(mix, a->taken);
        }
    for (k = 0; k < KEYS; k++)
        mix = search_mix(mix, to_be_had(s, k) + 1);
    return mix;
}

static void judge_end(void)
{
    const scenario *s = now_running;
    uint64_t bound;
    int64_t all = 0, used;
    unsigned i, k;
    for (i = 0; i < search.threads; i++) /* what each thread was told on this way */
        search_run(i, false);
    keep();
    judge_table(s);
    for (k = 0; k < KEYS; k++) {
        int64_t left = (int64_t)to_be_had(s, k);
        used = told(s, k) + left;
        if (left && is_blocked(s, k) && !search.stolen)
            fault("a block is gone");
        all += used;
        bound = judge.had[k] + search.stolen * limits[0].burst;
        if ((s->flags & LOSES) && search.killed)
            bound += limits[0].burst;
        if (!(s->flags & (FORGETS | DEBT)) && used > (int64_t)bound) {
            judge.over++;
            fault("more than the law allows");
        }
        if (!(s->flags & FORGETS) && used < (int64_t)judge.had[k])
            judge.under++;
    }
    put_back();
    if ((s->flags & FULL) && all > (int64_t)(judge.all_had + search.stolen * limits[0].burst)) {
        judge.over++;
        fault("more than all places hold");
    }
    if (!search.killed && !search.stolen) {
        uint64_t mix = outcome(s);
        size_t at = 0;
        while (at < judge.count && judge.outcomes[at] != mix)
            at++;
        judge.inexact += at == judge.count;
        if (at == judge.count && (s->flags & EXACT))
            fault("no order of the operations gives this");
        put_back();
    }
}

/* ---- a case ---------------------------------------------------------------------------------- */

/* Every order of whole operations. */
static void list_outcomes(const scenario *s, unsigned at[3])
{
    unsigned char before[ARENA_BYTES];
    ratelimit_permit permit[MOST_THREADS + 1];
    answer answered[MOST_THREADS + 1][MOST_OPS + 1];
    unsigned i;
    bool end = true;
    for (i = 0; i < 3; i++) {
        if (at[i] == MOST_OPS || !s->thread[i][at[i]].what)
            continue;
        end = false;
        memcpy(before, arena.byte, sizeof before);
        memcpy(permit, permits, sizeof permit);
        memcpy(answered, answers, sizeof answered);
        act_out(&s->thread[i][at[i]], i, &answers[i][at[i]]);
        at[i]++;
        list_outcomes(s, at);
        at[i]--;
        memcpy(arena.byte, before, sizeof before);
        memcpy(permits, permit, sizeof permit);
        memcpy(answers, answered, sizeof answered);
    }
    if (!end || judge.count == sizeof judge.outcomes / sizeof judge.outcomes[0])
        return;
    memcpy(before, arena.byte, sizeof before);
    judge.outcomes[judge.count++] = outcome(s);
    memcpy(arena.byte, before, sizeof before);
}

/* A key with this home line; with a permit: that of its first permit, too. */
static uint32_t key_after(uint32_t key, unsigned line, bool permit)
{
    const ratelimit_priv_line *home = ratelimit_priv_lines(table) + line;
    uint64_t hash;
    do {
        key++;
        hash = ratelimit_table_hash(table, &key, sizeof key);
    } while (ratelimit_priv_home(table, ratelimit_priv_place(hash, limits[0].scope)) != home ||
             (permit && ratelimit_priv_home(table, ratelimit_priv_permit_place(
                                                       table, &key, sizeof key, 0)) != home));
    return key;
}

static void fill(uint32_t key, uint64_t n)
{
    ratelimit_request q = RATELIMIT_REQUEST(NULL, 0, NULL, 0);
    q.key = &key;
    q.key_len = sizeof key;
    q.limit = &limits[0];
    q.n = n;
    CHECK(ratelimit_table_decide_one(table, &q, NOW, NULL));
}

static void start(const scenario *s)
{
    ratelimit_table_options options;
    ratelimit_table_counts counts;
    unsigned i, at[3] = {0, 0, 0};
    uint32_t filler = 1000, occupier = 100000;
    memset(&options, 0, sizeof options);
    options.seed[0] = 5;
    options.when_full = s->when_full;
    memset(&arena, 0, sizeof arena);
    bucket = (ratelimit_bucket *)(void *)(arena.byte + ARENA_BYTES - 64);
    CHECK(ratelimit_table_init(&table, arena.byte, RATELIMIT_TABLE_BYTES(12), &options) ==
          RATELIMIT_OK);
    for (i = 0; i < KEYS; i++)
        keys[i] = key_after(i ? keys[i - 1] : 0, i == C && (s->flags & PAIR) ? 3 : 2,
                            i == A && has_permits(s));
    memset(permits, 0, sizeof permits);
    memset(&judge, 0, sizeof judge);
    memset(answers, 0, sizeof answers);
    for (i = 0; i < 4 && s->before[i].what; i++)
        if (s->before[i].what == OCCUPY)
            fill(occupier = key_after(occupier, 2, false), s->before[i].n);
        else
            act_out(&s->before[i], MOST_THREADS, &answers[MOST_THREADS][0]);
    if (s->flags & (CROWD | ROOM | PAIR))
        for (;; filler++) {
            ratelimit_table_stats(table, NOW, &counts);
            if (counts.keys == PLACES - (s->flags & ROOM ? 1u : s->flags & PAIR ? 2u : 0u))
                break;
            fill(filler, BURST);
        }
    now_running = s;
    for (i = 0; i < KEYS; i++) {
        keep();
        judge.had[i] = to_be_had(s, i);
        put_back();
    }
    for (i = 0; i < KEYS; i++)
        judge.all_had += to_be_had(s, i);
    put_back();
    memset(answers, 0, sizeof answers);
    list_outcomes(s, at);
}

static double all_orders;
static uint64_t all_states, all_ends;

static void explore(const scenario *s, const char *how, unsigned kills, unsigned steals,
                    unsigned bound)
{
    unsigned threads = 0;
    double orders;
    start(s);
    while (threads < 3 && s->thread[threads][0].what)
        threads++;
    search.end = judge_end;
    orders = search_all(threads, body, kills, steals, bound);
    all_orders += orders;
    all_states += search.states;
    all_ends += search.ends;
    CHECK(!judge.fault);
    if (!kills && !steals)
        CHECK_U64(search.stuck, 0);
    CHECK_U64(search.orphans, 0);
    printf("%-41s %-10s %c%8" PRIu64 " states %9.3g orders %7" PRIu64 " ends, %" PRIu64
           " over, %" PRIu64 " under, %" PRIu64 " inexact%s%s\n",
           s->name, how, bound ? '<' : ' ', search.states, orders, search.ends, judge.over,
           judge.under, judge.inexact, judge.fault ? ": " : "", judge.fault ? judge.fault : "");
}

static void explore_all(const scenario *s, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++) {
        const op *first = s[i].thread[0], *second = s[i].thread[1];
        bool large = s[i].thread[2][0].what || first[1].what || second[1].what;
        explore(&s[i], "", 0, 0, !large ? 0 : long_run ? 5 : 3);
#if RATELIMIT_PRIV_ATOMIC64 /* else a bucket is torn: rule 6 */
        explore(&s[i], "killed", 1, 0, !large ? 0 : long_run ? 4 : 2);
        explore(&s[i], "late", 0, 1, !large ? 0 : long_run ? 4 : 3);
        if (long_run) {
            explore(&s[i], "late twice", 0, 2, large ? 3 : 5);
            explore(&s[i], "both", 1, 1, large ? 3 : 5);
        }
#endif
    }
}

#define EXPLORE(list) explore_all(list, sizeof(list) / sizeof((list)[0]))

/* ---- cases ----------------------------------------------------------------------------------- */

#define OP(what, key)                                                                              \
  {                                                                                                \
    what, key, 1, 0, 0, 0                                                                          \
  }
#define OP_N(what, key, n)                                                                         \
  {                                                                                                \
    what, key, n, 0, 0, 0                                                                          \
  }
#define OP_LIMIT(what, key, n, limit)                                                              \
  {                                                                                                \
    what, key, n, limit, 0, 0                                                                      \
  }
#define OP_AFTER(what, key, n, after)                                                              \
  {                                                                                                \
    what, key, n, 0, 0, after                                                                      \
  }
#define OP_ALL(key, key2)                                                                          \
  {                                                                                                \
    ALL, key, 1, 0, key2, 0                                                                        \
  }
#define OP_ALL_LIMIT(key, key2, limit)                                                             \
  {                                                                                                \
    ALL, key, 1, limit, key2, 0                                                                    \
  }
#define LATER (2 * SEC)

static void takes_of_a_known_key(void)
{
    static const scenario list[] = {
        {"take, take", EXACT, RATELIMIT_EVICT, {OP_N(TAKE, A, 3)}, {{OP(TAKE, A)}, {OP(TAKE, A)}}},
        {"take, take, take of two",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 2)},
         {{OP(TAKE, A)}, {OP(TAKE, A)}, {OP(TAKE, A)}}},
        {"take, take by the general way",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP(TAKE, A)}, {OP(TAKE_GENERAL, A)}}},
        {"take, take up to",
         EXACT,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP(TAKE, A)}, {OP_N(UP_TO, A, 4)}}},
        {"take, refund",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP_N(TAKE, A, 2)}, {OP(REFUND, A)}}},
        {"take, refund, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4)},
         {{OP(TAKE, A)}, {OP(REFUND, A)}, {OP(TAKE, A)}}},
        {"take, charge",
         EXACT | DEBT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP(TAKE, A)}, {OP_N(CHARGE, A, 2)}}},
        {"take, reserve",
         EXACT | DEBT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP(TAKE, A)}, {OP_N(RESERVE, A, 2)}}},
        {"take, peek",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP(TAKE, A), OP(TAKE, A)}, {OP(PEEK, A), OP(PEEK, A)}}},
        {"with a fraction: take, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP_LIMIT(TAKE, A, 3, 3)},
         {{OP_LIMIT(TAKE, A, 1, 3)}, {OP_LIMIT(TAKE, A, 1, 3)}}},
        {"with a fraction: take, refund",
         EXACT,
         RATELIMIT_EVICT,
         {OP_LIMIT(TAKE, A, 3, 3)},
         {{OP_LIMIT(TAKE, A, 2, 3)}, {OP_LIMIT(REFUND, A, 1, 3)}}},
        {"take, take later",
         0,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4)},
         {{OP_AFTER(TAKE, A, 1, SEC)}, {OP_AFTER(TAKE, A, 2, LATER)}, {OP(TAKE, A)}}},
    };
    EXPLORE(list);
}

static void limits_that_change(void)
{
    static const scenario list[] = {
        {"take, take under a slower limit",
         0,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 2)},
         {{OP(TAKE, A)}, {OP_LIMIT(TAKE, A, 1, 1)}}},
        {"take, take under a faster limit",
         0,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 2)},
         {{OP(TAKE, A)}, {OP_LIMIT(TAKE, A, 1, 2)}}},
        {"takes under three limits",
         0,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 2)},
         {{OP(TAKE, A)}, {OP_LIMIT(TAKE, A, 1, 1)}, {OP_LIMIT(TAKE, A, 1, 2)}}},
        {"take, a slower limit is refused",
         0,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, A, 2)}, {OP_LIMIT(TAKE, A, 4, 1)}}},
        {"a faster limit, refund",
         0,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP_LIMIT(TAKE, A, 1, 2)}, {OP(REFUND, A)}}},
    };
    EXPLORE(list);
}

static void keys_that_are_new(void)
{
    static const scenario list[] = {
        {"new, the same new",
         EXACT,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3)}, {OP_N(TAKE, B, 3)}}},
        {"new, the same new twice",
         EXACT,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 2)}, {OP_N(TAKE, B, 2)}, {OP_N(TAKE, B, 2)}}},
        {"new, another new in the same line",
         EXACT,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3)}, {OP_N(TAKE, C, 3)}}},
        {"two places: new, another new",
         EXACT | PAIR | FORGETS, /* a killed one leaves no room for all three */
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4)},
         {{OP_N(TAKE, B, 3)}, {OP_N(TAKE, C, 3)}}},
        {"two programs of new and take",
         EXACT,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3), OP(TAKE, A)}, {OP(TAKE, A), OP_N(TAKE, B, 3)}}},
        {"new, another new, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP_N(TAKE, B, 3)}, {OP_N(TAKE, C, 3)}, {OP(TAKE, A)}}},
        {"new, a refusal in the same line",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4)},
         {{OP_N(TAKE, B, 3)}, {OP(TAKE, A)}}},
        {"a place that is full again: new, take",
         0,
         RATELIMIT_REFUSE,
         {OP(TAKE, A)},
         {{OP_AFTER(TAKE, B, 3, LATER)}, {OP_AFTER(TAKE, A, 3, LATER)}}},
        {"new, the same new later: another place",
         CROWD | FORGETS, /* the law grows with time; two places would be seen */
         RATELIMIT_REFUSE,
         {OP_N(TAKE, A, 2), OP_N(OCCUPY, A, 4), OP_N(OCCUPY, A, 4), OP_N(TAKE, C, 1)},
         {{OP_AFTER(TAKE, B, 3, SEC)}, {OP_AFTER(TAKE, B, 3, LATER)}}},
    };
    EXPLORE(list);
}

static void a_block_that_is_full(void)
{
    static const scenario list[] = {
        {"refuse, one place: new, another new",
         FULL | ROOM,
         RATELIMIT_REFUSE,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3)}, {OP_N(TAKE, C, 3)}}},
        {"refuse, one place: new, same new, other",
         FULL | ROOM,
         RATELIMIT_REFUSE,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3)}, {OP_N(TAKE, B, 3)}, {OP_N(TAKE, C, 3)}}},
        {"evict: new, take of its victim",
         FORGETS | CROWD,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3)}, {OP(TAKE, A)}}},
        {"evict: new, same new",
         FORGETS | CROWD,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3)}, {OP_N(TAKE, B, 3)}}},
        {"evict last seen: new, take",
         FORGETS | CROWD,
         RATELIMIT_EVICT_LAST_SEEN,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 3)}, {OP(TAKE, A)}}},
        {"inherit: new, take of its victim",
         FULL | CROWD,
         RATELIMIT_INHERIT,
         {OP(TAKE, A)},
         {{OP(TAKE, B)}, {OP(TAKE, A)}}},
        {"inherit: new, same new",
         FULL | CROWD,
         RATELIMIT_INHERIT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 2)}, {OP_N(TAKE, B, 2)}}},
        {"inherit: new, another new",
         FULL | CROWD,
         RATELIMIT_INHERIT,
         {OP(TAKE, A)},
         {{OP_N(TAKE, B, 2)}, {OP_N(TAKE, C, 2)}}},
        {"inherit: new, another new, victim",
         FULL | CROWD,
         RATELIMIT_INHERIT,
         {OP(TAKE, A)},
         {{OP(TAKE, B)}, {OP_N(TAKE, C, 2)}, {OP(TAKE, A)}}},
    };
    EXPLORE(list);
}

static void blocks_and_resets(void)
{
    static const scenario list[] = {
        {"block, take", EXACT, RATELIMIT_EVICT, {OP(TAKE, A)}, {{OP(BLOCK, A)}, {OP(TAKE, A)}}},
        {"block, take, refund",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 2)},
         {{OP(BLOCK, A)}, {OP(TAKE, A)}, {OP(REFUND, A)}}},
        {"block of a new key, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP(BLOCK, B)}, {OP(TAKE, B)}}},
        {"block, slower limit",
         0,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP(BLOCK, A)}, {OP_LIMIT(TAKE, A, 1, 1)}}},
        {"block, reset", EXACT, RATELIMIT_EVICT, {OP(TAKE, A)}, {{OP(BLOCK, A)}, {OP(RESET, A)}}},
        {"reset, take",
         0,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP(RESET, A)}, {OP(TAKE, A), OP(TAKE, A)}}},
        {"reset, take, new",
         0,
         RATELIMIT_REFUSE,
         {OP_N(TAKE, A, 3)},
         {{OP(RESET, A)}, {OP(TAKE, A)}, {OP_N(TAKE, B, 3)}}},
    };
    EXPLORE(list);
}

static void sweeps(void)
{
    static const scenario list[] = {
        {"sweep, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP(SWEEP, A)}, {OP_N(TAKE, A, 1)}}},
        {"sweep of what is full, take",
         LOSES,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_AFTER(SWEEP, A, 1, LATER)}, {OP_AFTER(TAKE, A, 3, LATER)}}},
        {"sweep of what is full, take, take",
         LOSES,
         RATELIMIT_EVICT,
         {OP(TAKE, A)},
         {{OP_AFTER(SWEEP, A, 1, LATER)},
          {OP_AFTER(TAKE, A, 3, LATER)},
          {OP_AFTER(TAKE, A, 3, LATER)}}},
        {"sweep of what is full, new, take",
         LOSES,
         RATELIMIT_REFUSE,
         {OP(TAKE, A)},
         {{OP_AFTER(SWEEP, A, 1, LATER)},
          {OP_AFTER(TAKE, B, 3, LATER)},
          {OP_AFTER(TAKE, A, 3, LATER)}}},
#if RATELIMIT_PRIV_QUICK /* else no time of a forgotten key is kept: rule 6 */
        {"sweep of what is full, late take",
         EXACT | LOSES,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4)},
         {{OP_AFTER(SWEEP, A, 1, 4 * SEC)}, {OP_AFTER(TAKE, A, 3, 5 * SEC / 2)}}},
        {"sweep of what is full, late takes",
         LOSES,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4)},
         {{OP_AFTER(SWEEP, A, 1, 4 * SEC)},
          {OP_AFTER(TAKE, A, 3, 5 * SEC / 2)},
          {OP_AFTER(TAKE_GENERAL, A, 2, 3 * SEC)}}},
#endif
        {"sweep of what is idle, take",
         FORGETS,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4)},
         {{OP_AFTER(SWEEP_IDLE, A, 1, LATER)}, {OP_AFTER(TAKE, A, 1, LATER)}}},
        {"two sweeps, take",
         LOSES,
         RATELIMIT_EVICT,
         {OP(TAKE, A), OP(TAKE, B)},
         {{OP_AFTER(SWEEP, A, 1, LATER)},
          {OP_AFTER(SWEEP, A, 1, LATER)},
          {OP_AFTER(TAKE, A, 3, LATER)}}},
    };
    EXPLORE(list);
}

static void all_or_none(void)
{
    static const scenario list[] = {
        {"all of A B, take A",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3), OP_N(TAKE, B, 3)},
         {{OP_ALL(A, B)}, {OP(TAKE, A)}}},
        {"all of A B, all of B A",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3), OP_N(TAKE, B, 3)},
         {{OP_ALL(A, B)}, {OP_ALL(B, A)}}},
        {"all of A B, take A, take B",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3), OP_N(TAKE, B, 3)},
         {{OP_ALL(A, B)}, {OP(TAKE, A)}, {OP(TAKE, B)}}},
        {"all of A B, refund of A",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 4), OP_N(TAKE, B, 3)},
         {{OP_ALL(A, B)}, {OP(REFUND, A)}}},
        {"all of a known and a new key, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP_ALL(A, B)}, {OP_N(TAKE, B, 4)}}},
        {"all of two new keys, new",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3)},
         {{OP_ALL(B, C)}, {OP_N(TAKE, C, 4)}}},
        {"all under a faster limit, take",
         0,
         RATELIMIT_EVICT,
         {OP_N(TAKE, A, 3), OP_N(TAKE, B, 3)},
         {{OP_ALL_LIMIT(A, B, 2)}, {OP(TAKE, B)}}},
        {"all of a new key, the same new later",
         CROWD | FORGETS, /* the law grows with time; two places would be seen */
         RATELIMIT_REFUSE,
         {OP_N(TAKE, A, 2), OP_N(OCCUPY, A, 4), OP_N(OCCUPY, A, 4), OP_N(TAKE, C, 1)},
         {{{ALL, B, 1, 0, B, SEC}}, {OP_AFTER(TAKE, B, 3, LATER)}}},
        {"inherit: all of two new keys, victim",
         FULL | CROWD,
         RATELIMIT_INHERIT,
         {OP(TAKE, A)},
         {{OP_ALL(B, C)}, {OP(TAKE, A)}}},
    };
    EXPLORE(list);
}

static void permits_of_a_key(void)
{
    static const scenario list[] = {
        {"acquire, acquire of one",
         EXACT,
         RATELIMIT_EVICT,
         {OP(END, A)},
         {{OP_N(ACQUIRE, A, 1)}, {OP_N(ACQUIRE, A, 1)}}},
        {"three acquire two",
         EXACT,
         RATELIMIT_EVICT,
         {OP(END, A)},
         {{OP_N(ACQUIRE, A, 2)}, {OP_N(ACQUIRE, A, 2)}, {OP_N(ACQUIRE, A, 2)}}},
        {"acquire and release, acquire",
         EXACT,
         RATELIMIT_EVICT,
         {OP(END, A)},
         {{OP_N(ACQUIRE, A, 1), OP(RELEASE, A)}, {OP_N(ACQUIRE, A, 1)}}},
        {"one permit is released twice, acquire",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(ACQUIRE, A, 1)},
         {{OP(RELEASE, A)}, {OP(RELEASE, A)}, {OP_N(ACQUIRE, A, 1)}}},
        {"expired: late release, acquire",
         0,
         RATELIMIT_EVICT,
         {OP_N(ACQUIRE, A, 1)},
         {{OP_AFTER(RELEASE, A, 1, TTL - 1)}, {OP_AFTER(ACQUIRE, A, 1, TTL + 1)}}},
        {"expired: two acquire",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(ACQUIRE, A, 1)},
         {{OP_AFTER(ACQUIRE, A, 1, TTL + 1)}, {OP_AFTER(ACQUIRE, A, 1, TTL + 1)}}},
        {"acquire, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP(END, A)},
         {{OP_N(ACQUIRE, A, 1)}, {OP(TAKE, B)}}},
        {"acquire where one place is left",
         0 | ROOM,
         RATELIMIT_REFUSE,
         {OP(TAKE, B)},
         {{OP_N(ACQUIRE, A, 2)}, {OP_N(ACQUIRE, A, 2)}}},
    };
    EXPLORE(list);
}

#if defined(RATELIMIT_PRIV_SHARED)
static void a_shared_bucket(void)
{
    static const scenario list[] = {
        {"shared: take, take, take of two",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(SHARED, A, 2)},
         {{OP(SHARED, A)}, {OP(SHARED, A)}, {OP(SHARED, A)}}},
        {"shared: the first takes",
         EXACT,
         RATELIMIT_EVICT,
         {OP(END, A)},
         {{OP_N(SHARED, A, 2)}, {OP_N(SHARED, A, 2)}, {OP_N(SHARED, A, 2)}}},
        {"shared: take, general take",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(SHARED, A, 3)},
         {{OP(SHARED, A)}, {OP(SHARED_GENERAL, A)}}},
        {"shared: take, refund",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(SHARED, A, 3)},
         {{OP_N(SHARED, A, 2)}, {OP(SHARED_REFUND, A)}}},
        {"shared: take, refund, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP_N(SHARED, A, 4)},
         {{OP(SHARED, A)}, {OP(SHARED_REFUND, A)}, {OP(SHARED, A)}}},
        {"shared: with a fraction",
         EXACT,
         RATELIMIT_EVICT,
         {OP_LIMIT(SHARED, A, 3, 3)},
         {{OP_LIMIT(SHARED, A, 1, 3)}, {OP_LIMIT(SHARED, A, 1, 3)}}},
        {"shared: take, slower limit",
         0,
         RATELIMIT_EVICT,
         {OP_N(SHARED, A, 2)},
         {{OP(SHARED, A)}, {OP_LIMIT(SHARED, A, 1, 1)}}},
        {"shared: take, faster limit",
         0,
         RATELIMIT_EVICT,
         {OP_N(SHARED, A, 2)},
         {{OP(SHARED, A)}, {OP_LIMIT(SHARED, A, 1, 2)}}},
        {"shared: block, take",
         EXACT,
         RATELIMIT_EVICT,
         {OP(SHARED, A)},
         {{OP(SHARED_BLOCK, A)}, {OP(SHARED, A)}}},
        {"shared: reset, take, take",
         0,
         RATELIMIT_EVICT,
         {OP_N(SHARED, A, 3)},
         {{OP(SHARED_RESET, A)}, {OP(SHARED, A)}, {OP(SHARED, A)}}},
    };
    EXPLORE(list);
}
#endif

/* ---- rules that are replaced while they are read -----------------------------------------------

   What a reader finds is a rule of one text, as a whole; also if a loader is killed. A loader that
   was stopped while it stored a rule, and whose lock was taken over, may overwrite that rule of the
   other load, as the header says: how many ends that has is printed. */

enum { TEXTS = 4, MOST_LOADS = 2 };

static const char *const texts[TEXTS] = {"a 1/s burst 2\n", "a 7/m burst 100 shadow\n",
                                         "a 1000/h burst 30000\n", "b 3/s\na 2/d closed\n"};

typedef struct rules_case {
    const char *name;
    unsigned load[3][MOST_LOADS]; /* what each thread loads; none: it reads */
} rules_case;

static const rules_case *rules_now;
static ratelimit_rule wanted_rule[TEXTS], found_rule[MOST_THREADS];
static bool was_found[MOST_THREADS];
static ratelimit_status loaded[MOST_THREADS];
static uint64_t torn;

static void rules_body(unsigned id)
{
    unsigned i;
    const unsigned *load = rules_now->load[id];
    loaded[id] = RATELIMIT_OK;
    for (i = 0; i < MOST_LOADS && load[i]; i++) {
        ratelimit_status status =
            ratelimit_rules_load(rules, texts[load[i]], strlen(texts[load[i]]), NULL);
        loaded[id] = status == RATELIMIT_OK ? loaded[id] : status;
    }
    if (!load[0])
        was_found[id] = ratelimit_rules_find(rules, "a", &found_rule[id]);
}

static bool is_whole(const ratelimit_rule *r)
{
    unsigned i;
    for (i = 0; i < TEXTS; i++)
        if (memcmp(&r->limit, &wanted_rule[i].limit, sizeof r->limit) == 0 &&
            strcmp(r->name, "a") == 0 && r->shadow == wanted_rule[i].shadow &&
            r->closed == wanted_rule[i].closed)
            return true;
    return false;
}

static void rules_end(void)
{
    ratelimit_rule last;
    unsigned i;
    for (i = 0; i < search.threads; i++) {
        search_run(i, false);
        if (search.thread[i].dead)
            continue;
        if (!rules_now->load[i][0] && (!was_found[i] || !is_whole(&found_rule[i])))
            torn++;
        CHECK(loaded[i] == RATELIMIT_OK || search.stolen);
    }
    keep();
    if (!ratelimit_rules_find(rules, "a", &last) || !is_whole(&last))
        torn++;
    put_back();
}

static void explore_rules(const rules_case *c, const char *how, unsigned kills, unsigned steals,
                          unsigned bound)
{
    unsigned threads = c->name[0] == '2' ? 2 : 3;
    double orders;
    rules_now = c;
    torn = 0;
    search.end = rules_end;
    orders = search_all(threads, rules_body, kills, steals, bound);
    all_orders += orders;
    all_states += search.states;
    all_ends += search.ends;
    CHECK_U64(steals ? 0 : torn, 0);
    CHECK(steals || search.stuck == 0 || kills);
    printf("%-41s %-10s %c%8" PRIu64 " states %9.3g orders %7" PRIu64 " ends, %" PRIu64 " torn\n",
           c->name + 2, how, bound ? '<' : ' ', search.states, orders, search.ends, torn);
}

static void rules_that_are_replaced(void)
{
    static const rules_case list[] = {{"2 rules: load, find", {{1, 0}, {0, 0}, {0, 0}}},
                                      {"2 rules: two loads, find", {{1, 2}, {0, 0}, {0, 0}}},
                                      {"2 rules: load, load", {{1, 0}, {2, 0}, {0, 0}}},
                                      {"3 rules: load, load, find", {{1, 0}, {3, 0}, {0, 0}}}};
    unsigned i;
    memset(&arena, 0, sizeof arena);
    CHECK(ratelimit_rules_init(&rules, arena.byte + RULES_AT, RATELIMIT_RULES_BYTES(2), 2) ==
          RATELIMIT_OK);
    for (i = TEXTS; i--;) { /* the first one stays */
        CHECK(ratelimit_rules_load(rules, texts[i], strlen(texts[i]), NULL) == RATELIMIT_OK);
        CHECK(ratelimit_rules_find(rules, "a", &wanted_rule[i]));
    }
    for (i = 0; i < sizeof list / sizeof list[0]; i++) {
        const unsigned bound = long_run ? 4 : 2;
        explore_rules(&list[i], "", 0, 0, i ? bound : 0);
        if (i < 2 || long_run)
            explore_rules(&list[i], "killed", 1, 0, bound);
        if (i % 2 == 0 || long_run)
            explore_rules(&list[i], "late", 0, 1, bound);
    }
    rules = NULL;
}

int main(int argc, char **argv)
{
    const char *length = getenv("INTERLEAVINGS");
    unsigned i;
    check_begin(argc, argv);
    long_run = length && strcmp(length, "long") == 0;
    limits[0] = ratelimit_limit_make(1, SEC, BURST);
    limits[1] = ratelimit_limit_make(1, 2 * SEC, BURST); /* slower */
    limits[2] = ratelimit_limit_make(5, SEC, BURST);     /* faster */
    limits[3] = ratelimit_limit_make(3, SEC, BURST);     /* with a fraction */
    for (i = 0; i < 4; i++)
        limits[i].scope = 1;
    RUN(takes_of_a_known_key);
    RUN(limits_that_change);
    RUN(keys_that_are_new);
    RUN(a_block_that_is_full);
    RUN(blocks_and_resets);
    RUN(sweeps);
    RUN(all_or_none);
    RUN(permits_of_a_key);
    RUN(rules_that_are_replaced);
#if defined(RATELIMIT_PRIV_SHARED)
    RUN(a_shared_bucket);
#endif
    printf("%.4g orders, %" PRIu64 " states, %" PRIu64 " ends\n", all_orders, all_states, all_ends);
    return check_end();
}

/* use.h - calls every layer of ratelimit.h once and compares with known answers: what "it works
 * here" means where only building is in question. In C99 and C++11; no clock and no libc but mem*
 * and stdio are needed. use_all() returns how many answers were wrong. Include ratelimit.h first,
 * in whatever way is being tried. */
#ifndef USE_H
#define USE_H

#include <stdio.h>
#include <string.h>

static int use_faults;

#define USE(what) ((what) ? (void)0 : use_fault(__LINE__, #what))

/* How long the text is that a macro becomes. */
#define USE_EXPANDED(...)      USE_EXPANDED_TEXT(__VA_ARGS__)
#define USE_EXPANDED_TEXT(...) #__VA_ARGS__

static inline void use_fault(int line, const char *what)
{
    use_faults++;
    printf("use.h:%d: not true: %s\n", line, what);
}

static const ratelimit_limit use_seven = RATELIMIT_LIMIT(7, RATELIMIT_SECOND, 7);
static const ratelimit_limit use_ten = RATELIMIT_LIMIT(10, RATELIMIT_SECOND, 10);
static const ratelimit_limit use_minute = RATELIMIT_WINDOW(100, RATELIMIT_MINUTE);
static const ratelimit_limit use_unlimited = RATELIMIT_UNLIMITED;
static const ratelimit_limit use_scoped = RATELIMIT_LIMIT_SCOPE(10, RATELIMIT_SECOND, 10, 77);
static unsigned char use_memory[RATELIMIT_TABLE_BYTES(100)];
static unsigned char use_record[RATELIMIT_RECORD_BYTES];
static int use_recorded;
static uint64_t use_now_ns, use_slept_ns;

static inline uint64_t use_clock(void *self)
{
    (void)self;
    return use_now_ns;
}

static inline bool use_sleep(void *self, uint64_t ns)
{
    (void)self;
    use_slept_ns += ns;
    use_now_ns += ns;
    return true;
}

static inline ratelimit_request use_request(const char *key, const ratelimit_limit *limit,
                                            ratelimit_op op, uint64_t n)
{
    ratelimit_request q;
    memset(&q, 0, sizeof q);
    q.key = key;
    q.key_len = strlen(key);
    q.limit = limit;
    q.op = op;
    q.n = n;
    return q;
}

static inline void use_limits(void)
{
    char text[80];
    ratelimit_limit made = ratelimit_limit_make(7, RATELIMIT_SECOND, 7), parsed = made;
    size_t fault_at = 99;
    USE(ratelimit_limit_check(&use_seven) == RATELIMIT_OK);
    USE(ratelimit_limit_check(&use_minute) == RATELIMIT_OK);
    USE(ratelimit_limit_check(&use_unlimited) == RATELIMIT_OK);
    USE(memcmp(&made, &use_seven, sizeof made) == 0 && made.interval_ns == 142857142);
    made = ratelimit_window_make(0, RATELIMIT_SECOND);
    USE(ratelimit_limit_check(&made) == RATELIMIT_BAD_LIMIT);
    USE(ratelimit_limit_parse(&parsed, "0.5/m burst 3") == RATELIMIT_OK);
    USE(parsed.tokens == 1 && parsed.per_ns == 2 * RATELIMIT_MINUTE && parsed.burst == 3);
    USE(ratelimit_limit_parse_n(&parsed, "10/x", 4, &fault_at) == RATELIMIT_SYNTAX);
    USE(fault_at == 3);
    USE(ratelimit_limit_format(&use_minute, text, sizeof text) == 12);
    USE(strcmp(text, "100/m window") == 0);
    USE(use_ten.scope != use_seven.scope && use_scoped.scope == 77);
    USE(ratelimit_scope("a", 1) == UINT32_C(0xe40c292c));
}

#if defined(__GNUC__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Woverlength-strings"
#endif
static inline void use_macros(void)
{
    uint64_t tokens = 7;
    ratelimit_limit limit = RATELIMIT_LIMIT(tokens, RATELIMIT_SECOND, tokens);
    USE(memcmp(&limit, &use_seven, sizeof limit) == 0); /* also with values known at run time */
    USE(sizeof USE_EXPANDED(RATELIMIT_LIMIT(7, RATELIMIT_SECOND, 7)) < 16384);
    USE(sizeof USE_EXPANDED(RATELIMIT_WINDOW(7, RATELIMIT_SECOND)) < 16384);
    USE(sizeof USE_EXPANDED(RATELIMIT_LIMIT_SCOPE(7, RATELIMIT_SECOND, 7, 1)) < 16384);
}
#if defined(__GNUC__)
#  pragma GCC diagnostic pop
#endif

static inline void use_ticks(void)
{
    static const ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(100, 2);
    ratelimit_tick_clock clock = {0, 0, 0};
    uint32_t full = 0;
    USE(ratelimit_tick_take(&full, &limit, 5) && ratelimit_tick_take(&full, &limit, 5));
    USE(!ratelimit_tick_take(&full, &limit, 104) && ratelimit_tick_take(&full, &limit, 105));
    USE(ratelimit_tick_clock_ns(&clock, 65536 + 32768, 24, 32768) == 3 * RATELIMIT_SECOND);
    USE(ratelimit_tick_clock_ns(&clock, 1, 0, 32768) == RATELIMIT_FOREVER);
}

static inline void use_bucket(void)
{
    ratelimit_bucket b;
    ratelimit_result res;
    ratelimit_request peek = use_request("-", &use_seven, RATELIMIT_PEEK, 1), huge;
    int i;
    memset(&b, 0, sizeof b);
    for (i = 0; i < 7; i++)
        USE(ratelimit_bucket_take(&b, &use_seven, 1, 5, &res));
    USE(res.burst == 7 && res.remaining == 0 && res.reset_after_ns == RATELIMIT_SECOND);
    USE(!ratelimit_bucket_take(&b, &use_seven, 1, 5, &res));
    USE(res.status == RATELIMIT_DENIED && res.retry_after_ns == 142857143);
    USE(ratelimit_bucket_decide(&b, &peek, 5 + 142857143, &res) && res.remaining == 1);
#if !defined(RATELIMIT_FIXED_LIMITS)
    {
        const ratelimit_bucket before = b;
        peek.limit = &use_ten; /* another limit: peek reports the change, and stores nothing */
        USE(ratelimit_bucket_decide(&b, &peek, 5 + 142857143, &res) && res.remaining == 4);
        USE(memcmp(&before, &b, sizeof b) == 0);
    }
#endif
    huge = use_request("-", &use_seven, RATELIMIT_CHARGE, UINT64_C(129127208516));
    USE(!ratelimit_bucket_decide(&b, &huge, 5, &res)); /* as ns this is 2^64 and a little */
    USE(res.status == RATELIMIT_NEVER);
    USE(!ratelimit_bucket_take(&b, &use_seven, 1, 5 + 142857142, NULL));
    USE(ratelimit_bucket_take(&b, &use_seven, 1, 5 + 142857143, NULL));
}

/* Declared where it is safe, and nowhere else. */
static inline void use_shared(void)
{
#if defined(RATELIMIT_PRIV_SHARED)
    ratelimit_bucket b;
    ratelimit_request peek = use_request("-", &use_seven, RATELIMIT_PEEK, 1);
    int i;
    memset(&b, 0, sizeof b);
    for (i = 0; i < 7; i++)
        USE(ratelimit_bucket_take_shared(&b, &use_seven, 1, 5, NULL));
    USE(!ratelimit_bucket_decide_shared(&b, &peek, 5 + 142857142, NULL));
    USE(ratelimit_bucket_decide_shared(&b, &peek, 5 + 142857143, NULL));
#endif
}

static inline void use_table(void)
{
    ratelimit_table *t = NULL, *again = NULL;
    ratelimit_table_options options;
    ratelimit_table_counts counts;
    ratelimit_request q[2] = {RATELIMIT_REQUEST("b", 1, &use_seven, 1),
                              RATELIMIT_REQUEST("a", 1, &use_seven, 1)};
    ratelimit_result res[2];
    ratelimit_permit permit = {0, 0, 0}, none;
    bool allowed[2];
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    options.seed[1] = 2;
    options.hash = RATELIMIT_HASH_FAST;
    USE(ratelimit_table_bytes(100) == sizeof use_memory);
    USE(ratelimit_table_init(&t, use_memory, sizeof use_memory, &options) == RATELIMIT_OK);
    USE(ratelimit_table_take(t, "a", 1, &use_seven, 7, 0, &res[0]));
    USE(!ratelimit_table_take(t, "a", 1, &use_seven, 1, 0, NULL));
    USE(!ratelimit_table_take_hash(t, ratelimit_table_hash(t, "a", 1), &use_seven, 1, 0, NULL));
    USE(ratelimit_table_attach(&again, use_memory, sizeof use_memory) == RATELIMIT_OK);
    USE(!ratelimit_table_decide(again, q, res, 2, RATELIMIT_ALL, 0));
    USE(res[0].status == RATELIMIT_SKIPPED && res[1].status == RATELIMIT_DENIED);
    USE(ratelimit_table_take_batch(again, q, allowed, 2, 0) == 1 && allowed[0] && !allowed[1]);
    USE(ratelimit_table_decide(again, q, res, 2, RATELIMIT_EACH, RATELIMIT_SECOND));
    USE(ratelimit_table_take(t, "a", 1, &use_ten, 10, RATELIMIT_SECOND, NULL)); /* another bucket */
    USE(ratelimit_table_acquire(t, "a", 1, 1, RATELIMIT_SECOND, RATELIMIT_SECOND, &permit));
    USE(!ratelimit_table_acquire(t, "a", 1, 1, RATELIMIT_SECOND, RATELIMIT_SECOND, &none));
    ratelimit_table_stats(t, RATELIMIT_SECOND, &counts);
    USE(counts.keys == 4 && counts.in_debt == 3);
    USE(ratelimit_table_release(t, "a", 1, &permit, RATELIMIT_SECOND) == RATELIMIT_OK);
    USE(ratelimit_table_sweep(t, 2 * RATELIMIT_SECOND, 0) >= 3);
}

static inline int use_load(void *self, const void *key, size_t key_len, unsigned char *record)
{
    (void)self, (void)key, (void)key_len;
    if (use_recorded)
        memcpy(record, use_record, sizeof use_record);
    return use_recorded;
}

static inline int use_swap(void *self, const void *key, size_t key_len, const unsigned char *old,
                           const unsigned char *record, uint64_t ttl_ns)
{
    (void)self, (void)key, (void)key_len, (void)ttl_ns;
    if (use_recorded != (old != NULL) || (old && memcmp(old, use_record, sizeof use_record) != 0))
        return 0;
    memcpy(use_record, record, sizeof use_record);
    use_recorded = 1;
    return 1;
}

static inline void use_cas(void)
{
    ratelimit_cas cas;
    ratelimit_store store;
    ratelimit_request q = use_request("k", &use_seven, RATELIMIT_TAKE, 4);
    ratelimit_result res;
    memset(&cas, 0, sizeof cas);
    cas.load = use_load;
    cas.swap = use_swap;
    cas.clock = use_clock;
    use_recorded = 0;
    use_now_ns = 0;
    store = ratelimit_cas_store(&cas);
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
    USE(res.allowed && res.remaining == 3);
    store.decide(&store, &q, &res, 1, RATELIMIT_EACH);
    USE(!res.allowed && res.retry_after_ns == 142857143);
    /* 571428571 3/7 ns in 8 little-endian bytes, whatever the machine */
    USE(use_record[0] == 0xdb && use_record[3] == 0x22 && memcmp(use_record + 16, "RL2", 4) == 0);
}

static inline void use_limiter(void)
{
    ratelimit_table_options options;
    ratelimit_limiter l;
    ratelimit_table *t = NULL;
    ratelimit_counts counts;
    ratelimit_request q[2];
    ratelimit_result res[2];
    memset(&l, 0, sizeof l);
    l.sleep = use_sleep;
    use_now_ns = use_slept_ns = 0;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    USE(ratelimit_table_init(&t, use_memory, sizeof use_memory, &options) == RATELIMIT_OK);
    USE(ratelimit_init(&l, ratelimit_table_store(t, use_clock, NULL)) == RATELIMIT_OK);
    USE(ratelimit_allow(&l, "a", &use_seven));
    USE(!ratelimit_allow_n(&l, "a", &use_seven, 7));
    USE(ratelimit_allow_n(&l, "a", &use_seven, 6));
    q[0] = use_request("a", &use_seven, RATELIMIT_TAKE, 1);
    q[1] = use_request("b", &use_minute, RATELIMIT_TAKE, 1);
    USE(!ratelimit_take(&l, q, res) && res[0].source == RATELIMIT_FROM_STORE);
    USE(!ratelimit_take_each(&l, q, res, 2) && res[1].remaining == 99);
    USE(!ratelimit_take_all(&l, q, res, 2));
    USE(ratelimit_wait(&l, q, RATELIMIT_SECOND, res) && use_slept_ns == 142857143);
    ratelimit_limiter_counts(&l, &counts);
    USE(counts.allowed == 4 && counts.refused == 5);
    ratelimit_cancel(&l);
    USE(!ratelimit_wait(&l, q, RATELIMIT_SECOND, res) && res[0].status == RATELIMIT_CANCELED);
    ratelimit_close(&l);
    USE(!ratelimit_allow(&l, "a", &use_seven));
}

static inline void use_platform(void)
{
#ifndef RATELIMIT_NO_CLOCK
    uint64_t first = ratelimit_clock_ns();
    USE(first > 0 && ratelimit_clock_ns() >= first);
#endif
#ifdef RATELIMIT_NO_TEXT
    USE(strcmp(ratelimit_status_text(RATELIMIT_OK), "") == 0);
#else
    USE(strcmp(ratelimit_status_text(RATELIMIT_OK), "ok") == 0);
#endif
    USE(RATELIMIT_VERSION >= 10000);
}

static inline int use_all(void)
{
    use_faults = 0;
    use_limits();
    use_macros();
    use_ticks();
    use_bucket();
    use_shared();
    use_table();
    use_cas();
    use_limiter();
    use_platform();
    return use_faults;
}

#endif

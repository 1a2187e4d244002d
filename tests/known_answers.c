/* known_answers.c - 100,000 decisions that come out the same on every machine.
 *
 * A fixed sequence of requests goes to buckets, tables of every policy, permits, rules, a database
 * and ticks; every field of every answer goes into one number, the digest, which is written down
 * below. Byte order, the width of int, the sign of char, the size of an enum and atomics must not
 * show in it. What is right is for vectors.c to say; this says that it is right everywhere.
 *
 * Needed are only mem*, strlen and putchar, so it also runs on a chip with 16 KB of RAM
 * (tests/portability/bare.c). Only answers count, not where a table keeps what.
 *
 *     ANSWERS  how many decisions, for a slow machine: 1,000 or 10,000
 *     TRACE    defined: the digest after each step, to find where two machines part
 */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#ifndef ANSWERS
#  define ANSWERS 100000
#endif

int putchar(int byte);

static const struct {
    uint32_t decisions;
    uint64_t digest;
} known[] = {{1000, UINT64_C(0x38038fea6b88bf09)},
             {10000, UINT64_C(0x3ccd2509fa4223ae)},
             {100000, UINT64_C(0x5faa90fc7cc30179)}};

enum { KNOWN = sizeof known / sizeof known[0], BUCKETS = 8, TABLES = 4, BATCH = 4, RULES = 3 };

static const ratelimit_limit limits[] = {
    RATELIMIT_LIMIT(7, RATELIMIT_SECOND, 14),
    RATELIMIT_LIMIT(100, RATELIMIT_MINUTE, 20),
    RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 5000),
    RATELIMIT_LIMIT(3, 2 * RATELIMIT_DAY, 3),
    RATELIMIT_LIMIT(30000001, RATELIMIT_SECOND, 60000000), /* rounded to 2^-24 ns */
    RATELIMIT_LIMIT(1, UINT64_C(1) << 62, 1),
    RATELIMIT_LIMIT(INT64_MAX, UINT64_C(1) << 62, 5),
    RATELIMIT_LIMIT_SCOPE(5, RATELIMIT_SECOND, 5, 77), /* these change into each other */
    RATELIMIT_LIMIT_SCOPE(9, RATELIMIT_SECOND, 31, 77),
    RATELIMIT_WINDOW(10, RATELIMIT_SECOND),
    RATELIMIT_WINDOW(7, 3 * RATELIMIT_SECOND + 1),
    RATELIMIT_UNLIMITED};
enum { LIMITS = sizeof limits / sizeof limits[0] };

static uint64_t digest, random_state;
static uint64_t now_ns, steady_ns; /* the second never goes back */
static uint32_t decided;
static ratelimit_bucket buckets[BUCKETS];
static unsigned char table_memory[TABLES][RATELIMIT_TABLE_BYTES(12)];
static ratelimit_table *tables[TABLES];
static unsigned char rules_memory[RATELIMIT_RULES_BYTES(RULES)];
static ratelimit_limiter limiter;
static ratelimit_permit permits[BATCH];
static unsigned char record[RATELIMIT_RECORD_BYTES];
static bool recorded;
static ratelimit_cas cas;
static ratelimit_request requests[BATCH];
static ratelimit_result results[BATCH];
static unsigned char keys[BATCH][20];
static char text[RATELIMIT_HTTP_FIELDS_BYTES];

/* ---- numbers --------------------------------------------------------------------------------- */

static void fold(uint64_t value)
{
    digest = (digest ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    digest ^= digest >> 32;
}

static void fold_bytes(const void *from, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)from;
    size_t i;
    fold(bytes);
    for (i = 0; i < bytes; i++)
        fold(p[i]);
}

static void fold_result(const ratelimit_result *res)
{
    decided++;
    fold((uint64_t)res->allowed << 16 | (uint64_t)res->status << 8 | (uint64_t)res->source);
    fold(res->burst);
    fold(res->remaining);
    fold(res->taken);
    fold(res->retry_after_ns);
    fold(res->reset_after_ns);
    fold(res->wait_ns);
}

static void fold_limit(const ratelimit_limit *limit)
{
    fold(limit->tokens);
    fold(limit->per_ns);
    fold(limit->burst);
    fold(limit->quick);
    fold(limit->interval_ns);
    fold(limit->window_ns);
    fold(limit->state);
    fold(limit->inverse);
    fold((uint64_t)limit->interval_part << 32 | limit->parts);
    fold((uint64_t)limit->kind << 32 | limit->scope);
}

/* 0 to below - 1. */
static uint32_t any(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32) % below;
}

/* A number of up to so many bits, small ones as often as large ones. */
static uint64_t any_size(uint32_t bits)
{
    uint64_t high = any(UINT32_MAX), low = any(UINT32_MAX);
    return (high << 32 | low) >> (64 - 1 - any(bits));
}

static const ratelimit_limit *any_limit(void)
{
    return &limits[any(LIMITS)];
}

/* Which of its full buckets a table drops for a newcomer is not promised, and differs with -Os. It
 * shows where time goes back, so tables have a time that does not, and in what a sweep and
 * counts.evicted say. */
static void pass_time(void)
{
    uint64_t step = any_size(any(16) ? 28 : 38);
    if (any(64) == 0) {
        now_ns -= step;
    } else {
        now_ns += step;
        steady_ns += step;
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A key of 1 to 20 bytes of any value, one of 48. */
static void make_request(size_t i)
{
    static const ratelimit_op rare[] = {RATELIMIT_RESERVE, RATELIMIT_CHARGE,    RATELIMIT_REFUND,
                                        RATELIMIT_CANCEL,  RATELIMIT_BLOCK,     RATELIMIT_RESET,
                                        RATELIMIT_PEEK,    RATELIMIT_TAKE_UP_TO};
    ratelimit_request *q = &requests[i];
    uint32_t id = any(48), j;
    memset(q, 0, sizeof *q);
    for (j = 0; j < sizeof keys[i]; j++)
        keys[i][j] = (unsigned char)((id + 1) * 37 + j * 11);
    q->key = keys[i];
    q->key_len = 1 + (size_t)id % sizeof keys[i];
    q->limit = any_limit();
    q->op = any(3) ? RATELIMIT_TAKE : rare[any(8)];
    q->n = any(8)    ? 1 + any(4)
           : any(64) ? any((uint32_t)(q->limit->burst & 0xffff) + 3)
                     : any_size(64);
    q->max_wait_ns = any_size(any(32) ? 31 : 63);
}

static void ask_bucket(ratelimit_bucket *b)
{
    bool allowed;
    make_request(0);
#if defined(RATELIMIT_PRIV_SHARED) /* where there are none a plain one must answer the same */
    if (b >= buckets + BUCKETS / 2)
        allowed = ratelimit_bucket_decide_shared(b, requests, now_ns, results);
    else
#endif
        allowed = ratelimit_bucket_decide(b, requests, now_ns, results);
    fold(allowed);
    fold_result(results);
}

static void take_from_bucket(ratelimit_bucket *b)
{
    make_request(0);
    fold(ratelimit_bucket_take(b, requests[0].limit, requests[0].n, now_ns, results));
    fold_result(results);
}

static void ask_table(ratelimit_table *t)
{
    make_request(0);
    fold(ratelimit_table_decide_one(t, requests, steady_ns, results));
    fold_result(results);
}

static void take_from_table(ratelimit_table *t)
{
    const ratelimit_request *q = requests;
    uint64_t hash;
    make_request(0);
    hash = ratelimit_table_hash(t, q->key, q->key_len);
    fold(hash);
    if (any(2))
        fold(ratelimit_table_take(t, q->key, q->key_len, q->limit, q->n, steady_ns, results));
    else
        fold(ratelimit_table_take_hash(t, hash, q->limit, q->n, steady_ns, results));
    fold_result(results);
}

static void ask_batch(ratelimit_table *t)
{
    size_t count = 1 + (size_t)any(BATCH), i;
    for (i = 0; i < count; i++)
        make_request(i);
    fold(ratelimit_table_decide(t, requests, results, count,
                                any(2) ? RATELIMIT_ALL : RATELIMIT_EACH, steady_ns));
    for (i = 0; i < count; i++)
        fold_result(&results[i]);
}

static void ask_permits(ratelimit_table *t)
{
    ratelimit_permit *permit = &permits[any(BATCH)];
    const char *key = &"pq"[any(2)];
    uint32_t most = 1 + any(4);
    uint64_t ttl_ns = 1 + any_size(33);
    decided++;
    if (any(2)) {
        fold(ratelimit_table_acquire(t, key, 1, most, ttl_ns, steady_ns, permit));
        fold(permit->expires_ns);
        fold(permit->serial);
    } else {
        fold((uint64_t)ratelimit_table_release(t, key, 1, permit, steady_ns));
    }
}

static void count_table(ratelimit_table *t)
{
    ratelimit_table_counts counts;
    (void)ratelimit_table_sweep(t, steady_ns, any(2) ? 0 : any_size(32));
    ratelimit_table_stats(t, steady_ns, &counts);
    fold(counts.capacity);
    fold(counts.keys);
    fold(counts.in_debt);
    fold(counts.refused);
}

/* ---- rules, texts, a database, ticks --------------------------------------------------------- */

static void load_rules(void)
{
    static const char *const texts[] = {
        "login 5/s burst 10\napi\xe9 100/m shadow # \xff\ndefault 3/s window closed\n",
        "api\xe9 0.7/3s burst 12\ndefault 250/h\nlogin|\xfc 2/s shadow",
        "default 1/s\nlogin 10/x\n"}; /* a fault */
    const char *rules = texts[any(3)];
    ratelimit_fault fault = {0, 0, NULL};
    fold((uint64_t)ratelimit_rules_load(limiter.rules, rules, strlen(rules), &fault));
    fold(fault.line);
    fold(fault.column);
}

static void ask_rules(void)
{
    static const char *const names[] = {"login", "api\xe9", "other", NULL};
    static const char *const who[] = {"\xfc", "alice", "bob|carol", "login|\xfc"};
    ratelimit_rule_request asked[2];
    ratelimit_rule found[2];
    size_t count = 1 + (size_t)any(2), i;
    memset(asked, 0, sizeof asked);
    for (i = 0; i < count; i++) {
        make_request(i);
        asked[i].request = requests[i];
        asked[i].request.key = who[any(4)];
        asked[i].request.key_len = strlen((const char *)asked[i].request.key);
        asked[i].rule = names[any(4)];
    }
    fold(ratelimit_take_rules(&limiter, asked, results, found, count));
    fold(ratelimit_binding(results, count));
    for (i = 0; i < count; i++) {
        fold_result(&results[i]);
        fold_limit(&found[i].limit);
        fold(found[i].allowed ^ found[i].refused << 20 ^ found[i].shadow_refused << 40);
    }
    fold_bytes(text, ratelimit_http_fields(results, &found[0].limit, RATELIMIT_HTTP_ALL, text,
                                           sizeof text));
}

static void make_limit(void)
{
    static ratelimit_bucket b;
    uint64_t tokens = any_size(40), per_ns = any_size(63);
    ratelimit_limit made = any(2) ? ratelimit_limit_make(tokens, per_ns, 1 + any_size(20))
                                  : ratelimit_window_make(tokens, per_ns),
                    read = made;
    fold_limit(&made);
    fold((uint64_t)ratelimit_limit_check(&made));
    fold_bytes(text, ratelimit_limit_format(&made, text, sizeof text));
    fold((uint64_t)ratelimit_limit_parse(&read, text));
    fold_limit(&read);
    fold(ratelimit_scope(text, 5));
    fold(ratelimit_bucket_take(&b, &made, 1 + any(3), now_ns,
                               results)); /* a changed limit each time */
    fold_result(results);
}

static void make_address_key(void)
{
    unsigned char address[16] = {0}, key[RATELIMIT_ADDRESS_KEY_BYTES] = {0};
    static const char *const addresses[] = {"192.0.2.255", "::ffff:203.0.113.9",
                                            "2001:db8:ff::fe80", "1.2.3"};
    const char *from = addresses[any(4)];
    unsigned bits4 = (unsigned)any(33), bits6 = (unsigned)any(129);
    size_t len = ratelimit_address_parse(from, strlen(from), address);
    fold(len);
    fold_bytes(key, ratelimit_address_key(address, len, bits4, bits6, key));
}

static int load_record(void *self, const void *key, size_t key_len, unsigned char *out)
{
    (void)self;
    fold_bytes(key, key_len);
    if (recorded)
        memcpy(out, record, sizeof record);
    return recorded;
}

static int swap_record(void *self, const void *key, size_t key_len, const unsigned char *old,
                       const unsigned char *in, uint64_t ttl_ns)
{
    (void)self, (void)key, (void)key_len, (void)old;
    fold(ttl_ns);
    fold_bytes(in, sizeof record);
    memcpy(record, in, sizeof record);
    recorded = ttl_ns != 0;
    return 1;
}

static void ask_database(void)
{
    const ratelimit_store store = ratelimit_cas_store(&cas);
    make_request(0);
    store.decide(&store, requests, results, 1, RATELIMIT_EACH);
    fold_result(results);
}

static void take_ticks(void)
{
    static const ratelimit_tick_limit made[] = {RATELIMIT_TICK_LIMIT(1500, 4),
                                                RATELIMIT_TICK_LIMIT(100000, 700),
                                                RATELIMIT_TICK_LIMIT(1, 1)};
    static ratelimit_tick_clock clock;
    static uint32_t full[3], ticks;
    uint32_t i = any(3);
    ticks += (uint32_t)any_size(any(8) ? 12 : 20);
    decided++;
    fold(ratelimit_tick_take(&full[i], &made[i], ticks));
    fold(full[i]);
    fold(ratelimit_tick_clock_ns(&clock, ticks, 24, 32768));
}

static void log_line(void)
{
    static ratelimit_priv_log log;
    uint32_t missed = 0;
    decided++;
    fold(ratelimit_priv_log_pass(&log, &limits[0], now_ns, &missed));
    fold(missed);
}

/* ---- the sequence ---------------------------------------------------------------------------- */

static uint64_t clock_now(void *self)
{
    (void)self;
    return steady_ns;
}

static void begin(void)
{
    ratelimit_rules *rules = NULL;
    uint32_t i;
    for (i = 0; i < TABLES; i++) { /* one policy each, both hashes */
        ratelimit_table_options options;
        memset(&options, 0, sizeof options);
        options.seed[0] = UINT64_C(0x0123456789abcdef);
        options.seed[1] = i;
        options.when_full = (ratelimit_full)i;
        options.hash = i % 2 ? RATELIMIT_HASH_FAST : RATELIMIT_HASH_SIP;
        fold((uint64_t)ratelimit_table_init(&tables[i], table_memory[i], sizeof table_memory[i],
                                            &options));
    }
    fold((uint64_t)ratelimit_rules_init(&rules, rules_memory, sizeof rules_memory, RULES));
    fold((uint64_t)ratelimit_init(&limiter, ratelimit_table_store(tables[0], clock_now, NULL)));
    limiter.rules = rules;
    cas.load = load_record;
    cas.swap = swap_record;
    cas.clock = clock_now;
    now_ns = steady_ns = 0 - 60 * RATELIMIT_SECOND; /* it passes the end of 64 bits soon */
}

static void step(void)
{
    uint32_t kind = any(64);
    pass_time();
    if (kind < 16)
        ask_bucket(&buckets[any(BUCKETS)]);
    else if (kind < 22)
        take_from_bucket(&buckets[any(BUCKETS / 2)]);
    else if (kind < 34)
        ask_table(tables[any(TABLES)]);
    else if (kind < 42)
        take_from_table(tables[any(TABLES)]);
    else if (kind < 48)
        ask_batch(tables[any(TABLES)]);
    else if (kind < 52)
        ask_permits(tables[any(TABLES)]);
    else if (kind < 56)
        ask_rules();
    else if (kind < 58)
        take_ticks();
    else if (kind < 60)
        ask_database();
    else if (kind < 61)
        make_limit();
    else if (kind < 62)
        log_line();
    else if (kind < 63)
        count_table(tables[any(TABLES)]);
    else if (any(2))
        make_address_key();
    else
        load_rules();
}

/* ---- saying it ------------------------------------------------------------------------------- */

static void put(const char *what)
{
    while (*what)
        putchar(*what++);
}

static void put_number(uint32_t n)
{
    if (n >= 10)
        put_number(n / 10);
    putchar((int)('0' + n % 10));
}

static void put_digest(uint32_t decisions)
{
    int shift;
    put("after ");
    put_number(decisions);
    put(" decisions the digest is 0x");
    for (shift = 60; shift >= 0; shift -= 4)
        putchar("0123456789abcdef"[digest >> shift & 15]);
    put("\n");
}

int main(void)
{
    uint32_t passed = 0, failed = 0, i;
    begin();
    for (i = 0; i < KNOWN && known[i].decisions <= ANSWERS; i++) {
        while (decided < known[i].decisions) {
            step();
#ifdef TRACE
            put_digest(decided);
#endif
        }
        if (digest == known[i].digest) {
            passed++;
        } else {
            failed++;
            put("FAILED: ");
            put_digest(known[i].decisions);
        }
    }
    put_number(passed);
    put(" passed, ");
    put_number(failed);
    put(" failed\n");
    return failed || !passed;
}

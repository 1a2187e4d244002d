/* options.c - what the options of ratelimit.h change, beyond what use.h sees. options.sh compiles
 * it with each of them, and with:
 *
 *     LOCKS   a lock that counts: each call of the header takes it once, and gives it back, and
 *             nothing takes it within another
 *     SLEEPS  RATELIMIT_SLEEP_MS, counted
 *
 * With RATELIMIT_NO_CLOCK and without SLEEPS there is nothing to sleep with, so no lock may be
 * taken over: all loads of a lock are counted, and after a million the lock is given back at last.
 */
#include <stdint.h>

#ifdef LOCKS
static void lock_hook(void);
static void unlock_hook(void);
#  define RATELIMIT_LOCK()   lock_hook()
#  define RATELIMIT_UNLOCK() unlock_hook()
#endif
#ifdef SLEEPS
static unsigned long sleeps;
#  define RATELIMIT_SLEEP_MS(ms) ((void)(sleeps += (ms)))
#endif
#if defined(RATELIMIT_NO_CLOCK) && !defined(SLEEPS) && !defined(RATELIMIT_NO_THREADS) &&           \
    !defined(LOCKS) && defined(__GNUC__)
#  define GIVES_BACK
static void loaded(const volatile void *p);
#  define __atomic_load_n(p, order) (loaded(p), __atomic_load_n(p, order))
#endif
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#undef __atomic_load_n
#include "use.h"

/* Without a clock no system is asked for a seed. */
static ratelimit_table *new_table(void *memory, size_t bytes)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
#ifdef RATELIMIT_NO_CLOCK
    USE(ratelimit_table_init(&t, memory, bytes, &options) == RATELIMIT_BAD_ARGUMENT && !t);
    options.seed[0] = 1;
#endif
    USE(ratelimit_table_init(&t, memory, bytes, &options) == RATELIMIT_OK);
    return t;
}

static const ratelimit_limit one_a_second = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 1);

#ifdef LOCKS
static unsigned locks_depth, locks_taken;

static void lock_hook(void)
{
    USE(locks_depth == 0);
    locks_depth++;
    locks_taken++;
}

static void unlock_hook(void)
{
    USE(locks_depth == 1);
    locks_depth--;
}

/* So many were taken since the last call, and none is held. */
static bool locks_used(unsigned times)
{
    bool used = locks_taken == times && locks_depth == 0;
    locks_taken = 0;
    return used;
}

/* One decision is one lock, whatever it does: of one key, of a batch, refused or not, of a key that
 * is not there. */
static void use_locks(void)
{
    enum { BATCH = RATELIMIT_MAX_ALL < 64 ? RATELIMIT_MAX_ALL : 64 };
    static unsigned char memory[RATELIMIT_TABLE_BYTES(200)];
    static char key[64][4];
    static const ratelimit_op ops[] = {RATELIMIT_TAKE,   RATELIMIT_TAKE_UP_TO, RATELIMIT_PEEK,
                                       RATELIMIT_CHARGE, RATELIMIT_REFUND,     RATELIMIT_BLOCK,
                                       RATELIMIT_RESET};
    ratelimit_table *t = NULL;
    ratelimit_table_counts counts;
    ratelimit_request q[64];
    ratelimit_result res[64];
    ratelimit_permit permit, none;
    ratelimit_bucket b;
    unsigned i;
    t = new_table(memory, sizeof memory);
    for (i = 0; i < 64; i++) {
        key[i][0] = "ABCDEFGH"[i % 8];
        key[i][1] = "abcdefgh"[i / 8];
        q[i] = use_request(key[i], &one_a_second, RATELIMIT_TAKE, 1);
    }
    locks_taken = 0;
    USE(ratelimit_table_take(t, "k", 1, &one_a_second, 1, 0, NULL) && locks_used(1));
    USE(!ratelimit_table_take(t, "k", 1, &one_a_second, 1, 0, NULL) && locks_used(1));
    USE(!ratelimit_table_take(t, "k", 1, &use_seven, 8, 0, NULL) && locks_used(1));
    USE(ratelimit_table_take_hash(t, 5, &one_a_second, 1, 0, NULL) && locks_used(1));
    USE(ratelimit_table_decide(t, q, res, BATCH, RATELIMIT_ALL, 0) && locks_used(1));
    USE(!ratelimit_table_decide(t, q, res, BATCH, RATELIMIT_ALL, 0) && locks_used(1));
    USE(ratelimit_table_decide(t, q, res, 64, RATELIMIT_EACH, RATELIMIT_SECOND) && locks_used(1));
    USE(ratelimit_table_take_batch(t, q, NULL, 64, RATELIMIT_SECOND) == 0 && locks_used(1));
    for (i = 0; i < sizeof ops / sizeof *ops; i++) {
        q[0].op = ops[i];
        q[0].max_wait_ns = 1;
        (void)ratelimit_table_decide_one(t, q, RATELIMIT_SECOND, res);
        USE(locks_used(1));
    }
    USE(ratelimit_table_acquire(t, "k", 1, 3, 1, 0, &permit) && locks_used(1));
    USE(!ratelimit_table_acquire(t, "k", 1, 1, 1, 0, &none) && locks_used(1));
    USE(ratelimit_table_release(t, "k", 1, &permit, 0) == RATELIMIT_OK && locks_used(1));
    USE(ratelimit_table_release(t, "k", 1, &permit, 0) == RATELIMIT_LOST && locks_used(1));
    ratelimit_table_stats(t, 0,
                          &counts); /* a lock for each place: nobody waits for a whole table */
    USE(locks_used(RATELIMIT_PRIV_CAST(unsigned, counts.capacity) + 1));
    USE(ratelimit_table_sweep(t, 9 * RATELIMIT_SECOND, 0) >= 60);
    USE(locks_used(RATELIMIT_PRIV_CAST(unsigned, counts.capacity)));
    ratelimit_table_stats(t, 0, &counts);
    USE(counts.keys == 0 && locks_depth == 0);
    locks_taken = 0;
    memset(&b, 0, sizeof b);
#  if !defined(RATELIMIT_NO_THREADS)
    USE(ratelimit_bucket_take_shared(&b, &one_a_second, 1, 0, NULL) && locks_used(1));
    USE(!ratelimit_bucket_take_shared(&b, &one_a_second, 1, 0, NULL) && locks_used(1));
    q[0].op = RATELIMIT_PEEK;
    USE(!ratelimit_bucket_decide_shared(&b, q, 0, NULL) && locks_used(1));
#  endif
}
#endif

static inline void use_longest_all(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100)];
    static ratelimit_request q[RATELIMIT_MAX_ALL + 1];
    static ratelimit_result res[RATELIMIT_MAX_ALL + 1];
    ratelimit_table *t = NULL;
    unsigned i;
    for (i = 0; i <= RATELIMIT_MAX_ALL; i++)
        q[i] = use_request("same", &use_unlimited, RATELIMIT_TAKE, 1);
    t = new_table(memory, sizeof memory);
    ratelimit_table_decide(t, q, res, RATELIMIT_MAX_ALL, RATELIMIT_ALL, 0);
    USE(res[0].allowed && res[RATELIMIT_MAX_ALL - 1].allowed);
    ratelimit_table_decide(t, q, res, RATELIMIT_MAX_ALL + 1, RATELIMIT_ALL, 0);
    USE(!res[0].allowed && res[0].status == RATELIMIT_BAD_ARGUMENT);
    USE(!res[RATELIMIT_MAX_ALL].allowed && res[RATELIMIT_MAX_ALL].status == RATELIMIT_BAD_ARGUMENT);
}

/* Spent at 100 s, asked at 98.5 s: forgiven only if the step is below 1.5 s. */
static inline void use_step(uint64_t retry_after_ns)
{
    ratelimit_bucket b;
    ratelimit_result res;
    memset(&b, 0, sizeof b);
    USE(ratelimit_bucket_take(&b, &one_a_second, 1, 100 * RATELIMIT_SECOND, NULL));
    USE(!ratelimit_bucket_take(&b, &one_a_second, 1, 98500 * RATELIMIT_MILLISECOND, &res));
    USE(res.retry_after_ns == retry_after_ns);
}

/* A tag of 0 marks an empty place, so the one key in four thousand million whose hash ends in 0
 * gets another tag: it is kept and counted like any key. */
static inline void use_tag_of_zero(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(10)];
    ratelimit_table *t = NULL;
    ratelimit_table_counts counts;
    ratelimit_limit limit = one_a_second;
    limit.scope = 0;
    t = new_table(memory, sizeof memory);
    USE(ratelimit_table_take_hash(t, UINT64_C(5) << 32, &limit, 1, 0, NULL));
    USE(!ratelimit_table_take_hash(t, UINT64_C(5) << 32, &limit, 1, 0, NULL));
    ratelimit_table_stats(t, 0, &counts);
    USE(counts.keys == 1);
}

#if RATELIMIT_PRIV_ATOMIC
#  ifdef GIVES_BACK
static uint32_t *dead_lock;
static unsigned long looks;

static void loaded(const volatile void *p)
{
    if (p == dead_lock && ++looks == 1000000) {
        USE((*dead_lock & 1) == 1); /* nobody took it meanwhile */
        ++*dead_lock;
    }
}
#  endif

/* Every lock of the table is held by somebody who died, or is only slow. */
static inline void use_takeover(void)
{
    static uint32_t memory[RATELIMIT_TABLE_BYTES(12) / 4 + 1]; /* one block: eight lines of 64 bytes
                                                                  behind 128 of the head, each with
                                                                  its lock in front */
    ratelimit_table *t = NULL;
    const void *at;
    uint32_t *lock;
    unsigned i, held = 0, skip = 0;
    t = new_table(memory, sizeof memory);
    at = t;
    while (at != memory + skip) /* it lies where the alignment is right */
        skip++;
    lock = memory + skip + 128 / sizeof *lock;
    USE(ratelimit_table_take(t, "a", 1, &use_seven, 6, 0, NULL));
    for (i = 0; i < 8; i++) {
#  ifdef GIVES_BACK
        if (lock[16 * i + 1] || lock[16 * i + 2] || lock[16 * i + 3]) /* the line of "a" */
            dead_lock = lock + 16 * i;
#  endif
        lock[16 * i] |= 1;
    }
#  ifdef SLEEPS
    sleeps = 0;
#  endif
    USE(ratelimit_table_take(t, "a", 1, &use_seven, 1, 0, NULL));
    USE(!ratelimit_table_take(t, "a", 1, &use_seven, 1, 0, NULL));
    for (i = 0; i < 8; i++)
        held += lock[16 * i] & 1;
    USE(held == 7);
#  ifdef GIVES_BACK
    USE(looks >= 1000000);
    dead_lock = NULL;
#  endif
#  ifdef SLEEPS
    USE(sleeps >= RATELIMIT_TAKEOVER_MS && sleeps <= RATELIMIT_TAKEOVER_MS + 1);
#  endif
}
#else
static inline void use_takeover(void)
{
}
#endif

int main(void)
{
    int wrong = use_all();
    use_longest_all();
    use_step(RATELIMIT_STEP_NS < 1500 * RATELIMIT_MILLISECOND ? RATELIMIT_SECOND
                                                              : 2500 * RATELIMIT_MILLISECOND);
    use_tag_of_zero();
    use_takeover();
#ifdef LOCKS
    use_locks();
#endif
    return wrong + use_faults != 0;
}

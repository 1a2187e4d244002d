/* options.c - what the options of ratelimit.h change, beyond what use.h sees. options.sh compiles
 * it with each of them.
 *
 * LOCKS counts on hooks of its own: each lock that is taken is given back, the last one first, none
 * twice, and those held together were taken in the order of their addresses. */
#include <stdint.h>

#ifdef LOCKS
static void lock_hook(uint32_t *lock);
static void unlock_hook(uint32_t *lock);
#  define RATELIMIT_LOCK(lock)   lock_hook(lock)
#  define RATELIMIT_UNLOCK(lock) unlock_hook(lock)
#endif
#ifdef LOCKS_WITHOUT_ARGUMENT /* such as interrupts off */
static int lock_depth;
#  define RATELIMIT_LOCK(lock)   ((void)lock_depth++)
#  define RATELIMIT_UNLOCK(lock) ((void)lock_depth--)
#endif
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"

static const ratelimit_limit one_a_second = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 1);

#ifdef LOCKS
enum { MOST_LOCKS = 1024 };
static uint32_t *locks_held[MOST_LOCKS];
static unsigned locks_depth, locks_taken;

static void lock_hook(uint32_t *lock)
{
    USE(locks_depth < MOST_LOCKS);
    USE(locks_depth == 0 || locks_held[locks_depth - 1] < lock);
    locks_held[locks_depth++] = lock;
    locks_taken++;
}

static void unlock_hook(uint32_t *lock)
{
    USE(locks_depth > 0);
    if (locks_depth == 0)
        return;
    USE(locks_held[--locks_depth] == lock);
}

/* Some were taken since the last call, and none is held. */
static bool locks_used(void)
{
    bool used = locks_taken > 0 && locks_depth == 0;
    locks_taken = 0;
    return used;
}

static void use_locks(void)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(200)];
    static char key[64][4];
    ratelimit_table *t = NULL;
    ratelimit_table_counts counts;
    ratelimit_request q[64];
    ratelimit_result res[64];
    unsigned i;
    USE(ratelimit_table_init(&t, memory, sizeof memory, NULL) == RATELIMIT_OK);
    for (i = 0; i < 64; i++) {
        key[i][0] = "ABCDEFGH"[i % 8];
        key[i][1] = "abcdefgh"[i / 8];
        q[i] = use_request(key[i], &one_a_second, RATELIMIT_TAKE, 1);
    }
    locks_taken = 0;
    USE(ratelimit_table_take(t, "k", 1, &one_a_second, 1, 0, NULL) && locks_used());
    USE(!ratelimit_table_take(t, "k", 1, &one_a_second, 1, 0, NULL) && locks_used());
    ratelimit_table_decide(t, q, res, 64, RATELIMIT_ALL, 0);
    USE(res[63].allowed && locks_used());
    ratelimit_table_decide(t, q, res, 64, RATELIMIT_ALL, 0);
    USE(!res[0].allowed && locks_used());
    ratelimit_table_decide(t, q, res, 64, RATELIMIT_EACH, RATELIMIT_SECOND);
    USE(res[0].allowed && locks_used());
    USE(ratelimit_table_acquire(t, "k", 1, 1, 1, 0) && locks_used());
    USE(!ratelimit_table_acquire(t, "k", 1, 1, 1, 0) && locks_used());
    USE(ratelimit_table_release(t, "k", 1, 0) == RATELIMIT_OK && locks_used());
    USE(ratelimit_table_sweep(t, 9 * RATELIMIT_SECOND, 0) >= 65 && locks_used());
    ratelimit_table_stats(t, 0, &counts);
    USE(counts.keys == 0 && locks_depth == 0);
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
    USE(ratelimit_table_init(&t, memory, sizeof memory, NULL) == RATELIMIT_OK);
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
    ratelimit_table_options options;
    ratelimit_table_counts counts;
    memset(&options, 0, sizeof options);
    options.seed[0] = 1;
    options.seed[1] = 2;
    USE((ratelimit_priv_hash("oinjaojk", 8, options.seed) & UINT32_MAX) == 0);
    USE(ratelimit_table_init(&t, memory, sizeof memory, &options) == RATELIMIT_OK);
    USE(ratelimit_table_take(t, "oinjaojk", 8, &one_a_second, 1, 0, NULL));
    USE(!ratelimit_table_take(t, "oinjaojk", 8, &one_a_second, 1, 0, NULL));
    ratelimit_table_stats(t, 0, &counts);
    USE(counts.keys == 1);
}

#if RATELIMIT_PRIV_ATOMIC
/* Every lock of the table is held by somebody who died. */
static inline void use_takeover(void)
{
    static uint32_t
        memory[(128 + 64 + 64) / 4]; /* alignment, head, one line, whose first word is the lock */
    ratelimit_table *t = NULL;
    uint32_t *lock;
    USE(ratelimit_table_init(&t, memory, sizeof memory, NULL) == RATELIMIT_OK);
    lock = RATELIMIT_PRIV_CAST(uint32_t *, RATELIMIT_PRIV_CAST(void *, t)) + 128 / sizeof *lock;
    *lock |= 1;
    USE(ratelimit_table_take(t, "a", 1, &one_a_second, 1, 0, NULL));
    USE((*lock & 1) == 0);
    USE(!ratelimit_table_take(t, "a", 1, &one_a_second, 1, 0, NULL));
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
#ifdef LOCKS_WITHOUT_ARGUMENT
    USE(lock_depth == 0);
#endif
    return wrong + use_faults != 0;
}

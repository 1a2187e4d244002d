/* ratelimit.h - v1.0.0 - rate limiting in one header - MIT or public domain, see end of file

   Do this in exactly one C or C++ file, and include the header plainly everywhere else:

       #define RATELIMIT_IMPLEMENTATION
       #include "ratelimit.h"

   No malloc, no globals, no I/O, no floating point, no dependency. Time is an argument. C99 and
   C++11; Linux, macOS, the BSDs, Windows, bare metal.


   CONTENTS

       QUICK START         a whole program
       WHICH CALL          one line for each
       CONCEPTS            words, arithmetic, two limits on one key, changed limits, blocks, clocks
       OPTIONS             every macro, where to define it, its default
       MEMORY, THREADS, ERRORS
       >>limits            interface: what is allowed
       >>bucket            interface: one subject, 16 bytes
       >>table             interface: many subjects by key, in your memory
       >>store             interface: who decides; stores, and the tier in front of one
       >>limiter           interface: a store with a clock, a failure policy, waiting, counters
       >>rules             interface: named limits from text, replaced while in use; keys made
                             of addresses
       >>text              interface: HTTP fields, metrics, logs
       >>ticks             interface: counters that wrap; a bucket in 4 bytes
       >>implementation    the same layers again, with code
       CHANGES, LICENCE


   QUICK START

       #define RATELIMIT_IMPLEMENTATION
       #include "ratelimit.h"
       #include <stdio.h>

       static unsigned char memory[RATELIMIT_TABLE_BYTES(10000)];
       static const ratelimit_limit logins = RATELIMIT_LIMIT(5, RATELIMIT_MINUTE, 10);
       static ratelimit_limiter limiter;

       int main(void)
       {
           ratelimit_table *table;
           if (ratelimit_table_init(&table, memory, sizeof memory, NULL) != RATELIMIT_OK)
               return 1;
           if (ratelimit_init(&limiter, ratelimit_table_store(table, NULL, NULL)) != RATELIMIT_OK)
               return 1;
           for (int i = 0; i < 12; i++)
               puts(ratelimit_allow(&limiter, "alice", &logins) ? "come in" : "too many");
           ratelimit_close(&limiter);
           return 0;
       }


   WHICH CALL

       Most callers want ratelimit_allow (a key, a limit, yes or no) or ratelimit_wait (sleep until
       yes).
       ratelimit_take           the same with a request: cost, operation, result with retry_after
       ratelimit_take_all       several limits in one decision, all or none
       ratelimit_allow_rule     the limit by name, from a text you can replace at any time
       ratelimit_take_rules     the same with requests: user, address and route, all or none
       ratelimit_table_take     a table with the time given: no clock is read, no limiter needed
       ratelimit_bucket_take    one subject in 16 bytes of your own struct, no table needed
       ratelimit_tick_take      one subject in 4 bytes, in ticks, for small chips
       ratelimit_table_acquire  at most so many requests of one key at work at a time
       ratelimit_http_fields    the answer as HTTP header fields
       RATELIMIT_LOG            a log statement that runs at most at a given rate
       ratelimit_tier_store     a local table in front of a store that is far away


   CONCEPTS

   Words. limit: tokens per period, and a burst. burst: the most tokens a bucket holds, and what a
   new one holds (Go's burst; redis-cell's max_burst is one less). key: bytes that name a subject.
   take: n tokens now or none. peek: the answer of take, nothing changed. reserve: take now for
   later, with the wait. charge: take even into debt, for a cost known afterwards. refund: give
   back. remaining: whole tokens that could be taken now. retry_after: until the refused request
   would pass. reset_after: until the bucket is full. debt: how far a bucket is from full, as a
   time.

   Arithmetic. The generic cell rate algorithm (ITU-T I.371), which is the token bucket written as
   one time:

       full         when the bucket will be full again; one never touched is full. (The GCRA calls
                    it the theoretical arrival time.)
       debt         max(0, full - now)                 0 is full, window is empty
       interval     per / tokens                       the time in which one token comes back
       window       burst x interval                   (less one interval: the burst tolerance)
       take n       passes if debt + n x interval <= window;
                    then full = max(full, now) + n x interval
       retry_after  debt + n x interval - window       reset_after = debt
       remaining    floor((window - debt) / interval)

   Exact. An interval is a whole number of ns and a fraction r/d with d up to 2^24, and a debt keeps
   the same fraction, so nothing drifts: at 7 per second the 70th token comes back at 10 s, neither
   before nor after. If tokens is above 2^24 and does not divide the period, the interval is rounded
   up to 2^-24 ns, by less than three parts in a million. remaining is rounded down, retry_after and
   reset_after up: a call at retry_after passes and one ns earlier does not.

   Two limits on one key. A bucket belongs to a key and the scope of a limit, and limits made of
   different numbers have different scopes (but for one pair in 2^32). So "60 packets and 20,000
   bytes a second" for one player id, or "10 a second and 100 an hour" for one user, are two buckets
   each, one by one and in ratelimit_take_all alike.

   Changed limit. Give a limit whose numbers will change a scope of its own (limit.scope; rules do
   that). The bucket then continues under the new numbers. The tokens already spent stay spent:
   exactly up to 65,535 whole tokens, otherwise to 1 part in 65,536. At most the new burst counts as
   spent. The change is stored at once, even by a refusal; peek only reports it. A bucket stores 20
   bits of the interval and 7 bits of the burst, to see that a limit changed. If only the burst
   changes, 1 change in 128 is not seen. Then the debt stays as it is. A debt that was made longer
   than the window on purpose (reserve, charge) is a time, which no other limit changes.

   Block. A time, not a debt: until it ends, whatever asks for tokens is refused with the time left.
   No refund, charge or changed limit moves it, a longer block replaces it, RESET lifts it. When it
   ends the bucket holds one token.

   Fixed window. The same bucket, asked at the end of the current window (aligned to the clock's
   origin) instead of now, so nothing of a used-up window counts in the next one. retry_after and
   reset_after are until that end. A charge above the window's tokens goes on into the next windows.
   RESERVE, REFUND and CANCEL are UNSUPPORTED there: the window may be another one by then. A bucket
   does not store when its window ends. If the period changes, only the debt beyond the end of the
   new window counts. If a window becomes a bucket, the time left in the window counts as debt.

   Clock. Any origin, ns, uint64_t; times are compared modulo 2^64, so a counter may pass its end.
   If now_ns is a little earlier than in another call, the debt is computed from the times as they
   are given, and times that go back and forth make no tokens. (A table forgets keys that are full.
   A call with an earlier time then finds the key new: it is decided at the latest time at which a
   forgotten key became full, and told waits from its own time. So the first take of a new key
   passes; the next ones may wait until the clock has reached that time. After a reset nothing is
   known of earlier times.) If the debt is longer than the window by more than step_ns (10 s), the
   clock was set back. Then the debt is set to the window. After such a step a debt made on purpose,
   or a block, lasts at most twice as long as it did when the bucket was last seen. So a key is
   usable again within one window, whatever the jump; a clock that was set back by less is waited
   for. Steps of more than 146 years are not told from steps the other way.

   Seen. Each request but PEEK stores the power of two below the debt: that is how the bucket knows
   when it was last seen. Besides, a refusal writes only what it found changed: the limit, a clock
   that was set back, a block that ended.


   OPTIONS

       macro                     where  default    effect
       RATELIMIT_IMPLEMENTATION  once   -          the code
       RATELIMIT_STATIC          all    off        everything static: each file has its own copy.
                                                     The smallest code for one file, see README
       RATELIMIT_API             all    extern     linkage of every public function
       RATELIMIT_NO_CLOCK        all    off        the system is asked for nothing: no time, no
                                                     sleep, no random seed, no
                                                     ratelimit_clock_ns
       RATELIMIT_NO_THREADS      all    off        no atomics: one thread at a time for everything
       RATELIMIT_LOCK()          all    atomics    your own lock, taken once round each decision
       RATELIMIT_UNLOCK()        all    atomics      (interrupts off, a mutex); never nested
       RATELIMIT_SLEEP_MS(ms)    impl   the clock  sleeps; with RATELIMIT_NO_CLOCK needed for locks
                                                     to be taken over
       RATELIMIT_TAKEOVER_MS     impl   200        a lock that was held for longer is taken over, 1
                                                     to 3,600,000
       RATELIMIT_STEP_NS         impl   10 s       step_ns of buckets, and of tables by default
       RATELIMIT_MAX_ALL         impl   64, or 8   most requests in one all-or-none decision, 1 to
                                  without a clock    4096; about 400 bytes of stack each
       RATELIMIT_FIXED_LIMITS    impl   off        limits never change: less code
       RATELIMIT_NO_TEXT         impl   off        status texts and faults of rules are ""
       RATELIMIT_NO_LOG          all    off        RATELIMIT_LOG does nothing and costs nothing
       RATELIMIT_LOG_NOW         all    the clock  the time in ns for RATELIMIT_LOG; needed with
                                                     RATELIMIT_NO_CLOCK

   once: in one file. all: in every file that includes the header. impl: where the code is. Where
   the chip has no lock-free compare-and-swap (Cortex-M0) there are no atomics, as with
   RATELIMIT_NO_THREADS. Where it is neither POSIX nor Windows, RATELIMIT_NO_CLOCK defines itself.


   MEMORY, THREADS, ERRORS

   Memory is yours: nothing is allocated, nothing is kept outside what you pass in. A bucket is 16
   bytes, all zero is full. A table has no pointers, so it may be static, on the heap, in shared
   memory or in a mapped file. What writes a text returns its length without the NUL; if buf_bytes
   is not above that, the text is "" (bytes behind its NUL may have changed): it is never cut off
   silently.

   Threads. Limits are read-only and shared freely. A plain bucket has one caller at a time;
   ratelimit_bucket_take_shared, the table, the stores here and the limiter may be called by any
   number of threads, and the table by any number of processes. A take of a known key is one
   compare-and-swap, if its limit is a bucket whose interval is a whole number of ns. Other changes
   are computed first, then written under a lock that is held for a few memory writes. A lock that
   is not released for RATELIMIT_TAKEOVER_MS is taken over, whether its holder died or is only slow.
   A decision of a holder that died may be lost. A holder that was slow loses or undoes nobody's
   charge: at worst two threads give one key two places, and it can use one burst more. Where the
   chip has no 64-bit compare-and-swap, one that was slow may undo what others charged to the same
   key meanwhile.

   Errors. A decision is a bool, true only if the caller may go on; result.status says why. Bad
   arguments are refused, and zero is never "unlimited". One thing lets a call through that was not
   decided: a limiter whose store failed, if its policy is RATELIMIT_FAIL_OPEN (the default).
*/
#ifndef RATELIMIT_H_INCLUDED
#  define RATELIMIT_H_INCLUDED

#  if defined(__cplusplus)
#    if __cplusplus < 201103L && !defined(_MSC_VER)
#      error "ratelimit.h needs C++11 or C99."
#    endif
#  elif !defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L
#    if !defined(_MSC_VER)
#      error "ratelimit.h needs C99 or C++11."
#    endif
#  endif

#  include <stdbool.h>
#  include <stddef.h>
#  include <stdint.h>

/* A major version may change anything; a minor one adds names and may change layouts (rebuild
   static copies together); a patch changes neither. */
#  define RATELIMIT_VERSION      10000 /* major * 10000 + minor * 100 + patch */
#  define RATELIMIT_VERSION_TEXT "1.0.0"

#  if defined(__GNUC__)
#    define RATELIMIT_PRIV_UNUSED    __attribute__((unused))
#    define RATELIMIT_PRIV_MUST_USE  __attribute__((warn_unused_result))
#    define RATELIMIT_PRIV_NOINLINE  __attribute__((noinline))
#    define RATELIMIT_PRIV_INLINE    inline __attribute__((always_inline))
#    define RATELIMIT_PRIV_LIKELY(x) __builtin_expect(!!(x), 1)
#    define RATELIMIT_PRIV_ALIGNED   __attribute__((aligned(8))) /* i386 aligns uint64_t to 4 */
#  else
#    define RATELIMIT_PRIV_UNUSED
#    define RATELIMIT_PRIV_MUST_USE
#    define RATELIMIT_PRIV_NOINLINE
#    define RATELIMIT_PRIV_INLINE    inline
#    define RATELIMIT_PRIV_LIKELY(x) (x)
#    define RATELIMIT_PRIV_ALIGNED
#  endif
#  if !defined(RATELIMIT_API)
#    if defined(RATELIMIT_STATIC)
#      define RATELIMIT_API RATELIMIT_PRIV_UNUSED static
#    else
#      define RATELIMIT_API extern
#    endif
#  endif

#  if !defined(RATELIMIT_NO_CLOCK) && !defined(_WIN32) && !defined(__unix__) &&                    \
      !defined(__unix) && !defined(__APPLE__)
#    define RATELIMIT_NO_CLOCK
#  endif

#  ifdef __cplusplus
#    define RATELIMIT_PRIV_CAST(type, x) type(x)
extern "C" {
#  else
#    define RATELIMIT_PRIV_CAST(type, x) ((type)(x))
#  endif

/* ---- >>limits -------------------------------------------------------------------------------- */

#  define RATELIMIT_MICROSECOND UINT64_C(1000)
#  define RATELIMIT_MILLISECOND UINT64_C(1000000)
#  define RATELIMIT_SECOND      UINT64_C(1000000000)
#  define RATELIMIT_MINUTE      UINT64_C(60000000000)
#  define RATELIMIT_HOUR        UINT64_C(3600000000000)
#  define RATELIMIT_DAY         UINT64_C(86400000000000)
#  define RATELIMIT_WEEK        UINT64_C(604800000000000)
#  define RATELIMIT_FOREVER     UINT64_MAX /* as a time: never */

typedef enum ratelimit_status {
    RATELIMIT_OK = 0,       /* done */
    RATELIMIT_DENIED,       /* not now; retry_after_ns says when */
    RATELIMIT_NEVER,        /* no wait helps: n is above the burst, or a debt would be too long */
    RATELIMIT_SKIPPED,      /* would have passed, but another request of its batch was refused */
    RATELIMIT_FULL,         /* no room for a new key (RATELIMIT_REFUSE, or permits only) */
    RATELIMIT_TIMEOUT,      /* the wait would be longer than accepted; nothing was taken */
    RATELIMIT_CANCELED,     /* a wait was cancelled */
    RATELIMIT_BAD_KEY,      /* NULL or empty key */
    RATELIMIT_BAD_LIMIT,    /* NULL, zero or overflowing limit */
    RATELIMIT_BAD_COUNT,    /* n is 0 or above 2^63 - 1 where tokens are asked for */
    RATELIMIT_BAD_ARGUMENT, /* NULL, unknown operation, something out of range */
    RATELIMIT_SYNTAX,       /* text is not in the grammar */
    RATELIMIT_NO_MEMORY,    /* the memory passed in is too small */
    RATELIMIT_STORE_FAILED, /* the store could not decide; the limiter's policy did */
    RATELIMIT_UNSUPPORTED,  /* this store or kind of limit cannot do that */
    RATELIMIT_BUSY,         /* held by others (semaphores and locks) */
    RATELIMIT_LOST          /* was held, no longer is (semaphores and locks) */
} ratelimit_status;

/* ratelimit_status_text  A short English text for status, static; "unknown status" for other
 * numbers. */
RATELIMIT_API const char *ratelimit_status_text(ratelimit_status status);

/* ratelimit_limit  What is allowed, with all that a decision needs computed in advance: 80 bytes of
 * plain data that may be copied, shared and static const. All zero is BAD_LIMIT. Make one with the
 * macros or functions below. The named fields are for you: read the first three, assign scope if
 * you like. The rest belongs to the implementation.
 *
 * scope  A bucket belongs to a key and a scope. The makers derive the scope from the numbers of the
 *        limit, so two limits on one key have two buckets. Give a limit a scope of its own (any
 *        number, or ratelimit_scope of a name) if its numbers will change while it is in use: then
 *        the bucket goes on, and tokens spent stay spent. */
typedef struct ratelimit_limit {
    uint64_t tokens;        /* per per_ns */
    uint64_t per_ns;        /* the period, ns */
    uint64_t burst;         /* tokens */
    uint64_t quick;         /* burst, if the quick way may decide; else 0 */
    uint64_t interval_ns;   /* per / tokens, whole ns */
    uint64_t window_ns;     /* burst x interval_ns */
    uint64_t state;         /* what an ordinary bucket under this limit has in its rest */
    uint64_t inverse;       /* floor((2^64 - 1) / interval_ns), or ceil(2^63 / parts) */
    uint32_t interval_part; /* the rest of the interval, in 1/parts ns */
    uint32_t parts;         /* 1 to 2^24 */
    uint32_t kind;
    uint32_t scope; /* part of the identity of a bucket, see above */
} ratelimit_limit;

/* RATELIMIT_LIMIT, RATELIMIT_WINDOW, RATELIMIT_UNLIMITED  Constant initialisers of a
 * ratelimit_limit:
 *
 *     static const ratelimit_limit api = RATELIMIT_LIMIT(100, RATELIMIT_SECOND, 200);
 *
 * tokens   1 to 2^63 - 1, per per_ns; at most 16 a ns
 * per_ns   1 to 2^62 ns
 * burst    1 to 2^63 - 1 tokens, such that burst x per_ns / tokens is at most 2^62 ns (146 years)
 * Anything else is BAD_LIMIT at every call. RATELIMIT_WINDOW is a fixed window aligned to the
 * clock's origin; its burst is tokens. RATELIMIT_UNLIMITED lets everything through and takes no
 * room in a table. Arguments must be constants: each is evaluated many times. Use the functions for
 * values known at run time.
 * RATELIMIT_LIMIT_SCOPE  The same with a scope (32 bits) in place of the derived one. */
#  define RATELIMIT_LIMIT(tokens, per_ns, burst)                                                   \
    RATELIMIT_PRIV_LIMIT(RATELIMIT_PRIV_BUCKET, RATELIMIT_PRIV_CAST(uint64_t, tokens),             \
                         RATELIMIT_PRIV_CAST(uint64_t, per_ns),                                    \
                         RATELIMIT_PRIV_CAST(uint64_t, burst))
#  define RATELIMIT_LIMIT_SCOPE(tokens, per_ns, burst, scope)                                      \
    RATELIMIT_PRIV_MADE(RATELIMIT_PRIV_BUCKET, RATELIMIT_PRIV_CAST(uint64_t, tokens),              \
                        RATELIMIT_PRIV_CAST(uint64_t, per_ns),                                     \
                        RATELIMIT_PRIV_CAST(uint64_t, burst),                                      \
                        RATELIMIT_PRIV_CAST(uint32_t, scope))
#  define RATELIMIT_WINDOW(tokens, per_ns)                                                         \
    RATELIMIT_PRIV_LIMIT(RATELIMIT_PRIV_WINDOW, RATELIMIT_PRIV_CAST(uint64_t, tokens),             \
                         RATELIMIT_PRIV_CAST(uint64_t, per_ns),                                    \
                         RATELIMIT_PRIV_CAST(uint64_t, tokens))
#  define RATELIMIT_UNLIMITED                                                                      \
    {                                                                                              \
      UINT64_MAX, 0, UINT64_MAX, 0, 0, 0, 0, 0, 0, 1, RATELIMIT_PRIV_UNLIMITED, 0                  \
    }

/* ratelimit_limit_make, ratelimit_window_make  The same from values known at run time, same ranges.
 * A bad one has kind 0, which is BAD_LIMIT. Threads: any. Cost: a few divisions. */
RATELIMIT_API ratelimit_limit ratelimit_limit_make(uint64_t tokens, uint64_t per_ns,
                                                   uint64_t burst);
RATELIMIT_API ratelimit_limit ratelimit_window_make(uint64_t tokens, uint64_t per_ns);

/* ratelimit_scope  A scope made of a name: the same in every process and on every machine. */
RATELIMIT_API uint32_t ratelimit_scope(const char *name, size_t name_len);

/* ratelimit_limit_check  RATELIMIT_OK, or RATELIMIT_BAD_LIMIT if limit is NULL or was not made from
 * values in range. */
RATELIMIT_API ratelimit_status ratelimit_limit_check(const ratelimit_limit *limit);

/* ratelimit_limit_parse  Reads a limit from text. The grammar, strict, in lower case, without outer
 * spaces:
 *
 *     limit    = "unlimited"
 *              | number "/" period [ blanks "burst" blanks whole ] [ blanks "window" ]
 *     period   = unit | number unit            "10/s", "10/60s", "5/1500ms"
 *     unit     = "ns" | "us" | "ms" | "s" | "m" | "h" | "d" | "w"
 *     number   = whole [ "." digits ]          "0.5/m" is 1 per 2 minutes
 *     whole    = digits                        blanks are spaces or tabs
 *
 * Decimals are taken exactly. Without burst it is tokens, rounded up. A window's burst is its
 * tokens, so if given it must be equal. Returns RATELIMIT_OK; RATELIMIT_SYNTAX if text is not in
 * the grammar; RATELIMIT_BAD_LIMIT if it is but does not fit (zero, overflow, a period that is no
 * whole number of ns); BAD_ARGUMENT for NULL. *out is changed only by OK. */
RATELIMIT_API ratelimit_status ratelimit_limit_parse(ratelimit_limit *out, const char *text);

/* ratelimit_limit_parse_n  The same for text_len bytes that need no NUL at the end. *fault_at (may
 * be NULL) is, for SYNTAX and BAD_LIMIT, the offset of the first word or number that is wrong, or
 * text_len if one is missing at the end. */
RATELIMIT_API ratelimit_status ratelimit_limit_parse_n(ratelimit_limit *out, const char *text,
                                                       size_t text_len, size_t *fault_at);

/* ratelimit_limit_format  Writes limit as text that parse reads back to an equal limit (but for a
 * scope that was assigned): "10/s burst 20", "100/m window", "unlimited"; a bad one is "bad limit".
 * Returns the length without the NUL, see MEMORY. 80 bytes are always enough. */
RATELIMIT_API size_t ratelimit_limit_format(const ratelimit_limit *limit, char *buf,
                                            size_t buf_bytes);

/* ---- >>bucket -------------------------------------------------------------------------------- */

typedef enum ratelimit_op {
    RATELIMIT_TAKE = 0,   /* n tokens now or none */
    RATELIMIT_TAKE_UP_TO, /* as many as there are, at most n; allowed if at least one, see taken */
    RATELIMIT_PEEK,       /* the answer of TAKE, nothing changed; n of 0 counts as 1 */
    RATELIMIT_RESERVE,    /* n tokens now or later, if the wait (wait_ns) is at most max_wait_ns */
    RATELIMIT_CHARGE,     /* n tokens even into debt; n may be above the burst */
    RATELIMIT_REFUND,     /* n tokens back, never above the burst */
    RATELIMIT_CANCEL,     /* takes back a reservation of n whose wait has max_wait_ns to go, if
                             nobody reserved after it; else nothing (see taken) */
    RATELIMIT_BLOCK,      /* refuse all for max_wait_ns; a longer block replaces a shorter one */
    RATELIMIT_RESET       /* full again, as if never seen; lifts a block */
} ratelimit_op; /* a new one: also in ratelimit_priv_settled, ratelimit_priv_decide, the tier, the
                   scripts of ratelimit_redis.h, tests/model.h */

typedef struct ratelimit_request {
    const void *key; /* any bytes; a plain bucket has no key */
    size_t key_len;  /* at least 1 */
    const ratelimit_limit *limit;
    uint64_t n;           /* tokens, 1 to 2^63 - 1; not used by block and reset */
    ratelimit_op op;      /* 0 is take */
    uint64_t max_wait_ns; /* reserve: the longest wait accepted; block: how long, 1 to 2^62;
                             cancel: what is left of the wait */
} ratelimit_request;

/* RATELIMIT_REQUEST  An initialiser of a ratelimit_request that takes n tokens, in C and C++:
 *
 *     ratelimit_request req = RATELIMIT_REQUEST(&player_id, sizeof player_id, &packets, 1);
 *
 * In C++ a variable n must be unsigned: check that a signed length is not negative, and cast it. */
#  define RATELIMIT_REQUEST(key, key_len, limit, n)                                                \
    {                                                                                              \
      key, key_len, limit, n, RATELIMIT_TAKE, 0                                                    \
    }

/* Who gave the answer: the store, or what decides in its place. */
typedef enum ratelimit_source {
    RATELIMIT_FROM_STORE = 0,
    RATELIMIT_FROM_LEASE,
    RATELIMIT_FROM_REFUSAL_CACHE,
    RATELIMIT_FROM_FALLBACK, /* the store failed: a local bucket, or the limiter's fallback store */
    RATELIMIT_FROM_POLICY    /* the store failed: the limiter's policy, open or closed */
} ratelimit_source;

typedef struct ratelimit_result {
    bool allowed;            /* go on; for charge, refund, cancel, block, reset: it is done */
    ratelimit_status status; /* OK if allowed, else why not (but see the limiter's options) */
    uint64_t burst;          /* tokens: the limit's; UINT64_MAX if unlimited */
    uint64_t remaining;      /* tokens that could be taken after this */
    uint64_t taken;          /* tokens taken by this; refund, cancel: given back by this */
    uint64_t retry_after_ns; /* until the refused request would pass, or RATELIMIT_FOREVER */
    uint64_t reset_after_ns; /* until the bucket is full */
    uint64_t wait_ns; /* reserve: how long to wait; charge, block: until a take of one passes */
    ratelimit_source source;
} ratelimit_result; /* all fields are set at every return; 0 where there is nothing to say */

/* ratelimit_bucket  The state of one subject: 16 bytes. All zero is a full bucket. Copy it freely.
 * The layout is described at the implementation, under arithmetic. */
typedef struct ratelimit_bucket {
    RATELIMIT_PRIV_ALIGNED uint64_t full_ns; /* when it is full again */
    uint64_t rest;
} ratelimit_bucket;

/* ratelimit_bucket_take  Takes n tokens from *b at now_ns if all n are there, else none.
 *
 * b        one bucket, zeroed before its first use
 * n        1 to limit->burst can pass; more is NEVER, 0 and above 2^63 - 1 are BAD_COUNT
 * now_ns   ns, any origin, see CONCEPTS for clocks that go back
 * out      may be NULL
 *
 * Returns true if n tokens were taken. False: DENIED, NEVER, BAD_COUNT, BAD_LIMIT, BAD_ARGUMENT (b
 * is NULL).
 * Threads: one caller at a time per bucket.
 * Cost:    no division if the interval is a whole number of ns and out is NULL.
 * Source:  GCRA (ITU-T I.371). */
RATELIMIT_API bool ratelimit_bucket_take(ratelimit_bucket *b, const ratelimit_limit *limit,
                                         uint64_t n, uint64_t now_ns,
                                         ratelimit_result *out_or_null);

/* ratelimit_bucket_decide  Any operation on one bucket. The key of req is not used.
 *
 * Returns result.allowed. False besides the above: TIMEOUT (reserve; retry_after_ns is then the
 * wait it would have taken), UNSUPPORTED (reserve, refund or cancel on a fixed window; block on an
 * unlimited limit), BAD_ARGUMENT (req is NULL, unknown op, block for 0 or more than 2^62 ns).
 * CHARGE is NEVER where the debt would be longer than 2^62 ns (146 years). Threads, cost: as
 * take. */
RATELIMIT_API bool ratelimit_bucket_decide(ratelimit_bucket *b, const ratelimit_request *req,
                                           uint64_t now_ns, ratelimit_result *out_or_null);

/* ratelimit_bucket_take_shared, ratelimit_bucket_decide_shared  The same, safe between threads, and
 * between processes if *b lies in shared memory. A bucket used by them must only be used by them. A
 * refusal writes nothing but what CONCEPTS says under Seen, and that only if it changed.
 *
 * They are declared only where they are safe: where the chip has a lock-free 64-bit
 * compare-and-swap (any 64-bit chip, i686 with GCC, ARMv7-A), or where RATELIMIT_LOCK is defined in
 * this file, too. Elsewhere use a table. */
#  if !defined(RATELIMIT_NO_THREADS) &&                                                            \
      (defined(RATELIMIT_LOCK) || defined(_WIN64) ||                                               \
       (defined(__GCC_ATOMIC_LLONG_LOCK_FREE) && __GCC_ATOMIC_LLONG_LOCK_FREE == 2))
#    define RATELIMIT_PRIV_SHARED
RATELIMIT_API bool ratelimit_bucket_take_shared(ratelimit_bucket *b, const ratelimit_limit *limit,
                                                uint64_t n, uint64_t now_ns,
                                                ratelimit_result *out_or_null);
RATELIMIT_API bool ratelimit_bucket_decide_shared(ratelimit_bucket *b, const ratelimit_request *req,
                                                  uint64_t now_ns, ratelimit_result *out_or_null);
#  endif

/* ---- >>table --------------------------------------------------------------------------------- */

/* ratelimit_table  Buckets by key and scope, in memory that you provide: a 128-byte head, then
 * lines of 64 bytes with three buckets each. Keys are not stored, only a 32-bit tag of each: the
 * chance that a new key is taken for a stored one is at most 24 in 2^32, however many keys there
 * are. With SipHash-1-3 (the default) only somebody who knows the seed can choose such a key. */
typedef struct ratelimit_table ratelimit_table;

/* What happens to a new key when all the places it may use are taken by keys in debt. INHERIT: the
 * newcomer takes over the place with the least debt, debt and all, so that no key ever gets more
 * than its limit, however many keys there are (unless refunds or changed limits lower a debt). The
 * debt is a time, so a newcomer may have to wait as long as another's limit takes: give limits of
 * very different windows a table each. */
typedef enum ratelimit_full {
    RATELIMIT_EVICT = 0,       /* forget the key with the least debt (ties: seen longest ago) */
    RATELIMIT_EVICT_LAST_SEEN, /* forget the key that was seen longest ago */
    RATELIMIT_INHERIT,
    RATELIMIT_REFUSE /* the newcomer is FULL */
} ratelimit_full;

/* How keys are hashed. FAST is two multiplications with secret constants made of the seed, about 10
 * ns less for a short key. It is for keys that nobody hostile chooses, such as your own ids:
 * collisions are rare, but there is no proof against somebody who can see collisions and learns
 * from them. */
typedef enum ratelimit_hash { RATELIMIT_HASH_SIP = 0, RATELIMIT_HASH_FAST } ratelimit_hash;

typedef struct ratelimit_table_options {
    uint64_t seed[2];         /* 16 random secret bytes; both 0: from the system (getrandom,
                                 arc4random_buf, rand_s). With RATELIMIT_NO_CLOCK no system is
                                 asked: give a seed, any constant if nobody hostile chooses keys */
    ratelimit_full when_full; /* default RATELIMIT_EVICT */
    ratelimit_hash hash;      /* default RATELIMIT_HASH_SIP */
    uint64_t step_ns;         /* a clock set back by more is forgiven, see CONCEPTS;
                                 0: RATELIMIT_STEP_NS; RATELIMIT_FOREVER: never */
} ratelimit_table_options;

/* The counts since init are exact where the chip has 64-bit atomics, or under RATELIMIT_LOCK. */
typedef struct ratelimit_table_counts {
    uint64_t capacity; /* buckets it can hold */
    uint64_t keys;     /* live: in debt or blocked, and permits */
    uint64_t in_debt;  /* of them, buckets in debt or blocked */
    uint64_t evicted;  /* since init: forgotten in debt, for a newcomer or by sweep's idle time */
    uint64_t refused;  /* since init: newcomers for whom there was no room */
    uint64_t bytes;    /* memory the table uses */
} ratelimit_table_counts;

/* RATELIMIT_TABLE_BYTES, ratelimit_table_bytes  The memory for max_keys buckets in debt at once,
 * such that fewer than one in 1,000 of them is forced out: twice as many places, 43 bytes a bucket.
 * A bucket is a key and a limit: 1,000 players with two limits each are 2,000. The macro is for
 * static memory. The function returns 0 if max_keys is 0 or too many for size_t or for the table
 * (2^29 blocks). Both agree. 63 bytes of it are for alignment. */
#  define RATELIMIT_TABLE_BYTES(max_keys)                                                          \
    (RATELIMIT_PRIV_CAST(size_t, RATELIMIT_PRIV_HEAD_BYTES) + 63u +                                \
     RATELIMIT_PRIV_BLOCKS(RATELIMIT_PRIV_CAST(size_t, max_keys)) * 512u)
RATELIMIT_API size_t ratelimit_table_bytes(size_t max_keys);

/* ratelimit_table_init  Makes an empty table in memory, which may have any alignment and any
 * content.
 *
 * bytes    the table uses as many whole blocks of 512 bytes as fit behind its head
 * options  NULL: all defaults
 *
 * Returns RATELIMIT_OK and *out; NO_MEMORY if not even one block fits; BAD_ARGUMENT for NULL, an
 * unknown policy or hash, or if there is no seed: none given, and none to be had from the
 * system. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status
ratelimit_table_init(ratelimit_table **out, void *memory, size_t bytes,
                     const ratelimit_table_options *options_or_null);

/* ratelimit_table_attach  Uses a table that is already in memory: made by another process in shared
 * memory, or by an earlier run in a mapped file. memory must have the alignment (modulo 64) that it
 * had for init; any page-aligned mapping does.
 *
 * Returns RATELIMIT_OK and *out; BAD_ARGUMENT if there is no table, or of another version, hash or
 * byte order, or its head is damaged; NO_MEMORY if the table is larger than bytes. The bits of its
 * buckets are not checked: no value of them can do harm. More than 8 locks that are held are
 * watched for RATELIMIT_TAKEOVER_MS, once for the whole table, and those of dead processes freed.
 * Times must go on from the same clock; after a restart of the machine that means a wall clock. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status ratelimit_table_attach(ratelimit_table **out,
                                                                              void *memory,
                                                                              size_t bytes);

/* ratelimit_table_take  Takes n tokens of key at now_ns, or none. The key is any bytes: a text, or
 * an integer as &id, sizeof id. Keys of different lengths are different keys. Arguments and results
 * as ratelimit_bucket_take; besides, BAD_KEY (NULL or empty) and FULL. Threads: any, also in
 * several processes. Cost: one cache line if the key is in its home line, at most eight
 * neighbouring ones. */
RATELIMIT_API bool ratelimit_table_take(ratelimit_table *t, const void *key, size_t key_len,
                                        const ratelimit_limit *limit, uint64_t n, uint64_t now_ns,
                                        ratelimit_result *out_or_null);

/* ratelimit_table_hash, ratelimit_table_take_hash  The hash that this table makes of a key, and a
 * take by it: (t, ratelimit_table_hash(t, key, key_len), ...) has the same bucket as (t, key,
 * key_len, ...). So a connection can keep the hash of its key. You may pass a 64-bit hash of your
 * own instead (0 is allowed). All its 64 bits should depend on the key. If somebody can choose keys
 * with equal hashes, those keys share a bucket. ratelimit_table_hash is 0 if t is NULL. */
RATELIMIT_API uint64_t ratelimit_table_hash(const ratelimit_table *t, const void *key,
                                            size_t key_len);
RATELIMIT_API bool ratelimit_table_take_hash(ratelimit_table *t, uint64_t hash,
                                             const ratelimit_limit *limit, uint64_t n,
                                             uint64_t now_ns, ratelimit_result *out_or_null);

/* ratelimit_table_decide_one  One request of any operation. Results as ratelimit_bucket_decide;
 * besides, BAD_KEY and FULL. Threads: any. */
RATELIMIT_API bool ratelimit_table_decide_one(ratelimit_table *t, const ratelimit_request *req,
                                              uint64_t now_ns, ratelimit_result *out_or_null);

/* How a batch is decided. */
typedef enum ratelimit_mode {
    RATELIMIT_EACH = 0, /* each request on its own */
    RATELIMIT_ALL       /* all or none, in order; a key may come twice */
} ratelimit_mode;

/* ratelimit_table_decide  Decides count requests at now_ns into res[0..count-1] (NULL: no results).
 * Returns true if all were allowed; a count of 0 is true.
 *
 * EACH: memory is fetched ahead, so a batch of 32 cold keys costs little more than a few of them.
 * ALL: if any request is refused none is carried out, at no moment. Then allowed is false in every
 * result; status says which refused, with their own retry_after_ns; those that would have passed
 * are SKIPPED, with taken 0 and the longest retry_after_ns of the batch. The operations may differ.
 * More than RATELIMIT_MAX_ALL: BAD_ARGUMENT in every result. Threads: any. A process that is killed
 * while it stores a batch that passed may leave a part of it. */
RATELIMIT_API bool ratelimit_table_decide(ratelimit_table *t, const ratelimit_request *req,
                                          ratelimit_result *res_or_null, size_t count,
                                          ratelimit_mode mode, uint64_t now_ns);

/* ratelimit_table_take_batch  EACH without results: allowed[i] says whether req[i] was allowed.
 * Returns how many were. The fastest way to decide many keys. */
RATELIMIT_API size_t ratelimit_table_take_batch(ratelimit_table *t, const ratelimit_request *req,
                                                bool *allowed, size_t count, uint64_t now_ns);

/* ratelimit_table_sweep  Drops keys that are full again, which loses nothing (their places are
 * reused anyway; sweeping only makes them countable). idle_ns above 0 also drops keys in debt that
 * nobody has asked for in longer than that: this loses their debt (not a block) and is counted as
 * evicted. A refusal counts as asking. The time of the last request is known only roughly: an idle
 * key may stay longer than idle_ns, by up to half the debt that it had then. Returns how many were
 * dropped. */
RATELIMIT_API size_t ratelimit_table_sweep(ratelimit_table *t, uint64_t now_ns, uint64_t idle_ns);

/* ratelimit_table_stats  Counts at now_ns, by reading every line. Threads: any; each number is
 * right at some moment. */
RATELIMIT_API void ratelimit_table_stats(const ratelimit_table *t, uint64_t now_ns,
                                         ratelimit_table_counts *out);

/* ratelimit_permit  One of the places of ratelimit_table_acquire. It ends at expires_ns. */
typedef struct ratelimit_permit {
    uint64_t expires_ns;
    uint32_t place, serial;
} ratelimit_permit;

enum { RATELIMIT_MAX_PERMITS = 64 };

/* ratelimit_table_acquire  Takes a permit of key if fewer than `most` are held. So at most `most`
 * requests of one key run at a time.
 *
 * most     1 to RATELIMIT_MAX_PERMITS, the same in all calls for a key: a lower one does not count
 *          what is held beyond it; for more use a semaphore of your own
 * ttl_ns   1 to 2^62: the permit comes back by itself after that, so that a holder that crashed
 *          does not keep it for good
 *
 * Returns true and *out: call release once. False (and *out zeroed): all are held, or there is no
 * room (counted in refused), or bad arguments. Each permit has a place of its own in the table,
 * which is never forgotten before its time; a permit takes the place of a key in debt only under
 * the two EVICT policies. Threads: any. Cost: looks at up to `most` places. */
RATELIMIT_API bool ratelimit_table_acquire(ratelimit_table *t, const void *key, size_t key_len,
                                           uint32_t most, uint64_t ttl_ns, uint64_t now_ns,
                                           ratelimit_permit *out);

/* ratelimit_table_release  Gives a permit back. RATELIMIT_OK; RATELIMIT_LOST if it was not held any
 * more (released twice, or its time is over), which frees nobody else's; BAD_KEY, BAD_ARGUMENT. */
RATELIMIT_API ratelimit_status ratelimit_table_release(ratelimit_table *t, const void *key,
                                                       size_t key_len,
                                                       const ratelimit_permit *permit,
                                                       uint64_t now_ns);

/* ---- >>store --------------------------------------------------------------------------------- */

/* ratelimit_clock  A clock: ns since any origin. */
typedef uint64_t (*ratelimit_clock)(void *self);

#  if !defined(RATELIMIT_NO_CLOCK)
/* ratelimit_clock_ns  The platform's steady clock, which also counts while the machine sleeps:
 * CLOCK_BOOTTIME on Linux, else CLOCK_MONOTONIC; the performance counter on Windows. Not comparable
 * between machines, starts again at boot. */
RATELIMIT_API uint64_t ratelimit_clock_ns(void);
#  endif

/* ratelimit_store  Who decides. decide gets the store itself, and fills all of res[0..count-1] for
 * req[0..count-1]. A store that cannot do RATELIMIT_ALL answers UNSUPPORTED, one that cannot be
 * reached STORE_FAILED, both for the requests concerned only. decide never blocks for ever. */
typedef struct ratelimit_store {
    void *self;
    void (*decide)(const struct ratelimit_store *store, const ratelimit_request *req,
                   ratelimit_result *res, size_t count, ratelimit_mode mode);
    void (*close)(const struct ratelimit_store *store); /* may be NULL */
    ratelimit_clock clock; /* may be NULL; the store's own: the limiter measures waits with it */
    void *clock_self;
    /* May be NULL. Adds counters of the store to ratelimit_metrics, and works as that does. */
    size_t (*metrics)(const struct ratelimit_store *store, const char *labels, char *buf,
                      size_t buf_bytes);
} ratelimit_store;

/* ratelimit_table_store  A table as a store. clock NULL: ratelimit_clock_ns (STORE_FAILED at every
 * call if that is compiled out). There is no close: the memory is yours. */
RATELIMIT_API ratelimit_store ratelimit_table_store(ratelimit_table *t,
                                                    ratelimit_clock clock_or_null,
                                                    void *clock_self);

/* RATELIMIT_RECORD_BYTES  What the compare-and-swap store keeps per bucket: little-endian, the same
 * on every machine. Bytes 0-7 full_ns, 8-15 rest of a ratelimit_bucket, 16-19 "RL2" and a NUL,
 * 20-23 number of writes. */
#  define RATELIMIT_RECORD_BYTES 24

/* ratelimit_cas  A database with a conditional update, as a store: SQL (UPDATE ... WHERE record =
 * old), memcached (gets, cas), etcd (txn), DynamoDB or Tablestore (conditional update). The
 * arithmetic runs here. Fill in, then ratelimit_cas_store.
 *
 * load   1: found, all 24 bytes written to record; 0: no such key; below 0: failed
 * swap   puts record if the key still holds exactly old (NULL: if there is still no such key).
 *        1: done; 0: it changed, try again; below 0: failed. Always comes right after the load of
 *        the same key that found old, so a version number noted there serves as well. After ttl_ns
 *        the record may be deleted: then it means the same as a missing one. ttl_ns 0: now.
 * key    the key of the request, then the four bytes of the limit's scope, little-endian
 * clock  must be common to all who share the database, so usually a wall clock or the
 *        database's */
typedef struct ratelimit_cas {
    void *self; /* passed to load and swap */
    int (*load)(void *self, const void *key, size_t key_len, unsigned char *record);
    int (*swap)(void *self, const void *key, size_t key_len, const unsigned char *old_or_null,
                const unsigned char *record, uint64_t ttl_ns);
    ratelimit_clock clock; /* required */
    void *clock_self;
    uint32_t tries;   /* swaps per decision before STORE_FAILED; 0: 16. Give more if many processes
                         write one key at once: each failed swap means that another succeeded */
    uint64_t step_ns; /* as ratelimit_table_options.step_ns */
} ratelimit_cas;

/* ratelimit_cas_store  cas must stay where it is while the store is in use. ALL is UNSUPPORTED for
 * more than one request. A key above 508 bytes is BAD_KEY. A record of another format is
 * STORE_FAILED and left alone. Threads: as load and swap. A refusal writes only when the power of
 * two below the debt changed since the last write. */
RATELIMIT_API ratelimit_store ratelimit_cas_store(ratelimit_cas *cas);

/* ratelimit_tier_counts  What a tier has done. */
typedef struct ratelimit_tier_counts {
    uint64_t stored;   /* decisions made by the store */
    uint64_t leased;   /* by a lease */
    uint64_t refused;  /* by a cached refusal */
    uint64_t fallback; /* by local buckets, because the store failed */
    uint64_t failed;   /* by nobody here: left to the limiter's on_failure */
    uint64_t calls;    /* of the store, each with one batch */
    uint64_t failures; /* of calls: every answer was STORE_FAILED */
} ratelimit_tier_counts;

/* ratelimit_tier  A local table in front of a store that is far away, so that most decisions need
 * no round trip. Zero it, set store and table and the options you want, then ratelimit_tier_store.
 *
 * Refusals. A TAKE that the store refused is refused here until its retry_after_ns, at most
 * trust_ns after the store was asked. For that long a refund, a reset or a raised limit of another
 * node may go unseen. What is kept is how much the key owes, so a refused request of 10 tokens does
 * not refuse one of 1.
 *
 * Leases. A key is hot if a TAKE comes within lease_ns of the last one that the store allowed. A
 * hot key takes a lease at once (lease_percent of the burst, at most 1,048,575 tokens), if the
 * store's last answer said that enough tokens remain. Takes are served from the lease until it is
 * used up, or until lease_ns after the store was asked for it. A block of another node may go
 * unseen for that long. Each token is paid for before it is served: all nodes together never pass
 * more than burst + rate x time since the start. In a span that begins later, the bound is higher
 * by what leases held then: at most one lease for each node and key. What is not served in time is
 * lost. Not leased: fixed windows, requests of a lease's size or more, limits with leases below 2
 * tokens. remaining and reset_after_ns of an answer from a lease are estimates, made of the store's
 * last answer and of what the lease still holds.
 *
 * REFUND, CANCEL, BLOCK and RESET through this tier end the entry of their key, also what was being
 * asked for meanwhile. A changed limit ends it, too. Every other operation, and every batch of ALL,
 * goes to the store.
 *
 * A store that fails. What failed is the request, not the store: other requests go on, and the next
 * one asks again. So a store should fail at once while it knows its server to be dead (the Redis
 * store does). nodes above 0: a request that failed is decided on a local bucket at limit / nodes
 * (rate and burst, the burst at least 1). The bucket begins with what a cached refusal says that
 * the key owes, else full. So in one outage each node passes at most burst / nodes (at least 1) and
 * rate / nodes x time, all of them together one burst and rate x time. The store does not learn of
 * these takes: when it is back, its buckets have refilled. nodes 0: the limiter's on_failure
 * decides. result.status is STORE_FAILED in both cases.
 *
 * Tiers of several processes on one machine, over one store and with the same options, may share a
 * table in shared memory. Then they are one node. */
typedef struct ratelimit_tier {
    ratelimit_store store; /* decides what cannot be decided here */
    /* For tiers alone: one place for each key and limit, two if nodes is above 0. If it is too
     * small, the store is called more often. */
    ratelimit_table *table;
    /* Options: all may stay zero. */
    ratelimit_clock clock; /* NULL: ratelimit_clock_ns; need not agree with the store's */
    void *clock_self;
    uint64_t trust_ns;      /* 0: 1 s */
    uint64_t lease_ns;      /* 0: 1 s */
    uint32_t lease_percent; /* 1 to 100; 0: no leases */
    uint32_t nodes;         /* how many tables of tiers share the limits */
    /* The rest is the tier's own. */
    ratelimit_tier_counts counts;
} ratelimit_tier;

/* ratelimit_tier_store  The tier as a store. tier must stay where it is while in use. Batches of
 * EACH are sent in parts of up to RATELIMIT_MAX_ALL; more than that in ALL are BAD_ARGUMENT. close
 * closes tier->store. Without store or table BAD_ARGUMENT, without any clock STORE_FAILED, at every
 * call. Threads: as tier->store; no lock is held while it is asked. */
RATELIMIT_API ratelimit_store ratelimit_tier_store(ratelimit_tier *tier);

/* ratelimit_tier_stats  A copy of the counters, each read whole. Threads: any. */
RATELIMIT_API void ratelimit_tier_stats(const ratelimit_tier *tier, ratelimit_tier_counts *out);

/* ---- >>limiter ------------------------------------------------------------------------------- */

/* Who decides when the store failed. */
typedef enum ratelimit_failure {
    RATELIMIT_FAIL_OPEN = 0, /* let through, as services want */
    RATELIMIT_FAIL_CLOSED,   /* refuse */
    RATELIMIT_FAIL_LOCAL     /* ask limiter.fallback; if it fails too, refuse */
} ratelimit_failure;

typedef struct ratelimit_counts {
    uint64_t allowed;        /* decisions that let the caller go on, for whatever reason */
    uint64_t refused;        /* decisions that did not */
    uint64_t shadow_refused; /* of allowed: would have been refused, but for shadow mode */
    uint64_t failed;         /* decisions of the failure policy, or of a tier whose store failed */
    uint64_t bad;            /* of refused: BAD_ statuses and SYNTAX, mistakes of the caller */
} ratelimit_counts;

/* ratelimit_limiter  A store with a failure policy, waiting, counters and a hook. Zero it, set the
 * options you want, then ratelimit_init. It must stay where it is while in use. */
typedef struct ratelimit_limiter {
    ratelimit_store store; /* set by ratelimit_init */
    /* Options: all may stay zero. */
    ratelimit_failure on_failure; /* who decides if the store failed, or cannot do all or none */
    ratelimit_store fallback;     /* for RATELIMIT_FAIL_LOCAL: any store, usually a table */
    bool shadow;                  /* let through what is refused; status says what it would be */
    void (*hook)(void *self, const ratelimit_request *req, const ratelimit_result *res);
    void *hook_self; /* hook is called with each decision */
    bool (*sleep)(void *self, uint64_t ns);
    void *sleep_self;      /* sleep sleeps; false: cancel the wait. NULL: the platform's */
    ratelimit_clock clock; /* measures waits; NULL: the store's, else ratelimit_clock_ns */
    void *clock_self;
    struct ratelimit_rules *rules; /* named limits, for ratelimit_allow_rule */
    /* The rest is the limiter's own. */
    ratelimit_counts counts;
    uint32_t canceled, jitter;
} ratelimit_limiter;

/* ratelimit_init  Makes *l ready to decide through store. Options set before stay. Returns
 * RATELIMIT_OK; BAD_ARGUMENT if l or store.decide is NULL, or on_failure is unknown or
 * RATELIMIT_FAIL_LOCAL without a fallback. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status ratelimit_init(ratelimit_limiter *l,
                                                                      ratelimit_store store);

/* ratelimit_allow, ratelimit_allow_n, ratelimit_allow_key  May key go on? True also if the store
 * failed, unless l->on_failure says otherwise. Takes 1 or n tokens of key now, or none. key is a
 * NUL-terminated text; for ratelimit_allow_key, which takes 1 token, it is any bytes. False for any
 * mistake (NULL, an empty key, a bad limit). Threads: any, as for all calls below but init and
 * close. Cost: over a table, without hook and shadow, a take from the table, the clock and a
 * counter. */
RATELIMIT_API bool ratelimit_allow(ratelimit_limiter *l, const char *key,
                                   const ratelimit_limit *limit);
RATELIMIT_API bool ratelimit_allow_n(ratelimit_limiter *l, const char *key,
                                     const ratelimit_limit *limit, uint64_t n);
RATELIMIT_API bool ratelimit_allow_key(ratelimit_limiter *l, const void *key, size_t key_len,
                                       const ratelimit_limit *limit);

/* ratelimit_take  One request of any operation. Returns result.allowed. */
RATELIMIT_API bool ratelimit_take(ratelimit_limiter *l, const ratelimit_request *req,
                                  ratelimit_result *out_or_null);

/* ratelimit_take_each, ratelimit_take_all  count requests, each on its own or all or none
 * (ratelimit_table_decide says what the results hold). True if all were allowed. res must not be
 * NULL. count 0: true. A store that cannot do all or none answers UNSUPPORTED to all; then
 * l->on_failure decides the whole batch, as if the store had failed, and the status stays. */
RATELIMIT_API bool ratelimit_take_each(ratelimit_limiter *l, const ratelimit_request *req,
                                       ratelimit_result *res, size_t count);
RATELIMIT_API bool ratelimit_take_all(ratelimit_limiter *l, const ratelimit_request *req,
                                      ratelimit_result *res, size_t count);

/* ratelimit_wait  Takes req->n tokens, and sleeps until they are there, at most max_wait_ns
 * (RATELIMIT_FOREVER: without end).
 *
 * req      op must be TAKE or RESERVE; its max_wait_ns is not used, the argument is
 *
 * Reserves where the store can: first come, first served, one wake-up, and TIMEOUT at once without
 * taking anything if it would take too long. Else polls at retry_after with jitter, at least once a
 * second. True: the tokens are taken and their time has come; wait_ns is the wait. False: TIMEOUT;
 * CANCELED: the reservation is given back if nobody reserved after it (over a network it may be
 * kept even then: if the request took longer to the store than the cancel did); DENIED: the key is
 * blocked (where the store can reserve); NEVER, FULL, a BAD_ status, STORE_FAILED under a closed
 * policy. UNSUPPORTED if there is no way to sleep (RATELIMIT_NO_CLOCK without sleep) or no clock.
 * In shadow mode nobody waits. */
RATELIMIT_API bool ratelimit_wait(ratelimit_limiter *l, const ratelimit_request *req,
                                  uint64_t max_wait_ns, ratelimit_result *out_or_null);

/* ratelimit_cancel  All waits of l, now and from now on, end with CANCELED, within 50 ms where the
 * platform's sleep is used. For shutting down. Threads: any. */
RATELIMIT_API void ratelimit_cancel(ratelimit_limiter *l);

/* ratelimit_limiter_counts  A copy of the counters, each read whole. They are exact where the chip
 * has 64-bit atomics, and under RATELIMIT_LOCK. Threads: any. */
RATELIMIT_API void ratelimit_limiter_counts(const ratelimit_limiter *l, ratelimit_counts *out);

/* ratelimit_close  Closes the store and the fallback. No call may be under way; later ones are
 * BAD_ARGUMENT. A second close does nothing. */
RATELIMIT_API void ratelimit_close(ratelimit_limiter *l);

/* ---- >>rules --------------------------------------------------------------------------------- */

/* ratelimit_rules  Named limits, read from a text. While any number of threads decide by the rules,
 * another thread may replace all of them. The text consists of lines:
 *
 *     line     = [ blanks ] [ name blanks limit { blanks word } [ blanks ] ] [ comment ]
 *     name     = 1 to 63 bytes without blanks and control characters; the first is not "#"
 *     limit    = as ratelimit_limit_parse reads it: "10/s burst 20", "1000/d window", "unlimited"
 *     word     = "shadow" | "closed" | "open"       each at most once, not both of the last two
 *     comment  = "#" and the rest of the line; it starts the line or follows a blank
 *
 * A line ends with LF, CRLF or the end of the text. Blanks are spaces or tabs. A byte order mark
 * may begin the text.
 *
 * Words. shadow: the rule decides and counts, but refuses nobody. closed, open: while the store
 * fails, refuse or let through, whatever the limiter's on_failure or a local bucket says.
 *
 * Look-up. The rule "login" and the key "alice" find the first of these names that is there:
 *
 *     login|alice   a rule for this key alone, for example a customer with a contract
 *     login         the whole name; if it has a "|" itself, then what precedes its first "|"
 *     default
 *
 * Without a rule the key itself is looked up: whole, then up to its first "|", then default.
 *
 * Bucket. The limit's scope is ratelimit_scope of the rule's name up to its first "|". So one key
 * under two rules has two buckets (but for one pair of names in 2^32). A rule whose limit changes
 * keeps its buckets, and a key that gets a limit of its own keeps what it had spent. */
typedef struct ratelimit_rules ratelimit_rules;

enum { RATELIMIT_RULE_NAME_BYTES = 64 }; /* with the NUL */

/* RATELIMIT_RULES_BYTES  The memory for max_rules rules, about 490 bytes each. */
#  define RATELIMIT_RULES_BYTES(max_rules)                                                         \
    (RATELIMIT_PRIV_CAST(size_t, RATELIMIT_PRIV_RULES_BYTES) +                                     \
     RATELIMIT_PRIV_CAST(size_t, max_rules) * RATELIMIT_PRIV_RULE_BYTES)
enum { RATELIMIT_PRIV_RULES_BYTES = 32 + 7 }; /* the head, and 7 for alignment */
#  define RATELIMIT_PRIV_ENTRY_BYTES (sizeof(ratelimit_rule) + 8u)
#  define RATELIMIT_PRIV_RULE_BYTES  (2u * (40u + RATELIMIT_PRIV_ENTRY_BYTES + 4u))

/* ratelimit_rules_init  An empty set of rules, in memory of any alignment and content, which must
 * stay where it is. Make it a limiter's option `rules`. max_rules is 1 to 2^24.
 *
 * Returns RATELIMIT_OK and *out; NO_MEMORY if bytes is below RATELIMIT_RULES_BYTES;
 * BAD_ARGUMENT. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status ratelimit_rules_init(ratelimit_rules **out,
                                                                            void *memory,
                                                                            size_t bytes,
                                                                            size_t max_rules);

/* Where a text is wrong. */
typedef struct ratelimit_fault {
    size_t line;      /* from 1; 0: nowhere */
    size_t column;    /* from 1, in bytes */
    const char *what; /* a few words, static; "" with RATELIMIT_NO_TEXT */
} ratelimit_fault;

/* ratelimit_rules_load  Replaces all rules by those of the text. If the text has a fault, the rules
 * stay as they are. A rule whose name was there before keeps its buckets and counters.
 *
 * Returns RATELIMIT_OK; SYNTAX, also for a name that comes twice; BAD_LIMIT, as
 * ratelimit_limit_parse; NO_MEMORY: more than max_rules; BUSY: this load was stopped for so long
 * that another took its place (RATELIMIT_TAKEOVER_MS); BAD_ARGUMENT: NULL. Threads: any. Loads wait
 * for each other, decisions wait for nothing. One load at a time where there are no atomics. */
RATELIMIT_API ratelimit_status ratelimit_rules_load(ratelimit_rules *rules, const char *text,
                                                    size_t text_len,
                                                    ratelimit_fault *fault_or_null);

/* ratelimit_rule  A rule, and what it has done since it was first loaded. */
typedef struct ratelimit_rule {
    char name[RATELIMIT_RULE_NAME_BYTES]; /* "": none was found */
    ratelimit_limit limit;
    bool shadow, closed, open; /* the words behind the limit */
    uint64_t allowed;          /* requests that could go on, for whatever reason */
    uint64_t refused;          /* requests that this rule refused; not those another one refused */
    uint64_t shadow_refused;   /* of allowed: would have been refused without shadow */
    uint64_t failed;           /* decided without the store */
} ratelimit_rule;

/* ratelimit_rules_find, ratelimit_rules_at  Finds the rule for a name, without a key; false if
 * there is none, not even default. Gets the index-th rule of the text; false if there are no more.
 * Threads: any. Cost: a look-up by hash, repeated if a load ended meanwhile. */
RATELIMIT_API bool ratelimit_rules_find(ratelimit_rules *rules, const char *name,
                                        ratelimit_rule *out);
RATELIMIT_API bool ratelimit_rules_at(ratelimit_rules *rules, size_t index, ratelimit_rule *out);

/* ratelimit_allow_rule  May this resource go on? Takes one token now or none, by the limiter's
 * rules.
 *
 * resource   a text: who or what is limited, the key of the bucket
 * rule       the name to look up; NULL: the resource is looked up
 *
 * (l, "alice", "login") and (l, "login|alice", NULL) both find a rule login|alice or login,
 * each with a bucket of its own. Refused, with BAD_LIMIT, if no rule is found or the limiter has
 * none. Threads: any. */
RATELIMIT_API bool ratelimit_allow_rule(ratelimit_limiter *l, const char *resource,
                                        const char *rule);

/* ratelimit_rule_request  { "login", RATELIMIT_REQUEST(key, key_len, NULL, 1) } */
typedef struct ratelimit_rule_request {
    const char *rule;          /* the name to look up; NULL: the key is looked up, as text */
    ratelimit_request request; /* any operation; its limit does not count */
} ratelimit_rule_request;

enum { RATELIMIT_MAX_RULE_REQUESTS = 8 };

/* ratelimit_take_rules  Decides requests by rule: one request, or several for one event (the user,
 * the address, the route), all or none.
 *
 * res             count results, as of ratelimit_take_all; ratelimit_binding tells which one counts
 * rules_or_null   else count rules: the rule that was found for each request
 * count           1 to RATELIMIT_MAX_RULE_REQUESTS, else BAD_ARGUMENT in each; 0 is true
 *
 * True if the event may go on. Requests under a shadow rule are decided after the others: if those
 * refuse, they take nothing and are SKIPPED, else they are allowed with the status they would have
 * had. A store that cannot take all or none (UNSUPPORTED: a cluster has the keys on several nodes)
 * is a store that fails: on_failure and the rules' words decide, the status stays UNSUPPORTED.
 * Threads: any. Cost: as ratelimit_take_all, and up to four look-ups by hash for each request. */
RATELIMIT_API bool ratelimit_take_rules(ratelimit_limiter *l, const ratelimit_rule_request *asked,
                                        ratelimit_result *res, ratelimit_rule *rules_or_null,
                                        size_t count);

/* ratelimit_binding  The index of the most restrictive result: the refusal with the longest
 * retry_after_ns; if none refused, the smallest remaining. 0 if count is 0. */
RATELIMIT_API size_t ratelimit_binding(const ratelimit_result *res, size_t count);

/* ratelimit_address_parse  Reads an IPv4 ("192.0.2.1") or IPv6 ("2001:db8::1", "::ffff:192.0.2.1")
 * address, strictly: no port, brackets, zone, leading zeros or blanks.
 *
 * Returns how many bytes of out it takes, 4 or 16, in network order; 0 if it is no address. */
RATELIMIT_API size_t ratelimit_address_parse(const char *text, size_t text_len,
                                             unsigned char out[16]);

enum { RATELIMIT_ADDRESS_KEY_BYTES = 18 };

/* ratelimit_address_key  Makes a key of the network that an address is in: 4 or 6, the prefix
 * length, the address with the bits behind the prefix cleared. IPv4 in IPv6 (::ffff:0:0/96) is the
 * IPv4 address.
 *
 * address        in network order: &sin_addr with 4 bytes, &sin6_addr with 16
 * bits4, bits6   prefix lengths, up to 32 and 128. Usual are 32 or 24, and 64, 56 or 48: one
 *                customer has at least a /64
 *
 * Returns the key's length, 6 or 18. 0 if there is no such address or prefix: a request with a
 * key_len of 0 is refused. */
RATELIMIT_API size_t ratelimit_address_key(const void *address, size_t address_bytes,
                                           unsigned bits4, unsigned bits6,
                                           unsigned char key[RATELIMIT_ADDRESS_KEY_BYTES]);

/* ---- >>text ---------------------------------------------------------------------------------- */

/* Sets of HTTP fields. */
enum {
    RATELIMIT_HTTP_X = 1,           /* X-RateLimit-Limit, -Remaining, -Reset */
    RATELIMIT_HTTP_RETRY_AFTER = 2, /* Retry-After, on a refusal */
    RATELIMIT_HTTP_DRAFT = 4,       /* RateLimit-Policy, RateLimit */
    RATELIMIT_HTTP_ALL = 7
};
enum { RATELIMIT_HTTP_FIELDS_BYTES = 320 };

/* ratelimit_http_fields  Writes a result as HTTP header fields, "Name: value" and CRLF each.
 *
 * limit    that was asked; NULL leaves out what needs it: RateLimit-Policy, and t if allowed
 * sets     of the fields, added up
 *
 * Times are whole seconds from now, rounded up. X-RateLimit-Limit is the burst, -Reset the time
 * until the bucket is full. Retry-After is at least 1, and left out where no waiting helps (NEVER,
 * BAD_). In the policy "default", w is the time in which a whole burst comes back, in seconds, at
 * least 1; q is the number of tokens that come back in w. In RateLimit, r is remaining, t the time
 * until there is one token more; on a refusal t is Retry-After, or left out with it. Numbers there
 * end at 999,999,999,999,999.
 *
 * Nothing is written of a result that is allowed although its status is not OK (by shadow mode or
 * by a failure policy), nor the numbers of a result that has none (unlimited; no store decided).
 * Source: draft-ietf-httpapi-ratelimit-headers-10.
 *
 * Returns the length without the NUL, see MEMORY. RATELIMIT_HTTP_FIELDS_BYTES are always enough. */
RATELIMIT_API size_t ratelimit_http_fields(const ratelimit_result *res,
                                           const ratelimit_limit *limit, unsigned sets, char *buf,
                                           size_t buf_bytes);

/* ratelimit_http_rule_fields  The same for what ratelimit_take_rules has set. RateLimit and its
 * policies list each rule once, by its name. Bytes that are not allowed there become "%" and two
 * digits. Shadow rules are left out. The other fields are of the most restrictive result.
 *
 * partition   the `pk` of all items: bytes that tell clients which of their quotas this is (an
 *             account, a hash of the key; it is shown to them). NULL or no bytes: none
 *
 * 512 x (count + 1) + 3 x count x partition_bytes bytes are always enough. */
RATELIMIT_API size_t ratelimit_http_rule_fields(const ratelimit_result *res,
                                                const ratelimit_rule *rules, size_t count,
                                                const void *partition, size_t partition_bytes,
                                                unsigned sets, char *buf, size_t buf_bytes);

/* ratelimit_http_status  What to answer: 200 if allowed; 429 if a limit refused, also that of a
 * local bucket while the store fails; 503 if there was no decision or no room: STORE_FAILED, FULL,
 * CANCELED; 500 for a mistake in the program: BAD_, UNSUPPORTED, NULL. (In gRPC: OK,
 * RESOURCE_EXHAUSTED, UNAVAILABLE, INTERNAL.) */
RATELIMIT_API int ratelimit_http_status(const ratelimit_result *res);

/* ratelimit_metrics  Writes counters in Prometheus' text format: of the limiter, its rules, its
 * store (a tier, Redis, or Redis behind a tier), and of a table at now_ns (this reads every line of
 * it). Both may be NULL. Counters are of this process: labels tell its samples from others'.
 *
 * labels_or_null   for all samples, in the format itself: instance="3",zone="b"
 *
 * Returns the length without the NUL, see MEMORY. Numbers that grow meanwhile may make the next
 * text longer. */
RATELIMIT_API size_t ratelimit_metrics(const ratelimit_limiter *l, const ratelimit_table *table,
                                       uint64_t now_ns, const char *labels_or_null, char *buf,
                                       size_t buf_bytes);

/* RATELIMIT_LOG  Runs a statement at most at the given rate at this place in a program, and says
 * how many times it was held back since it last ran:
 *
 *     RATELIMIT_LOG(RATELIMIT_LIMIT(10, 5 * RATELIMIT_SECOND, 10), missed,
 *                   fprintf(stderr, "disk slow (and %u more)\n", (unsigned)missed));
 *
 * limit    a constant initialiser of a ratelimit_limit
 * missed   a name: a uint32_t for the statement that follows
 *
 * Threads: any, where ratelimit_bucket_take_shared is declared. Elsewhere use each log statement
 * from one thread only, or from one interrupt. With RATELIMIT_NO_LOG the statement is compiled, but
 * never runs: it costs nothing. The time is RATELIMIT_LOG_NOW, an option: ratelimit_clock_ns(). */
#  if defined(RATELIMIT_NO_LOG)
#    define RATELIMIT_LOG(limit, missed, ...)                                                      \
      do {                                                                                         \
        if (0) {                                                                                   \
          uint32_t missed = 0;                                                                     \
          (void)missed;                                                                            \
          __VA_ARGS__;                                                                             \
        }                                                                                          \
      } while (0)
#  else
#    if !defined(RATELIMIT_LOG_NOW) && defined(RATELIMIT_NO_CLOCK)
#      define RATELIMIT_LOG_NOW RATELIMIT_LOG_needs_RATELIMIT_LOG_NOW
#    elif !defined(RATELIMIT_LOG_NOW)
#      define RATELIMIT_LOG_NOW ratelimit_clock_ns()
#    endif
#    define RATELIMIT_LOG(limit, missed, ...)                                                      \
      do {                                                                                         \
        static const ratelimit_limit ratelimit_priv_log_limit = limit;                             \
        static ratelimit_priv_log ratelimit_priv_log_here;                                         \
        uint32_t missed = 0;                                                                       \
        if (ratelimit_priv_log_pass(&ratelimit_priv_log_here, &ratelimit_priv_log_limit,           \
                                    RATELIMIT_LOG_NOW, &missed)) {                                 \
          __VA_ARGS__;                                                                             \
        }                                                                                          \
      } while (0)
#  endif

/* ratelimit_priv_log_pass  What the macro does: true if it may be logged now; *missed is then how
 * many times the answer was false since it was last true. */
typedef struct ratelimit_priv_log {
    ratelimit_bucket bucket;
    uint32_t missed;
} ratelimit_priv_log;
RATELIMIT_API bool ratelimit_priv_log_pass(ratelimit_priv_log *log, const ratelimit_limit *limit,
                                           uint64_t now_ns, uint32_t *missed);

/* ---- >>ticks --------------------------------------------------------------------------------- */

/* ratelimit_tick_limit, RATELIMIT_TICK_LIMIT  What is allowed, in ticks of the caller's own
 * counter: one token each interval_ticks, and at most burst at once.
 *
 *     static const ratelimit_tick_limit radio = RATELIMIT_TICK_LIMIT(1500, 4);
 *
 * Both are at least 1, and their product is below 2^30. Anything else refuses everything. Constants
 * cost nothing; values known at run time are also allowed. */
typedef struct ratelimit_tick_limit {
    uint32_t interval; /* ticks */
    uint32_t room;     /* a take passes while less than this is owed: (burst - 1) x interval + 1 */
} ratelimit_tick_limit;
#  define RATELIMIT_TICK_LIMIT(interval_ticks, burst)                                              \
    {                                                                                              \
      RATELIMIT_PRIV_TICKS(RATELIMIT_PRIV_CAST(uint64_t, interval_ticks),                          \
                           RATELIMIT_PRIV_CAST(uint64_t, burst),                                   \
                           RATELIMIT_PRIV_CAST(uint64_t, interval_ticks)),                         \
          RATELIMIT_PRIV_TICKS(RATELIMIT_PRIV_CAST(uint64_t, interval_ticks),                      \
                               RATELIMIT_PRIV_CAST(uint64_t, burst),                               \
                               (RATELIMIT_PRIV_CAST(uint64_t, burst) - 1) *                        \
                                       RATELIMIT_PRIV_CAST(uint64_t, interval_ticks) +             \
                                   1)                                                              \
    }
#  define RATELIMIT_PRIV_TICKS(interval, burst, value)                                             \
    RATELIMIT_PRIV_CAST(uint32_t, (interval) && (burst) && !((interval) >> 30) &&                  \
                                          !((burst) >> 30) && !((interval) * (burst) >> 30)        \
                                      ? (value)                                                    \
                                      : 0)

/* ratelimit_tick_take  Takes one token, now or not at all. A bucket is 4 bytes, and all arithmetic
 * has 32 bits: for chips on which a ratelimit_bucket is too much.
 *
 * full    the bucket: set it to the counter's value before the first use, or to 0 if the counter
 *         starts at 0
 * now     the counter, which wraps at 2^32; of one with fewer bits pass counter << (32 - bits), and
 *         make the limit with interval_ticks << (32 - bits)
 *
 * True if the token was taken. An idle time of up to half of the counter's range is always measured
 * right. The one weakness: after an idle time of nearly the whole range (49 days of ms) the bucket
 * may seem to owe what it owed at its beginning, and takes are refused, for 2 x burst x interval at
 * most. A counter value that is earlier than one seen before creates no tokens, if it is not
 * earlier by more than burst x interval. False for NULL. Threads: one caller at a time. Cost: no
 * multiplication, no division. */
RATELIMIT_API bool ratelimit_tick_take(uint32_t *full, const ratelimit_tick_limit *limit,
                                       uint32_t now);

/* ratelimit_tick_clock  Makes 64-bit ns of a counter that wraps. Zeroed, it starts at tick 0. */
typedef struct ratelimit_tick_clock {
    uint64_t ns, rest; /* rest: in 1/hz ns */
    uint32_t last;
} ratelimit_tick_clock;

/* ratelimit_tick_clock_ns  The time at this reading: exact to the ns, rounded down, for 584 years.
 *
 * ticks    the counter; for one that counts down (SysTick), 0u - counter
 * bits     of the counter, 1 to 32; it must run through all of them before it wraps
 * hz       1 to 2^62, always the same
 *
 * RATELIMIT_FOREVER for bits or hz out of range. The counter is assumed to have moved forward by
 * less than its whole range since the last call. So one tick back counts as the whole range less
 * one tick. Read it at least once in each range, in the order of the readings. An interrupt at each
 * wrap is not enough, as it may come a little late once: let it count the wraps, and pass more bits
 * (wraps << 24 | count, 32), or read twice in each range. Threads: one caller at a time. */
RATELIMIT_API uint64_t ratelimit_tick_clock_ns(ratelimit_tick_clock *clock, uint32_t ticks,
                                               unsigned bits, uint64_t hz);

/* ---- private: what the macros above need; not for use ---------------------------------------- */

enum { RATELIMIT_PRIV_OPS = RATELIMIT_RESET + 1 };
enum { RATELIMIT_PRIV_BUCKET = 1, RATELIMIT_PRIV_WINDOW, RATELIMIT_PRIV_UNLIMITED };
enum { RATELIMIT_PRIV_HEAD_BYTES = 128, RATELIMIT_PRIV_BLOCK = 8 };

/* Blocks of eight lines for max_keys keys: two places for each key, 24 places in a block. */
#  define RATELIMIT_PRIV_BLOCKS(keys) ((keys) / 12u + ((keys) % 12u != 0))

/* A limit of t tokens per p ns and a burst of b, as constant expressions; the functions evaluate
 * the same ones. Q whole ns and R/D make the interval. If tokens does not divide the period, D is t
 * itself (reducing the fraction would take a loop, and nothing depends on it). If t is too large
 * for that the fraction is F, in 2^-24 ns, rounded up. A t that is so large that F would overflow
 * is first shortened by S bits. What stays of it, T, is at least 2^24, so one unit more in F makes
 * up for the bits that were cut off. And what stays of M fits: M is below T, which is below 2^39,
 * or it is at most 2^62 >> 23; so (M << 24) + T is below 2^64. One limit is 12 to 20 KB of text for
 * the compiler: the more, the longer its numbers are written. An example: 7 per second is Q =
 * 142857142, R/D = 6/7. */
#  define RATELIMIT_PRIV_MAX     UINT64_C(0x4000000000000000) /* 2^62: longest window and debt */
#  define RATELIMIT_PRIV_PARTS   0x1000000                    /* 2^24: the most parts of a ns */
#  define RATELIMIT_PRIV_NZ(x)   ((x) + !(x))
#  define RATELIMIT_PRIV_S(t)    ((t) >> 39 ? (t) >> 54 ? 23 : 15 : 0)
#  define RATELIMIT_PRIV_T(t)    ((t) >> RATELIMIT_PRIV_S(t))
#  define RATELIMIT_PRIV_M(t, p) ((p) % RATELIMIT_PRIV_NZ(t))
#  define RATELIMIT_PRIV_F(t, p)                                                                   \
    (((RATELIMIT_PRIV_M(t, p) >> RATELIMIT_PRIV_S(t) << 24) + RATELIMIT_PRIV_T(t) - 1) /           \
         RATELIMIT_PRIV_NZ(RATELIMIT_PRIV_T(t)) +                                                  \
     ((t) >> 39 != 0))
#  define RATELIMIT_PRIV_BIG(t, p) ((t) > RATELIMIT_PRIV_PARTS && RATELIMIT_PRIV_M(t, p))
#  define RATELIMIT_PRIV_Q(t, p)                                                                   \
    ((p) / RATELIMIT_PRIV_NZ(t) + (RATELIMIT_PRIV_BIG(t, p) ? RATELIMIT_PRIV_F(t, p) >> 24 : 0))
#  define RATELIMIT_PRIV_R(t, p)                                                                   \
    (RATELIMIT_PRIV_BIG(t, p) ? RATELIMIT_PRIV_F(t, p) & 0xffffff : RATELIMIT_PRIV_M(t, p))
#  define RATELIMIT_PRIV_DF(t)                                                                     \
    ((t) > RATELIMIT_PRIV_PARTS ? RATELIMIT_PRIV_PARTS : RATELIMIT_PRIV_NZ(t))
#  define RATELIMIT_PRIV_D(t, p) (RATELIMIT_PRIV_M(t, p) ? RATELIMIT_PRIV_DF(t) : 1)
/* FITS: the same as GOOD if the interval is whole. Nothing in GOOD can overflow for what FITS lets
 * through. b x floor(p / t) is at most 2^62 by the last test of FITS, and Q is at most
 * floor(p / t) + 1. If p / t is below 1, the sum is at most b for Q and b for R/D, which is below
 * 1: below 2^64. If it is not, b is at most 2^62, and the sum at most three times that:
 * b x floor(p / t), b for Q, b for R/D. */
#  define RATELIMIT_PRIV_FITS(t, p, b)                                                             \
    ((t) && (b) && (t) <= INT64_MAX && (b) <= INT64_MAX && (p) + 1 > ((t) + 15) / 16 &&            \
     (p) <= RATELIMIT_PRIV_MAX &&                                                                  \
     (p) / RATELIMIT_PRIV_NZ(t) <= RATELIMIT_PRIV_MAX / RATELIMIT_PRIV_NZ(b))
#  define RATELIMIT_PRIV_GOOD(t, p, b)                                                             \
    (RATELIMIT_PRIV_FITS(t, p, b) &&                                                               \
     (!RATELIMIT_PRIV_M(t, p) ||                                                                   \
      (b)*RATELIMIT_PRIV_Q(t, p) + (b) / RATELIMIT_PRIV_DF(t) * RATELIMIT_PRIV_R(t, p) +           \
              ((b) % RATELIMIT_PRIV_DF(t) * RATELIMIT_PRIV_R(t, p) + RATELIMIT_PRIV_DF(t) - 1) /   \
                  RATELIMIT_PRIV_DF(t) <=                                                          \
          RATELIMIT_PRIV_MAX))
/* The interval as a number of 20 bits and a class: about m x 2^(4c - 20) ns. X is the interval in
 * 2^-40 ns, for intervals below 2^24 ns, so it fits into 64 bits. (The fraction of a t above 2^40
 * may come out as 1, but then p / t is at most 2^22.) H picks the highest group of four bits. */
#  define RATELIMIT_PRIV_Z(t) ((t) >> 40 ? 23 : 0)
#  define RATELIMIT_PRIV_X(t, p)                                                                   \
    (((p) / RATELIMIT_PRIV_NZ(t) << 40) + ((RATELIMIT_PRIV_M(t, p) >> RATELIMIT_PRIV_Z(t) << 24) / \
                                               RATELIMIT_PRIV_NZ((t) >> RATELIMIT_PRIV_Z(t))       \
                                           << 16))
#  define RATELIMIT_PRIV_H(x, c, s) (c * 0x100000 | (x) >> s)
#  define RATELIMIT_PRIV_SMALL(x)                                                                  \
    ((x) >> 60   ? RATELIMIT_PRIV_H(x, 6, 44)                                                      \
     : (x) >> 56 ? RATELIMIT_PRIV_H(x, 5, 40)                                                      \
     : (x) >> 52 ? RATELIMIT_PRIV_H(x, 4, 36)                                                      \
     : (x) >> 48 ? RATELIMIT_PRIV_H(x, 3, 32)                                                      \
     : (x) >> 44 ? RATELIMIT_PRIV_H(x, 2, 28)                                                      \
     : (x) >> 40 ? RATELIMIT_PRIV_H(x, 1, 24)                                                      \
                 : RATELIMIT_PRIV_H(x, 0, 20))
#  define RATELIMIT_PRIV_LARGE(x)                                                                  \
    ((x) >> 60   ? RATELIMIT_PRIV_H(x, 16, 44)                                                     \
     : (x) >> 56 ? RATELIMIT_PRIV_H(x, 15, 40)                                                     \
     : (x) >> 52 ? RATELIMIT_PRIV_H(x, 14, 36)                                                     \
     : (x) >> 48 ? RATELIMIT_PRIV_H(x, 13, 32)                                                     \
     : (x) >> 44 ? RATELIMIT_PRIV_H(x, 12, 28)                                                     \
     : (x) >> 40 ? RATELIMIT_PRIV_H(x, 11, 24)                                                     \
     : (x) >> 36 ? RATELIMIT_PRIV_H(x, 10, 20)                                                     \
     : (x) >> 32 ? RATELIMIT_PRIV_H(x, 9, 16)                                                      \
     : (x) >> 28 ? RATELIMIT_PRIV_H(x, 8, 12)                                                      \
                 : RATELIMIT_PRIV_H(x, 7, 8))
#  define RATELIMIT_PRIV_STATE(kind, t, p, b)                                                      \
    (((p) / RATELIMIT_PRIV_NZ(t) >> 24 ? RATELIMIT_PRIV_LARGE((p) / RATELIMIT_PRIV_NZ(t))          \
                                       : RATELIMIT_PRIV_SMALL(RATELIMIT_PRIV_X(t, p)))             \
         << 24 |                                                                                   \
     RATELIMIT_PRIV_CAST(uint64_t, (kind) == RATELIMIT_PRIV_WINDOW) << 49 |                        \
     (b)*UINT64_C(0x9E3779B97F4A7C15) >> 57 << 50)
#  define RATELIMIT_PRIV_SCOPE(kind, t, p, b)                                                      \
    RATELIMIT_PRIV_CAST(                                                                           \
        uint32_t, ((t)*UINT64_C(0x9E3779B97F4A7C15) ^ (p)*UINT64_C(0xC2B2AE3D27D4EB4F) ^           \
                   ((b) ^ RATELIMIT_PRIV_CAST(uint64_t, (kind) == RATELIMIT_PRIV_WINDOW) << 63) *  \
                       UINT64_C(0x165667B19E3779F9)) *                                             \
                          UINT64_C(0xD6E8FEB86659FD93) >>                                          \
                      32)
#  define RATELIMIT_PRIV_MADE(k, t, p, b, scope)                                                   \
    {                                                                                              \
      t, p, b,                                                                                     \
          (k) == RATELIMIT_PRIV_BUCKET && !RATELIMIT_PRIV_M(t, p) && RATELIMIT_PRIV_FITS(t, p, b)  \
              ? (b)                                                                                \
              : 0,                                                                                 \
          RATELIMIT_PRIV_Q(t, p), (b)*RATELIMIT_PRIV_Q(t, p), RATELIMIT_PRIV_STATE(k, t, p, b),    \
          RATELIMIT_PRIV_M(t, p)                                                                   \
              ? (UINT64_C(0x8000000000000000) + RATELIMIT_PRIV_DF(t) - 1) / RATELIMIT_PRIV_DF(t)   \
              : UINT64_MAX / RATELIMIT_PRIV_NZ((p) / RATELIMIT_PRIV_NZ(t)),                        \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_R(t, p)),                                   \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_D(t, p)),                                   \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_GOOD(t, p, b) ? (k) : 0), scope             \
    }
#  define RATELIMIT_PRIV_LIMIT(k, t, p, b)                                                         \
    RATELIMIT_PRIV_MADE(k, t, p, b, RATELIMIT_PRIV_SCOPE(k, t, p, b))

#  ifdef __cplusplus
}
#  endif
#endif /* RATELIMIT_H_INCLUDED */

/* Only the implementation below. */

#if defined(RATELIMIT_IMPLEMENTATION) && !defined(RATELIMIT_IMPLEMENTATION_INCLUDED)
#  define RATELIMIT_IMPLEMENTATION_INCLUDED

/* ---- >>implementation: what the platform gives ----------------------------------------------- */

#  if defined(__has_include)
#    if !__has_include(<string.h>)
#      define RATELIMIT_PRIV_NO_STRING_H
#    endif
#  endif
#  if !defined(RATELIMIT_PRIV_NO_STRING_H)
#    include <string.h> /* mem*, strlen */
#  else                 /* a compiler without a libc */
#    ifdef __cplusplus
extern "C" {
#    endif
extern void *memcpy(void *to, const void *from, size_t bytes);
extern void *memmove(void *to, const void *from, size_t bytes);
extern void *memset(void *to, int byte, size_t bytes);
extern int memcmp(const void *a, const void *b, size_t bytes);
extern size_t strlen(const char *text);
#    ifdef __cplusplus
}
#    endif
#  endif

#  ifndef RATELIMIT_STEP_NS
#    define RATELIMIT_STEP_NS (10 * RATELIMIT_SECOND)
#  endif
#  ifndef RATELIMIT_TAKEOVER_MS
#    define RATELIMIT_TAKEOVER_MS 200
#  endif
#  if RATELIMIT_TAKEOVER_MS < 1 || RATELIMIT_TAKEOVER_MS > 3600000
#    error "RATELIMIT_TAKEOVER_MS must be 1 to 3600000."
#  endif
#  ifndef RATELIMIT_MAX_ALL
#    if defined(RATELIMIT_NO_CLOCK)
#      define RATELIMIT_MAX_ALL 8
#    else
#      define RATELIMIT_MAX_ALL 64
#    endif
#  endif
#  if RATELIMIT_MAX_ALL < 1 || RATELIMIT_MAX_ALL > 4096
#    error "RATELIMIT_MAX_ALL must be 1 to 4096."
#  endif
#  if defined(RATELIMIT_LOCK) != defined(RATELIMIT_UNLOCK)
#    error "Define both RATELIMIT_LOCK and RATELIMIT_UNLOCK, or neither."
#  endif

/* PRIV_CAN: the chip has 32-bit compare-and-swap, and we may use it. PRIV_ATOMIC: the table and
 * shared buckets use it, that is, the caller gave no lock. PRIV_ATOMIC64: the same with 64 bits. */
#  if defined(RATELIMIT_NO_THREADS)
#    define RATELIMIT_PRIV_CAN 0
#  elif defined(__GNUC__) && defined(__GCC_ATOMIC_INT_LOCK_FREE) && __GCC_ATOMIC_INT_LOCK_FREE == 2
#    define RATELIMIT_PRIV_CAN 1
#  elif defined(_MSC_VER)
#    define RATELIMIT_PRIV_CAN 1
#  elif defined(__GNUC__) || defined(RATELIMIT_LOCK)
#    define RATELIMIT_PRIV_CAN 0
#  else
#    error "No atomics are known here: define RATELIMIT_NO_THREADS, or RATELIMIT_LOCK and _UNLOCK."
#  endif
#  if RATELIMIT_PRIV_CAN &&                                                                        \
      (defined(_WIN64) || (defined(__GNUC__) && defined(__GCC_ATOMIC_LLONG_LOCK_FREE) &&           \
                           __GCC_ATOMIC_LLONG_LOCK_FREE == 2))
#    define RATELIMIT_PRIV_CAN64 1
#  else
#    define RATELIMIT_PRIV_CAN64 0
#  endif
#  if defined(RATELIMIT_LOCK)
#    define RATELIMIT_PRIV_ATOMIC   0
#    define RATELIMIT_PRIV_ATOMIC64 0
#    define RATELIMIT_PRIV_ENTER()  RATELIMIT_LOCK()
#    define RATELIMIT_PRIV_LEAVE()  RATELIMIT_UNLOCK()
#  else
#    define RATELIMIT_PRIV_ATOMIC   RATELIMIT_PRIV_CAN
#    define RATELIMIT_PRIV_ATOMIC64 RATELIMIT_PRIV_CAN64
#    define RATELIMIT_PRIV_ENTER()  ((void)0)
#    define RATELIMIT_PRIV_LEAVE()  ((void)0)
#  endif

#  if defined(_MSC_VER)
#    include <intrin.h>
#  endif
/* With -Os nothing is there twice for the sake of speed. */
#  if defined(__OPTIMIZE_SIZE__)
#    define RATELIMIT_PRIV_SIZE 1
#    define RATELIMIT_PRIV_FAST inline
#  else
#    define RATELIMIT_PRIV_SIZE 0
#    define RATELIMIT_PRIV_FAST RATELIMIT_PRIV_INLINE
#  endif

/* Compares four 32-bit words at once, but not under a thread sanitizer, which does not know such
 * loads. */
#  if defined(__has_feature)
#    if __has_feature(thread_sanitizer)
#      define RATELIMIT_PRIV_NO_VECTOR
#    endif
#  endif
#  if defined(__SSE2__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) &&                   \
      !defined(RATELIMIT_PRIV_NO_VECTOR)
#    include <emmintrin.h>
#    define RATELIMIT_PRIV_SSE2 1
#  else
#    define RATELIMIT_PRIV_SSE2 0
#  endif
#  if !defined(RATELIMIT_NO_CLOCK) && !defined(_WIN32)
#    if defined(__linux__)
#      if defined(__has_include)
#        if __has_include(<sys/random.h>)
#          include <sys/random.h> /* getrandom */
#          define RATELIMIT_PRIV_RANDOM_H
#        endif
#      endif
#      include <sys/types.h> /* ssize_t */
#    endif
#    include <time.h>
#  endif

#  ifdef __cplusplus
#    if defined(__GNUC__) /* the implementation is C that C++ compiles too */
#      pragma GCC diagnostic push
#      pragma GCC diagnostic ignored "-Wold-style-cast"
#    endif
extern "C" {
#  endif

/* What the compiler gives for 32 and 64 bits. Loads acquire and stores release. So a
 * thread that sees a new lock word sees what was written before it; and a bucket that was read
 * before the word was not written after it. `old` is a variable. */
#  if RATELIMIT_PRIV_CAN && defined(__GNUC__)
#    define RATELIMIT_PRIV_LOAD(bits, p)         __atomic_load_n(p, __ATOMIC_ACQUIRE)
#    define RATELIMIT_PRIV_STORE(bits, p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
#    define RATELIMIT_PRIV_SWAP(bits, p, old, value)                                               \
      __atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#  elif RATELIMIT_PRIV_CAN
#    define RATELIMIT_PRIV_INT32      long
#    define RATELIMIT_PRIV_INT64      __int64
#    define RATELIMIT_PRIV_EXCHANGE32 _InterlockedExchange
#    define RATELIMIT_PRIV_EXCHANGE64 _InterlockedExchange64
#    define RATELIMIT_PRIV_COMPARE32  _InterlockedCompareExchange
#    define RATELIMIT_PRIV_COMPARE64  _InterlockedCompareExchange64
#    if defined(_M_ARM64)
#      define RATELIMIT_PRIV_LOAD(bits, p) __ldar##bits((volatile unsigned __int##bits *)(p))
#    else
#      define RATELIMIT_PRIV_LOAD(bits, p) (*(const volatile uint##bits##_t *)(p))
#      define RATELIMIT_PRIV_BARRIER()     _ReadWriteBarrier()
#    endif
#    define RATELIMIT_PRIV_STORE(bits, p, value)                                                   \
      ((void)RATELIMIT_PRIV_EXCHANGE##bits((volatile RATELIMIT_PRIV_INT##bits *)(p),               \
                                           (RATELIMIT_PRIV_INT##bits)(value)))
#    define RATELIMIT_PRIV_SWAP(bits, p, old, value)                                               \
      ((uint##bits##_t)RATELIMIT_PRIV_COMPARE##bits((volatile RATELIMIT_PRIV_INT##bits *)(p),      \
                                                    (RATELIMIT_PRIV_INT##bits)(value),             \
                                                    (RATELIMIT_PRIV_INT##bits)(old)) == (old))
#  else
#    define RATELIMIT_PRIV_LOAD(bits, p)             (*(p))
#    define RATELIMIT_PRIV_STORE(bits, p, value)     ((void)(*(p) = (value)))
#    define RATELIMIT_PRIV_SWAP(bits, p, old, value) (*(p) == (old) && (*(p) = (value), true))
#  endif
#  if !defined(RATELIMIT_PRIV_BARRIER)
#    define RATELIMIT_PRIV_BARRIER() ((void)0)
#  endif

static inline uint32_t ratelimit_priv_load32(const uint32_t *p)
{
    uint32_t value = RATELIMIT_PRIV_LOAD(32, p);
    RATELIMIT_PRIV_BARRIER();
    return value;
}
static inline void ratelimit_priv_store32(uint32_t *p, uint32_t value)
{
    RATELIMIT_PRIV_STORE(32, p, value);
}
static inline bool ratelimit_priv_swap32(uint32_t *p, uint32_t old, uint32_t value)
{
    return RATELIMIT_PRIV_SWAP(32, p, old, value);
}

#  if RATELIMIT_PRIV_CAN64 || !RATELIMIT_PRIV_CAN
static inline uint64_t ratelimit_priv_load64(const uint64_t *p)
{
    uint64_t value = RATELIMIT_PRIV_LOAD(64, p);
    RATELIMIT_PRIV_BARRIER();
    return value;
}
static inline void ratelimit_priv_store64(uint64_t *p, uint64_t value)
{
    RATELIMIT_PRIV_STORE(64, p, value);
}
static inline bool ratelimit_priv_swap64(uint64_t *p, uint64_t old, uint64_t value)
{
    return RATELIMIT_PRIV_SWAP(64, p, old, value);
}
#  else
/* Where 64 bits cannot be read at once, their halves are: the line's lock tells whether the halves
 * belong together. */
#    if defined(__GNUC__)
typedef uint32_t __attribute__((may_alias)) ratelimit_priv_half;
#    else
typedef uint32_t ratelimit_priv_half;
#    endif
static inline uint64_t ratelimit_priv_load64(const uint64_t *p)
{
    const ratelimit_priv_half *half = (const ratelimit_priv_half *)(const void *)p;
    uint32_t part[2];
    uint64_t value;
    part[0] = ratelimit_priv_load32(half);
    part[1] = ratelimit_priv_load32(half + 1);
    memcpy(&value, part, sizeof value);
    return value;
}
static inline void ratelimit_priv_store64(uint64_t *p, uint64_t value)
{
    ratelimit_priv_half *half = (ratelimit_priv_half *)(void *)p;
    uint32_t part[2];
    memcpy(part, &value, sizeof value);
    ratelimit_priv_store32(half, part[0]);
    ratelimit_priv_store32(half + 1, part[1]);
}
/* Not atomic: only under a lock. */
static inline bool ratelimit_priv_swap64(uint64_t *p, uint64_t old, uint64_t value)
{
    if (ratelimit_priv_load64(p) != old)
        return false;
    ratelimit_priv_store64(p, value);
    return true;
}
#  endif

/* Adds to a counter; returns what it was. Exact where 64-bit atomics are lock-free, or under the
 * caller's lock; else good enough to read. Outside of a decision see ratelimit_priv_add64. */
static inline uint64_t ratelimit_priv_bump(uint64_t *p, uint64_t value)
{
#  if RATELIMIT_PRIV_CAN64 && defined(__GNUC__)
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
#  elif RATELIMIT_PRIV_CAN64
    return (uint64_t)_InterlockedExchangeAdd64((volatile __int64 *)p, (__int64)value);
#  else
    uint64_t before = ratelimit_priv_load64(p);
    ratelimit_priv_store64(p, before + value);
    return before;
#  endif
}

static inline void ratelimit_priv_add64(uint64_t *p, uint64_t value)
{
#  if !RATELIMIT_PRIV_CAN64
    RATELIMIT_PRIV_ENTER();
#  endif
    (void)ratelimit_priv_bump(p, value);
#  if !RATELIMIT_PRIV_CAN64
    RATELIMIT_PRIV_LEAVE();
#  endif
}

static inline void ratelimit_priv_prefetch(const void *p)
{
#  if defined(__GNUC__)
    __builtin_prefetch(p, 1);
#  else
    (void)p;
#  endif
}

/* The position of the highest bit set; x is not 0. */
static inline unsigned ratelimit_priv_log2(uint64_t x)
{
#  if defined(__GNUC__) && (defined(__x86_64__) || defined(__aarch64__) || __SIZEOF_POINTER__ == 8)
    return 63u ^ (unsigned)__builtin_clzll(x);
#  else
    unsigned n = x >> 32 ? 32 : 0;
    uint32_t half = (uint32_t)(x >> 32 ? x >> 32 : x);
    while (half >>= 1)
        n++;
    return n;
#  endif
}

/* The upper half of a product. */
#  if defined(__SIZEOF_INT128__)
#    define RATELIMIT_PRIV_WIDE 1
__extension__ typedef unsigned __int128 ratelimit_priv_wide;
static inline uint64_t ratelimit_priv_high(uint64_t a, uint64_t b)
{
    return (uint64_t)((ratelimit_priv_wide)a * b >> 64);
}
#  else
#    define RATELIMIT_PRIV_WIDE 0
static inline uint64_t ratelimit_priv_high(uint64_t a, uint64_t b)
{
    uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX);
    uint64_t cross = (a >> 32) * (b & UINT32_MAX) + (low >> 32);
    uint64_t other = (a & UINT32_MAX) * (b >> 32) + (cross & UINT32_MAX);
    return (a >> 32) * (b >> 32) + (cross >> 32) + (other >> 32);
}
#  endif

/* ratelimit_priv_random fills 16 bytes that nobody can guess; false if the system has none. */
#  if !defined(RATELIMIT_NO_CLOCK)
#    if defined(_WIN32)
/* The functions of Windows that we need, declared as its headers do. windows.h is not included: it
 * defines near, far, min and max, and must not come before winsock2.h. */
union _LARGE_INTEGER;
__declspec(dllimport) int __cdecl rand_s(unsigned int *random);
__declspec(dllimport) int __stdcall QueryPerformanceCounter(union _LARGE_INTEGER *count);
__declspec(dllimport) int __stdcall QueryPerformanceFrequency(union _LARGE_INTEGER *hz);
__declspec(dllimport) void __stdcall Sleep(unsigned long ms);

RATELIMIT_API uint64_t ratelimit_clock_ns(void)
{
    uint64_t ticks = 0, hz = 1;
    QueryPerformanceCounter((union _LARGE_INTEGER *)(void *)&ticks);
    QueryPerformanceFrequency((union _LARGE_INTEGER *)(void *)&hz);
    return ticks / hz * RATELIMIT_SECOND + ticks % hz * RATELIMIT_SECOND / hz;
}
static void ratelimit_priv_sleep(uint64_t ns)
{
    Sleep((unsigned long)((ns + 999999) / 1000000));
}
static bool ratelimit_priv_random(uint64_t *seed)
{
    unsigned int part[4], i;
    for (i = 0; i < 4; i++)
        if (rand_s(&part[i]) != 0)
            return false;
    memcpy(seed, part, sizeof part);
    return true;
}
#    else
#      if defined(CLOCK_MONOTONIC)
typedef struct timespec ratelimit_priv_timespec;
#      elif defined(__linux__)
/* A strict -std=c99 hides these from <time.h> if anything was included before us without
 * _POSIX_C_SOURCE. */
typedef struct ratelimit_priv_timespec {
    long tv_sec, tv_nsec;
} ratelimit_priv_timespec;
extern int clock_gettime(int, ratelimit_priv_timespec *);
extern int nanosleep(const ratelimit_priv_timespec *, ratelimit_priv_timespec *);
#        define CLOCK_MONOTONIC 1
#      else
#        error "<time.h> hides clock_gettime: define _POSIX_C_SOURCE as 199309L."
#      endif
#      if defined(__linux__)
#        define RATELIMIT_PRIV_CLOCK 7 /* CLOCK_BOOTTIME: also counts suspend */
#      else
#        define RATELIMIT_PRIV_CLOCK CLOCK_MONOTONIC
#      endif
RATELIMIT_API uint64_t ratelimit_clock_ns(void)
{
    ratelimit_priv_timespec now;
    if (clock_gettime(RATELIMIT_PRIV_CLOCK, &now) != 0 && clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return 0;
    return (uint64_t)now.tv_sec * RATELIMIT_SECOND + (uint64_t)now.tv_nsec;
}
static void ratelimit_priv_sleep(uint64_t ns)
{
    ratelimit_priv_timespec span;
    memset(&span, 0, sizeof span);
    span.tv_sec = ns / RATELIMIT_SECOND > 1000000 ? 1000000 : (long)(ns / RATELIMIT_SECOND);
    span.tv_nsec = (long)(ns % RATELIMIT_SECOND);
    (void)nanosleep(&span, NULL);
}
#      if defined(__linux__) && !defined(__ANDROID__)
#        if !defined(RATELIMIT_PRIV_RANDOM_H)
extern ssize_t getrandom(void *bytes, size_t count, unsigned flags);
#        endif
static bool ratelimit_priv_random(uint64_t *seed)
{
    int tries = 100; /* a signal may end a call early, while the machine starts */
    while (getrandom(seed, 16, 0) != 16)
        if (!--tries)
            return false;
    return true;
}
#      else
extern void arc4random_buf(void *bytes, size_t count);
static bool ratelimit_priv_random(uint64_t *seed)
{
    arc4random_buf(seed, 16);
    return true;
}
#      endif
#    endif
static uint64_t ratelimit_priv_platform_clock(void *self)
{
    (void)self;
    return ratelimit_clock_ns();
}
#    define RATELIMIT_PRIV_PLATFORM_CLOCK ratelimit_priv_platform_clock
#  else
#    define RATELIMIT_PRIV_PLATFORM_CLOCK NULL
#  endif

/* ---- >>implementation: waiting ------------------------------------------------------------------

   A lock is a 32-bit word: odd while held, one more at each step. A reader sees whether anything
   changed while it looked (the same even word before and after). A writer decides first and takes
   the lock with the compare-and-swap that proves that the word is still the one it read.

   A waiter spins, then sleeps in steps of a millisecond. If the word is the same for
   RATELIMIT_TAKEOVER_MS steps, the waiter frees the lock with one more compare-and-swap. Its holder
   may have died, or may only be slow: nothing depends on which (see the table). Steps are counted,
   not time: a machine that was suspended does not look dead. Without a clock there is nothing to
   sleep with, so there is no takeover, unless the caller gives RATELIMIT_SLEEP_MS. */

static inline void ratelimit_priv_relax(void)
{
#  if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_ia32_pause();
#  elif defined(__GNUC__) && (defined(__aarch64__) || (defined(__ARM_ARCH) && __ARM_ARCH >= 7))
    __asm__ volatile("yield");
#  elif defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
    _mm_pause();
#  endif
}

#  if RATELIMIT_PRIV_CAN
#    ifndef RATELIMIT_PRIV_SPINS /* tests/interleavings.h needs only one */
#      define RATELIMIT_PRIV_SPINS 1000
#    endif
/* One step of a wait; true when the lock may be taken over. *turns starts at 0 for each value of
 * the lock. */
static bool ratelimit_priv_wait_turn(uint32_t *turns)
{
    if ((*turns)++ < RATELIMIT_PRIV_SPINS) {
        ratelimit_priv_relax();
        return false;
    }
#    if defined(RATELIMIT_SLEEP_MS)
    RATELIMIT_SLEEP_MS(1);
#    elif !defined(RATELIMIT_NO_CLOCK)
    ratelimit_priv_sleep(RATELIMIT_MILLISECOND);
#    else
    *turns = 1;
    ratelimit_priv_relax();
#    endif
    return *turns > RATELIMIT_PRIV_SPINS + RATELIMIT_TAKEOVER_MS;
}

/* Returns when the lock no longer has this odd word: its holder is done, or we freed it. */
static RATELIMIT_PRIV_NOINLINE void ratelimit_priv_wait_lock(uint32_t *lock, uint32_t word)
{
    uint32_t turns = 0;
    while (ratelimit_priv_load32(lock) == word)
        if (ratelimit_priv_wait_turn(&turns))
            (void)ratelimit_priv_swap32(lock, word, word + 1);
}
#  endif

/* ---- >>implementation: limits ---------------------------------------------------------------- */

static ratelimit_limit ratelimit_priv_make(uint32_t kind, uint64_t t, uint64_t p, uint64_t b)
{
    ratelimit_limit l = RATELIMIT_PRIV_LIMIT(kind, t, p, b);
    return l;
}

RATELIMIT_API ratelimit_limit ratelimit_limit_make(uint64_t tokens, uint64_t per_ns, uint64_t burst)
{
    return ratelimit_priv_make(RATELIMIT_PRIV_BUCKET, tokens, per_ns, burst);
}

RATELIMIT_API ratelimit_limit ratelimit_window_make(uint64_t tokens, uint64_t per_ns)
{
    return ratelimit_priv_make(RATELIMIT_PRIV_WINDOW, tokens, per_ns, tokens);
}

RATELIMIT_API ratelimit_status ratelimit_limit_check(const ratelimit_limit *limit)
{
    ratelimit_limit made;
    if (!limit || limit->kind < RATELIMIT_PRIV_BUCKET || limit->kind > RATELIMIT_PRIV_UNLIMITED)
        return RATELIMIT_BAD_LIMIT;
    if (limit->kind == RATELIMIT_PRIV_UNLIMITED)
        return RATELIMIT_OK;
    made = ratelimit_priv_make(limit->kind, limit->tokens, limit->per_ns, limit->burst);
    made.scope = limit->scope;
    return memcmp(&made, limit, sizeof made) == 0 ? RATELIMIT_OK : RATELIMIT_BAD_LIMIT;
}

/* ---- >>implementation: text of limits ----------------------------------------------------------

   Here are the reader that limits and rules share and the writer that all text goes through.

   The reader goes from left to right; only blanks may be read twice. An example is "1.5/0.5s burst
   3": the number is 15 with 1 place, so 15/10; so is the period, 5/10 of a unit of 10^9 ns. The
   period is 5 x 10^9 / 10 = 5 x 10^8 ns, a whole number. 15/10 tokens in that time are 3 in twice
   the time: 3 tokens, 10^9 ns. Nothing is rounded: "0.1/s" is 1 in 10 s, and a limit that has no
   such whole numbers is BAD_LIMIT.

   The writer counts all of a text and keeps what fits. So each function that writes is called in
   the same way whether there is room or not, and its caller learns how much room was needed. */

static size_t ratelimit_priv_len(const char *text)
{
    return text ? strlen(text) : 0;
}

RATELIMIT_API const char *ratelimit_status_text(ratelimit_status status)
{
#  if defined(RATELIMIT_NO_TEXT)
    (void)status;
    return "";
#  else
    static const char *const texts[RATELIMIT_LOST + 1] = {
        "ok",
        "denied",
        "never: more than the burst, or a debt that would be too long",
        "skipped: another request of the batch was refused",
        "full: no room for a new key",
        "timeout: the wait would be too long",
        "canceled",
        "bad key",
        "bad limit",
        "bad count",
        "bad argument",
        "syntax error",
        "not enough memory",
        "store failed",
        "unsupported",
        "busy",
        "lost"};
    return (unsigned)status <= RATELIMIT_LOST ? texts[status] : "unknown status";
#  endif
}

/* 32-bit FNV-1a. */
RATELIMIT_API uint32_t ratelimit_scope(const char *name, size_t len)
{
    uint32_t hash = UINT32_C(2166136261);
    size_t i;
    for (i = 0; name && i < len; i++)
        hash = (hash ^ (unsigned char)name[i]) * UINT32_C(16777619);
    return hash;
}

/* ---- reading ---- */

/* A text being read. at moves only past accepted text. So after a failure it points to the
 * fault. */
typedef struct ratelimit_priv_text {
    const char *at, *end;
} ratelimit_priv_text;

/* From the shortest on. "ms" comes before "m", which begins it. */
static const struct {
    char name[4];
    uint64_t ns;
} ratelimit_priv_units[] = {{"ns", 1},
                            {"us", RATELIMIT_MICROSECOND},
                            {"ms", RATELIMIT_MILLISECOND},
                            {"s", RATELIMIT_SECOND},
                            {"m", RATELIMIT_MINUTE},
                            {"h", RATELIMIT_HOUR},
                            {"d", RATELIMIT_DAY},
                            {"w", RATELIMIT_WEEK}};
enum { RATELIMIT_PRIV_UNITS = sizeof ratelimit_priv_units / sizeof *ratelimit_priv_units };

static bool ratelimit_priv_word(ratelimit_priv_text *t, const char *word)
{
    size_t len = ratelimit_priv_len(word);
    if ((size_t)(t->end - t->at) < len || memcmp(t->at, word, len) != 0)
        return false;
    t->at += len;
    return true;
}

static bool ratelimit_priv_is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool ratelimit_priv_blanks(ratelimit_priv_text *t)
{
    const char *from = t->at;
    while (t->at != t->end && ratelimit_priv_is_blank(*t->at))
        t->at++;
    return t->at != from;
}

/* Blanks and a word. If they are not there nothing is read. */
static bool ratelimit_priv_option(ratelimit_priv_text *t, const char *word)
{
    const char *from = t->at;
    if (ratelimit_priv_blanks(t) && ratelimit_priv_word(t, word))
        return true;
    t->at = from;
    return false;
}

static bool ratelimit_priv_digit(const ratelimit_priv_text *t)
{
    return t->at != t->end && *t->at >= '0' && *t->at <= '9';
}

/* Reads digits, with a fraction if places is not NULL. The number is *value / 10^*places. If the
 * number does not fit in 64 bits, *value is 0. No caller accepts 0. */
static bool ratelimit_priv_number(ratelimit_priv_text *t, uint64_t *value, size_t *places)
{
    const char *point = NULL;
    bool fits = true;
    if (!ratelimit_priv_digit(t))
        return false;
    for (*value = 0; ratelimit_priv_digit(t); t->at++) {
        uint64_t digit = (uint64_t)(*t->at - '0');
        fits = fits && *value <= (UINT64_MAX - digit) / 10;
        *value = *value * 10 + digit;
        if (places && !point && t->end - t->at > 1 && t->at[1] == '.')
            point = ++t->at;
    }
    if (point && t->at == point + 1)
        return false; /* no digit behind the point */
    if (places)
        *places = point ? (size_t)(t->at - point) - 1 : 0;
    *value = fits ? *value : 0;
    for (; places && *places && *value % 10 == 0; --*places)
        *value /= 10;
    return true;
}

static bool ratelimit_priv_unit(ratelimit_priv_text *t, uint64_t *ns)
{
    size_t i;
    for (i = 0; i < RATELIMIT_PRIV_UNITS; i++)
        if (ratelimit_priv_word(t, ratelimit_priv_units[i].name)) {
            *ns = ratelimit_priv_units[i].ns;
            return true;
        }
    return false;
}

/* Divides the product of two numbers by 10^places: *a, or else *b. With times it is their quotient
 * that is divided, so *b is multiplied: 0.5/m is 1 per 2 minutes, not 5 per 10. It goes by factors
 * of 2 and 5, so that *a gives what it has: 5 / 10 takes the 5 out of *a, and only the 2 falls to
 * *b. False: no whole numbers say the same. */
static bool ratelimit_priv_tenths(uint64_t *a, size_t places, uint64_t *b, bool times)
{
    size_t i;
    for (i = 0; i < 2 * places; i++) {
        unsigned factor = i % 2 ? 5 : 2;
        if (*a % factor == 0)
            *a /= factor;
        else if (times && *b <= UINT64_MAX / factor)
            *b *= factor;
        else if (!times && *b % factor == 0)
            *b /= factor;
        else
            return false;
    }
    return true;
}

/* Reads a limit. What follows it is the caller's. The whole syntax is checked first, then the
 * values: after BAD_LIMIT, *wrong is the number that is wrong. */
static ratelimit_status ratelimit_priv_read_limit(ratelimit_priv_text *t, ratelimit_limit *out,
                                                  const char **wrong)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    const char *tokens_at = t->at, *per_at, *burst_at = NULL;
    uint64_t tokens, per = 1, burst, unit;
    size_t places, per_places = 0, i;
    bool window;
    if (ratelimit_priv_word(t, "unlimited")) {
        *out = unlimited;
        return RATELIMIT_OK;
    }
    if (!ratelimit_priv_number(t, &tokens, &places) || !ratelimit_priv_word(t, "/"))
        return RATELIMIT_SYNTAX;
    per_at = t->at;
    if (ratelimit_priv_digit(t) && !ratelimit_priv_number(t, &per, &per_places))
        return RATELIMIT_SYNTAX;
    if (!ratelimit_priv_unit(t, &unit))
        return RATELIMIT_SYNTAX;
    for (burst = tokens, i = 0; i < places && burst > 1; i++)
        burst = burst / 10 + (burst % 10 != 0);
    if (ratelimit_priv_option(t, "burst")) {
        if (!ratelimit_priv_blanks(t))
            return RATELIMIT_SYNTAX;
        burst_at = t->at;
        if (!ratelimit_priv_number(t, &burst, NULL))
            return RATELIMIT_SYNTAX;
    }
    window = ratelimit_priv_option(t, "window");

    *wrong = tokens_at;
    if (!tokens)
        return RATELIMIT_BAD_LIMIT;
    *wrong = per_at;
    if (!ratelimit_priv_tenths(&per, per_places, &unit, false) || !per ||
        per > RATELIMIT_PRIV_MAX / unit)
        return RATELIMIT_BAD_LIMIT;
    per *= unit;
    *wrong = tokens_at;
    if (!ratelimit_priv_tenths(&tokens, places, &per, true))
        return RATELIMIT_BAD_LIMIT;
    *out = window ? ratelimit_window_make(tokens, per) : ratelimit_limit_make(tokens, per, burst);
    if (out->kind && !(window && burst_at && burst != tokens))
        return RATELIMIT_OK;
    *out = ratelimit_limit_make(tokens, per, 1);
    if (burst_at && out->kind) /* with a burst of 1 it would be good */
        *wrong = burst_at;
    return RATELIMIT_BAD_LIMIT;
}

/* Is all of t read? If not, what follows the blanks is the fault. */
static bool ratelimit_priv_at_end(ratelimit_priv_text *t)
{
    bool end = t->at == t->end;
    (void)ratelimit_priv_blanks(t);
    return end;
}

RATELIMIT_API ratelimit_status ratelimit_limit_parse_n(ratelimit_limit *out, const char *text,
                                                       size_t text_len, size_t *fault_at)
{
    const char *wrong = text;
    ratelimit_priv_text t;
    ratelimit_limit limit;
    ratelimit_status status;
    if (fault_at)
        *fault_at = 0;
    if (!out || !text)
        return RATELIMIT_BAD_ARGUMENT;
    t.at = text;
    t.end = text + text_len;
    status = ratelimit_priv_read_limit(&t, &limit, &wrong);
    if (status == RATELIMIT_SYNTAX || !ratelimit_priv_at_end(&t)) {
        status = RATELIMIT_SYNTAX;
        wrong = t.at;
    }
    if (status == RATELIMIT_OK)
        *out = limit;
    else if (fault_at)
        *fault_at = (size_t)(wrong - text);
    return status;
}

RATELIMIT_API ratelimit_status ratelimit_limit_parse(ratelimit_limit *out, const char *text)
{
    return ratelimit_limit_parse_n(out, text, ratelimit_priv_len(text), NULL);
}

/* ---- writing ---- */

/* A text being written. All of it is counted, what fits is kept. */
typedef struct ratelimit_priv_page {
    char *buf;
    size_t bytes, len;
} ratelimit_priv_page;

static void ratelimit_priv_page_begin(ratelimit_priv_page *p, char *buf, size_t buf_bytes)
{
    p->buf = buf;
    p->bytes = buf ? buf_bytes : 0;
    p->len = 0;
}

static void ratelimit_priv_put(ratelimit_priv_page *p, const char *text, size_t len)
{
    if (p->len < p->bytes)
        memcpy(p->buf + p->len, text, len < p->bytes - p->len ? len : p->bytes - p->len);
    p->len += len;
}

static void ratelimit_priv_say(ratelimit_priv_page *p, const char *text)
{
    ratelimit_priv_put(p, text, ratelimit_priv_len(text));
}

/* A text and a number. */
static void ratelimit_priv_say_field(ratelimit_priv_page *p, const char *name, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    ratelimit_priv_say(p, name);
    do
        digits[--at] = (char)('0' + (int)(value % 10));
    while (value /= 10);
    ratelimit_priv_put(p, digits + at, sizeof digits - at);
}

/* Ends the text with a NUL, or empties it if it does not fit. */
static size_t ratelimit_priv_page_end(ratelimit_priv_page *p)
{
    if (p->bytes)
        p->buf[p->len < p->bytes ? p->len : 0] = 0;
    return p->len;
}

RATELIMIT_API size_t ratelimit_limit_format(const ratelimit_limit *limit, char *buf,
                                            size_t buf_bytes)
{
    ratelimit_priv_page p;
    size_t unit = RATELIMIT_PRIV_UNITS - 1;
    ratelimit_priv_page_begin(&p, buf, buf_bytes);
    if (ratelimit_limit_check(limit) != RATELIMIT_OK) {
        ratelimit_priv_say(&p, "bad limit");
    } else if (limit->kind == RATELIMIT_PRIV_UNLIMITED) {
        ratelimit_priv_say(&p, "unlimited");
    } else {
        while (limit->per_ns % ratelimit_priv_units[unit].ns)
            unit--; /* the largest that leaves no remainder; 1 ns never does */
        ratelimit_priv_say_field(&p, "", limit->tokens);
        ratelimit_priv_say(&p, "/");
        if (limit->per_ns != ratelimit_priv_units[unit].ns)
            ratelimit_priv_say_field(&p, "", limit->per_ns / ratelimit_priv_units[unit].ns);
        ratelimit_priv_say(&p, ratelimit_priv_units[unit].name);
        if (limit->kind == RATELIMIT_PRIV_WINDOW)
            ratelimit_priv_say(&p, " window");
        else if (limit->burst != limit->tokens)
            ratelimit_priv_say_field(&p, " burst ", limit->burst);
    }
    return ratelimit_priv_page_end(&p);
}

/* ---- >>implementation: arithmetic ---------------------------------------------------------------

   The state of a bucket is the time at which it is full again (the theoretical arrival time of the
   GCRA), and a word `rest`:

       bits   0-23   F, the fraction of a ns: F = ceil(f x 2^24 / d) for the exact f/d. As d is at
                     most 2^24, f = floor(F x d / 2^24) gives f back.
             24-43   the interval it was charged at, m x 2^(4c - 20) ns: m ...
             44-48   ... and c, 0 to 16; greater numbers are states of another kind (CLASS_)
             49      1: charged under a fixed window
             50-56   code of the burst: (burst x 0x9E3779B97F4A7C15) >> 57
             57      1: the debt was made longer than the window on purpose (reserve, charge)
             58-63   seen: log2 of the ns until it was full, when the bucket was last seen

   rest 0 is a full bucket, whatever full_ns is.

   An example: 7 tokens a second, burst 14. The interval is 142857142 6/7 ns, so d is 7. One token
   is taken at 1 s from a full bucket: full_ns is 1142857142, f is 6, F = ceil(6 x 2^24 / 7) =
   14380471. 142857142 is 558035 x 2^8 and a bit: m is 558035 and c is 7. 14 x 0x9E3779B97F4A7C15
   mod 2^64 is 0xa708a8221015cb26, its upper seven bits are 83. The debt is 2^27.09 ns: seen is 27.
   A second later full_ns lies before now, and the bucket is full whatever else the word says.

   Everything is computed as a span ahead of now. Times are compared modulo 2^64, so a counter may
   pass its end; a debt is at most 2^62 ns, so what lies ahead and what lies behind cannot be
   confused. A fixed window adds the time to its end. */

typedef struct ratelimit_priv_span {
    uint64_t ns;
    uint32_t part; /* of 1/d ns */
} ratelimit_priv_span;

enum {
    RATELIMIT_PRIV_CLASS_BLOCK = 24, /* full_ns is its end, bits 0-43 how long to keep it */
    RATELIMIT_PRIV_CLASS_PERMIT,     /* full_ns is its end, bits 0-23 a serial number */
    RATELIMIT_PRIV_CLASS_LEASE,      /* entries of a tier */
    RATELIMIT_PRIV_CLASS_REFUSAL,
    RATELIMIT_PRIV_CLASS_HELD /* a shared bucket while it is changed */
};

#  define RATELIMIT_PRIV_PART_MASK   UINT64_C(0xffffff)
#  define RATELIMIT_PRIV_CODE_SHIFT  24
#  define RATELIMIT_PRIV_CLASS_SHIFT 44
#  define RATELIMIT_PRIV_IS_WINDOW   (UINT64_C(1) << 49)
#  define RATELIMIT_PRIV_ON_PURPOSE  (UINT64_C(1) << 57)
#  define RATELIMIT_PRIV_SEEN_SHIFT  58
/* What a limit and a bucket under it have in common: interval, window flag, code of the burst. */
#  define RATELIMIT_PRIV_CODE        (UINT64_C(0x1ffffffff) << 24)
#  define RATELIMIT_PRIV_AFTER_UNIT  (UINT64_C(1) << 18) /* ns, of what a block keeps */

static inline uint32_t ratelimit_priv_class(uint64_t rest)
{
    return (uint32_t)(rest >> RATELIMIT_PRIV_CLASS_SHIFT) & 31;
}

static inline uint64_t ratelimit_priv_class_bits(uint32_t which)
{
    return (uint64_t)which << RATELIMIT_PRIV_CLASS_SHIFT;
}

static inline uint64_t ratelimit_priv_seen_bits(uint64_t debt)
{
    return (uint64_t)ratelimit_priv_log2(debt | 1) << RATELIMIT_PRIV_SEEN_SHIFT;
}

/* The smallest power of two above the debt that was last seen. */
static inline uint64_t ratelimit_priv_seen_most(uint64_t rest)
{
    return UINT64_C(2) << (rest >> RATELIMIT_PRIV_SEEN_SHIFT);
}

/* Does rest say that the bucket was last seen with this debt? */
static inline bool ratelimit_priv_noted(uint64_t rest, uint64_t debt)
{
    return (debt | 1) >> (rest >> RATELIMIT_PRIV_SEEN_SHIFT) == 1;
}

/* ns from now to a time ahead; 0 if it lies behind. */
static inline uint64_t ratelimit_priv_ahead(uint64_t time, uint64_t now)
{
    uint64_t ahead = time - now;
    return ahead >> 63 ? 0 : ahead;
}

static RATELIMIT_PRIV_INLINE bool ratelimit_priv_above(ratelimit_priv_span a, ratelimit_priv_span b)
{
    return a.ns > b.ns || (a.ns == b.ns && a.part > b.part);
}

static RATELIMIT_PRIV_INLINE ratelimit_priv_span ratelimit_priv_plus(ratelimit_priv_span a,
                                                                     ratelimit_priv_span b,
                                                                     uint32_t parts)
{
    a.ns += b.ns;
    a.part += b.part;
    if (a.part >= parts) {
        a.part -= parts;
        a.ns++;
    }
    return a;
}

/* a - b, or nothing if b is more. */
static inline ratelimit_priv_span ratelimit_priv_minus(ratelimit_priv_span a, ratelimit_priv_span b,
                                                       uint32_t parts)
{
    ratelimit_priv_span none = {0, 0};
    if (!ratelimit_priv_above(a, b))
        return none;
    a.ns -= b.ns;
    if (a.part < b.part) {
        a.part += parts;
        a.ns--;
    }
    a.part -= b.part;
    return a;
}

static inline ratelimit_priv_span ratelimit_priv_span_of(uint64_t ns, uint32_t part)
{
    ratelimit_priv_span span;
    span.ns = ns;
    span.part = part;
    return span;
}

static inline ratelimit_priv_span ratelimit_priv_interval(const ratelimit_limit *l)
{
    return ratelimit_priv_span_of(l->interval_ns, l->interval_part);
}

/* f/d as F, by a multiplication with the limit's inverse of d, 2^63 / d rounded up. The inverse is
 * too large by less than 1, so the product is by less than f, which is below 2^24, and the estimate
 * by less than 2^-15. Rounded down it is F - 1, or F if f x 2^24 / d is a whole number or just
 * below one. A multiplication tells which. */
static inline uint64_t ratelimit_priv_pack(uint32_t part, const ratelimit_limit *l)
{
    uint64_t packed;
    if (l->parts == 1)
        return 0;
    packed = (part * l->inverse) >> 39;
    return packed + (packed * l->parts < (uint64_t)part << 24);
}

static inline uint32_t ratelimit_priv_unpack(uint64_t rest, const ratelimit_limit *l)
{
    return (uint32_t)(((rest & RATELIMIT_PRIV_PART_MASK) * l->parts) >> 24);
}

/* n fractions of an interval, in whole ns and the rest. */
static uint64_t ratelimit_priv_fractions(const ratelimit_limit *l, uint64_t n, uint32_t *part)
{
    uint64_t d = l->parts, over = n % d * l->interval_part;
    *part = (uint32_t)(over % d);
    return n / d * l->interval_part + over / d;
}

static bool ratelimit_priv_too_many(const ratelimit_limit *l, uint64_t n)
{
    return l->interval_ns && n > RATELIMIT_PRIV_MAX / l->interval_ns;
}

/* n tokens as a span, exactly; false if it is longer than 2^62 ns. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_cost(const ratelimit_limit *l, uint64_t n,
                                                      ratelimit_priv_span *cost)
{
    uint32_t part = 0;
    *cost = ratelimit_priv_interval(l);
    if (n == 1)
        return true;
    if (n > l->burst && ratelimit_priv_too_many(l, n))
        return false;
    cost->ns = n * l->interval_ns;
    if (l->parts > 1)
        cost->ns += ratelimit_priv_fractions(l, n, &part); /* at most 2^62, and below 2^63 */
    cost->part = part;
    return cost->ns <= RATELIMIT_PRIV_MAX;
}

static RATELIMIT_PRIV_INLINE ratelimit_priv_span ratelimit_priv_window(const ratelimit_limit *l)
{
    ratelimit_priv_span window = ratelimit_priv_span_of(l->window_ns, 0);
    if (l->parts > 1)
        window.ns += ratelimit_priv_fractions(l, l->burst, &window.part);
    return window;
}

/* floor(ns / interval) for an interval without a fraction, ns at most 2^63. The inverse was rounded
 * down, by less than 1, and ns is at most half of 2^64, so ns x inverse / 2^64 is too small by less
 * than 1: rounded down it is right or one too small. */
static inline uint64_t ratelimit_priv_whole(const ratelimit_limit *l, uint64_t ns)
{
#  if RATELIMIT_PRIV_WIDE
    uint64_t count = ratelimit_priv_high(ns, l->inverse);
    return count + (ns - count * l->interval_ns >= l->interval_ns);
#  else
    return ns / l->interval_ns;
#  endif
}

/* How many whole tokens fit in span: floor((ns d + part) / (interval d)). ns d may need 86 bits. If
 * it does, the product is made bit by bit of d, from the highest on: `over` is what the bits up to
 * here make of the rest of ns, less whole intervals, which are counted in `low`. An interval is at
 * most 2^62 parts (it is per_ns if d is tokens; else it is below 2^38 ns of 2^24 parts), so 2 over
 * + rest is below 3 x 2^62. */
static uint64_t ratelimit_priv_count(const ratelimit_limit *l, ratelimit_priv_span span)
{
    uint64_t d = l->parts, interval = l->interval_ns * d + l->interval_part;
    uint64_t count, low = 0, over = 0, bit;
    if (d == 1)
        return ratelimit_priv_whole(l, span.ns);
    if (span.ns < l->inverse) /* below 2^63 / d */
        return (span.ns * d + span.part) / interval;
    count = span.ns / interval * d;
    for (bit = RATELIMIT_PRIV_PARTS; bit; bit >>= 1) {
        low <<= 1;
        over = 2 * over + (d & bit ? span.ns % interval : 0);
        while (over >= interval) {
            over -= interval;
            low++;
        }
    }
    return count + low + (over + span.part) / interval;
}

/* Is this no debt, but a state of another kind? Classes of 24 and more: both upper bits are set. */
static inline bool ratelimit_priv_special(uint64_t rest)
{
    return (~rest >> (RATELIMIT_PRIV_CLASS_SHIFT + 3) & 3) == 0;
}

/* ns until such a state may be forgotten, 0 if it may be now. */
static RATELIMIT_PRIV_NOINLINE uint64_t ratelimit_priv_left_special(uint64_t full_ns, uint64_t rest,
                                                                    uint64_t now)
{
    uint64_t left = full_ns - now;
    if (ratelimit_priv_class(rest) == RATELIMIT_PRIV_CLASS_BLOCK)
        left += (rest & (ratelimit_priv_class_bits(1) - 1)) * RATELIMIT_PRIV_AFTER_UNIT;
    return left >> 63 ? 0 : left;
}

/* ns until a state may be forgotten, 0 if it may be now. A fraction counts as a whole ns. */
static RATELIMIT_PRIV_INLINE uint64_t ratelimit_priv_left_of(uint64_t full_ns, uint64_t rest,
                                                             uint64_t now)
{
    uint64_t left = full_ns - now;
    if (!RATELIMIT_PRIV_LIKELY(!ratelimit_priv_special(rest)))
        return ratelimit_priv_left_special(full_ns, rest, now);
    left = left >> 63 ? 0 : left + ((rest & RATELIMIT_PRIV_PART_MASK) != 0);
    return rest ? left : 0;
}

static inline uint64_t ratelimit_priv_left(const ratelimit_bucket *b, uint64_t now)
{
    return ratelimit_priv_left_of(b->full_ns, b->rest, now);
}

#  if !defined(RATELIMIT_FIXED_LIMITS)
/* A debt of ns and the fraction in rest, charged at another interval: the same number of tokens at
 * l's interval, at most the window. The old interval is known as m x 2^(4c - 20) ns, cut off: so
 * the number of tokens comes out right or too large, by at most one part in 2^16. A number that is
 * so little above a whole one that this may be the reason is taken to be whole: up to 65,535 whole
 * tokens stay exactly as they were. m is at least 2^16 (the class has seen to that), so k whole
 * tokens come out as k to k + k / 2^16: as less than k << 16 in `part`. One more is for F, which
 * was rounded up by less than 2^-24 ns, and no interval is shorter than 2^-4 ns. */
static uint64_t ratelimit_priv_rescale(uint64_t rest, uint64_t ns, const ratelimit_limit *l,
                                       uint32_t *debt_part)
{
    const uint64_t one = UINT64_C(1) << 32;
    const uint32_t m = (uint32_t)(rest >> RATELIMIT_PRIV_CODE_SHIFT) & 0xfffff;
    const ratelimit_priv_span window = ratelimit_priv_window(l);
    uint64_t v = ns, whole, extra;
    uint32_t part = 0, over = 0;
    int shift = (int)ratelimit_priv_class(rest) * 4 - 20, i; /* the interval is m x 2^shift ns */
    ratelimit_priv_span debt;
    if (v < UINT64_C(1) << 40) { /* a short debt: with its fraction */
        v = v << 24 | (rest & RATELIMIT_PRIV_PART_MASK);
        shift += 24;
    }
    *debt_part = 0;
    if (v == 0)
        return 0;
    for (; !(v >> 63); v <<= 1)
        shift++;
    for (i = 0; i < 64; i++) { /* v / m, bit by bit: nothing else here needs a division */
        over = over << 1 | (uint32_t)(v >> 63);
        v <<= 1;
        if (over >= m) {
            over -= m;
            v |= 1;
        }
    }
    whole = v; /* 44 to 48 bits: the tokens spent are v x 2^-shift, that is whole + part x 2^-32 */
    if (shift < 0)
        whole = shift >= -15 ? v << -shift : UINT64_MAX;
    for (; shift > 0; shift--) {
        part = part >> 1 | (uint32_t)whole << 31;
        whole >>= 1;
    }
    if (whole && whole < 65536 && part <= (whole + 1) << 16)
        part = 0;
    debt = window;
    if (whole < l->burst)
        (void)ratelimit_priv_cost(l, whole, &debt);
    if (part && l->interval_ns < 256) { /* part of a token, rounded up to 1/parts ns */
        extra = ((l->interval_ns * l->parts + l->interval_part) * part + one - 1) >> 32;
        debt = ratelimit_priv_plus(
            debt, ratelimit_priv_span_of(extra / l->parts, (uint32_t)(extra % l->parts)), l->parts);
    } else if (part) { /* or, where a token takes longer, to 1 ns */
        extra = ((uint64_t)part * l->interval_part + l->parts - 1) / l->parts;
        debt.ns += (l->interval_ns >> 32) * part +
                   (((l->interval_ns & (one - 1)) * part + extra + one - 1) >> 32);
    }
    if (ratelimit_priv_above(debt, window))
        debt = window;
    *debt_part = debt.part;
    return debt.ns;
}
#  endif

static void ratelimit_priv_answer(ratelimit_result *out, ratelimit_status status)
{
    memset(out, 0, sizeof *out);
    out->status = status;
    out->allowed = status == RATELIMIT_OK;
}

static void ratelimit_priv_fail(ratelimit_result *res, size_t count, ratelimit_status status)
{
    size_t i;
    for (i = 0; res && i < count; i++)
        ratelimit_priv_answer(&res[i], status);
}

static inline bool ratelimit_priv_no_key(const ratelimit_request *q)
{
    return !q->key || !q->key_len;
}

enum { RATELIMIT_PRIV_OPEN = 0, RATELIMIT_PRIV_REFUSED, RATELIMIT_PRIV_ALLOWED };

/* Answers requests that need no bucket: mistakes, and unlimited limits. OPEN: it needs one. (What a
 * request says is passed here, and in what follows, as arguments of their own: where all callers
 * pass TAKE, or the same limit, the compiler then leaves out what that does not need.) */
static int ratelimit_priv_settled_op(const ratelimit_limit *l, uint64_t n, ratelimit_op op,
                                     uint64_t max_wait_ns, ratelimit_result *out_or_null)
{
    bool counts = op != RATELIMIT_BLOCK && op != RATELIMIT_RESET, unlimited;
    ratelimit_status status = RATELIMIT_OK;
    if ((unsigned)op >= RATELIMIT_PRIV_OPS)
        status = RATELIMIT_BAD_ARGUMENT;
    else if (!l || l->kind < RATELIMIT_PRIV_BUCKET || l->kind > RATELIMIT_PRIV_UNLIMITED)
        status = RATELIMIT_BAD_LIMIT;
    else if (counts && (n > INT64_MAX || (n == 0 && op != RATELIMIT_PEEK)))
        status = RATELIMIT_BAD_COUNT;
    else if (op == RATELIMIT_BLOCK && max_wait_ns - 1 >= RATELIMIT_PRIV_MAX)
        status = RATELIMIT_BAD_ARGUMENT;
    else if (l->kind == RATELIMIT_PRIV_WINDOW &&
             (op == RATELIMIT_RESERVE || op == RATELIMIT_REFUND || op == RATELIMIT_CANCEL))
        status = RATELIMIT_UNSUPPORTED;
    else if (l->kind == RATELIMIT_PRIV_UNLIMITED && op == RATELIMIT_BLOCK)
        status = RATELIMIT_UNSUPPORTED;
    unlimited = status == RATELIMIT_OK && l->kind == RATELIMIT_PRIV_UNLIMITED;
    if (status == RATELIMIT_OK && !unlimited)
        return RATELIMIT_PRIV_OPEN;
    if (out_or_null)
        ratelimit_priv_answer(out_or_null, status);
    if (out_or_null && unlimited) {
        out_or_null->burst = out_or_null->remaining = UINT64_MAX;
        out_or_null->taken = op <= RATELIMIT_CHARGE && op != RATELIMIT_PEEK ? n : 0;
    }
    return unlimited ? RATELIMIT_PRIV_ALLOWED : RATELIMIT_PRIV_REFUSED;
}

static bool ratelimit_priv_settled(const ratelimit_request *q, ratelimit_result *out)
{
    return ratelimit_priv_settled_op(q->limit, q->n, q->op, q->max_wait_ns, out) !=
           RATELIMIT_PRIV_OPEN;
}

/* A bucket during a decision: its debt now; for a fixed window, its debt beyond the end of the
 * current window. */
typedef struct ratelimit_priv_step {
    const ratelimit_limit *l;
    ratelimit_priv_span debt, window, cost;
    uint64_t now, to_end; /* fixed window: ns to its end, else 0 */
    uint64_t block;       /* ns until a block ends, else 0; debt is then what it owes at that end */
    bool purpose;         /* the debt may be longer than the window */
    bool dirty;           /* it is not what the bucket says: a changed limit, a clock set back */
} ratelimit_priv_step;

/* An ordinary debt, or one made on purpose, as it is now under l. */
static void ratelimit_priv_look_debt(ratelimit_priv_step *s, const ratelimit_bucket *b,
                                     const ratelimit_limit *l, uint64_t step_ns)
{
    const bool fraction = (b->rest & RATELIMIT_PRIV_PART_MASK) != 0;
    const uint64_t changed = (b->rest ^ l->state) & RATELIMIT_PRIV_CODE;
    uint64_t ns = b->full_ns - s->now, most, ahead, late = step_ns;
    bool some = !(ns >> 63);
    s->purpose = (b->rest & RATELIMIT_PRIV_ON_PURPOSE) != 0;
    if (s->to_end && (s->purpose || (b->rest & RATELIMIT_PRIV_IS_WINDOW))) {
        some = some && ns >= s->to_end; /* what lies beyond the end of the window */
        ns -= s->to_end;
    }
    if (!some)
        return;
    s->debt = ratelimit_priv_span_of(ns, ratelimit_priv_unpack(b->rest, l));
#  if !defined(RATELIMIT_FIXED_LIMITS)
    if (changed) {
        s->dirty = true;
        if (s->purpose) { /* a time, which no limit changes */
            s->debt = ratelimit_priv_span_of(ns + fraction, 0);
        } else if (changed & ((UINT64_C(1) << 50) - 1)) { /* the interval */
            uint32_t part;
            ns = ratelimit_priv_rescale(b->rest, ns, l, &part);
            s->debt = ratelimit_priv_span_of(ns, part);
        } else if (ratelimit_priv_above(s->debt, s->window)) { /* only the burst */
            s->debt = s->window;
        }
    }
#  else
    (void)changed, (void)fraction;
#  endif
    /* A debt that the limit cannot have made at any time up to now + step is of a clock that was
     * set back. A clock that was ahead by step at most was in no later window than the one that now
     * + step is in. `late` is how much later that one ends than ours, and a bucket charged in it
     * was full a window after its end at the latest. A debt made on purpose is known by how long it
     * was when it was seen. */
    most = s->purpose ? ratelimit_priv_seen_most(b->rest) : s->window.ns;
    ahead = s->debt.ns + (s->purpose ? s->to_end : 0);
    if (s->to_end && !s->purpose && step_ns < RATELIMIT_PRIV_MAX)
        late = (s->now % l->per_ns + step_ns) / l->per_ns * l->per_ns;
    if (ahead > most && ahead - most > late) {
        s->debt = !s->purpose        ? s->window
                  : most > s->to_end ? ratelimit_priv_span_of(most - s->to_end, 0)
                                     : ratelimit_priv_span_of(0, 0);
        s->dirty = true;
    }
}

/* A block: its time left, or, when its time is over, what is owed since its end. */
static void ratelimit_priv_look_block(ratelimit_priv_step *s, const ratelimit_bucket *b,
                                      const ratelimit_limit *l, uint64_t step_ns)
{
    uint64_t most = ratelimit_priv_seen_most(b->rest), since = s->now - b->full_ns;
    s->debt = ratelimit_priv_minus(s->window, ratelimit_priv_interval(l), l->parts);
    s->block = ratelimit_priv_ahead(b->full_ns, s->now);
    if (s->block > most && s->block - most > step_ns) {
        s->block = most; /* the clock was set back */
        s->dirty = true;
    }
    if (s->block)
        return;
    s->dirty = true; /* from now on it is an ordinary debt */
    if (!s->to_end)
        s->debt = ratelimit_priv_minus(s->debt, ratelimit_priv_span_of(since, 0), l->parts);
    else if (since > l->per_ns - s->to_end) /* its end was in an earlier window */
        s->debt = ratelimit_priv_span_of(0, 0);
}

static void ratelimit_priv_look(ratelimit_priv_step *s, const ratelimit_bucket *b,
                                const ratelimit_limit *l, uint64_t now, uint64_t step_ns)
{
    uint32_t which = ratelimit_priv_class(b->rest);
    s->l = l;
    s->now = now;
    s->debt = ratelimit_priv_span_of(0, 0);
    s->window = ratelimit_priv_window(l);
    s->to_end = l->kind == RATELIMIT_PRIV_WINDOW ? l->per_ns - now % l->per_ns : 0;
    s->block = 0;
    s->purpose = s->dirty = false;
    if (which == RATELIMIT_PRIV_CLASS_BLOCK)
        ratelimit_priv_look_block(s, b, l, step_ns);
    else if (b->rest && which < RATELIMIT_PRIV_CLASS_BLOCK)
        ratelimit_priv_look_debt(s, b, l, step_ns);
}

/* ns from now until a debt is gone. A fixed window gives nothing back before its end. */
static uint64_t ratelimit_priv_time(const ratelimit_priv_step *s, ratelimit_priv_span debt)
{
    uint64_t ns = debt.ns + (debt.part != 0), per = s->l->per_ns;
    if (!s->to_end)
        return s->block + ns;
    if (s->block) /* to the end of the window in which the block ends */
        return s->block + (ns ? per - (s->now + s->block) % per : 0);
    return ns ? s->to_end + (ns - 1) / per * per : 0;
}

/* ns until debt + cost is within the window. */
static uint64_t ratelimit_priv_until(const ratelimit_priv_step *s, ratelimit_priv_span cost)
{
    ratelimit_priv_span sum = ratelimit_priv_plus(s->debt, cost, s->l->parts);
    return ratelimit_priv_time(s, ratelimit_priv_minus(sum, s->window, s->l->parts));
}

/* What the debt becomes, as the bucket stores it. */
static void ratelimit_priv_save(const ratelimit_priv_step *s, const ratelimit_limit *l,
                                ratelimit_bucket *b)
{
    uint64_t after, seen;
    if (s->block) {
        after = (s->to_end ? l->per_ns : s->debt.ns) / RATELIMIT_PRIV_AFTER_UNIT + 1;
        after = after >> RATELIMIT_PRIV_CLASS_SHIFT ? ratelimit_priv_class_bits(1) - 1 : after;
        b->full_ns = s->now + s->block;
        b->rest = after | ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_BLOCK);
        seen = s->block;
    } else if (s->to_end && s->debt.ns == 0 && s->debt.part == 0) {
        b->full_ns = b->rest = 0;
        return;
    } else {
        seen = s->debt.ns + s->to_end;
        seen -= seen >> 63; /* a window of 146 years may reach too far */
        b->full_ns = s->now + seen;
        b->rest = ratelimit_priv_pack(s->debt.part, l) | l->state;
        if (s->purpose && ratelimit_priv_above(s->debt, s->window))
            b->rest |= RATELIMIT_PRIV_ON_PURPOSE;
    }
    b->rest |= ratelimit_priv_seen_bits(seen);
}

/* REFUND and CANCEL: gives back what `back` is, at most the debt. Returns how many whole tokens
 * that is. */
static uint64_t ratelimit_priv_give(ratelimit_priv_step *s, ratelimit_priv_span back, uint64_t n)
{
    if (ratelimit_priv_above(back, s->debt)) {
        back = s->debt;
        n = ratelimit_priv_count(s->l, back);
    }
    s->debt = ratelimit_priv_minus(s->debt, back, s->l->parts);
    s->dirty = s->dirty || back.ns || back.part;
    return n;
}

/* CANCEL: a reservation of n tokens whose wait has left ns to go is taken back as a whole, if
 * nobody reserved after it. When it was made the bucket was to be full at now + left + window; if
 * it will be full later than that, somebody reserved after it, and nothing is given back. (To give
 * back a part would be right once, but a second part after it would let more act at once than the
 * burst.) */
static uint64_t ratelimit_priv_cancel(ratelimit_priv_step *s, uint64_t left, uint64_t n)
{
    ratelimit_priv_span then = s->window;
    if (!left || left > RATELIMIT_PRIV_MAX)
        return 0;
    then.ns += left; /* which was rounded up to whole ns */
    return ratelimit_priv_above(s->debt, then) ? 0 : ratelimit_priv_give(s, s->cost, n);
}

/* Any request on a state that is not settled. *b becomes the new state. True if allowed. */
static bool ratelimit_priv_decide_op(ratelimit_bucket *b, const ratelimit_limit *l, uint64_t asked,
                                     ratelimit_op op, uint64_t max_wait_ns, uint64_t now,
                                     uint64_t step_ns, ratelimit_result *out)
{
    uint64_t n = asked ? asked : 1, taken = 0, wait = 0;
    ratelimit_status status = RATELIMIT_OK;
    ratelimit_priv_step s;
    bool asks = op <= RATELIMIT_RESERVE, costs, fits, over;

    /* What the bucket owes, and what the request costs. */
    ratelimit_priv_look(&s, b, l, now, step_ns);
    if (op == RATELIMIT_TAKE_UP_TO)
        n = 1;
    costs = ratelimit_priv_cost(l, n, &s.cost);
    over = !costs || s.block ||
           ratelimit_priv_above(ratelimit_priv_plus(s.debt, s.cost, l->parts), s.window);
    fits = costs && s.debt.ns <= RATELIMIT_PRIV_MAX && s.cost.ns <= RATELIMIT_PRIV_MAX - s.debt.ns;
    if (!costs)
        s.cost = ratelimit_priv_span_of(UINT64_MAX, 0);

    /* Are the tokens there? */
    if (asks && n > l->burst)
        status = RATELIMIT_NEVER;
    else if (asks && over)
        status = RATELIMIT_DENIED;
    if (status == RATELIMIT_DENIED && (out || op == RATELIMIT_RESERVE)) {
        wait = ratelimit_priv_until(&s, s.cost);
        if (op == RATELIMIT_RESERVE && !s.block)
            status = fits && wait <= max_wait_ns ? RATELIMIT_OK : RATELIMIT_TIMEOUT;
    }

    /* What each operation does to the debt. */
    switch (op) {
    case RATELIMIT_TAKE_UP_TO:
        if (status == RATELIMIT_OK) {
            n = ratelimit_priv_count(l, ratelimit_priv_minus(s.window, s.debt, l->parts));
            n = n < asked ? n : asked;
            (void)ratelimit_priv_cost(l, n, &s.cost);
        }
        taken = status == RATELIMIT_OK ? n : 0;
        break;
    case RATELIMIT_CHARGE:
        if (!fits && !s.block)
            status = RATELIMIT_NEVER;
        taken = fits && !s.block ? n : 0;
        s.purpose = s.purpose || taken;
        break;
    case RATELIMIT_REFUND:
        if (!s.block)
            n = ratelimit_priv_give(&s, s.cost, n);
        break;
    case RATELIMIT_CANCEL:
        if (!s.block)
            n = ratelimit_priv_cancel(&s, max_wait_ns, n);
        break;
    case RATELIMIT_BLOCK:
        if (!s.block) /* not shorter than the time until one token is there */
            s.block = ratelimit_priv_until(&s, ratelimit_priv_interval(l));
        s.block = s.block > max_wait_ns ? s.block : max_wait_ns;
        s.debt = ratelimit_priv_minus(s.window, ratelimit_priv_interval(l), l->parts);
        s.dirty = true;
        break;
    case RATELIMIT_RESET:
        s.debt = ratelimit_priv_span_of(0, 0);
        s.block = 0;
        s.dirty = true;
        break;
    case RATELIMIT_RESERVE:
        s.purpose = s.purpose || (status == RATELIMIT_OK && wait);
        taken = status == RATELIMIT_OK ? n : 0;
        break;
    case RATELIMIT_TAKE:
    case RATELIMIT_PEEK:
    default:
        taken = status == RATELIMIT_OK && op == RATELIMIT_TAKE ? n : 0;
    }

    /* The new state. Also a refusal notes when the bucket was seen. */
    if (taken)
        s.debt = ratelimit_priv_plus(s.debt, s.cost, l->parts);
    if (op == RATELIMIT_RESET)
        b->full_ns = b->rest = 0;
    else if (taken || (s.dirty && op != RATELIMIT_PEEK))
        ratelimit_priv_save(&s, l, b);
    else if (b->rest && op != RATELIMIT_PEEK)
        b->rest =
            (b->rest << 6 >> 6) | ratelimit_priv_seen_bits(ratelimit_priv_ahead(b->full_ns, now));
    if (!out)
        return status == RATELIMIT_OK;

    ratelimit_priv_answer(out, status);
    out->burst = l->burst;
    if (!s.block)
        out->remaining = ratelimit_priv_count(l, ratelimit_priv_minus(s.window, s.debt, l->parts));
    out->taken = op == RATELIMIT_REFUND || op == RATELIMIT_CANCEL ? (s.block ? 0 : n) : taken;
    out->reset_after_ns = ratelimit_priv_time(&s, s.debt);
    if (status == RATELIMIT_NEVER)
        out->retry_after_ns = RATELIMIT_FOREVER;
    else if (status != RATELIMIT_OK)
        out->retry_after_ns = wait;
    else if (op == RATELIMIT_RESERVE)
        out->wait_ns = wait;
    if (op == RATELIMIT_CHARGE || op == RATELIMIT_BLOCK)
        out->wait_ns = ratelimit_priv_until(&s, ratelimit_priv_interval(l));
    return status == RATELIMIT_OK;
}

static inline bool ratelimit_priv_decide(ratelimit_bucket *b, const ratelimit_request *q,
                                         uint64_t now, uint64_t step_ns, ratelimit_result *out)
{
    return ratelimit_priv_decide_op(b, q->limit, q->n, q->op, q->max_wait_ns, now, step_ns, out);
}
/* ---- >>implementation: bucket ---------------------------------------------------------------- */

static ratelimit_request ratelimit_priv_request(const void *key, size_t key_len,
                                                const ratelimit_limit *limit, uint64_t n)
{
    ratelimit_request q = RATELIMIT_REQUEST(NULL, 0, NULL, 0);
    q.key = key;
    q.key_len = key_len;
    q.limit = limit;
    q.n = n;
    return q;
}

/* The quick rule, for a take of n tokens from a bucket that was charged under the same limit, whose
 * interval is a whole number of ns. All questions are in three tests: n - 1 < quick says that n is
 * 1 to burst, that the limit is good, a token bucket, and without a fraction; `rest` and `state`
 * are equal but for the bits of seen if nothing about the bucket is special; and debt <= window,
 * with the cost in it, is the decision. If a test says no, the answer is OPEN: the general way
 * decides. Else *debt is what the bucket then owes, and *full_ns what an allowed take makes of
 * it. */
static RATELIMIT_PRIV_INLINE int ratelimit_priv_quick(const ratelimit_limit *l, uint64_t n,
                                                      uint64_t rest, uint64_t now,
                                                      uint64_t *full_ns, uint64_t *debt)
{
    const uint64_t full = *full_ns, cost = n * l->interval_ns;
    if (!RATELIMIT_PRIV_LIKELY(n - 1 < l->quick) ||
        !RATELIMIT_PRIV_LIKELY(!((rest ^ l->state) << 6)))
        return RATELIMIT_PRIV_OPEN;
    *full_ns = ((full - now) >> 63 ? now : full) + cost;
    *debt = *full_ns - now;
    if (RATELIMIT_PRIV_LIKELY(*debt <= l->window_ns))
        return RATELIMIT_PRIV_ALLOWED;
    *debt -= cost;
    return RATELIMIT_PRIV_LIKELY(*debt <= l->window_ns) ? RATELIMIT_PRIV_REFUSED
                                                        : RATELIMIT_PRIV_OPEN;
}

/* The result of the quick rule. */
static RATELIMIT_PRIV_INLINE void ratelimit_priv_quick_result(const ratelimit_limit *l, uint64_t n,
                                                              bool allowed, uint64_t debt,
                                                              ratelimit_result *out)
{
    out->allowed = allowed;
    out->status = allowed ? RATELIMIT_OK : RATELIMIT_DENIED;
    out->burst = l->burst;
    out->remaining = ratelimit_priv_whole(l, l->window_ns - debt);
    out->taken = allowed ? n : 0;
    out->retry_after_ns = allowed ? 0 : debt + n * l->interval_ns - l->window_ns;
    out->reset_after_ns = debt;
    out->wait_ns = 0;
    out->source = RATELIMIT_FROM_STORE;
}

static bool ratelimit_priv_bucket_op(ratelimit_bucket *b, const ratelimit_limit *l, uint64_t n,
                                     ratelimit_op op, uint64_t max_wait_ns, uint64_t now,
                                     ratelimit_result *out_or_null)
{
    int settled;
    if (!b) {
        ratelimit_priv_fail(out_or_null, 1, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    settled = ratelimit_priv_settled_op(l, n, op, max_wait_ns, out_or_null);
    if (settled != RATELIMIT_PRIV_OPEN)
        return settled == RATELIMIT_PRIV_ALLOWED;
    return ratelimit_priv_decide_op(b, l, n, op, max_wait_ns, now, RATELIMIT_STEP_NS, out_or_null);
}

RATELIMIT_API bool ratelimit_bucket_decide(ratelimit_bucket *b, const ratelimit_request *req,
                                           uint64_t now_ns, ratelimit_result *out_or_null)
{
    if (!req)
        return ratelimit_priv_bucket_op(NULL, NULL, 0, RATELIMIT_TAKE, 0, 0, out_or_null);
    return ratelimit_priv_bucket_op(b, req->limit, req->n, req->op, req->max_wait_ns, now_ns,
                                    out_or_null);
}

static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_bucket_slow(ratelimit_bucket *b,
                                                               const ratelimit_limit *limit,
                                                               uint64_t n, uint64_t now_ns,
                                                               ratelimit_result *out_or_null)
{
    return ratelimit_priv_bucket_op(b, limit, n, RATELIMIT_TAKE, 0, now_ns, out_or_null);
}

/* full_ns changes at each take, rest seldom: it is stored only if it changes. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_bucket_quick(ratelimit_bucket *b,
                                                              const ratelimit_limit *l, uint64_t n,
                                                              uint64_t now, ratelimit_result *out)
{
    uint64_t full, debt;
    int is;
    if (!b || !l)
        return ratelimit_priv_bucket_slow(b, l, n, now, out);
    full = b->full_ns;
    is = ratelimit_priv_quick(l, n, b->rest, now, &full, &debt);
    if (is == RATELIMIT_PRIV_OPEN)
        return ratelimit_priv_bucket_slow(b, l, n, now, out);
    if (is == RATELIMIT_PRIV_ALLOWED)
        b->full_ns = full;
    if (RATELIMIT_PRIV_SIZE || !RATELIMIT_PRIV_LIKELY(ratelimit_priv_noted(b->rest, debt)))
        b->rest = l->state | ratelimit_priv_seen_bits(debt);
    if (out)
        ratelimit_priv_quick_result(l, n, is == RATELIMIT_PRIV_ALLOWED, debt, out);
    return is == RATELIMIT_PRIV_ALLOWED;
}

/* With a result: apart, so that a yes or no needs few registers. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_bucket_result(ratelimit_bucket *b,
                                                                 const ratelimit_limit *limit,
                                                                 uint64_t n, uint64_t now_ns,
                                                                 ratelimit_result *out)
{
    return ratelimit_priv_bucket_quick(b, limit, n, now_ns, out);
}

#  if defined(RATELIMIT_STATIC)
inline
#  endif
    RATELIMIT_API bool
    ratelimit_bucket_take(ratelimit_bucket *b, const ratelimit_limit *limit, uint64_t n,
                          uint64_t now_ns, ratelimit_result *out_or_null)
{
    if (RATELIMIT_PRIV_SIZE)
        return ratelimit_priv_bucket_quick(b, limit, n, now_ns, out_or_null);
    if (out_or_null)
        return ratelimit_priv_bucket_result(b, limit, n, now_ns, out_or_null);
    return ratelimit_priv_bucket_quick(b, limit, n, now_ns, NULL);
}

/* ---- a bucket shared by threads

   A quick take is one compare-and-swap on full_ns. Then it reads rest once more: if rest is still
   the same but for seen, the take is done. If not, somebody changed the bucket's kind meanwhile,
   and the take starts over; what it charged stays charged, so too much may be taken from a bucket
   for once, never too little.

   All other changes hold the bucket while they are made: rest becomes a mark, a state of class
   HELD. The mark is made by a swap from the rest that was read, full_ns is swapped from the value
   that was read, and then rest gets its new value. If the swap of full_ns fails (a quick take came
   between), rest is put back and all is decided again. A thread that finds a mark waits. A mark
   that is the same for RATELIMIT_TAKEOVER_MS is replaced by the waiter: it keeps the interval and
   the code of the burst of the old state, so what may be lost is a fraction of a ns and what the
   holder was about to store. A holder that was only slow then finds its mark gone, and starts over.
   Marks of two changes differ in their serial bits (a hash of the old state), or the slow holder
   could take another's mark for its own. */
#  if defined(RATELIMIT_PRIV_SHARED)
#    if RATELIMIT_PRIV_ATOMIC64
/* What a mark has in the bits of the state that it stands for. */
#      define RATELIMIT_PRIV_MARKED                                                                \
        ((RATELIMIT_PRIV_CODE | RATELIMIT_PRIV_ON_PURPOSE) & ~ratelimit_priv_class_bits(31))

/* The mark: bits 0-23 a hash of the old state. Of the two states it keeps the interval that is
 * right or too strict with either full_ns: the new one if full_ns goes back. The interval's class
 * moves to bits 58-62, where seen was. */
static uint64_t ratelimit_priv_mark(const ratelimit_bucket *old, const ratelimit_bucket *now)
{
    const uint64_t hash = ((old->full_ns ^ old->rest) * UINT64_C(0x9E3779B97F4A7C15)) >> 40;
    const bool back = (now->full_ns - old->full_ns) >> 63 != 0;
    const ratelimit_bucket *keep = !old->rest || (back && now->rest) ? now : old;
    return hash | (keep->rest & RATELIMIT_PRIV_MARKED) |
           ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_HELD) |
           (uint64_t)ratelimit_priv_class(keep->rest) << RATELIMIT_PRIV_SEEN_SHIFT;
}

static bool ratelimit_priv_shared_write(ratelimit_bucket *b, const ratelimit_bucket *old,
                                        const ratelimit_bucket *now)
{
    const uint64_t mark = ratelimit_priv_mark(old, now);
    if (!ratelimit_priv_swap64(&b->rest, old->rest, mark))
        return false;
    if (!ratelimit_priv_swap64(&b->full_ns, old->full_ns, now->full_ns)) {
        (void)ratelimit_priv_swap64(&b->rest, mark, old->rest);
        return false;
    }
    return ratelimit_priv_swap64(&b->rest, mark, now->rest);
}

/* A consistent copy of *b, not held. */
static ratelimit_bucket ratelimit_priv_shared_read(ratelimit_bucket *b)
{
    ratelimit_bucket copy;
    uint64_t seen = 0;
    uint32_t turns = 0;
    for (;;) {
        copy.rest = ratelimit_priv_load64(&b->rest);
        copy.full_ns = ratelimit_priv_load64(&b->full_ns);
        if (ratelimit_priv_class(copy.rest) != RATELIMIT_PRIV_CLASS_HELD) {
            if (ratelimit_priv_load64(&b->rest) == copy.rest)
                return copy;
            continue;
        }
        if (copy.rest != seen) {
            seen = copy.rest;
            turns = 0;
        }
        if (ratelimit_priv_wait_turn(&turns)) {
            uint64_t rest = copy.rest & RATELIMIT_PRIV_MARKED;
            rest |=
                ratelimit_priv_class_bits((uint32_t)(copy.rest >> RATELIMIT_PRIV_SEEN_SHIFT) & 31);
            rest |= UINT64_C(61) << RATELIMIT_PRIV_SEEN_SHIFT | RATELIMIT_PRIV_PART_MASK;
            (void)ratelimit_priv_swap64(&b->rest, copy.rest, rest);
        }
    }
}
#    endif

RATELIMIT_API bool ratelimit_bucket_decide_shared(ratelimit_bucket *b, const ratelimit_request *req,
                                                  uint64_t now_ns, ratelimit_result *out_or_null)
{
#    if RATELIMIT_PRIV_ATOMIC64
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    if (!b || !req) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    if (ratelimit_priv_settled(req, out))
        return out->allowed;
    for (;;) {
        ratelimit_bucket old = ratelimit_priv_shared_read(b), now = old;
        bool allowed = ratelimit_priv_decide(&now, req, now_ns, RATELIMIT_STEP_NS, out_or_null);
        if (old.full_ns == now.full_ns && old.rest << 6 == now.rest << 6) {
            if (old.rest != now.rest) /* only noted as seen */
                (void)ratelimit_priv_swap64(&b->rest, old.rest, now.rest);
            return allowed;
        }
        if (ratelimit_priv_shared_write(b, &old, &now))
            return allowed;
    }
#    else
    bool allowed;
    RATELIMIT_PRIV_ENTER();
    allowed = ratelimit_bucket_decide(b, req, now_ns, out_or_null);
    RATELIMIT_PRIV_LEAVE();
    return allowed;
#    endif
}

#    if RATELIMIT_PRIV_ATOMIC64
/* After the swap of a quick take: is rest still what it was, but for seen? If rest is a mark, wait.
 * If our swap came before the holder's swap of full_ns, that one fails, and the holder puts rest
 * back. If it came after it, the holder stores another rest, and we start over. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_shared_same(ratelimit_bucket *b, uint64_t rest,
                                                               uint64_t debt)
{
    uint64_t now = ratelimit_priv_load64(&b->rest);
    if ((now ^ rest) << 6)
        now = ratelimit_priv_shared_read(b).rest;
    if ((now ^ rest) << 6)
        return false;
    if (!ratelimit_priv_noted(now, debt))
        (void)ratelimit_priv_swap64(&b->rest, now,
                                    (now << 6 >> 6) | ratelimit_priv_seen_bits(debt));
    return true;
}
#    endif

static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_shared_slow(ratelimit_bucket *b,
                                                               const ratelimit_limit *limit,
                                                               uint64_t n, uint64_t now_ns,
                                                               ratelimit_result *out_or_null)
{
    ratelimit_request q = ratelimit_priv_request(NULL, 0, limit, n);
    return ratelimit_bucket_decide_shared(b, &q, now_ns, out_or_null);
}

static RATELIMIT_PRIV_INLINE bool ratelimit_priv_shared_quick(ratelimit_bucket *b,
                                                              const ratelimit_limit *l, uint64_t n,
                                                              uint64_t now, ratelimit_result *out)
{
#    if RATELIMIT_PRIV_ATOMIC64
    uint64_t rest, old, full, debt;
    bool done = false;
    int is;
    if (!b || !l)
        return ratelimit_priv_shared_slow(b, l, n, now, out);
    old = full = ratelimit_priv_load64(&b->full_ns); /* before rest, as in a table */
    rest = ratelimit_priv_load64(&b->rest);
    is = ratelimit_priv_quick(l, n, rest, now, &full, &debt);
    if (is == RATELIMIT_PRIV_ALLOWED)
        done = RATELIMIT_PRIV_LIKELY(ratelimit_priv_swap64(&b->full_ns, old, full)) &&
               (RATELIMIT_PRIV_LIKELY(ratelimit_priv_load64(&b->rest) == rest &&
                                      ratelimit_priv_noted(rest, debt)) ||
                ratelimit_priv_shared_same(b, rest, debt));
    else if (is == RATELIMIT_PRIV_REFUSED)
        done = ratelimit_priv_noted(rest, debt) && ratelimit_priv_load64(&b->rest) == rest;
    if (done && out)
        ratelimit_priv_quick_result(l, n, is == RATELIMIT_PRIV_ALLOWED, debt, out);
    if (done)
        return is == RATELIMIT_PRIV_ALLOWED;
#    endif
    return ratelimit_priv_shared_slow(b, l, n, now, out);
}

static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_shared_result(ratelimit_bucket *b,
                                                                 const ratelimit_limit *limit,
                                                                 uint64_t n, uint64_t now_ns,
                                                                 ratelimit_result *out)
{
    return ratelimit_priv_shared_quick(b, limit, n, now_ns, out);
}

RATELIMIT_API bool ratelimit_bucket_take_shared(ratelimit_bucket *b, const ratelimit_limit *limit,
                                                uint64_t n, uint64_t now_ns,
                                                ratelimit_result *out_or_null)
{
    if (out_or_null)
        return ratelimit_priv_shared_result(b, limit, n, now_ns, out_or_null);
    return ratelimit_priv_shared_quick(b, limit, n, now_ns, NULL);
}
#  endif

/* ---- >>implementation: table --------------------------------------------------------------------

   Head, then lines. A line is a lock, three tags and three buckets: 64 bytes, one cache line. Eight
   neighbouring lines make a block, and a key lives in one block: 24 places. A key and a scope make
   a place, 64 bits: the upper half gives the home line, where the key goes if there is room, and
   with it the block; the lower half is the tag (0 means an empty place). At half full 93 of 100
   keys are at home, and 1 of 10,000 finds no place (Poisson; tests/test_table.c counts both). A
   place whose bucket is full again is as good as empty: that is what lets the table forget without
   harm.

       line 3 of a block                              place of "alice" under a limit
       +------+-----+-----+-----+                     hash(key) ^ scope x constant
       | lock | tag | tag | tag |   16 bytes              upper half x lines / 2^32: home line 3
       +------+-----+-----+-----+                         lower half: tag
       | full_ns    | rest      |   16 bytes each
       | full_ns    | rest      |
       | full_ns    | rest      |
       +------------+-----------+

   The two ways of a call:

       ratelimit_table_take, _take_hash, _take_batch
         priv_take_at           the place
         priv_take_place        is the tag in the home line?
           priv_take_there      yes: the quick rule, one swap of full_ns, one look at the lock
           priv_take_away       no: the same in another line of the block, or it is a new key
       all else, and what the quick way leaves open: priv_seat_op, until it succeeds:
         priv_probe             where the key is, or which place it gets, and the lock words
         priv_decide_seat       the decision, on a copy of the bucket: nothing is written yet
         priv_keep              stores the copy: nothing changed, only `seen` did, or a commit
           priv_commit          locks; notes what is forgotten; full_ns, rest, tag; unlocks

   So a take of a known key writes 8 bytes, and one that is refused writes none. A take of alice
   that finds bob's commit under way in her line goes the general way: it waits until the lock word
   is even, reads everything again, and decides on what bob left.

   The protocol. Everybody changes full_ns by a compare-and-swap from the value that the decision
   was based on, with or without a lock. So no charge is ever overwritten.

   1. A quick take reads lock, tag, full_ns and rest; computes; swaps full_ns; reads the lock again.
      If the lock is unchanged, the take is done. If not, it waits until the lock is free, and reads
      tag and rest again: if either is another now, the take starts over, and what it charged stays
      charged. It is not given back, for the place may have changed hands once more, and a third key
      would be handed a token. It reads full_ns before rest, for who frees a bucket changes rest
      first: so either rest is another already, or the swap finds another full_ns. (The other way
      round a take could charge a place that is free, and find it made for the same key when it
      looks again, by one who did not count that charge.)
   2. Every other change is made by one commit, which holds the lock of the line. The lock is taken
      by the swap that proves that no other commit came since the line was read. The commit swaps
      full_ns from what was read, then rest, then the tag. If a swap fails (a quick take came
      between, or the lock was taken over), everything is decided again. Where full_ns goes back (a
      bucket is freed, a limit became faster) rest comes first: then no quick take can charge a
      bucket that is about to be forgotten, and a holder that dies in between leaves more debt, not
      less.
   3. A new key also holds the lock of its home line, taken in the same way. All who bring this key
      have the same home line, so the key is not brought in twice. The newcomer claims its place by
      the swap that turns the old full_ns into its own debt; rest and tag follow. Until the tag is
      there, the old key may be charged on the newcomer's debt: rule 1 starts it over.
   4. A holder that died leaves at most its own decision half stored: an old key with a newcomer's
      debt, a limit half changed. The next one that wants the line frees the lock after
      RATELIMIT_TAKEOVER_MS. If the holder was only slow, it finds that its swaps fail. It can still
      do one kind of harm: two threads, the slow one and another, may each find a place for one key:
      then that key can use one burst more. tests/test_threads.c and tests/test_processes.c try that
      with SIGSTOP.
   5. Before a full key is forgotten, the time at which it became full is noted in the head. A new
      key never begins before that time. So a call that comes late, with a time at which its key was
      not full yet, makes no second burst out of it (ratelimit_priv_begin).
   6. Where the chip has no 64-bit compare-and-swap there are no quick takes, and a bucket is only
      written under the lock of its line. A holder that was stopped between two stores for longer
      than RATELIMIT_TAKEOVER_MS may then undo what others charged meanwhile. No time is noted, and
      a late call to a key that was forgotten is decided at its own time.

   Why that is enough, where it is not plain:

   - A quick take may swap full_ns after its place got another owner, if full_ns has the value again
     that was read. But a quick take only moves full_ns forward. So the new owner then owes more
     than before, never less. The take sees another lock word, then another tag or rest, and
     starts over. If it finds its own tag and rest, the commit was for another place of the line, or
     for the same key, and the charge is where it belongs. (If the limit of the key changed and
     changed back in between, n intervals of the other limit were charged.)
   - The general way loads rest before full_ns (ratelimit_priv_fetch), and believes them only if the
     lock word is still the one that it read. Only a slow holder, whose lock was taken over, can
     come between unseen. If its full_ns goes forward it stores that first, so nobody sees its new
     rest with the old, lesser, full_ns. If it goes back, and both are stored between the two loads,
     the reader's own commit finds another rest, and decides again.
   - If full_ns of a freed bucket were stored first, a quick take could charge the bucket before
     rest is 0, and a slow holder would forget that charge when it stores rest. With rest first,
     either the take finds another rest, or its swap comes before the commit's, which fails.
   - A slow holder gives a key one burst more at most, because it brings in one place at most: its
     first swap succeeds only if nobody has claimed that place since. A search finds one of the two
     places, always the same; the other one is not charged, and is full and free in the end. If k
     holders for one key are that slow at once, each with a place of its own, they give it k bursts.
   - ratelimit_priv_search loads a lock and three tags at once, without acquire. It does so on x86
     only, where each of the words is loaded whole, and loads stay in their order. The compiler
     leaves them in order, too: the load of the lock word before it acquires, and what comes after
     it needs its result for an address or a branch. If it finds nothing, the lock word of the home
     line is loaded again: a thread that brings the key in changes that first. */

typedef struct ratelimit_priv_line {
    uint32_t lock;
    uint32_t tag[3];
    ratelimit_bucket bucket[3];
} ratelimit_priv_line;

struct ratelimit_table {
    uint32_t magic, version;
    uint32_t lines; /* whole blocks of eight */
    uint16_t when_full, hash;
    uint64_t seed[2], fast[4];
    /* second cache line */
    uint64_t step_ns;
    uint64_t check; /* hash of all above */
    uint64_t evicted, refused;
    uint64_t permits;      /* that were ever given */
    uint64_t forgotten_ns; /* when the last one of the forgotten keys became full; 0: none */
    uint64_t unused[2];
};

typedef char
    ratelimit_priv_check_layout[sizeof(ratelimit_priv_line) == 64 &&
                                        sizeof(ratelimit_bucket) == 16 &&
                                        sizeof(struct ratelimit_table) == RATELIMIT_PRIV_HEAD_BYTES
                                    ? 1
                                    : -1];

#  define RATELIMIT_PRIV_MAGIC         UINT32_C(0x31424C52) /* "RLB1" on little-endian */
#  define RATELIMIT_PRIV_TABLE_VERSION 3u
#  define RATELIMIT_PRIV_PERMIT_KIND   UINT32_C(0x9E3779B9)
#  define RATELIMIT_PRIV_QUICK         (RATELIMIT_PRIV_ATOMIC64 || !RATELIMIT_PRIV_ATOMIC)

static inline uint64_t ratelimit_priv_rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static inline uint32_t ratelimit_priv_le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t ratelimit_priv_le64(const unsigned char *p)
{
    return ratelimit_priv_le32(p) | (uint64_t)ratelimit_priv_le32(p + 4) << 32;
}

/* SipHash-1-3 (Aumasson, Bernstein): no known way to make keys collide without the seed. */
static RATELIMIT_PRIV_FAST void ratelimit_priv_sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = ratelimit_priv_rotate(v[1], 13) ^ v[0];
    v[0] = ratelimit_priv_rotate(v[0], 32);
    v[2] += v[3];
    v[3] = ratelimit_priv_rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = ratelimit_priv_rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = ratelimit_priv_rotate(v[1], 17) ^ v[2];
    v[2] = ratelimit_priv_rotate(v[2], 32);
}

static RATELIMIT_PRIV_FAST void ratelimit_priv_sip_start(uint64_t v[4], const uint64_t *seed)
{
    v[0] = seed[0] ^ UINT64_C(0x736f6d6570736575);
    v[1] = seed[1] ^ UINT64_C(0x646f72616e646f6d);
    v[2] = seed[0] ^ UINT64_C(0x6c7967656e657261);
    v[3] = seed[1] ^ UINT64_C(0x7465646279746573);
}

/* The last word, and the end. */
static RATELIMIT_PRIV_FAST uint64_t ratelimit_priv_sip_end(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    ratelimit_priv_sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    ratelimit_priv_sip_round(v);
    ratelimit_priv_sip_round(v);
    ratelimit_priv_sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static uint64_t ratelimit_priv_sip(const unsigned char *p, size_t key_len, const uint64_t *seed)
{
    size_t left = key_len;
    uint64_t word, v[4];
    ratelimit_priv_sip_start(v, seed);
    for (; left >= 8; left -= 8, p += 8) {
        word = ratelimit_priv_le64(p);
        v[3] ^= word;
        ratelimit_priv_sip_round(v);
        v[0] ^= word;
    }
    word = (uint64_t)(key_len & 255) << 56;
    if (left && key_len >= 8) { /* the last bytes by one load that ends with the key */
        word |= ratelimit_priv_le64(p + left - 8) >> (64 - 8 * left);
    } else if (left >= 4) { /* by two that overlap */
        word |= ratelimit_priv_le32(p);
        word |= (uint64_t)ratelimit_priv_le32(p + left - 4) << (8 * left - 32);
    } else {
        while (left--)
            word |= (uint64_t)p[left] << (8 * left);
    }
    return ratelimit_priv_sip_end(v, word);
}

/* The same for 8 to 15 bytes, most keys. */
static RATELIMIT_PRIV_INLINE uint64_t ratelimit_priv_sip_short(const unsigned char *p,
                                                               size_t key_len, const uint64_t *seed)
{
    uint64_t word = ratelimit_priv_le64(p), v[4];
    ratelimit_priv_sip_start(v, seed);
    v[3] ^= word;
    ratelimit_priv_sip_round(v);
    v[0] ^= word;
    word = ratelimit_priv_le64(p + key_len - 8) >> 1 >> (8 * (15 - key_len) + 7);
    return ratelimit_priv_sip_end(v, word | (uint64_t)key_len << 56);
}

static inline uint64_t ratelimit_priv_fold(uint64_t a, uint64_t b)
{
#  if RATELIMIT_PRIV_WIDE /* one multiplication */
    ratelimit_priv_wide product = (ratelimit_priv_wide)a * b;
    return (uint64_t)(product >> 64) ^ (uint64_t)product;
#  else
    return ratelimit_priv_high(a, b) ^ a * b;
#  endif
}

/* The end of the fast hash: the last two words, and the length, where no byte of a key can undo
   it. */
static RATELIMIT_PRIV_INLINE uint64_t ratelimit_priv_fast_end(uint64_t a, uint64_t b,
                                                              uint64_t key_len,
                                                              const uint64_t *secret)
{
    return ratelimit_priv_fold(ratelimit_priv_fold(a ^ secret[0], b ^ secret[1]) ^ secret[2],
                               secret[3] ^ key_len);
}

/* The fast hash: the key's words, each with a secret number, multiplied two by two to 128 bits,
 * whose halves are combined. All constants are secret: with known ones there are keys that collide
 * under every seed. */
static uint64_t ratelimit_priv_fast(const unsigned char *p, size_t key_len, const uint64_t *secret)
{
    uint64_t a, b, h = 0;
    const uint64_t whole_len = key_len;
    for (; key_len > 16; key_len -= 16, p += 16)
        h = ratelimit_priv_fold(ratelimit_priv_le64(p) ^ secret[0],
                                ratelimit_priv_le64(p + 8) ^ secret[1] ^ h);
    if (key_len >= 8) {
        a = ratelimit_priv_le64(p);
        b = ratelimit_priv_le64(p + key_len - 8);
    } else if (key_len >= 4) {
        a = ratelimit_priv_le32(p);
        b = ratelimit_priv_le32(p + key_len - 4);
    } else {
        a = (uint64_t)p[0] | (uint64_t)p[key_len >> 1] << 8 | (uint64_t)p[key_len - 1] << 16;
        b = 0;
    }
    return ratelimit_priv_fast_end(a, b ^ h, whole_len, secret);
}

static RATELIMIT_PRIV_NOINLINE uint64_t ratelimit_priv_hash_any(const ratelimit_table *t,
                                                                const unsigned char *p,
                                                                size_t key_len)
{
    return t->hash == RATELIMIT_HASH_FAST ? ratelimit_priv_fast(p, key_len, t->fast)
                                          : ratelimit_priv_sip(p, key_len, t->seed);
}

static RATELIMIT_PRIV_INLINE bool ratelimit_priv_is_fast(const ratelimit_table *t, size_t key_len)
{
    return t->hash == RATELIMIT_HASH_FAST && key_len - 8 < 8;
}

static RATELIMIT_PRIV_INLINE uint64_t ratelimit_priv_fast_short(const ratelimit_table *t,
                                                                const void *key, size_t key_len)
{
    const unsigned char *p = (const unsigned char *)key;
    return ratelimit_priv_fast_end(ratelimit_priv_le64(p), ratelimit_priv_le64(p + key_len - 8),
                                   key_len, t->fast);
}

/* Keys of 8 to 15 bytes without a call. */
static RATELIMIT_PRIV_INLINE uint64_t ratelimit_priv_hash(const ratelimit_table *t, const void *key,
                                                          size_t key_len)
{
    const unsigned char *p = (const unsigned char *)key;
#  if !RATELIMIT_PRIV_SIZE
    if (ratelimit_priv_is_fast(t, key_len))
        return ratelimit_priv_fast_short(t, key, key_len);
    if (key_len - 8 < 8)
        return ratelimit_priv_sip_short(p, key_len, t->seed);
#  endif
    return ratelimit_priv_hash_any(t, p, key_len);
}

/* Where a hash under a scope has its home line (upper half) and which tag it has (lower half).
 * Other kinds of entry are kept apart in the same way, each by a constant. */
static inline uint64_t ratelimit_priv_place(uint64_t hash, uint32_t scope)
{
    return hash ^ scope * UINT64_C(0x9E3779B97F4A7C15);
}

static inline ratelimit_priv_line *ratelimit_priv_lines(const ratelimit_table *t)
{
    return (ratelimit_priv_line *)((uintptr_t)t + RATELIMIT_PRIV_HEAD_BYTES);
}

static inline ratelimit_priv_line *ratelimit_priv_home(const ratelimit_table *t, uint64_t place)
{
    return ratelimit_priv_lines(t) + (size_t)((place >> 32) * t->lines >> 32);
}

static inline uint32_t ratelimit_priv_tag(uint64_t place)
{
    uint32_t tag = (uint32_t)place;
    return tag + (tag == 0);
}

/* Which slots of a line have this tag: bits 1 to 3. A processor cannot predict which slot matches,
 * so the code has no branches. */
static RATELIMIT_PRIV_INLINE uint32_t ratelimit_priv_search(const ratelimit_priv_line *line,
                                                            uint32_t tag)
{
#  if RATELIMIT_PRIV_SSE2
    const __m128i words = _mm_load_si128((const __m128i *)(const void *)line);
    const __m128i same = _mm_cmpeq_epi32(words, _mm_set1_epi32((int)tag));
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(same)) & 14;
#  else
    return (uint32_t)(ratelimit_priv_load32(&line->tag[0]) == tag) << 1 |
           (uint32_t)(ratelimit_priv_load32(&line->tag[1]) == tag) << 2 |
           (uint32_t)(ratelimit_priv_load32(&line->tag[2]) == tag) << 3;
#  endif
}

/* The number of the lowest bit set; bits is not 0. */
static inline uint32_t ratelimit_priv_lowest(uint32_t bits)
{
#  if defined(__GNUC__)
    return (uint32_t)__builtin_ctzl((unsigned long)bits); /* int may have 16 bits */
#  else
    uint32_t n = 0;
    for (; !(bits & 1); bits >>= 1)
        n++;
    return n;
#  endif
}

/* Rest first: see "Why that is enough". */
static inline ratelimit_bucket ratelimit_priv_fetch(const ratelimit_bucket *from)
{
    ratelimit_bucket b;
    b.rest = ratelimit_priv_load64(&from->rest);
    b.full_ns = ratelimit_priv_load64(&from->full_ns);
    return b;
}

/* Where an entry is, or where it would go, as it was read. */
typedef struct ratelimit_priv_seat {
    ratelimit_priv_line *line, *home;
    uint32_t word, home_word; /* of their locks */
    uint32_t slot, tag, old_tag;
    bool there;             /* the entry is there, and this is its place */
    bool full;              /* it is not, and there is no room for it */
    uint64_t now;           /* of the decision: for a new key of a late call later than asked */
    ratelimit_bucket was;   /* what a decision begins with: its state, or a newcomer's */
    ratelimit_bucket in_it; /* what the place holds */
    uint64_t least;         /* not there: ns until the first place is free, this one if not full */
} ratelimit_priv_seat;

/* ns since the bucket was seen, at least. */
static inline uint64_t ratelimit_priv_idle(const ratelimit_bucket *b, uint64_t left)
{
    uint64_t seen = UINT64_C(1) << (b->rest >> RATELIMIT_PRIV_SEEN_SHIFT);
    return seen > left ? seen - left : 0;
}

/* The line that a bucket of a table lies in. */
static RATELIMIT_PRIV_INLINE ratelimit_priv_line *ratelimit_priv_line_of(const ratelimit_bucket *b)
{
    return (ratelimit_priv_line *)((uintptr_t)b & ~(uintptr_t)63);
}

/* The block of a line: eight lines. */
static RATELIMIT_PRIV_INLINE ratelimit_priv_line *ratelimit_priv_block(const ratelimit_table *t,
                                                                       ratelimit_priv_line *line)
{
    const ratelimit_priv_line *first = ratelimit_priv_lines(t);
    size_t offset = (size_t)((uintptr_t)line - (uintptr_t)first);
    return (ratelimit_priv_line *)((uintptr_t)line - (offset & (RATELIMIT_PRIV_BLOCK * 64 - 1)));
}

/* The line that is i after the home line, in its block. */
static RATELIMIT_PRIV_INLINE ratelimit_priv_line *
ratelimit_priv_line_at(ratelimit_priv_line *block, ratelimit_priv_line *home, size_t i)
{
    return &block[((size_t)(home - block) + i) & (RATELIMIT_PRIV_BLOCK - 1)];
}

/* Where a tag is in its block: the slot + 1, and 4 for each line after the home line; or 0. */
static RATELIMIT_PRIV_INLINE uint32_t ratelimit_priv_find(ratelimit_priv_line *block,
                                                          ratelimit_priv_line *home, uint32_t tag)
{
    uint32_t found = ratelimit_priv_search(home, tag), i;
    if (found)
        return ratelimit_priv_lowest(found);
    for (i = 1; i < RATELIMIT_PRIV_BLOCK; i++)
        found |= ratelimit_priv_search(ratelimit_priv_line_at(block, home, (size_t)i), tag)
                 << (4 * i);
    return found ? ratelimit_priv_lowest(found) : 0;
}

/* In which order places are given away: 0 is free, then come the debts, the least first; UINT64_MAX
 * is a permit, which is never given away. Under EVICT_LAST_SEEN debts come in the order of the
 * times since they were seen, and those of whom that is not known in the order of the debts. */
static RATELIMIT_PRIV_FAST uint64_t ratelimit_priv_rank(const ratelimit_table *t,
                                                        const ratelimit_bucket *at, uint64_t now,
                                                        bool last_seen)
{
    const ratelimit_bucket b = ratelimit_priv_fetch(at);
    uint64_t left = ratelimit_priv_left(&b, now), idle;
    if (!RATELIMIT_PRIV_LIKELY(ratelimit_priv_class(b.rest) != RATELIMIT_PRIV_CLASS_PERMIT) &&
        left && t->when_full != RATELIMIT_REFUSE)
        return UINT64_MAX;
    if (!last_seen || !left)
        return left;
    idle = ratelimit_priv_idle(&b, left);
    return (UINT64_C(1) << 63) + (idle ? 0 - idle : left);
}

/* The place that ranks first, without those of a batch: a free one in the first line that has one,
 * from the home line on; of equal ones the one that was seen longer ago. */
static RATELIMIT_PRIV_INLINE ratelimit_bucket *
ratelimit_priv_first(const ratelimit_table *t, ratelimit_priv_line *block,
                     ratelimit_priv_line *home, uint64_t now, bool last_seen,
                     const ratelimit_priv_seat *seats, size_t count, uint64_t *rank)
{
    ratelimit_bucket *first = home->bucket, *b;
    uint64_t best = UINT64_MAX, is;
    uintptr_t lower;
    size_t i, slot, k;
    for (i = 0; best && i < RATELIMIT_PRIV_BLOCK; i++) {
        b = ratelimit_priv_line_at(block, home, i)->bucket;
        for (slot = 0; slot < 3; slot++, b++) {
            is = ratelimit_priv_rank(t, b, now, last_seen);
            for (k = 0; k < count; k++)
                if (&seats[k].line->bucket[seats[k].slot] == b)
                    is = UINT64_MAX;
            if (is == best && ratelimit_priv_load64(&b->rest) > ratelimit_priv_load64(&first->rest))
                first = b;
            lower = 0 - (uintptr_t)(is < best);
            first = (ratelimit_bucket *)((uintptr_t)first ^
                                         (((uintptr_t)first ^ (uintptr_t)b) & lower));
            best = is < best ? is : best;
        }
    }
    *rank = best;
    return first;
}

/* Gives a seat the place of a new key. */
static RATELIMIT_PRIV_NOINLINE void ratelimit_priv_choose(const ratelimit_table *t, uint64_t now,
                                                          ratelimit_priv_seat *seat,
                                                          const ratelimit_priv_seat *seats,
                                                          size_t count)
{
    ratelimit_priv_line *block = ratelimit_priv_block(t, seat->home);
    const bool last_seen = t->when_full == RATELIMIT_EVICT_LAST_SEEN;
    ratelimit_bucket *b;
    uint64_t best, left;
    size_t i;
    do {
        if (RATELIMIT_PRIV_SIZE || last_seen || count)
            b = ratelimit_priv_first(t, block, seat->home, now, last_seen, seats, count, &best);
        else /* the same, with less to do */
            b = ratelimit_priv_first(t, block, seat->home, now, false, NULL, 0, &best);
        seat->line = ratelimit_priv_line_of(b);
        seat->slot = (uint32_t)(b - seat->line->bucket);
        seat->word =
            seat->line == seat->home ? seat->home_word : ratelimit_priv_load32(&seat->line->lock);
        seat->old_tag = ratelimit_priv_load32(&seat->line->tag[seat->slot]);
        seat->in_it = ratelimit_priv_fetch(b);
    } while (RATELIMIT_PRIV_ATOMIC && best != UINT64_MAX &&
             ratelimit_priv_rank(t, &seat->in_it, now, last_seen) != best);
    seat->least = ratelimit_priv_left(&seat->in_it, now);
    seat->full = best == UINT64_MAX || (seat->least && t->when_full == RATELIMIT_REFUSE);
    for (i = 0; best == UINT64_MAX && i < 3 * RATELIMIT_PRIV_BLOCK; i++) {
        left = ratelimit_priv_left(&block[i / 3].bucket[i % 3], now);
        seat->least = left < seat->least ? left : seat->least;
    }
}

/* Was the line changed since its lock had this word? */
static inline bool ratelimit_priv_moved(const uint32_t *lock, uint32_t word)
{
    return RATELIMIT_PRIV_ATOMIC && ratelimit_priv_load32(lock) != word;
}

/* If word is odd, the lock is held: waits until the word changes, and returns true. Then what was
 * read under it may be old: look again. */
static inline bool ratelimit_priv_odd(uint32_t *lock, uint32_t word)
{
#  if RATELIMIT_PRIV_ATOMIC
    if (!(word & 1))
        return false;
    ratelimit_priv_wait_lock(lock, word);
    return true;
#  else
    (void)lock, (void)word;
    return false;
#  endif
}

/* When a newcomer begins. A call can come late: it read the clock, and was stopped; meanwhile its
 * key was full again, and was forgotten. Decided at its own time, the key would get again what
 * came back since. */
static RATELIMIT_PRIV_NOINLINE uint64_t ratelimit_priv_begin(const ratelimit_table *t, uint64_t now)
{
    uint64_t forgotten_ns = ratelimit_priv_load64(&t->forgotten_ns);
    return forgotten_ns && forgotten_ns - now <= t->step_ns ? forgotten_ns : now;
}

/* The seat of an entry that was not found since the home line had the lock word home_word. False:
 * look again. */
static bool ratelimit_priv_probe_new(const ratelimit_table *t, uint64_t now, bool make,
                                     const ratelimit_priv_seat *seats, size_t count,
                                     ratelimit_priv_seat *seat)
{
    const ratelimit_bucket none = {0, 0};
    seat->there = seat->full = false;
    seat->was = none;
    seat->now = ratelimit_priv_begin(t, now);
    if (make) {
        ratelimit_priv_choose(t, now, seat, seats, count);
        if (!seat->full && ratelimit_priv_odd(&seat->line->lock, seat->word))
            return false;
    }
    return !ratelimit_priv_moved(&seat->home->lock, seat->home_word);
}

/* Looks for an entry; if it is not there and is to be made, finds a place for it. */
static void ratelimit_priv_probe(const ratelimit_table *t, uint64_t place, uint64_t now, bool make,
                                 const ratelimit_priv_seat *seats, size_t count,
                                 ratelimit_priv_seat *seat)
{
    ratelimit_priv_line *home = ratelimit_priv_home(t, place);
    ratelimit_priv_line *block = ratelimit_priv_block(t, home);
    uint32_t found;
    seat->home = home;
    seat->tag = ratelimit_priv_tag(place);
again:
    seat->home_word = ratelimit_priv_load32(&home->lock);
    if (ratelimit_priv_odd(&home->lock, seat->home_word))
        goto again;
    found = ratelimit_priv_find(block, home, seat->tag);
    if (!found) {
        if (!ratelimit_priv_probe_new(t, now, make, seats, count, seat))
            goto again;
        return;
    }
    seat->there = true;
    seat->full = false;
    seat->line = ratelimit_priv_line_at(block, home, (size_t)found / 4);
    seat->slot = found % 4 - 1;
    seat->word = found < 4 ? seat->home_word : ratelimit_priv_load32(&seat->line->lock);
    if (ratelimit_priv_odd(&seat->line->lock, seat->word))
        goto again;
    seat->was = seat->in_it = ratelimit_priv_fetch(&seat->line->bucket[seat->slot]);
    seat->old_tag = ratelimit_priv_load32(&seat->line->tag[seat->slot]);
    seat->now = seat->was.rest ? now : ratelimit_priv_begin(t, now);
    if (ratelimit_priv_moved(&seat->line->lock, seat->word) ||
        (RATELIMIT_PRIV_ATOMIC && seat->old_tag != seat->tag))
        goto again;
}

#  if RATELIMIT_PRIV_ATOMIC
/* Swaps rest, whatever is noted as seen meanwhile. */
static bool ratelimit_priv_swap_rest(uint64_t *p, uint64_t old, uint64_t rest)
{
    for (;;) {
        uint64_t now = ratelimit_priv_load64(p);
        if ((now ^ old) << 6)
            return false;
        if (ratelimit_priv_swap64(p, now, rest))
            return true;
    }
}

/* Does rest have to be stored before full_ns? */
static bool ratelimit_priv_rest_first(const ratelimit_priv_seat *seat,
                                      const ratelimit_bucket *after)
{
    return !after->rest || (seat->there && (after->full_ns - seat->in_it.full_ns) >> 63 &&
                            ((after->rest ^ seat->in_it.rest) << 6));
}

/* The first half of a commit (rule 2): full_ns, which quick takes swap, too. False: a quick take
 * came first, and nothing is stored. (Or the lock was taken over: then a rest that was stored first
 * may stay. Who took the lock over has read it, or decides again.) */
static bool ratelimit_priv_store_full(const ratelimit_priv_seat *seat,
                                      const ratelimit_bucket *after)
{
    ratelimit_bucket *b = &seat->line->bucket[seat->slot];
    const bool first = ratelimit_priv_rest_first(seat, after);
    if (first && !ratelimit_priv_swap_rest(&b->rest, seat->in_it.rest, after->rest))
        return false;
    if (ratelimit_priv_swap64(&b->full_ns, seat->in_it.full_ns, after->full_ns))
        return true;
    if (first && ratelimit_priv_load32(&seat->line->lock) == seat->word + 1)
        (void)ratelimit_priv_swap_rest(&b->rest, after->rest, seat->in_it.rest);
    return false;
}

/* The second half of a commit: rest, then the tag of a new key. False: the lock was taken over. */
static bool ratelimit_priv_store_rest(const ratelimit_priv_seat *seat,
                                      const ratelimit_bucket *after)
{
    ratelimit_bucket *b = &seat->line->bucket[seat->slot];
    if (!ratelimit_priv_rest_first(seat, after) &&
        !ratelimit_priv_swap_rest(&b->rest, seat->in_it.rest, after->rest))
        return false;
    return seat->there ||
           ratelimit_priv_swap32(&seat->line->tag[seat->slot], seat->old_tag, seat->tag);
}

#  else
static bool ratelimit_priv_store_full(const ratelimit_priv_seat *seat,
                                      const ratelimit_bucket *after)
{
    seat->line->bucket[seat->slot] = *after;
    return true;
}

static bool ratelimit_priv_store_rest(const ratelimit_priv_seat *seat,
                                      const ratelimit_bucket *after)
{
    (void)after;
    seat->line->tag[seat->slot] = seat->tag;
    return true;
}
#  endif

/* Does nothing if the lock was taken over: then it is not ours. */
static inline void ratelimit_priv_unlock(uint32_t *lock, uint32_t word)
{
    (void)ratelimit_priv_swap32(lock, word + 1, word + 2);
}

/* ns that a key still owes whose place a newcomer gets; 0 if the place is free. */
static inline uint64_t ratelimit_priv_displaced(const ratelimit_priv_seat *seat)
{
    return seat->there ? 0 : seat->least;
}

static void ratelimit_priv_count_evicted(ratelimit_table *t, const ratelimit_priv_seat *seat)
{
    if (t->when_full != RATELIMIT_INHERIT && ratelimit_priv_displaced(seat))
        ratelimit_priv_bump(&t->evicted, 1);
}

/* A full key is about to be forgotten: notes the time at which it became full. This comes first, so
 * a call that does not find the key finds the time. A noted time stays if it is later, and ahead of
 * now by step_ns at most: else the clock was set back. A key that has been full for longer than
 * step_ns is of no interest: no call is that late. */
static void ratelimit_priv_forget(ratelimit_table *t, const ratelimit_priv_seat *seat)
{
#  if RATELIMIT_PRIV_QUICK
    const ratelimit_bucket *b = &seat->in_it;
    /* a fraction counts as a whole ns; a block ends before its key is full */
    const uint64_t full_ns = b->full_ns + ratelimit_priv_left(b, b->full_ns);
    const uint64_t since = seat->now - full_ns;
    uint64_t is;
    do {
        is = ratelimit_priv_load64(&t->forgotten_ns);
        if (since > t->step_ns || (is && is - full_ns <= since + t->step_ns))
            return;
    } while (!ratelimit_priv_swap64(&t->forgotten_ns, is, full_ns)); /* 0, an empty place: none */
#  else
    (void)t, (void)seat; /* two halves under no lock would be a time that never was */
#  endif
}

/* Makes `after` the state of the entry. False: something changed since the probe. */
static bool ratelimit_priv_commit(ratelimit_table *t, const ratelimit_priv_seat *seat,
                                  const ratelimit_bucket *after)
{
    bool both = RATELIMIT_PRIV_ATOMIC && !seat->there && seat->home != seat->line, done;
    if (RATELIMIT_PRIV_ATOMIC &&
        !ratelimit_priv_swap32(&seat->line->lock, seat->word, seat->word + 1))
        return false;
    if (both && !ratelimit_priv_swap32(&seat->home->lock, seat->home_word, seat->home_word + 1)) {
        ratelimit_priv_unlock(&seat->line->lock, seat->word);
        return false;
    }
    if (!seat->there && !seat->least)
        ratelimit_priv_forget(t, seat);
    done = ratelimit_priv_store_full(seat, after) && ratelimit_priv_store_rest(seat, after);
    if (RATELIMIT_PRIV_ATOMIC)
        ratelimit_priv_unlock(&seat->line->lock, seat->word);
    if (both)
        ratelimit_priv_unlock(&seat->home->lock, seat->home_word);
    if (done)
        ratelimit_priv_count_evicted(t, seat);
    return done;
}

static bool ratelimit_priv_makes(ratelimit_op op)
{
    return op != RATELIMIT_REFUND && op != RATELIMIT_CANCEL && op != RATELIMIT_RESET;
}

/* A newcomer's first state: full, or under INHERIT the debt of the place it gets, as a time. */
static void ratelimit_priv_inherit(const ratelimit_table *t, ratelimit_priv_seat *seat,
                                   const ratelimit_limit *l, uint64_t now)
{
    uint64_t left =
        seat->full || t->when_full != RATELIMIT_INHERIT ? 0 : ratelimit_priv_displaced(seat);
    if (!left)
        return;
    seat->was.full_ns = now + left;
    seat->was.rest = l->state | ratelimit_priv_seen_bits(left);
    if (left > l->window_ns)
        seat->was.rest |= RATELIMIT_PRIV_ON_PURPOSE;
}

/* The answer to a call that comes late: its times are counted from the caller's time. */
static RATELIMIT_PRIV_NOINLINE void ratelimit_priv_answer_late(ratelimit_result *out, uint64_t late)
{
    if (out->retry_after_ns && out->retry_after_ns != RATELIMIT_FOREVER)
        out->retry_after_ns += late;
    out->reset_after_ns += out->reset_after_ns ? late : 0;
    out->wait_ns += out->wait_ns ? late : 0;
}

/* Decides on a seat. *after is then the state to be stored. */
static bool ratelimit_priv_decide_seat(ratelimit_table *t, ratelimit_priv_seat *seat,
                                       const ratelimit_limit *l, uint64_t n, ratelimit_op op,
                                       uint64_t max_wait_ns, uint64_t now, ratelimit_bucket *after,
                                       ratelimit_result *out)
{
    bool allowed;
    const uint64_t late = seat->now - now;
    if (ratelimit_priv_makes(op))
        ratelimit_priv_inherit(t, seat, l, now);
    if (op == RATELIMIT_RESERVE)
        max_wait_ns = max_wait_ns > late ? max_wait_ns - late : 0;
    *after = seat->was;
    allowed = ratelimit_priv_decide_op(after, l, n, op, max_wait_ns, seat->now, t->step_ns, out);
    if (out && late)
        ratelimit_priv_answer_late(out, late);
    if (seat->full && allowed && ratelimit_priv_makes(op)) {
        if (op != RATELIMIT_PEEK)
            ratelimit_priv_bump(&t->refused, 1);
        allowed = false;
        if (out) {
            ratelimit_priv_answer(out, RATELIMIT_FULL);
            out->burst = l->burst;
            out->retry_after_ns = seat->least;
        }
    }
    if (!seat->there && (!allowed || op == RATELIMIT_PEEK))
        *after = seat->was; /* a newcomer that is refused takes nobody's place */
    return allowed;
}

/* Stores what a decision made of a seat. False: decide again. */
static bool ratelimit_priv_keep(ratelimit_table *t, const ratelimit_priv_seat *seat,
                                const ratelimit_bucket *after)
{
    if (seat->was.full_ns == after->full_ns && !((seat->was.rest ^ after->rest) << 6)) {
        if (!seat->there || seat->was.rest == after->rest)
            return true;
        if (RATELIMIT_PRIV_ATOMIC64) { /* only noted as seen: one swap, no lock */
            (void)ratelimit_priv_swap64(&seat->line->bucket[seat->slot].rest, seat->was.rest,
                                        after->rest);
            return true;
        }
    }
    return ratelimit_priv_commit(t, seat, after);
}

/* One request that is not settled. If it was probed, its seat is known. */
static RATELIMIT_PRIV_INLINE bool
ratelimit_priv_seat_op(ratelimit_table *t, uint64_t place, ratelimit_priv_seat *seat, bool probed,
                       const ratelimit_limit *l, uint64_t n, ratelimit_op op, uint64_t max_wait_ns,
                       uint64_t now, ratelimit_result *out_or_null)
{
    ratelimit_bucket after;
    bool allowed;
    do {
        if (!probed)
            ratelimit_priv_probe(t, place, now, ratelimit_priv_makes(op), NULL, 0, seat);
        probed = false;
        allowed =
            ratelimit_priv_decide_seat(t, seat, l, n, op, max_wait_ns, now, &after, out_or_null);
    } while (!ratelimit_priv_keep(t, seat, &after));
    return allowed;
}

static bool ratelimit_priv_place_op(ratelimit_table *t, uint64_t place, const ratelimit_limit *l,
                                    uint64_t n, ratelimit_op op, uint64_t max_wait_ns, uint64_t now,
                                    ratelimit_result *out_or_null)
{
    ratelimit_priv_seat seat;
    return ratelimit_priv_seat_op(t, place, &seat, false, l, n, op, max_wait_ns, now, out_or_null);
}

static bool ratelimit_priv_decide_place(ratelimit_table *t, uint64_t place,
                                        const ratelimit_request *q, uint64_t now,
                                        ratelimit_result *out_or_null)
{
    return ratelimit_priv_place_op(t, place, q->limit, q->n, q->op, q->max_wait_ns, now,
                                   out_or_null);
}

/* True if *out is the answer without a look at the table; else *place is where to look. */
static bool ratelimit_priv_prepare(const ratelimit_table *t, const ratelimit_request *q,
                                   uint64_t *place, ratelimit_result *out)
{
    if (ratelimit_priv_no_key(q)) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_KEY);
        return true;
    }
    if (ratelimit_priv_settled(q, out))
        return true;
    *place = ratelimit_priv_place(ratelimit_priv_hash(t, q->key, q->key_len), q->limit->scope);
    return false;
}

static bool ratelimit_priv_decide_one(ratelimit_table *t, const ratelimit_request *q, uint64_t now,
                                      ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    uint64_t place;
    if (ratelimit_priv_prepare(t, q, &place, out))
        return out->allowed;
    return ratelimit_priv_decide_place(t, place, q, now, out_or_null);
}

/* The general way of a take. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_table_slow(ratelimit_table *t, uint64_t place,
                                                              const ratelimit_limit *limit,
                                                              uint64_t n, uint64_t now,
                                                              ratelimit_result *out_or_null)
{
    int settled = ratelimit_priv_settled_op(limit, n, RATELIMIT_TAKE, 0, out_or_null);
    if (settled != RATELIMIT_PRIV_OPEN)
        return settled == RATELIMIT_PRIV_ALLOWED;
    return ratelimit_priv_place_op(t, place, limit, n, RATELIMIT_TAKE, 0, now, out_or_null);
}

#  if RATELIMIT_PRIV_QUICK
/* A quick take found the lock changed. If it has charged b and b is still what it was, the take is
 * done, and *out is right. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_take_again(ratelimit_table *t, uint64_t place,
                                                              const ratelimit_limit *l, uint64_t n,
                                                              uint64_t now, ratelimit_result *out,
                                                              ratelimit_bucket *b, uint64_t rest,
                                                              bool charged)
{
    ratelimit_priv_line *line = ratelimit_priv_line_of(b);
    while (ratelimit_priv_odd(&line->lock, ratelimit_priv_load32(&line->lock)))
        ; /* rest and tag may follow full_ns */
    if (charged &&
        ratelimit_priv_load32(&line->tag[b - line->bucket]) == ratelimit_priv_tag(place) &&
        !((ratelimit_priv_load64(&b->rest) ^ rest) << 6))
        return true;
    return ratelimit_priv_table_slow(t, place, l, n, now, out);
}

/* Notes when a bucket was seen. */
static RATELIMIT_PRIV_NOINLINE bool
ratelimit_priv_note_seen(ratelimit_bucket *b, const ratelimit_limit *l, uint64_t debt, bool answer)
{
    uint64_t rest = ratelimit_priv_load64(&b->rest);
    if (!((rest ^ l->state) << 6))
        (void)ratelimit_priv_swap64(&b->rest, rest, l->state | ratelimit_priv_seen_bits(debt));
    return answer;
}

/* The quick way, on a place whose line had this lock word before its tag was read. It writes no
 * memory before the swap, because a swap waits for earlier writes. Every call in it is a tail call,
 * so it needs almost no stack. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_take_there(ratelimit_table *t, uint64_t place,
                                                            const ratelimit_limit *l, uint64_t n,
                                                            uint64_t now, ratelimit_result *out,
                                                            ratelimit_bucket *b, uint32_t word)
{
    const uint64_t old = ratelimit_priv_load64(&b->full_ns); /* before rest, see rule 1 */
    const uint64_t rest = ratelimit_priv_load64(&b->rest);
    uint64_t full = old, debt;
    const int is = ratelimit_priv_quick(l, n, rest, now, &full, &debt);
    const bool allowed = is == RATELIMIT_PRIV_ALLOWED;
    if (is == RATELIMIT_PRIV_OPEN || !RATELIMIT_PRIV_LIKELY(!(word & 1)) ||
        (allowed && !RATELIMIT_PRIV_LIKELY(ratelimit_priv_swap64(&b->full_ns, old, full))))
        return ratelimit_priv_table_slow(t, place, l, n, now, out);
    if (out)
        ratelimit_priv_quick_result(l, n, allowed, debt, out);
    if (!RATELIMIT_PRIV_LIKELY(!ratelimit_priv_moved(&ratelimit_priv_line_of(b)->lock, word)))
        return ratelimit_priv_take_again(t, place, l, n, now, out, b, rest, allowed);
    return RATELIMIT_PRIV_LIKELY(ratelimit_priv_noted(rest, debt))
               ? allowed
               : ratelimit_priv_note_seen(b, l, debt, allowed);
}

/* The place of an entry anywhere in its block, and a lock word of its line that is older than what
 * is known of the tag; or NULL. */
static ratelimit_bucket *ratelimit_priv_seek(const ratelimit_table *t, uint64_t place,
                                             uint32_t *word)
{
    ratelimit_priv_line *line = ratelimit_priv_home(t, place);
    ratelimit_priv_line *block = ratelimit_priv_block(t, line);
    uint32_t found = ratelimit_priv_find(block, line, ratelimit_priv_tag(place));
    if (!found)
        return NULL;
    line = ratelimit_priv_line_at(block, line, (size_t)found / 4);
    *word = ratelimit_priv_load32(&line->lock);
    found = found % 4 - 1;
    return ratelimit_priv_load32(&line->tag[found]) == ratelimit_priv_tag(place)
               ? &line->bucket[found]
               : NULL;
}

/* The general way for a key that was not found since the home line had this lock word: it is not
 * looked for twice. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_take_new(ratelimit_table *t, uint64_t place,
                                                            const ratelimit_limit *l, uint64_t n,
                                                            uint64_t now, ratelimit_result *out,
                                                            uint32_t home_word)
{
    ratelimit_priv_seat seat;
    if (ratelimit_priv_settled_op(l, n, RATELIMIT_TAKE, 0, NULL) != RATELIMIT_PRIV_OPEN)
        return ratelimit_priv_table_slow(t, place, l, n, now, out);
    seat.home = ratelimit_priv_home(t, place);
    seat.home_word = home_word;
    seat.tag = ratelimit_priv_tag(place);
    if (home_word & 1 || !ratelimit_priv_probe_new(t, now, true, NULL, 0, &seat))
        return ratelimit_priv_table_slow(t, place, l, n, now, out);
    return ratelimit_priv_seat_op(t, place, &seat, true, l, n, RATELIMIT_TAKE, 0, now, out);
}

/* The quick way for a key that is not in its home line. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_take_away(ratelimit_table *t, uint64_t place,
                                                             const ratelimit_limit *l, uint64_t n,
                                                             uint64_t now, ratelimit_result *out)
{
    const uint32_t home_word = ratelimit_priv_load32(&ratelimit_priv_home(t, place)->lock);
    uint32_t word;
    ratelimit_bucket *b = ratelimit_priv_seek(t, place, &word);
    if (b)
        return ratelimit_priv_take_there(t, place, l, n, now, out, b, word);
    return ratelimit_priv_take_new(t, place, l, n, now, out, home_word);
}
#  endif

/* The quick way: a known key in its home line, under the limit it was last charged under. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_take_place(ratelimit_table *t, uint64_t place,
                                                            const ratelimit_limit *l, uint64_t n,
                                                            uint64_t now, ratelimit_result *out)
{
#  if RATELIMIT_PRIV_QUICK
    ratelimit_priv_line *line = ratelimit_priv_home(t, place);
    const uint32_t word = ratelimit_priv_load32(&line->lock);
    const uint32_t found = ratelimit_priv_search(line, ratelimit_priv_tag(place));
    if (RATELIMIT_PRIV_LIKELY(found))
        return ratelimit_priv_take_there(
            t, place, l, n, now, out,
            (ratelimit_bucket *)(void *)line + ratelimit_priv_lowest(found), word);
    if (!RATELIMIT_PRIV_SIZE)
        return ratelimit_priv_take_away(t, place, l, n, now, out);
    return ratelimit_priv_table_slow(t, place, l, n, now, out);
#  else
    return ratelimit_priv_table_slow(t, place, l, n, now, out);
#  endif
}

/* Without a result, and with one: two functions, so that a yes or no needs few registers. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_take_plain(ratelimit_table *t, uint64_t place,
                                                              const ratelimit_limit *l, uint64_t n,
                                                              uint64_t now)
{
    return ratelimit_priv_take_place(t, place, l, n, now, NULL);
}

static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_take_result(ratelimit_table *t, uint64_t place,
                                                               const ratelimit_limit *l, uint64_t n,
                                                               uint64_t now, ratelimit_result *out)
{
    return ratelimit_priv_take_place(t, place, l, n, now, out);
}

static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_bad_take(ratelimit_status status,
                                                            ratelimit_result *out_or_null)
{
    if (out_or_null)
        ratelimit_priv_answer(out_or_null, status);
    return false;
}

static RATELIMIT_PRIV_INLINE bool ratelimit_priv_take_at(ratelimit_table *t, uint64_t hash,
                                                         const ratelimit_limit *l, uint64_t n,
                                                         uint64_t now, ratelimit_result *out)
{
    uint64_t place;
    if (!l)
        return ratelimit_priv_bad_take(RATELIMIT_BAD_LIMIT, out);
    place = ratelimit_priv_place(hash, l->scope);
    if (!RATELIMIT_PRIV_SIZE && RATELIMIT_PRIV_LIKELY(!out))
        return ratelimit_priv_take_plain(t, place, l, n, now);
    return ratelimit_priv_take_result(t, place, l, n, now, out);
}

/* A take of any key, under any hash. */
static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_take_key(ratelimit_table *t, const void *key,
                                                            size_t key_len,
                                                            const ratelimit_limit *limit,
                                                            uint64_t n, uint64_t now,
                                                            ratelimit_result *out_or_null)
{
    if (!key_len)
        return ratelimit_priv_bad_take(RATELIMIT_BAD_KEY, out_or_null);
    return ratelimit_priv_take_at(t, ratelimit_priv_hash(t, key, key_len), limit, n, now,
                                  out_or_null);
}

RATELIMIT_API bool ratelimit_table_take(ratelimit_table *t, const void *key, size_t key_len,
                                        const ratelimit_limit *limit, uint64_t n, uint64_t now_ns,
                                        ratelimit_result *out_or_null)
{
    bool allowed;
    if (!t)
        return ratelimit_priv_bad_take(RATELIMIT_BAD_ARGUMENT, out_or_null);
    if (!key)
        return ratelimit_priv_bad_take(RATELIMIT_BAD_KEY, out_or_null);
    RATELIMIT_PRIV_ENTER();
#  if !RATELIMIT_PRIV_SIZE
    if (key_len - 8 < 8 && t->hash == RATELIMIT_HASH_FAST)
        allowed = ratelimit_priv_take_at(t, ratelimit_priv_fast_short(t, key, key_len), limit, n,
                                         now_ns, out_or_null);
    else
#  endif
        allowed = ratelimit_priv_take_key(t, key, key_len, limit, n, now_ns, out_or_null);
    RATELIMIT_PRIV_LEAVE();
    return allowed;
}

RATELIMIT_API uint64_t ratelimit_table_hash(const ratelimit_table *t, const void *key,
                                            size_t key_len)
{
    return t && key && key_len ? ratelimit_priv_hash(t, key, key_len) : 0;
}

RATELIMIT_API bool ratelimit_table_take_hash(ratelimit_table *t, uint64_t hash,
                                             const ratelimit_limit *limit, uint64_t n,
                                             uint64_t now_ns, ratelimit_result *out_or_null)
{
    bool allowed;
    if (!t)
        return ratelimit_priv_bad_take(RATELIMIT_BAD_ARGUMENT, out_or_null);
    RATELIMIT_PRIV_ENTER();
    allowed = ratelimit_priv_take_at(t, hash, limit, n, now_ns, out_or_null);
    RATELIMIT_PRIV_LEAVE();
    return allowed;
}

RATELIMIT_API bool ratelimit_table_decide_one(ratelimit_table *t, const ratelimit_request *req,
                                              uint64_t now_ns, ratelimit_result *out_or_null)
{
    return ratelimit_table_decide(t, req, out_or_null, 1, RATELIMIT_EACH, now_ns);
}

/* ---- each

   A batch goes in chunks, and each chunk in three rounds, so that no request waits for the memory
   of another: hash the keys and fetch their home lines; find the keys, and fetch the next line for
   those that are not at home; decide. */

enum { RATELIMIT_PRIV_CHUNK = 32 };

typedef struct ratelimit_priv_spot {
    uint64_t place;
    ratelimit_priv_line *line; /* the home line */
    ratelimit_bucket *b;       /* NULL: not found */
    uint32_t word;
} ratelimit_priv_spot;

static inline bool ratelimit_priv_is_take(const ratelimit_request *q)
{
    return q->op == RATELIMIT_TAKE && !ratelimit_priv_no_key(q) && q->limit;
}

/* The first two rounds. False: these are not all good takes. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_look_ahead(const ratelimit_table *t,
                                                            const ratelimit_request *req,
                                                            size_t count, ratelimit_priv_spot *spot)
{
#  if RATELIMIT_PRIV_QUICK && !RATELIMIT_PRIV_SIZE
    uint32_t away[RATELIMIT_PRIV_CHUNK], i, k, others = 0;
    bool takes = true;
    for (i = 0; i < count; i++) {
        const ratelimit_request *q = &req[i];
        if (!ratelimit_priv_is_take(q)) {
            takes = false;
            continue;
        }
        spot[i].place =
            ratelimit_priv_place(ratelimit_priv_hash(t, q->key, q->key_len), q->limit->scope);
        spot[i].line = ratelimit_priv_home(t, spot[i].place);
        ratelimit_priv_prefetch(spot[i].line);
    }
    for (i = 0; takes && i < count; i++) {
        ratelimit_priv_line *line = spot[i].line;
        uint32_t found;
        spot[i].word = ratelimit_priv_load32(&line->lock);
        found = ratelimit_priv_search(line, ratelimit_priv_tag(spot[i].place));
        spot[i].b = (ratelimit_bucket *)(void *)line + ratelimit_priv_lowest(found | 8);
        away[others] = i;
        others += !found;
    }
    for (i = 0; takes && i < others; i++) {
        ratelimit_priv_line *line = spot[away[i]].line;
        ratelimit_priv_prefetch(ratelimit_priv_line_at(ratelimit_priv_block(t, line), line, 1));
    }
    for (k = 0; takes && k < others; k++)
        spot[away[k]].b = ratelimit_priv_seek(t, spot[away[k]].place, &spot[away[k]].word);
    return takes;
#  else
    (void)t, (void)req, (void)count, (void)spot;
    return false;
#  endif
}

static size_t ratelimit_priv_each(ratelimit_table *t, const ratelimit_request *req,
                                  ratelimit_result *res, bool *allowed, size_t count, uint64_t now)
{
    ratelimit_priv_spot spot[RATELIMIT_PRIV_CHUNK], *s;
    size_t from, i, n, passed = 0;
    for (from = 0; from < count; from += n) {
        bool ahead, pass;
        n = count - from < RATELIMIT_PRIV_CHUNK ? count - from : (size_t)RATELIMIT_PRIV_CHUNK;
        ahead = ratelimit_priv_look_ahead(t, req + from, n, spot);
        for (i = from, s = spot; i < from + n; i++, s++) {
            const ratelimit_request *q = &req[i];
            ratelimit_result *out = res ? &res[i] : NULL;
#  if RATELIMIT_PRIV_QUICK
            if (RATELIMIT_PRIV_LIKELY(ahead) && RATELIMIT_PRIV_LIKELY(s->b != NULL) &&
                RATELIMIT_PRIV_LIKELY(
                    !ratelimit_priv_moved(&ratelimit_priv_line_of(s->b)->lock, s->word)))
                pass =
                    ratelimit_priv_take_there(t, s->place, q->limit, q->n, now, out, s->b, s->word);
            else
#  else
            (void)ahead, (void)s;
#  endif
                if (ratelimit_priv_is_take(q))
                pass = ratelimit_priv_take_key(t, q->key, q->key_len, q->limit, q->n, now, out);
            else
                pass = ratelimit_priv_decide_one(t, q, now, out);
            passed += pass;
            if (allowed)
                allowed[i] = pass;
        }
    }
    return passed;
}

/* ---- all or none

   Every request is decided on a copy. If one is refused, nothing is stored but what a refusal
   stores: a changed limit, a clock set back, when the key was seen. If all pass, the lines are
   locked in the order of their addresses, by the swaps that prove that they are as they were read,
   and then every full_ns is swapped. A quick take may still come before one of these swaps: then
   those done so far are taken back, still under the locks, and all is decided again. */

typedef struct ratelimit_priv_part {
    ratelimit_priv_seat seat;
    ratelimit_bucket after;
    uint64_t place;
    size_t first; /* the first request of the batch with this place */
    bool settled;
} ratelimit_priv_part;

typedef struct ratelimit_priv_held_lock {
    uint32_t *lock, word;
} ratelimit_priv_held_lock;

/* Adds a lock in the order of addresses; false if it is there with another word. */
static bool ratelimit_priv_add_lock(ratelimit_priv_held_lock *locks, size_t *count, uint32_t *lock,
                                    uint32_t word)
{
    size_t i = *count;
    while (i && locks[i - 1].lock > lock)
        i--;
    if (i && locks[i - 1].lock == lock)
        return locks[i - 1].word == word;
    memmove(&locks[i + 1], &locks[i], (*count - i) * sizeof *locks);
    locks[i].lock = lock;
    locks[i].word = word;
    ++*count;
    return true;
}

/* Takes back what store_full did, but for what was charged since. Not if the lock was taken over:
 * the place may be another key's then. Who took it changes full_ns first, so that our swap
 * fails. */
static void ratelimit_priv_take_back(const ratelimit_priv_part *part)
{
#  if RATELIMIT_PRIV_ATOMIC
    const ratelimit_priv_seat *seat = &part->seat;
    ratelimit_bucket *b = &seat->line->bucket[seat->slot];
    uint64_t by = part->after.full_ns - seat->in_it.full_ns, is;
    do {
        is = ratelimit_priv_load64(&b->full_ns);
        if (ratelimit_priv_load32(&seat->line->lock) != seat->word + 1)
            return;
    } while (!ratelimit_priv_swap64(&b->full_ns, is, is - by));
    if (ratelimit_priv_rest_first(seat, &part->after))
        (void)ratelimit_priv_swap_rest(&b->rest, part->after.rest, seat->in_it.rest);
#  else
    (void)part; /* nobody comes between */
#  endif
}

/* Stores all parts, or none. */
static bool ratelimit_priv_commit_all(ratelimit_table *t, const ratelimit_priv_part *part,
                                      size_t count)
{
    ratelimit_priv_held_lock locks[2 * RATELIMIT_MAX_ALL];
    const ratelimit_priv_part *changed[RATELIMIT_MAX_ALL];
    size_t i, held = 0, wanted = 0, changes = 0, stored = 0;
    bool done = true, lost = false; /* lost: a lock was taken over; what was charged stays */
    for (i = 0; done && i < count; i++) {
        const ratelimit_priv_seat *seat = &part[i].seat;
        if (part[i].settled || part[i].first != i ||
            (seat->was.full_ns == part[i].after.full_ns && seat->was.rest == part[i].after.rest))
            continue;
        changed[changes++] = &part[i];
        done = ratelimit_priv_add_lock(locks, &wanted, &seat->line->lock, seat->word);
        if (done && !seat->there)
            done = ratelimit_priv_add_lock(locks, &wanted, &seat->home->lock, seat->home_word);
    }
    for (; done && held < wanted; held += done)
        done = ratelimit_priv_swap32(locks[held].lock, locks[held].word, locks[held].word + 1);
    for (; done && stored < changes; stored += done) {
        if (!changed[stored]->seat.there && !changed[stored]->seat.least)
            ratelimit_priv_forget(t, &changed[stored]->seat);
        done = ratelimit_priv_store_full(&changed[stored]->seat, &changed[stored]->after);
    }
    for (i = 0; i < stored; i++) {
        if (!done) {
            ratelimit_priv_take_back(changed[i]);
            continue;
        }
        if (!ratelimit_priv_store_rest(&changed[i]->seat, &changed[i]->after)) {
            lost = true;
            continue;
        }
        ratelimit_priv_count_evicted(t, &changed[i]->seat);
    }
    while (held--)
        ratelimit_priv_unlock(locks[held].lock, locks[held].word);
    return done && !lost;
}

/* Makes the results of a refused batch, and stores what a single refusal would store: a take of
 * 2^64 - 1 tokens is always refused, so it stores that. */
static void ratelimit_priv_none(ratelimit_table *t, const ratelimit_request *req,
                                ratelimit_result *res, size_t count,
                                const ratelimit_priv_part *part, uint64_t now)
{
    uint64_t longest = 0;
    size_t i;
    for (i = 0; i < count; i++)
        longest = res[i].retry_after_ns > longest ? res[i].retry_after_ns : longest;
    for (i = 0; i < count; i++) {
        ratelimit_request look = req[i];
        ratelimit_result spare;
        if (!part[i].settled && look.op != RATELIMIT_PEEK) {
            look.op = RATELIMIT_TAKE;
            look.n = UINT64_MAX;
            (void)ratelimit_priv_decide_place(t, part[i].place, &look, now, &spare);
        }
        if (!res[i].allowed)
            continue;
        if (!part[i].settled) {
            look.op = RATELIMIT_PEEK;
            look.n = 1;
            (void)ratelimit_priv_decide_place(t, part[i].place, &look, now, &res[i]);
        }
        res[i].allowed = false;
        res[i].status = RATELIMIT_SKIPPED;
        res[i].taken = res[i].wait_ns = 0;
        res[i].retry_after_ns = longest;
    }
}

/* Looks for all keys of a batch, first those that are there: a newcomer must not get the place of
 * one of them, nor that of another newcomer. Requests of one place share the seat of the first. */
static void ratelimit_priv_probe_all(ratelimit_table *t, ratelimit_priv_part *part, size_t count,
                                     uint64_t now)
{
    ratelimit_priv_seat seats[RATELIMIT_MAX_ALL];
    size_t i, make, taken = 0;
    for (make = 0; make < 2; make++)
        for (i = 0; i < count; i++) {
            ratelimit_priv_seat *seat = &part[i].seat;
            if (part[i].settled || part[i].first != i || (make && seat->there))
                continue;
            ratelimit_priv_probe(t, part[i].place, now, make != 0, seats, taken, seat);
            if (seat->there || (make && !seat->full))
                seats[taken++] = *seat;
        }
}

static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_all(ratelimit_table *t,
                                                       const ratelimit_request *req,
                                                       ratelimit_result *res, size_t count,
                                                       uint64_t now)
{
    ratelimit_priv_part part[RATELIMIT_MAX_ALL];
    ratelimit_result spare[RATELIMIT_MAX_ALL];
    size_t i, j;
    bool pass;
    res = res ? res : spare;
    for (i = 0; i < count; i++) {
        part[i].settled = ratelimit_priv_prepare(t, &req[i], &part[i].place, &res[i]);
        for (j = part[i].settled ? i : 0;
             j < i && (part[j].settled || part[j].place != part[i].place); j++)
            ;
        part[i].first = j;
    }
    do {
        ratelimit_priv_probe_all(t, part, count, now);
        pass = true;
        for (i = 0; i < count; i++) {
            ratelimit_priv_part *first = &part[part[i].first];
            if (!part[i].settled && first != &part[i]) { /* goes on from an earlier request */
                part[i].seat = first->seat;
                part[i].seat.was = first->after;
                part[i].seat.there = first->seat.there || first->after.rest;
            }
            if (!part[i].settled) {
                (void)ratelimit_priv_decide_seat(t, &part[i].seat, req[i].limit, req[i].n,
                                                 req[i].op, req[i].max_wait_ns, now, &part[i].after,
                                                 &res[i]);
                first->after = part[i].after;
            }
            pass = pass && res[i].allowed;
        }
    } while (pass && !ratelimit_priv_commit_all(t, part, count));
    if (!pass)
        ratelimit_priv_none(t, req, res, count, part, now);
    return pass;
}

RATELIMIT_API bool ratelimit_table_decide(ratelimit_table *t, const ratelimit_request *req,
                                          ratelimit_result *res_or_null, size_t count,
                                          ratelimit_mode mode, uint64_t now_ns)
{
    bool pass;
    if (!count && t)
        return true;
    if (!t || !req ||
        (mode == RATELIMIT_ALL ? count > RATELIMIT_MAX_ALL : mode != RATELIMIT_EACH)) {
        ratelimit_priv_fail(res_or_null, count, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    RATELIMIT_PRIV_ENTER();
    if (mode == RATELIMIT_ALL && count > 1)
        pass = ratelimit_priv_all(t, req, res_or_null, count, now_ns);
    else
        pass = ratelimit_priv_each(t, req, res_or_null, NULL, count, now_ns) == count;
    RATELIMIT_PRIV_LEAVE();
    return pass;
}

RATELIMIT_API size_t ratelimit_table_take_batch(ratelimit_table *t, const ratelimit_request *req,
                                                bool *allowed, size_t count, uint64_t now_ns)
{
    size_t passed = 0;
    if (t && req) {
        RATELIMIT_PRIV_ENTER();
        passed = ratelimit_priv_each(t, req, NULL, allowed, count, now_ns);
        RATELIMIT_PRIV_LEAVE();
    } else if (allowed) {
        memset(allowed, 0, count * sizeof *allowed);
    }
    return passed;
}

/* ---- making and attaching */

RATELIMIT_API size_t ratelimit_table_bytes(size_t max_keys)
{
    size_t blocks = RATELIMIT_PRIV_BLOCKS(max_keys);
    if (max_keys == 0 || blocks > (SIZE_MAX - RATELIMIT_PRIV_HEAD_BYTES - 63) / 512 ||
        (uint64_t)blocks * RATELIMIT_PRIV_BLOCK > UINT32_MAX)
        return 0;
    return RATELIMIT_TABLE_BYTES(max_keys);
}

/* The head in memory, aligned to a line; NULL if it and one block don't fit. *blocks is how many
 * do. */
static ratelimit_table *ratelimit_priv_head(void *memory, size_t bytes, size_t *blocks)
{
    size_t skip = (size_t)(64 - ((uintptr_t)memory & 63)) & 63;
    if (bytes < skip || bytes - skip < RATELIMIT_PRIV_HEAD_BYTES + 512)
        return NULL;
    *blocks = (bytes - skip - RATELIMIT_PRIV_HEAD_BYTES) / 512;
    return (ratelimit_table *)(void *)((unsigned char *)memory + skip);
}

static uint64_t ratelimit_priv_head_check(const ratelimit_table *t)
{
    return ratelimit_priv_sip((const unsigned char *)t, offsetof(struct ratelimit_table, check),
                              t->seed);
}

/* The seed of the options; both words 0: 16 bytes from the system. */
static bool ratelimit_priv_seed(uint64_t *seed, const uint64_t *given)
{
    seed[0] = given[0];
    seed[1] = given[1];
    if (given[0] | given[1])
        return true;
#  if !defined(RATELIMIT_NO_CLOCK)
    return ratelimit_priv_random(seed);
#  else
    return false;
#  endif
}

RATELIMIT_API ratelimit_status ratelimit_table_init(ratelimit_table **out, void *memory,
                                                    size_t bytes,
                                                    const ratelimit_table_options *options_or_null)
{
    ratelimit_table_options options;
    ratelimit_table *t;
    uint64_t seed[2];
    const uint64_t most = UINT32_MAX / RATELIMIT_PRIV_BLOCK;
    size_t blocks;
    unsigned char i;
    memset(&options, 0, sizeof options);
    if (options_or_null)
        options = *options_or_null;
    if (!out || !memory || (unsigned)options.when_full > RATELIMIT_REFUSE ||
        (unsigned)options.hash > RATELIMIT_HASH_FAST || !ratelimit_priv_seed(seed, options.seed))
        return RATELIMIT_BAD_ARGUMENT;
    t = ratelimit_priv_head(memory, bytes, &blocks);
    if (!t)
        return RATELIMIT_NO_MEMORY;
    if (blocks > most)
        blocks = (size_t)most;
    memset(t, 0, RATELIMIT_PRIV_HEAD_BYTES + blocks * 512);
    t->magic = RATELIMIT_PRIV_MAGIC;
    t->version = RATELIMIT_PRIV_TABLE_VERSION;
    t->lines = (uint32_t)blocks * RATELIMIT_PRIV_BLOCK;
    t->when_full = (uint16_t)options.when_full;
    t->hash = (uint16_t)options.hash;
    t->step_ns = options.step_ns ? options.step_ns : RATELIMIT_STEP_NS;
    if (t->step_ns >> 63)
        t->step_ns = INT64_MAX; /* never either: no time is further ahead */
    memcpy(t->seed, seed, sizeof seed);
    for (i = 0; i < 4; i++)
        t->fast[i] = ratelimit_priv_sip(&i, 1, t->seed);
    t->check = ratelimit_priv_head_check(t);
    *out = t;
    return RATELIMIT_OK;
}

#  if RATELIMIT_PRIV_ATOMIC
/* One number for the words of all held locks of every 256th line, from line `first` on. */
static uint64_t ratelimit_priv_held_words(ratelimit_table *t, uint32_t first, uint32_t *held)
{
    uint64_t sum = 0;
    uint32_t i, word;
    for (i = first; i < t->lines; i += 256) {
        word = ratelimit_priv_load32(&ratelimit_priv_lines(t)[i].lock);
        if (word & 1) {
            sum += ratelimit_priv_fold((uint64_t)i << 32 | word, UINT64_C(0x9E3779B97F4A7C15));
            ++*held;
        }
    }
    return sum;
}

/* Processes that died may have left many locks held, and each would cost a caller a takeover of its
 * own. They are freed here at once, after the time of one takeover: of those lines whose held locks
 * are all as they were before it. Locks that live processes hold change meanwhile, and stay. */
static void ratelimit_priv_free_locks(ratelimit_table *t)
{
    uint64_t before[256];
    uint32_t i, k, held = 0, turns = 0;
    for (i = 0; i < 256; i++)
        before[i] = ratelimit_priv_held_words(t, i, &held);
    if (held <= 8)
        return;
    while (!ratelimit_priv_wait_turn(&turns)) {
#    if defined(RATELIMIT_NO_CLOCK) && !defined(RATELIMIT_SLEEP_MS)
        return; /* nothing to wait with: no takeover */
#    endif
    }
    for (i = 0; i < 256; i++) {
        if (ratelimit_priv_held_words(t, i, &held) != before[i])
            continue;
        for (k = i; k < t->lines; k += 256) {
            uint32_t *lock = &ratelimit_priv_lines(t)[k].lock, word = ratelimit_priv_load32(lock);
            if (word & 1)
                (void)ratelimit_priv_swap32(lock, word, word + 1);
        }
    }
}
#  endif

RATELIMIT_API ratelimit_status ratelimit_table_attach(ratelimit_table **out, void *memory,
                                                      size_t bytes)
{
    ratelimit_table *t;
    size_t blocks;
    if (!out || !memory)
        return RATELIMIT_BAD_ARGUMENT;
    t = ratelimit_priv_head(memory, bytes, &blocks);
    if (!t)
        return RATELIMIT_NO_MEMORY;
    if (t->magic != RATELIMIT_PRIV_MAGIC || t->version != RATELIMIT_PRIV_TABLE_VERSION ||
        t->check != ratelimit_priv_head_check(t) || t->lines < RATELIMIT_PRIV_BLOCK ||
        t->lines % RATELIMIT_PRIV_BLOCK || t->when_full > RATELIMIT_REFUSE ||
        t->hash > RATELIMIT_HASH_FAST)
        return RATELIMIT_BAD_ARGUMENT;
    if (blocks < t->lines / RATELIMIT_PRIV_BLOCK)
        return RATELIMIT_NO_MEMORY;
#  if RATELIMIT_PRIV_ATOMIC
    ratelimit_priv_free_locks(t);
#  endif
    *out = t;
    return RATELIMIT_OK;
}

/* ---- sweeping and counting */

/* Reads the i-th place as a seat of its own. False if it is empty. */
static bool ratelimit_priv_read_seat(const ratelimit_table *t, size_t i, ratelimit_priv_seat *seat)
{
    ratelimit_priv_line *line = &ratelimit_priv_lines(t)[i / 3];
    uint32_t slot = (uint32_t)(i % 3);
    do {
        seat->word = ratelimit_priv_load32(&line->lock);
        seat->line = seat->home = line;
        seat->slot = slot;
        seat->tag = seat->old_tag = ratelimit_priv_load32(&line->tag[slot]);
        seat->was = seat->in_it = ratelimit_priv_fetch(&line->bucket[slot]);
        seat->there = true;
    } while (ratelimit_priv_odd(&line->lock, seat->word) ||
             ratelimit_priv_load32(&line->lock) != seat->word);
    return seat->tag && seat->was.rest;
}

RATELIMIT_API size_t ratelimit_table_sweep(ratelimit_table *t, uint64_t now_ns, uint64_t idle_ns)
{
    const ratelimit_bucket none = {0, 0};
    size_t i, places, dropped = 0;
    if (!t)
        return 0;
    places = (size_t)t->lines * 3;
    for (i = 0; i < places; i++) {
        ratelimit_priv_seat seat;
        RATELIMIT_PRIV_ENTER();
        while (ratelimit_priv_read_seat(t, i, &seat)) {
            uint64_t left = ratelimit_priv_left(&seat.was, now_ns);
            uint32_t which = ratelimit_priv_class(seat.was.rest);
            seat.now = now_ns;
            if (left && (!idle_ns || which == RATELIMIT_PRIV_CLASS_BLOCK ||
                         which == RATELIMIT_PRIV_CLASS_PERMIT ||
                         ratelimit_priv_idle(&seat.was, left) <= idle_ns))
                break;
            if (!left)
                ratelimit_priv_forget(t, &seat);
            if (!ratelimit_priv_commit(t, &seat, &none))
                continue;
            if (left)
                ratelimit_priv_bump(&t->evicted, 1);
            dropped++;
            break;
        }
        RATELIMIT_PRIV_LEAVE();
    }
    return dropped;
}

RATELIMIT_API void ratelimit_table_stats(const ratelimit_table *t, uint64_t now_ns,
                                         ratelimit_table_counts *out)
{
    size_t i;
    if (!out)
        return;
    memset(out, 0, sizeof *out);
    if (!t)
        return;
    out->capacity = (uint64_t)t->lines * 3;
    for (i = 0; i < (size_t)t->lines * 3; i++) {
        const ratelimit_priv_line *line = &ratelimit_priv_lines(t)[i / 3];
        ratelimit_bucket b;
        RATELIMIT_PRIV_ENTER();
        b = ratelimit_priv_fetch(&line->bucket[i % 3]);
        if (ratelimit_priv_load32(&line->tag[i % 3]) && ratelimit_priv_left(&b, now_ns)) {
            out->keys++;
            out->in_debt += ratelimit_priv_class(b.rest) != RATELIMIT_PRIV_CLASS_PERMIT;
        }
        RATELIMIT_PRIV_LEAVE();
    }
    RATELIMIT_PRIV_ENTER();
    out->evicted = ratelimit_priv_load64(&t->evicted);
    out->refused = ratelimit_priv_load64(&t->refused);
    out->bytes = RATELIMIT_PRIV_HEAD_BYTES + (uint64_t)t->lines * 64;
    RATELIMIT_PRIV_LEAVE();
}

/* ---- permits

   Each place of a key is an entry of its own: full_ns is when its permit expires, bits 0-23 of rest
   are a serial number, another one for each permit of the table. So a late release does not match
   the next holder's permit, also where both hold from the same reading of a clock. */

/* Other bits of the hash than a bucket's, so that no scope leads here. */
static uint64_t ratelimit_priv_permit_place(const ratelimit_table *t, const void *key,
                                            size_t key_len, uint32_t place)
{
    uint64_t hash = ratelimit_priv_hash(t, key, key_len);
    return ratelimit_priv_place(ratelimit_priv_rotate(hash, 32) ^ RATELIMIT_PRIV_PERMIT_KIND,
                                place);
}

/* ns for which a permit is still held. A clock that was set back does not prolong it by much. */
static uint64_t ratelimit_priv_permit_left(const ratelimit_table *t, const ratelimit_bucket *b,
                                           uint64_t now)
{
    uint64_t left = b->rest ? ratelimit_priv_ahead(b->full_ns, now) : 0;
    uint64_t most = ratelimit_priv_seen_most(b->rest);
    return left > most && left - most > t->step_ns ? 0 : left;
}

RATELIMIT_API bool ratelimit_table_acquire(ratelimit_table *t, const void *key, size_t key_len,
                                           uint32_t most, uint64_t ttl_ns, uint64_t now_ns,
                                           ratelimit_permit *out)
{
    uint32_t i;
    bool done = false, room = true;
    if (out)
        memset(out, 0, sizeof *out);
    if (!t || !key || !key_len || !most || most > RATELIMIT_MAX_PERMITS || !ttl_ns ||
        ttl_ns > RATELIMIT_PRIV_MAX || !out)
        return false;
    RATELIMIT_PRIV_ENTER();
    for (i = 0; !done && i < most; i++) {
        uint64_t place = ratelimit_priv_permit_place(t, key, key_len, i);
        ratelimit_priv_seat seat;
        ratelimit_bucket after;
        do {
            ratelimit_priv_probe(t, place, now_ns, true, NULL, 0, &seat);
            if (seat.full ||
                (t->when_full == RATELIMIT_INHERIT && ratelimit_priv_displaced(&seat))) {
                room = false;
                break;
            }
            if (ratelimit_priv_permit_left(t, &seat.was, now_ns))
                break;
            out->expires_ns = after.full_ns = now_ns + ttl_ns;
            out->place = i;
            out->serial =
                (uint32_t)(ratelimit_priv_bump(&t->permits, 1) & RATELIMIT_PRIV_PART_MASK);
            after.rest = out->serial | ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_PERMIT) |
                         ratelimit_priv_seen_bits(ttl_ns);
            done = ratelimit_priv_commit(t, &seat, &after);
        } while (!done);
    }
    if (!done && !room)
        ratelimit_priv_bump(&t->refused, 1);
    if (!done) /* a try that came too late may have left what is another's permit now */
        memset(out, 0, sizeof *out);
    RATELIMIT_PRIV_LEAVE();
    return done;
}

RATELIMIT_API ratelimit_status ratelimit_table_release(ratelimit_table *t, const void *key,
                                                       size_t key_len,
                                                       const ratelimit_permit *permit,
                                                       uint64_t now_ns)
{
    const ratelimit_bucket none = {0, 0};
    ratelimit_status status = RATELIMIT_LOST;
    uint64_t place;
    if (!t || !permit)
        return RATELIMIT_BAD_ARGUMENT;
    if (!key || !key_len)
        return RATELIMIT_BAD_KEY;
    RATELIMIT_PRIV_ENTER();
    place = ratelimit_priv_permit_place(t, key, key_len, permit->place);
    for (;;) {
        ratelimit_priv_seat seat;
        ratelimit_priv_probe(t, place, now_ns, false, NULL, 0, &seat);
        if (!seat.there || seat.was.full_ns != permit->expires_ns ||
            (seat.was.rest & RATELIMIT_PRIV_PART_MASK) != permit->serial ||
            !ratelimit_priv_permit_left(t, &seat.was, now_ns))
            break;
        if (ratelimit_priv_commit(t, &seat, &none)) {
            status = RATELIMIT_OK;
            break;
        }
    }
    RATELIMIT_PRIV_LEAVE();
    return status;
}
/* ---- >>implementation: store -----------------------------------------------------------------

   A store is a function and what it needs. Two are here: a table, and a database with a conditional
   update. The tier below is a third one, ratelimit_redis.h has a fourth. */

typedef void (*ratelimit_priv_decider)(const ratelimit_store *store, const ratelimit_request *req,
                                       ratelimit_result *res, size_t count, ratelimit_mode mode);

static ratelimit_store ratelimit_priv_store(void *self, ratelimit_priv_decider decide,
                                            ratelimit_clock clock, void *clock_self)
{
    ratelimit_store store;
    memset(&store, 0, sizeof store);
    store.self = self;
    store.decide = decide;
    store.clock = clock;
    store.clock_self = clock_self;
    return store;
}

static void ratelimit_priv_table_decide(const ratelimit_store *store, const ratelimit_request *req,
                                        ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    if (store->clock)
        (void)ratelimit_table_decide((ratelimit_table *)store->self, req, res, count, mode,
                                     store->clock(store->clock_self));
    else
        ratelimit_priv_fail(res, count, RATELIMIT_STORE_FAILED);
}

RATELIMIT_API ratelimit_store ratelimit_table_store(ratelimit_table *t,
                                                    ratelimit_clock clock_or_null, void *clock_self)
{
    return ratelimit_priv_store(t, ratelimit_priv_table_decide,
                                clock_or_null ? clock_or_null : RATELIMIT_PRIV_PLATFORM_CLOCK,
                                clock_self);
}

static void ratelimit_priv_put_le(unsigned char *to, uint64_t value, size_t bytes)
{
    size_t i;
    for (i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

#  define RATELIMIT_PRIV_RECORD UINT64_C(0x00324C52) /* "RL2", NUL */

/* One load, one decision, one swap. 1: done, *out is set; 0: somebody else was faster; below 0: the
 * database failed or holds something else.
 *
 * The number of writes makes each record differ from all before it. Else a record that came back to
 * an earlier value (take, refund) would look unchanged, and a swap that was decided on the first
 * one would succeed on the last one: that is right for the bucket, but not for a database that
 * compares by a version of its own. What needs no memory (a full bucket that is not there) is not
 * written at all. */
static int ratelimit_priv_cas_try(ratelimit_cas *cas, const unsigned char *key, size_t key_len,
                                  const ratelimit_request *q, ratelimit_result *out)
{
    unsigned char old[RATELIMIT_RECORD_BYTES] = {0}, record[RATELIMIT_RECORD_BYTES];
    ratelimit_bucket b = {0, 0}, from;
    uint64_t writes = 0, now, ttl;
    int found = cas->load(cas->self, key, key_len, old);
    if (found < 0)
        return -1;
    if (found) {
        b.full_ns = ratelimit_priv_le64(old);
        b.rest = ratelimit_priv_le64(old + 8);
        writes = ratelimit_priv_le64(old + 16);
        if ((writes & UINT32_MAX) != RATELIMIT_PRIV_RECORD)
            return -1;
        writes >>= 32;
    }
    from = b;
    now = cas->clock(cas->clock_self);
    (void)ratelimit_priv_decide(&b, q, now, cas->step_ns ? cas->step_ns : RATELIMIT_STEP_NS, out);
    ttl = ratelimit_priv_left(&b, now);
    if ((b.full_ns == from.full_ns && b.rest == from.rest) || (!ttl && !found))
        return 1;
    ratelimit_priv_put_le(record, b.full_ns, 8);
    ratelimit_priv_put_le(record + 8, b.rest, 8);
    ratelimit_priv_put_le(record + 16, RATELIMIT_PRIV_RECORD | (writes + 1) << 32, 8);
    return cas->swap(cas->self, key, key_len, found ? old : NULL, record, ttl);
}

static void ratelimit_priv_cas_decide(const ratelimit_store *store, const ratelimit_request *req,
                                      ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    ratelimit_cas *cas = (ratelimit_cas *)store->self;
    unsigned char key[512]; /* the longest one, and 4 bytes for the scope */
    size_t i;
    if (!req || !cas || !cas->load || !cas->swap || !cas->clock) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
        return;
    }
    if (mode == RATELIMIT_ALL && count > 1) {
        ratelimit_priv_fail(res, count, RATELIMIT_UNSUPPORTED);
        return;
    }
    for (i = 0; i < count; i++) {
        const ratelimit_request *q = &req[i];
        uint32_t tries = cas->tries ? cas->tries : 16;
        int done = 0;
        if (ratelimit_priv_no_key(q) || q->key_len > sizeof key - 4) {
            ratelimit_priv_answer(&res[i], RATELIMIT_BAD_KEY);
        } else if (!ratelimit_priv_settled(q, &res[i])) {
            memcpy(key, q->key, q->key_len);
            ratelimit_priv_put_le(key + q->key_len, q->limit->scope, 4);
            while (done == 0 && tries--)
                done = ratelimit_priv_cas_try(cas, key, q->key_len + 4, q, &res[i]);
            if (done <= 0)
                ratelimit_priv_answer(&res[i], RATELIMIT_STORE_FAILED);
        }
    }
}

RATELIMIT_API ratelimit_store ratelimit_cas_store(ratelimit_cas *cas)
{
    return ratelimit_priv_store(cas, ratelimit_priv_cas_decide, cas ? cas->clock : NULL,
                                cas ? cas->clock_self : NULL);
}

/* ---- >>implementation: tier ---------------------------------------------------------------------

   The tier's table has one entry for each key and scope, in the home line of the local bucket but
   under a tag of its own. The entry is a state of another class than buckets. It is a lease:

       full_ns      lease_ns after the store was asked
       rest   0-19  left: tokens that are paid for and not yet served
             20-31  turn: one more with each change, but not when tokens are served
             32-43  which limit it belongs to (12 bits of a hash)
                49  ASKING: somebody is asking the store for more
             50-57  told: what remained at the store then, in units of burst / 256 + 1

   or it is a refusal:

       full_ns      T: from then on it is not believed
       rest   0-31  F - T, as m (27 bits) x 2^e (5 bits), where F is when the debt is gone (fixed
                    window: when the window ends)
             32-43  which limit it belongs to
             49-56  fixed window: how many tokens are not refused
                57  fixed window: 1 if nothing remains (if it is blocked, a request of fewer tokens
                    may pass earlier, so only what asks for as many as were refused is)

   A lease, step by step, for 1,000 a second, a burst of 1,000, lease_percent 10:

       take 1   there is no entry, so the store is asked: allowed, 999 remain. The entry becomes a
                lease of 0 tokens. Units are 1000 / 256 + 1 = 4 tokens, so told is 249: 996.
       take 1   comes within lease_ns: the key is hot. 996 are enough, so this thread sets ASKING
                and asks the store for 100 tokens (TAKE_UP_TO). It gets them; 899 remain. One is
                served, 99 stay in the entry, ASKING is gone.
       take 1   98 are left: one swap of rest, no call. And so on, 99 times.
       take 1   nothing is left, so the lease is asked for again. If the store is asked for a lease
                and has 30 tokens, those 30 are served. If it has none, the entry becomes a
                refusal: F is when the store's bucket is full.

   A refusal: a key owes an hour, and the store is trusted for 1 s. T is 1 s after the question,
   F - T is 3,599 s, 2^41.7 ns. That needs more than 27 bits, so e is 16, m is rounded up, and T is
   up to 2^16 ns (66 us) earlier than in a second. F stays exact to the ns, and with it what a
   client is told.

   The store's answer is kept only if the entry is the one that was there when the question was
   sent. A note of 32 bits (a hash of the entry without `left`) tells. So RESET, BLOCK, REFUND and
   CANCEL end what others are asking for: they change the entry, and if there is none they make one
   that says nothing. It stays for as long as an answer that was asked for before could be believed.

   One thread at a time asks for a lease: the one that set ASKING. Others ask for their own tokens
   meanwhile. It keeps what it gets only if the entry is still its own; else the tokens are lost. So
   tokens are served at most once, and never before they are paid for. If it dies, ASKING ends with
   the entry, after lease_ns. Nothing is given back to the store on the tier's own account: a REFUND
   by the tier could undo a RESET by another node. */

#  define RATELIMIT_PRIV_TIER_KIND    UINT32_C(0x85EBCA6B)
#  define RATELIMIT_PRIV_LEASE_LEFT   UINT64_C(0xfffff)
#  define RATELIMIT_PRIV_LEASE_TURN   (UINT64_C(0xfff) << 20)
#  define RATELIMIT_PRIV_TIER_WHICH   (UINT64_C(0xfff) << 32)
#  define RATELIMIT_PRIV_LEASE_ASKING (UINT64_C(1) << 49)

enum { RATELIMIT_PRIV_TOLD_SHIFT = 50, RATELIMIT_PRIV_STAYS_SHIFT = 49 };

/* What becomes of a request. */
enum {
    RATELIMIT_PRIV_HERE,  /* it is answered */
    RATELIMIT_PRIV_AS_IS, /* it goes to the store, and its answer to the caller */
    RATELIMIT_PRIV_LEARN, /* the same, and the answer is kept; or it asks for a lease */
    RATELIMIT_PRIV_ENDS   /* the same, and it ends the entry */
};

/* What the tier must know of a request until the store has answered. */
typedef struct ratelimit_priv_ask {
    uint64_t place; /* of the entry */
    uint32_t note;  /* of the entry when the question was sent; 0: there was none */
    uint32_t lease; /* above 0: asks for up to that many tokens instead of its own */
    uint32_t what;
} ratelimit_priv_ask;

/* trust_ns or lease_ns; 0 is 1 s. */
static inline uint64_t ratelimit_priv_life(uint64_t option)
{
    option = option ? option : RATELIMIT_SECOND;
    return option < RATELIMIT_PRIV_MAX ? option : RATELIMIT_PRIV_MAX;
}

static inline ratelimit_clock ratelimit_priv_tier_clock(const ratelimit_tier *tier)
{
    return tier->clock ? tier->clock : RATELIMIT_PRIV_PLATFORM_CLOCK;
}

static inline uint64_t ratelimit_priv_tier_now(const ratelimit_tier *tier)
{
    return ratelimit_priv_tier_clock(tier)(tier->clock_self);
}

static inline uint64_t ratelimit_priv_tier_place(const ratelimit_table *t,
                                                 const ratelimit_request *q)
{
    return ratelimit_priv_place(ratelimit_priv_hash(t, q->key, q->key_len), q->limit->scope) ^
           RATELIMIT_PRIV_TIER_KIND;
}

static inline uint64_t ratelimit_priv_which(const ratelimit_limit *l)
{
    return l->state * UINT64_C(0x9E3779B97F4A7C15) >> 52 << 32;
}

/* Without what serving changes: `left`, and when the entry was seen. */
static uint32_t ratelimit_priv_note(const ratelimit_bucket *b)
{
    bool lease = ratelimit_priv_class(b->rest) == RATELIMIT_PRIV_CLASS_LEASE;
    uint64_t rest = (lease ? b->rest & ~RATELIMIT_PRIV_LEASE_LEFT : b->rest) << 6;
    uint64_t mix =
        (b->full_ns * UINT64_C(0xD6E8FEB86659FD93) ^ rest) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(mix >> 32) | 1;
}

/* Is there an entry of that class and limit, and does it still count? One that ends later than an
 * entry made now would end does not: the clock was set back. */
static inline bool ratelimit_priv_entry_is(const ratelimit_priv_seat *seat, uint32_t class_of_it,
                                           const ratelimit_limit *l, uint64_t life, uint64_t now)
{
    return seat->there && ratelimit_priv_class(seat->was.rest) == class_of_it &&
           (seat->was.rest & RATELIMIT_PRIV_TIER_WHICH) == ratelimit_priv_which(l) &&
           seat->was.full_ns - now - 1 < ratelimit_priv_life(life);
}

/* Makes `after` the entry, if there is room; false: decide again. Under INHERIT an entry never
 * replaces a bucket in debt. */
static bool ratelimit_priv_tier_put(ratelimit_table *t, const ratelimit_priv_seat *seat,
                                    const ratelimit_bucket *after)
{
    bool room =
        !seat->full && !(t->when_full == RATELIMIT_INHERIT && ratelimit_priv_displaced(seat));
    return !room || ratelimit_priv_commit(t, seat, after);
}

/* ---- leases ---- */

/* Tokens in a lease; 0: this limit is not leased. */
static inline uint64_t ratelimit_priv_lease_size(const ratelimit_tier *tier,
                                                 const ratelimit_limit *l)
{
    uint64_t percent = tier->lease_percent < 100 ? tier->lease_percent : 100;
    uint64_t size = l->burst / 100 * percent + l->burst % 100 * percent / 100;
    if (size < 2 || l->kind == RATELIMIT_PRIV_WINDOW)
        return 0;
    return size < RATELIMIT_PRIV_LEASE_LEFT ? size : RATELIMIT_PRIV_LEASE_LEFT;
}

/* The remaining tokens of the store's last answer, rounded down. */
static inline uint64_t ratelimit_priv_told(const ratelimit_limit *l, uint64_t rest)
{
    return (rest >> RATELIMIT_PRIV_TOLD_SHIFT & 255) * (l->burst / 256 + 1);
}

/* A lease in the place of what is there. The turn makes it differ from that, and from what will
 * follow it, even where the time and all else are the same. */
static ratelimit_bucket ratelimit_priv_lease_of(const ratelimit_priv_seat *seat, uint64_t which,
                                                uint64_t left, uint64_t told, uint64_t life,
                                                uint64_t now)
{
    ratelimit_bucket b;
    uint64_t turn = 0;
    if (seat->there && ratelimit_priv_class(seat->was.rest) == RATELIMIT_PRIV_CLASS_LEASE)
        turn = (seat->was.rest >> 20) + 1;
    else if (seat->there)
        turn = ratelimit_priv_note(&seat->was);
    told = told < 255 ? told : 255;
    left = left < RATELIMIT_PRIV_LEASE_LEFT ? left : RATELIMIT_PRIV_LEASE_LEFT;
    b.full_ns = now + life;
    b.rest = left | (turn << 20 & RATELIMIT_PRIV_LEASE_TURN) | which |
             ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_LEASE) |
             told << RATELIMIT_PRIV_TOLD_SHIFT | ratelimit_priv_seen_bits(life);
    return b;
}

/* Takes tokens out of a lease, by one swap of rest. If the lock of the line changed meanwhile, the
 * entry may be another one by now: then the tokens are lost, and all is looked at again. */
static inline bool ratelimit_priv_lease_serve(ratelimit_table *t, const ratelimit_priv_seat *seat,
                                              const ratelimit_bucket *after)
{
#  if RATELIMIT_PRIV_QUICK
    ratelimit_bucket *b = &seat->line->bucket[seat->slot];
    (void)t;
    return ratelimit_priv_swap64(&b->rest, seat->was.rest, after->rest) &&
           (ratelimit_priv_load32(&seat->line->lock) == seat->word ||
            (ratelimit_priv_load32(&seat->line->tag[seat->slot]) == seat->tag &&
             ratelimit_priv_load64(&b->full_ns) == after->full_ns &&
             (ratelimit_priv_load64(&b->rest) ^ after->rest) <= RATELIMIT_PRIV_LEASE_LEFT));
#  else
    return ratelimit_priv_commit(t, seat, after);
#  endif
}

static void ratelimit_priv_lease_answer(const ratelimit_limit *l, uint64_t rest, uint64_t n,
                                        ratelimit_result *out)
{
    uint64_t remaining = ratelimit_priv_told(l, rest) + (rest & RATELIMIT_PRIV_LEASE_LEFT);
    ratelimit_priv_answer(out, RATELIMIT_OK);
    out->burst = l->burst;
    out->remaining = remaining < l->burst ? remaining : l->burst;
    out->taken = n;
    out->reset_after_ns = (l->burst - out->remaining) * l->interval_ns;
    out->source = RATELIMIT_FROM_LEASE;
}

/* ---- refusals ---- */

/* ns until what a refusal says is over; 0 if it is. */
static inline uint64_t ratelimit_priv_owed(const ratelimit_bucket *b, uint64_t now)
{
    return ratelimit_priv_ahead(
        b->full_ns + ((b->rest & UINT64_C(0x7ffffff)) << (b->rest >> 27 & 31)), now);
}

/* The refusal that an answer to n tokens tells; empty if there is none that can be kept. `over` is
 * how long the debt outlives our trust, as m x 2^e: m has at most 27 bits and is rounded up, so
 * that T = F - m x 2^e is too early by less than 2^e ns, never too late.
 *
 * What the key owes is in the answer twice, each time rounded up: as reset_after, and as
 * retry_after, less what n tokens cost, plus the window. The lesser one is nearer to the debt, and
 * makes retry_after come out as it was told. */
static ratelimit_bucket ratelimit_priv_refusal_of(const ratelimit_tier *tier,
                                                  const ratelimit_limit *l, uint64_t n,
                                                  const ratelimit_result *told, uint64_t now)
{
    uint64_t owed = told->reset_after_ns, trust = ratelimit_priv_life(tier->trust_ns);
    uint64_t over, e = 0, stays = 0;
    bool refused = !told->allowed;
    ratelimit_bucket b = {0, 0};
    ratelimit_priv_span cost;
    if (l->kind == RATELIMIT_PRIV_WINDOW) {
        owed = refused ? told->retry_after_ns : owed;
        stays = told->remaining ? told->remaining : refused ? n - 1 : 0;
        if (stays > 255)
            return b;
        stays = (stays | (uint64_t)!told->remaining << 8) << RATELIMIT_PRIV_STAYS_SHIFT;
    } else if (refused && told->retry_after_ns <= RATELIMIT_PRIV_MAX &&
               ratelimit_priv_cost(l, n, &cost)) {
        uint64_t most = told->retry_after_ns +
                        ratelimit_priv_minus(ratelimit_priv_window(l), cost, l->parts).ns;
        owed = most < owed ? most : owed;
    }
    over = owed > trust ? owed - trust : 0;
    if (over >> 26)
        e = ratelimit_priv_log2(over) - 25;
    over = (over + (UINT64_C(1) << e) - 1) >> e;
    if (owed > RATELIMIT_PRIV_MAX || e > 31 || owed <= over << e)
        return b;
    owed -= over << e;
    b.full_ns = now + owed;
    b.rest = over | e << 27 | ratelimit_priv_which(l) | stays |
             ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_REFUSAL) |
             ratelimit_priv_seen_bits(owed);
    return b;
}

/* Does a refusal refuse n tokens? Then it is the answer. */
static bool ratelimit_priv_refusal_answer(const ratelimit_bucket *b, const ratelimit_limit *l,
                                          uint64_t n, uint64_t now, ratelimit_result *out)
{
    uint64_t owed = ratelimit_priv_owed(b, now), retry = owed, remaining;
    ratelimit_priv_span cost, window = ratelimit_priv_window(l);
    const ratelimit_priv_span debt = ratelimit_priv_span_of(owed, 0);
    if (l->kind == RATELIMIT_PRIV_WINDOW) {
        remaining = b->rest >> RATELIMIT_PRIV_STAYS_SHIFT & 255;
        if (n <= remaining)
            return false;
        remaining = b->rest & RATELIMIT_PRIV_ON_PURPOSE ? 0 : remaining; /* bit 57 */
    } else {
        (void)ratelimit_priv_cost(l, n, &cost); /* n is at most the burst */
        cost = ratelimit_priv_minus(ratelimit_priv_plus(debt, cost, l->parts), window, l->parts);
        retry = cost.ns + (cost.part != 0);
        if (!retry)
            return false;
        remaining = ratelimit_priv_count(l, ratelimit_priv_minus(window, debt, l->parts));
    }
    ratelimit_priv_answer(out, RATELIMIT_DENIED);
    out->burst = l->burst;
    out->remaining = remaining;
    out->retry_after_ns = retry;
    out->reset_after_ns = owed;
    out->source = RATELIMIT_FROM_REFUSAL_CACHE;
    return true;
}

/* ---- what is looked up, learned, and ended ---- */

/* A take: true if it is answered. Else ask says how to ask the store. */
static bool ratelimit_priv_tier_take(ratelimit_tier *tier, const ratelimit_request *q, uint64_t now,
                                     ratelimit_priv_ask *ask, ratelimit_result *out)
{
    const ratelimit_limit *l = q->limit;
    const uint64_t n = q->n;
    for (;;) {
        ratelimit_priv_seat seat;
        ratelimit_bucket after;
        uint64_t left, size;
        ratelimit_priv_probe(tier->table, ask->place, now, false, NULL, 0, &seat);
        if (!seat.there)
            return false;
        after = seat.was;
        left = after.rest & RATELIMIT_PRIV_LEASE_LEFT;
        if (ratelimit_priv_entry_is(&seat, RATELIMIT_PRIV_CLASS_REFUSAL, l, tier->trust_ns, now)) {
            if (ratelimit_priv_refusal_answer(&after, l, n, now, out)) {
                ratelimit_priv_bump(&tier->counts.refused, 1);
                return true;
            }
        } else if (ratelimit_priv_entry_is(&seat, RATELIMIT_PRIV_CLASS_LEASE, l, tier->lease_ns,
                                           now) &&
                   !(after.rest & RATELIMIT_PRIV_LEASE_ASKING)) {
            size = ratelimit_priv_lease_size(tier, l);
            if (n <= left) {
                after.rest -= n;
                if (!ratelimit_priv_lease_serve(tier->table, &seat, &after))
                    continue;
                ratelimit_priv_lease_answer(l, after.rest, n, out);
                ratelimit_priv_bump(&tier->counts.leased, 1);
                return true;
            }
            if (n < size && n <= ratelimit_priv_told(l, after.rest)) {
                after = ratelimit_priv_lease_of(&seat, ratelimit_priv_which(l), left, 0,
                                                ratelimit_priv_life(tier->lease_ns), now);
                after.rest |= RATELIMIT_PRIV_LEASE_ASKING;
                if (!ratelimit_priv_commit(tier->table, &seat, &after))
                    continue;
                ask->lease = (uint32_t)size;
            }
        }
        ask->note = ratelimit_priv_note(&after);
        return false;
    }
}

/* Ends the entry, and whatever others are asking for. */
static void ratelimit_priv_tier_forget(ratelimit_tier *tier, uint64_t place, uint64_t now)
{
    uint64_t trust = ratelimit_priv_life(tier->trust_ns),
             life = ratelimit_priv_life(tier->lease_ns);
    ratelimit_priv_seat seat;
    ratelimit_bucket after;
    life = life > trust ? life : trust;
    RATELIMIT_PRIV_ENTER();
    do {
        ratelimit_priv_probe(tier->table, place, now, true, NULL, 0, &seat);
        after = ratelimit_priv_lease_of(&seat, 0, 0, 0, life, now);
    } while (!ratelimit_priv_tier_put(tier->table, &seat, &after));
    RATELIMIT_PRIV_LEAVE();
}

/* *r is the store's answer to who asked for a lease. It becomes the answer to the request itself:
 * served, or not although `left` tokens are here now. */
static void ratelimit_priv_lease_share(const ratelimit_request *q, bool served, uint64_t left,
                                       ratelimit_result *r)
{
    const ratelimit_limit *l = q->limit;
    uint64_t room = r->burst > r->remaining ? r->burst - r->remaining : 0;
    ratelimit_priv_span cost;
    r->allowed = served;
    r->status = served ? RATELIMIT_OK : RATELIMIT_DENIED;
    r->taken = served ? q->n : 0;
    r->retry_after_ns = 0;
    if (!served && ratelimit_priv_cost(l, q->n, &cost)) { /* until all of them are there */
        cost.ns += r->reset_after_ns;
        cost = ratelimit_priv_minus(cost, ratelimit_priv_window(l), l->parts);
        r->retry_after_ns = cost.ns + (cost.part != 0);
        r->retry_after_ns += !r->retry_after_ns;
    }
    r->remaining += left < room ? left : room;
}

/* The store's answer to a take that was asked at now: is kept, and becomes the caller's.
 *
 * Who asked for a lease has its tokens now, besides what the old lease still holds. They serve the
 * request if they are enough. The rest of them stay in the entry, if that is still the one that was
 * there when the question was sent; else they are lost.
 *
 * The entry is left alone if it was changed meanwhile (RESET and the like), or if another thread
 * asks for a lease on it: that one will write it. Else it becomes
 *
 *     a refusal  if the store refused, and no leased token is left. A lease outlives the refusal of
 *                more than it holds, but no block and no debt made on purpose: those let nothing
 *                pass, and show as a debt that is longer than the window. Not even one token could
 *                be leased: then 1 token was refused, not q->n.
 *     a refusal  if the store allowed the take, but what remains is too little for the same again
 *     a lease    if one was asked for: with what is left, perhaps nothing
 *     a lease    of no tokens, if the key may be leased: the next take within lease_ns asks for
 *                some
 *     no other   in all other cases, as when the store failed */
static void ratelimit_priv_tier_learn(ratelimit_tier *tier, const ratelimit_request *q,
                                      const ratelimit_priv_ask *ask, ratelimit_result *r,
                                      uint64_t now)
{
    const ratelimit_limit *l = q->limit;
    bool ok = r->status == RATELIMIT_OK, refused = r->status == RATELIMIT_DENIED;
    bool got = ask->lease && (ok || refused), served = false;
    uint64_t life = ratelimit_priv_life(tier->lease_ns), left;
    RATELIMIT_PRIV_ENTER();
    for (;;) {
        ratelimit_priv_seat seat;
        ratelimit_bucket after = {0, 0};
        bool ours, lease;
        ratelimit_priv_probe(tier->table, ask->place, now, true, NULL, 0, &seat);
        ours = (seat.there ? ratelimit_priv_note(&seat.was) : 0) == ask->note;
        lease = ours &&
                ratelimit_priv_entry_is(&seat, RATELIMIT_PRIV_CLASS_LEASE, l, tier->lease_ns, now);
        left = (lease ? seat.was.rest & RATELIMIT_PRIV_LEASE_LEFT : 0) + (got ? r->taken : 0);
        served = got && left >= q->n;
        left -= served ? q->n : 0;
        if (!ours || (lease && !ask->lease && seat.was.rest & RATELIMIT_PRIV_LEASE_ASKING))
            break;
        if (refused ? !left || r->reset_after_ns > l->window_ns + l->burst
                    : ok && !left && r->remaining < q->n)
            after = ratelimit_priv_refusal_of(tier, l, ask->lease ? 1 : q->n, r, now);
        if (!after.rest && (ask->lease || (ok && ratelimit_priv_lease_size(tier, l))))
            after =
                ratelimit_priv_lease_of(&seat, ratelimit_priv_which(l), left,
                                        ok ? r->remaining / (l->burst / 256 + 1) : 0, life, now);
        if (!after.rest || ratelimit_priv_tier_put(tier->table, &seat, &after))
            break;
    }
    RATELIMIT_PRIV_LEAVE();
    if (got)
        ratelimit_priv_lease_share(q, served, left, r);
}

/* ---- a store that failed ---- */

/* 1/nodes of a limit, with its scope. The interval is nodes times as long and the burst as much
 * smaller, so a debt is as long as before. */
static ratelimit_limit ratelimit_priv_share(const ratelimit_limit *l, uint64_t nodes)
{
    uint64_t burst = l->burst / nodes ? l->burst / nodes : 1, per = l->per_ns, tokens = l->tokens;
    ratelimit_limit share;
    if (l->kind == RATELIMIT_PRIV_WINDOW) {
        share = ratelimit_window_make(burst, per);
    } else {
        if (per <= RATELIMIT_PRIV_MAX / nodes)
            per *= nodes;
        else
            tokens = tokens / nodes ? tokens / nodes : 1;
        share = ratelimit_limit_make(tokens, per, burst);
    }
    share.scope = l->scope;
    return share;
}

/* A local bucket owes at least what a refusal says. (A fixed window ends by another clock: a local
 * one begins full.) The key is asked for less strictly than in a take: what is owed is right for
 * longer than it may be answered from here. */
static void ratelimit_priv_warm(ratelimit_table *t, const ratelimit_request *q,
                                const ratelimit_limit *share, uint64_t now)
{
    uint64_t place = ratelimit_priv_tier_place(t, q), owed;
    ratelimit_priv_seat seat;
    ratelimit_bucket after;
    ratelimit_priv_probe(t, place, now, false, NULL, 0, &seat);
    if (share->kind == RATELIMIT_PRIV_WINDOW || !seat.there ||
        ratelimit_priv_class(seat.was.rest) != RATELIMIT_PRIV_CLASS_REFUSAL ||
        (seat.was.rest & RATELIMIT_PRIV_TIER_WHICH) != ratelimit_priv_which(q->limit))
        return;
    owed = ratelimit_priv_owed(&seat.was, now);
    if (owed > share->window_ns && owed <= q->limit->window_ns + q->limit->burst)
        owed = share->window_ns; /* its burst was rounded down */
    after.full_ns = now + owed;
    after.rest = share->state | ratelimit_priv_seen_bits(owed) |
                 (owed > share->window_ns ? RATELIMIT_PRIV_ON_PURPOSE : 0);
    do {
        ratelimit_priv_probe(t, place ^ RATELIMIT_PRIV_TIER_KIND, now, true, NULL, 0, &seat);
        if (ratelimit_priv_ahead(seat.now, after.full_ns)) /* a late call */
            after.full_ns = seat.now;
        if (ratelimit_priv_left(&seat.was, now) >= owed ||
            ratelimit_priv_class(seat.was.rest) == RATELIMIT_PRIV_CLASS_BLOCK)
            return;
    } while (!ratelimit_priv_tier_put(t, &seat, &after));
}

/* Decides on local buckets, each with its share of the limit. */
static RATELIMIT_PRIV_NOINLINE void ratelimit_priv_fall_back(ratelimit_tier *tier,
                                                             const ratelimit_request *req,
                                                             ratelimit_result *res, size_t count,
                                                             ratelimit_mode mode)
{
    ratelimit_limit share[RATELIMIT_MAX_ALL];
    ratelimit_request local[RATELIMIT_MAX_ALL];
    uint64_t now = ratelimit_priv_tier_now(tier);
    size_t i;
    memcpy(local, req, count * sizeof *req);
    for (i = 0; i < count; i++) {
        if (ratelimit_priv_no_key(&req[i]) || ratelimit_priv_settled(&req[i], &res[i]))
            continue;
        share[i] = ratelimit_priv_share(req[i].limit, tier->nodes);
        local[i].limit = &share[i];
        RATELIMIT_PRIV_ENTER();
        ratelimit_priv_warm(tier->table, &req[i], &share[i], now);
        RATELIMIT_PRIV_LEAVE();
    }
    (void)ratelimit_table_decide(tier->table, local, res, count, mode, now);
    for (i = 0; i < count; i++) {
        ratelimit_result *r = &res[i];
        r->burst = r->burst ? req[i].limit->burst : 0;
        if (r->status == RATELIMIT_NEVER && req[i].n <= r->burst)
            r->retry_after_ns = 0; /* never here, but perhaps when the store is back */
        r->status = RATELIMIT_STORE_FAILED;
        r->source = RATELIMIT_FROM_FALLBACK;
    }
}

/* All or none failed as a whole if something failed and nothing was refused. */
static bool ratelimit_priv_all_failed(const ratelimit_result *res, size_t count)
{
    bool failed = false;
    size_t i;
    for (i = 0; i < count; i++) {
        failed = failed || res[i].status == RATELIMIT_STORE_FAILED;
        if (!res[i].allowed && res[i].status != RATELIMIT_STORE_FAILED &&
            res[i].status != RATELIMIT_SKIPPED)
            return false;
    }
    return failed;
}

/* ---- the tier as a store ---- */

/* Answers what can be answered here; ask[i].what says which requests go to the store. True if any
 * does. In ALL all do. The lines of all entries are fetched first, while the clock is read. */
static bool ratelimit_priv_tier_begin(ratelimit_tier *tier, const ratelimit_request *req,
                                      ratelimit_result *res, size_t count, ratelimit_mode mode,
                                      uint64_t *now, ratelimit_priv_ask *ask)
{
    size_t i;
    bool sent = false;
    for (i = 0; i < count; i++, ask++) {
        const ratelimit_request *q = &req[i];
        const ratelimit_limit *l = q->limit;
        ratelimit_result spare, *r = mode == RATELIMIT_EACH ? &res[i] : &spare;
        bool take = q->op == RATELIMIT_TAKE && l && l->kind - 1 < 2 && q->n - 1 < l->burst;
        ask->note = ask->lease = 0;
        ask->what = mode == RATELIMIT_EACH ? RATELIMIT_PRIV_HERE : RATELIMIT_PRIV_AS_IS;
        if (ratelimit_priv_no_key(q)) {
            ratelimit_priv_answer(r, RATELIMIT_BAD_KEY);
        } else if (take || !ratelimit_priv_settled(q, r)) {
            ask->place = ratelimit_priv_tier_place(tier->table, q);
            ratelimit_priv_prefetch(ratelimit_priv_home(tier->table, ask->place));
            ask->what = RATELIMIT_PRIV_AS_IS;
            if (take && mode == RATELIMIT_EACH)
                ask->what = RATELIMIT_PRIV_LEARN;
            else if (q->op == RATELIMIT_REFUND || q->op == RATELIMIT_CANCEL ||
                     q->op == RATELIMIT_BLOCK || q->op == RATELIMIT_RESET)
                ask->what = RATELIMIT_PRIV_ENDS;
        }
    }
    *now = ratelimit_priv_tier_now(tier);
    for (i = 0, ask -= count; i < count; i++, ask++) {
        if (ask->what == RATELIMIT_PRIV_LEARN) {
            RATELIMIT_PRIV_ENTER();
            if (ratelimit_priv_tier_take(tier, &req[i], *now, ask, &res[i]))
                ask->what = RATELIMIT_PRIV_HERE;
            RATELIMIT_PRIV_LEAVE();
        } else if (ask->what == RATELIMIT_PRIV_ENDS && mode == RATELIMIT_EACH) {
            ratelimit_priv_tier_forget(tier, ask->place, *now); /* for what follows in the batch */
        }
        sent = sent || ask->what != RATELIMIT_PRIV_HERE;
    }
    if (sent)
        ratelimit_priv_add64(&tier->counts.calls, 1);
    return sent;
}

/* What is sent for a request. */
static ratelimit_request ratelimit_priv_tier_sent(const ratelimit_request *q,
                                                  const ratelimit_priv_ask *ask)
{
    ratelimit_request sent = *q;
    if (ask->lease) {
        sent.op = RATELIMIT_TAKE_UP_TO;
        sent.n = ask->lease;
    }
    return sent;
}

/* res has the store's answers to what was sent at now: they become the caller's. */
static void ratelimit_priv_tier_end(ratelimit_tier *tier, const ratelimit_request *req,
                                    ratelimit_result *res, size_t count, ratelimit_mode mode,
                                    uint64_t now, const ratelimit_priv_ask *ask)
{
    size_t i, sent = 0, failed = 0;
    for (i = 0; i < count; i++) {
        if (ask[i].what == RATELIMIT_PRIV_HERE)
            continue;
        sent += res[i].status != RATELIMIT_CANCELED;
        if (ask[i].what == RATELIMIT_PRIV_LEARN)
            ratelimit_priv_tier_learn(tier, &req[i], &ask[i], &res[i], now);
        else if (ask[i].what == RATELIMIT_PRIV_ENDS)
            ratelimit_priv_tier_forget(tier, ask[i].place, ratelimit_priv_tier_now(tier));
        failed += res[i].status == RATELIMIT_STORE_FAILED;
        if (res[i].status == RATELIMIT_STORE_FAILED && mode == RATELIMIT_EACH && tier->nodes)
            ratelimit_priv_fall_back(tier, &req[i], &res[i], 1, RATELIMIT_EACH);
    }
    if (failed && mode == RATELIMIT_ALL && ratelimit_priv_all_failed(res, count)) {
        failed = count;
        if (tier->nodes)
            ratelimit_priv_fall_back(tier, req, res, count, RATELIMIT_ALL);
    }
    if (sent != failed)
        ratelimit_priv_add64(&tier->counts.stored, sent - failed);
    if (failed)
        ratelimit_priv_add64(tier->nodes ? &tier->counts.fallback : &tier->counts.failed, failed);
    if (failed && failed == sent)
        ratelimit_priv_add64(&tier->counts.failures, 1);
}

static void ratelimit_priv_tier_decide(const ratelimit_store *store, const ratelimit_request *req,
                                       ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    ratelimit_tier *tier = (ratelimit_tier *)store->self;
    ratelimit_priv_ask ask[RATELIMIT_MAX_ALL];
    ratelimit_request sent[RATELIMIT_MAX_ALL];
    ratelimit_result got[RATELIMIT_MAX_ALL];
    size_t part, i, n;
    uint64_t now;
    if (!tier || !tier->table || !tier->store.decide || !req ||
        (mode == RATELIMIT_ALL ? count > RATELIMIT_MAX_ALL : mode != RATELIMIT_EACH)) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
        return;
    }
    if (!ratelimit_priv_tier_clock(tier)) {
        ratelimit_priv_fail(res, count, RATELIMIT_STORE_FAILED);
        return;
    }
    if (count < 2)
        mode = RATELIMIT_EACH;
    for (; count; count -= part, req += part, res += part) {
        part = count < RATELIMIT_MAX_ALL ? count : (size_t)RATELIMIT_MAX_ALL;
        if (!ratelimit_priv_tier_begin(tier, req, res, part, mode, &now, ask))
            continue;
        for (i = 0, n = 0; i < part; i++)
            if (ask[i].what != RATELIMIT_PRIV_HERE)
                sent[n++] = ratelimit_priv_tier_sent(&req[i], &ask[i]);
        tier->store.decide(&tier->store, sent, got, n, mode);
        for (i = 0, n = 0; i < part; i++)
            if (ask[i].what != RATELIMIT_PRIV_HERE)
                res[i] = got[n++];
        ratelimit_priv_tier_end(tier, req, res, part, mode, now, ask);
    }
}

static void ratelimit_priv_tier_close(const ratelimit_store *store)
{
    ratelimit_tier *tier = (ratelimit_tier *)store->self;
    if (tier->store.close)
        tier->store.close(&tier->store);
}

RATELIMIT_API ratelimit_store ratelimit_tier_store(ratelimit_tier *tier)
{
    ratelimit_store store = ratelimit_priv_store(tier, ratelimit_priv_tier_decide,
                                                 tier ? ratelimit_priv_tier_clock(tier) : NULL,
                                                 tier ? tier->clock_self : NULL);
    store.close = tier ? ratelimit_priv_tier_close : NULL;
    return store;
}

/* Copies a struct that consists of uint64_t counters only. */
static void ratelimit_priv_copy_counts(void *out, const void *counts, size_t bytes)
{
    const uint64_t *from = (const uint64_t *)counts;
    uint64_t *to = (uint64_t *)out;
    size_t i;
    for (i = 0; i < bytes / sizeof *to; i++)
        to[i] = from ? ratelimit_priv_load64(&from[i]) : 0;
}

RATELIMIT_API void ratelimit_tier_stats(const ratelimit_tier *tier, ratelimit_tier_counts *out)
{
    if (out)
        ratelimit_priv_copy_counts(out, tier ? &tier->counts : NULL, sizeof *out);
}

/* ---- >>implementation: limiter ------------------------------------------------------------------

   A decision takes three steps: the store decides; the failure policy decides what the store could
   not (ratelimit_priv_decisions); then shadow mode, the counters and the hook see what came out
   (ratelimit_priv_finish). ratelimit_wait does the last step once, however many times it asks.

   A wait asks once with RESERVE: the store takes the tokens now and says how long they will take to
   come back. So nobody who asks later can be served earlier, and one sleep is enough. A store that
   cannot reserve says UNSUPPORTED; then the wait polls, and who is served first is chance.

   What a cancelled wait gives back is measured from before the store was asked. An example: at
   10.00 s a wait asks for 1 token of 1/s, and is told to sleep 3 s; the answer came at 10.10 s. It
   is cancelled at 11.00 s. By its own clock 1 s has passed since it asked, so it cancels a
   reservation that has 2 s to go. The store reserved between 10.00 and 10.10, so at least 2 s are
   left there. Were it more than are left, another's reservation could be mistaken for this one. */

static bool ratelimit_priv_has_policy(const ratelimit_limiter *l)
{
    return (unsigned)l->on_failure <= RATELIMIT_FAIL_LOCAL &&
           (l->on_failure != RATELIMIT_FAIL_LOCAL || l->fallback.decide);
}

RATELIMIT_API ratelimit_status ratelimit_init(ratelimit_limiter *l, ratelimit_store store)
{
    if (!l || !store.decide || !ratelimit_priv_has_policy(l))
        return RATELIMIT_BAD_ARGUMENT;
    l->store = store;
    memset(&l->counts, 0, sizeof l->counts);
    l->canceled = 0;
    l->jitter = (uint32_t)(uintptr_t)l;
    return RATELIMIT_OK;
}

/* True if the store cannot do all or none. False if each request alone is UNSUPPORTED. */
static bool ratelimit_priv_unable(const ratelimit_request *req, const ratelimit_result *res,
                                  size_t count)
{
    ratelimit_result spare;
    bool sound = false;
    size_t i;
    for (i = 0; i < count; i++) {
        if (res[i].status != RATELIMIT_UNSUPPORTED)
            return false;
        sound = sound || !ratelimit_priv_settled(&req[i], &spare);
    }
    return sound;
}

/* The failure policy for results that the store could not decide. All or none stays so: such a
 * batch fails as a whole. */
static void ratelimit_priv_policy(ratelimit_limiter *l, const ratelimit_request *req,
                                  ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    size_t i, j, n;
    for (i = 0; i < count; i += n) {
        ratelimit_status status = RATELIMIT_STORE_FAILED;
        n = mode == RATELIMIT_ALL ? count : 1;
        if (n > 1 && ratelimit_priv_unable(req, res, n))
            status = RATELIMIT_UNSUPPORTED;
        else if (!ratelimit_priv_all_failed(res + i, n))
            continue;
        ratelimit_priv_add64(&l->counts.failed, n);
        if (res[i].source == RATELIMIT_FROM_FALLBACK) /* a tier has decided */
            continue;
        ratelimit_priv_fail(res + i, n, status);
        if (l->on_failure == RATELIMIT_FAIL_LOCAL)
            l->fallback.decide(&l->fallback, req + i, res + i, n, mode);
        for (j = i; j < i + n; j++) {
            res[j].source = l->on_failure == RATELIMIT_FAIL_LOCAL ? RATELIMIT_FROM_FALLBACK
                                                                  : RATELIMIT_FROM_POLICY;
            if (l->on_failure == RATELIMIT_FAIL_OPEN)
                res[j].allowed = true;
            res[j].status = status;
        }
    }
}

/* The decisions themselves, the policy's included; false if there is no way to make any. Nothing is
 * counted here, but for failures. */
static bool ratelimit_priv_decisions(ratelimit_limiter *l, const ratelimit_request *req,
                                     ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    if (!l || !l->store.decide || (count && (!req || !res))) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    if (count) {
        l->store.decide(&l->store, req, res, count, mode);
        ratelimit_priv_policy(l, req, res, count, mode);
    }
    return true;
}

static bool ratelimit_priv_is_bad(ratelimit_status status)
{
    return status == RATELIMIT_BAD_KEY || status == RATELIMIT_BAD_LIMIT ||
           status == RATELIMIT_BAD_COUNT || status == RATELIMIT_BAD_ARGUMENT ||
           status == RATELIMIT_SYNTAX;
}

/* Does shadow mode let this refusal through? Mistakes and cancelled waits stay what they are. So
 * does an operation that gives (all behind RESERVE): there is nobody to let through. */
static bool ratelimit_priv_shadows(const ratelimit_request *q, const ratelimit_result *r)
{
    bool unable = r->status == RATELIMIT_UNSUPPORTED && r->source == RATELIMIT_FROM_STORE;
    return q->op <= RATELIMIT_RESERVE && !unable && !ratelimit_priv_is_bad(r->status) &&
           r->status != RATELIMIT_CANCELED;
}

/* What becomes of a decision: shadow mode, counters, hook. */
static bool ratelimit_priv_finish(ratelimit_limiter *l, const ratelimit_request *q,
                                  ratelimit_result *r, bool shadow)
{
    if (shadow && !r->allowed && ratelimit_priv_shadows(q, r)) {
        r->allowed = true;
        ratelimit_priv_add64(&l->counts.shadow_refused, 1);
    }
    ratelimit_priv_add64(r->allowed ? &l->counts.allowed : &l->counts.refused, 1);
    if (ratelimit_priv_is_bad(r->status))
        ratelimit_priv_add64(&l->counts.bad, 1);
    if (l->hook)
        l->hook(l->hook_self, q, r);
    return r->allowed;
}

static bool ratelimit_priv_limiter(ratelimit_limiter *l, const ratelimit_request *req,
                                   ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    bool all = ratelimit_priv_decisions(l, req, res, count, mode), able = all;
    size_t i;
    for (i = 0; able && i < count; i++)
        all = ratelimit_priv_finish(l, &req[i], &res[i], l->shadow) && all;
    return all;
}

RATELIMIT_API bool ratelimit_take(ratelimit_limiter *l, const ratelimit_request *req,
                                  ratelimit_result *out_or_null)
{
    ratelimit_result spare;
    return ratelimit_priv_limiter(l, req, out_or_null ? out_or_null : &spare, 1, RATELIMIT_EACH);
}

RATELIMIT_API bool ratelimit_take_each(ratelimit_limiter *l, const ratelimit_request *req,
                                       ratelimit_result *res, size_t count)
{
    return ratelimit_priv_limiter(l, req, res, count, RATELIMIT_EACH);
}

RATELIMIT_API bool ratelimit_take_all(ratelimit_limiter *l, const ratelimit_request *req,
                                      ratelimit_result *res, size_t count)
{
    return ratelimit_priv_limiter(l, req, res, count, RATELIMIT_ALL);
}

static RATELIMIT_PRIV_NOINLINE bool ratelimit_priv_allow_slow(ratelimit_limiter *l, const void *key,
                                                              size_t key_len,
                                                              const ratelimit_limit *limit,
                                                              uint64_t n)
{
    ratelimit_request q = ratelimit_priv_request(key, key_len, limit, n);
    return ratelimit_take(l, &q, NULL);
}

/* Straight to the table, if there is nobody else to tell. The key's line is fetched while the clock
 * is read. Whatever may be a mistake goes the slow way, which counts it. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_allow(ratelimit_limiter *l, const void *key,
                                                       size_t key_len, const ratelimit_limit *limit,
                                                       uint64_t n)
{
    if (RATELIMIT_PRIV_LIKELY(l && l->store.decide == ratelimit_priv_table_decide &&
                              l->store.self && l->store.clock && !l->hook && !l->shadow && key &&
                              key_len && limit && limit->kind && n - 1 < INT64_MAX)) {
        ratelimit_table *t = (ratelimit_table *)l->store.self;
        uint64_t hash = ratelimit_priv_hash(t, key, key_len);
        bool allowed;
        ratelimit_priv_prefetch(ratelimit_priv_home(t, ratelimit_priv_place(hash, limit->scope)));
        allowed =
            ratelimit_table_take_hash(t, hash, limit, n, l->store.clock(l->store.clock_self), NULL);
        ratelimit_priv_add64(allowed ? &l->counts.allowed : &l->counts.refused, 1);
        return allowed;
    }
    return ratelimit_priv_allow_slow(l, key, key_len, limit, n);
}

RATELIMIT_API bool ratelimit_allow_n(ratelimit_limiter *l, const char *key,
                                     const ratelimit_limit *limit, uint64_t n)
{
    return ratelimit_priv_allow(l, key, key ? ratelimit_priv_len(key) : 0, limit, n);
}

RATELIMIT_API bool ratelimit_allow(ratelimit_limiter *l, const char *key,
                                   const ratelimit_limit *limit)
{
    return ratelimit_priv_allow(l, key, key ? ratelimit_priv_len(key) : 0, limit, 1);
}

RATELIMIT_API bool ratelimit_allow_key(ratelimit_limiter *l, const void *key, size_t key_len,
                                       const ratelimit_limit *limit)
{
    return ratelimit_priv_allow(l, key, key_len, limit, 1);
}

/* ---- waiting ---- */

/* A wait: how to measure it, and how long it has taken. */
typedef struct ratelimit_priv_waiting {
    ratelimit_limiter *l;
    ratelimit_clock clock;
    void *clock_self;
    uint64_t start, elapsed;
} ratelimit_priv_waiting;

static uint64_t ratelimit_priv_elapsed(ratelimit_priv_waiting *w)
{
    uint64_t now = w->clock(w->clock_self);
    if (now - w->start < w->elapsed || now - w->start > RATELIMIT_PRIV_MAX)
        w->start = now - w->elapsed; /* the clock was set back: go on from there */
    w->elapsed = now - w->start;
    return w->elapsed;
}

static bool ratelimit_priv_canceled(const ratelimit_limiter *l)
{
    return ratelimit_priv_load32(&l->canceled) != 0;
}

/* Sleeps until ns after the start, false if cancelled. The platform's sleep is cut into slices, so
 * that a cancel is seen. A sleep that ended early is followed by one that is a little longer than
 * what is left. If the clock does not move, the wait is given up. */
static bool ratelimit_priv_sleep_until(ratelimit_priv_waiting *w, uint64_t ns)
{
    ratelimit_limiter *l = w->l;
    uint64_t elapsed = ratelimit_priv_elapsed(w), before, more = 0;
    unsigned still = 0;
    while (elapsed < ns && !ratelimit_priv_canceled(l) && still < 1000) {
        uint64_t pause = ns - elapsed + more;
        if (l->sleep && !l->sleep(l->sleep_self, pause))
            return false;
#  if !defined(RATELIMIT_NO_CLOCK)
        if (!l->sleep)
            ratelimit_priv_sleep(pause < 50 * RATELIMIT_MILLISECOND ? pause
                                                                    : 50 * RATELIMIT_MILLISECOND);
#  endif
        before = elapsed;
        elapsed = ratelimit_priv_elapsed(w);
        more = 50 * RATELIMIT_MICROSECOND;
        still = elapsed > before ? 0 : still + 1;
    }
    return elapsed >= ns;
}

/* A number below `below`, another one at each call and in each thread: a counter that is swapped,
 * and mixed. The time tells processes apart. Without it all who were refused at one moment would
 * ask again at one moment, and all but one of them be refused again. */
static uint64_t ratelimit_priv_jitter(const ratelimit_priv_waiting *w, uint64_t below)
{
    uint32_t *counter = &w->l->jitter, x;
    do
        x = ratelimit_priv_load32(counter);
    while (!ratelimit_priv_swap32(counter, x, x + UINT32_C(0x9E3779B9)));
    x ^= (uint32_t)w->start;
    x = (x ^ x >> 16) * UINT32_C(0x7FEB352D);
    x = (x ^ x >> 15) * UINT32_C(0x846CA68B);
    return (x ^ x >> 16) % below;
}

static void ratelimit_priv_refuse(ratelimit_result *out, ratelimit_status status)
{
    out->allowed = false;
    out->taken = out->wait_ns = 0;
    out->status = status;
}

/* For a store that can't reserve: asks, sleeps for retry_after with jitter, asks again. It asks at
 * least once a second, as others may give tokens back. */
static void ratelimit_priv_poll(ratelimit_priv_waiting *w, const ratelimit_request *req,
                                uint64_t max_wait_ns, ratelimit_result *out)
{
    const uint64_t most = RATELIMIT_SECOND;
    ratelimit_request take = *req;
    take.op = RATELIMIT_TAKE;
    for (;;) {
        uint64_t elapsed, pause, spread;
        (void)ratelimit_priv_decisions(w->l, &take, out, 1, RATELIMIT_EACH);
        elapsed = ratelimit_priv_elapsed(w);
        if (out->allowed)
            out->wait_ns = elapsed;
        if (out->allowed || out->status != RATELIMIT_DENIED || w->l->shadow)
            return;
        pause = out->retry_after_ns ? out->retry_after_ns : 1;
        if (elapsed > max_wait_ns || pause > max_wait_ns - elapsed) {
            ratelimit_priv_refuse(out, RATELIMIT_TIMEOUT);
            return;
        }
        spread = ratelimit_priv_jitter(w, (pause < most ? pause : most) / 8 + 1);
        pause = pause < most - spread ? pause + spread : most - spread;
        if (pause > max_wait_ns - elapsed)
            pause = max_wait_ns - elapsed;
        if (!ratelimit_priv_sleep_until(w, elapsed + pause)) {
            ratelimit_priv_refuse(out, RATELIMIT_CANCELED);
            return;
        }
    }
}

/* Sleeps until the time of a reservation has come. After a cancel, the store that made the
 * reservation gets the rest of the wait. It is counted from before the store was asked, so it is
 * never too long. A tier's local bucket keeps it: the tier's store, which may be back, knows
 * nothing of it. */
static void ratelimit_priv_await(ratelimit_priv_waiting *w, const ratelimit_request *req,
                                 ratelimit_result *out)
{
    ratelimit_limiter *l = w->l;
    const ratelimit_store *store = out->source == RATELIMIT_FROM_FALLBACK ? NULL : &l->store;
    ratelimit_request back = *req;
    ratelimit_result spare;
    uint64_t elapsed = ratelimit_priv_elapsed(w);
    if (ratelimit_priv_sleep_until(w, elapsed + out->wait_ns))
        return;
    elapsed = ratelimit_priv_elapsed(w);
    if (out->source == RATELIMIT_FROM_FALLBACK && l->on_failure == RATELIMIT_FAIL_LOCAL)
        store = &l->fallback;
    back.op = RATELIMIT_CANCEL;
    back.max_wait_ns = out->wait_ns > elapsed ? out->wait_ns - elapsed : 0;
    if (store && back.max_wait_ns)
        store->decide(store, &back, &spare, 1, RATELIMIT_EACH);
    ratelimit_priv_refuse(out, RATELIMIT_CANCELED);
}

RATELIMIT_API bool ratelimit_wait(ratelimit_limiter *l, const ratelimit_request *req,
                                  uint64_t max_wait_ns, ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    ratelimit_priv_waiting w;
    ratelimit_request q;
    bool able = true;
    if (!l || !l->store.decide || !req ||
        (req->op != RATELIMIT_TAKE && req->op != RATELIMIT_RESERVE)) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
#  if defined(RATELIMIT_NO_CLOCK)
    able = l->sleep != NULL;
#  endif
    memset(&w, 0, sizeof w);
    w.l = l;
    w.clock = l->clock ? l->clock : l->store.clock ? l->store.clock : RATELIMIT_PRIV_PLATFORM_CLOCK;
    w.clock_self = l->clock ? l->clock_self : l->store.clock_self;
    able = able && w.clock;
    w.start = able ? w.clock(w.clock_self) : 0;
    q = *req;
    q.op = l->shadow ? RATELIMIT_TAKE : RATELIMIT_RESERVE; /* in shadow mode nobody waits */
    q.max_wait_ns = max_wait_ns;
    if (!able)
        ratelimit_priv_answer(out, RATELIMIT_UNSUPPORTED);
    else if (ratelimit_priv_canceled(l))
        ratelimit_priv_answer(out, RATELIMIT_CANCELED);
    else if (ratelimit_priv_decisions(l, &q, out, 1, RATELIMIT_EACH) &&
             out->status == RATELIMIT_UNSUPPORTED)
        ratelimit_priv_poll(&w, req, max_wait_ns, out);
    else if (out->allowed && out->wait_ns)
        ratelimit_priv_await(&w, &q, out);
    return ratelimit_priv_finish(l, req, out, l->shadow);
}

RATELIMIT_API void ratelimit_cancel(ratelimit_limiter *l)
{
    if (l)
        ratelimit_priv_store32(&l->canceled, 1);
}

RATELIMIT_API void ratelimit_limiter_counts(const ratelimit_limiter *l, ratelimit_counts *out)
{
    if (out)
        ratelimit_priv_copy_counts(out, l ? &l->counts : NULL, sizeof *out);
}

RATELIMIT_API void ratelimit_close(ratelimit_limiter *l)
{
    if (!l || !l->store.decide)
        return;
    if (l->store.close)
        l->store.close(&l->store);
    if (l->fallback.close)
        l->fallback.close(&l->fallback);
    memset(&l->store, 0, sizeof l->store);
    memset(&l->fallback, 0, sizeof l->fallback);
}

/* ---- >>implementation: rules --------------------------------------------------------------------

   In memory lie a head, two tallies for each rule, and two sides. A side has the entries in the
   order of the text, and chains of entries whose names have the same hash. Readers use the side
   that is up, a loader writes the other one, and then they change places:

       version   its lowest bit says which side is up; each load adds one
       reader    notes the version, searches the side that is up, copies the entry, and looks at the
                 version again. If it is the same, no load has ended meanwhile, so none can have
                 begun to write that side: the copy is whole. Else the reader starts again. It
                 writes nothing and waits for nobody.
       loader    writes the side that is down, then adds one to the version.

   An example. The version is 6: side 0 is up. A reader notes 6 and begins to copy an entry of side
   0. A load writes side 1 and makes the version 7; the reader's side is still untouched. The next
   load writes side 0: now the reader may copy half of an entry of each text. But then it finds the
   version 7, not 6, and starts again in side 1. (Only 2^32 loads during one copy would deceive it.)

   All words of a side are stored with release and loaded with acquire. So a reader that sees a word
   of a load also sees the version which that load began with. Until it looks at the version, a
   reader may follow a chain that is being written: it takes no more steps than there are rules.

   Loaders exclude each other by a lock word. The holder changes the word at each rule. A waiter
   that sees one word for too long frees the lock; the holder then finds another word and gives up.
   A holder that was stopped while it stored a rule goes on storing it, perhaps in the side that is
   up by then. Until the next load that text has one entry of the slow load, or a mix of two, in
   place of its own, and rules that share its chain may not be found.

   A tally holds the counters of a rule. The rule keeps it from load to load; it is free again when
   no side has the rule any more, that is two loads after the text lost it. A decision that takes
   longer than that may count for the rule that has the tally then. */

typedef struct ratelimit_priv_rule {
    ratelimit_rule rule; /* the name is filled up with NULs, "": no rule; the counters are 0 */
    uint32_t tally;      /* its number */
    uint32_t next;       /* of its chain */
} ratelimit_priv_rule;

typedef struct ratelimit_priv_tally {
    uint64_t count[4];     /* allowed, refused, shadow_refused, failed */
    uint32_t used, unused; /* used: bit 0 and 1, by a rule of that side */
} ratelimit_priv_tally;

struct ratelimit_rules {
    uint32_t version;
    uint32_t writer;   /* the loaders' lock, odd while held */
    uint32_t most;     /* rules */
    uint32_t count[2]; /* rules of each side */
    uint32_t unused[3];
};

enum {
    RATELIMIT_PRIV_ENTRY_WORDS = RATELIMIT_PRIV_ENTRY_BYTES / 4,
    RATELIMIT_PRIV_NEXT_WORD = offsetof(ratelimit_priv_rule, next) / 4
};
#  define RATELIMIT_PRIV_NO_RULE UINT32_MAX

typedef char
    ratelimit_priv_check_rules[sizeof(struct ratelimit_rules) + 7 == RATELIMIT_PRIV_RULES_BYTES &&
                                       sizeof(ratelimit_priv_rule) == RATELIMIT_PRIV_ENTRY_BYTES &&
                                       sizeof(ratelimit_priv_tally) == 40 &&
                                       offsetof(ratelimit_rule, name) == 0
                                   ? 1
                                   : -1];

/* The caller's lock, where there is no compare-and-swap to do without it: it keeps loaders from
 * readers. */
#  if RATELIMIT_PRIV_CAN
#    define RATELIMIT_PRIV_ENTER_PLAIN() ((void)0)
#    define RATELIMIT_PRIV_LEAVE_PLAIN() ((void)0)
#  else
#    define RATELIMIT_PRIV_ENTER_PLAIN() RATELIMIT_PRIV_ENTER()
#    define RATELIMIT_PRIV_LEAVE_PLAIN() RATELIMIT_PRIV_LEAVE()
#  endif

static ratelimit_priv_tally *ratelimit_priv_tallies(ratelimit_rules *r)
{
    return (ratelimit_priv_tally *)(void *)(r + 1);
}

static uint32_t *ratelimit_priv_rule_entry(ratelimit_rules *r, uint32_t side, uint32_t number)
{
    uint32_t *entries = (uint32_t *)(void *)(ratelimit_priv_tallies(r) + 2 * (size_t)r->most);
    return entries + (side * (size_t)r->most + number) * RATELIMIT_PRIV_ENTRY_WORDS;
}

/* The beginning of the chain of a hash. */
static uint32_t *ratelimit_priv_rule_chain(ratelimit_rules *r, uint32_t side, uint32_t hash)
{
    return ratelimit_priv_rule_entry(r, 2, 0) + side * (size_t)r->most + hash % r->most;
}

static void ratelimit_priv_get_rule(ratelimit_rules *r, uint32_t side, uint32_t number,
                                    ratelimit_priv_rule *rule)
{
    const uint32_t *entry = ratelimit_priv_rule_entry(r, side, number);
    size_t i;
    for (i = 0; i < RATELIMIT_PRIV_ENTRY_WORDS; i++) {
        uint32_t word = ratelimit_priv_load32(entry + i);
        memcpy((unsigned char *)rule + 4 * i, &word, sizeof word);
    }
}

static void ratelimit_priv_set_rule(ratelimit_rules *r, uint32_t side, uint32_t number,
                                    const ratelimit_priv_rule *rule)
{
    uint32_t *entry = ratelimit_priv_rule_entry(r, side, number);
    size_t i;
    for (i = 0; i < RATELIMIT_PRIV_ENTRY_WORDS; i++) {
        uint32_t word;
        memcpy(&word, (const unsigned char *)rule + 4 * i, sizeof word);
        ratelimit_priv_store32(entry + i, word);
    }
}

/* The number of the entry with that name. A name that is empty, too long or has a NUL has none. */
static uint32_t ratelimit_priv_seek_rule(ratelimit_rules *r, uint32_t side, const char *text,
                                         size_t len)
{
    char name[RATELIMIT_RULE_NAME_BYTES] = {0};
    uint32_t at, steps, i;
    if (len - 1 >= sizeof name - 1)
        return RATELIMIT_PRIV_NO_RULE;
    memcpy(name, text, len);
    if (ratelimit_priv_len(name) != len)
        return RATELIMIT_PRIV_NO_RULE;
    at = ratelimit_priv_load32(ratelimit_priv_rule_chain(r, side, ratelimit_scope(name, len)));
    for (steps = 0; at < r->most && steps < r->most; steps++) {
        const uint32_t *entry = ratelimit_priv_rule_entry(r, side, at);
        bool same = true;
        for (i = 0; same && i < sizeof name / 4; i++) {
            uint32_t word = ratelimit_priv_load32(entry + i);
            same = memcmp(name + 4 * i, &word, 4) == 0;
        }
        if (same)
            return at;
        at = ratelimit_priv_load32(entry + RATELIMIT_PRIV_NEXT_WORD);
    }
    return RATELIMIT_PRIV_NO_RULE;
}

/* The length of what precedes the first "|", as far as that can be a name; else len. "login|alice"
 * has the head "login", which names the bucket's scope: so a key that gets a limit of its own keeps
 * its bucket. */
static size_t ratelimit_priv_name_head(const char *name, size_t len)
{
    size_t i;
    for (i = 0; i < len && i < RATELIMIT_RULE_NAME_BYTES; i++)
        if (name[i] == '|')
            return i;
    return len;
}

/* The number of the first rule that is there: name|key, name, its head, default. */
static uint32_t ratelimit_priv_seek_any(ratelimit_rules *r, uint32_t side, const char *text,
                                        size_t len, const char *key_or_null, size_t key_len)
{
    uint32_t at = RATELIMIT_PRIV_NO_RULE;
    char own[2 * RATELIMIT_RULE_NAME_BYTES];
    if (key_or_null && len < RATELIMIT_RULE_NAME_BYTES && key_len < RATELIMIT_RULE_NAME_BYTES) {
        memcpy(own, text, len);
        own[len] = '|';
        memcpy(own + len + 1, key_or_null, key_len);
        at = ratelimit_priv_seek_rule(r, side, own, len + 1 + key_len);
    }
    if (at == RATELIMIT_PRIV_NO_RULE)
        at = ratelimit_priv_seek_rule(r, side, text, len);
    if (at == RATELIMIT_PRIV_NO_RULE)
        at = ratelimit_priv_seek_rule(r, side, text, ratelimit_priv_name_head(text, len));
    if (at == RATELIMIT_PRIV_NO_RULE)
        at = ratelimit_priv_seek_rule(r, side, "default", 7);
    return at;
}

/* Copies the rule for a name and a key, or without a name the rule with that number. */
static bool ratelimit_priv_find_rule(ratelimit_rules *r, const char *text, size_t len,
                                     const char *key_or_null, size_t key_len, size_t number,
                                     ratelimit_priv_rule *rule)
{
    uint32_t version, at;
    do {
        RATELIMIT_PRIV_ENTER_PLAIN();
        version = ratelimit_priv_load32(&r->version);
        if (text)
            at = ratelimit_priv_seek_any(r, version & 1, text, len, key_or_null, key_len);
        else
            at = number < ratelimit_priv_load32(&r->count[version & 1]) ? (uint32_t)number
                                                                        : RATELIMIT_PRIV_NO_RULE;
        if (at != RATELIMIT_PRIV_NO_RULE)
            ratelimit_priv_get_rule(r, version & 1, at, rule);
        RATELIMIT_PRIV_LEAVE_PLAIN();
    } while (ratelimit_priv_load32(&r->version) != version);
    return at != RATELIMIT_PRIV_NO_RULE;
}

RATELIMIT_API ratelimit_status ratelimit_rules_init(ratelimit_rules **out, void *memory,
                                                    size_t bytes, size_t max_rules)
{
    size_t skip = (0u - (uintptr_t)memory) & 7u;
    const uint64_t most = max_rules;
    ratelimit_rules *r;
    if (!out || !memory || !most || most > UINT32_C(1) << 24)
        return RATELIMIT_BAD_ARGUMENT;
    r = (ratelimit_rules *)(void *)((unsigned char *)memory + skip);
    if (bytes < sizeof *r + skip + most * RATELIMIT_PRIV_RULE_BYTES)
        return RATELIMIT_NO_MEMORY;
    memset(r, 0, sizeof *r);
    r->most = (uint32_t)most;
    memset(ratelimit_priv_tallies(r), 0, 2 * max_rules * sizeof(ratelimit_priv_tally));
    memset(ratelimit_priv_rule_chain(r, 0, 0), 255, 2 * max_rules * sizeof(uint32_t));
    *out = r;
    return RATELIMIT_OK;
}

/* ---- loading ---- */

typedef struct ratelimit_priv_loading {
    ratelimit_rules *rules;
    uint32_t side, version, word; /* word: what the lock holds */
    uint32_t tally;               /* none before this one is free */
    const char *line;             /* its first byte */
    ratelimit_fault fault;
} ratelimit_priv_loading;

static ratelimit_status ratelimit_priv_rule_wrong(ratelimit_priv_loading *g, const char *at,
                                                  ratelimit_status status, const char *what)
{
    g->fault.column = (size_t)(at - g->line) + 1;
    g->fault.what = what;
    return status;
}
#  if defined(RATELIMIT_NO_TEXT)
#    define RATELIMIT_PRIV_WRONG(g, at, status, what) ratelimit_priv_rule_wrong(g, at, status, "")
#  else
#    define RATELIMIT_PRIV_WRONG(g, at, status, what) ratelimit_priv_rule_wrong(g, at, status, what)
#  endif

/* Changes the lock's word to another odd one, which tells waiters that this load is alive. False if
 * the lock is no longer ours: a waiter has made the word even, or another load has taken it. */
static bool ratelimit_priv_still_loading(ratelimit_priv_loading *g)
{
    g->word += 2;
    return ratelimit_priv_swap32(&g->rules->writer, g->word - 2, g->word);
}

/* Adds a rule to the side that is down, with the tally of the rule that had its name, or a new
 * one. There are two tallies for each place, so one is free. */
static ratelimit_status ratelimit_priv_add_rule(ratelimit_priv_loading *g, const char *at,
                                                ratelimit_priv_rule *x)
{
    ratelimit_rules *r = g->rules;
    size_t len = ratelimit_priv_len(x->rule.name);
    uint32_t count = ratelimit_priv_load32(&r->count[g->side]), *chain, i;
    ratelimit_priv_tally *tallies = ratelimit_priv_tallies(r);
    ratelimit_priv_rule before;
    if (!ratelimit_priv_still_loading(g))
        return RATELIMIT_PRIV_WRONG(g, at, RATELIMIT_BUSY, "too slow: another load took over");
    if (ratelimit_priv_seek_rule(r, g->side, x->rule.name, len) != RATELIMIT_PRIV_NO_RULE)
        return RATELIMIT_PRIV_WRONG(g, at, RATELIMIT_SYNTAX, "a name that was there before");
    if (count == r->most)
        return RATELIMIT_PRIV_WRONG(g, at, RATELIMIT_NO_MEMORY, "no room for more rules");
    x->rule.limit.scope =
        ratelimit_scope(x->rule.name, ratelimit_priv_name_head(x->rule.name, len));
    i = ratelimit_priv_seek_rule(r, g->side ^ 1, x->rule.name, len);
    if (i != RATELIMIT_PRIV_NO_RULE) {
        ratelimit_priv_get_rule(r, g->side ^ 1, i, &before);
        x->tally = before.tally;
    } else {
        while (ratelimit_priv_load32(&tallies[g->tally].used))
            g->tally++;
        x->tally = g->tally;
        for (i = 0; i < 4; i++)
            ratelimit_priv_store64(&tallies[x->tally].count[i], 0);
    }
    ratelimit_priv_store32(&tallies[x->tally].used,
                           ratelimit_priv_load32(&tallies[x->tally].used) | 1u << g->side);
    chain = ratelimit_priv_rule_chain(r, g->side, ratelimit_scope(x->rule.name, len));
    x->next = ratelimit_priv_load32(chain);
    ratelimit_priv_set_rule(r, g->side, count, x);
    ratelimit_priv_store32(chain, count);
    ratelimit_priv_store32(&r->count[g->side], count + 1);
    return RATELIMIT_OK;
}

/* Reads a line. The name goes up to the first blank, the rest up to a comment. */
static ratelimit_status ratelimit_priv_load_line(ratelimit_priv_loading *g, const char *end)
{
    ratelimit_priv_text t;
    ratelimit_priv_rule x;
    ratelimit_status status;
    const char *name, *wrong;
    bool word;
    t.at = g->line;
    t.end = end;
    (void)ratelimit_priv_blanks(&t);
    name = t.at;
    if (name == end || *name == '#')
        return RATELIMIT_OK;
    for (; t.at != end && !ratelimit_priv_is_blank(*t.at); t.at++)
        if ((unsigned char)*t.at < ' ' || *t.at == 127 ||
            t.at - name == RATELIMIT_RULE_NAME_BYTES - 1)
            return RATELIMIT_PRIV_WRONG(g, t.at, RATELIMIT_SYNTAX,
                                        "a name that is too long or has control characters");
    if (t.at - name >= 3 && memcmp(name, "\xEF\xBB\xBF", 3) == 0)
        return RATELIMIT_PRIV_WRONG(g, name, RATELIMIT_SYNTAX, "a byte order mark within the text");
    memset(&x, 0, sizeof x);
    memcpy(x.rule.name, name, (size_t)(t.at - name));
    for (t.end = t.at; t.end != end && !(*t.end == '#' && ratelimit_priv_is_blank(t.end[-1]));)
        t.end++;
    while (t.end != t.at && ratelimit_priv_is_blank(t.end[-1]))
        t.end--;
    if (!ratelimit_priv_blanks(&t))
        return RATELIMIT_PRIV_WRONG(g, t.at, RATELIMIT_SYNTAX, "a name without a limit");
    status = ratelimit_priv_read_limit(&t, &x.rule.limit, &wrong);
    do { /* the words behind it */
        word = true;
        if (!x.rule.shadow && ratelimit_priv_option(&t, "shadow"))
            x.rule.shadow = true;
        else if (!x.rule.closed && !x.rule.open && ratelimit_priv_option(&t, "closed"))
            x.rule.closed = true;
        else if (!x.rule.closed && !x.rule.open && ratelimit_priv_option(&t, "open"))
            x.rule.open = true;
        else
            word = false;
    } while (word);
    if (status == RATELIMIT_SYNTAX || !ratelimit_priv_at_end(&t))
        return RATELIMIT_PRIV_WRONG(
            g, t.at, RATELIMIT_SYNTAX,
            status != RATELIMIT_SYNTAX && ratelimit_priv_is_blank(t.at[-1])
                ? "not a word that may follow here: burst N, window, then shadow, closed or open"
                : "not a limit");
    if (status != RATELIMIT_OK)
        return RATELIMIT_PRIV_WRONG(g, wrong, status, "a number that does not fit");
    return ratelimit_priv_add_rule(g, name, &x);
}

static ratelimit_status ratelimit_priv_load_text(ratelimit_priv_loading *g, const char *text,
                                                 size_t text_len)
{
    const char *stop = text + text_len;
    ratelimit_status status = RATELIMIT_OK;
    if (text_len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        text += 3;
    while (text != stop && status == RATELIMIT_OK) {
        const char *end = text;
        g->line = text;
        g->fault.line++;
        while (end != stop && *end != '\n')
            end++;
        text = end == stop ? end : end + 1;
        status = ratelimit_priv_load_line(g, end != g->line && end[-1] == '\r' ? end - 1 : end);
    }
    return status;
}

/* Takes the loaders' lock; returns its word. */
static uint32_t ratelimit_priv_lock_rules(ratelimit_rules *r)
{
#  if RATELIMIT_PRIV_CAN
    for (;;) {
        uint32_t word = ratelimit_priv_load32(&r->writer);
        if (word & 1)
            ratelimit_priv_wait_lock(&r->writer, word);
        else if (ratelimit_priv_swap32(&r->writer, word, word + 1))
            return word + 1;
    }
#  else
    return r->writer |= 1;
#  endif
}

RATELIMIT_API ratelimit_status ratelimit_rules_load(ratelimit_rules *rules, const char *text,
                                                    size_t text_len, ratelimit_fault *fault_or_null)
{
    ratelimit_priv_loading g;
    ratelimit_status status = RATELIMIT_BAD_ARGUMENT;
    uint32_t i;
    memset(&g, 0, sizeof g);
    g.fault.what = "";
    if (rules && text) {
        g.rules = rules;
        g.word = ratelimit_priv_lock_rules(rules);
        g.version = ratelimit_priv_load32(&rules->version);
        g.side = (g.version & 1) ^ 1;
        ratelimit_priv_store32(&rules->count[g.side], 0);
        for (i = 0; i < rules->most; i++)
            ratelimit_priv_store32(ratelimit_priv_rule_chain(rules, g.side, i),
                                   RATELIMIT_PRIV_NO_RULE);
        for (i = 0; i < 2 * rules->most; i++) {
            uint32_t *used = &ratelimit_priv_tallies(rules)[i].used;
            ratelimit_priv_store32(used, ratelimit_priv_load32(used) & 2u >> g.side);
        }
        status = ratelimit_priv_load_text(&g, text, text_len);
        if (status == RATELIMIT_OK) {
            g.fault.line = 0;
            RATELIMIT_PRIV_ENTER_PLAIN();
            if (!ratelimit_priv_still_loading(&g) ||
                !ratelimit_priv_swap32(&rules->version, g.version, g.version + 1))
                status = RATELIMIT_BUSY;
            RATELIMIT_PRIV_LEAVE_PLAIN();
        }
        (void)ratelimit_priv_swap32(&rules->writer, g.word, g.word + 1);
    }
    if (fault_or_null)
        *fault_or_null = g.fault;
    return status;
}

/* The rule with its counters. */
static void ratelimit_priv_show_rule(ratelimit_rules *r, const ratelimit_priv_rule *x,
                                     ratelimit_rule *out)
{
    const uint64_t *count = ratelimit_priv_tallies(r)[x->tally].count;
    *out = x->rule;
    out->allowed = ratelimit_priv_load64(&count[0]);
    out->refused = ratelimit_priv_load64(&count[1]);
    out->shadow_refused = ratelimit_priv_load64(&count[2]);
    out->failed = ratelimit_priv_load64(&count[3]);
}

RATELIMIT_API bool ratelimit_rules_find(ratelimit_rules *rules, const char *name,
                                        ratelimit_rule *out)
{
    ratelimit_priv_rule x;
    if (!rules || !name || !out ||
        !ratelimit_priv_find_rule(rules, name, ratelimit_priv_len(name), NULL, 0, 0, &x))
        return false;
    ratelimit_priv_show_rule(rules, &x, out);
    return true;
}

RATELIMIT_API bool ratelimit_rules_at(ratelimit_rules *rules, size_t index, ratelimit_rule *out)
{
    ratelimit_priv_rule x;
    if (!rules || !out || !ratelimit_priv_find_rule(rules, NULL, 0, NULL, 0, index, &x))
        return false;
    ratelimit_priv_show_rule(rules, &x, out);
    return true;
}

/* ---- events ---- */

/* The rule for a request; none: its limit is BAD_LIMIT. */
static void ratelimit_priv_rule_for(ratelimit_rules *r, const ratelimit_rule_request *asked,
                                    ratelimit_priv_rule *rule)
{
    const char *key = (const char *)asked->request.key, *name = asked->rule ? asked->rule : key;
    size_t key_len = asked->request.key_len;
    if (!r || !name ||
        !ratelimit_priv_find_rule(r, name, asked->rule ? ratelimit_priv_len(name) : key_len,
                                  asked->rule ? key : NULL, key_len, 0, rule))
        memset(rule, 0, sizeof *rule);
}

static bool ratelimit_priv_rule_failed(const ratelimit_result *res)
{
    return res->status == RATELIMIT_STORE_FAILED || res->source == RATELIMIT_FROM_POLICY ||
           res->source == RATELIMIT_FROM_FALLBACK;
}

/* A rule's word comes before what decided while the store failed. */
static void ratelimit_priv_apply_word(const ratelimit_rule *rule, ratelimit_result *res)
{
    if (rule->closed || rule->open)
        res->source = RATELIMIT_FROM_POLICY;
    res->allowed = rule->closed ? false : res->allowed || rule->open;
}

/* A refusal counts for the rule that refused, not for others of its event. */
static void ratelimit_priv_count_rule(ratelimit_rules *r, const ratelimit_priv_rule *rule,
                                      const ratelimit_result *res)
{
    bool failed = ratelimit_priv_rule_failed(res);
    uint64_t *count;
    if (!rule->rule.name[0])
        return;
    count = ratelimit_priv_tallies(r)[rule->tally].count;
    if (res->allowed || res->status != RATELIMIT_SKIPPED)
        ratelimit_priv_add64(&count[res->allowed ? 0 : 1], 1);
    if (res->allowed && res->status != RATELIMIT_OK && !failed)
        ratelimit_priv_add64(&count[2], 1);
    if (failed)
        ratelimit_priv_add64(&count[3], 1);
}

/* First the hard requests, all or none; then those under a shadow rule, each on its own. If the
 * hard ones did not pass, a shadow rule is only asked (PEEK), and says SKIPPED: it must not be
 * charged for an event that did not take place, nor seem to be the reason. */
RATELIMIT_API bool ratelimit_take_rules(ratelimit_limiter *l, const ratelimit_rule_request *asked,
                                        ratelimit_result *res, ratelimit_rule *rules_or_null,
                                        size_t count)
{
    ratelimit_priv_rule rule[RATELIMIT_MAX_RULE_REQUESTS];
    ratelimit_request req[RATELIMIT_MAX_RULE_REQUESTS];
    ratelimit_result got[RATELIMIT_MAX_RULE_REQUESTS];
    size_t of[RATELIMIT_MAX_RULE_REQUESTS], hard = 0, i; /* of: the index of a hard one */
    bool failed = false, good = true, pass = true, all;
    uint64_t retry_after_ns = 0;
    if (rules_or_null)
        memset(rules_or_null, 0, count * sizeof *rules_or_null);
    if (!count)
        return true;
    if (!l || !l->store.decide || !asked || !res || count > RATELIMIT_MAX_RULE_REQUESTS) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    for (i = 0; i < count; i++) {
        ratelimit_priv_rule_for(l->rules, &asked[i], &rule[i]);
        if (rule[i].rule.shadow)
            continue;
        req[hard] = asked[i].request;
        req[hard].limit = &rule[i].rule.limit;
        of[hard++] = i;
    }

    if (hard)
        (void)ratelimit_priv_decisions(l, req, got, hard,
                                       hard > 1 ? RATELIMIT_ALL : RATELIMIT_EACH);
    for (i = 0; i < hard; i++) {
        if (ratelimit_priv_rule_failed(&got[i])) {
            failed = true;
            ratelimit_priv_apply_word(&rule[of[i]].rule, &got[i]);
        }
        good = good && got[i].allowed;
    }
    for (i = 0; i < hard; i++) {
        if (failed && !good) { /* all or none, also where the words of two rules differ */
            got[i].allowed = false;
            got[i].taken = got[i].wait_ns = 0;
        }
        pass = ratelimit_priv_finish(l, &req[i], &got[i], l->shadow) && pass;
        res[of[i]] = got[i];
    }
    if (hard)
        retry_after_ns = got[ratelimit_binding(got, hard)].retry_after_ns;

    for (i = 0, all = pass; i < count; i++) {
        ratelimit_request q = asked[i].request;
        ratelimit_result *r = &res[i];
        if (rule[i].rule.shadow) {
            q.limit = &rule[i].rule.limit;
            q.op = pass ? q.op : RATELIMIT_PEEK;
            (void)ratelimit_priv_decisions(l, &q, r, 1, RATELIMIT_EACH);
            if (!pass) {
                r->allowed = false;
                r->retry_after_ns = retry_after_ns;
                r->status = RATELIMIT_SKIPPED;
            }
            all = ratelimit_priv_finish(l, &q, r, pass) && all;
        }
        ratelimit_priv_count_rule(l->rules, &rule[i], r);
        if (rules_or_null && rule[i].rule.name[0])
            ratelimit_priv_show_rule(l->rules, &rule[i], &rules_or_null[i]);
    }
    return all;
}

RATELIMIT_API bool ratelimit_allow_rule(ratelimit_limiter *l, const char *resource,
                                        const char *rule)
{
    ratelimit_rule_request asked = {
        rule, RATELIMIT_REQUEST(resource, ratelimit_priv_len(resource), NULL, 1)};
    ratelimit_result res;
    return ratelimit_take_rules(l, &asked, &res, NULL, 1);
}

/* True if a is more restrictive than b. */
static bool ratelimit_priv_binds(const ratelimit_result *a, const ratelimit_result *b)
{
    bool a_refused = !a->allowed && a->status != RATELIMIT_SKIPPED;
    bool b_refused = !b->allowed && b->status != RATELIMIT_SKIPPED;
    if (a_refused != b_refused)
        return a_refused;
    if (!a_refused && a->remaining != b->remaining)
        return a->remaining < b->remaining;
    if (a->retry_after_ns != b->retry_after_ns)
        return a->retry_after_ns > b->retry_after_ns;
    return a->reset_after_ns > b->reset_after_ns;
}

RATELIMIT_API size_t ratelimit_binding(const ratelimit_result *res, size_t count)
{
    size_t i, best = 0;
    for (i = 1; res && i < count; i++)
        if (ratelimit_priv_binds(&res[i], &res[best]))
            best = i;
    return best;
}

/* ---- addresses ----

   Strict, as one address must have one key: "010.0.0.1" is 8.0.0.1 to some readers and 10.0.0.1 to
   others, so who could write it in two ways would have two buckets. */

static bool ratelimit_priv_ipv4(const char *at, const char *end, unsigned char *out)
{
    unsigned i;
    for (i = 0; i < 4; i++) {
        const char *from = at;
        unsigned value = 0;
        while (at != end && *at >= '0' && *at <= '9' && at - from < 3)
            value = value * 10 + (unsigned)(*at++ - '0');
        if (at == from || value > 255 || (*from == '0' && at - from > 1))
            return false;
        out[i] = (unsigned char)value;
        if (i < 3 && (at == end || *at++ != '.'))
            return false;
    }
    return at == end;
}

static int ratelimit_priv_hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Groups of 16 bits, the last two perhaps as an IPv4 address; gap is where "::" was. */
static bool ratelimit_priv_ipv6(const char *at, const char *end, unsigned char *out)
{
    const size_t nowhere = 17;
    size_t len = 0, gap = nowhere;
    if (end - at >= 2 && at[0] == ':' && at[1] == ':') {
        gap = 0;
        at += 2;
    }
    while (at != end) {
        const char *from = at;
        unsigned value = 0;
        if (len <= 12 && ratelimit_priv_ipv4(at, end, out + len)) {
            len += 4;
            break;
        }
        while (at != end && at - from < 4 && ratelimit_priv_hex(*at) >= 0)
            value = value << 4 | (unsigned)ratelimit_priv_hex(*at++);
        if (at == from || len == 16)
            return false;
        out[len++] = (unsigned char)(value >> 8);
        out[len++] = (unsigned char)(value & 255);
        if (at == end)
            break;
        if (*at++ != ':' || at == end)
            return false;
        if (*at == ':') {
            if (gap != nowhere)
                return false;
            gap = len;
            at++;
        }
    }
    if (gap == nowhere)
        return len == 16;
    if (len == 16)
        return false;
    memmove(out + 16 - (len - gap), out + gap, len - gap);
    memset(out + gap, 0, 16 - len);
    return true;
}

RATELIMIT_API size_t ratelimit_address_parse(const char *text, size_t text_len,
                                             unsigned char out[16])
{
    unsigned char bytes[16];
    size_t len = 0;
    if (!text || !out)
        return 0;
    memset(bytes, 0, sizeof bytes);
    if (ratelimit_priv_ipv4(text, text + text_len, bytes))
        len = 4;
    else if (ratelimit_priv_ipv6(text, text + text_len, bytes))
        len = 16;
    memcpy(out, bytes, len);
    return len;
}

RATELIMIT_API size_t ratelimit_address_key(const void *address, size_t address_bytes,
                                           unsigned bits4, unsigned bits6,
                                           unsigned char key[RATELIMIT_ADDRESS_KEY_BYTES])
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
    const unsigned char *from = (const unsigned char *)address;
    unsigned bits, i;
    if (!from || !key || (address_bytes != 4 && address_bytes != 16))
        return 0;
    if (address_bytes == 16 && memcmp(from, mapped, sizeof mapped) == 0) {
        from += sizeof mapped;
        address_bytes = 4;
    }
    bits = address_bytes == 4 ? bits4 : bits6;
    if (bits > 8 * address_bytes)
        return 0;
    key[0] = address_bytes == 4 ? 4 : 6;
    key[1] = (unsigned char)bits;
    for (i = 0; i < address_bytes; i++, bits -= bits < 8 ? bits : 8)
        key[2 + i] = (unsigned char)(from[i] & (bits < 8 ? 0xff00u >> bits : 0xffu));
    return 2 + address_bytes;
}

/* ---- >>implementation: text ---------------------------------------------------------------------

   HTTP fields say the same thing in two languages: X-RateLimit-* in three numbers for one limit,
   the draft's RateLimit and RateLimit-Policy as lists with an item for each rule.

   An example of `w`, `q`, `r` and `t`, for 7 a second, burst 10, 4 tokens taken at once:

       w   a whole burst comes back in 10/7 s: rounded up to whole seconds, 2
       q   in 2 s come back 14
       r   6 remain
       t   the bucket is full in 4/7 s, and owes 4 tokens. One more token is there when it owes 3,
           so in 1/7 s: rounded up, 1

   So a client that takes q tokens in each w seconds, evenly, is never refused, and one that has
   used up r tokens knows that t seconds later at least one more is there. */

static uint64_t ratelimit_priv_seconds(uint64_t ns)
{
    return ns / RATELIMIT_SECOND + (ns % RATELIMIT_SECOND != 0);
}

/* Whole seconds until it is worth coming back, 0 if waiting does not help. */
static uint64_t ratelimit_priv_retry_seconds(const ratelimit_result *res)
{
    if (res->allowed || res->status == RATELIMIT_NEVER || ratelimit_http_status(res) == 500 ||
        res->retry_after_ns == RATELIMIT_FOREVER)
        return 0;
    return res->retry_after_ns ? ratelimit_priv_seconds(res->retry_after_ns) : 1;
}

/* An integer of a structured field (RFC 9651) has at most 15 digits. */
static void ratelimit_priv_say_integer(ratelimit_priv_page *p, const char *name, uint64_t value)
{
    const uint64_t most = UINT64_C(999999999999999);
    ratelimit_priv_say_field(p, name, value < most ? value : most);
}

/* A string of a structured field is ASCII; other bytes, and "%", become "%" and two digits. */
static void ratelimit_priv_say_string(ratelimit_priv_page *p, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";
    ratelimit_priv_say(p, "\"");
    for (; *text; text++) {
        unsigned c = (unsigned char)*text;
        if (c > '~' || c < ' ' || c == '%') {
            ratelimit_priv_say(p, "%");
            ratelimit_priv_put(p, &hex[c >> 4], 1);
            ratelimit_priv_put(p, &hex[c & 15], 1);
        } else {
            ratelimit_priv_say(p, c == '"' || c == '\\' ? "\\" : "");
            ratelimit_priv_put(p, text, 1);
        }
    }
    ratelimit_priv_say(p, "\"");
}

/* Bytes in a structured field: base 64 between colons. */
static void ratelimit_priv_say_bytes(ratelimit_priv_page *p, const unsigned char *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t i, j;
    ratelimit_priv_say(p, ":");
    for (i = 0; i < len; i += 3) {
        uint32_t three = 0;
        for (j = 0; j < 3; j++)
            three = three << 8 | (i + j < len ? bytes[i + j] : 0u);
        for (j = 0; j < 4; j++)
            ratelimit_priv_put(p, i + j > len ? "=" : &digits[three >> (18 - 6 * j) & 63], 1);
    }
    ratelimit_priv_say(p, ":");
}

/* q tokens come back in w seconds, the time of a whole burst rounded up. */
static void ratelimit_priv_say_policy(ratelimit_priv_page *p, const ratelimit_limit *l)
{
    bool window = l->kind == RATELIMIT_PRIV_WINDOW;
    ratelimit_priv_span span = ratelimit_priv_window(l);
    uint64_t w = ratelimit_priv_seconds(window ? l->per_ns : span.ns + (span.part != 0));
    ratelimit_priv_say_integer(
        p, ";q=", ratelimit_priv_count(l, ratelimit_priv_span_of(w * RATELIMIT_SECOND, 0)));
    ratelimit_priv_say_integer(p, ";w=", w);
}

/* r, and t: until there is one token more. What is owed is between burst - remaining - 1 and
 * burst - remaining intervals, so t is what exceeds the former. It is left out where it is not
 * known: without a limit, unless the bucket is full. */
static void ratelimit_priv_say_state(ratelimit_priv_page *p, const ratelimit_result *res,
                                     const ratelimit_limit *l)
{
    bool skipped = res->status == RATELIMIT_SKIPPED; /* its Retry-After is another's */
    uint64_t retry = skipped ? 0 : ratelimit_priv_retry_seconds(res), ns = res->reset_after_ns;
    bool known = l->kind == RATELIMIT_PRIV_WINDOW || ns == 0;
    ratelimit_priv_span cost = {0, 0};
    if (l->kind == RATELIMIT_PRIV_BUCKET && res->burst > res->remaining)
        known = ratelimit_priv_cost(l, res->burst - res->remaining - 1, &cost);
    ratelimit_priv_say_integer(p, ";r=", res->remaining);
    if (retry)
        ratelimit_priv_say_integer(p, ";t=", retry);
    else if (known && (res->allowed || skipped))
        ratelimit_priv_say_integer(p,
                                   ";t=", ratelimit_priv_seconds(ns > cost.ns ? ns - cost.ns : 0));
}

static bool ratelimit_priv_has_numbers(const ratelimit_result *res)
{
    return res->burst && res->burst != UINT64_MAX;
}

/* True if a result may be shown to clients. A result that passed by shadow mode or by a failure
 * policy must not show that. */
static bool ratelimit_priv_is_told(const ratelimit_result *res, const ratelimit_rule *rule)
{
    return !rule->shadow && (!res->allowed || res->status == RATELIMIT_OK);
}

/* True if RateLimit lists item i: of several with one name it lists the most restrictive. */
static bool ratelimit_priv_is_listed(const ratelimit_result *res, const ratelimit_rule *rules,
                                     size_t count, size_t i)
{
    size_t j;
    bool listed = ratelimit_priv_is_told(&res[i], &rules[i]) && ratelimit_priv_has_numbers(&res[i]);
    for (j = 0; listed && j < count; j++)
        if (j != i && memcmp(rules[i].name, rules[j].name, sizeof rules[i].name) == 0 &&
            ratelimit_priv_is_told(&res[j], &rules[j]))
            listed = j < i ? ratelimit_priv_binds(&res[i], &res[j])
                           : !ratelimit_priv_binds(&res[j], &res[i]);
    return listed;
}

RATELIMIT_API size_t ratelimit_http_rule_fields(const ratelimit_result *res,
                                                const ratelimit_rule *rules, size_t count,
                                                const void *partition, size_t partition_bytes,
                                                unsigned sets, char *buf, size_t buf_bytes)
{
    size_t i, best = count, field;
    ratelimit_priv_page p;
    ratelimit_priv_page_begin(&p, buf, buf_bytes);
    if (!res || !rules)
        count = best = 0;
    for (i = 0; i < count; i++)
        if (ratelimit_priv_is_told(&res[i], &rules[i]) &&
            (best == count || ratelimit_priv_binds(&res[i], &res[best])))
            best = i;
    if (best < count && (sets & RATELIMIT_HTTP_X) && ratelimit_priv_has_numbers(&res[best])) {
        ratelimit_priv_say_field(&p, "X-RateLimit-Limit: ", res[best].burst);
        ratelimit_priv_say_field(&p, "\r\nX-RateLimit-Remaining: ", res[best].remaining);
        ratelimit_priv_say_field(
            &p, "\r\nX-RateLimit-Reset: ", ratelimit_priv_seconds(res[best].reset_after_ns));
        ratelimit_priv_say(&p, "\r\n");
    }
    for (field = 0; field < 2 && (sets & RATELIMIT_HTTP_DRAFT); field++) {
        const char *before = field ? "RateLimit: " : "RateLimit-Policy: ";
        bool any = false;
        for (i = 0; i < count; i++) {
            uint32_t kind = rules[i].limit.kind;
            if (!ratelimit_priv_is_listed(res, rules, count, i) ||
                (!field && kind != RATELIMIT_PRIV_BUCKET && kind != RATELIMIT_PRIV_WINDOW))
                continue;
            ratelimit_priv_say(&p, any ? ", " : before);
            any = true;
            ratelimit_priv_say_string(&p, rules[i].name);
            if (field)
                ratelimit_priv_say_state(&p, &res[i], &rules[i].limit);
            else
                ratelimit_priv_say_policy(&p, &rules[i].limit);
            if (partition && partition_bytes) {
                ratelimit_priv_say(&p, ";pk=");
                ratelimit_priv_say_bytes(&p, (const unsigned char *)partition, partition_bytes);
            }
        }
        ratelimit_priv_say(&p, any ? "\r\n" : "");
    }
    if (best < count && (sets & RATELIMIT_HTTP_RETRY_AFTER) &&
        ratelimit_priv_retry_seconds(&res[best])) {
        ratelimit_priv_say_field(&p, "Retry-After: ", ratelimit_priv_retry_seconds(&res[best]));
        ratelimit_priv_say(&p, "\r\n");
    }
    return ratelimit_priv_page_end(&p);
}

RATELIMIT_API size_t ratelimit_http_fields(const ratelimit_result *res,
                                           const ratelimit_limit *limit, unsigned sets, char *buf,
                                           size_t buf_bytes)
{
    ratelimit_rule rule;
    memset(&rule, 0, sizeof rule);
    memcpy(rule.name, "default", 7);
    if (limit)
        rule.limit = *limit;
    return ratelimit_http_rule_fields(res, &rule, 1, NULL, 0, sets, buf, buf_bytes);
}

RATELIMIT_API int ratelimit_http_status(const ratelimit_result *res)
{
    if (!res)
        return 500;
    if (res->allowed)
        return 200;
    if (res->source == RATELIMIT_FROM_FALLBACK && res->retry_after_ns)
        return 429; /* the store failed, but a local bucket has refused */
    if (ratelimit_priv_is_bad(res->status))
        return 500;
    if (res->status == RATELIMIT_UNSUPPORTED) /* not a store that cannot do all or none? */
        return res->source == RATELIMIT_FROM_STORE ? 500 : 503;
    return res->status == RATELIMIT_FULL || res->status == RATELIMIT_CANCELED ||
                   res->status == RATELIMIT_STORE_FAILED
               ? 503
               : 429;
}

/* ---- metrics ---- */

/* A sample: the name of its family, the HELP of that (NULL: the family of the line before), a label
 * or "", and where its number is in a struct of counters. */
typedef struct ratelimit_priv_sample {
    const char *name, *help, *label;
    size_t offset;
} ratelimit_priv_sample;

static void ratelimit_priv_say_family(ratelimit_priv_page *p, const char *name, const char *help)
{
    size_t len = ratelimit_priv_len(name);
    bool total = len > 6 && memcmp(name + len - 6, "_total", 6) == 0;
    ratelimit_priv_say(p, "# HELP ");
    ratelimit_priv_say(p, name);
    ratelimit_priv_say(p, " ");
    ratelimit_priv_say(p, help);
    ratelimit_priv_say(p, "\n# TYPE ");
    ratelimit_priv_say(p, name);
    ratelimit_priv_say(p, total ? " counter\n" : " gauge\n");
}

/* labels: the caller's, "" if there are none. */
static void ratelimit_priv_say_samples(ratelimit_priv_page *p, const ratelimit_priv_sample *samples,
                                       size_t count, const void *counters, const char *labels)
{
    size_t i;
    for (i = 0; i < count; i++) {
        const ratelimit_priv_sample *s = &samples[i];
        const void *counter = (const unsigned char *)counters + s->offset;
        if (s->help)
            ratelimit_priv_say_family(p, s->name, s->help);
        ratelimit_priv_say(p, s->name);
        if (*s->label || *labels) {
            ratelimit_priv_say(p, "{");
            ratelimit_priv_say(p, s->label);
            ratelimit_priv_say(p, *s->label && *labels ? "," : "");
            ratelimit_priv_say(p, labels);
            ratelimit_priv_say(p, "}");
        }
        ratelimit_priv_say_field(p, " ", ratelimit_priv_load64((const uint64_t *)counter));
        ratelimit_priv_say(p, "\n");
    }
}

#  define RATELIMIT_PRIV_SAMPLES(p, samples, counters, labels)                                     \
    ratelimit_priv_say_samples(p, samples, sizeof(samples) / sizeof *(samples), counters, labels)
#  define RATELIMIT_PRIV_SAMPLE(type, field, name, help)                                           \
    {                                                                                              \
      "ratelimit_" name, help, "", offsetof(type, field)                                           \
    }
#  define RATELIMIT_PRIV_TOTAL(type, of, field, help)                                              \
    RATELIMIT_PRIV_SAMPLE(type, field, of #field "_total", help)
#  define RATELIMIT_PRIV_DECISION(field, by, help)                                                 \
    {                                                                                              \
      "ratelimit_tier_decisions_total", help, "by=\"" by "\"",                                     \
          offsetof(ratelimit_tier_counts, field)                                                   \
    }

/* All rules of one version: if a load ends meanwhile, once more, from where the rules began. The
 * format wants all samples of a family together, so the rules are walked once for each family. */
static void ratelimit_priv_say_rules(ratelimit_priv_page *p, ratelimit_rules *r, const char *labels)
{
    static const ratelimit_priv_sample families[] = {
        RATELIMIT_PRIV_TOTAL(ratelimit_rule, "rule_", allowed,
                             "Requests under the rule that could go on."),
        RATELIMIT_PRIV_TOTAL(ratelimit_rule, "rule_", refused, "Requests that the rule refused."),
        RATELIMIT_PRIV_TOTAL(
            ratelimit_rule, "rule_", shadow_refused,
            "Requests that the rule would have refused if it were not in shadow mode."),
        RATELIMIT_PRIV_TOTAL(ratelimit_rule, "rule_", failed,
                             "Requests that were decided without the store.")};
    const size_t begin = p->len;
    uint32_t version;
    do {
        ratelimit_rule rule;
        size_t f, i;
        version = ratelimit_priv_load32(&r->version);
        for (p->len = begin, f = 0; f < 4; f++)
            for (i = 0; ratelimit_rules_at(r, i, &rule); i++) {
                ratelimit_priv_sample s = families[f];
                char label[sizeof "rule=\"\"" + 2 * RATELIMIT_RULE_NAME_BYTES];
                const char *at;
                ratelimit_priv_page name;
                ratelimit_priv_page_begin(&name, label, sizeof label);
                ratelimit_priv_say(&name, "rule=\"");
                for (at = rule.name; *at; at++) {
                    ratelimit_priv_say(&name, *at == '"' || *at == '\\' ? "\\" : "");
                    ratelimit_priv_put(&name, at, 1);
                }
                ratelimit_priv_say(&name, "\"");
                (void)ratelimit_priv_page_end(&name);
                s.label = label;
                if (i)
                    s.help = NULL;
                ratelimit_priv_say_samples(p, &s, 1, &rule, labels);
            }
    } while (ratelimit_priv_load32(&r->version) != version);
}

static void ratelimit_priv_say_store(ratelimit_priv_page *p, const ratelimit_store *store,
                                     const char *labels)
{
    size_t at = p->len < p->bytes ? p->len : p->bytes;
    if (store->metrics)
        p->len += store->metrics(store, labels, p->bytes ? p->buf + at : NULL, p->bytes - at);
}

RATELIMIT_API size_t ratelimit_metrics(const ratelimit_limiter *l, const ratelimit_table *table,
                                       uint64_t now_ns, const char *labels_or_null, char *buf,
                                       size_t buf_bytes)
{
    static const ratelimit_priv_sample of_limiter[] = {
        RATELIMIT_PRIV_TOTAL(ratelimit_counts, "", allowed, "Decisions that let the caller go on."),
        RATELIMIT_PRIV_TOTAL(ratelimit_counts, "", refused, "Decisions that refused."),
        RATELIMIT_PRIV_TOTAL(ratelimit_counts, "", shadow_refused,
                             "Decisions that would have refused if shadow mode were off."),
        RATELIMIT_PRIV_TOTAL(ratelimit_counts, "", failed,
                             "Decisions that were made without the store."),
        RATELIMIT_PRIV_TOTAL(ratelimit_counts, "", bad,
                             "Requests that were refused because they are wrong.")};
    static const ratelimit_priv_sample of_tier[] = {
        RATELIMIT_PRIV_DECISION(stored, "store", "Decisions of the tier, by what decided."),
        RATELIMIT_PRIV_DECISION(leased, "lease", NULL),
        RATELIMIT_PRIV_DECISION(refused, "refusal_cache", NULL),
        RATELIMIT_PRIV_DECISION(fallback, "fallback", NULL),
        RATELIMIT_PRIV_DECISION(failed, "policy", NULL),
        RATELIMIT_PRIV_TOTAL(ratelimit_tier_counts, "tier_", calls, "Calls of the store."),
        RATELIMIT_PRIV_TOTAL(ratelimit_tier_counts, "tier_", failures,
                             "Calls of the store that failed.")};
    static const ratelimit_priv_sample of_table[] = {
        RATELIMIT_PRIV_SAMPLE(ratelimit_table_counts, capacity, "table_capacity",
                              "Keys that the table can hold."),
        RATELIMIT_PRIV_SAMPLE(ratelimit_table_counts, keys, "table_keys",
                              "Keys that the table holds."),
        RATELIMIT_PRIV_SAMPLE(ratelimit_table_counts, in_debt, "table_keys_in_debt",
                              "Keys with tokens spent."),
        RATELIMIT_PRIV_SAMPLE(ratelimit_table_counts, bytes, "table_bytes",
                              "Memory that the table uses."),
        RATELIMIT_PRIV_TOTAL(ratelimit_table_counts, "table_", evicted,
                             "Keys that were forgotten with tokens spent."),
        RATELIMIT_PRIV_TOTAL(ratelimit_table_counts, "table_", refused,
                             "New keys that were refused for want of room.")};
    const char *labels = labels_or_null ? labels_or_null : "";
    ratelimit_priv_page p;
    ratelimit_priv_page_begin(&p, buf, buf_bytes);
    if (l)
        RATELIMIT_PRIV_SAMPLES(&p, of_limiter, &l->counts, labels);
    if (l && l->store.decide == ratelimit_priv_tier_decide) {
        const ratelimit_tier *tier = (const ratelimit_tier *)l->store.self;
        RATELIMIT_PRIV_SAMPLES(&p, of_tier, &tier->counts, labels);
        ratelimit_priv_say_store(&p, &tier->store, labels);
    }
    if (l)
        ratelimit_priv_say_store(&p, &l->store, labels);
    if (table) {
        ratelimit_table_counts counts;
        ratelimit_table_stats(table, now_ns, &counts);
        RATELIMIT_PRIV_SAMPLES(&p, of_table, &counts, labels);
    }
    if (l && l->rules)
        ratelimit_priv_say_rules(&p, l->rules, labels);
    return ratelimit_priv_page_end(&p);
}

/* ---- log ---- */

RATELIMIT_API bool ratelimit_priv_log_pass(ratelimit_priv_log *log, const ratelimit_limit *limit,
                                           uint64_t now_ns, uint32_t *missed)
{
    uint32_t before;
    bool pass;
    if (!log || !missed)
        return false;
#  if defined(RATELIMIT_PRIV_SHARED)
    pass = ratelimit_bucket_take_shared(&log->bucket, limit, 1, now_ns, NULL);
#  else
    pass = ratelimit_bucket_take(&log->bucket, limit, 1, now_ns, NULL);
#  endif
    RATELIMIT_PRIV_ENTER_PLAIN();
    do
        before = ratelimit_priv_load32(&log->missed);
    while (!ratelimit_priv_swap32(&log->missed, before, pass ? 0 : before + 1));
    RATELIMIT_PRIV_LEAVE_PLAIN();
    *missed = pass ? before : 0;
    return pass;
}

/* ---- >>implementation: ticks --------------------------------------------------------------------

   A bucket in ticks is the tick at which it is full again. What it owes is full - now, modulo 2^32:
   at most burst x interval while that tick lies ahead; a great number once it lies behind. A late
   reading may find up to burst x interval more, so what is twice as long lies behind.

   An example: interval 100, burst 3; so room is 201. At tick 5,000 three takes make full 5,100,
   5,200, 5,300: before each, 0, 100, 200 are owed, all below 201. A fourth finds 300, and is
   refused. At tick 5,099 there are 201 left: still refused. At 5,100 there are 200: taken. At tick
   9,000 full - now is 2^32 - 3,600, a great number: nothing is owed. After a whole turn of the
   counter less 100 ticks it looks like 100 again; that is the one weakness. */

RATELIMIT_API bool ratelimit_tick_take(uint32_t *full, const ratelimit_tick_limit *limit,
                                       uint32_t now)
{
    uint32_t debt;
    if (!full || !limit)
        return false;
    debt = *full - now;
    if (debt >= 2 * (limit->room + limit->interval))
        debt = 0;
    if (debt >= limit->room)
        return false;
    *full = now + debt + limit->interval;
    return true;
}

RATELIMIT_API uint64_t ratelimit_tick_clock_ns(ratelimit_tick_clock *clock, uint32_t ticks,
                                               unsigned bits, uint64_t hz)
{
    uint64_t parts;
    uint32_t passed;
    if (!clock || bits < 1 || bits > 32 || !hz || hz > RATELIMIT_PRIV_MAX)
        return RATELIMIT_FOREVER;
    passed = (ticks - clock->last) & (UINT32_MAX >> (32 - bits));
    clock->last = ticks;
    parts = clock->rest + passed * RATELIMIT_SECOND; /* below 2^62 + 2^62 */
    clock->ns += parts / hz;
    clock->rest = parts % hz;
    return clock->ns;
}

#  ifdef __cplusplus
}
#    if defined(__GNUC__)
#      pragma GCC diagnostic pop
#    endif
#  endif
#endif /* RATELIMIT_IMPLEMENTATION */

/* CHANGES

   1.0.0 (2026-11-28) First version.


   LICENCE

   This software is available under two licences: choose the one you prefer.

   A. MIT

   Copyright (c) 2026 The ratelimit.h authors

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
   associated documentation files (the "Software"), to deal in the Software without restriction,
   including without limitation the rights to use, copy, modify, merge, publish, distribute,
   sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
   furnished to do so, subject to the following conditions: The above copyright notice and this
   permission notice shall be included in all copies or substantial portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
   NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
   DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

   B. Public domain (www.unlicense.org)

   This is free and unencumbered software released into the public domain. Anyone is free to copy,
   modify, publish, use, compile, sell, or distribute this software, either in source code form or
   as a compiled binary, for any purpose, commercial or non-commercial, and by any means. In
   jurisdictions that recognize copyright laws, the author or authors of this software dedicate any
   and all copyright interest in the software to the public domain. THE SOFTWARE IS PROVIDED "AS
   IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
   WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT
   SHALL THE AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
   CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE
   OR OTHER DEALINGS IN THE SOFTWARE.
*/

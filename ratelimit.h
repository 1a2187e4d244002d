/* ratelimit.h - v1.0.0 - rate limiting in one header - MIT or public domain, see end of file

   Do this in exactly one C or C++ file, and include the header plainly everywhere else:

       #define RATELIMIT_IMPLEMENTATION
       #include "ratelimit.h"

   No malloc, no globals, no I/O, no floating point, no dependency. Time is an argument. C99 and
   C++11.


   CONTENTS

       QUICK START         a whole program
       WHICH CALL          one line for each
       CONCEPTS            words, units, arithmetic, what happens when clocks misbehave
       OPTIONS             every macro, where to define it, its default
       MEMORY, THREADS, ERRORS
       >>limits            interface: what is allowed
       >>bucket            interface: one subject, 16 bytes
       >>table             interface: many subjects by key, in your memory
       >>store             interface: who decides
       >>limiter           interface: a store with a clock, a failure policy, waiting, counters
       >>implementation    the same layers again, with code
       CHANGES, LICENCE


   QUICK START

       #define RATELIMIT_IMPLEMENTATION
       #include "ratelimit.h"
       #include <stdio.h>

       static unsigned char memory[RATELIMIT_TABLE_BYTES(10000)];
       static const ratelimit_limit logins = RATELIMIT_LIMIT(5, RATELIMIT_MINUTE, 10);

       int main(void)
       {
           ratelimit_table *table;
           ratelimit_limiter limiter = {0};
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
       ratelimit_table_take     a table with the time given: no clock is read, no limiter needed
       ratelimit_bucket_take    one subject in 16 bytes of your own struct, no table needed


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

       full         when the bucket will be full again; one never touched is full
       debt         max(0, full - now)                 0 is full, window is empty
       interval     per / tokens                       the time one token takes to come back
       window       burst x interval
       take n       passes if debt + n x interval <= window;
                    then full = max(full, now) + n x interval
       retry_after  debt + n x interval - window       reset_after = debt
       remaining    floor((window - debt) / interval)

   Exact. An interval is a whole number of ns and a fraction r/d with d up to 2^24; a debt is kept
   as whole ns and a 24-bit fraction from which its numerator over d is recovered, so nothing
   drifts: at 7 per second the 70th refill comes at 10 s, neither before nor after. Only an interval
   whose reduced fraction needs a larger d (1,000,000,007 per second) is rounded, up, by less than
   one part in a million; a limit that would need more is BAD_LIMIT. remaining is rounded down,
   retry_after and reset_after up: a call at retry_after passes and one ns earlier does not.

   Refusals. A refused take and a peek leave the bucket as it was (see "seen" below for the one
   exception, which no answer depends on while the clock runs forward).

   Clock. Any origin, ns, uint64_t; time 0 and times near the top are times like any other. A time a
   little earlier than one seen before is lateness: the debt is what the times say and nothing is
   forgiven, so going back and forth mints nothing. A bucket also remembers when it was last seen
   (to 1/32 of its debt then). A request that would be refused, at a time more than step_ns (10 s)
   before that, has met a clock that was set back: the debt becomes what it was when last seen, at
   most the window, and is stored. So a key is usable again within one window whatever the jump.
   In a table a key may have been forgotten since it was full again; to a caller whose time lies
   before that, it is new.

   Changed limit. A bucket remembers the interval it was last charged at. When a request brings
   another one, tokens spent stay spent: whole tokens exactly up to a million of them, all else to
   one part in a million of the tokens spent. More spent than the new burst counts as the whole
   burst. The change is stored at once, even by a refusal; peek only reports it.

   Fixed window. The same bucket, asked at the end of the current window (aligned to the clock's
   origin) instead of now, so that a used-up window leaves nothing over into the next. retry_after
   and reset_after are until that end. reserve and refund are UNSUPPORTED there: the window may have
   turned. The end of a window is
   not remembered: when its period is changed, what was spent counts as far as it reaches past the
   end of the new one; from a window to a bucket, the time to its end counts as spent, too.


   OPTIONS

       macro                     where  default    effect
       RATELIMIT_IMPLEMENTATION  once   -          the code
       RATELIMIT_STATIC          all    off        everything static: each file has its own copy
       RATELIMIT_API             all    extern     linkage of every public function
       RATELIMIT_NO_CLOCK        all    off        no clock_gettime or nanosleep, no
                                                     ratelimit_clock_ns
       RATELIMIT_NO_THREADS      impl   off        no atomics: one thread at a time for everything
       RATELIMIT_LOCK(lock)      impl   atomics    your own lock round a decision (interrupts off,
       RATELIMIT_UNLOCK(lock)    impl   atomics      say); lock is a uint32_t * for your use;
                                                     they nest, and are undone in reverse order
       RATELIMIT_TAKEOVER_MS     impl   200        how long a lock stands still until its holder
                                                     counts as dead, 1 to 3,600,000
       RATELIMIT_STEP_NS         impl   10 s       step_ns of buckets, and of tables by default
       RATELIMIT_MAX_ALL         impl   64         most requests in one all-or-none decision, 1 to
                                                     4096; about 90 bytes of stack each
       RATELIMIT_NO_TEXT         impl   off        status_text returns "" (saves its strings)

   once: in one file. all: in every file that includes the header. impl: where the code is.
   Where a chip has no lock-free compare-and-swap (Cortex-M0) RATELIMIT_NO_THREADS is set by itself.
   Where it is neither POSIX nor Windows, RATELIMIT_NO_CLOCK is set by itself.


   MEMORY, THREADS, ERRORS

   Memory is yours: nothing is allocated, nothing is kept outside what you pass in. A bucket is 16
   bytes, all zero is full. A table has no pointers, so it may be static, on the heap, in shared
   memory or in a mapped file.

   Threads. Limits are read-only and shared freely. A plain bucket has one caller at a time;
   ratelimit_bucket_take_shared, the table, the stores here and the limiter may be called by any
   number of threads, and the table by any number of processes. A decision is computed first and
   committed under a lock of three stores; a refusal takes no lock. If a process dies inside it the
   lock is taken over after RATELIMIT_TAKEOVER_MS; what it was about to charge may be lost, nothing
   else. A live thread that is stopped for longer than that, between two of those stores, while
   others want the same line, may undo what they charged there meanwhile.

   Errors. A decision is a bool, true only if the caller may go on, so an error can't get through an
   if by accident; result.status says why. Zero is never "unlimited".
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
#  define RATELIMIT_VERSION_MAJOR 1
#  define RATELIMIT_VERSION_MINOR 0
#  define RATELIMIT_VERSION_PATCH 0
#  define RATELIMIT_VERSION       10000 /* major * 10000 + minor * 100 + patch */
#  define RATELIMIT_VERSION_TEXT  "1.0.0"

#  if defined(__GNUC__)
#    define RATELIMIT_PRIV_UNUSED   __attribute__((unused))
#    define RATELIMIT_PRIV_MUST_USE __attribute__((warn_unused_result))
#    define RATELIMIT_PRIV_APART    __attribute__((noinline))
#    define RATELIMIT_PRIV_INLINE   inline __attribute__((always_inline))
#  else
#    define RATELIMIT_PRIV_UNUSED
#    define RATELIMIT_PRIV_APART
#    define RATELIMIT_PRIV_INLINE inline
#    define RATELIMIT_PRIV_MUST_USE
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
#    define RATELIMIT_PRIV_CAST(type, x) static_cast<type>(x)
extern "C" {
#  else
#    define RATELIMIT_PRIV_CAST(type, x) ((type)(x))
#  endif

/* ---- >>limits -------------------------------------------------------------------------------- */

#  define RATELIMIT_NANOSECOND  UINT64_C(1)
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
    RATELIMIT_DENIED,       /* not now; retry_after says when */
    RATELIMIT_NEVER,        /* no waiting helps: n is above the burst */
    RATELIMIT_FULL,         /* the table has no room for a new key (RATELIMIT_REFUSE) */
    RATELIMIT_TIMEOUT,      /* the wait would be longer than accepted; nothing was taken */
    RATELIMIT_CANCELED,     /* a wait was cancelled; what it had reserved was given back */
    RATELIMIT_BAD_KEY,      /* NULL or empty key */
    RATELIMIT_BAD_LIMIT,    /* NULL, zero or overflowing limit */
    RATELIMIT_BAD_COUNT,    /* n is 0 where tokens are asked for */
    RATELIMIT_BAD_ARGUMENT, /* NULL, unknown operation, something out of range */
    RATELIMIT_SYNTAX,       /* text is not in the grammar */
    RATELIMIT_NO_MEMORY,    /* the memory passed in is too small */
    RATELIMIT_STORE_FAILED, /* the store could not decide; the limiter's policy did */
    RATELIMIT_UNSUPPORTED,  /* this store or kind of limit can't do that */
    RATELIMIT_BUSY,         /* held by others (semaphores and locks) */
    RATELIMIT_LOST          /* was held, no longer is (semaphores and locks) */
} ratelimit_status;

/* ratelimit_status_text  A short English text for status, static; "unknown status" for other
 * numbers. */
RATELIMIT_API const char *ratelimit_status_text(ratelimit_status status);

/* ratelimit_limit  What is allowed, with everything precomputed that a decision needs: 64 bytes of
 * plain data that may be copied, shared and static const. All zero is BAD_LIMIT. Make one with the
 * macros or functions below; the first three fields are for you to read, the rest belongs to the
 * implementation. */
typedef struct ratelimit_limit {
    uint64_t tokens;        /* per per_ns */
    uint64_t per_ns;        /* the period, ns */
    uint64_t burst;         /* tokens */
    uint64_t interval_ns;   /* per / tokens, whole ns */
    uint64_t window_ns;     /* burst x interval, whole ns */
    uint64_t inverse;       /* ceil(2^63 / parts) */
    uint32_t interval_part; /* the rest of the interval, in 1/parts ns */
    uint32_t window_part;   /* the rest of the window, in 1/parts ns */
    uint32_t parts;         /* 1 to 2^24 */
    uint32_t code;          /* kind (top 3 bits) and a 28-bit code of kind and interval */
} ratelimit_limit;

/* RATELIMIT_LIMIT, RATELIMIT_WINDOW, RATELIMIT_UNLIMITED  Constant initialisers of a
 * ratelimit_limit:
 *
 *     static const ratelimit_limit api = RATELIMIT_LIMIT(100, RATELIMIT_SECOND, 200);
 *
 * tokens   1 to 2^63 - 1, per per_ns
 * per_ns   1 to 2^62 ns
 * burst    1 to 2^63 - 1 tokens, such that burst x per_ns / tokens is at most 2^62 ns (146 years)
 * Anything else is BAD_LIMIT at every call. RATELIMIT_WINDOW is a fixed window aligned to the
 * clock's origin; its burst is tokens. RATELIMIT_UNLIMITED lets everything through and takes no
 * room in a table. Arguments must be constants. */
#  define RATELIMIT_LIMIT(tokens, per_ns, burst)                                                   \
    RATELIMIT_PRIV_LIMIT(RATELIMIT_PRIV_BUCKET, RATELIMIT_PRIV_CAST(uint64_t, tokens),             \
                         RATELIMIT_PRIV_CAST(uint64_t, per_ns),                                    \
                         RATELIMIT_PRIV_CAST(uint64_t, burst))
#  define RATELIMIT_WINDOW(tokens, per_ns)                                                         \
    RATELIMIT_PRIV_LIMIT(RATELIMIT_PRIV_WINDOW, RATELIMIT_PRIV_CAST(uint64_t, tokens),             \
                         RATELIMIT_PRIV_CAST(uint64_t, per_ns),                                    \
                         RATELIMIT_PRIV_CAST(uint64_t, tokens))
#  define RATELIMIT_UNLIMITED                                                                      \
    {                                                                                              \
      UINT64_MAX, 0, UINT64_MAX, 0, 0, 0, 0, 0, 1,                                                 \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_UNLIMITED) << 29                            \
    }

/* ratelimit_limit_make, ratelimit_window_make  The same from values known at run time, same ranges.
 * A bad one is all zero, which is BAD_LIMIT. Threads: any. Cost: a few divisions. */
RATELIMIT_API ratelimit_limit ratelimit_limit_make(uint64_t tokens, uint64_t per_ns,
                                                   uint64_t burst);
RATELIMIT_API ratelimit_limit ratelimit_window_make(uint64_t tokens, uint64_t per_ns);

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
 * be NULL) is the offset of the first byte that is wrong, for SYNTAX and BAD_LIMIT; text_len if it
 * ended too early. */
RATELIMIT_API ratelimit_status ratelimit_limit_parse_n(ratelimit_limit *out, const char *text,
                                                       size_t text_len, size_t *fault_at);

/* ratelimit_limit_format  Writes limit as text that parse reads back to an equal limit: "10/s burst
 * 20", "100/m window", "unlimited"; a bad one is "bad limit". Returns the length without the NUL.
 * If buf_bytes is not above that, buf is set to "" (if there is any room) and nothing else is
 * written: never cut off silently. 80 bytes are always enough. */
RATELIMIT_API size_t ratelimit_limit_format(const ratelimit_limit *limit, char *buf,
                                            size_t buf_bytes);

/* ratelimit_ticks_to_ns  ticks of a counter that runs at hz, as ns, rounded down; RATELIMIT_FOREVER
 * if that does not fit in 64 bits or hz is 0. No overflow on the way. */
RATELIMIT_API uint64_t ratelimit_ticks_to_ns(uint64_t ticks, uint64_t hz);

/* ---- >>bucket -------------------------------------------------------------------------------- */

typedef enum ratelimit_op {
    RATELIMIT_TAKE = 0,   /* n tokens now or none */
    RATELIMIT_TAKE_UP_TO, /* as many as there are, at most n; allowed if at least one, see taken */
    RATELIMIT_PEEK,       /* the answer of TAKE, nothing changed; n of 0 counts as 1 */
    RATELIMIT_RESERVE,    /* n tokens now or later, if the wait (wait_ns) is at most max_wait_ns */
    RATELIMIT_CHARGE,     /* n tokens even into debt; n may be above the burst */
    RATELIMIT_REFUND,     /* n tokens back, never above the burst */
    RATELIMIT_BLOCK,      /* no token for max_wait_ns; never shortens; windows: to a window's end */
    RATELIMIT_RESET       /* full again, as if never seen */
} ratelimit_op;

typedef struct ratelimit_request {
    const void *key; /* any bytes; buckets have none */
    size_t key_len;  /* at least 1 */
    const ratelimit_limit *limit;
    uint64_t n;           /* tokens, at least 1 except for peek, block and reset */
    ratelimit_op op;      /* 0 is take */
    uint64_t max_wait_ns; /* reserve: the longest wait accepted; block: how long, 1 to 2^62 */
} ratelimit_request;

/* Who gave the answer: the store, or what stands in for it. */
typedef enum ratelimit_source {
    RATELIMIT_FROM_STORE = 0,
    RATELIMIT_FROM_LEASE,
    RATELIMIT_FROM_REFUSAL_CACHE,
    RATELIMIT_FROM_FALLBACK, /* the store failed: the limiter's fallback store */
    RATELIMIT_FROM_POLICY    /* the store failed: the limiter's policy, open or closed */
} ratelimit_source;

typedef struct ratelimit_result {
    bool allowed;            /* go on; for charge, refund, block, reset: it is done */
    ratelimit_status status; /* OK if allowed, else why not (but see the limiter's options) */
    uint64_t limit;          /* tokens: the burst; UINT64_MAX if unlimited */
    uint64_t remaining;      /* tokens that could be taken after this */
    uint64_t taken;          /* tokens taken by this, or given back by refund */
    uint64_t retry_after_ns; /* until the refused request would pass, or RATELIMIT_FOREVER */
    uint64_t reset_after_ns; /* until the bucket is full */
    uint64_t wait_ns; /* reserve: how long to wait; charge, block: until a take of one passes */
    ratelimit_source source;
} ratelimit_result; /* all fields are set at every return; 0 where there is nothing to say */

/* ratelimit_bucket  The state of one subject. All zero is a full bucket. Copy and compare it
 * freely. rest: bits 0-23 fraction of a ns, 24-51 code of the interval, 52 bit 64 of full_ns,
 * 53-63 debt when last seen. */
typedef struct ratelimit_bucket {
    uint64_t full_ns; /* when it is full again, low 64 bits */
    uint64_t rest;
} ratelimit_bucket;

/* ratelimit_bucket_take  Takes n tokens from *b at now_ns if all n are there, else none.
 *
 * b        one bucket, zeroed before its first use
 * n        1 to limit->burst can pass; more is NEVER, 0 is BAD_COUNT
 * now_ns   ns, any origin, see CONCEPTS for clocks that go back
 * out      may be NULL
 *
 * Returns true if n tokens were taken. False: DENIED, NEVER, BAD_COUNT, BAD_LIMIT, BAD_ARGUMENT (b
 * is NULL).
 * Threads: one caller at a time per bucket.   Cost: no division for one token when out is NULL.
 * Source:  GCRA (ITU-T I.371). */
RATELIMIT_API bool ratelimit_bucket_take(ratelimit_bucket *b, const ratelimit_limit *limit,
                                         uint64_t n, uint64_t now_ns,
                                         ratelimit_result *out_or_null);

/* ratelimit_bucket_decide  Any operation on one bucket: req->op, req->n, req->limit,
 * req->max_wait_ns count, req->key does not.
 *
 * Returns result.allowed. False besides the above: TIMEOUT (reserve; retry_after_ns is then the
 * wait it would have taken), UNSUPPORTED (reserve or refund on a window; block on an unlimited
 * limit), BAD_ARGUMENT (req is NULL, unknown op, block for 0). Threads, cost: as take. */
RATELIMIT_API bool ratelimit_bucket_decide(ratelimit_bucket *b, const ratelimit_request *req,
                                           uint64_t now_ns, ratelimit_result *out_or_null);

/* ratelimit_bucket_take_shared, ratelimit_bucket_decide_shared  The same, safe between threads, and
 * between processes if *b lies in shared memory. A bucket used by them must only be used by them.
 * Needs lock-free 64-bit atomics (any 64-bit chip, i686, ARMv7-A); where there are none, and with
 * RATELIMIT_NO_THREADS, they are the plain calls: use a table with RATELIMIT_LOCK there instead. A
 * refusal writes nothing. */
RATELIMIT_API bool ratelimit_bucket_take_shared(ratelimit_bucket *b, const ratelimit_limit *limit,
                                                uint64_t n, uint64_t now_ns,
                                                ratelimit_result *out_or_null);
RATELIMIT_API bool ratelimit_bucket_decide_shared(ratelimit_bucket *b, const ratelimit_request *req,
                                                  uint64_t now_ns, ratelimit_result *out_or_null);

/* ---- >>table --------------------------------------------------------------------------------- */

/* ratelimit_table  Buckets by key, in memory of yours: a 128-byte head, then lines of 64 bytes with
 * three buckets each. Keys are not stored, only a 32-bit tag of each: in a table with n live keys a
 * new key is mistaken for another with a chance of at most 24 in 2^32, whatever n is, and nobody
 * can choose it who does not know the seed (SipHash-1-3). */
typedef struct ratelimit_table ratelimit_table;

/* What happens to a new key when all the places it may use are taken by keys in debt. INHERIT: the
 * newcomer takes over the key with the least debt, debt and all, so that nobody ever gets more than
 * their limit, however many keys there are (unless refunds or changed limits lower a debt). */
typedef enum ratelimit_full {
    RATELIMIT_EVICT = 0,       /* forget the one with the least debt (ties: seen longest ago) */
    RATELIMIT_EVICT_LAST_SEEN, /* forget the one seen longest ago */
    RATELIMIT_INHERIT,
    RATELIMIT_REFUSE /* the newcomer is FULL */
} ratelimit_full;

typedef struct ratelimit_table_options {
    uint64_t seed[2];         /* 16 random secret bytes; both 0: made from addresses and the clock,
                                 which an attacker may guess */
    ratelimit_full when_full; /* default RATELIMIT_EVICT */
    uint64_t step_ns;         /* a clock set back by more is forgiven, see CONCEPTS;
                                 0: RATELIMIT_STEP_NS; RATELIMIT_FOREVER: never */
} ratelimit_table_options;

typedef struct ratelimit_table_counts {
    uint64_t capacity; /* keys it can hold */
    uint64_t keys;     /* live: in debt, or with something in flight */
    uint64_t in_debt;  /* of them, keys with tokens spent */
    uint64_t evicted;  /* since init: forgotten in debt, for a newcomer or by sweep's idle time */
    uint64_t refused;  /* since init: newcomers for whom there was no room */
    uint64_t bytes;    /* memory the table uses */
} ratelimit_table_counts;

/* RATELIMIT_TABLE_BYTES, ratelimit_table_bytes  The memory for max_keys keys in debt at once, such
 * that fewer than one in 1,000 of them is forced out: twice as many places, 43 bytes a key. The
 * macro is for static memory. The function returns 0 if max_keys is 0 or too many for size_t or for
 * the table (2^32 blocks). Both agree. 63 bytes of it are for alignment. */
#  define RATELIMIT_TABLE_BYTES(max_keys)                                                          \
    (RATELIMIT_PRIV_CAST(size_t, RATELIMIT_PRIV_HEAD_BYTES) + 63u +                                \
     RATELIMIT_PRIV_LINES(RATELIMIT_PRIV_CAST(size_t, max_keys)) * 64u)
RATELIMIT_API size_t ratelimit_table_bytes(size_t max_keys);

/* ratelimit_table_init  Makes an empty table in memory, which may have any alignment and any
 * content.
 *
 * bytes    the table uses as many whole lines as fit
 * options  NULL: all defaults
 *
 * Returns RATELIMIT_OK and *out; NO_MEMORY if not even one line fits; BAD_ARGUMENT for NULL or an
 * unknown policy. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status
ratelimit_table_init(ratelimit_table **out, void *memory, size_t bytes,
                     const ratelimit_table_options *options_or_null);

/* ratelimit_table_attach  Uses a table that is already in memory: made by another process in shared
 * memory, or by an earlier run in a mapped file. memory must have the alignment (modulo 64) that it
 * had for init; any page-aligned mapping does.
 *
 * Returns RATELIMIT_OK and *out; BAD_ARGUMENT if there is no table, or of another version or byte
 * order, or its head is damaged; NO_MEMORY if the table is larger than bytes. The bits of its
 * buckets are not checked: no value of them can do harm. Times must go on from the same clock;
 * after a restart of the machine that means a wall clock. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status ratelimit_table_attach(ratelimit_table **out,
                                                                              void *memory,
                                                                              size_t bytes);

/* ratelimit_table_take  Takes n tokens of key at now_ns, or none. Arguments and results as
 * ratelimit_bucket_take; besides, BAD_KEY (NULL or empty) and FULL. Threads: any, also in several
 * processes. Cost: one cache line if the key is in its home line, at most eight neighbouring ones.
 * */
RATELIMIT_API bool ratelimit_table_take(ratelimit_table *t, const void *key, size_t key_len,
                                        const ratelimit_limit *limit, uint64_t n, uint64_t now_ns,
                                        ratelimit_result *out_or_null);

/* How a batch is decided. */
typedef enum ratelimit_mode {
    RATELIMIT_EACH = 0, /* each request on its own */
    RATELIMIT_ALL       /* all or none, in order; a key may come twice */
} ratelimit_mode;

/* ratelimit_table_decide  Decides count requests at now_ns into res[0..count-1].
 *
 * EACH: memory is fetched ahead, so a batch of 32 cold keys costs little more than a few of them.
 * ALL: if any request is refused none is carried out. Then allowed is false in every result; status
 * says which refused, with their own retry_after_ns; those that would have passed have status OK,
 * taken 0 and the longest retry_after_ns of the batch. The operations may differ. More than
 * RATELIMIT_MAX_ALL: BAD_ARGUMENT in every result. Threads: any. */
RATELIMIT_API void ratelimit_table_decide(ratelimit_table *t, const ratelimit_request *req,
                                          ratelimit_result *res, size_t count, ratelimit_mode mode,
                                          uint64_t now_ns);

/* ratelimit_table_sweep  Drops keys that are full again, which loses nothing (their places are
 * reused anyway; sweeping only makes them countable). idle_ns above 0 also drops keys in debt that
 * nobody has asked for in longer than that: this loses their debt and is counted as evicted. A
 * refusal counts as asking; when that was is known to 1/32 of the debt. Returns how many were
 * dropped. */
RATELIMIT_API size_t ratelimit_table_sweep(ratelimit_table *t, uint64_t now_ns, uint64_t idle_ns);

/* ratelimit_table_stats  Counts at now_ns, by reading every line. Threads: any; each number is
 * right at some moment. */
RATELIMIT_API void ratelimit_table_stats(const ratelimit_table *t, uint64_t now_ns,
                                         ratelimit_table_counts *out);

/* ratelimit_table_acquire  One more in flight for key, if fewer than `most` are.
 *
 * most     1 to 2^24 - 1
 * ttl_ns   1 to 2^62: if nothing is acquired for key in that long, all its holders count as gone,
 *          so that holders that crashed can't keep their places for good
 *
 * Returns true if acquired: call release once. False: enough are in flight, or no room (counted in
 * refused; keys in flight are never forgotten before their time, keys in debt only under the two
 * EVICT policies), or bad arguments. A key in flight is apart from the same key with a limit.
 * Threads: any. */
RATELIMIT_API bool ratelimit_table_acquire(ratelimit_table *t, const void *key, size_t key_len,
                                           uint32_t most, uint64_t ttl_ns, uint64_t now_ns);

/* ratelimit_table_release  Ends one acquire. RATELIMIT_OK; RATELIMIT_LOST if nothing was in flight
 * (released twice, its time was over, or evicted); BAD_KEY, BAD_ARGUMENT. */
RATELIMIT_API ratelimit_status ratelimit_table_release(ratelimit_table *t, const void *key,
                                                       size_t key_len, uint64_t now_ns);

/* ---- >>store --------------------------------------------------------------------------------- */

/* ratelimit_clock  A clock: ns since any origin. */
typedef uint64_t (*ratelimit_clock)(void *self);

#  if !defined(RATELIMIT_NO_CLOCK)
/* ratelimit_clock_ns  The platform's steady clock, which also counts while the machine sleeps:
 * CLOCK_BOOTTIME on Linux, else CLOCK_MONOTONIC; the performance counter on Windows. Not comparable
 * between machines, starts again at boot. */
RATELIMIT_API uint64_t ratelimit_clock_ns(void);
#  endif

/* ratelimit_store  Who decides. decide fills all of res[0..count-1] for req[0..count-1]; a store
 * that can't do RATELIMIT_ALL answers UNSUPPORTED; one that is out of reach STORE_FAILED. It never
 * blocks for ever. */
typedef struct ratelimit_store {
    void *self;
    void (*decide)(void *self, const ratelimit_request *req, ratelimit_result *res, size_t count,
                   ratelimit_mode mode);
    void (*close)(void *self); /* may be NULL */
    ratelimit_clock clock; /* may be NULL; the store's own: the limiter measures waits with it */
    void *clock_self;
    /* May be NULL. Else the limiter calls it instead of decide, passing the clock above. */
    void (*decide_at)(void *self, const ratelimit_request *req, ratelimit_result *res, size_t count,
                      ratelimit_mode mode, ratelimit_clock clock, void *clock_self);
} ratelimit_store;

/* ratelimit_table_store  A table as a store. clock NULL: ratelimit_clock_ns (STORE_FAILED at every
 * call if compiled out). A clock of your own stands in the store; the last one is also noted in the
 * table's head, for callers of store.decide, who therefore must not use different clocks on one
 * table (STORE_FAILED if another program's is found there). There is no close: the memory is yours.
 * */
RATELIMIT_API ratelimit_store ratelimit_table_store(ratelimit_table *t,
                                                    ratelimit_clock clock_or_null,
                                                    void *clock_self);

/* RATELIMIT_RECORD_BYTES  What the compare-and-swap store keeps per key: little-endian, the same on
 * every machine. Bytes 0-7 when the key is full again (ns), 8-15 as ratelimit_bucket.rest, 16-19
 * "RL1" and a NUL, 20-23 number of writes. */
#  define RATELIMIT_RECORD_BYTES 24

/* ratelimit_cas  A database with a conditional update, as a store: SQL (UPDATE ... WHERE record =
 * old), memcached (gets, cas), etcd (txn), DynamoDB or Tablestore (conditional update). The
 * arithmetic runs here. Fill in, then ratelimit_cas_store.
 *
 * load   1: found, all 24 bytes written to record; 0: no such key; below 0: failed
 * swap   puts record if the key still holds exactly old (NULL: if there is still no such key).
 *        1: done; 0: it changed, try again; below 0: failed. After ttl_ns the record may be
 *        deleted: it then says no more than none. ttl_ns 0: delete it.
 * clock  must be common to all who share the database, so usually a wall clock or the database's
 */
typedef struct ratelimit_cas {
    void *self; /* passed to load and swap */
    int (*load)(void *self, const void *key, size_t key_len, unsigned char *record);
    int (*swap)(void *self, const void *key, size_t key_len, const unsigned char *old_or_null,
                const unsigned char *record, uint64_t ttl_ns);
    ratelimit_clock clock; /* required */
    void *clock_self;
    uint32_t tries;   /* swaps per decision before STORE_FAILED; 0: 16 */
    uint64_t step_ns; /* as ratelimit_table_options.step_ns */
} ratelimit_cas;

/* ratelimit_cas_store  cas must stay where it is while the store is in use. ALL is UNSUPPORTED for
 * more than one request. A record that is no record of ours is STORE_FAILED and left alone.
 * Threads: as load and swap. A refusal does not swap. */
RATELIMIT_API ratelimit_store ratelimit_cas_store(ratelimit_cas *cas);

/* ---- >>limiter ------------------------------------------------------------------------------- */

/* Who decides when the store failed. */
typedef enum ratelimit_failure {
    RATELIMIT_FAIL_OPEN = 0, /* let through, as services want */
    RATELIMIT_FAIL_CLOSED,   /* refuse */
    RATELIMIT_FAIL_LOCAL     /* ask limiter.fallback; if it fails too, refuse */
} ratelimit_failure;

typedef struct ratelimit_counts {
    uint64_t allowed;        /* decisions that let the caller go on, however they came about */
    uint64_t refused;        /* decisions that did not */
    uint64_t shadow_refused; /* of allowed: would have been refused, but for shadow mode */
    uint64_t failed;         /* decisions made by the failure policy */
    uint64_t bad;            /* of refused: BAD_ statuses, a caller's mistakes */
} ratelimit_counts;

/* ratelimit_limiter  A store with a failure policy, waiting, counters and a hook. Zero it, set the
 * options you want, then ratelimit_init. It must stay where it is while in use. */
typedef struct ratelimit_limiter {
    ratelimit_store store; /* set by ratelimit_init */
    /* Options: all may stay zero. */
    ratelimit_failure
        on_failure;           /* who decides if the store fails; the status stays STORE_FAILED */
    ratelimit_store fallback; /* needed by RATELIMIT_FAIL_LOCAL: any store, usually a table */
    bool shadow;              /* decide, count and report (status), but allow what was refused */
    void (*hook)(void *self, const ratelimit_request *req, const ratelimit_result *res);
    void *hook_self; /* hook is called with each decision */
    bool (*sleep)(void *self, uint64_t ns);
    void *sleep_self;      /* sleep sleeps; false: cancel the wait; NULL: the platform's */
    ratelimit_clock clock; /* measures waits; NULL: the store's, else ratelimit_clock_ns */
    void *clock_self;
    uint64_t poll_max_ns; /* longest pause between polls of a store that can't reserve; 0: 1 s */
    /* The rest is the limiter's own. */
    ratelimit_counts counts;
    uint32_t canceled, jitter;
} ratelimit_limiter;

/* ratelimit_init  Makes *l ready to decide through store. Options set before stay. Returns
 * RATELIMIT_OK; BAD_ARGUMENT if l or store.decide is NULL, or on_failure is unknown or
 * RATELIMIT_FAIL_LOCAL without a fallback. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status ratelimit_init(ratelimit_limiter *l,
                                                                      ratelimit_store store);

/* ratelimit_allow, ratelimit_allow_n  May key (a NUL-terminated text) go on? Takes 1 or n tokens
 * now or none. False for any error but a failed store, which the policy decides. Threads: any, as
 * for all calls below but init and close. */
RATELIMIT_API bool ratelimit_allow(ratelimit_limiter *l, const char *key,
                                   const ratelimit_limit *limit);
RATELIMIT_API bool ratelimit_allow_n(ratelimit_limiter *l, const char *key,
                                     const ratelimit_limit *limit, uint64_t n);

/* ratelimit_take  One request of any operation. Returns result.allowed. */
RATELIMIT_API bool ratelimit_take(ratelimit_limiter *l, const ratelimit_request *req,
                                  ratelimit_result *out_or_null);

/* ratelimit_take_each, ratelimit_take_all  count requests, each on its own or all or none
 * (ratelimit_table_decide says what the results hold). True if all were allowed. res must not be
 * NULL. count 0: true for each and all alike. */
RATELIMIT_API bool ratelimit_take_each(ratelimit_limiter *l, const ratelimit_request *req,
                                       ratelimit_result *res, size_t count);
RATELIMIT_API bool ratelimit_take_all(ratelimit_limiter *l, const ratelimit_request *req,
                                      ratelimit_result *res, size_t count);

/* ratelimit_wait  Takes req->n tokens, sleeping until they are there, at most max_wait_ns
 * (RATELIMIT_FOREVER: as long as it takes).
 *
 * req      op must be TAKE or RESERVE; its max_wait_ns is not used
 *
 * Reserves where the store can: first come, first served, one wake-up, and TIMEOUT at once without
 * taking anything if it would take too long. Else polls at retry_after with jitter. True: the
 * tokens are taken and their time has come; wait_ns is how long was slept. False: TIMEOUT, CANCELED
 * (what was reserved is given back), NEVER, FULL, a BAD_ status, STORE_FAILED under a closed
 * policy. UNSUPPORTED if there is no way to sleep (RATELIMIT_NO_CLOCK without sleep). */
RATELIMIT_API bool ratelimit_wait(ratelimit_limiter *l, const ratelimit_request *req,
                                  uint64_t max_wait_ns, ratelimit_result *out_or_null);

/* ratelimit_cancel  All waits of l, now and from now on, end with CANCELED, within 50 ms where the
 * platform's sleep is used. For shutting down. Threads: any. */
RATELIMIT_API void ratelimit_cancel(ratelimit_limiter *l);

/* ratelimit_limiter_counts  A copy of the counters, each read whole. Threads: any. */
RATELIMIT_API void ratelimit_limiter_counts(const ratelimit_limiter *l, ratelimit_counts *out);

/* ratelimit_close  Closes the store and the fallback. No call may be under way; later ones are
 * BAD_ARGUMENT. Twice is once. */
RATELIMIT_API void ratelimit_close(ratelimit_limiter *l);

/* ---- private: what the macros above need; not for use ---------------------------------------- */

enum {
    RATELIMIT_PRIV_BUCKET = 1,
    RATELIMIT_PRIV_WINDOW,
    RATELIMIT_PRIV_UNLIMITED,
    RATELIMIT_PRIV_RAW
};
enum { RATELIMIT_PRIV_HEAD_BYTES = 128, RATELIMIT_PRIV_BLOCK = 8 };

/* Lines for max_keys keys: two places for each, in blocks of equal size of at most 8 lines. */
#  define RATELIMIT_PRIV_WANT(keys)    ((keys) / 3u * 2u + ((keys) % 3u * 2u + 2u) / 3u)
#  define RATELIMIT_PRIV_BLOCKS(lines) ((lines) / 8u + ((lines) % 8u != 0))
#  define RATELIMIT_PRIV_EVEN(lines, blocks)                                                       \
    (((lines) + (blocks)-1u) / ((blocks) ? (blocks) : 1u) * (blocks))
#  define RATELIMIT_PRIV_LINES(keys)                                                               \
    RATELIMIT_PRIV_EVEN(RATELIMIT_PRIV_WANT(keys), RATELIMIT_PRIV_BLOCKS(RATELIMIT_PRIV_WANT(keys)))

/* The fields of a limit as constant expressions of t tokens per p ns. d, the parts of a ns, is t
 * itself: reducing the fraction takes a loop, and nothing depends on it. Where t is too large for
 * that the limit stays RAW and is made anew, properly, at each call. */
#  define RATELIMIT_PRIV_MAX        UINT64_C(0x4000000000000000) /* 2^62: the longest window */
#  define RATELIMIT_PRIV_PARTS      UINT64_C(0x1000000)          /* 2^24: the most parts of a ns */
#  define RATELIMIT_PRIV_NZ(x)      ((x) ? (x) : 1)
#  define RATELIMIT_PRIV_Q(t, p)    ((p) / RATELIMIT_PRIV_NZ(t))
#  define RATELIMIT_PRIV_R(t, p)    ((t) > RATELIMIT_PRIV_PARTS ? 0 : (p) % RATELIMIT_PRIV_NZ(t))
#  define RATELIMIT_PRIV_D(t, p)    (RATELIMIT_PRIV_R(t, p) ? (t) : 1)
#  define RATELIMIT_PRIV_W(t, p, b) /* whole ns of the window */                                   \
    ((b)*RATELIMIT_PRIV_Q(t, p) + (b) / RATELIMIT_PRIV_D(t, p) * RATELIMIT_PRIV_R(t, p) +          \
     (b) % RATELIMIT_PRIV_D(t, p) * RATELIMIT_PRIV_R(t, p) / RATELIMIT_PRIV_D(t, p))
#  define RATELIMIT_PRIV_WR(t, p, b) /* and its parts */                                           \
    ((b) % RATELIMIT_PRIV_D(t, p) * RATELIMIT_PRIV_R(t, p) % RATELIMIT_PRIV_D(t, p))
#  define RATELIMIT_PRIV_GOOD(t, p, b)                                                             \
    ((t) && (p) && (b) && (t) <= INT64_MAX && (b) <= INT64_MAX && (p) <= RATELIMIT_PRIV_MAX &&     \
     (!RATELIMIT_PRIV_Q(t, p) ||                                                                   \
      (b) <= RATELIMIT_PRIV_MAX / RATELIMIT_PRIV_NZ(RATELIMIT_PRIV_Q(t, p))) &&                    \
     RATELIMIT_PRIV_W(t, p, b) + (RATELIMIT_PRIV_WR(t, p, b) != 0) <= RATELIMIT_PRIV_MAX)
#  define RATELIMIT_PRIV_KIND(kind, t, p, b)                                                       \
    ((t) > RATELIMIT_PRIV_PARTS && (p) % RATELIMIT_PRIV_NZ(t) ? RATELIMIT_PRIV_RAW + (kind)        \
     : RATELIMIT_PRIV_GOOD(t, p, b)                           ? (kind)                             \
                                                              : 0)
/* The interval as a floating number: in 2^-40 ns if it is below 2^24 ns, else in ns; e its
 * exponent, 20 bits of mantissa. */
#  define RATELIMIT_PRIV_SMALL(t, p) (RATELIMIT_PRIV_Q(t, p) < RATELIMIT_PRIV_PARTS)
#  define RATELIMIT_PRIV_X(t, p)                                                                   \
    (RATELIMIT_PRIV_SMALL(t, p) ? (RATELIMIT_PRIV_Q(t, p) << 40) +                                 \
                                      (RATELIMIT_PRIV_R(t, p) << 40) / RATELIMIT_PRIV_D(t, p)      \
                                : RATELIMIT_PRIV_Q(t, p))
#  define RATELIMIT_PRIV_L4(x) ((x) >> 3 ? 3 : (x) >> 2 ? 2 : (x) >> 1 ? 1 : 0)
#  define RATELIMIT_PRIV_L16(x)                                                                    \
    ((x) >> 12  ? 12 + RATELIMIT_PRIV_L4((x) >> 12)                                                \
     : (x) >> 8 ? 8 + RATELIMIT_PRIV_L4((x) >> 8)                                                  \
     : (x) >> 4 ? 4 + RATELIMIT_PRIV_L4((x) >> 4)                                                  \
                : RATELIMIT_PRIV_L4(x))
#  define RATELIMIT_PRIV_L64(x)                                                                    \
    ((x) >> 48   ? 48 + RATELIMIT_PRIV_L16((x) >> 48)                                              \
     : (x) >> 32 ? 32 + RATELIMIT_PRIV_L16((x) >> 32)                                              \
     : (x) >> 16 ? 16 + RATELIMIT_PRIV_L16((x) >> 16)                                              \
                 : RATELIMIT_PRIV_L16(x))
#  define RATELIMIT_PRIV_FLOAT(x, e)                                                               \
    (RATELIMIT_PRIV_CAST(uint32_t, e) << 20 |                                                      \
     RATELIMIT_PRIV_CAST(uint32_t,                                                                 \
                         (x) >> ((e) > 20 ? (e)-20 : 0) << ((e) < 20 ? 20 - (e) : 0) & 0xfffff))
#  define RATELIMIT_PRIV_CODE(t, p)                                                                \
    (RATELIMIT_PRIV_FLOAT(RATELIMIT_PRIV_X(t, p), RATELIMIT_PRIV_L64(RATELIMIT_PRIV_X(t, p))) +    \
     (RATELIMIT_PRIV_SMALL(t, p) ? 0u : 40u << 20))
#  define RATELIMIT_PRIV_LIMIT(kind, t, p, b)                                                      \
    {                                                                                              \
      t, p, b, RATELIMIT_PRIV_Q(t, p), RATELIMIT_PRIV_W(t, p, b),                                  \
          ((UINT64_C(1) << 63) + RATELIMIT_PRIV_D(t, p) - 1) / RATELIMIT_PRIV_D(t, p),             \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_R(t, p)),                                   \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_WR(t, p, b)),                               \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_D(t, p)),                                   \
          RATELIMIT_PRIV_CAST(uint32_t, RATELIMIT_PRIV_KIND(kind, t, p, b)) << 29 |                \
              (RATELIMIT_PRIV_CAST(uint32_t, (kind) == RATELIMIT_PRIV_WINDOW) << 27) |             \
              RATELIMIT_PRIV_CODE(t, p)                                                            \
    }

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
#    include <string.h> /* memcpy, memmove, memset */
#  else                 /* a compiler without a libc */
#    ifdef __cplusplus
extern "C" {
#    endif
extern void *memcpy(void *to, const void *from, size_t bytes);
extern void *memmove(void *to, const void *from, size_t bytes);
extern void *memset(void *to, int byte, size_t bytes);
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
#    define RATELIMIT_MAX_ALL 64
#  endif
#  if RATELIMIT_MAX_ALL < 1 || RATELIMIT_MAX_ALL > 4096
#    error "RATELIMIT_MAX_ALL must be 1 to 4096."
#  endif
#  if defined(RATELIMIT_LOCK) != defined(RATELIMIT_UNLOCK)
#    error "Define both RATELIMIT_LOCK and RATELIMIT_UNLOCK, or neither."
#  endif

#  if !defined(RATELIMIT_NO_CLOCK)
#    if defined(_WIN32)
#      include <windows.h>
#    else
#      include <time.h>
#    endif
#  endif

/* One of: our own locks (PRIV_ATOMIC), the caller's, none. */
#  if defined(RATELIMIT_LOCK) || defined(RATELIMIT_NO_THREADS)
#    define RATELIMIT_PRIV_ATOMIC 0
#  elif defined(__GNUC__) && defined(__GCC_ATOMIC_INT_LOCK_FREE) && __GCC_ATOMIC_INT_LOCK_FREE == 2
#    define RATELIMIT_PRIV_ATOMIC 1
#  elif defined(_MSC_VER)
#    include <intrin.h>
#    define RATELIMIT_PRIV_ATOMIC 1
#  elif defined(__GNUC__)
#    define RATELIMIT_PRIV_ATOMIC 0 /* no compare-and-swap on this chip */
#  else
#    error "No atomics known here: RATELIMIT_NO_THREADS, or RATELIMIT_LOCK and _UNLOCK."
#  endif
#  if RATELIMIT_PRIV_ATOMIC && (defined(_WIN64) || (defined(__GCC_ATOMIC_LLONG_LOCK_FREE) &&       \
                                                    __GCC_ATOMIC_LLONG_LOCK_FREE == 2))
#    define RATELIMIT_PRIV_ATOMIC64 1
#  else
#    define RATELIMIT_PRIV_ATOMIC64 0
#  endif

#  ifdef __cplusplus
#    if defined(__GNUC__) /* the implementation is C that C++ compiles too */
#      pragma GCC diagnostic push
#      pragma GCC diagnostic ignored "-Wold-style-cast"
#    endif
extern "C" {
#  endif

#  if RATELIMIT_PRIV_ATOMIC && defined(__GNUC__)
static inline uint32_t ratelimit_priv_load32(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
static inline void ratelimit_priv_store32(uint32_t *p, uint32_t value)
{
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}
static inline bool ratelimit_priv_swap32(uint32_t *p, uint32_t old, uint32_t value)
{
    return __atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
#  elif RATELIMIT_PRIV_ATOMIC
static inline uint32_t ratelimit_priv_load32(const uint32_t *p)
{
    uint32_t value = *(const volatile uint32_t *)p;
    _ReadWriteBarrier();
    return value;
}
static inline void ratelimit_priv_store32(uint32_t *p, uint32_t value)
{
    _InterlockedExchange((volatile long *)p, (long)value);
}
static inline bool ratelimit_priv_swap32(uint32_t *p, uint32_t old, uint32_t value)
{
    return (uint32_t)_InterlockedCompareExchange((volatile long *)p, (long)value, (long)old) == old;
}
#  else
static inline uint32_t ratelimit_priv_load32(const uint32_t *p)
{
    return *p;
}
static inline void ratelimit_priv_store32(uint32_t *p, uint32_t value)
{
    *p = value;
}
#  endif

/* Where 64 bits can't be read at once, halves are: the line's lock tells whether they belong
 * together. */
static inline uint64_t ratelimit_priv_load64(const uint64_t *p)
{
#  if RATELIMIT_PRIV_ATOMIC64 && defined(__GNUC__)
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#  elif RATELIMIT_PRIV_ATOMIC64
    uint64_t value = *(const volatile uint64_t *)p;
    _ReadWriteBarrier();
    return value;
#  elif RATELIMIT_PRIV_ATOMIC
    const uint32_t *half = (const uint32_t *)(const void *)p;
    uint32_t part[2];
    uint64_t value;
    part[0] = ratelimit_priv_load32(half);
    part[1] = ratelimit_priv_load32(half + 1);
    memcpy(&value, part, sizeof value);
    return value;
#  else
    return *p;
#  endif
}

static inline void ratelimit_priv_store64(uint64_t *p, uint64_t value)
{
#  if RATELIMIT_PRIV_ATOMIC64 && defined(__GNUC__)
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
#  elif RATELIMIT_PRIV_ATOMIC64
    *(volatile uint64_t *)p = value;
    _ReadWriteBarrier();
#  elif RATELIMIT_PRIV_ATOMIC
    uint32_t *half = (uint32_t *)(void *)p;
    uint32_t part[2];
    memcpy(part, &value, sizeof value);
    ratelimit_priv_store32(half, part[0]);
    ratelimit_priv_store32(half + 1, part[1]);
#  else
    *p = value;
#  endif
}

/* For counters: exact where 64-bit atomics are lock-free, else good enough to read. */
static inline void ratelimit_priv_add64(uint64_t *p, uint64_t value)
{
#  if RATELIMIT_PRIV_ATOMIC64 && defined(__GNUC__)
    (void)__atomic_fetch_add(p, value, __ATOMIC_RELAXED);
#  elif RATELIMIT_PRIV_ATOMIC64
    (void)_InterlockedExchangeAdd64((volatile __int64 *)p, (__int64)value);
#  else
    ratelimit_priv_store64(p, ratelimit_priv_load64(p) + value);
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
    unsigned n = 0, step;
    for (step = 32; step; step >>= 1)
        if (x >> step) {
            x >>= step;
            n += step;
        }
    return n;
#  endif
}

#  if !defined(RATELIMIT_NO_CLOCK)
#    if defined(_WIN32)
RATELIMIT_API uint64_t ratelimit_clock_ns(void)
{
    LARGE_INTEGER ticks, hz;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&hz);
    return ratelimit_ticks_to_ns((uint64_t)ticks.QuadPart, (uint64_t)hz.QuadPart);
}
static void ratelimit_priv_sleep(uint64_t ns)
{
    Sleep((DWORD)((ns + 999999) / 1000000));
}
#    else
#      if defined(CLOCK_MONOTONIC)
typedef struct timespec ratelimit_priv_timespec;
#      else
/* A strict -std=c99 hides these from <time.h> if anything was included before us without
 * _POSIX_C_SOURCE. */
typedef struct ratelimit_priv_timespec {
    long tv_sec, tv_nsec;
} ratelimit_priv_timespec;
extern int clock_gettime(int, ratelimit_priv_timespec *);
extern int nanosleep(const ratelimit_priv_timespec *, ratelimit_priv_timespec *);
#        define CLOCK_MONOTONIC 1
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
#    endif
#  endif

/* ---- >>implementation: locks --------------------------------------------------------------------

   A lock is a 32-bit word, odd while held, that grows by one at each step. So a reader sees whether
   anything changed while it looked (same even word before and after), and a writer who has computed
   its answer that way takes the lock with the very compare-and-swap that proves the answer still
   stands. What is left to do under the lock is to store it.

   A waiter sleeps in steps of a millisecond. If the word stands still for RATELIMIT_TAKEOVER_MS
   such steps its holder is dead: a compare-and-swap to the next odd word takes it over. Stores
   under a lock are ordered so that stopping after any of them leaves a sound line. Steps, not time,
   are counted: a machine that was suspended does not look dead. */

static inline void ratelimit_priv_relax(void)
{
#  if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_ia32_pause();
#  elif defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
    _mm_pause();
#  endif
}

#  if RATELIMIT_PRIV_ATOMIC
/* One turn of waiting; true when the holder counts as dead. *turns starts at 0 for each value of
 * the lock. */
static bool ratelimit_priv_wait_turn(uint32_t *turns)
{
    uint32_t turn = (*turns)++;
    if (turn < 1000) {
        ratelimit_priv_relax();
        return false;
    }
#    if defined(RATELIMIT_NO_CLOCK)
    for (turn = 0; turn < 20000; turn++)
        ratelimit_priv_relax();
#    else
    ratelimit_priv_sleep(RATELIMIT_MILLISECOND);
#    endif
    return *turns > 1000 + RATELIMIT_TAKEOVER_MS;
}

/* Takes the lock, unless it is held for longer than a spin. *word is then what it holds, or what it
 * was seen to hold. */
static bool ratelimit_priv_try_lock(uint32_t *lock, uint32_t *word)
{
    uint32_t turn;
    for (turn = 0; turn < 1000; turn++) {
        *word = ratelimit_priv_load32(lock);
        if (!(*word & 1) && ratelimit_priv_swap32(lock, *word, *word + 1)) {
            ++*word;
            return true;
        }
        ratelimit_priv_relax();
    }
    return false;
}

/* Not if it was taken over meanwhile: it is another's then. */
static inline void ratelimit_priv_unlock(uint32_t *lock, uint32_t word)
{
    (void)ratelimit_priv_swap32(lock, word, word + 1);
}
#  endif

/* ---- >>implementation: limits ---------------------------------------------------------------- */

RATELIMIT_API const char *ratelimit_status_text(ratelimit_status status)
{
#  if defined(RATELIMIT_NO_TEXT)
    (void)status;
    return "";
#  else
    switch (status) {
    case RATELIMIT_OK:
        return "ok";
    case RATELIMIT_DENIED:
        return "over the limit";
    case RATELIMIT_NEVER:
        return "more than the limit can ever give";
    case RATELIMIT_FULL:
        return "the table has no room for a new key";
    case RATELIMIT_TIMEOUT:
        return "the wait would be too long";
    case RATELIMIT_CANCELED:
        return "cancelled";
    case RATELIMIT_BAD_KEY:
        return "no key";
    case RATELIMIT_BAD_LIMIT:
        return "not a valid limit";
    case RATELIMIT_BAD_COUNT:
        return "a count of 0";
    case RATELIMIT_BAD_ARGUMENT:
        return "bad argument";
    case RATELIMIT_SYNTAX:
        return "syntax error";
    case RATELIMIT_NO_MEMORY:
        return "not enough memory";
    case RATELIMIT_STORE_FAILED:
        return "the store failed";
    case RATELIMIT_UNSUPPORTED:
        return "not supported";
    case RATELIMIT_BUSY:
        return "busy";
    case RATELIMIT_LOST:
        return "no longer held";
    }
    return "unknown status";
#  endif
}

static inline uint32_t ratelimit_priv_kind(const ratelimit_limit *l)
{
    return l->code >> 29;
}

/* One more fraction bit of r/d for each round, into *rest what is left over. r < d < 2^63. */
static uint64_t ratelimit_priv_fraction(uint64_t r, uint64_t d, int bits, bool *rest)
{
    uint64_t f = 0;
    while (bits--) {
        r <<= 1;
        f <<= 1;
        if (r >= d) {
            r -= d;
            f |= 1;
        }
    }
    *rest = r != 0;
    return f;
}

/* The interval as whole ns and a fraction of at most 24 bits below the line; false if that is off
 * by over 1 in a million. */
static bool ratelimit_priv_make_interval(ratelimit_limit *l)
{
    uint64_t a = l->tokens, b = l->per_ns, r, d;
    bool rest;
    while (b) { /* Euclid: a becomes the greatest common divisor */
        uint64_t c = a % b;
        a = b;
        b = c;
    }
    d = l->tokens / a;
    l->interval_ns = l->per_ns / l->tokens;
    r = l->per_ns / a % d;
    if (d > RATELIMIT_PRIV_PARTS) {
        r = ratelimit_priv_fraction(r, d, 24, &rest);
        d = RATELIMIT_PRIV_PARTS;
        r += rest;
        if (rest && !(l->interval_ns >> 24) && (l->interval_ns << 24) + r < 1000000)
            return false;
        if (r == d) {
            l->interval_ns++;
            r = 0;
        }
    }
    if (r == 0)
        d = 1;
    l->interval_part = (uint32_t)r;
    l->parts = (uint32_t)d;
    l->inverse = ((UINT64_C(1) << 63) + d - 1) / d;
    return true;
}

static ratelimit_limit ratelimit_priv_make(uint32_t kind, uint64_t tokens, uint64_t per_ns,
                                           uint64_t burst)
{
    ratelimit_limit l;
    uint64_t x, r, d;
    unsigned e, extra = 0;
    memset(&l, 0, sizeof l);
    if (!tokens || !per_ns || !burst || tokens > INT64_MAX || burst > INT64_MAX ||
        per_ns > RATELIMIT_PRIV_MAX)
        return l;
    l.tokens = tokens;
    l.per_ns = per_ns;
    l.burst = burst;
    if (!ratelimit_priv_make_interval(&l) ||
        (l.interval_ns && burst > RATELIMIT_PRIV_MAX / l.interval_ns))
        goto bad;
    r = l.interval_part;
    d = l.parts;
    l.window_ns = burst * l.interval_ns + burst / d * r + burst % d * r / d;
    l.window_part = (uint32_t)(burst % d * r % d);
    if (l.window_ns + (l.window_part != 0) > RATELIMIT_PRIV_MAX)
        goto bad;
    if (l.interval_ns < RATELIMIT_PRIV_PARTS) {
        x = (l.interval_ns << 40) + (r << 40) / d;
    } else {
        x = l.interval_ns;
        extra = 40;
    }
    e = ratelimit_priv_log2(x);
    l.code = kind << 29 | (uint32_t)(kind == RATELIMIT_PRIV_WINDOW) << 27 | (e + extra) << 20 |
             (uint32_t)(x >> (e > 20 ? e - 20 : 0) << (e < 20 ? 20 - e : 0) & 0xfffff);
    return l;
bad:
    memset(&l, 0, sizeof l);
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

/* A limit ready for use: itself, or one that the macro could not finish, made into *made. NULL if
 * it is bad. */
static const ratelimit_limit *ratelimit_priv_ready(const ratelimit_limit *l, ratelimit_limit *made)
{
    if (!l)
        return NULL;
    if (ratelimit_priv_kind(l) == RATELIMIT_PRIV_RAW + RATELIMIT_PRIV_BUCKET ||
        ratelimit_priv_kind(l) == RATELIMIT_PRIV_RAW + RATELIMIT_PRIV_WINDOW) {
        *made = ratelimit_priv_make(ratelimit_priv_kind(l) - RATELIMIT_PRIV_RAW, l->tokens,
                                    l->per_ns, l->burst);
        l = made;
    }
    return ratelimit_priv_kind(l) && ratelimit_priv_kind(l) < RATELIMIT_PRIV_RAW && l->parts ? l
                                                                                             : NULL;
}

RATELIMIT_API ratelimit_status ratelimit_limit_check(const ratelimit_limit *limit)
{
    ratelimit_limit made, again;
    limit = ratelimit_priv_ready(limit, &made);
    if (!limit)
        return RATELIMIT_BAD_LIMIT;
    if (ratelimit_priv_kind(limit) == RATELIMIT_PRIV_UNLIMITED)
        return RATELIMIT_OK;
    again =
        ratelimit_priv_make(ratelimit_priv_kind(limit), limit->tokens, limit->per_ns, limit->burst);
    /* The macro does not reduce its fraction: compare a/b and c/d as a*d and c*b, below 2^48. */
    return again.code == limit->code && again.interval_ns == limit->interval_ns &&
                   again.window_ns == limit->window_ns && limit->parts <= RATELIMIT_PRIV_PARTS &&
                   (uint64_t)limit->interval_part * again.parts ==
                       (uint64_t)again.interval_part * limit->parts &&
                   (uint64_t)limit->window_part * again.parts ==
                       (uint64_t)again.window_part * limit->parts &&
                   limit->inverse == ((UINT64_C(1) << 63) + limit->parts - 1) / limit->parts
               ? RATELIMIT_OK
               : RATELIMIT_BAD_LIMIT;
}

/* Largest first where one name begins another. */
static const struct {
    char name[4];
    uint64_t ns;
} ratelimit_priv_units[] = {{"w", RATELIMIT_WEEK},         {"d", RATELIMIT_DAY},
                            {"h", RATELIMIT_HOUR},         {"ms", RATELIMIT_MILLISECOND},
                            {"m", RATELIMIT_MINUTE},       {"s", RATELIMIT_SECOND},
                            {"us", RATELIMIT_MICROSECOND}, {"ns", RATELIMIT_NANOSECOND}};

enum { RATELIMIT_PRIV_UNITS = sizeof ratelimit_priv_units / sizeof ratelimit_priv_units[0] };

/* strlen, 0 for NULL; opaque to compilers that would make it a call of strlen. */
static size_t ratelimit_priv_len(const char *text)
{
    size_t len = 0;
    while (text && text[len]) {
        len++;
#  if defined(__GNUC__)
        __asm__ volatile("" : "+r"(len));
#  endif
    }
    return len;
}

/* Reading text. Syntax is read to the end before values are judged. */
typedef struct ratelimit_priv_text {
    const char *at, *end;
    const char *far;  /* the farthest byte at which a word did not go on */
    const char *over; /* the first number that does not fit, or NULL */
} ratelimit_priv_text;

static bool ratelimit_priv_word(ratelimit_priv_text *t, const char *word)
{
    const char *at = t->at;
    for (; *word; word++, at++)
        if (at == t->end || *at != *word) {
            t->far = at > t->far ? at : t->far;
            return false;
        }
    t->at = at;
    return true;
}

static bool ratelimit_priv_blanks(ratelimit_priv_text *t)
{
    const char *from = t->at;
    while (t->at != t->end && (*t->at == ' ' || *t->at == '\t'))
        t->at++;
    return t->at != from;
}

static void ratelimit_priv_over(ratelimit_priv_text *t, const char *at)
{
    if (!t->over)
        t->over = at;
}

static bool ratelimit_priv_is_digit(const ratelimit_priv_text *t)
{
    return t->at != t->end && *t->at >= '0' && *t->at <= '9';
}

/* Puts a digit behind *value, which is part of the number at from. */
static void ratelimit_priv_digit(ratelimit_priv_text *t, const char *from, char c, uint64_t *value)
{
    uint64_t digit = (uint64_t)(c - '0');
    if (*value > (UINT64_MAX - digit) / 10)
        ratelimit_priv_over(t, from);
    else
        *value = *value * 10 + digit;
}

static bool ratelimit_priv_whole(ratelimit_priv_text *t, uint64_t *value)
{
    const char *from = t->at;
    *value = 0;
    for (; ratelimit_priv_is_digit(t); t->at++)
        ratelimit_priv_digit(t, from, *t->at, value);
    return t->at != from;
}

/* A number with an optional fraction: *value / 10^*places. Zeros at its end count for nothing. */
static bool ratelimit_priv_number(ratelimit_priv_text *t, uint64_t *value, size_t *places)
{
    const char *from = t->at;
    size_t zeros = 0;
    *places = 0;
    if (!ratelimit_priv_whole(t, value))
        return false;
    if (t->at == t->end || *t->at != '.')
        return true;
    t->at++;
    if (!ratelimit_priv_is_digit(t))
        return false;
    for (; ratelimit_priv_is_digit(t); t->at++) {
        zeros++;
        if (*t->at == '0')
            continue;
        for (*places += zeros; zeros > 1; zeros--)
            ratelimit_priv_digit(t, from, '0', value);
        ratelimit_priv_digit(t, from, *t->at, value);
        zeros = 0;
    }
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

/* A limit as it stands in the text, and where. */
typedef struct ratelimit_priv_reading {
    uint64_t tokens, per, burst;
    const char *tokens_at, *per_at, *burst_at; /* burst_at: NULL if it was not given */
    bool window;
} ratelimit_priv_reading;

/* tokens / 10^places per `per`, as whole numbers of both. Factors of 10 cancel where they can:
 * 0.5/m is 1 per 2 minutes, not 5 per 10. */
static bool ratelimit_priv_whole_rate(ratelimit_priv_reading *r, size_t places)
{
    for (; places; places--) {
        uint64_t by = (r->tokens % 2 ? 2 : 1) * (r->tokens % 5 ? 5u : 1u);
        r->tokens /= 10 / by;
        if (r->per > UINT64_MAX / by)
            return false;
        r->per *= by;
    }
    return true;
}

/* TOKENS/PERIOD */
static bool ratelimit_priv_rate(ratelimit_priv_text *t, ratelimit_priv_reading *r)
{
    size_t places, per_places = 0, i;
    uint64_t unit;
    r->tokens_at = t->at;
    if (!ratelimit_priv_number(t, &r->tokens, &places) || !ratelimit_priv_word(t, "/"))
        return false;
    r->per_at = t->at;
    r->per = 1;
    if (ratelimit_priv_is_digit(t) && !ratelimit_priv_number(t, &r->per, &per_places))
        return false;
    if (!ratelimit_priv_unit(t, &unit))
        return false;
    r->burst = r->tokens;
    for (i = 0; i < places && r->burst > 1; i++)
        r->burst = r->burst / 10 + (r->burst % 10 != 0);
    if (r->per > UINT64_MAX / unit)
        ratelimit_priv_over(t, r->per_at);
    r->per *= unit;
    for (; per_places && r->per % 10 == 0; per_places--)
        r->per /= 10;
    if (per_places || !r->per)
        ratelimit_priv_over(t, r->per_at);
    if (!r->tokens || !ratelimit_priv_whole_rate(r, places))
        ratelimit_priv_over(t, r->tokens_at);
    return true;
}

static bool ratelimit_priv_read(ratelimit_priv_text *t, ratelimit_priv_reading *r)
{
    bool more;
    r->burst_at = NULL;
    if (!ratelimit_priv_rate(t, r))
        return false;
    more = t->at != t->end;
    if (more && !ratelimit_priv_blanks(t))
        return false;
    if (more && ratelimit_priv_word(t, "burst")) {
        if (!ratelimit_priv_blanks(t))
            return false;
        r->burst_at = t->at;
        if (!ratelimit_priv_whole(t, &r->burst))
            return false;
        if (!r->burst)
            ratelimit_priv_over(t, r->burst_at);
        more = t->at != t->end;
        if (more && !ratelimit_priv_blanks(t))
            return false;
    }
    r->window = more;
    return !more || (ratelimit_priv_word(t, "window") && t->at == t->end);
}

static ratelimit_status ratelimit_priv_parse(ratelimit_priv_text *t, ratelimit_limit *out)
{
    static const ratelimit_limit unlimited = RATELIMIT_UNLIMITED;
    ratelimit_priv_reading r;
    if (ratelimit_priv_word(t, "unlimited")) {
        *out = unlimited;
        return t->at == t->end ? RATELIMIT_OK : RATELIMIT_SYNTAX;
    }
    if (!ratelimit_priv_read(t, &r)) {
        t->at = t->far > t->at ? t->far : t->at;
        return RATELIMIT_SYNTAX;
    }
    *out = r.window ? ratelimit_window_make(r.tokens, r.per)
                    : ratelimit_limit_make(r.tokens, r.per, r.burst);
    if (!t->over && r.window && r.burst_at && r.burst != r.tokens)
        t->over = r.burst_at;
    if (!t->over && !ratelimit_priv_kind(out)) {
        ratelimit_limit least = ratelimit_limit_make(r.tokens, r.per, 1);
        t->over = ratelimit_priv_kind(&least) && r.burst_at ? r.burst_at
                  : r.per > RATELIMIT_PRIV_MAX              ? r.per_at
                                                            : r.tokens_at;
    }
    t->at = t->over ? t->over : t->at;
    return t->over ? RATELIMIT_BAD_LIMIT : RATELIMIT_OK;
}

RATELIMIT_API ratelimit_status ratelimit_limit_parse_n(ratelimit_limit *out, const char *text,
                                                       size_t text_len, size_t *fault_at)
{
    ratelimit_priv_text t;
    ratelimit_limit limit;
    ratelimit_status status;
    if (fault_at)
        *fault_at = 0;
    if (!out || !text)
        return RATELIMIT_BAD_ARGUMENT;
    t.at = t.far = text;
    t.end = text + text_len;
    t.over = NULL;
    status = ratelimit_priv_parse(&t, &limit);
    if (status == RATELIMIT_OK)
        *out = limit;
    else if (fault_at)
        *fault_at = (size_t)(t.at - text);
    return status;
}

RATELIMIT_API ratelimit_status ratelimit_limit_parse(ratelimit_limit *out, const char *text)
{
    return ratelimit_limit_parse_n(out, text, ratelimit_priv_len(text), NULL);
}

/* Writing text: counts all, keeps what fits. */
static void ratelimit_priv_put(char *text, size_t *len, const char *word)
{
    while (*word)
        text[(*len)++] = *word++;
}

static void ratelimit_priv_put_number(char *text, size_t *len, uint64_t value)
{
    char digits[20];
    size_t n = 0;
    do
        digits[n++] = (char)('0' + (int)(value % 10));
    while (value /= 10);
    while (n)
        text[(*len)++] = digits[--n];
}

static void ratelimit_priv_put_period(char *text, size_t *len, uint64_t ns)
{
    size_t i, unit = RATELIMIT_PRIV_UNITS - 1;
    for (i = 0; i < RATELIMIT_PRIV_UNITS; i++)
        if (ns % ratelimit_priv_units[i].ns == 0 &&
            ratelimit_priv_units[i].ns > ratelimit_priv_units[unit].ns)
            unit = i;
    if (ns != ratelimit_priv_units[unit].ns)
        ratelimit_priv_put_number(text, len, ns / ratelimit_priv_units[unit].ns);
    ratelimit_priv_put(text, len, ratelimit_priv_units[unit].name);
}

RATELIMIT_API size_t ratelimit_limit_format(const ratelimit_limit *limit, char *buf,
                                            size_t buf_bytes)
{
    char text[96];
    size_t len = 0;
    if (ratelimit_limit_check(limit) != RATELIMIT_OK) {
        ratelimit_priv_put(text, &len, "bad limit");
    } else if (ratelimit_priv_kind(limit) == RATELIMIT_PRIV_UNLIMITED) {
        ratelimit_priv_put(text, &len, "unlimited");
    } else {
        ratelimit_priv_put_number(text, &len, limit->tokens);
        ratelimit_priv_put(text, &len, "/");
        ratelimit_priv_put_period(text, &len, limit->per_ns);
        if (limit->code >> 27 & 1 ||
            ratelimit_priv_kind(limit) == RATELIMIT_PRIV_RAW + RATELIMIT_PRIV_WINDOW) {
            ratelimit_priv_put(text, &len, " window");
        } else if (limit->burst != limit->tokens) {
            ratelimit_priv_put(text, &len, " burst ");
            ratelimit_priv_put_number(text, &len, limit->burst);
        }
    }
    if (buf && buf_bytes > len) {
        memcpy(buf, text, len);
        buf[len] = 0;
    } else if (buf && buf_bytes) {
        buf[0] = 0;
    }
    return len;
}

RATELIMIT_API uint64_t ratelimit_ticks_to_ns(uint64_t ticks, uint64_t hz)
{
    uint64_t seconds, rest, ns, i;
    if (hz == 0 || ticks / hz > UINT64_MAX / RATELIMIT_SECOND)
        return RATELIMIT_FOREVER;
    seconds = ticks / hz * RATELIMIT_SECOND;
    rest = ticks % hz;
    if (rest <= UINT64_MAX / RATELIMIT_SECOND) {
        ns = rest * RATELIMIT_SECOND / hz;
    } else { /* hz above 18 GHz: digit by digit, each step a remainder below hz */
        ns = 0;
        for (i = 0; i < 9; i++) {
            uint64_t j, digit = 0, sum = 0;
            for (j = 0; j < 10; j++) {
                if (sum >= hz - rest) {
                    sum -= hz - rest;
                    digit++;
                } else {
                    sum += rest;
                }
            }
            rest = sum;
            ns = ns * 10 + digit;
        }
    }
    return seconds > UINT64_MAX - ns ? RATELIMIT_FOREVER : seconds + ns;
}

/* ---- >>implementation: arithmetic ---------------------------------------------------------------

   A state is when the bucket will be full: 65 bits of ns and a fraction F of 24 bits, F = ceil(f x
   2^24 / d) for the exact f/d. As d is at most 2^24, f = floor(F x d / 2^24) gives f back. So f/d
   is exact, and F means the same whatever d is, which a limit made by the macro (not reduced) and
   one made by a function need. Everything is reckoned as a span ahead of now; a fixed window adds
   the time to its end.

   "seen" is the debt when the bucket was last seen, as 11 bits: below 32 itself, else 6 bits of
   exponent and 5 of mantissa, rounded up. full - seen is when that was, to 1/32 of the debt,
   however long ago. */

typedef struct ratelimit_priv_span {
    uint64_t ns;
    uint32_t part; /* of 1/d ns */
} ratelimit_priv_span;

enum {
    RATELIMIT_PRIV_FLIGHT = 126,
    RATELIMIT_PRIV_HELD = 127
}; /* exponents that no interval has */

#  define RATELIMIT_PRIV_LONG       UINT64_C(0x7FFFFFFFFFFFFFFF) /* no debt is longer */
#  define RATELIMIT_PRIV_TOP        (UINT64_C(1) << 52)          /* in rest: bit 64 of full_ns */
#  define RATELIMIT_PRIV_SEEN       (UINT64_C(0x7ff) << 53)      /* in rest */
#  define RATELIMIT_PRIV_REMEMBERED 0xfffffffu /* the part of a limit's code that a bucket keeps */
#  define RATELIMIT_PRIV_NOTE                                                                      \
    (UINT64_C(1) << 30) /* a refusal notes that it saw the bucket once in so many ns */

static inline uint32_t ratelimit_priv_rest_code(uint64_t rest)
{
    return (uint32_t)(rest >> 24) & RATELIMIT_PRIV_REMEMBERED;
}

static inline uint64_t ratelimit_priv_seen_code(uint64_t debt)
{
    unsigned e;
    e = ratelimit_priv_log2(debt | 32) - 5;
    return ((uint64_t)e << 5) + ((debt + (UINT64_C(1) << e) - 1) >> e);
}

static inline uint64_t ratelimit_priv_seen(uint64_t rest)
{
    uint64_t code = rest >> 53, e = code >> 5;
    if (e < 2)
        return code;
    return e > 58 ? RATELIMIT_PRIV_LONG : (32 + (code & 31)) << (e - 1);
}

static inline bool ratelimit_priv_above(ratelimit_priv_span a, ratelimit_priv_span b)
{
    return a.ns > b.ns || (a.ns == b.ns && a.part > b.part);
}

static inline ratelimit_priv_span ratelimit_priv_plus(ratelimit_priv_span a, ratelimit_priv_span b,
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

static inline ratelimit_priv_span ratelimit_priv_window(const ratelimit_limit *l)
{
    return ratelimit_priv_span_of(l->window_ns, l->window_part);
}

/* f/d as F, by a multiplication with the limit's inverse of d; the estimate is F or F - 1. */
static inline uint64_t ratelimit_priv_pack(uint32_t part, const ratelimit_limit *l)
{
    uint64_t packed = (part * l->inverse) >> 39;
    return packed + (packed * l->parts < (uint64_t)part << 24);
}

static inline uint32_t ratelimit_priv_unpack(uint64_t rest, const ratelimit_limit *l)
{
    return (uint32_t)(((rest & 0xffffff) * l->parts) >> 24);
}

/* n tokens as a span, exactly; false if it is longer than RATELIMIT_PRIV_LONG. */
static bool ratelimit_priv_cost(const ratelimit_limit *l, uint64_t n, ratelimit_priv_span *cost)
{
    uint64_t whole = n * l->interval_ns, extra = 0, d = l->parts, r = l->interval_part;
    *cost = ratelimit_priv_span_of(whole, 0);
    if (n == 1) {
        cost->part = (uint32_t)r;
        return true;
    }
    if (l->interval_ns && n > RATELIMIT_PRIV_LONG / l->interval_ns)
        return false;
    if (r) {
        extra = n / d * r + n % d * r / d; /* below n */
        cost->part = (uint32_t)(n % d * r % d);
        if (extra > RATELIMIT_PRIV_LONG - whole)
            return false;
        cost->ns += extra;
    }
    return true;
}

/* How many whole tokens fit in span: floor((ns d + part) / (interval d)). ns d may need 86 bits, so
 * where it does the product is made bit by bit, taking out whole intervals (at most 2^62). */
static uint64_t ratelimit_priv_count(const ratelimit_limit *l, ratelimit_priv_span span)
{
    uint64_t d = l->parts, interval = l->interval_ns * d + l->interval_part;
    uint64_t count, low = 0, rest = 0, bit;
    if (d == 1)
        return span.ns / interval;
    if (span.ns < UINT64_C(1) << 39)
        return (span.ns * d + span.part) / interval;
    count = span.ns / interval * d;
    for (bit = RATELIMIT_PRIV_PARTS; bit; bit >>= 1) {
        low <<= 1;
        rest = 2 * rest + (d & bit ? span.ns % interval : 0);
        while (rest >= interval) {
            rest -= interval;
            low++;
        }
    }
    return count + low + (rest + span.part) / interval;
}

/* How far ahead of now the bucket is full. Bits that make no sense (a damaged table) give some
 * span, never more than RATELIMIT_PRIV_LONG. */
static ratelimit_priv_span ratelimit_priv_ahead(const ratelimit_bucket *b, const ratelimit_limit *l,
                                                uint64_t now)
{
    ratelimit_priv_span ahead = {0, 0};
    bool top = (b->rest & RATELIMIT_PRIV_TOP) != 0;
    if (!top && b->full_ns < now)
        return ahead;
    ahead.ns = b->full_ns - now;
    ahead.part = ratelimit_priv_unpack(b->rest, l);
    if (ahead.ns > RATELIMIT_PRIV_LONG || (top && b->full_ns >= now))
        ahead = ratelimit_priv_span_of(RATELIMIT_PRIV_LONG, 0);
    return ahead;
}

static inline bool ratelimit_priv_in_flight(const ratelimit_bucket *b)
{
    return (b->rest >> 44 & 127) == RATELIMIT_PRIV_FLIGHT;
}

/* ns until a bucket of whatever limit is full, rounded up; 0 if it is. */
static inline uint64_t ratelimit_priv_debt(const ratelimit_bucket *b, uint64_t now)
{
    bool top = (b->rest & RATELIMIT_PRIV_TOP) != 0;
    if (!top && b->full_ns < now)
        return 0;
    return b->full_ns - now + ((b->rest & 0xffffff) != 0 && !ratelimit_priv_in_flight(b));
}

/* A debt of ns and the fraction in rest, charged at another interval: the same tokens at l's. What
 * is remembered of the old interval is m x 2^e ns, m of 22 bits, its last bit half a unit, so that
 * up to a million tokens spent come out whole. */
static ratelimit_priv_span ratelimit_priv_rescale(uint64_t rest, uint64_t ns,
                                                  const ratelimit_limit *l)
{
    unsigned code = ratelimit_priv_rest_code(rest);
    int e = (int)(code >> 20 & 127) - 40 - 21, fine = -e, shift;
    uint64_t m = (UINT64_C(1) << 21) + 2 * (code & 0xfffff) + 1, v = ns, whole, part, near;
    ratelimit_priv_span debt;
    if (v < UINT64_C(1) << 40) { /* a short debt: with its fraction */
        v = v << 24 | (rest & 0xffffff);
        e += 24;
    }
    if (v == 0)
        return ratelimit_priv_span_of(0, 0);
    shift = 63 - (int)ratelimit_priv_log2(v);
    v = (v << shift) / m; /* below 2^43; the tokens spent are v x 2^-shift ... */
    shift += e;
    if (shift <= 0)
        return ratelimit_priv_window(l);
    whole = shift < 64 ? v >> shift : 0; /* ... that is whole + part x 2^-32 */
    part = shift <= 32 ? v << (32 - shift) : shift < 96 ? v >> (shift - 32) : 0;
    part &= UINT32_MAX;
    near = whole < 0xffffc ? (whole + 2) << 11 : UINT64_C(1) << 31; /* m may be off by so much, */
    if (fine > 13) /* and the fraction of a ns by so much */
        near += UINT64_C(1) << (fine - 13 < 31 ? fine - 13 : 31);
    near = near < UINT64_C(1) << 31 ? near : UINT64_C(1) << 31;
    if (part >= (UINT64_C(1) << 32) - near) {
        whole++;
        part = 0;
    } else if (part <= near && whole) {
        part = 0;
    }
    if (whole >= l->burst || !ratelimit_priv_cost(l, whole, &debt))
        return ratelimit_priv_window(l);
    if (part) /* rounded up: what is dropped is below 2 ns */
        debt.ns +=
            (l->interval_ns >> 32) * part + (((l->interval_ns & UINT32_MAX) * part) >> 32) + 2;
    return ratelimit_priv_above(debt, ratelimit_priv_window(l)) ? ratelimit_priv_window(l) : debt;
}

static void ratelimit_priv_answer(ratelimit_result *out, ratelimit_status status)
{
    memset(out, 0, sizeof *out);
    out->status = status;
    out->allowed = status == RATELIMIT_OK;
}

/* What is wrong with a request before any state is looked at. */
static ratelimit_status ratelimit_priv_check(const ratelimit_request *q,
                                             const ratelimit_limit *ready)
{
    if ((unsigned)q->op > RATELIMIT_RESET)
        return RATELIMIT_BAD_ARGUMENT;
    if (!ready)
        return RATELIMIT_BAD_LIMIT;
    if (q->n == 0 && q->op != RATELIMIT_PEEK && q->op != RATELIMIT_BLOCK &&
        q->op != RATELIMIT_RESET)
        return RATELIMIT_BAD_COUNT;
    if (q->op == RATELIMIT_BLOCK && (q->max_wait_ns == 0 || q->max_wait_ns > RATELIMIT_PRIV_MAX))
        return RATELIMIT_BAD_ARGUMENT;
    if (ratelimit_priv_kind(ready) == RATELIMIT_PRIV_WINDOW &&
        (q->op == RATELIMIT_RESERVE || q->op == RATELIMIT_REFUND))
        return RATELIMIT_UNSUPPORTED;
    if (ratelimit_priv_kind(ready) == RATELIMIT_PRIV_UNLIMITED && q->op == RATELIMIT_BLOCK)
        return RATELIMIT_UNSUPPORTED;
    return RATELIMIT_OK;
}

static void ratelimit_priv_unlimited(const ratelimit_request *q, ratelimit_result *out)
{
    ratelimit_priv_answer(out, RATELIMIT_OK);
    out->limit = out->remaining = UINT64_MAX;
    out->taken = q->op == RATELIMIT_PEEK || q->op == RATELIMIT_RESET ? 0 : q->n;
}

/* One decision being made: where the bucket stands, what is asked for, what comes of it. */
typedef struct ratelimit_priv_step {
    const ratelimit_limit *l;
    ratelimit_priv_span debt, cost; /* cost is of n tokens */
    uint64_t to_end;                /* fixed window: ns to its end, else 0 */
    uint64_t n, taken, wait;
    bool fits;  /* cost fits in a span */
    bool over;  /* debt + cost is above the window */
    bool dirty; /* debt must be stored though nothing is taken */
} ratelimit_priv_step;

static void ratelimit_priv_weigh(ratelimit_priv_step *s)
{
    ratelimit_priv_span sum = ratelimit_priv_plus(s->debt, s->cost, s->l->parts);
    s->over = !s->fits || ratelimit_priv_above(sum, ratelimit_priv_window(s->l));
}

/* May cost be added at all? No debt is longer than RATELIMIT_PRIV_LONG. */
static bool ratelimit_priv_bearable(const ratelimit_priv_step *s)
{
    ratelimit_priv_span sum = ratelimit_priv_plus(s->debt, s->cost, s->l->parts);
    return s->fits && !ratelimit_priv_above(sum, ratelimit_priv_span_of(RATELIMIT_PRIV_LONG, 0));
}

/* The clock was set back by more than step_ns since the bucket was seen, and that is in the way:
 * the debt is what it was then, at most the window. */
static void ratelimit_priv_forgive(ratelimit_priv_step *s, uint64_t ahead, uint64_t seen,
                                   uint64_t step_ns)
{
    if (!s->over || ahead <= seen || ahead - seen <= step_ns)
        return;
    if (ratelimit_priv_above(s->debt, ratelimit_priv_window(s->l)))
        s->debt = ratelimit_priv_window(s->l);
    if (!s->dirty && s->debt.ns >= seen) /* not if seen is a debt at another interval */
        s->debt = ratelimit_priv_span_of(seen, 0);
    s->dirty = true;
    ratelimit_priv_weigh(s);
}

static void ratelimit_priv_look(ratelimit_priv_step *s, const ratelimit_bucket *b,
                                const ratelimit_limit *l, uint64_t n, uint64_t now,
                                uint64_t step_ns)
{
    ratelimit_priv_span ahead = ratelimit_priv_ahead(b, l, now);
    uint32_t code = ratelimit_priv_rest_code(b->rest);
    uint64_t old = ahead.ns;
    bool owes;
    memset(s, 0, sizeof *s);
    s->l = l;
    s->n = n;
    s->fits = ratelimit_priv_cost(l, n, &s->cost);
    s->debt = ahead;
    owes = ratelimit_priv_debt(b, now) != 0;
    if (ratelimit_priv_kind(l) == RATELIMIT_PRIV_WINDOW) {
        s->to_end = l->per_ns - now % l->per_ns;
        if (code >> 27) { /* it was a window before, too: of the same period, one must take it */
            s->debt = ratelimit_priv_minus(ahead, ratelimit_priv_span_of(s->to_end, 0), l->parts);
            owes = owes && ahead.ns >= s->to_end;
            old -= s->to_end;
        }
    }
    if (owes && b->rest && code != (l->code & RATELIMIT_PRIV_REMEMBERED)) {
        s->debt = ratelimit_priv_rescale(b->rest, old, l);
        s->dirty = true;
    }
    ratelimit_priv_weigh(s);
    ratelimit_priv_forgive(s, ahead.ns, ratelimit_priv_seen(b->rest), step_ns);
}

static void ratelimit_priv_save(const ratelimit_priv_step *s, ratelimit_bucket *b, uint64_t now)
{
    uint64_t ahead = s->debt.ns + s->to_end;
    memset(b, 0, sizeof *b);
    if (s->debt.ns == 0 && s->debt.part == 0)
        return;
    b->full_ns = now + ahead;
    b->rest = ratelimit_priv_pack(s->debt.part, s->l) |
              (uint64_t)(s->l->code & RATELIMIT_PRIV_REMEMBERED) << 24 |
              ratelimit_priv_seen_code(ahead) << 53 | (b->full_ns < now ? RATELIMIT_PRIV_TOP : 0);
}

/* Notes that a bucket was seen by a request that changed nothing, once in a while. */
static void ratelimit_priv_note(const ratelimit_priv_step *s, ratelimit_bucket *b)
{
    uint64_t ahead = s->debt.ns + s->to_end, seen = ratelimit_priv_seen(b->rest);
    if (s->debt.ns && seen > ahead && seen - ahead > RATELIMIT_PRIV_NOTE)
        b->rest = (b->rest & ~RATELIMIT_PRIV_SEEN) | ratelimit_priv_seen_code(ahead) << 53;
}

/* ns until a debt is gone; a fixed window gives nothing back before its end. */
static uint64_t ratelimit_priv_time(const ratelimit_priv_step *s, ratelimit_priv_span debt)
{
    uint64_t ns = debt.ns + (debt.part != 0);
    return ns && s->to_end ? s->to_end + (ns - 1) / s->l->per_ns * s->l->per_ns : ns;
}

/* ns until debt + cost is within the window. */
static uint64_t ratelimit_priv_until(const ratelimit_priv_step *s, ratelimit_priv_span cost)
{
    ratelimit_priv_span sum = ratelimit_priv_plus(s->debt, cost, s->l->parts);
    return ratelimit_priv_time(s,
                               ratelimit_priv_minus(sum, ratelimit_priv_window(s->l), s->l->parts));
}

static uint64_t ratelimit_priv_remaining(const ratelimit_priv_step *s)
{
    return ratelimit_priv_count(
        s->l, ratelimit_priv_minus(ratelimit_priv_window(s->l), s->debt, s->l->parts));
}

static ratelimit_priv_span ratelimit_priv_interval(const ratelimit_limit *l)
{
    return ratelimit_priv_span_of(l->interval_ns, l->interval_part);
}

/* The debt that makes a take of one pass ns from now and not before. */
static ratelimit_priv_span ratelimit_priv_block(const ratelimit_priv_step *s, uint64_t ns)
{
    const ratelimit_limit *l = s->l;
    ratelimit_priv_span debt = ratelimit_priv_window(l);
    if (!s->to_end) {
        debt = ratelimit_priv_minus(debt, ratelimit_priv_interval(l), l->parts);
        debt.ns += ns;
    } else if (ns > s->to_end) {
        debt.ns += (ns - s->to_end - 1) / l->per_ns * l->per_ns + l->per_ns;
    }
    return debt;
}

/* Take, peek and reserve: may n tokens be had, now or (reserve) within max_wait_ns? */
static ratelimit_status ratelimit_priv_may(ratelimit_priv_step *s, const ratelimit_request *q)
{
    if (s->n > s->l->burst)
        return RATELIMIT_NEVER;
    if (!s->over)
        return RATELIMIT_OK;
    if (q->op != RATELIMIT_RESERVE)
        return RATELIMIT_DENIED;
    s->wait = ratelimit_priv_until(s, s->cost);
    return s->wait <= q->max_wait_ns && ratelimit_priv_bearable(s) ? RATELIMIT_OK
                                                                   : RATELIMIT_TIMEOUT;
}

/* What the operation does to the debt. */
static ratelimit_status ratelimit_priv_apply(ratelimit_priv_step *s, const ratelimit_request *q)
{
    ratelimit_status status = RATELIMIT_OK;
    ratelimit_priv_span to = {0, 0};
    switch (q->op) {
    case RATELIMIT_TAKE_UP_TO: /* so far n is 1 */
        if (s->over)
            return RATELIMIT_DENIED;
        s->taken = ratelimit_priv_remaining(s);
        s->taken = s->taken < q->n ? s->taken : q->n;
        s->fits = ratelimit_priv_cost(s->l, s->taken, &s->cost);
        break;
    case RATELIMIT_CHARGE:
        if (!ratelimit_priv_bearable(s))
            return RATELIMIT_NEVER;
        s->taken = s->n;
        break;
    case RATELIMIT_REFUND:
        to = s->fits ? ratelimit_priv_minus(s->debt, s->cost, s->l->parts) : to;
        break;
    case RATELIMIT_BLOCK:
        to = ratelimit_priv_block(s, q->max_wait_ns);
        to = ratelimit_priv_above(to, s->debt) ? to : s->debt;
        break;
    case RATELIMIT_RESET:
        break;
    case RATELIMIT_TAKE:
    case RATELIMIT_PEEK:
    case RATELIMIT_RESERVE:
    default:
        status = ratelimit_priv_may(s, q);
        s->taken = status == RATELIMIT_OK && q->op != RATELIMIT_PEEK ? s->n : 0;
    }
    if (s->taken) {
        s->debt = ratelimit_priv_plus(s->debt, s->cost, s->l->parts);
    } else if (q->op >= RATELIMIT_REFUND) {
        s->debt = to;
        s->dirty = true;
    }
    return status;
}

static void ratelimit_priv_report(const ratelimit_priv_step *s, ratelimit_op op,
                                  ratelimit_status status, ratelimit_result *out)
{
    ratelimit_priv_answer(out, status);
    out->limit = s->l->burst;
    out->remaining = ratelimit_priv_remaining(s);
    out->taken = op == RATELIMIT_REFUND ? s->n : s->taken;
    out->reset_after_ns = ratelimit_priv_time(s, s->debt);
    if (status == RATELIMIT_NEVER)
        out->retry_after_ns = RATELIMIT_FOREVER;
    else if (status != RATELIMIT_OK)
        out->retry_after_ns = ratelimit_priv_until(s, s->cost);
    if (op == RATELIMIT_CHARGE || op == RATELIMIT_BLOCK)
        out->wait_ns = ratelimit_priv_until(s, ratelimit_priv_interval(s->l));
    else if (status == RATELIMIT_OK)
        out->wait_ns = s->wait;
}

/* The tokens that are weighed before the operation does its work. */
static uint64_t ratelimit_priv_tokens(const ratelimit_request *q)
{
    bool one = q->n == 0 || q->op == RATELIMIT_TAKE_UP_TO || q->op >= RATELIMIT_BLOCK;
    return one ? 1 : q->n;
}

/* Any request on a bucket, its limit being good and not unlimited. */
static bool ratelimit_priv_decide(ratelimit_bucket *b, const ratelimit_limit *l,
                                  const ratelimit_request *q, uint64_t now, uint64_t step_ns,
                                  ratelimit_result *out)
{
    ratelimit_priv_step s;
    ratelimit_status status;
    ratelimit_priv_look(&s, b, l, ratelimit_priv_tokens(q), now, step_ns);
    status = ratelimit_priv_apply(&s, q);
    if (q->op != RATELIMIT_PEEK) {
        if (s.taken || s.dirty)
            ratelimit_priv_save(&s, b, now);
        else
            ratelimit_priv_note(&s, b);
    }
    if (out)
        ratelimit_priv_report(&s, q->op, status, out);
    return status == RATELIMIT_OK;
}

/* The quick way: a take of one token at the interval the bucket was last charged at, without a
 * division. It answers as the general way does, or leaves the answer to it. Half of it would be
 * code twice where size matters. */
#  if defined(__OPTIMIZE_SIZE__)
#    define RATELIMIT_PRIV_QUICK 0
#  else
#    define RATELIMIT_PRIV_QUICK 1
#  endif

typedef enum ratelimit_priv_answered {
    RATELIMIT_PRIV_UNSURE,
    RATELIMIT_PRIV_TAKEN,
    RATELIMIT_PRIV_REFUSED /* and nothing is to be stored */
} ratelimit_priv_answered;

/* A refusal is quick if the bucket was seen lately: neither need that be noted, nor was the clock
 * set back. */
static inline ratelimit_priv_answered ratelimit_priv_quick_refusal(uint64_t debt, uint64_t rest,
                                                                   uint64_t step_ns)
{
    uint64_t seen = ratelimit_priv_seen(rest);
    bool lately = seen <= debt ? debt - seen <= step_ns
                               : seen - debt <= RATELIMIT_PRIV_NOTE ||
                                     ratelimit_priv_seen_code(debt) == rest >> 53;
    return lately ? RATELIMIT_PRIV_REFUSED : RATELIMIT_PRIV_UNSURE;
}

/* whole: the interval is known to be a whole number of ns, and refusals are left to others. */
static RATELIMIT_PRIV_INLINE ratelimit_priv_answered ratelimit_priv_quick(ratelimit_bucket *b,
                                                                          const ratelimit_limit *l,
                                                                          bool whole, uint64_t now,
                                                                          uint64_t step_ns)
{
    const uint64_t mask = (uint64_t)RATELIMIT_PRIV_REMEMBERED << 24 | RATELIMIT_PRIV_TOP;
    uint64_t at = b->full_ns, rest = b->rest, code = (uint64_t)l->code << 24 & mask, ahead;
    uint32_t part = 0, carry;
    if (ratelimit_priv_kind(l) != RATELIMIT_PRIV_BUCKET || ((rest & mask) != code && rest))
        return RATELIMIT_PRIV_UNSURE;
    if (at < now)
        at = now;
    else if (!whole && l->interval_part)
        part = ratelimit_priv_unpack(rest, l);
    at += l->interval_ns;
    if (!whole && l->interval_part) {
        part += l->interval_part;
        carry = part >= l->parts; /* not a branch: which way it goes can't be predicted */
        part -= l->parts & (0 - carry);
        at += carry;
        code |= ratelimit_priv_pack(part, l);
    }
    ahead = at - now;
    if (at < now)
        return RATELIMIT_PRIV_UNSURE;
    if (ahead > l->window_ns || (ahead == l->window_ns && part > l->window_part))
        return whole ? RATELIMIT_PRIV_UNSURE
                     : ratelimit_priv_quick_refusal(b->full_ns - now, rest, step_ns);
    b->full_ns = at;
    b->rest = code | ratelimit_priv_seen_code(ahead) << 53;
    return RATELIMIT_PRIV_TAKEN;
}

/* The end of a take that was answered the quick way, *b being the bucket after it. */
static RATELIMIT_PRIV_APART bool ratelimit_priv_quick_report(const ratelimit_bucket *b,
                                                             const ratelimit_limit *l, uint64_t now,
                                                             ratelimit_priv_answered answered,
                                                             ratelimit_result *out)
{
    ratelimit_priv_step s;
    memset(&s, 0, sizeof s);
    s.l = l;
    s.cost = ratelimit_priv_interval(l);
    s.debt = ratelimit_priv_ahead(b, l, now);
    s.taken = answered == RATELIMIT_PRIV_TAKEN;
    ratelimit_priv_report(&s, RATELIMIT_TAKE, s.taken ? RATELIMIT_OK : RATELIMIT_DENIED, out);
    return s.taken != 0;
}

/* ---- >>implementation: bucket ---------------------------------------------------------------- */

static inline ratelimit_request ratelimit_priv_take_request(const void *key, size_t key_len,
                                                            const ratelimit_limit *limit,
                                                            uint64_t n)
{
    ratelimit_request q;
    q.key = key;
    q.key_len = key_len;
    q.limit = limit;
    q.n = n;
    q.op = RATELIMIT_TAKE;
    q.max_wait_ns = 0;
    return q;
}

/* What needs no bucket: true if *out and the answer are settled, false if l is to be decided on a
 * bucket. */
static bool ratelimit_priv_settled(const ratelimit_request *q, const ratelimit_limit *ready,
                                   ratelimit_result *out)
{
    ratelimit_status status = ratelimit_priv_check(q, ready);
    if (status != RATELIMIT_OK)
        ratelimit_priv_answer(out, status);
    else if (ratelimit_priv_kind(ready) == RATELIMIT_PRIV_UNLIMITED)
        ratelimit_priv_unlimited(q, out);
    else
        return false;
    return true;
}

RATELIMIT_API bool ratelimit_bucket_decide(ratelimit_bucket *b, const ratelimit_request *req,
                                           uint64_t now_ns, ratelimit_result *out_or_null)
{
    ratelimit_limit made;
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    const ratelimit_limit *l;
    if (!b || !req) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    l = ratelimit_priv_ready(req->limit, &made);
    if (ratelimit_priv_settled(req, l, out))
        return out->allowed;
    return ratelimit_priv_decide(b, l, req, now_ns, RATELIMIT_STEP_NS, out_or_null);
}

/* Apart, so that the shortest way needs no stack. */
static RATELIMIT_PRIV_APART bool ratelimit_priv_bucket_take(ratelimit_bucket *b,
                                                            const ratelimit_limit *limit,
                                                            uint64_t n, uint64_t now_ns,
                                                            ratelimit_result *out_or_null)
{
    ratelimit_request q = ratelimit_priv_take_request(NULL, 0, limit, n);
    ratelimit_priv_answered answered = RATELIMIT_PRIV_UNSURE;
    if (RATELIMIT_PRIV_QUICK && b && limit && n == 1)
        answered = ratelimit_priv_quick(b, limit, false, now_ns, RATELIMIT_STEP_NS);
    if (answered == RATELIMIT_PRIV_UNSURE)
        return ratelimit_bucket_decide(b, &q, now_ns, out_or_null);
    if (out_or_null)
        return ratelimit_priv_quick_report(b, limit, now_ns, answered, out_or_null);
    return answered == RATELIMIT_PRIV_TAKEN;
}

RATELIMIT_API bool ratelimit_bucket_take(ratelimit_bucket *b, const ratelimit_limit *limit,
                                         uint64_t n, uint64_t now_ns, ratelimit_result *out_or_null)
{
    ratelimit_priv_answered answered = RATELIMIT_PRIV_UNSURE;
    if (RATELIMIT_PRIV_QUICK && b && limit && n == 1 && !limit->interval_part && !out_or_null)
        answered = ratelimit_priv_quick(b, limit, true, now_ns, RATELIMIT_STEP_NS);
    if (answered == RATELIMIT_PRIV_UNSURE)
        return ratelimit_priv_bucket_take(b, limit, n, now_ns, out_or_null);
    return answered == RATELIMIT_PRIV_TAKEN;
}

/* The lock of a shared bucket is its word `rest`, replaced by a mark while held. Only a bucket
 * changed since it was read makes the compare-and-swap fail, or full_ns differ afterwards; then all
 * is decided anew. A mark that stands still is of a dead holder, and what it replaced is lost: a
 * fraction of a ns, and the interval, taken to be the caller's. */
#  if RATELIMIT_PRIV_ATOMIC64
static inline bool ratelimit_priv_swap64(uint64_t *p, uint64_t old, uint64_t value)
{
#    if defined(__GNUC__)
    return __atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
#    else
    return (uint64_t)_InterlockedCompareExchange64((volatile __int64 *)p, (__int64)value,
                                                   (__int64)old) == old;
#    endif
}

static inline bool ratelimit_priv_held(uint64_t rest)
{
    return (rest >> 44 & 127) == RATELIMIT_PRIV_HELD;
}

/* A mark that differs from others of its kind by the state it replaces. It keeps what is needed if
 * its holder dies, and of old and new that which makes sense with either full_ns: the old where it
 * goes on, the new where it goes back. */
static inline uint64_t ratelimit_priv_mark(const ratelimit_bucket *old, const ratelimit_bucket *now)
{
    uint64_t mix = (old->full_ns ^ old->rest) * UINT64_C(0x9E3779B97F4A7C15);
    uint64_t rest = !old->rest || (now->rest && now->full_ns - old->full_ns > RATELIMIT_PRIV_LONG)
                        ? now->rest
                        : old->rest;
    return (rest & (RATELIMIT_PRIV_SEEN | RATELIMIT_PRIV_TOP)) | ratelimit_priv_rest_code(rest) |
           (uint64_t)RATELIMIT_PRIV_HELD << 44 | (mix >> 48) << 28;
}

/* A consistent copy of *b, unheld. A dead holder's mark is replaced. */
static ratelimit_bucket ratelimit_priv_shared_read(ratelimit_bucket *b)
{
    uint64_t seen = 0;
    uint32_t turns = 0;
    for (;;) {
        ratelimit_bucket copy;
        copy.rest = ratelimit_priv_load64(&b->rest);
        copy.full_ns = ratelimit_priv_load64(&b->full_ns);
        if (!ratelimit_priv_held(copy.rest)) {
            if (ratelimit_priv_load64(&b->rest) == copy.rest)
                return copy;
            continue;
        }
        if (copy.rest != seen) {
            seen = copy.rest;
            turns = 0;
        }
        if (ratelimit_priv_wait_turn(&turns)) {
            uint64_t whole = (copy.rest & (RATELIMIT_PRIV_SEEN | RATELIMIT_PRIV_TOP)) |
                             (copy.rest & RATELIMIT_PRIV_REMEMBERED) << 24 | 0xffffff;
            (void)ratelimit_priv_swap64(&b->rest, copy.rest, whole);
        }
    }
}

static inline bool ratelimit_priv_shared_write(ratelimit_bucket *b, const ratelimit_bucket *old,
                                               const ratelimit_bucket *now)
{
    if (!ratelimit_priv_swap64(&b->rest, old->rest, ratelimit_priv_mark(old, now)))
        return false;
    if (ratelimit_priv_load64(&b->full_ns) != old->full_ns) {
        ratelimit_priv_store64(&b->rest, old->rest);
        return false;
    }
    ratelimit_priv_store64(&b->full_ns, now->full_ns);
    ratelimit_priv_store64(&b->rest, now->rest);
    return true;
}

RATELIMIT_API bool ratelimit_bucket_decide_shared(ratelimit_bucket *b, const ratelimit_request *req,
                                                  uint64_t now_ns, ratelimit_result *out_or_null)
{
    ratelimit_limit made;
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    const ratelimit_limit *l = req ? ratelimit_priv_ready(req->limit, &made) : NULL;
    if (!b || !req) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    if (ratelimit_priv_settled(req, l, out))
        return out->allowed;
    for (;;) {
        ratelimit_bucket old = ratelimit_priv_shared_read(b), copy = old;
        bool allowed = ratelimit_priv_decide(&copy, l, req, now_ns, RATELIMIT_STEP_NS, out_or_null);
        if ((copy.full_ns == old.full_ns && copy.rest == old.rest) ||
            ratelimit_priv_shared_write(b, &old, &copy))
            return allowed;
    }
}

RATELIMIT_API bool ratelimit_bucket_take_shared(ratelimit_bucket *b, const ratelimit_limit *limit,
                                                uint64_t n, uint64_t now_ns,
                                                ratelimit_result *out_or_null)
{
    ratelimit_request q;
    if (RATELIMIT_PRIV_QUICK && b && limit && n == 1) {
        ratelimit_bucket old, copy;
        ratelimit_priv_answered answered;
        old.rest = ratelimit_priv_load64(&b->rest);
        old.full_ns = ratelimit_priv_load64(&b->full_ns);
        copy = old;
        answered = ratelimit_priv_quick(&copy, limit, false, now_ns, RATELIMIT_STEP_NS);
        if (answered == RATELIMIT_PRIV_REFUSED ? ratelimit_priv_load64(&b->rest) == old.rest
            : answered == RATELIMIT_PRIV_TAKEN ? ratelimit_priv_shared_write(b, &old, &copy)
                                               : false) {
            if (out_or_null)
                return ratelimit_priv_quick_report(&copy, limit, now_ns, answered, out_or_null);
            return answered == RATELIMIT_PRIV_TAKEN;
        }
    }
    q = ratelimit_priv_take_request(NULL, 0, limit, n);
    return ratelimit_bucket_decide_shared(b, &q, now_ns, out_or_null);
}
#  else
RATELIMIT_API bool ratelimit_bucket_decide_shared(ratelimit_bucket *b, const ratelimit_request *req,
                                                  uint64_t now_ns, ratelimit_result *out_or_null)
{
    return ratelimit_bucket_decide(b, req, now_ns, out_or_null);
}

RATELIMIT_API bool ratelimit_bucket_take_shared(ratelimit_bucket *b, const ratelimit_limit *limit,
                                                uint64_t n, uint64_t now_ns,
                                                ratelimit_result *out_or_null)
{
    return ratelimit_bucket_take(b, limit, n, now_ns, out_or_null);
}
#  endif

/* ---- >>implementation: table --------------------------------------------------------------------

   Head, then lines. A line is a lock, three tags and three buckets: 64 bytes, one cache line. Up to
   eight neighbouring lines make a block, and a key lives in a block: 24 places. A keyed hash of 64
   bits gives the block (upper half) and the tag (lower half, 0 means empty), and the tag gives the
   home line, where the key goes if there is room. At half full 93 of 100 keys are at home, and 1 of
   10,000 finds no place (Poisson; tests/test_table.c counts both).

   A decision reads a line, computes, and commits with the line's lock if nothing changed meanwhile.
   Only what must look at a whole block (a new key, all-or-none) locks all its lines, in address
   order.

   A place whose bucket is full again is as good as empty: that is what lets the table forget
   without harm. */

typedef struct ratelimit_priv_line {
    uint32_t lock;
    uint32_t tag[3];
    ratelimit_bucket bucket[3];
} ratelimit_priv_line;

struct ratelimit_table {
    uint32_t magic, version, blocks;
    uint16_t lines, when_full; /* lines per block */
    uint64_t seed[2];
    uint64_t step_ns;
    uint64_t check; /* hash of all above */
    uint64_t unused[2];
    /* second cache line: what changes */
    uint64_t evicted, refused;
    uint64_t clock, clock_self, clock_stamp; /* see ratelimit_table_store */
    uint64_t unused2[3];
};

typedef char
    ratelimit_priv_check_layout[sizeof(ratelimit_priv_line) == 64 &&
                                        sizeof(ratelimit_bucket) == 16 &&
                                        sizeof(struct ratelimit_table) == RATELIMIT_PRIV_HEAD_BYTES
                                    ? 1
                                    : -1];

#  define RATELIMIT_PRIV_MAGIC         UINT32_C(0x31424C52) /* "RLB1" on little-endian */
#  define RATELIMIT_PRIV_TABLE_VERSION 1u

/* SipHash-1-3 (Aumasson, Bernstein): no known way to make keys collide without the seed. */
static inline uint64_t ratelimit_priv_rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void ratelimit_priv_round(uint64_t v[4])
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

static inline uint64_t ratelimit_priv_le64(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
           (uint64_t)p[7] << 56;
}

static inline uint64_t ratelimit_priv_hash(const void *key, size_t key_len, const uint64_t *seed)
{
    const unsigned char *p = (const unsigned char *)key;
    size_t left = key_len;
    uint64_t word, v[4];
    v[0] = seed[0] ^ UINT64_C(0x736f6d6570736575);
    v[1] = seed[1] ^ UINT64_C(0x646f72616e646f6d);
    v[2] = seed[0] ^ UINT64_C(0x6c7967656e657261);
    v[3] = seed[1] ^ UINT64_C(0x7465646279746573);
    for (; left >= 8; left -= 8, p += 8) {
        word = ratelimit_priv_le64(p);
        v[3] ^= word;
        ratelimit_priv_round(v);
        v[0] ^= word;
    }
    word = (uint64_t)(key_len & 255) << 56;
    if (left && key_len >= 8) { /* the last bytes by one load that ends with the key */
        word |= ratelimit_priv_le64(p + left - 8) >> (64 - 8 * left);
    } else {
        while (left--)
            word |= (uint64_t)p[left] << (8 * left);
    }
    v[3] ^= word;
    ratelimit_priv_round(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    ratelimit_priv_round(v);
    ratelimit_priv_round(v);
    ratelimit_priv_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Where a key may be. */
typedef struct ratelimit_priv_place {
    ratelimit_priv_line *block;
    uint32_t tag, home; /* home is a line of the block */
} ratelimit_priv_place;

static inline ratelimit_priv_line *ratelimit_priv_lines(const ratelimit_table *t)
{
    return (ratelimit_priv_line *)((uintptr_t)t + RATELIMIT_PRIV_HEAD_BYTES);
}

/* kind: 0 for buckets, another number for what must not meet them under the same key. */
static inline ratelimit_priv_place ratelimit_priv_locate(const ratelimit_table *t, const void *key,
                                                         size_t key_len, uint32_t kind)
{
    uint64_t hash = ratelimit_priv_hash(key, key_len, t->seed);
    ratelimit_priv_place at;
    at.block = ratelimit_priv_lines(t) + (size_t)((hash >> 32) * t->blocks >> 32) * t->lines;
    at.tag = (uint32_t)hash ^ kind;
    at.tag += at.tag == 0;
    at.home = (uint32_t)((uint64_t)at.tag * t->lines >> 32);
    return at;
}

static inline uint32_t ratelimit_priv_next(const ratelimit_table *t, uint32_t line)
{
    return line + 1 == t->lines ? 0 : line + 1;
}

/* The slot of tag in a line, or 3. Without branches: which slot it is can't be predicted. */
static inline uint32_t ratelimit_priv_slot(const ratelimit_priv_line *line, uint32_t tag)
{
    uint32_t a = ratelimit_priv_load32(&line->tag[0]) == tag;
    uint32_t b = ratelimit_priv_load32(&line->tag[1]) == tag;
    uint32_t c = ratelimit_priv_load32(&line->tag[2]) == tag;
    return 0x1213u >> (2 * (a | b << 1 | c << 2)) &
           3; /* 3 for none; a damaged line may have it twice */
}

static inline ratelimit_bucket ratelimit_priv_fetch(const ratelimit_bucket *from)
{
    ratelimit_bucket b;
    b.full_ns = ratelimit_priv_load64(&from->full_ns);
    b.rest = ratelimit_priv_load64(&from->rest);
    return b;
}

static inline void ratelimit_priv_put_bucket(ratelimit_bucket *to, const ratelimit_bucket *b)
{
    if (!b->rest || b->full_ns - to->full_ns <= RATELIMIT_PRIV_LONG) {
        ratelimit_priv_store64(&to->full_ns, b->full_ns);
        ratelimit_priv_store64(&to->rest, b->rest);
    } else {
        ratelimit_priv_store64(&to->rest, b->rest);
        ratelimit_priv_store64(&to->full_ns, b->full_ns);
    }
}

static inline bool ratelimit_priv_same(const ratelimit_bucket *a, const ratelimit_bucket *b)
{
    return a->full_ns == b->full_ns && a->rest == b->rest;
}

/* Waits, holding nothing, until lock number which of these lines moves. If it does not its holder
 * is dead, and so is that of every other held lock that stood still as long: all of them are freed.
 * */
static void ratelimit_priv_wait_lines(ratelimit_priv_line *line, uint32_t count, uint32_t which)
{
#  if RATELIMIT_PRIV_ATOMIC
    uint32_t i, word[RATELIMIT_PRIV_BLOCK], turns = 1000;
    for (i = 0; i < count; i++)
        word[i] = ratelimit_priv_load32(&line[i].lock);
    if (!(word[which] & 1))
        return;
    while (!ratelimit_priv_wait_turn(&turns))
        if (ratelimit_priv_load32(&line[which].lock) != word[which])
            return;
    for (i = 0; i < count; i++)
        if (word[i] & 1)
            (void)ratelimit_priv_swap32(&line[i].lock, word[i], word[i] + 1);
#  else
    (void)line, (void)count, (void)which;
#  endif
}

static void ratelimit_priv_unlock_lines(ratelimit_priv_line *line, uint32_t count,
                                        const uint32_t *word)
{
    (void)line, (void)word;
    while (count--) {
#  if RATELIMIT_PRIV_ATOMIC
        ratelimit_priv_unlock(&line[count].lock, word[count]);
#  elif defined(RATELIMIT_LOCK)
        RATELIMIT_UNLOCK(&line[count].lock);
#  endif
    }
}

/* Locks all of them and returns count; or none, if one is held for longer than a spin, and returns
 * which. Nobody may sleep while holding a lock: another waiter would take it for the lock of a dead
 * one. So whoever calls this then gives back what it has and waits for that line. */
static uint32_t ratelimit_priv_lock_lines(ratelimit_priv_line *line, uint32_t count, uint32_t *word)
{
    uint32_t i;
    (void)line, (void)word;
    for (i = 0; i < count; i++) {
#  if RATELIMIT_PRIV_ATOMIC
        if (!ratelimit_priv_try_lock(&line[i].lock, &word[i])) {
            ratelimit_priv_unlock_lines(line, i, word);
            return i;
        }
#  elif defined(RATELIMIT_LOCK)
        RATELIMIT_LOCK(&line[i].lock);
#  endif
    }
    return count;
}

static void ratelimit_priv_lock_block(ratelimit_priv_line *line, uint32_t count, uint32_t *word)
{
    uint32_t which;
    while ((which = ratelimit_priv_lock_lines(line, count, word)) < count)
        ratelimit_priv_wait_lines(line, count, which);
}

static void ratelimit_priv_unlock_block(const ratelimit_table *t, ratelimit_priv_line *block,
                                        const uint32_t *word)
{
    ratelimit_priv_unlock_lines(block, t->lines, word);
}

/* A slot in a locked block, and what it held before it was written, for taking it back. */
typedef struct ratelimit_priv_slot_ref {
    ratelimit_priv_line *line;
    uint32_t slot, old_tag;
    ratelimit_bucket old;
    bool evicted;
} ratelimit_priv_slot_ref;

static bool ratelimit_priv_find(const ratelimit_table *t, const ratelimit_priv_place *at,
                                ratelimit_priv_slot_ref *ref)
{
    uint32_t i, line = at->home;
    for (i = 0; i < t->lines; i++, line = ratelimit_priv_next(t, line)) {
        ref->slot = ratelimit_priv_slot(&at->block[line], at->tag);
        if (ref->slot < 3) {
            ref->line = &at->block[line];
            ref->old_tag = at->tag;
            ref->old = ref->line->bucket[ref->slot];
            return true;
        }
    }
    return false;
}

/* Is a a better victim than b by the table's policy? Both are in debt. */
static bool ratelimit_priv_better(const ratelimit_table *t, const ratelimit_bucket *a,
                                  const ratelimit_bucket *b, uint64_t now)
{
    uint64_t debt_a = ratelimit_priv_debt(a, now), debt_b = ratelimit_priv_debt(b, now);
    uint64_t seen_a = ratelimit_priv_seen(a->rest), seen_b = ratelimit_priv_seen(b->rest);
    /* ns since it was seen; debts that grew since then are of a clock that was set back */
    uint64_t idle_a = seen_a > debt_a ? seen_a - debt_a : 0,
             idle_b = seen_b > debt_b ? seen_b - debt_b : 0;
    if (t->when_full == RATELIMIT_EVICT_LAST_SEEN)
        return idle_a > idle_b;
    return debt_a < debt_b || (debt_a == debt_b && idle_a > idle_b);
}

/* The slot a new key gets: the first free one from home on; if there is none, the policy's choice
 * among those in debt. False if all are in flight. *debt is 0 for a free one, else the least debt
 * of all, which is when a place will be free. */
static bool ratelimit_priv_choose(const ratelimit_table *t, const ratelimit_priv_place *at,
                                  uint64_t now, ratelimit_priv_slot_ref *ref, uint64_t *debt)
{
    uint32_t i, slot, line = at->home;
    bool found = false;
    memset(&ref->old, 0, sizeof ref->old);
    *debt = UINT64_MAX;
    for (i = 0; i < t->lines; i++, line = ratelimit_priv_next(t, line))
        for (slot = 0; slot < 3; slot++) {
            ratelimit_priv_line *l = &at->block[line];
            const ratelimit_bucket *b = &l->bucket[slot];
            uint64_t owed = l->tag[slot] ? ratelimit_priv_debt(b, now) : 0;
            *debt = owed < *debt ? owed : *debt;
            if (owed && (ratelimit_priv_in_flight(b) ||
                         (found && !ratelimit_priv_better(t, b, &ref->old, now))))
                continue;
            found = true;
            ref->line = l;
            ref->slot = slot;
            ref->old_tag = l->tag[slot];
            ref->old = *b;
            if (!owed)
                return true;
        }
    return found;
}

/* Stores under the block's locks, in an order that leaves a sound line wherever a process dies: the
 * tag first, so that a bucket half written belongs to the newcomer, who then owes at most what
 * another did. */
static void ratelimit_priv_write(ratelimit_priv_slot_ref *ref, uint32_t tag,
                                 const ratelimit_bucket *b)
{
    if (ref->old_tag != tag)
        ratelimit_priv_store32(&ref->line->tag[ref->slot], tag);
    ratelimit_priv_put_bucket(&ref->line->bucket[ref->slot], b);
}

/* One request on a block whose lines are all locked; *ref says what was there before. True if it
 * wrote. */
static bool ratelimit_priv_decide_locked(ratelimit_table *t, const ratelimit_priv_place *at,
                                         const ratelimit_limit *l, const ratelimit_request *q,
                                         uint64_t now, ratelimit_result *out,
                                         ratelimit_priv_slot_ref *ref)
{
    ratelimit_bucket from = {0, 0}, b;
    uint64_t debt = 0;
    bool found = ratelimit_priv_find(t, at, ref), room = true;
    if (found) {
        from = ref->old;
    } else if (q->op != RATELIMIT_REFUND && q->op != RATELIMIT_RESET) { /* these make no bucket */
        room = ratelimit_priv_choose(t, at, now, ref, &debt) &&
               (!debt || t->when_full != RATELIMIT_REFUSE);
        if (room && debt && t->when_full == RATELIMIT_INHERIT) {
            from.full_ns = ref->old.full_ns;
            from.rest = (ref->old.rest & ~((uint64_t)RATELIMIT_PRIV_REMEMBERED << 24)) |
                        (uint64_t)(l->code & RATELIMIT_PRIV_REMEMBERED) << 24;
        }
    }
    b = from;
    ratelimit_priv_decide(&b, l, q, now, t->step_ns, out);
    if (!room && out->status != RATELIMIT_NEVER) {
        if (q->op != RATELIMIT_PEEK)
            ratelimit_priv_add64(&t->refused, 1);
        ratelimit_priv_answer(out, RATELIMIT_FULL);
        out->limit = l->burst;
        out->retry_after_ns = debt;
    }
    if (ratelimit_priv_same(&b, &from) || (!found && !out->allowed))
        return false; /* a newcomer who is refused takes nobody's place */
    ref->evicted = debt && t->when_full != RATELIMIT_INHERIT;
    if (ref->evicted)
        ratelimit_priv_add64(&t->evicted, 1);
    ratelimit_priv_write(ref, at->tag, &b);
    return true;
}

/* Replaces a bucket that was read from a line whose lock was seq, unless the line has changed
 * since. */
static inline bool ratelimit_priv_commit(ratelimit_priv_line *line, uint32_t seq, uint32_t slot,
                                         const ratelimit_bucket *b)
{
#  if RATELIMIT_PRIV_ATOMIC
    if (!ratelimit_priv_swap32(&line->lock, seq, seq + 1))
        return false;
    ratelimit_priv_put_bucket(&line->bucket[slot], b);
    if (ratelimit_priv_load32(&line->lock) == seq + 1) /* else it was taken over */
        ratelimit_priv_store32(&line->lock, seq + 2);
#  else
    (void)seq;
    line->bucket[slot] = *b;
#  endif
    return true;
}

#  if !defined(RATELIMIT_LOCK)
/* A take of one token by a key that is there, the quick way; *b is the bucket after it. */
static RATELIMIT_PRIV_INLINE ratelimit_priv_answered
ratelimit_priv_take_quick(const ratelimit_table *t, const ratelimit_priv_place *at,
                          const ratelimit_limit *l, uint64_t now, ratelimit_bucket *b)
{
    uint32_t i, index = at->home;
    for (i = 0; i < t->lines; i++, index = ratelimit_priv_next(t, index)) {
        ratelimit_priv_line *line = &at->block[index];
        uint32_t seq = ratelimit_priv_load32(&line->lock),
                 slot = ratelimit_priv_slot(line, at->tag);
        ratelimit_priv_answered answered;
        if (slot == 3)
            continue;
        *b = ratelimit_priv_fetch(&line->bucket[slot]);
        answered =
            seq & 1 ? RATELIMIT_PRIV_UNSURE : ratelimit_priv_quick(b, l, false, now, t->step_ns);
        if (answered == RATELIMIT_PRIV_TAKEN ? !ratelimit_priv_commit(line, seq, slot, b)
                                             : ratelimit_priv_load32(&line->lock) != seq)
            return RATELIMIT_PRIV_UNSURE;
        return answered;
    }
    return RATELIMIT_PRIV_UNSURE;
}
#  endif

/* One request, its key located, its limit good. */
static bool ratelimit_priv_decide_at(ratelimit_table *t, const ratelimit_priv_place *at,
                                     const ratelimit_limit *l, const ratelimit_request *q,
                                     uint64_t now, ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    ratelimit_priv_slot_ref ref;
    uint32_t word[RATELIMIT_PRIV_BLOCK];
#  if !defined(RATELIMIT_LOCK)
    uint32_t i = 0, tries = 0, index = at->home;
    if (RATELIMIT_PRIV_QUICK && q->op == RATELIMIT_TAKE && q->n == 1) {
        ratelimit_bucket b;
        ratelimit_priv_answered answered = ratelimit_priv_take_quick(t, at, l, now, &b);
        if (answered != RATELIMIT_PRIV_UNSURE)
            return out_or_null ? ratelimit_priv_quick_report(&b, l, now, answered, out_or_null)
                               : answered == RATELIMIT_PRIV_TAKEN;
    }
    while (i < t->lines && tries < 100) {
        ratelimit_priv_line *line = &at->block[index];
        uint32_t seq = ratelimit_priv_load32(&line->lock),
                 slot = ratelimit_priv_slot(line, at->tag);
        ratelimit_bucket old, b;
        bool allowed;
        if (seq & 1)
            break;
        if (slot == 3) {
            index = ratelimit_priv_next(t, index);
            i++;
            continue;
        }
        old = b = ratelimit_priv_fetch(&line->bucket[slot]);
        allowed = ratelimit_priv_decide(&b, l, q, now, t->step_ns, out_or_null);
        if (ratelimit_priv_same(&old, &b) ? ratelimit_priv_load32(&line->lock) == seq
                                          : ratelimit_priv_commit(line, seq, slot, &b))
            return allowed;
        tries++;
    }
#  endif
    ratelimit_priv_lock_block(at->block, t->lines, word);
    (void)ratelimit_priv_decide_locked(t, at, l, q, now, out, &ref);
    ratelimit_priv_unlock_block(t, at->block, word);
    return out->allowed;
}

RATELIMIT_API size_t ratelimit_table_bytes(size_t max_keys)
{
    size_t lines;
    if (max_keys == 0 || max_keys > SIZE_MAX / 4)
        return 0;
    lines = RATELIMIT_PRIV_LINES(max_keys);
    if (lines > (SIZE_MAX - RATELIMIT_PRIV_HEAD_BYTES - 63) / 64 ||
        lines / RATELIMIT_PRIV_BLOCK > UINT32_MAX - 1)
        return 0;
    return RATELIMIT_TABLE_BYTES(max_keys);
}

/* The head in memory, aligned to a line; NULL if it and one line don't fit. *lines is how many do.
 * */
static ratelimit_table *ratelimit_priv_head(void *memory, size_t bytes, size_t *lines)
{
    size_t skip = (size_t)(64 - ((uintptr_t)memory & 63)) & 63;
    if (bytes < skip || bytes - skip < RATELIMIT_PRIV_HEAD_BYTES + 64)
        return NULL;
    *lines = (bytes - skip - RATELIMIT_PRIV_HEAD_BYTES) / 64;
    return (ratelimit_table *)(void *)((unsigned char *)memory + skip);
}

static uint64_t ratelimit_priv_head_check(const ratelimit_table *t)
{
    return ratelimit_priv_hash(t, offsetof(struct ratelimit_table, check), t->seed);
}

/* A seed where none is given: differs between runs, but is no secret from someone who can guess
 * addresses and times. */
static void ratelimit_priv_make_seed(uint64_t *seed)
{
    uint64_t key[2] = {UINT64_C(0x243F6A8885A308D3), UINT64_C(0x13198A2E03707344)},
             from[3] = {0, 0, 0};
    from[0] = (uint64_t)(uintptr_t)seed;
    from[1] = (uint64_t)(uintptr_t)from;
#  if !defined(RATELIMIT_NO_CLOCK)
    from[2] = ratelimit_clock_ns();
#  endif
    seed[0] = ratelimit_priv_hash(from, sizeof from, key);
    key[0] = seed[0];
    seed[1] = ratelimit_priv_hash(from, sizeof from, key);
}

RATELIMIT_API ratelimit_status ratelimit_table_init(ratelimit_table **out, void *memory,
                                                    size_t bytes,
                                                    const ratelimit_table_options *options_or_null)
{
    ratelimit_table_options options;
    ratelimit_table *t;
    size_t lines, blocks;
    memset(&options, 0, sizeof options);
    if (options_or_null)
        options = *options_or_null;
    if (!out || !memory || (unsigned)options.when_full > RATELIMIT_REFUSE)
        return RATELIMIT_BAD_ARGUMENT;
    t = ratelimit_priv_head(memory, bytes, &lines);
    if (!t)
        return RATELIMIT_NO_MEMORY;
    blocks = RATELIMIT_PRIV_BLOCKS(lines);
    if (lines / blocks * blocks < lines / RATELIMIT_PRIV_BLOCK * RATELIMIT_PRIV_BLOCK)
        blocks = lines / RATELIMIT_PRIV_BLOCK; /* one block more would make all of them shorter */
    if (blocks > UINT32_MAX)
        blocks = UINT32_MAX;
    lines /= blocks;
    if (lines > RATELIMIT_PRIV_BLOCK)
        lines = RATELIMIT_PRIV_BLOCK;
    memset(t, 0, RATELIMIT_PRIV_HEAD_BYTES + blocks * lines * 64);
    t->magic = RATELIMIT_PRIV_MAGIC;
    t->version = RATELIMIT_PRIV_TABLE_VERSION;
    t->blocks = (uint32_t)blocks;
    t->lines = (uint16_t)lines;
    t->when_full = (uint16_t)options.when_full;
    t->step_ns = options.step_ns ? options.step_ns : RATELIMIT_STEP_NS;
    memcpy(t->seed, options.seed, sizeof t->seed);
    if (!(t->seed[0] | t->seed[1]))
        ratelimit_priv_make_seed(t->seed);
    t->check = ratelimit_priv_head_check(t);
    *out = t;
    return RATELIMIT_OK;
}

RATELIMIT_API ratelimit_status ratelimit_table_attach(ratelimit_table **out, void *memory,
                                                      size_t bytes)
{
    ratelimit_table *t;
    size_t lines;
    if (!out || !memory)
        return RATELIMIT_BAD_ARGUMENT;
    t = ratelimit_priv_head(memory, bytes, &lines);
    if (!t)
        return RATELIMIT_NO_MEMORY;
    if (t->magic != RATELIMIT_PRIV_MAGIC || t->version != RATELIMIT_PRIV_TABLE_VERSION ||
        t->check != ratelimit_priv_head_check(t) || t->blocks == 0 || t->lines == 0 ||
        t->lines > RATELIMIT_PRIV_BLOCK || t->when_full > RATELIMIT_REFUSE)
        return RATELIMIT_BAD_ARGUMENT;
    if (lines / t->lines < t->blocks)
        return RATELIMIT_NO_MEMORY;
    *out = t;
    return RATELIMIT_OK;
}

/* True if *res is settled without the table; else *at is where to look, and the line is on its way
 * from memory. */
static bool ratelimit_priv_prepare(const ratelimit_table *t, const ratelimit_request *q,
                                   const ratelimit_limit *ready, ratelimit_priv_place *at,
                                   ratelimit_result *out)
{
    if (!t) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_ARGUMENT);
        return true;
    }
    if (!q->key || q->key_len == 0) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_KEY);
        return true;
    }
    if (ratelimit_priv_settled(q, ready, out))
        return true;
    *at = ratelimit_priv_locate(t, q->key, q->key_len, 0);
    ratelimit_priv_prefetch(&at->block[at->home]);
    return false;
}

/* Apart, so that the quick way needs little stack. at_or_null is where the key may be, if that is
 * known. */
static RATELIMIT_PRIV_APART bool ratelimit_priv_table_slow(ratelimit_table *t,
                                                           const ratelimit_request *q,
                                                           const ratelimit_priv_place *at_or_null,
                                                           uint64_t now,
                                                           ratelimit_result *out_or_null)
{
    ratelimit_limit made;
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    ratelimit_priv_place at;
    const ratelimit_limit *l = ratelimit_priv_ready(q->limit, &made);
    if (at_or_null)
        at = *at_or_null;
    else if (ratelimit_priv_prepare(t, q, l, &at, out))
        return out->allowed;
    return ratelimit_priv_decide_at(t, &at, l, q, now, out_or_null);
}

RATELIMIT_API bool ratelimit_table_take(ratelimit_table *t, const void *key, size_t key_len,
                                        const ratelimit_limit *limit, uint64_t n, uint64_t now_ns,
                                        ratelimit_result *out_or_null)
{
    ratelimit_priv_place *known = NULL;
    ratelimit_request q;
#  if !defined(RATELIMIT_LOCK)
    ratelimit_priv_place at;
    if (RATELIMIT_PRIV_QUICK && t && key && key_len && limit && limit->parts && n == 1 &&
        ratelimit_priv_kind(limit) == RATELIMIT_PRIV_BUCKET) {
        ratelimit_bucket b;
        ratelimit_priv_answered answered;
        at = ratelimit_priv_locate(t, key, key_len, 0);
        known = &at;
        answered = ratelimit_priv_take_quick(t, &at, limit, now_ns, &b);
        if (answered != RATELIMIT_PRIV_UNSURE) {
            if (out_or_null)
                return ratelimit_priv_quick_report(&b, limit, now_ns, answered, out_or_null);
            return answered == RATELIMIT_PRIV_TAKEN;
        }
    }
#  endif
    q = ratelimit_priv_take_request(key, key_len, limit, n);
    return ratelimit_priv_table_slow(t, &q, known, now_ns, out_or_null);
}

/* Where the time comes from: given, or a clock that is read once, after the first lines are on
 * their way. */
typedef struct ratelimit_priv_when {
    ratelimit_clock clock;
    void *self;
    uint64_t now;
} ratelimit_priv_when;

static void ratelimit_priv_read_clock(ratelimit_priv_when *time)
{
    if (time->clock) {
        time->now = time->clock(time->self);
        time->clock = NULL;
    }
}

static void ratelimit_priv_each(ratelimit_table *t, const ratelimit_request *req,
                                ratelimit_result *res, size_t count, ratelimit_priv_when *time)
{
    enum { CHUNK = 32 };
    ratelimit_priv_place at[CHUNK];
    size_t i, n;
    for (; count; count -= n, req += n, res += n) {
        ratelimit_limit made;
        n = count < CHUNK ? count : (size_t)CHUNK;
        for (i = 0; i < n; i++)
            if (ratelimit_priv_prepare(t, &req[i], ratelimit_priv_ready(req[i].limit, &made),
                                       &at[i], &res[i]))
                at[i].block = NULL;
        ratelimit_priv_read_clock(time);
        for (i = 0; i < n; i++)
            if (at[i].block)
                ratelimit_priv_decide_at(t, &at[i], ratelimit_priv_ready(req[i].limit, &made),
                                         &req[i], time->now, &res[i]);
    }
}

/* The blocks of a batch, sorted by address without repetition. Returns how many. */
static size_t ratelimit_priv_sort_blocks(const ratelimit_priv_place *at, size_t count,
                                         ratelimit_priv_line **blocks)
{
    size_t i, j, n = 0;
    for (i = 0; i < count; i++) {
        ratelimit_priv_line *block = at[i].block;
        for (j = n; j && blocks[j - 1] > block; j--)
            blocks[j] = blocks[j - 1];
        if (!block || (j && blocks[j - 1] == block)) {
            memmove(&blocks[j], &blocks[j + 1], (n - j) * sizeof blocks[0]);
            continue;
        }
        blocks[j] = block;
        n++;
    }
    return n;
}

/* What even a refusal stores: a changed limit, a clock that was set back. */
static void ratelimit_priv_touch(ratelimit_table *t, const ratelimit_priv_place *at,
                                 const ratelimit_limit *l, const ratelimit_request *q, uint64_t now)
{
    ratelimit_priv_slot_ref ref;
    ratelimit_priv_step s;
    if (q->op == RATELIMIT_PEEK || !ratelimit_priv_find(t, at, &ref))
        return;
    ratelimit_priv_look(&s, &ref.old, l, ratelimit_priv_tokens(q), now, t->step_ns);
    if (s.dirty) {
        ratelimit_bucket b;
        ratelimit_priv_save(&s, &b, now);
        ratelimit_priv_write(&ref, at->tag, &b);
    }
}

/* The results of a batch of which something was refused, after what had been taken was put back:
 * status stays with those that refused, the others say how it stands and what the longest wait is.
 * */
static void ratelimit_priv_none(ratelimit_table *t, const ratelimit_request *req,
                                ratelimit_result *res, size_t count, const ratelimit_priv_place *at,
                                uint64_t now)
{
    ratelimit_priv_slot_ref ref;
    uint64_t longest = 0;
    size_t i;
    for (i = 0; i < count; i++)
        longest = res[i].retry_after_ns > longest ? res[i].retry_after_ns : longest;
    for (i = 0; i < count; i++) {
        ratelimit_limit made;
        const ratelimit_limit *l = ratelimit_priv_ready(req[i].limit, &made);
        if (at[i].block)
            ratelimit_priv_touch(t, &at[i], l, &req[i], now);
        if (!res[i].allowed)
            continue;
        if (at[i].block) {
            ratelimit_request peek = req[i];
            peek.op = RATELIMIT_PEEK;
            peek.n = 1;
            (void)ratelimit_priv_decide_locked(t, &at[i], l, &peek, now, &res[i], &ref);
            res[i].status = RATELIMIT_OK;
        }
        res[i].allowed = false;
        res[i].taken = res[i].wait_ns = 0;
        res[i].retry_after_ns = longest;
    }
}

static void ratelimit_priv_all(ratelimit_table *t, const ratelimit_request *req,
                               ratelimit_result *res, size_t count, ratelimit_priv_when *time)
{
    ratelimit_priv_place at[RATELIMIT_MAX_ALL];
    ratelimit_priv_line *blocks[RATELIMIT_MAX_ALL + 1];
    ratelimit_priv_slot_ref undo[RATELIMIT_MAX_ALL];
    ratelimit_limit made;
    uint32_t word[RATELIMIT_MAX_ALL][RATELIMIT_PRIV_BLOCK], which;
    bool wrote[RATELIMIT_MAX_ALL], refused = false;
    size_t i, n;
    for (i = 0; i < count; i++) {
        wrote[i] = false;
        if (ratelimit_priv_prepare(t, &req[i], ratelimit_priv_ready(req[i].limit, &made), &at[i],
                                   &res[i]))
            at[i].block = NULL;
    }
    n = ratelimit_priv_sort_blocks(at, count, blocks);
    ratelimit_priv_read_clock(time);
    for (i = 0; i < n; i++)
        if ((which = ratelimit_priv_lock_lines(blocks[i], t->lines, word[i])) < t->lines) {
            size_t j = i;
            while (j--)
                ratelimit_priv_unlock_block(t, blocks[j], word[j]);
            ratelimit_priv_wait_lines(blocks[i], t->lines, which);
            i = (size_t)0 - 1; /* from the start */
        }
    for (i = 0; i < count; i++) {
        if (at[i].block)
            wrote[i] =
                ratelimit_priv_decide_locked(t, &at[i], ratelimit_priv_ready(req[i].limit, &made),
                                             &req[i], time->now, &res[i], &undo[i]);
        refused = refused || !res[i].allowed;
    }
    if (refused) {
        for (i = count; i--;)
            if (wrote[i]) {
                ratelimit_priv_put_bucket(&undo[i].line->bucket[undo[i].slot], &undo[i].old);
                ratelimit_priv_store32(&undo[i].line->tag[undo[i].slot], undo[i].old_tag);
                ratelimit_priv_add64(&t->evicted, undo[i].evicted ? UINT64_MAX : 0);
            }
        ratelimit_priv_none(t, req, res, count, at, time->now);
    }
    while (n--)
        ratelimit_priv_unlock_block(t, blocks[n], word[n]);
}

static void ratelimit_priv_run(ratelimit_table *t, const ratelimit_request *req,
                               ratelimit_result *res, size_t count, ratelimit_mode mode,
                               ratelimit_priv_when *time)
{
    size_t i;
    if (!res || !count)
        return;
    if (!t || !req ||
        (mode == RATELIMIT_ALL ? count > RATELIMIT_MAX_ALL : mode != RATELIMIT_EACH)) {
        for (i = 0; i < count; i++)
            ratelimit_priv_answer(&res[i], RATELIMIT_BAD_ARGUMENT);
        return;
    }
    if (mode == RATELIMIT_ALL)
        ratelimit_priv_all(t, req, res, count, time);
    else
        ratelimit_priv_each(t, req, res, count, time);
}

RATELIMIT_API void ratelimit_table_decide(ratelimit_table *t, const ratelimit_request *req,
                                          ratelimit_result *res, size_t count, ratelimit_mode mode,
                                          uint64_t now_ns)
{
    ratelimit_priv_when time;
    time.clock = NULL;
    time.self = NULL;
    time.now = now_ns;
    ratelimit_priv_run(t, req, res, count, mode, &time);
}

/* May sweep drop it? The debt was rounded up when it was seen, so the next lower code is when it
 * was seen at the earliest. */
static bool ratelimit_priv_droppable(const ratelimit_priv_line *line, uint32_t slot, uint64_t now,
                                     uint64_t idle_ns, bool *in_debt)
{
    ratelimit_bucket b = ratelimit_priv_fetch(&line->bucket[slot]);
    uint64_t debt = ratelimit_priv_debt(&b, now), seen;
    *in_debt = debt != 0;
    if (!ratelimit_priv_load32(&line->tag[slot]) || !b.rest)
        return false;
    if (!debt || !idle_ns || ratelimit_priv_in_flight(&b))
        return !debt;
    seen = b.rest >> 53 ? ratelimit_priv_seen(b.rest - (UINT64_C(1) << 53)) : 0;
    return seen > debt && seen - debt > idle_ns;
}

RATELIMIT_API size_t ratelimit_table_sweep(ratelimit_table *t, uint64_t now_ns, uint64_t idle_ns)
{
    static const ratelimit_bucket full = {0, 0};
    size_t i, lines, dropped = 0;
    uint32_t slot, word;
    bool in_debt;
    if (!t)
        return 0;
    lines = (size_t)t->blocks * t->lines;
    for (i = 0; i < lines; i++) {
        ratelimit_priv_line *line = &ratelimit_priv_lines(t)[i];
        for (slot = 0; slot < 3; slot++)
            if (ratelimit_priv_droppable(line, slot, now_ns, idle_ns, &in_debt))
                break;
        if (slot == 3)
            continue;
        ratelimit_priv_lock_block(line, 1, &word);
        for (; slot < 3; slot++)
            if (ratelimit_priv_droppable(line, slot, now_ns, idle_ns, &in_debt)) {
                ratelimit_priv_store32(&line->tag[slot], 0);
                ratelimit_priv_put_bucket(&line->bucket[slot], &full);
                ratelimit_priv_add64(&t->evicted, in_debt);
                dropped++;
            }
        ratelimit_priv_unlock_lines(line, 1, &word);
    }
    return dropped;
}

RATELIMIT_API void ratelimit_table_stats(const ratelimit_table *t, uint64_t now_ns,
                                         ratelimit_table_counts *out)
{
    size_t i, lines;
    uint32_t slot;
    if (!out)
        return;
    memset(out, 0, sizeof *out);
    if (!t)
        return;
    lines = (size_t)t->blocks * t->lines;
    for (i = 0; i < lines; i++)
        for (slot = 0; slot < 3; slot++) {
            const ratelimit_priv_line *line = &ratelimit_priv_lines(t)[i];
            ratelimit_bucket b = ratelimit_priv_fetch(&line->bucket[slot]);
            if (ratelimit_priv_load32(&line->tag[slot]) && ratelimit_priv_debt(&b, now_ns)) {
                out->keys++;
                out->in_debt += !ratelimit_priv_in_flight(&b);
            }
        }
    out->capacity = (uint64_t)lines * 3;
    out->evicted = ratelimit_priv_load64(&t->evicted);
    out->refused = ratelimit_priv_load64(&t->refused);
    out->bytes = RATELIMIT_PRIV_HEAD_BYTES + (uint64_t)lines * 64;
}

/* Requests in flight are a bucket whose full time is when the last of them counts as gone, and
 * whose fraction is how many. */
#  define RATELIMIT_PRIV_FLIGHT_KIND UINT32_C(0x9E3779B9)

static void ratelimit_priv_save_flight(ratelimit_bucket *b, uint64_t count, uint64_t ahead,
                                       uint64_t now)
{
    memset(b, 0, sizeof *b);
    if (!count)
        return;
    b->full_ns = now + ahead;
    b->rest = count | (uint64_t)RATELIMIT_PRIV_FLIGHT << 44 |
              ratelimit_priv_seen_code(ahead) << 53 | (b->full_ns < now ? RATELIMIT_PRIV_TOP : 0);
}

/* How many are in flight, and in *ahead for how long they count at most; a clock that was set back
 * does not prolong that. */
static uint64_t ratelimit_priv_read_flight(const ratelimit_table *t, const ratelimit_bucket *b,
                                           uint64_t now, uint64_t *ahead)
{
    uint64_t seen = ratelimit_priv_seen(b->rest);
    *ahead = ratelimit_priv_debt(b, now);
    if (*ahead > seen && *ahead - seen > t->step_ns)
        *ahead = seen;
    return *ahead && ratelimit_priv_in_flight(b) ? b->rest & 0xffffff : 0;
}

RATELIMIT_API bool ratelimit_table_acquire(ratelimit_table *t, const void *key, size_t key_len,
                                           uint32_t most, uint64_t ttl_ns, uint64_t now_ns)
{
    ratelimit_priv_place at;
    ratelimit_priv_slot_ref ref;
    uint64_t debt = 0, ahead = 0, count = 0;
    uint32_t word[RATELIMIT_PRIV_BLOCK];
    bool room = true;
    if (!t || !key || !key_len || !most || most > 0xffffff || !ttl_ns ||
        ttl_ns > RATELIMIT_PRIV_MAX)
        return false;
    at = ratelimit_priv_locate(t, key, key_len, RATELIMIT_PRIV_FLIGHT_KIND);
    ratelimit_priv_lock_block(at.block, t->lines, word);
    if (ratelimit_priv_find(t, &at, &ref)) {
        count = ratelimit_priv_read_flight(t, &ref.old, now_ns, &ahead);
    } else {
        room = ratelimit_priv_choose(t, &at, now_ns, &ref, &debt) &&
               (!debt || t->when_full <= RATELIMIT_EVICT_LAST_SEEN);
        if (!room || debt)
            ratelimit_priv_add64(room ? &t->evicted : &t->refused, 1);
    }
    if (room && (count < most || ratelimit_priv_debt(&ref.old, now_ns) > ahead)) {
        ratelimit_bucket b;
        bool more = count < most;
        ratelimit_priv_save_flight(&b, count + more, more && ttl_ns > ahead ? ttl_ns : ahead,
                                   now_ns);
        ratelimit_priv_write(&ref, at.tag, &b);
    }
    ratelimit_priv_unlock_block(t, at.block, word);
    return room && count < most;
}

RATELIMIT_API ratelimit_status ratelimit_table_release(ratelimit_table *t, const void *key,
                                                       size_t key_len, uint64_t now_ns)
{
    ratelimit_priv_place at;
    ratelimit_priv_slot_ref ref;
    uint64_t ahead = 0, count = 0;
    uint32_t word[RATELIMIT_PRIV_BLOCK];
    if (!t)
        return RATELIMIT_BAD_ARGUMENT;
    if (!key || !key_len)
        return RATELIMIT_BAD_KEY;
    at = ratelimit_priv_locate(t, key, key_len, RATELIMIT_PRIV_FLIGHT_KIND);
    ratelimit_priv_lock_block(at.block, t->lines, word);
    if (ratelimit_priv_find(t, &at, &ref))
        count = ratelimit_priv_read_flight(t, &ref.old, now_ns, &ahead);
    if (count) {
        ratelimit_bucket b;
        ratelimit_priv_save_flight(&b, count - 1, ahead, now_ns);
        ratelimit_priv_write(&ref, at.tag, &b);
    }
    ratelimit_priv_unlock_block(t, at.block, word);
    return count ? RATELIMIT_OK : RATELIMIT_LOST;
}

/* ---- >>implementation: store ----------------------------------------------------------------- */

/* The table has no room for pointers that mean something in one process only, and a store is passed
 * by value. So the limiter asks with the clock that stands in the store (decide_at), and only who
 * calls decide itself gets the clock from the head, where the last ratelimit_table_store left it,
 * stamped so that another program's pointers are not followed. */
static uint64_t ratelimit_priv_stamp(const ratelimit_table *t)
{
    uint64_t of[3];
    of[0] = t->clock;
    of[1] = t->clock_self;
    of[2] = (uint64_t)(uintptr_t)t ^ (uint64_t)(uintptr_t)ratelimit_table_store;
    return ratelimit_priv_hash(of, sizeof of, t->seed) | 1;
}

static void ratelimit_priv_fail(ratelimit_result *res, size_t count, ratelimit_status status)
{
    size_t i;
    for (i = 0; res && i < count; i++)
        ratelimit_priv_answer(&res[i], status);
}

static void ratelimit_priv_table_decide_at(void *self, const ratelimit_request *req,
                                           ratelimit_result *res, size_t count, ratelimit_mode mode,
                                           ratelimit_clock clock, void *clock_self)
{
    ratelimit_priv_when time;
    time.clock = clock;
    time.self = clock_self;
    time.now = 0;
    if (clock)
        ratelimit_priv_run((ratelimit_table *)self, req, res, count, mode, &time);
    else
        ratelimit_priv_fail(res, count, RATELIMIT_STORE_FAILED);
}

#  if !defined(RATELIMIT_NO_CLOCK)
static uint64_t ratelimit_priv_platform_clock(void *self)
{
    (void)self;
    return ratelimit_clock_ns();
}
#    define RATELIMIT_PRIV_PLATFORM_CLOCK ratelimit_priv_platform_clock
#  else
#    define RATELIMIT_PRIV_PLATFORM_CLOCK NULL
#  endif

static void ratelimit_priv_table_decide(void *self, const ratelimit_request *req,
                                        ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    ratelimit_priv_table_decide_at(self, req, res, count, mode, RATELIMIT_PRIV_PLATFORM_CLOCK,
                                   NULL);
}

static void ratelimit_priv_table_decide_own(void *self, const ratelimit_request *req,
                                            ratelimit_result *res, size_t count,
                                            ratelimit_mode mode)
{
    ratelimit_table *t = (ratelimit_table *)self;
    ratelimit_clock clock = (ratelimit_clock)(uintptr_t)t->clock;
    if (t->clock_stamp != ratelimit_priv_stamp(t))
        clock = NULL;
    ratelimit_priv_table_decide_at(self, req, res, count, mode, clock,
                                   (void *)(uintptr_t)t->clock_self);
}

RATELIMIT_API ratelimit_store ratelimit_table_store(ratelimit_table *t,
                                                    ratelimit_clock clock_or_null, void *clock_self)
{
    ratelimit_store store;
    memset(&store, 0, sizeof store);
    store.self = t;
    store.decide = ratelimit_priv_table_decide;
    store.decide_at = ratelimit_priv_table_decide_at;
    store.clock = clock_or_null ? clock_or_null : RATELIMIT_PRIV_PLATFORM_CLOCK;
    store.clock_self = clock_self;
    if (t && clock_or_null) {
        store.decide = ratelimit_priv_table_decide_own;
        t->clock = (uint64_t)(uintptr_t)clock_or_null;
        t->clock_self = (uint64_t)(uintptr_t)clock_self;
        t->clock_stamp = ratelimit_priv_stamp(t);
    }
    return store;
}

static void ratelimit_priv_put_le64(unsigned char *to, uint64_t value)
{
    int i;
    for (i = 0; i < 8; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

#  define RATELIMIT_PRIV_RECORD UINT64_C(0x00314C52) /* "RL1", NUL */

/* 1: done, *out is set; 0: somebody else was faster; below 0: the database failed or holds
 * something else. */
static int ratelimit_priv_cas_try(ratelimit_cas *cas, const ratelimit_request *q,
                                  const ratelimit_limit *l, ratelimit_result *out)
{
    unsigned char old[RATELIMIT_RECORD_BYTES], record[RATELIMIT_RECORD_BYTES];
    ratelimit_bucket b = {0, 0}, from;
    uint64_t writes = 0, now, ttl;
    int found;
    memset(old, 0, sizeof old);
    found = cas->load(cas->self, q->key, q->key_len, old);
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
    ratelimit_priv_decide(&b, l, q, now, cas->step_ns ? cas->step_ns : RATELIMIT_STEP_NS, out);
    if (ratelimit_priv_same(&b, &from))
        return 1;
    ttl = ratelimit_priv_debt(&b, now);
    if (!ttl && !found)
        return 1;
    ratelimit_priv_put_le64(record, b.full_ns);
    ratelimit_priv_put_le64(record + 8, b.rest);
    ratelimit_priv_put_le64(record + 16, RATELIMIT_PRIV_RECORD | (writes + 1) << 32);
    return cas->swap(cas->self, q->key, q->key_len, found ? old : NULL, record, ttl);
}

static void ratelimit_priv_cas_decide(void *self, const ratelimit_request *req,
                                      ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    ratelimit_cas *cas = (ratelimit_cas *)self;
    size_t i;
    if (!req || !cas || !cas->load || !cas->swap || !cas->clock ||
        (mode == RATELIMIT_ALL && count > 1)) {
        ratelimit_priv_fail(res, count,
                            mode == RATELIMIT_ALL && count > 1 ? RATELIMIT_UNSUPPORTED
                                                               : RATELIMIT_BAD_ARGUMENT);
        return;
    }
    for (i = 0; res && i < count; i++) {
        ratelimit_limit made;
        const ratelimit_limit *l = ratelimit_priv_ready(req[i].limit, &made);
        uint32_t tries = cas->tries ? cas->tries : 16;
        int done = 0;
        if (!req[i].key || !req[i].key_len) {
            ratelimit_priv_answer(&res[i], RATELIMIT_BAD_KEY);
            continue;
        }
        if (ratelimit_priv_settled(&req[i], l, &res[i]))
            continue;
        while (done == 0 && tries--)
            done = ratelimit_priv_cas_try(cas, &req[i], l, &res[i]);
        if (done <= 0)
            ratelimit_priv_answer(&res[i], RATELIMIT_STORE_FAILED);
    }
}

RATELIMIT_API ratelimit_store ratelimit_cas_store(ratelimit_cas *cas)
{
    ratelimit_store store;
    memset(&store, 0, sizeof store);
    store.self = cas;
    store.decide = ratelimit_priv_cas_decide;
    if (cas) {
        store.clock = cas->clock;
        store.clock_self = cas->clock_self;
    }
    return store;
}

/* ---- >>implementation: limiter --------------------------------------------------------------- */

static void ratelimit_priv_ask(const ratelimit_store *store, const ratelimit_request *req,
                               ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    if (store->decide_at)
        store->decide_at(store->self, req, res, count, mode, store->clock, store->clock_self);
    else
        store->decide(store->self, req, res, count, mode);
}

RATELIMIT_API ratelimit_status ratelimit_init(ratelimit_limiter *l, ratelimit_store store)
{
    if (!l || !store.decide || (unsigned)l->on_failure > RATELIMIT_FAIL_LOCAL ||
        (l->on_failure == RATELIMIT_FAIL_LOCAL && !l->fallback.decide))
        return RATELIMIT_BAD_ARGUMENT;
    l->store = store;
    memset(&l->counts, 0, sizeof l->counts);
    l->canceled = 0;
    l->jitter = (uint32_t)(uintptr_t)l | 1;
    return RATELIMIT_OK;
}

/* The failure policy on the results that the store could not decide. All or none stays so: such a
 * batch fails as a whole. */
static void ratelimit_priv_policy(ratelimit_limiter *l, const ratelimit_request *req,
                                  ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    size_t i, n;
    for (i = 0; i < count; i += n) {
        size_t j;
        n = mode == RATELIMIT_ALL ? count : 1;
        if (res[i].status != RATELIMIT_STORE_FAILED)
            continue;
        ratelimit_priv_add64(&l->counts.failed, n);
        if (l->on_failure == RATELIMIT_FAIL_LOCAL)
            ratelimit_priv_ask(&l->fallback, req + i, res + i, n, mode);
        for (j = i; j < i + n; j++) {
            res[j].source = l->on_failure == RATELIMIT_FAIL_LOCAL ? RATELIMIT_FROM_FALLBACK
                                                                  : RATELIMIT_FROM_POLICY;
            if (l->on_failure == RATELIMIT_FAIL_OPEN)
                res[j].allowed = true;
            res[j].status = RATELIMIT_STORE_FAILED;
        }
    }
}

static bool ratelimit_priv_is_bad(ratelimit_status status)
{
    return status >= RATELIMIT_BAD_KEY && status <= RATELIMIT_SYNTAX;
}

/* The decisions themselves, the policy's included; false if there is no way to make any. */
static bool ratelimit_priv_decisions(ratelimit_limiter *l, const ratelimit_request *req,
                                     ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    if (!l || !l->store.decide || (count && (!req || !res))) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    if (count) {
        ratelimit_priv_ask(&l->store, req, res, count, mode);
        ratelimit_priv_policy(l, req, res, count, mode);
    }
    return true;
}

/* What becomes of a decision: shadow mode, counters, hook. */
static bool ratelimit_priv_finish(ratelimit_limiter *l, const ratelimit_request *q,
                                  ratelimit_result *r)
{
    bool bad = ratelimit_priv_is_bad(r->status);
    if (l->shadow && !r->allowed && !bad && q->op <= RATELIMIT_RESERVE &&
        r->status != RATELIMIT_UNSUPPORTED && r->status != RATELIMIT_CANCELED) {
        r->allowed = true;
        ratelimit_priv_add64(&l->counts.shadow_refused, 1);
    }
    ratelimit_priv_add64(r->allowed ? &l->counts.allowed : &l->counts.refused, 1);
    if (bad)
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
        all = ratelimit_priv_finish(l, &req[i], &res[i]) && all;
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

RATELIMIT_API bool ratelimit_allow_n(ratelimit_limiter *l, const char *key,
                                     const ratelimit_limit *limit, uint64_t n)
{
    ratelimit_request q;
    q = ratelimit_priv_take_request(key, ratelimit_priv_len(key), limit, n);
    return ratelimit_take(l, &q, NULL);
}

RATELIMIT_API bool ratelimit_allow(ratelimit_limiter *l, const char *key,
                                   const ratelimit_limit *limit)
{
    return ratelimit_allow_n(l, key, limit, 1);
}

/* A wait being waited: how to measure it, and how long it has taken. */
typedef struct ratelimit_priv_waiting {
    ratelimit_limiter *l;
    ratelimit_clock clock;
    void *clock_self;
    uint64_t start, slept;
} ratelimit_priv_waiting;

static uint64_t ratelimit_priv_elapsed(const ratelimit_priv_waiting *w)
{
    uint64_t now;
    if (!w->clock)
        return w->slept;
    now = w->clock(w->clock_self);
    return now > w->start ? now - w->start : 0;
}

static bool ratelimit_priv_canceled(const ratelimit_limiter *l)
{
    return ratelimit_priv_load32(&l->canceled) != 0;
}

/* One sleep, false if cancelled. The platform's sleep is sliced so that a cancel is seen. */
static bool ratelimit_priv_sleep_once(ratelimit_priv_waiting *w, uint64_t ns)
{
    w->slept += ns;
    if (w->l->sleep)
        return w->l->sleep(w->l->sleep_self, ns);
#  if !defined(RATELIMIT_NO_CLOCK)
    while (ns && !ratelimit_priv_canceled(w->l)) {
        uint64_t slice = 50 * RATELIMIT_MILLISECOND < ns ? 50 * RATELIMIT_MILLISECOND : ns;
        ratelimit_priv_sleep(slice);
        ns -= slice;
    }
#  endif
    return true;
}

/* Sleeps until ns after the start, false if cancelled. A sleep that ended early is followed by one
 * that is a little longer than what is left. Time that stands still is no time to wait for. */
static bool ratelimit_priv_sleep_until(ratelimit_priv_waiting *w, uint64_t ns)
{
    uint64_t elapsed = ratelimit_priv_elapsed(w), more = 0, still = 0;
    while (elapsed < ns && !ratelimit_priv_canceled(w->l)) {
        uint64_t before = elapsed;
        if (!ratelimit_priv_sleep_once(w, ns - elapsed + more))
            return false;
        elapsed = ratelimit_priv_elapsed(w);
        more = 50 * RATELIMIT_MICROSECOND;
        still = elapsed > before ? 0 : still + 1;
        if (still == 1000)
            return false;
    }
    return !ratelimit_priv_canceled(w->l);
}

/* xorshift; threads that race on the state only make it more random */
static uint64_t ratelimit_priv_jitter(ratelimit_limiter *l, uint64_t below)
{
    uint32_t x = ratelimit_priv_load32(&l->jitter);
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    ratelimit_priv_store32(&l->jitter, x);
    return below ? x % below : 0;
}

static void ratelimit_priv_refuse(ratelimit_result *out, ratelimit_status status)
{
    out->allowed = false;
    out->taken = out->wait_ns = 0;
    out->status = status;
}

/* For a store that can't reserve: ask, sleep for retry_after with jitter, ask again. */
static void ratelimit_priv_poll(ratelimit_priv_waiting *w, const ratelimit_request *req,
                                uint64_t max_wait_ns, ratelimit_result *out)
{
    uint64_t most = w->l->poll_max_ns ? w->l->poll_max_ns : RATELIMIT_SECOND;
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
        if (max_wait_ns != RATELIMIT_FOREVER &&
            (elapsed > max_wait_ns || pause > max_wait_ns - elapsed)) {
            ratelimit_priv_refuse(out, RATELIMIT_TIMEOUT);
            return;
        }
        spread = ratelimit_priv_jitter(w->l, (pause < most ? pause : most) / 8 + 1);
        pause = pause < most - spread ? pause + spread : most - spread;
        if (max_wait_ns != RATELIMIT_FOREVER && pause > max_wait_ns - elapsed)
            pause = max_wait_ns - elapsed;
        if (!ratelimit_priv_sleep_until(w, elapsed + pause)) {
            ratelimit_priv_refuse(out, RATELIMIT_CANCELED);
            return;
        }
    }
}

/* Waits its time out; if that is cancelled, gives back to whoever had reserved. */
static void ratelimit_priv_sit(ratelimit_priv_waiting *w, const ratelimit_request *req,
                               ratelimit_result *out)
{
    ratelimit_request back = *req;
    ratelimit_result spare;
    if (ratelimit_priv_sleep_until(w, out->wait_ns))
        return;
    back.op = RATELIMIT_REFUND;
    if (out->source == RATELIMIT_FROM_FALLBACK)
        ratelimit_priv_ask(&w->l->fallback, &back, &spare, 1, RATELIMIT_EACH);
    else if (out->source != RATELIMIT_FROM_POLICY)
        ratelimit_priv_ask(&w->l->store, &back, &spare, 1, RATELIMIT_EACH);
    ratelimit_priv_refuse(out, RATELIMIT_CANCELED);
}

RATELIMIT_API bool ratelimit_wait(ratelimit_limiter *l, const ratelimit_request *req,
                                  uint64_t max_wait_ns, ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    ratelimit_priv_waiting w;
    ratelimit_request q;
    bool able = true;
#  if defined(RATELIMIT_NO_CLOCK)
    able = l && l->sleep;
#  endif
    if (!l || !l->store.decide || !req ||
        (req->op != RATELIMIT_TAKE && req->op != RATELIMIT_RESERVE)) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    memset(&w, 0, sizeof w);
    w.l = l;
    w.clock = l->clock ? l->clock : l->store.clock ? l->store.clock : RATELIMIT_PRIV_PLATFORM_CLOCK;
    w.clock_self = l->clock ? l->clock_self : l->store.clock_self;
    w.start = w.clock ? w.clock(w.clock_self) : 0;
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
        ratelimit_priv_sit(&w, &q, out);
    return ratelimit_priv_finish(l, req, out);
}

RATELIMIT_API void ratelimit_cancel(ratelimit_limiter *l)
{
    if (l)
        ratelimit_priv_store32(&l->canceled, 1);
}

RATELIMIT_API void ratelimit_limiter_counts(const ratelimit_limiter *l, ratelimit_counts *out)
{
    if (!out)
        return;
    memset(out, 0, sizeof *out);
    if (!l)
        return;
    out->allowed = ratelimit_priv_load64(&l->counts.allowed);
    out->refused = ratelimit_priv_load64(&l->counts.refused);
    out->shadow_refused = ratelimit_priv_load64(&l->counts.shadow_refused);
    out->failed = ratelimit_priv_load64(&l->counts.failed);
    out->bad = ratelimit_priv_load64(&l->counts.bad);
}

RATELIMIT_API void ratelimit_close(ratelimit_limiter *l)
{
    if (!l || !l->store.decide)
        return;
    if (l->store.close)
        l->store.close(l->store.self);
    if (l->fallback.close)
        l->fallback.close(l->fallback.self);
    memset(&l->store, 0, sizeof l->store);
    memset(&l->fallback, 0, sizeof l->fallback);
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

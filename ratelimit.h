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
       >>store             interface: who decides; stores, and the tier in front of one
       >>limiter           interface: a store with a clock, a failure policy, waiting, counters
       >>rules             interface: named limits from text, replaced while in use; keys made
                             of addresses or of two parts
       >>text              interface: HTTP fields, metrics, the most refused, logs, ticks
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
       ratelimit_allow_rule     the limit by name, from a text you can replace at any time
       ratelimit_take_rules     the same with requests: user, address and route, all or none
       ratelimit_table_take     a table with the time given: no clock is read, no limiter needed
       ratelimit_cas_acquire    a semaphore in a database with a conditional update; windows too
       ratelimit_bucket_take    one subject in 16 bytes of your own struct, no table needed
       ratelimit_http_fields    the answer as HTTP header fields
       RATELIMIT_LOG            one place in a program that may log so often
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
   turned. The end of a window is not remembered: when its period is changed, what was spent counts
   as far as it reaches past the end of the new one; from a window to a bucket, the time to its end
   counts as spent, too.

   Tier. A local table in front of a store that is far away. Refusals: the store's last answer is
   kept as a debt, which others can only add to, and refuses what it must, for at most trust_ns (so
   long may a reset, a refund or a raised limit of another node go unseen); a dear request refused
   does not refuse a cheap one, and retry_after is as exact as the store's. Leases: a key asked
   often takes up to lease_percent of its burst at once and serves it here. Tokens are paid for
   before they are served, so all nodes together never pass more than burst + rate x time since the
   start; in a span picked later, at most what leases held when it began comes on top: per node and
   key one lease. What is held is lost to the others, until it is served, counted towards a larger
   request of its key, or expires lease_ns after the store was last asked; so long may a block of
   another node go unseen, too. It is not given back at the store: a refund could undo another's
   block or reset. A lease ends with its window, with a changed limit, and with a reset or block
   through the same tier. The failing store: see ratelimit_tier.


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
                                                     4096; about 90 bytes of stack each,
                                                     190 in a tier
       RATELIMIT_NO_TEXT         impl   off        status_text and faults of rules are "" (saves
                                                     their strings)
       RATELIMIT_NO_LOG          all    off        RATELIMIT_LOG does nothing and costs nothing
       RATELIMIT_LOG_NOW         all    the clock  the time in ns for RATELIMIT_LOG; needed with
                                                     RATELIMIT_NO_CLOCK

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
 * their limit, however many keys there are (unless refunds or changed limits lower a debt). The
 * debt is a time, so a newcomer may have to wait as long as another's limit takes: give limits of
 * very different windows a table each. */
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
 * processes. Cost: one cache line if the key is in its home line, at most eight neighbouring
 * ones. */
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
 * table (STORE_FAILED if another program's is found there). There is no close: the memory is
 * yours. */
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
 *        1: done; 0: it changed, try again; below 0: failed. Always comes right after the load of
 *        the same key that found old, so a version number noted there serves as well. After ttl_ns
 *        the record may be deleted: it then says no more than none. ttl_ns 0: now.
 * clock  must be common to all who share the database, so usually a wall clock or the
 * database's */
typedef struct ratelimit_cas {
    void *self; /* passed to load and swap */
    int (*load)(void *self, const void *key, size_t key_len, unsigned char *record);
    int (*swap)(void *self, const void *key, size_t key_len, const unsigned char *old_or_null,
                const unsigned char *record, uint64_t ttl_ns);
    ratelimit_clock clock; /* required */
    void *clock_self;
    uint32_t tries;   /* swaps per decision before STORE_FAILED; 0: 16. More where many write one
                         key at once: a loser has waited for a winner each time */
    uint64_t step_ns; /* as ratelimit_table_options.step_ns */
} ratelimit_cas;

/* ratelimit_cas_store  cas must stay where it is while the store is in use. ALL is UNSUPPORTED for
 * more than one request. A record that is no record of ours is STORE_FAILED and left alone.
 * Threads: as load and swap. A refusal swaps at most once in a second, to note that the key was
 * seen. */
RATELIMIT_API ratelimit_store ratelimit_cas_store(ratelimit_cas *cas);

/* Windows and semaphores over the same load and swap: what ratelimit_redis.h has by these names. A
 * record of another kind is STORE_FAILED and left alone, so a key is for one thing: the store, a
 * window or a plain semaphore. A swap that loses is tried again, cas->tries swaps in a call, then
 * STORE_FAILED. After a swap that failed (below 0) it is open whether it was done: something may be
 * taken that nobody has, until its time is over. Threads: as load and swap. */

/* ratelimit_cas_window  Counts n for key in a fixed window that begins with its first use.
 * (RATELIMIT_WINDOW, through ratelimit_cas_store, is the one aligned to the clock.)
 *
 * most     the window's limit, to 2^63 - 1; 0: no limit, allowed without asking
 * per_ns   its length, 1 to 2^62; a window with more than that and step_ns to go (the clock was set
 *          back, or per_ns was longer) ends per_ns from now
 * n        1 to 2^63 - 1; above most is NEVER
 * out      may be NULL; retry_after_ns and reset_after_ns are until the window's end
 *
 * Returns true if counted. False: DENIED (not counted), NEVER, BAD_KEY, BAD_COUNT, BAD_ARGUMENT,
 * STORE_FAILED. */
RATELIMIT_API bool ratelimit_cas_window(ratelimit_cas *cas, const void *key, size_t key_len,
                                        uint64_t most, uint64_t per_ns, uint64_t n,
                                        ratelimit_result *out_or_null);

/* ratelimit_cas_acquire_plain, ratelimit_cas_release_plain  At most `most` in flight for key, only
 * counted: who holds is not known, so one who dies keeps a place until nobody acquires for ttl_ns;
 * then all are free. Never below 0 or above most.
 *
 * most     1 to 2^31
 * ttl_ns   1 to 2^62
 *
 * OK; acquire: BUSY; release: LOST if none is out; BAD_KEY, BAD_ARGUMENT, STORE_FAILED. */
RATELIMIT_API ratelimit_status ratelimit_cas_acquire_plain(ratelimit_cas *cas, const void *key,
                                                           size_t key_len, uint64_t most,
                                                           uint64_t ttl_ns);
RATELIMIT_API ratelimit_status ratelimit_cas_release_plain(ratelimit_cas *cas, const void *key,
                                                           size_t key_len);

/* A permit. From expires_ns on, by the shared clock, it is not held any more. */
typedef struct ratelimit_cas_permit {
    uint64_t id;
    uint64_t expires_ns;
    uint32_t place;
} ratelimit_cas_permit;

/* ratelimit_cas_acquire  A permit that expires by itself after ttl_ns. Each of the places has a
 * record of its own, named key, ':' and two hex digits; key itself stays unused.
 *
 * key_len         1 to 250, else BAD_KEY
 * most            1 to places; may differ from call to call: none is handed out while as many are
 *                 out, whatever most they were acquired under. While callers differ, the largest
 *                 counts
 * places          1 to 255: the largest most that key ever has, the same in all calls
 * ttl_ns          1 to 2^62
 * id              whose it is: not 0, made anew for each call, 64 random bits say
 * permit          set by OK, else zeroed
 * retry_after_ns  may be NULL; BUSY: until the next permit expires, if none comes back
 *
 * OK, BUSY (each place was seen held), BAD_KEY, BAD_ARGUMENT, STORE_FAILED. Cost: a load of each
 * place above most, then one load and one swap if the place that id leads to is free; at most as
 * many loads as places and one for each swap that lost. */
RATELIMIT_API ratelimit_status ratelimit_cas_acquire(ratelimit_cas *cas, const void *key,
                                                     size_t key_len, uint32_t most, uint32_t places,
                                                     uint64_t ttl_ns, uint64_t id,
                                                     ratelimit_cas_permit *permit,
                                                     uint64_t *retry_after_ns);

/* ratelimit_cas_release, ratelimit_cas_extend  Gives a permit back; makes it end ttl_ns from now.
 * OK; LOST if it was not out any more, which harms nobody and makes nothing anew; BAD_KEY,
 * BAD_ARGUMENT, STORE_FAILED. Only extend's OK changes *permit. */
RATELIMIT_API ratelimit_status ratelimit_cas_release(ratelimit_cas *cas, const void *key,
                                                     size_t key_len,
                                                     const ratelimit_cas_permit *permit);
RATELIMIT_API ratelimit_status ratelimit_cas_extend(ratelimit_cas *cas, const void *key,
                                                    size_t key_len, ratelimit_cas_permit *permit,
                                                    uint64_t ttl_ns);

typedef struct ratelimit_tier_counts {
    uint64_t stored;   /* decisions made by the store */
    uint64_t leased;   /* by a lease */
    uint64_t refused;  /* by the refusal cache */
    uint64_t fallback; /* by the local buckets, while the store failed */
    uint64_t failed;   /* by nobody here: left to the limiter's policy */
    uint64_t calls;    /* of the store, each with one batch */
    uint64_t failures; /* of calls: every answer was STORE_FAILED */
    uint64_t outages;  /* times at which the store began to fail */
} ratelimit_tier_counts;

/* ratelimit_tier  A local table in front of any store, so that most decisions need no round trip
 * (what it keeps and what it promises: CONCEPTS, "Tier"). Zero it, fill in store and table, set the
 * options you want, then ratelimit_tier_store.
 *
 * Who decides while the store fails. nodes above 0: the tier does, on a local bucket per key at
 * limit / nodes (rate and burst, the burst at least 1) that starts from what is known of the key;
 * the limiter leaves such an answer as it is. nodes 0: the tier refuses, and the limiter's
 * on_failure has its say. result.status is STORE_FAILED both ways. What a local bucket did is not
 * told to the store afterwards. */
typedef struct ratelimit_tier {
    ratelimit_store store;  /* required: decides what can't be decided here */
    ratelimit_table *table; /* required: for this tier alone, up to three places for each key; one
                               too small costs calls of the store, never a wrong answer */
    /* Options: all may stay zero. */
    ratelimit_clock clock; /* NULL: ratelimit_clock_ns; need not agree with the store's */
    void *clock_self;
    uint64_t trust_ns;      /* how long the store's answer is trusted to refuse others; 0: 1 s */
    uint64_t lease_ns;      /* how long a lease lives after the store was last asked; 0: 1 s. The
                               next is twice as large if that is within 1/16 of it, half as large
                               for each 1/4 of it that passes */
    uint32_t lease_percent; /* largest lease, in percent of the burst, 1 to 100; 0: no leases */
    uint32_t nodes;         /* that share each limit while the store fails, see above */
    uint64_t cool_down_ns;  /* a store that failed is left alone for so long; 0: 100 ms. Then twice
                               as long, and so on, each less up to a half by chance, ... */
    uint64_t cool_down_max_ns; /* ... up to this; 0: 5 s */
    /* The rest is the tier's own. */
    ratelimit_tier_counts counts;
    uint32_t gate, failed_in_a_row;
} ratelimit_tier;

/* ratelimit_tier_store  The tier as a store. tier must stay where it is while in use. EACH asks the
 * store, in batches of up to 32, only for what can't be answered here; ALL asks it unless a request
 * of the batch is known to be refused, and does not use leases. Of a key that comes twice in EACH a
 * refusal given here does not count what the batch asks before it: retry_after is the key's as it
 * was. close closes tier->store. Without store or table BAD_ARGUMENT, without any clock
 * STORE_FAILED, at every call. Threads: as tier->store; no lock is held while it is asked. */
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
    uint64_t allowed;        /* decisions that let the caller go on, however they came about */
    uint64_t refused;        /* decisions that did not */
    uint64_t shadow_refused; /* of allowed: would have been refused, but for shadow mode */
    uint64_t failed;         /* decisions made by the failure policy, or a tier's */
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

/* ---- >>rules --------------------------------------------------------------------------------- */

/* ratelimit_rules  Named limits, read from text, in memory of yours: any number of threads decide
 * by them while another puts new ones in their place. The text is lines of
 *
 *     line     = [ blanks ] [ name blanks limit [ blanks "shadow" ] [ blanks ] ] [ comment ]
 *     name     = 1 to 63 bytes, none a blank or a control character; no "#" in front
 *     limit    as ratelimit_limit_parse reads it, "10/s burst 20", "1000/d window", "unlimited"
 *     comment  = "#" and all that follows, at the start of a line or behind a blank
 *
 * ending in LF, CRLF or the text's end; blanks are spaces or tabs; a byte order mark may stand
 * before all, and in front of no name. A rule that is shadow is decided and counted, but refuses
 * nobody.
 *
 * Look-up. A name is looked up whole; else what stands before its first "|"; else "default". With
 * the rules `login 5/m` and `login|root 1/m`, "login|root" has its own and "login|ann" has login.
 *
 * Bucket. The name of the rule that was found and the key make the bucket (ratelimit_key_join). So
 * one key under two rules has two buckets, and a rule that changes keeps what was spent. */
typedef struct ratelimit_rules ratelimit_rules;

enum {
    RATELIMIT_RULE_NAME_BYTES = 64, /* with the NUL */
    RATELIMIT_OWN_KEY_BYTES = 64,   /* longest key with a limit of its own */
    RATELIMIT_RULE_KEY_BYTES = 512  /* longest bucket's name: rule, key, and two bytes or ten */
};

/* RATELIMIT_RULES_BYTES  Memory for max_rules rules and max_own keys with limits of their own, each
 * up to 2^24. 7 bytes of it are for alignment. */
#  define RATELIMIT_RULES_BYTES(max_rules, max_own)                                                \
    (RATELIMIT_PRIV_CAST(size_t, RATELIMIT_PRIV_RULES_BYTES) + 7u +                                \
     RATELIMIT_PRIV_CAST(size_t, max_rules) *                                                      \
         (2u * RATELIMIT_PRIV_ENTRY_BYTES + RATELIMIT_PRIV_TALLY_BYTES) +                          \
     RATELIMIT_PRIV_CAST(size_t, max_own) * (2u * RATELIMIT_PRIV_ENTRY_BYTES))

/* ratelimit_rules_init  No rules yet, in memory of any alignment and content, which must stay where
 * it is. Hand them to a limiter as its option `rules`. max_rules at least 1; max_own may be 0.
 *
 * Returns RATELIMIT_OK and *out; NO_MEMORY if bytes is below RATELIMIT_RULES_BYTES;
 * BAD_ARGUMENT. */
RATELIMIT_API RATELIMIT_PRIV_MUST_USE ratelimit_status ratelimit_rules_init(
    ratelimit_rules **out, void *memory, size_t bytes, size_t max_rules, size_t max_own);

/* Where a text is wrong. */
typedef struct ratelimit_fault {
    size_t line;      /* from 1; 0: nowhere */
    size_t column;    /* from 1, in bytes */
    const char *what; /* a few words, static; "" with RATELIMIT_NO_TEXT */
} ratelimit_fault;

/* ratelimit_rules_load  Puts the rules of text in the place of all there were: all of them, or on
 * any fault none. Rules that were there before, by name, keep their buckets and counters.
 *
 * Returns RATELIMIT_OK; SYNTAX (also for a name that comes twice) and BAD_LIMIT, as
 * ratelimit_limit_parse; NO_MEMORY: more than max_rules; BAD_ARGUMENT: NULL.
 * Threads: any. Loads wait for each other and for look-ups under way; decisions never wait for a
 * load. With RATELIMIT_LOCK or RATELIMIT_NO_THREADS: one load or own at a time. Cost: the order of
 * n rules takes n^2 / 4 moves of 4 bytes. */
RATELIMIT_API ratelimit_status ratelimit_rules_load(ratelimit_rules *rules, const char *text,
                                                    size_t text_len,
                                                    ratelimit_fault *fault_or_null);

/* ratelimit_rules_own  Gives key a limit of its own under a rule: a customer with a contract of
 * theirs. It is found before the rule's; the bucket, shadow and counters stay the rule's. It stays
 * until it is set again or removed, also while no rule has that name.
 *
 * rule     the name of the rule as ratelimit_rules_find gives it, not looked up
 * key      1 to RATELIMIT_OWN_KEY_BYTES bytes
 * limit    copied; NULL removes it
 *
 * Returns RATELIMIT_OK, also if there was nothing to remove; BAD_KEY; BAD_LIMIT; NO_MEMORY: max_own
 * keys have one; BAD_ARGUMENT: NULL, no name of a rule. Threads: as load. Cost: copies all there is
 * once, 212 bytes for each rule and key. */
RATELIMIT_API ratelimit_status ratelimit_rules_own(ratelimit_rules *rules, const char *rule,
                                                   const void *key, size_t key_len,
                                                   const ratelimit_limit *limit_or_null);

/* A rule as it stands, with what it did since it was first loaded. */
typedef struct ratelimit_rule {
    char name[RATELIMIT_RULE_NAME_BYTES];
    ratelimit_limit limit;
    bool shadow;
    uint64_t allowed; /* requests that went on under it, however they came about */
    uint64_t refused; /* that it refused itself: another's refusal in a batch is not counted */
    uint64_t shadow_refused; /* of allowed: would have been refused, but for shadow */
    uint64_t failed;         /* decided by the failure policy */
} ratelimit_rule;

/* ratelimit_rules_find, ratelimit_rules_at  The rule that name is looked up to, false if there is
 * none, not even default; and the index-th rule in the order of names' bytes, false if there are
 * no more. Threads: any; wait-free where an atomic add is. */
RATELIMIT_API bool ratelimit_rules_find(ratelimit_rules *rules, const char *name,
                                        ratelimit_rule *out);
RATELIMIT_API bool ratelimit_rules_at(ratelimit_rules *rules, size_t index, ratelimit_rule *out);

/* ratelimit_allow_rule  May this resource go on? Takes one token, now or not at all, of the
 * limiter's rules.
 *
 * resource   who or what is limited, the key of the bucket: "alice", or "login|alice"
 * rule       the name that is looked up; NULL: resource itself is
 *
 * So (l, "alice", "login") and (l, "login|alice", NULL) both ask the rule login, each for a bucket
 * of its own. A name that finds no rule, not even default, is refused (BAD_LIMIT), as are all
 * while the limiter has no rules. Threads: any. */
RATELIMIT_API bool ratelimit_allow_rule(ratelimit_limiter *l, const char *resource,
                                        const char *rule);

/* ratelimit_rule_request  A request under a rule. Zero it, set rule and request. */
typedef struct ratelimit_rule_request {
    const char *rule;          /* the name that is looked up; NULL: the key is, as text */
    ratelimit_request request; /* any operation; its limit is not used */
    /* Set by the call: */
    ratelimit_result result; /* under a shadow rule allowed, with the status it would have had */
    ratelimit_limit limit;   /* that applied, all zero if none: the rule's or the key's own */
    char name[RATELIMIT_RULE_NAME_BYTES]; /* of the rule found, "" if none */
    bool own;                             /* the limit is the key's own */
    /* The rest is the implementation's: */
    bool shadow;
    uint32_t tally, generation;
    size_t bucket_len;
    unsigned char bucket[RATELIMIT_RULE_KEY_BYTES];
} ratelimit_rule_request;

enum { RATELIMIT_MAX_RULE_REQUESTS = 8 };

/* ratelimit_take_rules  Decides requests by rule: one, or several dimensions of one event (the
 * user, the address, the route), all or none.
 *
 * count    1 to RATELIMIT_MAX_RULE_REQUESTS; more is BAD_ARGUMENT in each, 0 is true
 * binds    may be NULL; else the one that counts: of those that refused the one with the longest
 *          retry_after_ns, else the one with the least remaining (ratelimit_binding)
 *
 * True if all may go on. Rules that are shadow are asked after the others: charged if these let it
 * through, else only looked at. A key whose bucket's name is too long is BAD_KEY. Threads: any.
 * Cost: as ratelimit_take_all, and two atomic adds and a binary search for each. */
RATELIMIT_API bool ratelimit_take_rules(ratelimit_limiter *l, ratelimit_rule_request *asked,
                                        size_t count, size_t *binds_or_null);

/* ratelimit_binding  Which of these results counts, as above: for a client that is told of one
 * limit. 0 if count is 0. */
RATELIMIT_API size_t ratelimit_binding(const ratelimit_result *res, size_t count);

/* ratelimit_key_join  Two parts as one key that no other two parts make: a, "|", b, then the length
 * of a, in one byte below 255, or in eight (little-endian) and a byte of 255.
 *
 * Returns the key's length; nothing is written if buf_bytes is below that. */
RATELIMIT_API size_t ratelimit_key_join(const void *a, size_t a_len, const void *b, size_t b_len,
                                        unsigned char *buf, size_t buf_bytes);

/* ratelimit_address_parse  Reads an IPv4 ("192.0.2.1") or IPv6 ("2001:db8::1", "::ffff:192.0.2.1")
 * address, strictly: no port, brackets, zone, leading zeros or blanks.
 *
 * Returns how many bytes of out it takes, 4 or 16, in network order; 0 if it is no address. */
RATELIMIT_API size_t ratelimit_address_parse(const char *text, size_t text_len,
                                             unsigned char out[16]);

enum { RATELIMIT_ADDRESS_KEY_BYTES = 18 };

/* ratelimit_address_key  The network of an address as a key: 4 or 6, the prefix length, the address
 * with the bits behind the prefix cleared. IPv4 in IPv6 (::ffff:0:0/96) is the IPv4 address.
 *
 * address      network order: &sin_addr with 4 bytes, &sin6_addr with 16
 * bits4, bits6 prefix lengths, up to 32 and 128. Usual: 32 or 24; 64, 56 or 48, for one customer
 *              has at least a /64
 *
 * Returns the key's length, 6 or 18; 0, which no request accepts, if it is no address or prefix. */
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

/* ratelimit_http_fields  The answer as HTTP header fields, "Name: value" and CRLF each.
 *
 * limit    that was asked; NULL leaves out RateLimit-Policy
 * sets     of the fields, added up
 *
 * Whole seconds, rounded up, from now: -Reset until the bucket is full, 0 too; Retry-After at least
 * 1. The quota of both sets is the burst. Its policy is "default", `q` is the burst and `w` the
 * time in which that comes back; `t` is Retry-After on a refusal, else -Reset. Numbers of the draft
 * end at 999,999,999,999,999. Retry-After is left out where no waiting helps (NEVER, BAD_), the
 * others where there are no numbers (unlimited; no store decided). With several limits pass the one
 * that binds. Source: draft-ietf-httpapi-ratelimit-headers-10.
 *
 * Returns the length without the NUL. If buf_bytes is not above that, buf is set to "" (if there is
 * any room) and nothing else is written. RATELIMIT_HTTP_FIELDS_BYTES are always enough. */
RATELIMIT_API size_t ratelimit_http_fields(const ratelimit_result *res,
                                           const ratelimit_limit *limit, unsigned sets, char *buf,
                                           size_t buf_bytes);

/* ratelimit_http_status, ratelimit_grpc_status  What to answer: 200 and 0 (OK) if allowed; 429 and
 * 8 (RESOURCE_EXHAUSTED) if a limit refused, also that of a local bucket while the store fails; 503
 * and 14 (UNAVAILABLE) if there was no decision or no room: STORE_FAILED, FULL, CANCELED; 500 and
 * 13 (INTERNAL) for a mistake in the program: BAD_, UNSUPPORTED, NULL. */
RATELIMIT_API int ratelimit_http_status(const ratelimit_result *res);
RATELIMIT_API int ratelimit_grpc_status(const ratelimit_result *res);

/* ratelimit_metrics  Counters in Prometheus' text format: of the limiter, its rules and its tier
 * (if its store is one), and of a table at now_ns (reads every line of it). Each may be NULL.
 *
 * Returns the length without the NUL. If buf_bytes is not above that, buf is "" (what lies behind
 * its NUL may have changed). Numbers that grow meanwhile may make the next call longer. */
RATELIMIT_API size_t ratelimit_metrics(const ratelimit_limiter *l, const ratelimit_table *table,
                                       uint64_t now_ns, char *buf, size_t buf_bytes);

/* ratelimit_top_entry  One of the keys refused most. */
typedef struct ratelimit_top_entry {
    uint64_t refused; /* of this key, at most */
    uint64_t error;   /* at least refused - error are really its own */
    uint64_t hash;    /* of the whole key */
    uint32_t key_len; /* of the whole key; key holds its first bytes */
    unsigned char key[36];
} ratelimit_top_entry;

/* ratelimit_top  The keys refused most, in a few entries of yours (space-saving, Metwally et al.).
 * Zero the entries, set both fields, give ratelimit_top_hook and the top to a limiter as hook and
 * hook_self (or call it from your own hook). Under rules a key is the bucket's name. */
typedef struct ratelimit_top {
    ratelimit_top_entry *entries;
    size_t count;
    uint64_t seed[2]; /* of the hash: random, if keys come from outside */
    uint32_t lock;    /* 0 */
} ratelimit_top;

/* ratelimit_top_hook  Counts a decision that refused, also one that shadow let through. Threads:
 * any. Cost: all entries are looked at; a decision that allowed costs nothing. */
RATELIMIT_API void ratelimit_top_hook(void *top, const ratelimit_request *req,
                                      const ratelimit_result *res);

/* ratelimit_top_read  Copies the most refused first, at most max; returns how many. Of N refusals a
 * key with more than N / count of them is among the entries for certain, and no error is above
 * N / count. Threads: any. */
RATELIMIT_API size_t ratelimit_top_read(ratelimit_top *top, ratelimit_top_entry *out, size_t max);

/* RATELIMIT_LOG  At one place in a program, does something at most so often, and says how often it
 * was held back since it was last done:
 *
 *     RATELIMIT_LOG(RATELIMIT_LIMIT(10, 5 * RATELIMIT_SECOND, 10), missed,
 *                   fprintf(stderr, "disk slow (and %u more)\n", (unsigned)missed));
 *
 * limit    a constant initialiser of a ratelimit_limit
 * missed   a name: a uint32_t for the statement that follows
 *
 * Threads: any, where ratelimit_bucket_take_shared may be called by any; else each place in one (in
 * an interrupt, or outside). With RATELIMIT_NO_LOG the statement is compiled, but never done: it
 * costs nothing.
 * The time is RATELIMIT_LOG_NOW, an option: ratelimit_clock_ns(). */
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
#    if !defined(RATELIMIT_LOG_NOW)
#      define RATELIMIT_LOG_NOW ratelimit_clock_ns()
#    endif
#    define RATELIMIT_LOG(limit, missed, ...)                                                      \
      do {                                                                                         \
        static const ratelimit_limit ratelimit_log_limit = limit;                                  \
        static ratelimit_log ratelimit_log_here;                                                   \
        uint32_t missed = 0;                                                                       \
        if (ratelimit_log_pass(&ratelimit_log_here, &ratelimit_log_limit, RATELIMIT_LOG_NOW,       \
                               &missed)) {                                                         \
          __VA_ARGS__;                                                                             \
        }                                                                                          \
      } while (0)
#  endif

/* ratelimit_log, ratelimit_log_pass  What the macro does: true if it may be logged now, and in
 * *missed how often that was false since. Zero the log first. Threads: any, as
 * ratelimit_bucket_take_shared. */
typedef struct ratelimit_log {
    ratelimit_bucket bucket;
    uint32_t missed;
} ratelimit_log;
RATELIMIT_API bool ratelimit_log_pass(ratelimit_log *log, const ratelimit_limit *limit,
                                      uint64_t now_ns, uint32_t *missed);

/* ratelimit_ticks  Makes 64-bit ns of a counter that wraps. Zeroed, it starts at tick 0. */
typedef struct ratelimit_ticks {
    uint64_t ns, rest; /* rest: in 1/hz ns */
    uint32_t last;
} ratelimit_ticks;

/* ratelimit_ticks_ns  The time at this reading: exact to the ns, rounded down, for 584 years.
 *
 * ticks    the counter; for one that counts down (SysTick), 0u - counter
 * bits     of the counter, 1 to 32; it must run through all of them before it wraps
 * hz       1 to 2^62, always the same
 *
 * RATELIMIT_FOREVER for bits or hz out of range. Less than one turn of the counter may pass between
 * two calls, or a turn is lost: an interrupt at each wrap is not enough for that, as it may come a
 * little late once. Let it count turns and pass more bits (turns << 24 | count, 32), or call twice
 * a turn. In the order of the readings. Threads: one caller at a time. */
RATELIMIT_API uint64_t ratelimit_ticks_ns(ratelimit_ticks *t, uint32_t ticks, unsigned bits,
                                          uint64_t hz);

/* ---- private: what the macros above need; not for use ---------------------------------------- */

enum {
    RATELIMIT_PRIV_BUCKET = 1,
    RATELIMIT_PRIV_WINDOW,
    RATELIMIT_PRIV_UNLIMITED,
    RATELIMIT_PRIV_RAW
};
enum { RATELIMIT_PRIV_HEAD_BYTES = 128, RATELIMIT_PRIV_BLOCK = 8 };
enum {
    RATELIMIT_PRIV_RULES_BYTES = 48,
    RATELIMIT_PRIV_ENTRY_BYTES = 212,
    RATELIMIT_PRIV_TALLY_BYTES = 40
};

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
#  define RATELIMIT_PRIV_NZ(x)      ((x) != 0 ? (x) : 1)
#  define RATELIMIT_PRIV_Q(t, p)    ((p) / RATELIMIT_PRIV_NZ(t))
#  define RATELIMIT_PRIV_R(t, p)    ((t) > RATELIMIT_PRIV_PARTS ? 0 : (p) % RATELIMIT_PRIV_NZ(t))
#  define RATELIMIT_PRIV_D(t, p)    (RATELIMIT_PRIV_R(t, p) ? (t) : 1)
#  define RATELIMIT_PRIV_W(t, p, b) /* whole ns of the window */                                   \
    ((b)*RATELIMIT_PRIV_Q(t, p) + (b) / RATELIMIT_PRIV_D(t, p) * RATELIMIT_PRIV_R(t, p) +          \
     (b) % RATELIMIT_PRIV_D(t, p) * RATELIMIT_PRIV_R(t, p) / RATELIMIT_PRIV_D(t, p))
#  define RATELIMIT_PRIV_WR(t, p, b) /* and its parts */                                           \
    ((b) % RATELIMIT_PRIV_D(t, p) * RATELIMIT_PRIV_R(t, p) % RATELIMIT_PRIV_D(t, p))
#  define RATELIMIT_PRIV_GOOD(t, p, b)                                                             \
    ((t) != 0 && (p) != 0 && (b) != 0 && (t) <= INT64_MAX && (b) <= INT64_MAX &&                   \
     (p) <= RATELIMIT_PRIV_MAX &&                                                                  \
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

/* A finished text for the caller, whole or not at all. */
static size_t ratelimit_priv_deliver(const char *text, size_t len, char *buf, size_t buf_bytes)
{
    if (buf && buf_bytes > len) {
        memcpy(buf, text, len);
        buf[len] = 0;
    } else if (buf && buf_bytes) {
        buf[0] = 0;
    }
    return len;
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
    return ratelimit_priv_deliver(text, len, buf, buf_bytes);
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

static inline uint32_t ratelimit_priv_le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t ratelimit_priv_le64(const unsigned char *p)
{
    return ratelimit_priv_le32(p) | (uint64_t)ratelimit_priv_le32(p + 4) << 32;
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
    } else if (left >= 4) { /* by two that overlap */
        word |= ratelimit_priv_le32(p);
        word |= (uint64_t)ratelimit_priv_le32(p + left - 4) << (8 * left - 32);
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
 * is dead, and so is that of every other held lock that stood still as long: all of them are
 * freed. */
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

/* The head in memory, aligned to a line; NULL if it and one line don't fit. *lines is how many
 * do. */
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
 * status stays with those that refused, the others say how it stands and what the longest wait
 * is. */
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

/* ---- windows and semaphores over the compare-and-swap store: a time, a number, a mark */

#  define RATELIMIT_PRIV_CAS_WINDOW  UINT64_C(0x00315752) /* "RW1", NUL: end, used */
#  define RATELIMIT_PRIV_CAS_PLAIN   UINT64_C(0x00315052) /* "RP1", NUL: end, how many are out */
#  define RATELIMIT_PRIV_CAS_PLACE   UINT64_C(0x00314852) /* "RH1", NUL: end, holder */
#  define RATELIMIT_PRIV_CAS_LONGEST (UINT64_C(1) << 62)
#  define RATELIMIT_PRIV_CAS_PLACES  255

typedef struct ratelimit_priv_cas_record {
    ratelimit_cas *cas;
    const void *key;
    size_t key_len;
    uint64_t mark;
    uint32_t swaps; /* left in this call */
    bool found;
    unsigned char old[RATELIMIT_RECORD_BYTES];
    uint64_t left_ns, value; /* 0 both if its time is over at now_ns */
    uint64_t now_ns;
} ratelimit_priv_cas_record;

static ratelimit_status ratelimit_priv_cas_open(ratelimit_priv_cas_record *r, ratelimit_cas *cas,
                                                const void *key, size_t key_len, uint64_t mark)
{
    memset(r, 0, sizeof *r);
    if (!cas || !cas->load || !cas->swap || !cas->clock)
        return RATELIMIT_BAD_ARGUMENT;
    r->cas = cas;
    r->key = key;
    r->key_len = key_len;
    r->mark = mark;
    r->swaps = cas->tries ? cas->tries : 16;
    return key && key_len ? RATELIMIT_OK : RATELIMIT_BAD_KEY;
}

static bool ratelimit_priv_cas_time(uint64_t ns)
{
    return ns && ns <= RATELIMIT_PRIV_CAS_LONGEST;
}

/* Times wrap: an end more than 2^63 ns ahead lies behind. */
static uint64_t ratelimit_priv_cas_left(uint64_t end_ns, uint64_t now_ns)
{
    uint64_t left = end_ns - now_ns;
    return left >> 63 ? 0 : left;
}

/* True if loaded, as it is at the time given. */
static bool ratelimit_priv_cas_load(ratelimit_priv_cas_record *r, uint64_t now_ns)
{
    int found;
    memset(r->old, 0, sizeof r->old);
    found = r->cas->load(r->cas->self, r->key, r->key_len, r->old);
    r->found = found > 0;
    r->now_ns = now_ns;
    r->left_ns = r->value = 0;
    if (found <= 0)
        return found == 0;
    r->left_ns = ratelimit_priv_cas_left(ratelimit_priv_le64(r->old), now_ns);
    r->value = r->left_ns ? ratelimit_priv_le64(r->old + 8) : 0;
    return (ratelimit_priv_le64(r->old + 16) & UINT32_MAX) == r->mark;
}

/* Who charges or gives back judges by a time read after the record came. */
static bool ratelimit_priv_cas_load_now(ratelimit_priv_cas_record *r)
{
    bool good = ratelimit_priv_cas_load(r, 0);
    r->now_ns = r->cas->clock(r->cas->clock_self);
    r->left_ns = r->found ? ratelimit_priv_cas_left(ratelimit_priv_le64(r->old), r->now_ns) : 0;
    r->value = r->left_ns ? ratelimit_priv_le64(r->old + 8) : 0;
    return good;
}

/* 1: done; 0: load again; below 0: the database failed, or it lost too often. */
static int ratelimit_priv_cas_swap(ratelimit_priv_cas_record *r, uint64_t left_ns, uint64_t value)
{
    unsigned char record[RATELIMIT_RECORD_BYTES];
    uint64_t writes = ratelimit_priv_le64(r->old + 16) >> 32;
    int done;
    ratelimit_priv_put_le64(record, r->now_ns + left_ns);
    ratelimit_priv_put_le64(record + 8, value);
    ratelimit_priv_put_le64(record + 16, r->mark | (writes + 1) << 32);
    done =
        r->cas->swap(r->cas->self, r->key, r->key_len, r->found ? r->old : NULL, record, left_ns);
    return done == 0 && !--r->swaps ? -1 : done;
}

/* The answer for n, where r->value were used before. */
static void ratelimit_priv_cas_window_result(const ratelimit_priv_cas_record *r, uint64_t most,
                                             uint64_t n, bool allowed, uint64_t left_ns,
                                             ratelimit_result *out)
{
    uint64_t used = r->value + (allowed ? n : 0);
    ratelimit_priv_answer(out, allowed    ? RATELIMIT_OK
                               : n > most ? RATELIMIT_NEVER
                                          : RATELIMIT_DENIED);
    out->limit = most;
    out->remaining = used < most ? most - used : 0;
    out->taken = allowed ? n : 0;
    out->reset_after_ns = used ? left_ns : 0;
    if (!allowed)
        out->retry_after_ns = n > most ? RATELIMIT_FOREVER : left_ns;
}

static int ratelimit_priv_cas_window_try(ratelimit_priv_cas_record *r, uint64_t most,
                                         uint64_t per_ns, uint64_t n, ratelimit_result *out)
{
    uint64_t step = r->cas->step_ns ? r->cas->step_ns : RATELIMIT_STEP_NS, left;
    bool allowed, shorter;
    if (!ratelimit_priv_cas_load_now(r))
        return -1;
    left = r->left_ns ? r->left_ns : per_ns;
    shorter = left > per_ns && left - per_ns > step;
    left = shorter ? per_ns : left;
    allowed = r->value <= most && n <= most - r->value;
    ratelimit_priv_cas_window_result(r, most, n, allowed, left, out);
    if (!allowed && !shorter)
        return 1;
    return ratelimit_priv_cas_swap(r, left, r->value + (allowed ? n : 0));
}

RATELIMIT_API bool ratelimit_cas_window(ratelimit_cas *cas, const void *key, size_t key_len,
                                        uint64_t most, uint64_t per_ns, uint64_t n,
                                        ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    ratelimit_priv_cas_record r;
    ratelimit_status status =
        ratelimit_priv_cas_open(&r, cas, key, key_len, RATELIMIT_PRIV_CAS_WINDOW);
    int done = 0;
    if (status == RATELIMIT_OK && (most >> 63 || n >> 63 || !ratelimit_priv_cas_time(per_ns)))
        status = RATELIMIT_BAD_ARGUMENT;
    if (status == RATELIMIT_OK && !n)
        status = RATELIMIT_BAD_COUNT;
    if (status != RATELIMIT_OK || !most) {
        ratelimit_priv_answer(out, status);
        out->limit = out->remaining = status == RATELIMIT_OK ? UINT64_MAX : 0;
        out->taken = status == RATELIMIT_OK ? n : 0;
        return out->allowed;
    }
    while (done == 0)
        done = ratelimit_priv_cas_window_try(&r, most, per_ns, n, out);
    if (done < 0)
        ratelimit_priv_answer(out, RATELIMIT_STORE_FAILED);
    return out->allowed;
}

RATELIMIT_API ratelimit_status ratelimit_cas_acquire_plain(ratelimit_cas *cas, const void *key,
                                                           size_t key_len, uint64_t most,
                                                           uint64_t ttl_ns)
{
    ratelimit_priv_cas_record r;
    ratelimit_status status =
        ratelimit_priv_cas_open(&r, cas, key, key_len, RATELIMIT_PRIV_CAS_PLAIN);
    int done = 0;
    if (status != RATELIMIT_OK)
        return status;
    if (!most || most > UINT64_C(1) << 31 || !ratelimit_priv_cas_time(ttl_ns))
        return RATELIMIT_BAD_ARGUMENT;
    while (done == 0) {
        if (!ratelimit_priv_cas_load_now(&r))
            return RATELIMIT_STORE_FAILED;
        if (r.value >= most)
            return RATELIMIT_BUSY;
        done = ratelimit_priv_cas_swap(&r, ttl_ns, r.value + 1);
    }
    return done > 0 ? RATELIMIT_OK : RATELIMIT_STORE_FAILED;
}

RATELIMIT_API ratelimit_status ratelimit_cas_release_plain(ratelimit_cas *cas, const void *key,
                                                           size_t key_len)
{
    ratelimit_priv_cas_record r;
    ratelimit_status status =
        ratelimit_priv_cas_open(&r, cas, key, key_len, RATELIMIT_PRIV_CAS_PLAIN);
    int done = 0;
    if (status != RATELIMIT_OK)
        return status;
    while (done == 0) {
        if (!ratelimit_priv_cas_load_now(&r))
            return RATELIMIT_STORE_FAILED;
        if (!r.value)
            return RATELIMIT_LOST;
        done = ratelimit_priv_cas_swap(&r, r.value > 1 ? r.left_ns : 0, r.value - 1);
    }
    return done > 0 ? RATELIMIT_OK : RATELIMIT_STORE_FAILED;
}

/* Names of places, made in place: key, ':', two hex digits. */
typedef struct ratelimit_priv_cas_name {
    char text[256];
    size_t key_len;
} ratelimit_priv_cas_name;

static ratelimit_status ratelimit_priv_cas_open_places(ratelimit_priv_cas_record *r,
                                                       ratelimit_priv_cas_name *name,
                                                       ratelimit_cas *cas, const void *key,
                                                       size_t key_len)
{
    ratelimit_status status =
        ratelimit_priv_cas_open(r, cas, key, key_len, RATELIMIT_PRIV_CAS_PLACE);
    if (status != RATELIMIT_OK)
        return status;
    if (key_len > 250)
        return RATELIMIT_BAD_KEY;
    memcpy(name->text, key, key_len);
    name->key_len = key_len;
    r->key = name->text;
    r->key_len = key_len + 3;
    return RATELIMIT_OK;
}

static void ratelimit_priv_cas_place(ratelimit_priv_cas_name *name, uint32_t place)
{
    static const char digits[] = "0123456789abcdef";
    name->text[name->key_len] = ':';
    name->text[name->key_len + 1] = digits[place >> 4 & 15];
    name->text[name->key_len + 2] = digits[place & 15];
}

/* Looks at a place by a time read before: if it was over then, its holder can't extend it later
 * either. */
static bool ratelimit_priv_cas_look(ratelimit_priv_cas_record *r, ratelimit_priv_cas_name *name,
                                    uint32_t place, uint64_t *retry_ns)
{
    ratelimit_priv_cas_place(name, place);
    if (!ratelimit_priv_cas_load(r, r->cas->clock(r->cas->clock_self)))
        return false;
    if (r->value && (!*retry_ns || r->left_ns < *retry_ns))
        *retry_ns = r->left_ns;
    return true;
}

/* How many of the first places may be handed out, so that those and what is out in the others are
 * not more than most. Nobody hands out the others, so there it only gets less. */
static bool ratelimit_priv_cas_usable(ratelimit_priv_cas_record *r, ratelimit_priv_cas_name *name,
                                      uint32_t most, uint32_t places, uint32_t *usable,
                                      uint64_t *retry_ns)
{
    uint32_t at = places, out = 0;
    while (at > 0 && at + out > most) {
        if (!ratelimit_priv_cas_look(r, name, --at, retry_ns))
            return false;
        out += r->value != 0;
    }
    *usable = at;
    return true;
}

/* Takes the first free place of those usable, from one that differs by id. */
static ratelimit_status ratelimit_priv_cas_find(ratelimit_priv_cas_record *r,
                                                ratelimit_priv_cas_name *name, uint32_t usable,
                                                uint64_t ttl_ns, ratelimit_cas_permit *permit,
                                                uint64_t *retry_ns)
{
    uint64_t mix = (permit->id ^ permit->id >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t i = 0;
    while (i < usable) {
        uint32_t place = (uint32_t)(((mix >> 33) + i) % usable);
        int done = 0;
        if (!ratelimit_priv_cas_look(r, name, place, retry_ns))
            return RATELIMIT_STORE_FAILED;
        if (r->value) {
            i++;
            continue;
        }
        done = ratelimit_priv_cas_swap(r, ttl_ns, permit->id);
        if (done < 0)
            return RATELIMIT_STORE_FAILED;
        if (done) {
            permit->place = place;
            permit->expires_ns = r->now_ns + ttl_ns;
            return RATELIMIT_OK;
        }
    }
    return RATELIMIT_BUSY;
}

RATELIMIT_API ratelimit_status ratelimit_cas_acquire(ratelimit_cas *cas, const void *key,
                                                     size_t key_len, uint32_t most, uint32_t places,
                                                     uint64_t ttl_ns, uint64_t id,
                                                     ratelimit_cas_permit *permit,
                                                     uint64_t *retry_after_ns)
{
    ratelimit_priv_cas_record r;
    ratelimit_priv_cas_name name;
    ratelimit_cas_permit found = {0, 0, 0};
    uint64_t retry = 0;
    uint32_t usable = 0;
    ratelimit_status status = ratelimit_priv_cas_open_places(&r, &name, cas, key, key_len);
    if (permit)
        *permit = found;
    if (retry_after_ns)
        *retry_after_ns = 0;
    if (status != RATELIMIT_OK)
        return status;
    if (!permit || !id || !most || most > places || places > RATELIMIT_PRIV_CAS_PLACES ||
        !ratelimit_priv_cas_time(ttl_ns))
        return RATELIMIT_BAD_ARGUMENT;
    found.id = id;
    if (!ratelimit_priv_cas_usable(&r, &name, most, places, &usable, &retry))
        return RATELIMIT_STORE_FAILED;
    status = ratelimit_priv_cas_find(&r, &name, usable, ttl_ns, &found, &retry);
    if (status == RATELIMIT_OK)
        *permit = found;
    if (status == RATELIMIT_BUSY && retry_after_ns)
        *retry_after_ns = retry;
    return status;
}

/* The place of permit gets an end ttl_ns from now (0: none) if it is still the permit's. */
static ratelimit_status ratelimit_priv_cas_held(ratelimit_cas *cas, const void *key, size_t key_len,
                                                const ratelimit_cas_permit *permit, uint64_t ttl_ns,
                                                uint64_t *now_ns)
{
    ratelimit_priv_cas_record r;
    ratelimit_priv_cas_name name;
    ratelimit_status status = ratelimit_priv_cas_open_places(&r, &name, cas, key, key_len);
    uint64_t end = 0;
    int done = 0;
    if (status != RATELIMIT_OK)
        return status;
    if (!permit || permit->place >= RATELIMIT_PRIV_CAS_PLACES ||
        (ttl_ns && !ratelimit_priv_cas_time(ttl_ns)))
        return RATELIMIT_BAD_ARGUMENT;
    if (!permit->id)
        return RATELIMIT_LOST; /* a zeroed one */
    ratelimit_priv_cas_place(&name, permit->place);
    while (done == 0) {
        if (!ratelimit_priv_cas_load_now(&r))
            return RATELIMIT_STORE_FAILED;
        if (r.value != permit->id)
            return RATELIMIT_LOST;
        end = ratelimit_priv_le64(r.old);
        done = ratelimit_priv_cas_swap(&r, ttl_ns, ttl_ns ? permit->id : 0);
    }
    if (done < 0)
        return RATELIMIT_STORE_FAILED;
    *now_ns = r.now_ns;
    if (!ttl_ns || ratelimit_priv_cas_left(end, cas->clock(cas->clock_self)))
        return RATELIMIT_OK;
    /* Its time was over before the swap came: others may have counted on that. */
    (void)ratelimit_priv_cas_held(cas, key, key_len, permit, 0, now_ns);
    return RATELIMIT_LOST;
}

RATELIMIT_API ratelimit_status ratelimit_cas_release(ratelimit_cas *cas, const void *key,
                                                     size_t key_len,
                                                     const ratelimit_cas_permit *permit)
{
    uint64_t now = 0;
    return ratelimit_priv_cas_held(cas, key, key_len, permit, 0, &now);
}

RATELIMIT_API ratelimit_status ratelimit_cas_extend(ratelimit_cas *cas, const void *key,
                                                    size_t key_len, ratelimit_cas_permit *permit,
                                                    uint64_t ttl_ns)
{
    uint64_t now = 0;
    ratelimit_status status = ttl_ns
                                  ? ratelimit_priv_cas_held(cas, key, key_len, permit, ttl_ns, &now)
                                  : RATELIMIT_BAD_ARGUMENT;
    if (status == RATELIMIT_OK)
        permit->expires_ns = now + ttl_ns;
    return status;
}

/* ---- >>implementation: tier ---------------------------------------------------------------------

   Two entries per key in the tier's table, apart from buckets by their kind:

   known   the debt that the store last told, reckoned from when it was asked. Others only add to
           it, so it is a lower bound, and what it refuses the store would refuse, too. For a bucket
           it is one, as the table keeps it. A fixed window ends by the store's clock, not by ours:
           there it is the end in our time, and what remained.
   lease   when the store last answered for the key; the tokens taken and not yet served; how many
           to ask for next; the limit it all belongs to. Gone when its time is over.

   While the store fails, a third: the local bucket, of the usual kind. All three are in one block.

   A lease has one owner at a time. Who wants more takes what is left out of it and marks it ASKING;
   what comes of the store's answer is put back only into the very entry that was marked (turn). So
   there is never more than one lease, and a reset, block or refund meanwhile drops it, as it does
   all that was asked before it was done. Others, while it is marked, ask for themselves. Nothing is
   ever refunded on its own account: a refund could undo another node's block or reset. What is left
   over counts towards the next take of the key; what nobody asks for expires. */

#  define RATELIMIT_PRIV_KNOWN_KIND UINT32_C(0x85EBCA6B)
#  define RATELIMIT_PRIV_LEASE_KIND UINT32_C(0xC2B2AE35)

enum { RATELIMIT_PRIV_TIER_BATCH = 32 };

/* Where a key's entries may be. block is NULL where the tier has no part in a request. */
typedef struct ratelimit_priv_keyed {
    ratelimit_priv_place known, lease;
} ratelimit_priv_keyed;

/* An entry as it was read: only what still is the same is replaced. */
typedef struct ratelimit_priv_kept {
    ratelimit_priv_line *line;
    uint32_t seq, slot;
    ratelimit_bucket b;
} ratelimit_priv_kept;

/* A lease, unpacked. In the bucket: full_ns is at + tier's keep; of rest, bits 0-23 left, 24-49 id,
 * 50 none (so it is never taken for one in flight), 51 asking, 53-57 size, 58-63 turn. */
typedef struct ratelimit_priv_lease {
    uint64_t age;        /* ns since the store answered, or RATELIMIT_FOREVER */
    uint32_t left;       /* tokens */
    uint32_t size, turn; /* the next lease is of 2^size tokens */
    uint32_t id;         /* of the limit */
    bool asking;
} ratelimit_priv_lease;

/* A request that goes to the store, and what the tier has at stake. */
typedef struct ratelimit_priv_errand {
    ratelimit_priv_keyed at;
    const ratelimit_request *req;
    ratelimit_result *res;
    uint64_t held; /* tokens taken out of the lease */
    uint32_t size, turn;
    bool marked; /* the lease is marked ASKING for us */
    bool netted; /* asked for other than req says: for what is missing, or for a lease */
} ratelimit_priv_errand;

static inline uint64_t ratelimit_priv_or(uint64_t option, uint64_t otherwise)
{
    option = option ? option : otherwise;
    return option < RATELIMIT_PRIV_MAX ? option : RATELIMIT_PRIV_MAX;
}

static inline uint64_t ratelimit_priv_trust(const ratelimit_tier *tier)
{
    return ratelimit_priv_or(tier->trust_ns, RATELIMIT_SECOND);
}

static inline uint64_t ratelimit_priv_lease_ns(const ratelimit_tier *tier)
{
    return ratelimit_priv_or(tier->lease_ns, RATELIMIT_SECOND);
}

/* For how long a lease entry is of use. */
static inline uint64_t ratelimit_priv_keep(const ratelimit_tier *tier)
{
    uint64_t trust = ratelimit_priv_trust(tier), lease = ratelimit_priv_lease_ns(tier);
    return trust > lease ? trust : lease;
}

/* NULL if there is none. */
static ratelimit_clock ratelimit_priv_tier_clock(const ratelimit_tier *tier)
{
    return tier->clock ? tier->clock : RATELIMIT_PRIV_PLATFORM_CLOCK;
}

static uint64_t ratelimit_priv_tier_now(const ratelimit_tier *tier)
{
    return ratelimit_priv_tier_clock(tier)(tier->clock_self);
}

static RATELIMIT_PRIV_INLINE ratelimit_priv_keyed
ratelimit_priv_keyed_at(const ratelimit_table *t, const ratelimit_request *q)
{
    ratelimit_priv_keyed at;
    at.lease = ratelimit_priv_locate(t, q->key, q->key_len, RATELIMIT_PRIV_LEASE_KIND);
    at.known = at.lease;
    at.known.tag ^= RATELIMIT_PRIV_LEASE_KIND ^ RATELIMIT_PRIV_KNOWN_KIND;
    at.known.tag += at.known.tag == 0;
    return at; /* both are looked for from the same line on, which mostly has them */
}

/* ---- entries */

/* Reads an entry. False if there is none, or it changes all the time, which costs a call. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_kept_read(const ratelimit_table *t,
                                                           const ratelimit_priv_place *at,
                                                           ratelimit_priv_kept *e)
{
#  if defined(RATELIMIT_LOCK)
    ratelimit_priv_slot_ref ref;
    uint32_t word[RATELIMIT_PRIV_BLOCK];
    bool found;
    ratelimit_priv_lock_block(at->block, t->lines, word);
    found = ratelimit_priv_find(t, at, &ref);
    if (found)
        e->b = ref.old;
    ratelimit_priv_unlock_block(t, at->block, word);
    return found;
#  else
    uint32_t i = 0, tries = 0, index = at->home;
    while (i < t->lines && tries < 100) {
        e->line = &at->block[index];
        e->seq = ratelimit_priv_load32(&e->line->lock);
        e->slot = ratelimit_priv_slot(e->line, at->tag);
        if (e->slot == 3) {
            index = ratelimit_priv_next(t, index);
            i++;
            continue;
        }
        e->b = ratelimit_priv_fetch(&e->line->bucket[e->slot]);
        if (!(e->seq & 1) && ratelimit_priv_load32(&e->line->lock) == e->seq)
            return true;
        ratelimit_priv_relax();
        tries++;
    }
    return false;
#  endif
}

/* Replaces it, unless it changed since it was read. */
static bool ratelimit_priv_kept_swap(const ratelimit_table *t, const ratelimit_priv_place *at,
                                     const ratelimit_priv_kept *e, const ratelimit_bucket *b)
{
#  if defined(RATELIMIT_LOCK)
    ratelimit_priv_slot_ref ref;
    uint32_t word[RATELIMIT_PRIV_BLOCK];
    bool same;
    ratelimit_priv_lock_block(at->block, t->lines, word);
    same = ratelimit_priv_find(t, at, &ref) && ratelimit_priv_same(&ref.old, &e->b);
    if (same)
        ratelimit_priv_write(&ref, at->tag, b);
    ratelimit_priv_unlock_block(t, at->block, word);
    return same;
#  else
    (void)t, (void)at;
    return ratelimit_priv_commit(e->line, e->seq, e->slot, b);
#  endif
}

/* In a locked block: writes an entry, into a place of its own if there is none yet. Without room it
 * is not kept. */
static void ratelimit_priv_kept_put(ratelimit_table *t, const ratelimit_priv_place *at,
                                    const ratelimit_bucket *b, uint64_t now)
{
    ratelimit_priv_slot_ref ref;
    uint64_t debt = 0;
    if (!ratelimit_priv_find(t, at, &ref)) {
        if (!b->rest || !ratelimit_priv_choose(t, at, now, &ref, &debt) ||
            (debt && t->when_full > RATELIMIT_EVICT_LAST_SEEN))
            return;
        if (debt)
            ratelimit_priv_add64(&t->evicted, 1);
    }
    ratelimit_priv_write(&ref, at->tag, b);
}

/* ---- what is known of a key */

static uint32_t ratelimit_priv_limit_id(const ratelimit_limit *l)
{
    uint64_t mix = (l->burst ^ (uint64_t)l->code << 32) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)((mix ^ l->code) >> 38);
}

static RATELIMIT_PRIV_INLINE ratelimit_priv_lease
ratelimit_priv_lease_read(const ratelimit_tier *tier, const ratelimit_bucket *b, uint64_t now)
{
    ratelimit_priv_lease lease;
    lease.age = now + ratelimit_priv_keep(tier) - b->full_ns;
    if (!b->rest || lease.age > RATELIMIT_PRIV_LONG) /* none, or the clock went back */
        lease.age = RATELIMIT_FOREVER;
    lease.left = (uint32_t)b->rest & 0xffffff;
    lease.id = (uint32_t)(b->rest >> 24) & 0x3ffffff;
    lease.asking = (b->rest >> 51 & 1) != 0;
    lease.size = (uint32_t)(b->rest >> 53) & 31;
    lease.turn = (uint32_t)(b->rest >> 58);
    return lease;
}

/* age is 0 for an answer of now, keep for one too old for anything. */
static ratelimit_bucket ratelimit_priv_lease_save(const ratelimit_tier *tier,
                                                  const ratelimit_priv_lease *lease, uint64_t now)
{
    ratelimit_bucket b;
    b.full_ns = now + (ratelimit_priv_keep(tier) - lease->age);
    b.rest = lease->left | (uint64_t)lease->id << 24 | (uint64_t)lease->asking << 51 |
             (b.full_ns < now ? RATELIMIT_PRIV_TOP : 0) | (uint64_t)lease->size << 53 |
             (uint64_t)(lease->turn & 63) << 58;
    return b;
}

/* The tokens of a lease that may be served under l at this moment. */
static uint64_t ratelimit_priv_lease_left(const ratelimit_tier *tier,
                                          const ratelimit_priv_lease *lease,
                                          const ratelimit_limit *l)
{
    bool good = !lease->asking && lease->age < ratelimit_priv_lease_ns(tier) &&
                lease->id == ratelimit_priv_limit_id(l);
    return good ? lease->left : 0;
}

/* The debt under l that the known entry tells; false if none. */
static RATELIMIT_PRIV_INLINE bool ratelimit_priv_known_debt(const ratelimit_bucket *b,
                                                            const ratelimit_limit *l, uint64_t now,
                                                            ratelimit_priv_step *s)
{
    ratelimit_priv_span room;
    if (!b->rest || ratelimit_priv_rest_code(b->rest) != (l->code & RATELIMIT_PRIV_REMEMBERED))
        return false;
    memset(s, 0, sizeof *s);
    s->l = l;
    if (ratelimit_priv_kind(l) == RATELIMIT_PRIV_WINDOW) {
        s->to_end = ratelimit_priv_debt(b, now);
        if (s->to_end && (b->rest & 0xffffff)) /* what remained is no fraction of a ns */
            s->to_end--;
        if (!s->to_end || s->to_end > l->per_ns ||
            !ratelimit_priv_cost(l, b->rest & 0xffffff, &room))
            return false;
        s->debt = ratelimit_priv_minus(ratelimit_priv_window(l), room, l->parts);
    } else {
        s->debt = ratelimit_priv_ahead(b, l, now);
    }
    return true;
}

/* What it says about n tokens. */
static void ratelimit_priv_known_weigh(ratelimit_priv_step *s, uint64_t n)
{
    s->n = n;
    s->fits = ratelimit_priv_cost(s->l, n, &s->cost);
    ratelimit_priv_weigh(s);
}

/* A debt of which only the ns it was rounded up to is known: the least it may be. */
static ratelimit_priv_span ratelimit_priv_at_least(const ratelimit_limit *l, uint64_t ns)
{
    return l->parts > 1 && ns ? ratelimit_priv_span_of(ns - 1, 1) : ratelimit_priv_span_of(ns, 0);
}

/* The known entry that an answer makes, which refused n tokens or none (n 0); empty if it says
 * nothing of use. */
static ratelimit_bucket ratelimit_priv_known_save(const ratelimit_limit *l,
                                                  const ratelimit_result *r, uint64_t n,
                                                  uint64_t now)
{
    ratelimit_bucket b = {0, 0};
    ratelimit_priv_step s;
    memset(&s, 0, sizeof s);
    s.l = l;
    if (ratelimit_priv_kind(l) == RATELIMIT_PRIV_WINDOW) {
        if (r->reset_after_ns == 0 || r->reset_after_ns > l->per_ns || r->remaining > 0xffffff)
            return b;
        b.full_ns = now + r->reset_after_ns;
        b.rest = r->remaining | (uint64_t)(l->code & RATELIMIT_PRIV_REMEMBERED) << 24 |
                 ratelimit_priv_seen_code(r->reset_after_ns) << 53 |
                 (b.full_ns < now ? RATELIMIT_PRIV_TOP : 0);
        return b;
    }
    s.debt = ratelimit_priv_at_least(l, r->reset_after_ns);
    if (n && r->retry_after_ns <= RATELIMIT_PRIV_MAX && ratelimit_priv_cost(l, n, &s.cost)) {
        ratelimit_priv_span debt = ratelimit_priv_plus(
            ratelimit_priv_window(l), ratelimit_priv_at_least(l, r->retry_after_ns), l->parts);
        debt = ratelimit_priv_minus(debt, s.cost, l->parts);
        if (ratelimit_priv_above(debt, s.debt))
            s.debt = debt;
    }
    ratelimit_priv_save(&s, &b, now);
    return b;
}

static void ratelimit_priv_add_left(ratelimit_result *out, uint64_t left)
{
    uint64_t room = out->limit > out->remaining ? out->limit - out->remaining : 0;
    out->remaining += left < room ? left : room;
}

/* ---- answers without the store */

/* From a lease with left tokens: those asked for, if all are there. */
static bool ratelimit_priv_serve(ratelimit_tier *tier, const ratelimit_priv_place *at,
                                 ratelimit_priv_kept *e, const ratelimit_priv_step *s,
                                 const ratelimit_request *q, uint64_t left, ratelimit_result *out)
{
    bool peek = q->op == RATELIMIT_PEEK;
    uint64_t taken = peek ? 0 : q->n;
    if (left < q->n || left == 0)
        return false;
    if (!peek) {
        ratelimit_bucket b = e->b;
        b.rest -= taken;
        if (!ratelimit_priv_kept_swap(tier->table, at, e, &b))
            return false;
    }
    ratelimit_priv_add64(&tier->counts.leased, 1);
    ratelimit_priv_answer(out, RATELIMIT_OK);
    out->source = RATELIMIT_FROM_LEASE;
    out->limit = s->l->burst;
    out->remaining = ratelimit_priv_remaining(s);
    out->reset_after_ns = ratelimit_priv_time(s, s->debt);
    out->taken = taken;
    ratelimit_priv_add_left(out, left - taken);
    return true;
}

/* The tokens for which the store must be asked, left of them being here. */
static uint64_t ratelimit_priv_missing(const ratelimit_request *q, const ratelimit_limit *l,
                                       uint64_t left)
{
    uint64_t n = ratelimit_priv_tokens(q);
    bool nets = q->op == RATELIMIT_TAKE || q->op == RATELIMIT_PEEK;
    return nets && n > left && n <= l->burst ? n - left : n;
}

/* From what is known: a refusal. A take asks for what the lease has not. */
static bool ratelimit_priv_known_refuse(ratelimit_priv_step *s, const ratelimit_request *q,
                                        uint64_t left, ratelimit_result *out)
{
    ratelimit_status status;
    ratelimit_priv_known_weigh(s, ratelimit_priv_missing(q, s->l, left));
    status = ratelimit_priv_apply(s, q);
    if (status == RATELIMIT_OK)
        return false;
    ratelimit_priv_report(s, q->op, status, out);
    ratelimit_priv_add_left(out, left);
    out->source = RATELIMIT_FROM_REFUSAL_CACHE;
    return true;
}

/* Can a request be answered here? */
static bool ratelimit_priv_local(ratelimit_tier *tier, const ratelimit_priv_keyed *at,
                                 const ratelimit_limit *l, const ratelimit_request *q, uint64_t now,
                                 bool leases, ratelimit_result *out)
{
    uint32_t tries = 0;
    for (; q->op <= RATELIMIT_RESERVE && tries < 100; tries++) {
        ratelimit_priv_kept lease_entry, known;
        ratelimit_priv_lease lease;
        ratelimit_priv_step s;
        uint64_t left;
        if (!ratelimit_priv_kept_read(tier->table, &at->lease, &lease_entry) ||
            !ratelimit_priv_kept_read(tier->table, &at->known, &known))
            return false;
        lease = ratelimit_priv_lease_read(tier, &lease_entry.b, now);
        left = leases ? ratelimit_priv_lease_left(tier, &lease, l) : 0;
        if (!ratelimit_priv_known_debt(&known.b, l, now, &s))
            return false;
        if (ratelimit_priv_serve(tier, &at->lease, &lease_entry, &s, q, left, out))
            return true;
        if (left && (left >= q->n || q->op == RATELIMIT_TAKE_UP_TO)) {
            if (left < q->n)
                return false; /* there may be more */
            continue;         /* another was faster */
        }
        return !lease.asking && lease.age < ratelimit_priv_trust(tier) &&
               lease.id == ratelimit_priv_limit_id(l) &&
               ratelimit_priv_known_refuse(&s, q, left, out);
    }
    return false;
}

/* ---- a store that fails

   gate is 0 while the store answers. Else it is when to try again, in 2^20 ns. Who finds that this
   time has come moves it on by the longest cool-down, and with that is the only one to try; what
   comes of it sets the gate anew. */

static bool ratelimit_priv_gate_swap(uint32_t *gate, uint32_t old, uint32_t value)
{
#  if RATELIMIT_PRIV_ATOMIC
    return ratelimit_priv_swap32(gate, old, value);
#  else
    bool same = *gate == old;
    *gate = same ? value : *gate;
    return same;
#  endif
}

/* The gate's value for a time ns from now. */
static uint32_t ratelimit_priv_gate_at(uint64_t now, uint64_t ns)
{
    uint32_t at = (uint32_t)((now + ns + (UINT64_C(1) << 20) - 1) >> 20);
    return at + (at == 0);
}

static uint64_t ratelimit_priv_cool_down_max(const ratelimit_tier *tier)
{
    uint64_t most = ratelimit_priv_or(tier->cool_down_max_ns, 5 * RATELIMIT_SECOND);
    return most < RATELIMIT_HOUR ? most : RATELIMIT_HOUR;
}

/* How long to leave the store alone after so many failures in a row. */
static uint64_t ratelimit_priv_cool_down(const ratelimit_tier *tier, uint32_t failures,
                                         uint64_t now)
{
    uint64_t most = ratelimit_priv_cool_down_max(tier);
    uint64_t pause = ratelimit_priv_or(tier->cool_down_ns, 100 * RATELIMIT_MILLISECOND);
    uint64_t mix = (now ^ (uint64_t)(uintptr_t)tier) * UINT64_C(0x9E3779B97F4A7C15);
    while (--failures && pause < most)
        pause *= 2;
    pause = pause < most ? pause : most;
    return pause - (pause >> 17) * (mix >> 48);
}

/* Is the store left alone now? *seen is what the gate holds. */
static bool ratelimit_priv_gate_closed(const ratelimit_tier *tier, uint64_t now, uint32_t *seen)
{
    uint32_t ahead;
    *seen = ratelimit_priv_load32(&tier->gate);
    ahead = *seen - (uint32_t)(now >> 20);
    return *seen && ahead && ahead <= (uint32_t)(ratelimit_priv_cool_down_max(tier) >> 20) + 2;
}

/* May the store be asked? *seen is what the gate then holds. */
static bool ratelimit_priv_gate_pass(ratelimit_tier *tier, uint64_t now, uint32_t *seen)
{
    uint32_t next = ratelimit_priv_gate_at(now, ratelimit_priv_cool_down_max(tier));
    if (ratelimit_priv_gate_closed(tier, now, seen))
        return false;
    if (*seen == 0)
        return true;
    if (!ratelimit_priv_gate_swap(&tier->gate, *seen, next))
        return false;
    *seen = next;
    return true;
}

/* ---- before and after the store is asked */

/* Ends what a request ends: a refund and a reset what is known of the key, a block and a reset its
 * lease; each of them what others are asking for just now. */
static void ratelimit_priv_forget(const ratelimit_tier *tier, const ratelimit_priv_keyed *keyed,
                                  ratelimit_op op, bool is_lease, uint64_t now)
{
    const ratelimit_priv_place *at = is_lease ? &keyed->lease : &keyed->known;
    ratelimit_priv_kept e;
    uint32_t tries = 100;
    while (tries-- && ratelimit_priv_kept_read(tier->table, at, &e)) {
        ratelimit_bucket b = {0, 0};
        if (is_lease) {
            ratelimit_priv_lease lease = ratelimit_priv_lease_read(tier, &e.b, now);
            if (op != RATELIMIT_REFUND || lease.age > ratelimit_priv_keep(tier)) {
                lease.age = ratelimit_priv_keep(tier);
                lease.left = 0;
            }
            lease.asking = false;
            lease.turn++;
            b = ratelimit_priv_lease_save(tier, &lease, now);
        }
        if (ratelimit_priv_kept_swap(tier->table, at, &e, &b))
            return;
    }
}

/* All that a request ends, once it is done. */
static void ratelimit_priv_tier_end(const ratelimit_tier *tier, const ratelimit_priv_keyed *at,
                                    ratelimit_op op, uint64_t now)
{
    if (op == RATELIMIT_REFUND || op == RATELIMIT_RESET)
        ratelimit_priv_forget(tier, at, op, false, now);
    if (op >= RATELIMIT_REFUND)
        ratelimit_priv_forget(tier, at, op, true, now);
}

/* The largest lease under l, 0 for none. */
static uint64_t ratelimit_priv_lease_cap(const ratelimit_tier *tier, const ratelimit_limit *l)
{
    uint64_t percent = tier->lease_percent < 100 ? tier->lease_percent : 100;
    uint64_t cap = l->burst / 100 * percent + l->burst % 100 * percent / 100;
    return cap < 2 ? 0 : cap < 0xffffff ? cap : 0xffffff;
}

/* The size of the next lease: twice the last if the store was asked within 1/16 of a lease's life,
 * half of it for each quarter of idleness. */
static uint32_t ratelimit_priv_lease_size(const ratelimit_tier *tier,
                                          const ratelimit_priv_lease *lease, uint64_t cap)
{
    uint64_t life = ratelimit_priv_lease_ns(tier), idle = lease->age / (life / 4 + 1);
    if (lease->age <= life / 16)
        return lease->size + (lease->size < 24 && UINT64_C(1) << lease->size < cap);
    return idle < lease->size ? lease->size - (uint32_t)idle : 0;
}

/* The tokens in a lease that count towards a take: in a window, only before its end. */
static uint64_t ratelimit_priv_lease_held(const ratelimit_tier *tier,
                                          const ratelimit_priv_keyed *at,
                                          const ratelimit_priv_lease *lease,
                                          const ratelimit_limit *l, uint64_t now)
{
    uint64_t left = ratelimit_priv_lease_left(tier, lease, l);
    ratelimit_priv_kept known;
    ratelimit_priv_step s;
    if (left && ratelimit_priv_kind(l) == RATELIMIT_PRIV_WINDOW &&
        !(ratelimit_priv_kept_read(tier->table, &at->known, &known) &&
          ratelimit_priv_known_debt(&known.b, l, now, &s)))
        left = 0;
    return left;
}

/* Takes the lease for us alone until the store has answered. */
static bool ratelimit_priv_lease_mark(const ratelimit_tier *tier, ratelimit_priv_errand *errand,
                                      const ratelimit_priv_kept *e, ratelimit_priv_lease lease,
                                      const ratelimit_limit *l, uint64_t now)
{
    ratelimit_bucket b;
    lease.age = 0;
    lease.left = 0;
    lease.asking = true;
    lease.id = ratelimit_priv_limit_id(l);
    lease.turn = (lease.turn + 1) & 63;
    b = ratelimit_priv_lease_save(tier, &lease, now);
    errand->marked = ratelimit_priv_kept_swap(tier->table, &errand->at.lease, e, &b);
    if (errand->marked)
        errand->turn = lease.turn;
    return errand->marked;
}

/* Begins an errand: forgets what the request will end (a refund what it may refuse, a block the
 * lease, a reset both), and reads how the lease stands. */
static bool ratelimit_priv_errand_start(const ratelimit_tier *tier, ratelimit_priv_errand *errand,
                                        const ratelimit_request *q, ratelimit_result *out,
                                        uint64_t now, ratelimit_priv_kept *e,
                                        ratelimit_priv_lease *lease)
{
    errand->req = q;
    errand->res = out;
    errand->held = 0;
    errand->size = 0;
    errand->turn = 64; /* none */
    errand->marked = errand->netted = false;
    if (q->op == RATELIMIT_REFUND || q->op == RATELIMIT_RESET)
        ratelimit_priv_forget(tier, &errand->at, q->op, false, now);
    if (q->op == RATELIMIT_BLOCK || q->op == RATELIMIT_RESET)
        ratelimit_priv_forget(tier, &errand->at, q->op, true, now);
    if (!ratelimit_priv_kept_read(tier->table, &errand->at.lease, e))
        return false;
    *lease = ratelimit_priv_lease_read(tier, &e->b, now);
    errand->turn = lease->turn;
    errand->size = lease->size;
    return true;
}

/* What to ask the store for: the request itself, or what the lease has not, or a new lease. */
static void ratelimit_priv_send(const ratelimit_tier *tier, ratelimit_priv_errand *errand,
                                const ratelimit_request *q, ratelimit_result *out, uint64_t now,
                                ratelimit_request *ask)
{
    ratelimit_limit made;
    const ratelimit_limit *l = ratelimit_priv_ready(q->limit, &made);
    uint64_t cap = ratelimit_priv_lease_cap(tier, l), held, want;
    uint32_t gate;
    ratelimit_priv_kept e;
    ratelimit_priv_lease lease;
    *ask = *q;
    if (!ratelimit_priv_errand_start(tier, errand, q, out, now, &e, &lease) || !cap ||
        q->op > RATELIMIT_PEEK || (q->n > l->burst && q->op != RATELIMIT_TAKE_UP_TO))
        return;
    held = ratelimit_priv_lease_held(tier, &errand->at, &lease, l, now);
    if (q->op == RATELIMIT_PEEK) {
        ask->n = ratelimit_priv_missing(q, l, held);
        errand->held = held;
        errand->netted = true;
        return;
    }
    errand->size = ratelimit_priv_lease_size(tier, &lease, cap);
    want = UINT64_C(1) << errand->size;
    want = q->op == RATELIMIT_TAKE_UP_TO ? q->n : want < cap ? want : cap;
    want = want > q->n ? want : q->n;
    want = want > held ? want : held + 1; /* all is here, but nothing known any more */
    if ((lease.asking && lease.age <= ratelimit_priv_keep(tier)) ||
        ratelimit_priv_gate_closed(tier, now, &gate) || /* it won't be asked: keep what there is */
        (!held && (q->op == RATELIMIT_TAKE_UP_TO || want <= q->n)) ||
        !ratelimit_priv_lease_mark(tier, errand, &e, lease, l, now))
        return;
    errand->held = held;
    errand->netted = true;
    if (want > q->n)
        ask->op = RATELIMIT_TAKE_UP_TO;
    ask->n = want - held;
}

/* Did the window end between two known entries? Their ends are off by the store's delay. */
static bool ratelimit_priv_turned(const ratelimit_limit *l, const ratelimit_bucket *before,
                                  const ratelimit_bucket *after)
{
    uint64_t moved = after->full_ns - before->full_ns;
    if (ratelimit_priv_kind(l) != RATELIMIT_PRIV_WINDOW)
        return false;
    moved = moved > RATELIMIT_PRIV_LONG ? 0 - moved : moved;
    return !before->rest || !after->rest || moved > l->per_ns / 2;
}

/* Keeps what the store said to a request sent at now (*b), and left tokens, fresh of them new. An
 * answer that was overtaken by a later one says nothing any more; one that came later by a clock
 * which was set back since does not count. */
static void ratelimit_priv_note_answer(const ratelimit_tier *tier,
                                       const ratelimit_priv_errand *errand,
                                       const ratelimit_limit *l, const ratelimit_bucket *b,
                                       uint64_t left, uint64_t fresh, uint64_t now)
{
    ratelimit_table *t = tier->table;
    ratelimit_priv_slot_ref ref;
    ratelimit_bucket known = {0, 0}, old = {0, 0};
    ratelimit_priv_lease lease;
    uint64_t at, keep = ratelimit_priv_keep(tier), today = ratelimit_priv_tier_now(tier);
    uint32_t word[RATELIMIT_PRIV_BLOCK];
    bool overtaken;
    ratelimit_priv_lock_block(errand->at.lease.block, t->lines, word);
    if (ratelimit_priv_find(t, &errand->at.known, &ref))
        known = ref.old;
    if (ratelimit_priv_find(t, &errand->at.lease, &ref))
        old = ref.old;
    lease = ratelimit_priv_lease_read(tier, &old, now);
    at = old.full_ns - keep;
    overtaken = at - now - 1 < keep && today - at <= RATELIMIT_PRIV_LONG && !errand->marked;
    if (!old.rest || (!overtaken && (errand->turn == lease.turn || errand->turn > 63))) {
        bool others = lease.asking && lease.age <= keep && !errand->marked;
        if (!errand->marked)
            left = ratelimit_priv_lease_left(tier, &lease, l);
        if (ratelimit_priv_turned(l, &known, b) && left > fresh)
            left = fresh;
        if (ratelimit_priv_debt(b, now) > l->window_ns + 1) /* blocked, or charged into debt */
            left = 0;
        lease.age = 0;
        lease.left = (uint32_t)left;
        lease.size = errand->size;
        lease.id = ratelimit_priv_limit_id(l);
        lease.asking = false;
        old = ratelimit_priv_lease_save(tier, &lease, now);
        if (!others)
            ratelimit_priv_kept_put(t, &errand->at.lease, &old, now);
        ratelimit_priv_kept_put(t, &errand->at.known, b, now);
    }
    ratelimit_priv_unlock_block(t, errand->at.lease.block, word);
}

/* errand[0] has done what ends others: they may have asked meanwhile. What comes after it in the
 * batch came after it at the store, too. */
static void ratelimit_priv_ended(const ratelimit_tier *tier, ratelimit_priv_errand *errand,
                                 size_t count, uint64_t now)
{
    ratelimit_priv_kept e;
    size_t i;
    uint32_t turn;
    ratelimit_priv_tier_end(tier, &errand->at, errand->req->op, now);
    if (!ratelimit_priv_kept_read(tier->table, &errand->at.lease, &e))
        return;
    turn = ratelimit_priv_lease_read(tier, &e.b, now).turn;
    for (i = 0; i < count; i++)
        if (errand[i].at.lease.block == errand->at.lease.block &&
            errand[i].at.lease.tag == errand->at.lease.tag && errand[i].turn == ((turn - 1) & 63))
            errand[i].turn = turn;
}

/* What the store answered to n tokens (as they were sent) is kept, if it tells anything. */
static void ratelimit_priv_learn(const ratelimit_tier *tier, const ratelimit_priv_errand *errand,
                                 const ratelimit_limit *l, const ratelimit_result *r, uint64_t n,
                                 uint64_t left, uint64_t now)
{
    bool refused = r->status == RATELIMIT_DENIED || r->status == RATELIMIT_TIMEOUT;
    ratelimit_bucket b = {0, 0};
    if (r->status == RATELIMIT_OK || r->status == RATELIMIT_NEVER || refused)
        b = ratelimit_priv_known_save(l, r, refused ? n : 0, now);
    else if (!errand->marked)
        return;
    ratelimit_priv_note_answer(tier, errand, l, &b, left,
                               errand->marked && r->allowed ? r->taken : 0, now);
}

/* The store failed: whether it charged is not known, so a lease that was asked for is gone. */
static void ratelimit_priv_lease_lose(const ratelimit_tier *tier,
                                      const ratelimit_priv_errand *errand, uint64_t now)
{
    ratelimit_priv_kept e;
    ratelimit_bucket none = {0, 0};
    uint32_t tries = 100;
    while (errand->marked && tries-- &&
           ratelimit_priv_kept_read(tier->table, &errand->at.lease, &e)) {
        ratelimit_priv_lease lease = ratelimit_priv_lease_read(tier, &e.b, now);
        if (!lease.asking || lease.turn != errand->turn ||
            ratelimit_priv_kept_swap(tier->table, &errand->at.lease, &e, &none))
            return;
    }
}

/* The answer to a take with what the lease held, r being the store's. Returns what is left over. */
static uint64_t ratelimit_priv_net(const ratelimit_priv_errand *errand, const ratelimit_limit *l,
                                   const ratelimit_request *ask, const ratelimit_result *r,
                                   uint64_t now)
{
    const ratelimit_request *q = errand->req;
    ratelimit_result *out = errand->res;
    uint64_t total = errand->held + (r->allowed ? r->taken : 0), left = total;
    out->taken = 0;
    out->allowed = total >= (q->op == RATELIMIT_TAKE ? q->n : 1);
    if (out->allowed) {
        out->status = RATELIMIT_OK;
        out->retry_after_ns = 0;
        out->taken = total < q->n ? total : q->n;
        left = total - out->taken;
    } else if (ask->op != q->op) { /* a lease was asked for; what came, if any, is not enough */
        ratelimit_bucket b = ratelimit_priv_known_save(l, r, !r->allowed, now);
        ratelimit_priv_step s;
        out->status = r->allowed ? RATELIMIT_DENIED : r->status;
        if (ratelimit_priv_known_debt(&b, l, now, &s)) {
            ratelimit_priv_known_weigh(&s, q->n - total);
            out->retry_after_ns = ratelimit_priv_until(&s, s.cost);
        }
    }
    ratelimit_priv_add_left(out, left);
    return left;
}

/* A peek at no more than the lease holds. */
static void ratelimit_priv_peeked(const ratelimit_priv_errand *errand)
{
    errand->res->allowed = true;
    errand->res->status = RATELIMIT_OK;
    errand->res->retry_after_ns = 0;
}

/* The store's answer to what was asked becomes the caller's. */
static void ratelimit_priv_settle(const ratelimit_tier *tier, const ratelimit_priv_errand *errand,
                                  const ratelimit_request *ask, const ratelimit_result *r,
                                  uint64_t now)
{
    ratelimit_limit made;
    const ratelimit_limit *l = ratelimit_priv_ready(errand->req->limit, &made);
    uint64_t left = 0;
    *errand->res = *r;
    if (r->status == RATELIMIT_STORE_FAILED) {
        ratelimit_priv_lease_lose(tier, errand, now);
        return;
    }
    if (errand->marked)
        left = ratelimit_priv_net(errand, l, ask, r, now);
    else if (errand->netted && errand->held >= ratelimit_priv_tokens(errand->req))
        ratelimit_priv_peeked(errand);
    if (!errand->marked && errand->netted)
        ratelimit_priv_add_left(errand->res, errand->held);
    ratelimit_priv_learn(tier, errand, l, r, ratelimit_priv_tokens(ask), left, now);
}

/* ---- asking, and deciding while the store fails */

/* What came of asking. Only the first to fail counts: the others knew no better. */
static void ratelimit_priv_gate_set(ratelimit_tier *tier, bool failed, uint32_t seen, uint64_t now)
{
    uint32_t failures = ratelimit_priv_load32(&tier->failed_in_a_row) + 1, next;
    if (!failed) {
        if (failures > 1)
            ratelimit_priv_store32(&tier->failed_in_a_row, 0);
        if (ratelimit_priv_load32(&tier->gate))
            ratelimit_priv_store32(&tier->gate, 0);
        return;
    }
    ratelimit_priv_add64(&tier->counts.failures, 1);
    failures = failures < 64 ? failures : 64;
    next = ratelimit_priv_gate_at(now, ratelimit_priv_cool_down(tier, failures, now));
    if (!ratelimit_priv_gate_swap(&tier->gate, seen, next))
        return;
    ratelimit_priv_store32(&tier->failed_in_a_row, failures);
    if (seen == 0)
        ratelimit_priv_add64(&tier->counts.outages, 1);
}

/* The store was asked at now and has answered. */
static void ratelimit_priv_tier_asked(ratelimit_tier *tier, size_t count, size_t failed,
                                      uint32_t seen, uint64_t now)
{
    ratelimit_priv_add64(&tier->counts.stored, count - failed);
    if (failed == count)
        now = ratelimit_priv_tier_now(tier); /* it may have taken long */
    ratelimit_priv_gate_set(tier, failed == count, seen, now);
}

static void ratelimit_priv_ask(const ratelimit_store *store, const ratelimit_request *req,
                               ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    if (store->decide_at)
        store->decide_at(store->self, req, res, count, mode, store->clock, store->clock_self);
    else
        store->decide(store->self, req, res, count, mode);
}

static void ratelimit_priv_tier_ask(ratelimit_tier *tier, const ratelimit_request *req,
                                    ratelimit_result *res, size_t count, ratelimit_mode mode,
                                    uint64_t now)
{
    size_t i, failed = 0;
    uint32_t seen;
    if (!ratelimit_priv_gate_pass(tier, now, &seen)) {
        ratelimit_priv_fail(res, count, RATELIMIT_STORE_FAILED);
        return;
    }
    ratelimit_priv_add64(&tier->counts.calls, 1);
    ratelimit_priv_ask(&tier->store, req, res, count, mode);
    for (i = 0; i < count; i++)
        failed += res[i].status == RATELIMIT_STORE_FAILED;
    ratelimit_priv_tier_asked(tier, count, failed, seen, now);
}

/* 1/nodes of a limit. Its interval is nodes times as long and its burst as much smaller, so its
 * window, and with it a debt, is as long as before. */
static ratelimit_limit ratelimit_priv_share(const ratelimit_limit *l, uint64_t nodes)
{
    uint64_t burst = l->burst / nodes ? l->burst / nodes : 1, per = l->per_ns, tokens = l->tokens;
    if (ratelimit_priv_kind(l) == RATELIMIT_PRIV_WINDOW)
        return ratelimit_window_make(burst, per);
    if (per <= RATELIMIT_PRIV_MAX / nodes)
        per *= nodes;
    else
        tokens = tokens / nodes ? tokens / nodes : 1;
    return ratelimit_limit_make(tokens, per, burst);
}

/* The local bucket owes at least what the key is known to owe. */
static void ratelimit_priv_warm(const ratelimit_tier *tier, const ratelimit_request *q,
                                const ratelimit_limit *l, const ratelimit_limit *share,
                                uint64_t now)
{
    ratelimit_table *t = tier->table;
    ratelimit_priv_place at = ratelimit_priv_locate(t, q->key, q->key_len, 0);
    ratelimit_priv_keyed keyed = ratelimit_priv_keyed_at(t, q);
    ratelimit_priv_kept known;
    ratelimit_priv_slot_ref ref;
    ratelimit_priv_step s;
    ratelimit_bucket b;
    uint32_t word[RATELIMIT_PRIV_BLOCK];
    bool is_window = ratelimit_priv_kind(l) == RATELIMIT_PRIV_WINDOW;
    if (!ratelimit_priv_kept_read(t, &keyed.known, &known) ||
        (is_window && !ratelimit_priv_known_debt(&known.b, l, now, &s)))
        return;
    if (!is_window) /* the limit may have changed since */
        ratelimit_priv_look(&s, &known.b, l, 1, now, RATELIMIT_FOREVER);
    s.l = share;
    s.debt.part = 0;
    s.to_end = is_window ? l->per_ns - now % l->per_ns : 0;
    ratelimit_priv_save(&s, &b, now);
    ratelimit_priv_lock_block(at.block, t->lines, word);
    if (!ratelimit_priv_find(t, &at, &ref) ||
        ratelimit_priv_debt(&ref.old, now) < ratelimit_priv_debt(&b, now))
        ratelimit_priv_kept_put(t, &at, &b, now);
    ratelimit_priv_unlock_block(t, at.block, word);
}

/* Decides here what the store could not, if the tier is to. share and local have room for count. */
static void ratelimit_priv_fall_back(ratelimit_tier *tier, const ratelimit_request *req,
                                     ratelimit_result *res, size_t count, ratelimit_mode mode,
                                     uint64_t now, ratelimit_limit *share, ratelimit_request *local)
{
    ratelimit_limit made;
    size_t i;
    ratelimit_priv_add64(tier->nodes ? &tier->counts.fallback : &tier->counts.failed, count);
    if (!tier->nodes)
        return;
    for (i = 0; i < count; i++) {
        const ratelimit_limit *l = ratelimit_priv_ready(req[i].limit, &made);
        local[i] = req[i];
        if (!l || ratelimit_priv_kind(l) == RATELIMIT_PRIV_UNLIMITED || !req[i].key ||
            !req[i].key_len)
            continue;
        share[i] = ratelimit_priv_share(l, tier->nodes);
        local[i].limit = &share[i];
        ratelimit_priv_warm(tier, &req[i], l, &share[i], now);
    }
    ratelimit_table_decide(tier->table, local, res, count, mode, now);
    for (i = 0; i < count; i++) {
        res[i].status = RATELIMIT_STORE_FAILED;
        res[i].source = RATELIMIT_FROM_FALLBACK;
    }
}

/* The store's answer to what was asked for errand, the first of more, or its failure, becomes the
 * caller's. */
static void ratelimit_priv_errand_end(ratelimit_tier *tier, ratelimit_priv_errand *errand,
                                      size_t more, const ratelimit_request *ask,
                                      const ratelimit_result *got, uint64_t now)
{
    ratelimit_limit share;
    ratelimit_request local;
    if (ask->op >= RATELIMIT_REFUND && got->allowed)
        ratelimit_priv_ended(tier, errand, more, now);
    ratelimit_priv_settle(tier, errand, ask, got, now);
    if (got->status == RATELIMIT_STORE_FAILED)
        ratelimit_priv_fall_back(tier, errand->req, errand->res, 1, RATELIMIT_EACH, now, &share,
                                 &local);
}

/* ---- batches */

/* True if *out is settled: a bad request, an unlimited one, or one answered here. Else *at is where
 * its entries are; its block is NULL if there are none. */
static bool ratelimit_priv_tier_try(ratelimit_tier *tier, const ratelimit_request *q, uint64_t now,
                                    bool leases, ratelimit_priv_keyed *at, ratelimit_result *out)
{
    ratelimit_limit made;
    const ratelimit_limit *l = q->limit;
    at->lease.block = NULL;
    if (!q->key || !q->key_len) {
        ratelimit_priv_answer(out, RATELIMIT_BAD_KEY);
        return true;
    }
    if (q->op != RATELIMIT_TAKE || !q->n || !l || !l->parts ||
        ratelimit_priv_kind(l) != RATELIMIT_PRIV_BUCKET) { /* else there is nothing to check */
        l = ratelimit_priv_ready(l, &made);
        if (ratelimit_priv_settled(q, l, out))
            return true;
    }
    *at = ratelimit_priv_keyed_at(tier->table, q);
    if (!ratelimit_priv_local(tier, at, l, q, now, leases, out))
        return false;
    if (out->source != RATELIMIT_FROM_LEASE)
        ratelimit_priv_add64(&tier->counts.refused, 1);
    return true;
}

/* At most a batch. Apart, so that answers from here need little stack. */
static RATELIMIT_PRIV_APART void ratelimit_priv_tier_batch(ratelimit_tier *tier,
                                                           const ratelimit_request *req,
                                                           ratelimit_result *res, size_t count,
                                                           uint64_t now)
{
    ratelimit_priv_errand errand[RATELIMIT_PRIV_TIER_BATCH];
    ratelimit_request ask[RATELIMIT_PRIV_TIER_BATCH];
    ratelimit_result got[RATELIMIT_PRIV_TIER_BATCH];
    size_t i, n = 0;
    for (i = 0; i < count; i++)
        if (!ratelimit_priv_tier_try(tier, &req[i], now, true, &errand[n].at, &res[i])) {
            ratelimit_priv_send(tier, &errand[n], &req[i], &res[i], now, &ask[n]);
            n++;
        }
    if (n)
        ratelimit_priv_tier_ask(tier, ask, got, n, RATELIMIT_EACH, now);
    for (i = 0; i < n; i++)
        ratelimit_priv_errand_end(tier, &errand[i], n - i, &ask[i], &got[i], now);
}

/* Does a refund or a reset of the key of number i come earlier in the batch? */
static bool ratelimit_priv_given(const ratelimit_priv_errand *errand, const ratelimit_request *req,
                                 size_t i)
{
    size_t j;
    for (j = 0; j < i; j++)
        if ((req[j].op == RATELIMIT_REFUND || req[j].op == RATELIMIT_RESET) &&
            errand[i].at.lease.block && errand[j].at.lease.block == errand[i].at.lease.block &&
            errand[j].at.lease.tag == errand[i].at.lease.tag)
            return true;
    return false;
}

/* All or none: true if a request is known to be refused, so that all are. */
static bool ratelimit_priv_tier_none(ratelimit_tier *tier, const ratelimit_request *req,
                                     ratelimit_result *res, size_t count, uint64_t now,
                                     ratelimit_priv_errand *errand)
{
    uint64_t longest = 0;
    size_t i;
    bool refused = false, sound = true;
    for (i = 0; i < count; i++) {
        if (!ratelimit_priv_tier_try(tier, &req[i], now, false, &errand[i].at, &res[i])) {
            ratelimit_priv_answer(&res[i], RATELIMIT_OK);
            res[i].limit = req[i].limit->burst;
        }
        sound = sound && (res[i].allowed || res[i].source == RATELIMIT_FROM_REFUSAL_CACHE);
        sound = sound && (res[i].allowed || !ratelimit_priv_given(errand, req, i));
        refused = refused || !res[i].allowed;
        longest = res[i].retry_after_ns > longest ? res[i].retry_after_ns : longest;
    }
    for (i = 0; refused && i < count; i++) {
        if (res[i].allowed)
            res[i].retry_after_ns = longest;
        res[i].allowed = false;
        res[i].taken = 0;
        res[i].source = RATELIMIT_FROM_REFUSAL_CACHE;
    }
    return refused && sound;
}

/* Does the key of number i come earlier in the batch? */
static bool ratelimit_priv_repeated(const ratelimit_priv_errand *errand, size_t i)
{
    size_t j;
    for (j = 0; j < i; j++)
        if (errand[j].at.lease.block == errand[i].at.lease.block &&
            errand[j].at.lease.tag == errand[i].at.lease.tag)
            return true;
    return false;
}

/* The store's answer to all or none. Of a batch that was refused only the refusals tell how things
 * stand, and of them not those that count what came before them in the batch. */
static void ratelimit_priv_tier_learn_all(const ratelimit_tier *tier, const ratelimit_request *req,
                                          const ratelimit_result *res, size_t count, uint64_t now,
                                          ratelimit_priv_errand *errand)
{
    bool done = true;
    size_t i;
    for (i = 0; i < count; i++)
        done = done && res[i].allowed;
    for (i = 0; i < count; i++) {
        ratelimit_limit made;
        const ratelimit_limit *l = ratelimit_priv_ready(req[i].limit, &made);
        if (errand[i].at.lease.block && done && req[i].op >= RATELIMIT_REFUND)
            ratelimit_priv_ended(tier, &errand[i], count - i, now);
        if (errand[i].at.lease.block &&
            (done || (res[i].status != RATELIMIT_OK && !ratelimit_priv_repeated(errand, i))))
            ratelimit_priv_learn(tier, &errand[i], l, &res[i], ratelimit_priv_tokens(&req[i]), 0,
                                 now);
    }
}

/* All or none: true if it is settled here, else the store is to be asked. */
static bool ratelimit_priv_tier_all_begin(ratelimit_tier *tier, const ratelimit_request *req,
                                          ratelimit_result *res, size_t count, uint64_t now,
                                          ratelimit_priv_errand *errand)
{
    ratelimit_priv_kept e;
    ratelimit_priv_lease lease;
    size_t i;
    if (ratelimit_priv_tier_none(tier, req, res, count, now, errand))
        return true;
    for (i = 0; i < count; i++)
        if (errand[i].at.lease.block)
            (void)ratelimit_priv_errand_start(tier, &errand[i], &req[i], &res[i], now, &e, &lease);
    return false;
}

static void ratelimit_priv_tier_all_end(ratelimit_tier *tier, const ratelimit_request *req,
                                        ratelimit_result *res, size_t count, uint64_t now,
                                        ratelimit_priv_errand *errand)
{
    ratelimit_request local[RATELIMIT_MAX_ALL];
    ratelimit_limit share[RATELIMIT_MAX_ALL];
    size_t i;
    bool failed = false;
    for (i = 0; i < count; i++)
        failed = failed || res[i].status == RATELIMIT_STORE_FAILED;
    if (failed)
        ratelimit_priv_fall_back(tier, req, res, count, RATELIMIT_ALL, now, share, local);
    else
        ratelimit_priv_tier_learn_all(tier, req, res, count, now, errand);
}

static RATELIMIT_PRIV_APART void ratelimit_priv_tier_all(ratelimit_tier *tier,
                                                         const ratelimit_request *req,
                                                         ratelimit_result *res, size_t count,
                                                         uint64_t now)
{
    ratelimit_priv_errand errand[RATELIMIT_MAX_ALL];
    if (count > RATELIMIT_MAX_ALL) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
        return;
    }
    if (ratelimit_priv_tier_all_begin(tier, req, res, count, now, errand))
        return;
    ratelimit_priv_tier_ask(tier, req, res, count, RATELIMIT_ALL, now);
    ratelimit_priv_tier_all_end(tier, req, res, count, now, errand);
}

static void ratelimit_priv_tier_decide(void *self, const ratelimit_request *req,
                                       ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    ratelimit_tier *tier = (ratelimit_tier *)self;
    size_t n;
    if (!res || !count)
        return;
    if (!tier || !tier->table || !tier->store.decide || !req ||
        (mode != RATELIMIT_EACH && mode != RATELIMIT_ALL)) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
    } else if (!ratelimit_priv_tier_clock(tier)) {
        ratelimit_priv_fail(res, count, RATELIMIT_STORE_FAILED);
    } else if (mode == RATELIMIT_ALL) {
        ratelimit_priv_tier_all(tier, req, res, count, ratelimit_priv_tier_now(tier));
    } else if (count == 1) {
        uint64_t now = ratelimit_priv_tier_now(tier);
        ratelimit_priv_keyed at;
        if (!ratelimit_priv_tier_try(tier, req, now, true, &at, res))
            ratelimit_priv_tier_batch(tier, req, res, 1, now);
    } else {
        for (; count; count -= n, req += n, res += n) {
            n = count < RATELIMIT_PRIV_TIER_BATCH ? count : (size_t)RATELIMIT_PRIV_TIER_BATCH;
            ratelimit_priv_tier_batch(tier, req, res, n, ratelimit_priv_tier_now(tier));
        }
    }
}

static void ratelimit_priv_tier_close(void *self)
{
    ratelimit_tier *tier = (ratelimit_tier *)self;
    if (tier->store.close)
        tier->store.close(tier->store.self);
}

RATELIMIT_API ratelimit_store ratelimit_tier_store(ratelimit_tier *tier)
{
    ratelimit_store store;
    memset(&store, 0, sizeof store);
    store.self = tier;
    store.decide = ratelimit_priv_tier_decide;
    if (tier) {
        store.close = ratelimit_priv_tier_close;
        store.clock = ratelimit_priv_tier_clock(tier);
        store.clock_self = tier->clock_self;
    }
    return store;
}

RATELIMIT_API void ratelimit_tier_stats(const ratelimit_tier *tier, ratelimit_tier_counts *out)
{
    if (!out)
        return;
    memset(out, 0, sizeof *out);
    if (!tier)
        return;
    out->stored = ratelimit_priv_load64(&tier->counts.stored);
    out->leased = ratelimit_priv_load64(&tier->counts.leased);
    out->refused = ratelimit_priv_load64(&tier->counts.refused);
    out->fallback = ratelimit_priv_load64(&tier->counts.fallback);
    out->failed = ratelimit_priv_load64(&tier->counts.failed);
    out->calls = ratelimit_priv_load64(&tier->counts.calls);
    out->failures = ratelimit_priv_load64(&tier->counts.failures);
    out->outages = ratelimit_priv_load64(&tier->counts.outages);
}

/* ---- >>implementation: limiter --------------------------------------------------------------- */

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
        if (res[i].source != RATELIMIT_FROM_STORE) /* a tier has decided */
            continue;
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
                                  ratelimit_result *r, bool shadow)
{
    bool bad = ratelimit_priv_is_bad(r->status);
    if (shadow && !r->allowed && !bad && q->op <= RATELIMIT_RESERVE &&
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
    uint64_t start, slept, elapsed;
} ratelimit_priv_waiting;

static uint64_t ratelimit_priv_elapsed(ratelimit_priv_waiting *w)
{
    uint64_t now;
    if (!w->clock)
        return w->slept;
    now = w->clock(w->clock_self);
    if (now - w->start < w->elapsed || now - w->start > RATELIMIT_PRIV_LONG)
        w->start = now - w->elapsed; /* the clock was set back: go on from there */
    w->elapsed = now - w->start;
    return w->elapsed;
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
    if (out->source == RATELIMIT_FROM_FALLBACK && w->l->on_failure == RATELIMIT_FAIL_LOCAL)
        ratelimit_priv_ask(&w->l->fallback, &back, &spare, 1, RATELIMIT_EACH);
    else if (out->source < RATELIMIT_FROM_FALLBACK) /* a tier's local bucket keeps it */
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
    return ratelimit_priv_finish(l, req, out, l->shadow);
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

/* ---- >>implementation: rules --------------------------------------------------------------------

   Head, then a tally per rule, then everything else twice: the rules and the keys with limits of
   their own, each as entries in no order and an array that puts them in the order of their names.
   Threads read one side while a change is made to the other ("left-right", Ramalhete and Correia):

       reader   notes the turn, counts itself in there, reads which side is up, looks, counts itself
                out: no loop, and so never a wait
       writer   changes the side that is down, puts it up, waits until nobody who might have come
                before is left: first those of the turn that is about to be used, then, having
                turned, those of the other. Then it copies the side that is up to the other.

   What a reader wants it copies: it is out again before the decision starts. A rule's tally is
   found by number; its generation tells whether it is still that rule's. */

typedef struct ratelimit_priv_entry {
    ratelimit_limit limit;
    uint32_t tally, generation;
    uint8_t len, shadow;
    unsigned char name[134]; /* a rule's, or the name of a bucket */
} ratelimit_priv_entry;

typedef struct ratelimit_priv_tally {
    uint64_t allowed, refused, shadow_refused, failed;
    uint32_t generation, used;
} ratelimit_priv_tally;

struct ratelimit_rules {
    uint32_t side, turn; /* their lowest bits count */
    uint32_t readers[2]; /* by turn */
    uint32_t writer;     /* a lock */
    uint32_t most[2];    /* rules, own keys */
    uint32_t generation;
    uint32_t count[2][2]; /* by side; rules, own keys */
};

typedef char ratelimit_priv_check_rules
    [sizeof(struct ratelimit_rules) == RATELIMIT_PRIV_RULES_BYTES &&
             sizeof(ratelimit_priv_entry) + sizeof(uint32_t) == RATELIMIT_PRIV_ENTRY_BYTES &&
             sizeof(ratelimit_priv_tally) == RATELIMIT_PRIV_TALLY_BYTES &&
             sizeof(((ratelimit_priv_entry *)0)->name) >=
                 RATELIMIT_RULE_NAME_BYTES - 1 + 1 + RATELIMIT_OWN_KEY_BYTES + 1
         ? 1
         : -1];

/* For the turns of readers and writers only one order of all these will do. */
static inline uint32_t ratelimit_priv_read32(uint32_t *p)
{
#  if RATELIMIT_PRIV_ATOMIC && defined(__GNUC__)
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);
#  elif RATELIMIT_PRIV_ATOMIC
    return (uint32_t)_InterlockedExchangeAdd((volatile long *)p, 0);
#  else
    return *p;
#  endif
}

static inline void ratelimit_priv_add32(uint32_t *p, uint32_t value)
{
#  if RATELIMIT_PRIV_ATOMIC && defined(__GNUC__)
    (void)__atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);
#  elif RATELIMIT_PRIV_ATOMIC
    (void)_InterlockedExchangeAdd((volatile long *)p, (long)value);
#  else
    *p += value;
#  endif
}

static uint32_t ratelimit_priv_drain32(uint32_t *p)
{
    uint32_t value = ratelimit_priv_load32(p);
#  if RATELIMIT_PRIV_ATOMIC
    while (!ratelimit_priv_swap32(p, value, 0))
        value = ratelimit_priv_load32(p);
#  else
    *p = 0;
#  endif
    return value;
}

/* A lock for what is short and seldom; nobody who holds it sleeps. */
static uint32_t ratelimit_priv_hold(uint32_t *lock)
{
    uint32_t word = 0;
#  if RATELIMIT_PRIV_ATOMIC
    uint32_t turns = 1000; /* sleep at once: try_lock has spun */
    while (!ratelimit_priv_try_lock(lock, &word))
        (void)ratelimit_priv_wait_turn(&turns);
#  elif defined(RATELIMIT_LOCK)
    RATELIMIT_LOCK(lock);
#  endif
    (void)lock;
    return word;
}

static void ratelimit_priv_let_go(uint32_t *lock, uint32_t word)
{
#  if RATELIMIT_PRIV_ATOMIC
    ratelimit_priv_unlock(lock, word);
#  elif defined(RATELIMIT_UNLOCK)
    RATELIMIT_UNLOCK(lock);
#  endif
    (void)lock;
    (void)word;
}

/* In and out of reading; with a lock of the caller's, that lock. */
static uint32_t ratelimit_priv_enter(ratelimit_rules *r, uint32_t *side)
{
    uint32_t turn = ratelimit_priv_read32(&r->turn) & 1;
#  if RATELIMIT_PRIV_ATOMIC
    ratelimit_priv_add32(&r->readers[turn], 1);
#  else
    (void)ratelimit_priv_hold(&r->writer);
#  endif
    *side = ratelimit_priv_read32(&r->side) & 1;
    return turn;
}

static void ratelimit_priv_leave(ratelimit_rules *r, uint32_t turn)
{
#  if RATELIMIT_PRIV_ATOMIC
    ratelimit_priv_add32(&r->readers[turn], UINT32_MAX);
#  else
    (void)turn;
    ratelimit_priv_let_go(&r->writer, 0);
#  endif
}

/* Puts the other side up and waits until nobody reads the one that was. */
static void ratelimit_priv_publish(ratelimit_rules *r)
{
#  if RATELIMIT_PRIV_ATOMIC
    uint32_t i, turns = 0;
    ratelimit_priv_add32(&r->side, 1);
    for (i = 0; i < 2; i++) {
        uint32_t next = (r->turn & 1) ^ 1;
        while (ratelimit_priv_read32(&r->readers[next]))
            (void)ratelimit_priv_wait_turn(&turns);
        if (i == 0)
            ratelimit_priv_add32(&r->turn, 1);
    }
#  else
    (void)ratelimit_priv_hold(&r->writer);
    r->side++;
    ratelimit_priv_let_go(&r->writer, 0);
#  endif
}

static uint32_t ratelimit_priv_begin(ratelimit_rules *r)
{
#  if RATELIMIT_PRIV_ATOMIC
    return ratelimit_priv_hold(&r->writer);
#  else
    (void)r; /* one writer at a time is asked for, and the lock is the readers' */
    return 0;
#  endif
}

static void ratelimit_priv_end(ratelimit_rules *r, uint32_t word)
{
#  if RATELIMIT_PRIV_ATOMIC
    ratelimit_priv_let_go(&r->writer, word);
#  endif
    (void)r;
    (void)word;
}

/* Names in order: the rules, or the own keys, of a side. */
typedef struct ratelimit_priv_names {
    ratelimit_priv_entry *entries;
    uint32_t *order, *count, most;
} ratelimit_priv_names;

static ratelimit_priv_tally *ratelimit_priv_tallies(ratelimit_rules *r)
{
    return (ratelimit_priv_tally *)(void *)(r + 1);
}

static ratelimit_priv_names ratelimit_priv_names_of(ratelimit_rules *r, uint32_t side, unsigned own)
{
    ratelimit_priv_entry *all =
        (ratelimit_priv_entry *)(void *)(ratelimit_priv_tallies(r) + r->most[0]);
    uint32_t *orders = (uint32_t *)(void *)(all + 2 * ((size_t)r->most[0] + r->most[1]));
    size_t skip = side * (size_t)r->most[own] + (own ? 2 * (size_t)r->most[0] : 0);
    ratelimit_priv_names n;
    n.entries = all + skip;
    n.order = orders + skip;
    n.count = &r->count[side][own];
    n.most = r->most[own];
    return n;
}

static int ratelimit_priv_compare(const unsigned char *a, size_t a_len, const unsigned char *b,
                                  size_t b_len)
{
    size_t i;
    for (i = 0; i < a_len && i < b_len; i++)
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    return a_len < b_len ? -1 : a_len > b_len;
}

/* The entry of that name, or NULL; *place is where it stands in order, or would stand. */
static ratelimit_priv_entry *ratelimit_priv_seek(const ratelimit_priv_names *n, const void *name,
                                                 size_t len, uint32_t *place)
{
    uint32_t low = 0, high = *n->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        ratelimit_priv_entry *e = &n->entries[n->order[middle]];
        int way = ratelimit_priv_compare((const unsigned char *)name, len, e->name, e->len);
        if (way == 0) {
            *place = middle;
            return e;
        }
        if (way < 0)
            high = middle;
        else
            low = middle + 1;
    }
    *place = low;
    return NULL;
}

static ratelimit_priv_entry *ratelimit_priv_insert(const ratelimit_priv_names *n, const void *name,
                                                   size_t len, uint32_t place)
{
    uint32_t at = (*n->count)++;
    ratelimit_priv_entry *e = &n->entries[at];
    memmove(n->order + place + 1, n->order + place, (at - place) * sizeof *n->order);
    n->order[place] = at;
    memset(e, 0, sizeof *e);
    memcpy(e->name, name, len);
    e->len = (uint8_t)len;
    return e;
}

/* The last entry moves into the gap. */
static void ratelimit_priv_remove(const ratelimit_priv_names *n, uint32_t place)
{
    uint32_t gap = n->order[place], last = --*n->count, i;
    memmove(n->order + place, n->order + place + 1, (last - place) * sizeof *n->order);
    n->entries[gap] = n->entries[last];
    for (i = 0; i < last; i++)
        if (n->order[i] == last)
            n->order[i] = gap;
}

/* The side that is up, onto the other. */
static void ratelimit_priv_mirror(ratelimit_rules *r)
{
    uint32_t side = r->side & 1;
    unsigned own;
    for (own = 0; own < 2; own++) {
        ratelimit_priv_names up = ratelimit_priv_names_of(r, side, own);
        ratelimit_priv_names down = ratelimit_priv_names_of(r, side ^ 1, own);
        *down.count = *up.count;
        memcpy(down.entries, up.entries, *up.count * sizeof *up.entries);
        memcpy(down.order, up.order, *up.count * sizeof *up.order);
    }
}

RATELIMIT_API ratelimit_status ratelimit_rules_init(ratelimit_rules **out, void *memory,
                                                    size_t bytes, size_t max_rules, size_t max_own)
{
    size_t skip = (size_t)(-(uintptr_t)memory & 7u);
    ratelimit_rules *r;
    uint64_t need;
    if (!out || !memory || !max_rules || max_rules > 1u << 24 || max_own > 1u << 24)
        return RATELIMIT_BAD_ARGUMENT;
    need = RATELIMIT_PRIV_RULES_BYTES + skip + (uint64_t)max_rules * RATELIMIT_PRIV_TALLY_BYTES +
           ((uint64_t)max_rules + max_own) * (2 * RATELIMIT_PRIV_ENTRY_BYTES);
    if (bytes < need)
        return RATELIMIT_NO_MEMORY;
    r = (ratelimit_rules *)(void *)((unsigned char *)memory + skip);
    memset(r, 0, sizeof *r);
    r->most[0] = (uint32_t)max_rules;
    r->most[1] = (uint32_t)max_own;
    memset(ratelimit_priv_tallies(r), 0, max_rules * sizeof(ratelimit_priv_tally));
    *out = r;
    return RATELIMIT_OK;
}

/* A text being loaded. */
typedef struct ratelimit_priv_loading {
    ratelimit_priv_names into;
    const char *line; /* its first byte */
    ratelimit_fault fault;
} ratelimit_priv_loading;

static bool ratelimit_priv_is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static const char *ratelimit_priv_skip_blanks(const char *at, const char *end)
{
    while (at != end && ratelimit_priv_is_blank(*at))
        at++;
    return at;
}

static const char *ratelimit_priv_trim(const char *begin, const char *end)
{
    while (end != begin && ratelimit_priv_is_blank(end[-1]))
        end--;
    return end;
}

#  if defined(RATELIMIT_NO_TEXT)
#    define RATELIMIT_PRIV_SAY(words) ""
#  else
#    define RATELIMIT_PRIV_SAY(words) words
#  endif

static ratelimit_status ratelimit_priv_wrong(ratelimit_priv_loading *g, const char *at,
                                             ratelimit_status status, const char *what)
{
    g->fault.column = (size_t)(at - g->line) + 1;
    g->fault.what = what;
    return status;
}

/* Past a name, or NULL and a fault. */
static const char *ratelimit_priv_read_name(ratelimit_priv_loading *g, const char *at,
                                            const char *end)
{
    const char *name = at;
    for (; at != end && !ratelimit_priv_is_blank(*at); at++) {
        if ((unsigned char)*at < ' ' || *at == 127) {
            ratelimit_priv_wrong(g, at, RATELIMIT_SYNTAX,
                                 RATELIMIT_PRIV_SAY("a control character in a name"));
            return NULL;
        }
        if (at - name == RATELIMIT_RULE_NAME_BYTES - 1) {
            ratelimit_priv_wrong(g, at, RATELIMIT_SYNTAX, RATELIMIT_PRIV_SAY("a name too long"));
            return NULL;
        }
    }
    return at;
}

/* Where what is to be read of a line ends: before its comment and the blanks before that. */
static const char *ratelimit_priv_uncomment(const char *at, const char *end)
{
    const char *to = at;
    while (to != end && !(*to == '#' && (to == at || ratelimit_priv_is_blank(to[-1]))))
        to++;
    return ratelimit_priv_trim(at, to);
}

/* The limit from at to end, and whether "shadow" stands behind it. */
static ratelimit_status ratelimit_priv_read_rule(ratelimit_priv_loading *g, const char *at,
                                                 const char *end, ratelimit_priv_entry *e)
{
    ratelimit_priv_text word;
    ratelimit_status status;
    size_t wrong;
    memset(&word, 0, sizeof word);
    word.at = end - at >= 6 ? end - 6 : end;
    word.end = end;
    if (ratelimit_priv_word(&word, "shadow") &&
        (end - at == 6 || ratelimit_priv_is_blank(end[-7]))) {
        e->shadow = 1;
        end = ratelimit_priv_trim(at, end - 6);
    }
    if (at == end)
        return ratelimit_priv_wrong(g, at, RATELIMIT_SYNTAX,
                                    RATELIMIT_PRIV_SAY("a name without a limit"));
    status = ratelimit_limit_parse_n(&e->limit, at, (size_t)(end - at), &wrong);
    if (status == RATELIMIT_OK)
        return status;
    return ratelimit_priv_wrong(g, at + wrong, status,
                                status == RATELIMIT_SYNTAX
                                    ? RATELIMIT_PRIV_SAY("not a limit")
                                    : RATELIMIT_PRIV_SAY("a number that does not fit"));
}

/* A byte order mark, as some editors begin files with. */
static bool ratelimit_priv_is_mark(const char *at, const char *end)
{
    return end - at >= 3 && (unsigned char)at[0] == 0xEF && (unsigned char)at[1] == 0xBB &&
           (unsigned char)at[2] == 0xBF;
}

static ratelimit_status ratelimit_priv_load_line(ratelimit_priv_loading *g, const char *end)
{
    const char *name = ratelimit_priv_skip_blanks(g->line, end), *at;
    uint32_t place;
    if (name == end || *name == '#')
        return RATELIMIT_OK;
    if (ratelimit_priv_is_mark(name, end))
        return ratelimit_priv_wrong(g, name, RATELIMIT_SYNTAX,
                                    RATELIMIT_PRIV_SAY("a byte order mark within the text"));
    at = ratelimit_priv_read_name(g, name, end);
    if (!at)
        return RATELIMIT_SYNTAX;
    if (ratelimit_priv_seek(&g->into, name, (size_t)(at - name), &place))
        return ratelimit_priv_wrong(g, name, RATELIMIT_SYNTAX,
                                    RATELIMIT_PRIV_SAY("a name that was there before"));
    if (*g->into.count == g->into.most)
        return ratelimit_priv_wrong(g, name, RATELIMIT_NO_MEMORY,
                                    RATELIMIT_PRIV_SAY("more rules than there is room for"));
    end = ratelimit_priv_uncomment(name, end);
    return ratelimit_priv_read_rule(
        g, at < end ? ratelimit_priv_skip_blanks(at, end) : end, end,
        ratelimit_priv_insert(&g->into, name, (size_t)(at - name), place));
}

static ratelimit_status ratelimit_priv_load_text(ratelimit_priv_loading *g, const char *text,
                                                 size_t text_len)
{
    const char *at = text, *stop = text + text_len;
    ratelimit_status status = RATELIMIT_OK;
    if (ratelimit_priv_is_mark(at, stop))
        at += 3;
    while (at != stop && status == RATELIMIT_OK) {
        const char *end = at;
        g->line = at;
        g->fault.line++;
        while (end != stop && *end != '\n')
            end++;
        at = end == stop ? end : end + 1;
        status = ratelimit_priv_load_line(g, end != g->line && end[-1] == '\r' ? end - 1 : end);
    }
    return status;
}

/* Gives each new rule its tally: the one it had, else one that is free, from 0. */
static void ratelimit_priv_deal_tallies(ratelimit_rules *r, const ratelimit_priv_names *into,
                                        const ratelimit_priv_names *from)
{
    ratelimit_priv_tally *tallies = ratelimit_priv_tallies(r);
    uint32_t i, place, unused = 0;
    for (i = 0; i < r->most[0]; i++)
        tallies[i].used = 0;
    for (i = 0; i < *into->count; i++) {
        ratelimit_priv_entry *e = &into->entries[i];
        const ratelimit_priv_entry *old = ratelimit_priv_seek(from, e->name, e->len, &place);
        if (!old)
            continue;
        e->tally = old->tally;
        e->generation = old->generation;
        tallies[e->tally].used = 1;
    }
    for (i = 0; i < *into->count; i++) {
        ratelimit_priv_entry *e = &into->entries[i];
        ratelimit_priv_tally *t;
        if (e->generation)
            continue;
        while (tallies[unused].used)
            unused++;
        t = &tallies[unused];
        t->used = 1;
        r->generation += r->generation == UINT32_MAX ? 2 : 1; /* never 0 */
        e->tally = unused;
        e->generation = r->generation;
        ratelimit_priv_store32(&t->generation, e->generation);
        ratelimit_priv_store64(&t->allowed, 0);
        ratelimit_priv_store64(&t->refused, 0);
        ratelimit_priv_store64(&t->shadow_refused, 0);
        ratelimit_priv_store64(&t->failed, 0);
    }
}

RATELIMIT_API ratelimit_status ratelimit_rules_load(ratelimit_rules *rules, const char *text,
                                                    size_t text_len, ratelimit_fault *fault_or_null)
{
    ratelimit_priv_loading g;
    ratelimit_status status = RATELIMIT_BAD_ARGUMENT;
    memset(&g, 0, sizeof g);
    g.fault.what = "";
    if (rules && text) {
        uint32_t word = ratelimit_priv_begin(rules), side = rules->side & 1;
        ratelimit_priv_names from = ratelimit_priv_names_of(rules, side, 0);
        g.into = ratelimit_priv_names_of(rules, side ^ 1, 0);
        *g.into.count = 0;
        status = ratelimit_priv_load_text(&g, text, text_len);
        if (status == RATELIMIT_OK) {
            ratelimit_priv_deal_tallies(rules, &g.into, &from);
            ratelimit_priv_publish(rules);
            g.fault.line = 0;
        }
        ratelimit_priv_mirror(rules);
        ratelimit_priv_end(rules, word);
    }
    if (fault_or_null)
        *fault_or_null = g.fault;
    return status;
}

/* On the side that is down. */
static ratelimit_status ratelimit_priv_set_own(const ratelimit_priv_names *into,
                                               const unsigned char *name, size_t len,
                                               const ratelimit_limit *limit)
{
    uint32_t place;
    ratelimit_priv_entry *e = ratelimit_priv_seek(into, name, len, &place);
    if (!limit) {
        if (e)
            ratelimit_priv_remove(into, place);
        return RATELIMIT_OK;
    }
    if (!e && *into->count == into->most)
        return RATELIMIT_NO_MEMORY;
    if (!e)
        e = ratelimit_priv_insert(into, name, len, place);
    e->limit = *limit;
    return RATELIMIT_OK;
}

RATELIMIT_API ratelimit_status ratelimit_rules_own(ratelimit_rules *rules, const char *rule,
                                                   const void *key, size_t key_len,
                                                   const ratelimit_limit *limit_or_null)
{
    unsigned char name[RATELIMIT_RULE_NAME_BYTES + 1 + RATELIMIT_OWN_KEY_BYTES];
    size_t rule_len = ratelimit_priv_len(rule), len;
    ratelimit_priv_names into;
    ratelimit_status status;
    uint32_t word;
    if (!rules || !rule_len || rule_len >= RATELIMIT_RULE_NAME_BYTES)
        return RATELIMIT_BAD_ARGUMENT;
    if (!key || !key_len || key_len > RATELIMIT_OWN_KEY_BYTES)
        return RATELIMIT_BAD_KEY;
    if (limit_or_null && ratelimit_limit_check(limit_or_null) != RATELIMIT_OK)
        return RATELIMIT_BAD_LIMIT;
    len = ratelimit_key_join(rule, rule_len, key, key_len, name, sizeof name);
    word = ratelimit_priv_begin(rules);
    into = ratelimit_priv_names_of(rules, (rules->side & 1) ^ 1, 1);
    status = ratelimit_priv_set_own(&into, name, len, limit_or_null);
    ratelimit_priv_publish(rules);
    ratelimit_priv_mirror(rules);
    ratelimit_priv_end(rules, word);
    return status;
}

/* Whole, before the first "|", default. */
static const ratelimit_priv_entry *ratelimit_priv_look_up(const ratelimit_priv_names *n,
                                                          const char *name, size_t len)
{
    uint32_t place;
    size_t head = 0;
    const ratelimit_priv_entry *e = ratelimit_priv_seek(n, name, len, &place);
    while (head < len && name[head] != '|')
        head++;
    if (!e && head < len)
        e = ratelimit_priv_seek(n, name, head, &place);
    return e ? e : ratelimit_priv_seek(n, "default", 7, &place);
}

static void ratelimit_priv_show_rule(ratelimit_rules *r, const ratelimit_priv_entry *e,
                                     ratelimit_rule *out)
{
    const ratelimit_priv_tally *t = &ratelimit_priv_tallies(r)[e->tally];
    memset(out, 0, sizeof *out);
    memcpy(out->name, e->name, e->len);
    out->limit = e->limit;
    out->shadow = e->shadow != 0;
    out->allowed = ratelimit_priv_load64(&t->allowed);
    out->refused = ratelimit_priv_load64(&t->refused);
    out->shadow_refused = ratelimit_priv_load64(&t->shadow_refused);
    out->failed = ratelimit_priv_load64(&t->failed);
}

RATELIMIT_API bool ratelimit_rules_find(ratelimit_rules *rules, const char *name,
                                        ratelimit_rule *out)
{
    const ratelimit_priv_entry *e;
    ratelimit_priv_names n;
    uint32_t side, turn;
    if (!rules || !name || !out)
        return false;
    turn = ratelimit_priv_enter(rules, &side);
    n = ratelimit_priv_names_of(rules, side, 0);
    e = ratelimit_priv_look_up(&n, name, ratelimit_priv_len(name));
    if (e)
        ratelimit_priv_show_rule(rules, e, out);
    ratelimit_priv_leave(rules, turn);
    return e != NULL;
}

RATELIMIT_API bool ratelimit_rules_at(ratelimit_rules *rules, size_t index, ratelimit_rule *out)
{
    ratelimit_priv_names n;
    uint32_t side, turn;
    bool found;
    if (!rules || !out)
        return false;
    turn = ratelimit_priv_enter(rules, &side);
    n = ratelimit_priv_names_of(rules, side, 0);
    found = index < *n.count;
    if (found)
        ratelimit_priv_show_rule(rules, &n.entries[n.order[index]], out);
    ratelimit_priv_leave(rules, turn);
    return found;
}

/* Copies what applies to a request out of the rules. */
static void ratelimit_priv_apply_rules(ratelimit_rules *r, ratelimit_rule_request *a)
{
    const ratelimit_request *q = &a->request;
    const char *name = a->rule ? a->rule : (const char *)q->key;
    size_t len = a->rule ? ratelimit_priv_len(a->rule) : q->key_len;
    const ratelimit_priv_entry *rule, *own = NULL;
    ratelimit_priv_names rules, owns;
    uint32_t side, turn, place;
    turn = ratelimit_priv_enter(r, &side);
    rules = ratelimit_priv_names_of(r, side, 0);
    owns = ratelimit_priv_names_of(r, side, 1);
    rule = ratelimit_priv_look_up(&rules, name, len);
    if (rule) {
        memcpy(a->name, rule->name, rule->len);
        a->limit = rule->limit;
        a->shadow = rule->shadow != 0;
        a->tally = rule->tally;
        a->generation = rule->generation;
        a->bucket_len = ratelimit_key_join(rule->name, rule->len, q->key, q->key_len, a->bucket,
                                           sizeof a->bucket);
        if (a->bucket_len > sizeof a->bucket)
            a->bucket_len = 0; /* BAD_KEY */
        else
            own = ratelimit_priv_seek(&owns, a->bucket, a->bucket_len, &place);
    }
    if (own) {
        a->limit = own->limit;
        a->own = true;
    }
    ratelimit_priv_leave(r, turn);
}

/* Makes the request that the store is asked; under no rule its limit is all zero, BAD_LIMIT. */
static ratelimit_request ratelimit_priv_rule_request(ratelimit_rules *r, ratelimit_rule_request *a)
{
    ratelimit_request q = a->request;
    memset(&a->limit, 0, sizeof a->limit);
    memset(a->name, 0, sizeof a->name);
    a->own = a->shadow = false;
    a->generation = 0;
    a->bucket_len = 0;
    if (q.key && q.key_len) {
        if (r)
            ratelimit_priv_apply_rules(r, a);
        if (!a->generation) { /* let the limit, not the key, be what is wrong */
            a->bucket[0] = 0;
            a->bucket_len = 1;
        }
    }
    q.key = a->bucket;
    q.key_len = a->bucket_len;
    q.limit = &a->limit;
    return q;
}

/* A refusal counts for the rule that refused, not for others of its batch. */
static void ratelimit_priv_count_rule(ratelimit_rules *r, const ratelimit_rule_request *a)
{
    bool ok = a->result.status == RATELIMIT_OK, failed = a->result.status == RATELIMIT_STORE_FAILED;
    ratelimit_priv_tally *t;
    if (!a->generation)
        return;
    t = &ratelimit_priv_tallies(r)[a->tally];
    if (ratelimit_priv_load32(&t->generation) != a->generation)
        return;
    if (failed)
        ratelimit_priv_add64(&t->failed, 1);
    if (a->result.allowed)
        ratelimit_priv_add64(&t->allowed, 1);
    if (a->result.allowed && !ok && !failed)
        ratelimit_priv_add64(&t->shadow_refused, 1);
    if (!a->result.allowed && !ok && !a->shadow)
        ratelimit_priv_add64(&t->refused, 1);
}

/* Requests under rules, sorted into those that can refuse and those that are shadow. */
typedef struct ratelimit_priv_batch {
    ratelimit_request req[RATELIMIT_MAX_RULE_REQUESTS];
    ratelimit_result res[RATELIMIT_MAX_RULE_REQUESTS];
    size_t of[RATELIMIT_MAX_RULE_REQUESTS]; /* which of the caller's */
    size_t count, hard;                     /* hard ones come first */
} ratelimit_priv_batch;

static void ratelimit_priv_sort_batch(ratelimit_priv_batch *b, ratelimit_rules *r,
                                      ratelimit_rule_request *asked, size_t count)
{
    size_t i, soft = count;
    b->count = count;
    b->hard = 0;
    for (i = 0; i < count; i++) {
        ratelimit_request q = ratelimit_priv_rule_request(r, &asked[i]);
        size_t to = asked[i].shadow ? --soft : b->hard++;
        b->req[to] = q;
        b->of[to] = i;
    }
}

/* The hard ones, all or none; then the soft ones, only looked at if these did not pass. */
static bool ratelimit_priv_decide_batch(ratelimit_limiter *l, ratelimit_priv_batch *b)
{
    bool pass = ratelimit_priv_limiter(l, b->req, b->res, b->hard,
                                       b->hard > 1 ? RATELIMIT_ALL : RATELIMIT_EACH);
    size_t i;
    for (i = b->hard; i < b->count; i++) {
        if (!pass)
            b->req[i].op = RATELIMIT_PEEK;
        (void)ratelimit_priv_decisions(l, &b->req[i], &b->res[i], 1, RATELIMIT_EACH);
        b->res[i].allowed = b->res[i].allowed && pass;
        pass = ratelimit_priv_finish(l, &b->req[i], &b->res[i], pass) && pass;
    }
    return pass;
}

RATELIMIT_API bool ratelimit_take_rules(ratelimit_limiter *l, ratelimit_rule_request *asked,
                                        size_t count, size_t *binds_or_null)
{
    ratelimit_priv_batch b;
    bool pass;
    size_t i;
    if (binds_or_null)
        *binds_or_null = 0;
    if (count && (!l || !l->store.decide || !asked || count > RATELIMIT_MAX_RULE_REQUESTS)) {
        for (i = 0; asked && i < count; i++)
            ratelimit_priv_answer(&asked[i].result, RATELIMIT_BAD_ARGUMENT);
        return false;
    }
    if (!count)
        return true;
    ratelimit_priv_sort_batch(&b, l->rules, asked, count);
    pass = ratelimit_priv_decide_batch(l, &b);
    for (i = 0; i < count; i++) {
        asked[b.of[i]].result = b.res[i];
        ratelimit_priv_count_rule(l->rules, &asked[b.of[i]]);
    }
    if (binds_or_null)
        *binds_or_null = b.of[ratelimit_binding(b.res, b.hard ? b.hard : count)];
    return pass;
}

RATELIMIT_API bool ratelimit_allow_rule(ratelimit_limiter *l, const char *resource,
                                        const char *rule)
{
    ratelimit_rule_request a;
    memset(&a, 0, sizeof a);
    a.rule = rule;
    a.request = ratelimit_priv_take_request(resource, ratelimit_priv_len(resource), NULL, 1);
    return ratelimit_take_rules(l, &a, 1, NULL);
}

/* Whether a client is better told of a than of b. */
static bool ratelimit_priv_binds(const ratelimit_result *a, const ratelimit_result *b)
{
    bool a_refused = !a->allowed && a->status != RATELIMIT_OK;
    bool b_refused = !b->allowed && b->status != RATELIMIT_OK;
    if (a_refused != b_refused)
        return a_refused;
    if (a_refused || a->remaining == b->remaining)
        return a->retry_after_ns != b->retry_after_ns ? a->retry_after_ns > b->retry_after_ns
                                                      : a->reset_after_ns > b->reset_after_ns;
    return a->remaining < b->remaining;
}

RATELIMIT_API size_t ratelimit_binding(const ratelimit_result *res, size_t count)
{
    size_t i, best = 0;
    for (i = 1; res && i < count; i++)
        if (ratelimit_priv_binds(&res[i], &res[best]))
            best = i;
    return best;
}

RATELIMIT_API size_t ratelimit_key_join(const void *a, size_t a_len, const void *b, size_t b_len,
                                        unsigned char *buf, size_t buf_bytes)
{
    size_t i, tail = a_len < 255 ? 1 : 9, len = a_len + 1 + b_len + tail;
    if (!buf || buf_bytes < len)
        return len;
    if (a_len)
        memcpy(buf, a, a_len);
    buf[a_len] = '|';
    if (b_len)
        memcpy(buf + a_len + 1, b, b_len);
    for (i = 0; i + 1 < tail; i++)
        buf[len - tail + i] = (unsigned char)((uint64_t)a_len >> (8 * i));
    buf[len - 1] = (unsigned char)(tail == 1 ? a_len : 255);
    return len;
}

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

/* An IPv6 address being read: len bytes of it, and where "::" stood (17: nowhere). */
typedef struct ratelimit_priv_ipv6 {
    const char *at, *end;
    size_t len, gap;
} ratelimit_priv_ipv6;

/* One group of 16 bits, or the last two as an IPv4 address. */
static bool ratelimit_priv_group(ratelimit_priv_ipv6 *x, unsigned char *out)
{
    const char *from = x->at;
    unsigned value = 0;
    if (x->len <= 12 && ratelimit_priv_ipv4(x->at, x->end, out + x->len)) {
        x->len += 4;
        x->at = x->end;
        return true;
    }
    while (x->at != x->end && x->at - from < 4 && ratelimit_priv_hex(*x->at) >= 0)
        value = value << 4 | (unsigned)ratelimit_priv_hex(*x->at++);
    if (x->at == from || x->len == 16)
        return false;
    out[x->len++] = (unsigned char)(value >> 8);
    out[x->len++] = (unsigned char)value;
    return true;
}

/* What stands behind a group: the end, or colons and then more unless they are two. */
static bool ratelimit_priv_colons(ratelimit_priv_ipv6 *x)
{
    if (x->at == x->end)
        return true;
    if (*x->at++ != ':' || x->at == x->end)
        return false;
    if (*x->at != ':')
        return true;
    if (x->gap != 17)
        return false;
    x->gap = x->len;
    x->at++;
    return true;
}

static bool ratelimit_priv_parse_ipv6(const char *at, const char *end, unsigned char *out)
{
    ratelimit_priv_ipv6 x;
    x.at = at;
    x.end = end;
    x.len = 0;
    x.gap = 17;
    if (end - at >= 2 && at[0] == ':' && at[1] == ':') {
        x.gap = 0;
        x.at += 2;
    } else if (at == end) {
        return false;
    }
    while (x.at != end)
        if (!ratelimit_priv_group(&x, out) || !ratelimit_priv_colons(&x))
            return false;
    if (x.gap == 17)
        return x.len == 16;
    if (x.len == 16)
        return false;
    memmove(out + 16 - (x.len - x.gap), out + x.gap, x.len - x.gap);
    memset(out + x.gap, 0, 16 - x.len);
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
    else if (ratelimit_priv_parse_ipv6(text, text + text_len, bytes))
        len = 16;
    if (len)
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
    if (address_bytes == 16 && ratelimit_priv_compare(from, 12, mapped, 12) == 0) {
        from += 12;
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

/* ---- >>implementation: text ------------------------------------------------------------------ */

static uint64_t ratelimit_priv_seconds(uint64_t ns)
{
    return ns / RATELIMIT_SECOND + (ns % RATELIMIT_SECOND != 0);
}

static void ratelimit_priv_put_field(char *text, size_t *len, const char *name, uint64_t value)
{
    ratelimit_priv_put(text, len, name);
    ratelimit_priv_put_number(text, len, value);
}

/* An integer of a structured field (RFC 9651) has at most 15 digits. */
static void ratelimit_priv_put_integer(char *text, size_t *len, const char *name, uint64_t value)
{
    const uint64_t most = UINT64_C(999999999999999);
    ratelimit_priv_put_field(text, len, name, value < most ? value : most);
}

/* Whole seconds until it is worth coming back, 0 if that can't be said. */
static uint64_t ratelimit_priv_retry_seconds(const ratelimit_result *res)
{
    if (res->allowed || ratelimit_priv_is_bad(res->status) ||
        res->status == RATELIMIT_UNSUPPORTED || res->retry_after_ns == RATELIMIT_FOREVER)
        return 0;
    return res->retry_after_ns ? ratelimit_priv_seconds(res->retry_after_ns) : 1;
}

static void ratelimit_priv_put_draft(char *text, size_t *len, const ratelimit_result *res,
                                     const ratelimit_limit *limit)
{
    uint64_t retry = ratelimit_priv_retry_seconds(res);
    ratelimit_limit made;
    limit = ratelimit_priv_ready(limit, &made);
    if (limit) {
        bool window = ratelimit_priv_kind(limit) == RATELIMIT_PRIV_WINDOW;
        ratelimit_priv_put_integer(text, len, "RateLimit-Policy: \"default\";q=", res->limit);
        ratelimit_priv_put_integer(
            text, len, ";w=",
            ratelimit_priv_seconds(window ? limit->per_ns
                                          : limit->window_ns + (limit->window_part != 0)));
        ratelimit_priv_put(text, len, "\r\n");
    }
    ratelimit_priv_put_integer(text, len, "RateLimit: \"default\";r=", res->remaining);
    ratelimit_priv_put_integer(text, len,
                               ";t=", retry ? retry : ratelimit_priv_seconds(res->reset_after_ns));
    ratelimit_priv_put(text, len, "\r\n");
}

RATELIMIT_API size_t ratelimit_http_fields(const ratelimit_result *res,
                                           const ratelimit_limit *limit, unsigned sets, char *buf,
                                           size_t buf_bytes)
{
    char text[RATELIMIT_HTTP_FIELDS_BYTES];
    size_t len = 0;
    bool numbers = res && res->limit && res->limit != UINT64_MAX;
    if (numbers && (sets & RATELIMIT_HTTP_X)) {
        ratelimit_priv_put_field(text, &len, "X-RateLimit-Limit: ", res->limit);
        ratelimit_priv_put_field(text, &len, "\r\nX-RateLimit-Remaining: ", res->remaining);
        ratelimit_priv_put_field(
            text, &len, "\r\nX-RateLimit-Reset: ", ratelimit_priv_seconds(res->reset_after_ns));
        ratelimit_priv_put(text, &len, "\r\n");
    }
    if (numbers && (sets & RATELIMIT_HTTP_DRAFT))
        ratelimit_priv_put_draft(text, &len, res, limit);
    if (res && (sets & RATELIMIT_HTTP_RETRY_AFTER) && ratelimit_priv_retry_seconds(res)) {
        ratelimit_priv_put_field(text, &len, "Retry-After: ", ratelimit_priv_retry_seconds(res));
        ratelimit_priv_put(text, &len, "\r\n");
    }
    return ratelimit_priv_deliver(text, len, buf, buf_bytes);
}

RATELIMIT_API int ratelimit_http_status(const ratelimit_result *res)
{
    if (!res)
        return 500;
    if (res->allowed)
        return 200;
    if (ratelimit_priv_is_bad(res->status) || res->status == RATELIMIT_UNSUPPORTED)
        return 500;
    if (res->source == RATELIMIT_FROM_FALLBACK && res->retry_after_ns)
        return 429;
    return res->status == RATELIMIT_STORE_FAILED || res->status == RATELIMIT_FULL ||
                   res->status == RATELIMIT_CANCELED
               ? 503
               : 429;
}

RATELIMIT_API int ratelimit_grpc_status(const ratelimit_result *res)
{
    int http = ratelimit_http_status(res);
    return http == 200 ? 0 : http == 429 ? 8 : http == 503 ? 14 : 13;
}

/* A text of any length: counts all, keeps what fits. */
typedef struct ratelimit_priv_page {
    char *buf;
    size_t bytes, len;
} ratelimit_priv_page;

static void ratelimit_priv_print(ratelimit_priv_page *p, const char *text, size_t len)
{
    size_t i;
    for (i = 0; i < len; i++, p->len++)
        if (p->len < p->bytes)
            p->buf[p->len] = text[i];
}

static void ratelimit_priv_say(ratelimit_priv_page *p, const char *text)
{
    ratelimit_priv_print(p, text, ratelimit_priv_len(text));
}

static void ratelimit_priv_value(ratelimit_priv_page *p, uint64_t value)
{
    char text[24];
    size_t len = 0;
    ratelimit_priv_put(text, &len, " ");
    ratelimit_priv_put_number(text, &len, value);
    ratelimit_priv_put(text, &len, "\n");
    ratelimit_priv_print(p, text, len);
}

static void ratelimit_priv_family(ratelimit_priv_page *p, const char *name, const char *help)
{
    size_t len = ratelimit_priv_len(name);
    bool total = len > 6 && name[len - 6] == '_' && name[len - 1] == 'l'; /* ..._total */
    ratelimit_priv_say(p, "# HELP ");
    ratelimit_priv_say(p, name);
    ratelimit_priv_say(p, " ");
    ratelimit_priv_say(p, help);
    ratelimit_priv_say(p, "\n# TYPE ");
    ratelimit_priv_say(p, name);
    ratelimit_priv_say(p, total ? " counter\n" : " gauge\n");
}

static void ratelimit_priv_metric(ratelimit_priv_page *p, const char *name, const char *help,
                                  uint64_t value)
{
    ratelimit_priv_family(p, name, help);
    ratelimit_priv_say(p, name);
    ratelimit_priv_value(p, value);
}

static void ratelimit_priv_limiter_metrics(ratelimit_priv_page *p, const ratelimit_limiter *l)
{
    ratelimit_counts c;
    ratelimit_limiter_counts(l, &c);
    ratelimit_priv_metric(p, "ratelimit_allowed_total", "Decisions that let through.", c.allowed);
    ratelimit_priv_metric(p, "ratelimit_refused_total", "Decisions that did not.", c.refused);
    ratelimit_priv_metric(p, "ratelimit_shadow_refused_total",
                          "Of those let through: only because of shadow.", c.shadow_refused);
    ratelimit_priv_metric(p, "ratelimit_failed_total",
                          "Decisions of the failure policy, not the store.", c.failed);
    ratelimit_priv_metric(p, "ratelimit_bad_total", "Of those refused: bad requests.", c.bad);
}

static void ratelimit_priv_table_metrics(ratelimit_priv_page *p, const ratelimit_table *table,
                                         uint64_t now_ns)
{
    ratelimit_table_counts c;
    ratelimit_table_stats(table, now_ns, &c);
    ratelimit_priv_metric(p, "ratelimit_table_capacity", "Keys it can hold.", c.capacity);
    ratelimit_priv_metric(p, "ratelimit_table_keys", "Keys it holds.", c.keys);
    ratelimit_priv_metric(p, "ratelimit_table_keys_in_debt", "Keys with tokens spent.", c.in_debt);
    ratelimit_priv_metric(p, "ratelimit_table_bytes", "Memory it uses.", c.bytes);
    ratelimit_priv_metric(p, "ratelimit_table_evicted_total", "Keys forgotten in debt.", c.evicted);
    ratelimit_priv_metric(p, "ratelimit_table_refused_total", "New keys without room.", c.refused);
}

static void ratelimit_priv_labelled(ratelimit_priv_page *p, const char *name, const char *label,
                                    const char *text, uint64_t value)
{
    ratelimit_priv_say(p, name);
    ratelimit_priv_say(p, "{");
    ratelimit_priv_say(p, label);
    ratelimit_priv_say(p, "=\"");
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            ratelimit_priv_print(p, "\\", 1);
        ratelimit_priv_print(p, text, 1);
    }
    ratelimit_priv_say(p, "\"}");
    ratelimit_priv_value(p, value);
}

static void ratelimit_priv_tier_metrics(ratelimit_priv_page *p, const ratelimit_tier *tier)
{
    static const char *const decisions = "ratelimit_tier_decisions_total";
    ratelimit_tier_counts c;
    ratelimit_tier_stats(tier, &c);
    ratelimit_priv_family(p, decisions, "Decisions of the tier, and by whom.");
    ratelimit_priv_labelled(p, decisions, "by", "store", c.stored);
    ratelimit_priv_labelled(p, decisions, "by", "lease", c.leased);
    ratelimit_priv_labelled(p, decisions, "by", "refusal cache", c.refused);
    ratelimit_priv_labelled(p, decisions, "by", "fallback", c.fallback);
    ratelimit_priv_labelled(p, decisions, "by", "nobody", c.failed);
    ratelimit_priv_metric(p, "ratelimit_tier_calls_total", "Calls of the store.", c.calls);
    ratelimit_priv_metric(p, "ratelimit_tier_failures_total", "Of these, failed.", c.failures);
    ratelimit_priv_metric(p, "ratelimit_tier_outages_total", "Times the store began to fail.",
                          c.outages);
}

/* All under one look, so that no rule comes twice: a load waits until it is over. */
static void ratelimit_priv_rules_metrics(ratelimit_priv_page *p, ratelimit_rules *r)
{
    static const char *const families[4][2] = {
        {"ratelimit_rule_allowed_total", "Requests that went on under the rule."},
        {"ratelimit_rule_refused_total", "Requests that the rule refused."},
        {"ratelimit_rule_shadow_refused_total", "Of those that went on: only because of shadow."},
        {"ratelimit_rule_failed_total", "Decisions of the failure policy, not the store."}};
    uint32_t side, turn = ratelimit_priv_enter(r, &side), i, f;
    ratelimit_priv_names n = ratelimit_priv_names_of(r, side, 0);
    for (f = 0; f < 4; f++) {
        if (*n.count)
            ratelimit_priv_family(p, families[f][0], families[f][1]);
        for (i = 0; i < *n.count; i++) {
            ratelimit_rule rule;
            ratelimit_priv_show_rule(r, &n.entries[n.order[i]], &rule);
            ratelimit_priv_labelled(p, families[f][0], "rule", rule.name,
                                    f == 0   ? rule.allowed
                                    : f == 1 ? rule.refused
                                    : f == 2 ? rule.shadow_refused
                                             : rule.failed);
        }
    }
    ratelimit_priv_leave(r, turn);
}

RATELIMIT_API size_t ratelimit_metrics(const ratelimit_limiter *l, const ratelimit_table *table,
                                       uint64_t now_ns, char *buf, size_t buf_bytes)
{
    ratelimit_priv_page p;
    p.buf = buf;
    p.bytes = buf ? buf_bytes : 0;
    p.len = 0;
    if (l)
        ratelimit_priv_limiter_metrics(&p, l);
    if (l && l->store.decide == ratelimit_priv_tier_decide)
        ratelimit_priv_tier_metrics(&p, (const ratelimit_tier *)l->store.self);
    if (table)
        ratelimit_priv_table_metrics(&p, table, now_ns);
    if (l && l->rules)
        ratelimit_priv_rules_metrics(&p, l->rules);
    if (p.bytes)
        buf[p.len < p.bytes ? p.len : 0] = 0;
    return p.len;
}

/* Space-saving: a key without an entry takes over the smallest, with its count as possible
 * error. */
static void ratelimit_priv_top_count(ratelimit_top *top, const ratelimit_request *req,
                                     uint64_t hash)
{
    ratelimit_top_entry *least = &top->entries[0];
    size_t i;
    for (i = 0; i < top->count; i++) {
        ratelimit_top_entry *e = &top->entries[i];
        if (e->refused && e->hash == hash && e->key_len == (uint32_t)req->key_len) {
            e->refused++;
            return;
        }
        if (e->refused < least->refused)
            least = e;
    }
    least->error = least->refused;
    least->refused++;
    least->hash = hash;
    least->key_len = (uint32_t)req->key_len;
    memset(least->key, 0, sizeof least->key);
    memcpy(least->key, req->key,
           req->key_len < sizeof least->key ? req->key_len : sizeof least->key);
}

RATELIMIT_API void ratelimit_top_hook(void *top, const ratelimit_request *req,
                                      const ratelimit_result *res)
{
    ratelimit_top *t = (ratelimit_top *)top;
    uint64_t hash;
    uint32_t word;
    if (!t || !t->entries || !t->count || !req || !res || !req->key || !req->key_len ||
        (res->status != RATELIMIT_DENIED && res->status != RATELIMIT_NEVER &&
         res->status != RATELIMIT_TIMEOUT && res->status != RATELIMIT_FULL))
        return;
    hash = ratelimit_priv_hash(req->key, req->key_len, t->seed);
    word = ratelimit_priv_hold(&t->lock);
    ratelimit_priv_top_count(t, req, hash);
    ratelimit_priv_let_go(&t->lock, word);
}

RATELIMIT_API size_t ratelimit_top_read(ratelimit_top *top, ratelimit_top_entry *out, size_t max)
{
    size_t i, j, n = 0;
    uint32_t word;
    if (!top || !top->entries || !out || !max)
        return 0;
    word = ratelimit_priv_hold(&top->lock);
    for (i = 0; i < top->count; i++) {
        if (!top->entries[i].refused)
            continue;
        for (j = n; j > 0 && out[j - 1].refused < top->entries[i].refused; j--)
            if (j < max)
                out[j] = out[j - 1];
        if (j < max)
            out[j] = top->entries[i];
        n += n < max;
    }
    ratelimit_priv_let_go(&top->lock, word);
    return n;
}

RATELIMIT_API bool ratelimit_log_pass(ratelimit_log *log, const ratelimit_limit *limit,
                                      uint64_t now_ns, uint32_t *missed)
{
    if (!log || !missed)
        return false;
    *missed = 0;
    if (!ratelimit_bucket_take_shared(&log->bucket, limit, 1, now_ns, NULL)) {
        ratelimit_priv_add32(&log->missed, 1);
        return false;
    }
    *missed = ratelimit_priv_drain32(&log->missed);
    return true;
}

RATELIMIT_API uint64_t ratelimit_ticks_ns(ratelimit_ticks *t, uint32_t ticks, unsigned bits,
                                          uint64_t hz)
{
    uint64_t parts;
    uint32_t passed;
    if (!t || bits < 1 || bits > 32 || !hz || hz > RATELIMIT_PRIV_MAX)
        return RATELIMIT_FOREVER;
    passed = (ticks - t->last) & (UINT32_MAX >> (32 - bits));
    t->last = ticks;
    parts = t->rest + passed * RATELIMIT_SECOND; /* below 2^62 + 2^62 */
    t->ns += parts / hz;
    t->rest = parts % hz;
    return t->ns;
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

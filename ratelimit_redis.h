/* ratelimit_redis.h - v1.0.0 - the decisions of ratelimit.h on Redis - MIT or public domain, see
   end of file

   Do this in exactly one C or C++ file, and include both headers plainly everywhere else:

       #define RATELIMIT_IMPLEMENTATION
       #define RATELIMIT_REDIS_IMPLEMENTATION
       #include "ratelimit_redis.h"

   and link with -lhiredis -pthread. It needs hiredis 0.14 or later (Debian: libhiredis-dev) and
   POSIX sockets. With cc -std=c99 define _POSIX_C_SOURCE as 200809L before the first include.


   CONTENTS

       QUICK START         a whole program
       WHEN TO USE IT      and when not
       THREADS, FORK
       CONSISTENCY         what is exact, what a failover can lose
       WHEN REDIS FAILS    what the caller sees
       CLUSTER             and hash tags
       SENTINEL            the master is where they say
       LOGIN, NAMES        credentials that change; which address is dialed
       ASYNCHRONOUS        on an event loop
       OPTIONS             of the preprocessor
       SERVERS             which were run, which read about
       LIMITS              numbers
       >>options           interface
       >>windows           interface: counters
       >>semaphores        interface: so many at once
       >>locks             interface: one at a time
       >>asynchronous      interface: for event loops
       >>implementation    the layers: scripts, structures, text, wire, connection, nodes, map,
                           engine, states, store, windows, semaphores, locks, asynchronous
       CHANGES, LICENCE


   QUICK START

       #define RATELIMIT_IMPLEMENTATION
       #define RATELIMIT_REDIS_IMPLEMENTATION
       #include "ratelimit_redis.h"
       #include <stdio.h>

       static const ratelimit_limit logins = RATELIMIT_LIMIT(5, RATELIMIT_MINUTE, 10);

       int main(void)
       {
           ratelimit_limiter limiter = {0};
           ratelimit_status status;
           char why[256];
           ratelimit_redis *redis =
               ratelimit_redis_open_url("redis://127.0.0.1:6379", NULL, &status);
           if (!redis) {
               puts(ratelimit_status_text(status));
               return 1;
           }
           if (ratelimit_init(&limiter, ratelimit_redis_store(redis)) != RATELIMIT_OK)
               return 1;
           if (ratelimit_redis_ping(redis) != RATELIMIT_OK)
               puts(ratelimit_redis_error(redis, why, sizeof why));
           puts(ratelimit_allow(&limiter, "alice", &logins) ? "come in" : "too many");
           ratelimit_close(&limiter);
           ratelimit_redis_close(redis);
           return 0;
       }


   WHEN TO USE IT, AND WHEN NOT

   Use a table (ratelimit_table_store) while one machine decides: it is a thousand times faster and
   cannot fail. Use this when several machines must share a limit. Each decision is one round trip
   (0.1 ms on loopback); many at once are cheaper (ratelimit_take_each, ratelimit_take_all), and
   ratelimit_wait reserves, so a caller that waits asks once. All that ratelimit.h decides can be
   asked here, with the same answers: the arithmetic is the same code, Redis only adds and compares.
   While Redis cannot be asked, everybody is let in, unless limiter.on_failure says otherwise.


   THREADS, FORK

   Any number of threads may share a handle: each call has a connection for itself, pool_size at
   most, and no lock is held while it waits for the server. Several limiters may share a handle,
   too: closing a limiter does not close it. A child of fork makes connections of its own; its
   first call must be over before it starts threads that call. A keeper's thread is not in the
   child. No SIGPIPE comes from this library.


   CONSISTENCY

   One key's decisions happen one after another in Redis: no two clients can take the same token.
   The server's clock counts, never a client's. What was taken is as durable as Redis makes it. A
   crash without persistence forgets every debt: each key may spend one more burst. A failover
   forgets what the replica had not received yet: of each key at most what was taken in that time,
   and never more than a burst. If the new master's clock is behind by d, keys may be refused for up
   to d longer (ordinary debts: for at most RATELIMIT_STEP_NS longer); if it is ahead by d, up to
   rate x d more pass. Any eviction policy but noeviction may delete a debt, a permit or a lock at
   any time: let Redis have room for them, or a database of their own.

   A refusal and a peek write nothing, so Redis does not note them. The one difference to a table:
   when the clock is set back, a debt made on purpose (reserve, charge) or a block is shortened to
   twice what it was when it was changed last, not when it was refused last.

   A request under a changed limit, when the clock was set back, on a key whose block is over, or on
   a debt beyond 2^53 ns (104 days) takes a second round trip: the state comes here, is decided by
   ratelimit.h, and is put back if it is still the same, else decided again (64 times at most, then
   STORE_FAILED).


   WHEN REDIS FAILS

   Every call ends within timeout_ms. What could not be decided is STORE_FAILED, and
   ratelimit_redis_error says why in words and in the server's; the limiter's policy then decides. A
   request whose bytes went out is never sent again, so nothing is charged twice; whether it was
   charged at all is then not known.

   One connection's trouble is that connection's: a lost packet, a reset, a forgotten connection
   costs the requests that were out on it. A node is down, and is left alone for cool_down_ms, when
   two calls in a row got no answer though it has answered nobody since they began, or when it
   refuses connections. Meanwhile calls for its keys fail at once; then one call at a time tries. In
   a cluster that concerns the keys of that node only.

       what happens                         the caller sees
       nobody listens, no route             STORE_FAILED within connect_timeout_ms, then at once
       no answer                            STORE_FAILED after timeout_ms, twice; then at once
       one answer lost or late              STORE_FAILED for what was on that connection
       connection closed between calls      nothing: a new one is made
       connection closed during a call      STORE_FAILED for what was on that connection
       script cache lost (restart, FLUSH)   nothing: the script is sent again
       OOM, MISCONF, NOPERM, NOAUTH, ...    STORE_FAILED at once
       LOADING, BUSY, MASTERDOWN            STORE_FAILED at once, then cool-down
       READONLY (a master became replica)   the node's connections are closed, a new one is made,
                                            once; then STORE_FAILED and cool-down
       WRONGTYPE, a foreign value           STORE_FAILED for this key; the value is left alone

   What operators see. ratelimit_redis_stats counts requests, round trips, connections, and failures
   by kind, and ratelimit_metrics prints them: unreached (nothing could be sent), busy (the pool is
   too small, or the server too slow for it), lost (the connection ended first), late (no answer in
   time), refused (the server said an error). ratelimit_redis_error has the words of the last one.

   Time. The default timeout_ms of 300 outlives one lost packet, which is sent again after 200 ms.
   A new connection needs two round trips, with TLS four, a login one more: connect_timeout_ms has
   to be longer. What is not ready when a call's time is over is finished by the next call.
   Firewalls and NAT forget idle connections, some within a minute: max_idle_ms should be less.

   Managed Redis. Give its name as host: READONLY and closed connections make a new connection,
   which looks the name up again, and a login that expires as options.credentials. A proxy that
   shards (twemproxy, Envoy, Dynomite) needs one_key. Let it hash what is in braces (twemproxy:
   hash_tag: "{}") and never move keys of a server that fails (auto_eject_hosts: false), or their
   limits begin again on another server. One master for each key: stores that write in several
   places at once (active-active) lose charges.


   CLUSTER

   With options.cluster any node of options.host is enough to start. MOVED, ASK, TRYAGAIN and
   CLUSTERDOWN are followed or waited out within timeout_ms. Each request has one key, so every node
   serves its own; ratelimit_take_each is one write per node, and a node that hangs fails its own
   requests only. All-or-none needs all its keys on one node:

       "{alice}:login"  "{alice}:api"       only what is in the first braces chooses the node

   Several limits on one key are on one node without that. Other batches are UNSUPPORTED, and the
   limiter's on_failure decides them (ratelimit_take_all, ratelimit_take_rules). Without
   options.cluster and one_key there is no such rule.

   With options.all_in_turn such a batch is decided, too: the keys of one slot after those of
   another, a round trip for each. If one slot refuses or fails, what the slots before it took is
   given back. That is weaker than all or none:

       never too many     pass: nothing is given back that was not taken
       for a moment       the first keys have paid, and others may be refused for it
       for good           they have paid if a refund fails (its node fails, the process dies), or if
                          somebody reserved after a reservation of the batch
       the limit's end    a key whose answer was lost may have paid, as always

   What is not given back again (a fixed window's tokens, REFUND, CANCEL, BLOCK, RESET) is asked
   last; if that is on two slots, the batch is UNSUPPORTED. The takes have two thirds of timeout_ms.


   SENTINEL

   With options.master_name the hosts are sentinels. One after the other is asked where the master
   is: at the start, when the master fails, refuses writes or is left alone, at most every 100 ms. A
   server that says it is no master (ROLE) is not used. While the sentinels agree on a new master,
   requests fail as when a server is down, or wait within timeout_ms if the old one is a replica
   already. Sentinels have a login of their own: sentinel_user, sentinel_password. A master that is
   cut off from the sentinels goes on for those who reach it, until min-replicas-to-write of the
   server ends that. While both sides have a master, a key gets its limit on each: at most a burst
   and rate x that time more.


   LOGIN, NAMES

   A login that changes (tokens of a cloud, rotated passwords) comes from options.credentials, which
   is asked at each new connection. If the server refuses it (WRONGPASS, NOAUTH), it is asked once
   more, and the connection that was refused goes on. A request that is answered NOAUTH was not
   carried out: it goes out on a new connection, once. A connection that is logged in stays so for
   as long as the server likes.

   A name with several addresses: each is tried, in the order of getaddrinfo, and has its share of
   connect_timeout_ms. Names are looked up at each new connection. Where servers tell addresses that
   cannot be reached from here (NAT, containers), options.translate puts others in their place.


   ASYNCHRONOUS

   With RATELIMIT_REDIS_ASYNC defined, a program with an event loop takes without waiting. Any loop
   will do that can watch a socket; with libevent:

       static void ready(evutil_socket_t fd, short what, void *self)
       {
           (void)self;
           ratelimit_redis_async_ready(a, fd, (what & EV_READ ? RATELIMIT_REDIS_READ : 0) |
                                              (what & EV_WRITE ? RATELIMIT_REDIS_WRITE : 0));
       }
       static int watch(void *base, int fd, unsigned events, void **yours)
       {
           short what = EV_PERSIST | (events & RATELIMIT_REDIS_READ ? EV_READ : 0) |
                                     (events & RATELIMIT_REDIS_WRITE ? EV_WRITE : 0);
           if (*yours)
               event_free(*yours);
           *yours = events ? event_new(base, fd, what, ready, NULL) : NULL;
           return *yours ? event_add(*yours, NULL) : 0;
       }
       static void answered(void *self, const ratelimit_result *res, size_t count)
       {
           ...
       }
       loop.watch = watch;
       loop.self = base;
       a = ratelimit_redis_async_open(&options, &loop, NULL);
       ratelimit_redis_async_take(a, &request, answered, self);

   For libev and libuv see tests/redis/test_async.c. Time comes from the caller, too: loop.timer is
   told when ratelimit_redis_async_tick is to be called, or it is called every few ms. Without it
   what is too late would never end.

   What Redis decides, what fails and when, cool-down, cluster, consistency: as above, with these
   differences. There is one connection to each server, all requests of one turn of the loop go out
   in one write (outside a cluster plain takes by the dozens in one command), and decisions of one
   key happen in the order of the calls of take, unless one of them needs another round trip. A
   server that does not answer the oldest request in time fails all that was sent to it; what was
   not sent yet goes out on a new connection. Nothing blocks, but looking up a host by name.
   loop.max_requests bounds the memory: each takes less than 1 KB, its key, and what is sent of it.
   One thread uses a handle: the loop's; a child of fork makes one of its own.


   OPTIONS OF THE PREPROCESSOR, where the code is

       RATELIMIT_REDIS_KEEPER    also ratelimit_redis_keep, a thread that renews a lock (define it
                                 wherever the header is included)
       RATELIMIT_REDIS_ASYNC     also ratelimit_redis_async_*, see ASYNCHRONOUS (define it wherever
                                 the header is included)
       RATELIMIT_REDIS_TLS       TLS; needs OpenSSL 1.1 or later: link with -lssl -lcrypto
       those of ratelimit.h      RATELIMIT_NO_CLOCK excepted


   SERVERS

       run: all tests, at each change       Redis 7.0; twemproxy 0.5 with one_key
       run by hand, all tests passed        Valkey 8.0
       run by hand, all but a few tests     Redis 8.0, 6.2, 7.0 built for 32 bits
         passed (waits on a busy machine)
       run by hand, but for tests that      Redis 5.0
         need users (ACL) or commands
         that it does not have
       every script run with Lua 5.4        servers with that Lua (Dragonfly, Garnet) were not run
       not run, only read about             Redis 7.2 and 7.4, KeyDB, ElastiCache, MemoryDB,
                                              Memorystore, Azure; Upstash is not known to work


   LIMITS

       server          Redis 5 or later (users: 6), Valkey, with the struct library of their Lua:
                         see SERVERS
       permissions     EVALSHA EVAL GET SET DEL TIME on keys with the prefix; SELECT (database),
                         CLUSTER and ASKING (cluster), PING (ratelimit_redis_ping), PTTL PEXPIRE
                         INCRBY (windows, locks), WAIT (wait_replicas), DECR (plain semaphores),
                         ZADD ZCARD ZRANGE ZREM ZREMRANGEBYSCORE ZSCORE PEXPIRE (semaphores with
                         expiry); CLIENT if there is a client_name and ROLE with sentinels, but it
                         works without these two
       names           what is written where: see >>implementation: scripts
       time            the server's, microseconds, to the year 2255
       each            the order of one key's requests in a batch is kept, unless one of them takes
                         two round trips
       all-or-none     RATELIMIT_MAX_ALL requests; one round trip, two if a bucket comes twice, or
                         with take_up_to, refund, cancel, block or reset among them
       two trips       for a fixed window whose period is no whole number of us, and where a burst
                         takes 26 days or more to fill. The second trip fails if another client came
                         between, and the decision begins again; STORE_FAILED if that happens each
                         time: many clients at once on one such key
       host names      getaddrinfo may take longer than timeout_ms: use an address where it does
       memory          about 130 bytes per key in debt and its name, less than 20 KB a connection
*/
#ifndef RATELIMIT_REDIS_H_INCLUDED
#  define RATELIMIT_REDIS_H_INCLUDED

#  if defined(RATELIMIT_REDIS_IMPLEMENTATION) && !defined(RATELIMIT_IMPLEMENTATION) &&             \
      !defined(RATELIMIT_IMPLEMENTATION_INCLUDED)
#    error "RATELIMIT_REDIS_IMPLEMENTATION needs RATELIMIT_IMPLEMENTATION in the same file."
#  endif

#  include "ratelimit.h"

#  define RATELIMIT_REDIS_VERSION 10000
#  if RATELIMIT_VERSION != RATELIMIT_REDIS_VERSION
#    error "ratelimit_redis.h and ratelimit.h are of different versions."
#  endif
#  if defined(RATELIMIT_NO_CLOCK)
#    error "ratelimit_redis.h needs a clock: it can't be used with RATELIMIT_NO_CLOCK."
#  endif

#  ifdef __cplusplus
extern "C" {
#  endif

/* ---- >>options ------------------------------------------------------------------------------- */

/* ratelimit_redis  Connections to one server or cluster. Made by open; threads share it freely. */
typedef struct ratelimit_redis ratelimit_redis;

/* What a socket is ready for, or watched for: bits. */
#  define RATELIMIT_REDIS_READ  1u
#  define RATELIMIT_REDIS_WRITE 2u

/* What options.credentials fills in: NUL-terminated. */
typedef struct ratelimit_redis_login {
    char user[256]; /* "": none */
    char password[4096];
} ratelimit_redis_login;

/* What options.translate may change. */
typedef struct ratelimit_redis_address {
    char host[256];
    int port;
} ratelimit_redis_address;

/* Zero it, then set what you need. Texts are copied. */
typedef struct ratelimit_redis_options {
    const char *host;      /* NULL: "127.0.0.1". In a cluster any nodes, with master_name the
                                    sentinels: "a", "a:7000,b:7001,[::1]:7002" */
    int port;              /* of hosts without one; 0: 6379, of sentinels 26379 */
    const char *unix_path; /* a Unix socket instead of host and port */
    const char *user;      /* NULL: none (Redis 6 and later know users) */
    const char *password;  /* NULL: none */
    /* Instead of user and password: is called at each login, by any thread, to fill in the login of
     * now. refused: the server did not take the one before, so it asks once more; it asks, too,
     * when a connection is not known any more. False: there is none, so the login fails. */
    bool (*credentials)(void *self, bool refused, ratelimit_redis_login *login);
    void *credentials_self;
    const char *master_name; /* the sentinels at host know where it is; NULL: no sentinels */
    const char *sentinel_user, *sentinel_password; /* to ask the sentinels; NULL: none */
    /* NULL, or is called with each address that a cluster or a sentinel tells, and may put another
     * in its place: for servers behind NAT. It must be quick, and call nothing here. */
    void (*translate)(void *self, ratelimit_redis_address *address);
    void *translate_self;
    int database;                /* 0 */
    const char *prefix;          /* of every key; NULL: "ratelimit:" */
    uint32_t connect_timeout_ms; /* 0: 500; for making a connection, which may go on in the calls
                                    after the one that began it */
    uint32_t timeout_ms;         /* 0: 300; a call takes no longer, whatever happens. A lost packet
                                    is sent again after 200 ms at the earliest */
    uint32_t cool_down_ms;       /* 0: 500; a server that failed is left alone for so long, less up
                                    to a half by chance */
    uint32_t max_idle_ms;        /* 0: 30,000; a connection idle for longer is closed, not used:
                                    less than what is between forgets connections after */
    uint32_t pool_size;          /* 0: 16; most connections to a server at once */
    uint32_t wait_replicas;      /* a lock, or its renewal, is OK only if so many replicas have it,
                                    within half of the time left: see >>locks. 0: none */
    const char *client_name;     /* of our connections in CLIENT LIST, without blanks; NULL: none */
    bool one_key;                /* each command has one key: for a proxy that shards by keys. Then
                                    all-or-none needs a hash tag, as in a cluster */
    bool all_in_turn;            /* all-or-none over keys of several nodes asks one node after the
                                    other, and gives back what the first took if a later one
                                    refuses: see CLUSTER */
    bool tls;                    /* needs RATELIMIT_REDIS_TLS, see below */
    const char *tls_ca;          /* file of the certificates to trust; NULL: the system's */
    const char *tls_cert;        /* file of our own certificate, with tls_key; NULL: none */
    const char *tls_key;
    const char *tls_name;  /* name or address that the certificate must have; NULL: the host, in a
                              cluster each node's own; "*": any, so tls_ca should trust no others */
    bool cluster;          /* the server is a node of a Redis Cluster; database must be 0 */
    uint64_t ttl_min_ms;   /* 0: keys expire 2 ms after they are full (those of windows at most a
                              window later); else never earlier */
    uint64_t ttl_max_ms;   /* 0: none; else keys expire by then, and their debt is forgotten */
    ratelimit_clock clock; /* for tests: what time scripts are told; NULL: the server's */
    void *clock_self;
} ratelimit_redis_options;

/* ratelimit_redis_open  Makes a handle. Nothing is sent yet: connections are made when needed, so a
 * program may start before Redis does; ratelimit_redis_ping tells.
 *
 * options  NULL: all defaults
 * status   may be NULL; BAD_ARGUMENT (port, database or path out of range, several hosts without
 *          cluster or master_name, database in a cluster, ttl_min_ms above ttl_max_ms, user without
 *          password, tls_cert without tls_key, an empty tls_name), UNSUPPORTED (tls without
 *          RATELIMIT_REDIS_TLS), SYNTAX (the certificates can't be read), NO_MEMORY if NULL is
 *          returned, else OK */
RATELIMIT_API ratelimit_redis *ratelimit_redis_open(const ratelimit_redis_options *options,
                                                    ratelimit_status *status_or_null);

/* ratelimit_redis_open_url  The same for a server that is told as a URL; else as options say.
 *
 *     redis://[[user][:password]@]host[:port][,host[:port]...][/database][?master=name]
 *     rediss://...                        the same over TLS
 *     unix://[[user][:password]@]/path[?db=database]
 *
 * host may be an IPv6 address in brackets; several are nodes of a cluster (options.cluster), or
 * sentinels, which know the master of that name. User, password and path may hold any byte but NUL
 * as %41. status: SYNTAX too if url is not so. */
RATELIMIT_API ratelimit_redis *
ratelimit_redis_open_url(const char *url, const ratelimit_redis_options *options_or_null,
                         ratelimit_status *status_or_null);

/* ratelimit_redis_ping  RATELIMIT_OK if the server answers (in a cluster: one that told where the
 * slots are, and the node of slot 0), else STORE_FAILED; ratelimit_redis_error says why. */
RATELIMIT_API ratelimit_status ratelimit_redis_ping(ratelimit_redis *r);

/* ratelimit_redis_store  The handle as a store, for ratelimit_init and tiers. Any number may use
 * it; close the handle after them. */
RATELIMIT_API ratelimit_store ratelimit_redis_store(ratelimit_redis *r);

/* ratelimit_redis_error  Why something last failed on this handle, in words, as a NUL-terminated
 * text in buf, cut off if it is longer; "" if nothing did. Returns buf. 256 bytes are enough. Other
 * threads' failures show here too. */
RATELIMIT_API const char *ratelimit_redis_error(ratelimit_redis *r, char *buf, size_t buf_bytes);

/* Counters of a handle. Requests are counted as Redis is asked: a batch that is all or none is one,
 * and so is a call of a window, a semaphore, a lock or ping. */
typedef struct ratelimit_redis_counts {
    uint64_t calls;           /* requests that were answered or failed */
    uint64_t round_trips;     /* waits for a server; requests that go out together share one */
    uint64_t unreached;       /* failed: no connection could be made, or the server is left alone */
    uint64_t busy;            /* failed: all connections of the pool were in use */
    uint64_t lost;            /* failed: the connection ended before the answer */
    uint64_t late;            /* failed: no answer in time */
    uint64_t refused;         /* failed: the server answered with an error */
    uint64_t connects;        /* connections that were made, the first ones and new ones */
    uint64_t waited_ns;       /* time that calls took, added up */
    uint64_t connections;     /* that are open now */
    uint64_t last_success_ms; /* when a request was answered last, ms since 1970; 0: never */
} ratelimit_redis_counts;

/* ratelimit_redis_stats  A copy of the counters of r, each read whole. Threads: any. */
RATELIMIT_API void ratelimit_redis_stats(ratelimit_redis *r, ratelimit_redis_counts *out);

/* ratelimit_redis_metrics  Writes counters in Prometheus' text format, as ratelimit_metrics does:
 * that has those of the limiter's own store in it already. This is for an asynchronous handle. */
RATELIMIT_API size_t ratelimit_redis_metrics(const ratelimit_redis_counts *counts,
                                             const char *labels_or_null, char *buf,
                                             size_t buf_bytes);

/* ratelimit_redis_close  Closes all connections. No call may be under way. NULL is allowed. */
RATELIMIT_API void ratelimit_redis_close(ratelimit_redis *r);

/* ---- >>windows ------------------------------------------------------------------------------- */

/* ratelimit_redis_window  Counts n for key in a fixed window that begins with its first use.
 * (RATELIMIT_WINDOW is the one aligned to the clock.)
 *
 * most     the window's limit, to 2^53 - 1; 0: no limit, allowed without asking
 * per_ms   its length, 1 to 2^42 ms (139 years)
 * n        1 to 2^53 - 1; above most is NEVER
 * out      may be NULL; retry_after_ns and reset_after_ns are until the window's end
 *
 * Returns true if counted. False: DENIED (not counted), NEVER, BAD_KEY, BAD_COUNT, BAD_ARGUMENT,
 * STORE_FAILED. */
RATELIMIT_API bool ratelimit_redis_window(ratelimit_redis *r, const void *key, size_t key_len,
                                          uint64_t most, uint64_t per_ms, uint64_t n,
                                          ratelimit_result *out_or_null);

/* ratelimit_redis_sliding  The same over the last per_ms, reckoned from two windows aligned to the
 * server's clock: what was used in this one, and of the one before the share that is not over yet.
 * Exact if the use of the window before was even. If all of it came at its end, up to twice most
 * may pass within per_ms; if at its beginning, it is refused too long; never longer than per_ms.
 * most x per_ms must be below 2^51. */
RATELIMIT_API bool ratelimit_redis_sliding(ratelimit_redis *r, const void *key, size_t key_len,
                                           uint64_t most, uint64_t per_ms, uint64_t n,
                                           ratelimit_result *out_or_null);

/* ---- >>semaphores ---------------------------------------------------------------------------- */

/* ratelimit_redis_acquire_plain, ratelimit_redis_release_plain  At most `most` in flight for key,
 * only counted: who holds is not known, so one who dies keeps a place until nobody acquires for
 * ttl_ms; then all are free. Never below 0 or above most.
 *
 * most     1 to 2^31
 * ttl_ms   1 to 2^42
 *
 * OK; acquire: BUSY; release: LOST if none is out; BAD_KEY, BAD_ARGUMENT, STORE_FAILED. */
RATELIMIT_API ratelimit_status ratelimit_redis_acquire_plain(ratelimit_redis *r, const void *key,
                                                             size_t key_len, uint64_t most,
                                                             uint64_t ttl_ms);
RATELIMIT_API ratelimit_status ratelimit_redis_release_plain(ratelimit_redis *r, const void *key,
                                                             size_t key_len);

/* A permit: 128 random bits, in hex. */
typedef struct ratelimit_redis_permit {
    char id[33];
} ratelimit_redis_permit;

/* ratelimit_redis_acquire  A permit that expires by itself after ttl_ms of the server's clock.
 *
 * most         1 to 2^31; may differ from call to call
 * ttl_ms       1 to 2^42
 * max_wait_ms  0: BUSY at once; else asks again after pauses that grow to max_pause_ms (0: 100),
 *              with jitter; then TIMEOUT
 * permit       set by OK
 * retry_after  may be NULL; BUSY, TIMEOUT: ns until the next permit expires, if none comes back
 *
 * Waiting outlives failures: a request whose answer was lost is asked again under the same id, so
 * it is still one permit. OK, BUSY, TIMEOUT, BAD_KEY, BAD_ARGUMENT, STORE_FAILED (at once, or when
 * the wait ended with a failure: *permit may be out, releasing it does no harm). */
RATELIMIT_API ratelimit_status ratelimit_redis_acquire(ratelimit_redis *r, const void *key,
                                                       size_t key_len, uint64_t most,
                                                       uint64_t ttl_ms, uint64_t max_wait_ms,
                                                       uint64_t max_pause_ms,
                                                       ratelimit_redis_permit *permit,
                                                       uint64_t *retry_after_ns);

/* ratelimit_redis_release  Gives count permits back, at most 1000. each[i] (may be NULL): OK, or
 * LOST if it was not out any more. Returns OK if all were out, LOST if one was not; BAD_KEY,
 * BAD_ARGUMENT, STORE_FAILED (then so is each). */
RATELIMIT_API ratelimit_status ratelimit_redis_release(ratelimit_redis *r, const void *key,
                                                       size_t key_len,
                                                       const ratelimit_redis_permit *permits,
                                                       size_t count, ratelimit_status *each);

/* ratelimit_redis_extend  The permit now expires ttl_ms from now. OK; LOST if it was not out any
 * more: it is not made again. */
RATELIMIT_API ratelimit_status ratelimit_redis_extend(ratelimit_redis *r, const void *key,
                                                      size_t key_len,
                                                      const ratelimit_redis_permit *permit,
                                                      uint64_t ttl_ms);

/* ---- >>locks --------------------------------------------------------------------------------- */

/* A lock that is held. What it guarantees: while Redis keeps its data, at most one holder at a
 * time. What loses it: a failover (Redis replicates after it answers), a crash without persistence,
 * an eviction, FLUSHALL, and a holder that is stopped for longer than its time and does not notice.
 * So what the lock protects should refuse a fence smaller than one that it has seen; only that
 * makes it safe:
 *
 *     UPDATE account SET balance = ?, fence = ? WHERE id = ? AND fence <= ?
 *
 * The fence is larger at each lock, unless a failover loses lock and fence and the new master's
 * clock is behind the old one's. Not fair, not reentrant; two threads are strangers to each other.
 *
 * options.wait_replicas sends WAIT with the lock. Then a failover to a replica that answered keeps
 * the lock, and a master that is cut off from its replicas gives none. What that does not close:
 * another replica may be promoted; a replica has it in memory, so a crash of both without
 * persistence loses it; evictions; a holder that is stopped. Only the fence closes those. */
typedef struct ratelimit_redis_held {
    char owner[33]; /* 128 random bits, in hex */
    uint64_t fence;
    uint64_t valid_until_ns; /* ratelimit_clock_ns; counted from before the request was sent, less
                                1 % and 2 ms of clock drift */
} ratelimit_redis_held;

/* ratelimit_redis_lock  Takes the lock named key.
 *
 * ttl_ms       1 to 2^42: it is free again by then, whatever happens
 * max_wait_ms  0: BUSY at once; else asks again after pauses of up to 100 ms with jitter, then
 *              TIMEOUT. Waiting outlives failures: if the answer was lost, this owner still has it
 *
 * OK and *held; BUSY, TIMEOUT, BAD_KEY (also a key that begins with '}'), BAD_ARGUMENT.
 * STORE_FAILED (at once, or when the wait ended with a failure, or with too few replicas): treat it
 * as not held; unlock later, which does no harm, or nobody may have it until its time is over. */
RATELIMIT_API ratelimit_status ratelimit_redis_lock(ratelimit_redis *r, const void *key,
                                                    size_t key_len, uint64_t ttl_ms,
                                                    uint64_t max_wait_ms,
                                                    ratelimit_redis_held *held);

/* ratelimit_redis_unlock  OK; LOST if it was not ours any more, which harms nobody. */
RATELIMIT_API ratelimit_status ratelimit_redis_unlock(ratelimit_redis *r, const void *key,
                                                      size_t key_len, ratelimit_redis_held *held);

/* ratelimit_redis_renew  It now ends ttl_ms (1 to 2^42) from now. OK; LOST if it was not ours any
 * more: it is not taken again, and is no longer valid. STORE_FAILED: as it was. */
RATELIMIT_API ratelimit_status ratelimit_redis_renew(ratelimit_redis *r, const void *key,
                                                     size_t key_len, ratelimit_redis_held *held,
                                                     uint64_t ttl_ms);

/* ratelimit_redis_valid_ns  How long held is sure to be ours still, without asking; 0: not any
 * more. */
RATELIMIT_API uint64_t ratelimit_redis_valid_ns(const ratelimit_redis_held *held);

#  if defined(RATELIMIT_REDIS_KEEPER)
/* ratelimit_redis_keep  Starts a thread that renews held every third of ttl_ms, until
 * ratelimit_redis_keep_stop, or until it is lost: then lost(self) is called once, from that thread,
 * as soon as the server says so, or when its time is over, at most timeout_ms later.
 * key and held must stay where they are; read held only by ratelimit_redis_keep_valid_ns meanwhile.
 * NULL if there is no memory or thread, or an argument is bad. */
typedef struct ratelimit_redis_keeper ratelimit_redis_keeper;
RATELIMIT_API ratelimit_redis_keeper *ratelimit_redis_keep(ratelimit_redis *r, const void *key,
                                                           size_t key_len,
                                                           ratelimit_redis_held *held,
                                                           uint64_t ttl_ms,
                                                           void (*lost)(void *self), void *self);

/* ratelimit_redis_keep_valid_ns  As ratelimit_redis_valid_ns, of a lock that is being kept. */
RATELIMIT_API uint64_t ratelimit_redis_keep_valid_ns(ratelimit_redis_keeper *keeper);

/* ratelimit_redis_keep_stop  Ends the thread and frees keeper; the lock stays. True if it was not
 * lost. Not from within lost. NULL is allowed. */
RATELIMIT_API bool ratelimit_redis_keep_stop(ratelimit_redis_keeper *keeper);
#  endif

#  if defined(RATELIMIT_REDIS_ASYNC)
/* ---- >>asynchronous -------------------------------------------------------------------------- */

/* ratelimit_redis_async  The same decisions for a program with an event loop: see ASYNCHRONOUS. */
typedef struct ratelimit_redis_async ratelimit_redis_async;

/* The loop it runs on. Zero it, then set what you need. */
typedef struct ratelimit_redis_loop {
    /* Must be set: tells the loop what to watch the socket fd for: READ, WRITE, both, or 0: nothing
     * any more, because it is closed next. *yours is NULL at first, and what the loop has for fd.
     * Returns 0, else the connection is given up. When fd is ready, call ready (not from here). */
    int (*watch)(void *self, int fd, unsigned events, void **yours);
    /* Starts a timer of the loop, or starts it again: when it fires, once, call tick (not from
     * here). after_ns may be 0, also while tick runs: libuv wants at least a ms then, see
     * tests/redis/test_async.c. NULL: the caller calls tick by itself. */
    void (*timer)(void *self, uint64_t after_ns);
    void *self;
    uint32_t max_requests; /* 0: 10,000; most under way at once */
    /* NULL, or its failure policy, shadow mode, hook and counters apply to each answer, as to those
     * of ratelimit_take. Zero it and set these options; its store is not used, so ratelimit_init
     * need not be called. */
    ratelimit_limiter *limiter;
    /* NULL, or a tier in front: what its table knows is answered without Redis (refusals, leases,
     * and all while Redis fails, if nodes is set). Zero it and set its table and options; its store
     * is not used. */
    ratelimit_tier *tier;
} ratelimit_redis_loop;

/* ratelimit_redis_answers  Is called once for each call of take, take_each or take_all that
 * returned OK, with as many results as there were requests, in their order; never from within that
 * call. It may call anything here but tick. res is gone when it returns. */
typedef void (*ratelimit_redis_answers)(void *self, const ratelimit_result *res, size_t count);

/* ratelimit_redis_async_open  Makes a handle. Nothing is sent yet.
 *
 * options  as for ratelimit_redis_open, but pool_size is not used: there is one connection to a
 *          server, or to each node of a cluster
 * loop     copied
 * status   may be NULL; as for ratelimit_redis_open; BAD_ARGUMENT too if there is no watch, the
 *          limiter's on_failure is unknown or RATELIMIT_FAIL_LOCAL without a fallback, or the tier
 *          has no table */
RATELIMIT_API ratelimit_redis_async *
ratelimit_redis_async_open(const ratelimit_redis_options *options, const ratelimit_redis_loop *loop,
                           ratelimit_status *status_or_null);

/* ratelimit_redis_async_open_url  The same for a server that is told as a URL, see
 * ratelimit_redis_open_url. */
RATELIMIT_API ratelimit_redis_async *
ratelimit_redis_async_open_url(const char *url, const ratelimit_redis_options *options_or_null,
                               const ratelimit_redis_loop *loop, ratelimit_status *status_or_null);

/* ratelimit_redis_async_take  Sends a request, of any op, and calls answers(self, ...) with its
 * result: as ratelimit_redis_store would decide, within timeout_ms. Request, key and limit are
 * copied.
 *
 * OK: answers will be called. Else it is not: BUSY (max_requests are under way), NO_MEMORY,
 * BAD_ARGUMENT (NULL; no requests or more than max_requests), CANCELED (closed). Mistakes in the
 * request itself are in its result. */
RATELIMIT_API ratelimit_status ratelimit_redis_async_take(ratelimit_redis_async *a,
                                                          const ratelimit_request *req,
                                                          ratelimit_redis_answers answers,
                                                          void *self);

/* ratelimit_redis_async_take_each  The same for count requests, each decided for itself, sent
 * together; answers is called when the last is decided. */
RATELIMIT_API ratelimit_status ratelimit_redis_async_take_each(ratelimit_redis_async *a,
                                                               const ratelimit_request *req,
                                                               size_t count,
                                                               ratelimit_redis_answers answers,
                                                               void *self);

/* ratelimit_redis_async_take_all  The same, all or none, as ratelimit_take_all; at most
 * RATELIMIT_MAX_ALL. */
RATELIMIT_API ratelimit_status ratelimit_redis_async_take_all(ratelimit_redis_async *a,
                                                              const ratelimit_request *req,
                                                              size_t count,
                                                              ratelimit_redis_answers answers,
                                                              void *self);

/* ratelimit_redis_async_ready  The socket fd, which the loop was told to watch, is ready for events
 * (READ for an error, too). Does what can be done and calls answers. Nothing happens if it was not
 * ready, or is not watched any more. */
RATELIMIT_API void ratelimit_redis_async_ready(ratelimit_redis_async *a, int fd, unsigned events);

/* ratelimit_redis_async_tick  Ends what is too late, tries again what had to wait, and calls
 * answers that needed no server. now_ns: of ratelimit_clock_ns. */
RATELIMIT_API void ratelimit_redis_async_tick(ratelimit_redis_async *a, uint64_t now_ns);

/* ratelimit_redis_async_next_deadline  When tick is to be called next (ratelimit_clock_ns); 0: at
 * once; RATELIMIT_FOREVER: not before the next take. */
RATELIMIT_API uint64_t ratelimit_redis_async_next_deadline(const ratelimit_redis_async *a);

/* ratelimit_redis_async_under_way  How many requests await their answers. */
RATELIMIT_API size_t ratelimit_redis_async_under_way(const ratelimit_redis_async *a);

/* ratelimit_redis_async_stats  As ratelimit_redis_stats; only the thread that uses a. */
RATELIMIT_API void ratelimit_redis_async_stats(ratelimit_redis_async *a,
                                               ratelimit_redis_counts *out);

/* ratelimit_redis_async_error  As ratelimit_redis_error. */
RATELIMIT_API const char *ratelimit_redis_async_error(ratelimit_redis_async *a, char *buf,
                                                      size_t buf_bytes);

/* ratelimit_redis_async_close  Calls answers of what is under way, with CANCELED (it may have been
 * charged), and ends. Within answers: the others follow when it returns. The loop must still be
 * there; its timer may not call tick any more. NULL is allowed. */
RATELIMIT_API void ratelimit_redis_async_close(ratelimit_redis_async *a);
#  endif

#  ifdef __cplusplus
}
#  endif
#endif /* RATELIMIT_REDIS_H_INCLUDED */

/* Only the implementation below. */

#if defined(RATELIMIT_REDIS_IMPLEMENTATION) && !defined(RATELIMIT_REDIS_IMPLEMENTATION_INCLUDED)
#  define RATELIMIT_REDIS_IMPLEMENTATION_INCLUDED

#  if !defined(RATELIMIT_IMPLEMENTATION_INCLUDED)
#    error "RATELIMIT_REDIS_IMPLEMENTATION needs RATELIMIT_IMPLEMENTATION in the same file."
#  endif
#  if defined(__has_include)
#    if !__has_include(<hiredis/hiredis.h>)
#      error "ratelimit_redis.h needs hiredis (Debian: apt-get install libhiredis-dev)."
#    endif
#  endif
#  include <hiredis/hiredis.h>
#  if defined(RATELIMIT_REDIS_TLS)
#    include <openssl/err.h>
#    include <openssl/ssl.h>
#    include <openssl/x509v3.h>
#  endif

#  include <errno.h>
#  include <fcntl.h>
#  include <limits.h>
#  include <netdb.h>
#  include <netinet/in.h>
#  include <netinet/tcp.h>
#  include <poll.h>
#  include <pthread.h>
#  include <stdarg.h>
#  include <stdio.h>
#  include <stdlib.h>
#  include <sys/socket.h>
#  include <sys/un.h>
#  include <time.h>
#  include <unistd.h>

#  if !defined(HIREDIS_MAJOR) || (HIREDIS_MAJOR == 0 && HIREDIS_MINOR < 14)
#    error "ratelimit_redis.h needs hiredis 0.14 or later."
#  endif
#  if defined(__STRICT_ANSI__) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE) &&            \
      !defined(__APPLE__)
#    error "Define _POSIX_C_SOURCE as 200809L before the first #include (or use -std=gnu99)."
#  endif

#  ifdef __cplusplus
#    if defined(__GNUC__)
#      pragma GCC diagnostic push
#      pragma GCC diagnostic ignored "-Wold-style-cast"
#    endif
extern "C" {
#  endif

/* ---- >>implementation: scripts ------------------------------------------------------------------

   What is in Redis, all names with the prefix of the options before them:

       b{alice}9c3f00a1      the bucket of key alice and scope 9c3f00a1 (32 bits in hex)
       w{alice} s{alice}     counters: fixed window, sliding window
       c{alice} p{alice}     semaphores: counted; permits that expire (a sorted set)
       l{alice} f{alice}     a lock, its owner; the last fence

   The letter says what it is, so no key can be mistaken for another thing. The braces make a
   cluster choose the node by the key alone. A key with a hash tag of its own, "{team}:alice", has
   a colon in their place: b:{team}:alice:9c3f00a1. In a bucket's name the last eight digits are the
   scope, whatever is in the key.

   A bucket is a string of bytes, little-endian:

        0-7    last: us of the server's clock at the last change, a double
        8-15   ahead: ns from there until it is full, a double
       16-20   tag: bits 24 to 57 of `rest` in a ratelimit_bucket (interval, window or not, mark of
               the burst, debt on purpose or not), and in the upper six bits the kind:
               0  all of it, 21 bytes
               1  21-23 parts of a ns less one, as in the limit; 24-26 how many of them are ahead
               2  a block: ahead is the time until its end; 21 bytes
               3  0-7 and 8-15 are the two words of a ratelimit_bucket: what is too large for a
                  double, for C alone; 21 bytes
       and if a test gives a clock with parts of a us: two more, ns of `last` beyond them

   redis-cli reads one so (the bytes are shown escaped; PTTL is a little more than the debt):

       EVAL "return {tostring(struct.unpack('<d', redis.call('GET', KEYS[1])))}" 1 ratelimit:b{...

   Scripts add, subtract and compare whole numbers below 2^53, which doubles hold exactly. (A fixed
   window takes one remainder of such numbers, also exact.) Costs and windows come multiplied out;
   replies are debts, from which C makes the answer with the functions that answer for a table. What
   a script can't do it leaves alone and returns the state for C to decide, see swap: another tag
   (a changed limit, a block), or more debt than the limit can have made (the clock was set back).

   What is asked of a bucket is one argument, the terms, because each argument costs the server as
   much as a step of the script. They are narrow, or wide if the limit has a fraction of a ns, is a
   fixed window, or is in one command with such a limit; numbers without a word are doubles:

       narrow  wide
        0-7     0-7    most, the largest debt at which it passes; -1: none
        8-15    8-15   cost
       16-20   16-23   tag of an ordinary debt (wide: and the parts, if there are any)
       21-25   24-31   owed, the same of a debt made on purpose
       26-33   32-39   far, above which an ordinary debt is of another time
       34-41   40-47   window, above which a debt is on purpose; narrow: only if one may be made
               48-56   parts of a ns of most, cost, window, 3 bytes each
               57-59   how many parts a ns has, less one
               60-67   period of a fixed window in us, 0 of a token bucket
               68      is there if a debt on purpose may be made

   Beside them low, high, now, nanos: bounds of the time to live in ms, and for tests us and ns of
   the time; all absent (take) or empty in normal use. Expiry: SET PX with the ms until full,
   rounded, and 2. Clock: TIME of the server.

   On the wire the take of the quick start (5 a minute, burst 10) is this, in one write; each word
   and each argument ends with CR LF, and bytes that are no text are shown in hex:

       *5 $7 EVALSHA                       a command of five words
       $40 (40 hex digits)                 which script: the SHA-1 of its text
       $1 1                                with one key
       $26 ratelimit:b{alice}e43f92dc      the bucket
       $34 000000384d253942                most: 108 s, all but the cost of the window of 120 s
           000000c00b5a0642                cost: 12 s
           41cb925c00 41cb925c02           tag, and owed, which has the bit of a debt on purpose
           000000949a443e42                far: 130 s, the window and step_ns

   The answer is one number, the debt in ns that was found: ":0" if alice owed nothing, and after a
   first take ":11997321000", 2.7 ms later. C decides from it whether the take has passed, as the
   script did, and what remains. A server that does not know the script answers "-NOSCRIPT ...", and
   the same take goes out once more as EVAL with the script's text.

   Lua 5.4 tells floats from integers: so numbers are printed with %.0f and replies are floored. */

enum {
    RATELIMIT_PRIV_REDIS_TAKE,
    RATELIMIT_PRIV_REDIS_MANY,
    RATELIMIT_PRIV_REDIS_ASK,
    RATELIMIT_PRIV_REDIS_GIVE,
    RATELIMIT_PRIV_REDIS_SWAP,
    RATELIMIT_PRIV_REDIS_COUNT,
    RATELIMIT_PRIV_REDIS_SLIDE,
    RATELIMIT_PRIV_REDIS_PLAIN,
    RATELIMIT_PRIV_REDIS_PERMIT,
    RATELIMIT_PRIV_REDIS_RETURN,
    RATELIMIT_PRIV_REDIS_EXTEND,
    RATELIMIT_PRIV_REDIS_LOCK,
    RATELIMIT_PRIV_REDIS_OWNED,
    RATELIMIT_PRIV_REDIS_SCRIPTS
};

/* clang-format off */

/* What scripts have in common. */
#  define RATELIMIT_PRIV_LUA_TIME                                                                  \
    "local time = redis.call('TIME')\n"                                                            \
    "local now = time[1] * 1000000 + time[2]\n"
#  define RATELIMIT_PRIV_LUA_NOW                                                                   \
    "if not now then\n"                                                                            \
    "  local time = redis.call('TIME')\n"                                                          \
    "  now = time[1] * 1000000 + time[2]\n"                                                        \
    "end\n"
#  define RATELIMIT_PRIV_LUA_BOUNDS                                                                \
    "local low, high, now, nanos = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]) or 0\n"  \
    "local pack, unpack, format, floor = struct.pack, struct.unpack, string.format, math.floor\n"  \
    RATELIMIT_PRIV_LUA_NOW                                                                         \
    "local function put(key, state, ahead)\n"                                                      \
    "  local ttl = ahead / 1000000 + 2\n"                                                          \
    "  if low ~= '' then\n"                                                                        \
    "    ttl = math.min(math.max(ttl, low + 0), high + 0)\n"                                       \
    "  end\n"                                                                                      \
    "  if nanos > 0 then\n"                                                                        \
    "    state = state .. pack('<I2', nanos)\n"                                                    \
    "  end\n"                                                                                      \
    "  return redis.pcall('SET', key, state, 'PX', format('%.0f', ttl))\n"                         \
    "end\n"
/* Is an ordinary debt, full in a ns, of another time? In a fixed window it may reach to a window
 * beyond the end of the one that now + far is in. */
#  define RATELIMIT_PRIV_LUA_FAR                                                                   \
    "local function is_far(a, period, far, window)\n"                                              \
    "  if period == 0 then\n"                                                                      \
    "    return a > far\n"                                                                         \
    "  end\n"                                                                                      \
    "  local us = now + floor((nanos + far) / 1000)\n"                                             \
    "  return a - far - (period - us % period) * 1000 + (nanos + far) % 1000 > window\n"           \
    "end\n"
#  define RATELIMIT_PRIV_LUA_PURGE                                                                 \
    "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))\n"
#  define RATELIMIT_PRIV_LUA_EXPIRE                                                                \
    "local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')\n"                           \
    "redis.call('PEXPIRE', KEYS[1], string.format('%.0f', (last[2] - now) / 1000 + 2))\n"
#  define RATELIMIT_PRIV_LUA_COUNTER                                                               \
    "local used = tonumber(redis.call('GET', KEYS[1]) or '0')\n"                                   \
    "if not used then\n"                                                                           \
    "  return {err = 'WRONGTYPE not a counter'}\n"                                                 \
    "end\n"                                                                                        \
    "used = math.min(used, 9007199254740992)\n"

static const char *const ratelimit_priv_redis_script[RATELIMIT_PRIV_REDIS_SCRIPTS] = {
    /* take: one token bucket without a fraction. Also peek, reserve, charge.
       KEYS   the key
       ARGV   terms; [low, high, now, nanos]
       reply  the debt before, ns; or {state, now} */
    "local v = redis.call('GET', KEYS[1])\n"
    "local args, now, nanos = ARGV, nil, nil\n"
    "if args[2] then\n"
    "  now, nanos = tonumber(args[4]), args[5] + 0\n"
    "end\n" RATELIMIT_PRIV_LUA_NOW
    "local terms = args[1]\n"
    "local most, cost, tag = struct.unpack('<ddc5', terms)\n"
    "local a, owes = 0, #terms > 34\n"
    "if v then\n"
    "  local last, ahead, of = struct.unpack('<ddc5', v)\n"
    "  a = ahead - (now - last) * 1000 - (nanos or 0)\n"
    "  if of ~= tag or a > most or owes then\n"
    "    local owed, far = struct.unpack('<c5d', terms, 22)\n"
    "    if of == tag and a > far or of ~= tag and (of ~= owed or last > now) then\n"
    "      return {v, now}\n"
    "    end\n"
    "  end\n"
    "  if a < 0 then\n"
    "    a = 0\n"
    "  end\n"
    "end\n"
    "if a > most then\n"
    "  return math.floor(a)\n"
    "end\n"
    "local ahead = a + cost\n"
    "if owes and ahead > struct.unpack('<d', terms, 35) then\n"
    "  tag = struct.unpack('<c5', terms, 22)\n"
    "end\n"
    "local ttl, state = ahead / 1000000 + 2, struct.pack('<ddc5', now, ahead + (nanos or 0), tag)\n"
    "if nanos then\n"
    "  ttl = math.min(math.max(ttl, args[2] + 0), args[3] + 0)\n"
    "  state = nanos > 0 and state .. struct.pack('<I2', nanos) or state\n"
    "end\n"
    "redis.call('SET', KEYS[1], state, 'PX', string.format('%.0f', ttl))\n"
    "return math.floor(a)\n",
    /* many: the same for several, each for itself and in order; one that fails does not touch the
       others.
       KEYS   the keys
       ARGV   low, high, now, nanos (may be empty); then terms, for all or for each key
       reply  for each what take says, or its error */
    RATELIMIT_PRIV_LUA_BOUNDS
    "local get = redis.pcall\n"
    "local most, cost, tag, owed, far, window\n"
    "local reply, each = {}, #ARGV > 5\n"
    "for i, key in ipairs(KEYS) do\n"
    "  if each or i == 1 then\n"
    "    local terms = ARGV[4 + i]\n"
    "    most, cost, tag, owed, far = unpack('<ddc5c5d', terms)\n"
    "    window = #terms > 34 and unpack('<d', terms, 35)\n"
    "  end\n"
    "  local v, a, said = get('GET', key), 0, nil\n"
    "  if v and v.err then\n"
    "    said = v\n"
    "  elseif v and #v < 21 then\n"
    "    said = {err = 'ERR data string too short'}\n"
    "  elseif v then\n"
    "    local last, ahead, of = unpack('<ddc5', v)\n"
    "    a = ahead - (now - last) * 1000 - nanos\n"
    "    if not (of == tag and a <= far or of == owed and last <= now) then\n"
    "      said = {v, now}\n"
    "    elseif a < 0 then\n"
    "      a = 0\n"
    "    end\n"
    "  end\n"
    "  if not said and a <= most then\n"
    "    local ahead = a + cost\n"
    "    local mine = window and ahead > window and owed or tag\n"
    "    v = put(key, pack('<ddc5', now, ahead + nanos, mine), ahead)\n"
    "    if v.err then\n"
    "      said = v\n"
    "    end\n"
    "  end\n"
    "  reply[i] = said or floor(a)\n"
    "end\n"
    "return reply\n",
    /* ask: takes, peeks, reserves and charges of one or more keys, all or none, any limit.
       KEYS   the keys, none twice, one slot
       ARGV   low, high, now, nanos (may be empty); then terms for each key (a cost of 0 is not
              written), all of them wide if there is a fraction or a window among them
       reply  the time until full of each before, ns; or {now, ns, parts, ns, parts, ...} if they
              are wide; or {'', now, state, ...} */
    RATELIMIT_PRIV_LUA_BOUNDS RATELIMIT_PRIV_LUA_FAR
    "local wide, state, reply, new, left = #ARGV[5] > 42, {}, {}, {}, {}\n"
    "local rare, refused = false, false\n"
    "if wide then\n"
    "  reply[1] = now\n"
    "end\n"
    "for i, key in ipairs(KEYS) do\n"
    "  local v, terms, a, f = redis.call('GET', key), ARGV[4 + i], 0, 0\n"
    "  local form = wide and '<ddc8c8dd' or '<ddc5c5d'\n"
    "  local most, cost, tag, owed, far, window = unpack(form, terms)\n"
    "  local owes, spare, some, part, parts, period, to_end = #terms > 34, 0, 0, 0, 1, 0, 0\n"
    "  if wide then\n"
    "    owes, spare, some, part, parts, period = #terms > 68, unpack('<I3I3I3I3d', terms, 49)\n"
    "    parts = parts + 1\n"
    "    if parts == 1 then\n"
    "      tag, owed = unpack('<c5', tag), unpack('<c5', owed)\n"
    "    end\n"
    "    if period > 0 then\n"
    "      to_end = (period - now % period) * 1000 - nanos\n"
    "    end\n"
    "  elseif owes then\n"
    "    window = unpack('<d', terms, 35)\n"
    "  end\n"
    "  state[i] = v\n"
    "  if v then\n"
    "    local last, ahead, of = now, 0, ''\n"
    "    if parts == 1 then\n"
    "      last, ahead, of = unpack('<ddc5', v)\n"
    "    elseif #v >= 27 then\n"
    "      last, ahead, of, f = unpack('<ddc8I3', v)\n"
    "    end\n"
    "    a = ahead - (now - last) * 1000 - nanos\n"
    "    if of == tag then\n"
    "      rare = rare or ((owes or a - to_end > most) and is_far(a, period, far, window))\n"
    "    elseif of ~= owed or last > now then\n"
    "      rare = true\n"
    "    end\n"
    "    if a < 0 then\n"
    "      a, f = 0, 0\n"
    "    end\n"
    "  end\n"
    "  if wide then\n"
    "    reply[2 * i] = floor(a)\n"
    "    reply[2 * i + 1] = f\n"
    "  else\n"
    "    reply[i] = floor(a)\n"
    "  end\n"
    "  a = a - to_end\n"
    "  if a < 0 then\n"
    "    a, f = 0, 0\n"
    "  end\n"
    "  if a > most or (a == most and f > spare) then\n"
    "    refused = true\n"
    "  end\n"
    "  a, f = a + cost, f + some\n"
    "  if f >= parts then\n"
    "    a, f = a + 1, f - parts\n"
    "  end\n"
    "  if owes and (a > window or (a == window and f > part)) then\n"
    "    tag = owed\n"
    "  end\n"
    "  if cost > 0 or some > 0 then\n"
    "    left[i] = a + to_end\n"
    "    if parts == 1 then\n"
    "      new[i] = pack('<ddc5', now, left[i] + nanos, tag)\n"
    "    else\n"
    "      new[i] = pack('<ddc8I3', now, left[i] + nanos, tag, f)\n"
    "    end\n"
    "  end\n"
    "end\n"
    "if rare then\n"
    "  reply = {'', now}\n"
    "  for i = 1, #KEYS do\n"
    "    reply[i + 2] = state[i] or ''\n"
    "  end\n"
    "  return reply\n"
    "end\n"
    "if refused then\n"
    "  return reply\n"
    "end\n"
    "for i, key in ipairs(KEYS) do\n"
    "  local said = new[i] and put(key, new[i], left[i])\n"
    "  if said and said.err then\n"
    "    return said\n"
    "  end\n"
    "end\n"
    "return reply\n",
    /* give: refund, cancel, take_up_to and block of one key.
       KEYS   the key
       ARGV   low, high, now, nanos (may be empty); wide terms; a block's tag; what to do; then
              spans as ns and parts: 'back': the debt above which nothing is given back, the cost;
              'up_to': the cost of all, then that of one or, with a fraction, of 2^k from the most
              down to one; 'block': how long, the debt above which no token is there, how long the
              state is kept after the block
       reply  {ns until full, parts, now} before; block: {ns until its end, 0, now}; or {state, now}
       A block is not shorter than the time until a token is there, nor than one before it. */
    RATELIMIT_PRIV_LUA_BOUNDS RATELIMIT_PRIV_LUA_FAR
    "local v, terms, what = redis.call('GET', KEYS[1]), ARGV[5], ARGV[7]\n"
    "local a, f, to_end, was, left = 0, 0, 0, false, 0\n"
    "local _, _, tag, owed, far, window = unpack('<ddc8c8dd', terms)\n"
    "local _, _, part, parts, period = unpack('<I3I3I3I3d', terms, 49)\n"
    "parts = parts + 1\n"
    "if parts == 1 then\n"
    "  tag, owed = unpack('<c5', tag), unpack('<c5', owed)\n"
    "end\n"
    "if period > 0 then\n"
    "  to_end = (period - now % period) * 1000 - nanos\n"
    "end\n"
    "if v then\n"
    "  local last, ahead, of = unpack('<ddc5', v)\n"
    "  if parts > 1 and #v >= 27 then\n"
    "    last, ahead, of, f = unpack('<ddc8I3', v)\n"
    "  end\n"
    "  a = ahead - (now - last) * 1000 - nanos\n"
    "  was = of == owed\n"
    "  if what == 'block' and of == ARGV[6] and last <= now and a > 0 then\n"
    "    a, f, left = 0, 0, a\n"
    "  elseif not (of == tag and not is_far(a, period, far, window) or was and last <= now) then\n"
    "    return {v, now}\n"
    "  elseif a < 0 then\n"
    "    a, f = 0, 0\n"
    "  end\n"
    "end\n"
    "local reply = {floor(a), f, now}\n"
    "a = a - to_end\n"
    "if a < 0 then\n"
    "  a, f = 0, 0\n"
    "end\n"
    "local function minus(a, f, b, g)\n"
    "  if f < g then\n"
    "    return a - 1 - b, f + parts - g\n"
    "  end\n"
    "  return a - b, f - g\n"
    "end\n"
    "local b, g = a, f\n"
    "if what == 'block' then\n"
    "  local over, some = minus(a, f, ARGV[10] + 0, ARGV[11] + 0)\n"
    "  over = over + (some > 0 and 1 or 0)\n"
    "  if over > 0 and period > 0 then\n"
    "    over = to_end + floor((over - 1) / (period * 1000)) * period * 1000\n"
    "  end\n"
    "  left = math.max(left, over, ARGV[8] + 0)\n"
    "  local said = put(KEYS[1], pack('<ddc5', now, left + nanos, ARGV[6]), left + ARGV[12])\n"
    "  return said.err and said or {floor(left), 0, now}\n"
    "elseif what == 'back' then\n"
    "  local later, some = minus(a, f, ARGV[8] + 0, ARGV[9] + 0)\n"
    "  if later < 0 or (later == 0 and some == 0) then\n"
    "    b, g = minus(a, f, ARGV[10] + 0, ARGV[11] + 0)\n"
    "  end\n"
    "  if b < 0 then\n"
    "    b, g = 0, 0\n"
    "  end\n"
    "else\n"
    "  local room, spare = minus(window, part, a, f)\n"
    "  for j = 8, #ARGV, 2 do\n"
    "    local span, of = ARGV[j] + 0, ARGV[j + 1] + 0\n"
    "    if j > 8 and parts == 1 and room > span then\n"
    "      span = room - room % span\n"
    "    end\n"
    "    if span < room or (span == room and of <= spare) then\n"
    "      room, spare = minus(room, spare, span, of)\n"
    "      b, g = b + span, g + of\n"
    "      if g >= parts then\n"
    "        b, g = b + 1, g - parts\n"
    "      end\n"
    "      if j == 8 then\n"
    "        break\n"
    "      end\n"
    "    end\n"
    "  end\n"
    "end\n"
    "if b == a and g == f then\n"
    "  return reply\n"
    "end\n"
    "if b == 0 and g == 0 and period > 0 then\n"
    "  redis.call('DEL', KEYS[1])\n"
    "  return reply\n"
    "end\n"
    "local ahead, said = b + to_end, nil\n"
    "if was and (b > window or (b == window and g > part)) then\n"
    "  tag = owed\n"
    "end\n"
    "if parts == 1 then\n"
    "  said = put(KEYS[1], pack('<ddc5', now, ahead + nanos, tag), ahead)\n"
    "else\n"
    "  said = put(KEYS[1], pack('<ddc8I3', now, ahead + nanos, tag, g), ahead)\n"
    "end\n"
    "return said.err and said or reply\n",
    /* swap: reads states for C to decide, and puts new ones if they are still the same.
       KEYS   the keys, none twice, one slot
       ARGV   now (us, may be empty); then nothing: only read; or for each key the state it must
              have, the new one (both may be empty: none), its time to live in ms
       reply  1: put; or {now, state, ...} */
    "local now = tonumber(ARGV[1])\n" RATELIMIT_PRIV_LUA_NOW
    "local reply = {now}\n"
    "local same = #ARGV > 1\n"
    "for i = 1, #KEYS do\n"
    "  local v = redis.call('GET', KEYS[i]) or ''\n"
    "  reply[i + 1] = v\n"
    "  same = same and v == ARGV[3 * i - 1]\n"
    "end\n"
    "if not same then\n"
    "  return reply\n"
    "end\n"
    "for i = 1, #KEYS do\n"
    "  local put = ARGV[3 * i]\n"
    "  if put == '' then\n"
    "    redis.call('DEL', KEYS[i])\n"
    "  elseif put ~= ARGV[3 * i - 1] then\n"
    "    redis.call('SET', KEYS[i], put, 'PX', ARGV[3 * i + 1])\n"
    "  end\n"
    "end\n"
    "return 1\n",
    /* count: a fixed window that starts at its first use.
       KEYS   the counter
       ARGV   most; n; period in ms
       reply  {1: counted, 0: not; used before; ms left}
       Expiry: the window's end; a counter that lost it (PTTL -1) gets a whole period. Clock: Redis'
       own, for expiry. A refusal does not count. */
    RATELIMIT_PRIV_LUA_COUNTER
    "local left = redis.call('PTTL', KEYS[1])\n"
    "if left == -1 then\n"
    "  redis.call('PEXPIRE', KEYS[1], ARGV[3])\n"
    "  left = ARGV[3] + 0\n"
    "elseif left <= 0 then\n"
    "  used = 0\n"
    "end\n"
    "if used + ARGV[2] - ARGV[1] > 0 then\n"
    "  return {0, math.floor(used), left}\n"
    "end\n"
    "if left <= 0 then\n"
    "  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])\n"
    "  left = ARGV[3] + 0\n"
    "else\n"
    "  redis.call('INCRBY', KEYS[1], ARGV[2])\n"
    "end\n"
    "return {1, math.floor(used), left}\n",
    /* slide: this window and a share of the one before, windows aligned to the server's clock.
       KEYS   the counter: start of the window in ms, used in it, used in the one before (doubles)
       ARGV   most; n; period in ms; most x period (all products below 2^53)
       reply  {1: counted, 0: not; before that used, used before, ms since the start}
       Expiry: the end of the next window. Clock: TIME. A refusal writes nothing. */
    RATELIMIT_PRIV_LUA_TIME
    "local period, floor = ARGV[3] + 0, math.floor\n"
    "now = floor(now / 1000)\n"
    "local since = now % period\n"
    "local start = now - since\n"
    "local used, before = 0, 0\n"
    "local v = redis.call('GET', KEYS[1])\n"
    "if v then\n"
    "  local at, a, b = struct.unpack('<ddd', v)\n"
    "  if #v ~= 24 or not (a >= 0 and a < 9007199254740992 and b >= 0 and b < 9007199254740992) "
    "then\n" "    return {err = 'WRONGTYPE not a counter'}\n"
    "  end\n"
    "  if at >= start then\n"
    "    used, before = a, b\n"
    "    if at > start then\n"
    "      since, start = 0, at\n"
    "    end\n"
    "  elseif at + period == start then\n"
    "    before = a\n"
    "  end\n"
    "end\n"
    "local reply = {0, floor(used), floor(before), floor(since)}\n"
    "if used + ARGV[2] - ARGV[1] > 0 or\n"
    "    (used + ARGV[2]) * period + before * (period - since) - ARGV[4] > 0 then\n"
    "  return reply\n"
    "end\n"
    "redis.call('SET', KEYS[1], struct.pack('<ddd', start, used + ARGV[2], before), 'PX',\n"
    "  string.format('%.0f', 2 * period - since + 2))\n"
    "reply[1] = 1\n"
    "return reply\n",
    /* plain: a semaphore that only counts.
       KEYS   the counter
       ARGV   most, or 0 to release; time to live in ms
       reply  1; 0: none was free, or none was out
       Expiry: ARGV[2] after the last acquire. Clock: Redis' own. */
    RATELIMIT_PRIV_LUA_COUNTER
    "if ARGV[1] == '0' then\n"
    "  if used > 1 then\n"
    "    redis.call('DECR', KEYS[1])\n"
    "  else\n"
    "    redis.call('DEL', KEYS[1])\n"
    "  end\n"
    "  return used >= 1 and 1 or 0\n"
    "end\n"
    "if used - ARGV[1] >= 0 then\n"
    "  return 0\n"
    "end\n"
    "redis.call('SET', KEYS[1], string.format('%.0f', used + 1), 'PX', ARGV[2])\n"
    "return 1\n",
    /* permit: one more of a semaphore whose permits expire; or the same once more, for one who did
       not hear the first answer.
       KEYS   a sorted set: ids, by the us at which they expire
       ARGV   most; time to live in us; id
       reply  {1 or 0, us until the next one expires (0)}
       Expiry: with the last permit. Clock: TIME. */
    RATELIMIT_PRIV_LUA_TIME
    "if redis.call('ZCARD', KEYS[1]) - ARGV[1] >= 0 then\n"
    "  " RATELIMIT_PRIV_LUA_PURGE
    "  if redis.call('ZCARD', KEYS[1]) - ARGV[1] >= 0 and\n"
    "      not redis.call('ZSCORE', KEYS[1], ARGV[3]) then\n"
    "    local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')\n"
    "    return {0, math.floor(first[2] - now)}\n"
    "  end\n"
    "end\n"
    "redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[3])\n"
    RATELIMIT_PRIV_LUA_EXPIRE
    "return {1, 0}\n",
    /* return: gives permits back.
       KEYS   as permit
       ARGV   ids
       reply  for each id 1: it was out, 0: it was not (any more)
       Clock: TIME. */
    RATELIMIT_PRIV_LUA_TIME RATELIMIT_PRIV_LUA_PURGE
    "local reply = {}\n"
    "for i = 1, #ARGV do\n"
    "  reply[i] = redis.call('ZREM', KEYS[1], ARGV[i])\n"
    "end\n"
    "return reply\n",
    /* extend: a permit lives for so long from now, if it is still out.
       KEYS   as permit
       ARGV   time to live in us; id
       reply  1; 0: it is not out any more
       Expiry, clock: as permit. */
    RATELIMIT_PRIV_LUA_TIME RATELIMIT_PRIV_LUA_PURGE
    "if not redis.call('ZSCORE', KEYS[1], ARGV[2]) then\n"
    "  return 0\n"
    "end\n"
    "redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[1]), ARGV[2])\n"
    RATELIMIT_PRIV_LUA_EXPIRE
    "return 1\n",
    /* lock: for one owner, with a number that is larger each time; or the same once more, for an
       owner who did not hear the first answer.
       KEYS   the lock: its owner; the last number
       ARGV   time to live in ms; time to live of the number in ms; owner
       reply  {1, number}; {0, ms left of the present owner, -1 if that never ends}
       Clock: TIME, so that the number grows also if the last one was lost. */
    "local owner = redis.call('GET', KEYS[1])\n"
    "if owner and owner ~= ARGV[3] then\n"
    "  return {0, redis.call('PTTL', KEYS[1])}\n"
    "end\n"
    "local last = tonumber(redis.call('GET', KEYS[2]) or '0')\n"
    "if not last or last < 0 or last >= 9007199254740991 then\n"
    "  return {err = 'WRONGTYPE not a fence'}\n"
    "end\n"
    "redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[1])\n"
    "if owner and last > 0 then\n"
    "  return {1, math.floor(last)}\n"
    "end\n" RATELIMIT_PRIV_LUA_TIME
    "local number = math.floor(math.max(now, last + 1))\n"
    "redis.call('SET', KEYS[2], string.format('%.0f', number), 'PX', ARGV[2])\n"
    "return {1, number}\n",
    /* owned: unlock, or renew, if the owner still is.
       KEYS   the lock
       ARGV   time to live in ms from now, 0 to unlock; owner
       reply  1; 0: it has another owner, or none
       Renewing sets the time again: it is never added up. */
    "if redis.call('GET', KEYS[1]) ~= ARGV[2] then\n"
    "  return 0\n"
    "end\n"
    "if ARGV[1] == '0' then\n"
    "  return redis.call('DEL', KEYS[1])\n"
    "end\n"
    "return redis.call('PEXPIRE', KEYS[1], ARGV[1])\n",
};

/* clang-format on */

/* ---- >>implementation: structures ------------------------------------------------------------ */

struct ratelimit_priv_redis_call;
struct ratelimit_priv_redis_batch;
struct ratelimit_priv_redis_engine;

typedef struct ratelimit_priv_redis_list {
    struct ratelimit_priv_redis_call *first, *last;
} ratelimit_priv_redis_list;

/* How far a connection has come. */
typedef enum ratelimit_priv_redis_state {
    RATELIMIT_PRIV_REDIS_DEAD,
    RATELIMIT_PRIV_REDIS_NEW,
    RATELIMIT_PRIV_REDIS_DIALING,
    RATELIMIT_PRIV_REDIS_LOGIN, /* TLS, then the replies to the login */
    RATELIMIT_PRIV_REDIS_READY
} ratelimit_priv_redis_state;

typedef struct ratelimit_priv_redis_conn {
    struct ratelimit_priv_redis_conn *next; /* in the list of its engine, or of its node */
    struct ratelimit_priv_redis_engine
        *engine; /* that uses it; NULL: it is in a list of its node */
    struct ratelimit_priv_redis_node *node;
    ratelimit_priv_redis_state state;
    int fd;
    struct addrinfo *addresses, *address; /* of the node; the next to be tried */
    redisReader *reader;
    char *out;                        /* commands to be sent */
    size_t out_len, out_at, out_room; /* out_at: so much was sent */
    uint64_t built, gone;             /* bytes of commands that were put in it, and sent */
    ratelimit_priv_redis_list waiting, sent;
    uint64_t since_ns;   /* it was dialed */
    uint64_t until, end; /* when this address, when all have had their time */
    uint64_t heard_ns;   /* last reply, or given back */
    unsigned login;      /* steps of the login whose replies are to come, a bit for each */
    unsigned watched;    /* events that the loop was told of */
    void *yours;         /* what the loop has for it */
    bool again;          /* the login was tried a second time */
    bool redo;           /* it is to be */
    bool proven;         /* it has answered a request */
    bool retired;        /* of no use for others */
    bool no_memory;      /* out is not whole */
#  if defined(RATELIMIT_REDIS_TLS)
    struct ratelimit_priv_redis_tls *tls;
#  endif
} ratelimit_priv_redis_conn;

typedef struct ratelimit_priv_redis_node {
    struct ratelimit_priv_redis_node *next;
    char *host;
    int port;
    ratelimit_priv_redis_conn *idle, *half; /* half made */
    uint32_t open;                          /* connections, also idle, half made and in use */
    uint32_t making;                        /* of them being made by somebody */
    uint32_t asked;                         /* for the map */
    bool seed;                              /* the options name it */
    bool known;                             /* the map names it */
    bool down, probing;                     /* failed; somebody tries it */
    bool struck;                            /* a call got no answer since it last answered one */
    uint64_t heard_ns, down_until;          /* ratelimit_clock_ns */
    uint64_t refuses_until; /* it said that the cluster is down; until then believed */
    char why[256];          /* what to say while it is left alone */
} ratelimit_priv_redis_node;

struct ratelimit_redis {
    pthread_mutex_t lock;               /* for all below; never held during I/O */
    pthread_cond_t freed;               /* a connection was given back */
    ratelimit_priv_redis_conn *dropped; /* to be closed when the lock is let go */
    pid_t pid;
    ratelimit_priv_redis_node *nodes;  /* first those of the options */
    ratelimit_priv_redis_node **slots; /* the master of each: see >>implementation: map */
    bool mapped, mapping;
    bool apart;      /* keys may not be in one command: the server, or who is between, said so */
    uint64_t map_at; /* ratelimit_clock_ns, when the map was last asked for */
    uint64_t mix;    /* of chance */
    char error[256];
    ratelimit_redis_counts counts; /* without the lock; last_success_ms: ratelimit_clock_ns */
    /* Not changed after open. */
    ratelimit_redis_options o; /* with the defaults that are not 0; its texts are in `texts` */
    char *texts;
    size_t prefix_len;
    uint64_t connect_timeout_ns, timeout_ns, cool_down_ns, max_idle_ns;
#  if defined(RATELIMIT_REDIS_TLS)
    SSL_CTX *tls;
#  endif
    char sha[RATELIMIT_PRIV_REDIS_SCRIPTS][41];
};

/* Counters by their place in ratelimit_redis_counts, and what a call failed of. */
enum {
    RATELIMIT_PRIV_REDIS_CALLS,
    RATELIMIT_PRIV_REDIS_TRIPS,
    RATELIMIT_PRIV_REDIS_FAILED,
    RATELIMIT_PRIV_REDIS_CONNECTS = 7
};
typedef enum ratelimit_priv_redis_cause {
    RATELIMIT_PRIV_REDIS_UNREACHED,
    RATELIMIT_PRIV_REDIS_BUSY,
    RATELIMIT_PRIV_REDIS_LOST,
    RATELIMIT_PRIV_REDIS_LATE,
    RATELIMIT_PRIV_REDIS_REFUSED
} ratelimit_priv_redis_cause;

/* One command with one reply, on its way through connections, redirections and the script cache. */
typedef struct ratelimit_priv_redis_call {
    /* Appends the command to conn. */
    void (*build)(struct ratelimit_priv_redis_call *call, ratelimit_priv_redis_conn *conn);
    /* Takes a reply that is no error. False: build and send again. */
    bool (*answer)(struct ratelimit_priv_redis_call *call, const redisReply *reply);
    ratelimit_redis *r;
    struct ratelimit_priv_redis_batch *batch; /* it is a part of; NULL: of none */
    struct ratelimit_priv_redis_call *next;
    ratelimit_priv_redis_list *list; /* it is in */
    ratelimit_priv_redis_conn *conn; /* it waits for, or was sent on */
    ratelimit_priv_redis_node *node;
    uint64_t deadline;
    uint64_t at_ns;   /* when it was sent, or may try again */
    uint64_t at_byte; /* of what was built on conn, where it begins */
    uint32_t slot;    /* in a cluster: of its keys */
    uint32_t many;    /* so many, from this on, were sent as one command; 0: with one before */
    uint32_t hops, rests, readonly;
    ratelimit_priv_redis_cause cause;
    bool any;          /* every server can answer it: it asks for the map */
    bool eval;         /* send the script itself */
    bool asking;       /* the slot is on its way to node */
    bool skip;         /* the reply to ASKING comes first */
    bool probe;        /* tries a node that failed */
    bool looked;       /* its node was down, so the map was asked for */
    bool login;        /* the server did not know who we are; tried once more */
    bool cool;         /* the cluster is down */
    bool apart;        /* not to be merged with others */
    bool urgent;       /* asked also while the node is left alone */
    bool pause;        /* set by answer: wait some ms before sending again */
    bool done, failed; /* failed: the error text says why */
} ratelimit_priv_redis_call;

/* Who drives calls: a thread until all of its are done, or an event loop. See >>implementation:
 * engine. */
typedef struct ratelimit_priv_redis_engine {
    ratelimit_redis *r;
    ratelimit_priv_redis_conn *conns; /* in use, or dead and to be freed */
    uint32_t count;                   /* of those that are not dead */
    ratelimit_priv_redis_list resting;
    ratelimit_priv_redis_list wanting; /* a connection, while all of the pool are in use */
    uint64_t rest_ns;                  /* none of those that rest may try again earlier */
    uint64_t start_ns, deadline;       /* of a thread's calls */
    size_t left;                       /* calls that are not done, but for map */
    bool succeeded;                    /* one of them was answered */
    ratelimit_priv_redis_call map;
    uint32_t map_tries;
    bool (*watch)(struct ratelimit_priv_redis_engine *e, ratelimit_priv_redis_conn *conn);
} ratelimit_priv_redis_engine;

static void ratelimit_priv_redis_count(ratelimit_redis *r, unsigned place)
{
    ratelimit_priv_add64((uint64_t *)&r->counts + place, 1);
}

/* What began at start_ns is over. */
static void ratelimit_priv_redis_count_time(ratelimit_redis *r, uint64_t start_ns, bool succeeded)
{
    uint64_t now = ratelimit_clock_ns();
    ratelimit_priv_add64(&r->counts.waited_ns, now - start_ns);
    if (succeeded)
        ratelimit_priv_store64(&r->counts.last_success_ms, now);
}

/* ---- >>implementation: text ------------------------------------------------------------------ */

#  if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#  endif
static void
ratelimit_priv_redis_say(ratelimit_redis *r, const char *format, ...)
{
    char text[sizeof r->error];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&r->lock);
    memcpy(r->error, text, sizeof text);
    pthread_mutex_unlock(&r->lock);
}

/* why, and before it where; of a long name the beginning, so that the reason is whole. */
static void ratelimit_priv_redis_at(const ratelimit_redis *r, const ratelimit_priv_redis_node *node,
                                    const char *why, char *text, size_t text_bytes)
{
    int len = r->o.unix_path
                  ? snprintf(text, text_bytes, "%s: %s", r->o.unix_path, why)
                  : snprintf(text, text_bytes, "%.80s:%d: %s", node->host, node->port, why);
    if (len < 0)
        text[0] = 0;
}

static void ratelimit_priv_redis_say_at(ratelimit_redis *r, const ratelimit_priv_redis_node *node,
                                        const char *why)
{
    char text[sizeof r->error];
    ratelimit_priv_redis_at(r, node, why, text, sizeof text);
    ratelimit_priv_redis_say(r, "%s", text);
}

/* What an error reply means for us. */
typedef enum ratelimit_priv_redis_fault {
    RATELIMIT_PRIV_REDIS_FAIL, /* this call fails */
    RATELIMIT_PRIV_REDIS_COOL, /* so will others for a while */
    RATELIMIT_PRIV_REDIS_NOSCRIPT,
    RATELIMIT_PRIV_REDIS_MOVED,
    RATELIMIT_PRIV_REDIS_TO_ASK,
    RATELIMIT_PRIV_REDIS_LATER,      /* may pass in some ms */
    RATELIMIT_PRIV_REDIS_LATER_COOL, /* the same; if not, leave it alone for a while */
    RATELIMIT_PRIV_REDIS_READONLY,
    RATELIMIT_PRIV_REDIS_STRANGER /* it does not know who we are */
} ratelimit_priv_redis_fault;

static const struct {
    const char *code;
    ratelimit_priv_redis_fault fault;
    const char *text;
} ratelimit_priv_redis_faults[] = {
    {"NOSCRIPT", RATELIMIT_PRIV_REDIS_NOSCRIPT, "Redis keeps forgetting the script"},
    {"MOVED", RATELIMIT_PRIV_REDIS_MOVED, "the slot moves about"},
    {"ASK", RATELIMIT_PRIV_REDIS_TO_ASK, "the slot moves about"},
    {"TRYAGAIN", RATELIMIT_PRIV_REDIS_LATER, "the slot is being moved to another node"},
    {"CLUSTERDOWN", RATELIMIT_PRIV_REDIS_LATER_COOL,
     "the cluster is down: some slots have no master"},
    {"READONLY", RATELIMIT_PRIV_REDIS_READONLY,
     "the server is a replica and takes no writes: point at the master"},
    {"LOADING", RATELIMIT_PRIV_REDIS_COOL, "Redis is still loading its data from disk"},
    {"MASTERDOWN", RATELIMIT_PRIV_REDIS_COOL, "the server is a replica that lost its master"},
    {"BUSY", RATELIMIT_PRIV_REDIS_COOL, "Redis is busy with somebody's long script"},
    {"OOM", RATELIMIT_PRIV_REDIS_FAIL, "Redis has reached its maxmemory and may not evict"},
    {"MISCONF", RATELIMIT_PRIV_REDIS_FAIL, "Redis takes no writes because it can't save to disk"},
    {"NOREPLICAS", RATELIMIT_PRIV_REDIS_FAIL, "Redis takes no writes without enough replicas"},
    {"NOAUTH", RATELIMIT_PRIV_REDIS_STRANGER, "Redis wants a password: set options.password"},
    {"WRONGPASS", RATELIMIT_PRIV_REDIS_STRANGER, "Redis does not accept this user and password"},
    {"NOPERM", RATELIMIT_PRIV_REDIS_FAIL,
     "this user lacks permissions for the command or the key: see LIMITS"},
    {"can't run this command", RATELIMIT_PRIV_REDIS_FAIL, /* Redis 7.0, within a script */
     "this user lacks permissions for a command of the script: see LIMITS"},
    {"WRONGTYPE", RATELIMIT_PRIV_REDIS_FAIL,
     "the key holds something else: choose a prefix that nobody uses"},
    {"CROSSSLOT", RATELIMIT_PRIV_REDIS_FAIL, "the keys are not in one slot"},
    {"DENIED", RATELIMIT_PRIV_REDIS_FAIL, "Redis runs in protected mode"},
    {"data string too short", RATELIMIT_PRIV_REDIS_FAIL,
     "the key holds something else: choose a prefix that nobody uses"},
    {"max number of clients", RATELIMIT_PRIV_REDIS_COOL, "Redis has too many clients"},
    {"cluster support disabled", RATELIMIT_PRIV_REDIS_FAIL,
     "the server is no cluster node: options.cluster must be false"},
    {"DB index", RATELIMIT_PRIV_REDIS_FAIL, "Redis has no such database"},
    {"SELECT is not allowed", RATELIMIT_PRIV_REDIS_FAIL, "a cluster has only database 0"},
    {"without any password", RATELIMIT_PRIV_REDIS_FAIL,
     "a password was given, but Redis has none set"},
    {"no password is set", RATELIMIT_PRIV_REDIS_FAIL,
     "a password was given, but Redis has none set"},
    {"invalid password", RATELIMIT_PRIV_REDIS_STRANGER, "Redis does not accept this password"}};

static const char ratelimit_priv_redis_no_answer[] = "no answer in time";
static const char ratelimit_priv_redis_no_master[] = "the server is not the master any more";
static const char ratelimit_priv_redis_no_credentials[] = "options.credentials gave none";

/* What makes us do something is a code at the start. (A replica of Redis 6 and older says it within
 * the error of the script.) What is only put into words may be anywhere. */
static ratelimit_priv_redis_fault ratelimit_priv_redis_fault_of(const char *error,
                                                                const char **text)
{
    const char *inner =
        strncmp(error, "ERR Error running script", 24) == 0 ? strstr(error, ": -") : NULL;
    const char *start = inner ? inner + 3 : error;
    size_t i;
    for (i = 0; i < sizeof ratelimit_priv_redis_faults / sizeof ratelimit_priv_redis_faults[0];
         i++) {
        const char *code = ratelimit_priv_redis_faults[i].code;
        size_t len = strlen(code);
        if (strncmp(start, code, len) == 0
                ? start[len] == ' ' || start[len] == '\0' || strchr(code, ' ')
                : (ratelimit_priv_redis_faults[i].fault == RATELIMIT_PRIV_REDIS_FAIL && len > 5 &&
                   strstr(error, code)) ||
                      (strncmp(error, "ERR ", 4) == 0 && strncmp(error + 4, code, len) == 0)) {
            *text = ratelimit_priv_redis_faults[i].text;
            return ratelimit_priv_redis_faults[i].fault;
        }
    }
    *text = "Redis reports an error";
    return RATELIMIT_PRIV_REDIS_FAIL;
}

/* An error reply in our words and the server's. */
static void ratelimit_priv_redis_words(const char *error, char *words, size_t words_bytes)
{
    const char *text;
    (void)ratelimit_priv_redis_fault_of(error, &text);
    if (snprintf(words, words_bytes, "%s (%.*s)", text, (int)strcspn(error, "\r\n"), error) < 0)
        words[0] = 0;
}

RATELIMIT_API const char *ratelimit_redis_error(ratelimit_redis *r, char *buf, size_t buf_bytes)
{
    size_t len = 0;
    if (!buf || !buf_bytes)
        return "";
    if (r) {
        pthread_mutex_lock(&r->lock);
        len = strlen(r->error);
        len = len < buf_bytes ? len : buf_bytes - 1;
        memcpy(buf, r->error, len);
        pthread_mutex_unlock(&r->lock);
    }
    buf[len] = 0;
    return buf;
}

/* The lowest `digits` digits of value in hex, without a NUL. */
static void ratelimit_priv_redis_hex(char *at, uint64_t value, int digits)
{
    for (; digits; value >>= 4)
        at[--digits] = "0123456789abcdef"[value & 15];
}

/* SHA-1 of a script, in hex: the name by which EVALSHA knows it. */
static void ratelimit_priv_redis_sha1_block(uint32_t *h, const unsigned char *p)
{
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 80; i++) {
        w[i] = w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16];
        w[i] = w[i] << 1 | w[i] >> 31;
    }
    for (i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? (b & c) | (~b & d)
                     : i < 40 ? b ^ c ^ d
                     : i < 60 ? (b & c) | (b & d) | (c & d)
                              : b ^ c ^ d;
        uint32_t k = i < 20   ? UINT32_C(0x5A827999)
                     : i < 40 ? UINT32_C(0x6ED9EBA1)
                     : i < 60 ? UINT32_C(0x8F1BBCDC)
                              : UINT32_C(0xCA62C1D6);
        uint32_t t = (a << 5 | a >> 27) + f + e + k + w[i];
        e = d;
        d = c;
        c = b << 30 | b >> 2;
        b = a;
        a = t;
    }
    h[0] += a;
    h[1] += b;
    h[2] += c;
    h[3] += d;
    h[4] += e;
}

static void ratelimit_priv_redis_sha1(const char *text, char *hex)
{
    uint32_t h[5] = {UINT32_C(0x67452301), UINT32_C(0xEFCDAB89), UINT32_C(0x98BADCFE),
                     UINT32_C(0x10325476), UINT32_C(0xC3D2E1F0)};
    size_t len = strlen(text), at = 0, i;
    unsigned char tail[128];
    for (; len - at >= 64; at += 64)
        ratelimit_priv_redis_sha1_block(h, (const unsigned char *)text + at);
    memset(tail, 0, sizeof tail);
    memcpy(tail, text + at, len - at);
    tail[len - at] = 0x80;
    at = len - at < 56 ? 64 : 128;
    for (i = 0; i < 8; i++)
        tail[at - 1 - i] = (unsigned char)((uint64_t)len * 8 >> (8 * i));
    ratelimit_priv_redis_sha1_block(h, tail);
    if (at == 128)
        ratelimit_priv_redis_sha1_block(h, tail + 64);
    for (i = 0; i < 5; i++)
        ratelimit_priv_redis_hex(hex + 8 * i, h[i], 8);
    hex[40] = 0;
}

/* ---- >>implementation: wire ------------------------------------------------------------------ */

/* ms until deadline for poll, rounded up; 0 if it is over. */
static int ratelimit_priv_redis_left(uint64_t deadline)
{
    uint64_t now = ratelimit_clock_ns(), ms;
    if (now >= deadline)
        return 0;
    ms = (deadline - now - 1) / RATELIMIT_MILLISECOND + 1;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

static uint64_t ratelimit_priv_redis_deadline(const ratelimit_redis *r)
{
    return ratelimit_clock_ns() + r->timeout_ns;
}

/* Where len more bytes may be written; NULL if there is no memory, of which conn then knows. */
static char *ratelimit_priv_redis_room(ratelimit_priv_redis_conn *conn, size_t len)
{
    if (conn->out_room - conn->out_len < len) {
        size_t room = (conn->out_len + len) * 2 + 512;
        char *out = (char *)realloc(conn->out, room);
        if (!out) {
            conn->no_memory = true;
            return NULL;
        }
        conn->out = out;
        conn->out_room = room;
    }
    return conn->out + conn->out_len;
}

static void ratelimit_priv_redis_put(ratelimit_priv_redis_conn *conn, const void *bytes, size_t len)
{
    char *at = ratelimit_priv_redis_room(conn, len);
    if (!at)
        return;
    memcpy(at, bytes, len);
    conn->out_len += len;
}

enum { RATELIMIT_PRIV_REDIS_HEAD = 24 };

/* The digits of value, 20 at most, without a NUL. How many. */
static size_t ratelimit_priv_redis_digits(char *at, uint64_t value)
{
    char back[20];
    size_t len = 0, i = 0;
    do
        back[len++] = (char)('0' + value % 10);
    while (value /= 10);
    while (i < len) {
        at[i] = back[len - 1 - i];
        i++;
    }
    return len;
}

/* kind, size and the end of a line, at most RATELIMIT_PRIV_REDIS_HEAD bytes. How many. */
static size_t ratelimit_priv_redis_head(char *at, char kind, size_t size)
{
    size_t len = 1;
    at[0] = kind;
    len += ratelimit_priv_redis_digits(at + len, size);
    at[len++] = '\r';
    at[len++] = '\n';
    return len;
}

static void ratelimit_priv_redis_put_size(ratelimit_priv_redis_conn *conn, char kind, size_t size)
{
    char *at = ratelimit_priv_redis_room(conn, RATELIMIT_PRIV_REDIS_HEAD);
    if (at)
        conn->out_len += ratelimit_priv_redis_head(at, kind, size);
}

static void ratelimit_priv_redis_put_arg(ratelimit_priv_redis_conn *conn, const void *bytes,
                                         size_t len)
{
    ratelimit_priv_redis_put_size(conn, '$', len);
    ratelimit_priv_redis_put(conn, bytes, len);
    ratelimit_priv_redis_put(conn, "\r\n", 2);
}

static void ratelimit_priv_redis_put_text(ratelimit_priv_redis_conn *conn, const char *text)
{
    ratelimit_priv_redis_put_arg(conn, text, strlen(text));
}

static void ratelimit_priv_redis_put_u64(ratelimit_priv_redis_conn *conn, uint64_t value)
{
    char text[20];
    ratelimit_priv_redis_put_arg(conn, text, ratelimit_priv_redis_digits(text, value));
}

/* A command of count words, which are texts. */
static void ratelimit_priv_redis_put_words(ratelimit_priv_redis_conn *conn, int count, ...)
{
    va_list words;
    va_start(words, count);
    ratelimit_priv_redis_put_size(conn, '*', (size_t)count);
    while (count--)
        ratelimit_priv_redis_put_text(conn, va_arg(words, const char *));
    va_end(words);
}

/* A name in Redis, without the prefix: head, key, tail. See >>implementation: scripts. */
typedef struct ratelimit_priv_redis_name {
    const char *key;
    size_t key_len, head_len, tail_len;
    char head[2], tail[9];
} ratelimit_priv_redis_name;

/* The name of what is called key, of a kind. A key without a hash tag becomes one. */
static void ratelimit_priv_redis_name_of(ratelimit_priv_redis_name *name, char kind,
                                         const void *key, size_t key_len)
{
    const char *text = (const char *)key;
    const char *open = (const char *)memchr(text, '{', key_len);
    const char *close =
        open ? (const char *)memchr(open, '}', key_len - (size_t)(open - text)) : NULL;
    bool tagged = close && close > open + 1;
    name->key = text;
    name->key_len = key_len;
    name->head[0] = kind;
    name->head[1] = tagged ? ':' : '{';
    name->head_len = 2;
    name->tail[0] = '}';
    name->tail_len = !tagged;
}

static void ratelimit_priv_redis_name_bucket(ratelimit_priv_redis_name *name,
                                             const ratelimit_request *req)
{
    ratelimit_priv_redis_name_of(name, 'b', req->key, req->key_len);
    if (!name->tail_len)
        name->tail[name->tail_len++] = ':';
    ratelimit_priv_redis_hex(name->tail + 1, req->limit->scope, 8);
    name->tail_len = 9;
}

static void ratelimit_priv_redis_put_name(const ratelimit_redis *r, ratelimit_priv_redis_conn *conn,
                                          const ratelimit_priv_redis_name *name)
{
    ratelimit_priv_redis_put_size(conn, '$',
                                  r->prefix_len + name->head_len + name->key_len + name->tail_len);
    ratelimit_priv_redis_put(conn, r->o.prefix, r->prefix_len);
    ratelimit_priv_redis_put(conn, name->head, name->head_len);
    ratelimit_priv_redis_put(conn, name->key, name->key_len);
    ratelimit_priv_redis_put(conn, name->tail, name->tail_len);
    ratelimit_priv_redis_put(conn, "\r\n", 2);
}

/* Begins a script's command; keys and args must follow. */
static void ratelimit_priv_redis_put_script(const ratelimit_priv_redis_call *call,
                                            ratelimit_priv_redis_conn *conn, unsigned script,
                                            size_t keys, size_t args)
{
    ratelimit_priv_redis_put_size(conn, '*', 3 + keys + args);
    ratelimit_priv_redis_put_text(conn, call->eval ? "EVAL" : "EVALSHA");
    if (call->eval)
        ratelimit_priv_redis_put_text(conn, ratelimit_priv_redis_script[script]);
    else
        ratelimit_priv_redis_put_arg(conn, call->r->sha[script], 40);
    ratelimit_priv_redis_put_u64(conn, keys);
}

/* ---- >>implementation: connection --------------------------------------------------------------

   A connection goes through its states by steps, none of which waits: `step` does what can be done
   now, `events` says which events of the socket it waits for.

       state     what happens                                     next
       NEW       the host's addresses are looked up               DIALING
       DIALING   one address is connected to                      LOGIN
                 it refuses, or its share of the time is over     DIALING, the next address
       LOGIN     TLS; AUTH, SELECT, CLIENT SETNAME, ROLE, sent    READY
                 together; their replies
                 the credentials are refused, the first time      LOGIN, with new ones
       READY     requests and replies                             READY
                 a thread has no use for it any more              READY, in the pool of its node
       any       it broke, was refused, or its time is over       DEAD
       DEAD      its socket is closed; a function that is in a    freed by tidy
                 step on it still sees that

   Commands are put into `out` and sent from there; replies come out of hiredis' reader. TLS is a
   filter between them and the socket: bytes go through OpenSSL's buffers in memory, so that sockets
   are read and written in one place, and never raise a signal. */

#  if defined(RATELIMIT_REDIS_TLS)
typedef struct ratelimit_priv_redis_tls {
    SSL *ssl;
    BIO *in, *out; /* what came, what is to be sent */
    char wire[16384];
    int len, at; /* of wire, and how much of it was sent */
} ratelimit_priv_redis_tls;

/* What all connections share; NULL if a certificate can't be read. */
static SSL_CTX *ratelimit_priv_redis_tls_open(const ratelimit_redis_options *o)
{
    SSL_CTX *tls = SSL_CTX_new(TLS_client_method());
    bool good = tls && SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION) == 1;
    if (good && o->tls_ca)
        good = SSL_CTX_load_verify_locations(tls, o->tls_ca, NULL) == 1;
    else if (good)
        good = SSL_CTX_set_default_verify_paths(tls) == 1;
    if (good && o->tls_cert)
        good = SSL_CTX_use_certificate_chain_file(tls, o->tls_cert) == 1 &&
               SSL_CTX_use_PrivateKey_file(tls, o->tls_key, SSL_FILETYPE_PEM) == 1;
    if (good)
        SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    ERR_clear_error();
    if (good)
        return tls;
    SSL_CTX_free(tls);
    return NULL;
}

/* The server must be name, or any, and is told which name is asked for, but no address. */
static bool ratelimit_priv_redis_tls_expect(SSL *ssl, const char *name, const char *host)
{
    bool any = strcmp(name, "*") == 0, is_address;
    const char *asked = any ? host : name;
    ASN1_OCTET_STRING *address = a2i_IPADDRESS(asked);
    is_address = address != NULL;
    ASN1_OCTET_STRING_free(address);
    if (is_address)
        return any || X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return (any || SSL_set1_host(ssl, name) == 1) && SSL_set_tlsext_host_name(ssl, asked) == 1;
}

static bool ratelimit_priv_redis_tls_begin(const ratelimit_redis *r,
                                           ratelimit_priv_redis_conn *conn)
{
    const char *host = conn->node->host;
    ratelimit_priv_redis_tls *tls = (ratelimit_priv_redis_tls *)calloc(1, sizeof *tls);
    conn->tls = tls;
    if (!tls)
        return false;
    tls->ssl = SSL_new(r->tls);
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
    if (!tls->ssl || !tls->in || !tls->out) {
        BIO_free(tls->in);
        BIO_free(tls->out);
        return false;
    }
    SSL_set_bio(tls->ssl, tls->in, tls->out);
    SSL_set_connect_state(tls->ssl);
    SSL_set_mode(tls->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return ratelimit_priv_redis_tls_expect(tls->ssl, r->o.tls_name ? r->o.tls_name : host, host);
}

/* Did OpenSSL only run out of what came? */
static bool ratelimit_priv_redis_tls_goes_on(const ratelimit_priv_redis_tls *tls, int result)
{
    return SSL_get_error(tls->ssl, result) == SSL_ERROR_WANT_READ;
}

/* Encrypts what is to be sent, once the handshake is over. The program may have left errors in
 * OpenSSL's queue: they are cleared first, or they would be taken for errors of this connection.
 * False: the queue says why. */
static bool ratelimit_priv_redis_tls_fill(ratelimit_priv_redis_conn *conn)
{
    ratelimit_priv_redis_tls *tls = conn->tls;
    int n;
    ERR_clear_error();
    if (!SSL_is_init_finished(tls->ssl)) {
        n = SSL_do_handshake(tls->ssl);
        if (n != 1 && !ratelimit_priv_redis_tls_goes_on(tls, n))
            return false;
    }
    while (SSL_is_init_finished(tls->ssl) && conn->out_at < conn->out_len) {
        size_t some = conn->out_len - conn->out_at;
        n = SSL_write(tls->ssl, conn->out + conn->out_at, some < INT_MAX ? (int)some : INT_MAX);
        if (n <= 0)
            return ratelimit_priv_redis_tls_goes_on(tls, n);
        conn->out_at += (size_t)n;
        conn->gone += (uint64_t)n;
    }
    if (tls->at == tls->len) {
        tls->at = 0;
        tls->len = BIO_read(tls->out, tls->wire, sizeof tls->wire);
        tls->len = tls->len > 0 ? tls->len : 0;
    }
    return true;
}

/* Decrypts what came, for conn's reader. */
static bool ratelimit_priv_redis_tls_feed(ratelimit_priv_redis_conn *conn, const char *bytes, int n)
{
    ratelimit_priv_redis_tls *tls = conn->tls;
    char plain[16384];
    int got;
    ERR_clear_error();
    if (BIO_write(tls->in, bytes, n) != n)
        return false;
    while ((got = SSL_read(tls->ssl, plain, sizeof plain)) > 0)
        if (redisReaderFeed(conn->reader, plain, (size_t)got) != REDIS_OK)
            return false;
    return ratelimit_priv_redis_tls_goes_on(tls, got);
}

/* Why the last step failed; NULL: OpenSSL does not know. */
static const char *ratelimit_priv_redis_tls_why(void)
{
    unsigned long error = ERR_peek_error();
    switch (error ? ERR_GET_REASON(error) : 0) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        return "the server's certificate is not trusted, or of another name: see options.tls_ca, "
               "tls_name";
    case SSL_R_WRONG_VERSION_NUMBER:
        return "the server does not speak TLS there";
#    if defined(SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED)
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return "the server asks for a client certificate: set options.tls_cert";
#    endif
    default:
        return error ? ERR_reason_error_string(error) : NULL;
    }
}
#  endif

static bool ratelimit_priv_redis_more_later(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/* Sends what the socket takes. NULL, or why it failed. */
static const char *ratelimit_priv_redis_flush(ratelimit_priv_redis_conn *conn)
{
#  if defined(MSG_NOSIGNAL)
    const int flags = MSG_NOSIGNAL;
#  else
    const int flags = 0; /* SO_NOSIGPIPE was set */
#  endif
    for (;;) {
        const char *bytes = conn->out ? conn->out + conn->out_at : NULL;
        size_t len = conn->out_len - conn->out_at;
        ssize_t n;
#  if defined(RATELIMIT_REDIS_TLS)
        if (conn->tls) {
            if (!ratelimit_priv_redis_tls_fill(conn)) {
                const char *why = ratelimit_priv_redis_tls_why();
                return why ? why : "the connection broke";
            }
            bytes = conn->tls->wire + conn->tls->at;
            len = (size_t)(conn->tls->len - conn->tls->at);
        }
#  endif
        if (!len) {
            if (conn->out_at < conn->out_len)
                return NULL;
            conn->out_at = conn->out_len = 0;
            if (conn->out_room > 16384) { /* after a large batch, or long keys */
                free(conn->out);
                conn->out = NULL;
                conn->out_room = 0;
            }
            return NULL;
        }
        n = send(conn->fd, bytes, len, flags);
        if (n < 0)
            return ratelimit_priv_redis_more_later() ? NULL : "the connection broke";
#  if defined(RATELIMIT_REDIS_TLS)
        if (conn->tls) {
            conn->tls->at += (int)n;
            continue;
        }
#  endif
        conn->out_at += (size_t)n;
        conn->gone += (uint64_t)n;
    }
}

/* Is there something that the socket did not take? */
static bool ratelimit_priv_redis_unsent(const ratelimit_priv_redis_conn *conn)
{
#  if defined(RATELIMIT_REDIS_TLS)
    if (conn->tls) /* more of out waits for what is to come */
        return conn->tls->at < conn->tls->len;
#  endif
    return conn->out_at < conn->out_len;
}

/* What conn waits for. */
static unsigned ratelimit_priv_redis_events(const ratelimit_priv_redis_conn *conn)
{
    if (conn->state <= RATELIMIT_PRIV_REDIS_DIALING)
        return conn->state == RATELIMIT_PRIV_REDIS_DIALING ? RATELIMIT_REDIS_WRITE : 0;
    return RATELIMIT_REDIS_READ |
           (ratelimit_priv_redis_unsent(conn) ||
                    (conn->state == RATELIMIT_PRIV_REDIS_READY && conn->waiting.first)
                ? RATELIMIT_REDIS_WRITE
                : 0u);
}

static void ratelimit_priv_redis_hang_up(ratelimit_priv_redis_conn *conn)
{
    if (conn->fd >= 0)
        close(conn->fd);
    conn->fd = -1;
}

static void ratelimit_priv_redis_free_conn(ratelimit_priv_redis_conn *conn)
{
    ratelimit_priv_redis_hang_up(conn);
#  if defined(RATELIMIT_REDIS_TLS)
    if (conn->tls)
        SSL_free(conn->tls->ssl);
    free(conn->tls);
#  endif
    if (conn->addresses)
        freeaddrinfo(conn->addresses);
    if (conn->reader)
        redisReaderFree(conn->reader);
    free(conn->out);
    free(conn);
}

/* True if an idle connection is still open and nothing has come on it. */
static bool ratelimit_priv_redis_quiet(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && ratelimit_priv_redis_more_later();
}

/* What a new socket needs: it never waits, gives no signal, is not for our children (it is logged
 * in), and the kernel asks a silent peer whether it is still there. */
static void ratelimit_priv_redis_socket(int fd, bool tcp)
{
    int on = 1;
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
#  if defined(SO_NOSIGPIPE)
    (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#  endif
    if (!tcp)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#  if defined(TCP_KEEPIDLE) && defined(TCP_KEEPINTVL) && defined(TCP_KEEPCNT)
    on = 15; /* s */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on);
    on = 5;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof on);
    on = 3;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &on, sizeof on);
#  endif
}

/* Begins to connect to address. 0, or an errno. */
static int ratelimit_priv_redis_connect(ratelimit_priv_redis_conn *conn, int family,
                                        const struct sockaddr *address, socklen_t len)
{
    conn->fd = socket(family, SOCK_STREAM, 0);
    if (conn->fd < 0)
        return errno;
    ratelimit_priv_redis_socket(conn->fd, family != AF_UNIX);
    conn->state = RATELIMIT_PRIV_REDIS_DIALING;
    if (connect(conn->fd, address, len) == 0 || errno == EINPROGRESS)
        return 0;
    return errno;
}

/* Steps of the login. The last two are no matter if the server does not know the command, or the
 * user may not use it. */
enum {
    RATELIMIT_PRIV_REDIS_LOGIN_AUTH = 1,
    RATELIMIT_PRIV_REDIS_LOGIN_SELECT = 2,
    RATELIMIT_PRIV_REDIS_LOGIN_NAME = 4,
    RATELIMIT_PRIV_REDIS_LOGIN_ROLE = 8
};

static void ratelimit_priv_redis_put_auth(ratelimit_priv_redis_conn *conn, const char *user,
                                          const char *password)
{
    if (user && *user)
        ratelimit_priv_redis_put_words(conn, 3, "AUTH", user, password);
    else
        ratelimit_priv_redis_put_words(conn, 2, "AUTH", password);
    conn->login |= RATELIMIT_PRIV_REDIS_LOGIN_AUTH;
}

/* Login, database, name and role go out together. False: there are no credentials. */
static bool ratelimit_priv_redis_put_login(const ratelimit_redis *r,
                                           ratelimit_priv_redis_conn *conn)
{
    bool sentinel = r->o.master_name && conn->node->seed;
    ratelimit_redis_login login;
    char database[12];
    if (sentinel) {
        if (r->o.sentinel_password)
            ratelimit_priv_redis_put_auth(conn, r->o.sentinel_user, r->o.sentinel_password);
    } else if (r->o.credentials) {
        memset(&login, 0, sizeof login);
        if (!r->o.credentials(r->o.credentials_self, conn->again, &login))
            return false;
        login.user[sizeof login.user - 1] = login.password[sizeof login.password - 1] = 0;
        ratelimit_priv_redis_put_auth(conn, login.user, login.password);
        memset(&login, 0, sizeof login);
    } else if (r->o.password) {
        ratelimit_priv_redis_put_auth(conn, r->o.user, r->o.password);
    }
    if (r->o.database && !sentinel) {
        (void)snprintf(database, sizeof database, "%d", r->o.database);
        ratelimit_priv_redis_put_words(conn, 2, "SELECT", database);
        conn->login |= RATELIMIT_PRIV_REDIS_LOGIN_SELECT;
    }
    if (r->o.client_name) {
        ratelimit_priv_redis_put_words(conn, 3, "CLIENT", "SETNAME", r->o.client_name);
        conn->login |= RATELIMIT_PRIV_REDIS_LOGIN_NAME;
    }
    if (r->o.master_name && !sentinel) {
        ratelimit_priv_redis_put_words(conn, 1, "ROLE");
        conn->login |= RATELIMIT_PRIV_REDIS_LOGIN_ROLE;
    }
    return true;
}

/* NULL, or why the login fails with this reply to its next step. */
static const char *ratelimit_priv_redis_login_reply(const ratelimit_redis *r,
                                                    ratelimit_priv_redis_conn *conn,
                                                    const redisReply *reply, char *words,
                                                    size_t words_bytes)
{
    unsigned step = conn->login & (~conn->login + 1); /* the lowest bit */
    const char *text;
    conn->login &= ~step;
    if (step == RATELIMIT_PRIV_REDIS_LOGIN_ROLE && reply->type == REDIS_REPLY_ARRAY &&
        reply->elements && reply->element[0]->type == REDIS_REPLY_STRING &&
        strcmp(reply->element[0]->str, "master") != 0)
        return ratelimit_priv_redis_no_master;
    if (reply->type != REDIS_REPLY_ERROR || step >= RATELIMIT_PRIV_REDIS_LOGIN_NAME || conn->redo)
        return NULL;
    conn->redo = r->o.credentials && !conn->again && !(r->o.master_name && conn->node->seed) &&
                 ratelimit_priv_redis_fault_of(reply->str, &text) == RATELIMIT_PRIV_REDIS_STRANGER;
    if (conn->redo)
        return NULL;
    ratelimit_priv_redis_words(reply->str, words, words_bytes);
    return words;
}

/* ---- >>implementation: nodes -------------------------------------------------------------------

   A node's idle connections are a list, last used first. At most pool_size are open, and at most
   two are being made: when a server comes back, not all threads of all processes connect at the
   same moment. A connection that is not made when its caller's time is over is kept for the next
   caller, until connect_timeout_ms is over.

   When a node is left alone. One connection's trouble is that connection's. What counts against the
   node is only what happened while it answered nobody:

       a connection ended because ...                       blame
       it was refused, the host or the login is unknown,    NODE: the node is down at once
         it was not ready in connect_timeout_ms
       it broke before it had answered a request, or no     MAYBE: the first time the idle
         answer came though the server had time (half of      connections are closed, which may be
         timeout_ms)                                          as dead; the second time in a row the
                                                              node is down
       it broke later; the answer had little time; it was   NOBODY
         idle for too long; memory or sockets are missing

   Any answer, on any connection, means that the node is up. A node that is down is left alone for
   the cool-down, shortened by chance, so that not all processes come back at the same instant; then
   one call at a time may try (probing), and urgent calls (a lock's renewal) always may. */

enum {
    RATELIMIT_PRIV_REDIS_MAKING = 2,
    RATELIMIT_PRIV_REDIS_SLOTS = 16384,
    RATELIMIT_PRIV_REDIS_HOPS = 6,
    RATELIMIT_PRIV_REDIS_MERGED = 64,
    RATELIMIT_PRIV_REDIS_AT_ONCE = 64 /* connections of a thread */
};

static void ratelimit_priv_redis_init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#  if !defined(__APPLE__)
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#  endif
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Waits for cond for ns at most, whatever happens to the wall clock; locked. */
static void ratelimit_priv_redis_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns)
{
    struct timespec until;
#  if defined(__APPLE__)
    until.tv_sec = (time_t)(ns / RATELIMIT_SECOND);
    until.tv_nsec = (long)(ns % RATELIMIT_SECOND);
    (void)pthread_cond_timedwait_relative_np(cond, lock, &until);
#  else
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / RATELIMIT_SECOND);
    until.tv_nsec = (long)(ns % RATELIMIT_SECOND);
    (void)pthread_cond_timedwait(cond, lock, &until);
#  endif
}

/* 0 to below - 1 by chance; below is not 0. */
static uint64_t ratelimit_priv_redis_chance(uint64_t *mix, uint64_t below)
{
    *mix ^= *mix << 13;
    *mix ^= *mix >> 7;
    *mix ^= *mix << 17;
    return *mix % below;
}

/* Gives up a list of node's connections, which are closed when the lock is let go; locked, or
 * nobody else is there. */
static void ratelimit_priv_redis_drop(ratelimit_redis *r, ratelimit_priv_redis_conn **list)
{
    while (*list) {
        ratelimit_priv_redis_conn *conn = *list;
        *list = conn->next;
        conn->node->open--;
        conn->next = r->dropped;
        r->dropped = conn;
    }
}

static void ratelimit_priv_redis_close_conns(ratelimit_priv_redis_conn *conn)
{
    while (conn) {
        ratelimit_priv_redis_conn *next = conn->next;
        ratelimit_priv_redis_free_conn(conn);
        conn = next;
    }
}

/* Unlocks, then closes what was dropped: never under the lock. */
static void ratelimit_priv_redis_unlock(ratelimit_redis *r)
{
    ratelimit_priv_redis_conn *dropped = r->dropped;
    r->dropped = NULL;
    pthread_mutex_unlock(&r->lock);
    ratelimit_priv_redis_close_conns(dropped);
}

/* A child of fork has its parent's sockets: it lets go of them. Their locks are in an unknown
 * state, and only the thread that forked is here. */
static void ratelimit_priv_redis_after_fork(ratelimit_redis *r)
{
    pid_t pid = getpid();
    ratelimit_priv_redis_node *node;
    if (r->pid == pid)
        return;
    pthread_mutex_init(&r->lock, NULL);
    ratelimit_priv_redis_init_cond(&r->freed);
    r->mapping = false;
    r->mix ^= (uint64_t)pid << 32;
    for (node = r->nodes; node; node = node->next) {
        ratelimit_priv_redis_drop(r, &node->idle);
        ratelimit_priv_redis_drop(r, &node->half);
        node->open = node->making = 0;
        node->probing = false;
    }
    ratelimit_priv_redis_close_conns(r->dropped);
    r->dropped = NULL;
    r->pid = pid;
}

/* The node is left alone for a while; locked. */
static void ratelimit_priv_redis_down(ratelimit_redis *r, ratelimit_priv_redis_node *node,
                                      const char *why)
{
    node->down = true;
    node->down_until = ratelimit_clock_ns() + r->cool_down_ns -
                       ratelimit_priv_redis_chance(&r->mix, r->cool_down_ns / 2 + 1);
    (void)snprintf(node->why, sizeof node->why, "%.200s (left alone for a while)", why);
    ratelimit_priv_redis_drop(r, &node->idle);
    pthread_cond_broadcast(&r->freed); /* nobody need wait for it */
}

/* What began at start got no answer: does that count against the node? sure: once is enough.
 * Locked. */
static void ratelimit_priv_redis_strike(ratelimit_redis *r, ratelimit_priv_redis_node *node,
                                        uint64_t start, const char *why, bool sure)
{
    if (node->heard_ns >= start)
        return;
    if (node->struck || sure)
        ratelimit_priv_redis_down(r, node, why);
    node->struck = true;
    ratelimit_priv_redis_drop(r, &node->idle);
}

/* It answered; locked, or nobody else is there. */
static void ratelimit_priv_redis_heard(ratelimit_priv_redis_node *node)
{
    node->heard_ns = ratelimit_clock_ns();
    node->refuses_until = 0;
    node->struck = node->down = false;
}

static bool ratelimit_priv_redis_is_down(const ratelimit_priv_redis_node *node)
{
    return node->down && (node->probing || ratelimit_clock_ns() < node->down_until);
}

/* ---- >>implementation: map ---------------------------------------------------------------------

   Which node serves a key: `slots` has the master of each slot of a cluster. Everything else has
   one slot, 0. With sentinels its master changes; without, it is the server of the options. */

static size_t ratelimit_priv_redis_slots(const ratelimit_redis *r)
{
    return r->o.cluster ? RATELIMIT_PRIV_REDIS_SLOTS : 1;
}

/* The node at host:port, made if there is none; NULL if there is no memory. One that left the
 * cluster and has no connections gives its place. Locked. */
static ratelimit_priv_redis_node *ratelimit_priv_redis_node_at(ratelimit_redis *r, const char *host,
                                                               size_t host_len, int port)
{
    ratelimit_priv_redis_node *node, **end = &r->nodes, *gone = NULL;
    char *name;
    for (; *end; end = &(*end)->next) {
        node = *end;
        if (node->port == port && strlen(node->host) == host_len &&
            memcmp(node->host, host, host_len) == 0)
            return node;
        if (!node->seed && r->mapped && !node->known && !node->open)
            gone = node;
    }
    name = (char *)malloc(host_len + 1);
    node = gone ? gone : (ratelimit_priv_redis_node *)calloc(1, sizeof *node);
    if (!node || !name) {
        free(name);
        if (!gone)
            free(node);
        return NULL;
    }
    if (gone) {
        ratelimit_priv_redis_node *next = gone->next;
        free(gone->host);
        memset(gone, 0, sizeof *gone);
        gone->next = next;
    } else {
        *end = node;
    }
    memcpy(name, host, host_len);
    name[host_len] = 0;
    node->host = name;
    node->port = port;
    return node;
}

/* The address that a server told, which may be another one from here. The user's function is called
 * without any lock. False: no address is so long. */
static bool ratelimit_priv_redis_told(const ratelimit_redis *r, const char *host, size_t host_len,
                                      long long port, ratelimit_redis_address *address)
{
    if (host_len >= sizeof address->host)
        return false;
    memset(address, 0, sizeof *address);
    memcpy(address->host, host, host_len);
    address->port = (int)port;
    if (r->o.translate)
        r->o.translate(r->o.translate_self, address);
    address->host[sizeof address->host - 1] = 0;
    return true;
}

static uint32_t ratelimit_priv_redis_crc(uint32_t crc, char c)
{
    static const uint16_t four_bits[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5,
                                           0x60c6, 0x70e7, 0x8108, 0x9129, 0xa14a, 0xb16b,
                                           0xc18c, 0xd1ad, 0xe1ce, 0xf1ef};
    uint32_t byte = (unsigned char)c;
    crc = (crc << 4 ^ four_bits[(crc >> 12 ^ byte >> 4) & 15]) & 0xffff;
    return (crc << 4 ^ four_bits[(crc >> 12 ^ byte) & 15]) & 0xffff;
}

/* CRC16 (XMODEM) of what is in the first braces, else of all, as Redis Cluster defines it. */
static uint32_t ratelimit_priv_redis_slot(const ratelimit_redis *r,
                                          const ratelimit_priv_redis_name *name)
{
    const char *part[4];
    size_t len[4], at = 0, i, j;
    uint32_t all = 0, tag = 0;
    enum { BEFORE, IN, AFTER } where = BEFORE;
    part[0] = r->o.prefix, len[0] = r->prefix_len;
    part[1] = name->head, len[1] = name->head_len;
    part[2] = name->key, len[2] = name->key_len;
    part[3] = name->tail, len[3] = name->tail_len;
    for (i = 0; i < 4; i++)
        for (j = 0; j < len[i]; j++) {
            char c = part[i][j];
            all = ratelimit_priv_redis_crc(all, c);
            if (where == IN && c == '}')
                where = AFTER;
            else if (where == IN)
                tag = ratelimit_priv_redis_crc(tag, c), at++;
            else if (where == BEFORE && c == '{')
                where = IN;
        }
    return (where == AFTER && at ? tag : all) % RATELIMIT_PRIV_REDIS_SLOTS;
}

/* The host of a master in CLUSTER SLOTS. Empty or nil: the host we asked. "?": unknown, but newer
 * servers name the address beside it. NULL: no host. */
static const char *ratelimit_priv_redis_host(const redisReply *master, const char *asked)
{
    const redisReply *host = master->element[0];
    size_t i;
    if (host->type == REDIS_REPLY_NIL || (host->type == REDIS_REPLY_STRING && host->len == 0))
        return asked;
    if (host->type != REDIS_REPLY_STRING)
        return NULL;
    if (strcmp(host->str, "?") != 0)
        return host->str;
    if (master->elements < 4 || master->element[3]->type != REDIS_REPLY_ARRAY)
        return NULL;
    for (i = 0; i + 1 < master->element[3]->elements; i += 2) {
        const redisReply *name = master->element[3]->element[i];
        const redisReply *value = master->element[3]->element[i + 1];
        if (name->type == REDIS_REPLY_STRING && value->type == REDIS_REPLY_STRING &&
            strcmp(name->str, "ip") == 0 && value->len && strcmp(value->str, "?") != 0)
            return value->str;
    }
    return NULL;
}

/* Slots, and where their master is. */
typedef struct ratelimit_priv_redis_range {
    long long from, to;
    ratelimit_redis_address master;
} ratelimit_priv_redis_range;

static bool ratelimit_priv_redis_is(const redisReply *reply, size_t i, int type)
{
    return reply->type == REDIS_REPLY_ARRAY && i < reply->elements &&
           reply->element[i]->type == type;
}

/* One line of CLUSTER SLOTS, {from, to, master, replicas...}, or what a sentinel says: {host,
 * port}. False: it makes no sense. */
static bool ratelimit_priv_redis_range_of(const ratelimit_redis *r, const redisReply *line,
                                          const char *asked, ratelimit_priv_redis_range *range)
{
    const redisReply *master;
    const char *host;
    range->from = range->to = 0;
    if (!r->o.cluster)
        return ratelimit_priv_redis_is(line, 0, REDIS_REPLY_STRING) &&
               ratelimit_priv_redis_is(line, 1, REDIS_REPLY_STRING) &&
               ratelimit_priv_redis_told(r, line->element[0]->str, (size_t)line->element[0]->len,
                                         atoi(line->element[1]->str), &range->master);
    if (!ratelimit_priv_redis_is(line, 0, REDIS_REPLY_INTEGER) ||
        !ratelimit_priv_redis_is(line, 1, REDIS_REPLY_INTEGER) ||
        !ratelimit_priv_redis_is(line, 2, REDIS_REPLY_ARRAY))
        return false;
    range->from = line->element[0]->integer < 0 ? 0 : line->element[0]->integer;
    range->to = line->element[1]->integer;
    master = line->element[2];
    if (!ratelimit_priv_redis_is(master, 1, REDIS_REPLY_INTEGER))
        return false;
    host = ratelimit_priv_redis_host(master, asked);
    return host && ratelimit_priv_redis_told(r, host, strlen(host), master->element[1]->integer,
                                             &range->master);
}

/* Takes over a whole map. Nodes that are no longer in it lose their connections. False: it names
 * none. */
static bool ratelimit_priv_redis_map_all(ratelimit_redis *r, const redisReply *reply,
                                         const char *asked)
{
    size_t i, count = 0, lines = r->o.cluster ? reply->elements : 1;
    ratelimit_priv_redis_range *range = (ratelimit_priv_redis_range *)malloc(lines * sizeof *range);
    ratelimit_priv_redis_node *node;
    bool good = false;
    for (i = 0; range && i < lines; i++)
        count += ratelimit_priv_redis_range_of(r, r->o.cluster ? reply->element[i] : reply, asked,
                                               &range[count]);
    pthread_mutex_lock(&r->lock);
    for (node = r->nodes; node; node = node->next)
        node->known = false;
    memset(r->slots, 0, ratelimit_priv_redis_slots(r) * sizeof *r->slots);
    r->mapped = false; /* meanwhile no node gives its place */
    for (i = 0; i < count; i++) {
        const ratelimit_redis_address *at = &range[i].master;
        long long slot = range[i].from;
        node = ratelimit_priv_redis_node_at(r, at->host, strlen(at->host), at->port);
        if (!node)
            continue;
        good = node->known = true;
        for (; slot <= range[i].to && slot < RATELIMIT_PRIV_REDIS_SLOTS; slot++)
            r->slots[slot] = node;
    }
    for (node = r->nodes; node; node = node->next)
        if (!node->known && !node->seed)
            ratelimit_priv_redis_drop(r, &node->idle);
    r->mapped = good;
    ratelimit_priv_redis_unlock(r);
    free(range);
    return good;
}

/* Where "MOVED 3999 127.0.0.1:6381" or "ASK ..." points; NULL if it makes no sense. moved: from now
 * on. */
static ratelimit_priv_redis_node *
ratelimit_priv_redis_target(ratelimit_redis *r, const char *error,
                            const ratelimit_priv_redis_node *asked, bool moved)
{
    ratelimit_priv_redis_node *node;
    ratelimit_redis_address address;
    const char *slot_at = strchr(error, ' '), *host, *colon;
    unsigned long slot = slot_at ? strtoul(slot_at, NULL, 10) : ULONG_MAX;
    host = slot_at ? strchr(slot_at + 1, ' ') : NULL;
    colon = host ? strrchr(host, ':') : NULL;
    if (!colon || slot >= RATELIMIT_PRIV_REDIS_SLOTS || *++host == '?')
        return NULL;
    if (!(colon == host ? ratelimit_priv_redis_told(r, asked->host, strlen(asked->host),
                                                    atoi(colon + 1), &address)
                        : ratelimit_priv_redis_told(r, host, (size_t)(colon - host),
                                                    atoi(colon + 1), &address)))
        return NULL;
    pthread_mutex_lock(&r->lock);
    node = ratelimit_priv_redis_node_at(r, address.host, strlen(address.host), address.port);
    if (node && moved) {
        r->slots[slot] = node;
        node->known = true;
    }
    pthread_mutex_unlock(&r->lock);
    return node;
}

/* ---- >>implementation: engine ------------------------------------------------------------------

   A call is one command with one reply. At any time it is in one list:

       waiting   of a connection: it was not sent. If the connection ends, it is dispatched again
       sent      of a connection: it was. If the connection ends, it fails, for it may have been
                 charged; it is never sent twice
       wanting   of the engine: all connections of the pool are in use
       resting   of the engine: it tries again in some ms (the slot moves, the map is asked for)

   `dispatch` finds the node that serves its key and puts it into one of them. From `sent` a reply
   takes it out: it is settled, rests, or is dispatched again (a redirection, a script that the
   server does not have, a second step). Plain takes that follow each other are merged: they are one
   command, whose reply has the reply to each.

       begin -> dispatch -> waiting -> pump -> sent -> on_reply -> on_answer -> settle
                 ^    ^                                                |
                 |    +-------- retry <- wanting, resting <------------+
                 +----------------------- a redirection ---------------+

   All of this is steps that do not wait, and all rules of failure are here, once. Two drive them:
   `run` lets a thread poll the connections that it took from the pool until all its calls are done;
   the asynchronous form is told by the caller's loop when its own are ready. */

static void ratelimit_priv_redis_dispatch(ratelimit_priv_redis_engine *e,
                                          ratelimit_priv_redis_call *call);
static bool ratelimit_priv_redis_want_map(ratelimit_priv_redis_engine *e);
static void ratelimit_priv_redis_map_done(ratelimit_priv_redis_engine *e);
static void ratelimit_priv_redis_batch_settled(ratelimit_priv_redis_call *call);

static void ratelimit_priv_redis_push(ratelimit_priv_redis_list *list,
                                      ratelimit_priv_redis_call *call)
{
    call->next = NULL;
    call->list = list;
    if (list->last)
        list->last->next = call;
    else
        list->first = call;
    list->last = call;
}

/* Takes the first call out of list; NULL if there is none. */
static ratelimit_priv_redis_call *ratelimit_priv_redis_pop(ratelimit_priv_redis_list *list)
{
    ratelimit_priv_redis_call *call = list->first;
    if (!call)
        return NULL;
    list->first = call->next;
    if (!list->first)
        list->last = NULL;
    call->list = NULL;
    call->next = NULL;
    return call;
}

/* Takes call out of its list, where it is mostly the first. */
static void ratelimit_priv_redis_pull(ratelimit_priv_redis_call *call)
{
    ratelimit_priv_redis_list *list = call->list;
    ratelimit_priv_redis_call *at;
    if (list->first == call) {
        (void)ratelimit_priv_redis_pop(list);
        return;
    }
    for (at = list->first; at->next != call;)
        at = at->next;
    at->next = call->next;
    if (list->last == call)
        list->last = at;
    call->list = NULL;
    call->next = NULL;
}

/* call is done, well or not. */
static void ratelimit_priv_redis_settle(ratelimit_priv_redis_engine *e,
                                        ratelimit_priv_redis_call *call)
{
    call->done = true;
    call->conn = NULL;
    if (call->probe) {
        pthread_mutex_lock(&e->r->lock);
        call->node->probing = call->probe = false;
        ratelimit_priv_redis_unlock(e->r);
    }
    if (call->any) {
        ratelimit_priv_redis_map_done(e);
        return;
    }
    ratelimit_priv_redis_count(e->r, RATELIMIT_PRIV_REDIS_CALLS);
    if (call->failed)
        ratelimit_priv_redis_count(e->r, RATELIMIT_PRIV_REDIS_FAILED + (unsigned)call->cause);
    else
        e->succeeded = true;
    e->left--;
    if (call->batch)
        ratelimit_priv_redis_batch_settled(call);
}

static void ratelimit_priv_redis_fail(ratelimit_priv_redis_engine *e,
                                      ratelimit_priv_redis_call *call,
                                      ratelimit_priv_redis_cause cause)
{
    call->failed = true;
    call->cause = cause;
    ratelimit_priv_redis_settle(e, call);
}

/* Why call took so long. */
static const char *ratelimit_priv_redis_held_up(const ratelimit_priv_redis_call *call)
{
    return call->cool           ? ": the cluster is down"
           : call->pause        ? ": others changed the key each time it was tried"
           : call->readonly     ? ": the server is a replica and takes no writes"
           : call->r->o.cluster ? ": the slot is being moved"
                                : "";
}

/* Its time is over. */
static void ratelimit_priv_redis_late(ratelimit_priv_redis_engine *e,
                                      ratelimit_priv_redis_call *call)
{
    ratelimit_priv_redis_say(e->r, "no answer in time%s",
                             call->rests ? ratelimit_priv_redis_held_up(call) : "");
    if (call->cool && call->node) {
        pthread_mutex_lock(&e->r->lock);
        ratelimit_priv_redis_down(e->r, call->node, "the cluster is down");
        ratelimit_priv_redis_unlock(e->r);
    }
    ratelimit_priv_redis_fail(e, call, RATELIMIT_PRIV_REDIS_LATE);
}

/* call tries again in some ms, not at the same time as all others who wait; unless then there would
 * be no time for the answer. */
static void ratelimit_priv_redis_rest(ratelimit_priv_redis_engine *e,
                                      ratelimit_priv_redis_call *call)
{
    const uint64_t least = 5 * RATELIMIT_MILLISECOND;
    uint64_t now = ratelimit_clock_ns();
    uint64_t pause = RATELIMIT_MILLISECOND << (call->rests < 4 ? call->rests : 4);
    uint64_t left = call->deadline > now ? call->deadline - now : 0;
    call->rests++;
    if (left < least) {
        ratelimit_priv_redis_late(e, call);
        return;
    }
    pthread_mutex_lock(&e->r->lock);
    pause = pause / 2 + ratelimit_priv_redis_chance(&e->r->mix, pause / 2);
    pthread_mutex_unlock(&e->r->lock);
    call->at_ns = now + (pause < left - least ? pause : left - least);
    if (!e->resting.first || call->at_ns < e->rest_ns)
        e->rest_ns = call->at_ns;
    ratelimit_priv_redis_push(&e->resting, call);
}

/* Another try for call. False: it was the last, and call has failed. */
static bool ratelimit_priv_redis_hop(ratelimit_priv_redis_engine *e,
                                     ratelimit_priv_redis_call *call, const char *why,
                                     ratelimit_priv_redis_cause cause)
{
    if (++call->hops < RATELIMIT_PRIV_REDIS_HOPS)
        return true;
    ratelimit_priv_redis_say(e->r, "%s (after %d tries)", why, RATELIMIT_PRIV_REDIS_HOPS);
    ratelimit_priv_redis_fail(e, call, cause);
    return false;
}

static bool ratelimit_priv_redis_has_map(const ratelimit_redis *r)
{
    return r->o.cluster || r->o.master_name;
}

/* ---- connections ---- */

/* conn waits for something else now. False: the loop does not want to know. */
static bool ratelimit_priv_redis_watch(ratelimit_priv_redis_conn *conn)
{
    ratelimit_priv_redis_engine *e = conn->engine;
    return !e->watch || e->watch(e, conn);
}

/* Whose fault the end of a connection is: see >>implementation: nodes. */
typedef enum ratelimit_priv_redis_blame {
    RATELIMIT_PRIV_REDIS_NOBODY,
    RATELIMIT_PRIV_REDIS_MAYBE, /* the node's, if it answers nobody */
    RATELIMIT_PRIV_REDIS_NODE   /* the same, and once is enough */
} ratelimit_priv_redis_blame;

/* Closes conn; what is on it must have been taken off. It is freed by tidy. */
static void ratelimit_priv_redis_bury(ratelimit_priv_redis_conn *conn)
{
    conn->state = RATELIMIT_PRIV_REDIS_DEAD;
    conn->retired = true;
    conn->engine->count--;
    if (conn->fd >= 0)
        (void)ratelimit_priv_redis_watch(conn);
    ratelimit_priv_redis_hang_up(conn);
}

/* Ends conn, which has not answered since since_ns. */
static void ratelimit_priv_redis_lose(ratelimit_priv_redis_conn *conn, const char *why,
                                      ratelimit_priv_redis_blame blame, uint64_t since_ns)
{
    ratelimit_priv_redis_engine *e = conn->engine;
    ratelimit_redis *r = e->r;
    ratelimit_priv_redis_node *node = conn->node;
    bool ready = conn->state == RATELIMIT_PRIV_REDIS_READY;
    ratelimit_priv_redis_list sent = conn->sent, waiting = conn->waiting, others = {NULL, NULL};
    ratelimit_priv_redis_call *call;
    char text[200];
    ratelimit_priv_redis_bury(conn);
    ratelimit_priv_redis_at(r, node, why, text, sizeof text);
    pthread_mutex_lock(&r->lock);
    node->open--;
    node->making -= !ready;
    if (blame || sent.first || waiting.first)
        (void)snprintf(r->error, sizeof r->error, "%s", text);
    if (blame)
        ratelimit_priv_redis_strike(r, node, since_ns, text, blame == RATELIMIT_PRIV_REDIS_NODE);
    pthread_cond_broadcast(&r->freed);
    ratelimit_priv_redis_unlock(r);
    conn->sent.first = conn->sent.last = conn->waiting.first = conn->waiting.last = NULL;
    while ((call = ratelimit_priv_redis_pop(&sent)) != NULL) {
        if (call->at_byte < conn->gone)
            ratelimit_priv_redis_fail(e, call,
                                      why == ratelimit_priv_redis_no_answer
                                          ? RATELIMIT_PRIV_REDIS_LATE
                                          : RATELIMIT_PRIV_REDIS_LOST);
        else
            ratelimit_priv_redis_push(&others, call);
    }
    while ((call = ratelimit_priv_redis_pop(&waiting)) != NULL)
        ratelimit_priv_redis_push(&others, call);
    if (blame)
        (void)ratelimit_priv_redis_want_map(e);
    while ((call = ratelimit_priv_redis_pop(&others)) != NULL) {
        call->asking = false;
        if (!ready && (!ratelimit_priv_redis_has_map(r) || call->any))
            ratelimit_priv_redis_fail(e, call, RATELIMIT_PRIV_REDIS_UNREACHED);
        else if (!ratelimit_priv_redis_hop(e, call, why, RATELIMIT_PRIV_REDIS_UNREACHED))
            continue;
        else if (ready)
            ratelimit_priv_redis_dispatch(e, call);
        else
            ratelimit_priv_redis_rest(e, call); /* until the map has come */
    }
}

/* The same when reading or writing failed: its node is to blame only if it never answered here. */
static void ratelimit_priv_redis_break(ratelimit_priv_redis_conn *conn, const char *why)
{
    ratelimit_priv_redis_lose(conn, why,
                              conn->state != RATELIMIT_PRIV_REDIS_READY ? RATELIMIT_PRIV_REDIS_NODE
                              : conn->proven ? RATELIMIT_PRIV_REDIS_NOBODY
                                             : RATELIMIT_PRIV_REDIS_MAYBE,
                              conn->since_ns);
}

/* Does this machine lack something, so that the server is not to blame? */
static bool ratelimit_priv_redis_is_local(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
           error == EAGAIN;
}

/* Connects to the next address of conn's node, each of which has its share of the time. error: why
 * the one before failed, 0 if there was none. */
static void ratelimit_priv_redis_dial_next(ratelimit_priv_redis_conn *conn, int error)
{
    while (conn->address) {
        const struct addrinfo *address = conn->address, *at;
        uint64_t now = ratelimit_clock_ns(), left = 0;
        for (at = address; at; at = at->ai_next)
            left++;
        conn->until = now < conn->end ? now + (conn->end - now) / left : conn->end;
        conn->address = address->ai_next;
        if (conn->fd >= 0) {
            conn->state = RATELIMIT_PRIV_REDIS_NEW;
            (void)ratelimit_priv_redis_watch(conn);
            ratelimit_priv_redis_hang_up(conn);
        }
        error = ratelimit_priv_redis_connect(conn, address->ai_family, address->ai_addr,
                                             address->ai_addrlen);
        if (error)
            continue;
        if (!ratelimit_priv_redis_watch(conn))
            ratelimit_priv_redis_lose(conn, "the event loop does not take the connection",
                                      RATELIMIT_PRIV_REDIS_NODE, conn->since_ns);
        return;
    }
    ratelimit_priv_redis_lose(conn,
                              error == ETIMEDOUT      ? "no connection in time"
                              : error == ECONNREFUSED ? "nobody listens there"
                                                      : "no connection",
                              ratelimit_priv_redis_is_local(error) ? RATELIMIT_PRIV_REDIS_NOBODY
                                                                   : RATELIMIT_PRIV_REDIS_NODE,
                              conn->since_ns);
}

static void ratelimit_priv_redis_dial(ratelimit_priv_redis_conn *conn)
{
    const ratelimit_redis *r = conn->engine->r;
    struct addrinfo hints;
    struct sockaddr_un local;
    char port[8];
    int error = 0;
    conn->end = conn->until = conn->since_ns + r->connect_timeout_ns;
    conn->reader = redisReaderCreate();
    if (!conn->reader) {
        ratelimit_priv_redis_lose(conn, "out of memory", RATELIMIT_PRIV_REDIS_NOBODY, 0);
        return;
    }
    if (r->o.unix_path) {
        memset(&local, 0, sizeof local);
        local.sun_family = AF_UNIX;
        memcpy(local.sun_path, r->o.unix_path, strlen(r->o.unix_path));
        error = ratelimit_priv_redis_connect(conn, AF_UNIX, (const struct sockaddr *)(void *)&local,
                                             sizeof local);
        if (error || !ratelimit_priv_redis_watch(conn))
            ratelimit_priv_redis_dial_next(conn, error);
        return;
    }
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    (void)snprintf(port, sizeof port, "%d", conn->node->port);
    error = getaddrinfo(conn->node->host, port, &hints, &conn->addresses);
    if (error) {
        conn->addresses = NULL;
        ratelimit_priv_redis_lose(conn, gai_strerror(error), RATELIMIT_PRIV_REDIS_NODE,
                                  conn->since_ns);
        return;
    }
    conn->address = conn->addresses;
    ratelimit_priv_redis_dial_next(conn, 0);
}

/* Puts conn, or if it is NULL a new one to node, in the list of e; NULL if there is no memory. */
static ratelimit_priv_redis_conn *ratelimit_priv_redis_join(ratelimit_priv_redis_engine *e,
                                                            ratelimit_priv_redis_node *node,
                                                            ratelimit_priv_redis_conn *conn)
{
    if (!conn) {
        conn = (ratelimit_priv_redis_conn *)calloc(1, sizeof *conn);
        if (!conn)
            return NULL;
        conn->node = node;
        conn->fd = -1;
        conn->state = RATELIMIT_PRIV_REDIS_NEW;
        conn->since_ns = conn->heard_ns = ratelimit_clock_ns();
    }
    conn->engine = e;
    conn->next = e->conns;
    e->conns = conn;
    e->count++;
    return conn;
}

/* May no connection to node be made, or gone on with? Locked. */
static bool ratelimit_priv_redis_full(const ratelimit_redis *r,
                                      const ratelimit_priv_redis_node *node)
{
    return (!node->half && node->open >= r->o.pool_size) ||
           node->making >= RATELIMIT_PRIV_REDIS_MAKING;
}

/* A connection to node from the pool, or a new one. NULL: all are in use, or *no_memory. */
static ratelimit_priv_redis_conn *ratelimit_priv_redis_checkout(ratelimit_priv_redis_engine *e,
                                                                ratelimit_priv_redis_node *node,
                                                                bool *no_memory)
{
    ratelimit_redis *r = e->r;
    ratelimit_priv_redis_conn *conn;
    uint64_t now = ratelimit_clock_ns();
    if (e->count >= RATELIMIT_PRIV_REDIS_AT_ONCE && !e->watch)
        return NULL;
    pthread_mutex_lock(&r->lock);
    while ((conn = node->idle) != NULL) {
        if (conn->heard_ns + r->max_idle_ns < now) {   /* it may have been heard after `now` */
            ratelimit_priv_redis_drop(r, &node->idle); /* the others are older */
            break;
        }
        node->idle = conn->next;
        ratelimit_priv_redis_unlock(r);
        if (ratelimit_priv_redis_quiet(conn->fd))
            return ratelimit_priv_redis_join(e, node, conn);
        ratelimit_priv_redis_free_conn(conn);
        pthread_mutex_lock(&r->lock);
        node->open--;
    }
    if (node->half && now >= node->half->end) /* nobody went on with it in time */
        ratelimit_priv_redis_drop(r, &node->half);
    if (ratelimit_priv_redis_full(r, node)) {
        ratelimit_priv_redis_unlock(r);
        return NULL;
    }
    conn = node->half;
    if (conn)
        node->half = conn->next;
    else
        node->open++;
    node->making++;
    ratelimit_priv_redis_unlock(r);
    conn = ratelimit_priv_redis_join(e, node, conn);
    if (conn)
        return conn;
    *no_memory = true;
    pthread_mutex_lock(&r->lock);
    node->open--;
    node->making--;
    ratelimit_priv_redis_unlock(r);
    return NULL;
}

/* e's connection to node, else as above. */
static ratelimit_priv_redis_conn *ratelimit_priv_redis_conn_to(ratelimit_priv_redis_engine *e,
                                                               ratelimit_priv_redis_node *node,
                                                               bool *no_memory)
{
    ratelimit_priv_redis_conn *conn;
    for (conn = e->conns; conn; conn = conn->next) {
        if (conn->node != node || conn->retired)
            continue;
        if (conn->state != RATELIMIT_PRIV_REDIS_READY || conn->sent.first || conn->waiting.first ||
            ratelimit_clock_ns() - conn->heard_ns <= e->r->max_idle_ns)
            return conn;
        ratelimit_priv_redis_lose(conn, "idle for too long", RATELIMIT_PRIV_REDIS_NOBODY, 0);
        break;
    }
    if (e->wanting.first && e->wanting.first->node == node) /* behind those before it */
        return NULL;
    return ratelimit_priv_redis_checkout(e, node, no_memory);
}

/* Gives conn, which is in no list, back to its node: to the idle ones, to the half made ones, or it
 * is closed. */
static void ratelimit_priv_redis_give_back(ratelimit_redis *r, ratelimit_priv_redis_conn *conn)
{
    ratelimit_priv_redis_node *node = conn->node;
    bool ready = conn->state == RATELIMIT_PRIV_REDIS_READY;
    ratelimit_priv_redis_conn **list = ready ? &node->idle : &node->half;
    uint64_t now = ratelimit_clock_ns();
    conn->engine = NULL;
    pthread_mutex_lock(&r->lock);
    node->making -= !ready;
    if (ready ? node->down || conn->retired : now >= conn->end) {
        node->open--;
        list = &r->dropped;
    }
    conn->heard_ns = now;
    conn->next = *list;
    *list = conn;
    if (ratelimit_priv_redis_has_map(r)) /* who is woken may wait for another node */
        pthread_cond_broadcast(&r->freed);
    else
        pthread_cond_signal(&r->freed);
    ratelimit_priv_redis_unlock(r);
}

/* Frees connections of e that ended. A thread gives back those that it does not need any more. */
static void ratelimit_priv_redis_tidy(ratelimit_priv_redis_engine *e)
{
    ratelimit_priv_redis_conn **at = &e->conns, *conn;
    while ((conn = *at) != NULL) {
        bool dead = conn->state == RATELIMIT_PRIV_REDIS_DEAD;
        if (!dead && (e->watch || conn->waiting.first || conn->sent.first)) {
            at = &conn->next;
            continue;
        }
        *at = conn->next;
        e->count -= !dead;
        if (dead)
            ratelimit_priv_redis_free_conn(conn);
        else
            ratelimit_priv_redis_give_back(e->r, conn);
    }
}

/* ---- the way of a call ---- */

/* The server to be asked for the map: of those that are up, who was asked least. Locked. */
static ratelimit_priv_redis_node *ratelimit_priv_redis_any(ratelimit_redis *r)
{
    ratelimit_priv_redis_node *node, *found = NULL;
    for (node = r->nodes; node; node = node->next)
        if ((node->seed || (r->o.cluster && node->known)) && !ratelimit_priv_redis_is_down(node) &&
            (!found || node->asked < found->asked))
            found = node;
    if (found)
        found->asked++;
    return found;
}

/* The node that serves call now; NULL: not known. Locked. */
static ratelimit_priv_redis_node *ratelimit_priv_redis_pick(ratelimit_priv_redis_call *call)
{
    ratelimit_redis *r = call->r;
    ratelimit_priv_redis_node *node;
    if (call->any)
        return ratelimit_priv_redis_any(r);
    if (call->asking)
        return call->node;
    if (!r->mapped)
        return NULL;
    node = r->slots[r->o.cluster ? call->slot : 0];
    return node ? node : ratelimit_priv_redis_any(r);
}

/* call's node is not known, or down: perhaps another has its slot by now. */
static void ratelimit_priv_redis_look(ratelimit_priv_redis_engine *e,
                                      ratelimit_priv_redis_call *call)
{
    ratelimit_redis *r = e->r;
    bool coming = !call->any;
    if (coming && !call->looked) {
        coming = ratelimit_priv_redis_want_map(e);
    } else if (coming) {
        pthread_mutex_lock(&r->lock);
        coming = r->mapping;
        pthread_mutex_unlock(&r->lock);
    }
    call->looked = call->node != NULL;
    if (coming) {
        ratelimit_priv_redis_rest(e, call);
        return;
    }
    pthread_mutex_lock(&r->lock);
    if (call->node || call->any)
        memcpy(r->error, (call->node ? call->node : r->nodes)->why, sizeof r->error);
    pthread_mutex_unlock(&r->lock);
    ratelimit_priv_redis_fail(e, call, RATELIMIT_PRIV_REDIS_UNREACHED);
}

/* Sends call on its way: where its key is now. */
static void ratelimit_priv_redis_dispatch(ratelimit_priv_redis_engine *e,
                                          ratelimit_priv_redis_call *call)
{
    ratelimit_redis *r = e->r;
    ratelimit_priv_redis_node *node;
    ratelimit_priv_redis_conn *conn = e->conns;
    uint64_t now = 0;
    bool down, refuses = false, no_memory = false;
    if (conn && !ratelimit_priv_redis_has_map(r) && conn->waiting.first && !conn->retired &&
        !call->probe) { /* the way of those before it */
        call->node = conn->node;
        call->conn = conn;
        ratelimit_priv_redis_push(&conn->waiting, call);
        return;
    }
    pthread_mutex_lock(&r->lock);
    if (call->probe)
        call->node->probing = call->probe = false;
    node = call->node = ratelimit_priv_redis_pick(call);
    down = !node || (ratelimit_priv_redis_is_down(node) && !call->urgent);
    if (!down && node->refuses_until) { /* one at a time asks whether it still does */
        now = ratelimit_clock_ns();
        refuses = node->refuses_until > now;
        if (!refuses)
            node->refuses_until = now + 16 * RATELIMIT_MILLISECOND;
    }
    if (!down && !refuses && node->down)
        call->probe = node->probing = true;
    ratelimit_priv_redis_unlock(r);
    if (down) {
        ratelimit_priv_redis_look(e, call);
        return;
    }
    if (refuses) {
        call->cool = true;
        ratelimit_priv_redis_rest(e, call);
        return;
    }
    conn = ratelimit_priv_redis_conn_to(e, node, &no_memory);
    if (!conn) {
        if (!no_memory) {
            ratelimit_priv_redis_push(&e->wanting, call);
            return;
        }
        ratelimit_priv_redis_say(r, "out of memory");
        ratelimit_priv_redis_fail(e, call, RATELIMIT_PRIV_REDIS_UNREACHED);
        return;
    }
    call->conn = conn;
    ratelimit_priv_redis_push(&conn->waiting, call);
    if (conn->state == RATELIMIT_PRIV_REDIS_NEW)
        ratelimit_priv_redis_dial(conn);
    else if (conn->state == RATELIMIT_PRIV_REDIS_READY)
        (void)ratelimit_priv_redis_watch(conn);
}

static bool ratelimit_priv_redis_receive(ratelimit_priv_redis_conn *conn);

/* See >>implementation: store. */
static bool ratelimit_priv_redis_merges(const ratelimit_priv_redis_call *call,
                                        const ratelimit_priv_redis_call *first_or_null);
static void ratelimit_priv_redis_build_many(ratelimit_priv_redis_call *const *calls, size_t count,
                                            ratelimit_priv_redis_conn *conn);

/* Puts the next command of those that wait on conn into it: one call, or several that merge, not
 * too many, because nobody else is served meanwhile. */
static void ratelimit_priv_redis_put_next(ratelimit_priv_redis_conn *conn, uint64_t now)
{
    ratelimit_priv_redis_call *some[RATELIMIT_PRIV_REDIS_MERGED], *call = conn->waiting.first;
    size_t n = 0, i, before = conn->out_len;
    some[n++] = call;
    if (ratelimit_priv_redis_merges(call, NULL))
        while (n < RATELIMIT_PRIV_REDIS_MERGED && (call = call->next) != NULL &&
               ratelimit_priv_redis_merges(call, some[0]))
            some[n++] = call;
    call = some[0];
    call->skip = n == 1 && call->asking;
    if (call->skip)
        ratelimit_priv_redis_put_words(conn, 1, "ASKING");
    if (n == 1)
        call->build(call, conn);
    else
        ratelimit_priv_redis_build_many(some, n, conn);
    for (i = 0; i < n; i++) {
        ratelimit_priv_redis_pull(some[i]);
        some[i]->many = i ? 0 : (uint32_t)n;
        some[i]->at_ns = now;
        some[i]->at_byte = conn->built;
        ratelimit_priv_redis_push(&conn->sent, some[i]);
    }
    conn->built += conn->out_len - before;
}

/* Sends what waits on conn, if it is ready. False: it is dead. */
static bool ratelimit_priv_redis_pump(ratelimit_priv_redis_conn *conn)
{
    const char *why;
    uint64_t now = 0;
    if (conn->state == RATELIMIT_PRIV_REDIS_READY && conn->waiting.first) {
        now = ratelimit_clock_ns();
        ratelimit_priv_redis_count(conn->engine->r, RATELIMIT_PRIV_REDIS_TRIPS);
    }
    while (conn->state == RATELIMIT_PRIV_REDIS_READY && conn->waiting.first && !conn->no_memory &&
           now < conn->waiting.first->deadline) /* later it would be charged for nothing */
        ratelimit_priv_redis_put_next(conn, now);
    why = conn->no_memory ? "out of memory" : ratelimit_priv_redis_flush(conn);
    if (!why)
        return true;
    if (conn->no_memory)
        ratelimit_priv_redis_lose(conn, why, RATELIMIT_PRIV_REDIS_NOBODY, 0);
    else if (ratelimit_priv_redis_receive(conn)) /* what came may say why */
        ratelimit_priv_redis_break(conn, why);
    return false;
}

/* ---- replies ---- */

/* What an error reply asks to be done, beside what it does to its call. */
typedef struct ratelimit_priv_redis_advice {
    bool wait;        /* some ms before the next try */
    bool renew;       /* connections to this node are no good */
    bool fail;        /* the call fails */
    const char *cool; /* not NULL: the node is to be left alone */
} ratelimit_priv_redis_advice;

/* Sets the text of a call that fails if that is so. */
static void ratelimit_priv_redis_error_reply(ratelimit_priv_redis_call *call, const char *error,
                                             ratelimit_priv_redis_advice *advice)
{
    const char *text;
    ratelimit_priv_redis_fault fault = ratelimit_priv_redis_fault_of(error, &text);
    ratelimit_redis *r = call->r;
    bool later = fault == RATELIMIT_PRIV_REDIS_LATER_COOL || fault == RATELIMIT_PRIV_REDIS_LATER;
    if (fault == RATELIMIT_PRIV_REDIS_NOSCRIPT) {
        call->eval = true;
        return;
    }
    /* Keys that may not be in one command, or one that we may not use: nothing was done for any. */
    if (call->many != 1 && fault == RATELIMIT_PRIV_REDIS_FAIL && !call->apart &&
        (strncmp(error, "CROSSSLOT", 9) == 0 || strncmp(error, "NOPERM", 6) == 0)) {
        pthread_mutex_lock(&r->lock);
        r->apart = r->apart || *error == 'C';
        pthread_mutex_unlock(&r->lock);
        call->apart = true;
        return;
    }
    call->asking = false;
    if (r->o.cluster &&
        (fault == RATELIMIT_PRIV_REDIS_MOVED || fault == RATELIMIT_PRIV_REDIS_TO_ASK)) {
        call->asking = fault == RATELIMIT_PRIV_REDIS_TO_ASK;
        call->node = ratelimit_priv_redis_target(r, error, call->node, !call->asking);
        call->asking = call->asking && call->node;
        advice->wait = call->hops > 1;
        return;
    }
    /* The whole cluster is down, or only the slot of this key. */
    call->cool = fault == RATELIMIT_PRIV_REDIS_LATER_COOL && !strstr(error, "slot");
    if (fault == RATELIMIT_PRIV_REDIS_READONLY) { /* a master before: its name may lead elsewhere */
        advice->renew = true;
        later = r->o.master_name != NULL;
        if (call->readonly++ == 0 && !later)
            return;
        advice->cool = later ? NULL : text;
    }
    if (ratelimit_priv_redis_has_map(r) && later) {
        call->hops = 0; /* only the deadline ends this */
        advice->wait = true;
        return;
    }
    if (fault == RATELIMIT_PRIV_REDIS_STRANGER && r->o.credentials && !call->login) {
        call->login = advice->renew = true;
        return;
    }
    if (!r->o.cluster && fault == RATELIMIT_PRIV_REDIS_MOVED)
        text = "the server is a node of a cluster: set options.cluster";
    if (fault == RATELIMIT_PRIV_REDIS_COOL)
        advice->cool = text;
    ratelimit_priv_redis_say(r, "%s (%.*s)", text, (int)strcspn(error, "\r\n"), error);
    advice->fail = true;
}

/* The reply to call, which was sent on conn. */
static void ratelimit_priv_redis_on_answer(ratelimit_priv_redis_conn *conn,
                                           ratelimit_priv_redis_call *call, const redisReply *reply)
{
    ratelimit_priv_redis_engine *e = conn->engine;
    ratelimit_redis *r = e->r;
    ratelimit_priv_redis_node *node = conn->node;
    ratelimit_priv_redis_advice advice = {false, false, false, NULL};
    bool good = reply->type != REDIS_REPLY_ERROR;
    const char *text = "";
    if (good) {
        call->eval = call->asking = call->pause = false;
        if (call->answer(call, reply) || call->failed) {
            ratelimit_priv_redis_settle(e, call);
            return;
        }
        advice.wait = call->pause;
    } else {
        (void)ratelimit_priv_redis_fault_of(reply->str, &text);
        ratelimit_priv_redis_error_reply(call, reply->str, &advice);
    }
    pthread_mutex_lock(&r->lock);
    if (!good && call->cool)
        node->refuses_until = ratelimit_clock_ns() + 16 * RATELIMIT_MILLISECOND;
    if (advice.renew)
        ratelimit_priv_redis_drop(r, &node->idle);
    if (advice.cool)
        ratelimit_priv_redis_down(r, node, advice.cool);
    ratelimit_priv_redis_unlock(r);
    conn->retired = conn->retired || advice.renew;
    if (!good && !call->eval && !call->any)
        (void)ratelimit_priv_redis_want_map(e);
    if (advice.fail)
        ratelimit_priv_redis_fail(e, call, RATELIMIT_PRIV_REDIS_REFUSED);
    else if (!good && !ratelimit_priv_redis_hop(e, call, text, RATELIMIT_PRIV_REDIS_REFUSED))
        return;
    else if (advice.wait)
        ratelimit_priv_redis_rest(e, call);
    else
        ratelimit_priv_redis_dispatch(e, call);
}

static void ratelimit_priv_redis_ready(ratelimit_priv_redis_conn *conn)
{
    ratelimit_redis *r = conn->engine->r;
    conn->state = RATELIMIT_PRIV_REDIS_READY;
    conn->built = conn->gone; /* the login */
    ratelimit_priv_redis_count(r, RATELIMIT_PRIV_REDIS_CONNECTS);
    pthread_mutex_lock(&r->lock);
    conn->node->making--;
    pthread_cond_broadcast(&r->freed); /* another may be made now */
    ratelimit_priv_redis_unlock(r);
}

/* After TLS is there, or a reply to the login came: on with it. */
static void ratelimit_priv_redis_log_in(ratelimit_priv_redis_conn *conn)
{
#  if defined(RATELIMIT_REDIS_TLS)
    if (conn->tls && !SSL_is_init_finished(conn->tls->ssl))
        return;
#  endif
    if (conn->state != RATELIMIT_PRIV_REDIS_LOGIN || conn->login)
        return;
    if (!conn->redo) {
        ratelimit_priv_redis_ready(conn);
        return;
    }
    conn->redo = false;
    conn->again = true;
    if (!ratelimit_priv_redis_put_login(conn->engine->r, conn))
        ratelimit_priv_redis_lose(conn, ratelimit_priv_redis_no_credentials,
                                  RATELIMIT_PRIV_REDIS_NODE, conn->since_ns);
    else
        (void)ratelimit_priv_redis_pump(conn);
}

/* Of the reply to a command, that to number i of those it was sent for. */
static const redisReply *ratelimit_priv_redis_part(const redisReply *whole, bool alone, size_t i)
{
    return !alone && whole->type == REDIS_REPLY_ARRAY && i < whole->elements ? whole->element[i]
                                                                             : whole;
}

static void ratelimit_priv_redis_on_reply(ratelimit_priv_redis_conn *conn, const redisReply *reply)
{
    ratelimit_redis *r = conn->engine->r;
    char words[200];
    const char *why;
    ratelimit_priv_redis_call *call = conn->sent.first;
    size_t i, n;
    if (conn->state != RATELIMIT_PRIV_REDIS_READY) {
        why = ratelimit_priv_redis_login_reply(r, conn, reply, words, sizeof words);
        if (why == ratelimit_priv_redis_no_master)
            (void)ratelimit_priv_redis_want_map(conn->engine);
        if (why)
            ratelimit_priv_redis_lose(conn, why,
                                      why == ratelimit_priv_redis_no_master
                                          ? RATELIMIT_PRIV_REDIS_NOBODY
                                          : RATELIMIT_PRIV_REDIS_NODE,
                                      conn->since_ns);
        else
            ratelimit_priv_redis_log_in(conn);
        return;
    }
    if (!call) { /* an error reply that answers nobody, as "max number of clients" */
        ratelimit_priv_redis_words(reply->type == REDIS_REPLY_ERROR ? reply->str : "", words,
                                   sizeof words);
        ratelimit_priv_redis_break(conn, words);
        return;
    }
    if (call->skip) {
        call->skip = false;
        return;
    }
    n = call->many;
    for (i = 0; i < n && conn->state == RATELIMIT_PRIV_REDIS_READY; i++) {
        call = conn->sent.first;
        ratelimit_priv_redis_pull(call);
        ratelimit_priv_redis_on_answer(conn, call, ratelimit_priv_redis_part(reply, n == 1, i));
    }
}

/* All replies that are there. False: conn is dead. */
static bool ratelimit_priv_redis_replies(ratelimit_priv_redis_conn *conn)
{
    ratelimit_redis *r = conn->engine->r;
    bool heard = false;
    while (conn->state >= RATELIMIT_PRIV_REDIS_LOGIN) {
        void *reply = NULL;
        if (redisReaderGetReply(conn->reader, &reply) != REDIS_OK) {
            if (conn->reader->err == REDIS_ERR_OOM)
                ratelimit_priv_redis_lose(conn, "out of memory", RATELIMIT_PRIV_REDIS_NOBODY, 0);
            else
                ratelimit_priv_redis_break(conn,
                                           "what came from the server is not Redis' protocol");
            return false;
        }
        if (!reply)
            return true;
        if (!heard && conn->state == RATELIMIT_PRIV_REDIS_READY) {
            conn->heard_ns = ratelimit_clock_ns();
            conn->proven = heard = true;
            pthread_mutex_lock(&r->lock);
            ratelimit_priv_redis_heard(conn->node);
            ratelimit_priv_redis_unlock(r);
        }
        ratelimit_priv_redis_on_reply(conn, (const redisReply *)reply);
        freeReplyObject(reply);
    }
    return false;
}

/* Reads what there is, but not for ever. False: conn is dead. */
static bool ratelimit_priv_redis_receive(ratelimit_priv_redis_conn *conn)
{
    char bytes[16384];
    int rounds;
    for (rounds = 0; rounds < 16; rounds++) {
        const char *why = "the server closed the connection";
        ssize_t n = recv(conn->fd, bytes, sizeof bytes, 0);
        bool good = n > 0;
        if (n < 0 && ratelimit_priv_redis_more_later())
            return true;
        if (n < 0 && errno != ECONNRESET)
            why = "the connection broke";
#  if defined(RATELIMIT_REDIS_TLS)
        if (n > 0 && conn->tls) {
            good = ratelimit_priv_redis_tls_feed(conn, bytes, (int)n);
            if (!good && ratelimit_priv_redis_tls_why())
                why = ratelimit_priv_redis_tls_why();
            if (!ratelimit_priv_redis_replies(conn)) /* before its end */
                return false;
        } else
#  endif
            if (n > 0)
            (void)redisReaderFeed(conn->reader, bytes, (size_t)n); /* replies says if it failed */
        if (!good) {
            ratelimit_priv_redis_break(conn, why);
            return false;
        }
        if (!ratelimit_priv_redis_replies(conn))
            return false;
        if ((size_t)n < sizeof bytes)
            return true;
    }
    return true;
}

/* The socket is connected, or is not: then the next address. */
static void ratelimit_priv_redis_connected(ratelimit_priv_redis_conn *conn)
{
    const ratelimit_redis *r = conn->engine->r;
    const char *why = NULL;
    int error = 0;
    socklen_t len = sizeof error;
    if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        error = errno;
    if (error) {
        ratelimit_priv_redis_dial_next(conn, error);
        return;
    }
    conn->state = RATELIMIT_PRIV_REDIS_LOGIN;
    conn->until = conn->end;
#  if defined(RATELIMIT_REDIS_TLS)
    if (r->tls && !ratelimit_priv_redis_tls_begin(r, conn))
        why = "TLS can't be begun";
#  endif
    if (!why && !ratelimit_priv_redis_put_login(r, conn))
        why = ratelimit_priv_redis_no_credentials;
    if (why)
        ratelimit_priv_redis_lose(conn, why, RATELIMIT_PRIV_REDIS_NODE, conn->since_ns);
    else
        ratelimit_priv_redis_log_in(conn);
}

/* Does what can be done on conn now; events: what its socket is ready for. */
static void ratelimit_priv_redis_step(ratelimit_priv_redis_conn *conn, unsigned events)
{
    if (conn->state == RATELIMIT_PRIV_REDIS_DIALING && events)
        ratelimit_priv_redis_connected(conn);
    if (conn->state >= RATELIMIT_PRIV_REDIS_LOGIN && events & RATELIMIT_REDIS_READ &&
        !ratelimit_priv_redis_receive(conn))
        return;
    if (conn->state < RATELIMIT_PRIV_REDIS_LOGIN || !ratelimit_priv_redis_pump(conn))
        return;
    if (conn->state == RATELIMIT_PRIV_REDIS_LOGIN) {
        ratelimit_priv_redis_log_in(conn);
        if (conn->state == RATELIMIT_PRIV_REDIS_READY && !ratelimit_priv_redis_pump(conn))
            return;
    }
    if (conn->retired && !conn->sent.first && !conn->waiting.first)
        ratelimit_priv_redis_lose(conn, "it is of no use any more", RATELIMIT_PRIV_REDIS_NOBODY, 0);
    else if (conn->state != RATELIMIT_PRIV_REDIS_DEAD)
        (void)ratelimit_priv_redis_watch(conn);
}

/* ---- time ---- */

/* When something of e is due; RATELIMIT_FOREVER: nothing. */
static uint64_t ratelimit_priv_redis_due(const ratelimit_priv_redis_engine *e)
{
    const ratelimit_priv_redis_conn *conn;
    uint64_t next = e->resting.first ? e->rest_ns : RATELIMIT_FOREVER;
    if (!e->map.done && e->map.deadline < next)
        next = e->map.deadline;
    for (conn = e->conns; conn; conn = conn->next)
        if ((conn->state == RATELIMIT_PRIV_REDIS_DIALING ||
             conn->state == RATELIMIT_PRIV_REDIS_LOGIN) &&
            conn->until < next)
            next = conn->until;
    return next;
}

/* Connections that should have been made by now. */
static void ratelimit_priv_redis_overdue(ratelimit_priv_redis_engine *e, uint64_t now)
{
    ratelimit_priv_redis_conn *conn;
    for (conn = e->conns; conn; conn = conn->next) {
        if (conn->state == RATELIMIT_PRIV_REDIS_DIALING && conn->until <= now)
            ratelimit_priv_redis_dial_next(conn, ETIMEDOUT);
        else if (conn->state == RATELIMIT_PRIV_REDIS_LOGIN && conn->until <= now)
            ratelimit_priv_redis_lose(conn, "no connection in time", RATELIMIT_PRIV_REDIS_NODE,
                                      conn->since_ns);
    }
}

/* Those whose rest is over try again, and those that want a connection; in their order. */
static void ratelimit_priv_redis_retry(ratelimit_priv_redis_engine *e, uint64_t now)
{
    static const ratelimit_priv_redis_list none = {NULL, NULL};
    ratelimit_priv_redis_list rested = none, wanting = e->wanting;
    ratelimit_priv_redis_call *call;
    if (e->resting.first && e->rest_ns <= now) {
        rested = e->resting;
        e->resting = none;
    }
    e->wanting = none;
    while ((call = ratelimit_priv_redis_pop(&rested)) != NULL) {
        if (call->at_ns <= now) {
            ratelimit_priv_redis_dispatch(e, call);
            continue;
        }
        if (!e->resting.first || call->at_ns < e->rest_ns)
            e->rest_ns = call->at_ns;
        ratelimit_priv_redis_push(&e->resting, call);
    }
    while ((call = ratelimit_priv_redis_pop(&wanting)) != NULL)
        ratelimit_priv_redis_dispatch(e, call);
}

/* A connection was not made by a call's deadline, but may be yet: then one call at a time goes on
 * with it. */
static void ratelimit_priv_redis_unmade(ratelimit_redis *r, const ratelimit_priv_redis_conn *conn)
{
    ratelimit_priv_redis_node *node = conn->node;
    char text[200];
    ratelimit_priv_redis_at(r, node, "no connection in time", text, sizeof text);
    pthread_mutex_lock(&r->lock);
    (void)snprintf(r->error, sizeof r->error, "%s", text);
    if (node->heard_ns < conn->since_ns) {
        node->down = true;
        node->down_until = 0;
        (void)snprintf(node->why, sizeof node->why, "%s (left alone for a while)", text);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Fails the calls in list, of conn if there is one, whose time is over. */
static void ratelimit_priv_redis_expire_list(ratelimit_priv_redis_engine *e,
                                             ratelimit_priv_redis_list *list,
                                             const ratelimit_priv_redis_conn *conn, uint64_t now)
{
    ratelimit_priv_redis_call *call, *next;
    for (call = list->first; call; call = next) {
        next = call->next;
        if (call->deadline > now)
            continue;
        ratelimit_priv_redis_pull(call);
        if (list == &e->wanting) {
            ratelimit_priv_redis_say(e->r, "all %u connections of the pool are in use",
                                     (unsigned)e->r->o.pool_size);
            ratelimit_priv_redis_fail(e, call, RATELIMIT_PRIV_REDIS_BUSY);
        } else if (conn && conn->state != RATELIMIT_PRIV_REDIS_READY) {
            ratelimit_priv_redis_unmade(e->r, conn);
            ratelimit_priv_redis_fail(e, call, RATELIMIT_PRIV_REDIS_UNREACHED);
        } else {
            ratelimit_priv_redis_late(e, call);
        }
    }
}

/* Ends what is too late, after what came in time was read: it may be we who are late. */
static void ratelimit_priv_redis_expire(ratelimit_priv_redis_engine *e, uint64_t now)
{
    ratelimit_priv_redis_conn *conn;
    const ratelimit_priv_redis_call *call;
    for (conn = e->conns; conn; conn = conn->next)
        if (conn->sent.first)
            ratelimit_priv_redis_step(conn, RATELIMIT_REDIS_READ);
    ratelimit_priv_redis_expire_list(e, &e->resting, NULL, now);
    ratelimit_priv_redis_expire_list(e, &e->wanting, NULL, now);
    for (conn = e->conns; conn; conn = conn->next) {
        if (conn->state == RATELIMIT_PRIV_REDIS_DEAD)
            continue;
        ratelimit_priv_redis_expire_list(e, &conn->waiting, conn, now);
        for (call = conn->sent.first; call && call->deadline > now;)
            call = call->next;
        if (!call)
            continue;
        /* A server that had little time is not to blame. */
        ratelimit_priv_redis_lose(conn, ratelimit_priv_redis_no_answer,
                                  now - call->at_ns >= e->r->timeout_ns / 2
                                      ? RATELIMIT_PRIV_REDIS_MAYBE
                                      : RATELIMIT_PRIV_REDIS_NOBODY,
                                  call->at_ns);
    }
}

/* ---- the map ---- */

static void ratelimit_priv_redis_build_map(ratelimit_priv_redis_call *call,
                                           ratelimit_priv_redis_conn *conn)
{
    if (call->r->o.cluster)
        ratelimit_priv_redis_put_words(conn, 2, "CLUSTER", "SLOTS");
    else
        ratelimit_priv_redis_put_words(conn, 3, "SENTINEL", "get-master-addr-by-name",
                                       call->r->o.master_name);
}

static bool ratelimit_priv_redis_answer_map(ratelimit_priv_redis_call *call,
                                            const redisReply *reply)
{
    ratelimit_priv_redis_engine *e = call->conn->engine;
    ratelimit_priv_redis_conn *conn;
    bool good = reply->type == REDIS_REPLY_ARRAY && reply->elements &&
                ratelimit_priv_redis_map_all(e->r, reply, call->node->host);
    if (!good) {
        ratelimit_priv_redis_say_at(e->r, call->node,
                                    e->r->o.cluster ? "the cluster has no slots yet"
                                                    : "this sentinel knows no master of that name");
        call->failed = true;
    }
    for (conn = e->conns; good && conn; conn = conn->next)
        if (conn->state != RATELIMIT_PRIV_REDIS_DEAD && conn != call->conn && !conn->node->known &&
            !conn->node->seed && !conn->sent.first && !conn->waiting.first)
            ratelimit_priv_redis_lose(conn, "it is no master any more", RATELIMIT_PRIV_REDIS_NOBODY,
                                      0);
    return true;
}

static void ratelimit_priv_redis_ask_map(ratelimit_priv_redis_engine *e)
{
    ratelimit_priv_redis_call *call = &e->map;
    memset(call, 0, sizeof *call);
    call->r = e->r;
    call->any = true;
    call->build = ratelimit_priv_redis_build_map;
    call->answer = ratelimit_priv_redis_answer_map;
    call->deadline = e->deadline ? e->deadline : ratelimit_clock_ns() + e->r->timeout_ns;
    ratelimit_priv_redis_dispatch(e, call);
}

/* Asks for the map, at most every 100 ms, before there is one every 20 ms. True: it is coming. */
static bool ratelimit_priv_redis_want_map(ratelimit_priv_redis_engine *e)
{
    ratelimit_redis *r = e->r;
    uint64_t now = ratelimit_clock_ns();
    bool begin;
    if (!ratelimit_priv_redis_has_map(r))
        return false;
    if (!e->map.done)
        return true;
    pthread_mutex_lock(&r->lock);
    begin = !r->mapping && now >= r->map_at + (r->mapped ? 100 : 20) * RATELIMIT_MILLISECOND;
    if (begin) {
        r->mapping = true;
        r->map_at = now;
    }
    now = r->mapping;
    pthread_mutex_unlock(&r->lock);
    if (!begin)
        return now != 0;
    e->map_tries = 0;
    ratelimit_priv_redis_ask_map(e);
    return !e->map.done || !e->map.failed;
}

/* The map came, or did not: then another server is asked for it. */
static void ratelimit_priv_redis_map_done(ratelimit_priv_redis_engine *e)
{
    ratelimit_redis *r = e->r;
    ratelimit_priv_redis_call *call;
    const ratelimit_priv_redis_node *node;
    uint32_t others = 0;
    bool again;
    pthread_mutex_lock(&r->lock);
    for (node = r->nodes; e->map.failed && node; node = node->next)
        others += node->seed || (r->o.cluster && node->known);
    again = ++e->map_tries < others && e->map.node && ratelimit_clock_ns() < e->map.deadline;
    r->mapping = again;
    ratelimit_priv_redis_unlock(r);
    if (again) {
        ratelimit_priv_redis_ask_map(e);
        return;
    }
    for (call = e->resting.first; call; call = call->next)
        call->at_ns = 0;
    e->rest_ns = 0;
}

/* ---- the thread's driver ---- */

/* Waits until something can be done on e's connections, until there are some, or until `until`. */
static void ratelimit_priv_redis_poll(ratelimit_priv_redis_engine *e, uint64_t until)
{
    struct pollfd polled[RATELIMIT_PRIV_REDIS_AT_ONCE];
    ratelimit_priv_redis_conn *of[RATELIMIT_PRIV_REDIS_AT_ONCE], *conn;
    size_t n = 0, i;
    for (conn = e->conns; conn; conn = conn->next) {
        unsigned events = ratelimit_priv_redis_events(conn);
        if (!events || n == RATELIMIT_PRIV_REDIS_AT_ONCE)
            continue;
        polled[n].fd = conn->fd;
        polled[n].events = (short)((events & RATELIMIT_REDIS_READ ? POLLIN : 0) |
                                   (events & RATELIMIT_REDIS_WRITE ? POLLOUT : 0));
        polled[n].revents = 0;
        of[n++] = conn;
    }
    if (!n && e->wanting.first) {
        const ratelimit_priv_redis_node *node = e->wanting.first->node;
        uint64_t now = ratelimit_clock_ns();
        pthread_mutex_lock(&e->r->lock);
        if (!node->idle && !ratelimit_priv_redis_is_down(node) && now < until &&
            ratelimit_priv_redis_full(e->r, node))
            ratelimit_priv_redis_wait(&e->r->freed, &e->r->lock, until - now);
        pthread_mutex_unlock(&e->r->lock);
        return;
    }
    if (poll(polled, (nfds_t)n, ratelimit_priv_redis_left(until)) <= 0)
        return;
    for (i = 0; i < n; i++)
        if (polled[i].revents && of[i]->state != RATELIMIT_PRIV_REDIS_DEAD)
            ratelimit_priv_redis_step(
                of[i], (polled[i].revents & ~POLLOUT ? RATELIMIT_REDIS_READ : 0u) |
                           (polled[i].revents & POLLOUT ? RATELIMIT_REDIS_WRITE : 0u));
}

static void ratelimit_priv_redis_engine_of(ratelimit_priv_redis_engine *e, ratelimit_redis *r,
                                           uint64_t deadline)
{
    memset(e, 0, sizeof *e);
    e->r = r;
    e->start_ns = ratelimit_clock_ns();
    e->deadline = deadline;
    e->map.done = true;
}

/* call begins its way, which ends at deadline. */
static void ratelimit_priv_redis_begin(ratelimit_priv_redis_engine *e,
                                       ratelimit_priv_redis_call *call, uint64_t deadline)
{
    call->deadline = deadline;
    e->left++;
    ratelimit_priv_redis_dispatch(e, call);
}

/* Runs e until all its calls are done or failed, at the latest a little after its deadline. */
static void ratelimit_priv_redis_run(ratelimit_priv_redis_engine *e)
{
    ratelimit_priv_redis_conn *conn;
    bool last = false;
    while (e->left || !e->map.done) {
        uint64_t now = ratelimit_clock_ns(), due = now + 20 * RATELIMIT_MILLISECOND;
        if (!e->left && !last && due < e->deadline) /* only the map is to come: not for long */
            e->map.deadline = e->deadline = due;
        last = last || !e->left;
        for (conn = e->conns; conn; conn = conn->next)
            if (conn->state == RATELIMIT_PRIV_REDIS_READY && conn->waiting.first)
                (void)ratelimit_priv_redis_pump(conn);
        due = ratelimit_priv_redis_due(e);
        if (e->left || !e->map.done) /* or all failed while they were sent */
            ratelimit_priv_redis_poll(e, due < e->deadline ? due : e->deadline);
        now = ratelimit_clock_ns();
        if (now >= e->deadline)
            ratelimit_priv_redis_expire(e, now);
        ratelimit_priv_redis_overdue(e, now);
        ratelimit_priv_redis_tidy(e);
        ratelimit_priv_redis_retry(e, now);
    }
    ratelimit_priv_redis_tidy(e);
    ratelimit_priv_redis_count_time(e->r, e->start_ns, e->succeeded);
}

/* Runs calls that are no decisions. */
static void ratelimit_priv_redis_run_calls(ratelimit_redis *r, ratelimit_priv_redis_call *calls,
                                           size_t count)
{
    ratelimit_priv_redis_engine e;
    size_t i;
    ratelimit_priv_redis_after_fork(r);
    ratelimit_priv_redis_engine_of(&e, r, ratelimit_priv_redis_deadline(r));
    for (i = 0; i < count; i++)
        ratelimit_priv_redis_begin(&e, &calls[i], e.deadline);
    ratelimit_priv_redis_run(&e);
}

/* ---- >>implementation: states ---------------------------------------------------------------- */

#  define RATELIMIT_PRIV_REDIS_EXACT    UINT64_C(0x20000000000000) /* 2^53 */
#  define RATELIMIT_PRIV_REDIS_TAG_BITS UINT64_C(0x3ffffffff)      /* of a bucket's rest */
enum {
    RATELIMIT_PRIV_REDIS_WHOLE = 21, /* bytes */
    RATELIMIT_PRIV_REDIS_PARTS = 27,
    RATELIMIT_PRIV_REDIS_STATE = 32, /* room for any */
    RATELIMIT_PRIV_REDIS_TRIES = 64
};
/* Kinds of states, see >>implementation: scripts. */
enum {
    RATELIMIT_PRIV_REDIS_KIND_WHOLE,
    RATELIMIT_PRIV_REDIS_KIND_PARTS,
    RATELIMIT_PRIV_REDIS_KIND_BLOCK,
    RATELIMIT_PRIV_REDIS_KIND_BUCKET
};

static void ratelimit_priv_redis_put_le(unsigned char *p, uint64_t value, size_t bytes)
{
    for (; bytes; bytes--, value >>= 8)
        *p++ = (unsigned char)value;
}

static uint64_t ratelimit_priv_redis_get_le(const unsigned char *p, size_t bytes)
{
    uint64_t value = 0;
    while (bytes)
        value = value << 8 | p[--bytes];
    return value;
}

/* A whole number up to 2^53 as the bytes of a double, and back; UINT64_MAX for what is none. */
static void ratelimit_priv_redis_put_double(unsigned char *p, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    ratelimit_priv_redis_put_le(p, bits, 8);
}

static uint64_t ratelimit_priv_redis_get_double(const unsigned char *p)
{
    uint64_t bits = ratelimit_priv_redis_get_le(p, 8), value;
    double number;
    memcpy(&number, &bits, sizeof number);
    if (!(number >= 0) || number > (double)RATELIMIT_PRIV_REDIS_EXACT)
        return UINT64_MAX;
    value = (uint64_t)number;
    return (double)value == number ? value : UINT64_MAX;
}

/* The tag of a bucket with this rest under l, with the parts of a ns if there are any. Returns its
 * length. */
static size_t ratelimit_priv_redis_tag(const ratelimit_limit *l, uint64_t rest, unsigned char *tag)
{
    uint64_t kind =
        l->parts > 1 ? RATELIMIT_PRIV_REDIS_KIND_PARTS : RATELIMIT_PRIV_REDIS_KIND_WHOLE;
    rest = rest >> RATELIMIT_PRIV_CODE_SHIFT & RATELIMIT_PRIV_REDIS_TAG_BITS;
    ratelimit_priv_redis_put_le(tag, rest | kind << 34, 5);
    if (l->parts == 1)
        return 5;
    ratelimit_priv_redis_put_le(tag + 5, l->parts - 1, 3);
    return 8;
}

static void ratelimit_priv_redis_block_tag(unsigned char *tag)
{
    ratelimit_priv_redis_put_le(tag, (uint64_t)RATELIMIT_PRIV_REDIS_KIND_BLOCK << 34, 5);
}

/* May it leave a debt on purpose? */
static bool ratelimit_priv_redis_owes(ratelimit_op op)
{
    return op == RATELIMIT_RESERVE || op == RATELIMIT_CHARGE;
}

static bool ratelimit_priv_redis_is_window(const ratelimit_limit *l)
{
    return l->kind == RATELIMIT_PRIV_WINDOW;
}

static bool ratelimit_priv_redis_is_block(const ratelimit_bucket *b)
{
    return b->rest && ratelimit_priv_class(b->rest) == RATELIMIT_PRIV_CLASS_BLOCK;
}

/* The state of b, saved at now under l. Returns its length, 0 for none. */
static size_t ratelimit_priv_redis_encode(const ratelimit_bucket *b, const ratelimit_limit *l,
                                          uint64_t now, unsigned char *state)
{
    uint64_t nanos = now % 1000, ahead = b->full_ns - now + nanos;
    size_t len = RATELIMIT_PRIV_REDIS_WHOLE;
    if (!b->rest)
        return 0;
    if (ahead >= RATELIMIT_PRIV_REDIS_EXACT) {
        ratelimit_priv_redis_put_le(state, b->full_ns, 8);
        ratelimit_priv_redis_put_le(state + 8, b->rest, 8);
        ratelimit_priv_redis_put_le(state + 16, (uint64_t)RATELIMIT_PRIV_REDIS_KIND_BUCKET << 34,
                                    5);
        return len;
    }
    ratelimit_priv_redis_put_double(state, (double)(now / 1000));
    ratelimit_priv_redis_put_double(state + 8, (double)(ahead));
    if (ratelimit_priv_redis_is_block(b)) {
        ratelimit_priv_redis_block_tag(state + 16);
    } else if (ratelimit_priv_redis_tag(l, b->rest, state + 16) == 8) {
        ratelimit_priv_redis_put_le(state + 24, ratelimit_priv_unpack(b->rest, l), 3);
        len = RATELIMIT_PRIV_REDIS_PARTS;
    }
    if (nanos) {
        ratelimit_priv_redis_put_le(state + len, nanos, 2);
        len += 2;
    }
    return len;
}

/* The bucket of a state; false if neither a script nor encode can have made it. */
static bool ratelimit_priv_redis_decode(const unsigned char *state, size_t len, ratelimit_bucket *b)
{
    uint64_t last, ahead, parts = 1, part = 0, nanos = 0, tag, kind;
    size_t whole = RATELIMIT_PRIV_REDIS_WHOLE;
    memset(b, 0, sizeof *b);
    if (!len)
        return true;
    if (len < whole)
        return false;
    tag = ratelimit_priv_redis_get_le(state + 16, 5);
    kind = tag >> 34;
    b->full_ns = ratelimit_priv_redis_get_le(state, 8);
    b->rest = ratelimit_priv_redis_get_le(state + 8, 8);
    if (kind == RATELIMIT_PRIV_REDIS_KIND_BUCKET)
        return len == whole && ratelimit_priv_class(b->rest) <= RATELIMIT_PRIV_CLASS_BLOCK;
    last = ratelimit_priv_redis_get_double(state);
    ahead = ratelimit_priv_redis_get_double(state + 8);
    if (kind == RATELIMIT_PRIV_REDIS_KIND_PARTS && len >= RATELIMIT_PRIV_REDIS_PARTS) {
        whole = RATELIMIT_PRIV_REDIS_PARTS;
        parts = ratelimit_priv_redis_get_le(state + 21, 3) + 1;
        part = ratelimit_priv_redis_get_le(state + 24, 3);
    }
    if (len == whole + 2)
        nanos = ratelimit_priv_redis_get_le(state + whole, 2);
    b->full_ns = last * 1000 + ahead;
    b->rest = (tag & RATELIMIT_PRIV_REDIS_TAG_BITS) << RATELIMIT_PRIV_CODE_SHIFT;
    if (kind == RATELIMIT_PRIV_REDIS_KIND_BLOCK)
        b->rest = ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_BLOCK);
    b->rest |= ((part << 24) + parts - 1) / parts | ratelimit_priv_seen_bits(ahead - nanos);
    return (len == whole || len == whole + 2) && nanos < 1000 && part < parts &&
           last < RATELIMIT_PRIV_REDIS_EXACT && ahead < RATELIMIT_PRIV_REDIS_EXACT &&
           ahead >= nanos && kind <= RATELIMIT_PRIV_REDIS_KIND_BLOCK &&
           (kind == RATELIMIT_PRIV_REDIS_KIND_PARTS) == (whole == RATELIMIT_PRIV_REDIS_PARTS) &&
           ratelimit_priv_class(b->rest) <= RATELIMIT_PRIV_CLASS_BLOCK;
}

/* ---- >>implementation: store -----------------------------------------------------------------

   A request becomes an entry; one of EACH, or all of an ALL, become one ask, which is one call. The
   script decides and says what the debts were; here they become buckets, ratelimit_priv_decide
   makes the answer of them, and what it would have stored is compared with what the script stored.
   So the arithmetic is that of a table, and a script that decided otherwise would be noticed.

   An ask goes through phases, each a round trip:

       FAST    take, ask or give decides: nearly always the only one
       LOAD    what a script can't do (numbers too large, a bucket twice in an all-or-none): swap
               only reads the states
       STORE   after FAST that found another tag or a clock that was set back, or after LOAD: the
               states came here and were decided; swap puts the new ones if the old ones are still
               there, else the ask begins again with those that are
       DEL     a reset of one key is a plain command

   An example: a limit was changed from 5/m to 10/m. The tag of the stored bucket is not the one in
   the terms, so take returns {state, now}. ratelimit_priv_decide turns the debt into one of the new
   limit and takes a token of it. swap stores that if nobody has charged the key meanwhile. */

typedef struct ratelimit_priv_redis_entry {
    const ratelimit_request *req;
    ratelimit_result *res;
    ratelimit_priv_span cost, most; /* the script passes it if the debt is at most `most` */
    bool settled;                   /* answered without Redis */
    bool never, fits;               /* never: no debt passes; fits: scripts can do it */
    bool stored;                    /* by the script */
    uint32_t number, unique;        /* its place; that of the first with the same bucket */
    ratelimit_bucket before, after;
    unsigned char old[RATELIMIT_PRIV_REDIS_STATE], put[RATELIMIT_PRIV_REDIS_STATE];
    uint32_t old_len, put_len;
    uint64_t ttl_ms;
} ratelimit_priv_redis_entry;

typedef enum ratelimit_priv_redis_phase {
    RATELIMIT_PRIV_REDIS_FAST,
    RATELIMIT_PRIV_REDIS_LOAD,
    RATELIMIT_PRIV_REDIS_STORE,
    RATELIMIT_PRIV_REDIS_DEL
} ratelimit_priv_redis_phase;

typedef struct ratelimit_priv_redis_ask {
    ratelimit_priv_redis_call call; /* must be first */
    ratelimit_priv_redis_entry *entry;
    size_t count, keys; /* keys: different ones, without those of settled entries */
    bool all, wide;
    bool slow; /* scripts can't do it */
    ratelimit_priv_redis_phase phase;
    unsigned script, tries;
    uint64_t now_ns; /* given, for tests */
} ratelimit_priv_redis_ask;

static uint64_t ratelimit_priv_redis_ttl(const ratelimit_redis *r, uint64_t ns)
{
    uint64_t ms = ns / RATELIMIT_MILLISECOND + 2;
    ms = ms < r->o.ttl_min_ms ? r->o.ttl_min_ms : ms;
    return r->o.ttl_max_ms && ms > r->o.ttl_max_ms ? r->o.ttl_max_ms : ms;
}

static bool ratelimit_priv_redis_is_take(ratelimit_op op)
{
    return op == RATELIMIT_TAKE || op == RATELIMIT_PEEK || op == RATELIMIT_RESERVE ||
           op == RATELIMIT_CHARGE;
}

/* What the script needs to know of an entry: cost, and the most debt at which it passes. */
static void ratelimit_priv_redis_reckon(ratelimit_priv_redis_entry *e)
{
    const ratelimit_request *q = e->req;
    const ratelimit_limit *l = q->limit;
    bool window = ratelimit_priv_redis_is_window(l);
    uint64_t n = q->n ? q->n : 1;
    uint64_t top = RATELIMIT_PRIV_REDIS_EXACT - 1001; /* with a clock, up to 999 ns are added */
    e->fits = ratelimit_priv_cost(l, n, &e->cost) && e->cost.ns < top / 4;
    if (q->op == RATELIMIT_TAKE_UP_TO)
        e->fits = l->window_ns < top / 4;
    if (q->op == RATELIMIT_BLOCK)
        e->fits = l->window_ns < top / 4 && q->max_wait_ns < top / 4;
    if (window) {
        e->fits = e->fits && l->per_ns % 1000 == 0 && l->per_ns < top / 4;
        top -= l->per_ns;
    }
    if (!e->fits || !ratelimit_priv_redis_is_take(q->op))
        return;
    top -= e->cost.ns + 1;
    e->never = q->op != RATELIMIT_CHARGE && n > l->burst;
    if (q->op == RATELIMIT_CHARGE) {
        e->most = ratelimit_priv_span_of(top, 0);
    } else if (!e->never) {
        e->most = ratelimit_priv_minus(ratelimit_priv_window(l), e->cost, l->parts);
        if (q->op == RATELIMIT_RESERVE)
            e->most.ns = q->max_wait_ns > top || e->most.ns > top - q->max_wait_ns
                             ? top
                             : e->most.ns + q->max_wait_ns;
        if (e->most.ns >= top)
            e->most = ratelimit_priv_span_of(top, 0);
    }
}

/* Fills in an entry; settled if Redis need not be asked. */
static void ratelimit_priv_redis_prepare(ratelimit_priv_redis_entry *e,
                                         const ratelimit_request *req, ratelimit_result *res)
{
    memset(e, 0, sizeof *e);
    e->req = req;
    e->res = res;
    e->settled = true;
    if (ratelimit_priv_no_key(req)) {
        ratelimit_priv_answer(res, RATELIMIT_BAD_KEY);
        return;
    }
    e->settled = ratelimit_priv_settled(req, res);
    if (!e->settled)
        ratelimit_priv_redis_reckon(e);
}

/* Which entries of a batch have the same bucket. */
static void ratelimit_priv_redis_unify(ratelimit_priv_redis_ask *ask)
{
    size_t i, j;
    for (i = 0; i < ask->count; i++) {
        ratelimit_priv_redis_entry *e = &ask->entry[i];
        e->number = e->unique = (uint32_t)i;
        if (e->settled)
            continue;
        for (j = 0; j < i; j++) {
            const ratelimit_request *q = ask->entry[j].req;
            if (!ask->entry[j].settled && q->key_len == e->req->key_len &&
                q->limit->scope == e->req->limit->scope &&
                memcmp(q->key, e->req->key, q->key_len) == 0) {
                e->unique = (uint32_t)j;
                break;
            }
        }
        ask->keys += e->unique == i;
    }
}

/* Chooses the script. */
static void ratelimit_priv_redis_choose(ratelimit_priv_redis_ask *ask)
{
    ratelimit_priv_redis_entry *e = ask->entry;
    size_t i;
    ask->phase = RATELIMIT_PRIV_REDIS_FAST;
    if (!ask->all && e->req->op == RATELIMIT_RESET) {
        ask->phase = RATELIMIT_PRIV_REDIS_DEL;
        return;
    }
    if (!ask->all && !ratelimit_priv_redis_is_take(e->req->op)) {
        ask->script = RATELIMIT_PRIV_REDIS_GIVE;
        ask->slow = !e->fits;
        if (ask->slow)
            ask->phase = RATELIMIT_PRIV_REDIS_LOAD;
        return;
    }
    for (i = 0; i < ask->count; i++) {
        const ratelimit_limit *l;
        e = &ask->entry[i];
        if (e->settled)
            continue;
        l = e->req->limit;
        ask->wide = ask->wide || l->parts > 1 || ratelimit_priv_redis_is_window(l);
        if (!e->fits || e->unique != i || !ratelimit_priv_redis_is_take(e->req->op))
            ask->slow = true;
    }
    if (ask->slow)
        ask->phase = RATELIMIT_PRIV_REDIS_LOAD;
    ask->script = ask->all || ask->wide ? RATELIMIT_PRIV_REDIS_ASK : RATELIMIT_PRIV_REDIS_TAKE;
}

static void ratelimit_priv_redis_put_keys(const ratelimit_priv_redis_ask *ask,
                                          ratelimit_priv_redis_conn *conn)
{
    size_t i;
    for (i = 0; i < ask->count; i++) {
        const ratelimit_priv_redis_entry *e = &ask->entry[i];
        ratelimit_priv_redis_name name;
        if (e->settled || e->unique != i)
            continue;
        ratelimit_priv_redis_name_bucket(&name, e->req);
        ratelimit_priv_redis_put_name(ask->call.r, conn, &name);
    }
}

static void ratelimit_priv_redis_put_now(const ratelimit_priv_redis_ask *ask,
                                         ratelimit_priv_redis_conn *conn)
{
    if (ask->call.r->o.clock)
        ratelimit_priv_redis_put_u64(conn, ask->now_ns / 1000);
    else
        ratelimit_priv_redis_put_arg(conn, "", 0);
}

static bool ratelimit_priv_redis_bounded(const ratelimit_redis *r)
{
    return r->o.clock || r->o.ttl_min_ms || r->o.ttl_max_ms;
}

/* low, high, now, nanos */
static void ratelimit_priv_redis_put_bounds(const ratelimit_priv_redis_ask *ask,
                                            ratelimit_priv_redis_conn *conn)
{
    const ratelimit_redis *r = ask->call.r;
    if (ratelimit_priv_redis_bounded(r)) {
        ratelimit_priv_redis_put_u64(conn, r->o.ttl_min_ms);
        ratelimit_priv_redis_put_u64(conn, r->o.ttl_max_ms ? r->o.ttl_max_ms
                                                           : RATELIMIT_PRIV_REDIS_EXACT);
    } else {
        ratelimit_priv_redis_put_arg(conn, "", 0);
        ratelimit_priv_redis_put_arg(conn, "", 0);
    }
    ratelimit_priv_redis_put_now(ask, conn);
    ratelimit_priv_redis_put_u64(conn, r->o.clock ? ask->now_ns % 1000 : 0);
}

/* A time that may be too long for scripts: then so long that it makes no difference. */
static void ratelimit_priv_redis_put_ns(ratelimit_priv_redis_conn *conn, uint64_t ns)
{
    ratelimit_priv_redis_put_u64(conn,
                                 ns < RATELIMIT_PRIV_REDIS_EXACT ? ns : RATELIMIT_PRIV_REDIS_EXACT);
}

static void ratelimit_priv_redis_put_span(ratelimit_priv_redis_conn *conn, ratelimit_priv_span span)
{
    ratelimit_priv_redis_put_ns(conn, span.ns);
    ratelimit_priv_redis_put_u64(conn, span.part);
}

/* An ordinary debt above this was made before the clock was set back: the window and step_ns. Of a
 * fixed window only step_ns, see is_far of the scripts. */
static uint64_t ratelimit_priv_redis_far(const ratelimit_limit *l, uint64_t window)
{
    uint64_t step = RATELIMIT_STEP_NS, most = RATELIMIT_PRIV_REDIS_EXACT;
    if (ratelimit_priv_redis_is_window(l))
        return step < most / 2 ? step : most / 2;
    return step > most || window > most - step ? most : window + step;
}

/* What scripts need to know of e. See terms in >>implementation: scripts. only_key: a peek must not
 * pass, or it would be written; else its cost is 0. */
static void ratelimit_priv_redis_put_terms(const ratelimit_priv_redis_entry *e,
                                           ratelimit_priv_redis_conn *conn, bool wide,
                                           bool only_key)
{
    const ratelimit_limit *l = e->req->limit;
    ratelimit_priv_span window = ratelimit_priv_window(l);
    ratelimit_priv_span cost = e->cost;
    bool peek = e->req->op == RATELIMIT_PEEK, owes = ratelimit_priv_redis_owes(e->req->op);
    unsigned char terms[69], *at = terms + (wide ? 24 : 21), *far = terms + (wide ? 32 : 26);
    if (peek)
        cost = ratelimit_priv_span_of(0, 0);
    memset(terms, 0, sizeof terms);
    ratelimit_priv_redis_put_double(terms, (double)e->most.ns);
    if (e->never || (peek && only_key))
        ratelimit_priv_redis_put_double(terms, -1);
    ratelimit_priv_redis_put_double(terms + 8, (double)cost.ns);
    (void)ratelimit_priv_redis_tag(l, l->state, terms + 16);
    (void)ratelimit_priv_redis_tag(l, l->state | RATELIMIT_PRIV_ON_PURPOSE, at);
    ratelimit_priv_redis_put_double(far, (double)ratelimit_priv_redis_far(l, window.ns));
    ratelimit_priv_redis_put_double(far + 8, (double)window.ns);
    if (!wide) {
        ratelimit_priv_redis_put_arg(conn, terms, owes ? 42 : 34);
        return;
    }
    ratelimit_priv_redis_put_le(terms + 48, e->most.part, 3);
    ratelimit_priv_redis_put_le(terms + 51, cost.part, 3);
    ratelimit_priv_redis_put_le(terms + 54, window.part, 3);
    ratelimit_priv_redis_put_le(terms + 57, l->parts - 1, 3);
    if (ratelimit_priv_redis_is_window(l))
        ratelimit_priv_redis_put_double(terms + 60, (double)(l->per_ns / 1000));
    ratelimit_priv_redis_put_arg(conn, terms, owes ? 69 : 68);
}

static void ratelimit_priv_redis_build_take(const ratelimit_priv_redis_ask *ask,
                                            ratelimit_priv_redis_conn *conn)
{
    bool bounded = ratelimit_priv_redis_bounded(ask->call.r);
    ratelimit_priv_redis_put_script(&ask->call, conn, RATELIMIT_PRIV_REDIS_TAKE, 1,
                                    bounded ? 5 : 1);
    ratelimit_priv_redis_put_keys(ask, conn);
    ratelimit_priv_redis_put_terms(ask->entry, conn, false, true);
    if (bounded)
        ratelimit_priv_redis_put_bounds(ask, conn);
}

static void ratelimit_priv_redis_build_ask(const ratelimit_priv_redis_ask *ask,
                                           ratelimit_priv_redis_conn *conn)
{
    size_t i;
    ratelimit_priv_redis_put_script(&ask->call, conn, RATELIMIT_PRIV_REDIS_ASK, ask->keys,
                                    4 + ask->keys);
    ratelimit_priv_redis_put_keys(ask, conn);
    ratelimit_priv_redis_put_bounds(ask, conn);
    for (i = 0; i < ask->count; i++)
        if (!ask->entry[i].settled)
            ratelimit_priv_redis_put_terms(&ask->entry[i], conn, ask->wide, false);
}

/* The cost of one token or, with a fraction, the costs of 2^k tokens, from the most that is within
 * the window and below n, down to one. With conn they are put; returns how many. */
static size_t ratelimit_priv_redis_powers(const ratelimit_priv_redis_entry *e,
                                          ratelimit_priv_redis_conn *conn)
{
    const ratelimit_limit *l = e->req->limit;
    ratelimit_priv_span cost;
    size_t count = 0;
    int k;
    for (k = l->parts > 1 ? 62 : 0; k >= 0; k--) {
        uint64_t power = UINT64_C(1) << k;
        if (power > e->req->n || power > l->burst || !ratelimit_priv_cost(l, power, &cost))
            continue;
        count++;
        if (conn)
            ratelimit_priv_redis_put_span(conn, cost);
    }
    return count;
}

/* The spans that take_up_to, refund, cancel or block need. */
static void ratelimit_priv_redis_put_spans(const ratelimit_priv_redis_entry *e,
                                           ratelimit_priv_redis_conn *conn)
{
    const ratelimit_request *q = e->req;
    const ratelimit_limit *l = q->limit;
    ratelimit_priv_span window = ratelimit_priv_window(l), then, cost = e->cost;
    switch (q->op) {
    case RATELIMIT_TAKE_UP_TO:
        if (q->n > l->burst || !ratelimit_priv_cost(l, q->n, &cost))
            cost = ratelimit_priv_span_of(UINT64_MAX, 0);
        ratelimit_priv_redis_put_span(conn, cost);
        (void)ratelimit_priv_redis_powers(e, conn);
        return;
    case RATELIMIT_BLOCK:
        ratelimit_priv_redis_put_span(conn, ratelimit_priv_span_of(q->max_wait_ns, 0));
        ratelimit_priv_redis_put_span(
            conn, ratelimit_priv_minus(window, ratelimit_priv_interval(l), l->parts));
        ratelimit_priv_redis_put_ns(
            conn, ratelimit_priv_redis_is_window(l) ? l->per_ns : window.ns - l->interval_ns);
        return;
    case RATELIMIT_TAKE:
    case RATELIMIT_PEEK:
    case RATELIMIT_RESERVE:
    case RATELIMIT_CHARGE:
    case RATELIMIT_REFUND:
    case RATELIMIT_CANCEL:
    case RATELIMIT_RESET:
    default: /* owes it more than `then`, others have reserved later */
        then = ratelimit_priv_span_of(UINT64_MAX, 0);
        if (q->op == RATELIMIT_CANCEL) {
            then = window;
            then.ns =
                q->max_wait_ns < RATELIMIT_PRIV_REDIS_EXACT ? then.ns + q->max_wait_ns : UINT64_MAX;
            if (!q->max_wait_ns || q->max_wait_ns > RATELIMIT_PRIV_MAX)
                cost = ratelimit_priv_span_of(0, 0);
        }
        ratelimit_priv_redis_put_span(conn, then);
        ratelimit_priv_redis_put_span(conn, cost);
    }
}

static void ratelimit_priv_redis_build_give(const ratelimit_priv_redis_ask *ask,
                                            ratelimit_priv_redis_conn *conn)
{
    const ratelimit_priv_redis_entry *e = ask->entry;
    ratelimit_op op = e->req->op;
    unsigned char tag[5];
    size_t spans = op == RATELIMIT_TAKE_UP_TO ? 2 + 2 * ratelimit_priv_redis_powers(e, NULL)
                   : op == RATELIMIT_BLOCK    ? 5
                                              : 4;
    ratelimit_priv_redis_put_script(&ask->call, conn, RATELIMIT_PRIV_REDIS_GIVE, 1, 7 + spans);
    ratelimit_priv_redis_put_keys(ask, conn);
    ratelimit_priv_redis_put_bounds(ask, conn);
    ratelimit_priv_redis_put_terms(e, conn, true, false);
    ratelimit_priv_redis_block_tag(tag);
    ratelimit_priv_redis_put_arg(conn, tag, sizeof tag);
    ratelimit_priv_redis_put_text(conn, op == RATELIMIT_TAKE_UP_TO ? "up_to"
                                        : op == RATELIMIT_BLOCK    ? "block"
                                                                   : "back");
    ratelimit_priv_redis_put_spans(e, conn);
}

static void ratelimit_priv_redis_build_swap(const ratelimit_priv_redis_ask *ask,
                                            ratelimit_priv_redis_conn *conn)
{
    bool store = ask->phase == RATELIMIT_PRIV_REDIS_STORE;
    size_t i;
    ratelimit_priv_redis_put_script(&ask->call, conn, RATELIMIT_PRIV_REDIS_SWAP, ask->keys,
                                    store ? 1 + 3 * ask->keys : 1);
    ratelimit_priv_redis_put_keys(ask, conn);
    ratelimit_priv_redis_put_now(ask, conn);
    for (i = 0; store && i < ask->count; i++) {
        const ratelimit_priv_redis_entry *e = &ask->entry[i];
        if (e->settled || e->unique != i)
            continue;
        ratelimit_priv_redis_put_arg(conn, e->old, e->old_len);
        ratelimit_priv_redis_put_arg(conn, e->put, e->put_len);
        ratelimit_priv_redis_put_u64(conn, e->ttl_ms);
    }
}

static void ratelimit_priv_redis_build(ratelimit_priv_redis_call *call,
                                       ratelimit_priv_redis_conn *conn)
{
    const ratelimit_priv_redis_ask *ask = (const ratelimit_priv_redis_ask *)(const void *)call;
    if (ask->phase == RATELIMIT_PRIV_REDIS_DEL) {
        ratelimit_priv_redis_put_size(conn, '*', 2);
        ratelimit_priv_redis_put_text(conn, "DEL");
        ratelimit_priv_redis_put_keys(ask, conn);
    } else if (ask->phase != RATELIMIT_PRIV_REDIS_FAST) {
        ratelimit_priv_redis_build_swap(ask, conn);
    } else if (ask->script == RATELIMIT_PRIV_REDIS_TAKE) {
        ratelimit_priv_redis_build_take(ask, conn);
    } else if (ask->script == RATELIMIT_PRIV_REDIS_ASK) {
        ratelimit_priv_redis_build_ask(ask, conn);
    } else {
        ratelimit_priv_redis_build_give(ask, conn);
    }
}

/* True if call can be one of several in a command, with first if there is one: what take does, not
 * in a cluster, where each key has its slot. */
static bool ratelimit_priv_redis_merges(const ratelimit_priv_redis_call *call,
                                        const ratelimit_priv_redis_call *first_or_null)
{
    const ratelimit_priv_redis_ask *ask = (const ratelimit_priv_redis_ask *)(const void *)call,
                                   *first;
    if (call->r->o.cluster || call->r->o.one_key || call->r->apart || call->apart ||
        call->build != ratelimit_priv_redis_build || ask->phase != RATELIMIT_PRIV_REDIS_FAST ||
        ask->script != RATELIMIT_PRIV_REDIS_TAKE)
        return false;
    if (!first_or_null)
        return true;
    first = (const ratelimit_priv_redis_ask *)(const void *)first_or_null;
    return call->eval == first_or_null->eval && ask->now_ns == first->now_ns;
}

/* Are the arguments of two takes the same, but for their keys? */
static bool ratelimit_priv_redis_alike(const ratelimit_priv_redis_entry *a,
                                       const ratelimit_priv_redis_entry *b)
{
    return a->req->limit->state == b->req->limit->state &&
           a->req->limit->window_ns == b->req->limit->window_ns && a->most.ns == b->most.ns &&
           a->cost.ns == b->cost.ns &&
           (a->req->op == RATELIMIT_PEEK) == (b->req->op == RATELIMIT_PEEK) &&
           ratelimit_priv_redis_owes(a->req->op) == ratelimit_priv_redis_owes(b->req->op);
}

static void ratelimit_priv_redis_build_many(ratelimit_priv_redis_call *const *calls, size_t count,
                                            ratelimit_priv_redis_conn *conn)
{
    const ratelimit_priv_redis_ask *first =
        (const ratelimit_priv_redis_ask *)(const void *)calls[0];
    const ratelimit_priv_redis_ask *ask;
    size_t i, told = 1;
    for (i = 1; i < count && told == 1; i++) {
        ask = (const ratelimit_priv_redis_ask *)(const void *)calls[i];
        if (!ratelimit_priv_redis_alike(first->entry, ask->entry))
            told = count;
    }
    ratelimit_priv_redis_put_script(calls[0], conn, RATELIMIT_PRIV_REDIS_MANY, count, 4 + told);
    for (i = 0; i < count; i++)
        ratelimit_priv_redis_put_keys((const ratelimit_priv_redis_ask *)(const void *)calls[i],
                                      conn);
    ratelimit_priv_redis_put_bounds(first, conn);
    for (i = 0; i < told; i++) {
        ask = (const ratelimit_priv_redis_ask *)(const void *)calls[i];
        ratelimit_priv_redis_put_terms(ask->entry, conn, false, true);
    }
}

/* True if b must be stored where a is. When it was seen need not be, nor that it is full. */
static bool ratelimit_priv_redis_differs(const ratelimit_bucket *a, const ratelimit_bucket *b,
                                         uint64_t now)
{
    if (!b->rest)
        return ratelimit_priv_redis_is_block(a) || ratelimit_priv_left(a, now) != 0;
    return a->full_ns != b->full_ns ||
           (a->rest ^ b->rest) & ((UINT64_C(1) << RATELIMIT_PRIV_SEEN_SHIFT) - 1);
}

/* A request of a batch that is not carried out: what must be stored all the same (a changed limit,
 * a clock that was set back). */
static void ratelimit_priv_redis_touch(ratelimit_bucket *b, const ratelimit_request *req,
                                       uint64_t now)
{
    ratelimit_request refused = *req;
    refused.op = RATELIMIT_TAKE;
    refused.n = UINT64_MAX;
    if (req->op != RATELIMIT_PEEK)
        (void)ratelimit_priv_decide(b, &refused, now, RATELIMIT_STEP_NS, NULL);
}

/* A batch of which something was refused: as ratelimit_table_decide says. */
static void ratelimit_priv_redis_none(ratelimit_priv_redis_ask *ask, uint64_t now)
{
    uint64_t longest = 0;
    size_t i;
    for (i = 0; i < ask->count; i++) {
        ask->entry[i].after = ask->entry[i].before;
        if (ask->entry[i].res->retry_after_ns > longest)
            longest = ask->entry[i].res->retry_after_ns;
    }
    for (i = 0; i < ask->count; i++) {
        ratelimit_priv_redis_entry *e = &ask->entry[i];
        if (!e->settled)
            ratelimit_priv_redis_touch(&ask->entry[e->unique].after, e->req, now);
        if (!e->res->allowed)
            continue;
        if (!e->settled) {
            ratelimit_bucket copy = ask->entry[e->unique].after;
            ratelimit_request peek = *e->req;
            peek.op = RATELIMIT_PEEK;
            peek.n = 1;
            (void)ratelimit_priv_decide(&copy, &peek, now, RATELIMIT_STEP_NS, e->res);
        }
        e->res->status = RATELIMIT_SKIPPED;
        e->res->allowed = false;
        e->res->taken = e->res->wait_ns = 0;
        e->res->retry_after_ns = longest;
    }
}

/* Decides all entries on their buckets `before`, at now, into res and `after`. True if some bucket
 * is to be stored. */
static bool ratelimit_priv_redis_reply(ratelimit_priv_redis_ask *ask, uint64_t now)
{
    bool refused = false, changed = false;
    size_t i;
    for (i = 0; i < ask->count; i++)
        ask->entry[i].after = ask->entry[i].before;
    for (i = 0; i < ask->count; i++) {
        ratelimit_priv_redis_entry *e = &ask->entry[i];
        if (!e->settled)
            (void)ratelimit_priv_decide(&ask->entry[e->unique].after, e->req, now,
                                        RATELIMIT_STEP_NS, e->res);
        refused = refused || !e->res->allowed;
    }
    if (ask->all && refused)
        ratelimit_priv_redis_none(ask, now);
    for (i = 0; i < ask->count; i++)
        changed = changed ||
                  ratelimit_priv_redis_differs(&ask->entry[i].before, &ask->entry[i].after, now);
    return changed;
}

static bool ratelimit_priv_redis_give_up(ratelimit_priv_redis_call *call, const char *why)
{
    ratelimit_priv_redis_say(call->r, "%s", why);
    call->failed = true;
    call->cause = RATELIMIT_PRIV_REDIS_REFUSED;
    return true;
}

static bool ratelimit_priv_redis_odd(ratelimit_priv_redis_call *call)
{
    return ratelimit_priv_redis_give_up(call, "Redis sent an answer that makes no sense");
}

/* The limit under which e's bucket was saved last: that of one of the entries with this bucket. */
static const ratelimit_limit *ratelimit_priv_redis_saved_under(const ratelimit_priv_redis_ask *ask,
                                                               const ratelimit_priv_redis_entry *e)
{
    const ratelimit_limit *l = e->req->limit;
    size_t i;
    for (i = e->number; i < ask->count; i++) {
        const ratelimit_priv_redis_entry *other = &ask->entry[i];
        if (!other->settled && other->unique == e->number &&
            !((e->after.rest ^ other->req->limit->state) & RATELIMIT_PRIV_CODE))
            l = other->req->limit;
    }
    return l;
}

/* Decides on states that came from Redis: reply elements from `first` on. True: done. */
static bool ratelimit_priv_redis_on_states(ratelimit_priv_redis_call *call, const redisReply *reply,
                                           size_t first, const redisReply *time)
{
    ratelimit_priv_redis_ask *ask = (ratelimit_priv_redis_ask *)(void *)call;
    uint64_t now = ask->call.r->o.clock ? ask->now_ns : (uint64_t)time->integer * 1000;
    size_t i, j = first;
    if (++ask->tries > RATELIMIT_PRIV_REDIS_TRIES)
        return ratelimit_priv_redis_give_up(call, "others changed the key each time it was tried");
    call->pause = ask->tries > 3;
    for (i = 0; i < ask->count; i++) {
        ratelimit_priv_redis_entry *e = &ask->entry[i];
        const redisReply *state;
        if (e->settled || e->unique != i)
            continue;
        state = j < reply->elements ? reply->element[j++] : NULL;
        if (!state || state->type != REDIS_REPLY_STRING ||
            (size_t)state->len > RATELIMIT_PRIV_REDIS_STATE ||
            !ratelimit_priv_redis_decode((const unsigned char *)state->str, (size_t)state->len,
                                         &e->before))
            return ratelimit_priv_redis_give_up(
                call, "the key holds something else: choose a prefix that nobody uses");
        memcpy(e->old, state->str, (size_t)state->len);
        e->old_len = (uint32_t)state->len;
    }
    if (!ratelimit_priv_redis_reply(ask, now))
        return true;
    for (i = 0; i < ask->count; i++) {
        ratelimit_priv_redis_entry *e = &ask->entry[i];
        if (e->settled || e->unique != i)
            continue;
        if (ratelimit_priv_redis_differs(&e->before, &e->after, now)) {
            e->put_len = (uint32_t)ratelimit_priv_redis_encode(
                &e->after, ratelimit_priv_redis_saved_under(ask, e), now, e->put);
        } else {
            memcpy(e->put, e->old, e->old_len);
            e->put_len = e->old_len;
        }
        e->ttl_ms = ratelimit_priv_redis_ttl(ask->call.r, ratelimit_priv_left(&e->after, now));
    }
    ask->phase = RATELIMIT_PRIV_REDIS_STORE;
    return false;
}

/* The bucket of a debt that a script found, at now; and whether the script stored something. What
 * the script has judged is not judged again: as a debt on purpose, seen when it was longest, it is
 * taken as it is. */
static void ratelimit_priv_redis_found(ratelimit_priv_redis_entry *e, uint64_t now, long long ns,
                                       long long part)
{
    const ratelimit_limit *l = e->req->limit;
    ratelimit_priv_span ahead = ratelimit_priv_span_of((uint64_t)ns, (uint32_t)part);
    memset(&e->before, 0, sizeof e->before);
    if (e->req->op == RATELIMIT_BLOCK) {
        e->before.full_ns = now + ahead.ns;
        e->before.rest = ratelimit_priv_class_bits(RATELIMIT_PRIV_CLASS_BLOCK);
    } else if (ns || part) {
        e->before.full_ns = now + ahead.ns;
        e->before.rest = l->state | RATELIMIT_PRIV_ON_PURPOSE | ratelimit_priv_pack(ahead.part, l);
    }
    if (e->before.rest)
        e->before.rest |= ratelimit_priv_seen_bits(RATELIMIT_PRIV_MAX);
    e->stored = true;
    if (!ratelimit_priv_redis_is_take(e->req->op))
        return;
    if (ratelimit_priv_redis_is_window(l))
        ahead = ratelimit_priv_minus(ahead, ratelimit_priv_span_of(l->per_ns - now % l->per_ns, 0),
                                     l->parts);
    e->stored = !e->never && e->req->op != RATELIMIT_PEEK && !ratelimit_priv_above(ahead, e->most);
}

/* After a script decided: makes the answers, and checks that what they store is what it stored. */
static bool ratelimit_priv_redis_on_debts(ratelimit_priv_redis_call *call, uint64_t now)
{
    ratelimit_priv_redis_ask *ask = (ratelimit_priv_redis_ask *)(void *)call;
    bool changed = ratelimit_priv_redis_reply(ask, now), stored = true;
    size_t i;
    for (i = 0; i < ask->count; i++) {
        const ratelimit_priv_redis_entry *e = &ask->entry[i];
        stored = stored && (e->settled || e->stored ||
                            (ask->all && e->req->op == RATELIMIT_PEEK && e->res->allowed));
    }
    if (changed && !stored) {
        ask->phase = RATELIMIT_PRIV_REDIS_LOAD; /* too large for the script */
        ask->slow = true;
        return false;
    }
    return true;
}

/* The debts in an answer of ask or give. */
static bool ratelimit_priv_redis_on_fast(ratelimit_priv_redis_call *call, const redisReply *reply)
{
    ratelimit_priv_redis_ask *ask = (ratelimit_priv_redis_ask *)(void *)call;
    bool give = ask->script == RATELIMIT_PRIV_REDIS_GIVE, wide = give || ask->wide;
    size_t i, j = wide && !give, stride = wide ? 2 : 1;
    uint64_t now = ask->call.r->o.clock ? ask->now_ns : 0;
    if (reply->elements != wide + ask->keys * stride)
        return ratelimit_priv_redis_odd(call);
    for (i = 0; i < reply->elements; i++)
        if (reply->element[i]->type != REDIS_REPLY_INTEGER || reply->element[i]->integer < 0)
            return ratelimit_priv_redis_odd(call);
    if (wide && !ask->call.r->o.clock)
        now = (uint64_t)reply->element[give ? 2 : 0]->integer * 1000;
    for (i = 0; i < ask->count; i++) {
        ratelimit_priv_redis_entry *e = &ask->entry[i];
        long long part;
        if (e->settled)
            continue;
        part = wide ? reply->element[j + 1]->integer : 0;
        if (part >= (long long)e->req->limit->parts)
            return ratelimit_priv_redis_odd(call);
        ratelimit_priv_redis_found(e, now, reply->element[j]->integer, part);
        j += stride;
    }
    return ratelimit_priv_redis_on_debts(call, now);
}

static bool ratelimit_priv_redis_answer(ratelimit_priv_redis_call *call, const redisReply *reply)
{
    ratelimit_priv_redis_ask *ask = (ratelimit_priv_redis_ask *)(void *)call;
    const redisReply *first;
    if (ask->phase == RATELIMIT_PRIV_REDIS_DEL ||
        (ask->phase == RATELIMIT_PRIV_REDIS_STORE && reply->type == REDIS_REPLY_INTEGER)) {
        if (ask->phase == RATELIMIT_PRIV_REDIS_DEL)
            (void)ratelimit_priv_redis_reply(ask, 0);
        return true;
    }
    if (reply->type == REDIS_REPLY_INTEGER && ask->script == RATELIMIT_PRIV_REDIS_TAKE &&
        ask->phase == RATELIMIT_PRIV_REDIS_FAST && reply->integer >= 0) {
        uint64_t now = ask->call.r->o.clock ? ask->now_ns : 0;
        ratelimit_priv_redis_found(ask->entry, now, reply->integer, 0);
        return ratelimit_priv_redis_on_debts(call, now);
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0)
        return ratelimit_priv_redis_odd(call);
    first = reply->element[0];
    if (ask->phase == RATELIMIT_PRIV_REDIS_STORE && !ask->slow) {
        ask->phase = RATELIMIT_PRIV_REDIS_FAST; /* changed meanwhile, so by now the script can */
        return false;
    }
    if (ask->phase != RATELIMIT_PRIV_REDIS_FAST) /* swap: {now, state, ...} */
        return first->type == REDIS_REPLY_INTEGER
                   ? ratelimit_priv_redis_on_states(call, reply, 1, first)
                   : ratelimit_priv_redis_odd(call);
    if (first->type == REDIS_REPLY_INTEGER && ask->script != RATELIMIT_PRIV_REDIS_TAKE)
        return ratelimit_priv_redis_on_fast(call, reply);
    if (reply->elements < 2 || reply->element[1]->type != REDIS_REPLY_INTEGER)
        return ratelimit_priv_redis_odd(call);
    return ratelimit_priv_redis_on_states(
        call, reply, ask->script == RATELIMIT_PRIV_REDIS_ASK ? 2 : 0, reply->element[1]);
}

/* In a cluster, the slot of all keys of ask; false if there are several. */
static bool ratelimit_priv_redis_one_slot(const ratelimit_priv_redis_ask *ask, uint32_t *slot)
{
    bool found = false;
    size_t i;
    for (i = 0; i < ask->count; i++) {
        const ratelimit_priv_redis_entry *e = &ask->entry[i];
        ratelimit_priv_redis_name name;
        uint32_t other;
        if (e->settled)
            continue;
        ratelimit_priv_redis_name_bucket(&name, e->req);
        other = ratelimit_priv_redis_slot(ask->call.r, &name);
        if (found && other != *slot)
            return false;
        *slot = other;
        found = true;
    }
    return true;
}

/* Makes ask of count entries ready to be sent; false if all is settled already. */
static bool ratelimit_priv_redis_start(ratelimit_redis *r, ratelimit_priv_redis_ask *ask,
                                       ratelimit_priv_redis_entry *entry, size_t count, bool all,
                                       uint64_t now_ns)
{
    bool bad = false;
    size_t i;
    memset(ask, 0, sizeof *ask);
    ask->call.r = r;
    ask->entry = entry;
    ask->count = count;
    ask->all = all;
    ask->now_ns = now_ns;
    ratelimit_priv_redis_unify(ask);
    if (!ask->keys) {
        if (all)
            (void)ratelimit_priv_redis_reply(ask, 0);
        return false;
    }
    if ((r->o.cluster || r->o.one_key) && !ratelimit_priv_redis_one_slot(ask, &ask->call.slot)) {
        ratelimit_priv_redis_say(r, "all-or-none needs its keys in one slot: put "
                                    "what they share in braces (a hash tag), as in "
                                    "\"{alice}:login\" and \"{alice}:api\", or set "
                                    "options.all_in_turn");
        for (i = 0; i < count; i++)
            ratelimit_priv_answer(entry[i].res, RATELIMIT_UNSUPPORTED);
        return false;
    }
    for (i = 0; i < count; i++) /* one request is invalid: the others are only looked at */
        bad = bad || (entry[i].settled && !entry[i].res->allowed);
    for (i = 0; i < count; i++)
        entry[i].never = entry[i].never || bad;
    ratelimit_priv_redis_choose(ask);
    ask->call.build = ratelimit_priv_redis_build;
    ask->call.answer = ratelimit_priv_redis_answer;
    return true;
}

/* ---- batches: requests that are decided together ----

   A thread's call of decide is a batch, and so is a call of async_take. Of EACH, every request is
   an ask of its own; of ALL, all of them are one ask. The batch is done when its last ask is.

   All or none over several slots (options.all_in_turn) goes slot by slot: `order` brings requests
   of a slot together, and puts first what can be given back, last what is settled. Entries from
   `from` to `end` are being asked, as one all-or-none. If they are refused, those before them are
   given back, and those after them are looked at, all at once; that is the last step. */

typedef struct ratelimit_priv_redis_batch {
    ratelimit_redis *r;
    ratelimit_priv_redis_engine *e;
    void (*changed)(struct ratelimit_priv_redis_batch *b); /* it is done, or got more time */
    const ratelimit_request *req;
    ratelimit_result *res;
    size_t count, left; /* left: calls that are not done */
    ratelimit_mode mode;
    uint64_t now_ns, deadline;
    ratelimit_priv_ask *tier; /* NULL, or what a tier in front has to know until the answers */
    bool sent, done;
    ratelimit_priv_redis_entry *entry;
    ratelimit_priv_redis_ask *ask;
    /* For options.all_in_turn; order is NULL if that is not needed. */
    bool back, failed;
    size_t open, from, end;    /* open: entries that are not settled */
    uint32_t *order, *slot;    /* which request an entry is of; its slot */
    ratelimit_request *second; /* what is asked when one has refused, and the answers */
    ratelimit_result *told;
} ratelimit_priv_redis_batch;

/* Room for count things at *size of base, aligned; with base NULL it is only added to *size. */
static void *ratelimit_priv_redis_cut(char *base, size_t *size, size_t count, size_t bytes)
{
    char *at = base ? base + *size : NULL;
    *size += (count * bytes + 15) / 16 * 16;
    return at;
}

/* Places what b needs in base, behind `size` bytes. Returns where it ends. */
static size_t ratelimit_priv_redis_batch_place(ratelimit_priv_redis_batch *b, char *base,
                                               size_t size)
{
    size_t n = b->count, turns = b->mode == RATELIMIT_ALL && b->r->o.all_in_turn ? n : 0;
    b->entry =
        (ratelimit_priv_redis_entry *)ratelimit_priv_redis_cut(base, &size, n, sizeof *b->entry);
    b->ask = (ratelimit_priv_redis_ask *)ratelimit_priv_redis_cut(base, &size, n, sizeof *b->ask);
    if (!turns)
        return size;
    b->second = (ratelimit_request *)ratelimit_priv_redis_cut(base, &size, n, sizeof *b->second);
    b->told = (ratelimit_result *)ratelimit_priv_redis_cut(base, &size, n, sizeof *b->told);
    b->order = (uint32_t *)ratelimit_priv_redis_cut(base, &size, n, sizeof *b->order);
    b->slot = (uint32_t *)ratelimit_priv_redis_cut(base, &size, n, sizeof *b->slot);
    return size;
}

/* Can a request not be taken back? */
static bool ratelimit_priv_redis_is_final(const ratelimit_request *req)
{
    return req->op != RATELIMIT_PEEK &&
           (ratelimit_priv_redis_is_window(req->limit) || req->op == RATELIMIT_REFUND ||
            req->op == RATELIMIT_CANCEL || req->op == RATELIMIT_BLOCK ||
            req->op == RATELIMIT_RESET);
}

/* Finds the order in which entries are asked. False: all are of one slot, or what can't be taken
 * back is of several. */
static bool ratelimit_priv_redis_batch_order(ratelimit_priv_redis_batch *b)
{
    enum { NONE = RATELIMIT_PRIV_REDIS_SLOTS, SETTLED };
    ratelimit_priv_redis_entry spare;
    ratelimit_result answer;
    uint32_t last = NONE;
    size_t i, j;
    if (!b->r->o.cluster && !b->r->o.one_key)
        return false;
    for (i = 0; i < b->count; i++) {
        ratelimit_priv_redis_name name;
        b->slot[i] = SETTLED;
        ratelimit_priv_redis_prepare(&spare, &b->req[i], &answer);
        if (spare.settled)
            continue;
        ratelimit_priv_redis_name_bucket(&name, &b->req[i]);
        b->slot[i] = ratelimit_priv_redis_slot(b->r, &name);
        if (!ratelimit_priv_redis_is_final(&b->req[i]))
            continue;
        if (last != NONE && last != b->slot[i])
            return false;
        last = b->slot[i];
    }
    for (i = 0; i < b->count; i++)
        if (b->slot[i] == last)
            b->slot[i] = NONE;       /* behind all others */
    for (i = 0; i < b->count; i++) { /* a slot's requests stay in their order */
        for (j = i; j > 0 && b->slot[b->order[j - 1]] > b->slot[i]; j--)
            b->order[j] = b->order[j - 1];
        b->order[j] = (uint32_t)i;
        b->open += b->slot[i] != SETTLED;
    }
    return b->open && b->slot[b->order[0]] != b->slot[b->order[b->open - 1]];
}

/* What takes back what req did, as res tells; a peek if that is nothing. */
static ratelimit_request ratelimit_priv_redis_undo(const ratelimit_request *req,
                                                   const ratelimit_result *res)
{
    ratelimit_request undo = *req;
    undo.n = res->taken;
    undo.max_wait_ns = res->wait_ns;
    undo.op = !res->taken || req->op == RATELIMIT_PEEK ? RATELIMIT_PEEK
              : res->wait_ns                           ? RATELIMIT_CANCEL
                                                       : RATELIMIT_REFUND;
    return undo;
}

/* A tier in front has answered request i. */
static bool ratelimit_priv_redis_is_here(const ratelimit_priv_redis_batch *b, size_t i)
{
    return b->tier && b->tier[i].what == RATELIMIT_PRIV_HERE;
}

/* Sends n entries from k on as one ask, if Redis need be asked. */
static void ratelimit_priv_redis_batch_ask(ratelimit_priv_redis_batch *b, size_t k, size_t n,
                                           bool all)
{
    ratelimit_priv_redis_ask *ask = &b->ask[k];
    if (!ratelimit_priv_redis_start(b->r, ask, &b->entry[k], n, all, b->now_ns))
        return;
    ask->call.batch = b;
    b->sent = true;
    b->left++;
    ratelimit_priv_redis_begin(b->e, &ask->call, b->deadline);
}

/* One slot has refused or failed: gives back what the slots before it took, and looks at those
 * after it. */
static void ratelimit_priv_redis_batch_back(ratelimit_priv_redis_batch *b)
{
    size_t k;
    b->back = true;
    b->deadline += b->r->timeout_ns / 3;
    b->changed(b);
    for (k = 0; k < b->open; k++) {
        const ratelimit_request *req = &b->req[b->order[k]];
        if (k >= b->from && k < b->end)
            continue;
        b->second[k] = *req;
        b->second[k].op = RATELIMIT_PEEK;
        if (k < b->from)
            b->second[k] = ratelimit_priv_redis_undo(req, &b->res[b->order[k]]);
        ratelimit_priv_redis_prepare(&b->entry[k], &b->second[k], &b->told[k]);
        ratelimit_priv_redis_batch_ask(b, k, 1, false);
    }
}

/* What could be given back is: makes the results. */
static void ratelimit_priv_redis_batch_end(ratelimit_priv_redis_batch *b)
{
    uint64_t longest = 0;
    size_t k;
    for (k = 0; k < b->open; k++) {
        const ratelimit_request *req = &b->req[b->order[k]];
        ratelimit_result *res = &b->res[b->order[k]];
        uint64_t wait = req->op == RATELIMIT_RESERVE ? req->max_wait_ns : 0;
        if (k >= b->from && k < b->end)
            continue;
        *res = b->told[k];
        if (b->ask[k].call.failed)
            ratelimit_priv_answer(res, RATELIMIT_SKIPPED);
        else if (k < b->from || res->allowed || req->op == RATELIMIT_CHARGE ||
                 (res->status == RATELIMIT_DENIED && res->retry_after_ns <= wait))
            res->status = RATELIMIT_SKIPPED;
    }
    for (k = 0; k < b->count; k++)
        if (b->res[k].status != RATELIMIT_SKIPPED && b->res[k].retry_after_ns > longest)
            longest = b->res[k].retry_after_ns;
    for (k = 0; k < b->count; k++) {
        ratelimit_result *res = &b->res[k];
        if (res->status == RATELIMIT_OK) /* settled: unlimited */
            res->status = RATELIMIT_SKIPPED;
        res->allowed = false;
        res->taken = res->wait_ns = 0;
        if (res->status == RATELIMIT_SKIPPED)
            res->retry_after_ns = longest;
    }
    if (b->failed)
        ratelimit_priv_fail(b->res, b->count, RATELIMIT_STORE_FAILED);
}

/* All or none in turn: the next step, which may be settled at once. False: all is decided. */
static bool ratelimit_priv_redis_batch_turn(ratelimit_priv_redis_batch *b)
{
    bool bad = false;
    size_t k;
    b->left = 1; /* so that it is not done before all are out */
    if (b->back) {
        ratelimit_priv_redis_batch_end(b);
        return false;
    }
    for (k = b->from; k < b->end; k++)
        bad = bad || !b->res[b->order[k]].allowed;
    b->failed = b->end && b->ask[b->from].call.failed;
    if (!b->end) /* before the first: a mistake among them refuses all */
        for (k = 0; k < b->count; k++) {
            ratelimit_result *res = &b->res[b->order[k]];
            ratelimit_priv_redis_prepare(&b->entry[k], &b->req[b->order[k]], res);
            bad = bad || (b->entry[k].settled && !res->allowed);
        }
    if (bad) {
        ratelimit_priv_redis_batch_back(b);
        return true;
    }
    if (b->end == b->open)
        return false;
    b->from = b->end;
    while (b->end < b->open && b->slot[b->order[b->end]] == b->slot[b->order[b->from]])
        b->end++;
    ratelimit_priv_redis_batch_ask(b, b->from, b->end - b->from, true);
    return true;
}

/* One thing less keeps b from being done. */
static void ratelimit_priv_redis_batch_less(ratelimit_priv_redis_batch *b)
{
    while (--b->left == 0)
        if (!b->order || !ratelimit_priv_redis_batch_turn(b)) {
            b->done = true;
            b->changed(b);
            return;
        }
}

static void ratelimit_priv_redis_batch_settled(ratelimit_priv_redis_call *call)
{
    ratelimit_priv_redis_ask *ask = (ratelimit_priv_redis_ask *)(void *)call;
    size_t i;
    for (i = 0; call->failed && i < ask->count; i++)
        ratelimit_priv_answer(ask->entry[i].res, RATELIMIT_STORE_FAILED);
    ratelimit_priv_redis_batch_less(call->batch);
}

/* Makes b, which has its place, ready to begin. */
static void ratelimit_priv_redis_batch_plan(ratelimit_priv_redis_batch *b)
{
    b->now_ns = b->r->o.clock ? b->r->o.clock(b->r->o.clock_self) : 0;
    if (b->order && !ratelimit_priv_redis_batch_order(b))
        b->order = NULL;
    if (b->order)
        b->deadline -= b->r->timeout_ns / 3; /* the rest is for giving back */
}

/* Sends the asks of b; when the last is answered, or none is needed, b is done. */
static void ratelimit_priv_redis_batch_begin(ratelimit_priv_redis_batch *b)
{
    bool beyond = b->now_ns / 1000 >= RATELIMIT_PRIV_REDIS_EXACT, all = b->mode == RATELIMIT_ALL;
    size_t i;
    b->left = 1; /* so that it is not done before all are out */
    if (beyond)
        ratelimit_priv_redis_say(b->r, "the clock is beyond the year 2255");
    for (i = 0; i < b->count; i++) {
        if (ratelimit_priv_redis_is_here(b, i)) {
            b->order = NULL; /* then so are the others of an all-or-none */
            continue;
        }
        if (beyond) {
            ratelimit_priv_answer(&b->res[i], RATELIMIT_STORE_FAILED);
            b->order = NULL;
            continue;
        }
        if (b->order) /* batch_turn prepares them, in their order */
            continue;
        ratelimit_priv_redis_prepare(&b->entry[i], &b->req[i], &b->res[i]);
        if (!all)
            ratelimit_priv_redis_batch_ask(b, i, 1, false);
        else if (i + 1 == b->count)
            ratelimit_priv_redis_batch_ask(b, 0, b->count, true);
    }
    ratelimit_priv_redis_batch_less(b);
}

/* A thread's batch has more time. */
static void ratelimit_priv_redis_decide_changed(ratelimit_priv_redis_batch *b)
{
    b->e->deadline = b->deadline;
}

static void ratelimit_priv_redis_decide_some(ratelimit_redis *r, const ratelimit_request *req,
                                             ratelimit_result *res, size_t count,
                                             ratelimit_mode mode, uint64_t deadline)
{
    ratelimit_priv_redis_engine e;
    ratelimit_priv_redis_batch b;
    ratelimit_priv_redis_entry entry;
    ratelimit_priv_redis_ask ask;
    char *memory = NULL;
    memset(&b, 0, sizeof b);
    b.r = r;
    b.e = &e;
    b.changed = ratelimit_priv_redis_decide_changed;
    b.req = req;
    b.res = res;
    b.count = count;
    b.mode = count == 1 ? RATELIMIT_EACH : mode;
    b.deadline = deadline;
    b.entry = &entry;
    b.ask = &ask;
    if (count > 1) { /* one is on the stack, more are on the heap */
        memory = (char *)malloc(ratelimit_priv_redis_batch_place(&b, NULL, 0));
        if (!memory) {
            ratelimit_priv_redis_say(r, "out of memory");
            ratelimit_priv_fail(res, count, RATELIMIT_STORE_FAILED);
            return;
        }
        (void)ratelimit_priv_redis_batch_place(&b, memory, 0);
    }
    ratelimit_priv_redis_batch_plan(&b);
    ratelimit_priv_redis_engine_of(&e, r, b.deadline);
    ratelimit_priv_redis_batch_begin(&b);
    if (b.sent)
        ratelimit_priv_redis_run(&e);
    free(memory);
}

static void ratelimit_priv_redis_decide(const ratelimit_store *store, const ratelimit_request *req,
                                        ratelimit_result *res, size_t count, ratelimit_mode mode)
{
    const size_t most = 1024;
    ratelimit_redis *r = (ratelimit_redis *)store->self;
    uint64_t deadline;
    size_t some;
    if (!res || !count)
        return;
    if (!r || !req ||
        (mode == RATELIMIT_ALL ? count > RATELIMIT_MAX_ALL : mode != RATELIMIT_EACH)) {
        ratelimit_priv_fail(res, count, RATELIMIT_BAD_ARGUMENT);
        return;
    }
    ratelimit_priv_redis_after_fork(r);
    deadline = ratelimit_priv_redis_deadline(r);
    for (; count; req += some, res += some, count -= some) {
        some = count < most || mode == RATELIMIT_ALL ? count : most;
        ratelimit_priv_redis_decide_some(r, req, res, some, mode, deadline);
    }
}

RATELIMIT_API void ratelimit_redis_stats(ratelimit_redis *r, ratelimit_redis_counts *out)
{
    const ratelimit_priv_redis_node *node;
    if (!out)
        return;
    ratelimit_priv_copy_counts(out, r ? &r->counts : NULL, sizeof *out);
    if (!r)
        return;
    ratelimit_priv_redis_after_fork(r);
    pthread_mutex_lock(&r->lock);
    for (node = r->nodes; node; node = node->next)
        out->connections += node->open;
    pthread_mutex_unlock(&r->lock);
    if (out->last_success_ms) {
        uint64_t now = ratelimit_clock_ns(), ago = now - out->last_success_ms;
        struct timespec wall;
        (void)clock_gettime(CLOCK_REALTIME, &wall);
        out->last_success_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000 -
                               (now > out->last_success_ms ? ago / RATELIMIT_MILLISECOND : 0);
    }
}

/* A number of thousandths as a family of one sample in seconds. */
static void ratelimit_priv_redis_say_seconds(ratelimit_priv_page *p, const char *name,
                                             const char *help, const char *labels, uint64_t ms)
{
    char digits[5] = {'.', (char)('0' + ms / 100 % 10), (char)('0' + ms / 10 % 10),
                      (char)('0' + ms % 10), 0};
    ratelimit_priv_say_family(p, name, help);
    ratelimit_priv_say(p, name);
    if (*labels) {
        ratelimit_priv_say(p, "{");
        ratelimit_priv_say(p, labels);
        ratelimit_priv_say(p, "}");
    }
    ratelimit_priv_say_field(p, " ", ms / 1000);
    ratelimit_priv_say(p, digits);
    ratelimit_priv_say(p, "\n");
}

#  define RATELIMIT_PRIV_REDIS_FAILURE(field, help)                                                \
    {                                                                                              \
      "ratelimit_redis_failures_total", help, "kind=\"" #field "\"",                               \
          offsetof(ratelimit_redis_counts, field)                                                  \
    }

RATELIMIT_API size_t ratelimit_redis_metrics(const ratelimit_redis_counts *counts,
                                             const char *labels_or_null, char *buf,
                                             size_t buf_bytes)
{
    static const ratelimit_priv_sample samples[] = {
        RATELIMIT_PRIV_TOTAL(ratelimit_redis_counts, "redis_", calls,
                             "Requests that Redis was asked."),
        RATELIMIT_PRIV_TOTAL(ratelimit_redis_counts, "redis_", round_trips,
                             "Waits for a Redis server; requests that go out together share one."),
        RATELIMIT_PRIV_REDIS_FAILURE(unreached, "Requests that failed, by what went wrong."),
        RATELIMIT_PRIV_REDIS_FAILURE(busy, NULL),
        RATELIMIT_PRIV_REDIS_FAILURE(lost, NULL),
        RATELIMIT_PRIV_REDIS_FAILURE(late, NULL),
        RATELIMIT_PRIV_REDIS_FAILURE(refused, NULL),
        RATELIMIT_PRIV_TOTAL(ratelimit_redis_counts, "redis_", connects,
                             "Connections to Redis that were made."),
        RATELIMIT_PRIV_SAMPLE(ratelimit_redis_counts, connections, "redis_connections",
                              "Connections to Redis that are open.")};
    const char *labels = labels_or_null ? labels_or_null : "";
    ratelimit_priv_page p;
    ratelimit_priv_page_begin(&p, buf, buf_bytes);
    if (counts) {
        RATELIMIT_PRIV_SAMPLES(&p, samples, counts, labels);
        ratelimit_priv_redis_say_seconds(&p, "ratelimit_redis_waited_seconds_total",
                                         "Time that calls of Redis took.", labels,
                                         counts->waited_ns / RATELIMIT_MILLISECOND);
        ratelimit_priv_redis_say_seconds(&p, "ratelimit_redis_last_success_timestamp_seconds",
                                         "When Redis answered a request last.", labels,
                                         counts->last_success_ms);
    }
    return ratelimit_priv_page_end(&p);
}

static size_t ratelimit_priv_redis_store_metrics(const ratelimit_store *store, const char *labels,
                                                 char *buf, size_t buf_bytes)
{
    ratelimit_redis_counts counts;
    ratelimit_redis_stats((ratelimit_redis *)store->self, &counts);
    return ratelimit_redis_metrics(&counts, labels, buf, buf_bytes);
}

RATELIMIT_API ratelimit_store ratelimit_redis_store(ratelimit_redis *r)
{
    ratelimit_store store = ratelimit_priv_store(r, ratelimit_priv_redis_decide, NULL, NULL);
    store.metrics = ratelimit_priv_redis_store_metrics;
    return store;
}

/* ---- >>implementation: open and close -------------------------------------------------------- */

/* A number of digits only, up to most. */
static bool ratelimit_priv_redis_number(const char *from, const char *to, int most, int *value)
{
    *value = 0;
    if (from == to)
        return false;
    for (; from < to; from++) {
        if (*from < '0' || *from > '9' || *value > (most - (*from - '0')) / 10)
            return false;
        *value = *value * 10 + (*from - '0');
    }
    return true;
}

static size_t ratelimit_priv_redis_hosts(ratelimit_redis *r, const ratelimit_redis_options *o);

static bool ratelimit_priv_redis_good_options(const ratelimit_redis_options *o)
{
    size_t hosts = ratelimit_priv_redis_hosts(NULL, o);
    return hosts && (hosts == 1 || o->cluster || o->master_name) && o->port >= 0 &&
           o->port < 65536 && o->database >= 0 && !(o->cluster && o->database) &&
           !((o->cluster || o->master_name) && o->unix_path) && !(o->cluster && o->master_name) &&
           !(o->master_name && !*o->master_name) && !(o->user && !o->password) &&
           !(o->credentials && o->password) && !(o->sentinel_user && !o->sentinel_password) &&
           (!o->unix_path || (*o->unix_path && strlen(o->unix_path) < 104)) &&
           !(o->client_name && (!*o->client_name || strpbrk(o->client_name, " \n"))) &&
           !o->tls_cert == !o->tls_key && !(o->tls_name && !*o->tls_name) &&
           !(o->ttl_max_ms && o->ttl_min_ms > o->ttl_max_ms) &&
           o->ttl_min_ms < RATELIMIT_PRIV_REDIS_EXACT && o->ttl_max_ms < RATELIMIT_PRIV_REDIS_EXACT;
}

/* The next of several hosts, from *at on: host, 0 or its port. False: it is none. */
static bool ratelimit_priv_redis_next_host(const char **at, const char **host, size_t *len,
                                           int *port)
{
    const char *end = *at + strcspn(*at, ","), *colon = NULL, *from = *at, *to = end;
    *port = 0;
    if (*from == '[') {
        from++;
        to = (const char *)memchr(from, ']', (size_t)(end - from));
        if (!to || (to + 1 < end && to[1] != ':'))
            return false;
        colon = to + 1 < end ? to + 1 : NULL;
    } else {
        colon = (const char *)memchr(from, ':', (size_t)(end - from));
        if (colon && memchr(colon + 1, ':', (size_t)(end - colon - 1)))
            colon = NULL; /* an IPv6 address */
        to = colon ? colon : end;
    }
    *host = from;
    *len = (size_t)(to - from);
    *at = *end ? end + 1 : end;
    return *len && (!*end || end[1]) &&
           (!colon || (ratelimit_priv_redis_number(colon + 1, end, 65535, port) && *port));
}

/* Makes the nodes of the options; with r NULL only counts them. 0: a mistake, or no memory. */
static size_t ratelimit_priv_redis_hosts(ratelimit_redis *r, const ratelimit_redis_options *o)
{
    const char *at = o->host ? o->host : "127.0.0.1", *host;
    size_t count = 0, len;
    int port;
    while (*at || !count) {
        ratelimit_priv_redis_node *node;
        if (!ratelimit_priv_redis_next_host(&at, &host, &len, &port))
            return 0;
        count++;
        if (!r)
            continue;
        port = port ? port : o->port ? o->port : o->master_name ? 26379 : 6379;
        node = ratelimit_priv_redis_node_at(r, host, len, port);
        if (!node)
            return 0;
        node->seed = true;
    }
    return count;
}

/* Copies the texts of r->o. False: no memory. */
static bool ratelimit_priv_redis_copy_texts(ratelimit_redis *r)
{
    const char **text[] = {&r->o.host,          &r->o.unix_path,         &r->o.user,
                           &r->o.password,      &r->o.master_name,       &r->o.prefix,
                           &r->o.sentinel_user, &r->o.sentinel_password, &r->o.client_name,
                           &r->o.tls_ca,        &r->o.tls_cert,          &r->o.tls_key,
                           &r->o.tls_name};
    size_t i, bytes = 1, count = sizeof text / sizeof text[0];
    char *at;
    for (i = 0; i < count; i++)
        bytes += *text[i] ? strlen(*text[i]) + 1 : 0;
    at = r->texts = (char *)malloc(bytes);
    for (i = 0; at && i < count; i++) {
        size_t len = *text[i] ? strlen(*text[i]) + 1 : 0;
        if (!len)
            continue;
        memcpy(at, *text[i], len);
        *text[i] = at;
        at += len;
    }
    return at != NULL;
}

static uint64_t ratelimit_priv_redis_or(uint32_t ms, uint32_t normally)
{
    return RATELIMIT_MILLISECOND * (ms ? ms : normally);
}

static bool ratelimit_priv_redis_fill(ratelimit_redis *r, const ratelimit_redis_options *o)
{
    bool good;
    unsigned i;
    r->pid = getpid();
    r->o = *o;
    r->o.prefix = o->prefix ? o->prefix : "ratelimit:";
    r->o.pool_size = o->pool_size ? o->pool_size : 16;
    r->prefix_len = strlen(r->o.prefix);
    r->connect_timeout_ns = ratelimit_priv_redis_or(o->connect_timeout_ms, 500);
    r->timeout_ns = ratelimit_priv_redis_or(o->timeout_ms, 300);
    r->cool_down_ns = ratelimit_priv_redis_or(o->cool_down_ms, 500);
    r->max_idle_ns = ratelimit_priv_redis_or(o->max_idle_ms, 30000);
    r->mix = (ratelimit_clock_ns() ^ (uint64_t)(uintptr_t)r ^ (uint64_t)r->pid << 40) | 1;
    for (i = 0; i < RATELIMIT_PRIV_REDIS_SCRIPTS; i++)
        ratelimit_priv_redis_sha1(ratelimit_priv_redis_script[i], r->sha[i]);
    good = ratelimit_priv_redis_copy_texts(r) && ratelimit_priv_redis_hosts(r, o);
    r->slots =
        (ratelimit_priv_redis_node **)calloc(ratelimit_priv_redis_slots(r), sizeof *r->slots);
    if (!r->slots)
        return false;
    r->slots[0] = r->nodes;
    r->mapped = !ratelimit_priv_redis_has_map(r);
    return good;
}

RATELIMIT_API ratelimit_redis *ratelimit_redis_open(const ratelimit_redis_options *options,
                                                    ratelimit_status *status_or_null)
{
    ratelimit_redis_options none;
    ratelimit_status spare, *status = status_or_null ? status_or_null : &spare;
    ratelimit_redis *r;
    memset(&none, 0, sizeof none);
    *status = RATELIMIT_BAD_ARGUMENT;
    if (!options)
        options = &none;
    if (!ratelimit_priv_redis_good_options(options))
        return NULL;
#  if !defined(RATELIMIT_REDIS_TLS)
    *status = RATELIMIT_UNSUPPORTED;
    if (options->tls)
        return NULL;
#  endif
    *status = RATELIMIT_NO_MEMORY;
    r = (ratelimit_redis *)calloc(1, sizeof *r);
    if (!r)
        return NULL;
    pthread_mutex_init(&r->lock, NULL);
    ratelimit_priv_redis_init_cond(&r->freed);
    if (!ratelimit_priv_redis_fill(r, options)) {
        ratelimit_redis_close(r);
        return NULL;
    }
#  if defined(RATELIMIT_REDIS_TLS)
    if (options->tls) {
        r->tls = ratelimit_priv_redis_tls_open(options);
        if (!r->tls) {
            *status = RATELIMIT_SYNTAX;
            ratelimit_redis_close(r);
            return NULL;
        }
    }
#  endif
    *status = RATELIMIT_OK;
    return r;
}

/* Text from `from` to `to`, its %-escapes undone; false if it does not fit or they are wrong. */
static bool ratelimit_priv_redis_unescape(char *out, size_t room, const char *from, const char *to)
{
    size_t len = 0;
    for (; from < to; from++) {
        int i, value = 0;
        char c = *from;
        if (c == '%') {
            for (i = 1; i <= 2; i++) {
                char d = from + i < to ? from[i] : 'x';
                value = value * 16 + (d >= '0' && d <= '9'   ? d - '0'
                                      : d >= 'a' && d <= 'f' ? d - 'a' + 10
                                      : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                                             : -1000);
            }
            if (value <= 0)
                return false;
            c = (char)value;
            from += 2;
        }
        if (len + 1 >= room)
            return false;
        out[len++] = c;
    }
    out[len] = 0;
    return true;
}

typedef struct ratelimit_priv_redis_url {
    char user[256], password[1024], host[1024], path[128], master[256];
} ratelimit_priv_redis_url;

/* What comes after "//" and the login. */
static bool ratelimit_priv_redis_url_place(const char *at, bool local, ratelimit_priv_redis_url *u,
                                           ratelimit_redis_options *o)
{
    const char *end = at + strlen(at), *stop = at + strcspn(at, local ? "?" : "/?");
    const char *ask = at + strcspn(at, "?");
    if (local) {
        o->unix_path = u->path;
        return *at == '/' && ratelimit_priv_redis_unescape(u->path, sizeof u->path, at, stop) &&
               (stop == end || (strncmp(stop, "?db=", 4) == 0 &&
                                ratelimit_priv_redis_number(stop + 4, end, INT_MAX, &o->database)));
    }
    if (*ask) {
        if (strncmp(ask, "?master=", 8) != 0 ||
            !ratelimit_priv_redis_unescape(u->master, sizeof u->master, ask + 8, end) ||
            !*u->master)
            return false;
        o->master_name = u->master;
    }
    o->host = u->host;
    return ratelimit_priv_redis_unescape(u->host, sizeof u->host, at, stop) &&
           ratelimit_priv_redis_hosts(NULL, o) &&
           (stop == ask || stop + 1 == ask ||
            ratelimit_priv_redis_number(stop + 1, ask, INT_MAX, &o->database));
}

/* The options that a URL and *options_or_null make together; the texts are in *u. */
static bool ratelimit_priv_redis_url_read(const char *url,
                                          const ratelimit_redis_options *options_or_null,
                                          ratelimit_priv_redis_url *u, ratelimit_redis_options *o,
                                          ratelimit_status *status_or_null)
{
    static const char *const scheme[] = {"redis://", "rediss://", "unix://"};
    const char *at, *login;
    size_t i = 0;
    if (status_or_null)
        *status_or_null = url ? RATELIMIT_SYNTAX : RATELIMIT_BAD_ARGUMENT;
    memset(o, 0, sizeof *o);
    if (options_or_null)
        *o = *options_or_null;
    while (url && i < 3 && strncmp(url, scheme[i], strlen(scheme[i])) != 0)
        i++;
    if (!url || i == 3)
        return false;
    o->tls = i == 1;
    at = url + strlen(scheme[i]);
    login = strchr(at, '@');
    if (login) {
        const char *colon = strchr(at, ':');
        colon = colon && colon < login ? colon : login;
        if (!ratelimit_priv_redis_unescape(u->user, sizeof u->user, at, colon) ||
            !ratelimit_priv_redis_unescape(u->password, sizeof u->password,
                                           colon < login ? colon + 1 : login, login))
            return false;
        if (*u->user)
            o->user = u->user;
        if (colon < login)
            o->password = u->password;
        at = login + 1;
    }
    return ratelimit_priv_redis_url_place(at, i == 2, u, o);
}

RATELIMIT_API ratelimit_redis *
ratelimit_redis_open_url(const char *url, const ratelimit_redis_options *options_or_null,
                         ratelimit_status *status_or_null)
{
    ratelimit_priv_redis_url u;
    ratelimit_redis_options o;
    return ratelimit_priv_redis_url_read(url, options_or_null, &u, &o, status_or_null)
               ? ratelimit_redis_open(&o, status_or_null)
               : NULL;
}

static void ratelimit_priv_redis_build_ping(ratelimit_priv_redis_call *call,
                                            ratelimit_priv_redis_conn *conn)
{
    (void)call;
    ratelimit_priv_redis_put_words(conn, 1, "PING");
}

static bool ratelimit_priv_redis_answer_ping(ratelimit_priv_redis_call *call,
                                             const redisReply *reply)
{
    return reply->type == REDIS_REPLY_STATUS || ratelimit_priv_redis_odd(call);
}

RATELIMIT_API ratelimit_status ratelimit_redis_ping(ratelimit_redis *r)
{
    ratelimit_priv_redis_call call;
    if (!r)
        return RATELIMIT_BAD_ARGUMENT;
    memset(&call, 0, sizeof call);
    call.r = r;
    call.build = ratelimit_priv_redis_build_ping;
    call.answer = ratelimit_priv_redis_answer_ping;
    ratelimit_priv_redis_run_calls(r, &call, 1);
    return call.failed ? RATELIMIT_STORE_FAILED : RATELIMIT_OK;
}

RATELIMIT_API void ratelimit_redis_close(ratelimit_redis *r)
{
    if (!r)
        return;
    ratelimit_priv_redis_after_fork(r);
    while (r->nodes) {
        ratelimit_priv_redis_node *node = r->nodes;
        r->nodes = node->next;
        ratelimit_priv_redis_drop(r, &node->idle);
        ratelimit_priv_redis_drop(r, &node->half);
        free(node->host);
        free(node);
    }
    ratelimit_priv_redis_close_conns(r->dropped);
#  if defined(RATELIMIT_REDIS_TLS)
    SSL_CTX_free(r->tls);
#  endif
    free(r->slots);
    free(r->texts);
    pthread_cond_destroy(&r->freed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* ---- >>implementation: windows, semaphores, locks ----------------------------------------------

   All of them are one call of a script on one name, with a few numbers and ids as arguments, and
   whole numbers as the reply. Each public function checks what it was given, fills in an eval, runs
   it, and says what the numbers mean. */

#  define RATELIMIT_PRIV_REDIS_TTL (UINT64_C(1) << 42) /* ms */

typedef struct ratelimit_priv_redis_eval {
    ratelimit_priv_redis_call call[2]; /* must be first; the script, and WAIT behind it */
    unsigned script;
    ratelimit_priv_redis_name name[2]; /* the second: of a fence */
    size_t names, args, id_count;
    uint64_t arg[4];
    const ratelimit_redis_permit *id;      /* arguments after those */
    const ratelimit_priv_redis_conn *conn; /* it was built on */
    bool replicated;                       /* as many replicas as are wanted have it */
    long long *reply;
    size_t room;
} ratelimit_priv_redis_eval;

static void ratelimit_priv_redis_build_eval(ratelimit_priv_redis_call *call,
                                            ratelimit_priv_redis_conn *conn)
{
    ratelimit_priv_redis_eval *e = (ratelimit_priv_redis_eval *)(void *)call;
    size_t i;
    e->conn = conn;
    ratelimit_priv_redis_put_script(call, conn, e->script, e->names, e->args + e->id_count);
    for (i = 0; i < e->names; i++)
        ratelimit_priv_redis_put_name(call->r, conn, &e->name[i]);
    for (i = 0; i < e->args; i++)
        ratelimit_priv_redis_put_u64(conn, e->arg[i]);
    for (i = 0; i < e->id_count; i++) {
        const char *id = e->id[i].id, *end = (const char *)memchr(id, 0, 32);
        ratelimit_priv_redis_put_arg(conn, id, end ? (size_t)(end - id) : 32);
    }
}

static bool ratelimit_priv_redis_answer_eval(ratelimit_priv_redis_call *call,
                                             const redisReply *reply)
{
    ratelimit_priv_redis_eval *e = (ratelimit_priv_redis_eval *)(void *)call;
    size_t i;
    if (reply->type == REDIS_REPLY_INTEGER && e->room == 1) {
        e->reply[0] = reply->integer;
        return true;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != e->room)
        return ratelimit_priv_redis_odd(call);
    for (i = 0; i < e->room; i++) {
        if (reply->element[i]->type != REDIS_REPLY_INTEGER)
            return ratelimit_priv_redis_odd(call);
        e->reply[i] = reply->element[i]->integer;
    }
    return true;
}

/* WAIT tells how many replicas have what was written on its connection before. So it is sent again
 * when the script is, and is worth nothing on another connection (the slot moves). */
static void ratelimit_priv_redis_build_wait(ratelimit_priv_redis_call *call,
                                            ratelimit_priv_redis_conn *conn)
{
    ratelimit_priv_redis_eval *e = (ratelimit_priv_redis_eval *)(void *)(call - 1);
    uint64_t now = ratelimit_clock_ns(), left = call->deadline > now ? call->deadline - now : 0;
    e->replicated = e->conn == conn;
    ratelimit_priv_redis_put_size(conn, '*', 3);
    ratelimit_priv_redis_put_text(conn, "WAIT");
    ratelimit_priv_redis_put_u64(conn, call->r->o.wait_replicas);
    ratelimit_priv_redis_put_u64(conn, left / 2 / RATELIMIT_MILLISECOND + 1);
}

static bool ratelimit_priv_redis_answer_wait(ratelimit_priv_redis_call *call,
                                             const redisReply *reply)
{
    const ratelimit_priv_redis_call *script = call - 1;
    ratelimit_priv_redis_eval *e = (ratelimit_priv_redis_eval *)(void *)(call - 1);
    if (reply->type != REDIS_REPLY_INTEGER)
        return ratelimit_priv_redis_odd(call);
    call->pause = !script->done && script->rests;
    e->replicated = e->replicated && reply->integer >= (long long)call->r->o.wait_replicas;
    if (script->done && !script->failed && !e->replicated)
        ratelimit_priv_redis_say(call->r, "only %d of %u replicas have the lock in time",
                                 (int)reply->integer, (unsigned)call->r->o.wait_replicas);
    return script->done;
}

/* An eval of script on what is called key; arguments are to be added. */
static void ratelimit_priv_redis_eval_of(ratelimit_priv_redis_eval *e, ratelimit_redis *r,
                                         unsigned script, const void *key, size_t key_len,
                                         const ratelimit_redis_permit *id, size_t id_count)
{
    static const char kind[] = "bbbbbwscpppll"; /* of what each script works on */
    memset(e, 0, sizeof *e);
    e->script = script;
    e->id = id;
    e->id_count = id_count;
    e->names = 1;
    ratelimit_priv_redis_name_of(&e->name[0], kind[script], key, key_len);
    if (script == RATELIMIT_PRIV_REDIS_LOCK) {
        e->names = 2;
        ratelimit_priv_redis_name_of(&e->name[1], 'f', key, key_len);
    }
    e->call[0].r = r;
    e->call[0].urgent = script == RATELIMIT_PRIV_REDIS_OWNED; /* a lock's time passes meanwhile */
    e->call[0].build = ratelimit_priv_redis_build_eval;
    e->call[0].answer = ratelimit_priv_redis_answer_eval;
    if (r->o.cluster)
        e->call[0].slot = ratelimit_priv_redis_slot(r, &e->name[0]);
}

/* Runs e, whose reply is `room` numbers. OK or STORE_FAILED. */
static ratelimit_status ratelimit_priv_redis_do(ratelimit_priv_redis_eval *e, long long *reply,
                                                size_t room)
{
    ratelimit_priv_redis_call *call = e->call;
    bool waits = call->r->o.wait_replicas && e->script >= RATELIMIT_PRIV_REDIS_LOCK &&
                 e->arg[0]; /* not for unlock */
    e->reply = reply;
    e->room = room;
    memset(reply, 0, room * sizeof *reply);
    call[1] = call[0];
    call[1].build = ratelimit_priv_redis_build_wait;
    call[1].answer = ratelimit_priv_redis_answer_wait;
    ratelimit_priv_redis_run_calls(call->r, call, waits ? 2 : 1);
    if (call[0].failed || (waits && reply[0] == 1 && (call[1].failed || !e->replicated)))
        return RATELIMIT_STORE_FAILED;
    return RATELIMIT_OK;
}

/* The same where the reply is one number, and 1 is good. OK, `otherwise` or STORE_FAILED. */
static ratelimit_status ratelimit_priv_redis_do_one(ratelimit_priv_redis_eval *e,
                                                    ratelimit_status otherwise)
{
    long long reply;
    ratelimit_status status = ratelimit_priv_redis_do(e, &reply, 1);
    return status == RATELIMIT_OK && reply != 1 ? otherwise : status;
}

static ratelimit_status ratelimit_priv_redis_good(const ratelimit_redis *r, const void *key,
                                                  size_t key_len, uint64_t most, uint64_t ttl_ms)
{
    if (!r)
        return RATELIMIT_BAD_ARGUMENT;
    if (!key || !key_len)
        return RATELIMIT_BAD_KEY;
    return most && most <= UINT64_C(1) << 31 && ttl_ms && ttl_ms <= RATELIMIT_PRIV_REDIS_TTL
               ? RATELIMIT_OK
               : RATELIMIT_BAD_ARGUMENT;
}

/* Counts n with a script of windows. True if the window has decided: then *out has what is alike
 * for both kinds, and reply what Redis said. */
static bool ratelimit_priv_redis_count_in(ratelimit_redis *r, unsigned script, const void *key,
                                          size_t key_len, uint64_t most, uint64_t per_ms,
                                          uint64_t n, ratelimit_result *out, long long *reply,
                                          size_t room)
{
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, 1, per_ms);
    bool slides = script == RATELIMIT_PRIV_REDIS_SLIDE;
    ratelimit_priv_redis_eval e;
    if (status == RATELIMIT_OK &&
        (most >= RATELIMIT_PRIV_REDIS_EXACT || n >= RATELIMIT_PRIV_REDIS_EXACT ||
         (slides && most > (RATELIMIT_PRIV_REDIS_EXACT / 4 - 1) / per_ms)))
        status = RATELIMIT_BAD_ARGUMENT;
    if (status == RATELIMIT_OK && !n)
        status = RATELIMIT_BAD_COUNT;
    if (status == RATELIMIT_OK && most) {
        ratelimit_priv_redis_eval_of(&e, r, script, key, key_len, NULL, 0);
        e.arg[e.args++] = most;
        e.arg[e.args++] = n;
        e.arg[e.args++] = per_ms;
        if (slides)
            e.arg[e.args++] = most * per_ms;
        status = ratelimit_priv_redis_do(&e, reply, room);
        if (status == RATELIMIT_OK && reply[0] != 1)
            status = n > most ? RATELIMIT_NEVER : RATELIMIT_DENIED;
    }
    ratelimit_priv_answer(out, status);
    if (out->allowed)
        out->taken = n;
    if (out->allowed && !most)
        out->burst = out->remaining = UINT64_MAX;
    if (!most || !(out->allowed || status == RATELIMIT_DENIED || status == RATELIMIT_NEVER))
        return false;
    out->burst = most;
    if (status == RATELIMIT_NEVER)
        out->retry_after_ns = RATELIMIT_FOREVER;
    return true;
}

RATELIMIT_API bool ratelimit_redis_window(ratelimit_redis *r, const void *key, size_t key_len,
                                          uint64_t most, uint64_t per_ms, uint64_t n,
                                          ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    long long reply[3];
    uint64_t used;
    if (!ratelimit_priv_redis_count_in(r, RATELIMIT_PRIV_REDIS_COUNT, key, key_len, most, per_ms, n,
                                       out, reply, 3))
        return out->allowed;
    used = (reply[1] > 0 ? (uint64_t)reply[1] : 0) + out->taken;
    out->remaining = used < most ? most - used : 0;
    if (used && reply[2] > 0)
        out->reset_after_ns = (uint64_t)reply[2] * RATELIMIT_MILLISECOND;
    if (out->status == RATELIMIT_DENIED)
        out->retry_after_ns = out->reset_after_ns;
    return out->allowed;
}

/* How many ms until n more pass, of `used` in this window and `before` in the one before, since ms
 * ago. All products are below 2^52. */
static uint64_t ratelimit_priv_redis_slide_ms(uint64_t most, uint64_t per, uint64_t n,
                                              uint64_t used, uint64_t before, uint64_t since)
{
    uint64_t room, ms = 0;
    if (used <= most && n <= most - used && before) { /* still in this window */
        room = (most - used - n) * per / before;
        ms = room < per ? per - room : 0;
        return ms > since ? ms - since : 1;
    }
    if (n <= most && used) { /* in the next one, where this is the one before */
        room = (most - n) * per / used;
        ms = room < per ? per - room : 0;
    }
    return per - since + ms;
}

RATELIMIT_API bool ratelimit_redis_sliding(ratelimit_redis *r, const void *key, size_t key_len,
                                           uint64_t most, uint64_t per_ms, uint64_t n,
                                           ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    long long reply[4];
    uint64_t used, before, since, all;
    if (!ratelimit_priv_redis_count_in(r, RATELIMIT_PRIV_REDIS_SLIDE, key, key_len, most, per_ms, n,
                                       out, reply, 4))
        return out->allowed;
    used = (uint64_t)reply[1];
    before = (uint64_t)reply[2];
    since = (uint64_t)reply[3] % per_ms;
    if (before > RATELIMIT_PRIV_REDIS_EXACT / per_ms) /* counted under another period */
        before = RATELIMIT_PRIV_REDIS_EXACT / per_ms;
    if (out->status == RATELIMIT_DENIED)
        out->retry_after_ns = RATELIMIT_MILLISECOND *
                              ratelimit_priv_redis_slide_ms(most, per_ms, n, used, before, since);
    used += out->taken;
    if (used || before)
        out->reset_after_ns = RATELIMIT_MILLISECOND * (per_ms - since + (used ? per_ms : 0));
    all = used + (before * (per_ms - since) + per_ms - 1) / per_ms; /* the share, rounded up */
    out->remaining = all < most ? most - all : 0;
    return out->allowed;
}

RATELIMIT_API ratelimit_status ratelimit_redis_acquire_plain(ratelimit_redis *r, const void *key,
                                                             size_t key_len, uint64_t most,
                                                             uint64_t ttl_ms)
{
    ratelimit_priv_redis_eval e;
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, most, ttl_ms);
    if (status != RATELIMIT_OK)
        return status;
    ratelimit_priv_redis_eval_of(&e, r, RATELIMIT_PRIV_REDIS_PLAIN, key, key_len, NULL, 0);
    e.arg[e.args++] = most;
    e.arg[e.args++] = ttl_ms;
    return ratelimit_priv_redis_do_one(&e, RATELIMIT_BUSY);
}

RATELIMIT_API ratelimit_status ratelimit_redis_release_plain(ratelimit_redis *r, const void *key,
                                                             size_t key_len)
{
    ratelimit_priv_redis_eval e;
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, 1, 1);
    if (status != RATELIMIT_OK)
        return status;
    ratelimit_priv_redis_eval_of(&e, r, RATELIMIT_PRIV_REDIS_PLAIN, key, key_len, NULL, 0);
    e.arg[e.args++] = 0;
    return ratelimit_priv_redis_do_one(&e, RATELIMIT_LOST);
}

/* 128 random bits in hex. The kernel gives them, so neither processes nor forks can collide. */
static bool ratelimit_priv_redis_random(ratelimit_redis *r, char *id)
{
    uint64_t random[2];
    if (!ratelimit_priv_random(random)) {
        ratelimit_priv_redis_say(r, "the system gives no random numbers");
        return false;
    }
    ratelimit_priv_redis_hex(id, random[0], 16);
    ratelimit_priv_redis_hex(id + 16, random[1], 16);
    id[32] = 0;
    return true;
}

/* Asks with the arguments a, b and id until what `script` wants is there, or the wait is over.
 * Asking again with the same id is safe, so a failure costs a pause and not the wait. Pauses double
 * up to the longest, each shortened by chance. *sent_ns: when it was asked last; unit: ns in one of
 * the second number of the reply, which is how long the thing is still taken. */
static ratelimit_status ratelimit_priv_redis_obtain(ratelimit_redis *r, unsigned script,
                                                    const void *key, size_t key_len, uint64_t a,
                                                    uint64_t b, const ratelimit_redis_permit *id,
                                                    uint64_t max_wait_ms, uint64_t max_pause_ms,
                                                    uint64_t unit, long long *reply,
                                                    uint64_t *sent_ns)
{
    const uint64_t ms = RATELIMIT_MILLISECOND, start = ratelimit_clock_ns();
    uint64_t until =
        max_wait_ms < (UINT64_MAX - start) / ms ? start + max_wait_ms * ms : UINT64_MAX;
    uint64_t most = max_pause_ms < 3600000 ? max_pause_ms : 3600000;
    uint64_t longest = ms * (most ? most : 100), pause = longest < 2 * ms ? longest : 2 * ms;
    for (;;) {
        ratelimit_priv_redis_eval e;
        ratelimit_status status;
        uint64_t now, nap;
        ratelimit_priv_redis_eval_of(&e, r, script, key, key_len, id, 1);
        e.arg[e.args++] = a;
        e.arg[e.args++] = b;
        *sent_ns = ratelimit_clock_ns();
        status = ratelimit_priv_redis_do(&e, reply, 2);
        if (status == RATELIMIT_OK && reply[0] == 1)
            return RATELIMIT_OK;
        if (!max_wait_ms)
            return status == RATELIMIT_OK ? RATELIMIT_BUSY : status;
        now = ratelimit_clock_ns();
        if (now >= until)
            return status == RATELIMIT_OK ? RATELIMIT_TIMEOUT : status;
        pthread_mutex_lock(&r->lock);
        nap = pause - ratelimit_priv_redis_chance(&r->mix, pause / 2 + 1);
        pthread_mutex_unlock(&r->lock);
        if (reply[1] > 0 && (uint64_t)reply[1] * unit < nap)
            nap = (uint64_t)reply[1] * unit;
        if (nap > until - now)
            nap = until - now;
        (void)poll(NULL, 0, (int)((nap + ms - 1) / ms));
        pause = pause < longest / 2 ? pause * 2 : longest;
    }
}

RATELIMIT_API ratelimit_status ratelimit_redis_acquire(ratelimit_redis *r, const void *key,
                                                       size_t key_len, uint64_t most,
                                                       uint64_t ttl_ms, uint64_t max_wait_ms,
                                                       uint64_t max_pause_ms,
                                                       ratelimit_redis_permit *permit,
                                                       uint64_t *retry_after_ns)
{
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, most, ttl_ms);
    long long reply[2];
    uint64_t sent;
    if (retry_after_ns)
        *retry_after_ns = 0;
    if (!permit)
        return RATELIMIT_BAD_ARGUMENT;
    memset(permit, 0, sizeof *permit);
    if (status != RATELIMIT_OK)
        return status;
    if (!ratelimit_priv_redis_random(r, permit->id))
        return RATELIMIT_STORE_FAILED;
    status = ratelimit_priv_redis_obtain(r, RATELIMIT_PRIV_REDIS_PERMIT, key, key_len, most,
                                         ttl_ms * 1000, permit, max_wait_ms, max_pause_ms,
                                         RATELIMIT_MICROSECOND, reply, &sent);
    if (retry_after_ns && reply[1] > 0)
        *retry_after_ns = (uint64_t)reply[1] * RATELIMIT_MICROSECOND;
    if (status == RATELIMIT_BUSY || status == RATELIMIT_TIMEOUT)
        memset(permit, 0, sizeof *permit);
    return status;
}

RATELIMIT_API ratelimit_status ratelimit_redis_release(ratelimit_redis *r, const void *key,
                                                       size_t key_len,
                                                       const ratelimit_redis_permit *permits,
                                                       size_t count, ratelimit_status *each)
{
    enum { MOST = 1000 };
    ratelimit_priv_redis_eval e;
    long long reply[MOST];
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, 1, 1), all;
    size_t i;
    if (status == RATELIMIT_OK && (!permits || !count || count > MOST))
        status = RATELIMIT_BAD_ARGUMENT;
    if (status != RATELIMIT_OK)
        return status;
    ratelimit_priv_redis_eval_of(&e, r, RATELIMIT_PRIV_REDIS_RETURN, key, key_len, permits, count);
    all = status = ratelimit_priv_redis_do(&e, reply, count);
    for (i = 0; i < count; i++) {
        ratelimit_status s = status == RATELIMIT_OK && reply[i] != 1 ? RATELIMIT_LOST : status;
        all = s == RATELIMIT_LOST ? s : all;
        if (each)
            each[i] = s;
    }
    return all;
}

RATELIMIT_API ratelimit_status ratelimit_redis_extend(ratelimit_redis *r, const void *key,
                                                      size_t key_len,
                                                      const ratelimit_redis_permit *permit,
                                                      uint64_t ttl_ms)
{
    ratelimit_priv_redis_eval e;
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, 1, ttl_ms);
    if (status != RATELIMIT_OK || !permit)
        return status != RATELIMIT_OK ? status : RATELIMIT_BAD_ARGUMENT;
    ratelimit_priv_redis_eval_of(&e, r, RATELIMIT_PRIV_REDIS_EXTEND, key, key_len, permit, 1);
    e.arg[e.args++] = ttl_ms * 1000;
    return ratelimit_priv_redis_do_one(&e, RATELIMIT_LOST);
}

static uint64_t ratelimit_priv_redis_valid_until(uint64_t sent_ns, uint64_t ttl_ms)
{
    uint64_t ttl = ttl_ms * RATELIMIT_MILLISECOND, margin = ttl / 100 + 2 * RATELIMIT_MILLISECOND;
    return ttl > margin ? sent_ns + ttl - margin : sent_ns;
}

RATELIMIT_API ratelimit_status ratelimit_redis_lock(ratelimit_redis *r, const void *key,
                                                    size_t key_len, uint64_t ttl_ms,
                                                    uint64_t max_wait_ms,
                                                    ratelimit_redis_held *held)
{
    ratelimit_redis_permit owner;
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, 1, ttl_ms);
    long long reply[2];
    uint64_t sent;
    if (!held)
        return RATELIMIT_BAD_ARGUMENT;
    memset(held, 0, sizeof *held);
    if (status == RATELIMIT_OK && *(const char *)key == '}')
        status = RATELIMIT_BAD_KEY;
    if (status != RATELIMIT_OK)
        return status;
    if (!ratelimit_priv_redis_random(r, owner.id))
        return RATELIMIT_STORE_FAILED;
    status = ratelimit_priv_redis_obtain(r, RATELIMIT_PRIV_REDIS_LOCK, key, key_len, ttl_ms,
                                         UINT64_C(90) * 86400000, &owner, max_wait_ms, 0,
                                         RATELIMIT_MILLISECOND, reply, &sent);
    if (status == RATELIMIT_OK || status == RATELIMIT_STORE_FAILED)
        memcpy(held->owner, owner.id, sizeof held->owner);
    if (status == RATELIMIT_OK) {
        held->fence = (uint64_t)reply[1];
        held->valid_until_ns = ratelimit_priv_redis_valid_until(sent, ttl_ms);
    }
    return status;
}

/* Unlocks (renew_ms 0) or renews. */
static ratelimit_status ratelimit_priv_redis_owned(ratelimit_redis *r, const void *key,
                                                   size_t key_len, ratelimit_redis_held *held,
                                                   uint64_t renew_ms)
{
    uint64_t sent = ratelimit_clock_ns();
    ratelimit_priv_redis_eval e;
    ratelimit_redis_permit owner;
    ratelimit_status status;
    if (!held)
        return RATELIMIT_BAD_ARGUMENT;
    memcpy(owner.id, held->owner, sizeof owner.id);
    ratelimit_priv_redis_eval_of(&e, r, RATELIMIT_PRIV_REDIS_OWNED, key, key_len, &owner, 1);
    e.arg[e.args++] = renew_ms;
    status = ratelimit_priv_redis_do_one(&e, RATELIMIT_LOST);
    if (!renew_ms || status == RATELIMIT_LOST)
        held->valid_until_ns = 0;
    else if (status == RATELIMIT_OK)
        held->valid_until_ns = ratelimit_priv_redis_valid_until(sent, renew_ms);
    return status;
}

RATELIMIT_API ratelimit_status ratelimit_redis_unlock(ratelimit_redis *r, const void *key,
                                                      size_t key_len, ratelimit_redis_held *held)
{
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, 1, 1);
    return status == RATELIMIT_OK ? ratelimit_priv_redis_owned(r, key, key_len, held, 0) : status;
}

RATELIMIT_API ratelimit_status ratelimit_redis_renew(ratelimit_redis *r, const void *key,
                                                     size_t key_len, ratelimit_redis_held *held,
                                                     uint64_t ttl_ms)
{
    ratelimit_status status = ratelimit_priv_redis_good(r, key, key_len, 1, ttl_ms);
    return status == RATELIMIT_OK ? ratelimit_priv_redis_owned(r, key, key_len, held, ttl_ms)
                                  : status;
}

RATELIMIT_API uint64_t ratelimit_redis_valid_ns(const ratelimit_redis_held *held)
{
    uint64_t now = ratelimit_clock_ns();
    return held && held->valid_until_ns > now ? held->valid_until_ns - now : 0;
}

#  if defined(RATELIMIT_REDIS_KEEPER)
struct ratelimit_redis_keeper {
    ratelimit_redis *r;
    const void *key;
    size_t key_len;
    ratelimit_redis_held *held; /* written under lock */
    uint64_t ttl_ms;
    void (*lost)(void *self);
    void *self;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool stop, is_lost;
};

/* Sleeps, or until told to stop; locked. */
static void ratelimit_priv_redis_keep_sleep(ratelimit_redis_keeper *k, uint64_t ns)
{
    uint64_t until = ratelimit_clock_ns() + ns;
    while (!k->stop && ratelimit_clock_ns() < until) {
        uint64_t left = until - ratelimit_clock_ns();
        if (left > 50 * RATELIMIT_MILLISECOND || left > ns) /* suspended, it must look again */
            left = 50 * RATELIMIT_MILLISECOND;
        ratelimit_priv_redis_wait(&k->woken, &k->lock, left);
    }
}

static void *ratelimit_priv_redis_keep_run(void *self)
{
    ratelimit_redis_keeper *k = (ratelimit_redis_keeper *)self;
    uint64_t third = k->ttl_ms * RATELIMIT_MILLISECOND / 3;
    pthread_mutex_lock(&k->lock);
    while (!k->stop) {
        ratelimit_redis_held copy = *k->held;
        uint64_t valid = ratelimit_redis_valid_ns(&copy);
        ratelimit_status status = RATELIMIT_LOST;
        if (valid) {
            ratelimit_priv_redis_keep_sleep(k, valid > 2 * third ? valid - 2 * third : 0);
            if (k->stop)
                break;
            pthread_mutex_unlock(&k->lock);
            status = ratelimit_redis_renew(k->r, k->key, k->key_len, &copy, k->ttl_ms);
            pthread_mutex_lock(&k->lock);
        }
        if (status == RATELIMIT_OK || status == RATELIMIT_LOST)
            *k->held = copy;
        if (status != RATELIMIT_LOST) {
            if (status != RATELIMIT_OK) /* again soon, while it is still valid */
                ratelimit_priv_redis_keep_sleep(k, third / 8 + RATELIMIT_MILLISECOND);
            continue;
        }
        k->held->valid_until_ns = 0;
        k->is_lost = true;
        pthread_mutex_unlock(&k->lock);
        if (k->lost)
            k->lost(k->self);
        return NULL;
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

RATELIMIT_API ratelimit_redis_keeper *ratelimit_redis_keep(ratelimit_redis *r, const void *key,
                                                           size_t key_len,
                                                           ratelimit_redis_held *held,
                                                           uint64_t ttl_ms,
                                                           void (*lost)(void *self), void *self)
{
    ratelimit_redis_keeper *k;
    if (!held || ratelimit_priv_redis_good(r, key, key_len, 1, ttl_ms) != RATELIMIT_OK)
        return NULL;
    k = (ratelimit_redis_keeper *)calloc(1, sizeof *k);
    if (!k)
        return NULL;
    k->r = r;
    k->key = key;
    k->key_len = key_len;
    k->held = held;
    k->ttl_ms = ttl_ms;
    k->lost = lost;
    k->self = self;
    pthread_mutex_init(&k->lock, NULL);
    ratelimit_priv_redis_init_cond(&k->woken);
    if (pthread_create(&k->thread, NULL, ratelimit_priv_redis_keep_run, k) == 0)
        return k;
    pthread_cond_destroy(&k->woken);
    pthread_mutex_destroy(&k->lock);
    free(k);
    return NULL;
}

RATELIMIT_API uint64_t ratelimit_redis_keep_valid_ns(ratelimit_redis_keeper *keeper)
{
    uint64_t valid;
    if (!keeper)
        return 0;
    pthread_mutex_lock(&keeper->lock);
    valid = ratelimit_redis_valid_ns(keeper->held);
    pthread_mutex_unlock(&keeper->lock);
    return valid;
}

RATELIMIT_API bool ratelimit_redis_keep_stop(ratelimit_redis_keeper *keeper)
{
    bool kept;
    if (!keeper)
        return false;
    pthread_mutex_lock(&keeper->lock);
    keeper->stop = true;
    pthread_cond_signal(&keeper->woken);
    pthread_mutex_unlock(&keeper->lock);
    pthread_join(keeper->thread, NULL);
    kept = !keeper->is_lost;
    pthread_cond_destroy(&keeper->woken);
    pthread_mutex_destroy(&keeper->lock);
    free(keeper);
    return kept;
}
#  endif

#  if defined(RATELIMIT_REDIS_ASYNC)
/* ---- >>implementation: asynchronous -------------------------------------------------------------

   A call of take is a job: a batch, and copies of what it is of. A caller may close us wherever we
   call it. So answers are called only where the outermost function of this header ends, and the
   handle is freed after that. */

typedef struct ratelimit_priv_async_job {
    ratelimit_priv_redis_batch b;                 /* must be first; what Redis is asked */
    struct ratelimit_priv_async_job *next, *prev; /* in the order of their deadlines */
    uint64_t start_ns, tier_ns;                   /* tier_ns: by the clock of a tier in front */
    ratelimit_redis_answers answers;
    void *self;
    ratelimit_request *req; /* what the caller asks */
    ratelimit_limit *limit;
    ratelimit_request *asked; /* with a tier in front: what Redis is asked */
    char *keys;
} ratelimit_priv_async_job;

struct ratelimit_redis_async {
    ratelimit_priv_redis_engine e; /* must be first */
    ratelimit_redis *r;
    ratelimit_redis_loop loop;
    ratelimit_priv_async_job *first, *last;       /* under way */
    ratelimit_priv_async_job *ready, *ready_last; /* to be answered */
    size_t ready_count, requests;
    uint64_t timer_at; /* it fires; 0: not set */
    unsigned depth;    /* of our functions on the stack */
    bool closed;
};

/* Places what job needs in base. Returns how much that is. */
static size_t ratelimit_priv_async_place(ratelimit_priv_async_job *job, char *base, size_t keys,
                                         bool has_tier)
{
    size_t size = 0, n = job->b.count;
    (void)ratelimit_priv_redis_cut(base, &size, 1, sizeof *job);
    job->req = (ratelimit_request *)ratelimit_priv_redis_cut(base, &size, n, sizeof *job->req);
    job->b.req = job->req;
    job->b.res = (ratelimit_result *)ratelimit_priv_redis_cut(base, &size, n, sizeof *job->b.res);
    job->limit = (ratelimit_limit *)ratelimit_priv_redis_cut(base, &size, n, sizeof *job->limit);
    job->keys = (char *)ratelimit_priv_redis_cut(base, &size, keys, 1);
    if (has_tier) {
        job->b.tier =
            (ratelimit_priv_ask *)ratelimit_priv_redis_cut(base, &size, n, sizeof *job->b.tier);
        job->asked =
            (ratelimit_request *)ratelimit_priv_redis_cut(base, &size, n, sizeof *job->asked);
    }
    return ratelimit_priv_redis_batch_place(&job->b, base, size);
}

/* Copies requests, their keys and limits into job. */
static void ratelimit_priv_async_copy(ratelimit_priv_async_job *job, const ratelimit_request *req)
{
    size_t i, keys = 0;
    for (i = 0; i < job->b.count; i++) {
        job->req[i] = req[i];
        if (req[i].limit) {
            job->limit[i] = *req[i].limit;
            job->req[i].limit = &job->limit[i];
        }
        if (req[i].key) {
            memcpy(job->keys + keys, req[i].key, req[i].key_len);
            job->req[i].key = job->keys + keys;
            keys += req[i].key_len;
        }
    }
}

/* Puts job among those under way, and takes it out. */
static void ratelimit_priv_async_push(ratelimit_redis_async *a, ratelimit_priv_async_job *job)
{
    job->prev = a->last;
    while (job->prev && job->prev->b.deadline > job->b.deadline)
        job->prev = job->prev->prev;
    job->next = job->prev ? job->prev->next : a->first;
    if (job->prev)
        job->prev->next = job;
    else
        a->first = job;
    if (job->next)
        job->next->prev = job;
    else
        a->last = job;
}

static void ratelimit_priv_async_pull(ratelimit_redis_async *a, ratelimit_priv_async_job *job)
{
    if (job->prev)
        job->prev->next = job->next;
    else
        a->first = job->next;
    if (job->next)
        job->next->prev = job->prev;
    else
        a->last = job->prev;
}

/* From those under way to those that are to be answered. */
static void ratelimit_priv_async_finish(ratelimit_redis_async *a, ratelimit_priv_async_job *job)
{
    ratelimit_priv_redis_batch *b = &job->b;
    if (b->tier)
        ratelimit_priv_tier_end(a->loop.tier, job->req, b->res, b->count, b->mode, job->tier_ns,
                                b->tier);
    ratelimit_priv_async_pull(a, job);
    if (b->sent) {
        ratelimit_priv_redis_count_time(a->r, job->start_ns, a->e.succeeded);
        a->e.succeeded = false;
    }
    job->next = NULL;
    job->prev = a->ready_last;
    if (a->ready_last)
        a->ready_last->next = job;
    else
        a->ready = job;
    a->ready_last = job;
    a->ready_count++;
}

/* A batch is done, or has another place in the order of deadlines. */
static void ratelimit_priv_async_changed(ratelimit_priv_redis_batch *b)
{
    ratelimit_redis_async *a = (ratelimit_redis_async *)(void *)b->e;
    ratelimit_priv_async_job *job = (ratelimit_priv_async_job *)(void *)b;
    if (b->done) {
        ratelimit_priv_async_finish(a, job);
        return;
    }
    ratelimit_priv_async_pull(a, job);
    ratelimit_priv_async_push(a, job);
}

/* The loop is told what conn waits for, if that is something else than before. */
static bool ratelimit_priv_async_watch(ratelimit_priv_redis_engine *e,
                                       ratelimit_priv_redis_conn *conn)
{
    ratelimit_redis_async *a = (ratelimit_redis_async *)(void *)e;
    unsigned events = ratelimit_priv_redis_events(conn);
    bool good;
    if (events == conn->watched)
        return true;
    a->depth++;
    good = a->loop.watch(a->loop.self, conn->fd, events, &conn->yours) == 0;
    a->depth--;
    if (good)
        conn->watched = events;
    return good;
}

RATELIMIT_API uint64_t ratelimit_redis_async_next_deadline(const ratelimit_redis_async *a)
{
    uint64_t next;
    if (!a || a->closed)
        return RATELIMIT_FOREVER;
    if (a->ready)
        return 0;
    next = ratelimit_priv_redis_due(&a->e);
    return a->first && a->first->b.deadline < next ? a->first->b.deadline : next;
}

/* Sets the loop's timer if it must fire earlier than it would. */
static void ratelimit_priv_async_arm(ratelimit_redis_async *a)
{
    uint64_t next, now;
    if (!a->loop.timer || a->closed)
        return;
    next = ratelimit_redis_async_next_deadline(a);
    if (next == RATELIMIT_FOREVER || (a->timer_at && a->timer_at <= next))
        return;
    now = ratelimit_clock_ns();
    a->timer_at = next ? next : 1;
    a->depth++;
    a->loop.timer(a->loop.self, next > now ? next - now : 0);
    a->depth--;
}

/* Calls answers: those that are ready now. What is answered without a server meanwhile waits for
 * the next time, or a caller that always asks again would never get out of here. */
static void ratelimit_priv_async_deliver(ratelimit_redis_async *a)
{
    ratelimit_limiter *l = a->loop.limiter;
    size_t count = a->ready_count, i;
    while (a->ready && (count || a->closed)) {
        ratelimit_priv_async_job *job = a->ready;
        ratelimit_result *res = job->b.res;
        a->ready = job->next;
        if (a->ready)
            a->ready->prev = NULL;
        else
            a->ready_last = NULL;
        a->ready_count--;
        a->requests -= job->b.count;
        count -= count != 0;
        if (l)
            ratelimit_priv_policy(l, job->req, res, job->b.count, job->b.mode);
        for (i = 0; l && i < job->b.count; i++)
            (void)ratelimit_priv_finish(l, &job->req[i], &res[i], l->shadow);
        job->answers(job->self, res, job->b.count);
        free(job);
    }
}

/* The end of each function that the loop calls; a may be gone then. */
static void ratelimit_priv_async_leave(ratelimit_redis_async *a)
{
    if (a->depth == 1) {
        ratelimit_priv_async_deliver(a);
        ratelimit_priv_redis_tidy(&a->e);
        ratelimit_priv_async_arm(a);
    }
    if (--a->depth == 0 && a->closed) {
        ratelimit_redis_close(a->r);
        free(a);
    }
}

RATELIMIT_API void ratelimit_redis_async_ready(ratelimit_redis_async *a, int fd, unsigned events)
{
    ratelimit_priv_redis_conn *conn;
    if (!a || a->closed || a->depth)
        return;
    a->depth++;
    for (conn = a->e.conns; conn && conn->fd != fd;)
        conn = conn->next;
    if (conn)
        ratelimit_priv_redis_step(conn, events);
    ratelimit_priv_async_leave(a);
}

RATELIMIT_API void ratelimit_redis_async_tick(ratelimit_redis_async *a, uint64_t now_ns)
{
    if (!a || a->closed)
        return;
    a->timer_at = 0;
    if (a->depth)
        return;
    a->depth++;
    ratelimit_priv_redis_overdue(&a->e, now_ns);
    ratelimit_priv_redis_retry(&a->e, now_ns);
    if ((a->first && a->first->b.deadline <= now_ns) ||
        (!a->e.map.done && a->e.map.deadline <= now_ns))
        ratelimit_priv_redis_expire(&a->e, now_ns);
    ratelimit_priv_async_leave(a);
}

RATELIMIT_API ratelimit_redis_async *
ratelimit_redis_async_open(const ratelimit_redis_options *options, const ratelimit_redis_loop *loop,
                           ratelimit_status *status_or_null)
{
    ratelimit_status spare, *status = status_or_null ? status_or_null : &spare;
    ratelimit_redis_async *a;
    *status = RATELIMIT_BAD_ARGUMENT;
    if (!loop || !loop->watch || (loop->tier && !loop->tier->table) ||
        (loop->limiter && !ratelimit_priv_has_policy(loop->limiter)))
        return NULL;
    *status = RATELIMIT_NO_MEMORY;
    a = (ratelimit_redis_async *)calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->loop = *loop;
    if (!a->loop.max_requests)
        a->loop.max_requests = 10000;
    a->r = ratelimit_redis_open(options, status);
    if (!a->r) {
        free(a);
        return NULL;
    }
    ratelimit_priv_redis_engine_of(&a->e, a->r, 0);
    a->r->o.pool_size = UINT32_MAX; /* it has one connection to each node, and shares none */
    a->e.watch = ratelimit_priv_async_watch;
    return a;
}

RATELIMIT_API ratelimit_redis_async *
ratelimit_redis_async_open_url(const char *url, const ratelimit_redis_options *options_or_null,
                               const ratelimit_redis_loop *loop, ratelimit_status *status_or_null)
{
    ratelimit_priv_redis_url u;
    ratelimit_redis_options o;
    return ratelimit_priv_redis_url_read(url, options_or_null, &u, &o, status_or_null)
               ? ratelimit_redis_async_open(&o, loop, status_or_null)
               : NULL;
}

/* A tier in front answers what it can; what is left is asked of Redis, perhaps as a lease. */
static void ratelimit_priv_async_ask_tier(ratelimit_redis_async *a, ratelimit_priv_async_job *job)
{
    ratelimit_priv_redis_batch *b = &job->b;
    size_t i;
    (void)ratelimit_priv_tier_begin(a->loop.tier, job->req, b->res, b->count, b->mode,
                                    &job->tier_ns, b->tier);
    for (i = 0; i < b->count; i++)
        job->asked[i] = b->tier[i].what == RATELIMIT_PRIV_HERE
                            ? job->req[i]
                            : ratelimit_priv_tier_sent(&job->req[i], &b->tier[i]);
    b->req = job->asked;
}

static ratelimit_status ratelimit_priv_async_send(ratelimit_redis_async *a,
                                                  const ratelimit_request *req, size_t count,
                                                  bool all, ratelimit_redis_answers answers,
                                                  void *self)
{
    ratelimit_priv_async_job plan, *job;
    size_t i, keys = 0, len;
    if (!a || !req || !count || !answers || count > a->loop.max_requests ||
        (all && count > RATELIMIT_MAX_ALL))
        return RATELIMIT_BAD_ARGUMENT;
    if (a->closed)
        return RATELIMIT_CANCELED;
    if (count > a->loop.max_requests - a->requests)
        return RATELIMIT_BUSY;
    for (i = 0; i < count; i++, keys += len) {
        len = req[i].key ? req[i].key_len : 0;
        if (len > SIZE_MAX / 4 - keys)
            return RATELIMIT_NO_MEMORY;
    }
    memset(&plan, 0, sizeof plan);
    plan.b.r = a->r;
    plan.b.e = &a->e;
    plan.b.changed = ratelimit_priv_async_changed;
    plan.b.count = count;
    plan.b.mode = all && count > 1 ? RATELIMIT_ALL : RATELIMIT_EACH;
    plan.start_ns = ratelimit_clock_ns();
    plan.b.deadline = plan.start_ns + a->r->timeout_ns;
    plan.answers = answers;
    plan.self = self;
    job = (ratelimit_priv_async_job *)malloc(
        ratelimit_priv_async_place(&plan, NULL, keys, a->loop.tier != NULL));
    if (!job)
        return RATELIMIT_NO_MEMORY;
    (void)ratelimit_priv_async_place(&plan, (char *)job, keys, a->loop.tier != NULL);
    *job = plan;
    ratelimit_priv_async_copy(job, req);
    ratelimit_priv_redis_batch_plan(&job->b);
    a->requests += count;
    ratelimit_priv_async_push(a, job);
    if (a->loop.tier)
        ratelimit_priv_async_ask_tier(a, job);
    ratelimit_priv_redis_batch_begin(&job->b);
    if (!a->depth)
        ratelimit_priv_redis_tidy(&a->e);
    ratelimit_priv_async_arm(a);
    return RATELIMIT_OK;
}

RATELIMIT_API ratelimit_status ratelimit_redis_async_take(ratelimit_redis_async *a,
                                                          const ratelimit_request *req,
                                                          ratelimit_redis_answers answers,
                                                          void *self)
{
    return ratelimit_priv_async_send(a, req, 1, false, answers, self);
}

RATELIMIT_API ratelimit_status ratelimit_redis_async_take_each(ratelimit_redis_async *a,
                                                               const ratelimit_request *req,
                                                               size_t count,
                                                               ratelimit_redis_answers answers,
                                                               void *self)
{
    return ratelimit_priv_async_send(a, req, count, false, answers, self);
}

RATELIMIT_API ratelimit_status ratelimit_redis_async_take_all(ratelimit_redis_async *a,
                                                              const ratelimit_request *req,
                                                              size_t count,
                                                              ratelimit_redis_answers answers,
                                                              void *self)
{
    return ratelimit_priv_async_send(a, req, count, true, answers, self);
}

RATELIMIT_API size_t ratelimit_redis_async_under_way(const ratelimit_redis_async *a)
{
    return a ? a->requests : 0;
}

RATELIMIT_API void ratelimit_redis_async_stats(ratelimit_redis_async *a,
                                               ratelimit_redis_counts *out)
{
    ratelimit_redis_stats(a ? a->r : NULL, out);
}

RATELIMIT_API const char *ratelimit_redis_async_error(ratelimit_redis_async *a, char *buf,
                                                      size_t buf_bytes)
{
    return ratelimit_redis_error(a ? a->r : NULL, buf, buf_bytes);
}

RATELIMIT_API void ratelimit_redis_async_close(ratelimit_redis_async *a)
{
    ratelimit_priv_redis_conn *conn;
    size_t i;
    if (!a || a->closed)
        return;
    a->depth++;
    for (conn = a->e.conns; conn; conn = conn->next)
        if (conn->state != RATELIMIT_PRIV_REDIS_DEAD)
            ratelimit_priv_redis_bury(conn);
    a->closed = true;
    while (a->first) {
        ratelimit_priv_async_job *job = a->first;
        for (i = 0; i < job->b.count; i++)
            ratelimit_priv_answer(&job->b.res[i], RATELIMIT_CANCELED);
        ratelimit_priv_async_finish(a, job);
    }
    ratelimit_priv_async_leave(a);
}
#  endif

#  ifdef __cplusplus
}
#    if defined(__GNUC__)
#      pragma GCC diagnostic pop
#    endif
#  endif
#endif /* RATELIMIT_REDIS_IMPLEMENTATION */

/* CHANGES

   1.0.0 (2026-11-28) First version.


   LICENCE

   As ratelimit.h: MIT or public domain, whichever you prefer; both texts are at its end.
*/

/* store_memcached.c - limits, windows and semaphores that many machines share in a memcached

   What it shows: ratelimit.h's compare-and-swap store by memcached's own gets, cas and add, through
   libmemcached; keys that memcached would not take; expiry; a server that does not answer. The
   upper half is what a program copies; the commands are in store_command.h. How the two callbacks
   look on other databases is told in store_sqlite.c.

       Package: memcached libmemcached-dev libssl-dev
       Build: cc -std=c99 -O2 -I. examples/store_memcached.c -o store_memcached -lmemcached -lcrypto

       memcached -M -l 127.0.0.1 &
       ./store_memcached 127.0.0.1:11211 take alice "5/h" && echo come in
       permit=$(./store_memcached 127.0.0.1:11211 acquire render 4 30s) && render; \
           ./store_memcached 127.0.0.1:11211 release render "$permit"
       ./store_memcached 127.0.0.1:11211 load 4 1000 take bob "100/h"
       ./store_memcached --help

   MEMCACHED
       load is gets. swap is cas with the number that gets came with, or add if there was nothing;
       EXISTS, NOT_STORED and NOT_FOUND mean that somebody was faster: load again.
       Keys. memcached takes 250 bytes without blanks and control characters. A key is stored with
       such bytes, and "%", as "%" and two hex digits: "alice" under a limit is "=alice" and the
       four bytes of the scope, encoded like that. A longer name is stored as the SHA-256 of the
       key; "=" or "#" in front keeps the two kinds apart. So no two keys that anybody could find
       share a bucket.
       Expiry. A record is kept a minute longer than it says anything: memcached counts whole
       seconds and may be one early, and clocks differ. It takes more than 30 days for a date, by
       its own clock, so such a record has no expiry until it is written again. There is no
       conditional delete: what shall be deleted is stored with the minute alone.
       Eviction. A full memcached drops the items used least recently, live records with them: the
       key gets a whole burst anew, a permit's place looks free. With -M it refuses to store
       instead, which is a failed store, and the policy decides. Give limits a memcached of their
       own, with -M, and watch "evictions" and "outofmemory" in its stats. A restart forgets
       everything, as does flush_all.
       Failure. Whatever did not get its answer in time closes the connection, so that a late one
       is never taken for another's. It may have been done: then a token is lost, never made. A
       server that can't be reached is left alone for 2 s, libmemcached's retry timeout.
       Several servers. Each key must stay on its server: MEMCACHED_BEHAVIOR_KETAMA in all clients,
       the same list, and never MEMCACHED_BEHAVIOR_REMOVE_FAILED_SERVERS, by which a lost server's
       keys begin anew elsewhere.
       Clock. The clients' wall clocks, kept together by NTP: memcached's own counts in seconds.
       Threads. A store, that is a memcached_st, for each thread; after fork the child makes its
       own.
*/
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "store_command.h"

#include <libmemcached/memcached.h>
#include <openssl/sha.h>

#define PREFIX "ratelimit:"

enum {
    KEEP_S = 60,
    LONGEST_S = 30 * 24 * 3600, /* memcached takes more for a date */
    LONGEST_NAME = 200          /* of those that show the key */
};

typedef struct store {
    memcached_st *memc;
    char name[sizeof PREFIX + LONGEST_NAME + 1]; /* that the last load asked for */
    size_t name_len;
    uint64_t cas; /* that it came with; 0: nothing was there */
    char error[256];
} store;

/* Closes the connection: the answer may still be under way. */
static int fail(store *s, const char *doing, memcached_return_t code)
{
    const char *text = memcached_strerror(s->memc, code), *end = NULL;
    if (memcached_failed(memcached_last_error(s->memc))) {
        text = memcached_last_error_message(s->memc); /* "(0x6170) WHAT, WHERE -> file:line" */
        if (*text == '(' && strstr(text, ") "))
            text = strstr(text, ") ") + 2;
        end = strstr(text, " ->");
    }
    snprintf(s->error, sizeof s->error, "%s: %.*s", doing, end ? (int)(end - text) : 200, text);
    memcached_quit(s->memc);
    return -1;
}

static uint64_t wall_clock(void *self)
{
    struct timespec now;
    (void)self;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * RATELIMIT_SECOND + (uint64_t)now.tv_nsec;
}

/* The name of key in memcached: as text if that is not too long, else its SHA-256 in hex. */
static size_t name_of(const void *key, size_t key_len, char *name)
{
    const unsigned char *byte = key;
    unsigned char digest[SHA256_DIGEST_LENGTH];
    size_t i, len = sizeof PREFIX;
    memcpy(name, PREFIX, sizeof PREFIX);
    name[len - 1] = '=';
    for (i = 0; i < key_len && len + 3 <= sizeof PREFIX + LONGEST_NAME; i++) {
        if (byte[i] > ' ' && byte[i] < 127 && byte[i] != '%')
            name[len++] = (char)byte[i];
        else
            len += (size_t)snprintf(name + len, 4, "%%%02x", byte[i]);
    }
    if (i == key_len)
        return len;
    name[sizeof PREFIX - 1] = '#';
    SHA256(key, key_len, digest);
    for (i = 0, len = sizeof PREFIX; i < sizeof digest; i++, len += 2)
        snprintf(name + len, 3, "%02x", digest[i]);
    return len;
}

/* A value that holds a record, in *record and s->cas; 0 if there is none. */
static int fetch(store *s, memcached_result_st *result, unsigned char *record)
{
    memcached_return_t code;
    const char *found = s->name;
    int answer = 0;
    code = memcached_mget(s->memc, &found, &s->name_len, 1);
    if (memcached_failed(code))
        return fail(s, "gets", code);
    while (memcached_fetch_result(s->memc, result, &code)) {
        s->cas = memcached_result_cas(result);
        if (s->cas && memcached_result_length(result) == RATELIMIT_RECORD_BYTES) {
            memcpy(record, memcached_result_value(result), RATELIMIT_RECORD_BYTES);
            answer = 1;
        } else {
            snprintf(s->error, sizeof s->error, "gets: the value of this key is no record");
            answer = -1;
        }
    }
    /* NOTFOUND is said of some failures, too; the last error knows better. */
    if ((code != MEMCACHED_END && code != MEMCACHED_NOTFOUND) ||
        memcached_failed(memcached_last_error(s->memc)))
        return fail(s, "gets", code);
    return answer;
}

static int load(void *self, const void *key, size_t key_len, unsigned char *record)
{
    store *s = self;
    memcached_result_st result;
    int answer;
    s->error[0] = '\0';
    s->name_len = name_of(key, key_len, s->name);
    s->cas = 0;
    if (!memcached_result_create(s->memc, &result))
        return fail(s, "gets", MEMCACHED_MEMORY_ALLOCATION_FAILURE);
    answer = fetch(s, &result, record);
    memcached_result_free(&result);
    return answer;
}

static time_t expiry(uint64_t ttl_ns)
{
    uint64_t seconds = ttl_ns / RATELIMIT_SECOND + 1 + KEEP_S;
    return seconds <= LONGEST_S ? (time_t)seconds : 0;
}

static int swap(void *self, const void *key, size_t key_len, const unsigned char *old_or_null,
                const unsigned char *record, uint64_t ttl_ns)
{
    store *s = self;
    char name[sizeof s->name];
    size_t len = name_of(key, key_len, name);
    const char *value = (const char *)record;
    memcached_return_t code;
    if (len != s->name_len || memcmp(name, s->name, len) != 0 || !old_or_null != !s->cas) {
        snprintf(s->error, sizeof s->error, "swap: of something else than the last load");
        return -1;
    }
    code = old_or_null ? memcached_cas(s->memc, name, len, value, RATELIMIT_RECORD_BYTES,
                                       expiry(ttl_ns), 0, s->cas)
                       : memcached_add(s->memc, name, len, value, RATELIMIT_RECORD_BYTES,
                                       expiry(ttl_ns), 0);
    if (code == MEMCACHED_SUCCESS)
        return 1;
    if (code != MEMCACHED_DATA_EXISTS && code != MEMCACHED_NOTSTORED && code != MEMCACHED_NOTFOUND)
        return fail(s, old_or_null ? "cas" : "add", code);
    snprintf(s->error, sizeof s->error, "swap: lost to others too often");
    return 0;
}

static void store_close(void *self)
{
    store *s = self;
    memcached_free(s->memc);
    s->memc = NULL;
}

/* HOST:PORT, or a Unix socket's path. Connects at the first load. */
static bool store_open(store *s, const char *where, int timeout_ms)
{
    char host[256] = "";
    unsigned port = 0;
    char more;
    memcached_return_t code = MEMCACHED_INVALID_ARGUMENTS;
    if (!(s->memc = memcached_create(NULL)))
        return false;
    memcached_behavior_set(s->memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
    memcached_behavior_set(s->memc, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1);
    memcached_behavior_set(s->memc, MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, (uint64_t)timeout_ms);
    memcached_behavior_set(s->memc, MEMCACHED_BEHAVIOR_POLL_TIMEOUT, (uint64_t)timeout_ms);
    if (*where == '/')
        code = memcached_server_add_unix_socket(s->memc, where);
    else if (sscanf(where, "%255[^:]:%5u%c", host, &port, &more) == 2 && port && port < 65536)
        code = memcached_server_add(s->memc, host, (in_port_t)port);
    return memcached_success(code);
}

int main(int argc, char **argv)
{
    static store s;
    static ratelimit_cas cas;
    static store_command command;
    (void)argc;
    if (!store_parse(&command, "store_memcached", "HOST:PORT", argv))
        return STORE_WRONG;
    if (!store_open(&s, command.where, command.timeout_ms)) {
        fprintf(stderr, "store_memcached: \"%s\" is no HOST:PORT\n", command.where);
        return STORE_WRONG;
    }
    cas.self = &s;
    cas.load = load;
    cas.swap = swap;
    cas.clock = wall_clock;
    cas.tries = 100;
    command.cas = &cas;
    command.error = s.error;
    command.close = store_close;
    return store_run(&command);
}

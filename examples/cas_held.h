/* cas_held.h - fixed windows and semaphores over a database with a conditional update

   A file to copy. store_sqlite.c and store_memcached.c include it; tests/test_cas_held.c tests it.
   It uses the load, the swap and the clock of a ratelimit_cas and nothing private of ratelimit.h.

   The key of a window or of a plain semaphore has one record, a key of permits one record for each
   place. All are RATELIMIT_RECORD_BYTES long, little-endian: bytes 0-7 the time at which the record
   ends and means nothing any more, 8-15 a number, 16-19 a mark of its kind, 20-23 the number of
   writes. A record with another mark is STORE_FAILED and stays as it is. Buckets have records of
   their own: their keys end in the scope of a limit.

   A swap that loses is tried again, cas->tries swaps in a call, then the call is STORE_FAILED.
   After a swap that failed (below 0) it is open whether it was done: something may be taken that
   nobody has, until its time is over. Threads: as load and swap. Zero never means unlimited. */
#ifndef CAS_HELD_H
#define CAS_HELD_H

#include "ratelimit.h"

#include <stdio.h>
#include <string.h>

#define HELD_LONGEST (UINT64_C(1) << 62)
/* A window ends early if the clock is set back by more than this; used if cas->step_ns is 0. */
#define HELD_STEP_NS (10 * RATELIMIT_SECOND)

enum {
    HELD_PLACES = 255,   /* permits that one key can have */
    HELD_KEY_BYTES = 250 /* of a key of permits */
};

/* A permit. From expires_ns on, by the shared clock, it is not held any more. */
typedef struct held_permit {
    uint64_t id;
    uint64_t expires_ns;
    uint32_t place;
} held_permit;

/* ---- records --------------------------------------------------------------------------------- */

/* The record of a key as it was at now_ns: left_ns until its end, and its number. Both are 0 if its
 * time is over. */
typedef struct held_record {
    const ratelimit_cas *cas;
    const void *key;
    size_t key_len;
    const char *mark;
    uint32_t swaps; /* left in this call */
    bool found;
    unsigned char old[RATELIMIT_RECORD_BYTES];
    uint64_t now_ns, left_ns, value;
    char name[HELD_KEY_BYTES + 4]; /* of a place: key, ':', two hex digits */
} held_record;

static inline uint64_t held_get(const unsigned char *bytes)
{
    uint64_t value = 0;
    int i;
    for (i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

static inline void held_put(unsigned char *bytes, uint64_t value)
{
    int i;
    for (i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
}

static inline uint64_t held_now(const held_record *r)
{
    return r->cas->clock(r->cas->clock_self);
}

/* Times wrap: an end more than 2^63 ns ahead lies behind. */
static inline uint64_t held_left(uint64_t end_ns, uint64_t now_ns)
{
    uint64_t left = end_ns - now_ns;
    return left >> 63 ? 0 : left;
}

static inline ratelimit_status held_open(held_record *r, const ratelimit_cas *cas, const void *key,
                                         size_t key_len, const char *mark)
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

static inline void held_read(held_record *r, uint64_t now_ns)
{
    r->now_ns = now_ns;
    r->left_ns = r->found ? held_left(held_get(r->old), now_ns) : 0;
    r->value = r->left_ns ? held_get(r->old + 8) : 0;
}

/* False if there is no answer, or a record of another kind. What it means is judged by a time after
 * the load: whatever is counted or given back is still there then. */
static inline bool held_load(held_record *r)
{
    int found;
    memset(r->old, 0, sizeof r->old);
    found = r->cas->load(r->cas->self, r->key, r->key_len, r->old);
    r->found = found > 0;
    held_read(r, held_now(r));
    return found == 0 || (found > 0 && memcmp(r->old + 16, r->mark, 4) == 0);
}

/* Puts a record that ends left_ns from now. 1: done; 0: load again; below 0: the database failed,
 * or this call lost too often. */
static inline int held_swap(held_record *r, uint64_t left_ns, uint64_t value)
{
    unsigned char record[RATELIMIT_RECORD_BYTES];
    int done;
    held_put(record, r->now_ns + left_ns);
    held_put(record + 8, value);
    held_put(record + 16, ((held_get(r->old + 16) >> 32) + 1) << 32);
    memcpy(record + 16, r->mark, 4);
    done =
        r->cas->swap(r->cas->self, r->key, r->key_len, r->found ? r->old : NULL, record, left_ns);
    return done == 0 && !--r->swaps ? -1 : done;
}

/* ---- fixed windows --------------------------------------------------------------------------- */

static inline int held_count(held_record *r, uint64_t most, uint64_t per_ns, uint64_t n,
                             ratelimit_result *out)
{
    uint64_t step = r->cas->step_ns ? r->cas->step_ns : HELD_STEP_NS, left, used;
    bool allowed, shorter;
    if (!held_load(r))
        return -1;
    left = r->left_ns ? r->left_ns : per_ns;
    shorter = left > per_ns && left - per_ns > step;
    left = shorter ? per_ns : left;
    allowed = r->value <= most && n <= most - r->value;
    used = r->value + (allowed ? n : 0);
    memset(out, 0, sizeof *out);
    out->allowed = allowed;
    out->status = allowed ? RATELIMIT_OK : n > most ? RATELIMIT_NEVER : RATELIMIT_DENIED;
    out->burst = most;
    out->remaining = used < most ? most - used : 0;
    out->taken = allowed ? n : 0;
    out->reset_after_ns = used ? left : 0;
    out->retry_after_ns = allowed ? 0 : n > most ? RATELIMIT_FOREVER : left;
    return allowed || shorter ? held_swap(r, left, used) : 1;
}

/* held_window  Counts n for key in a fixed window that begins with its first use.
 * (RATELIMIT_WINDOW, through ratelimit_cas_store, is the one aligned to the clock.)
 *
 * most     the limit of a window, 1 to 2^63 - 1
 * per_ns   its length, 1 to 2^62. A window that has more than that and the clock's step to go (the
 *          clock was set back, or per_ns was longer) ends per_ns from now
 * n        1 to 2^63 - 1; above most is NEVER
 * out      may be NULL; retry_after_ns and reset_after_ns are until the end of the window
 *
 * True if counted. False: DENIED (not counted), NEVER, BAD_KEY, BAD_COUNT, BAD_ARGUMENT,
 * STORE_FAILED. */
static inline bool held_window(const ratelimit_cas *cas, const void *key, size_t key_len,
                               uint64_t most, uint64_t per_ns, uint64_t n,
                               ratelimit_result *out_or_null)
{
    ratelimit_result spare, *out = out_or_null ? out_or_null : &spare;
    held_record r;
    ratelimit_status status = held_open(&r, cas, key, key_len, "RW1");
    int done = 0;
    if (status == RATELIMIT_OK && (!most || most >> 63 || !per_ns || per_ns > HELD_LONGEST))
        status = RATELIMIT_BAD_ARGUMENT;
    if (status == RATELIMIT_OK && (!n || n >> 63))
        status = RATELIMIT_BAD_COUNT;
    while (status == RATELIMIT_OK && done == 0)
        done = held_count(&r, most, per_ns, n, out);
    if (done > 0)
        return out->allowed;
    memset(out, 0, sizeof *out);
    out->status = done < 0 ? RATELIMIT_STORE_FAILED : status;
    return false;
}

/* ---- plain semaphores ------------------------------------------------------------------------ */

/* One more if there are fewer than most; one less if most is 0. */
static inline ratelimit_status held_plain(held_record *r, uint64_t most, uint64_t ttl_ns)
{
    int done = 0;
    while (done == 0) {
        if (!held_load(r))
            return RATELIMIT_STORE_FAILED;
        if (most && r->value >= most)
            return RATELIMIT_BUSY;
        if (!most && !r->value)
            return RATELIMIT_LOST;
        done = most ? held_swap(r, ttl_ns, r->value + 1)
                    : held_swap(r, r->value > 1 ? r->left_ns : 0, r->value - 1);
    }
    return done > 0 ? RATELIMIT_OK : RATELIMIT_STORE_FAILED;
}

/* held_acquire_plain, held_release_plain  At most `most` in flight for key, only counted: who holds
 * is not known, so one who dies keeps a place until nobody acquires for ttl_ns; then all are free.
 * Never below 0 or above most.
 *
 * most     1 to 2^31
 * ttl_ns   1 to 2^62
 *
 * OK; acquire: BUSY; release: LOST if none is out; BAD_KEY, BAD_ARGUMENT, STORE_FAILED. */
static inline ratelimit_status held_acquire_plain(const ratelimit_cas *cas, const void *key,
                                                  size_t key_len, uint64_t most, uint64_t ttl_ns)
{
    held_record r;
    ratelimit_status status = held_open(&r, cas, key, key_len, "RP1");
    if (status != RATELIMIT_OK)
        return status;
    if (!most || most > UINT64_C(1) << 31 || !ttl_ns || ttl_ns > HELD_LONGEST)
        return RATELIMIT_BAD_ARGUMENT;
    return held_plain(&r, most, ttl_ns);
}

static inline ratelimit_status held_release_plain(const ratelimit_cas *cas, const void *key,
                                                  size_t key_len)
{
    held_record r;
    ratelimit_status status = held_open(&r, cas, key, key_len, "RP1");
    return status == RATELIMIT_OK ? held_plain(&r, 0, 0) : status;
}

/* ---- permits --------------------------------------------------------------------------------- */

static inline ratelimit_status held_open_places(held_record *r, const ratelimit_cas *cas,
                                                const void *key, size_t key_len)
{
    ratelimit_status status = held_open(r, cas, key, key_len, "RH1");
    if (status != RATELIMIT_OK)
        return status;
    if (key_len > HELD_KEY_BYTES)
        return RATELIMIT_BAD_KEY;
    memcpy(r->name, key, key_len);
    r->key = r->name;
    r->key_len = key_len + 3;
    return RATELIMIT_OK;
}

static inline void held_go_to(held_record *r, uint32_t place)
{
    snprintf(r->name + r->key_len - 3, 4, ":%02x", (unsigned)place & 255);
}

/* Looks at a place by a time before the load: if the place was over then, its holder cannot extend
 * it later either, for held_keep looks at the clock after its swap. */
static inline bool held_look(held_record *r, uint32_t place, uint64_t *retry_ns)
{
    uint64_t before = held_now(r);
    bool good;
    held_go_to(r, place);
    good = held_load(r);
    held_read(r, before);
    if (good && r->value && (!*retry_ns || r->left_ns < *retry_ns))
        *retry_ns = r->left_ns;
    return good;
}

/* Finds a free place and takes it. */
static inline ratelimit_status held_find(held_record *r, uint32_t most, uint32_t places,
                                         uint64_t ttl_ns, held_permit *permit, uint64_t *retry_ns)
{
    uint64_t mix = (permit->id ^ permit->id >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t usable = places, out = 0, i = 0, place;
    int done;
    /* The first places are usable, as many as leave room for what is out in the others. Nobody
     * hands out the others, so the number that is out there only falls. */
    while (usable > 0 && usable + out > most) {
        if (!held_look(r, --usable, retry_ns))
            return RATELIMIT_STORE_FAILED;
        out += r->value != 0;
    }
    while (i < usable) { /* from one that depends on the id: holders seldom want the same place */
        place = (uint32_t)(((mix >> 33) + i) % usable);
        if (!held_look(r, place, retry_ns))
            return RATELIMIT_STORE_FAILED;
        if (r->value) {
            i++;
            continue;
        }
        done = held_swap(r, ttl_ns, permit->id);
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

/* held_acquire  A permit that expires by itself after ttl_ns. Each of the places has a record of
 * its own, named key, ':' and two hex digits; key itself stays unused.
 *
 * key_len         1 to 250, else BAD_KEY
 * most            1 to places; may differ from call to call: none is handed out while as many are
 *                 out, whatever most they were acquired under. While callers differ, the largest
 *                 counts
 * places          1 to 255: the largest most that key ever has, the same in all calls
 * ttl_ns          1 to 2^62
 * id              whose it is: not 0, new for each call, for example 64 random bits
 * permit          set by OK, else zeroed
 * retry_after_ns  may be NULL; BUSY: until the next permit expires, if none comes back
 *
 * OK, BUSY (each place was seen held), BAD_KEY, BAD_ARGUMENT, STORE_FAILED. Cost: a load of each
 * place above most, then one load and one swap if the place that id leads to is free; at most as
 * many loads as places and one for each swap that lost. */
static inline ratelimit_status held_acquire(const ratelimit_cas *cas, const void *key,
                                            size_t key_len, uint32_t most, uint32_t places,
                                            uint64_t ttl_ns, uint64_t id, held_permit *permit,
                                            uint64_t *retry_after_ns)
{
    held_record r;
    held_permit found = {0, 0, 0};
    uint64_t retry = 0;
    ratelimit_status status = held_open_places(&r, cas, key, key_len);
    if (permit)
        *permit = found;
    if (retry_after_ns)
        *retry_after_ns = 0;
    if (status != RATELIMIT_OK)
        return status;
    if (!permit || !id || !most || most > places || places > HELD_PLACES || !ttl_ns ||
        ttl_ns > HELD_LONGEST)
        return RATELIMIT_BAD_ARGUMENT;
    found.id = id;
    status = held_find(&r, most, places, ttl_ns, &found, &retry);
    if (status == RATELIMIT_OK)
        *permit = found;
    if (status == RATELIMIT_BUSY && retry_after_ns)
        *retry_after_ns = retry;
    return status;
}

/* The place of permit gets an end ttl_ns from now (0: none) if it is still the permit's. */
static inline ratelimit_status held_keep(const ratelimit_cas *cas, const void *key, size_t key_len,
                                         const held_permit *permit, uint64_t ttl_ns,
                                         uint64_t *now_ns)
{
    held_record r;
    ratelimit_status status = held_open_places(&r, cas, key, key_len);
    uint64_t end = 0;
    int done = 0;
    if (status != RATELIMIT_OK)
        return status;
    if (!permit || permit->place >= HELD_PLACES || ttl_ns > HELD_LONGEST)
        return RATELIMIT_BAD_ARGUMENT;
    if (!permit->id)
        return RATELIMIT_LOST; /* a zeroed one */
    held_go_to(&r, permit->place);
    while (done == 0) {
        if (!held_load(&r))
            return RATELIMIT_STORE_FAILED;
        if (r.value != permit->id)
            return RATELIMIT_LOST;
        end = held_get(r.old);
        done = held_swap(&r, ttl_ns, ttl_ns ? permit->id : 0);
    }
    if (done < 0)
        return RATELIMIT_STORE_FAILED;
    *now_ns = r.now_ns;
    if (!ttl_ns || held_left(end, held_now(&r)))
        return RATELIMIT_OK;
    /* Its time was over before the swap came: others may have relied on that. */
    (void)held_keep(cas, key, key_len, permit, 0, now_ns);
    return RATELIMIT_LOST;
}

/* held_release, held_extend  Gives a permit back; makes it end ttl_ns from now. OK; LOST if it was
 * not out any more, which harms nobody and creates nothing; BAD_KEY, BAD_ARGUMENT, STORE_FAILED.
 * Only extend's OK changes *permit. */
static inline ratelimit_status held_release(const ratelimit_cas *cas, const void *key,
                                            size_t key_len, const held_permit *permit)
{
    uint64_t now = 0;
    return held_keep(cas, key, key_len, permit, 0, &now);
}

static inline ratelimit_status held_extend(const ratelimit_cas *cas, const void *key,
                                           size_t key_len, held_permit *permit, uint64_t ttl_ns)
{
    uint64_t now = 0;
    ratelimit_status status = RATELIMIT_BAD_ARGUMENT;
    if (ttl_ns)
        status = held_keep(cas, key, key_len, permit, ttl_ns, &now);
    if (status == RATELIMIT_OK)
        permit->expires_ns = now + ttl_ns;
    return status;
}

#endif

/* test_cas_held.c - examples/cas_held.h, windows and semaphores over a database with a conditional
 * update: bounds, ends, lost swaps, a database that fails or holds something else, holders that
 * die, sizes that change, threads, and a long random run beside a model. Time is the test's own. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sys/mman.h>

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "examples/cas_held.h"

#include "unit.h"

#define OK      RATELIMIT_OK
#define BUSY    RATELIMIT_BUSY
#define LOST    RATELIMIT_LOST
#define FAILED  RATELIMIT_STORE_FAILED
#define ROWS    300
#define THREADS 8
#define LONGEST (UINT64_C(1) << 62)

/* ---- the database: rows in an array, one lock ------------------------------------------------ */

typedef struct row {
    size_t key_len; /* 0: free */
    unsigned char key[256];
    unsigned char record[RATELIMIT_RECORD_BYTES];
    uint64_t gone_ns;
} row;

typedef struct base {
    row rows[ROWS];
    pthread_mutex_t lock;
    uint64_t now_ns;
    bool keeps;         /* records stay after their time to live, even if that is 0 */
    uint32_t lose;      /* so many swaps are answered 0, nothing done */
    uint32_t fail_load; /* this load and all later ones fail, from 1 */
    int fail_swap;      /* 1: swaps fail, not done; 2: done, and then fail */
    uint64_t loads, swaps, writes;
    void (*hook)(void); /* before the next swap, once */
    uint32_t bound;     /* no swap that adds a holder may make it more than so many */
    uint64_t broken;    /* it did */
    ratelimit_cas cas;
} base;

static base db;

/* What this thread's last load found: a database with version numbers keeps them there. */
static __thread row last_load;
static __thread bool load_is_over; /* a swap has used it */
static uint64_t unpaired;          /* swaps that did not follow such a load */

static void note_load(const void *key, size_t key_len, const unsigned char *record_or_null)
{
    last_load.key_len = key_len;
    memcpy(last_load.key, key, key_len);
    last_load.gone_ns = record_or_null != NULL;
    if (record_or_null)
        memcpy(last_load.record, record_or_null, sizeof last_load.record);
    load_is_over = false;
}

static void note_swap(const void *key, size_t key_len, const unsigned char *old_or_null)
{
    if (load_is_over || last_load.key_len != key_len || memcmp(last_load.key, key, key_len) != 0 ||
        !last_load.gone_ns != !old_or_null ||
        (old_or_null && memcmp(last_load.record, old_or_null, sizeof last_load.record) != 0))
        __atomic_fetch_add(&unpaired, 1, __ATOMIC_SEQ_CST);
    load_is_over = true;
}

static uint64_t base_clock(void *self)
{
    const base *b = (const base *)self;
    return __atomic_load_n(&b->now_ns, __ATOMIC_SEQ_CST);
}

static void base_move(uint64_t ns)
{
    __atomic_fetch_add(&db.now_ns, ns, __ATOMIC_SEQ_CST);
}

static row *base_find(base *b, const void *key, size_t key_len)
{
    size_t i;
    for (i = 0; i < ROWS; i++) {
        row *r = &b->rows[i];
        if (r->key_len != key_len || memcmp(r->key, key, key_len) != 0)
            continue;
        if (b->keeps || base_clock(b) < r->gone_ns)
            return r;
        r->key_len = 0;
    }
    return NULL;
}

static row *base_add(base *b, const void *key, size_t key_len)
{
    size_t i;
    for (i = 0; i < ROWS; i++)
        if (!b->rows[i].key_len && key_len <= sizeof b->rows[i].key) {
            memcpy(b->rows[i].key, key, key_len);
            b->rows[i].key_len = key_len;
            return &b->rows[i];
        }
    abort();
}

static uint64_t number_at(const unsigned char *p)
{
    uint64_t value = 0;
    int i;
    for (i = 7; i >= 0; i--)
        value = value << 8 | p[i];
    return value;
}

/* What cas_held.h says of a place's record: bytes 0-7 when it ends, 8-15 whose it is. */
static bool base_held(base *b, const row *r)
{
    return r->key_len && number_at(r->record) > base_clock(b) && number_at(r->record + 8);
}

static uint32_t base_holders(base *b)
{
    uint32_t n = 0;
    size_t i;
    for (i = 0; i < ROWS; i++)
        n += base_held(b, &b->rows[i]);
    return n;
}

static int base_load(void *self, const void *key, size_t key_len, unsigned char *record)
{
    base *b = (base *)self;
    const row *r;
    int found = 0;
    pthread_mutex_lock(&b->lock);
    b->loads++;
    r = base_find(b, key, key_len);
    if (r) {
        memcpy(record, r->record, sizeof r->record);
        found = 1;
    }
    if (b->fail_load && b->loads >= b->fail_load)
        found = -1;
    note_load(key, key_len, found > 0 ? record : NULL);
    pthread_mutex_unlock(&b->lock);
    return found;
}

static int base_put(base *b, const void *key, size_t key_len, const unsigned char *old,
                    const unsigned char *record, uint64_t ttl_ns)
{
    row *r = base_find(b, key, key_len);
    uint64_t now;
    bool held;
    if (!r != !old || (r && memcmp(r->record, old, sizeof r->record) != 0))
        return 0;
    held = r && base_held(b, r);
    if (!r)
        r = base_add(b, key, key_len);
    memcpy(r->record, record, sizeof r->record);
    now = base_clock(b);
    r->gone_ns = ttl_ns > UINT64_MAX - now ? UINT64_MAX : now + ttl_ns;
    b->writes++;
    if (!ttl_ns && !b->keeps)
        r->key_len = 0;
    if (b->bound && !held && base_held(b, r) && base_holders(b) > b->bound)
        b->broken++;
    return 1;
}

static int base_swap(void *self, const void *key, size_t key_len, const unsigned char *old,
                     const unsigned char *record, uint64_t ttl_ns)
{
    base *b = (base *)self;
    void (*hook)(void) = b->hook;
    int done = 0;
    note_swap(key, key_len, old);
    if (hook) {
        b->hook = NULL;
        hook();
    }
    pthread_mutex_lock(&b->lock);
    b->swaps++;
    if (b->lose)
        b->lose--;
    else if (b->fail_swap != 1)
        done = base_put(b, key, key_len, old, record, ttl_ns);
    if (b->fail_swap)
        done = -1;
    pthread_mutex_unlock(&b->lock);
    return done;
}

static void fresh(void)
{
    memset(&db, 0, sizeof db);
    pthread_mutex_init(&db.lock, NULL);
    db.now_ns = 1000 * SEC;
    db.cas.self = &db;
    db.cas.load = base_load;
    db.cas.swap = base_swap;
    db.cas.clock = base_clock;
    db.cas.clock_self = &db;
}

static size_t base_rows(void)
{
    size_t i, n = 0;
    for (i = 0; i < ROWS; i++)
        n += db.rows[i].key_len != 0;
    return n;
}

/* ---- short names ----------------------------------------------------------------------------- */

static ratelimit_result window(uint64_t most, uint64_t per_ns, uint64_t n)
{
    ratelimit_result out;
    bool allowed = held_window(&db.cas, "w", 1, most, per_ns, n, &out);
    CHECK(allowed == out.allowed && allowed == (out.status == OK));
    return out;
}

static ratelimit_result aligned(uint64_t tokens, uint64_t per_ns, uint64_t n)
{
    ratelimit_limit limit = ratelimit_window_make(tokens, per_ns);
    ratelimit_store store = ratelimit_cas_store(&db.cas);
    ratelimit_request q;
    ratelimit_result out;
    memset(&q, 0, sizeof q);
    q.key = "a";
    q.key_len = 1;
    q.limit = &limit;
    q.n = n;
    store.decide(&store, &q, &out, 1, RATELIMIT_EACH);
    return out;
}

static ratelimit_status plain(uint64_t most)
{
    return held_acquire_plain(&db.cas, "p", 1, most, 10 * SEC);
}

static ratelimit_status plain_back(void)
{
    return held_release_plain(&db.cas, "p", 1);
}

static uint64_t retry_ns, next_id;

static ratelimit_status acquire(uint32_t most, uint32_t places, uint64_t ttl_ns,
                                held_permit *permit)
{
    return held_acquire(&db.cas, "s", 1, most, places, ttl_ns, ++next_id, permit, &retry_ns);
}

static ratelimit_status release(const held_permit *permit)
{
    return held_release(&db.cas, "s", 1, permit);
}

static ratelimit_status extend(held_permit *permit, uint64_t ttl_ns)
{
    return held_extend(&db.cas, "s", 1, permit, ttl_ns);
}

/* ---- fixed windows --------------------------------------------------------------------------- */

static void an_aligned_window_is_full_until_the_clock_says_the_next_one(void)
{
    fresh();
    db.now_ns = 1003 * SEC;
    CHECK(aligned(5, 10 * SEC, 3).allowed);
    CHECK(aligned(5, 10 * SEC, 2).allowed);
    CHECK_U64(aligned(5, 10 * SEC, 1).retry_after_ns, 7 * SEC);
    CHECK_U64(db.writes, 2); /* the condition is part of the update: a refusal writes nothing */
    db.now_ns = 1010 * SEC - 1;
    CHECK_U64(aligned(5, 10 * SEC, 1).retry_after_ns, 1);
    db.now_ns = 1010 * SEC;
    CHECK(aligned(5, 10 * SEC, 5).allowed);
    CHECK(!aligned(5, 10 * SEC, 1).allowed);
}

static void a_window_begins_with_its_first_use_and_is_over_at_its_end(void)
{
    int keeps;
    for (keeps = 0; keeps < 2; keeps++) {
        ratelimit_result out;
        fresh();
        db.keeps = keeps;
        db.now_ns = 1003 * SEC;
        out = window(5, 10 * SEC, 3);
        CHECK(out.allowed && out.burst == 5 && out.remaining == 2 && out.taken == 3);
        CHECK_U64(out.reset_after_ns, 10 * SEC);
        CHECK_U64(out.retry_after_ns, 0);
        db.now_ns += 4 * SEC;
        CHECK_U64(window(5, 10 * SEC, 2).reset_after_ns, 6 * SEC);
        out = window(5, 10 * SEC, 1);
        CHECK_U64(out.status, RATELIMIT_DENIED);
        CHECK(out.taken == 0 && out.remaining == 0 && out.retry_after_ns == 6 * SEC);
        db.now_ns = 1013 * SEC - 1;
        CHECK_U64(window(5, 10 * SEC, 1).retry_after_ns, 1);
        CHECK_U64(db.writes, 2);
        db.now_ns = 1013 * SEC;
        CHECK_U64(window(5, 10 * SEC, 4).remaining, 1);
        CHECK_U64(window(5, 10 * SEC, 2).status, RATELIMIT_DENIED);
        CHECK_U64(window(5, 10 * SEC, 1).reset_after_ns, 10 * SEC);
    }
}

static void a_window_says_never_and_what_is_wrong(void)
{
    fresh();
    CHECK_U64(window(5, SEC, 6).status, RATELIMIT_NEVER);
    CHECK_U64(window(5, SEC, 6).retry_after_ns, FOREVER);
    CHECK_U64(db.writes, 0);
    db.loads = 0;
    CHECK_U64(window(5, SEC, 0).status, RATELIMIT_BAD_COUNT);
    CHECK_U64(window(5, 0, 1).status, RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(window(5, LONGEST + 1, 1).status, RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(window(UINT64_C(1) << 63, SEC, 1).status, RATELIMIT_BAD_ARGUMENT);
    CHECK_U64(window(5, SEC, UINT64_C(1) << 63).status, RATELIMIT_BAD_COUNT);
    CHECK_U64(db.loads, 0);
    CHECK(window(5, LONGEST, 1).allowed);
    CHECK(held_window(&db.cas, "o", 1, 1, SEC, 1, NULL));
    CHECK(!held_window(&db.cas, "o", 1, 1, SEC, 1, NULL));
    CHECK(window(INT64_MAX, SEC, INT64_MAX - 1).allowed);
    CHECK(!window(INT64_MAX, SEC, 2).allowed);
}

/* B18: "0: no limit" let everything through when a configured number was missing. */
static void a_most_of_zero_is_refused_and_never_unlimited(void)
{
    held_permit p;
    ratelimit_result out;
    fresh();
    out = window(0, SEC, 6);
    CHECK(!out.allowed && out.remaining == 0 && out.taken == 0);
    CHECK_U64(out.status, RATELIMIT_BAD_ARGUMENT);
    CHECK(plain(0) == RATELIMIT_BAD_ARGUMENT);
    CHECK(acquire(0, 1, SEC, &p) == RATELIMIT_BAD_ARGUMENT && p.id == 0);
    CHECK_U64(db.loads, 0);
}

static void a_bucket_and_a_window_of_one_key_are_apart(void)
{
    fresh();
    CHECK(held_window(&db.cas, "a", 1, 2, 10 * SEC, 2, NULL));
    CHECK(held_acquire_plain(&db.cas, "p", 1, 1, SEC) == OK);
    CHECK(aligned(5, 10 * SEC, 5).allowed);
    CHECK_U64(aligned(5, 10 * SEC, 1).status, RATELIMIT_DENIED);
    CHECK(!held_window(&db.cas, "a", 1, 2, 10 * SEC, 1, NULL));
    CHECK_U64(base_rows(), 3);
}

static void a_window_ends_within_its_period_whatever_the_clock_did(void)
{
    fresh();
    CHECK(window(1, MINUTE, 1).allowed);
    db.now_ns -= 10 * SEC; /* lateness: nothing is forgiven */
    CHECK_U64(window(1, MINUTE, 1).retry_after_ns, 70 * SEC);
    db.now_ns -= 1;
    CHECK_U64(window(1, MINUTE, 1).retry_after_ns, MINUTE);
    db.now_ns += MINUTE - 1; /* and that was stored, though refused */
    CHECK_U64(window(1, MINUTE, 1).retry_after_ns, 1);
    CHECK_U64(window(3, MINUTE, 1).remaining, 1); /* what was refused was not counted */
    db.now_ns += 1;
    CHECK(window(1, MINUTE, 1).allowed);
    CHECK_U64(window(1, 20 * SEC, 1).retry_after_ns, 20 * SEC); /* a shorter period */
    db.cas.step_ns = FOREVER;
    CHECK_U64(window(1, SEC, 1).retry_after_ns, 20 * SEC);
}

static void times_near_the_top_of_the_clock_are_times_like_any_other(void)
{
    uint64_t starts[] = {0, UINT64_MAX - 5 * SEC};
    size_t i;
    for (i = 0; i < COUNT(starts); i++) {
        held_permit one, two;
        fresh();
        db.keeps = true;
        db.now_ns = starts[i];
        CHECK(window(1, 10 * SEC, 1).allowed);
        CHECK(acquire(1, 1, 10 * SEC, &one) == OK);
        db.now_ns += 10 * SEC - 1;
        CHECK(!window(1, 10 * SEC, 1).allowed);
        CHECK(acquire(1, 1, 10 * SEC, &two) == BUSY && retry_ns == 1);
        db.now_ns += 1;
        CHECK(window(1, 10 * SEC, 1).allowed);
        CHECK(acquire(1, 1, 10 * SEC, &two) == OK);
        CHECK(release(&one) == LOST && release(&two) == OK);
    }
}

/* ---- plain semaphores ------------------------------------------------------------------------ */

static void a_plain_semaphore_stays_between_nothing_and_its_size(void)
{
    int keeps;
    for (keeps = 0; keeps < 2; keeps++) {
        fresh();
        db.keeps = keeps;
        CHECK(plain_back() == LOST);
        CHECK(plain(2) == OK && plain(2) == OK && plain(2) == BUSY);
        CHECK_U64(db.writes, 2);
        CHECK(plain_back() == OK && plain(2) == OK && plain(2) == BUSY);
        CHECK(plain_back() == OK && plain_back() == OK && plain_back() == LOST);
        CHECK(plain(2) == OK && plain(2) == OK && plain(2) == BUSY); /* never one more */
        CHECK(plain(3) == OK && plain(1) == BUSY);                   /* up, down */
        CHECK(plain_back() == OK && plain_back() == OK && plain(1) == BUSY);
        CHECK(plain_back() == OK && plain(1) == OK);
        CHECK(plain_back() == OK && (keeps || base_rows() == 0));
    }
}

static void a_plain_semaphore_is_free_when_nobody_acquired_for_its_time(void)
{
    int keeps;
    for (keeps = 0; keeps < 2; keeps++) {
        fresh();
        db.keeps = keeps;
        CHECK(plain(2) == OK);
        base_move(5 * SEC);
        CHECK(plain(2) == OK);
        base_move(10 * SEC - 1);
        CHECK(plain(2) == BUSY);
        base_move(1);
        CHECK(plain_back() == LOST); /* of a holder that comes late */
        CHECK(plain(2) == OK && plain(2) == OK && plain(2) == BUSY);
        base_move(SEC);
        CHECK(plain_back() == OK);
        base_move(9 * SEC - 1); /* giving back does not prolong it */
        CHECK(plain(1) == BUSY);
        base_move(1);
        CHECK(plain(1) == OK);
    }
}

/* ---- permits --------------------------------------------------------------------------------- */

static void a_semaphore_hands_out_its_size_and_says_when_the_next_is_free(void)
{
    uint32_t size;
    for (size = 1; size <= 255; size += size < 4 ? 1 : 50) {
        held_permit p[256];
        uint32_t i;
        fresh();
        for (i = 0; i < size; i++) {
            CHECK(acquire(size, size, 20 * SEC - i, &p[i]) == OK);
            CHECK(p[i].id == next_id && p[i].expires_ns == db.now_ns + 20 * SEC - i);
            CHECK(p[i].place < size);
        }
        CHECK(acquire(size, size, SEC, &p[255]) == BUSY);
        CHECK(p[255].id == 0);
        CHECK_U64(retry_ns, 20 * SEC - (size - 1));
        CHECK_U64(base_holders(&db), size);
        for (i = 0; i < size; i++)
            CHECK(release(&p[i]) == OK);
        CHECK(release(&p[255]) == LOST && base_rows() == 0);
    }
}

/* B59: a holder that crashed. */
static void a_dead_holders_place_is_free_at_its_end_and_not_before(void)
{
    int keeps;
    for (keeps = 0; keeps < 2; keeps++) {
        held_permit p;
        fresh();
        db.keeps = keeps;
        CHECK(acquire(2, 2, SEC, &p) == OK && acquire(2, 2, SEC, &p) == OK);
        CHECK(acquire(2, 2, SEC, &p) == BUSY && retry_ns == SEC);
        base_move(SEC - 1);
        CHECK(acquire(2, 2, SEC, &p) == BUSY && retry_ns == 1);
        base_move(1);
        CHECK(acquire(2, 2, SEC, &p) == OK && acquire(2, 2, SEC, &p) == OK);
        CHECK(acquire(2, 2, SEC, &p) == BUSY);
    }
}

/* B60: a release that comes too late frees nobody else's place. */
static void a_late_or_second_release_says_lost_and_adds_no_place(void)
{
    int keeps;
    for (keeps = 0; keeps < 2; keeps++) {
        held_permit a, b, c;
        fresh();
        db.keeps = keeps;
        CHECK(acquire(1, 1, 100 * MS, &a) == OK);
        base_move(150 * MS);
        CHECK(acquire(1, 1, 100 * MS, &b) == OK);
        CHECK(release(&a) == LOST);
        CHECK(acquire(1, 1, 100 * MS, &c) == BUSY);
        CHECK(release(&b) == OK && release(&b) == LOST);
        CHECK(acquire(1, 1, 100 * MS, &c) == OK && release(&b) == LOST);
        CHECK(acquire(1, 1, 100 * MS, &b) == BUSY);
        base_move(100 * MS);
        CHECK(release(&c) == LOST); /* over, though nobody else came */
    }
}

/* B61: several, of which some are over. */
static void of_several_released_each_says_whether_it_was_held(void)
{
    held_permit p[3], none = {77, 0, 4}, more;
    int i;
    fresh();
    CHECK(acquire(5, 5, 100 * MS, &p[0]) == OK && acquire(5, 5, 100 * MS, &p[1]) == OK);
    CHECK(acquire(5, 5, 10 * SEC, &p[2]) == OK);
    base_move(150 * MS);
    CHECK(release(&p[0]) == LOST && release(&p[2]) == OK && release(&none) == LOST);
    for (i = 0; i < 5; i++)
        CHECK(acquire(5, 5, SEC, &more) == OK);
    CHECK(acquire(5, 5, SEC, &more) == BUSY);
}

static void a_permit_is_extended_from_now_and_never_revived(void)
{
    int keeps;
    for (keeps = 0; keeps < 2; keeps++) {
        held_permit a, b, old;
        fresh();
        db.keeps = keeps;
        CHECK(acquire(1, 1, SEC, &a) == OK);
        CHECK(extend(&a, SEC) == OK && extend(&a, SEC) == OK);
        CHECK_U64(a.expires_ns, db.now_ns + SEC); /* not added up */
        base_move(SEC - 1);
        CHECK(extend(&a, SEC) == OK && a.expires_ns == db.now_ns + SEC);
        base_move(SEC);
        old = a;
        CHECK(extend(&a, SEC) == LOST && memcmp(&old, &a, sizeof a) == 0);
        CHECK_U64(base_holders(&db), 0);
        CHECK(acquire(1, 1, SEC, &b) == OK);
        CHECK(extend(&a, SEC) == LOST && extend(&b, 2 * SEC) == OK && release(&b) == OK);
        CHECK(extend(&b, SEC) == LOST && base_holders(&db) == 0);
    }
}

static held_permit hooked;
static ratelimit_status hooked_status;

static void time_passes(void)
{
    base_move(SEC);
}

static void another_acquires(void)
{
    hooked_status = acquire(1, 1, SEC, &hooked);
}

static void another_comes_later(void)
{
    base_move(SEC);
    another_acquires();
}

static void an_extension_that_reaches_the_database_too_late_is_lost(void)
{
    held_permit a, b;
    fresh();
    CHECK(acquire(1, 1, SEC, &a) == OK);
    db.keeps = true;
    base_move(1);
    db.hook = time_passes; /* between its load and its swap */
    CHECK(extend(&a, 10 * SEC) == LOST);
    CHECK_U64(base_holders(&db), 0);
    CHECK(acquire(1, 1, SEC, &b) == OK);
    base_move(1);
    db.hook = another_comes_later;
    CHECK(extend(&b, 10 * SEC) == LOST);
    CHECK(hooked_status == OK && release(&hooked) == OK);
}

static void two_who_want_the_last_place_do_not_both_get_it(void)
{
    held_permit a;
    fresh();
    db.hook = another_acquires;
    CHECK(acquire(1, 1, SEC, &a) == BUSY);
    CHECK(hooked_status == OK && release(&hooked) == OK);
}

static void a_smaller_size_counts_who_holds_in_places_above_it(void)
{
    uint32_t order, i;
    for (order = 0; order < 24; order++) {
        held_permit p[8], q[3], none;
        bool out[8];
        uint32_t left = 8;
        fresh();
        db.bound = 8;
        for (i = 0; i < 8; i++) {
            CHECK(acquire(8, 8, MINUTE, &p[i]) == OK);
            out[i] = true;
        }
        check_random_state = order;
        while (left > 2) { /* given back in any order; none comes in before there is room */
            CHECK(acquire(3, 8, MINUTE, &none) == BUSY);
            CHECK_U64(retry_ns, MINUTE);
            i = (uint32_t)check_below(8);
            if (!out[i])
                continue;
            CHECK(release(&p[i]) == OK);
            out[i] = false;
            left--;
        }
        db.bound = 3;
        CHECK(acquire(3, 8, MINUTE, &q[0]) == OK && acquire(3, 8, MINUTE, &none) == BUSY);
        for (i = 0; i < 8; i++)
            CHECK(release(&p[i]) == (out[i] ? OK : LOST));
        CHECK(acquire(3, 8, MINUTE, &q[1]) == OK && acquire(3, 8, MINUTE, &q[2]) == OK);
        CHECK(acquire(3, 8, MINUTE, &none) == BUSY);
        db.bound = 5;
        CHECK(acquire(5, 8, MINUTE, &p[0]) == OK && acquire(5, 8, MINUTE, &p[1]) == OK);
        CHECK(acquire(5, 8, MINUTE, &none) == BUSY && acquire(1, 8, MINUTE, &none) == BUSY);
        CHECK_U64(db.broken, 0);
    }
}

static void a_free_place_costs_one_load_and_one_swap(void)
{
    uint32_t i, firsts = 0;
    bool seen[16] = {false};
    for (i = 0; i < 64; i++) {
        held_permit p;
        fresh();
        CHECK(acquire(16, 16, SEC, &p) == OK);
        CHECK(db.loads == 1 && db.swaps == 1);
        firsts += !seen[p.place];
        seen[p.place] = true;
    }
    CHECK(firsts >= 12); /* they do not all begin at the same one */
    fresh();
    for (i = 0; i < 16; i++) {
        held_permit p;
        db.loads = 0;
        CHECK(acquire(16, 20, SEC, &p) == OK && db.loads <= 20 && db.swaps == i + 1);
    }
    db.loads = 0;
    CHECK(acquire(16, 20, SEC, &hooked) == BUSY && db.loads == 20 && db.swaps == 16);
}

static void a_semaphore_says_what_is_wrong_and_asks_nothing(void)
{
    static const struct {
        size_t key_len;
        uint32_t most, places;
        uint64_t ttl_ns, id;
        ratelimit_status status;
    } rows[] = {
        {0, 1, 1, SEC, 1, RATELIMIT_BAD_KEY},
        {251, 1, 1, SEC, 1, RATELIMIT_BAD_KEY},
        {1, 0, 1, SEC, 1, RATELIMIT_BAD_ARGUMENT},
        {1, 2, 1, SEC, 1, RATELIMIT_BAD_ARGUMENT},
        {1, 1, 256, SEC, 1, RATELIMIT_BAD_ARGUMENT},
        {1, 1, 1, 0, 1, RATELIMIT_BAD_ARGUMENT},
        {1, 1, 1, LONGEST + 1, 1, RATELIMIT_BAD_ARGUMENT},
        {1, 1, 1, SEC, 0, RATELIMIT_BAD_ARGUMENT},
    };
    char key[251];
    held_permit p;
    size_t i;
    memset(key, 'k', sizeof key);
    fresh();
    for (i = 0; i < COUNT(rows); i++) {
        CHECK_U64(held_acquire(&db.cas, key, rows[i].key_len, rows[i].most, rows[i].places,
                               rows[i].ttl_ns, rows[i].id, &p, NULL),
                  rows[i].status);
        CHECK(p.id == 0 && release(&p) == LOST);
    }
    CHECK(held_acquire(&db.cas, NULL, 1, 1, 1, 1, 1, &p, NULL) == RATELIMIT_BAD_KEY);
    CHECK(held_acquire(&db.cas, key, 1, 1, 1, 1, 1, NULL, NULL) == RATELIMIT_BAD_ARGUMENT);
    CHECK(held_acquire(NULL, key, 1, 1, 1, 1, 1, &p, NULL) == RATELIMIT_BAD_ARGUMENT);
    CHECK(release(NULL) == RATELIMIT_BAD_ARGUMENT && extend(NULL, 1) == RATELIMIT_BAD_ARGUMENT);
    CHECK(held_acquire_plain(NULL, key, 1, 1, 1) == RATELIMIT_BAD_ARGUMENT);
    CHECK(held_acquire_plain(&db.cas, key, 0, 1, 1) == RATELIMIT_BAD_KEY);
    CHECK(held_acquire_plain(&db.cas, key, 1, 1, 0) == RATELIMIT_BAD_ARGUMENT);
    CHECK(plain(0) == RATELIMIT_BAD_ARGUMENT);
    CHECK(plain((UINT64_C(1) << 31) + 1) == RATELIMIT_BAD_ARGUMENT);
    CHECK(held_release_plain(&db.cas, NULL, 1) == RATELIMIT_BAD_KEY);
    CHECK(!held_window(&db.cas, NULL, 1, 1, 1, 1, NULL));
    CHECK_U64(db.loads, 0);
    CHECK(held_acquire(&db.cas, key, 250, 255, 255, LONGEST, 1, &p, NULL) == OK);
    CHECK(extend(&p, 0) == RATELIMIT_BAD_ARGUMENT && extend(&p, SEC) == LOST); /* another key */
    CHECK(held_extend(&db.cas, key, 250, &p, LONGEST) == OK);
    CHECK(db.rows[0].key_len == 253 && memcmp(db.rows[0].key, key, 250) == 0);
    CHECK(db.rows[0].key[250] == ':');
    CHECK(held_release(&db.cas, key, 250, &p) == OK);
}

/* ---- a database with faults ------------------------------------------------------------------ */

/* All calls that write, by number; a permit that is held for those that need one. */
#define CALLS 7
static ratelimit_status call(int which, held_permit *held)
{
    held_permit p;
    switch (which) {
    case 0:
        return aligned(50, 10 * SEC, 1).status;
    case 1:
        return window(50, 10 * SEC, 1).status;
    case 2:
        return plain(50);
    case 3:
        return plain_back();
    case 4:
        return acquire(4, 6, MINUTE, &p);
    case 5:
        return release(held);
    default:
        return extend(held, MINUTE);
    }
}

static void prepare(held_permit *held)
{
    fresh();
    CHECK(aligned(50, 10 * SEC, 1).allowed && window(50, 10 * SEC, 1).allowed);
    CHECK(plain(50) == OK && acquire(4, 6, MINUTE, held) == OK);
    db.loads = db.swaps = db.writes = 0;
}

static void a_swap_that_loses_is_tried_again_as_often_as_asked(void)
{
    static const struct {
        uint32_t tries, lose;
        ratelimit_status status;
    } rows[] = {{0, 1, OK},     {0, 15, OK}, {0, 16, FAILED}, {1, 0, OK},
                {1, 1, FAILED}, {3, 2, OK},  {3, 3, FAILED}};
    size_t i;
    int which;
    for (which = 0; which < CALLS; which++)
        for (i = 0; i < COUNT(rows); i++) {
            held_permit held;
            prepare(&held);
            db.cas.tries = rows[i].tries;
            db.lose = rows[i].lose;
            CHECK_U64(call(which, &held), rows[i].status);
            CHECK_U64(db.swaps, rows[i].lose + (rows[i].status == OK));
            CHECK_U64(db.writes, rows[i].status == OK);
        }
}

static void a_database_that_fails_is_store_failed_and_not_busy(void)
{
    int which, how;
    for (which = 0; which < CALLS; which++)
        for (how = 0; how < 4; how++) {
            held_permit held;
            prepare(&held);
            db.fail_load = how == 0 ? 1 : how == 1 ? 3 : 0;
            db.fail_swap = how == 2 ? 1 : how == 3 ? 2 : 0;
            if (how == 1 && which != 4)
                continue; /* only acquire loads three times: two places above, one below */
            CHECK_U64(call(which, &held), FAILED);
            CHECK_U64(db.swaps, how < 2 ? 0 : 1); /* what may have been done is not sent again */
        }
}

static void a_record_of_another_kind_is_left_alone(void)
{
    int which, kind;
    for (which = 0; which < CALLS; which++)
        for (kind = 0; kind < CALLS; kind++) {
            static const char *const marks[] = {"RL2", "RW1", "RP1", "RP1", "RH1", "RH1", "RH1"};
            held_permit held;
            row before[ROWS];
            size_t i;
            prepare(&held);
            for (i = 0; i < ROWS; i++) /* also at places not yet used */
                memcpy(db.rows[i].record + 16, marks[kind], 4);
            for (i = 0; i < 6 && strcmp(marks[kind], "RH1") != 0; i++) {
                char place[] = "s:00";
                place[3] = (char)('0' + i);
                if (!base_find(&db, place, 4)) {
                    row *r = base_add(&db, place, 4);
                    r->gone_ns = UINT64_MAX;
                    memcpy(r->record + 16, marks[kind], 4);
                }
            }
            memcpy(before, db.rows, sizeof before);
            if (strcmp(marks[kind], marks[which]) == 0)
                continue;
            CHECK_U64(call(which, &held), FAILED);
            CHECK(memcmp(before, db.rows, sizeof before) == 0 && db.swaps == 0);
        }
}

/* ---- threads --------------------------------------------------------------------------------- */

static uint64_t thread_allowed, thread_inside, thread_most, thread_wrong, thread_failed;

static uint64_t count_up(uint64_t *counter, uint64_t n)
{
    return __atomic_add_fetch(counter, n, __ATOMIC_SEQ_CST);
}

static void inside(uint64_t most)
{
    if (count_up(&thread_inside, 1) > most)
        count_up(&thread_wrong, 1);
}

static void outside(void)
{
    count_up(&thread_inside, UINT64_MAX);
}

static void run_threads(void *(*work)(void *), size_t threads)
{
    pthread_t thread[THREADS];
    uint64_t number[THREADS];
    size_t i;
    thread_allowed = thread_inside = thread_wrong = thread_failed = 0;
    for (i = 0; i < threads; i++) {
        number[i] = i;
        if (pthread_create(&thread[i], NULL, work, &number[i]) != 0)
            abort();
    }
    for (i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    CHECK_U64(thread_wrong, 0);
    CHECK_U64(thread_failed, 0);
}

static void *count_windows(void *self)
{
    int i;
    (void)self;
    for (i = 0; i < 400; i++) {
        ratelimit_result out = window(1000, 10 * SEC, 1);
        count_up(&thread_allowed, out.allowed);
        out = aligned(1000, 10 * SEC, 1);
        count_up(&thread_allowed, out.allowed);
        count_up(&thread_failed, out.status == FAILED);
    }
    return NULL;
}

static void threads_count_each_unit_of_a_window_once(void)
{
    fresh();
    db.cas.tries = UINT32_MAX;
    run_threads(count_windows, THREADS);
    CHECK_U64(thread_allowed, 2 * 1000);
    base_move(10 * SEC);
    CHECK_U64(window(1000, 10 * SEC, 1).remaining, 999);
}

static void *hold_plain(void *self)
{
    int i;
    (void)self;
    for (i = 0; i < 2000; i++) {
        ratelimit_status status = plain(3);
        count_up(&thread_failed, status != OK && status != BUSY);
        if (status != OK)
            continue;
        count_up(&thread_allowed, 1);
        inside(3);
        outside();
        count_up(&thread_failed, plain_back() != OK);
    }
    return NULL;
}

static void threads_never_hold_more_of_a_plain_semaphore_than_its_size(void)
{
    fresh();
    db.cas.tries = UINT32_MAX;
    run_threads(hold_plain, THREADS);
    CHECK(thread_allowed > 0);
    CHECK(plain_back() == LOST);
}

static uint32_t thread_places;

/* Some die: they count as inside no more when their time is over, which is never in this run. */
static void *hold_permits(void *self)
{
    uint64_t number = *(uint64_t *)self;
    uint64_t i;
    for (i = 0; i < 1500; i++) {
        held_permit p;
        ratelimit_status status =
            held_acquire(&db.cas, "s", 1, (uint32_t)thread_most, thread_places, MINUTE,
                         (number + 1) << 32 | (i + 1), &p, NULL);
        count_up(&thread_failed, status != OK && status != BUSY);
        if (status != OK)
            continue;
        count_up(&thread_allowed, 1);
        inside(thread_most);
        count_up(&thread_failed, i % 3 == 0 && held_extend(&db.cas, "s", 1, &p, MINUTE));
        outside();
        count_up(&thread_failed, held_release(&db.cas, "s", 1, &p) != OK);
        count_up(&thread_wrong, held_release(&db.cas, "s", 1, &p) != LOST);
    }
    return NULL;
}

static void threads_never_hold_more_permits_than_the_size(void)
{
    held_permit p;
    fresh();
    db.cas.tries = UINT32_MAX;
    db.bound = 3;
    thread_most = thread_places = 3;
    run_threads(hold_permits, THREADS);
    CHECK(thread_allowed > 0 && db.broken == 0 && base_rows() == 0);
    thread_places = 9;
    CHECK(acquire(3, 9, MINUTE, &p) == OK); /* a holder that died */
    thread_most = 3;
    run_threads(hold_permits, THREADS);
    CHECK(thread_allowed > 0 && db.broken == 0 && base_holders(&db) == 1);
}

static held_permit shrink_permits[9];

/* The first gives back, one by one, what was out under a larger size; the others want in. */
static void *shrink(void *self)
{
    if (*(uint64_t *)self == 0) {
        int i;
        for (i = 0; i < 9; i++)
            count_up(&thread_failed, release(&shrink_permits[i]) != OK);
        return NULL;
    }
    return hold_permits(self);
}

static void threads_never_hold_more_than_a_size_that_was_lowered(void)
{
    int round;
    for (round = 0; round < (SHORT ? 10 : 40); round++) {
        int i;
        fresh();
        db.cas.tries = UINT32_MAX;
        for (i = 0; i < 9; i++)
            CHECK(acquire(9, 9, MINUTE, &shrink_permits[i]) == OK);
        db.bound = 2;
        thread_most = 2;
        thread_places = 9;
        run_threads(shrink, 4);
        CHECK(db.broken == 0 && base_rows() == 0);
    }
}

/* Time runs while they hold: a permit counts until expires_ns, whatever its holder does then. */
static void *hold_in_time(void *self)
{
    uint64_t number = *(uint64_t *)self, i;
    for (i = 0; i < 1500; i++) {
        held_permit p;
        ratelimit_status status =
            held_acquire(&db.cas, "s", 1, 2, 2, 20, (number + 1) << 32 | (i + 1), &p, NULL);
        count_up(&thread_failed, status != OK && status != BUSY);
        base_move(1);
        if (status != OK)
            continue;
        count_up(&thread_allowed, 1);
        if (i % 4 == 1) /* an extension that is OK was in time: whoever came since was refused */
            (void)held_extend(&db.cas, "s", 1, &p, 20);
        if (i % 4) /* else it dies */
            (void)held_release(&db.cas, "s", 1, &p);
    }
    return NULL;
}

static void dead_holders_never_block_threads_for_good(void)
{
    fresh();
    db.keeps = true;
    db.cas.tries = UINT32_MAX;
    db.bound = 2;
    run_threads(hold_in_time, THREADS);
    CHECK(thread_allowed > 500 && db.broken == 0);
    base_move(20);
    CHECK_U64(base_holders(&db), 0);
}

/* ---- beside a model -------------------------------------------------------------------------- */

#define KNOWN 64

static void a_long_random_run_is_as_a_plain_list_of_holders_says(void)
{
    held_permit p[KNOWN];
    uint64_t end[KNOWN];
    uint32_t turn, most = 4, i;
    memset(p, 0, sizeof p);
    memset(end, 0, sizeof end);
    fresh();
    check_seed(20);
    for (turn = 0; turn < (SHORT ? 20000 : 100000); turn++) {
        uint32_t at = (uint32_t)check_below(KNOWN), held = 0;
        uint64_t ttl = 1 + check_below(40), next = 0;
        bool mine = end[at] > db.now_ns;
        if (check_below(50) == 0)
            most = 1 + (uint32_t)check_below(12);
        db.lose = check_below(8) == 0;
        db.keeps = turn / 64 % 2 != 0;
        for (i = 0; i < KNOWN; i++)
            if (end[i] > db.now_ns) {
                held++;
                next = next && next < end[i] - db.now_ns ? next : end[i] - db.now_ns;
            }
        CHECK_U64(base_holders(&db), held);
        switch (check_below(4)) {
        case 0:
            CHECK_U64(release(&p[at]), mine ? OK : LOST);
            end[at] = 0;
            break;
        case 1:
            CHECK_U64(extend(&p[at], ttl), mine ? OK : LOST);
            end[at] = mine ? db.now_ns + ttl : end[at];
            break;
        case 2:
            if (mine)
                break; /* the list holds one each */
            CHECK_U64(acquire(most, 12, ttl, &p[at]), held < most ? OK : BUSY);
            end[at] = held < most ? db.now_ns + ttl : 0;
            CHECK(held < most || retry_ns == next);
            break;
        default:
            base_move(check_below(6));
            break;
        }
    }
}

/* Looks back on all the swaps of the tests before it, and makes some of its own. */
static void each_swap_follows_a_load_of_its_key_that_found_the_old_record(void)
{
    held_permit permit;
    fresh();
    db.lose = 2;
    CHECK(aligned(5, 10 * SEC, 3).allowed);
    db.lose = 2;
    CHECK(window(5, 10 * SEC, 3).allowed);
    CHECK_U64(plain(1), OK);
    CHECK_U64(plain_back(), OK);
    db.lose = 2;
    CHECK_U64(acquire(2, 8, 10 * SEC, &permit), OK);
    CHECK_U64(extend(&permit, 20 * SEC), OK);
    CHECK_U64(release(&permit), OK);
    CHECK(db.swaps > 10);
    CHECK_U64(unpaired, 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(an_aligned_window_is_full_until_the_clock_says_the_next_one);
    RUN(a_window_begins_with_its_first_use_and_is_over_at_its_end);
    RUN(a_window_says_never_and_what_is_wrong);
    RUN(a_most_of_zero_is_refused_and_never_unlimited);
    RUN(a_bucket_and_a_window_of_one_key_are_apart);
    RUN(a_window_ends_within_its_period_whatever_the_clock_did);
    RUN(times_near_the_top_of_the_clock_are_times_like_any_other);
    RUN(a_plain_semaphore_stays_between_nothing_and_its_size);
    RUN(a_plain_semaphore_is_free_when_nobody_acquired_for_its_time);
    RUN(a_semaphore_hands_out_its_size_and_says_when_the_next_is_free);
    RUN(a_dead_holders_place_is_free_at_its_end_and_not_before);
    RUN(a_late_or_second_release_says_lost_and_adds_no_place);
    RUN(of_several_released_each_says_whether_it_was_held);
    RUN(a_permit_is_extended_from_now_and_never_revived);
    RUN(an_extension_that_reaches_the_database_too_late_is_lost);
    RUN(two_who_want_the_last_place_do_not_both_get_it);
    RUN(a_smaller_size_counts_who_holds_in_places_above_it);
    RUN(a_free_place_costs_one_load_and_one_swap);
    RUN(a_semaphore_says_what_is_wrong_and_asks_nothing);
    RUN(a_swap_that_loses_is_tried_again_as_often_as_asked);
    RUN(a_database_that_fails_is_store_failed_and_not_busy);
    RUN(a_record_of_another_kind_is_left_alone);
    RUN(threads_count_each_unit_of_a_window_once);
    RUN(threads_never_hold_more_of_a_plain_semaphore_than_its_size);
    RUN(threads_never_hold_more_permits_than_the_size);
    RUN(threads_never_hold_more_than_a_size_that_was_lowered);
    RUN(dead_holders_never_block_threads_for_good);
    RUN(a_long_random_run_is_as_a_plain_list_of_holders_says);
    RUN(each_swap_follows_a_load_of_its_key_that_found_the_old_record);
    return check_end();
}

/* interleavings.h - runs the real code of ratelimit.h in every order that threads can have.
 *
 * Each access to shared memory (atomic load, store, swap, and each sleep of a waiter) is a step.
 * Between two steps a thread is a function of what its own steps have read so far. So a thread is
 * not a thread here: it is its body, called again from the start for each step, with the results of
 * its earlier steps repeated to it, until it comes to its next step; that one is done on the shared
 * memory, and the body is left with longjmp. A search goes through all choices of who steps next.
 * Two orders that lead to the same state (shared memory, and what each thread has read) are
 * searched once; the numbers of orders are multiplied and added, so that they are known exactly.
 *
 * Reads of words that no thread ever writes are not steps: they could be at any moment. Which words
 * are written is found by searching until no new one turns up.
 *
 * Steps are in one order that all threads see, as on one processor. What compilers and processors
 * do beyond that is not searched here: test_threads.c and ThreadSanitizer look at it.
 *
 * Include it before the implementation of ratelimit.h, whose atomics it replaces.
 */
#ifndef INTERLEAVINGS_H
#define INTERLEAVINGS_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 4, MOST_STEPS = 4000, ARENA_BYTES = 8192 };

/* The shared memory. */
static union {
    uint64_t align[ARENA_BYTES / 8];
    unsigned char byte[ARENA_BYTES];
} arena __attribute__((aligned(64)));

typedef enum step_kind {
    STEP_LOAD,
    STEP_STORE,
    STEP_SWAP,
    STEP_ADD,
    STEP_SLEEP,
    STEP_NONE
} step_kind;

typedef struct step {
    step_kind kind;
    uint32_t at, bytes; /* in the arena */
    uint64_t old, value;
} shared_step;

typedef struct search_thread {
    void (*body)(unsigned id);
    shared_step next;            /* what it wants to do; STEP_NONE: its body is done */
    unsigned steps;              /* done so far */
    uint64_t result[MOST_STEPS]; /* what each of them gave */
    shared_step done[MOST_STEPS];
    uint64_t mix[MOST_STEPS + 1][2]; /* a hash of the first so many results */
    bool dead;                       /* killed: it does nothing any more */
    bool wrote;                      /* since the start */
} search_thread;

static struct {
    search_thread thread[MOST_THREADS];
    unsigned threads;
    uint32_t word[ARENA_BYTES / 4], words;  /* these are written ... */
    unsigned char written[ARENA_BYTES / 4]; /* these words are written by some thread */
    bool grew;                              /* a word was added: begin again */
    unsigned owner[ARENA_BYTES / 4];        /* 1 + who holds the lock or mark in this word, or 0 */
    unsigned kills, steals;                 /* so many are allowed ... */
    unsigned killed, stolen;                /* ... and so many were done; stolen: from the living */
    unsigned bound; /* 0: none; else so many times less one a thread may be preempted: another steps
                       though this one could go on */
    unsigned preempted, last;                 /* so many times; 1 + who stepped last */
    uint64_t stuck;                           /* states in which all wait for each other */
    uint64_t orphans;                         /* locks that are held by nobody */
    uint64_t states, steps, ends, most;       /* counted; most: stop there, 0: never */
    void (*end)(void);                        /* called at each end */
    unsigned path[MOST_THREADS * MOST_STEPS]; /* who did each step on this way */
    unsigned depth;
} search;

/* What the running body is doing. */
static struct {
    bool on;                      /* a body is running; else all accesses are plain */
    bool step;                    /* it may do one new step */
    unsigned id, at;              /* the thread, and how many of its results were repeated */
    uint32_t held_at, held_bytes; /* the last lock it saw held: what it waits for if it sleeps */
    uint64_t held_value;
    jmp_buf leave;
} run;

static void search_stop(const char *why)
{
    printf("interleavings: %s\n0 passed, 1 failed\n", why);
    exit(1);
}

static uint64_t search_mix(uint64_t x, uint64_t y)
{
    x = (x ^ y) * UINT64_C(0x9E3779B97F4A7C15);
    x ^= x >> 29;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    return x ^ x >> 32;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t search_read(uint32_t at, uint32_t bytes)
{
    uint32_t half;
    uint64_t whole;
    if (bytes == 4) {
        memcpy(&half, arena.byte + at, 4);
        return half;
    }
    memcpy(&whole, arena.byte + at, 8);
    return whole;
}

static void search_write(uint32_t at, uint32_t bytes, uint64_t value)
{
    uint32_t half = (uint32_t)value;
    if (bytes == 4)
        memcpy(arena.byte + at, &half, 4);
    else
        memcpy(arena.byte + at, &value, 8);
}

static bool search_is_written(uint32_t at, uint32_t bytes)
{
    return search.written[at / 4] || search.written[(at + bytes - 1) / 4];
}

static void search_add_words(uint32_t at, uint32_t bytes)
{
    for (; bytes; bytes -= 4, at += 4)
        if (!search.written[at / 4]) {
            search.written[at / 4] = 1;
            search.word[search.words++] = at / 4;
        }
    search.grew = true;
}

/* The words of locks, and of marks in shared buckets, as the test's header has them. */
static bool search_is_held(uint32_t at, uint32_t bytes, uint64_t value);

/* A step of the running body: repeated, done, or left to be done later. */
static uint64_t search_step(step_kind kind, const void *p, uint32_t bytes, uint64_t old,
                            uint64_t value)
{
    search_thread *t = &search.thread[run.id];
    uint32_t at = (uint32_t)((uintptr_t)p - (uintptr_t)arena.byte);
    uint64_t result = 0;
    if (run.at < t->steps)
        return t->result[run.at++];
    t->next.kind = kind;
    t->next.at = at;
    t->next.bytes = bytes;
    t->next.old = old;
    t->next.value = value;
    if (!run.step)
        longjmp(run.leave, 1);
    run.step = false;
    if (kind == STEP_STORE || kind == STEP_SWAP || kind == STEP_ADD) {
        if (!search_is_written(at, bytes)) {
            search_add_words(at, bytes);
            longjmp(run.leave, 1);
        }
        if (kind == STEP_ADD) {
            result = search_read(at, bytes);
            search_write(at, bytes, result + value);
            t->wrote = true;
        } else if (kind == STEP_STORE || search_read(at, bytes) == old) {
            result = 1;
            if (search_is_held(at, bytes, old) && search.owner[at / 4] != run.id + 1 &&
                search.owner[at / 4] && !search.thread[search.owner[at / 4] - 1].dead)
                search.stolen++;
            search.owner[at / 4] = search_is_held(at, bytes, value) ? run.id + 1 : 0;
            search_write(at, bytes, value);
            t->wrote = true;
        }
    } else if (kind == STEP_LOAD) {
        result = search_read(at, bytes);
    }
    if (t->steps == MOST_STEPS)
        search_stop("a thread does not end");
    t->result[t->steps] = result;
    t->done[t->steps] = t->next;
    t->mix[t->steps + 1][0] = search_mix(t->mix[t->steps][0] + 1, result ^ (uint64_t)kind << 60);
    t->mix[t->steps + 1][1] = search_mix(t->mix[t->steps][1] + 7, result + at);
    run.at = ++t->steps;
    return result;
}

static bool search_in_arena(const void *p)
{
    return (uintptr_t)p - (uintptr_t)arena.byte < ARENA_BYTES;
}

static uint64_t search_load(const void *p, size_t bytes)
{
    uint32_t at = (uint32_t)((uintptr_t)p - (uintptr_t)arena.byte);
    uint64_t value;
    if (!search_in_arena(p))
        return bytes == 4 ? *(const uint32_t *)p : *(const uint64_t *)p;
    if (!run.on || !search_is_written(at, (uint32_t)bytes))
        return search_read(at, (uint32_t)bytes);
    value = search_step(STEP_LOAD, p, (uint32_t)bytes, 0, 0);
    if (search_is_held(at, (uint32_t)bytes, value)) {
        run.held_at = at;
        run.held_bytes = (uint32_t)bytes;
        run.held_value = value;
    }
    return value;
}

static void search_store(void *p, size_t bytes, uint64_t value)
{
    if (run.on && search_in_arena(p))
        (void)search_step(STEP_STORE, p, (uint32_t)bytes, 0, value);
    else if (bytes == 4)
        *(uint32_t *)p = (uint32_t)value;
    else
        *(uint64_t *)p = value;
}

static bool search_swap(void *p, size_t bytes, uint64_t old, uint64_t value)
{
    if (run.on && search_in_arena(p))
        return search_step(STEP_SWAP, p, (uint32_t)bytes, old, value) != 0;
    if ((bytes == 4 ? *(uint32_t *)p : *(uint64_t *)p) != old)
        return false;
    search_store(p, bytes, value);
    return true;
}

/* A counter. What it was is a step only if somebody wants to know. */
static inline bool search_is_counter(uint32_t at);

static inline uint64_t search_add(uint64_t *p, uint64_t value)
{
    uint32_t at = (uint32_t)((uintptr_t)p - (uintptr_t)arena.byte);
    if (run.on && search_in_arena(p))
        return search_is_counter(at) ? search_step(STEP_ADD, p, 8, 0, value) : 0;
    *p += value;
    return *p - value;
}

static void search_sleep(void)
{
    if (!run.on)
        return;
    (void)search_step(STEP_SLEEP, arena.byte + run.held_at, run.held_bytes, run.held_value, 0);
}

#define RATELIMIT_PRIV_SPINS              1
#define RATELIMIT_TAKEOVER_MS             1 /* a waiter sleeps twice */
#define RATELIMIT_SLEEP_MS(ms)            search_sleep()
#define RATELIMIT_MAX_ALL                 3
#define RATELIMIT_PRIV_NO_VECTOR          /* each word is read on its own */
/* + makes a value of the type without qualifiers */
#define __atomic_load_n(p, order)         ((__typeof__(+*(p)))search_load(p, sizeof *(p)))
#define __atomic_store_n(p, value, order) search_store(p, sizeof *(p), value)
#define __atomic_compare_exchange_n(p, old, value, weak, order, other)                             \
  search_swap(p, sizeof *(p), *(old), value)
#define __atomic_fetch_add(p, value, order) search_add(p, value)

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct search_state {
    uint64_t key[2];
    double orders; /* so many orders lead from here to an end */
} search_state;

static search_state *search_states;
static size_t search_room; /* a power of two */

static search_state *search_find(const uint64_t key[2])
{
    size_t i = (size_t)key[0] & (search_room - 1);
    while (search_states[i].key[0] | search_states[i].key[1]) {
        if (search_states[i].key[0] == key[0] && search_states[i].key[1] == key[1])
            break;
        i = (i + 1) & (search_room - 1);
    }
    return &search_states[i];
}

static void search_grow(void)
{
    search_state *old = search_states;
    size_t i, room = search_room;
    search_room = room ? 2 * room : 1 << 16;
    search_states = (search_state *)calloc(search_room, sizeof *search_states);
    if (!search_states)
        search_stop("no memory");
    for (i = 0; i < room; i++)
        if (old[i].key[0] | old[i].key[1])
            *search_find(old[i].key) = old[i];
    free(old);
}

static void search_key(uint64_t key[2])
{
    unsigned i;
    key[0] = search.killed * 64 + search.stolen + 1;
    if (search.bound)
        key[0] += (search.preempted * 8 + search.last) * 4096;
    key[1] = key[0];
    for (i = 0; i < search.words; i++) {
        uint64_t word = search_read(4 * search.word[i], 4);
        key[0] = search_mix(key[0], word << 13 ^ search.word[i]);
        key[1] = search_mix(key[1] + 3, word ^ (uint64_t)search.word[i] << 32);
    }
    for (i = 0; i < search.threads; i++) {
        const search_thread *t = &search.thread[i];
        key[0] = search_mix(key[0], t->mix[t->steps][0] + t->dead);
        key[1] = search_mix(key[1] + 5, t->mix[t->steps][1] + 2 * t->steps + t->dead);
    }
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Runs a body up to its next step; if `one`, it does one before. */
static void search_run(unsigned id, bool one)
{
    run.id = id;
    run.at = 0;
    run.step = one;
    run.on = true;
    if (setjmp(run.leave) == 0) {
        search.thread[run.id].body(run.id);
        search.thread[run.id].next.kind = STEP_NONE;
    }
    run.on = false;
}

/* Who may go on? A sleeper may if what it waits for has changed, if its holder is dead, if one more
 * steal is allowed, or if nobody else may. */
static bool search_may(unsigned id, bool patient)
{
    const search_thread *t = &search.thread[id];
    unsigned owner = search.owner[t->next.at / 4];
    if (t->dead || t->next.kind == STEP_NONE)
        return false;
    if (t->next.kind != STEP_SLEEP || search_read(t->next.at, t->next.bytes) != t->next.old)
        return true;
    search.orphans += !owner;
    return !patient || !owner || search.thread[owner - 1].dead || search.stolen < search.steals;
}

/* Would it be a preemption if this one stepped now? */
static bool search_preempts(unsigned id)
{
    return search.last && search.last != id + 1 && search_may(search.last - 1, true);
}

static double search_from(void);

static double search_choose(unsigned id)
{
    search_thread *t = &search.thread[id];
    const shared_step next = t->next;
    const bool wrote = t->wrote;
    const unsigned stolen = search.stolen, owner = search.owner[next.at / 4];
    const unsigned preempted = search.preempted, last = search.last;
    const uint64_t before = search_read(next.at, next.bytes);
    double orders;
    search.preempted += search_preempts(id);
    search.last = id + 1;
    search.steps++;
    search_run(id, true);
    if (search.grew)
        return 0;
    search.path[search.depth++] = id;
    orders = search_from();
    search.depth--;
    search_write(next.at, next.bytes, before);
    search.owner[next.at / 4] = owner;
    search.stolen = stolen;
    search.preempted = preempted;
    search.last = last;
    t->next = next;
    t->wrote = wrote;
    t->steps--;
    return orders;
}

/* Everything that can come from here. Returns how many orders that is. */
static double search_from(void)
{
    uint64_t key[2];
    search_state *found;
    double orders = 0;
    unsigned i, able = 0;
    bool patient = true, done = true;
    search_key(key);
    found = search_find(key);
    if (found->key[0] | found->key[1])
        return found->orders;
    if (++search.states == search.most)
        search_stop("more states than allowed");
    for (i = 0; i < search.threads; i++) {
        able += search_may(i, true);
        done = done && (search.thread[i].dead || search.thread[i].next.kind == STEP_NONE);
    }
    patient = able || done; /* else those who sleep lose their patience */
    search.stuck += !patient;
    for (i = 0; i < search.threads && !search.grew; i++) {
        search_thread *t = &search.thread[i];
        if (search_may(i, patient) &&
            (!search.bound || search.preempted + search_preempts(i) < search.bound))
            orders += search_choose(i);
        if (search.killed < search.kills && !t->dead && t->wrote && t->next.kind != STEP_NONE &&
            !search.grew) {
            t->dead = true;
            search.killed++;
            orders += search_from();
            search.killed--;
            t->dead = false;
        }
    }
    if (done && !search.grew) {
        search.ends++;
        search.end();
        orders = 1;
    }
    if (search.grew)
        return 0;
    if (search.states * 2 > search_room)
        search_grow();
    found = search_find(key);
    found->key[0] = key[0];
    found->key[1] = key[1];
    found->orders = orders;
    return orders;
}

/* How this end came about: thread, step, place (in the arena, or in a line) and result. */
static void search_print(void)
{
    static const char *const names[] = {"load", "store", "swap", "add", "sleep"};
    unsigned at[MOST_THREADS] = {0}, i;
    for (i = 0; i < search.depth; i++) {
        unsigned id = search.path[i];
        const search_thread *t = &search.thread[id];
        printf("    %u %s %u %" PRIx64 " %" PRIx64 " -> %" PRIx64 "\n", id,
               names[t->done[at[id]].kind], t->done[at[id]].at, t->done[at[id]].old,
               t->done[at[id]].value, t->result[at[id]]);
        at[id]++;
    }
}

/* Searches from the arena as it is, which is as before at the end. Returns how many orders there
 * are. */
static double search_all(unsigned threads, void (*body)(unsigned), unsigned kills, unsigned steals,
                         unsigned bound)
{
    static unsigned char before[ARENA_BYTES];
    double orders;
    unsigned i;
    memcpy(before, arena.byte, ARENA_BYTES);
    memset(search.written, 0, sizeof search.written);
    search.words = 0;
    search.threads = threads;
    search.kills = kills;
    search.steals = steals;
    search.bound = bound;
    do {
        memcpy(arena.byte, before, ARENA_BYTES);
        memset(search.owner, 0, sizeof search.owner);
        memset(search.thread, 0, sizeof search.thread);
        search.killed = search.stolen = 0;
        search.states = search.steps = search.ends = search.stuck = search.orphans = 0;
        search.grew = false;
        search.depth = search.preempted = search.last = 0;
        free(search_states);
        search_states = NULL;
        search_room = 0;
        search_grow();
        for (i = 0; i < threads; i++) {
            search.thread[i].body = body;
            search_run(i, false);
        }
        orders = search_from();
    } while (search.grew);
    memcpy(arena.byte, before, ARENA_BYTES);
    return orders;
}

#endif

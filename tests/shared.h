/* shared.h - counters that threads or processes share, and the locks that they take from each
 * other, counted. Include it before ratelimit.h. */
#ifndef SHARED_H
#define SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A 32-bit ABI may align 64 bits to 4 only, where they can't be added to at once. */
typedef uint64_t shared64 __attribute__((aligned(8)));

static inline uint64_t get(const shared64 *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void set(shared64 *p, uint64_t value)
{
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
}

static inline void add(shared64 *p, uint64_t value)
{
    (void)__atomic_add_fetch(p, value, __ATOMIC_ACQ_REL);
}

/* Locks taken from others in all processes, counted where a test wants to know: a swap of a held
 * one, the first word of a line, that is not one's own. Give it the result of each swap. */
static shared64 *takeovers;

static inline bool swapped(bool done, const void *p, size_t bytes, uint64_t old, uint64_t value)
{
    static __thread uint64_t mine[1024]; /* what this thread put into the lock of each line */
    uint64_t *own = &mine[(uintptr_t)p / 64 % 1024];
    if (!done || bytes != sizeof(uint32_t) || (uintptr_t)p % 64 != 0)
        return done;
    if (takeovers && old & 1 && *own != old)
        add(takeovers, 1);
    *own = value;
    return done;
}

#endif

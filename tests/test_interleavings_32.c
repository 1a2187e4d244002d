/* test_interleavings_32.c - the same without a 64-bit compare-and-swap: each half of a bucket is
 * read and written on its own, and every take holds the lock of its line. */
#undef __GCC_ATOMIC_LLONG_LOCK_FREE
#define __GCC_ATOMIC_LLONG_LOCK_FREE 1
#include "test_interleavings.c"

/* test_lock.c - test_threads.c under RATELIMIT_LOCK: a mutex round each decision keeps all of it
 * exact where there are no atomics. */
#define LOCKED
#include "test_threads.c"

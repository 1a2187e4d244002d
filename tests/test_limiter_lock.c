/* test_limiter_lock.c - test_limiter.c under RATELIMIT_LOCK: a lock that is taken twice hangs. */
#define WITH_LOCK
#include "test_limiter.c"

/* test_tier_lock.c - test_tier.c under RATELIMIT_LOCK: a lock that is taken twice hangs. */
#define WITH_LOCK
#include "test_tier.c"

/* shared.c - compiles just where ratelimit.h does not declare ratelimit_bucket_take_shared: where
 * nothing makes it safe between threads, there must be no function of that name. */
#include "ratelimit.h"

int ratelimit_bucket_take_shared, ratelimit_bucket_decide_shared;

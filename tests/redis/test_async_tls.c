/* test_async_tls.c - test_async.c over TLS. Needs what test_tls.c needs. */
#define OVER_TLS
#define RATELIMIT_REDIS_TLS
#include "test_async.c"

/* bench_static.c - the header as a static part of the file that uses it, with limits that the
 * compiler knows. */
#define RATELIMIT_STATIC
#define RATELIMIT_IMPLEMENTATION
#include "bench.h"

static const ratelimit_limit whole = RATELIMIT_LIMIT(1000000, RATELIMIT_SECOND, 1000000000);
static const ratelimit_limit hourly = RATELIMIT_LIMIT(1, RATELIMIT_HOUR, 1);

#define TAKES(name, limit)                                                                         \
  uint64_t name(ratelimit_bucket *b, uint64_t count, uint64_t now_ns, uint64_t step_ns)            \
  {                                                                                                \
    uint64_t i, passed = 0;                                                                        \
    for (i = 0; i < count; i++, now_ns += step_ns) {                                               \
      passed += ratelimit_bucket_take(b, &limit, 1, now_ns, NULL);                                 \
      BENCH_BARRIER();                                                                             \
    }                                                                                              \
    return passed;                                                                                 \
  }

TAKES(static_take_whole, whole)
TAKES(static_take_hourly, hourly)

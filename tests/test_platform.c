/* test_platform.c - a system that has not what it should: clocks, long sleeps. On other systems
 * than Linux the header calls other functions, and nothing is tried. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* The system of this test. */
static int clocks_there; /* how many of two: with 1, the one that also counts suspend is missing */
static time_t longest_s; /* that it was asked to sleep */

static int gettime_of_test(clockid_t id, struct timespec *now)
{
    if (clocks_there < (id == CLOCK_MONOTONIC ? 1 : 2))
        return -1;
    now->tv_sec = id == CLOCK_MONOTONIC ? 7 : 9;
    now->tv_nsec = 5;
    return 0;
}

static int nanosleep_of_test(const struct timespec *span, struct timespec *left)
{
    (void)left;
    longest_s = span->tv_sec > longest_s ? span->tv_sec : longest_s;
    return 0;
}

#define clock_gettime(id, now) gettime_of_test(id, now)
#define nanosleep(span, left)  nanosleep_of_test(span, left)
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#undef clock_gettime
#undef nanosleep

#include "unit.h"

#if defined(__linux__)
static void an_old_system_has_a_clock_that_stops_in_suspend(void)
{
    clocks_there = 2;
    CHECK_U64(ratelimit_clock_ns(), 9 * SEC + 5);
    clocks_there = 1;
    CHECK_U64(ratelimit_clock_ns(), 7 * SEC + 5);
    clocks_there = 0;
    CHECK_U64(ratelimit_clock_ns(), 0);
}

/* time_t may have 32 bits. */
static void a_sleep_of_years_is_cut(void)
{
    ratelimit_priv_sleep(FOREVER);
    CHECK_U64(longest_s, 1000000);
}
#endif

int main(int argc, char **argv)
{
    check_begin(argc, argv);
#if defined(__linux__)
    RUN(an_old_system_has_a_clock_that_stops_in_suspend);
    RUN(a_sleep_of_years_is_cut);
#else
    SKIP(a_system_without_a_clock, "the names are those of Linux");
#endif
    return check_end();
}

/* check.h - the test harness: sentences that pass or fail, counted.
 *
 *     static void a_full_bucket_passes_its_burst(void) { CHECK(...); CHECK_U64(got, want); }
 *     int main(int argc, char **argv)
 *     {
 *         check_begin(argc, argv);      words given: run only tests whose name has one
 *         RUN(a_full_bucket_passes_its_burst);
 *         return check_end();           last line: "N passed, N failed" (", N skipped")
 *     }
 */
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_passed, check_failed, check_skipped, check_faults;
static const char *check_name = "";
static int check_argc;
static char **check_argv;

static inline void check_begin(int argc, char **argv)
{
    check_argc = argc;
    check_argv = argv;
    setvbuf(stdout, NULL, _IOLBF, 0);
}

static inline int check_wanted(const char *name)
{
    int i;
    for (i = 1; i < check_argc; i++)
        if (strstr(name, check_argv[i]))
            return 1;
    return check_argc < 2;
}

/* Only the first few faults of a test are printed: one wrong rule fails thousands of checks. */
static inline int check_fault(const char *file, int line)
{
    if (++check_faults > 5)
        return 0;
    printf("  %s:%d: %s: ", file, line, check_name);
    return 1;
}

#define CHECK(what)                                                                                \
  do {                                                                                             \
    if (!(what) && check_fault(__FILE__, __LINE__))                                                \
      printf("not true: %s\n", #what);                                                             \
  } while (0)

#define CHECK_U64(got, want)                                                                       \
  do {                                                                                             \
    uint64_t check_got = (uint64_t)(got), check_want = (uint64_t)(want);                           \
    if (check_got != check_want && check_fault(__FILE__, __LINE__))                                \
      printf("%s is %" PRIu64 ", not %" PRIu64 " (%s)\n", #got, check_got, check_want, #want);     \
  } while (0)

#define CHECK_TEXT(got, want)                                                                      \
  do {                                                                                             \
    const char *check_got = (got), *check_want = (want);                                           \
    if (strcmp(check_got, check_want) != 0 && check_fault(__FILE__, __LINE__))                     \
      printf("%s is \"%s\", not \"%s\"\n", #got, check_got, check_want);                           \
  } while (0)

#define RUN(test)                                                                                  \
  do {                                                                                             \
    if (check_wanted(#test)) {                                                                     \
      check_name = #test;                                                                          \
      check_faults = 0;                                                                            \
      test();                                                                                      \
      check_count();                                                                               \
    }                                                                                              \
  } while (0)

#define SKIP(test, why) (check_skipped++, printf("skipped: %s: %s\n", #test, why))

static inline void check_count(void)
{
    if (check_faults) {
        check_failed++;
        printf("FAILED: %s (%d faults)\n", check_name, check_faults);
    } else {
        check_passed++;
    }
}

static inline int check_end(void)
{
    printf("%d passed, %d failed", check_passed, check_failed);
    if (check_skipped)
        printf(", %d skipped", check_skipped);
    printf("\n");
    return check_failed ? 1 : 0;
}

/* A generator of our own (splitmix64), so that a printed seed replays everywhere. */
static uint64_t check_random_state;

static inline uint64_t check_random(void)
{
    uint64_t z = check_random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* 0 to below - 1; below at least 1. */
static inline uint64_t check_below(uint64_t below)
{
    return check_random() % below;
}

/* The seed: SEED in the environment, else fallback; printed. */
static inline uint64_t check_seed(uint64_t fallback)
{
    const char *text = getenv("SEED");
    uint64_t seed = text ? (uint64_t)strtoull(text, NULL, 0) : fallback;
    printf("SEED=%" PRIu64 "\n", seed);
    check_random_state = seed;
    return seed;
}

#endif

/* test_ticks.c - ticks: a bucket in the caller's own ticks, against a slow model; 64-bit ns made of
 * a counter that wraps.
 *
 *     cc -std=c99 -O2 -I. -Itests tests/test_ticks.c
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include "unit.h"

#define TURN (UINT64_C(1) << 32)

/* ---- a bucket in ticks ----------------------------------------------------------------------- */

/* The model counts tokens, in 1/interval of one, with a time of 64 bits that never wraps. */
typedef struct model {
    uint64_t interval, burst;
    uint64_t have; /* in 1/interval tokens */
    uint64_t at;   /* the latest tick seen */
} model;

static bool model_take(model *m, uint64_t now)
{
    uint64_t most = m->burst * m->interval, passed = now - m->at;
    m->have = passed < most - m->have ? m->have + passed : most;
    m->at = now;
    if (m->have < m->interval)
        return false;
    m->have -= m->interval;
    return true;
}

typedef struct vector {
    uint32_t now;
    bool allowed;
} vector;

static void replay_ticks(const ratelimit_tick_limit *limit, const vector *rows, size_t count)
{
    static const uint32_t starts[] = {0, 1, 1000, 0x7fffffff, 0x80000000u, 0xfffffff0u, UINT32_MAX};
    size_t s, i;
    for (s = 0; s < COUNT(starts); s++) {
        uint32_t full = starts[s];
        for (i = 0; i < count; i++) {
            bool allowed = ratelimit_tick_take(&full, limit, starts[s] + rows[i].now);
            if (allowed != rows[i].allowed)
                printf("  start %" PRIu32 ", row %d\n", starts[s], (int)i);
            CHECK(allowed == rows[i].allowed);
        }
    }
}

static void a_burst_passes_at_once_and_then_one_each_interval(void)
{
    static const ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(10, 3);
    static const vector rows[] = {
        {0, true},    {0, true},    {0, true},     {0, false},   {9, false},    {10, true},
        {10, false},  {19, false},  {20, true},    {25, false},  {30, true},    {30, false},
        {59, true},   {59, true},   {59, false},   {60, true},   {60, false},   {1000, true},
        {1000, true}, {1001, true}, {1002, false}, {1010, true}, {1010, false},
    };
    replay_ticks(&limit, rows, COUNT(rows));
}

static void a_burst_of_one_is_one_each_interval(void)
{
    static const ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(1500, 1);
    static const vector rows[] = {{0, true},      {0, false},    {1, false},   {1499, false},
                                  {1500, true},   {2999, false}, {3000, true}, {90000, true},
                                  {91499, false}, {91500, true}};
    replay_ticks(&limit, rows, COUNT(rows));
}

static void one_token_each_tick_is_the_fastest(void)
{
    static const ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(1, 2);
    static const vector rows[] = {{0, true}, {0, true}, {0, false}, {1, true}, {1, false},
                                  {2, true}, {4, true}, {4, true},  {4, false}};
    replay_ticks(&limit, rows, COUNT(rows));
}

static void jumps_by_half_a_turn_find_a_full_bucket(void)
{
    static const ratelimit_tick_limit most = RATELIMIT_TICK_LIMIT(0x3fffffff, 1),
                                      few = RATELIMIT_TICK_LIMIT(10, 2);
    static const vector most_rows[] = {{0, true},
                                       {0x3ffffffe, false},
                                       {0x3fffffff, true},
                                       {0xbfffffffu, true},
                                       {0xc0000000u, false}};
    static const vector few_rows[] = {
        {0, true}, {0, true}, {0x80000000u, true}, {0x80000000u, true}, {0x80000000u, false},
        {0, true}, {0, true}, {0, false}};
    replay_ticks(&most, most_rows, COUNT(most_rows));
    replay_ticks(&few, few_rows, COUNT(few_rows));
}

/* Readings that cross: an interrupt read the counter before the main loop did, and asks later. */
static void a_reading_that_is_late_creates_no_tokens(void)
{
    static const ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(10, 3);
    uint32_t full = 500, late;
    int i;
    for (i = 0; i < 3; i++)
        CHECK(ratelimit_tick_take(&full, &limit, 500));
    for (late = 0; late <= 30; late++) {
        CHECK(!ratelimit_tick_take(&full, &limit, 500 - late));
        CHECK(!ratelimit_tick_take(&full, &limit, 500));
    }
    CHECK(ratelimit_tick_take(&full, &limit, 510));
    CHECK(!ratelimit_tick_take(&full, &limit, 509));
}

/* The one weakness, as large as it is said to be and no larger. */
static void a_rest_of_a_whole_turn_may_refuse_for_two_bursts_at_most(void)
{
    static const ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(10, 3);
    uint64_t rest, wait;
    for (rest = TURN - 200; rest < TURN + 200; rest++) {
        uint32_t full = 0;
        (void)ratelimit_tick_take(&full, &limit, 0);
        (void)ratelimit_tick_take(&full, &limit, 0);
        for (wait = 0; !ratelimit_tick_take(&full, &limit, (uint32_t)(rest + wait)); wait++)
            CHECK(wait < 2 * 3 * 10);
        CHECK(wait == 0 || (rest > TURN - 62 && rest < TURN + 20));
    }
}

static void limits_out_of_range_refuse_everything(void)
{
    static const ratelimit_tick_limit limits[] = {
        RATELIMIT_TICK_LIMIT(0, 1),
        RATELIMIT_TICK_LIMIT(1, 0),
        RATELIMIT_TICK_LIMIT(0, 0),
        RATELIMIT_TICK_LIMIT(0x40000000, 1),
        RATELIMIT_TICK_LIMIT(1, 0x40000000),
        RATELIMIT_TICK_LIMIT(0x8000, 0x8000),
        RATELIMIT_TICK_LIMIT(0x10000, 0x10000),
        RATELIMIT_TICK_LIMIT(UINT64_C(0x100000001), 1),
        RATELIMIT_TICK_LIMIT(1, UINT64_C(0x100000001)),
        RATELIMIT_TICK_LIMIT(UINT64_MAX, UINT64_MAX),
        RATELIMIT_TICK_LIMIT(-1, 1),
        {0, 0},
    };
    static const ratelimit_tick_limit good[] = {RATELIMIT_TICK_LIMIT(0x3fffffff, 1),
                                                RATELIMIT_TICK_LIMIT(1, 0x3fffffff),
                                                RATELIMIT_TICK_LIMIT(0x8000, 0x7fff)};
    uint32_t full;
    size_t i;
    for (i = 0; i < COUNT(limits); i++) {
        full = 7;
        CHECK(!ratelimit_tick_take(&full, &limits[i], 7));
        CHECK(!ratelimit_tick_take(&full, &limits[i], 0x70000007));
        CHECK(!ratelimit_tick_take(&full, &limits[i], 0xf0000007u));
        CHECK_U64(full, 7);
    }
    for (i = 0; i < COUNT(good); i++) {
        full = 7;
        CHECK(ratelimit_tick_take(&full, &good[i], 7));
    }
    CHECK(!ratelimit_tick_take(NULL, &good[0], 7));
    CHECK(!ratelimit_tick_take(&full, NULL, 7));
}

static void values_known_at_run_time_make_the_same_limit(void)
{
    static const ratelimit_tick_limit constant = RATELIMIT_TICK_LIMIT(1500, 4);
    volatile uint32_t interval = 1500;
    volatile unsigned char burst = 4;
    volatile int none = 0, less = -5;
    ratelimit_tick_limit made = RATELIMIT_TICK_LIMIT(interval, burst);
    ratelimit_tick_limit zero = RATELIMIT_TICK_LIMIT(interval, none);
    ratelimit_tick_limit minus = RATELIMIT_TICK_LIMIT(less, burst);
    CHECK(made.interval == constant.interval && made.room == constant.room);
    CHECK(zero.room == 0 && minus.room == 0);
}

/* Counters of fewer bits, moved up. */
static void counters_of_any_width_are_moved_up(void)
{
    unsigned bits;
    for (bits = 8; bits <= 32; bits++) {
        unsigned up = 32 - bits;
        ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(UINT64_C(5) << up, 3);
        uint32_t full = 0, tick;
        unsigned passed = 0;
        for (tick = 0; tick < 2000; tick++) /* several turns of the shortest counter */
            passed += ratelimit_tick_take(&full, &limit, tick << up);
        CHECK_U64(passed, 3 + 1999 / 5);
    }
}

/* Random programs, forward only, with rests of up to half a turn: the same as the model, always. */
static void random_programs_agree_with_the_model(void)
{
    int program, i;
    check_seed(5);
    for (program = 0; program < 3000; program++) {
        uint64_t interval = 1 + check_below(check_below(2) ? 50 : 0x3fffffff);
        uint64_t burst = 1 + check_below(0x3fffffff / interval);
        uint64_t now = check_random() & UINT32_MAX;
        ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(interval, burst);
        uint32_t full = (uint32_t)now;
        model m;
        if (check_below(2) && burst > 9)
            burst = 1 + check_below(9);
        limit.interval = (uint32_t)interval;
        limit.room = (uint32_t)((burst - 1) * interval + 1);
        m.interval = interval;
        m.burst = burst;
        m.have = burst * interval;
        m.at = now;
        for (i = 0; i < 60; i++) {
            bool want;
            switch (check_below(4)) {
            case 0:
                now += check_below(interval + 2);
                break;
            case 1:
                now += check_below(3);
                break;
            case 2:
                now += check_below(interval * burst + 2);
                break;
            default: /* full again for up to half a turn, or not at all */
                now += check_below(8) ? 0 : check_below(TURN / 2 + 1);
            }
            want = model_take(&m, now);
            CHECK(ratelimit_tick_take(&full, &limit, (uint32_t)now) == want);
        }
    }
}

/* Readings of two places that cross by up to a burst: never more than burst + time / interval. */
static void crossing_readings_never_pass_more_than_the_limit(void)
{
    int program, i;
    check_seed(6);
    for (program = 0; program < 2000; program++) {
        uint32_t interval = 1 + (uint32_t)check_below(100), burst = 1 + (uint32_t)check_below(20);
        ratelimit_tick_limit limit = RATELIMIT_TICK_LIMIT(interval, burst);
        uint32_t start = (uint32_t)check_random(), full = start, passed_ticks = 0;
        uint64_t passed = 0;
        for (i = 0; i < 300; i++) {
            uint32_t late = check_below(3) ? 0 : (uint32_t)check_below(interval * burst + 1);
            passed_ticks += (uint32_t)check_below(interval);
            late = late < passed_ticks ? late : passed_ticks;
            passed += ratelimit_tick_take(&full, &limit, start + passed_ticks - late);
            CHECK(passed <= burst + passed_ticks / interval);
        }
    }
}

/* ---- a clock of a counter -------------------------------------------------------------------- */

/* floor(ticks x 10^9 / hz), digit by digit, each step a remainder below hz. */
static uint64_t exact_ns(uint64_t ticks, uint64_t hz)
{
    uint64_t ns = ticks / hz, rest = ticks % hz;
    int i, j;
    for (i = 0; i < 9; i++) {
        uint64_t sum = 0, digit = 0;
        for (j = 0; j < 10; j++) {
            bool over = sum >= hz - rest;
            sum = over ? sum - (hz - rest) : sum + rest;
            digit += over;
        }
        rest = sum;
        ns = ns * 10 + digit;
    }
    return ns;
}

/* B12 (b) */
static void ticks_that_wrap_go_on(void)
{
    ratelimit_tick_clock t = {0, 0, 0};
    uint64_t before = ratelimit_tick_clock_ns(&t, 0xFFFFFFF0u, 32, 1000), after;
    after = ratelimit_tick_clock_ns(&t, 0x00000010u, 32, 1000);
    CHECK_U64(before, UINT64_C(0xFFFFFFF0) * MS);
    CHECK_U64(after - before, 32 * MS);
}

static void counters_of_any_width_wrap_in_either_direction(void)
{
    unsigned bits;
    for (bits = 1; bits <= 32; bits++) {
        uint32_t mask = UINT32_MAX >> (32 - bits), part = mask / 2 + 1; /* half a turn */
        ratelimit_tick_clock up = {0, 0, 0}, down = {0, 0, 0};
        uint64_t total = 0;
        int i;
        for (i = 0; i < 20; i++) {
            uint32_t counter;
            total += part;
            counter = (0u - (uint32_t)total) & mask;
            CHECK_U64(ratelimit_tick_clock_ns(&up, (uint32_t)total & mask, bits, SEC), total);
            CHECK_U64(ratelimit_tick_clock_ns(&down, 0u - counter, bits, SEC), total);
        }
    }
}

/* Any step is a step forward, by less than a turn: that is what is said of half a turn and more. */
static void a_step_is_forward_by_less_than_a_turn(void)
{
    static const uint32_t steps[] = {0, 1, 0x7fffffff, 0x80000000u, 0x80000001u, UINT32_MAX};
    size_t i;
    for (i = 0; i < COUNT(steps); i++) {
        ratelimit_tick_clock t = {0, 0, 0};
        (void)ratelimit_tick_clock_ns(&t, 1000, 32, SEC);
        CHECK_U64(ratelimit_tick_clock_ns(&t, 1000 + steps[i], 32, SEC), UINT64_C(1000) + steps[i]);
    }
}

/* Each of the readings is where 128-bit arithmetic puts the sum of all ticks so far, for 500
 * years. */
static void ticks_are_exact_for_500_years_at_any_frequency(void)
{
    static const uint64_t frequencies[] = {
        1, 3, 1000, 32768, 999983, 12000000, 1000000007, 4294967295u, UINT64_C(1) << 62};
    const uint64_t end_ns = UINT64_C(500) * 365 * DAY;
    size_t f;
    for (f = 0; f < COUNT(frequencies); f++) {
        uint64_t hz = frequencies[f], whole, ns = 0;
        ratelimit_tick_clock t = {0, 0, 0};
        /* Turns of 2^31 ticks, then the remembered time set ahead to the last of them. */
        for (whole = 1; whole <= 1000; whole++) {
            uint64_t want = exact_ns(whole << 31, hz);
            if (want > end_ns || whole << 31 > UINT64_MAX / 2)
                break;
            ns = ratelimit_tick_clock_ns(&t, (uint32_t)(whole << 31), 32, hz);
            CHECK_U64(ns, want);
        }
        t.ns = end_ns;
        ns = ratelimit_tick_clock_ns(&t, t.last + 1, 32, hz);
        CHECK(ns >= end_ns && ns - end_ns <= SEC / hz + 1);
    }
}

static void ticks_out_of_range_are_for_ever(void)
{
    ratelimit_tick_clock t = {7, 0, 0};
    CHECK_U64(ratelimit_tick_clock_ns(&t, 1, 0, 1000), FOREVER);
    CHECK_U64(ratelimit_tick_clock_ns(&t, 1, 33, 1000), FOREVER);
    CHECK_U64(ratelimit_tick_clock_ns(&t, 1, 32, 0), FOREVER);
    CHECK_U64(ratelimit_tick_clock_ns(&t, 1, 32, (UINT64_C(1) << 62) + 1), FOREVER);
    CHECK_U64(ratelimit_tick_clock_ns(NULL, 1, 32, 1000), FOREVER);
    CHECK_U64(t.ns, 7);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(a_burst_passes_at_once_and_then_one_each_interval);
    RUN(a_burst_of_one_is_one_each_interval);
    RUN(one_token_each_tick_is_the_fastest);
    RUN(jumps_by_half_a_turn_find_a_full_bucket);
    RUN(a_reading_that_is_late_creates_no_tokens);
    RUN(a_rest_of_a_whole_turn_may_refuse_for_two_bursts_at_most);
    RUN(limits_out_of_range_refuse_everything);
    RUN(values_known_at_run_time_make_the_same_limit);
    RUN(counters_of_any_width_are_moved_up);
    RUN(random_programs_agree_with_the_model);
    RUN(crossing_readings_never_pass_more_than_the_limit);
    RUN(ticks_that_wrap_go_on);
    RUN(counters_of_any_width_wrap_in_either_direction);
    RUN(a_step_is_forward_by_less_than_a_turn);
    RUN(ticks_are_exact_for_500_years_at_any_frequency);
    RUN(ticks_out_of_range_are_for_ever);
    return check_end();
}

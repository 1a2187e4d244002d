/* limits.c - the limits that requests name, by three numbers or by a text. Making one takes some
   divisions, and most requests name one of a few, so those are remembered, in places that newer
   ones take over. */
#include "server.h"

#include <string.h>

enum { PLACES = 256, WORDS = 48 };

static uint64_t mix(uint64_t a)
{
    a *= UINT64_C(0x9E3779B97F4A7C15);
    return a ^ a >> 29;
}

const ratelimit_limit *limit_of_numbers(uint64_t burst, uint64_t count, uint64_t period_s)
{
    static struct {
        uint64_t burst, count, period_s;
        ratelimit_limit limit;
    } known[PLACES];
    size_t place = (size_t)(mix(mix(mix(burst) + count) + period_s) % PLACES);
    if (known[place].burst != burst || known[place].count != count ||
        known[place].period_s != period_s) {
        ratelimit_limit made;
        if (period_s > UINT64_MAX / RATELIMIT_SECOND)
            return NULL;
        made = ratelimit_limit_make(count, period_s * RATELIMIT_SECOND, burst);
        if (ratelimit_limit_check(&made) != RATELIMIT_OK)
            return NULL;
        known[place].burst = burst;
        known[place].count = count;
        known[place].period_s = period_s;
        known[place].limit = made;
    }
    return burst ? &known[place].limit : NULL; /* an empty place has a burst of 0 */
}

const ratelimit_limit *limit_of_text(slice words)
{
    static struct {
        size_t len;
        char words[WORDS];
        ratelimit_limit limit;
    } known[PLACES];
    size_t place = ratelimit_scope(words.at, words.len) % PLACES;
    if (words.len == 0 || words.len > WORDS)
        return NULL;
    if (known[place].len != words.len || memcmp(known[place].words, words.at, words.len) != 0) {
        ratelimit_limit made;
        if (ratelimit_limit_parse_n(&made, words.at, words.len, NULL) != RATELIMIT_OK)
            return NULL;
        known[place].len = words.len;
        memcpy(known[place].words, words.at, words.len);
        known[place].limit = made;
    }
    return &known[place].limit;
}

/* series.c - requests over time, in bins that grow with the time they must cover */
#include "replay.h"

static const struct {
    uint64_t ns;
    const char *name;
} widths[] = {
    {RATELIMIT_MILLISECOND, "millisecond"},
    {10 * RATELIMIT_MILLISECOND, "10 milliseconds"},
    {100 * RATELIMIT_MILLISECOND, "100 milliseconds"},
    {RATELIMIT_SECOND, "second"},
    {2 * RATELIMIT_SECOND, "2 seconds"},
    {10 * RATELIMIT_SECOND, "10 seconds"},
    {30 * RATELIMIT_SECOND, "30 seconds"},
    {RATELIMIT_MINUTE, "minute"},
    {2 * RATELIMIT_MINUTE, "2 minutes"},
    {10 * RATELIMIT_MINUTE, "10 minutes"},
    {30 * RATELIMIT_MINUTE, "30 minutes"},
    {RATELIMIT_HOUR, "hour"},
    {3 * RATELIMIT_HOUR, "3 hours"},
    {6 * RATELIMIT_HOUR, "6 hours"},
    {12 * RATELIMIT_HOUR, "12 hours"},
    {RATELIMIT_DAY, "day"},
    {2 * RATELIMIT_DAY, "2 days"},
    {14 * RATELIMIT_DAY, "14 days"},
    {28 * RATELIMIT_DAY, "28 days"},
    {364 * RATELIMIT_DAY, "364 days"},
    {3640 * RATELIMIT_DAY, "3640 days"},
};
#define WIDTHS (sizeof widths / sizeof *widths)

/* Each width divides the next. */
static void widen(series *s)
{
    uint64_t ratio = widths[s->width + 1].ns / widths[s->width].ns, base = s->base / ratio;
    size_t i, to = 0;
    for (i = 0; i < s->count; i++) {
        bin moved = s->bins[i];
        to = (size_t)((s->base + i) / ratio - base);
        s->bins[i].allowed = s->bins[i].refused = 0;
        s->bins[to].allowed += moved.allowed;
        s->bins[to].refused += moved.refused;
    }
    s->count = to + 1;
    s->base = base;
    s->width++;
}

/* time_ns is not before any that was added before. */
void series_add(series *s, uint64_t time_ns, bool allowed)
{
    uint64_t at = time_ns / widths[s->width].ns;
    if (s->count == 0)
        s->base = at;
    for (; at - s->base >= FINE_BINS; at = time_ns / widths[s->width].ns)
        widen(s);
    if (at - s->base >= s->count)
        s->count = (size_t)(at - s->base) + 1;
    s->bins[at - s->base].allowed += allowed;
    s->bins[at - s->base].refused += !allowed;
}

void series_narrow(series *s, size_t most)
{
    while (s->count > most && s->width + 1 < WIDTHS)
        widen(s);
}

uint64_t series_width(const series *s)
{
    return widths[s->width].ns;
}

const char *series_width_name(const series *s)
{
    return widths[s->width].name;
}

uint64_t series_begin(const series *s, size_t i)
{
    return (s->base + i) * widths[s->width].ns;
}

uint64_t series_peak(const series *s)
{
    uint64_t peak = 0;
    size_t i;
    for (i = 0; i < s->count; i++)
        if (s->bins[i].allowed + s->bins[i].refused > peak)
            peak = s->bins[i].allowed + s->bins[i].refused;
    return peak;
}

/* The width at which at most `most` ticks, not closer than the bins, cover the time of s. */
uint64_t series_ticks(const series *s, uint64_t most)
{
    size_t i = s->width;
    uint64_t span = s->count * widths[s->width].ns;
    while (span / widths[i].ns > most && i + 1 < WIDTHS)
        i++;
    return widths[i].ns;
}

/* 1, 2 or 5 times a power of ten, at least value. */
uint64_t round_up(uint64_t value)
{
    uint64_t ten = 1;
    while (ten < value && ten <= UINT64_MAX / 100)
        ten *= 10;
    return value <= ten / 5 && ten >= 5 ? ten / 5 : value <= ten / 2 && ten >= 2 ? ten / 2 : ten;
}

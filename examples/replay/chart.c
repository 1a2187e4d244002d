/* chart.c - requests over time, drawn with characters */
#include "replay.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHART_COLUMNS 72
#define CHART_ROWS    10

typedef struct style {
    const char *allowed, *refused_color, *side, *corner, *floor, *tick, *off;
    const char *refused[9]; /* by eighths of a row, from nothing to all of it */
} style;

static const style ascii_style = {":", "",  "|", "+",
                                  "-", "+", "",  {" ", "_", "_", "_", "_", "#", "#", "#", "#"}};

#define UTF8_LINES "\342\224\202", "\342\224\224", "\342\224\200", "\342\224\264"
#define UTF8_EIGHTHS                                                                               \
  {                                                                                                \
    " ", "\342\226\201", "\342\226\202", "\342\226\203", "\342\226\204", "\342\226\205",           \
        "\342\226\206", "\342\226\207", "\342\226\210"                                             \
  }
static const style utf8_style = {"\342\226\221", "", UTF8_LINES, "", UTF8_EIGHTHS};
static const style color_style = {"\033[34m\342\226\210", "\033[31m", UTF8_LINES, "\033[0m",
                                  UTF8_EIGHTHS};

static const style *find_style(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *value = NULL, *term = getenv("TERM");
    size_t i;
    for (i = 0; i < 3 && (!value || !*value); i++)
        value = getenv(names[i]);
    if (!value || (!strstr(value, "UTF-8") && !strstr(value, "utf8") && !strstr(value, "UTF8")))
        return &ascii_style;
    return isatty(STDOUT_FILENO) == 1 && !getenv("NO_COLOR") && term && strcmp(term, "dumb") != 0
               ? &color_style
               : &utf8_style;
}

/* value in parts of the chart's height, rounded; what is not nothing is seen. */
static uint64_t parts_of(uint64_t value, uint64_t scale, unsigned count)
{
    uint64_t share = (uint64_t)((double)value * count / (double)scale + 0.5);
    return value && share == 0 ? 1 : share;
}

#define ALLOWED_CELL 9

/* What a bin shows in a row: ALLOWED_CELL, or refused in eighths on top of it, 0 for nothing. */
static uint64_t chart_cell(const bin *b, uint64_t row, uint64_t scale)
{
    uint64_t allowed = parts_of(b->allowed, scale, CHART_ROWS);
    uint64_t refused = parts_of(b->refused, scale, CHART_ROWS * 8);
    uint64_t below = row < allowed ? 0 : (row - allowed) * 8;
    uint64_t eighths = refused > below ? refused - below : 0;
    return row < allowed ? ALLOWED_CELL : eighths < 8 ? eighths : 8;
}

static void chart_row(const series *s, uint64_t row, uint64_t scale, size_t width,
                      const style *look)
{
    size_t i, end = s->count;
    while (end && chart_cell(&s->bins[end - 1], row, scale) == 0)
        end--;
    for (i = 0; i < end * width; i++) {
        uint64_t cell = chart_cell(&s->bins[i / width], row, scale);
        if (cell == ALLOWED_CELL)
            printf("%s%s", look->allowed, look->off);
        else
            printf("%s%s%s", look->refused_color, look->refused[cell], look->off);
    }
}

static void chart_axis(const series *s, size_t width, dating date, const style *look)
{
    uint64_t step = series_ticks(s, 6);
    char labels[CHART_COLUMNS + sizeof(line_text)];
    size_t i, end = 0;
    memset(labels, ' ', sizeof labels);
    printf("  %9s %s", "0", look->corner);
    for (i = 0; i < s->count * width; i++) {
        uint64_t at = series_begin(s, i / width);
        bool tick = i % width == 0 && at % step == 0;
        if (tick && (end == 0 || i > end)) {
            line_text name = tick_label(at, step, date);
            memcpy(labels + i, name.at, strlen(name.at));
            end = i + strlen(name.at);
        }
        fputs(tick ? look->tick : look->floor, stdout);
    }
    printf("\n%13s%.*s\n", "", (int)end, labels);
}

void print_chart(const run *r, const trial *t)
{
    static series s; /* 64 KiB: a copy, made coarser */
    const style *look = find_style();
    uint64_t scale, row;
    size_t width;
    s = t->series;
    series_narrow(&s, CHART_COLUMNS);
    width = CHART_COLUMNS / s.count < 4 ? CHART_COLUMNS / s.count : 4;
    scale = round_up(series_peak(&s));
    printf("\n  requests per %s     %s%s allowed   ", series_width_name(&s), look->allowed,
           look->off);
    printf("%s%s%s refused", look->refused_color, look->refused[8], look->off);
    if (r->opt->candidate_count > 1)
        printf("   under %s", candidate_label(&t->is).at);
    printf("\n\n");
    for (row = CHART_ROWS; row--;) {
        bool named = row + 1 == CHART_ROWS || (row + 1 == CHART_ROWS / 2 && scale % 2 == 0);
        printf("  %9s %s", named ? commas(scale * (row + 1) / CHART_ROWS).at : "", look->side);
        chart_row(&s, row, scale, width, look);
        putchar('\n');
    }
    chart_axis(&s, width, dating_of(r), look);
}

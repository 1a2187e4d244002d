/* quickstart.c - the shortest whole program: 10,000 keys in static memory, a limit, yes or no

   Package: gcc
   Build:   cc -std=c99 -I. examples/quickstart.c -o quickstart

   Alice may log in ten times at once (the burst), then once every twelve seconds. What follows is
   README's first program, letter for letter. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include <stdio.h>

static unsigned char memory[RATELIMIT_TABLE_BYTES(10000)]; /* for 10,000 keys */
static const ratelimit_limit logins =
    RATELIMIT_LIMIT(5, RATELIMIT_MINUTE, 10); /* 5 a minute, burst 10 */
static ratelimit_limiter limiter;

int main(void)
{
    ratelimit_table *table;
    if (ratelimit_table_init(&table, memory, sizeof memory, NULL) != RATELIMIT_OK ||
        ratelimit_init(&limiter, ratelimit_table_store(table, NULL, NULL)) != RATELIMIT_OK)
        return 1;
    for (int i = 0; i < 12; i++)
        puts(ratelimit_allow(&limiter, "alice", &logins) ? "come in" : "too many");
    ratelimit_close(&limiter);
    return 0;
}

/* bench_header.c - the header's functions, in a file of their own, as most programs have them. */
#define RATELIMIT_IMPLEMENTATION
#include "../../ratelimit.h"

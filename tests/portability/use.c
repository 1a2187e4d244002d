/* use.c - the smallest program that uses everything: the header alone, nothing included before it.
 * Also compiled as C++. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include "use.h"

int main(void)
{
    return use_all() != 0;
}

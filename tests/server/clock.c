/* clock.c - the time that a test wants a process to have: preloaded into it, for decisions.py.

   Build: cc -std=c99 -O1 -fPIC -shared tests/server/clock.c -o server_clock.so

   The clocks that decisions are made by say what stands in the file SERVER_CLOCK, 8 bytes of ns.
   All others, those of timers, run on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t which, struct timespec *out)
{
    static const volatile uint64_t *now;
    if (which != CLOCK_REALTIME && which != CLOCK_BOOTTIME)
        return (int)syscall(SYS_clock_gettime, which, out);
    if (!now) {
        int file = open(getenv("SERVER_CLOCK"), O_RDONLY | O_CLOEXEC);
        void *memory = mmap(NULL, sizeof *now, PROT_READ, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED)
            abort();
        now = (const volatile uint64_t *)memory;
    }
    out->tv_sec = (time_t)(*now / 1000000000);
    out->tv_nsec = (long)(*now % 1000000000);
    return 0;
}

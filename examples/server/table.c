/* table.c - the table, its memory, its clock.

   The table always lies in a file that is mapped: one of the caller's, or one without a name that
   lives in memory only. So both can be handed to a later process.

   THE FILE   Made under another name and linked here when it is whole, so it is never half made.
              A file that is no table of this size is left as it is, and the server does not start.
              It is locked while a server uses it. The system writes it back when it likes: a power
              cut may lose the last seconds of debts, kill -9 loses nothing.
   THE CLOCK  Of a table in a file: the wall clock, as the steady one starts again at boot. */
#define _GNU_SOURCE /* memfd_create, flock */
#define RATELIMIT_IMPLEMENTATION
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

ratelimit_table *table;
static int file = -1;
static bool wall;
static uint64_t now;

int table_file(void)
{
    return file;
}

uint64_t read_clock(void)
{
    if (wall) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        now = (uint64_t)t.tv_sec * RATELIMIT_SECOND + (uint64_t)t.tv_nsec;
    } else {
        now = ratelimit_clock_ns();
    }
    return now;
}

uint64_t now_ns(void *unused)
{
    (void)unused;
    return now;
}

static void *map(const char *name, int fd, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        fail(1, "%s: %s", name, strerror(errno));
    return memory;
}

/* Puts an empty table into a file of no bytes. False: *why says why not. */
static bool fill(int fd, const options *o, size_t bytes, const char **why)
{
    ratelimit_table_options how;
    int error;
    void *memory;
    memset(&how, 0, sizeof how); /* the seed comes from the system */
    how.when_full = o->evict ? RATELIMIT_EVICT : RATELIMIT_INHERIT;
    *why = "can't be made";
    /* Not ftruncate: where a hole finds no room later, writing to it is a SIGBUS. */
    error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error) {
        *why = strerror(error);
        return false;
    }
    memory = map("the table", fd, bytes);
    if (ratelimit_table_init(&table, memory, bytes, &how) != RATELIMIT_OK)
        return false;
    return msync(memory, bytes, MS_SYNC) == 0 && munmap(memory, bytes) == 0;
}

static void make_file(const options *o, size_t bytes)
{
    char draft[4096];
    const char *why;
    int fd;
    if (snprintf(draft, sizeof draft, "%s.%ld", o->file, (long)getpid()) >= (int)sizeof draft)
        fail(2, "%s: the name is too long", o->file);
    fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        fail(1, "%s: %s", draft, strerror(errno));
    if (!fill(fd, o, bytes, &why)) {
        unlink(draft);
        fail(1, "%s: %s", draft, why);
    }
    close(fd);
    if (link(draft, o->file) != 0 && errno != EEXIST) { /* never over another's */
        int error = errno;
        unlink(draft);
        fail(1, "%s: %s", o->file, strerror(error));
    }
    unlink(draft);
}

static void open_file(const options *o, size_t bytes)
{
    file = open(o->file, O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) {
        make_file(o, bytes);
        file = open(o->file, O_RDWR | O_CLOEXEC);
    }
    if (file < 0)
        fail(1, "%s: %s", o->file, strerror(errno));
    if (flock(file, LOCK_EX | LOCK_NB) != 0)
        fail(1, "%s: another server uses it", o->file);
}

static void open_memory(const options *o, size_t bytes)
{
    const char *why = "no files in memory here; use --file";
#if defined(__linux__)
    file = memfd_create("ratelimit table", MFD_CLOEXEC);
    if (file >= 0 && fill(file, o, bytes, &why))
        return;
#else
    (void)o, (void)bytes;
#endif
    fail(1, "the table: %s", why);
}

void open_table(const options *o, int given)
{
    size_t bytes = ratelimit_table_bytes(o->keys);
    const char *name = o->file ? o->file : "the table";
    struct stat about;
    wall = o->file != NULL;
    if (!bytes)
        fail(2, "--keys %u: too many for this machine", o->keys);
    if (given >= 0)
        file = given;
    else if (o->file)
        open_file(o, bytes);
    else
        open_memory(o, bytes);
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size != (off_t)bytes)
        fail(1, "%s: no table for %u keys; left as it is", name, o->keys);
    if (ratelimit_table_attach(&table, map(name, file, bytes), bytes) != RATELIMIT_OK)
        fail(1, "%s: no table of this version; left as it is", name);
    read_clock();
}

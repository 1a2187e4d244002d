/* base.c - failing, memory, output files, the line of progress */
#include "replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

size_t memory_used[MEMORY_KINDS];

static bool progress_shown;

void progress_end(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

void progress_line(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("\rreplay: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\033[K", stderr);
    va_end(args);
    progress_shown = true;
}

void fail(int code, const char *format, ...)
{
    va_list args;
    progress_end();
    fputs("replay: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(code);
}

/* What went wrong but does not end the run. */
void complain(const char *format, ...)
{
    va_list args;
    progress_end();
    fputs("replay: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

/* None are left of 0. */
void *resize(memory_kind kind, void *memory, size_t old_count, size_t count, size_t size)
{
    void *grown;
    if (count == 0) {
        free(memory);
        memory_used[kind] -= old_count * size;
        return NULL;
    }
    grown = count <= SIZE_MAX / size ? realloc(memory, count * size) : NULL;
    if (!grown)
        fail(1, "out of memory: %zu bytes more are not to be had", count * size);
    memory_used[kind] += (count - old_count) * size;
    return grown;
}

void check_output(FILE *out, const char *name)
{
    if (fflush(out) != 0 || ferror(out))
        fail(1, "cannot write %s%s%s", name, errno ? ": " : "", errno ? strerror(errno) : "");
}

/* A new file is written beside the old one and takes its name when it is whole: on a full disk the
 * old one stays as it was. Devices and pipes have no such room beside them. */
FILE *output_begin(output_file *out, const char *name)
{
    struct stat info;
    int there = stat(name, &info);
    int fd = -1;
    out->name = name;
    out->other[0] = 0;
    if ((there != 0 || S_ISREG(info.st_mode)) && strlen(name) + 12 < sizeof out->other) {
        snprintf(out->other, sizeof out->other, "%s.XXXXXX", name);
        fd = mkstemp(out->other);
        if (fd < 0)
            fail(1, "cannot write %s: %s", name, strerror(errno));
        fchmod(fd, there == 0 ? info.st_mode & 0777 : 0644);
    }
    out->file = fd >= 0 ? fdopen(fd, "w") : fopen(name, "w");
    if (!out->file)
        fail(1, "cannot write %s: %s", name, strerror(errno));
    return out->file;
}

void output_end(output_file *out)
{
    bool bad = fflush(out->file) != 0 || ferror(out->file);
    int why = errno;
    if (fclose(out->file) != 0 && !bad) {
        bad = true;
        why = errno;
    }
    if (!bad && out->other[0] && rename(out->other, out->name) != 0) {
        bad = true;
        why = errno;
    }
    if (bad && out->other[0])
        unlink(out->other);
    if (bad)
        fail(1, "cannot write %s: %s", out->name, strerror(why));
}

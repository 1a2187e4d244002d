/* reader.c - from a file to lines: plain or gzip, a file, a pipe or one that grows

   Bytes are read into one buffer and lines are handed out where they lie in it; only what is left
   of a line at the buffer's end is moved. A line longer than MAX_LINE is handed out cut, its rest
   is passed over. With -DREPLAY_ZLIB gzip is unpacked by zlib, else by the program gzip. */
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef REPLAY_ZLIB
#  include <zlib.h>
#endif

#define BUFFER (4 * MAX_LINE)
#define CHUNK  65536

struct reader {
    int fd;
    bool follow, regular, begun, ended, skipping, own_fd;
    const char *fault;
    uint64_t number, bytes, size;
    size_t at, have;
    char *buffer;
    bool gzip;
    pid_t unpacker;
#ifdef REPLAY_ZLIB
    z_stream z;
    bool member_ended;
#endif
    unsigned char *packed; /* what was read before it was known what it is */
    size_t packed_have, packed_at;
    dev_t device;
    ino_t inode;
};

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Reads once. 0 at the end, -1 on a fault, -2 if there is nothing yet of what is followed. */
static ssize_t read_raw(reader *r, void *to, size_t room)
{
    ssize_t got;
    if (r->follow && !r->regular) {
        struct pollfd p = {0, POLLIN, 0};
        p.fd = r->fd;
        if (poll(&p, 1, 0) == 0)
            return -2;
    }
    do
        got = read(r->fd, to, room);
    while (got < 0 && errno == EINTR && !r->follow);
    if (got < 0 && r->follow && (errno == EINTR || errno == EAGAIN))
        return -2;
    if (got < 0) {
        r->fault = strerror(errno);
        return -1;
    }
    if (got == 0 && r->follow && r->regular)
        return -2;
    r->bytes += (uint64_t)got;
    return got;
}

#ifdef REPLAY_ZLIB

static bool start_unpacking(reader *r)
{
    r->gzip = true;
    if (inflateInit2(&r->z, 15 + 16) != Z_OK) {
        r->fault = "out of memory for zlib";
        return false;
    }
    return true;
}

/* More packed bytes, at least one. 1: there are; 0: the end; -1: a fault. */
static int more_packed(reader *r)
{
    ssize_t got;
    if (r->packed_at < r->packed_have)
        return 1;
    got = read_raw(r, r->packed, CHUNK);
    r->packed_at = 0;
    r->packed_have = got > 0 ? (size_t)got : 0;
    return got > 0 ? 1 : got < 0 ? -1 : 0;
}

/* A file may have several members one after another; other bytes after them are padding. */
static ssize_t read_packed(reader *r, char *to, size_t room)
{
    int more, code;
    do {
        more = more_packed(r);
        if (more < 0)
            return -1;
        if (more == 0 && !r->member_ended)
            r->fault = "its gzip data end in the middle: it was cut off";
        if (more == 0)
            return r->member_ended ? 0 : -1;
        if (r->member_ended) {
            if (r->packed[r->packed_at] != 0x1f)
                return 0;
            inflateReset(&r->z);
            r->member_ended = false;
        }
        r->z.next_in = r->packed + r->packed_at;
        r->z.avail_in = (uInt)(r->packed_have - r->packed_at);
        r->z.next_out = (Bytef *)to;
        r->z.avail_out = (uInt)room;
        code = inflate(&r->z, Z_NO_FLUSH);
        r->packed_at = r->packed_have - r->z.avail_in;
        r->member_ended = code == Z_STREAM_END;
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
            r->fault = "its gzip data are damaged";
            return -1;
        }
    } while (r->z.avail_out == room);
    return (ssize_t)(room - r->z.avail_out);
}

static void stop_unpacking(reader *r)
{
    if (r->gzip)
        inflateEnd(&r->z);
}

#else

/* A child hands gzip what was read already and then the rest, another one is gzip. */
static void feed(reader *r, int to)
{
    static char chunk[CHUNK];
    const char *from = (const char *)r->packed;
    ssize_t have = (ssize_t)r->packed_have, put;
    do {
        for (; have > 0; from += put, have -= put)
            if ((put = write(to, from, (size_t)have)) <= 0)
                _exit(1);
        from = chunk;
        have = read(r->fd, chunk, sizeof chunk);
    } while (have > 0);
    _exit(have < 0);
}

static bool start_unpacking(reader *r)
{
    int in[2], out[2];
    pid_t feeder;
    r->gzip = true;
    if (pipe(in) != 0 || pipe(out) != 0 || (feeder = fork()) < 0) {
        r->fault = strerror(errno);
        return false;
    }
    if (feeder == 0) { /* a child of a child: nobody has to wait for it */
        close(in[0]);
        close(out[0]);
        close(out[1]);
        if (fork() == 0)
            feed(r, in[1]);
        _exit(0);
    }
    waitpid(feeder, NULL, 0);
    r->unpacker = fork();
    if (r->unpacker == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[0]);
        close(in[1]);
        close(out[0]);
        close(out[1]);
        signal(SIGPIPE, SIG_DFL); /* if no more is wanted it ends quietly */
        execlp("gzip", "gzip", "-dcq", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(in[1]);
    close(out[1]);
    if (r->own_fd)
        close(r->fd);
    r->fd = out[0];
    r->own_fd = true;
    return r->unpacker > 0;
}

static ssize_t read_packed(reader *r, char *to, size_t room)
{
    ssize_t got = read_raw(r, to, room);
    int status = 0;
    if (got != 0 || !r->unpacker)
        return got;
    waitpid(r->unpacker, &status, 0);
    r->unpacker = 0;
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2))
        return 0; /* 2 is a warning: something follows the data */
    r->fault = WIFEXITED(status) && WEXITSTATUS(status) == 127
                   ? "it is packed by gzip, and the program gzip is not installed"
                   : "its gzip data are damaged or cut off";
    return -1;
}

static void stop_unpacking(reader *r)
{
    if (r->unpacker)
        waitpid(r->unpacker, NULL, 0);
}

#endif

/* ---- what kind of file it is ----------------------------------------------------------------- */

/* Why bytes that begin like this are no lines of text; NULL if they may be. */
static const char *no_text(const char *at, size_t len)
{
    static const struct {
        const char *magic;
        size_t len;
        const char *what;
    } kinds[] = {
        {"\xFF\xFE", 2, "it is UTF-16: iconv -f UTF-16 -t UTF-8 FILE | replay [OPTION]... -"},
        {"\xFE\xFF", 2, "it is UTF-16: iconv -f UTF-16 -t UTF-8 FILE | replay [OPTION]... -"},
        {"\x28\xB5\x2F\xFD", 4, "it is packed by zstd: zstdcat FILE | replay [OPTION]... -"},
        {"\xFD"
         "7zXZ",
         5, "it is packed by xz: xzcat FILE | replay [OPTION]... -"},
        {"BZh", 3, "it is packed by bzip2: bzcat FILE | replay [OPTION]... -"},
        {"PK\3\4", 4, "it is a zip archive: unzip -p FILE | replay [OPTION]... -"},
    };
    size_t i, nulls[2] = {0, 0};
    for (i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (len >= kinds[i].len && memcmp(at, kinds[i].magic, kinds[i].len) == 0)
            return kinds[i].what;
    if (len > 64)
        len = 64;
    for (i = 0; i < len; i++)
        nulls[i % 2] += at[i] == 0;
    if (len >= 8 && nulls[0] + nulls[1] > len * 3 / 8 && (!nulls[0] || !nulls[1]))
        return "it looks like UTF-16 without its mark: iconv -f UTF-16LE -t UTF-8 FILE | replay "
               "[OPTION]... -";
    return NULL;
}

/* The first bytes say how the rest is read. -2: too few are there. */
static int begin(reader *r)
{
    ssize_t got = 1;
    while (r->packed_have < 64 && got > 0) {
        got = read_raw(r, r->packed + r->packed_have, CHUNK - r->packed_have);
        if (got > 0)
            r->packed_have += (size_t)got;
    }
    if (got == -1)
        return -1;
    if (got == -2 && r->packed_have == 0)
        return -2;
    r->begun = true;
    if (r->packed_have >= 2 && r->packed[0] == 0x1f && r->packed[1] == 0x8b) {
        if (r->follow) {
            r->fault = "it is packed by gzip: that can't be followed";
            return -1;
        }
        return start_unpacking(r) ? 0 : -1;
    }
    memcpy(r->buffer, r->packed, r->packed_have);
    r->have = r->packed_have;
    return 0;
}

/* After the first bytes of text are in the buffer. */
static int look_at_text(reader *r)
{
    r->fault = no_text(r->buffer, r->have);
    if (r->fault) {
        r->have = 0; /* none of it is lines */
        return -1;
    }
    if (r->have >= 3 && memcmp(r->buffer, "\xEF\xBB\xBF", 3) == 0)
        r->at = 3;
    return 1;
}

/* More bytes into the buffer. 1: there are; 0: the end; -1: a fault; -2: nothing yet. */
static int fill(reader *r)
{
    ssize_t got;
    bool first = false;
    if (r->at) {
        memmove(r->buffer, r->buffer + r->at, r->have - r->at);
        r->have -= r->at;
        r->at = 0;
    }
    if (!r->begun) {
        int code = begin(r);
        if (code != 0)
            return code;
        if (r->have)
            return look_at_text(r);
        first = true;
    }
    got = r->gzip ? read_packed(r, r->buffer + r->have, BUFFER - r->have)
                  : read_raw(r, r->buffer + r->have, BUFFER - r->have);
    if (got <= 0)
        return (int)got;
    r->have += (size_t)got;
    return first ? look_at_text(r) : 1;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void hand_out(reader *r, size_t len, bool cut, log_line *out)
{
    text t;
    t.at = r->buffer + r->at;
    t.len = len;
    if (t.len && t.at[t.len - 1] == '\r' && !cut)
        t.len--;
    out->nulls = false;
    while (t.len && *t.at == 0) { /* a machine lost power while the log was written */
        t.at++;
        t.len--;
        out->nulls = true;
    }
    while (cut && t.len && !is_blank(t.at[t.len - 1]))
        t.len--;
    out->is = t;
    out->cut = cut;
    out->number = ++r->number;
}

/* Passes over the rest of a line that was handed out cut; true when it is behind. */
static bool skip_rest(reader *r)
{
    char *newline = (char *)memchr(r->buffer + r->at, '\n', r->have - r->at);
    r->at = newline ? (size_t)(newline - r->buffer) + 1 : r->have;
    r->skipping = !newline;
    return newline != NULL;
}

reading reader_next(reader *r, log_line *out)
{
    size_t looked = 0;
    for (;;) {
        int code;
        if (r->skipping)
            skip_rest(r);
        if (!r->skipping && r->at < r->have) {
            char *from = r->buffer + r->at;
            size_t have = r->have - r->at;
            char *newline = (char *)memchr(from + looked, '\n', have - looked);
            size_t len = newline ? (size_t)(newline - from) : have;
            while (len > MAX_LINE && *from == 0) { /* NULs before a line don't count */
                from++;
                len--;
                have--;
                r->at++;
            }
            if (newline || len > MAX_LINE || r->ended) {
                out->unfinished = !newline && r->ended;
                hand_out(r, len < MAX_LINE ? len : MAX_LINE, len > MAX_LINE, out);
                r->at += newline ? len + 1 : len;
                r->skipping = !newline && !r->ended;
                return READ_LINE;
            }
            looked = have;
        }
        if (r->ended)
            return r->fault ? READ_FAILED : READ_END;
        code = fill(r);
        if (code == -2)
            return READ_WAIT;
        r->ended = code <= 0;
    }
}

text reader_ahead(reader *r)
{
    text t;
    while (!r->ended && r->have < BUFFER)
        r->ended = fill(r) <= 0;
    t.at = r->buffer + r->at;
    t.len = r->have - r->at;
    return t;
}

/* ---- opening --------------------------------------------------------------------------------- */

reader *reader_open(const char *name, bool follow, const char **why)
{
    bool standard = strcmp(name, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(name, O_RDONLY);
    struct stat info;
    reader *r;
    if (fd < 0 || fstat(fd, &info) != 0) {
        *why = strerror(errno);
        return NULL;
    }
    if (S_ISDIR(info.st_mode)) {
        *why = strerror(EISDIR);
        close(fd);
        return NULL;
    }
    r = (reader *)resize(FOR_READING, NULL, 0, 1, sizeof *r);
    memset(r, 0, sizeof *r);
    r->fd = fd;
    r->own_fd = !standard;
    r->follow = follow;
    r->regular = S_ISREG(info.st_mode);
    r->size = r->regular ? (uint64_t)info.st_size : 0;
    r->device = info.st_dev;
    r->inode = info.st_ino;
    r->buffer = (char *)resize(FOR_READING, NULL, 0, BUFFER, 1);
    r->packed = (unsigned char *)resize(FOR_READING, NULL, 0, CHUNK, 1);
    return r;
}

void reader_close(reader *r)
{
    if (r->own_fd)
        close(r->fd);
    stop_unpacking(r);
    memory_used[FOR_READING] -= BUFFER + CHUNK + sizeof *r;
    free(r->buffer);
    free(r->packed);
    free(r);
}

/* True if the file that is followed is another one now, or was emptied. */
bool reader_replaced(reader *r, const char *name)
{
    struct stat info;
    off_t at = lseek(r->fd, 0, SEEK_CUR);
    if (!r->regular || stat(name, &info) != 0)
        return false;
    return info.st_dev != r->device || info.st_ino != r->inode || info.st_size < at;
}

const char *reader_fault(const reader *r)
{
    return r->fault;
}

uint64_t reader_bytes(const reader *r)
{
    return r->bytes;
}

bool reader_compressed(const reader *r)
{
    return r->gzip;
}

uint64_t reader_file_size(const reader *r)
{
    return r->size;
}

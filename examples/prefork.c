/* prefork.c - a pre-forking TCP server whose workers share their limits through a mapped file

   What it shows: one table in a file that all workers map. Limits hold over all of them and over a
   restart of the server or the machine; a worker that is killed at any moment, also in the middle
   of a decision, changes nothing for the others.

   Package: gcc
   Build:   cc -std=c99 -O2 -I. examples/prefork.c -o prefork

   Try it:  ./prefork limits.table --port 7000 --workers 4 --limit "10/m burst 5"
            printf 'hello\nhello\n' | nc -N 127.0.0.1 7000

   Each line that a client sends takes a token of its address and is answered with "ok LEFT" or
   "wait SECONDS". SIGTERM ends the server and its workers; so does the death of the parent.

   THE FILE   Made under another name and linked here when it is whole, so it is never half made.
              A file that is no table of this size is left as it is, and the server does not start.
              Locked while any worker lives: two servers would each believe to have all of it.
              Written back when the system likes; a power cut may lose the last seconds of debts.
   THE CLOCK  The wall clock: the steady one starts anew at boot, and the file outlives that. If it
              is set forward debts are over earlier; if it is set back by more than 10 s they are
              those of when each key was last seen, at most the limit's window (see CONCEPTS).
   THE SEED   Is in the table's head, made when the file is made. Who can read the file knows it,
              and could choose addresses that share a place: its mode is 0600. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* flock, MAP_SHARED */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 100000, MAX_WORKERS = 64, LINE_BYTES = 256, PATIENCE_MS = 10000 };

typedef struct server {
    const char *path, *bind;
    int port, workers, listener;
    int alive[2]; /* a pipe that nothing is written to: its end says that the parent has ended */
    ratelimit_limit limit;
    ratelimit_table *table;
    pid_t worker[MAX_WORKERS]; /* 0: none */
} server;

static void fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("prefork: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

static uint64_t wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * RATELIMIT_SECOND + (uint64_t)now.tv_nsec;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void *map(const char *path, int file)
{
    void *memory =
        mmap(NULL, RATELIMIT_TABLE_BYTES(CLIENTS), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        fail(1, "%s: %s", path, strerror(errno));
    return memory;
}

static void make_file(const char *path)
{
    ratelimit_table_options options = {{0, 0}, RATELIMIT_INHERIT, RATELIMIT_HASH_SIP, 0};
    char draft[4096];
    ratelimit_table *table;
    void *memory;
    int file;
    if (snprintf(draft, sizeof draft, "%s.%ld", path, (long)getpid()) >= (int)sizeof draft)
        fail(2, "%s: the name is too long", path);
    file = open(draft, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0)
        fail(1, "%s: %s", draft, strerror(errno));
    /* Not ftruncate: where a hole finds no room on the disk, writing to it later is a SIGBUS. */
    if ((errno = posix_fallocate(file, 0, (off_t)RATELIMIT_TABLE_BYTES(CLIENTS))) != 0) {
        int error = errno;
        unlink(draft);
        fail(1, "%s: %s", draft, strerror(error));
    }
    memory = map(draft, file);
    if (ratelimit_table_init(&table, memory, RATELIMIT_TABLE_BYTES(CLIENTS), &options) ||
        msync(memory, RATELIMIT_TABLE_BYTES(CLIENTS), MS_SYNC) != 0)
        fail(1, "%s: can't be made", draft);
    munmap(memory, RATELIMIT_TABLE_BYTES(CLIENTS));
    close(file);
    if (link(draft, path) != 0 && errno != EEXIST) /* never over another's */
        fail(1, "%s: %s", path, strerror(errno));
    unlink(draft);
}

/* The table in the file. The file stays open and locked, here and in all workers. */
static ratelimit_table *open_table(const char *path)
{
    ratelimit_table *table;
    struct stat about;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) {
        make_file(path);
        file = open(path, O_RDWR | O_CLOEXEC);
    }
    if (file < 0 || fstat(file, &about) != 0)
        fail(1, "%s: %s", path, strerror(errno));
    if (flock(file, LOCK_EX | LOCK_NB) != 0)
        fail(1, "%s: another server uses it", path);
    if (!S_ISREG(about.st_mode) || about.st_size != (off_t)RATELIMIT_TABLE_BYTES(CLIENTS))
        fail(1, "%s: no table for %d clients; left as it is", path, CLIENTS);
    if (ratelimit_table_attach(&table, map(path, file), RATELIMIT_TABLE_BYTES(CLIENTS)))
        fail(1, "%s: no table of this version; left as it is", path);
    return table;
}

/* ---- a worker -------------------------------------------------------------------------------- */

/* Waits for input, for at most so long. False: it is over, or the parent has ended. */
static bool readable(const server *s, int file, int timeout_ms)
{
    struct pollfd wait[2];
    int ready;
    wait[0].fd = file;
    wait[1].fd = s->alive[0];
    wait[0].events = wait[1].events = POLLIN;
    while ((ready = poll(wait, 2, timeout_ms)) < 0 && errno == EINTR)
        ;
    if (ready > 0 && wait[1].revents)
        _exit(0);
    return ready > 0;
}

static bool answer(const server *s, int client, const unsigned char *key, size_t key_len)
{
    char text[64];
    ratelimit_result result;
    int len;
    if (ratelimit_table_take(s->table, key, key_len, &s->limit, 1, wall_clock(), &result))
        len = snprintf(text, sizeof text, "ok %llu\n", (unsigned long long)result.remaining);
    else
        len = snprintf(text, sizeof text, "wait %llu\n",
                       (unsigned long long)((result.retry_after_ns - 1) / RATELIMIT_SECOND + 1));
    return send(client, text, (size_t)len, MSG_NOSIGNAL) == len;
}

/* A client that says nothing for PATIENCE_MS, or a line that is too long, ends the connection: a
   worker has one client at a time. */
static void serve(const server *s, int client, const unsigned char *key, size_t key_len)
{
    char buffer[LINE_BYTES];
    size_t line = 0;
    struct timeval patience = {PATIENCE_MS / 1000, 0};
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    while (line < sizeof buffer && readable(s, client, PATIENCE_MS)) {
        ssize_t i, got = recv(client, buffer, sizeof buffer, 0);
        if (got <= 0)
            return;
        for (i = 0; i < got; i++, line++)
            if (buffer[i] == '\n') {
                if (!answer(s, client, key, key_len))
                    return;
                line = (size_t)-1;
            }
    }
}

static size_t client_key(const struct sockaddr_storage *from, unsigned char *key)
{
    if (from->ss_family == AF_INET)
        return ratelimit_address_key(&((const struct sockaddr_in *)(const void *)from)->sin_addr, 4,
                                     32, 64, key);
    return ratelimit_address_key(&((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16,
                                 32, 64, key);
}

static void work(const server *s)
{
    for (;;) {
        struct sockaddr_storage from;
        socklen_t from_len = sizeof from;
        unsigned char key[RATELIMIT_ADDRESS_KEY_BYTES];
        int client;
        readable(s, s->listener, -1);
        client = accept(s->listener, (struct sockaddr *)&from, &from_len);
        if (client < 0) { /* another worker was faster, or the client has gone; or no more files */
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                poll(NULL, 0, 100);
            continue;
        }
        serve(s, client, key, client_key(&from, key));
        close(client);
    }
}

/* ---- the parent ------------------------------------------------------------------------------ */

static void nothing(int number)
{
    (void)number;
}

static void start_worker(server *s, int at, const sigset_t *before)
{
    pid_t pid = fork();
    if (pid == 0) {
        close(s->alive[1]);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        sigprocmask(SIG_SETMASK, before, NULL);
        work(s);
    }
    if (pid < 0)
        fprintf(stderr, "prefork: no worker: %s\n", strerror(errno));
    s->worker[at] = pid > 0 ? pid : 0;
}

static void reap(server *s)
{
    pid_t pid;
    int status, i;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (i = 0; i < s->workers; i++)
            if (s->worker[i] == pid)
                s->worker[i] = 0;
}

/* Workers that are gone are replaced, not faster than 10 a second: one that crashes at once must
   not use up the machine. */
static void supervise(server *s)
{
    static const ratelimit_limit starts = RATELIMIT_LIMIT(10, RATELIMIT_SECOND, MAX_WORKERS);
    static const struct timespec tenth = {0, 100000000};
    ratelimit_bucket started = {0, 0};
    sigset_t signals, before;
    int number = 0, i;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, &before);
    signal(SIGCHLD, nothing); /* or it would be ignored */
    while (number != SIGTERM && number != SIGINT) {
        for (i = 0; i < s->workers; i++)
            if (!s->worker[i] &&
                ratelimit_bucket_take(&started, &starts, 1, ratelimit_clock_ns(), NULL))
                start_worker(s, i, &before);
        number = sigtimedwait(&signals, NULL, &tenth);
        reap(s);
    }
    for (i = 0; i < s->workers; i++)
        if (s->worker[i])
            kill(s->worker[i], SIGKILL); /* also those that are stopped; it changes nothing else */
    while (wait(NULL) > 0 || errno == EINTR)
        ;
}

static void start_listening(server *s)
{
    struct addrinfo hints, *address;
    char port[8];
    int yes = 1;
    memset(&hints, 0, sizeof hints);
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
    hints.ai_socktype = SOCK_STREAM;
    snprintf(port, sizeof port, "%d", s->port);
    if (getaddrinfo(s->bind, port, &hints, &address) != 0)
        fail(2, "--bind wants an address, not \"%s\"", s->bind);
    s->listener = socket(address->ai_family, SOCK_STREAM, 0);
    if (s->listener < 0 ||
        setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(s->listener, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(s->listener, 128) != 0 || fcntl(s->listener, F_SETFL, O_NONBLOCK) != 0)
        fail(1, "%s, port %d: %s", s->bind, s->port, strerror(errno));
    freeaddrinfo(address);
}

static int parse_number(const char *option, const char *text, int least, int most)
{
    size_t digits = strspn(text, "0123456789");
    long number = strtol(text, NULL, 10);
    if (!digits || digits > 6 || text[digits] || number < least || number > most)
        fail(2, "%s wants a number from %d to %d, not \"%s\"", option, least, most, text);
    return (int)number;
}

static void parse(server *s, int argc, char **argv)
{
    const char *limit = "10/m burst 5";
    int i;
    for (i = 2; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--port"))
            s->port = parse_number(argv[i], argv[i + 1], 1, 65535);
        else if (!strcmp(argv[i], "--workers"))
            s->workers = parse_number(argv[i], argv[i + 1], 1, MAX_WORKERS);
        else if (!strcmp(argv[i], "--bind"))
            s->bind = argv[i + 1];
        else if (!strcmp(argv[i], "--limit"))
            limit = argv[i + 1];
        else
            break;
    }
    if (argc < 2 || argv[1][0] == '-' || i != argc)
        fail(2, "usage: prefork FILE [--bind ADDRESS] [--port N] [--workers N] [--limit TEXT]");
    s->path = argv[1];
    if (ratelimit_limit_parse(&s->limit, limit) != RATELIMIT_OK)
        fail(2, "--limit wants a limit such as \"10/m burst 5\", not \"%s\"", limit);
}

int main(int argc, char **argv)
{
    static server s = {.bind = "127.0.0.1", .port = 7000, .workers = 4};
    parse(&s, argc, argv);
    s.table = open_table(s.path);
    start_listening(&s);
    if (pipe(s.alive) != 0)
        fail(1, "pipe: %s", strerror(errno));
    supervise(&s);
    return 0;
}

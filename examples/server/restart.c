/* restart.c - a later process takes over, on SIGUSR2: a new version, or new rules and passwords.

   The same command is started once more. It gets the table's file and the sockets that listen, by
   their numbers in the environment, and the end of a pipe. When it is ready it writes a byte to
   the pipe; only then does this process stop listening. No connection is refused meanwhile, and
   both decide on the same table, which is made for that. If the new process ends instead (a wrong
   rules file, a version whose table is another) this one goes on as if nothing had been. */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char variable[] = "RATELIMIT_SERVER_FDS"; /* table, pipe, sockets */
static int ready_pipe = -1;
static struct event *answer;
static pid_t successor;
static void (*taken_over)(void);

/* Reads numbers of open files with blanks between. Returns how many, 0 if it is anything else. */
static size_t read_numbers(const char *at, int *fds, size_t most)
{
    size_t count = 0;
    while (*at) {
        char *end;
        long fd = strtol(at, &end, 10);
        if (end == at || (*end && *end != ' ') || fd < 3 || fd > 65535 || count == most ||
            fcntl((int)fd, F_SETFD, FD_CLOEXEC) != 0)
            return 0;
        fds[count++] = (int)fd;
        at = end + (*end == ' ');
    }
    return count;
}

bool handed_over(int *table_fd, int *sockets, size_t wanted)
{
    int fds[MAX_LISTENERS + 3];
    const char *numbers = getenv(variable);
    size_t count, i;
    if (!numbers)
        return false;
    count = read_numbers(numbers, fds, MAX_LISTENERS + 3);
    if (count != wanted + 2)
        fail(1, "%s: %zu sockets were handed over where %zu are wanted", variable,
             count > 2 ? count - 2 : 0, wanted);
    *table_fd = fds[0];
    ready_pipe = fds[1];
    for (i = 0; i < wanted; i++) {
        int listens = 0;
        socklen_t len = sizeof listens;
        sockets[i] = fds[i + 2];
        if (getsockopt(sockets[i], SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0 || !listens)
            fail(1, "%s: %d does not listen", variable, sockets[i]);
    }
    unsetenv(variable);
    return true;
}

void tell_ready(void)
{
    if (ready_pipe < 0)
        return;
    if (write(ready_pipe, "", 1) != 1)
        fail(1, "the earlier process is gone");
    close(ready_pipe);
    ready_pipe = -1;
}

static void answered(evutil_socket_t fd, short events, void *self)
{
    char byte;
    ssize_t got = read(fd, &byte, 1);
    (void)events, (void)self;
    event_free(answer);
    answer = NULL;
    close(fd);
    if (got == 1) {
        note("process %ld has taken over", (long)successor);
        taken_over();
    } else {
        note("process %ld did not start; this one goes on", (long)successor);
        waitpid(successor, NULL, 0);
    }
}

/* Starts the same command; what it is to use stays open in it. Returns the pid, below 0 if there is
   none. */
static pid_t start_again(char **argv, const int *fds, size_t count)
{
    char numbers[16 * (MAX_LISTENERS + 3)];
    size_t len = 0, i;
    pid_t pid;
    for (i = 0; i < count; i++)
        len += (size_t)snprintf(numbers + len, sizeof numbers - len, i ? " %d" : "%d", fds[i]);
    setenv(variable, numbers, 1);
    pid = fork();
    if (pid == 0) {
        for (i = 0; i < count; i++)
            fcntl(fds[i], F_SETFD, 0);
        execvp(argv[0], argv);
        _exit(127);
    }
    unsetenv(variable);
    return pid;
}

void hand_over(struct event_base *base, char **argv, void (*then)(void))
{
    int fds[MAX_LISTENERS + 3], ends[2];
    size_t count;
    if (answer) {
        note("SIGUSR2: process %ld is still starting", (long)successor);
        return;
    }
    if (pipe2(ends, O_CLOEXEC) != 0) {
        note("SIGUSR2: %s", strerror(errno));
        return;
    }
    fds[0] = table_file();
    fds[1] = ends[1];
    count = 2 + listener_sockets(fds + 2);
    taken_over = then;
    successor = start_again(argv, fds, count);
    close(ends[1]);
    answer = successor < 0 ? NULL : event_new(base, ends[0], EV_READ, answered, NULL);
    if (answer && event_add(answer, NULL) == 0)
        return;
    note("SIGUSR2: no process can be started");
    if (answer)
        event_free(answer);
    answer = NULL;
    close(ends[0]);
}

/* listen.c - where clients come from: addresses and unix sockets. */
#define _GNU_SOURCE /* accept4 */
#include "server.h"

#include <errno.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 511, AT_ONCE = 64 /* connections taken before others are served */ };

typedef struct listener {
    int fd;
    bool http;
    const char *path; /* of a unix socket */
    struct event *ready;
} listener;

static listener listeners[MAX_LISTENERS + 1];
static size_t count;
static struct event *again;

static void set_up(int fd, bool is_tcp)
{
    int yes = 1;
    if (!is_tcp)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes); /* finds peers that are gone */
}

/* Out of descriptors, mostly: without a pause the loop would do nothing but try again. */
static void pause_all(int error)
{
    static const struct timeval tenth = {0, 100000};
    size_t i;
    RATELIMIT_LOG(RATELIMIT_LIMIT(1, RATELIMIT_MINUTE, 1), missed,
                  note("accept: %s (%lu more)", strerror(error), (unsigned long)missed));
    for (i = 0; i < count; i++)
        event_del(listeners[i].ready);
    event_add(again, &tenth);
}

static void go_on(evutil_socket_t fd, short events, void *self)
{
    size_t i;
    (void)fd, (void)events, (void)self;
    for (i = 0; i < count; i++)
        event_add(listeners[i].ready, NULL);
}

static void acceptable(evutil_socket_t fd, short events, void *self)
{
    const listener *l = (const listener *)self;
    int i;
    (void)events;
    for (i = 0; i < AT_ONCE; i++) {
        int taken = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (taken >= 0) {
            set_up(taken, !l->path);
            add_client(taken, l->http);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            pause_all(errno);
            return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } /* else: this one is gone already */
    }
}

/* A socket that nobody listens to any more is left by a server that was killed. */
static void remove_dead(const char *path, const struct sockaddr_un *address)
{
    struct stat about;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (lstat(path, &about) == 0) {
        if (!S_ISSOCK(about.st_mode))
            fail(1, "%s: is there already, and is no socket", path);
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
            fail(1, "%s: another server listens there", path);
        if (errno == ECONNREFUSED)
            unlink(path);
    }
    close(fd);
}

static int listen_to_path(const char *path)
{
    struct sockaddr_un address;
    int fd;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    if (!*path || strlen(path) >= sizeof address.sun_path)
        fail(2, "unix:PATH wants a path of 1 to %zu bytes", sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    remove_dead(path, &address);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, BACKLOG) != 0)
        fail(1, "%s: %s", path, strerror(errno));
    return fd;
}

static int listen_to_address(const char *where)
{
    struct addrinfo hints, *found;
    const char *colon = strrchr(where, ':');
    char host[64];
    size_t len = colon ? (size_t)(colon - where) : 0;
    int fd, yes = 1;
    uint64_t port;
    slice digits;
    digits.at = colon ? colon + 1 : "";
    digits.len = strlen(digits.at);
    if (len && where[0] == '[' && where[len - 1] == ']') {
        where++;
        len -= 2;
    }
    memset(&hints, 0, sizeof hints);
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
    hints.ai_socktype = SOCK_STREAM;
    if (!len || len >= sizeof host || !whole_number(digits, 65535, &port) || !port)
        fail(2, "ADDRESS:PORT or unix:PATH is wanted, not \"%s\"", where);
    memcpy(host, where, len);
    host[len] = 0;
    if (getaddrinfo(host, digits.at, &hints, &found) != 0)
        fail(2, "\"%s\" is no address", host);
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0)
        fail(1, "%s port %s: %s", host, digits.at, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

static void open_listener(struct event_base *base, const char *where, bool http, int given)
{
    listener *l = &listeners[count++];
    l->http = http;
    l->path = strncmp(where, "unix:", 5) == 0 ? where + 5 : NULL;
    l->fd = given >= 0 ? given : l->path ? listen_to_path(l->path) : listen_to_address(where);
    l->ready = event_new(base, l->fd, EV_READ | EV_PERSIST, acceptable, l);
    if (!l->ready || event_add(l->ready, NULL) != 0)
        fail(1, "no memory");
}

void open_listeners(struct event_base *base, const options *o, const int *given)
{
    size_t i;
    for (i = 0; i < o->listeners; i++)
        open_listener(base, o->listen[i], false, given ? given[i] : -1);
    if (o->metrics)
        open_listener(base, o->metrics, true, given ? given[i] : -1);
    again = event_new(base, -1, 0, go_on, NULL);
    if (!again)
        fail(1, "no memory");
}

void close_listeners(bool remove_paths)
{
    size_t i;
    for (i = 0; i < count; i++) {
        event_free(listeners[i].ready);
        close(listeners[i].fd);
        if (listeners[i].path && remove_paths)
            unlink(listeners[i].path);
    }
    if (again)
        event_free(again);
    again = NULL;
    count = 0;
}

size_t listener_sockets(int *fds)
{
    size_t i;
    for (i = 0; i < count; i++)
        fds[i] = listeners[i].fd;
    return count;
}

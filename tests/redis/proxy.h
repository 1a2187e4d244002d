/* proxy.h - a proxy in a thread, between the client and a real server, that spoils one
   connection. */
#ifndef PROXY_H
#define PROXY_H

#include "ratelimit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef enum proxy_fault {
    PROXY_NONE,
    PROXY_STALL,  /* the next request is swallowed, and all that comes on its connection after */
    PROXY_RESET,  /* the connection of the next request is reset */
    PROXY_DEAF,   /* the next request goes on, its answer is swallowed, and all after */
    PROXY_FORGET, /* at once: all connections that are open are forgotten, silently */
    PROXY_DELAY,  /* the next answer comes 230 ms later */
    PROXY_HALF,   /* a part of the next answer, then its connection is reset */
    PROXY_ROUGH   /* for 100 ms answers come byte by byte, and in the order of chance */
} proxy_fault;

enum { PROXY_PAIRS = 64 };

typedef struct proxy_pair {
    int client, server;
    bool mute_client, mute_server; /* what it sends is swallowed */
    bool answered, asked;
    uint64_t hold_until; /* answers are not read before */
} proxy_pair;

typedef struct proxy {
    int listener, port, server_port;
    uint32_t slow_ms; /* the first answer on each connection is held back for so long */
    uint32_t every;   /* 0, or each answer of that number comes 250 ms later: a lost packet */
    uint32_t requests, late;
    uint32_t halves; /* each time another part */
    /* Set: what is answered instead of the server's answer to a request with these words in it. */
    const char *volatile instead, *volatile words;
    volatile int replaced;
    volatile int fault, stop, accepted, most_waiting;
    volatile int cut;              /* nothing goes on, either way, until it is 0 again */
    void (*volatile before)(void); /* NULL, or is called before each request goes on */
    uint64_t rough_until;
    proxy_pair pair[PROXY_PAIRS];
    int count;
    pthread_t thread;
} proxy;

/* A listener, or a connection; -1 if nobody is there. */
static inline int proxy_socket(int *port, bool listens)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)(listens ? 0 : *port));
    if (fd < 0 ||
        (listens ? bind(fd, (struct sockaddr *)(void *)&address, sizeof address) != 0 ||
                       listen(fd, 64) != 0 ||
                       getsockname(fd, (struct sockaddr *)(void *)&address, &len) != 0
                 : connect(fd, (struct sockaddr *)(void *)&address, sizeof address) != 0)) {
        if (fd < 0 || listens)
            exit(2);
        close(fd);
        return -1;
    }
    if (listens)
        *port = ntohs(address.sin_port);
    return fd;
}

static inline void proxy_drop(proxy *p, int i)
{
    struct linger now = {1, 0};
    setsockopt(p->pair[i].client, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(p->pair[i].client);
    close(p->pair[i].server);
    p->pair[i] = p->pair[--p->count];
}

static inline bool proxy_send(int fd, const char *buf, size_t n, size_t step)
{
    size_t at;
    for (at = 0; at < n; at += step) {
        step = step < n - at ? step : n - at;
        if (send(fd, buf + at, step, MSG_NOSIGNAL) != (ssize_t)step)
            return false;
    }
    return true;
}

static inline bool proxy_has(const char *bytes, size_t len, const char *words)
{
    size_t n = strlen(words), i;
    for (i = 0; i + n <= len; i++)
        if (memcmp(bytes + i, words, n) == 0)
            return true;
    return false;
}

/* From one side to the other; false: the pair is gone. */
static inline bool proxy_pass(proxy *p, int i, bool from_client)
{
    char buf[65536];
    proxy_pair *pair = &p->pair[i];
    bool rough, reset = false;
    ssize_t n = recv(from_client ? pair->client : pair->server, buf, sizeof buf, 0);
    if (n <= 0) {
        proxy_drop(p, i);
        return false;
    }
    if (from_client && p->fault == PROXY_RESET) {
        p->fault = PROXY_NONE;
        proxy_drop(p, i);
        return false;
    }
    if (from_client && p->fault == PROXY_STALL) {
        p->fault = PROXY_NONE;
        pair->mute_client = true;
    }
    if (from_client && p->fault == PROXY_DEAF) {
        p->fault = PROXY_NONE;
        pair->mute_server = true;
    }
    if (from_client && p->fault == PROXY_DELAY) {
        p->fault = PROXY_NONE;
        pair->hold_until = ratelimit_clock_ns() + 230 * RATELIMIT_MILLISECOND;
    }
    if (from_client && p->fault == PROXY_ROUGH) {
        p->fault = PROXY_NONE;
        p->rough_until = ratelimit_clock_ns() + 100 * RATELIMIT_MILLISECOND;
    }
    rough = p->rough_until && ratelimit_clock_ns() < p->rough_until;
    if (from_client && rough)
        pair->hold_until =
            ratelimit_clock_ns() + ratelimit_clock_ns() / 64 % 20 * RATELIMIT_MILLISECOND;
    if (from_client && p->before)
        p->before();
    if (from_client && p->every && ++p->requests % p->every == 0) {
        pair->hold_until = ratelimit_clock_ns() + 250 * RATELIMIT_MILLISECOND;
        p->late++;
    }
    if (from_client && !pair->answered && p->slow_ms && !pair->hold_until)
        pair->hold_until = ratelimit_clock_ns() + p->slow_ms * RATELIMIT_MILLISECOND;
    if (from_client && p->instead)
        pair->asked = pair->asked || proxy_has(buf, (size_t)n, p->words);
    if (!from_client && pair->asked && p->instead) {
        n = (ssize_t)strlen(p->instead);
        memcpy(buf, p->instead, (size_t)n);
        p->replaced++;
    }
    if (!from_client)
        pair->answered = true, pair->asked = false;
    if (from_client ? pair->mute_client : pair->mute_server)
        return true;
    if (!from_client && p->fault == PROXY_HALF) {
        p->fault = PROXY_NONE;
        (void)proxy_send(pair->client, buf, (size_t)(n / 2 + 7 * p->halves++) % (size_t)n,
                         (size_t)n);
        reset = true;
    }
    if (reset || !proxy_send(from_client ? pair->server : pair->client, buf, (size_t)n,
                             rough && !from_client ? 1 : (size_t)n)) {
        proxy_drop(p, i);
        return false;
    }
    return true;
}

static inline void *proxy_run(void *self)
{
    proxy *p = (proxy *)self;
    while (!p->stop) {
        struct pollfd fd[1 + 2 * PROXY_PAIRS];
        int i, count = p->count, waiting = 0, on = 1;
        uint64_t now = ratelimit_clock_ns();
        if (p->cut) {
            (void)poll(NULL, 0, 2);
            continue;
        }
        memset(fd, 0, sizeof fd);
        fd[0].fd = p->listener;
        fd[0].events = POLLIN;
        for (i = 0; i < count; i++) {
            if (p->fault == PROXY_FORGET)
                p->pair[i].mute_client = p->pair[i].mute_server = true;
            waiting += !p->pair[i].answered;
            fd[1 + 2 * i].fd = p->pair[i].client;
            fd[2 + 2 * i].fd = p->pair[i].hold_until > now ? -1 : p->pair[i].server;
            fd[1 + 2 * i].events = fd[2 + 2 * i].events = POLLIN;
        }
        if (p->fault == PROXY_FORGET)
            p->fault = PROXY_NONE;
        if (waiting > p->most_waiting)
            p->most_waiting = waiting;
        if (poll(fd, (nfds_t)(1 + 2 * count), 2) <= 0)
            continue;
        for (i = count - 1; i >= 0; i--) /* a dropped pair is replaced by one that was looked at */
            if (!fd[1 + 2 * i].revents || proxy_pass(p, i, true))
                if (fd[2 + 2 * i].revents)
                    (void)proxy_pass(p, i, false);
        if (fd[0].revents && p->count < PROXY_PAIRS) {
            proxy_pair *pair = &p->pair[p->count];
            memset(pair, 0, sizeof *pair);
            pair->client = accept(p->listener, NULL, NULL);
            (void)setsockopt(pair->client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            pair->server = proxy_socket(&p->server_port, false);
            p->count++;
            p->accepted++;
            if (pair->server < 0)
                proxy_drop(p, p->count - 1);
        }
    }
    return NULL;
}

static inline void proxy_open(proxy *p, int server_port)
{
    memset(p, 0, sizeof *p);
    p->server_port = server_port;
    p->listener = proxy_socket(&p->port, true);
    if (pthread_create(&p->thread, NULL, proxy_run, p) != 0)
        exit(2);
}

static inline void proxy_spoil(proxy *p, proxy_fault fault)
{
    uint64_t start = ratelimit_clock_ns();
    p->fault = (int)fault;
    while (fault == PROXY_FORGET && p->fault && ratelimit_clock_ns() - start < RATELIMIT_SECOND)
        (void)poll(NULL, 0, 1);
}

static inline void proxy_close(proxy *p)
{
    p->stop = 1;
    pthread_join(p->thread, NULL);
    while (p->count)
        proxy_drop(p, 0);
    close(p->listener);
}

#endif

/* unlocked.h - no lock is held while something is sent, received, waited for, opened or closed.
 * Included before the implementation of ratelimit_redis.h: each such call of it is looked at, and a
 * fault ends the program. */
#ifndef UNLOCKED_H
#define UNLOCKED_H
#include <hiredis/hiredis.h>

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static __thread int locks_held;

static inline int locked(int result)
{
    locks_held += result == 0;
    return result;
}

static inline int unlocked(int result)
{
    locks_held -= result == 0;
    return result;
}

static inline int no_lock_held(const char *call)
{
    if (locks_held) {
        fprintf(stderr, "a lock is held while %s is called\n", call);
        abort();
    }
    return 0;
}

#define pthread_mutex_lock(m)         locked(pthread_mutex_lock(m))
#define pthread_mutex_unlock(m)       unlocked(pthread_mutex_unlock(m))
#define send(fd, bytes, count, flags) (no_lock_held("send"), send(fd, bytes, count, flags))
#define recv(fd, bytes, count, flags) (no_lock_held("recv"), recv(fd, bytes, count, flags))
#define poll(polled, count, ms)       (no_lock_held("poll"), poll(polled, count, ms))
#define connect(fd, address, len)     (no_lock_held("connect"), connect(fd, address, len))
#define redisReaderFree(reader)       (no_lock_held("redisReaderFree"), redisReaderFree(reader))
#define getaddrinfo(host, service, hints, found)                                                   \
  (no_lock_held("getaddrinfo"), getaddrinfo(host, service, hints, found))
#endif

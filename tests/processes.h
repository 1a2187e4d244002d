/* processes.h - what tests of several processes share: memory, and children that do not outlive the
 * test. Include it before ratelimit.h, with _DEFAULT_SOURCE defined (MAP_ANONYMOUS).
 *
 * Children never print: they note faults in shared memory. All of them die with the parent, or by
 * an alarm. */
#ifndef PROCESSES_H
#define PROCESSES_H

#include "shared.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
extern int prctl(int option, ...); /* its header is not always there for 32 bits */
#  define DIE_WITH_PARENT 1
#endif

/* ---- children -------------------------------------------------------------------------------- */

enum { CHILDREN = 8 };

static pid_t parent_pid;
static pid_t child[CHILDREN];

static inline void *share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        printf("no shared memory to be had\n");
        exit(1);
    }
    return p;
}

static inline void kill_children(void)
{
    int i;
    if (getpid() != parent_pid)
        return;
    for (i = 0; i < CHILDREN; i++)
        if (child[i] > 0) {
            kill(child[i], SIGKILL);
            waitpid(child[i], NULL, 0);
            child[i] = 0;
        }
}

/* A child that can't outlive its parent, nor a minute. */
static inline pid_t spawn(void)
{
    pid_t pid = fork();
    if (pid < 0) {
        printf("no process to be had\n");
        exit(1);
    }
    if (pid == 0) {
#if defined(__linux__)
        prctl(DIE_WITH_PARENT, (unsigned long)SIGKILL, 0ul, 0ul, 0ul);
#endif
        if (getppid() != parent_pid)
            _exit(1);
        alarm(60);
    }
    return pid;
}

/* ---- real time ------------------------------------------------------------------------------- */

static inline uint64_t wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static inline void pause_ns(uint64_t ns)
{
    struct timespec t;
    memset(&t, 0, sizeof t);
    t.tv_nsec = (long)ns; /* below a second */
    nanosleep(&t, NULL);
}

#endif

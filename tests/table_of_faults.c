/* table_of_faults.c - what each fault costs while four processes take from one table: prints a row
 * for each, and looks at what must hold in all: no token over the stated bound, no charge lost or
 * made twice, no call without an end, no process that dies of another's fault, decisions again
 * afterwards.
 *
 * The faults of one process are those of process 0, and the longest call is of the others. Tokens
 * over: those of all keys above burst + rate x time. The stated bound is a burst for each lock that
 * was taken from a process that lives, and what the row says besides.
 *
 *     cc -std=c99 -O2 -I. -Itests -pthread tests/table_of_faults.c        (Linux)
 *
 * TIMES in the environment: how often each fault is made (3). What needs root (a disk of its own, a
 * real-time priority) is skipped without, and said to be. */
#define _GNU_SOURCE /* unshare, sched_setaffinity */

#include "processes.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

/* What process 0 shall do while it holds a lock: a signal to itself, or PAUSE until it is told to
 * go on. */
enum { PAUSE = 1000 };

static shared64 *victim_shall, *victim_waits;
static __thread bool is_victim, holds;

static void before_write(void)
{
    int what = is_victim && holds ? (int)get(victim_shall) : 0;
    if (!what)
        return;
    set(victim_shall, 0);
    if (what != PAUSE)
        raise(what);
    set(victim_waits, what == PAUSE);
    while (get(victim_waits))
        sched_yield();
}

static bool swapped_here(bool done, const void *p, size_t bytes, uint64_t old, uint64_t value)
{
    if (done && bytes == sizeof(uint32_t) && (uintptr_t)p % 64 == 0)
        holds = value & 1;
    return swapped(done, p, bytes, old, value);
}

#define __atomic_store_n(p, value, order) (before_write(), __atomic_store_n(p, value, order))
#define __atomic_compare_exchange_n(p, old, value, weak, order, other)                             \
  (before_write(), swapped_here(__atomic_compare_exchange_n(p, old, value, weak, order, other), p, \
                                sizeof *(p), *(old), value))
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#undef __atomic_store_n
#undef __atomic_compare_exchange_n

#include "check.h"

#define SEC RATELIMIT_SECOND
#define MS  RATELIMIT_MILLISECOND

enum { WORKERS = 4, HOG = WORKERS, BURST = 50, PER_S = 1000, NEW_BURST = 10 };

/* Keys: those that are known to all, taken from all the time; newcomers, one after the other, that
 * all bring in at once; and one that is never used up, whose charges are counted. A change of that
 * one always holds the lock, for its interval has a fraction. The bucket is shared, in no table. */
enum { KNOWN = 4, NEWCOMERS = 2000, SPARE = KNOWN + NEWCOMERS, BUCKET, KEYS };

static const ratelimit_limit known = RATELIMIT_LIMIT(PER_S, RATELIMIT_SECOND, BURST);
static const ratelimit_limit newcomer = RATELIMIT_LIMIT(1, RATELIMIT_DAY, NEW_BURST);
static const ratelimit_limit spare = RATELIMIT_LIMIT(7, RATELIMIT_MINUTE, 10000000);

/* ---- the stage ------------------------------------------------------------------------------- */

typedef struct stage {
    unsigned char room[RATELIMIT_TABLE_BYTES(3 * NEWCOMERS)] __attribute__((aligned(64)));
    ratelimit_bucket bucket;
    shared64 ahead; /* of the steady clock */
    shared64 stop, wanted, paused, takeovers, wishes, fault_line;
    shared64 gone; /* holders: processes that we killed, threads that a fork left behind */
    shared64 forks, fork_over, fork_decided, fork_longest; /* of children of process 0 */
    shared64 decided[WORKERS], failed[WORKERS], longest[WORKERS], tokens[WORKERS][KEYS];
} stage;

#define NOTE(what)                                                                                 \
  do {                                                                                             \
    if (!(what))                                                                                   \
      set(&s->fault_line, __LINE__);                                                               \
  } while (0)

static stage *s;

typedef struct fault {
    const char *name;
    void (*make)(void);              /* NULL: process 0 does it, from what it is told to run */
    void (*run)(unsigned id);        /* of each process; NULL: work */
    ratelimit_table *(*place)(void); /* makes the table; NULL: in the stage */
    void (*after)(void);             /* when all is over */
    uint64_t over_each;              /* tokens of the bound, each time */
    bool of_one;                     /* it is of process 0 only */
    bool apart;                      /* each process has a table of its own */
    bool forgets;                    /* keys have no places of their own */
} fault;

static const fault *now_made;
static ratelimit_table *table;

static uint64_t clock_now(void)
{
    return wall_ns() + get(&s->ahead);
}

static const ratelimit_limit *limit_of(unsigned key)
{
    return key == SPARE ? &spare : key >= KNOWN && key < SPARE ? &newcomer : &known;
}

static bool take(ratelimit_table *t, ratelimit_bucket *b, unsigned key, ratelimit_result *res)
{
    uint16_t name = (uint16_t)key;
    uint64_t now = clock_now();
    if (key == BUCKET)
        return ratelimit_bucket_take_shared(b, &known, 1, now, res);
    return ratelimit_table_take(t, &name, sizeof name, limit_of(key), 1, now, res);
}

static unsigned any_key(void)
{
    unsigned draw = (unsigned)check_below(64);
    if (draw == 0)
        return SPARE;
    if (draw < 9)
        return KNOWN + (unsigned)(wall_ns() / (2 * MS) % NEWCOMERS);
    return draw < 17 ? BUCKET : draw % KNOWN;
}

/* Takes once, and counts what it was told after it was told. */
static void take_one(ratelimit_table *t, unsigned id)
{
    ratelimit_result res;
    unsigned key = any_key();
    uint64_t begin = wall_ns(), took;
    if (take(t, &s->bucket, key, &res))
        add(&s->tokens[id][key], 1);
    took = wall_ns() - begin;
    if (took > get(&s->longest[id]))
        set(&s->longest[id], took);
    if (res.status != RATELIMIT_OK && res.status != RATELIMIT_DENIED)
        add(&s->failed[id], 1);
    NOTE(res.allowed == (res.status == RATELIMIT_OK) && res.burst == limit_of(key)->burst);
    add(&s->decided[id], 1);
}

static void work(unsigned id)
{
    unsigned i;
    while (!get(&s->stop) && getppid() == parent_pid) {
        for (i = 0; i < 100; i++)
            take_one(table, id);
        pause_ns(100000);
    }
    _exit(0);
}

static void start_worker(unsigned id)
{
    uint64_t seed = check_random();
    child[id] = spawn();
    if (child[id])
        return;
    alarm(0); /* it ends with its parent */
    check_random_state = seed;
    is_victim = id == 0;
    holds = false;
    (now_made->run ? now_made->run : work)(id);
}

/* What a process that is wanted to stop or die at a lock does; 0 if it does not within five
 * seconds. */
static int wait_for(unsigned id)
{
    uint64_t until = wall_ns() + 5 * SEC;
    int status = 0;
    while (wall_ns() < until) {
        if (waitpid(child[id], &status, WNOHANG | WUNTRACED) == child[id])
            return WIFSTOPPED(status)    ? WSTOPSIG(status)
                   : WIFSIGNALED(status) ? WTERMSIG(status)
                                         : 0;
        pause_ns(MS / 10);
    }
    return 0;
}

/* ---- faults of one process ------------------------------------------------------------------- */

static void start_again(void)
{
    CHECK_U64(wait_for(0), SIGKILL);
    add(&s->gone, 1);
    start_worker(0);
}

static void kill_any(void)
{
    kill(child[0], SIGKILL);
    start_again();
}

static void kill_holder(void)
{
    set(&s->wanted, SIGKILL);
    start_again();
}

static void go_on_later(void)
{
    CHECK_U64(wait_for(0), SIGSTOP);
    pause_ns(300 * MS);
    kill(child[0], SIGCONT);
}

static void stop_any(void)
{
    kill(child[0], SIGSTOP);
    go_on_later();
}

static void stop_holder(void)
{
    set(&s->wanted, SIGSTOP);
    go_on_later();
}

/* ---- priorities: all on one processor -------------------------------------------------------- */

static void on_first_processor(void)
{
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    (void)sched_setaffinity(0, sizeof first, &first);
}

static bool real_time(int priority)
{
    struct sched_param param;
    memset(&param, 0, sizeof param);
    param.sched_priority = priority;
    return sched_setscheduler(0, SCHED_FIFO, &param) == 0;
}

static void work_low(unsigned id)
{
    on_first_processor();
    if (id == 0 && setpriority(PRIO_PROCESS, 0, 19) != 0)
        NOTE(false);
    work(id);
}

static void work_inverted(unsigned id)
{
    on_first_processor();
    NOTE(id ? real_time(2) : setpriority(PRIO_PROCESS, 0, 19) == 0);
    work(id);
}

/* A busy process on the same processor, for 300 ms. */
static void hog(int priority)
{
    uint64_t until;
    child[HOG] = spawn();
    if (child[HOG] == 0) {
        on_first_processor();
        NOTE(!priority || real_time(priority));
        until = wall_ns() + 300 * MS;
        set(&s->paused, 0); /* it may go on, if it can */
        while (wall_ns() < until)
            continue;
        _exit(0);
    }
    CHECK(waitpid(child[HOG], NULL, 0) == child[HOG]);
    child[HOG] = 0;
}

static void pause_holder(void)
{
    uint64_t until = wall_ns() + 5 * SEC;
    set(&s->wanted, PAUSE);
    while (!get(&s->paused) && wall_ns() < until)
        pause_ns(MS / 10);
    CHECK(get(&s->paused));
}

static void busy(void)
{
    pause_holder();
    hog(0);
}

static void inversion(void)
{
    pause_holder();
    hog(1);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

static void back_and_forth(void)
{
    add(&s->ahead, 0 - 5 * SEC);
    pause_ns(100 * MS);
    add(&s->ahead, 5 * SEC);
}

/* A call that is under way may take a token with the old time. */
static void back(void)
{
    add(&s->ahead, 0 - RATELIMIT_MINUTE);
}

/* Each key has a burst again. */
static void forward(void)
{
    add(&s->ahead, RATELIMIT_MINUTE);
}

/* ---- fork in the middle ---------------------------------------------------------------------- */

/* Process 0 has two threads and a table of its own besides the shared one. One thread takes from
 * both. Whenever it is in the middle of a change, the other one forks; in the child the thread is
 * not there any more, and its lock is held for ever. */
static unsigned char own_room[RATELIMIT_TABLE_BYTES(3 * NEWCOMERS)];
static ratelimit_table *own;
static ratelimit_bucket own_bucket;
static uint64_t own_tokens[KEYS], own_begin;

static void take_own(unsigned key)
{
    if (take(own, &own_bucket, key, NULL))
        (void)__atomic_add_fetch(&own_tokens[key], 1, __ATOMIC_RELAXED);
}

static void *take_both(void *nothing)
{
    while (!get(&s->stop) && getppid() == parent_pid) {
        unsigned i;
        for (i = 0; i < 50; i++) {
            is_victim = false;
            take_one(table, 0);
            is_victim = true;
            take_own(any_key());
        }
        pause_ns(100000);
    }
    return nothing;
}

/* In the child: takes from both tables, and reports. */
static void after_fork(void)
{
    uint64_t begin, took, until = wall_ns() + 300 * MS, may;
    unsigned key = 0;
    is_victim = holds = false;
    check_random_state ^= (uint64_t)getpid();
    while (key < KEYS || wall_ns() < until) {
        begin = wall_ns();
        take_own(key < KEYS ? key++ : any_key());
        took = wall_ns() - begin;
        if (took > get(&s->fork_longest))
            set(&s->fork_longest, took);
        take_one(table, 0);
        add(&s->fork_decided, 1);
    }
    for (key = 0; key < KEYS; key++) {
        const ratelimit_limit *l = limit_of(key);
        may = l->burst + (clock_now() - own_begin) / (l->per_ns / l->tokens) + 1;
        if (own_tokens[key] > may)
            add(&s->fork_over, own_tokens[key] - may);
    }
    _exit(0);
}

static void work_and_fork(unsigned id)
{
    pthread_t thread;
    uint64_t seen = 0;
    if (id)
        work(id);
    is_victim = false;
    own_begin = clock_now();
    NOTE(ratelimit_table_init(&own, own_room, sizeof own_room, NULL) == RATELIMIT_OK);
    NOTE(pthread_create(&thread, NULL, take_both, NULL) == 0);
    while (!get(&s->stop) && getppid() == parent_pid) {
        int status = 1;
        pid_t pid;
        if (get(&s->forks) == seen || !get(&s->paused)) {
            pause_ns(MS / 10);
            continue;
        }
        seen++;
        add(&s->gone, 1);
        pid = fork();
        if (pid == 0)
            after_fork();
        set(&s->paused, 0);
        NOTE(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
        set(&s->wishes, seen);
    }
    pthread_join(thread, NULL);
    _exit(0);
}

static void fork_in_the_middle(void)
{
    uint64_t until = wall_ns() + 10 * SEC;
    add(&s->forks, 1);
    set(&s->wanted, PAUSE);
    while (get(&s->wishes) != get(&s->forks) && wall_ns() < until)
        pause_ns(MS);
    CHECK_U64(get(&s->wishes), get(&s->forks));
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* No process gets any more memory; each is told to try. */
static void work_hungry(unsigned id)
{
    struct rlimit none = {0, 0};
    uint64_t seen = 0;
    unsigned i;
    NOTE(setrlimit(RLIMIT_AS, &none) == 0);
    while (!get(&s->stop) && getppid() == parent_pid) {
        for (i = 0; i < 100; i++)
            take_one(table, id);
        if (get(&s->wishes) != seen) {
            void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            NOTE(p == MAP_FAILED);
            seen = get(&s->wishes);
        }
        pause_ns(100000);
    }
    _exit(0);
}

static void wish(void)
{
    add(&s->wishes, 1);
    pause_ns(50 * MS);
}

static ratelimit_table *make_table(void *memory, size_t bytes, ratelimit_full when_full)
{
    ratelimit_table_options options;
    ratelimit_table *t = NULL;
    memset(&options, 0, sizeof options);
    options.seed[0] = check_random();
    options.seed[1] = 1;
    options.when_full = when_full;
    CHECK(ratelimit_table_init(&t, memory, bytes, &options) == RATELIMIT_OK);
    return t;
}

/* One block: 24 places for 2000 keys, so whoever comes inherits a debt. */
static ratelimit_table *smallest(void)
{
    return make_table(s->room, RATELIMIT_TABLE_BYTES(1), RATELIMIT_INHERIT);
}

/* ---- a mapped file, on a disk of its own ----------------------------------------------------- */

static char disk[] = "/tmp/ratelimit-disk-XXXXXX";
static bool have_disk;

enum { FILE_BYTES = RATELIMIT_TABLE_BYTES(3 * NEWCOMERS), DISK_BYTES = FILE_BYTES + 256 * 1024 };

static int open_on_disk(const char *name, int flags)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", disk, name);
    return open(path, flags, 0600);
}

static void remove_from_disk(const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", disk, name);
    unlink(path);
}

/* Only this process and its children see the disk, and it goes with them. */
static void make_disk(void)
{
    char size[40];
    snprintf(size, sizeof size, "size=%d", (int)DISK_BYTES);
    if (!mkdtemp(disk))
        exit(2);
    have_disk = unshare(CLONE_NEWNS) == 0 &&
                mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                mount("limits", disk, "tmpfs", 0, size) == 0;
}

static void remove_disk(void)
{
    if (getpid() != parent_pid)
        return;
    if (have_disk)
        umount2(disk, MNT_DETACH);
    rmdir(disk);
}

static ratelimit_table *map_file(int fd, int protection, int flags)
{
    ratelimit_table *t = NULL;
    void *p = mmap(NULL, FILE_BYTES, protection, flags, fd, 0);
    close(fd);
    if (p == MAP_FAILED || ratelimit_table_attach(&t, p, FILE_BYTES) != RATELIMIT_OK)
        return NULL;
    return t;
}

/* All of it is on the disk from the beginning: a hole that finds no room later is a SIGBUS. */
static ratelimit_table *in_file(void)
{
    int fd = open_on_disk("table", O_RDWR | O_CREAT);
    void *p;
    CHECK(fd >= 0 && posix_fallocate(fd, 0, FILE_BYTES) == 0);
    p = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED);
    close(fd);
    return p == MAP_FAILED ? smallest() : make_table(p, FILE_BYTES, RATELIMIT_EVICT);
}

static void leave_file(void)
{
    munmap(table, FILE_BYTES);
    remove_from_disk("table");
}

/* What a file with holes does meanwhile, and what says so in time. */
static void make_file_with_holes(void)
{
    int fd = open_on_disk("holes", O_RDWR | O_CREAT), status = 0;
    pid_t pid;
    CHECK(fd >= 0 && posix_fallocate(fd, 0, FILE_BYTES) == ENOSPC);
    CHECK(ftruncate(fd, FILE_BYTES) == 0);
    pid = spawn();
    if (pid == 0) {
        ratelimit_table *t;
        void *p = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)signal(SIGBUS, SIG_DFL); /* a sanitizer's */
        _exit(ratelimit_table_init(&t, p, FILE_BYTES, NULL) == RATELIMIT_OK ? 0 : 1);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    close(fd);
    remove_from_disk("holes");
}

static void fill_disk(void)
{
    static char block[4096];
    int fd = open_on_disk("filler", O_RDWR | O_CREAT);
    ssize_t n;
    while ((n = write(fd, block, sizeof block)) == (ssize_t)sizeof block)
        continue;
    CHECK(n < 0 && errno == ENOSPC);
    pause_ns(50 * MS);
    make_file_with_holes();
    close(fd);
    remove_from_disk("filler");
}

/* While the file is mapped for writing, no disk can become read-only. */
static void make_read_only(void)
{
    CHECK(mount("limits", disk, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0 && errno == EBUSY);
}

/* A read-only disk: all go on from what the file holds, each for itself. */
static ratelimit_table *in_read_only_file(void)
{
    (void)munmap(in_file(), FILE_BYTES);
    CHECK(mount("limits", disk, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    return NULL;
}

static void work_alone(unsigned id)
{
    table = map_file(open_on_disk("table", O_RDONLY), PROT_READ | PROT_WRITE, MAP_PRIVATE);
    NOTE(table);
    if (table)
        work(id);
    _exit(1);
}

static void write_to_read_only(void)
{
    int fd = open_on_disk("table", O_RDWR);
    CHECK(fd < 0 && errno == EROFS);
    fd = open_on_disk("table", O_RDONLY);
    CHECK(mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED &&
          errno == EACCES);
    table = map_file(fd, PROT_READ, MAP_SHARED); /* who only looks may */
    CHECK(table != NULL);
    if (table)
        munmap(table, FILE_BYTES);
}

static void make_writable(void)
{
    CHECK(mount("limits", disk, NULL, MS_REMOUNT, NULL) == 0);
    remove_from_disk("table");
}

/* ---- the rows -------------------------------------------------------------------------------- */

static const fault faults[] = {
    {"SIGKILL at any moment", kill_any, NULL, NULL, NULL, 0, true, false, false},
    {"SIGKILL while it holds a lock", kill_holder, NULL, NULL, NULL, 0, true, false, false},
    {"SIGSTOP, 300 ms, at any moment", stop_any, NULL, NULL, NULL, 0, true, false, false},
    {"SIGSTOP, 300 ms, with a lock", stop_holder, NULL, NULL, NULL, 0, true, false, false},
    {"nice 19 with a lock, others busy", busy, work_low, NULL, NULL, 0, true, false, false},
    {"clock 5 s back, then forth again", back_and_forth, NULL, NULL, NULL, 0, false, false, false},
    {"clock a minute back", back, NULL, NULL, NULL, WORKERS, false, false, false},
    {"clock a minute forward", forward, NULL, NULL, NULL, (KNOWN + 1) * BURST, false, false, false},
    {"fork while a thread has a lock", fork_in_the_middle, work_and_fork, NULL, NULL, 0, true,
     false, false},
    {"no memory to be had (RLIMIT_AS)", wish, work_hungry, NULL, NULL, 0, false, false, false},
    {"24 places for 2000 keys (INHERIT)", wish, NULL, smallest, NULL, 0, false, false, true},
};

static const fault inverted = {
    "priority inversion, 300 ms", inversion, work_inverted, NULL, NULL, 0, true, false, false};

static const fault disks[] = {
    {"disk full behind the mapped file", fill_disk, NULL, in_file, leave_file, 0, false, false,
     false},
    {"its disk to be made read-only", make_read_only, NULL, in_file, leave_file, 0, false, false,
     false},
    {"a read-only file, mapped privately", write_to_read_only, work_alone, in_read_only_file,
     make_writable, 0, false, true, false},
};

static unsigned times(void)
{
    const char *text = getenv("TIMES");
    return text ? (unsigned)strtoul(text, NULL, 10) : 3;
}

static uint64_t told(unsigned key)
{
    uint64_t all = 0;
    unsigned id;
    for (id = 0; id < WORKERS; id++)
        all += get(&s->tokens[id][key]);
    return all;
}

/* True when from now on each process has decided, and each key that all use was allowed, within
 * five seconds. */
static bool all_go_on(void)
{
    uint64_t was[WORKERS], had[KEYS], until = wall_ns() + 5 * SEC;
    unsigned id, key, left = WORKERS;
    for (id = 0; id < WORKERS; id++)
        was[id] = get(&s->decided[id]);
    for (key = 0; key < KEYS; key++)
        had[key] = told(key);
    while (left && wall_ns() < until) {
        pause_ns(MS);
        for (id = left = 0; id < WORKERS; id++)
            left += get(&s->decided[id]) < was[id] + 100;
        for (key = 0; key < KNOWN; key++)
            left += told(key) == had[key] && !now_made->forgets;
        left += told(BUCKET) == had[BUCKET];
    }
    return left == 0;
}

/* All end by themselves, and none had died. */
static void join_workers(void)
{
    uint64_t until = wall_ns() + 10 * SEC;
    unsigned id;
    set(&s->stop, 1);
    for (id = 0; id < WORKERS; id++) {
        int status = 1;
        pid_t pid = 0;
        while ((pid = waitpid(child[id], &status, WNOHANG)) == 0 && wall_ns() < until)
            pause_ns(MS);
        CHECK(pid == child[id] && status == 0);
        if (pid == child[id])
            child[id] = 0;
    }
    kill_children();
}

/* Tokens of a key that all, or each with a table of its own, were told they have, above what they
 * may have by then. */
static uint64_t over_of(unsigned key, uint64_t span, bool apart)
{
    const ratelimit_limit *l = limit_of(key);
    uint64_t may = l->burst + span / (l->per_ns / l->tokens) + 1, over = 0;
    unsigned id;
    if (!apart || key == BUCKET)
        return told(key) > may ? told(key) - may : 0;
    for (id = 0; id < WORKERS; id++)
        over += s->tokens[id][key] > may ? s->tokens[id][key] - may : 0;
    return over;
}

/* Nobody's charge is lost or made twice: what all were told, and what is left. A clock that was set
 * back takes tokens away. */
static void look_at_charges(uint64_t span, unsigned lost, bool forgets)
{
    uint16_t name = SPARE;
    ratelimit_request q = RATELIMIT_REQUEST(&name, sizeof name, &spare, 1);
    ratelimit_result res;
    uint64_t had = told(SPARE), back_by = 0, came = span / (spare.per_ns / spare.tokens);
    if (span >> 63) {
        back_by = (0 - span) / (spare.per_ns / spare.tokens) + 1;
        came = 0;
    }
    q.op = RATELIMIT_PEEK;
    (void)ratelimit_table_decide_one(table, &q, clock_now(), &res);
    CHECK(had > 0);
    CHECK(had + res.remaining + back_by <= spare.burst + came + 2);
    CHECK(had + res.remaining + back_by + lost >= spare.burst + came || forgets);
}

/* A clean stage with all processes at work; when it began. */
static uint64_t begin_row(const fault *f)
{
    uint64_t begin;
    unsigned id;
    memset(s, 0, sizeof *s);
    takeovers = &s->takeovers;
    victim_shall = &s->wanted;
    victim_waits = &s->paused;
    now_made = f;
    set(&s->ahead, RATELIMIT_DAY);
    begin = clock_now();
    table = f->place ? f->place() : make_table(s->room, sizeof s->room, RATELIMIT_EVICT);
    for (id = 0; id < WORKERS; id++)
        start_worker(id);
    return begin;
}

/* Prints the row and looks at what must hold in each. */
static void report(const fault *f, unsigned count, uint64_t span)
{
    uint64_t over = s->fork_over, decided = s->fork_decided, longest = s->fork_longest, failed = 0;
    uint64_t bound = f->over_each * count;
    unsigned id, key;
    if (s->takeovers > s->gone)
        bound += BURST * (s->takeovers - s->gone);
    for (key = 0; key < KEYS; key++)
        over += over_of(key, span, f->apart);
    for (id = 0; id < WORKERS; id++) {
        decided += s->decided[id];
        failed += s->failed[id];
        if ((id || !f->of_one) && s->longest[id] > longest)
            longest = s->longest[id];
    }
    printf("  %-34s %5u %10u %8u %6u of %-4u %8.2f s\n", f->name, count, (unsigned)decided,
           (unsigned)failed, (unsigned)over, (unsigned)bound, (double)longest / 1e9);
    CHECK(over <= bound);
    CHECK(decided > 1000);
    CHECK_U64(failed, 0);
    CHECK_U64(s->fault_line, 0);
    /* A lock whose holder is gone costs 0.2 s. Ten times of that and more: for a busy machine. */
    CHECK(longest < 5 * SEC);
}

static void row(const fault *f)
{
    uint64_t begin = begin_row(f), span;
    unsigned i, count = times();
    ratelimit_table_counts counts;
    for (i = 0; i < count && !check_faults; i++) {
        pause_ns((50 + check_below(50)) * MS);
        f->make();
        CHECK(all_go_on());
    }
    pause_ns(100 * MS);
    join_workers();
    span = clock_now() - begin;
    /* A step of the clock is no time that passed: what it gives is in the bound. */
    report(f, count,
           f->make == back || f->make == forward ? wall_ns() + RATELIMIT_DAY - begin : span);
    if (!f->apart) {
        ratelimit_table_stats(table, clock_now(), &counts);
        CHECK(counts.keys <= counts.capacity && (f->forgets || counts.evicted == 0));
        look_at_charges(span, (unsigned)(s->gone + s->takeovers) + count + 1, f->forgets);
    }
    if (f->after)
        f->after();
}

static void header(void)
{
    printf("  %-34s %5s %10s %8s %14s %10s\n", "fault, 4 processes on one table", "times",
           "decisions", "failed", "tokens over", "longest");
}

static void in_each_fault_no_token_is_over_no_call_hangs_and_decisions_go_on(void)
{
    size_t i;
    header();
    for (i = 0; i < sizeof faults / sizeof faults[0]; i++)
        row(&faults[i]);
}

static void nor_where_a_holder_of_low_priority_is_kept_from_its_processor(void)
{
    row(&inverted);
}

static void nor_where_the_disk_of_a_mapped_file_fails(void)
{
    size_t i;
    for (i = 0; i < sizeof disks / sizeof disks[0]; i++)
        row(&disks[i]);
}

/* In a child, which may then have what it has for ever. */
static bool may_have_real_time(void)
{
    int status = 1;
    pid_t pid = spawn();
    if (pid == 0)
        _exit(real_time(1) ? 0 : 1);
    return waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    check_seed(17);
    parent_pid = getpid();
    atexit(kill_children);
    make_disk();
    atexit(remove_disk);
    s = (stage *)share(sizeof *s);
    RUN(in_each_fault_no_token_is_over_no_call_hangs_and_decisions_go_on);
    if (may_have_real_time())
        RUN(nor_where_a_holder_of_low_priority_is_kept_from_its_processor);
    else
        SKIP(nor_where_a_holder_of_low_priority_is_kept_from_its_processor,
             "no real-time priority is to be had");
    if (have_disk)
        RUN(nor_where_the_disk_of_a_mapped_file_fails);
    else
        SKIP(nor_where_the_disk_of_a_mapped_file_fails, "no disk of its own is to be had (mount)");
    return check_end();
}

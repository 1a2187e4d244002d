/* servers.h - servers that a test starts for itself, ends and starts again, and sentinels. Include
 * it behind the implementation of ratelimit_redis.h. */
#ifndef SERVERS_H
#define SERVERS_H

#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#if defined(__linux__)
#  include <sys/prctl.h>
#endif
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { MOST = 16 };

static pid_t children[MOST];
static char folder[64];

static inline void kill_all(void)
{
    size_t i;
    for (i = 0; i < MOST; i++)
        if (children[i]) {
            kill(children[i], SIGKILL);
            waitpid(children[i], NULL, 0);
            children[i] = 0;
        }
}

static inline bool is_free(int port)
{
    struct sockaddr_in address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool good;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)port);
    good = bind(fd, (struct sockaddr *)(void *)&address, sizeof address) == 0;
    close(fd);
    return good;
}

/* A cluster's nodes talk to each other at 10000 more. */
static inline int free_port(void)
{
    static int next;
    int port;
    do
        port = 10500 + ((int)getpid() * 7 + next++ * 3) % 12000;
    while (!is_free(port) || !is_free(port + 10000));
    return port;
}

static inline bool answers(int port)
{
    redisContext *c = redisConnect("127.0.0.1", port);
    redisReply *reply = c && !c->err ? (redisReply *)redisCommand(c, "PING") : NULL;
    bool good = reply != NULL;
    if (reply)
        freeReplyObject(reply);
    if (c)
        redisFree(c);
    return good;
}

/* A server at this port, with a file of settings; its process. */
static inline pid_t start_at(int port, const char *settings, bool sentinel)
{
    char path[100], *argv[] = {"redis-server", path, sentinel ? "--sentinel" : NULL, NULL};
    size_t at = 0;
    FILE *file;
    int i;
    snprintf(path, sizeof path, "%s/%d", folder, port);
    file = fopen(path, "w");
    if (file == NULL)
        exit(2);
    fprintf(file, "port %d\nbind 127.0.0.1\ndir %s\n%s\n%s\n", port, folder,
            sentinel ? "" : "save \"\"\nappendonly no\nrepl-diskless-sync-delay 0\n", settings);
    fclose(file);
    while (children[at])
        at++;
    children[at] = fork();
    if (children[at] == 0) {
        int null = open("/dev/null", O_RDWR);
#if defined(__linux__)
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it ends with a test that is killed, too */
#endif
        dup2(null, 0);
        dup2(null, 1);
        dup2(null, 2);
        execvp("redis-server", argv);
        _exit(127);
    }
    for (i = 0; i < 1000 && !answers(port); i++)
        server_sleep_ms(10);
    return children[at];
}

/* The same at a free port; the port. */
static inline int start(const char *settings, bool sentinel, pid_t *pid)
{
    int port = free_port();
    pid_t started = start_at(port, settings, sentinel);
    if (pid)
        *pid = started;
    return port;
}

static inline void end_server(pid_t pid)
{
    size_t i;
    for (i = 0; i < MOST; i++)
        if (pid > 0 && children[i] == pid) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            children[i] = 0;
        }
}

/* ---- sentinels ------------------------------------------------------------------------------- */

static int sentinels[3], master_port, replica_port;
static pid_t master_pid, sentinel_pid[3];

/* Three sentinels of the master that they reach at this port. */
static inline void start_sentinels(int told_port)
{
    char settings[600];
    int i;
    snprintf(settings, sizeof settings,
             "sentinel monitor limits 127.0.0.1 %d 2\nsentinel down-after-milliseconds limits 500\n"
             "sentinel failover-timeout limits 3000\nrequirepass lookout\n"
             "sentinel sentinel-pass lookout\n",
             told_port);
    for (i = 0; i < 3; i++)
        sentinels[i] = start(settings, true, &sentinel_pid[i]);
    for (i = 0; i < 3; i++)
        CHECK(server_do(sentinels[i], "AUTH lookout"));
}

/* Waits until they know each other and so many replicas. */
static inline void wait_for_sentinels(size_t replicas)
{
    int i, j;
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 1000; j++) {
            redisReply *reply = server_ask(sentinels[i], "SENTINEL CKQUORUM limits");
            redisReply *known = server_ask(sentinels[i], "SENTINEL REPLICAS limits");
            bool good = reply && reply->type == REDIS_REPLY_STATUS && strstr(reply->str, "OK 3") &&
                        known && known->elements == replicas;
            freeReplyObject(reply);
            freeReplyObject(known);
            if (good)
                break;
            server_sleep_ms(20);
        }
        CHECK(j < 1000);
    }
}

/* A master, its replica, and three sentinels that agree on them. */
static inline void sentinels_agree(void)
{
    char settings[100];
    master_port = start("", false, &master_pid);
    snprintf(settings, sizeof settings, "replicaof 127.0.0.1 %d", master_port);
    replica_port = start(settings, false, NULL);
    start_sentinels(master_port);
    wait_for_sentinels(1);
}

static inline ratelimit_redis_options sentinel_options(void)
{
    static char host[200];
    ratelimit_redis_options options;
    memset(&options, 0, sizeof options);
    snprintf(host, sizeof host, "127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", sentinels[0],
             sentinels[1], sentinels[2]);
    options.host = host;
    options.master_name = "limits";
    options.sentinel_password = "lookout";
    options.timeout_ms = 2000;
    options.connect_timeout_ms = 2000;
    return options;
}

/* The value of a field of what SENTINEL MASTER says, "" if there is none. */
static inline const char *said_of_master(const redisReply *reply, const char *field)
{
    size_t i;
    for (i = 0; reply && i + 1 < reply->elements; i += 2)
        if (strcmp(reply->element[i]->str, field) == 0)
            return reply->element[i + 1]->str;
    return "";
}

/* The port of the master that so many of the three name, none of them at work on a failover; 0 if
 * they do not. */
static inline int master_of(int so_many)
{
    int told[3], i;
    for (i = 0; i < 3; i++) {
        redisReply *reply = server_ask(sentinels[i], "SENTINEL MASTER limits");
        bool sound = strcmp(said_of_master(reply, "flags"), "master") == 0;
        told[i] = sound ? atoi(said_of_master(reply, "port")) : 0;
        freeReplyObject(reply);
    }
    for (i = 0; i < 3; i++) {
        int same = (told[0] == told[i]) + (told[1] == told[i]) + (told[2] == told[i]);
        if (told[i] && same >= so_many)
            return told[i];
    }
    return 0;
}

/* Waits until a failover has ended everywhere; the port of the master. A sentinel whose new master
 * dies before its failover has ended stays in that failover for ever. And on a machine at work one
 * may miss the end of a failover, and name the old master for ever: after 30 s two are enough. */
static inline int wait_for_end_of_failover(void)
{
    int i, port = 0;
    for (i = 0; i < 5000 && port == 0; i++) {
        port = master_of(i < 1500 ? 3 : 2);
        if (port == 0)
            server_sleep_ms(20);
    }
    CHECK(port != 0);
    return port;
}

/* Where the sentinels say the master is, 0 if they say nothing. */
static inline int master_now(int sentinel)
{
    redisReply *reply = server_ask(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME limits");
    int port = reply && reply->elements == 2 ? atoi(reply->element[1]->str) : 0;
    freeReplyObject(reply);
    return port;
}

#endif

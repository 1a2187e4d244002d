/* cluster.h - what tests of a cluster share: its nodes, who has which slot, slots that move, and
 * which node is what. Include it behind the implementation of ratelimit_redis.h. */
#ifndef CLUSTER_H
#define CLUSTER_H

#include "server.h"

#define NODES 6

static int node_port[NODES], node_pid[NODES];
static bool node_dead[NODES];

static inline int node_of(int port)
{
    int i;
    for (i = 0; i < NODES; i++)
        if (node_port[i] == port)
            return i;
    return -1;
}

/* The slot of a key's bucket; of an empty one only here. */
static inline uint32_t slot_of(const ratelimit_redis *r, const char *key)
{
    static const ratelimit_limit limit = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 100, 1);
    ratelimit_request q = server_request(key, &limit, RATELIMIT_TAKE, 1);
    ratelimit_priv_redis_name name;
    ratelimit_priv_redis_name_bucket(&name, &q);
    return ratelimit_priv_redis_slot(r, &name);
}

/* The port of the master of key's slot, as r knows it. */
static inline int owner_of(ratelimit_redis *r, const char *key)
{
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_OK);
    return r->slots[slot_of(r, key)]->port;
}

static inline void node_id(int port, char id[48])
{
    redisReply *reply = server_ask(port, "CLUSTER MYID");
    snprintf(id, 48, "%s", reply && reply->str ? reply->str : "");
    if (reply)
        freeReplyObject(reply);
}

/* The first of the three masters whose port is neither. */
static inline int another_master(ratelimit_redis *r, int port)
{
    uint32_t slot;
    for (slot = 0; slot < 16384; slot++)
        if (r->slots[slot] && r->slots[slot]->port != port)
            return r->slots[slot]->port;
    return -1;
}

static inline void set_slot(int port, uint32_t slot, const char *what, const char *id)
{
    if (id)
        CHECK(server_do(port, "CLUSTER SETSLOT %d %s %s", (int)slot, what, id));
    else
        CHECK(server_do(port, "CLUSTER SETSLOT %d %s", (int)slot, what));
}

typedef struct move {
    ratelimit_redis *r;
    uint32_t slot;
    int from, to;
    char from_id[48], to_id[48];
} move;

/* Puts the slot of {tag} half way from its node to another. */
static inline void move_begin(move *m, ratelimit_redis *r, const char *tag)
{
    m->r = r;
    m->slot = slot_of(r, tag);
    m->from = owner_of(r, tag);
    m->to = another_master(r, m->from);
    node_id(m->from, m->from_id);
    node_id(m->to, m->to_id);
    set_slot(m->to, m->slot, "IMPORTING", m->from_id);
    set_slot(m->from, m->slot, "MIGRATING", m->to_id);
}

static inline void move_key(const move *m, const char *key)
{
    CHECK(server_do(m->from, "MIGRATE 127.0.0.1 %d %s 0 1000", m->to, server_bucket(key)));
}

static inline void move_end(const move *m)
{
    int i;
    set_slot(m->to, m->slot, "NODE", m->to_id);
    set_slot(m->from, m->slot, "NODE", m->to_id);
    for (i = 0; i < 3; i++)
        if (node_port[i] != m->to && node_port[i] != m->from)
            set_slot(node_port[i], m->slot, "NODE", m->to_id);
}

static inline void wait_until(bool (*is)(int port), int port, unsigned most_ms)
{
    uint64_t start = ratelimit_clock_ns();
    while (!is(port) && server_ms_since(start) < most_ms)
        server_sleep_ms(10);
    CHECK(is(port));
}

static inline bool is_master(int port)
{
    redisReply *reply = server_ask(port, "ROLE");
    bool master = reply && reply->type == REDIS_REPLY_ARRAY && reply->elements &&
                  strcmp(reply->element[0]->str, "master") == 0;
    if (reply)
        freeReplyObject(reply);
    return master;
}

static inline bool is_replica(int port)
{
    return server_info(port, "master_port") > 0;
}

static inline bool is_synced(int port)
{
    redisReply *reply = server_ask(port, "INFO replication");
    bool up = reply && reply->str && strstr(reply->str, "master_link_status:up") != NULL;
    if (reply)
        freeReplyObject(reply);
    return up;
}

static inline bool knows_six(int port)
{
    redisReply *reply = server_ask(port, "CLUSTER INFO");
    bool six = reply && reply->str && strstr(reply->str, "cluster_known_nodes:6") != NULL &&
               strstr(reply->str, "cluster_state:ok") != NULL;
    if (reply)
        freeReplyObject(reply);
    return six;
}

/* The replica of the master at port. */
static inline int replica_of(int port)
{
    int i;
    for (i = 0; i < NODES; i++)
        if (!node_dead[i] && node_port[i] != port &&
            server_info(node_port[i], "master_port") == port)
            return node_port[i];
    return -1;
}

#endif

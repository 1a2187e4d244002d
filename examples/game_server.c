/* game_server.c - a UDP game server (ENet) whose players lose nothing while a crowd of made-up
   players floods it

   What it shows: ratelimit.h in front of and behind a network library, with the time given. Packets
   and bytes in one decision, both or neither; tables whose overflow policies keep strangers away
   from players; a cap on all replies; a penalty that outlasts its connection.

       Package: libenet-dev
       Build:   cc -std=c99 -O2 -I. examples/game_server.c -o game_server -lenet

       ./game_server 127.0.0.1 7777        ends at SIGINT or SIGTERM, with its counters

   A client sends reliable packets on channel 0: "join NAME", then "move SEQ X Y", each answered
   with "at SEQ X Y"; "trusted" says that the server took it among its members.

   WHO IS A MEMBER  Who has played for a while without a refusal, under a name and from an address:
   the same name from elsewhere is somebody else. (With accounts: who has logged in, by account.)
   Membership is a list, of players, their addresses and their connections, and the list is a table
   as well: a key blocked for 30 days is on it, so entries go by themselves.

       table      holds                     when full
       members    the list                  REFUSE: no member makes room for a new one, however many
                                            come; who is not let in plays on as a stranger
       known      buckets of members        never: only a member's address makes keys here
       addresses  buckets of all other      INHERIT: a made-up one takes over the debt of the one it
                  addresses                 displaces, so all together get no more than the places
                                            there are; EVICT would give each a fresh bucket. A
                                            blocked one has the largest debt and is displaced last
       strangers  buckets of all other      INHERIT; but a player needs a connection, and of these
                  players                   there are few

   INHERIT hands a debt over as a time: where intervals differ, a newcomer with a fast limit would
   have to wait for the debt of a slow one. So addresses and players have a table each, and bytes
   are counted in units that come back as fast as packets do.

   WHERE IT IS DECIDED
       Datagrams  before ENet sees them, by connection for a member, else by address. One that is
                  dropped costs a lookup: no memory, no answer. Those that open a connection are
                  bounded for all strangers together, for ENet holds a place for each.
       Messages   by player. A refused one is ignored and is a strike against its connection.
       Replies    a cap for all, of which strangers get a part: what is left is the members'. The
                  move is made all the same.
       Penalty    a connection with too many strikes is closed, its address blocked, and its player
                  no member any more. Only there: the address of a lone datagram may be a lie, that
                  of a connection is not. Members who share the address play on; new connections
                  from it wait until the penalty is over. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit.h"
#include <enet/enet.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PEERS = 256,    /* ENet's places; strangers hold at most */
    STRANGERS = 64, /* these, connected, and what is half open, see opens */
    PEERS_PER_ADDRESS = 16,
    NAME_BYTES = 16,
    MESSAGE_BYTES = 64,
    PROOF_MESSAGES = 40
};
#ifndef MEMBERS
#  define MEMBERS 1000
#endif
#define PROOF_NS      (2 * RATELIMIT_SECOND)
#define MEMBERSHIP_NS (30 * RATELIMIT_DAY)
#define PENALTY_NS    RATELIMIT_MINUTE

/* Packets and bytes of one sender, these in units. */
typedef struct pace {
    ratelimit_limit packets, units;
    size_t unit_bytes;
} pace;

static const pace stranger_address = {RATELIMIT_LIMIT(100, RATELIMIT_SECOND, 200),
                                      RATELIMIT_LIMIT(100, RATELIMIT_SECOND, 100), 256};
static const pace stranger_player = {RATELIMIT_LIMIT(25, RATELIMIT_SECOND, 50),
                                     RATELIMIT_LIMIT(25, RATELIMIT_SECOND, 75), 24};
static const pace member_connection = {RATELIMIT_LIMIT(250, RATELIMIT_SECOND, 1000),
                                       RATELIMIT_LIMIT(250, RATELIMIT_SECOND, 1000), 256};
static const pace member_player = {RATELIMIT_LIMIT(100, RATELIMIT_SECOND, 300),
                                   RATELIMIT_LIMIT(100, RATELIMIT_SECOND, 400), 24};
static const ratelimit_limit membership = RATELIMIT_LIMIT(1, RATELIMIT_DAY, 1);
static const ratelimit_limit strikes = RATELIMIT_LIMIT(1, RATELIMIT_SECOND, 20);
static const ratelimit_limit replies = RATELIMIT_LIMIT(2000, RATELIMIT_SECOND, 4000);
static const ratelimit_limit replies_to_strangers = RATELIMIT_LIMIT(200, RATELIMIT_SECOND, 400);
/* ENet gives up a connection that stays half open after 30 s at the latest: never more than
   20 + 30 x 4, which with STRANGERS leaves 52 places to members. */
static const ratelimit_limit opens = RATELIMIT_LIMIT(4, RATELIMIT_SECOND, 20);

static unsigned char members_memory[RATELIMIT_TABLE_BYTES(3 * MEMBERS)];
static unsigned char known_memory[RATELIMIT_TABLE_BYTES(6 * MEMBERS)];
static unsigned char addresses_memory[RATELIMIT_TABLE_BYTES(1000)];
static unsigned char strangers_memory[RATELIMIT_TABLE_BYTES(1000)];
static ratelimit_table *members, *known, *addresses, *strangers;
static ratelimit_bucket all_replies, all_replies_to_strangers, all_opens;

typedef struct key {
    size_t len;
    unsigned char bytes[48]; /* the first says of what: see below */
} key;

enum { PACKETS = 'p', UNITS = 'u', MEMBER = 'm' };

typedef struct connection {
    ENetAddress address;
    key player; /* len 0: has not joined */
    bool open, member, refused;
    uint32_t messages;
    uint64_t since_ns;
    ratelimit_bucket strikes;
    int x, y;
} connection;

static connection connections[PEERS]; /* of ENet's peers, in their order */
static struct {
    uint64_t dropped, members, strangers, refused, unanswered, penalties;
} counts;
static volatile sig_atomic_t ending;

/* ---- keys ------------------------------------------------------------------------------------ */

static key address_key(const ENetAddress *address)
{
    key k = {1, {0}};
    k.len += ratelimit_address_key(&address->host, sizeof address->host, 32, 64, k.bytes + 1);
    return k;
}

/* An address with its port: longer than one without, so never mistaken for it. */
static key connection_key(const ENetAddress *address)
{
    key k = address_key(address);
    memcpy(k.bytes + k.len, &address->port, sizeof address->port);
    k.len += sizeof address->port;
    return k;
}

/* The address, the name, and a zero: longer than both of the others, as a name has at least one
 * byte and an address with its port has two more than the address. */
static key player_key(const ENetAddress *address, const char *name)
{
    key k = address_key(address);
    size_t len = strlen(name) + 2;
    memcpy(k.bytes + k.len, name, len - 1);
    k.bytes[k.len + len - 1] = 0;
    k.len += len;
    return k;
}

/* ---- decisions ------------------------------------------------------------------------------- */

static ratelimit_request request(key *k, int what, const ratelimit_limit *limit, uint64_t n)
{
    ratelimit_request r = {0};
    k->bytes[0] = (unsigned char)what;
    r.key = k->bytes;
    r.key_len = k->len;
    r.limit = limit;
    r.n = n;
    return r;
}

/* One packet and its bytes, both or neither. */
static bool take(ratelimit_table *table, key who, const pace *at, size_t bytes, uint64_t now_ns)
{
    key same = who;
    ratelimit_request both[2];
    ratelimit_result results[2];
    both[0] = request(&who, PACKETS, &at->packets, 1);
    both[1] = request(&same, UNITS, &at->units, (bytes + at->unit_bytes - 1) / at->unit_bytes);
    ratelimit_table_decide(table, both, results, 2, RATELIMIT_ALL, now_ns);
    return results[0].allowed;
}

static bool is_member(key who, uint64_t now_ns)
{
    ratelimit_request peek = request(&who, MEMBER, &membership, 1);
    ratelimit_result result;
    peek.op = RATELIMIT_PEEK;
    ratelimit_table_decide(members, &peek, &result, 1, RATELIMIT_EACH, now_ns);
    return result.status == RATELIMIT_DENIED; /* not FULL, which a stranger may meet here */
}

/* Puts a player, its address and its connection on the list, or takes them off it. False: no room
   for all three, and nothing is changed. */
static bool set_member(const connection *c, ratelimit_op op, uint64_t now_ns)
{
    key keys[3];
    ratelimit_request all[3];
    ratelimit_result results[3];
    size_t i;
    keys[0] = c->player;
    keys[1] = address_key(&c->address);
    keys[2] = connection_key(&c->address);
    for (i = 0; i < 3; i++) {
        all[i] = request(&keys[i], MEMBER, &membership, 1);
        all[i].op = op;
        all[i].max_wait_ns = MEMBERSHIP_NS;
    }
    ratelimit_table_decide(members, all, results, 3, RATELIMIT_ALL, now_ns);
    return results[0].allowed;
}

static bool may_reply(const connection *c, uint64_t now_ns)
{
    return (c->member || ratelimit_bucket_take(&all_replies_to_strangers, &replies_to_strangers, 1,
                                               now_ns, NULL)) &&
           ratelimit_bucket_take(&all_replies, &replies, 1, now_ns, NULL);
}

/* ---- datagrams ------------------------------------------------------------------------------- */

/* Whether a datagram is for no connection yet: ENet's header begins with a peer's number. */
static bool opens_connection(const ENetHost *host)
{
    return host->receivedDataLength >= 2 && (host->receivedData[0] & 0x0F) == 0x0F &&
           host->receivedData[1] == 0xFF;
}

static bool may_enter(const ENetHost *host, uint64_t now_ns)
{
    const ENetAddress *from = &host->receivedAddress;
    size_t bytes = host->receivedDataLength;
    key k = connection_key(from);
    if (is_member(k, now_ns))
        return take(known, k, &member_connection, bytes, now_ns);
    k = address_key(from);
    if (is_member(k, now_ns)) /* a member who comes back, or a neighbour behind the same router */
        return take(known, k, &member_connection, bytes, now_ns);
    return take(addresses, k, &stranger_address, bytes, now_ns) &&
           (!opens_connection(host) || ratelimit_bucket_take(&all_opens, &opens, 1, now_ns, NULL));
}

/* ENet's hook: 1 drops the datagram. */
static int ENET_CALLBACK intercept(ENetHost *host, ENetEvent *event)
{
    (void)event;
    if (host->receivedDataLength && may_enter(host, ratelimit_clock_ns()))
        return 0;
    counts.dropped++;
    return 1;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void reply(ENetPeer *peer, const char *text)
{
    ENetPacket *packet = enet_packet_create(text, strlen(text), ENET_PACKET_FLAG_RELIABLE);
    if (packet && enet_peer_send(peer, 0, packet) != 0)
        enet_packet_destroy(packet);
}

static void closed(connection *c, uint64_t now_ns)
{
    key k = connection_key(&c->address);
    ratelimit_request reset = request(&k, MEMBER, &membership, 1);
    ratelimit_result result;
    reset.op = RATELIMIT_RESET; /* the next one on this port need not be the same player */
    ratelimit_table_decide(members, &reset, &result, 1, RATELIMIT_EACH, now_ns);
    memset(c, 0, sizeof *c);
}

static void punish(ENetPeer *peer, connection *c, uint64_t now_ns)
{
    char text[32] = "?";
    key k = address_key(&c->address);
    ratelimit_request block = request(&k, PACKETS, &stranger_address.packets, 1);
    ratelimit_result result;
    block.op = RATELIMIT_BLOCK;
    block.max_wait_ns = PENALTY_NS;
    ratelimit_table_decide(addresses, &block, &result, 1, RATELIMIT_EACH, now_ns);
    if (c->member)
        (void)set_member(c, RATELIMIT_RESET, now_ns);
    counts.penalties++;
    (void)enet_address_get_host_ip(&c->address, text, sizeof text);
    RATELIMIT_LOG(RATELIMIT_LIMIT(5, RATELIMIT_SECOND, 5), missed,
                  fprintf(stderr,
                          "game_server: %s floods: closed and blocked (and %" PRIu32 " more)\n",
                          text, missed));
    enet_peer_disconnect_now(peer, 0); /* makes no event */
    closed(c, now_ns);
}

/* May this message count? If not, that is a strike, and the last one ends the connection. */
static bool may_act(ENetPeer *peer, connection *c, size_t bytes, uint64_t now_ns)
{
    bool joined = c->player.len != 0;
    key who = joined ? c->player : connection_key(&c->address);
    bool member = joined ? c->member : is_member(address_key(&c->address), now_ns);
    if (bytes >= 1 && bytes < MESSAGE_BYTES &&
        (member ? take(known, who, &member_player, bytes, now_ns)
                : take(strangers, who, &stranger_player, bytes, now_ns)))
        return true;
    c->refused = true;
    counts.refused++;
    if (!ratelimit_bucket_take(&c->strikes, &strikes, 1, now_ns, NULL))
        punish(peer, c, now_ns);
    return false;
}

static void join(connection *c, const char *name, uint64_t now_ns)
{
    c->player = player_key(&c->address, name);
    if (is_member(c->player, now_ns))
        c->member = set_member(c, RATELIMIT_BLOCK, now_ns);
}

/* A message of a stranger has been let through: is it a member now? */
static void consider(ENetPeer *peer, connection *c, uint64_t now_ns)
{
    c->messages++;
    if (c->refused || c->messages < PROOF_MESSAGES || now_ns - c->since_ns < PROOF_NS)
        return;
    c->member = set_member(c, RATELIMIT_BLOCK, now_ns);
    c->messages = 0;
    if (c->member && may_reply(c, now_ns))
        reply(peer, "trusted");
}

static void message(ENetPeer *peer, connection *c, const ENetPacket *packet, uint64_t now_ns)
{
    char text[MESSAGE_BYTES], name[NAME_BYTES + 1];
    int seq, x, y, end = 0;
    if (!may_act(peer, c, packet->dataLength, now_ns))
        return;
    memcpy(text, packet->data, packet->dataLength);
    text[packet->dataLength] = 0;
    if (!c->player.len) {
        if (sscanf(text, "join %16[a-zA-Z0-9_-]%n", name, &end) == 1 && !text[end])
            join(c, name, now_ns);
        return;
    }
    if (sscanf(text, "move %9d %9d %9d%n", &seq, &x, &y, &end) != 3 || text[end])
        return;
    c->x = x;
    c->y = y;
    if (may_reply(c, now_ns)) {
        *(c->member ? &counts.members : &counts.strangers) += 1;
        snprintf(text, sizeof text, "at %d %d %d", seq, x, y);
        reply(peer, text);
    } else {
        counts.unanswered++;
    }
    if (!c->member)
        consider(peer, c, now_ns);
}

/* ---- the server ------------------------------------------------------------------------------ */

static void connected(ENetPeer *peer, connection *c, uint64_t now_ns)
{
    size_t i, others = 0;
    for (i = 0; i < PEERS; i++)
        others += connections[i].open && !connections[i].member;
    memset(c, 0, sizeof *c);
    c->address = peer->address;
    if (others >= STRANGERS && !is_member(address_key(&c->address), now_ns)) {
        enet_peer_disconnect_now(peer, 0);
        return;
    }
    c->open = true;
    c->since_ns = now_ns;
}

static void serve(ENetHost *host)
{
    ENetEvent event;
    while (!ending) {
        connection *c;
        uint64_t now_ns;
        int got = enet_host_service(host, &event, 100);
        if (got < 0) {
            fprintf(stderr, "game_server: the socket failed\n");
            return;
        }
        if (got == 0)
            continue;
        now_ns = ratelimit_clock_ns();
        c = &connections[event.peer - host->peers];
        if (event.type == ENET_EVENT_TYPE_CONNECT)
            connected(event.peer, c, now_ns);
        else if (event.type == ENET_EVENT_TYPE_DISCONNECT)
            closed(c, now_ns);
        else if (event.type == ENET_EVENT_TYPE_RECEIVE) {
            if (c->open)
                message(event.peer, c, event.packet, now_ns);
            enet_packet_destroy(event.packet);
        }
    }
}

static bool make_table(ratelimit_table **table, void *memory, size_t bytes,
                       ratelimit_full when_full)
{
    ratelimit_table_options options = {{0, 0}, RATELIMIT_EVICT, RATELIMIT_HASH_SIP, 0};
    options.when_full = when_full;
    return ratelimit_table_init(table, memory, bytes, &options) == RATELIMIT_OK;
}

static void end(int signal_number)
{
    (void)signal_number;
    ending = 1;
}

static void show_counts(uint64_t span_ns)
{
    ratelimit_table_counts list;
    ratelimit_table_stats(members, ratelimit_clock_ns(), &list);
    printf("seconds %.3f\ndatagrams dropped %" PRIu64 "\nreplies to members %" PRIu64
           "\nreplies to strangers %" PRIu64 "\nunanswered %" PRIu64 "\nrefused %" PRIu64
           "\npenalties %" PRIu64 "\nmember entries %" PRIu64 "\n",
           (double)span_ns / 1e9, counts.dropped, counts.members, counts.strangers,
           counts.unanswered, counts.refused, counts.penalties, list.keys);
}

int main(int argc, char **argv)
{
    struct sigaction action;
    ENetAddress address;
    ENetHost *host;
    uint64_t start_ns;
    char *rest = NULL;
    long port = argc == 3 ? strtol(argv[2], &rest, 10) : 0;
    if (argc != 3 || *rest || port < 1 || port > 65535 ||
        enet_address_set_host_ip(&address, argv[1]) != 0) {
        fprintf(stderr, "usage: game_server IPV4-ADDRESS PORT\n");
        return 2;
    }
    address.port = (enet_uint16)port;
    if (!make_table(&members, members_memory, sizeof members_memory, RATELIMIT_REFUSE) ||
        !make_table(&known, known_memory, sizeof known_memory, RATELIMIT_EVICT) ||
        !make_table(&addresses, addresses_memory, sizeof addresses_memory, RATELIMIT_INHERIT) ||
        !make_table(&strangers, strangers_memory, sizeof strangers_memory, RATELIMIT_INHERIT)) {
        fprintf(stderr, "game_server: no random bytes for the tables\n");
        return 1;
    }
    if (enet_initialize() != 0 || !(host = enet_host_create(&address, PEERS, 1, 0, 0))) {
        fprintf(stderr, "game_server: cannot listen on %s port %ld\n", argv[1], port);
        return 1;
    }
    host->intercept = intercept;
    host->duplicatePeers = PEERS_PER_ADDRESS;
    host->maximumPacketSize = MESSAGE_BYTES; /* more is not even put together */
    host->maximumWaitingData = 64 * MESSAGE_BYTES;
    memset(&action, 0, sizeof action);
    action.sa_handler = end;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    start_ns = ratelimit_clock_ns();
    printf("listening on %s port %ld\n", argv[1], port);
    fflush(stdout);
    serve(host);
    show_counts(ratelimit_clock_ns() - start_ns);
    enet_host_destroy(host);
    enet_deinitialize();
    return ending ? 0 : 1;
}

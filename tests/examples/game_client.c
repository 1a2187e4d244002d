/* game_client.c - players for the check of game_server.c: an honest one, or a crowd that floods

       Package: libenet-dev
       Build:   cc -std=c99 -O2 tests/examples/game_client.c -o game_client -lenet

       game_client honest SERVER PORT FROM NAME PROOF MOVES
           Moves until the server trusts it, at most PROOF times. Then for each line of standard
           input: "go" makes MOVES moves, each when the one before is answered; "leave"
           disconnects, "join" joins anew.
       game_client flood SERVER PORT FROM NAME ADDRESSES PLAYERS MOVES
           From so many addresses, FROM and those that follow, so many players at once each, every
           one called NAME and a number (or just NAME if it ends in "="), with all its moves at
           once. Who is thrown out comes back as another. Ends with its standard input.

   Prints what was answered. */
#define _POSIX_C_SOURCE 200809L
#include <enet/enet.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ENetAddress server;

static void stop(const char *why)
{
    fprintf(stderr, "game_client: %s\n", why);
    exit(1);
}

static ENetHost *bound(enet_uint32 from, size_t peers)
{
    ENetAddress address;
    ENetHost *host;
    address.host = ENET_HOST_TO_NET_32(from);
    address.port = 0;
    host = enet_host_create(&address, peers, 1, 0, 0);
    if (!host)
        stop("cannot bind an address");
    return host;
}

static void send_text(ENetPeer *peer, const char *text)
{
    ENetPacket *packet = enet_packet_create(text, strlen(text), ENET_PACKET_FLAG_RELIABLE);
    if (!packet)
        stop("no memory");
    if (enet_peer_send(peer, 0, packet) != 0)
        enet_packet_destroy(packet);
}

static void send_move(ENetPeer *peer, int seq)
{
    char text[64];
    snprintf(text, sizeof text, "move %d %d %d", seq, seq % 100, seq % 7);
    send_text(peer, text);
}

static bool answers_move(const ENetPacket *packet, int seq)
{
    char wanted[64];
    int len = snprintf(wanted, sizeof wanted, "at %d %d %d", seq, seq % 100, seq % 7);
    return packet->dataLength == (size_t)len && memcmp(packet->data, wanted, (size_t)len) == 0;
}

/* ---- honest ---------------------------------------------------------------------------------- */

static void joined(ENetHost *host, ENetPeer **peer, const char *name)
{
    char text[64];
    ENetEvent event;
    *peer = enet_host_connect(host, &server, 1, 0);
    if (!*peer || enet_host_service(host, &event, 20000) <= 0 ||
        event.type != ENET_EVENT_TYPE_CONNECT)
        stop("cannot connect");
    snprintf(text, sizeof text, "join %s", name);
    send_text(*peer, text);
}

/* Waits up to ms for one packet; true if it answers seq. "trusted" is noted beside. */
static bool answered(ENetHost *host, int seq, enet_uint32 ms, bool *trusted)
{
    ENetEvent event;
    enet_uint32 start = enet_time_get(), passed = 0;
    while (passed <= ms && enet_host_service(host, &event, ms - passed) > 0) {
        bool yes = false;
        if (event.type == ENET_EVENT_TYPE_DISCONNECT)
            stop("thrown out");
        if (event.type == ENET_EVENT_TYPE_RECEIVE) {
            yes = answers_move(event.packet, seq);
            if (event.packet->dataLength == 7 && memcmp(event.packet->data, "trusted", 7) == 0)
                *trusted = true;
            enet_packet_destroy(event.packet);
        }
        if (yes)
            return true;
        passed = enet_time_get() - start;
    }
    return false;
}

static void left(ENetHost *host, ENetPeer *peer)
{
    ENetEvent event;
    enet_peer_disconnect(peer, 0);
    while (enet_host_service(host, &event, 20000) > 0) {
        if (event.type == ENET_EVENT_TYPE_DISCONNECT)
            return;
        if (event.type == ENET_EVENT_TYPE_RECEIVE)
            enet_packet_destroy(event.packet);
    }
    stop("cannot disconnect");
}

/* Keeps the connection alive until there is a line; false at the end of input. */
static bool next_line(ENetHost *host, char *line, int bytes)
{
    struct pollfd input = {0, POLLIN, 0};
    ENetEvent event;
    while (poll(&input, 1, 0) == 0)
        if (enet_host_service(host, &event, 10) > 0 && event.type == ENET_EVENT_TYPE_DISCONNECT)
            stop("thrown out");
    return fgets(line, bytes, stdin) != NULL;
}

static void honest(const char *from, const char *name, int proof, int moves)
{
    ENetAddress address;
    ENetHost *host;
    ENetPeer *peer;
    char line[16];
    bool trusted = false;
    int seq, good;
    if (enet_address_set_host_ip(&address, from) != 0)
        stop("no address");
    host = bound(ENET_NET_TO_HOST_32(address.host), 1);
    joined(host, &peer, name);
    for (seq = 0, good = 0; seq < proof && !trusted; seq++) {
        ENetEvent none;
        send_move(peer, seq);
        good += answered(host, seq, 20000, &trusted);
        if (!trusted && enet_host_service(host, &none, 45) > 0) { /* only "trusted" can come now */
            trusted = none.type == ENET_EVENT_TYPE_RECEIVE;
            if (trusted)
                enet_packet_destroy(none.packet);
        }
    }
    printf("%s: %d of %d\n", trusted ? "trusted" : "not trusted", good, seq);
    fflush(stdout);
    while (next_line(host, line, sizeof line)) {
        if (line[0] == 'l') {
            left(host, peer);
            printf("left\n");
        } else if (line[0] == 'j') {
            joined(host, &peer, name);
            printf("joined\n");
        } else {
            for (seq = 0, good = 0; seq < moves; seq++) {
                send_move(peer, seq);
                good += answered(host, seq, 20000, &trusted);
            }
            printf("answered %d of %d\n", good, moves);
        }
        fflush(stdout);
    }
    enet_peer_disconnect_now(peer, 0);
    enet_host_flush(host);
    enet_host_destroy(host);
}

/* ---- flood ----------------------------------------------------------------------------------- */

static unsigned long players, sent, got, thrown_out;

static void flood_event(ENetEvent *event, const char *name, int moves)
{
    char text[64];
    int seq;
    if (event->type == ENET_EVENT_TYPE_CONNECT) {
        size_t len = strcspn(name, "=");
        if (name[len])
            snprintf(text, sizeof text, "join %.*s", (int)len, name);
        else
            snprintf(text, sizeof text, "join %s%lu", name, players);
        players++;
        send_text(event->peer, text);
        for (seq = 0; seq < moves; seq++)
            send_move(event->peer, seq);
        sent += (unsigned long)moves;
    } else if (event->type == ENET_EVENT_TYPE_DISCONNECT)
        thrown_out++;
    else if (event->type == ENET_EVENT_TYPE_RECEIVE) {
        got += event->packet->dataLength > 3 && memcmp(event->packet->data, "at ", 3) == 0;
        enet_packet_destroy(event->packet);
    }
}

static void flood(const char *from, const char *name, size_t hosts, size_t each, int moves)
{
    struct pollfd input = {0, POLLIN, 0};
    ENetAddress first;
    ENetHost **host = calloc(hosts, sizeof *host);
    size_t i, k;
    if (!host || enet_address_set_host_ip(&first, from) != 0)
        stop("no address");
    for (i = 0; i < hosts; i++)
        host[i] = bound(ENET_NET_TO_HOST_32(first.host) + (enet_uint32)i, each);
    while (poll(&input, 1, 1) == 0)
        for (i = 0; i < hosts; i++) {
            ENetEvent event;
            for (k = 0; k < each; k++)
                if (host[i]->peers[k].state == ENET_PEER_STATE_DISCONNECTED)
                    (void)enet_host_connect(host[i], &server, 1, 0);
            for (k = 0; k < 100 && enet_host_service(host[i], &event, 0) > 0; k++)
                flood_event(&event, name, moves);
        }
    for (i = 0; i < hosts; i++)
        enet_host_destroy(host[i]);
    free(host);
    printf("players %lu sent %lu answered %lu thrown out %lu\n", players, sent, got, thrown_out);
}

int main(int argc, char **argv)
{
    if (argc < 8 || enet_initialize() != 0 || enet_address_set_host_ip(&server, argv[2]) != 0)
        stop("bad arguments");
    server.port = (enet_uint16)atoi(argv[3]);
    if (argc == 8 && strcmp(argv[1], "honest") == 0)
        honest(argv[4], argv[5], atoi(argv[6]), atoi(argv[7]));
    else if (argc == 9)
        flood(argv[4], argv[5], (size_t)atoi(argv[6]), (size_t)atoi(argv[7]), atoi(argv[8]));
    else
        stop("bad arguments");
    enet_deinitialize();
    return 0;
}

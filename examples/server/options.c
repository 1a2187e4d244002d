/* options.c - the command line. */
#include "server.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: ratelimit_server [options]\n"
    "  --listen WHERE         ADDRESS:PORT or unix:PATH, at most 4 times; default 127.0.0.1:6380\n"
    "  --metrics WHERE        the same, for HTTP: GET /metrics\n"
    "  --rules FILE           limits by name; SIGHUP reads it again\n"
    "  --file FILE            keep the table in this file: it outlives the machine's restart\n"
    "  --keys N               limited keys the table has room for; default 1000000\n"
    "  --when-full POLICY     inherit (default: a new key takes over the debt of an old one) or\n"
    "                         evict (an old one is forgotten)\n"
    "  --clients N            most connections; default 10000\n"
    "  --timeout-s N          a request must be whole, and answers taken, within; default 10\n"
    "  --idle-s N             close a connection that asks nothing for so long; default 0: never\n"
    "  --drain-s N            after SIGUSR2, the old process serves its clients for so long;\n"
    "                         default 10\n"
    "  --password-file FILE   clients must send AUTH with what the first line says\n";

static unsigned parse_number(const char *option, const char *words, unsigned least, unsigned most)
{
    uint64_t number = 0;
    slice s;
    s.at = words;
    s.len = strlen(words);
    if (!whole_number(s, most, &number) || number < least)
        fail(2, "%s wants a number from %u to %u, not \"%s\"", option, least, most, words);
    return (unsigned)number;
}

static void parse_option(options *o, const char *name, const char *value)
{
    if (!strcmp(name, "--listen")) {
        if (o->listeners == MAX_LISTENERS)
            fail(2, "--listen: at most %d times", (int)MAX_LISTENERS);
        o->listen[o->listeners++] = value;
    } else if (!strcmp(name, "--metrics")) {
        o->metrics = value;
    } else if (!strcmp(name, "--rules")) {
        o->rules = value;
    } else if (!strcmp(name, "--file")) {
        o->file = value;
    } else if (!strcmp(name, "--password-file")) {
        o->password_file = value;
    } else if (!strcmp(name, "--keys")) {
        o->keys = parse_number(name, value, 1, 1000000000);
    } else if (!strcmp(name, "--clients")) {
        o->clients = parse_number(name, value, 1, 1000000);
    } else if (!strcmp(name, "--timeout-s")) {
        o->timeout_s = parse_number(name, value, 1, 3600);
    } else if (!strcmp(name, "--idle-s")) {
        o->idle_s = parse_number(name, value, 0, 1000000);
    } else if (!strcmp(name, "--drain-s")) {
        o->drain_s = parse_number(name, value, 0, 3600);
    } else if (!strcmp(name, "--when-full")) {
        o->evict = !strcmp(value, "evict");
        if (!o->evict && strcmp(value, "inherit") != 0)
            fail(2, "--when-full wants inherit or evict, not \"%s\"", value);
    } else {
        fail(2, "unknown option %s\n%s", name, usage);
    }
}

void read_options(options *o, int argc, char **argv)
{
    int i;
    memset(o, 0, sizeof *o);
    o->keys = 1000000;
    o->clients = 10000;
    o->timeout_s = o->drain_s = 10;
    for (i = 1; i < argc; i += 2) {
        if (!strcmp(argv[i], "--help")) {
            fputs(usage, stdout);
            exit(0);
        }
        if (i + 1 == argc)
            fail(2, "%s: unknown, or its value is missing\n%s", argv[i], usage);
        parse_option(o, argv[i], argv[i + 1]);
    }
    if (!o->listeners)
        o->listen[o->listeners++] = "127.0.0.1:6380";
}

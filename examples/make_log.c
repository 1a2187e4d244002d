/* make_log.c - writes a believable access log, for trying replay without a log of your own

   What it shows: nothing of ratelimit.h. It makes the sample that `make demo` replays.

       cc -std=c99 -O2 -o make_log make_log.c
       ./make_log [SEED [MINUTES]] > sample.log          default: seed 1, 60 minutes

   Combined Log Format, as Apache and nginx write it. The same seed gives the same bytes on every
   machine: the generator is our own and there is no floating point. In it are

       a crowd      people who come, load a page with what belongs to it, read, go on
       an office    some of them behind one address: what does a limit per address do to them?
       crawlers     192.0.2.66 asks every two seconds day and night, 192.0.2.80 every twelve
       an attacker  tries passwords on /login for a sixth of the time, from 203.0.113.200 and from
                    one IPv6 network, 2001:db8:bad:1::/64, with a new address after a few tries: see
                    replay's --ip-prefix

   A line carries the time when its request began but is written when it ended, so that the lines
   are slightly out of order, as real ones are. Some are broken: cut off, misplaced, all NULs. */

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START_S UINT64_C(1772546400) /* 3 March 2026, 14:00 UTC */

typedef enum what { PAGE, ASSET, CRAWL, LOGIN, NOISE } what;

typedef struct event {
    uint64_t begin_ms, end_ms; /* since START_S */
    uint64_t number;           /* makes the order total */
    uint64_t who;              /* see put_address */
    uint32_t bits;             /* random: which path, size and so on */
    what kind;
} event;

static uint64_t random_state;
static event *events;
static size_t event_count, event_room;

/* splitmix64 */
static uint64_t random_bits(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static uint64_t between(uint64_t low, uint64_t high)
{
    return low + random_bits() % (high - low + 1);
}

static void add(what kind, uint64_t who, uint64_t begin_ms, uint64_t end_ms)
{
    if (event_count == event_room) {
        event_room = event_room ? event_room * 2 : 4096;
        events = (event *)realloc(events, event_room * sizeof *events);
        if (!events) {
            fputs("make_log: out of memory\n", stderr);
            exit(1);
        }
    }
    events[event_count].kind = kind;
    events[event_count].who = who;
    events[event_count].begin_ms = begin_ms;
    events[event_count].end_ms =
        between(0, 99) ? end_ms : end_ms + between(500, 3000); /* a slow one */
    events[event_count].bits = (uint32_t)random_bits();
    events[event_count].number = event_count;
    event_count++;
}

/* Who: the kind of address in the top bits, a number below. */
#define V4_CROWD  (UINT64_C(0) << 60)
#define V6_CROWD  (UINT64_C(1) << 60)
#define V6_ATTACK (UINT64_C(2) << 60)
#define FIXED     (UINT64_C(3) << 60)
#define NUMBER    (((UINT64_C(1) << 60) - 1))

static const char *const fixed_address[] = {"203.0.113.7", "192.0.2.66", "192.0.2.80",
                                            "203.0.113.200"};
enum { OFFICE, CRAWLER, POLITE_CRAWLER, ATTACKER };

static uint64_t new_visitor(void)
{
    uint64_t kind = between(0, 99);
    if (kind < 6)
        return FIXED + OFFICE;
    return kind < 16 ? V6_CROWD + between(0, 0xFFFFFFFF) : V4_CROWD + between(0, 0x1FFFF);
}

static void page_and_assets(uint64_t who, uint64_t at_ms, uint64_t assets)
{
    uint64_t i;
    add(PAGE, who, at_ms, at_ms + between(20, 400));
    for (i = 0; i < assets; i++) {
        uint64_t begin = at_ms + between(150, 1200);
        add(ASSET, who, begin, begin + between(4, 80));
    }
}

static void visit(uint64_t at_ms)
{
    uint64_t who = new_visitor(), pages = between(1, 8);
    page_and_assets(who, at_ms, between(3, 7));
    while (--pages) {
        at_ms += between(3000, 45000);
        page_and_assets(who, at_ms, between(0, 2));
    }
}

/* More come towards the middle of the log: the sum of two random times. */
static void make_crowd(uint64_t length_ms)
{
    uint64_t i, visits = length_ms / 4000;
    for (i = 0; i < visits; i++)
        visit((between(0, length_ms) + between(0, length_ms)) / 2);
}

static void make_crawlers(uint64_t length_ms)
{
    uint64_t at;
    for (at = 700; at < length_ms; at += between(1700, 2300))
        add(CRAWL, FIXED + CRAWLER, at, at + between(30, 250));
    for (at = 5000; at < length_ms; at += between(11000, 13000))
        add(CRAWL, FIXED + POLITE_CRAWLER, at, at + between(30, 250));
}

static void make_attack(uint64_t length_ms)
{
    uint64_t at, end = length_ms * 2 / 3, address = 0;
    for (at = length_ms / 2; at < end; at += between(100, 260))
        add(LOGIN, FIXED + ATTACKER, at, at + between(60, 200));
    for (at = length_ms / 2 + 9000; at < end; at += between(150, 450)) {
        if (between(0, 5) == 0)
            address = between(1, 0xFFFF);
        add(LOGIN, V6_ATTACK + address, at, at + between(60, 200));
    }
}

static int by_end(const void *a, const void *b)
{
    const event *x = (const event *)a, *y = (const event *)b;
    if (x->end_ms != y->end_ms)
        return x->end_ms < y->end_ms ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static void put_address(uint64_t who)
{
    uint64_t n = who & NUMBER, kind = who & ~NUMBER;
    if (kind == V4_CROWD)
        printf("198.%u.%u.%u", 18u + (unsigned)(n >> 16), (unsigned)(n >> 8) & 255u,
               (unsigned)n & 255u);
    else if (kind == V6_CROWD)
        printf("2001:db8:%x:%x::%x", 0x1000u + ((unsigned)(n >> 20) & 0xFFFu),
               1u + ((unsigned)(n >> 8) & 0xFFFu), 1u + ((unsigned)n & 255u));
    else if (kind == V6_ATTACK)
        printf("2001:db8:bad:1::%x", (unsigned)n);
    else
        fputs(fixed_address[n], stdout);
}

/* The log is in March: no month ends in it, however long it is (30 days at most). */
static void put_time(uint64_t begin_ms)
{
    uint64_t s = START_S + begin_ms / 1000;
    unsigned day = 3 + (unsigned)(s / 86400 - START_S / 86400), in_day = (unsigned)(s % 86400);
    printf(" - - [%02u/%s/2026:%02u:%02u:%02u +0000] ", day > 31 ? day - 31 : day,
           day > 31 ? "Apr" : "Mar", in_day / 3600, in_day / 60 % 60, in_day % 60);
}

static const char *const pages[] = {
    "/",     "/products",     "/products/anvil",  "/products/rocket-skates", "/about",
    "/news", "/news/2026/03", "/search?q=magnet", "/search?q=paint",         "/cart",
    "/help", "/help/returns", "/caf\303\251"};
static const char *const assets[] = {"/css/site.css",   "/js/app.js",       "/img/logo.svg",
                                     "/img/anvil.webp", "/img/skates.webp", "/fonts/text.woff2",
                                     "/favicon.ico"};
static const char *const agents[] = {
    "Mozilla/5.0 (X11; Linux x86_64; rv:135.0) Gecko/20100101 Firefox/135.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/133.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like "
    "Gecko) Version/18.3 Mobile/15E148 Safari/604.1"};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void put_request(const event *e)
{
    unsigned bits = e->bits;
    const char *agent = agents[e->who % COUNT(agents)];
    if (e->kind == LOGIN)
        printf("\"POST /login HTTP/1.1\" 401 %u \"-\" \"python-requests/2.32\"\n", 412 + bits % 9);
    else if (e->kind == CRAWL)
        printf("\"GET /archive/%u HTTP/1.1\" 200 %u \"-\" \"ExampleBot/2.1 "
               "(+https://bot.example/)\"\n",
               bits % 5000, 3000 + bits % 20000);
    else if (e->kind == ASSET && bits % 4 == 0)
        printf("\"GET %s HTTP/2.0\" 304 - \"https://shop.example/\" \"%s\"\n",
               assets[bits / 4 % COUNT(assets)], agent);
    else if (e->kind == ASSET)
        printf("\"GET %s HTTP/2.0\" 200 %u \"https://shop.example/\" \"%s\"\n",
               assets[bits / 4 % COUNT(assets)], 900 + bits % 150000, agent);
    else
        printf("\"GET %s HTTP/2.0\" %s %u \"-\" \"%s\"\n", pages[bits % COUNT(pages)],
               bits % 37 ? "200" : "404", 2000 + bits / 64 % 30000, agent);
}

static void put_noise(const event *e)
{
    static const char nulls[32];
    switch (e->bits % 4) {
    case 0:
        puts("198.18.77.1 - - [03/Mar/2026:14:1"); /* the disk was full for a moment */
        break;
    case 1:
        puts("nginx: worker process 4021 exited on signal 11");
        break;
    case 2: /* a machine lost power */
        fwrite(nulls, 1, sizeof nulls, stdout);
        puts("");
        break;
    default:
        puts("\"GET /img/logo.svg HTTP/2.0\" 200 5120 \"\377\376\" \"-\"");
    }
}

static bool number(const char *text, uint64_t low, uint64_t high, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && *out >= low && *out <= high;
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, minutes = 60, i;
    if (argc > 3 || (argc > 1 && !number(argv[1], 0, UINT64_MAX, &seed)) ||
        (argc > 2 && !number(argv[2], 1, 43200, &minutes))) {
        fputs("usage: make_log [SEED [MINUTES]] > sample.log        minutes: 1 to 43200\n", stderr);
        return 2;
    }
    random_state = seed;
    make_crowd(minutes * 60000);
    make_crawlers(minutes * 60000);
    make_attack(minutes * 60000);
    for (i = 0; i < 5; i++)
        add(NOISE, 0, 0, between(0, minutes * 60000));
    qsort(events, event_count, sizeof *events, by_end);
    for (i = 0; i < event_count; i++) {
        if (events[i].kind == NOISE) {
            put_noise(&events[i]);
            continue;
        }
        put_address(events[i].who);
        put_time(events[i].begin_ms);
        put_request(&events[i]);
    }
    free(events);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("make_log: cannot write\n", stderr);
        return 1;
    }
    return 0;
}

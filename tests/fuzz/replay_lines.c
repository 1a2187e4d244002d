/* Replay's readers: a file to lines, a line to its parts. Lines are those of the file; a client is
 * an address, a name or a key; the same line means the same again. */
#define _POSIX_C_SOURCE 200809L

#include <stddef.h>

#include "fuzz.h"
#include "examples/replay/replay.h"

#include <unistd.h>

const char *const fuzz_seeds[] = {
    "192.0.2.9 - - [10/Oct/2024:13:55:36 +0000] \"GET /a?b=c HTTP/1.1\" 401 2326 \"-\" \"A/1.0\"\n",
    "www.example.com:443 192.0.2.9, 203.0.113.7 - x y [10/Oct/2024:13:55:36 +0200] \"GET / HTTP\" "
    "200 -\n",
    "[2001:db8::9]:51234 - x [01/Jan/1990:00:00:00 +0000] y [2024-10-10T13:55:36Z] \"\" 400 0\n",
    "Dec  7 11:05:07 web1 nginx: 192.0.2.9 - - [10/Oct/2024:13:55:36 +0000] \"GET / HTTP/1.1\" 1 "
    "2\n",
    "<190>1 2024-10-10T13:55:36Z web1 nginx 12 - [x@1 a=\"]\"] "
    "{\"ts\":1,\"client_ip\":\"192.0.2.9\"}\n",
    "\033[36mweb-1  |\033[0m [pod/a/b] 2024-11-27T22:00:00.1Z stdout F 192.0.2.9 - - [10/Oct/2024:"
    "13:55:36 +0000] \"GET\n",
    "{\"log\":\"192.0.2.9 - - [10/Oct/2024:13:55:36 +0000] \\\"GET / HTTP/1.1\\\" 401 2 \\n\","
    "\"stream\":\"stdout\",\"time\":\"2024-10-10T13:55:37.1Z\"}\n",
    "{\"ts\":1728568536.5,\"request\":{\"client_ip\":\"192.0.2.9\",\"method\":\"GET\",\"uri\":\"/"
    "a?b\","
    "\"headers\":{\"X\":[\"\\u00e9\\ud83d\\ude00\"]}},\"size\":2326,\"status\":401}\n",
    "https 2024-10-10T13:55:36.186641Z app/lb/5 192.0.2.9:2817 203.0.113.77:80 0 0 0 401 200 0 "
    "2326 "
    "\"GET https://e:443/a HTTP/1.1\" \"c\"\n",
    "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be b [06/Feb/2019:00:00:38 "
    "+0000] "
    "192.0.2.9 r 3E REST.GET a \"GET /a HTTP/1.1\" 200 - 1\n",
    "#Software: Microsoft IIS\n#Fields: date time s-ip cs-method cs-uri-stem c-ip sc-status\n"
    "2024-10-10 13:55:36 203.0.113.7 GET /a 192.0.2.9 401\n",
    "#Date: 2024-10-10\n#Fields: time c-ip x-edge-location sc-bytes\n13:55:36\t192.0.2.9\tLAX\t7\n",
    "192.0.2.9:33317 [10/Oct/2024:13:55:36.655] in static/srv1 10/0/30/69/109 401 2326 - - ---- "
    "1/1/1/1/0 0/0 {} \"GET / HTTP/1.1\"\n",
    "Feb 29 13:55:36 h sshd[1]: Failed password for invalid user from 203.0.113.7 from 192.0.2.9 "
    "port "
    "22 ssh2\nFeb 29 13:55:37 h sshd[1]: message repeated 5 times: [ Invalid user u from "
    "192.0.2.9]\n",
    "2024-10-10T13:55:36.1+02:00 h sshd[1]: Disconnected from invalid user a 192.0.2.9 port 5 "
    "[preauth]\nFeb 28 00:00:00 h last message repeated 2 times\nFeb 28 00:00:01 192.0.2.9 x\n",
    "1728568536.25 alice 3\n1728568536123 [::1]:443\n2024-10-10 13:55:36+01:00 bob\n",
    "\xEF\xBB\xBF# a mark\n\n\r\n",
    NULL};

static char unescaped[UNESCAPED];

static void begin(file_state *s, options *opt, unsigned how)
{
    memset(s, 0, sizeof *s);
    memset(opt, 0, sizeof *opt);
    opt->prefix.ipv4 = 32;
    opt->prefix.ipv6 = how & 1 ? 64 : 128;
    opt->key = (key_kind)(how % 4);
    opt->field = how & 8 ? -1 : 2;
    opt->host = (host_place)(how % 3);
    opt->cost_bytes = how & 2;
    if (how == 5) {
        opt->json_key = "request.headers.X.0";
        opt->json_time = "ts";
    }
    s->opt = opt;
    s->details = how & 4;
    s->year = 2000;
    s->unescaped = unescaped;
}

static int inside(text t, text line)
{
    return (t.at >= line.at && t.at + t.len <= line.at + line.len) ||
           (t.at >= unescaped && t.at + t.len <= unescaped + UNESCAPED) || t.len == 0;
}

static void good(const options *opt, text line, const parts *p)
{
    static key_set keys;
    static int begun;
    char buffer[ADDRESS_TEXT];
    uint32_t number = 0;
    uint64_t cost;
    const char *why;
    if (!begun)
        keys_init(&keys);
    begun = 1;
    MUST(inside(p->client, line) && inside(p->path, line) && inside(p->method, line));
    MUST(inside(p->status, line) && inside(p->size, line) && inside(p->chosen, line));
    if (opt->key == KEY_IP && !opt->json_key && !p->any_client && !p->same_as_before)
        MUST(bare_address(p->client).at || is_name(p->client));
    if (p->client.len && bare_address(p->client).at)
        MUST(clean_address(&opt->prefix, bare_address(p->client), buffer).len < ADDRESS_TEXT);
    why = find_key(opt, &keys, line, p, &number);
    MUST(why || number < keys.count);
    if (!find_cost(opt, p, &cost))
        MUST(cost > 0);
}

static int same(text a, text b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.at, b.at, a.len) == 0);
}

static void each_line(text all, unsigned how)
{
    file_state s, again;
    options opt;
    begin(&s, &opt, how);
    while (all.len) {
        const char *end = memchr(all.at, '\n', all.len);
        text line = part_of(all, 0, end ? (size_t)(end - all.at) : all.len);
        parts p, q;
        const char *why, *twice;
        all =
            part_of(all, end ? line.len + 1 : line.len, all.len - (end ? line.len + 1 : line.len));
        if (is_directive(&s, line))
            continue;
        again = s;
        why = parse_line(&s, line, &p);
        if (!why)
            good(&opt, line, &p);
        s = again;
        twice = parse_line(&s, line, &q);
        MUST(why == twice && (why || (p.time_ns == q.time_ns && same(p.client, q.client))));
        (void)is_wrapped(line);
    }
}

/* From a file: the same lines as between the ends of lines. */
static void from_file(const uint8_t *data, size_t size)
{
    static char name[64] = "/tmp/replay_lines.XXXXXX";
    static int fd = -1;
    const char *why = "";
    const uint8_t *at = data;
    log_line line;
    reader *r;
    reading got;
    if (fd < 0) {
        fd = mkstemp(name);
        MUST(fd >= 0 && unlink(name) == 0); /* nothing is left of it whatever happens */
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    }
    MUST(ftruncate(fd, 0) == 0);
    MUST(pwrite(fd, data, size, 0) == (ssize_t)size);
    r = reader_open(name, false, &why);
    MUST(r);
    if (size >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0)
        at += 3;
    while ((got = reader_next(r, &line)) == READ_LINE) {
        const uint8_t *end = memchr(at, '\n', size - (size_t)(at - data));
        size_t len = end ? (size_t)(end - at) : size - (size_t)(at - data);
        text want = part_of(line.is, 0, 0);
        if (reader_compressed(r))
            continue;
        want.at = (const char *)at;
        want.len = len - (len && at[len - 1] == '\r');
        while (want.len && *want.at == 0)
            want = part_of(want, 1, want.len - 1);
        MUST(same(line.is, want));
        at += end ? len + 1 : len;
    }
    MUST(got != READ_FAILED || reader_fault(r));
    MUST(got != READ_END || reader_compressed(r) || at == data + size);
    reader_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text all;
    char *copy = fuzz_text(data, size);
    unsigned how;
    all.at = copy;
    all.len = size;
    for (how = 0; how < 12; how++)
        each_line(all, how);
    free(copy);
    if (size % 8 == 0)
        from_file(data, size);
    return 0;
}

/* What clients send to examples/server: bytes to requests, requests to answers. A request that is
 * cut anywhere is half a request, never another one; each gets exactly one answer, well-formed and
 * of bounded length. Only the sockets are left out. */
#include <stddef.h>

#include "fuzz.h"
#include "examples/server/server.h"

const char *const fuzz_seeds[] = {
    "*5\r\n$8\r\nTHROTTLE\r\n$5\r\nalice\r\n$1\r\n5\r\n$2\r\n10\r\n$2\r\n60\r\n",
    "*6\r\n$11\r\ncl.throttle\r\n$1\r\na\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n0\r\n",
    "TAKE alice \"10/m burst 5\" 2\r\nPEEK alice \"10/m burst 5\"\nRESET alice 10/m\r\n",
    "RULE login alice 3\r\nTAKE alice @login\r\nBLOCK alice @login 5000\r\nRULE nothing x\r\n",
    "TAKEALL a @login 1 b @api 2\r\nTAKEALL a 1/s 1 b \"2/s\" 9\r\nTAKEALL a 1/s 1 b @api 1\r\n",
    "RESERVE a 1/s 60000 1\r\nRESERVE a 1/s 1\r\nCHARGE a 1/s 100\r\nREFUND a 1/s 7\r\n",
    "TAKE a \"5/h window\"\r\nREFUND a \"5/h window\"\r\nBLOCK a unlimited 5\r\nTAKE a unlimited\n",
    "PING\r\nPING x\r\nECHO \"a b\"\r\nHELLO 2 SETNAME x\r\nCLIENT ID\r\nSELECT 0\r\nQUIT\r\n",
    "COMMAND\r\nCOMMAND COUNT\r\nINFO\r\nRESET\r\nAUTH x\r\nHELLO 3\r\nMULTI\r\nTAKE a "
    "1/s\r\nEXEC\r\n",
    "*0\r\n*-1\r\n\r\n \r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    "*33\r\n*1\r\n$4097\r\n\"",
    "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    NULL};

counters counted;
static session here;

size_t client_count(void)
{
    return 1;
}
size_t most_bytes(void)
{
    return 1;
}

static void start(void)
{
    static const char rules[] = "login 5/m burst 10\napi 100/s\nshadow 1/h shadow\n";
    options o;
    memset(&o, 0, sizeof o);
    o.keys = 100;
    open_table(&o, -1);
    open_limiter(&o);
    open_commands(&o);
    MUST(ratelimit_rules_load(limiter.rules, rules, sizeof rules - 1, NULL) == RATELIMIT_OK);
}

/* Where an answer ends that begins at `at`. */
static const char *behind_answer(const char *at, const char *end)
{
    const char *line;
    long size;
    MUST(at < end);
    line = (const char *)memchr(at, '\r', (size_t)(end - at));
    MUST(line && line + 1 < end && line[1] == '\n');
    size = strtol(at + 1, NULL, 10);
    line += 2;
    switch (*at) {
    case '+':
    case '-':
    case ':':
        return line;
    case '$':
        MUST(size >= 0 && size + 2 <= end - line && memcmp(line + size, "\r\n", 2) == 0);
        return line + size + 2;
    default:
        MUST(*at == '*' && size >= 0);
        while (size--)
            line = behind_answer(line, end);
        return line;
    }
}

/* A part of a request, in memory that ends where the part does. */
static long read_part(const char *data, size_t len, size_t *count)
{
    char *part = (char *)malloc(len);
    const char *why;
    slice args[MAX_ARGS];
    long used;
    MUST(part);
    memcpy(part, data, len);
    used = read_request(part, len, args, count, &why);
    free(part);
    return used;
}

static void check_cuts(const char *data, size_t len, long used)
{
    size_t cut, count;
    for (cut = 1; cut < (used > 0 ? (size_t)used : len); cut++) {
        long part = read_part(data, cut, &count);
        MUST(part == HALF || (part == BROKEN && used == BROKEN));
    }
}

static void answer(call *c)
{
    static text out;
    out.len = 0;
    c->out = &out;
    c->from = &here;
    read_clock();
    run_command(c);
    decide_waiting(&out);
    MUST(!out.broken && out.len <= 8192);
    MUST(behind_answer(out.at, out.at + out.len) == out.at + out.len);
}

static void check_http(const char *data, size_t len)
{
    static text out;
    long used;
    out.len = 0;
    used = answer_http(data, len, &out);
    MUST(used == BROKEN || (used >= 0 && (size_t)used <= len));
    MUST((used == HALF) == (out.len == 0));
    MUST(used != HALF || len < REQUEST_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *data = (char *)malloc(size + !size);
    size_t at = 0, i;
    MUST(data);
    if (size)
        memcpy(data, bytes, size);
    if (!limiter.rules)
        start();
    memset(&here, 0, sizeof here);
    here.known = true;
    while (at < size && !here.ending) {
        const char *why = NULL;
        call c;
        long used = read_request(data + at, size - at, c.args, &c.count, &why);
        check_cuts(data + at, size - at, used);
        MUST(used == BROKEN ? why != NULL : used >= 0 && (size_t)used <= size - at);
        MUST(used != HALF || size - at < REQUEST_BYTES + 16);
        if (used <= 0)
            break;
        for (i = 0; i < c.count; i++)
            MUST(c.args[i].at >= data + at &&
                 c.args[i].at + c.args[i].len <= data + at + (size_t)used);
        if (c.count)
            answer(&c);
        at += (size_t)used;
    }
    if (size)
        check_http(data, size);
    free(data);
    return 0;
}

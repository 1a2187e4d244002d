/* as.c - a limit in the words of other programs

   Each of them counts in its own way. What is not the same there as in the report is said in
   comments, as is a limit that the program can't do. */
#include "replay.h"

#include <string.h>

typedef struct writer {
    FILE *out;
    const options *opt;
    const char *comment; /* how a comment begins */
} writer;

static void remark(const writer *w, const char *what)
{
    fprintf(w->out, "%s %s\n", w->comment, what);
}

static uint64_t divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Remarks on what no program here knows. True if the limit can't be written at all. */
static bool cannot(const writer *w, const candidate *c, size_t i)
{
    if (c->unlimited[i])
        remark(w, "unlimited: nothing to write");
    if (c->window[i])
        remark(w, "a fixed window: written as a token bucket of the same rate and burst");
    return c->unlimited[i];
}

static void remark_prefixes(const writer *w, const char *how)
{
    if (w->opt->prefix.ipv4 != 32 || w->opt->prefix.ipv6 != 128)
        remark(w, how);
}

/* ---- nginx ----------------------------------------------------------------------------------- */

/* nginx has whole requests per second or minute, at most 1000 parts of one a second. */
static bool nginx_rate(const ratelimit_limit *l, char *out, size_t size)
{
    uint64_t second = RATELIMIT_SECOND, minute = RATELIMIT_MINUTE;
    double per_minute = (double)l->tokens * (double)minute / (double)l->per_ns;
    if (l->tokens <= UINT64_MAX / second && l->tokens * second % l->per_ns == 0) {
        snprintf(out, size, "%" PRIu64 "r/s", l->tokens * second / l->per_ns);
        return true;
    }
    if (per_minute < 1)
        return false;
    snprintf(out, size, "%.0fr/m", per_minute);
    return true;
}

static const char *nginx_key(const options *opt)
{
    return opt->key == KEY_PATH      ? "$uri"
           : opt->key == KEY_IP_PATH ? "$binary_remote_addr$uri"
                                     : "$binary_remote_addr";
}

static void as_nginx(const writer *w, const candidate *c)
{
    char rate[40];
    size_t i;
    remark(w, "in http { }");
    for (i = 0; i < c->limits; i++) {
        const ratelimit_limit *l = &c->limit[i];
        if (cannot(w, c, i))
            continue;
        if (!nginx_rate(l, rate, sizeof rate)) {
            fprintf(w->out, "# %s: nginx has no rate below 1r/m\n", limit_text(l).at);
            continue;
        }
        if (l->tokens > UINT64_MAX / RATELIMIT_MINUTE ||
            l->tokens * RATELIMIT_MINUTE % l->per_ns != 0)
            fprintf(w->out, "# %s: the rate is rounded\n", limit_text(l).at);
        fprintf(w->out, "limit_req_zone %s zone=replay%zu:10m rate=%s;\n", nginx_key(w->opt), i + 1,
                rate);
    }
    remark(w, "in server { } or location { }: burst counts what comes beyond the first request");
    for (i = 0; i < c->limits; i++) {
        const ratelimit_limit *l = &c->limit[i];
        if (c->unlimited[i] || !nginx_rate(l, rate, sizeof rate))
            continue;
        if (l->burst > 1)
            fprintf(w->out, "limit_req zone=replay%zu burst=%" PRIu64 " nodelay;\n", i + 1,
                    l->burst - 1);
        else
            fprintf(w->out, "limit_req zone=replay%zu;\n", i + 1);
    }
    fputs("limit_req_status 429;\n", w->out);
    remark_prefixes(w, "prefixes: make a key of them with map, in place of $binary_remote_addr");
}

/* ---- HAProxy --------------------------------------------------------------------------------- */

/* HAProxy counts in a sliding time: the time in which the whole burst comes back has the same rate
 * and the same burst. */
static void as_haproxy(const writer *w, const candidate *c)
{
    const char *by = w->opt->key == KEY_PATH      ? "path"
                     : w->opt->key == KEY_IP_PATH ? "base32+src"
                                                  : "src";
    const char *type = w->opt->key == KEY_PATH      ? "string len 128"
                       : w->opt->key == KEY_IP_PATH ? "binary len 20"
                                                    : "ipv6";
    size_t i;
    remark(w, "HAProxy counts requests, also refused ones, in a sliding time. The time here is the "
              "one in which");
    remark(w, "the burst comes back: the same rate and burst, a little stricter in between.");
    for (i = 0; i < c->limits && i < 3; i++) {
        double ms = (double)c->limit[i].burst * (double)c->limit[i].per_ns /
                    (double)c->limit[i].tokens / 1e6;
        if (cannot(w, c, i))
            continue;
        if (ms < 1 || ms > 2073600000.0) { /* 24 days */
            fprintf(w->out, "# %s: HAProxy's times go from 1 ms to 24 days\n",
                    limit_text(&c->limit[i]).at);
            continue;
        }
        fprintf(w->out,
                "backend replay%zu\n"
                "    stick-table type %s size 1m expire %.0fms store http_req_rate(%.0fms)\n",
                i + 1, type, ms, ms);
    }
    remark(w, "in your frontend");
    for (i = 0; i < c->limits && i < 3; i++) {
        double ms = (double)c->limit[i].burst * (double)c->limit[i].per_ns /
                    (double)c->limit[i].tokens / 1e6;
        if (c->unlimited[i] || ms < 1 || ms > 2073600000.0)
            continue;
        fprintf(w->out,
                "    http-request track-sc%zu %s table replay%zu\n"
                "    http-request deny deny_status 429 if { sc_http_req_rate(%zu,replay%zu) gt "
                "%" PRIu64 " }\n",
                i, by, i + 1, i, i + 1, c->limit[i].burst);
    }
    if (c->limits > 3)
        remark(w, "more than three limits: HAProxy has sc0, sc1 and sc2");
    remark_prefixes(w, "prefixes: src,ipmask(24,64) in place of src");
}

/* ---- Envoy ----------------------------------------------------------------------------------- */

/* Envoy fills at most each 50 ms. */
static void as_envoy(const writer *w, const candidate *c)
{
    size_t i;
    remark(w, "envoy.filters.http.local_ratelimit, for each address (Envoy 1.34 and later), in "
              "each Envoy for itself");
    for (i = 0; i < c->limits; i++) {
        uint64_t shared = divisor(c->limit[i].tokens, c->limit[i].per_ns);
        uint64_t tokens = c->limit[i].tokens / shared, fill = c->limit[i].per_ns / shared, times;
        if (cannot(w, c, i))
            continue;
        times = fill < 50000000 ? (50000000 + fill - 1) / fill : 1;
        fprintf(w->out,
                "%s: &replay%zu\n"
                "  stat_prefix: replay%zu\n"
                "  rate_limits:\n"
                "  - actions:\n"
                "    - %s\n"
                "  descriptors:\n"
                "  - entries:\n"
                "    - key: %s\n"
                "    token_bucket:\n"
                "      max_tokens: %" PRIu64 "\n"
                "      tokens_per_fill: %" PRIu64 "\n"
                "      fill_interval: %" PRIu64 ".%09" PRIu64 "s\n"
                "  token_bucket:\n"
                "    max_tokens: 4294967295\n"
                "    tokens_per_fill: 4294967295\n"
                "    fill_interval: 1s\n"
                "  filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}}\n"
                "  filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}\n",
                i ? "typed_config2" : "typed_config", i + 1, i + 1,
                w->opt->key == KEY_PATH ? "request_headers: {header_name: ':path', "
                                          "descriptor_key: path}"
                                        : "remote_address: {}",
                w->opt->key == KEY_PATH ? "path" : "remote_address",
                c->limit[i].burst < UINT32_MAX ? c->limit[i].burst : (uint64_t)UINT32_MAX,
                tokens * times, fill * times / RATELIMIT_SECOND, fill * times % RATELIMIT_SECOND);
    }
    remark_prefixes(w, "prefixes: masked_remote_address: {v4_prefix_mask_len: 24, "
                       "v6_prefix_mask_len: 64}");
}

/* ---- Traefik --------------------------------------------------------------------------------- */

static void as_traefik(const writer *w, const candidate *c)
{
    size_t i;
    remark(w, "a file of Traefik's dynamic configuration; name the middlewares in your router");
    fputs("http:\n  middlewares:\n", w->out);
    for (i = 0; i < c->limits; i++) {
        uint64_t shared = divisor(c->limit[i].tokens, c->limit[i].per_ns);
        if (cannot(w, c, i))
            continue;
        fprintf(w->out,
                "    replay%zu:\n"
                "      rateLimit:\n"
                "        average: %" PRIu64 "\n"
                "        period: %" PRIu64 "ns\n"
                "        burst: %" PRIu64 "\n",
                i + 1, c->limit[i].tokens / shared, c->limit[i].per_ns / shared, c->limit[i].burst);
        if (w->opt->prefix.ipv6 != 128)
            fprintf(w->out,
                    "        sourceCriterion:\n"
                    "          ipStrategy:\n"
                    "            ipv6Subnet: %" PRIu64 "\n",
                    w->opt->prefix.ipv6);
    }
    if (w->opt->prefix.ipv4 != 32)
        remark(w, "prefixes of IPv4: Traefik has none");
}

/* ---- Caddy ----------------------------------------------------------------------------------- */

static void as_caddy(const writer *w, const candidate *c)
{
    const char *by = w->opt->key == KEY_PATH      ? "{path}"
                     : w->opt->key == KEY_IP_PATH ? "{remote_host}{path}"
                                                  : "{remote_host}";
    size_t i;
    remark(w, "in a site; needs Caddy with github.com/mholt/caddy-ratelimit, which counts in a "
              "sliding time: here");
    remark(w, "the one in which the burst comes back: the same rate and burst, a little stricter "
              "in between.");
    fputs("rate_limit {\n", w->out);
    for (i = 0; i < c->limits; i++) {
        double ms = (double)c->limit[i].burst * (double)c->limit[i].per_ns /
                    (double)c->limit[i].tokens / 1e6;
        if (cannot(w, c, i))
            continue;
        fprintf(w->out,
                "\tzone replay%zu {\n"
                "\t\tkey %s\n"
                "\t\tevents %" PRIu64 "\n"
                "\t\twindow %.0fms\n"
                "\t}\n",
                i + 1, by, c->limit[i].burst, ms < 1 ? 1 : ms);
    }
    fputs("}\n", w->out);
    remark_prefixes(w, "prefixes: caddy-ratelimit has none");
}

/* ---- our own rules --------------------------------------------------------------------------- */

static void as_rules(const writer *w, const candidate *c)
{
    size_t i;
    for (i = 0; i < c->limits; i++) {
        if (i == 0)
            fprintf(w->out, "replay %s\n", limit_text(&c->limit[i]).at);
        else
            fprintf(w->out, "replay%zu %s\n", i + 1, limit_text(&c->limit[i]).at);
    }
}

static const struct {
    const char *name;
    void (*write)(const writer *w, const candidate *c);
} programs[] = {
    {"nginx", as_nginx},     {"haproxy", as_haproxy}, {"envoy", as_envoy},
    {"traefik", as_traefik}, {"caddy", as_caddy},     {"rules", as_rules},
};
#define PROGRAMS (sizeof programs / sizeof *programs)

bool known_as(const char *name)
{
    size_t i;
    for (i = 0; i < PROGRAMS; i++)
        if (strcmp(programs[i].name, name) == 0)
            return true;
    return false;
}

/* As --as says; without it as rules. */
void print_as(FILE *out, const run *r, const candidate *c)
{
    writer w;
    size_t i;
    const char *name = r->opt->as ? r->opt->as : "rules";
    w.out = out;
    w.opt = r->opt;
    w.comment = "#";
    for (i = 0; i < PROGRAMS; i++)
        if (strcmp(programs[i].name, name) == 0) {
            if (strcmp(name, "rules") != 0)
                fprintf(out, "# %s per %s, by replay --as %s\n", candidate_label(c).at,
                        key_label(r->opt).at, name);
            programs[i].write(&w, c);
        }
}

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

/* The rate in the smallest numbers: 10/m is 1 in 6 s. */
static void reduced(const ratelimit_limit *l, uint64_t *tokens, uint64_t *per_ns)
{
    uint64_t a = l->tokens, b = l->per_ns;
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    *tokens = l->tokens / a;
    *per_ns = l->per_ns / a;
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

/* "2m", "6s", "1500ms": in the largest unit that fits; days only where they are known. */
static line_text duration(uint64_t ns, bool days)
{
    static const struct {
        uint64_t ns;
        const char *name;
    } units[] = {{RATELIMIT_DAY, "d"},    {RATELIMIT_HOUR, "h"},         {RATELIMIT_MINUTE, "m"},
                 {RATELIMIT_SECOND, "s"}, {RATELIMIT_MILLISECOND, "ms"}, {1, "ns"}};
    line_text out;
    size_t i = days ? 0 : 1;
    while (i < 5 && (ns == 0 || ns % units[i].ns))
        i++;
    snprintf(out.at, sizeof out.at, "%" PRIu64 "%s", ns / units[i].ns, units[i].name);
    return out;
}

/* The time in which the whole burst comes back, in whole ms; 0 if it is longer than `most`. A
 * sliding count of the burst in this time has the same rate and the same burst. */
static uint64_t burst_time(const ratelimit_limit *l, uint64_t most)
{
    double ns = (double)l->burst * (double)l->per_ns / (double)l->tokens;
    uint64_t ms = ns < 1e18 ? (uint64_t)(ns / 1e6 + 0.5) : 0;
    return ms * RATELIMIT_MILLISECOND > most ? 0 : ms * RATELIMIT_MILLISECOND;
}

static void remark_sliding(const writer *w)
{
    remark(
        w,
        "It counts in a sliding time, here the one in which the burst comes back: the same rate");
    remark(w, "and the same burst, a little stricter in between.");
}

static void as_haproxy(const writer *w, const candidate *c)
{
    const char *by = w->opt->key == KEY_PATH      ? "path"
                     : w->opt->key == KEY_IP_PATH ? "base32+src"
                                                  : "src";
    const char *type = w->opt->key == KEY_PATH      ? "string len 128"
                       : w->opt->key == KEY_IP_PATH ? "binary len 20"
                                                    : "ipv6";
    size_t i, used = 0;
    uint64_t time[MAX_LIMITS];
    remark_sliding(w);
    remark(w, "Refused requests count, too.");
    for (i = 0; i < c->limits; i++) {
        time[i] = cannot(w, c, i) ? 0 : burst_time(&c->limit[i], 24 * RATELIMIT_DAY);
        if (!c->unlimited[i] && time[i] == 0)
            fprintf(w->out, "# %s: HAProxy's times go from 1 ms to 24 days\n",
                    limit_text(&c->limit[i]).at);
        if (time[i] && used++ >= 3) {
            fprintf(w->out, "# %s: HAProxy has counters for three limits\n",
                    limit_text(&c->limit[i]).at);
            time[i] = 0;
        }
        if (time[i])
            fprintf(w->out,
                    "backend replay%zu\n"
                    "    stick-table type %s size 1m expire %s store http_req_rate(%s)\n",
                    i + 1, type, duration(time[i], true).at, duration(time[i], true).at);
    }
    remark(w, "in your frontend");
    for (i = 0, used = 0; i < c->limits; i++)
        if (time[i]) {
            fprintf(w->out,
                    "    http-request track-sc%zu %s table replay%zu\n"
                    "    http-request deny deny_status 429 if { sc_http_req_rate(%zu,replay%zu) gt "
                    "%" PRIu64 " }\n",
                    used, by, i + 1, used, i + 1, c->limit[i].burst);
            used++;
        }
    remark_prefixes(w, "prefixes: src,ipmask(24,64) in place of src");
}

/* ---- Envoy ----------------------------------------------------------------------------------- */

static const char *envoy_action(const options *opt)
{
    return opt->key == KEY_PATH
               ? "{request_headers: {header_name: ':path', descriptor_key: replay}}"
               : "{masked_remote_address: {}}";
}

/* Envoy fills at most each 50 ms. */
static void as_envoy(const writer *w, const candidate *c)
{
    size_t i;
    remark(w, "among http_filters: for each key (Envoy 1.34 and later), in each Envoy for itself");
    if (w->opt->key == KEY_IP_PATH)
        remark(w, "address and path: add the action request_headers of ':path' to each");
    for (i = 0; i < c->limits; i++) {
        uint64_t tokens, fill, times;
        if (cannot(w, c, i))
            continue;
        reduced(&c->limit[i], &tokens, &fill);
        times = fill < 50000000 ? (50000000 + fill - 1) / fill : 1;
        fprintf(w->out,
                "- name: replay%zu\n"
                "  typed_config:\n"
                "    \"@type\": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit."
                "v3.LocalRateLimit\n"
                "    stat_prefix: replay%zu\n"
                "    rate_limits:\n"
                "    - actions: [%s]\n"
                "    descriptors:\n"
                "    - entries: [{key: %s}]\n",
                i + 1, i + 1, envoy_action(w->opt),
                w->opt->key == KEY_PATH ? "replay" : "masked_remote_address");
        fprintf(w->out,
                "      token_bucket: {max_tokens: %" PRIu64 ", tokens_per_fill: %" PRIu64
                ", fill_interval: %" PRIu64 ".%09" PRIu64 "s}\n",
                c->limit[i].burst < UINT32_MAX ? c->limit[i].burst : (uint64_t)UINT32_MAX,
                tokens * times, fill * times / RATELIMIT_SECOND, fill * times % RATELIMIT_SECOND);
        fputs("    token_bucket: {max_tokens: 4294967295, tokens_per_fill: 4294967295, "
              "fill_interval: 0.05s}\n"
              "    filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}}\n"
              "    filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}\n",
              w->out);
    }
    remark_prefixes(w, "prefixes: masked_remote_address: {v4_prefix_mask_len: 24, "
                       "v6_prefix_mask_len: 64}");
}

/* ---- Traefik --------------------------------------------------------------------------------- */

static void as_traefik(const writer *w, const candidate *c)
{
    size_t i;
    remark(w, "a file of Traefik's dynamic configuration; name the middlewares in your router");
    if (w->opt->key != KEY_IP)
        remark(w, "Traefik limits by address, host or header, not by path");
    fputs("http:\n  middlewares:\n", w->out);
    for (i = 0; i < c->limits; i++) {
        uint64_t tokens, period;
        if (cannot(w, c, i))
            continue;
        reduced(&c->limit[i], &tokens, &period);
        if (RATELIMIT_MINUTE % period == 0 && tokens <= UINT64_MAX / RATELIMIT_MINUTE) {
            tokens *= RATELIMIT_MINUTE / period; /* 10 a minute reads better than 1 in 6 s */
            period = RATELIMIT_MINUTE;
        }
        fprintf(w->out,
                "    replay%zu:\n"
                "      rateLimit:\n"
                "        average: %" PRIu64 "\n"
                "        period: %s\n"
                "        burst: %" PRIu64 "\n",
                i + 1, tokens, duration(period, false).at, c->limit[i].burst);
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
    const char *by = w->opt->key == KEY_PATH      ? "{http.request.uri.path}"
                     : w->opt->key == KEY_IP_PATH ? "{remote_host}{http.request.uri.path}"
                                                  : "{remote_host}";
    uint64_t time[MAX_LIMITS];
    size_t i;
    remark(w, "in a site; needs Caddy with github.com/mholt/caddy-ratelimit");
    remark_sliding(w);
    for (i = 0; i < c->limits; i++) {
        time[i] = cannot(w, c, i) ? 0 : burst_time(&c->limit[i], RATELIMIT_FOREVER);
        if (!c->unlimited[i] && time[i] == 0)
            fprintf(w->out, "# %s: its time is below 1 ms\n", limit_text(&c->limit[i]).at);
    }
    fputs("rate_limit {\n", w->out);
    for (i = 0; i < c->limits; i++) {
        if (time[i] == 0)
            continue;
        fprintf(w->out,
                "\tzone replay%zu {\n"
                "\t\tkey %s\n"
                "\t\tevents %" PRIu64 "\n"
                "\t\twindow %s\n"
                "\t}\n",
                i + 1, by, c->limit[i].burst, duration(time[i], true).at);
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

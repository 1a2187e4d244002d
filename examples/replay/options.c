/* options.c - the command line */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: replay --limit LIMIT [OPTION]... [FILE]...     what would this limit have done to my "
    "traffic?\n"
    "       replay --compare LIMIT --compare LIMIT ...     which of these?\n"
    "       replay --suggest [OPTION]... [FILE]...         which limit would do?\n"
    "\n"
    "limits\n"
    "  --limit LIMIT       \"10/m burst 20\", \"100/s\", \"1000/d window\"; several: all must "
    "pass, "
    "else it\n"
    "                      costs nothing in any; up to 16\n"
    "  --compare LIMIT     a candidate beside the others; \"10/m burst 20, 100/h\" has two limits, "
    "all must pass\n"
    "  --suggest[=SHARE]   a ladder: the tightest round limits that refuse something to none, "
    "0.1, 0.5, 1 and\n"
    "                      5 % of the keys; the report is about the one for SHARE (0.1%, at "
    "least one key)\n"
    "  --as PROGRAM        print the limit as configuration: nginx, haproxy, envoy, traefik, "
    "caddy, rules\n"
    "  --cost bytes        a request costs its answer's size instead of 1\n"
    "\n"
    "keys\n"
    "  --key ip|path|ip+path   what is limited: the client's address (default), the path, both\n"
    "  --key N, --key -N   the line's field N, or N-th from the end; \"quoted fields\" are one\n"
    "  --host first|second the client's place before [time], where it is not clear\n"
    "  --ip-prefix N       IPv6 addresses with the same first N bits are one (default 128; 64 is "
    "a household)\n"
    "  --ipv4-prefix N     the same for IPv4 (default 32)\n"
    "  --json-key NAME     the key is this field (request.headers.X-Forwarded-For.0) or W3C "
    "column\n"
    "  --json-time NAME    the time is this field\n"
    "\n"
    "lines\n"
    "  --only TEXT         only lines with this text\n"
    "  --status N          only answers with this status; 4 means 400 to 499; several may be "
    "given\n"
    "  --method NAME       only requests with this method\n"
    "  --path-prefix PATH  only paths that begin so\n"
    "  --reorder N         how many requests late a line may come (default 65536)\n"
    "  --year N            year of the first line of a log without years (default 2000)\n"
    "  --follow[=SECONDS]  go on reading what is added, with a report every minute, or SECONDS\n"
    "\n"
    "output\n"
    "  --decisions         print LINE ALLOWED REMAINING RETRY_AFTER_NS for each request\n"
    "  --json              print the report as JSON\n"
    "  --svg FILE          draw it\n"
    "  --html FILE         a page with picture and tables, complete in itself\n"
    "  --table-keys N      also try a table made for N keys, and say what it gets wrong\n"
    "  --full POLICY       what it does when full: evict, last-seen, inherit, refuse\n"
    "  --seed N            seed of that table (default 1)\n"
    "\n"
    "FILE: access logs (Common, Combined, Caddy, Traefik and nginx JSON, Amazon ALB, ELB and S3, "
    "CloudFront, IIS\n"
    "and other W3C, HAProxy), ssh and syslog, \"TIME KEY [COST]\"; packed by gzip or not; - or "
    "none "
    "is standard input.\n"
    "Exit code: 0 done; 1 something could not be read or written, or no line could; 2 wrong "
    "options.\n";

static uint64_t number_option(const char *name, const char *value, uint64_t low, uint64_t high)
{
    text t = as_text(value);
    uint64_t out = 0;
    if (!number(&t, 1, 20, &out) || t.len || out < low || out > high)
        fail(2, "%s: \"%s\" is no whole number from %" PRIu64 " to %" PRIu64, name, value, low,
             high);
    return out;
}

/* ---- limits ---------------------------------------------------------------------------------- */

line_text limit_text(const ratelimit_limit *limit)
{
    line_text out;
    ratelimit_limit_format(limit, out.at, sizeof out.at);
    return out;
}

long_text candidate_label(const candidate *c)
{
    long_text out;
    size_t i;
    out.at[0] = 0;
    for (i = 0; i < c->limits; i++)
        append(&out, "%s%s", i ? ", " : "", limit_text(&c->limit[i]).at);
    return out;
}

/* Adds one limit. */
static ratelimit_status add_limit(candidate *c, text t, size_t *fault)
{
    ratelimit_limit *limit = &c->limit[c->limits];
    ratelimit_status status = ratelimit_limit_parse_n(limit, t.at, t.len, fault);
    if (status != RATELIMIT_OK)
        return status;
    c->window[c->limits] = strstr(limit_text(limit).at, "window") != NULL;
    c->unlimited[c->limits] = strcmp(limit_text(limit).at, "unlimited") == 0;
    c->limits++;
    return status;
}

/* Adds all limits of "10/m burst 20, 100/h"; NULL, or what is wrong at value[*fault]. */
const char *fault_of_limits(const char *value, candidate *out, size_t *fault)
{
    text rest = as_text(value);
    *fault = 0;
    for (;;) {
        const char *comma = rest.len ? (const char *)memchr(rest.at, ',', rest.len) : NULL;
        size_t len = comma ? (size_t)(comma - rest.at) : rest.len, at = 0;
        ratelimit_status status;
        if (out->limits == MAX_LIMITS)
            return "there are more than 16 limits";
        status = add_limit(out, part_of(rest, 0, len), &at);
        if (status != RATELIMIT_OK) {
            *fault += at;
            return status == RATELIMIT_SYNTAX ? "that is no limit"
                                              : "that limit is zero or too large";
        }
        if (!comma)
            return NULL;
        *fault += len + 1;
        rest = part_of(rest, len + 1, rest.len - len - 1);
        while (rest.len && is_blank(rest.at[0])) {
            rest = part_of(rest, 1, rest.len - 1);
            ++*fault;
        }
    }
}

static void limits_into(candidate *c, const char *name, const char *value)
{
    size_t fault;
    const char *why = fault_of_limits(value, c, &fault);
    if (!why)
        return;
    if (c->limits == MAX_LIMITS)
        fail(2, "%s: more than %d", name, MAX_LIMITS);
    fprintf(stderr, "replay: %s: %s, at position %zu:\n    ", name, why, fault + 1);
    put_text(stderr, as_text(value), SIZE_MAX / 2, PLAIN);
    fprintf(stderr, "\n    %*s^\n", (int)fault, "");
    fail(2, "a limit is TOKENS/PERIOD [burst N] or TOKENS/PERIOD window, such as \"10/m burst "
            "20\"; periods are ns us ms s m h d w");
}

static void limit_option(options *opt, const char *value)
{
    if (!opt->limit_given && opt->candidate_count == MAX_CANDIDATES)
        fail(2, "--limit and --compare: more than %d", MAX_CANDIDATES);
    if (!opt->limit_given) {
        memmove(opt->candidates + 1, opt->candidates,
                opt->candidate_count * sizeof *opt->candidates);
        memset(opt->candidates, 0, sizeof *opt->candidates);
        opt->candidate_count++;
        opt->limit_given = true;
    }
    limits_into(&opt->candidates[0], "--limit", value);
}

static void compare_option(options *opt, const char *value)
{
    if (opt->candidate_count == MAX_CANDIDATES)
        fail(2, "--limit and --compare: more than %d", MAX_CANDIDATES);
    limits_into(&opt->candidates[opt->candidate_count], "--compare", value);
    opt->candidate_count++;
}

/* "0.1%" or "0.001" */
static bool share_value(const char *value, uint64_t *share)
{
    text t = as_text(value);
    uint64_t whole, part;
    bool percents;
    if (!number(&t, 1, 3, &whole) || !fraction(&t, &part))
        return false;
    percents = skip(&t, '%');
    *share = whole * SHARE_ONE + part;
    if (percents)
        *share /= 100;
    return t.len == 0 && *share <= SHARE_ONE;
}

/* ---- the others ------------------------------------------------------------------------------ */

line_text key_label(const options *opt)
{
    static const char *const names[] = {"address", "path", "address and path"};
    line_text out;
    if (opt->json_key) {
        memcpy(out.at, "field ", 6);
        copy_harmless(out.at + 6, sizeof out.at - 6, as_text(opt->json_key));
    } else if (opt->key == KEY_FIELD) {
        snprintf(out.at, sizeof out.at, "field %" PRId64, opt->field);
    } else {
        snprintf(out.at, sizeof out.at, "%s", names[opt->key]);
    }
    return out;
}

static void key_option(options *opt, const char *value)
{
    static const char *const names[] = {"ip", "path", "ip+path"};
    size_t i;
    for (i = 0; i < 3; i++)
        if (strcmp(value, names[i]) == 0) {
            opt->key = (key_kind)i;
            return;
        }
    if (!is_digit(value[0]) && value[0] != '-')
        fail(2, "--key: \"%s\" is none of ip, path, ip+path and a field's number", value);
    opt->key = KEY_FIELD;
    opt->field = (int64_t)number_option("--key", value + (value[0] == '-'), 1, MAX_LINE);
    if (value[0] == '-')
        opt->field = -opt->field;
}

static void host_option(options *opt, const char *value)
{
    if (strcmp(value, "first") == 0)
        opt->host = HOST_FIRST;
    else if (strcmp(value, "second") == 0)
        opt->host = HOST_SECOND;
    else
        fail(2, "--host: \"%s\" is neither first nor second", value);
}

static void full_option(options *opt, const char *value)
{
    static const char *const names[] = {"evict", "last-seen", "inherit", "refuse"};
    static const ratelimit_full policies[] = {RATELIMIT_EVICT, RATELIMIT_EVICT_LAST_SEEN,
                                              RATELIMIT_INHERIT, RATELIMIT_REFUSE};
    size_t i;
    for (i = 0; i < 4; i++)
        if (strcmp(value, names[i]) == 0) {
            opt->when_full = policies[i];
            return;
        }
    fail(2, "--full: \"%s\" is none of evict, last-seen, inherit, refuse", value);
}

static void status_option(options *opt, const char *value)
{
    uint64_t status = number_option("--status", value, 1, 999);
    if (status > 9 && status < 100)
        fail(2, "--status: \"%s\" is neither three digits nor one, such as 401 or 4", value);
    if (opt->status_count == sizeof opt->status / sizeof *opt->status)
        fail(2, "--status: more than 8");
    opt->status[opt->status_count++] = status;
}

static void as_option(options *opt, const char *value)
{
    if (!known_as(value))
        fail(2, "--as: \"%s\" is none of nginx, haproxy, envoy, traefik, caddy, rules", value);
    opt->as = value;
}

static void cost_option(options *opt, const char *value)
{
    if (strcmp(value, "bytes") != 0)
        fail(2, "--cost: \"%s\" is not bytes", value);
    opt->cost_bytes = true;
}

static void svg_option(options *opt, const char *value)
{
    opt->svg = value;
}

static void html_option(options *opt, const char *value)
{
    opt->html = value;
}

static void only_option(options *opt, const char *value)
{
    opt->only = value;
}

static void method_option(options *opt, const char *value)
{
    opt->method = value;
}

static void path_prefix_option(options *opt, const char *value)
{
    opt->path_prefix = value;
}

static void json_key_option(options *opt, const char *value)
{
    opt->json_key = value;
}

static void json_time_option(options *opt, const char *value)
{
    opt->json_time = value;
}

static void ip_prefix_option(options *opt, const char *value)
{
    opt->prefix.ipv6 = number_option("--ip-prefix", value, 0, 128);
}

static void ipv4_prefix_option(options *opt, const char *value)
{
    opt->prefix.ipv4 = number_option("--ipv4-prefix", value, 0, 32);
}

static void table_keys_option(options *opt, const char *value)
{
    opt->table_keys = number_option("--table-keys", value, 1, UINT32_MAX);
}

static void reorder_option(options *opt, const char *value)
{
    opt->reorder = number_option("--reorder", value, 1, 16777216);
}

static void year_option(options *opt, const char *value)
{
    opt->year = number_option("--year", value, 1970, 2500);
    opt->year_given = true;
}

static void seed_option(options *opt, const char *value)
{
    opt->seed = number_option("--seed", value, 1, UINT64_MAX);
}

static const struct {
    const char *name;
    void (*take)(options *opt, const char *value);
} with_value[] = {
    {"--limit", limit_option},
    {"--compare", compare_option},
    {"--key", key_option},
    {"--host", host_option},
    {"--full", full_option},
    {"--svg", svg_option},
    {"--html", html_option},
    {"--as", as_option},
    {"--ip-prefix", ip_prefix_option},
    {"--ipv4-prefix", ipv4_prefix_option},
    {"--json-key", json_key_option},
    {"--json-time", json_time_option},
    {"--only", only_option},
    {"--status", status_option},
    {"--method", method_option},
    {"--path-prefix", path_prefix_option},
    {"--reorder", reorder_option},
    {"--year", year_option},
    {"--table-keys", table_keys_option},
    {"--seed", seed_option},
    {"--cost", cost_option},
};
#define WITH_VALUE (sizeof with_value / sizeof *with_value)

/* ---- reading them ---------------------------------------------------------------------------- */

static bool flag(options *opt, const char *name)
{
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        fputs(usage, stdout);
        check_output(stdout, "to standard output");
        exit(0);
    }
    if (strcmp(name, "--suggest") == 0)
        opt->suggest = true;
    else if (strcmp(name, "--decisions") == 0)
        opt->decisions = true;
    else if (strcmp(name, "--json") == 0)
        opt->json = true;
    else if (strcmp(name, "--follow") == 0)
        opt->follow = true;
    else
        return false;
    return true;
}

/* Of flags that may have a value after "=". */
static bool flag_with_value(options *opt, const char *name, const char *value)
{
    if (strncmp(name, "--suggest=", 10) == 0) {
        opt->suggest = true;
        if (!share_value(value, &opt->share))
            fail(2, "--suggest: \"%s\" is no share, such as \"0.1%%\" or \"0.001\"", value);
        return true;
    }
    if (strncmp(name, "--follow=", 9) == 0) {
        opt->follow = true;
        opt->follow_s = number_option("--follow", value, 1, 86400);
        return true;
    }
    return false;
}

/* Reads one option, its value from the next argument if not after "=". Returns how many it used. */
static int read_option(options *opt, char **argv)
{
    const char *name = argv[0], *equals = strchr(name, '=');
    size_t len = equals ? (size_t)(equals - name) : strlen(name), i;
    uint64_t share;
    if (equals && flag_with_value(opt, name, equals + 1))
        return 1;
    if (flag(opt, name)) {
        if (strcmp(name, "--suggest") == 0 && argv[1] && share_value(argv[1], &share)) {
            opt->share = share;
            return 2;
        }
        return 1;
    }
    for (i = 0; i < WITH_VALUE; i++) {
        if (strlen(with_value[i].name) != len || strncmp(with_value[i].name, name, len) != 0)
            continue;
        if (!equals && !argv[1])
            fail(2, "%s: a value is missing", name);
        with_value[i].take(opt, equals ? equals + 1 : argv[1]);
        return equals ? 1 : 2;
    }
    fail(2, "unknown option \"%s\" (see --help)", name);
}

static void check_options(const options *opt)
{
    size_t i, inputs = 0;
    for (i = 0; i < opt->file_count; i++)
        inputs += strcmp(opt->files[i], "-") == 0;
    if (inputs > 1)
        fail(2, "standard input can be read only once");
    if (opt->candidate_count == 0 && !opt->suggest)
        fail(2, "a limit is missing: --limit \"10/m burst 20\", or --suggest to find one (see "
                "--help)");
    if (opt->decisions + opt->json + (opt->as != NULL) > 1)
        fail(2, "of --decisions, --json and --as each wants standard output for itself");
    if (opt->json_key && opt->key != KEY_IP)
        fail(2, "--key and --json-key both say what the key is");
    if (opt->follow && opt->suggest)
        fail(2, "--follow and --suggest: a limit is found only when all is read");
    if (opt->follow && (opt->json || opt->as))
        fail(2, "--follow prints reports: not with --json or --as");
}

void read_options(options *opt, int argc, char **argv)
{
    bool only_files = false;
    int at;
    opt->files = (char **)resize(FOR_READING, NULL, 0, (size_t)argc, sizeof *opt->files);
    opt->prefix.ipv4 = 32;
    opt->prefix.ipv6 = 128;
    opt->reorder = 65536;
    opt->year = 2000;
    opt->seed = 1;
    opt->share = SHARE_ONE / 1000;
    opt->follow_s = 60;
    for (at = 1; at < argc;) {
        if (!only_files && strcmp(argv[at], "--") == 0) {
            only_files = true;
            at++;
        } else if (!only_files && argv[at][0] == '-' && argv[at][1]) {
            at += read_option(opt, argv + at);
        } else {
            opt->files[opt->file_count++] = argv[at++];
        }
    }
    check_options(opt);
}

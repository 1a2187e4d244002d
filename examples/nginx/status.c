/* What the module says of itself: variables for the log, and a page in Prometheus' text format. */
#include "module.h"

const ngx_str_t outcome_names[2 * OUTCOMES] = {ngx_null_string,
                                               ngx_string("PASSED"),
                                               ngx_string("DELAYED"),
                                               ngx_string("REJECTED"),
                                               ngx_string("DELAYED_DRY_RUN"),
                                               ngx_string("REJECTED_DRY_RUN"),
                                               ngx_null_string,
                                               ngx_string("PASSED_WITHOUT_REDIS"),
                                               ngx_string("DELAYED_WITHOUT_REDIS"),
                                               ngx_string("REJECTED_WITHOUT_REDIS"),
                                               ngx_string("DELAYED_DRY_RUN_WITHOUT_REDIS"),
                                               ngx_string("REJECTED_DRY_RUN_WITHOUT_REDIS")};

/* ---- variables */

enum { STATUS, RULE, REMAINING };

static ngx_int_t get(ngx_http_request_t *r, ngx_http_variable_value_t *value, uintptr_t which)
{
    const decision *d = decision_of(r);
    ngx_str_t text = ngx_null_string;
    if (d && d->count && d->outcome != NOT_LIMITED) {
        if (which == STATUS) {
            text = outcome_names[d->outcome + (d->failed ? OUTCOMES : 0)];
        } else if (which == RULE) {
            text.data = (u_char *)d->rule[d->binding].name;
            text.len = ngx_strlen(text.data);
        } else if (d->res[d->binding].burst != UINT64_MAX &&
                   d->res[d->binding].status != RATELIMIT_STORE_FAILED) {
            text.data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
            if (!text.data)
                return NGX_ERROR;
            text.len =
                (size_t)(ngx_sprintf(text.data, "%uL", d->res[d->binding].remaining) - text.data);
        }
    }
    value->not_found = !text.len;
    value->valid = text.len != 0;
    value->no_cacheable = 0;
    value->len = (unsigned)text.len & 0xfffffff;
    value->data = text.data;
    return NGX_OK;
}

ngx_int_t add_variables(ngx_conf_t *cf)
{
    static ngx_str_t names[] = {ngx_string("ratelimit_status"), ngx_string("ratelimit_rule"),
                                ngx_string("ratelimit_remaining")};
    ngx_uint_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        ngx_http_variable_t *v = ngx_http_add_variable(cf, &names[i], NGX_HTTP_VAR_NOCACHEABLE);
        if (!v)
            return NGX_ERROR;
        v->get_handler = get;
        v->data = i;
    }
    return NGX_OK;
}

/* ---- the page */

typedef struct page {
    u_char *at, *end;
} page;

static void say(page *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    p->at = ngx_vslprintf(p->at, p->end, format, args);
    va_end(args);
}

/* A name as the value of a label: backslashes and quotes are escaped. */
static void say_label(page *p, const char *before, const u_char *text, size_t len)
{
    size_t i;
    say(p, "%s=\"", before);
    for (i = 0; i < len && text[i]; i++)
        say(p, text[i] == '"' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
    say(p, "\"");
}

static void say_tallies(page *p, zone **zones, ngx_uint_t count)
{
    ngx_uint_t i, j, what;
    say(p, "# HELP ratelimit_requests_total Decisions, by zone, rule and outcome.\n"
           "# TYPE ratelimit_requests_total counter\n");
    for (i = 0; i < count; i++)
        for (j = 0; j < zones[i]->memory->tallies; j++)
            for (what = PASSED; what < 2 * OUTCOMES; what++) {
                const tally *t = &zones[i]->memory->tally[j];
                if (!t->count[what])
                    continue;
                say(p, "ratelimit_requests_total{");
                say_label(p, "zone", zones[i]->name.data, zones[i]->name.len);
                say_label(p, ",rule", (const u_char *)t->name, sizeof t->name);
                say(p, ",outcome=\"%V\"} %uA\n", &outcome_names[what], t->count[what]);
            }
}

typedef struct family {
    const char *name, *type, *help;
    size_t offset; /* in ratelimit_table_counts */
} family;

static const family families[] = {
    {"table_capacity", "gauge", "Keys that the zone can hold.",
     offsetof(ratelimit_table_counts, capacity)},
    {"table_keys", "gauge", "Keys with tokens spent.", offsetof(ratelimit_table_counts, in_debt)},
    {"table_bytes", "gauge", "Memory of the zone's keys.", offsetof(ratelimit_table_counts, bytes)},
    {"table_evicted_total", "counter", "Keys whose place, with its debt, a new key took over.",
     offsetof(ratelimit_table_counts, evicted)}};

static void say_tables(page *p, zone **zones, const ratelimit_table_counts *counts,
                       ngx_uint_t count)
{
    ngx_uint_t i, j;
    for (j = 0; j < sizeof families / sizeof *families; j++) {
        const family *f = &families[j];
        say(p, "# HELP ratelimit_%s %s\n# TYPE ratelimit_%s %s\n", f->name, f->help, f->name,
            f->type);
        for (i = 0; i < count; i++) {
            uint64_t value;
            ngx_memcpy(&value, (const u_char *)&counts[i] + f->offset, sizeof value);
            say(p, "ratelimit_%s{", f->name);
            say_label(p, "zone", zones[i]->name.data, zones[i]->name.len);
            say(p, "} %uL\n", value);
        }
    }
}

/* An upper bound of the page's length. */
static size_t page_bytes(zone **zones, ngx_uint_t count)
{
    size_t bytes = 4096;
    ngx_uint_t i;
    for (i = 0; i < count; i++) {
        size_t name = 2 * zones[i]->name.len;
        bytes += 4 * (name + 128) +
                 MAX_TALLIES * 2 * OUTCOMES * (name + 2 * RATELIMIT_RULE_NAME_BYTES + 128);
    }
    return bytes;
}

ngx_int_t on_metrics(ngx_http_request_t *r)
{
    main_conf *conf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    zone **zones = conf->zones.elts;
    ngx_uint_t i, count = conf->zones.nelts;
    ratelimit_table_counts *counts;
    ngx_buf_t *buf;
    ngx_chain_t out;
    ngx_int_t status;
    page p;
    if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD)))
        return NGX_HTTP_NOT_ALLOWED;
    status = ngx_http_discard_request_body(r);
    if (status != NGX_OK)
        return status;
    counts = ngx_palloc(r->pool, (count + 1) * sizeof *counts);
    buf = ngx_create_temp_buf(r->pool, page_bytes(zones, count));
    if (!counts || !buf)
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    for (i = 0; i < count; i++)
        ratelimit_table_stats(zones[i]->table, ratelimit_clock_ns(), &counts[i]);
    p.at = buf->pos;
    p.end = buf->end;
    say_tallies(&p, zones, count);
    say_tables(&p, zones, counts, count);
    buf->last = p.at;
    buf->last_buf = r == r->main;
    buf->last_in_chain = 1;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = buf->last - buf->pos;
    ngx_str_set(&r->headers_out.content_type, "text/plain; version=0.0.4");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    status = ngx_http_send_header(r);
    if (status == NGX_ERROR || status > NGX_OK || r->header_only)
        return status;
    out.buf = buf;
    out.next = NULL;
    return ngx_http_output_filter(r, &out);
}

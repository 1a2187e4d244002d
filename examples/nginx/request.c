/* The way of a request: before it is served, while it waits, when it is logged. */
#include "module.h"

/* A decision stays with its request, also if nginx forgets the contexts of modules when it
   redirects it internally: then it is found by the cleanup of the pool. */
static void forget(void *of)
{
    redis_forget(of);
}

decision *decision_of(ngx_http_request_t *r)
{
    decision *d = ngx_http_get_module_ctx(r->main, ngx_http_ratelimit_module);
    ngx_pool_cleanup_t *c;
    for (c = r->main->pool->cleanup; !d && c; c = c->next)
        if (c->handler == forget) {
            d = c->data;
            ngx_http_set_ctx(r->main, d, ngx_http_ratelimit_module);
        }
    return d;
}

static decision *new_decision(ngx_http_request_t *r, size_t most)
{
    ngx_pool_cleanup_t *c = ngx_pool_cleanup_add(r->pool, sizeof(decision));
    decision *d;
    if (!c)
        return NULL;
    d = c->data;
    ngx_memzero(d, sizeof *d);
    d->place = ngx_pcalloc(r->pool, most * sizeof *d->place);
    d->req = ngx_pcalloc(r->pool, most * sizeof *d->req);
    d->res = ngx_pcalloc(r->pool, most * sizeof *d->res);
    d->rule = ngx_pcalloc(r->pool, most * sizeof *d->rule);
    if (!d->place || !d->req || !d->res || !d->rule)
        return NULL;
    d->request = r;
    c->handler = forget;
    ngx_http_set_ctx(r, d, ngx_http_ratelimit_module);
    return d;
}

/* ---- what is asked */

/* A whole number, or nothing: "" and "-" (a variable that has no value) are 0. False for anything
   else, and above 2^63 - 1. */
static bool read_count(const ngx_str_t *text, uint64_t *count)
{
    ngx_int_t n = 0;
    if (text->len && !(text->len == 1 && text->data[0] == '-'))
        n = ngx_atoi(text->data, text->len);
    *count = (uint64_t)n;
    return n >= 0;
}

/* Makes a key of the network that an address is in; the address is text, or in binary. (No text of
   4 bytes is the address of a client. An address whose 16 bytes read like text is in no network
   that is in use.) All that is no address is one key, or who invents some would never be
   limited. */
static ngx_int_t set_address_key(ngx_http_request_t *r, const zone *z, const ngx_str_t *text,
                                 ratelimit_request *req)
{
    unsigned char address[16];
    const void *bytes = address;
    size_t len =
        text->len == 4 ? 0 : ratelimit_address_parse((const char *)text->data, text->len, address);
    u_char *key = ngx_pnalloc(r->pool, RATELIMIT_ADDRESS_KEY_BYTES);
    if (!key)
        return NGX_ERROR;
    if (!len && (text->len == 4 || text->len == 16)) {
        bytes = text->data;
        len = text->len;
    }
    req->key = key;
    req->key_len = ratelimit_address_key(bytes, len, z->bits4, z->bits6, key);
    if (!req->key_len) {
        key[0] = 0;
        req->key_len = 1;
    }
    return NGX_OK;
}

static ngx_int_t set_rule(ngx_http_request_t *r, decision *d, const place *p, const ngx_str_t *key)
{
    main_conf *conf = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    ratelimit_rule *rule = &d->rule[d->count];
    ngx_str_t name;
    if (ngx_http_complex_value(r, p->rule, &name) != NGX_OK)
        return NGX_ERROR;
    if (rules_find_in(conf->rules->rules, &name, key, rule))
        return NGX_OK;
    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "there is no rule \"%V\" and no default: the request is refused", &name);
    return NGX_DECLINED;
}

/* Adds what one place asks for. NGX_DECLINED: it cannot be decided. */
static ngx_int_t add(ngx_http_request_t *r, decision *d, const place *p)
{
    ratelimit_request *req = &d->req[d->count];
    ratelimit_rule *rule = &d->rule[d->count];
    ngx_str_t key, text;
    ngx_int_t status;
    if (ngx_http_complex_value(r, p->key ? p->key : &p->zone->key, &key) != NGX_OK)
        return NGX_ERROR;
    if (!key.len)
        return NGX_OK; /* not limited */
    req->n = 1;
    if (p->cost) {
        if (ngx_http_complex_value(r, p->cost, &text) != NGX_OK)
            return NGX_ERROR;
        if (!read_count(&text, &req->n)) {
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                          "cost \"%V\" is no number: the request is refused", &text);
            return NGX_DECLINED;
        }
        if (!req->n)
            return NGX_OK; /* costs nothing */
    }
    if (p->rule) {
        status = set_rule(r, d, p, &key);
        if (status != NGX_OK)
            return status;
        req->limit = &rule->limit;
        if (p->zone->in_redis) /* there zones have only their scope for themselves */
            rule->limit.scope ^= p->zone->limit.scope;
    } else {
        ngx_cpystrn((u_char *)rule->name, p->zone->name.data,
                    ngx_min(p->zone->name.len + 1, sizeof rule->name));
        rule->limit = p->told;
        req->limit = &p->zone->limit;
    }
    if (p->zone->address) {
        if (set_address_key(r, p->zone, &key, req) != NGX_OK)
            return NGX_ERROR;
    } else {
        req->key = key.data;
        req->key_len = key.len;
    }
    req->op = p->charge ? RATELIMIT_PEEK : p->max_wait_ns ? RATELIMIT_RESERVE : RATELIMIT_TAKE;
    req->max_wait_ns = p->max_wait_ns;
    if (p->rule && req->op == RATELIMIT_RESERVE && is_window(&rule->limit))
        req->op = RATELIMIT_TAKE; /* nobody can wait for a window */
    d->place[d->count++] = p;
    return NGX_OK;
}

/* ---- before it is served */

static ngx_int_t add_fields(ngx_http_request_t *r, decision *d, ngx_uint_t words)
{
    const unsigned sets = (words & FIELDS_X ? RATELIMIT_HTTP_X : 0u) |
                          (words & FIELDS_RETRY_AFTER ? RATELIMIT_HTTP_RETRY_AFTER : 0u) |
                          (words & FIELDS_DRAFT ? RATELIMIT_HTTP_DRAFT : 0u);
    const size_t bytes = 512 * (d->count + 1);
    char *at, *end, *colon;
    ngx_table_elt_t *field;
    if (!sets)
        return NGX_OK;
    at = ngx_pnalloc(r->pool, bytes);
    if (!at)
        return NGX_ERROR;
    end = at + ratelimit_http_rule_fields(d->res, d->rule, d->count, NULL, 0, sets, at, bytes);
    for (; at < end; at = colon) { /* lines "Name: value" and CRLF */
        field = ngx_list_push(&r->headers_out.headers);
        if (!field)
            return NGX_ERROR;
        colon = strchr(at, ':');
        ngx_memzero(field, sizeof *field);
        field->hash = 1;
        field->key.data = (u_char *)at;
        field->key.len = (size_t)(colon - at);
        field->value.data = (u_char *)colon + 2;
        colon = strchr(colon, '\r');
        field->value.len = (size_t)((u_char *)colon - field->value.data);
        colon += 2;
    }
    return NGX_OK;
}

static void log_decision(ngx_http_request_t *r, const decision *d, const place_conf *conf)
{
    const ratelimit_result *res = &d->res[d->binding];
    const place *p = d->place[d->binding];
    bool rejected = d->outcome == REJECTED || d->outcome == REJECTED_DRY_RUN;
    uint64_t ns = rejected ? res->retry_after_ns : d->delay_ns;
    u_char time[NGX_INT64_LEN + 8];
    if (d->outcome == PASSED || d->outcome == NOT_LIMITED)
        return;
    if (res->status == RATELIMIT_STORE_FAILED)
        *ngx_sprintf(time, "unknown") = '\0';
    else if (ns == RATELIMIT_FOREVER)
        *ngx_sprintf(time, "never") = '\0';
    else
        *ngx_sprintf(time, "%uL.%03uL s", ns / RATELIMIT_SECOND,
                     ns % RATELIMIT_SECOND / RATELIMIT_MILLISECOND) = '\0';
    ngx_log_error(rejected ? conf->log_level : conf->delay_log_level, r->connection->log, 0,
                  "%s%s, %s: %s, by %s \"%s\" of zone \"%V\"",
                  rejected ? "limiting requests" : "delaying request",
                  d->outcome == REJECTED || d->outcome == DELAYED ? "" : ", dry run",
                  rejected ? "retry after" : "wait", time, p->rule ? "rule" : "limit",
                  d->rule[d->binding].name, &p->zone->name);
}

/* The time has come, or Redis' answer. (Called as nginx's event for writing, which may also come
   earlier.) */
static void on_wait_over(ngx_http_request_t *r)
{
    ngx_event_t *write = r->connection->write;
    bool waits = write->delayed || decision_of(r)->asked;
    ngx_int_t status;
    if (waits)
        status = ngx_handle_write_event(write, 0);
    else
        status = ngx_handle_read_event(r->connection->read, 0);
    if (status != NGX_OK) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }
    if (waits)
        return;
    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}

/* Puts a request to sleep in nginx's event loop, until its event for writing. It holds a
   connection, and nothing else. If the client leaves meanwhile, the request ends. */
static ngx_int_t suspend(ngx_http_request_t *r)
{
    if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK)
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = on_wait_over;
    return NGX_AGAIN;
}

static ngx_int_t sleep_for(ngx_http_request_t *r, uint64_t ns)
{
    ngx_int_t status = suspend(r);
    if (status != NGX_AGAIN)
        return status;
    r->connection->write->delayed = 1;
    ngx_add_timer(r->connection->write,
                  (ngx_msec_t)((ns + RATELIMIT_MILLISECOND - 1) / RATELIMIT_MILLISECOND));
    return NGX_AGAIN;
}

/* What the places of r's location ask for. */
static decision *collect(ngx_http_request_t *r, const ngx_array_t *places)
{
    const place *each = places->elts;
    decision *d = new_decision(r, places->nelts);
    ngx_uint_t i;
    for (i = 0; d && i < places->nelts; i++)
        if (add(r, d, &each[i]) != NGX_OK) {
            d->count = 0;
            return NULL;
        }
    return d;
}

ngx_int_t on_request(ngx_http_request_t *r)
{
    const place_conf *conf = ngx_http_get_module_loc_conf(r, ngx_http_ratelimit_module);
    main_conf *top = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    decision *d;
    if (!conf->places || r != r->main || ((d = decision_of(r)) && d->outcome != NOT_LIMITED))
        return NGX_DECLINED;
    if ((!d || !d->count) && !(d = collect(r, conf->places)))
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    if (!d->count)
        return NGX_DECLINED;
    if (!d->place[0]->zone->in_redis)
        decide_in_memory(d, ratelimit_clock_ns());
    else if (redis_decide(top->redis, d) == NGX_AGAIN)
        return suspend(r);
    conclude(d, conf->dry_run);
    log_decision(r, d, conf);
    if (conf->dry_run)
        return NGX_DECLINED;
    if (add_fields(r, d, conf->fields) != NGX_OK)
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    if (d->outcome == REJECTED)
        return d->res[d->binding].status == RATELIMIT_STORE_FAILED ? NGX_HTTP_SERVICE_UNAVAILABLE
                                                                   : (ngx_int_t)conf->status;
    return d->delay_ns ? sleep_for(r, d->delay_ns) : NGX_DECLINED;
}

/* ---- when it is logged: what is only known now is charged, into debt if need be */

ngx_int_t on_log(ngx_http_request_t *r)
{
    main_conf *top = ngx_http_get_module_main_conf(r, ngx_http_ratelimit_module);
    decision *d = decision_of(r);
    size_t i;
    if (r != r->main)
        return NGX_OK;
    if (!d || d->outcome == NOT_LIMITED || d->outcome == REJECTED)
        return NGX_OK;
    for (i = 0; i < d->count; i++) {
        ratelimit_request req = d->req[i];
        ngx_str_t text;
        if (!d->place[i]->charge)
            continue;
        if (ngx_http_complex_value(r, d->place[i]->charge, &text) != NGX_OK)
            return NGX_ERROR;
        req.op = RATELIMIT_CHARGE;
        if (!read_count(&text, &req.n)) {
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                          "charge \"%V\" is no number: nothing is charged", &text);
        } else if (req.n && d->place[i]->zone->in_redis && !d->failed) {
            redis_charge(top->redis, &req);
        } else if (req.n) {
            (void)ratelimit_table_decide_one(d->place[i]->zone->table, &req, ratelimit_clock_ns(),
                                             NULL);
        }
    }
    return NGX_OK;
}

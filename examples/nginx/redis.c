/* Zones in Redis: limits that hold over several machines. ratelimit_redis.h asks Redis on nginx's
   own event loop, so nothing blocks.

   A request that asks is suspended as one that is delayed: it holds a connection, and nothing else.
   What is asked is an `asked`, which lives until the answer comes, also if the client leaves
   earlier. The answer wakes the request up by nginx's event for writing. Limits under a shadow rule
   are asked afterwards, and only if the others passed.

   Each worker has one connection to Redis (in a cluster, to each node). */
#include "module.h"

#ifdef RATELIMIT_NGINX_REDIS

struct redis {
    ratelimit_redis_options options;
    ratelimit_failure on_failure;
    /* Of a worker: */
    ratelimit_redis_async *async;
    ngx_event_t timer;
    time_t said; /* when the log was last told that Redis fails */
};

struct asked {
    redis *of;
    decision *d; /* NULL: the client has left */
};

/* ---- ratelimit_redis ADDRESS [user=NAME] [password=TEXT] [database=N] [cluster | master=NAME]
        [timeout=TIME] [fail=open | closed | local] */

static char *read_failure(ngx_conf_t *cf, redis *of, const ngx_str_t *text)
{
    static const char *const words[] = {"open", "closed", "local"};
    static const ratelimit_failure each[] = {RATELIMIT_FAIL_OPEN, RATELIMIT_FAIL_CLOSED,
                                             RATELIMIT_FAIL_LOCAL};
    ngx_uint_t i;
    for (i = 0; i < 3; i++)
        if (ngx_strcmp(text->data, words[i]) == 0) {
            of->on_failure = each[i];
            return NGX_CONF_OK;
        }
    return conf_error(cf, "fail \"%V\" is not \"open\", \"closed\" or \"local\"", text);
}

static char *read_word(ngx_conf_t *cf, redis *of, const ngx_str_t *word)
{
    ratelimit_redis_options *o = &of->options;
    ngx_str_t text;
    ngx_int_t n;
    const char **value = is_option(word, "user=", &text)       ? &o->user
                         : is_option(word, "password=", &text) ? &o->password
                         : is_option(word, "master=", &text)   ? &o->master_name
                                                               : NULL;
    if (value && !*value && text.len) {
        *value = (const char *)text.data;
        return NGX_CONF_OK;
    }
    if (is_option(word, "cluster", &text) && !text.len) {
        o->cluster = true;
        return NGX_CONF_OK;
    }
    if (is_option(word, "database=", &text)) {
        n = number(&text, 0, NGX_MAX_INT32_VALUE);
        o->database = (int)n;
        return n >= 0 ? NGX_CONF_OK : conf_error(cf, "database \"%V\" is no number", &text);
    }
    if (is_option(word, "timeout=", &text)) {
        n = ngx_parse_time(&text, 0);
        o->timeout_ms = (uint32_t)n;
        return n > 0 && n <= 60000
                   ? NGX_CONF_OK
                   : conf_error(cf, "timeout \"%V\" is no time up to 60s, such as 100ms", &text);
    }
    if (is_option(word, "fail=", &text))
        return read_failure(cf, of, &text);
    return conf_error(cf, "\"%V\" is unknown, has no value, or is one too many", word);
}

/* Makes a handle for a moment, which tells whether the options are right. Nothing is sent. */
static char *try_options(ngx_conf_t *cf, const ngx_str_t *address, const redis *of)
{
    const ratelimit_redis_options *o = &of->options;
    ratelimit_status status;
    if (o->user && !o->password)
        return conf_error(cf, "\"user=\" needs \"password=\"");
    if (o->cluster && (o->master_name || o->database))
        return conf_error(cf, "\"cluster\" excludes \"master=\" and \"database=\"");
    ratelimit_redis_close(ratelimit_redis_open(o, &status));
    if (status == RATELIMIT_BAD_ARGUMENT)
        return conf_error(cf,
                          "\"%V\" is no address, such as 127.0.0.1:6379 or unix:/path/to/socket "
                          "(several, with commas, need \"cluster\" or \"master=\")",
                          address);
    if (status != RATELIMIT_OK)
        return conf_error(cf, "ratelimit_redis: %s", ratelimit_status_text(status));
    return NGX_CONF_OK;
}

char *on_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    redis *of = ngx_pcalloc(cf->pool, sizeof *of), **entry = &((main_conf *)conf)->redis;
    ngx_str_t *word = cf->args->elts, path;
    char *answer = NGX_CONF_OK;
    ngx_uint_t i;
    (void)cmd;
    if (*entry)
        return "is there already";
    if (!of)
        return NGX_CONF_ERROR;
    *entry = of;
    if (is_option(&word[1], "unix:", &path))
        of->options.unix_path = (const char *)path.data;
    else
        of->options.host = (const char *)word[1].data;
    for (i = 2; i < cf->args->nelts && answer == NGX_CONF_OK; i++)
        answer = read_word(cf, of, &word[i]);
    of->options.all_in_turn = of->options.cluster;
    return answer == NGX_CONF_OK ? try_options(cf, &word[1], of) : answer;
}

/* ---- nginx's event loop */

static void on_socket(ngx_event_t *event)
{
    ngx_connection_t *c = event->data;
    redis *of = c->data;
    ratelimit_redis_async_ready(of->async, c->fd,
                                event->write ? RATELIMIT_REDIS_WRITE : RATELIMIT_REDIS_READ);
}

static ngx_connection_t *new_connection(redis *of, int fd)
{
    ngx_connection_t *c = ngx_get_connection(fd, of->timer.log);
    if (c) {
        c->data = of;
        c->log = c->read->log = c->write->log = of->timer.log;
        c->read->handler = c->write->handler = on_socket;
    }
    return c;
}

/* The socket itself is not ours to close. */
static void free_connection(ngx_connection_t *c)
{
    if (c->read->posted) { /* the macro is two statements */
        ngx_delete_posted_event(c->read);
    }
    if (c->write->posted) {
        ngx_delete_posted_event(c->write);
    }
    ngx_free_connection(c);
    c->fd = (ngx_socket_t)-1;
}

static ngx_int_t set_event(ngx_event_t *event, ngx_int_t what, bool on)
{
    if (on == event->active)
        return NGX_OK;
    return on ? ngx_add_event(event, what, NGX_LEVEL_EVENT) : ngx_del_event(event, what, 0);
}

static int watch(void *self, int fd, unsigned events, void **yours)
{
    ngx_connection_t *c = *yours ? *yours : new_connection(self, fd);
    bool good = c && set_event(c->read, NGX_READ_EVENT, events & RATELIMIT_REDIS_READ) == NGX_OK &&
                set_event(c->write, NGX_WRITE_EVENT, events & RATELIMIT_REDIS_WRITE) == NGX_OK;
    if (c && (!good || !events)) {
        free_connection(c);
        c = NULL;
    }
    *yours = c;
    return good ? 0 : -1;
}

/* ngx_add_timer alone would keep a timer that is set already, if it is at most 300 ms later. */
static void set_timer(void *self, uint64_t after_ns)
{
    redis *of = self;
    if (of->timer.timer_set)
        ngx_del_timer(&of->timer);
    ngx_add_timer(&of->timer, (ngx_msec_t)(after_ns / RATELIMIT_MILLISECOND + 1));
}

static void on_timer(ngx_event_t *event)
{
    redis *of = event->data;
    ratelimit_redis_async_tick(of->async, ratelimit_clock_ns());
}

/* In each worker, when it starts. */
ngx_int_t redis_open(ngx_cycle_t *cycle, redis *of)
{
    ratelimit_redis_loop loop;
    ngx_memzero(&loop, sizeof loop);
    loop.watch = watch;
    loop.timer = set_timer;
    loop.self = of;
    of->timer.handler = on_timer;
    of->timer.data = of;
    of->timer.log = cycle->log;
    of->async = ratelimit_redis_async_open(&of->options, &loop, NULL);
    return of->async ? NGX_OK : NGX_ERROR;
}

/* When it ends. */
void redis_close(redis *of)
{
    ratelimit_redis_async_close(of->async);
    of->async = NULL;
}

/* nginx ends a worker when no timer is left but cancelable ones. */
static void set_patience(redis *of)
{
    of->timer.cancelable = ratelimit_redis_async_under_way(of->async) == 0;
}

/* ---- a request */

/* Who decides while Redis cannot be asked: the strictest that one of the limits names. */
static ratelimit_failure strictest(const redis *of, const decision *d)
{
    ratelimit_failure all = RATELIMIT_FAIL_OPEN, each;
    size_t i;
    for (i = 0; i < d->count; i++) {
        if (d->rule[i].shadow)
            continue;
        each = d->rule[i].closed ? RATELIMIT_FAIL_CLOSED
               : d->rule[i].open ? RATELIMIT_FAIL_OPEN
                                 : of->on_failure;
        all = each == RATELIMIT_FAIL_CLOSED || all == RATELIMIT_FAIL_OPEN ? each : all;
    }
    return all;
}

/* Once a second. */
static void log_failure(redis *of, ratelimit_failure policy, ratelimit_status status)
{
    static const char *const what[] = {"pass", "are refused", "are decided in memory"};
    char text[256];
    if (of->said == ngx_time())
        return;
    of->said = ngx_time();
    if (status == RATELIMIT_STORE_FAILED)
        (void)ratelimit_redis_async_error(of->async, text, sizeof text);
    ngx_log_error(NGX_LOG_ERR, of->timer.log, 0, "Redis cannot be asked: %s; requests %s",
                  status == RATELIMIT_STORE_FAILED ? text : ratelimit_status_text(status),
                  what[policy]);
}

static void decide_without(redis *of, decision *d, ratelimit_status status)
{
    ratelimit_failure policy = strictest(of, d);
    bool only_shadow = d->turns == 2; /* the others are decided */
    size_t i;
    log_failure(of, policy, status);
    d->failed = true;
    if (policy == RATELIMIT_FAIL_LOCAL && !only_shadow) {
        decide_in_memory(d, ratelimit_clock_ns());
        return;
    }
    for (i = 0; i < d->count; i++)
        if (d->rule[i].shadow || !only_shadow) {
            ngx_memzero(&d->res[i], sizeof d->res[i]);
            d->res[i].allowed = policy != RATELIMIT_FAIL_CLOSED;
            d->res[i].status = RATELIMIT_STORE_FAILED;
        }
}

static void on_answer(void *self, const ratelimit_result *res, size_t count)
{
    asked *a = self;
    redis *of = a->of;
    decision *d = a->d;
    size_t i, j;
    ngx_free(a);
    set_patience(of);
    if (!d)
        return;
    d->asked = NULL;
    ngx_post_event(d->request->connection->write, &ngx_posted_events);
    for (i = 0; i < count; i++)
        if (res[i].status == RATELIMIT_STORE_FAILED || res[i].status == RATELIMIT_UNSUPPORTED) {
            decide_without(of, d, res[i].status);
            return;
        }
    for (i = j = 0; i < d->count; i++)
        if (d->rule[i].shadow == (d->turns == 2))
            d->res[i] = res[j++];
}

/* NGX_AGAIN: the answer will come; NGX_OK: it is here, or there is nothing to ask. */
static ngx_int_t ask(redis *of, decision *d)
{
    bool shadow = d->turns == 2;
    ratelimit_request req[MAX_PLACES];
    ratelimit_status status = RATELIMIT_NO_MEMORY;
    asked *a;
    size_t i, count = 0;
    for (i = 0; i < d->count; i++)
        if (d->rule[i].shadow == shadow)
            req[count++] = d->req[i];
    if (!count)
        return NGX_OK;
    a = ngx_alloc(sizeof *a, of->timer.log);
    if (a) {
        a->of = of;
        a->d = d;
        status = (shadow ? ratelimit_redis_async_take_each
                         : ratelimit_redis_async_take_all)(of->async, req, count, on_answer, a);
    }
    set_patience(of);
    if (status == RATELIMIT_OK) {
        d->asked = a;
        return NGX_AGAIN;
    }
    ngx_free(a);
    decide_without(of, d, status);
    return NGX_OK;
}

static bool passes(const decision *d)
{
    size_t i;
    for (i = 0; i < d->count; i++)
        if (!d->rule[i].shadow && !d->res[i].allowed)
            return false;
    return true;
}

/* Is called again when an answer is here. NGX_AGAIN: one will come; NGX_OK: all is decided. */
ngx_int_t redis_decide(redis *of, decision *d)
{
    ngx_int_t status = NGX_OK;
    size_t i;
    for (i = 0; !d->turns && i < d->count; i++)
        d->res[i].status = RATELIMIT_SKIPPED;
    while (status == NGX_OK && d->turns < 2 && !d->failed && (!d->turns || passes(d))) {
        d->turns++;
        status = ask(of, d);
    }
    return status;
}

/* The request is over. What it takes stays taken. */
void redis_forget(decision *d)
{
    if (d->asked)
        d->asked->d = NULL;
}

/* ---- when it is logged */

static void on_charged(void *self, const ratelimit_result *res, size_t count)
{
    (void)res;
    (void)count;
    set_patience(self);
}

void redis_charge(redis *of, const ratelimit_request *req)
{
    if (ratelimit_redis_async_take(of->async, req, on_charged, of) != RATELIMIT_OK)
        log_failure(of, RATELIMIT_FAIL_OPEN, RATELIMIT_BUSY);
    set_patience(of);
}

#else

char *on_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    (void)cmd;
    (void)conf;
    return conf_error(cf, "this module was built without Redis: install hiredis (Debian: "
                          "libhiredis-dev) and build it again");
}

/* Never called: without the directive there is no zone in Redis. */
ngx_int_t redis_open(ngx_cycle_t *cycle, redis *of)
{
    (void)cycle;
    (void)of;
    return NGX_ERROR;
}

void redis_close(redis *of)
{
    (void)of;
}

ngx_int_t redis_decide(redis *of, decision *d)
{
    (void)of;
    (void)d;
    return NGX_ERROR;
}

void redis_forget(decision *d)
{
    (void)d;
}

void redis_charge(redis *of, const ratelimit_request *req)
{
    (void)of;
    (void)req;
}
#endif

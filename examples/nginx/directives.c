/* The directives: what is written in nginx.conf becomes zones and places, or an error that names
   what is wrong. The module's README has their reference. */
#include "module.h"

#include <stdarg.h>

/* Logs an error with the file and the line that nginx is reading. Returns NGX_CONF_ERROR. */
char *conf_error(ngx_conf_t *cf, const char *format, ...)
{
    u_char text[NGX_MAX_CONF_ERRSTR], *end;
    va_list args;
    va_start(args, format);
    end = ngx_vslprintf(text, text + sizeof text, format, args);
    va_end(args);
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%*s", (size_t)(end - text), text);
    return NGX_CONF_ERROR;
}

/* If word is NAME=VALUE, true and VALUE. */
bool is_option(const ngx_str_t *word, const char *name, ngx_str_t *value)
{
    size_t len = ngx_strlen(name);
    if (word->len < len || ngx_strncmp(word->data, name, len) != 0)
        return false;
    value->data = word->data + len;
    value->len = word->len - len;
    return true;
}

/* A whole number from least to most; NGX_ERROR if text is none. */
ngx_int_t number(const ngx_str_t *text, ngx_int_t least, ngx_int_t most)
{
    ngx_int_t n = ngx_atoi(text->data, text->len);
    return n < least || n > most ? NGX_ERROR : n;
}

static ngx_http_complex_value_t *compile(ngx_conf_t *cf, ngx_str_t *text,
                                         ngx_http_complex_value_t *to_or_null)
{
    ngx_http_compile_complex_value_t c;
    if (!to_or_null)
        to_or_null = ngx_pcalloc(cf->pool, sizeof *to_or_null);
    if (!to_or_null)
        return NULL;
    ngx_memzero(&c, sizeof c);
    c.cf = cf;
    c.value = text;
    c.complex_value = to_or_null;
    return ngx_http_compile_complex_value(&c) == NGX_OK ? to_or_null : NULL;
}

static main_conf *main_of(ngx_conf_t *cf)
{
    return ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
}

static zone *find_zone(ngx_conf_t *cf, const ngx_str_t *name)
{
    main_conf *conf = main_of(cf);
    zone **zones = conf->zones.elts;
    ngx_uint_t i;
    for (i = 0; i < conf->zones.nelts; i++)
        if (zones[i]->name.len == name->len &&
            ngx_strncmp(zones[i]->name.data, name->data, name->len) == 0)
            return zones[i];
    return NULL;
}

/* ---- ratelimit_zone KEY zone=NAME:SIZE [redis] [rate=N r/s | "limit=LIMIT"] [ipv4=BITS]
        [ipv6=BITS] */

/* "10r/s" or "30r/m", as limit_req writes rates. */
static char *read_rate(ngx_conf_t *cf, zone *z, const ngx_str_t *text)
{
    const ngx_int_t most = 100000000;
    ngx_str_t digits = *text;
    uint64_t per = 0;
    ngx_int_t n = NGX_ERROR;
    if (text->len > 3) {
        const u_char *unit = text->data + text->len - 3;
        per = ngx_strncmp(unit, "r/s", 3) == 0   ? RATELIMIT_SECOND
              : ngx_strncmp(unit, "r/m", 3) == 0 ? RATELIMIT_MINUTE
                                                 : 0;
        digits.len -= 3;
        n = number(&digits, 1, most);
    }
    if (!per || n == NGX_ERROR)
        return conf_error(cf, "rate \"%V\" is not a number from 1 to %i and \"r/s\" or \"r/m\"",
                          text, most);
    z->kind = ZONE_OF_RATE;
    z->limit = ratelimit_limit_make((uint64_t)n, per, 1);
    return NGX_CONF_OK;
}

static char *read_limit(ngx_conf_t *cf, zone *z, const ngx_str_t *text)
{
    size_t at = 0;
    ratelimit_status status =
        ratelimit_limit_parse_n(&z->limit, (const char *)text->data, text->len, &at);
    if (status == RATELIMIT_SYNTAX)
        return conf_error(cf,
                          "limit %V is wrong at byte %uz: write it like \"limit=10/s burst 20\", "
                          "with the quotes round the whole word",
                          text, at + 1);
    if (status != RATELIMIT_OK)
        return conf_error(cf, "limit %V: the number at byte %uz is zero or too large", text,
                          at + 1);
    z->kind = ZONE_OF_LIMIT;
    return NGX_CONF_OK;
}

static char *read_size(ngx_conf_t *cf, zone *z, ngx_str_t *text)
{
    const ngx_int_t least = (ngx_int_t)(sizeof(zone_memory) + 8 * ngx_pagesize);
    u_char *colon = ngx_strlchr(text->data, text->data + text->len, ':');
    ngx_str_t size;
    ssize_t bytes;
    if (!colon || colon == text->data)
        return conf_error(cf, "zone \"%V\" is not NAME:SIZE, such as \"one:10m\"", text);
    size.data = colon + 1;
    size.len = (size_t)(text->data + text->len - size.data);
    bytes = ngx_parse_size(&size);
    text->len = (size_t)(colon - text->data);
    if (bytes == NGX_ERROR)
        return conf_error(cf, "zone \"%V\": \"%V\" is no size", text, &size);
    if (bytes < least)
        return conf_error(cf, "zone \"%V\" is too small: it needs at least %ik", text,
                          (least + 1023) / 1024);
    if (find_zone(cf, text))
        return conf_error(cf, "zone \"%V\" is there already", text);
    z->name = *text;
    z->bytes = (size_t)bytes;
    return NGX_CONF_OK;
}

static char *read_bits(ngx_conf_t *cf, zone *z, const ngx_str_t *text, ngx_int_t most,
                       unsigned *bits)
{
    ngx_int_t n = number(text, 1, most);
    if (n == NGX_ERROR)
        return conf_error(cf, "\"%V\" is no prefix length from 1 to %i", text, most);
    z->address = 1;
    *bits = (unsigned)n;
    return NGX_CONF_OK;
}

static char *on_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *of)
{
    main_conf *conf = of;
    ngx_str_t *word = cf->args->elts, value, scope;
    zone *z = ngx_pcalloc(cf->pool, sizeof *z), **entry;
    char *answer = NGX_CONF_OK;
    ngx_uint_t i;
    (void)cmd;
    if (!z)
        return NGX_CONF_ERROR;
    z->bits4 = 32;
    z->bits6 = 128;
    for (i = 2; i < cf->args->nelts && answer == NGX_CONF_OK; i++) {
        if (is_option(&word[i], "zone=", &value) && !z->name.len)
            answer = read_size(cf, z, &value);
        else if (is_option(&word[i], "rate=", &value) && z->kind == ZONE_OF_RULES)
            answer = read_rate(cf, z, &value);
        else if (is_option(&word[i], "limit=", &value) && z->kind == ZONE_OF_RULES)
            answer = read_limit(cf, z, &value);
        else if (is_option(&word[i], "ipv4=", &value))
            answer = read_bits(cf, z, &value, 32, &z->bits4);
        else if (is_option(&word[i], "ipv6=", &value))
            answer = read_bits(cf, z, &value, 128, &z->bits6);
        else if (is_option(&word[i], "redis", &value) && !value.len && !z->in_redis)
            z->in_redis = 1;
        else
            answer = conf_error(cf, "\"%V\" is unknown, or one too many", &word[i]);
    }
    if (answer != NGX_CONF_OK)
        return answer;
    if (!z->name.len)
        return conf_error(cf, "\"zone=NAME:SIZE\" is missing");
    if (!compile(cf, &word[1], &z->key))
        return NGX_CONF_ERROR;
    /* A name with a blank is no rule's: a zone's own limit and a rule never share a bucket. */
    scope.data = ngx_pnalloc(cf->pool, 5 + z->name.len);
    if (!scope.data)
        return NGX_CONF_ERROR;
    scope.len = (size_t)(ngx_sprintf(scope.data, "zone %V", &z->name) - scope.data);
    z->limit.scope = ratelimit_scope((const char *)scope.data, scope.len);
    z->shm = ngx_shared_memory_add(cf, &z->name, z->bytes, &ngx_http_ratelimit_module);
    entry = ngx_array_push(&conf->zones);
    if (!z->shm || !entry)
        return NGX_CONF_ERROR;
    z->shm->init = zone_init;
    z->shm->data = z;
    *entry = z;
    return NGX_CONF_OK;
}

/* ---- ratelimit zone=NAME [burst=N] [nodelay | delay=N]
        ratelimit zone=NAME [rule=NAME] [wait=TIME] [cost=VALUE | charge=VALUE]
        both: [key=VALUE] */

/* The time in which n requests come back, rounded up. */
static uint64_t time_of(const ratelimit_limit *l, ngx_int_t n)
{
    uint64_t count = (uint64_t)n, rest = count % l->tokens * l->per_ns;
    return count / l->tokens * l->per_ns + rest / l->tokens + (rest % l->tokens != 0);
}

typedef struct words { /* of a line that is being read; -1: not given */
    ngx_int_t burst, delay;
    bool nodelay;
    ngx_msec_t wait;
} words;

/* limit_req's burst b and delay d, in our words: a bucket of one token, in which a request may
   reserve up to b tokens ahead, and only has to wait for what goes beyond d of them. All places of
   a zone use the same bucket, whatever their b and d. */
static char *set_rate(ngx_conf_t *cf, place *p, const words *w)
{
    const ratelimit_limit *l = &p->zone->limit;
    ngx_int_t burst = w->burst < 0 ? 0 : w->burst, delay = w->delay < 0 ? 0 : w->delay;
    if (w->wait != NGX_CONF_UNSET_MSEC || p->cost || p->charge)
        return conf_error(cf, "wait, cost and charge need a limit= of zone \"%V\", or a rule",
                          &p->zone->name);
    if (w->nodelay && w->delay >= 0)
        return conf_error(cf, "\"nodelay\" and \"delay=\" exclude each other");
    p->told = ratelimit_limit_make(l->tokens, l->per_ns, (uint64_t)burst + 1);
    if (ratelimit_limit_check(&p->told) != RATELIMIT_OK)
        return conf_error(cf, "burst %i takes longer than 146 years", burst);
    p->max_wait_ns = time_of(l, burst);
    p->free_ns = w->nodelay || delay > burst ? p->max_wait_ns : time_of(l, delay);
    return NGX_CONF_OK;
}

static char *set_limit(ngx_conf_t *cf, place *p, const words *w)
{
    if (!p->rule && p->zone->kind == ZONE_OF_RULES)
        return conf_error(cf, "zone \"%V\" has no rate= or limit=: a rule= must be named",
                          &p->zone->name);
    if (w->burst >= 0 || w->delay >= 0 || w->nodelay)
        return conf_error(cf, "burst, delay and nodelay need a rate= of zone \"%V\", and no rule",
                          &p->zone->name);
    if (p->charge && (p->cost || w->wait != NGX_CONF_UNSET_MSEC))
        return conf_error(cf, "charge= excludes cost= and wait=");
    p->max_wait_ns = w->wait == NGX_CONF_UNSET_MSEC ? 0 : w->wait * RATELIMIT_MILLISECOND;
    p->told = p->zone->limit;
    if (!p->rule && p->max_wait_ns && is_window(&p->zone->limit))
        return conf_error(cf, "wait= needs a bucket: the limit of zone \"%V\" is a window",
                          &p->zone->name);
    return NGX_CONF_OK;
}

static char *read_place_word(ngx_conf_t *cf, place *p, words *w, ngx_str_t *word)
{
    ngx_http_complex_value_t **value = NULL;
    ngx_str_t text;
    if (is_option(word, "zone=", &text) && !p->zone) {
        p->zone = find_zone(cf, &text);
        return p->zone ? NGX_CONF_OK
                       : conf_error(cf, "zone \"%V\" is unknown: its ratelimit_zone comes first",
                                    &text);
    }
    if (is_option(word, "burst=", &text)) {
        w->burst = number(&text, 0, NGX_MAX_INT32_VALUE);
        return w->burst >= 0 ? NGX_CONF_OK : conf_error(cf, "burst \"%V\" is no number", &text);
    }
    if (is_option(word, "delay=", &text)) {
        w->delay = number(&text, 0, NGX_MAX_INT32_VALUE);
        return w->delay >= 0 ? NGX_CONF_OK : conf_error(cf, "delay \"%V\" is no number", &text);
    }
    if (word->len == 7 && ngx_strncmp(word->data, "nodelay", 7) == 0) {
        w->nodelay = true;
        return NGX_CONF_OK;
    }
    if (is_option(word, "wait=", &text)) {
        ngx_int_t ms = ngx_parse_time(&text, 0);
        w->wait = (ngx_msec_t)ms;
        return ms > 0 && ms <= 24 * 3600 * 1000
                   ? NGX_CONF_OK
                   : conf_error(cf, "wait \"%V\" is no time up to a day, such as 2s", &text);
    }
    value = is_option(word, "key=", &text)      ? &p->key
            : is_option(word, "rule=", &text)   ? &p->rule
            : is_option(word, "cost=", &text)   ? &p->cost
            : is_option(word, "charge=", &text) ? &p->charge
                                                : NULL;
    if (!value || *value)
        return conf_error(cf, "\"%V\" is unknown, or one too many", word);
    if (!text.len)
        return conf_error(cf, "\"%V\" has no value", word);
    *value = compile(cf, &text, NULL);
    return *value ? NGX_CONF_OK : NGX_CONF_ERROR;
}

static bool same_text(const ngx_http_complex_value_t *a, const ngx_http_complex_value_t *b)
{
    return a == b || (a && b && a->value.len == b->value.len &&
                      ngx_strncmp(a->value.data, b->value.data, a->value.len) == 0);
}

static char *on_place(ngx_conf_t *cf, ngx_command_t *cmd, void *of)
{
    place_conf *conf = of;
    main_conf *top = main_of(cf);
    words w = {-1, -1, false, NGX_CONF_UNSET_MSEC};
    ngx_str_t *word = cf->args->elts, *name;
    place p, *added;
    char *answer = NGX_CONF_OK;
    ngx_uint_t i;
    (void)cmd;
    ngx_memzero(&p, sizeof p);
    for (i = 1; i < cf->args->nelts && answer == NGX_CONF_OK; i++)
        answer = read_place_word(cf, &p, &w, &word[i]);
    if (answer == NGX_CONF_OK && !p.zone)
        answer = conf_error(cf, "\"zone=NAME\" is missing");
    if (answer == NGX_CONF_OK)
        answer =
            p.zone->kind == ZONE_OF_RATE && !p.rule ? set_rate(cf, &p, &w) : set_limit(cf, &p, &w);
    if (answer != NGX_CONF_OK)
        return answer;
    if (!conf->places)
        conf->places = ngx_array_create(cf->pool, 4, sizeof p);
    if (!conf->places)
        return NGX_CONF_ERROR;
    added = conf->places->elts;
    for (i = 0; i < conf->places->nelts; i++)
        if (added[i].zone == p.zone && same_text(added[i].rule, p.rule) &&
            same_text(added[i].key, p.key))
            return conf_error(cf, "zone \"%V\" with this rule and key is here already",
                              &p.zone->name);
    if (conf->places->nelts && added->zone->in_redis != p.zone->in_redis)
        return conf_error(cf,
                          "one of the zones \"%V\" and \"%V\" is in Redis, the other is not: they "
                          "cannot limit the same request",
                          &added->zone->name, &p.zone->name);
    if (conf->places->nelts == MAX_PLACES)
        return conf_error(cf, "more than %d limits in one place", MAX_PLACES);
    if (p.rule) {
        top->rules_needed = 1;
        if (!p.rule->lengths) { /* without a variable: it must be in the file */
            if (!(name = ngx_array_push(&top->rule_names)))
                return NGX_CONF_ERROR;
            *name = p.rule->value;
        }
    }
    if (!(added = ngx_array_push(conf->places)))
        return NGX_CONF_ERROR;
    *added = p;
    return NGX_CONF_OK;
}

/* ---- ratelimit_rules FILE [most=N] [check=TIME] */

static char *on_rules(ngx_conf_t *cf, ngx_command_t *cmd, void *of)
{
    main_conf *conf = of;
    ngx_str_t *word = cf->args->elts, text;
    ngx_uint_t i;
    (void)cmd;
    if (conf->rules_file.data)
        return "is there already";
    conf->rules_file = word[1];
    conf->rules_most = 1000;
    conf->rules_check = 1000;
    if (ngx_conf_full_name(cf->cycle, &conf->rules_file, 1) != NGX_OK)
        return NGX_CONF_ERROR;
    for (i = 2; i < cf->args->nelts; i++) {
        ngx_int_t n = NGX_ERROR;
        if (is_option(&word[i], "most=", &text)) {
            n = number(&text, 1, 10000);
            conf->rules_most = (ngx_uint_t)n;
        } else if (is_option(&word[i], "check=", &text)) {
            n = ngx_parse_time(&text, 0);
            n = n < 10 || n > 24 * 3600 * 1000 ? NGX_ERROR : n;
            conf->rules_check = (ngx_msec_t)n;
        }
        if (n == NGX_ERROR)
            return conf_error(cf, "\"%V\" is not \"most=\" (1 to 10000) or \"check=\" (10ms to 1d)",
                              &word[i]);
    }
    return NGX_CONF_OK;
}

static char *on_metrics_place(ngx_conf_t *cf, ngx_command_t *cmd, void *of)
{
    ngx_http_core_loc_conf_t *core = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    (void)cmd;
    (void)of;
    core->handler = on_metrics;
    return NGX_CONF_OK;
}

/* ---- the table of directives, and what is inherited */

static ngx_conf_num_bounds_t status_bounds = {ngx_conf_check_num_bounds, 400, 599};

static ngx_conf_enum_t log_levels[] = {{ngx_string("info"), NGX_LOG_INFO},
                                       {ngx_string("notice"), NGX_LOG_NOTICE},
                                       {ngx_string("warn"), NGX_LOG_WARN},
                                       {ngx_string("error"), NGX_LOG_ERR},
                                       {ngx_null_string, 0}};

static ngx_conf_bitmask_t field_words[] = {{ngx_string("off"), FIELDS_OFF},
                                           {ngx_string("x"), FIELDS_X},
                                           {ngx_string("retry-after"), FIELDS_RETRY_AFTER},
                                           {ngx_string("draft"), FIELDS_DRAFT},
                                           {ngx_null_string, 0}};

#define ANYWHERE NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF

ngx_command_t directives[] = {
    {ngx_string("ratelimit_zone"), NGX_HTTP_MAIN_CONF | NGX_CONF_2MORE, on_zone,
     NGX_HTTP_MAIN_CONF_OFFSET, 0, NULL},
    {ngx_string("ratelimit_rules"), NGX_HTTP_MAIN_CONF | NGX_CONF_TAKE123, on_rules,
     NGX_HTTP_MAIN_CONF_OFFSET, 0, NULL},
    {ngx_string("ratelimit_redis"), NGX_HTTP_MAIN_CONF | NGX_CONF_1MORE, on_redis,
     NGX_HTTP_MAIN_CONF_OFFSET, 0, NULL},
    {ngx_string("ratelimit"), ANYWHERE | NGX_CONF_1MORE, on_place, NGX_HTTP_LOC_CONF_OFFSET, 0,
     NULL},
    {ngx_string("ratelimit_status"), ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_num_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(place_conf, status), &status_bounds},
    {ngx_string("ratelimit_dry_run"), ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(place_conf, dry_run), NULL},
    {ngx_string("ratelimit_log_level"), ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_enum_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(place_conf, log_level), log_levels},
    {ngx_string("ratelimit_fields"), ANYWHERE | NGX_CONF_1MORE, ngx_conf_set_bitmask_slot,
     NGX_HTTP_LOC_CONF_OFFSET, offsetof(place_conf, fields), field_words},
    {ngx_string("ratelimit_metrics"), NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS, on_metrics_place,
     NGX_HTTP_LOC_CONF_OFFSET, 0, NULL},
    ngx_null_command};

void *create_main_conf(ngx_conf_t *cf)
{
    main_conf *conf = ngx_pcalloc(cf->pool, sizeof *conf);
    if (!conf || ngx_array_init(&conf->zones, cf->pool, 4, sizeof(zone *)) != NGX_OK ||
        ngx_array_init(&conf->rule_names, cf->pool, 4, sizeof(ngx_str_t)) != NGX_OK)
        return NULL;
    return conf;
}

void *create_place_conf(ngx_conf_t *cf)
{
    place_conf *conf = ngx_pcalloc(cf->pool, sizeof *conf);
    if (conf) {
        conf->status = conf->log_level = NGX_CONF_UNSET_UINT;
        conf->dry_run = NGX_CONF_UNSET;
    }
    return conf;
}

char *merge_place_conf(ngx_conf_t *cf, void *parent, void *child)
{
    place_conf *above = parent, *conf = child;
    if (!conf->places)
        conf->places = above->places;
    ngx_conf_merge_uint_value(conf->status, above->status, NGX_HTTP_TOO_MANY_REQUESTS);
    ngx_conf_merge_uint_value(conf->log_level, above->log_level, NGX_LOG_ERR);
    ngx_conf_merge_value(conf->dry_run, above->dry_run, 0);
    ngx_conf_merge_bitmask_value(conf->fields, above->fields,
                                 NGX_CONF_BITMASK_SET | FIELDS_RETRY_AFTER | FIELDS_DRAFT);
    conf->delay_log_level = conf->log_level == NGX_LOG_INFO ? NGX_LOG_INFO : conf->log_level + 1;
    if (conf->fields & FIELDS_OFF && conf->fields & (FIELDS_X | FIELDS_RETRY_AFTER | FIELDS_DRAFT))
        return conf_error(cf, "ratelimit_fields: \"off\" excludes the other words");
    return NGX_CONF_OK;
}

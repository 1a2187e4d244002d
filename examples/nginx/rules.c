/* The file of rules: named limits that are replaced without a reload of nginx.

   The rules are in shared memory, so all workers change from one text to the next at the same
   moment. Each worker looks at the file's stamp from time to time; the first one that finds another
   stamp reads the file. A text is tried in memory of its own first: if it has a fault, or lacks a
   rule that the configuration names, the error log says so and the rules stay as they are.

   Replace the file by renaming another one over it. A file that is written in place may be read
   when half of it is written. */
#include "module.h"

enum { MOST_BYTES = 16 * 1024 * 1024, FAULT_BYTES = 512 };

static bool same_stamp(const file_stamp *a, const file_stamp *b)
{
    return ngx_memcmp(a, b, sizeof *a) == 0;
}

static file_stamp stamp_of(const ngx_file_info_t *info)
{
    file_stamp stamp;
    stamp.seconds = (uint64_t)info->st_mtim.tv_sec;
    stamp.ns = (uint64_t)info->st_mtim.tv_nsec;
    stamp.bytes = (uint64_t)info->st_size;
    stamp.number = (uint64_t)info->st_ino;
    return stamp;
}

/* Reads the file into memory that the caller frees with ngx_free. An error text, or NULL. */
static const char *read_file(const main_conf *conf, ngx_str_t *text, file_stamp *stamp)
{
    ngx_fd_t fd = ngx_open_file(conf->rules_file.data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);
    const char *what = "cannot be read";
    ngx_file_info_t info;
    ngx_memzero(stamp, sizeof *stamp);
    text->data = NULL;
    if (fd == NGX_INVALID_FILE)
        return "cannot be opened";
    if (ngx_fd_info(fd, &info) == NGX_FILE_ERROR || !S_ISREG(info.st_mode)) {
        what = "is no file";
    } else if (info.st_size > MOST_BYTES) {
        what = "is larger than 16 MB";
    } else {
        text->len = (size_t)info.st_size;
        text->data = ngx_alloc(text->len + 1, ngx_cycle->log);
        *stamp = stamp_of(&info);
        if (text->data && ngx_read_fd(fd, text->data, text->len + 1) == (ssize_t)text->len)
            what = NULL;
    }
    (void)ngx_close_file(fd);
    if (what && text->data) {
        ngx_free(text->data);
        text->data = NULL;
    }
    return what;
}

/* Puts the place and the kind of a fault into out, a text. */
static void say_fault(u_char out[FAULT_BYTES], ratelimit_status status,
                      const ratelimit_fault *fault, ngx_uint_t most)
{
    u_char *end;
    if (status == RATELIMIT_NO_MEMORY)
        end = ngx_snprintf(out, FAULT_BYTES - 1, "line %uz: more than most=%ui rules", fault->line,
                           most);
    else
        end = ngx_snprintf(out, FAULT_BYTES - 1, "line %uz, column %uz: %s", fault->line,
                           fault->column, fault->what);
    *end = '\0';
}

/* Whether the text can be used: true, or false and why. */
static bool is_good(const main_conf *conf, const ngx_str_t *text, u_char why[FAULT_BYTES])
{
    const size_t bytes = RATELIMIT_RULES_BYTES(conf->rules_most);
    const ngx_str_t *names = conf->rule_names.elts;
    ratelimit_rules *rules;
    ratelimit_fault fault;
    ratelimit_rule rule;
    ratelimit_status status;
    ngx_str_t none = ngx_null_string;
    ngx_uint_t i;
    void *memory = ngx_alloc(bytes, ngx_cycle->log);
    bool good = false;
    *ngx_snprintf(why, FAULT_BYTES - 1, "no memory") = '\0';
    if (!memory || ratelimit_rules_init(&rules, memory, bytes, conf->rules_most) != RATELIMIT_OK)
        goto end;
    status = ratelimit_rules_load(rules, (const char *)text->data, text->len, &fault);
    if (status != RATELIMIT_OK) {
        say_fault(why, status, &fault, conf->rules_most);
        goto end;
    }
    for (good = true, i = 0; good && i < conf->rule_names.nelts; i++) {
        good = rules_find_in(rules, &names[i], &none, &rule);
        if (!good)
            *ngx_snprintf(why, FAULT_BYTES - 1,
                          "there is no rule \"%V\", which the configuration names, and no default",
                          &names[i]) = '\0';
    }
end:
    ngx_free(memory);
    return good;
}

/* ---- when the configuration is read */

char *rules_read_conf(ngx_conf_t *cf, main_conf *conf)
{
    static ngx_str_t name = ngx_string("ratelimit_rules");
    const size_t bytes = sizeof(rules_memory) + RATELIMIT_RULES_BYTES(conf->rules_most);
    u_char why[FAULT_BYTES];
    const char *fault;
    ngx_str_t text;
    bool good;
    if (!conf->rules_file.data)
        return conf->rules_needed
                   ? conf_error(cf, "a \"ratelimit\" names a rule: \"ratelimit_rules\" is missing")
                   : NGX_CONF_OK;
    fault = read_file(conf, &text, &conf->rules_stamp);
    if (fault)
        return conf_error(cf, "ratelimit_rules: \"%V\" %s", &conf->rules_file, fault);
    good = is_good(conf, &text, why);
    conf->rules_text.len = text.len;
    conf->rules_text.data = ngx_pstrdup(cf->pool, &text);
    ngx_free(text.data);
    if (!good)
        return conf_error(cf, "ratelimit_rules: \"%V\", %s", &conf->rules_file, why);
    /* nginx's own head, and its record of each page. */
    conf->rules_shm = ngx_shared_memory_add(cf, &name, bytes + bytes / 64 + 16 * ngx_pagesize,
                                            &ngx_http_ratelimit_module);
    if (!conf->rules_text.data || !conf->rules_shm)
        return NGX_CONF_ERROR;
    conf->rules_shm->init = rules_init;
    conf->rules_shm->data = conf;
    return NGX_CONF_OK;
}

ngx_int_t rules_init(ngx_shm_zone_t *shm, void *before)
{
    main_conf *conf = shm->data, *old = before;
    const size_t bytes = RATELIMIT_RULES_BYTES(conf->rules_most);
    ngx_slab_pool_t *pool = (ngx_slab_pool_t *)(void *)shm->shm.addr;
    rules_memory *memory = old ? old->rules : NULL;
    if (old && memory->version != MEMORY_VERSION) {
        ngx_log_error(NGX_LOG_EMERG, shm->shm.log, 0,
                      "the rules in memory are of another version of the module: restart nginx");
        return NGX_ERROR;
    }
    if (!old) {
        memory = ngx_slab_calloc(pool, sizeof *memory + bytes);
        if (!memory || ratelimit_rules_init(&memory->rules, memory->memory, bytes,
                                            conf->rules_most) != RATELIMIT_OK)
            return NGX_ERROR;
        memory->version = MEMORY_VERSION;
        pool->data = memory;
    }
    conf->rules = memory;
    if (ratelimit_rules_load(memory->rules, (const char *)conf->rules_text.data,
                             conf->rules_text.len, NULL) != RATELIMIT_OK) {
        ngx_log_error(NGX_LOG_EMERG, shm->shm.log, 0, "ratelimit_rules: \"%V\" cannot be loaded",
                      &conf->rules_file);
        return NGX_ERROR;
    }
    memory->stamp = conf->rules_stamp;
    conf->rules_generation = ++memory->generation;
    return NGX_OK;
}

/* ---- while nginx runs */

/* The file changed, or is gone. The caller holds the lock of the shared memory. */
static void replace(main_conf *conf, ngx_log_t *log)
{
    rules_memory *memory = conf->rules;
    u_char why[FAULT_BYTES];
    ngx_str_t text;
    file_stamp stamp;
    const char *fault = read_file(conf, &text, &stamp);
    if (same_stamp(&stamp, &memory->stamp)) { /* another worker was faster; or it is still gone */
        if (text.data)
            ngx_free(text.data);
        return;
    }
    if (fault) {
        ngx_log_error(NGX_LOG_ERR, log, 0, "ratelimit_rules: \"%V\" %s; the rules stay",
                      &conf->rules_file, fault);
    } else if (!is_good(conf, &text, why)) {
        ngx_log_error(NGX_LOG_ERR, log, 0, "ratelimit_rules: \"%V\", %s; the rules stay",
                      &conf->rules_file, why);
    } else if (ratelimit_rules_load(memory->rules, (const char *)text.data, text.len, NULL) ==
               RATELIMIT_OK) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0, "ratelimit_rules: \"%V\" is loaded",
                      &conf->rules_file);
    } else { /* stopped for too long: once more */
        ngx_memzero(&stamp, sizeof stamp);
    }
    memory->stamp = stamp; /* at the end: if this worker is killed, another one does it again */
    if (text.data)
        ngx_free(text.data);
}

/* Whether the rules are those of another configuration, so that this worker leaves them alone.
   Usually a new one was loaded, and this worker is about to end. If it goes on for seconds, nginx
   has given that configuration up after all: then this worker's file counts again. */
static bool is_stale(main_conf *conf)
{
    const ngx_msec_t patience = 5000;
    if (conf->rules->generation == conf->rules_generation)
        conf->rules_stale = 0;
    else
        conf->rules_stale += conf->rules_check;
    return conf->rules_stale != 0 && conf->rules_stale < patience;
}

static void on_timer(ngx_event_t *event)
{
    main_conf *conf = event->data;
    ngx_slab_pool_t *pool = (ngx_slab_pool_t *)(void *)conf->rules_shm->shm.addr;
    ngx_file_info_t info;
    file_stamp stamp;
    if (ngx_exiting)
        return;
    ngx_memzero(&stamp, sizeof stamp);
    if (ngx_file_info(conf->rules_file.data, &info) != NGX_FILE_ERROR)
        stamp = stamp_of(&info);
    if (!is_stale(conf) && !same_stamp(&stamp, &conf->rules->stamp) &&
        ngx_shmtx_trylock(&pool->mutex)) {
        replace(conf, event->log);
        conf->rules->generation = conf->rules_generation;
        ngx_shmtx_unlock(&pool->mutex);
    }
    ngx_add_timer(event, conf->rules_check);
}

/* In each worker, when it starts. */
ngx_int_t rules_watch(ngx_cycle_t *cycle, main_conf *conf)
{
    conf->rules_timer.handler = on_timer;
    conf->rules_timer.data = conf;
    conf->rules_timer.log = cycle->log;
    conf->rules_timer.cancelable = 1; /* nginx does not wait for it when it ends */
    ngx_add_timer(&conf->rules_timer, conf->rules_check);
    return NGX_OK;
}

/* ---- look-up */

static bool is_text(const ngx_str_t *key)
{
    size_t i;
    for (i = 0; i < key->len; i++)
        if (key->data[i] <= ' ' || key->data[i] == 127)
            return false;
    return key->len != 0;
}

/* The rule for a name and a key: name|key, if the key can be in a name; then name; then what
   precedes its first "|"; then default. */
bool rules_find_in(ratelimit_rules *rules, const ngx_str_t *name, const ngx_str_t *key,
                   ratelimit_rule *out)
{
    char text[RATELIMIT_RULE_NAME_BYTES];
    u_char *end;
    if (!is_text(name) || name->len >= sizeof text)
        return ratelimit_rules_find(rules, "default", out);
    end = ngx_cpymem(text, name->data, name->len);
    if (is_text(key) && name->len + 1 + key->len < sizeof text) {
        *end = '|';
        *(u_char *)ngx_cpymem(end + 1, key->data, key->len) = '\0';
        if (ratelimit_rules_find(rules, text, out) &&
            ngx_strncmp(out->name, text, sizeof text) == 0)
            return true;
    }
    *end = '\0';
    return ratelimit_rules_find(rules, text, out);
}

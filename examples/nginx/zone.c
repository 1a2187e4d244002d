/* A zone in shared memory: the tallies and a table. The master makes it before it starts the first
   worker. nginx keeps the memory while zones of this name and size are configured, so the state
   outlives every reload, and every worker.

   Workers are killed, and may be killed in the middle of a decision. The table has no lock that
   nobody would take over, and the tallies have none at all but for the moment in which a new name
   comes up: then it is the one of nginx's zone, which the master frees if its holder dies. */
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "module.h"

/* Makes tallies and table in new memory. The table's seed is a random one of the system's. */
static ngx_int_t make(zone *z, ngx_slab_pool_t *pool, ngx_log_t *log)
{
    const size_t bytes = pool->pfree * ngx_pagesize;
    ratelimit_table_options options;
    ratelimit_status status = RATELIMIT_NO_MEMORY;
    zone_memory *memory = ngx_slab_alloc(pool, bytes);
    ngx_memzero(&options, sizeof options);
    options.when_full = RATELIMIT_INHERIT;
    if (memory) {
        ngx_memzero(memory, sizeof *memory);
        memory->version = MEMORY_VERSION;
        memory->table_bytes = bytes - sizeof *memory;
        memory->tallies = 1; /* the one without a name */
        pool->data = z->memory = memory;
        status = ratelimit_table_init(&z->table, memory + 1, memory->table_bytes, &options);
    }
    if (status == RATELIMIT_OK)
        return NGX_OK;
    ngx_log_error(NGX_LOG_EMERG, log, 0, "zone \"%V\": %s", &z->name,
                  ratelimit_status_text(status));
    return NGX_ERROR;
}

ngx_int_t zone_init(ngx_shm_zone_t *shm, void *before)
{
    zone *z = shm->data, *old = before;
    ngx_slab_pool_t *pool = (ngx_slab_pool_t *)(void *)shm->shm.addr;
    if (!old)
        return make(z, pool, shm->shm.log);
    z->memory = old->memory;
    if (z->memory->version == MEMORY_VERSION &&
        ratelimit_table_attach(&z->table, z->memory + 1, z->memory->table_bytes) == RATELIMIT_OK)
        return NGX_OK;
    ngx_log_error(NGX_LOG_EMERG, shm->shm.log, 0,
                  "zone \"%V\" was made by another version of the module: restart nginx, or give "
                  "the zone another name",
                  &z->name);
    return NGX_ERROR;
}

/* The tally of a name, or a free one at the end. Names are only ever added. */
static tally *find(zone_memory *m, const char *name)
{
    ngx_atomic_uint_t i;
    for (i = 0; i < m->tallies; i++)
        if (ngx_strncmp(m->tally[i].name, name, RATELIMIT_RULE_NAME_BYTES) == 0)
            return &m->tally[i];
    return NULL;
}

/* name: a rule's, or "" for the zone's own limit. If there are too many, the last one counts for
   all of them. */
void zone_count(zone *z, const char *name, ngx_uint_t what)
{
    ngx_slab_pool_t *pool = (ngx_slab_pool_t *)(void *)z->shm->shm.addr;
    zone_memory *m = z->memory;
    tally *t = find(m, name);
    if (!t) {
        ngx_shmtx_lock(&pool->mutex);
        t = find(m, name);
        if (!t) {
            t = &m->tally[m->tallies < MAX_TALLIES ? m->tallies : MAX_TALLIES - 1];
            if (m->tallies < MAX_TALLIES) {
                (void)ngx_snprintf((u_char *)t->name, sizeof t->name - 1, "%s",
                                   m->tallies + 1 < MAX_TALLIES ? name : "(others)");
                ngx_memory_barrier();
                m->tallies++;
            }
        }
        ngx_shmtx_unlock(&pool->mutex);
    }
    (void)ngx_atomic_fetch_add(&t->count[what], 1);
}

/* A window is what nobody can reserve from. */
bool is_window(const ratelimit_limit *limit)
{
    ratelimit_bucket bucket = {0, 0};
    ratelimit_request req = RATELIMIT_REQUEST(NULL, 0, limit, 1);
    ratelimit_result res;
    req.op = RATELIMIT_RESERVE;
    (void)ratelimit_bucket_decide(&bucket, &req, 0, &res);
    return res.status == RATELIMIT_UNSUPPORTED;
}

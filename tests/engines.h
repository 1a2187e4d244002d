/* engines.h - everything in ratelimit.h that decides, behind one face, so that one test can ask all
 * of them.
 *
 *     bucket, shared   a ratelimit_bucket per key and scope, plain and as threads share it
 *     table            one table for all keys, and a second one that is asked by hash
 *     limiter          ratelimit_take over a table store, its clock set to the time of the request
 *     cas              the compare-and-swap store over a map whose every third swap fails
 *     cas, expiring    the same, where a record is gone the moment its time to live is over
 */
#ifndef ENGINES_H
#define ENGINES_H

#include "ratelimit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct engine {
    const char *name;
    void *self;
    void (*reset)(void *self); /* forget all keys */
    void (*decide)(void *self, const ratelimit_request *req, uint64_t now_ns,
                   ratelimit_result *res);
    /* False if this engine can't be asked this at this time: the case is skipped and counted. NULL:
     * it can do all. */
    bool (*can)(void *self, const ratelimit_request *req, uint64_t now_ns);
    bool forward_only; /* asked only where time never goes back */
} engine;

#define ENGINE_KEYS        64
#define ENGINE_KEY_BYTES   48
#define ENGINE_SCOPE_BYTES 4

/* ---- a map from keys to a few bytes, searched from the front --------------------------------- */

typedef struct engine_entry {
    unsigned char key[ENGINE_KEY_BYTES];
    size_t key_len;
    bool live;
    uint64_t stored_at_ns, ttl_ns;
    unsigned char record[RATELIMIT_RECORD_BYTES];
    ratelimit_bucket bucket;
} engine_entry;

typedef struct engine_map {
    engine_entry entry[ENGINE_KEYS];
    size_t count;
    bool expires;
    unsigned swaps;
    uint64_t now_ns;
    unsigned char asked[ENGINE_KEY_BYTES]; /* the key that the cas store has to pass */
    size_t asked_len;
    ratelimit_cas cas;
    ratelimit_store store;
} engine_map;

/* The entry of key, made if there is none. */
static inline engine_entry *engine_find(engine_map *map, const void *key, size_t key_len)
{
    size_t i;
    engine_entry *entry;
    for (i = 0; i < map->count; i++)
        if (map->entry[i].key_len == key_len && memcmp(map->entry[i].key, key, key_len) == 0)
            return &map->entry[i];
    if (map->count == ENGINE_KEYS || key_len > ENGINE_KEY_BYTES) {
        fprintf(stderr, "engines: too many keys, or a long one\n");
        abort();
    }
    entry = &map->entry[map->count++];
    memset(entry, 0, sizeof *entry);
    memcpy(entry->key, key, key_len);
    entry->key_len = key_len;
    return entry;
}

/* What has one bucket: the bytes of the key and then the scope, least byte first, into key. Returns
 * the length. */
static inline size_t engine_scoped(const ratelimit_request *req,
                                   unsigned char key[ENGINE_KEY_BYTES])
{
    uint32_t scope = req->limit ? req->limit->scope : 0;
    size_t i;
    if (req->key_len > ENGINE_KEY_BYTES - ENGINE_SCOPE_BYTES) {
        fprintf(stderr, "engines: a long key\n");
        abort();
    }
    memcpy(key, req->key, req->key_len);
    for (i = 0; i < ENGINE_SCOPE_BYTES; i++)
        key[req->key_len + i] = (unsigned char)(scope >> (8 * i));
    return req->key_len + ENGINE_SCOPE_BYTES;
}

static inline engine_entry *engine_find_scoped(engine_map *map, const ratelimit_request *req)
{
    unsigned char key[ENGINE_KEY_BYTES];
    size_t key_len = engine_scoped(req, key);
    return engine_find(map, key, key_len);
}

static inline void engine_map_reset(void *self)
{
    engine_map *map = (engine_map *)self;
    map->count = 0;
    map->swaps = 0;
}

/* ---- buckets --------------------------------------------------------------------------------- */

static inline void engine_bucket_decide(void *self, const ratelimit_request *req, uint64_t now_ns,
                                        ratelimit_result *res)
{
    engine_entry *entry = engine_find_scoped((engine_map *)self, req);
    ratelimit_bucket copy = entry->bucket;
    if (req->op != RATELIMIT_TAKE) {
        ratelimit_bucket_decide(&entry->bucket, req, now_ns, res);
        return;
    }
    /* takes have ways of their own, with and without a result: all must come to the same */
    ratelimit_bucket_take(&entry->bucket, req->limit, req->n, now_ns, res);
    if (ratelimit_bucket_take(&copy, req->limit, req->n, now_ns, NULL) != res->allowed ||
        memcmp(&copy, &entry->bucket, sizeof copy) != 0)
        res->status = (ratelimit_status)99;
}

/* Where threads cannot share a bucket, there is nothing to try but the plain one. */
#if !defined(RATELIMIT_PRIV_SHARED)
#  define ratelimit_bucket_take_shared   ratelimit_bucket_take
#  define ratelimit_bucket_decide_shared ratelimit_bucket_decide
#endif

static inline void engine_shared_decide(void *self, const ratelimit_request *req, uint64_t now_ns,
                                        ratelimit_result *res)
{
    engine_entry *entry = engine_find_scoped((engine_map *)self, req);
    if (req->op == RATELIMIT_TAKE)
        ratelimit_bucket_take_shared(&entry->bucket, req->limit, req->n, now_ns, res);
    else
        ratelimit_bucket_decide_shared(&entry->bucket, req, now_ns, res);
}

/* ---- table and limiter ----------------------------------------------------------------------- */

typedef struct engine_table {
    unsigned char memory[2][RATELIMIT_TABLE_BYTES(1000)];
    ratelimit_table *table, *by_hash;
    ratelimit_limiter limiter;
    uint64_t now_ns;
} engine_table;

static inline uint64_t engine_table_clock(void *self)
{
    return ((engine_table *)self)->now_ns;
}

static inline void engine_table_reset(void *self)
{
    engine_table *t = (engine_table *)self;
    ratelimit_table_options options;
    memset(&options, 0, sizeof options);
    memset(&t->limiter, 0, sizeof t->limiter);
    options.seed[0] = 1;
    options.seed[1] = 2;
    if (ratelimit_table_init(&t->table, t->memory[0], sizeof t->memory[0], &options) !=
            RATELIMIT_OK ||
        ratelimit_table_init(&t->by_hash, t->memory[1], sizeof t->memory[1], &options) !=
            RATELIMIT_OK ||
        ratelimit_init(&t->limiter, ratelimit_table_store(t->table, engine_table_clock, t)) !=
            RATELIMIT_OK) {
        fprintf(stderr, "engines: no table\n");
        abort();
    }
}

static inline bool engine_same(const ratelimit_result *a, const ratelimit_result *b)
{
    return a->allowed == b->allowed && a->status == b->status && a->burst == b->burst &&
           a->remaining == b->remaining && a->taken == b->taken &&
           a->retry_after_ns == b->retry_after_ns && a->reset_after_ns == b->reset_after_ns &&
           a->wait_ns == b->wait_ns;
}

static inline void engine_table_decide(void *self, const ratelimit_request *req, uint64_t now_ns,
                                       ratelimit_result *res)
{
    ratelimit_table *t = ((engine_table *)self)->table, *u = ((engine_table *)self)->by_hash;
    ratelimit_result other;
    memset(&other, 0xA5, sizeof other);
    if (req->op == RATELIMIT_TAKE) {
        uint64_t hash = ratelimit_table_hash(u, req->key, req->key_len);
        ratelimit_table_take(t, req->key, req->key_len, req->limit, req->n, now_ns, res);
        ratelimit_table_take_hash(u, hash, req->limit, req->n, now_ns, &other);
    } else {
        ratelimit_table_decide(t, req, res, 1, RATELIMIT_EACH, now_ns);
        ratelimit_table_decide(u, req, &other, 1, RATELIMIT_EACH, now_ns);
    }
    if (!engine_same(res, &other))
        res->status = (ratelimit_status)99;
}

static inline void engine_limiter_decide(void *self, const ratelimit_request *req, uint64_t now_ns,
                                         ratelimit_result *res)
{
    engine_table *t = (engine_table *)self;
    t->now_ns = now_ns;
    ratelimit_take(&t->limiter, req, res);
}

/* ---- compare-and-swap store ------------------------------------------------------------------ */

static inline uint64_t engine_cas_clock(void *self)
{
    return ((engine_map *)self)->now_ns;
}

static inline bool engine_cas_live(const engine_map *map, const engine_entry *entry)
{
    return entry->live && !(map->expires && map->now_ns - entry->stored_at_ns >= entry->ttl_ns);
}

/* False if the cas store passed anything but the key and the scope. */
static inline bool engine_cas_asked(const engine_map *map, const void *key, size_t key_len)
{
    return key_len == map->asked_len && memcmp(key, map->asked, key_len) == 0;
}

static inline int engine_cas_load(void *self, const void *key, size_t key_len,
                                  unsigned char *record)
{
    engine_map *map = (engine_map *)self;
    const engine_entry *entry;
    if (!engine_cas_asked(map, key, key_len))
        return -1;
    entry = engine_find(map, key, key_len);
    if (!engine_cas_live(map, entry))
        return 0;
    memcpy(record, entry->record, RATELIMIT_RECORD_BYTES);
    return 1;
}

/* True if record is of a bucket that is full for good. */
static inline bool engine_cas_full(const unsigned char *record)
{
    static const unsigned char none[8];
    return memcmp(record + 8, none, sizeof none) == 0;
}

static inline int engine_cas_swap(void *self, const void *key, size_t key_len,
                                  const unsigned char *old_or_null, const unsigned char *record,
                                  uint64_t ttl_ns)
{
    engine_map *map = (engine_map *)self;
    engine_entry *entry;
    bool live;
    if (!engine_cas_asked(map, key, key_len))
        return -1;
    entry = engine_find(map, key, key_len);
    live = engine_cas_live(map, entry);
    if (++map->swaps % 3 == 0)
        return 0;
    if (live != (old_or_null != NULL))
        return 0;
    if (live && memcmp(entry->record, old_or_null, RATELIMIT_RECORD_BYTES) != 0)
        return 0;
    memcpy(entry->record, record, RATELIMIT_RECORD_BYTES);
    entry->live = map->expires ? ttl_ns != 0 : !engine_cas_full(record);
    entry->stored_at_ns = map->now_ns;
    entry->ttl_ns = ttl_ns;
    return 1;
}

static inline void engine_cas_decide(void *self, const ratelimit_request *req, uint64_t now_ns,
                                     ratelimit_result *res)
{
    engine_map *map = (engine_map *)self;
    map->now_ns = now_ns;
    map->asked_len = engine_scoped(req, map->asked);
    map->store.decide(&map->store, req, res, 1, RATELIMIT_EACH);
}

/* ---- all of them ----------------------------------------------------------------------------- */

#define ENGINES 6

static inline engine engine_of_map(const char *name, bool expires,
                                   void (*decide)(void *self, const ratelimit_request *req,
                                                  uint64_t now_ns, ratelimit_result *res))
{
    engine_map *map = (engine_map *)calloc(1, sizeof *map);
    engine e;
    memset(&e, 0, sizeof e);
    if (map == NULL)
        abort();
    map->expires = expires;
    map->cas.self = map;
    map->cas.load = engine_cas_load;
    map->cas.swap = engine_cas_swap;
    map->cas.clock = engine_cas_clock;
    map->cas.clock_self = map;
    map->store = ratelimit_cas_store(&map->cas);
    e.name = name;
    e.self = map;
    e.reset = engine_map_reset;
    e.decide = decide;
    e.forward_only = expires;
    return e;
}

static inline engine engine_of_table(const char *name,
                                     void (*decide)(void *self, const ratelimit_request *req,
                                                    uint64_t now_ns, ratelimit_result *res))
{
    engine_table *table = (engine_table *)calloc(1, sizeof *table);
    engine e;
    memset(&e, 0, sizeof e);
    if (table == NULL)
        abort();
    engine_table_reset(table);
    e.name = name;
    e.self = table;
    e.reset = engine_table_reset;
    e.decide = decide;
    return e;
}

static inline void engines_open(engine out[ENGINES])
{
    out[0] = engine_of_map("bucket", false, engine_bucket_decide);
    out[1] = engine_of_map("shared", false, engine_shared_decide);
    out[2] = engine_of_table("table", engine_table_decide);
    out[3] = engine_of_table("limiter", engine_limiter_decide);
    out[4] = engine_of_map("cas", false, engine_cas_decide);
    out[5] = engine_of_map("cas, expiring", true, engine_cas_decide);
}

static inline void engines_close(engine all[ENGINES])
{
    size_t i;
    for (i = 0; i < ENGINES; i++)
        free(all[i].self);
}

#endif

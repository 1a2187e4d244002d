/* What the files of the module share. The module's head comment is in module.c. */
#ifndef RATELIMIT_NGINX_MODULE_H
#define RATELIMIT_NGINX_MODULE_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

/* nginx loads modules such that they see each other's names: ours are hidden. */
#define RATELIMIT_API __attribute__((visibility("hidden"))) extern
#include "ratelimit.h"
#ifdef RATELIMIT_NGINX_REDIS /* says ./configure: hiredis is there */
#  define RATELIMIT_REDIS_ASYNC
#  include "ratelimit_redis.h"
#endif
#pragma GCC visibility push(hidden)

enum {
    MAX_PLACES = 16, /* limits on one request */
    MAX_TALLIES = 128
};

/* What became of a request, or of one limit of it. The numbers are indices of a tally; those of
   requests that Redis could not be asked for follow after them. */
typedef enum outcome {
    NOT_LIMITED = 0,
    PASSED,
    DELAYED,
    REJECTED,
    DELAYED_DRY_RUN,
    REJECTED_DRY_RUN,
    OUTCOMES
} outcome;

/* What the requests under one name have met: a rule, or the zone's own limit (""). */
typedef struct tally {
    char name[RATELIMIT_RULE_NAME_BYTES];
    ngx_atomic_t count[2 * OUTCOMES];
} tally;

/* Words of ratelimit_fields. nginx itself uses bit 0 of such a set. */
enum { FIELDS_OFF = 2, FIELDS_X = 4, FIELDS_RETRY_AFTER = 8, FIELDS_DRAFT = 16 };

/* ---- configuration: made by directives.c, never changed later */

/* A zone as it is in shared memory: it outlives the configuration that made it. */
typedef struct zone_memory {
    size_t version;       /* of the module that made it */
    ngx_atomic_t tallies; /* how many are in use */
    tally tally[MAX_TALLIES];
    size_t table_bytes; /* the table is what follows */
} zone_memory;

/* One for each layout of zone_memory and rules_memory. */
enum { MEMORY_VERSION = RATELIMIT_VERSION * 100 + 2 };

typedef enum zone_kind {
    ZONE_OF_RULES, /* each place names a rule */
    ZONE_OF_RATE,  /* rate=10r/s: bursts and delays as limit_req has them, by place */
    ZONE_OF_LIMIT  /* "limit=10/s burst 20": a bucket that begins with 20 tokens */
} zone_kind;

typedef struct zone {
    ngx_str_t name;
    size_t bytes;
    ngx_http_complex_value_t key;
    zone_kind kind;
    ratelimit_limit limit;
    ngx_flag_t address; /* the key is one: only the first bits4 or bits6 of it count */
    unsigned bits4, bits6;
    ngx_flag_t in_redis; /* then the table is for fail=local, and the tallies as ever */
    ngx_shm_zone_t *shm;
    zone_memory *memory;
    ratelimit_table *table;
} zone;

/* A line `ratelimit zone=...` of a configuration. */
typedef struct place {
    zone *zone;
    ngx_http_complex_value_t *key, *rule, *cost, *charge; /* NULL: not given */
    ratelimit_limit told; /* what clients are told, if the zone has a limit of its own */
    uint64_t max_wait_ns; /* how far ahead a request may reserve */
    uint64_t free_ns;     /* of that, how much it need not wait for */
} place;

typedef struct file_stamp { /* tells that a file was replaced */
    uint64_t seconds, ns, bytes, number;
} file_stamp;

typedef struct rules_memory {
    size_t version;
    size_t generation; /* of the configuration whose file this is */
    file_stamp stamp;  /* of the file that was last looked at, whether it was good or bad */
    ratelimit_rules *rules;
    unsigned char memory[1];
} rules_memory;

typedef struct redis redis; /* see redis.c */

typedef struct main_conf {
    ngx_array_t zones;      /* of zone * */
    ngx_array_t rule_names; /* of ngx_str_t: rules that places name without a variable */
    ngx_flag_t rules_needed;
    ngx_str_t rules_file; /* "": none */
    ngx_uint_t rules_most;
    ngx_msec_t rules_check;
    ngx_str_t rules_text; /* as it was when the configuration was read */
    file_stamp rules_stamp;
    ngx_shm_zone_t *rules_shm;
    rules_memory *rules;
    size_t rules_generation;
    ngx_msec_t rules_stale; /* how long the rules have been another configuration's, ms */
    ngx_event_t rules_timer;
    redis *redis; /* NULL: none */
} main_conf;

typedef struct place_conf {
    ngx_array_t *places; /* of place; NULL: none */
    ngx_uint_t status, log_level, delay_log_level, fields;
    ngx_flag_t dry_run;
} place_conf;

/* ---- a request under way */

typedef struct asked asked; /* see redis.c */

typedef struct decision {
    outcome outcome; /* of the request; NOT_LIMITED: not decided yet */
    ngx_http_request_t *request;
    asked *asked;   /* Redis, whose answer is not here yet; NULL: nothing */
    unsigned turns; /* how often Redis was asked */
    bool failed;    /* Redis could not be asked */
    size_t count;
    size_t binding; /* the limit that counts most */
    uint64_t delay_ns;
    const place **place; /* count of each: */
    ratelimit_request *req;
    ratelimit_result *res;
    ratelimit_rule *rule; /* name and limit as clients are told */
} decision;

extern ngx_module_t ngx_http_ratelimit_module;

/* directives.c */
extern ngx_command_t directives[];
char *conf_error(ngx_conf_t *cf, const char *format, ...);
bool is_option(const ngx_str_t *word, const char *name, ngx_str_t *value);
ngx_int_t number(const ngx_str_t *text, ngx_int_t least, ngx_int_t most);
void *create_main_conf(ngx_conf_t *cf);
void *create_place_conf(ngx_conf_t *cf);
char *merge_place_conf(ngx_conf_t *cf, void *parent, void *child);

/* zone.c */
ngx_int_t zone_init(ngx_shm_zone_t *shm, void *before);
void zone_count(zone *z, const char *name, ngx_uint_t what);
bool is_window(const ratelimit_limit *limit);

/* rules.c */
char *rules_read_conf(ngx_conf_t *cf, main_conf *conf);
ngx_int_t rules_init(ngx_shm_zone_t *shm, void *before);
ngx_int_t rules_watch(ngx_cycle_t *cycle, main_conf *conf);
bool rules_find_in(ratelimit_rules *rules, const ngx_str_t *name, const ngx_str_t *key,
                   ratelimit_rule *out);

/* decide.c */
void decide_in_memory(decision *d, uint64_t now_ns);
void conclude(decision *d, bool dry_run);

/* redis.c */
char *on_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *of);
ngx_int_t redis_open(ngx_cycle_t *cycle, redis *of);
void redis_close(redis *of);
ngx_int_t redis_decide(redis *of, decision *d);
void redis_forget(decision *d);
void redis_charge(redis *of, const ratelimit_request *req);

/* request.c */
ngx_int_t on_request(ngx_http_request_t *r);
ngx_int_t on_log(ngx_http_request_t *r);
decision *decision_of(ngx_http_request_t *r);

/* status.c */
ngx_int_t add_variables(ngx_conf_t *cf);
ngx_int_t on_metrics(ngx_http_request_t *r);
extern const ngx_str_t outcome_names[2 * OUTCOMES];

#pragma GCC visibility pop
#endif

/* ngx_http_ratelimit_module - what nginx's limit_req does and what it can't, with ratelimit.h

   Package: nginx nginx-dev libhiredis-dev redis-server curl wrk valgrind
   Build:   bash examples/nginx/build.sh build/nginx

   Then in nginx.conf (README.md beside this file has all directives):

       load_module /path/to/build/nginx/ngx_http_ratelimit_module.so;
       http {
           ratelimit_zone $binary_remote_addr zone=clients:10m rate=10r/s ipv6=64;
           server {
               location / {
                   ratelimit zone=clients burst=20 nodelay;
               }
           }
       }

   THE WAY OF A REQUEST

   1. When nginx reads its configuration, directives.c makes a `zone` of each ratelimit_zone and a
      `place` of each ratelimit. Both stay as they are until the next configuration. The master
      makes the shared memory of each zone (zone.c), or goes on with what is there: in it are a
      table of ratelimit.h and counters. Workers are children of the master and see the same memory
      at the same addresses.

   2. nginx calls on_request (request.c) in its phase "preaccess", where limit_req is, too. For each
      place of the location it evaluates the key and the cost, finds the limit (the zone's own, or a
      rule by name: rules.c), and writes a ratelimit_request. A place whose key is empty is left
      out. What is asked lies in a `decision`, in memory that lives as long as the request.

   3. decide.c has all of them decided at once, all or none, by ratelimit_table_decide, in the
      memory that the workers share. No worker waits for another one, so nothing blocks.

   4. The request passes: on_request returns NGX_DECLINED, and nginx goes on with the next phase.
      It is refused: on_request returns the status, and nginx answers with its page of that error.
      It has to wait: on_request sets the timer of nginx's event for writing and returns NGX_AGAIN.
      The worker serves others meanwhile. The tokens are reserved already, so when the timer ends
      nobody is asked again: on_wait_over goes on with the phases, where on_request is the first to
      be called once more, finds a decision, and returns NGX_DECLINED.

      Zones in Redis are asked by redis.c instead, also without blocking: while the answer is not
      here, the request waits in the same way.

   5. nginx writes the log: on_log charges what is only known now, such as $bytes_sent. The log's
      variables come from the decision (status.c).

   Only requests of clients are limited, and each of them once: neither its subrequests nor what
   becomes of it by an internal redirect.

   BURSTS AND DELAYS   In a zone with a rate they mean what they mean for limit_req: burst= counts
   the requests beyond the first, all but delay= of them wait. ratelimit.h has buckets that hold
   tokens, and reservations of tokens that come later. A place with rate r, burst b and delay d is a
   bucket of one token, in which a request may reserve up to b tokens ahead (that would take
   b / r), and need only wait for what goes beyond d / r. So all places of a zone share one bucket
   for each key, whatever their b and d: see set_rate in directives.c.

   A WORKER THAT DIES   Nothing that it held stays locked: the table takes over a lock whose holder
   is gone, and the master frees the lock of nginx's shared memory. What it had charged is charged.

   A FULL ZONE   A new key for which there is no place takes over the place of the key that owes
   least, with what that one owes (RATELIMIT_INHERIT). So nobody gets more by asking under made-up
   keys: neither the one who does, nor a known key that would have been forgotten. limit_req forgets
   the key seen longest ago.

   THE CLOCK   CLOCK_BOOTTIME, which all workers share. Delays end with the timers of nginx, which
   count ms.

   THE SEED   Each zone's hash has a random seed of its own, made by the master. */
#include "module.h"

static ngx_int_t add_handler(ngx_http_core_main_conf_t *core, ngx_http_phases phase,
                             ngx_http_handler_pt handler)
{
    ngx_http_handler_pt *entry = ngx_array_push(&core->phases[phase].handlers);
    if (!entry)
        return NGX_ERROR;
    *entry = handler;
    return NGX_OK;
}

/* The configuration is read: look at what only the whole of it can tell, and join the phases. */
static ngx_int_t on_configured(ngx_conf_t *cf)
{
    ngx_http_core_main_conf_t *core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    main_conf *conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_ratelimit_module);
    zone **zones = conf->zones.elts;
    ngx_uint_t i;
    if (rules_read_conf(cf, conf) != NGX_CONF_OK)
        return NGX_ERROR;
    for (i = 0; i < conf->zones.nelts; i++)
        if (zones[i]->in_redis && !conf->redis) {
            (void)conf_error(cf, "zone \"%V\" is in Redis: \"ratelimit_redis\" is missing",
                             &zones[i]->name);
            return NGX_ERROR;
        }
    if (add_handler(core, NGX_HTTP_PREACCESS_PHASE, on_request) != NGX_OK)
        return NGX_ERROR;
    return add_handler(core, NGX_HTTP_LOG_PHASE, on_log);
}

static ngx_int_t on_worker(ngx_cycle_t *cycle)
{
    main_conf *conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_ratelimit_module);
    if (!conf || ngx_process == NGX_PROCESS_HELPER)
        return NGX_OK;
    if (conf->rules && rules_watch(cycle, conf) != NGX_OK)
        return NGX_ERROR;
    return conf->redis ? redis_open(cycle, conf->redis) : NGX_OK;
}

static void on_worker_end(ngx_cycle_t *cycle)
{
    main_conf *conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_ratelimit_module);
    if (conf && conf->redis)
        redis_close(conf->redis);
}

static ngx_http_module_t module_functions = {
    add_variables,     /* before the configuration is read */
    on_configured,     /* after it */
    create_main_conf,  /* of http */
    NULL,              /* its defaults */
    NULL,              /* of servers */
    NULL,              /* inherited by them */
    create_place_conf, /* of locations, servers and http */
    merge_place_conf   /* inherited by them */
};

ngx_module_t ngx_http_ratelimit_module = {NGX_MODULE_V1,
                                          &module_functions,
                                          directives,
                                          NGX_HTTP_MODULE,
                                          NULL,          /* in the master */
                                          NULL,          /* when a configuration begins */
                                          on_worker,     /* when a worker begins */
                                          NULL,          /* threads */
                                          NULL,          /* threads */
                                          on_worker_end, /* when a worker ends */
                                          NULL,          /* when the master ends */
                                          NGX_MODULE_V1_PADDING};

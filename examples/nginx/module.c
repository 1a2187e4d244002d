/* ngx_http_ratelimit_module - what nginx's limit_req does and what it can't, with ratelimit.h

   Package: nginx nginx-dev
   Build:   bash examples/nginx/build.sh build/nginx

   TODO */
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
    if (rules_read_conf(cf, conf) != NGX_CONF_OK)
        return NGX_ERROR;
    if (add_handler(core, NGX_HTTP_PREACCESS_PHASE, on_request) != NGX_OK)
        return NGX_ERROR;
    return add_handler(core, NGX_HTTP_LOG_PHASE, on_log);
}

static ngx_int_t on_worker(ngx_cycle_t *cycle)
{
    main_conf *conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_ratelimit_module);
    return conf && conf->rules ? rules_watch(cycle, conf) : NGX_OK;
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
                                          NULL,      /* in the master */
                                          NULL,      /* when a configuration begins */
                                          on_worker, /* when a worker begins */
                                          NULL,      /* threads */
                                          NULL,      /* threads */
                                          NULL,      /* when a worker ends */
                                          NULL,      /* when the master ends */
                                          NGX_MODULE_V1_PADDING};

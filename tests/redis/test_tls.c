/* test_tls.c - ratelimit_redis.h over TLS. */
#define _POSIX_C_SOURCE 200809L
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_TLS
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"

#include "server.h"

static const ratelimit_limit hourly = RATELIMIT_LIMIT_SCOPE(1, RATELIMIT_HOUR, 100, 1);

static ratelimit_redis_options tls_options(const char *ca)
{
    ratelimit_redis_options options;
    memset(&options, 0, sizeof options);
    options.port = server_number("TLS_PORT");
    options.timeout_ms = options.connect_timeout_ms = 2000;
    options.cool_down_ms = 1;
    options.tls = true;
    options.tls_ca = server_file(ca);
    return options;
}

static void decisions_go_over_tls(void)
{
    ratelimit_redis_options options = tls_options("ca.crt");
    ratelimit_redis *r = server_open(&options);
    ratelimit_store store = ratelimit_redis_store(r);
    enum { MANY = 1000 };
    static ratelimit_request q[MANY];
    static ratelimit_result res[MANY];
    int i;
    server_flush();
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_OK);
    for (i = 0; i < 10; i++)
        CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 99 - i);
    for (i = 0; i < MANY; i++)
        q[i] = server_request("many", &hourly, RATELIMIT_TAKE, 1);
    store.decide(&store, q, res, MANY, RATELIMIT_EACH);
    for (i = 0; i < MANY; i++)
        CHECK_U64(res[i].allowed, i < 100);
    CHECK(server_do(server_port(), "CLIENT KILL TYPE normal SKIPME yes"));
    CHECK_U64(server_take(r, "k", &hourly, 1).remaining, 89);
    ratelimit_redis_close(r);
}

static void a_server_whose_certificate_nobody_trusts_is_refused(void)
{
    ratelimit_redis_options options = tls_options("other.crt");
    ratelimit_redis *r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "certificate is not trusted") != NULL);
    ratelimit_redis_close(r);
}

/* A trusted certificate of another server was as good as this one's. */
static void a_trusted_certificate_of_another_name_is_refused(void)
{
    static const struct {
        const char *host, *name;
        bool good;
    } cases[] = {{NULL, NULL, true},
                 {"127.0.0.1", NULL, true},
                 {"localhost", NULL, false}, /* the certificate has it as CN only */
                 {"localhost", "redis.test", true},
                 {"localhost", "127.0.0.1", true},
                 {NULL, "a.shard.test", true},
                 {NULL, "a.b.shard.test", false},
                 {NULL, "shard.test", false},
                 {NULL, "redis.test.evil", false},
                 {NULL, "127.0.0.2", false},
                 {NULL, "::1", false},
                 {"localhost", "*", true}};
    size_t i;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ratelimit_redis_options options = tls_options("ca.crt");
        ratelimit_redis *r;
        options.host = cases[i].host;
        options.tls_name = cases[i].name;
        r = server_open(&options);
        CHECK_U64(ratelimit_redis_ping(r), cases[i].good ? RATELIMIT_OK : RATELIMIT_STORE_FAILED);
        CHECK(cases[i].good || strstr(server_error(r), "of another name") != NULL);
        ratelimit_redis_close(r);
    }
}

static void a_name_of_any_server_does_not_make_a_certificate_trusted(void)
{
    ratelimit_redis_options options = tls_options("other.crt");
    ratelimit_redis *r;
    options.tls_name = "*";
    r = server_open(&options);
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_STORE_FAILED);
    ratelimit_redis_close(r);
    options.tls_ca = NULL; /* the system's do not know ours */
    r = server_open(&options);
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_STORE_FAILED);
    ratelimit_redis_close(r);
}

/* The server asks for a client certificate. */
static void a_certificate_of_ours_is_shown(void)
{
    ratelimit_redis_options options = tls_options("ca.crt");
    ratelimit_redis *r;
    CHECK(server_do(server_port(), "CONFIG SET tls-auth-clients yes"));
    r = server_open(&options);
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_STORE_FAILED);
    CHECK(strstr(server_error(r), "options.tls_cert") != NULL);
    ratelimit_redis_close(r);
    options.tls_cert = server_file("server.crt");
    options.tls_key = server_file("server.key");
    r = server_open(&options);
    CHECK_U64(ratelimit_redis_ping(r), RATELIMIT_OK);
    ratelimit_redis_close(r);
    CHECK(server_do(server_port(), "CONFIG SET tls-auth-clients no"));
}

static void a_port_without_tls_is_refused(void)
{
    ratelimit_redis_options options = tls_options("ca.crt");
    ratelimit_redis *r;
    options.port = server_port();
    options.timeout_ms = 300;
    r = server_open(&options);
    CHECK_U64(server_take(r, "k", &hourly, 1).status, RATELIMIT_STORE_FAILED);
    ratelimit_redis_close(r);
}

static void certificates_that_are_not_there_are_said_at_open(void)
{
    ratelimit_redis_options options = tls_options("nothing.crt");
    ratelimit_status status;
    CHECK(ratelimit_redis_open(&options, &status) == NULL);
    CHECK_U64(status, RATELIMIT_SYNTAX);
    options = tls_options("ca.crt");
    options.tls_cert = server_file("server.crt");
    CHECK(ratelimit_redis_open(&options, &status) == NULL);
    CHECK_U64(status, RATELIMIT_BAD_ARGUMENT);
    options.tls_key = server_file("nothing.key");
    CHECK(ratelimit_redis_open(&options, &status) == NULL);
    CHECK_U64(status, RATELIMIT_SYNTAX);
    options.tls_key = server_file("other.key"); /* of another certificate */
    CHECK(ratelimit_redis_open(&options, &status) == NULL);
    CHECK_U64(status, RATELIMIT_SYNTAX);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    RUN(decisions_go_over_tls);
    RUN(a_server_whose_certificate_nobody_trusts_is_refused);
    RUN(a_trusted_certificate_of_another_name_is_refused);
    RUN(a_name_of_any_server_does_not_make_a_certificate_trusted);
    RUN(a_certificate_of_ours_is_shown);
    RUN(a_port_without_tls_is_refused);
    RUN(certificates_that_are_not_there_are_said_at_open);
    return check_end();
}

/* server.cc - a gRPC server whose calls are limited by method and client

   What it shows: ratelimit_grpc.h in front of a service with unary and streaming methods, in
   process or on Redis. The service, limited.proto, knows nothing of limits. client.cc limits what
   it sends.

   Package: libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libhiredis-dev \
            redis-server
   Build:   sh examples/grpc/build.sh build/grpc

   Try it:  printf 'default 100/s\n/limited.Limited/Say 5/m\n' > rules
            build/grpc/server 127.0.0.1:50051 rules &
            build/grpc/client 127.0.0.1:50051 say 8

   usage: server ADDRESS:PORT RULES-FILE [--redis HOST:PORT] [--key METADATA] [--fail-closed] */
#define RATELIMIT_IMPLEMENTATION
#define RATELIMIT_REDIS_IMPLEMENTATION
#include "ratelimit_redis.h"
#include "ratelimit_grpc.h"

#include "limited.grpc.pb.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

namespace
{

/* Prints each method that runs, so that one can see which calls came through. */
class service : public limited::Limited::Service
{
  public:
    grpc::Status Say(grpc::ServerContext *, const limited::Text *in, limited::Text *out) override
    {
        ran("Say");
        out->set_text(in->text());
        return grpc::Status::OK;
    }

    grpc::Status Count(grpc::ServerContext *, const limited::Number *in,
                       grpc::ServerWriter<limited::Number> *out) override
    {
        limited::Number number;
        ran("Count");
        for (uint32_t i = 1; i <= in->number(); i++) {
            number.set_number(i);
            if (!out->Write(number))
                break;
        }
        return grpc::Status::OK;
    }

    grpc::Status Echo(grpc::ServerContext *,
                      grpc::ServerReaderWriter<limited::Text, limited::Text> *stream) override
    {
        limited::Text text;
        ran("Echo");
        while (stream->Read(&text) && stream->Write(text)) {
        }
        return grpc::Status::OK;
    }

  private:
    static void ran(const char *method)
    {
        std::printf("ran %s\n", method);
        std::fflush(stdout);
    }
};

struct settings {
    std::string listen, rules, redis, key;
    bool fail_closed = false;
};

[[noreturn]] void fail(int code, const std::string &what)
{
    std::fprintf(stderr, "server: %s\n", what.c_str());
    std::exit(code);
}

settings parse(int argc, char **argv)
{
    settings s;
    std::vector<std::string> plain;
    for (int i = 1; i < argc; i++) {
        std::string word = argv[i];
        if (word == "--fail-closed")
            s.fail_closed = true;
        else if ((word == "--redis" || word == "--key") && i + 1 < argc)
            (word == "--key" ? s.key : s.redis) = argv[++i];
        else if (word.compare(0, 2, "--"))
            plain.push_back(word);
        else
            fail(2, word + ": unknown, or its value is missing");
    }
    if (plain.size() != 2)
        fail(2, "usage: server ADDRESS:PORT RULES-FILE [--redis HOST:PORT] [--key METADATA] "
                "[--fail-closed]");
    s.listen = plain[0];
    s.rules = plain[1];
    return s;
}

ratelimit_rules *read_rules(const std::string &path)
{
    static unsigned char memory[RATELIMIT_RULES_BYTES(100)];
    ratelimit_rules *rules = nullptr;
    ratelimit_fault fault{};
    std::ostringstream text;
    std::ifstream file(path);
    if (!file || !(text << file.rdbuf()))
        fail(2, path + ": can't be read, or is empty");
    if (ratelimit_rules_init(&rules, memory, sizeof memory, 100) != RATELIMIT_OK)
        fail(1, "no memory for rules");
    ratelimit_status status =
        ratelimit_rules_load(rules, text.str().data(), text.str().size(), &fault);
    if (status != RATELIMIT_OK)
        fail(2, path + ":" + std::to_string(fault.line) + ":" + std::to_string(fault.column) +
                    ": " + (*fault.what ? fault.what : ratelimit_status_text(status)));
    return rules;
}

ratelimit_store open_store(const std::string &address)
{
    static unsigned char memory[RATELIMIT_TABLE_BYTES(100000)];
    ratelimit_table *table = nullptr;
    ratelimit_redis_options options{};
    ratelimit_status status = RATELIMIT_OK;
    if (address.empty()) {
        if (ratelimit_table_init(&table, memory, sizeof memory, nullptr) != RATELIMIT_OK)
            fail(1, "no memory for the table");
        return ratelimit_table_store(table, nullptr, nullptr);
    }
    size_t colon = address.rfind(':');
    std::string host = address.substr(0, colon);
    options.port = colon == std::string::npos ? 0 : std::atoi(address.c_str() + colon + 1);
    if (host.empty() || options.port < 1 || options.port > 65535)
        fail(2, "--redis " + address + ": HOST:PORT is wanted");
    options.host = host.c_str();
    ratelimit_redis *redis = ratelimit_redis_open(&options, &status);
    if (!redis)
        fail(1, "Redis at " + address + ": " + ratelimit_status_text(status));
    return ratelimit_redis_store(redis);
}

} // namespace

int main(int argc, char **argv)
{
    static ratelimit_limiter limiter;
    settings s = parse(argc, argv);
    sigset_t ends;
    int got;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr); /* before there are threads, which inherit it */

    limiter.rules = read_rules(s.rules);
    limiter.on_failure = s.fail_closed ? RATELIMIT_FAIL_CLOSED : RATELIMIT_FAIL_OPEN;
    if (ratelimit_init(&limiter, open_store(s.redis)) != RATELIMIT_OK)
        fail(1, "the limiter can't be set up");

    ratelimit_grpc::server_options options;
    options.limiter = &limiter;
    options.key_metadata = s.key;
    ratelimit_grpc::limited_service<limited::Limited, service> limited(options);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(s.listen, grpc::InsecureServerCredentials());
    builder.RegisterService(limited.service());
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (!server)
        fail(1, "can't listen at " + s.listen);
    sigwait(&ends, &got);
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
    server->Wait();
    ratelimit_close(&limiter);
    return 0;
}

/* client.cc - a gRPC client that limits its own calls; built and tried together with server.cc

   usage: client ADDRESS:PORT say|echo COUNT [--limit LIMIT] [--wait SECONDS]

   LIMIT: of calls, "3/m" (the default), "10/s burst 20". Makes COUNT calls, one after another, and
   prints a line for each: "ok", or the status code and text. --wait: calls above the limit wait, up
   to their deadline, which is then so far away. */
#define RATELIMIT_IMPLEMENTATION
#include "ratelimit_grpc.h"

#include "limited.grpc.pb.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace
{

struct settings {
    std::string target, method, limit = "3/m";
    long count = 0, wait = 0;
};

[[noreturn]] void fail(const std::string &what)
{
    std::fprintf(stderr, "client: %s\n", what.c_str());
    std::exit(2);
}

long number(const std::string &text)
{
    if (text.empty() || text.size() > 6 ||
        text.find_first_not_of("0123456789") != std::string::npos || std::stol(text) < 1)
        fail("\"" + text + "\": a number from 1 to 999999 is wanted");
    return std::stol(text);
}

settings parse(int argc, char **argv)
{
    settings s;
    if (argc < 4 || argc % 2)
        fail("usage: client ADDRESS:PORT say|echo COUNT [--limit LIMIT] [--wait SECONDS]");
    s.target = argv[1];
    s.method = argv[2];
    s.count = number(argv[3]);
    if (s.method != "say" && s.method != "echo")
        fail(s.method + ": say or echo is wanted");
    for (int i = 4; i < argc; i += 2) {
        std::string word = argv[i];
        if (word == "--limit")
            s.limit = argv[i + 1];
        else if (word == "--wait")
            s.wait = number(argv[i + 1]);
        else
            fail(word + ": unknown");
    }
    return s;
}

void make_limiter(ratelimit_limiter *limiter, const std::string &limit)
{
    static unsigned char table_memory[RATELIMIT_TABLE_BYTES(100)];
    static unsigned char rules_memory[RATELIMIT_RULES_BYTES(10)];
    ratelimit_table *table = nullptr;
    std::string text = "default " + limit;
    if (ratelimit_rules_init(&limiter->rules, rules_memory, sizeof rules_memory, 10) ||
        ratelimit_table_init(&table, table_memory, sizeof table_memory, nullptr) ||
        ratelimit_init(limiter, ratelimit_table_store(table, nullptr, nullptr)))
        fail("the limiter can't be set up");
    if (ratelimit_rules_load(limiter->rules, text.data(), text.size(), nullptr))
        fail(limit + ": no limit");
}

grpc::Status call(limited::Limited::Stub *stub, const settings &s)
{
    grpc::ClientContext context;
    limited::Text in, out;
    in.set_text("hello");
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(s.wait ? s.wait : 10));
    if (s.method == "say")
        return stub->Say(&context, in, &out);
    auto stream = stub->Echo(&context);
    for (int i = 0; i < 3 && stream->Write(in) && stream->Read(&out); i++) {
    }
    stream->WritesDone();
    return stream->Finish();
}

} // namespace

int main(int argc, char **argv)
{
    static ratelimit_limiter limiter;
    settings s = parse(argc, argv);
    make_limiter(&limiter, s.limit);

    ratelimit_grpc::client_options options;
    options.limiter = &limiter;
    options.wait = s.wait > 0;
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
        interceptors;
    interceptors.push_back(std::make_unique<ratelimit_grpc::client_interceptor_factory>(options));
    auto stub = limited::Limited::NewStub(grpc::experimental::CreateCustomChannelWithInterceptors(
        s.target, grpc::InsecureChannelCredentials(), grpc::ChannelArguments(),
        std::move(interceptors)));
    for (long i = 0; i < s.count; i++) {
        grpc::Status status = call(stub.get(), s);
        if (status.ok())
            std::puts("ok");
        else
            std::printf("%d %s\n", status.error_code(), status.error_message().c_str());
    }
    ratelimit_close(&limiter);
    return 0;
}

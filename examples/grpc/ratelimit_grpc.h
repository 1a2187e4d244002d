/* ratelimit_grpc.h - ratelimit.h for gRPC servers and clients in C++ - MIT or public domain, as
   ratelimit.h

   Copy it next to ratelimit.h; C++14, grpc++ 1.51 or later with protobuf messages. The limiter
   needs rules (limiter.rules): a call asks the rule named like its method,
   "/package.Service/Method", else "default".

   A server: your service stays as it is and is registered through limited_service.

       ratelimit_grpc::server_options options;
       options.limiter = &limiter;
       ratelimit_grpc::limited_service<package::Generated, MyService> limited(options, ...);
       builder.RegisterService(limited.service());

   where ... is what MyService, which must not be final, is constructed from. Each call is decided
   once, when it opens: a stream that was let in is never cut. A refused call ends with
   RESOURCE_EXHAUSTED and does not reach your method. If the store fails, the limiter's policy
   decides: go on, or UNAVAILABLE.

   Why it wraps the service: gRPC C++ gives a server interceptor no way to end a call. It can change
   the status that goes out, but only after the method ran; TryCancel makes it CANCELLED, and the
   method runs as well; a batch that never proceeds leaves the call, and the server's shutdown,
   hanging. An AuthMetadataProcessor can refuse, but can't add metadata and wants credentials. So
   the handler in front of each method is wrapped instead, with grpc::internal classes that
   generated code is made of. Interceptors still see refused calls. This covers the synchronous API;
   in the callback and asynchronous ones call ratelimit_grpc::admit at the start of the method and
   finish with its status if that is not OK.

   A refusal carries, in the trailing metadata: retry-after-ms, ratelimit-limit,
   ratelimit-remaining, ratelimit-reset-ms; grpc-retry-pushback-ms, which gRPC's own retry policy
   obeys; and google.rpc.RetryInfo in grpc-status-details-bin.

   A client: an interceptor of the channel, see client_options. */
#ifndef RATELIMIT_GRPC_H_INCLUDED
#define RATELIMIT_GRPC_H_INCLUDED

#include "ratelimit.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/client_interceptor.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace ratelimit_grpc
{

struct server_options {
    ratelimit_limiter *limiter = nullptr; /* required, with rules; outlives the server */
    /* Metadata entry whose value is the key, in lower case; "", or a call without it or with more
     * than 256 bytes: the peer's address. Only name what a proxy or you have verified: who can make
     * up a key is not limited by it. */
    std::string key_metadata;
    unsigned bits4 = 32, bits6 = 64; /* prefix of an address that is one client */
};

struct client_options {
    ratelimit_limiter *limiter = nullptr; /* required, with rules; outlives the channel */
    std::string key = "client";           /* whose bucket: an account, the channel's target */
    /* False: a call above the limit fails at once, here, with RESOURCE_EXHAUSTED. True: it waits in
     * the thread that starts it if its turn comes before its deadline, else fails at once. Needs a
     * store and a kind of limit that can reserve (a table or Redis; no fixed window). */
    bool wait = false;
};

namespace detail
{

enum { MAX_KEY_BYTES = 256 };

inline uint64_t milliseconds(uint64_t ns) /* rounded up */
{
    return ns / 1000000 + (ns % 1000000 != 0);
}

/* ---- google.rpc.Status with a RetryInfo, in protobuf's encoding ------------------------------ */

inline void put_number(std::string *out, uint64_t number)
{
    for (; number > 127; number >>= 7)
        out->push_back(static_cast<char>(number | 128));
    out->push_back(static_cast<char>(number));
}

inline void put_field(std::string *out, unsigned field, uint64_t number)
{
    put_number(out, field << 3);
    put_number(out, number);
}

inline void put_field(std::string *out, unsigned field, const std::string &bytes)
{
    put_number(out, field << 3 | 2);
    put_number(out, bytes.size());
    *out += bytes;
}

inline std::string retry_info(int code, const std::string &message, uint64_t retry_after_ns)
{
    std::string duration, info, any, status;
    put_field(&duration, 1, retry_after_ns / 1000000000);
    put_field(&duration, 2, retry_after_ns % 1000000000);
    put_field(&info, 1, duration);
    put_field(&any, 1, std::string("type.googleapis.com/google.rpc.RetryInfo"));
    put_field(&any, 2, info);
    put_field(&status, 1, static_cast<uint64_t>(code));
    put_field(&status, 2, message);
    put_field(&status, 3, any);
    return status;
}

inline grpc::Status status_of(const ratelimit_result &result)
{
    int http = ratelimit_http_status(&result);
    int code = http == 200 ? 0 : http == 429 ? 8 : http == 503 ? 14 : 13;
    std::string message =
        code == 8 ? "rate limit exceeded"
                  : std::string("rate limiter: ") + ratelimit_status_text(result.status);
    bool waiting_helps = code == 8 && result.retry_after_ns && result.retry_after_ns < INT64_MAX;
    return grpc::Status(static_cast<grpc::StatusCode>(code), message,
                        waiting_helps ? retry_info(code, message, result.retry_after_ns) : "");
}

/* ---- who is it ------------------------------------------------------------------------------- */

/* gRPC's "ipv4:192.0.2.1:80", "ipv6:%5B2001:db8::1%5D:80" (older: with plain brackets), "unix:...".
 * Peers without an address share a key. */
inline std::string peer_key(const std::string &peer, unsigned bits4, unsigned bits6)
{
    unsigned char address[16], key[RATELIMIT_ADDRESS_KEY_BYTES];
    size_t begin = 5, end = peer.rfind(':'), len;
    if ((peer.compare(0, 5, "ipv4:") && peer.compare(0, 5, "ipv6:")) || end < begin ||
        end == std::string::npos)
        return "-";
    if (!peer.compare(begin, 3, "%5B") || !peer.compare(begin, 3, "%5b"))
        begin += 3;
    else if (peer[begin] == '[')
        begin++;
    if (begin > 5) /* a zone, "%25eth0", is left out, too */
        end = peer.find_first_of("%]", begin);
    if (end == std::string::npos)
        return "-";
    len = ratelimit_address_parse(peer.data() + begin, end - begin, address);
    len = ratelimit_address_key(address, len, bits4, bits6, key);
    return len ? std::string(reinterpret_cast<char *>(key), len) : "-";
}

/* A byte in front keeps keys from metadata and addresses apart. */
inline std::string key_of(const server_options &options, const grpc::ServerContextBase &context)
{
    const auto &metadata = context.client_metadata();
    auto entry =
        options.key_metadata.empty() ? metadata.end() : metadata.find(options.key_metadata);
    if (entry != metadata.end() && entry->second.size() && entry->second.size() <= MAX_KEY_BYTES)
        return "k" + std::string(entry->second.data(), entry->second.size());
    return "a" + peer_key(context.peer(), options.bits4, options.bits6);
}

inline ratelimit_result take(ratelimit_limiter *limiter, const char *method, const std::string &key,
                             ratelimit_op op, uint64_t max_wait_ns)
{
    ratelimit_rule_request asked{method, RATELIMIT_REQUEST(key.data(), key.size(), nullptr, 1)};
    ratelimit_result result;
    asked.request.op = op;
    asked.request.max_wait_ns = max_wait_ns;
    ratelimit_take_rules(limiter, &asked, &result, nullptr, 1);
    return result;
}

} // namespace detail

/* ---- servers --------------------------------------------------------------------------------- */

/* admit  Decides a call; not OK: finish with this status. Adds to the trailing metadata then. */
inline grpc::Status admit(const server_options &options, const char *method,
                          grpc::ServerContextBase *context)
{
    std::string key = detail::key_of(options, *context);
    ratelimit_result result = detail::take(options.limiter, method, key, RATELIMIT_TAKE, 0);
    if (result.allowed)
        return grpc::Status::OK;
    grpc::Status status = detail::status_of(result);
    if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED)
        return status;
    uint64_t retry_ms = detail::milliseconds(result.retry_after_ns);
    bool waiting_helps = !status.error_details().empty();
    if (waiting_helps)
        context->AddTrailingMetadata("retry-after-ms", std::to_string(retry_ms));
    context->AddTrailingMetadata("grpc-retry-pushback-ms", /* an int32; negative: do not retry */
                                 waiting_helps && retry_ms <= INT32_MAX ? std::to_string(retry_ms)
                                                                        : "-1");
    context->AddTrailingMetadata("ratelimit-limit", std::to_string(result.burst));
    context->AddTrailingMetadata("ratelimit-remaining", std::to_string(result.remaining));
    context->AddTrailingMetadata("ratelimit-reset-ms",
                                 std::to_string(detail::milliseconds(result.reset_after_ns)));
    return status;
}

namespace detail
{

/* Stands in front of a method's handler, which stays its service's. */
class limited_handler final : public grpc::internal::MethodHandler
{
  public:
    limited_handler(const server_options *options, std::string method,
                    grpc::internal::MethodHandler *handler)
        : options_(options), method_(std::move(method)), handler_(handler)
    {
    }

    const char *method() const
    {
        return method_.c_str();
    }

    void *Deserialize(grpc_call *call, grpc_byte_buffer *request, grpc::Status *status,
                      void **data) override
    {
        return handler_->Deserialize(call, request, status, data);
    }

    void RunHandler(const HandlerParameter &call) override
    {
        grpc::Status status = admit(*options_, method(), call.server_context);
        if (status.ok())
            handler_->RunHandler(call);
        else
            refuse(call, status);
    }

  private:
    using any_stream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

    /* To the server's side any kind of call may end as a stream on which nothing was said. */
    static void refuse(const HandlerParameter &call, const grpc::Status &status)
    {
        if (call.request) /* made by Deserialize in memory of the call's; RunHandler destroys it */
            static_cast<google::protobuf::MessageLite *>(call.request)->~MessageLite();
        grpc::internal::TemplatedBidiStreamingHandler<any_stream, false>([&status](
                                                                             grpc::ServerContext *,
                                                                             any_stream *) {
            return status;
        }).RunHandler(call);
    }

    const server_options *options_;
    const std::string method_;
    grpc::internal::MethodHandler *handler_;
};

} // namespace detail

/* limited_service  S, a service of yours in the synchronous API, with each of its methods limited;
 * Generated is the class whose Service it derives from. Throws std::invalid_argument where that
 * can't be. Outlives the server. */
template <class Generated, class S> class limited_service final : private S
{
  public:
    template <class... Arguments>
    explicit limited_service(server_options options, Arguments &&...arguments)
        : S(std::forward<Arguments>(arguments)...), options_(std::move(options))
    {
        const auto *service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            Generated::service_full_name());
        if (!options_.limiter || !options_.limiter->rules)
            throw std::invalid_argument("ratelimit_grpc: a limiter with rules is needed");
        if (!service || this->has_async_methods() || this->has_callback_methods() ||
            this->has_generic_methods())
            throw std::invalid_argument("ratelimit_grpc: not a service of the synchronous API");
        for (int i = 0; i < service->method_count(); i++) /* generated code has the same order */
            front_.add(*service->method(i), &options_, this->GetHandler(i));
    }

    grpc::Service *service() /* for ServerBuilder::RegisterService, in place of your own */
    {
        return &front_;
    }

  private:
    struct front final : grpc::Service {
        void add(const google::protobuf::MethodDescriptor &method, const server_options *options,
                 grpc::internal::MethodHandler *handler)
        {
            using rpc = grpc::internal::RpcMethod;
            std::string name = "/" + method.service()->full_name() + "/" + method.name();
            auto *limited = new detail::limited_handler(options, std::move(name), handler);
            rpc::RpcType type =
                method.client_streaming()
                    ? (method.server_streaming() ? rpc::BIDI_STREAMING : rpc::CLIENT_STREAMING)
                    : (method.server_streaming() ? rpc::SERVER_STREAMING : rpc::NORMAL_RPC);
            this->AddMethod(/* which owns both */
                            new grpc::internal::RpcServiceMethod(limited->method(), type, limited));
        }
    };

    const server_options options_;
    front front_;
};

/* ---- clients --------------------------------------------------------------------------------- */

namespace detail
{

class client_interceptor final : public grpc::experimental::Interceptor
{
  public:
    client_interceptor(const client_options *options, grpc::experimental::ClientRpcInfo *info)
        : options_(options), info_(info)
    {
    }

    void Intercept(grpc::experimental::InterceptorBatchMethods *batch) override
    {
        using point = grpc::experimental::InterceptionHookPoints;
        bool opens = batch->QueryInterceptionHookPoint(point::PRE_SEND_INITIAL_METADATA);
        if (opens)
            status_ = admit();
        if (status_.ok()) {
            batch->Proceed();
            return;
        }
        if (opens) {
            /* never leaves this process; the batches that follow come here to be answered */
            batch->Hijack();
            return;
        }
        if (batch->QueryInterceptionHookPoint(point::PRE_SEND_MESSAGE))
            batch->FailHijackedSendMessage();
        if (batch->QueryInterceptionHookPoint(point::PRE_RECV_MESSAGE))
            batch->FailHijackedRecvMessage();
        if (batch->QueryInterceptionHookPoint(point::PRE_RECV_STATUS))
            *batch->GetRecvStatus() = status_;
        batch->Proceed();
    }

  private:
    grpc::Status admit() const
    {
        ratelimit_result result = take(options_->limiter, info_->method(), options_->key,
                                       options_->wait ? RATELIMIT_RESERVE : RATELIMIT_TAKE,
                                       options_->wait ? until_deadline() : 0);
        if (!result.allowed)
            return status_of(result);
        std::this_thread::sleep_for(std::chrono::nanoseconds(result.wait_ns));
        return grpc::Status::OK;
    }

    uint64_t until_deadline() const
    {
        using clock = std::chrono::system_clock;
        clock::time_point deadline = info_->client_context()->deadline(), now = clock::now();
        if (deadline == clock::time_point::max())
            return RATELIMIT_FOREVER;
        return deadline <= now
                   ? 0
                   : static_cast<uint64_t>(std::chrono::nanoseconds(deadline - now).count());
    }

    const client_options *options_;
    grpc::experimental::ClientRpcInfo *info_;
    grpc::Status status_;
};

} // namespace detail

/* client_interceptor_factory  For grpc::experimental::CreateCustomChannelWithInterceptors. */
class client_interceptor_factory final
    : public grpc::experimental::ClientInterceptorFactoryInterface
{
  public:
    explicit client_interceptor_factory(client_options options) : options_(std::move(options))
    {
        if (!options_.limiter || !options_.limiter->rules)
            throw std::invalid_argument("ratelimit_grpc: a limiter with rules is needed");
    }

    grpc::experimental::Interceptor *
    CreateClientInterceptor(grpc::experimental::ClientRpcInfo *info) override
    {
        return new detail::client_interceptor(&options_, info);
    }

  private:
    const client_options options_;
};

} // namespace ratelimit_grpc

#endif /* RATELIMIT_GRPC_H_INCLUDED */

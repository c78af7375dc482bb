// xllm.hpp - the C++17 face of xllm.h: owning handles, standard strings, exceptions or statuses. Header only, so that no
// C++ ABI is part of the library. xllm.h says what each call does; here only what C++ adds is said.
//
//     xllm::Engine engine;
//     std::cout << engine.complete("Once upon a time").text() << '\n';
//
// Every call has two forms. The plain one throws xllm::Error. The one with a trailing `Status &` does not: it sets the
// status, and returns an empty object on failure. With exceptions switched off only the second form exists.
//
// Engine, Request and Response are move-only and may be empty (moved from, or after a failed call); an empty Engine or
// Request answers every call with XLLM_ERROR_INVALID_ARGUMENT.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef XLLM_XLLM_HPP_
#define XLLM_XLLM_HPP_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xllm/xllm.h"

#if defined(__cpp_exceptions)
#define XLLM_HAS_EXCEPTIONS 1
#include <exception>
#include <stdexcept>
#else
#define XLLM_HAS_EXCEPTIONS 0
#endif

namespace xllm {

using Milliseconds = std::chrono::milliseconds;

// The outcome of a call: a number of xllm.h, and one sentence when it is not XLLM_OK.
struct Status {
    xllm_status code = XLLM_OK;
    std::string message;

    bool ok() const noexcept { return code == XLLM_OK; }
};

#if XLLM_HAS_EXCEPTIONS
// A call that failed; what() is the message.
class Error : public std::runtime_error {
public:
    explicit Error(const Status &status) : std::runtime_error(status.message), code_(status.code) {}
    xllm_status code() const noexcept { return code_; }

private:
    xllm_status code_;
};
#endif

struct EngineOptions {
    std::string model;         // empty: the embedded demo model
    std::string options_json;  // empty: none
    std::string python;        // empty: XLLM_PYTHON, or the environment of the library
    std::string log_path;      // empty: no log; "-": standard error
    Milliseconds start_timeout{0};
};

struct RequestOptions {
    std::string request_id;
    Milliseconds timeout{0};
    std::optional<std::int32_t> max_tokens;  // none: as many as the context holds
    std::int32_t min_tokens = 0;
    std::int32_t n = 1;
    std::int32_t top_k = -1;
    std::optional<std::int32_t> logprobs;
    double temperature = 1.0;
    double top_p = 1.0;
    double min_p = 0.0;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;
    double repetition_penalty = 1.0;
    std::optional<std::int64_t> seed;
    bool ignore_eos = false;
    bool keep_special_tokens = false;
    bool include_stop_str_in_output = false;
    bool is_offline = false;
    std::int32_t priority = 0;
    std::vector<std::string> stop;
    std::vector<std::int32_t> stop_token_ids;
    std::string cache_salt;
    std::string tools_json;
    std::string response_format_json;
    std::string template_kwargs_json;
    std::string options_json;
};

struct Message {
    std::string role;
    std::string content;
};

namespace detail {

inline const char *null_if_empty(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

inline std::uint32_t to_milliseconds(Milliseconds duration) {
    const auto count = duration.count();
    if (count <= 0) return 0;
    return count > 0xffffffffLL ? 0xffffffffU : static_cast<std::uint32_t>(count);
}

inline Status status_of(xllm_status code) {
    return code == XLLM_OK ? Status{} : Status{code, xllm_last_error()};
}

// The C form of options; its pointers lead into the C++ form, which must outlive it.
class CRequestOptions {
public:
    explicit CRequestOptions(const RequestOptions &options) {
        for (const std::string &text : options.stop) stop_.push_back(text.c_str());
        c_.request_id = null_if_empty(options.request_id);
        c_.timeout_ms = to_milliseconds(options.timeout);
        c_.max_tokens = options.max_tokens.value_or(-1);
        c_.min_tokens = options.min_tokens;
        c_.n = options.n;
        c_.top_k = options.top_k;
        c_.logprobs = options.logprobs.value_or(-1);
        c_.temperature = options.temperature;
        c_.top_p = options.top_p;
        c_.min_p = options.min_p;
        c_.presence_penalty = options.presence_penalty;
        c_.frequency_penalty = options.frequency_penalty;
        c_.repetition_penalty = options.repetition_penalty;
        c_.seed = options.seed.value_or(0);
        c_.has_seed = options.seed.has_value();
        c_.ignore_eos = options.ignore_eos;
        c_.keep_special_tokens = options.keep_special_tokens;
        c_.include_stop_str_in_output = options.include_stop_str_in_output;
        c_.priority = options.priority;
        c_.is_offline = options.is_offline;
        c_.stop = stop_.data();
        c_.num_stop = stop_.size();
        c_.stop_token_ids = options.stop_token_ids.data();
        c_.num_stop_token_ids = options.stop_token_ids.size();
        c_.cache_salt = null_if_empty(options.cache_salt);
        c_.tools_json = null_if_empty(options.tools_json);
        c_.response_format_json = null_if_empty(options.response_format_json);
        c_.template_kwargs_json = null_if_empty(options.template_kwargs_json);
        c_.options_json = null_if_empty(options.options_json);
    }
    const xllm_request_options *get() const { return &c_; }

private:
    std::vector<const char *> stop_;
    xllm_request_options c_ = XLLM_REQUEST_OPTIONS_INIT;
};

inline std::vector<xllm_message> to_c(const std::vector<Message> &messages) {
    std::vector<xllm_message> c;
    for (const Message &message : messages) c.push_back({message.role.c_str(), message.content.c_str()});
    return c;
}

struct FreeResponse {
    void operator()(xllm_response *response) const { xllm_response_free(response); }
};

struct DestroyRequest {
    void operator()(xllm_request *request) const { xllm_request_destroy(request); }
};

struct DestroyEngine {
    void operator()(xllm_engine *engine) const { xllm_engine_destroy(engine); }
};

#if XLLM_HAS_EXCEPTIONS
inline void check(const Status &status) {
    if (!status.ok()) throw Error(status);
}

// What `call(status)` returns, or xllm::Error.
template <typename Call>
auto checked(Call &&call) {
    Status status;
    auto result = call(status);
    check(status);
    return result;
}
#endif

}  // namespace detail

// A whole answer. Views die with it.
class Response {
public:
    Response() = default;
    explicit Response(xllm_response *owned) : c_(owned) {}

    explicit operator bool() const noexcept { return c_ != nullptr; }
    // Not on an empty object, as for all that follows; `index` is below size().
    const xllm_response &c() const { return *c_; }
    std::size_t size() const { return c_->num_choices; }
    const xllm_choice &choice(std::size_t index = 0) const { return *c_->choices[index]; }
    std::string_view text(std::size_t index = 0) const { return {choice(index).text, choice(index).text_length}; }
    std::string_view finish_reason(std::size_t index = 0) const { return choice(index).finish_reason; }
    std::vector<std::int32_t> token_ids(std::size_t index = 0) const {
        return {choice(index).token_ids, choice(index).token_ids + choice(index).num_token_ids};
    }

private:
    std::unique_ptr<xllm_response, detail::FreeResponse> c_;
};

// A view of news of a request; dies as the xllm_event does.
class Event {
public:
    explicit Event(const xllm_event *event) : c_(event) {}

    const xllm_event &c() const { return *c_; }
    bool is_finished() const { return c_->kind == XLLM_EVENT_FINISHED; }
    std::string_view text() const { return {c_->text, c_->text_length}; }
    Status status() const { return {c_->status, c_->message}; }

private:
    const xllm_event *c_;
};

// Runs on the engine's thread; false cancels the request. An exception cancels it too, and Request::wait() throws it.
using OnEvent = std::function<bool(const Event &)>;

// A running or ended request. Destroying it cancels it; a request with a callback must not be destroyed inside it.
class Request {
public:
    Request() = default;

    explicit operator bool() const noexcept { return c_ != nullptr; }
    xllm_request *c() const { return c_.get(); }
    std::string id() const { return xllm_request_get_id(c_.get()); }
    void cancel() { xllm_request_cancel(c_.get()); }

    // The next event of a request without callback; nothing when `timeout` (0: none) passes first.
    std::optional<Event> next(Status &status, Milliseconds timeout = Milliseconds{0}) {
        const xllm_event *event = nullptr;
        const xllm_status code = xllm_request_next(c_.get(), detail::to_milliseconds(timeout), &event);
        status = code == XLLM_ERROR_TIMEOUT ? Status{} : detail::status_of(code);
        return event == nullptr ? std::nullopt : std::optional<Event>(Event(event));
    }
    // The next event if there is one now.
    std::optional<Event> poll(Status &status) {
        const xllm_event *event = nullptr;
        status = detail::status_of(xllm_request_poll(c_.get(), &event));
        return event == nullptr ? std::nullopt : std::optional<Event>(Event(event));
    }
    // The whole answer, or the request's own status.
    Response wait(Status &status, Milliseconds timeout = Milliseconds{0}) {
        xllm_response *response = nullptr;
        status = detail::status_of(xllm_request_wait(c_.get(), detail::to_milliseconds(timeout), &response));
        return Response(response);
    }

#if XLLM_HAS_EXCEPTIONS
    std::optional<Event> next(Milliseconds timeout = Milliseconds{0}) {
        return detail::checked([&](Status &status) { return next(status, timeout); });
    }
    std::optional<Event> poll() {
        return detail::checked([&](Status &status) { return poll(status); });
    }
    Response wait(Milliseconds timeout = Milliseconds{0}) {
        Status status;
        Response response = wait(status, timeout);
        if (callback_ != nullptr && callback_->error != nullptr) std::rethrow_exception(callback_->error);
        detail::check(status);
        return response;
    }
#endif

private:
    friend class Engine;

    struct Callback {
        OnEvent on_event;
#if XLLM_HAS_EXCEPTIONS
        std::exception_ptr error;
#endif
    };

    static int call_back(const xllm_event *event, void *user_data) {
        auto *callback = static_cast<Callback *>(user_data);
#if XLLM_HAS_EXCEPTIONS
        if (callback->error != nullptr) return 1;
        try {
            return callback->on_event(Event(event)) ? 0 : 1;
        } catch (...) {
            callback->error = std::current_exception();
            return 1;
        }
#else
        return callback->on_event(Event(event)) ? 0 : 1;
#endif
    }

    // In this order: the handle goes first, and waits for the callback.
    std::unique_ptr<Callback> callback_;
    std::unique_ptr<xllm_request, detail::DestroyRequest> c_;
};

class Engine {
public:
    // Start an engine process.
    explicit Engine(const EngineOptions &options, Status &status) { status = create(options); }
    // Connect to a running engine.
    static Engine attach(const std::string &address, Status &status, Milliseconds timeout = Milliseconds{0}) {
        xllm_engine *engine = nullptr;
        status = detail::status_of(xllm_engine_attach(address.c_str(), detail::to_milliseconds(timeout), &engine));
        return Engine(engine);
    }

    explicit operator bool() const noexcept { return c_ != nullptr; }
    xllm_engine *c() const { return c_.get(); }
    Status health() const { return detail::status_of(xllm_engine_health(c_.get())); }
    // nullptr for an empty engine.
    const xllm_engine_info *info() const {
        const xllm_engine_info *info = nullptr;
        xllm_engine_get_info(c_.get(), &info);
        return info;
    }
    xllm_metrics metrics(Status &status, Milliseconds timeout = Milliseconds{0}) const {
        xllm_metrics metrics = XLLM_METRICS_INIT;
        status = detail::status_of(xllm_engine_get_metrics(c_.get(), detail::to_milliseconds(timeout), &metrics));
        return metrics;
    }

    Response complete(const std::string &prompt, const RequestOptions &options, Status &status) {
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_complete(c_.get(), prompt.c_str(), c_options, response);
        });
    }
    Response chat(const std::vector<Message> &messages, const RequestOptions &options, Status &status) {
        const auto c_messages = detail::to_c(messages);
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_chat(c_.get(), c_messages.data(), c_messages.size(), c_options, response);
        });
    }
    Response chat_json(const std::string &messages, const RequestOptions &options, Status &status) {
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_chat_json(c_.get(), messages.c_str(), c_options, response);
        });
    }
    Response generate_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options,
                             Status &status) {
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_generate_tokens(c_.get(), token_ids.data(), token_ids.size(), c_options, response);
        });
    }

    // An empty `on_event` keeps the events for Request::next() and poll().
    Request start_complete(const std::string &prompt, const RequestOptions &options, OnEvent on_event,
                           Status &status) {
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_complete_start(c_.get(), prompt.c_str(), c_options, call, data, out);
                     });
    }
    Request start_chat(const std::vector<Message> &messages, const RequestOptions &options, OnEvent on_event,
                       Status &status) {
        const auto c_messages = detail::to_c(messages);
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_chat_start(c_.get(), c_messages.data(), c_messages.size(), c_options, call, data,
                                                out);
                     });
    }
    Request start_chat_json(const std::string &messages, const RequestOptions &options, OnEvent on_event,
                            Status &status) {
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_chat_json_start(c_.get(), messages.c_str(), c_options, call, data, out);
                     });
    }
    Request start_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options, OnEvent on_event,
                         Status &status) {
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_generate_tokens_start(c_.get(), token_ids.data(), token_ids.size(), c_options,
                                                           call, data, out);
                     });
    }

#if XLLM_HAS_EXCEPTIONS
    explicit Engine(const EngineOptions &options = {}) { detail::check(create(options)); }
    static Engine attach(const std::string &address, Milliseconds timeout = Milliseconds{0}) {
        return detail::checked([&](Status &status) { return attach(address, status, timeout); });
    }
    xllm_metrics metrics(Milliseconds timeout = Milliseconds{0}) const {
        return detail::checked([&](Status &status) { return metrics(status, timeout); });
    }
    Response complete(const std::string &prompt, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return complete(prompt, options, status); });
    }
    Response chat(const std::vector<Message> &messages, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return chat(messages, options, status); });
    }
    Response chat_json(const std::string &messages, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return chat_json(messages, options, status); });
    }
    Response generate_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return generate_tokens(token_ids, options, status); });
    }
    Request start_complete(const std::string &prompt, const RequestOptions &options = {}, OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_complete(prompt, options, std::move(on_event), status); });
    }
    Request start_chat(const std::vector<Message> &messages, const RequestOptions &options = {},
                       OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_chat(messages, options, std::move(on_event), status); });
    }
    Request start_chat_json(const std::string &messages, const RequestOptions &options = {}, OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_chat_json(messages, options, std::move(on_event), status); });
    }
    Request start_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options = {},
                         OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_tokens(token_ids, options, std::move(on_event), status); });
    }
#endif

private:
    explicit Engine(xllm_engine *owned) : c_(owned) {}

    Status create(const EngineOptions &options) {
        xllm_engine_options c_options = XLLM_ENGINE_OPTIONS_INIT;
        c_options.model = detail::null_if_empty(options.model);
        c_options.options_json = detail::null_if_empty(options.options_json);
        c_options.python = detail::null_if_empty(options.python);
        c_options.log_path = detail::null_if_empty(options.log_path);
        c_options.start_timeout_ms = detail::to_milliseconds(options.start_timeout);
        xllm_engine *engine = nullptr;
        const xllm_status code = xllm_engine_create(&c_options, &engine);
        c_.reset(engine);
        return detail::status_of(code);
    }

    template <typename Call>
    Response run(const RequestOptions &options, Status &status, Call &&call) {
        xllm_response *response = nullptr;
        status = detail::status_of(call(detail::CRequestOptions(options).get(), &response));
        return Response(response);
    }

    template <typename Call>
    Request start(const RequestOptions &options, OnEvent on_event, Status &status, Call &&call) {
        Request request;
        xllm_request *handle = nullptr;
        const bool has_callback = static_cast<bool>(on_event);
        if (has_callback) {
            request.callback_ = std::make_unique<Request::Callback>();
            request.callback_->on_event = std::move(on_event);
        }
        status = detail::status_of(call(detail::CRequestOptions(options).get(),
                                        has_callback ? &Request::call_back : nullptr, request.callback_.get(),
                                        &handle));
        request.c_.reset(handle);
        return request;
    }

    std::unique_ptr<xllm_engine, detail::DestroyEngine> c_;
};

}  // namespace xllm

#endif  // XLLM_XLLM_HPP_

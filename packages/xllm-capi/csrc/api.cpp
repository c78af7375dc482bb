// The C boundary: every function of xllm.h (but for those of pooling.cpp and recommend.cpp) checks its arguments, does
// one thing of Engine or Request, and lets no exception out.
#include <cstring>
#include <utility>

#include "handles.hpp"
#include "interpreter.hpp"
#include "validation.hpp"
#include "xllm/xllm.h"

#ifndef XLLM_PACKAGE_VERSION
#error "The build must define XLLM_PACKAGE_VERSION."
#endif

using namespace libxllm;

namespace {

// What a `_start` function adds to an input.
struct Callback {
    xllm_on_event on_event;
    void *user_data;
};

Input text_input(const char *prompt) {
    require(prompt != nullptr, "prompt must not be NULL.");
    Input input;
    input.prompt = prompt;
    return input;
}

Input message_input(const xllm_message *messages, std::size_t num_messages) {
    require(messages != nullptr && num_messages > 0, "messages must not be NULL or empty.");
    Input input;
    input.messages = messages;
    input.num_messages = num_messages;
    return input;
}

Input message_input(const char *messages_json) {
    require(messages_json != nullptr, "messages_json must not be NULL.");
    Input input;
    input.messages_json = messages_json;
    return input;
}

Input token_input(const std::int32_t *token_ids, std::size_t num_token_ids) {
    require(token_ids != nullptr && num_token_ids > 0, "token_ids must not be NULL or empty.");
    Input input;
    input.token_ids = token_ids;
    input.num_token_ids = num_token_ids;
    return input;
}

std::shared_ptr<Request> start(Engine &engine, const Input &input, const xllm_request_options *given,
                               Request::Mode mode, Callback callback) {
    const xllm_request_options options = copy_options(given, default_request_options(), "xllm_request_options");
    check_input(input);
    check_options(options);
    return engine.start(input, options, mode, callback.on_event, callback.user_data);
}

xllm_response *finished_response(const Engine &engine, const Request &request) {
    const Outcome outcome = request.outcome();
    if (outcome.status != XLLM_OK) throw Failure(outcome.status, outcome.message);
    return request.make_response(engine.model());
}

template <typename MakeInput>
xllm_status run_blocking(xllm_engine *handle, const xllm_request_options *options, xllm_response **response,
                         MakeInput &&make_input) {
    return guarded([&] {
        clear(response);
        Engine &engine = checked(handle);
        require(response != nullptr, "response must not be NULL.");
        engine.check_may_wait();
        const auto request = start(engine, make_input(), options, Request::Mode::kWait, {});
        request->wait({});
        *response = finished_response(engine, *request);
    });
}

template <typename MakeInput>
xllm_status run_started(xllm_engine *handle, const xllm_request_options *options, Callback callback,
                        xllm_request **request, MakeInput &&make_input) {
    return guarded([&] {
        clear(request);
        Engine &engine = checked(handle);
        require(request != nullptr || callback.on_event != nullptr, "request and on_event must not both be NULL.");
        // Allocated before the start, so that no request runs without its handle.
        auto started = std::make_unique<xllm_request>();
        started->engine = handle->engine;
        const Request::Mode mode = callback.on_event == nullptr ? Request::Mode::kQueue : Request::Mode::kCallback;
        started->request = start(engine, make_input(), options, mode, callback);
        if (request != nullptr) *request = started.release();
    });
}

}  // namespace

// ---- Version and status

int32_t xllm_abi_version(void) { return XLLM_ABI_VERSION; }

int32_t xllm_api_version(void) { return XLLM_API_VERSION_MAJOR << 16 | XLLM_API_VERSION_MINOR; }

const char *xllm_version(void) { return XLLM_PACKAGE_VERSION; }

const char *xllm_last_error(void) { return last_error(); }

const char *xllm_status_name(xllm_status status) {
    switch (status) {
#define XLLM_CASE(name) \
    case name: return #name;
        XLLM_CASE(XLLM_OK)
        XLLM_CASE(XLLM_ERROR_INVALID_ARGUMENT)
        XLLM_CASE(XLLM_ERROR_INVALID_REQUEST)
        XLLM_CASE(XLLM_ERROR_REQUEST_TOO_LONG)
        XLLM_CASE(XLLM_ERROR_INVALID_CONFIG)
        XLLM_CASE(XLLM_ERROR_MODEL_LOAD)
        XLLM_CASE(XLLM_ERROR_UNSUPPORTED_MODEL)
        XLLM_CASE(XLLM_ERROR_QUEUE_FULL)
        XLLM_CASE(XLLM_ERROR_TIMEOUT)
        XLLM_CASE(XLLM_ERROR_CANCELLED)
        XLLM_CASE(XLLM_ERROR_ENGINE_START)
        XLLM_CASE(XLLM_ERROR_ENGINE_DEAD)
        XLLM_CASE(XLLM_ERROR_SHUTTING_DOWN)
        XLLM_CASE(XLLM_ERROR_REQUEST_FAILED)
        XLLM_CASE(XLLM_ERROR_UNSUPPORTED)
        XLLM_CASE(XLLM_ERROR_OUT_OF_MEMORY)
        XLLM_CASE(XLLM_ERROR_WRONG_STATE)
        XLLM_CASE(XLLM_ERROR_INTERNAL)
#undef XLLM_CASE
        default: return "unknown status";
    }
}

// ---- Engines

xllm_status xllm_engine_options_init(xllm_engine_options *options, size_t struct_size) {
    return init_options(options, struct_size, default_engine_options(), "xllm_engine_options");
}

xllm_status xllm_engine_create(const xllm_engine_options *given, xllm_engine **engine) {
    return guarded([&] {
        clear(engine);
        require(engine != nullptr, "engine must not be NULL.");
        const auto options = copy_options(given, default_engine_options(), "xllm_engine_options");
        check_optional_text(options.model, "model");
        check_optional_text(options.options_json, "options_json");
        const Deadline deadline = deadline_after(options.start_timeout_ms);
        EngineSource source;
        source.python = choose_interpreter(options.python);
        if (options.log_path != nullptr) source.log_path = options.log_path;
        source.start_frame = encode_start(options.model == nullptr ? "" : options.model, options.options_json);
        auto handle = std::make_unique<xllm_engine>();
        handle->engine = Engine::open(std::move(source), deadline);
        *engine = handle.release();
    });
}

xllm_status xllm_engine_attach(const char *address, uint32_t timeout_ms, xllm_engine **engine) {
    return guarded([&] {
        clear(engine);
        require(engine != nullptr, "engine must not be NULL.");
        require(address != nullptr, "address must not be NULL.");
        constexpr std::string_view kScheme = "unix:";
        EngineSource source;
        source.address = std::string_view(address).starts_with(kScheme) ? address + kScheme.size() : address;
        require(!source.address.empty(), "address must be the path of an engine's socket.");
        source.start_frame = encode_start("", nullptr);
        auto handle = std::make_unique<xllm_engine>();
        handle->engine = Engine::open(std::move(source), deadline_after(timeout_ms));
        *engine = handle.release();
    });
}

xllm_status xllm_engine_destroy(xllm_engine *handle) {
    return guarded([&] {
        if (handle == nullptr) return;
        Engine &engine = checked(handle);
        engine.check_may_wait();
        engine.stop();
        delete handle;
    });
}

xllm_status xllm_engine_health(xllm_engine *engine) {
    return guarded([&] {
        const Outcome health = checked(engine).health();
        if (health.status != XLLM_OK) throw Failure(health.status, health.message);
    });
}

xllm_status xllm_engine_get_info(xllm_engine *engine, const xllm_engine_info **info) {
    return guarded([&] {
        clear(info);
        require(info != nullptr, "info must not be NULL.");
        *info = &checked(engine).info();
    });
}

xllm_status xllm_engine_get_metrics(xllm_engine *handle, uint32_t timeout_ms, xllm_metrics *metrics) {
    return guarded([&] {
        Engine &engine = checked(handle);
        require(metrics != nullptr, "metrics must not be NULL.");
        const std::size_t struct_size = metrics->struct_size;
        check_struct_size(struct_size, sizeof *metrics, sizeof *metrics, "xllm_metrics");
        engine.check_may_wait();
        const xllm_metrics snapshot = engine.metrics(deadline_after(timeout_ms));
        std::memcpy(metrics, &snapshot, struct_size);
        metrics->struct_size = struct_size;
    });
}

xllm_status xllm_engine_sleep(xllm_engine *engine) {
    return guarded([&] {
        checked(engine);
        throw Failure(XLLM_ERROR_UNSUPPORTED, "This engine cannot sleep yet; destroy it to free its memory.");
    });
}

xllm_status xllm_engine_wake(xllm_engine *engine) {
    return guarded([&] {
        checked(engine);
        throw Failure(XLLM_ERROR_UNSUPPORTED, "This engine cannot sleep yet, so there is nothing to wake.");
    });
}

// ---- Requests

xllm_status xllm_request_options_init(xllm_request_options *options, size_t struct_size) {
    return init_options(options, struct_size, default_request_options(), "xllm_request_options");
}

void xllm_response_free(xllm_response *response) { free_response(response); }

xllm_status xllm_complete(xllm_engine *engine, const char *prompt, const xllm_request_options *options,
                          xllm_response **response) {
    return run_blocking(engine, options, response, [&] { return text_input(prompt); });
}

xllm_status xllm_chat(xllm_engine *engine, const xllm_message *messages, size_t num_messages,
                      const xllm_request_options *options, xllm_response **response) {
    return run_blocking(engine, options, response, [&] { return message_input(messages, num_messages); });
}

xllm_status xllm_chat_json(xllm_engine *engine, const char *messages_json, const xllm_request_options *options,
                           xllm_response **response) {
    return run_blocking(engine, options, response, [&] { return message_input(messages_json); });
}

xllm_status xllm_generate_tokens(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                 const xllm_request_options *options, xllm_response **response) {
    return run_blocking(engine, options, response, [&] { return token_input(token_ids, num_token_ids); });
}

// ---- Streamed requests

xllm_status xllm_complete_start(xllm_engine *engine, const char *prompt, const xllm_request_options *options,
                                xllm_on_event on_event, void *user_data, xllm_request **request) {
    return run_started(engine, options, {on_event, user_data}, request, [&] { return text_input(prompt); });
}

xllm_status xllm_chat_start(xllm_engine *engine, const xllm_message *messages, size_t num_messages,
                            const xllm_request_options *options, xllm_on_event on_event, void *user_data,
                            xllm_request **request) {
    return run_started(engine, options, {on_event, user_data}, request,
                       [&] { return message_input(messages, num_messages); });
}

xllm_status xllm_chat_json_start(xllm_engine *engine, const char *messages_json, const xllm_request_options *options,
                                 xllm_on_event on_event, void *user_data, xllm_request **request) {
    return run_started(engine, options, {on_event, user_data}, request, [&] { return message_input(messages_json); });
}

xllm_status xllm_generate_tokens_start(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                       const xllm_request_options *options, xllm_on_event on_event, void *user_data,
                                       xllm_request **request) {
    return run_started(engine, options, {on_event, user_data}, request,
                       [&] { return token_input(token_ids, num_token_ids); });
}

xllm_status xllm_request_next(xllm_request *handle, uint32_t timeout_ms, const xllm_event **event) {
    return guarded([&] {
        clear(event);
        const xllm_request &request = checked(handle);
        require(event != nullptr, "event must not be NULL.");
        require(!request.request->has_callback(), "A request with a callback keeps no events.");
        request.engine->check_may_wait();
        *event = request.request->next(deadline_after(timeout_ms));
        if (*event == nullptr) throw Failure(XLLM_ERROR_TIMEOUT, "No event has come in time; the request goes on.");
    });
}

xllm_status xllm_request_poll(xllm_request *handle, const xllm_event **event) {
    return guarded([&] {
        clear(event);
        const xllm_request &request = checked(handle);
        require(event != nullptr, "event must not be NULL.");
        require(!request.request->has_callback(), "A request with a callback keeps no events.");
        *event = request.request->poll();
    });
}

xllm_status xllm_request_wait(xllm_request *handle, uint32_t timeout_ms, xllm_response **response) {
    return guarded([&] {
        clear(response);
        const xllm_request &request = checked(handle);
        require(response != nullptr, "response must not be NULL.");
        request.engine->check_may_wait();
        if (!request.request->wait(deadline_after(timeout_ms))) {
            throw Failure(XLLM_ERROR_TIMEOUT, "The request has not ended in time; it goes on.");
        }
        *response = finished_response(*request.engine, *request.request);
    });
}

xllm_status xllm_request_cancel(xllm_request *handle) {
    return guarded([&] {
        const xllm_request &request = checked(handle);
        request.engine->cancel(*request.request);
    });
}

const char *xllm_request_get_id(const xllm_request *request) {
    return request == nullptr ? "" : request->request->request_id().c_str();
}

void xllm_request_destroy(xllm_request *handle) {
    if (handle == nullptr) return;
    // In a forked child the handle stays as it is: its engine's locks may be held by threads that exist no more.
    const xllm_status status = guarded([&] {
        const xllm_request &request = checked(handle);
        request.engine->cancel(*request.request);
        request.request->detach(request.engine->is_own_thread());
    });
    if (status != XLLM_ERROR_WRONG_STATE) delete handle;
}

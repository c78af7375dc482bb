// Fuzz target: JSON texts of requests, and messages of an engine. The first byte says what the rest is:
//
//     o options_json   c messages_json   t tools_json   k template_kwargs_json   r response_format_json   m a message
//
// Every text must bring an answer or a status with a message; an engine that ends, a fault that it calls its own, and 200
// seconds without an answer are failures. README.md tells how to run it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "protocol.hpp"
#include "xllm/xllm.h"

using namespace libxllm;

namespace {

xllm_engine *engine = nullptr;

struct Ignore : MessageHandler {
    void on_ready(Ready) override {}
    void on_failed(Outcome) override {}
    void on_delta(std::uint64_t, Event &event) override { event.view(); }
    void on_finished(std::uint64_t, Outcome, Usage) override {}
    void on_vectors(std::uint64_t, Outcome, Usage usage, Vectors vectors) override {
        free_embeddings(to_embeddings(std::move(vectors), usage));
    }
    void on_paths(std::uint64_t, Outcome, Usage usage, Paths paths) override {
        free_recommendations(to_recommendations(std::move(paths), usage, "request", "model"));
    }
    void on_stats(std::uint64_t, const xllm_metrics &) override {}
};

[[noreturn]] void fail(const char *what) {
    std::fprintf(stderr, "%s: %s\n", what, xllm_last_error());
    std::abort();
}

void check(xllm_status status, xllm_response *response) {
    const xllm_status kind = xllm_status_class(status);
    if (status == XLLM_OK && response == nullptr) fail("no response");
    if (status != XLLM_OK && *xllm_last_error() == '\0') fail("no message");
    if (kind == XLLM_ERROR_INTERNAL || kind == XLLM_ERROR_ENGINE_DEAD || kind == XLLM_ERROR_TIMEOUT) {
        fail(xllm_status_name(status));
    }
    xllm_response_free(response);
}

void read_message(const std::string &message) {
    Ignore handler;
    try {
        MessageReader().read(message, handler);
    } catch (const MalformedMessage &) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    xllm_engine_options options = XLLM_ENGINE_OPTIONS_INIT;
    options.options_json = R"({"tool_call_parser": "hermes"})";
    if (xllm_engine_create(&options, &engine) != XLLM_OK) fail("no engine");
    std::atexit([] { xllm_engine_destroy(engine); });
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size == 0) return 0;
    const std::string text(reinterpret_cast<const char *>(data) + 1, size - 1);
    const xllm_message message = {"user", "x"};
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    xllm_response *response = nullptr;
    options.timeout_ms = 200000;
    switch (data[0]) {
        case 'o': options.options_json = text.c_str(); break;
        case 't': options.tools_json = text.c_str(); break;
        case 'k': options.template_kwargs_json = text.c_str(); break;
        case 'r': options.response_format_json = text.c_str(); break;
        case 'c': break;
        case 'm': read_message(text); return 0;
        default: return -1;
    }
    // Not one expression: the order in which arguments are read is the compiler's choice.
    const xllm_status status = data[0] == 'c' ? xllm_chat_json(engine, text.c_str(), &options, &response)
                                              : xllm_chat(engine, &message, 1, &options, &response);
    check(status, response);
    return 0;
}

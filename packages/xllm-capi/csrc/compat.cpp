// The earlier C API's language model functions over xllm.h. Knows nothing of the library's insides.
#include "xllm/xllm_compat.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compat_handler.hpp"
#include "compat_response.hpp"
#include "failure.hpp"

using namespace libxllm;

struct XLLM_LLM_Handler : CompatHandler {};

namespace {

constexpr std::int32_t kNoServiceTarget = 0x7fffffff;

void copy_text(char (&target)[XLLM_META_STRING_FIELD_MAX_LEN], const char *text) {
    std::snprintf(target, sizeof target, "%s", text);
}

xllm_request_options request_options(const XLLM_RequestParams &params, std::uint32_t timeout_ms) {
    require(params.beam_width == 0, "beam_width: this engine has no beam search yet; set it to 0.");
    require(params.best_of <= 1 || params.best_of == params.n, "best_of must be 1 or equal to n.");
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    if (params.request_id[0] != '\0') options.request_id = params.request_id;
    options.timeout_ms = timeout_ms;
    options.max_tokens = params.max_tokens > 0x7fffffff ? -1 : static_cast<std::int32_t>(params.max_tokens);
    options.n = static_cast<std::int32_t>(params.n);
    options.top_k = params.top_k > 0x7fffffff ? -1 : static_cast<std::int32_t>(params.top_k);
    options.logprobs = params.logprobs ? static_cast<std::int32_t>(params.top_logprobs) : -1;
    options.temperature = params.temperature;
    options.top_p = params.top_p;
    options.presence_penalty = params.presence_penalty;
    options.frequency_penalty = params.frequency_penalty;
    options.repetition_penalty = params.repetition_penalty;
    options.ignore_eos = params.ignore_eos;
    options.is_offline = params.offline;
    return options;
}

// Run `call(options, &response)`; a limit beyond the context means up to its end, as it always did.
template <typename Call>
xllm_status call_with_limit(xllm_request_options options, xllm_response **response, Call &&call) {
    const xllm_status status = call(&options, response);
    if (status != XLLM_ERROR_REQUEST_TOO_LONG || options.max_tokens < 0) return status;
    options.max_tokens = -1;
    return call(&options, response);
}

// The checks and steps that completions and chat share.
template <typename Call>
XLLM_Response *run(XLLM_LLM_Handler *handler, const char *model_id, std::uint32_t timeout_ms,
                   const XLLM_RequestParams *given, const CompatShape &shape, bool has_input, Call &&call) {
    std::shared_lock<std::shared_mutex> lock;
    if (XLLM_Response *refusal = begin_call(handler, model_id, has_input, lock)) return refusal;
    XLLM_RequestParams params;
    xllm_llm_request_params_default(&params);
    if (given != nullptr) params = *given;
    xllm_response *response = nullptr;
    const xllm_status status = guarded([&] {
        const xllm_request_options options = request_options(params, timeout_ms);
        const xllm_status result = call_with_limit(options, &response, call);
        if (result != XLLM_OK) throw Failure(result, xllm_last_error());
    });
    if (status != XLLM_OK) return failed_response(compat_code(status), xllm_last_error());
    const std::unique_ptr<xllm_response, void (*)(xllm_response *)> owner(response, xllm_response_free);
    CompatShape filled = shape;
    filled.is_echoed = params.echo;
    return compat_response(*response, filled);
}

}  // namespace

XLLM_LLM_Handler *xllm_llm_create(void) { return new (std::nothrow) XLLM_LLM_Handler; }

void xllm_llm_destroy(XLLM_LLM_Handler *handler) {
    if (handler == nullptr) return;
    end_calls(*handler);
    delete handler;
}

void xllm_llm_init_options_default(XLLM_InitOptions *options) {
    if (options == nullptr) return;
    std::memset(options, 0, sizeof *options);
    options->enable_chunked_prefill = true;
    options->enable_prefix_cache = true;
    options->cp_size = 1;
    options->transfer_listen_port = 26000;
    options->nnodes = 1;
    options->dp_size = 1;
    options->ep_size = 1;
    copy_text(options->task, "generate");
    copy_text(options->communication_backend, "lccl");
    copy_text(options->instance_role, "DEFAULT");
    copy_text(options->master_node_addr, "127.0.0.1:18899");
    copy_text(options->kv_cache_transfer_mode, "PUSH");
}

bool xllm_llm_initialize(XLLM_LLM_Handler *handler, const char *model_path, const XLLM_InitOptions *options) {
    return guarded([&] {
               XLLM_InitOptions copy;
               xllm_llm_init_options_default(&copy);
               if (options != nullptr) copy = *options;
               initialize(handler, model_path, copy, "");
           }) == XLLM_OK;
}

void xllm_llm_request_params_default(XLLM_RequestParams *params) {
    if (params == nullptr) return;
    std::memset(params, 0, sizeof *params);
    params->n = 1;
    params->max_tokens = 5120;
    params->best_of = 1;
    params->ttlt_slo_ms = kNoServiceTarget;
    params->ttft_slo_ms = kNoServiceTarget;
    params->tpot_slo_ms = kNoServiceTarget;
    params->top_k = -1;
    params->top_p = 1.0F;
    params->repetition_penalty = 1.0F;
}

XLLM_Response *xllm_llm_completions(XLLM_LLM_Handler *handler, const char *model_id, const char *prompt,
                                    uint32_t timeout_ms, const XLLM_RequestParams *params) {
    return compat_guarded([&] {
        const bool has_prompt = prompt != nullptr && *prompt != '\0';
        const CompatShape shape{false, has_prompt ? prompt : ""};
        return run(handler, model_id, timeout_ms, params, shape, has_prompt,
                   [&](const xllm_request_options *options, xllm_response **response) {
                       return xllm_complete(handler->engine, prompt, options, response);
                   });
    });
}

XLLM_Response *xllm_llm_chat_completions(XLLM_LLM_Handler *handler, const char *model_id,
                                         const XLLM_ChatMessage *messages, size_t messages_count,
                                         uint32_t timeout_ms, const XLLM_RequestParams *params) {
    return compat_guarded([&] {
        bool has_messages = messages != nullptr && messages_count > 0;
        std::vector<xllm_message> entries;
        for (size_t i = 0; has_messages && i < messages_count; ++i) {
            has_messages = messages[i].role[0] != '\0' && messages[i].content != nullptr;
            entries.push_back({messages[i].role, messages[i].content});
        }
        return run(handler, model_id, timeout_ms, params, CompatShape{true, ""}, has_messages,
                   [&](const xllm_request_options *options, xllm_response **response) {
                       return xllm_chat(handler->engine, entries.data(), entries.size(), options, response);
                   });
    });
}

void xllm_llm_free_response(XLLM_Response *response) { free_compat_response(response); }

// The earlier C API's language model functions over xllm.h. Knows nothing of the library's insides.
#include "xllm/xllm_compat.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "compat_response.hpp"
#include "failure.hpp"

using namespace libxllm;

struct XLLM_LLM_Handler {
    // Calls hold it shared, initialize and destroy alone: so destroy waits for calls in flight.
    std::shared_mutex mutex;
    xllm_engine *engine = nullptr;
    std::string model_id;
};

namespace {

constexpr std::int32_t kNoServiceTarget = 0x7fffffff;

void copy_text(char (&target)[XLLM_META_STRING_FIELD_MAX_LEN], const char *text) {
    std::snprintf(target, sizeof target, "%s", text);
}

std::string last_part(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path.substr(path.rfind('/') + 1);
}

std::string json_string(const std::string &text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return quoted + '"';
}

// Throw Failure for what would change results or placement and cannot be done here.
void refuse_unsupported(const XLLM_InitOptions &options) {
    const auto refuse_if = [](bool is_set, const char *name) {
        if (is_set) throw Failure(XLLM_ERROR_UNSUPPORTED, std::string(name) + ": this engine cannot do that yet.");
    };
    const std::string task(options.task, strnlen(options.task, sizeof options.task));
    refuse_if(options.enable_disagg_pd, "enable_disagg_pd");
    refuse_if(options.enable_pd_ooc, "enable_pd_ooc");
    refuse_if(options.cp_size > 1, "cp_size");
    refuse_if(options.nnodes > 1, "nnodes");
    refuse_if(options.dp_size > 1, "dp_size");
    refuse_if(options.ep_size > 1, "ep_size");
    refuse_if(options.num_speculative_tokens > 0, "num_speculative_tokens");
    refuse_if(options.draft_model[0] != '\0', "draft_model");
    refuse_if(options.xservice_addr[0] != '\0', "xservice_addr");
    refuse_if(!task.empty() && task != "generate", "task");
}

std::string options_json(const XLLM_InitOptions &options, const std::string &model_id) {
    std::string json = "{\"model_id\": " + json_string(model_id);
    const auto number = [&](const char *name, std::uint32_t value) {
        if (value != 0) json += std::string(", \"") + name + "\": " + std::to_string(value);
    };
    const auto boolean = [&](const char *name, bool value) {
        json += std::string(", \"") + name + (value ? "\": true" : "\": false");
    };
    boolean("enable_chunked_prefill", options.enable_chunked_prefill);
    boolean("enable_prefix_cache", options.enable_prefix_cache);
    number("block_size", options.block_size);
    number("max_cache_size", options.max_cache_size);
    number("max_num_batched_tokens", options.max_tokens_per_batch);
    number("max_num_seqs", options.max_seqs_per_batch);
    number("max_prefill_chunk", options.max_tokens_per_chunk_for_prefill);
    number("num_request_handling_threads", options.num_request_handling_threads);
    number("max_num_waiting", options.request_queue_size);
    if (options.max_memory_utilization > 0) {
        json += ", \"memory_utilization\": " + std::to_string(options.max_memory_utilization);
    }
    return json + "}";
}

void initialize(XLLM_LLM_Handler *handler, const char *model_path, const XLLM_InitOptions *given) {
    require(handler != nullptr, "handler must not be NULL.");
    require(model_path != nullptr && *model_path != '\0', "model_path must not be NULL or empty.");
    XLLM_InitOptions options;
    xllm_llm_init_options_default(&options);
    if (given != nullptr) options = *given;
    refuse_unsupported(options);

    const std::unique_lock lock(handler->mutex);
    if (handler->engine != nullptr) {
        throw Failure(XLLM_ERROR_WRONG_STATE, "The handler is initialized already: destroy it and create another.");
    }
    handler->model_id = last_part(model_path);
    const std::string json = options_json(options, handler->model_id);
    const std::string log_path = std::string(options.log_dir) + "/xllm.log";
    xllm_engine_options engine_options = XLLM_ENGINE_OPTIONS_INIT;
    engine_options.model = model_path;
    engine_options.options_json = json.c_str();
    if (options.log_dir[0] != '\0') engine_options.log_path = log_path.c_str();
    const xllm_status status = xllm_engine_create(&engine_options, &handler->engine);
    if (status != XLLM_OK) throw Failure(status, xllm_last_error());
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
    if (handler == nullptr || model_id == nullptr || *model_id == '\0' || !has_input) {
        return failed_response(kInvalidRequest, "handler, model_id and the input must not be NULL or empty.");
    }
    XLLM_RequestParams params;
    xllm_llm_request_params_default(&params);
    if (given != nullptr) params = *given;

    const std::shared_lock lock(handler->mutex);
    if (handler->engine == nullptr) return failed_response(kNotInitialized, "The handler is not initialized.");
    if (handler->model_id != model_id) {
        return failed_response(kModelNotFound, "The loaded model is " + handler->model_id + ".");
    }
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
    {
        const std::unique_lock lock(handler->mutex);
        xllm_engine_destroy(handler->engine);
    }
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
    return guarded([&] { initialize(handler, model_path, options); }) == XLLM_OK;
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

#include "compat_handler.hpp"

#include <cstring>

#include "compat_response.hpp"
#include "failure.hpp"

namespace libxllm {

namespace {

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

std::string options_json(const XLLM_InitOptions &options, const std::string &model_id, const std::string &further) {
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
    return json + further + "}";
}

}  // namespace

void initialize(CompatHandler *handler, const char *model_path, const XLLM_InitOptions &options,
                const std::string &further_json) {
    require(handler != nullptr, "handler must not be NULL.");
    require(model_path != nullptr && *model_path != '\0', "model_path must not be NULL or empty.");
    refuse_unsupported(options);

    const std::unique_lock lock(handler->mutex);
    if (handler->engine != nullptr) {
        throw Failure(XLLM_ERROR_WRONG_STATE, "The handler is initialized already: destroy it and create another.");
    }
    handler->model_id = last_part(model_path);
    const std::string json = options_json(options, handler->model_id, further_json);
    const std::string log_path = std::string(options.log_dir) + "/xllm.log";
    xllm_engine_options engine_options = XLLM_ENGINE_OPTIONS_INIT;
    engine_options.model = model_path;
    engine_options.options_json = json.c_str();
    if (options.log_dir[0] != '\0') engine_options.log_path = log_path.c_str();
    const xllm_status status = xllm_engine_create(&engine_options, &handler->engine);
    if (status != XLLM_OK) throw Failure(status, xllm_last_error());
}

XLLM_Response *begin_call(CompatHandler *handler, const char *model_id, bool has_input,
                          std::shared_lock<std::shared_mutex> &lock) {
    if (handler == nullptr || model_id == nullptr || *model_id == '\0' || !has_input) {
        return failed_response(kInvalidRequest, "handler, model_id and the input must not be NULL or empty.");
    }
    lock = std::shared_lock(handler->mutex);
    if (handler->engine == nullptr) return failed_response(kNotInitialized, "The handler is not initialized.");
    if (handler->model_id != model_id) {
        return failed_response(kModelNotFound, "The loaded model is " + handler->model_id + ".");
    }
    return nullptr;
}

void end_calls(CompatHandler &handler) {
    const std::unique_lock lock(handler.mutex);
    xllm_engine_destroy(handler.engine);
    handler.engine = nullptr;
}

}  // namespace libxllm

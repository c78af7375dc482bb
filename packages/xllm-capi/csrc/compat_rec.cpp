// The earlier C API's recommendation functions over xllm.h. Knows nothing of the library's insides.
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "compat_handler.hpp"
#include "compat_response.hpp"
#include "compat_tensors.hpp"
#include "xllm/xllm_compat.h"

using namespace libxllm;

struct XLLM_REC_Handler : CompatHandler {};

namespace {

std::string search_json(const XLLM_InitOptions &options) {
    std::string json = ", \"backend\": \"rec\"";
    const auto number = [&](const char *name, std::uint32_t value) {
        if (value != 0) json += std::string(", \"") + name + "\": " + std::to_string(value);
    };
    number("beam_width", options.beam_width);
    number("max_decode_rounds", options.max_decode_rounds);
    number("rec_worker_max_concurrency", options.rec_worker_max_concurrency);
    return json;
}

xllm_recommend_options recommend_options(const XLLM_RequestParams &params, std::uint32_t timeout_ms) {
    constexpr std::uint32_t kMost = 0x7fffffff;
    require(params.beam_width <= kMost && params.num_return_sequences <= kMost, "beam_width is too large.");
    xllm_recommend_options options = XLLM_RECOMMEND_OPTIONS_INIT;
    if (params.request_id[0] != '\0') options.request_id = params.request_id;
    options.timeout_ms = timeout_ms;
    options.beam_width = static_cast<std::int32_t>(params.beam_width);
    options.num_return_sequences = static_cast<std::int32_t>(params.num_return_sequences);
    return options;
}

// The checks and steps that all calls share.
template <typename Call>
XLLM_Response *recommend(XLLM_REC_Handler *handler, const char *model_id, std::uint32_t timeout_ms,
                         const XLLM_RequestParams *given, const CompatShape &shape, bool has_input, Call &&call) {
    std::shared_lock<std::shared_mutex> lock;
    if (XLLM_Response *refusal = begin_call(handler, model_id, has_input, lock)) return refusal;
    XLLM_RequestParams params;
    xllm_rec_request_params_default(&params);
    if (given != nullptr) params = *given;
    const xllm_recommend_options options = recommend_options(params, timeout_ms);
    xllm_recommendations *found = nullptr;
    const xllm_status status = call(&options, &found);
    if (status != XLLM_OK) return failed_response(compat_code(status), xllm_last_error());
    const std::unique_ptr<xllm_recommendations, void (*)(xllm_recommendations *)> owner(found,
                                                                                        xllm_recommendations_free);
    CompatShape filled = shape;
    filled.is_echoed = params.echo;
    return compat_response(*found, filled);
}

}  // namespace

XLLM_REC_Handler *xllm_rec_create(void) { return new (std::nothrow) XLLM_REC_Handler; }

void xllm_rec_destroy(XLLM_REC_Handler *handler) {
    if (handler == nullptr) return;
    end_calls(*handler);
    delete handler;
}

void xllm_rec_init_options_default(XLLM_InitOptions *options) {
    if (options == nullptr) return;
    xllm_llm_init_options_default(options);
    options->beam_width = 128;
    options->max_decode_rounds = 3;
    options->max_token_per_req = 1000;
    options->rec_worker_max_concurrency = 2;
    options->request_queue_size = 16;
}

bool xllm_rec_initialize(XLLM_REC_Handler *handler, const char *model_path, const XLLM_InitOptions *given) {
    return guarded([&] {
               XLLM_InitOptions options;
               xllm_rec_init_options_default(&options);
               if (given != nullptr) options = *given;
               initialize(handler, model_path, options, search_json(options));
           }) == XLLM_OK;
}

void xllm_rec_request_params_default(XLLM_RequestParams *params) {
    if (params == nullptr) return;
    xllm_llm_request_params_default(params);
    params->beam_width = 128;
}

XLLM_Response *xllm_rec_text_completions(XLLM_REC_Handler *handler, const char *model_id, const char *prompt,
                                         uint32_t timeout_ms, const XLLM_RequestParams *params) {
    return compat_guarded([&] {
        const bool has_prompt = prompt != nullptr && *prompt != '\0';
        return recommend(handler, model_id, timeout_ms, params, CompatShape{false, has_prompt ? prompt : ""},
                         has_prompt, [&](const xllm_recommend_options *options, xllm_recommendations **found) {
                             return xllm_recommend(handler->engine, prompt, options, found);
                         });
    });
}

XLLM_Response *xllm_rec_token_completions(XLLM_REC_Handler *handler, const char *model_id, const int32_t *token_ids,
                                          size_t token_size, uint32_t timeout_ms, const XLLM_RequestParams *params) {
    return compat_guarded([&] {
        return recommend(handler, model_id, timeout_ms, params, CompatShape{}, token_ids != nullptr && token_size > 0,
                         [&](const xllm_recommend_options *options, xllm_recommendations **found) {
                             return xllm_recommend_tokens(handler->engine, token_ids, token_size, options, found);
                         });
    });
}

XLLM_Response *xllm_rec_multimodal_completions(XLLM_REC_Handler *handler, const char *model_id,
                                               const int32_t *token_ids, size_t token_size,
                                               const XLLM_MM_Data *mm_data, uint32_t timeout_ms,
                                               const XLLM_RequestParams *params) {
    if (mm_data == nullptr) {
        return xllm_rec_token_completions(handler, model_id, token_ids, token_size, timeout_ms, params);
    }
    return compat_guarded([&] {
        const bool has_tokens = token_ids != nullptr && token_size > 0;
        return recommend(handler, model_id, timeout_ms, params, CompatShape{}, true,
                         [&](const xllm_recommend_options *options, xllm_recommendations **found) {
                             const TensorInput input = tensor_input(*mm_data, has_tokens ? token_ids : nullptr,
                                                                    has_tokens ? token_size : 0);
                             return xllm_recommend_tensors(handler->engine, input.token_ids, input.num_token_ids,
                                                           input.views.data(), input.views.size(), options, found);
                         });
    });
}

XLLM_Response *xllm_rec_chat_completions(XLLM_REC_Handler *handler, const char *model_id,
                                         const XLLM_ChatMessage *messages, size_t messages_count, uint32_t timeout_ms,
                                         const XLLM_RequestParams *params) {
    return compat_guarded([&] {
        bool has_messages = messages != nullptr && messages_count > 0;
        std::vector<xllm_message> entries;
        for (size_t i = 0; has_messages && i < messages_count; ++i) {
            has_messages = messages[i].role[0] != '\0' && messages[i].content != nullptr;
            entries.push_back({messages[i].role, messages[i].content});
        }
        return recommend(handler, model_id, timeout_ms, params, CompatShape{true, ""}, has_messages,
                         [&](const xllm_recommend_options *options, xllm_recommendations **found) {
                             return xllm_recommend_chat(handler->engine, entries.data(), entries.size(), options,
                                                        found);
                         });
    });
}

void xllm_rec_free_response(XLLM_Response *response) { free_compat_response(response); }

// The earlier C API's recommendation functions: they link, and answer that they are not supported yet.
#include <cstring>
#include <new>

#include "compat_response.hpp"
#include "xllm/xllm_compat.h"

using namespace libxllm;

struct XLLM_REC_Handler {};

namespace {

XLLM_Response *unsupported(const XLLM_REC_Handler *handler) {
    return compat_guarded([&] {
        if (handler == nullptr) return failed_response(kInvalidRequest, "handler must not be NULL.");
        return failed_response(kNotInitialized, "This engine has no generative recommendation yet.");
    });
}

}  // namespace

XLLM_REC_Handler *xllm_rec_create(void) { return new (std::nothrow) XLLM_REC_Handler; }

void xllm_rec_destroy(XLLM_REC_Handler *handler) { delete handler; }

void xllm_rec_init_options_default(XLLM_InitOptions *options) {
    if (options == nullptr) return;
    xllm_llm_init_options_default(options);
    options->beam_width = 128;
    options->max_decode_rounds = 3;
    options->max_token_per_req = 1000;
    options->rec_worker_max_concurrency = 2;
    options->request_queue_size = 16;
}

bool xllm_rec_initialize(XLLM_REC_Handler *handler, const char *model_path, const XLLM_InitOptions *) {
    return guarded([&] {
               require(handler != nullptr, "handler must not be NULL.");
               require(model_path != nullptr && *model_path != '\0', "model_path must not be NULL or empty.");
               throw Failure(XLLM_ERROR_UNSUPPORTED, "This engine has no generative recommendation yet.");
           }) == XLLM_OK;
}

void xllm_rec_request_params_default(XLLM_RequestParams *params) {
    if (params == nullptr) return;
    xllm_llm_request_params_default(params);
    params->beam_width = 128;
}

XLLM_Response *xllm_rec_text_completions(XLLM_REC_Handler *handler, const char *, const char *, uint32_t,
                                         const XLLM_RequestParams *) {
    return unsupported(handler);
}

XLLM_Response *xllm_rec_token_completions(XLLM_REC_Handler *handler, const char *, const int32_t *, size_t, uint32_t,
                                          const XLLM_RequestParams *) {
    return unsupported(handler);
}

XLLM_Response *xllm_rec_multimodal_completions(XLLM_REC_Handler *handler, const char *, const int32_t *, size_t,
                                               const XLLM_MM_Data *, uint32_t, const XLLM_RequestParams *) {
    return unsupported(handler);
}

XLLM_Response *xllm_rec_chat_completions(XLLM_REC_Handler *handler, const char *, const XLLM_ChatMessage *, size_t,
                                         uint32_t, const XLLM_RequestParams *) {
    return unsupported(handler);
}

void xllm_rec_free_response(XLLM_Response *response) { free_compat_response(response); }

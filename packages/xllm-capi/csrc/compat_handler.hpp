// What the handlers of the earlier C API share: their engine, their life, the checks before a call.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <string>

#include "xllm/xllm_compat.h"

namespace libxllm {

struct CompatHandler {
    // Calls hold it shared, initialize and destroy alone: so destroy waits for calls in flight.
    std::shared_mutex mutex;
    xllm_engine *engine = nullptr;
    std::string model_id;
};

// Start the engine; `further_json` holds options beside those of `options`, each as `, "name": value`. Throws Failure.
void initialize(CompatHandler *handler, const char *model_path, const XLLM_InitOptions &options,
                const std::string &further_json);

// Lock the handler for a call on its engine; a response when the call cannot be made.
XLLM_Response *begin_call(CompatHandler *handler, const char *model_id, bool has_input,
                          std::shared_lock<std::shared_mutex> &lock);

// Wait for calls in flight and end the engine.
void end_calls(CompatHandler &handler);

}  // namespace libxllm

// What stands behind the handles that C callers hold, and the checks that every call on one begins with.
#pragma once

#include <memory>

#include "engine.hpp"
#include "xllm/xllm.h"

struct xllm_engine {
    std::shared_ptr<libxllm::Engine> engine;
};

struct xllm_request {
    std::shared_ptr<libxllm::Engine> engine;
    std::shared_ptr<libxllm::Request> request;
};

namespace libxllm {

template <typename Handle>
void clear(Handle **out) {
    if (out != nullptr) *out = nullptr;
}

inline Engine &checked(xllm_engine *engine) {
    require(engine != nullptr, "engine must not be NULL.");
    engine->engine->check_process();
    return *engine->engine;
}

inline xllm_request &checked(xllm_request *request) {
    require(request != nullptr, "request must not be NULL.");
    request->engine->check_process();
    return *request;
}

}  // namespace libxllm

// Responses of the earlier C API: how they are built and freed. Knows nothing of handlers or requests.
#pragma once

#include <new>
#include <string>

#include "failure.hpp"
#include "xllm/xllm_compat.h"

namespace libxllm {

// What a response looks like beside its content.
struct CompatShape {
    bool is_chat = false;
    std::string prompt;  // put before the text when it is echoed
    bool is_echoed = false;
};

// The earlier status code for one of ours.
XLLM_StatusCode compat_code(xllm_status status);

XLLM_Response *compat_response(const xllm_response &response, const CompatShape &shape);
XLLM_Response *compat_response(const xllm_recommendations &found, const CompatShape &shape);
XLLM_Response *failed_response(XLLM_StatusCode code, const std::string &message);
void free_compat_response(XLLM_Response *response) noexcept;

// Run `body`, which returns a response; nullptr only when memory is out.
template <typename Body>
XLLM_Response *compat_guarded(Body &&body) noexcept {
    XLLM_Response *response = nullptr;
    const xllm_status status = guarded([&] { response = body(); });
    if (status == XLLM_OK || status == XLLM_ERROR_OUT_OF_MEMORY) return response;
    guarded([&] { response = failed_response(compat_code(status), xllm_last_error()); });
    return response;
}

}  // namespace libxllm

// Checks of everything that C callers hand in, before anything is done with it. Knows nothing of engines.
#pragma once

#include <algorithm>
#include <cstring>

#include "failure.hpp"
#include "protocol.hpp"
#include "xllm/xllm.h"

namespace libxllm {

xllm_engine_options default_engine_options();
xllm_request_options default_request_options();
xllm_pooling_options default_pooling_options();
xllm_recommend_options default_recommend_options();

// Throw Failure(XLLM_ERROR_INVALID_ARGUMENT) if `size` is no size that `struct_name` ever had.
void check_struct_size(std::size_t size, std::size_t min_size, std::size_t max_size, const char *struct_name);

// The caller's options over `defaults`: an older caller's shorter struct leaves the newer fields at their defaults.
template <typename Options>
Options copy_options(const Options *given, Options defaults, const char *struct_name) {
    if (given == nullptr) return defaults;
    // No version has had fewer fields than the first, so the first version's size will be the minimum.
    check_struct_size(given->struct_size, sizeof(Options), sizeof(Options), struct_name);
    std::memcpy(&defaults, given, std::min(given->struct_size, sizeof(Options)));
    defaults.struct_size = sizeof(Options);
    return defaults;
}

// What every `_init` function does.
template <typename Options>
xllm_status init_options(Options *options, std::size_t struct_size, Options defaults, const char *struct_name) {
    return guarded([&] {
        require(options != nullptr, "options must not be NULL.");
        check_struct_size(struct_size, sizeof *options, sizeof *options, struct_name);
        std::memcpy(options, &defaults, struct_size);
        options->struct_size = struct_size;
    });
}

// Throw Failure(XLLM_ERROR_INVALID_ARGUMENT) naming the argument: NULL, or not UTF-8.
void check_text(const char *text, const char *name);
void check_optional_text(const char *text, const char *name);

// Check a request's input and options. Throws Failure(XLLM_ERROR_INVALID_ARGUMENT or _UNSUPPORTED).
void check_input(const Input &input);
void check_options(const xllm_request_options &options);
void check_input(const PoolingInput &input);
void check_options(const xllm_pooling_options &options);
void check_options(const xllm_recommend_options &options);

}  // namespace libxllm

// From the earlier C API's tensors to those of xllm.h. Knows nothing of handlers or of what the tensors mean to a model.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "xllm/xllm_compat.h"

namespace libxllm {

// A tensor's values in a kind that xllm.h takes: floats, or integers where `is_integral`.
struct OwnedTensor {
    std::string name;
    std::vector<std::int64_t> shape;
    bool is_integral = false;
    std::vector<float> floats;
    std::vector<std::int64_t> integers;

    xllm_tensor view() const;
};

// What xllm_recommend_tensors is given; `views` point into `tensors`.
struct TensorInput {
    const std::int32_t *token_ids = nullptr;
    std::size_t num_token_ids = 0;
    std::deque<OwnedTensor> tensors;
    std::vector<xllm_tensor> views;
};

// The tensors of a dictionary under their keys; or items as the three tensors of a language model, which hold the tokens.
// Throws Failure(XLLM_ERROR_INVALID_ARGUMENT) that names the field.
TensorInput tensor_input(const XLLM_MM_Data &data, const std::int32_t *token_ids, std::size_t num_token_ids);

}  // namespace libxllm

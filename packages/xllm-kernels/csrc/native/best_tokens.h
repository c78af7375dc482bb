// The best entries of a row, by falling value and, among equal values, by rising index. Knows nothing of probabilities.
#pragma once

#include <cstdint>
#include <vector>

namespace xllm::kernels::native {

// Indices of the `width` (from 1 to size) best of `row` [size], in order.
void best_tokens(const float* row, int64_t size, int64_t width, std::vector<int32_t>& ids);

}  // namespace xllm::kernels::native

// Orders many pairs of a token and an expert by expert, by many blocks.
#pragma once

#include "xllm/kernels/cuda/experts.h"

namespace xllm::kernels::cuda {

// Writes row_of_pair, token_of_row and starts from experts; `counts` is scratch [kOrderBlocks, num_experts].
void order_many(const Routing& routing, int32_t* counts, int64_t num_pairs, int top_k, int num_experts, void* stream);

}  // namespace xllm::kernels::cuda

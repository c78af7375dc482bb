// What a step must satisfy before anything is computed.
#pragma once

#include "kv_cache.h"
#include "xllm/kernels/native/decoder.h"

namespace xllm::kernels::native {

// Throws std::invalid_argument naming the array and the entry.
void check_shape(const DecoderShape& shape, int64_t num_positions);
void check_step(const StepArgs& args, const DecoderShape& shape, const KVCache& cache, int64_t num_positions);
void check_blocks(const int32_t* blocks, int64_t num_blocks, const KVCache& cache);

}  // namespace xllm::kernels::native

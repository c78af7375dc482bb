// One decode step's attention over a paged cache of 8-bit floats, with what stands before it fused. Needs sm_80; fastest on sm_90.
#pragma once

#include "xllm/kernels/cuda/decode_attention.h"

namespace xllm::kernels::cuda {

// As decode_attention, except that the caches hold e4m3, which times the scales are K and V, and that all else is of its type.
// New K and V are divided by the scales, rounded, and cut at the largest e4m3.
struct Float8AttentionArgs {
  DecodeAttentionArgs attention;  // its configuration is not looked at
  float key_scale;
  float value_scale;
};

// nullptr when these sizes are served, else what stands against it.
const char* why_no_float8_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size);

// Throws std::invalid_argument for what why_no_float8_attention refuses or too small a workspace, std::runtime_error for CUDA's errors.
void float8_attention(const Float8AttentionArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

// One decode step's attention over paged KV, with what stands before it fused. Needs sm_90.
#pragma once

#include <stdint.h>

#include "xllm/kernels/cuda/half_type.h"

namespace xllm::kernels::cuda {

// Each row is the newest token of one sequence. Where cos_sin is given, q and k are first normalised (where q_norm and k_norm are
// given) and rotated. The new token's k and v go to the cache; then out = softmax(q K^T * scale) V over the sequence's tokens.
// All of one 16-bit type, accumulated in float32. Heads are contiguous; rows of q, k and v lie row strides (elements) apart.
struct DecodeAttentionArgs {
  const void* q;                // [batch, num_heads, head_dim]
  const void* k;                // [batch, num_kv_heads, head_dim]
  const void* v;
  int64_t q_row_stride;
  int64_t kv_row_stride;
  const void* q_norm;           // [head_dim] or null
  const void* k_norm;
  const float* cos_sin;         // [max_position, head_dim]: cosines, then sines; or null
  void* key_cache;              // [num_blocks, block_size, num_kv_heads, head_dim]
  void* value_cache;
  const int32_t* block_tables;  // [batch, table_width]
  const int32_t* seq_lens;      // [batch]: tokens with the new one; a row of 0 is unused: nothing is read or written for it
  const int32_t* positions;     // [batch]: rows of cos_sin; null: each token's index in its sequence
  void* out;                    // [batch, num_heads, head_dim], dense
  float* workspace;             // as for linear_stream
  int64_t workspace_size;
  int32_t* counters;
  int64_t num_counters;
  int64_t num_blocks;
  int batch;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int block_size;
  int table_width;
  int max_seq_len;              // bounds seq_lens; only speed depends on it
  int splits;                   // parts of each context that blocks take in parallel; 0 chooses
  int configuration;            // 0 chooses, 1 is one stage of tiles, 2 a ring of two, 3 of three
  float scale;
  float eps;
  HalfType type;
};

// nullptr when these sizes are served, else what stands against it.
const char* why_no_decode_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size);

// Throws std::invalid_argument for what why_no_decode_attention refuses, std::runtime_error for CUDA's errors.
void decode_attention(const DecodeAttentionArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

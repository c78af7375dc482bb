// Operations on rows of a 16-bit type, computed in float32 and rounded once. Sizes along a row are multiples of 8 elements, memory is
// aligned to 16 bytes, row strides are in elements and multiples of 8. Every function throws std::runtime_error for CUDA's errors.
#pragma once

#include <stdint.h>

#include "xllm/kernels/cuda/half_type.h"

namespace xllm::kernels::cuda {

// out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight
struct RmsNormArgs {
  const void* x;           // [num_rows, size]
  const void* weight;      // [size]
  void* out;               // [num_rows, size]; may be x
  int64_t num_rows;
  int64_t size;
  int64_t x_row_stride;
  int64_t out_row_stride;
  float eps;
  HalfType type;
};
void rms_norm(const RmsNormArgs& args, void* stream);

// residual += x (rounded), then x = rms_norm(residual)
struct AddRmsNormArgs {
  void* x;                 // [num_rows, size], dense
  void* residual;          // [num_rows, size], dense
  const void* weight;      // [size]
  int64_t num_rows;
  int64_t size;
  float eps;
  HalfType type;
};
void add_rms_norm(const AddRmsNormArgs& args, void* stream);

// Rotates query and key in place: element i of a head pairs with element i + rotary_dim / 2.
struct RotaryEmbeddingArgs {
  const int64_t* positions;  // [num_tokens]
  void* query;               // [num_tokens, num_heads, head_dim]
  void* key;                 // [num_tokens, num_kv_heads, head_dim]
  const float* cos_sin;      // [max_position, rotary_dim]: cosines, then sines
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;        // a multiple of 4, at most head_dim
  int64_t query_row_stride;
  int64_t key_row_stride;
  HalfType type;
};
void rotary_embedding(const RotaryEmbeddingArgs& args, void* stream);

// Normalises every head of query and key (as rms_norm, over the head) and rotates it as rotary_embedding, in place.
struct NormAndRotateArgs {
  RotaryEmbeddingArgs heads;  // head_dim 64 or 128, all of it rotated
  const void* q_norm;         // [head_dim]
  const void* k_norm;         // [head_dim]
  float eps;
};
void norm_and_rotate(const NormAndRotateArgs& args, void* stream);

// Copies row t of key and value to slot slot_mapping[t] of the caches; a negative slot is skipped.
struct WriteKvArgs {
  const void* key;              // [num_tokens, width], width = num_kv_heads * head_dim
  const void* value;
  void* key_cache;              // [slots, width]
  void* value_cache;
  const int64_t* slot_mapping;  // [num_tokens], each below the number of slots
  int64_t num_tokens;
  int64_t width;
  int64_t key_row_stride;
  int64_t value_row_stride;
};
void write_kv(const WriteKvArgs& args, void* stream);

// out[t, i] = silu(x[t, i]) * x[t, size + i]
struct SiluAndMulArgs {
  const void* x;           // [num_rows, 2 size], dense
  void* out;               // [num_rows, size], dense
  int64_t num_rows;
  int64_t size;
  HalfType type;
};
void silu_and_mul(const SiluAndMulArgs& args, void* stream);

// token_ids[t] = the first index of the largest logits[t, :], best[t] = that logit; NaN counts as the largest.
struct ArgmaxArgs {
  const void* logits;      // [num_rows, size], dense
  int32_t* token_ids;      // [num_rows]
  float* best;             // [num_rows]
  float* workspace;        // as for linear_stream: num_rows * 64 * 2 floats
  int64_t workspace_size;
  int32_t* counters;       // num_rows
  int64_t num_counters;
  int64_t num_rows;
  int64_t size;
  HalfType type;
};
void argmax(const ArgmaxArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

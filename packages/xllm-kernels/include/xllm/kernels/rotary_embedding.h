// Rotary position embedding (Su et al., 2021), half-split layout: element i pairs with i + rotary_dim / 2.
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"

namespace xllm::kernels {

// Rotates query and key in place. With c, s the halves of cos_sin_cache[positions[t]] and x1, x2 the halves of
// a head's first rotary_dim elements: x1' = x1 c - x2 s, x2' = x2 c + x1 s. Elements past rotary_dim stay.
struct RotaryEmbeddingArgs {
  const void* positions;       // int32 or int64 [num_tokens], each in [0, rows of cos_sin_cache): the caller checks
  bool positions_are_int64;
  void* query;                 // [num_tokens, num_query_heads, head_dim], tokens query_row_stride elements apart
  void* key;                   // [num_tokens, num_kv_heads, head_dim], tokens key_row_stride elements apart
  const float* cos_sin_cache;  // [max_position, rotary_dim]: cosines, then sines
  int64_t num_tokens;
  int64_t num_query_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;          // even, <= head_dim
  int64_t query_row_stride;
  int64_t key_row_stride;
  DType dtype;                 // of query and key
};

namespace cpu {
void rotary_embedding(const RotaryEmbeddingArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

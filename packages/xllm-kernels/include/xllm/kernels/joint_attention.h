// Attention of every token of one or two streams to every other one, from their projections: heads are normalised and
// rotated on the way.
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"
#include "xllm/kernels/modulation.h"

namespace xllm::kernels {

// Query, key and value side by side, and the weights of an RMSNorm of each query and key head.
struct AttentionStream {
  TokenRows qkv;        // [num_batch, num_tokens, 3 * num_heads * head_size]
  int64_t num_tokens;
  const void* q_norm;   // [head_size], or null
  const void* k_norm;
};

// out = softmax(q k^T / sqrt(head_size)) v over the tokens of both streams, the first one's first; computed in float32.
struct JointAttentionArgs {
  AttentionStream streams[2];
  int64_t num_streams;    // 1 or 2
  const float* cos;       // [tokens of both, head_size / 2], angles of pairs of neighbouring features, or null
  const float* sin;
  const int32_t* mask;    // [num_batch, tokens of both], zero for keys that nobody sees, or null
  TokenRows out;          // [num_batch, tokens of both - first_query, num_heads * head_size]
  int64_t first_query;    // tokens in front of it ask for nothing
  int64_t num_batch;
  int64_t num_heads;
  int64_t head_size;      // even where there are angles
  float eps;
  DType dtype;            // of all but the angles
};

namespace cpu {
// Throws std::bad_alloc.
void joint_attention(const JointAttentionArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

// Products of a few rows with a large quantised matrix at memory speed: weights are widened in registers. Needs sm_90.
#pragma once

#include <stdint.h>

#include "xllm/kernels/cuda/half_type.h"
#include "xllm/kernels/cuda/linear_stream.h"

namespace xllm::kernels::cuda {

// float8: e4m3 (1 byte; the two codes of NaN are read as 480), int8: two's complement, int4: unsigned nibbles with zero points.
enum class WeightKind : int { float8 = 0, int8 = 1, int4 = 2 };

// out = epilogue(norm(x) W^T + bias); x, norm_weight, bias and out in one 16-bit type, sums in float32. W [n, k] is stored as
//   8 bits: [n, k] bytes, W = value * row_scales[row] * block_scales[row / 128, column / 128], each factor 1 where its pointer is null;
//   int4: [n, k / 2] bytes, in boxes as below; W = (nibble - zero) * scale, where groups[column / 128, row]
//   holds a float32 scale whose 5 low bits are the zero point (0 to 31).
// A box of int4 is 256 columns in 128 bytes: 16-byte piece 2 t + h holds columns 128 h + 32 t and the 31 after them, its 32-bit word w
// eight of these; nibble i of a word, the lowest first, is the word's column 2 i, or 2 (i - 4) + 1 from nibble 4 on.
struct QuantisedStreamArgs {
  const void* x;             // [batch, k]
  const void* weight;
  const float* row_scales;   // [n] or null
  const float* block_scales; // [ceil(n / 128), ceil(k / 128)] or null
  const uint32_t* groups;    // int4: [stored columns / 128, n]
  const void* norm_weight;   // [k] or null: no norm
  const void* bias;          // [n] or null; not with silu_and_mul
  void* out;
  float* workspace;          // of kernels of one stream; contents are of no meaning between launches
  int64_t workspace_size;    // floats
  int32_t* counters;         // of kernels of one stream; all zero before and after
  int64_t num_counters;
  int batch;
  int n;
  int k;                     // columns of x; int4 stores them rounded up to 256
  float eps;
  Epilogue epilogue;
  WeightKind kind;
  HalfType type;
  int configuration;         // 0 chooses; 2 or 4: no ring, so many boxes ahead; else 1000 * (x in the ring) + 100 * (row tiles) + 10 * log2(slices of k) + (blocks a multiprocessor)
};

constexpr int kQuantisedStreamMaxBatch = 32;

// nullptr when a product of these sizes is served, else what stands against it.
const char* why_no_quantised_stream(int64_t n, int64_t k, Epilogue epilogue);

// Whether x of these sizes can be normed on its way; others must come normed.
bool quantised_stream_norms(int64_t batch, int64_t k);

// Throws std::invalid_argument for what why_no_quantised_stream refuses or too small a workspace, std::runtime_error for CUDA's errors.
void quantised_stream(const QuantisedStreamArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

// Matrix products of some tens of rows with a large weight matrix, at memory speed, with what follows them fused. Needs sm_90a.
#pragma once

#include <stdint.h>

#include "xllm/kernels/cuda/linear_stream.h"

namespace xllm::kernels::cuda {

// out = epilogue(scale x W^T + bias), all bfloat16, accumulated in float32; epilogues as for linear_stream. `scale` is 1, or with
// `squares` 1 / sqrt(mean of squares + eps) of each row. With add_residual and `next_norm`, next_x = out * next_norm and next_squares
// are left for the product after an RMS norm of out, at most 32 rows.
struct LinearBatchArgs {
  const void* x;       // [batch, k]
  const void* weight;  // [n, k]
  const void* bias;    // [n], or null; not with silu_and_mul
  void* out;
  int batch;
  int n;
  int k;
  Epilogue epilogue;
  int row_tiles = 0;   // 64 rows of the weight each, that a block takes, and parts of k that blocks of a cluster take: for trials;
  int splits = 0;      // both 0 chooses
  const float* squares = nullptr;   // [k / 64, 32]: parts of the sums of squares of each row, as next_squares
  float eps = 0.f;
  const void* next_norm = nullptr;  // [n]
  void* next_x = nullptr;           // [batch, n]
  float* next_squares = nullptr;    // [n / 64, 32]
};

constexpr int kLinearBatchMaxBatch = 64;

// nullptr when a product of these sizes is served, else what stands against it.
const char* why_no_linear_batch(int64_t n, int64_t k);

// Throws std::invalid_argument for what why_no_linear_batch refuses, std::runtime_error for CUDA's errors.
void linear_batch(const LinearBatchArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

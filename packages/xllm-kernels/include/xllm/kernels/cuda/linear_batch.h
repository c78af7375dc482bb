// Matrix products of some tens of rows with a large weight matrix, with what follows them fused. Needs sm_90a.
#pragma once

#include <stdint.h>

#include "xllm/kernels/cuda/linear_stream.h"

namespace xllm::kernels::cuda {

// Rows of x at most, and with the epilogue silu_and_mul.
constexpr int kLinearBatchMaxBatch = 32, kLinearBatchMaxGated = 128;

// out = epilogue(scale x W^T + bias), all of one 16-bit type, accumulated in float32; epilogues as for linear_stream. `scale` is 1, or
// with `squares` that of the norm which finishes here. With add_residual and `next_norm`, next_x (out * next_norm, in float16 a 64th of
// it, so that large numbers fit) and next_squares are left for the product after an RMS norm of out.
struct LinearBatchArgs {
  const void* x;       // [batch, k]
  const void* weight;  // [n, k]
  const void* bias;    // [n], or null; not with silu_and_mul
  void* out;
  int batch;
  int n;
  int k;
  Epilogue epilogue;
  HalfType type;
  // [k / 64, 32]: parts of the sums of squares of each of up to 32 rows of x, as next_squares are; x is then next_x
  const float* squares = nullptr;
  float eps = 0.f;
  const void* next_norm = nullptr;  // [n]
  void* next_x = nullptr;           // [batch, n]
  float* next_squares = nullptr;    // [n / 64, 32]
};

// nullptr when `batch` rows and a weight of these sizes are served, else what stands against it.
const char* why_no_linear_batch(int64_t n, int64_t k, int batch, Epilogue epilogue);

// Whether the blocks of a gated product of more than kLinearBatchMaxBatch rows, which fill a multiprocessor each, leave at most an eighth of
// these idle. Such a product was measured to be faster than cuBLAS with a kernel for gates; others were not measured.
bool tall_tiles_fill_the_device(int64_t n);

// Throws std::invalid_argument for what why_no_linear_batch refuses, std::runtime_error for CUDA's errors.
void linear_batch(const LinearBatchArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

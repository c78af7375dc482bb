// Matrix products of a few rows with a large weight matrix, at memory speed, with what surrounds them fused. Needs sm_90.
#pragma once

#include <stdint.h>

#include "xllm/kernels/cuda/half_type.h"

namespace xllm::kernels::cuda {

enum class Epilogue : int { none = 0, add_residual = 1, silu_and_mul = 2 };

// out = epilogue(norm(x) W^T + bias), all of one 16-bit type, accumulated in float32.
//   none: out [batch, n];  add_residual: out [batch, n] += ;  silu_and_mul: gate rows first, out [batch, n / 2] = silu(gate) * up
struct LinearStreamArgs {
  const void* x;            // [batch, k]
  const void* weight;       // [n, k]
  const void* norm_weight;  // [k]: x is normalised by its root mean square first; null with add_residual, and only there
  const void* bias;         // [n], or null; not with silu_and_mul
  void* out;
  int batch;
  int n;
  int k;
  float eps;
  Epilogue epilogue;
  HalfType type;
};

constexpr int kLinearStreamMaxBatch = 8;

// nullptr when a product of these sizes is served, else what stands against it.
const char* why_no_linear_stream(int64_t n, int64_t k, Epilogue epilogue);

// Throws std::invalid_argument for what why_no_linear_stream refuses, std::runtime_error for CUDA's errors.
void linear_stream(const LinearStreamArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

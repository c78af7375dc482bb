// Root-mean-square normalisation (Zhang and Sennrich, 2019), alone and fused with the residual addition.
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"

namespace xllm::kernels {

// out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight, computed in float32 and rounded once.
struct RmsNormArgs {
  const void* x;             // [num_rows, hidden_size], rows x_row_stride elements apart
  const void* weight;        // [hidden_size]
  void* out;                 // [num_rows, hidden_size], rows out_row_stride elements apart; may be x itself
  int64_t num_rows;
  int64_t hidden_size;
  int64_t x_row_stride;
  int64_t out_row_stride;
  float eps;
  DType dtype;               // of all three
};

// residual += x (rounded to dtype), then x = rms_norm(residual); the same bits as the two steps done apart.
struct AddRmsNormArgs {
  void* x;                   // [num_rows, hidden_size]
  void* residual;            // [num_rows, hidden_size]; must not overlap x
  const void* weight;        // [hidden_size]
  int64_t num_rows;
  int64_t hidden_size;
  int64_t x_row_stride;
  int64_t residual_row_stride;
  float eps;
  DType dtype;
};

namespace cpu {
void rms_norm(const RmsNormArgs& args);
void add_rms_norm(const AddRmsNormArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

// What a diffusion transformer does between matrix products: normalise and modulate, add through a gate, activate.
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"

namespace xllm::kernels {

// Rows of a batch: the same number of tokens for each of its members.
struct TokenRows {
  void* data;
  int64_t batch_stride;  // elements
  int64_t row_stride;
};

// out = layer_norm(x) * (1 + scale) + shift, without weights; computed in float32 and rounded once.
struct ModulatedNormArgs {
  TokenRows x;           // [num_batch, num_tokens, size]
  const void* shift;     // [num_batch, size], shift_stride elements apart
  const void* scale;
  TokenRows out;
  int64_t num_batch;
  int64_t num_tokens;
  int64_t size;
  int64_t shift_stride;
  int64_t scale_stride;
  float eps;
  DType dtype;           // of all four
};

// x += gate * y.
struct AddGatedArgs {
  TokenRows x;           // [num_batch, num_tokens, size]
  TokenRows y;
  const void* gate;      // [num_batch, size], gate_stride elements apart
  int64_t num_batch;
  int64_t num_tokens;
  int64_t size;
  int64_t gate_stride;
  DType dtype;
};

// out = gelu(x) by the tanh formula (Hendrycks and Gimpel, 2016).
struct GeluArgs {
  TokenRows x;           // [num_batch, num_tokens, size]
  TokenRows out;         // may be x
  int64_t num_batch;
  int64_t num_tokens;
  int64_t size;
  DType dtype;
};

namespace cpu {
void modulated_norm(const ModulatedNormArgs& args);
void add_gated(const AddGatedArgs& args);
void gelu(const GeluArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

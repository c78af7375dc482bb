// The gated activation of Llama's feed-forward network.
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"

namespace xllm::kernels {

// out[t, i] = silu(x[t, i]) * x[t, size + i] with silu(v) = v / (1 + exp(-v)), in float32, rounded once.
struct SiluAndMulArgs {
  const void* x;           // [num_rows, 2 * size], rows x_row_stride elements apart
  void* out;               // [num_rows, size], rows out_row_stride elements apart; must not overlap x
  int64_t num_rows;
  int64_t size;
  int64_t x_row_stride;
  int64_t out_row_stride;
  DType dtype;             // of both
};

namespace cpu {
void silu_and_mul(const SiluAndMulArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

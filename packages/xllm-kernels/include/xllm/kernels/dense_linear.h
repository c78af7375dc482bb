// Products of many rows with a float32 matrix that lies in tiles.
#pragma once

#include <stdint.h>

namespace xllm::kernels {

// out[t, :] = weight x[t, :] + bias, each sum in ascending order of inputs, whatever the rows around it.
struct DenseLinearArgs {
  const float* x;       // [num_rows, num_inputs], rows x_row_stride apart
  int64_t x_row_stride;
  const float* tiles;   // [num_outputs / 16, num_inputs, 16]
  const float* bias;    // [num_outputs], or null
  float* out;           // [num_rows, num_outputs], rows out_row_stride apart
  int64_t out_row_stride;
  int64_t num_rows;
  int64_t num_inputs;
  int64_t num_outputs;  // a multiple of 16
};

namespace cpu {
void dense_linear(const DenseLinearArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

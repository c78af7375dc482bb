// The two families of products behind `multiply`, and what their loops share.
#pragma once

#include "packed_matrix.h"
#include "vector.h"

namespace xllm::kernels::cpu::XLLM_ISA {

#if defined(__AVX512BF16__)
constexpr ActivationKind kBfloat16Activations = ActivationKind::bfloat16;
#else
constexpr ActivationKind kBfloat16Activations = ActivationKind::float32;
#endif

constexpr int kTileVectors = kTileOutputs / Vec::width;

void multiply_float(const MultiplyArgs& args);
void multiply_quantised(const MultiplyArgs& args);

// Calls rows.run<R>(first_row) for runs of R rows that cover [0, num_rows), R as even as may be and at most Most.
template <int Most, class Rows>
inline void for_row_groups(int64_t num_rows, const Rows& rows) {
  const int64_t num_groups = (num_rows + Most - 1) / Most;
  int64_t first = 0;
  for (int64_t left = num_groups; left > 0; --left) {
    const int64_t count = (num_rows - first + left - 1) / left;
    rows.template dispatch<Most>(count, first);
    first += count;
  }
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

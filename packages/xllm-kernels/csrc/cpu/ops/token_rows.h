// Where a row of a batch lies. Included by sources of every instruction set.
#pragma once

#include "vector.h"
#include "xllm/kernels/modulation.h"

namespace xllm::kernels::cpu::XLLM_ISA {

template <class T>
inline T* row_of(const TokenRows& rows, int64_t batch, int64_t token) {
  return static_cast<T*>(rows.data) + batch * rows.batch_stride + token * rows.row_stride;
}

// The sum of f(x) over a row; the order of additions depends on `size` alone.
template <class T, class F>
inline float sum_over(const T* x, int64_t size, F f) {
  constexpr int64_t w = Vec::width;
  Vec sums[4] = {set1(0), set1(0), set1(0), set1(0)};
  int64_t i = 0;
  for (; i + 4 * w <= size; i += 4 * w)
    for (int j = 0; j < 4; ++j) sums[j] = add(sums[j], f(load(x + i + j * w)));
  for (; i + w <= size; i += w) sums[0] = add(sums[0], f(load(x + i)));
  float total = sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  for (; i < size; ++i) {
    float lanes[Vec::width];
    store(lanes, f(load_first(x + i, 1)));
    total += lanes[0];
  }
  return total;
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

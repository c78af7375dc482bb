// A vector of floats for the instruction set that this file is compiled for, and what can be said about all of them.
//
// Sources in csrc/cpu/ops are compiled once for each instruction set, with XLLM_ISA its name. All of their code lives
// in the namespace of that name, and they use no inline function or template of the standard library: the linker
// would keep one copy of it for all, perhaps one with instructions that this CPU lacks.
//
// Each csrc/cpu/vector/*.h provides struct Vec with `width`, and
//   kept(a) = a, loaded once and not again wherever it is used,
//   set1, load and store (float, bfloat16: round to nearest even, NaN stays NaN), load of float16, load_pairs(p, even,
//   odd) for 2 * width bfloat16, add, sub, mul, div, abs, max, min (the second operand where one is NaN),
//   fma(a, b, c) = a b + c, round (to nearest even), power_of_two(n) = 2^n for integral n in [-126, 127],
//   store_bytes(p, a) for integral values in [-128, 127],
//   zero_where_less(value, a, b) = 0 where a < b, else value,
//   pair_sums(a, b) and sums_of_pairs(pairs[width / 2]): given pairs[i] = pair_sums(x[2i], x[2i + 1]), the vector of
//   the horizontal sums of x[0] .. x[width - 1].
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"

#if defined(__AVX512F__)
#include "vector/avx512.h"
#elif defined(__AVX2__)
#include "vector/avx2.h"
#else
#include "vector/portable.h"
#endif

namespace xllm::kernels::cpu::XLLM_ISA {

// The first count (< width) elements at p, then zeros.
template <class T>
inline Vec load_first(const T* p, int64_t count) {
  T padded[Vec::width] = {};
  for (int64_t i = 0; i < count; ++i) padded[i] = p[i];
  return load(padded);
}

// Writes the first count (< width) lanes to p.
template <class T>
inline void store_first(T* p, Vec a, int64_t count) {
  T padded[Vec::width];
  store(padded, a);
  for (int64_t i = 0; i < count; ++i) p[i] = padded[i];
}

inline float sum(Vec a) {
  float lanes[Vec::width];
  store(lanes, a);
  for (int step = Vec::width / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  return lanes[0];
}

inline float largest(Vec a) {
  float lanes[Vec::width];
  store(lanes, a);
  float result = lanes[0];
  for (int i = 1; i < Vec::width; ++i) result = lanes[i] > result ? lanes[i] : result;
  return result;
}

// e^x to about 1.5 ulp; 0 below -87.3, so exp(-inf) is exactly 0; e^88 above 88; exp(0) is exactly 1.
// Cody and Waite's reduction to [-ln 2 / 2, ln 2 / 2] and Cephes' polynomial (S. Moshier, expf).
inline Vec exp(Vec x) {
  const Vec lowest = set1(-87.3f);
  const Vec bounded = min(set1(88.0f), max(lowest, x));  // in this order a NaN passes
  const Vec n = round(mul(bounded, set1(1.44269504088896341f)));
  Vec r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return zero_where_less(mul(p, power_of_two(n)), x, lowest);
}

inline float exp(float x) {
  float lanes[Vec::width];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

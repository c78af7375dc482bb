// Four floats as a GCC vector: SSE2 on x86-64, NEON on AArch64. See vector.h for what every vector type provides.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace xllm::kernels::cpu::XLLM_ISA {

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using Uint4 = uint32_t __attribute__((vector_size(16)));

struct Vec {
  static constexpr int width = 4;
  Float4 v;
};

inline Vec set1(float x) { return {Float4{x, x, x, x}}; }

inline Vec load(const float* p) {
  Vec a;
  __builtin_memcpy(&a.v, p, sizeof a.v);
  return a;
}

inline Vec kept(Vec a) { return a; }
inline void store(float* p, Vec a) { __builtin_memcpy(p, &a.v, sizeof a.v); }

inline Vec load(const bfloat16* p) {
#if defined(__aarch64__)
  return {reinterpret_cast<Float4>(vshll_n_u16(vld1_u16(&p->bits), 16))};
#else
  const Uint4 wide = {p[0].bits, p[1].bits, p[2].bits, p[3].bits};
  return {reinterpret_cast<Float4>(wide << 16)};
#endif
}

inline void store(bfloat16* p, Vec a) {
  const Uint4 bits = reinterpret_cast<Uint4>(a.v);
  const Uint4 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Uint4 is_nan = reinterpret_cast<Uint4>(a.v != a.v);
  const Uint4 high = ((rounded & ~is_nan) | ((bits | 0x400000u) & is_nan)) >> 16;
  for (int i = 0; i < Vec::width; ++i) p[i].bits = static_cast<uint16_t>(high[i]);
}

// Shifts exponent and mantissa into place, then scales by 2^112; infinities and NaNs get their exponent back.
inline Vec load(const float16* p) {
#if defined(__aarch64__)
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)))};
#else
  const Uint4 half = {p[0].bits, p[1].bits, p[2].bits, p[3].bits};
  const Uint4 magnitude = (half & 0x7fffu) << 13;
  const Uint4 is_special = reinterpret_cast<Uint4>(magnitude >= (0x7c00u << 13));
  const Float4 scaled = reinterpret_cast<Float4>(magnitude) * 0x1p112f;
  const Uint4 bits = reinterpret_cast<Uint4>(scaled) | (is_special & 0x7f800000u) | (half & 0x8000u) << 16;
  return {reinterpret_cast<Float4>(bits)};
#endif
}

inline void load_pairs(const bfloat16* p, Vec& even, Vec& odd) {
  Uint4 pairs;
  __builtin_memcpy(&pairs, p, sizeof pairs);
  even.v = reinterpret_cast<Float4>(pairs << 16);
  odd.v = reinterpret_cast<Float4>(pairs & 0xffff0000u);
}

inline void store_bytes(int8_t* p, Vec a) {
  const Int4 words = __builtin_convertvector(a.v, Int4);
  for (int i = 0; i < Vec::width; ++i) p[i] = static_cast<int8_t>(words[i]);
}

inline Vec abs(Vec a) { return {reinterpret_cast<Float4>(reinterpret_cast<Uint4>(a.v) & 0x7fffffffu)}; }
inline Vec add(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec sub(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec mul(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec div(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }

inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__aarch64__)
  return {vfmaq_f32(c.v, a.v, b.v)};
#else
  return {a.v * b.v + c.v};
#endif
}

inline Vec round(Vec a) {
  const Float4 magic = set1(12582912.0f).v;  // 1.5 * 2^23: adding it leaves no bit for a fraction
  return {(a.v + magic) - magic};
}

inline Vec power_of_two(Vec n) {
  const Int4 exponent = __builtin_convertvector(n.v, Int4) + 127;
  return {reinterpret_cast<Float4>(exponent << 23)};
}

inline Vec zero_where_less(Vec value, Vec a, Vec b) {
  return {reinterpret_cast<Float4>(reinterpret_cast<Int4>(value.v) & ~reinterpret_cast<Int4>(a.v < b.v))};
}

inline Vec pair_sums(Vec a, Vec b) {
  return {__builtin_shufflevector(a.v, b.v, 0, 2, 4, 6) + __builtin_shufflevector(a.v, b.v, 1, 3, 5, 7)};
}

inline Vec sums_of_pairs(const Vec* pairs) { return pair_sums(pairs[0], pairs[1]); }

}  // namespace xllm::kernels::cpu::XLLM_ISA

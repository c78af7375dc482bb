// Sixteen floats in an AVX-512 register. See vector.h for what every vector type provides.
#pragma once

#include <immintrin.h>

namespace xllm::kernels::cpu::XLLM_ISA {

struct Vec {
  static constexpr int width = 16;
  __m512 v;
};

inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec kept(Vec a) {
  asm("" : "+v"(a.v));
  return a;
}
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }

inline Vec load(const bfloat16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

inline void store(bfloat16* p, Vec a) {
#if defined(__AVX512BF16__)
  const __m256bh packed = _mm512_cvtneps_pbh(a.v);
  __builtin_memcpy(p, &packed, sizeof packed);
#else
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet_nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i high = _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, rounded, quiet_nan), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
#endif
}

inline Vec load(const float16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline void load_pairs(const bfloat16* p, Vec& even, Vec& odd) {
  const __m512i pairs = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline void store_bytes(int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

inline Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

inline Vec round(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

inline Vec power_of_two(Vec n) {
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}

inline Vec zero_where_less(Vec value, Vec a, Vec b) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), value.v)};
}

inline Vec pair_sums(Vec a, Vec b) {
  return {_mm512_add_ps(_mm512_shuffle_ps(a.v, b.v, 0x88), _mm512_shuffle_ps(a.v, b.v, 0xdd))};
}

inline Vec sums_of_pairs(const Vec* pairs) {
  // quads[i] holds, in each of its four 128-bit lanes, a quarter of the sums of vectors 4i .. 4i + 3.
  const __m512 quad0 = pair_sums(pairs[0], pairs[1]).v;
  const __m512 quad1 = pair_sums(pairs[2], pairs[3]).v;
  const __m512 quad2 = pair_sums(pairs[4], pairs[5]).v;
  const __m512 quad3 = pair_sums(pairs[6], pairs[7]).v;
  const __m512 half01 = _mm512_add_ps(_mm512_shuffle_f32x4(quad0, quad1, 0x88), _mm512_shuffle_f32x4(quad0, quad1, 0xdd));
  const __m512 half23 = _mm512_add_ps(_mm512_shuffle_f32x4(quad2, quad3, 0x88), _mm512_shuffle_f32x4(quad2, quad3, 0xdd));
  return {_mm512_add_ps(_mm512_shuffle_f32x4(half01, half23, 0x88), _mm512_shuffle_f32x4(half01, half23, 0xdd))};
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

// Sixteen quads in an AVX-512 register, with the dot products of VNNI where there are any. See quads.h for what every
// kind provides.
#pragma once

#include <immintrin.h>

namespace xllm::kernels::cpu::XLLM_ISA {

// Keeps the compiler from regrouping sums, which costs it more registers than there are.
#define XLLM_IN_ORDER(value) asm("" : "+v"(value))

struct Quads {
  __m512i v;
};

inline Quads load_quads(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Quads low_nibbles(Quads a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline Quads high_nibbles(Quads a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}

inline Quads broadcast_quad(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return {_mm512_set1_epi32(quad)};
}

struct NibbleSums {
  __m512i v;
};
struct ByteSums {
  __m512i v;
};
inline NibbleSums zero_nibble_sums() { return {_mm512_setzero_si512()}; }
inline ByteSums zero_byte_sums() { return {_mm512_setzero_si512()}; }

#if defined(__AVX512VNNI__)

inline NibbleSums add_products(NibbleSums sums, Quads weights, Quads inputs) {
  return {_mm512_dpbusd_epi32(sums.v, weights.v, inputs.v)};
}
inline Vec to_float(NibbleSums sums) { return {_mm512_cvtepi32_ps(sums.v)}; }

// w + 128 is unsigned, as dpbusd wants; 128 times the inputs' sum is taken off at the end.
struct ByteWeights {
  __m512i shifted;
};
inline ByteWeights prepare_bytes(Quads a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(-128))}; }
inline ByteSums add_products(ByteSums sums, ByteWeights weights, Quads inputs) {
  return {_mm512_dpbusd_epi32(sums.v, weights.shifted, inputs.v)};
}
inline Vec to_float(ByteSums sums, int32_t count) {
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(sums.v, _mm512_set1_epi32(128 * count)))};
}

#else

// Pairs in 16 bits: eight times 2 * 15 * 127 still fits.
inline NibbleSums add_products(NibbleSums sums, Quads weights, Quads inputs) {
  sums.v = _mm512_add_epi16(sums.v, _mm512_maddubs_epi16(weights.v, inputs.v));
  XLLM_IN_ORDER(sums.v);
  return sums;
}
inline Vec to_float(NibbleSums sums) {
  return {_mm512_cvtepi32_ps(_mm512_madd_epi16(sums.v, _mm512_set1_epi16(1)))};
}

struct ByteWeights {
  __m512i magnitude;
  __mmask64 is_negative;
};
inline ByteWeights prepare_bytes(Quads a) { return {_mm512_abs_epi8(a.v), _mm512_movepi8_mask(a.v)}; }
// |w| * (x with the sign of w): 2 * 128 * 127 fits 16 bits, which maddubs needs.
inline ByteSums add_products(ByteSums sums, ByteWeights weights, Quads inputs) {
  const __m512i turned = _mm512_mask_sub_epi8(inputs.v, weights.is_negative, _mm512_setzero_si512(), inputs.v);
  const __m512i pairs = _mm512_maddubs_epi16(weights.magnitude, turned);
  sums.v = _mm512_add_epi32(sums.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  XLLM_IN_ORDER(sums.v);
  return sums;
}
inline Vec to_float(ByteSums sums, int32_t) { return {_mm512_cvtepi32_ps(sums.v)}; }

#endif

#undef XLLM_IN_ORDER

}  // namespace xllm::kernels::cpu::XLLM_ISA

// Eight quads in an AVX2 register. See quads.h for what every kind provides.
#pragma once

#include <immintrin.h>

namespace xllm::kernels::cpu::XLLM_ISA {

// Keeps the compiler from regrouping sums, which costs it more registers than there are.
#define XLLM_IN_ORDER(value) asm("" : "+x"(value))

struct Quads {
  __m256i v;
};

inline Quads load_quads(const uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline Quads low_nibbles(Quads a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
inline Quads high_nibbles(Quads a) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))};
}

inline Quads broadcast_quad(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return {_mm256_set1_epi32(quad)};
}

// Pairs in 16 bits: eight times 2 * 15 * 127 still fits.
struct NibbleSums {
  __m256i v;
};

inline NibbleSums zero_nibble_sums() { return {_mm256_setzero_si256()}; }
inline NibbleSums add_products(NibbleSums sums, Quads weights, Quads inputs) {
  sums.v = _mm256_add_epi16(sums.v, _mm256_maddubs_epi16(weights.v, inputs.v));
  XLLM_IN_ORDER(sums.v);
  return sums;
}
inline Vec to_float(NibbleSums sums) {
  return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sums.v, _mm256_set1_epi16(1)))};
}

struct ByteSums {
  __m256i v;
};
struct ByteWeights {
  __m256i value;
  __m256i magnitude;
};

inline ByteSums zero_byte_sums() { return {_mm256_setzero_si256()}; }
inline ByteWeights prepare_bytes(Quads a) { return {a.v, _mm256_abs_epi8(a.v)}; }
// |w| * (x with the sign of w): 2 * 128 * 127 fits 16 bits, which maddubs needs.
inline ByteSums add_products(ByteSums sums, ByteWeights weights, Quads inputs) {
  const __m256i pairs = _mm256_maddubs_epi16(weights.magnitude, _mm256_sign_epi8(inputs.v, weights.value));
  sums.v = _mm256_add_epi32(sums.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  XLLM_IN_ORDER(sums.v);
  return sums;
}
inline Vec to_float(ByteSums sums, int32_t) { return {_mm256_cvtepi32_ps(sums.v)}; }

#undef XLLM_IN_ORDER

}  // namespace xllm::kernels::cpu::XLLM_ISA

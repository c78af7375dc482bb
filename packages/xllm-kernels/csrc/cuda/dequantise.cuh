// Quantised numbers to pairs of a 16-bit type, exactly, in registers. Knows nothing of scales or of where a word comes from.
#pragma once

#include "element.cuh"
#include "xllm/kernels/cuda/quantised_stream.h"

namespace xllm::kernels::cuda {

// Word i of four; `i` a constant where registers must stay such.
__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 v = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t subtract_pairs(BFloat16Element, uint32_t a, uint32_t b) {
  const __nv_bfloat162 v = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t subtract_pairs(Float16Element, uint32_t a, uint32_t b) {
  const __half2 v = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Two e4m3 in the high bytes of `v`'s halves. Their exponent is biased by 7, bfloat16's by 127: moved into place they lack 2^120.
__device__ __forceinline__ uint32_t widen_float8(uint32_t v) {
  return multiply_pairs((v & 0x80008000u) | ((v >> 4) & 0x07f007f0u), 0x7b807b80u);
}

// The four values of a word: its bytes in order are (low.x, low.y, high.x, high.y).
__device__ __forceinline__ void float8_pairs(BFloat16Element, uint32_t word, uint32_t& low, uint32_t& high) {
  low = widen_float8(__byte_perm(word, 0, 0x1404));
  high = widen_float8(__byte_perm(word, 0, 0x3424));
}
__device__ __forceinline__ void float8_pairs(Float16Element, uint32_t word, uint32_t& low, uint32_t& high) {
  asm("{.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\ncvt.rn.f16x2.e4m3x2 %1, b;}"
      : "=r"(low), "=r"(high)
      : "r"(word));
}

// 8388608 + u is a float32 whose lowest byte is u; what is left of it after 128 more are taken away has at most 8 significant bits.
__device__ __forceinline__ float int8_value(uint32_t flipped, uint32_t selector) {
  return __uint_as_float(__byte_perm(flipped, 0x4b000000u, selector)) - 8388736.f;
}
__device__ __forceinline__ void int8_pairs(BFloat16Element, uint32_t word, uint32_t& low, uint32_t& high) {
  const uint32_t flipped = word ^ 0x80808080u;
  float v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = int8_value(flipped, 0x7650u + i);
  low = __byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x7632);
  high = __byte_perm(__float_as_uint(v[2]), __float_as_uint(v[3]), 0x7632);
}
__device__ __forceinline__ void int8_pairs(Float16Element element, uint32_t word, uint32_t& low, uint32_t& high) {
  const uint32_t flipped = word ^ 0x80808080u;  // 0x6400 + u is 1024 + u
  low = subtract_pairs(element, __byte_perm(flipped, 0x64646464u, 0x4140), 0x64806480u);
  high = subtract_pairs(element, __byte_perm(flipped, 0x64646464u, 0x4342), 0x64806480u);
}

// The number whose lowest bits, as far as a nibble reaches, count ones: 128 in bfloat16, 1024 in float16; twice.
__device__ __forceinline__ uint32_t nibble_base(BFloat16Element) { return 0x43004300u; }
__device__ __forceinline__ uint32_t nibble_base(Float16Element) { return 0x64006400u; }
__device__ __forceinline__ float nibble_base_value(BFloat16Element) { return 128.f; }
__device__ __forceinline__ float nibble_base_value(Float16Element) { return 1024.f; }
__device__ __forceinline__ uint32_t one_pair(BFloat16Element) { return 0x3f803f80u; }
__device__ __forceinline__ uint32_t one_pair(Float16Element) { return 0x3c003c00u; }

// Nibbles i and i + 4 of a word, each more by nibble_base_value.
template <class Element>
__device__ __forceinline__ uint32_t int4_pair(Element element, uint32_t word, int i) {
  return ((word >> (4 * i)) & 0x000f000fu) | nibble_base(element);
}

}  // namespace xllm::kernels::cuda

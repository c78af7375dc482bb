// Four quads in a NEON register, with the dot product instruction where the target has it. See quads.h for what every kind
// provides.
#pragma once

#include <arm_neon.h>

namespace xllm::kernels::cpu::XLLM_ISA {

struct Quads {
  uint8x16_t v;
};

inline Quads load_quads(const uint8_t* p) { return {vld1q_u8(p)}; }
inline Quads low_nibbles(Quads a) { return {vandq_u8(a.v, vdupq_n_u8(15))}; }
inline Quads high_nibbles(Quads a) { return {vshrq_n_u8(a.v, 4)}; }

inline Quads broadcast_quad(const int8_t* p) {
  uint32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return {vreinterpretq_u8_u32(vdupq_n_u32(quad))};
}

struct NibbleSums {
  int32x4_t v;
};
struct ByteSums {
  int32x4_t v;
};
struct ByteWeights {
  int8x16_t v;
};

inline int32x4_t add_signed_products(int32x4_t sums, int8x16_t weights, int8x16_t inputs) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sums, weights, inputs);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(inputs)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(weights, inputs));
  return vaddq_s32(sums, vpaddq_s32(low, high));
#endif
}

inline NibbleSums zero_nibble_sums() { return {vdupq_n_s32(0)}; }
inline ByteSums zero_byte_sums() { return {vdupq_n_s32(0)}; }
inline NibbleSums add_products(NibbleSums sums, Quads weights, Quads inputs) {
  return {add_signed_products(sums.v, vreinterpretq_s8_u8(weights.v), vreinterpretq_s8_u8(inputs.v))};
}
inline ByteWeights prepare_bytes(Quads a) { return {vreinterpretq_s8_u8(a.v)}; }
inline ByteSums add_products(ByteSums sums, ByteWeights weights, Quads inputs) {
  return {add_signed_products(sums.v, weights.v, vreinterpretq_s8_u8(inputs.v))};
}
inline Vec to_float(NibbleSums sums) { return {reinterpret_cast<Float4>(vcvtq_f32_s32(sums.v))}; }
inline Vec to_float(ByteSums sums, int32_t) { return {reinterpret_cast<Float4>(vcvtq_f32_s32(sums.v))}; }

}  // namespace xllm::kernels::cpu::XLLM_ISA

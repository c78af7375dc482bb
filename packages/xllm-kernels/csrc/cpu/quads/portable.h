// Four quads as plain bytes. See quads.h for what every kind provides.
#pragma once

namespace xllm::kernels::cpu::XLLM_ISA {

using Bytes16 = uint8_t __attribute__((vector_size(16)));
using Signed16 = int8_t __attribute__((vector_size(16)));

struct Quads {
  Bytes16 v;
};

inline Quads load_quads(const uint8_t* p) {
  Quads a;
  __builtin_memcpy(&a.v, p, sizeof a.v);
  return a;
}
inline Quads low_nibbles(Quads a) { return {a.v & 15}; }
inline Quads high_nibbles(Quads a) { return {a.v >> 4}; }

inline Quads broadcast_quad(const int8_t* p) {
  Quads a;
  for (int i = 0; i < 16; ++i) a.v[i] = static_cast<uint8_t>(p[i % 4]);
  return a;
}

// The four sums of a lane's products.
inline Int4 sums_of_products(Bytes16 weights, Bytes16 inputs) {
  const Signed16 a = reinterpret_cast<Signed16>(weights), b = reinterpret_cast<Signed16>(inputs);
  Int4 sums;
  for (int lane = 0; lane < 4; ++lane) {
    int32_t total = 0;
    for (int i = 0; i < 4; ++i) total += static_cast<int32_t>(a[4 * lane + i]) * b[4 * lane + i];
    sums[lane] = total;
  }
  return sums;
}

struct NibbleSums {
  Int4 v;
};
struct ByteSums {
  Int4 v;
};
struct ByteWeights {
  Bytes16 v;
};
inline NibbleSums zero_nibble_sums() { return {Int4{0, 0, 0, 0}}; }
inline ByteSums zero_byte_sums() { return {Int4{0, 0, 0, 0}}; }
inline NibbleSums add_products(NibbleSums sums, Quads weights, Quads inputs) {
  return {sums.v + sums_of_products(weights.v, inputs.v)};
}
inline ByteWeights prepare_bytes(Quads a) { return {a.v}; }
inline ByteSums add_products(ByteSums sums, ByteWeights weights, Quads inputs) {
  return {sums.v + sums_of_products(weights.v, inputs.v)};
}
inline Vec to_float(NibbleSums sums) { return {__builtin_convertvector(sums.v, Float4)}; }
inline Vec to_float(ByteSums sums, int32_t) { return {__builtin_convertvector(sums.v, Float4)}; }

}  // namespace xllm::kernels::cpu::XLLM_ISA

// How one block reads a row of logits to draw from it: as floats, as integers in their order, and as weights whose sums do not depend on the
// order of adding. Knows nothing of filters.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace xllm::kernels::cuda::drawing {

using Mass = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kElements = 8;                       // of a thread in a tile
constexpr int kTile = kThreads * kElements;
constexpr int kMaxTiles = 64, kMaxSize = kMaxTiles * kTile;
constexpr int kRadixBits = 11, kBins = 1 << kRadixBits;
constexpr float kOne = 1099511627776.f;            // 2^40: the weight of the most probable token
constexpr double kMassRounding = 1e-6;             // a set that misses top_p by less reaches it

struct Memory {
  Mass mass[kBins];
  uint32_t count[kBins];
  Mass tile_mass[kMaxTiles];
  Mass warp_sums[kWarps];
  uint32_t tile_equals[kMaxTiles];
  // What one thread found for all.
  int bin;
  int id;
  Mass before;
  uint32_t count_before;
};

// Bits of a float32 that a logit of each type needs, as an integer in their order.
template <class T>
struct Key;
template <>
struct Key<__nv_bfloat16> {
  static constexpr int kBits = 16;
};
template <>
struct Key<__half> {
  static constexpr int kBits = 19;  // three exponent bits more than it has
};
template <>
struct Key<float> {
  static constexpr int kBits = 32;
};

template <class T>
__device__ __forceinline__ uint32_t key_of(float v) {
  const uint32_t bits = __float_as_uint(v + 0.f);  // -0 is 0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ordered >> (32 - Key<T>::kBits);
}

template <class T>
__device__ __forceinline__ float logit_of(uint32_t key) {
  constexpr uint32_t low = (1ull << (32 - Key<T>::kBits)) - 1;
  const uint32_t ordered = key << (32 - Key<T>::kBits);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~(ordered | low));
}

__device__ __forceinline__ void load(const __nv_bfloat16* row, int at, float (&v)[kElements]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(row + at);
  const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(pairs[i] << 16);
    v[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ void load(const __half* row, int at, float (&v)[kElements]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(row + at);
  const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(pairs + i));
    v[2 * i] = pair.x;
    v[2 * i + 1] = pair.y;
  }
}
__device__ __forceinline__ void load(const float* row, int at, float (&v)[kElements]) {
  const float4 low = reinterpret_cast<const float4*>(row + at)[0], high = reinterpret_cast<const float4*>(row + at)[1];
  const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < kElements; ++i) v[i] = all[i];
}

// Calls use(logit, id) for every token; ids rise within a thread.
template <class T, class Use>
__device__ __forceinline__ void for_each(const T* row, int size, const Use& use) {
#pragma unroll 2
  for (int at = threadIdx.x * kElements; at < size; at += kTile) {
    float v[kElements];
    load(row, at, v);
#pragma unroll
    for (int i = 0; i < kElements; ++i) use(v[i], at + i);
  }
}

// How a logit becomes a weight.
struct Softmax {
  float best;
  float sharpness;  // 1 / temperature

  __device__ __forceinline__ Mass operator()(float logit) const {
    const float scaled = (logit - best) * sharpness;
    return scaled < -28.f ? 0 : __float2ull_rn(expf(scaled) * kOne);  // 2^40 e^-28 is less than 1
  }
};

__device__ __forceinline__ Mass warp_total(Mass v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

// The sum over the threads before this one, in order; `total` gets the block's. All threads call it.
__device__ inline Mass sum_before(Mass mine, Mass* warp_sums, Mass& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Mass sum = mine;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const Mass other = __shfl_up_sync(0xffffffffu, sum, o);
    if (lane >= o) sum += other;
  }
  __syncthreads();
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  Mass before = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  return before + sum - mine;
}

}  // namespace xllm::kernels::cuda::drawing

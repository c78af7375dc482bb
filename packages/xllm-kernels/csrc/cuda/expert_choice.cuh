// How a warp chooses the experts of one token from its logits. Knows nothing of where logits come from or what follows.
#pragma once

#include "matrix.cuh"
#include "xllm/kernels/cuda/experts.h"

namespace xllm::kernels::cuda {

constexpr int kMostPerLane = kMaxExperts / 32;

// Unsigned numbers in the order of floats, and back; 0 stands for no number.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v);
  return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 1u);
}
__device__ __forceinline__ float unordered(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

struct Choice {
  int num_experts;  // a multiple of 32
  int top_k;
  bool renormalises;
};

// Lane j < top_k gets the expert that comes j-th, and its weight; equals come by rising number. Lane l holds the logits of experts l,
// l + 32, ... Softmax over all experts, or over the chosen ones if the weights are to be renormalised.
struct ChosenExpert {
  int expert;
  float weight;
};

__device__ __forceinline__ ChosenExpert choose_experts(const float (&logits)[kMostPerLane], const Choice& choice, int lane) {
  uint32_t keys[kMostPerLane], mine = 0, largest = 0;
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) keys[i] = lane + 32 * i < choice.num_experts ? ordered(logits[i]) : 0u;
  int expert = 0;
  for (int j = 0; j < choice.top_k; ++j) {
    uint32_t key = 0;
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) key = max(key, keys[i]);
    key = __reduce_max_sync(0xffffffffu, key);
    int index = kMaxExperts;
#pragma unroll
    for (int i = kMostPerLane - 1; i >= 0; --i) {
      if (keys[i] == key) index = lane + 32 * i;
    }
    const int first = __reduce_min_sync(0xffffffffu, index);
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) {
      if (lane + 32 * i == first) keys[i] = 0;
    }
    if (j == 0) largest = key;
    if (lane == j) {
      mine = key;
      expert = first;
    }
  }
  const float top = unordered(largest), weight = lane < choice.top_k ? __expf(unordered(mine) - top) : 0.f;
  float total = weight;
  if (!choice.renormalises) {
    total = 0.f;
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) total += lane + 32 * i < choice.num_experts ? __expf(logits[i] - top) : 0.f;
  }
  return {expert, weight / warp_sum(total)};
}

}  // namespace xllm::kernels::cuda

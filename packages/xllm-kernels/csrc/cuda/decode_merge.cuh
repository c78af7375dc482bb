// Partial results of attention over parts of a context, merged. Knows nothing of how they were computed.
#pragma once

#include <cstdint>

#include "last_block.cuh"

namespace xllm::kernels::cuda {

// A partial result of one head is D sums of weighted values, the largest logit (base 2) and the sum of weights against it. Of that, two
// neighbouring dimensions.
struct MergedPair {
  float top = -INFINITY, total = 0.f;
  float2 sum = make_float2(0.f, 0.f);
};

// Dimensions d and d + 1 of `count` partial results that lie `stride` floats apart; `load` reads two floats. AT_ONCE are asked for before the
// first is used, so that a few parts take one latency. Attention of qwen3-30b-a3b at 1 x 1024 ended 10.2 us after the kernel before it with a load
// after the other and a fence of every thread, and ends 5.7 us after it now.
template <int D, int AT_ONCE, class Load>
__device__ __forceinline__ MergedPair merge_parts(const float* part, int stride, int count, int d, Load load) {
  MergedPair merged;
  for (int first = 0; first < count; first += AT_ONCE) {
    float2 states[AT_ONCE], sums[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const float* at = part + min(first + i, count - 1) * stride;
      states[i] = load(at + D);
      sums[i] = load(at + d);
    }
    float top = merged.top;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i >= count) states[i].x = -INFINITY;
      top = fmaxf(top, states[i].x);
    }
    const float base = top == -INFINITY ? 0.f : top, correction = exp2f(merged.top - base);
    merged.top = top;
    merged.total *= correction;
    merged.sum.x *= correction;
    merged.sum.y *= correction;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const float weight = exp2f(states[i].x - base);
      merged.total += weight * states[i].y;
      merged.sum.x += weight * sums[i].x;
      merged.sum.y += weight * sums[i].y;
    }
  }
  return merged;
}

// What a block has of the heads of one group, and where it goes.
template <class T>
struct GroupResult {
  const float* warps;  // in shared memory, [warps][group][D + 2]
  float* workspace;    // of all blocks of the group, [splits][group][D + 2]
  int* counter;        // of the group, zero before and after
  T* out;              // [group][D]
  int group;
  int split;
  int splits;
  float scale;         // of what is written
};

// Merges the results of WARPS warps, whose threads have all left theirs and call this; with several splits those of the blocks, too, which
// the last one does.
template <class Element, int D, int WARPS>
__device__ __forceinline__ void merge_and_write(const GroupResult<typename Element::type>& result) {
  constexpr int kThreads = WARPS * 32, kSplitsAtOnce = 8;
  const int stride = result.group * (D + 2), num_pairs = result.group * (D / 2);
  const auto place_of = [](int pair) { return pair / (D / 2) * (D + 2); };  // of the pair's head
  const auto write = [&](int pair, const MergedPair& merged) {
    const float a = merged.sum.x / merged.total * result.scale, b = merged.sum.y / merged.total * result.scale;
    *reinterpret_cast<uint32_t*>(result.out + pair * 2) = Element::narrow_pair(a, b);
  };
  for (int pair = threadIdx.x; pair < num_pairs; pair += kThreads) {
    const int d = pair % (D / 2) * 2;
    const auto load = [](const float* from) { return *reinterpret_cast<const float2*>(from); };
    const MergedPair merged = merge_parts<D, WARPS>(result.warps + place_of(pair), stride, WARPS, d, load);
    if (result.splits == 1) {
      write(pair, merged);
    } else {
      float* mine = result.workspace + result.split * stride + place_of(pair);
      *reinterpret_cast<float2*>(mine + d) = merged.sum;
      if (d == 0) *reinterpret_cast<float2*>(mine + D) = make_float2(merged.top, merged.total);
    }
  }
  if (result.splits == 1 || !comes_last<kThreads>(result.counter, result.splits)) return;
  for (int pair = threadIdx.x; pair < num_pairs; pair += kThreads) {
    const auto load = [](const float* from) { return __ldcg(reinterpret_cast<const float2*>(from)); };
    write(pair, merge_parts<D, kSplitsAtOnce>(result.workspace + place_of(pair), stride, result.splits, pair % (D / 2) * 2, load));
  }
}

}  // namespace xllm::kernels::cuda

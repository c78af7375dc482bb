// The most probable token of each row, without a sort: blocks take slices of the vocabulary, the last of a row compares their bests.
#include <algorithm>
#include <climits>
#include <stdexcept>
#include <type_traits>

#include "element.cuh"
#include "last_block.cuh"
#include "launch.h"
#include "xllm/kernels/cuda/row_kernels.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kThreads = 256, kMaxSlices = 64;
constexpr int64_t kWave = 1056;  // blocks that an H100 or H200 runs at once

struct Best {
  float value;
  int index;
};

// Larger wins, NaN over all, the first among equals.
__device__ __forceinline__ Best better(Best a, Best b) {
  const bool a_nan = isnan(a.value), b_nan = isnan(b.value);
  const bool equal = a_nan == b_nan && (a_nan || a.value == b.value);
  const bool take_a = equal ? a.index < b.index : a_nan || (!b_nan && a.value > b.value);
  return take_a ? a : b;
}

__device__ __forceinline__ Best warp_best(Best best) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, o), __shfl_xor_sync(0xffffffffu, best.index, o)});
  }
  return best;
}

__device__ __forceinline__ Best block_best(Best best) {
  __shared__ Best bests[kThreads / 32];
  best = warp_best(best);
  if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) best = better(best, bests[w]);
  return best;
}

// The larger of each of two numbers, NaN over all.
template <class Element>
__device__ __forceinline__ uint32_t higher_pair(uint32_t a, uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<typename Element::type, __half>, __half2, __nv_bfloat162>;
  const Pair higher = __hmax2_nan(*reinterpret_cast<Pair*>(&a), *reinterpret_cast<Pair*>(&b));
  return *reinterpret_cast<const uint32_t*>(&higher);
}

// Whether one of eight numbers may be better than `best`; most are not, and are not looked at one by one.
template <class Element>
__device__ __forceinline__ bool is_promising(const Best& best, uint4 v) {
  const uint32_t pair = higher_pair<Element>(higher_pair<Element>(v.x, v.y), higher_pair<Element>(v.z, v.w));
  const float2 highest = Element::widen_pair(pair);
  return !(highest.x <= best.value && highest.y <= best.value) || best.index == INT_MAX;
}

template <class Element>
__device__ __forceinline__ void consider(Best& best, uint32_t pair, int index) {
  const float2 v = Element::widen_pair(pair);
  best = better(best, {v.x, index});
  best = better(best, {v.y, index + 1});
}

template <class Element>
__global__ void argmax_kernel(const __grid_constant__ ArgmaxArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  const int64_t row = blockIdx.y;
  const int slices = gridDim.x;
  const auto* logits = reinterpret_cast<const uint4*>(static_cast<const typename Element::type*>(args.logits) + row * args.size);
  Best best = {-INFINITY, INT_MAX};
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < args.size / 8; i += slices * kThreads) {
    const uint4 v = logits[i];
    if (!is_promising<Element>(best, v)) continue;
    consider<Element>(best, v.x, i * 8);
    consider<Element>(best, v.y, i * 8 + 2);
    consider<Element>(best, v.z, i * 8 + 4);
    consider<Element>(best, v.w, i * 8 + 6);
  }
  best = block_best(best);
  auto* found = reinterpret_cast<Best*>(args.workspace) + row * slices;
  if (threadIdx.x == 0) found[blockIdx.x] = best;
  if (!comes_last<kThreads>(args.counters + row, slices) || threadIdx.x >= 32) return;
  best = {-INFINITY, INT_MAX};
  for (int s = threadIdx.x; s < slices; s += 32) best = better(best, {__ldcg(&found[s].value), __ldcg(&found[s].index)});
  best = warp_best(best);
  if (threadIdx.x == 0) {
    args.token_ids[row] = best.index;
    args.best[row] = best.value;
  }
}

}  // namespace

void argmax(const ArgmaxArgs& args, void* stream) {
  if (args.size <= 0 || args.size % 8 != 0 || args.size > INT_MAX) throw std::invalid_argument("the vocabulary must be a multiple of 8");
  if (args.num_rows == 0) return;
  if (args.num_rows > 65535) throw std::invalid_argument("argmax takes at most 65535 rows");
  if (args.workspace_size < args.num_rows * kMaxSlices * 2 || args.num_counters < args.num_rows)
    throw std::invalid_argument("the workspace of argmax is too small");
  const auto slices = static_cast<unsigned>(std::clamp<int64_t>(std::min(args.size / 8 / kThreads / 2, kWave / args.num_rows), 1, kMaxSlices));
  const auto kernel = with_element(args.type, [](auto element) { return argmax_kernel<decltype(element)>; });
  launch(kernel, "argmax", {dim3(slices, static_cast<unsigned>(args.num_rows)), kThreads}, args, stream);
}

}  // namespace xllm::kernels::cuda

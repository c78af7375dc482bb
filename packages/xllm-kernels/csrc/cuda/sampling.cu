// One block draws for one row. The row stays where it is, mostly in the L2 cache, and is read a few times:
//
//   floor      with top-k or top-p: each thread's largest logit. The k-th largest of those is no larger than the k-th of all, and few
//              tokens lie above it, which keeps the histograms small: all tokens in one would meet in a few bins
//   threshold  where top-k or top-p ends: a radix descent over the logits as ordered integers, eleven bits a pass, each pass a histogram
//              of counts and weights (two passes for 16-bit logits, three for float32, each for top-k and for top-p)
//   ties       where only some of the tokens that equal the threshold are kept: which is the last of them
//   mass       the kept weight of each tile of the vocabulary
//   draw       one tile again: the token whose cumulative weight passes the random number
#include "xllm/kernels/cuda/sampling.h"

#include <climits>
#include <stdexcept>

#include "async_copy.cuh"
#include "launch.h"
#include "logits_threshold.cuh"

namespace xllm::kernels::cuda {
namespace {

using namespace drawing;

// Philox4x32-10 (Salmon et al., 2011) at counter (step, 0), key seed: a fraction of 2^64, its low 11 bits 0.
__device__ Mass random_fraction(uint64_t seed, int64_t step) {
  uint32_t c0 = static_cast<uint32_t>(step), c1 = static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int r = 0; r < 10; ++r) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (static_cast<Mass>(c0 >> 5) << 26 | c1 >> 6) << 11;
}

// The weight of a token, 0 where the filters drop it.
template <class T>
struct Filter {
  Softmax softmax;
  Mass least;      // of min-p
  uint32_t key;    // 0: no threshold
  int last_equal;

  __device__ Mass operator()(float logit, int id) const {
    const uint32_t k = key_of<T>(logit);
    if (k < key || (k == key && id > last_equal)) return 0;
    const Mass weight = softmax(logit);
    return weight < least ? 0 : weight;
  }
};

template <class T>
__device__ int draw(const T* row, int size, const Filter<T>& filter, Mass fraction, Memory& memory) {
  const int tiles = (size + kTile - 1) / kTile, lane = threadIdx.x % 32;
  if (threadIdx.x < kMaxTiles) memory.tile_mass[threadIdx.x] = 0;
  __syncthreads();
  for (int tile = 0; tile < tiles; ++tile) {
    const int at = tile * kTile + threadIdx.x * kElements;
    Mass mine = 0;
    if (at < size) {
      float v[kElements];
      load(row, at, v);
#pragma unroll
      for (int i = 0; i < kElements; ++i) mine += filter(v[i], at + i);
    }
    if (__any_sync(0xffffffffu, mine != 0)) {
      mine = warp_total(mine);
      if (lane == 0) atomicAdd(memory.tile_mass + tile, mine);
    }
  }
  __syncthreads();
  Mass total = 0, before = 0;
  for (int tile = 0; tile < tiles; ++tile) total += memory.tile_mass[tile];
  const Mass target = __umul64hi(fraction, total);
  int tile = 0;
  while (tile < tiles - 1 && before + memory.tile_mass[tile] <= target) before += memory.tile_mass[tile++];
  const int at = tile * kTile + threadIdx.x * kElements;
  Mass weights[kElements] = {}, mine = 0, ignored;
  if (at < size) {
    float v[kElements];
    load(row, at, v);
#pragma unroll
    for (int i = 0; i < kElements; ++i) mine += weights[i] = filter(v[i], at + i);
  }
  Mass sum = before + sum_before(mine, memory.warp_sums, ignored);
  if (sum <= target && target < sum + mine) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (sum <= target && target < sum + weights[i]) memory.id = at + i;
      sum += weights[i];
    }
  }
  __syncthreads();
  return memory.id;
}

template <class T>
__device__ int drawn_token(const SampleArgs& args, const T* row, int64_t index, Memory& memory) {
  const int size = static_cast<int>(args.size);
  const float top_p = args.top_p[index];
  const Softmax softmax{args.best[index], 1.f / args.temperature[index]};
  const auto top_k = static_cast<uint32_t>(args.top_k[index]);
  const bool has_top_k = top_k > 0 && top_k < args.size, has_top_p = top_p < 1.f;
  Filter<T> filter{softmax, static_cast<Mass>(args.min_p[index] * kOne), 0, INT_MAX};
  Threshold threshold{0, 0, 0};
  if (has_top_k || has_top_p) {
    Mass total;
    const uint32_t largest = largest_key(row, size, softmax, !has_top_k, total, memory);
    if (has_top_k) {
      threshold = threshold_of<T, true>(row, size, softmax, top_k, 0, floor_of<T>(largest, top_k), memory);
      total = threshold.kept;
    }
    if (has_top_p) {
      const double share = (static_cast<double>(top_p) - kMassRounding) * static_cast<double>(total);
      const Mass needed = share < 1.0 ? 1 : static_cast<Mass>(share);
      const uint32_t floor = has_top_k ? threshold.key : floor_of<T>(largest, kThreads);
      const Threshold other = threshold_of<T, false>(row, size, softmax, 0, needed, floor, memory);
      const bool is_tighter = other.key > threshold.key || (other.key == threshold.key && other.equals < threshold.equals);
      if (is_tighter || !has_top_k) threshold = other;
    }
  }
  if (threshold.key != 0) {
    filter.key = threshold.key;
    filter.last_equal = last_equal(row, size, threshold.key, threshold.equals, memory);
  }
  return draw(row, size, filter, random_fraction(args.seed[index], args.step[index]), memory);
}

template <class T>
__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ Memory memory;
  launch_dependents();
  wait_for_prerequisites();
  const int64_t index = blockIdx.x;
  const T* row = static_cast<const T*>(args.logits) + index * args.size;
  const float best = args.best[index];
  int token = -1;
  if (isfinite(best)) token = args.temperature[index] > 0.f ? drawn_token(args, row, index, memory) : args.best_ids[index];
  if (args.logprobs != nullptr && token >= 0) {
    Mass mine = 0, total;
    const Softmax softmax{best, 1.f};
    for_each(row, static_cast<int>(args.size), [&](float logit, int) { mine += softmax(logit); });
    sum_before(mine, memory.warp_sums, total);
    if (threadIdx.x == 0) {
      args.logprobs[index] = static_cast<float>(row[token]) - best - logf(static_cast<float>(total) / kOne);
    }
  }
  if (threadIdx.x == 0) args.token_ids[index] = token;
}

__global__ void replace_placeholders_kernel(const __grid_constant__ ReplacePlaceholdersArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i >= args.num_tokens) return;
  const int32_t token = args.token_ids[i];
  if (token < 0) args.token_ids[i] = -1 - token < args.num_previous ? max(args.previous[-1 - token], 0) : 0;
}

}  // namespace

void sample(const SampleArgs& args, void* stream) {
  if (args.size <= 0 || args.size % kElements != 0 || args.size > kMaxSize)
    throw std::invalid_argument("the vocabulary must be a multiple of 8, at most 524288");
  if (args.num_rows == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.num_rows)), kThreads};
  switch (args.type) {
    case LogitsType::bfloat16: return launch(sample_kernel<__nv_bfloat16>, "sample", shape, args, stream);
    case LogitsType::float16: return launch(sample_kernel<__half>, "sample", shape, args, stream);
    case LogitsType::float32: return launch(sample_kernel<float>, "sample", shape, args, stream);
  }
}

void replace_placeholders(const ReplacePlaceholdersArgs& args, void* stream) {
  if (args.num_tokens == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>((args.num_tokens + 255) / 256)), 256};
  launch(replace_placeholders_kernel, "replace_placeholders", shape, args, stream);
}

}  // namespace xllm::kernels::cuda

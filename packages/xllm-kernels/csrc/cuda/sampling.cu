// One block draws for one row. The row stays where it is, mostly in the L2 cache, and is read a few times:
//
//   floor      with top-k or top-p: each thread's largest logit. The k-th largest of those is no larger than the k-th of all, and few
//              tokens lie above it, which keeps the histograms small: all tokens in one would meet in a few bins
//   threshold  where top-k or top-p ends: a radix descent over the logits as ordered integers, eleven bits a pass, each pass a histogram
//              of counts and weights (two passes for bfloat16, three for float32, each for top-k and for top-p)
//   ties       where only some of the tokens that equal the threshold are kept: which is the last of them
//   mass       the kept weight of each tile of the vocabulary
//   draw       one tile again: the token whose cumulative weight passes the random number
#include "xllm/kernels/cuda/sampling.h"

#include <cuda_bf16.h>

#include <climits>
#include <stdexcept>

#include "async_copy.cuh"
#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

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

// bfloat16 logits as 16 ordered bits, float32 as 32.
template <class T>
struct Key;
template <>
struct Key<__nv_bfloat16> {
  static constexpr int kBits = 16;
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
  const uint32_t low = Key<T>::kBits == 16 ? 0xffffu : 0u;
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
__device__ Mass sum_before(Mass mine, Mass* warp_sums, Mass& total) {
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

// Where a filter ends: tokens over `key` are kept, and the first `equals` of those at it.
struct Threshold {
  uint32_t key;
  uint32_t equals;
  Mass kept;
};

// By count: the first `wanted` tokens. By mass: those whose weights reach `needed`. Looks at keys from `floor` on alone; where those do not
// suffice, `kept` of what it returns is 0.
template <class T, bool BY_COUNT>
__device__ Threshold descend(const T* row, int size, const Softmax& softmax, uint32_t wanted, Mass needed, uint32_t floor, Memory& memory) {
  uint32_t prefix = 0, count_before = 0;
  Mass mass_before = 0;
  int shift = Key<T>::kBits;
  for (bool is_first = true; shift > 0; is_first = false) {
    const int bits = min(kRadixBits, shift), above = shift;
    shift -= bits;
    for (int b = threadIdx.x; b < kBins; b += kThreads) {
      memory.mass[b] = 0;
      memory.count[b] = 0;
    }
    __syncthreads();
    for_each(row, size, [&](float logit, int) {
      const uint32_t key = key_of<T>(logit);
      if (key < floor || (!is_first && key >> above != prefix)) return;
      const int bin = key >> shift & ((1 << bits) - 1);
      atomicAdd(memory.count + bin, 1u);
      const Mass weight = softmax(logit);
      if (weight > 0) atomicAdd(memory.mass + bin, weight);
    });
    __syncthreads();
    // Thread i looks at the bins 2 i and 2 i + 1 from the top.
    const int bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const Mass masses[2] = {memory.mass[bin], memory.mass[bin - 1]};
    const uint32_t counts[2] = {memory.count[bin], memory.count[bin - 1]};
    Mass all, all_counts;
    Mass mass = sum_before(masses[0] + masses[1], memory.warp_sums, all) + mass_before;
    uint32_t count = static_cast<uint32_t>(sum_before(counts[0] + counts[1], memory.warp_sums, all_counts)) + count_before;
    if (is_first && (BY_COUNT ? all_counts < wanted : all < needed)) return {0, 0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool ends_here = BY_COUNT ? count < wanted && count + counts[i] >= wanted : mass < needed && mass + masses[i] >= needed;
      if (ends_here) {
        memory.bin = bin - i;
        memory.before = mass;
        memory.count_before = count;
      }
      mass += masses[i];
      count += counts[i];
    }
    __syncthreads();
    prefix = prefix << bits | memory.bin;
    mass_before = memory.before;
    count_before = memory.count_before;
    __syncthreads();
  }
  const uint32_t equals = memory.count[prefix & ((1u << (Key<T>::kBits % kRadixBits)) - 1)];
  const Mass weight = softmax(logit_of<T>(prefix));
  uint32_t kept = equals;
  if (BY_COUNT) {
    kept = wanted - count_before;
  } else if (weight > 0) {
    kept = static_cast<uint32_t>(min((needed - mass_before + weight - 1) / weight, static_cast<Mass>(equals)));
  }
  __syncthreads();
  return {prefix, kept, mass_before + kept * weight};
}

// Each thread's largest key, and the weight of all tokens.
template <class T>
__device__ uint32_t largest_key(const T* row, int size, const Softmax& softmax, bool sums, Mass& total, Memory& memory) {
  uint32_t largest = 0;
  Mass mine = 0;
  for_each(row, size, [&](float logit, int) {
    largest = max(largest, key_of<T>(logit));
    if (sums) mine += softmax(logit);
  });
  sum_before(mine, memory.warp_sums, total);
  return largest;
}

// The `wanted`-th largest of the threads' keys, 0 if there are not so many: by bisection of the bits, a vote each.
template <class T>
__device__ uint32_t floor_of(uint32_t key, uint32_t wanted) {
  if (wanted > kThreads) return 0;
  uint32_t floor = 0;
  for (int bit = Key<T>::kBits - 1; bit >= 0; --bit) {
    const uint32_t higher = floor | 1u << bit;
    if (static_cast<uint32_t>(__syncthreads_count(key >= higher)) >= wanted) floor = higher;
  }
  return floor;
}

// The threshold from `floor` on if the tokens there suffice, else from all.
template <class T, bool BY_COUNT>
__device__ Threshold threshold_of(const T* row, int size, const Softmax& softmax, uint32_t wanted, Mass needed, uint32_t floor,
                                  Memory& memory) {
  Threshold found = descend<T, BY_COUNT>(row, size, softmax, wanted, needed, floor, memory);
  __syncthreads();
  if (found.equals == 0 && floor > 0) found = descend<T, BY_COUNT>(row, size, softmax, wanted, needed, 0, memory);
  return found;
}

// The id of the last of the first `wanted` tokens at `key`, INT_MAX where all are kept.
template <class T>
__device__ int last_equal(const T* row, int size, uint32_t key, uint32_t wanted, Memory& memory) {
  const int tiles = (size + kTile - 1) / kTile;
  if (threadIdx.x < kMaxTiles) memory.tile_equals[threadIdx.x] = 0;
  if (threadIdx.x == 0) memory.id = INT_MAX;
  __syncthreads();
  for_each(row, size, [&](float logit, int id) {
    if (key_of<T>(logit) == key) atomicAdd(memory.tile_equals + id / kTile, 1u);
  });
  __syncthreads();
  uint32_t before = 0;
  int tile = 0;
  while (tile < tiles && before + memory.tile_equals[tile] < wanted) before += memory.tile_equals[tile++];
  if (tile == tiles) return INT_MAX;
  const int at = tile * kTile + threadIdx.x * kElements;
  float v[kElements];
  uint32_t mine = 0;
  if (at < size) {
    load(row, at, v);
    for (int i = 0; i < kElements; ++i) mine += key_of<T>(v[i]) == key;
  }
  Mass total;
  uint32_t rank = before + static_cast<uint32_t>(sum_before(mine, memory.warp_sums, total));
  if (at < size) {
    for (int i = 0; i < kElements; ++i) {
      if (key_of<T>(v[i]) == key && ++rank == wanted) memory.id = at + i;
    }
  }
  __syncthreads();
  return memory.id;
}

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
  launch(args.is_float32 ? sample_kernel<float> : sample_kernel<__nv_bfloat16>, "sample", shape, args, stream);
}

void replace_placeholders(const ReplacePlaceholdersArgs& args, void* stream) {
  if (args.num_tokens == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>((args.num_tokens + 255) / 256)), 256};
  launch(replace_placeholders_kernel, "replace_placeholders", shape, args, stream);
}

}  // namespace xllm::kernels::cuda

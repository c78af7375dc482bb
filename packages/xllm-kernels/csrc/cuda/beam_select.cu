// A block for each row. The k-th largest value is found by its bits, eleven at a time from the highest (a radix select), until the values
// that share them and the larger ones are few enough to be sorted in shared memory. Where very many are equal, first places go first.
#include <stdexcept>

#include "async_copy.cuh"
#include "launch.h"
#include "matrix.cuh"
#include "xllm/kernels/cuda/beam_select.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kScoreThreads = 512, kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32, kAhead = 4;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits, kSorted = 4096;

__device__ __forceinline__ float as_float(float v) { return v; }
__device__ __forceinline__ float as_float(__nv_bfloat16 v) { return __bfloat162float(v); }

// Larger values have larger bits.
__device__ __forceinline__ uint32_t ordered_bits(float v) {
  const uint32_t bits = __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(uint32_t ordered) {
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// A maximum and the sum of exp(x - maximum).
struct LogSum {
  float top = -INFINITY, sum = 0.f;

  __device__ __forceinline__ void join(float other_top, float other_sum) {
    const float most = fmaxf(top, other_top);
    if (most == -INFINITY) return;
    sum = sum * __expf(top - most) + other_sum * __expf(other_top - most);
    top = most;
  }
};

__device__ __forceinline__ float block_log_sum(LogSum mine) {
  __shared__ float tops[kScoreThreads / 32], sums[kScoreThreads / 32];
#pragma unroll
  for (int o = 16; o; o >>= 1) mine.join(__shfl_xor_sync(0xffffffffu, mine.top, o), __shfl_xor_sync(0xffffffffu, mine.sum, o));
  if (threadIdx.x % 32 == 0) {
    tops[threadIdx.x / 32] = mine.top;
    sums[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  LogSum all;
  for (int w = 0; w < kScoreThreads / 32; ++w) all.join(tops[w], sums[w]);
  return all.top + logf(all.sum);
}

template <class T>
struct Piece {  // 16 bytes
  static constexpr int kCount = 16 / sizeof(T);
  alignas(16) T values[kCount];
};

template <class T>
__global__ void __launch_bounds__(kScoreThreads) beam_scores_kernel(const __grid_constant__ BeamScoresArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  const int64_t row = blockIdx.x;
  const int64_t node = args.max_children == 0 ? 0 : args.nodes[row];
  float* totals = args.totals + row * args.max_children;
  if (node < 0) {
    for (int64_t i = threadIdx.x; i < args.max_children; i += kScoreThreads) totals[i] = -INFINITY;
    return;
  }
  const T* logits = static_cast<const T*>(args.logits) + row * args.vocab_size;
  const auto* pieces = reinterpret_cast<const Piece<T>*>(logits);
  const int64_t num_pieces = args.vocab_size / Piece<T>::kCount;
  LogSum mine;
  for (int64_t first = threadIdx.x; first < num_pieces; first += kScoreThreads * kAhead) {
    Piece<T> ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t i = first + a * kScoreThreads;
      if (i < num_pieces) *reinterpret_cast<uint4*>(ahead[a].values) = *reinterpret_cast<const uint4*>(pieces + i);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a * kScoreThreads >= num_pieces) continue;
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < Piece<T>::kCount; ++j) most = fmaxf(most, as_float(ahead[a].values[j]));
      if (most == -INFINITY) continue;
      if (most > mine.top) {
        mine.sum *= __expf(mine.top - most);
        mine.top = most;
      }
#pragma unroll
      for (int j = 0; j < Piece<T>::kCount; ++j) mine.sum += __expf(as_float(ahead[a].values[j]) - mine.top);
    }
  }
  const float normaliser = block_log_sum(mine);
  if (threadIdx.x == 0) args.normaliser[row] = normaliser;
  if (args.max_children == 0) return;
  const int64_t begin = args.starts[node], count = args.starts[node + 1] - begin;
  const float score = args.scores[row];
  for (int64_t i = threadIdx.x; i < args.max_children; i += kScoreThreads)
    totals[i] = i < count ? score + (as_float(logits[args.tokens[begin + i]]) - normaliser) : -INFINITY;
}

struct SelectMemory {
  uint64_t keys[kSorted];  // ordered bits, then the place turned over
  int bins[kBins];
  int warp_counts[kSelectWarps];
  int count, digit, wanted;
};

// Calls visit(place, ordered bits, whether there is such a place) for all places; the lanes of a warp together.
template <class T, class Visit>
__device__ __forceinline__ void for_each_value(const T* values, int size, Visit visit) {
  for (int first = 0; first < size; first += kSelectThreads * kAhead) {
    float ahead[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int place = first + a * kSelectThreads + static_cast<int>(threadIdx.x);
      ahead[a] = place < size ? as_float(values[place]) : 0.f;
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int place = first + a * kSelectThreads + static_cast<int>(threadIdx.x);
      if (first + a * kSelectThreads < size) visit(place, ordered_bits(ahead[a]), place < size);
    }
  }
}

// Counts into the bins the values whose `known` highest bits are those of `prefix`, by the digit that ends `shift` bits before the last;
// equal digits of a warp are counted at once.
template <class T>
__device__ __forceinline__ void count_digits(const T* values, int size, uint32_t prefix, int known, int shift, SelectMemory& memory) {
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) memory.bins[i] = 0;
  __syncthreads();
  const uint32_t mask = (1u << (32 - known - shift)) - 1;
  for_each_value(values, size, [&](int, uint32_t bits, bool exists) {
    const bool counts = exists && (known == 0 || (bits ^ prefix) >> (32 - known) == 0);
    const int digit = counts ? static_cast<int>(bits >> shift & mask) : kBins;
    const uint32_t peers = __match_any_sync(0xffffffffu, digit);
    if (counts && static_cast<int>(threadIdx.x % 32) == __ffs(peers) - 1) atomicAdd(&memory.bins[digit], __popc(peers));
  });
  __syncthreads();
}

// Finds the bin, from the highest, in which the `wanted`-th value lies, and which of its values that is.
__device__ __forceinline__ void find_digit(SelectMemory& memory) {
  constexpr int kBinsAThread = kBins / kSelectThreads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wanted = memory.wanted;
  const int first = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsAThread;
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kBinsAThread; ++i) mine += memory.bins[first - i];
  int before = mine;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, o);
    if (lane >= o) before += other;
  }
  if (lane == 31) memory.warp_counts[warp] = before;
  __syncthreads();
  before -= mine;
  for (int w = 0; w < warp; ++w) before += memory.warp_counts[w];
  if (before < wanted && wanted <= before + mine) {
    int bin = first;
    while (before + memory.bins[bin] < wanted) before += memory.bins[bin--];
    memory.digit = bin;
    memory.wanted = wanted - before;
  }
  __syncthreads();
}

__device__ __forceinline__ uint64_t key_of(uint32_t bits, int place) {
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - static_cast<uint32_t>(place));
}

// Appends the first `wanted` places that hold `bits`, in order.
template <class T>
__device__ __forceinline__ void collect_equals(const T* values, int size, uint32_t bits, int wanted, SelectMemory& memory) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_key = memory.count;
  int found = 0;
  for (int first = 0; first < size && found < wanted; first += kSelectThreads) {
    const int place = first + static_cast<int>(threadIdx.x);
    const bool equals = place < size && ordered_bits(as_float(values[place])) == bits;
    const uint32_t votes = __ballot_sync(0xffffffffu, equals);
    if (lane == 0) memory.warp_counts[warp] = __popc(votes);
    __syncthreads();
    int rank = found + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < kSelectWarps; ++w) {
      if (w < warp) rank += memory.warp_counts[w];
      found += memory.warp_counts[w];
    }
    if (equals && rank < wanted) memory.keys[first_key + rank] = key_of(bits, place);
    __syncthreads();
  }
}

__device__ __forceinline__ void sort_down(uint64_t* keys, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      for (int pair = threadIdx.x; pair < count / 2; pair += kSelectThreads) {
        const int i = pair / step * step * 2 + pair % step, other = i + step;
        const uint64_t a = keys[i], b = keys[other];
        if ((a < b) == ((i & size) == 0)) {
          keys[i] = b;
          keys[other] = a;
        }
      }
      __syncthreads();
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kSelectThreads) top_k_kernel(const __grid_constant__ TopKArgs args) {
  __shared__ SelectMemory memory;
  launch_dependents();
  wait_for_prerequisites();
  const int64_t row = blockIdx.x;
  const int size = static_cast<int>(args.size), k = args.k;
  const T* values = static_cast<const T*>(args.values) + row * args.size;
  if (threadIdx.x == 0) {
    memory.wanted = k;
    memory.count = 0;
  }
  // Values with bits from `least` on are `k - wanted` larger ones and `num_alike` that share its `known` highest bits.
  uint32_t least = 0;
  int known = 0, num_alike = size, wanted = k;
  while (known < 32 && k - wanted + num_alike > kSorted) {
    const int shift = max(32 - known - kDigitBits, 0);
    count_digits(values, size, least, known, shift, memory);
    find_digit(memory);
    least |= static_cast<uint32_t>(memory.digit) << shift;
    known = 32 - shift;
    num_alike = memory.bins[memory.digit];
    wanted = memory.wanted;
    __syncthreads();
  }
  const bool takes_alike = k - wanted + num_alike <= kSorted;
  __syncthreads();
  for_each_value(values, size, [&](int place, uint32_t bits, bool exists) {
    if (exists && (takes_alike ? bits >= least : bits > least)) memory.keys[atomicAdd(&memory.count, 1)] = key_of(bits, place);
  });
  __syncthreads();
  if (!takes_alike) collect_equals(values, size, least, wanted, memory);
  const int count = takes_alike ? memory.count : k;
  int padded = 1;
  while (padded < count) padded *= 2;
  for (int i = count + threadIdx.x; i < padded; i += kSelectThreads) memory.keys[i] = 0;
  __syncthreads();
  sort_down(memory.keys, padded);
  for (int i = threadIdx.x; i < k; i += kSelectThreads) {
    const uint64_t key = memory.keys[i];
    args.places[row * k + i] = 0xffffffffu - static_cast<uint32_t>(key);
    args.best[row * k + i] = value_of(static_cast<uint32_t>(key >> 32));
  }
}

}  // namespace

void beam_scores(const BeamScoresArgs& args, void* stream) {
  if (args.vocab_size % 8 != 0) throw std::invalid_argument("beam_scores needs a vocabulary of a multiple of 8 tokens");
  if (args.num_rows == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.num_rows)), kScoreThreads};
  if (args.is_float) launch(beam_scores_kernel<float>, "beam_scores", shape, args, stream);
  else launch(beam_scores_kernel<__nv_bfloat16>, "beam_scores", shape, args, stream);
}

void top_k(const TopKArgs& args, void* stream) {
  if (args.k < 1 || args.k > kTopKMax) throw std::invalid_argument("top_k finds 1 to 1024 values");
  if (args.size < args.k || args.size >= int64_t{1} << 31) throw std::invalid_argument("top_k needs rows of k to 2^31 - 1 values");
  if (args.num_rows == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.num_rows)), kSelectThreads};
  if (args.is_float) launch(top_k_kernel<float>, "top_k", shape, args, stream);
  else launch(top_k_kernel<__nv_bfloat16>, "top_k", shape, args, stream);
}

}  // namespace xllm::kernels::cuda

// Memory-bound operations: every element is read once by a 16-byte load. All may overlap the kernel before them.
#include "xllm/kernels/cuda/row_kernels.h"

#include <algorithm>
#include <stdexcept>

#include "async_copy.cuh"
#include "element.cuh"
#include "launch.h"
#include "norm_and_rotate.cuh"

namespace xllm::kernels::cuda {
namespace {

constexpr int kVector = 8;            // elements of a 16-byte load
constexpr int64_t kMostNormed = 32768;  // numbers of a normed row: eight pieces a thread

__device__ __forceinline__ uint4* vectors(void* p, int64_t element) {
  return reinterpret_cast<uint4*>(static_cast<uint16_t*>(p) + element);
}
__device__ __forceinline__ const uint4* vectors(const void* p, int64_t element) {
  return reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p) + element);
}
template <class Element>
__device__ __forceinline__ float squares_of(uint32_t v) {
  const float2 a = Element::widen_pair(v);
  return a.x * a.x + a.y * a.y;
}
template <class Element>
__device__ __forceinline__ float squares_of(uint4 v) {
  return squares_of<Element>(v.x) + squares_of<Element>(v.y) + squares_of<Element>(v.z) + squares_of<Element>(v.w);
}
template <class Element>
__device__ __forceinline__ uint32_t scaled(uint32_t v, uint32_t w, float scale) {
  const float2 a = Element::widen_pair(v), b = Element::widen_pair(w);
  return Element::narrow_pair(a.x * scale * b.x, a.y * scale * b.y);
}
template <class Element>
__device__ __forceinline__ uint4 scaled(uint4 v, uint4 w, float scale) {
  return make_uint4(scaled<Element>(v.x, w.x, scale), scaled<Element>(v.y, w.y, scale), scaled<Element>(v.z, w.z, scale),
                    scaled<Element>(v.w, w.w, scale));
}
template <class Element>
__device__ __forceinline__ uint32_t sum_of(uint32_t a, uint32_t b) {
  const float2 x = Element::widen_pair(a), y = Element::widen_pair(b);
  return Element::narrow_pair(x.x + y.x, x.y + y.y);
}
template <class Element>
__device__ __forceinline__ uint4 sum_of(uint4 a, uint4 b) {
  return make_uint4(sum_of<Element>(a.x, b.x), sum_of<Element>(a.y, b.y), sum_of<Element>(a.z, b.z), sum_of<Element>(a.w, b.w));
}

// The sum over the WARPS warps that share a row; every thread gets it.
template <int WARPS>
__device__ __forceinline__ float row_sum(float v) {
  v = warp_sum(v);
  if constexpr (WARPS == 1) return v;
  __shared__ float sums[WARPS];
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) total += sums[w];
  return total;
}

// Brings the line of `p` to the L2 cache; what is loaded later is still what was written last.
__device__ __forceinline__ void prefetch_to_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// A thread's PIECES pieces of a row and of the weight. The weight has left the cache since the last step: it is asked for before x is there.
template <int THREADS, int PIECES>
struct NormedPieces {
  uint4 x[PIECES], weight[PIECES];
  int thread, count;

  __device__ NormedPieces(int thread_of_row, int64_t size) : thread(thread_of_row), count(static_cast<int>(size / kVector)) {}

  template <class Visit>
  __device__ __forceinline__ void each(Visit visit) {
#pragma unroll
    for (int p = 0; p < PIECES; ++p)
      if (thread + p * THREADS < count) visit(p, thread + p * THREADS);
  }
  __device__ __forceinline__ void ask_for(const uint4* from) {
    each([&](int, int i) { prefetch_to_l2(from + i); });
  }
};

// WARPS == 1: a warp a row, four rows a block (heads); otherwise a block a row.
template <class Element, int WARPS, int PIECES>
__global__ void __launch_bounds__(WARPS == 1 ? 128 : WARPS * 32) rms_norm_kernel(const __grid_constant__ RmsNormArgs args) {
  const int64_t row = WARPS == 1 ? blockIdx.x * int64_t{4} + threadIdx.x / 32 : blockIdx.x;
  const uint4* weight = vectors(args.weight, 0);
  NormedPieces<WARPS * 32, PIECES> pieces(WARPS == 1 ? threadIdx.x % 32 : threadIdx.x, args.size);
  launch_dependents();
  pieces.ask_for(weight);
  wait_for_prerequisites();
  if (row >= args.num_rows) return;
  const uint4* x = vectors(args.x, row * args.x_row_stride);
  uint4* out = vectors(args.out, row * args.out_row_stride);
  pieces.each([&](int p, int i) {
    pieces.x[p] = x[i];
    pieces.weight[p] = __ldg(weight + i);
  });
  float squares = 0.f;
  pieces.each([&](int p, int) { squares += squares_of<Element>(pieces.x[p]); });
  const float scale = rsqrtf(row_sum<WARPS>(squares) / args.size + args.eps);
  pieces.each([&](int p, int i) { out[i] = scaled<Element>(pieces.x[p], pieces.weight[p], scale); });
}

template <class Element, int WARPS, int PIECES>
__global__ void __launch_bounds__(WARPS == 1 ? 128 : WARPS * 32) add_rms_norm_kernel(const __grid_constant__ AddRmsNormArgs args) {
  const int64_t row = blockIdx.x;
  const uint4* weight = vectors(args.weight, 0);
  NormedPieces<WARPS * 32, PIECES> pieces(threadIdx.x, args.size);
  launch_dependents();
  pieces.ask_for(weight);
  wait_for_prerequisites();
  uint4* x = vectors(args.x, row * args.size);
  uint4* residual = vectors(args.residual, row * args.size);
  pieces.each([&](int p, int i) {
    pieces.x[p] = sum_of<Element>(x[i], residual[i]);
    pieces.weight[p] = __ldg(weight + i);
  });
  float squares = 0.f;
  pieces.each([&](int p, int i) {
    residual[i] = pieces.x[p];
    squares += squares_of<Element>(pieces.x[p]);
  });
  const float scale = rsqrtf(row_sum<WARPS>(squares) / args.size + args.eps);
  pieces.each([&](int p, int i) { x[i] = scaled<Element>(pieces.x[p], pieces.weight[p], scale); });
}

template <class Element>
__device__ __forceinline__ uint32_t silu_times_pair(uint32_t gate, uint32_t up) {
  const float2 a = Element::widen_pair(gate), b = Element::widen_pair(up);
  return Element::narrow_pair(silu_times(a.x, b.x), silu_times(a.y, b.y));
}

template <class Element>
__global__ void silu_and_mul_kernel(const __grid_constant__ SiluAndMulArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  const int64_t row = blockIdx.y;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.size / kVector) return;
  const uint4 gate = vectors(args.x, row * 2 * args.size)[i], up = vectors(args.x, (row * 2 + 1) * args.size)[i];
  vectors(args.out, row * args.size)[i] = make_uint4(silu_times_pair<Element>(gate.x, up.x), silu_times_pair<Element>(gate.y, up.y),
                                                     silu_times_pair<Element>(gate.z, up.z), silu_times_pair<Element>(gate.w, up.w));
}

// V neighbouring numbers, one load.
template <int V>
struct alignas(2 * V) Piece {
  uint32_t pairs[V / 2];
};

// As many angles, in loads of up to four.
template <int V>
struct alignas(V < 4 ? 8 : 16) Angles {
  float values[V];
};

// A thread rotates V neighbouring pairs of one head.
template <class Element, int V>
__global__ void rotary_embedding_kernel(const __grid_constant__ RotaryEmbeddingArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  const int64_t token = blockIdx.x;
  const int half = static_cast<int>(args.rotary_dim / 2), pieces = half / V;
  const int heads = static_cast<int>(args.num_heads), all = heads + static_cast<int>(args.num_kv_heads);
  const float* table = args.cos_sin + args.positions[token] * args.rotary_dim;
  for (int i = threadIdx.x; i < all * pieces; i += blockDim.x) {
    const int head = i / pieces, element = i % pieces * V;
    auto* row = head < heads ? static_cast<uint16_t*>(args.query) + token * args.query_row_stride + head * args.head_dim
                             : static_cast<uint16_t*>(args.key) + token * args.key_row_stride + (head - heads) * args.head_dim;
    auto* low = reinterpret_cast<Piece<V>*>(row + element);
    auto* high = reinterpret_cast<Piece<V>*>(row + half + element);
    Piece<V> x = *low, y = *high;
    const Angles<V> cosines = *reinterpret_cast<const Angles<V>*>(table + element);
    const Angles<V> sines = *reinterpret_cast<const Angles<V>*>(table + half + element);
#pragma unroll
    for (int p = 0; p < V / 2; ++p) {
      const float2 a = Element::widen_pair(x.pairs[p]), b = Element::widen_pair(y.pairs[p]);
      const float *c = cosines.values + 2 * p, *s = sines.values + 2 * p;
      x.pairs[p] = Element::narrow_pair(a.x * c[0] - b.x * s[0], a.y * c[1] - b.y * s[1]);
      y.pairs[p] = Element::narrow_pair(b.x * c[0] + a.x * s[0], b.y * c[1] + a.y * s[1]);
    }
    *low = x;
    *high = y;
  }
}

// Numbers of a load that all rows, heads and halves of heads allow: 8, 4 or 2.
int numbers_to_load(const RotaryEmbeddingArgs& args) {
  const auto addresses = reinterpret_cast<uintptr_t>(args.query) | reinterpret_cast<uintptr_t>(args.key);
  const int64_t places = args.query_row_stride | args.key_row_stride | args.head_dim | args.rotary_dim / 2;
  if (reinterpret_cast<uintptr_t>(args.cos_sin) % 16 != 0) return 2;
  for (const int numbers : {8, 4}) {
    if (places % numbers == 0 && addresses % (2 * static_cast<unsigned>(numbers)) == 0) return numbers;
  }
  return 2;
}

// How a warp takes the heads of one token: a lane has four numbers of a head's lower half and those that they turn with.
template <int D>
struct HeadLanes {
  static constexpr int kLanes = D / 8, kAtOnce = 32 / kLanes, kRounds = 4, kHeads = kAtOnce * kRounds, kMostWarps = 8;
  static constexpr int kSums = 128 / D;  // of a lane, joined last: the order in which `norm_head` adds
};

// The sum of squares of the head that `kLanes` lanes hold, every lane gets it.
template <int D>
__device__ __forceinline__ float head_squares(const float (&low)[4], const float (&high)[4]) {
  using Lanes = HeadLanes<D>;
  constexpr int kEach = 4 / Lanes::kSums;
  float total = 0.f;
#pragma unroll
  for (int part = 0; part < Lanes::kSums; ++part) {
    float a = 0.f, b = 0.f;
#pragma unroll
    for (int i = part * kEach; i < (part + 1) * kEach; ++i) a += low[i] * low[i], b += high[i] * high[i];
    a += b;
#pragma unroll
    for (int offset = Lanes::kLanes / 2; offset > 0; offset /= 2) a += __shfl_xor_sync(0xffffffffu, a, offset);
    total += a;
  }
  return total;
}

template <class Element>
__device__ __forceinline__ void scale_and_weigh(float (&v)[4], float scale, const typename Element::type* weight) {
  float weights[4];
  load_numbers<Element>(weights, weight);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = Element::widen(Element::narrow(v[i] * scale)) * weights[i];
}

template <class Element, int D>
__global__ void norm_and_rotate_kernel(const __grid_constant__ NormAndRotateArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  using T = typename Element::type;
  using Lanes = HeadLanes<D>;
  const RotaryEmbeddingArgs& heads = args.heads;
  const int64_t token = blockIdx.x;
  const int lane = threadIdx.x % 32, place = lane % Lanes::kLanes * 4;
  const int num_heads = static_cast<int>(heads.num_heads), all = num_heads + static_cast<int>(heads.num_kv_heads);
  const int first = static_cast<int>((blockIdx.y * blockDim.x + threadIdx.x) / 32) * Lanes::kHeads + lane / Lanes::kLanes;
  const auto row_of = [&](int head) {
    return place + (head < num_heads ? static_cast<T*>(heads.query) + token * heads.query_row_stride + head * D
                                     : static_cast<T*>(heads.key) + token * heads.key_row_stride + (head - num_heads) * D);
  };
  float low[Lanes::kRounds][4] = {}, high[Lanes::kRounds][4] = {};
#pragma unroll
  for (int round = 0; round < Lanes::kRounds; ++round) {
    const int head = first + round * Lanes::kAtOnce;
    if (head >= all) continue;
    load_numbers<Element>(low[round], row_of(head));
    load_numbers<Element>(high[round], row_of(head) + D / 2);
  }
  const float2* angles = reinterpret_cast<const float2*>(heads.cos_sin + heads.positions[token] * D + place);
  const float2 cosines[2] = {angles[0], angles[1]}, sines[2] = {angles[D / 4], angles[D / 4 + 1]};
  const float cosine[4] = {cosines[0].x, cosines[0].y, cosines[1].x, cosines[1].y}, sine[4] = {sines[0].x, sines[0].y, sines[1].x, sines[1].y};
#pragma unroll
  for (int round = 0; round < Lanes::kRounds; ++round) {
    const int head = first + round * Lanes::kAtOnce;
    const float scale = rsqrtf(head_squares<D>(low[round], high[round]) / D + args.eps);
    const void* norm = head < num_heads ? args.q_norm : args.k_norm;
    if (norm != nullptr) {
      const T* weight = static_cast<const T*>(norm) + place;
      scale_and_weigh<Element>(low[round], scale, weight);
      scale_and_weigh<Element>(high[round], scale, weight + D / 2);
    }
    if (head >= all) continue;
    float turned_low[4], turned_high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      turned_low[i] = low[round][i] * cosine[i] - high[round][i] * sine[i];
      turned_high[i] = high[round][i] * cosine[i] + low[round][i] * sine[i];
    }
    store_numbers<Element>(row_of(head), turned_low);
    store_numbers<Element>(row_of(head) + D / 2, turned_high);
  }
}

__global__ void write_kv_kernel(const __grid_constant__ WriteKvArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  const int64_t token = blockIdx.x, slot = args.slot_mapping[token];
  if (slot < 0) return;
  for (int i = threadIdx.x; i < args.width / kVector; i += blockDim.x) {
    vectors(args.key_cache, slot * args.width)[i] = vectors(args.key, token * args.key_row_stride)[i];
    vectors(args.value_cache, slot * args.width)[i] = vectors(args.value, token * args.value_row_stride)[i];
  }
}

void check_size(int64_t size, const char* what) {
  if (size <= 0 || size % kVector != 0) throw std::invalid_argument(std::string(what) + " must be a multiple of 8");
}

void check_normed_size(int64_t size) {
  check_size(size, "the size of a row");
  if (size > kMostNormed) throw std::invalid_argument("the size of a normed row must be at most 32768");
}
dim3 grid_of(int64_t rows) { return dim3(static_cast<unsigned>(rows)); }

template <class Element, int D>
void launch_norm_and_rotate(const NormAndRotateArgs& args, void* stream) {
  using Lanes = HeadLanes<D>;
  const auto warps = static_cast<unsigned>((args.heads.num_heads + args.heads.num_kv_heads + Lanes::kHeads - 1) / Lanes::kHeads);
  const unsigned blocks = (warps + Lanes::kMostWarps - 1) / Lanes::kMostWarps, warps_a_block = (warps + blocks - 1) / blocks;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.heads.num_tokens), blocks), static_cast<int>(32 * warps_a_block)};
  launch(norm_and_rotate_kernel<Element, D>, "norm_and_rotate", shape, args, stream);
}

// Whole warps for `work` items, at most 512 threads.
int threads_for(int64_t work) { return static_cast<int>(std::clamp<int64_t>((work + 31) / 32 * 32, 32, 512)); }

}  // namespace

void rms_norm(const RmsNormArgs& args, void* stream) {
  check_normed_size(args.size);
  if (args.num_rows == 0) return;
  with_element(args.type, [&](auto element) {
    using E = decltype(element);
    if (args.size <= 512) return launch(rms_norm_kernel<E, 1, 2>, "rms_norm", {grid_of((args.num_rows + 3) / 4), 128}, args, stream);
    const auto kernel = args.size <= 4096 ? rms_norm_kernel<E, 16, 1> : args.size <= 8192 ? rms_norm_kernel<E, 16, 2> : rms_norm_kernel<E, 16, 8>;
    launch(kernel, "rms_norm", {grid_of(args.num_rows), 512}, args, stream);
  });
}

void add_rms_norm(const AddRmsNormArgs& args, void* stream) {
  check_normed_size(args.size);
  if (args.num_rows == 0) return;
  const auto kernel = with_element(args.type, [&](auto element) {
    using E = decltype(element);
    return args.size <= 4096 ? add_rms_norm_kernel<E, 16, 1> : args.size <= 8192 ? add_rms_norm_kernel<E, 16, 2> : add_rms_norm_kernel<E, 16, 8>;
  });
  launch(kernel, "add_rms_norm", {grid_of(args.num_rows), 512}, args, stream);
}

void rotary_embedding(const RotaryEmbeddingArgs& args, void* stream) {
  if (args.rotary_dim % 4 != 0 || args.rotary_dim > args.head_dim) throw std::invalid_argument("rotary_dim must be a multiple of 4");
  if (args.num_tokens == 0) return;
  const int numbers = numbers_to_load(args);
  const auto kernel = with_element(args.type, [&](auto element) {
    using E = decltype(element);
    return numbers == 8 ? rotary_embedding_kernel<E, 8> : numbers == 4 ? rotary_embedding_kernel<E, 4> : rotary_embedding_kernel<E, 2>;
  });
  const int threads = threads_for((args.num_heads + args.num_kv_heads) * args.rotary_dim / 2 / numbers);
  launch(kernel, "rotary_embedding", {grid_of(args.num_tokens), threads}, args, stream);
}

void norm_and_rotate(const NormAndRotateArgs& args, void* stream) {
  const RotaryEmbeddingArgs& heads = args.heads;
  if ((heads.head_dim != 64 && heads.head_dim != 128) || heads.rotary_dim != heads.head_dim)
    throw std::invalid_argument("heads must have 64 or 128 numbers, all rotated");
  if (heads.num_tokens == 0) return;
  with_element(heads.type, [&](auto element) {
    using E = decltype(element);
    return heads.head_dim == 64 ? launch_norm_and_rotate<E, 64>(args, stream) : launch_norm_and_rotate<E, 128>(args, stream);
  });
}

void write_kv(const WriteKvArgs& args, void* stream) {
  check_size(args.width, "num_kv_heads * head_dim");
  if (args.num_tokens == 0) return;
  launch(write_kv_kernel, "write_kv", {grid_of(args.num_tokens), threads_for(args.width / kVector)}, args, stream);
}

void silu_and_mul(const SiluAndMulArgs& args, void* stream) {
  check_size(args.size, "the size of a row");
  constexpr int kThreads = 256;
  constexpr int64_t kMostRows = 65535;  // the most that a grid has in y
  const auto columns = static_cast<unsigned>((args.size / kVector + kThreads - 1) / kThreads);
  const auto kernel = with_element(args.type, [](auto element) { return silu_and_mul_kernel<decltype(element)>; });
  for (int64_t row = 0; row < args.num_rows; row += kMostRows) {
    SiluAndMulArgs part = args;
    part.num_rows = std::min<int64_t>(kMostRows, args.num_rows - row);
    part.x = static_cast<const uint16_t*>(args.x) + row * 2 * args.size;
    part.out = static_cast<uint16_t*>(args.out) + row * args.size;
    launch(kernel, "silu_and_mul", {dim3(columns, static_cast<unsigned>(part.num_rows)), kThreads}, part, stream);
  }
}

}  // namespace xllm::kernels::cuda

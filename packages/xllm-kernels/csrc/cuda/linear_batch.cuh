// y = epilogue(x W^T + bias) for up to NB rows of x: W is the A operand of warpgroup products, x the B operand, both in shared memory.
//
// A block multiplies 64 rows of W for each of its WARPGROUPS by all rows of x over one of S equal parts of K. One thread asks the bulk
// tensor copy engine for steps of W and x (64 columns) in a ring of STAGES. The ring fills with W while the kernel before ends
// (programmatic dependent launch), so what a block has must fit one multiprocessor beside a block of the kernel before. S blocks that
// share rows of W are a cluster: each leaves its sums in its shared memory, where the ring was, and adds up those of all for 1 / S of
// the rows of x, always in the same order.
//
// An RMS norm between two products needs no kernel of its own: the first leaves, beside its sums with the residual, the same times the
// norm's weight, and sums of squares of what each block wrote of a row; the second multiplies what was left and scales its rows.
//
// GATED: the rows of a block are half gate rows, half the up rows that belong to them. Knows nothing of models.
#pragma once

#include <algorithm>

#include "async_copy.cuh"
#include "cluster.cuh"
#include "element.cuh"
#include "tensor_map.h"
#include "warpgroup.cuh"
#include "xllm/kernels/cuda/linear_batch.h"

namespace xllm::kernels::cuda {

template <class T>
struct BatchParameters {
  CUtensorMap weight;  // [N, K], boxes of a block's rows (GATED: half of them)
  CUtensorMap x;       // [B, K], boxes of NB rows
  const T* bias;
  T* out;
  int batch;
  int n;
  int k;
  int splits;          // S
  bool adds;           // to what out holds
  const float* squares;               // [K / 64, kNormedRows], or null: x has been normed, or needs no norm
  float eps;
  const T* next_norm;                 // [N], or null: nothing more is left
  T* next_x;                          // [B, N]
  float* next_squares;                // [N / 64, kNormedRows]
};

constexpr int kNormedRows = kLinearBatchMaxBatch;

// A warp of its own finishes the norm of x while others multiply: lane b adds up the squares of row b, of which every block needs all.
template <class Shape>
__device__ __forceinline__ void leave_scales(const typename Shape::Parameters& args, float* scales) {
  constexpr int kAhead = 8;  // loads in flight
  const int row = threadIdx.x % 32, parts = row < args.batch ? args.k / 64 : 0;
  float sums[kAhead] = {};
  wait_for_prerequisites();
  for (int part = 0; part < parts; part += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (part + i < parts) sums[i] += args.squares[(part + i) * kNormedRows + row];
    }
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) sum += sums[i];
  scales[row] = norm_scale<typename Shape::Element>(sum, args.k, args.eps);
  arrive_threads<Shape::kThreads + 32, 2>();
}

template <class ELEMENT, int NB, int STAGES, int WARPGROUPS = 1>
struct BatchShape {
  using Element = ELEMENT;
  using T = typename Element::type;
  using Parameters = BatchParameters<T>;
  static constexpr int kWarpgroups = WARPGROUPS, kRows = 64 * WARPGROUPS, kColumns = NB, kStages = STAGES;
  static constexpr bool kNorms = NB <= kNormedRows;
  static constexpr int kThreads = 128 * WARPGROUPS, kBlockThreads = kThreads + (kNorms ? 64 : 32);  // with a warp that copies, one that norms
  static constexpr int kWeightBytes = kRows * 128, kStageBytes = kWeightBytes + NB * 128;
  static constexpr int kSumStride = kRows + 4;
  static constexpr int kRingBytes = std::max(STAGES * kStageBytes, NB * kSumStride * 4);
  static constexpr int kBytes = kRingBytes + STAGES * 16 + 1024;
};

// Which part of the work a block has.
struct BatchPlace {
  int tile;   // of W's rows
  int split;  // part of K
};

// The copying thread: keeps the ring full over `steps` steps of the block's part of K.
template <class Shape, bool GATED>
__device__ __forceinline__ void copy_steps(const typename Shape::Parameters& args, unsigned char* stages, uint64_t* full, uint64_t* empty,
                                           BatchPlace place, int steps) {
  prefetch_map(&args.weight);
  prefetch_map(&args.x);
  const uint64_t once = evict_first_policy(), often = evict_last_policy();
  const int column0 = place.split * steps * kBoxColumns;
  const auto copy_weight = [&](int step, int stage) {
    unsigned char* base = stages + stage * Shape::kStageBytes;
    const int column = column0 + step * kBoxColumns;
    barrier_expect(full + stage, Shape::kStageBytes);
    if constexpr (GATED) {
      copy_box(base, &args.weight, column, place.tile * (Shape::kRows / 2), full + stage, once);
      copy_box(base + Shape::kWeightBytes / 2, &args.weight, column, args.n / 2 + place.tile * (Shape::kRows / 2), full + stage, once);
    } else {
      copy_box(base, &args.weight, column, place.tile * Shape::kRows, full + stage, once);
    }
  };
  const auto copy_x = [&](int step, int stage) {
    copy_box(stages + stage * Shape::kStageBytes + Shape::kWeightBytes, &args.x, column0 + step * kBoxColumns, 0, full + stage, often);
  };
  const int ahead = min(Shape::kStages, steps);
  for (int step = 0; step < ahead; ++step) copy_weight(step, step);
  wait_for_prerequisites();
  for (int step = 0; step < ahead; ++step) copy_x(step, step);
  for (int step = ahead; step < steps; ++step) {
    const int stage = step % Shape::kStages;
    barrier_wait(empty + stage, (step / Shape::kStages - 1) & 1);
    copy_weight(step, stage);
    copy_x(step, stage);
  }
}

// Leaves a warpgroup's sums in shared memory, [row of x][row of W].
template <class Shape>
__device__ __forceinline__ void leave_batch_sums(const float (&c)[Shape::kColumns / 2], float* sums, int warp, int lane) {
  const int row = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < Shape::kColumns / 8; ++j) {
    float* at = sums + (j * 8 + column) * Shape::kSumStride + row;
    at[0] = c[4 * j];
    at[Shape::kSumStride] = c[4 * j + 1];
    at[8] = c[4 * j + 2];
    at[Shape::kSumStride + 8] = c[4 * j + 3];
  }
}

__device__ __forceinline__ void add_eight(float (&v)[8], float4 low, float4 high) {
  v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
  v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
}

// The sums of eight rows of W for row `b` of x, over all parts of K.
template <class Shape>
__device__ __forceinline__ void total_of_eight(const typename Shape::Parameters& args, const float* sums, int b, int row, float (&v)[8]) {
  const uint32_t address = shared_address(sums + b * Shape::kSumStride + row);
#pragma unroll
  for (int e = 0; e < 8; ++e) v[e] = 0.f;
#pragma unroll 2
  for (int s = 0; s < args.splits; ++s) add_eight(v, load_from_cluster(address, s), load_from_cluster(address + 16, s));
}

// Leaves eight numbers of row `b` for the next norm; the eight threads of neighbouring numbers of the row call it together.
template <class Shape>
__device__ __forceinline__ void leave_for_norm(const typename Shape::Parameters& args, uint4 v, uint4 weight, int b, int column) {
  float squares = 0.f;
  *reinterpret_cast<uint4*>(args.next_x + static_cast<size_t>(b) * args.n + column) =
      weigh_piece<typename Shape::Element>(v, weight, squares);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int o = 4; o; o >>= 1) squares += __shfl_xor_sync(0xffu << (lane & ~7), squares, o);
  if (lane % 8 == 0) args.next_squares[column / 64 * kNormedRows + b] = squares;
}

// What a block writes: rows b0 to b1 of x, eight numbers at a time.
template <class Shape, bool GATED>
struct BatchOutput {
  static constexpr int kRows = GATED ? Shape::kRows / 2 : Shape::kRows, kGroups = kRows / 8;
  int tile, b0, b1;

  __device__ __forceinline__ int count() const { return (b1 - b0) * kGroups; }
  __device__ __forceinline__ int b(int i) const { return b0 + i / kGroups; }
  __device__ __forceinline__ int row(int i) const { return i % kGroups * 8; }
  __device__ __forceinline__ int column(int i) const { return tile * kRows + row(i); }
  __device__ __forceinline__ uint4* at(const typename Shape::Parameters& args, int i) const {
    return reinterpret_cast<uint4*>(args.out + static_cast<size_t>(b(i)) * (GATED ? args.n / 2 : args.n) + column(i));
  }
};

// What eight sums meet, asked for long before they are there.
struct BatchAddends {
  uint4 residual = make_uint4(0, 0, 0, 0), bias = make_uint4(0, 0, 0, 0), next_norm = make_uint4(0, 0, 0, 0);

  template <class Shape>
  __device__ __forceinline__ void load(const typename Shape::Parameters& args, const BatchOutput<Shape, false>& output, int i) {
    if (i >= output.count()) return;
    if (args.adds) residual = *output.at(args, i);
    if (args.bias != nullptr) bias = *reinterpret_cast<const uint4*>(args.bias + output.column(i));
    if (args.next_norm != nullptr) next_norm = *reinterpret_cast<const uint4*>(args.next_norm + output.column(i));
  }
};

// Applies the epilogue to the sums of all blocks of the tile, and writes. `addends` are those of the thread's first eight numbers.
template <class Shape>
__device__ __forceinline__ void write_rows(const typename Shape::Parameters& args, const float* sums, const float* scales,
                                           const BatchOutput<Shape, false>& output, BatchAddends addends) {
  using Element = typename Shape::Element;
  for (int i = threadIdx.x; i < output.count(); i += Shape::kThreads) {
    const int b = output.b(i);
    float v[8];
    total_of_eight<Shape>(args, sums, b, output.row(i), v);
    const float scale = args.squares == nullptr ? 1.f : scales[b];
    const auto finished = [&](int e, uint32_t bias_pair, uint32_t residual_pair) {
      const float2 bias = Element::widen_pair(bias_pair), residual = Element::widen_pair(residual_pair);
      return Element::narrow_pair(v[e] * scale + bias.x + residual.x, v[e + 1] * scale + bias.y + residual.y);
    };
    const uint4 bias = addends.bias, residual = addends.residual;
    const uint4 result = make_uint4(finished(0, bias.x, residual.x), finished(2, bias.y, residual.y), finished(4, bias.z, residual.z),
                                    finished(6, bias.w, residual.w));
    *output.at(args, i) = result;
    if (args.next_norm != nullptr) leave_for_norm<Shape>(args, result, addends.next_norm, b, output.column(i));
    addends.load(args, output, i + Shape::kThreads);
  }
}

// The same of gates and what they let through.
template <class Shape>
__device__ __forceinline__ void write_gated_rows(const typename Shape::Parameters& args, const float* sums, const float* scales,
                                                 const BatchOutput<Shape, true>& output) {
  using Element = typename Shape::Element;
  for (int i = threadIdx.x; i < output.count(); i += Shape::kThreads) {
    const int b = output.b(i), row = output.row(i);
    float gate[8] = {}, up[8] = {};
    const uint32_t address = shared_address(sums + b * Shape::kSumStride + row);
    for (int s = 0; s < args.splits; ++s) {
      add_eight(gate, load_from_cluster(address, s), load_from_cluster(address + 16, s));
      add_eight(up, load_from_cluster(address + output.kRows * 4, s), load_from_cluster(address + output.kRows * 4 + 16, s));
    }
    const float scale = args.squares == nullptr ? 1.f : scales[b];
    const auto gated = [&](int e) {
      return Element::narrow_pair(silu_times(gate[e] * scale, up[e] * scale), silu_times(gate[e + 1] * scale, up[e + 1] * scale));
    };
    *output.at(args, i) = make_uint4(gated(0), gated(2), gated(4), gated(6));
  }
}

// The warps that multiply: over all steps, then the epilogue.
template <class Shape, bool GATED>
__device__ __forceinline__ void multiply_steps(const typename Shape::Parameters& args, unsigned char* stages, uint64_t* full, uint64_t* empty,
                                               const float* scales, BatchPlace place, int steps) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = Shape::kWarpgroups == 1 ? 0 : warp / 4;
  auto* sums = reinterpret_cast<float*>(stages);
  const int share = (args.batch + args.splits - 1) / args.splits, b0 = min(args.batch, place.split * share);
  const BatchOutput<Shape, GATED> output{place.tile, b0, min(args.batch, b0 + share)};
  wait_for_prerequisites();
  BatchAddends addends;
  if constexpr (!GATED) addends.load(args, output, threadIdx.x);

  float c[Shape::kColumns / 2];
  int stage = 0, parity = 0, before = 0;
  for (int step = 0; step < steps; ++step) {
    barrier_wait(full + stage, parity);
    __syncwarp();
    const unsigned char* base = stages + stage * Shape::kStageBytes;
    const uint64_t a = describe_rows(shared_address(base) + group * 64 * 128), b = describe_rows(shared_address(base + Shape::kWeightBytes));
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < kBoxColumns / 16; ++k) multiply_rows<typename Shape::Element>(c, a + 2 * k, b + 2 * k, step > 0 || k > 0);
    warpgroup_commit();
    warpgroup_wait<1>();
    if (step > 0 && lane == 0) barrier_arrive(empty + before);  // the step before has been read
    before = stage;
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  warpgroup_wait<0>();
  settle(c);
  sync_threads<Shape::kThreads>();  // nobody reads the ring any more
  leave_batch_sums<Shape>(c, sums, warp, lane);
  if (args.squares != nullptr) sync_threads<Shape::kThreads + 32, 2>();  // with who leaves scales
  if (args.splits == 1) {
    sync_threads<Shape::kThreads>();
  } else {
    cluster_arrive();
    cluster_wait();
  }
  if constexpr (GATED) write_gated_rows<Shape>(args, sums, scales, output);
  else write_rows<Shape>(args, sums, scales, output, addends);
  if (args.splits == 1) return;
  cluster_arrive();  // nobody's shared memory goes while another reads it
  cluster_wait();
}

// Told that one block a multiprocessor would do, ptxas takes half as many registers again, and blocks of the kernels before and after do not
// fit beside this one's.
template <class Shape, bool GATED>
__global__ void __launch_bounds__(Shape::kBlockThreads) linear_batch_kernel(const __grid_constant__ typename Shape::Parameters args) {
  extern __shared__ unsigned char unaligned[];
  unsigned char* stages = align_to_swizzle(unaligned);
  auto* full = reinterpret_cast<uint64_t*>(stages + Shape::kRingBytes);
  uint64_t* empty = full + Shape::kStages;
  const BatchPlace place{static_cast<int>(blockIdx.x) / args.splits, static_cast<int>(blockIdx.x) % args.splits};
  const int steps = args.k / args.splits / kBoxColumns;
  __shared__ float scales[kNormedRows];

  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, Shape::kThreads / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  launch_dependents();
  if (threadIdx.x < Shape::kThreads) {
    multiply_steps<Shape, GATED>(args, stages, full, empty, scales, place, steps);
  } else if (threadIdx.x < Shape::kThreads + 32) {
    if (threadIdx.x == Shape::kThreads) copy_steps<Shape, GATED>(args, stages, full, empty, place, steps);
  } else if (args.squares != nullptr) {
    leave_scales<Shape>(args, scales);
  }
}

}  // namespace xllm::kernels::cuda

// y = epilogue(norm(x) W^T + bias) for up to 8 * NT rows of x: the weights pass through shared memory once, at memory speed.
//
// One or two blocks a multiprocessor stay for the whole kernel. One thread asks the bulk tensor copy engine for tiles of W (16 * MT
// rows, KC columns) in a ring of STAGES; WM * WK warps multiply them by mma.m16n8k16. The contraction order is free, so a lane takes
// 16 contiguous bytes of a row as the operands of two products. Since W does not depend on the kernel before, the ring fills while
// that one ends (programmatic dependent launch).
//
//   unit u = (tile of 16 * MT rows, slice s of S of K); a block owns units [u0, u1), with S > 1 one; S blocks that share a tile are a cluster
//   a stage is KC / 64 boxes of W and, with XSTAGE, as many of x; otherwise x stays in shared memory for the whole kernel
//   chunk c = (box c / 2, h = c % 2): lane t holds piece 2 t + h; warp (wm, wk) takes chunks wk, wk + WK, ... of its MT / WM row tiles
//   lane = 4 * g + t: rows g and g + 8 of a tile; rows of x: 8 n + g
//
// Knows nothing of models. N must be a multiple of 16 * MT (kSiluMul: 32 * MT / 2 of each half) and K of KC * S.
#pragma once

#include "async_copy.cuh"
#include "cluster.cuh"
#include "element.cuh"
#include "tensor_map.h"
#include "xllm/kernels/cuda/linear_stream.h"

namespace xllm::kernels::cuda {

template <class T>
struct LinearParameters {
  CUtensorMap weight;                // [N, K], boxes of 16 * MT (silu_and_mul: 8 * MT) rows
  CUtensorMap x_map;                 // XSTAGE: [B, K], boxes of 8 * NT rows
  const T* x;                        // [B, K]
  const T* norm_weight;              // [K] with NORM
  const T* bias;                     // [N] or null
  T* out;
  int batch;
  int n;
  int k;
  int splits;                        // S
  float eps;
};

constexpr int kMaxSlices = 8;

template <class ELEMENT, int MT, int NT, int WM, int WK, int KC, int STAGES, bool XSTAGE>
struct LinearShape {
  using Element = ELEMENT;
  using T = typename Element::type;
  using Parameters = LinearParameters<T>;
  static constexpr int kRows = 16 * MT, kColumns = 8 * NT, kConsumers = WM * WK;
  static constexpr int kThreads = kConsumers * 32, kBlockThreads = kThreads + 32;
  static constexpr int kMt = MT, kNt = NT, kWm = WM, kWk = WK, kKc = KC, kStages = STAGES;
  static constexpr bool kXStage = XSTAGE;
  static constexpr int kStageBytes = (kRows + (XSTAGE ? kColumns : 0)) * KC * 2;
  static constexpr int kPartialBytes = WK * kRows * (kColumns + 1) * 4 + WK * kColumns * 4;
  static constexpr int kBarrierBytes = 256, kAlignmentBytes = 1024;
  static_assert(STAGES * 16 <= kBarrierBytes, "the barriers have room for 16 stages");
  static_assert(XSTAGE || WM == 1, "with x resident, a warp is a part of K");
  static_assert(KC % 64 == 0 && KC / 32 % WK == 0 && MT % WM == 0, "warps share chunks and row tiles evenly");
  static int bytes(int k, int batch) {
    const int resident = XSTAGE ? 0 : batch * (k + 8) * 2;
    return STAGES * kStageBytes + kPartialBytes + kBarrierBytes + kAlignmentBytes + resident;
  }
};

// Shared memory of one block.
template <class Shape>
struct LinearMemory {
  unsigned char* stages;
  float* partial;           // [WK][rows][columns + 1]
  float* squares;           // [WK][columns]
  uint64_t* full;
  uint64_t* empty;
  typename Shape::T* resident;  // [batch][k + 8] without XSTAGE

  __device__ explicit LinearMemory(unsigned char* unaligned) {
    stages = align_to_swizzle(unaligned);
    partial = reinterpret_cast<float*>(stages + Shape::kStages * Shape::kStageBytes);
    squares = partial + Shape::kWk * Shape::kRows * (Shape::kColumns + 1);
    unsigned char* barriers = stages + Shape::kStages * Shape::kStageBytes + Shape::kPartialBytes;
    full = reinterpret_cast<uint64_t*>(barriers);
    empty = full + Shape::kStages;
    resident = reinterpret_cast<typename Shape::T*>(barriers + Shape::kBarrierBytes);
  }
};

// The copying thread: keeps the ring full from unit u0 to u1.
template <class Shape, Epilogue EPI>
__device__ __forceinline__ void copy_tiles(const typename Shape::Parameters& args, const LinearMemory<Shape>& memory, int u0, int u1,
                                           int slice) {
  constexpr int kBoxes = Shape::kKc / kBoxColumns, kRows = Shape::kRows;
  prefetch_map(&args.weight);
  if constexpr (Shape::kXStage) prefetch_map(&args.x_map);
  const uint64_t once = evict_first_policy(), often = evict_last_policy();
  const int steps = slice / Shape::kKc, total = (u1 - u0) * steps;
  const auto column_of = [&](int i) { return ((u0 + i / steps) % args.splits) * slice + (i % steps) * Shape::kKc; };
  const auto copy_weight = [&](int i, int stage) {
    const int tile = (u0 + i / steps) / args.splits, column = column_of(i);
    unsigned char* base = memory.stages + stage * Shape::kStageBytes;
    barrier_expect(memory.full + stage, Shape::kStageBytes);
    for (int box = 0; box < kBoxes; ++box, base += kRows * 128) {
      const int at = column + box * kBoxColumns;
      if constexpr (EPI == Epilogue::silu_and_mul) {
        copy_box(base, &args.weight, at, tile * (kRows / 2), memory.full + stage, once);
        copy_box(base + kRows * 64, &args.weight, at, args.n / 2 + tile * (kRows / 2), memory.full + stage, once);
      } else {
        copy_box(base, &args.weight, at, tile * kRows, memory.full + stage, once);
      }
    }
  };
  const auto copy_x = [&](int i, int stage) {
    unsigned char* base = memory.stages + stage * Shape::kStageBytes + kRows * Shape::kKc * 2;
    for (int box = 0; box < kBoxes; ++box) {
      copy_box(base + box * Shape::kColumns * 128, &args.x_map, column_of(i) + box * kBoxColumns, 0, memory.full + stage,
               often);
    }
  };
  // W does not depend on the kernel before, x does: the ring is full of W when x may be read.
  const int ahead = min(Shape::kStages, total);
  for (int i = 0; i < ahead; ++i) copy_weight(i, i);
  if constexpr (Shape::kXStage) {
    wait_for_prerequisites();
    for (int i = 0; i < ahead; ++i) copy_x(i, i);
  }
  for (int i = ahead; i < total; ++i) {
    const int stage = i % Shape::kStages;
    barrier_wait(memory.empty + stage, (i / Shape::kStages - 1) & 1);
    copy_weight(i, stage);
    if constexpr (Shape::kXStage) copy_x(i, stage);
  }
}

// Without XSTAGE: x comes to shared memory once, as it is.
template <class Shape>
__device__ __forceinline__ void load_plain(const typename Shape::Parameters& args, const LinearMemory<Shape>& memory) {
  for (int b = 0; b < args.batch; ++b) {
    for (int c = threadIdx.x; c < args.k / 8; c += Shape::kThreads)
      copy_piece(memory.resident + b * (args.k + 8) + c * 8, args.x + static_cast<size_t>(b) * args.k + c * 8);
  }
  wait_for_pieces();
  sync_threads<Shape::kThreads>();
}

// The same, multiplied by the norm's weight.
template <class Shape>
__device__ __forceinline__ void load_weighed(const typename Shape::Parameters& args, const LinearMemory<Shape>& memory, int warp, int lane) {
  const auto* weight = reinterpret_cast<const uint4*>(args.norm_weight);
  for (int b = 0; b < args.batch; ++b) {
    float squares = 0.f;
    const auto* row = reinterpret_cast<const uint4*>(args.x + static_cast<size_t>(b) * args.k);
    for (int c = threadIdx.x; c < args.k / 8; c += Shape::kThreads) {
      reinterpret_cast<uint4*>(memory.resident + b * (args.k + 8))[c] =
          weigh_piece<typename Shape::Element>(row[c], __ldg(weight + c), squares);
    }
    squares = warp_sum(squares);
    if (lane == 0) memory.squares[warp * Shape::kColumns + b] = squares;
  }
  sync_threads<Shape::kThreads>();
}

// Adds one stage's products to a warp's sums.
template <class Shape, bool NORM>
__device__ __forceinline__ void multiply_stage(const typename Shape::Parameters& args, const LinearMemory<Shape>& memory,
                                               const unsigned char* base, int k0, int wm, int wk, int g, int t,
                                               float (&sums)[Shape::kMt / Shape::kWm][Shape::kNt][4],
                                               float (&squares)[Shape::kNt]) {
  constexpr int kRowTiles = Shape::kMt / Shape::kWm, kRows = Shape::kRows;
#pragma unroll
  for (int c = wk; c < Shape::kKc / 32; c += Shape::kWk) {
    const int box = c / 2, piece = 2 * t + c % 2, column = box * kBoxColumns + piece * 8;
    const int offset = (piece ^ g) * 16;  // rows g, g + 8, ... of a box all have the same three low bits
    uint4 w[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const unsigned char* row = base + (box * kRows + (wm * kRowTiles + m) * 16 + g) * 128 + offset;
      w[m][0] = *reinterpret_cast<const uint4*>(row);
      w[m][1] = *reinterpret_cast<const uint4*>(row + 8 * 128);
    }
    uint4 norm;
    if constexpr (NORM && Shape::kXStage) norm = __ldg(reinterpret_cast<const uint4*>(args.norm_weight + k0 + column));
#pragma unroll
    for (int n = 0; n < Shape::kNt; ++n) {
      uint4 x;
      if constexpr (Shape::kXStage) {
        x = *reinterpret_cast<const uint4*>(base + kRows * Shape::kKc * 2 + (box * Shape::kColumns + n * 8 + g) * 128 +
                                            offset);
        if constexpr (NORM) x = weigh_piece<typename Shape::Element>(x, norm, squares[n]);
      } else {
        // Rows past the batch repeat its last one: their products are never read.
        const int b = min(n * 8 + g, args.batch - 1);
        x = *reinterpret_cast<const uint4*>(memory.resident + b * (args.k + 8) + k0 + column);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        Shape::Element::multiply_add(sums[m][n], {w[m][0].x, w[m][1].x, w[m][0].y, w[m][1].y}, x.x, x.y);
        Shape::Element::multiply_add(sums[m][n], {w[m][0].z, w[m][1].z, w[m][0].w, w[m][1].w}, x.z, x.w);
      }
    }
  }
}

// Leaves a warp's sums in shared memory, where those of the WK warps along K meet.
template <class Shape, bool NORM>
__device__ __forceinline__ void leave_sums(const LinearMemory<Shape>& memory, int wm, int wk, int g, int t,
                                           const float (&sums)[Shape::kMt / Shape::kWm][Shape::kNt][4],
                                           const float (&squares)[Shape::kNt]) {
  constexpr int kStride = Shape::kColumns + 1;
  float* mine = memory.partial + wk * Shape::kRows * kStride;
#pragma unroll
  for (int m = 0; m < Shape::kMt / Shape::kWm; ++m) {
    const int row = (wm * (Shape::kMt / Shape::kWm) + m) * 16 + g;
#pragma unroll
    for (int n = 0; n < Shape::kNt; ++n) {
      mine[row * kStride + n * 8 + 2 * t] = sums[m][n][0];
      mine[row * kStride + n * 8 + 2 * t + 1] = sums[m][n][1];
      mine[(row + 8) * kStride + n * 8 + 2 * t] = sums[m][n][2];
      mine[(row + 8) * kStride + n * 8 + 2 * t + 1] = sums[m][n][3];
    }
  }
  if constexpr (NORM && Shape::kXStage) {
#pragma unroll
    for (int n = 0; n < Shape::kNt; ++n) {
      float s = squares[n];
      s += __shfl_xor_sync(0xffffffffu, s, 1);
      s += __shfl_xor_sync(0xffffffffu, s, 2);
      if (t == 0 && wm == 0) memory.squares[wk * Shape::kColumns + n * 8 + g] = s;
    }
  }
  sync_threads<Shape::kThreads>();
}

// With S > 1: a block's sums over its warps, where the others of the cluster can read them.
template <class Shape, bool NORM>
__device__ __forceinline__ void join_warps(const typename Shape::Parameters& args, const LinearMemory<Shape>& memory) {
  constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns, kStride = kColumns + 1;
  for (int i = threadIdx.x; i < kRows * args.batch; i += Shape::kThreads) {
    float* at = memory.partial + i % kRows * kStride + i / kRows;
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < Shape::kWk; ++w) sum += at[w * kRows * kStride];
    *at = sum;
  }
  if constexpr (NORM && Shape::kXStage) {
    if (threadIdx.x < args.batch) {
      float sum = 0.f;
      for (int w = 0; w < Shape::kWk; ++w) sum += memory.squares[w * kColumns + threadIdx.x];
      memory.squares[threadIdx.x] = sum;
    }
  }
  cluster_arrive();
  cluster_wait();
}

// What a sum meets, asked for long before it is there.
template <class Shape, Epilogue EPI>
struct Addend {
  float value = 0.f;
  // Of number `i` of a tile's [batch, rows].
  __device__ __forceinline__ void load(const typename Shape::Parameters& args, int tile, int i) {
    using Element = typename Shape::Element;
    const int b = i / Shape::kRows, column = tile * Shape::kRows + i % Shape::kRows;
    value = 0.f;
    if (EPI == Epilogue::silu_and_mul || b >= args.batch) return;
    if (args.bias != nullptr) value = Element::widen(args.bias[column]);
    if constexpr (EPI == Epilogue::add_residual) value += Element::widen(args.out[static_cast<size_t>(b) * args.n + column]);
  }
};

// Sums over slices in their order, or over warps, scales, applies the epilogue, writes. `addend` is that of the thread's first number.
template <class Shape, Epilogue EPI, bool NORM>
__device__ __forceinline__ void finish_tile(const typename Shape::Parameters& args, const LinearMemory<Shape>& memory, int tile, int split,
                                            Addend<Shape, EPI> addend) {
  using Element = typename Shape::Element;
  constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns;
  constexpr int kOutRows = EPI == Epilogue::silu_and_mul ? kRows / 2 : kRows;
  const auto total = [&](const float* first, int stride) {
    constexpr int kMost = Shape::kWk > kMaxSlices ? Shape::kWk : kMaxSlices;
    float parts[kMost], sum = 0.f;  // all are asked for before the first is added
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      parts[i] = 0.f;
      if (args.splits > 1) {
        if (i < args.splits) parts[i] = load_number_from_cluster(shared_address(first), i);
      } else if (i < Shape::kWk) {
        parts[i] = first[i * stride];
      }
    }
#pragma unroll
    for (int i = 0; i < kMost; ++i) sum += parts[i];
    return sum;
  };
  const auto total_of_row = [&](int row, int b) { return total(memory.partial + row * (kColumns + 1) + b, kRows * (kColumns + 1)); };
  const auto squares_of_warps = [&](int b) {  // x resident: every block of a cluster has all squares
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < Shape::kWk; ++w) sum += memory.squares[w * kColumns + b];
    return sum;
  };
  for (int i = split * Shape::kThreads + threadIdx.x; i < kOutRows * args.batch; i += args.splits * Shape::kThreads) {
    const int row = i % kOutRows, b = i / kOutRows;
    float scale = 1.f;
    if constexpr (NORM) {
      const float squares = Shape::kXStage ? total(memory.squares + b, kColumns) : squares_of_warps(b);
      scale = norm_scale<Element>(squares, args.k, args.eps);
    }
    const float sum = total_of_row(row, b) * scale;
    if constexpr (EPI == Epilogue::silu_and_mul) {
      const float up = total_of_row(kOutRows + row, b) * scale;
      args.out[static_cast<size_t>(b) * (args.n / 2) + tile * kOutRows + row] = Element::narrow(silu_times(sum, up));
    } else {
      args.out[static_cast<size_t>(b) * args.n + tile * kRows + row] = Element::narrow(sum + addend.value);
      addend.load(args, tile, i + args.splits * Shape::kThreads);
    }
  }
}

template <class Shape, Epilogue EPI, bool NORM>
__global__ void __launch_bounds__(Shape::kBlockThreads, 2) linear_stream_kernel(
    const __grid_constant__ typename Shape::Parameters args) {
  extern __shared__ unsigned char unaligned[];
  const LinearMemory<Shape> memory(unaligned);
  const int units = args.n / Shape::kRows * args.splits, slice = args.k / args.splits, steps = slice / Shape::kKc;
  const int u0 = static_cast<int>(static_cast<long long>(units) * blockIdx.x / gridDim.x);
  const int u1 = static_cast<int>(static_cast<long long>(units) * (blockIdx.x + 1) / gridDim.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(memory.full + s, 1);
      barrier_init(memory.empty + s, Shape::kConsumers);
    }
    barrier_init_fence();
  }
  __syncthreads();
  launch_dependents();
  if (warp == Shape::kConsumers) {
    if (lane == 0) copy_tiles<Shape, EPI>(args, memory, u0, u1, slice);
    return;
  }
  const int g = lane / 4, t = lane % 4, wm = warp / Shape::kWk, wk = warp % Shape::kWk;
  if constexpr (NORM) bring_near(args.norm_weight, args.k, threadIdx.x, Shape::kThreads);
  wait_for_prerequisites();
  if constexpr (!Shape::kXStage && NORM) load_weighed<Shape>(args, memory, warp, lane);
  else if constexpr (!Shape::kXStage) load_plain<Shape>(args, memory);

  int stage = 0, parity = 0;
  for (int unit = u0; unit < u1; ++unit) {
    const int tile = unit / args.splits, split = unit % args.splits;
    float sums[Shape::kMt / Shape::kWm][Shape::kNt][4] = {};
    float squares[Shape::kNt] = {};
    Addend<Shape, EPI> addend;
    addend.load(args, tile, split * Shape::kThreads + threadIdx.x);
    for (int step = 0; step < steps; ++step) {
      barrier_wait(memory.full + stage, parity);
      multiply_stage<Shape, NORM>(args, memory, memory.stages + stage * Shape::kStageBytes,
                                  split * slice + step * Shape::kKc, wm, wk, g, t, sums, squares);
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.empty + stage);
      if (++stage == Shape::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    leave_sums<Shape, NORM>(memory, wm, wk, g, t, sums, squares);
    if (args.splits > 1) join_warps<Shape, NORM>(args, memory);
    finish_tile<Shape, EPI, NORM>(args, memory, tile, split, addend);
    sync_threads<Shape::kThreads>();
  }
  if (args.splits > 1) {  // nobody's shared memory goes while another reads it
    cluster_arrive();
    cluster_wait();
  }
}

}  // namespace xllm::kernels::cuda

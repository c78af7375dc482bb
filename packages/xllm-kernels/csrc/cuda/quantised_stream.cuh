// y = epilogue(norm(x) W^T + bias) for up to 8 * NT rows of x and quantised W, which passes through shared memory once, at memory speed.
//
// One block a multiprocessor stays for the whole kernel. One thread asks the bulk tensor copy engine for tiles of W, 8 boxes of 128 bytes
// by 16 * MT rows, in a ring; each of 8 warps takes one box of a tile, widens its numbers in registers and multiplies them by
// mma.m16n8k16. x lies in shared memory, normed, one slice of K at a time, in an order in which a warp reads it without bank conflicts.
//
//   unit u = (slice s of S of K, tile of 16 * MT rows), slices outermost; a block owns units [u0, u1); S > 1 meets in a float32 workspace
//   a group is 128 columns: a box of 8-bit numbers, half a box of 4-bit ones; lane t of four owns 32 of them, 32 t and on
//   lane = 4 * g + t: rows g and g + 8 of a row tile; rows of x: 8 n + g. Products of a group are summed before they are scaled.
//
// Knows nothing of models. n must be a multiple of 16 * MT.
#pragma once

#include "async_copy.cuh"
#include "dequantise.cuh"
#include "quantised_plan.h"

namespace xllm::kernels::cuda {

constexpr int kQuantisedWarps = 8;
constexpr int kBoxBytes = 128, kGroupColumns = 128;

template <WeightKind KIND, class ELEMENT, int MT, int NT>
struct QuantisedShape {
  using Element = ELEMENT;
  static constexpr WeightKind kKind = KIND;
  static constexpr int kMt = MT, kNt = NT, kRows = 16 * MT, kColumns = 8 * NT;
  static constexpr int kThreads = kQuantisedWarps * 32, kBlockThreads = kThreads + 32;
  static constexpr int kGroups = KIND == WeightKind::int4 ? 2 : 1;  // of a box
  static constexpr int kPieces = KIND == WeightKind::int4 ? 1 : 2;  // of 16 bytes: a lane's share of a group in one row
  static constexpr int kStageBytes = quantised_stage_bytes(MT);
};

template <class Shape>
struct QuantisedMemory {
  unsigned char* stages;
  float* partial;      // [warps][rows][columns + 1]
  float* squares;      // [columns]
  uint64_t* full;
  uint64_t* empty;
  unsigned char* x;    // [batch][groups of a slice][4 j][4 t] pieces of 8 elements, 64 bytes between rows

  __device__ QuantisedMemory(unsigned char* unaligned, int num_stages) {
    stages = align_to_swizzle(unaligned);
    partial = reinterpret_cast<float*>(stages + num_stages * Shape::kStageBytes);
    squares = partial + kQuantisedWarps * Shape::kRows * (Shape::kColumns + 1);
    full = reinterpret_cast<uint64_t*>(squares + Shape::kColumns);
    empty = full + kQuantisedMaxStages;
    x = reinterpret_cast<unsigned char*>(empty + kQuantisedMaxStages);
  }
};

// The scales of a lane's rows for the groups of one box: words of int4, else float32 bits.
template <class Shape>
struct BoxScales {
  uint32_t of[Shape::kGroups][Shape::kMt][2];
};

// Row of W that local row r of a tile is: a gated tile is half gates, half what they are applied to.
__device__ __forceinline__ int weight_row(const QuantisedParameters& args, int tile, int r, int rows) {
  if (!args.is_gated) return tile * rows + r;
  const int half = rows / 2;
  return (r < half ? 0 : args.n / 2 - half) + tile * half + r;
}

template <class Shape>
__device__ __forceinline__ BoxScales<Shape> load_scales(const QuantisedParameters& args, int tile, int box, int g) {
  BoxScales<Shape> scales;
#pragma unroll
  for (int h = 0; h < Shape::kGroups; ++h) {
#pragma unroll
    for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = weight_row(args, tile, m * 16 + half * 8 + g, Shape::kRows);
        if constexpr (Shape::kKind == WeightKind::int4) {
          scales.of[h][m][half] = __ldg(args.groups + static_cast<size_t>(box * 2 + h) * args.n + row);
        } else {
          scales.of[h][m][half] =
              args.block_scales == nullptr
                  ? 0x3f800000u
                  : __float_as_uint(__ldg(args.block_scales + static_cast<size_t>(row / kGroupColumns) * args.num_boxes + box));
        }
      }
    }
  }
  return scales;
}

// The copying thread: keeps the ring full from unit u0 to u1.
template <class Shape>
__device__ __forceinline__ void copy_quantised(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory, int u0, int u1) {
  const uint64_t once = evict_first_policy();
  const int tiles = args.n / Shape::kRows, total = (u1 - u0) * args.steps;
  for (int i = 0; i < total; ++i) {
    const int stage = i % args.stages, round = i / args.stages;
    if (round > 0) barrier_wait(memory.empty + stage, (round - 1) & 1);
    const int unit = u0 + i / args.steps, tile = unit % tiles;
    const int box = unit / tiles * args.slice_boxes + i % args.steps * kQuantisedWarps;
    unsigned char* base = memory.stages + stage * Shape::kStageBytes;
    barrier_expect(memory.full + stage, Shape::kStageBytes);
    copy_stacked_box(base, &args.weight, 0, weight_row(args, tile, 0, Shape::kRows), box, memory.full + stage, once);
    if (args.is_gated) {
      copy_stacked_box(base + Shape::kStageBytes / 2, &args.weight, 0, weight_row(args, tile, Shape::kRows / 2, Shape::kRows), box,
                       memory.full + stage, once);
    }
  }
}

template <class Element>
__device__ __forceinline__ uint32_t scaled_pair(uint32_t x, uint32_t w, float& squares) {
  const float2 a = Element::widen_pair(x), b = Element::widen_pair(w);
  squares += a.x * a.x + a.y * a.y;
  return Element::narrow_pair(a.x * b.x, a.y * b.y);
}

// Brings slice `slice` of x to shared memory, times the norm's weight where there is one, and sums x's squares the first time.
template <class Shape>
__device__ __forceinline__ void load_x(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory, int slice, bool is_first,
                                       int warp, int lane) {
  const int slice_pieces = args.slice_boxes * Shape::kGroups * (kGroupColumns / 8), first = slice * slice_pieces;
  const bool sums = args.norm_weight != nullptr && is_first;
  const int begin = sums ? 0 : first, end = sums ? max(args.k / 8, first + slice_pieces) : first + slice_pieces;
  for (int b = 0; b < args.batch; ++b) {
    const uint4* row = reinterpret_cast<const uint4*>(args.x) + static_cast<size_t>(b) * (args.k / 8);
    unsigned char* to = memory.x + static_cast<size_t>(b) * args.x_stride;
    float squares = 0.f;
    for (int c = begin + threadIdx.x; c < end; c += Shape::kThreads) {
      uint4 v = c < args.k / 8 ? row[c] : make_uint4(0, 0, 0, 0);
      if (args.norm_weight != nullptr && c < args.k / 8) {
        using E = typename Shape::Element;
        const uint4 w = __ldg(reinterpret_cast<const uint4*>(args.norm_weight) + c);
        v = make_uint4(scaled_pair<E>(v.x, w.x, squares), scaled_pair<E>(v.y, w.y, squares), scaled_pair<E>(v.z, w.z, squares),
                       scaled_pair<E>(v.w, w.w, squares));
      }
      const int local = c - first;
      if (local >= 0 && local < slice_pieces) {
        const int t = local % 16 / 4, j = local % 4;
        reinterpret_cast<uint4*>(to)[local / 16 * 16 + j * 4 + t] = v;
      }
    }
    if (sums) {
      squares = warp_sum(squares);
      if (lane == 0) memory.partial[b * kQuantisedWarps + warp] = squares;
    }
  }
  sync_threads<Shape::kThreads>();
  if (sums) {
    if (threadIdx.x < args.batch) {
      float total = 0.f;
      for (int w = 0; w < kQuantisedWarps; ++w) total += memory.partial[threadIdx.x * kQuantisedWarps + w];
      memory.squares[threadIdx.x] = total;
    }
    sync_threads<Shape::kThreads>();
  }
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Adds the products of one box to a warp's sums. `base` is the box's first row, `x` the lane's first piece.
template <class Shape>
__device__ __forceinline__ void multiply_box(const QuantisedParameters& args, const unsigned char* base, const unsigned char* x,
                                             const BoxScales<Shape>& scales, int g, int t,
                                             float (&sums)[Shape::kMt][Shape::kNt][4]) {
  constexpr bool kInt4 = Shape::kKind == WeightKind::int4;
  const typename Shape::Element element;
#pragma unroll
  for (int h = 0; h < Shape::kGroups; ++h) {
    float part[Shape::kMt][Shape::kNt][4] = {};
    uint4 w[Shape::kMt][2][Shape::kPieces];
#pragma unroll
    for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = m * 16 + half * 8 + g;
        const unsigned char* row = base + (args.is_gated && r >= Shape::kRows / 2 ? Shape::kStageBytes / 2 - Shape::kRows / 2 * kBoxBytes : 0) +
                                   r * kBoxBytes;
#pragma unroll
        for (int p = 0; p < Shape::kPieces; ++p) {
          w[m][half][p] = *reinterpret_cast<const uint4*>(row + ((2 * t + (kInt4 ? h : p)) ^ g) * 16);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint4 columns[Shape::kNt];
#pragma unroll
      for (int n = 0; n < Shape::kNt; ++n) {
        const int b = min(n * 8 + g, args.batch - 1);  // rows past the batch repeat its last one: their products are never read
        columns[n] = *reinterpret_cast<const uint4*>(x + b * args.x_stride + (h * 16 + j * 4 + t) * 16);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int m = 0; m < Shape::kMt; ++m) {
          uint32_t a[4];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if constexpr (kInt4) {
              const uint32_t zero = nibble_base(element) + (scales.of[h][m][half] & 31u) * 0x10001u;
              const uint32_t word = word_of(w[m][half][0], j);
              a[half] = int4_pair(element, word, 2 * i, zero);
              a[half + 2] = int4_pair(element, word, 2 * i + 1, zero);
            } else {
              const uint32_t word = word_of(w[m][half][j / 2], 2 * (j % 2) + i);
              if constexpr (Shape::kKind == WeightKind::float8) {
                float8_pairs(element, word, a[half], a[half + 2]);
              } else {
                int8_pairs(element, word, a[half], a[half + 2]);
              }
            }
          }
#pragma unroll
          for (int n = 0; n < Shape::kNt; ++n) {
            Shape::Element::multiply_add(part[m][n], a, word_of(columns[n], 2 * i), word_of(columns[n], 2 * i + 1));
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
      for (int n = 0; n < Shape::kNt; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const uint32_t bits = scales.of[h][m][c / 2];
          sums[m][n][c] += part[m][n][c] * __uint_as_float(kInt4 ? bits & ~31u : bits);
        }
      }
    }
  }
}

// Leaves a warp's sums in shared memory, where those of all warps meet.
template <class Shape>
__device__ __forceinline__ void leave_quantised_sums(const QuantisedMemory<Shape>& memory, int warp, int g, int t,
                                                     const float (&sums)[Shape::kMt][Shape::kNt][4]) {
  constexpr int kStride = Shape::kColumns + 1;
  float* mine = memory.partial + warp * Shape::kRows * kStride;
#pragma unroll
  for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kNt; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) mine[(m * 16 + g + c / 2 * 8) * kStride + n * 8 + 2 * t + c % 2] = sums[m][n][c];
    }
  }
  sync_threads<Shape::kThreads>();
}

template <class Shape>
__device__ __forceinline__ float sum_of_warps(const QuantisedMemory<Shape>& memory, int row, int b) {
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < kQuantisedWarps; ++w) sum += memory.partial[(w * Shape::kRows + row) * (Shape::kColumns + 1) + b];
  return sum;
}

// With S > 1: hands this slice's sums over. Returns whether it came last, and so finishes the tile.
template <class Shape>
__device__ __forceinline__ bool hand_over_quantised(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory, int tile,
                                                    int slice) {
  __shared__ bool is_last;
  float* work = args.workspace + (static_cast<size_t>(tile) * args.splits + slice) * Shape::kRows * Shape::kColumns;
  for (int i = threadIdx.x; i < Shape::kRows * args.batch; i += Shape::kThreads) {
    const int row = i % Shape::kRows, b = i / Shape::kRows;
    __stcg(work + b * Shape::kRows + row, sum_of_warps<Shape>(memory, row, b));
  }
  __threadfence();
  sync_threads<Shape::kThreads>();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(args.counters + tile, 1) == args.splits - 1;
    if (is_last) args.counters[tile] = 0;
  }
  sync_threads<Shape::kThreads>();
  if (is_last) __threadfence();
  return is_last;
}

// Sums over slices in their order, or over warps, scales, applies the epilogue, writes.
template <class Shape>
__device__ __forceinline__ void finish_quantised(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory, int tile) {
  using E = typename Shape::Element;
  using T = typename E::type;
  const int out_rows = args.is_gated ? Shape::kRows / 2 : Shape::kRows, width = args.is_gated ? args.n / 2 : args.n;
  const float* work = args.workspace + static_cast<size_t>(tile) * args.splits * Shape::kRows * Shape::kColumns;
  const auto total = [&](int row, int b) {
    float sum = 0.f;
    if (args.splits > 1) {
      for (int s = 0; s < args.splits; ++s) sum += __ldcg(work + s * Shape::kRows * Shape::kColumns + b * Shape::kRows + row);
    } else {
      sum = sum_of_warps<Shape>(memory, row, b);
    }
    return args.row_scales == nullptr ? sum : sum * __ldg(args.row_scales + weight_row(args, tile, row, Shape::kRows));
  };
  for (int i = threadIdx.x; i < out_rows * args.batch; i += Shape::kThreads) {
    const int row = i % out_rows, b = i / out_rows, column = tile * out_rows + row;
    const float scale = args.norm_weight == nullptr ? 1.f : rsqrtf(memory.squares[b] / args.k + args.eps);
    float sum = total(row, b) * scale;
    if (args.is_gated) sum = sum / (1.f + __expf(-sum)) * (total(out_rows + row, b) * scale);
    if (args.bias != nullptr) sum += E::widen(static_cast<const T*>(args.bias)[column]);
    T* out = static_cast<T*>(args.out) + static_cast<size_t>(b) * width + column;
    if (args.adds) sum += E::widen(*out);
    *out = E::narrow(sum);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kBlockThreads, 1) quantised_stream_kernel(const __grid_constant__ QuantisedParameters args) {
  extern __shared__ unsigned char unaligned[];
  const QuantisedMemory<Shape> memory(unaligned, args.stages);
  const int tiles = args.n / Shape::kRows, units = tiles * args.splits;
  const int u0 = static_cast<int>(static_cast<long long>(units) * blockIdx.x / gridDim.x);
  const int u1 = static_cast<int>(static_cast<long long>(units) * (blockIdx.x + 1) / gridDim.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    for (int s = 0; s < args.stages; ++s) {
      barrier_init(memory.full + s, 1);
      barrier_init(memory.empty + s, kQuantisedWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  launch_dependents();
  if (warp == kQuantisedWarps) {
    if (lane == 0) copy_quantised<Shape>(args, memory, u0, u1);  // W does not depend on the kernel before
    return;
  }
  const int g = lane / 4, t = lane % 4;
  const int box_stride = (args.is_gated ? Shape::kRows / 2 : Shape::kRows) * kBoxBytes;
  const auto scales_at = [&](int unit, int step) {
    const int local = step * kQuantisedWarps + warp, box = min(unit / tiles * args.slice_boxes + local, args.num_boxes - 1);
    return load_scales<Shape>(args, unit % tiles, box, g);
  };
  BoxScales<Shape> ahead = scales_at(u0, 0);
  wait_for_prerequisites();

  int stage = 0, parity = 0, loaded = -1;
  for (int unit = u0; unit < u1; ++unit) {
    const int tile = unit % tiles, slice = unit / tiles;
    if (slice != loaded) load_x<Shape>(args, memory, slice, loaded < 0, warp, lane);
    loaded = slice;
    float sums[Shape::kMt][Shape::kNt][4] = {};
    for (int step = 0; step < args.steps; ++step) {
      const BoxScales<Shape> scales = ahead;
      const bool is_last = step + 1 == args.steps;
      ahead = scales_at(is_last ? min(unit + 1, u1 - 1) : unit, is_last ? 0 : step + 1);
      const int box = step * kQuantisedWarps + warp;
      barrier_wait(memory.full + stage, parity);
      if (box < args.slice_boxes) {
        multiply_box<Shape>(args, memory.stages + stage * Shape::kStageBytes + warp * box_stride,
                            memory.x + box * Shape::kGroups * kGroupColumns * 2, scales, g, t, sums);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.empty + stage);
      if (++stage == args.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    leave_quantised_sums<Shape>(memory, warp, g, t, sums);
    if (args.splits == 1 || hand_over_quantised<Shape>(args, memory, tile, slice)) finish_quantised<Shape>(args, memory, tile);
    sync_threads<Shape::kThreads>();
  }
}

}  // namespace xllm::kernels::cuda

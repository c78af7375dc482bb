// y = epilogue(norm(x) W^T + bias) for up to 8 * NT rows of x and quantised W, which passes through shared memory once, at memory speed.
//
// One block a multiprocessor stays for the whole kernel. One thread asks the bulk tensor copy engine for tiles of W, 8 / WM boxes of 128
// bytes by 16 * MT rows, in a ring; 8 warps, WM along rows and WK along K, widen numbers in registers and multiply them by mma.m16n8k16.
// x lies in shared memory, normed, one slice of K at a time, or comes through the ring beside W (XSTAGE), where it would be too large.
// Both lie so that a warp reads without bank conflicts.
//
//   unit u = (slice s of S of K, tile of 16 * MT rows), slices outermost; a block owns units [u0, u1); S > 1 meets in a float32 workspace
//   a group is 128 columns: a box of 8-bit numbers, half a box of 4-bit ones; lane t of four owns 32 of them, 32 t and on, in four
//   pieces of 8, which lanes 2 and 3 take in the order 2 3 0 1 where x comes through the ring
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

template <WeightKind KIND, class ELEMENT, int MT, int NT, bool XSTAGE>
struct QuantisedShape {
  using Element = ELEMENT;
  static constexpr WeightKind kKind = KIND;
  static constexpr bool kXStage = XSTAGE;
  static constexpr int kWm = quantised_row_warps(XSTAGE), kWk = kQuantisedWarps / kWm;
  static constexpr int kMt = MT / kWm, kNt = NT, kRows = 16 * MT, kColumns = 8 * NT;  // kMt: row tiles of one warp
  static constexpr int kThreads = kQuantisedWarps * 32, kBlockThreads = kThreads + 32;
  static constexpr int kBlocks = NT == 1 ? 2 : 1;                   // that a multiprocessor's registers must hold: this kernel and the next
  static constexpr int kGroups = KIND == WeightKind::int4 ? 2 : 1;  // of a box
  static constexpr int kPieces = KIND == WeightKind::int4 ? 1 : 2;  // of 16 bytes: a lane's share of a group in one row
  static constexpr int kWeightBytes = kRows * kWk * kBoxBytes;
  static constexpr int kStageBytes = quantised_stage_bytes(MT, NT, XSTAGE, KIND);
};

template <class Shape>
struct QuantisedMemory {
  unsigned char* stages;
  uint64_t* full;
  uint64_t* empty;
  float* squares;      // [batch][8]: parts of the sums of squares of x's rows
  float* partial;      // [buffers][WK][rows][partial_stride]
  unsigned char* x;    // without XSTAGE: [batch][groups of a slice][4 j][4 t] pieces of 8 elements, 64 bytes between rows
  unsigned char* norm; // [k] where there is one

  __device__ QuantisedMemory(unsigned char* unaligned, const QuantisedParameters& args) {
    stages = align_to_swizzle(unaligned);
    full = reinterpret_cast<uint64_t*>(stages + args.stages * Shape::kStageBytes);
    empty = full + kQuantisedMaxStages;
    x = reinterpret_cast<unsigned char*>(empty + kQuantisedMaxStages);
    norm = x + (Shape::kXStage ? 0 : args.batch * args.x_stride);
    squares = reinterpret_cast<float*>(norm + (args.norm_weight == nullptr ? 0 : args.k * 2));
    partial = squares + args.batch * 8;
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
__device__ __forceinline__ BoxScales<Shape> load_scales(const QuantisedParameters& args, int tile, int box, int first_row) {
  BoxScales<Shape> scales;
#pragma unroll
  for (int h = 0; h < Shape::kGroups; ++h) {
#pragma unroll
    for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = weight_row(args, tile, first_row + m * 16 + half * 8, Shape::kRows);
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
  const uint64_t once = evict_first_policy(), often = evict_last_policy();
  const int tiles = args.n / Shape::kRows, total = (u1 - u0) * args.steps;
  const auto box_of = [&](int i) { return (u0 + i / args.steps) / tiles * args.slice_boxes + i % args.steps * Shape::kWk; };
  const auto copy_weight = [&](int i, int stage) {
    const int tile = (u0 + i / args.steps) % tiles;
    unsigned char* base = memory.stages + stage * Shape::kStageBytes;
    barrier_expect(memory.full + stage, Shape::kStageBytes);
    const int first = box_of(i), row = weight_row(args, tile, 0, Shape::kRows);
    const int box_bytes = (args.is_gated ? Shape::kRows / 2 : Shape::kRows) * kBoxBytes;
    for (int box = 0; box < Shape::kWk; box += args.copied_boxes, base += args.copied_boxes * box_bytes) {
      copy_stacked_box(base, &args.weight, 0, row, first + box, memory.full + stage, once);
      if (args.is_gated) {
        copy_stacked_box(base + Shape::kWeightBytes / 2, &args.weight, 0, weight_row(args, tile, Shape::kRows / 2, Shape::kRows),
                         first + box, memory.full + stage, once);
      }
    }
  };
  const auto copy_x = [&](int i, int stage) {
    copy_stacked_box(memory.stages + stage * Shape::kStageBytes + Shape::kWeightBytes, &args.x_map, 0, 0,
                     box_of(i) * 2 * Shape::kGroups, memory.full + stage, often);
  };
  // W does not depend on the kernel before, x does: the ring is full of W when x may be read.
  const int ahead = min(args.stages, total);
  for (int i = 0; i < ahead; ++i) copy_weight(i, i);
  if constexpr (Shape::kXStage) {
    wait_for_prerequisites();
    for (int i = 0; i < ahead; ++i) copy_x(i, i);
  }
  for (int i = ahead; i < total; ++i) {
    const int stage = i % args.stages;
    barrier_wait(memory.empty + stage, (i / args.stages - 1) & 1);
    copy_weight(i, stage);
    if constexpr (Shape::kXStage) copy_x(i, stage);
  }
}

template <class Element>
__device__ __forceinline__ uint32_t scaled_pair(uint32_t x, uint32_t w, float& squares) {
  const float2 a = Element::widen_pair(x), b = Element::widen_pair(w);
  squares += a.x * a.x + a.y * a.y;
  return Element::narrow_pair(a.x * b.x, a.y * b.y);
}

// Starts the copy of the norm's weight, which does not depend on the kernel before.
template <class Shape>
__device__ __forceinline__ void fetch_norm(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory) {
  for (int c = threadIdx.x; c < args.k / 8; c += Shape::kThreads) {
    copy_piece(memory.norm + c * 16, reinterpret_cast<const uint4*>(args.norm_weight) + c);
  }
}

// Where piece c (of 8 elements) of a row of x lies within the row.
__device__ __forceinline__ int place_of_piece(int c) { return (c / 16 * 16 + c % 4 * 4 + c % 16 / 4) * 16; }

// Brings slice `slice` of x to shared memory.
template <class Shape>
__device__ __forceinline__ void load_x(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory, int slice) {
  const int pieces = args.slice_boxes * Shape::kGroups * (kGroupColumns / 8), first = slice * pieces;
  for (int b = 0; b < args.batch; ++b) {
    const uint4* row = reinterpret_cast<const uint4*>(args.x) + static_cast<size_t>(b) * (args.k / 8) + first;
    unsigned char* to = memory.x + b * args.x_stride;
    for (int c = threadIdx.x; c < pieces; c += Shape::kThreads) {
      if (first + c < args.k / 8) {
        copy_piece(to + place_of_piece(c), row + c);
      } else {
        *reinterpret_cast<uint4*>(to + place_of_piece(c)) = make_uint4(0, 0, 0, 0);
      }
    }
  }
  wait_for_pieces();
  sync_threads<Shape::kThreads>();
}

// With one slice: multiplies x by the norm's weight and leaves the sums of its squares. As many warps share a row as there are to share.
template <class Shape>
__device__ __forceinline__ void norm_x(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory, int warp, int lane) {
  using E = typename Shape::Element;
  const int sharing = args.batch >= 8 ? 1 : args.batch >= 4 ? 2 : args.batch >= 2 ? 4 : 8;
  for (int b = warp / sharing; b < args.batch; b += kQuantisedWarps / sharing) {
    unsigned char* row = memory.x + b * args.x_stride;
    float squares = 0.f;
    for (int c = warp % sharing * 32 + lane; c < args.k / 8; c += sharing * 32) {
      uint4* at = reinterpret_cast<uint4*>(row + place_of_piece(c));
      const uint4 v = *at, w = *reinterpret_cast<const uint4*>(memory.norm + c * 16);
      *at = make_uint4(scaled_pair<E>(v.x, w.x, squares), scaled_pair<E>(v.y, w.y, squares), scaled_pair<E>(v.z, w.z, squares),
                       scaled_pair<E>(v.w, w.w, squares));
    }
    squares = warp_sum(squares);
    if (lane >= sharing && lane < 8) memory.squares[b * 8 + lane] = 0.f;
    if (lane == 0) memory.squares[b * 8 + warp % sharing] = squares;
  }
  sync_threads<Shape::kThreads>();
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The lane's share of a group in rows g and g + 8 of a warp's row tiles.
template <class Shape>
struct LaneWeights {
  uint4 pieces[Shape::kMt][2][Shape::kPieces];
};

// `base` is the warp's box, `first_row` the lane's first row in a tile.
template <class Shape>
__device__ __forceinline__ LaneWeights<Shape> read_weights(const QuantisedParameters& args, const unsigned char* base, int first_row,
                                                           int h, int t) {
  constexpr bool kInt4 = Shape::kKind == WeightKind::int4;
  LaneWeights<Shape> w;
#pragma unroll
  for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = first_row + m * 16 + half * 8;
      // A gated tile comes as two copies, each with all boxes of half the rows.
      const bool is_second = args.is_gated && r >= Shape::kRows / 2;
      const unsigned char* row = base + (is_second ? Shape::kWeightBytes / 2 + (r - Shape::kRows / 2) * kBoxBytes : r * kBoxBytes);
      const int rotated = Shape::kXStage ? t / 2 : 0;  // lanes 2 and 3 take their last pieces first
#pragma unroll
      for (int p = 0; p < Shape::kPieces; ++p) {
        const int piece = 2 * t + (kInt4 ? h : p ^ rotated);
        w.pieces[m][half][p] = *reinterpret_cast<const uint4*>(row + (piece ^ (r & 7)) * 16);
      }
      if constexpr (kInt4) {
        const uint4 v = w.pieces[m][half][0];
        if (rotated) w.pieces[m][half][0] = make_uint4(v.z, v.w, v.x, v.y);
      }
    }
  }
  return w;
}

// The operands of one mma out of a lane's weights: rows g and g + 8, columns 4 i of eight in piece j and on. int4 is 128 (or 1024) too
// large with its zero point still in it: `scale_group` takes both away.
template <class Shape>
__device__ __forceinline__ void widen_weights(const LaneWeights<Shape>& w, int m, int j, int i, uint32_t (&a)[4]) {
  const typename Shape::Element element;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (Shape::kKind == WeightKind::int4) {
      const uint32_t word = word_of(w.pieces[m][half][0], j);
      a[half] = int4_pair(element, word, 2 * i);
      a[half + 2] = int4_pair(element, word, 2 * i + 1);
    } else {
      const uint32_t word = word_of(w.pieces[m][half][j / 2], 2 * (j % 2) + i);
      if constexpr (Shape::kKind == WeightKind::float8) {
        float8_pairs(element, word, a[half], a[half + 2]);
      } else {
        int8_pairs(element, word, a[half], a[half + 2]);
      }
    }
  }
}

// Adds a group's products, scaled, to a warp's sums. `ones` are the sums of x alone, of int4.
template <class Shape>
__device__ __forceinline__ void scale_group(const BoxScales<Shape>& scales, int h, const float (&part)[Shape::kMt][Shape::kNt][4],
                                            const float (&ones)[Shape::kNt][4], float (&sums)[Shape::kMt][Shape::kNt][4]) {
  constexpr bool kInt4 = Shape::kKind == WeightKind::int4;
#pragma unroll
  for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t bits = scales.of[h][m][half];
      const float scale = __uint_as_float(kInt4 ? bits & ~31u : bits);
      const float zero = kInt4 ? nibble_base_value(typename Shape::Element{}) + static_cast<float>(bits & 31u) : 0.f;
#pragma unroll
      for (int n = 0; n < Shape::kNt; ++n) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          sums[m][n][c] += scale * (kInt4 ? part[m][n][c] - zero * ones[n][c % 2] : part[m][n][c]);
        }
      }
    }
  }
}

// Adds the products of one box to a warp's sums. `x` is the lane's row group of it: see place_of_piece, or the boxes of x in the ring.
template <class Shape>
__device__ __forceinline__ void multiply_box(const QuantisedParameters& args, const unsigned char* base, const unsigned char* x,
                                             const BoxScales<Shape>& scales, int first_row, int g, int t,
                                             float (&sums)[Shape::kMt][Shape::kNt][4]) {
  const typename Shape::Element element;
  const uint32_t one[4] = {one_pair(element), one_pair(element), one_pair(element), one_pair(element)};
#pragma unroll
  for (int h = 0; h < Shape::kGroups; ++h) {
    float part[Shape::kMt][Shape::kNt][4] = {}, ones[Shape::kNt][4] = {};
    const LaneWeights<Shape> w = read_weights<Shape>(args, base, first_row, h, t);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint4 columns[Shape::kNt];
#pragma unroll
      for (int n = 0; n < Shape::kNt; ++n) {
        if constexpr (Shape::kXStage) {
          const int piece = t % 2 * 4 + (j ^ (t / 2 * 2));
          columns[n] = *reinterpret_cast<const uint4*>(x + ((h * 2 + t / 2) * Shape::kColumns + n * 8 + g) * kBoxBytes + (piece ^ g) * 16);
        } else {
          const int b = min(n * 8 + g, args.batch - 1);  // rows past the batch repeat its last one: their products are never read
          columns[n] = *reinterpret_cast<const uint4*>(x + b * args.x_stride + (h * 16 + j * 4 + t) * 16);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int m = 0; m < Shape::kMt; ++m) {
          uint32_t a[4];
          widen_weights<Shape>(w, m, j, i, a);
#pragma unroll
          for (int n = 0; n < Shape::kNt; ++n) {
            Shape::Element::multiply_add(part[m][n], a, word_of(columns[n], 2 * i), word_of(columns[n], 2 * i + 1));
          }
        }
        if constexpr (Shape::kKind == WeightKind::int4) {
#pragma unroll
          for (int n = 0; n < Shape::kNt; ++n) {
            Shape::Element::multiply_add(ones[n], one, word_of(columns[n], 2 * i), word_of(columns[n], 2 * i + 1));
          }
        }
      }
    }
    scale_group<Shape>(scales, h, part, ones, sums);
  }
}

// Leaves a warp's sums in shared memory, where those of the warps along K meet.
template <class Shape>
__device__ __forceinline__ void leave_quantised_sums(const QuantisedParameters& args, float* partial, int first_row, int wk, int t,
                                                     const float (&sums)[Shape::kMt][Shape::kNt][4]) {
  float* mine = partial + wk * Shape::kRows * args.partial_stride;
#pragma unroll
  for (int m = 0; m < Shape::kMt; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kNt; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int b = n * 8 + 2 * t + c % 2;
        if (b < args.batch) mine[(first_row + m * 16 + c / 2 * 8) * args.partial_stride + b] = sums[m][n][c];
      }
    }
  }
  sync_threads<Shape::kThreads>();
}

template <class Shape>
__device__ __forceinline__ float sum_of_warps(const QuantisedParameters& args, const float* partial, int row, int b) {
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < Shape::kWk; ++w) sum += partial[(w * Shape::kRows + row) * args.partial_stride + b];
  return sum;
}

// With S > 1: hands this slice's sums over. Returns whether it came last, and so finishes the tile.
template <class Shape>
__device__ __forceinline__ bool hand_over_quantised(const QuantisedParameters& args, const float* partial, int tile, int slice) {
  __shared__ bool is_last;
  float* work = args.workspace + (static_cast<size_t>(tile) * args.splits + slice) * Shape::kRows * Shape::kColumns;
  for (int i = threadIdx.x; i < Shape::kRows * args.batch; i += Shape::kThreads) {
    const int row = i % Shape::kRows, b = i / Shape::kRows;
    __stcg(work + b * Shape::kRows + row, sum_of_warps<Shape>(args, partial, row, b));
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

// What the epilogue needs of one output beside its sum; read long before, as it comes from far.
struct OutputOperands {
  float scale = 1.f, up_scale = 1.f, bias = 0.f, residual = 0.f;
};

template <class Shape>
__device__ __forceinline__ OutputOperands read_operands(const QuantisedParameters& args, int tile, int row, int b) {
  using E = typename Shape::Element;
  using T = typename E::type;
  const int out_rows = args.is_gated ? Shape::kRows / 2 : Shape::kRows, column = tile * out_rows + row;
  OutputOperands operands;
  if (args.row_scales != nullptr) {
    operands.scale = __ldg(args.row_scales + column);
    if (args.is_gated) operands.up_scale = __ldg(args.row_scales + args.n / 2 + column);
  }
  if (args.bias != nullptr) operands.bias = E::widen(static_cast<const T*>(args.bias)[column]);
  if (args.adds) operands.residual = E::widen(static_cast<const T*>(args.out)[static_cast<size_t>(b) * args.n + column]);
  return operands;
}

// Sums over slices in their order, or over warps, scales, applies the epilogue, writes. `first` is the thread's first output of a tile.
template <class Shape>
__device__ __forceinline__ void finish_quantised(const QuantisedParameters& args, const QuantisedMemory<Shape>& memory, const float* partial,
                                                 int tile, int first, OutputOperands operands) {
  using E = typename Shape::Element;
  const int out_rows = args.is_gated ? Shape::kRows / 2 : Shape::kRows, width = args.is_gated ? args.n / 2 : args.n;
  const float* work = args.workspace + static_cast<size_t>(tile) * args.splits * Shape::kRows * Shape::kColumns;
  const auto total = [&](int row, int b) {
    if (args.splits == 1) return sum_of_warps<Shape>(args, partial, row, b);
    float sum = 0.f;
    for (int s = 0; s < args.splits; ++s) sum += __ldcg(work + s * Shape::kRows * Shape::kColumns + b * Shape::kRows + row);
    return sum;
  };
  for (int i = first; i < out_rows * args.batch; i += Shape::kThreads) {
    const int row = i % out_rows, b = i / out_rows;
    if (i != first) operands = read_operands<Shape>(args, tile, row, b);
    float norm = 1.f;
    if (args.norm_weight != nullptr) {
      float squares = 0.f;
#pragma unroll
      for (int w = 0; w < 8; ++w) squares += memory.squares[b * 8 + w];
      norm = rsqrtf(squares / args.k + args.eps);
    }
    float sum = total(row, b) * (operands.scale * norm);
    if (args.is_gated) sum = sum / (1.f + __expf(-sum)) * (total(out_rows + row, b) * (operands.up_scale * norm));
    static_cast<typename E::type*>(args.out)[static_cast<size_t>(b) * width + tile * out_rows + row] =
        E::narrow(sum + operands.bias + operands.residual);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kBlockThreads, Shape::kBlocks) quantised_stream_kernel(
    const __grid_constant__ QuantisedParameters args) {
  extern __shared__ unsigned char unaligned[];
  const QuantisedMemory<Shape> memory(unaligned, args);
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
    if (lane == 0) copy_quantised<Shape>(args, memory, u0, u1);
    return;
  }
  const int g = lane / 4, t = lane % 4, wm = warp / Shape::kWk, wk = warp % Shape::kWk;
  const int first_row = wm * Shape::kMt * 16 + g, out_rows = args.is_gated ? Shape::kRows / 2 : Shape::kRows;
  const int box_stride = out_rows * kBoxBytes;
  const auto scales_at = [&](int unit, int step) {
    const int box = min(unit / tiles * args.slice_boxes + step * Shape::kWk + wk, args.num_boxes - 1);
    return load_scales<Shape>(args, unit % tiles, box, first_row);
  };
  BoxScales<Shape> ahead = scales_at(u0, 0);
  if (args.norm_weight != nullptr) fetch_norm<Shape>(args, memory);
  wait_for_prerequisites();

  int stage = 0, parity = 0, loaded = -1;
  for (int unit = u0; unit < u1; ++unit) {
    const int tile = unit % tiles, slice = unit / tiles;
    // The warps that finish a tile of few outputs take turns.
    const int first = (warp + (unit - u0) * 2) % kQuantisedWarps * 32 + lane;
    OutputOperands operands;
    if (first < out_rows * args.batch) operands = read_operands<Shape>(args, tile, first % out_rows, first / out_rows);
    if (!Shape::kXStage && slice != loaded) {
      if (loaded >= 0) sync_threads<Shape::kThreads>();
      load_x<Shape>(args, memory, slice);
      if (args.norm_weight != nullptr) norm_x<Shape>(args, memory, warp, lane);
      loaded = slice;
    }
    float sums[Shape::kMt][Shape::kNt][4] = {};
    for (int step = 0; step < args.steps; ++step) {
      const BoxScales<Shape> scales = ahead;
      const bool is_last = step + 1 == args.steps;
      ahead = scales_at(is_last ? min(unit + 1, u1 - 1) : unit, is_last ? 0 : step + 1);
      const int box = step * Shape::kWk + wk;
      barrier_wait(memory.full + stage, parity);
      if (box < args.slice_boxes) {
        const unsigned char* base = memory.stages + stage * Shape::kStageBytes;
        const unsigned char* x = Shape::kXStage ? base + Shape::kWeightBytes + wk * Shape::kGroups * 2 * Shape::kColumns * kBoxBytes
                                                : memory.x + box * Shape::kGroups * kGroupColumns * 2;
        multiply_box<Shape>(args, base + wk * box_stride, x, scales, first_row, g, t, sums);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.empty + stage);
      if (++stage == args.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    // Two sets of sums let a tile be left while the one before it is finished; one set needs a barrier more.
    float* partial = memory.partial + (args.partial_sets == 2 ? (unit - u0) % 2 : 0) * Shape::kWk * Shape::kRows * args.partial_stride;
    leave_quantised_sums<Shape>(args, partial, first_row, wk, t, sums);
    if (args.splits == 1 || hand_over_quantised<Shape>(args, partial, tile, slice)) {
      finish_quantised<Shape>(args, memory, partial, tile, first, operands);
    }
    if (args.partial_sets == 1) sync_threads<Shape::kThreads>();
  }
}

}  // namespace xllm::kernels::cuda

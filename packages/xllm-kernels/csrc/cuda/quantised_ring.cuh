// How blocks of quantised_stream_kernel lie in shared memory, and how W, its scales and x come there. Knows nothing of products.
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
  float* partial;      // [buffers][WK][rows][partial_stride]
  unsigned char* x;    // without XSTAGE: [batch][groups of a slice][4 j][4 t] pieces of 8 elements, 64 bytes between rows

  __device__ QuantisedMemory(unsigned char* unaligned, const QuantisedParameters& args) {
    stages = align_to_swizzle(unaligned);
    full = reinterpret_cast<uint64_t*>(stages + args.stages * Shape::kStageBytes);
    empty = full + kQuantisedMaxStages;
    x = reinterpret_cast<unsigned char*>(empty + kQuantisedMaxStages);
    partial = reinterpret_cast<float*>(x + (Shape::kXStage ? 0 : args.batch * args.x_stride));
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
    for (int box = 0; box < Shape::kWk; ++box, base += box_bytes) {
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

}  // namespace xllm::kernels::cuda

// Products of each expert's weights with the few rows that chose it: every weight passes through shared memory once for up to 8 * NT rows.
//
// One or two blocks a multiprocessor stay for the whole kernel and share the work out evenly: a unit is a tile of 16 * MT outputs of one
// expert times one group of up to 8 * NT of its rows; a block's units lie one after the other, so it loads the rows of a group, which
// stay in shared memory, about once. One thread keeps a ring of STAGES tiles of W (16 * MT x KC) filled; WM * WK warps multiply them by
// mma.m16n8k16 with the layout of linear_stream.cuh, whose names hold here, too. Column tiles past a group's rows are skipped.
//
// Knows nothing of how rows were chosen. K must be a multiple of KC, the outputs of 16 * MT.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "matrix.cuh"
#include "tensor_map.h"
#include "xllm/kernels/cuda/experts.h"

namespace xllm::kernels::cuda {

constexpr int kMaxGroups = kMaxExperts + kRunExpertsMaxRows / 8;

struct ExpertParameters {
  CUtensorMap weight;            // GATED: planes 2 e (gate) and 2 e + 1 (up) of expert e, else plane e
  const __nv_bfloat16* x;        // GATED: [tokens, K], else [rows, K]
  const int32_t* token_of_row;
  const int32_t* starts;
  __nv_bfloat16* out;            // [rows, n]
  int num_experts;
  int n;                         // outputs of a row: with GATED the products are twice as many
  int k;
  int resident;                  // rows that shared memory has room for; no expert has more in one group
};

template <int MT, int NT, int WM, int WK, int KC, int STAGES>
struct ExpertShape {
  static constexpr int kRows = 16 * MT, kColumns = 8 * NT, kConsumers = WM * WK;
  static constexpr int kThreads = kConsumers * 32, kBlockThreads = kThreads + 32;
  static constexpr int kRowTiles = MT / WM, kNt = NT, kWm = WM, kWk = WK, kKc = KC, kStages = STAGES;
  static constexpr int kStageBytes = kRows * KC * 2;
  static constexpr int kPartialBytes = WK * kRows * (kColumns + 1) * 4;
  static constexpr int kBarrierBytes = 256, kAlignmentBytes = 1024;
  static_assert(STAGES * 16 <= kBarrierBytes, "the barriers have room for 16 stages");
  static_assert(KC % 64 == 0 && KC / 32 % WK == 0 && MT % WM == 0, "warps share chunks and row tiles evenly");
  static int bytes(int k, int resident) {
    return STAGES * kStageBytes + kPartialBytes + kBarrierBytes + kAlignmentBytes + resident * (k + 8) * 2;
  }
};

// Up to 8 * NT rows of one expert. Small, since what the list takes of shared memory may keep a second block from a multiprocessor.
struct RowGroup {
  uint16_t first;
  uint8_t expert;
  uint8_t count;
};
static_assert(kRunExpertsMaxRows <= 65536 && kMaxExperts <= 256);

// Shared memory of one block.
template <class Shape>
struct ExpertMemory {
  unsigned char* stages;
  float* partial;           // [WK][rows][columns + 1]
  uint64_t* full;
  uint64_t* empty;
  __nv_bfloat16* resident;  // [resident rows][k + 8]

  __device__ explicit ExpertMemory(unsigned char* unaligned) {
    stages = align_to_swizzle(unaligned);
    partial = reinterpret_cast<float*>(stages + Shape::kStages * Shape::kStageBytes);
    unsigned char* barriers = stages + Shape::kStages * Shape::kStageBytes + Shape::kPartialBytes;
    full = reinterpret_cast<uint64_t*>(barriers);
    empty = full + Shape::kStages;
    resident = reinterpret_cast<__nv_bfloat16*>(barriers + Shape::kBarrierBytes);
  }
};

// One warp lists the groups of all experts in order, and returns their number.
template <int COLUMNS>
__device__ __forceinline__ int list_groups(const ExpertParameters& args, RowGroup* groups, int lane) {
  int total = 0;
  for (int base = 0; base < args.num_experts; base += 32) {
    const int e = base + lane;
    const int first = e < args.num_experts ? __ldcg(args.starts + e) : 0;
    const int rows = e < args.num_experts ? __ldcg(args.starts + e + 1) - first : 0;
    const int mine = (rows + COLUMNS - 1) / COLUMNS;
    int sum = mine;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const int other = __shfl_up_sync(0xffffffffu, sum, o);
      if (lane >= o) sum += other;
    }
    for (int g = 0; g < mine; ++g) {
      groups[total + sum - mine + g] = {static_cast<uint16_t>(first + g * COLUMNS), static_cast<uint8_t>(e),
                                        static_cast<uint8_t>(min(COLUMNS, rows - g * COLUMNS))};
    }
    total += __shfl_sync(0xffffffffu, sum, 31);
  }
  return total;
}

// The copying thread: keeps the ring full from unit u0 to u1.
template <class Shape, bool GATED>
__device__ __forceinline__ void copy_experts(const ExpertParameters& args, const ExpertMemory<Shape>& memory,
                                             const RowGroup* groups, int tiles, int u0, int u1) {
  constexpr int kBoxRows = GATED ? Shape::kRows / 2 : Shape::kRows;
  const uint64_t once = evict_first_policy();
  int stage = 0, round = 0;
  for (int unit = u0; unit < u1; ++unit) {
    const int plane = groups[unit / tiles].expert * (GATED ? 2 : 1), row = unit % tiles * kBoxRows;
    for (int column = 0; column < args.k; column += Shape::kKc) {
      if (round > 0) barrier_wait(memory.empty + stage, (round - 1) & 1);
      unsigned char* base = memory.stages + stage * Shape::kStageBytes;
      barrier_expect(memory.full + stage, Shape::kStageBytes);
#pragma unroll
      for (int box = 0; box < Shape::kKc / kBoxColumns; ++box) {
        copy_stacked_box(base + box * Shape::kRows * 128, &args.weight, column + box * kBoxColumns, row, plane,
                         memory.full + stage, once);
      }
      if (++stage == Shape::kStages) {
        stage = 0;
        ++round;
      }
    }
  }
}

// Brings the rows of a group to shared memory, all at once: while memory is busy a load takes microseconds.
template <class Shape, bool GATED>
__device__ __forceinline__ void load_rows(const ExpertParameters& args, const ExpertMemory<Shape>& memory, const RowGroup& group,
                                          int warp, int lane) {
  const int pieces = args.k / 8;
  for (int b = warp; b < group.count; b += Shape::kConsumers) {
    const int64_t row = GATED ? __ldg(args.token_of_row + group.first + b) : group.first + b;
    const auto* x = reinterpret_cast<const uint4*>(args.x + row * args.k);
    auto* mine = reinterpret_cast<uint4*>(memory.resident + b * (args.k + 8));
    for (int c = lane; c < pieces; c += 32) copy_piece(mine + c, x + c);
  }
  wait_for_pieces();
}

// Adds one stage's products to a warp's sums.
template <class Shape>
__device__ __forceinline__ void multiply_stage(const __nv_bfloat16* resident, int stride, const unsigned char* base, int k0, int count,
                                               int wm, int wk, int g, int t, float (&sums)[Shape::kRowTiles][Shape::kNt][4]) {
#pragma unroll
  for (int c = wk; c < Shape::kKc / 32; c += Shape::kWk) {
    const int box = c / 2, piece = 2 * t + c % 2, column = k0 + box * kBoxColumns + piece * 8;
    const int offset = (piece ^ g) * 16;
    uint4 w[Shape::kRowTiles][2];
#pragma unroll
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      const unsigned char* row = base + (box * Shape::kRows + (wm * Shape::kRowTiles + m) * 16 + g) * 128 + offset;
      w[m][0] = *reinterpret_cast<const uint4*>(row);
      w[m][1] = *reinterpret_cast<const uint4*>(row + 8 * 128);
    }
#pragma unroll
    for (int n = 0; n < Shape::kNt; ++n) {
      if (n * 8 < count) {
        // Columns past the rows repeat the last one: their products are never read.
        const uint4 x = *reinterpret_cast<const uint4*>(resident + min(n * 8 + g, count - 1) * stride + column);
#pragma unroll
        for (int m = 0; m < Shape::kRowTiles; ++m) {
          multiply_add(sums[m][n], w[m][0].x, w[m][1].x, w[m][0].y, w[m][1].y, x.x, x.y);
          multiply_add(sums[m][n], w[m][0].z, w[m][1].z, w[m][0].w, w[m][1].w, x.z, x.w);
        }
      }
    }
  }
}

// Joins the sums of the warps along K, applies the gate, writes a tile of outputs of a group.
template <class Shape, bool GATED>
__device__ __forceinline__ void finish_unit(const ExpertParameters& args, const ExpertMemory<Shape>& memory, const RowGroup& group,
                                            int tile, int wm, int wk, int g, int t,
                                            const float (&sums)[Shape::kRowTiles][Shape::kNt][4]) {
  constexpr int kStride = Shape::kColumns + 1, kOutRows = GATED ? Shape::kRows / 2 : Shape::kRows;
  float* mine = memory.partial + wk * Shape::kRows * kStride;
#pragma unroll
  for (int m = 0; m < Shape::kRowTiles; ++m) {
    const int row = (wm * Shape::kRowTiles + m) * 16 + g;
#pragma unroll
    for (int n = 0; n < Shape::kNt; ++n) {
      if (n * 8 < group.count) {
        mine[row * kStride + n * 8 + 2 * t] = sums[m][n][0];
        mine[row * kStride + n * 8 + 2 * t + 1] = sums[m][n][1];
        mine[(row + 8) * kStride + n * 8 + 2 * t] = sums[m][n][2];
        mine[(row + 8) * kStride + n * 8 + 2 * t + 1] = sums[m][n][3];
      }
    }
  }
  sync_threads<Shape::kThreads>();
  const auto total = [&](int row, int b) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < Shape::kWk; ++w) sum += memory.partial[(w * Shape::kRows + row) * kStride + b];
    return sum;
  };
  for (int i = threadIdx.x; i < kOutRows / 2 * group.count; i += Shape::kThreads) {
    const int row = i % (kOutRows / 2) * 2, b = i / (kOutRows / 2);
    float v[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      v[r] = total(row + r, b);
      if constexpr (GATED) v[r] = silu_times(v[r], total(kOutRows + row + r, b));
    }
    *reinterpret_cast<uint32_t*>(args.out + static_cast<size_t>(group.first + b) * args.n + tile * kOutRows + row) = pack(v[0], v[1]);
  }
  sync_threads<Shape::kThreads>();
}

template <class Shape, bool GATED>
__global__ void __launch_bounds__(Shape::kBlockThreads, 2) expert_stream_kernel(const __grid_constant__ ExpertParameters args) {
  extern __shared__ unsigned char unaligned[];
  __shared__ RowGroup groups[kMaxGroups];
  __shared__ int num_groups;
  const ExpertMemory<Shape> memory(unaligned);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shape::kStages; ++s) {
      barrier_init(memory.full + s, 1);
      barrier_init(memory.empty + s, Shape::kConsumers);
    }
    barrier_init_fence();
  }
  // The gated kernel waits for the routing and only then lets the other one begin, so that one may read the routing, though not
  // its x, before it waits.
  if constexpr (GATED) wait_for_prerequisites();
  launch_dependents();
  if (warp == 0) {
    const int found = list_groups<Shape::kColumns>(args, groups, lane);
    if (lane == 0) num_groups = found;
  }
  __syncthreads();
  const int tiles = args.n / (GATED ? Shape::kRows / 2 : Shape::kRows), units = num_groups * tiles;
  const int u0 = static_cast<int>(static_cast<long long>(units) * blockIdx.x / gridDim.x);
  const int u1 = static_cast<int>(static_cast<long long>(units) * (blockIdx.x + 1) / gridDim.x);
  if (warp == Shape::kConsumers) {
    if (lane == 0) copy_experts<Shape, GATED>(args, memory, groups, tiles, u0, u1);
    return;
  }
  if constexpr (!GATED) wait_for_prerequisites();
  const int g = lane / 4, t = lane % 4, wm = warp / Shape::kWk, wk = warp % Shape::kWk;
  int stage = 0, parity = 0, loaded = -1;
  for (int unit = u0; unit < u1; ++unit) {
    const RowGroup group = groups[unit / tiles];
    if (loaded != unit / tiles) {
      loaded = unit / tiles;
      load_rows<Shape, GATED>(args, memory, group, warp, lane);
      sync_threads<Shape::kThreads>();
    }
    float sums[Shape::kRowTiles][Shape::kNt][4] = {};
    for (int k0 = 0; k0 < args.k; k0 += Shape::kKc) {
      barrier_wait(memory.full + stage, parity);
      multiply_stage<Shape>(memory.resident, args.k + 8, memory.stages + stage * Shape::kStageBytes, k0, group.count, wm, wk, g, t, sums);
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.empty + stage);
      if (++stage == Shape::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    finish_unit<Shape, GATED>(args, memory, group, unit % tiles, wm, wk, g, t, sums);
  }
}

}  // namespace xllm::kernels::cuda

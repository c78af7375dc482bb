// Products of each expert's weights with the few rows that chose it: every weight passes through shared memory once for up to 8 * NT rows.
//
//   gate  gated[r] = silu(g) * u, (g, u) = the expert's rows of gate and up times x; a tile is 16 outputs
//   down  out[r] = the expert's rows of down times gated[r]; a tile is 32 outputs
//
// One block a multiprocessor stays for both products and shares each out evenly: a unit is a tile of one expert times a group of up to
// 8 * NT of its rows; a block's units lie one after the other. One thread keeps a ring of tiles of W (32 rows x 256 columns) filled by the
// copy engine and never waits for other blocks; one warp brings the rows of a group once those before have been read, for down once all
// blocks have met: the ring has tiles for the time that takes, and room for more of them is worth more than room for a second group's
// rows. Eight warps share K, with the layout of linear_stream.cuh; column tiles past a group's rows are skipped.
//
// Knows nothing of how rows were chosen.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "grid_barrier.cuh"
#include "matrix.cuh"
#include "tensor_map.h"
#include "xllm/kernels/cuda/experts.h"

namespace xllm::kernels::cuda {

constexpr int kMaxGroups = kMaxExperts + kRunExpertsMaxRows / 8;

struct ExpertParameters {
  CUtensorMap gate_up;           // planes 2 e (gate) and 2 e + 1 (up) of expert e, in boxes of two planes and 16 rows
  CUtensorMap down;              // plane e, in boxes of 32 rows
  const __nv_bfloat16* x;        // [tokens, hidden]
  const int32_t* token_of_row;
  const int32_t* starts;
  __nv_bfloat16* gated;          // [rows, inner]
  __nv_bfloat16* out;            // [rows, hidden]
  uint32_t* barrier;
  int num_experts;
  int hidden;
  int inner;
  int stages;
};

constexpr int kExpertWarps = 8, kExpertThreads = kExpertWarps * 32, kExpertBlockThreads = kExpertThreads + 64;
constexpr int kTileRows = 32, kBoxes = 4, kBoxBytes = kTileRows * 128, kExpertStageBytes = kBoxes * kBoxBytes;
constexpr int kMostStages = 14, kExpertBarrierBytes = 256;
static_assert(kMostStages * 16 + 32 <= kExpertBarrierBytes);

// Up to 8 * NT rows of one expert; small, since a block lists them all.
struct RowGroup {
  uint16_t first;
  uint8_t expert;
  uint8_t count;
};
static_assert(kRunExpertsMaxRows <= 65536 && kMaxExperts <= 256);

template <int NT>
struct ExpertMemory {
  static constexpr int kColumns = 8 * NT, kStride = kColumns + 1, kPartialBytes = kExpertWarps * kTileRows * kStride * 4;
  unsigned char* stages;
  float* partial;       // [warps][32 rows][columns + 1]
  uint64_t* full;
  uint64_t* empty;
  uint64_t* rows_full;
  uint64_t* rows_empty;
  __nv_bfloat16* rows;  // [rows of a group][K + 8]

  __device__ ExpertMemory(unsigned char* unaligned, int num_stages) {
    stages = align_to_swizzle(unaligned);
    unsigned char* after = stages + num_stages * kExpertStageBytes;
    partial = reinterpret_cast<float*>(after);
    full = reinterpret_cast<uint64_t*>(after + kPartialBytes);
    empty = full + kMostStages;
    rows_full = empty + kMostStages;
    rows_empty = rows_full + 1;
    rows = reinterpret_cast<__nv_bfloat16*>(after + kPartialBytes + kExpertBarrierBytes);
  }
  static int bytes(int num_stages, int row_bytes) { return num_stages * kExpertStageBytes + kPartialBytes + kExpertBarrierBytes + 1024 + row_bytes; }
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

// A block's part of one of the products.
struct ExpertUnits {
  bool is_gated;
  int k, n;
  int tiles;  // of a group
  int first, end;

  __device__ ExpertUnits(const ExpertParameters& args, int groups, bool gated) {
    is_gated = gated;
    k = gated ? args.hidden : args.inner;
    n = gated ? args.inner : args.hidden;
    tiles = n / (gated ? 16 : kTileRows);
    const int64_t units = int64_t{groups} * tiles;
    first = static_cast<int>(units * blockIdx.x / gridDim.x);
    end = static_cast<int>(units * (blockIdx.x + 1) / gridDim.x);
  }
};

// The copying thread: tiles of W.
template <int NT>
__device__ __forceinline__ void copy_experts(const ExpertParameters& args, const ExpertMemory<NT>& memory, const RowGroup* groups,
                                             const ExpertUnits& units, RingPlace& at) {
  const uint64_t once = evict_first_policy();
  const CUtensorMap* map = units.is_gated ? &args.gate_up : &args.down;
  for (int unit = units.first; unit < units.end; ++unit) {
    const int expert = groups[unit / units.tiles].expert, plane = units.is_gated ? 2 * expert : expert;
    const int row = unit % units.tiles * (units.is_gated ? 16 : kTileRows);
    for (int column = 0; column < units.k; column += kBoxes * kBoxColumns) {
      const int boxes = min(kBoxes, (units.k - column) / kBoxColumns);
      unsigned char* base = memory.stages + at.stage * kExpertStageBytes;
      barrier_wait(memory.empty + at.stage, at.parity ^ 1);
      barrier_expect(memory.full + at.stage, boxes * kBoxBytes);
      for (int i = 0; i < boxes; ++i) copy_stacked_box(base + i * kBoxBytes, map, column + i * kBoxColumns, row, plane, memory.full + at.stage, once);
      at.advance();
    }
  }
}

// A warp: rows of the groups, a lane a row.
template <int NT>
__device__ __forceinline__ void bring_rows(const ExpertParameters& args, const ExpertMemory<NT>& memory, const RowGroup* groups,
                                           const ExpertUnits& units, RingPlace& at, int lane) {
  const int row_bytes = units.k * 2;
  for (int unit = units.first; unit < units.end; unit = (unit / units.tiles + 1) * units.tiles) {
    const RowGroup group = groups[unit / units.tiles];
    int64_t row = group.first + lane;
    if (units.is_gated && lane < group.count) row = __ldg(args.token_of_row + row);
    barrier_wait(memory.rows_empty, at.parity ^ 1);
    if (lane == 0) barrier_expect(memory.rows_full, group.count * row_bytes);
    __syncwarp();
    if (lane < group.count) {
      copy_row(memory.rows + lane * (units.k + 8), (units.is_gated ? args.x : args.gated) + row * units.k, row_bytes, memory.rows_full);
    }
    at.advance();
  }
}

// Adds the products of chunk `warp` of a stage with this lane's pieces of the rows.
template <int NT>
__device__ __forceinline__ void multiply_stage(const unsigned char* base, const __nv_bfloat16* rows, int stride, int count, int warp, int g, int t,
                                               float (&sums)[2][NT][4]) {
  const unsigned char* tile = base + (warp / 2 * kTileRows + g) * 128 + ((2 * t + warp % 2) ^ g) * 16;
  uint4 w[2][2];
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    w[m][0] = *reinterpret_cast<const uint4*>(tile + m * 16 * 128);
    w[m][1] = *reinterpret_cast<const uint4*>(tile + (m * 16 + 8) * 128);
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    if (n * 8 < count) {
      // Columns past the rows repeat the last one: their products are never read.
      const uint4 x = *reinterpret_cast<const uint4*>(rows + min(n * 8 + g, count - 1) * stride);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add(sums[m][n], w[m][0].x, w[m][1].x, w[m][0].y, w[m][1].y, x.x, x.y);
        multiply_add(sums[m][n], w[m][0].z, w[m][1].z, w[m][0].w, w[m][1].w, x.z, x.w);
      }
    }
  }
}

// Joins the sums of the warps, applies the gate, writes a tile of outputs of a group.
template <int NT>
__device__ __forceinline__ void finish_unit(const ExpertParameters& args, const ExpertMemory<NT>& memory, const RowGroup& group,
                                            const ExpertUnits& units, int tile, int warp, int g, int t, const float (&sums)[2][NT][4]) {
  constexpr int kStride = ExpertMemory<NT>::kStride;
  float* mine = memory.partial + (warp * kTileRows + g) * kStride + 2 * t;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if (n * 8 < group.count) {
        float* at = mine + m * 16 * kStride + n * 8;
        at[0] = sums[m][n][0];
        at[1] = sums[m][n][1];
        at[8 * kStride] = sums[m][n][2];
        at[8 * kStride + 1] = sums[m][n][3];
      }
    }
  }
  sync_threads<kExpertThreads>();
  const auto total = [&](int row, int b) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kExpertWarps; ++w) sum += memory.partial[(w * kTileRows + row) * kStride + b];
    return sum;
  };
  const int pairs = units.is_gated ? 8 : kTileRows / 2;  // of neighbouring outputs
  __nv_bfloat16* out = (units.is_gated ? args.gated : args.out) + static_cast<size_t>(group.first) * units.n + tile * pairs * 2;
  for (int i = threadIdx.x; i < pairs * group.count; i += kExpertThreads) {
    const int row = i % pairs * 2, b = i / pairs;
    float v[2] = {total(row, b), total(row + 1, b)};
    if (units.is_gated) {
      v[0] = silu_times(v[0], total(16 + row, b));
      v[1] = silu_times(v[1], total(17 + row, b));
    }
    *reinterpret_cast<uint32_t*>(out + static_cast<size_t>(b) * units.n + row) = pack(v[0], v[1]);
  }
  sync_threads<kExpertThreads>();
}

template <int NT>
__device__ __forceinline__ void multiply_units(const ExpertParameters& args, const ExpertMemory<NT>& memory, const RowGroup* groups,
                                               const ExpertUnits& units, RingPlace& at, RingPlace& rows_at, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, stride = units.k + 8, column = warp / 2 * kBoxColumns + (2 * t + warp % 2) * 8;
  const __nv_bfloat16* rows = nullptr;
  for (int unit = units.first; unit < units.end; ++unit) {
    const RowGroup group = groups[unit / units.tiles];
    if (rows == nullptr) {
      barrier_wait(memory.rows_full, rows_at.parity);
      rows = memory.rows + column;
    }
    float sums[2][NT][4] = {};
    for (int k0 = 0; k0 < units.k; k0 += kBoxes * kBoxColumns) {
      barrier_wait(memory.full + at.stage, at.parity);
      if (k0 + warp / 2 * kBoxColumns < units.k) {
        multiply_stage<NT>(memory.stages + at.stage * kExpertStageBytes, rows + k0, stride, group.count, warp, g, t, sums);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.empty + at.stage);
      at.advance();
    }
    if (unit + 1 == units.end || (unit + 1) % units.tiles == 0) {  // the rows have been read
      barrier_arrive(memory.rows_empty);
      rows_at.advance();
      rows = nullptr;
    }
    finish_unit<NT>(args, memory, group, units, unit % units.tiles, warp, g, t, sums);
  }
}

template <int NT>
__global__ void __launch_bounds__(kExpertBlockThreads, 1) expert_stream_kernel(const __grid_constant__ ExpertParameters args) {
  extern __shared__ unsigned char unaligned[];
  __shared__ RowGroup groups[kMaxGroups];
  __shared__ int num_groups;
  const ExpertMemory<NT> memory(unaligned, args.stages);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < args.stages; ++s) {
      barrier_init(memory.full + s, 1);
      barrier_init(memory.empty + s, kExpertWarps);
    }
    barrier_init(memory.rows_full, 1);
    barrier_init(memory.rows_empty, kExpertThreads);
    barrier_init_fence();
    prefetch_map(&args.gate_up);
    prefetch_map(&args.down);
  }
  wait_for_prerequisites();
  launch_dependents();
  const uint32_t phase = barrier_phase(args.barrier);
  if (warp == 0) {
    const int found = list_groups<8 * NT>(args, groups, lane);
    if (lane == 0) num_groups = found;
  }
  __syncthreads();
  const ExpertUnits gate(args, num_groups, true), down(args, num_groups, false);
  RingPlace at{args.stages}, rows_at{1};
  if (warp == kExpertWarps) {
    if (lane > 0) return;
    copy_experts<NT>(args, memory, groups, gate, at);
    copy_experts<NT>(args, memory, groups, down, at);
  } else if (warp == kExpertWarps + 1) {
    bring_rows<NT>(args, memory, groups, gate, rows_at, lane);
    wait_for_blocks(args.barrier, phase);
    fence_for_global_copies();
    bring_rows<NT>(args, memory, groups, down, rows_at, lane);
  } else {
    multiply_units<NT>(args, memory, groups, gate, at, rows_at, warp, lane);
    fence_for_global_copies();
    sync_threads<kExpertThreads>();
    if (threadIdx.x == 0) arrive_at_blocks(args.barrier);
    multiply_units<NT>(args, memory, groups, down, at, rows_at, warp, lane);
  }
}

}  // namespace xllm::kernels::cuda

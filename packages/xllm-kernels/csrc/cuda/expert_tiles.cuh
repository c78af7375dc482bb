// Products of each expert's weights with the many rows that chose it, at the rate of the tensor cores.
//
// One block a multiprocessor stays for the whole kernel and takes every gridDim-th tile: 128 rows of one expert by 256 rows of its
// weights, in order of experts, so that blocks that run together share what L2 holds. One thread keeps a ring of steps of K (64 numbers)
// filled by the bulk tensor copy engine; each of two warpgroups multiplies 64 of the rows (wgmma), or waits where the expert has no more. The
// second starts some steps after the first, so that the tensor cores have work while one of them writes what it has.
// GATED: the 256 rows are 128 of the gate and the 128 of up that belong to them, and silu(gate) * up is written.
//
// Knows nothing of how rows were chosen. K must be a multiple of 64.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "matrix.cuh"
#include "tensor_map.h"
#include "warpgroup.cuh"
#include "xllm/kernels/cuda/experts.h"

namespace xllm::kernels::cuda {

struct TileParameters {
  CUtensorMap rows;       // [rows, K] in boxes of 128
  CUtensorMap weight;     // GATED: planes 2 e (gate) and 2 e + 1 (up) of expert e, else plane e; boxes of 128 rows
  const int32_t* starts;
  __nv_bfloat16* out;     // [rows, n]
  int num_experts;
  int n;                  // outputs of a row, a multiple of 128 with GATED, of 256 without
  int k;
};

struct TileShape {
  static constexpr int kRows = 128, kWeightRows = 256, kStages = 4, kThreads = 384;
  static constexpr int kLag = 2;  // steps, fewer than stages
  static constexpr int kRowBytes = kRows * 128, kStageBytes = kRowBytes + kWeightRows * 128;
  static constexpr int kWarpBytes = 16 * 256;  // where a warp turns 16 rows of 128 outputs
  static constexpr int kBytes = kStages * kStageBytes + 8 * kWarpBytes + kStages * 16 + 1024;
};

// Where a block is among the tiles of all experts.
struct TileCursor {
  const int* starts;  // [experts + 1], in shared memory
  int num_experts;
  int column_tiles;   // of the outputs
  int expert = 0;
  int first = 0;      // tile of the expert

  int row = 0;        // of the rows, where the tile begins
  int end = 0;        // where the expert's rows end
  int column = 0;     // tile of outputs

  __device__ __forceinline__ int row_tiles() const { return (starts[expert + 1] - starts[expert] + TileShape::kRows - 1) / TileShape::kRows; }

  // Whether there is such a tile; they must come by rising number.
  __device__ __forceinline__ bool find(int tile) {
    while (expert < num_experts && tile >= first + row_tiles() * column_tiles) {
      first += row_tiles() * column_tiles;
      ++expert;
    }
    if (expert == num_experts) return false;
    column = (tile - first) / row_tiles();
    row = starts[expert] + (tile - first) % row_tiles() * TileShape::kRows;
    end = starts[expert + 1];
    return true;
  }
};

template <bool GATED>
__device__ __forceinline__ void copy_tile_steps(const TileParameters& args, unsigned char* stages, uint64_t* full, uint64_t* empty, TileCursor at) {
  const uint64_t often = evict_last_policy();
  int stage = 0, parity = 1;
  for (int tile = blockIdx.x; at.find(tile); tile += gridDim.x) {
    const int plane = at.expert * (GATED ? 2 : 1), row = at.column * (GATED ? 128 : 256);
    for (int column = 0; column < args.k; column += kBoxColumns) {
      barrier_wait(empty + stage, parity);
      unsigned char* base = stages + stage * TileShape::kStageBytes;
      barrier_expect(full + stage, TileShape::kStageBytes);
      copy_box(base, &args.rows, column, at.row, full + stage, often);
      copy_stacked_box(base + TileShape::kRowBytes, &args.weight, column, row, plane, full + stage, often);
      copy_stacked_box(base + TileShape::kRowBytes + 128 * 128, &args.weight, column, GATED ? row : row + 128, GATED ? plane + 1 : plane,
                       full + stage, often);
      if (++stage == TileShape::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

// One warp: writes 16 rows of 128 outputs, whose pairs `pair_of(i)` are those of c[2 i] and c[2 i + 1]; the first `count` rows only.
template <class PairOf>
__device__ __forceinline__ void write_outputs(unsigned char* buffer, __nv_bfloat16* out, int64_t stride, int count, int lane, const PairOf& pair_of) {
  const int matrix = lane / 8, row = matrix % 2 * 8 + lane % 8;
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    const uint32_t pairs[4] = {pair_of(2 * j), pair_of(2 * j + 1), pair_of(2 * j + 2), pair_of(2 * j + 3)};
    store_matrices(pairs, shared_address(buffer + row * 256 + ((j + matrix / 2) ^ (row & 7)) * 16));
  }
  __syncwarp();
#pragma unroll
  for (int pass = 0; pass < 8; ++pass) {
    const int from = pass * 2 + lane / 16, piece = lane % 16;
    const uint4 v = *reinterpret_cast<const uint4*>(buffer + from * 256 + (piece ^ (from & 7)) * 16);
    if (from < count) *reinterpret_cast<uint4*>(out + from * stride + piece * 8) = v;
  }
  __syncwarp();
}

// The second warpgroup returns once the first has called it.
__device__ __forceinline__ void follow(int group) {
  if (group == 0) arrive_threads<256>();
  else sync_threads<256>();
}

template <bool GATED>
__device__ __forceinline__ void multiply_tiles(const TileParameters& args, unsigned char* stages, unsigned char* buffer, uint64_t* full,
                                               uint64_t* empty, TileCursor at, int group, int warp, int lane) {
  const int lag_column = min(TileShape::kLag * kBoxColumns, args.k - kBoxColumns);
  int stage = 0, parity = 0;
  bool is_begin = true;
  for (int tile = blockIdx.x; at.find(tile); tile += gridDim.x, is_begin = false) {
    if (is_begin && group == 1) follow(group);
    const bool has_rows = at.row + group * 64 < at.end;
    float c[128];
    int before = 0;
    for (int column = 0; column < args.k; column += kBoxColumns) {
      barrier_wait(full + stage, parity);
      __syncwarp();
      if (has_rows) {
        const uint32_t base = shared_address(stages + stage * TileShape::kStageBytes);
        const uint64_t a = describe_rows(base + group * 64 * 128), b = describe_rows(base + TileShape::kRowBytes);
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < kBoxColumns / 16; ++k) multiply_rows<BFloat16Element>(c, a + 2 * k, b + 2 * k, column > 0 || k > 0);
        warpgroup_commit();
        warpgroup_wait<1>();
      }
      if (column > 0 && lane == 0) barrier_arrive(empty + before);  // the step before has been read
      if (is_begin && group == 0 && column == lag_column) follow(group);
      before = stage;
      if (++stage == TileShape::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    warpgroup_wait<0>();
    settle(c);
    if (lane == 0) barrier_arrive(empty + before);
    const int row = at.row + group * 64 + warp * 16;
    if (row >= at.end) continue;
    __nv_bfloat16* out = args.out + static_cast<int64_t>(row) * args.n + at.column * (GATED ? 128 : 256);
    if constexpr (GATED) {
      write_outputs(buffer, out, args.n, at.end - row, lane,
                    [&](int i) { return pack(silu_times(c[2 * i], c[64 + 2 * i]), silu_times(c[2 * i + 1], c[64 + 2 * i + 1])); });
    } else {
      write_outputs(buffer, out, args.n, at.end - row, lane, [&](int i) { return pack(c[2 * i], c[2 * i + 1]); });
      write_outputs(buffer, out + 128, args.n, at.end - row, lane, [&](int i) { return pack(c[64 + 2 * i], c[64 + 2 * i + 1]); });
    }
  }
}

template <bool GATED>
__global__ void __launch_bounds__(TileShape::kThreads, 1) expert_tiles_kernel(const __grid_constant__ TileParameters args) {
  extern __shared__ unsigned char unaligned[];
  __shared__ int starts[kMaxExperts + 1];
  unsigned char* stages = align_to_swizzle(unaligned);
  unsigned char* buffers = stages + TileShape::kStages * TileShape::kStageBytes;
  auto* full = reinterpret_cast<uint64_t*>(buffers + 8 * TileShape::kWarpBytes);
  uint64_t* empty = full + TileShape::kStages;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < TileShape::kStages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, 8);
    }
    barrier_init_fence();
  }
  launch_dependents();
  wait_for_prerequisites();
  for (int e = threadIdx.x; e <= args.num_experts; e += TileShape::kThreads) starts[e] = __ldcg(args.starts + e);
  __syncthreads();
  const TileCursor begin{starts, args.num_experts, args.n / (GATED ? 128 : 256)};
  if (warp < 4) {
    give_registers<40>();
    if (threadIdx.x == 0) copy_tile_steps<GATED>(args, stages, full, empty, begin);
  } else {
    take_registers<232>();
    multiply_tiles<GATED>(args, stages, buffers + (warp - 4) * TileShape::kWarpBytes, full, empty, begin, warp / 4 - 1, warp % 4, lane);
  }
}

}  // namespace xllm::kernels::cuda

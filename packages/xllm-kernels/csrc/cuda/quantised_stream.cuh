// y = epilogue(x W^T + bias) for up to 8 * NT rows of x and quantised W, which passes through shared memory once, at memory speed.
//
// One block a multiprocessor stays for the whole kernel. One thread asks the bulk tensor copy engine for tiles of W, 8 / WM boxes of 128
// bytes by 16 * MT rows, in a ring; 8 warps, WM along rows and WK along K, widen numbers in registers and multiply them by mma.m16n8k16.
// x lies in shared memory, one slice of K at a time, or comes through the ring beside W (XSTAGE), where it would be too large.
// Both lie so that a warp reads without bank conflicts.
//
//   unit u = (slice s of S of K, tile of 16 * MT rows), slices outermost; a block owns units [u0, u1); S > 1 meets in a float32 workspace
//   a group is 128 columns: a box of 8-bit numbers, half a box of 4-bit ones; lane t of four owns 32 of them, 32 t and on, in four
//   pieces of 8, which lanes 2 and 3 take in the order 2 3 0 1 where x comes through the ring
//   lane = 4 * g + t: rows g and g + 8 of a row tile; rows of x: 8 n + g. Products of a group are summed before they are scaled.
//
// Knows nothing of models. n must be a multiple of 16 * MT.
#pragma once

#include "quantised_finish.cuh"
#include "quantised_multiply.cuh"

namespace xllm::kernels::cuda {

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
      finish_quantised<Shape>(args, partial, tile, first, operands);
    }
    if (args.partial_sets == 1) sync_threads<Shape::kThreads>();
  }
}

}  // namespace xllm::kernels::cuda

// What becomes of a block's sums: they meet, with those of other slices too, are scaled, go through the epilogue, and are written.
#pragma once

#include "last_block.cuh"
#include "quantised_ring.cuh"

namespace xllm::kernels::cuda {

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
  float* work = args.workspace + (static_cast<size_t>(tile) * args.splits + slice) * Shape::kRows * Shape::kColumns;
  for (int i = threadIdx.x; i < Shape::kRows * args.batch; i += Shape::kThreads) {
    const int row = i % Shape::kRows, b = i / Shape::kRows;
    __stcg(work + b * Shape::kRows + row, sum_of_warps<Shape>(args, partial, row, b));
  }
  return comes_last<Shape::kThreads>(args.counters + tile, args.splits);
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
__device__ __forceinline__ void finish_quantised(const QuantisedParameters& args, const float* partial, int tile, int first,
                                                 OutputOperands operands) {
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
    float sum = total(row, b) * operands.scale;
    if (args.is_gated) sum = sum / (1.f + __expf(-sum)) * (total(out_rows + row, b) * operands.up_scale);
    static_cast<typename E::type*>(args.out)[static_cast<size_t>(b) * width + tile * out_rows + row] =
        E::narrow(sum + operands.bias + operands.residual);
  }
}

}  // namespace xllm::kernels::cuda

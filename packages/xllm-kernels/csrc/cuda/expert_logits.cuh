// A router's logits by tensor cores: a block multiplies the rows of 16 experts with up to 8 tokens, whose RMS norm it finishes, too.
//
// Sixteen warps share K, in passes; chunk c of 32 numbers is that of linear_stream.cuh. The first pass's part of the gate comes to registers
// before the kernel before has ended. Knows nothing of what becomes of logits.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "matrix.cuh"
#include "tensor_map.h"

namespace xllm::kernels::cuda {

constexpr int kLogitTokens = 8, kLogitExperts = 16;  // of a block
constexpr int kLogitWarps = 16, kLogitThreads = kLogitWarps * 32;
constexpr int kPassChunks = 4, kPassColumns = kPassChunks * kLogitWarps * 32;  // of a warp; of a block

// The first column of this lane's piece of chunk `c`.
__device__ __forceinline__ int column_of_chunk(int c, int t) { return c / 2 * kBoxColumns + (2 * t + c % 2) * 8; }

struct RouterRows {
  const __nv_bfloat16* x;            // [tokens, size], the block's first token
  const __nv_bfloat16* norm_weight;  // [size]
  const __nv_bfloat16* gate;         // [16, size], the block's first expert
  int num_tokens;                    // of the block
  int size;                          // a multiple of 64
};

// What warps leave of a block's logits, in shared memory.
struct LogitSums {
  float products[kLogitWarps][kLogitExperts][kLogitTokens + 1];
  float squares[kLogitWarps][kLogitTokens];
  uint4 norm[kPassColumns / 8];

  // Products of a token that has only been weighed are multiplied by this.
  __device__ __forceinline__ float scale(int token, int size, float eps) const {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kLogitWarps; ++w) sum += squares[w][token];
    return norm_scale<BFloat16Element>(sum, size, eps);
  }
  __device__ __forceinline__ float product(int expert, int token) const {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kLogitWarps; ++w) sum += products[w][expert][token];
    return sum;
  }
};

// The whole block, which must not have waited for the kernel before: it does so here.
__device__ __forceinline__ void multiply_gate(const RouterRows& rows, LogitSums& sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const __nv_bfloat16* gate = rows.gate + int64_t{g} * rows.size;
  // Columns past the tokens repeat the last one: their products are never read.
  const __nv_bfloat16* token = rows.x + int64_t{min(g, rows.num_tokens - 1)} * rows.size;
  const int column = column_of_chunk(warp, t);  // of this lane's first chunk; the next ones follow at equal steps
  constexpr int kStep = kLogitWarps * 32;
  float products[4] = {}, squares = 0.f;
#pragma unroll 1
  for (int first = 0; first < rows.size; first += kPassColumns) {
    const auto has = [&](int i) { return first + column + i * kStep < rows.size; };
    const auto piece_of = [&](const __nv_bfloat16* row, int i) {
      return has(i) ? *reinterpret_cast<const uint4*>(row + first + column + i * kStep) : make_uint4(0, 0, 0, 0);
    };
    uint4 low[kPassChunks], high[kPassChunks], x[kPassChunks];
#pragma unroll
    for (int i = 0; i < kPassChunks; ++i) {
      low[i] = piece_of(gate, i);
      high[i] = piece_of(gate + 8 * rows.size, i);
    }
    if (first > 0) __syncthreads();  // the norm's weights before these have been read
    for (int c = threadIdx.x; c < min(kPassColumns, rows.size - first) / 8; c += kLogitThreads) {
      sums.norm[c] = __ldg(reinterpret_cast<const uint4*>(rows.norm_weight + first) + c);
    }
    __syncthreads();
    if (first == 0) wait_for_prerequisites();
#pragma unroll
    for (int i = 0; i < kPassChunks; ++i) x[i] = piece_of(token, i);
#pragma unroll
    for (int i = 0; i < kPassChunks; ++i) {
      if (!has(i)) break;
      const uint4 weighed = weigh_piece<BFloat16Element>(x[i], sums.norm[(column + i * kStep) / 8], squares);
      multiply_add(products, low[i].x, high[i].x, low[i].y, high[i].y, weighed.x, weighed.y);
      multiply_add(products, low[i].z, high[i].z, low[i].w, high[i].w, weighed.z, weighed.w);
    }
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  squares += __shfl_xor_sync(0xffffffffu, squares, 2);
  if (t == 0) sums.squares[warp][g] = squares;
  sums.products[warp][g][2 * t] = products[0];
  sums.products[warp][g][2 * t + 1] = products[1];
  sums.products[warp][g + 8][2 * t] = products[2];
  sums.products[warp][g + 8][2 * t + 1] = products[3];
  __syncthreads();
}

}  // namespace xllm::kernels::cuda

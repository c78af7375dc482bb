// What a warpgroup does to the scores of its 64 rows between two products, and how it writes the rows. Knows nothing of rings or copies.
#pragma once

#include "element.cuh"
#include "prompt_tiles.cuh"

namespace xllm::kernels::cuda {

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// An online softmax of two rows a thread (g and g + 8 of the warp's 16).
struct RowSoftmax {
  float top[2], total[2];

  __device__ __forceinline__ void begin() {
    top[0] = top[1] = -INFINITY;
    total[0] = total[1] = 0.f;
  }

  // Turns scores into weights, in place; returns what to scale earlier sums by.
  __device__ __forceinline__ void take(float (&s)[64], float scale, float (&keep)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = s[2 * r];
#pragma unroll
      for (int j = 0; j < 16; ++j) most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, top[r]);
      const float shift = most == -INFINITY ? 0.f : most * scale;
      keep[r] = exp2_fast(top[r] * scale - shift);
      top[r] = most;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * j + 2 * r + c];
          x = exp2_fast(fmaf(x, scale, -shift));
          sum += x;
        }
      }
      total[r] = total[r] * keep[r] + sum;
    }
  }
};

// Scores of keys from `limits` on (for the thread's two rows) become minus infinity.
__device__ __forceinline__ void mask_scores(float (&s)[64], int start, const int (&limits)[2], int lane) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int key = start + 8 * j + 2 * (lane % 4) + c;
      if (key >= limits[0]) s[4 * j + c] = -INFINITY;
      if (key >= limits[1]) s[4 * j + 2 + c] = -INFINITY;
    }
  }
}

// Weights as the left operand of 8 products of 16 keys.
template <class Element>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = Element::narrow_pair(s[2 * i], s[2 * i + 1]);
}

// Afterwards lane t of four holds in x[i] what lane i had in x[t].
__device__ __forceinline__ void exchange_quads(uint32_t (&x)[4], int t) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const bool is_high = t & step;
      const uint32_t other = __shfl_xor_sync(0xffffffffu, is_high ? x[i] : x[i + step], step);
      if (is_high) x[i] = other;
      else x[i + step] = other;
    }
  }
}

template <class Element, int D>
__device__ __forceinline__ void store_rows(const PromptAttentionParameters& args, const PromptItem& item, const float (&o)[D / 2],
                                           const RowSoftmax& softmax, int row, int lane) {
  const int t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int mine = row + 8 * r;
    float total = softmax.total[r];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const float factor = total > 0.f ? 1.f / total : 0.f;
    const bool exists = mine < item.num_rows;
    const int64_t place = static_cast<int64_t>(item.split) * args.num_queries + item.first_row + mine;
    auto* target = static_cast<typename Element::type*>(args.out) + (place * args.num_heads + item.head) * args.head_dim;
#pragma unroll
    for (int q = 0; q < D / 32; ++q) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = Element::narrow_pair(o[4 * (4 * q + i) + 2 * r] * factor, o[4 * (4 * q + i) + 2 * r + 1] * factor);
      exchange_quads(x, t);
      if (exists) *reinterpret_cast<uint4*>(target + 32 * q + 8 * t) = make_uint4(x[0], x[1], x[2], x[3]);
    }
#pragma unroll
    for (int j = D / 32 * 4; j < D / 8; ++j) {
      if (exists && 8 * j < args.head_dim)
        *reinterpret_cast<uint32_t*>(target + 8 * j + 2 * t) = Element::narrow_pair(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
    }
    if (args.lse != nullptr && exists && t == 0) {
      const int64_t lse_place = (static_cast<int64_t>(item.split) * args.num_heads + item.head) * args.num_queries + item.first_row + mine;
      args.lse[lse_place] = total > 0.f ? (softmax.top[r] * args.scale + log2f(total)) * 0.69314718f : INFINITY;
    }
  }
}

}  // namespace xllm::kernels::cuda

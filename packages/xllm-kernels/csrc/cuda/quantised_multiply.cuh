// Products of one box of quantised numbers in shared memory with rows of x, by one warp. Knows nothing of how they came there.
#pragma once

#include "quantised_ring.cuh"

namespace xllm::kernels::cuda {

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

}  // namespace xllm::kernels::cuda

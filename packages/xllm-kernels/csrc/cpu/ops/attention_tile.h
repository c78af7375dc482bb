// The two inner products of attention on one tile of keys, and where the tile's keys and values lie.
//
// Rows are query rows x heads of a group. Every (row, key) score and every (row, element) sum is computed by the same
// sequence of operations in each of the variants below, so that they may be chosen by speed.
#pragma once

#include "attention_plan.h"
#include "vector.h"

namespace xllm::kernels::cpu::XLLM_ISA {

// Keys (and values) [begin, end) of the kKeysPerTile from `position` on. Entries of `keys` outside point to some valid
// key, so that whole groups of Vec::width may be read.
template <class T>
struct Tile {
  int64_t position;
  int64_t begin;
  int64_t end;
  const T* keys[kKeysPerTile];
  const T* values[kKeysPerTile];
};

// Asks for keys and values [begin, end) of the tile that comes next, as far as it has them.
template <class T>
inline void prefetch(const Tile<T>& next, int64_t begin, int64_t end, int64_t head_dim) {
  constexpr int64_t line = 64 / sizeof(T);
  for (int64_t k = begin; k < end && k < next.end; ++k) {
    if (k < next.begin) continue;
    for (int64_t i = 0; i < head_dim; i += line) {  // into the second level: a tile may fill the first
      __builtin_prefetch(next.keys[k] + i, 0, 2);
      __builtin_prefetch(next.values[k] + i, 0, 2);
    }
  }
}

// scores[r][k] = query[r] . keys[k] for `Rows` rows and the Vec::width keys from `keys` on.
template <int Rows, class T>
inline void score_group(const float* query, int64_t stride, const T* const* keys, int64_t head_dim, float* scores) {
  constexpr int w = Vec::width;
  constexpr int together = Rows == 1 ? (w < 8 ? w : 8) : Rows == 2 ? 4 : 2;  // sums in flight: enough to hide latency
  Vec pairs[Rows][w / 2];
  for (int first = 0; first < w; first += together) {
    Vec sums[Rows][together];
    for (int r = 0; r < Rows; ++r)
      for (int k = 0; k < together; ++k) sums[r][k] = set1(0.0f);
    for (int64_t i = 0; i < head_dim; i += w) {
      Vec key[together];
      for (int k = 0; k < together; ++k) key[k] = load(keys[first + k] + i);
      for (int r = 0; r < Rows; ++r) {
        const Vec q = load(query + r * stride + i);
        for (int k = 0; k < together; ++k) sums[r][k] = fma(q, key[k], sums[r][k]);
      }
    }
    for (int r = 0; r < Rows; ++r)
      for (int k = 0; k < together; k += 2) pairs[r][(first + k) / 2] = pair_sums(sums[r][k], sums[r][k + 1]);
  }
  for (int r = 0; r < Rows; ++r) store(scores + r * kKeysPerTile, sums_of_pairs(pairs[r]));
}

// sums[r][0 .. Columns * width) = sums * decay[r] + weights[r] x values, keys in ascending order.
template <int Rows, int Columns, class T>
inline void weigh_columns(const float* weights, const Tile<T>& tile, int64_t column, const float* decay, float* sums,
                          int64_t stride) {
  constexpr int w = Vec::width;
  Vec total[Rows][Columns];
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c) total[r][c] = mul(load(sums + r * stride + column + c * w), set1(decay[r]));
  for (int64_t k = tile.begin; k < tile.end; ++k) {
    Vec value[Columns];
    for (int c = 0; c < Columns; ++c) value[c] = load(tile.values[k] + column + c * w);
    for (int r = 0; r < Rows; ++r) {
      const Vec weight = set1(weights[r * kKeysPerTile + k]);
      for (int c = 0; c < Columns; ++c) total[r][c] = fma(weight, value[c], total[r][c]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Columns; ++c) store(sums + r * stride + column + c * w, total[r][c]);
}

// All columns from `column` on, as many at a time as fit in registers.
template <int Rows, int Columns, class T>
inline void weigh_rows(const float* weights, const Tile<T>& tile, int64_t column, int64_t head_dim, const float* decay,
                       float* sums, int64_t stride) {
  for (; column + Columns * Vec::width <= head_dim; column += Columns * Vec::width)
    weigh_columns<Rows, Columns>(weights, tile, column, decay, sums, stride);
  if constexpr (Columns > 1)
    weigh_rows<Rows, Columns / 2>(weights, tile, column, head_dim, decay, sums, stride);
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

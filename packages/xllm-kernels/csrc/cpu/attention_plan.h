// How paged attention is cut into work items. Plain data and constants: included by code of every instruction set.
#pragma once

#include <stdint.h>

namespace xllm::kernels::cpu {

// Keys are taken in tiles, and the results of tiles are joined in splits, both aligned to absolute positions: the
// order of all additions is then a function of a row's position alone, whoever computes it. Never tune these at run
// time.
constexpr int64_t kKeysPerTile = 64;
constexpr int64_t kKeysPerSplit = 512;

// Query rows [first_row, first_row + num_rows) of one sequence, for the query heads of one key-value head, over the
// key splits [first_split, end_split).
struct AttentionItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_row;      // counted from the sequence's first row
  int32_t num_rows;
  int32_t first_split;
  int32_t end_split;
  int64_t partial_offset;  // -1: covers all splits and writes the output; else where, in floats, it leaves a partial
};

// Floats of one partial result: for each of `rows` (query rows x heads of the group) maximum, sum and accumulator.
// The partial results of one item's splits lie one after the other.
static constexpr int64_t partial_size(int64_t rows, int64_t padded_head_dim) { return rows * (padded_head_dim + 2); }

// Head dimension rounded up to a whole number of the widest vectors.
static constexpr int64_t padded_head_dim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

}  // namespace xllm::kernels::cpu

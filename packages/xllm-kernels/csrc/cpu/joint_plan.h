// How joint attention is cut into work, and how prepared heads lie in memory. Plain data: included by code of every
// instruction set.
#pragma once

#include "xllm/kernels/joint_attention.h"

namespace xllm::kernels::cpu {

// Rows of queries of an item, a multiple of what every instruction set computes together; and keys that are scored before
// their values are weighed: keys and values of a part stay in a core's second-level cache.
constexpr int64_t kQueriesPerItem = 96;
constexpr int64_t kKeysPerPart = 256;
constexpr int64_t kScoreStride = kKeysPerPart + 16;
// Keys and features are padded with zeros to whole multiples of this.
constexpr int64_t kHeadMultiple = 32;

// One head of one member of the batch. Keys lie in tiles of as many as two vectors hold, each tile all its keys for every
// feature; values lie row by row. Both in the order of tokens, hidden keys left out.
struct PreparedHead {
  float* keys;
  float* values;
  int64_t num_keys;
};

// Queries [first_row, first_row + num_rows) of one head; rows are counted from args.first_query.
struct JointItem {
  int64_t batch;
  int64_t head;
  int64_t first_row;
  int64_t num_rows;  // at most kQueriesPerItem
};

static constexpr int64_t padded(int64_t size) { return (size + kHeadMultiple - 1) / kHeadMultiple * kHeadMultiple; }

static inline int64_t num_tokens(const JointAttentionArgs& args) {
  return args.streams[0].num_tokens + (args.num_streams > 1 ? args.streams[1].num_tokens : 0);
}

// Floats of the scratch memory of one item: queries and sums, maxima, denominators and decays, scores.
static constexpr int64_t joint_scratch_floats(int64_t padded_head_size) {
  return kQueriesPerItem * (2 * padded_head_size + 3 + kScoreStride);
}

}  // namespace xllm::kernels::cpu

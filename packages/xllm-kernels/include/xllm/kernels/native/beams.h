// Beams of a decoder: a few steps of many rows over one prompt each, whose own keys and values lie outside the paged cache.
#pragma once

#include <cstdint>
#include <memory>

#include "xllm/kernels/native/decoder.h"

namespace xllm::kernels::native {

// Keys and values that the beams of one search add: for every layer and round, num_rows rows. Not for two steps at once.
class BeamCache {
 public:
  // Throws std::invalid_argument for sizes below 1, std::bad_alloc where there is no room.
  BeamCache(const DecoderShape& shape, int64_t num_rounds, int64_t num_rows, CacheType type);
  ~BeamCache();
  BeamCache(const BeamCache&) = delete;
  BeamCache& operator=(const BeamCache&) = delete;

  int64_t num_rounds() const { return num_rounds_; }
  int64_t num_rows() const { return num_rows_; }
  CacheType type() const { return type_; }
  // [num_rounds, num_rows, num_kv_heads, head_dim] of a layer.
  uint8_t* keys(int64_t layer) const;
  uint8_t* values(int64_t layer) const;
  // Elements of one round.
  int64_t round_size() const { return num_rows_ * row_size_; }
  void store(int64_t layer, int64_t round, int64_t row, const float* key, const float* value) const;

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
  int64_t num_layers_, num_rounds_, num_rows_, row_size_;
  CacheType type_;
};

// One token of every beam. The beams of request s are rows [query_start[s], query_start[s + 1]).
struct BeamStepArgs {
  const int32_t* token_ids;     // [num_rows]
  const int32_t* positions;     // [num_rows]
  const int32_t* query_start;   // [num_requests + 1] from 0 to num_rows
  const int32_t* prompt_lens;   // [num_requests] tokens in the paged cache
  const int32_t* block_tables;  // [num_requests, num_columns], rows block_table_stride entries apart
  const int32_t* ancestors;     // [num_rows, round + 1]: which row of each round a beam continues; its own in this one
  int64_t num_rows;
  int64_t num_requests;
  int64_t num_columns;
  int64_t block_table_stride;
  int64_t ancestors_stride;
  int64_t round;                // where the rows' keys are kept
};

}  // namespace xllm::kernels::native

// Causal attention of new tokens over a paged key-value cache: decodes and prefill chunks mixed in one call.
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"

namespace xllm::kernels {

// Row r of sequence s, whose rows are [query_start[s], query_start[s + 1]) and number q, sits at position
// p = seq_lens[s] - q + r and sees keys max(0, p - sliding_window + 1) .. p (from 0 when sliding_window is 0).
// Query head h reads key-value head h / (num_query_heads / num_kv_heads).
//
// Batch invariance: a row's bits depend on its query and on the keys and values it sees, never on the other rows
// of the call, on how a prompt was cut into chunks, on block_size, on where blocks lie or on the number of threads.
struct PagedAttentionArgs {
  const void* query;            // [num_tokens, num_query_heads, head_dim], tokens query_row_stride elements apart
  const void* key_cache;        // [num_blocks, block_size, num_kv_heads, head_dim], in any order: blocks lie
                                // key_block_stride elements apart, tokens and heads as below, elements densely
  const void* value_cache;      // the same, blocks value_block_stride elements apart
  const int32_t* block_tables;  // [num_seqs, *], rows block_table_stride elements apart; only entries of keys that
                                // some row sees are read, and those must be valid block ids: the caller checks
  const int32_t* query_start;   // [num_seqs + 1], ascending from 0
  const int32_t* seq_lens;      // [num_seqs], each at least the sequence's number of rows
  void* out;                    // [num_tokens, num_query_heads, head_dim], tokens out_row_stride elements apart
  int64_t num_seqs;
  int64_t num_query_heads;
  int64_t num_kv_heads;         // divides num_query_heads
  int64_t head_dim;
  int64_t block_size;
  int64_t block_table_stride;
  int64_t query_row_stride;
  int64_t out_row_stride;
  int64_t key_block_stride;
  int64_t value_block_stride;
  int64_t cache_token_stride;   // of both caches
  int64_t cache_head_stride;    // of both caches
  int64_t sliding_window;       // 0: unlimited
  float scale;                  // multiplies the scores
  DType dtype;                  // of query and out; accumulation is in float32
  DType cache_dtype;            // of both caches: dtype, or bfloat16 under a float32 query
  bool rows_see_all = false;    // every row of a sequence sees all of its seq_lens[s] keys, of which none is a row's own;
                                // sliding_window must be 0 then
};

namespace cpu {
void paged_attention(const PagedAttentionArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

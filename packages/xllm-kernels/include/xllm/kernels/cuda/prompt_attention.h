// Attention of many tokens a sequence on Hopper: prompts, chunks of them over a paged cache, towers that see pictures, beams over prompts.
#pragma once

#include <cstdint>

#include "xllm/kernels/cuda/half_type.h"

namespace xllm::kernels::cuda {

inline constexpr int kPromptAttentionMaxSplits = 64;

// Sequence s owns the query rows [query_start[s], query_start[s + 1]) and seq_lens[s] keys: with block_tables, those of its blocks, else
// rows from key_start[s] on. Causal: its queries are the last of its tokens. All in one 16-bit type but for lse.
struct PromptAttentionArgs {
  const void* query;          // [num_queries, num_heads, head_dim], rows query_row_stride elements apart
  const void* key;            // [num_keys, num_kv_heads, head_dim], rows key_row_stride elements apart; a cache's slots one after the other
  const void* value;          // the same
  const int32_t* query_start;   // [num_sequences + 1]
  const int32_t* key_start;     // [num_sequences] or more; null with block_tables
  const int32_t* seq_lens;      // [num_sequences]
  const int32_t* block_tables;  // [num_sequences, table_width], or null
  void* out;                  // [splits, num_queries, num_heads, head_dim], dense
  float* lse;                 // [splits, num_heads, num_queries], dense: logarithms of the softmax denominators, infinite where a split
                              // has no keys that a row sees (out is undefined there); null leaves them out
  int64_t num_queries;
  int64_t num_keys;
  int64_t query_row_stride;
  int64_t key_row_stride;
  int64_t value_row_stride;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int num_sequences;
  int max_query_len;
  int table_width;
  int block_size;             // of no meaning without block_tables
  int splits;                 // parts of each sequence's keys that are attended on their own; lse must be there if more than 1
  bool is_causal;
  float scale;
  HalfType type;
};

// nullptr where the kernel serves these heads over blocks of `block_size` (0: not paged), else why not.
const char* why_no_prompt_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size);

// Starts the kernel on `stream` (a cudaStream_t) of the current device.
void prompt_attention(const PromptAttentionArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

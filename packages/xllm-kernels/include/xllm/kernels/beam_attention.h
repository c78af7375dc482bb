// Attention of many beams over one prompt each (xAttention): the prompt's keys lie once in the paged cache, each beam's own
// few keys outside it, and both parts are joined by one online softmax.
#pragma once

#include <stdint.h>

#include "xllm/kernels/paged_attention.h"

namespace xllm::kernels {

// Row r is a beam of the request that owns it. It sees every key of the request's prompt, then, for each round t, key
// ancestors[r, t] of that round: the row that its ancestor had in round t. So a reordering of beams moves no keys.
//
// Batch invariance: as in paged attention; a row's bits do not depend on the other beams.
struct BeamAttentionArgs {
  PagedAttentionArgs prompt;     // request s owns rows [query_start[s], query_start[s + 1]); seq_lens are prompt lengths,
                                 // at least 1; rows_see_all is set, sliding_window is 0
  const void* beam_key;          // [num_rounds, *, num_kv_heads, head_dim] of prompt.cache_dtype, rows dense, rounds
  const void* beam_value;        // beam_round_stride elements apart
  const int32_t* ancestors;      // [num_rows, num_rounds], rows ancestors_stride entries apart; the caller checks
  int64_t num_rounds;            // at least 1
  int64_t beam_round_stride;
  int64_t ancestors_stride;
};

namespace cpu {
void beam_attention(const BeamAttentionArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

// One round of beam search: which tokens the best paths take next.
#pragma once

#include <stdint.h>

namespace xllm::kernels {

// Request s owns input rows [row_start[s], row_start[s + 1]), its beams in order of rank, and gets output rows
// [out_start[s], out_start[s + 1]). A candidate is a row and a token that may follow it; its score is the row's score plus
// the token's log-probability over the whole vocabulary. The best candidates come first; where scores are equal, the better
// row, then the smaller token. Output rows without a candidate get parent row_start[s], token 0, node -1, score -infinity.
struct BeamSelectArgs {
  const float* logits;        // [num_rows, vocab_size], rows logits_stride elements apart
  const float* scores;        // [num_rows]; -infinity: the row has no path
  const int32_t* nodes;       // [num_rows] or null: every token may follow
  const int32_t* starts;      // [nodes + 1]: node n may be followed by tokens[starts[n] .. starts[n + 1]), ascending
  const int32_t* tokens;      // and the number of such an entry is the next node
  const int32_t* row_start;   // [num_requests + 1]
  const int32_t* out_start;   // [num_requests + 1]
  int32_t* parents;           // [num_outputs], input rows
  int32_t* chosen;            // [num_outputs], tokens
  int32_t* next_nodes;        // [num_outputs]; -1 where every token may follow
  float* logprobs;            // [num_outputs], of the chosen tokens
  float* next_scores;         // [num_outputs]
  int64_t num_requests;
  int64_t vocab_size;
  int64_t logits_stride;
};

namespace cpu {
void beam_select(const BeamSelectArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

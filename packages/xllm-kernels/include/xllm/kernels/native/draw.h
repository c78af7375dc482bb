// Tokens drawn from rows of logits, and log-probabilities of rows, on the pool. Knows nothing of penalties, seeds or where
// logits come from.
//
// The meaning of filters and their order are those of xllm_runtime's sampler on numpy's arrays, which is the truth:
// temperature, top-k, top-p, min-p, then the inverse of the cumulative distribution over rising token ids at `uniform`.
// A row's results are its own to the bit, whoever shares the batch and whatever the number of threads.
#pragma once

#include <cstdint>

namespace xllm::kernels::native {

struct DrawArgs {
  const float* logits;       // [num_logits, vocab_size] dense; no NaN in the rows drawn from
  const int64_t* rows;       // [num_rows] of logits, in [0, num_logits)
  const float* best;         // [num_rows] the largest logit of each, finite
  const float* temperature;  // [num_rows] > 0
  const int64_t* top_k;      // [num_rows] from 1 to vocab_size, which means off
  const double* top_p;       // [num_rows] (0, 1]; 1 is off
  const float* min_p;        // [num_rows] [0, 1]; 0 is off
  const double* uniform;     // [num_rows] [0, 1)
  int32_t* token_ids;        // [num_rows]
  int64_t num_logits;
  int64_t num_rows;
  int64_t vocab_size;
};

// Throws std::invalid_argument where rows or top_k are out of their ranges.
void draw(const DrawArgs& args);

struct LogprobArgs {
  const float* logits;       // [num_rows, vocab_size] dense
  const int32_t* token_ids;  // [num_rows]
  float* logprobs;           // [num_rows] of token_ids
  int32_t* top_ids;          // [num_rows, num_top], by falling log-probability, then by rising id
  float* top_logprobs;       // [num_rows, num_top]
  int64_t num_rows;
  int64_t vocab_size;
  int64_t num_top;           // at most vocab_size
};

// The log-softmax of each row at its token and at the best ones. Throws std::invalid_argument for a token or a number of
// best ones that the vocabulary lacks.
void token_logprobs(const LogprobArgs& args);

}  // namespace xllm::kernels::native

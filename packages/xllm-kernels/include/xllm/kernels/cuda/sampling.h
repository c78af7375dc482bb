// Draws one token a row from a filtered softmax, without a sort of the vocabulary.
#pragma once

#include <stdint.h>

namespace xllm::kernels::cuda {

enum class LogitsType : int { bfloat16 = 0, float16 = 1, float32 = 2 };

// Order: temperature, top-k, top-p over what top-k left, min-p. Tokens rank by falling logit, equals by rising id. The draw inverts the
// cumulative weights over rising ids at a number that is a function of (seed, step) alone. Weights are whole numbers of 2^-40 of the
// largest, so sums do not depend on the order of threads: a row's token is a function of the row, to the bit.
struct SampleArgs {
  const void* logits;         // [num_rows, size], dense
  LogitsType type;
  const int32_t* best_ids;    // [num_rows], most probable tokens: what rows of temperature 0 take
  const float* best;          // [num_rows], their logits; rows where it is not finite get token -1
  const float* temperature;   // [num_rows]
  const float* top_p;         // 1 is off
  const float* min_p;         // 0 is off
  const int32_t* top_k;       // 0 is off
  const uint64_t* seed;
  const int64_t* step;
  int32_t* token_ids;         // [num_rows]
  float* logprobs;            // [num_rows] or null: of the tokens, under the logits as they are
  int64_t num_rows;
  int64_t size;               // a multiple of 8
};
void sample(const SampleArgs& args, void* stream);

// token_ids[i] = previous[-1 - token_ids[i]] wherever token_ids[i] is negative; 0 where that row has none.
struct ReplacePlaceholdersArgs {
  int32_t* token_ids;         // [num_tokens]
  const int32_t* previous;    // [num_previous]
  int64_t num_tokens;
  int64_t num_previous;
};
void replace_placeholders(const ReplacePlaceholdersArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

// Choosing the next tokens of beams on a GPU: totals of all continuations, and the best of a row without a sort of it.
#pragma once

#include <cstdint>

namespace xllm::kernels::cuda {

inline constexpr int kTopKMax = 1024;

struct BeamScoresArgs {
  const void* logits;               // [num_rows, vocab_size], bfloat16 or float32, dense
  const float* scores = nullptr;    // [num_rows]: of the paths so far; null with max_children 0
  const int64_t* nodes = nullptr;   // [num_rows]: where they stand in the tree, -1 for the dead
  const int64_t* starts = nullptr;  // children of node n are entries [starts[n], starts[n + 1])
  const int64_t* tokens = nullptr;  // of the entries
  float* normaliser;                // [num_rows]: logarithm of the sum of exp(logits); not written for the dead
  float* totals = nullptr;          // [num_rows, max_children]: score and log-probability of each child, minus infinity where there is none
  int64_t num_rows;
  int64_t vocab_size;               // a multiple of 8
  int64_t max_children = 0;         // 0 leaves totals out
  bool is_float;
};

void beam_scores(const BeamScoresArgs& args, void* stream);

struct TopKArgs {
  const void* values;         // [num_rows, size], bfloat16 or float32, dense
  int64_t* places;            // [num_rows, k]
  float* best;                // [num_rows, k], the largest first, among equals the first place
  int64_t num_rows;
  int64_t size;               // at least k, less than 2^31
  int k;                      // 1 to kTopKMax
  bool is_float;
};

void top_k(const TopKArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

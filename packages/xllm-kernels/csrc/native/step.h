// The layers of a decoder over the rows of one step. Knows nothing of how a step was checked or cut.
#pragma once

#include <cstdint>
#include <vector>

#include "kv_cache.h"
#include "memory.h"
#include "product.h"
#include "weights.h"
#include "xllm/kernels/native/beams.h"
#include "xllm/kernels/native/decoder.h"

namespace xllm::kernels::native {

// Rows of activations, kept from step to step.
struct StepMemory {
  StageMemory stage;
  ScreenMemory screen;
  Buffer hidden;    // [T, hidden_size], the residual stream
  Buffer qkv;       // [T, query | key | value]
  Buffer attended;  // [T, query size]
  Buffer inner;     // [T, intermediate_size]
  Buffer selected;  // [R, hidden_size]
};

// What a step of beams adds to a step: rows see their whole prompt, and their own keys lie in `cache`.
struct BeamStep {
  BeamCache& cache;
  const int32_t* ancestors;
  int64_t ancestors_stride;
  int64_t round;
};

class StepRunner {
 public:
  StepRunner(const DecoderShape& shape, const Weights& weights, const float* cos_sin_cache, const KVCache& cache,
             StepMemory& memory, const BeamStep* beams = nullptr)
      : shape_(shape), weights_(weights), cos_sin_cache_(cos_sin_cache), cache_(cache), memory_(memory), beams_(beams) {}

  // Runs all layers; the hidden rows [num_tokens, hidden_size] before the last norm stay in memory.
  void run(const StepArgs& args);
  // Of hidden rows `rows`: themselves behind the last norm to out_rows[i][:], logits to out_rows[i][:], or the first most
  // probable token as in Decoder::greedy.
  void hidden(const std::vector<int64_t>& rows, float* const* out_rows);
  void logits(const std::vector<int64_t>& rows, float* const* out_rows);
  void greedy(const std::vector<int64_t>& rows, int32_t* token_ids);

 private:
  void embed(const StepArgs& args);
  void add_level(const StepArgs& args, int64_t level);
  void rotate_and_store(const StepArgs& args, int64_t layer);
  void rotate_and_store_rows(const StepArgs& args, int64_t layer, int64_t begin, int64_t end);
  void attend(const StepArgs& args, int64_t layer);
  StageInput normed_hidden(int64_t num_rows, const float* norm_weight) const;
  StageInput select(const std::vector<int64_t>& rows);

  int64_t query_size() const { return shape_.num_heads * shape_.head_dim; }
  int64_t kv_size() const { return shape_.num_kv_heads * shape_.head_dim; }
  int64_t qkv_size() const { return query_size() + 2 * kv_size(); }

  const DecoderShape& shape_;
  const Weights& weights_;
  const float* cos_sin_cache_;
  const KVCache& cache_;
  StepMemory& memory_;
  const BeamStep* beams_;
  float* hidden_ = nullptr;
  float* qkv_ = nullptr;
  float* attended_ = nullptr;
  float* inner_ = nullptr;
};

}  // namespace xllm::kernels::native

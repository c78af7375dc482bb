#include "step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernel_table.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {

namespace {

// Numbers of small work on one row that are worth handing to another thread.
constexpr int64_t kElementsPerPiece = 8192;

int64_t rows_per_piece(int64_t row_elements) { return std::max<int64_t>(kElementsPerPiece / row_elements, 1); }

// parallel_for with a lambda.
template <class Body>
void for_pieces(int64_t num_items, int64_t grain, Body&& body) {
  cpu::parallel_for(
      num_items, grain,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); }, &body);
}

void norm_heads(float* heads, const float* weight, int64_t num_heads, int64_t head_dim, float eps) {
  cpu::kernels().rms_norm({.x = heads,
                           .weight = weight,
                           .out = heads,
                           .num_rows = num_heads,
                           .hidden_size = head_dim,
                           .x_row_stride = head_dim,
                           .out_row_stride = head_dim,
                           .eps = eps,
                           .dtype = DType::float32},
                          0, num_heads);
}

}  // namespace

void StepRunner::run(const StepArgs& args) {
  const int64_t num_rows = args.num_tokens;
  hidden_ = memory_.hidden.at_least<float>(num_rows * shape_.hidden_size);
  qkv_ = memory_.qkv.at_least<float>(num_rows * qkv_size());
  attended_ = memory_.attended.at_least<float>(num_rows * query_size());
  inner_ = memory_.inner.at_least<float>(num_rows * shape_.intermediate_size);
  embed(args);
  for (int64_t layer = 0; layer < shape_.num_layers; ++layer) {
    const LayerWeights& w = weights_.layer(layer);
    announce(w.output.matrix);
    multiply_store(normed_hidden(num_rows, w.input_norm), {&w.query.matrix, &w.key.matrix, &w.value.matrix}, qkv_,
                   qkv_size(), memory_.stage);
    rotate_and_store(args, layer);
    attend(args, layer);
    announce(w.gate.matrix);
    multiply_add({attended_, query_size(), num_rows, query_size()}, w.output.matrix, hidden_, shape_.hidden_size,
                 memory_.stage);
    announce(w.down.matrix);
    multiply_gate(normed_hidden(num_rows, w.post_attention_norm), w.gate.matrix, w.up.matrix, inner_,
                  shape_.intermediate_size, memory_.stage);
    announce(layer + 1 < shape_.num_layers ? weights_.layer(layer + 1).query.matrix : weights_.head());
    multiply_add({inner_, shape_.intermediate_size, num_rows, shape_.intermediate_size}, w.down.matrix, hidden_,
                 shape_.hidden_size, memory_.stage);
    if (layer + 1 < args.num_levels) add_level(args, layer + 1);
  }
}

void StepRunner::embed(const StepArgs& args) {
  const int64_t size = shape_.hidden_size;
  for_pieces(args.num_tokens, rows_per_piece(8 * size), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (args.embedded_rows != nullptr && args.embedded_rows[t] >= 0)
        std::memcpy(hidden_ + t * size, args.embedded + args.embedded_rows[t] * args.num_levels * size,
                    static_cast<size_t>(size) * sizeof(float));
      else
        unpack_row(weights_.embedding(), args.token_ids[t], hidden_ + t * size);
    }
  });
}

void StepRunner::add_level(const StepArgs& args, int64_t level) {
  const int64_t size = shape_.hidden_size;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    if (args.embedded_rows[t] < 0) continue;
    const float* given = args.embedded + (args.embedded_rows[t] * args.num_levels + level) * size;
    for (int64_t i = 0; i < size; ++i) hidden_[t * size + i] += given[i];
  }
}

void StepRunner::rotate_and_store(const StepArgs& args, int64_t layer) {
  for_pieces(args.num_tokens, rows_per_piece(qkv_size()),
             [&](int64_t begin, int64_t end) { rotate_and_store_rows(args, layer, begin, end); });
}

void StepRunner::rotate_and_store_rows(const StepArgs& args, int64_t layer, int64_t begin, int64_t end) {
  const LayerWeights& w = weights_.layer(layer);
  if (shape_.has_qk_norm)
    for (int64_t t = begin; t < end; ++t) {
      float* row = qkv_ + t * qkv_size();
      norm_heads(row, w.query_norm, shape_.num_heads, shape_.head_dim, shape_.rms_norm_eps);
      norm_heads(row + query_size(), w.key_norm, shape_.num_kv_heads, shape_.head_dim, shape_.rms_norm_eps);
    }
  cpu::kernels().rotary_embedding({.positions = args.positions,
                                   .positions_are_int64 = false,
                                   .query = qkv_,
                                   .key = qkv_ + query_size(),
                                   .cos_sin_cache = args.angles != nullptr ? args.angles : cos_sin_cache_,
                                   .num_tokens = args.num_tokens,
                                   .num_query_heads = shape_.num_heads,
                                   .num_kv_heads = shape_.num_kv_heads,
                                   .head_dim = shape_.head_dim,
                                   .rotary_dim = shape_.rotary_dim,
                                   .query_row_stride = qkv_size(),
                                   .key_row_stride = qkv_size(),
                                   .dtype = DType::float32},
                                  begin, end);
  if (beams_ != nullptr) {
    for (int64_t t = begin; t < end; ++t) {
      const float* key = qkv_ + t * qkv_size() + query_size();
      beams_->cache.store(layer, beams_->round, t, key, key + kv_size());
    }
    return;
  }
  for (int64_t t = begin; t < end; ++t) {
    if (args.slot_mapping[t] < 0) continue;
    const float* key = qkv_ + t * qkv_size() + query_size();
    cache_.store(cache_.keys(layer), args.slot_mapping[t], key);
    cache_.store(cache_.values(layer), args.slot_mapping[t], key + kv_size());
  }
}

void StepRunner::attend(const StepArgs& args, int64_t layer) {
  const int64_t block_elements = cache_.block_size() * kv_size();
  PagedAttentionArgs attention{.query = qkv_,
                               .key_cache = cache_.keys(layer),
                               .value_cache = cache_.values(layer),
                               .block_tables = args.block_tables,
                               .query_start = args.query_start,
                               .seq_lens = args.seq_lens,
                               .out = attended_,
                               .num_seqs = args.num_seqs,
                               .num_query_heads = shape_.num_heads,
                               .num_kv_heads = shape_.num_kv_heads,
                               .head_dim = shape_.head_dim,
                               .block_size = cache_.block_size(),
                               .block_table_stride = args.block_table_stride,
                               .query_row_stride = qkv_size(),
                               .out_row_stride = query_size(),
                               .key_block_stride = block_elements,
                               .value_block_stride = block_elements,
                               .cache_token_stride = shape_.head_dim,
                               .cache_head_stride = cache_.block_size() * shape_.head_dim,
                               .sliding_window = shape_.sliding_windows[static_cast<size_t>(layer)],
                               .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                               .dtype = DType::float32,
                               .cache_dtype = cache_.dtype()};
  if (beams_ == nullptr) return cpu::paged_attention(attention);
  attention.rows_see_all = true;
  cpu::beam_attention({.prompt = attention,
                       .beam_key = beams_->cache.keys(layer),
                       .beam_value = beams_->cache.values(layer),
                       .ancestors = beams_->ancestors,
                       .num_rounds = beams_->round + 1,
                       .beam_round_stride = beams_->cache.round_size(),
                       .ancestors_stride = beams_->ancestors_stride});
}

StageInput StepRunner::normed_hidden(int64_t num_rows, const float* norm_weight) const {
  return {hidden_, shape_.hidden_size, num_rows, shape_.hidden_size, norm_weight, shape_.rms_norm_eps};
}

StageInput StepRunner::select(const std::vector<int64_t>& rows) {
  const int64_t size = shape_.hidden_size, num_rows = static_cast<int64_t>(rows.size());
  float* selected = memory_.selected.at_least<float>(num_rows * size);
  for (int64_t i = 0; i < num_rows; ++i)
    std::memcpy(selected + i * size, hidden_ + rows[static_cast<size_t>(i)] * size,
                static_cast<size_t>(size) * sizeof(float));
  return {selected, size, num_rows, size, weights_.final_norm(), shape_.rms_norm_eps};
}

void StepRunner::hidden(const std::vector<int64_t>& rows, float* const* out_rows) {
  for (size_t i = 0; i < rows.size(); ++i)
    cpu::kernels().rms_norm({.x = hidden_ + rows[i] * shape_.hidden_size,
                             .weight = weights_.final_norm(),
                             .out = out_rows[i],
                             .num_rows = 1,
                             .hidden_size = shape_.hidden_size,
                             .x_row_stride = shape_.hidden_size,
                             .out_row_stride = shape_.hidden_size,
                             .eps = shape_.rms_norm_eps,
                             .dtype = DType::float32},
                            0, 1);
}

void StepRunner::logits(const std::vector<int64_t>& rows, float* const* out_rows) {
  multiply_store_rows(select(rows), weights_.head(), out_rows, memory_.stage);
}

void StepRunner::greedy(const std::vector<int64_t>& rows, int32_t* token_ids) {
  const StageInput input = select(rows);
  if (!screened_argmax(input, weights_.head(), weights_.screen(), token_ids, memory_.stage, memory_.screen))
    multiply_argmax(input, weights_.head(), token_ids, memory_.stage);
}

}  // namespace xllm::kernels::native

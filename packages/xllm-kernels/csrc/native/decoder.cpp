// Checks a step, cuts it into pieces of bounded memory and hands them to StepRunner.
#include "xllm/kernels/native/decoder.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "beam_check.h"
#include "kv_cache.h"
#include "step.h"
#include "step_check.h"
#include "weights.h"
#include "xllm/kernels/native/beams.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {
namespace {

// Rows that pass through all layers together: enough to reuse every weight, few enough that activations stay small.
constexpr int64_t kRowsPerPiece = 512;

// Tokens [begin, end) of a step as a step of their own. Valid since rows do not depend on how a step is cut.
class Piece {
 public:
  Piece(const StepArgs& whole, int64_t begin, int64_t end) : args_(whole) {
    int64_t first = 0;
    while (whole.query_start[first + 1] <= begin) ++first;
    query_start_.push_back(0);
    for (int64_t s = first; s < whole.num_seqs && whole.query_start[s] < end; ++s) {
      const int64_t stop = std::min<int64_t>(whole.query_start[s + 1], end);
      query_start_.push_back(static_cast<int32_t>(stop - begin));
      seq_lens_.push_back(static_cast<int32_t>(whole.seq_lens[s] - (whole.query_start[s + 1] - stop)));
    }
    for (int64_t i = 0; i < whole.num_rows; ++i)
      if (whole.rows[i] >= begin && whole.rows[i] < end) {
        rows_.push_back(whole.rows[i] - begin);
        outputs_.push_back(i);
      }
    args_.token_ids += begin;
    args_.positions += begin;
    args_.slot_mapping += begin;
    if (args_.embedded_rows != nullptr) args_.embedded_rows += begin;
    args_.block_tables += first * whole.block_table_stride;
    args_.query_start = query_start_.data();
    args_.seq_lens = seq_lens_.data();
    args_.num_tokens = end - begin;
    args_.num_seqs = static_cast<int64_t>(seq_lens_.size());
  }

  const StepArgs& args() const { return args_; }
  const std::vector<int64_t>& rows() const { return rows_; }        // counted from the piece's first token
  const std::vector<int64_t>& outputs() const { return outputs_; }  // which of the step's rows they are

 private:
  StepArgs args_;
  std::vector<int32_t> query_start_, seq_lens_;
  std::vector<int64_t> rows_, outputs_;
};

// Where row `rows[i]` of a matrix with `size` columns begins.
std::vector<float*> rows_of(float* matrix, const std::vector<int64_t>& rows, int64_t size) {
  std::vector<float*> found;
  found.reserve(rows.size());
  for (const int64_t row : rows) found.push_back(matrix + row * size);
  return found;
}

DecoderShape checked(DecoderShape shape, int64_t num_positions) {
  check_shape(shape, num_positions);
  return shape;
}

}  // namespace

struct Decoder::State {
  State(DecoderShape s, const float* cos_sin_cache, int64_t positions, WeightFormat format)
      : shape(checked(std::move(s), positions)),
        num_positions(positions),
        cos_sin(cos_sin_cache, cos_sin_cache + positions * shape.rotary_dim),
        weights(shape, format) {}

  // Calls finish_piece(runner, piece) after the layers of each piece that has wanted rows.
  template <class FinishPiece>
  void run(const StepArgs& args, FinishPiece&& finish_piece) {
    if (!weights.is_finished()) throw std::invalid_argument("finish or load_packed must come before a step");
    if (cache.num_blocks() == 0) throw std::invalid_argument("allocate_kv_cache must come before a step");
    check_step(args, shape, cache, num_positions);
    const cpu::Burst burst;
    StepRunner runner(shape, weights, cos_sin.data(), cache, memory);
    for (int64_t begin = 0; begin < args.num_tokens; begin += kRowsPerPiece) {
      const Piece piece(args, begin, std::min(begin + kRowsPerPiece, args.num_tokens));
      runner.run(piece.args());
      if (!piece.rows().empty()) finish_piece(runner, piece);
    }
  }

  const DecoderShape shape;
  const int64_t num_positions;
  const std::vector<float> cos_sin;
  Weights weights;
  KVCache cache;
  StepMemory memory;
  mutable std::mutex mutex;  // held during every call
};

Decoder::Decoder(DecoderShape shape, const float* cos_sin_cache, int64_t num_positions, WeightFormat format)
    : state_(std::make_unique<State>(std::move(shape), cos_sin_cache, num_positions, format)) {}

Decoder::~Decoder() = default;

const DecoderShape& Decoder::shape() const { return state_->shape; }

void Decoder::set_weight(const std::string& name, const uint8_t* data, size_t num_bytes, const std::string& kind,
                         const std::vector<int64_t>& shape, int64_t permuted_heads) {
  const std::lock_guard lock(state_->mutex);
  state_->weights.set(name, data, num_bytes, kind, shape, permuted_heads);
}

void Decoder::finish() {
  const std::lock_guard lock(state_->mutex);
  state_->weights.finish();
}

int64_t Decoder::num_weight_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->weights.num_bytes();
}

void Decoder::save_packed(const std::string& path, const std::string& key) const {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->weights.is_finished()) throw std::invalid_argument("finish must come before save_packed");
  }
  state_->weights.save(path, key);  // without the lock: finished weights never change
}

bool Decoder::load_packed(const std::string& path, const std::string& key) {
  const std::lock_guard lock(state_->mutex);
  return state_->weights.load(path, key);
}

void Decoder::allocate_kv_cache(int64_t num_blocks, int64_t block_size, CacheType type) {
  const std::lock_guard lock(state_->mutex);
  if (num_blocks < 1 || num_blocks > INT32_MAX) throw std::invalid_argument("num_blocks must be in [1, 2^31)");
  if (block_size < 1 || block_size > INT32_MAX) throw std::invalid_argument("block_size must be in [1, 2^31)");
  const DType dtype = type == CacheType::bfloat16 ? DType::bfloat16 : DType::float32;
  state_->cache = KVCache();  // first, so that both never exist at once
  state_->cache = KVCache(state_->shape.num_layers, num_blocks, block_size, state_->shape.num_kv_heads,
                          state_->shape.head_dim, dtype);
}

int64_t Decoder::num_block_bytes() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->cache.num_blocks() == 0) throw std::invalid_argument("allocate_kv_cache must come before num_block_bytes");
  return state_->cache.block_bytes();
}

void Decoder::read_blocks(const int32_t* blocks, int64_t num_blocks, uint8_t* out) const {
  const std::lock_guard lock(state_->mutex);
  check_blocks(blocks, num_blocks, state_->cache);
  for (int64_t i = 0; i < num_blocks; ++i) state_->cache.read_block(blocks[i], out + i * state_->cache.block_bytes());
}

void Decoder::write_blocks(const int32_t* blocks, int64_t num_blocks, const uint8_t* bytes) {
  const std::lock_guard lock(state_->mutex);
  check_blocks(blocks, num_blocks, state_->cache);
  for (int64_t i = 0; i < num_blocks; ++i) state_->cache.write_block(blocks[i], bytes + i * state_->cache.block_bytes());
}

void Decoder::copy_blocks(const int32_t* pairs, int64_t num_pairs) {
  const std::lock_guard lock(state_->mutex);
  check_blocks(pairs, 2 * num_pairs, state_->cache);
  for (int64_t i = 0; i < num_pairs; ++i)
    if (pairs[2 * i] != pairs[2 * i + 1]) state_->cache.copy_block(pairs[2 * i], pairs[2 * i + 1]);
}

void Decoder::forward(const StepArgs& args, float* logits) {
  const std::lock_guard lock(state_->mutex);
  const int64_t vocab_size = state_->shape.vocab_size;
  state_->run(args, [&](StepRunner& runner, const Piece& piece) {
    runner.logits(piece.rows(), rows_of(logits, piece.outputs(), vocab_size).data());
  });
}

void Decoder::hidden(const StepArgs& args, float* hidden) {
  const std::lock_guard lock(state_->mutex);
  const int64_t hidden_size = state_->shape.hidden_size;
  state_->run(args, [&](StepRunner& runner, const Piece& piece) {
    runner.hidden(piece.rows(), rows_of(hidden, piece.outputs(), hidden_size).data());
  });
}

void Decoder::logits(const float* hidden, int64_t num_rows, float* logits) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->weights.is_finished()) throw std::invalid_argument("finish or load_packed must come before logits");
  const auto [vocab_size, hidden_size] = std::pair(state_->shape.vocab_size, state_->shape.hidden_size);
  std::vector<int64_t> rows(static_cast<size_t>(num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  multiply_store_rows({hidden, hidden_size, num_rows, hidden_size}, state_->weights.head(),
                      rows_of(logits, rows, vocab_size).data(), state_->memory.stage);
}

void Decoder::forward_beams(const BeamStepArgs& args, BeamCache& beams, float* logits) {
  const std::lock_guard lock(state_->mutex);
  State& state = *state_;
  if (!state.weights.is_finished() || state.cache.num_blocks() == 0)
    throw std::invalid_argument("weights and allocate_kv_cache must come before a step");
  check_beam_step(args, state.shape, state.cache, beams, state.num_positions);
  const std::vector<int64_t> not_paged(static_cast<size_t>(args.num_rows), -1);
  const BeamStep step{beams, args.ancestors, args.ancestors_stride, args.round};
  StepRunner runner(state.shape, state.weights, state.cos_sin.data(), state.cache, state.memory, &step);
  runner.run({.token_ids = args.token_ids,
              .positions = args.positions,
              .slot_mapping = not_paged.data(),
              .query_start = args.query_start,
              .seq_lens = args.prompt_lens,
              .block_tables = args.block_tables,
              .rows = nullptr,
              .num_tokens = args.num_rows,
              .num_seqs = args.num_requests,
              .num_columns = args.num_columns,
              .block_table_stride = args.block_table_stride,
              .num_rows = 0});
  std::vector<int64_t> rows(static_cast<size_t>(args.num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  runner.logits(rows, rows_of(logits, rows, state.shape.vocab_size).data());
}

void Decoder::greedy(const StepArgs& args, int32_t* token_ids) {
  const std::lock_guard lock(state_->mutex);
  std::vector<int32_t> chosen;
  state_->run(args, [&](StepRunner& runner, const Piece& piece) {
    chosen.resize(piece.rows().size());
    runner.greedy(piece.rows(), chosen.data());
    for (size_t i = 0; i < chosen.size(); ++i) token_ids[piece.outputs()[i]] = chosen[i];
  });
}

}  // namespace xllm::kernels::native

// A whole decoder of the Llama family (Llama, Qwen2, Qwen3 and what has their shape) on the CPU: one call a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace xllm::kernels::native {

struct DecoderShape {
  int64_t vocab_size;
  int64_t hidden_size;
  int64_t intermediate_size;
  int64_t num_layers;
  int64_t num_heads;
  int64_t num_kv_heads;  // divides num_heads
  int64_t head_dim;      // even
  int64_t rotary_dim;    // even, <= head_dim
  float rms_norm_eps;
  bool has_tied_embeddings;
  bool has_qkv_bias;
  bool has_output_bias;
  bool has_mlp_bias;
  bool has_qk_norm;
  std::vector<int64_t> sliding_windows;  // [num_layers], 0: all keys
};

// What packed matrices hold: `as_stored` keeps every format of a file (K-quants with their scales multiplied out and
// rounded to float16); int8 and int4 quantise in symmetric groups of 32, but leave embeddings and head at int8.
enum class WeightFormat { as_stored, float32, bfloat16, int8, int4 };

enum class CacheType { float32, bfloat16 };

class BeamCache;       // see beams.h
struct BeamStepArgs;

// One step: the new tokens of num_seqs sequences, one sequence after the other.
struct StepArgs {
  const int32_t* token_ids;     // [num_tokens]
  const int32_t* positions;     // [num_tokens]
  const int64_t* slot_mapping;  // [num_tokens] block * block_size + offset, or negative: not stored
  const int32_t* query_start;   // [num_seqs + 1] from 0 to num_tokens
  const int32_t* seq_lens;      // [num_seqs] tokens in the cache, those of this step included
  const int32_t* block_tables;  // [num_seqs, num_columns], rows block_table_stride entries apart
  const int64_t* rows;          // [num_rows] tokens whose logits are wanted
  int64_t num_tokens;
  int64_t num_seqs;
  int64_t num_columns;
  int64_t block_table_stride;
  int64_t num_rows;
  // Tokens whose embeddings are given, as those of images are: embedded [num_embedded, num_levels, hidden_size], the first level
  // in place of a token's own embedding, level i added after layer i - 1; embedded_rows [num_tokens], negative for other tokens.
  const float* embedded = nullptr;
  const int32_t* embedded_rows = nullptr;
  int64_t num_embedded = 0;
  int64_t num_levels = 0;
  // Where there are any, positions are rows of this table [num_angles, rotary_dim] instead of the decoder's.
  const float* angles = nullptr;
  int64_t num_angles = 0;
};

// Not for use by two threads at once, except that calls wait for each other. Everything that is not as documented
// throws std::invalid_argument naming what it is, before anything is computed or changed.
//
// Batch invariance: the logits of a token depend on the token and on what its sequence holds before it; not on the
// other rows of a step, on how a prompt was cut into steps, on blocks or on the number of threads.
class Decoder {
 public:
  // cos_sin_cache [num_positions, rotary_dim]: cosines, then sines; copied.
  Decoder(DecoderShape shape, const float* cos_sin_cache, int64_t num_positions, WeightFormat format);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Repacks one tensor: name as in Hugging Face checkpoints, kind a type of GGUF or "F32", "F16", "BF16", shape as in
  // the checkpoint. permuted_heads > 0: rows are in llama.cpp's order for interleaved rotary embedding of that many
  // heads, and go back to the half-split order. The head's tensor is ignored where it is tied.
  void set_weight(const std::string& name, const uint8_t* data, size_t num_bytes, const std::string& kind,
                  const std::vector<int64_t>& shape, int64_t permuted_heads);
  // Ends loading; throws naming the tensors that are missing.
  void finish();
  // Of the packed weights, without the small copy of the head that greedy steps look at first.
  int64_t num_weight_bytes() const;

  // Instead of set_weight and finish. Steps go on while weights are saved. `key` names what the packed weights were made from; load returns false where the
  // file is missing, was written for another key, shape or version, or is cut.
  void save_packed(const std::string& path, const std::string& key) const;
  bool load_packed(const std::string& path, const std::string& key);

  // Replaces the cache: num_blocks blocks of block_size tokens in every layer, zero-filled when first touched.
  void allocate_kv_cache(int64_t num_blocks, int64_t block_size, CacheType type);

  // Whole blocks of the cache, all layers of each: `num_block_bytes` bytes, in an order of the decoder's own.
  int64_t num_block_bytes() const;
  void read_blocks(const int32_t* blocks, int64_t num_blocks, uint8_t* out) const;
  void write_blocks(const int32_t* blocks, int64_t num_blocks, const uint8_t* bytes);
  // (from, to) of `pairs`, one after the other.
  void copy_blocks(const int32_t* pairs, int64_t num_pairs);

  // logits [num_rows, vocab_size] of args.rows.
  void forward(const StepArgs& args, float* logits);
  // The first most probable token of each of args.rows; -1 where a logit is NaN or the largest is not finite.
  void greedy(const StepArgs& args, int32_t* token_ids);
  // The hidden states [num_rows, hidden_size] of args.rows behind the last norm, and the logits [num_rows, vocab_size]
  // of such: one after the other they are forward.
  void hidden(const StepArgs& args, float* hidden);
  void logits(const float* hidden, int64_t num_rows, float* logits);

  // logits [num_rows, vocab_size] of one token of every beam; its keys and values stay in `beams`.
  void forward_beams(const BeamStepArgs& args, BeamCache& beams, float* logits);

  const DecoderShape& shape() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace xllm::kernels::native

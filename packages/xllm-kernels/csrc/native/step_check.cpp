#include "step_check.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace xllm::kernels::native {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;  // of any dimension: products of three stay far within 64 bits

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

std::string entry(const char* name, int64_t index, int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

template <class T>
void check_range(const char* name, const T* values, int64_t count, int64_t end, const char* what) {
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= end)
      fail(entry(name, i, values[i]) + ", outside the " + std::to_string(end) + " " + what);
}

void check_sequence(const StepArgs& args, int64_t s, int64_t window, const KVCache& cache) {
  const int64_t num_rows = static_cast<int64_t>(args.query_start[s + 1]) - args.query_start[s];
  if (num_rows < 0) fail(entry("query_start", s + 1, args.query_start[s + 1]) + ", less than the entry before it");
  if (args.seq_lens[s] < num_rows)
    fail(entry("seq_lens", s, args.seq_lens[s]) + ", less than the sequence's " + std::to_string(num_rows) + " tokens");
  if (num_rows == 0) return;
  const int64_t block_size = cache.block_size();
  const int64_t end_block = (args.seq_lens[s] + block_size - 1) / block_size;
  if (end_block > args.num_columns)
    fail(entry("seq_lens", s, args.seq_lens[s]) + ", more than the " + std::to_string(args.num_columns) +
         " columns of block_tables hold");
  const int64_t first_position = args.seq_lens[s] - num_rows;
  const int64_t first_key = window > 0 ? std::max<int64_t>(first_position + 1 - window, 0) : 0;
  const int32_t* table = args.block_tables + s * args.block_table_stride;
  for (int64_t i = first_key / block_size; i < end_block; ++i)
    if (table[i] < 0 || table[i] >= cache.num_blocks())
      fail("block_tables[" + std::to_string(s) + ", " + std::to_string(i) + "] is " + std::to_string(table[i]) +
           ", outside the cache's " + std::to_string(cache.num_blocks()) + " blocks");
}

}  // namespace

void check_shape(const DecoderShape& shape, int64_t num_positions) {
  const auto check = [](const char* name, int64_t value, int64_t least) {
    if (value < least || value > kMaxSize)
      fail(std::string(name) + " is " + std::to_string(value) + ", outside " + std::to_string(least) + " to " +
           std::to_string(kMaxSize));
  };
  check("vocab_size", shape.vocab_size, 1);
  check("hidden_size", shape.hidden_size, 1);
  check("intermediate_size", shape.intermediate_size, 1);
  check("num_layers", shape.num_layers, 0);
  check("num_heads", shape.num_heads, 1);
  check("num_kv_heads", shape.num_kv_heads, 1);
  check("head_dim", shape.head_dim, 2);
  check("rotary_dim", shape.rotary_dim, 0);
  check("cos_sin_cache's number of rows", num_positions, 1);
  if (shape.head_dim % 2 != 0 || shape.head_dim > 1024) fail("head_dim must be even and at most 1024");
  if (shape.rotary_dim % 2 != 0 || shape.rotary_dim > shape.head_dim)
    fail("rotary_dim must be even and at most head_dim");
  if (shape.num_heads % shape.num_kv_heads != 0) fail("num_heads must be a multiple of num_kv_heads");
  if (shape.num_heads * shape.head_dim > kMaxSize) fail("num_heads x head_dim is too large");
  if (!(shape.rms_norm_eps >= 0.0f)) fail("rms_norm_eps must not be negative");
  if (static_cast<int64_t>(shape.sliding_windows.size()) != shape.num_layers)
    fail("sliding_windows has " + std::to_string(shape.sliding_windows.size()) + " entries, expected one for each of " +
         std::to_string(shape.num_layers) + " layers");
  for (const int64_t window : shape.sliding_windows)
    if (window < 0) fail("sliding_windows has a negative entry");
}

void check_blocks(const int32_t* blocks, int64_t num_blocks, const KVCache& cache) {
  check_range("blocks", blocks, num_blocks, cache.num_blocks(), "blocks of the cache");
}

void check_step(const StepArgs& args, const DecoderShape& shape, const KVCache& cache, int64_t num_positions) {
  check_range("token_ids", args.token_ids, args.num_tokens, shape.vocab_size, "tokens of the vocabulary");
  if (args.angles != nullptr)
    check_range("positions", args.positions, args.num_tokens, args.num_angles, "rows of angles");
  else
    check_range("positions", args.positions, args.num_tokens, num_positions, "rows of cos_sin_cache");
  for (int64_t t = 0; args.embedded_rows != nullptr && t < args.num_tokens; ++t)
    if (args.embedded_rows[t] >= args.num_embedded)
      fail(entry("embedded_rows", t, args.embedded_rows[t]) + ", outside the " + std::to_string(args.num_embedded) +
           " rows of embedded");
  check_range("rows", args.rows, args.num_rows, args.num_tokens, "tokens of the step");
  const int64_t num_slots = cache.num_blocks() * cache.block_size();
  for (int64_t t = 0; t < args.num_tokens; ++t)
    if (args.slot_mapping[t] >= num_slots)
      fail(entry("slot_mapping", t, args.slot_mapping[t]) + ", outside the cache's " + std::to_string(num_slots) +
           " slots");
  if (args.query_start[0] != 0) fail("query_start[0] must be 0");
  const auto widest = [&shape]() {  // 0 stands for all keys
    int64_t window = 1;
    for (const int64_t w : shape.sliding_windows) window = w == 0 ? INT64_MAX : std::max(window, w);
    return window;
  };
  const int64_t window = widest();
  for (int64_t s = 0; s < args.num_seqs; ++s) check_sequence(args, s, window == INT64_MAX ? 0 : window, cache);
  if (args.query_start[args.num_seqs] != args.num_tokens)
    fail("query_start ends at " + std::to_string(args.query_start[args.num_seqs]) + ", but there are " +
         std::to_string(args.num_tokens) + " token_ids");
}

}  // namespace xllm::kernels::native

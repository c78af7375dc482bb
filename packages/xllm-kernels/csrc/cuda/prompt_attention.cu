#include <algorithm>
#include <stdexcept>

#include "launch.h"
#include "prompt_attention.cuh"
#include "xllm/kernels/cuda/prompt_attention.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kRoundsASequence = 4;  // items of each block from which on one sequence at a time keeps all busy

// Rows of a box: as many keys as lie one after the other, a tile at most.
int box_keys_of(int block_size) {
  int box = kTileKeys;
  while (block_size % box != 0) box /= 2;
  return box;
}

template <class Element, int D, bool CAUSAL>
void start(const PromptAttentionParameters& parameters, void* stream) {
  constexpr int kBytes = PromptAttentionShape<D>::kBytes;
  const auto kernel = prompt_attention_kernel<Element, D, CAUSAL>;
  static const bool allowed = [&] {
    allow_shared_bytes(kernel, kBytes, "prompt_attention");
    return true;
  }();
  static_cast<void>(allowed);
  const auto blocks = static_cast<unsigned>(std::min(parameters.num_items, num_multiprocessors()));
  launch(kernel, "prompt_attention", {dim3(blocks), kPromptThreads, kBytes}, parameters, stream);
}

template <class Element, int D>
void start(const PromptAttentionParameters& parameters, bool is_causal, void* stream) {
  if (is_causal) start<Element, D, true>(parameters, stream);
  else start<Element, D, false>(parameters, stream);
}

PromptAttentionParameters describe_prompts(const PromptAttentionArgs& args) {
  PromptAttentionParameters parameters = {};
  const auto keys_in_boxes_of = [&](int rows) {
    return describe_heads(args.key, args.num_keys, args.num_kv_heads, args.head_dim, args.key_row_stride, rows);
  };
  const auto values_in_boxes_of = [&](int rows) {
    return describe_heads(args.value, args.num_keys, args.num_kv_heads, args.head_dim, args.value_row_stride, rows);
  };
  parameters.queries = describe_heads(args.query, args.num_queries, args.num_heads, args.head_dim, args.query_row_stride, kTileQueries);
  parameters.keys = keys_in_boxes_of(kTileKeys);
  parameters.values = values_in_boxes_of(kTileKeys);
  if (args.block_tables != nullptr) {
    parameters.block_size = args.block_size;
    parameters.box_keys = box_keys_of(args.block_size);
    parameters.block_keys = keys_in_boxes_of(parameters.box_keys);
    parameters.block_values = values_in_boxes_of(parameters.box_keys);
  }
  parameters.query_start = args.query_start;
  parameters.key_start = args.key_start;
  parameters.seq_lens = args.seq_lens;
  parameters.block_tables = args.block_tables;
  parameters.out = args.out;
  parameters.lse = args.lse;
  parameters.num_queries = static_cast<int>(args.num_queries);
  parameters.num_heads = args.num_heads;
  parameters.group = args.num_heads / args.num_kv_heads;
  parameters.head_dim = args.head_dim;
  parameters.num_sequences = args.num_sequences;
  parameters.num_query_tiles = (args.max_query_len + kTileQueries - 1) / kTileQueries;
  parameters.table_width = args.table_width;
  parameters.splits = args.splits;
  const int items_a_sequence = parameters.num_query_tiles * args.splits * args.num_heads;
  parameters.num_items = items_a_sequence * args.num_sequences;
  parameters.goes_by_sequence = items_a_sequence >= kRoundsASequence * num_multiprocessors();
  parameters.scale = args.scale * 1.44269504f;
  return parameters;
}

}  // namespace

const char* why_no_prompt_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size) {
  if (head_dim != 64 && head_dim != 72 && head_dim != 80 && head_dim != 128)
    return "prompt_attention serves heads of 64, 72, 80 or 128 numbers";
  if (num_kv_heads < 1 || num_heads % num_kv_heads != 0) return "num_kv_heads must divide num_heads";
  if (block_size % 8 != 0) return "prompt_attention needs blocks of a multiple of 8 tokens";
  return nullptr;
}

void prompt_attention(const PromptAttentionArgs& args, void* stream) {
  const int block_size = args.block_tables == nullptr ? 0 : args.block_size;
  if (const char* reason = why_no_prompt_attention(args.num_heads, args.num_kv_heads, args.head_dim, block_size))
    throw std::invalid_argument(reason);
  if (args.splits < 1 || args.splits > kPromptAttentionMaxSplits) throw std::invalid_argument("splits must be 1 to 64");
  if (args.splits > 1 && args.lse == nullptr) throw std::invalid_argument("splits need lse");
  if (args.block_tables == nullptr && args.key_start == nullptr)
    throw std::invalid_argument("prompt_attention needs key_start or block_tables");
  if (args.num_sequences == 0 || args.num_queries == 0 || args.max_query_len == 0) return;
  const PromptAttentionParameters parameters = describe_prompts(args);
  with_element(args.type, [&](auto element) {
    using Element = decltype(element);
    if (args.head_dim == 64) return start<Element, 64>(parameters, args.is_causal, stream);
    if (args.head_dim == 128) return start<Element, 128>(parameters, args.is_causal, stream);
    start<Element, 80>(parameters, args.is_causal, stream);
  });
}

}  // namespace xllm::kernels::cuda

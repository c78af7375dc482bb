// Cuts contexts into slices and launches float8_attention_kernel.
#include "float8_attention.cuh"

#include <algorithm>
#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kWantedBlocks = 264, kMaxSplits = 32;

template <class Element>
void start(const Float8AttentionParameters& parameters, void* stream) {
  const DecodeAttentionArgs& args = parameters.args.attention;
  const LaunchShape shape{dim3(parameters.splits, args.num_kv_heads, args.batch), kFloat8Warps * 32};
  launch(args.head_dim == 128 ? float8_attention_kernel<Element, 128> : float8_attention_kernel<Element, 64>, "float8_attention", shape,
         parameters, stream);
}

}  // namespace

const char* why_no_float8_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size) {
  if (head_dim != 64 && head_dim != 128) return "heads must have 64 or 128 numbers";
  if (num_kv_heads < 1 || num_heads % num_kv_heads != 0) return "the kv heads must divide the heads";
  if (num_heads / num_kv_heads > kFloat8MaxGroup) return "a kv head serves at most 8 heads";
  if (block_size < 16 || block_size % 16 != 0) return "the block size must be a multiple of 16";
  return nullptr;
}

void float8_attention(const Float8AttentionArgs& args, void* stream) {
  const DecodeAttentionArgs& a = args.attention;
  if (const char* reason = why_no_float8_attention(a.num_heads, a.num_kv_heads, a.head_dim, a.block_size)) throw std::invalid_argument(reason);
  if (a.batch < 1 || a.max_seq_len < 0 || a.splits < 0 || a.splits > kMaxSplits)
    throw std::invalid_argument("float8_attention needs a row, a length, and at most 32 splits");
  if ((a.q_row_stride | a.kv_row_stride) % 4 != 0) throw std::invalid_argument("rows of float8_attention must begin at multiples of 8 bytes");
  if (!(args.key_scale > 0) || !(args.value_scale > 0)) throw std::invalid_argument("the scales of a cache must be positive");
  const int pairs = a.batch * a.num_kv_heads, group = a.num_heads / a.num_kv_heads;
  const int tiles = std::max(1, (a.max_seq_len + kFloat8Tile - 1) / kFloat8Tile);
  const int splits = a.splits > 0 ? a.splits : std::min(std::clamp(kWantedBlocks / pairs, 1, kMaxSplits), tiles);
  if (splits > 1 && (a.workspace_size < int64_t{pairs} * splits * group * (a.head_dim + 2) || a.num_counters < pairs))
    throw std::invalid_argument("the workspace of float8_attention is too small");
  const Float8AttentionParameters parameters{args, group, splits};
  with_element(a.type, [&](auto element) { start<decltype(element)>(parameters, stream); });
}

}  // namespace xllm::kernels::cuda

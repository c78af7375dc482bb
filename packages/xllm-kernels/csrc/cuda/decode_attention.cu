// Which configuration of the kernel serves a batch, and its launch.
//
// Measured on an H200 (2026-11-29), us a layer of qwen3-8b (32 heads, 8 kv heads of 128), the first configuration and the second:
//   sequences x tokens   1 x 1024   8 x 1024   32 x 1024   128 x 1024   256 x 1024   32 x 8192
//   one stage                 7.6       20.4        53.7          208          400         386
//   ring                     10.6       15.7        36.5          138          265         265   (4.05 TB/s of KV)
// In whole steps, sequences x tokens: blocks, one stage or ring, of the best and its ms (the next best): 1 x 1024: 64, one stage, 4.25;
// 2 x 1024: 128, one stage, 4.25 (4.30); 4 x 1024: 128, one stage, 4.34 (4.49); 8 x 1024: 256, ring, 4.47 (4.52); 1 x 8192: 128, one stage,
// 4.69 (4.73).
// Whole contexts that all run at once, 32 x 1024, 2 and 3 stages of the ring: qwen3-8b 5.59 and 5.56, qwen3-0.6b 1.71 and 1.61 (2026-11-30);
// 32 x 8192 13.69 and 13.73 (with boxes that bring 128 bytes to L2, 13.32 and 13.38); 8 x 1024 in four parts 4.45 and 4.51, 0.99 and 0.96;
// 16 x 1024 in two parts 4.97 and 4.96, whole 5.19 and 5.14. Parts that met in the shared memory of a cluster, in place of the workspace: one row
// 4.03 for 4.05 and 0.64 for 0.65, but 2 and 8 rows 4.34 for 4.21 and 4.61 for 4.45, as a cluster starts only where all of it fits.
#include "decode_attention.cuh"

#include <algorithm>
#include <stdexcept>

#include "launch.h"
#include "xllm/kernels/cuda/decode_attention.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kMultiprocessors = 132;
constexpr int kMaxSplits = 32;
// Of a block of which no third fits a multiprocessor: where there are two for each, some would get three and some one. qwen3-8b at 8 x 1024 takes
// 4.39 ms for 4.53, at 16 x 1024 5.13 for 5.77.
constexpr int kTwoBlocksBytes = 77 * 1024;

constexpr int kOneStageTile = 128, kRingTile = 64;  // tokens

// One stage has everything in flight at once, for short slices; rings of two and three stages are for long ones.
enum class Configuration : int { one_stage = 1, ring = 2, long_ring = 3 };

struct Choice {
  Configuration configuration;
  int splits;
};

// Few sequences leave multiprocessors idle, so contexts are cut until each has one block: more cost more to merge than they save. There one
// stage has the shorter latency, up to four tiles a slice. With a third as many pairs as multiprocessors, two rings each are best; with
// about as many, whole contexts if kv heads serve many heads (32 x 1024 with 4 kv heads for 32: 23.0 us, in two parts 29.3). Longer rings are
// for whole contexts, if two blocks a multiprocessor are all.
Choice choose(const DecodeAttentionArgs& args) {
  const int pairs = args.batch * args.num_kv_heads;
  const bool is_few = pairs < kMultiprocessors / 3;
  const bool is_light = args.num_heads / args.num_kv_heads <= 4;  // to merge
  const bool is_many = pairs > (is_light ? kMultiprocessors : kMultiprocessors * 3 / 4);
  const int wanted = std::clamp(is_many ? 1 : (is_few ? 1 : 2) * kMultiprocessors / pairs, 1, kMaxSplits);
  const auto tiles_of = [&](int tile) { return std::max(1, (args.max_seq_len + tile - 1) / tile); };
  Configuration best = is_many && pairs <= 2 * kMultiprocessors ? Configuration::long_ring : Configuration::ring;
  if (is_few && tiles_of(kOneStageTile) <= 4 * wanted) best = Configuration::one_stage;
  if (args.configuration > 0) best = static_cast<Configuration>(args.configuration);
  const int tiles = tiles_of(best == Configuration::one_stage ? kOneStageTile : kRingTile);
  return {best, args.splits > 0 ? args.splits : std::min(wanted, tiles)};
}

template <class Element>
AttentionParameters<typename Element::type> describe(const DecodeAttentionArgs& args, int splits) {
  using T = typename Element::type;
  const int64_t slots = args.num_blocks * args.block_size;
  return {
      describe_cache(args.key_cache, slots, args.num_kv_heads, args.head_dim, kBoxTokens),
      describe_cache(args.value_cache, slots, args.num_kv_heads, args.head_dim, kBoxTokens),
      static_cast<const T*>(args.q),
      static_cast<const T*>(args.k),
      static_cast<const T*>(args.v),
      args.q_row_stride,
      args.kv_row_stride,
      static_cast<const T*>(args.q_norm),
      static_cast<const T*>(args.k_norm),
      args.cos_sin,
      static_cast<T*>(args.key_cache),
      static_cast<T*>(args.value_cache),
      args.block_tables,
      args.seq_lens,
      args.positions,
      static_cast<T*>(args.out),
      args.workspace,
      args.counters,
      args.num_kv_heads,
      args.num_heads / args.num_kv_heads,
      args.table_width,
      args.block_size,
      splits,
      args.scale,
      args.eps,
  };
}

template <class Element, int D, int WARPS, int STAGES>
void run(const DecodeAttentionArgs& args, int splits, void* stream) {
  using Shape = DecodeAttentionShape<D, WARPS, STAGES>;
  const auto kernel = decode_attention_kernel<Element, D, WARPS, STAGES>;
  const auto parameters = describe<Element>(args, splits);
  const dim3 grid(splits, args.num_kv_heads, args.batch);
  const int64_t blocks = int64_t{splits} * args.num_kv_heads * args.batch;
  const bool spreads = blocks > kMultiprocessors && blocks <= 2 * kMultiprocessors;
  const int bytes = std::max(Shape::kBytes, spreads ? kTwoBlocksBytes : 0);
  allow_shared_bytes(kernel, std::max(Shape::kBytes, kTwoBlocksBytes), "decode_attention");
  launch(kernel, "decode_attention", {grid, Shape::kBlockThreads, bytes}, parameters, stream);
}

template <class Element, int D>
void start(const DecodeAttentionArgs& args, Choice choice, void* stream) {
  switch (choice.configuration) {
    case Configuration::one_stage: return run<Element, D, kOneStageTile / 16, 1>(args, choice.splits, stream);
    case Configuration::ring: return run<Element, D, kRingTile / 16, 2>(args, choice.splits, stream);
    case Configuration::long_ring: return run<Element, D, kRingTile / 16, 3>(args, choice.splits, stream);
  }
}

}  // namespace

const char* why_no_decode_attention(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t block_size) {
  if (head_dim != 64 && head_dim != 128) return "heads must have 64 or 128 numbers";
  if (num_kv_heads < 1 || num_heads % num_kv_heads != 0) return "the kv heads must divide the heads";
  if (num_heads / num_kv_heads > kMaxGroup) return "a kv head serves at most 8 heads";
  if (block_size < kBoxTokens || block_size % kBoxTokens != 0) return "the block size must be a multiple of 16";
  return nullptr;
}

void decode_attention(const DecodeAttentionArgs& args, void* stream) {
  const char* reason = why_no_decode_attention(args.num_heads, args.num_kv_heads, args.head_dim, args.block_size);
  if (reason != nullptr) throw std::invalid_argument(reason);
  if (args.batch < 1 || args.max_seq_len < 0) throw std::invalid_argument("decode_attention needs a row and a length");
  if (args.configuration < 0 || args.configuration > 3 || args.splits < 0 || args.splits > kMaxSplits)
    throw std::invalid_argument("decode_attention has no such configuration or so many splits");
  if ((args.q_row_stride | args.kv_row_stride) % 4 != 0) throw std::invalid_argument("rows of decode_attention must begin at multiples of 8 bytes");
  const Choice choice = choose(args);
  const int group = args.num_heads / args.num_kv_heads;
  const int64_t pairs = int64_t{args.batch} * args.num_kv_heads;
  if (choice.splits > 1 && (args.workspace_size < pairs * choice.splits * group * (args.head_dim + 2) || args.num_counters < pairs))
    throw std::invalid_argument("the workspace of decode_attention is too small");
  with_element(args.type, [&](auto element) {
    using Element = decltype(element);
    if (args.head_dim == 128) return start<Element, 128>(args, choice, stream);
    start<Element, 64>(args, choice, stream);
  });
}

}  // namespace xllm::kernels::cuda

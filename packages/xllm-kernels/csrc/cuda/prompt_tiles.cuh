// The pieces of work of prompts' attention, and the warp that asks the copy engine for their queries, keys and values. Knows nothing of
// products.
#pragma once

#include "async_copy.cuh"
#include "tensor_map.h"

namespace xllm::kernels::cuda {

constexpr int kTileQueries = 128, kTileKeys = 128, kPromptThreads = 384, kPromptStages = 2;
constexpr int kPlaneBytes = 128 * 128;

struct PromptAttentionParameters {
  CUtensorMap queries;        // boxes of 64 numbers and 128 rows of a head
  CUtensorMap keys;           // the same of keys
  CUtensorMap values;
  CUtensorMap block_keys;     // boxes of 64 numbers and box_keys rows of a head, of a cache alone
  CUtensorMap block_values;
  const int* query_start;
  const int* key_start;
  const int* seq_lens;
  const int* block_tables;
  void* out;
  float* lse;
  int num_queries;
  int num_heads;
  int group;                  // query heads a kv head
  int head_dim;
  int num_sequences;
  int num_query_tiles;        // of the longest sequence
  int table_width;
  int block_size;
  int box_keys;
  int splits;
  bool goes_by_sequence;      // false: the last tiles of all sequences come first, as they are the longest
  int num_items;
  float scale;                // times log2(e)
};

// 128 queries of one head over one part of the keys.
struct PromptItem {
  int sequence, head, split;
  int first_row;              // of the sequence, in query
  int num_rows;               // of the sequence
  int row;                    // first row of these within the sequence
  int length;                 // keys of the sequence
  int begin, end;             // tiles of keys
};

template <int D>
struct PromptAttentionShape {
  static constexpr int kPlanes = (D + 63) / 64;
  static constexpr int kTileBytes = kPlanes * kPlaneBytes;
  static constexpr int kBytes = (1 + 2 * kPromptStages) * kTileBytes + 1024 + 128;
};

// The item of a place in the order: last tiles first, of one sequence after the other, which keeps its keys in the cache of the GPU, or of
// all. False where a sequence has no such tile.
template <bool CAUSAL>
__device__ __forceinline__ bool find_item(const PromptAttentionParameters& args, int place, PromptItem& item) {
  item.head = place % args.num_heads;
  place /= args.num_heads;
  item.split = place % args.splits;
  place /= args.splits;
  const int inner = args.goes_by_sequence ? args.num_query_tiles : args.num_sequences, first = place / inner, second = place % inner;
  item.sequence = args.goes_by_sequence ? first : second;
  item.row = (args.num_query_tiles - 1 - (args.goes_by_sequence ? second : first)) * kTileQueries;
  item.first_row = args.query_start[item.sequence];
  item.num_rows = args.query_start[item.sequence + 1] - item.first_row;
  if (item.row >= item.num_rows) return false;
  item.length = args.seq_lens[item.sequence];
  const int seen = CAUSAL ? min(item.length, item.length - item.num_rows + item.row + kTileQueries) : item.length;
  const int tiles = (seen + kTileKeys - 1) / kTileKeys;
  item.begin = tiles * item.split / args.splits;
  item.end = tiles * (item.split + 1) / args.splits;
  return true;
}

// The place of this block's i-th item: there and back over the blocks, so that who had a long one has a shorter one next.
__device__ __forceinline__ int place_of(int i) {
  const int blocks = gridDim.x, block = blockIdx.x;
  return i * blocks + (i % 2 == 0 ? block : blocks - 1 - block);
}

struct PromptBarriers {
  uint64_t query_full, query_empty, tail;
  uint64_t key_full[kPromptStages], key_empty[kPromptStages], value_full[kPromptStages], value_empty[kPromptStages];
};

// Where a tile of keys lies.
struct TilePlace {
  int slot;       // of the whole tile, or of the box that belongs to this lane
  bool is_whole;  // in one piece
};

// All lanes call it, and get the same `is_whole`.
__device__ __forceinline__ TilePlace place_tile(const PromptAttentionParameters& args, const PromptItem& item, int start, int lane) {
  if (args.block_tables == nullptr) return {args.key_start[item.sequence] + start, true};
  const int box_keys = args.box_keys, boxes = kTileKeys / box_keys, key = start + lane % boxes * box_keys;
  // Boxes past the end repeat the last block; nobody sees what is in them.
  const int known = min(key, (item.length - 1) / box_keys * box_keys);
  const int* table = args.block_tables + static_cast<int64_t>(item.sequence) * args.table_width;
  const int slot = table[known / args.block_size] * args.block_size + known % args.block_size;
  const int first = __shfl_sync(0xffffffffu, slot, 0);
  const bool follows = key != known || slot == first + lane % boxes * box_keys;
  const bool is_whole = __all_sync(0xffffffffu, follows);
  return {is_whole ? first : slot, is_whole};
}

// Asks for one tile of keys or values; all lanes call it.
template <int D>
__device__ __forceinline__ void copy_tile(const PromptAttentionParameters& args, const PromptItem& item, const CUtensorMap* whole,
                                          const CUtensorMap* blocks, uint32_t destination, TilePlace place, uint64_t* barrier, int lane) {
  constexpr int kPlanes = PromptAttentionShape<D>::kPlanes;
  const int kv_head = item.head / args.group;
  if (place.is_whole) {
    if (lane < kPlanes) copy_head_box(destination + lane * kPlaneBytes, whole, lane * 64, place.slot, kv_head, barrier);
    return;
  }
  const int boxes = kTileKeys / args.box_keys, box = lane % boxes;
  for (int plane = lane / boxes; plane < kPlanes; plane += 32 / boxes)
    copy_head_box(destination + plane * kPlaneBytes + box * args.box_keys * 128, blocks, plane * 64, place.slot, kv_head, barrier);
}

template <int D, bool CAUSAL>
__device__ void feed_prompt(const PromptAttentionParameters& args, PromptBarriers& barriers, uint32_t queries, int lane) {
  using Shape = PromptAttentionShape<D>;
  const uint32_t keys = queries + Shape::kTileBytes, values = keys + kPromptStages * Shape::kTileBytes;
  int tile = 0, num_items = 0, num_tails = 0;
  PromptItem item;
  for (int i = 0; i * static_cast<int>(gridDim.x) < args.num_items; ++i) {
    const int place = place_of(i);
    if (place >= args.num_items || !find_item<CAUSAL>(args, place, item) || item.begin == item.end) continue;
    barrier_wait(&barriers.query_empty, (num_items & 1) ^ 1);
    if (lane == 0) {
      barrier_expect(&barriers.query_full, Shape::kTileBytes);
      for (int plane = 0; plane < Shape::kPlanes; ++plane)
        copy_head_box(queries + plane * kPlaneBytes, &args.queries, plane * 64, item.first_row + item.row, item.head, &barriers.query_full);
    }
    ++num_items;
    for (int n = item.end - 1; n >= item.begin; --n, ++tile) {
      const int stage = tile % kPromptStages, parity = (tile / kPromptStages & 1) ^ 1, start = n * kTileKeys;
      const uint32_t at = stage * Shape::kTileBytes;
      const TilePlace tile_place = place_tile(args, item, start, lane);
      barrier_wait(&barriers.key_empty[stage], parity);
      if (lane == 0) barrier_expect(&barriers.key_full[stage], Shape::kTileBytes);
      __syncwarp();
      copy_tile<D>(args, item, &args.keys, &args.block_keys, keys + at, tile_place, &barriers.key_full[stage], lane);
      barrier_wait(&barriers.value_empty[stage], parity);
      const bool is_tail = start + kTileKeys > item.length;
      uint64_t* arrived = is_tail ? &barriers.tail : &barriers.value_full[stage];
      if (lane == 0) barrier_expect(arrived, Shape::kTileBytes);
      __syncwarp();
      copy_tile<D>(args, item, &args.values, &args.block_values, values + at, tile_place, arrived, lane);
      if (is_tail) {
        barrier_wait(&barriers.tail, num_tails++ & 1);
        const int first = item.length - start;
        for (int piece = lane; piece < (kTileKeys - first) * Shape::kPlanes * 8; piece += 32) {
          const int plane = piece / ((kTileKeys - first) * 8), rest = piece % ((kTileKeys - first) * 8);
          clear_piece(values + at + plane * kPlaneBytes + first * 128 + rest * 16);
        }
        fence_for_copies();
        __syncwarp();
        if (lane == 0) barrier_arrive(&barriers.value_full[stage]);
      }
    }
  }
}

}  // namespace xllm::kernels::cuda

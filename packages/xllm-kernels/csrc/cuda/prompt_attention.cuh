// Attention of many tokens a sequence on Hopper, after FlashAttention-3 (Shah et al., 2024): a block takes 128 queries of one head, two
// warpgroups multiply 64 rows each, one warp of a third asks the copy engine for keys and values in a ring, tiles of 128 from the last to
// the first. While the tensor cores add weights times values of one tile, the softmax of the next is computed:
//
//   S(n-1) = Q K(n-1)^T  and  O += P(n) V(n)  are started;  softmax of S(n-1) as soon as it is there;  O is scaled when P V has ended
//
// Blocks are persistent: keys of the next piece of work are on their way while the last one's rows are written. A tile of a paged
// cache is one box where its blocks follow one another, else put together from boxes of a block. Values past a sequence's end are cleared in shared memory, since 0 times NaN is NaN.
// Knows nothing of where lengths come from.
#pragma once

#include "async_copy.cuh"
#include "matrix.cuh"
#include "tensor_map.h"
#include "warpgroup.cuh"

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
  __nv_bfloat16* out;
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

// Warpgroups take turns at the tensor cores: named barriers 2 and 3 belong to the first and the second.
template <bool TURNS>
__device__ __forceinline__ void wait_for_turn(int group) {
  if (TURNS) asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
}
template <bool TURNS>
__device__ __forceinline__ void end_turn(int group) {
  if (TURNS) asm volatile("bar.arrive %0, 256;" ::"r"(3 - group) : "memory");
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// An online softmax of two rows a thread (g and g + 8 of the warp's 16).
struct RowSoftmax {
  float top[2], total[2];

  __device__ __forceinline__ void begin() {
    top[0] = top[1] = -INFINITY;
    total[0] = total[1] = 0.f;
  }

  // Turns scores into weights, in place; returns what to scale earlier sums by.
  __device__ __forceinline__ void take(float (&s)[64], float scale, float (&keep)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = s[2 * r];
#pragma unroll
      for (int j = 0; j < 16; ++j) most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      most = fmaxf(most, top[r]);
      const float shift = most == -INFINITY ? 0.f : most * scale;
      keep[r] = exp2_fast(top[r] * scale - shift);
      top[r] = most;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[4 * j + 2 * r + c];
          x = exp2_fast(fmaf(x, scale, -shift));
          sum += x;
        }
      }
      total[r] = total[r] * keep[r] + sum;
    }
  }
};

// Scores of keys from `limits` on (for the thread's two rows) become minus infinity.
__device__ __forceinline__ void mask_scores(float (&s)[64], int start, const int (&limits)[2], int lane) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int key = start + 8 * j + 2 * (lane % 4) + c;
      if (key >= limits[0]) s[4 * j + c] = -INFINITY;
      if (key >= limits[1]) s[4 * j + 2 + c] = -INFINITY;
    }
  }
}

// Weights as the left operand of 8 products of 16 keys.
__device__ __forceinline__ void pack_weights(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
}

// Afterwards lane t of four holds in x[i] what lane i had in x[t].
__device__ __forceinline__ void exchange_quads(uint32_t (&x)[4], int t) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const bool is_high = t & step;
      const uint32_t other = __shfl_xor_sync(0xffffffffu, is_high ? x[i] : x[i + step], step);
      if (is_high) x[i] = other;
      else x[i + step] = other;
    }
  }
}

template <int D>
__device__ __forceinline__ void store_rows(const PromptAttentionParameters& args, const PromptItem& item, const float (&o)[D / 2],
                                           const RowSoftmax& softmax, int row, int lane) {
  const int t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int mine = row + 8 * r;
    float total = softmax.total[r];
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const float factor = total > 0.f ? 1.f / total : 0.f;
    const bool exists = mine < item.num_rows;
    const int64_t place = static_cast<int64_t>(item.split) * args.num_queries + item.first_row + mine;
    __nv_bfloat16* target = args.out + (place * args.num_heads + item.head) * args.head_dim;
#pragma unroll
    for (int q = 0; q < D / 32; ++q) {
      uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = pack(o[4 * (4 * q + i) + 2 * r] * factor, o[4 * (4 * q + i) + 2 * r + 1] * factor);
      exchange_quads(x, t);
      if (exists) *reinterpret_cast<uint4*>(target + 32 * q + 8 * t) = make_uint4(x[0], x[1], x[2], x[3]);
    }
#pragma unroll
    for (int j = D / 32 * 4; j < D / 8; ++j) {
      if (exists && 8 * j < args.head_dim)
        *reinterpret_cast<uint32_t*>(target + 8 * j + 2 * t) = pack(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
    }
    if (args.lse != nullptr && exists && t == 0) {
      const int64_t lse_place = (static_cast<int64_t>(item.split) * args.num_heads + item.head) * args.num_queries + item.first_row + mine;
      args.lse[lse_place] = total > 0.f ? (softmax.top[r] * args.scale + log2f(total)) * 0.69314718f : INFINITY;
    }
  }
}

template <int D, bool CAUSAL, bool TURNS>
__device__ void attend_prompt(const PromptAttentionParameters& args, PromptBarriers& barriers, uint32_t queries, int group) {
  using Shape = PromptAttentionShape<D>;
  constexpr int kSteps = D / 16;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const uint32_t keys = queries + Shape::kTileBytes, values = keys + kPromptStages * Shape::kTileBytes;
  const uint32_t my_queries = queries + group * 64 * 128;
  int tile = 0, num_items = 0;
  float s[64], o[D / 2];
  uint32_t p[32];
  RowSoftmax softmax;
  PromptItem item;

  const auto start_scores = [&](int stage) {
    const uint32_t at = keys + stage * Shape::kTileBytes;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const uint32_t offset = k / 4 * kPlaneBytes + k % 4 * 32;
      multiply_rows(s, describe_rows(my_queries + offset), describe_rows(at + offset), k > 0);
    }
    warpgroup_commit();
  };
  const auto start_sums = [&](int stage, bool adds) {
    const uint32_t at = values + stage * Shape::kTileBytes;
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k)
      multiply_columns(o, p + 4 * k, describe_columns(at + k * 16 * 128, kPlaneBytes), k > 0 || adds);
    warpgroup_commit();
  };
  const auto release = [&](uint64_t* barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };

  if (TURNS && group == 1) end_turn<TURNS>(1);
  for (int i = 0; i * static_cast<int>(gridDim.x) < args.num_items; ++i) {
    const int place = place_of(i);
    if (place >= args.num_items || !find_item<CAUSAL>(args, place, item)) continue;
    const int row = item.row + group * 64 + warp * 16 + lane / 4;
    softmax.begin();
    if (item.begin == item.end) {  // more splits than tiles
#pragma unroll
      for (int j = 0; j < D / 2; ++j) o[j] = 0.f;
      store_rows<D>(args, item, o, softmax, row, lane);
      continue;
    }
    const int offset = item.length - item.num_rows;
    const int limits[2] = {CAUSAL ? min(item.length, offset + row + 1) : item.length,
                           CAUSAL ? min(item.length, offset + row + 9) : item.length};
    // Keys that every row of the warpgroup sees.
    const int clear = CAUSAL ? min(item.length, offset + item.row + group * 64 + 1) : item.length;
    float keep[2];

    barrier_wait(&barriers.query_full, num_items++ & 1);
    barrier_wait(&barriers.key_full[tile % kPromptStages], tile / kPromptStages & 1);
    warpgroup_arrive();
    start_scores(tile % kPromptStages);
    warpgroup_wait<0>();
    settle(s);
    release(&barriers.key_empty[tile % kPromptStages]);
    int start = (item.end - 1) * kTileKeys;
    if (start + kTileKeys > clear) mask_scores(s, start, limits, lane);
    softmax.take(s, args.scale, keep);
    pack_weights(p, s);
    bool adds = false;
    for (int n = item.end - 2; n >= item.begin; --n) {
      const int previous = tile % kPromptStages, previous_parity = tile / kPromptStages & 1;
      ++tile;
      const int stage = tile % kPromptStages;
      barrier_wait(&barriers.key_full[stage], tile / kPromptStages & 1);
      wait_for_turn<TURNS>(group);
      warpgroup_arrive();
      start_scores(stage);
      barrier_wait(&barriers.value_full[previous], previous_parity);
      start_sums(previous, adds);
      end_turn<TURNS>(group);
      adds = true;
      warpgroup_wait<1>();
      settle(s);
      release(&barriers.key_empty[stage]);
      start = n * kTileKeys;
      if (start + kTileKeys > clear) mask_scores(s, start, limits, lane);
      softmax.take(s, args.scale, keep);
      warpgroup_wait<0>();
      settle(o);
      release(&barriers.value_empty[previous]);
      pack_weights(p, s);
#pragma unroll
      for (int j = 0; j < D / 2; ++j) o[j] *= keep[j / 2 % 2];
    }
    release(&barriers.query_empty);
    barrier_wait(&barriers.value_full[tile % kPromptStages], tile / kPromptStages & 1);
    warpgroup_arrive();
    start_sums(tile % kPromptStages, adds);
    warpgroup_wait<0>();
    settle(o);
    release(&barriers.value_empty[tile % kPromptStages]);
    ++tile;
    store_rows<D>(args, item, o, softmax, row, lane);
  }
  if (TURNS && group == 0) wait_for_turn<TURNS>(0);
}

template <int D, bool CAUSAL, bool TURNS>
__global__ void __launch_bounds__(kPromptThreads, 1) prompt_attention_kernel(const __grid_constant__ PromptAttentionParameters args) {
  extern __shared__ unsigned char unaligned[];
  __shared__ PromptBarriers barriers;
  const uint32_t queries = shared_address(align_to_swizzle(unaligned));
  const int warpgroup = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    barrier_init(&barriers.query_full, 1);
    barrier_init(&barriers.query_empty, 8);
    barrier_init(&barriers.tail, 1);
    for (int stage = 0; stage < kPromptStages; ++stage) {
      barrier_init(&barriers.key_full[stage], 1);
      barrier_init(&barriers.key_empty[stage], 8);
      barrier_init(&barriers.value_full[stage], 1);
      barrier_init(&barriers.value_empty[stage], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_prerequisites();
  if (warpgroup == 0) {
    give_registers<40>();
    if (threadIdx.x < 32) feed_prompt<D, CAUSAL>(args, barriers, queries, threadIdx.x);
  } else {
    take_registers<232>();
    attend_prompt<D, CAUSAL, TURNS>(args, barriers, queries, warpgroup - 1);
  }
}

}  // namespace xllm::kernels::cuda

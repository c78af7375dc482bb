// One decode step's attention, whole: norm and rotation of q and k, the new token's KV written, softmax(q K^T) V over paged KV, split over
// the context and merged. Reads what the qkv projection wrote, writes what the output projection reads.
//
// A block owns one kv head of one sequence and one slice of its context. One thread asks the bulk tensor copy engine for tiles of
// 16 * WARPS tokens in a ring of STAGES; WARPS warps take 16 tokens of each, keep their own online softmax (arXiv 2112.05682) and
// meet at the end. A box is 16 tokens of one head, as [D / 64][16 tokens][64].
// Products are transposed so that the query heads of the group (at most 8) are the narrow side of mma.m16n8k16:
//
//   S^T [16 tokens, 8 heads] = K [16, D] Q^T          A = K rows by ldmatrix, B = Q in registers
//   O^T [D, 8 heads]        += V^T [D, 16] P^T        A = V by transposing ldmatrix, B = P turned by movmatrix
//
// KV of older tokens does not depend on the kernel before: its first tiles are on their way while that one ends. So no kernel directly
// before this one may write the cache, except for tokens that these rows do not see. Knows nothing of models.
#pragma once

#include "async_copy.cuh"
#include "decode_merge.cuh"
#include "norm_and_rotate.cuh"
#include "tensor_map.h"

namespace xllm::kernels::cuda {

constexpr int kBoxTokens = 16;
constexpr int kMaxGroup = 8;

template <class T>
struct AttentionParameters {
  CUtensorMap keys;               // boxes of 16 slots of one head
  CUtensorMap values;
  const T* q;
  const T* k;
  const T* v;
  int64_t q_row_stride;
  int64_t kv_row_stride;
  const T* q_norm;    // [D] or null
  const T* k_norm;    // [D] or null
  const float* cos_sin;           // [max_position, D]: cosines, then sines; or null: q and k are taken as they are
  T* key_cache;       // [blocks, block_size, Hk, D]
  T* value_cache;
  const int* block_tables;        // [B, table_width]
  const int* seq_lens;            // [B]: tokens with the new one; 0 is an unused row
  const int* positions;           // [B]: rows of cos_sin; or null: the tokens' indices
  T* out;             // [B, Hq D]
  float* workspace;               // splits > 1: [B, Hk, splits, G, D + 2]
  int* counters;                  // splits > 1: [B, Hk], zero before and after
  int num_kv_heads;
  int group;                      // G: query heads a kv head
  int table_width;
  int block_size;
  int splits;
  float scale;
  float eps;
};

template <int D, int WARPS, int STAGES>
struct DecodeAttentionShape {
  static constexpr int kTile = 16 * WARPS;
  static constexpr int kTileBytes = kTile * D * 2;
  static constexpr int kThreads = WARPS * 32, kBlockThreads = kThreads + 32;
  static constexpr int kRingBytes = STAGES * 2 * kTileBytes, kQueryBytes = kMaxGroup * D * 2;
  static constexpr int kBytes = kRingBytes + kQueryBytes + STAGES * 16 + 1024;
  static_assert(WARPS * kMaxGroup * (D + 2) * 4 <= kRingBytes, "warps merge where the ring was");
};

template <class Element, int D, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32 + 32) decode_attention_kernel(
    const __grid_constant__ AttentionParameters<typename Element::type> args) {
  using T = typename Element::type;
  using Shape = DecodeAttentionShape<D, WARPS, STAGES>;
  constexpr int kTile = Shape::kTile, kThreads = Shape::kThreads, kBoxBytes = kBoxTokens * D * 2, E = D / 32;
  const int G = args.group;
  extern __shared__ unsigned char unaligned[];
  unsigned char* memory = align_to_swizzle(unaligned);
  float* merge = reinterpret_cast<float*>(memory);
  T* queries = reinterpret_cast<T*>(memory + Shape::kRingBytes);
  uint64_t* full = reinterpret_cast<uint64_t*>(memory + Shape::kRingBytes + Shape::kQueryBytes);
  uint64_t* empty = full + STAGES;
  const int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int length = args.seq_lens[row];
  const int kv_heads = args.num_kv_heads;

  // Slices are whole tiles; the last one holds the new token.
  const int tiles = (length + kTile - 1) / kTile;
  const int tile0 = tiles * split / args.splits, tile1 = tiles * (split + 1) / args.splits;
  const bool owns_new = tile1 == tiles && tile1 > tile0;
  const int* table = args.block_tables + static_cast<size_t>(row) * args.table_width;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, WARPS);
    }
    barrier_init_fence();
  }
  __syncthreads();
  launch_dependents();
  if (length == 0) return;

  if (warp == WARPS) {
    // KV of older tokens was there before the kernel before this one, which wrote only the new token's projections.
    if (lane > 0) return;
    prefetch_map(&args.keys);
    prefetch_map(&args.values);
    const uint64_t once = evict_first_policy();
    const int last_block = (length - 1) / args.block_size, boxes_per_block = args.block_size / 16;
    for (int tile = tile0; tile < tile1; ++tile) {
      const int i = tile - tile0, stage = i % STAGES;
      if (i >= STAGES) barrier_wait(empty + stage, (i / STAGES - 1) & 1);
      barrier_expect(full + stage, 2 * Shape::kTileBytes);
      unsigned char* base = memory + stage * 2 * Shape::kTileBytes;
#pragma unroll
      for (int box = 0; box < WARPS; ++box) {
        const int index = tile * WARPS + box, block = index / boxes_per_block;
        // Boxes past the end repeat the last block; their tokens get no weight.
        const int slot = __ldg(table + min(block, last_block)) * args.block_size + index % boxes_per_block * 16;
        copy_stacked_box(base + box * kBoxBytes, &args.keys, 0, slot, head * (D / 64), full + stage, once);
        copy_stacked_box(base + Shape::kTileBytes + box * kBoxBytes, &args.values, 0, slot, head * (D / 64), full + stage, once);
      }
    }
    return;
  }

  // Neither do the weights of the norms and the rotation.
  const int position = length - 1;
  const int new_warp = position % kTile / 16;  // whose tokens hold the new one
  const bool rotates = args.cos_sin != nullptr, holds_new = owns_new && warp == new_warp;
  float q_weights[E], k_weights[E];
  Rotation<D> rotation;
  if (rotates) {
    if (args.q_norm != nullptr) load_numbers<Element>(q_weights, args.q_norm + lane * E);
    if (args.k_norm != nullptr && holds_new) load_numbers<Element>(k_weights, args.k_norm + lane * E);
    rotation.load(args.cos_sin + static_cast<size_t>(args.positions == nullptr ? position : args.positions[row]) * D, lane);
  }
  const size_t new_slot = static_cast<size_t>(table[position / args.block_size]) * args.block_size + position % args.block_size;
  wait_for_prerequisites();

  const T* q_row = args.q + row * args.q_row_stride;
  float key[E], value[E];
  if (holds_new) {  // asked for beside q, not after it
    const int64_t at = row * args.kv_row_stride + head * D + lane * E;
    load_numbers<Element>(key, args.k + at);
    load_numbers<Element>(value, args.v + at);
  }
  const auto normed_and_rotated = [&](float (&v)[E], bool has_norm, const float (&weights)[E]) {
    if (!rotates) return;
    if (has_norm) norm_head<Element, D>(v, weights, args.eps);
    rotate_head<D>(v, rotation, lane);
  };
  for (int h = warp; h < 8; h += WARPS) {
    float v[E] = {};
    if (h < G) {
      load_numbers<Element>(v, q_row + (head * G + h) * D + lane * E);
      normed_and_rotated(v, args.q_norm != nullptr, q_weights);
    }
    store_numbers<Element>(queries + h * D + lane * E, v);
  }
  // The new token's K and V go to the cache and, by the warp whose tokens hold it, into the tile.
  if (holds_new) {
    normed_and_rotated(key, args.k_norm != nullptr, k_weights);
    const size_t at = (new_slot * kv_heads + head) * D + lane * E;
    store_numbers<Element>(args.key_cache + at, key);
    store_numbers<Element>(args.value_cache + at, value);
  }
  sync_threads<kThreads>();
  uint32_t q[D / 16][2];
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    q[k][0] = *reinterpret_cast<const uint32_t*>(queries + g * D + k * 16 + 2 * t);
    q[k][1] = *reinterpret_cast<const uint32_t*>(queries + g * D + k * 16 + 2 * t + 8);
  }

  const float scale = args.scale * 1.4426950408889634f;
  float o[D / 16][4] = {};
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};  // of heads 2 t and 2 t + 1, of this warp's tokens
  for (int tile = tile0; tile < tile1; ++tile) {
    const int i = tile - tile0, stage = i % STAGES;
    barrier_wait(full + stage, (i / STAGES) & 1);
    unsigned char* keys = memory + stage * 2 * Shape::kTileBytes + warp * kBoxBytes;
    unsigned char* values = keys + Shape::kTileBytes;
    if (owns_new && tile == tile1 - 1 && warp == new_warp) {
      const int token = position % 16, d = lane * E;
      const int offset = (d / 64 * 16 + token) * 64 + (((d % 64 / 8) ^ (token & 7)) * 8) + d % 8;
      store_numbers<Element>(reinterpret_cast<T*>(keys) + offset, key);
      store_numbers<Element>(reinterpret_cast<T*>(values) + offset, value);
      __syncwarp();
    }
    if (tile == tiles - 1) {
      // What stands in the cache past the end may be anything, and no weight makes NaN vanish.
      constexpr int kPieces = 128 / 16;  // of a token's numbers in half a box
      for (int i = max(0, length - tile * kTile - warp * 16) * kPieces + lane; i < 16 * kPieces; i += 32) {
#pragma unroll
        for (int half = 0; half < D / 64; ++half) clear_piece(shared_address(values) + half * 16 * 128 + i * 16);
      }
      __syncwarp();
    }
    float s[4] = {};
    const int token_row = lane % 16;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t a[4];
      load_matrices(a, shared_address(keys) + (k / 4 * 16 + token_row) * 128 + (((k % 4 * 2 + lane / 16) ^ (token_row & 7)) * 16));
      Element::multiply_add(s, a, q[k][0], q[k][1]);
    }
    // s = {(token g, head 2t), (token g, head 2t + 1), (token g + 8, head 2t), (token g + 8, head 2t + 1)}
    const int token = tile * kTile + warp * 16 + g;
    const bool sees0 = token < length, sees1 = token + 8 < length;
    float correction[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float a = sees0 ? s[c] * scale : -INFINITY, b = sees1 ? s[2 + c] * scale : -INFINITY;
      float m = fmaxf(a, b);
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 4));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 8));
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 16));
      m = fmaxf(m, top[c]);
      const float base_m = m == -INFINITY ? 0.f : m;
      correction[c] = exp2f(top[c] - base_m);
      top[c] = m;
      s[c] = exp2f(a - base_m);
      s[2 + c] = exp2f(b - base_m);
      total[c] = total[c] * correction[c] + s[c] + s[2 + c];
    }
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      o[d][0] *= correction[0];
      o[d][1] *= correction[1];
      o[d][2] *= correction[0];
      o[d][3] *= correction[1];
    }
    const uint32_t p0 = transpose(Element::narrow_pair(s[0], s[1])), p1 = transpose(Element::narrow_pair(s[2], s[3]));
    // Matrices of ldmatrix: (tokens 0-7, d 0-7), (tokens 0-7, d 8-15), (tokens 8-15, d 0-7), (tokens 8-15, d 8-15), each turned.
    const int value_row = lane % 8 + (lane / 16) * 8, v_half = (lane / 8) % 2;
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      uint32_t a[4];
      load_matrices_transposed(a, shared_address(values) + (d / 4 * 16 + value_row) * 128 + (((d % 4 * 2 + v_half) ^ (value_row & 7)) * 16));
      Element::multiply_add(o[d], a, p0, p1);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage);
  }
  // Every lane of a column held its own part of the sum.
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    total[c] += __shfl_xor_sync(0xffffffffu, total[c], 4);
    total[c] += __shfl_xor_sync(0xffffffffu, total[c], 8);
    total[c] += __shfl_xor_sync(0xffffffffu, total[c], 16);
  }
  sync_threads<kThreads>();  // nobody reads the ring any more
  // o[d] = {(dim g, head 2t), (dim g, head 2t + 1), (dim g + 8, head 2t), (dim g + 8, head 2t + 1)}
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int h = 2 * t + c;
    if (h < G) {
      float* mine = merge + (warp * G + h) * (D + 2);
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
        mine[d * 16 + g] = o[d][c];
        mine[d * 16 + g + 8] = o[d][2 + c];
      }
      if (g == 0) {
        mine[D] = top[c];
        mine[D + 1] = total[c];
      }
    }
  }
  sync_threads<kThreads>();

  const int pair = row * kv_heads + head;
  merge_and_write<Element, D, WARPS>({merge, args.workspace + static_cast<size_t>(pair) * args.splits * G * (D + 2), args.counters + pair,
                                      args.out + static_cast<size_t>(pair) * G * D, G, split, args.splits, 1.f});
}

}  // namespace xllm::kernels::cuda

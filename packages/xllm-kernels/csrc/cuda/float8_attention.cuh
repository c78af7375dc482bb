// One decode step's attention over a cache of e4m3: norm and rotation of q and k, the new token's KV written, softmax(q K^T) V over paged
// KV, split over the context and merged.
//
// A block owns one kv head of one sequence and one slice of its context; 4 warps take 16 tokens each of tiles of 64, keep their own online
// softmax (arXiv 2112.05682) and meet at the end. K and V come from memory straight to registers, two tiles ahead, and are widened there:
//
//   S^T [16 tokens, 8 heads] = K [16, D] Q^T      A = K: lane 4 g + t holds numbers 64 p + 16 t .. + 15 of tokens g and g + 8
//   O^T [D, 8 heads]        += V^T [D, 16] P^T    A = V: words of four numbers of a token, turned as pairs by movmatrix
//
// The order of numbers within a head does not matter to the first product as long as Q lies alike; of the second, output m = 4 p + i of
// lane 4 g + t is number 64 p + 16 (g / 2) + 4 i + 2 (g % 2) and the next. KV of older tokens does not depend on the kernel before: see
// decode_attention.cuh. Knows nothing of models.
#pragma once

#include <cuda_fp8.h>

#include "async_copy.cuh"
#include "decode_merge.cuh"
#include "dequantise.cuh"
#include "norm_and_rotate.cuh"
#include "xllm/kernels/cuda/float8_attention.h"

namespace xllm::kernels::cuda {

constexpr int kFloat8Warps = 4, kFloat8Tile = 16 * kFloat8Warps, kFloat8MaxGroup = 8;

struct Float8AttentionParameters {
  Float8AttentionArgs args;
  int group;   // query heads of a kv head
  int splits;
};

// 16 tokens of keys and values: [tokens g and g + 8][64 numbers].
template <int D>
struct KVTile {
  uint4 keys[2][D / 64], values[2][D / 64];
};

// What a lane must know of its sequence.
template <int D>
struct KVPlace {
  const unsigned char *keys, *values;
  const int* table;
  int length, block_size, heads, head, warp, g, t;

  // First of the warp's 16 slots in a tile; tiles past the end repeat the last block.
  __device__ __forceinline__ int slot_of(int tile) const {
    const int token = min(tile * kFloat8Tile + warp * 16, (length - 1) / 16 * 16);
    return __ldg(table + token / block_size) * block_size + token % block_size;
  }
  // Loads tokens that were there before the kernel before; others are left zero.
  __device__ __forceinline__ void load(KVTile<D>& to, int tile, int slot) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = tile * kFloat8Tile + warp * 16 + g + half * 8;
      const size_t at = (static_cast<size_t>(slot + g + half * 8) * heads + head) * D + t * 16;
#pragma unroll
      for (int p = 0; p < D / 64; ++p) {
        to.keys[half][p] = to.values[half][p] = make_uint4(0, 0, 0, 0);
        if (token < length - 1) {
          to.keys[half][p] = load_piece(keys + at + p * 64);
          to.values[half][p] = load_piece(values + at + p * 64);
        }
      }
    }
  }
  // Not through the path of constants: kernels of this stream write the cache.
  static __device__ __forceinline__ uint4 load_piece(const unsigned char* from) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
  }
};

template <class Element>
__device__ __forceinline__ const typename Element::type* numbers_at(const void* memory, int64_t at) {
  return memory == nullptr ? nullptr : static_cast<const typename Element::type*>(memory) + at;
}

__device__ __forceinline__ unsigned char to_float8(float v, float scale) { return __nv_cvt_float_to_fp8(v / scale, __NV_SATFINITE, __NV_E4M3); }

// q of the group's heads, rounded, to shared memory: [8][D], zero past the group.
template <class Element, int D>
__device__ __forceinline__ void place_queries(const Float8AttentionParameters& p, typename Element::type* queries, const float* angles,
                                              int row, int head, int warp, int lane) {
  constexpr int E = D / 32;
  const DecodeAttentionArgs& a = p.args.attention;
  for (int h = warp; h < 8; h += kFloat8Warps) {
    float v[E] = {};
    if (h < p.group) {
      load_numbers<Element>(v, numbers_at<Element>(a.q, row * a.q_row_stride + (head * p.group + h) * D + lane * E));
      norm_and_rotate<Element, D>(v, numbers_at<Element>(a.q_norm, 0), angles, a.eps, lane);
    }
    store_numbers<Element>(queries + h * D + lane * E, v);
  }
}

// The new token's K and V, to the cache and to shared memory: [2][D].
template <class Element, int D>
__device__ __forceinline__ void place_new(const Float8AttentionParameters& p, unsigned char* fresh, const float* angles, size_t slot, int row,
                                          int head, int lane) {
  constexpr int E = D / 32;
  const DecodeAttentionArgs& a = p.args.attention;
  const int64_t from = row * a.kv_row_stride + head * D + lane * E;
  float k[E], v[E];
  load_numbers<Element>(k, numbers_at<Element>(a.k, from));
  load_numbers<Element>(v, numbers_at<Element>(a.v, from));
  norm_and_rotate<Element, D>(k, numbers_at<Element>(a.k_norm, 0), angles, a.eps, lane);
  const size_t to = (slot * a.num_kv_heads + head) * D + lane * E;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    fresh[lane * E + i] = static_cast<unsigned char*>(a.key_cache)[to + i] = to_float8(k[i], p.args.key_scale);
    fresh[D + lane * E + i] = static_cast<unsigned char*>(a.value_cache)[to + i] = to_float8(v[i], p.args.value_scale);
  }
}

// A warp's online softmax over its tokens: output m holds numbers as the head of this file says, of heads 2 t and 2 t + 1.
template <class Element, int D>
struct Float8Softmax {
  float o[D / 16][4] = {};
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.f, 0.f};

  // `token` is the index of the lane's first token, the other is 8 further.
  __device__ __forceinline__ void add(const KVTile<D>& tile, const uint32_t (&q)[D / 16][2], int token, int length, float scale) {
    const Element element;
    float s[4] = {};
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      uint32_t a[4];
      float8_pairs(element, word_of(tile.keys[0][m / 4], m % 4), a[0], a[2]);
      float8_pairs(element, word_of(tile.keys[1][m / 4], m % 4), a[1], a[3]);
      Element::multiply_add(s, a, q[m][0], q[m][1]);
    }
    float correction[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float a = token < length ? s[c] * scale : -INFINITY, b = token + 8 < length ? s[2 + c] * scale : -INFINITY;
      float m = fmaxf(a, b);
#pragma unroll
      for (int x = 4; x < 32; x *= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, x));
      m = fmaxf(m, top[c]);
      const float against = m == -INFINITY ? 0.f : m;
      correction[c] = exp2f(top[c] - against);
      top[c] = m;
      s[c] = exp2f(a - against);
      s[2 + c] = exp2f(b - against);
      total[c] = total[c] * correction[c] + s[c] + s[2 + c];
    }
    const uint32_t p0 = transpose(Element::narrow_pair(s[0], s[1])), p1 = transpose(Element::narrow_pair(s[2], s[3]));
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[m][c] *= correction[c % 2];
      uint32_t a[4];
      float8_pairs(element, __byte_perm(transpose(word_of(tile.values[0][m / 4], m % 4)), 0, 0x3120), a[0], a[1]);
      float8_pairs(element, __byte_perm(transpose(word_of(tile.values[1][m / 4], m % 4)), 0, 0x3120), a[2], a[3]);
      Element::multiply_add(o[m], a, p0, p1);
    }
  }

  // Leaves the warp's result of `group` heads as [group][D + 2].
  __device__ __forceinline__ void leave(float* merge, int group, int g, int t) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int x = 4; x < 32; x *= 2) total[c] += __shfl_xor_sync(0xffffffffu, total[c], x);
      const int h = 2 * t + c;
      if (h >= group) continue;
      float* mine = merge + h * (D + 2);
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
        const int d = m / 4 * 64 + g / 2 * 16 + m % 4 * 4 + g % 2 * 2;
        mine[d] = o[m][c];
        mine[d + 1] = o[m][2 + c];
      }
      if (g == 0) {
        mine[D] = top[c];
        mine[D + 1] = total[c];
      }
    }
  }
};

template <class Element, int D>
__global__ void __launch_bounds__(kFloat8Warps * 32, 3) float8_attention_kernel(const __grid_constant__ Float8AttentionParameters p) {
  const DecodeAttentionArgs& args = p.args.attention;
  __shared__ __align__(16) typename Element::type queries[8 * D];
  __shared__ __align__(16) unsigned char fresh[2 * D];
  __shared__ __align__(8) float merge[kFloat8Warps * kFloat8MaxGroup * (D + 2)];
  const int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int length = args.seq_lens[row], position = length - 1;
  launch_dependents();
  if (length == 0) return;

  // Slices are whole tiles; the last one holds the new token.
  const int tiles = (length + kFloat8Tile - 1) / kFloat8Tile, tile0 = tiles * split / p.splits, tile1 = tiles * (split + 1) / p.splits;
  const KVPlace<D> place{static_cast<const unsigned char*>(args.key_cache), static_cast<const unsigned char*>(args.value_cache),
                         args.block_tables + static_cast<size_t>(row) * args.table_width, length, args.block_size, args.num_kv_heads,
                         head, warp, g, t};
  KVTile<D> ahead[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (tile0 + i < tile1) place.load(ahead[i], tile0 + i, place.slot_of(tile0 + i));
  }
  int next_slot = place.slot_of(tile0 + 2);
  const float* angles = nullptr;
  if (args.cos_sin != nullptr) angles = args.cos_sin + static_cast<size_t>(args.positions == nullptr ? position : args.positions[row]) * D;
  const size_t new_slot = static_cast<size_t>(place.table[position / args.block_size]) * args.block_size + position % args.block_size;
  wait_for_prerequisites();
  place_queries<Element, D>(p, queries, angles, row, head, warp, lane);
  const bool owns_new = tile1 == tiles && tile1 > tile0;
  if (owns_new && warp == kFloat8Warps - 1) place_new<Element, D>(p, fresh, angles, new_slot, row, head, lane);
  __syncthreads();

  uint32_t q[D / 16][2];
#pragma unroll
  for (int m = 0; m < D / 16; ++m) {
    const uint2 pair = *reinterpret_cast<const uint2*>(queries + g * D + m / 4 * 64 + t * 16 + m % 4 * 4);
    q[m][0] = pair.x;
    q[m][1] = pair.y;
  }
  const float scale = args.scale * p.args.key_scale * 1.4426950408889634f;
  Float8Softmax<Element, D> softmax;
  for (int base = tile0; base < tile1; base += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int tile = base + i;
      if (tile >= tile1) break;
      const int token = tile * kFloat8Tile + warp * 16 + g;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (token + half * 8 != position) continue;
#pragma unroll
        for (int part = 0; part < D / 64; ++part) {
          ahead[i].keys[half][part] = *reinterpret_cast<const uint4*>(fresh + part * 64 + t * 16);
          ahead[i].values[half][part] = *reinterpret_cast<const uint4*>(fresh + D + part * 64 + t * 16);
        }
      }
      __syncwarp();
      softmax.add(ahead[i], q, token, length, scale);
      if (tile + 2 < tile1) {
        place.load(ahead[i], tile + 2, next_slot);
        next_slot = place.slot_of(tile + 3);
      }
    }
  }
  softmax.leave(merge + warp * p.group * (D + 2), p.group, g, t);
  __syncthreads();
  const int pair = row * args.num_kv_heads + head;
  merge_and_write<Element, D, kFloat8Warps>({merge, args.workspace + static_cast<size_t>(pair) * p.splits * p.group * (D + 2), args.counters + pair,
                                             static_cast<typename Element::type*>(args.out) + static_cast<size_t>(pair) * p.group * D, p.group, split,
                                             p.splits, p.args.value_scale});
}

}  // namespace xllm::kernels::cuda

// One decode step's attention, whole: norm and rotation of q and k, the new token's KV written, softmax(q K^T) V over paged KV, split over
// the context and merged. Reads what the qkv projection wrote, writes what the output projection reads.
//
// A block owns one kv head of one sequence and one slice of its context; its WARPS warps take 16 tokens each of every tile of
// 16 * WARPS, keep their own online softmax (arXiv 2112.05682) and meet at the end. Products are transposed so that the query heads
// of the group (at most 8) are the narrow side of mma.m16n8k16:
//
//   S^T [16 tokens, 8 heads] = K [16, D] Q^T          A = K rows by ldmatrix, B = Q in registers
//   O^T [D, 8 heads]        += V^T [D, 16] P^T        A = V by transposing ldmatrix, B = P turned by movmatrix
//
// KV of older tokens does not depend on the kernel before: its first tiles are on their way while that one ends. Knows nothing of models.
#pragma once

#include <cuda_bf16.h>
#include <cstdint>

namespace xllm::cuda {

struct DecodeAttentionArgs {
  const __nv_bfloat16* qkv;       // [B, (Hq + 2 Hk) D]
  const __nv_bfloat16* q_norm;    // [D] or null
  const __nv_bfloat16* k_norm;    // [D] or null
  const float* cos_sin;           // [max_position, D]: cosines, then sines
  __nv_bfloat16* key_cache;       // [blocks, block_size, Hk, D]
  __nv_bfloat16* value_cache;     // the same
  const int* block_tables;        // [B, table_width]
  const int* seq_lens;            // [B]: tokens with the new one; 0 is an unused row
  __nv_bfloat16* out;             // [B, Hq D]
  float* workspace;               // splits > 1: [B, Hk, splits, G, D + 2]
  int* counters;                  // splits > 1: [B, Hk], zero before and after
  int num_kv_heads;
  int table_width;
  int block_size;
  int splits;
  float scale;
  float eps;
};

namespace attention {

__device__ __forceinline__ uint32_t smem(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void copy_async(uint32_t dst, const void* src) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ uint32_t transpose(uint32_t v) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Normalises (if `norm`) and rotates one head of D numbers; lane l holds dims 4 l .. 4 l + 3, rotation pairs i and i + D / 2.
template <int D>
__device__ __forceinline__ void norm_and_rotate(float (&v)[D / 32], const __nv_bfloat16* norm, const float* cos_sin, float eps, int lane) {
  constexpr int E = D / 32;
  if (norm != nullptr) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < E; ++i) squares += v[i] * v[i];
    for (int o = 16; o; o >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, o);
    const float scale = rsqrtf(squares / D + eps);
#pragma unroll
    for (int i = 0; i < E; ++i) v[i] = __bfloat162float(__float2bfloat16(v[i] * scale)) * __bfloat162float(norm[lane * E + i]);
  }
  const int pair = (lane % 16) * E;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const float other = __shfl_xor_sync(0xffffffffu, v[i], 16);
    const float c = cos_sin[pair + i], s = cos_sin[D / 2 + pair + i];
    v[i] = lane < 16 ? v[i] * c - other * s : v[i] * c + other * s;
  }
}

}  // namespace attention

template <int D, int G, int WARPS, int STAGES>
struct DecodeAttentionShape {
  static constexpr int kTile = 16 * WARPS;
  static constexpr int kTileBytes = kTile * D * 2;
  static constexpr int kBytes = STAGES * 2 * kTileBytes + 8 * D * 2 + WARPS * G * (D + 2) * 4 + 128;
};

template <int D, int G, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32) decode_attention(const __grid_constant__ DecodeAttentionArgs args) {
  using namespace attention;
  using Shape = DecodeAttentionShape<D, G, WARPS, STAGES>;
  constexpr int kTile = Shape::kTile, kThreads = WARPS * 32, kPieces = D / 8, E = D / 32;
  extern __shared__ __align__(128) unsigned char memory[];
  __nv_bfloat16* queries = reinterpret_cast<__nv_bfloat16*>(memory + STAGES * 2 * Shape::kTileBytes);
  float* merge = reinterpret_cast<float*>(queries + 8 * D);
  __shared__ bool is_last;
  const int split = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int length = args.seq_lens[row];
  const int kv_heads = args.num_kv_heads;

  // Slices are whole tiles; the last one holds the new token.
  const int tiles = (length + kTile - 1) / kTile;
  const int tile0 = tiles * split / args.splits, tile1 = tiles * (split + 1) / args.splits;
  const bool owns_new = tile1 == tiles && tile1 > tile0;
  const int* table = args.block_tables + static_cast<size_t>(row) * args.table_width;

  const auto load_tile = [&](int tile) {
    unsigned char* base = memory + ((tile - tile0) % STAGES) * 2 * Shape::kTileBytes;
    for (int i = threadIdx.x; i < kTile * kPieces; i += kThreads) {
      const int token = i / kPieces, piece = i % kPieces, position = tile * kTile + token;
      const uint32_t offset = token * D * 2 + ((piece ^ (token & 7)) * 16);
      if (position < length - 1) {
        const size_t slot = static_cast<size_t>(__ldg(table + position / args.block_size)) * args.block_size + position % args.block_size;
        const size_t from = (slot * kv_heads + head) * D + piece * 8;
        copy_async(smem(base) + offset, args.key_cache + from);
        copy_async(smem(base) + Shape::kTileBytes + offset, args.value_cache + from);
      } else {
        // Past the end, and the new token, which is put here later: zeros, so that 0 x garbage cannot be NaN.
        *reinterpret_cast<uint4*>(base + offset) = make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4*>(base + Shape::kTileBytes + offset) = make_uint4(0, 0, 0, 0);
      }
    }
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (tile0 + s < tile1) load_tile(tile0 + s);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  if (length == 0) return;

  const int q_heads = kv_heads * G, position = length - 1;
  const __nv_bfloat16* qkv = args.qkv + static_cast<size_t>(row) * (q_heads + 2 * kv_heads) * D;
  const float* cos_sin = args.cos_sin + static_cast<size_t>(position) * D;
  for (int h = warp; h < 8; h += WARPS) {
    float v[E];
#pragma unroll
    for (int i = 0; i < E; ++i) v[i] = h < G ? __bfloat162float(qkv[(head * G + h) * D + lane * E + i]) : 0.f;
    if (h < G) norm_and_rotate<D>(v, args.q_norm, cos_sin, args.eps, lane);
#pragma unroll
    for (int i = 0; i < E; ++i) queries[h * D + lane * E + i] = __float2bfloat16(v[i]);
  }
  __nv_bfloat16 new_key[E], new_value[E];
  if (owns_new && warp == 0) {
    float v[E];
#pragma unroll
    for (int i = 0; i < E; ++i) v[i] = __bfloat162float(qkv[(q_heads + head) * D + lane * E + i]);
    norm_and_rotate<D>(v, args.k_norm, cos_sin, args.eps, lane);
    const size_t slot = static_cast<size_t>(table[position / args.block_size]) * args.block_size + position % args.block_size;
#pragma unroll
    for (int i = 0; i < E; ++i) {
      new_key[i] = __float2bfloat16(v[i]);
      new_value[i] = qkv[(q_heads + kv_heads + head) * D + lane * E + i];
      args.key_cache[(slot * kv_heads + head) * D + lane * E + i] = new_key[i];
      args.value_cache[(slot * kv_heads + head) * D + lane * E + i] = new_value[i];
    }
  }
  __syncthreads();
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
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    if (tile + STAGES - 1 < tile1) load_tile(tile + STAGES - 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
    unsigned char* base = memory + ((tile - tile0) % STAGES) * 2 * Shape::kTileBytes;
    if (owns_new && tile == tile1 - 1) {
      if (warp == 0) {
        const int token = position - tile * kTile;
#pragma unroll
        for (int i = 0; i < E; ++i) {
          const int d = lane * E + i;
          const int offset = token * D + (((d / 8) ^ (token & 7)) * 8) + d % 8;
          reinterpret_cast<__nv_bfloat16*>(base)[offset] = new_key[i];
          reinterpret_cast<__nv_bfloat16*>(base + Shape::kTileBytes)[offset] = new_value[i];
        }
      }
      __syncthreads();
    }
    float s[4] = {};
    const int token_row = warp * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t a[4];
      load_matrices(a, smem(base) + token_row * D * 2 + (((k * 2 + lane / 16) ^ (token_row & 7)) * 16));
      mma(s, a, q[k][0], q[k][1]);
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
    __nv_bfloat162 low = __floats2bfloat162_rn(s[0], s[1]), high = __floats2bfloat162_rn(s[2], s[3]);
    const uint32_t p0 = transpose(*reinterpret_cast<uint32_t*>(&low)), p1 = transpose(*reinterpret_cast<uint32_t*>(&high));
    // Matrices of ldmatrix: (tokens 0-7, d 0-7), (tokens 0-7, d 8-15), (tokens 8-15, d 0-7), (tokens 8-15, d 8-15), each turned.
    const int v_row = warp * 16 + lane % 8 + (lane / 16) * 8, v_half = (lane / 8) % 2;
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
      uint32_t a[4];
      load_matrices_transposed(a, smem(base) + Shape::kTileBytes + v_row * D * 2 + (((d * 2 + v_half) ^ (v_row & 7)) * 16));
      mma(o[d], a, p0, p1);
    }
  }
  // Every lane of a column held its own part of the sum.
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    total[c] += __shfl_xor_sync(0xffffffffu, total[c], 4);
    total[c] += __shfl_xor_sync(0xffffffffu, total[c], 8);
    total[c] += __shfl_xor_sync(0xffffffffu, total[c], 16);
  }
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
  __syncthreads();

  // Merges `count` partial results, `stride` floats apart, of dimension d of one head.
  const auto merged = [&](const float* part, int stride, int count, int d, float& m, float& l) {
    m = -INFINITY;
    for (int i = 0; i < count; ++i) m = fmaxf(m, part[i * stride + D]);
    float sum = 0.f;
    l = 0.f;
    for (int i = 0; i < count; ++i) {
      const float weight = part[i * stride + D] == -INFINITY ? 0.f : exp2f(part[i * stride + D] - m);
      sum += weight * part[i * stride + d];
      l += weight * part[i * stride + D + 1];
    }
    return sum;
  };
  __nv_bfloat16* out = args.out + (static_cast<size_t>(row) * q_heads + head * G) * D;
  float* work = args.workspace + (static_cast<size_t>(row) * kv_heads + head) * args.splits * G * (D + 2);
  for (int i = threadIdx.x; i < G * D; i += kThreads) {
    const int h = i / D, d = i % D;
    float m, l;
    const float sum = merged(merge + h * (D + 2), G * (D + 2), WARPS, d, m, l);
    if (args.splits == 1) {
      out[i] = __float2bfloat16(sum / l);
    } else {
      float* mine = work + (split * G + h) * (D + 2);
      mine[d] = sum;
      if (d == 0) {
        mine[D] = m;
        mine[D + 1] = l;
      }
    }
  }
  if (args.splits == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(args.counters + row * kv_heads + head, 1) == args.splits - 1;
    if (is_last) args.counters[row * kv_heads + head] = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = threadIdx.x; i < G * D; i += kThreads) {
    float m, l;
    const float sum = merged(work + (i / D) * (D + 2), G * (D + 2), args.splits, i % D, m, l);
    out[i] = __float2bfloat16(sum / l);
  }
}

template <int D, int G, int WARPS, int STAGES>
cudaError_t launch_decode_attention(const DecodeAttentionArgs& args, int batch, cudaStream_t stream) {
  auto kernel = decode_attention<D, G, WARPS, STAGES>;
  constexpr int kBytes = DecodeAttentionShape<D, G, WARPS, STAGES>::kBytes;
  static const cudaError_t once = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (once != cudaSuccess) return once;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(args.splits, args.num_kv_heads, batch);
  config.blockDim = dim3(WARPS * 32);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace xllm::cuda

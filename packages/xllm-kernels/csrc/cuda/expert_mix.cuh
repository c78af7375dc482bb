// A mixture of experts of up to eight tokens at memory speed: the experts that somebody chose are read once, and nothing is permuted.
//
// The tokens are the eight columns of every product, whoever chose what; what a token gets of an expert that it did not choose is dropped.
// Every block works the choice out for itself from the router's logits, which is cheaper than a kernel more.
//
//   gate_experts  gated[i][t] = silu(g) * u, (g, u) = the rows of the i-th chosen expert times norm(x[t]); a unit is 16 outputs of an expert
//   down_experts  x[t] += sum over i of weight[t][i] * down[i] gated[i][t]; a block takes 16 outputs of all experts, one after the other
//
// One thread keeps a ring of tiles of W filled by the bulk tensor copy engine; warps share K, with the layout of linear_stream.cuh. The
// ring of down_experts fills with W while gate_experts ends, and brings the gated rows, too: a lane's own loads take microseconds while
// memory is busy. Knows nothing of models.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "expert_choice.cuh"
#include "matrix.cuh"
#include "tensor_map.h"

namespace xllm::kernels::cuda {

struct MixParameters {
  CUtensorMap weight;                // gate_experts: planes 2 e (gate) and 2 e + 1 (up) of expert e; down_experts: plane e
  CUtensorMap gated_rows;            // down_experts: [chosen experts * tokens, inner] in boxes of as many rows as there are tokens
  const float* logits;               // [tokens, experts + 1]; the last is the scale of the token's norm
  const __nv_bfloat16* norm_weight;  // [hidden]
  __nv_bfloat16* x;                  // [tokens, hidden]
  __nv_bfloat16* gated;              // [chosen experts, tokens, inner]
  Choice choice;
  int num_tokens;
  int n;                             // rows of a plane
  int k;
};

// PLANES tiles of 16 rows of W; WK warps share K. XSTAGE: a stage brings KC columns of the tokens' rows, too.
template <int PLANES, int KC, int WK, int STAGES, bool XSTAGE>
struct MixShape {
  static constexpr int kPlanes = PLANES, kRows = 16 * PLANES, kKc = KC, kWk = WK, kStages = STAGES;
  static constexpr int kThreads = WK * 32, kBlockThreads = kThreads + 32, kChunks = KC / 32 / WK;
  static constexpr int kWeightBytes = kRows * KC * 2, kStageBytes = kWeightBytes + (XSTAGE ? kMixTokens * KC * 2 : 0);
  static constexpr int kStride = kMixTokens + 1, kPartialBytes = WK * kRows * kStride * 4, kBarrierBytes = 256, kAlignmentBytes = 1024;
  static_assert(STAGES * 16 <= kBarrierBytes && KC % (32 * WK) == 0 && KC % kBoxColumns == 0);
  static int bytes(int more) { return STAGES * kStageBytes + kPartialBytes + kBarrierBytes + kAlignmentBytes + more; }
};

// Shared memory of one block.
template <class Shape>
struct MixMemory {
  unsigned char* stages;
  float* partial;       // [WK][rows][tokens + 1]
  uint64_t* full;
  uint64_t* empty;
  unsigned char* more;  // gate_experts: tokens [tokens][k + 8]; down_experts: weights [tokens][experts]

  __device__ explicit MixMemory(unsigned char* unaligned) {
    stages = align_to_swizzle(unaligned);
    unsigned char* after = stages + Shape::kStages * Shape::kStageBytes;
    partial = reinterpret_cast<float*>(after);
    full = reinterpret_cast<uint64_t*>(after + Shape::kPartialBytes);
    empty = full + Shape::kStages;
    more = after + Shape::kPartialBytes + Shape::kBarrierBytes;
  }
};

// Who goes where, in shared memory.
struct MixChoice {
  uint32_t tokens[kMaxExperts];  // bit t: token t goes to the expert
  int experts[kMaxExperts];      // those that anybody goes to, by rising number
  int count;
};

// The whole block, a warp a token; also leaves the weights [tokens][experts] of what they chose, if there is room for them.
__device__ __forceinline__ void choose_for_block(const MixParameters& args, MixChoice& chosen, float* weights) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_experts = args.choice.num_experts;
  for (int e = threadIdx.x; e < num_experts; e += blockDim.x) chosen.tokens[e] = 0;
  __syncthreads();
  for (int token = warp; token < args.num_tokens; token += blockDim.x / 32) {
    const float* row = args.logits + token * (num_experts + 1);
    float logits[kMostPerLane];
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) logits[i] = lane + 32 * i < num_experts ? __ldcg(row + lane + 32 * i) : 0.f;
    const ChosenExpert mine = choose_experts(logits, args.choice, lane);
    if (lane < args.choice.top_k) {
      atomicOr(chosen.tokens + mine.expert, 1u << token);
      if (weights != nullptr) weights[token * num_experts + mine.expert] = mine.weight;
    }
  }
  __syncthreads();
  if (warp == 0) {
    int total = 0;
    for (int e = lane; e < num_experts; e += 32) {
      const bool is_chosen = chosen.tokens[e] != 0;
      const uint32_t some = __ballot_sync(0xffffffffu, is_chosen);
      if (is_chosen) chosen.experts[total + __popc(some & ((1u << lane) - 1))] = e;
      total += __popc(some);
    }
    if (lane == 0) chosen.count = total;
  }
  __syncthreads();
}

template <class Shape>
__device__ __forceinline__ void begin_ring(const MixMemory<Shape>& memory) {
  if (threadIdx.x != 0) return;
  for (int s = 0; s < Shape::kStages; ++s) {
    barrier_init(memory.full + s, 1);
    barrier_init(memory.empty + s, Shape::kWk);
  }
  barrier_init_fence();
}

// A place in the ring.
template <class Shape>
struct RingPlace {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Asks for a stage: KC columns of 16 rows of an expert's planes.
template <class Shape>
__device__ __forceinline__ void copy_weight(const MixParameters& args, const MixMemory<Shape>& memory, int stage, int expert, int row,
                                            int column, int more_bytes, uint64_t policy) {
  unsigned char* base = memory.stages + stage * Shape::kStageBytes;
  barrier_expect(memory.full + stage, Shape::kWeightBytes + more_bytes);
#pragma unroll
  for (int box = 0; box < Shape::kKc / kBoxColumns; ++box) {
    copy_stacked_box(base + box * Shape::kRows * 128, &args.weight, column + box * kBoxColumns, row, expert * Shape::kPlanes,
                     memory.full + stage, policy);
  }
}

// The first column of this lane's piece of chunk `c` of a stage, and where it lies in row `g` of boxes of `rows` rows.
__device__ __forceinline__ int column_of_chunk(int c, int t) { return c / 2 * kBoxColumns + (2 * t + c % 2) * 8; }
__device__ __forceinline__ int place_of_piece(int c, int rows, int row, int g, int t) {
  return (c / 2 * rows + row + g) * 128 + ((2 * t + c % 2) ^ g) * 16;
}

// Adds the products of chunk `c` of a stage with this lane's piece of x.
template <class Shape>
__device__ __forceinline__ void multiply_chunk(const unsigned char* base, int c, const uint4& x, int g, int t,
                                               float (&sums)[Shape::kPlanes][4]) {
#pragma unroll
  for (int m = 0; m < Shape::kPlanes; ++m) {
    const unsigned char* row = base + place_of_piece(c, Shape::kRows, m * 16, g, t);
    const uint4 a = *reinterpret_cast<const uint4*>(row), b = *reinterpret_cast<const uint4*>(row + 8 * 128);
    multiply_add(sums[m], a.x, b.x, a.y, b.y, x.x, x.y);
    multiply_add(sums[m], a.z, b.z, a.w, b.w, x.z, x.w);
  }
}

// Leaves a warp's sums where those of all warps meet; a barrier must follow.
template <class Shape>
__device__ __forceinline__ void leave_mix_sums(const MixMemory<Shape>& memory, int wk, int g, int t, const float (&sums)[Shape::kPlanes][4]) {
#pragma unroll
  for (int m = 0; m < Shape::kPlanes; ++m) {
    float* mine = memory.partial + (wk * Shape::kRows + m * 16 + g) * Shape::kStride + 2 * t;
    mine[0] = sums[m][0];
    mine[1] = sums[m][1];
    mine[8 * Shape::kStride] = sums[m][2];
    mine[8 * Shape::kStride + 1] = sums[m][3];
  }
}

template <class Shape>
__device__ __forceinline__ float mix_total(const MixMemory<Shape>& memory, int row, int token) {
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < Shape::kWk; ++w) sum += memory.partial[(w * Shape::kRows + row) * Shape::kStride + token];
  return sum;
}

// Begins to bring the tokens to shared memory.
template <class Shape>
__device__ __forceinline__ void copy_tokens(const MixParameters& args, __nv_bfloat16* resident) {
  for (int b = 0; b < args.num_tokens; ++b) {
    for (int c = threadIdx.x; c < args.k / 8; c += Shape::kThreads) {
      copy_piece(resident + b * (args.k + 8) + c * 8, args.x + int64_t{b} * args.k + c * 8);
    }
  }
}

// Multiplies them by the norm's weight, each thread what it brought.
template <class Shape>
__device__ __forceinline__ void weigh_tokens(const MixParameters& args, __nv_bfloat16* resident) {
  wait_for_pieces();
  for (int c = threadIdx.x; c < args.k / 8; c += Shape::kThreads) {
    const uint4 w = __ldg(reinterpret_cast<const uint4*>(args.norm_weight) + c);
    for (int b = 0; b < args.num_tokens; ++b) {
      auto* piece = reinterpret_cast<uint4*>(resident + b * (args.k + 8) + c * 8);
      float squares = 0.f;  // the router's business
      *piece = weigh_piece<BFloat16Element>(*piece, w, squares);
    }
  }
}

// Writes 16 gated outputs of the tokens that go to the expert.
template <class Shape>
__device__ __forceinline__ void write_gated(const MixParameters& args, const MixMemory<Shape>& memory, const float* scales, uint32_t tokens,
                                            int listed, int row0) {
  for (int i = threadIdx.x; i < 16 * args.num_tokens; i += Shape::kThreads) {
    const int row = i % 16, token = i / 16;
    if ((tokens >> token & 1) == 0) continue;
    const float gate = mix_total(memory, row, token) * scales[token], up = mix_total(memory, 16 + row, token) * scales[token];
    args.gated[(int64_t{listed} * args.num_tokens + token) * args.n + row0 + row] = __float2bfloat16(silu_times(gate, up));
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kBlockThreads) gate_experts_kernel(const __grid_constant__ MixParameters args) {
  extern __shared__ unsigned char unaligned[];
  __shared__ MixChoice chosen;
  __shared__ float scales[kMixTokens];
  const MixMemory<Shape> memory(unaligned);
  auto* resident = reinterpret_cast<__nv_bfloat16*>(memory.more);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  begin_ring(memory);
  // down_experts may start once the logits are there, and read them before it waits.
  wait_for_prerequisites();
  launch_dependents();
  if (warp < Shape::kWk) copy_tokens<Shape>(args, resident);
  if (threadIdx.x < args.num_tokens) scales[threadIdx.x] = __ldcg(args.logits + (threadIdx.x + 1) * (args.choice.num_experts + 1) - 1);
  choose_for_block(args, chosen, nullptr);

  const int tiles = args.n / 16, units = chosen.count * tiles;
  const int u0 = static_cast<int>(int64_t{units} * blockIdx.x / gridDim.x), u1 = static_cast<int>(int64_t{units} * (blockIdx.x + 1) / gridDim.x);
  RingPlace<Shape> at;
  if (warp == Shape::kWk) {
    if (lane != 0) return;
    const uint64_t once = evict_first_policy();
    for (int u = u0; u < u1; ++u) {
      for (int column = 0; column < args.k; column += Shape::kKc) {
        barrier_wait(memory.empty + at.stage, at.parity ^ 1);
        copy_weight(args, memory, at.stage, chosen.experts[u / tiles], u % tiles * 16, column, 0, once);
        at.advance();
      }
    }
    return;
  }
  weigh_tokens<Shape>(args, resident);
  sync_threads<Shape::kThreads>();
  const int g = lane / 4, t = lane % 4;
  // Columns past the tokens repeat the last one: their products are never read.
  const __nv_bfloat16* x = resident + min(g, args.num_tokens - 1) * (args.k + 8);
  for (int u = u0; u < u1; ++u) {
    float sums[Shape::kPlanes][4] = {};
    for (int k0 = 0; k0 < args.k; k0 += Shape::kKc) {
      barrier_wait(memory.full + at.stage, at.parity);
#pragma unroll
      for (int i = 0; i < Shape::kChunks; ++i) {
        const int c = warp + i * Shape::kWk;
        multiply_chunk<Shape>(memory.stages + at.stage * Shape::kStageBytes, c, *reinterpret_cast<const uint4*>(x + k0 + column_of_chunk(c, t)), g, t, sums);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(memory.empty + at.stage);
      at.advance();
    }
    leave_mix_sums<Shape>(memory, warp, g, t, sums);
    sync_threads<Shape::kThreads>();
    write_gated<Shape>(args, memory, scales, chosen.tokens[chosen.experts[u / tiles]], u / tiles, u % tiles * 16);
    sync_threads<Shape::kThreads>();
  }
}

// The copying thread: W does not depend on gate_experts, the gated rows do, so the ring is full of W when they may be read.
template <class Shape>
__device__ __forceinline__ void copy_down(const MixParameters& args, const MixMemory<Shape>& memory, const MixChoice& chosen, int tiles) {
  const uint64_t once = evict_first_policy(), often = evict_last_policy();
  const int row_bytes = args.num_tokens * Shape::kKc * 2, steps = args.k / Shape::kKc, of_tile = chosen.count * steps;
  const int total = (tiles - static_cast<int>(blockIdx.x) + gridDim.x - 1) / gridDim.x * of_tile, ahead = min(Shape::kStages, total);
  const auto copy_rows = [&](int i, int stage) {
    unsigned char* base = memory.stages + stage * Shape::kStageBytes + Shape::kWeightBytes;
    const int listed = i % of_tile / steps, column = i % steps * Shape::kKc;
#pragma unroll
    for (int box = 0; box < Shape::kKc / kBoxColumns; ++box) {
      copy_box(base + box * kMixTokens * 128, &args.gated_rows, column + box * kBoxColumns, listed * args.num_tokens, memory.full + stage, often);
    }
  };
  const auto copy_tile = [&](int i, int stage) {
    const int tile = blockIdx.x + i / of_tile * gridDim.x, listed = i % of_tile / steps;
    copy_weight(args, memory, stage, chosen.experts[listed], tile * 16, i % steps * Shape::kKc, row_bytes, once);
  };
  for (int i = 0; i < ahead; ++i) copy_tile(i, i);
  wait_for_prerequisites();
  for (int i = 0; i < ahead; ++i) copy_rows(i, i);
  for (int i = ahead; i < total; ++i) {
    const int stage = i % Shape::kStages;
    barrier_wait(memory.empty + stage, (i / Shape::kStages - 1) & 1);
    copy_tile(i, stage);
    copy_rows(i, stage);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kBlockThreads) down_experts_kernel(const __grid_constant__ MixParameters args) {
  extern __shared__ unsigned char unaligned[];
  __shared__ MixChoice chosen;
  const MixMemory<Shape> memory(unaligned);
  auto* weights = reinterpret_cast<float*>(memory.more);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tiles = args.n / 16;
  begin_ring(memory);
  choose_for_block(args, chosen, weights);
  launch_dependents();
  if (warp == Shape::kWk) {
    if (lane == 0) copy_down<Shape>(args, memory, chosen, tiles);
    return;
  }
  wait_for_prerequisites();
  const int g = lane / 4, t = lane % 4;
  RingPlace<Shape> at;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float mixed[1][4] = {};
    for (int i = 0; i < chosen.count; ++i) {
      float sums[1][4] = {};
      for (int k0 = 0; k0 < args.k; k0 += Shape::kKc) {
        barrier_wait(memory.full + at.stage, at.parity);
        const unsigned char* base = memory.stages + at.stage * Shape::kStageBytes;
#pragma unroll
        for (int j = 0; j < Shape::kChunks; ++j) {
          const int c = warp + j * Shape::kWk;
          const uint4 x = *reinterpret_cast<const uint4*>(base + Shape::kWeightBytes + place_of_piece(c, kMixTokens, 0, g, t));
          multiply_chunk<Shape>(base, c, x, g, t, sums);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(memory.empty + at.stage);
        at.advance();
      }
      const int expert = chosen.experts[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = 2 * t + j % 2;
        if (chosen.tokens[expert] >> token & 1) mixed[0][j] += weights[token * args.choice.num_experts + expert] * sums[0][j];
      }
    }
    leave_mix_sums<Shape>(memory, warp, g, t, mixed);
    sync_threads<Shape::kThreads>();
    for (int i = threadIdx.x; i < 16 * args.num_tokens; i += Shape::kThreads) {
      __nv_bfloat16* out = args.x + int64_t{i / 16} * args.n + tile * 16 + i % 16;
      *out = __float2bfloat16(__bfloat162float(*out) + mix_total(memory, i % 16, i / 16));
    }
    sync_threads<Shape::kThreads>();
  }
}

}  // namespace xllm::kernels::cuda

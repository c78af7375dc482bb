// A mixture of experts of up to eight tokens at memory speed: the experts that somebody chose are read once, and nothing is permuted.
//
// The tokens are the eight columns of every product, whoever chose what. Every block works the choice out for itself from the router's
// logits, which is cheaper than a kernel more.
//
//   gate  gated[p] = weight[p] * silu(g) * u for each pair p of a token and an expert; (g, u) = the expert's rows times norm(x[token]).
//         A unit is 16 outputs of a chosen expert; blocks share the units out evenly
//   down  x[token] += the rows of down of all chosen experts, as one long row, times the gated numbers of its pairs, zeros between them.
//         A unit is 16 outputs
//
// All blocks run at once and meet between the two products. One thread keeps a ring of tiles of W filled by the bulk tensor copy engine;
// it does not wait for others, so memory stays busy while they meet. Eight warps share K, with the layout of linear_stream.cuh: chunk c
// is half of box c / 2. Knows nothing of models.
#pragma once

#include "async_copy.cuh"
#include "element.cuh"
#include "expert_choice.cuh"
#include "expert_logits.cuh"
#include "grid_barrier.cuh"
#include "matrix.cuh"
#include "tensor_map.h"

namespace xllm::kernels::cuda {

struct MixParameters {
  CUtensorMap gate_up;               // planes 2 e (gate) and 2 e + 1 (up) of expert e, in boxes of two planes and 16 rows
  CUtensorMap down;                  // plane e, in boxes of 16 rows
  const float* logits;               // [tokens, experts + 1]; the last is the scale of the token's norm
  const __nv_bfloat16* norm_weight;  // [hidden]
  __nv_bfloat16* x;                  // [tokens, hidden]
  __nv_bfloat16* gated;              // [pairs, inner]
  uint32_t* barrier;
  Choice choice;
  int num_tokens;
  int hidden;
  int inner;
  int stages;
};

constexpr int kMixWarps = 8, kMixThreads = kMixWarps * 32, kMixBlockThreads = kMixThreads + 32;
constexpr int kGateBoxes = 4, kDownBoxes = 8;                                // of a stage
constexpr int kDownBoxBytes = 16 * 128, kGateBoxBytes = 2 * kDownBoxBytes;
constexpr int kMixStageBytes = kGateBoxes * kGateBoxBytes;
constexpr int kMixStride = kMixTokens + 1;
constexpr int kMixPartialBytes = kMixWarps * 32 * kMixStride * 4, kMixBarrierBytes = 256;
constexpr int kMixMostStages = kMixBarrierBytes / 16, kMixFixedBytes = kMixPartialBytes + kMixBarrierBytes + 1024;
constexpr int kMostPairs = kMixTokens * kMaxExpertsPerToken, kNoPair = 255;
static_assert(kDownBoxes * kDownBoxBytes == kMixStageBytes && kMostPairs <= kNoPair);

// Shared memory of one block.
struct MixMemory {
  unsigned char* stages;
  float* partial;       // [warps][32 rows][tokens + 1]
  uint64_t* full;
  uint64_t* empty;
  __nv_bfloat16* rows;  // the tokens [tokens][hidden + 8], then the gated numbers [pairs][inner + 8]

  __device__ MixMemory(unsigned char* unaligned, int num_stages) {
    stages = align_to_swizzle(unaligned);
    unsigned char* after = stages + num_stages * kMixStageBytes;
    partial = reinterpret_cast<float*>(after);
    full = reinterpret_cast<uint64_t*>(after + kMixPartialBytes);
    empty = full + kMixMostStages;
    rows = reinterpret_cast<__nv_bfloat16*>(after + kMixPartialBytes + kMixBarrierBytes);
  }
};

// Who goes where, in shared memory. Pair j * tokens + t is that of token t and the j-th of its experts.
struct MixChoice {
  uint32_t places[kMaxExperts];  // first who goes to the expert, a bit a token, then where the expert is listed
  int experts[kMostPairs];       // those that anybody goes to, by rising number
  int count;
  float weights[kMostPairs];     // of the pairs
  uint8_t pairs[kMostPairs][kMixTokens];  // that of a listed expert and a token, or kNoPair
};

// A warp a token: which experts it goes to.
__device__ __forceinline__ ChosenExpert choose_for_token(const MixParameters& args, int token, int lane) {
  const float* row = args.logits + token * (args.choice.num_experts + 1);
  float logits[kMostPerLane];
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) logits[i] = lane + 32 * i < args.choice.num_experts ? __ldcg(row + lane + 32 * i) : 0.f;
  return choose_experts(logits, args.choice, lane);
}

// One warp lists the experts that anybody goes to.
__device__ __forceinline__ void list_experts(MixChoice& chosen, int num_experts, int lane) {
  int total = 0;
  for (int e = lane; e < num_experts; e += 32) {
    const bool is_chosen = chosen.places[e] != 0;
    const uint32_t some = __ballot_sync(0xffffffffu, is_chosen);
    const int place = total + __popc(some & ((1u << lane) - 1));
    if (is_chosen) chosen.experts[place] = e;
    chosen.places[e] = place;
    total += __popc(some);
  }
  if (lane == 0) chosen.count = total;
}

// The whole block: nobody goes anywhere yet. A barrier must follow.
__device__ __forceinline__ void clear_choice(const MixParameters& args, MixChoice& chosen) {
  for (int e = threadIdx.x; e < args.choice.num_experts; e += kMixBlockThreads) chosen.places[e] = 0;
  for (int i = threadIdx.x; i < kMostPairs * kMixTokens / 4; i += kMixBlockThreads) reinterpret_cast<uint32_t*>(chosen.pairs)[i] = 0xffffffffu;
}

// The whole block. Pairs and weights are there for the eight warps that share K after their next barrier.
__device__ __forceinline__ void choose_for_block(const MixParameters& args, MixChoice& chosen, int warp, int lane) {
  const bool has_choice = warp < args.num_tokens && lane < args.choice.top_k;
  ChosenExpert mine{};
  if (warp < args.num_tokens) mine = choose_for_token(args, warp, lane);
  if (has_choice) atomicOr(chosen.places + mine.expert, 1u << warp);
  __syncthreads();
  if (warp == 0) list_experts(chosen, args.choice.num_experts, lane);
  __syncthreads();
  if (!has_choice) return;
  const int pair = lane * args.num_tokens + warp;
  chosen.pairs[chosen.places[mine.expert]][warp] = static_cast<uint8_t>(pair);
  chosen.weights[pair] = mine.weight;
}

// The copying warp for one token, so that it can begin before it meets the others, who see the choice once they have met it.
__device__ __forceinline__ void choose_for_copies(const MixParameters& args, MixChoice& chosen, int lane) {
  const ChosenExpert mine = choose_for_token(args, 0, lane);
  if (lane < args.choice.top_k) {
    chosen.experts[lane] = mine.expert;
    chosen.weights[lane] = mine.weight;
    chosen.pairs[lane][0] = static_cast<uint8_t>(lane);
  }
  if (lane == 0) chosen.count = args.choice.top_k;
  __syncwarp();
}

// Which units of gate are a block's.
struct GateUnits {
  int tiles;  // of an expert
  int first, end;

  __device__ GateUnits(const MixParameters& args, const MixChoice& chosen) {
    tiles = args.inner / 16;
    const int units = chosen.count * tiles;
    first = units * blockIdx.x / gridDim.x;
    end = units * (blockIdx.x + 1) / gridDim.x;
  }
};

// The copying thread.
__device__ __forceinline__ void copy_mixture(const MixParameters& args, const MixMemory& memory, const MixChoice& chosen, const GateUnits& units) {
  const uint64_t once = evict_first_policy();
  RingPlace at{args.stages};
  for (int u = units.first; u < units.end; ++u) {
    const int plane = chosen.experts[u / units.tiles] * 2, row = u % units.tiles * 16;
    for (int column = 0; column < args.hidden; column += kGateBoxes * kBoxColumns) {
      const int boxes = min(kGateBoxes, (args.hidden - column) / kBoxColumns);
      unsigned char* base = memory.stages + at.stage * kMixStageBytes;
      barrier_wait(memory.empty + at.stage, at.parity ^ 1);
      barrier_expect(memory.full + at.stage, boxes * kGateBoxBytes);
      for (int i = 0; i < boxes; ++i) {
        copy_stacked_box(base + i * kGateBoxBytes, &args.gate_up, column + i * kBoxColumns, row, plane, memory.full + at.stage, once);
      }
      at.advance();
    }
  }
  const int total = chosen.count * (args.inner / kBoxColumns);
  for (int row = blockIdx.x * 16; row < args.hidden; row += gridDim.x * 16) {
    int listed = 0, column = 0;
    for (int box = 0; box < total; box += kDownBoxes) {
      const int boxes = min(kDownBoxes, total - box);
      unsigned char* base = memory.stages + at.stage * kMixStageBytes;
      barrier_wait(memory.empty + at.stage, at.parity ^ 1);
      barrier_expect(memory.full + at.stage, boxes * kDownBoxBytes);
      for (int i = 0; i < boxes; ++i) {
        copy_stacked_box(base + i * kDownBoxBytes, &args.down, column, row, chosen.experts[listed], memory.full + at.stage, once);
        column += kBoxColumns;
        if (column == args.inner) {
          column = 0;
          ++listed;
        }
      }
      at.advance();
    }
  }
}

// Begins to bring `count` rows of `size` numbers to shared memory.
__device__ __forceinline__ void copy_rows(__nv_bfloat16* resident, const __nv_bfloat16* rows, int count, int size) {
  for (int b = 0; b < count; ++b) {
    for (int c = threadIdx.x; c < size / 8; c += kMixThreads) copy_piece(resident + b * (size + 8) + c * 8, rows + int64_t{b} * size + c * 8);
  }
}

// Multiplies the tokens by the norm's weight, each thread what it brought.
__device__ __forceinline__ void weigh_tokens(const MixParameters& args, __nv_bfloat16* resident) {
  wait_for_pieces();
  for (int c = threadIdx.x; c < args.hidden / 8; c += kMixThreads) {
    const uint4 w = __ldg(reinterpret_cast<const uint4*>(args.norm_weight) + c);
    for (int b = 0; b < args.num_tokens; ++b) {
      auto* piece = reinterpret_cast<uint4*>(resident + b * (args.hidden + 8) + c * 8);
      float squares = 0.f;  // the router's business
      *piece = weigh_piece<BFloat16Element>(*piece, w, squares);
    }
  }
}

// Adds the products of chunk `c` of a stage with this lane's piece of x; a box has 16 rows of each of PLANES.
template <int PLANES>
__device__ __forceinline__ void multiply_chunk(const unsigned char* base, int c, const uint4& x, int g, int t, float (&sums)[PLANES][4]) {
#pragma unroll
  for (int m = 0; m < PLANES; ++m) {
    const unsigned char* row = base + (c / 2 * 16 * PLANES + m * 16 + g) * 128 + ((2 * t + c % 2) ^ g) * 16;
    const uint4 a = *reinterpret_cast<const uint4*>(row), b = *reinterpret_cast<const uint4*>(row + 8 * 128);
    multiply_add(sums[m], a.x, b.x, a.y, b.y, x.x, x.y);
    multiply_add(sums[m], a.z, b.z, a.w, b.w, x.z, x.w);
  }
}

// Leaves a warp's sums where those of all warps meet.
template <int PLANES>
__device__ __forceinline__ void leave_mix_sums(const MixMemory& memory, int warp, int g, int t, const float (&sums)[PLANES][4]) {
#pragma unroll
  for (int m = 0; m < PLANES; ++m) {
    float* mine = memory.partial + (warp * 32 + m * 16 + g) * kMixStride + 2 * t;
    mine[0] = sums[m][0];
    mine[1] = sums[m][1];
    mine[8 * kMixStride] = sums[m][2];
    mine[8 * kMixStride + 1] = sums[m][3];
  }
  sync_threads<kMixThreads>();
}

__device__ __forceinline__ float mix_total(const MixMemory& memory, int row, int token) {
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < kMixWarps; ++w) sum += memory.partial[(w * 32 + row) * kMixStride + token];
  return sum;
}

// The ring's stages have been read by this warp.
__device__ __forceinline__ void release_stage(const MixMemory& memory, RingPlace& at, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(memory.empty + at.stage);
  at.advance();
}

__device__ __forceinline__ void gate_mixture(const MixParameters& args, const MixMemory& memory, const MixChoice& chosen, const GateUnits& units,
                                             const float* scales, RingPlace& at, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
  // Columns past the tokens repeat the last one: their products are never read.
  const __nv_bfloat16* x = memory.rows + min(g, args.num_tokens - 1) * (args.hidden + 8) + column_of_chunk(warp, t);
  for (int u = units.first; u < units.end; ++u) {
    float sums[2][4] = {};
    for (int column = 0; column < args.hidden; column += kGateBoxes * kBoxColumns) {
      barrier_wait(memory.full + at.stage, at.parity);
      if (column + warp / 2 * kBoxColumns < args.hidden) {
        multiply_chunk(memory.stages + at.stage * kMixStageBytes, warp, *reinterpret_cast<const uint4*>(x + column), g, t, sums);
      }
      release_stage(memory, at, lane);
    }
    leave_mix_sums(memory, warp, g, t, sums);
    for (int i = threadIdx.x; i < 16 * args.num_tokens; i += kMixThreads) {
      const int row = i % 16, token = i / 16, pair = chosen.pairs[u / units.tiles][token];
      if (pair == kNoPair) continue;
      const float gate = mix_total(memory, row, token) * scales[token], up = mix_total(memory, 16 + row, token) * scales[token];
      args.gated[int64_t{pair} * args.inner + u % units.tiles * 16 + row] = __float2bfloat16(silu_times(gate, up) * chosen.weights[pair]);
    }
    sync_threads<kMixThreads>();
  }
}

__device__ __forceinline__ void down_mixture(const MixParameters& args, const MixMemory& memory, const MixChoice& chosen, RingPlace& at, int warp,
                                             int lane) {
  const int g = lane / 4, t = lane % 4, boxes = args.inner / kBoxColumns, total = chosen.count * boxes;
  const __nv_bfloat16* gated = memory.rows + column_of_chunk(warp % 2, t);
  for (int row0 = blockIdx.x * 16; row0 < args.hidden; row0 += gridDim.x * 16) {
    const int row = threadIdx.x % 16, token = threadIdx.x / 16;
    __nv_bfloat16* out = args.x + int64_t{token} * args.hidden + row0 + row;
    const float before = token < args.num_tokens ? __bfloat162float(*out) : 0.f;
    float sums[1][4] = {};
    int listed = warp / 2 / boxes, box = warp / 2 % boxes;  // this warp's next chunk is in that box of that expert
    for (int first = 0; first < total; first += kDownBoxes) {
      barrier_wait(memory.full + at.stage, at.parity);
#pragma unroll
      for (int c = warp; c < 2 * kDownBoxes; c += kMixWarps) {
        if (first + c / 2 >= total) break;
        const int pair = chosen.pairs[listed][g];
        uint4 x = make_uint4(0, 0, 0, 0);
        if (pair != kNoPair) x = *reinterpret_cast<const uint4*>(gated + pair * (args.inner + 8) + box * kBoxColumns);
        multiply_chunk(memory.stages + at.stage * kMixStageBytes, c, x, g, t, sums);
        box += kMixWarps / 2;
        while (box >= boxes) {
          box -= boxes;
          ++listed;
        }
      }
      release_stage(memory, at, lane);
    }
    leave_mix_sums(memory, warp, g, t, sums);
    if (token < args.num_tokens) *out = __float2bfloat16(before + mix_total(memory, row, token));
    sync_threads<kMixThreads>();
  }
}

__global__ void __launch_bounds__(kMixBlockThreads, 1) mix_experts_kernel(const __grid_constant__ MixParameters args) {
  extern __shared__ unsigned char unaligned[];
  __shared__ MixChoice chosen;
  __shared__ float scales[kMixTokens];
  const MixMemory memory(unaligned, args.stages);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < args.stages; ++s) {
      barrier_init(memory.full + s, 1);
      barrier_init(memory.empty + s, kMixWarps);
    }
    barrier_init_fence();
  }
  clear_choice(args, chosen);
  __syncthreads();
  if (warp == kMixWarps && lane == 0) {
    prefetch_map(&args.gate_up);
    prefetch_map(&args.down);
  }
  wait_for_prerequisites();
  const uint32_t phase = threadIdx.x == 0 ? barrier_phase(args.barrier) : 0;
  if (warp < kMixWarps) copy_rows(memory.rows, args.x, args.num_tokens, args.hidden);
  if (threadIdx.x < args.num_tokens) scales[threadIdx.x] = __ldcg(args.logits + (threadIdx.x + 1) * (args.choice.num_experts + 1) - 1);
  constexpr int kChosen = 2;  // the barrier after which all warps know the choice for one token
  const bool is_alone = args.num_tokens == 1;
  if (!is_alone) choose_for_block(args, chosen, warp, lane);
  if (warp == kMixWarps) {
    if (is_alone) {
      choose_for_copies(args, chosen, lane);
      arrive_threads<kMixBlockThreads, kChosen>();
    }
    if (lane == 0) copy_mixture(args, memory, chosen, GateUnits(args, chosen));
    return;
  }
  weigh_tokens(args, memory.rows);
  if (is_alone) sync_threads<kMixBlockThreads, kChosen>();
  else sync_threads<kMixThreads>();
  const GateUnits units(args, chosen);
  RingPlace at{args.stages};
  gate_mixture(args, memory, chosen, units, scales, at, warp, lane);
  launch_dependents();  // not before: the next kernel's ring fills while blocks meet, and takes nothing from gate
  if (threadIdx.x == 0) {
    arrive_at_blocks(args.barrier);
    wait_for_blocks(args.barrier, phase);
  }
  sync_threads<kMixThreads>();
  copy_rows(memory.rows, args.gated, args.num_tokens * args.choice.top_k, args.inner);
  wait_for_pieces();
  sync_threads<kMixThreads>();
  down_mixture(args, memory, chosen, at, warp, lane);
}

}  // namespace xllm::kernels::cuda

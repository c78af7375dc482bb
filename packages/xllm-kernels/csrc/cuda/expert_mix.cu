// The router of a mixture of few tokens, and the launches of its three kernels.
#include "expert_mix.cuh"

#include <algorithm>
#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kRouterWarps = 16, kRouterThreads = kRouterWarps * 32;
constexpr int kMostChunks = 8;  // of 32 numbers of a row, that a warp of the router takes

struct RouterParameters {
  const __nv_bfloat16* x;            // [tokens, size]
  const __nv_bfloat16* norm_weight;  // [size]
  const __nv_bfloat16* gate;         // [experts, size]
  float* logits;                     // [tokens, experts + 1]
  int num_tokens;
  int num_experts;
  int size;
  float eps;
};

// A block computes the logits of 16 experts for all tokens, its warps share K; the gate's pieces have come before the tokens have.
__global__ void __launch_bounds__(kRouterThreads) router_logits_kernel(const __grid_constant__ RouterParameters args) {
  __shared__ float sums[kRouterWarps][16][kMixTokens + 1], all_squares[kRouterWarps][kMixTokens];
  launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, chunks = args.size / 32;
  const auto piece_of = [&](const __nv_bfloat16* row, int i) { return __ldg(reinterpret_cast<const uint4*>(row + column_of_chunk(warp + i * kRouterWarps, t))); };
  const __nv_bfloat16* gate = args.gate + (int64_t{blockIdx.x} * 16 + g) * args.size;
  uint4 low[kMostChunks], high[kMostChunks], norm[kMostChunks];
#pragma unroll
  for (int i = 0; i < kMostChunks; ++i) {
    if (warp + i * kRouterWarps >= chunks) break;
    low[i] = piece_of(gate, i);
    high[i] = piece_of(gate + 8 * args.size, i);
    norm[i] = piece_of(args.norm_weight, i);
  }
  wait_for_prerequisites();
  // Columns past the tokens repeat the last one: their products are never read.
  const __nv_bfloat16* row = args.x + int64_t{min(g, args.num_tokens - 1)} * args.size;
  float products[4] = {}, squares = 0.f;
#pragma unroll
  for (int i = 0; i < kMostChunks; ++i) {
    if (warp + i * kRouterWarps >= chunks) break;
    uint4 x = *reinterpret_cast<const uint4*>(row + column_of_chunk(warp + i * kRouterWarps, t));
    x = weigh_piece<BFloat16Element>(x, norm[i], squares);
    multiply_add(products, low[i].x, high[i].x, low[i].y, high[i].y, x.x, x.y);
    multiply_add(products, low[i].z, high[i].z, low[i].w, high[i].w, x.z, x.w);
  }
  squares += __shfl_xor_sync(0xffffffffu, squares, 1);
  squares += __shfl_xor_sync(0xffffffffu, squares, 2);
  if (t == 0) all_squares[warp][g] = squares;
  sums[warp][g][2 * t] = products[0];
  sums[warp][g][2 * t + 1] = products[1];
  sums[warp][g + 8][2 * t] = products[2];
  sums[warp][g + 8][2 * t + 1] = products[3];
  __syncthreads();
  const int expert = threadIdx.x % 16, token = threadIdx.x / 16;
  if (token >= args.num_tokens) return;
  float sum = 0.f, square = 0.f;
#pragma unroll
  for (int w = 0; w < kRouterWarps; ++w) {
    sum += sums[w][expert][token];
    square += all_squares[w][token];
  }
  const float scale = rsqrtf(square / args.size + args.eps);
  float* logits = args.logits + token * (args.num_experts + 1);
  logits[blockIdx.x * 16 + expert] = sum * scale;
  if (blockIdx.x == 0 && expert == 0) logits[args.num_experts] = scale;
}

// Rings of both kernels must fit one multiprocessor together, or down_experts' cannot fill while gate_experts ends: with 6 stages of the
// first eight tokens took 143 us instead of 134 (H200, 128 experts of 2048 x 768, 8 a token).
using Gate = MixShape<2, 256, 8, 4, false>;
using GateSmall = MixShape<2, 64, 2, 8, false>;
using DownWhole = MixShape<1, 768, 8, 3, true>;
using Down = MixShape<1, 256, 8, 8, true>;
using DownSmall = MixShape<1, 64, 2, 16, true>;

template <class Shape>
void run_gate(const MixParameters& parameters, void* stream) {
  const int bytes = Shape::bytes(parameters.num_tokens * (parameters.k + 8) * 2);
  allow_shared_bytes(gate_experts_kernel<Shape>, bytes, "mix_experts");
  launch(gate_experts_kernel<Shape>, "gate_experts", {dim3(num_multiprocessors()), Shape::kBlockThreads, bytes}, parameters, stream);
}

template <class Shape>
void run_down(const MixParameters& parameters, void* stream) {
  const int bytes = Shape::bytes(parameters.num_tokens * parameters.choice.num_experts * 4);
  const int blocks = std::min(num_multiprocessors(), parameters.n / 16);
  allow_shared_bytes(down_experts_kernel<Shape>, bytes, "mix_experts");
  launch(down_experts_kernel<Shape>, "down_experts", {dim3(blocks), Shape::kBlockThreads, bytes}, parameters, stream);
}

}  // namespace

const char* why_no_mix_experts(int64_t num_experts, int64_t top_k, int64_t hidden, int64_t inner) {
  if (num_experts < 32 || num_experts > kMaxExperts || num_experts % 32 != 0) return "the number of experts must be a multiple of 32 up to 256";
  if (top_k < 1 || top_k > kMaxExpertsPerToken) return "a token takes 1 to 16 experts";
  if (hidden < 64 || inner < 64 || hidden % 64 != 0 || inner % 64 != 0) return "the hidden and the inner size must be multiples of 64";
  if (hidden > 32 * kRouterWarps * kMostChunks || inner > 16384) return "the sizes are out of range";
  return nullptr;
}

void mix_experts(const MixExpertsArgs& args, void* stream) {
  if (const char* reason = why_no_mix_experts(args.num_experts, args.top_k, args.hidden, args.inner)) throw std::invalid_argument(reason);
  if (args.num_tokens < 1 || args.num_tokens > kMixTokens) throw std::invalid_argument("mix_experts takes 1 to 8 tokens");
  MixParameters parameters{};
  parameters.logits = args.logits;
  parameters.norm_weight = static_cast<const __nv_bfloat16*>(args.norm_weight);
  parameters.x = static_cast<__nv_bfloat16*>(args.x);
  parameters.gated = static_cast<__nv_bfloat16*>(args.gated);
  parameters.choice = {args.num_experts, args.top_k, args.renormalises};
  parameters.num_tokens = args.num_tokens;
  launch(router_logits_kernel, "router_logits", {dim3(args.num_experts / 16), kRouterThreads},
         RouterParameters{parameters.x, parameters.norm_weight, static_cast<const __nv_bfloat16*>(args.gate), args.logits, args.num_tokens,
                          args.num_experts, args.hidden, args.eps},
         stream);
  parameters.n = args.inner;
  parameters.k = args.hidden;
  parameters.weight = describe_stacked(args.gate_up, int64_t{args.num_experts} * 2, args.inner, args.hidden, 16, 2);
  (args.hidden % 256 == 0 ? run_gate<Gate> : run_gate<GateSmall>)(parameters, stream);
  parameters.n = args.hidden;
  parameters.k = args.inner;
  parameters.weight = describe_stacked(args.down, args.num_experts, args.hidden, args.inner, 16, 1);
  const int most_chosen = std::min(args.num_experts, args.num_tokens * args.top_k);
  parameters.gated_rows = describe_matrix(args.gated, int64_t{most_chosen} * args.num_tokens, args.inner, args.num_tokens);
  (args.inner % 768 == 0 && args.num_tokens <= 4 ? run_down<DownWhole> : args.inner % 256 == 0 ? run_down<Down> : run_down<DownSmall>)(parameters, stream);
}

}  // namespace xllm::kernels::cuda

// The router of a mixture of few tokens, and the launches of its two kernels.
#include "expert_mix.cuh"

#include <algorithm>
#include <stdexcept>

#include "expert_logits.cuh"
#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

struct LogitsParameters {
  const __nv_bfloat16* x;            // [tokens, size]
  const __nv_bfloat16* norm_weight;  // [size]
  const __nv_bfloat16* gate;         // [experts, size]
  float* logits;                     // [tokens, experts + 1]
  int num_tokens;
  int num_experts;
  int size;
  float eps;
};

__global__ void __launch_bounds__(kLogitThreads, 2) router_logits_kernel(const __grid_constant__ LogitsParameters args) {
  __shared__ LogitSums sums;
  launch_dependents();
  const int first = blockIdx.x * kLogitExperts;
  multiply_gate({args.x, args.norm_weight, args.gate + int64_t{first} * args.size, args.num_tokens, args.size}, sums);
  const int expert = threadIdx.x % kLogitExperts, token = threadIdx.x / kLogitExperts;
  if (token >= args.num_tokens) return;
  const float scale = sums.scale(token, args.size, args.eps);
  float* logits = args.logits + token * (args.num_experts + 1);
  logits[first + expert] = sums.product(expert, token) * scale;
  if (first == 0 && expert == 0) logits[args.num_experts] = scale;
}

constexpr int kStaticBytes = 4 * 1024;  // at most

int bytes_of_rows(int num_tokens, int top_k, int hidden, int inner) {
  return std::max(num_tokens * (hidden + 8), num_tokens * top_k * (inner + 8)) * 2;
}

// Measured on an H200 (2026-11-30), ms of whole steps of qwen3-30b-a3b by stages: one token 4 2.82, 5 2.80, 6 2.66, 7 2.65, 8 2.71, 10 2.74;
// four tokens 4 5.69, 5 5.65, 6 5.61, 8 5.59, 10 5.46. With experts chosen sooner, one token 6 2.33, 8 2.37, 10 2.39, 11 2.45.
int stages_beside(int num_tokens, int bytes_of_rows) {
  return stages_alone(num_tokens == 1 ? 6 : 10, kMixStageBytes, kMixFixedBytes + kStaticBytes + bytes_of_rows);
}

}  // namespace

const char* why_no_mix_experts(int num_tokens, int num_experts, int top_k, int hidden, int inner) {
  if (num_tokens < 1 || num_tokens > kMixTokens) return "mix_experts takes 1 to 8 tokens";
  if (num_experts < 32 || num_experts > kMaxExperts || num_experts % 32 != 0) return "the number of experts must be a multiple of 32 up to 256";
  if (top_k < 1 || top_k > kMaxExpertsPerToken) return "a token takes 1 to 16 experts";
  if (hidden < 64 || inner < 64 || hidden % 64 != 0 || inner % 64 != 0) return "the hidden and the inner size must be multiples of 64";
  if (hidden > 16384 || inner > 16384 || stages_beside(num_tokens, bytes_of_rows(num_tokens, top_k, hidden, inner)) < 2) return "the sizes are out of range";
  return nullptr;
}

void mix_experts(const MixExpertsArgs& args, void* stream) {
  if (const char* reason = why_no_mix_experts(args.num_tokens, args.num_experts, args.top_k, args.hidden, args.inner)) throw std::invalid_argument(reason);
  MixParameters parameters{};
  parameters.gate_up = describe_stacked(args.gate_up, int64_t{args.num_experts} * 2, args.inner, args.hidden, 16, 2);
  parameters.down = describe_stacked(args.down, args.num_experts, args.hidden, args.inner, 16, 1);
  parameters.logits = args.logits;
  parameters.norm_weight = static_cast<const __nv_bfloat16*>(args.norm_weight);
  parameters.x = static_cast<__nv_bfloat16*>(args.x);
  parameters.gated = static_cast<__nv_bfloat16*>(args.gated);
  parameters.barrier = args.barrier;
  parameters.choice = {args.num_experts, args.top_k, args.renormalises};
  parameters.num_tokens = args.num_tokens;
  parameters.hidden = args.hidden;
  parameters.inner = args.inner;
  const int row_bytes = bytes_of_rows(args.num_tokens, args.top_k, args.hidden, args.inner);
  parameters.stages = stages_beside(args.num_tokens, row_bytes);
  launch(router_logits_kernel, "router_logits", {dim3(args.num_experts / kLogitExperts), kLogitThreads},
         LogitsParameters{parameters.x, parameters.norm_weight, static_cast<const __nv_bfloat16*>(args.gate), args.logits, args.num_tokens,
                          args.num_experts, args.hidden, args.eps},
         stream);
  const int bytes = parameters.stages * kMixStageBytes + kMixFixedBytes + row_bytes;
  allow_shared_bytes(mix_experts_kernel, bytes, "mix_experts");
  LaunchShape shape{dim3(std::min(num_multiprocessors(), args.hidden / 16)), kMixBlockThreads, bytes};
  shape.together = true;
  launch(mix_experts_kernel, "mix_experts", shape, parameters, stream);
}

}  // namespace xllm::kernels::cuda

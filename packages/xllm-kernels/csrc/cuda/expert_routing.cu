// Who goes to which expert, and the way back. A warp chooses for one token; one block orders all pairs by expert.
#include <algorithm>
#include <stdexcept>

#include "async_copy.cuh"
#include "expert_choice.cuh"
#include "expert_logits.cuh"
#include "expert_order.h"
#include "last_block.cuh"
#include "launch.h"
#include "matrix.cuh"
#include "xllm/kernels/cuda/experts.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kOneBlockTokens = 32;  // up to here one block chooses, too: a launch less
constexpr int64_t kOneBlockPairs = 4096;  // up to here one block orders them
constexpr int kHeldPairs = 4;        // pairs of a thread whose ranks stay in registers

// One warp: chooses the experts of one token and writes them.
__device__ __forceinline__ void choose_and_write(const float (&logits)[kMostPerLane], const Choice& choice, float* weights, int32_t* experts, int lane) {
  const ChosenExpert mine = choose_experts(logits, choice, lane);
  if (lane >= choice.top_k) return;
  weights[lane] = mine.weight;
  experts[lane] = mine.expert;
}

__device__ __forceinline__ void load_logits(float (&logits)[kMostPerLane], const __nv_bfloat16* row, int num_experts, int lane) {
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    if (lane + 32 * i < num_experts) logits[i] = __bfloat162float(row[lane + 32 * i]);
  }
}

// One block: orders the pairs by expert. Which of an expert's rows a pair gets may change from run to run; no result depends on it.
template <int THREADS>
__device__ void order_by_expert(const Routing& routing, int num_pairs, int top_k, int num_experts) {
  __shared__ int counts[kMaxExperts], firsts[kMaxExperts];
  for (int e = threadIdx.x; e < num_experts; e += THREADS) counts[e] = 0;
  __syncthreads();
  int experts[kHeldPairs], ranks[kHeldPairs];
#pragma unroll
  for (int i = 0; i < kHeldPairs; ++i) {
    const int p = i * THREADS + threadIdx.x;
    if (p < num_pairs) {
      experts[i] = __ldcg(routing.experts + p);
      ranks[i] = atomicAdd(counts + experts[i], 1);
    }
  }
  for (int p = kHeldPairs * THREADS + threadIdx.x; p < num_pairs; p += THREADS) {
    routing.row_of_pair[p] = atomicAdd(counts + __ldcg(routing.experts + p), 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int base = 0; base < num_experts; base += 32) {
      const int e = base + threadIdx.x;
      int sum = counts[e];
#pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, sum, o);
        if (threadIdx.x >= o) sum += other;
      }
      firsts[e] = before + sum - counts[e];
      routing.starts[e] = firsts[e];
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (threadIdx.x == 0) routing.starts[num_experts] = before;
  }
  __syncthreads();
  const auto settle = [&](int p, int row) {
    routing.row_of_pair[p] = row;
    routing.token_of_row[row] = p / top_k;
  };
#pragma unroll
  for (int i = 0; i < kHeldPairs; ++i) {
    const int p = i * THREADS + threadIdx.x;
    if (p < num_pairs) settle(p, firsts[experts[i]] + ranks[i]);
  }
  for (int p = kHeldPairs * THREADS + threadIdx.x; p < num_pairs; p += THREADS) {
    settle(p, firsts[__ldcg(routing.experts + p)] + routing.row_of_pair[p]);
  }
}

__device__ void choose_for_token(const RouteArgs& args, int64_t token, int lane) {
  float logits[kMostPerLane];
  load_logits(logits, static_cast<const __nv_bfloat16*>(args.logits) + token * args.num_experts, args.num_experts, lane);
  choose_and_write(logits, {args.num_experts, args.top_k, args.renormalises}, args.routing.weights + token * args.top_k,
                   args.routing.experts + token * args.top_k, lane);
}

constexpr int kOrderThreads = 1024, kChooseThreads = 256;

__global__ void __launch_bounds__(kChooseThreads) choose_kernel(const __grid_constant__ RouteArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  const int64_t token = int64_t{blockIdx.x} * (kChooseThreads / 32) + threadIdx.x / 32;
  if (token < args.num_tokens) choose_for_token(args, token, threadIdx.x % 32);
}

// CHOOSES: few tokens, for which this block chooses, too.
template <bool CHOOSES>
__global__ void __launch_bounds__(kOrderThreads) order_kernel(const __grid_constant__ RouteArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  if constexpr (CHOOSES) {
    for (int64_t token = threadIdx.x / 32; token < args.num_tokens; token += kOrderThreads / 32) {
      choose_for_token(args, token, threadIdx.x % 32);
    }
    __threadfence_block();
    __syncthreads();
  }
  order_by_expert<kOrderThreads>(args.routing, static_cast<int>(args.num_tokens) * args.top_k, args.top_k, args.num_experts);
}

// Blocks of 16 experts by 8 tokens; each norms its share of the tokens' columns, too. The last block of 8 tokens chooses for them, the last
// of all orders the pairs.
__global__ void __launch_bounds__(kLogitThreads, 2) norm_and_route_kernel(const __grid_constant__ NormAndRouteArgs args) {
  __shared__ LogitSums sums;
  launch_dependents();
  const int first_token = blockIdx.y * kLogitTokens, num_tokens = min(kLogitTokens, args.num_tokens - first_token);
  const int first_expert = blockIdx.x * kLogitExperts;
  const auto* x = static_cast<const __nv_bfloat16*>(args.x) + int64_t{first_token} * args.size;
  const auto* norm_weight = static_cast<const __nv_bfloat16*>(args.norm_weight);
  const auto* gate = static_cast<const __nv_bfloat16*>(args.gate) + int64_t{first_expert} * args.size;
  multiply_gate({x, norm_weight, gate, num_tokens, args.size}, sums);
  if (threadIdx.x < kLogitExperts * num_tokens) {
    const int expert = threadIdx.x % kLogitExperts, token = threadIdx.x / kLogitExperts;
    args.workspace[(first_token + token) * args.num_experts + first_expert + expert] = sums.product(expert, token) * sums.scale(token, args.size, args.eps);
  }
  // The norm of this block's share of the columns.
  auto* normed = static_cast<__nv_bfloat16*>(args.normed) + int64_t{first_token} * args.size;
  const int pieces = args.size / 8, begin = pieces * blockIdx.x / gridDim.x, count = pieces * (blockIdx.x + 1) / gridDim.x - begin;
  for (int i = threadIdx.x; i < count * num_tokens; i += kLogitThreads) {
    const int token = i / count, piece = begin + i % count;
    const float scale = sums.scale(token, args.size, args.eps);
    const uint4 v = *(reinterpret_cast<const uint4*>(x + int64_t{token} * args.size) + piece);
    const uint4 w = __ldg(reinterpret_cast<const uint4*>(norm_weight) + piece);
    const auto scaled = [&](uint32_t v_pair, uint32_t w_pair) {
      const float2 a = unpack(v_pair), b = unpack(w_pair);
      return pack(a.x * scale * b.x, a.y * scale * b.y);
    };
    reinterpret_cast<uint4*>(normed + int64_t{token} * args.size)[piece] = make_uint4(scaled(v.x, w.x), scaled(v.y, w.y), scaled(v.z, w.z), scaled(v.w, w.w));
  }
  if (!comes_last<kLogitThreads>(args.counters + 1 + blockIdx.y, static_cast<int>(gridDim.x))) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < num_tokens) {
    const int64_t token = first_token + warp;
    float logits[kMostPerLane];
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) {
      if (lane + 32 * i < args.num_experts) logits[i] = __ldcg(args.workspace + token * args.num_experts + lane + 32 * i);
    }
    choose_and_write(logits, {args.num_experts, args.top_k, args.renormalises}, args.routing.weights + token * args.top_k,
                     args.routing.experts + token * args.top_k, lane);
  }
  if (gridDim.y == 1) {
    __threadfence_block();
    __syncthreads();
  } else if (!comes_last<kLogitThreads>(args.counters, static_cast<int>(gridDim.y))) {
    return;
  }
  order_by_expert<kLogitThreads>(args.routing, args.num_tokens * args.top_k, args.top_k, args.num_experts);
}

constexpr int kCombineThreads = 256;

// With a norm a block takes a token, without one a part of a token.
template <bool NORM>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const __grid_constant__ CombineExpertsArgs args) {
  __shared__ int rows[kMaxExpertsPerToken];
  __shared__ float weights[kMaxExpertsPerToken], sums[kCombineThreads / 32];
  launch_dependents();
  wait_for_prerequisites();
  const int64_t token = blockIdx.x;
  if (threadIdx.x < args.top_k) {
    rows[threadIdx.x] = args.row_of_pair[token * args.top_k + threadIdx.x];
    weights[threadIdx.x] = args.weights[token * args.top_k + threadIdx.x];
  }
  __syncthreads();
  const auto* y = static_cast<const __nv_bfloat16*>(args.y);
  // Sums are added to the residual, or are the output where there is none.
  auto* result = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(args.residual == nullptr ? args.out : args.residual) + token * args.size);
  const int count = static_cast<int>(args.size / 8);
  float squares = 0.f;
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < count; i += gridDim.y * blockDim.x) {
    float total[8] = {};
#pragma unroll 8
    for (int j = 0; j < args.top_k; ++j) {
      const uint4 v = *reinterpret_cast<const uint4*>(y + rows[j] * args.size + i * 8);
      const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const float2 a = unpack(pairs[p]);
        total[2 * p] += weights[j] * a.x;
        total[2 * p + 1] += weights[j] * a.y;
      }
    }
    const uint4 old = args.residual == nullptr ? make_uint4(0, 0, 0, 0) : result[i];
    const uint32_t pairs[4] = {old.x, old.y, old.z, old.w};
    uint32_t sum[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const float2 a = unpack(pairs[p]);
      sum[p] = pack(a.x + total[2 * p], a.y + total[2 * p + 1]);
      const float2 b = unpack(sum[p]);
      squares += b.x * b.x + b.y * b.y;
    }
    result[i] = make_uint4(sum[0], sum[1], sum[2], sum[3]);
  }
  if constexpr (NORM) {
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    squares = 0.f;
#pragma unroll
    for (int w = 0; w < kCombineThreads / 32; ++w) squares += sums[w];
    const float scale = rsqrtf(squares / args.size + args.eps);
    auto* out = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(args.out) + token * args.size);
    const auto* norm = static_cast<const uint4*>(args.norm_weight);
    for (int i = threadIdx.x; i < count; i += kCombineThreads) {
      const uint4 v = result[i], w = __ldg(norm + i);
      const auto scaled = [&](uint32_t a_pair, uint32_t b_pair) {
        const float2 a = unpack(a_pair), b = unpack(b_pair);
        return pack(a.x * scale * b.x, a.y * scale * b.y);
      };
      out[i] = make_uint4(scaled(v.x, w.x), scaled(v.y, w.y), scaled(v.z, w.z), scaled(v.w, w.w));
    }
  }
}

void order(const OrderPairsArgs& args, void* stream) {
  const int64_t num_pairs = args.num_tokens * args.top_k;
  if (num_pairs > kOneBlockPairs) return order_many(args.routing, args.counts, num_pairs, args.top_k, args.num_experts, stream);
  RouteArgs chosen{};
  chosen.routing = args.routing;
  chosen.num_tokens = args.num_tokens;
  chosen.num_experts = args.num_experts;
  chosen.top_k = args.top_k;
  launch(order_kernel<false>, "order_pairs", {dim3(1), kOrderThreads}, chosen, stream);
}

void check_choice(int num_experts, int top_k) {
  if (num_experts < 32 || num_experts > kMaxExperts || num_experts % 32 != 0)
    throw std::invalid_argument("the number of experts must be a multiple of 32 up to 256");
  if (top_k < 1 || top_k > kMaxExpertsPerToken || top_k > num_experts)
    throw std::invalid_argument("a token takes 1 to 16 experts");
}

}  // namespace

void route(const RouteArgs& args, void* stream) {
  check_choice(args.num_experts, args.top_k);
  if (args.num_tokens < 1 || args.num_tokens > (int64_t{1} << 25)) throw std::invalid_argument("route needs tokens");
  const bool is_small = args.num_tokens <= kOneBlockTokens;
  if (!is_small) {
    const auto blocks = static_cast<unsigned>((args.num_tokens + kChooseThreads / 32 - 1) / (kChooseThreads / 32));
    launch(choose_kernel, "choose_experts", {dim3(blocks), kChooseThreads}, args, stream);
  }
  if (is_small) return launch(order_kernel<true>, "route", {dim3(1), kOrderThreads}, args, stream);
  order({args.routing, args.counts, args.num_tokens, args.num_experts, args.top_k}, stream);
}

void order_pairs(const OrderPairsArgs& args, void* stream) {
  check_choice(args.num_experts, args.top_k);
  if (args.num_tokens < 1 || args.num_tokens > (int64_t{1} << 25)) throw std::invalid_argument("order_pairs needs tokens");
  order(args, stream);
}

void norm_and_route(const NormAndRouteArgs& args, void* stream) {
  check_choice(args.num_experts, args.top_k);
  if (args.num_tokens < 1 || args.num_tokens > kNormAndRouteMaxTokens) throw std::invalid_argument("norm_and_route takes 1 to 128 tokens");
  if (args.size < 64 || args.size % 64 != 0) throw std::invalid_argument("the size of a row must be a multiple of 64");
  if (args.workspace_size < int64_t{args.num_tokens} * args.num_experts || args.num_counters < args.num_tokens + 1)
    throw std::invalid_argument("the workspace of norm_and_route is too small");
  const auto groups = static_cast<unsigned>((args.num_tokens + kLogitTokens - 1) / kLogitTokens);
  launch(norm_and_route_kernel, "norm_and_route", {dim3(args.num_experts / kLogitExperts, groups), kLogitThreads}, args, stream);
}

void combine_experts(const CombineExpertsArgs& args, void* stream) {
  if (args.size <= 0 || args.size % 8 != 0) throw std::invalid_argument("the size of a row must be a multiple of 8");
  if (args.top_k < 1 || args.top_k > kMaxExpertsPerToken) throw std::invalid_argument("a token takes 1 to 16 experts");
  if (args.residual == nullptr && args.norm_weight != nullptr) throw std::invalid_argument("combine_experts norms a residual only");
  if (args.num_tokens == 0) return;
  const auto tokens = static_cast<unsigned>(args.num_tokens);
  if (args.norm_weight != nullptr) {
    launch(combine_kernel<true>, "combine_experts", {dim3(tokens), kCombineThreads}, args, stream);
    return;
  }
  const int threads = args.num_tokens <= 16 ? 64 : kCombineThreads;
  const auto parts = static_cast<unsigned>((args.size / 8 + threads - 1) / threads);
  launch(combine_kernel<false>, "combine_experts", {dim3(tokens, parts), threads}, args, stream);
}

}  // namespace xllm::kernels::cuda

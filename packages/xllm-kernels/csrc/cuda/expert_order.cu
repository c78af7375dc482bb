// Two kernels: the first counts each block's pairs by expert, the second adds up what lies before a block's and writes its rows.
#include "expert_order.h"

#include <algorithm>

#include "async_copy.cuh"
#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kThreads = 1024, kLeastPairs = 1024;  // of a block

struct OrderParameters {
  Routing routing;
  int32_t* counts;  // [blocks, experts]
  int num_pairs;
  int top_k;
  int num_experts;

  __device__ int first_pair(int block) const { return static_cast<int>(int64_t{num_pairs} * block / gridDim.x); }
};

// Leaves each pair's rank among the block's pairs of its expert in row_of_pair.
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ OrderParameters args) {
  __shared__ int counts[kMaxExperts];
  launch_dependents();
  for (int e = threadIdx.x; e < args.num_experts; e += kThreads) counts[e] = 0;
  __syncthreads();
  wait_for_prerequisites();
  for (int p = args.first_pair(blockIdx.x) + threadIdx.x; p < args.first_pair(blockIdx.x + 1); p += kThreads) {
    args.routing.row_of_pair[p] = atomicAdd(counts + args.routing.experts[p], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < args.num_experts; e += kThreads) args.counts[blockIdx.x * args.num_experts + e] = counts[e];
}

__global__ void __launch_bounds__(kThreads) settle_kernel(const __grid_constant__ OrderParameters args) {
  __shared__ int firsts[kMaxExperts], totals[kMaxExperts];  // pairs of an expert in the blocks before this one; in all
  launch_dependents();
  for (int e = threadIdx.x; e < args.num_experts; e += kThreads) firsts[e] = totals[e] = 0;
  __syncthreads();
  wait_for_prerequisites();
  for (int i = threadIdx.x; i < static_cast<int>(gridDim.x) * args.num_experts; i += kThreads) {
    const int count = args.counts[i], block = i / args.num_experts, e = i % args.num_experts;
    atomicAdd(totals + e, count);
    if (block < static_cast<int>(blockIdx.x)) atomicAdd(firsts + e, count);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int e = threadIdx.x; e < args.num_experts; e += 32) {
      int sum = totals[e];
#pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, sum, o);
        if (threadIdx.x >= o) sum += other;
      }
      const int start = before + sum - totals[e];
      firsts[e] += start;
      if (blockIdx.x == 0) args.routing.starts[e] = start;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) args.routing.starts[args.num_experts] = before;
  }
  __syncthreads();
  for (int p = args.first_pair(blockIdx.x) + threadIdx.x; p < args.first_pair(blockIdx.x + 1); p += kThreads) {
    const int row = firsts[args.routing.experts[p]] + args.routing.row_of_pair[p];
    args.routing.row_of_pair[p] = row;
    args.routing.token_of_row[row] = p / args.top_k;
  }
}

}  // namespace

void order_many(const Routing& routing, int32_t* counts, int64_t num_pairs, int top_k, int num_experts, void* stream) {
  const OrderParameters parameters{routing, counts, static_cast<int>(num_pairs), top_k, num_experts};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(kOrderBlocks, (num_pairs + kLeastPairs - 1) / kLeastPairs));
  launch(count_kernel, "order_pairs", {dim3(blocks), kThreads}, parameters, stream);
  launch(settle_kernel, "order_pairs", {dim3(blocks), kThreads}, parameters, stream);
}

}  // namespace xllm::kernels::cuda

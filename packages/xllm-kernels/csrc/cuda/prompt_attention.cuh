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

#include "prompt_softmax.cuh"
#include "prompt_tiles.cuh"
#include "warpgroup.cuh"

namespace xllm::kernels::cuda {

// Warpgroups take turns at the tensor cores: named barriers 2 and 3 belong to the first and the second.
__device__ __forceinline__ void wait_for_turn(int group) {
  asm volatile("bar.sync %0, 256;" ::"r"(2 + group) : "memory");
}
__device__ __forceinline__ void end_turn(int group) {
  asm volatile("bar.arrive %0, 256;" ::"r"(3 - group) : "memory");
}

template <class Element, int D, bool CAUSAL>
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
      multiply_rows<Element>(s, describe_rows(my_queries + offset), describe_rows(at + offset), k > 0);
    }
    warpgroup_commit();
  };
  const auto start_sums = [&](int stage, bool adds) {
    const uint32_t at = values + stage * Shape::kTileBytes;
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k)
      multiply_columns<Element>(o, p + 4 * k, describe_columns(at + k * 16 * 128, kPlaneBytes), k > 0 || adds);
    warpgroup_commit();
  };
  const auto release = [&](uint64_t* barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };

  if (group == 1) end_turn(1);
  for (int i = 0; i * static_cast<int>(gridDim.x) < args.num_items; ++i) {
    const int place = place_of(i);
    if (place >= args.num_items || !find_item<CAUSAL>(args, place, item)) continue;
    const int row = item.row + group * 64 + warp * 16 + lane / 4;
    softmax.begin();
    if (item.begin == item.end) {  // more splits than tiles
#pragma unroll
      for (int j = 0; j < D / 2; ++j) o[j] = 0.f;
      store_rows<Element, D>(args, item, o, softmax, row, lane);
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
    pack_weights<Element>(p, s);
    bool adds = false;
    for (int n = item.end - 2; n >= item.begin; --n) {
      const int previous = tile % kPromptStages, previous_parity = tile / kPromptStages & 1;
      ++tile;
      const int stage = tile % kPromptStages;
      barrier_wait(&barriers.key_full[stage], tile / kPromptStages & 1);
      wait_for_turn(group);
      warpgroup_arrive();
      start_scores(stage);
      barrier_wait(&barriers.value_full[previous], previous_parity);
      start_sums(previous, adds);
      end_turn(group);
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
      pack_weights<Element>(p, s);
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
    store_rows<Element, D>(args, item, o, softmax, row, lane);
  }
  if (group == 0) wait_for_turn(0);
}

template <class Element, int D, bool CAUSAL>
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
    attend_prompt<Element, D, CAUSAL>(args, barriers, queries, warpgroup - 1);
  }
}

}  // namespace xllm::kernels::cuda

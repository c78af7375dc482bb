// Blocks of a cluster: their barrier, each other's shared memory, copies to several of them. One instruction a function; sm_90. Knows
// nothing of what is shared.
#pragma once

#include "async_copy.cuh"

namespace xllm::kernels::cuda {

// The barrier of all threads of a cluster; those that have ended count as there.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// What `address` of this block's shared memory is in that of block `rank`.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Four numbers at `address` of the shared memory of block `rank`.
__device__ __forceinline__ float4 load_from_cluster(uint32_t address, int rank) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address_in_block(address, rank))
               : "memory");
  return v;
}

// Arrives at the barrier that block `rank` has where this one has `barrier`.
__device__ __forceinline__ void barrier_arrive_in_block(uint64_t* barrier, int rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address_in_block(shared_address(barrier), rank))
               : "memory");
}

// As copy_box, to the same place in every block of `blocks` (a bit each), whose barriers in the place of `barrier` count the bytes.
__device__ __forceinline__ void copy_box_to_blocks(void* destination, const CUtensorMap* map, int column, int row, uint64_t* barrier,
                                                   uint16_t blocks, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(destination)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks), "l"(policy)
      : "memory");
}

}  // namespace xllm::kernels::cuda

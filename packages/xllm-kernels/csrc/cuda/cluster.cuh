// Blocks of a cluster: their barrier, and each other's shared memory. sm_90. Knows nothing of what is shared.
#pragma once

#include <cstdint>

namespace xllm::kernels::cuda {

// The barrier of all threads of a cluster; those that have ended count as there.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Four numbers at `address` of the shared memory of block `rank`.
__device__ __forceinline__ float4 load_from_cluster(uint32_t address, int rank) {
  uint32_t there;
  float4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(there)
               : "memory");
  return v;
}

// The number at `address` of the shared memory of block `rank`.
__device__ __forceinline__ float load_number_from_cluster(uint32_t address, int rank) {
  uint32_t there;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
  return v;
}

}  // namespace xllm::kernels::cuda

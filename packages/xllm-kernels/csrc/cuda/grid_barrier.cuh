// A barrier of all blocks of a kernel. Knows nothing of what they share.
#pragma once

#include <cstdint>

namespace xllm::kernels::cuda {

constexpr uint32_t kBarrierPhase = 0x80000000u;

__device__ __forceinline__ uint32_t load_acquired(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Blocks that all run at once meet at a counter whose highest bit turns when the last one comes; it begins as 0 and is left alone
// otherwise. The phase is read before the block arrives, and one thread arrives after a barrier of its block: what the block wrote before
// can be read by every thread that has seen the phase end.
__device__ __forceinline__ uint32_t barrier_phase(const uint32_t* counter) { return load_acquired(counter) & kBarrierPhase; }

__device__ __forceinline__ void arrive_at_blocks(uint32_t* counter) {
  const uint32_t mine = blockIdx.x == 0 ? kBarrierPhase - (gridDim.x - 1) : 1u;
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(mine) : "memory");
}

__device__ __forceinline__ void wait_for_blocks(const uint32_t* counter, uint32_t phase) {
  while (barrier_phase(counter) == phase) {
  }
}

}  // namespace xllm::kernels::cuda

// Who is the last of several blocks, and goes on with what all of them wrote. Knows nothing of what that is.
#pragma once

#include "async_copy.cuh"

namespace xllm::kernels::cuda {

// Whether this block is the last of `expected` that count themselves at `counter`, which is 0 before and after. The first THREADS threads of
// the block call it; what the blocks wrote before can be read by all of them in the last one: the barriers and one thread's addition order it.
template <int THREADS>
__device__ __forceinline__ bool comes_last(int* counter, int expected) {
  __shared__ bool is_last;
  sync_threads<THREADS>();
  if (threadIdx.x == 0) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    is_last = before == expected - 1;
    if (is_last) *counter = 0;
  }
  sync_threads<THREADS>();
  return is_last;
}

}  // namespace xllm::kernels::cuda

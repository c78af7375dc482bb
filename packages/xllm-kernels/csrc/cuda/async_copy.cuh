// Transaction barriers, bulk tensor copies and programmatic launch of sm_90, one instruction a function. Knows nothing of what is copied.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace xllm::kernels::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The first address at or after `p` where boxes swizzled by 128 bytes may begin.
__device__ __forceinline__ unsigned char* align_to_swizzle(unsigned char* p) {
  return p + (1024 - shared_address(p) % 1024) % 1024;
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

// Makes initialised barriers visible to the copy engine; a block barrier must follow.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Arrives, and announces bytes that copies will bring before the phase ends.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Returns once the phase of `parity` has ended.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}\n" ::
          "r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// A place in a ring of stages; a stage is waited for with the parity it has there.
struct RingPlace {
  int stages, stage = 0, parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A barrier of the first THREADS threads that call it, beside __syncthreads; another NUMBER is another barrier.
template <int THREADS, int NUMBER = 1>
__device__ __forceinline__ void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

// The same by who need not wait for the others.
template <int THREADS, int NUMBER = 1>
__device__ __forceinline__ void arrive_threads() {
  asm volatile("bar.arrive %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Starts the copy of 16 bytes by this thread; `wait_for_pieces` waits for all of them.
__device__ __forceinline__ void copy_piece(void* destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(destination)), "l"(source) : "memory");
}

__device__ __forceinline__ void wait_for_pieces() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Brings what a map says nearer to the copy engine, before its first copy.
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Brings `count` constant numbers of 16 bits to the multiprocessor's cache, 32 bytes a load; `threads` threads call it.
template <class T>
__device__ __forceinline__ void bring_near(const T* numbers, int count, int thread, int threads) {
  uint32_t unused;
  for (int i = thread * 16; i < count; i += threads * 16) asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(unused) : "l"(numbers + i));
}

// Copies the box at (column, row) of a matrix to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void copy_box(void* destination, const CUtensorMap* map, int column, int row,
                                         uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(destination)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// Copies the box at (column, row, plane) of stacked matrices to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void copy_stacked_box(void* destination, const CUtensorMap* map, int column, int row, int plane,
                                                 uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(destination)),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// Copies the box at (column, row, head) of rows of heads to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void copy_head_box(uint32_t destination, const CUtensorMap* map, int column, int row, int head,
                                              uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(shared_address(barrier))
      : "memory");
}

// Copies `bytes` (a multiple of 16) to shared memory; `barrier` counts them.
__device__ __forceinline__ void copy_row(void* destination, const void* source, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(destination)),
               "l"(source), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Between ordinary writes to memory and copies by the copy engine that read them: by who wrote, before it says so, and by who copies, after.
__device__ __forceinline__ void fence_for_global_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Sets 16 bytes of shared memory to zero.
__device__ __forceinline__ void clear_piece(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

// Lets the copy engine and the tensor cores see what this thread wrote to shared memory, once a barrier has followed.
__device__ __forceinline__ void fence_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Lets the next kernel of the stream start its prologue; it may read our results only after its own wait. Before sm_90 it never does.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns once the kernel before has ended and its writes are visible.
__device__ __forceinline__ void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace xllm::kernels::cuda

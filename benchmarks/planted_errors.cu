// One error for each tool of compute-sanitizer, which must find it: see sanitize_gpu.py. All run in one block of 64 threads, with memory
// of 64 integers that nobody has set.

extern "C" __global__ void xllm_planted_memcheck(int* memory) { memory[threadIdx.x + 1] = 0; }

// A warp reads what the other writes, with no barrier between.
extern "C" __global__ void xllm_planted_racecheck(int* memory) {
  __shared__ int left[64];
  left[threadIdx.x] = static_cast<int>(threadIdx.x);
  memory[threadIdx.x] = left[63 - threadIdx.x];
}

// Thread 16 meets others at a barrier that does not name it.
extern "C" __global__ void xllm_planted_synccheck(int* memory) {
  if (threadIdx.x <= 16) __syncwarp(0x0000ffffu);
  memory[threadIdx.x] = 0;
}

extern "C" __global__ void xllm_planted_initcheck(int* memory) { memory[threadIdx.x] += 1; }

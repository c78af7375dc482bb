// Where top-k and top-p end in a row of logits, and which of the tokens that equal the end are kept. Knows nothing of random numbers.
#pragma once

#include <climits>

#include "logits_row.cuh"

namespace xllm::kernels::cuda::drawing {

// Where a filter ends: tokens over `key` are kept, and the first `equals` of those at it.
struct Threshold {
  uint32_t key;
  uint32_t equals;
  Mass kept;
};

// By count: the first `wanted` tokens. By mass: those whose weights reach `needed`. Looks at keys from `floor` on alone; where those do not
// suffice, `kept` of what it returns is 0.
template <class T, bool BY_COUNT>
__device__ Threshold descend(const T* row, int size, const Softmax& softmax, uint32_t wanted, Mass needed, uint32_t floor, Memory& memory) {
  uint32_t prefix = 0, count_before = 0;
  Mass mass_before = 0;
  int shift = Key<T>::kBits;
  for (bool is_first = true; shift > 0; is_first = false) {
    const int bits = min(kRadixBits, shift), above = shift;
    shift -= bits;
    for (int b = threadIdx.x; b < kBins; b += kThreads) {
      memory.mass[b] = 0;
      memory.count[b] = 0;
    }
    __syncthreads();
    for_each(row, size, [&](float logit, int) {
      const uint32_t key = key_of<T>(logit);
      if (key < floor || (!is_first && key >> above != prefix)) return;
      const int bin = key >> shift & ((1 << bits) - 1);
      atomicAdd(memory.count + bin, 1u);
      const Mass weight = softmax(logit);
      if (weight > 0) atomicAdd(memory.mass + bin, weight);
    });
    __syncthreads();
    // Thread i looks at the bins 2 i and 2 i + 1 from the top.
    const int bin = kBins - 1 - 2 * static_cast<int>(threadIdx.x);
    const Mass masses[2] = {memory.mass[bin], memory.mass[bin - 1]};
    const uint32_t counts[2] = {memory.count[bin], memory.count[bin - 1]};
    Mass all, all_counts;
    Mass mass = sum_before(masses[0] + masses[1], memory.warp_sums, all) + mass_before;
    uint32_t count = static_cast<uint32_t>(sum_before(counts[0] + counts[1], memory.warp_sums, all_counts)) + count_before;
    if (is_first && (BY_COUNT ? all_counts < wanted : all < needed)) return {0, 0, 0};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool ends_here = BY_COUNT ? count < wanted && count + counts[i] >= wanted : mass < needed && mass + masses[i] >= needed;
      if (ends_here) {
        memory.bin = bin - i;
        memory.before = mass;
        memory.count_before = count;
      }
      mass += masses[i];
      count += counts[i];
    }
    __syncthreads();
    prefix = prefix << bits | memory.bin;
    mass_before = memory.before;
    count_before = memory.count_before;
    __syncthreads();
  }
  const uint32_t equals = memory.count[prefix & ((1u << (Key<T>::kBits % kRadixBits)) - 1)];
  const Mass weight = softmax(logit_of<T>(prefix));
  uint32_t kept = equals;
  if (BY_COUNT) {
    kept = wanted - count_before;
  } else if (weight > 0) {
    kept = static_cast<uint32_t>(min((needed - mass_before + weight - 1) / weight, static_cast<Mass>(equals)));
  }
  __syncthreads();
  return {prefix, kept, mass_before + kept * weight};
}

// Each thread's largest key, and the weight of all tokens.
template <class T>
__device__ uint32_t largest_key(const T* row, int size, const Softmax& softmax, bool sums, Mass& total, Memory& memory) {
  uint32_t largest = 0;
  Mass mine = 0;
  for_each(row, size, [&](float logit, int) {
    largest = max(largest, key_of<T>(logit));
    if (sums) mine += softmax(logit);
  });
  sum_before(mine, memory.warp_sums, total);
  return largest;
}

// The `wanted`-th largest of the threads' keys, 0 if there are not so many: by bisection of the bits, a vote each.
template <class T>
__device__ uint32_t floor_of(uint32_t key, uint32_t wanted) {
  if (wanted > kThreads) return 0;
  uint32_t floor = 0;
  for (int bit = Key<T>::kBits - 1; bit >= 0; --bit) {
    const uint32_t higher = floor | 1u << bit;
    if (static_cast<uint32_t>(__syncthreads_count(key >= higher)) >= wanted) floor = higher;
  }
  return floor;
}

// The threshold from `floor` on if the tokens there suffice, else from all.
template <class T, bool BY_COUNT>
__device__ Threshold threshold_of(const T* row, int size, const Softmax& softmax, uint32_t wanted, Mass needed, uint32_t floor,
                                  Memory& memory) {
  Threshold found = descend<T, BY_COUNT>(row, size, softmax, wanted, needed, floor, memory);
  __syncthreads();
  if (found.equals == 0 && floor > 0) found = descend<T, BY_COUNT>(row, size, softmax, wanted, needed, 0, memory);
  return found;
}

// The id of the last of the first `wanted` tokens at `key`, INT_MAX where all are kept.
template <class T>
__device__ int last_equal(const T* row, int size, uint32_t key, uint32_t wanted, Memory& memory) {
  const int tiles = (size + kTile - 1) / kTile;
  if (threadIdx.x < kMaxTiles) memory.tile_equals[threadIdx.x] = 0;
  if (threadIdx.x == 0) memory.id = INT_MAX;
  __syncthreads();
  for_each(row, size, [&](float logit, int id) {
    if (key_of<T>(logit) == key) atomicAdd(memory.tile_equals + id / kTile, 1u);
  });
  __syncthreads();
  uint32_t before = 0;
  int tile = 0;
  while (tile < tiles && before + memory.tile_equals[tile] < wanted) before += memory.tile_equals[tile++];
  if (tile == tiles) return INT_MAX;
  const int at = tile * kTile + threadIdx.x * kElements;
  float v[kElements];
  uint32_t mine = 0;
  if (at < size) {
    load(row, at, v);
    for (int i = 0; i < kElements; ++i) mine += key_of<T>(v[i]) == key;
  }
  Mass total;
  uint32_t rank = before + static_cast<uint32_t>(sum_before(mine, memory.warp_sums, total));
  if (at < size) {
    for (int i = 0; i < kElements; ++i) {
      if (key_of<T>(v[i]) == key && ++rank == wanted) memory.id = at + i;
    }
  }
  __syncthreads();
  return memory.id;
}

}  // namespace xllm::kernels::cuda::drawing

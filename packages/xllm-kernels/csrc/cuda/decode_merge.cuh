// Partial results of attention over parts of a context, merged. Knows nothing of how they were computed.
#pragma once

namespace xllm::kernels::cuda {

// A partial result of one head: D sums of weighted values, the largest logit (base 2), the sum of weights against it.
struct MergedNumber {
  float top = -INFINITY, total = 0.f, sum = 0.f;
};

// Dimension d of `count` partial results that lie `stride` floats apart.
template <int D>
__device__ __forceinline__ MergedNumber merge_parts(const float* part, int stride, int count, int d) {
  MergedNumber merged;
  for (int i = 0; i < count; ++i) merged.top = fmaxf(merged.top, part[i * stride + D]);
  for (int i = 0; i < count; ++i) {
    const float weight = part[i * stride + D] == -INFINITY ? 0.f : exp2f(part[i * stride + D] - merged.top);
    merged.sum += weight * part[i * stride + d];
    merged.total += weight * part[i * stride + D + 1];
  }
  return merged;
}

}  // namespace xllm::kernels::cuda

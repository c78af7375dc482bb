// RMSNorm and rotary position of one head by one warp. Knows nothing of where heads lie.
#pragma once

#include "matrix.cuh"

namespace xllm::kernels::cuda {

// Normalises (if `norm`) and rotates (if `cos_sin`) one head of D numbers; lane l holds D / 32 of them, rotation pairs i and i + D / 2.
template <int D>
__device__ __forceinline__ void norm_and_rotate(float (&v)[D / 32], const __nv_bfloat16* norm, const float* cos_sin, float eps, int lane) {
  constexpr int E = D / 32;
  if (cos_sin == nullptr) return;
  if (norm != nullptr) {
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < E; ++i) squares += v[i] * v[i];
    const float scale = rsqrtf(warp_sum(squares) / D + eps);
#pragma unroll
    for (int i = 0; i < E; ++i) v[i] = __bfloat162float(__float2bfloat16(v[i] * scale)) * __bfloat162float(norm[lane * E + i]);
  }
  const int pair = (lane % 16) * E;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    const float other = __shfl_xor_sync(0xffffffffu, v[i], 16);
    const float c = cos_sin[pair + i], s = cos_sin[D / 2 + pair + i];
    v[i] = lane < 16 ? v[i] * c - other * s : v[i] * c + other * s;
  }
}

}  // namespace xllm::kernels::cuda

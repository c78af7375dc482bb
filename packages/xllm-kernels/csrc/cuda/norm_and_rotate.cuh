// RMSNorm and rotary position of one head by one warp. Knows nothing of where heads lie.
#pragma once

#include "element.cuh"

namespace xllm::kernels::cuda {

// What a lane needs to rotate its D / 32 numbers of a head of one token.
template <int D>
struct Rotation {
  float cosine[D / 32], sine[D / 32];

  __device__ __forceinline__ void load(const float* cos_sin, int lane) {
    constexpr int E = D / 32;
    const int pair = (lane % 16) * E;
#pragma unroll
    for (int i = 0; i < E; i += 2) {
      const float2 c = *reinterpret_cast<const float2*>(cos_sin + pair + i), s = *reinterpret_cast<const float2*>(cos_sin + D / 2 + pair + i);
      cosine[i] = c.x;
      cosine[i + 1] = c.y;
      sine[i] = s.x;
      sine[i + 1] = s.y;
    }
  }
};

// Two or four neighbouring numbers at once.
template <class Element, int E>
__device__ __forceinline__ void load_numbers(float (&v)[E], const typename Element::type* from) {
  if constexpr (E == 4) {
    const uint2 x = *reinterpret_cast<const uint2*>(from);
    const float2 a = Element::widen_pair(x.x), b = Element::widen_pair(x.y);
    v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
  } else {
    const float2 a = Element::widen_pair(*reinterpret_cast<const uint32_t*>(from));
    v[0] = a.x, v[1] = a.y;
  }
}

template <class Element, int E>
__device__ __forceinline__ void store_numbers(typename Element::type* to, const float (&v)[E]) {
  if constexpr (E == 4) *reinterpret_cast<uint2*>(to) = make_uint2(Element::narrow_pair(v[0], v[1]), Element::narrow_pair(v[2], v[3]));
  else *reinterpret_cast<uint32_t*>(to) = Element::narrow_pair(v[0], v[1]);
}

// Normalises one head of D numbers, of which lane l holds D / 32.
template <class Element, int D>
__device__ __forceinline__ void norm_head(float (&v)[D / 32], const float (&weights)[D / 32], float eps) {
  constexpr int E = D / 32;
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < E; ++i) squares += v[i] * v[i];
  const float scale = rsqrtf(warp_sum(squares) / D + eps);
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = Element::widen(Element::narrow(v[i] * scale)) * weights[i];
}

// Rotates pairs i and i + D / 2.
template <int D>
__device__ __forceinline__ void rotate_head(float (&v)[D / 32], const Rotation<D>& rotation, int lane) {
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
    const float other = __shfl_xor_sync(0xffffffffu, v[i], 16), c = rotation.cosine[i], s = rotation.sine[i];
    v[i] = lane < 16 ? v[i] * c - other * s : v[i] * c + other * s;
  }
}

// Normalises (if `norm`) and rotates (if `cos_sin`, the angles of the position) one head of D numbers; lane l holds D / 32 of them.
template <class Element, int D>
__device__ __forceinline__ void norm_and_rotate(float (&v)[D / 32], const typename Element::type* norm, const float* cos_sin, float eps, int lane) {
  if (cos_sin == nullptr) return;
  if (norm != nullptr) {
    float weights[D / 32];
    load_numbers<Element>(weights, norm + lane * (D / 32));
    norm_head<Element, D>(v, weights, eps);
  }
  Rotation<D> rotation;
  rotation.load(cos_sin, lane);
  rotate_head<D>(v, rotation, lane);
}

}  // namespace xllm::kernels::cuda

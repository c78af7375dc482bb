// The two 16-bit types that kernels compute with, behind one set of names. Knows nothing of layouts in memory.
#pragma once

#include <cuda_fp16.h>

#include "matrix.cuh"
#include "xllm/kernels/cuda/half_type.h"

namespace xllm::kernels::cuda {

struct BFloat16Element {
  using type = __nv_bfloat16;
  static constexpr char kName[] = "bf16";  // in the names of PTX instructions
  static constexpr float kBeforeNorm = 1.f;
  static __device__ __forceinline__ float widen(type v) { return __bfloat162float(v); }
  static __device__ __forceinline__ type narrow(float v) { return __float2bfloat16(v); }
  static __device__ __forceinline__ float2 widen_pair(uint32_t v) { return unpack(v); }
  static __device__ __forceinline__ uint32_t narrow_pair(float a, float b) { return pack(a, b); }
  static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    cuda::multiply_add(c, a[0], a[1], a[2], a[3], b0, b1);
  }
};

struct Float16Element {
  using type = __half;
  static constexpr char kName[] = "f16";
  // Where a row's norm is finished after its product, its numbers are as large as they came: times their weight they must still fit.
  static constexpr float kBeforeNorm = 1.f / 64.f;
  static __device__ __forceinline__ float widen(type v) { return __half2float(v); }
  static __device__ __forceinline__ type narrow(float v) { return __float2half(v); }
  static __device__ __forceinline__ float2 widen_pair(uint32_t v) {
    return __half22float2(*reinterpret_cast<__half2*>(&v));
  }
  static __device__ __forceinline__ uint32_t narrow_pair(float a, float b) {
    __half2 v = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t*>(&v);
  }
  static __device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// A pair times a pair of the norm's weight, with room for what the norm has yet to take away; adds the first pair's squares.
template <class Element>
__device__ __forceinline__ uint32_t weigh_pair(uint32_t x, uint32_t weight, float& squares) {
  const float2 a = Element::widen_pair(x), b = Element::widen_pair(weight);
  squares += a.x * a.x + a.y * a.y;
  return Element::narrow_pair(a.x * (b.x * Element::kBeforeNorm), a.y * (b.y * Element::kBeforeNorm));
}
template <class Element>
__device__ __forceinline__ uint4 weigh_piece(uint4 x, uint4 weight, float& squares) {
  return make_uint4(weigh_pair<Element>(x.x, weight.x, squares), weigh_pair<Element>(x.y, weight.y, squares),
                    weigh_pair<Element>(x.z, weight.z, squares), weigh_pair<Element>(x.w, weight.w, squares));
}

__device__ __forceinline__ float silu_times(float gate, float up) { return gate / (1.f + __expf(-gate)) * up; }

// What a product of weighed numbers is multiplied by, from the sum of the row's squares.
template <class Element>
__device__ __forceinline__ float norm_scale(float squares, int size, float eps) {
  return rsqrtf(squares / size + eps) * (1.f / Element::kBeforeNorm);
}

// use(Element{}) of the type that `type` names; on the host.
template <class Use>
auto with_element(HalfType type, const Use& use) {
  return type == HalfType::float16 ? use(Float16Element{}) : use(BFloat16Element{});
}

}  // namespace xllm::kernels::cuda

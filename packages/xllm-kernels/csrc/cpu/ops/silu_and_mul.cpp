// SiLU of the first half times the second. Compiled once for each instruction set (see vector.h).
#include "xllm/kernels/silu_and_mul.h"

#include "ops/ops.h"
#include "vector.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

inline Vec gated(Vec gate, Vec up) {
  const Vec one = set1(1.0f);
  return mul(div(gate, add(one, exp(sub(set1(0.0f), gate)))), up);
}

// out = silu(gate) * up.
template <class T>
void gate_row(const T* gate, const T* up, T* out, int64_t size) {
  constexpr int64_t w = Vec::width;
  int64_t i = 0;
  for (; i + w <= size; i += w) store(out + i, gated(load(gate + i), load(up + i)));
  const int64_t left = size - i;
  if (left > 0) store_first(out + i, gated(load_first(gate + i, left), load_first(up + i, left)), left);
}

template <class T>
void silu_and_mul_rows(const SiluAndMulArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(args.x) + row * args.x_row_stride;
    gate_row(gate, gate + args.size, static_cast<T*>(args.out) + row * args.out_row_stride, args.size);
  }
}

}  // namespace

void silu_and_mul(const SiluAndMulArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::bfloat16) silu_and_mul_rows<bfloat16>(args, begin, end);
  else silu_and_mul_rows<float>(args, begin, end);
}

void gate(const float* gate, const float* up, float* out, int64_t count) { gate_row(gate, up, out, count); }

}  // namespace xllm::kernels::cpu::XLLM_ISA

// Modulated LayerNorm, gated addition and GELU of diffusion transformers, one row at a time. Compiled once for each
// instruction set (see vector.h).
#include "xllm/kernels/modulation.h"

#include "ops/ops.h"
#include "ops/token_rows.h"
#include "vector.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

constexpr int64_t w = Vec::width;

template <class T>
void modulate(const T* x, const T* shift, const T* scale, T* out, int64_t size, float eps) {
  const float count = static_cast<float>(size);
  const Vec mean = set1(sum_over(x, size, [](Vec v) { return v; }) / count);
  const float variance = sum_over(x, size, [mean](Vec v) { return mul(sub(v, mean), sub(v, mean)); }) / count;
  const Vec inverse = set1(1.0f / __builtin_sqrtf(variance + eps)), one = set1(1);
  int64_t i = 0;
  for (; i + w <= size; i += w) {
    const Vec normal = mul(sub(load(x + i), mean), inverse);
    store(out + i, fma(normal, add(one, load(scale + i)), load(shift + i)));
  }
  if (i < size) {
    const int64_t left = size - i;
    const Vec normal = mul(sub(load_first(x + i, left), mean), inverse);
    store_first(out + i, fma(normal, add(one, load_first(scale + i, left)), load_first(shift + i, left)), left);
  }
}

template <class T>
void modulated_norm_rows(const ModulatedNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / args.num_tokens, token = row % args.num_tokens;
    modulate(row_of<T>(args.x, batch, token), static_cast<const T*>(args.shift) + batch * args.shift_stride,
             static_cast<const T*>(args.scale) + batch * args.scale_stride, row_of<T>(args.out, batch, token), args.size,
             args.eps);
  }
}

template <class T>
void add_gated_rows(const AddGatedArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / args.num_tokens, token = row % args.num_tokens;
    T* x = row_of<T>(args.x, batch, token);
    const T* y = row_of<T>(args.y, batch, token);
    const T* gate = static_cast<const T*>(args.gate) + batch * args.gate_stride;
    int64_t i = 0;
    for (; i + w <= args.size; i += w) store(x + i, fma(load(gate + i), load(y + i), load(x + i)));
    if (i < args.size) {
      const int64_t left = args.size - i;
      store_first(x + i, fma(load_first(gate + i, left), load_first(y + i, left), load_first(x + i, left)), left);
    }
  }
}

// x / (1 + e^(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3): x / 2 * (1 + tanh(u)).
Vec gelu_of(Vec x) {
  constexpr float kTwice = -2.0f * 0.7978845608028654f;
  const Vec inner = mul(x, fma(mul(x, x), set1(0.044715f * kTwice), set1(kTwice)));
  return div(x, add(set1(1.0f), exp(inner)));
}

template <class T>
void gelu_rows(const GeluArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / args.num_tokens, token = row % args.num_tokens;
    const T* x = row_of<T>(args.x, batch, token);
    T* out = row_of<T>(args.out, batch, token);
    int64_t i = 0;
    for (; i + w <= args.size; i += w) store(out + i, gelu_of(load(x + i)));
    if (i < args.size) store_first(out + i, gelu_of(load_first(x + i, args.size - i)), args.size - i);
  }
}

}  // namespace

void modulated_norm(const ModulatedNormArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::bfloat16) modulated_norm_rows<bfloat16>(args, begin, end);
  else modulated_norm_rows<float>(args, begin, end);
}

void add_gated(const AddGatedArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::bfloat16) add_gated_rows<bfloat16>(args, begin, end);
  else add_gated_rows<float>(args, begin, end);
}

void gelu(const GeluArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::bfloat16) gelu_rows<bfloat16>(args, begin, end);
  else gelu_rows<float>(args, begin, end);
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

// RMSNorm, one row at a time. Compiled once for each instruction set (see vector.h).
#include "xllm/kernels/rms_norm.h"

#include "ops/ops.h"
#include "vector.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

// Four independent sums hide the latency of fma; the order of additions depends on `size` alone.
template <class T>
float sum_of_squares(const T* x, int64_t size) {
  constexpr int64_t w = Vec::width;
  Vec sums[4] = {set1(0), set1(0), set1(0), set1(0)};
  int64_t i = 0;
  for (; i + 4 * w <= size; i += 4 * w)
    for (int j = 0; j < 4; ++j) {
      const Vec v = load(x + i + j * w);
      sums[j] = fma(v, v, sums[j]);
    }
  for (; i + w <= size; i += w) {
    const Vec v = load(x + i);
    sums[0] = fma(v, v, sums[0]);
  }
  if (i < size) {
    const Vec v = load_first(x + i, size - i);
    sums[1] = fma(v, v, sums[1]);
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

template <class T>
void normalise(const T* x, const T* weight, T* out, int64_t size, float eps) {
  constexpr int64_t w = Vec::width;
  const Vec scale = set1(1.0f / __builtin_sqrtf(sum_of_squares(x, size) / static_cast<float>(size) + eps));
  int64_t i = 0;
  for (; i + w <= size; i += w) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
  if (i < size) {
    const int64_t left = size - i;
    store_first(out + i, mul(mul(load_first(x + i, left), scale), load_first(weight + i, left)), left);
  }
}

template <class T>
void accumulate(T* total, const T* x, int64_t size) {
  constexpr int64_t w = Vec::width;
  int64_t i = 0;
  for (; i + w <= size; i += w) store(total + i, add(load(total + i), load(x + i)));
  if (i < size) store_first(total + i, add(load_first(total + i, size - i), load_first(x + i, size - i)), size - i);
}

template <class T>
void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  T* out = static_cast<T*>(args.out);
  for (int64_t row = begin; row < end; ++row)
    normalise(x + row * args.x_row_stride, static_cast<const T*>(args.weight), out + row * args.out_row_stride,
              args.hidden_size, args.eps);
}

template <class T>
void add_rms_norm_rows(const AddRmsNormArgs& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* x = static_cast<T*>(args.x) + row * args.x_row_stride;
    T* residual = static_cast<T*>(args.residual) + row * args.residual_row_stride;
    accumulate(residual, x, args.hidden_size);
    normalise(residual, static_cast<const T*>(args.weight), x, args.hidden_size, args.eps);
  }
}

}  // namespace

void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::bfloat16) rms_norm_rows<bfloat16>(args, begin, end);
  else rms_norm_rows<float>(args, begin, end);
}

void add_rms_norm(const AddRmsNormArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::bfloat16) add_rms_norm_rows<bfloat16>(args, begin, end);
  else add_rms_norm_rows<float>(args, begin, end);
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

// Rotary embedding, one token at a time. Compiled once for each instruction set (see vector.h).
#include "xllm/kernels/rotary_embedding.h"

#include "ops/ops.h"
#include "vector.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

template <class T>
void rotate_head(T* head, const float* cosines, const float* sines, int64_t half) {
  constexpr int64_t w = Vec::width;
  int64_t i = 0;
  for (; i + w <= half; i += w) {
    const Vec first = load(head + i), second = load(head + half + i);
    const Vec c = load(cosines + i), s = load(sines + i);
    store(head + i, sub(mul(first, c), mul(second, s)));
    store(head + half + i, add(mul(second, c), mul(first, s)));
  }
  const int64_t left = half - i;
  if (left > 0) {
    const Vec first = load_first(head + i, left), second = load_first(head + half + i, left);
    const Vec c = load_first(cosines + i, left), s = load_first(sines + i, left);
    store_first(head + i, sub(mul(first, c), mul(second, s)), left);
    store_first(head + half + i, add(mul(second, c), mul(first, s)), left);
  }
}

template <class T>
void rotate_tokens(const RotaryEmbeddingArgs& args, int64_t begin, int64_t end) {
  const int64_t half = args.rotary_dim / 2;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t position = args.positions_are_int64 ? static_cast<const int64_t*>(args.positions)[token]
                                                      : static_cast<const int32_t*>(args.positions)[token];
    const float* cosines = args.cos_sin_cache + position * args.rotary_dim;
    T* query = static_cast<T*>(args.query) + token * args.query_row_stride;
    T* key = static_cast<T*>(args.key) + token * args.key_row_stride;
    for (int64_t head = 0; head < args.num_query_heads; ++head)
      rotate_head(query + head * args.head_dim, cosines, cosines + half, half);
    for (int64_t head = 0; head < args.num_kv_heads; ++head)
      rotate_head(key + head * args.head_dim, cosines, cosines + half, half);
  }
}

}  // namespace

void rotary_embedding(const RotaryEmbeddingArgs& args, int64_t begin, int64_t end) {
  if (args.dtype == DType::bfloat16) rotate_tokens<bfloat16>(args, begin, end);
  else rotate_tokens<float>(args, begin, end);
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

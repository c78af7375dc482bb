// Joins a beam's own keys to what attention over its prompt left. Compiled once for each instruction set (see vector.h).
#include "xllm/kernels/beam_attention.h"

#include "ops/ops.h"
#include "vector.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

// Elements [i, i + width) of a head of `size`; zeros behind its end.
template <class U>
inline Vec load_part(const U* head, int64_t i, int64_t size) {
  return i + Vec::width <= size ? load(head + i) : load_first(head + i, size - i);
}

// T is the type of query and output, C that of the keys and values.
template <class T, class C>
class BeamJoiner {
 public:
  BeamJoiner(const BeamAttentionArgs& args, const AttentionItem& item, float* partial)
      : args_(args),
        item_(item),
        group_(args.prompt.num_query_heads / args.prompt.num_kv_heads),
        rows_(item.num_rows * group_),
        size_(args.prompt.head_dim),
        dim_(padded_head_dim(size_)),
        maximum_(partial),
        denominator_(partial + rows_),
        sums_(partial + 2 * rows_) {}

  void run() {
    for (int64_t r = 0; r < rows_; ++r) join(r);
  }

 private:
  void join(int64_t r) {
    const int64_t token = args_.prompt.query_start[item_.sequence] + item_.first_row + r / group_;
    const int64_t head = item_.kv_head * group_ + r % group_;
    const T* query = static_cast<const T*>(args_.prompt.query) + token * args_.prompt.query_row_stride + head * size_;
    const int32_t* ancestors = args_.ancestors + token * args_.ancestors_stride;
    float* sums = sums_ + r * dim_;
    for (int64_t round = 0; round < args_.num_rounds; ++round) {
      const int64_t place = round * args_.beam_round_stride +
                            (ancestors[round] * args_.prompt.num_kv_heads + item_.kv_head) * size_;
      add_key(query, static_cast<const C*>(args_.beam_key) + place, static_cast<const C*>(args_.beam_value) + place, sums,
              maximum_[r], denominator_[r]);
    }
    T* out = static_cast<T*>(args_.prompt.out) + token * args_.prompt.out_row_stride + head * size_;
    const Vec denominator = set1(denominator_[r]);
    int64_t i = 0;
    for (; i + Vec::width <= size_; i += Vec::width) store(out + i, div(load(sums + i), denominator));
    if (i < size_) store_first(out + i, div(load(sums + i), denominator), size_ - i);
  }

  void add_key(const T* query, const C* key, const C* value, float* sums, float& maximum, float& denominator) const {
    Vec products = set1(0.0f);
    for (int64_t i = 0; i < size_; i += Vec::width)
      products = fma(mul(load_part(query, i, size_), set1(args_.prompt.scale)), load_part(key, i, size_), products);
    const float score = sum(products);
    const float highest = score > maximum ? score : maximum;
    const float keep = exp(maximum - highest), take = exp(score - highest);
    maximum = highest;
    denominator = denominator * keep + take;
    for (int64_t i = 0; i < size_; i += Vec::width)
      store(sums + i, fma(load_part(value, i, size_), set1(take), mul(load(sums + i), set1(keep))));
  }

  const BeamAttentionArgs& args_;
  const AttentionItem& item_;
  int64_t group_;  // query heads of a key-value head
  int64_t rows_;   // beams x group_
  int64_t size_;   // of a head
  int64_t dim_;    // padded
  float* maximum_;
  float* denominator_;
  float* sums_;
};

}  // namespace

void attend_beams(const BeamAttentionArgs& args, const AttentionItem& item, float* partials) {
  attend(args.prompt, item, partials);
  float* partial = partials + item.partial_offset;
  if (args.prompt.dtype == DType::bfloat16) BeamJoiner<bfloat16, bfloat16>(args, item, partial).run();
  else if (args.prompt.cache_dtype == DType::bfloat16) BeamJoiner<float, bfloat16>(args, item, partial).run();
  else BeamJoiner<float, float>(args, item, partial).run();
}

// Sums of up to this many terms are taken in float, those sums in double.
constexpr int64_t kTermsPerSum = 4096;

double log_sum_exp_terms(const float* x, int64_t count, float highest) {
  double total = 0.0;
  for (int64_t begin = 0; begin < count; begin += kTermsPerSum) {
    const int64_t end = begin + kTermsPerSum < count ? begin + kTermsPerSum : count;
    Vec part = set1(0.0f);
    int64_t i = begin;
    for (; i + Vec::width <= end; i += Vec::width) part = add(part, exp(sub(load(x + i), set1(highest))));
    total += sum(part);
    for (; i < end; ++i) total += exp(x[i] - highest);
  }
  return total;
}

float log_sum_exp_parts(const float* x, int64_t count, double* terms) {
  const float highest = x[largest_index(x, count)];
  *terms = log_sum_exp_terms(x, count, highest);
  return highest;
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

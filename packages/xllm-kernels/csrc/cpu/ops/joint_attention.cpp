// Joint attention: heads prepared from projections, and online softmax (Milakov and Gimelshein, 2018) over parts of keys
// whose products are two register-blocked matrix products. Compiled once for each instruction set (see vector.h).
//
// Each query's result is a fixed sequence of operations on its own row and all keys, whatever the rows beside it.
#include "xllm/kernels/joint_attention.h"

#include <stddef.h>

#include "joint_plan.h"
#include "ops/ops.h"
#include "ops/token_rows.h"
#include "vector.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

constexpr int64_t w = Vec::width;
constexpr int64_t kTileKeys = 2 * w;
// Rows whose sums of two vectors each stay in registers.
constexpr int64_t kRows = w == 16 ? 12 : w == 8 ? 6 : 3;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2E = 1.44269504088896341f;
static_assert(kQueriesPerItem % kRows == 0 && kHeadMultiple % kTileKeys == 0 && kKeysPerPart % kTileKeys == 0);

struct HeadPlace {
  const AttentionStream* stream;
  int64_t token;  // within the stream
};

HeadPlace place_of(const JointAttentionArgs& args, int64_t token) {
  const AttentionStream& first = args.streams[0];
  if (token < first.num_tokens) return {&first, token};
  return {&args.streams[1], token - first.num_tokens};
}

// One head x [size], normalised and rotated where there is something to do it by, times `factor`.
template <class T>
void prepare_head(const JointAttentionArgs& args, const T* x, const T* norm, int64_t token, float factor, float* out) {
  const int64_t size = args.head_size;
  float inverse = factor;
  if (norm != nullptr) {
    const float squares = sum_over(x, size, [](Vec v) { return mul(v, v); });
    inverse *= 1.0f / __builtin_sqrtf(squares / static_cast<float>(size) + args.eps);
  }
  const Vec scale = set1(inverse);
  for (int64_t i = 0; i < size; i += w) {
    const int64_t left = size - i;
    Vec value = left >= w ? load(x + i) : load_first(x + i, left);
    if (norm != nullptr) value = mul(value, left >= w ? load(norm + i) : load_first(norm + i, left));
    store(out + i, mul(value, scale));
  }
  if (args.cos == nullptr) return;
  const float* cos = args.cos + token * (size / 2);
  const float* sin = args.sin + token * (size / 2);
  for (int64_t i = 0; i < size / 2; ++i) {
    const float even = out[2 * i], odd = out[2 * i + 1];
    out[2 * i] = even * cos[i] - odd * sin[i];
    out[2 * i + 1] = odd * cos[i] + even * sin[i];
  }
}

template <class T>
void pack(const JointAttentionArgs& args, int64_t batch, int64_t head, PreparedHead& prepared) {
  const int64_t size = args.head_size, inner = args.num_heads * size, columns = padded(size), all = num_tokens(args);
  float* const buffer = static_cast<float*>(thread_scratch(static_cast<size_t>(columns + w) * sizeof(float)));
  int64_t num_keys = 0;
  for (int64_t token = 0; token < all; ++token) {
    if (args.mask != nullptr && args.mask[batch * all + token] == 0) continue;
    const HeadPlace place = place_of(args, token);
    const T* x = row_of<T>(place.stream->qkv, batch, place.token) + head * size;
    prepare_head(args, x + inner, static_cast<const T*>(place.stream->k_norm), token, 1.0f, buffer);
    float* key = prepared.keys + num_keys / kTileKeys * kTileKeys * columns + num_keys % kTileKeys;
    for (int64_t i = 0; i < size; ++i) key[i * kTileKeys] = buffer[i];
    float* value = prepared.values + num_keys * columns;
    const T* given = x + 2 * inner;
    int64_t i = 0;
    for (; i + w <= size; i += w) store(value + i, load(given + i));
    if (i < size) {
      store(value + i, load_first(given + i, size - i));
      i += w;
    }
    for (; i < columns; i += w) store(value + i, set1(0.0f));
    ++num_keys;
  }
  prepared.num_keys = num_keys;
  for (int64_t token = num_keys; token % kTileKeys != 0; ++token) {
    float* key = prepared.keys + token / kTileKeys * kTileKeys * columns + token % kTileKeys;
    for (int64_t i = 0; i < size; ++i) key[i * kTileKeys] = 0.0f;
  }
}

// 2^x for x <= 0 to about 2 ulp; 2^-126 below. A NaN passes.
inline Vec power_of_two_of(Vec x) {
  const Vec bounded = max(set1(-126.0f), x);
  const Vec n = round(bounded);
  const Vec r = sub(bounded, n);
  Vec p = set1(1.5403530394e-4f);
  p = fma(p, r, set1(1.3333558146e-3f));
  p = fma(p, r, set1(9.6181291076e-3f));
  p = fma(p, r, set1(5.5504108664e-2f));
  p = fma(p, r, set1(2.4022650696e-1f));
  p = fma(p, r, set1(6.9314718056e-1f));
  return mul(fma(p, r, set1(1.0f)), power_of_two(n));
}

float power_of_two_of(float x) {
  float lanes[Vec::width];
  store(lanes, power_of_two_of(set1(x)));
  return lanes[0];
}

// out[r][0 .. 2 w) = x[r] . columns: kRows rows of x, whose inputs lie RowStep and InputStep apart, against a column of two
// vectors for each of `count` inputs; added to out * decay where there is a decay. The steps are known to the compiler, so
// that all rows are reached from one pointer.
template <int64_t RowStep, int64_t InputStep>
inline void multiply_rows(const float* x, const float* columns, int64_t column_stride, int64_t count, const float* decay,
                          float* out, int64_t out_stride) {
  Vec sums[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v)
      sums[r][v] = decay == nullptr ? set1(0.0f) : mul(load(out + r * out_stride + v * w), set1(decay[r]));
  const float* const end = x + count * InputStep;
  for (; x != end; x += InputStep, columns += column_stride) {
    const Vec low = kept(load(columns)), high = kept(load(columns + w));
    for (int r = 0; r < kRows; ++r) {
      const Vec input = set1(x[r * RowStep]);
      sums[r][0] = fma(input, low, sums[r][0]);
      sums[r][1] = fma(input, high, sums[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) store(out + r * out_stride + v * w, sums[r][v]);
}

// Turns a row's scores, powers of two, into weights; returns the decay of older sums. Scores from `count` on are ignored.
float softmax_row(float* scores, int64_t count, float& maximum, float& denominator) {
  const int64_t whole = (count + kTileKeys - 1) / kTileKeys * kTileKeys;
  for (int64_t k = count; k < whole; ++k) scores[k] = kMinusInfinity;
  Vec highest[2] = {load(scores), load(scores + w)};
  for (int64_t k = kTileKeys; k < whole; k += kTileKeys) {
    highest[0] = max(highest[0], load(scores + k));
    highest[1] = max(highest[1], load(scores + k + w));
  }
  const float part_maximum = largest(max(highest[0], highest[1]));
  const float new_maximum = part_maximum > maximum ? part_maximum : maximum;
  const Vec offset = set1(new_maximum);
  Vec totals[2] = {set1(0.0f), set1(0.0f)};
  for (int64_t k = 0; k < whole; k += kTileKeys)
    for (int v = 0; v < 2; ++v) {
      const Vec weight = power_of_two_of(sub(load(scores + k + v * w), offset));
      store(scores + k + v * w, weight);
      totals[v] = add(totals[v], weight);
    }
  const float decay = power_of_two_of(maximum - new_maximum);
  maximum = new_maximum;
  denominator = denominator * decay + sum(add(totals[0], totals[1]));
  return decay;
}

// The queries of an item with their softmax so far, in the thread's scratch. Rows beyond num_rows are zeros. kRows queries lie
// together, all of them for each feature.
struct Queries {
  int64_t num_rows;
  int64_t size;
  int64_t columns;
  float* query;
  float* sums;
  float* maximum;
  float* denominator;
  float* decay;
  float* scores;

  Queries(int64_t rows, int64_t head_size) : num_rows(rows), size(head_size), columns(padded(head_size)) {
    query = static_cast<float*>(thread_scratch(static_cast<size_t>(joint_scratch_floats(columns)) * sizeof(float)));
    sums = query + kQueriesPerItem * columns;
    scores = sums + kQueriesPerItem * columns;
    maximum = scores + kQueriesPerItem * kScoreStride;
    denominator = maximum + kQueriesPerItem;
    decay = denominator + kQueriesPerItem;
    for (int64_t i = 0; i < kQueriesPerItem * columns; ++i) query[i] = sums[i] = 0.0f;
    for (int64_t r = 0; r < kQueriesPerItem; ++r) maximum[r] = kMinusInfinity;
    for (int64_t r = 0; r < kQueriesPerItem; ++r) denominator[r] = 0.0f;
  }

  // The keys [first, first + count) of a head, at most kKeysPerPart, first a multiple of it.
  void see(const PreparedHead& head, int64_t first, int64_t count) {
    for (int64_t row = 0; row < num_rows; row += kRows) {
      float* own = scores + row * kScoreStride;
      for (int64_t k = 0; k < count; k += kTileKeys)
        multiply_rows<1, kRows>(query + row * columns, head.keys + (first + k) * columns, kTileKeys, size, nullptr, own + k,
                                kScoreStride);
      for (int64_t r = row; r < row + kRows; ++r)
        decay[r] = softmax_row(scores + r * kScoreStride, count, maximum[r], denominator[r]);
      for (int64_t c = 0; c < columns; c += kTileKeys)
        multiply_rows<kScoreStride, 1>(own, head.values + first * columns + c, columns, count, decay + row,
                                       sums + row * columns + c, columns);
    }
  }
};

template <class T>
void attend_item(const JointAttentionArgs& args, const PreparedHead& head, const JointItem& item) {
  const int64_t size = args.head_size;
  const float factor = kLog2E / __builtin_sqrtf(static_cast<float>(size));
  Queries queries(item.num_rows, size);
  for (int64_t r = 0; r < item.num_rows; ++r) {
    const int64_t token = args.first_query + item.first_row + r;
    const HeadPlace place = place_of(args, token);
    const T* x = row_of<T>(place.stream->qkv, item.batch, place.token) + item.head * size;
    prepare_head(args, x, static_cast<const T*>(place.stream->q_norm), token, factor, queries.scores);
    float* query = queries.query + r / kRows * kRows * queries.columns + r % kRows;
    for (int64_t i = 0; i < size; ++i) query[i * kRows] = queries.scores[i];
  }
  for (int64_t first = 0; first < head.num_keys; first += kKeysPerPart) {
    const int64_t left = head.num_keys - first;
    queries.see(head, first, left < kKeysPerPart ? left : kKeysPerPart);
  }
  for (int64_t r = 0; r < item.num_rows; ++r) {
    T* out = row_of<T>(args.out, item.batch, item.first_row + r) + item.head * size;
    const float* sums = queries.sums + r * queries.columns;
    const Vec denominator = set1(queries.denominator[r]);
    int64_t i = 0;
    for (; i + w <= size; i += w) store(out + i, div(load(sums + i), denominator));
    if (i < size) store_first(out + i, div(load(sums + i), denominator), size - i);
  }
}

}  // namespace

void prepare_joint_head(const JointAttentionArgs& args, int64_t batch, int64_t head, PreparedHead& prepared) {
  if (args.dtype == DType::bfloat16) pack<bfloat16>(args, batch, head, prepared);
  else pack<float>(args, batch, head, prepared);
}

void attend_joint(const JointAttentionArgs& args, const PreparedHead& head, const JointItem& item) {
  if (args.dtype == DType::bfloat16) attend_item<bfloat16>(args, head, item);
  else attend_item<float>(args, head, item);
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

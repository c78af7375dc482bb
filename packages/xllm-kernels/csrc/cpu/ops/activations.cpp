// What stands before and behind a product: inputs in the form that it reads, and the small steps on its results.
// Compiled once for each instruction set (see vector.h).
#include <stddef.h>

#include "ops/multiply.h"
#include "ops/ops.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

constexpr int64_t w = Vec::width;

// Blocks of 32: scale = largest magnitude / 127. The sum of a block times zero is NaN if one of its numbers is not
// finite, and then so is the scale: a broken row stays recognisable.
void quantise_block(const float* x, int8_t* values, float& scale, float& sum_of_values, int32_t* counts) {
  Vec largest_seen = set1(0.0f), total = set1(0.0f);
  for (int64_t i = 0; i < kBlockInputs; i += w) {
    largest_seen = max(largest_seen, abs(load(x + i)));
    total = XLLM_ISA::add(total, load(x + i));
  }
  const float magnitude = largest(largest_seen);
  const Vec inverse = set1(magnitude > 0.0f ? 127.0f / magnitude : 0.0f);
  scale = magnitude / 127.0f + 0.0f * sum(total);
  for (int64_t i = 0; i < kBlockInputs; i += w) store_bytes(values + i, round(mul(load(x + i), inverse)));
  for (int64_t half = 0; half < 2; ++half) {
    int32_t count = 0;
    for (int64_t i = 0; i < kBlockInputs / 2; ++i) count += values[half * kBlockInputs / 2 + i];
    counts[half] = count;
  }
  sum_of_values = scale * static_cast<float>(counts[0] + counts[1]);
}

void quantise_row(const float* x, int64_t num_inputs, uint8_t* out) {
  const QuantisedRow row = quantised_row(out, num_inputs);
  int64_t block = 0;
  for (; (block + 1) * kBlockInputs <= num_inputs; ++block)
    quantise_block(x + block * kBlockInputs, row.values + block * kBlockInputs, row.scales[block], row.sums[block],
                   row.counts + 2 * block);
  const int64_t left = num_inputs - block * kBlockInputs;
  if (left > 0) {
    float padded[kBlockInputs] = {};
    for (int64_t i = 0; i < left; ++i) padded[i] = x[block * kBlockInputs + i];
    quantise_block(padded, row.values + block * kBlockInputs, row.scales[block], row.sums[block],
                   row.counts + 2 * block);
  }
}

void round_row(const float* x, int64_t num_inputs, uint8_t* out) {
  bfloat16* rounded = reinterpret_cast<bfloat16*>(out);
  int64_t i = 0;
  for (; i + w <= num_inputs; i += w) store(rounded + i, load(x + i));
  if (i < num_inputs) store_first(rounded + i, load_first(x + i, num_inputs - i), num_inputs - i);
  if (num_inputs % 2 != 0) rounded[num_inputs] = bfloat16{0};
}

}  // namespace

void prepare_row(ActivationKind kind, const float* x, int64_t num_inputs, uint8_t* out) {
  switch (kind) {
    case ActivationKind::int8: return quantise_row(x, num_inputs, out);
    case ActivationKind::bfloat16: return round_row(x, num_inputs, out);
    default: __builtin_memcpy(out, x, static_cast<size_t>(num_inputs) * sizeof(float));
  }
}

void multiply(const MultiplyArgs& args) {
  if (is_quantised(args.matrix->format)) multiply_quantised(args);
  else multiply_float(args);
}

void add(float* total, const float* x, int64_t count) {
  int64_t i = 0;
  for (; i + w <= count; i += w) store(total + i, XLLM_ISA::add(load(total + i), load(x + i)));
  for (; i < count; ++i) total[i] += x[i];
}

int64_t largest_index(const float* x, int64_t count) {
  int64_t i = 0;
  Vec best = set1(x[0]), total = set1(0.0f);
  for (; i + w <= count; i += w) {
    best = max(best, load(x + i));
    total = fma(load(x + i), set1(0.0f), total);
  }
  float value = largest(best);
  bool may_hold_nan = !(sum(total) == 0.0f);
  for (; i < count; ++i) {
    value = x[i] > value ? x[i] : value;
    may_hold_nan |= x[i] != x[i];
  }
  if (may_hold_nan)
    for (int64_t k = 0; k < count; ++k)
      if (x[k] != x[k]) return k;
  for (int64_t k = 0; k < count; ++k)
    if (x[k] == value) return k;
  return 0;
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

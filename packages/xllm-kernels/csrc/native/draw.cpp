#include "xllm/kernels/native/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "best_tokens.h"
#include "kernel_table.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {
namespace {

// Best tokens that a filtered row is looked at first: most filters end within the first number of them.
constexpr int64_t kWidths[] = {64, 1024, 8192};
// As in xllm_runtime.sampling: a set whose mass misses top-p by less reaches it.
constexpr double kMassRounding = 1e-6;
// Weights that are summed first, so that only one part is looked at closely.
constexpr int64_t kPart = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct RowOptions {
  int64_t vocab_size;
  int64_t top_k;
  double top_p;
  float min_p;
  double uniform;
};

struct Memory {
  std::vector<float> scaled;
  std::vector<int32_t> ids;
  std::vector<double> weights;  // cumulative
};

Memory& memory_of_thread() {
  thread_local Memory memory;
  return memory;
}

// The first index whose cumulative weight exceeds `target`, or the last of those that add to the total.
int64_t invert(const std::vector<double>& cumulative, double target) {
  const double below_total = std::nextafter(cumulative.back(), 0.0);
  return std::upper_bound(cumulative.begin(), cumulative.end(), std::min(target, below_total)) - cumulative.begin();
}

// The sum of e^x over count numbers, 0 where all are minus infinity.
double sum_of_exponentials(const float* x, int64_t count) {
  if (std::all_of(x, x + count, [](float value) { return value == -kInfinity; })) return 0.0;
  double terms = 0.0;
  const float highest = cpu::kernels().log_sum_exp_parts(x, count, &terms);
  return std::exp(static_cast<double>(highest)) * terms;
}

// From the softmax of `scaled`, whose largest value is 0, under min-p alone.
int64_t draw_from_all(std::vector<float>& scaled, const RowOptions& options) {
  if (options.min_p > 0.0f) {
    const float least = std::log(options.min_p);
    for (float& value : scaled) value = value < least ? -kInfinity : value;
  }
  const int64_t size = options.vocab_size;
  std::vector<double>& parts = memory_of_thread().weights;
  parts.clear();
  double total = 0.0;
  for (int64_t begin = 0; begin < size; begin += kPart)
    parts.push_back(total += sum_of_exponentials(&scaled[static_cast<size_t>(begin)], std::min(kPart, size - begin)));
  const double target = options.uniform * total;
  const int64_t part = invert(parts, target);
  const double before = part > 0 ? parts[static_cast<size_t>(part - 1)] : 0.0;
  std::vector<double> inner;
  double sum = 0.0;
  for (int64_t i = part * kPart; i < std::min((part + 1) * kPart, size); ++i)
    inner.push_back(sum += std::exp(static_cast<double>(scaled[static_cast<size_t>(i)])));
  return part * kPart + invert(inner, target - before);
}

// From the best `width` tokens, or -1: the filters do not end within them.
int64_t draw_from_best(const std::vector<float>& scaled, const RowOptions& options, int64_t width, double total) {
  Memory& memory = memory_of_thread();
  best_tokens(scaled.data(), options.vocab_size, width, memory.ids);
  const auto weight_of = [&](int32_t id) { return std::exp(static_cast<double>(scaled[static_cast<size_t>(id)])); };
  const bool is_unbounded = options.top_k == options.vocab_size;
  memory.ids.resize(static_cast<size_t>(std::min(width, options.top_k)));
  memory.weights.clear();
  double mass = 0.0;
  for (const int32_t id : memory.ids) memory.weights.push_back(mass += weight_of(id));
  const double needed = (options.top_p - kMassRounding) * (is_unbounded ? total : mass);
  if (options.top_k > width && !(is_unbounded && mass >= needed)) return -1;
  size_t num_kept = 1;
  for (; num_kept < memory.ids.size(); ++num_kept) {
    const double weight = weight_of(memory.ids[num_kept]);
    const bool is_cut = options.top_p < 1.0 && memory.weights[num_kept] - weight >= needed;
    if (is_cut || weight < static_cast<double>(options.min_p)) break;  // and so is every worse one
  }
  memory.ids.resize(num_kept);
  std::sort(memory.ids.begin(), memory.ids.end());
  memory.weights.clear();
  double sum = 0.0;
  for (const int32_t id : memory.ids) memory.weights.push_back(sum += weight_of(id));
  return memory.ids[static_cast<size_t>(invert(memory.weights, options.uniform * sum))];
}

int64_t draw_row(const float* logits, float best, float temperature, const RowOptions& options) {
  const int64_t size = options.vocab_size;
  std::vector<float>& scaled = memory_of_thread().scaled;
  scaled.resize(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) scaled[static_cast<size_t>(i)] = (logits[i] - best) / temperature;
  if (options.top_k == size && options.top_p >= 1.0) return draw_from_all(scaled, options);
  const double total = options.top_k == size ? sum_of_exponentials(scaled.data(), size) : 0.0;
  for (const int64_t width : kWidths)
    if (width < size)
      if (const int64_t token = draw_from_best(scaled, options, width, total); token >= 0) return token;
  return draw_from_best(scaled, options, size, total);  // the whole vocabulary settles every filter
}

void logprobs_of_row(const LogprobArgs& args, int64_t row) {
  const float* logits = args.logits + row * args.vocab_size;
  Memory& memory = memory_of_thread();
  double terms = 0.0;
  const float highest = cpu::kernels().log_sum_exp_parts(logits, args.vocab_size, &terms);
  const float log_terms = static_cast<float>(std::log(terms));
  args.logprobs[row] = logits[args.token_ids[row]] - highest - log_terms;
  if (args.num_top == 0) return;
  memory.scaled.resize(static_cast<size_t>(args.vocab_size));
  for (int64_t i = 0; i < args.vocab_size; ++i) memory.scaled[static_cast<size_t>(i)] = logits[i] - highest - log_terms;
  best_tokens(memory.scaled.data(), args.vocab_size, args.num_top, memory.ids);
  for (int64_t i = 0; i < args.num_top; ++i) {
    const int32_t id = memory.ids[static_cast<size_t>(i)];
    args.top_ids[row * args.num_top + i] = id;
    args.top_logprobs[row * args.num_top + i] = memory.scaled[static_cast<size_t>(id)];
  }
}

template <class Body>
void for_rows(int64_t num_rows, Body&& body) {
  cpu::parallel_for(
      num_rows, 1,
      [](void* context, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) (*static_cast<Body*>(context))(row);
      },
      &body);
}

}  // namespace

void draw(const DrawArgs& args) {
  for (int64_t i = 0; i < args.num_rows; ++i) {
    if (args.rows[i] < 0 || args.rows[i] >= args.num_logits) throw std::invalid_argument("rows must be in [0, the number of rows of logits)");
    if (args.top_k[i] < 1 || args.top_k[i] > args.vocab_size) throw std::invalid_argument("top_k must be in [1, vocab_size]");
  }
  for_rows(args.num_rows, [&](int64_t i) {
    const RowOptions options{args.vocab_size, args.top_k[i], args.top_p[i], args.min_p[i], args.uniform[i]};
    args.token_ids[i] = static_cast<int32_t>(
        draw_row(args.logits + args.rows[i] * args.vocab_size, args.best[i], args.temperature[i], options));
  });
}

void token_logprobs(const LogprobArgs& args) {
  if (args.num_top > args.vocab_size) throw std::invalid_argument("num_top must be at most vocab_size");
  for (int64_t row = 0; row < args.num_rows; ++row)
    if (args.token_ids[row] < 0 || args.token_ids[row] >= args.vocab_size)
      throw std::invalid_argument("token_ids must be in [0, vocab_size)");
  for_rows(args.num_rows, [&](int64_t row) { logprobs_of_row(args, row); });
}

}  // namespace xllm::kernels::native

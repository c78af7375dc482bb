// Chooses the best candidates without sorting the others: each row keeps as many as the request has beams, and of all
// rows' together a partial selection finds the best. Knows nothing of models.
#include "xllm/kernels/beam_select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernel_table.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {
namespace {

struct Candidate {
  float score;
  float logprob;
  int32_t row;
  int32_t entry;  // of the token list, or the token itself where every token may follow
};

// A total order: equal scores go by row, then by token (entries of a node ascend with their tokens).
bool is_better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  if (a.row != b.row) return a.row < b.row;
  return a.entry < b.entry;
}

void keep_best(std::vector<Candidate>& candidates, size_t count) {
  if (candidates.size() <= count) return;
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(candidates.begin(), end, candidates.end(), is_better);
  candidates.erase(end, candidates.end());
}

struct Call {
  const BeamSelectArgs& args;
  std::vector<int32_t> request_of;                 // by row
  std::vector<std::vector<Candidate>> candidates;  // by row
};

int64_t width_of(const BeamSelectArgs& args, int32_t request) {
  return args.out_start[request + 1] - args.out_start[request];
}

void collect_row(Call& call, int64_t row) {
  const BeamSelectArgs& args = call.args;
  std::vector<Candidate>& found = call.candidates[static_cast<size_t>(row)];
  const int32_t node = args.nodes == nullptr ? 0 : args.nodes[row];
  if (args.scores[row] == -std::numeric_limits<float>::infinity() || node < 0) return;
  const float* logits = args.logits + row * args.logits_stride;
  double terms = 0.0;
  const double highest = kernels().log_sum_exp_parts(logits, args.vocab_size, &terms);
  const double normaliser = highest + std::log(terms);
  const int32_t begin = args.nodes == nullptr ? 0 : args.starts[node];
  const int32_t end = args.nodes == nullptr ? static_cast<int32_t>(args.vocab_size) : args.starts[node + 1];
  const auto width = static_cast<size_t>(width_of(args, call.request_of[static_cast<size_t>(row)]));
  found.reserve(std::min(static_cast<size_t>(end - begin), 4 * width));
  for (int32_t entry = begin; entry < end; ++entry) {
    const int32_t token = args.nodes == nullptr ? entry : args.tokens[entry];
    const float logprob = static_cast<float>(logits[token] - normaliser);
    const float score = args.scores[row] + logprob;
    if (!(score > -std::numeric_limits<float>::infinity())) continue;  // a NaN is no candidate either
    found.push_back({score, logprob, static_cast<int32_t>(row), entry});
    if (found.size() >= 4 * width) keep_best(found, width);
  }
  keep_best(found, width);
}

void write_request(Call& call, int32_t request) {
  const BeamSelectArgs& args = call.args;
  std::vector<Candidate> all;
  for (int32_t row = args.row_start[request]; row < args.row_start[request + 1]; ++row) {
    const std::vector<Candidate>& found = call.candidates[static_cast<size_t>(row)];
    all.insert(all.end(), found.begin(), found.end());
  }
  keep_best(all, static_cast<size_t>(width_of(args, request)));
  std::sort(all.begin(), all.end(), is_better);
  for (int32_t out = args.out_start[request]; out < args.out_start[request + 1]; ++out) {
    const auto rank = static_cast<size_t>(out - args.out_start[request]);
    const bool is_alive = rank < all.size();
    const Candidate candidate = is_alive ? all[rank]
                                         : Candidate{-std::numeric_limits<float>::infinity(), 0.0f,
                                                     args.row_start[request], 0};
    args.parents[out] = candidate.row;
    args.chosen[out] = is_alive && args.nodes != nullptr ? args.tokens[candidate.entry] : candidate.entry;
    args.next_nodes[out] = is_alive && args.nodes != nullptr ? candidate.entry : -1;
    args.logprobs[out] = candidate.logprob;
    args.next_scores[out] = candidate.score;
  }
}

void run_rows(void* context, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) collect_row(*static_cast<Call*>(context), row);
}

void run_requests(void* context, int64_t begin, int64_t end) {
  for (int64_t s = begin; s < end; ++s) write_request(*static_cast<Call*>(context), static_cast<int32_t>(s));
}

}  // namespace

void beam_select(const BeamSelectArgs& args) {
  const int32_t num_rows = args.row_start[args.num_requests];
  Call call{args, std::vector<int32_t>(static_cast<size_t>(num_rows)),
            std::vector<std::vector<Candidate>>(static_cast<size_t>(num_rows))};
  for (int64_t s = 0; s < args.num_requests; ++s)
    for (int32_t row = args.row_start[s]; row < args.row_start[s + 1]; ++row)
      call.request_of[static_cast<size_t>(row)] = static_cast<int32_t>(s);
  parallel_for(num_rows, 1, run_rows, &call);
  parallel_for(args.num_requests, 1, run_requests, &call);
}

}  // namespace xllm::kernels::cpu

// Mixtures of experts: which experts a token goes to, their products for a few tokens each at memory speed, and the weighted sum.
// All bfloat16 where nothing else is said, accumulated in float32.
#pragma once

#include <stdint.h>

namespace xllm::kernels::cuda {

constexpr int kMaxExperts = 256;
constexpr int kMaxExpertsPerToken = 16;

// A "pair" is a token and one of its experts; "rows" are the pairs ordered by expert.
struct Routing {
  float* weights;         // [num_tokens, top_k]
  int32_t* experts;       // [num_tokens, top_k], the best first; equals by rising number
  int32_t* row_of_pair;   // [num_tokens * top_k]
  int32_t* token_of_row;  // [num_tokens * top_k]
  int32_t* starts;        // [num_experts + 1]: the rows of expert e begin at starts[e]
};

constexpr int kOrderBlocks = 64;  // most blocks that order pairs

// Softmax over all experts in float32, the top_k largest; renormalised to a sum of 1 if asked.
struct RouteArgs {
  const void* logits;     // [num_tokens, num_experts]
  Routing routing;
  int32_t* counts;        // scratch [kOrderBlocks, num_experts]
  int64_t num_tokens;
  int num_experts;        // a multiple of 32
  int top_k;
  bool renormalises;
};
void route(const RouteArgs& args, void* stream);

// The same for experts that somebody else chose: row_of_pair, token_of_row and starts from experts; weights are left alone.
struct OrderPairsArgs {
  Routing routing;
  int32_t* counts;        // scratch [kOrderBlocks, num_experts]
  int64_t num_tokens;
  int num_experts;        // a multiple of 32
  int top_k;
};
void order_pairs(const OrderPairsArgs& args, void* stream);

// The same for a few tokens in one kernel with what comes before: normed = rms_norm(x), logits = normed gate^T.
struct NormAndRouteArgs {
  const void* x;            // [num_tokens, size]
  const void* norm_weight;  // [size]
  const void* gate;         // [num_experts, size]
  void* normed;             // [num_tokens, size]
  Routing routing;
  float* workspace;         // num_tokens * num_experts floats; as for linear_stream
  int64_t workspace_size;
  int32_t* counters;        // num_tokens + 1; zero before and after
  int64_t num_counters;
  int num_tokens;           // at most kNormAndRouteMaxTokens
  int num_experts;
  int top_k;
  int size;                 // a multiple of 64
  bool renormalises;
  float eps;
};
constexpr int kNormAndRouteMaxTokens = 128;
void norm_and_route(const NormAndRouteArgs& args, void* stream);

// out[r] = down[e] (silu(gate[e] x[t]) * (up[e] x[t])) for every row r of expert e and token t. Every expert that has rows is read
// once for each 8 to 32 of them. Needs sm_90.
struct RunExpertsArgs {
  const void* x;               // [num_tokens, hidden]
  const void* gate_up;         // [num_experts, 2 inner, hidden], gate first
  const void* down;            // [num_experts, hidden, inner]
  const int32_t* token_of_row; // [num_rows]
  const int32_t* starts;       // [num_experts + 1]
  void* gated;                 // scratch [num_rows, inner]
  void* out;                   // [num_rows, hidden]
  uint32_t* barrier;           // where blocks meet: one counter, of one stream; zero before the first call
  int64_t num_rows;
  int num_tokens;
  int num_experts;
  int hidden;
  int inner;
  int columns;                 // rows of one expert that share a pass over its weights: 8, 16 or 32; 0 chooses
};
constexpr int kRunExpertsMaxRows = 4096;
// nullptr when these sizes are served, else what stands against it.
const char* why_no_run_experts(int64_t num_experts, int64_t hidden, int64_t inner);
void run_experts(const RunExpertsArgs& args, void* stream);

// x[t] += the mixture of experts of rms_norm(x[t]) for a few tokens, router and choice included. Every expert that is chosen is read once.
// Needs sm_90.
struct MixExpertsArgs {
  void* x;                  // [num_tokens, hidden]
  const void* norm_weight;  // [hidden]
  const void* gate;         // [num_experts, hidden], the router
  const void* gate_up;      // [num_experts, 2 inner, hidden], gate first
  const void* down;         // [num_experts, hidden, inner]
  float* logits;            // scratch: num_tokens * (num_experts + 1)
  void* gated;              // scratch [num_tokens * top_k, inner]
  uint32_t* barrier;        // where blocks meet: one counter, of one stream; zero before the first call
  int num_tokens;           // at most kMixTokens
  int num_experts;          // a multiple of 32
  int top_k;
  int hidden;
  int inner;
  bool renormalises;
  float eps;
};
constexpr int kMixTokens = 8;
// nullptr when these sizes are served, else what stands against it.
const char* why_no_mix_experts(int num_tokens, int num_experts, int top_k, int hidden, int inner);
void mix_experts(const MixExpertsArgs& args, void* stream);

// The same as run_experts for so many rows an expert that arithmetic takes longer than reading the weights. Needs sm_90a.
struct ExpertTilesArgs {
  const void* x;               // [num_tokens, hidden]
  const void* gate_up;         // [num_experts, 2 inner, hidden], gate first
  const void* down;            // [num_experts, hidden, inner]
  const int32_t* row_of_pair;  // [num_tokens * top_k]
  const int32_t* starts;       // [num_experts + 1]
  void* rows;                  // scratch [num_tokens * top_k, hidden]
  void* gated;                 // scratch [num_tokens * top_k, inner]
  void* out;                   // [num_tokens * top_k, hidden]; may be `rows`
  int64_t num_tokens;
  int top_k;
  int num_experts;
  int hidden;
  int inner;
};
// nullptr when these sizes are served, else what stands against it.
const char* why_no_expert_tiles(int64_t num_experts, int64_t hidden, int64_t inner);
void expert_tiles(const ExpertTilesArgs& args, void* stream);

// residual[t] += sum over j of weights[t, j] * y[row_of_pair[t, j]]; then, with a norm, out[t] = rms_norm(residual[t]).
struct CombineExpertsArgs {
  const void* y;              // [num_tokens * top_k, size]
  const float* weights;       // [num_tokens, top_k]
  const int32_t* row_of_pair; // [num_tokens * top_k]
  void* residual;             // [num_tokens, size], or null without a norm: out is the sum alone
  const void* norm_weight;    // [size] or null
  void* out;                  // [num_tokens, size] with a norm or without a residual
  int64_t num_tokens;
  int64_t size;               // a multiple of 8
  int top_k;
  float eps;
};
void combine_experts(const CombineExpertsArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

#include <algorithm>

#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/experts.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

namespace {

int32_t* integers(Handle object, const char* name, int64_t size) {
  const DeviceTensor tensor(object, name);
  tensor.expect_scalar(Scalar::int32);
  tensor.expect_dims(1);
  tensor.expect_size(0, size, "the number of pairs or experts");
  tensor.expect_dense_from(0);
  return static_cast<int32_t*>(tensor.memory());
}

// weights [num_tokens, top_k] tells the sizes.
device::Routing routing_of(const DeviceTensor& weights, Handle experts_object, Handle row_of_pair, Handle token_of_row, Handle starts,
                           int64_t num_experts) {
  weights.expect_scalar(Scalar::float32);
  weights.expect_dims(2);
  weights.expect_dense_from(0);
  const DeviceTensor experts(experts_object, "experts");
  experts.expect_scalar(Scalar::int32);
  experts.expect_dims(2);
  experts.expect_size(0, weights.size(0), "the rows of weights");
  experts.expect_size(1, weights.size(1), "the columns of weights");
  experts.expect_dense_from(0);
  const int64_t pairs = weights.size(0) * weights.size(1);
  return {.weights = static_cast<float*>(weights.memory()),
          .experts = static_cast<int32_t*>(experts.memory()),
          .row_of_pair = integers(row_of_pair, "row_of_pair", pairs),
          .token_of_row = integers(token_of_row, "token_of_row", pairs),
          .starts = integers(starts, "starts", num_experts + 1)};
}

}  // namespace

void route(Handle logits_object, bool renormalises, Handle weights_object, Handle experts, Handle row_of_pair, Handle token_of_row,
           Handle starts, Handle counts, uintptr_t stream) {
  const DeviceTensor logits(logits_object, "logits"), weights(weights_object, "weights");
  expect_matrix(logits);
  weights.expect_size(0, logits.size(0), "the rows of logits");
  device::route({.logits = logits.memory(),
                 .routing = routing_of(weights, experts, row_of_pair, token_of_row, starts, logits.size(1)),
                 .counts = integers(counts, "counts", device::kOrderBlocks * logits.size(1)),
                 .num_tokens = logits.size(0),
                 .num_experts = static_cast<int>(logits.size(1)),
                 .top_k = static_cast<int>(weights.size(1)),
                 .renormalises = renormalises},
                as_stream(stream));
}

void order_pairs(Handle weights_object, Handle experts, Handle row_of_pair, Handle token_of_row, Handle starts_object, Handle counts,
                 uintptr_t stream) {
  const DeviceTensor weights(weights_object, "weights"), starts(starts_object, "starts");
  const int64_t num_experts = starts.size(0) - 1;
  device::order_pairs({.routing = routing_of(weights, experts, row_of_pair, token_of_row, starts_object, num_experts),
                       .counts = integers(counts, "counts", device::kOrderBlocks * num_experts),
                       .num_tokens = weights.size(0),
                       .num_experts = static_cast<int>(num_experts),
                       .top_k = static_cast<int>(weights.size(1))},
                      as_stream(stream));
}

void norm_and_route(Handle x_object, Handle norm_weight, double eps, Handle gate_object, bool renormalises, Handle normed_object,
                    Handle weights_object, Handle experts, Handle row_of_pair, Handle token_of_row, Handle starts,
                    Handle workspace_object, Handle counters_object, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), gate(gate_object, "gate"), normed(normed_object, "normed"), weights(weights_object, "weights");
  expect_matrix(x);
  expect_matrix(gate);
  expect_matrix(normed);
  gate.expect_size(1, x.size(1), "the row size of x");
  normed.expect_size(0, x.size(0), "the rows of x");
  normed.expect_size(1, x.size(1), "the row size of x");
  weights.expect_size(0, x.size(0), "the rows of x");
  const Workspace workspace = workspace_of(workspace_object, counters_object);
  device::norm_and_route({.x = x.memory(),
                          .norm_weight = optional_vector(norm_weight, "norm_weight", x.size(1)),
                          .gate = gate.memory(),
                          .normed = normed.memory(),
                          .routing = routing_of(weights, experts, row_of_pair, token_of_row, starts, gate.size(0)),
                          .workspace = workspace.memory,
                          .workspace_size = workspace.size,
                          .counters = workspace.counters,
                          .num_counters = workspace.num_counters,
                          .num_tokens = static_cast<int>(x.size(0)),
                          .num_experts = static_cast<int>(gate.size(0)),
                          .top_k = static_cast<int>(weights.size(1)),
                          .size = static_cast<int>(x.size(1)),
                          .renormalises = renormalises,
                          .eps = static_cast<float>(eps)},
                         as_stream(stream));
}

namespace {

// gate_up [experts, 2 inner, hidden] and down [experts, hidden, inner].
struct Stacks {
  DeviceTensor gate_up, down;
  Stacks(Handle gate_up_object, Handle down_object, int64_t hidden) : gate_up(gate_up_object, "gate_up"), down(down_object, "down") {
    for (const DeviceTensor* stack : {&gate_up, &down}) {
      stack->expect_scalar(Scalar::bfloat16);
      stack->expect_dims(3);
      stack->expect_dense_from(0);
    }
    gate_up.expect_size(1, 2 * inner(), "twice the inner size of down");
    gate_up.expect_size(2, hidden, "the row size of x");
    down.expect_size(0, num_experts(), "the experts of gate_up");
    down.expect_size(1, hidden, "the row size of x");
  }
  int64_t num_experts() const { return gate_up.size(0); }
  int64_t inner() const { return down.size(2); }
};

}  // namespace

void mix_experts(Handle x_object, Handle norm_weight, double eps, Handle gate_object, Handle gate_up, Handle down, int top_k,
                 bool renormalises, Handle logits_object, Handle gated_object, Handle barrier, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), gate(gate_object, "gate"), logits(logits_object, "logits"), gated(gated_object, "gated");
  for (const DeviceTensor* matrix : {&x, &gate, &gated}) expect_matrix(*matrix);
  const int64_t tokens = x.size(0), hidden = x.size(1);
  const Stacks stacks(gate_up, down, hidden);
  const int64_t num_experts = stacks.num_experts();
  gate.expect_size(0, num_experts, "the experts of gate_up");
  gate.expect_size(1, hidden, "the row size of x");
  logits.expect_scalar(Scalar::float32);
  logits.expect_dims(1);
  logits.expect_dense_from(0);
  logits.expect_size(0, tokens * (num_experts + 1), "a number for every token and expert, and one more a token");
  gated.expect_size(0, tokens * top_k, "a row for every expert of every token");
  gated.expect_size(1, stacks.inner(), "the inner size of down");
  device::mix_experts({.x = x.memory(),
                       .norm_weight = optional_vector(norm_weight, "norm_weight", hidden),
                       .gate = gate.memory(),
                       .gate_up = stacks.gate_up.memory(),
                       .down = stacks.down.memory(),
                       .logits = static_cast<float*>(logits.memory()),
                       .gated = gated.memory(),
                       .barrier = reinterpret_cast<uint32_t*>(integers(barrier, "barrier", 1)),
                       .num_tokens = static_cast<int>(tokens),
                       .num_experts = static_cast<int>(num_experts),
                       .top_k = top_k,
                       .hidden = static_cast<int>(hidden),
                       .inner = static_cast<int>(stacks.inner()),
                       .renormalises = renormalises,
                       .eps = static_cast<float>(eps)},
                      as_stream(stream));
}

void run_experts(Handle x_object, Handle gate_up_object, Handle down_object, Handle token_of_row, Handle starts, int columns,
                 Handle gated_object, Handle out_object, Handle barrier, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), gated(gated_object, "gated"), out(out_object, "out");
  for (const DeviceTensor* matrix : {&x, &gated, &out}) expect_matrix(*matrix);
  const int64_t hidden = x.size(1), rows = out.size(0);
  const Stacks stacks(gate_up_object, down_object, hidden);
  const int64_t inner = stacks.inner(), num_experts = stacks.num_experts();
  gated.expect_size(0, rows, "the rows of out");
  gated.expect_size(1, inner, "the inner size of down");
  out.expect_size(1, hidden, "the row size of x");
  device::run_experts({.x = x.memory(),
                       .gate_up = stacks.gate_up.memory(),
                       .down = stacks.down.memory(),
                       .token_of_row = integers(token_of_row, "token_of_row", rows),
                       .starts = integers(starts, "starts", num_experts + 1),
                       .gated = gated.memory(),
                       .out = out.memory(),
                       .barrier = reinterpret_cast<uint32_t*>(integers(barrier, "barrier", 1)),
                       .num_rows = rows,
                       .num_tokens = static_cast<int>(x.size(0)),
                       .num_experts = static_cast<int>(num_experts),
                       .hidden = static_cast<int>(hidden),
                       .inner = static_cast<int>(inner),
                       .columns = columns},
                      as_stream(stream));
}

void expert_tiles(Handle x_object, Handle gate_up, Handle down, Handle row_of_pair_object, Handle starts, Handle rows_object,
                  Handle gated_object, Handle out_object, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), rows(rows_object, "rows"), gated(gated_object, "gated"), out(out_object, "out");
  for (const DeviceTensor* matrix : {&x, &rows, &gated, &out}) expect_matrix(*matrix);
  const int64_t tokens = x.size(0), hidden = x.size(1), num_rows = out.size(0);
  const Stacks stacks(gate_up, down, hidden);
  if (tokens < 1 || num_rows < 1 || num_rows % tokens != 0) fail("out must have as many rows for every row of x");
  rows.expect_size(0, num_rows, "the rows of out");
  rows.expect_size(1, hidden, "the row size of x");
  gated.expect_size(0, num_rows, "the rows of out");
  gated.expect_size(1, stacks.inner(), "the inner size of down");
  out.expect_size(1, hidden, "the row size of x");
  device::expert_tiles({.x = x.memory(),
                        .gate_up = stacks.gate_up.memory(),
                        .down = stacks.down.memory(),
                        .row_of_pair = integers(row_of_pair_object, "row_of_pair", num_rows),
                        .starts = integers(starts, "starts", stacks.num_experts() + 1),
                        .rows = rows.memory(),
                        .gated = gated.memory(),
                        .out = out.memory(),
                        .num_tokens = tokens,
                        .top_k = static_cast<int>(num_rows / tokens),
                        .num_experts = static_cast<int>(stacks.num_experts()),
                        .hidden = static_cast<int>(hidden),
                        .inner = static_cast<int>(stacks.inner())},
                       as_stream(stream));
}

void combine_experts(Handle y_object, Handle weights_object, Handle row_of_pair, Handle residual_object, Handle norm_weight, double eps,
                     Handle out_object, uintptr_t stream) {
  const DeviceTensor y(y_object, "y"), weights(weights_object, "weights"), out(out_object, "out");
  for (const DeviceTensor* matrix : {&y, &out}) expect_matrix(*matrix);
  weights.expect_scalar(Scalar::float32);
  weights.expect_dims(2);
  weights.expect_dense_from(0);
  const int64_t tokens = out.size(0), size = out.size(1), pairs = tokens * weights.size(1);
  weights.expect_size(0, tokens, "the rows of out");
  y.expect_size(0, pairs, "the number of pairs");
  y.expect_size(1, size, "the row size of out");
  device::combine_experts({.y = y.memory(),
                           .weights = weights.as<float>(),
                           .row_of_pair = integers(row_of_pair, "row_of_pair", pairs),
                           .residual = optional_matrix(residual_object, "residual", tokens, size),
                           .norm_weight = optional_vector(norm_weight, "norm_weight", size),
                           .out = out.memory(),
                           .num_tokens = tokens,
                           .size = size,
                           .top_k = static_cast<int>(weights.size(1)),
                           .eps = static_cast<float>(eps)},
                          as_stream(stream));
}

}  // namespace xllm::bindings::cuda

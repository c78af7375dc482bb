#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/beam_join.h"
#include "xllm/kernels/cuda/beam_select.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

namespace {

// The last dimensions of `tensor` are those of `like`.
void expect_like(const DeviceTensor& tensor, const DeviceTensor& like, int num_dims) {
  tensor.expect_scalar(Scalar::bfloat16);
  tensor.expect_dims(num_dims);
  for (int dim = 0; dim < 3; ++dim) tensor.expect_size(num_dims - 3 + dim, like.size(dim), "as query has");
  tensor.expect_dense_from(0);
}

void expect_beam_cache(const DeviceTensor& cache, const DeviceTensor& key) {
  cache.expect_scalar(Scalar::bfloat16);
  cache.expect_dims(4);
  cache.expect_size(2, key.size(1), "the heads of key");
  cache.expect_size(3, key.size(2), "the head size of key");
  cache.expect_dense_from(1);
  if (cache.size(1) < key.size(0)) fail("beam_key and beam_value have fewer rows than key");
}

// A dense [rows, size] of bfloat16 or float32.
void expect_rows(const DeviceTensor& tensor) {
  if (tensor.scalar() != Scalar::float32) tensor.expect_scalar(Scalar::bfloat16);
  tensor.expect_dims(2);
  tensor.expect_dense_from(0);
}

// A dense vector; `size` below 0 allows any.
void expect_vector(const DeviceTensor& tensor, Scalar scalar, int64_t size) {
  tensor.expect_scalar(scalar);
  tensor.expect_dims(1);
  if (size >= 0) tensor.expect_size(0, size, "the rows of logits");
  tensor.expect_dense_from(0);
}

}  // namespace

void beam_join(Handle query_object, Handle key_object, Handle value_object, Handle attended_object, Handle lse_object,
               Handle beam_key_object, Handle beam_value_object, Handle ancestors_object, double scale, Handle out_object, uintptr_t stream) {
  const DeviceTensor query(query_object, "query"), key(key_object, "key"), value(value_object, "value"),
      attended(attended_object, "attended"), lse(lse_object, "lse"), beam_key(beam_key_object, "beam_key"),
      beam_value(beam_value_object, "beam_value"), ancestors(ancestors_object, "ancestors"), out(out_object, "out");
  expect_heads(query);
  expect_heads(key);
  expect_heads(value);
  key.expect_size(0, query.size(0), "the rows of query");
  key.expect_size(2, query.size(2), "the head size of query");
  for (int dim = 0; dim < 3; ++dim) value.expect_size(dim, key.size(dim), "as key has");
  expect_like(attended, query, 4);
  expect_like(out, query, 3);
  lse.expect_scalar(Scalar::float32);
  lse.expect_dims(3);
  lse.expect_size(0, attended.size(0), "the parts of attended");
  lse.expect_size(1, query.size(1), "the heads of query");
  lse.expect_size(2, query.size(0), "the rows of query");
  lse.expect_dense_from(0);
  expect_beam_cache(beam_key, key);
  expect_beam_cache(beam_value, key);
  ancestors.expect_scalar(Scalar::int32);
  ancestors.expect_dims(2);
  ancestors.expect_dense_from(1);
  ancestors.expect_size(0, query.size(0), "the rows of query");
  if (ancestors.size(1) < 1 || ancestors.size(1) > beam_key.size(0)) fail("ancestors has more rounds than beam_key");
  const int64_t row_size = query.size(1) * query.size(2), key_size = key.size(1) * key.size(2);
  if (beam_value.row_stride(0) != beam_key.row_stride(0)) fail("beam_value must lie in memory as beam_key does");
  device::beam_join({.query = query.memory(),
                     .key = key.memory(),
                     .value = value.memory(),
                     .attended = attended.memory(),
                     .lse = lse.as<float>(),
                     .beam_key = beam_key.memory(),
                     .beam_value = beam_value.memory(),
                     .ancestors = ancestors.as<int32_t>(),
                     .out = out.memory(),
                     .num_rows = query.size(0),
                     .num_heads = query.size(1),
                     .num_kv_heads = key.size(1),
                     .head_dim = query.size(2),
                     .num_rounds = ancestors.size(1),
                     .num_splits = attended.size(0),
                     .query_row_stride = query.row_stride(row_size),
                     .key_row_stride = key.row_stride(key_size),
                     .value_row_stride = value.row_stride(key_size),
                     .round_stride = beam_key.row_stride(beam_key.size(1) * key_size),
                     .ancestors_stride = ancestors.row_stride(ancestors.size(1)),
                     .scale = static_cast<float>(scale)},
                    as_stream(stream));
}

void log_normaliser(Handle logits_object, Handle normaliser_object, uintptr_t stream) {
  const DeviceTensor logits(logits_object, "logits"), normaliser(normaliser_object, "normaliser");
  expect_rows(logits);
  expect_vector(normaliser, Scalar::float32, logits.size(0));
  device::beam_scores({.logits = logits.memory(),
                       .normaliser = static_cast<float*>(normaliser.memory()),
                       .num_rows = logits.size(0),
                       .vocab_size = logits.size(1),
                       .is_float = logits.scalar() == Scalar::float32},
                      as_stream(stream));
}

void beam_scores(Handle logits_object, Handle scores_object, Handle nodes_object, Handle starts_object, Handle tokens_object,
                 Handle normaliser_object, Handle totals_object, uintptr_t stream) {
  const DeviceTensor logits(logits_object, "logits"), scores(scores_object, "scores"), nodes(nodes_object, "nodes"),
      starts(starts_object, "starts"), tokens(tokens_object, "tokens"), normaliser(normaliser_object, "normaliser"),
      totals(totals_object, "totals");
  expect_rows(logits);
  const int64_t num_rows = logits.size(0);
  expect_vector(scores, Scalar::float32, num_rows);
  expect_vector(nodes, Scalar::int64, num_rows);
  expect_vector(starts, Scalar::int64, -1);
  expect_vector(tokens, Scalar::int64, -1);
  expect_vector(normaliser, Scalar::float32, num_rows);
  totals.expect_scalar(Scalar::float32);
  expect_rows(totals);
  totals.expect_size(0, num_rows, "the rows of logits");
  device::beam_scores({.logits = logits.memory(),
                       .scores = scores.as<float>(),
                       .nodes = nodes.as<int64_t>(),
                       .starts = starts.as<int64_t>(),
                       .tokens = tokens.as<int64_t>(),
                       .normaliser = static_cast<float*>(normaliser.memory()),
                       .totals = static_cast<float*>(totals.memory()),
                       .num_rows = num_rows,
                       .vocab_size = logits.size(1),
                       .max_children = totals.size(1),
                       .is_float = logits.scalar() == Scalar::float32},
                      as_stream(stream));
}

void top_k(Handle values_object, Handle places_object, Handle best_object, uintptr_t stream) {
  const DeviceTensor values(values_object, "values"), places(places_object, "places"), best(best_object, "best");
  expect_rows(values);
  places.expect_scalar(Scalar::int64);
  best.expect_scalar(Scalar::float32);
  for (const DeviceTensor* tensor : {&places, &best}) {
    tensor->expect_dims(2);
    tensor->expect_size(0, values.size(0), "the rows of values");
    tensor->expect_size(1, places.size(1), "the columns of places");
    tensor->expect_dense_from(0);
  }
  device::top_k({.values = values.memory(),
                 .places = static_cast<int64_t*>(places.memory()),
                 .best = static_cast<float*>(best.memory()),
                 .num_rows = values.size(0),
                 .size = values.size(1),
                 .k = static_cast<int>(places.size(1)),
                 .is_float = values.scalar() == Scalar::float32},
                as_stream(stream));
}

}  // namespace xllm::bindings::cuda

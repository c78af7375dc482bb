#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/beam_join.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

namespace {

void expect_like(const DeviceTensor& tensor, const DeviceTensor& like, int64_t num_rows) {
  tensor.expect_scalar(Scalar::bfloat16);
  tensor.expect_dims(3);
  tensor.expect_size(0, num_rows, "the rows of query, times num_splits");
  for (int dim = 1; dim < 3; ++dim) tensor.expect_size(dim, like.size(dim), "as query has");
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

}  // namespace

void beam_join(Handle query_object, Handle key_object, Handle value_object, Handle attended_object, Handle lse_object,
               Handle beam_key_object, Handle beam_value_object, Handle ancestors_object, double scale, int64_t num_splits,
               int64_t rows_per_search, Handle out_object, uintptr_t stream) {
  const DeviceTensor query(query_object, "query"), key(key_object, "key"), value(value_object, "value"),
      attended(attended_object, "attended"), lse(lse_object, "lse"), beam_key(beam_key_object, "beam_key"),
      beam_value(beam_value_object, "beam_value"), ancestors(ancestors_object, "ancestors"), out(out_object, "out");
  expect_heads(query);
  expect_heads(key);
  expect_heads(value);
  key.expect_size(0, query.size(0), "the rows of query");
  key.expect_size(2, query.size(2), "the head size of query");
  for (int dim = 0; dim < 3; ++dim) value.expect_size(dim, key.size(dim), "as key has");
  if (num_splits < 1 || rows_per_search < 1 || (num_splits > 1 && query.size(0) % rows_per_search != 0))
    fail("query must have rows_per_search rows for each search");
  expect_like(attended, query, query.size(0) * num_splits);
  expect_like(out, query, query.size(0));
  lse.expect_scalar(Scalar::float32);
  lse.expect_dims(2);
  lse.expect_size(0, query.size(1), "the heads of query");
  lse.expect_size(1, query.size(0) * num_splits, "the rows of attended");
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
                     .num_splits = num_splits,
                     .rows_per_search = rows_per_search,
                     .query_row_stride = query.row_stride(row_size),
                     .key_row_stride = key.row_stride(key_size),
                     .value_row_stride = value.row_stride(key_size),
                     .round_stride = beam_key.row_stride(beam_key.size(1) * key_size),
                     .ancestors_stride = ancestors.row_stride(ancestors.size(1)),
                     .scale = static_cast<float>(scale)},
                    as_stream(stream));
}

}  // namespace xllm::bindings::cuda

#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/decode_attention.h"
#include "xllm/kernels/cuda/linear_batch.h"
#include "xllm/kernels/cuda/linear_stream.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

void linear_stream(Handle x_object, Handle weight_object, Handle norm_weight_object, Handle bias_object, double eps,
                   int epilogue, Handle out_object, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), weight(weight_object, "weight"), out(out_object, "out");
  const device::HalfType type = half_type_of(x);
  const Scalar scalar = x.scalar();
  for (const DeviceTensor* matrix : {&x, &weight, &out}) expect_matrix(*matrix, scalar);
  if (epilogue < 0 || epilogue > 2) fail("epilogue must be 0, 1 or 2");
  const int64_t n = weight.size(0), k = weight.size(1);
  const bool gated = epilogue == static_cast<int>(device::Epilogue::silu_and_mul);
  if (gated && !bias_object.is_none()) fail("bias must be None with the epilogue silu_and_mul");
  x.expect_size(1, k, "the columns of weight");
  out.expect_size(0, x.size(0), "the rows of x");
  out.expect_size(1, gated ? n / 2 : n, "the outputs of weight");
  device::linear_stream({.x = x.memory(),
                         .weight = weight.memory(),
                         .norm_weight = optional_vector(norm_weight_object, "norm_weight", k, scalar),
                         .bias = optional_vector(bias_object, "bias", n, scalar),
                         .out = out.memory(),
                         .batch = static_cast<int>(x.size(0)),
                         .n = static_cast<int>(n),
                         .k = static_cast<int>(k),
                         .eps = static_cast<float>(eps),
                         .epilogue = static_cast<device::Epilogue>(epilogue),
                         .type = type},
                        as_stream(stream));
}

void linear_batch(Handle x_object, Handle weight_object, Handle bias_object, int epilogue, Handle squares_object, double eps,
                  Handle next_norm_object, Handle next_x_object, Handle next_squares_object, Handle out_object, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), weight(weight_object, "weight"), out(out_object, "out");
  const device::HalfType type = half_type_of(x);
  const Scalar scalar = x.scalar();
  for (const DeviceTensor* matrix : {&x, &weight, &out}) expect_matrix(*matrix, scalar);
  if (epilogue < 0 || epilogue > 2) fail("epilogue must be 0, 1 or 2");
  const int64_t n = weight.size(0), k = weight.size(1);
  const bool gated = epilogue == static_cast<int>(device::Epilogue::silu_and_mul);
  if (gated && !bias_object.is_none()) fail("bias must be None with the epilogue silu_and_mul");
  x.expect_size(1, k, "the columns of weight");
  out.expect_size(0, x.size(0), "the rows of x");
  out.expect_size(1, gated ? n / 2 : n, "the outputs of weight");
  if (next_norm_object.is_none() != next_x_object.is_none() || next_norm_object.is_none() != next_squares_object.is_none())
    fail("next_norm, next_x and next_squares go together");
  device::linear_batch({.x = x.memory(),
                        .weight = weight.memory(),
                        .bias = optional_vector(bias_object, "bias", n, scalar),
                        .out = out.memory(),
                        .batch = static_cast<int>(x.size(0)),
                        .n = static_cast<int>(n),
                        .k = static_cast<int>(k),
                        .epilogue = static_cast<device::Epilogue>(epilogue),
                        .type = type,
                        .squares = squares_of(squares_object, "squares", k),
                        .eps = static_cast<float>(eps),
                        .next_norm = optional_vector(next_norm_object, "next_norm", n, scalar),
                        .next_x = optional_matrix(next_x_object, "next_x", x.size(0), n, scalar),
                        .next_squares = squares_of(next_squares_object, "next_squares", n)},
                       as_stream(stream));
}

namespace {

void expect_cache(const DeviceTensor& cache, const DeviceTensor& key) {
  cache.expect_scalar(key.scalar());
  cache.expect_dims(4);
  cache.expect_dense_from(0);
  cache.expect_size(2, key.size(1), "the kv heads of key");
  cache.expect_size(3, key.size(2), "the head size of key");
}

}  // namespace

void decode_attention(Handle query_object, Handle key_object, Handle value_object, Handle q_norm_object,
                      Handle k_norm_object, Handle cos_sin_object, Handle key_cache_object, Handle value_cache_object,
                      Handle block_tables_object, Handle seq_lens_object, Handle positions_object, double scale, double eps, int max_seq_len,
                      int splits, int configuration, Handle out_object, Handle workspace_object, Handle counters_object,
                      uintptr_t stream) {
  const DeviceTensor query(query_object, "query"), key(key_object, "key"), value(value_object, "value");
  const DeviceTensor key_cache(key_cache_object, "key_cache"), value_cache(value_cache_object, "value_cache");
  const DeviceTensor tables(block_tables_object, "block_tables"), lengths(seq_lens_object, "seq_lens");
  const DeviceTensor out(out_object, "out");
  const device::HalfType type = half_type_of(query);
  for (const DeviceTensor* tensor : {&query, &key, &value, &out}) {
    expect_heads(*tensor, query.scalar());
    tensor->expect_size(0, query.size(0), "the rows of query");
    tensor->expect_size(2, query.size(2), "the head size of query");
  }
  const int64_t batch = query.size(0), head_dim = query.size(2);
  value.expect_size(1, key.size(1), "the kv heads of key");
  out.expect_size(1, query.size(1), "the heads of query");
  out.expect_dense_from(0);
  expect_cache(key_cache, key);
  expect_cache(value_cache, key);
  value_cache.expect_size(0, key_cache.size(0), "the blocks of key_cache");
  value_cache.expect_size(1, key_cache.size(1), "the block size of key_cache");
  tables.expect_scalar(Scalar::int32);
  tables.expect_dims(2);
  tables.expect_size(0, batch, "the rows of query");
  tables.expect_dense_from(0);
  lengths.expect_scalar(Scalar::int32);
  lengths.expect_dims(1);
  lengths.expect_size(0, batch, "the rows of query");
  const int64_t key_stride = key.row_stride(key.size(1) * head_dim);
  if (value.row_stride(value.size(1) * head_dim) != key_stride) fail("key and value must have one row stride");
  const Workspace workspace = workspace_of(workspace_object, counters_object);
  device::decode_attention({.q = query.memory(),
                            .k = key.memory(),
                            .v = value.memory(),
                            .q_row_stride = query.row_stride(query.size(1) * head_dim),
                            .kv_row_stride = key_stride,
                            .q_norm = optional_vector(q_norm_object, "q_norm", head_dim, query.scalar()),
                            .k_norm = optional_vector(k_norm_object, "k_norm", head_dim, query.scalar()),
                            .cos_sin = angles_of(cos_sin_object, head_dim),
                            .key_cache = key_cache.memory(),
                            .value_cache = value_cache.memory(),
                            .block_tables = tables.as<int32_t>(),
                            .seq_lens = lengths.as<int32_t>(),
                            .positions = positions_of(positions_object, batch),
                            .out = out.memory(),
                            .workspace = workspace.memory,
                            .workspace_size = workspace.size,
                            .counters = workspace.counters,
                            .num_counters = workspace.num_counters,
                            .num_blocks = key_cache.size(0),
                            .batch = static_cast<int>(batch),
                            .num_heads = static_cast<int>(query.size(1)),
                            .num_kv_heads = static_cast<int>(key.size(1)),
                            .head_dim = static_cast<int>(head_dim),
                            .block_size = static_cast<int>(key_cache.size(1)),
                            .table_width = static_cast<int>(tables.size(1)),
                            .max_seq_len = max_seq_len,
                            .splits = splits,
                            .configuration = configuration,
                            .scale = static_cast<float>(scale),
                            .eps = static_cast<float>(eps),
                            .type = type},
                           as_stream(stream));
}

}  // namespace xllm::bindings::cuda

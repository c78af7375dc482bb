#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/row_kernels.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

void rms_norm(Handle x_object, Handle weight_object, double eps, Handle out_object, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), out(out_object, "out");
  const device::HalfType type = half_type_of(x);
  x.expect_dims(2);
  x.expect_dense_from(1);
  out.expect_same_dtype(x);
  out.expect_dims(2);
  out.expect_size(0, x.size(0), "the rows of x");
  out.expect_size(1, x.size(1), "the row size of x");
  out.expect_dense_from(1);
  const int64_t size = x.size(1);
  device::rms_norm({.x = x.memory(),
                    .weight = optional_vector(weight_object, "weight", size, x.scalar()),
                    .out = out.memory(),
                    .num_rows = x.size(0),
                    .size = size,
                    .x_row_stride = x.row_stride(size),
                    .out_row_stride = out.row_stride(size),
                    .eps = static_cast<float>(eps),
                    .type = type},
                   as_stream(stream));
}

void add_rms_norm(Handle x_object, Handle residual_object, Handle weight_object, double eps, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), residual(residual_object, "residual");
  const device::HalfType type = half_type_of(x);
  expect_matrix(x, x.scalar());
  expect_matrix(residual, x.scalar());
  residual.expect_size(0, x.size(0), "the rows of x");
  residual.expect_size(1, x.size(1), "the row size of x");
  device::add_rms_norm({.x = x.memory(),
                        .residual = residual.memory(),
                        .weight = optional_vector(weight_object, "weight", x.size(1), x.scalar()),
                        .num_rows = x.size(0),
                        .size = x.size(1),
                        .eps = static_cast<float>(eps),
                        .type = type},
                       as_stream(stream));
}

namespace {

// Checked arguments of a rotation; the tensors must outlive their use.
device::RotaryEmbeddingArgs rotation_of(const DeviceTensor& positions, const DeviceTensor& query, const DeviceTensor& key,
                                        const DeviceTensor& table) {
  positions.expect_scalar(Scalar::int64);
  positions.expect_dims(1);
  positions.expect_dense_from(0);
  const device::HalfType type = half_type_of(query);
  expect_heads(query, query.scalar());
  expect_heads(key, query.scalar());
  query.expect_size(0, positions.size(0), "the number of positions");
  key.expect_size(0, positions.size(0), "the number of positions");
  key.expect_size(2, query.size(2), "the head size of query");
  table.expect_scalar(Scalar::float32);
  table.expect_dims(2);
  table.expect_dense_from(0);
  return {.positions = positions.as<int64_t>(),
          .query = query.memory(),
          .key = key.memory(),
          .cos_sin = table.as<float>(),
          .num_tokens = positions.size(0),
          .num_heads = query.size(1),
          .num_kv_heads = key.size(1),
          .head_dim = query.size(2),
          .rotary_dim = table.size(1),
          .query_row_stride = query.row_stride(query.size(1) * query.size(2)),
          .key_row_stride = key.row_stride(key.size(1) * key.size(2)),
          .type = type};
}

}  // namespace

void rotary_embedding(Handle positions_object, Handle query_object, Handle key_object, Handle table_object,
                      uintptr_t stream) {
  const DeviceTensor positions(positions_object, "positions"), query(query_object, "query"), key(key_object, "key");
  const DeviceTensor table(table_object, "cos_sin_cache");
  device::rotary_embedding(rotation_of(positions, query, key, table), as_stream(stream));
}

void norm_and_rotate(Handle positions_object, Handle query_object, Handle key_object, Handle q_norm_object,
                     Handle k_norm_object, double eps, Handle table_object, uintptr_t stream) {
  const DeviceTensor positions(positions_object, "positions"), query(query_object, "query"), key(key_object, "key");
  const DeviceTensor table(table_object, "cos_sin_cache");
  const device::RotaryEmbeddingArgs heads = rotation_of(positions, query, key, table);
  device::norm_and_rotate({.heads = heads,
                           .q_norm = optional_vector(q_norm_object, "q_norm", heads.head_dim, query.scalar()),
                           .k_norm = optional_vector(k_norm_object, "k_norm", heads.head_dim, query.scalar()),
                           .eps = static_cast<float>(eps)},
                          as_stream(stream));
}

void write_kv(Handle key_object, Handle value_object, Handle key_cache_object, Handle value_cache_object,
              Handle slot_mapping_object, uintptr_t stream) {
  const DeviceTensor key(key_object, "key"), value(value_object, "value");
  const DeviceTensor key_cache(key_cache_object, "key_cache"), value_cache(value_cache_object, "value_cache");
  const DeviceTensor slots(slot_mapping_object, "slot_mapping");
  expect_half(key);
  expect_heads(key, key.scalar());
  expect_heads(value, key.scalar());
  slots.expect_scalar(Scalar::int64);
  slots.expect_dims(1);
  slots.expect_dense_from(0);
  for (const DeviceTensor* tensor : {&key, &value}) {
    tensor->expect_size(0, slots.size(0), "the number of slots");
    tensor->expect_size(1, key.size(1), "the kv heads of key");
    tensor->expect_size(2, key.size(2), "the head size of key");
  }
  for (const DeviceTensor* cache : {&key_cache, &value_cache}) {
    cache->expect_scalar(key.scalar());
    cache->expect_dims(4);
    cache->expect_dense_from(0);
    cache->expect_size(2, key.size(1), "the kv heads of key");
    cache->expect_size(3, key.size(2), "the head size of key");
  }
  const int64_t width = key.size(1) * key.size(2);
  device::write_kv({.key = key.memory(),
                    .value = value.memory(),
                    .key_cache = key_cache.memory(),
                    .value_cache = value_cache.memory(),
                    .slot_mapping = slots.as<int64_t>(),
                    .num_tokens = slots.size(0),
                    .width = width,
                    .key_row_stride = key.row_stride(width),
                    .value_row_stride = value.row_stride(width)},
                   as_stream(stream));
}

void silu_and_mul(Handle x_object, Handle out_object, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), out(out_object, "out");
  const device::HalfType type = half_type_of(x);
  expect_matrix(x, x.scalar());
  expect_matrix(out, x.scalar());
  out.expect_size(0, x.size(0), "the rows of x");
  x.expect_size(1, 2 * out.size(1), "twice the row size of out");
  device::silu_and_mul({.x = x.memory(),
                        .out = out.memory(),
                        .num_rows = x.size(0),
                        .size = out.size(1),
                        .type = type},
                       as_stream(stream));
}

void argmax(Handle logits_object, Handle token_ids_object, Handle best_object, Handle workspace_object,
            Handle counters_object, uintptr_t stream) {
  const DeviceTensor logits(logits_object, "logits"), token_ids(token_ids_object, "token_ids"), best(best_object, "best");
  const device::HalfType type = half_type_of(logits);
  expect_matrix(logits, logits.scalar());
  token_ids.expect_scalar(Scalar::int32);
  best.expect_scalar(Scalar::float32);
  for (const DeviceTensor* result : {&token_ids, &best}) {
    result->expect_dims(1);
    result->expect_size(0, logits.size(0), "the rows of logits");
    result->expect_dense_from(0);
  }
  const Workspace workspace = workspace_of(workspace_object, counters_object);
  device::argmax({.logits = logits.memory(),
                  .token_ids = static_cast<int32_t*>(token_ids.memory()),
                  .best = static_cast<float*>(best.memory()),
                  .workspace = workspace.memory,
                  .workspace_size = workspace.size,
                  .counters = workspace.counters,
                  .num_counters = workspace.num_counters,
                  .num_rows = logits.size(0),
                  .size = logits.size(1),
                  .type = type},
                 as_stream(stream));
}

}  // namespace xllm::bindings::cuda

#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/float8_attention.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

namespace {

// Four numbers of 8 bits a word.
void expect_words(const DeviceTensor& cache, const DeviceTensor& key) {
  cache.expect_scalar(Scalar::int32);
  cache.expect_dims(4);
  cache.expect_dense_from(0);
  cache.expect_size(2, key.size(1), "the kv heads of key");
  cache.expect_size(3, key.size(2) / 4, "a quarter of the head size of key");
}

}  // namespace

void float8_attention(Handle query_object, Handle key_object, Handle value_object, Handle q_norm, Handle k_norm, Handle cos_sin,
                      Handle key_cache_object, Handle value_cache_object, double key_scale, double value_scale, Handle tables_object,
                      Handle lengths_object, Handle positions, double scale, double eps, int max_seq_len, int splits, Handle out_object,
                      Handle workspace_object, Handle counters_object, uintptr_t stream) {
  const DeviceTensor query(query_object, "query"), key(key_object, "key"), value(value_object, "value"), out(out_object, "out");
  const DeviceTensor key_cache(key_cache_object, "key_cache"), value_cache(value_cache_object, "value_cache");
  const DeviceTensor tables(tables_object, "block_tables"), lengths(lengths_object, "seq_lens");
  const device::HalfType type = half_type_of(query);
  for (const DeviceTensor* tensor : {&query, &key, &value, &out}) {
    tensor->expect_scalar(query.scalar());
    tensor->expect_dims(3);
    tensor->expect_dense_from(1);
    tensor->expect_size(0, query.size(0), "the rows of query");
    tensor->expect_size(2, query.size(2), "the head size of query");
  }
  const int64_t batch = query.size(0), head_dim = query.size(2);
  value.expect_size(1, key.size(1), "the kv heads of key");
  out.expect_size(1, query.size(1), "the heads of query");
  out.expect_dense_from(0);
  expect_words(key_cache, key);
  expect_words(value_cache, key);
  value_cache.expect_size(0, key_cache.size(0), "the blocks of key_cache");
  value_cache.expect_size(1, key_cache.size(1), "the block size of key_cache");
  tables.expect_scalar(Scalar::int32);
  tables.expect_dims(2);
  tables.expect_size(0, batch, "the rows of query");
  tables.expect_dense_from(0);
  const int64_t key_stride = key.row_stride(key.size(1) * head_dim);
  if (value.row_stride(value.size(1) * head_dim) != key_stride) fail("key and value must have one row stride");
  lengths.expect_scalar(Scalar::int32);
  lengths.expect_dims(1);
  lengths.expect_size(0, batch, "the rows of query");
  const Workspace workspace = workspace_of(workspace_object, counters_object);
  device::float8_attention(
      {.attention = {.q = query.memory(),
                     .k = key.memory(),
                     .v = value.memory(),
                     .q_row_stride = query.row_stride(query.size(1) * head_dim),
                     .kv_row_stride = key_stride,
                     .q_norm = optional_vector(q_norm, "q_norm", head_dim, query.scalar()),
                     .k_norm = optional_vector(k_norm, "k_norm", head_dim, query.scalar()),
                     .cos_sin = angles_of(cos_sin, head_dim),
                     .key_cache = key_cache.memory(),
                     .value_cache = value_cache.memory(),
                     .block_tables = tables.as<int32_t>(),
                     .seq_lens = lengths.as<int32_t>(),
                     .positions = positions_of(positions, batch),
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
                     .configuration = 0,
                     .scale = static_cast<float>(scale),
                     .eps = static_cast<float>(eps),
                     .type = type},
       .key_scale = static_cast<float>(key_scale),
       .value_scale = static_cast<float>(value_scale)},
      as_stream(stream));
}

}  // namespace xllm::bindings::cuda

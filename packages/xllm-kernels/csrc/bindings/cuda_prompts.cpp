#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/prompt_attention.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

namespace {

const int32_t* integers_of(const DeviceTensor& tensor, int64_t least) {
  tensor.expect_scalar(Scalar::int32);
  tensor.expect_dims(1);
  tensor.expect_dense_from(0);
  if (tensor.size(0) < least) fail(std::string(tensor.name()) + " must have an entry for each sequence");
  return tensor.as<int32_t>();
}

// Keys or values as rows of heads: the tensor itself, or a cache's blocks one after the other.
struct Rows {
  int64_t num_rows, num_heads, head_dim, row_stride;

  Rows(const DeviceTensor& tensor, Scalar scalar, bool is_paged) {
    tensor.expect_scalar(scalar);
    tensor.expect_dims(is_paged ? 4 : 3);
    tensor.expect_dense_from(1);
    const int last = tensor.num_dims() - 1;
    num_heads = tensor.size(last - 1);
    head_dim = tensor.size(last);
    num_rows = is_paged ? tensor.size(0) * tensor.size(1) : tensor.size(0);
    row_stride = is_paged ? num_heads * head_dim : tensor.row_stride(num_heads * head_dim);
    if (is_paged) tensor.expect_dense_from(0);
  }
};

}  // namespace

void prompt_attention(Handle query_object, Handle key_object, Handle value_object, Handle query_start_object, Handle key_start_object,
                      Handle seq_lens_object, Handle block_tables_object, int max_query_len, double scale, bool is_causal, int splits,
                      Handle out_object, Handle lse_object, uintptr_t stream) {
  const bool is_paged = !block_tables_object.is_none();
  const DeviceTensor query(query_object, "query"), key(key_object, "key"), value(value_object, "value"), out(out_object, "out"),
      query_start(query_start_object, "query_start"), seq_lens(seq_lens_object, "seq_lens");
  std::optional<DeviceTensor> key_start, block_tables, lse;
  const device::HalfType type = half_type_of(query);
  expect_heads(query, query.scalar());
  const Rows keys(key, query.scalar(), is_paged), values(value, query.scalar(), is_paged);
  for (const DeviceTensor* tensor : {&key, &value}) {
    tensor->expect_size(tensor->num_dims() - 1, query.size(2), "the head size of query");
    for (int dim = 0; dim < tensor->num_dims(); ++dim) tensor->expect_size(dim, key.size(dim), "as key has");
  }
  const int64_t num_sequences = seq_lens.size(0);
  if (is_paged) {
    block_tables.emplace(block_tables_object, "block_tables");
    block_tables->expect_scalar(Scalar::int32);
    block_tables->expect_dims(2);
    block_tables->expect_size(0, num_sequences, "the sequences of seq_lens");
    block_tables->expect_dense_from(0);
  } else {
    key_start.emplace(key_start_object, "key_start");
  }
  out.expect_scalar(query.scalar());
  out.expect_dims(4);
  out.expect_size(0, splits, "splits");
  for (int dim = 0; dim < 3; ++dim) out.expect_size(dim + 1, query.size(dim), "as query has");
  out.expect_dense_from(0);
  if (!lse_object.is_none()) {
    lse.emplace(lse_object, "lse");
    lse->expect_scalar(Scalar::float32);
    lse->expect_dims(3);
    lse->expect_size(0, splits, "splits");
    lse->expect_size(1, query.size(1), "the heads of query");
    lse->expect_size(2, query.size(0), "the rows of query");
    lse->expect_dense_from(0);
  }
  device::prompt_attention({.query = query.memory(),
                            .key = key.memory(),
                            .value = value.memory(),
                            .query_start = integers_of(query_start, num_sequences + 1),
                            .key_start = is_paged ? nullptr : integers_of(*key_start, num_sequences),
                            .seq_lens = integers_of(seq_lens, num_sequences),
                            .block_tables = is_paged ? block_tables->as<int32_t>() : nullptr,
                            .out = out.memory(),
                            .lse = lse ? static_cast<float*>(lse->memory()) : nullptr,
                            .num_queries = query.size(0),
                            .num_keys = keys.num_rows,
                            .query_row_stride = query.row_stride(query.size(1) * query.size(2)),
                            .key_row_stride = keys.row_stride,
                            .value_row_stride = values.row_stride,
                            .num_heads = static_cast<int>(query.size(1)),
                            .num_kv_heads = static_cast<int>(keys.num_heads),
                            .head_dim = static_cast<int>(query.size(2)),
                            .num_sequences = static_cast<int>(num_sequences),
                            .max_query_len = max_query_len,
                            .table_width = is_paged ? static_cast<int>(block_tables->size(1)) : 0,
                            .block_size = is_paged ? static_cast<int>(key.size(1)) : 0,
                            .splits = splits,
                            .is_causal = is_causal,
                            .scale = static_cast<float>(scale),
                            .type = type},
                           as_stream(stream));
}

}  // namespace xllm::bindings::cuda

#include "xllm/kernels/paged_attention.h"

#include <algorithm>

#include "launchers.h"
#include "tensor.h"

namespace nb = nanobind;

namespace xllm::bindings {
namespace {

constexpr int64_t kMaxHeadDim = 1024;

void check_query_and_caches(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                            const Tensor& out) {
  query.expect_dims(3);
  query.expect_float();
  query.expect_dense_from(1);
  key_cache.expect_dims(4);
  key_cache.expect_size(3, query.size(2), "the head size of query");
  key_cache.expect_same_dtype(query);
  key_cache.expect_dense_from(1);
  value_cache.expect_dims(4);
  for (int dim = 0; dim < 4; ++dim) value_cache.expect_size(dim, key_cache.size(dim), "as key_cache has");
  value_cache.expect_same_dtype(query);
  value_cache.expect_dense_from(1);
  out.expect_dims(3);
  for (int dim = 0; dim < 3; ++dim) out.expect_size(dim, query.size(dim), "as query has");
  out.expect_same_dtype(query);
  out.expect_dense_from(1);
  if (query.size(2) < 1 || query.size(2) > kMaxHeadDim)
    fail("query has head size " + std::to_string(query.size(2)) + ", expected 1 to " + std::to_string(kMaxHeadDim));
  if (key_cache.size(1) < 1) fail("key_cache has blocks of no tokens");
  if (key_cache.size(2) < 1 || query.size(1) % key_cache.size(2) != 0)
    fail("query has " + std::to_string(query.size(1)) + " heads, expected a multiple of the " +
         std::to_string(key_cache.size(2)) + " heads of key_cache");
}

void check_index_tensors(const Tensor& block_tables, const Tensor& query_start, const Tensor& seq_lens) {
  seq_lens.expect_dims(1);
  seq_lens.expect_scalar(Scalar::int32);
  seq_lens.expect_dense_from(0);
  query_start.expect_dims(1);
  query_start.expect_scalar(Scalar::int32);
  query_start.expect_dense_from(0);
  query_start.expect_size(0, seq_lens.size(0) + 1, "the number of seq_lens, plus 1");
  block_tables.expect_dims(2);
  block_tables.expect_scalar(Scalar::int32);
  block_tables.expect_size(0, seq_lens.size(0), "the number of seq_lens");
  block_tables.expect_dense_from(1);
}

std::string entry(const char* name, int64_t index) { return std::string(name) + "[" + std::to_string(index) + "]"; }

// The blocks that some row of sequence s sees must exist. Others are never read and may hold anything.
void check_blocks(const kernels::PagedAttentionArgs& args, int64_t s, int64_t num_columns, int64_t num_blocks) {
  const int64_t num_rows = args.query_start[s + 1] - args.query_start[s];
  const int64_t first_position = args.seq_lens[s] - num_rows;
  const int64_t window_start = args.sliding_window > 0 ? first_position + 1 - args.sliding_window : 0;
  const int64_t first_key = std::max<int64_t>(window_start, 0);
  const int64_t end_block = (args.seq_lens[s] + args.block_size - 1) / args.block_size;
  if (end_block > num_columns)
    fail(entry("seq_lens", s) + " is " + std::to_string(args.seq_lens[s]) + ", more than the " +
         std::to_string(num_columns) + " columns of block_tables hold");
  const int32_t* table = args.block_tables + s * args.block_table_stride;
  for (int64_t i = first_key / args.block_size; i < end_block; ++i)
    if (table[i] < 0 || table[i] >= num_blocks)
      fail(entry("block_tables", s) + "[" + std::to_string(i) + "] is " + std::to_string(table[i]) +
           ", but the cache has " + std::to_string(num_blocks) + " blocks");
}

void check_sequences(const kernels::PagedAttentionArgs& args, int64_t num_tokens, int64_t num_columns,
                     int64_t num_blocks) {
  if (args.query_start[0] != 0) fail("query_start[0] must be 0");
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t num_rows = static_cast<int64_t>(args.query_start[s + 1]) - args.query_start[s];
    if (num_rows < 0) fail(entry("query_start", s + 1) + " is less than the entry before it");
    if (args.seq_lens[s] < num_rows)
      fail(entry("seq_lens", s) + " is " + std::to_string(args.seq_lens[s]) + ", less than the sequence's " +
           std::to_string(num_rows) + " rows");
    if (num_rows > 0) check_blocks(args, s, num_columns, num_blocks);
  }
  if (args.query_start[args.num_seqs] != num_tokens)
    fail("query_start ends at " + std::to_string(args.query_start[args.num_seqs]) + ", but query has " +
         std::to_string(num_tokens) + " rows");
}

}  // namespace

void paged_attention(nb::handle query_object, nb::handle key_cache_object, nb::handle value_cache_object,
                     nb::handle block_tables_object, nb::handle query_start_object, nb::handle seq_lens_object,
                     double scale, int64_t sliding_window, nb::handle out_object) {
  const Tensor query(query_object, "query"), key_cache(key_cache_object, "key_cache"),
      value_cache(value_cache_object, "value_cache"), block_tables(block_tables_object, "block_tables"),
      query_start(query_start_object, "query_start"), seq_lens(seq_lens_object, "seq_lens"),
      out(out_object, "out", Access::write);
  check_query_and_caches(query, key_cache, value_cache, out);
  check_index_tensors(block_tables, query_start, seq_lens);
  if (sliding_window < 0) fail("sliding_window must not be negative");
  const int64_t row_size = query.size(1) * query.size(2);
  const int64_t block_elements = key_cache.size(1) * key_cache.size(2) * key_cache.size(3);
  const kernels::PagedAttentionArgs args{
      .query = query.memory(),
      .key_cache = key_cache.memory(),
      .value_cache = value_cache.memory(),
      .block_tables = block_tables.as<int32_t>(),
      .query_start = query_start.as<int32_t>(),
      .seq_lens = seq_lens.as<int32_t>(),
      .out = out.memory(),
      .num_seqs = seq_lens.size(0),
      .num_query_heads = query.size(1),
      .num_kv_heads = key_cache.size(2),
      .head_dim = query.size(2),
      .block_size = key_cache.size(1),
      .block_table_stride = block_tables.row_stride(block_tables.size(1)),
      .query_row_stride = query.row_stride(row_size),
      .out_row_stride = out.row_stride(row_size),
      .key_block_stride = key_cache.row_stride(block_elements),
      .value_block_stride = value_cache.row_stride(block_elements),
      .cache_token_stride = key_cache.size(2) * key_cache.size(3),
      .cache_head_stride = key_cache.size(3),
      .sliding_window = sliding_window,
      .scale = static_cast<float>(scale),
      .dtype = query.dtype(),
      .cache_dtype = query.dtype(),
  };
  check_sequences(args, query.size(0), block_tables.size(1), key_cache.size(0));
  const nb::gil_scoped_release no_gil;
  kernels::cpu::paged_attention(args);
}

}  // namespace xllm::bindings

#include "beams.h"

#include <nanobind/stl/string.h>

#include <algorithm>

#include "tensor.h"
#include "xllm/kernels/beam_attention.h"
#include "xllm/kernels/beam_select.h"
#include "xllm/kernels/native/beams.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xllm::bindings {
namespace {

std::string entry(const char* name, int64_t index) { return std::string(name) + "[" + std::to_string(index) + "]"; }

void expect_vector(const Tensor& tensor, Scalar scalar) {
  tensor.expect_dims(1);
  tensor.expect_scalar(scalar);
  tensor.expect_dense_from(0);
}

// Ascending from 0 to `end`.
void expect_starts(const Tensor& starts, int64_t end) {
  const int32_t* values = starts.as<int32_t>();
  if (starts.size(0) < 1 || values[0] != 0) fail(std::string(starts.name()) + "[0] must be 0");
  for (int64_t s = 1; s < starts.size(0); ++s)
    if (values[s] < values[s - 1]) fail(entry(starts.name(), s) + " is less than the entry before it");
  if (values[starts.size(0) - 1] != end)
    fail(std::string(starts.name()) + " ends at " + std::to_string(values[starts.size(0) - 1]) + ", expected " +
         std::to_string(end));
}

void expect_range(const Tensor& tensor, int64_t lowest, int64_t end, const char* what) {
  for (int64_t i = 0; i < tensor.size(0); ++i)
    if (tensor.as<int32_t>()[i] < lowest || tensor.as<int32_t>()[i] >= end)
      fail(entry(tensor.name(), i) + " is " + std::to_string(tensor.as<int32_t>()[i]) + ", but there are " +
           std::to_string(end) + " " + what);
}

void check_caches(const Tensor& query, const Tensor& key, const Tensor& value) {
  key.expect_dims(4);
  key.expect_size(3, query.size(2), "the head size of query");
  key.expect_same_dtype(query);
  key.expect_dense_from(1);
  value.expect_dims(4);
  for (int dim = 0; dim < 4; ++dim) value.expect_size(dim, key.size(dim), "as its key has");
  value.expect_same_dtype(query);
  value.expect_dense_from(1);
}

void check_prompts(const Tensor& block_tables, const Tensor& prompt_lens, int64_t block_size, int64_t num_blocks) {
  block_tables.expect_dims(2);
  block_tables.expect_scalar(Scalar::int32);
  block_tables.expect_size(0, prompt_lens.size(0), "the number of prompt_lens");
  block_tables.expect_dense_from(1);
  const int64_t stride = block_tables.row_stride(block_tables.size(1));
  for (int64_t s = 0; s < prompt_lens.size(0); ++s) {
    const int64_t length = prompt_lens.as<int32_t>()[s], end = (length + block_size - 1) / block_size;
    if (length < 1 || end > block_tables.size(1))
      fail(entry("prompt_lens", s) + " is " + std::to_string(length) + ", expected 1 to what the columns of block_tables hold");
    for (int64_t i = 0; i < end; ++i) {
      const int32_t block = block_tables.as<int32_t>()[s * stride + i];
      if (block < 0 || block >= num_blocks)
        fail(entry("block_tables", s) + " names block " + std::to_string(block) + " of " + std::to_string(num_blocks));
    }
  }
}

void check_ancestors(const Tensor& ancestors, int64_t num_rows, int64_t num_rounds, int64_t num_beam_rows) {
  ancestors.expect_dims(2);
  ancestors.expect_scalar(Scalar::int32);
  ancestors.expect_dense_from(1);
  ancestors.expect_size(0, num_rows, "the rows of query");
  if (ancestors.size(1) < 1 || ancestors.size(1) > num_rounds)
    fail("ancestors has " + std::to_string(ancestors.size(1)) + " rounds, expected 1 to " + std::to_string(num_rounds));
  const int64_t stride = ancestors.row_stride(ancestors.size(1));
  for (int64_t r = 0; r < num_rows; ++r)
    for (int64_t t = 0; t < ancestors.size(1); ++t) {
      const int32_t row = ancestors.as<int32_t>()[r * stride + t];
      if (row < 0 || row >= num_beam_rows)
        fail(entry("ancestors", r) + " is row " + std::to_string(row) + " of " + std::to_string(num_beam_rows));
    }
}

void beam_attention(nb::handle query_object, nb::handle key_cache_object, nb::handle value_cache_object,
                    nb::handle block_tables_object, nb::handle query_start_object, nb::handle prompt_lens_object,
                    nb::handle beam_key_object, nb::handle beam_value_object, nb::handle ancestors_object, double scale,
                    nb::handle out_object) {
  const Tensor query(query_object, "query"), key_cache(key_cache_object, "key_cache"),
      value_cache(value_cache_object, "value_cache"), block_tables(block_tables_object, "block_tables"),
      query_start(query_start_object, "query_start"), prompt_lens(prompt_lens_object, "prompt_lens"),
      beam_key(beam_key_object, "beam_key"), beam_value(beam_value_object, "beam_value"),
      ancestors(ancestors_object, "ancestors"), out(out_object, "out", Access::write);
  query.expect_dims(3);
  query.expect_float();
  query.expect_dense_from(1);
  check_caches(query, key_cache, value_cache);
  check_caches(query, beam_key, beam_value);
  beam_key.expect_size(2, key_cache.size(2), "the heads of key_cache");
  if (key_cache.size(1) < 1) fail("key_cache has blocks of no tokens");
  if (key_cache.size(2) < 1 || query.size(1) % key_cache.size(2) != 0)
    fail("query must have a multiple of the heads of key_cache");
  out.expect_dims(3);
  for (int dim = 0; dim < 3; ++dim) out.expect_size(dim, query.size(dim), "as query has");
  out.expect_same_dtype(query);
  out.expect_dense_from(1);
  expect_vector(prompt_lens, Scalar::int32);
  expect_vector(query_start, Scalar::int32);
  query_start.expect_size(0, prompt_lens.size(0) + 1, "the number of prompt_lens, plus 1");
  expect_starts(query_start, query.size(0));
  check_prompts(block_tables, prompt_lens, key_cache.size(1), key_cache.size(0));
  check_ancestors(ancestors, query.size(0), beam_key.size(0), beam_key.size(1));
  const int64_t row_size = query.size(1) * query.size(2), key_size = key_cache.size(2) * key_cache.size(3);
  const kernels::BeamAttentionArgs args{
      .prompt = {.query = query.memory(),
                 .key_cache = key_cache.memory(),
                 .value_cache = value_cache.memory(),
                 .block_tables = block_tables.as<int32_t>(),
                 .query_start = query_start.as<int32_t>(),
                 .seq_lens = prompt_lens.as<int32_t>(),
                 .out = out.memory(),
                 .num_seqs = prompt_lens.size(0),
                 .num_query_heads = query.size(1),
                 .num_kv_heads = key_cache.size(2),
                 .head_dim = query.size(2),
                 .block_size = key_cache.size(1),
                 .block_table_stride = block_tables.row_stride(block_tables.size(1)),
                 .query_row_stride = query.row_stride(row_size),
                 .out_row_stride = out.row_stride(row_size),
                 .key_block_stride = key_cache.row_stride(key_cache.size(1) * key_size),
                 .value_block_stride = value_cache.row_stride(key_cache.size(1) * key_size),
                 .cache_token_stride = key_size,
                 .cache_head_stride = key_cache.size(3),
                 .sliding_window = 0,
                 .scale = static_cast<float>(scale),
                 .dtype = query.dtype(),
                 .cache_dtype = query.dtype(),
                 .rows_see_all = true},
      .beam_key = beam_key.memory(),
      .beam_value = beam_value.memory(),
      .ancestors = ancestors.as<int32_t>(),
      .num_rounds = ancestors.size(1),
      .beam_round_stride = beam_key.row_stride(beam_key.size(1) * key_size),
      .ancestors_stride = ancestors.row_stride(ancestors.size(1)),
  };
  if (beam_value.row_stride(0) != beam_key.row_stride(0)) fail("beam_value must lie in memory as beam_key does");
  const nb::gil_scoped_release no_gil;
  kernels::cpu::beam_attention(args);
}

// The level's part of the valid paths; all empty where every token may follow.
void check_paths(const Tensor& nodes, const Tensor& starts, const Tensor& tokens, int64_t num_rows, int64_t vocab_size) {
  for (const Tensor* tensor : {&nodes, &starts, &tokens}) expect_vector(*tensor, Scalar::int32);
  if (starts.size(0) == 0) return;
  nodes.expect_size(0, num_rows, "the rows of logits");
  expect_range(nodes, -1, starts.size(0) - 1, "nodes");
  expect_starts(starts, tokens.size(0));
  expect_range(tokens, 0, vocab_size, "tokens");
}

void beam_select(nb::handle logits_object, nb::handle scores_object, nb::handle nodes_object, nb::handle starts_object,
                 nb::handle tokens_object, nb::handle row_start_object, nb::handle out_start_object,
                 nb::handle parents_object, nb::handle chosen_object, nb::handle next_nodes_object,
                 nb::handle logprobs_object, nb::handle next_scores_object) {
  const Tensor logits(logits_object, "logits"), scores(scores_object, "scores"), nodes(nodes_object, "nodes"),
      starts(starts_object, "starts"), tokens(tokens_object, "tokens"), row_start(row_start_object, "row_start"),
      out_start(out_start_object, "out_start"), parents(parents_object, "parents", Access::write),
      chosen(chosen_object, "chosen", Access::write), next_nodes(next_nodes_object, "next_nodes", Access::write),
      logprobs(logprobs_object, "logprobs", Access::write),
      next_scores(next_scores_object, "next_scores", Access::write);
  logits.expect_dims(2);
  logits.expect_scalar(Scalar::float32);
  logits.expect_dense_from(1);
  if (logits.size(1) < 1) fail("logits has no tokens");
  expect_vector(scores, Scalar::float32);
  scores.expect_size(0, logits.size(0), "the rows of logits");
  for (const Tensor* tensor : {&row_start, &out_start, &parents, &chosen, &next_nodes})
    expect_vector(*tensor, Scalar::int32);
  for (const Tensor* tensor : {&logprobs, &next_scores}) expect_vector(*tensor, Scalar::float32);
  for (const Tensor* tensor : {&chosen, &next_nodes, &logprobs, &next_scores})
    tensor->expect_size(0, parents.size(0), "the number of parents");
  out_start.expect_size(0, row_start.size(0), "the number of row_start");
  expect_starts(row_start, logits.size(0));
  expect_starts(out_start, parents.size(0));
  check_paths(nodes, starts, tokens, logits.size(0), logits.size(1));
  const bool is_free = starts.size(0) == 0;
  const kernels::BeamSelectArgs args{
      .logits = logits.as<float>(),
      .scores = scores.as<float>(),
      .nodes = is_free ? nullptr : nodes.as<int32_t>(),
      .starts = is_free ? nullptr : starts.as<int32_t>(),
      .tokens = is_free ? nullptr : tokens.as<int32_t>(),
      .row_start = row_start.as<int32_t>(),
      .out_start = out_start.as<int32_t>(),
      .parents = static_cast<int32_t*>(parents.memory()),
      .chosen = static_cast<int32_t*>(chosen.memory()),
      .next_nodes = static_cast<int32_t*>(next_nodes.memory()),
      .logprobs = static_cast<float*>(logprobs.memory()),
      .next_scores = static_cast<float*>(next_scores.memory()),
      .num_requests = row_start.size(0) - 1,
      .vocab_size = logits.size(1),
      .logits_stride = logits.row_stride(logits.size(1)),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::beam_select(args);
}

using kernels::native::BeamCache;
using kernels::native::BeamStepArgs;
using kernels::native::CacheType;
using kernels::native::Decoder;

void construct_cache(BeamCache* self, const Decoder& decoder, int64_t num_rounds, int64_t num_rows,
                     const std::string& dtype) {
  if (dtype != "bf16" && dtype != "f32") fail("dtype is '" + dtype + "', expected bf16 or f32");
  new (self) BeamCache(decoder.shape(), num_rounds, num_rows, dtype == "bf16" ? CacheType::bfloat16 : CacheType::float32);
}

// Values are the decoder's to check.
void forward_beams(Decoder& decoder, BeamCache& beams, int64_t round, nb::handle token_ids_object,
                   nb::handle positions_object, nb::handle query_start_object, nb::handle prompt_lens_object,
                   nb::handle block_tables_object, nb::handle ancestors_object, nb::handle logits_object) {
  const Tensor token_ids(token_ids_object, "token_ids"), positions(positions_object, "positions"),
      query_start(query_start_object, "query_start"), prompt_lens(prompt_lens_object, "prompt_lens"),
      block_tables(block_tables_object, "block_tables"), ancestors(ancestors_object, "ancestors"),
      logits(logits_object, "logits", Access::write);
  for (const Tensor* tensor : {&token_ids, &positions, &query_start, &prompt_lens})
    expect_vector(*tensor, Scalar::int32);
  positions.expect_size(0, token_ids.size(0), "the number of token_ids");
  query_start.expect_size(0, prompt_lens.size(0) + 1, "the number of prompt_lens, plus 1");
  for (const Tensor* tensor : {&block_tables, &ancestors}) {
    tensor->expect_dims(2);
    tensor->expect_scalar(Scalar::int32);
    tensor->expect_dense_from(1);
  }
  block_tables.expect_size(0, prompt_lens.size(0), "the number of prompt_lens");
  ancestors.expect_size(0, token_ids.size(0), "the number of token_ids");
  ancestors.expect_size(1, round + 1, "the rounds up to this one");
  logits.expect_dims(2);
  logits.expect_scalar(Scalar::float32);
  logits.expect_size(0, token_ids.size(0), "the number of token_ids");
  logits.expect_size(1, decoder.shape().vocab_size, "vocab_size");
  logits.expect_dense_from(0);
  const BeamStepArgs args{.token_ids = token_ids.as<int32_t>(),
                          .positions = positions.as<int32_t>(),
                          .query_start = query_start.as<int32_t>(),
                          .prompt_lens = prompt_lens.as<int32_t>(),
                          .block_tables = block_tables.as<int32_t>(),
                          .ancestors = ancestors.as<int32_t>(),
                          .num_rows = token_ids.size(0),
                          .num_requests = prompt_lens.size(0),
                          .num_columns = block_tables.size(1),
                          .block_table_stride = block_tables.row_stride(block_tables.size(1)),
                          .ancestors_stride = ancestors.row_stride(ancestors.size(1)),
                          .round = round};
  const nb::gil_scoped_release no_gil;
  decoder.forward_beams(args, beams, static_cast<float*>(logits.memory()));
}

}  // namespace

void add_beams(nb::module_& m) {
  m.def("beam_attention", &beam_attention, "query"_a, "key_cache"_a, "value_cache"_a, "block_tables"_a, "query_start"_a,
        "prompt_lens"_a, "beam_key"_a, "beam_value"_a, "ancestors"_a, "scale"_a, "out"_a);
  m.def("beam_select", &beam_select, "logits"_a, "scores"_a, "nodes"_a, "starts"_a, "tokens"_a, "row_start"_a,
        "out_start"_a, "parents"_a, "chosen"_a, "next_nodes"_a, "logprobs"_a, "next_scores"_a);
  nb::class_<BeamCache>(m, "BeamCache")
      .def("__init__", &construct_cache, "decoder"_a, "num_rounds"_a, "num_rows"_a, "dtype"_a);
  m.def("forward_beams", &forward_beams, "decoder"_a, "beams"_a, "round"_a, "token_ids"_a, "positions"_a,
        "query_start"_a, "prompt_lens"_a, "block_tables"_a, "ancestors"_a, "logits"_a);
}

}  // namespace xllm::bindings

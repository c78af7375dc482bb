// The extension module xllm_kernels._C_cuda: one line for each function, no logic. It links the CUDA runtime statically and no driver, so
// it can be imported where there is no GPU.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "cuda_launchers.h"
#include "xllm/kernels/cuda/beam_join.h"
#include "xllm/kernels/cuda/beam_select.h"
#include "xllm/kernels/cuda/decode_attention.h"
#include "xllm/kernels/cuda/experts.h"
#include "xllm/kernels/cuda/float8_attention.h"
#include "xllm/kernels/cuda/linear_batch.h"
#include "xllm/kernels/cuda/linear_stream.h"
#include "xllm/kernels/cuda/quantised_stream.h"
#include "xllm/kernels/cuda/prompt_attention.h"

namespace nb = nanobind;
namespace bindings = xllm::bindings::cuda;
namespace kernels = xllm::kernels::cuda;
using namespace nb::literals;

NB_MODULE(_C_cuda, m) {
  m.def("rms_norm", &bindings::rms_norm, "x"_a, "weight"_a, "eps"_a, "out"_a, "stream"_a);
  m.def("add_rms_norm", &bindings::add_rms_norm, "x"_a, "residual"_a, "weight"_a, "eps"_a, "stream"_a);
  m.def("rotary_embedding", &bindings::rotary_embedding, "positions"_a, "query"_a, "key"_a, "cos_sin_cache"_a, "stream"_a);
  m.def("norm_and_rotate", &bindings::norm_and_rotate, "positions"_a, "query"_a, "key"_a, "q_norm"_a, "k_norm"_a, "eps"_a,
        "cos_sin_cache"_a, "stream"_a);
  m.def("write_kv", &bindings::write_kv, "key"_a, "value"_a, "key_cache"_a, "value_cache"_a, "slot_mapping"_a, "stream"_a);
  m.def("silu_and_mul", &bindings::silu_and_mul, "x"_a, "out"_a, "stream"_a);
  m.def("argmax", &bindings::argmax, "logits"_a, "token_ids"_a, "best"_a, "workspace"_a, "counters"_a, "stream"_a);
  m.def("linear_stream", &bindings::linear_stream, "x"_a, "weight"_a, "norm_weight"_a.none(), "bias"_a.none(), "eps"_a,
        "epilogue"_a, "out"_a, "stream"_a);
  m.def("linear_batch", &bindings::linear_batch, "x"_a, "weight"_a, "bias"_a.none(), "epilogue"_a, "squares"_a.none(), "eps"_a,
        "next_norm"_a.none(), "next_x"_a.none(), "next_squares"_a.none(), "out"_a, "stream"_a);
  m.def("decode_attention", &bindings::decode_attention, "query"_a, "key"_a, "value"_a, "q_norm"_a.none(),
        "k_norm"_a.none(), "cos_sin_cache"_a.none(), "key_cache"_a, "value_cache"_a, "block_tables"_a, "seq_lens"_a,
        "positions"_a.none(), "scale"_a, "eps"_a, "max_seq_len"_a, "splits"_a, "configuration"_a, "out"_a, "workspace"_a, "counters"_a, "stream"_a);
  m.def("float8_attention", &bindings::float8_attention, "query"_a, "key"_a, "value"_a, "q_norm"_a.none(), "k_norm"_a.none(),
        "cos_sin_cache"_a.none(), "key_cache"_a, "value_cache"_a, "key_scale"_a, "value_scale"_a, "block_tables"_a, "seq_lens"_a,
        "positions"_a.none(), "scale"_a, "eps"_a, "max_seq_len"_a, "splits"_a, "out"_a, "workspace"_a, "counters"_a, "stream"_a);
  m.def("why_no_float8_attention", &kernels::why_no_float8_attention, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a);
  m.def("route", &bindings::route, "logits"_a, "renormalises"_a, "weights"_a, "experts"_a, "row_of_pair"_a, "token_of_row"_a, "starts"_a,
        "counts"_a, "stream"_a);
  m.def("order_pairs", &bindings::order_pairs, "weights"_a, "experts"_a, "row_of_pair"_a, "token_of_row"_a, "starts"_a, "counts"_a, "stream"_a);
  m.attr("ORDER_BLOCKS") = kernels::kOrderBlocks;
  m.def("norm_and_route", &bindings::norm_and_route, "x"_a, "norm_weight"_a, "eps"_a, "gate"_a, "renormalises"_a, "normed"_a, "weights"_a,
        "experts"_a, "row_of_pair"_a, "token_of_row"_a, "starts"_a, "workspace"_a, "counters"_a, "stream"_a);
  m.def("mix_experts", &bindings::mix_experts, "x"_a, "norm_weight"_a, "eps"_a, "gate"_a, "gate_up"_a, "down"_a, "top_k"_a,
        "renormalises"_a, "logits"_a, "gated"_a, "barrier"_a, "stream"_a);
  m.attr("MIX_TOKENS") = kernels::kMixTokens;
  m.def("why_no_mix_experts", &kernels::why_no_mix_experts, "num_tokens"_a, "num_experts"_a, "top_k"_a, "hidden"_a, "inner"_a);
  m.def("run_experts", &bindings::run_experts, "x"_a, "gate_up"_a, "down"_a, "token_of_row"_a, "starts"_a, "columns"_a, "gated"_a,
        "out"_a, "barrier"_a, "stream"_a);
  m.def("expert_tiles", &bindings::expert_tiles, "x"_a, "gate_up"_a, "down"_a, "row_of_pair"_a, "starts"_a, "rows"_a, "gated"_a, "out"_a,
        "stream"_a);
  m.def("why_no_expert_tiles", &kernels::why_no_expert_tiles, "num_experts"_a, "hidden"_a, "inner"_a);
  m.def("combine_experts", &bindings::combine_experts, "y"_a, "weights"_a, "row_of_pair"_a, "residual"_a.none(), "norm_weight"_a.none(), "eps"_a,
        "out"_a, "stream"_a);
  m.def("beam_join", &bindings::beam_join, "query"_a, "key"_a, "value"_a, "attended"_a, "lse"_a, "beam_key"_a, "beam_value"_a,
        "ancestors"_a, "scale"_a, "out"_a, "stream"_a);
  m.def("why_no_beam_join", &kernels::why_no_beam_join, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a);
  m.def("log_normaliser", &bindings::log_normaliser, "logits"_a, "normaliser"_a, "stream"_a);
  m.def("beam_scores", &bindings::beam_scores, "logits"_a, "scores"_a, "nodes"_a, "starts"_a, "tokens"_a, "normaliser"_a, "totals"_a,
        "stream"_a);
  m.def("top_k", &bindings::top_k, "values"_a, "places"_a, "best"_a, "stream"_a);
  m.attr("TOP_K_MAX") = kernels::kTopKMax;
  m.def("prompt_attention", &bindings::prompt_attention, "query"_a, "key"_a, "value"_a, "query_start"_a, "key_start"_a.none(),
        "seq_lens"_a, "block_tables"_a.none(), "max_query_len"_a, "scale"_a, "is_causal"_a, "splits"_a, "out"_a, "lse"_a.none(), "stream"_a);
  m.def("why_no_prompt_attention", &kernels::why_no_prompt_attention, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a);
  m.def("quantised_stream", &bindings::quantised_stream, "x"_a, "weight"_a, "kind"_a, "row_scales"_a.none(), "block_scales"_a.none(),
        "groups"_a.none(), "norm_weight"_a.none(), "bias"_a.none(), "eps"_a, "epilogue"_a, "configuration"_a, "out"_a, "workspace"_a,
        "counters"_a, "stream"_a);
  m.attr("QUANTISED_STREAM_MAX_BATCH") = kernels::kQuantisedStreamMaxBatch;
  m.def("quantised_stream_norms", &kernels::quantised_stream_norms, "batch"_a, "k"_a);
  m.def("why_no_quantised_stream", [](int64_t n, int64_t k, int epilogue) {
    return kernels::why_no_quantised_stream(n, k, static_cast<kernels::Epilogue>(epilogue));
  }, "n"_a, "k"_a, "epilogue"_a);
  m.def("sample", &bindings::sample, "logits"_a, "best_ids"_a, "best"_a, "temperature"_a, "top_p"_a, "min_p"_a, "top_k"_a, "seed"_a,
        "step"_a, "token_ids"_a, "logprobs"_a.none(), "stream"_a);
  m.def("replace_placeholders", &bindings::replace_placeholders, "token_ids"_a, "previous"_a, "stream"_a);

  m.attr("LINEAR_STREAM_MAX_BATCH") = kernels::kLinearStreamMaxBatch;
  m.attr("NORM_AND_ROUTE_MAX_TOKENS") = kernels::kNormAndRouteMaxTokens;
  m.attr("RUN_EXPERTS_MAX_ROWS") = kernels::kRunExpertsMaxRows;
  m.def("why_no_run_experts", &kernels::why_no_run_experts, "num_experts"_a, "hidden"_a, "inner"_a);
  m.attr("LINEAR_BATCH_MAX_BATCH") = kernels::kLinearBatchMaxBatch;
  m.attr("LINEAR_BATCH_MAX_GATED") = kernels::kLinearBatchMaxGated;
  m.def("why_no_linear_batch", [](int64_t n, int64_t k, int batch, int epilogue) {
    return kernels::why_no_linear_batch(n, k, batch, static_cast<kernels::Epilogue>(epilogue));
  }, "n"_a, "k"_a, "batch"_a, "epilogue"_a);
  m.def("tall_tiles_fill_the_device", &kernels::tall_tiles_fill_the_device, "n"_a);
  m.def("why_no_linear_stream", [](int64_t n, int64_t k, int epilogue) {
    return kernels::why_no_linear_stream(n, k, static_cast<kernels::Epilogue>(epilogue));
  }, "n"_a, "k"_a, "epilogue"_a);
  m.def("why_no_decode_attention", &kernels::why_no_decode_attention, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a);
}

// Checked launchers of the CUDA kernels: Python tensors in, kernels started on `stream` (a cudaStream_t as an integer), no wait.
// Each throws TypeError or ValueError naming the argument that does not fit. The tensors' device must be the current one.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace xllm::bindings::cuda {

using Handle = nanobind::handle;

void rms_norm(Handle x, Handle weight, double eps, Handle out, uintptr_t stream);
void add_rms_norm(Handle x, Handle residual, Handle weight, double eps, uintptr_t stream);
void rotary_embedding(Handle positions, Handle query, Handle key, Handle cos_sin_cache, uintptr_t stream);
void norm_and_rotate(Handle positions, Handle query, Handle key, Handle q_norm, Handle k_norm, double eps,
                     Handle cos_sin_cache, uintptr_t stream);
void write_kv(Handle key, Handle value, Handle key_cache, Handle value_cache, Handle slot_mapping, uintptr_t stream);
void silu_and_mul(Handle x, Handle out, uintptr_t stream);
void argmax(Handle logits, Handle token_ids, Handle best, Handle workspace, Handle counters, uintptr_t stream);
void linear_stream(Handle x, Handle weight, Handle norm_weight, Handle bias, double eps, int epilogue, Handle out, uintptr_t stream);
void linear_batch(Handle x, Handle weight, Handle bias, int epilogue, Handle squares, double eps, Handle next_norm, Handle next_x,
                  Handle next_squares, Handle out, uintptr_t stream);
void decode_attention(Handle query, Handle key, Handle value, Handle q_norm, Handle k_norm, Handle cos_sin_cache,
                      Handle key_cache, Handle value_cache, Handle block_tables, Handle seq_lens, Handle positions, double scale,
                      double eps, int max_seq_len, int splits, int configuration, Handle out, Handle workspace, Handle counters,
                      uintptr_t stream);
void float8_attention(Handle query, Handle key, Handle value, Handle q_norm, Handle k_norm, Handle cos_sin_cache, Handle key_cache,
                      Handle value_cache, double key_scale, double value_scale, Handle block_tables, Handle seq_lens, Handle positions,
                      double scale, double eps, int max_seq_len, int splits, Handle out, Handle workspace, Handle counters,
                      uintptr_t stream);
void route(Handle logits, bool renormalises, Handle weights, Handle experts, Handle row_of_pair, Handle token_of_row, Handle starts,
           Handle counts, uintptr_t stream);
void order_pairs(Handle weights, Handle experts, Handle row_of_pair, Handle token_of_row, Handle starts, Handle counts, uintptr_t stream);
void norm_and_route(Handle x, Handle norm_weight, double eps, Handle gate, bool renormalises, Handle normed, Handle weights,
                    Handle experts, Handle row_of_pair, Handle token_of_row, Handle starts, Handle workspace, Handle counters,
                    uintptr_t stream);
void mix_experts(Handle x, Handle norm_weight, double eps, Handle gate, Handle gate_up, Handle down, int top_k, bool renormalises,
                 Handle logits, Handle gated, Handle barrier, uintptr_t stream);
void run_experts(Handle x, Handle gate_up, Handle down, Handle token_of_row, Handle starts, int columns, Handle gated, Handle out,
                 Handle barrier, uintptr_t stream);
void expert_tiles(Handle x, Handle gate_up, Handle down, Handle row_of_pair, Handle starts, Handle rows, Handle gated, Handle out,
                  uintptr_t stream);
void combine_experts(Handle y, Handle weights, Handle row_of_pair, Handle residual, Handle norm_weight, double eps,
                     Handle out, uintptr_t stream);
void beam_join(Handle query, Handle key, Handle value, Handle attended, Handle lse, Handle beam_key, Handle beam_value,
               Handle ancestors, double scale, Handle out, uintptr_t stream);
void log_normaliser(Handle logits, Handle normaliser, uintptr_t stream);
void beam_scores(Handle logits, Handle scores, Handle nodes, Handle starts, Handle tokens, Handle normaliser, Handle totals,
                 uintptr_t stream);
void top_k(Handle values, Handle places, Handle best, uintptr_t stream);
void prompt_attention(Handle query, Handle key, Handle value, Handle query_start, Handle key_start, Handle seq_lens, Handle block_tables,
                      int max_query_len, double scale, bool is_causal, int splits, Handle out, Handle lse, uintptr_t stream);
void quantised_stream(Handle x, Handle weight, int kind, Handle row_scales, Handle block_scales, Handle groups, Handle norm_weight,
                      Handle bias, double eps, int epilogue, int configuration, Handle out, Handle workspace, Handle counters,
                      uintptr_t stream);
void sample(Handle logits, Handle best_ids, Handle best, Handle temperature, Handle top_p, Handle min_p, Handle top_k, Handle seed,
            Handle step, Handle token_ids, Handle logprobs, uintptr_t stream);
void replace_placeholders(Handle token_ids, Handle previous, uintptr_t stream);

}  // namespace xllm::bindings::cuda

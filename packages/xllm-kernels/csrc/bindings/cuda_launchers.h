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
void linear_stream(Handle x, Handle weight, Handle norm_weight, Handle bias, double eps, int epilogue, Handle out,
                   Handle workspace, Handle counters, uintptr_t stream);
void decode_attention(Handle query, Handle key, Handle value, Handle q_norm, Handle k_norm, Handle cos_sin_cache,
                      Handle key_cache, Handle value_cache, Handle block_tables, Handle seq_lens, double scale, double eps,
                      int max_seq_len, int splits, int configuration, Handle out, Handle workspace, Handle counters,
                      uintptr_t stream);

}  // namespace xllm::bindings::cuda

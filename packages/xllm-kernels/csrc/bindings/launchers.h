// The checked launchers: Python objects in, one kernel call out. Each checks element types, shapes, strides and index
// ranges, and raises TypeError or ValueError naming the argument before it touches any memory of the operation.
#pragma once

#include <nanobind/nanobind.h>

namespace xllm::bindings {

void rms_norm(nanobind::handle x, nanobind::handle weight, double eps, nanobind::handle out);
void add_rms_norm(nanobind::handle x, nanobind::handle residual, nanobind::handle weight, double eps);
void rotary_embedding(nanobind::handle positions, nanobind::handle query, nanobind::handle key,
                      nanobind::handle cos_sin_cache);
void write_kv(nanobind::handle key, nanobind::handle value, nanobind::handle key_cache, nanobind::handle value_cache,
              nanobind::handle slot_mapping);
void paged_attention(nanobind::handle query, nanobind::handle key_cache, nanobind::handle value_cache,
                     nanobind::handle block_tables, nanobind::handle query_start, nanobind::handle seq_lens,
                     double scale, int64_t sliding_window, nanobind::handle out);
void silu_and_mul(nanobind::handle x, nanobind::handle out);
void modulated_norm(nanobind::handle x, nanobind::handle shift, nanobind::handle scale, double eps,
                    nanobind::handle out);
void add_gated(nanobind::handle x, nanobind::handle y, nanobind::handle gate);
void gelu(nanobind::handle x, nanobind::handle out);
void dense_linear(nanobind::handle x, nanobind::handle tiles, nanobind::handle bias, nanobind::handle out);
// `streams` is a sequence of one or two tuples (qkv, q_norm, k_norm).
void joint_attention(nanobind::handle streams, nanobind::handle cos, nanobind::handle sin, nanobind::handle mask,
                     double eps, int64_t num_heads, int64_t first_query, nanobind::handle out);

}  // namespace xllm::bindings

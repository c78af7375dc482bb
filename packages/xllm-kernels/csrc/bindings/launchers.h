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

}  // namespace xllm::bindings

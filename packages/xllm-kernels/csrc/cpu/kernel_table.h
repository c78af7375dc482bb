// The kernels of one instruction set. Plain data: included by code that is compiled for any of them.
#pragma once

#include "attention_plan.h"
#include "xllm/kernels/paged_attention.h"
#include "xllm/kernels/rms_norm.h"
#include "xllm/kernels/rotary_embedding.h"
#include "xllm/kernels/silu_and_mul.h"
#include "xllm/kernels/write_kv.h"

namespace xllm::kernels::cpu {

// Each computes rows or items [begin, end) on the calling thread.
struct KernelTable {
  void (*rms_norm)(const RmsNormArgs& args, int64_t begin, int64_t end);
  void (*add_rms_norm)(const AddRmsNormArgs& args, int64_t begin, int64_t end);
  void (*rotary_embedding)(const RotaryEmbeddingArgs& args, int64_t begin, int64_t end);
  void (*silu_and_mul)(const SiluAndMulArgs& args, int64_t begin, int64_t end);
  void (*attend)(const PagedAttentionArgs& args, const AttentionItem& item, float* partials);
  void (*merge_partials)(const PagedAttentionArgs& args, const AttentionItem& first, int64_t num_parts,
                         float* partials);
};

// The table in use; chosen at the first call.
const KernelTable& kernels();

}  // namespace xllm::kernels::cpu

// The kernels of one instruction set. Plain data: included by code that is compiled for any of them.
#pragma once

#include "attention_plan.h"
#include "joint_plan.h"
#include "packed_matrix.h"
#include "xllm/kernels/beam_attention.h"
#include "xllm/kernels/modulation.h"
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
  void (*modulated_norm)(const ModulatedNormArgs& args, int64_t begin, int64_t end);
  void (*add_gated)(const AddGatedArgs& args, int64_t begin, int64_t end);
  void (*gelu)(const GeluArgs& args, int64_t begin, int64_t end);
  // Fills `prepared`, whose memory its caller has set, with the keys and values of one head.
  void (*prepare_joint_head)(const JointAttentionArgs& args, int64_t batch, int64_t head, PreparedHead& prepared);
  void (*attend_joint)(const JointAttentionArgs& args, const PreparedHead& head, const JointItem& item);
  void (*attend)(const PagedAttentionArgs& args, const AttentionItem& item, float* partials);
  void (*merge_partials)(const PagedAttentionArgs& args, const AttentionItem& first, int64_t num_parts,
                         float* partials);
  // Leaves nothing in partials, but needs partial_size(...) floats from item.partial_offset on.
  void (*attend_beams)(const BeamAttentionArgs& args, const AttentionItem& item, float* partials);

  // What multiply reads where a matrix is of type bfloat16; float32 and float16 read float32, the others int8.
  ActivationKind bfloat16_activations;
  // One row of num_inputs floats becomes a row of activation_bytes(kind, num_inputs). An infinity or a NaN in a block
  // of an int8 row makes the block's scale a NaN.
  void (*prepare_row)(ActivationKind kind, const float* x, int64_t num_inputs, uint8_t* out);
  // Batch invariance: each product is a sum in ascending order of inputs, whatever the rows and tiles around it.
  void (*multiply)(const MultiplyArgs& args);
  // total[i] += x[i].
  void (*add)(float* total, const float* x, int64_t count);
  // out[i] = silu(gate[i]) * up[i]; out may be gate.
  void (*gate)(const float* gate, const float* up, float* out, int64_t count);
  // The first index of the largest of count > 0 numbers, or of the first NaN if there is one.
  int64_t (*largest_index)(const float* x, int64_t count);
  // Returns the largest of count > 0 numbers, and in *terms the sum of e^(x - largest).
  float (*log_sum_exp_parts)(const float* x, int64_t count, double* terms);
};

// The table in use; chosen at the first call.
const KernelTable& kernels();

}  // namespace xllm::kernels::cpu

// The entry points that each instruction set defines in its namespace; kernel_table.h says what they do.
#pragma once

#include "kernel_table.h"

namespace xllm::kernels::cpu::XLLM_ISA {

void rms_norm(const RmsNormArgs& args, int64_t begin, int64_t end);
void add_rms_norm(const AddRmsNormArgs& args, int64_t begin, int64_t end);
void rotary_embedding(const RotaryEmbeddingArgs& args, int64_t begin, int64_t end);
void silu_and_mul(const SiluAndMulArgs& args, int64_t begin, int64_t end);
void modulated_norm(const ModulatedNormArgs& args, int64_t begin, int64_t end);
void add_gated(const AddGatedArgs& args, int64_t begin, int64_t end);
void gelu(const GeluArgs& args, int64_t begin, int64_t end);
void prepare_joint_head(const JointAttentionArgs& args, int64_t batch, int64_t head, PreparedHead& prepared);
void attend_joint(const JointAttentionArgs& args, const PreparedHead& head, const JointItem& item);
void attend(const PagedAttentionArgs& args, const AttentionItem& item, float* partials);
void merge_partials(const PagedAttentionArgs& args, const AttentionItem& first, int64_t num_parts, float* partials);
void attend_beams(const BeamAttentionArgs& args, const AttentionItem& item, float* partials);

void prepare_row(ActivationKind kind, const float* x, int64_t num_inputs, uint8_t* out);
void multiply(const MultiplyArgs& args);
void add(float* total, const float* x, int64_t count);
void gate(const float* gate, const float* up, float* out, int64_t count);
float log_sum_exp_parts(const float* x, int64_t count, double* terms);
int64_t largest_index(const float* x, int64_t count);

}  // namespace xllm::kernels::cpu::XLLM_ISA

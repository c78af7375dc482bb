// The table of one instruction set. Compiled once for each (see vector.h).
#include "ops/multiply.h"
#include "ops/ops.h"

namespace xllm::kernels::cpu::XLLM_ISA {

extern const KernelTable table;
const KernelTable table = {
    rms_norm,     add_rms_norm,         rotary_embedding, silu_and_mul, modulated_norm, add_gated,
    gelu,         prepare_joint_head,   attend_joint,     attend,       merge_partials,
    attend_beams, kBfloat16Activations, prepare_row,      multiply,     add,    gate,
    largest_index, log_sum_exp_parts,
};

}  // namespace xllm::kernels::cpu::XLLM_ISA

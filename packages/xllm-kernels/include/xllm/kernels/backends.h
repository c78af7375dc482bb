// Which back ends this build has. An absent one is a stub (csrc/stub) that says why.
#pragma once

namespace xllm::kernels {

// Instruction set that the CPU kernels use in this process: "portable", "avx2", "avx512" or "avx512_bf16".
// Chosen once: XLLM_CPU_ISA, else the best that the CPU has. Throws std::runtime_error for an unusable XLLM_CPU_ISA.
const char* cpu_isa();

// nullptr when the back end is built in, else one sentence on what to do about it.
const char* why_no_cuda();
const char* why_no_npu();

}  // namespace xllm::kernels

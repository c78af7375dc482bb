// Chooses the instruction set once, by what the CPU has or by XLLM_CPU_ISA.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#if defined(XLLM_AARCH64)
#include <sys/auxv.h>
#endif

#include "kernel_table.h"
#include "xllm/kernels/backends.h"

namespace xllm::kernels::cpu {

namespace portable { extern const KernelTable table; }
#if defined(XLLM_X86_64)
namespace avx2 { extern const KernelTable table; }
namespace avx512 { extern const KernelTable table; }
namespace avx512_bf16 { extern const KernelTable table; }
#endif
#if defined(XLLM_AARCH64)
namespace neon_dotprod { extern const KernelTable table; }
#endif

namespace {

struct InstructionSet {
  const char* name;
  const KernelTable* table;
  bool (*is_supported)();
};

// Best first.
constexpr InstructionSet kInstructionSets[] = {
#if defined(XLLM_X86_64)
    {"avx512_bf16", &avx512_bf16::table,
     [] { return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl"); }},
    {"avx512", &avx512::table,
     [] { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"); }},
    {"avx2", &avx2::table,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }},
#endif
#if defined(XLLM_AARCH64)
    {"neon_dotprod", &neon_dotprod::table, [] { return (getauxval(AT_HWCAP) & (1ul << 20)) != 0; }},  // HWCAP_ASIMDDP
#endif
    {"portable", &portable::table, [] { return true; }},
};

const InstructionSet& requested(std::string_view name) {
  std::string names;
  for (const InstructionSet& isa : kInstructionSets) {
    if (name == isa.name) {
      if (isa.is_supported()) return isa;
      throw std::runtime_error("XLLM_CPU_ISA=" + std::string(name) + " needs instructions that this CPU lacks");
    }
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw std::runtime_error("XLLM_CPU_ISA=" + std::string(name) + " is none of " + names);
}

const InstructionSet& chosen() {
  static const InstructionSet& isa = []() -> const InstructionSet& {
    const char* name = std::getenv("XLLM_CPU_ISA");
    if (name != nullptr && *name != '\0') return requested(name);
    const InstructionSet* best = kInstructionSets;
    while (!best->is_supported()) ++best;
    return *best;
  }();
  return isa;
}

}  // namespace

const KernelTable& kernels() { return *chosen().table; }

}  // namespace xllm::kernels::cpu

namespace xllm::kernels {

const char* cpu_isa() { return cpu::chosen().name; }

}  // namespace xllm::kernels

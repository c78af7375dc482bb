// The CPUs to run on: one of each physical core in this process's affinity mask.
#pragma once

#include <vector>

namespace xllm::kernels::cpu {

std::vector<int> usable_cores();

}  // namespace xllm::kernels::cpu

// The 16-bit types that kernels take, by name at run time.
#pragma once

namespace xllm::kernels::cuda {

enum class HalfType : int { bfloat16 = 0, float16 = 1 };

}  // namespace xllm::kernels::cuda

// Linked in place of the Ascend NPU kernels when they are not built.
#include "xllm/kernels/backends.h"

namespace xllm::kernels {

const char* why_no_npu() { return "not built with CANN (set XLLM_NPU=1 and have CANN when building xllm-kernels)"; }

}  // namespace xllm::kernels

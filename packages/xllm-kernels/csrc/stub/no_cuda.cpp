// Linked in place of the CUDA kernels when they are not built.
#include "xllm/kernels/backends.h"

namespace xllm::kernels {

const char* why_no_cuda() { return "not built with CUDA (set XLLM_CUDA=1 and have nvcc when building xllm-kernels)"; }

}  // namespace xllm::kernels

#include "quantised_launch.cuh"

namespace xllm::kernels::cuda {

void launch_int4_stream(const QuantisedLaunch& launch, void* stream) { start_kind<WeightKind::int4>(launch, stream); }

}  // namespace xllm::kernels::cuda

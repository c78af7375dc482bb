#include "quantised_launch.cuh"

namespace xllm::kernels::cuda {

void launch_int8_stream(const QuantisedLaunch& launch, void* stream) { start_kind<WeightKind::int8>(launch, stream); }

}  // namespace xllm::kernels::cuda

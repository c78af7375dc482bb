#include "quantised_launch.cuh"

namespace xllm::kernels::cuda {

void launch_float8_stream(const QuantisedLaunch& launch, void* stream) { start_kind<WeightKind::float8>(launch, stream); }

}  // namespace xllm::kernels::cuda

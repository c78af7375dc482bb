// Starts the kernel of one kind of weights that a launch asks for. Included once for each kind.
#pragma once

#include "launch.h"
#include "quantised_stream.cuh"

namespace xllm::kernels::cuda {

template <WeightKind KIND, class ELEMENT, int MT, int NT>
void start_quantised(const QuantisedLaunch& l, void* stream) {
  using Shape = QuantisedShape<KIND, ELEMENT, MT, NT>;
  const auto kernel = quantised_stream_kernel<Shape>;
  allow_shared_bytes(kernel, l.shared_bytes, "quantised_stream");
  launch(kernel, "quantised_stream", {dim3(l.blocks), Shape::kBlockThreads, l.shared_bytes}, l.parameters, stream);
}

template <WeightKind KIND, class ELEMENT>
void start_shape(const QuantisedLaunch& l, void* stream) {
  if (l.row_tiles == 1) {
    if (l.column_tiles == 1) return start_quantised<KIND, ELEMENT, 1, 1>(l, stream);
    if (l.column_tiles == 2) return start_quantised<KIND, ELEMENT, 1, 2>(l, stream);
    return start_quantised<KIND, ELEMENT, 1, 4>(l, stream);
  }
  if (l.column_tiles == 1) return start_quantised<KIND, ELEMENT, 2, 1>(l, stream);
  if (l.column_tiles == 2) return start_quantised<KIND, ELEMENT, 2, 2>(l, stream);
  return start_quantised<KIND, ELEMENT, 2, 4>(l, stream);
}

template <WeightKind KIND>
void start_kind(const QuantisedLaunch& l, void* stream) {
  if (l.type == HalfType::bfloat16) return start_shape<KIND, BFloat16Element>(l, stream);
  start_shape<KIND, Float16Element>(l, stream);
}

}  // namespace xllm::kernels::cuda

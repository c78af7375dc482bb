// Starts the kernel of one kind of weights that a launch asks for. Included once for each kind.
#pragma once

#include "launch.h"
#include "quantised_stream.cuh"

namespace xllm::kernels::cuda {

template <WeightKind KIND, class ELEMENT, int MT, int NT, bool XSTAGE>
void start_quantised(const QuantisedLaunch& l, void* stream) {
  using Shape = QuantisedShape<KIND, ELEMENT, MT, NT, XSTAGE>;
  const auto kernel = quantised_stream_kernel<Shape>;
  allow_shared_bytes(kernel, l.shared_bytes, "quantised_stream");
  launch(kernel, "quantised_stream", {dim3(l.blocks), Shape::kBlockThreads, l.shared_bytes}, l.parameters, stream);
}

template <WeightKind KIND, class ELEMENT, int NT>
void start_staged(const QuantisedLaunch& l, void* stream) {
  if (l.row_tiles == 2) return start_quantised<KIND, ELEMENT, 2, NT, true>(l, stream);
  start_quantised<KIND, ELEMENT, 4, NT, true>(l, stream);
}

template <WeightKind KIND, class ELEMENT>
void start_shape(const QuantisedLaunch& l, void* stream) {
  if (l.stages_x) {
    if (l.column_tiles == 1) return start_staged<KIND, ELEMENT, 1>(l, stream);
    if (l.column_tiles == 2) return start_staged<KIND, ELEMENT, 2>(l, stream);
    return start_staged<KIND, ELEMENT, 4>(l, stream);
  }
  if (l.row_tiles == 1) return start_quantised<KIND, ELEMENT, 1, 1, false>(l, stream);
  start_quantised<KIND, ELEMENT, 2, 1, false>(l, stream);
}

template <WeightKind KIND>
void start_kind(const QuantisedLaunch& l, void* stream) {
  if (l.type == HalfType::bfloat16) return start_shape<KIND, BFloat16Element>(l, stream);
  start_shape<KIND, Float16Element>(l, stream);
}

}  // namespace xllm::kernels::cuda

// Launches quantised_direct_kernel: a block for every 16 rows of W.
#include "quantised_direct.cuh"

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kMaxBytesOfX = 108 * 1024;  // two blocks a multiprocessor

int x_stride(const QuantisedStreamArgs& args) {
  const int columns = args.kind == WeightKind::int4 ? 256 : 128;
  return (args.k + columns - 1) / columns * columns * 2 + 16;  // rows of x read at once lie in banks of their own
}

template <WeightKind KIND, class Element, int DEPTH>
void start(const DirectParameters& parameters, int blocks, int bytes, void* stream) {
  const auto kernel = quantised_direct_kernel<KIND, Element, DEPTH>;
  allow_shared_bytes(kernel, bytes, "quantised_direct");
  launch(kernel, "quantised_direct", {dim3(blocks), kDirectWarps * 32, bytes}, parameters, stream);
}

template <WeightKind KIND>
void start_kind(const QuantisedStreamArgs& args, int depth, const DirectParameters& parameters, int bytes, void* stream) {
  const int blocks = args.n / kDirectRows;
  if (args.type == HalfType::bfloat16) {
    if (depth == 2) return start<KIND, BFloat16Element, 2>(parameters, blocks, bytes, stream);
    return start<KIND, BFloat16Element, 4>(parameters, blocks, bytes, stream);
  }
  if (depth == 2) return start<KIND, Float16Element, 2>(parameters, blocks, bytes, stream);
  start<KIND, Float16Element, 4>(parameters, blocks, bytes, stream);
}

}  // namespace

bool quantised_direct_serves(const QuantisedStreamArgs& args) {
  if (args.norm_weight != nullptr && args.batch > 1) return false;
  return args.batch <= kDirectMaxBatch && args.batch * x_stride(args) + (args.norm_weight == nullptr ? 0 : args.k * 2) <= kMaxBytesOfX;
}

void quantised_direct(const QuantisedStreamArgs& args, int depth, void* stream) {
  const bool is_int4 = args.kind == WeightKind::int4;
  const int columns = is_int4 ? 256 : 128, boxes = (args.k + columns - 1) / columns;
  const DirectParameters parameters{
      static_cast<const uint4*>(args.weight),
      args.x,
      args.norm_weight,
      args.bias,
      args.out,
      args.row_scales,
      args.block_scales,
      args.groups,
      args.batch,
      args.n,
      args.k,
      boxes,
      x_stride(args),
      args.eps,
      args.epilogue == Epilogue::silu_and_mul,
      args.epilogue == Epilogue::add_residual,
  };
  const int floats = kDirectWarps + (is_int4 ? args.batch * boxes * 2 : 0) + kDirectWarps * kDirectRows * args.batch;
  const int bytes = args.batch * parameters.x_stride + (args.norm_weight == nullptr ? 0 : args.k * 2) + floats * 4;
  switch (args.kind) {
    case WeightKind::float8: return start_kind<WeightKind::float8>(args, depth, parameters, bytes, stream);
    case WeightKind::int8: return start_kind<WeightKind::int8>(args, depth, parameters, bytes, stream);
    case WeightKind::int4: return start_kind<WeightKind::int4>(args, depth, parameters, bytes, stream);
  }
}

}  // namespace xllm::kernels::cuda

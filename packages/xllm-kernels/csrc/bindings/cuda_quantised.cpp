#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/quantised_stream.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

namespace {

// A dense tensor of `scalar` with these sizes, or nullptr for None.
const void* optional_tensor(Handle object, const char* name, Scalar scalar, std::initializer_list<int64_t> sizes) {
  if (object.is_none()) return nullptr;
  const DeviceTensor tensor(object, name);
  tensor.expect_scalar(scalar);
  tensor.expect_dims(static_cast<int>(sizes.size()));
  int dim = 0;
  for (const int64_t size : sizes) tensor.expect_size(dim++, size, "by the sizes of weight");
  tensor.expect_dense_from(0);
  return tensor.memory();
}

void expect_rows(const DeviceTensor& tensor, Scalar scalar) {
  tensor.expect_scalar(scalar);
  tensor.expect_dims(2);
  tensor.expect_dense_from(0);
}

}  // namespace

void quantised_stream(Handle x_object, Handle weight_object, int kind, Handle row_scales, Handle block_scales, Handle groups,
                      Handle norm_weight, Handle bias, double eps, int epilogue, int configuration, Handle out_object,
                      Handle workspace_object, Handle counters_object, uintptr_t stream) {
  const DeviceTensor x(x_object, "x"), weight(weight_object, "weight"), out(out_object, "out");
  const device::HalfType type = half_type_of(x);
  if (epilogue < 0 || epilogue > 2 || kind < 0 || kind > 2) fail("epilogue and kind must be 0, 1 or 2");
  expect_rows(x, x.scalar());
  expect_rows(out, x.scalar());
  expect_rows(weight, Scalar::int32);
  const bool is_int4 = kind == static_cast<int>(device::WeightKind::int4);
  const bool gated = epilogue == static_cast<int>(device::Epilogue::silu_and_mul);
  if (gated && !bias.is_none()) fail("bias must be None with the epilogue silu_and_mul");
  if (is_int4 == groups.is_none()) fail("groups must be given for int4, and only for it");
  const int64_t n = weight.size(0), k = x.size(1), stored = is_int4 ? (k + 255) / 256 * 256 : k;
  weight.expect_size(1, stored / (is_int4 ? 8 : 4), "the columns of x");
  out.expect_size(0, x.size(0), "the rows of x");
  out.expect_size(1, gated ? n / 2 : n, "the outputs of weight");
  const Workspace workspace = workspace_of(workspace_object, counters_object);
  device::quantised_stream(
      {.x = x.memory(),
       .weight = weight.memory(),
       .row_scales = static_cast<const float*>(optional_tensor(row_scales, "row_scales", Scalar::float32, {n})),
       .block_scales = static_cast<const float*>(
           optional_tensor(block_scales, "block_scales", Scalar::float32, {(n + 127) / 128, (k + 127) / 128})),
       .groups = static_cast<const uint32_t*>(optional_tensor(groups, "groups", Scalar::int32, {stored / 128, n})),
       .norm_weight = optional_tensor(norm_weight, "norm_weight", x.scalar(), {k}),
       .bias = optional_tensor(bias, "bias", x.scalar(), {n}),
       .out = out.memory(),
       .workspace = workspace.memory,
       .workspace_size = workspace.size,
       .counters = workspace.counters,
       .num_counters = workspace.num_counters,
       .batch = static_cast<int>(x.size(0)),
       .n = static_cast<int>(n),
       .k = static_cast<int>(k),
       .eps = static_cast<float>(eps),
       .epilogue = static_cast<device::Epilogue>(epilogue),
       .kind = static_cast<device::WeightKind>(kind),
       .type = type,
       .configuration = configuration},
      as_stream(stream));
}

}  // namespace xllm::bindings::cuda

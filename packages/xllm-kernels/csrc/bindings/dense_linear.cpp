#include "xllm/kernels/dense_linear.h"

#include <optional>

#include "launchers.h"
#include "tensor.h"

namespace nb = nanobind;

namespace xllm::bindings {

void dense_linear(nb::handle x_object, nb::handle tiles_object, nb::handle bias_object, nb::handle out_object) {
  const Tensor x(x_object, "x"), tiles(tiles_object, "tiles"), out(out_object, "out", Access::write);
  x.expect_dims(2);
  x.expect_scalar(Scalar::float32);
  x.expect_dense_from(1);
  tiles.expect_dims(3);
  tiles.expect_scalar(Scalar::float32);
  tiles.expect_size(1, x.size(1), "the row size of x");
  tiles.expect_size(2, 16, "the outputs of a tile");
  tiles.expect_dense_from(0);
  const int64_t num_outputs = tiles.size(0) * 16;
  out.expect_dims(2);
  out.expect_scalar(Scalar::float32);
  out.expect_size(0, x.size(0), "the rows of x");
  out.expect_size(1, num_outputs, "the outputs of all tiles");
  out.expect_dense_from(1);
  std::optional<Tensor> bias;
  if (!bias_object.is_none()) {
    bias.emplace(bias_object, "bias");
    bias->expect_dims(1);
    bias->expect_scalar(Scalar::float32);
    bias->expect_size(0, num_outputs, "the outputs of all tiles");
    bias->expect_dense_from(0);
  }
  const kernels::DenseLinearArgs args{
      .x = x.as<float>(),
      .x_row_stride = x.row_stride(x.size(1)),
      .tiles = tiles.as<float>(),
      .bias = bias ? bias->as<float>() : nullptr,
      .out = static_cast<float*>(out.memory()),
      .out_row_stride = out.row_stride(num_outputs),
      .num_rows = x.size(0),
      .num_inputs = x.size(1),
      .num_outputs = num_outputs,
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::dense_linear(args);
}

}  // namespace xllm::bindings

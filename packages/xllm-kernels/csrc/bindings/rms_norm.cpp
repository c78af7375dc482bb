#include "xllm/kernels/rms_norm.h"

#include "launchers.h"
#include "tensor.h"

namespace nb = nanobind;

namespace xllm::bindings {
namespace {

// x [T, H] of a floating type with dense rows, weight [H] of the same type.
void check_rows_and_weight(const Tensor& x, const Tensor& weight) {
  x.expect_dims(2);
  x.expect_float();
  x.expect_dense_from(1);
  weight.expect_dims(1);
  weight.expect_size(0, x.size(1), "the row size of x");
  weight.expect_same_dtype(x);
  weight.expect_dense_from(0);
}

void check_like_x(const Tensor& tensor, const Tensor& x) {
  tensor.expect_dims(2);
  tensor.expect_size(0, x.size(0), "the rows of x");
  tensor.expect_size(1, x.size(1), "the row size of x");
  tensor.expect_same_dtype(x);
  tensor.expect_dense_from(1);
}

}  // namespace

void rms_norm(nb::handle x_object, nb::handle weight_object, double eps, nb::handle out_object) {
  const Tensor x(x_object, "x"), weight(weight_object, "weight"), out(out_object, "out", Access::write);
  check_rows_and_weight(x, weight);
  check_like_x(out, x);
  const int64_t size = x.size(1);
  const kernels::RmsNormArgs args{
      .x = x.memory(),
      .weight = weight.memory(),
      .out = out.memory(),
      .num_rows = x.size(0),
      .hidden_size = size,
      .x_row_stride = x.row_stride(size),
      .out_row_stride = out.row_stride(size),
      .eps = static_cast<float>(eps),
      .dtype = x.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::rms_norm(args);
}

void add_rms_norm(nb::handle x_object, nb::handle residual_object, nb::handle weight_object, double eps) {
  const Tensor x(x_object, "x", Access::write), residual(residual_object, "residual", Access::write),
      weight(weight_object, "weight");
  check_rows_and_weight(x, weight);
  check_like_x(residual, x);
  const int64_t size = x.size(1);
  const kernels::AddRmsNormArgs args{
      .x = x.memory(),
      .residual = residual.memory(),
      .weight = weight.memory(),
      .num_rows = x.size(0),
      .hidden_size = size,
      .x_row_stride = x.row_stride(size),
      .residual_row_stride = residual.row_stride(size),
      .eps = static_cast<float>(eps),
      .dtype = x.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::add_rms_norm(args);
}

}  // namespace xllm::bindings

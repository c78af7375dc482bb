#include "xllm/kernels/modulation.h"

#include "launchers.h"
#include "token_rows.h"

namespace nb = nanobind;

namespace xllm::bindings {
namespace {

void expect_like(const Tensor& tensor, const Tensor& x) { expect_token_rows(tensor, x, x.size(1), x.size(2)); }

// [batch of x, features of x], rows dense: returns elements from one to the next.
int64_t vector_stride(const Tensor& vector, const Tensor& x) {
  vector.expect_dims(2);
  vector.expect_size(0, x.size(0), "the batch of x");
  vector.expect_size(1, x.size(2), "the features of x");
  vector.expect_same_dtype(x);
  vector.expect_dense_from(1);
  return vector.row_stride(x.size(2));
}

}  // namespace

void modulated_norm(nb::handle x_object, nb::handle shift_object, nb::handle scale_object, double eps,
                    nb::handle out_object) {
  const Tensor x(x_object, "x"), shift(shift_object, "shift"), scale(scale_object, "scale"),
      out(out_object, "out", Access::write);
  x.expect_dims(3);
  x.expect_float();
  expect_like(out, x);
  const kernels::ModulatedNormArgs args{
      .x = token_rows(x),
      .shift = shift.memory(),
      .scale = scale.memory(),
      .out = token_rows(out),
      .num_batch = x.size(0),
      .num_tokens = x.size(1),
      .size = x.size(2),
      .shift_stride = vector_stride(shift, x),
      .scale_stride = vector_stride(scale, x),
      .eps = static_cast<float>(eps),
      .dtype = x.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::modulated_norm(args);
}

void add_gated(nb::handle x_object, nb::handle y_object, nb::handle gate_object) {
  const Tensor x(x_object, "x", Access::write), y(y_object, "y"), gate(gate_object, "gate");
  x.expect_dims(3);
  x.expect_float();
  expect_like(y, x);
  const kernels::AddGatedArgs args{
      .x = token_rows(x),
      .y = token_rows(y),
      .gate = gate.memory(),
      .num_batch = x.size(0),
      .num_tokens = x.size(1),
      .size = x.size(2),
      .gate_stride = vector_stride(gate, x),
      .dtype = x.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::add_gated(args);
}

void gelu(nb::handle x_object, nb::handle out_object) {
  const Tensor x(x_object, "x"), out(out_object, "out", Access::write);
  x.expect_dims(3);
  x.expect_float();
  expect_like(out, x);
  const kernels::GeluArgs args{
      .x = token_rows(x),
      .out = token_rows(out),
      .num_batch = x.size(0),
      .num_tokens = x.size(1),
      .size = x.size(2),
      .dtype = x.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::gelu(args);
}

}  // namespace xllm::bindings

#include "xllm/kernels/silu_and_mul.h"

#include "launchers.h"
#include "tensor.h"

namespace nb = nanobind;

namespace xllm::bindings {

void silu_and_mul(nb::handle x_object, nb::handle out_object) {
  const Tensor x(x_object, "x"), out(out_object, "out", Access::write);
  x.expect_dims(2);
  x.expect_float();
  x.expect_dense_from(1);
  if (x.size(1) % 2 != 0) fail("x has an odd row size, expected a gate half and an up half");
  const int64_t size = x.size(1) / 2;
  out.expect_dims(2);
  out.expect_size(0, x.size(0), "the rows of x");
  out.expect_size(1, size, "half the row size of x");
  out.expect_same_dtype(x);
  out.expect_dense_from(1);
  const kernels::SiluAndMulArgs args{
      .x = x.memory(),
      .out = out.memory(),
      .num_rows = x.size(0),
      .size = size,
      .x_row_stride = x.row_stride(2 * size),
      .out_row_stride = out.row_stride(size),
      .dtype = x.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::silu_and_mul(args);
}

}  // namespace xllm::bindings

#include "xllm/kernels/native/draw.h"

#include <nanobind/stl/vector.h>

#include <vector>

#include "native.h"
#include "tensor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xllm::bindings {
namespace {

// A dense array whose first dimension has `size` entries.
class Rows : public Tensor {
 public:
  Rows(nb::handle object, const char* name, int num_dims, Scalar scalar, int64_t size, Access access = Access::read)
      : Tensor(object, name, access) {
    expect_dims(num_dims);
    expect_scalar(scalar);
    expect_size(0, size, "the number of rows");
    expect_dense_from(0);
  }
};

class Logits : public Tensor {
 public:
  explicit Logits(nb::handle object) : Tensor(object, "logits") {
    expect_dims(2);
    expect_scalar(Scalar::float32);
    expect_dense_from(0);
  }
};

void expect_length(const std::vector<double>& numbers, int64_t size, const char* name) {
  if (static_cast<int64_t>(numbers.size()) != size)
    fail(std::string(name) + " has " + std::to_string(numbers.size()) + " numbers, expected " + std::to_string(size));
}

void draw_tokens(nb::handle logits_object, nb::handle rows_object, nb::handle best_object,
                 nb::handle temperature_object, nb::handle top_k_object, const std::vector<double>& top_p,
                 nb::handle min_p_object, const std::vector<double>& uniform, nb::handle token_ids_object) {
  const Logits logits(logits_object);
  const Tensor rows(rows_object, "rows");
  rows.expect_dims(1);
  rows.expect_scalar(Scalar::int64);
  rows.expect_dense_from(0);
  const int64_t num_rows = rows.size(0);
  const Rows best(best_object, "best", 1, Scalar::float32, num_rows);
  const Rows temperature(temperature_object, "temperature", 1, Scalar::float32, num_rows);
  const Rows top_k(top_k_object, "top_k", 1, Scalar::int64, num_rows);
  const Rows min_p(min_p_object, "min_p", 1, Scalar::float32, num_rows);
  const Rows token_ids(token_ids_object, "token_ids", 1, Scalar::int32, num_rows, Access::write);
  expect_length(top_p, num_rows, "top_p");
  expect_length(uniform, num_rows, "uniform");
  const nb::gil_scoped_release no_gil;
  kernels::native::draw({.logits = logits.as<float>(),
                         .rows = rows.as<int64_t>(),
                         .best = best.as<float>(),
                         .temperature = temperature.as<float>(),
                         .top_k = top_k.as<int64_t>(),
                         .top_p = top_p.data(),
                         .min_p = min_p.as<float>(),
                         .uniform = uniform.data(),
                         .token_ids = static_cast<int32_t*>(token_ids.memory()),
                         .num_logits = logits.size(0),
                         .num_rows = num_rows,
                         .vocab_size = logits.size(1)});
}

void token_logprobs(nb::handle logits_object, nb::handle token_ids_object, nb::handle logprobs_object,
                    nb::handle top_ids_object, nb::handle top_logprobs_object) {
  const Logits logits(logits_object);
  const int64_t num_rows = logits.size(0);
  const Rows token_ids(token_ids_object, "token_ids", 1, Scalar::int32, num_rows);
  const Rows logprobs(logprobs_object, "logprobs", 1, Scalar::float32, num_rows, Access::write);
  const Rows top_ids(top_ids_object, "top_ids", 2, Scalar::int32, num_rows, Access::write);
  const Rows top_logprobs(top_logprobs_object, "top_logprobs", 2, Scalar::float32, num_rows, Access::write);
  top_logprobs.expect_size(1, top_ids.size(1), "the columns of top_ids");
  const nb::gil_scoped_release no_gil;
  kernels::native::token_logprobs({.logits = logits.as<float>(),
                                   .token_ids = token_ids.as<int32_t>(),
                                   .logprobs = static_cast<float*>(logprobs.memory()),
                                   .top_ids = static_cast<int32_t*>(top_ids.memory()),
                                   .top_logprobs = static_cast<float*>(top_logprobs.memory()),
                                   .num_rows = num_rows,
                                   .vocab_size = logits.size(1),
                                   .num_top = top_ids.size(1)});
}

}  // namespace

void add_draw(nb::module_& m) {
  m.def("draw_tokens", &draw_tokens, "logits"_a, "rows"_a, "best"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
        "uniform"_a, "token_ids"_a);
  m.def("token_logprobs", &token_logprobs, "logits"_a, "token_ids"_a, "logprobs"_a, "top_ids"_a, "top_logprobs"_a);
}

}  // namespace xllm::bindings

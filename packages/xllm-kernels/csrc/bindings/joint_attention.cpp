#include "xllm/kernels/joint_attention.h"

#include <optional>

#include "launchers.h"
#include "token_rows.h"

namespace nb = nanobind;

namespace xllm::bindings {
namespace {

// Tensors that are looked at while a call lasts.
struct Views {
  std::optional<Tensor> qkv[2], q_norm[2], k_norm[2], cos, sin, mask;
};

const void* head_norm(nb::handle object, const char* name, const Tensor& qkv, int64_t head_size,
                      std::optional<Tensor>& view) {
  if (object.is_none()) return nullptr;
  const Tensor& norm = view.emplace(object, name);
  norm.expect_dims(1);
  norm.expect_size(0, head_size, "the head size of qkv");
  norm.expect_same_dtype(qkv);
  norm.expect_dense_from(0);
  return norm.memory();
}

void read_streams(nb::handle object, int64_t num_heads, Views& views, kernels::JointAttentionArgs& args) {
  if (!nb::isinstance<nb::sequence>(object)) fail("streams must be a sequence");
  const size_t num_streams = nb::len(object);
  if (num_streams < 1 || num_streams > 2) fail("streams must be one or two");
  if (num_heads < 1) fail("num_heads must be positive");
  args.num_streams = static_cast<int64_t>(num_streams);
  for (size_t i = 0; i < num_streams; ++i) {
    const nb::object stream = object[i];
    if (!nb::isinstance<nb::tuple>(stream) || nb::len(stream) != 3) fail("streams must be tuples (qkv, q_norm, k_norm)");
    const nb::object given = stream[0], q_norm = stream[1], k_norm = stream[2];
    const Tensor& qkv = views.qkv[i].emplace(given, "qkv");
    qkv.expect_dims(3);
    qkv.expect_float();
    if (qkv.size(2) == 0 || qkv.size(2) % (3 * num_heads) != 0) fail("qkv must have three parts of num_heads heads");
    if (i > 0) expect_token_rows(qkv, *views.qkv[0], qkv.size(1), views.qkv[0]->size(2));
    args.head_size = qkv.size(2) / (3 * num_heads);
    args.streams[i] = {token_rows(qkv), qkv.size(1), head_norm(q_norm, "q_norm", qkv, args.head_size, views.q_norm[i]),
                       head_norm(k_norm, "k_norm", qkv, args.head_size, views.k_norm[i])};
  }
}

const float* angles(nb::handle object, const char* name, const kernels::JointAttentionArgs& args, int64_t num_tokens,
                    std::optional<Tensor>& view) {
  if (object.is_none()) return nullptr;
  if (args.head_size % 2 != 0) fail("heads that are rotated must have an even size");
  const Tensor& angle = view.emplace(object, name);
  angle.expect_dims(2);
  angle.expect_size(0, num_tokens, "the tokens of all streams");
  angle.expect_size(1, args.head_size / 2, "half of the head size");
  angle.expect_scalar(Scalar::float32);
  angle.expect_dense_from(0);
  return angle.as<float>();
}

}  // namespace

void joint_attention(nb::handle streams, nb::handle cos, nb::handle sin, nb::handle mask, double eps, int64_t num_heads,
                     int64_t first_query, nb::handle out_object) {
  Views views;
  kernels::JointAttentionArgs args{};
  read_streams(streams, num_heads, views, args);
  const Tensor& first = *views.qkv[0];
  const int64_t num_tokens = first.size(1) + (args.num_streams > 1 ? views.qkv[1]->size(1) : 0);
  args.cos = angles(cos, "cos", args, num_tokens, views.cos);
  args.sin = angles(sin, "sin", args, num_tokens, views.sin);
  if ((args.cos == nullptr) != (args.sin == nullptr)) fail("cos and sin come together");
  if (!mask.is_none()) {
    const Tensor& view = views.mask.emplace(mask, "mask");
    view.expect_dims(2);
    view.expect_size(0, first.size(0), "the batch");
    view.expect_size(1, num_tokens, "the tokens of all streams");
    view.expect_scalar(Scalar::int32);
    view.expect_dense_from(0);
    args.mask = view.as<int32_t>();
  }
  if (first_query < 0 || first_query > num_tokens) fail("first_query must be a token of the streams");
  const Tensor out(out_object, "out", Access::write);
  expect_token_rows(out, first, num_tokens - first_query, num_heads * args.head_size);
  args.out = token_rows(out);
  args.first_query = first_query;
  args.num_batch = first.size(0);
  args.num_heads = num_heads;
  args.eps = static_cast<float>(eps);
  args.dtype = first.dtype();
  const nb::gil_scoped_release no_gil;
  kernels::cpu::joint_attention(args);
}

}  // namespace xllm::bindings

#include "xllm/kernels/rotary_embedding.h"

#include "launchers.h"
#include "tensor.h"

namespace nb = nanobind;

namespace xllm::bindings {
namespace {

template <class T>
void check_positions(const Tensor& positions, int64_t end) {
  for (int64_t i = 0; i < positions.size(0); ++i) {
    const int64_t position = positions.as<T>()[i];
    if (position < 0 || position >= end)
      fail("positions[" + std::to_string(i) + "] is " + std::to_string(position) +
           ", outside the " + std::to_string(end) + " rows of cos_sin_cache");
  }
}

void check_heads(const Tensor& heads, int64_t num_tokens) {
  heads.expect_dims(3);
  heads.expect_size(0, num_tokens, "the number of positions");
  heads.expect_float();
  heads.expect_dense_from(1);
}

}  // namespace

void rotary_embedding(nb::handle positions_object, nb::handle query_object, nb::handle key_object,
                      nb::handle cos_sin_cache_object) {
  const Tensor positions(positions_object, "positions"), query(query_object, "query", Access::write),
      key(key_object, "key", Access::write), cache(cos_sin_cache_object, "cos_sin_cache");
  positions.expect_dims(1);
  positions.expect_dense_from(0);
  if (positions.scalar() != Scalar::int32) positions.expect_scalar(Scalar::int64);
  check_heads(query, positions.size(0));
  check_heads(key, positions.size(0));
  key.expect_same_dtype(query);
  key.expect_size(2, query.size(2), "the head size of query");
  cache.expect_dims(2);
  cache.expect_scalar(Scalar::float32);
  cache.expect_dense_from(0);
  const int64_t rotary_dim = cache.size(1);
  if (rotary_dim % 2 != 0 || rotary_dim > query.size(2))
    fail("cos_sin_cache has row size " + std::to_string(rotary_dim) +
         ", expected an even number up to the head size " + std::to_string(query.size(2)));
  const bool is_int64 = positions.scalar() == Scalar::int64;
  if (is_int64) check_positions<int64_t>(positions, cache.size(0));
  else check_positions<int32_t>(positions, cache.size(0));
  const kernels::RotaryEmbeddingArgs args{
      .positions = positions.memory(),
      .positions_are_int64 = is_int64,
      .query = query.memory(),
      .key = key.memory(),
      .cos_sin_cache = cache.as<float>(),
      .num_tokens = positions.size(0),
      .num_query_heads = query.size(1),
      .num_kv_heads = key.size(1),
      .head_dim = query.size(2),
      .rotary_dim = rotary_dim,
      .query_row_stride = query.row_stride(query.size(1) * query.size(2)),
      .key_row_stride = key.row_stride(key.size(1) * key.size(2)),
      .dtype = query.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::rotary_embedding(args);
}

}  // namespace xllm::bindings

#include "xllm/kernels/write_kv.h"

#include "launchers.h"
#include "tensor.h"

namespace nb = nanobind;

namespace xllm::bindings {
namespace {

void check_rows(const Tensor& rows, const Tensor& slot_mapping) {
  rows.expect_dims(3);
  rows.expect_size(0, slot_mapping.size(0), "the number of slots");
  rows.expect_float();
  rows.expect_dense_from(1);
}

void check_cache(const Tensor& cache, const Tensor& rows) {
  cache.expect_dims(4);
  cache.expect_size(2, rows.size(1), "the heads of key");
  cache.expect_size(3, rows.size(2), "the head size of key");
  cache.expect_same_dtype(rows);
  cache.expect_dense_from(1);
}

}  // namespace

void write_kv(nb::handle key_object, nb::handle value_object, nb::handle key_cache_object,
              nb::handle value_cache_object, nb::handle slot_mapping_object) {
  const Tensor key(key_object, "key"), value(value_object, "value"),
      key_cache(key_cache_object, "key_cache", Access::write),
      value_cache(value_cache_object, "value_cache", Access::write), slots(slot_mapping_object, "slot_mapping");
  slots.expect_dims(1);
  slots.expect_scalar(Scalar::int64);
  slots.expect_dense_from(0);
  check_rows(key, slots);
  check_rows(value, slots);
  value.expect_size(1, key.size(1), "the heads of key");
  value.expect_size(2, key.size(2), "the head size of key");
  value.expect_same_dtype(key);
  check_cache(key_cache, key);
  check_cache(value_cache, key);
  value_cache.expect_size(0, key_cache.size(0), "the blocks of key_cache");
  value_cache.expect_size(1, key_cache.size(1), "the block size of key_cache");
  const int64_t num_slots = key_cache.size(0) * key_cache.size(1);
  for (int64_t i = 0; i < slots.size(0); ++i)
    if (slots.as<int64_t>()[i] >= num_slots)
      fail("slot_mapping[" + std::to_string(i) + "] is " + std::to_string(slots.as<int64_t>()[i]) +
           ", but the cache has " + std::to_string(num_slots) + " slots");
  const int64_t row_size = key.size(1) * key.size(2);
  const kernels::WriteKvArgs args{
      .key = key.memory(),
      .value = value.memory(),
      .key_cache = key_cache.memory(),
      .value_cache = value_cache.memory(),
      .slot_mapping = slots.as<int64_t>(),
      .num_tokens = slots.size(0),
      .row_size = row_size,
      .block_size = key_cache.size(1),
      .key_row_stride = key.row_stride(row_size),
      .value_row_stride = value.row_stride(row_size),
      .key_block_stride = key_cache.row_stride(key_cache.size(1) * row_size),
      .value_block_stride = value_cache.row_stride(key_cache.size(1) * row_size),
      .dtype = key.dtype(),
  };
  const nb::gil_scoped_release no_gil;
  kernels::cpu::write_kv(args);
}

}  // namespace xllm::bindings

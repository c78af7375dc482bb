// What the launchers of CUDA kernels share: a view that must lie on the device, and None for what is left out.
#pragma once

#include <optional>

#include "tensor.h"
#include "xllm/kernels/cuda/half_type.h"

namespace xllm::bindings::cuda {

struct DeviceTensor : Tensor {
  DeviceTensor(nanobind::handle object, const char* name) : Tensor(object, name, Access::write, Device::cuda) {}
  void* pointer() const { return memory(); }
};

// Throws TypeError for a tensor of neither 16-bit type.
inline void expect_half(const DeviceTensor& tensor) {
  if (tensor.scalar() == Scalar::bfloat16 || tensor.scalar() == Scalar::float16) return;
  throw nanobind::type_error((std::string(tensor.name()) + " must be bfloat16 or float16, not " + name_of(tensor.scalar())).c_str());
}

// Which of the two it has.
inline kernels::cuda::HalfType half_type_of(const DeviceTensor& tensor) {
  expect_half(tensor);
  return tensor.scalar() == Scalar::float16 ? kernels::cuda::HalfType::float16 : kernels::cuda::HalfType::bfloat16;
}

// A dense vector of `size` elements of one type, or nullptr for None.
inline const void* optional_vector(nanobind::handle object, const char* name, int64_t size, Scalar scalar = Scalar::bfloat16) {
  if (object.is_none()) return nullptr;
  const DeviceTensor vector(object, name);
  vector.expect_scalar(scalar);
  vector.expect_dims(1);
  vector.expect_size(0, size, "the size of a row");
  vector.expect_dense_from(0);
  return vector.memory();
}

struct Workspace {
  float* memory;
  int64_t size;
  int32_t* counters;
  int64_t num_counters;
};

inline Workspace workspace_of(nanobind::handle memory, nanobind::handle counters) {
  const DeviceTensor floats(memory, "workspace"), integers(counters, "counters");
  floats.expect_scalar(Scalar::float32);
  floats.expect_dims(1);
  floats.expect_dense_from(0);
  integers.expect_scalar(Scalar::int32);
  integers.expect_dims(1);
  integers.expect_dense_from(0);
  return {static_cast<float*>(floats.memory()), floats.size(0), static_cast<int32_t*>(integers.memory()), integers.size(0)};
}

// A dense matrix.
inline void expect_matrix(const DeviceTensor& tensor, Scalar scalar = Scalar::bfloat16) {
  tensor.expect_scalar(scalar);
  tensor.expect_dims(2);
  tensor.expect_dense_from(0);
}

// A dense matrix of `rows` x `columns`, or nullptr for None.
inline void* optional_matrix(nanobind::handle object, const char* name, int64_t rows, int64_t columns,
                             Scalar scalar = Scalar::bfloat16) {
  if (object.is_none()) return nullptr;
  const DeviceTensor matrix(object, name);
  expect_matrix(matrix, scalar);
  matrix.expect_size(0, rows, "the number of rows");
  matrix.expect_size(1, columns, "the size of a row");
  return matrix.memory();
}

// Parts of the sums of squares of up to 32 rows of `width` numbers, [width / 64, 32] in float32, or nullptr for None.
inline float* squares_of(nanobind::handle object, const char* name, int64_t width) {
  if (object.is_none()) return nullptr;
  const DeviceTensor squares(object, name);
  squares.expect_scalar(Scalar::float32);
  squares.expect_dims(2);
  squares.expect_size(0, width / 64, "the pieces of 64 of a row");
  squares.expect_size(1, 32, "the rows that are normed at most");
  squares.expect_dense_from(0);
  return static_cast<float*>(squares.memory());
}

// [T, heads, head_dim], dense within a row.
inline void expect_heads(const DeviceTensor& tensor, Scalar scalar = Scalar::bfloat16) {
  tensor.expect_scalar(scalar);
  tensor.expect_dims(3);
  tensor.expect_dense_from(1);
}

// The table of angles, or nullptr for None.
inline const float* angles_of(nanobind::handle object, int64_t head_dim) {
  if (object.is_none()) return nullptr;
  const DeviceTensor table(object, "cos_sin_cache");
  table.expect_scalar(Scalar::float32);
  table.expect_dims(2);
  table.expect_size(1, head_dim, "the head size of query");
  table.expect_dense_from(0);
  return table.as<float>();
}

// One position a row, or nullptr for None.
inline const int32_t* positions_of(nanobind::handle object, int64_t batch) {
  if (object.is_none()) return nullptr;
  const DeviceTensor positions(object, "positions");
  positions.expect_scalar(Scalar::int32);
  positions.expect_dims(1);
  positions.expect_size(0, batch, "the rows of query");
  positions.expect_dense_from(0);
  return positions.as<int32_t>();
}

inline void* as_stream(uintptr_t stream) { return reinterpret_cast<void*>(stream); }

}  // namespace xllm::bindings::cuda

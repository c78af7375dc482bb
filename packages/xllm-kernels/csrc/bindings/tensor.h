// A view of a Python tensor during one call, and the checks that the launchers make. Knows nothing of any operation.
#pragma once

#include <Python.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "xllm/kernels/dtype.h"

namespace xllm::bindings {

enum class Access { read, write };
enum class Device { cpu, cuda };
// float16 on CUDA devices only.
enum class Scalar { float32, bfloat16, float16, int32, int64 };

const char* name_of(Scalar scalar);

// Borrows the memory of a tensor on one kind of device: torch's through its DLPack exchange table (no copy, no Python call),
// anything else, numpy arrays first, through the buffer protocol. The object must outlive the view.
class Tensor {
 public:
  static constexpr int kMaxDims = 4;

  // Throws TypeError for what is no tensor or has another element type than Scalar lists, ValueError for one that
  // lives elsewhere, has more than kMaxDims dimensions, or is read-only where Access::write asks for more.
  Tensor(nanobind::handle object, const char* name, Access access = Access::read, Device device = Device::cpu);
  ~Tensor();
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  const char* name() const { return name_; }
  Scalar scalar() const { return scalar_; }
  int num_dims() const { return num_dims_; }
  int64_t size(int dim) const { return sizes_[dim]; }
  // In elements. Of no meaning where size(dim) < 2.
  int64_t stride(int dim) const { return strides_[dim]; }
  void* memory() const { return memory_; }
  template <class T>
  const T* as() const {
    return static_cast<const T*>(memory_);
  }
  kernels::DType dtype() const {
    return scalar_ == Scalar::bfloat16 ? kernels::DType::bfloat16 : kernels::DType::float32;
  }

  // Each throws ValueError (TypeError for element types) that names the argument and what it should have been.
  void expect_dims(int num_dims) const;
  void expect_size(int dim, int64_t size, const char* why) const;
  void expect_scalar(Scalar scalar) const;
  void expect_float() const;
  void expect_same_dtype(const Tensor& other) const;
  // Dimensions from `first` on lie densely in row-major order.
  void expect_dense_from(int first) const;

  // Elements from one index of dimension 0 to the next; `dense` where the dimension has fewer than two.
  int64_t row_stride(int64_t dense) const { return sizes_[0] > 1 ? strides_[0] : dense; }

 private:
  bool read_exchange_table(nanobind::handle object, Device device);
  void read_buffer(nanobind::handle object, Access access);

  const char* name_;
  void* memory_ = nullptr;
  Scalar scalar_ = Scalar::float32;
  int num_dims_ = 0;
  int64_t sizes_[kMaxDims] = {};
  int64_t strides_[kMaxDims] = {};
  std::optional<Py_buffer> buffer_;
};

[[noreturn]] void fail(const std::string& message);

}  // namespace xllm::bindings

#include "tensor.h"

#include <nanobind/ndarray.h>

#include <cstring>

namespace nb = nanobind;

namespace xllm::bindings {
namespace {

// The head of DLPack's exchange table (dlpack.h 1.2, DLPackExchangeAPI), found as a capsule on the tensor's type.
struct ExchangeTable {
  uint32_t major, minor;
  ExchangeTable* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* out);  // borrows; may be null
  void* current_stream;
};

// The table of a type, or nullptr. One type with a table is remembered and one without: nearly all calls see torch's
// tensor or numpy's array, and a look-up that fails makes an exception first.
const ExchangeTable* exchange_table_of(PyObject* type) {
  static PyObject* known_type = nullptr;  // owned for good, so that its address stays its own
  static const ExchangeTable* known_table = nullptr;
  static PyObject* type_without = nullptr;  // as well
  if (type == known_type) return known_table;
  if (type == type_without) return nullptr;
  PyObject* capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    if (type_without == nullptr) type_without = Py_NewRef(type);
    return nullptr;
  }
  const auto* table = static_cast<ExchangeTable*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (table == nullptr) PyErr_Clear();
  while (table != nullptr && table->major != 1) table = table->previous;
  if (table != nullptr && table->tensor_from_object == nullptr) table = nullptr;
  if (table != nullptr && known_type == nullptr) {
    known_type = Py_NewRef(type);
    known_table = table;
  }
  Py_DECREF(capsule);
  return table;
}

std::optional<Scalar> scalar_of(nb::dlpack::dtype dtype, Device device) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return Scalar::float32;
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return Scalar::bfloat16;
  if (is(nb::dlpack::dtype_code::Float, 16) && device == Device::cuda) return Scalar::float16;
  if (is(nb::dlpack::dtype_code::Int, 32)) return Scalar::int32;
  if (is(nb::dlpack::dtype_code::Int, 64)) return Scalar::int64;
  return std::nullopt;
}

std::optional<Scalar> scalar_of(const char* format, Py_ssize_t item_size) {
  if (format == nullptr || std::strlen(format) != 1) return std::nullopt;
  if (*format == 'f') return Scalar::float32;
  if (std::strchr("ilq", *format) != nullptr) {
    if (item_size == 4) return Scalar::int32;
    if (item_size == 8) return Scalar::int64;
  }
  return std::nullopt;
}

constexpr const char* kElementTypes = " must have elements of type float32, bfloat16, int32 or int64";

}  // namespace

void fail(const std::string& message) { throw nb::value_error(message.c_str()); }

const char* name_of(Scalar scalar) {
  switch (scalar) {
    case Scalar::float32: return "float32";
    case Scalar::bfloat16: return "bfloat16";
    case Scalar::float16: return "float16";
    case Scalar::int32: return "int32";
    case Scalar::int64: return "int64";
  }
  return "";
}

Tensor::Tensor(nb::handle object, const char* name, Access access, Device device) : name_(name) {
  if (read_exchange_table(object, device)) return;
  if (device != Device::cpu) throw nb::type_error((std::string(name) + " must be a torch tensor (torch 2.11 or later)").c_str());
  read_buffer(object, access);
}

Tensor::~Tensor() {
  if (buffer_) PyBuffer_Release(&*buffer_);
}

bool Tensor::read_exchange_table(nb::handle object, Device device) {
  const bool on_cpu = device == Device::cpu;
  const char* place = on_cpu ? " must be on the CPU" : " must be on a CUDA device";
  const ExchangeTable* table = exchange_table_of(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  if (table == nullptr) return false;
  nb::dlpack::dltensor view{};
  if (table->tensor_from_object(object.ptr(), &view) != 0) {
    PyErr_Clear();  // torch's error carries a C++ stack; all its causes come to this
    fail(std::string(name_) + place + " and dense (neither meta, sparse nor quantised)");
  }
  if (view.device.device_type != (on_cpu ? nb::device::cpu::value : nb::device::cuda::value)) fail(std::string(name_) + place);
  if (view.ndim > kMaxDims) fail(std::string(name_) + " has more than 4 dimensions");
  const std::optional<Scalar> scalar = scalar_of(view.dtype, device);
  if (!scalar) throw nb::type_error((std::string(name_) + kElementTypes).c_str());
  scalar_ = *scalar;
  num_dims_ = view.ndim;
  memory_ = static_cast<char*>(view.data) + view.byte_offset;
  int64_t dense = 1;
  for (int dim = num_dims_ - 1; dim >= 0; --dim) {
    sizes_[dim] = view.shape[dim];
    strides_[dim] = view.strides != nullptr ? view.strides[dim] : dense;
    dense *= sizes_[dim];
  }
  return true;
}

void Tensor::read_buffer(nb::handle object, Access access) {
  const std::string name(name_);
  if (!PyObject_CheckBuffer(object.ptr()))
    throw nb::type_error((name + " must be a torch tensor (torch 2.11 or later) or a numpy array").c_str());
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_RECORDS_RO) != 0) throw nb::python_error();
  buffer_ = view;
  if (view.readonly != 0 && access == Access::write) fail(name + " must be writable");
  if (view.ndim > kMaxDims) fail(name + " has more than 4 dimensions");
  const std::optional<Scalar> scalar = scalar_of(view.format, view.itemsize);
  if (!scalar) throw nb::type_error((name + kElementTypes).c_str());
  scalar_ = *scalar;
  num_dims_ = view.ndim;
  memory_ = view.buf;
  for (int dim = 0; dim < num_dims_; ++dim) {
    sizes_[dim] = view.shape[dim];
    if (view.strides[dim] % view.itemsize != 0) fail(name + " has a stride that is no whole number of elements");
    strides_[dim] = view.strides[dim] / view.itemsize;
  }
}

void Tensor::expect_dims(int num_dims) const {
  if (num_dims_ != num_dims)
    fail(std::string(name_) + " must have " + std::to_string(num_dims) + " dimensions, not " +
         std::to_string(num_dims_));
}

void Tensor::expect_size(int dim, int64_t size, const char* why) const {
  if (sizes_[dim] != size)
    fail(std::string(name_) + " has size " + std::to_string(sizes_[dim]) + " in dimension " + std::to_string(dim) +
         ", expected " + std::to_string(size) + " (" + why + ")");
}

void Tensor::expect_scalar(Scalar scalar) const {
  if (scalar_ != scalar)
    throw nb::type_error(
        (std::string(name_) + " must be " + name_of(scalar) + ", not " + name_of(scalar_)).c_str());
}

void Tensor::expect_float() const {
  if (scalar_ != Scalar::float32 && scalar_ != Scalar::bfloat16)
    throw nb::type_error((std::string(name_) + " must be float32 or bfloat16, not " + name_of(scalar_)).c_str());
}

void Tensor::expect_same_dtype(const Tensor& other) const {
  if (scalar_ != other.scalar_)
    throw nb::type_error((std::string(name_) + " must be " + name_of(other.scalar_) + " as " + other.name_ +
                          " is, not " + name_of(scalar_))
                             .c_str());
}

void Tensor::expect_dense_from(int first) const {
  for (int dim = 0; dim < num_dims_; ++dim)
    if (sizes_[dim] == 0) return;
  int64_t dense = 1;
  for (int dim = num_dims_ - 1; dim >= first; --dim) {
    if (sizes_[dim] > 1 && strides_[dim] != dense)
      fail(std::string(name_) + " must be contiguous" + (first > 0 ? " within dimension 0" : ""));
    dense *= sizes_[dim];
  }
}

}  // namespace xllm::bindings

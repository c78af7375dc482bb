// Memory for weights and caches: large, aligned, on huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace xllm::kernels::native {

// Anonymous memory, zero-filled when first touched. Move only. Throws std::bad_alloc.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t num_bytes);
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Pages();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void swap(Pages& other) noexcept;

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Hands out pieces that live as long as the arena, one after the other.
class Arena {
 public:
  uint8_t* allocate(size_t num_bytes);
  int64_t num_bytes() const { return num_bytes_; }

 private:
  std::vector<Pages> chunks_;
  size_t used_ = 0;  // of the last chunk
  int64_t num_bytes_ = 0;
};

// A buffer that only grows; contents are lost when it does. 64-byte aligned.
class Buffer {
 public:
  template <class T>
  T* at_least(int64_t count) {
    const size_t num_bytes = static_cast<size_t>(count) * sizeof(T);
    if (pages_.size() < num_bytes) pages_ = Pages(num_bytes);
    return reinterpret_cast<T*>(pages_.data());
  }

 private:
  Pages pages_;
};

}  // namespace xllm::kernels::native

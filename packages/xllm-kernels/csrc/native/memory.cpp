#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace xllm::kernels::native {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{32} << 20;

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Pages::Pages(size_t num_bytes) : size_(round_up(std::max<size_t>(num_bytes, 1), kAlignment)) {
  if (size_ < num_bytes) throw std::bad_alloc();
  const size_t alignment = size_ >= kHugePage ? kHugePage : kAlignment;
  size_ = round_up(size_, alignment);
  data_ = static_cast<uint8_t*>(std::aligned_alloc(alignment, size_));
  if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Fresh pages of the system are zero already; small pieces may be anybody's old memory.
  if (alignment == kHugePage) {
    madvise(data_, size_, MADV_HUGEPAGE);  // a refusal costs speed only
    if (madvise(data_, size_, MADV_DONTNEED) == 0) return;
  }
#endif
  std::memset(data_, 0, size_);
}

Pages::~Pages() { std::free(data_); }

void Pages::swap(Pages& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

uint8_t* Arena::allocate(size_t num_bytes) {
  num_bytes = round_up(std::max<size_t>(num_bytes, 1), kAlignment);
  if (chunks_.empty() || chunks_.back().size() - used_ < num_bytes) {
    chunks_.emplace_back(std::max(num_bytes, kChunk));
    used_ = 0;
  }
  uint8_t* piece = chunks_.back().data() + used_;
  used_ += num_bytes;
  num_bytes_ += static_cast<int64_t>(num_bytes);
  return piece;
}

}  // namespace xllm::kernels::native

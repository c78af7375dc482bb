// The paged key-value cache of a decoder: K and V of every layer, [num_blocks, block_size, num_kv_heads, head_dim].
#pragma once

#include <cstdint>
#include <stdexcept>

#include "memory.h"
#include "xllm/kernels/dtype.h"

namespace xllm::kernels::native {

class KVCache {
 public:
  KVCache() = default;
  KVCache(int64_t num_layers, int64_t num_blocks, int64_t block_size, int64_t row_size, DType dtype)
      : num_blocks_(num_blocks), block_size_(block_size), dtype_(dtype) {
    const int64_t element = dtype == DType::bfloat16 ? 2 : 4;
    int64_t total = 0;
    if (__builtin_mul_overflow(num_blocks, block_size, &total) ||
        __builtin_mul_overflow(total, row_size * element, &layer_bytes_) ||
        __builtin_mul_overflow(layer_bytes_, 2 * num_layers, &total))
      throw std::invalid_argument("the cache of num_blocks x block_size tokens has too many bytes to count");
    pages_ = Pages(static_cast<size_t>(total));
  }

  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_size() const { return block_size_; }
  DType dtype() const { return dtype_; }
  uint8_t* keys(int64_t layer) const { return pages_.data() + 2 * layer * layer_bytes_; }
  uint8_t* values(int64_t layer) const { return keys(layer) + layer_bytes_; }

 private:
  Pages pages_;
  int64_t layer_bytes_ = 0;
  int64_t num_blocks_ = 0;
  int64_t block_size_ = 1;
  DType dtype_ = DType::float32;
};

}  // namespace xllm::kernels::native

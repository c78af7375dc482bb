// The paged key-value cache of a decoder. Knows nothing of which block belongs to whom.
#pragma once

#include <cstdint>

#include "memory.h"
#include "xllm/kernels/dtype.h"

namespace xllm::kernels::native {

// K and V of every layer, [num_blocks, num_kv_heads, block_size, head_dim]: what one head reads of a block lies together.
class KVCache {
 public:
  KVCache() = default;
  // Throws std::invalid_argument where the size overflows, std::bad_alloc where there is no room. head_dim is even.
  KVCache(int64_t num_layers, int64_t num_blocks, int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
          DType dtype);

  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_size() const { return block_size_; }
  DType dtype() const { return dtype_; }
  uint8_t* keys(int64_t layer) const { return pages_.data() + 2 * layer * layer_bytes_; }
  uint8_t* values(int64_t layer) const { return keys(layer) + layer_bytes_; }

  // Of one block in all layers: K, then V of each.
  int64_t block_bytes() const { return 2 * num_layers_ * layer_bytes_ / num_blocks_; }
  void read_block(int64_t block, uint8_t* out) const;
  void write_block(int64_t block, const uint8_t* bytes) const;
  void copy_block(int64_t from, int64_t to) const;

  // Stores a row [num_kv_heads, head_dim] in `slot` of `side`, the keys or values of a layer.
  void store(uint8_t* side, int64_t slot, const float* row) const;

 private:
  // Calls use(place of the block, offset in its bytes, number of bytes) for K and V of each layer.
  template <class Use>
  void for_sides(int64_t block, Use&& use) const;

  Pages pages_;
  int64_t num_layers_ = 0;
  int64_t layer_bytes_ = 0;
  int64_t num_blocks_ = 0;
  int64_t block_size_ = 1;
  int64_t num_kv_heads_ = 0;
  int64_t head_dim_ = 0;
  DType dtype_ = DType::float32;
};

}  // namespace xllm::kernels::native

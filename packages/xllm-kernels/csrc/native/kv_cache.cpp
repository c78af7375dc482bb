#include "kv_cache.h"

#include <cstring>
#include <stdexcept>

#include "kernel_table.h"

namespace xllm::kernels::native {
namespace {

int64_t element_bytes(DType dtype) { return dtype == DType::bfloat16 ? 2 : 4; }

}  // namespace

KVCache::KVCache(int64_t num_layers, int64_t num_blocks, int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                 DType dtype)
    : num_layers_(num_layers),
      num_blocks_(num_blocks),
      block_size_(block_size),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      dtype_(dtype) {
  int64_t num_slots = 0, total = 0;
  if (__builtin_mul_overflow(num_blocks, block_size, &num_slots) ||
      __builtin_mul_overflow(num_slots, num_kv_heads * head_dim * element_bytes(dtype), &layer_bytes_) ||
      __builtin_mul_overflow(layer_bytes_, 2 * num_layers, &total))
    throw std::invalid_argument("num_blocks x block_size is too large");
  pages_ = Pages(static_cast<size_t>(total));
}

template <class Use>
void KVCache::for_sides(int64_t block, Use&& use) const {
  const int64_t num_bytes = layer_bytes_ / num_blocks_;
  for (int64_t side = 0; side < 2 * num_layers_; ++side)
    use(pages_.data() + side * layer_bytes_ + block * num_bytes, side * num_bytes, static_cast<size_t>(num_bytes));
}

void KVCache::read_block(int64_t block, uint8_t* out) const {
  for_sides(block, [&](uint8_t* place, int64_t offset, size_t size) { std::memcpy(out + offset, place, size); });
}

void KVCache::write_block(int64_t block, const uint8_t* bytes) const {
  for_sides(block, [&](uint8_t* place, int64_t offset, size_t size) { std::memcpy(place, bytes + offset, size); });
}

void KVCache::copy_block(int64_t from, int64_t to) const {
  const int64_t distance = (to - from) * (layer_bytes_ / num_blocks_);
  for_sides(from, [&](uint8_t* place, int64_t, size_t size) { std::memcpy(place + distance, place, size); });
}

void KVCache::store(uint8_t* side, int64_t slot, const float* row) const {
  const cpu::ActivationKind kind =
      dtype_ == DType::bfloat16 ? cpu::ActivationKind::bfloat16 : cpu::ActivationKind::float32;
  const int64_t head_bytes = head_dim_ * element_bytes(dtype_);
  uint8_t* place = side + (slot / block_size_ * num_kv_heads_ * block_size_ + slot % block_size_) * head_bytes;
  for (int64_t head = 0; head < num_kv_heads_; ++head, row += head_dim_, place += block_size_ * head_bytes)
    cpu::kernels().prepare_row(kind, row, head_dim_, place);
}

}  // namespace xllm::kernels::native

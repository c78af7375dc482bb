#include "xllm/kernels/native/beams.h"

#include <stdexcept>

#include "kernel_table.h"
#include "memory.h"

namespace xllm::kernels::native {
namespace {

int64_t element_bytes(CacheType type) { return type == CacheType::bfloat16 ? 2 : 4; }

}  // namespace

struct BeamCache::Memory {
  Pages pages;
};

BeamCache::BeamCache(const DecoderShape& shape, int64_t num_rounds, int64_t num_rows, CacheType type)
    : num_layers_(shape.num_layers),
      num_rounds_(num_rounds),
      num_rows_(num_rows),
      row_size_(shape.num_kv_heads * shape.head_dim),
      type_(type) {
  if (num_rounds < 1 || num_rounds > 64) throw std::invalid_argument("num_rounds must be in [1, 64]");
  if (num_rows < 1 || num_rows > 1 << 20) throw std::invalid_argument("num_rows must be in [1, 2^20]");
  const int64_t num_bytes = 2 * num_layers_ * num_rounds_ * round_size() * element_bytes(type_);
  memory_ = std::make_unique<Memory>(Memory{Pages(static_cast<size_t>(num_bytes))});
}

BeamCache::~BeamCache() = default;

uint8_t* BeamCache::keys(int64_t layer) const {
  return memory_->pages.data() + 2 * layer * num_rounds_ * round_size() * element_bytes(type_);
}

uint8_t* BeamCache::values(int64_t layer) const {
  return keys(layer) + num_rounds_ * round_size() * element_bytes(type_);
}

void BeamCache::store(int64_t layer, int64_t round, int64_t row, const float* key, const float* value) const {
  const cpu::ActivationKind kind =
      type_ == CacheType::bfloat16 ? cpu::ActivationKind::bfloat16 : cpu::ActivationKind::float32;
  const int64_t place = (round * round_size() + row * row_size_) * element_bytes(type_);
  cpu::kernels().prepare_row(kind, key, row_size_, keys(layer) + place);
  cpu::kernels().prepare_row(kind, value, row_size_, values(layer) + place);
}

}  // namespace xllm::kernels::native

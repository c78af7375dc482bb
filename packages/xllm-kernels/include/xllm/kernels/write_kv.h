// Scatters new keys and values into the paged cache.
#pragma once

#include <stdint.h>

#include "xllm/kernels/dtype.h"

namespace xllm::kernels {

// key_cache[slot / block_size, slot % block_size] = key[t] for slot = slot_mapping[t]; a negative slot is skipped.
struct WriteKvArgs {
  const void* key;              // [num_tokens, row_size], tokens key_row_stride elements apart
  const void* value;            // [num_tokens, row_size], tokens value_row_stride elements apart
  void* key_cache;              // [num_blocks, block_size, row_size], blocks key_block_stride elements apart
  void* value_cache;            // the same, blocks value_block_stride elements apart
  const int64_t* slot_mapping;  // [num_tokens], each < num_blocks * block_size: the caller checks; no slot twice
  int64_t num_tokens;
  int64_t row_size;             // num_kv_heads * head_dim
  int64_t block_size;
  int64_t key_row_stride;
  int64_t value_row_stride;
  int64_t key_block_stride;
  int64_t value_block_stride;
  DType dtype;                  // of all four
};

namespace cpu {
void write_kv(const WriteKvArgs& args);
}  // namespace cpu

}  // namespace xllm::kernels

// The kernels that treat every row or token alone, spread over the pool.
#include <cstring>

#include "kernel_table.h"
#include "parallel_rows.h"

namespace xllm::kernels::cpu {

void rms_norm(const RmsNormArgs& args) {
  parallel_rows(kernels().rms_norm, args, args.num_rows, args.hidden_size);
}

void add_rms_norm(const AddRmsNormArgs& args) {
  parallel_rows(kernels().add_rms_norm, args, args.num_rows, 2 * args.hidden_size);
}

void silu_and_mul(const SiluAndMulArgs& args) {
  parallel_rows(kernels().silu_and_mul, args, args.num_rows, 4 * args.size);
}

void rotary_embedding(const RotaryEmbeddingArgs& args) {
  const int64_t row_elements = (args.num_query_heads + args.num_kv_heads) * args.rotary_dim;
  parallel_rows(kernels().rotary_embedding, args, args.num_tokens, row_elements);
}

void modulated_norm(const ModulatedNormArgs& args) {
  parallel_rows(kernels().modulated_norm, args, args.num_batch * args.num_tokens, 2 * args.size);
}

void add_gated(const AddGatedArgs& args) {
  parallel_rows(kernels().add_gated, args, args.num_batch * args.num_tokens, args.size);
}

void gelu(const GeluArgs& args) {
  parallel_rows(kernels().gelu, args, args.num_batch * args.num_tokens, 4 * args.size);
}

void write_kv(const WriteKvArgs& args) {
  const auto write_rows = [](const WriteKvArgs& a, int64_t begin, int64_t end) {
    const int64_t element = a.dtype == DType::bfloat16 ? 2 : 4;
    const size_t num_bytes = static_cast<size_t>(a.row_size * element);
    for (int64_t token = begin; token < end; ++token) {
      const int64_t slot = a.slot_mapping[token];
      if (slot < 0) continue;
      const int64_t block = slot / a.block_size, offset = slot % a.block_size * a.row_size;
      std::memcpy(static_cast<char*>(a.key_cache) + (block * a.key_block_stride + offset) * element,
                  static_cast<const char*>(a.key) + token * a.key_row_stride * element, num_bytes);
      std::memcpy(static_cast<char*>(a.value_cache) + (block * a.value_block_stride + offset) * element,
                  static_cast<const char*>(a.value) + token * a.value_row_stride * element, num_bytes);
    }
  };
  parallel_rows<WriteKvArgs>(write_rows, args, args.num_tokens, args.row_size);
}

}  // namespace xllm::kernels::cpu

// From rows of a checkpoint to the tiles of packed_matrix.h, and one row back. Knows nothing of models.
#pragma once

#include <cstdint>

#include "memory.h"
#include "packed_matrix.h"
#include "tensor_kind.h"
#include "xllm/kernels/native/decoder.h"

namespace xllm::kernels::native {

// A matrix of a checkpoint, whole rows of blocks one after the other.
struct SourceMatrix {
  const uint8_t* data;
  const TensorKind* kind;
  int64_t num_outputs;
  int64_t num_inputs;
  int64_t permuted_heads;  // as in Decoder::set_weight
};

// The checkpoint's row of an output: [heads, half, 2] there is [heads, 2, half] here.
int64_t source_row(const SourceMatrix& source, int64_t output);

// Packs on the pool into memory of `arena`.
cpu::PackedMatrix pack(const SourceMatrix& source, WeightFormat format, Arena& arena);

// Row `output` as num_inputs floats.
void unpack_row(const cpu::PackedMatrix& matrix, int64_t output, float* out);

}  // namespace xllm::kernels::native

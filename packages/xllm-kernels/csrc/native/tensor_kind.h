// The element types that tensors of a checkpoint have, and how one row of them is read. Knows nothing of tiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "packed_matrix.h"

namespace xllm::kernels::native {

// One row of a quantised tensor: value i = scales[i / group] * (quants[i] - offset) + minima[i / group].
struct QuantisedValues {
  std::vector<uint8_t> quants;  // int8 or, for uint4, [0, 15]
  std::vector<float> scales;
  std::vector<float> minima;
};

struct TensorKind {
  const char* name;
  int64_t block_values;
  int64_t block_bytes;
  cpu::PackedFormat format;  // that holds it without loss, K-quants but for rounding scales to float16
  bool has_minimum;
  int64_t group;   // values that share a scale; 0 for floats
  int64_t offset;  // 8 where quants are nibbles that stand for -8 .. 7
  // Writes block_values quants, and scales and minima of the block's groups.
  void (*read_block)(const uint8_t* block, uint8_t* quants, float* scales, float* minima);
};

// nullptr where the name is unknown.
const TensorKind* find_tensor_kind(const std::string& name);
std::string tensor_kind_names();

// num_values values (whole blocks) of one row.
void read_quants(const TensorKind& kind, const uint8_t* row, int64_t num_values, QuantisedValues& out);
void read_floats(const TensorKind& kind, const uint8_t* row, int64_t num_values, QuantisedValues& work, float* out);

float float_of_half(uint16_t bits);
uint16_t half_of_float(float value);  // to nearest even

}  // namespace xllm::kernels::native

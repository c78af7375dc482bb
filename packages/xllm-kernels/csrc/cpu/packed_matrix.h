// How weight matrices lie in memory for the products of csrc/cpu/ops. Plain data: included by code of every
// instruction set, and the layout is the same for all of them.
//
// A matrix [num_outputs, num_inputs] is cut into tiles of 16 outputs, the last one padded with zeros, and a tile lists
// its inputs in ascending order, each time for all 16 outputs:
//
//   float32   16 floats for each input
//   float16   16 halves for each input
//   bfloat16  16 x {input 2i, input 2i + 1} for each pair of inputs (an odd end is padded with zeros)
//   int8      for each group of 32 (or 16) inputs: 16 scales (float16), 16 minima (float16) if has_minimum, then
//             16 x {4 inputs} for each quad of inputs; weight = scale * q + minimum, q in [-128, 127]
//   uint4     for each group of 32 inputs: scales and minima as above, then four times 16 x {4 bytes}: the low nibbles
//             of bytes hold inputs 8i .. 8i + 3, the high ones 8i + 4 .. 8i + 7;
//             weight = scale * q + minimum if has_minimum, else scale * (q - 8), q in [0, 15]
//
// Quantised formats pad num_inputs to whole groups of 32 with weights of zero.
#pragma once

#include <stdint.h>

namespace xllm::kernels::cpu {

constexpr int64_t kTileOutputs = 16;
constexpr int64_t kBlockInputs = 32;  // activations share a scale within these

enum class PackedFormat : uint8_t { float32 = 0, float16 = 1, bfloat16 = 2, int8 = 3, uint4 = 4 };

struct PackedMatrix {
  const uint8_t* tiles;
  const float* bias;     // [num_tiles * 16], or null
  int64_t num_outputs;
  int64_t num_inputs;
  PackedFormat format;
  bool has_minimum;      // int8 and uint4
  uint8_t group_inputs;  // int8: 32 or 16; uint4: 32
};

static constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

static constexpr bool is_quantised(PackedFormat format) {
  return format == PackedFormat::int8 || format == PackedFormat::uint4;
}

static constexpr int64_t num_tiles(const PackedMatrix& matrix) {
  return (matrix.num_outputs + kTileOutputs - 1) / kTileOutputs;
}

// Bytes of one group of a quantised matrix in a tile.
static constexpr int64_t group_bytes(const PackedMatrix& matrix) {
  const int64_t weights = kTileOutputs * matrix.group_inputs;
  return kTileOutputs * (matrix.has_minimum ? 4 : 2) + (matrix.format == PackedFormat::uint4 ? weights / 2 : weights);
}

static constexpr int64_t tile_bytes(const PackedMatrix& matrix) {
  switch (matrix.format) {
    case PackedFormat::float32: return matrix.num_inputs * kTileOutputs * 4;
    case PackedFormat::float16: return matrix.num_inputs * kTileOutputs * 2;
    case PackedFormat::bfloat16: return round_up(matrix.num_inputs, 2) * kTileOutputs * 2;
    default: return round_up(matrix.num_inputs, kBlockInputs) / matrix.group_inputs * group_bytes(matrix);
  }
}

// What a product reads for one row of inputs.
enum class ActivationKind : uint8_t {
  float32,   // the row as it is
  bfloat16,  // rounded to nearest even, padded with a zero to an even number
  int8,      // QuantisedRow
};

// A row quantised in blocks of 32: value = scale * q. Pointers into one piece of memory, see quantised_row.
struct QuantisedRow {
  int8_t* values;   // [num_blocks * 32], padded with zeros
  float* scales;    // [num_blocks]
  float* sums;      // [num_blocks] scale * the sum of q
  int32_t* counts;  // [num_blocks * 2] the sum of q for each 16
};

static inline QuantisedRow quantised_row(uint8_t* memory, int64_t num_inputs) {
  const int64_t num_blocks = round_up(num_inputs, kBlockInputs) / kBlockInputs;
  QuantisedRow row;
  row.values = reinterpret_cast<int8_t*>(memory);
  row.scales = reinterpret_cast<float*>(memory + num_blocks * kBlockInputs);
  row.sums = row.scales + num_blocks;
  row.counts = reinterpret_cast<int32_t*>(row.sums + num_blocks);
  return row;
}

// Bytes from one prepared row to the next: a multiple of 64.
static constexpr int64_t activation_bytes(ActivationKind kind, int64_t num_inputs) {
  const int64_t num_blocks = round_up(num_inputs, kBlockInputs) / kBlockInputs;
  switch (kind) {
    case ActivationKind::float32: return round_up(num_inputs * 4, 64);
    case ActivationKind::bfloat16: return round_up(num_inputs * 2, 64);
    default: return round_up(num_blocks * (kBlockInputs + 16), 64);
  }
}

// Products of `num_rows` rows of activations with tiles [first_tile, end_tile): out[r, 16 t + i] for tile
// t counted from first_tile, bias included. Whole tiles are written, the padding of the last one too.
struct MultiplyArgs {
  const PackedMatrix* matrix;
  const uint8_t* activations;  // of the kind that the table names for the format, rows activation_stride bytes apart
  int64_t activation_stride;
  int64_t num_rows;
  int64_t first_tile;
  int64_t end_tile;
  float* out;                  // rows out_stride floats apart
  int64_t out_stride;
};

}  // namespace xllm::kernels::cpu

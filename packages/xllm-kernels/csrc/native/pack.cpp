#include "pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {

using cpu::kBlockInputs;
using cpu::kTileOutputs;
using cpu::PackedFormat;
using cpu::PackedMatrix;

namespace {

constexpr int64_t kQuadBytes = 4 * kTileOutputs;

uint16_t bfloat16_of_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <class T>
void put(uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

template <class T>
T get(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Quantises num_values floats (whole groups of 32) symmetrically, nibbles with their offset of 8.
void quantise(const float* x, int64_t num_values, bool to_nibbles, QuantisedValues& out) {
  out.quants.resize(static_cast<size_t>(num_values));
  out.scales.resize(static_cast<size_t>(num_values / kBlockInputs));
  for (size_t group = 0; group < out.scales.size(); ++group, x += kBlockInputs) {
    float extreme = 0.0f;
    for (int64_t i = 0; i < kBlockInputs; ++i)
      if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    // A nibble reaches to -8 on one side only, so the extreme goes there.
    const float scale = float_of_half(half_of_float(to_nibbles ? extreme / -8.0f : std::fabs(extreme) / 127.0f));
    out.scales[group] = scale;
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    uint8_t* quants = &out.quants[group * static_cast<size_t>(kBlockInputs)];
    for (int64_t i = 0; i < kBlockInputs; ++i) {
      const float steps = std::nearbyint(x[i] * inverse);
      quants[i] = static_cast<uint8_t>(static_cast<int>(to_nibbles ? std::clamp(steps + 8.0f, 0.0f, 15.0f)
                                                                   : std::clamp(steps, -127.0f, 127.0f)));
    }
  }
}

// Packs the tiles of one matrix, a row at a time.
class Packer {
 public:
  Packer(const SourceMatrix& source, const PackedMatrix& matrix)
      : source_(source),
        matrix_(matrix),
        row_bytes_(source.num_inputs / source.kind->block_values * source.kind->block_bytes),
        floats_(static_cast<size_t>(cpu::round_up(source.num_inputs + 1, kBlockInputs))) {}

  void pack_tile(int64_t tile) {
    uint8_t* memory = const_cast<uint8_t*>(matrix_.tiles) + tile * cpu::tile_bytes(matrix_);
    const int64_t first = tile * kTileOutputs;
    for (int64_t lane = 0; lane < kTileOutputs && first + lane < source_.num_outputs; ++lane) {
      const uint8_t* row = source_.data + source_row(source_, first + lane) * row_bytes_;
      if (cpu::is_quantised(matrix_.format)) pack_quants(row, memory, lane);
      else pack_floats(row, memory, lane);
    }
  }

 private:
  void pack_floats(const uint8_t* row, uint8_t* tile, int64_t lane) {
    read_floats(*source_.kind, row, source_.num_inputs, values_, floats_.data());
    const float* values = floats_.data();
    const int64_t count = source_.num_inputs;
    if (matrix_.format == PackedFormat::float32)
      for (int64_t k = 0; k < count; ++k) put(tile + (k * kTileOutputs + lane) * 4, values[k]);
    else if (matrix_.format == PackedFormat::float16)
      for (int64_t k = 0; k < count; ++k) put(tile + (k * kTileOutputs + lane) * 2, half_of_float(values[k]));
    else
      for (int64_t k = 0; k < count; k += 2) {  // an odd end finds a zero behind it
        const uint32_t high = bfloat16_of_float(values[k + 1]);
        put(tile + (k / 2 * kTileOutputs + lane) * 4, bfloat16_of_float(values[k]) | high << 16);
      }
  }

  void pack_quants(const uint8_t* row, uint8_t* tile, int64_t lane) {
    if (source_.kind->format == matrix_.format && source_.kind->group == matrix_.group_inputs &&
        source_.kind->has_minimum == matrix_.has_minimum) {
      read_quants(*source_.kind, row, source_.num_inputs, values_);
    } else {
      read_floats(*source_.kind, row, source_.num_inputs, values_, floats_.data());
      quantise(floats_.data(), cpu::round_up(source_.num_inputs, kBlockInputs), matrix_.format == PackedFormat::uint4, values_);
    }
    const int64_t group = matrix_.group_inputs, bytes = cpu::group_bytes(matrix_);
    for (size_t g = 0; g < values_.scales.size(); ++g, tile += bytes) {
      put(tile + 2 * lane, half_of_float(values_.scales[g]));
      if (matrix_.has_minimum) put(tile + 2 * (kTileOutputs + lane), half_of_float(values_.minima[g]));
      uint8_t* weights = tile + kTileOutputs * (matrix_.has_minimum ? 4 : 2) + 4 * lane;
      const uint8_t* quants = &values_.quants[g * static_cast<size_t>(group)];
      if (matrix_.format == PackedFormat::int8)
        for (int64_t quad = 0; quad < group / 4; ++quad) std::memcpy(weights + quad * kQuadBytes, quants + 4 * quad, 4);
      else
        for (int64_t pair = 0; pair < group / 8; ++pair)
          put(weights + pair * kQuadBytes, get<uint32_t>(quants + 8 * pair) | get<uint32_t>(quants + 8 * pair + 4) << 4);
    }
  }

  const SourceMatrix& source_;
  const PackedMatrix& matrix_;
  int64_t row_bytes_;
  std::vector<float> floats_;  // zeros behind num_inputs
  QuantisedValues values_;
};

struct Job {
  const SourceMatrix& source;
  const PackedMatrix& matrix;
};

void choose_format(const TensorKind& kind, WeightFormat format, PackedMatrix& matrix) {
  matrix.format = kind.format;
  matrix.has_minimum = kind.has_minimum;
  matrix.group_inputs = static_cast<uint8_t>(kind.group != 0 ? kind.group : kBlockInputs);
  if (format == WeightFormat::as_stored) return;
  matrix.has_minimum = false;
  matrix.group_inputs = kBlockInputs;
  switch (format) {
    case WeightFormat::float32: matrix.format = PackedFormat::float32; break;
    case WeightFormat::bfloat16: matrix.format = PackedFormat::bfloat16; break;
    case WeightFormat::int8: matrix.format = PackedFormat::int8; break;
    default: matrix.format = PackedFormat::uint4;
  }
}

}  // namespace

int64_t source_row(const SourceMatrix& source, int64_t output) {
  if (source.permuted_heads == 0) return output;
  const int64_t head_rows = source.num_outputs / source.permuted_heads, half = head_rows / 2;
  const int64_t in_head = output % head_rows;
  return output - in_head + in_head % half * 2 + in_head / half;
}

PackedMatrix pack(const SourceMatrix& source, WeightFormat format, Arena& arena) {
  PackedMatrix matrix{};
  matrix.num_outputs = source.num_outputs;
  matrix.num_inputs = source.num_inputs;
  choose_format(*source.kind, format, matrix);
  matrix.tiles = arena.allocate(static_cast<size_t>(cpu::num_tiles(matrix) * cpu::tile_bytes(matrix)));
  Job job{source, matrix};
  cpu::parallel_for(
      cpu::num_tiles(matrix), 4,
      [](void* context, int64_t begin, int64_t end) {
        const Job& self = *static_cast<const Job*>(context);
        Packer packer(self.source, self.matrix);
        for (int64_t tile = begin; tile < end; ++tile) packer.pack_tile(tile);
      },
      &job);
  return matrix;
}

namespace {

void unpack_floats(const PackedMatrix& matrix, const uint8_t* tile, int64_t lane, float* out) {
  for (int64_t k = 0; k < matrix.num_inputs; ++k) switch (matrix.format) {
      case PackedFormat::float32: out[k] = get<float>(tile + (k * kTileOutputs + lane) * 4); break;
      case PackedFormat::float16: out[k] = float_of_half(get<uint16_t>(tile + (k * kTileOutputs + lane) * 2)); break;
      default:
        const uint32_t bits = get<uint16_t>(tile + (k / 2 * kTileOutputs + lane) * 4 + k % 2 * 2);
        out[k] = std::bit_cast<float>(bits << 16);
    }
}

// One group's values of an output whose quads start at `weights`.
void unpack_quants(const PackedMatrix& matrix, const uint8_t* weights, int* quants) {
  if (matrix.format == PackedFormat::int8) {
    for (int i = 0; i < matrix.group_inputs; ++i)
      quants[i] = static_cast<int8_t>(weights[i / 4 * kQuadBytes + i % 4]);
    return;
  }
  const int offset = matrix.has_minimum ? 0 : 8;
  for (int i = 0; i < matrix.group_inputs; ++i) {
    const uint8_t both = weights[i / 8 * kQuadBytes + i % 4];
    quants[i] = (i % 8 < 4 ? both & 15 : both >> 4) - offset;
  }
}

}  // namespace

void unpack_row(const PackedMatrix& matrix, int64_t output, float* out) {
  const uint8_t* tile = matrix.tiles + output / kTileOutputs * cpu::tile_bytes(matrix);
  const int64_t lane = output % kTileOutputs;
  if (!cpu::is_quantised(matrix.format)) return unpack_floats(matrix, tile, lane, out);
  const int64_t bytes = cpu::group_bytes(matrix);
  for (int64_t first = 0; first < matrix.num_inputs; first += matrix.group_inputs, tile += bytes) {
    const float scale = float_of_half(get<uint16_t>(tile + 2 * lane));
    const float minimum = matrix.has_minimum ? float_of_half(get<uint16_t>(tile + 2 * (kTileOutputs + lane))) : -0.0f;
    int quants[kBlockInputs];
    unpack_quants(matrix, tile + kTileOutputs * (matrix.has_minimum ? 4 : 2) + 4 * lane, quants);
    const int64_t count = std::min<int64_t>(matrix.group_inputs, matrix.num_inputs - first);
    for (int64_t i = 0; i < count; ++i) out[first + i] = scale * static_cast<float>(quants[i]) + minimum;
  }
}

}  // namespace xllm::kernels::native

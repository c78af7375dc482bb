// Block layouts as GGUF files have them (ggml's ggml-common.h and the gguf package's quants.py).
#include "tensor_kind.h"

#include <bit>
#include <cstring>

namespace xllm::kernels::native {

using cpu::PackedFormat;

float float_of_half(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  uint32_t result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  if (magnitude >= 0x7c00u << 13) result |= 0x7f800000u;
  return std::bit_cast<float>(result | static_cast<uint32_t>(bits & 0x8000) << 16);
}

uint16_t half_of_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {                                               // subnormal: in units of 2^-24
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(__builtin_rintf(units)));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

namespace {

float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return float_of_half(bits);
}

uint32_t word_at(const uint8_t* p) {
  uint32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

void split_nibbles(const uint8_t* bytes, uint8_t* quants) {
  for (int i = 0; i < 16; ++i) quants[i] = bytes[i] & 15;
  for (int i = 0; i < 16; ++i) quants[16 + i] = bytes[i] >> 4;
}

void read_q4_0(const uint8_t* block, uint8_t* quants, float* scales, float*) {
  scales[0] = half_at(block);
  split_nibbles(block + 2, quants);
}

void read_q4_1(const uint8_t* block, uint8_t* quants, float* scales, float* minima) {
  scales[0] = half_at(block);
  minima[0] = half_at(block + 2);
  split_nibbles(block + 4, quants);
}

void add_fifth_bits(uint32_t bits, uint8_t* quants) {
  for (int i = 0; i < 32; ++i) quants[i] = static_cast<uint8_t>(quants[i] | (bits >> i & 1u) << 4);
}

void read_q5_0(const uint8_t* block, uint8_t* quants, float* scales, float*) {
  scales[0] = half_at(block);
  split_nibbles(block + 6, quants);
  add_fifth_bits(word_at(block + 2), quants);
  for (int i = 0; i < 32; ++i) quants[i] = static_cast<uint8_t>(quants[i] - 16);
}

void read_q5_1(const uint8_t* block, uint8_t* quants, float* scales, float* minima) {
  scales[0] = half_at(block);
  minima[0] = half_at(block + 2);
  split_nibbles(block + 8, quants);
  add_fifth_bits(word_at(block + 4), quants);
}

void read_q8_0(const uint8_t* block, uint8_t* quants, float* scales, float*) {
  scales[0] = half_at(block);
  std::memcpy(quants, block + 2, 32);
}

// Scales and minima of the eight groups of Q4_K and Q5_K: 6 bits each, in 12 bytes.
void read_k_scales(const uint8_t* block, float* scales, float* minima) {
  const float scale = half_at(block), minimum = half_at(block + 2);
  const uint8_t* packed = block + 4;
  for (int i = 0; i < 4; ++i) {
    scales[i] = scale * static_cast<float>(packed[i] & 63);
    minima[i] = -minimum * static_cast<float>(packed[i + 4] & 63);
    scales[i + 4] = scale * static_cast<float>((packed[i + 8] & 15) | (packed[i] >> 6) << 4);
    minima[i + 4] = -minimum * static_cast<float>((packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4);
  }
}

void split_k_nibbles(const uint8_t* bytes, uint8_t* quants) {
  for (int pair = 0; pair < 4; ++pair, bytes += 32, quants += 64)
    for (int i = 0; i < 32; ++i) {
      quants[i] = bytes[i] & 15;
      quants[32 + i] = bytes[i] >> 4;
    }
}

void read_q4_k(const uint8_t* block, uint8_t* quants, float* scales, float* minima) {
  read_k_scales(block, scales, minima);
  split_k_nibbles(block + 16, quants);
}

void read_q5_k(const uint8_t* block, uint8_t* quants, float* scales, float* minima) {
  read_k_scales(block, scales, minima);
  split_k_nibbles(block + 48, quants);
  const uint8_t* high = block + 16;
  for (int group = 0; group < 8; ++group)
    for (int i = 0; i < 32; ++i)
      quants[32 * group + i] = static_cast<uint8_t>(quants[32 * group + i] | (high[i] >> group & 1) << 4);
}

void read_q6_k(const uint8_t* block, uint8_t* quants, float* scales, float*) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const float scale = half_at(block + 208);
  for (int i = 0; i < 16; ++i) scales[i] = scale * static_cast<float>(static_cast<int8_t>(block[192 + i]));
  for (int half = 0; half < 2; ++half, low += 64, high += 32, quants += 128)
    for (int i = 0; i < 32; ++i) {
      quants[i] = static_cast<uint8_t>(((low[i] & 15) | (high[i] & 3) << 4) - 32);
      quants[32 + i] = static_cast<uint8_t>(((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4) - 32);
      quants[64 + i] = static_cast<uint8_t>(((low[i] >> 4) | (high[i] >> 4 & 3) << 4) - 32);
      quants[96 + i] = static_cast<uint8_t>(((low[32 + i] >> 4) | (high[i] >> 6 & 3) << 4) - 32);
    }
}

constexpr TensorKind kKinds[] = {
    {"F32", 1, 4, PackedFormat::float32, false, 0, 0, nullptr},
    {"F16", 1, 2, PackedFormat::float16, false, 0, 0, nullptr},
    {"BF16", 1, 2, PackedFormat::bfloat16, false, 0, 0, nullptr},
    {"Q4_0", 32, 18, PackedFormat::uint4, false, 32, 8, read_q4_0},
    {"Q4_1", 32, 20, PackedFormat::uint4, true, 32, 0, read_q4_1},
    {"Q5_0", 32, 22, PackedFormat::int8, false, 32, 0, read_q5_0},
    {"Q5_1", 32, 24, PackedFormat::int8, true, 32, 0, read_q5_1},
    {"Q8_0", 32, 34, PackedFormat::int8, false, 32, 0, read_q8_0},
    {"Q4_K", 256, 144, PackedFormat::uint4, true, 32, 0, read_q4_k},
    {"Q5_K", 256, 176, PackedFormat::int8, true, 32, 0, read_q5_k},
    {"Q6_K", 256, 210, PackedFormat::int8, false, 16, 0, read_q6_k},
};

}  // namespace

const TensorKind* find_tensor_kind(const std::string& name) {
  for (const TensorKind& kind : kKinds)
    if (name == kind.name) return &kind;
  return nullptr;
}

std::string tensor_kind_names() {
  std::string names;
  for (const TensorKind& kind : kKinds) names += (names.empty() ? "" : ", ") + std::string(kind.name);
  return names;
}

void read_quants(const TensorKind& kind, const uint8_t* row, int64_t num_values, QuantisedValues& out) {
  out.quants.resize(static_cast<size_t>(num_values));
  out.scales.resize(static_cast<size_t>(num_values / kind.group));
  out.minima.resize(out.scales.size());
  for (int64_t i = 0; i < num_values; i += kind.block_values, row += kind.block_bytes)
    kind.read_block(row, &out.quants[static_cast<size_t>(i)], &out.scales[static_cast<size_t>(i / kind.group)],
                    &out.minima[static_cast<size_t>(i / kind.group)]);
}

void read_floats(const TensorKind& kind, const uint8_t* row, int64_t num_values, QuantisedValues& work, float* out) {
  if (kind.format == PackedFormat::float32) {
    std::memcpy(out, row, static_cast<size_t>(num_values) * sizeof(float));
  } else if (kind.group == 0) {
    const bool is_half = kind.format == PackedFormat::float16;
    for (int64_t i = 0; i < num_values; ++i) {
      uint16_t bits;
      std::memcpy(&bits, row + 2 * i, sizeof bits);
      out[i] = is_half ? float_of_half(bits) : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
  } else {
    read_quants(kind, row, num_values, work);
    const bool is_signed = kind.format == PackedFormat::int8;
    for (int64_t first = 0; first < num_values; first += kind.group) {
      const size_t group = static_cast<size_t>(first / kind.group);
      const float scale = work.scales[group], minimum = kind.has_minimum ? work.minima[group] : -0.0f;
      const int offset = static_cast<int>(kind.offset);
      const uint8_t* quants = &work.quants[static_cast<size_t>(first)];
      for (int64_t i = 0; i < kind.group; ++i) {
        const int quant = is_signed ? static_cast<int8_t>(quants[i]) : quants[i];
        out[first + i] = scale * static_cast<float>(quant - offset) + minimum;
      }
    }
  }
}

}  // namespace xllm::kernels::native

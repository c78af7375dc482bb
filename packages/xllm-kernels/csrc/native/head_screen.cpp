#include "head_screen.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernel_table.h"
#include "pack.h"
#include "stage.h"
#include "tensor_kind.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {

using cpu::ActivationKind;
using cpu::kBlockInputs;
using cpu::kTileOutputs;
using cpu::PackedMatrix;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// More rows multiply so much that reading less of the head gains nothing.
constexpr int64_t kMostScreenedRows = 4;
// A step that multiplies more than this share of all tiles has gained nothing.
constexpr int64_t kWorthwhileShare = 3;
// After so many in a row steps go without a screen, after each further one for twice as long, up to 2^6 - 1.
constexpr int64_t kVainSteps = 2;
constexpr int64_t kMostVainSteps = 6;
// Rows whose mean one thread adds up: a fixed number, so that the centre is the same for every number of threads. Any
// centre keeps the bounds true, so that every eighth row is enough.
constexpr int64_t kRowsPerSum = 4096;
constexpr int64_t kCentreStep = 8;

template <class Body>
void for_items(int64_t num_items, Body&& body) {
  cpu::parallel_for(
      num_items, 1,
      [](void* context, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) (*static_cast<Body*>(context))(i);
      },
      &body);
}

void find_centre(const PackedMatrix& head, float* centre) {
  const int64_t size = head.num_inputs, num_sums = (head.num_outputs + kRowsPerSum - 1) / kRowsPerSum;
  std::vector<double> sums(static_cast<size_t>(num_sums * size));
  for_items(num_sums, [&](int64_t part) {
    std::vector<float> row(static_cast<size_t>(size));
    double* sum = &sums[static_cast<size_t>(part * size)];
    for (int64_t r = part * kRowsPerSum; r < std::min((part + 1) * kRowsPerSum, head.num_outputs);
         r += kCentreStep) {
      unpack_row(head, r, row.data());
      for (int64_t k = 0; k < size; ++k) sum[k] += static_cast<double>(row[static_cast<size_t>(k)]);
    }
  });
  for (int64_t k = 0; k < size; ++k) {
    double sum = 0.0;
    for (int64_t part = 0; part < num_sums; ++part) sum += sums[static_cast<size_t>(part * size + k)];
    const int64_t num_rows = (head.num_outputs + kCentreStep - 1) / kCentreStep;
    const float mean = static_cast<float>(sum / static_cast<double>(num_rows));
    centre[k] = std::isfinite(mean) ? mean : 0.0f;
  }
}

// The next larger float16, so that a range of steps reaches to its end.
float half_above(float value) {
  const uint16_t bits = half_of_float(value);
  return float_of_half(bits) >= value ? float_of_half(bits) : float_of_half(static_cast<uint16_t>(bits + 1));
}

// By how much of the numbers at hand a few operations on floats may be wrong.
constexpr double kFloatRounding = 0x1p-21;
// Lanes that a compiler keeps in registers.
constexpr int64_t kLanes = 8;

// One lane of a group of 32: 4-bit steps from the least value, its scale and minimum. Returns the square of the error.
float quantise_group(const float* x, uint8_t* group, int64_t lane) {
  float least[kLanes], most[kLanes], errors[kLanes] = {};
  std::copy_n(x, kLanes, least);
  std::copy_n(x, kLanes, most);
  for (int64_t i = kLanes; i < kBlockInputs; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) {
      least[l] = std::min(least[l], x[i + l]);
      most[l] = std::max(most[l], x[i + l]);
    }
  const float minimum = float_of_half(half_of_float(*std::min_element(least, least + kLanes)));
  const float range = *std::max_element(most, most + kLanes) - minimum;
  const float scale = half_above(std::max(range, 0.0f) / 15.0f);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  int32_t steps[kBlockInputs];
  for (int64_t i = 0; i < kBlockInputs; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) {
      const float wanted = std::min(std::max((x[i + l] - minimum) * inverse, 0.0f), 15.0f);
      steps[i + l] = static_cast<int32_t>(wanted + 0.5f);
      const float error = x[i + l] - (scale * static_cast<float>(steps[i + l]) + minimum);
      errors[l] += error * error;
    }
  const uint16_t halves[] = {half_of_float(scale), half_of_float(minimum)};
  std::memcpy(group + 2 * lane, &halves[0], 2);
  std::memcpy(group + 2 * (kTileOutputs + lane), &halves[1], 2);
  uint8_t* quads = group + 4 * kTileOutputs + 4 * lane;
  for (int64_t i = 0; i < kBlockInputs; i += 8)
    for (int64_t k = 0; k < 4; ++k)
      quads[i / 8 * 4 * kTileOutputs + k] = static_cast<uint8_t>(steps[i + k] | steps[i + 4 + k] << 4);
  float error = 0.0f;
  for (const float part : errors) error += part;
  return error;
}

// `row` has room for whole groups of 32; what lies behind the inputs repeats the last one, which costs nothing.
void fill_row(const PackedMatrix& head, int64_t output, HeadScreen& screen, std::vector<float>& row) {
  const int64_t size = head.num_inputs, lane = output % kTileOutputs;
  uint8_t* tile = const_cast<uint8_t*>(screen.rest.tiles) + output / kTileOutputs * cpu::tile_bytes(screen.rest);
  unpack_row(head, output, row.data());
  double length = 0.0, error = 0.0;
  for (int64_t k = 0; k < size; ++k) {
    float& value = row[static_cast<size_t>(k)];
    value -= screen.centre[k];
    length += static_cast<double>(value) * static_cast<double>(value);
  }
  std::fill(row.begin() + size, row.end(), row[static_cast<size_t>(size - 1)]);
  if (std::isfinite(static_cast<float>(length)))
    for (int64_t first = 0; first < size; first += kBlockInputs, tile += cpu::group_bytes(screen.rest))
      error += static_cast<double>(quantise_group(&row[static_cast<size_t>(first)], tile, lane));
  const bool is_finite = std::isfinite(static_cast<float>(length + error));
  length = std::sqrt(length) * (1.0 + kFloatRounding);
  error = std::sqrt(error) * (1.0 + kBlockInputs * kFloatRounding) + kFloatRounding * length;
  screen.errors[output] = is_finite ? std::nextafter(static_cast<float>(error), kInfinity) : kInfinity;
  screen.lengths[output] = is_finite ? std::nextafter(static_cast<float>(length), kInfinity) : 0.0f;
}

// What products read of a row, as numbers.
void read_prepared(ActivationKind kind, const uint8_t* prepared, int64_t size, float* out) {
  if (kind == ActivationKind::float32) {
    std::memcpy(out, prepared, static_cast<size_t>(size) * sizeof(float));
  } else if (kind == ActivationKind::bfloat16) {
    for (int64_t k = 0; k < size; ++k) {
      uint16_t high;
      std::memcpy(&high, prepared + 2 * k, 2);
      const uint32_t bits = static_cast<uint32_t>(high) << 16;
      std::memcpy(out + k, &bits, 4);
    }
  } else {
    const cpu::QuantisedRow row = cpu::quantised_row(const_cast<uint8_t*>(prepared), size);
    for (int64_t k = 0; k < size; ++k) out[k] = row.scales[k / kBlockInputs] * static_cast<float>(row.values[k]);
  }
}

// logit_i <= product with the copy_i + errors * errors_i + lengths * lengths_i + constant.
struct Bound {
  float errors, lengths, constant;
  bool is_finite() const { return std::isfinite(errors) && std::isfinite(lengths) && std::isfinite(constant); }
};

// Sums of n products in float differ from exact ones by less than `rounding` times the lengths of both factors. That is
// twice Higham's bound (Accuracy and Stability of Numerical Algorithms, 3.1), for what is rounded on the way to a sum.
Bound bound_of_row(const StageInput& input, int64_t row, const PackedMatrix& head, const HeadScreen& screen) {
  const int64_t size = input.size;
  const ActivationKind kind = kind_of(head);
  std::vector<uint8_t> prepared(static_cast<size_t>(size * 4 + 128));
  std::vector<float> exact(static_cast<size_t>(size)), coarse(exact);
  prepare_row_of(input, row, kind, prepared.data());
  read_prepared(kind, prepared.data(), size, exact.data());
  prepare_row_of(input, row, ActivationKind::int8, prepared.data());
  read_prepared(ActivationKind::int8, prepared.data(), size, coarse.data());
  double middle = 0.0, exact_square = 0.0, coarse_square = 0.0, drift_square = 0.0, centre_square = 0.0;
  for (int64_t k = 0; k < size; ++k) {
    const double x = static_cast<double>(exact[static_cast<size_t>(k)]);
    const double y = static_cast<double>(coarse[static_cast<size_t>(k)]);
    const double m = static_cast<double>(screen.centre[k]);
    middle += m * x;
    exact_square += x * x;
    coarse_square += y * y;
    drift_square += (x - y) * (x - y);
    centre_square += m * m;
  }
  const double x = std::sqrt(exact_square), y = std::sqrt(coarse_square);
  const double rounding = 2.0 * static_cast<double>(size + 64) * 0x1p-24;
  const double errors = y * (1.0 + 2.0 * rounding);
  const double lengths = std::sqrt(drift_square) + rounding * (x + y);
  const double constant = middle + rounding * (std::sqrt(centre_square) * x + std::fabs(middle));
  return {static_cast<float>(errors), static_cast<float>(lengths), static_cast<float>(constant)};
}

struct Best {
  int64_t index = -1;
  float value = 0.0f;
  // In ascending order of indices; a NaN wins, and the first of equals.
  void take(int64_t other, float other_value) {
    if (index >= 0 && (std::isnan(value) || !(other_value > value || std::isnan(other_value)))) return;
    index = other;
    value = other_value;
  }
};

// bounds[row][tile], and the tile in which the product with the copy is largest for each row.
std::vector<int64_t> bound_tiles(const StageInput& input, const HeadScreen& screen, const std::vector<Bound>& rows,
                                 StageMemory& memory, ScreenMemory& screen_memory) {
  const PackedMatrix* matrices[] = {&screen.rest};
  const int64_t num_tiles_all = cpu::num_tiles(screen.rest);
  std::vector<float> largest(rows.size() * static_cast<size_t>(num_tiles_all));
  screen_memory.bounds.resize(largest.size());
  Stage stage(input, matrices, 1, 1, memory);
  stage.run([&](int64_t, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
                const float* products) {
    for (int64_t r = 0; r < num_rows; ++r) {
      const Bound& bound = rows[static_cast<size_t>(first_row + r)];
      for (int64_t t = 0; t < num_tiles; ++t) {
        const float* x = products + (r * num_tiles + t) * kTileOutputs;
        const float* errors = screen.errors + (first_tile + t) * kTileOutputs;
        const float* lengths = screen.lengths + (first_tile + t) * kTileOutputs;
        float most = -kInfinity, most_bound = -kInfinity;
        for (int64_t i = 0; i < kTileOutputs; ++i) {
          const float above = x[i] + bound.errors * errors[i] + bound.lengths * lengths[i] + bound.constant;
          most = x[i] > most ? x[i] : most;
          most_bound = above > most_bound ? above : most_bound;
        }
        const size_t at = static_cast<size_t>((first_row + r) * num_tiles_all + first_tile + t);
        largest[at] = most;
        screen_memory.bounds[at] = most_bound;
      }
    }
  });
  std::vector<int64_t> tiles;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto begin = largest.begin() + static_cast<int64_t>(r) * num_tiles_all;
    tiles.push_back(std::max_element(begin, begin + num_tiles_all) - begin);
  }
  return tiles;
}

// The best of each row among `tiles`, or among all.
std::vector<Best> best_of_tiles(const StageInput& input, const PackedMatrix& head, const std::vector<int64_t>& tiles,
                                StageMemory& memory) {
  const PackedMatrix* matrices[] = {&head};
  const int64_t num_tiles_all = cpu::num_tiles(head);
  std::vector<Best> found(static_cast<size_t>(input.num_rows * num_tiles_all));
  Stage stage(input, matrices, 1, 1, memory, &tiles);
  stage.run([&](int64_t, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
                const float* products) {
    const int64_t first = first_tile * kTileOutputs, width = num_tiles * kTileOutputs;
    const int64_t count = std::min(width, head.num_outputs - first);
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t index = cpu::kernels().largest_index(products + r * width, count);
      Best& item = found[static_cast<size_t>((first_row + r) * num_tiles_all + first_tile)];
      item = {first + index, products[r * width + index]};
    }
  });
  std::vector<Best> best(static_cast<size_t>(input.num_rows));
  for (int64_t r = 0; r < input.num_rows; ++r)
    for (const int64_t tile : tiles) {
      const Best& candidate = found[static_cast<size_t>(r * num_tiles_all + tile)];
      if (candidate.index >= 0) best[static_cast<size_t>(r)].take(candidate.index, candidate.value);
    }
  return best;
}

}  // namespace

void ScreenMemory::note(bool has_gained) {
  num_vain = has_gained ? 0 : num_vain + 1;
  if (num_vain >= kVainSteps) num_steps_off = (int64_t{1} << std::min(num_vain, kMostVainSteps)) - 1;
}

PackedMatrix screen_matrix(const PackedMatrix& head) {
  PackedMatrix matrix = head;
  matrix.tiles = nullptr;
  matrix.bias = nullptr;
  matrix.format = cpu::PackedFormat::uint4;
  matrix.has_minimum = true;
  matrix.group_inputs = kBlockInputs;
  return matrix;
}

void fill_screen(const PackedMatrix& head, HeadScreen& screen) {
  find_centre(head, screen.centre);
  for_items(cpu::num_tiles(head), [&](int64_t tile) {
    std::vector<float> row(static_cast<size_t>(cpu::round_up(head.num_inputs, kBlockInputs)));
    for (int64_t output = tile * kTileOutputs; output < (tile + 1) * kTileOutputs; ++output) {
      if (output < head.num_outputs) {
        fill_row(head, output, screen, row);
      } else {  // padding never wins
        screen.errors[output] = -kInfinity;
        screen.lengths[output] = 0.0f;
      }
    }
  });
}

bool screened_argmax(const StageInput& input, const PackedMatrix& head, const HeadScreen& screen, int32_t* best,
                     StageMemory& memory, ScreenMemory& screen_memory) {
  if (screen.errors == nullptr || input.num_rows > kMostScreenedRows) return false;
  if (screen_memory.num_steps_off > 0) {
    --screen_memory.num_steps_off;
    return false;
  }
  std::vector<Bound> rows;
  for (int64_t r = 0; r < input.num_rows; ++r) rows.push_back(bound_of_row(input, r, head, screen));
  for (const Bound& bound : rows)
    if (!bound.is_finite() || bound.errors == 0.0f) return false;
  std::vector<int64_t>& tiles = screen_memory.tiles;
  tiles = bound_tiles(input, screen, rows, memory, screen_memory);
  std::sort(tiles.begin(), tiles.end());
  tiles.erase(std::unique(tiles.begin(), tiles.end()), tiles.end());
  const std::vector<Best> seen = best_of_tiles(input, head, tiles, memory);
  const int64_t num_tiles_all = cpu::num_tiles(head);
  tiles.clear();
  for (int64_t tile = 0; tile < num_tiles_all; ++tile)
    for (size_t r = 0; r < rows.size(); ++r)
      if (!(screen_memory.bounds[r * static_cast<size_t>(num_tiles_all) + static_cast<size_t>(tile)] < seen[r].value)) {
        tiles.push_back(tile);
        break;
      }
  const std::vector<Best> found = best_of_tiles(input, head, tiles, memory);
  for (size_t r = 0; r < found.size(); ++r)
    best[r] = std::isfinite(found[r].value) ? static_cast<int32_t>(found[r].index) : -1;
  screen_memory.note(static_cast<int64_t>(tiles.size()) * kWorthwhileShare <= num_tiles_all);
  return true;
}

}  // namespace xllm::kernels::native

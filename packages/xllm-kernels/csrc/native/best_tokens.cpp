#include "best_tokens.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace xllm::kernels::native {
namespace {

// Lanes that a compiler keeps in registers.
constexpr int64_t kLanes = 16;
// Parts that a row is cut into, for each entry that is asked for: with fewer, sorting the whole row is as fast.
constexpr int64_t kPartsPerEntry = 4;

float largest(const float* x, int64_t count) {
  float lanes[kLanes];
  std::copy_n(x, kLanes, lanes);
  for (int64_t i = kLanes; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = std::max(lanes[lane], x[i + lane]);
  return *std::max_element(lanes, lanes + kLanes);
}

// A number that is the smaller the better the entry: falling values first, then rising indices.
uint64_t rank_of(float value, int64_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // both zeros are equal
  const uint32_t falling = (bits & 0x80000000u) != 0 ? bits : ~bits & 0x7fffffffu;
  return static_cast<uint64_t>(falling) << 32 | static_cast<uint64_t>(index);
}

}  // namespace

void best_tokens(const float* row, int64_t size, int64_t width, std::vector<int32_t>& ids) {
  thread_local std::vector<uint64_t> ranks;
  ranks.clear();
  const int64_t part = size / (kPartsPerEntry * width) / kLanes * kLanes;
  if (part >= kLanes) {
    // As many parts as `width` have an entry that reaches the width-th largest of the parts' maxima.
    const int64_t num_parts = size / part;
    std::vector<float> maxima(static_cast<size_t>(num_parts));
    for (int64_t p = 0; p < num_parts; ++p) maxima[static_cast<size_t>(p)] = largest(row + p * part, part);
    std::vector<float> sorted = maxima;
    std::nth_element(sorted.begin(), sorted.begin() + (width - 1), sorted.end(), std::greater<>());
    const float bound = sorted[static_cast<size_t>(width - 1)];
    for (int64_t p = 0; p <= num_parts; ++p) {
      if (p < num_parts && maxima[static_cast<size_t>(p)] < bound) continue;
      for (int64_t i = p * part; i < std::min((p + 1) * part, size); ++i)
        if (row[i] >= bound) ranks.push_back(rank_of(row[i], i));
    }
  } else {
    for (int64_t i = 0; i < size; ++i) ranks.push_back(rank_of(row[i], i));
  }
  if (width < static_cast<int64_t>(ranks.size())) std::nth_element(ranks.begin(), ranks.begin() + width, ranks.end());
  std::sort(ranks.begin(), ranks.begin() + width);
  ids.resize(static_cast<size_t>(width));
  std::transform(ranks.begin(), ranks.begin() + width, ids.begin(),
                 [](uint64_t rank) { return static_cast<int32_t>(rank & 0xffffffffu); });
}

}  // namespace xllm::kernels::native

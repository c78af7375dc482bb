#include "product.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernel_table.h"
#include "stage.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {

using cpu::kTileOutputs;
using cpu::PackedMatrix;

namespace {

// Of a matrix that is multiplied next: what fits in a core's second-level cache beside other things.
constexpr int64_t kAnnouncedBytes = 192 << 10;

// Calls use(row, first output, number of outputs, their products) for each row of an item.
template <class Use>
void for_rows(const PackedMatrix& matrix, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
              const float* products, Use&& use) {
  const int64_t first = first_tile * kTileOutputs, width = num_tiles * kTileOutputs;
  const int64_t count = std::min(width, matrix.num_outputs - first);
  for (int64_t r = 0; r < num_rows; ++r) use(first_row + r, first, count, products + r * width);
}

}  // namespace

void announce(const PackedMatrix& matrix) {
  const int64_t num_bytes = cpu::num_tiles(matrix) * cpu::tile_bytes(matrix);
  cpu::announce(matrix.tiles, static_cast<size_t>(std::min(num_bytes, kAnnouncedBytes)));
}

void multiply_store(const StageInput& input, const std::vector<const PackedMatrix*>& matrices, float* out,
                    int64_t out_stride, StageMemory& memory) {
  Stage stage(input, matrices.data(), static_cast<int64_t>(matrices.size()), 1, memory);
  stage.run([&](int64_t m, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
                const float* products) {
    int64_t offset = 0;
    for (int64_t before = 0; before < m; ++before) offset += matrices[static_cast<size_t>(before)]->num_outputs;
    for_rows(*matrices[static_cast<size_t>(m)], first_row, num_rows, first_tile, num_tiles, products,
             [&](int64_t row, int64_t first, int64_t count, const float* x) {
               std::memcpy(out + row * out_stride + offset + first, x, static_cast<size_t>(count) * sizeof(float));
             });
  });
}

void multiply_store_rows(const StageInput& input, const PackedMatrix& matrix, float* const* out_rows,
                         StageMemory& memory) {
  const PackedMatrix* matrices[] = {&matrix};
  Stage stage(input, matrices, 1, 1, memory);
  stage.run([&](int64_t, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
                const float* products) {
    for_rows(matrix, first_row, num_rows, first_tile, num_tiles, products,
             [&](int64_t row, int64_t first, int64_t count, const float* x) {
               std::memcpy(out_rows[row] + first, x, static_cast<size_t>(count) * sizeof(float));
             });
  });
}

void multiply_add(const StageInput& input, const PackedMatrix& matrix, float* total, int64_t total_stride,
                  StageMemory& memory) {
  const PackedMatrix* matrices[] = {&matrix};
  Stage stage(input, matrices, 1, 1, memory);
  stage.run([&](int64_t, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
                const float* products) {
    for_rows(matrix, first_row, num_rows, first_tile, num_tiles, products,
             [&](int64_t row, int64_t first, int64_t count, const float* x) {
               cpu::kernels().add(total + row * total_stride + first, x, count);
             });
  });
}

void multiply_gate(const StageInput& input, const PackedMatrix& gate, const PackedMatrix& up, float* out,
                   int64_t out_stride, StageMemory& memory) {
  const PackedMatrix* matrices[] = {&gate, &up};
  Stage stage(input, matrices, 2, 2, memory);
  stage.run([&](int64_t, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
                const float* products) {
    const float* ups = products + num_rows * num_tiles * kTileOutputs;
    for_rows(gate, first_row, num_rows, first_tile, num_tiles, products,
             [&](int64_t row, int64_t first, int64_t count, const float* x) {
               cpu::kernels().gate(x, ups + (x - products), out + row * out_stride + first, count);
             });
  });
}

void multiply_argmax(const StageInput& input, const PackedMatrix& matrix, int32_t* best, StageMemory& memory) {
  struct Candidate {
    int32_t index;
    float value;
  };
  const PackedMatrix* matrices[] = {&matrix};
  Stage stage(input, matrices, 1, 1, memory);
  const int64_t num_tiles_all = cpu::num_tiles(matrix);
  // One candidate for each row and tile at which an item starts.
  std::vector<Candidate> candidates(static_cast<size_t>(input.num_rows * num_tiles_all), Candidate{-1, 0.0f});
  stage.run([&](int64_t, int64_t first_row, int64_t num_rows, int64_t first_tile, int64_t num_tiles,
                const float* products) {
    for_rows(matrix, first_row, num_rows, first_tile, num_tiles, products,
             [&](int64_t row, int64_t first, int64_t count, const float* x) {
               const int64_t index = cpu::kernels().largest_index(x, count);
               candidates[static_cast<size_t>(row * num_tiles_all + first_tile)] = {static_cast<int32_t>(first + index),
                                                                                    x[index]};
             });
  });
  for (int64_t r = 0; r < input.num_rows; ++r) {
    Candidate chosen{-1, -INFINITY};
    for (int64_t t = 0; t < num_tiles_all; ++t) {
      const Candidate& candidate = candidates[static_cast<size_t>(r * num_tiles_all + t)];
      if (candidate.index < 0) continue;
      if (chosen.index < 0 || candidate.value > chosen.value || std::isnan(candidate.value)) chosen = candidate;
      if (std::isnan(candidate.value)) break;
    }
    best[r] = std::isfinite(chosen.value) ? chosen.index : -1;
  }
}

}  // namespace xllm::kernels::native

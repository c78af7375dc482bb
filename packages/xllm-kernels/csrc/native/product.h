// One fused stage of a step: rows are normed and quantised, multiplied by one or more matrices of the same inputs, and
// the results stored, added or gated; one parallel region, or two where there are many rows. Knows nothing of layers.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "packed_matrix.h"

namespace xllm::kernels::native {

// Rows of floats, normed on the way where norm_weight is not null.
struct StageInput {
  const float* rows;  // [num_rows, size], rows row_stride floats apart
  int64_t row_stride;
  int64_t num_rows;
  int64_t size;
  const float* norm_weight = nullptr;
  float eps = 0.0f;
};

// Rows [first_row, ...) by tiles [first_tile, end_tile) of a matrix: what a thread takes at a time.
struct StageItem {
  int64_t matrix;
  int64_t first_row;
  int64_t first_tile;
  int64_t end_tile;
};

// Memory of stages, kept from step to step. Not for two stages at a time.
struct StageMemory {
  Buffer prepared[3];  // by ActivationKind
  std::vector<StageItem> items;
};

// Says that `matrix` is multiplied next, so that threads which wait for others meanwhile fetch its first tiles.
void announce(const cpu::PackedMatrix& matrix);

// out[r, :] = the products of all matrices side by side.
void multiply_store(const StageInput& input, const std::vector<const cpu::PackedMatrix*>& matrices, float* out,
                    int64_t out_stride, StageMemory& memory);
// out_rows[r][:] = the product.
void multiply_store_rows(const StageInput& input, const cpu::PackedMatrix& matrix, float* const* out_rows,
                         StageMemory& memory);
// total[r, :] += the product.
void multiply_add(const StageInput& input, const cpu::PackedMatrix& matrix, float* total, int64_t total_stride,
                  StageMemory& memory);
// out[r, :] = silu(gate product) * up product.
void multiply_gate(const StageInput& input, const cpu::PackedMatrix& gate, const cpu::PackedMatrix& up, float* out,
                   int64_t out_stride, StageMemory& memory);
// best[r] = the first output with the largest product; -1 where one is NaN or the largest is not finite.
void multiply_argmax(const StageInput& input, const cpu::PackedMatrix& matrix, int32_t* best, StageMemory& memory);

}  // namespace xllm::kernels::native

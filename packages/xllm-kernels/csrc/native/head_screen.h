// Upper bounds of logits from a small copy of the head, so that a greedy step multiplies only the rows of the head that
// may win. The winner is the one of all logits, to the bit: bounds only say where not to look. Knows nothing of how
// weights are named.
//
// With head = 1 centre^T + rest, logit i is centre . x + rest_i . x, and the copy holds `rest` in 4 bits. By Cauchy and
// Schwarz the product with the copy is wrong by at most errors_i |x|.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "packed_matrix.h"
#include "product.h"

namespace xllm::kernels::native {

struct HeadScreen {
  cpu::PackedMatrix rest{};  // uint4 with minima
  float* errors = nullptr;   // [16 * tiles] length of what a row's copy lacks; infinite where a weight is not finite
  float* lengths = nullptr;  // [16 * tiles] of the rows of `rest` before rounding
  float* centre = nullptr;   // [num_inputs]
};

// Below so many outputs a screen saves nothing.
constexpr int64_t kFewestScreenedOutputs = 4096;

// The shape of the copy of `head`, without memory.
cpu::PackedMatrix screen_matrix(const cpu::PackedMatrix& head);
// Fills `screen`, whose pointers have memory already, from `head`, on the pool.
void fill_screen(const cpu::PackedMatrix& head, HeadScreen& screen);

// What steps remember of a screen.
struct ScreenMemory {
  std::vector<float> bounds;   // [rows, tiles] of each tile's logits
  std::vector<int64_t> tiles;  // to multiply
  int64_t num_vain = 0;        // screened steps in a row that gained nothing
  int64_t num_steps_off = 0;   // steps that go without one therefore

  void note(bool has_gained);
};

// multiply_argmax by the screen, for the few rows of a small step; false: this step goes without one.
bool screened_argmax(const StageInput& input, const cpu::PackedMatrix& head, const HeadScreen& screen, int32_t* best,
                     StageMemory& memory, ScreenMemory& screen_memory);

}  // namespace xllm::kernels::native

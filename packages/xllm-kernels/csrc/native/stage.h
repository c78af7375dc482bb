// What every fused stage of a step shares: rows prepared for their products, and work items of rows and tiles that
// threads take. Knows nothing of what becomes of the products.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "memory.h"
#include "packed_matrix.h"
#include "product.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {

// What products with `matrix` read.
cpu::ActivationKind kind_of(const cpu::PackedMatrix& matrix);

// One row of `input` in the form `kind`, normed before where the input says so; to memory of activation_bytes(...).
void prepare_row_of(const StageInput& input, int64_t row, cpu::ActivationKind kind, uint8_t* out);

class Stage {
 public:
  // An item multiplies `together` matrices of the list: one, or gate and up. `tiles` limits the products to some tiles
  // of a single matrix, in ascending order.
  Stage(const StageInput& input, const cpu::PackedMatrix* const* matrices, int64_t num_matrices, int64_t together,
        StageMemory& memory, const std::vector<int64_t>* tiles = nullptr);

  // Calls consume(matrix index, first row, number of rows, first tile, number of tiles, products) for each item;
  // products are [together][rows][16 * tiles].
  template <class Consume>
  void run(Consume&& consume) {
    struct Context {
      Stage& stage;
      Consume& consume;
    } context{*this, consume};
    cpu::parallel_for(
        static_cast<int64_t>(items_.size()), 1,
        [](void* pointer, int64_t begin, int64_t end) {
          Context& self = *static_cast<Context*>(pointer);
          for (int64_t i = begin; i < end; ++i) {
            const StageItem& item = self.stage.items_[static_cast<size_t>(i)];
            const int64_t num_rows = self.stage.num_rows_of(item);
            const float* products = self.stage.multiply(item, num_rows);
            self.consume(item.matrix, item.first_row, num_rows, item.first_tile, item.end_tile - item.first_tile,
                         products);
          }
        },
        &context);
  }

 private:
  void plan_rows();
  void plan_tiles();
  void plan_listed_tiles(const std::vector<int64_t>& tiles);
  void prepare_shared();
  const uint8_t* activations_of(cpu::ActivationKind kind, int64_t& stride);
  int64_t num_rows_of(const StageItem& item) const;
  // The item's products in memory of the calling thread.
  const float* multiply(const StageItem& item, int64_t num_rows);

  const StageInput& input_;
  const cpu::PackedMatrix* const* matrices_;
  int64_t num_matrices_;
  int64_t together_;
  StageMemory& memory_;
  std::vector<StageItem>& items_;
  uint64_t id_;
  bool is_needed_[3] = {};  // by ActivationKind
  bool is_shared_;
  uint8_t* prepared_[3] = {};
  int64_t rows_per_item_ = 0;
};

}  // namespace xllm::kernels::native

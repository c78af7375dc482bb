#include "product.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernel_table.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::native {

using cpu::ActivationKind;
using cpu::kTileOutputs;
using cpu::PackedFormat;
using cpu::PackedMatrix;

namespace {

// Up to here every thread prepares all rows for itself: cheaper than fetching them from another core's cache.
constexpr int64_t kRowsPreparedByAll = 8;
// Tiles of a work item, and items that a thread should have to choose from.
constexpr int64_t kTilesPerItem = 4;
constexpr int64_t kItemsPerThread = 8;
// Prepared rows of a work item stay within a core's second-level cache.
constexpr int64_t kBytesOfRows = 192 << 10;
constexpr int64_t kFewestRows = 48;

// Of a matrix that is multiplied next: what fits in a core's second-level cache beside other things.
constexpr int64_t kAnnouncedBytes = 192 << 10;

ActivationKind kind_of(const PackedMatrix& matrix) {
  if (cpu::is_quantised(matrix.format)) return ActivationKind::int8;
  return matrix.format == PackedFormat::bfloat16 ? cpu::kernels().bfloat16_activations : ActivationKind::float32;
}

// Whether products can read the rows where they lie.
bool is_ready(const StageInput& input, ActivationKind kind) {
  return kind == ActivationKind::float32 && input.norm_weight == nullptr;
}

// Memory of a thread: prepared rows of the stage that it last took part in, and an item's products.
struct ThreadMemory {
  uint64_t stage = 0;
  Buffer prepared[3];
  Buffer normed;
  Buffer products;
};

ThreadMemory& thread_memory() {
  thread_local ThreadMemory memory;
  return memory;
}

void prepare_rows(const StageInput& input, const bool (&is_needed)[3], int64_t begin, int64_t end,
                  uint8_t* const (&prepared)[3]) {
  ThreadMemory& memory = thread_memory();
  for (int64_t r = begin; r < end; ++r) {
    const float* row = input.rows + r * input.row_stride;
    if (input.norm_weight != nullptr) {
      float* normed = memory.normed.at_least<float>(input.size);
      cpu::kernels().rms_norm({.x = row,
                               .weight = input.norm_weight,
                               .out = normed,
                               .num_rows = 1,
                               .hidden_size = input.size,
                               .x_row_stride = input.size,
                               .out_row_stride = input.size,
                               .eps = input.eps,
                               .dtype = DType::float32},
                              0, 1);
      row = normed;
    }
    for (int k = 0; k < 3; ++k) {
      const ActivationKind kind = static_cast<ActivationKind>(k);
      if (is_needed[k])
        cpu::kernels().prepare_row(kind, row, input.size, prepared[k] + r * cpu::activation_bytes(kind, input.size));
    }
  }
}

// The parts of every stage that do not depend on what becomes of the products.
class Stage {
 public:
  // `groups` lists matrices whose products an item needs together: one, or gate and up.
  Stage(const StageInput& input, const PackedMatrix* const* matrices, int64_t num_matrices, int64_t together,
        StageMemory& memory)
      : input_(input), matrices_(matrices), num_matrices_(num_matrices), together_(together), memory_(memory) {
    static std::atomic<uint64_t> num_stages{0};
    id_ = ++num_stages;
    for (int64_t m = 0; m < num_matrices; ++m) {
      const ActivationKind kind = kind_of(*matrices[m]);
      if (!is_ready(input, kind)) is_needed_[static_cast<int>(kind)] = true;
    }
    is_shared_ = input.num_rows > kRowsPreparedByAll;
    plan_items();
    if (is_shared_ && (is_needed_[0] || is_needed_[1] || is_needed_[2])) prepare_shared();
  }

  int64_t num_items() const { return num_items_; }

  // Calls consume(matrix index, first row, number of rows, first tile, number of tiles, products) for each item;
  // products are [together][rows][16 * tiles].
  template <class Consume>
  void run(Consume&& consume) {
    struct Context {
      Stage& stage;
      Consume& consume;
    } context{*this, consume};
    cpu::parallel_for(
        num_items_, 1,
        [](void* pointer, int64_t begin, int64_t end) {
          Context& self = *static_cast<Context*>(pointer);
          for (int64_t item = begin; item < end; ++item) self.stage.run_item(item, self.consume);
        },
        &context);
  }

 private:
  void plan_items() {
    int64_t num_tiles = 0;
    for (int64_t m = 0; m < num_matrices_; m += together_) num_tiles += cpu::num_tiles(*matrices_[m]);
    const int64_t row_bytes = cpu::activation_bytes(kind_of(*matrices_[0]), input_.size);
    const int64_t most = std::max(kBytesOfRows / row_bytes, kFewestRows);
    const int64_t num_row_blocks = std::max<int64_t>((input_.num_rows + most - 1) / most, 1);
    rows_per_item_ = (input_.num_rows + num_row_blocks - 1) / num_row_blocks;
    const int64_t wanted = kItemsPerThread * cpu::get_num_threads();
    tiles_per_item_ = std::clamp<int64_t>(num_tiles * num_row_blocks / wanted, 1, kTilesPerItem);
    items_per_row_block_ = 0;
    for (int64_t m = 0; m < num_matrices_; m += together_)
      items_per_row_block_ += (cpu::num_tiles(*matrices_[m]) + tiles_per_item_ - 1) / tiles_per_item_;
    num_items_ = items_per_row_block_ * num_row_blocks;
  }

  void prepare_shared() {
    for (int k = 0; k < 3; ++k)
      if (is_needed_[k])
        prepared_[k] = memory_.prepared[k].at_least<uint8_t>(
            input_.num_rows * cpu::activation_bytes(static_cast<ActivationKind>(k), input_.size));
    const int64_t grain = std::max<int64_t>(input_.num_rows / (4 * cpu::get_num_threads()), 1);
    cpu::parallel_for(
        input_.num_rows, grain,
        [](void* pointer, int64_t begin, int64_t end) {
          Stage& self = *static_cast<Stage*>(pointer);
          prepare_rows(self.input_, self.is_needed_, begin, end, self.prepared_);
        },
        this);
  }

  const uint8_t* activations_of(ActivationKind kind, int64_t& stride) {
    const int k = static_cast<int>(kind);
    if (!is_needed_[k]) {
      stride = input_.row_stride * static_cast<int64_t>(sizeof(float));
      return reinterpret_cast<const uint8_t*>(input_.rows);
    }
    stride = cpu::activation_bytes(kind, input_.size);
    if (is_shared_) return prepared_[k];
    ThreadMemory& memory = thread_memory();
    uint8_t* prepared[3] = {};
    for (int i = 0; i < 3; ++i)
      if (is_needed_[i])
        prepared[i] = memory.prepared[i].at_least<uint8_t>(
            input_.num_rows * cpu::activation_bytes(static_cast<ActivationKind>(i), input_.size));
    if (memory.stage != id_) prepare_rows(input_, is_needed_, 0, input_.num_rows, prepared);
    memory.stage = id_;
    return prepared[k];
  }

  template <class Consume>
  void run_item(int64_t item, Consume& consume) {
    const int64_t first_row = item / items_per_row_block_ * rows_per_item_;
    const int64_t num_rows = std::min(rows_per_item_, input_.num_rows - first_row);
    int64_t index = item % items_per_row_block_, m = 0;
    for (;; m += together_) {
      const int64_t items = (cpu::num_tiles(*matrices_[m]) + tiles_per_item_ - 1) / tiles_per_item_;
      if (index < items) break;
      index -= items;
    }
    const int64_t first_tile = index * tiles_per_item_;
    const int64_t end_tile = std::min(first_tile + tiles_per_item_, cpu::num_tiles(*matrices_[m]));
    const int64_t width = (end_tile - first_tile) * kTileOutputs;
    float* products = thread_memory().products.at_least<float>(together_ * num_rows * width);
    for (int64_t i = 0; i < together_; ++i) {
      int64_t stride = 0;
      const uint8_t* activations = activations_of(kind_of(*matrices_[m + i]), stride);
      cpu::kernels().multiply({.matrix = matrices_[m + i],
                               .activations = activations + first_row * stride,
                               .activation_stride = stride,
                               .num_rows = num_rows,
                               .first_tile = first_tile,
                               .end_tile = end_tile,
                               .out = products + i * num_rows * width,
                               .out_stride = width});
    }
    consume(m, first_row, num_rows, first_tile, end_tile - first_tile, products);
  }

  const StageInput& input_;
  const PackedMatrix* const* matrices_;
  int64_t num_matrices_;
  int64_t together_;
  StageMemory& memory_;
  uint64_t id_;
  bool is_needed_[3] = {};
  bool is_shared_;
  uint8_t* prepared_[3] = {};
  int64_t rows_per_item_ = 0;
  int64_t tiles_per_item_ = 0;
  int64_t items_per_row_block_ = 0;
  int64_t num_items_ = 0;
};

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

#include "stage.h"

#include <algorithm>
#include <atomic>

namespace xllm::kernels::native {

using cpu::ActivationKind;
using cpu::kTileOutputs;
using cpu::PackedFormat;
using cpu::PackedMatrix;

namespace {

// Up to here every thread prepares all rows for itself: cheaper than fetching them from another core's cache.
constexpr int64_t kRowsPreparedByAll = 8;
// Work items get smaller, so that threads switch between distant weights rarely and still end together: each takes this
// share of what is left for one thread, within bounds. Fewer rows leave room for more tiles.
constexpr int64_t kShareOfRest = 1;
constexpr int64_t kFewestTiles = 2;
constexpr int64_t kMostTiles = 64;
constexpr int64_t kProductsOfItem = 4096;
// Prepared rows of a work item stay within a core's second-level cache.
constexpr int64_t kBytesOfRows = 192 << 10;
constexpr int64_t kFewestRows = 48;
// Listed tiles that lie side by side and a thread takes together.
constexpr int64_t kListedTiles = 4;

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

// Row `row` of the input, behind its norm where it has one: where it lies, or in memory of the thread.
const float* normed_row(const StageInput& input, int64_t r) {
  const float* row = input.rows + r * input.row_stride;
  if (input.norm_weight == nullptr) return row;
  float* normed = thread_memory().normed.at_least<float>(input.size);
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
  return normed;
}

void prepare_rows(const StageInput& input, const bool (&is_needed)[3], int64_t begin, int64_t end,
                  uint8_t* const (&prepared)[3]) {
  for (int64_t r = begin; r < end; ++r) {
    const float* row = normed_row(input, r);
    for (int k = 0; k < 3; ++k) {
      const ActivationKind kind = static_cast<ActivationKind>(k);
      if (is_needed[k])
        cpu::kernels().prepare_row(kind, row, input.size, prepared[k] + r * cpu::activation_bytes(kind, input.size));
    }
  }
}

}  // namespace

ActivationKind kind_of(const PackedMatrix& matrix) {
  if (cpu::is_quantised(matrix.format)) return ActivationKind::int8;
  return matrix.format == PackedFormat::bfloat16 ? cpu::kernels().bfloat16_activations : ActivationKind::float32;
}

void prepare_row_of(const StageInput& input, int64_t row, ActivationKind kind, uint8_t* out) {
  cpu::kernels().prepare_row(kind, normed_row(input, row), input.size, out);
}

Stage::Stage(const StageInput& input, const PackedMatrix* const* matrices, int64_t num_matrices, int64_t together,
             StageMemory& memory, const std::vector<int64_t>* tiles)
    : input_(input),
      matrices_(matrices),
      num_matrices_(num_matrices),
      together_(together),
      memory_(memory),
      items_(memory.items) {
  static std::atomic<uint64_t> num_stages{0};
  id_ = ++num_stages;
  for (int64_t m = 0; m < num_matrices; ++m) {
    const ActivationKind kind = kind_of(*matrices[m]);
    if (!is_ready(input, kind)) is_needed_[static_cast<int>(kind)] = true;
  }
  is_shared_ = input.num_rows > kRowsPreparedByAll;
  plan_rows();
  items_.clear();
  if (tiles != nullptr) plan_listed_tiles(*tiles);
  else plan_tiles();
  if (is_shared_ && (is_needed_[0] || is_needed_[1] || is_needed_[2])) prepare_shared();
}

void Stage::plan_rows() {
  const int64_t row_bytes = cpu::activation_bytes(kind_of(*matrices_[0]), input_.size);
  const int64_t most = std::max(kBytesOfRows / row_bytes, kFewestRows);
  const int64_t num_row_blocks = std::max<int64_t>((input_.num_rows + most - 1) / most, 1);
  rows_per_item_ = std::max<int64_t>((input_.num_rows + num_row_blocks - 1) / num_row_blocks, 1);
}

void Stage::plan_tiles() {
  const int64_t most_tiles =
      std::clamp<int64_t>(kProductsOfItem / (rows_per_item_ * kTileOutputs), 2 * kFewestTiles, kMostTiles);
  int64_t left = 0;
  for (int64_t m = 0; m < num_matrices_; m += together_) left += cpu::num_tiles(*matrices_[m]);
  left *= (input_.num_rows + rows_per_item_ - 1) / rows_per_item_;
  for (int64_t first_row = 0; first_row < input_.num_rows; first_row += rows_per_item_)
    for (int64_t m = 0; m < num_matrices_; m += together_)
      for (int64_t tile = 0, end = cpu::num_tiles(*matrices_[m]); tile < end;) {
        const int64_t share = left / (kShareOfRest * cpu::get_num_threads());
        const int64_t count = std::min(std::clamp(share, kFewestTiles, most_tiles), end - tile);
        items_.push_back({m, first_row, tile, tile + count});
        tile += count;
        left -= count;
      }
}

void Stage::plan_listed_tiles(const std::vector<int64_t>& tiles) {
  for (int64_t first_row = 0; first_row < input_.num_rows; first_row += rows_per_item_)
    for (size_t i = 0; i < tiles.size();) {
      const int64_t first = tiles[i];
      int64_t count = 1;
      for (++i; i < tiles.size() && tiles[i] == first + count && count < kListedTiles; ++i) ++count;
      items_.push_back({0, first_row, first, first + count});
    }
}

void Stage::prepare_shared() {
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

const uint8_t* Stage::activations_of(ActivationKind kind, int64_t& stride) {
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

int64_t Stage::num_rows_of(const StageItem& item) const {
  return std::min(rows_per_item_, input_.num_rows - item.first_row);
}

const float* Stage::multiply(const StageItem& item, int64_t num_rows) {
  const int64_t width = (item.end_tile - item.first_tile) * kTileOutputs;
  float* products = thread_memory().products.at_least<float>(together_ * num_rows * width);
  for (int64_t i = 0; i < together_; ++i) {
    const PackedMatrix& matrix = *matrices_[item.matrix + i];
    int64_t stride = 0;
    const uint8_t* activations = activations_of(kind_of(matrix), stride);
    cpu::kernels().multiply({.matrix = &matrix,
                             .activations = activations + item.first_row * stride,
                             .activation_stride = stride,
                             .num_rows = num_rows,
                             .first_tile = item.first_tile,
                             .end_tile = item.end_tile,
                             .out = products + i * num_rows * width,
                             .out_stride = width});
  }
  return products;
}

}  // namespace xllm::kernels::native

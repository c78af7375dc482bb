// Products of many rows, cut into pieces whose rows and tiles stay in a core's second-level cache.
#include "xllm/kernels/dense_linear.h"

#include <algorithm>

#include "kernel_table.h"
#include "packed_matrix.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {
namespace {

constexpr int64_t kBytesOfRows = 192 << 10;
constexpr int64_t kFewestRows = 48;
constexpr int64_t kTilesPerItem = 8;

struct Call {
  const DenseLinearArgs& args;
  PackedMatrix matrix;
  int64_t rows_per_item;
  int64_t items_per_row_block;
};

void run_items(void* context, int64_t begin, int64_t end) {
  const Call& call = *static_cast<const Call*>(context);
  const DenseLinearArgs& args = call.args;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first_row = item / call.items_per_row_block * call.rows_per_item;
    const int64_t first_tile = item % call.items_per_row_block * kTilesPerItem;
    kernels().multiply({
        .matrix = &call.matrix,
        .activations = reinterpret_cast<const uint8_t*>(args.x + first_row * args.x_row_stride),
        .activation_stride = args.x_row_stride * static_cast<int64_t>(sizeof(float)),
        .num_rows = std::min(call.rows_per_item, args.num_rows - first_row),
        .first_tile = first_tile,
        .end_tile = std::min(first_tile + kTilesPerItem, num_tiles(call.matrix)),
        .out = args.out + first_row * args.out_row_stride + first_tile * kTileOutputs,
        .out_stride = args.out_row_stride,
    });
  }
}

}  // namespace

void dense_linear(const DenseLinearArgs& args) {
  if (args.num_rows == 0 || args.num_outputs == 0) return;
  Call call{args,
            {.tiles = reinterpret_cast<const uint8_t*>(args.tiles),
             .bias = args.bias,
             .num_outputs = args.num_outputs,
             .num_inputs = args.num_inputs,
             .format = PackedFormat::float32,
             .has_minimum = false,
             .group_inputs = 0},
            0,
            0};
  const int64_t row_bytes = std::max<int64_t>(args.num_inputs, 1) * static_cast<int64_t>(sizeof(float));
  const int64_t most = std::max(kBytesOfRows / row_bytes, kFewestRows);
  const int64_t num_row_blocks = (args.num_rows + most - 1) / most;
  call.rows_per_item = (args.num_rows + num_row_blocks - 1) / num_row_blocks;
  call.items_per_row_block = (num_tiles(call.matrix) + kTilesPerItem - 1) / kTilesPerItem;
  const int64_t num_blocks = (args.num_rows + call.rows_per_item - 1) / call.rows_per_item;
  parallel_for(num_blocks * call.items_per_row_block, 1, run_items, &call);
}

}  // namespace xllm::kernels::cpu

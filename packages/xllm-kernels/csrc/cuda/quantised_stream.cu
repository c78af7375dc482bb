// How a product of quantised_stream is cut into tiles and slices, and its launch.
#include <algorithm>
#include <stdexcept>

#include "launch.h"
#include "quantised_plan.h"
#include "tensor_map.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kBoxes = 8;                    // of a stage, side by side
constexpr int kSharedBytes = 112 * 1024;     // half a multiprocessor, so that the next kernel's ring can fill while this one ends
constexpr double kBytesPerNanosecond = 31.;  // that one multiprocessor of an H200 gets
constexpr double kMeetingNanoseconds = 1500., kTileNanoseconds = 150.;

struct Cut {
  int row_tiles = 0;
  int splits = 1;
  int blocks_per_processor = 1;
};

int num_processors() {
  static const int found = [] {
    int device = 0, count = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return count;
  }();
  return found;
}

int num_boxes(const QuantisedStreamArgs& args) {
  const int columns = args.kind == WeightKind::int4 ? 256 : 128;
  return (args.k + columns - 1) / columns;
}

bool fits(int64_t n, int row_tiles, Epilogue epilogue) {
  return n % (16 * row_tiles) == 0 && (epilogue != Epilogue::silu_and_mul || n / 2 % (8 * row_tiles) == 0);
}

int x_stride(const QuantisedStreamArgs& args, int splits) {
  return num_boxes(args) / splits * (args.kind == WeightKind::int4 ? 512 : 256) + 64;
}

// Of all but the ring.
int fixed_bytes(const QuantisedStreamArgs& args, const Cut& cut, int columns) {
  const int partial = kBoxes * 16 * cut.row_tiles * (columns + 1) * 4 + columns * 4;
  return 1024 + partial + 2 * kQuantisedMaxStages * 8 + args.batch * x_stride(args, cut.splits);
}

int num_stages(const QuantisedStreamArgs& args, const Cut& cut, int columns) {
  const int left = kSharedBytes / cut.blocks_per_processor - fixed_bytes(args, cut, columns);
  return std::min(kQuantisedMaxStages, left / quantised_stage_bytes(cut.row_tiles));
}

// Nanoseconds by the longest block's share of the weights, and what slices cost where they meet.
double estimate(const QuantisedStreamArgs& args, const Cut& cut, int columns) {
  const int rows = 16 * cut.row_tiles, units = args.n / rows * cut.splits, processors = num_processors();
  const int shares = (units + processors - 1) / processors;
  const double unit_bytes = rows * 128. * num_boxes(args) / cut.splits;
  double time = shares * (unit_bytes / kBytesPerNanosecond + kTileNanoseconds);
  if (cut.splits > 1) time += kMeetingNanoseconds + 8. * args.n * args.batch * cut.splits / (kBytesPerNanosecond * processors);
  return num_stages(args, cut, columns) < 2 ? time * 1e3 : time;
}

Cut choose(const QuantisedStreamArgs& args, int columns) {
  if (args.configuration > 0)
    return {args.configuration / 100, 1 << args.configuration / 10 % 10, std::max(1, args.configuration % 10)};
  Cut best;
  double least = 0;
  for (const int row_tiles : {2, 1}) {
    if (!fits(args.n, row_tiles, args.epilogue)) continue;
    for (int splits = 1; splits <= 16; splits *= 2) {
      const Cut cut{row_tiles, splits, 1};
      if (num_boxes(args) % (splits * (splits > 1 ? kBoxes : 1)) != 0) continue;
      const double time = estimate(args, cut, columns);
      if (best.row_tiles == 0 || time < least) best = cut, least = time;
    }
  }
  return best;
}

}  // namespace

const char* why_no_quantised_stream(int64_t n, int64_t k, Epilogue epilogue) {
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 30) || k > (int64_t{1} << 15)) return "the sizes are out of range";
  if (!fits(n, 1, epilogue) || k % 128 != 0) return "n must be a multiple of 16 and k of 128";
  return nullptr;
}

void quantised_stream(const QuantisedStreamArgs& args, void* stream) {
  if (args.batch < 1 || args.batch > kQuantisedStreamMaxBatch)
    throw std::invalid_argument("quantised_stream takes 1 to " + std::to_string(kQuantisedStreamMaxBatch) + " rows");
  if (const char* reason = why_no_quantised_stream(args.n, args.k, args.epilogue)) throw std::invalid_argument(reason);
  const int column_tiles = args.batch <= 8 ? 1 : args.batch <= 16 ? 2 : 4, columns = 8 * column_tiles;
  const Cut cut = choose(args, columns);
  const int rows = 16 * cut.row_tiles, tiles = args.n / rows, units = tiles * cut.splits, boxes = num_boxes(args);
  const int stages = num_stages(args, cut, columns), slice_boxes = boxes / cut.splits;
  if (cut.row_tiles < 1 || cut.row_tiles > 2 || !fits(args.n, cut.row_tiles, args.epilogue) || stages < 1)
    throw std::invalid_argument("quantised_stream has no configuration for these sizes");
  if (cut.splits > 1 && (args.workspace_size < int64_t{units} * rows * columns || args.num_counters < tiles))
    throw std::invalid_argument("the workspace of quantised_stream is too small");
  const bool is_gated = args.epilogue == Epilogue::silu_and_mul;
  const QuantisedLaunch launch{
      .parameters = {.weight = describe_planes(args.weight, args.n, int64_t{boxes} * 128, is_gated ? rows / 2 : rows, kBoxes),
                     .x = args.x,
                     .norm_weight = args.norm_weight,
                     .bias = args.bias,
                     .out = args.out,
                     .row_scales = args.row_scales,
                     .block_scales = args.block_scales,
                     .groups = args.groups,
                     .workspace = args.workspace,
                     .counters = args.counters,
                     .batch = args.batch,
                     .n = args.n,
                     .k = args.k,
                     .splits = cut.splits,
                     .num_boxes = boxes,
                     .slice_boxes = slice_boxes,
                     .steps = (slice_boxes + kBoxes - 1) / kBoxes,
                     .stages = stages,
                     .x_stride = x_stride(args, cut.splits),
                     .eps = args.eps,
                     .is_gated = is_gated,
                     .adds = args.epilogue == Epilogue::add_residual},
      .row_tiles = cut.row_tiles,
      .column_tiles = column_tiles,
      .blocks = std::min(num_processors() * cut.blocks_per_processor, units),
      .shared_bytes = fixed_bytes(args, cut, columns) + stages * quantised_stage_bytes(cut.row_tiles),
      .type = args.type,
  };
  switch (args.kind) {
    case WeightKind::float8: return launch_float8_stream(launch, stream);
    case WeightKind::int8: return launch_int8_stream(launch, stream);
    case WeightKind::int4: return launch_int4_stream(launch, stream);
  }
}

}  // namespace xllm::kernels::cuda

// How a product of quantised_stream is cut into tiles and slices, and its launch.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "launch.h"
#include "quantised_plan.h"
#include "tensor_map.h"

namespace xllm::kernels::cuda {
namespace {

// Half a multiprocessor, so that the next kernel's ring can fill while this one ends; more rows need all of it.
constexpr int kSharedBytes = 112 * 1024, kAllSharedBytes = 224 * 1024;
constexpr double kBytesPerNanosecond = 29.;  // that one multiprocessor of an H200 gets
constexpr double kStageNanoseconds = 450., kInt4NanosecondsPerTile = 600., kTileNanoseconds = 300.;
constexpr double kResidentTileNanoseconds = 3000., kResidentRowNanoseconds = 1500.;
constexpr double kMeetingNanoseconds = 1500., kMeetingRowNanoseconds = 800.;

constexpr int64_t kMaxNormedColumns = 24576;  // of one row, which lies beside the norm's weight in the shared memory of quantised_direct

struct Cut {
  int row_tiles = 0;
  int column_tiles = 1;
  int splits = 1;
  bool stages_x = false;
  int blocks_per_processor = 1;
};

int num_boxes(const QuantisedStreamArgs& args) {
  const int columns = args.kind == WeightKind::int4 ? 256 : 128;
  return (args.k + columns - 1) / columns;
}

int stage_boxes(const Cut& cut) { return 8 / quantised_row_warps(cut.stages_x); }

bool fits(int64_t n, int row_tiles, Epilogue epilogue) {
  return n % (16 * row_tiles) == 0 && (epilogue != Epilogue::silu_and_mul || n / 2 % (8 * row_tiles) == 0);
}

int shared_bytes(const Cut& cut) {
  return (cut.column_tiles == 1 ? kSharedBytes : kAllSharedBytes) / cut.blocks_per_processor;
}

int x_stride(const QuantisedStreamArgs& args, const Cut& cut) {
  return cut.stages_x ? 0 : num_boxes(args) / cut.splits * (args.kind == WeightKind::int4 ? 512 : 256) + 64;
}

int partial_bytes(const QuantisedStreamArgs& args, const Cut& cut) {
  return stage_boxes(cut) * 16 * cut.row_tiles * (args.batch | 1) * 4;
}

// Of all but the ring and the sums.
int fixed_bytes(const QuantisedStreamArgs& args, const Cut& cut) {
  return 1024 + 2 * kQuantisedMaxStages * 8 + args.batch * x_stride(args, cut);
}

// Two sets where they leave room for three stages.
int partial_sets(const QuantisedStreamArgs& args, const Cut& cut, int stage_bytes) {
  const int left = shared_bytes(cut) - fixed_bytes(args, cut);
  return left - 2 * partial_bytes(args, cut) >= 3 * stage_bytes ? 2 : 1;
}

int num_stages(const QuantisedStreamArgs& args, const Cut& cut) {
  const int stage_bytes = quantised_stage_bytes(cut.row_tiles, cut.column_tiles, cut.stages_x, args.kind);
  const int sums = partial_sets(args, cut, stage_bytes) * partial_bytes(args, cut);
  const int left = shared_bytes(cut) - fixed_bytes(args, cut) - sums;
  return std::min(kQuantisedMaxStages, left / stage_bytes);
}

bool serves(const QuantisedStreamArgs& args, const Cut& cut) {
  if (!fits(args.n, cut.row_tiles, args.epilogue) || num_boxes(args) % cut.splits != 0) return false;
  if (cut.splits > 1 && num_boxes(args) / cut.splits % stage_boxes(cut) != 0) return false;
  if (cut.stages_x ? cut.row_tiles < 2 : cut.row_tiles > 2 || args.batch > 8) return false;
  return num_stages(args, cut) >= 2;
}

// Nanoseconds, as measured on an H200: a stage takes its latency and its bytes, in int4 the work on its rows; slices meet at a price, more
// with more rows; x that stays resident costs a barrier a tile. Two blocks a multiprocessor hide half of each other's latency.
double estimate(const QuantisedStreamArgs& args, const Cut& cut) {
  const int rows = 16 * cut.row_tiles, units = args.n / rows * cut.splits, places = num_multiprocessors() * cut.blocks_per_processor;
  const int shares = (units + places - 1) / places, boxes = num_boxes(args) / cut.splits;
  const int steps = (boxes + stage_boxes(cut) - 1) / stage_boxes(cut);
  const double bytes = quantised_stage_bytes(cut.row_tiles, cut.column_tiles, cut.stages_x, args.kind);
  const double copy = kStageNanoseconds + bytes / kBytesPerNanosecond;
  const double work = args.kind == WeightKind::int4 ? kInt4NanosecondsPerTile * cut.row_tiles * stage_boxes(cut) / 4 : 0;
  const double stage = std::max(copy, work) * (cut.blocks_per_processor == 2 ? 1.1 : 1.);
  const double tile = cut.stages_x ? kTileNanoseconds : kResidentTileNanoseconds + kResidentRowNanoseconds * args.batch;
  const double meeting = cut.splits > 1 ? kMeetingNanoseconds + kMeetingRowNanoseconds * args.batch : 0;
  return shares * (steps * stage + tile) + meeting;
}

// Two blocks a multiprocessor only where there would be two tiles for some of one.
bool suits_two_blocks(const QuantisedStreamArgs& args, const Cut& cut) {
  const int tiles = args.n / (16 * cut.row_tiles);
  return cut.column_tiles == 1 && cut.splits == 1 && tiles > num_multiprocessors() && tiles <= 2 * num_multiprocessors();
}

Cut choose(const QuantisedStreamArgs& args) {
  const int column_tiles = args.batch <= 8 ? 1 : args.batch <= 16 ? 2 : 4;
  if (args.configuration > 0) {
    const int c = args.configuration;
    return {c / 100 % 10, column_tiles, 1 << c / 10 % 10, c / 1000 % 10 == 1, std::max(1, c % 10)};
  }
  Cut best;
  double least = 0;
  for (const bool stages_x : {true, false}) {
    for (const int row_tiles : {4, 2, 1}) {
      for (int splits = 1; splits <= 4; splits *= 2) {
        for (const int blocks : {1, 2}) {
          const Cut cut{row_tiles, column_tiles, splits, stages_x, blocks};
          if (!serves(args, cut) || (blocks == 2 && !suits_two_blocks(args, cut))) continue;
          const double time = estimate(args, cut);
          if (best.row_tiles == 0 || time < least) best = cut, least = time;
        }
      }
    }
  }
  return best;
}

// Boxes that quantised_direct asks for ahead; 0 for the ring. Measured on an H200: a block a tile is faster than the ring up to 8 rows, or
// 4 in int4; where two blocks a multiprocessor take all tiles at once, or rows are many, more ahead is better than more blocks.
int direct_depth(const QuantisedStreamArgs& args) {
  if (args.configuration == 2 || args.configuration == 4) return args.configuration;
  const int most = args.kind == WeightKind::int4 ? 4 : kDirectMaxBatch;
  if (args.configuration != 0 || args.batch > most || !quantised_direct_serves(args)) return 0;
  return args.n / 16 <= 2 * num_multiprocessors() || args.batch > 4 ? 4 : 2;
}

}  // namespace

const char* why_no_quantised_stream(int64_t n, int64_t k, Epilogue epilogue) {
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 30) || k > (int64_t{1} << 15)) return "the sizes are out of range";
  if (!fits(n, 1, epilogue) || k % 128 != 0) return "n must be a multiple of 16 and k of 128";
  return nullptr;
}

bool quantised_stream_norms(int64_t batch, int64_t k) { return batch == 1 && k <= kMaxNormedColumns; }

void quantised_stream(const QuantisedStreamArgs& args, void* stream) {
  if (args.batch < 1 || args.batch > kQuantisedStreamMaxBatch)
    throw std::invalid_argument("quantised_stream takes 1 to " + std::to_string(kQuantisedStreamMaxBatch) + " rows");
  if (const char* reason = why_no_quantised_stream(args.n, args.k, args.epilogue)) throw std::invalid_argument(reason);
  const int depth = direct_depth(args);
  if (args.norm_weight != nullptr && depth == 0)
    throw std::invalid_argument("quantised_stream takes a norm only of one row; see quantised_stream_norms");
  if (depth > 0) {
    if (!quantised_direct_serves(args)) throw std::invalid_argument("quantised_direct does not serve these sizes");
    return quantised_direct(args, depth, stream);
  }
  const Cut cut = choose(args);
  if (cut.row_tiles == 0 || !serves(args, cut))
    throw std::invalid_argument("quantised_stream has no configuration for these sizes");
  const int rows = 16 * cut.row_tiles, tiles = args.n / rows, units = tiles * cut.splits, boxes = num_boxes(args);
  const int columns = 8 * cut.column_tiles, slice_boxes = boxes / cut.splits, stages = num_stages(args, cut);
  if (cut.splits > 1 && (args.workspace_size < int64_t{units} * rows * columns || args.num_counters < tiles))
    throw std::invalid_argument("the workspace of quantised_stream is too small");
  const bool is_gated = args.epilogue == Epilogue::silu_and_mul;
  const int stage_bytes = quantised_stage_bytes(cut.row_tiles, cut.column_tiles, cut.stages_x, args.kind);
  const int sets = partial_sets(args, cut, stage_bytes), x_planes = stage_boxes(cut) * (args.kind == WeightKind::int4 ? 4 : 2);
  QuantisedLaunch launch{};
  launch.parameters.weight = describe_planes(args.weight, args.n, int64_t{boxes} * 128, is_gated ? rows / 2 : rows, 1);
  if (cut.stages_x) launch.parameters.x_map = describe_planes(args.x, args.batch, int64_t{args.k} * 2, columns, x_planes);
  launch.parameters.x = args.x;
  launch.parameters.bias = args.bias;
  launch.parameters.out = args.out;
  launch.parameters.row_scales = args.row_scales;
  launch.parameters.block_scales = args.block_scales;
  launch.parameters.groups = args.groups;
  launch.parameters.workspace = args.workspace;
  launch.parameters.counters = args.counters;
  launch.parameters.batch = args.batch;
  launch.parameters.n = args.n;
  launch.parameters.k = args.k;
  launch.parameters.splits = cut.splits;
  launch.parameters.num_boxes = boxes;
  launch.parameters.slice_boxes = slice_boxes;
  launch.parameters.steps = (slice_boxes + stage_boxes(cut) - 1) / stage_boxes(cut);
  launch.parameters.stages = stages;
  launch.parameters.x_stride = x_stride(args, cut);
  launch.parameters.partial_stride = args.batch | 1;
  launch.parameters.partial_sets = sets;
  launch.parameters.is_gated = is_gated;
  launch.parameters.adds = args.epilogue == Epilogue::add_residual;
  launch.row_tiles = cut.row_tiles;
  launch.column_tiles = cut.column_tiles;
  launch.stages_x = cut.stages_x;
  launch.blocks = std::min(num_multiprocessors() * cut.blocks_per_processor, units);
  launch.shared_bytes = fixed_bytes(args, cut) + stages * stage_bytes + sets * partial_bytes(args, cut);
  launch.type = args.type;
  switch (args.kind) {
    case WeightKind::float8: return launch_float8_stream(launch, stream);
    case WeightKind::int8: return launch_int8_stream(launch, stream);
    case WeightKind::int4: return launch_int4_stream(launch, stream);
  }
}

}  // namespace xllm::kernels::cuda

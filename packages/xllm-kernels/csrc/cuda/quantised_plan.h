// What one launch of quantised_stream_kernel is given, and how the launch is put together. Knows nothing of how it computes.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include "xllm/kernels/cuda/quantised_stream.h"

namespace xllm::kernels::cuda {

struct QuantisedParameters {
  CUtensorMap weight;         // [row, box, 128 bytes] in boxes of the rows of a tile (gated: half of them)
  CUtensorMap x_map;          // XSTAGE: [row, 64 columns] in boxes of the columns of a stage by 8 NT rows
  const void* x;              // [batch, k]
  const void* bias;           // [n] or null
  void* out;
  const float* row_scales;    // [n] or null
  const float* block_scales;  // [n / 128, num_boxes] or null
  const uint32_t* groups;     // int4: [2 num_boxes, n]
  float* workspace;           // S > 1: [tiles, S, 8 NT, rows]
  int* counters;              // S > 1: [tiles], zero before and after
  int batch;
  int n;
  int k;
  int splits;                 // S
  int num_boxes;              // of a row of W
  int slice_boxes;            // num_boxes / S
  int steps;                  // stages of a slice
  int stages;                 // of the ring
  int x_stride;               // bytes of a row of x in shared memory, without XSTAGE
  int partial_stride;         // floats of a row of sums there: the batch, made odd
  int partial_sets;           // of sums: 1 or 2
  bool is_gated;
  bool adds;                  // to what out holds
};

constexpr int kQuantisedMaxStages = 16;
// Warps along the rows of a tile, of 8; the others lie along K, each with a box of its own.
constexpr int quantised_row_warps(bool stages_x) { return stages_x ? 2 : 1; }

constexpr int quantised_stage_bytes(int row_tiles, int column_tiles, bool stages_x, WeightKind kind) {
  const int boxes = 8 / quantised_row_warps(stages_x), x_box = kind == WeightKind::int4 ? 512 : 256;
  return boxes * (row_tiles * 16 * 128 + (stages_x ? column_tiles * 8 * x_box : 0));
}

struct QuantisedLaunch {
  QuantisedParameters parameters;
  int row_tiles;       // MT: 1 or 2; with stages_x 2 or 4
  int column_tiles;    // NT: 1; with stages_x 1, 2 or 4
  bool stages_x;       // XSTAGE
  int blocks;
  int shared_bytes;
  HalfType type;
};

// What quantised_direct_kernel is given: as QuantisedParameters where names are the same, and a norm of one row.
struct DirectParameters {
  const uint4* weight;        // [n, num_boxes] boxes of 128 bytes
  const void* x;
  const void* norm_weight;    // [k] or null
  const void* bias;
  void* out;
  const float* row_scales;
  const float* block_scales;
  const uint32_t* groups;
  int batch;
  int n;
  int k;
  int num_boxes;
  int x_stride;               // bytes of a row of x in shared memory
  float eps;
  bool is_gated;
  bool adds;
};

constexpr int kDirectMaxBatch = 8;

// Whether weights can come straight to registers: few rows of x, which fit into shared memory, and a norm only of one.
bool quantised_direct_serves(const QuantisedStreamArgs& args);

// `depth`: boxes that each lane asks for ahead, 2 or 4. Throws std::runtime_error for CUDA's errors.
void quantised_direct(const QuantisedStreamArgs& args, int depth, void* stream);

// One translation unit each; all throw std::runtime_error for CUDA's errors.
void launch_float8_stream(const QuantisedLaunch& launch, void* stream);
void launch_int8_stream(const QuantisedLaunch& launch, void* stream);
void launch_int4_stream(const QuantisedLaunch& launch, void* stream);

}  // namespace xllm::kernels::cuda

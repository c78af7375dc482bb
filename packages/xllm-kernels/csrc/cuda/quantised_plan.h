// What one launch of quantised_stream_kernel is given, and how the launch is put together. Knows nothing of how it computes.
#pragma once

#include <cuda.h>

#include "xllm/kernels/cuda/quantised_stream.h"

namespace xllm::kernels::cuda {

struct QuantisedParameters {
  CUtensorMap weight;         // [row, box, 128 bytes] in boxes of 8 boxes by the rows of a tile (gated: half of them)
  const void* x;              // [batch, k]
  const void* norm_weight;    // [k] or null
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
  int steps;                  // of 8 boxes, a slice
  int stages;                 // of the ring
  int x_stride;               // bytes of a row of x in shared memory
  float eps;
  bool is_gated;
  bool adds;                  // to what out holds
};

constexpr int kQuantisedMaxStages = 16;
constexpr int quantised_stage_bytes(int row_tiles) { return row_tiles * 16 * 8 * 128; }

struct QuantisedLaunch {
  QuantisedParameters parameters;
  int row_tiles;       // MT: 1 or 2
  int column_tiles;    // NT: 1, 2 or 4
  int blocks;
  int shared_bytes;
  HalfType type;
};

// One translation unit each; all throw std::runtime_error for CUDA's errors.
void launch_float8_stream(const QuantisedLaunch& launch, void* stream);
void launch_int8_stream(const QuantisedLaunch& launch, void* stream);
void launch_int4_stream(const QuantisedLaunch& launch, void* stream);

}  // namespace xllm::kernels::cuda

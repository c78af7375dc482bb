// Descriptions of matrices and caches of 16-bit numbers for the bulk tensor copy engine, which does not look at them. Knows nothing of
// kernels.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace xllm::kernels::cuda {

// Elements of a 128-byte row of a box. In shared memory, 16-byte piece p of row r of a box lies at p ^ (r & 7): eight lanes that
// read the same piece of eight rows meet no bank conflict.
constexpr int kBoxColumns = 64;

// A row-major matrix [rows, columns] in boxes of `box_rows` rows and kBoxColumns columns; rows past the end read as 0.
// Throws std::runtime_error when the driver refuses (columns must be a multiple of 8, `memory` aligned to 16 bytes).
CUtensorMap describe_matrix(const void* memory, int64_t rows, int64_t columns, int box_rows);

// Row-major matrices [planes, rows, columns] in boxes of `box_planes` x `box_rows` x kBoxColumns.
CUtensorMap describe_stacked(const void* memory, int64_t planes, int64_t rows, int64_t columns, int box_rows, int box_planes);

// A row-major matrix [rows, row_bytes] (a multiple of 128) seen as columns of 128 bytes, in boxes of `box_planes` columns by `box_rows`
// rows, each as [box_planes][box_rows][128]; what lies past the end reads as 0.
CUtensorMap describe_planes(const void* memory, int64_t rows, int64_t row_bytes, int box_rows, int box_planes);

// A cache [slots, kv_heads, head_dim] in boxes of `box_slots` slots of one head, each as [head_dim / 64][box_slots][64].
CUtensorMap describe_cache(const void* memory, int64_t slots, int64_t kv_heads, int head_dim, int box_slots);

// Rows of heads [rows, heads, head_dim], rows `row_stride` elements apart, in boxes of kBoxColumns numbers and `box_rows` rows of
// one head, at (number, row, head); numbers past head_dim and rows past the end read as 0.
CUtensorMap describe_heads(const void* memory, int64_t rows, int64_t heads, int64_t head_dim, int64_t row_stride, int box_rows);

}  // namespace xllm::kernels::cuda

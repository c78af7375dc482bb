#include "tensor_map.h"

#include <cuda_runtime.h>

#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Found at run time, so that the module links no driver and imports on machines without one.
Encode encoder() {
  static const Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result),
          "cuTensorMapEncodeTiled");
    if (entry == nullptr) throw std::runtime_error("the CUDA driver has no cuTensorMapEncodeTiled; it needs CUDA 12");
    return reinterpret_cast<Encode>(entry);
  }();
  return found;
}

// What memory is asked for is brought to L2 by what a row of a box takes, 128 bytes. By 256, steps of qwen3-8b at 1, 32 and 128 x 1024 take 4.23, 5.52
// and 10.25 ms on an H200, by 128 4.06, 5.38 and 9.93 (2026-11-30).
CUtensorMap describe(const void* memory, int dims, const cuuint64_t* sizes, const cuuint64_t* strides,
                     const cuuint32_t* box) {
  CUtensorMap map;
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(dims), const_cast<void*>(memory), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw std::runtime_error("the CUDA driver refuses to describe a tensor to the copy engine");
  return map;
}

}  // namespace

CUtensorMap describe_matrix(const void* memory, int64_t rows, int64_t columns, int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)};
  return describe(memory, 2, sizes, strides, box);
}

CUtensorMap describe_stacked(const void* memory, int64_t planes, int64_t rows, int64_t columns, int box_rows, int box_planes) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(planes)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(columns) * 2, static_cast<cuuint64_t>(columns * rows) * 2};
  const cuuint32_t box[3] = {kBoxColumns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_planes)};
  return describe(memory, 3, sizes, strides, box);
}

CUtensorMap describe_planes(const void* memory, int64_t rows, int64_t row_bytes, int box_rows, int box_planes) {
  const cuuint64_t sizes[3] = {kBoxColumns, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(row_bytes) / 128};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_bytes), 128};
  const cuuint32_t box[3] = {kBoxColumns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_planes)};
  return describe(memory, 3, sizes, strides, box);
}

CUtensorMap describe_cache(const void* memory, int64_t slots, int64_t kv_heads, int head_dim, int box_slots) {
  const auto planes = static_cast<cuuint64_t>(kv_heads) * head_dim / kBoxColumns;
  const cuuint64_t sizes[3] = {kBoxColumns, static_cast<cuuint64_t>(slots), planes};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(kv_heads) * head_dim * 2, kBoxColumns * 2};
  const cuuint32_t box[3] = {kBoxColumns, static_cast<cuuint32_t>(box_slots),
                             static_cast<cuuint32_t>(head_dim / kBoxColumns)};
  return describe(memory, 3, sizes, strides, box);
}

CUtensorMap describe_heads(const void* memory, int64_t rows, int64_t heads, int64_t head_dim, int64_t row_stride, int box_rows) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(heads)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_stride) * 2, static_cast<cuuint64_t>(head_dim) * 2};
  const cuuint32_t box[3] = {kBoxColumns, static_cast<cuuint32_t>(box_rows), 1};
  return describe(memory, 3, sizes, strides, box);
}

}  // namespace xllm::kernels::cuda

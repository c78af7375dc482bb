// How kernels are launched: errors become exceptions, and each may start before the one before it has ended.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace xllm::kernels::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// Multiprocessors of the current device; once a process is enough for one device.
inline int num_multiprocessors() {
  static const int count = [] {
    int device = 0, found = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return found;
  }();
  return count;
}

struct LaunchShape {
  dim3 grid;
  int threads;
  int shared_bytes = 0;
  int cluster = 1;  // neighbouring blocks that run together and see each other's shared memory
  bool together = false;  // all blocks run at once, or the launch fails
};

// Whether kernels may overlap the one before them on the current device.
inline bool can_overlap() {
  static const bool can = [] {
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    return major >= 9;
  }();
  return can;
}

// The kernel must wait_for_prerequisites() before it touches what earlier kernels wrote or read.
template <class Kernel, class Args>
void launch(Kernel kernel, const char* name, const LaunchShape& shape, const Args& args, void* stream) {
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (can_overlap()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.together) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, args), name);
}

// Stages of a ring of a block that is to have a multiprocessor for itself: `wanted`, or so many more that no second block fits beside it,
// for then some multiprocessors would get two blocks and some none. `other_bytes`: all else that a block has of shared memory. Less than 1 if
// nothing is left.
inline int stages_alone(int wanted, int stage_bytes, int other_bytes) {
  constexpr int kMostBytes = 227 * 1024, kHalf = 114 * 1024;
  const int keeping_out = (kHalf - other_bytes) / stage_bytes + 1;
  return std::min(std::max(wanted, keeping_out), (kMostBytes - other_bytes) / stage_bytes);
}

// Lets `kernel` have `bytes` of shared memory. Once a kernel and process is enough for one device.
template <class Kernel>
void allow_shared_bytes(Kernel kernel, int bytes, const char* name) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
}

}  // namespace xllm::kernels::cuda

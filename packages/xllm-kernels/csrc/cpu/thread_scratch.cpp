// One growing buffer for each thread.
#include <cstdlib>
#include <new>

#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {
namespace {

constexpr size_t kAlignment = 64;

struct Buffer {
  void* memory = nullptr;
  size_t size = 0;
  ~Buffer() { std::free(memory); }
};

}  // namespace

void* thread_scratch(size_t num_bytes) {
  thread_local Buffer buffer;
  if (buffer.size < num_bytes) {
    std::free(buffer.memory);
    buffer.size = 0;
    const size_t size = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    buffer.memory = std::aligned_alloc(kAlignment, size);
    if (buffer.memory == nullptr) throw std::bad_alloc();
    buffer.size = size;
  }
  return buffer.memory;
}

}  // namespace xllm::kernels::cpu

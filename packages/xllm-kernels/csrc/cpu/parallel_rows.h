// Runs a kernel of rows on the pool. For code of the baseline instruction set only.
#pragma once

#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {

// Elements that are worth handing to another thread: about ten microseconds of work, more than waking it costs.
constexpr int64_t kElementsPerPiece = 16384;

// kernel(args, begin, end) over [0, num_rows), rows of `row_elements` elements of work each.
template <class Args>
void parallel_rows(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t num_rows,
                   int64_t row_elements) {
  struct Call {
    void (*kernel)(const Args&, int64_t, int64_t);
    const Args& args;
  } call{kernel, args};
  const int64_t elements = row_elements > 0 ? row_elements : 1;
  const int64_t grain = elements < kElementsPerPiece ? kElementsPerPiece / elements : 1;
  parallel_for(
      num_rows, grain,
      [](void* context, int64_t begin, int64_t end) {
        const Call& self = *static_cast<const Call*>(context);
        self.kernel(self.args, begin, end);
      },
      &call);
}

}  // namespace xllm::kernels::cpu

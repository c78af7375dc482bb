// Element types of the tensors that kernels read and write.
#pragma once

#include <stdint.h>

namespace xllm::kernels {

enum class DType : uint8_t { float32 = 0, bfloat16 = 1 };

// The upper half of an IEEE float32. Arithmetic is done in float32; only loads and stores know this type.
struct bfloat16 {
  uint16_t bits;
};

// An IEEE half. Only loads know this type.
struct float16 {
  uint16_t bits;
};

}  // namespace xllm::kernels

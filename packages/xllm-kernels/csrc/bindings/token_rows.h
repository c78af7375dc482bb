// Checks of tensors [batch, tokens, features] whose rows are dense. Knows nothing of any operation.
#pragma once

#include "tensor.h"
#include "xllm/kernels/modulation.h"

namespace xllm::bindings {

// A tensor of three dimensions whose last one is dense, as rows of a batch.
inline kernels::TokenRows token_rows(const Tensor& tensor) {
  tensor.expect_dims(3);
  tensor.expect_dense_from(2);
  return {tensor.memory(), tensor.size(0) > 1 ? tensor.stride(0) : 0,
          tensor.size(1) > 1 ? tensor.stride(1) : tensor.size(2)};
}

inline void expect_token_rows(const Tensor& tensor, const Tensor& like, int64_t num_tokens, int64_t size) {
  tensor.expect_dims(3);
  tensor.expect_size(0, like.size(0), "the batch");
  tensor.expect_size(1, num_tokens, "the number of tokens");
  tensor.expect_size(2, size, "the number of features");
  tensor.expect_same_dtype(like);
}

}  // namespace xllm::bindings

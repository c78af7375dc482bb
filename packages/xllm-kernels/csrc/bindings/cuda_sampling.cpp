#include "cuda_launchers.h"
#include "cuda_tensor.h"
#include "xllm/kernels/cuda/sampling.h"

namespace xllm::bindings::cuda {

namespace device = kernels::cuda;

namespace {

// A dense vector of `size` elements of one kind.
void* vector_of(Handle object, const char* name, Scalar scalar, int64_t size) {
  const DeviceTensor vector(object, name);
  vector.expect_scalar(scalar);
  vector.expect_dims(1);
  vector.expect_size(0, size, "the rows of logits");
  vector.expect_dense_from(0);
  return vector.memory();
}

}  // namespace

void sample(Handle logits_object, Handle best_ids, Handle best, Handle temperature, Handle top_p, Handle min_p, Handle top_k, Handle seed,
            Handle step, Handle token_ids, Handle logprobs, uintptr_t stream) {
  const DeviceTensor logits(logits_object, "logits");
  logits.expect_dims(2);
  logits.expect_dense_from(0);
  const auto type = logits.scalar() == Scalar::float32 ? device::LogitsType::float32 : static_cast<device::LogitsType>(half_type_of(logits));
  const int64_t rows = logits.size(0);
  const auto floats = [&](Handle object, const char* name) { return static_cast<float*>(vector_of(object, name, Scalar::float32, rows)); };
  const auto integers = [&](Handle object, const char* name) {
    return static_cast<int32_t*>(vector_of(object, name, Scalar::int32, rows));
  };
  device::sample({.logits = logits.memory(),
                  .type = type,
                  .best_ids = integers(best_ids, "best_ids"),
                  .best = floats(best, "best"),
                  .temperature = floats(temperature, "temperature"),
                  .top_p = floats(top_p, "top_p"),
                  .min_p = floats(min_p, "min_p"),
                  .top_k = integers(top_k, "top_k"),
                  .seed = static_cast<const uint64_t*>(vector_of(seed, "seed", Scalar::int64, rows)),
                  .step = static_cast<const int64_t*>(vector_of(step, "step", Scalar::int64, rows)),
                  .token_ids = integers(token_ids, "token_ids"),
                  .logprobs = logprobs.is_none() ? nullptr : floats(logprobs, "logprobs"),
                  .num_rows = rows,
                  .size = logits.size(1)},
                 as_stream(stream));
}

void replace_placeholders(Handle token_ids_object, Handle previous_object, uintptr_t stream) {
  const DeviceTensor token_ids(token_ids_object, "token_ids"), previous(previous_object, "previous");
  for (const DeviceTensor* vector : {&token_ids, &previous}) {
    vector->expect_scalar(Scalar::int32);
    vector->expect_dims(1);
    vector->expect_dense_from(0);
  }
  device::replace_placeholders({.token_ids = static_cast<int32_t*>(token_ids.memory()),
                                .previous = static_cast<const int32_t*>(previous.memory()),
                                .num_tokens = token_ids.size(0),
                                .num_previous = previous.size(0)},
                               as_stream(stream));
}

}  // namespace xllm::bindings::cuda

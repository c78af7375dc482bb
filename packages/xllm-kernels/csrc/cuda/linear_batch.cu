// Which configuration of the kernel serves a product, and its launch.
#include "linear_batch.cuh"

#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

struct Division {
  int row_tiles;  // 64 rows of W each, that a block takes
  int splits;     // parts of K
};

bool fits(int64_t n, int64_t k, Division d) { return n % (64 * d.row_tiles) == 0 && k % (kBoxColumns * d.splits) == 0; }

// Measured on an H200 (2026-11-30), 32 rows, us of the best and of cuBLAS without what is fused here: qwen3-8b qkv 15.7 (1 tile, 2 parts) and
// 16.2, o 11.2 (1, 2) and 14.2, gate_up 50.5 (3, 2) and 50.8, down 27.1 (1, 2) and 30.1; qwen3-0.6b 4.5 (1, 2) and 5.4, 4.5 (1, 4) and 6.0,
// 6.2 (1, 1) and 6.5, 5.2 (1, 4) and 7.9. A layer of the first with norms 107 us, with one large tile a multiprocessor 142. At 64 rows the
// products alone take cuBLAS 4.04 ms a step and this with norms 4.44: as long as both ways with all that belongs to them.
Division choose(int64_t n, int64_t k, bool is_gated) {
  constexpr int64_t kEnough = 128;  // blocks
  if (is_gated) {
    if (n / 192 * 2 >= kEnough && fits(n, k, {3, 2})) return {3, 2};
    return {1, n / 64 < kEnough / 2 && fits(n, k, {1, 2}) ? 2 : 1};
  }
  for (const int splits : {2, 4}) {
    if (n / 64 * splits >= kEnough && fits(n, k, {1, splits})) return {1, splits};
  }
  return {1, fits(n, k, {1, 4}) ? 4 : 1};
}

template <class Shape, Epilogue EPI>
void run(const LinearBatchArgs& args, int splits, void* stream) {
  using T = typename Shape::T;
  const typename Shape::Parameters parameters{
      describe_matrix(args.weight, args.n, args.k, EPI == Epilogue::silu_and_mul ? Shape::kRows / 2 : Shape::kRows),
      describe_matrix(args.x, args.batch, args.k, Shape::kColumns),
      static_cast<const T*>(args.bias),
      static_cast<T*>(args.out),
      args.batch,
      args.n,
      args.k,
      splits,
      1,
      args.squares,
      args.num_squares,
      args.eps,
      static_cast<const T*>(args.next_norm),
      static_cast<T*>(args.next_x),
      args.next_squares,
  };
  const auto kernel = linear_batch_kernel<Shape, EPI>;
  allow_shared_bytes(kernel, Shape::kBytes, "linear_batch");
  const auto blocks = static_cast<unsigned>(args.n / Shape::kRows * splits);
  launch(kernel, "linear_batch", {dim3(blocks), Shape::kBlockThreads, Shape::kBytes, splits}, parameters, stream);
}

// Rings of about 100 KB: two fit a multiprocessor.
template <class Element, int RT, Epilogue EPI>
void run_divided(const LinearBatchArgs& args, int splits, void* stream) {
  constexpr int kStages = RT == 3 ? 3 : 8;
  if (args.batch <= 16) return run<BatchShape<Element, RT, 16, kStages>, EPI>(args, splits, stream);
  run<BatchShape<Element, RT, 32, kStages>, EPI>(args, splits, stream);
}

template <class Element>
void run_epilogue(const LinearBatchArgs& args, Division division, void* stream) {
  switch (args.epilogue) {
    case Epilogue::none: return run_divided<Element, 1, Epilogue::none>(args, division.splits, stream);
    case Epilogue::add_residual: return run_divided<Element, 1, Epilogue::add_residual>(args, division.splits, stream);
    case Epilogue::silu_and_mul:
      if (division.row_tiles == 3) return run_divided<Element, 3, Epilogue::silu_and_mul>(args, division.splits, stream);
      return run_divided<Element, 1, Epilogue::silu_and_mul>(args, division.splits, stream);
  }
}

}  // namespace

const char* why_no_linear_batch(int64_t n, int64_t k) {
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 30) || k > (int64_t{1} << 20)) return "the sizes are out of range";
  return n % 64 == 0 && k % 64 == 0 ? nullptr : "n and k must be multiples of 64";
}

void linear_batch(const LinearBatchArgs& args, void* stream) {
  if (args.batch < 1 || args.batch > kLinearBatchMaxBatch) throw std::invalid_argument("linear_batch takes 1 to 32 rows");
  if (const char* reason = why_no_linear_batch(args.n, args.k)) throw std::invalid_argument(reason);
  if (args.next_norm != nullptr && args.epilogue != Epilogue::add_residual)
    throw std::invalid_argument("linear_batch leaves what a norm needs beside sums with a residual");
  const Division division = choose(args.n, args.k, args.epilogue == Epilogue::silu_and_mul);
  with_element(args.type, [&](auto element) { run_epilogue<decltype(element)>(args, division, stream); });
}

}  // namespace xllm::kernels::cuda

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
// 6.2 (1, 1) and 6.5, 5.2 (1, 4) and 7.9. A layer of the first with norms 107 us, with one large tile a multiprocessor 142.
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

template <class Shape, bool GATED>
void run(const LinearBatchArgs& args, Division division, void* stream) {
  using T = typename Shape::T;
  const typename Shape::Parameters parameters{
      describe_matrix(args.weight, args.n, args.k, GATED ? Shape::kRows / 2 : Shape::kRows),
      describe_matrix(args.x, args.batch, args.k, Shape::kColumns),
      static_cast<const T*>(args.bias),
      static_cast<T*>(args.out),
      args.batch,
      args.n,
      args.k,
      division.splits,
      args.epilogue == Epilogue::add_residual,
      args.squares,
      args.eps,
      static_cast<const T*>(args.next_norm),
      static_cast<T*>(args.next_x),
      args.next_squares,
  };
  const auto kernel = linear_batch_kernel<Shape, GATED>;
  allow_shared_bytes(kernel, Shape::kBytes, "linear_batch");
  const auto blocks = static_cast<unsigned>(args.n / Shape::kRows * division.splits);
  launch(kernel, "linear_batch", {dim3(blocks), Shape::kBlockThreads, Shape::kBytes, division.splits}, parameters, stream);
}

// Rings of about 100 KB: two fit a multiprocessor.
template <class Element, int RT, bool GATED>
void run_few(const LinearBatchArgs& args, Division division, void* stream) {
  constexpr int kStages = RT == 3 ? 3 : 8;
  if (args.batch <= 16) return run<BatchShape<Element, RT, 16, kStages>, GATED>(args, division, stream);
  run<BatchShape<Element, RT, 32, kStages>, GATED>(args, division, stream);
}

template <class Element, bool GATED>
void run_rows(const LinearBatchArgs& args, void* stream) {
  if constexpr (GATED) {
    if (args.batch > 64) return run<BatchShape<Element, 3, 128, 5>, GATED>(args, {3, 1}, stream);
    if (args.batch > kLinearBatchFewRows) return run<BatchShape<Element, 3, 64, 6>, GATED>(args, {3, 1}, stream);
  }
  const Division division = choose(args.n, args.k, GATED);
  if constexpr (GATED) {
    if (division.row_tiles == 3) return run_few<Element, 3, GATED>(args, division, stream);
  }
  run_few<Element, 1, GATED>(args, division, stream);
}

}  // namespace

const char* why_no_linear_batch(int64_t batch, int64_t n, int64_t k, Epilogue epilogue) {
  if (batch < 1 || batch > kLinearBatchMaxBatch) return "linear_batch takes 1 to 128 rows";
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 30) || k > (int64_t{1} << 20)) return "the sizes are out of range";
  if (n % 64 != 0 || k % 64 != 0) return "n and k must be multiples of 64";
  // Measured on an H200 (2026-11-30), us of the best here and of cuBLAS with silu_and_mul or nothing after it, qwen3-8b at 64 and 128 rows: gate_up
  // 51.6 and 54.1, 53.8 and 58.3; qkv 18.0 and 17.2, 19.3 and 17.0; o 13.0 and 12.4, 16.1 and 14.2; down 30.8 and 31.5, 37.9 and 33.3. At 256
  // cuBLAS is faster everywhere (gate_up 91 and 76). Clusters that share steps of x take 1.4 to 2.5 times as long.
  const bool fills_gpu = n % 192 == 0 && n / 192 >= 96 && n / 192 <= 132;
  if (batch > kLinearBatchFewRows && (epilogue != Epilogue::silu_and_mul || !fills_gpu))
    return "linear_batch takes more than 32 rows only of gates whose tiles of 192 rows are one for each multiprocessor";
  return nullptr;
}

void linear_batch(const LinearBatchArgs& args, void* stream) {
  if (const char* reason = why_no_linear_batch(args.batch, args.n, args.k, args.epilogue)) throw std::invalid_argument(reason);
  if (args.next_norm != nullptr && args.epilogue != Epilogue::add_residual)
    throw std::invalid_argument("linear_batch leaves what a norm needs beside sums with a residual");
  if (args.squares != nullptr && args.batch > kLinearBatchFewRows) throw std::invalid_argument("linear_batch norms at most 32 rows");
  with_element(args.type, [&](auto element) {
    if (args.epilogue == Epilogue::silu_and_mul) return run_rows<decltype(element), true>(args, stream);
    run_rows<decltype(element), false>(args, stream);
  });
}

}  // namespace xllm::kernels::cuda

// Which configuration of the kernel serves a product, and its launch.
#include "linear_batch.cuh"

#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

struct Division {
  int row_tiles = 0;  // 0: none serves
  int splits = 1;
};

bool fits(int64_t n, int64_t k, int row_tiles, int splits) { return n % (64 * row_tiles) == 0 && k % (kBoxColumns * splits) == 0; }

// Measured on an H200 (2026-11-30), 32 rows, us of the best and of cuBLAS without what is fused here: qwen3-8b qkv 15.7 (1 tile, 2 parts) and
// 16.2, o 11.2 (1, 2) and 14.2, gate_up 50.5 (3, 2) and 50.8, down 27.1 (1, 2) and 30.1; qwen3-0.6b 4.5 (1, 2) and 5.4, 4.5 (1, 4) and 6.0,
// 6.2 (1, 1) and 6.5, 5.2 (1, 4) and 7.9. A layer of the first with norms 107 us, with one large tile a multiprocessor 142. At 64 rows the
// products alone take cuBLAS 4.04 ms a step and this with norms 4.44: as long as both ways with all that belongs to them.
Division choose(int64_t n, int64_t k, bool is_gated) {
  constexpr int64_t kEnough = 128;  // blocks
  if (is_gated) {
    if (n / 192 * 2 >= kEnough && fits(n, k, 3, 2)) return {3, 2};
    return {1, n / 64 < kEnough / 2 && fits(n, k, 1, 2) ? 2 : 1};
  }
  for (const int splits : {2, 4}) {
    if (n / 64 * splits >= kEnough && fits(n, k, 1, splits)) return {1, splits};
  }
  return {1, fits(n, k, 1, 4) ? 4 : 1};
}

template <int RT, int NB, int STAGES, Epilogue EPI>
void run(const LinearBatchArgs& args, int splits, void* stream) {
  using Shape = BatchShape<RT, NB, STAGES>;
  const BatchParameters parameters{
      describe_matrix(args.weight, args.n, args.k, EPI == Epilogue::silu_and_mul ? Shape::kRows / 2 : Shape::kRows),
      describe_matrix(args.x, args.batch, args.k, NB),
      static_cast<const __nv_bfloat16*>(args.bias),
      static_cast<__nv_bfloat16*>(args.out),
      args.batch,
      args.n,
      args.k,
      splits,
      args.squares,
      args.eps,
      static_cast<const __nv_bfloat16*>(args.next_norm),
      static_cast<__nv_bfloat16*>(args.next_x),
      args.next_squares,
  };
  const auto kernel = linear_batch_kernel<Shape, EPI>;
  allow_shared_bytes(kernel, Shape::kBytes, "linear_batch");
  const auto blocks = static_cast<unsigned>(args.n / Shape::kRows * splits);
  launch(kernel, "linear_batch", {dim3(blocks), Shape::kBlockThreads, Shape::kBytes, splits}, parameters, stream);
}

// Rings of about 100 KB: two fit a multiprocessor.
template <int RT, Epilogue EPI>
void run_for_batch(const LinearBatchArgs& args, int splits, void* stream) {
  constexpr int kStages = RT == 3 ? 3 : RT == 2 ? 5 : 8;
  if (args.batch <= 16) return run<RT, 16, kStages, EPI>(args, splits, stream);
  if (args.batch <= 32) return run<RT, 32, kStages, EPI>(args, splits, stream);
  run<RT, 64, RT == 3 ? 3 : RT == 2 ? 4 : 6, EPI>(args, splits, stream);
}

template <Epilogue EPI>
void run_divided(const LinearBatchArgs& args, Division division, void* stream) {
  switch (division.row_tiles) {
    case 3: return run_for_batch<3, EPI>(args, division.splits, stream);
    case 2: return run_for_batch<2, EPI>(args, division.splits, stream);
    default: return run_for_batch<1, EPI>(args, division.splits, stream);
  }
}

}  // namespace

const char* why_no_linear_batch(int64_t n, int64_t k) {
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 30) || k > (int64_t{1} << 20)) return "the sizes are out of range";
  return n % 64 == 0 && k % 64 == 0 ? nullptr : "n and k must be multiples of 64";
}

void linear_batch(const LinearBatchArgs& args, void* stream) {
  if (args.batch < 1 || args.batch > kLinearBatchMaxBatch) throw std::invalid_argument("linear_batch takes 1 to 64 rows");
  if (const char* reason = why_no_linear_batch(args.n, args.k)) throw std::invalid_argument(reason);
  const Division division = args.row_tiles == 0 ? choose(args.n, args.k, args.epilogue == Epilogue::silu_and_mul) : Division{args.row_tiles, args.splits};
  const bool leaves_norm = args.next_norm != nullptr;
  if ((leaves_norm || args.squares != nullptr) && args.batch > kNormedRows) throw std::invalid_argument("linear_batch norms at most 32 rows");
  if (leaves_norm && (args.epilogue != Epilogue::add_residual || division.row_tiles != 1))
    throw std::invalid_argument("linear_batch leaves what a norm needs beside sums with a residual, in tiles of 64 rows");
  if (!fits(args.n, args.k, division.row_tiles, division.splits)) throw std::invalid_argument("linear_batch cannot divide these sizes so");
  switch (args.epilogue) {
    case Epilogue::none: return run_divided<Epilogue::none>(args, division, stream);
    case Epilogue::add_residual: return run_divided<Epilogue::add_residual>(args, division, stream);
    case Epilogue::silu_and_mul: return run_divided<Epilogue::silu_and_mul>(args, division, stream);
  }
}

}  // namespace xllm::kernels::cuda

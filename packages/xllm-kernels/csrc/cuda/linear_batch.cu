// Which configuration of the kernel serves a product, and its launch.
#include "linear_batch.cuh"

#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int64_t kPlaces = 264;  // two blocks a multiprocessor of an H100 or H200

struct Division {
  int splits;  // parts of K
  int stages;  // of the ring: 63 KB, 101 KB
};

// Measured on an H200 (2026-11-30) in whole steps of 32 rows, ms by parts of K and stages. qwen3-8b: qkv (96 tiles) 2 and 8 5.53, 2 and 6 5.57, 4
// and 4 5.60; o (64 tiles) 2 and 8 5.53, 4 and 6 5.53, 2 and 6 5.60; down (64 tiles) 4 and 6 5.53, 2 and 8 5.56, 4 and 8 5.68; gate_up (384 tiles)
// 2 and 6 5.49, tiles of 192 rows 5.53, of 128 5.54; the same tree later, 2 and 6 5.48, 1 and 6 5.36, 1 and 5 5.33, and then down 4 and 6 or 4 and
// 5 5.32, 8 and 6 5.50. qwen3-0.6b: qkv (64 tiles) 1 and 8 1.60, 2 and 8 1.61, 2 and 6 1.62; o (16 tiles) 4 and 8 1.60, 4 and 6, 8 and 4, 2 and 8
// 1.63; gate_up (96 tiles) 1 and 8 1.60, 2 and 8 1.62, 1 and 6 1.64; down (16 tiles) 4 and 8 1.60, 4 and 6 1.62, 8 and 4 1.66. What is in flight
// counts most; two blocks a multiprocessor of 8 stages keep the kernel after them from starting, and three of 5 fit where there are tiles for them.
Division choose(int64_t n, int64_t k, bool is_gated) {
  const int64_t tiles = n / 64;
  const auto fits = [&](int splits) { return k % (kBoxColumns * splits) == 0; };
  if (is_gated) {
    if (tiles > kPlaces) return {1, 5};
    return {tiles < 64 && fits(2) ? 2 : 1, 8};
  }
  if (k > 2 * n && tiles * 4 > kPlaces / 2 && fits(4)) return {4, 5};
  const int64_t enough = k <= 1024 ? 64 : 128;  // blocks; a short K is hardly worth a cut
  for (const int splits : {1, 2, 4}) {
    if (tiles * splits >= enough && fits(splits)) return {splits, 8};
  }
  return {fits(4) ? 4 : 1, 8};
}

// Rows of W that a block takes for gates of more rows of x. Its ring is the only one on its multiprocessor: of 7 stages for up to 64 rows of x,
// of 5 for more.
//
// Measured on an H200 (2026-11-30) in two processes, with these tiles and rings in a kernel of their own, gate_up of qwen3-8b (128 tiles), us
// beside cuBLAS with a kernel for gates: 64 rows 50.5 and 50.5 beside 54.3 and 54.3, 128 rows 54.7 and 55.1 beside 59.6 and 60.3. 36 layers with
// norms, without attention, ms: 64 rows 4.16 and 4.13 beside 4.21 and 4.20, 128 rows 4.70 and 4.73 beside 4.82 and 4.83. Other divisions, us, 64
// rows: two blocks a multiprocessor (3 stages) 60 and 62, tiles of 128 rows 62 and 59; 128 rows: tiles of 128 66 and 64, of 64 73 and 75. x fetched
// once for two blocks (multicast) gained nothing: 50.8 and 51.4, 54.8 and 55.6. 256 rows by 4 stages: 80.9 and 79.7 beside 80.6 and 80.7. Of qkv,
// o and down none gained more than runs of cuBLAS differ. Whole steps of qwen3-8b with this kernel, ms beside the same with cuBLAS: 48 rows 6.52 and
// 6.64, 64 7.21 and 7.33, 96 8.59 and 8.67, 128 10.03 and 10.07.
constexpr int kTallRows = 192;

template <class Shape, bool GATED>
void run(const LinearBatchArgs& args, int splits, void* stream) {
  using T = typename Shape::T;
  const typename Shape::Parameters parameters{
      describe_matrix(args.weight, args.n, args.k, GATED ? Shape::kRows / 2 : Shape::kRows),
      describe_matrix(args.x, args.batch, args.k, Shape::kColumns),
      static_cast<const T*>(args.bias),
      static_cast<T*>(args.out),
      args.batch,
      args.n,
      args.k,
      splits,
      args.epilogue == Epilogue::add_residual,
      args.squares,
      args.eps,
      static_cast<const T*>(args.next_norm),
      static_cast<T*>(args.next_x),
      args.next_squares,
  };
  const auto kernel = linear_batch_kernel<Shape, GATED>;
  allow_shared_bytes(kernel, Shape::kBytes, "linear_batch");
  launch(kernel, "linear_batch", {dim3(args.n / Shape::kRows * splits), Shape::kBlockThreads, Shape::kBytes, splits}, parameters, stream);
}

template <class Element, bool GATED, int STAGES>
void run_stages(const LinearBatchArgs& args, int splits, void* stream) {
  if (args.batch <= 16) return run<BatchShape<Element, 16, STAGES>, GATED>(args, splits, stream);
  run<BatchShape<Element, 32, STAGES>, GATED>(args, splits, stream);
}

template <class Element, bool GATED>
void run_divided(const LinearBatchArgs& args, void* stream) {
  if constexpr (GATED) {
    if (args.batch > 64) return run<BatchShape<Element, 128, 5, kTallRows / 64>, true>(args, 1, stream);
    if (args.batch > kLinearBatchMaxBatch) return run<BatchShape<Element, 64, 7, kTallRows / 64>, true>(args, 1, stream);
  }
  const Division division = choose(args.n, args.k, GATED);
  if (division.stages == 5) return run_stages<Element, GATED, 5>(args, division.splits, stream);
  run_stages<Element, GATED, 8>(args, division.splits, stream);
}

}  // namespace

const char* why_no_linear_batch(int64_t n, int64_t k, int batch, Epilogue epilogue) {
  const int most = epilogue == Epilogue::silu_and_mul ? kLinearBatchMaxGated : kLinearBatchMaxBatch;
  if (batch < 1 || batch > most) return "linear_batch takes 1 to 32 rows, of gates 1 to 128";
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 30) || k > (int64_t{1} << 20)) return "the sizes are out of range";
  if (n % 64 || k % 64) return "n and k must be multiples of 64";
  return batch > kLinearBatchMaxBatch && n % kTallRows ? "for more than 32 rows n must be a multiple of 192" : nullptr;
}

bool tall_tiles_fill_the_device(int64_t n) {
  const int64_t tiles = n / kTallRows, places = num_multiprocessors(), turns = (tiles + places - 1) / places;
  return tiles * 8 >= turns * places * 7;
}

void linear_batch(const LinearBatchArgs& args, void* stream) {
  if (const char* reason = why_no_linear_batch(args.n, args.k, args.batch, args.epilogue)) throw std::invalid_argument(reason);
  if (args.squares != nullptr && args.batch > kLinearBatchMaxBatch) throw std::invalid_argument("linear_batch finishes norms of 1 to 32 rows");
  if (args.next_norm != nullptr && args.epilogue != Epilogue::add_residual)
    throw std::invalid_argument("linear_batch leaves what a norm needs beside sums with a residual");
  with_element(args.type, [&](auto element) {
    if (args.epilogue == Epilogue::silu_and_mul) return run_divided<decltype(element), true>(args, stream);
    run_divided<decltype(element), false>(args, stream);
  });
}

}  // namespace xllm::kernels::cuda

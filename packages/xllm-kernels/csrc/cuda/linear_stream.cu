// Which configuration of the kernel serves a product, and its launch.
//
// Measured on an H200 in whole decode steps of one graph, bfloat16. Copies of boxes that brought 256 bytes to L2 reached 3.4 TB/s (o of qwen3-8b), 3.6
// (qkv), 3.9 (down), 4.1 (gate_up), 4.3 (head) at batch 1; registers filled by ld.global.nc gave 2.8 to 3.9, copies row by row 2.4 to 3.6.
// Neighbours must fit into a multiprocessor's 228 KB together, or the next kernel's ring cannot fill while this one ends.
// One row, ms a step of qwen3-8b: down by Narrow with four stages 4.13, by tiles of 64 rows and K in four slices 4.17, in a cluster 4.40; then o by
// Long 4.07, Narrow 4.09, Deep 4.13. Of qwen3-0.6b: gate_up by Broad 0.63, by Wide 0.66; o by Whole 0.66, Deep 0.69.
// With boxes that bring 128 bytes to L2 (tensor_map.cu), qwen3-8b: gate_up by Broad 3.99, Wide 4.05; then qkv by Narrow 3.86, with four stages 3.93;
// down by Cramped 3.83, with four stages 3.84, with six and one block a multiprocessor 3.90. qkv of qwen3-0.6b and 30b-a3b by Ample 0.626 and 2.51,
// by Narrow 0.669 and 2.59; of the latter by Broad, which fits beside the mixture before it, and let in once its gates are done, 2.29 for 2.33.
// qkv of qwen3-0.6b by Broad and Ample, in turn in one process: 0.684 and 0.612.
// Two to eight rows, in turn in one process: o of qwen3-8b by Wide whole, and with K in two slices, 4.186 and 4.090 at two rows, 4.325 and 4.229 at four,
// not told apart at eight; of qwen3-30b-a3b by Deep, and by Wide in four slices, 5.230 and 5.163 at four, 7.769 and 7.751 at eight. gate_up of
// qwen3-8b by Wide and Wider 4.161 and 4.144, 4.235 and 4.191, 4.425 and 4.359 at two, four and eight rows; by tiles of 64 and 96 rows 4.42 to 4.67.
#include "linear_stream.cuh"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

// One row: x resident, so that the ring holds W alone, and the norm is done once.
template <class Element>
using Narrow = LinearShape<Element, 1, 1, 1, 8, 512, 6, false>;
// The same where K is so long that x leaves less room.
template <class Element>
using Cramped = LinearShape<Element, 1, 1, 1, 8, 512, 5, false>;
template <class Element>
using Long = LinearShape<Element, 1, 1, 1, 8, 256, 12, false>;
template <class Element>
using Broad = LinearShape<Element, 2, 1, 1, 8, 256, 4, false>;
// The same with more of W under way.
template <class Element>
using Ample = LinearShape<Element, 2, 1, 1, 8, 256, 6, false>;
// All K of a tile in the ring before x comes: latency counts alone.
template <class Element>
using Whole = LinearShape<Element, 1, 1, 1, 8, 512, 8, false>;
// Few rows of W: small tiles, a long ring.
template <class Element>
using Deep = LinearShape<Element, 1, 1, 1, 8, 256, 8, true>;
// Many rows of W.
template <class Element>
using Wide = LinearShape<Element, 2, 1, 1, 8, 256, 4, true>;
// Gates, if they come out even: less of x for each row of W.
template <class Element>
using Wider = LinearShape<Element, 3, 1, 1, 8, 256, 3, true>;
// K no multiple of 256.
template <class Element>
using Small = LinearShape<Element, 2, 1, 1, 2, 64, 8, true>;

constexpr int kMaxSharedBytes = 227 * 1024, kHalfSharedBytes = 113 * 1024;
// Slices meet at the price of about 2 us. So much of a tile has come before x does, or soon after, so that it is not worth a cut.
constexpr int kUnsplitBytes = 128 * 1024;
constexpr int kMaxBlocks = 264;  // two a multiprocessor of an H100 or H200

struct Plan {
  void (*run)(const LinearStreamArgs&, int splits, int blocks, void* stream) = nullptr;
  int rows = 0;
  int k_step = 0;
  int min_units = 128;  // slices of K are added until there are so many units: about one a multiprocessor
  int blocks = kMaxBlocks;
};

template <class Shape, Epilogue EPI>
void run(const LinearStreamArgs& args, int splits, int blocks, void* stream) {
  constexpr bool kNorm = EPI != Epilogue::add_residual;
  const int box_rows = EPI == Epilogue::silu_and_mul ? Shape::kRows / 2 : Shape::kRows;
  using T = typename Shape::T;
  const typename Shape::Parameters parameters{
      describe_matrix(args.weight, args.n, args.k, box_rows),
      Shape::kXStage ? describe_matrix(args.x, args.batch, args.k, Shape::kColumns) : CUtensorMap{},
      static_cast<const T*>(args.x),
      static_cast<const T*>(args.norm_weight),
      static_cast<const T*>(args.bias),
      static_cast<T*>(args.out),
      args.batch,
      args.n,
      args.k,
      splits,
      args.eps,
  };
  const auto kernel = linear_stream_kernel<Shape, EPI, kNorm>;
  const int bytes = Shape::bytes(args.k, args.batch);
  allow_shared_bytes(kernel, bytes, "linear_stream");
  launch(kernel, "linear_stream", {dim3(blocks), Shape::kBlockThreads, bytes, splits}, parameters, stream);
}

template <class Shape, Epilogue EPI>
Plan plan() {
  return {run<Shape, EPI>, Shape::kRows, Shape::kKc};
}

template <class Shape>
bool fits(int batch, int64_t n, int64_t k, int max_bytes = kMaxSharedBytes) {
  return n % Shape::kRows == 0 && k % Shape::kKc == 0 && Shape::bytes(static_cast<int>(k), batch) <= max_bytes;
}
// Whether two blocks share a multiprocessor.
template <class Shape>
bool fits_twice(int batch, int64_t n, int64_t k) {
  return fits<Shape>(batch, n, k, kHalfSharedBytes);
}

Plan with_units(Plan plan, int min_units) {
  plan.min_units = min_units;
  return plan;
}

template <class Element>
Plan plan_add_residual(int batch, int64_t n, int64_t k) {
  const bool is_long = k > 2 * n;
  using InRing = Whole<Element>;
  const bool is_in_ring = n / InRing::kRows <= kMaxBlocks / 2 && k <= InRing::kKc * InRing::kStages;
  if (batch <= 2 && is_in_ring && fits<InRing>(batch, n, k)) return plan<InRing, Epilogue::add_residual>();
  if (batch == 1 && is_long && fits_twice<Cramped<Element>>(batch, n, k)) return plan<Cramped<Element>, Epilogue::add_residual>();
  if (batch == 1 && fits_twice<Long<Element>>(batch, n, k)) return plan<Long<Element>, Epilogue::add_residual>();
  if (fits<Deep<Element>>(batch, n, k) && (batch == 1 || n < 2048)) return plan<Deep<Element>, Epilogue::add_residual>();
  const bool is_cut = is_long || n < 4096 || batch <= 4;
  if (fits<Wide<Element>>(batch, n, k)) return with_units(plan<Wide<Element>, Epilogue::add_residual>(), is_cut ? 256 : 128);
  return fits<Small<Element>>(batch, n, k) ? plan<Small<Element>, Epilogue::add_residual>() : Plan{};
}

// One row: x resident in two blocks a multiprocessor.
template <class Element>
bool is_broad(int batch, int64_t n, int64_t k) {
  return batch == 1 && fits_twice<Broad<Element>>(batch, n, k);
}

template <class Element>
Plan plan_none(int batch, int64_t n, int64_t k) {
  if (batch == 1 && n <= 16384) {
    if (k < 2048 && fits_twice<Ample<Element>>(batch, n, k)) return plan<Ample<Element>, Epilogue::none>();
    if (k > 2048 && fits_twice<Narrow<Element>>(batch, n, k)) return plan<Narrow<Element>, Epilogue::none>();
  }
  if (is_broad<Element>(batch, n, k)) return plan<Broad<Element>, Epilogue::none>();
  if (fits<Wide<Element>>(batch, n, k)) return plan<Wide<Element>, Epilogue::none>();
  return fits<Small<Element>>(batch, n, k) ? plan<Small<Element>, Epilogue::none>() : Plan{};
}

template <class Element>
Plan plan_silu_and_mul(int batch, int64_t n, int64_t k) {
  if (is_broad<Element>(batch, n, k)) return plan<Broad<Element>, Epilogue::silu_and_mul>();
  if (batch > 1 && fits<Wider<Element>>(batch, n, k)) return plan<Wider<Element>, Epilogue::silu_and_mul>();
  if (fits<Wide<Element>>(batch, n, k)) return plan<Wide<Element>, Epilogue::silu_and_mul>();
  return fits<Small<Element>>(batch, n, k) ? plan<Small<Element>, Epilogue::silu_and_mul>() : Plan{};
}

template <class Element>
Plan choose(int batch, int64_t n, int64_t k, Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::add_residual: return plan_add_residual<Element>(batch, n, k);
    case Epilogue::silu_and_mul: return plan_silu_and_mul<Element>(batch, n, k);
    case Epilogue::none: return plan_none<Element>(batch, n, k);
  }
  return {};
}

}  // namespace

const char* why_no_linear_stream(int64_t n, int64_t k, Epilogue epilogue) {
  if (n <= 0 || k <= 0 || n > (int64_t{1} << 30) || k > (int64_t{1} << 20)) return "the sizes are out of range";
  if (choose<BFloat16Element>(kLinearStreamMaxBatch, n, k, epilogue).run == nullptr) return "n must be a multiple of 32 and k of 64";
  return nullptr;
}

void linear_stream(const LinearStreamArgs& args, void* stream) {
  if (args.batch < 1 || args.batch > kLinearStreamMaxBatch) throw std::invalid_argument("linear_stream takes 1 to 8 rows");
  if (const char* reason = why_no_linear_stream(args.n, args.k, args.epilogue)) throw std::invalid_argument(reason);
  if ((args.norm_weight == nullptr) != (args.epilogue == Epilogue::add_residual))
    throw std::invalid_argument("linear_stream takes a norm with every epilogue but add_residual");
  const Plan plan = with_element(args.type, [&](auto element) { return choose<decltype(element)>(args.batch, args.n, args.k, args.epilogue); });
  const int tiles = args.n / plan.rows;
  int splits = 1;
  const auto is_long = [&] { return args.k / splits * plan.rows * 2 > kUnsplitBytes; };
  while (tiles * splits < plan.min_units && splits < kMaxSlices && is_long() && args.k % (plan.k_step * splits * 2) == 0) splits *= 2;
  plan.run(args, splits, splits > 1 ? tiles * splits : std::min(plan.blocks, tiles), stream);
}

}  // namespace xllm::kernels::cuda

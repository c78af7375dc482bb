// Which configuration of the kernel serves a batch, and its two launches.
#include "expert_stream.cuh"

#include <algorithm>
#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kMaxSharedBytes = 227 * 1024, kStaticBytes = 4 * 1024;  // a block's; what the list of groups takes of them, with room
constexpr int kReservedBytes = 1024;                                 // the system's part of each block

// Measured on an H200 (2026-11-29), us of both products of a layer of 128 experts of 2048 x 768, 8 a token; floor: their bytes at 4.3 TB/s.
//   tokens   floor   8 rows a pass   16    32    torch's grouped product
//     1       17.6                   26     27    54
//     8      121         130         135   139   213
//    32      241         251         251   253   378
//    64      274         290         286   286   417
//   128      281         404         318   359   420
//   256      281         707         453   531   421
// Tiles of 16 outputs, which divide evenly among the blocks of one token, took 28 us at 1 and 48 at 2 (tiles of 32: 42): boxes of eight
// rows are too small. A ring of 8 stages where one block has a multiprocessor for itself was slower than 4 (263 at 32 tokens). On another
// card (2026-11-30): 260 with 8 rows a pass and 256 with 16 at 32 tokens; 315 with one block of down a multiprocessor and 309 with two at 128.
using Wide = ExpertShape<2, 1, 1, 8, 256, 4>;    // 8 rows of an expert
using Wider = ExpertShape<2, 2, 1, 8, 256, 4>;   // 16
using Widest = ExpertShape<2, 4, 2, 4, 256, 4>;  // 32
using Small = ExpertShape<2, 1, 1, 2, 64, 8>;    // K no multiple of 256

template <class Shape>
bool fits(int n, int k, int resident) {
  return n % Shape::kRows == 0 && k % Shape::kKc == 0 && Shape::bytes(k, resident) + kStaticBytes <= kMaxSharedBytes;
}

// Whether two blocks share a multiprocessor.
template <class Shape>
bool fits_twice(int k, int resident) {
  return 2 * (Shape::bytes(k, resident) + kStaticBytes + kReservedBytes) <= kMaxSharedBytes + kReservedBytes;
}

// Resident rows up to which two blocks of gate and up are faster than one: with eight, whole steps of 32 tokens took 15.45 ms for 15.22.
constexpr int kSharedRows = 6;

template <class Shape, bool GATED>
void run(const ExpertParameters& parameters, const void* weight, void* stream) {
  constexpr int kPlanes = GATED ? 2 : 1, kBoxRows = Shape::kRows / kPlanes;
  ExpertParameters described = parameters;
  described.weight = describe_stacked(weight, int64_t{parameters.num_experts} * kPlanes, parameters.n, parameters.k, kBoxRows, kPlanes);
  const int bytes = Shape::bytes(parameters.k, parameters.resident);
  const bool may_share = !GATED || parameters.resident <= kSharedRows;
  const int blocks = may_share && fits_twice<Shape>(parameters.k, parameters.resident) ? 2 : 1;
  const auto kernel = expert_stream_kernel<Shape, GATED>;
  allow_shared_bytes(kernel, bytes, "run_experts");
  launch(kernel, "run_experts", {dim3(blocks * num_multiprocessors()), Shape::kBlockThreads, bytes}, described, stream);
}

using Run = void (*)(const ExpertParameters&, const void* weight, void* stream);

struct Plan {
  Run run = nullptr;
  int columns = 0;
};

// `columns` rows of an expert at a time, or as many below as shared memory takes; no group has more than `most` rows.
template <bool GATED>
Plan choose(int n, int k, int columns, int most) {
  if (columns >= 32 && fits<Widest>(n, k, std::min(32, most))) return {run<Widest, GATED>, 32};
  if (columns >= 16 && fits<Wider>(n, k, std::min(16, most))) return {run<Wider, GATED>, 16};
  const int resident = std::min(8, most);
  if (fits<Wide>(n, k, resident)) return {run<Wide, GATED>, 8};
  return fits<Small>(n, k, resident) ? Plan{run<Small, GATED>, 8} : Plan{};
}

template <bool GATED>
void run_chosen(ExpertParameters& parameters, const void* weight, int columns, int num_tokens, void* stream) {
  const Plan plan = choose<GATED>(parameters.n, parameters.k, columns, num_tokens);
  parameters.resident = std::min(plan.columns, num_tokens);
  plan.run(parameters, weight, stream);
}

}  // namespace

const char* why_no_run_experts(int64_t num_experts, int64_t hidden, int64_t inner) {
  if (num_experts < 1 || num_experts > kMaxExperts) return "there must be 1 to 256 experts";
  if (hidden < 64 || inner < 64 || hidden > 16384 || inner > 16384) return "the sizes are out of range";
  if (choose<true>(static_cast<int>(inner), static_cast<int>(hidden), 8, 8).run == nullptr ||
      choose<false>(static_cast<int>(hidden), static_cast<int>(inner), 8, 8).run == nullptr)
    return "the hidden and the inner size must be multiples of 64";
  return nullptr;
}

void run_experts(const RunExpertsArgs& args, void* stream) {
  if (const char* reason = why_no_run_experts(args.num_experts, args.hidden, args.inner)) throw std::invalid_argument(reason);
  if (args.num_rows < 1 || args.num_rows > kRunExpertsMaxRows) throw std::invalid_argument("run_experts takes 1 to 4096 rows");
  const int64_t rows_of_expert = args.num_rows / args.num_experts;
  const int columns = args.columns != 0 ? args.columns : args.num_tokens <= 8 ? 8 : rows_of_expert <= 10 ? 16 : 32;
  ExpertParameters parameters{};
  parameters.x = static_cast<const __nv_bfloat16*>(args.x);
  parameters.token_of_row = args.token_of_row;
  parameters.starts = args.starts;
  parameters.out = static_cast<__nv_bfloat16*>(args.gated);
  parameters.num_experts = args.num_experts;
  parameters.n = args.inner;
  parameters.k = args.hidden;
  run_chosen<true>(parameters, args.gate_up, columns, args.num_tokens, stream);
  parameters.x = static_cast<const __nv_bfloat16*>(args.gated);
  parameters.out = static_cast<__nv_bfloat16*>(args.out);
  parameters.n = args.hidden;
  parameters.k = args.inner;
  run_chosen<false>(parameters, args.down, columns, args.num_tokens, stream);
}

}  // namespace xllm::kernels::cuda

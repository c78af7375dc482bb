// Launches of the products of many rows an expert, and what brings the rows into order before them.
#include "expert_tiles.cuh"

#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

struct SpreadParameters {
  const __nv_bfloat16* x;      // [tokens, size]
  const int32_t* row_of_pair;  // [tokens * top_k]
  __nv_bfloat16* rows;         // [tokens * top_k, size]
  int top_k;
  int size;
};

constexpr int kSpreadThreads = 256;

// A block reads a token once and writes it to all of its rows.
__global__ void __launch_bounds__(kSpreadThreads) spread_kernel(const __grid_constant__ SpreadParameters args) {
  __shared__ int rows[kMaxExpertsPerToken];
  launch_dependents();
  wait_for_prerequisites();
  if (threadIdx.x < args.top_k) rows[threadIdx.x] = args.row_of_pair[int64_t{blockIdx.x} * args.top_k + threadIdx.x];
  __syncthreads();
  const auto* x = reinterpret_cast<const uint4*>(args.x + int64_t{blockIdx.x} * args.size);
  for (int i = threadIdx.x; i < args.size / 8; i += kSpreadThreads) {
    const uint4 v = x[i];
    for (int j = 0; j < args.top_k; ++j) reinterpret_cast<uint4*>(args.rows + static_cast<int64_t>(rows[j]) * args.size)[i] = v;
  }
}

template <bool GATED>
void run(const TileParameters& parameters, void* stream) {
  allow_shared_bytes(expert_tiles_kernel<GATED>, TileShape::kBytes, "expert_tiles");
  launch(expert_tiles_kernel<GATED>, "expert_tiles", {dim3(num_multiprocessors()), TileShape::kThreads, TileShape::kBytes}, parameters, stream);
}

}  // namespace

const char* why_no_expert_tiles(int64_t num_experts, int64_t hidden, int64_t inner) {
  if (num_experts < 1 || num_experts > kMaxExperts) return "there must be 1 to 256 experts";
  if (hidden < 256 || hidden % 256 != 0 || hidden > 16384) return "the hidden size must be a multiple of 256 up to 16384";
  if (inner < 128 || inner % 128 != 0 || inner > 16384) return "the inner size must be a multiple of 128 up to 16384";
  return nullptr;
}

void expert_tiles(const ExpertTilesArgs& args, void* stream) {
  if (const char* reason = why_no_expert_tiles(args.num_experts, args.hidden, args.inner)) throw std::invalid_argument(reason);
  if (args.top_k < 1 || args.top_k > kMaxExpertsPerToken) throw std::invalid_argument("a token takes 1 to 16 experts");
  const int64_t num_rows = args.num_tokens * args.top_k;
  if (args.num_tokens < 1 || num_rows > (int64_t{1} << 30)) throw std::invalid_argument("expert_tiles needs tokens, and at most 2^30 rows");
  launch(spread_kernel, "spread_rows", {dim3(static_cast<unsigned>(args.num_tokens)), kSpreadThreads},
         SpreadParameters{static_cast<const __nv_bfloat16*>(args.x), args.row_of_pair, static_cast<__nv_bfloat16*>(args.rows), args.top_k, args.hidden},
         stream);
  TileParameters parameters{};
  parameters.starts = args.starts;
  parameters.num_experts = args.num_experts;
  parameters.rows = describe_matrix(args.rows, num_rows, args.hidden, 128);
  parameters.weight = describe_stacked(args.gate_up, int64_t{args.num_experts} * 2, args.inner, args.hidden, 128, 1);
  parameters.out = static_cast<__nv_bfloat16*>(args.gated);
  parameters.n = args.inner;
  parameters.k = args.hidden;
  run<true>(parameters, stream);
  parameters.rows = describe_matrix(args.gated, num_rows, args.inner, 128);
  parameters.weight = describe_stacked(args.down, args.num_experts, args.hidden, args.inner, 128, 1);
  parameters.out = static_cast<__nv_bfloat16*>(args.out);
  parameters.n = args.hidden;
  parameters.k = args.inner;
  run<false>(parameters, stream);
}

}  // namespace xllm::kernels::cuda

// Which configuration of the kernel serves a batch, and its launch.
#include "expert_stream.cuh"

#include <algorithm>
#include <stdexcept>

#include "launch.h"

namespace xllm::kernels::cuda {
namespace {

// Measured on an H200 (2026-11-30), ms of whole steps of qwen3-30b-a3b (128 experts of 2048 x 768, 8 a token), by stages and the groups whose rows
// have room: 32 tokens 4 and 2 14.93, 6 and 2 14.67, 6 and 1 14.59, 10 and 1 14.56; 64 tokens 4 and 2 18.37, 5 and 2 18.34, 6 and 1 17.96, 8 and 1
// 17.69; 128 tokens 20.80, 20.69, 20.35, 19.96, by expert_tiles 20.71. A kernel for each product took 15.1 for 14.6 at 32 (with boxes that brought
// 256 bytes to L2). torch's grouped product takes 378 us at 32 tokens and 420 at 128.
constexpr int kStaticBytes = 4 * 1024;  // at most: the list of groups

struct Plan {
  int stages = 0;  // 0: does not fit
  int row_bytes = 0;
};

// NT column tiles: the rows of a group, and a ring of all that is left beside them.
template <int NT>
Plan plan(int num_tokens, int hidden, int inner) {
  const int row_bytes = std::min(8 * NT, num_tokens) * (std::max(hidden, inner) + 8) * 2;
  const int stages = stages_alone(kMostStages, kExpertStageBytes, ExpertMemory<NT>::bytes(0, row_bytes) + kStaticBytes);
  return stages >= 3 ? Plan{stages, row_bytes} : Plan{};
}

template <int NT>
bool run(ExpertParameters& parameters, int num_tokens, void* stream) {
  const Plan chosen = plan<NT>(num_tokens, parameters.hidden, parameters.inner);
  if (chosen.stages == 0) return false;
  parameters.stages = chosen.stages;
  const int bytes = ExpertMemory<NT>::bytes(chosen.stages, chosen.row_bytes);
  allow_shared_bytes(expert_stream_kernel<NT>, bytes, "run_experts");
  LaunchShape shape{dim3(num_multiprocessors()), kExpertBlockThreads, bytes};
  shape.together = true;
  launch(expert_stream_kernel<NT>, "run_experts", shape, parameters, stream);
  return true;
}

}  // namespace

const char* why_no_run_experts(int64_t num_experts, int64_t hidden, int64_t inner) {
  if (num_experts < 1 || num_experts > kMaxExperts) return "there must be 1 to 256 experts";
  if (hidden < 64 || inner < 64 || hidden > 16384 || inner > 16384) return "the sizes are out of range";
  if (hidden % 64 != 0 || inner % 64 != 0) return "the hidden and the inner size must be multiples of 64";
  if (plan<1>(8, static_cast<int>(hidden), static_cast<int>(inner)).stages == 0) return "the sizes are out of range";
  return nullptr;
}

void run_experts(const RunExpertsArgs& args, void* stream) {
  if (const char* reason = why_no_run_experts(args.num_experts, args.hidden, args.inner)) throw std::invalid_argument(reason);
  if (args.num_rows < 1 || args.num_rows > kRunExpertsMaxRows) throw std::invalid_argument("run_experts takes 1 to 4096 rows");
  const int64_t rows_of_expert = args.num_rows / args.num_experts;
  const int columns = args.columns != 0 ? args.columns : args.num_tokens <= 8 || rows_of_expert <= 2 ? 8 : rows_of_expert <= 10 ? 16 : 32;
  ExpertParameters parameters{};
  parameters.gate_up = describe_stacked(args.gate_up, int64_t{args.num_experts} * 2, args.inner, args.hidden, 16, 2);
  parameters.down = describe_stacked(args.down, args.num_experts, args.hidden, args.inner, kTileRows, 1);
  parameters.x = static_cast<const __nv_bfloat16*>(args.x);
  parameters.token_of_row = args.token_of_row;
  parameters.starts = args.starts;
  parameters.gated = static_cast<__nv_bfloat16*>(args.gated);
  parameters.out = static_cast<__nv_bfloat16*>(args.out);
  parameters.barrier = args.barrier;
  parameters.num_experts = args.num_experts;
  parameters.hidden = args.hidden;
  parameters.inner = args.inner;
  if (columns >= 32 && run<4>(parameters, args.num_tokens, stream)) return;
  if (columns >= 16 && run<2>(parameters, args.num_tokens, stream)) return;
  run<1>(parameters, args.num_tokens, stream);
}

}  // namespace xllm::kernels::cuda

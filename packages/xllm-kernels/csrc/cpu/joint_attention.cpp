// Joint attention: every head is prepared once, then pieces of its queries go to the pool.
#include "xllm/kernels/joint_attention.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "joint_plan.h"
#include "kernel_table.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

struct FreeFloats {
  void operator()(float* memory) const { ::operator delete[](memory, kAlignment); }
};

// Memory of the calling thread that only grows: each fresh page of the system costs a fault.
float* head_memory(size_t num_floats) {
  thread_local std::unique_ptr<float[], FreeFloats> memory;
  thread_local size_t size = 0;
  if (size < num_floats) {
    memory.reset();
    size = 0;
    memory.reset(new (kAlignment) float[num_floats]);
    size = num_floats;
  }
  return memory.get();
}

struct Call {
  const JointAttentionArgs& args;
  std::vector<PreparedHead> heads;
  int64_t items_per_head;
  int64_t num_queries;
};

void prepare_heads(void* context, int64_t begin, int64_t end) {
  Call& call = *static_cast<Call*>(context);
  for (int64_t i = begin; i < end; ++i)
    kernels().prepare_joint_head(call.args, i / call.args.num_heads, i % call.args.num_heads,
                                 call.heads[static_cast<size_t>(i)]);
}

void run_items(void* context, int64_t begin, int64_t end) {
  const Call& call = *static_cast<const Call*>(context);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t head = i / call.items_per_head, first = i % call.items_per_head * kQueriesPerItem;
    const JointItem item{head / call.args.num_heads, head % call.args.num_heads, first,
                         std::min(kQueriesPerItem, call.num_queries - first)};
    kernels().attend_joint(call.args, call.heads[static_cast<size_t>(head)], item);
  }
}

}  // namespace

void joint_attention(const JointAttentionArgs& args) {
  const int64_t num_queries = num_tokens(args) - args.first_query, num_heads = args.num_batch * args.num_heads;
  if (num_queries <= 0 || num_heads <= 0) return;
  const int64_t head_floats = padded(num_tokens(args)) * padded(args.head_size);
  float* const memory = head_memory(static_cast<size_t>(2 * num_heads * head_floats));
  Call call{args, {}, (num_queries + kQueriesPerItem - 1) / kQueriesPerItem, num_queries};
  call.heads.reserve(static_cast<size_t>(num_heads));
  for (int64_t head = 0; head < num_heads; ++head) {
    float* own = memory + 2 * head * head_floats;
    call.heads.push_back({own, own + head_floats, 0});
  }
  parallel_for(num_heads, 1, prepare_heads, &call);
  parallel_for(num_heads * call.items_per_head, 1, run_items, &call);
}

}  // namespace xllm::kernels::cpu

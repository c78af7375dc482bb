// Cuts attention of beams into items and runs them on the pool. Knows nothing of how an item is computed.
#include "xllm/kernels/beam_attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "kernel_table.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {
namespace {

// Beams x heads of a group that one item takes: they share every key and value that is loaded.
constexpr int64_t kRowsPerItem = 64;

struct Call {
  const BeamAttentionArgs& args;
  std::vector<AttentionItem> items;
  float* partials;
};

int64_t plan_items(const BeamAttentionArgs& args, std::vector<AttentionItem>& items) {
  const PagedAttentionArgs& prompt = args.prompt;
  const int64_t group = prompt.num_query_heads / prompt.num_kv_heads;
  const int64_t beams_per_item = std::max<int64_t>(kRowsPerItem / group, 1);
  int64_t num_floats = 0;
  for (int64_t s = 0; s < prompt.num_seqs; ++s) {
    const int64_t num_beams = prompt.query_start[s + 1] - prompt.query_start[s];
    const int64_t num_splits = (prompt.seq_lens[s] + kKeysPerSplit - 1) / kKeysPerSplit;
    for (int64_t head = 0; head < prompt.num_kv_heads; ++head)
      for (int64_t first = 0; first < num_beams; first += beams_per_item) {
        const int64_t count = std::min(beams_per_item, num_beams - first);
        items.push_back({static_cast<int32_t>(s), static_cast<int32_t>(head), static_cast<int32_t>(first),
                         static_cast<int32_t>(count), 0, static_cast<int32_t>(num_splits), num_floats});
        num_floats += partial_size(count * group, padded_head_dim(prompt.head_dim));
      }
  }
  return num_floats;
}

void run_items(void* context, int64_t begin, int64_t end) {
  const Call& call = *static_cast<const Call*>(context);
  for (int64_t i = begin; i < end; ++i)
    kernels().attend_beams(call.args, call.items[static_cast<size_t>(i)], call.partials);
}

}  // namespace

void beam_attention(const BeamAttentionArgs& args) {
  Call call{args, {}, nullptr};
  const int64_t num_floats = plan_items(args, call.items);
  const std::unique_ptr<float[]> partials(new float[static_cast<size_t>(num_floats)]);
  call.partials = partials.get();
  parallel_for(static_cast<int64_t>(call.items.size()), 1, run_items, &call);
}

}  // namespace xllm::kernels::cpu

// Cuts paged attention into items and runs them on the pool. Knows nothing of how an item is computed, and decides
// nothing that could change a result: see attention_plan.h.
#include "xllm/kernels/paged_attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "attention_plan.h"
#include "kernel_table.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {
namespace {

// Query rows x heads of a group that one item takes: they share every key and value that is loaded.
constexpr int64_t kRowsPerItem = 64;
// Items a thread should have to choose from, so that none waits long for the last one.
constexpr int64_t kItemsPerThread = 4;

// A run of items that leave partial results of the same rows.
struct Merge {
  int64_t first_item;
  int64_t num_items;
};

struct Plan {
  std::vector<AttentionItem> items;
  std::vector<Merge> merges;
  int64_t partial_floats = 0;  // of all partial results
};

int64_t rows_of(const PagedAttentionArgs& args, int64_t sequence) {
  return args.query_start[sequence + 1] - args.query_start[sequence];
}

// Splits of keys that rows [first_row, first_row + num_rows) see.
void set_splits(const PagedAttentionArgs& args, AttentionItem& item) {
  const int64_t first_position = args.seq_lens[item.sequence] - rows_of(args, item.sequence) + item.first_row;
  const int64_t first_key = args.sliding_window > 0 ? first_position + 1 - args.sliding_window : 0;
  item.first_split = static_cast<int32_t>(std::max<int64_t>(first_key, 0) / kKeysPerSplit);
  item.end_split = static_cast<int32_t>((first_position + item.num_rows + kKeysPerSplit - 1) / kKeysPerSplit);
}

Plan make_plan(const PagedAttentionArgs& args) {
  const int64_t group = args.num_query_heads / args.num_kv_heads;
  const int64_t rows_per_item = std::max<int64_t>(kRowsPerItem / group, 1);
  int64_t num_items = 0;
  for (int64_t s = 0; s < args.num_seqs; ++s)
    num_items += (rows_of(args, s) + rows_per_item - 1) / rows_per_item * args.num_kv_heads;
  const bool cut_keys = get_num_threads() > 1 && num_items < kItemsPerThread * get_num_threads();

  Plan plan;
  plan.items.reserve(static_cast<size_t>(num_items));
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t num_rows = rows_of(args, s);
    for (int64_t first = 0; first < num_rows; first += rows_per_item) {
      for (int64_t head = 0; head < args.num_kv_heads; ++head) {
        AttentionItem item{static_cast<int32_t>(s),     static_cast<int32_t>(head),
                           static_cast<int32_t>(first), static_cast<int32_t>(std::min(rows_per_item, num_rows - first)),
                           0,                           0,
                           -1};
        set_splits(args, item);
        if (!cut_keys || item.end_split - item.first_split < 2) {
          plan.items.push_back(item);
          continue;
        }
        plan.merges.push_back({static_cast<int64_t>(plan.items.size()), item.end_split - item.first_split});
        for (int32_t split = item.first_split; split < item.end_split; ++split) {
          AttentionItem piece = item;
          piece.first_split = split;
          piece.end_split = split + 1;
          piece.partial_offset = plan.partial_floats;
          plan.partial_floats += partial_size(item.num_rows * group, padded_head_dim(args.head_dim));
          plan.items.push_back(piece);
        }
      }
    }
  }
  return plan;
}

struct Call {
  const PagedAttentionArgs& args;
  const Plan& plan;
  float* partials;
};

void run_items(void* context, int64_t begin, int64_t end) {
  const Call& call = *static_cast<const Call*>(context);
  for (int64_t i = begin; i < end; ++i) {
    kernels().attend(call.args, call.plan.items[static_cast<size_t>(i)], call.partials);
  }
}

void run_merges(void* context, int64_t begin, int64_t end) {
  const Call& call = *static_cast<const Call*>(context);
  for (int64_t i = begin; i < end; ++i) {
    const Merge& merge = call.plan.merges[static_cast<size_t>(i)];
    const AttentionItem& first = call.plan.items[static_cast<size_t>(merge.first_item)];
    kernels().merge_partials(call.args, first, merge.num_items, call.partials);
  }
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args) {
  const Plan plan = make_plan(args);
  std::unique_ptr<float[]> partials;
  if (plan.partial_floats > 0) partials.reset(new float[static_cast<size_t>(plan.partial_floats)]);
  Call call{args, plan, partials.get()};
  parallel_for(static_cast<int64_t>(plan.items.size()), 1, run_items, &call);
  parallel_for(static_cast<int64_t>(plan.merges.size()), 1, run_merges, &call);
}

}  // namespace xllm::kernels::cpu

#include "beam_check.h"

#include <stdexcept>
#include <string>

namespace xllm::kernels::native {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void check_rows(const BeamStepArgs& args, const DecoderShape& shape, const BeamCache& beams, int64_t num_positions) {
  for (int64_t r = 0; r < args.num_rows; ++r) {
    if (args.token_ids[r] < 0 || args.token_ids[r] >= shape.vocab_size)
      fail("token_ids[" + std::to_string(r) + "] is not in the vocabulary");
    if (args.positions[r] < 0 || args.positions[r] >= num_positions)
      fail("positions[" + std::to_string(r) + "] has no rotary entry");
    for (int64_t t = 0; t <= args.round; ++t) {
      const int32_t row = args.ancestors[r * args.ancestors_stride + t];
      if (row < 0 || row >= beams.num_rows()) fail("ancestors[" + std::to_string(r) + "] is not a row of the cache");
    }
  }
}

void check_requests(const BeamStepArgs& args, const KVCache& cache) {
  if (args.query_start[0] != 0 || args.query_start[args.num_requests] != args.num_rows)
    fail("query_start must go from 0 to the number of rows");
  for (int64_t s = 0; s < args.num_requests; ++s) {
    if (args.query_start[s + 1] < args.query_start[s]) fail("query_start must ascend");
    const int64_t end = (args.prompt_lens[s] + cache.block_size() - 1) / cache.block_size();
    if (args.prompt_lens[s] < 1 || end > args.num_columns)
      fail("prompt_lens[" + std::to_string(s) + "] does not fit the columns of block_tables");
    for (int64_t i = 0; i < end; ++i) {
      const int32_t block = args.block_tables[s * args.block_table_stride + i];
      if (block < 0 || block >= cache.num_blocks()) fail("block_tables names a block that the cache does not have");
    }
  }
}

}  // namespace

void check_beam_step(const BeamStepArgs& args, const DecoderShape& shape, const KVCache& cache, const BeamCache& beams,
                     int64_t num_positions) {
  for (const int64_t window : shape.sliding_windows)
    if (window != 0) fail("beams need layers that see all keys, and some have a sliding window");
  if (args.round < 0 || args.round >= beams.num_rounds()) fail("round is not one of the beam cache");
  if (args.num_rows > beams.num_rows()) fail("there are more rows than the beam cache holds");
  if ((beams.type() == CacheType::bfloat16) != (cache.dtype() == DType::bfloat16))
    fail("the beam cache must be of the type of the key-value cache");
  check_rows(args, shape, beams, num_positions);
  check_requests(args, cache);
}

}  // namespace xllm::kernels::native

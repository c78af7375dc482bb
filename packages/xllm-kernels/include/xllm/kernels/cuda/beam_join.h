// Attention of beams on a GPU, second part: joins each beam's own keys to what attention over its prompt left.
#pragma once

#include <cstdint>

namespace xllm::kernels::cuda {

inline constexpr int kBeamJoinMaxRounds = 64;

// All in bfloat16 but for lse. Row r also leaves its key and value as row r of the last round.
struct BeamJoinArgs {
  const void* query;         // [num_rows, num_heads, head_dim], rows query_row_stride elements apart
  const void* key;           // [num_rows, num_kv_heads, head_dim], rows key_row_stride elements apart
  const void* value;         // the same
  const void* attended;      // [num_splits, num_rows, num_heads, head_dim] over parts of the prompts, dense
  const float* lse;          // [num_splits, num_heads, num_rows], dense: logarithms of the softmax denominators; infinite where a part
                             // has no keys
  void* beam_key;            // [num_rounds, *, num_kv_heads, head_dim], rows dense, rounds round_stride elements apart
  void* beam_value;          // the same
  const int32_t* ancestors;  // [num_rows, num_rounds], rows ancestors_stride entries apart; entries of the last round are not read
  void* out;                 // [num_rows, num_heads, head_dim], dense
  int64_t num_rows;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;          // 64 or 128
  int64_t num_rounds;        // up to this one
  int64_t num_splits;
  int64_t query_row_stride;
  int64_t key_row_stride;
  int64_t value_row_stride;
  int64_t round_stride;
  int64_t ancestors_stride;
  float scale;
};

// nullptr where the kernel serves these heads, else why not.
const char* why_no_beam_join(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim);

// Starts the kernel on `stream` (a cudaStream_t) of the current device.
void beam_join(const BeamJoinArgs& args, void* stream);

}  // namespace xllm::kernels::cuda

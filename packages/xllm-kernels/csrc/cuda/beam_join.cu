// One warp for each beam and head: an online softmax (Milakov and Gimelshein, 2018) that begins with the prompt's result.
#include <stdexcept>

#include "async_copy.cuh"
#include "launch.h"
#include "matrix.cuh"
#include "xllm/kernels/cuda/beam_join.h"

namespace xllm::kernels::cuda {
namespace {

constexpr int kWarps = 8;

// Elements of a head that one lane holds.
template <int N>
struct Lane {
  float values[N];
};

template <int N>
__device__ __forceinline__ Lane<N> load_lane(const void* base, int64_t offset, int lane) {
  const auto* source = reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(base) + offset) + lane * (N / 2);
  Lane<N> result;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const float2 pair = unpack(source[i]);
    result.values[2 * i] = pair.x;
    result.values[2 * i + 1] = pair.y;
  }
  return result;
}

template <int N>
__device__ __forceinline__ void store_lane(void* base, int64_t offset, int lane, const Lane<N>& x) {
  auto* target = reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(base) + offset) + lane * (N / 2);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) target[i] = __floats2bfloat162_rn(x.values[2 * i], x.values[2 * i + 1]);
}

template <int N>
__device__ __forceinline__ float dot(const Lane<N>& a, const Lane<N>& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += a.values[i] * b.values[i];
#pragma unroll
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  return sum;
}

template <int N>
__global__ void beam_join_kernel(const __grid_constant__ BeamJoinArgs args) {
  launch_dependents();
  wait_for_prerequisites();
  constexpr int kHeadDim = 32 * N;
  const int lane = threadIdx.x % 32;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= args.num_rows * args.num_heads) return;
  const int64_t row = item / args.num_heads, head = item % args.num_heads;
  const int64_t group = args.num_heads / args.num_kv_heads, kv_head = head / group;
  const Lane<N> query = load_lane<N>(args.query, row * args.query_row_stride + head * kHeadDim, lane);
  Lane<N> sums = {};
  float maximum = -INFINITY, denominator = 0.0f;
  for (int64_t split = 0; split < args.num_splits; ++split) {
    const float lse = args.lse[(split * args.num_heads + head) * args.num_rows + row];
    if (!(lse < INFINITY)) continue;
    const Lane<N> part = load_lane<N>(args.attended, ((split * args.num_rows + row) * args.num_heads + head) * kHeadDim, lane);
    const float highest = fmaxf(maximum, lse);
    const float keep = __expf(maximum - highest), take = __expf(lse - highest);
    maximum = highest;
    denominator = denominator * keep + take;
#pragma unroll
    for (int i = 0; i < N; ++i) sums.values[i] = sums.values[i] * keep + part.values[i] * take;
  }
  const int64_t last = args.num_rounds - 1;
  for (int64_t round = 0; round <= last; ++round) {
    Lane<N> key, value;
    if (round == last) {
      key = load_lane<N>(args.key, row * args.key_row_stride + kv_head * kHeadDim, lane);
      value = load_lane<N>(args.value, row * args.value_row_stride + kv_head * kHeadDim, lane);
    } else {
      const int64_t ancestor = args.ancestors[row * args.ancestors_stride + round];
      const int64_t place = round * args.round_stride + (ancestor * args.num_kv_heads + kv_head) * kHeadDim;
      key = load_lane<N>(args.beam_key, place, lane);
      value = load_lane<N>(args.beam_value, place, lane);
    }
    const float score = dot(query, key) * args.scale;
    const float highest = fmaxf(maximum, score);
    const float keep = __expf(maximum - highest), take = __expf(score - highest);
    maximum = highest;
    denominator = denominator * keep + take;
#pragma unroll
    for (int i = 0; i < N; ++i) sums.values[i] = sums.values[i] * keep + value.values[i] * take;
    if (round == last && head % group == 0) {
      const int64_t place = last * args.round_stride + (row * args.num_kv_heads + kv_head) * kHeadDim;
      store_lane(args.beam_key, place, lane, key);
      store_lane(args.beam_value, place, lane, value);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums.values[i] /= denominator;
  store_lane(args.out, item * kHeadDim, lane, sums);
}

}  // namespace

const char* why_no_beam_join(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  if (head_dim != 64 && head_dim != 128) return "beam_join serves heads of 64 or 128 numbers";
  if (num_kv_heads < 1 || num_heads % num_kv_heads != 0) return "num_kv_heads must divide num_heads";
  return nullptr;
}

void beam_join(const BeamJoinArgs& args, void* stream) {
  if (const char* reason = why_no_beam_join(args.num_heads, args.num_kv_heads, args.head_dim))
    throw std::invalid_argument(reason);
  const int64_t num_items = args.num_rows * args.num_heads;
  if (num_items == 0) return;
  const LaunchShape shape{dim3(static_cast<unsigned>((num_items + kWarps - 1) / kWarps)), 32 * kWarps};
  if (args.head_dim == 64) launch(beam_join_kernel<2>, "beam_join", shape, args, stream);
  else launch(beam_join_kernel<4>, "beam_join", shape, args, stream);
}

}  // namespace xllm::kernels::cuda

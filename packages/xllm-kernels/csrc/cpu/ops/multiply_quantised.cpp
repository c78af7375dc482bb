// Products with int8 and uint4 matrices in integers, group by group. Compiled once for each instruction set.
//
// A group's integer sum is exact; the float sum over groups is one chain in ascending order, so that the number of rows
// which are computed together may be chosen by what fits in registers.
#include "ops/multiply.h"
#include "quads.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

constexpr int V = kTileVectors;
constexpr int64_t kQuadBytes = kTileOutputs * 4;
// How far ahead of its use a group is asked for: about the memory's latency. Weights are read once a step, so they need
// not push activations out of the caches.
constexpr int64_t kPrefetchBytes = 1024;

// Asks for a group that comes later.
inline void prefetch_group(const uint8_t* group, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(group + kPrefetchBytes + i, 0, 0);
}

constexpr int kMostRows = Vec::width == 16 ? 8 : 4;

// What the groups of a block need of one row.
struct Row {
  const int8_t* values;
  const float* scales;
  const float* sums;
  const int32_t* counts;
};

// totals[r] += the products of one group, which start out as integers in float form.
template <int R, bool HasMinimum>
inline void add_group(const Row* rows, int64_t block, const Vec (&products)[R][V], const uint8_t* scales,
                      Vec (&totals)[R][V]) {
  for (int v = 0; v < V; ++v) {
    const Vec scale = load(reinterpret_cast<const float16*>(scales) + v * Vec::width);
    for (int r = 0; r < R; ++r)
      totals[r][v] = fma(mul(products[r][v], set1(rows[r].scales[block])), scale, totals[r][v]);
    if constexpr (HasMinimum) {
      const Vec minimum = load(reinterpret_cast<const float16*>(scales) + kTileOutputs + v * Vec::width);
      for (int r = 0; r < R; ++r) totals[r][v] = fma(minimum, set1(rows[r].sums[block]), totals[r][v]);
    }
  }
}

// One struct for each kind of weights: the inputs of a group, its bytes in a tile, and `add`, which adds the products
// of group g for R rows and one tile.
template <bool HasMinimum>
struct Nibbles {
  static constexpr int64_t inputs = kBlockInputs;
  static constexpr int64_t bytes = kTileOutputs * (HasMinimum ? 4 : 2) + 4 * kQuadBytes;

  template <int R>
  static void add(const uint8_t* group, const Row (&rows)[R], int64_t g, Vec (&totals)[R][V]) {
    const uint8_t* weights = group + kTileOutputs * (HasMinimum ? 4 : 2);
    NibbleSums sums[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] = zero_nibble_sums();
    for (int i = 0; i < 4; ++i) {
      Quads low[V], high[V];
      for (int v = 0; v < V; ++v) {
        const Quads both = load_quads(weights + i * kQuadBytes + v * 4 * Vec::width);
        low[v] = low_nibbles(both);
        high[v] = high_nibbles(both);
      }
      for (int r = 0; r < R; ++r) {
        const int8_t* x = rows[r].values + g * kBlockInputs + 8 * i;
        const Quads first = broadcast_quad(x), second = broadcast_quad(x + 4);
        for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], low[v], first);
        for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], high[v], second);
      }
    }
    Vec products[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) {
        products[r][v] = to_float(sums[r][v]);
        if constexpr (!HasMinimum) {  // nibbles stand for -8 .. 7
          const int32_t count = rows[r].counts[2 * g] + rows[r].counts[2 * g + 1];
          products[r][v] = sub(products[r][v], set1(static_cast<float>(8 * count)));
        }
      }
    add_group<R, HasMinimum>(rows, g, products, group, totals);
  }
};

template <bool HasMinimum, int NumQuads>
struct Bytes {
  static constexpr int64_t inputs = 4 * NumQuads;
  static constexpr int64_t bytes = kTileOutputs * (HasMinimum ? 4 : 2) + NumQuads * kQuadBytes;

  template <int R>
  static void add(const uint8_t* group, const Row (&rows)[R], int64_t g, Vec (&totals)[R][V]) {
    constexpr int64_t groups_per_block = kBlockInputs / inputs;
    const uint8_t* weights = group + kTileOutputs * (HasMinimum ? 4 : 2);
    ByteSums sums[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] = zero_byte_sums();
    for (int i = 0; i < NumQuads; ++i) {
      ByteWeights quads[V];
      for (int v = 0; v < V; ++v) quads[v] = prepare_bytes(load_quads(weights + i * kQuadBytes + v * 4 * Vec::width));
      for (int r = 0; r < R; ++r) {
        const Quads x = broadcast_quad(rows[r].values + g * inputs + 4 * i);
        for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], quads[v], x);
      }
    }
    Vec products[R][V];
    for (int r = 0; r < R; ++r) {
      const int32_t* halves = rows[r].counts + g * (2 / groups_per_block);
      const int32_t count = groups_per_block == 1 ? halves[0] + halves[1] : halves[0];
      for (int v = 0; v < V; ++v) products[r][v] = to_float(sums[r][v], count);
    }
    add_group<R, HasMinimum>(rows, g / groups_per_block, products, group, totals);
  }
};

template <class Weights>
struct Product {
  const MultiplyArgs& args;
  int64_t tile;

  template <int Most>
  void dispatch(int64_t count, int64_t first) const {
    if constexpr (Most > 1)
      if (count < Most) return dispatch<Most - 1>(count, first);
    run<Most>(first);
  }

  template <int R>
  void run(int64_t first) const {
    const PackedMatrix& matrix = *args.matrix;
    Row rows[R];
    for (int r = 0; r < R; ++r) {
      uint8_t* memory = const_cast<uint8_t*>(args.activations) + (first + r) * args.activation_stride;
      const QuantisedRow row = quantised_row(memory, matrix.num_inputs);
      rows[r] = {row.values, row.scales, row.sums, row.counts};
    }
    const int64_t num_groups = round_up(matrix.num_inputs, kBlockInputs) / Weights::inputs;
    const uint8_t* group = matrix.tiles + tile * num_groups * Weights::bytes;
    Vec totals[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) totals[r][v] = set1(0.0f);
    for (int64_t g = 0; g < num_groups; ++g, group += Weights::bytes) {
      if (first == 0) prefetch_group(group, Weights::bytes);
      Weights::template add<R>(group, rows, g, totals);
    }
    for (int r = 0; r < R; ++r) store_totals(first + r, totals[r]);
  }

  void store_totals(int64_t row, const Vec (&totals)[V]) const {
    float* out = args.out + row * args.out_stride + (tile - args.first_tile) * kTileOutputs;
    const float* bias = args.matrix->bias;
    for (int v = 0; v < V; ++v) {
      const Vec sum = totals[v];
      store(out + v * Vec::width,
            bias == nullptr ? sum : XLLM_ISA::add(sum, load(bias + tile * kTileOutputs + v * Vec::width)));
    }
  }
};

// A tile stays in the cache while all rows pass.
template <class Weights>
void run_all(const MultiplyArgs& args) {
  for (int64_t tile = args.first_tile; tile < args.end_tile; ++tile)
    for_row_groups<kMostRows>(args.num_rows, Product<Weights>{args, tile});
}

}  // namespace

void multiply_quantised(const MultiplyArgs& args) {
  const PackedMatrix& matrix = *args.matrix;
  if (matrix.format == PackedFormat::uint4)
    return matrix.has_minimum ? run_all<Nibbles<true>>(args) : run_all<Nibbles<false>>(args);
  if (matrix.group_inputs == 16)
    return matrix.has_minimum ? run_all<Bytes<true, 4>>(args) : run_all<Bytes<false, 4>>(args);
  return matrix.has_minimum ? run_all<Bytes<true, 8>>(args) : run_all<Bytes<false, 8>>(args);
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

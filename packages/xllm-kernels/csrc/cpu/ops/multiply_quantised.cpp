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
constexpr int kMostRows = Vec::width == 16 ? 8 : 4;

// What the groups of a block need of one row.
struct Row {
  const int8_t* values;
  const float* scales;
  const float* sums;
  const int32_t* counts;
};

template <int R>
inline void add_group(const Row* rows, int64_t block, int32_t (&counts)[R], const uint8_t* scales, bool has_minimum,
                      Vec (&products)[R][V], Vec (&totals)[R][V], bool is_shifted) {
  for (int v = 0; v < V; ++v) {
    const Vec scale = load(reinterpret_cast<const float16*>(scales) + v * Vec::width);
    for (int r = 0; r < R; ++r) {
      Vec product = products[r][v];
      if (is_shifted) product = sub(product, set1(static_cast<float>(8 * counts[r])));
      totals[r][v] = fma(mul(product, set1(rows[r].scales[block])), scale, totals[r][v]);
    }
    if (!has_minimum) continue;
    const Vec minimum = load(reinterpret_cast<const float16*>(scales) + kTileOutputs + v * Vec::width);
    for (int r = 0; r < R; ++r) totals[r][v] = fma(minimum, set1(rows[r].sums[block]), totals[r][v]);
  }
}

// One tile of uint4 weights.
template <bool HasMinimum>
struct Nibbles {
  template <int R>
  static void run(const PackedMatrix& matrix, const uint8_t* group, const Row (&rows)[R], Vec (&totals)[R][V]) {
    const int64_t num_blocks = round_up(matrix.num_inputs, kBlockInputs) / kBlockInputs;
    for (int64_t block = 0; block < num_blocks; ++block) {
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
          const int8_t* x = rows[r].values + block * kBlockInputs + 8 * i;
          const Quads first = broadcast_quad(x), second = broadcast_quad(x + 4);
          for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], low[v], first);
          for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], high[v], second);
        }
      }
      Vec products[R][V];
      int32_t counts[R];
      for (int r = 0; r < R; ++r) {
        counts[r] = rows[r].counts[2 * block] + rows[r].counts[2 * block + 1];
        for (int v = 0; v < V; ++v) products[r][v] = to_float(sums[r][v]);
      }
      add_group<R>(rows, block, counts, group, HasMinimum, products, totals, !HasMinimum);
      group = weights + 4 * kQuadBytes;
    }
  }
};

// One tile of int8 weights in groups of 4 * NumQuads inputs.
template <bool HasMinimum, int NumQuads>
struct Bytes {
  template <int R>
  static void run(const PackedMatrix& matrix, const uint8_t* group, const Row (&rows)[R], Vec (&totals)[R][V]) {
    constexpr int64_t groups_per_block = kBlockInputs / (4 * NumQuads);
    const int64_t num_groups = round_up(matrix.num_inputs, kBlockInputs) / (4 * NumQuads);
    for (int64_t g = 0; g < num_groups; ++g) {
      const uint8_t* weights = group + kTileOutputs * (HasMinimum ? 4 : 2);
      ByteSums sums[R][V];
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sums[r][v] = zero_byte_sums();
      for (int i = 0; i < NumQuads; ++i) {
        ByteWeights bytes[V];
        for (int v = 0; v < V; ++v) bytes[v] = prepare_bytes(load_quads(weights + i * kQuadBytes + v * 4 * Vec::width));
        for (int r = 0; r < R; ++r) {
          const Quads x = broadcast_quad(rows[r].values + (g * NumQuads + i) * 4);
          for (int v = 0; v < V; ++v) sums[r][v] = add_products(sums[r][v], bytes[v], x);
        }
      }
      Vec products[R][V];
      int32_t counts[R];
      for (int r = 0; r < R; ++r) {
        const int32_t* halves = rows[r].counts + (groups_per_block == 1 ? 2 * g : g);
        counts[r] = groups_per_block == 1 ? halves[0] + halves[1] : halves[0];
        for (int v = 0; v < V; ++v) products[r][v] = to_float(sums[r][v], counts[r]);
      }
      add_group<R>(rows, g / groups_per_block, counts, group, HasMinimum, products, totals, false);
      group = weights + NumQuads * kQuadBytes;
    }
  }
};

template <class Tile>
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
    Vec totals[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) totals[r][v] = set1(0.0f);
    Tile::template run<R>(matrix, matrix.tiles + tile * tile_bytes(matrix), rows, totals);
    for (int r = 0; r < R; ++r) {
      float* out = args.out + (first + r) * args.out_stride + (tile - args.first_tile) * kTileOutputs;
      for (int v = 0; v < V; ++v) {
        if (matrix.bias != nullptr)
          totals[r][v] = XLLM_ISA::add(totals[r][v], load(matrix.bias + tile * kTileOutputs + v * Vec::width));
        store(out + v * Vec::width, totals[r][v]);
      }
    }
  }
};

template <class Tile>
void run_all(const MultiplyArgs& args) {
  for (int64_t tile = args.first_tile; tile < args.end_tile; ++tile)
    for_row_groups<kMostRows>(args.num_rows, Product<Tile>{args, tile});
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

// Products with float32, float16 and bfloat16 matrices. Compiled once for each instruction set (see vector.h).
//
// Every sum is one chain of fma in ascending order of inputs, so that the number of rows and tiles which are computed
// together may be chosen by what fits in registers.
#include "ops/multiply.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

constexpr int V = kTileVectors;

template <class Weight, int T>
inline void load_column(const uint8_t* tiles, int64_t tile_bytes, Vec (&column)[T * V]) {
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v)
      column[t * V + v] = kept(load(reinterpret_cast<const Weight*>(tiles + t * tile_bytes) + v * Vec::width));
}

// sums[r][v] += column[v] * x[r][k].
template <int R, int N>
inline void add_column(const Vec (&column)[N], const float* const* x, int64_t k, Vec (&sums)[R][N]) {
  for (int r = 0; r < R; ++r) {
    const Vec input = set1(x[r][k]);
    for (int v = 0; v < N; ++v) sums[r][v] = fma(column[v], input, sums[r][v]);
  }
}

// One struct for each kind of weights: the inputs that a step takes, their bytes in a tile, the rows whose sums fit in
// registers, and
//   step: adds a step's products for R rows and T tiles that lie tile_bytes apart;
//   last_step: the same for the one input that is left of an odd number.
template <class Weight>
struct PlainWeights {
  using Input = float;
  static constexpr int64_t inputs = 1;
  static constexpr int64_t bytes = kTileOutputs * sizeof(Weight);
  static constexpr int most_rows = Vec::width == 16 ? 12 : Vec::width == 8 ? 6 : 3;

  template <int R, int T>
  static void step(const uint8_t* tiles, int64_t tile_bytes, const float* const* x, int64_t k, Vec (&sums)[R][T * V]) {
    Vec column[T * V];
    load_column<Weight, T>(tiles, tile_bytes, column);
    add_column(column, x, k, sums);
  }
  template <int R, int T>
  static void last_step(const uint8_t*, int64_t, const float* const*, int64_t, Vec (&)[R][T * V]) {}
};

#if !defined(__AVX512BF16__)

struct Bfloat16Weights {
  using Input = float;
  static constexpr int64_t inputs = 2;
  static constexpr int64_t bytes = kTileOutputs * 4;
  static constexpr int most_rows = Vec::width == 16 ? 12 : Vec::width == 8 ? 5 : 3;

  template <int T, bool IsOdd>
  static void load_half(const uint8_t* tiles, int64_t tile_bytes, Vec (&column)[T * V]) {
    Vec other;
    for (int t = 0; t < T; ++t)
      for (int v = 0; v < V; ++v) {
        Vec& wanted = column[t * V + v];
        const bfloat16* p = reinterpret_cast<const bfloat16*>(tiles + t * tile_bytes) + 2 * v * Vec::width;
        load_pairs(p, IsOdd ? other : wanted, IsOdd ? wanted : other);
      }
  }
  template <int R, int T>
  static void step(const uint8_t* tiles, int64_t tile_bytes, const float* const* x, int64_t k, Vec (&sums)[R][T * V]) {
    last_step<R, T>(tiles, tile_bytes, x, k, sums);
    // Weights are loaded once more rather than kept: registers are scarce, loads are not.
    if constexpr (R > 1) asm("" : "+r"(tiles));
    Vec odd[T * V];
    load_half<T, true>(tiles, tile_bytes, odd);
    add_column(odd, x, k + 1, sums);
  }
  template <int R, int T>
  static void last_step(const uint8_t* tiles, int64_t tile_bytes, const float* const* x, int64_t k,
                        Vec (&sums)[R][T * V]) {
    Vec even[T * V];
    load_half<T, false>(tiles, tile_bytes, even);
    add_column(even, x, k, sums);
  }
};

#else

// Weights and inputs as they are, two inputs to a dot product.
struct Bfloat16Weights {
  using Input = bfloat16;
  static constexpr int64_t inputs = 2;
  static constexpr int64_t bytes = kTileOutputs * 4;
  static constexpr int most_rows = 12;

  template <int R, int T>
  static void step(const uint8_t* tiles, int64_t tile_bytes, const bfloat16* const* x, int64_t k,
                   Vec (&sums)[R][T * V]) {
    __m512bh column[T];
    for (int t = 0; t < T; ++t) __builtin_memcpy(&column[t], tiles + t * tile_bytes, sizeof column[t]);
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, x[r] + k, sizeof pair);
      const __m512i both = _mm512_set1_epi32(pair);
      __m512bh input;
      __builtin_memcpy(&input, &both, sizeof input);
      for (int t = 0; t < T; ++t) sums[r][t].v = _mm512_dpbf16_ps(sums[r][t].v, column[t], input);
    }
  }
  // Rows of inputs are padded with a zero, as tiles are.
  template <int R, int T>
  static void last_step(const uint8_t* tiles, int64_t tile_bytes, const bfloat16* const* x, int64_t k,
                        Vec (&sums)[R][T * V]) {
    step<R, T>(tiles, tile_bytes, x, k, sums);
  }
};

#endif

// Tiles that R rows take together: enough sums to hide the latency of fma, few enough to stay in registers.
constexpr int tiles_together(int rows) {
  const int vectors = rows == 1 ? 8 : rows == 2 ? 4 : 2;
  return vectors / V > 0 ? vectors / V : 1;
}

template <class Weights>
struct Product {
  using Input = typename Weights::Input;

  const MultiplyArgs& args;
  int64_t tile;
  int64_t end_tile;

  // Rows [first, first + count) for count <= Most.
  template <int Most>
  void dispatch(int64_t count, int64_t first) const {
    if constexpr (Most > 1)
      if (count < Most) return dispatch<Most - 1>(count, first);
    run<Most>(first);
  }

  template <int R>
  void run(int64_t first) const {
    constexpr int together = tiles_together(R);
    int64_t t = tile;
    for (; t + together <= end_tile; t += together) run_tiles<R, together>(first, t);
    for (; t < end_tile; ++t) run_tiles<R, 1>(first, t);
  }

  template <int R, int T>
  void run_tiles(int64_t first, int64_t t) const {
    const PackedMatrix& matrix = *args.matrix;
    const int64_t stride = tile_bytes(matrix), num_inputs = matrix.num_inputs;
    const uint8_t* tiles = matrix.tiles + t * stride;
    const Input* x[R];
    for (int r = 0; r < R; ++r)
      x[r] = reinterpret_cast<const Input*>(args.activations + (first + r) * args.activation_stride);
    Vec sums[R][T * V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < T * V; ++v) sums[r][v] = set1(0.0f);
    int64_t k = 0;
    for (; k + Weights::inputs <= num_inputs; k += Weights::inputs, tiles += Weights::bytes)
      Weights::template step<R, T>(tiles, stride, x, k, sums);
    if (k < num_inputs) Weights::template last_step<R, T>(tiles, stride, x, k, sums);
    for (int r = 0; r < R; ++r) {
      float* out = args.out + (first + r) * args.out_stride + (t - args.first_tile) * kTileOutputs;
      for (int v = 0; v < T * V; ++v) {
        if (matrix.bias != nullptr)
          sums[r][v] = XLLM_ISA::add(sums[r][v], load(matrix.bias + t * kTileOutputs + v * Vec::width));
        store(out + v * Vec::width, sums[r][v]);
      }
    }
  }
};

// A few tiles at a time, which stay in the cache while all rows pass.
template <class Weights>
void run_all(const MultiplyArgs& args) {
  constexpr int64_t at_once = tiles_together(1) > 2 ? tiles_together(1) : 2;
  for (int64_t tile = args.first_tile; tile < args.end_tile; tile += at_once) {
    const int64_t end = tile + at_once < args.end_tile ? tile + at_once : args.end_tile;
    for_row_groups<Weights::most_rows>(args.num_rows, Product<Weights>{args, tile, end});
  }
}

}  // namespace

void multiply_float(const MultiplyArgs& args) {
  switch (args.matrix->format) {
    case PackedFormat::float32: return run_all<PlainWeights<float>>(args);
    case PackedFormat::float16: return run_all<PlainWeights<float16>>(args);
    default: return run_all<Bfloat16Weights>(args);
  }
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

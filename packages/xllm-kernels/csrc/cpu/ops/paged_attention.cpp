// One work item of paged attention: online softmax (Milakov and Gimelshein, 2018) over tiles of keys, joined over
// splits as in Flash-Decoding (Dao et al., 2023). Compiled once for each instruction set (see vector.h).
#include "xllm/kernels/paged_attention.h"

#include "ops/attention_tile.h"
#include "ops/ops.h"
#include "vector.h"
#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu::XLLM_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();
// Up to here a tile's rows are converted to float again for every group of four query rows; above, once for all.
constexpr int64_t kRowsOfDirectUse = 8;

// The softmax state of `rows` rows: out = sums / denominator once all keys are in. Layout of a partial result.
struct Softmax {
  float* maximum;      // [rows]
  float* denominator;  // [rows]
  float* sums;         // [rows, dim]

  Softmax(float* memory, int64_t rows) : maximum(memory), denominator(memory + rows), sums(memory + 2 * rows) {}

  void clear(int64_t rows, int64_t dim) {
    for (int64_t r = 0; r < rows; ++r) maximum[r] = kMinusInfinity;
    for (int64_t r = 0; r < rows; ++r) denominator[r] = 0.0f;
    for (int64_t i = 0; i < rows * dim; ++i) sums[i] = 0.0f;
  }
};

// total = total joined with the later keys of part. A row that saw no key in part keeps its bits.
void join(Softmax total, Softmax part, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r) {
    if (part.maximum[r] == kMinusInfinity) continue;
    const float maximum = part.maximum[r] > total.maximum[r] ? part.maximum[r] : total.maximum[r];
    const float keep = exp(total.maximum[r] - maximum);
    const float take = exp(part.maximum[r] - maximum);
    total.maximum[r] = maximum;
    total.denominator[r] = total.denominator[r] * keep + part.denominator[r] * take;
    float* sums = total.sums + r * dim;
    const float* later = part.sums + r * dim;
    for (int64_t i = 0; i < dim; i += Vec::width)
      store(sums + i, fma(load(later + i), set1(take), mul(load(sums + i), set1(keep))));
  }
}

// Turns a row's scores of keys [begin, end) of the tile into weights (0 elsewhere); returns the decay of older sums.
float softmax_row(float* scores, int64_t begin, int64_t end, float& maximum, float& denominator) {
  if (begin >= end) {
    for (int64_t k = 0; k < kKeysPerTile; ++k) scores[k] = 0.0f;
    return 1.0f;
  }
  for (int64_t k = 0; k < begin; ++k) scores[k] = kMinusInfinity;
  for (int64_t k = end; k < kKeysPerTile; ++k) scores[k] = kMinusInfinity;
  Vec highest = load(scores);
  for (int64_t k = Vec::width; k < kKeysPerTile; k += Vec::width) highest = max(highest, load(scores + k));
  const float tile_maximum = largest(highest);
  const float new_maximum = tile_maximum > maximum ? tile_maximum : maximum;
  Vec total = set1(0.0f);
  for (int64_t k = 0; k < kKeysPerTile; k += Vec::width) {
    const Vec weight = exp(sub(load(scores + k), set1(new_maximum)));
    store(scores + k, weight);
    total = add(total, weight);
  }
  const float decay = exp(maximum - new_maximum);
  maximum = new_maximum;
  denominator = denominator * decay + sum(total);
  return decay;
}

// Memory of one item, all in the thread's scratch.
struct Workspace {
  float* query;   // [rows, dim], scaled
  float* scores;  // [rows, kKeysPerTile]
  float* decay;   // [rows]
  float* keys;    // [kKeysPerTile, dim], used when a tile is converted
  float* values;  // [kKeysPerTile, dim]
  float* total;   // [partial_size(rows, dim)]
  float* part;    // [partial_size(rows, dim)]

  Workspace(int64_t rows, int64_t dim) {
    const int64_t sizes[] = {rows * dim,         rows * kKeysPerTile,      rows, kKeysPerTile * dim,
                             kKeysPerTile * dim, partial_size(rows, dim), partial_size(rows, dim)};
    float** parts[] = {&query, &scores, &decay, &keys, &values, &total, &part};
    int64_t num_floats = 0;
    for (const int64_t size : sizes) num_floats += (size + 15) / 16 * 16;
    float* next = static_cast<float*>(thread_scratch(static_cast<size_t>(num_floats) * sizeof(float)));
    for (int i = 0; i < 7; ++i) {
      *parts[i] = next;
      next += (sizes[i] + 15) / 16 * 16;
    }
  }
};

// T is the type of query and output, C that of the caches.
template <class T, class C>
class ItemRunner {
 public:
  ItemRunner(const PagedAttentionArgs& args, const AttentionItem& item)
      : args_(args),
        item_(item),
        group_(args.num_query_heads / args.num_kv_heads),
        rows_(item.num_rows * group_),
        dim_(padded_head_dim(args.head_dim)),
        work_(rows_, dim_),
        num_query_rows_(args.query_start[item.sequence + 1] - args.query_start[item.sequence]),
        first_position_(args.rows_see_all ? args.seq_lens[item.sequence] - 1
                                          : args.seq_lens[item.sequence] - num_query_rows_ + item.first_row),
        end_key_(args.rows_see_all ? first_position_ + 1 : first_position_ + item.num_rows),
        first_key_(first_key_of(first_position_)),
        direct_(args.head_dim % Vec::width == 0 && (sizeof(C) == sizeof(float) || rows_ <= kRowsOfDirectUse)) {}

  void run(float* partials) {
    load_query();
    float* result = item_.partial_offset < 0 ? work_.total : partials + item_.partial_offset;
    for (int64_t split = item_.first_split; split < item_.end_split; ++split) {
      Softmax part(split == item_.first_split ? result : work_.part, rows_);
      part.clear(rows_, dim_);
      run_split(split, part);
      if (split != item_.first_split) join(Softmax(result, rows_), part, rows_, dim_);
    }
    if (item_.partial_offset < 0) write_output(Softmax(result, rows_));
  }

  void write_output(Softmax total) const {
    const int64_t first_token = args_.query_start[item_.sequence] + item_.first_row;
    for (int64_t r = 0; r < rows_; ++r) {
      T* out = static_cast<T*>(args_.out) + (first_token + r / group_) * args_.out_row_stride +
               (item_.kv_head * group_ + r % group_) * args_.head_dim;
      const Vec denominator = set1(total.denominator[r]);
      const float* sums = total.sums + r * dim_;
      int64_t i = 0;
      for (; i + Vec::width <= args_.head_dim; i += Vec::width) store(out + i, div(load(sums + i), denominator));
      if (i < args_.head_dim) store_first(out + i, div(load(sums + i), denominator), args_.head_dim - i);
    }
  }

 private:
  int64_t first_key_of(int64_t position) const {
    const int64_t first = args_.sliding_window > 0 ? position + 1 - args_.sliding_window : 0;
    return first > 0 ? first : 0;
  }

  void load_query() {
    const int64_t first_token = args_.query_start[item_.sequence] + item_.first_row;
    for (int64_t r = 0; r < rows_; ++r) {
      const T* source = static_cast<const T*>(args_.query) + (first_token + r / group_) * args_.query_row_stride +
                        (item_.kv_head * group_ + r % group_) * args_.head_dim;
      copy_row(source, work_.query + r * dim_, args_.scale);
    }
  }

  // Converts a head to float times factor, padded with zeros to dim_.
  template <class U>
  void copy_row(const U* source, float* target, float factor) const {
    int64_t i = 0;
    for (; i + Vec::width <= args_.head_dim; i += Vec::width) store(target + i, mul(load(source + i), set1(factor)));
    for (; i < dim_; i += Vec::width) {
      const int64_t left = args_.head_dim - i;
      store(target + i, left > 0 ? mul(load_first(source + i, left), set1(factor)) : set1(0.0f));
    }
  }

  // Where the keys and values of the tile at `position` lie that some row sees; an empty tile from end_key on.
  void find_rows(int64_t position, int64_t end_key, Tile<C>& tile) const {
    tile.position = position;
    tile.begin = max_of(first_key_ - position, 0);
    tile.end = max_of(min_of(kKeysPerTile, end_key - position), tile.begin);
    if (tile.begin == tile.end) return;
    const int32_t* table = args_.block_tables + item_.sequence * args_.block_table_stride;
    const int64_t row_stride = args_.cache_token_stride;
    int64_t block = (position + tile.begin) / args_.block_size;
    int64_t offset = (position + tile.begin) % args_.block_size;
    for (int64_t k = tile.begin; k < tile.end; ++block, offset = 0) {
      const int64_t in_block = offset * row_stride + item_.kv_head * args_.cache_head_stride;
      const C* key = static_cast<const C*>(args_.key_cache) + table[block] * args_.key_block_stride + in_block;
      const C* value = static_cast<const C*>(args_.value_cache) + table[block] * args_.value_block_stride + in_block;
      for (; k < tile.end && offset < args_.block_size; ++k, ++offset, key += row_stride, value += row_stride) {
        tile.keys[k] = key;
        tile.values[k] = value;
      }
    }
    for (int64_t k = 0; k < tile.begin; ++k) tile.keys[k] = tile.keys[tile.begin];
    for (int64_t k = tile.end; k < kKeysPerTile; ++k) tile.keys[k] = tile.keys[tile.end - 1];
  }

  void run_split(int64_t split, Softmax part) {
    const int64_t split_begin = split * kKeysPerSplit;
    const int64_t split_end = min_of(split_begin + kKeysPerSplit, end_key_);
    const int64_t start = max_of(split_begin, first_key_ / kKeysPerTile * kKeysPerTile);
    Tile<C> tiles[2];
    find_rows(start, split_end, tiles[0]);
    for (int64_t position = start, i = 0; position < split_end; position += kKeysPerTile, i ^= 1) {
      const Tile<C>& tile = tiles[i];
      Tile<C>& next = tiles[i ^ 1];
      find_rows(position + kKeysPerTile, split_end, next);
      if (direct_) {
        run_tile(tile, next, part);
      } else {
        Tile<float> converted{tile.position, tile.begin, tile.end, {}, {}};
        convert(tile, tile.keys, work_.keys, converted.keys);
        convert(tile, tile.values, work_.values, converted.values);
        run_tile(converted, next, part);
      }
    }
  }

  void convert(const Tile<C>& tile, const C* const* rows, float* memory, const float** converted) const {
    for (int64_t k = tile.begin; k < tile.end; ++k) copy_row(rows[k], memory + k * dim_, 1.0f);
    for (int64_t k = 0; k < kKeysPerTile; ++k)
      converted[k] = memory + max_of(tile.begin, min_of(k, tile.end - 1)) * dim_;
  }

  template <class U>
  void run_tile(const Tile<U>& tile, const Tile<C>& next, Softmax part) {
    for (int64_t k = tile.begin / Vec::width * Vec::width; k < tile.end; k += Vec::width) {
      prefetch(next, k, k + Vec::width, args_.head_dim);
      for (int64_t r = 0; r < rows_; r += 4) score(r, tile.keys + k, k);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t position = args_.rows_see_all ? first_position_ : first_position_ + r / group_;
      work_.decay[r] = softmax_row(work_.scores + r * kKeysPerTile, max_of(first_key_of(position) - tile.position, 0),
                                   min_of(position + 1 - tile.position, kKeysPerTile), part.maximum[r],
                                   part.denominator[r]);
    }
    for (int64_t r = 0; r < rows_; r += 4) weigh(r, tile, part.sums);
  }

  template <class U>
  void score(int64_t row, const U* const* keys, int64_t key) {
    const float* query = work_.query + row * dim_;
    float* scores = work_.scores + row * kKeysPerTile + key;
    const int64_t dim = direct_ ? args_.head_dim : dim_;
    switch (min_of(rows_ - row, 4)) {
      case 1: return score_group<1>(query, dim_, keys, dim, scores);
      case 2: return score_group<2>(query, dim_, keys, dim, scores);
      case 3: return score_group<3>(query, dim_, keys, dim, scores);
      default: return score_group<4>(query, dim_, keys, dim, scores);
    }
  }

  template <class U>
  void weigh(int64_t row, const Tile<U>& tile, float* all_sums) {
    const float* weights = work_.scores + row * kKeysPerTile;
    float* sums = all_sums + row * dim_;
    const int64_t dim = direct_ ? args_.head_dim : dim_;
    switch (min_of(rows_ - row, 4)) {
      case 1: return weigh_rows<1, 8>(weights, tile, 0, dim, work_.decay + row, sums, dim_);
      case 2: return weigh_rows<2, 4>(weights, tile, 0, dim, work_.decay + row, sums, dim_);
      case 3: return weigh_rows<3, 2>(weights, tile, 0, dim, work_.decay + row, sums, dim_);
      default: return weigh_rows<4, 2>(weights, tile, 0, dim, work_.decay + row, sums, dim_);
    }
  }

  static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
  static int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

  const PagedAttentionArgs& args_;
  const AttentionItem& item_;
  int64_t group_;  // query heads of a key-value head
  int64_t rows_;   // query rows x group_
  int64_t dim_;    // padded head dimension
  Workspace work_;
  int64_t num_query_rows_;
  int64_t first_position_;  // of the item's first row, or of every row
  int64_t end_key_;         // one past the last key that any row sees
  int64_t first_key_;       // the first key that any row sees
  bool direct_;             // read keys and values where they lie
};

template <class T, class C>
void merge(const PagedAttentionArgs& args, const AttentionItem& first, int64_t num_parts, float* partials) {
  const int64_t rows = first.num_rows * (args.num_query_heads / args.num_kv_heads);
  const int64_t dim = padded_head_dim(args.head_dim);
  float* part = partials + first.partial_offset;
  const Softmax total(part, rows);
  for (int64_t i = 1; i < num_parts; ++i) join(total, Softmax(part += partial_size(rows, dim), rows), rows, dim);
  ItemRunner<T, C>(args, first).write_output(total);
}

}  // namespace

void attend(const PagedAttentionArgs& args, const AttentionItem& item, float* partials) {
  if (args.dtype == DType::bfloat16) ItemRunner<bfloat16, bfloat16>(args, item).run(partials);
  else if (args.cache_dtype == DType::bfloat16) ItemRunner<float, bfloat16>(args, item).run(partials);
  else ItemRunner<float, float>(args, item).run(partials);
}

void merge_partials(const PagedAttentionArgs& args, const AttentionItem& first, int64_t num_parts, float* partials) {
  if (args.dtype == DType::bfloat16) merge<bfloat16, bfloat16>(args, first, num_parts, partials);
  else if (args.cache_dtype == DType::bfloat16) merge<float, bfloat16>(args, first, num_parts, partials);
  else merge<float, float>(args, first, num_parts, partials);
}

}  // namespace xllm::kernels::cpu::XLLM_ISA

#include "native.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "tensor.h"
#include "xllm/kernels/native/decoder.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace xllm::bindings {
namespace {

using kernels::native::CacheType;
using kernels::native::Decoder;
using kernels::native::DecoderShape;
using kernels::native::StepArgs;
using kernels::native::WeightFormat;

// The arrays of a step, checked for types and sizes; their values are the decoder's to check.
class Step {
 public:
  Step(nb::handle token_ids, nb::handle positions, nb::handle slot_mapping, nb::handle query_start,
       nb::handle seq_lens, nb::handle block_tables, nb::handle rows)
      : token_ids_(token_ids, "token_ids"),
        positions_(positions, "positions"),
        slot_mapping_(slot_mapping, "slot_mapping"),
        query_start_(query_start, "query_start"),
        seq_lens_(seq_lens, "seq_lens"),
        block_tables_(block_tables, "block_tables"),
        rows_(rows, "rows") {
    expect_vector(token_ids_, Scalar::int32);
    expect_vector(positions_, Scalar::int32);
    positions_.expect_size(0, token_ids_.size(0), "the number of token_ids");
    expect_vector(slot_mapping_, Scalar::int64);
    slot_mapping_.expect_size(0, token_ids_.size(0), "the number of token_ids");
    expect_vector(seq_lens_, Scalar::int32);
    expect_vector(query_start_, Scalar::int32);
    query_start_.expect_size(0, seq_lens_.size(0) + 1, "the number of seq_lens, plus 1");
    block_tables_.expect_dims(2);
    block_tables_.expect_scalar(Scalar::int32);
    block_tables_.expect_size(0, seq_lens_.size(0), "the number of seq_lens");
    block_tables_.expect_dense_from(1);
    expect_vector(rows_, Scalar::int64);
  }

  int64_t num_rows() const { return rows_.size(0); }

  StepArgs args() const {
    return {.token_ids = token_ids_.as<int32_t>(),
            .positions = positions_.as<int32_t>(),
            .slot_mapping = slot_mapping_.as<int64_t>(),
            .query_start = query_start_.as<int32_t>(),
            .seq_lens = seq_lens_.as<int32_t>(),
            .block_tables = block_tables_.as<int32_t>(),
            .rows = rows_.as<int64_t>(),
            .num_tokens = token_ids_.size(0),
            .num_seqs = seq_lens_.size(0),
            .num_columns = block_tables_.size(1),
            .block_table_stride = block_tables_.row_stride(block_tables_.size(1)),
            .num_rows = rows_.size(0)};
  }

  static void expect_vector(const Tensor& tensor, Scalar scalar) {
    tensor.expect_dims(1);
    tensor.expect_scalar(scalar);
    tensor.expect_dense_from(0);
  }

 private:
  Tensor token_ids_, positions_, slot_mapping_, query_start_, seq_lens_, block_tables_, rows_;
};

// The bytes of any contiguous buffer.
class Bytes {
 public:
  explicit Bytes(nb::handle object, Access access = Access::read) {
    const int flags = access == Access::write ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw nb::python_error();
  }
  ~Bytes() { PyBuffer_Release(&buffer_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(buffer_.buf); }
  size_t size() const { return static_cast<size_t>(buffer_.len); }

 private:
  Py_buffer buffer_;
};

WeightFormat weight_format(const std::string& name) {
  if (name == "auto") return WeightFormat::as_stored;
  if (name == "f32") return WeightFormat::float32;
  if (name == "bf16") return WeightFormat::bfloat16;
  if (name == "int8") return WeightFormat::int8;
  if (name == "int4") return WeightFormat::int4;
  fail("weight_format is '" + name + "', expected auto, bf16, f32, int8 or int4");
}

void construct(Decoder* self, int64_t vocab_size, int64_t hidden_size, int64_t intermediate_size, int64_t num_layers,
               int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t rotary_dim, double rms_norm_eps,
               bool has_tied_embeddings, bool has_qkv_bias, bool has_output_bias, bool has_mlp_bias, bool has_qk_norm,
               std::vector<int64_t> sliding_windows, nb::handle cos_sin_cache_object, const std::string& format) {
  const Tensor cos_sin_cache(cos_sin_cache_object, "cos_sin_cache");
  cos_sin_cache.expect_dims(2);
  cos_sin_cache.expect_scalar(Scalar::float32);
  cos_sin_cache.expect_size(1, rotary_dim, "rotary_dim");
  cos_sin_cache.expect_dense_from(0);
  DecoderShape shape{.vocab_size = vocab_size,
                     .hidden_size = hidden_size,
                     .intermediate_size = intermediate_size,
                     .num_layers = num_layers,
                     .num_heads = num_heads,
                     .num_kv_heads = num_kv_heads,
                     .head_dim = head_dim,
                     .rotary_dim = rotary_dim,
                     .rms_norm_eps = static_cast<float>(rms_norm_eps),
                     .has_tied_embeddings = has_tied_embeddings,
                     .has_qkv_bias = has_qkv_bias,
                     .has_output_bias = has_output_bias,
                     .has_mlp_bias = has_mlp_bias,
                     .has_qk_norm = has_qk_norm,
                     .sliding_windows = std::move(sliding_windows)};
  new (self) Decoder(std::move(shape), cos_sin_cache.as<float>(), cos_sin_cache.size(0), weight_format(format));
}

void set_weight(Decoder& self, const std::string& name, nb::handle object, const std::string& kind,
                const std::vector<int64_t>& shape, int64_t permuted_heads) {
  const Bytes bytes(object);
  const nb::gil_scoped_release no_gil;
  self.set_weight(name, bytes.data(), bytes.size(), kind, shape, permuted_heads);
}

void allocate_kv_cache(Decoder& self, int64_t num_blocks, int64_t block_size, const std::string& dtype) {
  if (dtype != "bf16" && dtype != "f32") fail("dtype is '" + dtype + "', expected bf16 or f32");
  const nb::gil_scoped_release no_gil;
  self.allocate_kv_cache(num_blocks, block_size, dtype == "bf16" ? CacheType::bfloat16 : CacheType::float32);
}

void expect_rows(const Tensor& tensor, int64_t num_rows, int64_t size, const char* size_name) {
  tensor.expect_dims(2);
  tensor.expect_scalar(Scalar::float32);
  tensor.expect_size(0, num_rows, "the number of rows");
  tensor.expect_size(1, size, size_name);
  tensor.expect_dense_from(0);
}

// Checks that `bytes` is as long as num_blocks blocks.
void expect_blocks(const Decoder& self, const Bytes& bytes, int64_t num_blocks) {
  const int64_t expected = num_blocks * self.num_block_bytes();
  if (bytes.size() != static_cast<size_t>(expected))
    fail("bytes has " + std::to_string(bytes.size()) + " bytes, expected " + std::to_string(expected));
}

void read_blocks(const Decoder& self, nb::handle blocks_object, nb::handle bytes_object) {
  const Tensor blocks(blocks_object, "blocks");
  Step::expect_vector(blocks, Scalar::int32);
  const Bytes bytes(bytes_object, Access::write);
  expect_blocks(self, bytes, blocks.size(0));
  const nb::gil_scoped_release no_gil;
  self.read_blocks(blocks.as<int32_t>(), blocks.size(0), bytes.data());
}

void write_blocks(Decoder& self, nb::handle blocks_object, nb::handle bytes_object) {
  const Tensor blocks(blocks_object, "blocks");
  Step::expect_vector(blocks, Scalar::int32);
  const Bytes bytes(bytes_object);
  expect_blocks(self, bytes, blocks.size(0));
  const nb::gil_scoped_release no_gil;
  self.write_blocks(blocks.as<int32_t>(), blocks.size(0), bytes.data());
}

void copy_blocks(Decoder& self, nb::handle pairs_object) {
  const Tensor pairs(pairs_object, "pairs");
  pairs.expect_dims(2);
  pairs.expect_scalar(Scalar::int32);
  pairs.expect_size(1, 2, "from and to");
  pairs.expect_dense_from(0);
  const nb::gil_scoped_release no_gil;
  self.copy_blocks(pairs.as<int32_t>(), pairs.size(0));
}

void forward(Decoder& self, nb::handle token_ids, nb::handle positions, nb::handle slot_mapping,
             nb::handle query_start, nb::handle seq_lens, nb::handle block_tables, nb::handle rows,
             nb::handle logits_object) {
  const Step step(token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows);
  const Tensor logits(logits_object, "logits", Access::write);
  expect_rows(logits, step.num_rows(), self.shape().vocab_size, "vocab_size");
  const StepArgs args = step.args();
  const nb::gil_scoped_release no_gil;
  self.forward(args, static_cast<float*>(logits.memory()));
}

void hidden(Decoder& self, nb::handle token_ids, nb::handle positions, nb::handle slot_mapping, nb::handle query_start,
            nb::handle seq_lens, nb::handle block_tables, nb::handle rows, nb::handle hidden_object) {
  const Step step(token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows);
  const Tensor hidden(hidden_object, "hidden", Access::write);
  expect_rows(hidden, step.num_rows(), self.shape().hidden_size, "hidden_size");
  const StepArgs args = step.args();
  const nb::gil_scoped_release no_gil;
  self.hidden(args, static_cast<float*>(hidden.memory()));
}

void hidden_embedded(Decoder& self, nb::handle token_ids, nb::handle positions, nb::handle slot_mapping,
                     nb::handle query_start, nb::handle seq_lens, nb::handle block_tables, nb::handle rows,
                     nb::handle embedded_object, nb::handle embedded_rows_object, nb::handle angles_object,
                     nb::handle hidden_object) {
  const Step step(token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows);
  const Tensor embedded(embedded_object, "embedded"), embedded_rows(embedded_rows_object, "embedded_rows");
  const Tensor hidden(hidden_object, "hidden", Access::write);
  expect_rows(hidden, step.num_rows(), self.shape().hidden_size, "hidden_size");
  StepArgs args = step.args();
  embedded.expect_dims(3);
  embedded.expect_scalar(Scalar::float32);
  embedded.expect_size(2, self.shape().hidden_size, "hidden_size");
  embedded.expect_dense_from(0);
  Step::expect_vector(embedded_rows, Scalar::int32);
  embedded_rows.expect_size(0, args.num_tokens, "the number of token_ids");
  args.embedded = embedded.as<float>();
  args.embedded_rows = embedded_rows.as<int32_t>();
  args.num_embedded = embedded.size(0);
  args.num_levels = embedded.size(1);
  if (!angles_object.is_none()) {
    const Tensor angles(angles_object, "angles");
    angles.expect_dims(2);
    angles.expect_scalar(Scalar::float32);
    angles.expect_size(1, self.shape().rotary_dim, "rotary_dim");
    angles.expect_dense_from(0);
    args.angles = angles.as<float>();
    args.num_angles = angles.size(0);
  }
  const nb::gil_scoped_release no_gil;
  self.hidden(args, static_cast<float*>(hidden.memory()));
}

void logits(Decoder& self, nb::handle hidden_object, nb::handle logits_object) {
  const Tensor hidden(hidden_object, "hidden");
  const Tensor logits(logits_object, "logits", Access::write);
  logits.expect_dims(2);
  const int64_t num_rows = logits.size(0);
  expect_rows(logits, num_rows, self.shape().vocab_size, "vocab_size");
  expect_rows(hidden, num_rows, self.shape().hidden_size, "hidden_size");
  const nb::gil_scoped_release no_gil;
  if (num_rows > 0) self.logits(hidden.as<float>(), num_rows, static_cast<float*>(logits.memory()));
}

void greedy(Decoder& self, nb::handle token_ids, nb::handle positions, nb::handle slot_mapping, nb::handle query_start,
            nb::handle seq_lens, nb::handle block_tables, nb::handle rows, nb::handle chosen_object) {
  const Step step(token_ids, positions, slot_mapping, query_start, seq_lens, block_tables, rows);
  const Tensor chosen(chosen_object, "chosen", Access::write);
  chosen.expect_dims(1);
  chosen.expect_scalar(Scalar::int32);
  chosen.expect_size(0, step.num_rows(), "the number of rows");
  chosen.expect_dense_from(0);
  const StepArgs args = step.args();
  const nb::gil_scoped_release no_gil;
  self.greedy(args, static_cast<int32_t*>(chosen.memory()));
}

}  // namespace

void add_native(nb::module_& m) {
  nb::class_<Decoder>(m, "LlamaDecoder")
      .def("__init__", &construct, "vocab_size"_a, "hidden_size"_a, "intermediate_size"_a, "num_layers"_a,
           "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "rotary_dim"_a, "rms_norm_eps"_a, "has_tied_embeddings"_a,
           "has_qkv_bias"_a, "has_output_bias"_a, "has_mlp_bias"_a, "has_qk_norm"_a, "sliding_windows"_a,
           "cos_sin_cache"_a, "weight_format"_a)
      .def("set_weight", &set_weight, "name"_a, "data"_a, "kind"_a, "shape"_a, "permuted_heads"_a)
      .def("finish", &Decoder::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("num_weight_bytes", &Decoder::num_weight_bytes, nb::call_guard<nb::gil_scoped_release>())
      .def("save_packed", &Decoder::save_packed, "path"_a, "key"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("load_packed", &Decoder::load_packed, "path"_a, "key"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("allocate_kv_cache", &allocate_kv_cache, "num_blocks"_a, "block_size"_a, "dtype"_a)
      .def("num_block_bytes", &Decoder::num_block_bytes, nb::call_guard<nb::gil_scoped_release>())
      .def("read_blocks", &read_blocks, "blocks"_a, "contents"_a)
      .def("write_blocks", &write_blocks, "blocks"_a, "contents"_a)
      .def("copy_blocks", &copy_blocks, "pairs"_a)
      .def("forward", &forward, "token_ids"_a, "positions"_a, "slot_mapping"_a, "query_start"_a, "seq_lens"_a,
           "block_tables"_a, "rows"_a, "logits"_a)
      .def("hidden", &hidden, "token_ids"_a, "positions"_a, "slot_mapping"_a, "query_start"_a, "seq_lens"_a,
           "block_tables"_a, "rows"_a, "hidden"_a)
      .def("hidden_embedded", &hidden_embedded, "token_ids"_a, "positions"_a, "slot_mapping"_a, "query_start"_a,
           "seq_lens"_a, "block_tables"_a, "rows"_a, "embedded"_a, "embedded_rows"_a, "angles"_a.none(), "hidden"_a)
      .def("logits", &logits, "hidden"_a, "logits"_a)
      .def("greedy", &greedy, "token_ids"_a, "positions"_a, "slot_mapping"_a, "query_start"_a, "seq_lens"_a,
           "block_tables"_a, "rows"_a, "chosen"_a);
}

}  // namespace xllm::bindings

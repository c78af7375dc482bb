#include "weights.h"

#include <stdexcept>

namespace xllm::kernels::native {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

int64_t product(const std::vector<int64_t>& shape) {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;
  return result;
}

}  // namespace

Weights::Weights(const DecoderShape& shape, WeightFormat format)
    : format_(format), is_tied_(shape.has_tied_embeddings), layers_(static_cast<size_t>(shape.num_layers)) {
  add_matrix("model.embed_tokens.weight", embedding_, shape.vocab_size, shape.hidden_size);
  targets_["model.embed_tokens.weight"].keeps_int8 = true;
  for (int64_t i = 0; i < shape.num_layers; ++i) add_layer(shape, i);
  add_vector("model.norm.weight", final_norm_, shape.hidden_size);
  if (!is_tied_) {
    add_matrix("lm_head.weight", head_, shape.vocab_size, shape.hidden_size);
    targets_["lm_head.weight"].keeps_int8 = true;
  }
  if (shape.vocab_size >= kFewestScreenedOutputs) add_screen(shape);
}

void Weights::add_screen(const DecoderShape& shape) {
  add_matrix("screen.rest", screen_rest_, shape.vocab_size, shape.hidden_size);
  add_vector("screen.errors", screen_.errors, shape.vocab_size);
  add_vector("screen.lengths", screen_.lengths, shape.vocab_size);
  add_vector("screen.centre", screen_.centre, shape.hidden_size);
  for (const char* name : {"screen.rest", "screen.errors", "screen.lengths", "screen.centre"})
    targets_[name].is_derived = true;
}

void Weights::add_matrix(const std::string& name, Linear& linear, int64_t outputs, int64_t inputs) {
  names_.push_back(name);
  targets_[name] = Target{&linear, nullptr, {outputs, inputs}};
}

void Weights::add_vector(const std::string& name, float*& vector, int64_t size) {
  names_.push_back(name);
  targets_[name] = Target{nullptr, &vector, {size}};
}

void Weights::add_layer(const DecoderShape& shape, int64_t index) {
  LayerWeights& layer = layers_[static_cast<size_t>(index)];
  const std::string prefix = "model.layers." + std::to_string(index) + ".";
  const int64_t hidden = shape.hidden_size, inner = shape.intermediate_size;
  const int64_t query_size = shape.num_heads * shape.head_dim, kv_size = shape.num_kv_heads * shape.head_dim;
  const auto add_linear = [&](const char* name, Linear& linear, int64_t outputs, int64_t inputs, bool has_bias) {
    add_matrix(prefix + name + ".weight", linear, outputs, inputs);
    if (has_bias) add_vector(prefix + name + ".bias", linear.bias, outputs);
  };
  add_vector(prefix + "input_layernorm.weight", layer.input_norm, hidden);
  add_linear("self_attn.q_proj", layer.query, query_size, hidden, shape.has_qkv_bias);
  add_linear("self_attn.k_proj", layer.key, kv_size, hidden, shape.has_qkv_bias);
  add_linear("self_attn.v_proj", layer.value, kv_size, hidden, shape.has_qkv_bias);
  if (shape.has_qk_norm) {
    add_vector(prefix + "self_attn.q_norm.weight", layer.query_norm, shape.head_dim);
    add_vector(prefix + "self_attn.k_norm.weight", layer.key_norm, shape.head_dim);
  }
  add_linear("self_attn.o_proj", layer.output, hidden, query_size, shape.has_output_bias);
  add_vector(prefix + "post_attention_layernorm.weight", layer.post_attention_norm, hidden);
  add_linear("mlp.gate_proj", layer.gate, inner, hidden, shape.has_mlp_bias);
  add_linear("mlp.up_proj", layer.up, inner, hidden, shape.has_mlp_bias);
  add_linear("mlp.down_proj", layer.down, hidden, inner, shape.has_mlp_bias);
}

void Weights::set(const std::string& name, const uint8_t* data, size_t num_bytes, const std::string& kind_name,
                  const std::vector<int64_t>& shape, int64_t permuted_heads) {
  if (is_finished_) fail("tensor '" + name + "' comes after the weights were finished");
  if (is_tied_ && name == "lm_head.weight") return;
  const auto found = targets_.find(name);
  if (found == targets_.end() || found->second.is_derived) fail("tensor '" + name + "' is unknown to this decoder");
  Target& target = found->second;
  if (target.is_filled) fail("tensor '" + name + "' comes twice");
  if (shape != target.shape)
    fail("tensor '" + name + "' has shape " + shape_text(shape) + ", but the model asks for " +
         shape_text(target.shape));
  const TensorKind* kind = find_tensor_kind(kind_name);
  if (kind == nullptr || (target.vector != nullptr && kind->group != 0))
    fail("tensor '" + name + "' has type " + kind_name + ", expected " +
         (target.vector != nullptr ? "F32, F16 or BF16" : "one of " + tensor_kind_names()));
  if (shape.back() % kind->block_values != 0)
    fail("tensor '" + name + "' has rows of " + std::to_string(shape.back()) + " numbers, which is no whole number of " +
         kind_name + "'s blocks of " + std::to_string(kind->block_values));
  const int64_t expected = product(shape) / kind->block_values * kind->block_bytes;
  if (num_bytes != static_cast<size_t>(expected))
    fail("tensor '" + name + "' has " + std::to_string(num_bytes) + " bytes, expected " + std::to_string(expected));
  if (permuted_heads < 0 || (permuted_heads > 0 && (shape.size() > 2 || shape[0] % (2 * permuted_heads) != 0)))
    fail("tensor '" + name + "' has " + std::to_string(shape[0]) + " rows, which " + std::to_string(permuted_heads) +
         " permuted heads cannot share");
  if (target.vector != nullptr) {
    set_vector(target, data, *kind, permuted_heads);
  } else {
    const WeightFormat format =
        format_ == WeightFormat::int4 && target.keeps_int8 ? WeightFormat::int8 : format_;
    target.linear->matrix = pack({data, kind, shape[0], shape[1], permuted_heads}, format, arena_);
  }
  target.is_filled = true;
}

void Weights::set_vector(Target& target, const uint8_t* data, const TensorKind& kind, int64_t permuted_heads) {
  const int64_t size = target.shape[0];
  const int64_t padded = cpu::round_up(size, cpu::kTileOutputs);
  float* vector = reinterpret_cast<float*>(arena_.allocate(static_cast<size_t>(padded) * sizeof(float)));
  QuantisedValues unused;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = source_row({data, &kind, size, 1, permuted_heads}, i);
    read_floats(kind, data + row * kind.block_bytes, 1, unused, vector + i);
  }
  *target.vector = vector;
}

void Weights::finish() {
  if (is_finished_) fail("the weights are finished already");
  std::string missing;
  int64_t num_missing = 0;
  for (const std::string& name : names_)
    if (const Target& target = targets_[name]; !target.is_filled && !target.is_derived && ++num_missing <= 3) missing += (missing.empty() ? "'" : ", '") + name + "'";
  if (num_missing > 3) missing += " and " + std::to_string(num_missing - 3) + " more";
  if (num_missing > 0) fail("the weights lack " + missing);
  for (LayerWeights& layer : layers_)
    for (Linear* linear : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down})
      linear->matrix.bias = linear->bias;
  fill_derived();
  is_finished_ = true;
}

int64_t Weights::num_bytes() const {
  const cpu::PackedMatrix& copy = screen_rest_.matrix;
  return arena_.num_bytes() - (copy.tiles == nullptr ? 0 : cpu::num_tiles(copy) * cpu::tile_bytes(copy));
}

void Weights::fill_derived() {
  const auto found = targets_.find("screen.rest");
  if (found == targets_.end()) return;
  if (!found->second.is_filled) {
    screen_rest_.matrix = screen_matrix(head());
    const int64_t num_bytes = cpu::num_tiles(head()) * cpu::tile_bytes(screen_rest_.matrix);
    screen_rest_.matrix.tiles = arena_.allocate(static_cast<size_t>(num_bytes));
    screen_.rest = screen_rest_.matrix;
    for (const char* name : {"screen.errors", "screen.lengths", "screen.centre"}) {
      const Target& target = targets_[name];
      const int64_t padded = cpu::round_up(target.shape[0], cpu::kTileOutputs);
      *target.vector = reinterpret_cast<float*>(arena_.allocate(static_cast<size_t>(padded) * sizeof(float)));
    }
    fill_screen(head(), screen_);
  }
  screen_.rest = screen_rest_.matrix;
}

}  // namespace xllm::kernels::native

// The weights of a decoder and their names. Knows nothing of how they are used.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "head_screen.h"
#include "memory.h"
#include "pack.h"
#include "packed_matrix.h"
#include "xllm/kernels/native/decoder.h"

namespace xllm::kernels::native {

struct Linear {
  cpu::PackedMatrix matrix{};
  float* bias = nullptr;  // [16 * tiles]
};

struct LayerWeights {
  Linear query, key, value, output, gate, up, down;
  float* input_norm = nullptr;
  float* post_attention_norm = nullptr;
  float* query_norm = nullptr;
  float* key_norm = nullptr;
};

class Weights {
 public:
  Weights(const DecoderShape& shape, WeightFormat format);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // As Decoder's.
  void set(const std::string& name, const uint8_t* data, size_t num_bytes, const std::string& kind,
           const std::vector<int64_t>& shape, int64_t permuted_heads);
  void finish();
  void save(const std::string& path, const std::string& key) const;
  bool load(const std::string& path, const std::string& key);

  bool is_finished() const { return is_finished_; }
  // Of the model's own weights, without the copy that its screen holds.
  int64_t num_bytes() const;

  const cpu::PackedMatrix& embedding() const { return embedding_.matrix; }
  const cpu::PackedMatrix& head() const { return is_tied_ ? embedding_.matrix : head_.matrix; }
  // Without memory where the head is too small for one.
  const HeadScreen& screen() const { return screen_; }
  const LayerWeights& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  const float* final_norm() const { return final_norm_; }

 private:
  // Where a tensor goes: a matrix, or a vector of floats (a bias has its values padded to whole tiles).
  struct Target {
    Linear* linear = nullptr;
    float** vector = nullptr;
    std::vector<int64_t> shape;
    bool keeps_int8 = false;  // embeddings and head under WeightFormat::int4
    bool is_filled = false;
    bool is_derived = false;  // made from other weights by finish, or read from a packed file
  };

  void add_matrix(const std::string& name, Linear& linear, int64_t outputs, int64_t inputs);
  void add_vector(const std::string& name, float*& vector, int64_t size);
  void add_layer(const DecoderShape& shape, int64_t index);
  void add_screen(const DecoderShape& shape);
  void fill_derived();
  void set_vector(Target& target, const uint8_t* data, const TensorKind& kind, int64_t permuted_heads);

  WeightFormat format_;
  bool is_tied_;
  bool is_finished_ = false;
  Arena arena_;
  std::vector<LayerWeights> layers_;
  Linear embedding_, head_;
  Linear screen_rest_;
  HeadScreen screen_;
  float* final_norm_ = nullptr;
  std::vector<std::string> names_;  // in the order of the model
  std::unordered_map<std::string, Target> targets_;
};

}  // namespace xllm::kernels::native

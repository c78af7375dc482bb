// A walk through everything that the native decoder does with threads and memory, for sanitizers to watch: random steps of
// mixed prompts and decodes in every weight format, heads small and large enough to be screened, several threads on several
// decoders over the one pool, the number of threads changed and weights saved meanwhile, tokens drawn, blocks copied, packed
// files cut. Checks that results stay the same.
// Usage: native_walk FOLDER SECONDS
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "xllm/kernels/native/decoder.h"
#include "xllm/kernels/native/draw.h"
#include "xllm/kernels/threads.h"

namespace {

using namespace xllm::kernels::native;
using Clock = std::chrono::steady_clock;

constexpr int64_t kBlockSize = 8, kBlocksPerSequence = 16, kMaxSequences = 6;
constexpr int64_t kPositions = kBlockSize * kBlocksPerSequence;

DecoderShape shape_of(std::mt19937& random) {
  const int64_t head_dims[] = {8, 20, 64};
  const int64_t fewest = random() % 4 == 0 ? 4096 : 80;  // the former is what a head's screen starts at
  DecoderShape shape{.vocab_size = fewest + static_cast<int64_t>(random() % 60),
                     .hidden_size = 32 * (1 + static_cast<int64_t>(random() % 3)),
                     .intermediate_size = 32 * (1 + static_cast<int64_t>(random() % 5)),
                     .num_layers = 2,
                     .num_heads = 4,
                     .num_kv_heads = int64_t{1} << random() % 3,
                     .head_dim = head_dims[random() % 3],
                     .rotary_dim = 8,
                     .rms_norm_eps = 1e-5f,
                     .has_tied_embeddings = random() % 2 == 0,
                     .has_qkv_bias = random() % 2 == 0,
                     .has_output_bias = false,
                     .has_mlp_bias = false,
                     .has_qk_norm = random() % 2 == 0,
                     .sliding_windows = {0, static_cast<int64_t>(random() % 2) * 12}};
  return shape;
}

std::vector<float> rotary_table() {
  std::vector<float> table(static_cast<size_t>(kPositions * 8));
  for (int64_t p = 0; p < kPositions; ++p)
    for (int i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(p) * std::pow(100.0, -i / 4.0);
      table[static_cast<size_t>(p * 8 + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(p * 8 + 4 + i)] = static_cast<float>(std::sin(angle));
    }
  return table;
}

void set_floats(Decoder& decoder, std::mt19937& random, const std::string& name, const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  std::normal_distribution<float> normal(shape.size() == 1 ? 1.0f : 0.0f, 0.1f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  decoder.set_weight(name, reinterpret_cast<const uint8_t*>(values.data()), count * sizeof(float), "F32", shape, 0);
}

void fill(Decoder& decoder, std::mt19937& random) {
  const DecoderShape& s = decoder.shape();
  const int64_t query = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
  set_floats(decoder, random, "model.embed_tokens.weight", {s.vocab_size, s.hidden_size});
  if (!s.has_tied_embeddings) set_floats(decoder, random, "lm_head.weight", {s.vocab_size, s.hidden_size});
  set_floats(decoder, random, "model.norm.weight", {s.hidden_size});
  for (int64_t i = 0; i < s.num_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
    set_floats(decoder, random, layer + "input_layernorm.weight", {s.hidden_size});
    set_floats(decoder, random, layer + "post_attention_layernorm.weight", {s.hidden_size});
    set_floats(decoder, random, attention + "q_proj.weight", {query, s.hidden_size});
    set_floats(decoder, random, attention + "k_proj.weight", {kv, s.hidden_size});
    set_floats(decoder, random, attention + "v_proj.weight", {kv, s.hidden_size});
    set_floats(decoder, random, attention + "o_proj.weight", {s.hidden_size, query});
    if (s.has_qkv_bias) {
      set_floats(decoder, random, attention + "q_proj.bias", {query});
      set_floats(decoder, random, attention + "k_proj.bias", {kv});
      set_floats(decoder, random, attention + "v_proj.bias", {kv});
    }
    if (s.has_qk_norm) {
      set_floats(decoder, random, attention + "q_norm.weight", {s.head_dim});
      set_floats(decoder, random, attention + "k_norm.weight", {s.head_dim});
    }
    set_floats(decoder, random, layer + "mlp.gate_proj.weight", {s.intermediate_size, s.hidden_size});
    set_floats(decoder, random, layer + "mlp.up_proj.weight", {s.intermediate_size, s.hidden_size});
    set_floats(decoder, random, layer + "mlp.down_proj.weight", {s.hidden_size, s.intermediate_size});
  }
  decoder.finish();
}

// Sequences that grow by random chunks, some at a time; returns a fingerprint of every token that was chosen, which does
// not depend on how they are cut or on who shares a step.
uint64_t run_sequences(Decoder& decoder, uint32_t seed, int64_t rounds) {
  std::mt19937 cuts(seed), text(7);
  std::vector<std::vector<int32_t>> tokens(kMaxSequences);
  for (auto& sequence : tokens) sequence.push_back(static_cast<int32_t>(text() % 80));
  std::vector<int64_t> computed(kMaxSequences, 0);
  std::vector<std::vector<int32_t>> prompts(kMaxSequences);
  for (int64_t s = 0; s < kMaxSequences; ++s)
    for (int64_t i = 0; i < 20 + 3 * s; ++i) tokens[s].push_back(static_cast<int32_t>(text() % 80));
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<int32_t> ids, positions, query_start{0}, seq_lens, tables, owners;
    std::vector<int64_t> slots, rows;
    for (int64_t s = 0; s < kMaxSequences; ++s) {
      const int64_t left = static_cast<int64_t>(tokens[s].size()) - computed[s];
      if (left == 0 || computed[s] + left > kPositions || cuts() % 3 == 0) continue;
      const int64_t count = 1 + static_cast<int64_t>(cuts()) % left;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t position = computed[s] + i;
        ids.push_back(tokens[s][static_cast<size_t>(position)]);
        positions.push_back(static_cast<int32_t>(position));
        slots.push_back((s * kBlocksPerSequence + position / kBlockSize) * kBlockSize + position % kBlockSize);
      }
      computed[s] += count;
      for (int64_t b = 0; b < kBlocksPerSequence; ++b) tables.push_back(static_cast<int32_t>(s * kBlocksPerSequence + b));
      query_start.push_back(static_cast<int32_t>(ids.size()));
      seq_lens.push_back(static_cast<int32_t>(computed[s]));
      if (count == left) {
        rows.push_back(static_cast<int64_t>(ids.size()) - 1);
        owners.push_back(static_cast<int32_t>(s));
      }
    }
    std::vector<int32_t> chosen(rows.size());
    decoder.greedy({.token_ids = ids.data(),
                    .positions = positions.data(),
                    .slot_mapping = slots.data(),
                    .query_start = query_start.data(),
                    .seq_lens = seq_lens.data(),
                    .block_tables = tables.data(),
                    .rows = rows.data(),
                    .num_tokens = static_cast<int64_t>(ids.size()),
                    .num_seqs = static_cast<int64_t>(seq_lens.size()),
                    .num_columns = kBlocksPerSequence,
                    .block_table_stride = kBlocksPerSequence,
                    .num_rows = static_cast<int64_t>(rows.size())},
                   chosen.data());
    for (size_t i = 0; i < rows.size(); ++i) tokens[static_cast<size_t>(owners[i])].push_back(chosen[i]);
  }
  uint64_t fingerprint = 0;
  for (const auto& sequence : tokens)
    for (size_t i = 0; i < 45; ++i)  // every walk gets so far
      fingerprint = fingerprint * 1099511628211u + static_cast<uint64_t>(i < sequence.size() ? sequence[i] : -1);
  return fingerprint;
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "native_walk: %s\n", what);
  std::exit(1);
}

// Draws of random rows, and log-probabilities of what was drawn; the same whatever the number of threads.
void draw_rows(std::mt19937& random) {
  const int64_t num_rows = 1 + static_cast<int64_t>(random() % 9), vocab_size = 1 + static_cast<int64_t>(random() % 3000);
  const auto count = static_cast<size_t>(num_rows);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<float> logits(count * static_cast<size_t>(vocab_size)), best(count), temperature(count), min_p(count);
  std::vector<int64_t> rows(count), top_k(count);
  std::vector<double> top_p(count), draws(count);
  for (float& logit : logits) logit = normal(random);
  for (size_t i = 0; i < count; ++i) {
    rows[i] = static_cast<int64_t>(i);
    const float* row = logits.data() + i * static_cast<size_t>(vocab_size);
    best[i] = *std::max_element(row, row + vocab_size);
    temperature[i] = static_cast<float>(0.1 + uniform(random));
    top_k[i] = random() % 2 == 0 ? vocab_size : 1 + static_cast<int64_t>(random()) % vocab_size;
    top_p[i] = random() % 2 == 0 ? 1.0 : 0.05 + 0.9 * uniform(random);
    min_p[i] = random() % 2 == 0 ? 0.0f : static_cast<float>(uniform(random));
    draws[i] = uniform(random);
  }
  std::vector<int32_t> expected(count, -1), found(count, -1);
  for (std::vector<int32_t>* ids : {&expected, &found})
    draw({.logits = logits.data(),
          .rows = rows.data(),
          .best = best.data(),
          .temperature = temperature.data(),
          .top_k = top_k.data(),
          .top_p = top_p.data(),
          .min_p = min_p.data(),
          .uniform = draws.data(),
          .token_ids = ids->data(),
          .num_logits = num_rows,
          .num_rows = num_rows,
          .vocab_size = vocab_size});
  expect(expected == found, "a draw depends on the threads");
  const int64_t num_top = std::min<int64_t>(vocab_size, 5);
  std::vector<float> logprobs(count), top_logprobs(count * static_cast<size_t>(num_top));
  std::vector<int32_t> top_ids(count * static_cast<size_t>(num_top));
  token_logprobs({.logits = logits.data(),
                  .token_ids = found.data(),
                  .logprobs = logprobs.data(),
                  .top_ids = top_ids.data(),
                  .top_logprobs = top_logprobs.data(),
                  .num_rows = num_rows,
                  .vocab_size = vocab_size,
                  .num_top = num_top});
  for (const float logprob : logprobs) expect(logprob <= 0.0f, "a log-probability is positive");
}

void copy_blocks(Decoder& decoder) {
  const auto size = static_cast<size_t>(decoder.num_block_bytes());
  std::vector<uint8_t> before(3 * size), after(3 * size);
  const int32_t blocks[] = {0, 5, 17}, pairs[] = {5, 20, 17, 21};
  decoder.read_blocks(blocks, 3, before.data());
  decoder.copy_blocks(pairs, 2);
  const int32_t copies[] = {0, 20, 21};
  decoder.read_blocks(copies, 3, after.data());
  expect(before == after, "a copied block differs");
  decoder.write_blocks(blocks, 3, after.data());
}

void cut_packed_file(const Decoder& decoder, const std::vector<float>& table, const std::string& path) {
  decoder.save_packed(path, "key");
  const auto size = std::filesystem::file_size(path);
  for (const uintmax_t length : {size - 1, size / 2, uintmax_t{40}, uintmax_t{0}}) {
    std::filesystem::resize_file(path, length);
    Decoder other(decoder.shape(), table.data(), kPositions, WeightFormat::int4);
    expect(!other.load_packed(path, "key"), "a cut packed file was taken");
  }
}

// One model: its own results again and again, whatever else runs.
void walk(uint32_t seed, const std::string& folder, Clock::time_point end, std::atomic<int64_t>& num_walks) {
  std::mt19937 random(seed);
  const std::vector<float> table = rotary_table();
  const WeightFormat formats[] = {WeightFormat::float32, WeightFormat::bfloat16, WeightFormat::int8, WeightFormat::int4};
  while (Clock::now() < end) {
    const WeightFormat format = formats[random() % 4];
    Decoder decoder(shape_of(random), table.data(), kPositions, format);
    fill(decoder, random);
    decoder.allocate_kv_cache(kMaxSequences * kBlocksPerSequence, kBlockSize,
                              random() % 2 == 0 ? CacheType::bfloat16 : CacheType::float32);
    const std::string path = folder + "/walk" + std::to_string(seed);
    const uint64_t expected = run_sequences(decoder, random(), 160);
    std::thread saver([&] { decoder.save_packed(path, "key"); });
    expect(run_sequences(decoder, random(), 160) == expected, "tokens depend on how steps are cut");
    saver.join();
    Decoder loaded(decoder.shape(), table.data(), kPositions, format);
    expect(loaded.load_packed(path, "key"), "a packed file was refused");
    for (int i = 0; i < 8; ++i) draw_rows(random);
    copy_blocks(decoder);
    cut_packed_file(decoder, table, path);
    ++num_walks;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: native_walk FOLDER SECONDS\n");
    return 2;
  }
  const auto end = Clock::now() + std::chrono::seconds(std::atoi(argv[2]));
  std::atomic<int64_t> num_walks{0};
  std::vector<std::thread> walkers;
  for (uint32_t seed = 1; seed <= 3; ++seed) walkers.emplace_back([&, seed] { walk(seed, argv[1], end, num_walks); });
  for (int i = 0; Clock::now() < end; ++i) {
    xllm::kernels::cpu::set_num_threads(1 + i % 4, i % 2 == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (std::thread& walker : walkers) walker.join();
  std::printf("native_walk: %lld models, no difference\n", static_cast<long long>(num_walks));
  return 0;
}

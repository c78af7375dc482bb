// The messages between this library and the engine process: their bytes, and nothing of how they travel.
// src/xllm_capi/messages.py describes the same messages; change both together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answer.hpp"
#include "msgpack.hpp"
#include "recommendations.hpp"

namespace libxllm {

inline constexpr std::int64_t kProtocolVersion = 1;
inline constexpr std::size_t kFrameHeaderSize = 4;
// Frames above this are refused on both sides.
inline constexpr std::size_t kMaxFrameSize = std::size_t{256} << 20;

// What a request starts from: exactly one of the first four is given, unless tensors stand for it.
struct Input {
    const char *prompt = nullptr;
    const std::int32_t *token_ids = nullptr;
    std::size_t num_token_ids = 0;
    const xllm_message *messages = nullptr;
    std::size_t num_messages = 0;
    const char *messages_json = nullptr;
    const xllm_tensor *tensors = nullptr;
    std::size_t num_tensors = 0;
};

// The bytes of a checked tensor's values.
std::size_t size_of(const xllm_tensor &tensor);

// What is to be embedded, or, with a query, scored: texts, or the token ids of one.
struct PoolingInput {
    const char *query = nullptr;
    const char *const *texts = nullptr;
    std::size_t num_texts = 0;
    const std::int32_t *token_ids = nullptr;
    std::size_t num_token_ids = 0;
};

// Each returns a whole frame: the length as four little-endian bytes, then the message.
std::string encode_start(std::string_view model, const char *options_json);
std::string encode_generate(std::uint64_t id, const Input &input, const xllm_request_options &options);
std::string encode_pool(std::uint64_t id, const PoolingInput &input, const xllm_pooling_options &options);
std::string encode_search(std::uint64_t id, const Input &input, const xllm_recommend_options &options);
std::string encode_cancel(const std::vector<std::uint64_t> &ids);
std::string encode_stats(std::uint64_t id);
std::string encode_shutdown();

// The engine takes requests.
struct Ready {
    std::int64_t protocol_version = 0;
    std::string model;
    std::string model_impl;
    std::string device;
    std::string dtype;
    std::int32_t max_model_len = 0;
    std::int32_t vocab_size = 0;
    std::int32_t num_blocks = 0;
    std::int32_t block_size = 0;
    std::int64_t process_id = 0;
};

// Takes what arrives, in order. References are valid during the call only.
class MessageHandler {
public:
    virtual ~MessageHandler() = default;
    virtual void on_ready(Ready ready) = 0;
    // The engine cannot start, or its loop has ended: nothing more will come.
    virtual void on_failed(Outcome outcome) = 0;
    // The handler may take `event`'s contents; the reader reuses what is left.
    virtual void on_delta(std::uint64_t id, Event &event) = 0;
    virtual void on_finished(std::uint64_t id, Outcome outcome, Usage usage) = 0;
    // The end of a request for vectors.
    virtual void on_vectors(std::uint64_t id, Outcome outcome, Usage usage, Vectors vectors) = 0;
    // The end of a search.
    virtual void on_paths(std::uint64_t id, Outcome outcome, Usage usage, Paths paths) = 0;
    virtual void on_stats(std::uint64_t id, const xllm_metrics &metrics) = 0;
};

// Reads messages; keeps one event as scratch so that a streamed token allocates nothing new.
class MessageReader {
public:
    // Messages of unknown kind are stepped over. Throws MalformedMessage.
    void read(std::string_view message, MessageHandler &handler);

private:
    void read_outputs(Decoder &decoder, std::size_t num_fields, MessageHandler &handler);
    std::uint64_t read_delta(Decoder &decoder);

    Event event_;
};

// The status for the `kind` of an engine's error.
xllm_status status_of_kind(std::string_view kind);

}  // namespace libxllm

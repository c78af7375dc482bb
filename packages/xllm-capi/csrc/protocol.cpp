// The sending half of protocol.hpp.
#include "protocol.hpp"

#include <utility>

namespace libxllm {

namespace {

// A frame under construction: room for the header, then the message.
class Frame {
public:
    Frame() : bytes_(kFrameHeaderSize, '\0'), encoder_(bytes_) {}
    Encoder &encoder() { return encoder_; }

    std::string finish() {
        const std::size_t size = bytes_.size() - kFrameHeaderSize;
        if (size > kMaxFrameSize) {
            throw Failure(XLLM_ERROR_INVALID_ARGUMENT, "The request is larger than 256 MiB.");
        }
        for (std::size_t i = 0; i < kFrameHeaderSize; ++i) bytes_[i] = static_cast<char>(size >> (8 * i) & 0xff);
        return std::move(bytes_);
    }

private:
    std::string bytes_;
    Encoder encoder_;
};

void encode_sampling(Encoder &encoder, const xllm_request_options &options) {
    const bool has_max_tokens = options.max_tokens >= 0;
    const bool has_logprobs = options.logprobs >= 0;
    const bool has_seed = options.has_seed != 0;
    encoder.map(14 + has_max_tokens + has_logprobs + has_seed);
    const auto integer = [&](const char *name, std::int64_t value) { encoder.string(name), encoder.integer(value); };
    const auto real = [&](const char *name, double value) { encoder.string(name), encoder.real(value); };
    const auto boolean = [&](const char *name, bool value) { encoder.string(name), encoder.boolean(value); };
    if (has_max_tokens) integer("max_tokens", options.max_tokens);
    if (has_logprobs) integer("logprobs", options.logprobs);
    if (has_seed) integer("seed", options.seed);
    integer("min_tokens", options.min_tokens);
    integer("n", options.n);
    integer("top_k", options.top_k);
    real("temperature", options.temperature);
    real("top_p", options.top_p);
    real("min_p", options.min_p);
    real("presence_penalty", options.presence_penalty);
    real("frequency_penalty", options.frequency_penalty);
    real("repetition_penalty", options.repetition_penalty);
    boolean("ignore_eos", options.ignore_eos != 0);
    boolean("skip_special_tokens", options.keep_special_tokens == 0);
    boolean("include_stop_str_in_output", options.include_stop_str_in_output != 0);
    encoder.string("stop");
    encoder.array(options.num_stop);
    for (std::size_t i = 0; i < options.num_stop; ++i) encoder.string(options.stop[i]);
    encoder.string("stop_token_ids");
    encoder.array(options.num_stop_token_ids);
    for (std::size_t i = 0; i < options.num_stop_token_ids; ++i) encoder.integer(options.stop_token_ids[i]);
}

// Only what was given: the engine has defaults of its own.
void encode_search_params(Encoder &encoder, const xllm_recommend_options &options) {
    const bool is_sampled = options.is_sampled != 0;
    encoder.map((options.beam_width > 0) + (options.num_return_sequences > 0) + (options.num_rounds > 0) +
                4 * is_sampled);
    const auto integer = [&](const char *name, std::int64_t value) { encoder.string(name), encoder.integer(value); };
    if (options.beam_width > 0) integer("beam_width", options.beam_width);
    if (options.num_return_sequences > 0) integer("num_return_sequences", options.num_return_sequences);
    if (options.num_rounds > 0) integer("num_rounds", options.num_rounds);
    if (!is_sampled) return;
    encoder.string("is_sampled");
    encoder.boolean(true);
    integer("top_k", options.top_k);
    encoder.string("temperature");
    encoder.real(options.temperature);
    encoder.string("top_p");
    encoder.real(options.top_p);
}

void encode_token_ids(Encoder &encoder, const std::int32_t *token_ids, std::size_t num_token_ids) {
    if (token_ids == nullptr) {
        encoder.nil();
        return;
    }
    encoder.array(num_token_ids);
    for (std::size_t i = 0; i < num_token_ids; ++i) encoder.integer(token_ids[i]);
}

void encode_messages(Encoder &encoder, const Input &input) {
    if (input.messages == nullptr) {
        encoder.nil();
        return;
    }
    encoder.array(input.num_messages);
    for (std::size_t i = 0; i < input.num_messages; ++i) {
        encoder.array(2);
        encoder.string(input.messages[i].role);
        encoder.string(input.messages[i].content);
    }
}

void encode_tensors(Encoder &encoder, const Input &input) {
    encoder.array(input.num_tensors);
    for (std::size_t i = 0; i < input.num_tensors; ++i) {
        const xllm_tensor &tensor = input.tensors[i];
        encoder.array(4);
        encoder.string(tensor.name);
        encoder.string(tensor.dtype == XLLM_TENSOR_FLOAT32 ? "float32" : "int64");
        encoder.array(static_cast<std::size_t>(tensor.rank));
        for (std::int32_t axis = 0; axis < tensor.rank; ++axis) encoder.integer(tensor.shape[axis]);
        // Little endian, as every machine is that the library is built for.
        encoder.binary({static_cast<const char *>(tensor.values), size_of(tensor)});
    }
}

void encode_input(Encoder &encoder, const Input &input) {
    encoder.string_or_nil(input.prompt);
    encode_token_ids(encoder, input.token_ids, input.num_token_ids);
    encode_messages(encoder, input);
    encoder.string_or_nil(input.messages_json);
}

}  // namespace

std::size_t size_of(const xllm_tensor &tensor) {
    std::size_t size = tensor.dtype == XLLM_TENSOR_FLOAT32 ? sizeof(float) : sizeof(std::int64_t);
    for (std::int32_t axis = 0; axis < tensor.rank; ++axis) size *= static_cast<std::size_t>(tensor.shape[axis]);
    return size;
}

std::string encode_start(std::string_view model, const char *options_json) {
    Frame frame;
    frame.encoder().array(4);
    frame.encoder().string("start");
    frame.encoder().integer(kProtocolVersion);
    frame.encoder().string(model);
    frame.encoder().string(options_json == nullptr ? "" : options_json);
    return frame.finish();
}

std::string encode_generate(std::uint64_t id, const Input &input, const xllm_request_options &options) {
    Frame frame;
    Encoder &encoder = frame.encoder();
    encoder.array(16);
    encoder.string("generate");
    encoder.integer(static_cast<std::int64_t>(id));
    encode_input(encoder, input);
    encode_sampling(encoder, options);
    encoder.string_or_nil(options.request_id);
    encoder.integer(options.priority);
    encoder.boolean(options.is_offline != 0);
    encoder.string(options.cache_salt == nullptr ? "" : options.cache_salt);
    encoder.string_or_nil(options.tools_json);
    encoder.string_or_nil(options.response_format_json);
    encoder.string_or_nil(options.template_kwargs_json);
    encoder.string_or_nil(options.options_json);
    encoder.string_or_nil(options.tool_choice);
    return frame.finish();
}

std::string encode_pool(std::uint64_t id, const PoolingInput &input, const xllm_pooling_options &options) {
    Frame frame;
    Encoder &encoder = frame.encoder();
    encoder.array(11);
    encoder.string("pool");
    encoder.integer(static_cast<std::int64_t>(id));
    encoder.string_or_nil(input.query);
    encoder.array(input.num_texts);
    for (std::size_t i = 0; i < input.num_texts; ++i) encoder.string(input.texts[i]);
    encode_token_ids(encoder, input.token_ids, input.num_token_ids);
    encoder.integer(options.dimensions);
    encoder.integer(options.truncate_to);
    encoder.string_or_nil(options.request_id);
    encoder.integer(options.priority);
    encoder.boolean(options.is_offline != 0);
    encoder.string(options.cache_salt == nullptr ? "" : options.cache_salt);
    return frame.finish();
}

std::string encode_search(std::uint64_t id, const Input &input, const xllm_recommend_options &options) {
    Frame frame;
    Encoder &encoder = frame.encoder();
    encoder.array(11);
    encoder.string("search");
    encoder.integer(static_cast<std::int64_t>(id));
    encoder.string_or_nil(input.prompt);
    encode_token_ids(encoder, input.token_ids, input.num_token_ids);
    encode_messages(encoder, input);
    encode_search_params(encoder, options);
    if (options.has_seed != 0 && options.is_sampled != 0) {
        encoder.integer(options.seed);
    } else {
        encoder.nil();
    }
    encoder.string_or_nil(options.request_id);
    encoder.integer(options.priority);
    encoder.string(options.cache_salt == nullptr ? "" : options.cache_salt);
    encode_tensors(encoder, input);
    return frame.finish();
}

std::string encode_cancel(const std::vector<std::uint64_t> &ids) {
    Frame frame;
    frame.encoder().array(2);
    frame.encoder().string("cancel");
    frame.encoder().array(ids.size());
    for (const std::uint64_t id : ids) frame.encoder().integer(static_cast<std::int64_t>(id));
    return frame.finish();
}

std::string encode_stats(std::uint64_t id) {
    Frame frame;
    frame.encoder().array(2);
    frame.encoder().string("stats");
    frame.encoder().integer(static_cast<std::int64_t>(id));
    return frame.finish();
}

std::string encode_shutdown() {
    Frame frame;
    frame.encoder().array(1);
    frame.encoder().string("shutdown");
    return frame.finish();
}

}  // namespace libxllm

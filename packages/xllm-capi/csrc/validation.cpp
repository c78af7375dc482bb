#include "validation.hpp"

#include <cmath>
#include <string>

#include "msgpack.hpp"

namespace libxllm {

namespace {

constexpr std::int32_t kMaxTensorRank = 3;
constexpr std::int64_t kMaxTensorValues = kMaxFrameSize / sizeof(float);

[[noreturn]] void refuse(const std::string &message) { throw Failure(XLLM_ERROR_INVALID_ARGUMENT, message); }

void check_number(double value, const char *name) {
    if (!std::isfinite(value)) refuse(std::string(name) + " must be a finite number.");
}

void check_tensor(const xllm_tensor &tensor, const std::string &where) {
    check_text(tensor.name, (where + ".name").c_str());
    const std::string name = where + " (" + tensor.name + ")";
    if (tensor.dtype != XLLM_TENSOR_FLOAT32 && tensor.dtype != XLLM_TENSOR_INT64) {
        refuse(name + ".dtype is " + std::to_string(tensor.dtype) +
               ", but XLLM_TENSOR_FLOAT32 and XLLM_TENSOR_INT64 are taken.");
    }
    if (tensor.rank < 1 || tensor.rank > kMaxTensorRank) {
        refuse(name + ".rank must be from 1 to 3, not " + std::to_string(tensor.rank) + ".");
    }
    if (tensor.shape == nullptr) refuse(name + ".shape must not be NULL.");
    if (tensor.values == nullptr) refuse(name + ".values must not be NULL.");
    std::int64_t num_values = 1;
    for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
        const std::int64_t size = tensor.shape[axis];
        const std::string field = name + ".shape[" + std::to_string(axis) + "]";
        if (size < 1) refuse(field + " must be above 0, not " + std::to_string(size) + ".");
        if (size > kMaxTensorValues / num_values) refuse(field + " makes the tensor larger than a request may be.");
        num_values *= size;
    }
}

}  // namespace

xllm_engine_options default_engine_options() { return XLLM_ENGINE_OPTIONS_INIT; }

xllm_request_options default_request_options() { return XLLM_REQUEST_OPTIONS_INIT; }

xllm_pooling_options default_pooling_options() { return XLLM_POOLING_OPTIONS_INIT; }

xllm_recommend_options default_recommend_options() { return XLLM_RECOMMEND_OPTIONS_INIT; }

void check_struct_size(std::size_t size, std::size_t min_size, std::size_t max_size, const char *struct_name) {
    if (size < min_size || size > max_size) {
        refuse(std::string(struct_name) + ".struct_size is " + std::to_string(size) + ", but this library takes " +
               std::to_string(min_size) + " to " + std::to_string(max_size) +
               ": fill the struct with its _INIT macro, and check xllm_api_version().");
    }
}

void check_text(const char *text, const char *name) {
    if (text == nullptr) refuse(std::string(name) + " must not be NULL.");
    if (!is_utf8(text)) refuse(std::string(name) + " is not valid UTF-8.");
}

void check_optional_text(const char *text, const char *name) {
    if (text != nullptr) check_text(text, name);
}

void check_input(const Input &input) {
    check_optional_text(input.prompt, "prompt");
    check_optional_text(input.messages_json, "messages_json");
    for (std::size_t i = 0; i < input.num_messages; ++i) {
        const std::string name = "messages[" + std::to_string(i) + "]";
        check_text(input.messages[i].role, (name + ".role").c_str());
        check_text(input.messages[i].content, (name + ".content").c_str());
    }
    for (std::size_t i = 0; i < input.num_tensors; ++i) {
        check_tensor(input.tensors[i], "tensors[" + std::to_string(i) + "]");
    }
}

void check_options(const xllm_request_options &options) {
    check_optional_text(options.request_id, "request_id");
    check_optional_text(options.cache_salt, "cache_salt");
    check_optional_text(options.tools_json, "tools_json");
    check_optional_text(options.response_format_json, "response_format_json");
    check_optional_text(options.template_kwargs_json, "template_kwargs_json");
    check_optional_text(options.options_json, "options_json");
    check_optional_text(options.tool_choice, "tool_choice");
    check_number(options.temperature, "temperature");
    check_number(options.top_p, "top_p");
    check_number(options.min_p, "min_p");
    check_number(options.presence_penalty, "presence_penalty");
    check_number(options.frequency_penalty, "frequency_penalty");
    check_number(options.repetition_penalty, "repetition_penalty");
    if (options.max_tokens < -1) refuse("max_tokens must be -1 (no limit) or more.");
    if (options.logprobs < -1) refuse("logprobs must be -1 (none) or more.");
    if (options.stop == nullptr && options.num_stop > 0) refuse("stop must not be NULL while num_stop is not 0.");
    if (options.stop_token_ids == nullptr && options.num_stop_token_ids > 0) {
        refuse("stop_token_ids must not be NULL while num_stop_token_ids is not 0.");
    }
    for (std::size_t i = 0; i < options.num_stop; ++i) {
        check_text(options.stop[i], ("stop[" + std::to_string(i) + "]").c_str());
    }
}

void check_input(const PoolingInput &input) {
    check_optional_text(input.query, "query");
    const char *name = input.query == nullptr ? "texts" : "documents";
    for (std::size_t i = 0; i < input.num_texts; ++i) {
        check_text(input.texts[i], (std::string(name) + "[" + std::to_string(i) + "]").c_str());
    }
}

void check_options(const xllm_pooling_options &options) {
    check_optional_text(options.request_id, "request_id");
    check_optional_text(options.cache_salt, "cache_salt");
    if (options.dimensions < 0) refuse("dimensions must be 0 (all) or more.");
    if (options.truncate_to < -1) refuse("truncate_to must be -1 (as the model takes), 0 (refuse) or more.");
}

void check_options(const xllm_recommend_options &options) {
    check_optional_text(options.request_id, "request_id");
    check_optional_text(options.cache_salt, "cache_salt");
    check_number(options.temperature, "temperature");
    check_number(options.top_p, "top_p");
    if (options.beam_width < 0) refuse("beam_width must be 0 (as the engine's options say) or more.");
    if (options.num_return_sequences < 0) refuse("num_return_sequences must be 0 (all) or more.");
    if (options.num_rounds < 0) refuse("num_rounds must be 0 (as many as an item has) or more.");
    if (options.top_k < 0) refuse("top_k must be 0 (all) or more.");
}

}  // namespace libxllm

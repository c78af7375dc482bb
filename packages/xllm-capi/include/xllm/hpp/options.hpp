// Part of xllm.hpp: what engines and requests are asked for.
// SPDX-License-Identifier: Apache-2.0
#ifndef XLLM_HPP_OPTIONS_HPP_
#define XLLM_HPP_OPTIONS_HPP_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "xllm/xllm.h"

namespace xllm {

using Milliseconds = std::chrono::milliseconds;

struct EngineOptions {
    std::string model;         // empty: the embedded demo model
    std::string options_json;  // empty: none
    std::string python;        // empty: XLLM_PYTHON, or the environment of the library
    std::string log_path;      // empty: no log; "-": standard error
    Milliseconds start_timeout{0};
};

struct RequestOptions {
    std::string request_id;
    Milliseconds timeout{0};
    std::optional<std::int32_t> max_tokens;  // none: as many as the context holds
    std::int32_t min_tokens = 0;
    std::int32_t n = 1;
    std::int32_t top_k = -1;
    std::optional<std::int32_t> logprobs;
    double temperature = 1.0;
    double top_p = 1.0;
    double min_p = 0.0;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;
    double repetition_penalty = 1.0;
    std::optional<std::int64_t> seed;
    bool ignore_eos = false;
    bool keep_special_tokens = false;
    bool include_stop_str_in_output = false;
    bool is_offline = false;
    std::int32_t priority = 0;
    std::vector<std::string> stop;
    std::vector<std::int32_t> stop_token_ids;
    std::string cache_salt;
    std::string tools_json;
    std::string response_format_json;
    std::string template_kwargs_json;
    std::string options_json;
    std::string tool_choice;  // empty: "auto"
};

struct PoolingOptions {
    std::string request_id;
    Milliseconds timeout{0};
    std::int32_t dimensions = 0;   // 0: all
    std::int32_t truncate_to = 0;  // 0: refuse longer texts; -1: as many tokens as the model takes
    std::int32_t priority = 0;
    bool is_offline = false;
    std::string cache_salt;
};

struct RecommendOptions {
    std::string request_id;
    Milliseconds timeout{0};
    std::int32_t beam_width = 0;            // 0: the engine's option
    std::int32_t num_return_sequences = 0;  // 0: all
    std::int32_t num_rounds = 0;            // 0: as many as an item has tokens
    bool is_sampled = false;                // only then the next four count
    std::int32_t top_k = 0;
    double temperature = 1.0;
    double top_p = 1.0;
    std::optional<std::int64_t> seed;
    std::int32_t priority = 0;
    std::string cache_salt;
};

struct Message {
    std::string role;
    std::string content;
};

namespace detail {

inline const char *null_if_empty(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

inline std::uint32_t to_milliseconds(Milliseconds duration) {
    const auto count = duration.count();
    if (count <= 0) return 0;
    return count > 0xffffffffLL ? 0xffffffffU : static_cast<std::uint32_t>(count);
}

// The C form of options; its pointers lead into the C++ form, which must outlive it.
class CRequestOptions {
public:
    explicit CRequestOptions(const RequestOptions &options) {
        for (const std::string &text : options.stop) stop_.push_back(text.c_str());
        c_.request_id = null_if_empty(options.request_id);
        c_.timeout_ms = to_milliseconds(options.timeout);
        c_.max_tokens = options.max_tokens.value_or(-1);
        c_.min_tokens = options.min_tokens;
        c_.n = options.n;
        c_.top_k = options.top_k;
        c_.logprobs = options.logprobs.value_or(-1);
        c_.temperature = options.temperature;
        c_.top_p = options.top_p;
        c_.min_p = options.min_p;
        c_.presence_penalty = options.presence_penalty;
        c_.frequency_penalty = options.frequency_penalty;
        c_.repetition_penalty = options.repetition_penalty;
        c_.seed = options.seed.value_or(0);
        c_.has_seed = options.seed.has_value();
        c_.ignore_eos = options.ignore_eos;
        c_.keep_special_tokens = options.keep_special_tokens;
        c_.include_stop_str_in_output = options.include_stop_str_in_output;
        c_.priority = options.priority;
        c_.is_offline = options.is_offline;
        c_.stop = stop_.data();
        c_.num_stop = stop_.size();
        c_.stop_token_ids = options.stop_token_ids.data();
        c_.num_stop_token_ids = options.stop_token_ids.size();
        c_.cache_salt = null_if_empty(options.cache_salt);
        c_.tools_json = null_if_empty(options.tools_json);
        c_.response_format_json = null_if_empty(options.response_format_json);
        c_.template_kwargs_json = null_if_empty(options.template_kwargs_json);
        c_.options_json = null_if_empty(options.options_json);
        c_.tool_choice = null_if_empty(options.tool_choice);
    }
    const xllm_request_options *get() const { return &c_; }

private:
    std::vector<const char *> stop_;
    xllm_request_options c_ = XLLM_REQUEST_OPTIONS_INIT;
};

inline std::vector<xllm_message> to_c(const std::vector<Message> &messages) {
    std::vector<xllm_message> c;
    for (const Message &message : messages) c.push_back({message.role.c_str(), message.content.c_str()});
    return c;
}

inline xllm_pooling_options to_c(const PoolingOptions &options) {
    xllm_pooling_options c = XLLM_POOLING_OPTIONS_INIT;
    c.request_id = null_if_empty(options.request_id);
    c.timeout_ms = to_milliseconds(options.timeout);
    c.dimensions = options.dimensions;
    c.truncate_to = options.truncate_to;
    c.priority = options.priority;
    c.is_offline = options.is_offline;
    c.cache_salt = null_if_empty(options.cache_salt);
    return c;
}

inline xllm_recommend_options to_c(const RecommendOptions &options) {
    xllm_recommend_options c = XLLM_RECOMMEND_OPTIONS_INIT;
    c.request_id = null_if_empty(options.request_id);
    c.timeout_ms = to_milliseconds(options.timeout);
    c.beam_width = options.beam_width;
    c.num_return_sequences = options.num_return_sequences;
    c.num_rounds = options.num_rounds;
    c.is_sampled = options.is_sampled;
    c.top_k = options.top_k;
    c.temperature = options.temperature;
    c.top_p = options.top_p;
    c.seed = options.seed.value_or(0);
    c.has_seed = options.seed.has_value();
    c.priority = options.priority;
    c.cache_salt = null_if_empty(options.cache_salt);
    return c;
}

inline std::vector<const char *> to_c(const std::vector<std::string> &texts) {
    std::vector<const char *> c;
    for (const std::string &text : texts) c.push_back(text.c_str());
    return c;
}

}  // namespace detail

}  // namespace xllm

#endif  // XLLM_HPP_OPTIONS_HPP_

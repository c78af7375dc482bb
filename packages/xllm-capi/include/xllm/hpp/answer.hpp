// Part of xllm.hpp: what comes back.
// SPDX-License-Identifier: Apache-2.0
#ifndef XLLM_HPP_ANSWER_HPP_
#define XLLM_HPP_ANSWER_HPP_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "xllm/hpp/status.hpp"
#include "xllm/xllm.h"

namespace xllm {

namespace detail {

struct FreeResponse {
    void operator()(xllm_response *response) const { xllm_response_free(response); }
};

struct FreeEmbeddings {
    void operator()(xllm_embeddings *embeddings) const { xllm_embeddings_free(embeddings); }
};

struct FreeRecommendations {
    void operator()(xllm_recommendations *found) const { xllm_recommendations_free(found); }
};

inline std::string_view view_or_empty(const char *text) { return text == nullptr ? std::string_view() : text; }

}  // namespace detail

// A whole answer. Views die with it.
class Response {
public:
    Response() = default;
    explicit Response(xllm_response *owned) : c_(owned) {}

    explicit operator bool() const noexcept { return c_ != nullptr; }
    // Not on an empty object, as for all that follows; `index` is below size().
    const xllm_response &c() const { return *c_; }
    std::size_t size() const { return c_->num_choices; }
    const xllm_choice &choice(std::size_t index = 0) const { return *c_->choices[index]; }
    std::string_view text(std::size_t index = 0) const { return {choice(index).text, choice(index).text_length}; }
    std::string_view finish_reason(std::size_t index = 0) const { return choice(index).finish_reason; }
    // Of a chat with tools: a JSON array of calls, or empty; and what was thought before.
    std::string_view tool_calls_json(std::size_t index = 0) const {
        return detail::view_or_empty(choice(index).tool_calls_json);
    }
    std::string_view reasoning(std::size_t index = 0) const { return detail::view_or_empty(choice(index).reasoning); }
    std::vector<std::int32_t> token_ids(std::size_t index = 0) const {
        return {choice(index).token_ids, choice(index).token_ids + choice(index).num_token_ids};
    }

private:
    std::unique_ptr<xllm_response, detail::FreeResponse> c_;
};

// Vectors of texts, in their order. Views die with it.
class Embeddings {
public:
    Embeddings() = default;
    explicit Embeddings(xllm_embeddings *owned) : c_(owned) {}

    explicit operator bool() const noexcept { return c_ != nullptr; }
    // Not on an empty object, as for all that follows; `index` is below size().
    const xllm_embeddings &c() const { return *c_; }
    std::size_t size() const { return c_->num_vectors; }
    std::size_t dimensions() const { return c_->num_dimensions; }
    const float *data(std::size_t index = 0) const { return c_->values + index * c_->num_dimensions; }
    std::vector<float> vector(std::size_t index = 0) const { return {data(index), data(index) + dimensions()}; }

private:
    std::unique_ptr<xllm_embeddings, detail::FreeEmbeddings> c_;
};

// Paths of a catalogue, best first. Views die with it.
class Recommendations {
public:
    Recommendations() = default;
    explicit Recommendations(xllm_recommendations *owned) : c_(owned) {}

    explicit operator bool() const noexcept { return c_ != nullptr; }
    // Not on an empty object, as for all that follows; `index` is below size().
    const xllm_recommendations &c() const { return *c_; }
    std::size_t size() const { return c_->num_paths; }
    const xllm_recommendation &path(std::size_t index = 0) const { return *c_->paths[index]; }
    double score(std::size_t index = 0) const { return path(index).score; }
    std::vector<std::int64_t> item_ids(std::size_t index = 0) const {
        return {path(index).item_ids, path(index).item_ids + path(index).num_item_ids};
    }
    std::vector<std::int32_t> token_ids(std::size_t index = 0) const {
        return {path(index).token_ids, path(index).token_ids + path(index).num_token_ids};
    }

private:
    std::unique_ptr<xllm_recommendations, detail::FreeRecommendations> c_;
};

// A view of news of a request; dies as the xllm_event does.
class Event {
public:
    explicit Event(const xllm_event *event) : c_(event) {}

    const xllm_event &c() const { return *c_; }
    bool is_finished() const { return c_->kind == XLLM_EVENT_FINISHED; }
    std::string_view text() const { return {c_->text, c_->text_length}; }
    std::string_view tool_calls_json() const { return detail::view_or_empty(c_->tool_calls_json); }
    std::string_view reasoning() const { return detail::view_or_empty(c_->reasoning); }
    Status status() const { return {c_->status, c_->message}; }

private:
    const xllm_event *c_;
};

}  // namespace xllm

#endif  // XLLM_HPP_ANSWER_HPP_

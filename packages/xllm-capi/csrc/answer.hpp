// What a request has brought so far, and its form for C: events and responses. Knows nothing of threads or sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "failure.hpp"
#include "xllm/xllm.h"

namespace libxllm {

// Log-probabilities of consecutive tokens, the alternatives of all of them in one array.
struct Logprobs {
    std::vector<xllm_token_logprob> tokens;
    std::vector<xllm_alternative> alternatives;

    void clear();
    void append(const Logprobs &other);
    // Point each token at its alternatives; to be called after the last change.
    void link();
};

// New text and tokens of one sequence, or all of them once appended to each other.
struct Delta {
    std::int32_t index = 0;
    std::string text;
    std::vector<std::int32_t> token_ids;
    bool has_logprobs = false;
    Logprobs logprobs;
    std::string finish_reason;
    std::string stop_reason;
    std::string reasoning;
    std::string tool_calls_json;

    void append(const Delta &later);
};

// Rows of `num_dimensions` numbers.
struct Vectors {
    std::vector<float> values;
    std::size_t num_dimensions = 0;
};

struct Usage {
    std::int32_t num_prompt_tokens = 0;
    std::int32_t num_cached_tokens = 0;
};

// One event with the storage that its pointers lead to.
struct Event {
    std::int32_t kind = XLLM_EVENT_DELTA;
    Delta delta;
    Outcome outcome;
    Usage usage;

    // The C form; valid until this object changes or moves.
    const xllm_event *view();

private:
    xllm_event view_{};
};

// The whole answer of a request, by sequence.
struct Answer {
    std::string request_id;
    std::vector<Delta> choices;
    Usage usage;

    void append(const Delta &delta);
    // A response that owns a copy of all this; `model` is the served name. Freed by free_response().
    xllm_response *to_response(const std::string &model) const;
};

void free_response(xllm_response *response) noexcept;

// Embeddings that own `vectors`. Freed by free_embeddings().
xllm_embeddings *to_embeddings(Vectors vectors, Usage usage);
void free_embeddings(xllm_embeddings *embeddings) noexcept;

}  // namespace libxllm

#include "answer.hpp"

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

namespace libxllm {

namespace {

const char *text_or_null(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

// What stands behind an xllm_response.
struct ResponseStorage : xllm_response {
    Answer answer;
    std::string model_name;
    std::vector<xllm_choice> choice_views;
    std::vector<const xllm_choice *> choice_pointers;
};

// What stands behind an xllm_embeddings.
struct EmbeddingsStorage : xllm_embeddings {
    Vectors vectors;
};

xllm_choice view_of(Delta &choice) {
    choice.logprobs.link();
    xllm_choice view{};
    view.index = choice.index;
    view.text = choice.text.c_str();
    view.text_length = choice.text.size();
    view.token_ids = choice.token_ids.data();
    view.num_token_ids = choice.token_ids.size();
    view.logprobs = choice.has_logprobs ? choice.logprobs.tokens.data() : nullptr;
    view.num_logprobs = choice.logprobs.tokens.size();
    view.finish_reason = choice.finish_reason.c_str();
    view.stop_reason = text_or_null(choice.stop_reason);
    view.reasoning = text_or_null(choice.reasoning);
    view.tool_calls_json = text_or_null(choice.tool_calls_json);
    return view;
}

}  // namespace

void Logprobs::clear() {
    tokens.clear();
    alternatives.clear();
}

void Logprobs::append(const Logprobs &other) {
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    alternatives.insert(alternatives.end(), other.alternatives.begin(), other.alternatives.end());
}

void Logprobs::link() {
    const xllm_alternative *next = alternatives.data();
    for (xllm_token_logprob &token : tokens) {
        token.alternatives = token.num_alternatives == 0 ? nullptr : next;
        next += token.num_alternatives;
    }
}

void Delta::append(const Delta &later) {
    text += later.text;
    token_ids.insert(token_ids.end(), later.token_ids.begin(), later.token_ids.end());
    has_logprobs = has_logprobs || later.has_logprobs;
    if (later.has_logprobs) logprobs.append(later.logprobs);
    finish_reason = later.finish_reason;
    stop_reason = later.stop_reason;
    reasoning += later.reasoning;
    tool_calls_json = later.tool_calls_json;
}

const xllm_event *Event::view() {
    delta.logprobs.link();
    view_.kind = kind;
    view_.status = outcome.status;
    view_.message = outcome.message.c_str();
    view_.index = delta.index;
    view_.text = delta.text.c_str();
    view_.text_length = delta.text.size();
    view_.token_ids = delta.token_ids.data();
    view_.num_token_ids = delta.token_ids.size();
    view_.logprobs = delta.has_logprobs ? delta.logprobs.tokens.data() : nullptr;
    view_.num_logprobs = delta.logprobs.tokens.size();
    view_.finish_reason = text_or_null(delta.finish_reason);
    view_.stop_reason = text_or_null(delta.stop_reason);
    view_.num_prompt_tokens = usage.num_prompt_tokens;
    view_.num_cached_tokens = usage.num_cached_tokens;
    view_.reasoning = text_or_null(delta.reasoning);
    view_.tool_calls_json = text_or_null(delta.tool_calls_json);
    return &view_;
}

void Answer::append(const Delta &delta) {
    const auto has_index = [&](const Delta &choice) { return choice.index == delta.index; };
    const auto place = std::find_if(choices.begin(), choices.end(), has_index);
    if (place == choices.end()) {
        choices.push_back(delta);
    } else {
        place->append(delta);
    }
}

xllm_response *Answer::to_response(const std::string &model) const {
    auto storage = std::make_unique<ResponseStorage>();
    storage->answer = *this;
    storage->model_name = model;
    std::vector<Delta> &choices = storage->answer.choices;
    std::sort(choices.begin(), choices.end(), [](const Delta &a, const Delta &b) { return a.index < b.index; });
    std::size_t num_output_tokens = 0;
    for (Delta &choice : choices) {
        storage->choice_views.push_back(view_of(choice));
        num_output_tokens += choice.token_ids.size();
    }
    for (const xllm_choice &view : storage->choice_views) storage->choice_pointers.push_back(&view);
    xllm_response *response = storage.get();
    response->request_id = storage->answer.request_id.c_str();
    response->model = storage->model_name.c_str();
    response->created_s = std::time(nullptr);
    response->choices = storage->choice_pointers.data();
    response->num_choices = choices.size();
    response->num_prompt_tokens = usage.num_prompt_tokens;
    response->num_cached_tokens = usage.num_cached_tokens;
    response->num_output_tokens = static_cast<std::int32_t>(num_output_tokens);
    return static_cast<xllm_response *>(storage.release());
}

void free_response(xllm_response *response) noexcept { delete static_cast<ResponseStorage *>(response); }

xllm_embeddings *to_embeddings(Vectors vectors, Usage usage) {
    auto storage = std::make_unique<EmbeddingsStorage>();
    storage->vectors = std::move(vectors);
    xllm_embeddings *embeddings = storage.get();
    embeddings->values = storage->vectors.values.data();
    embeddings->num_dimensions = storage->vectors.num_dimensions;
    embeddings->num_vectors = storage->vectors.values.size() / std::max<std::size_t>(embeddings->num_dimensions, 1);
    embeddings->num_prompt_tokens = usage.num_prompt_tokens;
    embeddings->num_cached_tokens = usage.num_cached_tokens;
    return storage.release();
}

void free_embeddings(xllm_embeddings *embeddings) noexcept { delete static_cast<EmbeddingsStorage *>(embeddings); }

}  // namespace libxllm

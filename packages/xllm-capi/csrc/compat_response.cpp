#include "compat_response.hpp"

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace libxllm {

namespace {

// What stands behind an XLLM_Response.
struct ResponseStorage : XLLM_Response {
    std::vector<XLLM_Choice> choice_entries;
    std::vector<std::string> texts;
    std::vector<XLLM_ChatMessage> messages;
    std::vector<std::vector<std::int32_t>> token_ids;
    std::vector<std::vector<XLLM_LogProb>> logprobs;
    std::vector<XLLM_RecOutput> rec_entries;
    std::vector<std::vector<std::int64_t>> item_ids;
    std::vector<std::vector<float>> token_logprobs;
};

template <std::size_t kSize>
void copy_text(char (&target)[kSize], const char *text) {
    std::snprintf(target, kSize, "%s", text);
}

std::unique_ptr<ResponseStorage> new_storage() {
    auto storage = std::make_unique<ResponseStorage>();
    static_cast<XLLM_Response &>(*storage) = XLLM_Response{};
    return storage;
}

void add_choice(ResponseStorage &storage, const xllm_choice &choice, const CompatShape &shape) {
    const std::string prefix = shape.is_echoed && !shape.is_chat ? shape.prompt : "";
    std::string &text = storage.texts.emplace_back(prefix + std::string(choice.text, choice.text_length));
    auto &token_ids = storage.token_ids.emplace_back(choice.token_ids, choice.token_ids + choice.num_token_ids);
    auto &logprobs = storage.logprobs.emplace_back();
    for (std::size_t i = 0; i < choice.num_logprobs; ++i) {
        const xllm_token_logprob &token = choice.logprobs[i];
        logprobs.push_back({static_cast<std::uint32_t>(token.token_id), static_cast<float>(token.logprob)});
    }
    XLLM_Choice entry{};
    entry.index = static_cast<std::uint32_t>(choice.index);
    entry.token_ids = token_ids.data();
    entry.token_size = token_ids.size();
    entry.logprobs = {logprobs.data(), logprobs.size()};
    copy_text(entry.finish_reason, choice.finish_reason);
    if (shape.is_chat) {
        XLLM_ChatMessage &message = storage.messages.emplace_back();
        copy_text(message.role, "assistant");
        message.content = text.data();
        entry.message = &message;
    } else {
        entry.text = text.data();
    }
    storage.choice_entries.push_back(entry);
}

// A path as a choice of text and tokens.
xllm_choice choice_of(const xllm_recommendation &path, std::size_t index, std::vector<xllm_token_logprob> &logprobs) {
    for (std::size_t i = 0; i < path.num_token_ids; ++i) {
        logprobs.push_back({path.token_ids[i], path.logprobs[i], nullptr, 0});
    }
    xllm_choice choice{};
    choice.index = static_cast<std::int32_t>(index);
    choice.text = path.text;
    choice.text_length = std::strlen(path.text);
    choice.token_ids = path.token_ids;
    choice.num_token_ids = path.num_token_ids;
    choice.logprobs = logprobs.data();
    choice.num_logprobs = logprobs.size();
    choice.finish_reason = "stop";
    return choice;
}

void add_items(ResponseStorage &storage, const xllm_recommendation &path, std::size_t index) {
    auto &item_ids = storage.item_ids.emplace_back(path.item_ids, path.item_ids + path.num_item_ids);
    auto &logprobs = storage.token_logprobs.emplace_back(path.logprobs, path.logprobs + path.num_token_ids);
    storage.rec_entries.push_back(
        {static_cast<std::uint32_t>(index), item_ids.data(), item_ids.size(), logprobs.data(), logprobs.size()});
}

}  // namespace

XLLM_StatusCode compat_code(xllm_status status) {
    switch (xllm_status_class(status)) {
        case XLLM_OK: return kSuccess;
        case XLLM_ERROR_TIMEOUT: return kTimeout;
        case XLLM_ERROR_INVALID_ARGUMENT:
        case XLLM_ERROR_INVALID_REQUEST:
        case XLLM_ERROR_UNSUPPORTED: return kInvalidRequest;
        default: return kInternalError;
    }
}

XLLM_Response *compat_response(const xllm_response &response, const CompatShape &shape) {
    auto storage = new_storage();
    // Reserved, so that the pointers into them stay valid.
    storage->texts.reserve(response.num_choices);
    storage->messages.reserve(response.num_choices);
    for (std::size_t i = 0; i < response.num_choices; ++i) add_choice(*storage, *response.choices[i], shape);
    copy_text(storage->id, response.request_id);
    copy_text(storage->object, shape.is_chat ? "chat.completion" : "text_completion");
    copy_text(storage->model, response.model);
    storage->created = response.created_s;
    storage->choices = {storage->choice_entries.data(), storage->choice_entries.size()};
    storage->usage = {response.num_prompt_tokens, response.num_output_tokens,
                      response.num_prompt_tokens + response.num_output_tokens, response.num_cached_tokens};
    return storage.release();
}

XLLM_Response *compat_response(const xllm_recommendations &found, const CompatShape &shape) {
    std::vector<std::vector<xllm_token_logprob>> logprobs(found.num_paths);
    std::vector<xllm_choice> choices;
    std::vector<const xllm_choice *> pointers;
    choices.reserve(found.num_paths);
    std::size_t num_output_tokens = 0;
    for (std::size_t i = 0; i < found.num_paths; ++i) {
        pointers.push_back(&choices.emplace_back(choice_of(*found.paths[i], i, logprobs[i])));
        num_output_tokens += found.paths[i]->num_token_ids;
    }
    xllm_response response{};
    response.request_id = found.request_id;
    response.model = found.model;
    response.created_s = found.created_s;
    response.choices = pointers.data();
    response.num_choices = pointers.size();
    response.num_prompt_tokens = found.num_prompt_tokens;
    response.num_cached_tokens = found.num_cached_tokens;
    response.num_output_tokens = static_cast<std::int32_t>(num_output_tokens);
    std::unique_ptr<ResponseStorage> storage(static_cast<ResponseStorage *>(compat_response(response, shape)));
    for (std::size_t i = 0; i < found.num_paths; ++i) add_items(*storage, *found.paths[i], i);
    storage->rec_outputs = {storage->rec_entries.data(), storage->rec_entries.size()};
    return storage.release();
}

XLLM_Response *failed_response(XLLM_StatusCode code, const std::string &message) {
    auto storage = new_storage();
    storage->status_code = code;
    copy_text(storage->error_info, message.c_str());
    return storage.release();
}

void free_compat_response(XLLM_Response *response) noexcept { delete static_cast<ResponseStorage *>(response); }

}  // namespace libxllm

// Part of xllm.hpp: engines, and the calls on them.
// SPDX-License-Identifier: Apache-2.0
#ifndef XLLM_HPP_ENGINE_HPP_
#define XLLM_HPP_ENGINE_HPP_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "xllm/hpp/answer.hpp"
#include "xllm/hpp/options.hpp"
#include "xllm/hpp/request.hpp"
#include "xllm/hpp/status.hpp"
#include "xllm/xllm.h"

namespace xllm {

namespace detail {

struct DestroyEngine {
    void operator()(xllm_engine *engine) const { xllm_engine_destroy(engine); }
};

}  // namespace detail

class Engine {
public:
    // Start an engine process.
    explicit Engine(const EngineOptions &options, Status &status) { status = create(options); }
    // Connect to a running engine.
    static Engine attach(const std::string &address, Status &status, Milliseconds timeout = Milliseconds{0}) {
        xllm_engine *engine = nullptr;
        status = detail::status_of(xllm_engine_attach(address.c_str(), detail::to_milliseconds(timeout), &engine));
        return Engine(engine);
    }

    explicit operator bool() const noexcept { return c_ != nullptr; }
    xllm_engine *c() const { return c_.get(); }
    Status health() const { return detail::status_of(xllm_engine_health(c_.get())); }
    // nullptr for an empty engine.
    const xllm_engine_info *info() const {
        const xllm_engine_info *info = nullptr;
        xllm_engine_get_info(c_.get(), &info);
        return info;
    }
    xllm_metrics metrics(Status &status, Milliseconds timeout = Milliseconds{0}) const {
        xllm_metrics metrics = XLLM_METRICS_INIT;
        status = detail::status_of(xllm_engine_get_metrics(c_.get(), detail::to_milliseconds(timeout), &metrics));
        return metrics;
    }

    Response complete(const std::string &prompt, const RequestOptions &options, Status &status) {
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_complete(c_.get(), prompt.c_str(), c_options, response);
        });
    }
    Response chat(const std::vector<Message> &messages, const RequestOptions &options, Status &status) {
        const auto c_messages = detail::to_c(messages);
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_chat(c_.get(), c_messages.data(), c_messages.size(), c_options, response);
        });
    }
    Response chat_json(const std::string &messages, const RequestOptions &options, Status &status) {
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_chat_json(c_.get(), messages.c_str(), c_options, response);
        });
    }
    Response generate_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options,
                             Status &status) {
        return run(options, status, [&](const xllm_request_options *c_options, xllm_response **response) {
            return xllm_generate_tokens(c_.get(), token_ids.data(), token_ids.size(), c_options, response);
        });
    }

    Embeddings embed(const std::vector<std::string> &texts, const PoolingOptions &options, Status &status) {
        const auto c_texts = detail::to_c(texts);
        const xllm_pooling_options c_options = detail::to_c(options);
        xllm_embeddings *embeddings = nullptr;
        status = detail::status_of(xllm_embed(c_.get(), c_texts.data(), c_texts.size(), &c_options, &embeddings));
        return Embeddings(embeddings);
    }
    Embeddings embed_tokens(const std::vector<std::int32_t> &token_ids, const PoolingOptions &options,
                            Status &status) {
        const xllm_pooling_options c_options = detail::to_c(options);
        xllm_embeddings *embeddings = nullptr;
        status = detail::status_of(
            xllm_embed_tokens(c_.get(), token_ids.data(), token_ids.size(), &c_options, &embeddings));
        return Embeddings(embeddings);
    }
    std::vector<float> score(const std::string &query, const std::vector<std::string> &documents,
                             const PoolingOptions &options, Status &status) {
        const auto c_documents = detail::to_c(documents);
        const xllm_pooling_options c_options = detail::to_c(options);
        std::vector<float> scores(documents.size());
        status = detail::status_of(xllm_score(c_.get(), query.c_str(), c_documents.data(), c_documents.size(),
                                              &c_options, scores.data()));
        if (!status.ok()) scores.clear();
        return scores;
    }

    Recommendations recommend(const std::string &prompt, const RecommendOptions &options, Status &status) {
        const xllm_recommend_options c_options = detail::to_c(options);
        xllm_recommendations *found = nullptr;
        status = detail::status_of(xllm_recommend(c_.get(), prompt.c_str(), &c_options, &found));
        return Recommendations(found);
    }
    Recommendations recommend_tokens(const std::vector<std::int32_t> &token_ids, const RecommendOptions &options,
                                     Status &status) {
        const xllm_recommend_options c_options = detail::to_c(options);
        xllm_recommendations *found = nullptr;
        status = detail::status_of(
            xllm_recommend_tokens(c_.get(), token_ids.data(), token_ids.size(), &c_options, &found));
        return Recommendations(found);
    }
    // No token ids where the tensors stand in their place.
    Recommendations recommend_tensors(const std::vector<std::int32_t> &token_ids,
                                      const std::vector<xllm_tensor> &tensors, const RecommendOptions &options,
                                      Status &status) {
        const xllm_recommend_options c_options = detail::to_c(options);
        xllm_recommendations *found = nullptr;
        status = detail::status_of(xllm_recommend_tensors(c_.get(), token_ids.empty() ? nullptr : token_ids.data(),
                                                          token_ids.size(), tensors.data(), tensors.size(), &c_options,
                                                          &found));
        return Recommendations(found);
    }
    Recommendations recommend_chat(const std::vector<Message> &messages, const RecommendOptions &options,
                                   Status &status) {
        const auto c_messages = detail::to_c(messages);
        const xllm_recommend_options c_options = detail::to_c(options);
        xllm_recommendations *found = nullptr;
        status = detail::status_of(
            xllm_recommend_chat(c_.get(), c_messages.data(), c_messages.size(), &c_options, &found));
        return Recommendations(found);
    }

    // An empty `on_event` keeps the events for Request::next() and poll().
    Request start_complete(const std::string &prompt, const RequestOptions &options, OnEvent on_event,
                           Status &status) {
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_complete_start(c_.get(), prompt.c_str(), c_options, call, data, out);
                     });
    }
    Request start_chat(const std::vector<Message> &messages, const RequestOptions &options, OnEvent on_event,
                       Status &status) {
        const auto c_messages = detail::to_c(messages);
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_chat_start(c_.get(), c_messages.data(), c_messages.size(), c_options, call, data,
                                                out);
                     });
    }
    Request start_chat_json(const std::string &messages, const RequestOptions &options, OnEvent on_event,
                            Status &status) {
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_chat_json_start(c_.get(), messages.c_str(), c_options, call, data, out);
                     });
    }
    Request start_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options, OnEvent on_event,
                         Status &status) {
        return start(options, std::move(on_event), status,
                     [&](const xllm_request_options *c_options, xllm_on_event call, void *data, xllm_request **out) {
                         return xllm_generate_tokens_start(c_.get(), token_ids.data(), token_ids.size(), c_options,
                                                           call, data, out);
                     });
    }

#if XLLM_HAS_EXCEPTIONS
    explicit Engine(const EngineOptions &options = {}) { detail::check(create(options)); }
    static Engine attach(const std::string &address, Milliseconds timeout = Milliseconds{0}) {
        return detail::checked([&](Status &status) { return attach(address, status, timeout); });
    }
    xllm_metrics metrics(Milliseconds timeout = Milliseconds{0}) const {
        return detail::checked([&](Status &status) { return metrics(status, timeout); });
    }
    Response complete(const std::string &prompt, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return complete(prompt, options, status); });
    }
    Response chat(const std::vector<Message> &messages, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return chat(messages, options, status); });
    }
    Response chat_json(const std::string &messages, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return chat_json(messages, options, status); });
    }
    Response generate_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options = {}) {
        return detail::checked([&](Status &status) { return generate_tokens(token_ids, options, status); });
    }
    Embeddings embed(const std::vector<std::string> &texts, const PoolingOptions &options = {}) {
        return detail::checked([&](Status &status) { return embed(texts, options, status); });
    }
    Embeddings embed_tokens(const std::vector<std::int32_t> &token_ids, const PoolingOptions &options = {}) {
        return detail::checked([&](Status &status) { return embed_tokens(token_ids, options, status); });
    }
    std::vector<float> score(const std::string &query, const std::vector<std::string> &documents,
                             const PoolingOptions &options = {}) {
        return detail::checked([&](Status &status) { return score(query, documents, options, status); });
    }
    Recommendations recommend(const std::string &prompt, const RecommendOptions &options = {}) {
        return detail::checked([&](Status &status) { return recommend(prompt, options, status); });
    }
    Recommendations recommend_tokens(const std::vector<std::int32_t> &token_ids,
                                     const RecommendOptions &options = {}) {
        return detail::checked([&](Status &status) { return recommend_tokens(token_ids, options, status); });
    }
    Recommendations recommend_tensors(const std::vector<std::int32_t> &token_ids,
                                      const std::vector<xllm_tensor> &tensors, const RecommendOptions &options = {}) {
        return detail::checked(
            [&](Status &status) { return recommend_tensors(token_ids, tensors, options, status); });
    }
    Recommendations recommend_chat(const std::vector<Message> &messages, const RecommendOptions &options = {}) {
        return detail::checked([&](Status &status) { return recommend_chat(messages, options, status); });
    }
    Request start_complete(const std::string &prompt, const RequestOptions &options = {}, OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_complete(prompt, options, std::move(on_event), status); });
    }
    Request start_chat(const std::vector<Message> &messages, const RequestOptions &options = {},
                       OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_chat(messages, options, std::move(on_event), status); });
    }
    Request start_chat_json(const std::string &messages, const RequestOptions &options = {}, OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_chat_json(messages, options, std::move(on_event), status); });
    }
    Request start_tokens(const std::vector<std::int32_t> &token_ids, const RequestOptions &options = {},
                         OnEvent on_event = {}) {
        return detail::checked(
            [&](Status &status) { return start_tokens(token_ids, options, std::move(on_event), status); });
    }
#endif

private:
    explicit Engine(xllm_engine *owned) : c_(owned) {}

    Status create(const EngineOptions &options) {
        xllm_engine_options c_options = XLLM_ENGINE_OPTIONS_INIT;
        c_options.model = detail::null_if_empty(options.model);
        c_options.options_json = detail::null_if_empty(options.options_json);
        c_options.python = detail::null_if_empty(options.python);
        c_options.log_path = detail::null_if_empty(options.log_path);
        c_options.start_timeout_ms = detail::to_milliseconds(options.start_timeout);
        xllm_engine *engine = nullptr;
        const xllm_status code = xllm_engine_create(&c_options, &engine);
        c_.reset(engine);
        return detail::status_of(code);
    }

    template <typename Call>
    Response run(const RequestOptions &options, Status &status, Call &&call) {
        xllm_response *response = nullptr;
        status = detail::status_of(call(detail::CRequestOptions(options).get(), &response));
        return Response(response);
    }

    template <typename Call>
    Request start(const RequestOptions &options, OnEvent on_event, Status &status, Call &&call) {
        Request request;
        xllm_request *handle = nullptr;
        const bool has_callback = static_cast<bool>(on_event);
        if (has_callback) {
            request.callback_ = std::make_unique<Request::Callback>();
            request.callback_->on_event = std::move(on_event);
        }
        status = detail::status_of(call(detail::CRequestOptions(options).get(),
                                        has_callback ? &Request::call_back : nullptr, request.callback_.get(),
                                        &handle));
        request.c_.reset(handle);
        return request;
    }

    std::unique_ptr<xllm_engine, detail::DestroyEngine> c_;
};

}  // namespace xllm

#endif  // XLLM_HPP_ENGINE_HPP_

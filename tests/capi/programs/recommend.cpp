// Recommendations of the engine that argv[1] loads, of the history in argv[2...], by every way in; and every failure.
#include <cstdlib>
#include <vector>

#include <xllm/xllm.hpp>
#include <xllm/xllm_compat.h>

#include "check.h"

namespace {

void check_arguments(xllm_engine *engine, const std::vector<std::int32_t> &history) {
    const std::int32_t *ids = history.data();
    xllm_recommendations *found = reinterpret_cast<xllm_recommendations *>(1);
    xllm_recommend_options options = XLLM_RECOMMEND_OPTIONS_INIT;
    CHECK_STATUS(xllm_recommend_tokens(nullptr, ids, 1, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK(found == nullptr);
    CHECK_MESSAGE("engine");
    CHECK_STATUS(xllm_recommend_tokens(engine, nullptr, 1, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("token_ids");
    CHECK_STATUS(xllm_recommend_tokens(engine, ids, 0, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_recommend_tokens(engine, ids, 1, nullptr, nullptr), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("recommendations");
    CHECK_STATUS(xllm_recommend(engine, nullptr, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("prompt");
    CHECK_STATUS(xllm_recommend(engine, "\xff", nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_recommend_chat(engine, nullptr, 1, nullptr, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("messages");
    for (std::int32_t *field : {&options.beam_width, &options.num_return_sequences, &options.num_rounds,
                                &options.top_k}) {
        *field = -1;
        CHECK_STATUS(xllm_recommend_tokens(engine, ids, 1, &options, &found), XLLM_ERROR_INVALID_ARGUMENT);
        *field = 0;
    }
    options.struct_size = 8;
    CHECK_STATUS(xllm_recommend_tokens(engine, ids, 1, &options, &found), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("xllm_recommend_options.struct_size");
    CHECK_STATUS(xllm_recommend_options_init(nullptr, sizeof options), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_recommend_options_init(&options, sizeof options), XLLM_OK);
    CHECK(options.struct_size == sizeof options && options.temperature == 1.0);
    xllm_recommendations_free(nullptr);
}

void check_refusals(xllm::Engine &engine, const std::vector<std::int32_t> &history) {
    xllm::Status status;
    xllm::RecommendOptions options;
    options.beam_width = 600;
    CHECK(!engine.recommend_tokens(history, options, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("beam_width");
    options.beam_width = 4;
    options.num_return_sequences = 5;
    CHECK(!engine.recommend_tokens(history, options, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK(!engine.recommend_tokens({1 << 30}, {}, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("token id");
    const std::vector<std::int32_t> too_long(100000, history[0]);
    CHECK(!engine.recommend_tokens(too_long, {}, status) && status.code == XLLM_ERROR_REQUEST_TOO_LONG);
    CHECK(!engine.recommend_chat({{"user", "x"}}, {}, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("chat template");
    CHECK(!engine.complete("x", {}, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("recommender");
    CHECK(!engine.embed({"x"}, {}, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("recommender");
}

// Text and token ids give the same paths, and draws with one seed are the same.
void check_answers(xllm::Engine &engine, const std::vector<std::int32_t> &history) {
    xllm::RecommendOptions options;
    options.beam_width = 8;
    options.num_return_sequences = 3;
    options.request_id = "mine";
    const xllm::Recommendations found = engine.recommend_tokens(history, options);
    CHECK(found.size() == 3 && std::string(found.c().request_id) == "mine" && found.c().created_s > 0);
    CHECK(found.c().num_prompt_tokens == static_cast<std::int32_t>(history.size()));
    CHECK(found.path().document_ids == nullptr && found.path().item_types == nullptr);
    CHECK(found.score(0) >= found.score(1) && !found.item_ids().empty());
    CHECK(engine.recommend("x").size() > 0);
    options.is_sampled = true;
    options.seed = 7;
    options.temperature = 2;
    const auto first = engine.recommend_tokens(history, options), second = engine.recommend_tokens(history, options);
    CHECK(first.token_ids(2) == second.token_ids(2) && first.score(2) == second.score(2));
}

void check_status(XLLM_Response *response, XLLM_StatusCode expected) {
    CHECK(response != nullptr && response->status_code == expected && response->error_info[0] != '\0');
    xllm_rec_free_response(response);
}

// The earlier names give the same as the new ones.
void check_compat(const char *model, const std::vector<std::int32_t> &history, const xllm::Recommendations &wanted) {
    const std::int32_t *ids = history.data();
    XLLM_REC_Handler *handler = xllm_rec_create();
    CHECK(xllm_rec_initialize(handler, model, nullptr));
    XLLM_RequestParams params;
    xllm_rec_request_params_default(&params);
    params.beam_width = 64;
    params.num_return_sequences = 10;
    XLLM_Response *response = xllm_rec_token_completions(handler, "model", ids, history.size(), 0, &params);
    CHECK(response->status_code == kSuccess && response->rec_outputs.entries_size == wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const XLLM_RecOutput &output = response->rec_outputs.entries[i];
        const XLLM_Choice &choice = response->choices.entries[i];
        CHECK(output.index == i && choice.index == i);
        CHECK(std::vector<std::int64_t>(output.item_ids, output.item_ids + output.item_ids_size) ==
              wanted.item_ids(i));
        CHECK(std::vector<std::int32_t>(choice.token_ids, choice.token_ids + choice.token_size) ==
              wanted.token_ids(i));
        CHECK(output.rec_token_logprobs_size == choice.token_size);
        CHECK(choice.logprobs.entries_size == choice.token_size && choice.text != nullptr);
        CHECK(choice.logprobs.entries[0].logprob == output.rec_token_logprobs[0]);
    }
    xllm_rec_free_response(response);
    response = xllm_rec_multimodal_completions(handler, "model", ids, history.size(), nullptr, 0, nullptr);
    CHECK(response->status_code == kSuccess && response->choices.entries_size == 128);
    xllm_rec_free_response(response);
    const XLLM_MM_Data data{};
    check_status(xllm_rec_multimodal_completions(handler, "model", ids, 1, &data, 0, nullptr), kInvalidRequest);
    check_status(xllm_rec_token_completions(handler, "other", ids, 1, 0, nullptr), kModelNotFound);
    check_status(xllm_rec_token_completions(handler, "model", ids, 0, 0, nullptr), kInvalidRequest);
    check_status(xllm_rec_text_completions(handler, "model", "", 0, nullptr), kInvalidRequest);
    check_status(xllm_rec_chat_completions(handler, "model", nullptr, 1, 0, nullptr), kInvalidRequest);
    params.beam_width = 0xffffffff;
    check_status(xllm_rec_token_completions(handler, "model", ids, 1, 0, &params), kInvalidRequest);
    xllm_rec_destroy(handler);
}

}  // namespace

int main(int argc, char **argv) {
    std::vector<std::int32_t> history;
    for (int i = 2; i < argc; ++i) history.push_back(std::atoi(argv[i]));
    xllm::EngineOptions engine_options;
    engine_options.model = argv[1];
    engine_options.options_json = R"({"backend": "rec"})";
    xllm::Recommendations wanted;
    {
        xllm::Engine engine(engine_options);
        check_arguments(engine.c(), history);
        check_refusals(engine, history);
        check_answers(engine, history);
        xllm::RecommendOptions options;
        options.beam_width = 64;
        options.num_return_sequences = 10;
        wanted = engine.recommend_tokens(history, options);
    }
    check_compat(argv[1], history, wanted);
    return 0;
}

/* A program written for the earlier C API: its whole life cycle, and every invalid argument. */
#include <xllm/xllm_compat.h>

#include "check.h"

static void check_status(XLLM_Response *response, XLLM_StatusCode expected, const char *part) {
    CHECK(response != NULL);
    if (response->status_code != expected || strstr(response->error_info, part) == NULL) {
        fprintf(stderr, "status %d (%s), not %d\n", (int)response->status_code, response->error_info, (int)expected);
        exit(1);
    }
    xllm_llm_free_response(response);
}

static void check_invalid(XLLM_LLM_Handler *handler) {
    XLLM_RequestParams params;
    xllm_llm_request_params_default(&params);
    const XLLM_ChatMessage no_content = {"user", NULL};
    check_status(xllm_llm_completions(NULL, "named", "say x", 0, NULL), kInvalidRequest, "handler");
    check_status(xllm_llm_completions(handler, NULL, "say x", 0, NULL), kInvalidRequest, "model_id");
    check_status(xllm_llm_completions(handler, "named", "", 0, NULL), kInvalidRequest, "input");
    check_status(xllm_llm_completions(handler, "named", NULL, 0, NULL), kInvalidRequest, "input");
    check_status(xllm_llm_completions(handler, "other", "say x", 0, NULL), kModelNotFound, "named");
    check_status(xllm_llm_chat_completions(handler, "named", NULL, 1, 0, NULL), kInvalidRequest, "input");
    check_status(xllm_llm_chat_completions(handler, "named", &no_content, 1, 0, NULL), kInvalidRequest, "input");
    params.beam_width = 4;
    check_status(xllm_llm_completions(handler, "named", "say x", 0, &params), kInvalidRequest, "beam_width");
    params.beam_width = 0;
    params.temperature = 9;
    check_status(xllm_llm_completions(handler, "named", "say x", 0, &params), kInvalidRequest, "temperature");
    check_status(xllm_llm_completions(handler, "named", "fail", 0, NULL), kInternalError, "raised");
    params.temperature = 0;
    params.max_tokens = 0x7fffffff;
    check_status(xllm_llm_completions(handler, "named", "count -1", 50, &params), kTimeout, "timeout_ms");
}

static void check_answers(XLLM_LLM_Handler *handler) {
    XLLM_RequestParams params;
    xllm_llm_request_params_default(&params);
    params.echo = true;
    params.logprobs = true;
    params.top_logprobs = 2;
    params.n = 2;
    snprintf(params.request_id, sizeof params.request_id, "mine");
    XLLM_Response *response = xllm_llm_completions(handler, "named", "say a b", 10000, &params);
    CHECK(response->status_code == kSuccess && response->choices.entries_size == 2);
    CHECK(strcmp(response->id, "mine") == 0 && strcmp(response->object, "text_completion") == 0);
    CHECK(strcmp(response->model, "named") == 0 && response->created > 0);
    const XLLM_Choice *choice = &response->choices.entries[1];
    CHECK(choice->index == 1 && strcmp(choice->text, "say a ba b ") == 0 && choice->message == NULL);
    CHECK(choice->token_size == 2 && choice->logprobs.entries_size == 2 && choice->logprobs.entries[0].logprob == -0.5F);
    CHECK(strcmp(choice->finish_reason, "stop") == 0);
    CHECK(response->usage.prompt_tokens == 3 && response->usage.total_tokens == 7);
    xllm_llm_free_response(response);

    char content[] = "hello";
    XLLM_ChatMessage message = {"user", content};
    response = xllm_llm_chat_completions(handler, "named", &message, 1, 0, NULL);
    CHECK(response->status_code == kSuccess && strcmp(response->object, "chat.completion") == 0);
    CHECK(strcmp(response->choices.entries[0].message->role, "assistant") == 0);
    CHECK(strcmp(response->choices.entries[0].message->content, "user=hello ") == 0);
    xllm_llm_free_response(response);
}

static void check_initialize(XLLM_LLM_Handler *handler) {
    XLLM_InitOptions options;
    xllm_llm_init_options_default(NULL);
    xllm_llm_init_options_default(&options);
    check_status(xllm_llm_completions(handler, "named", "say x", 0, NULL), kNotInitialized, "not initialized");
    CHECK(!xllm_llm_initialize(NULL, "/models/named", &options));
    CHECK(!xllm_llm_initialize(handler, NULL, &options));
    CHECK(!xllm_llm_initialize(handler, "", &options));
    CHECK(!xllm_llm_initialize(handler, "missing", NULL));
    CHECK_MESSAGE("missing");
    options.nnodes = 2;
    CHECK(!xllm_llm_initialize(handler, "/models/named", &options));
    CHECK_MESSAGE("nnodes");
    options.nnodes = 1;
    options.block_size = 32;
    CHECK(xllm_llm_initialize(handler, "/models/named/", &options));
    CHECK(!xllm_llm_initialize(handler, "/models/named", &options));
    CHECK_MESSAGE("already");
}

static void check_recommendation(void) {
    XLLM_InitOptions options;
    XLLM_RequestParams params;
    const int32_t token_ids[] = {1, 2};
    xllm_rec_init_options_default(&options);
    xllm_rec_request_params_default(&params);
    CHECK(params.beam_width == 128);
    XLLM_REC_Handler *handler = xllm_rec_create();
    check_status(xllm_rec_text_completions(handler, "x", "say x", 0, &params), kNotInitialized, "not initialized");
    CHECK(!xllm_rec_initialize(NULL, "x", NULL));
    CHECK(!xllm_rec_initialize(handler, NULL, &options));
    CHECK(!xllm_rec_initialize(handler, "missing", NULL));
    CHECK_MESSAGE("missing");
    /* The obedient engine is a language model, whatever it is asked to be. */
    CHECK(xllm_rec_initialize(handler, "/models/named", &options));
    check_status(xllm_rec_text_completions(handler, "named", "say x", 0, &params), kInvalidRequest, "no recommender");
    check_status(xllm_rec_token_completions(handler, "named", token_ids, 2, 0, NULL), kInvalidRequest, "recommender");
    check_status(xllm_rec_multimodal_completions(handler, "named", token_ids, 2, NULL, 0, NULL), kInvalidRequest, "");
    check_status(xllm_rec_chat_completions(handler, "named", NULL, 0, 0, NULL), kInvalidRequest, "input");
    check_status(xllm_rec_token_completions(NULL, "named", token_ids, 2, 0, NULL), kInvalidRequest, "handler");
    xllm_rec_free_response(NULL);
    xllm_rec_destroy(handler);
    xllm_rec_destroy(NULL);
}

int main(void) {
    XLLM_LLM_Handler *handler = xllm_llm_create();
    check_initialize(handler);
    check_answers(handler);
    check_invalid(handler);
    xllm_llm_destroy(handler);
    xllm_llm_destroy(NULL);
    xllm_llm_free_response(NULL);
    check_recommendation();
    return 0;
}

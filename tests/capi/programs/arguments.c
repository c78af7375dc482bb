/* Every NULL and every invalid argument gives a status and a message, never a crash. */
#include <math.h>

#include "check.h"

static int ignore_event(const xllm_event *event, void *user_data) {
    (void)event;
    (void)user_data;
    return 0;
}

static void check_versions(void) {
    CHECK(xllm_abi_version() == XLLM_ABI_VERSION);
    CHECK(xllm_api_version() == (XLLM_API_VERSION_MAJOR << 16 | XLLM_API_VERSION_MINOR));
    CHECK(strchr(xllm_version(), '.') != NULL);
    CHECK(strcmp(xllm_status_name(XLLM_ERROR_TIMEOUT), "XLLM_ERROR_TIMEOUT") == 0);
    CHECK(strcmp(xllm_status_name(12345), "unknown status") == 0);
    CHECK(xllm_status_class(XLLM_ERROR_REQUEST_TOO_LONG) == XLLM_ERROR_INVALID_REQUEST);
    CHECK(strcmp(xllm_last_error(), "") == 0);
}

static void check_options(void) {
    xllm_engine_options engine_options;
    xllm_request_options request_options;
    CHECK_STATUS(xllm_engine_options_init(NULL, sizeof engine_options), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_options_init(&engine_options, 3), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_options_init(&engine_options, 4096), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_options_init(&engine_options, sizeof engine_options), XLLM_OK);
    CHECK(engine_options.struct_size == sizeof engine_options && engine_options.model == NULL);
    CHECK_STATUS(xllm_request_options_init(NULL, sizeof request_options), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_options_init(&request_options, 0), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_options_init(&request_options, sizeof request_options), XLLM_OK);
    const xllm_request_options by_macro = XLLM_REQUEST_OPTIONS_INIT;
    CHECK(request_options.max_tokens == -1 && by_macro.max_tokens == -1);
    CHECK(request_options.repetition_penalty == 1.0 && by_macro.repetition_penalty == 1.0);
    CHECK(request_options.options_json == NULL && by_macro.options_json == NULL);
}

static void check_engine_start(void) {
    xllm_engine *engine = (xllm_engine *)1;
    CHECK_STATUS(xllm_engine_create(NULL, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    xllm_engine_options options = XLLM_ENGINE_OPTIONS_INIT;
    options.struct_size = 7;
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("struct_size");
    CHECK(engine == NULL);
    options.struct_size = sizeof options;
    options.model = "\xff";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("model is not valid UTF-8");
    options.model = "missing";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_MODEL_LOAD);
    CHECK_MESSAGE("no model at missing");
    options.model = NULL;
    options.options_json = "{\"block_size\": \"many\"}";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_INVALID_CONFIG);
    CHECK_MESSAGE("block_size");
    options.options_json = "{\"no_such_option\": 1}";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_INVALID_CONFIG);
    CHECK_MESSAGE("no_such_option");
    options.options_json = "[]";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_INVALID_CONFIG);
    options.options_json = "{";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_INVALID_CONFIG);
    options.options_json = NULL;
    options.python = "/no/such/python";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_ENGINE_START);
    CHECK_MESSAGE("/no/such/python");
    options.python = "no-such-python-on-the-path";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_ENGINE_START);
    options.python = "/bin/false";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_ENGINE_START);
    CHECK_MESSAGE("exit code 1");
    options.python = NULL;
    options.log_path = "/no/such/folder/log";
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_ENGINE_START);
    CHECK_MESSAGE("/no/such/folder/log");
    options.log_path = NULL;
    options.model = "slow";
    options.start_timeout_ms = 300;
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_ERROR_TIMEOUT);
    CHECK(engine == NULL);

    CHECK_STATUS(xllm_engine_attach(NULL, 0, &engine), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_attach("/no/such/socket", 0, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_attach("unix:", 0, &engine), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_attach("unix:/no/such/socket", 0, &engine), XLLM_ERROR_ENGINE_START);
    char long_path[300];
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    CHECK_STATUS(xllm_engine_attach(long_path, 0, &engine), XLLM_ERROR_INVALID_ARGUMENT);
}

static void check_null_handles(void) {
    const xllm_engine_info *info = NULL;
    const xllm_event *event = NULL;
    xllm_metrics metrics = XLLM_METRICS_INIT;
    xllm_response *response = NULL;
    xllm_request *request = NULL;
    const xllm_message message = {"user", "hi"};
    const int32_t token_ids[] = {1, 2};
    const char *const texts[] = {"x"};
    xllm_embeddings *embeddings = NULL;
    float score = 0;
    xllm_embeddings_free(NULL);
    CHECK_STATUS(xllm_engine_destroy(NULL), XLLM_OK);
    xllm_request_destroy(NULL);
    xllm_response_free(NULL);
    CHECK_STATUS(xllm_engine_health(NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_get_info(NULL, &info), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_get_metrics(NULL, 0, &metrics), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_sleep(NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_wake(NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_complete(NULL, "x", NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat(NULL, &message, 1, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat_json(NULL, "[]", NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_generate_tokens(NULL, token_ids, 2, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed(NULL, texts, 1, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed_tokens(NULL, token_ids, 2, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_score(NULL, "q", texts, 1, NULL, &score), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_complete_start(NULL, "x", NULL, NULL, NULL, &request), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat_start(NULL, &message, 1, NULL, NULL, NULL, &request), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat_json_start(NULL, "[]", NULL, NULL, NULL, &request), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_generate_tokens_start(NULL, token_ids, 2, NULL, NULL, NULL, &request),
                 XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_next(NULL, 0, &event), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_poll(NULL, &event), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_wait(NULL, 0, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_cancel(NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK(strcmp(xllm_request_get_id(NULL), "") == 0);
}

static void check_inputs(xllm_engine *engine) {
    xllm_response *response = (xllm_response *)1;
    xllm_request *request = NULL;
    const xllm_message no_role = {NULL, "hi"};
    const xllm_message no_content = {"user", NULL};
    const xllm_message not_utf8 = {"user", "\xc3("};
    const int32_t token_ids[] = {1, 2};
    CHECK_STATUS(xllm_complete(engine, "say x", NULL, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_complete(engine, NULL, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK(response == NULL);
    CHECK_STATUS(xllm_complete(engine, "\xf0\x9f\x98", NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("prompt is not valid UTF-8");
    CHECK_STATUS(xllm_complete(engine, "", NULL, &response), XLLM_ERROR_INVALID_REQUEST);
    CHECK_STATUS(xllm_chat(engine, NULL, 1, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat(engine, &no_role, 0, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat(engine, &no_role, 1, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("messages[0].role");
    CHECK_STATUS(xllm_chat(engine, &no_content, 1, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat(engine, &not_utf8, 1, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat_json(engine, NULL, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_chat_json(engine, "", NULL, &response), XLLM_ERROR_INVALID_REQUEST);
    CHECK_STATUS(xllm_chat_json(engine, "{}", NULL, &response), XLLM_ERROR_INVALID_REQUEST);
    CHECK_STATUS(xllm_chat_json(engine, "[1]", NULL, &response), XLLM_ERROR_INVALID_REQUEST);
    CHECK_STATUS(xllm_chat_json(engine, "[{\"content\": \"x\"}]", NULL, &response), XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("role");
    CHECK_STATUS(xllm_generate_tokens(engine, NULL, 2, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_generate_tokens(engine, token_ids, 0, NULL, &response), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_complete_start(engine, "say x", NULL, NULL, NULL, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_complete_start(engine, NULL, NULL, ignore_event, NULL, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_complete(engine, "full", NULL, &response), XLLM_ERROR_QUEUE_FULL);
    CHECK_STATUS(xllm_complete(engine, "fail", NULL, &response), XLLM_ERROR_REQUEST_FAILED);

    CHECK_STATUS(xllm_complete_start(engine, "say x", NULL, ignore_event, NULL, &request), XLLM_OK);
    const xllm_event *event = NULL;
    CHECK_STATUS(xllm_request_next(request, 0, &event), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_poll(request, &event), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_wait(request, 0, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_OK);
    xllm_response_free(response);
    xllm_request_destroy(request);
}

/* One request option at a time is wrong; `expected` says which side refuses it. */
static void check_request_option(xllm_engine *engine, const xllm_request_options *options, xllm_status expected,
                                 const char *message) {
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_complete(engine, "say x", options, &response), expected);
    CHECK_MESSAGE(message);
    CHECK(response == NULL);
}

#define WITH(field, value, expected, message)                        \
    do {                                                             \
        xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;    \
        options.field = (value);                                     \
        check_request_option(engine, &options, expected, message);   \
    } while (0)

static void check_request_options(xllm_engine *engine) {
    const char *with_null[] = {"a", NULL};
    const char *with_empty[] = {""};
    const char *too_many[17] = {"a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"};
    const int32_t outside[] = {1000000};
    WITH(struct_size, 8, XLLM_ERROR_INVALID_ARGUMENT, "struct_size");
    WITH(struct_size, 100000, XLLM_ERROR_INVALID_ARGUMENT, "struct_size");
    WITH(request_id, "\xff", XLLM_ERROR_INVALID_ARGUMENT, "request_id");
    WITH(cache_salt, "\xff", XLLM_ERROR_INVALID_ARGUMENT, "cache_salt");
    WITH(max_tokens, -2, XLLM_ERROR_INVALID_ARGUMENT, "max_tokens");
    WITH(logprobs, -2, XLLM_ERROR_INVALID_ARGUMENT, "logprobs");
    WITH(logprobs, 100000, XLLM_ERROR_INVALID_REQUEST, "logprobs");
    WITH(temperature, (double)NAN, XLLM_ERROR_INVALID_ARGUMENT, "temperature");
    WITH(temperature, -1.0, XLLM_ERROR_INVALID_REQUEST, "temperature");
    WITH(top_p, (double)INFINITY, XLLM_ERROR_INVALID_ARGUMENT, "top_p");
    WITH(top_p, 0.0, XLLM_ERROR_INVALID_REQUEST, "top_p");
    WITH(top_k, -5, XLLM_ERROR_INVALID_REQUEST, "top_k");
    WITH(n, 0, XLLM_ERROR_INVALID_REQUEST, "n must be");
    WITH(n, 1000000, XLLM_ERROR_INVALID_REQUEST, "n must be");
    WITH(num_stop, 1, XLLM_ERROR_INVALID_ARGUMENT, "stop");
    WITH(num_stop_token_ids, 1, XLLM_ERROR_INVALID_ARGUMENT, "stop_token_ids");
    WITH(response_format_json, "{", XLLM_ERROR_INVALID_REQUEST, "response_format_json");
    WITH(options_json, "{", XLLM_ERROR_INVALID_REQUEST, "options_json");
    WITH(options_json, "[]", XLLM_ERROR_INVALID_REQUEST, "options_json");
    WITH(options_json, "{\"no_such_option\": 1}", XLLM_ERROR_INVALID_REQUEST, "no_such_option");
    WITH(options_json, "{\"max_tokens\": \"x\"}", XLLM_ERROR_INVALID_REQUEST, "max_tokens");
    WITH(options_json, "{\"logit_bias\": {\"7\": 1000}}", XLLM_ERROR_INVALID_REQUEST, "logit_bias");
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    options.stop = with_null;
    options.num_stop = 2;
    check_request_option(engine, &options, XLLM_ERROR_INVALID_ARGUMENT, "stop[1]");
    options.stop = with_empty;
    options.num_stop = 1;
    check_request_option(engine, &options, XLLM_ERROR_INVALID_REQUEST, "stop");
    options.stop = too_many;
    options.num_stop = 17;
    check_request_option(engine, &options, XLLM_ERROR_INVALID_REQUEST, "stop");
    options.num_stop = 0;
    options.stop_token_ids = outside;
    options.num_stop_token_ids = 1;
    check_request_option(engine, &options, XLLM_ERROR_INVALID_REQUEST, "stop_token_ids");

    xllm_response *response = NULL;
    const xllm_message message = {"user", "hi"};
    xllm_request_options chat = XLLM_REQUEST_OPTIONS_INIT;
    chat.tools_json = "{\"type\": 1}";
    CHECK_STATUS(xllm_chat(engine, &message, 1, &chat, &response), XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("tools_json");
    chat.tools_json = NULL;
    chat.template_kwargs_json = "nonsense";
    CHECK_STATUS(xllm_chat(engine, &message, 1, &chat, &response), XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("template_kwargs_json");
}

static void check_engine_calls(xllm_engine *engine) {
    xllm_metrics metrics = XLLM_METRICS_INIT;
    CHECK_STATUS(xllm_engine_health(engine), XLLM_OK);
    CHECK_STATUS(xllm_engine_get_info(engine, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_get_metrics(engine, 0, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    metrics.struct_size = 1;
    CHECK_STATUS(xllm_engine_get_metrics(engine, 0, &metrics), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_engine_sleep(engine), XLLM_ERROR_UNSUPPORTED);
    CHECK_STATUS(xllm_engine_wake(engine), XLLM_ERROR_UNSUPPORTED);
}

static void check_pooling_arguments(xllm_engine *engine) {
    const char *const texts[] = {"x", NULL};
    const char *const broken[] = {"\xff"};
    const int32_t token_ids[] = {1};
    float score = 0;
    xllm_embeddings *embeddings = NULL;
    xllm_pooling_options options = XLLM_POOLING_OPTIONS_INIT;
    CHECK_STATUS(xllm_pooling_options_init(NULL, sizeof options), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_pooling_options_init(&options, 1), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_pooling_options_init(&options, sizeof options), XLLM_OK);
    CHECK_STATUS(xllm_embed(engine, NULL, 1, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed(engine, texts, 0, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed(engine, texts, 1, NULL, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed(engine, texts, 2, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("texts[1]");
    CHECK_STATUS(xllm_embed(engine, broken, 1, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed_tokens(engine, NULL, 1, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed_tokens(engine, token_ids, 0, NULL, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_embed_tokens(engine, token_ids, 1, NULL, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_score(engine, NULL, texts, 1, NULL, &score), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_score(engine, "q", NULL, 1, NULL, &score), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_score(engine, "q", texts, 0, NULL, &score), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(xllm_score(engine, "q", texts, 2, NULL, &score), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK_MESSAGE("documents[1]");
    CHECK_STATUS(xllm_score(engine, "q", texts, 1, NULL, NULL), XLLM_ERROR_INVALID_ARGUMENT);
    options.truncate_to = -2;
    CHECK_STATUS(xllm_embed(engine, texts, 1, &options, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    options.truncate_to = 0;
    options.dimensions = -1;
    CHECK_STATUS(xllm_embed(engine, texts, 1, &options, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    options.dimensions = 5;
    CHECK_STATUS(xllm_embed(engine, texts, 1, &options, &embeddings), XLLM_ERROR_INVALID_REQUEST);
    CHECK_STATUS(xllm_score(engine, "q", texts, 1, &options, &score), XLLM_ERROR_INVALID_REQUEST);
    CHECK_MESSAGE("dimensions");
    options.struct_size = 3;
    CHECK_STATUS(xllm_embed(engine, texts, 1, &options, &embeddings), XLLM_ERROR_INVALID_ARGUMENT);
    CHECK(embeddings == NULL && score == 0);
}

int main(void) {
    xllm_engine *engine = NULL;
    check_versions();
    check_options();
    check_null_handles();
    check_engine_start();
    CHECK_STATUS(xllm_engine_create(NULL, &engine), XLLM_OK);
    check_inputs(engine);
    check_request_options(engine);
    check_engine_calls(engine);
    check_pooling_arguments(engine);
    CHECK_STATUS(xllm_engine_destroy(engine), XLLM_OK);
    return 0;
}

/* The life of engines and requests: what comes back, in which order, and that nothing is left behind. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static xllm_engine *create(void) {
    xllm_engine_options options = XLLM_ENGINE_OPTIONS_INIT;
    options.options_json = "{\"model_id\": \"named\", \"block-size\": 32}";
    xllm_engine *engine = NULL;
    CHECK_STATUS(xllm_engine_create(&options, &engine), XLLM_OK);
    return engine;
}

static void check_info(xllm_engine *engine) {
    const xllm_engine_info *info = NULL;
    CHECK_STATUS(xllm_engine_get_info(engine, &info), XLLM_OK);
    CHECK(strcmp(info->model, "named") == 0);
    CHECK(strcmp(info->device, "cpu") == 0 && strcmp(info->dtype, "float32") == 0);
    CHECK(info->block_size == 32 && info->max_model_len == 4096 && info->vocab_size == 1000);
    CHECK(info->process_id > 1 && info->process_id != getpid());
}

static void check_answer(xllm_engine *engine) {
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    options.request_id = "my-own-id";
    options.n = 2;
    options.logprobs = 2;
    options.options_json = "{\"logit_bias\": {\"7\": -1}}";
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_complete(engine, "say gr\xc3\xbc\xc3\x9f dich", &options, &response), XLLM_OK);
    CHECK(strcmp(response->request_id, "my-own-id") == 0 && strcmp(response->model, "named") == 0);
    CHECK(response->num_choices == 2 && response->num_output_tokens == 4 && response->num_prompt_tokens == 3);
    CHECK(response->num_cached_tokens == 1 && response->created_s > 1500000000);
    for (int32_t i = 0; i < 2; ++i) {
        const xllm_choice *choice = response->choices[i];
        CHECK(choice->index == i && strcmp(choice->text, "gr\xc3\xbc\xc3\x9f dich ") == 0);
        CHECK(choice->text_length == strlen(choice->text) && strcmp(choice->finish_reason, "stop") == 0);
        CHECK(choice->num_token_ids == 2 && choice->token_ids[1] == 1 && choice->stop_reason == NULL);
        CHECK(choice->num_logprobs == 2 && choice->logprobs[1].token_id == 1 && choice->logprobs[1].logprob == -0.5);
        CHECK(choice->logprobs[1].num_alternatives == 2 && choice->logprobs[1].alternatives[0].token_id == 1);
        CHECK(choice->logprobs[0].alternatives[1].token_id == 7 && choice->logprobs[0].alternatives[1].logprob == -1.5);
    }
    xllm_response_free(response);
}

struct Stream {
    size_t num_deltas;
    size_t num_finished;
    xllm_status status;
    char text[4096];
    size_t cancel_after;
};

static int collect(const xllm_event *event, void *user_data) {
    struct Stream *stream = user_data;
    CHECK(stream->num_finished == 0);
    if (event->kind == XLLM_EVENT_FINISHED) {
        stream->num_finished++;
        stream->status = event->status;
        CHECK((event->status == XLLM_OK) == (*event->message == '\0'));
        return 1; /* too late to cancel anything */
    }
    CHECK(strlen(event->text) == event->text_length);
    strncat(stream->text, event->text, sizeof stream->text - strlen(stream->text) - 1);
    return ++stream->num_deltas == stream->cancel_after;
}

static void check_callback(xllm_engine *engine) {
    struct Stream stream = {0};
    xllm_request *request = NULL;
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_complete_start(engine, "say one two three", NULL, collect, &stream, &request), XLLM_OK);
    CHECK(strncmp(xllm_request_get_id(request), "xllm-", 5) == 0);
    CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_OK);
    CHECK(stream.num_finished == 1 && stream.status == XLLM_OK);
    CHECK(strcmp(stream.text, "one two three ") == 0 && strcmp(response->choices[0]->text, stream.text) == 0);
    xllm_response_free(response);
    CHECK_STATUS(xllm_request_cancel(request), XLLM_OK);
    CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_OK);
    xllm_response_free(response);
    xllm_request_destroy(request);

    struct Stream cancelled = {0};
    cancelled.cancel_after = 3;
    CHECK_STATUS(xllm_complete_start(engine, "count -1", NULL, collect, &cancelled, &request), XLLM_OK);
    CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_ERROR_CANCELLED);
    CHECK(response == NULL && cancelled.num_deltas == 3 && cancelled.num_finished == 1);
    CHECK(cancelled.status == XLLM_ERROR_CANCELLED);
    xllm_request_destroy(request);
}

static void check_events(xllm_engine *engine) {
    xllm_request *request = NULL;
    xllm_response *response = NULL;
    const xllm_event *event = NULL;
    size_t num_tokens = 0;
    int has_reason = 0;
    CHECK_STATUS(xllm_complete_start(engine, "count 100", NULL, NULL, NULL, &request), XLLM_OK);
    do {
        CHECK_STATUS(xllm_request_next(request, 10000, &event), XLLM_OK);
        num_tokens += event->num_token_ids;
        has_reason |= event->finish_reason != NULL && strcmp(event->finish_reason, "stop") == 0;
    } while (event->kind != XLLM_EVENT_FINISHED);
    CHECK(num_tokens == 100 && has_reason && event->status == XLLM_OK && event->num_prompt_tokens == 2);
    CHECK_STATUS(xllm_request_next(request, 0, &event), XLLM_OK);
    CHECK(event->kind == XLLM_EVENT_FINISHED);
    CHECK_STATUS(xllm_request_poll(request, &event), XLLM_OK);
    CHECK(event != NULL && event->kind == XLLM_EVENT_FINISHED);
    CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_OK);
    CHECK(response->choices[0]->num_token_ids == 100);
    xllm_response_free(response);
    xllm_request_destroy(request);

    CHECK_STATUS(xllm_complete_start(engine, "count -1", NULL, NULL, NULL, &request), XLLM_OK);
    CHECK_STATUS(xllm_request_wait(request, 20, &response), XLLM_ERROR_TIMEOUT);
    CHECK_MESSAGE("goes on");
    CHECK_STATUS(xllm_request_next(request, 10000, &event), XLLM_OK);
    CHECK_STATUS(xllm_request_cancel(request), XLLM_OK);
    do {
        CHECK_STATUS(xllm_request_next(request, 10000, &event), XLLM_OK);
    } while (event->kind != XLLM_EVENT_FINISHED);
    CHECK(event->status == XLLM_ERROR_CANCELLED);
    xllm_request_destroy(request);
}

static void check_deadline(xllm_engine *engine) {
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    options.timeout_ms = 30;
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_complete(engine, "count -1", &options, &response), XLLM_ERROR_TIMEOUT);
    CHECK_MESSAGE("cancelled");
    struct Stream stream = {0};
    xllm_request *request = NULL;
    CHECK_STATUS(xllm_complete_start(engine, "count -1", &options, collect, &stream, &request), XLLM_OK);
    CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_ERROR_TIMEOUT);
    CHECK(stream.num_finished == 1 && stream.status == XLLM_ERROR_TIMEOUT);
    xllm_request_destroy(request);
}

/* What a callback may and may not do. */
static int use_engine(const xllm_event *event, void *user_data) {
    xllm_engine *engine = user_data;
    xllm_response *response = NULL;
    xllm_metrics metrics = XLLM_METRICS_INIT;
    CHECK_STATUS(xllm_complete(engine, "say x", NULL, &response), XLLM_ERROR_WRONG_STATE);
    CHECK_STATUS(xllm_engine_get_metrics(engine, 0, &metrics), XLLM_ERROR_WRONG_STATE);
    CHECK_STATUS(xllm_engine_destroy(engine), XLLM_ERROR_WRONG_STATE);
    if (event->kind == XLLM_EVENT_FINISHED) {
        xllm_request *request = NULL;
        CHECK_STATUS(xllm_complete_start(engine, "count -1", NULL, NULL, NULL, &request), XLLM_OK);
        CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_ERROR_WRONG_STATE);
        xllm_request_destroy(request);
    }
    return 0;
}

static void check_calls_in_callback(xllm_engine *engine) {
    xllm_request *request = NULL;
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_complete_start(engine, "say x", NULL, use_engine, engine, &request), XLLM_OK);
    CHECK_STATUS(xllm_request_wait(request, 0, &response), XLLM_OK);
    xllm_response_free(response);
    xllm_request_destroy(request);
}

static int destroy_itself(const xllm_event *event, void *user_data) {
    (void)event;
    xllm_request **request = user_data;
    xllm_request *own = __atomic_exchange_n(request, NULL, __ATOMIC_ACQ_REL);
    xllm_request_destroy(own);
    return 0;
}

static void check_destroy_in_callback(xllm_engine *engine) {
    xllm_request *request = NULL;
    xllm_request *started = NULL;
    CHECK_STATUS(xllm_complete_start(engine, "count -1", NULL, destroy_itself, &request, &started), XLLM_OK);
    __atomic_store_n(&request, started, __ATOMIC_RELEASE);
    while (__atomic_load_n(&request, __ATOMIC_ACQUIRE) != NULL) usleep(1000);
}

static void wait_until_idle(xllm_engine *engine) {
    xllm_metrics metrics = XLLM_METRICS_INIT;
    for (int i = 0; i < 1000; ++i) {
        CHECK_STATUS(xllm_engine_get_metrics(engine, 10000, &metrics), XLLM_OK);
        if (metrics.num_running == 0) return;
        usleep(10000);
    }
    CHECK(metrics.num_running == 0);
}

/* A forked child may use nothing of its parent's handles, and harms nothing by ending. */
static void check_fork(xllm_engine *engine) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        xllm_response *response = NULL;
        CHECK_STATUS(xllm_complete(engine, "say x", NULL, &response), XLLM_ERROR_WRONG_STATE);
        CHECK_STATUS(xllm_engine_destroy(engine), XLLM_ERROR_WRONG_STATE);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_complete(engine, "say still here", NULL, &response), XLLM_OK);
    xllm_response_free(response);
}

static void check_destroy_with_requests(void) {
    xllm_engine *engine = create();
    xllm_request *waiting = NULL;
    xllm_request *streaming = NULL;
    struct Stream stream = {0};
    CHECK_STATUS(xllm_complete_start(engine, "count -1", NULL, NULL, NULL, &waiting), XLLM_OK);
    CHECK_STATUS(xllm_complete_start(engine, "count -1", NULL, collect, &stream, &streaming), XLLM_OK);
    usleep(20000);
    CHECK_STATUS(xllm_engine_destroy(engine), XLLM_OK);
    CHECK(stream.num_finished == 1 && stream.status == XLLM_ERROR_CANCELLED);
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_request_wait(waiting, 0, &response), XLLM_ERROR_CANCELLED);
    CHECK_STATUS(xllm_request_cancel(streaming), XLLM_OK);
    xllm_request_destroy(waiting);
    xllm_request_destroy(streaming);
}

static void *create_and_complete(void *unused) {
    (void)unused;
    xllm_engine *engine = create();
    xllm_response *response = NULL;
    CHECK_STATUS(xllm_complete(engine, "say hello", NULL, &response), XLLM_OK);
    xllm_response_free(response);
    return engine;
}

/* An engine outlives the thread that made it, and a process can have several. */
static void check_several_engines(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i) CHECK(pthread_create(&threads[i], NULL, create_and_complete, NULL) == 0);
    for (int i = 0; i < 2; ++i) {
        void *engine = NULL;
        CHECK(pthread_join(threads[i], &engine) == 0);
        xllm_response *response = NULL;
        CHECK_STATUS(xllm_complete(engine, "say again", NULL, &response), XLLM_OK);
        xllm_response_free(response);
        CHECK_STATUS(xllm_engine_destroy(engine), XLLM_OK);
    }
}

int main(void) {
    xllm_engine *engine = create();
    check_info(engine);
    check_answer(engine);
    check_callback(engine);
    check_events(engine);
    check_deadline(engine);
    check_calls_in_callback(engine);
    check_destroy_in_callback(engine);
    wait_until_idle(engine);
    check_fork(engine);
    CHECK_STATUS(xllm_engine_destroy(engine), XLLM_OK);
    check_destroy_with_requests();
    check_several_engines();
    CHECK(waitpid(-1, NULL, WNOHANG) == -1); /* no child is left, not even as a zombie */
    return 0;
}

/* stream.c - answer one chat message and print the words as they come; Ctrl-C cancels the request.
 *
 *     cc stream.c $(xllm-config --cflags --libs) -o stream && ./stream "Name three rivers." [MODEL]
 *
 * The library takes no signal handler: this program's own one sets a flag, which the callback answers by cancelling.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <xllm/xllm.h>

static volatile sig_atomic_t is_interrupted = 0;

static void interrupt(int signal_number) {
    (void)signal_number;
    is_interrupted = 1;
}

/* Runs on the engine's thread. */
static int print_event(const xllm_event *event, void *user_data) {
    size_t *num_tokens = user_data;
    if (event->kind == XLLM_EVENT_DELTA) {
        *num_tokens += event->num_token_ids;
        fwrite(event->text, 1, event->text_length, stdout);
        fflush(stdout);
    }
    return is_interrupted;
}

int main(int argc, char **argv) {
    const char *question = argc > 1 ? argv[1] : "Name three rivers.";
    signal(SIGINT, interrupt);

    xllm_engine_options engine_options = XLLM_ENGINE_OPTIONS_INIT;
    engine_options.model = argc > 2 ? argv[2] : NULL;
    xllm_engine *engine = NULL;
    if (xllm_engine_create(&engine_options, &engine) != XLLM_OK) {
        fprintf(stderr, "%s\n", xllm_last_error());
        return 1;
    }

    const xllm_message messages[] = {{"system", "Answer in one sentence."}, {"user", question}};
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    options.max_tokens = 64;
    options.temperature = 0;
    size_t num_tokens = 0;
    xllm_request *request = NULL;
    xllm_status status = xllm_chat_start(engine, messages, 2, &options, print_event, &num_tokens, &request);

    /* This thread is free to do something else; here it waits. */
    xllm_response *response = NULL;
    if (status == XLLM_OK) status = xllm_request_wait(request, 0, &response);
    printf("\n");
    if (status == XLLM_OK) {
        const int is_same = response->num_choices == 1 && response->choices[0]->num_token_ids == num_tokens;
        fprintf(stderr, "%zu tokens streamed%s\n", num_tokens, is_same ? "" : ", but the answer holds others");
    } else {
        fprintf(stderr, "%s: %s\n", xllm_status_name(status), xllm_last_error());
    }

    xllm_response_free(response);
    xllm_request_destroy(request);
    xllm_engine_destroy(engine);
    return status == XLLM_OK ? 0 : 1;
}

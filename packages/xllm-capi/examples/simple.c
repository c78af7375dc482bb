/* simple.c - complete one prompt and print the answer.
 *
 *     cc simple.c $(xllm-config --cflags --libs) -o simple && ./simple "The capital of France is" [MODEL]
 */
#include <stdio.h>

#include <xllm/xllm.h>

static int fail(const char *what, xllm_status status) {
    fprintf(stderr, "%s: %s: %s\n", what, xllm_status_name(status), xllm_last_error());
    return 1;
}

int main(int argc, char **argv) {
    const char *prompt = argc > 1 ? argv[1] : "The capital of France is";

    if (xllm_abi_version() != XLLM_ABI_VERSION) {
        fprintf(stderr, "libxllm %s has another ABI version than its header\n", xllm_version());
        return 1;
    }

    xllm_engine_options engine_options = XLLM_ENGINE_OPTIONS_INIT;
    engine_options.model = argc > 2 ? argv[2] : NULL;
    xllm_engine *engine = NULL;
    xllm_status status = xllm_engine_create(&engine_options, &engine);
    if (status != XLLM_OK) return fail("The engine does not start", status);

    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    options.max_tokens = 32;
    options.temperature = 0;
    options.timeout_ms = 60000;
    xllm_response *response = NULL;
    status = xllm_complete(engine, prompt, &options, &response);
    if (status == XLLM_OK) {
        const xllm_choice *choice = response->choices[0];
        printf("%s\n", choice->text);
        fprintf(stderr, "%s: %d prompt tokens, %d new ones, ended by %s\n", response->model,
                (int)response->num_prompt_tokens, (int)response->num_output_tokens, choice->finish_reason);
        xllm_response_free(response);
    } else {
        fail("The request failed", status);
    }

    xllm_engine_destroy(engine);
    return status == XLLM_OK ? 0 : 1;
}

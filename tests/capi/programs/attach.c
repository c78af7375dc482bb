/* Attaches to a running engine and prints the greedy continuation of a prompt: token ids, then the text.
 * Arguments: address, prompt. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 3);
    xllm_engine *engine = NULL;
    xllm_response *response = NULL;
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    options.max_tokens = 12;
    options.temperature = 0;
    CHECK_STATUS(xllm_engine_attach(argv[1], 60000, &engine), XLLM_OK);
    CHECK_STATUS(xllm_complete(engine, argv[2], &options, &response), XLLM_OK);
    for (size_t i = 0; i < response->choices[0]->num_token_ids; ++i) printf("%d ", (int)response->choices[0]->token_ids[i]);
    printf("\n%s", response->choices[0]->text);
    xllm_response_free(response);
    CHECK_STATUS(xllm_engine_destroy(engine), XLLM_OK);
    return 0;
}

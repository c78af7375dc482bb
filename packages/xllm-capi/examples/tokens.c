/* tokens.c - token ids in, token ids and log-probabilities out, as a recommender would ask: several candidate
 * continuations of one history, with the alternatives at each position.
 *
 *     cc tokens.c $(xllm-config --cflags --libs) -o tokens && ./tokens MODEL 12 873 40
 */
#include <stdio.h>
#include <stdlib.h>

#include <xllm/xllm.h>

static void print_choice(const xllm_choice *choice) {
    printf("candidate %d:", (int)choice->index);
    for (size_t i = 0; i < choice->num_token_ids; ++i) {
        printf(" %d", (int)choice->token_ids[i]);
        if (i < choice->num_logprobs) {
            const xllm_token_logprob *logprob = &choice->logprobs[i];
            printf("(%.2f of %zu)", logprob->logprob, logprob->num_alternatives);
        }
    }
    printf(" [%s]\n", choice->finish_reason);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL TOKEN_ID...\n", argv[0]);
        return 2;
    }
    const size_t num_token_ids = (size_t)argc - 2;
    int32_t *token_ids = malloc(num_token_ids * sizeof *token_ids);
    if (token_ids == NULL) return 1;
    for (size_t i = 0; i < num_token_ids; ++i) token_ids[i] = (int32_t)strtol(argv[i + 2], NULL, 10);

    xllm_engine_options engine_options = XLLM_ENGINE_OPTIONS_INIT;
    engine_options.model = argv[1];
    xllm_engine *engine = NULL;
    xllm_response *response = NULL;
    xllm_status status = xllm_engine_create(&engine_options, &engine);
    if (status == XLLM_OK) {
        xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
        options.max_tokens = 3;
        options.n = 4;
        options.logprobs = 2;
        options.seed = 1;
        options.has_seed = 1;
        status = xllm_generate_tokens(engine, token_ids, num_token_ids, &options, &response);
    }
    if (status == XLLM_OK) {
        for (size_t i = 0; i < response->num_choices; ++i) print_choice(response->choices[i]);
    } else {
        fprintf(stderr, "%s: %s\n", xllm_status_name(status), xllm_last_error());
    }
    xllm_response_free(response);
    xllm_engine_destroy(engine);
    free(token_ids);
    return status == XLLM_OK ? 0 : 1;
}

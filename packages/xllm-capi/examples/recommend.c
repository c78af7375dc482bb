/* recommend.c - a history of token ids in, the most probable items of a catalogue out, with their scores.
 *
 *     cc recommend.c $(xllm-config --cflags --libs) -o recommend && ./recommend MODEL 12 873 40
 *
 * MODEL is a folder that also holds a catalogue, items.bin; examples/rec_movielens/model is one, and its histories begin
 * with token 0.
 */
#include <stdio.h>
#include <stdlib.h>

#include <xllm/xllm.h>

static void print_path(const xllm_recommendation *path) {
    printf("%.4f ", path->score);
    for (size_t i = 0; i < path->num_token_ids; ++i) {
        printf(" %d(%.4f)", (int)path->token_ids[i], path->logprobs[i]);
    }
    printf(" :");
    for (size_t i = 0; i < path->num_item_ids; ++i) printf(" %lld", (long long)path->item_ids[i]);
    printf("\n");
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
    engine_options.options_json = "{\"backend\": \"rec\"}";
    xllm_engine *engine = NULL;
    xllm_recommendations *found = NULL;
    xllm_status status = xllm_engine_create(&engine_options, &engine);
    if (status == XLLM_OK) {
        xllm_recommend_options options = XLLM_RECOMMEND_OPTIONS_INIT;
        options.beam_width = 64;
        options.num_return_sequences = 10;
        status = xllm_recommend_tokens(engine, token_ids, num_token_ids, &options, &found);
    }
    if (status == XLLM_OK) {
        for (size_t i = 0; i < found->num_paths; ++i) print_path(found->paths[i]);
    } else {
        fprintf(stderr, "%s: %s\n", xllm_status_name(status), xllm_last_error());
    }
    xllm_recommendations_free(found);
    xllm_engine_destroy(engine);
    free(token_ids);
    return status == XLLM_OK ? 0 : 1;
}

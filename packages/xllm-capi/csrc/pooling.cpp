// The C boundary of embeddings and scores; as api.cpp, which knows nothing of them.
#include <algorithm>

#include "handles.hpp"
#include "validation.hpp"
#include "xllm/xllm.h"

using namespace libxllm;

namespace {

// The request for vectors, once it has ended well.
std::shared_ptr<Request> pool(Engine &engine, const PoolingInput &input, const xllm_pooling_options *given) {
    engine.check_may_wait();
    const auto options = copy_options(given, default_pooling_options(), "xllm_pooling_options");
    check_input(input);
    check_options(options);
    const auto request = engine.start(input, options);
    request->wait({});
    const Outcome outcome = request->outcome();
    if (outcome.status != XLLM_OK) throw Failure(outcome.status, outcome.message);
    return request;
}

}  // namespace

xllm_status xllm_pooling_options_init(xllm_pooling_options *options, size_t struct_size) {
    return init_options(options, struct_size, default_pooling_options(), "xllm_pooling_options");
}

void xllm_embeddings_free(xllm_embeddings *embeddings) { free_embeddings(embeddings); }

xllm_status xllm_embed(xllm_engine *engine, const char *const *texts, size_t num_texts,
                       const xllm_pooling_options *options, xllm_embeddings **embeddings) {
    return guarded([&] {
        clear(embeddings);
        checked(engine);
        require(embeddings != nullptr, "embeddings must not be NULL.");
        require(texts != nullptr && num_texts > 0, "texts must not be NULL or empty.");
        const auto request = pool(*engine->engine, {nullptr, texts, num_texts, nullptr, 0}, options);
        *embeddings = to_embeddings(request->release_vectors(), request->usage());
    });
}

xllm_status xllm_embed_tokens(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                              const xllm_pooling_options *options, xllm_embeddings **embeddings) {
    return guarded([&] {
        clear(embeddings);
        checked(engine);
        require(embeddings != nullptr, "embeddings must not be NULL.");
        require(token_ids != nullptr && num_token_ids > 0, "token_ids must not be NULL or empty.");
        const auto request = pool(*engine->engine, {nullptr, nullptr, 0, token_ids, num_token_ids}, options);
        *embeddings = to_embeddings(request->release_vectors(), request->usage());
    });
}

xllm_status xllm_score(xllm_engine *engine, const char *query, const char *const *documents, size_t num_documents,
                       const xllm_pooling_options *options, float *scores) {
    return guarded([&] {
        checked(engine);
        require(query != nullptr, "query must not be NULL.");
        require(documents != nullptr && num_documents > 0, "documents must not be NULL or empty.");
        require(scores != nullptr, "scores must not be NULL.");
        const auto request = pool(*engine->engine, {query, documents, num_documents, nullptr, 0}, options);
        const Vectors vectors = request->release_vectors();
        if (vectors.values.size() != num_documents) throw MalformedMessage();
        std::copy(vectors.values.begin(), vectors.values.end(), scores);
    });
}

// The C boundary of recommendations; as api.cpp, which knows nothing of them.
#include "handles.hpp"
#include "validation.hpp"
#include "xllm/xllm.h"

using namespace libxllm;

namespace {

// Wait for a search; `make_input` checks what it is given.
template <typename MakeInput>
xllm_status search(xllm_engine *handle, const xllm_recommend_options *given, xllm_recommendations **recommendations,
                   MakeInput &&make_input) {
    return guarded([&] {
        clear(recommendations);
        Engine &engine = checked(handle);
        require(recommendations != nullptr, "recommendations must not be NULL.");
        engine.check_may_wait();
        const auto options = copy_options(given, default_recommend_options(), "xllm_recommend_options");
        const Input input = make_input();
        check_input(input);
        check_options(options);
        const auto request = engine.start(input, options);
        request->wait({});
        const Outcome outcome = request->outcome();
        if (outcome.status != XLLM_OK) throw Failure(outcome.status, outcome.message);
        *recommendations =
            to_recommendations(request->release_paths(), request->usage(), request->request_id(), engine.model());
    });
}

}  // namespace

xllm_status xllm_recommend_options_init(xllm_recommend_options *options, size_t struct_size) {
    return init_options(options, struct_size, default_recommend_options(), "xllm_recommend_options");
}

void xllm_recommendations_free(xllm_recommendations *recommendations) { free_recommendations(recommendations); }

xllm_status xllm_recommend_tokens(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                  const xllm_recommend_options *options, xllm_recommendations **recommendations) {
    return search(engine, options, recommendations, [&] {
        require(token_ids != nullptr && num_token_ids > 0, "token_ids must not be NULL or empty.");
        Input input;
        input.token_ids = token_ids;
        input.num_token_ids = num_token_ids;
        return input;
    });
}

xllm_status xllm_recommend_tensors(xllm_engine *engine, const int32_t *token_ids, size_t num_token_ids,
                                   const xllm_tensor *tensors, size_t num_tensors,
                                   const xllm_recommend_options *options, xllm_recommendations **recommendations) {
    return search(engine, options, recommendations, [&] {
        require((token_ids != nullptr) == (num_token_ids > 0), "token_ids must be NULL exactly if num_token_ids is 0.");
        require(tensors != nullptr && num_tensors > 0, "tensors must not be NULL or empty.");
        Input input;
        input.token_ids = token_ids;
        input.num_token_ids = num_token_ids;
        input.tensors = tensors;
        input.num_tensors = num_tensors;
        return input;
    });
}

xllm_status xllm_recommend(xllm_engine *engine, const char *prompt, const xllm_recommend_options *options,
                           xllm_recommendations **recommendations) {
    return search(engine, options, recommendations, [&] {
        require(prompt != nullptr, "prompt must not be NULL.");
        Input input;
        input.prompt = prompt;
        return input;
    });
}

xllm_status xllm_recommend_chat(xllm_engine *engine, const xllm_message *messages, size_t num_messages,
                                const xllm_recommend_options *options, xllm_recommendations **recommendations) {
    return search(engine, options, recommendations, [&] {
        require(messages != nullptr && num_messages > 0, "messages must not be NULL or empty.");
        Input input;
        input.messages = messages;
        input.num_messages = num_messages;
        return input;
    });
}

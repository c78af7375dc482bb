// Embeddings and scores: values, options, errors, deadlines, cancelling by destroy, many at once.
#include <cmath>
#include <thread>
#include <vector>

#include <xllm/xllm.hpp>

#include "check.h"

namespace {

void check_values(xllm::Engine &engine) {
    const xllm::Embeddings embeddings = engine.embed({"a b c", "a"});
    CHECK(embeddings.size() == 2 && embeddings.dimensions() == 4);
    CHECK((embeddings.vector(0) == std::vector<float>{3, 1, 2, 2}));
    CHECK((embeddings.vector(1) == std::vector<float>{1, 1, 2, 2}));
    CHECK(embeddings.c().num_prompt_tokens == 4 && embeddings.c().num_cached_tokens == 2);
    xllm::PoolingOptions options;
    options.dimensions = 2;
    options.truncate_to = 2;
    options.request_id = "mine";
    CHECK((engine.embed({"a b c"}, options).vector() == std::vector<float>{2, 1}));
    CHECK((engine.embed_tokens({7, 8, 9}).vector() == std::vector<float>{3, 1, 2, 2}));
    const std::vector<float> scores = engine.score("query", {"a b c", "a"});
    CHECK(scores.size() == 2 && std::fabs(scores[0] - 0.3f) < 1e-6f && std::fabs(scores[1] - 0.1f) < 1e-6f);
    const std::vector<std::string> many(3000, "many words");
    CHECK(engine.embed(many).size() == many.size());
}

void check_failures(xllm::Engine &engine) {
    xllm::Status status;
    CHECK(!engine.embed({"a", "fail"}, {}, status) && status.code == XLLM_ERROR_REQUEST_FAILED);
    CHECK(!engine.embed({"a", ""}, {}, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK(!engine.embed({"full"}, {}, status) && status.code == XLLM_ERROR_QUEUE_FULL);
    CHECK(engine.score("q", {"fail"}, {}, status).empty() && status.code == XLLM_ERROR_REQUEST_FAILED);
    xllm::PoolingOptions options;
    options.timeout = xllm::Milliseconds(30);
    CHECK(!engine.embed({"a", "count -1"}, options, status) && status.code == XLLM_ERROR_TIMEOUT);
    while (engine.metrics().num_running > 0) std::this_thread::sleep_for(xllm::Milliseconds(2));
}

void check_storm(xllm::Engine &engine) {
    std::vector<std::thread> threads;
    for (int number = 1; number <= 8; ++number) {
        threads.emplace_back([&engine, number] {
            std::string text = "x";
            for (int word = 1; word < number; ++word) text += " x";
            for (int round = 0; round < 20; ++round) {
                CHECK(engine.embed({text, "y"}).vector()[0] == static_cast<float>(number));
                CHECK(engine.complete("say " + text).text().size() == 2 * static_cast<std::size_t>(number));
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
}

void check_end() {
    xllm::Engine engine;
    xllm::Status status;
    CHECK(!engine.embed({"a", "die"}, {}, status) && status.code == XLLM_ERROR_ENGINE_DEAD);
    CHECK(!engine.embed({"a"}, {}, status) && status.code == XLLM_ERROR_ENGINE_DEAD);
}

}  // namespace

int main() {
    xllm::Engine engine;
    check_values(engine);
    check_failures(engine);
    check_storm(engine);
    check_end();
}

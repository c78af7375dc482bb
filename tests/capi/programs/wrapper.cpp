// xllm.hpp: ownership, exceptions, callbacks, and that each option arrives where it belongs.
#include <stdexcept>
#include <type_traits>

#include <xllm/xllm.hpp>

#include "check.h"

namespace {

static_assert(!std::is_copy_constructible_v<xllm::Engine> && std::is_nothrow_move_constructible_v<xllm::Engine>);
static_assert(!std::is_copy_constructible_v<xllm::Request> && std::is_nothrow_move_constructible_v<xllm::Request>);
static_assert(!std::is_copy_constructible_v<xllm::Response> && std::is_nothrow_move_constructible_v<xllm::Response>);

template <typename Call>
xllm_status thrown_by(Call call) {
    try {
        call();
    } catch (const xllm::Error &error) {
        CHECK(*error.what() != '\0');
        return error.code();
    }
    return XLLM_OK;
}

void check_answers(xllm::Engine &engine) {
    xllm::RequestOptions options;
    options.n = 2;
    options.max_tokens = 2;
    options.logprobs = 2;
    options.seed = 7;
    options.request_id = "named";
    const xllm::Response response = engine.complete("say a b c", options);
    CHECK(response.size() == 2 && response.text(1) == "a b " && response.finish_reason() == "length");
    CHECK(response.token_ids() == std::vector<std::int32_t>({0, 1}) && response.choice().num_logprobs == 2);
    CHECK(response.c().request_id == std::string("named"));
    CHECK(engine.chat({{"user", "hi"}}).text() == "user=hi ");
    CHECK(engine.chat_json(R"([{"role": "user", "content": "hi"}])").text() == "user=hi ");
    CHECK(engine.generate_tokens({5, 6}).text() == "ids 5 6 ");
    options = {};
    CHECK(engine.chat({{"user", "hi"}}, options).text() == "user=hi ");
    options = {};
    options.stop = {""};
    CHECK(thrown_by([&] { engine.complete("say x", options); }) == XLLM_ERROR_INVALID_REQUEST);
    options = {};
    options.stop_token_ids = {100000};
    CHECK(thrown_by([&] { engine.complete("say x", options); }) == XLLM_ERROR_INVALID_REQUEST);
    options = {};
    options.timeout = std::chrono::milliseconds(20);
    CHECK(thrown_by([&] { engine.complete("count -1", options); }) == XLLM_ERROR_TIMEOUT);
}

void check_requests(xllm::Engine &engine) {
    std::string text;
    xllm::Request request = engine.start_chat({{"user", "hi"}}, {}, [&](const xllm::Event &event) {
        text += event.text();
        return true;
    });
    const xllm::Response response = request.wait();
    CHECK(response.text() == text && text == "user=hi ");
    CHECK(thrown_by([&] { request.next(); }) == XLLM_ERROR_INVALID_ARGUMENT);

    request = engine.start_complete("count -1", {}, [](const xllm::Event &) -> bool { throw std::logic_error("no"); });
    bool is_rethrown = false;
    try {
        request.wait();
    } catch (const std::logic_error &) {
        is_rethrown = true;
    }
    CHECK(is_rethrown);

    request = engine.start_tokens({1, 2, 3});
    std::size_t num_tokens = 0;
    auto event = request.next();
    for (; event && !event->is_finished(); event = request.next()) num_tokens += event->c().num_token_ids;
    CHECK(event && event->status().ok() && num_tokens == 4);

    request = engine.start_complete("count -1");
    CHECK(thrown_by([&] { request.wait(std::chrono::milliseconds(10)); }) == XLLM_ERROR_TIMEOUT);
    const xllm::Request moved = std::move(request);
    CHECK(moved && !moved.id().empty());
    CHECK(!request);  // NOLINT: what a moved-from request answers is what is tested
    CHECK(thrown_by([&] { request.wait(); }) == XLLM_ERROR_INVALID_ARGUMENT);
}

}  // namespace

int main() {
    xllm::EngineOptions options;
    options.model = "missing";
    CHECK(thrown_by([&] { xllm::Engine missing(options); }) == XLLM_ERROR_MODEL_LOAD);
    CHECK(thrown_by([&] { xllm::Engine::attach("/no/such/socket"); }) == XLLM_ERROR_ENGINE_START);
    xllm::Engine first;
    xllm::Engine engine = std::move(first);
    CHECK(!first);  // NOLINT: as above
    CHECK(thrown_by([&] { first.complete("say x"); }) == XLLM_ERROR_INVALID_ARGUMENT);
    CHECK(engine.health().ok() && engine.info()->model == std::string("obedient"));
    check_answers(engine);
    check_requests(engine);
    CHECK(engine.metrics().num_generated_tokens > 0);
}

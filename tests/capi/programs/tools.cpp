// Chats with tools: calls come back parsed, whole and streamed, beside what was said.
#include <string>

#include <xllm/xllm.hpp>

#include "check.h"

namespace {

const char *const kTools = R"([{"type": "function", "function": {"name": "get_weather", "parameters":
    {"type": "object", "properties": {"city": {"type": "string"}}}}}])";
const char *const kCalls =
    R"(hello <tool_call> {"name": "get_weather", "arguments": {"city": "Rome"}} </tool_call> )"
    R"(<tool_call> {"name": "get_weather", "arguments": {"city": "Oslo"}} </tool_call>)";

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

void check_whole(xllm::Engine &engine, xllm::RequestOptions &options) {
    const xllm::Response answer = engine.chat({{"user", kCalls}}, options);
    CHECK(contains(answer.text(), "user=hello") && !contains(answer.text(), "tool_call"));
    const std::string calls(answer.tool_calls_json());
    CHECK(contains(calls, R"("type":"function")") && contains(calls, R"("name":"get_weather")"));
    CHECK(contains(calls, "Rome") && contains(calls, "Oslo") && calls.front() == '[');
    CHECK(engine.chat({{"user", "no call"}}, options).tool_calls_json().empty());
    CHECK(engine.chat({{"user", "no call"}}, options).reasoning().empty());
}

void check_streamed(xllm::Engine &engine, xllm::RequestOptions &options) {
    std::string text, calls;
    xllm::Request request = engine.start_chat({{"user", kCalls}}, options, [&](const xllm::Event &event) {
        if (event.is_finished()) return true;
        text += event.text();
        if (!event.tool_calls_json().empty()) calls = event.tool_calls_json();
        return true;
    });
    CHECK(contains(std::string(request.wait().tool_calls_json()), "Oslo"));
    CHECK(contains(calls, "Rome") && contains(text, "hello") && !contains(text, "{"));
}

void check_choices(xllm::Engine &engine, xllm::RequestOptions &options) {
    xllm::Status status;
    options.tool_choice = "none";
    CHECK(contains(engine.chat({{"user", kCalls}}, options).text(), "tool_call"));
    options.tool_choice = "get_time";
    CHECK(!engine.chat({{"user", "x"}}, options, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    CHECK(contains(status.message, "tool_choice"));
    options.tool_choice = "get_weather";
    CHECK(engine.chat({{"user", kCalls}}, options).tool_calls_json().find("Oslo") == std::string_view::npos);
    options.tools_json.clear();
    CHECK(!engine.chat({{"user", "x"}}, options, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
    options.tools_json = "[{}]";
    CHECK(!engine.chat({{"user", "x"}}, options, status) && status.code == XLLM_ERROR_INVALID_REQUEST);
}

}  // namespace

int main() {
    xllm::EngineOptions engine_options;
    engine_options.options_json = R"({"tool_call_parser": "hermes"})";
    xllm::Engine engine(engine_options);
    xllm::RequestOptions options;
    options.tools_json = kTools;
    check_whole(engine, options);
    check_streamed(engine, options);
    check_choices(engine, options);
}

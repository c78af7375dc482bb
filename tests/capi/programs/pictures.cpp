// Chats whose messages are the lines of standard input, on the model argv[1] with the options argv[2]: prints, a line
// each, the greedy tokens, or the status and what is wrong; then, after all, says that the engine is well.
#include <iostream>
#include <string>

#include <xllm/xllm.hpp>

int main(int, char **argv) {
    xllm::EngineOptions engine_options;
    engine_options.model = argv[1];
    engine_options.options_json = argv[2];
    xllm::Engine engine(engine_options);
    xllm::RequestOptions options;
    options.temperature = 0;
    options.max_tokens = 8;
    options.ignore_eos = true;
    for (std::string messages; std::getline(std::cin, messages);) {
        xllm::Status status;
        const xllm::Response response = engine.chat_json(messages, options, status);
        if (response) {
            for (const std::int32_t token_id : response.token_ids()) std::cout << token_id << ' ';
        } else {
            std::cout << xllm_status_name(status.code) << ' ' << status.message;
        }
        std::cout << '\n';
    }
    std::cout << (engine.health().ok() ? "well" : "ill") << '\n';
    return 0;
}

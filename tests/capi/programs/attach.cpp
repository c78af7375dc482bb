// The same as attach.c, through xllm.hpp and streamed.
#include <iostream>

#include <xllm/xllm.hpp>

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 3);
    xllm::Engine engine = xllm::Engine::attach(argv[1], std::chrono::seconds(60));
    xllm::RequestOptions options;
    options.max_tokens = 12;
    options.temperature = 0;
    std::string text;
    std::string token_ids;
    xllm::Request request = engine.start_complete(argv[2], options, [&](const xllm::Event &event) {
        text += event.text();
        for (std::size_t i = 0; i < event.c().num_token_ids; ++i) {
            token_ids += std::to_string(event.c().token_ids[i]) + ' ';
        }
        return true;
    });
    request.wait();
    std::cout << token_ids << '\n' << text;
}

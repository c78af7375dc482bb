// chat.cpp - talk to a model in the terminal, no HTTP involved. An empty line, or the end of the input, leaves.
//
//     c++ -std=c++17 -pthread chat.cpp $(xllm-config --cflags --libs) -o chat && ./chat [MODEL]
#include <iostream>
#include <string>
#include <vector>

#include <xllm/xllm.hpp>

namespace {

bool read_line(std::string &line) {
    std::cout << "> " << std::flush;
    return std::getline(std::cin, line) && !line.empty();
}

void converse(xllm::Engine &engine) {
    xllm::RequestOptions options;
    options.max_tokens = 256;
    options.temperature = 0.7;
    std::vector<xllm::Message> messages;
    std::string line;
    while (read_line(line)) {
        messages.push_back({"user", line});
        // Events are taken on this thread here; a callback would get them on the engine's.
        xllm::Request request = engine.start_chat(messages, options);
        for (auto event = request.next(); event && !event->is_finished(); event = request.next()) {
            std::cout << event->text() << std::flush;
        }
        std::cout << '\n';
        messages.push_back({"assistant", std::string(request.wait().text())});
    }
}

}  // namespace

int main(int argc, char **argv) {
    try {
        xllm::EngineOptions options;
        options.model = argc > 1 ? argv[1] : "";
        xllm::Engine engine(options);
        std::cout << "Talking to " << engine.info()->model << '\n';
        converse(engine);
    } catch (const xllm::Error &error) {
        std::cerr << xllm_status_name(error.code()) << ": " << error.what() << '\n';
        return 1;
    }
}

// Prints the embedding of a text, and how well it fits itself. Arguments: the address of a running engine, the text.
#include <xllm/xllm.hpp>

#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 3);
    xllm::Engine engine = xllm::Engine::attach(argv[1]);
    const xllm::Embeddings embeddings = engine.embed({argv[2]});
    for (const float value : embeddings.vector()) std::printf("%.6f ", static_cast<double>(value));
    std::printf("\n%.4f\n", static_cast<double>(engine.score(argv[2], {argv[2]})[0]));
}

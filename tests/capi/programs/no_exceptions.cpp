// The C++ face in a program without exceptions.
#include <xllm/xllm.hpp>

#include "check.h"

int main() {
    xllm::Status status;
    xllm::EngineOptions options;
    options.model = "missing";
    const xllm::Engine missing(options, status);
    CHECK(!missing && status.code == XLLM_ERROR_MODEL_LOAD && !status.message.empty());
    xllm::Engine engine({}, status);
    CHECK(status.ok());
    CHECK(engine.complete("say hello", {}, status).text() == "hello ");
    CHECK(!engine.complete("fail", {}, status) && status.code == XLLM_ERROR_REQUEST_FAILED);
    xllm::Request request = engine.start_complete("say a", {}, [](const xllm::Event &) { return false; }, status);
    CHECK(status.ok() && !request.wait(status) && status.code == XLLM_ERROR_CANCELLED);
}

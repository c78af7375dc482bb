// The C side of capi.py: times requests of one token, and streams, and prints one line of microseconds each.
//
//     capi_latency MODEL OPTIONS_JSON SHORT_PROMPT LONG_PROMPT NUM_REQUESTS NUM_STREAMS NUM_TOKENS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <xllm/xllm.h>

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

[[noreturn]] void fail() {
    std::fprintf(stderr, "%s\n", xllm_last_error());
    std::exit(1);
}

int count_tokens(const xllm_event *event, void *count) {
    *static_cast<std::size_t *>(count) += event->num_token_ids;
    return 0;
}

double time_request(xllm_engine *engine, const char *prompt, const xllm_request_options &options) {
    const Clock::time_point start = Clock::now();
    xllm_response *response = nullptr;
    if (xllm_complete(engine, prompt, &options, &response) != XLLM_OK) fail();
    const double taken = microseconds_since(start);
    xllm_response_free(response);
    return taken;
}

double time_stream(xllm_engine *engine, const char *prompt, const xllm_request_options &options) {
    std::size_t num_tokens = 0;
    xllm_request *request = nullptr;
    xllm_response *response = nullptr;
    const Clock::time_point start = Clock::now();
    if (xllm_complete_start(engine, prompt, &options, count_tokens, &num_tokens, &request) != XLLM_OK) fail();
    if (xllm_request_wait(request, 0, &response) != XLLM_OK) fail();
    const double taken = microseconds_since(start);
    xllm_response_free(response);
    xllm_request_destroy(request);
    return taken / static_cast<double>(num_tokens);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 8) return 2;
    xllm_engine_options engine_options = XLLM_ENGINE_OPTIONS_INIT;
    engine_options.model = argv[1];
    engine_options.options_json = argv[2];
    xllm_engine *engine = nullptr;
    if (xllm_engine_create(&engine_options, &engine) != XLLM_OK) fail();
    xllm_request_options options = XLLM_REQUEST_OPTIONS_INIT;
    options.temperature = 0;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::printf("ready\n");
    // One line of standard input is one round, so that rounds can alternate with another's.
    for (int c = std::getchar(); c != EOF; c = std::getchar()) {
        if (c != '\n') continue;
        options.max_tokens = 1;
        for (int i = std::atoi(argv[5]); i > 0; --i) std::printf("%.2f ", time_request(engine, argv[3], options));
        std::printf("\n");
        options.max_tokens = std::atoi(argv[7]);
        for (int i = std::atoi(argv[6]); i > 0; --i) std::printf("%.3f ", time_stream(engine, argv[4], options));
        std::printf("\n");
    }
    xllm_engine_destroy(engine);
}

// The C side of capi.py: times requests of one token, and streams, and prints one line of microseconds each; and a third
// line, when each token of the streams has arrived, in microseconds of the monotonic clock.
//
//     capi_latency MODEL OPTIONS_JSON SHORT_PROMPT LONG_PROMPT NUM_REQUESTS NUM_STREAMS NUM_TOKENS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

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

// The monotonic clock of Python's time.monotonic().
int note_arrival(const xllm_event *event, void *arrivals) {
    if (event->num_token_ids > 0) static_cast<std::vector<Clock::time_point> *>(arrivals)->push_back(Clock::now());
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

double time_stream(xllm_engine *engine, const char *prompt, const xllm_request_options &options,
                   std::vector<Clock::time_point> &arrivals) {
    xllm_request *request = nullptr;
    xllm_response *response = nullptr;
    const Clock::time_point start = Clock::now();
    if (xllm_complete_start(engine, prompt, &options, note_arrival, &arrivals, &request) != XLLM_OK) fail();
    if (xllm_request_wait(request, 0, &response) != XLLM_OK) fail();
    const double taken = microseconds_since(start);
    const int num_tokens = response->num_output_tokens;
    xllm_response_free(response);
    xllm_request_destroy(request);
    return taken / num_tokens;
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
        std::vector<Clock::time_point> arrivals;
        for (int i = std::atoi(argv[6]); i > 0; --i) {
            std::printf("%.3f ", time_stream(engine, argv[4], options, arrivals));
        }
        std::printf("\n");
        for (const Clock::time_point arrival : arrivals) {
            std::printf("%.1f ", std::chrono::duration<double, std::micro>(arrival.time_since_epoch()).count());
        }
        std::printf("\n");
    }
    xllm_engine_destroy(engine);
}

// many_threads.cpp - many threads share one engine; prints latency percentiles.
//
//     c++ -std=c++17 -pthread many_threads.cpp $(xllm-config --cflags --libs) -o many_threads
//     ./many_threads [THREADS] [REQUESTS_A_THREAD] [PROMPT] [MODEL]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <xllm/xllm.hpp>

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double percentile(const std::vector<double> &sorted, double share) {
    return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

int run(int num_threads, int num_requests, const std::string &prompt, const std::string &model) {
    xllm::EngineOptions engine_options;
    engine_options.model = model;
    xllm::Engine engine(engine_options);

    std::vector<std::vector<double>> latencies_ms(static_cast<std::size_t>(num_threads));
    std::atomic<int> num_failed{0};
    std::atomic<long> num_tokens{0};
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (auto &own_latencies_ms : latencies_ms) {
        threads.emplace_back([&] {
            xllm::RequestOptions options;
            options.max_tokens = 16;
            options.timeout = std::chrono::seconds(120);
            for (int i = 0; i < num_requests; ++i) {
                const auto sent = Clock::now();
                xllm::Status status;
                const xllm::Response response = engine.complete(prompt, options, status);
                if (status.ok()) {
                    own_latencies_ms.push_back(milliseconds_since(sent));
                    num_tokens += response.c().num_output_tokens;
                } else if (++num_failed == 1) {
                    std::fprintf(stderr, "%s: %s\n", xllm_status_name(status.code), status.message.c_str());
                }
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    const double wall_ms = milliseconds_since(start);

    std::vector<double> all_ms;
    for (const auto &own : latencies_ms) all_ms.insert(all_ms.end(), own.begin(), own.end());
    std::sort(all_ms.begin(), all_ms.end());
    std::printf("%d threads x %d requests: %zu answered, %d failed, %.0f requests/s, %.0f tokens/s\n", num_threads,
                num_requests, all_ms.size(), num_failed.load(), 1e3 * static_cast<double>(all_ms.size()) / wall_ms,
                1e3 * static_cast<double>(num_tokens.load()) / wall_ms);
    if (!all_ms.empty()) {
        std::printf("latency ms: p50 %.2f  p90 %.2f  p99 %.2f  max %.2f\n", percentile(all_ms, 0.5),
                    percentile(all_ms, 0.9), percentile(all_ms, 0.99), all_ms.back());
    }
    return num_failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
    const int num_threads = argc > 1 ? std::atoi(argv[1]) : 8;
    const int num_requests = argc > 2 ? std::atoi(argv[2]) : 4;
    const std::string prompt = argc > 3 ? argv[3] : "The capital of France is";
    if (num_threads < 1 || num_requests < 1) {
        std::fprintf(stderr, "usage: %s [THREADS] [REQUESTS_A_THREAD] [PROMPT] [MODEL]\n", argv[0]);
        return 2;
    }
    try {
        return run(num_threads, num_requests, prompt, argc > 4 ? argv[4] : "");
    } catch (const xllm::Error &error) {
        std::fprintf(stderr, "%s: %s\n", xllm_status_name(error.code()), error.what());
        return 1;
    }
}

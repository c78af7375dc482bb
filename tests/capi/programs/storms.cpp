// Many threads at once, requests that are cancelled or run out of time at random moments, and at the end an engine that
// holds nothing. Arguments: threads, requests a thread.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include <xllm/xllm.hpp>

#include "check.h"

namespace {

template <typename Body>
void on_threads(int num_threads, Body body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < num_threads; ++i) threads.emplace_back(body, i);
    for (std::thread &thread : threads) thread.join();
}

void check_answers(xllm::Engine &engine, int num_threads, int num_requests) {
    on_threads(num_threads, [&](int thread) {
        for (int i = 0; i < num_requests; ++i) {
            const std::string word = std::to_string(thread * 1000 + i);
            CHECK(engine.complete("say a " + word).text() == "a " + word + " ");
        }
    });
}

// Waiters, callbacks and event queues in turn, cancelled from here, by the callback, or by destruction.
void check_cancels(xllm::Engine &engine, int num_threads, int num_requests) {
    std::atomic<int> num_finished{0};
    on_threads(num_threads, [&](int thread) {
        std::minstd_rand random(static_cast<unsigned>(thread + 1));
        for (int i = 0; i < num_requests; ++i) {
            const auto pause = std::chrono::microseconds(random() % 3000);
            const unsigned when_to_stop = random() % 20;
            unsigned num_events = 0;
            const bool is_stopped_inside = random() % 2 == 0;
            const auto on_event = [&](const xllm::Event &event) {
                num_finished += event.is_finished();
                return !(is_stopped_inside && ++num_events == when_to_stop);
            };
            if (random() % 2 == 0) {
                xllm::Request request = engine.start_complete("count -1", {}, on_event);
                std::this_thread::sleep_for(pause);
                request.cancel();
                xllm::Status status;
                CHECK(!request.wait(status));
                CHECK(status.code == XLLM_ERROR_CANCELLED);
            } else {
                xllm::Request request = engine.start_complete("count -1");
                std::this_thread::sleep_for(pause);
                while (request.poll()) continue;
            }
        }
    });
    CHECK(num_finished > 0);
}

void check_deadlines(xllm::Engine &engine, int num_threads, int num_requests) {
    on_threads(num_threads, [&](int thread) {
        std::minstd_rand random(static_cast<unsigned>(thread + 1));
        for (int i = 0; i < num_requests; ++i) {
            xllm::RequestOptions options;
            options.timeout = std::chrono::milliseconds(1 + random() % 20 * (random() % 2));
            xllm::Status status;
            const bool is_endless = random() % 2 == 0;
            const xllm::Response response = engine.complete(is_endless ? "count -1" : "count 40", options, status);
            CHECK(status.code == XLLM_ERROR_TIMEOUT || (!is_endless && status.ok()));
            if (status.ok()) CHECK(response.token_ids().size() == 40);
        }
    });
}

void check_idle(xllm::Engine &engine) {
    for (int i = 0; i < 500; ++i) {
        if (engine.metrics().num_running == 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    CHECK(engine.metrics().num_running == 0);
}

}  // namespace

int main(int argc, char **argv) {
    const int num_threads = argc > 1 ? std::atoi(argv[1]) : 20;
    const int num_requests = argc > 2 ? std::atoi(argv[2]) : 10;
    xllm::Engine engine;
    check_answers(engine, num_threads, num_requests);
    check_cancels(engine, num_threads, num_requests);
    check_idle(engine);
    check_deadlines(engine, num_threads, num_requests);
    check_idle(engine);
    CHECK(engine.complete("say still well").text() == "still well ");
}

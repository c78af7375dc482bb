// The engine process dies under load: every waiting call returns within a second, the handle says why, and another engine
// can be made. Also: it dies alone (kill), by its own fault ("die", "exit"), and when its loop ends with an error ("break").
#include <signal.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <xllm/xllm.hpp>

#include "check.h"

namespace {

using Clock = std::chrono::steady_clock;

// Load an engine with every kind of waiter, run `kill`, and check that all come back in time.
template <typename Kill>
void check_death(const std::string &reason, Kill kill) {
    xllm::Engine engine;
    std::atomic<int> num_started{0};
    std::vector<std::thread> threads;
    Clock::time_point killed_at;
    std::atomic<bool> is_killed{false};
    std::vector<double> delays_s(30);
    for (std::size_t i = 0; i < delays_s.size(); ++i) {
        threads.emplace_back([&, i] {
            xllm::Status status;
            ++num_started;
            if (i % 3 == 0) {
                CHECK(!engine.complete("count -1", {}, status));
            } else if (i % 3 == 1) {
                const auto go_on = [](const xllm::Event &) { return true; };
                CHECK(!engine.start_complete("count -1", {}, go_on).wait(status));
            } else {
                xllm::Request request = engine.start_complete("count -1");
                auto event = request.next();
                while (!event->is_finished()) event = request.next();
                status = event->status();
            }
            CHECK(is_killed);
            CHECK(status.code == XLLM_ERROR_ENGINE_DEAD);
            CHECK(status.message.find(reason) != std::string::npos);
            delays_s[i] = std::chrono::duration<double>(Clock::now() - killed_at).count();
        });
    }
    while (num_started < 30 || engine.metrics().num_running < 30) continue;
    killed_at = Clock::now();
    is_killed = true;
    kill(engine);
    for (std::thread &thread : threads) thread.join();
    for (const double delay_s : delays_s) CHECK(delay_s < 1.0);
    CHECK(engine.health().code == XLLM_ERROR_ENGINE_DEAD);
    xllm::Status status;
    CHECK(!engine.complete("say x", {}, status));
    CHECK(status.code == XLLM_ERROR_ENGINE_DEAD);
    engine.metrics(status);
    CHECK(status.code == XLLM_ERROR_ENGINE_DEAD);
    engine = xllm::Engine();
    CHECK(engine.complete("say back again").text() == "back again ");
}

void run_last_words(xllm::Engine &engine, const char *prompt) {
    xllm::Status status;
    engine.complete(prompt, {}, status);
    CHECK(status.code == XLLM_ERROR_ENGINE_DEAD);
}

}  // namespace

int main() {
    check_death("signal 9 (SIGKILL)",
                [](xllm::Engine &engine) { ::kill(static_cast<pid_t>(engine.info()->process_id), SIGKILL); });
    check_death("signal 9 (SIGKILL)", [](xllm::Engine &engine) { run_last_words(engine, "die"); });
    check_death("broken on request", [](xllm::Engine &engine) { run_last_words(engine, "break"); });
    check_death("exit code 7; its last words: farewell", [](xllm::Engine &engine) { run_last_words(engine, "exit"); });
}

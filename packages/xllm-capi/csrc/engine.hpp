// An engine as the host sees it: one connection, one thread, the requests in flight.
// Knows neither the C structs' checks (validation.hpp) nor how the engine process does its work.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "channel.hpp"
#include "process.hpp"
#include "protocol.hpp"
#include "request.hpp"

namespace libxllm {

// How to reach the engine: start a process with `python`, or connect to `address` when that is not empty.
struct EngineSource {
    std::string python;
    std::optional<std::string> log_path;
    std::string address;
    std::string start_frame;
};

// Life: starting -> ready -> ended, or starting -> ended. Everything that happens to a request after its start happens
// on the engine's thread, in the order of arrival; other threads only enter requests into the table, send frames and
// leave notes (cancels, stop) that the thread is woken for.
class Engine : private MessageHandler {
public:
    // Returns when the engine takes requests. Throws Failure, after which nothing is left behind.
    static std::shared_ptr<Engine> open(EngineSource source, const Deadline &deadline);

    explicit Engine(EngineSource source);
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    ~Engine() override = default;

    // Throws Failure(XLLM_ERROR_WRONG_STATE) in a forked child.
    void check_process() const;
    // Throws Failure(XLLM_ERROR_WRONG_STATE) on the engine's own thread, where waiting would never end.
    void check_may_wait() const;
    bool is_own_thread() const;

    std::shared_ptr<Request> start(const Input &input, const xllm_request_options &options, Request::Mode mode,
                                   xllm_on_event on_event, void *user_data);
    // The same for vectors, which the request takes at its end.
    std::shared_ptr<Request> start(const PoolingInput &input, const xllm_pooling_options &options);
    // The same for a search, whose paths the request takes at its end.
    std::shared_ptr<Request> start(const Input &input, const xllm_recommend_options &options);
    void cancel(Request &request);
    // Throws Failure.
    xllm_metrics metrics(const Deadline &deadline);
    // XLLM_OK, or how the engine ended.
    Outcome health();
    // After open() only.
    const xllm_engine_info &info() const { return info_; }
    const std::string &model() const { return ready_.model; }
    // End all requests with XLLM_ERROR_CANCELLED, end the engine process, join the thread. Once only.
    void stop();

private:
    enum class State { kStarting, kReady, kEnded };
    struct StatsCall {
        bool is_done = false;
        xllm_metrics metrics{};
    };

    // Enter a request with the name `given`, or a fresh one, and send its frame.
    template <typename Encode>
    std::shared_ptr<Request> enter(const char *given, std::uint32_t timeout_ms, Request::Mode mode,
                                   xllm_on_event on_event, void *user_data, Encode &&encode);
    void launch_thread();
    void wake();

    // On the engine's thread.
    void run();
    void connect();
    Outcome serve();
    int milliseconds_to_next_deadline();
    Channel::Received read_messages();
    void handle_cancels();
    void expire_requests();
    void end_requests(const std::vector<std::uint64_t> &ids, const Outcome &outcome);
    Outcome describe_end();
    void end(Outcome outcome);
    void end_process();
    std::shared_ptr<Request> find(std::uint64_t id);
    std::shared_ptr<Request> take(std::uint64_t id);

    void on_ready(Ready ready) override;
    void on_failed(Outcome outcome) override;
    void on_delta(std::uint64_t id, Event &event) override;
    void on_finished(std::uint64_t id, Outcome outcome, Usage usage) override;
    void on_vectors(std::uint64_t id, Outcome outcome, Usage usage, Vectors vectors) override;
    void on_paths(std::uint64_t id, Outcome outcome, Usage usage, Paths paths) override;
    void on_stats(std::uint64_t id, const xllm_metrics &metrics) override;

    const EngineSource source_;
    const pid_t host_pid_;
    const std::string request_id_prefix_;
    std::thread thread_;
    Descriptor wake_;
    Channel channel_;
    EngineProcess process_;  // engine's thread only
    MessageReader reader_;   // engine's thread only
    bool was_ready_ = false;          // engine's thread only
    std::optional<Outcome> failure_;  // engine's thread only: what the engine said about its own end
    std::atomic<bool> is_stopping_{false};
    std::atomic<std::uint64_t> next_id_{1};
    Ready ready_;  // written once, before the state becomes ready
    xllm_engine_info info_{};

    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    State state_ = State::kStarting;
    Outcome end_;
    std::unordered_map<std::uint64_t, std::shared_ptr<Request>> requests_;
    std::set<std::pair<Clock::time_point, std::uint64_t>> deadlines_;
    std::vector<std::uint64_t> cancels_;
    std::map<std::uint64_t, StatsCall> stats_calls_;
};

}  // namespace libxllm

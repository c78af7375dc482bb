// One request as its callers see it: events, the answer, the end. Knows nothing of the engine process or of sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "answer.hpp"
#include "recommendations.hpp"

namespace libxllm {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;

// The moment `timeout_ms` from now; none for 0.
Deadline deadline_after(std::uint32_t timeout_ms);

class Request {
public:
    // kWait keeps the answer alone, kQueue events too; kCallback hands them to `on_event`.
    enum class Mode { kWait, kQueue, kCallback };

    Request(std::uint64_t id, std::string request_id, Mode mode, xllm_on_event on_event, void *user_data,
            Deadline deadline);

    std::uint64_t id() const { return id_; }
    const std::string &request_id() const { return answer_.request_id; }
    const Deadline &deadline() const { return deadline_; }

    // ---- On the engine's thread.

    // Take new text and tokens. False when the callback asks to cancel.
    bool deliver(Event &event);
    // What a request for vectors, or a search, brings; `finish` follows.
    void take_vectors(Vectors vectors);
    void take_paths(Paths paths);
    // The end; later calls do nothing.
    void finish(Outcome outcome, Usage usage);

    // ---- On any other thread.

    // Nothing more is delivered from now on: it was cancelled, and its last event is on its way.
    void mute() { is_muted_.store(true, std::memory_order_relaxed); }
    bool is_muted() const { return is_muted_.load(std::memory_order_relaxed); }
    // No callback runs after this returns, except the one that it may be called from (`is_inside_callback`).
    void detach(bool is_inside_callback);
    // Queue mode. The next event; nullptr when `deadline` passes first.
    const xllm_event *next(const Deadline &deadline);
    // The next event if there is one now, else nullptr.
    const xllm_event *poll();
    // Whether it has ended, once it has or `deadline` passes.
    bool wait(const Deadline &deadline);
    // After the end.
    Outcome outcome() const;
    xllm_response *make_response(const std::string &model) const;
    // After the end of a request for vectors; once.
    Vectors release_vectors();
    // After the end of a search; once.
    Paths release_paths();
    Usage usage() const;
    bool has_callback() const { return mode_ == Mode::kCallback; }

private:
    const xllm_event *take_event();
    bool call_back(Event &event);

    const std::uint64_t id_;
    const Mode mode_;
    const xllm_on_event on_event_;
    void *const user_data_;
    const Deadline deadline_;
    std::atomic<bool> is_muted_{false};
    std::atomic<bool> is_detached_{false};
    std::mutex callback_mutex_;  // held while the callback runs

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    bool is_finished_ = false;
    Outcome outcome_;
    Answer answer_;
    Vectors vectors_;
    Paths paths_;
    std::deque<Event> events_;
    Event taken_;  // what next() returned last
};

}  // namespace libxllm

#include "request.hpp"

#include <utility>

namespace libxllm {

Deadline deadline_after(std::uint32_t timeout_ms) {
    if (timeout_ms == 0) return std::nullopt;
    return Clock::now() + std::chrono::milliseconds(timeout_ms);
}

namespace {

// Wait on `changed` until `is_done()` or the deadline; returns is_done().
template <typename Predicate>
bool wait_until(std::condition_variable &changed, std::unique_lock<std::mutex> &lock, const Deadline &deadline,
                Predicate is_done) {
    if (deadline) return changed.wait_until(lock, *deadline, is_done);
    changed.wait(lock, is_done);
    return true;
}

}  // namespace

Request::Request(std::uint64_t id, std::string request_id, Mode mode, xllm_on_event on_event, void *user_data,
                 Deadline deadline)
    : id_(id), mode_(mode), on_event_(on_event), user_data_(user_data), deadline_(deadline) {
    answer_.request_id = std::move(request_id);
}

bool Request::deliver(Event &event) {
    if (is_muted()) return true;
    {
        const std::lock_guard lock(mutex_);
        if (is_finished_) return true;
        answer_.append(event.delta);
        if (mode_ == Mode::kQueue) {
            events_.push_back(std::move(event));
            event = Event();
        }
    }
    if (mode_ == Mode::kQueue) changed_.notify_all();
    return mode_ != Mode::kCallback || call_back(event);
}

bool Request::call_back(Event &event) {
    const std::lock_guard lock(callback_mutex_);
    return is_detached_ || on_event_(event.view(), user_data_) == 0;
}

void Request::take_vectors(Vectors vectors) {
    const std::lock_guard lock(mutex_);
    vectors_ = std::move(vectors);
}

void Request::take_paths(Paths paths) {
    const std::lock_guard lock(mutex_);
    paths_ = std::move(paths);
}

void Request::finish(Outcome outcome, Usage usage) {
    Event last;
    last.kind = XLLM_EVENT_FINISHED;
    last.outcome = outcome;
    last.usage = usage;
    {
        const std::lock_guard lock(mutex_);
        if (is_finished_) return;
        answer_.usage = usage;
        outcome_ = std::move(outcome);
        // A waiter of a callback request is woken after the callback has seen the end.
        if (mode_ != Mode::kCallback) is_finished_ = true;
        if (mode_ == Mode::kQueue) events_.push_back(std::move(last));
    }
    if (mode_ == Mode::kCallback) {
        call_back(last);
        const std::lock_guard lock(mutex_);
        is_finished_ = true;
    }
    changed_.notify_all();
}

void Request::detach(bool is_inside_callback) {
    is_detached_ = true;
    if (!is_inside_callback) const std::lock_guard wait_for_callback(callback_mutex_);
}

const xllm_event *Request::take_event() {
    // The last event stays, to be returned again.
    if (events_.size() == 1 && events_.front().kind == XLLM_EVENT_FINISHED) return events_.front().view();
    taken_ = std::move(events_.front());
    events_.pop_front();
    return taken_.view();
}

const xllm_event *Request::next(const Deadline &deadline) {
    std::unique_lock lock(mutex_);
    return wait_until(changed_, lock, deadline, [&] { return !events_.empty(); }) ? take_event() : nullptr;
}

const xllm_event *Request::poll() {
    const std::lock_guard lock(mutex_);
    return events_.empty() ? nullptr : take_event();
}

bool Request::wait(const Deadline &deadline) {
    std::unique_lock lock(mutex_);
    return wait_until(changed_, lock, deadline, [&] { return is_finished_; });
}

Outcome Request::outcome() const {
    const std::lock_guard lock(mutex_);
    return outcome_;
}

Vectors Request::release_vectors() {
    const std::lock_guard lock(mutex_);
    return std::move(vectors_);
}

Paths Request::release_paths() {
    const std::lock_guard lock(mutex_);
    return std::move(paths_);
}

Usage Request::usage() const {
    const std::lock_guard lock(mutex_);
    return answer_.usage;
}

xllm_response *Request::make_response(const std::string &model) const {
    const std::lock_guard lock(mutex_);
    return answer_.to_response(model);
}

}  // namespace libxllm

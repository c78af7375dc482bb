// The part of Engine that runs on the engine's own thread.
#include <poll.h>

#include <algorithm>

#include "engine.hpp"

namespace libxllm {

namespace {

// How long a process that was asked to end may take until it is killed, and how long its exit status may take to
// appear after its connection broke.
constexpr int kStopTimeoutMs = 3000;
constexpr int kExitStatusTimeoutMs = 300;

}  // namespace

void Engine::connect() {
    if (source_.address.empty()) {
        const char *log_path = source_.log_path ? source_.log_path->c_str() : nullptr;
        channel_.open(process_.start(source_.python, log_path));
    } else {
        channel_.open(Channel::connect_to(source_.address));
    }
    channel_.send(source_.start_frame);
}

Outcome Engine::serve() {
    for (;;) {
        const short socket_events = channel_.has_backlog() ? POLLIN | POLLOUT : POLLIN;
        pollfd waits[] = {{wake_.number(), POLLIN, 0},
                          {channel_.descriptor(), socket_events, 0},
                          {process_.end_descriptor(), POLLIN, 0},
                          {process_.log_descriptor(), POLLIN, 0}};
        ::poll(waits, std::size(waits), milliseconds_to_next_deadline());
        const auto &[woken, socket, process_end, log] = waits;
        if (woken.revents != 0) {
            std::uint64_t count = 0;
            [[maybe_unused]] const ssize_t size = ::read(wake_.number(), &count, sizeof count);
        }
        if (is_stopping_) return {XLLM_ERROR_CANCELLED, "The engine handle was destroyed."};
        if (log.revents != 0) process_.read_log();
        if ((socket.revents & POLLOUT) != 0) channel_.flush();
        // What a process has sent before its end still counts.
        const bool has_ended = process_end.revents != 0;
        if ((socket.revents & ~POLLOUT) != 0 && read_messages() == Channel::Received::kEnd) return describe_end();
        if (has_ended) {
            while (read_messages() == Channel::Received::kBytes) continue;
            return describe_end();
        }
        handle_cancels();
        expire_requests();
    }
}

int Engine::milliseconds_to_next_deadline() {
    const std::lock_guard lock(mutex_);
    if (deadlines_.empty()) return -1;
    const auto left = deadlines_.begin()->first - Clock::now();
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    return static_cast<int>(std::clamp<std::int64_t>(milliseconds, 0, 3'600'000));
}

// Handle one buffer of what has arrived; kEnd when nothing more will come.
Channel::Received Engine::read_messages() {
    const Channel::Received received = channel_.receive();
    std::string_view frame;
    while (channel_.next_frame(frame)) reader_.read(frame, *this);
    return failure_ ? Channel::Received::kEnd : received;
}

void Engine::handle_cancels() {
    std::vector<std::uint64_t> ids;
    {
        const std::lock_guard lock(mutex_);
        ids.swap(cancels_);
    }
    end_requests(ids, {XLLM_ERROR_CANCELLED, "The request was cancelled."});
}

void Engine::expire_requests() {
    std::vector<std::uint64_t> ids;
    {
        const std::lock_guard lock(mutex_);
        const auto now = Clock::now();
        for (const auto &[deadline, id] : deadlines_) {
            if (deadline > now) break;
            ids.push_back(id);
        }
    }
    end_requests(ids, {XLLM_ERROR_TIMEOUT, "The request did not end within its timeout_ms and was cancelled."});
}

void Engine::end_requests(const std::vector<std::uint64_t> &ids, const Outcome &outcome) {
    if (ids.empty()) return;
    channel_.send(encode_cancel(ids));
    for (const std::uint64_t id : ids) {
        if (const auto request = take(id)) request->finish(outcome, {});
    }
}

Outcome Engine::describe_end() {
    const xllm_status status = was_ready_ ? XLLM_ERROR_ENGINE_DEAD : XLLM_ERROR_ENGINE_START;
    if (failure_) return {was_ready_ ? status : failure_->status, failure_->message};
    if (!process_.is_started()) {
        return {status, "The engine at " + source_.address + " has closed the connection."};
    }
    if (!process_.wait(kExitStatusTimeoutMs)) {
        process_.kill();
        return {status, "The engine process has closed its connection without ending, and was killed."};
    }
    if (process_.log_descriptor() >= 0) process_.read_log();
    return {status, process_.describe_end()};
}

// The state becomes ended first, so that no request enters the table after it was emptied.
void Engine::end(Outcome outcome) {
    std::unordered_map<std::uint64_t, std::shared_ptr<Request>> requests;
    {
        const std::lock_guard lock(mutex_);
        end_ = outcome;
        state_ = State::kEnded;
        requests.swap(requests_);
        deadlines_.clear();
        cancels_.clear();
    }
    for (const auto &[id, request] : requests) {
        const bool was_cancelled = request->is_muted();
        request->finish(was_cancelled ? Outcome{XLLM_ERROR_CANCELLED, "The request was cancelled."} : outcome, {});
    }
    changed_.notify_all();
    end_process();
}

void Engine::end_process() {
    const bool may_end_itself = was_ready_ && !failure_;
    if (may_end_itself && process_.is_started()) channel_.send(encode_shutdown());
    channel_.shut_down();
    if (!process_.is_started() || (may_end_itself && process_.wait(kStopTimeoutMs))) return;
    process_.kill();
    process_.wait(kStopTimeoutMs);
}

std::shared_ptr<Request> Engine::find(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto place = requests_.find(id);
    return place == requests_.end() ? nullptr : place->second;
}

std::shared_ptr<Request> Engine::take(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto place = requests_.find(id);
    if (place == requests_.end()) return nullptr;
    std::shared_ptr<Request> request = std::move(place->second);
    requests_.erase(place);
    if (request->deadline()) deadlines_.erase({*request->deadline(), id});
    return request;
}

void Engine::on_ready(Ready ready) {
    if (ready.protocol_version != kProtocolVersion) {
        throw Failure(XLLM_ERROR_ENGINE_START,
                      "The engine speaks protocol version " + std::to_string(ready.protocol_version) +
                          ", this library " + std::to_string(kProtocolVersion) +
                          ": both must come from the same xllm-capi package.");
    }
    ready_ = std::move(ready);
    was_ready_ = true;
    info_ = {ready_.model.c_str(), ready_.model_impl.c_str(), ready_.device.c_str(), ready_.dtype.c_str(),
             ready_.max_model_len, ready_.vocab_size, ready_.num_blocks, ready_.block_size, ready_.process_id};
    {
        const std::lock_guard lock(mutex_);
        state_ = State::kReady;
    }
    changed_.notify_all();
}

void Engine::on_failed(Outcome outcome) { failure_ = std::move(outcome); }

void Engine::on_delta(std::uint64_t id, Event &event) {
    const auto request = find(id);
    if (request != nullptr && !request->deliver(event)) cancel(*request);
}

void Engine::on_finished(std::uint64_t id, Outcome outcome, Usage usage) {
    // The first request to hear of it: the whole engine has ended, and the handle says so before any caller returns.
    if (outcome.status == XLLM_ERROR_ENGINE_DEAD) throw Failure(outcome.status, outcome.message);
    const auto request = take(id);
    if (request == nullptr) return;
    if (request->is_muted()) outcome = {XLLM_ERROR_CANCELLED, "The request was cancelled."};
    request->finish(std::move(outcome), usage);
}

void Engine::on_vectors(std::uint64_t id, Outcome outcome, Usage usage, Vectors vectors) {
    if (const auto request = find(id)) request->take_vectors(std::move(vectors));
    on_finished(id, std::move(outcome), usage);
}

void Engine::on_paths(std::uint64_t id, Outcome outcome, Usage usage, Paths paths) {
    if (const auto request = find(id)) request->take_paths(std::move(paths));
    on_finished(id, std::move(outcome), usage);
}

void Engine::on_stats(std::uint64_t id, const xllm_metrics &metrics) {
    {
        const std::lock_guard lock(mutex_);
        const auto call = stats_calls_.find(id);
        if (call == stats_calls_.end()) return;
        call->second = {true, metrics};
    }
    changed_.notify_all();
}

}  // namespace libxllm

#include "engine.hpp"

#include <sys/eventfd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <random>

namespace libxllm {

namespace {

thread_local const Engine *own_engine = nullptr;

std::string random_prefix() {
    std::random_device source;
    char text[24];
    std::snprintf(text, sizeof text, "xllm-%08x-", static_cast<unsigned>(source()));
    return text;
}

// Blocks this thread's signals, except those that faults and profilers raise, while it lives: a thread started
// meanwhile inherits that, and the host's handlers never run on it.
class BlockedSignals {
public:
    BlockedSignals() {
        sigset_t blocked;
        sigfillset(&blocked);
        for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF}) sigdelset(&blocked, signal);
        ::pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    BlockedSignals(const BlockedSignals &) = delete;
    BlockedSignals &operator=(const BlockedSignals &) = delete;
    ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

}  // namespace

std::shared_ptr<Engine> Engine::open(EngineSource source, const Deadline &deadline) {
    auto engine = std::make_shared<Engine>(std::move(source));
    engine->launch_thread();
    Outcome outcome;
    {
        std::unique_lock lock(engine->mutex_);
        const auto has_started = [&] { return engine->state_ != State::kStarting; };
        if (!deadline) {
            engine->changed_.wait(lock, has_started);
        } else if (!engine->changed_.wait_until(lock, *deadline, has_started)) {
            outcome = {XLLM_ERROR_TIMEOUT, "The engine was not ready in time; give it a longer timeout."};
        }
        if (engine->state_ == State::kEnded) outcome = engine->end_;
    }
    if (outcome.status != XLLM_OK) {
        engine->stop();
        throw Failure(outcome.status, outcome.message);
    }
    return engine;
}

Engine::Engine(EngineSource source)
    : source_(std::move(source)),
      host_pid_(::getpid()),
      request_id_prefix_(random_prefix()),
      wake_(Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)).above_standard()) {
    if (!wake_) throw Failure(XLLM_ERROR_ENGINE_START, "No event descriptor can be made: " + describe_errno(errno) + ".");
}

void Engine::launch_thread() {
    const BlockedSignals blocked;
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "xllm-engine");
}

void Engine::wake() {
    const std::uint64_t one = 1;
    // Only fails when the counter is full, and then the thread is awake already.
    [[maybe_unused]] const ssize_t size = ::write(wake_.number(), &one, sizeof one);
}

bool Engine::is_own_thread() const { return own_engine == this; }

void Engine::run() {
    own_engine = this;
    Outcome outcome;
    try {
        connect();
        outcome = serve();
    } catch (const Failure &failure) {
        outcome = {failure.status(), failure.message()};
    } catch (const std::bad_alloc &) {
        outcome = {XLLM_ERROR_OUT_OF_MEMORY, "Out of memory in the engine's thread."};
    } catch (const std::exception &error) {
        outcome = {XLLM_ERROR_INTERNAL, error.what()};
    }
    end(std::move(outcome));
}

void Engine::check_process() const {
    if (::getpid() != host_pid_) {
        throw Failure(XLLM_ERROR_WRONG_STATE, "Handles do not survive fork(): create the engine in the child instead.");
    }
}

void Engine::check_may_wait() const {
    if (is_own_thread()) {
        throw Failure(XLLM_ERROR_WRONG_STATE, "A callback must not make a blocking call on its own engine.");
    }
}

std::shared_ptr<Request> Engine::start(const Input &input, const xllm_request_options &options, Request::Mode mode,
                                       xllm_on_event on_event, void *user_data) {
    return enter(options.request_id, options.timeout_ms, mode, on_event, user_data,
                 [&](std::uint64_t id) { return encode_generate(id, input, options); });
}

std::shared_ptr<Request> Engine::start(const PoolingInput &input, const xllm_pooling_options &options) {
    return enter(options.request_id, options.timeout_ms, Request::Mode::kWait, nullptr, nullptr,
                 [&](std::uint64_t id) { return encode_pool(id, input, options); });
}

std::shared_ptr<Request> Engine::start(const Input &input, const xllm_recommend_options &options) {
    return enter(options.request_id, options.timeout_ms, Request::Mode::kWait, nullptr, nullptr,
                 [&](std::uint64_t id) { return encode_search(id, input, options); });
}

template <typename Encode>
std::shared_ptr<Request> Engine::enter(const char *given, std::uint32_t timeout_ms, Request::Mode mode,
                                       xllm_on_event on_event, void *user_data, Encode &&encode) {
    const std::uint64_t id = next_id_++;
    const bool has_name = given != nullptr && *given != '\0';
    std::string name = has_name ? given : request_id_prefix_ + std::to_string(id);
    const auto request =
        std::make_shared<Request>(id, std::move(name), mode, on_event, user_data, deadline_after(timeout_ms));
    const std::string frame = encode(id);
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::kEnded) throw Failure(end_.status, end_.message);
        requests_.emplace(id, request);
    }
    bool must_wake = channel_.send(frame);
    if (request->deadline()) {
        // Only now: a deadline that passed before would send the cancel ahead of the request.
        const std::lock_guard lock(mutex_);
        if (requests_.contains(id)) {
            const auto entry = deadlines_.emplace(*request->deadline(), id).first;
            must_wake |= entry == deadlines_.begin();
        }
    }
    if (must_wake && !is_own_thread()) wake();
    return request;
}

void Engine::cancel(Request &request) {
    {
        const std::lock_guard lock(mutex_);
        if (!requests_.contains(request.id())) return;
        request.mute();
        cancels_.push_back(request.id());
    }
    wake();
}

xllm_metrics Engine::metrics(const Deadline &deadline) {
    const std::uint64_t id = next_id_++;
    std::unique_lock lock(mutex_);
    if (state_ == State::kEnded) throw Failure(end_.status, end_.message);
    StatsCall &call = stats_calls_[id];
    lock.unlock();
    if (channel_.send(encode_stats(id))) wake();
    lock.lock();
    const auto is_over = [&] { return call.is_done || state_ == State::kEnded; };
    if (!deadline) {
        changed_.wait(lock, is_over);
    } else {
        changed_.wait_until(lock, *deadline, is_over);
    }
    const StatsCall result = call;
    stats_calls_.erase(id);
    if (result.is_done) return result.metrics;
    if (state_ == State::kEnded) throw Failure(end_.status, end_.message);
    throw Failure(XLLM_ERROR_TIMEOUT, "The engine has not sent its metrics in time.");
}

Outcome Engine::health() {
    const std::lock_guard lock(mutex_);
    return state_ == State::kEnded ? end_ : Outcome{};
}

void Engine::stop() {
    is_stopping_ = true;
    wake();
    thread_.join();
}

}  // namespace libxllm

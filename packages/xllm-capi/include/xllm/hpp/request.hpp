// Part of xllm.hpp: running requests and their callbacks.
// SPDX-License-Identifier: Apache-2.0
#ifndef XLLM_HPP_REQUEST_HPP_
#define XLLM_HPP_REQUEST_HPP_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "xllm/hpp/answer.hpp"
#include "xllm/hpp/options.hpp"
#include "xllm/hpp/status.hpp"
#include "xllm/xllm.h"

namespace xllm {

namespace detail {

struct DestroyRequest {
    void operator()(xllm_request *request) const { xllm_request_destroy(request); }
};

}  // namespace detail

// Runs on the engine's thread; false cancels the request. An exception cancels it too, and Request::wait() throws it.
using OnEvent = std::function<bool(const Event &)>;

// A running or ended request. Destroying it cancels it; a request with a callback must not be destroyed inside it.
class Request {
public:
    Request() = default;

    explicit operator bool() const noexcept { return c_ != nullptr; }
    xllm_request *c() const { return c_.get(); }
    std::string id() const { return xllm_request_get_id(c_.get()); }
    void cancel() { xllm_request_cancel(c_.get()); }

    // The next event of a request without callback; nothing when `timeout` (0: none) passes first.
    std::optional<Event> next(Status &status, Milliseconds timeout = Milliseconds{0}) {
        const xllm_event *event = nullptr;
        const xllm_status code = xllm_request_next(c_.get(), detail::to_milliseconds(timeout), &event);
        status = code == XLLM_ERROR_TIMEOUT ? Status{} : detail::status_of(code);
        return event == nullptr ? std::nullopt : std::optional<Event>(Event(event));
    }
    // The next event if there is one now.
    std::optional<Event> poll(Status &status) {
        const xllm_event *event = nullptr;
        status = detail::status_of(xllm_request_poll(c_.get(), &event));
        return event == nullptr ? std::nullopt : std::optional<Event>(Event(event));
    }
    // The whole answer, or the request's own status.
    Response wait(Status &status, Milliseconds timeout = Milliseconds{0}) {
        xllm_response *response = nullptr;
        status = detail::status_of(xllm_request_wait(c_.get(), detail::to_milliseconds(timeout), &response));
        return Response(response);
    }

#if XLLM_HAS_EXCEPTIONS
    std::optional<Event> next(Milliseconds timeout = Milliseconds{0}) {
        return detail::checked([&](Status &status) { return next(status, timeout); });
    }
    std::optional<Event> poll() {
        return detail::checked([&](Status &status) { return poll(status); });
    }
    Response wait(Milliseconds timeout = Milliseconds{0}) {
        Status status;
        Response response = wait(status, timeout);
        if (callback_ != nullptr && callback_->error != nullptr) std::rethrow_exception(callback_->error);
        detail::check(status);
        return response;
    }
#endif

private:
    friend class Engine;

    struct Callback {
        OnEvent on_event;
#if XLLM_HAS_EXCEPTIONS
        std::exception_ptr error;
#endif
    };

    static int call_back(const xllm_event *event, void *user_data) {
        auto *callback = static_cast<Callback *>(user_data);
#if XLLM_HAS_EXCEPTIONS
        if (callback->error != nullptr) return 1;
        try {
            return callback->on_event(Event(event)) ? 0 : 1;
        } catch (...) {
            callback->error = std::current_exception();
            return 1;
        }
#else
        return callback->on_event(Event(event)) ? 0 : 1;
#endif
    }

    // In this order: the handle goes first, and waits for the callback.
    std::unique_ptr<Callback> callback_;
    std::unique_ptr<xllm_request, detail::DestroyRequest> c_;
};

}  // namespace xllm

#endif  // XLLM_HPP_REQUEST_HPP_

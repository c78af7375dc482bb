// How errors travel inside the library: as exceptions up to the C boundary, where they become a status and a message.
// Knows nothing of engines or of what the messages are about.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "xllm/xllm.h"

namespace libxllm {

// A status that is not XLLM_OK, and one sentence that a user can act on.
class Failure : public std::exception {
public:
    Failure(xllm_status status, std::string message) : status_(status), message_(std::move(message)) {}
    const char *what() const noexcept override { return message_.c_str(); }
    xllm_status status() const noexcept { return status_; }
    const std::string &message() const noexcept { return message_; }

private:
    xllm_status status_;
    std::string message_;
};

// A status with its message, for places that keep an error instead of throwing it.
struct Outcome {
    xllm_status status = XLLM_OK;
    std::string message;
};

// The text behind xllm_last_error() of this thread.
void set_last_error(std::string_view message) noexcept;
const char *last_error() noexcept;

// "No such file or directory" for an errno value.
std::string describe_errno(int number);

// Throw Failure(XLLM_ERROR_INVALID_ARGUMENT, message) unless `condition` holds.
inline void require(bool condition, const char *message) {
    if (!condition) throw Failure(XLLM_ERROR_INVALID_ARGUMENT, message);
}

// Run `body`, and turn whatever it throws into a status; the only way from C into this library.
template <typename Body>
xllm_status guarded(Body &&body) noexcept {
    try {
        body();
        return XLLM_OK;
    } catch (const Failure &failure) {
        set_last_error(failure.message());
        return failure.status();
    } catch (const std::bad_alloc &) {
        set_last_error("Out of memory.");
        return XLLM_ERROR_OUT_OF_MEMORY;
    } catch (const std::exception &error) {
        set_last_error(error.what());
        return XLLM_ERROR_INTERNAL;
    }
}

}  // namespace libxllm

// Part of xllm.hpp: how calls end, as values and as exceptions.
// SPDX-License-Identifier: Apache-2.0
#ifndef XLLM_HPP_STATUS_HPP_
#define XLLM_HPP_STATUS_HPP_

#include <string>
#include <utility>

#include "xllm/xllm.h"

#if defined(__cpp_exceptions)
#define XLLM_HAS_EXCEPTIONS 1
#include <exception>
#include <stdexcept>
#else
#define XLLM_HAS_EXCEPTIONS 0
#endif

namespace xllm {

// The outcome of a call: a number of xllm.h, and one sentence when it is not XLLM_OK.
struct Status {
    xllm_status code = XLLM_OK;
    std::string message;

    bool ok() const noexcept { return code == XLLM_OK; }
};

#if XLLM_HAS_EXCEPTIONS
// A call that failed; what() is the message.
class Error : public std::runtime_error {
public:
    explicit Error(const Status &status) : std::runtime_error(status.message), code_(status.code) {}
    xllm_status code() const noexcept { return code_; }

private:
    xllm_status code_;
};
#endif

namespace detail {

inline Status status_of(xllm_status code) {
    return code == XLLM_OK ? Status{} : Status{code, xllm_last_error()};
}

#if XLLM_HAS_EXCEPTIONS
inline void check(const Status &status) {
    if (!status.ok()) throw Error(status);
}

// What `call(status)` returns, or xllm::Error.
template <typename Call>
auto checked(Call &&call) {
    Status status;
    auto result = call(status);
    check(status);
    return result;
}
#endif

}  // namespace detail

}  // namespace xllm

#endif  // XLLM_HPP_STATUS_HPP_

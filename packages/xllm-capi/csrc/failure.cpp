#include "failure.hpp"

#include <system_error>

namespace libxllm {

namespace {

thread_local std::string last_message;

}  // namespace

void set_last_error(std::string_view message) noexcept {
    try {
        last_message.assign(message);
    } catch (const std::bad_alloc &) {
        last_message.clear();
    }
}

const char *last_error() noexcept { return last_message.c_str(); }

std::string describe_errno(int number) { return std::generic_category().message(number); }

}  // namespace libxllm

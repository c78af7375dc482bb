// Owned file descriptors. Knows nothing of what they are used for.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace libxllm {

// Closes its descriptor; -1 is none.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor &&other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor &operator=(Descriptor &&other) noexcept {
        if (this != &other) {
            reset();
            number_ = std::exchange(other.number_, -1);
        }
        return *this;
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    ~Descriptor() { reset(); }

    int number() const { return number_; }
    explicit operator bool() const { return number_ >= 0; }
    void reset() {
        if (number_ >= 0) ::close(number_);
        number_ = -1;
    }

    // The same file under a number that no redirection of a child's standard streams can hit, even when the host has
    // closed its own 0, 1 or 2.
    Descriptor above_standard() && {
        constexpr int kFirst = 10;
        if (number_ < 0 || number_ >= kFirst) return std::move(*this);
        Descriptor moved(::fcntl(number_, F_DUPFD_CLOEXEC, kFirst));
        if (!moved) return std::move(*this);
        reset();
        return moved;
    }

private:
    int number_ = -1;
};

}  // namespace libxllm

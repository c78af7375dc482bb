#include "channel.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "failure.hpp"
#include "protocol.hpp"

namespace libxllm {

namespace {

constexpr std::size_t kMinReceiveSize = std::size_t{64} << 10;

}  // namespace

Descriptor Channel::connect_to(const std::string &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        throw Failure(XLLM_ERROR_INVALID_ARGUMENT, "The socket path must have 1 to 107 bytes: '" + path + "'.");
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket) throw Failure(XLLM_ERROR_ENGINE_START, "No socket can be made: " + describe_errno(errno) + ".");
    if (::connect(socket.number(), reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0) {
        throw Failure(XLLM_ERROR_ENGINE_START, "No engine answers at " + path + ": " + describe_errno(errno) + ".");
    }
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) {
        throw Failure(XLLM_ERROR_ENGINE_START, "The engine at " + path + " belongs to another user.");
    }
    return std::move(socket).above_standard();
}

std::size_t Channel::send_some(std::string_view bytes) {
    std::size_t num_sent = 0;
    while (num_sent < bytes.size()) {
        const ssize_t result = ::send(socket_.number(), bytes.data() + num_sent, bytes.size() - num_sent,
                                      MSG_NOSIGNAL | MSG_DONTWAIT);
        if (result > 0) {
            num_sent += static_cast<std::size_t>(result);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            break;
        } else if (errno != EINTR) {
            return bytes.size();  // Nobody will read it; the receiving side sees the end of the stream.
        }
    }
    return num_sent;
}

bool Channel::send(std::string_view frame) {
    const std::lock_guard lock(send_mutex_);
    if (!backlog_.empty()) {
        backlog_.append(frame);
        return false;  // The receiver's thread waits for room already.
    }
    const std::size_t num_sent = send_some(frame);
    backlog_.append(frame.substr(num_sent));
    return !backlog_.empty();
}

bool Channel::flush() {
    const std::lock_guard lock(send_mutex_);
    backlog_.erase(0, send_some(backlog_));
    return !backlog_.empty();
}

bool Channel::has_backlog() {
    const std::lock_guard lock(send_mutex_);
    return !backlog_.empty();
}

Channel::Received Channel::receive() {
    if (buffer_begin_ > 0) {
        std::memmove(buffer_.data(), buffer_.data() + buffer_begin_, buffer_end_ - buffer_begin_);
        buffer_end_ -= buffer_begin_;
        buffer_begin_ = 0;
    }
    if (buffer_.size() - buffer_end_ < kMinReceiveSize) {
        buffer_.resize(std::max(2 * buffer_.size(), buffer_end_ + kMinReceiveSize));
    }
    for (;;) {
        const ssize_t result = ::recv(socket_.number(), buffer_.data() + buffer_end_, buffer_.size() - buffer_end_,
                                      MSG_DONTWAIT);
        if (result > 0) {
            buffer_end_ += static_cast<std::size_t>(result);
            return Received::kBytes;
        }
        if (result == 0) return Received::kEnd;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return Received::kNothing;
        if (errno != EINTR) return Received::kEnd;
    }
}

bool Channel::next_frame(std::string_view &frame) {
    const std::size_t available = buffer_end_ - buffer_begin_;
    if (available < kFrameHeaderSize) return false;
    std::size_t size = 0;
    for (std::size_t i = kFrameHeaderSize; i-- > 0;) {
        size = size << 8 | static_cast<unsigned char>(buffer_[buffer_begin_ + i]);
    }
    if (size > kMaxFrameSize) throw MalformedMessage();
    if (available - kFrameHeaderSize < size) return false;
    frame = std::string_view(buffer_).substr(buffer_begin_ + kFrameHeaderSize, size);
    buffer_begin_ += kFrameHeaderSize + size;
    return true;
}

void Channel::shut_down() {
    if (socket_) ::shutdown(socket_.number(), SHUT_RDWR);
}

}  // namespace libxllm

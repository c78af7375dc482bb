// A Unix stream socket that carries length-prefixed frames both ways and never blocks a sender.
// Knows nothing of what is in the frames.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "descriptor.hpp"

namespace libxllm {

class Channel {
public:
    Channel() = default;

    // Connect to the Unix socket at `path`, which must belong to a process of the same user. Throws Failure.
    static Descriptor connect_to(const std::string &path);

    int descriptor() const { return socket_.number(); }
    void open(Descriptor socket) { socket_ = std::move(socket); }

    // Send a frame, or keep what the socket does not take now. Returns true if the receiver's thread must call flush()
    // when the socket becomes writable. A broken connection is no error here: receive() reports it. Any thread.
    bool send(std::string_view frame);
    // Send what was kept; true if some is still left.
    bool flush();
    bool has_backlog();

    enum class Received { kNothing, kBytes, kEnd };
    // Read what has arrived into the buffer. One thread only, as for next_frame().
    Received receive();
    // The next whole frame without its header, valid until the next receive(); false if there is none yet.
    // Throws MalformedMessage for a length beyond the limit.
    bool next_frame(std::string_view &frame);

    // End both directions, also for copies of the socket that a forked process may hold.
    void shut_down();

private:
    std::size_t send_some(std::string_view bytes);

    Descriptor socket_;
    std::mutex send_mutex_;
    std::string backlog_;
    std::string buffer_;
    std::size_t buffer_begin_ = 0;
    std::size_t buffer_end_ = 0;
};

}  // namespace libxllm

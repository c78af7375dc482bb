// The engine process: its start, its log, its end. Knows nothing of the messages that it exchanges.
#pragma once

#include <sys/types.h>

#include <string>

#include "descriptor.hpp"

namespace libxllm {

// One child process that runs `python -m xllm_capi.engine` on one end of a socket pair.
//
// To be started by a thread that lives as long as the handle: the child asks the kernel to be killed when the thread
// that started it ends, and so cannot outlive the host however that ends.
class EngineProcess {
public:
    EngineProcess() = default;
    EngineProcess(const EngineProcess &) = delete;
    EngineProcess &operator=(const EngineProcess &) = delete;
    // Kills the process if it still runs.
    ~EngineProcess();

    // Start it and return the host's end of the socket. `log_path` as in xllm_engine_options. Throws Failure.
    Descriptor start(const std::string &python, const char *log_path);

    bool is_started() const { return pid_ > 0; }
    // For poll(): readable once the process has ended; -1 where the kernel has no such thing.
    int end_descriptor() const { return pidfd_.number(); }
    // For poll(): readable when there is log text to take; -1 if it goes elsewhere.
    int log_descriptor() const { return log_.number(); }
    // Read the log that has come and remember its last part.
    void read_log();

    // Wait until the process has ended, `timeout_ms` at most; whether it has.
    bool wait(int timeout_ms);
    void kill();
    // One sentence on how it ended, with its last log lines when there are any. After wait().
    std::string describe_end() const;

private:
    pid_t pid_ = -1;
    bool has_ended_ = false;
    bool is_exit_known_ = false;
    int exit_status_ = 0;
    std::string python_;
    std::string log_path_;
    std::string log_tail_;
    Descriptor pidfd_;
    Descriptor log_;
};

}  // namespace libxllm

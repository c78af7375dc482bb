#include "process.hpp"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

#include "failure.hpp"

extern char **environ;

namespace libxllm {

namespace {

constexpr int kSocketInChild = 3;
constexpr std::size_t kMaxLogTail = std::size_t{4} << 10;

[[noreturn]] void fail_to_start(const std::string &what, int number) {
    throw Failure(XLLM_ERROR_ENGINE_START, what + ": " + describe_errno(number) + ".");
}

// The host's environment without what would mislead another interpreter than the host's own.
std::vector<char *> engine_environment() {
    std::vector<char *> kept;
    for (char **entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text(*entry);
        const bool is_misleading = text.starts_with("PYTHONHOME=") || text.starts_with("PYTHONEXECUTABLE=") ||
                                   text.starts_with("__PYVENV_LAUNCHER__=");
        if (!is_misleading) kept.push_back(*entry);
    }
    kept.push_back(nullptr);
    return kept;
}

// Where the child's output goes: a pipe whose reading end is `log`, the host's standard error, or a file.
Descriptor open_log(const char *log_path, Descriptor &log) {
    if (log_path == nullptr) {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) fail_to_start("No pipe can be made", errno);
        log = Descriptor(ends[0]);
        Descriptor writing_end(ends[1]);
        ::fcntl(log.number(), F_SETFL, O_NONBLOCK);
        return std::move(writing_end).above_standard();
    }
    Descriptor file;
    if (std::strcmp(log_path, "-") == 0) {
        file = Descriptor(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10));
        if (!file) file = Descriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    } else {
        file = Descriptor(::open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
        if (!file) fail_to_start(std::string("The log file ") + log_path + " cannot be opened", errno);
    }
    return std::move(file).above_standard();
}

// The attributes of posix_spawn(), with their destruction.
struct SpawnSettings {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;

    // Standard input is empty, both outputs go to `output`, descriptor 3 is `socket`. The child has its own process
    // group, so that Ctrl-C in a terminal reaches only the host, and takes no signal mask or handler over.
    SpawnSettings(int output, int socket) {
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
        posix_spawn_file_actions_adddup2(&actions, socket, kSocketInChild);
        posix_spawnattr_init(&attributes);
        sigset_t signals;
        sigemptyset(&signals);
        posix_spawnattr_setsigmask(&attributes, &signals);
        sigfillset(&signals);
        posix_spawnattr_setsigdefault(&attributes, &signals);
        posix_spawnattr_setpgroup(&attributes, 0);
        posix_spawnattr_setflags(&attributes,
                                 POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    }
    SpawnSettings(const SpawnSettings &) = delete;
    SpawnSettings &operator=(const SpawnSettings &) = delete;
    ~SpawnSettings() {
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
    }
};

int open_pidfd(pid_t pid) {
#ifdef SYS_pidfd_open
    return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
#else
    (void)pid;
    return -1;
#endif
}

}  // namespace

EngineProcess::~EngineProcess() {
    if (is_started() && !has_ended_) {
        kill();
        wait(1000);
    }
}

Descriptor EngineProcess::start(const std::string &python, const char *log_path) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        fail_to_start("No socket pair can be made", errno);
    }
    Descriptor host_end(ends[0]);
    Descriptor engine_end(ends[1]);
    host_end = std::move(host_end).above_standard();
    engine_end = std::move(engine_end).above_standard();
    const Descriptor output = open_log(log_path, log_);
    log_ = std::move(log_).above_standard();

    python_ = python;
    log_path_ = log_path == nullptr ? "" : log_path;
    std::string host_pid = std::to_string(::getpid());
    // -P keeps the host's working directory from shadowing modules.
    const char *arguments[] = {python_.c_str(), "-P", "-m", "xllm_capi.engine", "--fd", "3",
                               "--host-pid",    host_pid.c_str(), nullptr};
    const std::vector<char *> environment = engine_environment();
    const SpawnSettings settings(output.number(), engine_end.number());
    const int result = ::posix_spawnp(&pid_, python_.c_str(), &settings.actions, &settings.attributes,
                                      const_cast<char **>(arguments), environment.data());
    if (result != 0) {
        pid_ = -1;
        fail_to_start("The Python interpreter '" + python + "' cannot be run", result);
    }
    pidfd_ = Descriptor(open_pidfd(pid_));
    return host_end;
}

void EngineProcess::read_log() {
    char chunk[4096];
    for (;;) {
        const ssize_t size = ::read(log_.number(), chunk, sizeof chunk);
        if (size > 0) {
            log_tail_.append(chunk, static_cast<std::size_t>(size));
            if (log_tail_.size() > 2 * kMaxLogTail) log_tail_.erase(0, log_tail_.size() - kMaxLogTail);
            continue;
        }
        if (size == 0) log_.reset();  // Closed by the child: poll() would report it for ever.
        return;
    }
}

bool EngineProcess::wait(int timeout_ms) {
    if (!is_started() || has_ended_) return true;
    if (pidfd_) {
        pollfd end{pidfd_.number(), POLLIN, 0};
        ::poll(&end, 1, timeout_ms);
        timeout_ms = 0;
    }
    for (;; timeout_ms -= 5) {
        const pid_t result = ::waitpid(pid_, &exit_status_, WNOHANG);
        // ECHILD: the host ignores SIGCHLD or has reaped our child; how it ended is lost.
        has_ended_ = result != 0;
        is_exit_known_ = result == pid_;
        if (has_ended_ || timeout_ms <= 0) return has_ended_;
        const timespec pause{0, 5'000'000};
        ::nanosleep(&pause, nullptr);
    }
}

void EngineProcess::kill() {
    if (!is_started() || has_ended_) return;
#ifdef SYS_pidfd_send_signal
    if (pidfd_ && ::syscall(SYS_pidfd_send_signal, pidfd_.number(), SIGKILL, nullptr, 0) == 0) return;
#endif
    ::kill(pid_, SIGKILL);
}

std::string EngineProcess::describe_end() const {
    std::string text = "The engine process " + std::to_string(pid_) + " (" + python_ + " -m xllm_capi.engine) ";
    if (!is_exit_known_) {
        text += "has ended";
    } else if (WIFSIGNALED(exit_status_)) {
        const int signal = WTERMSIG(exit_status_);
        const char *name = ::sigabbrev_np(signal);
        text += "was killed by signal " + std::to_string(signal) + (name == nullptr ? "" : " (SIG" + std::string(name) + ")");
    } else {
        text += "has ended with exit code " + std::to_string(WEXITSTATUS(exit_status_));
    }
    const std::size_t end = log_tail_.find_last_not_of(" \n\r\t");
    if (end != std::string::npos) {
        text += "; its last words: " + log_tail_.substr(end + 1 > kMaxLogTail ? end + 1 - kMaxLogTail : 0, kMaxLogTail);
        text.resize(text.find_last_not_of(" \n\r\t") + 1);
    } else if (!log_path_.empty() && log_path_ != "-") {
        text += "; see its log, " + log_path_;
    }
    return text + (text.ends_with('.') ? "" : ".");
}

}  // namespace libxllm

#include "interpreter.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "failure.hpp"

namespace libxllm {

namespace {

// The absolute path of the file that this code was loaded from; "" when unknown.
std::string own_path() {
    Dl_info location{};
    if (::dladdr(reinterpret_cast<const void *>(&choose_interpreter), &location) == 0) return "";
    char resolved[PATH_MAX];
    return ::realpath(location.dli_fname, resolved) == nullptr ? "" : resolved;
}

// Walk up from `path` to the first folder that has a bin/python3.
std::string find_above(std::string path) {
    for (std::size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0; slash = path.rfind('/')) {
        path.resize(slash);
        const std::string candidate = path + "/bin/python3";
        if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
    return "";
}

std::string checked(const std::string &python, const char *origin) {
    if (python.find('/') != std::string::npos && ::access(python.c_str(), X_OK) != 0) {
        throw Failure(XLLM_ERROR_ENGINE_START,
                      "The Python interpreter '" + python + "' named by " + origin + " cannot be run.");
    }
    return python;
}

}  // namespace

std::string choose_interpreter(const char *option) {
    if (option != nullptr && *option != '\0') return checked(option, "xllm_engine_options.python");
    const char *variable = std::getenv("XLLM_PYTHON");
    if (variable != nullptr && *variable != '\0') return checked(variable, "the environment variable XLLM_PYTHON");
    const std::string library = own_path();
    std::string found = find_above(library);
    if (found.empty()) {
        throw Failure(XLLM_ERROR_ENGINE_START,
                      "No Python interpreter was found: no folder above " + library +
                          " has a bin/python3; set xllm_engine_options.python or the environment variable XLLM_PYTHON "
                          "to the python of an environment where xllm-capi is installed.");
    }
    return found;
}

}  // namespace libxllm

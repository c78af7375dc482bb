// Which Python runs the engine process. Knows nothing of how it is started.
#pragma once

#include <string>

namespace libxllm {

// `option` if given, else the environment variable XLLM_PYTHON, else the interpreter of the environment that this
// library lies in. Throws Failure(XLLM_ERROR_ENGINE_START) that says where it looked.
std::string choose_interpreter(const char *option);

}  // namespace libxllm

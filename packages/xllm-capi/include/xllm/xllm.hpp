// xllm.hpp - the C++17 face of xllm.h: owning handles, standard strings, exceptions or statuses. Header only, so that no
// C++ ABI is part of the library. xllm.h says what each call does; here only what C++ adds is said.
//
//     xllm::Engine engine;
//     std::cout << engine.complete("Once upon a time").text() << '\n';
//
// Every call has two forms. The plain one throws xllm::Error. The one with a trailing `Status &` does not: it sets the
// status, and returns an empty object on failure. With exceptions switched off only the second form exists.
//
// Engine, Request and Response are move-only and may be empty (moved from, or after a failed call); an empty Engine or
// Request answers every call with XLLM_ERROR_INVALID_ARGUMENT.
//
// By file: status.hpp how calls end, options.hpp what is asked for, answer.hpp what comes back, request.hpp and engine.hpp
// the handles.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef XLLM_XLLM_HPP_
#define XLLM_XLLM_HPP_

#include "xllm/hpp/answer.hpp"
#include "xllm/hpp/engine.hpp"
#include "xllm/hpp/options.hpp"
#include "xllm/hpp/request.hpp"
#include "xllm/hpp/status.hpp"

#endif  // XLLM_XLLM_HPP_

// The decoders of xllm_kernels_native, and how it draws, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace xllm::bindings {

void add_native(nanobind::module_& m);
void add_draw(nanobind::module_& m);

}  // namespace xllm::bindings

// The decoders of xllm_kernels_native as Python classes.
#pragma once

#include <nanobind/nanobind.h>

namespace xllm::bindings {

void add_native(nanobind::module_& m);

}  // namespace xllm::bindings

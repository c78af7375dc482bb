// Registers what beam search needs of the CPU kernels.
#pragma once

#include <nanobind/nanobind.h>

namespace xllm::bindings {

void add_beams(nanobind::module_& m);

}  // namespace xllm::bindings

// The extension module xllm_kernels._C: one line for each function, no logic.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "beams.h"
#include "launchers.h"
#include "native.h"
#include "xllm/kernels/backends.h"
#include "xllm/kernels/threads.h"

namespace nb = nanobind;
namespace bindings = xllm::bindings;
namespace kernels = xllm::kernels;
using namespace nb::literals;

NB_MODULE(_C, m) {
  kernels::cpu_isa();  // an unusable XLLM_CPU_ISA fails the import, not the first kernel

  m.def("rms_norm", &bindings::rms_norm, "x"_a, "weight"_a, "eps"_a, "out"_a);
  m.def("add_rms_norm", &bindings::add_rms_norm, "x"_a, "residual"_a, "weight"_a, "eps"_a);
  m.def("rotary_embedding", &bindings::rotary_embedding, "positions"_a, "query"_a, "key"_a, "cos_sin_cache"_a);
  m.def("write_kv", &bindings::write_kv, "key"_a, "value"_a, "key_cache"_a, "value_cache"_a, "slot_mapping"_a);
  m.def("paged_attention", &bindings::paged_attention, "query"_a, "key_cache"_a, "value_cache"_a, "block_tables"_a,
        "query_start"_a, "seq_lens"_a, "scale"_a, "sliding_window"_a, "out"_a);
  m.def("silu_and_mul", &bindings::silu_and_mul, "x"_a, "out"_a);
  m.def("modulated_norm", &bindings::modulated_norm, "x"_a, "shift"_a, "scale"_a, "eps"_a, "out"_a);
  m.def("add_gated", &bindings::add_gated, "x"_a, "y"_a, "gate"_a);
  m.def("dense_linear", &bindings::dense_linear, "x"_a, "tiles"_a, "bias"_a.none(), "out"_a);
  m.def("gelu", &bindings::gelu, "x"_a, "out"_a);
  m.def("joint_attention", &bindings::joint_attention, "streams"_a, "cos"_a.none(), "sin"_a.none(), "mask"_a.none(),
        "eps"_a, "num_heads"_a, "first_query"_a, "out"_a);

  m.def("cpu_isa", &kernels::cpu_isa);
  m.def("why_no_cuda", &kernels::why_no_cuda);
  m.def("why_no_npu", &kernels::why_no_npu);
  m.def("get_num_threads", &kernels::cpu::get_num_threads);
  m.def("set_num_threads", &kernels::cpu::set_num_threads, "num_threads"_a, "pin"_a,
        nb::call_guard<nb::gil_scoped_release>());

  bindings::add_native(m);
  bindings::add_draw(m);
  bindings::add_beams(m);
}

# xllm_kernels_cpu: csrc/cpu/ops compiled once for each instruction set, and the code that chooses among them.
find_package(Threads REQUIRED)

add_library(
  xllm_kernels_cpu STATIC
  csrc/cpu/beam_attention.cpp
  csrc/cpu/beam_select.cpp
  csrc/cpu/dense_linear.cpp
  csrc/cpu/dispatch.cpp
  csrc/cpu/joint_attention.cpp
  csrc/cpu/paged_attention.cpp
  csrc/cpu/row_kernels.cpp
  csrc/cpu/thread_pool.cpp
  csrc/cpu/thread_scratch.cpp
  csrc/cpu/threads.cpp
  csrc/cpu/usable_cores.cpp)
target_include_directories(xllm_kernels_cpu PUBLIC include PRIVATE csrc/cpu)
target_link_libraries(xllm_kernels_cpu PUBLIC Threads::Threads)
xllm_set_warnings(xllm_kernels_cpu)

# No contraction: a product and a sum round the same wherever they are inlined, which batch invariance rests on.
function(xllm_add_instruction_set name)
  add_library(
    xllm_kernels_cpu_${name} OBJECT
    csrc/cpu/ops/activations.cpp
    csrc/cpu/ops/beam_attention.cpp
    csrc/cpu/ops/joint_attention.cpp
    csrc/cpu/ops/modulation.cpp
    csrc/cpu/ops/multiply_float.cpp
    csrc/cpu/ops/multiply_quantised.cpp
    csrc/cpu/ops/paged_attention.cpp
    csrc/cpu/ops/rms_norm.cpp
    csrc/cpu/ops/rotary_embedding.cpp
    csrc/cpu/ops/silu_and_mul.cpp
    csrc/cpu/ops/table.cpp)
  target_include_directories(xllm_kernels_cpu_${name} PRIVATE include csrc/cpu)
  target_compile_definitions(xllm_kernels_cpu_${name} PRIVATE XLLM_ISA=${name})
  xllm_set_warnings(xllm_kernels_cpu_${name})
  target_compile_options(xllm_kernels_cpu_${name} PRIVATE -O3 -ffp-contract=off -fno-math-errno ${ARGN})
  target_sources(xllm_kernels_cpu PRIVATE $<TARGET_OBJECTS:xllm_kernels_cpu_${name}>)
endfunction()

xllm_add_instruction_set(portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2 -mavx2 -mfma -mf16c)
  # GCC 12 warns of its own avx512fintrin.h (GCC bug 105593).
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -Wno-uninitialized -Wno-maybe-uninitialized)
  xllm_add_instruction_set(avx2 ${avx2})
  xllm_add_instruction_set(avx512 ${avx512})
  xllm_add_instruction_set(avx512_bf16 ${avx512} -mavx512bf16 -mavx512vnni)
  target_compile_definitions(xllm_kernels_cpu PRIVATE XLLM_X86_64)
endif()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  xllm_add_instruction_set(neon_dotprod -march=armv8.2-a+dotprod)
  target_compile_definitions(xllm_kernels_cpu PRIVATE XLLM_AARCH64)
endif()

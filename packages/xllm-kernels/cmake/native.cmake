# xllm_kernels_native: whole-step decoders over xllm_kernels_cpu. Needs neither Python nor nanobind.
add_library(
  xllm_kernels_native STATIC
  csrc/native/beam_check.cpp
  csrc/native/beams.cpp
  csrc/native/best_tokens.cpp
  csrc/native/decoder.cpp
  csrc/native/draw.cpp
  csrc/native/head_screen.cpp
  csrc/native/kv_cache.cpp
  csrc/native/memory.cpp
  csrc/native/pack.cpp
  csrc/native/packed_file.cpp
  csrc/native/product.cpp
  csrc/native/stage.cpp
  csrc/native/step.cpp
  csrc/native/step_check.cpp
  csrc/native/tensor_kind.cpp
  csrc/native/weights.cpp)
target_include_directories(xllm_kernels_native PUBLIC include PRIVATE csrc/native csrc/cpu)
target_compile_options(xllm_kernels_native PRIVATE -O3 -ffp-contract=off -fno-math-errno)
target_link_libraries(xllm_kernels_native PUBLIC xllm_kernels_cpu)
xllm_set_warnings(xllm_kernels_native)

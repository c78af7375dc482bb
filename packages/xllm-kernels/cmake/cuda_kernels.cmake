# xllm_kernels_cuda: csrc/cuda, and the extension module xllm_kernels._C_cuda over it. Built only when XLLM_CUDA is set, so that a machine
# which happens to have nvcc builds no slower. What uses instructions of Hopper is built for sm_90a alone, the rest for sm_80 and later, too.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

function(xllm_set_cuda_options target)
  target_include_directories(${target} PUBLIC include PRIVATE csrc/cuda)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
  if(XLLM_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
  endif()
endfunction()

add_library(
  xllm_kernels_cuda_portable OBJECT
  csrc/cuda/argmax.cu
  csrc/cuda/beam_select.cu
  csrc/cuda/expert_order.cu
  csrc/cuda/expert_routing.cu
  csrc/cuda/row_kernels.cu
  csrc/cuda/sampling.cu)
set_target_properties(xllm_kernels_cuda_portable PROPERTIES CUDA_ARCHITECTURES "80;90a-real")
xllm_set_cuda_options(xllm_kernels_cuda_portable)

add_library(
  xllm_kernels_cuda STATIC
  csrc/cuda/beam_join.cu
  csrc/cuda/decode_attention.cu
  csrc/cuda/expert_mix.cu
  csrc/cuda/expert_stream.cu
  csrc/cuda/expert_tiles.cu
  csrc/cuda/float8_attention.cu
  csrc/cuda/linear_batch.cu
  csrc/cuda/linear_stream.cu
  csrc/cuda/quantised_direct.cu
  csrc/cuda/quantised_stream.cu
  csrc/cuda/quantised_stream_float8.cu
  csrc/cuda/quantised_stream_int4.cu
  csrc/cuda/quantised_stream_int8.cu
  csrc/cuda/prompt_attention.cu
  csrc/cuda/tensor_map.cu
  $<TARGET_OBJECTS:xllm_kernels_cuda_portable>)
xllm_set_cuda_options(xllm_kernels_cuda)

nanobind_add_module(
  _C_cuda
  BACKEND_MODULE nanobind_backend
  NB_SUPPRESS_WARNINGS
  csrc/bindings/cuda_beams.cpp
  csrc/bindings/cuda_decode.cpp
  csrc/bindings/cuda_experts.cpp
  csrc/bindings/cuda_float8_attention.cpp
  csrc/bindings/cuda_module.cpp
  csrc/bindings/cuda_quantised.cpp
  csrc/bindings/cuda_prompts.cpp
  csrc/bindings/cuda_row_kernels.cpp
  csrc/bindings/cuda_sampling.cpp
  csrc/bindings/tensor.cpp)
target_compile_features(_C_cuda PRIVATE cxx_std_20)
target_include_directories(_C_cuda PRIVATE csrc/bindings)
target_link_libraries(_C_cuda PRIVATE xllm_kernels_cuda)
xllm_set_warnings(_C_cuda)

install(TARGETS _C_cuda LIBRARY DESTINATION xllm_kernels)

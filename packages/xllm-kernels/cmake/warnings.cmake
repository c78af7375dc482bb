# The warnings that all of our code is held to; errors only where a developer asks, so that a new compiler builds old code.
function(xllm_set_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  if(XLLM_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

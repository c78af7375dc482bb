"""xLLM for C and C++ programs: where libxllm lies, and the engine process behind it. Importing it imports nothing else."""

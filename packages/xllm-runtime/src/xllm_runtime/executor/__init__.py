"""How the forward pass of a step is run: eagerly, or later from a captured graph. Knows nothing of sampling."""

from xllm_runtime.executor.interface import Executor
from xllm_runtime.executor.selection import explain_executors, select_executor
from xllm_runtime.executor.warm_up import warm_up_input

__all__ = ["Executor", "explain_executors", "select_executor", "warm_up_input"]

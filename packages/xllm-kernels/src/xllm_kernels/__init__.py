"""Kernels of xLLM: operations on tensors (`xllm_kernels.ops`), their numpy truth (`xllm_kernels.reference`), and what
this build can serve. Knows nothing of models, batches or schedules, and importing it imports no torch.
"""

from __future__ import annotations

from xllm_kernels.backends import AvailableBackends, available_backends, explain
from xllm_kernels.threads import get_num_threads, set_num_threads

__all__ = ["AvailableBackends", "available_backends", "explain", "get_num_threads", "set_num_threads"]

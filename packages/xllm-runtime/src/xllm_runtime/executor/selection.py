"""Chooses the executor for a model on a platform, and says why the faster ones do not serve."""

from __future__ import annotations

import logging

from xllm_runtime.executor.eager import EagerExecutor
from xllm_runtime.executor.interface import Executor
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.platform import Platform

logger = logging.getLogger(__name__)


def explain_executors(platform_name: str) -> dict[str, str | None]:
    """Return why each executor cannot serve on a platform (cpu, cuda, npu), fastest first; None where it can."""
    reasons: dict[str, str | None] = {
        "cuda_graph": None if platform_name == "cuda" else "it needs a device of kind cuda",
        "npu_graph": "this version captures no NPU graphs"
        if platform_name == "npu"
        else "it needs a device of kind npu",
    }
    return reasons | {"eager": None}


def select_executor(model: CausalLM, platform: Platform, max_num_seqs: int, *, is_overlapped: bool = False) -> Executor:
    """Return the fastest executor that can run `model` on `platform`, `max_num_seqs` sequences a step at most.

    `is_overlapped`: a step may be started while the one before it is under way.
    """
    for name, reason in explain_executors(platform.name).items():
        if reason is not None:
            logger.debug("Executor %s is not taken: %s.", name, reason)
        elif name == "cuda_graph":
            from xllm_runtime.executor.cuda_graph import CUDAGraphExecutor

            return CUDAGraphExecutor(model, platform.device, max_num_seqs, is_overlapped=is_overlapped)
    return EagerExecutor(model, platform.device)

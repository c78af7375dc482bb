"""The runtime: masters, engines, workers, executors and models. `from xllm_runtime import LLM, SamplingParams`.

Names are imported when they are first asked for: importing this package imports no torch, constructing an `LLM` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xllm_framework.request import RequestOutput, SamplingParams
    from xllm_runtime.llm import LLM, EmbeddingOutput

__all__ = ["LLM", "EmbeddingOutput", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "xllm_runtime.llm",
    "EmbeddingOutput": "xllm_runtime.llm",
    "RequestOutput": "xllm_framework.request",
    "SamplingParams": "xllm_framework.request",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

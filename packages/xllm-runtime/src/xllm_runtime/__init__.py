"""The runtime: masters, engines, workers, executors and models. `from xllm_runtime import LLM, SamplingParams`.

Names are imported when they are first asked for: importing this package imports no torch, constructing an `LLM` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xllm_framework.lazy_names import names_from

if TYPE_CHECKING:
    from xllm_framework.request import RequestOutput, SamplingParams
    from xllm_runtime.llm import LLM, EmbeddingOutput

__all__ = ["LLM", "EmbeddingOutput", "RequestOutput", "SamplingParams"]

__getattr__ = names_from(
    __name__,
    {
        "LLM": "xllm_runtime.llm",
        "EmbeddingOutput": "xllm_runtime.llm",
        "RequestOutput": "xllm_framework.request",
        "SamplingParams": "xllm_framework.request",
    },
)

"""The engine side of a vision-language model: a language model's with another engine. Importing it imports torch."""

from __future__ import annotations

import queue
from collections.abc import Callable

from xllm_framework.config import XLLMConfig
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import FromEngine
from xllm_runtime.engine.vlm import VLMEngine
from xllm_runtime.master.constrained_requests import LoopMessage
from xllm_runtime.master.engine_side import run_engine_side


def run_vlm_engine_side(
    config: XLLMConfig, files: ModelFiles, inbox: queue.SimpleQueue[LoopMessage], emit: Callable[[FromEngine], None]
) -> None:
    """See `run_engine_side`."""
    run_engine_side(config, files, inbox, emit, VLMEngine)

"""The engine side of a vision-language model: a language model's with another engine. Importing it imports torch."""

from __future__ import annotations

import queue
from collections.abc import Callable

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import XLLMError
from xllm_framework.model import load_model_args
from xllm_framework.model.source import ModelFiles
from xllm_framework.request.messages import FromEngine
from xllm_runtime.engine.vlm import VLMEngine, WholeMediaEngine
from xllm_runtime.master.constrained_requests import LoopMessage
from xllm_runtime.master.engine_side import run_engine_side
from xllm_runtime.processors.media_processor import is_left_to_transformers


def run_vlm_engine_side(
    config: XLLMConfig, files: ModelFiles, inbox: queue.SimpleQueue[LoopMessage], emit: Callable[[FromEngine], None]
) -> None:
    """See `run_engine_side`."""
    is_left = is_left_to_transformers(config.model, _architecture(files))
    run_engine_side(config, files, inbox, emit, WholeMediaEngine if is_left else VLMEngine)


def _architecture(files: ModelFiles) -> str:
    """Return what config.json calls the model; a broken file is for whoever loads it to explain."""
    try:
        return load_model_args(files).architecture
    except XLLMError:
        return ""

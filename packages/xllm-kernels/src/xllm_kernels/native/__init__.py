"""Whole-step decoders in C++ for the CPU: a model's layers in one call. Imports no torch, and knows nothing of files,
requests, schedules or sampling.
"""

from __future__ import annotations

from xllm_kernels.native.decoder import LlamaDecoder
from xllm_kernels.native.shape import DecoderShape

__all__ = ["DecoderShape", "LlamaDecoder"]

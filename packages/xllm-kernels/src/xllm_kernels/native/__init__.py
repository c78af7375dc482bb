"""Whole-step decoders in C++ for the CPU: a model's layers in one call, and tokens drawn from their logits. Imports no torch,
and knows nothing of files, requests or schedules.
"""

from __future__ import annotations

from xllm_kernels.native.decoder import LlamaDecoder
from xllm_kernels.native.drawing import draw_tokens, token_logprobs
from xllm_kernels.native.shape import DecoderShape

__all__ = ["DecoderShape", "LlamaDecoder", "draw_tokens", "token_logprobs"]

"""Attention within segments by the Hopper kernel for prompts, without its mask. Knows nothing of who asks."""

from __future__ import annotations

from typing import ClassVar

import torch

from xllm_runtime.attention.backend import AttentionSpec
from xllm_runtime.attention.paged_cuda import DTYPES
from xllm_runtime.attention.prompts_cuda import why_no_hopper_prompts
from xllm_runtime.attention.segments import Segments


class HopperSegments:
    """`SegmentAttention` on `xllm_kernels.cuda.prompts`: all segments, of any lengths, in one kernel."""

    name: ClassVar[str] = "hopper"

    def __init__(self, spec: AttentionSpec) -> None:
        self._scale = spec.scale

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """See `SegmentAttention.explain`."""
        if spec.device.type != "cuda":
            return [f"the kernel runs on a CUDA GPU, not on {spec.device}"]
        reasons = [] if spec.dtype in DTYPES else [f"the kernel computes in bfloat16 and float16, not in {spec.dtype}"]
        if spec.softcap or spec.sliding_window:
            reasons.append("the kernel has neither soft caps nor sliding windows")
        reason = why_no_hopper_prompts(spec)
        return [*reasons, reason] if reason else reasons

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
        """See `SegmentAttention.forward`."""
        from xllm_kernels.cuda.prompts import prompt_attention

        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        prompt_attention(
            query,
            key,
            value,
            segments.starts,
            segments.sizes,
            out=out,
            scale=self._scale,
            max_query_len=segments.longest,
            key_start=segments.starts,
            is_causal=False,
        )
        return out

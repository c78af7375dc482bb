"""Attention within segments by torch's scaled dot product attention. Any device, any dtype; knows nothing of kernels."""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar

import torch
import torch.nn.functional as F

from xllm_runtime.attention.backend import AttentionSpec
from xllm_runtime.attention.segments import Segments


class SDPASegments:
    """`SegmentAttention` on torch's operators: neighbours of equal length are one batch, so sort segments where their order is free."""

    name: ClassVar[str] = "sdpa"

    def __init__(self, spec: AttentionSpec) -> None:
        self._scale = spec.scale
        self._shares_keys = spec.num_heads != spec.num_kv_heads

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """Nothing speaks against it; see `SegmentAttention.explain`."""
        return []

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments) -> torch.Tensor:
        """See `SegmentAttention.forward`."""
        parts = []
        start = 0
        for length, equal in groupby(segments.lengths):
            num_segments = sum(1 for _ in equal)
            end = start + num_segments * length
            q, k, v = (
                rows[start:end].view(num_segments, length, *rows.shape[1:]).transpose(1, 2)
                for rows in (query, key, value)
            )
            attended = F.scaled_dot_product_attention(q, k, v, scale=self._scale, enable_gqa=self._shares_keys)
            parts.append(attended.transpose(1, 2).flatten(0, 1))
            start = end
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

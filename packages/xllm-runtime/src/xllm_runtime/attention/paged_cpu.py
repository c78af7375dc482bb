"""Attention with the CPU kernels of xllm-kernels, straight on the paged cache. Knows nothing of how they compute."""

from __future__ import annotations

from typing import ClassVar

import torch

from xllm_runtime.attention.backend import AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16)


class PagedCPUAttention:
    """`AttentionBackend` on `xllm_kernels.ops.write_kv` and `paged_attention`."""

    name: ClassVar[str] = "paged_cpu"

    def __init__(self, spec: AttentionSpec) -> None:
        from xllm_kernels import ops

        self._write_kv = ops.write_kv
        self._paged_attention = ops.paged_attention
        self._scale = spec.scale
        self._sliding_window = spec.sliding_window

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """See `AttentionBackend.explain`."""
        reasons = []
        if spec.device.type != "cpu":
            reasons.append(f"runs on the CPU, not on {spec.device}")
        if spec.dtype not in SUPPORTED_DTYPES:
            reasons.append(f"computes in float32 or bfloat16, not in {str(spec.dtype).removeprefix('torch.')}")
        if spec.kv_dtype not in (None, spec.dtype):
            reasons.append("keeps KV in the type that it computes in")
        if spec.softcap:
            reasons.append("has no soft cap of scores")
        return reasons + _missing_kernels()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        self._write_kv(key, value, *kv_cache, metadata.slot_mapping)
        output: torch.Tensor = self._paged_attention(
            query,
            *kv_cache,
            metadata.block_tables,
            metadata.query_start,
            metadata.seq_lens,
            self._scale,
            sliding_window=self._sliding_window,
        )
        return output


def _missing_kernels() -> list[str]:
    try:
        from xllm_kernels import explain
    except ImportError as error:
        return [f"xllm-kernels cannot be imported: {error}"]
    return [*explain("write_kv", "cpu"), *explain("paged_attention", "cpu")]

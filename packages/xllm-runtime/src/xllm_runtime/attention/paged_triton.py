"""Attention on a GPU over the paged cache with the Triton kernels of xllm-kernels alone: bfloat16 or float16, the cache in 8 bits if asked.

The portable way: caches of 8 bits, which `paged_cuda` refuses. Knows nothing of models.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from xllm_runtime.attention.backend import AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata
from xllm_runtime.attention.paged_cuda import StepPlan, plan_step

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128)


class PagedTritonAttention:
    """`AttentionBackend` on `xllm_kernels.triton`."""

    name: ClassVar[str] = "paged_triton"

    def __init__(self, spec: AttentionSpec) -> None:
        from xllm_kernels.triton import decode_attention, prefill_attention, rows

        self._scale, self._kv_scales = spec.scale, spec.kv_scales
        self._write_kv = rows.write_kv
        self._decode_attention = decode_attention.decode_attention
        self._prefill_attention = prefill_attention.prefill_attention

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """See `AttentionBackend.explain`."""
        if spec.device.type != "cuda":
            return [f"runs on a CUDA GPU, not on {spec.device}"]
        reasons = []
        if spec.dtype not in DTYPES:
            reasons.append(f"computes in bfloat16 and float16, not in {str(spec.dtype).removeprefix('torch.')}")
        if spec.softcap:
            reasons.append("has no soft cap of scores")
        if spec.sliding_window:
            reasons.append("has no sliding window")
        if spec.head_dim not in HEAD_DIMS:
            reasons.append(f"takes heads of 64 and 128 numbers, not of {spec.head_dim}")
        from xllm_kernels.triton import why_no_triton

        missing = why_no_triton()
        return reasons if missing is None else [*reasons, missing]

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`."""
        self._write_kv(key, value, kv_cache, metadata.slot_mapping, self._kv_scales)
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if metadata.max_query_len == 1:
            self._decode(query, kv_cache, metadata.block_tables, metadata.seq_lens, output)
            return output
        plan = metadata.plans.get(self.name)
        if not isinstance(plan, StepPlan):
            plan = metadata.plans[self.name] = plan_step(metadata, kv_cache[0].shape[1])
        singles, prompts = plan.outputs(output)
        if plan.prefills is not None:
            rows = plan.prefills
            if rows.has_own_keys and key.stride(0) != value.stride(0):  # the kernel takes one for both
                key, value = key.contiguous(), value.contiguous()
            keys, values = (key[rows.rows], value[rows.rows]) if rows.has_own_keys else kv_cache
            self._prefill_attention(
                query[rows.rows],
                keys,
                values,
                rows.query_start,
                rows.key_start,
                rows.seq_lens,
                out=prompts,
                scale=self._scale,
                max_query_len=rows.max_query_len,
                block_tables=None if rows.has_own_keys else rows.block_tables,
                kv_scales=(1.0, 1.0) if rows.has_own_keys else self._kv_scales,
            )
        if plan.decodes is not None:
            self._decode(query[plan.decodes.rows], kv_cache, plan.decodes.block_tables, plan.decodes.seq_lens, singles)
        return plan.placed(output)

    def _decode(
        self,
        query: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        self._decode_attention(
            query,
            kv_cache,
            block_tables,
            seq_lens,
            out=output,
            scale=self._scale,
            max_seq_len=block_tables.shape[1] * kv_cache[0].shape[1],
            kv_scales=self._kv_scales,
        )

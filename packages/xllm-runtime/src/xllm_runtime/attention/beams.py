"""Attention of beams (xAttention): the prompt's KV once in the paged cache, each beam's own outside it.

`BeamAttention` stands before a layer's attention backend: steps of beams go its own way, all others pass. Knows nothing of how
beams are chosen, or of models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from xllm_runtime.attention.backend import AttendsLastRows, AttentionBackend, AttentionSpec
from xllm_runtime.attention.metadata import AttentionMetadata, LastRows

KVPair = tuple[torch.Tensor, torch.Tensor]
BeamKV = list[KVPair]
"""(K, V) of each layer, each [rounds, rows, num_kv_heads, head_dim]."""


@dataclass(slots=True)
class BeamMetadata(AttentionMetadata):
    """A step of W beams of S searches: `query_start` bounds the searches' beams, `seq_lens` are the prompts' lengths.

    `slot_mapping` is empty: nothing is written to the paged cache.
    """

    round_index: int = 0
    """Where the rows' KV is kept."""
    ancestors: torch.Tensor | None = None
    """int32 [W, round_index + 1]: the row of each round that a beam continues; its own row in this one."""
    beam_kv: BeamKV | None = None
    num_splits: int = 1
    """Parts of each prompt that are attended on their own; on a GPU only."""
    max_beams: int = 0
    """Most beams of one search; on a GPU only."""


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, KVPair, KVPair, BeamMetadata, float], torch.Tensor]
"""(query [W, Hq, D], key and value [W, Hk, D], the layer's paged cache, the beams' KV, metadata, scale) -> [W, Hq, D].

Keeps the newest key and value in the beams' KV."""


class BeamAttention:
    """An `AttentionBackend` that attends beams itself and hands everything else to `inner`."""

    name: ClassVar[str] = "beams"

    def __init__(self, inner: AttentionBackend, spec: AttentionSpec, layer: int) -> None:
        self._inner = inner
        self._scale = spec.scale
        self._layer = layer
        self._attend = _attend_function(spec)

    @classmethod
    def explain(cls, spec: AttentionSpec) -> list[str]:
        """See `AttentionBackend.explain`."""
        reasons = ["has no sliding window"] if spec.sliding_window else []
        if spec.softcap:
            reasons.append("has no soft cap of scores")
        if spec.kv_dtype not in (None, spec.dtype):
            reasons.append("keeps keys and values as they are computed")
        return reasons

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `AttentionBackend.forward`; of beams, KV is kept in `metadata.beam_kv` instead of the cache."""
        if not isinstance(metadata, BeamMetadata):
            return self._inner.forward(query, key, value, kv_cache, metadata)
        assert metadata.beam_kv is not None, "whoever makes a step of beams sets it"
        return self._attend(query, key, value, kv_cache, metadata.beam_kv[self._layer], metadata, self._scale)

    def forward_last(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        metadata: AttentionMetadata,
        last: LastRows,
    ) -> torch.Tensor:
        """See `AttendsLastRows.forward_last`; steps of beams have no such rows."""
        if isinstance(self._inner, AttendsLastRows):
            return self._inner.forward_last(query, key, value, kv_cache, metadata, last)
        return self._inner.forward(query, key, value, kv_cache, metadata)[last.rows]


def attend_with_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: KVPair,
    own: KVPair,
    metadata: BeamMetadata,
    scale: float,
) -> torch.Tensor:
    """Keep the newest KV and attend with the CPU kernel; see `Attend`."""
    from xllm_kernels import ops

    _keep(key, value, own, metadata.round_index)
    attended: torch.Tensor = ops.beam_attention(
        query,
        *kv_cache,
        metadata.block_tables,
        metadata.query_start,
        metadata.seq_lens,
        *own,
        metadata.ancestors,
        scale,
    )
    return attended


def attend_with_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: KVPair,
    own: KVPair,
    metadata: BeamMetadata,
    scale: float,
) -> torch.Tensor:
    """Keep the newest KV and attend with torch alone, a search at a time; see `Attend`. What the kernels are tested against."""
    assert metadata.ancestors is not None
    _keep(key, value, own, metadata.round_index)
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    starts, block_size = metadata.query_start.tolist(), kv_cache[0].shape[1]
    rounds = torch.arange(metadata.round_index + 1, device=query.device)
    own_kv = [kept[rounds, metadata.ancestors.long()] for kept in own]  # [W, t, Hk, D]
    for search, length in enumerate(metadata.seq_lens.tolist()):
        rows = slice(starts[search], starts[search + 1])
        blocks = metadata.block_tables[search, : -(-length // block_size)].long()
        shared = [cache[blocks].flatten(0, 1)[:length] for cache in kv_cache]
        num_beams = starts[search + 1] - starts[search]
        keys, values = (
            torch.cat([prompt.expand(num_beams, *prompt.shape), mine[rows]], 1).transpose(1, 2)
            for prompt, mine in zip(shared, own_kv, strict=True)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(
            query[rows][:, :, None], keys, values, scale=scale, enable_gqa=True
        )
        output[rows] = attended[:, :, 0]
    return output


def _keep(key: torch.Tensor, value: torch.Tensor, own: KVPair, round_index: int) -> None:
    for kept, new in zip(own, (key, value), strict=True):
        kept[round_index, : len(new)].copy_(new)


def _attend_function(spec: AttentionSpec) -> Attend:
    if spec.device.type == "cpu" and spec.dtype in (torch.float32, torch.bfloat16):
        return attend_with_kernel
    if spec.device.type == "cuda" and why_no_gpu_kernel(spec) is None:
        from xllm_runtime.attention.beams_cuda import attend_on_gpu

        return attend_on_gpu
    return attend_with_torch


def why_no_gpu_kernel(spec: AttentionSpec) -> str | None:
    """Return why `attend_on_gpu` does not serve `spec`, or None when it does."""
    if spec.dtype != torch.bfloat16:
        return f"it computes in bfloat16, not in {str(spec.dtype).removeprefix('torch.')}"
    from xllm_kernels import explain

    missing = explain("beam_join", str(spec.device))
    if missing:
        return missing[0]
    from xllm_kernels.cuda.beams import why_no_beam_join

    return why_no_beam_join(spec.num_heads, spec.num_kv_heads, spec.head_dim)

"""Serves models without a cache that can be paged (state-space models, own attention): every step computes every
sequence from its first token. Slow and right.

What is kept in the paged cache is the token ids themselves, so that prefix caching, preemption and sharing of blocks
work as for any other model. Knows nothing of architectures.
"""

from __future__ import annotations

from typing import Any

import torch

from xllm_runtime.attention import AttentionMetadata
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.models.transformers_rotary import forget_longest_sequence, length_dependent_modules


class RecomputeForward:
    """`ForwardStrategy` that runs each sequence alone, whole."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._layers = model.base_model
        self._rotary_modules = length_dependent_modules(model)
        self._token_ids: torch.Tensor | None = None

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`: one layer whose K is a token id."""
        return [KVCacheShape(num_kv_heads=1, head_dim=1, dtype=torch.int32)]

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""
        self._token_ids = caches[0][0]

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`."""
        if self._token_ids is None:
            raise RuntimeError("bind_kv_cache must come before forward")
        self._token_ids.view(-1).index_copy_(0, attention.slot_mapping, token_ids.to(torch.int32))
        block_size = self._token_ids.shape[1]
        starts = attention.query_start.tolist()
        hidden = []
        for row, seq_len in enumerate(attention.seq_lens.tolist()):
            blocks = attention.block_tables[row, : -(-seq_len // block_size)].long()
            sequence = self._token_ids[blocks].view(-1)[:seq_len].long()
            for module in self._rotary_modules:
                forget_longest_sequence(module)
            num_new = starts[row + 1] - starts[row]
            hidden.append(self._layers(input_ids=sequence[None], use_cache=False)[0][0, seq_len - num_new :])
        return torch.cat(hidden)

"""Copies blocks of KV, or slots of linear state, before a step writes to them. Knows nothing of whose they are."""

from __future__ import annotations

import torch


def copy_blocks(caches: list[tuple[torch.Tensor, torch.Tensor]], copies: list[tuple[int, int]]) -> None:
    """Copy whole blocks, (from, to) of `copies`, in (K, V) of each layer, each [num_blocks, ...]; no block is both."""
    if not copies:
        return
    pairs = torch.tensor(copies, dtype=torch.int64)
    for cache in (tensor for layer in caches for tensor in layer):
        sources, targets = pairs.to(cache.device).unbind(1)
        cache.index_copy_(0, targets, cache.index_select(0, sources))


def copy_states(states: list[torch.Tensor], copies: list[tuple[int, int]]) -> None:
    """Copy slots, (from, to) of `copies`, one after the other: a slot may be written and then read."""
    for state in states:
        for source, target in copies:
            state[target].copy_(state[source])

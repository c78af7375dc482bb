"""Copies blocks of KV, or slots of linear state, before a step writes to them. Knows nothing of whose they are."""

from __future__ import annotations

import numpy as np
import torch

from xllm_runtime.platform.uploads import upload


def copy_blocks(caches: list[tuple[torch.Tensor, torch.Tensor]], copies: list[tuple[int, int]]) -> None:
    """Copy whole blocks, (from, to) of `copies`, in (K, V) of each layer, each [num_blocks, ...]; no block is both."""
    if not copies:
        return
    sources, targets = upload(list(np.array(copies, np.int64).T), caches[0][0].device)
    for cache in (tensor for layer in caches for tensor in layer):
        cache.index_copy_(0, targets, cache.index_select(0, sources))


def copy_states(states: list[torch.Tensor], copies: list[tuple[int, int]]) -> None:
    """Copy slots, (from, to) of `copies`, one after the other: a slot may be written and then read."""
    for state in states:
        for source, target in copies:
            state[target].copy_(state[source])

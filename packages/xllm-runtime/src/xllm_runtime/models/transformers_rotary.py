"""Rotary modules of transformers whose frequencies depend on the longest sequence of a batch: `dynamic` and `longrope`.

In a step that serves many sequences, in chunks, that length means nothing: a neighbour or the size of a chunk would
change a result. Here each position gets the frequencies that a sequence ending with it gets, as when transformers
decodes token by token (`layers.rope_frequencies` does the same). Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LENGTH_DEPENDENT_KINDS = ("dynamic", "longrope")


def length_dependent_modules(model: nn.Module) -> list[nn.Module]:
    """Return the rotary modules of `model` that look at the length."""
    found = []
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)
        if any(kind in LENGTH_DEPENDENT_KINDS for kind in (kinds.values() if isinstance(kinds, dict) else (kinds,))):
            found.append(module)
    return found


def forget_longest_sequence(module: Any) -> None:
    """Reset the frequencies that a longer sequence has left in a `dynamic` module."""
    if hasattr(module, "original_inv_freq") and hasattr(module, "original_max_seq_len"):
        module.max_seq_len_cached = module.original_max_seq_len
        module.register_buffer("inv_freq", module.original_inv_freq.clone(), persistent=False)


class PerPositionRotary:
    """Takes the place of a rotary module's `forward` and calls it once for each length that matters.

    Positions below the original context share one length; beyond it `longrope` has one more, `dynamic` one for each.
    Raises `ValueError` for a module with settings a layer type.
    """

    def __init__(self, module: Any) -> None:
        if not isinstance(module.rope_type, str):
            raise ValueError("rotary frequencies differ between kinds of layers and depend on the length")
        self._module = module
        self._forward = module.forward
        self._is_dynamic = module.rope_type == "dynamic"
        parameters = module.config.rope_parameters
        self._context: int = (
            module.original_max_seq_len if self._is_dynamic else parameters["original_max_position_embeddings"]
        )

    def __call__(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., hidden] (for its dtype), int64 [1, T] -> cosines and sines [1, T, rotary_dim]."""
        parts = []
        order = []
        for rows in self._rows_of_one_length(position_ids[0]):
            forget_longest_sequence(self._module)
            parts.append(self._forward(x, position_ids[:, rows]))
            order.append(rows)
        back = torch.cat(order).argsort()
        cos, sin = (torch.cat(tables, 1)[:, back] for tables in zip(*parts, strict=True))
        return cos, sin

    def _rows_of_one_length(self, positions: torch.Tensor) -> Iterator[torch.Tensor]:
        is_beyond = positions >= self._context
        groups = [~is_beyond, is_beyond]
        if self._is_dynamic:
            groups = [~is_beyond, *(positions == position for position in set(positions[is_beyond].tolist()))]
        for group in groups:
            if group.any():
                yield group.nonzero()[:, 0]

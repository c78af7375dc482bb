"""Rotary position embedding from a table. Knows nothing of how frequencies are scaled."""

from __future__ import annotations

import torch
from torch import nn

from xllm_framework.model import ModelArgs
from xllm_runtime.layers.operations import Operations
from xllm_runtime.layers.rope_frequencies import cos_sin_table, max_rotary_position


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys in place, half-split (element i pairs with i + rotary_dim / 2).

    The table is float32 whatever the model's dtype: rounding it changes answers after some tens of tokens.
    """

    cos_sin_cache: torch.Tensor
    """float32 [max_position, rotary_dim]: cosines, then sines."""

    def __init__(self, args: ModelArgs, operations: Operations) -> None:
        super().__init__()
        table = torch.from_numpy(cos_sin_table(args, max_rotary_position(args)))
        self.register_buffer("cos_sin_cache", table.to(torch.get_default_device()), persistent=False)
        self._operations = operations

    def forward(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> None:
        """Rotate query [T, Hq, D] and key [T, Hk, D] in place by `positions` [T], each below max_position."""
        self._operations.rotary_embedding(positions, query, key, self.step_table)

    def begin_step(self, positions: torch.Tensor) -> torch.Tensor:
        """Take a step's positions [T]; return those that layers rotate by, rows of `step_table`."""
        return positions

    @property
    def step_table(self) -> torch.Tensor:
        """Cosines and sines that the step's positions refer to; the whole table."""
        return self.cos_sin_cache

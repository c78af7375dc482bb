"""Shifts, scales and gates of all blocks: one matrix product for many steps, done ahead. Knows nothing of what they modulate.

They depend on timestep and prompt alone, never on the image, so a request's are computed once for many steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets

STEPS_AT_ONCE = 16
"""A bound for the memory of one request's rows: 16 steps of FLUX.1 in bfloat16 are 34 MB."""


class Modulation(nn.Module):
    """The modulation layers of all blocks stacked in one: M = sum of the parts' rows."""

    def __init__(self, features: int, parts: Sequence[tuple[str, int]], dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = Linear(features, parts, has_bias=True, dtype=dtype)
        starts = [0]
        for _, rows in parts:
            starts.append(starts[-1] + rows)
        self._places = {name: (starts[index], starts[index + 1]) for index, (name, _) in enumerate(parts)}
        self._features = features

    def forward(self, conditioning: torch.Tensor) -> torch.Tensor:
        """[S, D] -> [S, M]."""
        return self.linear(F.silu(conditioning))  # type: ignore[no-any-return]

    def chunks(self, rows: torch.Tensor, name: str) -> tuple[torch.Tensor, ...]:
        """Return what the part called `name` says, as views [B, D] of `rows` [B, M]."""
        start, stop = self._places[name]
        return rows[:, start:stop].chunk((stop - start) // self._features, dim=1)

    def weight_targets(self) -> WeightTargets:
        """Yield the tensors of every part; their names are whole."""
        for name, target in self.linear.weight_targets(""):
            yield name.removeprefix("."), target


class ModulationRows:
    """The rows of one prompt for the steps of its schedule.

    Args:
        compute: timesteps [S] -> [S, M].
        timesteps: of the whole schedule, float32.
    """

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor], timesteps: torch.Tensor) -> None:
        self._compute = compute
        self._timesteps = timesteps
        self._first = 0
        self._rows: torch.Tensor | None = None

    def __getitem__(self, step: int) -> torch.Tensor:
        """Return the row [M] of a step; steps are asked for in order."""
        if self._rows is None or not self._first <= step < self._first + len(self._rows):
            self._first = step
            self._rows = self._compute(self._timesteps[step : step + STEPS_AT_ONCE])
        return self._rows[step - self._first]

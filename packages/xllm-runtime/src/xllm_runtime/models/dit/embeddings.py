"""Embeddings of timesteps, guidance, pooled texts and positions. Knows nothing of blocks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets

TIMESTEP_FEATURES = 256
MAX_PERIOD = 10000.0


def sinusoidal(values: torch.Tensor, *, downscale_shift: int = 0) -> torch.Tensor:
    """Return cosines, then sines, of `values` [S] at 128 frequencies (Ho et al., 2020): float32 [S, 256]."""
    half = TIMESTEP_FEATURES // 2
    steps = torch.arange(half, dtype=torch.float32, device=values.device)
    angles = values.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * steps / (half - downscale_shift))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class TwoLayerEmbedding(nn.Module):
    """linear_2(silu(linear_1(x))): how diffusers embeds timesteps, guidance and pooled texts."""

    def __init__(self, in_features: int, features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = Linear(in_features, [("linear_1", features)], has_bias=True, dtype=dtype)
        self.second = Linear(features, [("linear_2", features)], has_bias=True, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[S, in_features] -> [S, features]."""
        return self.second(F.silu(self.first(x.to(self.first.weight.dtype))))  # type: ignore[no-any-return]

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors of both layers."""
        yield from self.first.weight_targets(prefix)
        yield from self.second.weight_targets(prefix)


def sincos_positions(features: int, grid: torch.Tensor) -> torch.Tensor:
    """Return fixed embeddings [h * w, features] of a grid of positions (y, x), float64 [2, h, w].

    Half of the features tell x, half y; each half holds sines, then cosines (Dosovitskiy et al., 2021; as diffusers).
    """
    rows, columns = (_sincos(features // 2, axis.reshape(-1)) for axis in grid)
    return torch.cat((columns, rows), dim=1).float()


def _sincos(features: int, positions: torch.Tensor) -> torch.Tensor:
    frequencies = MAX_PERIOD ** -(torch.arange(features // 2, dtype=torch.float64) / (features / 2))
    angles = positions[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)

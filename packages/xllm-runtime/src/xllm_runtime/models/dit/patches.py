"""Latents [C, h, w] as tokens, and the layer that embeds them. Knows nothing of what the tokens mean.

Tokens keep the order in which transformers predict them, (row, column, channel) within a patch, so that a prediction and
the latents that it changes always lie alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import WeightTargets


def to_tokens(latents: torch.Tensor, patch: int) -> torch.Tensor:
    """[B, C, h * p, w * p] -> [B, h * w, p * p * C]."""
    batch, channels, height, width = latents.shape
    split = latents.view(batch, channels, height // patch, patch, width // patch, patch)
    return split.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch * patch * channels)


def from_tokens(tokens: torch.Tensor, patch: int, height: int, width: int) -> torch.Tensor:
    """[B, h * w, p * p * C] -> [B, C, h * p, w * p]; `height` and `width` are those of the latents."""
    grid = tokens.reshape(len(tokens), height // patch, width // patch, patch, patch, -1)
    return grid.permute(0, 5, 1, 3, 2, 4).reshape(len(tokens), -1, height, width)


def pack(latents: torch.Tensor) -> torch.Tensor:
    """[B, C, 2 h, 2 w] -> [B, h * w, 4 C], (channel, row, column) within a patch, as FLUX.1 and Qwen-Image have it."""
    batch, channels, height, width = latents.shape
    split = latents.view(batch, channels, height // 2, 2, width // 2, 2)
    return split.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * 4)


def unpack(tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """[B, h * w, 4 C] -> [B, C, 2 h, 2 w]; `height` and `width` are those of the latents."""
    grid = tokens.reshape(len(tokens), height // 2, width // 2, -1, 2, 2)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(len(tokens), -1, height, width)


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its size, as a matrix product of tokens, plus an embedding of positions."""

    def __init__(self, patch: int, channels: int, features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.proj = Linear(patch * patch * channels, [("proj", features)], has_bias=True, dtype=dtype)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[B, N, p * p * C] and [N, D] -> [B, N, D]."""
        return self.proj(tokens.to(positions.dtype)) + positions  # type: ignore[no-any-return]

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the convolution's tensors; its kernel as `flattened` brings it."""
        return self.proj.weight_targets(prefix)


def flattened(weights: Iterable[tuple[str, torch.Tensor]], kernel: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield `weights`, the one called `kernel` [D, C, p, p] as the matrix [D, p * p * C] of tokens."""
    for name, tensor in weights:
        yield name, tensor.permute(0, 2, 3, 1).flatten(1) if name == kernel else tensor

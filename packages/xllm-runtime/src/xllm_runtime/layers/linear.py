"""Linear layers, alone or several in one matrix product. Knows nothing of what the parts mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from xllm_runtime.layers.parameter import ParameterSlot, WeightTarget, WeightTargets
from xllm_runtime.layers.products import plain_product


class Linear(nn.Module):
    """y = x W^T + b for one or more layers of the same input: [T, in_features] -> [T, sum of rows].

    `parts` lists (name in the checkpoint, output rows) in the order of the output; each part's tensors are found as
    `<prefix>.<name>.weight` and `.bias`.
    """

    def __init__(
        self, in_features: int, parts: Sequence[tuple[str, int]], *, has_bias: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.names = [name for name, _ in parts]
        self.rows = [rows for _, rows in parts]
        self.weight = nn.Parameter(self._new_weight(in_features, dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(self.rows), dtype=dtype), requires_grad=False) if has_bias else None

    def _new_weight(self, in_features: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the memory of `weight`; layers that store it otherwise return an empty matrix."""
        return torch.empty(sum(self.rows), in_features, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in_features] -> [T, sum of rows]."""
        return plain_product(x, self.weight, self.bias)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors of every part under `prefix`."""
        for kind in ("weight",) if self.bias is None else ("weight", "bias"):
            slot = ParameterSlot(self, kind, self.rows)
            for part, name in enumerate(self.names):
                yield f"{prefix}.{name}.{kind}", WeightTarget(slot, part)

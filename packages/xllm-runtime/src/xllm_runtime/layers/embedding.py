"""Token embedding. Knows nothing of positions: those are rotary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from xllm_runtime.layers.parameter import WeightTargets, whole_parameter


class Embedding(nn.Module):
    """A row of `weight` [vocab_size, hidden_size] a token."""

    def __init__(self, vocab_size: int, hidden_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype), requires_grad=False)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden_size]."""
        return F.embedding(token_ids, self.weight)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the one tensor, `<prefix>.weight`."""
        yield whole_parameter(f"{prefix}.weight", self, "weight")

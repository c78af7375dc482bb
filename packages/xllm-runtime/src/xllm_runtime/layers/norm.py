"""RMSNorm, with and without the residual. Knows nothing of where in a model it stands."""

from __future__ import annotations

import torch
from torch import nn

from xllm_runtime.layers.operations import Operations
from xllm_runtime.layers.parameter import WeightTargets, whole_parameter


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, operations: Operations) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._eps = eps
        self._operations = operations

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same, a new tensor."""
        return self._operations.rms_norm(x.reshape(-1, x.shape[-1]), self.weight, self._eps).view(x.shape)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """Add `x` to `residual` and leave the sum's norm in `x`; both contiguous [T, size], in place."""
        self._operations.add_rms_norm(x, residual, self.weight, self._eps)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the one tensor, `<prefix>.weight`."""
        yield whole_parameter(f"{prefix}.weight", self, "weight")

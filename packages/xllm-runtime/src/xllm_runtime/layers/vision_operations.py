"""What blocks of a vision tower do between matrix products, in one pass each on GPUs that Triton compiles for, else by torch.

P rows of patches. Knows nothing of layers or of weights' names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from xllm_runtime.layers.triton_modules import triton_module


def _kernels_for(x: torch.Tensor) -> Any:
    return triton_module("vision", x) if x.is_contiguous() else None


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> None:
    """Set `residual` to x + residual and `x` to its LayerNorm (Ba et al., 2016); both contiguous [P, H], changed in place."""
    if (kernels := _kernels_for(x)) is not None:
        kernels.add_layer_norm(x, residual, weight, bias, eps)
        return
    residual += x
    x.copy_(F.layer_norm(residual, weight.shape, weight, bias, eps))


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """Return x sigmoid(1.702 x), as CLIP has it."""
    if (kernels := _kernels_for(x)) is not None:
        activated: torch.Tensor = kernels.quick_gelu(x)
        return activated
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return GELU by its approximation with tanh."""
    return F.gelu(x, approximate="tanh")


def gelu_tanh_of_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return gelu_tanh(x weight^T + bias): [P, H], [M, H], [M] -> [P, M]; on a GPU at the end of the product."""
    if x.is_cuda:
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    return gelu_tanh(F.linear(x, weight, bias))

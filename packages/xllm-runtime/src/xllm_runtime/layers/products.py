"""x W^T + b for plain matrices, and who computes it. Knows nothing of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

MEASURED_OPERATIONS = 6e10
"""Multiplications and additions of a product from which the library's algorithms are compared (H200). Of shorter ones the host, which takes
longer to call them so, may lose more than the device gains."""


def plain_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """[T, k] times W [n, k], plus b [n] -> [T, n]: by torch, or on a GPU by the fastest of its library's algorithms.

    The two give the same bits where torch does not divide the sum over k.
    """
    if bias is None and x.is_cuda and x.dim() == 2 and 2 * len(x) * weight.numel() >= MEASURED_OPERATIONS:
        return measured_product()(x, weight)
    return F.linear(x, weight, bias)


@cache
def measured_product() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return what compares algorithms, one a process; torch's product where xllm-kernels is not there."""
    try:
        from xllm_kernels.cuda.products import MeasuredProducts
    except ImportError:
        return F.linear
    return MeasuredProducts()

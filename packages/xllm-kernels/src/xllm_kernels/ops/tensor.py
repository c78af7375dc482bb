"""What operations take and return: torch CPU tensors or numpy arrays. Imports no torch."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np

Tensor: TypeAlias = Any
"""A `torch.Tensor` on the CPU (torch 2.11 or later), or a `numpy.ndarray`; checked by the extension module."""

TensorT = TypeVar("TensorT")
"""The kind that came in is the kind that goes out."""


def new_empty(like: TensorT, shape: tuple[int, ...]) -> TensorT:
    """An uninitialised, contiguous tensor of the kind and dtype of `like`."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype)  # type: ignore[return-value]
    return like.new_empty(shape)  # type: ignore[attr-defined,no-any-return]

"""Where a module of Triton kernels serves a tensor: found when it is first asked for. Knows nothing of what the kernels do."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import torch

TRITON_DTYPES = (torch.bfloat16, torch.float16)
"""What the kernels take."""


def triton_module(name: str, x: torch.Tensor) -> Any:
    """Return `xllm_kernels.triton.<name>`, or None where `x` is not on a GPU that Triton compiles for, or not of a type that it takes.

    None, too, while torch traces what it will compile itself.
    """
    if not x.is_cuda or x.dtype not in TRITON_DTYPES or torch.compiler.is_compiling():
        return None
    return _module(name)


@cache
def _module(name: str) -> Any:
    from xllm_kernels.triton import why_no_triton

    return None if why_no_triton() is not None else import_module(f"xllm_kernels.triton.{name}")

"""The small operations that layers share, behind one protocol, and the choice of who computes them.

Chosen once when a model is built: the kernels of xllm-kernels where they serve, torch everywhere else. Knows nothing of layers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast, runtime_checkable

import torch

KERNEL_DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16, torch.float16)}
TRITON_DTYPES = (torch.bfloat16, torch.float16)
"""What the Triton kernels serve where those of CUDA are not built."""
FUSED_HEAD_SIZES = (64, 128)
KERNEL_NAMES = ("rms_norm", "add_rms_norm", "rotary_embedding", "silu_and_mul")


class Operations(Protocol):
    """`xllm_kernels.ops` and `torch_operations` are modules of this shape; T rows throughout."""

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return x / sqrt(mean(x^2) + eps) * weight over the last axis: [T, H] with weight [H] -> [T, H]."""

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """Set `residual` to x + residual and `x` to its RMSNorm; both [T, H], changed in place."""

    def rotary_embedding(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin_cache: torch.Tensor
    ) -> None:
        """Rotate query [T, Hq, D] and key [T, Hk, D] in place, half-split.

        `positions` int64 [T]; `cos_sin_cache` float32 [max_position, rotary_dim]: cosines, then sines.
        """

    def silu_and_mul(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return silu(x[:, :I]) * x[:, I:]: [T, 2 I] -> [T, I]."""


@runtime_checkable
class FusesNormAndRotation(Protocol):
    """`Operations` that can normalise heads and rotate them in one pass."""

    def norm_and_rotate(
        self,
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        q_norm: torch.Tensor,
        k_norm: torch.Tensor,
        eps: float,
        cos_sin_cache: torch.Tensor,
    ) -> None:
        """Normalise each head of query [T, Hq, D] and key [T, Hk, D], D in `FUSED_HEAD_SIZES`, then rotate it; in place."""


def select_operations(dtype: torch.dtype, device: torch.device, name: str = "auto") -> Operations:
    """Return the kernels where they serve `dtype` on `device`, else torch; `name` "torch" forces torch."""
    if name == "auto" and dtype in KERNEL_DTYPES.get(device.type, ()) and _has_kernels(device):
        if device.type == "cuda":
            return cast("Operations", import_module("xllm_kernels.cuda.ops"))
        return cast("Operations", import_module("xllm_kernels.ops"))
    if name == "auto" and device.type == "cuda" and dtype in TRITON_DTYPES and _has_triton():
        return cast("Operations", import_module("xllm_runtime.layers.triton_operations"))
    return cast("Operations", import_module("xllm_runtime.layers.torch_operations"))


def _has_triton() -> bool:
    from xllm_kernels.triton import why_no_triton

    return why_no_triton() is None


def _has_kernels(device: torch.device) -> bool:
    try:
        from xllm_kernels import explain
    except ImportError:
        return False
    return not any(explain(name, str(device)) for name in KERNEL_NAMES)

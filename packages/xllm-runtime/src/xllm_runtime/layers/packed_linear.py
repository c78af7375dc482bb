"""Linear layers whose float32 weights lie as the CPU's kernel reads them. Knows nothing of blocks or checkpoints.

The kernel shares the threads of all other kernels here, so that a block never waits for two pools of threads in turn.
"""

from __future__ import annotations

import torch
from torch import nn

from xllm_kernels import ops
from xllm_kernels.ops.dense_linear import TILE_OUTPUTS
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.workspace import WORKSPACE


class PackedLinear(nn.Module):
    """y = x W^T + b: [..., in_features] -> [..., rows], float32 on the CPU. Takes the place of a filled `Linear`.

    Args:
        result: name in the workspace of the memory that results are written to; None for new memory each time.
    """

    def __init__(self, linear: Linear, result: str | None) -> None:
        super().__init__()
        rows, in_features = linear.weight.shape
        tiles = linear.weight.data.view(rows // TILE_OUTPUTS, TILE_OUTPUTS, in_features).transpose(1, 2).contiguous()
        self.tiles = nn.Parameter(tiles, requires_grad=False)
        self.bias = linear.bias
        self._rows, self._result = rows, result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., rows]; with a name in the workspace, valid until the next call under that name."""
        shape = (*x.shape[:-1], self._rows)
        out = x.new_empty(shape) if self._result is None else WORKSPACE.take(self._result, shape, x.dtype)
        if x.ndim == 3 and not x.is_contiguous():  # tokens of one stream among those of both
            for row, target in zip(x, out, strict=True):
                ops.dense_linear(row, self.tiles, self.bias, target)
        else:
            ops.dense_linear(x.reshape(-1, x.shape[-1]), self.tiles, self.bias, out.view(-1, self._rows))
        return out


def can_pack(linear: Linear) -> bool:
    """Whether the kernel takes the layer's weights."""
    weight = linear.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and len(weight) % TILE_OUTPUTS == 0


def pack_products(module: nn.Module, *, in_workspace: bool) -> None:
    """Put a `PackedLinear` in the place of every layer below `module` that can be packed, one at a time.

    Args:
        in_workspace: whether results go to memory that is named by the layer's place below `module`.
    """
    for place, parent in list(module.named_modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Linear) and can_pack(child):
                setattr(parent, name, PackedLinear(child, f"{place}.{name}" if in_workspace else None))

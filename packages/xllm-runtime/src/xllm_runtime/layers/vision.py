"""Parts of vision towers: norms, attention within segments, feed-forward networks, patches in and merged patches out.

A tower's rows are patches. Knows nothing of grids, windows or checkpoints beyond the names of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from xllm_runtime.attention import AttentionSpec
from xllm_runtime.attention.segments import Segments, select_segment_attention
from xllm_runtime.layers import vision_operations
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.operations import Operations
from xllm_runtime.layers.parameter import WeightTargets, whole_parameter
from xllm_runtime.layers.workspace import WORKSPACE

ALIGNMENT = 8
"""Numbers of which rows of matrices on a GPU should be a multiple."""
Activation = Callable[[torch.Tensor], torch.Tensor]


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": vision_operations.gelu_tanh,
    "quick_gelu": vision_operations.quick_gelu,
    "silu": F.silu,
}
"""By their names in config.json."""


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al., 2016)."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same, a new tensor."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """Add `x` to `residual` and leave the sum's norm in `x`; both contiguous [P, size], in place."""
        vision_operations.add_layer_norm(x, residual, self.weight, self.bias, self._eps)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield `<prefix>.weight` and `<prefix>.bias`."""
        yield whole_parameter(f"{prefix}.weight", self, "weight")
        yield whole_parameter(f"{prefix}.bias", self, "bias")


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its kernel: one matrix product over flat patches [P, channels * volume]."""

    def __init__(self, kernel: Sequence[int], size: int, *, has_bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, 3, *kernel, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False) if has_bias else None

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[P, 3 * volume] -> [P, size]."""
        return F.linear(patches.to(self.weight.dtype), self.weight.flatten(1), self.bias)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield `<prefix>.weight`, and `<prefix>.bias` if there is one."""
        yield whole_parameter(f"{prefix}.weight", self, "weight")
        if self.bias is not None:
            yield whole_parameter(f"{prefix}.bias", self, "bias")


class VisionAttention(nn.Module):
    """Attention of each patch to all patches of its segment, with rotary positions in two axes."""

    def __init__(
        self, size: int, num_heads: int, dtype: torch.dtype, operations: Operations, *, has_bias: bool = True
    ) -> None:
        super().__init__()
        self.qkv = Linear(size, [("qkv", 3 * size)], has_bias=has_bias, dtype=dtype)
        self.proj = Linear(size, [("proj", size)], has_bias=has_bias, dtype=dtype)
        self._num_heads, self._head_dim = num_heads, size // num_heads
        self._operations = operations
        self._attention = select_segment_attention(segment_spec(num_heads, self._head_dim, dtype))

    def forward(self, x: torch.Tensor, segments: Segments, rotary_table: torch.Tensor) -> torch.Tensor:
        """[P, size] -> [P, size]; a patch sees its segment, row i turns by row i of the table."""
        heads = self.qkv(x).view(len(x), 3, self._num_heads, self._head_dim)
        query, key, value = heads.unbind(1)
        rows = torch.arange(len(x), device=x.device)
        self._operations.rotary_embedding(rows, query, key, rotary_table)
        output: torch.Tensor = self.proj(self._attention.forward(query, key, value, segments).flatten(1))
        return output

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.qkv.weight_targets(prefix)
        yield from self.proj.weight_targets(prefix)


def segment_spec(num_heads: int, head_dim: int, dtype: torch.dtype) -> AttentionSpec:
    """Return what a tower's attention is, on the device that is the default while models are built."""
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        dtype=dtype,
        device=torch.get_default_device(),
    )


class VisionMLP(nn.Module):
    """second(activation(first(x))), or second(activation(gate(x)) * up(x)) where `names` has three parts."""

    def __init__(
        self,
        size: int,
        inner: int,
        names: Sequence[str],
        activation: Activation,
        dtype: torch.dtype,
        operations: Operations,
        *,
        has_bias: bool = True,
    ) -> None:
        super().__init__()
        *first, last = names
        self.first = Linear(size, [(name, inner) for name in first], has_bias=has_bias, dtype=dtype)
        self.second = Linear(inner, [(last, size)], has_bias=has_bias, dtype=dtype)
        self._activation, self._is_gated = activation, len(first) == 2
        self._operations = operations
        self._is_aligned = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[P, size] -> [P, size]."""
        if x.is_cuda and not self._is_aligned:
            self.align()
        output: torch.Tensor = self.second(self._activated(x))
        return output

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        """[P, size] -> [P, inner], with as few passes over the inner layer as there are kernels for; valid until the next call."""
        if self._is_gated:
            rows = self.first(x)
            if self._activation is F.silu:
                shape = (len(rows), rows.shape[1] // 2)
                out = WORKSPACE.take("activated", shape, x.dtype) if x.device.type == "cpu" else None
                return self._operations.silu_and_mul(rows, out)
            gate, up = rows.chunk(2, -1)
            gated: torch.Tensor = self._activation(gate) * up
            return gated
        ends_in_gelu = self._activation is vision_operations.gelu_tanh
        if ends_in_gelu and isinstance(self.first, Linear) and self.first.bias is not None:
            return vision_operations.gelu_tanh_of_product(x, self.first.weight, self.first.bias)
        return self._activation(self.first(x))

    def align(self) -> None:
        """Widen the inner layer with zeros to whole multiples of 8, which changes no result; weights must be loaded.

        Products over other numbers (Qwen2.5-VL has 3420) miss the fast kernels of GPUs.
        """
        self._is_aligned = True
        first, second = self.first, self.second
        inner = second.weight.shape[1]
        padding = -inner % ALIGNMENT
        if not padding:
            return
        rows = F.pad(first.weight.data.view(-1, inner, first.weight.shape[1]), (0, 0, 0, padding))
        first.weight = nn.Parameter(rows.flatten(0, 1), requires_grad=False)
        if first.bias is not None:
            biases = F.pad(first.bias.data.view(-1, inner), (0, padding))
            first.bias = nn.Parameter(biases.flatten(), requires_grad=False)
        second.weight = nn.Parameter(F.pad(second.weight.data, (0, padding)), requires_grad=False)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.first.weight_targets(prefix)
        yield from self.second.weight_targets(prefix)


class PatchMerger(nn.Module):
    """Makes one embedding of each `unit` neighbouring patches: second(gelu(first(norm(x)))).

    `names` are those of the norm and of the two layers; `is_norm_last` norms the joined patches, not single ones.
    """

    def __init__(
        self,
        norm: nn.Module,
        sizes: tuple[int, int, int],
        names: Sequence[str],
        dtype: torch.dtype,
        *,
        is_norm_last: bool,
    ) -> None:
        super().__init__()
        size, unit, out_size = sizes
        self.norm = norm
        self.first = Linear(size * unit, [(names[1], size * unit)], has_bias=True, dtype=dtype)
        self.second = Linear(size * unit, [(names[2], out_size)], has_bias=True, dtype=dtype)
        self._names, self._joined, self._is_norm_last = names, size * unit, is_norm_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[P, size] -> [P / unit, out_size]."""
        x = self.norm(x.view(-1, self._joined) if self._is_norm_last else x).view(-1, self._joined)
        output: torch.Tensor = self.second(F.gelu(self.first(x)))
        return output

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the tensors under `prefix`."""
        yield from self.norm.weight_targets(f"{prefix}.{self._names[0]}")  # type: ignore[operator]
        yield from self.first.weight_targets(prefix)
        yield from self.second.weight_targets(prefix)

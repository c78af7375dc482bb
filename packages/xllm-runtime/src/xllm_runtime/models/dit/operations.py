"""What blocks of a diffusion transformer do between matrix products: by kernels of one pass each on CPUs and on GPUs that Triton
compiles for, else by torch, which also gets blocks that it compiles itself.

B rows of a batch, S tokens, D features, H heads of P features. Knows nothing of layers or of weights' names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from xllm_kernels import ops
from xllm_runtime.layers.triton_modules import triton_module
from xllm_runtime.layers.workspace import WORKSPACE

NORM_EPS = 1e-6
"""Of every LayerNorm without weights and every RMSNorm of heads, in all families here."""
CUDA_ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""In order of preference. On one H200, 4608 tokens of 24 heads of 128 take cuDNN 0.41 ms, torch's own choice 0.88 ms."""
KERNEL_DTYPES = (torch.float32, torch.bfloat16)
"""What the kernels of the CPU take."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles of S positions: cosines and sines, float32 [S, P / 2], for pairs of neighbouring features."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class Projected:
    """Query, key and value of one stream, [B, n, 3 * H * P], and the weights [P] of its heads' RMSNorms."""

    qkv: torch.Tensor
    num_heads: int
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


def has_kernels(x: torch.Tensor) -> bool:
    """Whether the CPU's kernels take `x`, and torch is not tracing what it would compile itself."""
    return x.device.type == "cpu" and x.dtype in KERNEL_DTYPES and not torch.compiler.is_compiling()


def _gpu_kernels(x: torch.Tensor) -> Any:
    return triton_module("images", x)


def modulated_norm(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return layer_norm(x) * (1 + scale) + shift (Peebles and Xie, 2023): [B, S, D] with [B, D] each -> [B, S, D].

    On the CPU, results of this module lie in the workspace and are valid until the next call of the same function.
    """
    if has_kernels(x):
        return ops.modulated_norm(x, shift, scale, NORM_EPS, WORKSPACE.take("normed", tuple(x.shape), x.dtype))
    if (kernels := _gpu_kernels(x)) is not None:
        normed: torch.Tensor = kernels.modulated_norm(x, shift, scale, NORM_EPS)
        return normed
    return torch.addcmul(shift[:, None], F.layer_norm(x, x.shape[-1:], eps=NORM_EPS), 1 + scale[:, None])


def add_gated(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> None:
    """Set `x` to x + gate * y, in place: [B, S, D], [B, S, D] and [B, D]."""
    if has_kernels(x):
        ops.add_gated(x, y, gate)
        return
    # the largest float16 is exceeded by activations of published models
    limit = torch.finfo(x.dtype).max if x.dtype == torch.float16 else 0.0
    if (kernels := _gpu_kernels(x)) is not None:
        kernels.add_gated(x, y, gate, limit)
        return
    x.addcmul_(gate[:, None], y)
    if limit > 0:
        x.clamp_(-limit, limit)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return gelu(x) by the tanh formula: [B, S, M] -> [B, S, M]. On the CPU it takes the place of `x`."""
    if has_kernels(x):
        return ops.gelu(x, x)
    return F.gelu(x, approximate="tanh")


def joint_attention(
    streams: Sequence[Projected], rotary: Rotary | None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return what every token of all streams, one behind the other, sees of all others: [B, S, H * P].

    Args:
        rotary: of all S positions, for queries and keys; None for no rotation.
        mask: bool [B, 1, 1, S], False for keys that are padding.
    """
    if has_kernels(streams[0].qkv):
        return _attend_by_kernel(streams, rotary, mask, None)
    if (kernels := _head_kernels(streams[0])) is not None:
        return attend(*_split_by_kernel(kernels, streams, rotary), mask).flatten(2)
    query, key, value = zip(*(_heads(stream) for stream in streams), strict=True)
    return attend(_turned(query, rotary), _turned(key, rotary), _joined(value), mask).flatten(2)


def attention_beside_gelu(
    stream: Projected, mlp: torch.Tensor, rotary: Rotary | None, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return `joint_attention` of one stream and gelu(mlp) [B, S, M] side by side: [B, S, H * P + M]."""
    inner = stream.qkv.shape[-1] // 3
    if not has_kernels(mlp):
        attended = joint_attention([stream], rotary, mask)
        if (kernels := _gpu_kernels(mlp)) is None:
            return torch.cat((attended, F.gelu(mlp, approximate="tanh")), dim=-1)
        joined: torch.Tensor = kernels.beside_gelu(attended.reshape(-1, inner), mlp.flatten(0, 1))
        return joined.view(*mlp.shape[:2], -1)
    out = WORKSPACE.take("beside", (*mlp.shape[:2], inner + mlp.shape[2]), mlp.dtype)
    _attend_by_kernel([stream], rotary, mask, out[..., :inner])
    ops.gelu(mlp, out[..., inner:])
    return out


def _attend_by_kernel(
    streams: Sequence[Projected], rotary: Rotary | None, mask: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    if out is None:
        qkv, num_tokens = streams[0].qkv, sum(stream.qkv.shape[1] for stream in streams)
        out = WORKSPACE.take("attended", (len(qkv), num_tokens, qkv.shape[2] // 3), qkv.dtype)
    attended: torch.Tensor = ops.joint_attention(
        [(stream.qkv, stream.q_norm, stream.k_norm) for stream in streams],
        streams[0].num_heads,
        cos=None if rotary is None else rotary.cos,
        sin=None if rotary is None else rotary.sin,
        mask=None if mask is None else mask.flatten(1).to(torch.int32),
        eps=NORM_EPS,
        out=out,
    )
    return attended


def _head_kernels(stream: Projected) -> Any:
    """Return the kernels of GPUs if they take the stream's heads, whose size must be a power of two, else None."""
    head_size = stream.qkv.shape[-1] // (3 * stream.num_heads)
    return _gpu_kernels(stream.qkv) if head_size >= 2 and head_size & (head_size - 1) == 0 else None


def _split_by_kernel(
    kernels: Any, streams: Sequence[Projected], rotary: Rotary | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return query, key and value [B, S, H, P] of all streams, normalised and rotated."""
    qkv, num_heads = streams[0].qkv, streams[0].num_heads
    num_tokens = sum(stream.qkv.shape[1] for stream in streams)
    out = qkv.new_empty(3, len(qkv), num_tokens, num_heads, qkv.shape[2] // (3 * num_heads))
    start = 0
    for stream in streams:
        stop = start + stream.qkv.shape[1]
        cos, sin = (None, None) if rotary is None else (rotary.cos[start:stop], rotary.sin[start:stop])
        kernels.split_heads(stream.qkv, stream.q_norm, stream.k_norm, cos, sin, NORM_EPS, out[:, :, start:stop])
        start = stop
    return out[0], out[1], out[2]


def _heads(stream: Projected) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = stream.qkv.view(*stream.qkv.shape[:2], 3, stream.num_heads, -1).unbind(2)
    if stream.q_norm is not None:
        query = F.rms_norm(query, query.shape[-1:], stream.q_norm, NORM_EPS)
    if stream.k_norm is not None:
        key = F.rms_norm(key, key.shape[-1:], stream.k_norm, NORM_EPS)
    return query, key, value


def _joined(streams: Sequence[torch.Tensor]) -> torch.Tensor:
    return streams[0] if len(streams) == 1 else torch.cat(tuple(streams), dim=1)


def _turned(streams: Sequence[torch.Tensor], rotary: Rotary | None) -> torch.Tensor:
    joined = _joined(streams)
    return joined if rotary is None else rotate(joined, rotary)


def rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotate each pair of neighbouring features (Su et al., 2021), computed in float32: [B, S, H, P] -> the same."""
    even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = rotary.cos[:, None], rotary.sin[:, None]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return attention of every token to every other one: [B, S, H, P] each -> [B, S, H, P].

    Args:
        mask: bool [B, 1, 1, S], False for keys that are padding.
    """
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if query.is_cuda:
        with sdpa_kernel(CUDA_ATTENTION, set_priority=True):
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    else:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return out.transpose(1, 2)

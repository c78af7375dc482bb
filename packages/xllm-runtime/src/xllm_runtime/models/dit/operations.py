"""What blocks of a diffusion transformer do between matrix products, with few passes over memory on the CPU.

B rows of a batch, S tokens, D features, H heads of P features. Knows nothing of layers or of weights' names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

NORM_EPS = 1e-6
"""Of every LayerNorm without weights and every RMSNorm of heads, in all families here."""
CUDA_ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""In order of preference. On one H200, 4608 tokens of 24 heads of 128 take cuDNN 0.41 ms, torch's own choice 0.88 ms."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles of S positions: cosines and sines, float32 [S, P / 2], for pairs of neighbouring features."""

    cos: torch.Tensor
    sin: torch.Tensor

    def part(self, start: int, stop: int) -> Rotary:
        """Return the angles of positions `start` to `stop`."""
        return Rotary(self.cos[start:stop], self.sin[start:stop])


@dataclass(frozen=True, slots=True)
class Projected:
    """Query, key and value of one stream, [B, n, 3 * H * P], and how its heads are prepared."""

    qkv: torch.Tensor
    num_heads: int
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    rotary: Rotary | None


def modulated_norm(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return layer_norm(x) * (1 + scale) + shift (Peebles and Xie, 2023): [B, S, D] with [B, D] each -> [B, S, D]."""
    return torch.addcmul(shift[:, None], F.layer_norm(x, x.shape[-1:], eps=NORM_EPS), 1 + scale[:, None])


def add_gated(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> None:
    """Set `x` to x + gate * y, in place: [B, S, D], [B, S, D] and [B, D]."""
    x.addcmul_(gate[:, None], y)
    if x.dtype == torch.float16:  # its largest number is exceeded by activations of published models
        x.clamp_(-65504, 65504)


def joint_heads(streams: Sequence[Projected]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return query, key and value [B, S, H, P] of all streams, one behind the other, normalised and rotated where asked."""
    qkv = streams[0].qkv
    if qkv.device.type != "cpu" or qkv.dtype != torch.float32:
        query, key, value = zip(*(_heads(stream) for stream in streams), strict=True)
        if len(streams) == 1:
            return query[0], key[0], value[0]
        return torch.cat(query, dim=1), torch.cat(key, dim=1), torch.cat(value, dim=1)
    num_heads, num_tokens = streams[0].num_heads, sum(stream.qkv.shape[1] for stream in streams)
    joined = qkv.new_empty(3, len(qkv), num_tokens, num_heads, qkv.shape[2] // (3 * num_heads))
    start = 0
    for stream in streams:
        stop = start + stream.qkv.shape[1]
        _write_heads(stream, joined[:, :, start:stop])
        start = stop
    return joined[0], joined[1], joined[2]


def _write_heads(stream: Projected, out: torch.Tensor) -> None:
    """Write a stream's query, key and value to `out` [3, B, n, H, P]: float32 on the CPU, in place, query and key at once.

    Pairs of features are rotated as complex numbers, in one pass.
    """
    parts = stream.qkv.view(*stream.qkv.shape[:2], 3, stream.num_heads, -1).permute(2, 0, 1, 3, 4)
    out[2].copy_(parts[2])
    turned = out[:2]
    if stream.q_norm is not None and stream.k_norm is not None:
        inverse = torch.linalg.vector_norm(parts[:2], dim=-1, keepdim=True)
        inverse = inverse.square_().div_(out.shape[-1]).add_(NORM_EPS).rsqrt_()
        torch.mul(parts[:2], inverse, out=turned)
        turned[0].mul_(stream.q_norm)
        turned[1].mul_(stream.k_norm)
    else:
        turned.copy_(parts[:2])
    if stream.rotary is not None:
        pairs = torch.view_as_complex(turned.unflatten(-1, (-1, 2)))  # type: ignore[no-untyped-call]
        pairs.mul_(torch.complex(stream.rotary.cos, stream.rotary.sin)[:, None])


def _heads(stream: Projected) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    qkv = stream.qkv.view(*stream.qkv.shape[:2], 3, stream.num_heads, -1)
    query, key, value = qkv.unbind(2)
    if stream.q_norm is not None:
        query = F.rms_norm(query, query.shape[-1:], stream.q_norm, NORM_EPS)
    if stream.k_norm is not None:
        key = F.rms_norm(key, key.shape[-1:], stream.k_norm, NORM_EPS)
    if stream.rotary is not None:
        query, key = rotate(query, stream.rotary), rotate(key, stream.rotary)
    return query, key, value


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


def beside_gelu(attended: torch.Tensor, mlp: torch.Tensor) -> torch.Tensor:
    """Return attention's output [B, S, H, P] and gelu(mlp) [B, S, M] side by side: [B, S, H * P + M]."""
    attended = attended.flatten(2)
    if mlp.device.type != "cpu":
        return torch.cat((attended, F.gelu(mlp, approximate="tanh")), dim=-1)
    out = mlp.new_empty(*mlp.shape[:2], attended.shape[2] + mlp.shape[2])
    out[..., : attended.shape[2]].copy_(attended)
    torch.ops.aten.gelu.out(mlp, approximate="tanh", out=out[..., attended.shape[2] :])
    return out

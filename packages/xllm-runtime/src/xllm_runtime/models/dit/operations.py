"""What blocks of a diffusion transformer do between matrix products, each in one pass where a kernel serves.

B rows of a batch, S tokens, D features, H heads of P features. Knows nothing of layers or of weights' names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

NORM_EPS = 1e-6
"""Of every LayerNorm without weights and every RMSNorm of heads, in all families here."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Angles of S positions: cosines and sines, float32 [S, P / 2], for pairs of neighbouring features."""

    cos: torch.Tensor
    sin: torch.Tensor

    def part(self, start: int, stop: int) -> Rotary:
        """Return the angles of positions `start` to `stop`."""
        return Rotary(self.cos[start:stop], self.sin[start:stop])


def modulated_norm(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return layer_norm(x) * (1 + scale) + shift (Peebles and Xie, 2023): [B, S, D] with [B, D] each -> [B, S, D]."""
    return torch.addcmul(shift[:, None], F.layer_norm(x, x.shape[-1:], eps=NORM_EPS), 1 + scale[:, None])


def add_gated(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> None:
    """Set `x` to x + gate * y, in place: [B, S, D], [B, S, D] and [B, D]."""
    x.addcmul_(gate[:, None], y)
    if x.dtype == torch.float16:  # its largest number is exceeded by activations of published models
        x.clamp_(-65504, 65504)


def heads(
    qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, rotary: Rotary | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return query, key and value [B, S, H, P] of [B, S, 3, H, P], the first two normalised and rotated where asked."""
    query, key, value = qkv.unbind(2)
    if q_norm is not None:
        query = F.rms_norm(query, query.shape[-1:], q_norm, NORM_EPS)
    if k_norm is not None:
        key = F.rms_norm(key, key.shape[-1:], k_norm, NORM_EPS)
    if rotary is not None:
        query, key = rotate(query, rotary), rotate(key, rotary)
    return query, key, value


def rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotate each pair of neighbouring features (Su et al., 2021), computed in float32: [B, S, H, P] -> the same."""
    even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = rotary.cos[:, None], rotary.sin[:, None]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Return attention of every token to every other one: [B, S, H, P] each -> [B, S, H * P].

    Args:
        mask: bool [B, 1, 1, S], False for keys that are padding.
    """
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
    )
    return out.transpose(1, 2).flatten(2)

"""Linear attention by the gated delta rule, and the short convolution before it. Knows nothing of slots, batches or weights.

After each token a head's state S [Dk, Dv] forgets a little and learns what it got wrong about the token's value (Yang, Kautz and
Hatamizadeh, "Gated Delta Networks", 2024):

    d = beta (v - exp(g) S^T k);    S <- exp(g) S + k d^T;    output = S^T q

Within a chunk of C tokens the errors d obey a triangular system, so that a chunk takes a few matrix products instead of C steps:
with c the running sum of g and decay[i, j] = exp(c_i - c_j) for j <= i,

    (I + beta decay (k k^T), below the diagonal) d = beta (v - exp(c) k S)
    output = exp(c) q S + (decay (q k^T), up to the diagonal) d
    S <- exp(c_C) S + (exp(c_C - c) k)^T d
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 64
"""Tokens of one triangular system; decays over more lose their precision."""
_EPS = 1e-6


def gated_delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs float32 [N, L, Hv, Dv] and the new state [N, Hv, Dk, Dv] of N sequences of L tokens each.

    `query` and `key` [N, L, Hk, Dk], of which each serves Hv / Hk heads of `value` [N, L, Hv, Dv]; `decay` (g, at most 0) and
    `beta` [N, L, Hv]; `state` float32 [N, Hv, Dk, Dv], which stays as it is.
    """
    length, groups = value.shape[1], value.shape[2] // key.shape[2]
    query, key = (_unit(x).repeat_interleave(groups, 2) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    parts = [x.float().transpose(1, 2) for x in (query, key, value, decay, beta)]
    outputs = []
    for start in range(0, length, CHUNK):
        query, key, value, decay, beta = (part[:, :, start : start + CHUNK] for part in parts)
        output, state = _chunk(query, key, value, decay, beta, state)
        outputs.append(output)
    return torch.cat(outputs, 2).transpose(1, 2), state


def _chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk; [N, H, C, D] for the first three, [N, H, C] for the next two."""
    total = decay.cumsum(-1)
    since = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    beta, grown = beta[..., None], total.exp()[..., None]
    system = (beta * since * (key @ key.mT)).tril(-1)
    error = torch.linalg.solve_triangular(
        system, beta * (value - grown * (key @ state)), upper=False, unitriangular=True
    )
    output = grown * (query @ state) + (since * (query @ key.mT)) @ error
    left = (total[..., -1:] - total).exp()[..., None]
    return output, grown[..., -1:, :] * state + (left * key).mT @ error


def short_convolution(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return silu of the causal convolution of each channel [N, L, D], and the new state [N, K - 1, D].

    `x` [N, L, D]; `weight` [D, 1, K]; `state` are the K - 1 rows before `x`.
    """
    rows = torch.cat([state, x], 1)
    convolved = F.conv1d(rows.mT, weight, groups=weight.shape[0]).mT
    return F.silu(convolved), rows[:, x.shape[1] :]


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Return float32 vectors of length 1."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)

"""Filters a distribution by top-k, top-p and min-p, and draws one token a row. Knows nothing of where logits come from.

Rows without top-k and top-p are drawn from the whole vocabulary, without sorting it. The others are drawn from their
best tokens: a first look at `FIRST_WIDTH` of them settles most rows, and only those whose filter reaches further are
looked at again, wider. Which way a row takes depends on its own options, and every sum runs over one row in one order,
so the token is a function of the row alone: `torch.sum` and `torch.logsumexp` would split a lone row among threads.

A draw inverts the cumulative distribution over rising token ids, so that logits which differ in their last bits (as
another batch size can make them) move only the borders between tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import SamplingRows
from xllm_runtime.sampling.filter_limits import FIRST_WIDTH, MASS_ROUNDING, SECOND_WIDTH
from xllm_runtime.sampling.philox import uniforms
from xllm_runtime.sampling.ranking import best_tokens


@dataclass(slots=True)
class DrawRows:
    """Options of the R rows to draw, each [R], on the logits' device."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    """From 1 to the vocabulary's size, which means off."""
    top_p: torch.Tensor
    """float64; 1 is off."""
    min_p: torch.Tensor
    uniform: torch.Tensor
    """float64 in [0, 1)."""

    @classmethod
    def take(cls, rows: SamplingRows, chosen: npt.NDArray[np.int64], logits: torch.Tensor) -> DrawRows:
        """Take the rows `chosen` from the options of a batch with `logits` [rows, V]."""
        top_k, vocab_size, device = rows.top_k[chosen], logits.shape[1], logits.device
        top_k = np.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k)
        return cls(
            temperature=torch.from_numpy(rows.temperature[chosen]).to(device),
            top_k=torch.from_numpy(top_k).to(device),
            top_p=torch.from_numpy(rows.top_p[chosen].astype(np.float64)).to(device),
            min_p=torch.from_numpy(rows.min_p[chosen]).to(device),
            uniform=torch.from_numpy(uniforms(rows.seed[chosen], rows.step[chosen])).to(device),
        )

    def __getitem__(self, index: torch.Tensor) -> DrawRows:
        return DrawRows(
            self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index], self.uniform[index]
        )


def draw(logits: torch.Tensor, best: torch.Tensor, rows: DrawRows) -> torch.Tensor:
    """Return int64 [R]: one token a row of float32 `logits` [R, V], which are overwritten.

    `best` [R] is the largest logit of each row and finite. Order: temperature, top-k, top-p over what top-k left, min-p.
    """
    vocab_size = logits.shape[1]
    scaled = logits.sub_(best.unsqueeze(1)).div_(rows.temperature.unsqueeze(1))
    needs_ranking = (rows.top_k < vocab_size) | (rows.top_p < 1.0)
    tokens = torch.empty(len(scaled), dtype=torch.int64, device=scaled.device)
    plain = (~needs_ranking).nonzero().squeeze(1)
    if len(plain):
        tokens[plain] = _draw_from_all(_take(scaled, plain), rows[plain])
    pending = needs_ranking.nonzero().squeeze(1)
    for width in (FIRST_WIDTH, SECOND_WIDTH, vocab_size):
        if len(pending):
            drawn, is_settled = _draw_from_best(_take(scaled, pending), rows[pending], min(width, vocab_size))
            tokens[pending] = drawn
            pending = pending[~is_settled]
    return tokens


def _take(scaled: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the rows `index`, in rising order, of `scaled` [R, V]; without a copy when that is all of them."""
    return scaled if len(index) == len(scaled) else scaled.index_select(0, index)


def _draw_from_all(scaled: torch.Tensor, rows: DrawRows) -> torch.Tensor:
    """Draw from the softmax of `scaled` [R, V], whose largest value a row is 0, under min-p alone."""
    weights = torch.softmax(scaled, dim=-1)
    if rows.min_p.any():
        weights.masked_fill_(weights < (rows.min_p * weights.amax(-1)).unsqueeze(1), 0.0)
    return _invert(weights.cumsum_(-1), rows.uniform).squeeze(1)


def _draw_from_best(scaled: torch.Tensor, rows: DrawRows, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the best `width` tokens of `scaled` [R, V]; also return bool [R]: whether the filters end within them."""
    vocab_size = scaled.shape[1]
    values, ids = best_tokens(scaled, width)
    rank = torch.arange(width, device=scaled.device)
    top_k, top_p = rows.top_k.unsqueeze(1), rows.top_p.unsqueeze(1)
    weights = torch.where(rank < top_k, values.double().exp(), 0.0)
    mass = weights.cumsum(-1)
    total = mass[:, -1:].clone()
    unbounded = (rows.top_k == vocab_size).nonzero().squeeze(1)
    if len(unbounded):  # the largest weight is 1, so the largest probability is 1 / total
        total[unbounded] = 1.0 / torch.softmax(_take(scaled, unbounded), dim=-1).amax(-1, keepdim=True).double()
    needed = (top_p - MASS_ROUNDING) * total
    is_settled = (top_k <= width) | ((top_k == vocab_size) & (mass[:, -1:] >= needed))
    is_kept = ((mass - weights < needed) | (top_p == 1.0) | (rank == 0)) & (weights >= rows.min_p.unsqueeze(1))
    ids, order = ids.sort(dim=-1)
    weights = torch.where(is_kept, weights, 0.0).gather(1, order)
    return ids.gather(1, _invert(weights.cumsum(-1), rows.uniform)).squeeze(1), is_settled.squeeze(1)


def _invert(cumulative: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return int64 [R, 1]: the first index whose cumulative weight [R, N] exceeds `uniform` [R] of the row's total."""
    total = cumulative[:, -1:]
    target = (uniform.unsqueeze(1) * total).to(cumulative.dtype)
    below_total = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulative, torch.minimum(target, below_total), right=True)

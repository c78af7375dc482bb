"""Filters a distribution by top-k, top-p and min-p, and draws one token. Knows nothing of where logits come from.

The meaning, the filters' order and the random numbers are those of `sampling.draw`, which explains them: a first look
at the best `FIRST_WIDTH` tokens settles most rows, and a draw inverts the cumulative distribution over rising token ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import SamplingRows
from xllm_runtime.sampling.arrays.ranking import Ids, Row, best_tokens
from xllm_runtime.sampling.filter_limits import FIRST_WIDTH, MASS_ROUNDING, SECOND_WIDTH
from xllm_runtime.sampling.philox import uniforms

Weights = npt.NDArray[np.float64]
_PART = 256
"""Weights that are summed first, so that only one part's running sum is needed."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Options of one row to draw."""

    temperature: np.float32
    top_k: int
    """From 1 to the vocabulary's size, which means off."""
    top_p: float
    """1 is off."""
    min_p: np.float32
    uniform: float
    """In [0, 1)."""


def row_filters(rows: SamplingRows, chosen: npt.NDArray[np.intp], vocab_size: int) -> list[RowFilter]:
    """Return the options of the rows `chosen` of a batch."""
    top_k = rows.top_k[chosen]
    top_k = np.where((top_k <= 0) | (top_k > vocab_size), vocab_size, top_k)
    uniform = uniforms(rows.seed[chosen], rows.step[chosen])
    return [
        RowFilter(rows.temperature[row], int(top_k[at]), float(rows.top_p[row]), rows.min_p[row], float(uniform[at]))
        for at, row in enumerate(chosen)
    ]


def draw_rows(
    logits: npt.NDArray[np.float32], drawn: npt.NDArray[np.intp], best: Row, rows: SamplingRows
) -> npt.NDArray[np.int32]:
    """Return a token for each of the rows `drawn` of float32 `logits` [R, V], which are overwritten.

    `best` [R] holds every row's largest logit.
    """
    options = row_filters(rows, drawn, logits.shape[1])
    tokens = [draw(logits[row], best[row], one) for row, one in zip(drawn, options, strict=True)]
    return np.array(tokens, np.int32)


def draw(logits: Row, best: np.float32, options: RowFilter) -> int:
    """Return one token of float32 `logits` [V], which are overwritten; `best` is the largest of them and finite."""
    scaled = logits
    scaled -= best
    scaled /= options.temperature
    vocab_size = len(scaled)
    if options.top_k == vocab_size and options.top_p >= 1.0:
        return _draw_from_all(scaled, options)
    for width in (FIRST_WIDTH, SECOND_WIDTH):
        if width < vocab_size:
            token = _draw_from_best(scaled, options, width)
            if token is not None:
                return token
    token = _draw_from_best(scaled, options, vocab_size)
    assert token is not None  # the whole vocabulary settles every filter
    return token


def _draw_from_all(scaled: Row, options: RowFilter) -> int:
    """Draw from the softmax of `scaled` [V], whose largest value is 0, under min-p alone."""
    weights = np.exp(scaled, out=scaled)
    if options.min_p > 0:
        weights[weights < options.min_p] = 0.0
    parts = np.add.reduceat(weights, np.arange(0, len(weights), _PART)).cumsum(dtype=np.float64)
    target = options.uniform * parts[-1]
    part = _invert(parts, target)
    before = parts[part - 1] if part else 0.0
    inner = weights[part * _PART : (part + 1) * _PART].cumsum(dtype=np.float64)
    return part * _PART + _invert(inner, target - before)


def _draw_from_best(scaled: Row, options: RowFilter, width: int) -> int | None:
    """Draw from the best `width` tokens of `scaled` [V], or return None: the filters do not end within them."""
    values, ids = best_tokens(scaled, width)
    weights = np.exp(values.astype(np.float64))
    is_unbounded = options.top_k == len(scaled)
    if not is_unbounded:
        weights[options.top_k :] = 0.0
    mass = weights.cumsum()
    total = float(np.exp(scaled).sum(dtype=np.float64)) if is_unbounded else float(mass[-1])
    needed = (options.top_p - MASS_ROUNDING) * total
    if not (options.top_k <= width or (is_unbounded and mass[-1] >= needed)):
        return None
    if options.top_p < 1.0:
        is_cut = mass - weights >= needed
        is_cut[0] = False
        weights[is_cut] = 0.0
    weights[weights < options.min_p] = 0.0
    return _in_order(ids, weights, options.uniform)


def _in_order(ids: Ids, weights: Weights, uniform: float) -> int:
    """Draw one of `ids`, over rising ids."""
    order = np.argsort(ids)
    cumulative = weights[order].cumsum()
    return int(ids[order[_invert(cumulative, uniform * cumulative[-1])]])


def _invert(cumulative: Weights, target: float) -> int:
    """Return the first index whose cumulative weight exceeds `target`, or the last of those that add to the total."""
    below_total = np.nextafter(cumulative[-1], 0.0)
    return int(cumulative.searchsorted(min(target, below_total), side="right"))

"""The sampler, one row at a time in float64 and plain Python: the meaning of each option. Knows nothing of torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from support.sampling_rows import Row
from xllm_runtime.sampling.philox import uniforms

Numbers = npt.NDArray[np.float64]


def adjusted_logits(logits: npt.NDArray[np.float32], row: Row) -> Numbers:
    """Return the logits after penalties, biases and bans."""
    result = logits.astype(np.float64)
    for token in set(row.output):
        result[token] -= row.frequency_penalty * row.output.count(token) + row.presence_penalty
    for token in {*row.prompt, *row.output} if row.repetition_penalty != 1.0 else ():
        result[token] *= row.repetition_penalty if result[token] < 0 else 1.0 / row.repetition_penalty
    for token, bias in row.bias:
        result[token] += bias
    for token in row.banned:
        result[token] = -np.inf
    return result


def filtered_probabilities(logits: Numbers, row: Row) -> Numbers:
    """Return the probabilities that temperature, top-k, top-p and min-p leave, renormalised."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    weights = np.exp((logits - logits.max()) / row.temperature)
    kept = order[: row.top_k] if row.top_k > 0 else order
    if row.top_p < 1.0:
        mass = np.cumsum(weights[kept]) / weights[kept].sum()
        kept = kept[: 1 + int(np.argmax(mass >= row.top_p - 1e-6))]
    kept = [token for token in kept if weights[token] >= row.min_p]
    result = np.zeros_like(weights)
    result[kept] = weights[kept]
    return result / result.sum()


def expected_token(logits: npt.NDArray[np.float32], row: Row) -> int:
    """Return the token that the sampler must give for float32 logits [V]."""
    adjusted = adjusted_logits(logits, row)
    if row.temperature == 0.0:
        return int(np.argmax(adjusted))
    cumulative = np.cumsum(filtered_probabilities(adjusted, row))
    uniform = uniforms(np.array([row.seed], np.uint64), np.array([row.step], np.int64))[0]
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))

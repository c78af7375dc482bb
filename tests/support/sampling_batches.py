"""Random batches of logits and options for any sampler, and which of their draws rounding may rightly change."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from support.sampling_reference import adjusted_logits, filtered_probabilities
from support.sampling_rows import Row
from xllm_runtime.sampling.philox import uniforms

VOCAB_SIZES = (1, 2, 7, 127, 130, 3000)


@st.composite
def options(draw_from, vocab_size: int) -> Row:
    tokens = st.integers(0, vocab_size - 1)
    return Row(
        temperature=draw_from(st.sampled_from([0.0, 0.01, 0.3, 1.0, 1.0, 2.0])),
        top_p=draw_from(st.sampled_from([1.0, 1.0, 0.99, 0.9, 0.5, 0.1, 1e-7])),
        top_k=draw_from(st.sampled_from([0, 0, 2, 3, 20, 64, 65, 1024, 1500, vocab_size, 10**6])),
        min_p=draw_from(st.sampled_from([0.0, 0.0, 0.05, 0.6, 1.0])),
        seed=draw_from(st.integers(0, 2**64 - 1)),
        step=draw_from(st.integers(0, 2**20)),
        logprobs=draw_from(st.sampled_from([-1, 0, 3])),
        presence_penalty=draw_from(st.sampled_from([0.0, 0.0, -2.0, 1.5])),
        frequency_penalty=draw_from(st.sampled_from([0.0, 0.0, -0.5, 2.0])),
        repetition_penalty=draw_from(st.sampled_from([1.0, 1.0, 0.5, 1.3])),
        prompt=tuple(draw_from(st.lists(tokens, max_size=8))),
        output=tuple(draw_from(st.lists(tokens, max_size=8))),
        bias=tuple(
            (token, draw_from(st.sampled_from([-100.0, -1.0, 2.5])))
            for token in draw_from(st.lists(tokens, max_size=3, unique=True))
        ),
        banned=tuple(draw_from(st.lists(tokens, max_size=min(3, vocab_size - 1), unique=True))),
    )


@st.composite
def batches(draw_from) -> tuple[np.ndarray, list[Row]]:
    vocab_size = draw_from(st.sampled_from(VOCAB_SIZES))
    rows = draw_from(st.lists(options(vocab_size), min_size=1, max_size=6))
    generator = np.random.default_rng(draw_from(st.integers(0, 2**32)))
    logits = generator.normal(0.0, draw_from(st.sampled_from([0.1, 2.0, 6.0])), (len(rows), vocab_size))
    if draw_from(st.booleans()):  # many equal logits, as from a bfloat16 head
        logits = np.round(logits * 4) / 4
    return logits.astype(np.float32), rows


def is_near_a_border(logits: np.ndarray, row: Row) -> bool:
    """Whether float32 rounding may rightly give another token than float64."""
    adjusted = adjusted_logits(logits, row)
    best_two = np.sort(adjusted)[-2:]
    if row.temperature == 0.0:
        return best_two[0] != best_two[-1] and best_two[-1] - best_two[0] < 1e-4
    borders = np.cumsum(filtered_probabilities(adjusted, row))
    uniform = uniforms(np.array([row.seed], np.uint64), np.array([row.step], np.int64))[0]
    if np.abs(borders[:-1] - uniform).min(initial=1.0) < 1e-4:
        return True
    without_top_p = Row(temperature=row.temperature, top_k=row.top_k)
    masses = np.cumsum(np.sort(filtered_probabilities(adjusted, without_top_p))[::-1])
    return bool(row.top_p < 1.0 and np.abs(masses - row.top_p).min() < 1e-4 and len(np.unique(masses)) > 1)

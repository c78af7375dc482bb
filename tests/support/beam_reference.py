"""Beam search by brute force: every continuation of every beam, recomputed from its whole text, without any cache."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Logprobs = Callable[[list[int]], npt.NDArray[np.float64]]
"""From a token list to the log-probabilities of what follows, [vocab_size]."""


def made_up_logprobs(token_ids: list[int], vocab_size: int = 50) -> npt.NDArray[np.float64]:
    """Return log-probabilities that depend on the whole text, all different."""
    seed = zlib.crc32(np.asarray(token_ids, np.int32).tobytes())
    logits = np.random.default_rng(seed).normal(scale=2.0, size=vocab_size)
    return logits - np.log(np.exp(logits).sum())


def beam_search(
    logprobs_after: Logprobs,
    prompt: list[int],
    width: int,
    max_tokens: int,
    ending: set[int],
    length_penalty: float = 0.0,
) -> list[tuple[list[int], float, str]]:
    """Return all kept answers as (tokens, log-probability, finish reason), best first."""

    def score(answer: tuple[list[int], float, str]) -> float:
        return answer[1] / len(answer[0]) ** length_penalty

    live: list[tuple[list[int], float]] = [([], 0.0)]
    answers: list[tuple[list[int], float, str]] = []
    for _ in range(max_tokens):
        everything = [
            ([*tokens, token], total + float(logprob))
            for tokens, total in live
            for token, logprob in enumerate(logprobs_after([*prompt, *tokens]))
        ]
        everything.sort(key=lambda found: -found[1])
        live = []
        for tokens, total in everything:
            if tokens[-1] in ending:
                answers.append((tokens, total, "stop"))
            else:
                live.append((tokens, total))
                if len(live) == width:
                    break
    answers += [(tokens, total, "length") for tokens, total in live]
    return sorted(answers, key=score, reverse=True)

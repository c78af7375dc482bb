"""Sampling options of a batch, written as one keyword dictionary a row. Knows nothing of requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import SamplingRows


@dataclass(slots=True, kw_only=True)
class Row:
    """Options of one row, off by default; `prompt` and `output` count only with penalties."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    step: int = 0
    logprobs: int = -1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether prompt and output change the logits."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


def sampling_rows(rows: list[Row]) -> SamplingRows:
    """Return the arrays of `rows`."""

    def column(name: str, dtype: npt.DTypeLike) -> npt.NDArray:
        return np.array([getattr(row, name) for row in rows], dtype)

    result = SamplingRows(
        temperature=column("temperature", np.float32),
        top_p=column("top_p", np.float32),
        top_k=column("top_k", np.int32),
        min_p=column("min_p", np.float32),
        seed=column("seed", np.uint64),
        step=column("step", np.int64),
        num_logprobs=column("logprobs", np.int32),
        presence_penalty=column("presence_penalty", np.float32),
        frequency_penalty=column("frequency_penalty", np.float32),
        repetition_penalty=column("repetition_penalty", np.float32),
    )
    for index, row in enumerate(rows):
        if row.has_penalties:
            result.penalised.append((index, np.array(row.prompt, np.int32), np.array(row.output, np.int32)))
        if row.bias:
            ids, biases = zip(*row.bias, strict=True)
            result.logit_bias.append((index, np.array(ids, np.int64), np.array(biases, np.float32)))
        if row.banned:
            result.banned.append((index, np.array(row.banned, np.int64)))
    return result

"""The short way from a step's most probable tokens to its output, for batches that ask for nothing else. Knows nothing of torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardOutput, SamplingRows
from xllm_runtime.sampling.broken_rows import broken_rows


def takes_most_probable(rows: SamplingRows) -> bool:
    """Whether every row takes the model's most probable token as it is, and no row asks for log-probabilities."""
    changes = rows.penalised or rows.logit_bias or rows.banned or rows.allowed is not None
    return not changes and rows.is_all_greedy and not (rows.num_logprobs >= 0).any()


def is_drawn_as_it_is(rows: SamplingRows) -> bool:
    """Whether every row is drawn from the model's logits as they are, and no row asks for more than its token's log-probability."""
    changes = rows.penalised or rows.logit_bias or rows.banned or rows.allowed is not None
    return not changes and not (rows.num_logprobs > 0).any()


def most_probable_output(token_ids: npt.NDArray[np.int32], best: npt.NDArray[np.float32]) -> ForwardOutput:
    """Return `token_ids` [R] as the step's output, but -1 and an error where the largest logit, `best` [R], is not finite."""
    errors = broken_rows(best)
    token_ids[list(errors)] = -1
    return ForwardOutput(token_ids, errors=errors or None)

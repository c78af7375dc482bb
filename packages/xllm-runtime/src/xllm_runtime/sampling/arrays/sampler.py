"""One pass from the logits of a batch to its tokens, without torch. Knows nothing of models, sequences or stopping.

Order within a row: penalties, biases, bans, constraints (`adjust`), temperature, top-k, top-p, min-p (`draw`); greedy rows take the
most probable token after `adjust`. Log-probabilities are the model's own, of before all that (`logprobs`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xllm_framework.batch import ForwardOutput, SamplingRows
from xllm_runtime.sampling.arrays.adjust import adjust
from xllm_runtime.sampling.arrays.draw import draw_rows
from xllm_runtime.sampling.arrays.logprobs import token_logprobs
from xllm_runtime.sampling.broken_rows import broken_rows
from xllm_runtime.sampling.logprob_rows import LogprobRows

Logits = npt.NDArray[np.float32]
DrawRows = Callable[[Logits, npt.NDArray[np.intp], Logits, SamplingRows], npt.NDArray[np.int32]]
"""As `draw.draw_rows`."""
TokenLogprobs = Callable[[Logits, npt.NDArray[np.int32], int], LogprobRows]
"""As `logprobs.token_logprobs`."""


def sample(
    logits: Logits,
    rows: SamplingRows,
    draw_rows: DrawRows = draw_rows,
    token_logprobs: TokenLogprobs = token_logprobs,
) -> ForwardOutput:
    """Return one token a row of float32 `logits` [R, V], which are overwritten; `sampling.native` brings faster parts.

    A row whose logits hold NaN or infinity, or that allows no token, gets token -1 and an entry in `errors`; the others
    are not affected. Minus infinity is a logit that bars its token.
    """
    asked = np.flatnonzero(rows.num_logprobs >= 0)
    reported = logits[asked]
    adjust(logits, rows)
    token_ids = logits.argmax(-1).astype(np.int32)
    best = logits[np.arange(len(logits)), token_ids]
    errors = broken_rows(best)
    token_ids[list(errors)] = -1
    drawn = np.flatnonzero((rows.temperature > 0.0) & (token_ids >= 0))
    if len(drawn):
        token_ids[drawn] = draw_rows(logits, drawn, best, rows)
    output = ForwardOutput(token_ids, errors=errors or None)
    if len(asked):
        report_logprobs(output, reported, asked, rows, token_logprobs)
    return output


def report_logprobs(
    output: ForwardOutput,
    reported: Logits,
    asked: npt.NDArray[np.intp],
    rows: SamplingRows,
    token_logprobs: TokenLogprobs,
) -> None:
    """Set the log-probabilities of the rows `asked`, whose unadjusted logits are `reported`.

    Rows that did not ask, or that broke, keep log-probability 0 and token -1.
    """
    num_rows, num_top = len(output.token_ids), min(int(rows.num_logprobs.max()), reported.shape[1])
    output.logprobs = np.zeros(num_rows, np.float32)
    is_whole = output.token_ids[asked] >= 0
    reported, asked = reported[is_whole], asked[is_whole]
    found = token_logprobs(reported, output.token_ids[asked], num_top)
    output.logprobs[asked] = found.logprobs
    if num_top:
        output.top_ids = np.full((num_rows, num_top), -1, np.int32)
        output.top_logprobs = np.zeros((num_rows, num_top), np.float32)
        output.top_ids[asked] = found.top_ids
        output.top_logprobs[asked] = found.top_logprobs

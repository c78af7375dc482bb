"""One pass from the logits of a batch to its tokens. Knows nothing of models, sequences or stopping.

Order within a row: penalties, biases, bans, constraints (`adjust`), temperature, top-k, top-p, min-p (`draw`); greedy rows take the
most probable token after `adjust`. Log-probabilities are the model's own, of before all that (`logprobs`).
A row's results depend on its logits and options alone, to the bit, whoever shares the batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardOutput, SamplingRows
from xllm_runtime.platform.uploads import upload
from xllm_runtime.sampling.adjust import adjust
from xllm_runtime.sampling.broken_rows import broken_rows
from xllm_runtime.sampling.draw import DrawRows, draw
from xllm_runtime.sampling.draw_cuda import OptionsUpload, draw_tokens, why_no_draw
from xllm_runtime.sampling.logprobs import token_logprobs
from xllm_runtime.sampling.ranking import most_probable
from xllm_runtime.sampling.slices import row_slices


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: SamplingRows) -> ForwardOutput:
    """Return one token a row of float32 `logits` [R, V], which are overwritten.

    A row whose logits hold NaN or infinity, or that allows no token, gets token -1 and an entry in `errors`; the others
    are not affected. Minus infinity is a logit that bars its token.
    """
    asked = np.flatnonzero(rows.num_logprobs >= 0)
    reported = logits.index_select(0, upload([asked], logits.device)[0]) if len(asked) else logits[:0]
    adjust(logits, rows)
    tokens = most_probable(logits)
    best = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    token_ids = tokens.to(torch.int32).cpu().numpy()
    errors = {} if torch.isfinite(best).all() else broken_rows(best.cpu().numpy())
    token_ids[list(errors)] = -1
    drawn = np.flatnonzero((rows.temperature > 0.0) & (token_ids >= 0))
    if len(drawn) and why_no_draw(logits) is None:
        token_ids = _drawn_by_kernel(logits, tokens, best, rows)
    elif len(drawn):
        _draw_in_slices(token_ids, logits, best, rows, drawn)
    output = ForwardOutput(token_ids, errors=errors or None)
    if len(asked):
        _report_logprobs(output, reported, asked, rows)
    return output


def _drawn_by_kernel(
    logits: torch.Tensor, tokens: torch.Tensor, best: torch.Tensor, rows: SamplingRows
) -> npt.NDArray[np.int32]:
    """Return int32 [R]: a token a row, -1 for broken rows."""
    options = OptionsUpload(len(tokens), logits.device).send(rows)
    drawn = tokens.to(torch.int32)
    draw_tokens(logits, drawn, best, options, drawn)
    return drawn.cpu().numpy()


def _draw_in_slices(
    token_ids: npt.NDArray[np.int32],
    logits: torch.Tensor,
    best: torch.Tensor,
    rows: SamplingRows,
    drawn: npt.NDArray[np.int64],
) -> None:
    """Set `token_ids` of the rows `drawn`, some rows of the vocabulary's size at a time."""
    for piece in row_slices(len(drawn), logits.shape[1]):
        chosen = drawn[piece]
        [index] = upload([chosen], logits.device)
        found = draw(logits.index_select(0, index), best[index], DrawRows.take(rows, chosen, logits))
        token_ids[chosen] = found.cpu().numpy()


def _report_logprobs(
    output: ForwardOutput, reported: torch.Tensor, asked: npt.NDArray[np.int64], rows: SamplingRows
) -> None:
    """Set the log-probabilities of the rows `asked`, whose unadjusted logits are `reported`.

    Rows that did not ask, or that broke, keep log-probability 0 and token -1.
    """
    num_rows, num_top = len(output.token_ids), min(int(rows.num_logprobs.max()), reported.shape[1])
    output.logprobs = np.zeros(num_rows, np.float32)
    is_whole = output.token_ids[asked] >= 0
    if not is_whole.all():
        reported, asked = reported[torch.from_numpy(is_whole).to(reported.device)], asked[is_whole]
    [token_ids] = upload([output.token_ids[asked].astype(np.int64)], reported.device)
    found = token_logprobs(reported, token_ids, num_top)
    output.logprobs[asked] = found.logprobs
    if num_top:
        output.top_ids = np.full((num_rows, num_top), -1, np.int32)
        output.top_logprobs = np.zeros((num_rows, num_top), np.float32)
        output.top_ids[asked] = found.top_ids
        output.top_logprobs[asked] = found.top_logprobs

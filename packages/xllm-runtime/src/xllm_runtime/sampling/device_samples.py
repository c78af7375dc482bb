"""From a step's logits to its tokens without waiting for the device, for rows that ask for more than others.

Rows whose logits are to be changed are copied, changed, and chosen from in float32; the others are chosen from as they are, so that no
row depends on what its neighbours ask for. Knows nothing of models, of steps, or of who counts on the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from xllm_framework.batch import ForwardOutput, SamplingRows
from xllm_runtime.platform.uploads import upload
from xllm_runtime.sampling.adjust import adjust_after_penalties
from xllm_runtime.sampling.most_probable import most_probable_output
from xllm_runtime.sampling.penalties import penalise
from xllm_runtime.sampling.ranking import best_tokens_by_key, most_probable

ROWS_AT_ONCE = 32
"""Whose log-probabilities are worked out at a time."""

Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, SamplingRows], None]
"""(logits [R, V], tokens int32 [R], best logits float32 [R], options): replaces the most probable tokens of rows that draw."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What R rows would take as their most probable token; replaced by what they do take."""

    logits: torch.Tensor
    """[R, V]; stay as they are."""
    token_ids: torch.Tensor
    """int32 [R]"""
    best: torch.Tensor
    """float32 [R]: the largest logit; a row has no token where it is not finite."""


@dataclass(frozen=True, slots=True)
class DeviceSamples:
    """What R rows came to, A of which asked for log-probabilities, on the host once the step has ended."""

    token_ids: torch.Tensor
    """int32 [R]"""
    best: torch.Tensor
    """float32 [R], as in `Choices`."""
    asked: npt.NDArray[np.int64]
    """[A], rows."""
    logprobs: torch.Tensor
    """float32 [A], of the tokens."""
    top_ids: torch.Tensor
    """int32 [A, K]"""
    top_logprobs: torch.Tensor
    """float32 [A, K]"""

    def output(self) -> ForwardOutput:
        """Return the step's output. Only when the step has ended."""
        output = most_probable_output(self.token_ids.numpy().copy(), self.best.numpy())
        if len(self.asked) == 0:
            return output
        num_rows, num_top = len(output.token_ids), self.top_ids.shape[1]
        is_whole = output.token_ids[self.asked] >= 0
        rows = self.asked[is_whole]
        output.logprobs = np.zeros(num_rows, np.float32)
        output.logprobs[rows] = self.logprobs.numpy()[is_whole]
        if num_top:
            output.top_ids = np.full((num_rows, num_top), -1, np.int32)
            output.top_logprobs = np.zeros((num_rows, num_top), np.float32)
            output.top_ids[rows] = self.top_ids.numpy()[is_whole]
            output.top_logprobs[rows] = self.top_logprobs.numpy()[is_whole]
        return output


def sample_on_device(choices: Choices, newest: torch.Tensor, rows: SamplingRows, draw: Draw) -> DeviceSamples:
    """Start to choose a token a row, in place of the most probable ones in `choices`, and to copy what comes out to the host.

    `newest` int32 [R]: the last token of each row's sequence, on the device.
    """
    if not rows.is_all_greedy:
        draw(choices.logits, choices.token_ids, choices.best, rows)
    changed = rows.changed()
    if len(changed):
        [index] = upload([changed], choices.logits.device)
        token_ids, best = _choose_changed(choices.logits[index].float(), newest[index], rows.take(changed), draw)
        choices.token_ids.index_copy_(0, index, token_ids)
        choices.best.index_copy_(0, index, best)
    asked = np.flatnonzero(rows.num_logprobs >= 0)
    num_top = min(int(rows.num_logprobs.max(initial=0)), choices.logits.shape[1])
    found = (choices.token_ids, choices.best, *_logprobs(choices, asked, num_top))
    token_ids, best, logprobs, top_ids, top_logprobs = (tensor.to("cpu", non_blocking=True) for tensor in found)
    return DeviceSamples(token_ids, best, asked, logprobs, top_ids, top_logprobs)


def _choose_changed(
    logits: torch.Tensor, newest: torch.Tensor, rows: SamplingRows, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens int32 [R], best logits [R]) of rows whose float32 `logits` are changed here."""
    if rows.penalised:
        penalise(logits, rows, newest)
    adjust_after_penalties(logits, rows)
    tokens = most_probable(logits)
    best = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    token_ids = tokens.to(torch.int32)
    if not rows.is_all_greedy:
        draw(logits, token_ids, best, rows)
    return token_ids, best


def _logprobs(
    choices: Choices, asked: npt.NDArray[np.int64], num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (log-probabilities [A], best ids int32 [A, K], their log-probabilities [A, K]) of the rows `asked`."""
    if len(asked) == 0:
        none = choices.best.new_empty((0, 0))
        return none.flatten(), none.to(torch.int32), none
    [index] = upload([asked], choices.logits.device)
    parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for rows in torch.split(index, ROWS_AT_ONCE):
        logprobs = torch.log_softmax(choices.logits[rows].float(), dim=-1)
        token_ids = choices.token_ids[rows].long().clamp(min=0).unsqueeze(1)
        top, ids = best_tokens_by_key(logprobs, num_top) if num_top else (logprobs[:, :0], token_ids[:, :0])
        parts.append((logprobs.gather(1, token_ids).squeeze(1), ids.to(torch.int32), top))
    chosen, ids, top = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return chosen, ids, top

"""From the arrays of a `ForwardOutput` to log-probabilities on the wire. Knows nothing of scheduling."""

from __future__ import annotations

from xllm_framework.batch import ForwardOutput, ScheduledSequence
from xllm_framework.request import Request, Sequence
from xllm_framework.request.messages import WireLogprob


def row_logprobs(output: ForwardOutput, row: int, token_id: int, num_top: int) -> list[WireLogprob] | None:
    """Return the entry of the token sampled in `row` with its `num_top` alternatives; None if the step has none.

    None too if `num_top` is -1: nobody asked.
    """
    if output.logprobs is None or num_top < 0:
        return None
    top_ids: list[int] = []
    top_logprobs: list[float] = []
    if num_top > 0 and output.top_ids is not None and output.top_logprobs is not None:
        top_ids = output.top_ids[row, :num_top].tolist()
        top_logprobs = output.top_logprobs[row, :num_top].tolist()
    return [WireLogprob(token_id, float(output.logprobs[row]), top_ids, top_logprobs)]


def chunk_logprobs(output: ForwardOutput, index: int, item: ScheduledSequence, num_top: int) -> list[WireLogprob]:
    """Return one entry for each prompt token that follows a position of the chunk `item`, scheduled at `index`."""
    if output.prompt_logprobs is None or index not in output.prompt_logprobs:
        return []
    logprobs, top_ids, top_logprobs = output.prompt_logprobs[index]
    first = item.start + 1
    targets = item.sequence.token_ids[first : first + len(logprobs)].tolist()
    return [
        WireLogprob(token_id, logprob, ids[:num_top], values[:num_top])
        for token_id, logprob, ids, values in zip(
            targets, logprobs.tolist(), top_ids.tolist(), top_logprobs.tolist(), strict=True
        )
    ]


def needs_every_position(request: Request, sequence: Sequence) -> bool:
    """Whether something of every prompt position is still to be computed, so that none may come from the prefix cache."""
    if request.pooling is not None:
        return request.pooling.needs_every_position
    return owes_prompt_logprobs(request, sequence)


def owes_prompt_logprobs(request: Request, sequence: Sequence) -> bool:
    """Whether the prompt's log-probabilities are still to be computed."""
    return request.sampling.prompt_logprobs is not None and sequence.index == 0 and has_no_output(sequence)


def has_no_output(sequence: Sequence) -> bool:
    """Whether no token of its output is known; a placeholder is not."""
    return sequence.num_tokens - (sequence.last_token_id < 0) <= sequence.num_prompt_tokens

"""When a sequence ends by its tokens alone. Knows nothing of stop strings: those need text, and live on the front side."""

from __future__ import annotations

from collections.abc import Iterable

from xllm_framework.request.sampling_params import SamplingParams
from xllm_framework.request.sequence import Sequence
from xllm_framework.request.status import FinishReason


class StoppingChecker:
    """Decides after each appended token whether the sequence ends.

    Order: the model's end tokens, the request's stop token ids, a constraint that nothing may follow, then length
    (`max_tokens`, then the context).
    `ignore_eos` silences the model's end tokens only.
    """

    def __init__(self, eos_token_ids: Iterable[int], max_model_len: int) -> None:
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_model_len = max_model_len

    def check(self, sequence: Sequence, sampling: SamplingParams) -> tuple[FinishReason, int | None] | None:
        """Return (reason, stop token id or None) if `sequence` ends with its newest token, else None."""
        num_output_tokens = sequence.num_tokens - sequence.num_prompt_tokens  # no property: this runs for every token
        if num_output_tokens > 0 and num_output_tokens >= sampling.min_tokens:
            token_id = sequence.last_token_id
            if token_id in self.eos_token_ids and not sampling.ignore_eos:
                return FinishReason.STOP, token_id
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP, token_id
        if sequence.constraint_state is not None and sequence.constraint_state.is_complete:
            token_id = sequence.last_token_id
            return FinishReason.STOP, token_id if token_id in self.eos_token_ids else None
        if sampling.max_tokens is not None and num_output_tokens >= sampling.max_tokens:
            return FinishReason.LENGTH, None
        if sequence.num_tokens >= self.max_model_len:
            return FinishReason.LENGTH, None
        return None

    def ending_tokens(self, sampling: SamplingParams) -> frozenset[int]:
        """Return the tokens that end a sequence of such a request."""
        return (frozenset() if sampling.ignore_eos else self.eos_token_ids) | frozenset(sampling.stop_token_ids)

    def max_output_tokens(self, sequence: Sequence, sampling: SamplingParams) -> int:
        """Return how many tokens the context, and `max_tokens`, leave for the output of `sequence`."""
        room = self.max_model_len - sequence.num_prompt_tokens
        return room if sampling.max_tokens is None else min(room, sampling.max_tokens)

    def ends_with_next(self, sequence: Sequence, sampling: SamplingParams) -> bool:
        """Whether the next token, whatever it is, is the last one that `sequence` may have."""
        num_tokens = sequence.num_tokens + 1
        max_tokens = sampling.max_tokens
        return num_tokens >= self.max_model_len or (
            max_tokens is not None and num_tokens - sequence.num_prompt_tokens >= max_tokens
        )

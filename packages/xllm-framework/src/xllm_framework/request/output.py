"""What comes back to a caller: text, tokens, log-probabilities. Knows nothing of JSON shapes or of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from xllm_framework.request.status import FinishReason


class TokenLogprob(NamedTuple):
    """A generated (or prompt) token with the most probable alternatives at its position, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]
    """(token id, log-probability), best first; as many as `SamplingParams.logprobs` asked for."""


@dataclass(slots=True)
class SequenceOutput:
    """New text and tokens of one sequence since the last output (or all of them, once accumulated)."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    """One entry a token of `token_ids`, when asked for."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it, when one did and it was the request's own."""
    num_output_tokens: int = 0
    """Tokens generated in all so far, the ending token included."""
    pooled: npt.NDArray[np.float32] | None = None
    """The vector of a pooling request, with its last output."""

    def extend(self, delta: SequenceOutput) -> None:
        """Add a later delta of the same sequence."""
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.num_output_tokens = delta.num_output_tokens
        self.pooled = delta.pooled


@dataclass(slots=True)
class RequestTimings:
    """Readings of the monotonic clock, in seconds; None where that has not happened."""

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """News of one request, given to its output callback.

    A streamed output holds only sequences that have news. `error` is set on the last output of a request that failed
    as a whole; then `error_kind` is the `kind` of the `XLLMError`.
    """

    request_id: str
    outputs: list[SequenceOutput]
    finished: bool
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    timings: RequestTimings | None = None
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """One entry a prompt token (the first is None), on the first output only, when asked for."""
    error: str | None = None
    error_kind: str | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated over all sequences that this output holds."""
        return sum(output.num_output_tokens for output in self.outputs)

    def extend(self, delta: RequestOutput) -> None:
        """Add a later output of the same request, so that in the end this one holds everything, by index."""
        by_index = {output.index: output for output in self.outputs}
        for output in delta.outputs:
            if output.index in by_index:
                by_index[output.index].extend(output)
            else:
                self.outputs.append(output)
        self.outputs.sort(key=lambda output: output.index)
        self.finished = delta.finished
        self.num_cached_tokens = delta.num_cached_tokens
        self.timings = delta.timings
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        self.error = delta.error
        self.error_kind = delta.error_kind

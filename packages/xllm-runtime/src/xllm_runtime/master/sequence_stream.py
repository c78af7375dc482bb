"""One sequence's way from tokens to text, with its stop strings. Knows nothing of requests or callbacks."""

from __future__ import annotations

import numpy as np

from xllm_framework.request import FinishReason, SamplingParams, SequenceOutput, TokenLogprob
from xllm_framework.request.messages import SequenceDelta, WireLogprob
from xllm_framework.tokenizer import IncrementalDetokenizer, StopStringMatcher, Tokenizer


class SequenceStream:
    """Turns the deltas of one sequence into outputs.

    A token that ended the sequence (end-of-text or a stop token id) is part of `token_ids` and `logprobs`, but not of
    the text. Tokens behind the one that completed a stop string are dropped.
    """

    __slots__ = ("_detokenizer", "_index", "_matcher", "_stop_token_ids", "is_finished", "num_output_tokens")

    def __init__(self, index: int, tokenizer: Tokenizer, sampling: SamplingParams, *, is_continuation: bool) -> None:
        self._index = index
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=sampling.skip_special_tokens, is_continuation=is_continuation
        )
        self._matcher = (
            StopStringMatcher(sampling.stop, include_stop_str_in_output=sampling.include_stop_str_in_output)
            if sampling.stop
            else None
        )
        self._stop_token_ids = sampling.stop_token_ids
        self.num_output_tokens = 0
        self.is_finished = False

    def accept(self, delta: SequenceDelta) -> SequenceOutput:
        """Return what `delta` brings; sets `is_finished` with the last one, or when a stop string ends the text."""
        token_ids = delta.token_ids
        reason = delta.finish_reason
        ends_by_token = reason == FinishReason.STOP and delta.stop_reason is not None
        text_ids = token_ids[:-1] if ends_by_token else token_ids
        stop_string: str | None = None
        if self._matcher is None:
            text = self._detokenizer.append(text_ids) if text_ids else ""
            if reason is not None:
                text += self._detokenizer.flush()
        else:
            text, num_used, stop_string = self._match(self._matcher, text_ids, is_last=reason is not None)
            if stop_string is not None and num_used < len(token_ids):
                token_ids = token_ids[:num_used]
        self.num_output_tokens += len(token_ids)
        output = SequenceOutput(self._index, text, token_ids, num_output_tokens=self.num_output_tokens)
        if delta.logprobs is not None:
            output.logprobs = [token_logprob(entry) for entry in delta.logprobs[: len(token_ids)]]
        if delta.pooled is not None:
            output.pooled = np.frombuffer(delta.pooled, "<f4")
        if stop_string is not None:
            output.finish_reason = FinishReason.STOP
            output.stop_reason = stop_string
            self.is_finished = True
        elif reason is not None:
            output.finish_reason = FinishReason(reason)
            output.stop_reason = delta.stop_reason if delta.stop_reason in self._stop_token_ids else None
            self.is_finished = True
        return output

    def end(self, reason: FinishReason) -> SequenceOutput:
        """Return the last output of a sequence that ends without the engine side saying so."""
        self.is_finished = True
        return SequenceOutput(self._index, finish_reason=reason, num_output_tokens=self.num_output_tokens)

    def _match(self, matcher: StopStringMatcher, token_ids: list[int], *, is_last: bool) -> tuple[str, int, str | None]:
        """Return (text, number of tokens up to the match, the stop string or None), token by token."""
        text = ""
        for position, token_id in enumerate(token_ids):
            emitted, stop_string = matcher.append(self._detokenizer.append([token_id]))
            text += emitted
            if stop_string is not None:
                return text, position + 1, stop_string
        if is_last:
            emitted, stop_string = matcher.append(self._detokenizer.flush())
            text += emitted
            if stop_string is not None:
                return text, len(token_ids), stop_string
            text += matcher.flush()
        return text, len(token_ids), None


def token_logprob(entry: WireLogprob) -> TokenLogprob:
    """Return the public form of a log-probability that came over the wire."""
    return TokenLogprob(entry.token_id, entry.logprob, list(zip(entry.top_ids, entry.top_logprobs, strict=True)))

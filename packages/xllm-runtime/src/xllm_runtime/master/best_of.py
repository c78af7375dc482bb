"""Keeps the sequences of a request back until all have ended, and then gives the best of them.

Best is the largest mean log-probability a token, by the model's own distribution: longer answers are not punished for
their length. Knows nothing of text, tokenizers or callbacks.
"""

from __future__ import annotations

import math

from xllm_framework.request import FinishReason, SamplingParams, SequenceOutput


class BestOf:
    """Collects all news of `sampling.best_of` sequences and selects `sampling.n`.

    Nothing of a sequence can be shown before the last one has ended, so that a streamed request gets one output.
    """

    def __init__(self, sampling: SamplingParams) -> None:
        self._num_wanted = sampling.n
        self._is_asked_for_logprobs = sampling.logprobs is not None
        self._outputs: dict[int, SequenceOutput] = {}

    def keep(self, outputs: list[SequenceOutput]) -> None:
        """Add what is new of some sequences."""
        for output in outputs:
            if output.index in self._outputs:
                self._outputs[output.index].extend(output)
            else:
                self._outputs[output.index] = output

    def select(self) -> list[SequenceOutput]:
        """Return the best sequences, best first, numbered anew; of equals, the first. Those that failed come last."""
        best = sorted(self._outputs.values(), key=lambda output: (-_mean_logprob(output), output.index))
        best = best[: self._num_wanted]
        for index, output in enumerate(best):
            output.index = index
            if not self._is_asked_for_logprobs:
                output.logprobs = None
        return best


def _mean_logprob(output: SequenceOutput) -> float:
    if output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        return -math.inf
    logprobs = output.logprobs or []
    return sum(entry.logprob for entry in logprobs) / len(logprobs) if logprobs else 0.0

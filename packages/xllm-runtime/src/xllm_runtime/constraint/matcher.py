"""Grammars and states of llguidance as the engine side sees them. Knows nothing of how a grammar is written."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from xllm_framework.errors import InvalidRequest

LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    max_grammar_size=200_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    verbose_errors=False,
)
"""What compiling (about a second at most) and one mask (about 20 ms) may cost; beyond, a request fails."""
_SILENT = 0
MAX_MESSAGE_LENGTH = 500


class MatcherState:
    """See `ConstraintState`."""

    def __init__(self, matcher: LLMatcher, num_mask_words: int) -> None:
        self._matcher = matcher
        self.num_mask_words = num_mask_words

    @property
    def is_complete(self) -> bool:
        """See `ConstraintState.is_complete`."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str | None:
        """See `ConstraintState.error`."""
        return f"The constraint failed: {_message(self._matcher)}." if self._matcher.is_error() else None

    def fill_mask(self, mask: npt.NDArray[np.int32]) -> None:
        """See `ConstraintState.fill_mask`."""
        if self._matcher.is_error():
            mask[:] = 0
            return
        fill_next_token_bitmask(self._matcher, mask[np.newaxis])
        if self._matcher.is_error():
            mask[:] = 0

    def accept(self, token_id: int) -> None:
        """See `ConstraintState.accept`."""
        self._matcher.consume_token(token_id)

    def copy(self) -> MatcherState:
        """See `ConstraintState.copy`."""
        return MatcherState(self._matcher.deep_copy(), self.num_mask_words)


class CompiledGrammar:
    """See `Grammar`. What the first states find out about the grammar, later ones know.

    Raises:
        InvalidRequest: the grammar is wrong, too large, or nothing satisfies it.
    """

    def __init__(self, tokenizer: LLTokenizer, text: str, param: str) -> None:
        matcher = LLMatcher(tokenizer, text, log_level=_SILENT, limits=LIMITS)
        if matcher.is_error():
            raise InvalidRequest(f"{param}: {_message(matcher)}.", param)
        self._first = MatcherState(matcher, (tokenizer.vocab_size + 31) // 32)
        self._lock = threading.Lock()
        mask = np.zeros(self._first.num_mask_words, np.int32)
        self._first.fill_mask(mask)
        if not mask.any():
            why = f" ({_message(matcher)})" if matcher.is_error() else ""
            raise InvalidRequest(f"{param}: no text satisfies it{why}.", param)

    def new_state(self) -> MatcherState:
        """See `Grammar.new_state`."""
        with self._lock:
            return self._first.copy()


def _message(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().split())[:MAX_MESSAGE_LENGTH].rstrip(".")

"""A grammar that begins only after a model's thinking, which may be bounded. Knows the tags, and no grammar.

is_open:  thinking --close--> constrained
else:     undecided --open--> thinking --close--> constrained
              +--------- anything else ---------> constrained
thinking --max_tokens--> closing --forced_close--> constrained
"""

from __future__ import annotations

from enum import Enum, auto
from functools import cached_property

import numpy as np
import numpy.typing as npt

from xllm_framework.constraint import ConstraintState, Grammar, ReasoningTags
from xllm_runtime.constraint.vocabulary import Vocabulary


class _Phase(Enum):
    UNDECIDED = auto()
    THINKING = auto()
    CLOSING = auto()
    CONSTRAINED = auto()


class ThinkingGrammar:
    """See `Grammar`; `grammar` holds after the thinking."""

    def __init__(self, grammar: Grammar, tags: ReasoningTags, vocabulary: Vocabulary) -> None:
        self.grammar = grammar
        self.tags = tags
        self.vocabulary = vocabulary
        self.open = tags.open.encode()
        self.close = tags.close.encode()
        self.answer_marks = frozenset(vocabulary.marks[name] for name in tags.ends_before if name in vocabulary.marks)
        """Special tokens that end the thinking and begin the answer."""

    @cached_property
    def closing_ids(self) -> list[int]:
        """The tokens that end a thinking which has had its time."""
        return self.vocabulary.encode(self.tags.forced_close or self.tags.close)

    def new_state(self) -> ThinkingState:
        """See `Grammar.new_state`."""
        return ThinkingState(self, self.grammar.new_state())


class ThinkingState:
    """See `ConstraintState`."""

    def __init__(self, grammar: ThinkingGrammar, inner: ConstraintState) -> None:
        self.num_mask_words = inner.num_mask_words
        self._grammar = grammar
        self._inner = inner
        self._text = b""
        """Undecided: all so far, a beginning of the opening tag. Thinking: the end of it, shorter than the closing tag."""
        self._num_tokens = 0
        """Thinking: tokens of it. Closing: tokens that were forced."""
        self._phase = _Phase.UNDECIDED
        if grammar.tags.is_open:
            self._begin_thinking()

    @property
    def is_complete(self) -> bool:
        """See `ConstraintState.is_complete`."""
        return self._phase is _Phase.CONSTRAINED and self._inner.is_complete

    @property
    def error(self) -> str | None:
        """See `ConstraintState.error`."""
        return self._inner.error if self._phase is _Phase.CONSTRAINED else None

    def fill_mask(self, mask: npt.NDArray[np.int32]) -> None:
        """See `ConstraintState.fill_mask`. While it thinks, a text may not end."""
        vocabulary = self._grammar.vocabulary
        match self._phase:
            case _Phase.THINKING:
                mask[:] = vocabulary.free_mask
            case _Phase.CLOSING:
                mask[:] = vocabulary.mask_of_token(self._grammar.closing_ids[self._num_tokens])
            case _Phase.UNDECIDED:
                self._inner.fill_mask(mask)
                mask |= vocabulary.mask_of_beginnings(self._grammar.open[len(self._text) :])
            case _Phase.CONSTRAINED:
                self._inner.fill_mask(mask)

    def accept(self, token_id: int) -> None:
        """See `ConstraintState.accept`."""
        match self._phase:
            case _Phase.THINKING:
                self._think(token_id)
            case _Phase.CLOSING:
                self._num_tokens += 1
                if self._num_tokens == len(self._grammar.closing_ids):
                    self._phase = _Phase.CONSTRAINED
            case _Phase.UNDECIDED:
                self._decide(token_id)
            case _Phase.CONSTRAINED:
                self._inner.accept(token_id)

    def copy(self) -> ThinkingState:
        """See `ConstraintState.copy`."""
        copied = ThinkingState(self._grammar, self._inner.copy())
        copied._phase, copied._text, copied._num_tokens = self._phase, self._text, self._num_tokens
        return copied

    def _decide(self, token_id: int) -> None:
        text = self._text + self._grammar.vocabulary.token_bytes[token_id]
        tag = self._grammar.open
        if text.startswith(tag):
            self._inner = self._grammar.grammar.new_state()
            self._begin_thinking()
            self._read(text[len(tag) :])
            return
        self._inner.accept(token_id)
        if text != self._text and tag.startswith(text):
            self._text = text
        else:
            self._phase = _Phase.CONSTRAINED

    def _begin_thinking(self) -> None:
        self._text, self._num_tokens = b"", 0
        self._phase = _Phase.THINKING
        self._close_in_time()

    def _think(self, token_id: int) -> None:
        if token_id in self._grammar.answer_marks:
            self._phase = _Phase.CONSTRAINED
            self._inner.accept(token_id)
            return
        self._num_tokens += 1
        self._read(self._grammar.vocabulary.token_bytes[token_id])

    def _read(self, text: bytes) -> None:
        """Look for the closing tag in what was thought."""
        tag = self._grammar.close
        self._text += text
        found = self._text.find(tag)
        if found < 0:
            self._text = self._text[max(0, len(self._text) - len(tag) + 1) :]
            self._close_in_time()
            return
        self._phase = _Phase.CONSTRAINED
        rest = self._text[found + len(tag) :].lstrip()
        for token_id in self._grammar.vocabulary.tokenizer.tokenize_bytes(rest) if rest else ():
            self._inner.accept(token_id)

    def _close_in_time(self) -> None:
        limit = self._grammar.tags.max_tokens
        if limit is not None and self._num_tokens >= limit:
            self._phase, self._num_tokens = _Phase.CLOSING, 0

"""A grammar that begins only after a model's thinking. Knows the tags, and no grammar.

is_open:  thinking --close--> constrained
else:     undecided --open--> thinking --close--> constrained
              +--------- anything else ---------> constrained
"""

from __future__ import annotations

from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from xllm_framework.constraint import ConstraintState, Grammar, ReasoningTags
from xllm_runtime.constraint.vocabulary import Vocabulary


class _Phase(Enum):
    UNDECIDED = auto()
    THINKING = auto()
    CONSTRAINED = auto()


class ThinkingGrammar:
    """See `Grammar`; `grammar` holds after the thinking."""

    def __init__(self, grammar: Grammar, tags: ReasoningTags, vocabulary: Vocabulary) -> None:
        self.grammar = grammar
        self.tags = tags
        self.vocabulary = vocabulary
        self._masks: dict[bytes, npt.NDArray[np.int32]] = {}

    def new_state(self) -> ThinkingState:
        """See `Grammar.new_state`."""
        return ThinkingState(self, self.grammar.new_state())

    def tag_mask(self, text: bytes) -> npt.NDArray[np.int32]:
        """Return `Vocabulary.mask_of_beginnings` of an end of the opening tag; computed once."""
        mask = self._masks.get(text)
        if mask is None:
            mask = self._masks[text] = self.vocabulary.mask_of_beginnings(text)
        return mask


class ThinkingState:
    """See `ConstraintState`."""

    def __init__(self, grammar: ThinkingGrammar, inner: ConstraintState) -> None:
        self.num_mask_words = inner.num_mask_words
        self._grammar = grammar
        self._inner = inner
        self._phase = _Phase.THINKING if grammar.tags.is_open else _Phase.UNDECIDED
        self._text = b""
        """Undecided: all so far, a beginning of the opening tag. Thinking: the end of it, shorter than the closing tag."""

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
        if self._phase is _Phase.THINKING:
            mask[:] = self._grammar.vocabulary.free_mask
            return
        self._inner.fill_mask(mask)
        if self._phase is _Phase.UNDECIDED:
            mask |= self._grammar.tag_mask(self._grammar.tags.open.encode()[len(self._text) :])

    def accept(self, token_id: int) -> None:
        """See `ConstraintState.accept`."""
        if self._phase is _Phase.CONSTRAINED:
            self._inner.accept(token_id)
        elif self._phase is _Phase.THINKING:
            self._think(self._grammar.vocabulary.token_bytes[token_id])
        else:
            self._decide(token_id)

    def copy(self) -> ThinkingState:
        """See `ConstraintState.copy`."""
        copied = ThinkingState(self._grammar, self._inner.copy())
        copied._phase, copied._text = self._phase, self._text
        return copied

    def _decide(self, token_id: int) -> None:
        text = self._text + self._grammar.vocabulary.token_bytes[token_id]
        tag = self._grammar.tags.open.encode()
        if text.startswith(tag):
            self._phase, self._text = _Phase.THINKING, b""
            self._inner = self._grammar.grammar.new_state()
            self._think(text[len(tag) :])
            return
        self._inner.accept(token_id)
        if text != self._text and tag.startswith(text):
            self._text = text
        else:
            self._phase = _Phase.CONSTRAINED

    def _think(self, text: bytes) -> None:
        tag = self._grammar.tags.close.encode()
        self._text += text
        found = self._text.find(tag)
        if found < 0:
            self._text = self._text[max(0, len(self._text) - len(tag) + 1) :]
            return
        self._phase = _Phase.CONSTRAINED
        rest = self._text[found + len(tag) :].lstrip()
        for token_id in self._grammar.vocabulary.tokenizer.tokenize_bytes(rest) if rest else ():
            self._inner.accept(token_id)

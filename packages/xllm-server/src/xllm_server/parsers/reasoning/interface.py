"""What a reasoning parser is. Knows no format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from xllm_framework.constraint import ReasoningTags
    from xllm_framework.constraint.structure import Structure


class ReasoningParse(NamedTuple):
    """What a piece of text brought."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser(Protocol):
    """Tells reasoning from content in one answer. A fresh parser serves one answer.

    However the text is cut, the joined reasoning and the joined content are the same, and no text raises.
    """

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends inside reasoning."""

    def feed(self, text: str) -> ReasoningParse:
        """Return what `text` adds."""

    def flush(self) -> ReasoningParse:
        """Return what was held back; the answer has ended."""


@dataclass(frozen=True, slots=True)
class ReasoningStart:
    """What is known of an answer before its first token."""

    prompt_end: str = ""
    """The end of the prompt's text: templates put an opening tag there, or an empty pair of tags."""
    is_continuation: bool = False
    """Whether the answer goes on with a text, which is then all of `prompt_end`."""
    is_thinking_disabled: bool = False
    """Whether the request asked for none, with `enable_thinking` or `thinking` set to false."""


class ReasoningParserFactory(Protocol):
    """Makes the parser of one answer, and says what it reads."""

    needs_special_tokens: bool
    """Whether the format's marks are special tokens, which must then not be skipped in the text."""

    def tags(self, start: ReasoningStart, *, calls_end_it: bool) -> ReasoningTags | None:
        """Return the marks around the reasoning of an answer, None where it has none.

        What the end of the prompt says of it is left to whoever sees it. With `calls_end_it`, a tool call that may follow
        ends it as well, where a format has that.

        Raises:
            InvalidRequest: the answer continues a text in which that cannot be told.
        """

    def answer(self, content: Structure) -> Structure:
        """Return what follows the reasoning when that is to be `content`."""

    def __call__(self, start: ReasoningStart) -> ReasoningParser:
        """Return a fresh parser."""

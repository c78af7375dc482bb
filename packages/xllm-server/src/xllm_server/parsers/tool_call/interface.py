"""What a tool-call parser is. Knows no format."""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from xllm_framework.constraint.structure import Structure

Tool = dict[str, Any]
"""One entry of a request's `tools`: {"type": "function", "function": {"name", "description", "parameters"}}."""


@dataclass(slots=True)
class ToolCallDelta:
    """What became known of one call. The first delta of a call names it; the arguments of all of them, joined, are JSON."""

    index: int
    """Which call of the answer, from 0."""
    id: str | None = None
    """On the first delta only, as is the name."""
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class ToolCallParse:
    """What a piece of text brought."""

    content: str = ""
    """Text for the reader."""
    calls: list[ToolCallDelta] = field(default_factory=list)


class ToolCallParser(Protocol):
    """Finds the tool calls in one answer. A fresh parser serves one answer.

    However the text is cut, the joined content and the joined arguments of each call are the same, and no text raises.
    Arguments are the model's own words where the format has JSON: when that is malformed or cut short, so are they.
    """

    needs_special_tokens: ClassVar[bool]
    """Whether the format's marks are special tokens, which must then not be skipped in the text."""

    def feed(self, text: str) -> ToolCallParse:
        """Return what `text` adds."""

    def flush(self) -> ToolCallParse:
        """Return what was held back; the answer has ended."""


class ToolCallParserFactory(Protocol):
    """Makes the parser of one answer to a request with `tools`, and says what it reads."""

    needs_special_tokens: bool

    def forced_calls(self, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """Return the structure of an answer that is nothing but calls of `tools`, at least one."""

    def free_calls(self, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """Return the structure of any answer in which a call, once begun, is one of `tools`."""

    def __call__(self, tools: Sequence[Tool]) -> ToolCallParser:
        """Return a fresh parser."""


def new_call_id() -> str:
    """Return an id as OpenAI's look."""
    return f"call_{uuid.uuid4().hex}"


def new_short_call_id() -> str:
    """Return nine letters or digits, the only ids that Mistral's chat templates take."""
    alphabet = string.ascii_letters + string.digits
    return "".join(secrets.choice(alphabet) for _ in range(9))


def tool_names(tools: Sequence[Tool]) -> frozenset[str]:
    """Return the names of the functions in `tools`."""
    return frozenset(tool["function"]["name"] for tool in tools)

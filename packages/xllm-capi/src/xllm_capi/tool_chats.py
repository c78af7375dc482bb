"""Chats with tools: where their parsers come from, and what they make of an answer. Knows no format of any model.

The parsers live in another package, which this one does not need for anything else: whatever is installed offers them by
the entry point below, a callable that takes the master and returns a `ToolChats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import msgspec

from xllm_framework.errors import XLLMError
from xllm_framework.request import SamplingParams, SequenceOutput

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster, PreparedRequest

ENTRY_POINT_GROUP = "xllm.tool_chats"


class ToolsUnsupported(XLLMError):
    """Nothing that is installed can parse tool calls."""

    kind = "unsupported"


class ParsedDelta(NamedTuple):
    """What a piece of an answer's text brought."""

    content: str
    reasoning: str | None
    tool_calls: list[dict[str, Any]] | None
    """With the last piece: all calls of the answer in OpenAI's shape, if there are any."""


class AnswerReader(Protocol):
    """Reads the answer of one sequence."""

    def read(self, text: str, *, is_last: bool) -> ParsedDelta:
        """Return what `text` adds."""


class ToolChat(Protocol):
    """A prepared chat with tools."""

    @property
    def prepared(self) -> PreparedRequest:
        """What the master is to be given."""

    def reader(self) -> AnswerReader:
        """Return a reader for one sequence."""


class ToolChats(Protocol):
    """Prepares chats with tools for one master."""

    def prepare(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        tool_choice: str,
        sampling: SamplingParams,
        template_kwargs: dict[str, Any],
        options: dict[str, Any],
    ) -> ToolChat:
        """Check and tokenise a chat; `tool_choice` is auto, none, required, or a tool's name.

        Raises:
            XLLMError: it cannot be served.
        """


def load_tool_chats(master: LLMMaster) -> ToolChats:
    """Return what the installed packages offer.

    Raises:
        ToolsUnsupported: none offers anything.
    """
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        return cast("ToolChats", entry_point.load()(master))
    raise ToolsUnsupported("tools_json needs parsers of tool calls: install the package xllm-server beside xllm-capi.")


class AnswerReaders:
    """The readers of all sequences of one request; used by one thread at a time."""

    def __init__(self, chat: ToolChat) -> None:
        self._chat = chat
        self._readers: dict[int, AnswerReader] = {}

    def read(self, sequence: SequenceOutput) -> tuple[str, str | None, str | None]:
        """Return (content, reasoning, tool calls as JSON) of what is new of a sequence."""
        reader = self._readers.get(sequence.index)
        if reader is None:
            reader = self._readers[sequence.index] = self._chat.reader()
        parsed = reader.read(sequence.text, is_last=sequence.finish_reason is not None)
        calls = None if parsed.tool_calls is None else msgspec.json.encode(parsed.tool_calls).decode()
        return parsed.content, parsed.reasoning, calls

"""The frame of every tool-call parser: a text, what was found in it, and one state. Knows no format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from xllm_framework.constraint.structure import Structure
from xllm_server.parsers.text_scanner import TextScanner
from xllm_server.parsers.tool_call.call_syntax import CallSyntax, forced_calls, free_calls
from xllm_server.parsers.tool_call.emission import Emission
from xllm_server.parsers.tool_call.interface import Tool, ToolCallParse, new_call_id

State = Callable[[], bool]
"""Reads a part of the text and perhaps sets the next state; False when it needs more text first."""


class ToolCallStateMachine(ABC):
    """A `ToolCallParser` whose subclasses only write states. `read_content` is the first one.

    A state must read something or change the state whenever it returns True, and must end with False at the text's end.
    """

    needs_special_tokens: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def syntaxes(cls, tools: Sequence[Tool]) -> Sequence[CallSyntax]:
        """Return the ways in which this format writes calls of `tools`; a model takes the one it knows."""

    @classmethod
    def forced_calls(cls, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """See `ToolCallParserFactory.forced_calls`."""
        return forced_calls(cls.syntaxes(tools), tools, at_most)

    @classmethod
    def free_calls(cls, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """See `ToolCallParserFactory.free_calls`."""
        return free_calls(cls.syntaxes(tools), tools, at_most)

    def __init__(self, tools: Sequence[Tool] = (), new_id: Callable[[], str] = new_call_id) -> None:
        self._text = TextScanner()
        self._found = Emission(new_id)
        self._state: State = self.read_content

    @abstractmethod
    def read_content(self) -> bool:
        """Read text for the reader up to the first mark of a call."""

    def at_end(self) -> None:
        """Called when the text has ended inside a call; what was recorded is content by default."""
        self._found.content(self._text.stop_recording())

    def feed(self, text: str) -> ToolCallParse:
        """Return what `text` adds."""
        self._text.append(text)
        return self._run()

    def flush(self) -> ToolCallParse:
        """Return what was held back; the answer has ended."""
        self._text.is_ended = True
        self._run_states()
        self.at_end()
        self._found.end()
        return self._found.take()

    def _run(self) -> ToolCallParse:
        self._run_states()
        return self._found.take()

    def _run_states(self) -> None:
        while self._state():
            pass

    def _give_up_call(self) -> bool:
        """Return to content: what was recorded is no call."""
        self._found.content(self._text.stop_recording())
        self._state = self.read_content
        return True

    def _begin_call(self, name: str, call_id: str | None = None) -> None:
        """Begin a call: what was recorded is its markup."""
        self._text.stop_recording()
        self._found.start_call(name, call_id)

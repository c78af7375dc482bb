"""Hermes' calls, also Qwen2.5's and Qwen3's: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

from collections.abc import Sequence

from xllm_server.parsers.json_value import WHITESPACE
from xllm_server.parsers.text_scanner import Tags
from xllm_server.parsers.tool_call.call_syntax import CallSyntax, named_json
from xllm_server.parsers.tool_call.interface import Tool
from xllm_server.parsers.tool_call.json_object_calls import JsonObjectCalls

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
_OPEN = Tags(OPEN)
_SURPLUS = WHITESPACE | frozenset("},]")
"""What may stand between an object and the closing tag; models write a brace too many."""


class HermesParser(JsonObjectCalls):
    """See the module. One pair of tags may also hold several objects."""

    stop = CLOSE

    @classmethod
    def syntaxes(cls, tools: Sequence[Tool]) -> Sequence[CallSyntax]:
        """See `ToolCallStateMachine.syntaxes`."""
        call = named_json("name", "arguments")
        return [CallSyntax(call, f"{OPEN}\n", f"\n{CLOSE}\n{OPEN}\n", f"\n{CLOSE}", trigger=OPEN)]

    def read_content(self) -> bool:
        """Read text for the reader up to an opening tag."""
        text, tag = self._text.take_until(_OPEN)
        self._found.content(text)
        if tag is None:
            return False
        self._begin_object(tag)
        return True

    def after_object(self) -> bool:
        """Read up to the closing tag, or to another object."""
        self._text.take_while(_SURPLUS)
        if self._text.is_empty:
            return False
        if self._text.peek() == "{":
            self._begin_object("")
            return True
        met = self._text.match(CLOSE)
        if met is None:
            return False
        self._state = self.read_content
        return True

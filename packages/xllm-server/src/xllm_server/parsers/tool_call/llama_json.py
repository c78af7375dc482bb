"""Llama 3's calls: the answer is {"name": ..., "parameters": {...}}, perhaps after <|python_tag|>; several go with `;`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xllm_server.parsers.json_value import WHITESPACE
from xllm_server.parsers.text_scanner import Tags
from xllm_server.parsers.tool_call.call_syntax import CallSyntax, named_json
from xllm_server.parsers.tool_call.interface import Tool, new_call_id, tool_names
from xllm_server.parsers.tool_call.json_object_calls import JsonObjectCalls

PYTHON_TAG = "<|python_tag|>"
_PYTHON_TAG = Tags(PYTHON_TAG)
_SEPARATORS = WHITESPACE | frozenset(";,")


class LlamaJsonParser(JsonObjectCalls):
    """See the module. Without the tag only an answer that begins with an object is looked at, and only a tool's name counts."""

    needs_special_tokens = True

    @classmethod
    def syntaxes(cls, tools: Sequence[Tool]) -> Sequence[CallSyntax]:
        """See `ToolCallStateMachine.syntaxes`."""
        return [CallSyntax(named_json("name", "parameters"), "", "; ", "")]

    def __init__(self, tools: Sequence[Tool] = (), new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(tools, new_id, names=tool_names(tools))
        self._state = self._read_begin
        self._text.record()

    def read_content(self) -> bool:
        """Read text for the reader up to the tag."""
        text, tag = self._text.take_until(_PYTHON_TAG)
        self._found.content(text)
        if tag is None:
            return False
        self._begin_object(tag)
        return True

    def _read_begin(self) -> bool:
        self._text.take_while(WHITESPACE)
        character = self._text.peek()
        if not character:
            return False
        if character != "{":
            return self._give_up_call()
        self._begin_object(self._text.stop_recording())
        return True

    def after_object(self) -> bool:
        """Read separators up to another object; they are content when none comes."""
        if not self._text.is_recording:
            self._text.record()
        self._text.take_while(_SEPARATORS)
        character = self._text.peek()
        if not character:
            return False
        if character == "{":
            self._begin_object(self._text.stop_recording())
            return True
        return self._give_up_call()

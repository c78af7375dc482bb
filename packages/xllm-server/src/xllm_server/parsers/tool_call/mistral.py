"""Mistral's calls, old and new.

Old: [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]. New, one mark a call: [TOOL_CALLS]name[ARGS]{...}, perhaps with
[CALL_ID]id before [ARGS].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xllm_server.parsers.json_value import WHITESPACE, JsonValue
from xllm_server.parsers.text_scanner import Tags
from xllm_server.parsers.tool_call.call_syntax import CallSyntax, marked_json, named_json
from xllm_server.parsers.tool_call.interface import Tool, new_short_call_id
from xllm_server.parsers.tool_call.json_object_calls import JsonObjectCalls

MARK = "[TOOL_CALLS]"
_MARK = Tags(MARK)
_HEADER_END = Tags("[CALL_ID]", "[ARGS]", "{", MARK)
_BETWEEN = WHITESPACE | frozenset(",")
LONGEST_HEADER = 256


class MistralParser(JsonObjectCalls):
    """See the module."""

    needs_special_tokens = True
    stop = MARK

    @classmethod
    def syntaxes(cls, tools: Sequence[Tool]) -> Sequence[CallSyntax]:
        """See `ToolCallStateMachine.syntaxes`."""
        new = CallSyntax(marked_json("{name}[ARGS]"), MARK, MARK, "", trigger=MARK)
        old = CallSyntax(named_json("name", "arguments"), f"{MARK}[", ", ", "]", trigger=MARK)
        return [new, old]

    def __init__(self, tools: Sequence[Tool] = (), new_id: Callable[[], str] = new_short_call_id) -> None:
        super().__init__(tools, new_id)
        self._name = ""
        self._header = ""
        self._arguments = JsonValue(MARK)

    def read_content(self) -> bool:
        """Read text for the reader up to the mark."""
        text, tag = self._text.take_until(_MARK)
        self._found.content(text)
        if tag is None:
            return False
        self._begin_mark(tag)
        return True

    def _begin_mark(self, tag: str) -> None:
        self._text.record(tag)
        self._name = self._header = ""
        self._state = self._read_form

    def _read_form(self) -> bool:
        self._text.take_while(WHITESPACE)
        is_array = self._text.match("[")
        if is_array is None:
            return False
        self._state = self.after_object if is_array else self._read_header
        return True

    def after_object(self) -> bool:
        """Read on in an array, at its beginning or after an object: up to the next one, or to the array's end."""
        self._text.take_while(_BETWEEN)
        character = self._text.peek()
        if not character:
            return False
        if character == "{":
            self._begin_object(self._text.stop_recording())
            return True
        if character == "]" and not self._text.is_recording:
            self._text.take(1)
            self._state = self.read_content
            return True
        return self._give_up_call()

    def _read_header(self) -> bool:
        text, tag = self._text.take_until(_HEADER_END)
        self._header += text
        if len(self._header) > LONGEST_HEADER or tag == MARK:
            self._text.put_back(tag or "")
            return self._give_up_call()
        if tag is None:
            return False
        if tag == "[CALL_ID]":
            self._name, self._header = self._header.strip(), ""
            return True
        if tag == "{":
            self._text.put_back(tag)
        name = self._name or self._header.strip()
        if not name:
            return self._give_up_call()
        self._begin_call(name, self._header.strip() if self._name else None)
        self._arguments = JsonValue(MARK)
        self._state = self._read_arguments
        return True

    def _read_arguments(self) -> bool:
        self._found.arguments(self._arguments.read(self._text))
        if not self._arguments.is_done:
            return False
        self._found.end_call()
        self._state = self.read_content
        return True

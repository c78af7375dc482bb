"""Calls written as a Python list: [name(key=value, ...), ...]. Llama 3.2 and Llama 4; the whole answer is the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from xllm_framework.constraint.structure import Choice, Literal, Structure, sequence
from xllm_server.parsers.json_value import WHITESPACE
from xllm_server.parsers.text_scanner import Tags
from xllm_server.parsers.tool_call.argument_types import quote
from xllm_server.parsers.tool_call.call_syntax import CallSyntax, joined, parameters_of, value_schema
from xllm_server.parsers.tool_call.interface import Tool, new_call_id, tool_names
from xllm_server.parsers.tool_call.python_literal import PythonLiteral
from xllm_server.parsers.tool_call.state_machine import ToolCallStateMachine

START_TAGS = ("<|python_start|>", "<|python_tag|>")
END_TAG = "<|python_end|>"
_END_TAG = Tags(END_TAG)
_BETWEEN = WHITESPACE | {","}
_WORD_END = re.compile(r"""[\s=<"'(),\[\]{}]""")
LONGEST_NAME = 256


class PythonicParser(ToolCallStateMachine):
    """See the module. Only the name of a tool, with its arguments by name, begins a call.

    An argument without a name that comes later is left out.
    """

    needs_special_tokens = True

    @classmethod
    def syntaxes(cls, tools: Sequence[Tool]) -> Sequence[CallSyntax]:
        """See `ToolCallStateMachine.syntaxes`."""
        return [CallSyntax(_call, "[", ", ", "]")]

    def __init__(self, tools: Sequence[Tool] = (), new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(tools, new_id)
        self._names = tool_names(tools)
        self._name = ""
        self._key = ""
        self._value = PythonLiteral()
        self._num_arguments = 0
        self._is_started = False
        self._state = self._read_begin
        self._text.record()

    def read_content(self) -> bool:
        """Read text for the reader: all that is left."""
        text, tag = self._text.take_until(_END_TAG)
        self._found.content(text)
        return tag is not None

    def at_end(self) -> None:
        """Keep a started call as far as it goes."""
        if self._state == self._read_value:
            self._found.arguments(self._value.end())
        super().at_end()

    def _read_begin(self) -> bool:
        self._text.take_while(WHITESPACE)
        for tag in START_TAGS:
            self._text.match(tag)
        self._text.take_while(WHITESPACE)
        met = self._text.match("[")
        if met is None or (not met and self._text.may_become(START_TAGS)):
            return False
        if not met:
            return self._give_up_call()
        self._begin_name()
        return True

    def _begin_name(self) -> None:
        self._name = ""
        self._num_arguments = 0
        self._is_started = False
        self._state = self._read_name

    def _read_name(self) -> bool:
        if not self._name:
            self._text.take_while(WHITESPACE)
        self._name += self._text.take_before(_WORD_END, LONGEST_NAME + 1 - len(self._name))
        if self._text.is_empty and len(self._name) <= LONGEST_NAME:
            return False
        if self._name not in self._names or not self._text.match("("):
            return self._give_up_call()
        self._begin_key()
        return True

    def _begin_key(self) -> None:
        self._key = ""
        self._state = self._read_key

    def _read_key(self) -> bool:
        if not self._key:
            self._text.take_while(_BETWEEN)
        self._key += self._text.take_before(_WORD_END)
        if self._text.is_empty:
            return False
        self._state = self._read_equals
        return True

    def _read_equals(self) -> bool:
        self._text.take_while(WHITESPACE)
        if self._text.is_empty:
            return False
        is_named = bool(self._key) and self._text.match("=")
        is_end = not self._key and self._text.match(")")
        if not self._is_started:
            if not (is_named or is_end):
                return self._give_up_call()
            self._begin_call(self._name)
            self._is_started = True
        if is_end:
            return self._end_arguments()
        if is_named:
            self._found.arguments(f"{', ' if self._num_arguments else '{'}{quote(self._key)}: ")
            self._num_arguments += 1
        self._value = PythonLiteral()
        self._state = self._read_value if is_named else self._skip_value
        return True

    def _read_value(self) -> bool:
        self._found.arguments(self._value.read(self._text))
        if not self._value.is_done:
            return False
        return self._leave_value()

    def _skip_value(self) -> bool:
        self._value.read(self._text)
        return self._value.is_done and self._leave_value()

    def _leave_value(self) -> bool:
        """Go on behind a value; a bracket that closes nothing is skipped."""
        if self._text.peek() in ("]", "}"):
            self._text.take(1)
        self._begin_key()
        return True

    def _end_arguments(self) -> bool:
        self._found.arguments("}" if self._num_arguments else "{}")
        self._state = self._read_after
        return True

    def _read_after(self) -> bool:
        self._text.take_while(WHITESPACE)
        if self._text.is_empty:
            return False
        if self._text.match(","):
            self._text.record(",")
            self._begin_name()
            return True
        self._text.match("]")
        self._state = self.read_content
        return True


def _call(tool: Tool) -> Structure:
    """Return name(key=value, ...)."""
    parts = [
        (sequence(Literal(f"{name}="), _value(schema, tool)), is_required)
        for name, schema, is_required in parameters_of(tool)
    ]
    return sequence(f"{tool['function']['name']}(", joined(parts, ", "), ")")


def _value(schema: dict[str, Any], tool: Tool) -> Structure:
    """Return a value: Python's own words at the top, and JSON, which the parser reads as well, further down."""
    values = schema.get("enum")
    if schema.get("type") == "boolean" and values is None and "const" not in schema:
        values = [True, False]
    if isinstance(values, list) and values and all(isinstance(value, str | bool | None) for value in values):
        return Choice(tuple(Literal(quote(value) if isinstance(value, str) else str(value)) for value in values))
    return value_schema(schema, tool)

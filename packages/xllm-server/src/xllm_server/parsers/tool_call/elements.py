"""Calls written as elements, one a parameter: Qwen3-Coder, GLM-4.5 and later, DeepSeek V3.2 and V4.

The arguments are JSON made here. A parameter that the tool declares a string streams as it comes; of any other, the whole
text is needed to know what it is. A call that is cut short stays open: closed, it would look complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xllm_framework.constraint.structure import Choice, Literal, Structure, sequence
from xllm_server.parsers.json_value import WHITESPACE
from xllm_server.parsers.text_scanner import Tags
from xllm_server.parsers.tool_call.argument_types import STRING, ArgumentTypes, escape, quote, to_json
from xllm_server.parsers.tool_call.call_syntax import (
    CallSyntax,
    in_any_number,
    parameters_of,
    value_in_element,
    value_schema,
)
from xllm_server.parsers.tool_call.interface import Tool, new_call_id
from xllm_server.parsers.tool_call.state_machine import ToolCallStateMachine

LONGEST_NAME = 256
_NAME_END = re.compile(r"""[\s<>"]""")


@dataclass(frozen=True, slots=True)
class ElementFormat:
    """Marks of a format: [wrapper] call name name_end (parameter key key_end [value] text value_end)* call_end."""

    call: str
    call_end: str
    parameter: str
    key_end: str
    value_end: tuple[str, ...]
    """The first of them that comes ends the value; one that contains another goes first."""
    name_end: str = ""
    """Empty when the first parameter or the call's end also ends the name."""
    value: str = ""
    """What opens the value; empty when `key_end` does."""
    wrappers: tuple[str, ...] = ()
    wrapper_ends: tuple[str, ...] = ()
    is_on_lines: bool = False
    """Whether a model puts line breaks between the parts."""
    wraps_each: bool = False
    """Whether each call has a wrapper of its own."""
    trims_line_break: bool = False
    """Whether a line break that begins a value is markup."""


class ElementParser(ToolCallStateMachine):
    """A parser for one `ElementFormat`."""

    form: ElementFormat

    @classmethod
    def syntaxes(cls, tools: Sequence[Tool]) -> Sequence[CallSyntax]:
        """See `ToolCallStateMachine.syntaxes`."""
        form = cls.form
        line = "\n" if form.is_on_lines else ""
        types = ArgumentTypes(tools)
        if not form.wrappers:
            between = f"{form.call_end}\n{form.call}"
            return [CallSyntax(lambda tool: cls._call(tool, types), form.call, between, form.call_end, form.call)]
        found = []
        for wrapper, end in zip(form.wrappers, form.wrapper_ends, strict=True):
            before, after = f"{wrapper}{line}{form.call}", f"{form.call_end}{line}{end}"
            between = f"{after}\n{before}" if form.wraps_each else f"{form.call_end}{line}{form.call}"
            found.append(CallSyntax(lambda tool: cls._call(tool, types), before, between, after, wrapper))
        return found

    @classmethod
    def _call(cls, tool: Tool, types: ArgumentTypes) -> Structure:
        """Return a call without its opening and closing marks."""
        form = cls.form
        line = "\n" if form.is_on_lines else ""
        name = tool["function"]["name"]
        parts = [
            (sequence(cls.parameter(tool, key, schema, types.of(name, key)), line), is_required)
            for key, schema, is_required in parameters_of(tool)
        ]
        return sequence(name, form.name_end, line, in_any_number(parts))

    @classmethod
    def parameter(cls, tool: Tool, key: str, schema: dict[str, Any], types: frozenset[str]) -> Structure:
        """Return one parameter as it is written."""
        form = cls.form
        line_break = "\n" if form.trims_line_break else ""
        value = value_in_element(schema, types, tool, f"{line_break}{form.value_end[-1]}")
        return sequence(form.parameter, Literal(key), form.key_end, form.value, line_break, value)

    def __init__(self, tools: Sequence[Tool] = (), new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(tools, new_id)
        form = self.form
        self._types = ArgumentTypes(tools)
        self._content_tags = Tags(*form.wrappers, form.call)
        self._between_tags = Tags(form.parameter, form.call_end, *form.wrapper_ends, form.call, *form.wrappers)
        self._key_tags = Tags(form.key_end)
        self._open_tags = Tags(form.value) if form.value else None
        self._value_tags = Tags(*form.value_end)
        self._name = ""
        self._key = ""
        self._value: list[str] = []
        self._value_types = STRING
        self._is_streamed = False
        self._has_parameters = False

    def parameter_types(self, key: str) -> tuple[str, frozenset[str]]:
        """Return the parameter's name and its types, from the text between `parameter` and `key_end`."""
        name = key.strip()
        return name, self._types.of(self._name, name)

    def read_content(self) -> bool:
        """Read text for the reader up to a call."""
        text, tag = self._text.take_until(self._content_tags)
        self._found.content(text)
        if tag is None:
            return False
        self._text.record(tag)
        self._name = ""
        self._state = self._read_name if tag == self.form.call else self._read_call
        return True

    def _read_call(self) -> bool:
        """Read the mark of a call inside a wrapper, or the wrapper's end."""
        self._text.take_while(WHITESPACE)
        met = self._text.match(self.form.call)
        if met:
            self._name = ""
            if not self._text.is_recording:
                self._text.record(self.form.call)
            self._state = self._read_name
            return True
        end, may_come = self._text.match_first(self.form.wrapper_ends)
        if end is not None and not self._text.is_recording:
            self._state = self.read_content
            return True
        if met is None or may_come:
            return False
        return self._give_up_call()

    def _read_name(self) -> bool:
        self._name += self._text.take_before(_NAME_END, LONGEST_NAME + 1 - len(self._name))
        if self._text.is_empty and len(self._name) <= LONGEST_NAME:
            return False
        self._state = self._read_name_end
        return True

    def _read_name_end(self) -> bool:
        form = self.form
        if not form.name_end:
            self._text.take_while(WHITESPACE)
        ends = (form.name_end,) if form.name_end else (form.parameter, form.call_end)
        end, may_come = self._text.match_first(ends)
        if may_come:
            return False
        if end is None or not 0 < len(self._name) <= LONGEST_NAME:
            return self._give_up_call()
        if not form.name_end:
            self._text.put_back(end)
        self._has_parameters = False
        self._begin_call(self._name)
        self._state = self._read_between
        return True

    def _read_between(self) -> bool:
        _, tag = self._text.take_until(self._between_tags)
        if tag is None:
            return False
        if tag == self.form.parameter:
            self._key = ""
            self._state = self._read_key
            return True
        self._found.arguments("}" if self._has_parameters else "{}")
        if tag == self.form.call or tag in self.form.wrappers:
            self._text.put_back(tag)
        is_wrapped = tag == self.form.call_end and bool(self.form.wrappers)
        self._state = self._read_call if is_wrapped else self.read_content
        return True

    def _read_key(self) -> bool:
        text, tag = self._text.take_until(self._key_tags)
        self._key += text
        if tag is None:
            return False
        name, types = self.parameter_types(self._key)
        self._found.arguments(f"{', ' if self._has_parameters else '{'}{quote(name)}: ")
        self._has_parameters = True
        self._is_streamed = types == STRING
        self._value_types = types
        self._value = []
        self._state = self._read_open
        return True

    def _read_open(self) -> bool:
        """Read up to the value's own text."""
        if self._open_tags is not None:
            _, tag = self._text.take_until(self._open_tags)
            if tag is None:
                return False
        self._state = self._read_line_break
        return True

    def _read_line_break(self) -> bool:
        if self.form.trims_line_break and self._text.match("\n") is None:
            return False
        if self._is_streamed:
            self._found.arguments('"')
        self._state = self._read_value
        return True

    def _read_value(self) -> bool:
        text, tag = self._text.take_until(self._value_tags)
        if self._is_streamed:
            self._found.arguments(escape(text))
        else:
            self._value.append(text)
        if tag is None:
            return False
        self._found.arguments('"' if self._is_streamed else to_json("".join(self._value), self._value_types))
        self._state = self._read_between
        return True


class Qwen3CoderParser(ElementParser):
    """Qwen3-Coder and Qwen3.5: <tool_call><function=name><parameter=key>text</parameter></function></tool_call>."""

    form = ElementFormat(
        wrappers=("<tool_call>",),
        wrapper_ends=("</tool_call>",),
        call="<function=",
        name_end=">",
        parameter="<parameter=",
        key_end=">",
        value_end=("\n</parameter>", "</parameter>"),
        call_end="</function>",
        trims_line_break=True,
        is_on_lines=True,
        wraps_each=True,
    )


class GlmParser(ElementParser):
    """GLM-4.5 to GLM-5: <tool_call>name<arg_key>key</arg_key><arg_value>text</arg_value></tool_call>, lines or not."""

    form = ElementFormat(
        call="<tool_call>",
        parameter="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end=("</arg_value>",),
        call_end="</tool_call>",
        is_on_lines=True,
    )


class DsmlParser(ElementParser):
    """DeepSeek V3.2 and V4: invoke and parameter elements, whose `string` attribute says whether the text is JSON."""

    needs_special_tokens = True
    form = ElementFormat(
        wrappers=("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
        wrapper_ends=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
        call='<｜DSML｜invoke name="',
        name_end='">',
        parameter='<｜DSML｜parameter name="',
        key_end=">",
        value_end=("</｜DSML｜parameter>",),
        call_end="</｜DSML｜invoke>",
        is_on_lines=True,
    )

    @classmethod
    def parameter(cls, tool: Tool, key: str, schema: dict[str, Any], types: frozenset[str]) -> Structure:
        """Return key" string="true">text or key" string="false">JSON, whichever the types allow."""
        form = cls.form
        [end] = form.value_end
        options = []
        if not types or "string" in types:
            text = value_in_element(schema, STRING, tool, end)
            options.append(sequence(form.parameter, Literal(key), f'" string="true"{form.key_end}', text))
        if types != STRING:
            value = sequence(value_schema(schema, tool), end)
            options.append(sequence(form.parameter, Literal(key), f'" string="false"{form.key_end}', value))
        return Choice(tuple(options))

    def parameter_types(self, key: str) -> tuple[str, frozenset[str]]:
        """Read `key" string="true"`; without the attribute the tool's schema decides."""
        name, _, attributes = key.partition('"')
        if 'string="true"' in attributes:
            return name, STRING
        types = self._types.of(self._name, name)
        return name, types - STRING if 'string="false"' in attributes else types

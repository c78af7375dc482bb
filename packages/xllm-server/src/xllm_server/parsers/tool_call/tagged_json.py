"""Calls whose name and JSON arguments stand between marks: DeepSeek V3, R1 and V3.1, Kimi K2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xllm_server.parsers.json_value import WHITESPACE
from xllm_server.parsers.text_scanner import Tags
from xllm_server.parsers.tool_call.call_syntax import CallSyntax, marked_json
from xllm_server.parsers.tool_call.interface import Tool, new_call_id
from xllm_server.parsers.tool_call.state_machine import ToolCallStateMachine


def _name_alone(header: str) -> tuple[str, str | None]:
    return header.strip(), None


def _name_after_type(header: str) -> tuple[str, str | None]:
    """Read `function<｜tool▁sep｜>name`."""
    return header.rpartition(SEPARATOR)[2].strip(), None


def _kimi_name(header: str) -> tuple[str, str | None]:
    """Read `functions.name:index`, which is also the call's id: Kimi's templates want it back."""
    call_id = header.strip()
    name, _, number = call_id.rpartition(":")
    if not number.isdecimal():
        return call_id.removeprefix("functions."), None
    return name.removeprefix("functions."), call_id


SEPARATOR = "<｜tool▁sep｜>"
LONGEST_HEADER = 512


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """Marks of a format: section [call header [header_end] arguments [call_end]]* section_end."""

    section: tuple[str, ...]
    section_end: tuple[str, ...]
    call: str
    header_end: str
    call_end: tuple[str, ...]
    """What ends the arguments; a longer one that ends alike goes first."""
    read_header: Callable[[str], tuple[str, str | None]] = _name_alone
    """From the text between `call` and `header_end` to (name, id or None)."""
    between: str = ""
    """What stands between two calls."""
    header: str = "{name}"
    """The same the other way round; `{name}` stands for the name."""


class TaggedJsonParser(ToolCallStateMachine):
    """A parser for one `TaggedFormat`; arguments are passed on as they are."""

    needs_special_tokens = True
    form: TaggedFormat

    @classmethod
    def syntaxes(cls, tools: Sequence[Tool]) -> Sequence[CallSyntax]:
        """See `ToolCallStateMachine.syntaxes`."""
        form = cls.form
        section, section_end, call_end = form.section[0], form.section_end[0], form.call_end[0]
        call = marked_json(f"{form.header}{form.header_end}", call_end)
        return [CallSyntax(call, f"{section}{form.call}", f"{form.between}{form.call}", section_end, trigger=section)]

    def __init__(self, tools: Sequence[Tool] = (), new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(tools, new_id)
        form = self.form
        self._content_tags = Tags(*form.section, *form.section_end, form.call)
        self._header_tags = Tags(form.header_end, *form.section, *form.section_end, form.call)
        self._end_tags = Tags(*form.call_end, *form.section_end, form.call)
        self._header = ""

    def read_content(self) -> bool:
        """Read text for the reader up to a call; the marks around calls are dropped."""
        text, tag = self._text.take_until(self._content_tags)
        self._found.content(text)
        if tag == self.form.call:
            self._begin_header(tag)
        return tag is not None

    def _begin_header(self, tag: str) -> None:
        self._text.record(tag)
        self._header = ""
        self._state = self._read_header

    def _read_header(self) -> bool:
        text, tag = self._text.take_until(self._header_tags)
        self._header += text
        is_header_end = tag == self.form.header_end
        if len(self._header) > LONGEST_HEADER or (tag is not None and not is_header_end):
            self._text.put_back(tag or "")
            return self._give_up_call()
        if not is_header_end:
            return False
        name, call_id = self.form.read_header(self._header)
        if not name:
            return self._give_up_call()
        self._begin_call(name, call_id)
        self._state = self._read_space
        return True

    def _read_space(self) -> bool:
        self._text.take_while(WHITESPACE)
        if self._text.is_empty:
            return False
        self._state = self._read_arguments
        return True

    def _read_arguments(self) -> bool:
        text, tag = self._text.take_until(self._end_tags)
        self._found.arguments(text)
        if tag is None:
            return False
        self._found.end_call()
        if tag not in self.form.call_end:
            self._text.put_back(tag)
        self._state = self.read_content
        return True


class DeepseekV3Parser(TaggedJsonParser):
    """DeepSeek V3 and R1: a type, a name, and arguments in a code fence."""

    form = TaggedFormat(
        section=("<｜tool▁calls▁begin｜>",),
        section_end=("<｜tool▁calls▁end｜>",),
        call="<｜tool▁call▁begin｜>",
        header_end="\n```json\n",
        call_end=("\n```<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>"),
        read_header=_name_after_type,
        between="\n",
        header=f"function{SEPARATOR}{{name}}",
    )


class DeepseekV31Parser(TaggedJsonParser):
    """DeepSeek V3.1: a name and bare arguments."""

    form = TaggedFormat(
        section=("<｜tool▁calls▁begin｜>",),
        section_end=("<｜tool▁calls▁end｜>",),
        call="<｜tool▁call▁begin｜>",
        header_end=SEPARATOR,
        call_end=("<｜tool▁call▁end｜>",),
    )


class KimiK2Parser(TaggedJsonParser):
    """Kimi K2 and K2.5."""

    form = TaggedFormat(
        section=("<|tool_calls_section_begin|>",),
        section_end=("<|tool_calls_section_end|>",),
        call="<|tool_call_begin|>",
        header_end="<|tool_call_argument_begin|>",
        call_end=("<|tool_call_end|>",),
        read_header=_kimi_name,
        header="functions.{name}:{index}",
    )

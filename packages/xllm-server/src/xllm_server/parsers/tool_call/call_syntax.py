"""How a model writes its calls, as structures that a grammar can hold it to. The counterpart of the parsers.

Every call of a tool written so is read back by the parser with arguments that follow the tool's schema, as far as the
format can carry them: what is written without quotes follows neither `pattern` nor a length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xllm_framework.constraint.structure import (
    Choice,
    FreeText,
    Json,
    Literal,
    Pattern,
    Repeat,
    Structure,
    optional,
    sequence,
)
from xllm_server.parsers.tool_call.argument_types import quote, to_json_text
from xllm_server.parsers.tool_call.interface import Tool

Rest = Structure | str


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One way to write calls: before call (between call)* after. The strings are markup."""

    call: Callable[[Tool], Structure]
    """Returns one call of a tool, without what stands around it."""
    before: str
    between: str
    after: str
    trigger: str = ""
    """The mark with which `before` begins, and which only a call begins with; empty where calls are the whole answer."""
    num_calls: int | None = None
    """How many calls one answer can hold; None for any number."""

    def calls(self, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """Return one or more calls, each of one of `tools`."""
        return sequence(self.before, self._from_first(tools, at_most))

    def calls_after_trigger(self, tools: Sequence[Tool], at_most: int | None) -> Structure:
        """Return the same without the trigger."""
        return sequence(self.before.removeprefix(self.trigger), self._from_first(tools, at_most))

    def _from_first(self, tools: Sequence[Tool], at_most: int | None) -> Structure:
        limits = [limit for limit in (at_most, self.num_calls) if limit is not None]
        call = Choice(tuple(map(self.call, tools)))
        return sequence(Repeat(call, 1, min(limits, default=None), self.between), self.after)


def forced_calls(syntaxes: Sequence[CallSyntax], tools: Sequence[Tool], at_most: int | None) -> Structure:
    """Return an answer that is nothing but calls, at least one."""
    return Choice(tuple(syntax.calls(tools, at_most) for syntax in syntaxes))


def free_calls(syntaxes: Sequence[CallSyntax], tools: Sequence[Tool], at_most: int | None) -> Structure:
    """Return any answer in which a call, once begun, is one of `tools`."""
    triggered = [syntax for syntax in syntaxes if syntax.trigger]
    if not triggered:
        return _whole_or_text(syntaxes, tools, at_most)
    with_text = Choice(
        tuple(sequence(FreeText(syntax.trigger), syntax.calls_after_trigger(tools, at_most)) for syntax in triggered)
    )
    return sequence(Repeat(with_text, at_most=at_most), FreeText())


def _whole_or_text(syntaxes: Sequence[CallSyntax], tools: Sequence[Tool], at_most: int | None) -> Structure:
    """Return calls, or a text that does not begin as one of them does."""
    openings = "".join(sorted({_opening(syntax, tools) for syntax in syntaxes}))
    text = Pattern(rf"(\s*[^\s{_escaped(openings)}](?s:.)*)?")
    return Choice((forced_calls(syntaxes, tools, at_most), text))


def _opening(syntax: CallSyntax, tools: Sequence[Tool]) -> str:
    return syntax.before[:1] or "{"


def _escaped(characters: str) -> str:
    return "".join(f"\\{character}" for character in characters)


def arguments_schema(tool: Tool) -> Json:
    """Return the structure of a tool's arguments as one JSON object: no other properties than those that are declared."""
    function = tool["function"]
    schema: dict[str, Any] = dict(function.get("parameters") or {"properties": {}})
    schema.setdefault("type", "object")
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    elif schema.keys() <= {"type", "$schema", "title", "description", "required"}:
        schema |= {"properties": {}, "additionalProperties": False}
    return Json(schema, param_of(tool), is_lenient=not function.get("strict"))


def param_of(tool: Tool) -> str:
    """Return how errors name a tool's schema."""
    return f"tools.{tool['function']['name']}"


def named_json(name_key: str, arguments_key: str) -> Callable[[Tool], Structure]:
    """Return what writes {"name": ..., "arguments": {...}} with these keys."""

    def call(tool: Tool) -> Structure:
        name = quote(tool["function"]["name"])
        opening = f"{{{quote(name_key)}: {name}, {quote(arguments_key)}: "
        return sequence(Literal(opening), arguments_schema(tool), "}")

    return call


def marked_json(header: str, end: str = "") -> Callable[[Tool], Structure]:
    """Return what writes the arguments after a header: `{name}` stands for the function's name, `{index}` for a number."""
    before_index, is_numbered, after_index = header.partition("{index}")

    def call(tool: Tool) -> Structure:
        name = tool["function"]["name"]
        number = [Pattern("[0-9]{1,3}")] if is_numbered else []
        return sequence(before_index.replace("{name}", name), *number, after_index, arguments_schema(tool), end)

    return call


def parameters_of(tool: Tool) -> list[tuple[str, dict[str, Any], bool]]:
    """Return (name, schema with the definitions it may refer to, is required) of each parameter, required ones first."""
    root = tool["function"].get("parameters")
    properties = root.get("properties") if isinstance(root, dict) else None
    if not isinstance(root, dict) or not isinstance(properties, dict):
        return []
    required = root.get("required")
    names = [name for name in required if name in properties] if isinstance(required, list) else []
    definitions = {word: root[word] for word in ("$defs", "definitions") if word in root}
    parameters = []
    for name, schema in properties.items():
        own = schema if isinstance(schema, dict) else {}
        parameters.append((name, own | definitions, name in names))
    return sorted(parameters, key=lambda parameter: not parameter[2])


def value_in_element(schema: dict[str, Any], types: frozenset[str], tool: Tool, end: str) -> Structure:
    """Return a parameter's value as text without quotes, and the mark `end` behind it."""
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if types == {"string"}:
        values = [value for value in values if isinstance(value, str)]
    if values:
        texts = [value if isinstance(value, str) else to_json_text(value) for value in values]
        return sequence(Choice(tuple(map(Literal, texts))), end)
    if not types or "string" in types:
        return FreeText(end.lstrip("\n"))
    return sequence(value_schema(schema, tool), end)


def value_schema(schema: dict[str, Any], tool: Tool) -> Json:
    """Return a parameter's value as JSON."""
    return Json(schema, param_of(tool), is_lenient=not tool["function"].get("strict"))


def in_any_number(parts: Sequence[tuple[Structure, bool]]) -> Structure:
    """Return the parts in their order, those that are not required perhaps left out."""
    return sequence(*(part if is_required else optional(part) for part, is_required in parts))


def joined(parts: Sequence[tuple[Structure, bool]], separator: str) -> Structure:
    """Return the same with a separator between those that are there; required ones come first."""
    if not parts:
        return Literal("")
    rest = [(sequence(Literal(separator), part), is_required) for part, is_required in parts]
    if parts[0][1]:
        return sequence(parts[0][0], in_any_number(rest[1:]))
    heads = [sequence(part, in_any_number(rest[index + 1 :])) for index, (part, _) in enumerate(parts)]
    return Choice((Literal(""), *heads))
